"""All of it as a team runs it: a standalone cluster, tables in S3 by a REST catalog, ledger and Dagster's storage in PostgreSQL.

Each is a process of its own, with a folder of its own; the cluster's workers have none of the driver's local paths. Digests are those of
local Spark on local files. What a process does is `elsewhere_core.py`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from elsewhere import EXECUTORS, SMALL, core, same
from real_servers.processes import MissingServerError
from real_servers.rest_catalog import RestCatalog, rest_catalog
from real_servers.s3 import Store, spark_jars
from real_servers.spark import cluster, environment_of, require_spark
from servers import Postgres

pytestmark = pytest.mark.servers


@dataclass(frozen=True)
class Services:
    """What an installation is given: the addresses of everything that is not its own process."""

    folder: Path
    store: Store
    catalog: RestCatalog
    postgres: Postgres
    jars: Path

    def environment(self, name: str, spark: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of an installation of its own, with databases of its own."""
        ledger, dagster = self.postgres.database(), self.postgres.database()
        return environment_of(
            self.folder / name,
            SMALL | {"spark.driver.extraClassPath": f"{self.jars}/*"} | dict(spark),
            catalog=json.dumps(self.catalog.properties),
            ledger_url=ledger,
            dagster_storage_url=dagster,
        )


@pytest.fixture(scope="module")
def services(
    tmp_path_factory: pytest.TempPathFactory, disk_store: Store, postgres_server: Postgres
) -> Iterator[Services]:
    with ExitStack() as stack:
        try:
            require_spark()
            jars = spark_jars()
            catalog = stack.enter_context(rest_catalog(disk_store, disk_store.bucket("whole")))
        except MissingServerError as reason:
            pytest.skip(f"nothing is tested on a cluster with S3, a REST catalog and PostgreSQL: {reason}")
        yield Services(tmp_path_factory.mktemp("whole"), disk_store, catalog, postgres_server, jars)


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
