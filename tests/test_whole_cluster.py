"""All of it as a team runs it: a standalone cluster, tables in S3 by a REST catalog, ledger and Dagster's storage in PostgreSQL.

Each is a process of its own, with a folder of its own; the cluster's workers have none of the driver's local paths. Digests are those of
local Spark on local files. What a process does is `elsewhere_core.py`'s.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from elsewhere import SMALL, Services, core, same, services_in
from real_servers.processes import MissingServerError
from real_servers.rest_catalog import rest_catalog
from real_servers.spark import cluster, environment_of

from benchmarks.pace import most_in_ten_minutes

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    try:
        with services_in(tmp_path_factory.mktemp("whole"), "whole") as found:
            yield found
    except MissingServerError as reason:
        pytest.skip(f"nothing is tested on a cluster with S3, a REST catalog and PostgreSQL: {reason}")


@pytest.fixture(scope="module")
def master(services: Services) -> Iterator[str]:
    with cluster(services.folder / "cluster") as one:
        yield one.address


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a JVM of the process's own computes, on local files."""
    folder = tmp_path_factory.mktemp("local")
    return core("whole", environment_of(folder / "local", SMALL), folder)


def test_a_run_on_a_cluster_with_s3_rest_and_postgres_is_the_run_of_local_spark(
    services: Services, master: str, local: dict[str, Any]
) -> None:
    environment = services.environment("on-cluster", services.on_cluster(master))
    found = core("whole", environment, services.folder)
    assert found["master"] == master
    same(found, local)
    assert [str(file) for file in services.folder.rglob("*.parquet")] == []
    assert services.store.objects("whole/warehouse") != []


def test_a_run_on_a_connect_server_with_s3_rest_and_postgres_is_the_run_of_local_spark(
    services: Services, local: dict[str, Any]
) -> None:
    with services.connect_server("server") as server:
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
    environment = apart.environment("real-on-cluster", apart.on_cluster(master)) | {"ELSEWHERE_LOG": str(real_log)}
    found = core("real", environment, apart.folder)
    print(f"{found['rows']:,} rows of {len(found['digests'])} chunks")
    assert (found["state"], found["rows"] > 16_000_000) == ("VALIDATED", True), found["why"]
    assert found == real_local


def test_the_real_log_has_the_digests_of_local_spark_on_a_connect_server(
    apart: Services, real_local: dict[str, Any], real_log: Path
) -> None:
    with apart.connect_server("real") as server:
        environment = apart.environment("real-on-server", {"spark.remote": server.address})
        found = core("real", environment | {"ELSEWHERE_LOG": str(real_log)}, apart.folder)
    assert found == real_local


# --- a limit, by the clock on the wall ----------------------------------------------------------------------------------


def test_two_launches_on_a_cluster_read_no_more_in_any_ten_minutes_than_the_limit_allows(
    services: Services, master: str
) -> None:
    if "CLUSTER_PACE" not in os.environ:
        pytest.skip("no pace is measured on a cluster: that takes a quarter of an hour (set CLUSTER_PACE)")
    shared = services.on_cluster(master) | {"spark.cores.max": "1"}
    environment = services.environment("paced", shared)
    planned = core("year", environment, services.folder)
    assert planned["chunks"] == 12
    with ThreadPoolExecutor(2) as launches:
        parts = [environment | {"ELSEWHERE_PART": str(number)} for number in range(2)]
        done = [launches.submit(core, "part", one, services.folder, 3_000) for one in parts]
        computed = [one.result() for one in done]
    assert [(len(one["computed"]), one["failed"]) for one in computed] == [(6, {}), (6, {})]
    found = [
        (datetime.fromisoformat(begin), datetime.fromisoformat(end), rows)
        for begin, end, rows in core("batches", environment, services.folder)["batches"]
    ]
    worst, minutes = most_in_ten_minutes(found), (found[-1][1] - found[0][0]).total_seconds() / 60
    print(f"{len(found)} batches, {sum(rows for *_, rows in found)} rows in {minutes:.1f} minutes by two launches")
    print(f"the most of any 10 minutes: {worst} rows; the limit allows {10 * planned['pace']}")
    assert minutes > 5
    assert 0 < worst <= 10 * planned["pace"]
