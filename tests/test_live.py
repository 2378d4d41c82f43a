"""LIVE beside backfills, on real tables: one run a snapshot, watermarks, gaps and cut lines, freezes, late data."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import dagster as dg
import polars as pl
import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from dagster._grpc.impl import get_external_schedule_execution, get_external_sensor_execution
from support import a_manifest, at_a_tick
from worlds import SPARK, TARGET, World, declare

from backfill_assets import decisions
from backfill_assets.cli.command import cli
from backfill_assets.declarations.checking.products import problems_of
from backfill_assets.declarations.products import Products
from backfill_assets.declarations.schedules import LivePolicy, ReconciliationPolicy
from backfill_assets.declarations.target import TargetTable
from backfill_assets.defs.build import build_definitions
from backfill_assets.defs.launch import initialise_instance, run_publication
from backfill_assets.defs.live_triggers import live_schedule, live_sensor
from backfill_assets.defs.publish import publication_requests, publish_job, publish_sensor
from backfill_assets.defs.staging import backfill_partitions, staging_job, staging_job_name
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning import live_names
from backfill_assets.planning.resolve import plan_run, preview
from backfill_assets.products.enforcement import CASE_SLA_DAILY, PRODUCT, generator, raw
from backfill_assets.products.enforcement.loading import EVENTS, RawLoad
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.requirements import policy_problems
from backfill_assets.publication.undoing import rollback
from backfill_assets.schedules.live import Tick, approve_by_policy, live_manifest, tick
from backfill_assets.staging.executor import require_computable
from manifests.errors import (
    InputRefused,
    PlanRefused,
    Problem,
    PublicationDeferred,
    PublicationRefused,
    SinkRefused,
    TransitionRefused,
)
from manifests.lifecycle import RunState
from manifests.model import Mode
from resources.ledger import ticks
from resources.ledger.facade import RunRecord
from resources.ledger.tables import waits
from resources.ledger.transactions import system_clock as now
from resources.settings import load_settings

FIRST, LAST = date(2011, 1, 1), date(2011, 6, 30)
MARCH, APRIL, MAY = date(2011, 3, 1), date(2011, 4, 1), date(2011, 5, 1)


def arriving(start: date, end: date) -> RawLoad:
    """Return the events of a generated log from `start` to before `end` (UTC): what one day's or month's load brings."""

    def batches() -> Iterator[pl.DataFrame]:
        whole = pl.concat(generator.generate(120, 11, start=FIRST, end=LAST))
        at = pl.col(raw.TIMESTAMP).str.to_datetime(time_zone="UTC", strict=False)
        first, last = (datetime.combine(day, time.min, UTC) for day in (start, end))
        return raw.number_rows([whole.filter((at >= first) & (at < last))])

    return RawLoad(f"arriving-{start}-{end}", f"{start}.csv", batches)


class LiveWorld(World):
    """An installation whose source grows, and whose target may be run live from this uncommitted code."""

    @property
    def target(self) -> TargetTable:
        return self.platform.products.target(TARGET)

    @property
    def snapshot(self) -> int | None:
        return self.platform.lakehouse.snapshot_id("bronze.case_events")

    def arrive(self, start: date, end: date) -> int | None:
        assert load_delivery(self.platform, EVENTS, arriving(start, end), 0.5).new
        return self.snapshot

    def history(self, end: date) -> None:
        """Publish everything from the first day on, as the first backfill does."""
        self.published(self.manifest("history", kind="BOOTSTRAP", target=self.scope(FIRST, end)))

    def live(self) -> RunRecord:
        """Tick, and stage and gate what came of it."""
        record = tick(self.platform, self.target).record
        assert record is not None
        self.stage(record)
        return self.platform.ledger.run(record.run_id)

    def mark(self) -> tuple[date, int] | None:
        found = self.platform.ledger.watermarks.current(TARGET)
        return None if found is None else (found.complete_until, found.source_snapshot_id)

    def live_runs(self) -> list[str]:
        return [record.run_id for record in self.platform.ledger.runs() if record.plan.mode is Mode.LIVE]


@pytest.fixture
def policy() -> LivePolicy:
    assert CASE_SLA_DAILY.live is not None
    return replace(CASE_SLA_DAILY.live, development=True)


@pytest.fixture
def world(tmp_path: Path, policy: LivePolicy, monkeypatch: pytest.MonkeyPatch) -> LiveWorld:
    target = replace(CASE_SLA_DAILY, live=policy)
    declare(monkeypatch, target)
    platform = Platform.of(load_settings(home=tmp_path / "home", spark=SPARK))
    initialise(platform)
    initialise_instance(platform.settings)
    return LiveWorld(platform, tmp_path / "home", FIRST, LAST)


def with_policy(world: LiveWorld, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> TargetTable:
    assert world.target.live is not None
    target = replace(world.target, live=replace(world.target.live, **changes))
    declare(monkeypatch, target)
    return target


def command(world: LiveWorld, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    monkeypatch.setenv("BACKFILL_SPARK", json.dumps(SPARK))
    done = CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


# --- the daily form, the continuous form, and the watermark ---------------------------------------------------------


def test_live_goes_on_from_the_watermark_and_makes_one_run_a_snapshot(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = world.platform.ledger
    first = world.arrive(FIRST, date(2011, 4, 10))
    world.history(date(2011, 3, 31))
    assert world.mark() == (date(2011, 3, 31), first)

    once, twice = tick(world.platform, world.target), tick(world.platform, world.target)
    assert once.record == twice.record
    record = once.record
    assert record is not None
    assert world.live_runs() == [record.run_id] == [f"live-silver-case_sla_daily-{first}"]
    # seven days before the watermark, in whole months, up to the last day that the source knows
    assert (record.plan.publish_range.start, record.plan.publish_range.end) == (MARCH, date(2011, 4, 30))
    assert (record.state, record.plan.mode, record.plan.source_snapshot_id) == (RunState.APPROVED, Mode.LIVE, first)
    (approval,) = ledger.approvals(record.run_id)
    assert (approval.decided_by, approval.self_approved) == ("policy:live-daily", False)

    done = command(world, monkeypatch, "live", TARGET, "--once")
    assert (done["runId"], done["state"]) == (record.run_id, "PUBLISHED")
    assert world.mark() == (date(2011, 4, 9), first)  # not the end of the month: the source does not know it yet
    rows = world.rows()
    by_mode = {mode: set(part["business_date"].dt.month()) for (mode,), part in rows.group_by("processing_mode")}
    assert by_mode == {"BACKFILL": {1, 2}, "LIVE": {3, 4}}

    done = command(world, monkeypatch, "live", TARGET, "--once")
    assert (done["runId"], done["why"]) == (None, f"{TARGET} is complete up to 2011-04-09 with snapshot {first}")
    assert live_manifest(world.platform, world.target) is None

    # the continuous form: nothing without a new snapshot, one run with it, and the rest is the publish sensor's
    staging = build_definitions(world.platform).resolve_job_def(staging_job(world.target).name)
    sensor = live_sensor(world.target, world.target.live, staging_job(world.target))
    with world.dagster() as instance:

        def sense() -> Any:
            return sensor(at_a_tick(dg.build_sensor_context(instance=instance)), platform=world.platform)

        assert isinstance(sense(), dg.SkipReason)
        second = world.arrive(date(2011, 4, 10), date(2011, 5, 20))
        request, again = sense(), sense()
        run_id = f"live-silver-case_sla_daily-{second}"
        assert (request.run_key, again.run_key, world.live_runs()) == (
            f"{run_id}:0",
            f"{run_id}:0",
            [record.run_id, run_id],
        )
        assert instance.has_dynamic_partition(backfill_partitions(world.target).name, run_id)
        assert staging.execute_in_process(instance=instance, tags=request.tags, raise_on_error=False).success
        assert isinstance(sense(), dg.SkipReason)
        assert ledger.run(run_id).state is RunState.VALIDATED
        assert [one.partition_key for one in publication_requests(world.platform, world.target)] == [run_id]
        assert run_publication(world.platform, instance, ledger.run(run_id))
        assert isinstance(sense(), dg.SkipReason)
    assert ledger.run(run_id).plan.publish_range.start == APRIL
    assert world.mark() == (date(2011, 5, 19), second)

    # undone: what counts is the watermark from before, and LIVE does not insist on what a person has undone
    rollback(world.platform, run_id)
    assert world.mark() == (date(2011, 4, 9), first)
    assert tick(world.platform, world.target).record is None
    third = world.arrive(date(2011, 5, 20), date(2011, 5, 25))
    manifest = live_manifest(world.platform, world.target)
    assert manifest is not None
    assert (manifest.source.snapshot_id, manifest.target.publish_range.start) == (third, APRIL)


def test_both_forms_of_live_are_declared_and_off(world: LiveWorld) -> None:
    definitions = build_definitions(world.platform)
    schedule = definitions.resolve_schedule_def("live_silver_case_sla_daily_daily")
    sensor = definitions.resolve_sensor_def("live_silver_case_sla_daily_on_new_source")
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    assert sensor.default_status is dg.DefaultSensorStatus.STOPPED
    assert schedule.description
    assert sensor.description
    assert {schedule.job_name, sensor.job_name} == {"stage_silver_case_sla_daily"}


def test_a_target_where_nothing_is_published_begins_where_its_policy_says(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tick(world.platform, world.target) == Tick(TARGET, None, "bronze.case_events has no snapshot yet")
    world.arrive(FIRST, date(2011, 4, 10))
    assert "names no first day" in tick(world.platform, world.target).why
    assert tick(world.platform, with_policy(world, monkeypatch, begins_on=MAY)).why == (
        f"LIVE owns {TARGET} from 2011-05-01 on, and bronze.case_events knows nothing after 2011-04-09 yet"
    )
    target = with_policy(world, monkeypatch, begins_on=MARCH)
    schedule = live_schedule(target, target.live, staging_job(target))
    with world.dagster() as instance:

        def ask() -> Any:
            context = dg.build_schedule_context(instance, resources={"platform": world.platform})
            said = schedule.evaluate_tick(at_a_tick(context))
            return said.run_requests[0] if said.run_requests else said

        request = ask()
        (run_id,) = world.live_runs()
        assert request.run_key == f"{run_id}:0"
        # while Dagster computes it nothing is asked for; a launch that was lost is repeated, twice
        for launches in (1, 2, 3):
            run = dg.DagsterRun(job_name=staging_job_name(target), run_id=str(uuid4()), tags=request.tags)
            instance.add_run(run.with_status(dg.DagsterRunStatus.STARTED))
            assert ask().skip_message == f"{run_id} is being computed by Dagster run {run.run_id}"
            instance.report_run_canceled(run.with_status(dg.DagsterRunStatus.STARTED))
            assert launches == 3 or ask().run_key == f"{run_id}:{launches}"
        assert "was launched 3 times" in ask().skip_message
    assert request.tags["dagster/asset_partition_range_start"] == f"{run_id}|2011-03"
    assert request.tags["dagster/asset_partition_range_end"] == f"{run_id}|2011-04"
    assert request.tags["backfill/run_id"] == run_id
    assert world.platform.ledger.run(run_id).state is RunState.APPROVED


@pytest.mark.parametrize("again", [False, True], ids=["nothing planned", "one planned"])
def test_who_tries_a_form_of_live_out_plans_and_approves_nothing(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    snapshot = world.arrive(FIRST, date(2011, 4, 10))
    with_policy(world, monkeypatch, begins_on=MARCH)
    run_id = f"live-silver-case_sla_daily-{snapshot}"
    before = [tick(world.platform, world.target).record.run_id] if again else []
    repository = build_definitions(world.platform).get_repository_def()
    told = f"nothing was done: only a tick of Dagster's daemon acts. {f'{run_id} is APPROVED' if again else f'A tick would plan {run_id}.'}"
    with world.dagster() as instance:
        reference, origin = instance.get_ref(), None

        def scheduled(log: list[str] | None) -> Any:
            name, at = "live_silver_case_sla_daily_daily", 1_700_000_000.0
            return get_external_schedule_execution(repository, reference, name, at, "UTC", log)

        def sensed(log: list[str] | None) -> Any:
            name = "live_silver_case_sla_daily_on_new_source"
            return get_external_sensor_execution(repository, origin, reference, name, None, None, None, log, None)

        for evaluate in (scheduled, sensed):
            assert evaluate(None).skip_message.startswith(told)  # a dry run, as the code server executes it
            assert world.live_runs() == before
        (request,) = scheduled(["__repository__", "its name", "7"]).run_requests
        assert (request.tags["backfill/run_id"], world.live_runs()) == (run_id, [run_id])


def test_live_begins_with_a_whole_chunk() -> None:
    assert CASE_SLA_DAILY.live is not None
    assert problems_of([PRODUCT]) == []
    late = replace(CASE_SLA_DAILY, live=replace(CASE_SLA_DAILY.live, begins_on=date(2011, 3, 15)))
    targets = tuple(late if target is CASE_SLA_DAILY else target for target in PRODUCT.targets)
    (problem,) = problems_of([replace(PRODUCT, targets=targets)])
    assert "2011-03-15, in the middle of a MONTH" in problem.what


def test_a_policy_approves_what_it_writes_and_nothing_else(world: LiveWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.arrive(FIRST, date(2011, 4, 10))
    target = with_policy(world, monkeypatch, begins_on=MARCH)
    written = live_manifest(world.platform, target)
    assert written is not None
    greedy = written.model_copy(update={"safety": written.safety.model_copy(update={"requires_manual_publish": True})})
    world.platform.ledger.ticks.record(greedy, now())  # as if the policy had been another one then
    record = plan_run(world.platform, greedy)
    with pytest.raises(TransitionRefused, match="not what the live policy"):
        approve_by_policy(world.platform, target, record)
    assert world.platform.ledger.run(record.run_id).state is RunState.PLANNED
    with pytest.raises(InputRefused, match="declares no live policy"):
        tick(world.platform, replace(target, live=None))


# --- what gives a run the rights of LIVE ------------------------------------------------------------------------------


def test_a_person_who_writes_live_into_a_manifest_is_refused_and_gets_no_sink(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world.arrive(FIRST, date(2011, 4, 10))
    ledger = world.platform.ledger
    claimed = world.manifest(
        "mine",
        kind="LIVE",
        target=world.scope(FIRST, date(2011, 1, 31)),
        safety={"sinks": ["breach_notifications"], "sideEffectsAllowed": True},
    )
    for planned in (preview, plan_run):
        with pytest.raises(PlanRefused, match="has kind LIVE, and no tick has written it") as refused:
            planned(world.platform, claimed)
        assert "`backfill live silver.case_sla_daily`" in str(refused.value)
    assert ledger.find("mine") is None
    assert {one.decision for one in ledger.sink_attempts("mine")} == {"REFUSED"}
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    (tmp_path / "mine.json").write_text(claimed.canonical())
    said = CliRunner().invoke(cli, ["plan", str(tmp_path / "mine.json")])
    assert isinstance(said.exception, PlanRefused)

    # not even past the planner: the ledger takes no such plan, and the sinks ask the ledger
    target = with_policy(world, monkeypatch, begins_on=MARCH)
    record = tick(world.platform, target).record
    assert record is not None
    stolen = record.manifest.model_copy(update={"reason": "a reason of somebody else"})
    plan = replace(record.plan, manifest_hash=stolen.hash)
    with pytest.raises(TransitionRefused, match="no tick has written it"):
        ledger.record_plan(stolen, plan, "eve")
    for manifest in (claimed, stolen):
        greedy = manifest.model_copy(update={"safety": claimed.safety})
        with pytest.raises(SinkRefused, match="no tick of LIVE is on record"):
            world.platform.sinks.open("breach_notifications", mode=Mode.LIVE, manifest=greedy, action="publish")


def test_a_tick_that_was_written_into_the_ledger_by_hand_gives_no_rights(world: LiveWorld) -> None:
    world.arrive(FIRST, date(2011, 4, 10))
    claimed = world.manifest("mine", kind="LIVE", target=world.scope(FIRST, date(2011, 1, 31)), safety={})
    with closing(sqlite3.connect(world.home / "ledger.db")) as connection:
        connection.execute(
            "INSERT INTO live_ticks (run_id, target, manifest_hash, source_snapshot_id, start_day, end_day, at) "
            "VALUES ('mine', ?, ?, 1, '2011-01-01', '2011-01-31', '2024-01-01 00:00:00.000000')",
            (TARGET, claimed.hash),
        )
        connection.commit()
    assert not world.platform.ledger.ticks.has_written(claimed)
    with pytest.raises(PlanRefused, match="has kind LIVE, and no tick has written it"):
        plan_run(world.platform, claimed)


def test_a_tick_that_comes_late_when_its_run_has_another_text_leaves_no_row(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.arrive(FIRST, date(2011, 4, 10))
    record = tick(world.platform, with_policy(world, monkeypatch, begins_on=MARCH)).record
    assert record is not None
    late = record.manifest.model_copy(update={"reason": "what a tick wrote that slept while the watermark moved"})
    world.platform.ledger.ticks.record(late, now())
    assert not world.platform.ledger.ticks.has_written(late)
    assert world.platform.ledger.ticks.has_written(record.manifest)
    with pytest.raises(TransitionRefused, match=record.run_id):
        plan_run(world.platform, late)


def test_a_run_that_an_earlier_version_let_somebody_plan_as_live_is_neither_approved_nor_computed(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.arrive(FIRST, date(2011, 4, 10))
    target, ledger = with_policy(world, monkeypatch, begins_on=MARCH), world.platform.ledger
    with monkeypatch.context() as before:
        before.setattr(ticks, "problems_in", lambda *_: [])
        before.setattr(ticks.Ticks, "problems", lambda *_: [])
        scope = world.scope(FIRST, date(2011, 1, 31))
        claimed = world.manifest("mine", kind="LIVE", requestedBy="eve", safety={}, target=scope)
        record = plan_run(world.platform, claimed)
        written = live_manifest(world.platform, target)
        assert written is not None
        own = decisions.approve_by_policy(
            world.platform, plan_run(world.platform, written).run_id, by="policy", comment=""
        )
    with pytest.raises(TransitionRefused, match="no tick has written it"):
        decisions.approve(world.platform, "mine", by="bob")
    for run_id in ("mine", own.run_id):
        if ledger.run(run_id).state is not RunState.APPROVED:
            ledger.move(run_id, RunState.APPROVED, "test", expected=RunState.PLANNED)
        with pytest.raises(TransitionRefused, match="no tick has written it"):
            require_computable(world.platform, run_id, [], target=target)
        assert "no tick has written it" in str(policy_problems(world.platform, ledger.run(run_id))[0])
    # its own run of that time the tick goes on with: it is what it would write today for that snapshot
    again = tick(world.platform, target).record
    assert again is not None
    assert again.run_id == own.run_id
    require_computable(world.platform, own.run_id, [], target=target)
    assert policy_problems(world.platform, ledger.run(own.run_id)) == []
    assert record.run_id not in [run_id for run_id in world.live_runs() if run_id != "mine"]


def test_names_of_the_platform_are_nobodys(world: LiveWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = world.arrive(FIRST, date(2011, 4, 10))
    scope = {"target": world.scope(FIRST, date(2011, 1, 31)), "kind": "BACKFILL"}
    with pytest.raises(PlanRefused, match="is one of a live run"):
        plan_run(world.platform, world.manifest(f"live-silver-case_sla_daily-{snapshot}", **scope))
    for name in ("live schedule", "Policy:anything"):
        with pytest.raises(PlanRefused, match="is no person"):
            plan_run(world.platform, world.manifest("mine", requestedBy=name, **scope))
    looks = scope | {
        "kind": "RECONCILIATION",
        "safety": {"sinks": []},
    }  # which policies approve, and which no rule of a table is for
    for run_id in (f"live-silver-case_sla_daily-{snapshot}", f"live-silver-case_sla_daily-{snapshot}.2"):
        with pytest.raises(PlanRefused, match="is one of a live run"):
            plan_run(world.platform, world.manifest(run_id, **looks))
    for name in ("live schedule", "policy:live-daily", "policy:reconciliation"):
        with pytest.raises(PlanRefused, match="is no person"):
            plan_run(world.platform, world.manifest("looks", requestedBy=name, **looks))
    with pytest.raises(PlanRefused, match="'Reconciliation  schedule' is no person"):
        plan_run(world.platform, world.manifest("mine", requestedBy="Reconciliation  schedule", **scope))
    plan_run(world.platform, world.manifest("mine", **scope))
    for decide in (decisions.approve, decisions.reject, decisions.review):
        with pytest.raises(TransitionRefused, match="'policy:live-daily' is no person"):
            decide(world.platform, "mine", by="policy:live-daily")


@pytest.mark.parametrize(
    "reconciled", [None, ReconciliationPolicy(), ReconciliationPolicy(requested_by="the night shift")]
)
def test_a_reconciliation_has_the_name_that_its_schedule_asks_under_and_no_other_of_the_platform(
    reconciled: ReconciliationPolicy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = (reconciled or ReconciliationPolicy()).requested_by
    own, other = replace(CASE_SLA_DAILY, reconciled=reconciled), replace(CASE_SLA_DAILY, name="silver.other", live=None)
    other = replace(other, reconciled=ReconciliationPolicy(requested_by="the other's schedule"))
    platform = SimpleNamespace(products=Products((replace(PRODUCT, targets=(own, other)),)))

    def claimed(kind: str, by: str, run_id: str = "mine") -> list[Problem]:
        return live_names.claims(platform, a_manifest(runId=run_id, kind=kind, requestedBy=by))

    assert claimed("RECONCILIATION", name) == claimed("RECONCILIATION", "ada") == claimed("BACKFILL", "ada") == []
    assert claimed("BACKFILL", name)
    assert claimed("RECONCILIATION", "the other's schedule")
    assert claimed("RECONCILIATION", "live schedule")
    for kind in ("BACKFILL", "RECONCILIATION"):
        assert claimed(kind, "ada", "live-silver-other-17"), "LIVE may be declared for it tomorrow"
        (problem,) = claimed(kind, "ada", "live")
        assert "consumers of topics keep what LIVE has told them under this name" in str(problem)
        assert claimed(kind, "ada", "live-ly") == []


# --- cut lines and gaps ---------------------------------------------------------------------------------------------


def test_gaps_and_crossed_cut_lines_are_refused_on_what_the_ledger_holds(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.arrive(FIRST, date(2011, 6, 20))
    world.history(date(2011, 1, 31))
    target = with_policy(world, monkeypatch, begins_on=MAY)
    with pytest.raises(PlanRefused, match="no run would cover the days 2011-02-01 to 2011-04-30"):
        tick(world.platform, target)
    assert world.live_runs() == []

    def before_live(start: date, end: date, **changes: Any) -> Any:
        return preview(world.platform, world.manifest(target=world.scope(start, end), cutLine=MAY, **changes))

    with pytest.raises(PlanRefused, match=re.escape("31 day(s) beyond the cut line 2011-05-01")):
        before_live(date(2011, 2, 1), date(2011, 5, 31))
    with pytest.raises(PlanRefused, match="no run would cover the days 2011-02-01 to 2011-02-28"):
        before_live(MARCH, date(2011, 4, 30))
    with pytest.raises(PlanRefused, match="no run would cover the days 2011-04-01 to 2011-04-30"):
        before_live(date(2011, 2, 1), date(2011, 3, 31))
    assert before_live(date(2011, 2, 1), date(2011, 4, 30)).publish_range.end == date(2011, 4, 30)
    assert before_live(date(2011, 2, 1), date(2011, 5, 31), overlapDays=31).publish_range.end == date(2011, 5, 31)


# --- freezes --------------------------------------------------------------------------------------------------------


def test_live_waits_for_a_freeze_and_takes_its_data_in_afterwards(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = world.platform.ledger
    world.arrive(FIRST, date(2011, 5, 5))
    world.history(date(2011, 4, 30))
    frozen = world.approved(world.manifest("frozen", target=world.scope(APRIL, date(2011, 4, 30)), freeze={"hours": 5}))
    live = world.live()
    assert live.state is RunState.VALIDATED
    before = world.snapshots()

    assert list(publication_requests(world.platform, world.target)) == []
    with pytest.raises(PublicationDeferred, match=re.escape("frozen by frozen (2011-04-01 to 2011-04-30")):
        publish(world.platform, live.run_id)
    assert (ledger.run(live.run_id).state, world.snapshots()) == (RunState.VALIDATED, before)
    assert ledger.publications(live.run_id) == []
    with ledger.engine.connect() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(waits)).scalar_one() == 1  # asked twice
    # it is listed: for people, for scripts, and by the sensor
    shown = {run["runId"]: run["waitsFor"] for run in command(world, monkeypatch, "status")}
    assert shown["frozen"] is None
    assert "frozen by frozen (2011-04-01 to 2011-04-30" in shown[live.run_id]
    assert command(world, monkeypatch, "status", live.run_id)["waitsFor"] == shown[live.run_id]
    done = command(world, monkeypatch, "live", TARGET, "--once")
    assert (done["state"], done["waitsFor"]) == ("VALIDATED", shown[live.run_id])
    sensor = publish_sensor(world.target, publish_job(world.target))
    (skipped,) = sensor(dg.build_sensor_context(), platform=world.platform)
    assert skipped.skip_message == f"{live.run_id} waits: {shown[live.run_id]}"

    # the frozen run is published: the wait is over, but the live run's base is no more, so another stands in for it
    world.stage(frozen)
    publish(world.platform, "frozen")
    assert ledger.freezes.waiting() == {}
    (request,) = publication_requests(world.platform, world.target)
    assert request.run_key == f"{live.run_id}:0:1"
    with pytest.raises(PublicationRefused, match="no longer holds the plan's files"):
        publish(world.platform, live.run_id)
    again = world.live()
    assert again.run_id == f"{live.run_id}.2"
    publish(world.platform, again.run_id)
    assert world.mark() == (date(2011, 5, 4), world.snapshot)
    assert tick(world.platform, world.target).record is None


# --- late data ------------------------------------------------------------------------------------------------------


def test_what_live_published_while_a_backfill_ran_is_neither_lost_nor_overwritten_by_older_knowledge(
    world: LiveWorld,
) -> None:
    ledger = world.platform.ledger
    older = world.arrive(FIRST, date(2011, 4, 20))
    world.history(date(2011, 4, 30))
    assert world.mark() == (date(2011, 4, 19), older)
    backfill = world.validated(world.manifest("backfill", target=world.scope(MARCH, date(2011, 4, 30))))

    newer = world.arrive(date(2011, 4, 20), date(2011, 5, 10))
    # an event of January as well, months late: live says that it does not cover it
    assert load_delivery(world.platform, EVENTS, late_event(), 0.0).new
    live = world.live()
    assert "Rows of days back to 2011-01-15 have come" in live.manifest.reason
    publish(world.platform, live.run_id)
    rows = world.rows()
    with pytest.raises(PublicationRefused, match="no longer holds the plan's files"):
        publish(world.platform, backfill.run_id)
    assert ledger.run("backfill").state is RunState.REJECTED
    assert world.rows().equals(rows)
    assert set(rows.filter(pl.col("business_date") >= APRIL)["run_id"]) == {live.run_id}
    assert rows["business_date"].max() > date(2011, 4, 19) + timedelta(days=1)

    # nor by a plan on the older snapshot, made afterwards; on the current one it may be planned
    stale = {"table": "bronze.case_events", "snapshotId": older}
    april = world.scope(APRIL, date(2011, 4, 30))
    with pytest.raises(PlanRefused, match="older knowledge never replaces newer"):
        preview(world.platform, world.manifest("stale", target=april, source=stale))
    assert preview(world.platform, world.manifest("fresh", target=april)).source_snapshot_id == world.snapshot
    behind = live.manifest.model_copy(update={"source": live.manifest.source.model_copy(update={"snapshot_id": newer})})
    ledger.ticks.record(behind, now())
    with pytest.raises(PlanRefused, match="older knowledge never replaces newer"):
        preview(world.platform, behind)


def late_event() -> RawLoad:
    def batches() -> Iterator[pl.DataFrame]:
        whole = pl.concat(generator.generate(1, 5, start=date(2011, 1, 15), end=date(2011, 1, 15)))
        return raw.number_rows([whole.head(1)])

    return RawLoad("late-event", "late.csv", batches)
