"""What a target's `measure` may return of the rows of a chunk: slices, and sums that are added up.

Put here what is asked of the columns alone. Spark's workers ask it of every chunk, the planner of rows that are made up:
keep it light.
"""

from __future__ import annotations

import polars as pl

USABLE = "its columns are slices (text, category, truth, day, instant with a zone) and sums, which are integers"
_SLICES = (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Date, pl.Null)


def unusable_columns(measures: pl.DataFrame) -> list[str]:
    """Return the columns of what `measure` returned that are neither a slice nor a sum, each with its type."""
    return [f"{name} ({kind})" for name, kind in measures.schema.items() if not _is_usable(kind)]


def _is_usable(kind: pl.DataType) -> bool:
    has_zone = isinstance(kind, pl.Datetime) and kind.time_zone is not None
    return kind.is_integer() or kind.base_type() in _SLICES or has_zone
