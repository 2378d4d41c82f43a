"""Who reads the ledger waits for no writer, keeps none waiting, and has a plan parsed only where somebody asks for it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url
from support import (
    APPROVER,
    REQUESTER,
    TARGET,
    a_contract,
    a_manifest,
    a_plan,
    a_source,
    approved,
    monthly_files,
    moved,
    pass_all,
    planned,
    publishing,
    stage_all,
    staged_files,
)

from manifests import plan as plans
from manifests.chunks import Chunking
from manifests.errors import EnvironmentRefused, StateMoved
from manifests.lifecycle import RunState
from resources.ledger.facade import Ledger
from resources.ledger.tables import runs
from resources.ledger.transactions import system_clock as now

RUN = "restate-2012"
SOON = 2.0
"""Seconds in which somebody who waits for nobody is done, on a busy machine."""


@dataclass
class Parser:
    """What reads plans, counting."""

    real: Any
    ledger: Ledger
    parsed: list[str] = field(default_factory=list)
    under_lock: list[str] = field(default_factory=list)
    """Those that were parsed while somebody held the ledger's write lock."""

    def validate_json(self, text: str) -> Any:
        plan = self.real.validate_json(text)
        self.parsed.append(plan.run_id)
        if self.ledger.engine.dialect.name == "sqlite" and not can_write(self.ledger):
            self.under_lock.append(plan.run_id)
        return plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def can_write(ledger: Ledger) -> bool:
    """Tell whether another process could begin to write now."""
    with closing(another_program(ledger)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        other.execute("ROLLBACK")
        return True


def another_program(ledger: Ledger) -> sqlite3.Connection:
    file = make_url(ledger.url).database
    assert file is not None
    return sqlite3.connect(file, timeout=0, isolation_level=None)


@pytest.fixture
def parser(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Parser:
    counting = Parser(plans.reader_of(plans.Plan), ledger)
    monkeypatch.setattr(plans, "reader_of", lambda _: counting)
    return counting


@contextmanager
def writing(ledger: Ledger) -> Iterator[None]:
    """Hold what a writer of the ledger holds who has changed a run and is not done."""
    other = Ledger(ledger.url)
    try:
        with other.engine.begin() as connection:
            connection.execute(runs.update().where(runs.c.run_id == RUN).values(state_reason="half done"))
            yield
            connection.rollback()
    finally:
        other.engine.dispose()


# --- readers and writers ----------------------------------------------------------------------------------------------


def test_a_reader_does_not_wait_for_a_writer(ledger: Ledger) -> None:
    approved(ledger, RUN)
    with ThreadPoolExecutor() as pool, writing(ledger):
        began = time.monotonic()
        reading = pool.submit(lambda: (ledger.run(RUN).state, [one.run_id for one in ledger.runs()]))
        try:
            found = reading.result(timeout=SOON)
        except TimeoutError:
            found = None
        took = time.monotonic() - began
    assert found == (RunState.APPROVED, [RUN])
    assert took < SOON


def test_a_listing_keeps_no_writer_waiting(ledger: Ledger) -> None:
    approved(ledger, RUN)
    with ThreadPoolExecutor() as pool, ledger.engine.connect() as connection:
        assert connection.execute(sa.select(runs.c.run_id)).scalars().all() == [RUN]
        moving = pool.submit(moved, ledger, RUN, RunState.RUNNING, REQUESTER)  # the listing is not done yet
        try:
            moving.result(timeout=SOON)
        except TimeoutError:
            pytest.fail("the writer waits for who reads")
    assert ledger.run(RUN).state is RunState.RUNNING


def test_what_one_transaction_reads_is_of_one_moment(ledger: Ledger) -> None:
    approved(ledger, RUN)
    with ledger.engine.connect() as connection:
        first = connection.execute(sa.select(runs.c.state)).scalar_one()
        moved(ledger, RUN, RunState.RUNNING, REQUESTER)
        assert connection.execute(sa.select(runs.c.state)).scalar_one() == first == "APPROVED"
    assert ledger.run(RUN).state is RunState.RUNNING


def test_who_reads_cannot_write(ledger: Ledger) -> None:
    approved(ledger, RUN)
    with ledger.engine.connect() as connection, pytest.raises(sa.exc.DBAPIError, match=r"(?i)read-?\s?only"):
        connection.execute(runs.update().values(state="PUBLISHED"))
    moved(ledger, RUN, RunState.RUNNING, REQUESTER)  # on the same connection of the pool
    assert ledger.run(RUN).state is RunState.RUNNING


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_a_ledger_that_nobody_can_read_is_refused_within_seconds_and_says_who_holds_it(
    ledger: Ledger, backend: str, mode: str
) -> None:
    if backend != "sqlite":
        pytest.skip("a server's readers wait for nobody")
    approved(ledger, RUN)
    ledger.engine.dispose()
    with closing(another_program(ledger)) as other:
        other.execute(f"PRAGMA journal_mode={mode}")
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        with pytest.raises(EnvironmentRefused, match=r"is locked by (this process|process \d+)"):
            ledger.run(RUN)
        assert time.monotonic() - began < 10
    assert ledger.run(RUN).state is RunState.APPROVED


# --- plans ------------------------------------------------------------------------------------------------------------


def test_a_listing_parses_no_plan(ledger: Ledger, parser: Parser) -> None:
    for number in range(4):
        approved(ledger, f"run-{number}")
    del parser.parsed[:]
    found = ledger.runs()
    ledger.launches.all_waiting()
    ledger.freezes.waiting()
    ledger.figures(at=now(), days=1, most=10)

    assert [(one.state, one.mode, one.manifest.target.publish_range.start) for one in found] == [
        (RunState.APPROVED, "BACKFILL", date(2012, 1, 1))
    ] * 4
    assert parser.parsed == []


def test_a_plan_is_parsed_once_however_often_it_is_asked_for(ledger: Ledger, parser: Parser) -> None:
    approved(ledger, RUN)
    del parser.parsed[:]
    plans = [ledger.run(RUN).plan for _ in range(3)] + [one.plan for one in ledger.runs()]

    assert len(parser.parsed) <= 1
    assert {plan.hash for plan in plans} == {ledger.run(RUN).plan_hash}


def test_a_runs_whole_life_parses_no_plan_while_it_holds_the_write_lock(ledger: Ledger, parser: Parser) -> None:
    for run_id in ("before", RUN):
        record = approved(ledger, run_id)
        ledger.resume(run_id, REQUESTER)
        pass_all(ledger, record, stage_all(ledger, record))
        moved(ledger, run_id, RunState.VALIDATED, REQUESTER)
        publication = ledger.open_publication(run_id, "publish", 7, "root", REQUESTER)
        ledger.accept(run_id, publication, snapshot_id=100, added=3, removed=2, actor=REQUESTER)
    undone = ledger.open_publication(RUN, "rollback", 100, "root", REQUESTER)
    ledger.undo(RUN, undone, snapshot_id=101, added=2, removed=3, actor=REQUESTER)

    assert parser.under_lock == []
    assert set(ledger.accepted(TARGET).values()) == {"before"}
    assert ledger.watermarks.current(TARGET) is not None


def test_a_batch_of_a_long_plan_costs_what_the_batch_does(ledger: Ledger, parser: Parser) -> None:
    manifest = a_manifest(RUN, target=publishing("2003-01-01", "2012-12-31"))
    files = monthly_files(date(2002, 1, 1), 140)
    plan = a_plan(manifest, contract=a_contract(chunking=Chunking.DAY), source=a_source(files))
    record = ledger.record_plan(manifest, plan, REQUESTER)
    ledger.decide(RUN, approve=True, by=APPROVER, comment="", self_approval=False, plan_hash=record.plan_hash)
    keys = [chunk.key for chunk in plan.chunks[:12]]
    staged = staged_files(record, 1)
    del parser.parsed[:]
    started = ledger.start_attempt(RUN, keys, edition=0, actor=REQUESTER, location="/staging")
    assert started is not None
    ledger.stage(RUN, started[0], {key: staged[key] for key in keys})
    ledger.settle(RUN, REQUESTER)

    assert parser.parsed == []


def test_a_plan_that_was_replaced_is_not_answered_with_its_successor(ledger: Ledger) -> None:
    first = planned(ledger, RUN)
    planned(ledger, RUN, end="2012-04-30")

    with pytest.raises(StateMoved, match="was planned anew"):
        _ = first.plan
    assert len(ledger.run(RUN).plan.chunks) == 4
