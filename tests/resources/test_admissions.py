"""All launches of a run share one allowance, whatever machine they are on: rates, places, pauses, budgets, commits."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random

import contenders
import pytest
from admitting import BEGIN, SimulatedClock, in_memory, start
from hypothesis import given, settings
from hypothesis import strategies as st
from support import APPROVER, REQUESTER, approved, planned

from manifests.costs import Prices, RunCosts
from manifests.errors import PublicationDeferred
from manifests.lifecycle import RunState
from manifests.model import Mode
from manifests.pace import MARGIN, WINDOW, PlannedPace, Wait, Work
from resources.ledger import admissions, tables
from resources.ledger.admissions import Asked, BudgetSpent, MustWait
from resources.ledger.cells import IllegibleRow
from resources.ledger.facade import Ledger
from resources.ledger.tables import attempts, runs, waits


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


@pytest.mark.parametrize("most", [1, 2])
def test_launches_that_ask_at_once_begin_no_more_batches_on_a_machine_than_the_limit(ledger: Ledger, most: int) -> None:
    keys = [chunk.key for chunk in approved(ledger, "run").plan.chunks]
    with contenders.processes(len(keys)) as at_once:
        said = at_once(contenders.begun, [(ledger.url, "run", key, most) for key in keys])
        assert len([one for one in said if one.startswith("attempt ")]) == most
        waits = f"limits.maxRunsInParallel is {most}, on one machine; under way here: attempt "
        assert len([one for one in said if one.startswith(waits)]) == len(keys) - most
    found = ledger.start_attempt("run", keys[:1], edition=0, actor=REQUESTER, location="/staging", most_at_once=1)
    assert found is not None, "processes that are no more hold no place"


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


def granted(ledger: Ledger, clock: SimulatedClock, key: str, pace: PlannedPace) -> timedelta:
    """Return after how long a launch is let begin that asks again whenever it was told to."""
    since = clock.at
    while clock.at < since + timedelta(minutes=75):
        found = tried(ledger, key, pace, Work(1, 600, 1))
        if isinstance(found, int):
            return clock.at - since
        clock.at = max(clock.at, found.until or clock.at + timedelta(seconds=60))
    raise AssertionError("it waits for ever")


@pytest.mark.parametrize(
    ("pace", "longest"), [(PlannedPace(pause_seconds=60), 70), (PlannedPace(rows_per_minute=100), 610)]
)
@pytest.mark.parametrize(
    "how", ["a stop by a clock behind", "a clock set back", "killed", "killed, and another looked"]
)
def test_a_batch_ends_once_however_often_somebody_asks(
    pace: PlannedPace, longest: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end that moved on with each ask would keep everybody waiting for good."""
    clock = SimulatedClock()
    with in_memory(clock) as ledger:
        key = approved(ledger, "run").plan.chunks[0].key
        number = start(ledger, key, pace, Work(1, 600, 1))
        clock.on(30)
        match how:
            case "a stop by a clock behind":
                Ledger(ledger.url, SimulatedClock(clock.at - timedelta(hours=1))).stops.stop(
                    "run", by="olga", through="backfill stop"
                )
                ledger.stops.launched("run", by="ada")
            case "a clock set back":
                clock.at -= timedelta(minutes=2)
                longest += 120
                ledger.fail_attempt("run", number, "done")
            case _:
                monkeypatch.setattr(admissions, "has_ended", lambda row: row.started_at < BEGIN + timedelta(seconds=1))
                monkeypatch.setattr("resources.ledger.attempts.has_ended", admissions.has_ended)
                if how != "killed":
                    ledger.fail_attempts_of_dead_processes("run")
        assert granted(ledger, clock, key, pace) <= timedelta(seconds=longest)


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


def asked(ledger: Ledger, key: str, pace: PlannedPace, work: Work, costs: RunCosts | None = None) -> int:
    found = ledger.start_attempt(
        "run", [key], edition=0, actor=REQUESTER, location="/staging", asked=Asked(pace, work, costs)
    )
    assert found is not None
    return found[0]


