"""Readers of their own process, which look at a table all the time while it is restated.

    python -m benchmarks.side_by_side.readers (iceberg HOME | parquet FOLDER) NOTES HERTZ

Put here how a table that another process can read is looked at: an Iceberg table by PyIceberg, a folder of Parquet files by Polars.
What only the writing process can read (DuckDB's file, Spark's embedded metastore) `sqlmesh_driver` looks at. A look that would
read the same files as the one before is not taken again. A reader ends when its standard input does.
"""

from __future__ import annotations

import json
import select
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from backfill_assets.installation import Platform
from benchmarks.side_by_side.states import Months
from resources.settings import load_settings

TARGET = "silver.case_sla_daily"
_READ = ("business_date", "days_open", "sla_state", "breach_on")
Looking = Callable[[], tuple[Any, Callable[[], Months]]]
"""Returns which files make up the table now, and a function that reads them."""


def figures(rows: pl.DataFrame) -> Months:
    """Return the figures of rows by month; see `states.FIGURES`."""
    by_month = rows.group_by(pl.col("business_date").dt.strftime("%Y-%m").alias("month")).agg(
        pl.len(),
        (pl.col("days_open").cast(pl.Int64) * pl.col("business_date").dt.day()).sum().alias("weighed"),
        (pl.col("sla_state") == "BREACHED").sum().alias("breaches"),
        pl.col("breach_on").is_null().sum().alias("bad"),
    )
    return {month: tuple(values) for month, *values in by_month.iter_rows()}


def of_iceberg(home: Path) -> Looking:
    """Look at the target of an installation."""
    platform = Platform.of(load_settings(home=home))

    def read() -> Months:
        table = platform.lakehouse.table(TARGET)
        if table.current_snapshot() is None:
            return {}
        rows = pl.from_arrow(table.scan(selected_fields=_READ).to_arrow())
        assert isinstance(rows, pl.DataFrame)
        return figures(rows)

    catalog = platform.settings.catalog["uri"].removeprefix("sqlite:///").partition("?")[0]
    name = TARGET.rpartition(".")[2]

    def pointer() -> Any:
        with sqlite3.connect(catalog, timeout=30) as connection:  # nothing changes for readers unless this does
            query = "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?"
            return connection.execute(query, (name,)).fetchall()

    return lambda: (pointer(), read)


def of_parquet(folder: Path) -> Looking:
    """Look at the files of a folder, as Spark reads them: none whose name, or whose folder's, begins with a dot or `_`."""

    def files() -> list[tuple[str, int, int]]:
        found = []
        for file in folder.glob("*/*.parquet"):
            if file.name[0] not in "._" and file.parent.name[0] not in "._":
                stat = file.stat()
                found.append((str(file), stat.st_size, stat.st_mtime_ns))
        return sorted(found)

    def look() -> tuple[Any, Callable[[], Months]]:
        present = files()

        def read() -> Months:
            parts = [pl.read_parquet(name, columns=list(_READ), hive_partitioning=False) for name, _, _ in present]
            return figures(pl.concat(parts)) if parts else {}

        return present, read

    return look


def watch(look: Looking, notes: Path, hertz: float, is_over: Callable[[float], bool]) -> None:
    """Look until it is over, and note each look that differs from the one before."""
    with notes.open("a") as file:
        before: Any = None
        noted: Any = None
        polls = 0
        over = False
        while not over:
            polls += 1
            began = time.monotonic()
            try:
                present, read = look()
                found: Any = noted if present == before and noted is not None else {"months": read()}
                before = present
            except Exception as error:  # noqa: BLE001 - what a reader meets is what is measured
                found, before = {"error": f"{type(error).__name__}: {str(error)[:300]}"}, None
            if found != noted:
                file.write(f"{json.dumps({'at': began, 'polls': polls, **found})}\n")
                file.flush()
                noted = found
            over = is_over(max(0.0, began + 1 / hertz - time.monotonic()))
        file.write(f"{json.dumps({'at': time.monotonic(), 'polls': polls, **noted})}\n")


def main() -> None:
    """Look at a table until standard input ends."""
    kind, place, notes, hertz = sys.argv[1:]
    look = {"iceberg": of_iceberg, "parquet": of_parquet}[kind](Path(place))

    def is_over(seconds: float) -> bool:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return bool(ready)  # nothing is ever written to it: it has ended

    watch(look, Path(notes), float(hertz), is_over)


if __name__ == "__main__":
    main()
