"""What was accepted between a plan and its publication, or was not on record when it was made: nothing older replaces it.

The table is the benchmarks' small one with LIVE, without Spark; a run has a row for each source event of its pinned snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from typing import Any
from unittest import mock

import dagster as dg
import pyarrow as arrow
import pytest
import yaml
from small_worlds import copy_of
from support import put_in_force

from backfill_assets import faults
from backfill_assets.audit.verification import verify
from backfill_assets.defs.live_triggers import next_request
from backfill_assets.defs.publish import publication_requests
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.planning import accepted_base
from backfill_assets.planning.accepted_then import accepted_then, unrecorded_then
from backfill_assets.planning.resolve import plan_series
from backfill_assets.publication import undoing
from backfill_assets.publication.leasing import leases_of
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.requirements import waits_for
from backfill_assets.publication.undoing import reinstate, rollback
from backfill_assets.schedules import live
from benchmarks.small_table import (
    READINGS,
    SOURCE,
    WITH_LIVE,
    closed,
    compute_events,
    declared,
    initialise,
    load_events,
    manifest_data,
    take_load_back,
)
from benchmarks.small_table import planned as planned_from
from benchmarks.small_table import staged as gated
from benchmarks.stopped_actors import Died, bury, no_lease_ends
from manifests.errors import (
    DecisionRefused,
    EnvironmentRefused,
    PlanRefused,
    PublicationDeferred,
    PublicationRefused,
)
from manifests.lifecycle import RunState
from manifests.model import Mode
from manifests.reading import manifest_from
from resources.lakehouse.facade import ACTION_PROPERTY, RUN_PROPERTY
from resources.ledger.facade import RunRecord
from resources.policies import SHIPPED

HISTORY, MAY = ("2020-01-01", "2020-04-30"), ("2020-05-01", "2020-05-31")
PUBLISHED, REJECTED, ROLLED_BACK = RunState.PUBLISHED, RunState.REJECTED, RunState.ROLLED_BACK


@pytest.fixture
def platform() -> Iterator[Platform]:
    """A table with four months of history, published from a source that has events of these and no others."""
    with declared(WITH_LIVE, compute_events):
        opened_here = copy_of(with_history)
        yield opened_here
        closed(opened_here)


def with_history(platform: Platform) -> None:
    initialise(platform)
    take_load_back(platform, "events")
    load(platform, "base", "2020-01-02", "2020-02-02", "2020-03-02", "2020-04-30")
    published(platform, "history", HISTORY, kind="BOOTSTRAP")


def load(platform: Platform, name: str, *days: str) -> int:
    """Load an event a day into the source; return its snapshot."""
    load_events(platform, name, *days)
    return snapshot_of(platform)


def snapshot_of(platform: Platform) -> int:
    found = platform.lakehouse.snapshot_id(SOURCE)
    assert found is not None
    return found


def planned(
    platform: Platform, run_id: str, scope: tuple[str, str], kind: str, source: int | None, **options: Any
) -> RunRecord:
    data = manifest_data(run_id, "REPLACE_PARTITIONS", scope) | {"kind": kind} | options
    if source is not None:
        data["source"]["snapshotId"] = source
    return planned_from(platform, manifest_from(data))


def ran(
    platform: Platform,
    run_id: str,
    scope: tuple[str, str] = MAY,
    *,
    kind: str = "RESTATEMENT",
    source: int | None = None,
    **options: Any,
) -> str:
    planned(platform, run_id, scope, kind, source, **options)
    assert gated(platform, run_id).state is RunState.VALIDATED
    return run_id


def published(platform: Platform, run_id: str, scope: tuple[str, str] = MAY, **options: Any) -> str:
    publish(platform, ran(platform, run_id, scope, **options))
    return run_id


def live_ran(platform: Platform) -> str:
    found = live.tick(platform, platform.products.target(READINGS))
    assert found.record is not None, found.why
    assert gated(platform, found.record.run_id).state is RunState.VALIDATED
    return found.record.run_id


@contextmanager
def dies_at(platform: Platform, point: str) -> Iterator[None]:
    def reach(name: str) -> None:
        if name == point:
            raise Died

    with pytest.raises(Died), mock.patch.object(faults, "reach", reach), no_lease_ends():
        yield
    bury(platform)


def seen_of(platform: Platform, month: int) -> set[str]:
    """Return the events that readers see of a month."""
    rows = platform.lakehouse.table(READINGS).scan().to_arrow().to_pylist()
    return {row["meter"] for row in rows if row["day"].month == month}


def state(platform: Platform, run_id: str) -> RunState:
    return platform.ledger.run(run_id).state


def agrees(platform: Platform) -> bool:
    return not verify(platform, data=True).everything


# --- a commit that is not on record yet -------------------------------------------------------------------------------


def test_what_readers_see_counts_when_a_run_is_planned_also_before_it_is_on_record(platform: Platform) -> None:
    older = snapshot_of(platform)
    load(platform, "may", "2020-05-03", "2020-05-04")
    by_live = live_ran(platform)
    with dies_at(platform, "publishing.committed"):
        publish(platform, by_live)
    for _ in range(2):
        with pytest.raises(PlanRefused, match="older knowledge never replaces newer"):
            planned(platform, "fix-may", MAY, "RESTATEMENT", older)
        with pytest.raises(PlanRefused, match="a BACKFILL produces output that is missing"):
            planned(platform, "fill-may", MAY, "BACKFILL", None)
        mend(platform)
    planned(platform, "january", ("2020-01-01", "2020-01-31"), "RESTATEMENT", older)
    assert state(platform, by_live) is PUBLISHED
    assert agrees(platform)


@pytest.mark.parametrize(
    ("kind", "rule"), [("RESTATEMENT", "older knowledge"), ("REPLAY", "reads the snapshot that was read")]
)
def test_a_plan_that_could_not_know_is_held_against_the_ledger_once_more(
    platform: Platform, kind: str, rule: str
) -> None:
    """Its base has the change, and its rules have not seen it: as an earlier version has planned it."""
    older = snapshot_of(platform)
    load(platform, "may", "2020-05-03", "2020-05-04")
    if kind == "REPLAY":
        published(platform, "first", source=older)
    by_other = live_ran(platform) if kind == "RESTATEMENT" else ran(platform, "restated")
    with dies_at(platform, "publishing.committed"):
        publish(platform, by_other)
    with mock.patch.object(accepted_base, "unrecorded", return_value=()):
        ran(platform, "fix-may", kind=kind, source=older)
    mend(platform)
    with pytest.raises(PublicationRefused, match=rule):
        publish(platform, "fix-may")
    assert (state(platform, "fix-may"), state(platform, by_other)) == (REJECTED, PUBLISHED)
    assert seen_of(platform, 5) == {"may-2020-05-03", "may-2020-05-04"}
    assert agrees(platform)


# --- chunks that were planned anew ------------------------------------------------------------------------------------


def test_a_chunk_that_was_planned_anew_counts_by_the_source_that_it_was_computed_from(platform: Platform) -> None:
    load(platform, "first", "2020-05-03")
    publish(platform, live_ran(platform))
    ran(platform, "anew", conflict={"onConflict": "REPLAN", "maxReplans": 2})
    published(platform, "other")
    between = load(platform, "second", "2020-05-04")
    load(platform, "third", "2020-05-05")
    with pytest.raises(PublicationDeferred, match="planned anew"):
        publish(platform, "anew")
    gated(platform, "anew")
    publish(platform, "anew")
    with pytest.raises(PlanRefused, match="older knowledge never replaces newer"):
        planned(platform, "older", MAY, "RESTATEMENT", between)
    newest = snapshot_of(platform)
    with pytest.raises(PlanRefused, match="a REPLAY of what is published reads the snapshot that was read for it"):
        planned(platform, "not-again", MAY, "REPLAY", between)
    planned(platform, "again", MAY, "REPLAY", newest)
    assert seen_of(platform, 5) == {"first-2020-05-03", "second-2020-05-04", "third-2020-05-05"}


def test_a_chunk_that_was_planned_anew_does_not_make_the_others_older_than_what_live_has_published(
    platform: Platform,
) -> None:
    """April is of the first plan, and nobody has changed it; May is of the second, and newer than what LIVE has there."""
    scope = ("2020-04-01", "2020-05-31")
    load(platform, "first", "2020-05-03")
    publish(platform, live_ran(platform))
    ran(platform, "both", scope, conflict={"onConflict": "REPLAN", "maxReplans": 2})
    load(platform, "second", "2020-05-04")
    by_live = live_ran(platform)
    assert platform.ledger.run(by_live).plan.publish_range.start.month == 5
    publish(platform, by_live)
    with pytest.raises(PublicationDeferred, match="planned anew"):
        publish(platform, "both")
    gated(platform, "both")
    publish(platform, "both")
    assert set(platform.ledger.accepted(READINGS, ["2020-04", "2020-05"]).values()) == {"both"}
    assert seen_of(platform, 5) == {"first-2020-05-03", "second-2020-05-04"}
    assert agrees(platform)


# --- accepted without rows --------------------------------------------------------------------------------------------


def found_empty(platform: Platform) -> str:
    """Take the load of May back, and have LIVE publish from May on what comes instead; return its run."""
    take_load_back(platform, "wrong")
    load(platform, "june", "2020-06-03")
    by_live = live_ran(platform)
    publish(platform, by_live)
    return by_live


def test_a_run_does_not_replace_what_live_has_found_empty_since(platform: Platform) -> None:
    load(platform, "wrong", "2020-05-03")
    ran(platform, "fill-may", kind="BACKFILL")
    by_live = found_empty(platform)
    with pytest.raises(PublicationRefused, match=f"= 2020-05, accepted from '{by_live}' since"):
        publish(platform, "fill-may")
    assert state(platform, "fill-may") is REJECTED
    assert platform.ledger.accepted(READINGS, ["2020-05"]) == {"2020-05": by_live}
    assert seen_of(platform, 5) == set()
    assert agrees(platform)


def test_a_run_is_not_reinstated_over_what_others_have_found_empty_since(platform: Platform) -> None:
    load(platform, "wrong", "2020-05-03")
    published(platform, "fill-may", kind="BACKFILL")
    rollback(platform, "fill-may")
    reinstate(platform, "fill-may")  # nobody has been there
    rollback(platform, "fill-may")
    by_live = found_empty(platform)
    with pytest.raises(PublicationRefused, match=f"held by later run.s. {by_live}"):
        reinstate(platform, "fill-may")
    with dies_at(platform, "undoing.begun"), mock.patch.object(undoing, "_require_left_alone"):
        reinstate(platform, "fill-may")  # as one that had begun before; nothing of it has landed
    with pytest.raises(PublicationRefused, match=f"held by later run.s. {by_live}"):
        reinstate(platform, "fill-may")
    rollback(platform, by_live)
    reinstate(platform, "fill-may")  # the way out that was named
    assert seen_of(platform, 5) == {"wrong-2020-05-03"}
    assert agrees(platform)


# --- LIVE -------------------------------------------------------------------------------------------------------------


def test_of_two_live_runs_that_two_ticks_have_made_the_older_is_not_published_over_the_newer(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(platform, "wrong", "2020-05-03")
    real, ticks = live._next, []

    def overtaken(*of: Any, **named: Any) -> Any:
        found = real(*of, **named)
        monkeypatch.setattr(live, "_next", real)
        take_load_back(platform, "wrong")
        load(platform, "june", "2020-06-03")
        ticks.append(live_ran(platform))
        return found

    monkeypatch.setattr(live, "_next", overtaken)
    older = live.tick(platform, platform.products.target(READINGS)).record
    assert older is not None
    gated(platform, older.run_id)
    (newer,) = ticks
    publish(platform, newer)
    with pytest.raises(PublicationRefused):
        publish(platform, older.run_id)
    assert (state(platform, older.run_id), state(platform, newer)) == (REJECTED, PUBLISHED)
    assert (seen_of(platform, 5), seen_of(platform, 6)) == (set(), {"june-2020-06-03"})
    assert agrees(platform)


@pytest.mark.parametrize("part", ["all of it", "the last month"])
def test_live_leaves_no_days_out_that_were_rolled_back_since_it_was_planned(platform: Platform, part: str) -> None:
    run_id = "history"
    if part == "the last month":
        rollback(platform, "history")
        published(platform, "to-march", ("2020-01-01", "2020-03-31"))
        run_id = published(platform, "april", ("2020-04-01", "2020-04-30"), kind="BACKFILL")
    load(platform, "may", "2020-05-03")
    by_live = live_ran(platform)
    rollback(platform, run_id)
    with pytest.raises(
        PublicationRefused, match=r"no run would cover the days|nothing .* is complete before 2020-05-01"
    ):
        publish(platform, by_live)
    assert state(platform, by_live) is REJECTED
    assert seen_of(platform, 5) == set()
    if part == "the last month":
        following = live_ran(platform)
        publish(platform, following)
        assert seen_of(platform, 4) == {"base-2020-04-30"}
    else:
        assert "names no first day" in live.tick(platform, platform.products.target(READINGS)).why
    assert agrees(platform)


def test_live_goes_on_from_the_month_that_it_holds_though_those_before_it_were_rolled_back(platform: Platform) -> None:
    load(platform, "may", "2020-05-03")
    publish(platform, live_ran(platform))
    rollback(platform, "history")
    load(platform, "more", "2020-05-04")
    by_live = live_ran(platform)
    publish(platform, by_live)
    assert platform.ledger.accepted(READINGS) == {"2020-05": by_live}
    assert seen_of(platform, 5) == {"may-2020-05-03", "more-2020-05-04"}
    assert agrees(platform)


def test_live_waits_until_what_others_have_taken_back_beside_it_is_on_record(platform: Platform) -> None:
    rollback(platform, "history")
    published(platform, "to-march", ("2020-01-01", "2020-03-31"))
    published(platform, "april", ("2020-04-01", "2020-04-30"), kind="BACKFILL")
    load(platform, "may", "2020-05-03")
    by_live = live_ran(platform)
    with dies_at(platform, "undoing.committed"):
        rollback(platform, "april")
    with pytest.raises(PublicationDeferred, match=r"rollback of run 'april' has landed in .*, and is not on record"):
        publish(platform, by_live)
    mend(platform)
    with pytest.raises(PublicationRefused, match="no run would cover the days 2020-04-01 to 2020-04-30"):
        publish(platform, by_live)
    publish(platform, live_ran(platform))
    assert (seen_of(platform, 4), seen_of(platform, 5)) == ({"base-2020-04-30"}, {"may-2020-05-03"})
    assert agrees(platform)


def test_live_goes_on_once_what_others_have_published_beside_it_is_on_record(platform: Platform) -> None:
    """Its policy has it begin in May, whoever publishes April."""
    begins = replace(WITH_LIVE, live=replace(WITH_LIVE.live, begins_on=date(2020, 5, 1)))  # type: ignore[type-var]
    rollback(platform, "history")
    published(platform, "to-march", ("2020-01-01", "2020-03-31"))
    ran(platform, "april", ("2020-04-01", "2020-04-30"), kind="BACKFILL")
    load(platform, "may", "2020-05-03")
    with declared(begins, compute_events):
        with dies_at(platform, "publishing.committed"):
            publish(platform, "april")
        by_live = live.tick(platform, begins).record
        assert by_live is not None
        gated(platform, by_live.run_id)
        with pytest.raises(PublicationDeferred, match=r"publish of run 'april' has landed in .*, and is not on record"):
            publish(platform, by_live.run_id)
        assert state(platform, by_live.run_id) is RunState.VALIDATED
        mend(platform)
        publish(platform, by_live.run_id)
    assert (seen_of(platform, 4), seen_of(platform, 5)) == ({"base-2020-04-30"}, {"may-2020-05-03"})
    assert agrees(platform)


def test_live_is_not_planned_anew_over_what_was_published_of_newer_input(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tick's process had died with its plan on record; the policy that is in force changes before the next one."""
    rewinds = replace(WITH_LIVE, live=replace(WITH_LIVE.live, rewind_days=40))  # type: ignore[type-var]
    load(platform, "may", "2020-05-03")
    publish(platform, live_ran(platform))
    load(platform, "more", "2020-05-04")
    with declared(rewinds, compute_events):
        with dies_at(platform, "planning.recorded"):
            live.tick(platform, rewinds)
        load(platform, "late", "2020-04-15")
        published(platform, "fix-april", ("2020-04-01", "2020-04-30"))
        adopted(platform, "another")
        with pytest.raises(PlanRefused, match=r"published in this range from .* older knowledge never replaces newer"):
            live.tick(platform, rewinds)
        by_live = live_ran(platform)  # of the newest snapshot: the other has ended
        publish(platform, by_live)
    assert seen_of(platform, 4) == {"base-2020-04-30", "late-2020-04-15"}
    assert seen_of(platform, 5) == {"may-2020-05-03", "more-2020-05-04"}
    assert agrees(platform)


