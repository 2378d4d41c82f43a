"""All of it as a team runs it: a standalone cluster, tables in S3 by a REST catalog, ledger and Dagster's storage in PostgreSQL.

Each is a process of its own, with a folder of its own; the cluster's workers have none of the driver's local paths. Digests are those of
local Spark on local files. What a process does is `elsewhere_core.py`'s.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from elsewhere import EXECUTORS, SMALL, command, core, installation_of, same
from real_servers.postgresql import LogicalPostgres, logical_postgres
from real_servers.processes import MissingServerError
from real_servers.rest_catalog import RestCatalog, rest_catalog
from real_servers.s3 import Store, spark_jars, store_on_disk
from real_servers.spark import ConnectServer, cluster, connect_server, environment_of, require_spark

pytestmark = pytest.mark.servers


@dataclass(frozen=True)
class Services:
    """What an installation is given: the addresses of everything that is not its own process."""

    folder: Path
    store: Store
    catalog: RestCatalog
    postgres: LogicalPostgres
    jars: Path

    def environment(self, name: str, spark: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of an installation with databases of its own; its run is named as it is, since all have one warehouse."""
        environment = installation_of(self.folder / name, spark, self.catalog, self.postgres, self.jars)
        return environment | {"ELSEWHERE_RUN": name}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Servers of this module's own: it kills them."""
    with ExitStack() as stack:
        try:
            require_spark()
            jars = spark_jars()
            store = stack.enter_context(store_on_disk())
            catalog = stack.enter_context(rest_catalog(store, store.bucket("whole")))
            postgres = stack.enter_context(logical_postgres())
        except MissingServerError as reason:
            pytest.skip(f"nothing is tested on a cluster with S3, a REST catalog and PostgreSQL: {reason}")
        yield Services(tmp_path_factory.mktemp("whole"), store, catalog, postgres, jars)


@pytest.fixture(scope="module")
def master(services: Services) -> Iterator[str]:
    with cluster(services.folder / "cluster") as address:
        yield address


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a JVM of the process's own computes, on local files."""
    folder = tmp_path_factory.mktemp("local")
    return core("whole", environment_of(folder / "local", SMALL), folder)


def test_a_run_on_a_cluster_with_s3_rest_and_postgres_is_the_run_of_local_spark(
    services: Services, master: str, local: dict[str, Any]
) -> None:
    spark = EXECUTORS | {"spark.master": master, "spark.executor.extraClassPath": f"{services.jars}/*"}
    environment = services.environment("on-cluster", spark)
    found = core("whole", environment, services.folder)
    assert found["master"] == master
    same(found, local)
    assert [str(file) for file in services.folder.rglob("*.parquet")] == []
    assert services.store.objects("whole/warehouse") != []


@contextmanager
def server_of(services: Services, name: str) -> Iterator[ConnectServer]:
    """Yield a server of Spark Connect, started with what `backfill spark settings` prints."""
    asking = services.environment(f"asking-{name}", {})
    assert command(asking, services.folder, "init").returncode == 0
    asked = json.loads(command(asking, services.folder, "spark", "settings", "--json").stdout)
    modes = {"spark.backfill.server.modes": "BACKFILL,REPLAY,RECONCILIATION"}
    jars = {"spark.driver.extraClassPath": f"{services.jars}/*"}
    with connect_server(services.folder / name, asked["settings"] | modes | jars, asked["environment"]) as server:
        yield server


def test_a_run_on_a_connect_server_with_s3_rest_and_postgres_is_the_run_of_local_spark(
    services: Services, local: dict[str, Any]
) -> None:
    with server_of(services, "server") as server:
        environment = services.environment("on-server", {"spark.remote": server.address})
        found = core("whole", environment, services.folder)
        said = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        logged = (server.folder / "log").read_text(errors="replace")
    assert found["remote"]
    same(found, local)
    assert services.store.secret_key.encode() not in said
    assert services.store.secret_key not in logged


# --- the real log -----------------------------------------------------------------------------------------------------


@pytest.fixture
def apart(services: Services, request: pytest.FixtureRequest) -> Iterator[Services]:
    """The servers, with a catalog and a warehouse that have no table yet."""
    bucket = services.store.bucket("real-on-cluster" if "cluster" in request.node.name else "real-on-server")
    with rest_catalog(services.store, bucket) as catalog:
        yield replace(services, catalog=catalog)