@pytest.mark.parametrize("how", ["launched again", "stopped"])
def test_time_in_which_nobody_computed_is_neither_of_the_budget_nor_learned_from(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimulatedClock()
    with in_memory(clock) as ledger:
        keys = [chunk.key for chunk in approved(ledger, "run").plan.chunks]
        pace = PlannedPace(duration_minutes=120)
        for module in ("admissions", "attempts", "stops", "measured"):
            place = f"resources.ledger.{module}.has_ended"
            monkeypatch.setattr(place, lambda row: row.started_at < BEGIN + timedelta(hours=1), raising=False)
        start(ledger, keys[0], pace, Work(1, 1, 1))
        clock.on(14 * 3_600)  # it was killed in the evening
        if how == "stopped":
            ledger.stops.stop("run", by="olga", through="backfill stop")
            ledger.stops.launched("run", by="olga")
        ledger.fail_attempts_of_dead_processes("run")
        assert ledger.taken("run").seconds == 0
        start(ledger, keys[1], pace, Work(1, 1, 1))
        clock.on(600)
        left = ledger.admissions.left("run", pace, None)
    assert left is not None
    assert left.seconds == pytest.approx(110 * 60, abs=1)


@pytest.mark.parametrize("hours", [-1, 1])
def test_time_is_that_of_the_shared_clock_whatever_that_of_a_machine_says(hours: int) -> None:
    clock = SimulatedClock()
    with in_memory(clock) as ledger:
        key = approved(ledger, "run").plan.chunks[0].key
        pace = PlannedPace(duration_minutes=30)
        start(ledger, key, pace, Work(1, 1, 1))
        with ledger.engine.begin() as connection:
            connection.execute(attempts.update().values(started_at=BEGIN + timedelta(hours=hours)))
        clock.on(60)
        left = ledger.admissions.left("run", pace, None)
    assert left is not None
    assert left.seconds == pytest.approx(29 * 60, abs=1)


def test_money_for_reading_alone_is_spent_by_what_the_next_batch_reads(ledger: Ledger) -> None:
    keys = [chunk.key for chunk in approved(ledger, "run").plan.chunks]
    pace, gigabyte = PlannedPace(cost_usd=2.0), 10**9
    costs = RunCosts(10, 10, None, None, 4, Prices(usd_per_gb_read=1.0), (), None)
    number = asked(ledger, keys[0], pace, Work(1, 1, gigabyte), costs)
    left = ledger.admissions.left("run", pace, costs)
    assert left is not None
    assert left.seconds == math.inf
    ledger.fail_attempt("run", number, "again")
    with pytest.raises(BudgetSpent, match=r"maxCostUsd is 2.00: \$501.00 are spent once the next batch has read"):
        asked(ledger, keys[1], pace, Work(1, 1, 500 * gigabyte), costs)
    number = asked(ledger, keys[1], pace, Work(1, 1, gigabyte), costs)
    ledger.fail_attempt("run", number, "again")
    spent = ledger.admissions.left("run", replace(pace, cost_usd=1.0), costs)
    assert spent is not None
    assert spent.seconds == 0
    small = ledger.admissions.left("run", replace(pace, cost_usd=0.004), costs)
    assert small is not None
    assert small.why == "safety.maxCostUsd is 0.004: $2.00 are spent"


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=8), st.integers(1, 8), st.sampled_from([0.0, 0.06]))
def test_what_is_spent_to_the_cent_is_spent_and_no_batch_begins_that_is_interrupted_at_once(
    reads: list[int], limit: int, an_hour: float
) -> None:
    """Of money for reading alone all is spent; where seconds cost, none would be left for them."""
    costs = RunCosts(10, 10, None, None, 4, Prices(usd_per_gb_read=1.0, usd_per_core_hour=an_hour), (), None)
    pace, read = PlannedPace(cost_usd=float(limit)), 0
    with in_memory(SimulatedClock()) as ledger:
        key = approved(ledger, "run").plan.chunks[0].key
        for more in reads:
            fits = read + more < limit if an_hour else read + more <= limit
            try:
                number = asked(ledger, key, pace, Work(1, 1, more * 10**9), costs)
            except BudgetSpent:
                assert not fits
                continue
            assert fits
            read += more
            left = ledger.admissions.left("run", pace, costs)
            assert left is not None
            assert left.seconds > 0, "it has just begun"
            ledger.fail_attempt("run", number, "again")