@dg.job
def some_job() -> None:
    """Stands for the job of a sensor's request."""


def test_the_sensor_waits_until_what_others_have_taken_back_is_on_record_and_then_asks(platform: Platform) -> None:
    """Else it would ask five times, each time in vain, and never again."""
    published(platform, "fix-april", ("2020-04-01", "2020-04-30"))
    load(platform, "may", "2020-05-03")
    by_live = live_ran(platform)
    with dies_at(platform, "undoing.committed"):
        rollback(platform, "fix-april")
    wait = waits_for(platform, platform.ledger.run(by_live))
    assert wait is not None
    assert "rollback of run 'fix-april' has landed" in wait
    assert [*publication_requests(platform, WITH_LIVE)] == []
    mend(platform)
    assert [one.partition_key for one in publication_requests(platform, WITH_LIVE)] == [by_live]


def test_live_is_launched_beside_what_is_not_on_record_and_records_what_is_in_its_own_days(platform: Platform) -> None:
    published(platform, "fix-april", ("2020-04-01", "2020-04-30"))
    load(platform, "may", "2020-05-03")
    publish(platform, live_ran(platform))
    (may,) = [one.run_id for one in platform.ledger.runs(target=READINGS) if one.mode == Mode.LIVE]
    with dies_at(platform, "undoing.committed"):
        rollback(platform, may)
    base = platform.lakehouse.snapshot_id(READINGS)
    assert accepted_then(platform, READINGS, base, ["2020-04"]) == {"2020-04": "fix-april"}
    with pytest.raises(EnvironmentRefused, match=f"rollback of run '{may}' has landed in .*, and is not on record"):
        accepted_then(platform, READINGS, base, ["2020-05"])
    assert unrecorded_then(platform, READINGS, base, ["2020-04"]) == []
    load(platform, "more", "2020-05-04")
    with dg.DagsterInstance.ephemeral() as instance:
        lease = leases_of(platform).acquire(READINGS, date(2020, 5, 1), date(2020, 5, 31), may, "rollback")
        said = next_request(platform, instance, WITH_LIVE, "some_job")
        assert isinstance(said, dg.SkipReason)  # it is theirs to say while they live
        assert "waits: " in str(said.skip_message)
        leases_of(platform).lose(lease)
        assert isinstance(next_request(platform, instance, WITH_LIVE, "some_job"), dg.RunRequest)
    assert state(platform, may) is ROLLED_BACK
    assert unrecorded_then(platform, READINGS, base, ["2020-05"]) == []


