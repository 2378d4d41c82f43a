"""With the clock back, nothing is decided before what it is about."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo

import pytest
import sqlalchemy as sa
from servers import Postgres
from sqlalchemy.exc import OperationalError
from support import APPROVER, approved, planned

from manifests.errors import TransitionRefused
from manifests.lifecycle import RunState
from manifests.policy import Role
from resources.ledger import approvals, instants, server_time, transactions
from resources.ledger.facade import Ledger
from resources.ledger.server_time import ASKED_AGAIN_SECONDS, ServerTime
from resources.ledger.transactions import LedgerEngine, make_engine, system_clock

RUN = "restate-2012"
Clock = Callable[[timedelta], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Set the clock of whoever decides, from what it is."""

    def move(by: timedelta) -> None:
        monkeypatch.setattr(LedgerEngine, "clock", staticmethod(lambda: system_clock() + by))

    return move


def decide(ledger: Ledger, *, approve: bool = True) -> None:
    plan_hash = ledger.run(RUN).plan_hash
    ledger.decide(RUN, approve=approve, by=APPROVER, comment="", self_approval=False, plan_hash=plan_hash)


def review(ledger: Ledger) -> None:
    ledger.record_decision(
        RUN,
        approvals.REVIEWED,
        role=Role.REVIEWER,
        by="hedy",
        comment="",
        plan_hash=ledger.run(RUN).plan_hash,
        states=approvals.REVIEWABLE,
    )


@pytest.mark.parametrize("back", [timedelta(days=-10), timedelta(seconds=-5)])
def test_no_approval_is_recorded_before_the_plan_that_it_approves(
    ledger: Ledger, clock: Clock, back: timedelta
) -> None:
    planned(ledger, RUN)
    clock(back)
    for deciding in (decide, review, lambda one: decide(one, approve=False)):
        with pytest.raises(TransitionRefused, match="nothing is decided before what it is about"):
            deciding(ledger)
    assert (ledger.run(RUN).state, ledger.approvals(RUN)) == (RunState.PLANNED, [])
    clock(timedelta(0))
    decide(ledger)
    assert ledger.run(RUN).state is RunState.APPROVED


def test_no_approval_is_recorded_before_a_review_that_it_counts(ledger: Ledger, clock: Clock) -> None:
    planned(ledger, RUN)
    clock(timedelta(days=1))
    review(ledger)
    clock(timedelta(0))
    with pytest.raises(TransitionRefused, match="set the machine's clock right"):
        decide(ledger)


def test_another_runs_time_is_not_asked(ledger: Ledger, clock: Clock) -> None:
    clock(timedelta(days=1))
    approved(ledger, "ahead")
    clock(timedelta(0))
    planned(ledger, RUN)
    decide(ledger)
    assert ledger.run(RUN).state is RunState.APPROVED


class _Server:
    """A server whose clock is right, asked by a machine whose is not; the ways there and back take a while."""

    def __init__(self) -> None:
        self.at, self.elapsed, self.asked, self.off = datetime(2026, 3, 5, tzinfo=UTC), 100.0, 0, timedelta(0)
        self.ways = iter(())
        self.time = ServerTime(lambda: self.elapsed)

    def passes(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)
        self.elapsed += seconds

    def ask(self) -> datetime:
        self.asked += 1
        there, back = next(self.ways, (0.05, 0.05))
        self.passes(there)
        said = self.at + self.off
        self.passes(back)
        return said

    def told(self) -> datetime:
        if self.time.is_stale:
            self.time.learn(self.ask)
        return self.time.now()

    @property
    def wrong_by(self) -> timedelta:
        return abs(self.told() - self.at - self.off)


MOMENT = timedelta(milliseconds=1)


def test_a_servers_time_is_told_by_what_it_said_and_the_seconds_since() -> None:
    server = _Server()
    for seconds in (0.0, 1.0, 2.5, 6.0):
        server.passes(seconds)
        assert server.wrong_by < MOMENT
    assert server.asked == 1
    server.passes(60)
    assert server.wrong_by < MOMENT
    assert server.asked == 2


def test_a_servers_time_stands_still_rather_than_go_back_and_follows_a_server_that_is_set_back() -> None:
    server = _Server()
    first = server.told()
    server.passes(ASKED_AGAIN_SECONDS + 0.1)
    server.off = -timedelta(seconds=ASKED_AGAIN_SECONDS + 1)
    assert server.told() == first
    server.passes(ASKED_AGAIN_SECONDS + 0.1)
    server.off = -timedelta(hours=1)
    assert server.wrong_by < MOMENT


@pytest.mark.parametrize("slow", [(3600, 0.001), (0.001, 3600), (8, 0.1)])
def test_an_answer_that_took_long_is_asked_for_again(slow: tuple[float, float]) -> None:
    server = _Server()
    server.ways = iter((slow, slow))
    assert server.wrong_by < MOMENT
    assert server.asked == 3


def test_of_slow_answers_the_quickest_counts() -> None:
    server = _Server()
    server.ways = iter(((9.0, 0.3), (0.0, 0.4), (2.0, 2.0), (0.0, 3.0), (5.0, 0.0)))
    assert server.wrong_by <= timedelta(seconds=0.2)


def test_a_server_that_is_away_is_told_the_time_of_by_what_it_said_before_it_went(
    postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(postgres_server.database())
    before = engine.now()
    monkeypatch.setattr(server_time, "ASKED_AGAIN_SECONDS", -1.0)
    monkeypatch.setattr(LedgerEngine, "connect", _away)
    assert timedelta(0) <= engine.now() - before < timedelta(minutes=1)
    with pytest.raises(OperationalError):
        make_engine(postgres_server.database()).now()


def _away(_: object) -> None:
    raise OperationalError("SELECT", {}, Exception("the server is away"))


def test_within_a_transaction_no_second_connection_is_asked_for(postgres_server: Postgres) -> None:
    engine = make_engine(postgres_server.database())
    with engine.connect() as connection:
        connection.execute(sa.text("SELECT 1"))
        assert abs(instants.now(connection) - datetime.now(UTC)) < timedelta(minutes=1)
        assert engine.pool.checkedout() == 1  # type: ignore[attr-defined]
        assert engine.pool.checkedin() == 0  # type: ignore[attr-defined]
    engine.dispose()


def test_what_is_on_a_server_is_dated_by_its_clock_and_not_by_a_machines(
    postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "datetime", _AnHourAhead)
    opened = Ledger(postgres_server.database())
    try:
        opened.migrate()
        assert abs(opened.now() - datetime.now(UTC)) < timedelta(minutes=1)
        assert opened.shared_clock is not None
    finally:
        opened.close()


class _AnHourAhead(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + timedelta(hours=1)
