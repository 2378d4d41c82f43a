"""All launches of a run share one allowance, whatever machine they are on: rates, places, pauses, budgets, commits."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import REQUESTER, approved

from manifests.errors import PublicationDeferred
from manifests.pace import MARGIN, WINDOW, PlannedPace, Work
from resources.ledger import admissions
from resources.ledger.admissions import Asked, BudgetSpent, MustWait
from resources.ledger.facade import Ledger
from resources.ledger.tables import attempts

BEGIN = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)


@dataclass
class SimulatedClock:
    """It goes on while it is looked at, as clocks do: an attempt begins, and ends, between two looks."""

    at: datetime = BEGIN

    def __call__(self) -> datetime:
        self.at += timedelta(milliseconds=1)
        return self.at

    def on(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


def start(ledger: Ledger, key: str, pace: PlannedPace, work: Work, run_id: str = "run") -> int:
    found = ledger.start_attempt(
        run_id, [key], edition=0, actor=REQUESTER, location="/staging", asked=Asked(pace, work)
    )
    assert found is not None
    return found[0]


def tried(ledger: Ledger, key: str, pace: PlannedPace, work: Work) -> int | MustWait:
    try:
        return start(ledger, key, pace, work)
    except MustWait as wait:
        return wait


# --- rates, by a simulated clock --------------------------------------------------------------------------------------


@dataclass
class Batch:
    number: int
    rows: int
    size: int
    began: datetime
    ends: datetime
    ended: datetime | None = None


@dataclass
class Machine:
    """Launches of one run that ask, wait, compute and end, in an order that chance decides."""

    ledger: Ledger
    clock: SimulatedClock
    pace: PlannedPace
    random: Random
    largest: int
    done: list[Batch] = field(default_factory=list)
    under_way: list[Batch] = field(default_factory=list)

    def step(self, key: str, places: int) -> None:
        if len(self.under_way) < places and self.random.random() < 0.7:
            self.ask(key)
        else:
            self.go_on()

    def ask(self, key: str) -> None:
        rows, size = self.random.randint(0, self.largest), self.random.randint(0, 50 * self.largest)
        number = tried(self.ledger, key, self.pace, Work(1, rows, size))
        if isinstance(number, MustWait):
            assert number.until is None or number.until > self.clock.at, "who asks again then has waited for something"
            self.go_on(number.until)
            return
        lasts = self.random.choice([1, 20, 200, 2_000]) * self.random.random()
        began = self.ledger.attempts("run")[-1].started_at
        self.under_way.append(Batch(number, rows, size, began, self.clock.at + timedelta(seconds=lasts)))

    def go_on(self, until: datetime | None = None) -> None:
        """Let time pass: to the end of a batch, to when somebody may ask again, or by a moment."""
        moments = [one.ends for one in self.under_way] + ([until] if until is not None else [])
        self.clock.at = min(moments, default=self.clock.at + timedelta(seconds=self.random.randint(1, 60)))
        for one in [one for one in self.under_way if one.ends <= self.clock.at]:
            self.ledger.fail_attempt("run", one.number, "it only tells the time")
            one.ended = next(found.ended_at for found in self.ledger.attempts("run") if found.attempt == one.number)
            self.under_way.remove(one)
            self.done.append(one)


def most_in_any_ten_minutes(batches: list[Batch], of: Callable[[Batch], int]) -> int:
    """Return the most that batches which touch the same 10 minutes take, wherever those begin: each reads when it likes."""
    begins = [one.began for one in batches] + [one.began - WINDOW for one in batches]
    begins += [one.ended for one in batches if one.ended is not None]

    def taken(begin: datetime) -> int:
        end = begin + WINDOW
        return sum(of(one) for one in batches if one.began <= end and (one.ended is None or one.ended >= begin))

    return max(map(taken, begins), default=0)


@settings(max_examples=12, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 500), st.integers(1, 4))
def test_no_ten_minutes_have_more_rows_or_bytes_than_the_limits_allow_whoever_asks(
    random: Random, rate: int, places: int
) -> None:
    pace = PlannedPace(rows_per_minute=rate, bytes_per_minute=40 * rate)
    clock = SimulatedClock()
    with in_memory(clock) as ledger:
        record = approved(ledger, "run")
        machine = Machine(ledger, clock, pace, random, largest=8 * rate)
        for _ in range(60):
            machine.step(record.plan.chunks[0].key, places)
        found = [*machine.done, *machine.under_way]
    assert most_in_any_ten_minutes(found, lambda one: one.rows) <= 10 * rate
    assert most_in_any_ten_minutes(found, lambda one: one.size) <= 400 * rate


def test_a_run_that_always_asks_gets_most_of_its_allowance() -> None:
    """That nothing is ever too much would be kept by admitting nothing: a run that waits as it is told goes at its pace."""
    clock, pace = SimulatedClock(), PlannedPace(rows_per_minute=100)
    with in_memory(clock) as ledger:
        record = approved(ledger, "run")
        rows = 0
        while clock.at < BEGIN + timedelta(hours=3):
            number = tried(ledger, record.plan.chunks[0].key, pace, Work(1, 200, 1))
            if isinstance(number, MustWait):
                assert number.until is not None
                clock.at = number.until
                continue
            rows += 200
            clock.on(5)
            ledger.fail_attempt("run", number, "it only tells the time")
    assert 0.85 * 180 * 100 <= rows <= 180 * 100 + 1_000


@contextmanager
def in_memory(clock: SimulatedClock) -> Iterator[Ledger]:
    """Yield a ledger of a file that a test of many steps does not wait for."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        ledger = Ledger(f"sqlite:///{folder}/ledger.db", clock)
        ledger.migrate()
        yield ledger
        ledger.engine.dispose()


