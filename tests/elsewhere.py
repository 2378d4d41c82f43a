"""How tests have `elsewhere_core.py` compute in a process of its own, and what is the same wherever Spark is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from real_servers.postgresql import LogicalPostgres
from real_servers.rest_catalog import RestCatalog
from real_servers.spark import environment_of

ROOT = Path(__file__).resolve().parent.parent
SMALL = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
}
EXECUTORS = {"spark.executor.memory": "700m", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
RUN = "elsewhere"
CORE = str(ROOT / "tests" / "elsewhere_core.py")


def process(arguments: list[str], environment: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=dict(environment),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def core(action: str, environment: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Return what `elsewhere_core.py` finds."""
    return found_by(process([CORE, action], environment, folder))


def found_by(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return what a process of `elsewhere_core.py` has printed."""
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-4000:]}"
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    found: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    return found


def command(environment: Mapping[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return process(["-m", "backfill_assets.cli.command", *arguments], environment, folder)


def same(found: dict[str, Any], local: dict[str, Any]) -> None:
    assert found["digests"] == local["digests"]
    assert len(set(found["digests"].values())) == 3
    assert found["gates"] == local["gates"]
    assert ["recomputed_chunks_are_equal", True] in found["gates"]
    assert (found["rows"], found["left"], found["verified"]) == (local["rows"], 0, [])
    assert (found["state"], found["reproduced"], found["after"]) == ("PUBLISHED", "EQUAL", "ROLLED_BACK")


def installation_of(
    home: Path, spark: Mapping[str, str], catalog: RestCatalog, postgres: LogicalPostgres, jars: Path
) -> dict[str, str]:
    """Return the environment of an installation with tables in S3 by a REST catalog, and two databases of its own."""
    return environment_of(
        home,
        SMALL | {"spark.driver.extraClassPath": f"{jars}/*"} | dict(spark),
        catalog=json.dumps(catalog.properties),
        ledger_url=postgres.database(),
        dagster_storage_url=postgres.database(),
    )
