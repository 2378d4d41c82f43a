"""The bare job of a restatement by another engine: DuckDB, on the same pinned files, with the same rows as its result.

    PYTHONPATH=tests python -m benchmarks.restatement --duckdb

Put here what DuckDB is asked and how long it takes. Its SQL is that of the comparison side by side (`benchmarks.side_by_side.model`),
and DuckDB is fetched from the package registry by the helper of the tests. It writes what the bare job of Spark writes: a folder a
month, zstd, rows in key order; `rows` are compared by their number and by sums, so that nobody is measured at something else.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.side_by_side import data
from benchmarks.side_by_side.model import query
from manifests.plan import Plan

_SCRIPT = """
import json, os, resource, sys, time
import duckdb
asked = json.loads(sys.stdin.read())
connection = duckdb.connect()
connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false; CREATE SCHEMA source")
connection.execute(f"SET temp_directory = '{asked['spill']}'; SET memory_limit = '{asked['memory']}'")
places = asked["references"] | {"events": asked["events"]}
for name, files in places.items():
    connection.execute(f"CREATE VIEW source.{name} AS SELECT * FROM read_parquet({files!r})")
constants = ", ".join(f"'{value}' AS {name}" for name, value in asked["lineage"].items())
rows = f"SELECT *, {constants} FROM ({asked['query']}) ORDER BY month, case_id, clock, business_date"
began, computed = time.perf_counter(), time.process_time()
connection.execute(f"COPY ({rows}) TO '{asked['to']}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (month))")
seconds, computed = time.perf_counter() - began, time.process_time() - computed
found = connection.execute(f"SELECT COUNT(*), SUM(days_open), COUNT(breach_at) FROM read_parquet('{asked['to']}/*/*.parquet')").fetchone()
print(json.dumps([seconds, computed, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, [int(one) for one in found]]))
"""
_SECONDS = 3_600.0


class Job(NamedTuple):
    """What a job took: seconds on the clock, processor seconds, largest memory in MiB, and what it has written.

    `written` are the number of rows, the sum of `days_open`, and the number of rows with `breach_at`.
    """

    seconds: float
    computed: float
    memory: float
    written: tuple[int, ...]


def run(plan: Plan, events: Sequence[str], lineage: dict[str, Any], folder: Path, memory: str = "8GB") -> Job:
    """Compute the rows of a plan from the files of its events; the folder is made for it, and removed."""
    from duckdb_engine import in_duckdb  # of the tests: where DuckDB is

    folder.mkdir()
    data.write_references(folder)
    days = plan.publish_range
    asked = {
        "events": [str(one).removeprefix("file://") for one in events],
        "references": {name: [str(folder / f"{name}.parquet")] for name in ("rules", "stops", "calendar")},
        "query": query("duckdb", start=f"DATE '{days.start}'", end=f"DATE '{days.end}'"),
        "lineage": {name: str(value) for name, value in lineage.items()},
        "to": str(folder / "rows"),
        "spill": str(folder / "spill"),
        "memory": memory,
    }
    seconds, computed, most, written = in_duckdb(_SCRIPT, asked, _SECONDS)
    shutil.rmtree(folder)
    return Job(seconds, computed, most, tuple(written))
