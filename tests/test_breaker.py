"""The circuit breaker and the canary: a run is paused after its first chunks, with its state kept, and a clean one is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backfill_assets import execution
from backfill_assets.execution import Execution
from backfill_assets.gates import breaking
from backfill_assets.gates.chunk_changes import VISIBLE
from backfill_assets.installation import Platform
from backfill_assets.operations import pausing
from backfill_assets.publication.publisher import publish
from backfill_assets.run_context import RunContext
from backfill_assets.staging import breaker_checks, executor, pacing, stopping
from benchmarks import kills, small_table
from benchmarks.small_table import closed, manifest_data, planned
from manifests.breaker import Gated, PlannedBreaker, surroundings_trips, trips
from manifests.errors import ManifestRefused, RunStopped, TransitionRefused
from manifests.lifecycle import ChunkState, RunState
from manifests.reading import manifest_from
from manifests.stages import Step
from resources.ledger import stops

RUN = "watched"
SEEDS = range(4)
ENOUGH = "the finance team has confirmed the figures"
BREAKER = {
    "maxRejectedPercent": 5.0,
    "maxDriftPercent": 40.0,
    "maxFailedAttempts": 1,
    "maxLiveDelaySeconds": 600,
    "minFreeMemoryMb": 512,
}


@pytest.fixture
def platform(kept_site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    kills.restore(kept_site)
    found = kills.at(kept_site)
    monkeypatch.setattr(breaker_checks, "free_memory_mb", lambda: 4_096)
    yield found
    closed(found)


def contract(**safety: Any) -> Any:
    text = manifest_data(RUN, "REPLACE_PARTITIONS", small_table.HISTORY)
    gates = {"validation": {"gates": ["all_chunks_staged"]}, "limits": {"maxChunksPerJob": 1}}
    return manifest_from(text | gates | {"safety": safety})


def launched(platform: Platform) -> RunState:
    """Launch the run as Dagster does: compute, gate what is not gated yet, judge."""
    with stopping.launched(platform, RUN):
        execution = Execution(platform, RUN)
        for step in (Step.COMPUTE, Step.GATE_CHUNKS, Step.JUDGE):
            execution.run(step)
    return platform.ledger.run(RUN).state


# --- incidents, each from a number of a chunk on -----------------------------------------------------------------------


def of_rows(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], since: int) -> Callable[..., Any]:
    """Return what computes a batch whose rows are changed from a number of a batch on."""
    usual, done = small_table.rows_of, list[int]()

    def compute(run: Any, chunks: Any, prefix: str, *_: Any) -> Any:
        done.append(1)
        with pytest.MonkeyPatch.context() as patch:
            if len(done) > since:
                patch.setattr(small_table, "rows_of", lambda *of: change(usual(*of)))
            return small_table.compute(run, chunks, prefix)

    return compute


def doubled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*rows, *rows[: len(rows) // 3]]


def thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return rows[: len(rows) // 4]


def seeded(incident: str, since: int, platform: Platform, patch: pytest.MonkeyPatch) -> None:
    """Make something go wrong from a number of a chunk on."""
    done: list[int] = []

    def from_then_on(usual: Callable[..., Any], bad: Callable[..., Any]) -> Callable[..., Any]:
        def either(*arguments: Any) -> Any:
            done.append(1)
            return (bad if len(done) > since else usual)(*arguments)

        return either

    def fail(*_: Any) -> Any:
        raise ValueError("a machine was lost")

    match incident:
        case "REJECTED_ROWS":
            patch.setattr(executor, "compute_batch", of_rows(doubled, since))
        case "DRIFT":
            patch.setattr(executor, "compute_batch", of_rows(thinned, since))
        case "FAILED_ATTEMPTS":
            patch.setattr(executor, "compute_batch", from_then_on(executor.compute_batch, fail))
        case "LIVE_DELAY":
            ledger = type(platform.ledger.admissions)
            patch.setattr(
                ledger, "live_delay", from_then_on(lambda *_: None, lambda *_: ("live-1", 601.0, RunState.FAILED))
            )
        case "MEMORY":
            patch.setattr(breaker_checks, "free_memory_mb", from_then_on(lambda: 4_096, lambda: 511))


INCIDENTS = ("REJECTED_ROWS", "DRIFT", "FAILED_ATTEMPTS", "LIVE_DELAY", "MEMORY")


@pytest.mark.parametrize(("incident", "seed"), [*product(INCIDENTS, SEEDS)])
def test_each_seeded_incident_pauses_the_run_at_once_with_its_state_kept_and_names_the_cause(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, incident: str, seed: int
) -> None:
    since = seed % 3
    planned(platform, contract(breaker=BREAKER))
    seeded(incident, since, platform, monkeypatch)
    with pytest.raises(RunStopped, match="paused by the platform"):
        launched(platform)
    held = platform.ledger.pauses.holding(RUN)
    assert incident in [one.cause for one in held]
    assert "safety.breaker." in held[0].reason
    staged = [one for one in platform.ledger.chunks(RUN) if one.state in {ChunkState.STAGED, ChunkState.PASSED}]
    assert len(staged) >= since - 1, "what was right before stays"
    attempts = len(platform.ledger.attempts(RUN))
    assert attempts <= since + 2, "nothing begins after it"
    with pytest.raises(RunStopped, match="until somebody resumes"):
        launched(platform)
    assert len(platform.ledger.attempts(RUN)) == attempts


@pytest.mark.parametrize("seed", range(20))
def test_no_clean_run_is_paused(platform: Platform, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Clean runs differ from what is accepted, as corrections do, have an attempt that failed, and a live run beside them."""
    usual, done = executor.compute_batch, list[int]()

    def compute(*arguments: Any) -> Any:
        done.append(1)
        if seed % 2 and len(done) == 1 + seed % 3:
            raise ValueError("a machine was lost, once")
        return usual(*arguments)

    monkeypatch.setattr(executor, "compute_batch", compute)
    monkeypatch.setattr(
        type(platform.ledger.admissions), "live_delay", lambda *_: ("live-1", 30.0 * seed, RunState.RUNNING)
    )
    monkeypatch.setattr(breaker_checks, "free_memory_mb", lambda: 512 + 100 * seed)
    planned(platform, contract(breaker=BREAKER, canary={"chunks": 1 + seed % 3}))
    if seed % 2:  # a chunk of the canary has failed: the others wait for the next launch
        with pytest.raises(TransitionRefused, match="have not passed"):
            launched(platform)
        assert platform.ledger.run(RUN).state is RunState.FAILED
    assert launched(platform) is RunState.VALIDATED
    assert platform.ledger.stops.of_run(RUN) == []


