"""The ledger's rows as the evidence keeps them: every changed cell shows, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from support import approved, moved, pass_all, planned, stage_all

from manifests.lifecycle import RunState
from resources.ledger.cells import Utc
from resources.ledger.facade import Ledger
from resources.ledger.rows import Difference, Rows, changes_of, differences, fold, rows_of, tables_of_runs
from resources.ledger.tables import metadata

RUN = "restate-2012"
KEYS = {"run_id", "id", "chunk"}
"""A row of another key is another row."""


@pytest.fixture
def published(ledger: Ledger) -> Ledger:
    record = approved(ledger, RUN)
    pass_all(ledger, record, stage_all(ledger, record))
    moved(ledger, RUN, RunState.VALIDATED, "ada")
    entry = ledger.open_publication(RUN, "publish", 7, "ab" * 32, "ada", token=_lease(ledger, RUN))
    ledger.accept(RUN, entry, snapshot_id=2**62, added=3, removed=3, actor="ada")
    ledger.record_sink_attempt(
        RUN,
        sink="run_audit",
        sink_class="AUDIT",
        mode="BACKFILL",
        action="publish",
        decision="SENT",
        reason="é 'quoted'",
    )
    return ledger


def _lease(ledger: Ledger, run_id: str) -> int:
    year = date(2012, 1, 1), date(2012, 12, 31)
    leases = ledger.leases(60)
    lease = leases.acquire(f"target of {run_id}", *year, run_id, "publish")
    return lease.token


def look(ledger: Ledger) -> Rows:
    with ledger.engine.begin() as connection:
        return rows_of(connection, RUN)


def compared(ledger: Ledger, kept: Rows) -> list[Difference]:
    return differences(kept, look(ledger))


def other(column: sa.Column[Any], value: Any) -> Any:
    if isinstance(column.type, Utc):
        return value + timedelta(microseconds=1)
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"{value[:-1]}~"  # as long as it was: a column may be full
    return value + 1 if isinstance(value, int) else value + timedelta(days=1)


def test_rows_that_nobody_touched_do_not_differ(published: Ledger) -> None:
    kept = look(published)
    assert {"accepted_versions", "chunks", "publications", "runs", "verdicts", "watermarks"} <= {
        table for table, rows in kept.items() if rows
    }
    assert kept["runs"][RUN]["manifest"]["requestedBy"] == "ada"  # canonical text is kept as what it says
    assert kept["chunks"]["2012-01"]["files"][0]["rows"] == 10
    assert kept["approvals"]["1"]["at"].endswith("Z")
    assert kept["sink_attempts"]["1"]["reason"] == "é 'quoted'"
    assert compared(published, kept) == []


def test_every_changed_cell_of_every_table_is_named(published: Ledger) -> None:
    kept = look(published)
    unnoticed = []
    for name in tables_of_runs():
        table = metadata.tables[name]
        for column in table.c:
            if column.name in KEYS or not kept[name]:
                continue
            with published.engine.begin() as connection:
                mine = table.c.run_id == RUN
                (value,) = connection.execute(sa.select(column).where(mine, column.is_not(None)).limit(1)).first() or (
                    None,
                )
                if value is None:
                    continue
                connection.execute(
                    table.update().where(mine, column == value).values({column.name: other(column, value)})
                )
            found = {(one.table, one.column) for one in compared(published, kept)}
            if (name, column.name) not in found:
                unnoticed.append(f"{name}.{column.name}")
    assert unnoticed == []


def test_added_and_removed_rows_are_named(published: Ledger) -> None:
    kept = look(published)
    with published.engine.begin() as connection:
        connection.execute(metadata.tables["verdicts"].delete().where(metadata.tables["verdicts"].c.chunk == "2012-02"))
    published.record_sink_attempt(
        RUN, sink="mail", sink_class="NOTIFICATION", mode="BACKFILL", action="plan", decision="REFUSED", reason="no"
    )
    gone, added = sorted(compared(published, kept), key=lambda one: one.expected is None)
    assert (gone.table, gone.column, gone.found, gone.lawful) == ("verdicts", "", None, False)
    assert (added.table, added.column, added.expected, added.lawful) == ("sink_attempts", "", None, True)


def test_what_an_event_brings_about_is_lawful_and_folds_into_the_kept_rows(published: Ledger) -> None:
    kept = look(published)
    approved(published, "later")
    entry = published.open_publication("later", "publish", 7, "cd" * 32, "ada", token=_lease(published, "later"))
    for state in (RunState.RUNNING, RunState.STAGED, RunState.VALIDATED):
        moved(published, "later", state, "ada")
    published.accept("later", entry, snapshot_id=9, added=1, removed=3, actor="ada")
    found = compared(published, kept)
    assert {one.table for one in found} == {"accepted_versions", "runs", "transitions"}
    assert all(one.lawful for one in found)
    fold(kept, changes_of(found))
    assert compared(published, kept) == []


def test_a_state_without_its_transition_is_not_lawful(published: Ledger) -> None:
    kept = look(published)
    table = metadata.tables["runs"]
    with published.engine.begin() as connection:
        connection.execute(table.update().where(table.c.run_id == RUN).values(state="ROLLED_BACK"))
    (one,) = compared(published, kept)
    assert (one.where, one.expected, one.found, one.lawful) == (
        f"ledger runs {RUN} column state",
        "PUBLISHED",
        "ROLLED_BACK",
        False,
    )


def test_what_has_ended_does_not_end_again(published: Ledger) -> None:
    table = metadata.tables["accepted_versions"]
    ended = {"ended_at": sa.func.max(table.c.accepted_at), "ended_by": "later", "ended_how": "SUPERSEDED"}
    with published.engine.begin() as connection:
        at = connection.execute(sa.select(ended["ended_at"])).scalar_one()
        connection.execute(table.update().values(ended | {"ended_at": at}))
    kept = look(published)
    with published.engine.begin() as connection:
        connection.execute(table.update().values(ended_by="eve"))
    assert {(one.column, one.lawful) for one in compared(published, kept)} == {("ended_by", False)}


def test_other_runs_are_not_looked_at(published: Ledger) -> None:
    kept = look(published)
    planned(published, "another")
    assert compared(published, kept) == []


@pytest.mark.parametrize(
    ("table", "row", "why"),
    [
        ("approvals", {"id": 9, "decision": "REVIEWED"}, "REVIEWED is decided of runs that are not published"),
        ("approvals", {"id": 0, "decision": "ROLLBACK"}, "rows that came later have higher ids than 1"),
        ("sink_attempts", {"id": "x"}, "rows that came later have higher ids than 1"),
        (
            "transitions",
            {"id": 99, "from_state": "STAGED", "to_state": "FAILED"},
            "it starts from STAGED, and the run was PUBLISHED",
        ),
        ("approvals", {"id": 9, "decision": "ROLLBACK"}, ""),
        ("transitions", {"id": 99, "from_state": "PUBLISHED", "to_state": "ROLLED_BACK"}, ""),
    ],
)
def test_an_added_row_is_lawful_only_where_an_event_can_have_added_it(
    published: Ledger, table: str, row: dict[str, Any], why: str
) -> None:
    kept, found = look(published), look(published)
    found[table]["new"] = row
    (one,) = [one for one in differences(kept, found) if one.table == table]
    assert (one.lawful, one.why) == (not why, why)
