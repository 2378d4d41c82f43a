"""Why rows of a transform may come out otherwise: functions of its plan that tell, clocks in its Python code, and words for it.

Put here another function that makes rows depend on more than the rows that are read, or another likely cause.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Any

from backfill_assets.declarations.places import is_own

CLOCKS = ("current_timestamp", "current_date", "localtimestamp", "now", "curdate", "current_time")
RANDOM = ("rand", "randn", "uuid", "shuffle", "random", "randstr", "uniform", "Sample")
PLACES = ("monotonically_increasing_id", "spark_partition_id", "input_file_name")
ORDERED = (
    "first",
    "last",
    "first_value",
    "last_value",
    "any_value",
    "collect_list",
    "collect_set",
    "listagg",
    "row_number",
    "lead",
    "lag",
    "ntile",
    "max_by",
    "min_by",
    "mode",
    "Deduplicate",
    "GlobalLimit",
)
"""Functions, as an analysed plan names them: those that ask a clock or for something random, that tell where a row lies, and
that depend on the order of rows where two of them share a place in it."""
_PYTHON_CLOCKS = frozenset({"now", "utcnow", "today", "time", "time_ns"})

NAIVE = (
    "a datetime without a time zone in its Python code: which instant it means depends on the machine; write "
    "`datetime(..., tzinfo=UTC)`"
)
DAYS = (
    "functions that take an instant's day or hour (`to_date`, `date_trunc`, `hour`, casts) in the session's time zone, which "
    "is always UTC on the platform"
)
LOOKS_AHEAD = (
    "it looks ahead: a row depends on source rows after its chunk and the day of margin, which are not there when the chunk is "
    "computed alone"
)


@contextmanager
def clocks_asked() -> Iterator[list[str]]:
    """Yield what will hold the clocks that an author's own Python code asks meanwhile, with the line of each."""
    asked: list[str] = []
    before = sys.getprofile()

    def heard(frame: FrameType, event: str, called: Any) -> None:
        name = getattr(called, "__name__", "")
        if event != "c_call" or name not in _PYTHON_CLOCKS or not is_own(frame.f_code.co_filename):
            return
        owner = getattr(called, "__self__", None)
        if owner is time or (isinstance(owner, type) and issubclass(owner, date)):
            asked.append(f"{owner.__name__}.{name}() ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})")

    sys.setprofile(heard)
    try:
        yield asked
    finally:
        sys.setprofile(before)