# --- what is shared ---------------------------------------------------------------------------------------------------


def test_two_launches_that_ask_at_once_share_one_allowance(ledger: Ledger) -> None:
    record = approved(ledger, "run")
    pace, keys = PlannedPace(rows_per_minute=100), [chunk.key for chunk in record.plan.chunks]
    others = [Ledger(ledger.url) for _ in range(2)]
    found: list[object] = []
    ready = threading.Barrier(2)

    def ask(own: Ledger, key: str) -> None:
        ready.wait()
        try:
            found.append(start(own, key, pace, Work(1, 600, 1)))
        except MustWait as wait:
            found.append(wait)

    threads = [threading.Thread(target=ask, args=pair) for pair in zip(others, keys, strict=False)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for own in others:
        own.close()
    assert sorted(type(one).__name__ for one in found) == ["MustWait", "int"]


def test_a_batch_has_ended_by_the_shared_clock_however_wrong_that_of_its_machine_is(ledger: Ledger) -> None:
    record = approved(ledger, "run")
    key, pace = record.plan.chunks[0].key, PlannedPace(rows_per_minute=100)
    number = start(ledger, key, pace, Work(1, 600, 1))
    ledger.fail_attempt("run", number, "done")
    for begins, ends in ((-3_600, -3_599), (3_600, 3_601), (-3_600, 0), (0, -3_600)):
        with ledger.engine.begin() as connection:
            row = connection.execute(attempts.select()).one()
            at = row.started_at
            connection.execute(
                attempts.update().values(
                    started_at=at + timedelta(seconds=begins), ended_at=at + timedelta(seconds=ends)
                )
            )
        with pytest.raises(MustWait) as wait:
            start(ledger, key, pace, Work(1, 600, 1))
        until = wait.value.until
        assert until is not None
        assert timedelta(minutes=9) < until - wait.value.at <= WINDOW + 2 * MARGIN, (begins, ends)
        with ledger.engine.begin() as connection:
            connection.execute(attempts.update().values(started_at=at, ended_at=at))


def test_places_are_counted_over_all_machines_and_not_those_of_a_process_that_is_no_more(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = approved(ledger, "run")
    one, other, _ = (chunk.key for chunk in record.plan.chunks)
    pace = PlannedPace(chunks_in_parallel=1)
    start(ledger, one, pace, Work(1, 1, 1))
    with ledger.engine.begin() as connection:
        connection.execute(attempts.update().values(host="another-machine", process=""))
    with pytest.raises(MustWait, match="over all machines") as wait:
        start(ledger, other, pace, Work(1, 1, 1))
    assert wait.value.until is None
    monkeypatch.setattr(admissions, "has_ended", lambda row: row.host == "another-machine")
    assert start(ledger, other, pace, Work(1, 1, 1)) == 2


def test_a_budget_counts_what_was_tried_again_and_admits_nothing_beyond_it(ledger: Ledger) -> None:
    record = approved(ledger, "run")
    key, pace = record.plan.chunks[0].key, PlannedPace(budget_rows=1_000)
    for _ in range(2):
        ledger.fail_attempt("run", start(ledger, key, pace, Work(1, 400, 1)), "again")
    with pytest.raises(
        BudgetSpent, match=r"limits.budget.rows is 1,000: 800 rows are read, and the next batch would read 400"
    ):
        start(ledger, key, pace, Work(1, 400, 1))
    assert len(ledger.attempts("run")) == 2, "nothing is written of what is not admitted"


def test_what_waits_is_on_record_with_why_and_until_when_and_its_end_too(ledger: Ledger) -> None:
    record = approved(ledger, "run")
    key, pace = record.plan.chunks[0].key, PlannedPace(rows_per_minute=100)
    number = start(ledger, key, pace, Work(1, 1_000, 1))
    ledger.fail_attempt("run", number, "done")
    with pytest.raises(MustWait) as wait:
        start(ledger, key, pace, Work(1, 1, 1))
    for _ in range(2):
        ledger.admissions.wait("run", record.target, wait.value)
    (found,) = ledger.admissions.waiting().values()
    assert found.until_at == wait.value.until
    assert str(found).startswith("limits.maxRowsPerMinute is 100, over any 10 minutes, until ")
    assert ledger.launches.waits(ledger.run("run")) is None, "its launch lives: it waits for none"
    ledger.admissions.wait_no_more("run")
    assert ledger.admissions.waiting() == {}
    assert ledger.freezes.waits_of("run") == 0, "it is no freeze"


def test_what_a_process_waited_for_that_is_no_more_is_not_shown(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = approved(ledger, "run")
    key, pace = record.plan.chunks[0].key, PlannedPace(chunks_in_parallel=1)
    start(ledger, key, pace, Work(1, 1, 1))
    with pytest.raises(MustWait) as wait:
        start(ledger, record.plan.chunks[1].key, pace, Work(1, 1, 1))
    ledger.admissions.wait("run", record.target, wait.value)
    monkeypatch.setattr(admissions, "has_ended", lambda _: True)
    assert ledger.admissions.waiting() == {}


# --- commits ----------------------------------------------------------------------------------------------------------


def test_a_table_takes_no_more_commits_an_hour_whichever_run_asks(ledger: Ledger) -> None:
    for run_id, start_day, end_day in (
        ("run-1", "2012-01-01", "2012-01-31"),
        ("run-2", "2012-02-01", "2012-02-29"),
        ("run-3", "2012-03-01", "2012-03-31"),
    ):
        approved(ledger, run_id, start_day, end_day)
    for run_id in ("run-1", "run-2"):
        ledger.open_publication(run_id, "publish", None, "", "ada", commits_per_hour=2)
    with pytest.raises(PublicationDeferred, match=r"waits for its publication until (.|\n)*maxCommitsPerHour is 2"):
        ledger.open_publication("run-3", "publish", None, "", "ada", commits_per_hour=2)
    assert ledger.publications("run-3") == []
    again = ledger.open_publication("run-2", "publish", None, "", "ada", commits_per_hour=2)
    assert again, "what was interrupted is brought to its end"
    ledger.close_refused(ledger.publications("run-1")[0].id, "it has changed nothing")
    ledger.close_refused(ledger.publications("run-2")[0].id, "it has changed nothing")
    assert ledger.open_publication("run-3", "publish", None, "", "ada", commits_per_hour=2)
