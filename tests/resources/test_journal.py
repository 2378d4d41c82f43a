"""The journal: each transaction is in it, its links vouch for it, and a row that was changed by hand is not explained."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from support import APPROVER, approved, moved, pass_all, planned, stage_all

from manifests.lifecycle import RunState
from resources.evidence.chain import Chain
from resources.ledger.facade import Ledger
from resources.ledger.journal import (
    INSTALLATION,
    Explained,
    damages,
    explain,
    explain_run,
    first_of,
    is_adopted,
    newest,
    newest_link,
    unexplained,
)
from resources.ledger.schema import alembic_config
from resources.ledger.tables import approvals, journal, runs, transitions


@pytest.fixture
def chained(ledger: Ledger, tmp_path: Path) -> Ledger:
    ledger.journal.chain = Chain(tmp_path / "chain")
    return ledger


def found_in(ledger: Ledger, run_id: str) -> tuple[Explained, list[str]]:
    """Return the journal, and what of a run it cannot explain."""
    chain = ledger.journal.chain
    with ledger.engine.begin() as connection:
        explained = explain(connection, [] if chain is None else chain.read().links)
        return explained, [one.where for one in unexplained(connection, explained, run_id)]


def by_hand(ledger: Ledger, statement: sa.Executable) -> None:
    """Change rows as somebody does who does not go through this project."""
    other = sa.create_engine(ledger.url)
    with other.begin() as connection:
        assert connection.execute(statement).rowcount > 0
    other.dispose()


def test_whatever_a_ledger_is_told_is_explained_and_linked(chained: Ledger) -> None:
    record = approved(chained, "restate-2012")
    pass_all(chained, record, stage_all(chained, record))
    moved(chained, "restate-2012", RunState.VALIDATED, "ada")
    publication = chained.open_publication("restate-2012", "publish", 7, "r" * 64, "ada")
    chained.accept("restate-2012", publication, snapshot_id=8, added=3, removed=0, actor="ada")
    approved(chained, "again", "2012-02-01", "2012-02-29")
    for run_id in ("restate-2012", "again", INSTALLATION):
        explained, wrong = found_in(chained, run_id)
        assert (explained.damages, wrong) == ([], [])
    assert explained.length == explained.linked == explained.length > 8
    assert chained.journal.chain is not None
    assert chained.journal.catch_up() is False


def test_a_plan_made_anew_is_explained(chained: Ledger) -> None:
    planned(chained, "restate-2012")
    planned(chained, "restate-2012", end="2012-02-29")
    assert found_in(chained, "restate-2012")[1] == []


@pytest.mark.parametrize(
    ("statement", "where"),
    [
        (approvals.update().values(decided_by="eve"), "ledger approvals 1"),
        (runs.update().values(requested_by="eve"), "ledger runs restate-2012"),
        (transitions.delete().where(transitions.c.id == 1), "ledger transitions 1"),
        (
            runs.update().values(plan=sa.func.replace(runs.c.plan, "2012", "2013")),
            "ledger runs restate-2012 column plan",
        ),
    ],
)
def test_a_row_changed_by_hand_is_not_explained(chained: Ledger, statement: sa.Executable, where: str) -> None:
    approved(chained, "restate-2012")
    by_hand(chained, statement)
    assert found_in(chained, "restate-2012")[1] == [where]


def test_a_cell_changed_by_hand_stays_unexplained_when_its_row_is_written_again(chained: Ledger) -> None:
    approved(chained, "restate-2012")
    by_hand(chained, runs.update().values(requested_by="eve"))
    moved(chained, "restate-2012", RunState.CANCELLED, APPROVER, "not needed")
    assert found_in(chained, "restate-2012")[1] == ["ledger runs restate-2012"]


def test_entries_that_are_changed_or_cut_off_are_named_by_their_links(chained: Ledger) -> None:
    approved(chained, "restate-2012")
    length = found_in(chained, "restate-2012")[0].length
    by_hand(chained, journal.update().where(journal.c.number == 1).values(said=journal.c.said + " "))
    assert [one.where for one in found_in(chained, "restate-2012")[0].damages] == ["ledger journal 1"]
    by_hand(chained, journal.delete().where(journal.c.number == length))
    assert f"ledger journal {length}" in [one.where for one in found_in(chained, "restate-2012")[0].damages]


@pytest.mark.parametrize(
    "kept", ["CAST(said AS BLOB)", "CAST(CAST(said AS BLOB) || X'FF' AS TEXT)", "said || ' '", "5"]
)
def test_an_entry_up_to_the_newest_link_that_is_not_the_text_that_was_written_is_named(
    chained: Ledger, backend: str, kept: str
) -> None:
    if backend != "sqlite":
        pytest.skip("a server keeps nothing but text in a column of texts")
    approved(chained, "restate-2012")
    with chained.engine.connect() as connection:
        assert damages(connection, newest_link(chained.engine)) == []
    by_hand(chained, sa.text(f"UPDATE journal SET said = {kept} WHERE number = 2"))
    with chained.engine.connect() as connection:
        assert "ledger journal 2" in {one.where for one in damages(connection, newest_link(chained.engine))}


@pytest.mark.parametrize("number", [0, -1, -7])
def test_an_entry_before_the_first_one_is_named_and_explains_nothing(chained: Ledger, number: int) -> None:
    approved(chained, "restate-2012")
    before = found_in(chained, "restate-2012")[0]
    with chained.engine.connect() as connection:
        first = connection.execute(sa.select(journal).where(journal.c.run_id == "restate-2012").limit(1)).one()
    said = json.loads(first.said) | {"number": number, "adopted": True}
    said["rows"] = {"approvals": {"columns": ["id"], "rows": {"70": [None, "f" * 64]}}}
    text = json.dumps(said, separators=(",", ":"), sort_keys=True)
    own = hashlib.sha256(text.encode()).hexdigest()
    by_hand(chained, journal.insert().values(number=number, run_id="restate-2012", hash=own, said=text))
    explained, wrong = found_in(chained, "restate-2012")
    assert [one.where for one in explained.damages] == [f"ledger journal {number}"]
    assert (wrong, explained.length, explained.linked) == ([], before.length, before.linked)
    with chained.engine.connect() as connection:
        links = newest_link(chained.engine)
        assert [one.where for one in damages(connection, links)] == [f"ledger journal {number}"]
        assert first_of(connection, "restate-2012")[0] == first.number
        assert not is_adopted(connection, "restate-2012")
        assert unexplained(connection, explain_run(connection, "restate-2012"), "restate-2012") == []


def test_entries_before_the_first_one_are_followed_by_nothing(chained: Ledger) -> None:
    hashes = ", ".join(f"({number}, '', '{'f' * 64}', 'junk')" for number in (-1, 0))
    by_hand(chained, sa.text(f"INSERT INTO journal (number, run_id, hash, said) VALUES {hashes}"))
    with chained.engine.connect() as connection:
        assert newest(connection) == 0
    planned(chained, "restate-2012")
    explained, wrong = found_in(chained, "restate-2012")
    assert [one.where for one in explained.damages] == ["ledger journal -1", "ledger journal 0"]
    assert (wrong, explained.length, explained.linked) == ([], 1, 1)


def test_what_a_dead_process_could_not_link_the_next_one_links(ledger: Ledger, tmp_path: Path) -> None:
    planned(ledger, "restate-2012")  # as if its process had died before the link
    ledger.journal.chain = Chain(tmp_path / "chain")
    explained, _ = found_in(ledger, "restate-2012")
    assert (explained.length, explained.linked) == (1, 0)
    assert ledger.journal.catch_up() is True
    assert ledger.journal.catch_up() is False
    planned(ledger, "another")
    explained, _ = found_in(ledger, "restate-2012")
    assert (explained.length, explained.linked, explained.damages) == (2, 2, [])


def test_what_is_rolled_back_is_in_no_entry(chained: Ledger) -> None:
    planned(chained, "restate-2012")
    with suppress(ZeroDivisionError), chained.engine.begin() as connection:
        connection.execute(runs.update().values(requested_by="eve"))
        _ = 1 / 0
    chained.record_sink_attempt(
        "restate-2012", sink="audit", sink_class="AUDIT", mode="BACKFILL", action="publish", decision="SENT", reason=""
    )
    explained, wrong = found_in(chained, "restate-2012")
    assert (explained.length, wrong) == (2, [])


def test_the_link_of_an_entry_given_twice_is_named(chained: Ledger) -> None:
    planned(chained, "restate-2012")
    chain = chained.journal.chain
    assert chain is not None
    (link,) = chain.read().links
    said = {name: link.content[name] for name in ("event", "run", "entry", "entryHash", "at")}
    chain.append(said, since=1, same=lambda _: False)
    assert [one.where for one in found_in(chained, "restate-2012")[0].damages] == ["chain link 2"]


def test_a_ledger_without_launches_is_brought_up_to_date_and_what_is_launched_from_then_on_is_explained(
    tmp_path: Path,
) -> None:
    old = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    old.journal.chain = Chain(tmp_path / "chain")
    with old.engine.begin() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0008")
    record = planned(old, "run")
    assert old.migrate() == "0008"
    # an older ledger's approvals lack the dry run that they rest on
    old.decide("run", approve=True, by="grace", comment="", self_approval=False, plan_hash=record.plan_hash)
    old.stops.stop("run", by="olga", through="backfill stop")  # an older ledger's stops lack what a pause says
    assert old.stops.newest_launch("run") is None
    old.stops.launched("run", by="ada")
    assert old.stops.newest_launch("run") is not None
    assert found_in(old, "run")[1] == []
    by_hand(old, sa.text("UPDATE launches SET launched_by = 'eve'"))
    assert "ledger launches 1" in found_in(old, "run")[1]
    old.engine.dispose()


def test_runs_of_a_ledger_without_a_journal_are_adopted_once(tmp_path: Path) -> None:
    old = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    with old.engine.begin() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0004")
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
        cells = "'half', 'BACKFILL', 'BACKFILL', 't', 'PLANNED', '', 'ada', '{}', 'h', '{}', 'h', '2024', '2024'"
        database.execute(f"INSERT INTO runs VALUES ({cells})")
        database.commit()
    old.migrate()
    assert old.journal.adopted == ["half"]
    length = found_in(old, "half")[0].length
    old.migrate()
    assert found_in(old, "half")[0].length == length
    explained, wrong = found_in(old, "half")
    assert explained.adopted == {"half"}
    assert [where for where in wrong if "column" not in where] == []
    by_hand(old, sa.text("UPDATE runs SET requested_by = 'eve'"))
    assert "ledger runs half" in found_in(old, "half")[1]
    old.engine.dispose()