def test_the_sensor_asks_for_a_publication_that_records_what_has_landed_in_its_own_days(platform: Platform) -> None:
    load(platform, "may", "2020-05-03")
    first = live_ran(platform)
    publish(platform, first)
    load(platform, "more", "2020-05-04")
    second = live_ran(platform)
    with dies_at(platform, "undoing.committed"):
        rollback(platform, first)
    assert waits_for(platform, platform.ledger.run(second)) is None
    assert [one.partition_key for one in publication_requests(platform, WITH_LIVE)] == [second]
    with pytest.raises(PublicationRefused):  # what it would replace is not there any more
        publish(platform, second)
    assert state(platform, first) is ROLLED_BACK
    third = live_ran(platform)
    publish(platform, third)
    assert (third, seen_of(platform, 5)) == (f"{second}.2", {"may-2020-05-03", "more-2020-05-04"})


def adopted(platform: Platform, name: str, **more: Any) -> None:
    put_in_force(platform, yaml.safe_load(SHIPPED.read_text(encoding="utf-8")) | {"name": name} | more)


MISTAKEN = {"sources": [{"table": SOURCE, "purposes": ["billing"]}]}


def test_live_goes_on_with_the_same_snapshot_once_a_mistaken_policy_is_put_right(platform: Platform) -> None:
    load(platform, "may", "2020-05-03")
    with dies_at(platform, "planning.recorded"):
        live.tick(platform, WITH_LIVE)
    (first,) = [one.run_id for one in platform.ledger.runs(target=READINGS) if one.mode == Mode.LIVE]
    adopted(platform, "mistaken", **MISTAKEN)
    with pytest.raises(PlanRefused, match="purpose"):
        live.tick(platform, WITH_LIVE)
    assert state(platform, first) is REJECTED
    with pytest.raises(PlanRefused, match="purpose"):  # and nothing is left of it
        live.tick(platform, WITH_LIVE)
    adopted(platform, "put right")
    by_live = live_ran(platform)
    assert by_live == f"{first}.2"
    publish(platform, by_live)
    assert seen_of(platform, 5) == {"may-2020-05-03"}


