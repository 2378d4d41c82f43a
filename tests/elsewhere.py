"""How tests have `elsewhere_core.py` compute in a process of its own, what is the same wherever Spark is, and the servers that it is given."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real_servers.postgresql import LogicalPostgres, logical_postgres
from real_servers.rest_catalog import RestCatalog, rest_catalog
from real_servers.s3 import Store, spark_jars, store_on_disk
from real_servers.spark import ConnectServer, connect_server, environment_of, require_spark

ROOT = Path(__file__).resolve().parent.parent
SMALL = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
}
EXECUTORS = {"spark.executor.memory": "700m", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
RUN = "elsewhere"
CORE = str(ROOT / "tests" / "elsewhere_core.py")


def process(
    arguments: list[str], environment: Mapping[str, str], folder: Path, seconds: float = 900
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=dict(environment),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def core(action: str, environment: Mapping[str, str], folder: Path, seconds: float = 900) -> dict[str, Any]:
    """Return what `elsewhere_core.py` finds, in so many seconds at the most."""
    return found_by(process([CORE, action], environment, folder, seconds))


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


@dataclass(frozen=True)
class Services:
    """What an installation is given: the addresses of everything that is not its own process.

    Attributes:
        folder: where installations lie.
        store: the S3 server.
        catalog: the REST catalog, with its tables in the store.
        postgres: the server of ledgers and of Dagster's storages.
        jars: what Spark reaches the store by.
        endpoint: where installations ask for the store, if not where it listens.
    """

    folder: Path
    store: Store
    catalog: RestCatalog
    postgres: LogicalPostgres
    jars: Path
    endpoint: str = ""

    def environment(self, name: str, spark: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of an installation with databases of its own; its run is named as it is, since all have one warehouse."""
        catalog = self.catalog.properties | ({"s3.endpoint": self.endpoint} if self.endpoint else {})
        own = environment_of(
            self.folder / name,
            SMALL | {"spark.driver.extraClassPath": f"{self.jars}/*"} | dict(spark),
            catalog=json.dumps(catalog),
            ledger_url=self.postgres.database(),
            dagster_storage_url=self.postgres.database(),
        )
        return own | {"ELSEWHERE_RUN": name}

    def on_cluster(self, address: str) -> dict[str, str]:
        """Return what Spark's settings have to say for a run on a cluster."""
        return EXECUTORS | {"spark.master": address, "spark.executor.extraClassPath": f"{self.jars}/*"}

    @contextmanager
    def connect_server(self, name: str) -> Iterator[ConnectServer]:
        """Yield a server of Spark Connect, started with what `backfill spark settings` prints."""
        asking = self.environment(f"asking-{name}", {})
        assert command(asking, self.folder, "init").returncode == 0
        asked = json.loads(command(asking, self.folder, "spark", "settings", "--json").stdout)
        modes = {"spark.backfill.server.modes": "BACKFILL,REPLAY,RECONCILIATION"}
        jars = {"spark.driver.extraClassPath": f"{self.jars}/*"}
        with connect_server(self.folder / name, asked["settings"] | modes | jars, asked["environment"]) as server:
            yield server


@contextmanager
def services_in(folder: Path, bucket: str) -> Iterator[Services]:
    """Yield servers of a test module's own, with tables in a bucket.

    Raises:
        MissingServerError: if one of them cannot be had, with the package that is missing.
    """
    with ExitStack() as stack:
        require_spark()
        jars = spark_jars()
        store = stack.enter_context(store_on_disk())
        catalog = stack.enter_context(rest_catalog(store, store.bucket(bucket)))
        postgres = stack.enter_context(logical_postgres())
        yield Services(folder, store, catalog, postgres, jars)
