"""The cases of a quarantine as a file for others to work on: CSV or Parquet, a row a case, with the raw row as it came.

Put here what is in such a file, and what is withheld of it. Which cases there are is `planning.quarantine_cases`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl

from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.quarantine import WITHHELD
from backfill_assets.installation import Platform
from backfill_assets.planning.quarantine_cases import Case, raw_rows
from manifests.errors import InputRefused, Problem
from resources.files.whole_files import write_whole_bytes

_TIME = pl.Datetime("us", "UTC")
_COLUMNS: dict[str, Any] = {
    "case_id": pl.String,
    "rule": pl.String,
    "detail": pl.String,
    "record": pl.String,
    "rows": pl.Int64,
    "first_seen": _TIME,
    "last_seen": _TIME,
    "loads": pl.String,
    "source_file": pl.String,
    "source_row": pl.Int64,
    "state": pl.String,
    "decided_by": pl.String,
    "decided_at": _TIME,
    "why": pl.String,
    "released_by": pl.String,
}


def is_withheld(platform: Platform, table: InputTable) -> bool:
    """Return whether values of quarantined rows are not shown: the policy protects columns of the table, or of its quarantine."""
    return platform.policy.protects(table.name) or platform.policy.protects(platform.products.quarantine_of(table).name)


def export(platform: Platform, table: InputTable, cases: Sequence[Case], file: Path) -> int:
    """Write cases to a file, whole or not at all; return how many. Values are withheld where the policy protects them.

    Raises:
        InputRefused: if the file's name says no format that is written.
        EnvironmentRefused: if it cannot be written.
    """
    kind = file.suffix.lower()
    if kind not in {".csv", ".parquet"}:
        raise InputRefused(
            Problem(
                f"{file} ends in '{file.suffix}'",
                "cases are written as .csv or .parquet",
                "name the file as one of them",
            )
        )
    withheld = is_withheld(platform, table)
    records = (
        {} if withheld else {row.case_id: row.record for row in raw_rows(platform, table, [c.case_id for c in cases])}
    )
    rows = [
        asdict(case)
        | {
            "state": case.state.value,
            "loads": " ".join(case.loads),
            "record": WITHHELD if withheld else records.get(case.case_id, ""),
            "detail": WITHHELD if withheld else case.detail,
        }
        for case in cases
    ]
    frame = pl.DataFrame([{name: row[name] for name in _COLUMNS} for row in rows], schema=_COLUMNS)
    held = BytesIO()
    if kind == ".csv":
        frame.write_csv(held)
    else:
        frame.write_parquet(held)
    write_whole_bytes(file, held.getvalue())
    return frame.height