def test_a_live_run_that_a_person_has_rejected_has_no_other_for_its_snapshot(platform: Platform) -> None:
    load(platform, "may", "2020-05-03")
    with dies_at(platform, "planning.recorded"):
        live.tick(platform, WITH_LIVE)
    (record,) = [one for one in platform.ledger.runs(target=READINGS) if one.mode == Mode.LIVE]
    platform.ledger.decide(
        record.run_id, approve=False, by="grace", comment="not today", self_approval=False, plan_hash=record.plan_hash
    )
    done = live.tick(platform, WITH_LIVE)
    assert (done.record, done.why.partition(":")[0]) == (None, f"{record.run_id} is REJECTED")


def test_a_tick_that_was_overtaken_does_not_end_what_the_other_has_planned(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(platform, "may", "2020-05-03")
    with dies_at(platform, "planning.recorded"):
        live.tick(platform, WITH_LIVE)
    adopted(platform, "mistaken", **MISTAKEN)
    plan = live.plan_run

    def overtaken(*given: Any) -> RunRecord:
        try:
            return plan(*given)
        except PlanRefused:
            monkeypatch.setattr(live, "plan_run", plan)
            adopted(platform, "put right")
            with dies_at(platform, "planning.recorded"):
                live.tick(platform, WITH_LIVE)
            raise

    monkeypatch.setattr(live, "plan_run", overtaken)
    with pytest.raises(DecisionRefused, match="a decision is about the plan that was looked at"):
        live.tick(platform, WITH_LIVE)
    publish(platform, live_ran(platform))
    assert seen_of(platform, 5) == {"may-2020-05-03"}


def steps(platform: Platform, mode: str = "REPLACE_PARTITIONS", **options: Any) -> list[str]:
    kind = {}
    if mode == "REPLACE_PARTITIONS":
        rollback(platform, "history")
        kind = {"kind": "BACKFILL"}
    else:
        load(platform, "again", "2020-01-05", "2020-02-05", "2020-03-05", "2020-04-05")
    data = manifest_data("series", mode, HISTORY, **options) | kind | {"progressive": {"chunksPerStep": 2}}
    records = plan_series(platform, manifest_from(data))
    for one in records:
        platform.ledger.decide(
            one.run_id, approve=True, by="grace", comment="", self_approval=False, plan_hash=one.plan_hash
        )
        gated(platform, one.run_id)
    return [one.run_id for one in records]


def test_a_step_is_not_published_after_one_that_was_rolled_back_before_it_had_the_lease(platform: Platform) -> None:
    first, second = steps(platform)
    publish(platform, first)

    def reach(name: str) -> None:
        if name == "leasing.taken" and state(platform, first) is PUBLISHED:
            with mock.patch.object(faults, "reach"):
                rollback(platform, first)

    with (
        mock.patch.object(faults, "reach", reach),
        pytest.raises(PublicationDeferred, match=f"run '{first}' is ROLLED_BACK.*(?s:.)*`backfill reinstate {first}`"),
    ):
        publish(platform, second)
    assert (state(platform, first), state(platform, second)) == (ROLLED_BACK, RunState.VALIDATED)


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("REPLACE_PARTITIONS", {}),
        ("CORRECTION_EVENTS", {"corrections": "INSTEAD"}),
        ("CORRECTION_EVENTS", {"corrections": "BESIDE"}),
        ("SHADOW_SWAP", {}),
        ("VERSIONED", {"version": "v2"}),
        ("VERSIONED", {"version": "v2", "acceptance": "LATER"}),
    ],
    ids=str,
)
def test_a_step_waits_until_it_is_on_record_that_the_one_before_it_was_rolled_back(
    platform: Platform, mode: str, options: dict[str, Any]
) -> None:
    first, second = steps(platform, mode, **options)
    publish(platform, first)
    with dies_at(platform, "undoing.committed"):
        rollback(platform, first)
    with pytest.raises(PublicationDeferred, match=f"rollback of run '{first}' has landed"):
        publish(platform, second)
    mend(platform)
    with pytest.raises(PublicationDeferred, match=f"run '{first}' is ROLLED_BACK"):
        publish(platform, second)