# --- the canary -------------------------------------------------------------------------------------------------------


def test_the_first_chunks_are_computed_gated_and_waited_on_and_the_others_follow_a_decision(platform: Platform) -> None:
    planned(platform, contract(canary={"chunks": 2, "waits": True}))
    with pytest.raises(RunStopped, match="the others wait until somebody has looked"):
        launched(platform)
    assert [one.state for one in platform.ledger.chunks(RUN)] == ["PASSED", "PASSED", "PLANNED", "PLANNED"]
    (held,) = platform.ledger.pauses.holding(RUN)
    assert held.cause == "CANARY"
    pausing.resume(platform, RUN, by="grace", reason=ENOUGH)
    assert launched(platform) is RunState.VALIDATED
    assert publish(platform, RUN).new


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_launch_that_ended_once_the_canary_had_passed_leaves_the_wait_to_the_next(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    planned(platform, contract(canary={"chunks": 1, "waits": True}))
    with monkeypatch.context() as patch:
        patch.setattr(execution, "gate_chunks", ended_after(execution.gate_chunks, how, platform))
        with pytest.raises(KeyboardInterrupt if how == "killed" else RunStopped):
            launched(platform)
    assert states(platform) == ["PASSED", "PLANNED", "PLANNED", "PLANNED"]
    assert platform.ledger.pauses.holding(RUN) == [], "nobody has come to it"
    with pytest.raises(RunStopped, match="the others wait until somebody has looked"):
        launched(platform)
    assert states(platform) == ["PASSED", "PLANNED", "PLANNED", "PLANNED"]
    pausing.resume(platform, RUN, by="grace", reason=ENOUGH)
    assert launched(platform) is RunState.VALIDATED


def test_a_launch_that_ended_before_it_looked_lets_the_next_begin_nothing_beyond_a_threshold(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "compute_batch", of_rows(thinned, 0))
    record = planned(platform, contract(breaker={"maxDriftPercent": 40.0}))
    with monkeypatch.context() as patch:
        patch.setattr(execution, "gate_chunks", ended_after(execution.gate_chunks, "killed", platform))
        with pytest.raises(KeyboardInterrupt):
            launched(platform)
    others = [chunk.key for chunk in record.plan.chunks[1:]]
    with pytest.raises(RunStopped, match="maxDriftPercent is 40"), stopping.launched(platform, RUN):
        Execution(platform, RUN, chunks=others).run(Step.COMPUTE)
    assert len(platform.ledger.attempts(RUN)) == 1


def ended_after(usual: Callable[..., Any], how: str, platform: Platform) -> Callable[..., Any]:
    """Return what gates chunks and then ends the launch, by a kill or by a stop from elsewhere."""

    def gate(*arguments: Any, **named: Any) -> Any:
        usual(*arguments, **named)
        if how == "killed":
            raise KeyboardInterrupt
        platform.ledger.stops.stop(RUN, by="ana", through="backfill stop")
        raise stops.refusal(platform.ledger.stops.of_run(RUN)[-1])

    return gate


def test_who_has_decided_about_a_drift_has_not_looked_at_the_canary_yet(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "compute_batch", of_rows(thinned, 0))
    planned(platform, contract(breaker={"maxDriftPercent": 40.0}, canary={"chunks": 1, "waits": True}))
    for cause in ("DRIFT", "CANARY"):
        with pytest.raises(RunStopped):
            launched(platform)
        assert cause in [one.cause for one in platform.ledger.pauses.holding(RUN)]
        assert states(platform) == ["PASSED", "PLANNED", "PLANNED", "PLANNED"]
        pausing.resume(platform, RUN, by="grace", reason=ENOUGH)
    assert launched(platform) is RunState.VALIDATED


def states(platform: Platform) -> list[str]:
    return [one.state for one in platform.ledger.chunks(RUN)]


def test_a_launch_of_other_chunks_computes_the_canary_before_them(platform: Platform) -> None:
    record = planned(platform, contract(canary={"chunks": 2, "waits": True}))
    others = [chunk.key for chunk in record.plan.chunks[2:]]
    with pytest.raises(RunStopped, match="the others wait until somebody has looked"), stopping.launched(platform, RUN):
        Execution(platform, RUN, chunks=others).run(Step.COMPUTE)
    assert states(platform) == ["PASSED", "PASSED", "PLANNED", "PLANNED"]


@pytest.mark.parametrize("waits", [False, True])
def test_a_canary_that_fails_its_gate_stops_the_others_however_often_it_is_launched(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(executor, "compute_batch", of_rows(doubled, 0))
        planned(platform, contract(canary={"chunks": 1, "waits": waits}))
        for _ in range(2):
            with pytest.raises(TransitionRefused, match=r"1 of the first 1 chunk\(s\) have not passed"):
                launched(platform)
            assert states(platform) == ["FAILED", "PLANNED", "PLANNED", "PLANNED"]
            assert platform.ledger.run(RUN).state is RunState.FAILED
            assert platform.ledger.stops.of_run(RUN) == [], "nobody is told that it has passed"
    if not waits:
        assert launched(platform) is RunState.VALIDATED, "once it has passed, the others follow"


@pytest.mark.parametrize("waits", [False, True])
def test_a_canary_that_cannot_be_computed_stops_the_others(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("a machine was lost")

    with monkeypatch.context() as patch:
        patch.setattr(executor, "compute_batch", fail)
        planned(platform, contract(canary={"chunks": 1, "waits": waits}))
        with pytest.raises(TransitionRefused, match="have not passed"):
            launched(platform)
    assert states(platform) == ["FAILED", "PLANNED", "PLANNED", "PLANNED"]
    assert platform.ledger.stops.of_run(RUN) == []


def test_a_canary_of_all_chunks_waits_for_nobody(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(platform, contract(canary={"chunks": 10, "waits": True}))
    with monkeypatch.context() as patch:
        patch.setattr(executor, "compute_batch", of_rows(doubled, 0))
        launched(platform)
    assert states(platform) == ["FAILED"] * 4
    assert platform.ledger.stops.of_run(RUN) == [], "there are no others"
    assert launched(platform) is RunState.VALIDATED


def test_a_run_that_was_cancelled_meanwhile_ends_by_what_it_failed_of(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        platform.ledger.move(RUN, RunState.CANCELLED, "ada", "no longer wanted", expected=RunState.RUNNING)
        raise ValueError("a machine was lost")

    monkeypatch.setattr(executor, "compute_batch", fail)
    record = planned(platform, contract(breaker={"maxFailedAttempts": 0}))
    outcome = executor.stage_chunks(platform, RUN, [record.plan.chunks[0].key])
    assert "a machine was lost" in outcome.failed[record.plan.chunks[0].key]
    assert platform.ledger.stops.of_run(RUN) == []


def test_failures_count_from_the_pause_that_was_decided_about(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("a machine was lost")

    record = planned(platform, contract(breaker={"maxFailedAttempts": 0}))
    run = RunContext(platform, platform.products.target(record.target), record.plan)
    with monkeypatch.context() as patch:
        patch.setattr(executor, "compute_batch", fail)
        patch.setattr(executor.pacing, "pause_if_tripped", lambda _: None)  # as by launches side by side
        for chunk in record.plan.chunks[:3]:
            executor.stage_chunks(platform, RUN, [chunk.key])
    (trip,) = breaker_checks.trips_before_a_batch(run)
    assert "3 attempts have failed" in trip.why
    pacing.pause(run, trip.cause, trip.why)
    pausing.resume(platform, RUN, by="grace", reason=ENOUGH)
    assert breaker_checks.trips_before_a_batch(run) == [], "one decision was about all three"


def test_an_anomaly_is_found_in_the_canary_and_not_after_the_last_chunk(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "compute_batch", of_rows(thinned, 0))
    planned(platform, contract(breaker={"maxDriftPercent": 40.0}, canary={"chunks": 1}))
    with pytest.raises(RunStopped, match=r"maxDriftPercent is 40: rows of 1 gated chunk\(s\) is"):
        launched(platform)
    assert [one.state for one in platform.ledger.chunks(RUN)][1:] == ["PLANNED"] * 3


def test_who_resumes_a_run_has_decided_about_its_drift(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "compute_batch", of_rows(thinned, 0))
    planned(platform, contract(breaker={"maxDriftPercent": 40.0}))
    with pytest.raises(RunStopped):
        launched(platform)
    pausing.resume(platform, RUN, by="grace", reason=ENOUGH)
    assert launched(platform) is RunState.VALIDATED
    (paused,) = platform.ledger.stops.of_run(RUN)
    assert (paused.cause, paused.resumed_by, paused.resume_reason) == ("DRIFT", "grace", ENOUGH)


# --- the rules --------------------------------------------------------------------------------------------------------


def test_what_is_at_a_threshold_is_within_it() -> None:
    breaker = PlannedBreaker(rejected_percent=5.0, drift_percent=10.0)
    at = Gated("2020-01", 100, 5, {"rows": "110", "sum": "9.0"}, {"rows": "100", "sum": "10.0"})
    assert trips(breaker, [at]) == []
    found = trips(breaker, [replace(at, rejected=6, now={"rows": "111", "sum": "8.9"})])
    assert [one.cause for one in found] == ["REJECTED_ROWS", "DRIFT", "DRIFT"]
    assert trips(breaker, [replace(at, accepted=None, now={"rows": "1"})]) == [], (
        "nobody holds it: there is nothing to drift from"
    )
    assert [one.cause for one in trips(breaker, [replace(at, accepted={"rows": "0"})])] == ["DRIFT"]
    live = PlannedBreaker(live_delay_seconds=10)
    assert surroundings_trips(live, ("live", 10.0, RunState.RUNNING), None) == []
    (late,) = surroundings_trips(live, ("live", 11.0, RunState.FAILED), None)
    assert late.why.endswith("'live' was approved 11 s ago and is not published: it is FAILED")
    assert surroundings_trips(PlannedBreaker(free_memory_mb=10), None, None) == [], "what is not known trips nothing"


def test_rows_that_break_different_rules_are_added_up_and_a_chunk_has_no_more_of_them_than_rows() -> None:
    def chunk(key: str, rows: int) -> Any:
        return SimpleNamespace(chunk=key, state=ChunkState.FAILED, rows=rows, measures={VISIBLE: {"rows": rows}})

    def verdict(key: str, *counts: int) -> Any:
        return SimpleNamespace(chunk=key, details={"violations": [{"count": one} for one in counts]})

    verdicts = [verdict("a", 10, 10), verdict("b", 30, 30), verdict("c", 1, 1), verdict("")]
    platform: Any = SimpleNamespace(ledger=SimpleNamespace(verdicts=lambda _: verdicts, accepted=lambda *_: {}))
    plan: Any = SimpleNamespace(run_id=RUN, target=small_table.READINGS)
    found = breaking.gated_of(platform, plan, [chunk("a", 1_000), chunk("b", 40), chunk("c", 0), chunk("d", 5)])
    assert {one.chunk: one.rejected for one in found} == {"a": 20, "b": 40, "c": 2, "d": 0}
    (trip,) = trips(PlannedBreaker(rejected_percent=1.5), found[:1])
    assert "20 of 1,000 rows of 1 gated chunk(s) break a rule (2%; one that breaks two counts twice)" in trip.why


@pytest.mark.parametrize(
    ("most", "now", "then", "said"),
    [
        (1.0, "101001", "100000", "100,000 is accepted (1.001%)"),
        (10.0, "412000000", "1", "1 is accepted (41,199,999,900%)"),
        (10.0, "110.5", "100", "100 is accepted (10.5%)"),
        (10.0, "5", "0", "0 is accepted"),
    ],
)
def test_a_share_past_its_threshold_is_said_so_that_one_sees_it(most: float, now: str, then: str, said: str) -> None:
    (trip,) = trips(PlannedBreaker(drift_percent=most), [Gated("a", 1, 0, {"sum": now}, {"sum": then})])
    assert trip.why.endswith(said)


def test_a_figure_that_is_no_number_in_one_chunk_hides_none_of_the_others() -> None:
    breaker = PlannedBreaker(drift_percent=10.0)
    drifted = Gated("2020-01", 10, 0, {"rows": "10", "sum": "900"}, {"rows": "10", "sum": "1"})
    for text in ("None", "NaN", "Infinity", "-Infinity", ""):
        odd = Gated("2020-02", 10, 0, {"rows": "10", "sum": text}, {"rows": "10", "sum": "1"})
        assert [one.cause for one in trips(breaker, [drifted, odd])] == ["DRIFT"], text
        assert trips(breaker, [odd]) == []
    without = Gated("2020-02", 10, 0, {"rows": "10"}, {"rows": "10"})
    assert [one.cause for one in trips(breaker, [without, drifted])] == ["DRIFT"]


def test_a_live_run_that_waits_is_found_with_how_long(platform: Platform) -> None:
    assert platform.ledger.admissions.live_delay(small_table.READINGS) is None


def test_a_threshold_that_is_none_is_refused() -> None:
    with pytest.raises(ManifestRefused, match="a number from 0"):
        contract(breaker={"maxRejectedPercent": -1.0})
    with pytest.raises(ManifestRefused, match="how many chunks come first"):
        contract(canary={"chunks": 0})