@pytest.fixture(scope="module")
def real_local(tmp_path_factory: pytest.TempPathFactory, real_log: Path) -> dict[str, Any]:
    """What local Spark computes of the real log."""
    if "CLUSTER_REAL" not in os.environ:
        pytest.skip(
            "the real log is not computed on a cluster and on a server: it takes ten minutes (set CLUSTER_REAL)"
        )
    folder = tmp_path_factory.mktemp("real")
    return core("real", environment_of(folder / "local", SMALL) | {"ELSEWHERE_LOG": str(real_log)}, folder)


def test_the_real_log_has_the_digests_of_local_spark_on_a_cluster(
    apart: Services, real_local: dict[str, Any], real_log: Path, master: str
) -> None:
    spark = EXECUTORS | {"spark.master": master, "spark.executor.extraClassPath": f"{apart.jars}/*"}
    environment = apart.environment("real-on-cluster", spark) | {"ELSEWHERE_LOG": str(real_log)}
    found = core("real", environment, apart.folder)
    print(f"{found['rows']:,} rows of {len(found['digests'])} chunks")
    assert (found["state"], found["rows"] > 16_000_000) == ("VALIDATED", True), found["why"]
    assert found == real_local


def test_the_real_log_has_the_digests_of_local_spark_on_a_connect_server(
    apart: Services, real_local: dict[str, Any], real_log: Path
) -> None:
    with server_of(apart, "real") as server:
        environment = apart.environment("real-on-server", {"spark.remote": server.address})
        found = core("real", environment | {"ELSEWHERE_LOG": str(real_log)}, apart.folder)
    assert found == real_local


# --- whatever of it is killed -----------------------------------------------------------------------------------------

KILLS = int(os.environ.get("CLUSTER_KILLS", "5"))
SEED = int(os.environ.get("CLUSTER_SEED", "21"))
SECONDS = float(os.environ.get("CLUSTER_SECONDS", "600"))
PARTS = ("driver", "executor", "catalog", "store", "database")


def test_whatever_is_killed_the_same_command_ends_as_if_nothing_had_been(
    services: Services, master: str, local: dict[str, Any]
) -> None:
    """Driver, executor, catalog, store and database in turn; CLUSTER_KILLS, CLUSTER_SEED and CLUSTER_SECONDS make it a campaign."""
    spark = EXECUTORS | {"spark.master": master, "spark.executor.extraClassPath": f"{services.jars}/*"}
    environment = services.environment("killed", spark)
    chance, until = random.Random(SEED), time.monotonic() + SECONDS
    done: Counter[str] = Counter()
    published = 0
    while done.total() < KILLS and time.monotonic() < until:
        run = f"killed-{published}"
        own = environment | {"ELSEWHERE_RUN": run}
        core("another" if published else "approved", own, services.folder)
        for _ in range(40):
            process = start(own, services.folder, run)
            if done.total() < KILLS:
                part = PARTS[done.total() % len(PARTS)]
                time.sleep(chance.uniform(0.5, 25.0))
                if process.poll() is None:
                    kill(services, process, part)
                    done[part] += 1
            _, errors = process.communicate(timeout=600)
            assert "Traceback" not in errors, errors[-3000:]
            if process.returncode == 0:
                break
        found = core("result", own, services.folder)
        assert (found["state"], found["runs"], found["verified"]) == ("PUBLISHED", [run], []), found
        assert found["digests"] == local["digests"]
        assert found["rows"] == local["rows"]
        published += 1
    print(f"{done.total()} kills ({dict(done)}), {published} publications: 0 lost, doubled or torn")
    assert done.total() > 0


def start(environment: Mapping[str, str], folder: Path, run: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "backfill_assets.cli.command", "run", run, "--json"],
        env=dict(environment),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill(services: Services, process: subprocess.Popen[str], part: str) -> None:
    """Kill -9 a part of it; a server is there again a moment later."""
    match part:
        case "driver":
            process.kill()
        case "executor":
            for pid in executors(services.folder)[:1]:
                os.kill(pid, signal.SIGKILL)
        case "catalog":
            services.catalog.kill()
            time.sleep(1.0)
            services.catalog.start()
        case "store":
            services.store.kill()
            time.sleep(1.0)
            services.store.start()
        case "database":
            services.postgres.kill()
            time.sleep(1.0)
            services.postgres.resume()


def executors(folder: Path) -> list[int]:
    """Return the numbers of the processes that are executors of the cluster below a folder."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            said, where = (one / "cmdline").read_bytes(), (one / "cwd").resolve()
        except OSError:  # it has ended, or is another user's
            continue
        if b"CoarseGrainedExecutorBackend" in said and where.is_relative_to(folder):
            found.append(int(one.name))
    return sorted(found)