def test_a_step_waits_for_no_change_that_is_nothing_to_it(platform: Platform) -> None:
    load(platform, "sept", "2020-09-03")
    published(platform, "september", ("2020-09-01", "2020-09-30"), kind="BACKFILL")
    first, second = steps(platform)
    with dies_at(platform, "undoing.committed"):
        rollback(platform, "september")
    for step in (first, second):
        assert [one.partition_key for one in publication_requests(platform, WITH_LIVE)][:1] == [step]
        publish(platform, step)
    assert (state(platform, first), state(platform, second)) == (PUBLISHED, PUBLISHED)


@pytest.mark.parametrize("waits", ["a step", "live"])
def test_a_snapshot_that_only_says_that_it_is_a_rollback_holds_nobody_up(platform: Platform, waits: str) -> None:
    if waits == "a step":
        taken_back, waiting = steps(platform)
        publish(platform, taken_back)
    else:
        taken_back = published(platform, "april", ("2020-04-01", "2020-04-30"))
        load(platform, "may", "2020-05-03")
        waiting = live_ran(platform)
    with dies_at(platform, "undoing.begun"):  # nothing has landed
        rollback(platform, taken_back)
    table = platform.lakehouse.table(READINGS)
    rows = table.scan().to_arrow().slice(0, 1)
    at = rows.schema.get_field_index("day")
    rows = rows.set_column(at, rows.schema.field(at), arrow.array([date(2020, 11, 3)], rows.schema.field(at).type))
    table.append(rows, snapshot_properties={RUN_PROPERTY: taken_back, ACTION_PROPERTY: "rollback"})
    publish(platform, waiting)
    assert (state(platform, taken_back), state(platform, waiting)) == (PUBLISHED, PUBLISHED)
