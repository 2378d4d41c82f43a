"""A machine that cannot be seen from here: what waits for its batches is told which, its time counts until somebody stops it, and its waits end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import sqlalchemy as sa
from admitting import BEGIN, SimulatedClock, in_memory, start
from support import approved

from manifests.lifecycle import RunState
from manifests.pace import PlannedPace, Wait, Work
from resources.ledger.admissions import BudgetSpent, MustWait
from resources.ledger.facade import Ledger
from resources.ledger.tables import attempts, waits

FAR = {"host": "pod-7", "process": "pod-7/machine/boot/pid:[1]/1/1"}
RATE = PlannedPace(rows_per_minute=100)
HOUR = PlannedPace(duration_minutes=60)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def ledger(clock: SimulatedClock) -> Iterator[Ledger]:
    with in_memory(clock) as found:
        approved(found, "run")
        yield found


def keys(ledger: Ledger) -> list[str]:
    return [chunk.key for chunk in ledger.run("run").plan.chunks]


def far(ledger: Ledger, table: sa.Table = attempts) -> None:
    """Let what is on record be of a machine that is not this one."""
    with ledger.engine.begin() as connection:
        connection.execute(table.update().values(**FAR))


@pytest.mark.parametrize("pace", [RATE, PlannedPace(chunks_in_parallel=1)], ids=["a rate", "places"])
def test_who_waits_for_a_machine_that_cannot_be_seen_is_told_which_since_when_and_what_to_do(
    ledger: Ledger, clock: SimulatedClock, pace: PlannedPace
) -> None:
    start(ledger, keys(ledger)[0], pace, Work(1, 900, 1))
    with pytest.raises(MustWait) as wait:
        start(ledger, keys(ledger)[1], pace, Work(1, 200, 1))
    assert "attempt 1 on " in str(wait.value)
    assert "backfill stop" not in str(wait.value), "it is of this machine, and lives"
    far(ledger)
    clock.on(3 * 3_600)
    with pytest.raises(MustWait) as wait:
        start(ledger, keys(ledger)[1], pace, Work(1, 200, 1))
    said = f"; under way: attempt 1 on pod-7 since {BEGIN:%Y-%m-%d %H:%M:%S} UTC; if that machine is no more: "
    assert str(wait.value).endswith(said + "`backfill stop run --by NAME`, then `backfill resume run`")
    assert wait.value.until is None


def test_a_stop_from_elsewhere_ends_what_a_machine_that_is_no_more_is_counted_with(
    ledger: Ledger, clock: SimulatedClock
) -> None:
    start(ledger, keys(ledger)[0], HOUR, Work(1, 1, 1))
    far(ledger)
    clock.on(3 * 3_600)
    with pytest.raises(
        BudgetSpent, match=r"180.0 minutes are computed; under way: attempt 1 on pod-7 since .*backfill stop run"
    ):
        start(ledger, keys(ledger)[1], HOUR, Work(1, 1, 1))
    ledger.stops.stop("run", by="ana", through="backfill stop")
    ledger.stops.launched("run", by="ana")
    left = ledger.admissions.left("run", HOUR, None)
    assert left is not None
    assert left.seconds == 3_600
    assert ledger.taken("run").seconds == 0
    assert start(ledger, keys(ledger)[1], HOUR, Work(1, 1, 1)) == 2


def test_time_until_a_stop_from_elsewhere_counts_once_the_process_itself_has_ended(
    ledger: Ledger, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = start(ledger, keys(ledger)[0], HOUR, Work(1, 1, 1))
    clock.on(1_200)
    with monkeypatch.context() as patch:  # whoever stops it is on another machine
        patch.setattr("resources.ledger.stops.has_ended", lambda _: False)
        patch.setattr("resources.ledger.stops.is_busy", lambda _: False, raising=False)
        ledger.stops.stop("run", by="ana", through="backfill stop")
    assert "could not be seen; stopped by ana" in ledger.attempts("run")[0].error
    assert ledger.fail_attempt("run", number, "it was stopped", stopped=True) == "STOPPED"
    assert ledger.attempts("run")[0].error.startswith("stopped by ana")
    left = ledger.admissions.left("run", HOUR, None)
    assert left is not None
    assert left.seconds == pytest.approx(2_400, abs=1)
    assert ledger.taken("run").seconds == pytest.approx(1_200, abs=1)


def waiting(ledger: Ledger) -> None:
    ledger.admissions.wait("run", ledger.run("run").target, MustWait([Wait("its turn", None)], BEGIN))
    far(ledger, waits)


def shown(ledger: Ledger, clock: SimulatedClock) -> list[bool]:
    """Return whether status and metrics show that the run waits."""
    (run,) = ledger.figures(at=clock(), days=30, most=9).runs
    return [bool(ledger.admissions.waiting()), run.waiting_since is not None]


@pytest.mark.parametrize("how", ["stopped", "cancelled", "over already"])
def test_what_a_machine_that_is_no_more_waited_for_ends_with_a_stop_and_with_the_run(
    ledger: Ledger, clock: SimulatedClock, how: str
) -> None:
    if how != "over already":
        waiting(ledger)
        clock.on(24 * 3_600)
        assert shown(ledger, clock) == [True, True], "nobody here can tell"
    if how == "stopped":
        ledger.stops.stop("run", by="ana", through="backfill stop")
    else:
        ledger.move("run", RunState.CANCELLED, "ada", "no longer wanted", expected=RunState.APPROVED)
    if how == "over already":  # as on record of older code
        waiting(ledger)
    else:
        with ledger.engine.connect() as connection:
            assert connection.execute(sa.select(waits.c.ended_at)).scalars().all() != [None]
    assert shown(ledger, clock) == [False, False]


@pytest.mark.parametrize("ends", ["its hour came", "another launch has begun", "neither"])
@pytest.mark.parametrize("is_here", [True, False])
def test_what_a_machine_that_is_no_more_waited_for_is_shown_until_its_end_or_until_somebody_else_has_begun(
    ledger: Ledger, clock: SimulatedClock, ends: str, *, is_here: bool
) -> None:
    until = clock.at + timedelta(hours=10) if ends == "its hour came" else None
    ledger.admissions.wait("run", ledger.run("run").target, MustWait([Wait("its turn", until)], BEGIN))
    if not is_here:
        far(ledger, waits)
    clock.on(36_000 + 50)
    assert shown(ledger, clock) == [True, True]
    said = "its turn" + (", until 2026-03-10 22:00:00 UTC" if until else "")
    way_out = (
        "; it waits on pod-7; if that machine is no more: `backfill stop run --by NAME`, then `backfill resume run`"
    )
    assert str(ledger.admissions.waiting()["run"]) == said + ("" if is_here else way_out)
    if ends == "another launch has begun":
        found = ledger.start_attempt("run", keys(ledger)[:1], edition=0, actor="ada", location="/staging")
        assert found is not None
        ledger.fail_attempt("run", found[0], "it only tells that somebody has begun")
    clock.on(20)
    still = is_here or ends == "neither"
    assert shown(ledger, clock) == [still, still]
    if ends == "another launch has begun":
        assert (ledger.launches.waits(ledger.run("run")) is None) == still, "nobody computes the others"


def test_metrics_show_no_wait_of_a_process_of_this_machine_that_is_no_more(
    ledger: Ledger, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.admissions.wait("run", ledger.run("run").target, MustWait([Wait("its turn", None)], BEGIN))
    assert shown(ledger, clock) == [True, True]
    monkeypatch.setattr("resources.ledger.admissions.has_ended", lambda _: True)
    assert shown(ledger, clock) == [False, False]


def test_what_a_run_waited_for_longest_is_since_when_it_waits(ledger: Ledger, clock: SimulatedClock) -> None:
    waiting(ledger)
    since = clock.at
    clock.on(60)
    ledger.admissions.wait("run", ledger.run("run").target, MustWait([Wait("its hours", None)], BEGIN))
    (run,) = ledger.figures(at=clock(), days=30, most=9).runs
    assert run.waiting_since is not None
    assert since - run.waiting_since < timedelta(seconds=1)