def test_a_cost_says_how_often_it_is_allowed_who_computes_and_how_a_paused_run_goes_on(ledger: Ledger) -> None:
    keys = [chunk.key for chunk in approved(ledger, "run").plan.chunks]
    costs = RunCosts(10, 10, None, None, 4, Prices(usd_per_gb_read=1.0), (), None)
    pace = PlannedPace(cost_usd=2.0)
    asked(ledger, keys[0], pace, Work(1, 1, 10**9), costs)
    with ledger.engine.begin() as connection:
        connection.execute(attempts.update().values(host="pod-7", process=""))
    ledger.pauses.pause("run", by="ana", through="a test", reason="it has cost enough", cause=admissions.BUDGET)
    ledger.pauses.resume("run", by="grace", reason="it may cost as much again")
    said = (
        r"maxCostUsd is 2.00, allowed 2 times: \$6.00 are spent once the next batch has read its 5,000,000,000 bytes; "
        r"under way: attempt 1 on pod-7 since .* UTC; if that machine is no more: `backfill stop run --by NAME`, "
        r"then `backfill resume run --by NAME --reason TEXT`$"
    )
    with pytest.raises(BudgetSpent, match=said):
        asked(ledger, keys[1], pace, Work(1, 1, 5 * 10**9), costs)


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


def test_a_process_ends_what_it_waited_for_itself(ledger: Ledger) -> None:
    """Another machine may have the same name and number its processes alike: containers do."""
    record = approved(ledger, "run")
    ledger.admissions.wait("run", record.target, MustWait([Wait("its turn", None)], BEGIN))
    with ledger.engine.begin() as connection:
        connection.execute(waits.update().values(process="h/other-machine/b/pid:[1]/1/1"))
    ledger.admissions.wait_no_more("run")
    assert [one.why for one in ledger.admissions.waiting().values()] == ["its turn"]


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"at": BEGIN + timedelta(days=2)}, "a batch began, or ended, after"),
        ({"ended_at": datetime(2100, 1, 1, tzinfo=UTC)}, "a batch began, or ended, after"),
        ({"ended_at": BEGIN - timedelta(days=1)}, "a batch ended before it began"),
        ({"rows": -(10**12)}, "a batch has a negative count"),
        ({"bytes": -1}, "a batch has a negative count"),
        ({"chunks": -1}, "a batch has a negative count"),
    ],
    ids=str,
)
def test_batches_on_record_that_cannot_be_so_are_not_gone_by(odd: dict[str, object], why: str) -> None:
    clock, pace = SimulatedClock(), PlannedPace(rows_per_minute=100, pause_seconds=60)
    with in_memory(clock) as ledger:
        keys = [chunk.key for chunk in approved(ledger, "run").plan.chunks]
        ledger.fail_attempt("run", start(ledger, keys[0], pace, Work(1, 900, 1)), "again")
        forged = {"run_id": "run", "attempt": 999, "chunks": 1, "rows": 0, "bytes": 0, "at": clock()}
        with ledger.engine.begin() as connection:
            connection.execute(tables.admissions.insert().values(**(forged | odd)))
        with pytest.raises(IllegibleRow, match=rf"ledger admissions 2 has cells that cannot be read: {why}"):
            start(ledger, keys[1], pace, Work(1, 900, 1))
        assert len(ledger.attempts("run")) == 1


def test_a_batch_that_is_under_way_counts_however_many_have_ended_since() -> None:
    clock, pace = SimulatedClock(), PlannedPace(rows_per_minute=100)
    with in_memory(clock) as ledger:
        keys = [chunk.key for chunk in approved(ledger, "run").plan.chunks]
        start(ledger, keys[0], pace, Work(1, 900, 1))
        short = {"run_id": "run", "chunks": 1, "rows": 0, "bytes": 0, "at": clock(), "ended_at": clock()}
        with ledger.engine.begin() as connection:
            connection.execute(tables.admissions.insert(), [short | {"attempt": 2 + one} for one in range(1_000)])
        with pytest.raises(MustWait, match="maxRowsPerMinute"):
            start(ledger, keys[1], pace, Work(1, 200, 1))


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


def test_a_rollback_is_a_commit_of_the_hour_too_and_waits_for_nobody(ledger: Ledger) -> None:
    approved(ledger, "run-1", "2012-01-01", "2012-01-31")
    target = approved(ledger, "run-2", "2012-02-01", "2012-02-29").target
    ledger.open_publication("run-1", "publish", None, "", "ada", commits_per_hour=3)
    ledger.open_publication("run-1", "rollback", None, "", "ada")
    assert ledger.admissions.room("run-2", target, 3) == (1, 0)


def test_live_publishes_whatever_others_have(ledger: Ledger) -> None:
    approved(ledger, "back")
    approved(ledger, "live", "2012-04-01", "2012-04-30")
    with ledger.engine.begin() as connection:
        connection.execute(runs.update().where(runs.c.run_id == "live").values(mode=Mode.LIVE.value))
    ledger.open_publication("back", "publish", None, "", "ada", commits_per_hour=1)
    ledger.admissions.require_commit("live", "any", 1)
    assert ledger.open_publication("live", "publish", None, "", "ada", commits_per_hour=1)


