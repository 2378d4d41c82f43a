"""Everything private of pandera that this project uses, behind names of its own; `tests/test_upstream.py` pins each.

Put here what is asked of a check that pandera has no public question for. No other module names it, and a test looks that none
does. Declarations and Spark's workers both ask, so that it lies in the lower of the two packages: keep it light.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandera.polars as pa
import polars as pl
from pandera.api.function_dispatch import Dispatcher
from pandera.backends.polars.base import PolarsSchemaBackend
from pandera.errors import FailureCaseMetadata, SchemaError

_failures = PolarsSchemaBackend.failure_cases_metadata


def is_built_in(check: pa.Check) -> bool:
    """Whether a check is one of pandera's own: those are dispatchers, copied with the schema.

    Its name does not say so: a product's own check may have the name of one.
    """
    return isinstance(check._check_fn, Dispatcher)  # noqa: SLF001


def answers_of(check: pa.Check, frame: pl.LazyFrame, column: str = "*") -> pl.LazyFrame:
    """Return what a check of a whole frame, or of one of its columns, answers for one, not collected."""
    answers: pl.LazyFrame = check._check_fn(pa.PolarsData(frame, column))  # noqa: SLF001
    return answers


def tell_any_failure() -> None:
    """Have pandera report rows that break a rule whatever is in them, in this process.

    It writes them as JSON, and for bytes Polars does not raise then, but panics: what is no text is told as text before.
    """

    def told(backend: PolarsSchemaBackend, schema_name: str, schema_errors: list[SchemaError]) -> FailureCaseMetadata:
        for one in schema_errors:
            if isinstance(one.failure_cases, pl.DataFrame):
                one.failure_cases = one.failure_cases.with_columns(_as_text(one.failure_cases))
        return _failures(backend, schema_name, schema_errors)

    PolarsSchemaBackend.failure_cases_metadata = told  # type: ignore[method-assign, assignment]


def _as_text(rows: pl.DataFrame) -> Iterable[pl.Series]:
    for column in rows.get_columns():
        if column.dtype == pl.Binary:
            yield column.bin.encode("hex")
        elif column.dtype.is_nested():
            yield pl.Series(column.name, [None if one is None else str(one) for one in column.to_list()], pl.String)
