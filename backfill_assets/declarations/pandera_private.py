"""Everything private of pandera that this project uses, behind names of its own; `tests/test_upstream.py` pins each.

Put here what is asked of a check that pandera has no public question for. No other module names it, and a test looks that none
does. Declarations and Spark's workers both ask, so that it lies in the lower of the two packages: keep it light.
"""

from __future__ import annotations

import pandera.polars as pa
import polars as pl
from pandera.api.function_dispatch import Dispatcher


def is_built_in(check: pa.Check) -> bool:
    """Whether a check is one of pandera's own: those are dispatchers, copied with the schema.

    Its name does not say so: a product's own check may have the name of one.
    """
    return isinstance(check._check_fn, Dispatcher)  # noqa: SLF001


def answers_of(check: pa.Check, frame: pl.LazyFrame, column: str = "*") -> pl.LazyFrame:
    """Return what a check of a whole frame, or of one of its columns, answers for one, not collected."""
    answers: pl.LazyFrame = check._check_fn(pa.PolarsData(frame, column))  # noqa: SLF001
    return answers