def test_room_is_what_the_hour_has_left_and_says_when_more_was_made() -> None:
    clock = SimulatedClock()
    with in_memory(clock) as ledger:
        target = approved(ledger, "run-1").target
        approved(ledger, "run-2", "2012-04-01", "2012-04-30")
        assert ledger.admissions.room("run-2", target, 1) == (1, 0)
        ledger.open_publication("run-1", "publish", None, "", "ada", commits_per_hour=1)
        assert ledger.admissions.room("run-2", target, 1) == (0, 0)
        clock.on(3_601)
        assert ledger.admissions.room("run-2", target, 1) == (1, 1)


# --- what is live -----------------------------------------------------------------------------------------------------


def live(ledger: Ledger, run_id: str) -> None:
    record = planned(ledger, run_id, "2012-01-01", "2012-03-31", kind="LIVE")
    ledger.decide(run_id, approve=True, by=APPROVER, comment="", self_approval=False, plan_hash=record.plan_hash)


def test_a_live_run_computes_while_a_batch_of_it_is_under_way_in_a_process_that_lives(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ledger.admissions.live_computing
    live(ledger, "live")
    assert ask() is None, "nothing of it has begun"
    number, _ = begun(ledger, "live", "2012-01")
    assert ask() == "live"
    ledger.fail_attempt("live", number, "it only shows the end")
    assert ask() is None
    began = begun(ledger, "live", "2012-02")
    assert began
    assert ask() == "live"
    with monkeypatch.context() as patch:
        patch.setattr("resources.ledger.admissions.has_ended", lambda _: True)
        assert ask() is None, "its process is no more"
    with ledger.engine.begin() as connection:
        long_ago = ledger.attempts("live")[-1].started_at - timedelta(minutes=61)
        connection.execute(attempts.update().values(started_at=long_ago))
    assert ask() is None, "nobody waits longer than an hour for one batch"
    approved(ledger, "back", "2012-04-01", "2012-04-30")
    begun(ledger, "back", "2012-04")
    assert ask() is None, "a backfill is none"


def begun(ledger: Ledger, run_id: str, key: str) -> tuple[int, str]:
    found = ledger.start_attempt(run_id, [key], edition=0, actor=REQUESTER, location="/staging")
    assert found is not None
    return found


def test_a_live_run_is_late_from_its_approval_on_and_not_for_what_it_waits_for_itself(ledger: Ledger) -> None:
    live(ledger, "live")
    target, at = ledger.run("live").target, ledger.approvals("live")[-1].at
    with ledger.engine.begin() as connection:
        connection.execute(runs.update().values(created_at=at - timedelta(days=1)))
    found = ledger.admissions.live_delay(target)
    assert found is not None
    assert (found[0], found[1] < 60) == ("live", True), "it was planned a day ago, and approved now"
    assert ledger.admissions.live_delay(target, "live") is None, "a run does not make way for itself"
    frozen = planned(ledger, "back", "2012-03-01", "2012-04-30", freeze={"hours": 2})
    ledger.decide("back", approve=True, by=APPROVER, comment="", self_approval=False, plan_hash=frozen.plan_hash)
    assert ledger.admissions.live_delay(target, "back") is None, "it is what the live run waits for"
    assert ledger.admissions.live_delay(target, "another") is not None


@pytest.mark.parametrize("mode", ["FAILED", "stopped", "paused", "paused by a limit", "resumed"])
def test_a_live_run_that_failed_is_late_and_one_that_a_person_has_stopped_is_not(ledger: Ledger, mode: str) -> None:
    live(ledger, "live")
    match mode:
        case "FAILED":
            begun(ledger, "live", "2012-01")
            ledger.move("live", RunState.FAILED, "ada", "a chunk has failed", expected=RunState.RUNNING)
        case "stopped":
            ledger.stops.stop("live", by="ana", through="backfill stop")
        case _:
            cause = "MEMORY" if mode == "paused by a limit" else ""
            ledger.pauses.pause("live", by="ana", through="a test", reason="the month is closed first", cause=cause)
    if mode == "resumed":
        ledger.pauses.resume("live", by="ana", reason="the month is closed by now")
    found = ledger.admissions.live_delay(ledger.run("live").target, "back")
    if mode in {"stopped", "paused"}:
        assert found is None, "there is nothing to make way for"
        return
    assert found is not None
    assert (found[0], found[2]) == ("live", RunState.FAILED if mode == "FAILED" else RunState.APPROVED)
