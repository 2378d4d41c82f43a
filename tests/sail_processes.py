"""What a process of a test does with Sail; a module of its own, because each new process imports it.

Put here functions that take plain arguments and print JSON. A process computes on Sail or in a JVM, never both: the tests' own has a JVM.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any


def _wrong_amounts(number: str) -> Callable[..., Any]:
    def changed(inputs: Any, context: Any) -> Any:
        from pyspark.sql import functions as F

        from backfill_assets.products.enforcement import transforms

        rows = transforms.case_sla_daily(inputs, context)
        here = (F.date_format("business_date", "yyyy-MM") == "2010-04") & (F.dayofmonth("business_date") == 2)
        return rows.withColumn("amount", F.when(here, F.lit(Decimal(number))).otherwise(F.col("amount")))

    return changed


def _with(column: str, expression: str) -> Callable[..., Any]:
    def changed(inputs: Any, context: Any) -> Any:
        from pyspark.sql import functions as F

        from backfill_assets.products.enforcement import transforms

        return transforms.case_sla_daily(inputs, context).withColumn(column, F.expr(expression))

    return changed


def _writes(inputs: Any, context: Any) -> Any:
    from backfill_assets.products.enforcement import transforms

    rows = transforms.case_sla_daily(inputs, context)
    rows.write.parquet(os.environ["WRITTEN_BY_A_TRANSFORM"])
    return rows


def _dice(inputs: Any, context: Any) -> Any:
    return _wrong_amounts(f"{time.time_ns() % 1_000_000}.00")(inputs, context)


VERSIONS: dict[str, Callable[..., Any]] = {
    "eleven": _wrong_amounts("11.00"),
    "twelve": _wrong_amounts("12.00"),
    "dice": _dice,
    "writes": _writes,
    # Spark begins a new word at a space alone, Sail after any sign
    "initcap": _with("amount", "cast(length(replace(initcap('a-a'), 'A', '')) AS decimal(12, 2))"),
    "collation": _with("amount", "cast(length(collation(case_id)) AS decimal(12, 2))"),
    "large": _with("days_open", "cast(4000000000 AS bigint)"),
}
"""Transforms that a test declares as version 9.9.9: in its own process, and in one of these."""


def reproduce_as(version: str, *arguments: str) -> None:
    """Run `backfill reproduce` where version 9.9.9 is one of these."""
    import pytest
    from launches import _command
    from worlds import with_version

    from backfill_assets.products.enforcement import transforms

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(transforms.DAY_OF, "9.9.9", transforms.local_date)
        with_version(patch, "9.9.9", VERSIONS[version])
        _command("reproduce", *arguments)


def ask(home: str, folder: str) -> None:
    """Have a session of Sail do what a transform might: print what came of each, and how the server's process is."""
    from datetime import date

    from manifests.errors import Refused
    from manifests.model import Mode
    from resources.settings import load_settings
    from resources.spark import sail

    outside = str(Path(folder).parent / "outside")
    settings = load_settings(home=home)
    with sail.serving(settings, Mode.BACKFILL, folder, modules=(), code=lambda: "") as (spark, _):
        session = spark.session(Mode.BACKFILL)
        rows = session.createDataFrame([(1, date(2020, 1, 1))], "number int, day date")
        rows.createOrReplaceTempView("given")
        asked: dict[str, Callable[[], Any]] = {
            "query": lambda: session.sql("SELECT number FROM given").collect()[0][0],
            "below the folder": lambda: (
                rows.write.parquet(f"{folder}/here") or session.read.parquet(f"{folder}/here").count()
            ),
            "files": lambda: rows.write.parquet(outside),
            "files by another way": lambda: rows.write.parquet(f"{folder}/../outside"),
            "a folder beside": lambda: rows.write.parquet(f"{folder}-beside"),
            "a table": lambda: rows.write.saveAsTable("outside"),
            "a table of the newer kind": lambda: rows.writeTo("outside").create(),
            "a checkpoint": lambda: rows.localCheckpoint().count() + rows.checkpoint().count(),
            "a table by SQL": lambda: session.sql("CREATE TABLE outside AS SELECT 1 AS number"),
            "rows by SQL": lambda: session.sql(
                "WITH one AS (SELECT 1 AS number) INSERT INTO given SELECT number FROM one"
            ),
            "a folder by SQL": lambda: session.sql(f"INSERT OVERWRITE DIRECTORY '{outside}' USING parquet SELECT 1"),
            "a table of the catalog": lambda: session.catalog.createTable("outside", path=outside, schema=rows.schema),
            "another's file": lambda: session.read.text("/etc/hostname").collect(),
            "another's file by SQL": lambda: session.sql("SELECT * FROM text.`/etc/hostname`").collect(),
            "another's file as a table": lambda: session.table("text.`/etc/hostname`").collect(),
            "a database": lambda: session.read.format("jdbc").options(url="jdbc:x", dbtable="y").load().collect(),
        }
        found = {}
        for name, what in asked.items():
            try:
                found[name] = f"done: {what()}"
            except Refused as refusal:
                found[name] = f"refused: {refusal.problems[0].what}"
        server = server_of_this_process()
        environment = sorted(Path(f"/proc/{server}/environ").read_text().split("\0"))
        left = [name for name, value in os.environ.items() if "hush" in value]
        said = {"asked": found, "environment": environment, "listens": listens(server), "left": left}
        print(json.dumps(said), flush=True)


def server_of_this_process() -> int:
    """Return the number of the process of Sail's server that this process has started."""
    children = [one for task in Path("/proc/self/task").iterdir() for one in (task / "children").read_text().split()]
    (found,) = (one for one in children if "resources.spark.sail_server" in Path(f"/proc/{one}/cmdline").read_text())
    return int(found)


def listens(process: int) -> list[str]:
    """Return the addresses that a process listens at, as the kernel writes them: hexadecimal, without the port."""
    sockets = {str(one.readlink()) for one in Path(f"/proc/{process}/fd").iterdir() if one.is_symlink()}
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return [line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]


def serve_until_killed() -> None:
    """Start a server and say its process; then do nothing until this process is killed."""
    from resources.spark.sail import _running

    with _running({}):
        print(server_of_this_process(), flush=True)
        time.sleep(600)


def compute_on(address: str, home: str) -> None:
    """Ask for the session of a run of an installation whose settings name a server; print the refusal."""
    from manifests.errors import Refused
    from manifests.model import Mode
    from resources.settings import load_settings
    from resources.spark.sessions import ModeSpark

    try:
        ModeSpark(load_settings(home=home, spark={"spark.remote": address})).session(Mode.BACKFILL)
    except Refused as refusal:
        print(json.dumps([problem.what for problem in refusal.problems]), flush=True)
        sys.exit(2)


def refused_by_settings(home: str) -> None:
    """Serve, and ask for the session of a run on that very server, as settings would name it."""
    from resources.spark.sail import _running

    with _running({}) as (port, _):
        compute_on(f"sc://127.0.0.1:{port}", home)
