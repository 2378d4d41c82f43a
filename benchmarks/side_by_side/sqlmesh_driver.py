"""Runs SQLMesh's own command in its environment, and looks at its tables meanwhile from a thread of the same process.

    PYTHON sqlmesh_driver.py PROJECT (setup | look NOTES | export FILE | sqlmesh ARGUMENTS...)

A file that stands alone: the environment that it runs in has SQLMesh, not this project. A DuckDB file is open in one process at a time,
and so is Spark's embedded metastore: a reader elsewhere would be refused while SQLMesh runs, or refuse it. So the reader is a thread here
where LOOKS names a file for its notes. What is executed is printed, a line a statement: by that a kill finds the middle.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PROJECT = Path(sys.argv[1])
TOLD: dict[str, Any] = json.loads((PROJECT / "told.json").read_text())
VIEW = "silver.case_sla_daily"
SOURCES = ("events", "rules", "stops", "calendar")
COMMENT = re.compile(r"^/\*.*?\*/\s*")
WRITES = re.compile(r"^\s*(INSERT|DELETE|MERGE|CREATE|ALTER|TRUNCATE|DROP|BEGIN|COMMIT|ROLLBACK)\b", re.IGNORECASE)
_LINE = 110


class OfDuckDB:
    """Looks at the DuckDB file of the project."""

    def __init__(self) -> None:
        import duckdb  # type: ignore[import-not-found]  # of the other environment

        self.connection = duckdb.connect(TOLD["database"])
        self.connection.execute("SET TimeZone = 'UTC'")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self.connection.execute(query).fetchall()  # type: ignore[no-any-return]

    def setup(self) -> None:
        """Make the sources: views over the files that all contenders read."""
        self.rows("CREATE SCHEMA IF NOT EXISTS source")
        for name in SOURCES:
            self.rows(
                f"CREATE OR REPLACE VIEW source.{name} AS SELECT * FROM read_parquet('{TOLD['sources']}/{name}/*.parquet')"
            )

    def export(self, query: str, file: str) -> None:
        """Write the rows of a query to Parquet."""
        self.connection.execute(f"COPY ({query}) TO '{file}' (FORMAT parquet)")


class OfSpark:
    """Looks at Spark's tables, in a session beside SQLMesh's."""

    def __init__(self, *, waits: bool = False) -> None:
        from pyspark.sql import SparkSession

        while waits and SparkSession._instantiatedSession is None:
            time.sleep(0.05)
        if not waits:
            builder: Any = SparkSession.builder
            for name, value in TOLD["spark"].items():
                builder = builder.config(name, value)
            builder.enableHiveSupport().getOrCreate()
        self.session: Any = SparkSession._instantiatedSession.newSession()  # type: ignore[union-attr]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with suppress(Exception):  # there is no view yet
            self.session.catalog.refreshTable(VIEW)  # or a session beside the writer's would look for files of before
        return [tuple(row) for row in self.session.sql(query).collect()]

    def setup(self) -> None:
        """Make the sources: external tables over the files that all contenders read."""
        self.session.sql("CREATE DATABASE IF NOT EXISTS source")
        for name in SOURCES:
            folder = f"{TOLD['sources']}/{name}"
            self.session.sql(f"CREATE TABLE IF NOT EXISTS source.{name} USING parquet LOCATION '{folder}'")

    def export(self, query: str, file: str) -> None:
        """Write the rows of a query to Parquet."""
        self.session.sql(query).coalesce(1).write.mode("overwrite").parquet(file)


def months(tables: OfDuckDB | OfSpark) -> dict[str, list[int]]:
    """Return the figures by month, as `states` has them."""
    return {row[0]: [int(value) for value in row[1:]] for row in tables.rows(TOLD["look"])}


def watch(notes: Path, over: threading.Event) -> None:
    """Note what a reader sees, whenever it differs from before, until it is over."""
    tables = None
    noted: Any = None
    polls = 0
    with notes.open("a") as file:
        while not over.is_set():
            began = time.monotonic()
            polls += 1
            try:
                tables = tables or (OfSpark(waits=True) if TOLD["engine"] == "spark" else OfDuckDB())
                found: Any = {"months": months(tables)}
            except Exception as error:  # noqa: BLE001 - what a reader meets is what is measured
                found = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            if found != noted:
                file.write(f"{json.dumps({'at': began, 'polls': polls, **found})}\n")
                file.flush()
                noted = found
            over.wait(max(0.0, began + 1 / TOLD["hertz"] - time.monotonic()))
        if noted is not None:
            file.write(f"{json.dumps({'at': time.monotonic(), 'polls': polls, **noted})}\n")


class _Statements(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Print a statement that writes, cut to a line."""
        text = COMMENT.sub("", record.getMessage().removeprefix("Executing SQL: "))
        if WRITES.match(text):
            print(f"executes {' '.join(text.split())[:_LINE]}", flush=True)


def sqlmesh(arguments: list[str]) -> int:
    """Run SQLMesh's command, with a reader beside it if one is asked for."""
    from sqlmesh.cli.main import cli  # type: ignore[import-not-found]  # of the other environment

    logger = logging.getLogger("sqlmesh.core.engine_adapter.base")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(_Statements())
    over = threading.Event()
    reader = threading.Thread(target=watch, args=(Path(os.environ.get("LOOKS", "")), over), daemon=True)
    if "LOOKS" in os.environ:
        reader.start()
    code: Any = 0
    try:
        cli(["-p", str(PROJECT), *arguments])
    except SystemExit as exit_:
        code = exit_.code
    over.set()
    if reader.is_alive():
        reader.join()
    return int(code or 0)


def main() -> int:
    """Do what is asked."""
    asked, *arguments = sys.argv[2:]
    if asked == "sqlmesh":
        return sqlmesh(arguments)
    tables = OfSpark() if TOLD["engine"] == "spark" else OfDuckDB()
    if asked == "setup":
        tables.setup()
    elif asked == "export":
        tables.export(f"SELECT {TOLD['columns']} FROM {VIEW}", arguments[0])
    else:
        line: dict[str, Any] = {"at": time.monotonic()}
        try:
            line["months"] = months(tables)
        except Exception as error:  # noqa: BLE001 - as above
            line["error"] = f"{type(error).__name__}: {str(error)[:300]}"
        with Path(arguments[0]).open("a") as file:
            file.write(f"{json.dumps(line)}\n")
    return 0


if __name__ == "__main__":
    code_ = main()
    sys.stdout.flush()
    with suppress(Exception):
        from pyspark.sql import SparkSession

        if SparkSession._instantiatedSession is not None:
            SparkSession._instantiatedSession.stop()
    sys.exit(code_)
