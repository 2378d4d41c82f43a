"""Ledgers in which a cell holds what nothing of this project writes there: SQLite lets any value into any column.

The campaign is `benchmarks/odd_cells.py`; this is its share, and what holds of every column and of leases.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from small_worlds import put_back, set_aside

from backfill_assets.audit.verification import verify
from backfill_assets.defs.untold import dagster_disagreements
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from benchmarks import odd_cells
from benchmarks.odd_cells import ODD, Cell, World
from manifests.errors import LeaseHeld
from manifests.lifecycle import RunState
from resources.ledger.cells import Day, IllegibleRow, Utc
from resources.ledger.facade import Ledger
from resources.ledger.tables import journal, metadata

# one of each way in which a command reads: a row as it is, JSON, an instant that is compared, the newest one, what is in force
CELLS = (
    Cell("approvals", "break_glass", "CAST(x'ff41' AS TEXT)"),
    Cell("chunks", "files", "'[5]'"),
    Cell("verdicts", "details", "'[5]'"),
    Cell("runs", "kind", "'-1'"),
    Cell("publications", "ended_at", "'zzz'"),
    Cell("policy_decisions", "origin", "x'ff'"),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("cells"))


@pytest.fixture(scope="module")
def kept(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("leases") / "home"
    world.copy_to(home)
    return set_aside(home)


@pytest.fixture
def platform(kept: Path) -> Iterator[Platform]:
    with put_back(kept) as opened:
        yield opened


def change(platform: Platform, statement: str) -> None:
    with closing(sqlite3.connect(platform.settings.home / "ledger.db")) as connection:
        assert connection.execute(statement).rowcount == 1
        connection.commit()


def found(platform: Platform) -> set[tuple[str, str]]:
    return {(one.kind, one.where) for one in examine(platform)}


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.table}.{cell.column}")
def test_no_command_falls_over_an_odd_cell_and_verify_names_it(world: World, cell: Cell) -> None:
    answers = list(odd_cells.trial(world, [cell]))
    assert [one for one in answers if one.wrong] == []
    assert answers[0].line == "verify --all"
    assert answers[0].code == 1, "it is named"


def test_a_cell_of_any_column_is_of_its_kind_or_refused(tmp_path: Path) -> None:
    """The guard is that of the columns: whoever reads a table through them never gets anything else."""
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.migrate()
    refused = 0
    for table in metadata.sorted_tables:
        for column in table.c if table is not journal else ():  # whose cells `resources.ledger.journal` judges itself
            kind = _KINDS.get(type(column.type)) or column.type.python_type
            with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
                connection.execute("PRAGMA synchronous=OFF")
                connection.execute(f"DELETE FROM {table.name}")
                _insert(connection, table)
                connection.commit()
            for value in ODD[:8]:
                with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
                    connection.execute("PRAGMA synchronous=OFF")
                    try:
                        connection.execute(f"UPDATE {table.name} SET {column.name} = {value}")
                    except sqlite3.Error:
                        continue  # the database does not take it
                    connection.commit()
                try:
                    (read,) = _selected(ledger, column)
                except IllegibleRow:
                    refused += 1
                else:
                    assert type(read) is kind, (table.name, column.name, value)
                    assert type(_selected(ledger, sa.func.max(column))[0]) is kind
    assert refused > len(metadata.tables) * 8
    ledger.engine.dispose()


_KINDS = {Utc: datetime, Day: date}


def _insert(connection: sqlite3.Connection, table: sa.Table) -> None:
    names = ", ".join(table.c.keys())
    values = ", ".join("?" for _ in table.c)
    row = [_plain(column) for column in table.c]
    connection.execute(f"INSERT INTO {table.name} ({names}) VALUES ({values})", row)


def _plain(column: sa.Column[Any]) -> object:
    kinds: dict[type, object] = {Utc: "2026-01-01 00:00:00.000000", Day: "2026-01-01"}
    number = isinstance(column.type, (sa.Integer, sa.Boolean)) or column.name == "id"
    return kinds.get(type(column.type), 0 if number else "x")


def _selected(ledger: Ledger, what: sa.ColumnElement[Any]) -> list[Any]:
    with ledger.engine.connect() as connection:
        return list(connection.execute(sa.select(what)).scalars())


# --- what the doctor looks on past --------------------------------------------------------------------------------------


def test_the_doctor_looks_on_past_an_instant_of_a_publication_that_is_none(platform: Platform) -> None:
    change(platform, "UPDATE publications SET ended_at = 'zzz' WHERE id = 1")
    assert ("changed-by-hand", "ledger publications 1") in found(platform)
    assert {one.kind for one in dagster_disagreements(platform)} == {"not-checked"}
    assert "publications.ended_at" not in platform.ledger.repairs.newest_instants()
    assert any("publications" in one.where for one in verify(platform, data=False).everything)


# --- leases -----------------------------------------------------------------------------------------------------------


def publish_it(platform: Platform) -> None:
    publish(platform, "waiting")


def roll_back(platform: Platform) -> None:
    rollback(platform, "fixed")


@pytest.mark.parametrize("do", [publish_it, roll_back])
@pytest.mark.parametrize(
    "cells", ["acquired_at = 'zzz'", "ended_at = x'ff'", "ended_at = '9999-12-31 23:59:59.000000'", "start_day = 5"]
)
def test_an_ended_lease_that_cannot_be_read_is_named_and_holds_nobody_up(
    platform: Platform, cells: str, do: Callable[[Platform], None]
) -> None:
    change(platform, f"UPDATE leases SET {cells} WHERE id = 1")
    named = found(platform)
    assert ("lease-damaged", "lease 1") in named or "9999" in cells
    do(platform)


def test_a_lost_lease_that_cannot_be_read_is_fenced(platform: Platform) -> None:
    change(platform, "UPDATE leases SET ended_how = 'LOST', start_day = x'ff', run_id = x'ff' WHERE id = 1")
    assert ("lease-damaged", "lease 1") in found(platform)
    publish(platform, "waiting")
    assert "fence-1" in platform.lakehouse.table("silver.readings").refs()


@pytest.mark.parametrize("run_id", ["history", "nobody"])
def test_a_lease_that_lasts_longer_than_leases_do_is_named_and_can_be_ended(platform: Platform, run_id: str) -> None:
    change(
        platform,
        "INSERT INTO leases (target, start_day, end_day, run_id, action, host, pid, process, acquired_at, expires_at) VALUES "
        f"('silver.readings', '2000-01-01', '2099-12-31', '{run_id}', 'publish', 'elsewhere', 1, '', "
        "'2026-01-01 00:00:00.000000', '2099-01-01 00:00:00.000000')",
    )
    with pytest.raises(LeaseHeld):
        publish(platform, "waiting")
    repaired, left = mend(platform)
    assert [one.found.kind for one in repaired] == ["lease-too-long"]
    assert left == []
    publish(platform, "waiting")
    assert platform.ledger.run("waiting").state is RunState.PUBLISHED


def test_a_lease_of_a_living_process_is_not_ended_whatever_the_clock_was_when_it_was_taken(platform: Platform) -> None:
    lease = platform.ledger.leases(60).acquire("silver.readings", date.min, date.max, "waiting", "publish")
    change(platform, f"UPDATE leases SET expires_at = '2099-01-01 00:00:00.000000' WHERE id = {lease.token}")
    repaired, left = mend(platform)
    assert (repaired, [one.kind for one in left]) == ([], ["lease-too-long"])
    platform.ledger.leases(60).release(lease)
    assert examine(platform) == []


def test_an_open_lease_that_cannot_be_read_is_refused_by_name_and_can_be_ended(platform: Platform) -> None:
    change(platform, "UPDATE leases SET ended_at = NULL, ended_how = NULL, expires_at = 'zzz' WHERE id = 1")
    with pytest.raises(IllegibleRow, match=r"lease 1 of silver\.readings"):
        publish(platform, "waiting")
    repaired, left = mend(platform)
    assert [one.found.kind for one in repaired] == ["lease-damaged"]
    assert [one.kind for one in left] == ["lease-damaged"], "what has been written over stays damaged, and named"
    publish(platform, "waiting")
