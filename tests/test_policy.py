"""Decisions under a policy: roles, reviews, age, break-glass, and old data at planning; real ledger and tables, no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
import sqlalchemy as sa
import yaml
from click.testing import CliRunner
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, NestedField, StringType
from support import moved, pass_all, put_in_force, stage_all
from worlds import World, killed_at, make_world

from backfill_assets import decisions
from backfill_assets.audit.verification import verify
from backfill_assets.cli.command import cli
from backfill_assets.defs.decision_jobs import BREAK_GLASS_TAG, approve_run, review_run
from backfill_assets.defs.launch import initialise_instance, instance_at
from backfill_assets.defs.launched_by import USER_TAG, actor_of, sensor
from backfill_assets.defs.publish import publication_requests
from backfill_assets.evidence.bundle_contents import bundle_files
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.planning.resolve import plan_run, preview
from backfill_assets.publication import publisher as publication
from backfill_assets.publication.publisher import publish as publish_body
from backfill_assets.publication.requirements import policy_problems
from backfill_assets.schedules import live
from backfill_assets.staging.executor import require_computable
from benchmarks import small_table
from manifests.data_terms import hash_of_subjects
from manifests.errors import (
    EnvironmentRefused,
    InputRefused,
    PlanRefused,
    PublicationDeferred,
    PublicationRefused,
    TransitionRefused,
)
from manifests.lifecycle import RunState
from manifests.model import Kind, OnConflict
from manifests.plan import plan_from_json
from manifests.policy import Role
from resources.actors import SOMEBODY, Actor, Channel, Proof, acting
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.ledger import approvals
from resources.ledger.facade import Ledger, RunRecord
from resources.ledger.tables import policy_decisions, runs
from resources.ledger.transactions import LedgerEngine, system_clock
from resources.policies import hashes_of
from resources.settings import load_settings

FOUR_EYES = {"name": "four eyes", "rules": [{}]}
TABLE, SOURCE = "silver.case_sla_daily", "bronze.case_events"


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("policy") / "home", cases=40)


@pytest.fixture
def world(installation: World) -> Iterator[World]:
    """The shared installation; after the test its policy is the shipped one again."""
    yield installation
    put_in_force(installation.platform, FOUR_EYES)
    for name in ("policy.yaml", "erased.csv"):
        (installation.home / name).unlink(missing_ok=True)


def rules(world: World, *said: dict[str, Any], **fields: Any) -> None:
    """Put a policy in force."""
    text = {"name": "test", "rules": [dict(rule) for rule in said], **fields}
    put_in_force(world.platform, text)


def planned(world: World, **changes: Any) -> RunRecord:
    return plan_run(world.platform, world.manifest(**changes))


def validated(world: World, record: RunRecord) -> RunRecord:
    """Take an approved run to VALIDATED, with files that are only on record."""
    ledger = world.platform.ledger
    pass_all(ledger, record, stage_all(ledger, record))
    moved(ledger, record.run_id, RunState.VALIDATED, "test")
    return ledger.run(record.run_id)


def decided(world: World, run_id: str) -> list[tuple[str, str, str, bool]]:
    found = world.platform.ledger.decisions(run_id)
    return [(one.decision, one.role, one.by, one.void) for one in found]


# --- roles ------------------------------------------------------------------------------------------------------------


def test_without_a_policy_of_ones_own_four_eyes_hold_and_nothing_else(world: World):
    run_id = planned(world).run_id
    with pytest.raises(
        TransitionRefused, match=r"^the decision is refused\n.*\n.*the approver differs from the requester"
    ):
        decisions.approve(world.platform, run_id, by="Ana ")
    assert decisions.approve(world.platform, run_id, by="anybody").state is RunState.APPROVED


def test_only_approvers_of_the_policy_approve_and_reject(world: World):
    rules(world, {"approvers": ["group:owners"]}, groups={"owners": ["bob"]})
    run_id = planned(world).run_id
    with pytest.raises(TransitionRefused, match=r"^the decision is refused\n.*\n.*names group:owners"):
        decisions.approve(world.platform, run_id, by="eve")
    with pytest.raises(TransitionRefused, match="'eve' is no approver"):
        decisions.reject(world.platform, run_id, by="eve")
    for group in ("group:owners", "GROUP:owners", "team:owners"):
        for decide in (decisions.approve, decisions.reject, decisions.review):
            with pytest.raises(TransitionRefused, match=f"'{group}' is no person"):
                decide(world.platform, run_id, by=group)
    assert decisions.approve(world.platform, run_id, by="bob").state is RunState.APPROVED
    with pytest.raises(TransitionRefused, match=r"^refused by the run's lifecycle\n"):
        decisions.approve(world.platform, run_id, by="bob")


def test_a_group_requests_and_publishes_nothing(world: World):
    with pytest.raises(PlanRefused, match="'group:owners' is no person"):
        planned(world, requestedBy="group:owners")
    record = validated(world, decisions.approve(world.platform, planned(world).run_id, by="grace"))
    with pytest.raises(TransitionRefused, match="'team:owners' is no person"):
        decisions.publish(world.platform, record.run_id, by="team:owners")


def test_reviews_of_this_very_plan_come_first_and_not_by_requester_or_approver(world: World):
    rules(world, {"reviewsRequired": 2, "reviewers": ["bob", "cem", "ana", "dan"]})
    run_id = planned(world).run_id
    for by, refused in (("eve", "is no reviewer"), ("ana", "a reviewer differs from the requester")):
        with pytest.raises(TransitionRefused, match=refused):
            decisions.review(world.platform, run_id, by=by)
    decisions.review(world.platform, run_id, by="bob", comment="fine")
    decisions.review(world.platform, run_id, by="cem")
    with pytest.raises(TransitionRefused, match=r"has 1 review\(s\) by others than 'bob'"):
        decisions.approve(world.platform, run_id, by="bob")

    again = world.manifest(run_id, limits={"maxChunksPerJob": 7})  # another text, so another plan
    assert plan_run(world.platform, again).state is RunState.PLANNED
    assert [void for *_, void in decided(world, run_id)] == [True, True]
    with pytest.raises(TransitionRefused, match=r"has 0 review\(s\)"):
        decisions.approve(world.platform, run_id, by="eve")
    for reviewer in ("bob", "dan"):
        decisions.review(world.platform, run_id, by=reviewer)
    decisions.approve(world.platform, run_id, by="eve")
    assert decided(world, run_id)[-1] == ("APPROVED", "approver", "eve", False)


def test_the_plan_says_what_nobody_could_ever_do_about_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    file = tmp_path / "run.json"
    file.write_text(world.manifest("nobody-can").canonical())

    def said() -> str:
        done = CliRunner().invoke(cli, ["plan", str(file)], catch_exceptions=False)
        return " ".join(done.stdout.split())

    rules(world, {"approvers": ["group:risk", "Ana"]}, groups={"risk": []})
    assert (
        "nobody-can: nobody can approve it: that is for group:risk, Ana, and only the requester is one of them; have the policy changed"
    ) in said()
    rules(world, {"approvers": ["group:risk"], "breakGlass": ["olga"], "owners": ["group:risk"]}, groups={"risk": []})
    assert (
        "nobody-can: nobody can approve it without breaking the glass: that is for group:risk, and the policy 'test' has no person there"
    ) in said()
    assert "nobody-can: nobody can accept what a gate may ask an owner about: that is for group:risk, and" in said()
    rules(world, {"approvers": ["group:risk"], "owners": ["group:risk"]}, groups={"risk": ["ana", "bo"]})
    assert "nobody can " not in said()
    rules(world, {"approvers": ["bo"]}, groups={"risk": ["ana", "bo"]})  # and not the team that the table declares
    assert "nobody can accept what a gate may ask an owner about: that is for team:" in said()
    rules(world, {"approvers": ["bo"]})  # a policy that knows of no team at all
    assert "nobody can " not in said()


def test_the_plan_says_that_too_few_could_review_it_or_that_who_alone_approves_it_alone_publishes_it(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    file = tmp_path / "run.json"

    def said(run_id: str, **changes: Any) -> str:
        file.write_text(world.manifest(run_id, **changes).canonical())
        done = CliRunner().invoke(cli, ["plan", str(file)], catch_exceptions=False)
        return " ".join(done.stdout.split())

    rules(world, {"reviewsRequired": 2, "reviewers": ["bo", "cem", "ana"], "approvers": ["cem"]})
    assert (
        "nobody can have 2 people review its plan: that is for bo, cem, ana, and without its requester and its only approver 1 of them is left"
    ) in said("too-few")
    rules(world, {"reviewsRequired": 2, "reviewers": ["bo", "cem", "ana"], "approvers": ["cem", "bo", "dan"]})
    assert "nobody can " not in said("enough")
    alone = {"approvers": ["Bo", "ana"], "publishers": ["bo"], "publisherDiffersFromApprover": True}
    rules(world, alone)
    assert (
        "nobody can publish it: that is for bo, and without its requester and its only approver none of them are left"
    ) in said("alone")
    assert "nobody can " not in said("dry", mode="DRY_RUN", safety={"sinks": []})
    rules(world, alone | {"breakGlass": ["olga"]})
    assert "nobody can " not in said("by-glass")
    rules(world, {"publishers": ["group:nobody"]}, groups={"nobody": [], "team": ["bo"]})
    assert "nobody can publish it" in said("to-publish")
    assert "nobody can publish it" not in said("dry-as-well", mode="DRY_RUN", safety={"sinks": []})


def test_a_decision_names_the_plan_that_was_looked_at(world: World):
    record = planned(world)
    for seen in ("f" * 64, record.plan_hash[:8]):
        with pytest.raises(TransitionRefused, match="a decision is about the plan that was looked at"):
            decisions.approve(world.platform, record.run_id, by="bob", plan_hash=seen)
        with pytest.raises(TransitionRefused, match="a decision is about the plan that was looked at"):
            decisions.review(world.platform, record.run_id, by="bob", plan_hash=seen)
    decisions.approve(world.platform, record.run_id, by="bob", plan_hash=record.plan_hash[:12])


def test_a_plan_made_under_another_policy_is_planned_again_before_it_is_approved(world: World):
    run_id = planned(world).run_id
    rules(world, {"approvers": ["bob"]})
    with pytest.raises(TransitionRefused, match="was planned under another policy"):
        decisions.approve(world.platform, run_id, by="bob")
    record = plan_run(world.platform, world.manifest(run_id))
    assert record.plan.policy == world.platform.policy.hash
    assert world.platform.ledger.policies.text(record.plan.policy) is not None
    decisions.approve(world.platform, run_id, by="bob")


def test_a_requester_whom_the_policy_does_not_name_plans_nothing(world: World):
    rules(world, {"requesters": ["ada"]})
    manifest = world.manifest()
    with pytest.raises(PlanRefused, match="'ana' is no requester"):
        plan_run(world.platform, manifest)
    assert world.platform.ledger.find(manifest.run_id) is None


def test_named_publishers_publish_by_hand_and_not_as_approvers_where_the_policy_says_so(world: World):
    rules(world, {"publishers": ["ops", "bob"], "publisherDiffersFromApprover": True})
    record = planned(world)
    decisions.approve(world.platform, record.run_id, by="bob")
    record = validated(world, record)
    assert record.plan.manual_publish
    requests = publication_requests(world.platform, world.platform.products.target(TABLE))
    assert record.run_id not in [one.partition_key for one in requests]
    (problem,) = policy_problems(world.platform, record)
    assert "no publisher has decided" in problem.what
    for by, refused in (("eve", "is no publisher"), ("bob", "approved run"), (None, "is no publisher")):
        with pytest.raises(TransitionRefused, match=refused):
            decisions.publish(world.platform, record.run_id, by=by)
    for by, left in (("ana", 1), ("ops", 0)):  # ana's was recorded before the policy named publishers
        world.platform.ledger.record_decision(
            record.run_id,
            approvals.PUBLISH,
            role=Role.PUBLISHER,
            by=by,
            comment="",
            plan_hash=record.plan_hash,
            states={RunState.VALIDATED},
        )
        assert len(policy_problems(world.platform, record)) == left
    assert decided(world, record.run_id)[-1] == ("PUBLISH", "publisher", "ops", False)


def test_a_rollback_and_the_way_back_are_decisions_of_publishers_and_on_record(tmp_path: Path):
    home = tmp_path / "home"
    with small_table.declared():
        platform = small_table.opened(home)
        small_table.initialise(platform)
        for run_id, scope in (("first", small_table.HISTORY), ("second", ("2020-03-01", "2020-04-30"))):
            small_table.planned(platform, small_table.manifest(run_id, "REPLACE_PARTITIONS", scope))
            assert small_table.staged(platform, run_id).state is RunState.VALIDATED
            decisions.publish(platform, run_id, by="ops")
            if run_id == "first":
                said = {"publishers": ["ops", "grace"], "publisherDiffersFromApprover": True, "breakGlass": ["eve"]}
                put_in_force(platform, {"name": "test", "rules": [said]})
        with pytest.raises(TransitionRefused, match="'eve' is no publisher"):
            decisions.rollback(platform, "second", by="eve")
        assert platform.ledger.run("second").state is RunState.PUBLISHED
        with pytest.raises(PublicationRefused, match="held by later run"):
            decisions.rollback(
                platform, "first", by="ops"
            )  # it is no longer shown, and that it was asked for is on record
        assert decisions.rollback(platform, "second", by="grace", comment="wrong after all").new  # who approved it may
        assert not decisions.rollback(platform, "second", by="grace").new
        with pytest.raises(TransitionRefused, match="'grace' approved run"):
            decisions.reinstate(platform, "second", by="grace")
        assert decisions.reinstate(platform, "second", by="eve", break_glass="nobody else is awake").new
        found = [
            (one.run_id, one.decision, one.role, one.by, one.comment, one.break_glass)
            for one in platform.ledger.decisions()
            if one.decision not in {"APPROVED", "PUBLISH"}
        ]
        assert found == [
            ("first", "ROLLBACK", "publisher", "ops", "", ""),
            ("second", "ROLLBACK", "publisher", "grace", "wrong after all", ""),
            ("second", "REINSTATE", "publisher", "eve", "", "nobody else is awake"),
        ]
        assert verify(platform, data=True).everything == []
        small_table.closed(platform)


def test_an_interrupted_undoing_lets_nobody_pass_and_a_version_is_accepted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "home"
    with small_table.declared():
        platform = small_table.opened(home)
        small_table.initialise(platform)
        put_in_force(platform, {"name": "test", "rules": [{"publishers": ["ops"]}]})
        small_table.planned(platform, small_table.manifest("one", "REPLACE_PARTITIONS", small_table.HISTORY))
        small_table.staged(platform, "one")
        decisions.publish(platform, "one", by="ops")
        decisions.rollback(platform, "one", by="ops")
        with killed_at("undoing.committed", monkeypatch):
            decisions.reinstate(platform, "one", by="ops")
        # readers see its rows again, and the ledger does not know it yet
        assert platform.ledger.run("one").state is RunState.ROLLED_BACK
        with pytest.raises(TransitionRefused, match="'eve' is no publisher"):
            decisions.rollback(platform, "one", by="eve")
        assert platform.ledger.run("one").state is RunState.PUBLISHED
        version = {"version": "v2", "acceptance": "LATER"}
        small_table.planned(platform, small_table.manifest("two", "VERSIONED", small_table.HISTORY, **version))
        small_table.staged(platform, "two")
        decisions.publish(platform, "two", by="ops")
        with pytest.raises(TransitionRefused, match="'eve' is no publisher"):
            decisions.accept(platform, "two", by="eve")
        assert decisions.accept(platform, "two", by="ops").new
        assert not decisions.accept(platform, "two", by="eve").new  # it is accepted: nothing is decided
        with pytest.raises(PublicationRefused, match="acceptance LATER is accepted"):
            decisions.accept(platform, "one", by="ops")
        said = [(one.run_id, one.decision, one.by) for one in platform.ledger.decisions()]
        assert [one for one in said if one[1] not in {"APPROVED", "PUBLISH"}] == [
            ("one", "ROLLBACK", "ops"),
            ("one", "REINSTATE", "ops"),
            ("two", "ACCEPT", "ops"),
        ]
        # neither the evidence nor a sink was told of what was interrupted: it is named, and the doctor tells them
        (problem,) = verify(platform).everything
        assert "is a reinstate that no record tells of" in problem.what
        assert [(one.kind, one.where) for one in examine(platform)] == [("evidence-not-told", "one")]
        mend(platform)
        assert examine(platform) == []
        assert verify(platform).everything == []
        small_table.closed(platform)


def test_glass_that_is_broken_in_vain_is_loud_and_what_is_done_already_breaks_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "home"
    monkeypatch.setenv("BACKFILL_HOME", str(home))
    reason = ["--by", "eve", "--break-glass", "nobody else is awake"]
    with small_table.declared():
        platform = small_table.opened(home)
        small_table.initialise(platform)
        initialise_instance(platform.settings)
        for run_id, scope in (("first", small_table.HISTORY), ("second", ("2020-03-01", "2020-04-30"))):
            small_table.planned(platform, small_table.manifest(run_id, "REPLACE_PARTITIONS", scope))
            small_table.staged(platform, run_id)
            decisions.publish(platform, run_id, by="ops")
        put_in_force(platform, {"name": "test", "rules": [{"breakGlass": ["eve"]}]})
        refused = CliRunner().invoke(cli, ["rollback", "first", *reason])
        assert refused.exit_code != 0
        assert "BREAK-GLASS" in refused.output  # on record, and so it is said, though the table refused it
        assert "BREAK-GLASS" not in CliRunner().invoke(cli, ["publish", "second", *reason]).output
        assert [one.by for one in platform.ledger.decisions(break_glass=True)] == ["eve"]
        with instance_at(platform.settings) as instance:
            key = dg.AssetKey(
                [*small_table.READINGS.split(".")[:-1], f"{small_table.READINGS.split('.')[-1]}_published"]
            )
            assert len(instance.fetch_observations(key, limit=5).records) == 1
        small_table.closed(platform)


def test_live_is_held_to_a_rule_only_where_that_names_it(world: World):
    def approve(run_id: str) -> RunRecord:
        manifest = world.manifest(run_id, kind="LIVE", requestedBy="live schedule", safety={})
        world.platform.ledger.ticks.record(manifest, system_clock())
        record = plan_run(world.platform, manifest)
        return decisions.approve_by_policy(world.platform, record.run_id, by="policy:live-daily", comment="")

    rules(world, {"approvers": ["bob"]})
    assert approve("live-one").state is RunState.APPROVED
    rules(world, {"kinds": ["LIVE"], "approvers": ["bob"]})
    with pytest.raises(TransitionRefused, match="'policy:live-daily' is no approver"):
        approve("live-two")
    assert live.policy_of(world.platform.products.target(TABLE)).approved_by == "policy:live-daily"


def test_the_same_change_is_held_to_the_same_rule_whatever_kind_it_is_given(tmp_path: Path):
    home = tmp_path / "home"
    with small_table.declared():
        platform = small_table.opened(home)
        small_table.initialise(platform)
        first = small_table.manifest("first", "REPLACE_PARTITIONS", small_table.HISTORY)
        small_table.planned(platform, first.model_copy(update={"kind": Kind.BOOTSTRAP}))
        small_table.staged(platform, "first")
        decisions.publish(platform, "first", by="ops")
        put_in_force(platform, {"name": "test", "rules": [{"kinds": ["RESTATEMENT"], "approvers": ["bob"]}]})

        def asked(kind: Kind, scope: tuple[str, str] = small_table.SCOPE) -> RunRecord:
            text = small_table.manifest(f"as-{kind.lower()}", "REPLACE_PARTITIONS", scope)
            return plan_run(platform, text.model_copy(update={"kind": kind}))

        for kind in (Kind.BACKFILL, Kind.BOOTSTRAP, Kind.MIGRATION):
            with pytest.raises(PlanRefused, match="this is a RESTATEMENT: state `kind: RESTATEMENT`"):
                asked(kind)
            assert platform.ledger.find(f"as-{kind.lower()}") is None
        # what may be called otherwise is held to the strictest rule of the table
        for kind in (Kind.RESTATEMENT, Kind.REPROCESSING, Kind.REPAIR, Kind.REPLAY):
            record = asked(kind)
            with pytest.raises(TransitionRefused, match="'eve' is no approver"):
                decisions.approve(platform, record.run_id, by="eve")
        with pytest.raises(PlanRefused, match="this is a BACKFILL"):
            asked(Kind.REPAIR, small_table.EMPTY)
        small_table.closed(platform)


def test_a_first_output_that_somebody_else_was_faster_with_is_not_planned_anew_over_it(tmp_path: Path):
    with small_table.declared():
        platform = small_table.opened(tmp_path / "home")
        small_table.initialise(platform)
        for run_id in ("slow", "fast"):
            text = small_table.manifest(run_id, "REPLACE_PARTITIONS", small_table.HISTORY)
            terms = text.conflict.model_copy(update={"on_conflict": OnConflict.REPLAN})
            small_table.planned(platform, text.model_copy(update={"kind": Kind.BACKFILL, "conflict": terms}))
            small_table.staged(platform, run_id)
        decisions.publish(platform, "fast", by="ops")
        with pytest.raises(PublicationRefused, match="kind BACKFILL never replaces rows"):
            decisions.publish(platform, "slow", by="ops")
        assert platform.ledger.run("slow").state is RunState.REJECTED
        small_table.closed(platform)


def test_a_publishers_decision_is_about_the_rows_that_she_could_look_at(tmp_path: Path):
    with small_table.declared():
        platform = small_table.opened(tmp_path / "home")
        small_table.initialise(platform)
        put_in_force(platform, {"name": "test", "rules": [{"publishers": ["olga"]}]})
        for run_id in ("slow", "fast"):
            text = small_table.manifest(run_id, "REPLACE_PARTITIONS", ("2020-02-01", "2020-02-29"))
            terms = text.conflict.model_copy(update={"on_conflict": OnConflict.REPLAN})
            small_table.planned(platform, text.model_copy(update={"conflict": terms}))
            small_table.staged(platform, run_id)
        decisions.publish(platform, "fast", by="olga")
        with pytest.raises(PublicationDeferred, match="planned anew"):
            decisions.publish(platform, "slow", by="olga", comment="looked at")
        small_table.staged(platform, "slow")  # other rows than she has seen
        target = platform.products.target(platform.ledger.run("slow").target)
        assert [one.partition_key for one in publication_requests(platform, target)] == []
        with pytest.raises(PublicationRefused, match="no publisher has decided to publish 'slow'"):
            publication.publish(platform, "slow")
        (before,) = (one for one in platform.ledger.decisions("slow") if one.decision == "PUBLISH")
        assert before.void
        decisions.publish(platform, "slow", by="olga", comment="looked at")
        (before, anew) = (one for one in platform.ledger.decisions("slow") if one.decision == "PUBLISH")
        assert (before.void, anew.void) == (True, False)
        assert platform.ledger.run("slow").state is RunState.PUBLISHED
        small_table.closed(platform)


def test_a_publisher_who_decides_by_a_clock_that_is_ahead_has_not_decided_about_what_is_planned_anew_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with small_table.declared():
        platform = small_table.opened(tmp_path / "home")
        small_table.initialise(platform)
        text = small_table.manifest("run", "REPLACE_PARTITIONS", ("2020-02-01", "2020-02-29"))
        terms = text.conflict.model_copy(update={"on_conflict": OnConflict.REPLAN})
        small_table.planned(platform, text.model_copy(update={"conflict": terms}))
        small_table.staged(platform, "run")
        record = platform.ledger.run("run")
        with monkeypatch.context() as ahead:
            ahead.setattr(LedgerEngine, "clock", staticmethod(lambda: system_clock() + timedelta(minutes=5)))
            platform.ledger.record_decision(
                "run",
                approvals.PUBLISH,
                role=Role.PUBLISHER,
                by="olga",
                comment="",
                plan_hash=record.plan_hash,
                states={RunState.VALIDATED},
            )
        assert platform.ledger.publication_decided(record) is not None
        platform.ledger.replan("run", record.plan, ["2020-02"], actor="ops", reason="a conflict")
        assert platform.ledger.publication_decided(record) is None
        small_table.closed(platform)


# --- which policy ----------------------------------------------------------------------------------------------------


def test_a_policy_of_ones_own_approves_nothing(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    rules(world, {"approvers": ["bob"]})
    run_id = planned(world).run_id
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump({"name": "own", "rules": [{"fourEyes": False}]}))
    (world.home / "policy.yaml").write_text(own.read_text())
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    monkeypatch.setenv("BACKFILL_POLICY_FILE", str(own))
    monkeypatch.setenv("BACKFILL_SELF_APPROVAL", "true")

    def say(*words: str) -> Any:
        return CliRunner().invoke(cli, list(words))

    mine = Platform.of(load_settings(home=world.home))
    for by in ("ana", "eve"):
        assert "is no approver" in str(say("approve", run_id, "--by", by).exception)
    with pytest.raises(TransitionRefused, match="'ana' is no approver"):
        decisions.approve(mine, run_id, by="ana")
    shown = yaml.safe_load(say("policy", "--json").stdout)
    assert shown["policy"]["rules"] == [{"approvers": ["bob"]}]
    assert f"{own} says " in shown["fileDiffers"]
    assert "not in force" in say("policy").output
    assert any(one.kind == "policy-file" and str(own) in one.what for one in examine(mine))
    # proposed, it changes nothing; adopted by somebody else, it does
    assert "stays in force" in say("policy", "propose", "--by", "ana").output
    assert "is no approver" in str(say("approve", run_id, "--by", "ana").exception)
    (proposal,) = [one for one in yaml.safe_load(say("policy", "history", "--json").stdout) if one["name"] == "own"]
    assert "differs from who proposes" in str(say("policy", "adopt", proposal["policy"], "--by", "ana").exception)
    said = say("policy", "adopt", proposal["policy"][:12], "--by", "bob", "--from", proposal["origin"]).output
    assert f", from {proposal['origin']}, is in force, adopted by bob" in said
    assert world.platform.policy.name == "own"
    assert "own" in say("policy", "history").output


def test_what_is_on_record_says_which_policy_a_decision_was_held_against(world: World):
    rules(world, {"approvers": ["bob"]})
    run_id = planned(world).run_id
    decisions.review(world.platform, run_id, by="eve")
    decisions.approve(world.platform, run_id, by="bob")
    held_against = world.platform.policy.hash
    assert {one.policy_hash for one in world.platform.ledger.decisions(run_id)} == {held_against}
    assert {
        one["policy_hash"] for one in bundle_files(world.platform, world.platform.ledger.run(run_id))["approvals.json"]
    } == {held_against}
    text = world.platform.ledger.policies.text(held_against)
    assert text is not None
    assert text["rules"] == [{"approvers": ["bob"]}]


@pytest.mark.parametrize("decision", ["approve", "review", "reject"])
def test_a_policy_that_is_adopted_while_somebody_decides_holds_for_that_decision(
    world: World, monkeypatch: pytest.MonkeyPatch, decision: str
):
    rules(world, {"approvers": ["bob"]})
    run_id = planned(world).run_id
    real = decisions.role_problems

    def overtaken(*arguments: Any) -> Any:
        found = real(*arguments)
        monkeypatch.setattr(decisions, "role_problems", real)
        rules(world, {"approvers": ["olga"], "reviewsRequired": 2})
        return found

    monkeypatch.setattr(decisions, "role_problems", overtaken)
    with pytest.raises(TransitionRefused, match="while this was decided by") as refused:
        getattr(decisions, decision)(world.platform, run_id, by="bob")
    assert "give the command again" in str(refused.value)
    assert world.platform.ledger.run(run_id).state is RunState.PLANNED
    assert decided(world, run_id) == []


def test_a_policy_that_is_adopted_while_a_run_is_published_holds_for_that_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with small_table.declared():
        platform = small_table.opened(tmp_path / "home")
        small_table.initialise(platform)
        small_table.planned(platform, small_table.manifest("first", "REPLACE_PARTITIONS", small_table.SCOPE))
        small_table.staged(platform, "first")
        real = publication.policy_problems

        def overtaken(*arguments: Any) -> Any:
            found = real(*arguments)
            put_in_force(platform, {"name": "by hand", "rules": [{"publishers": ["olga"]}]})
            return found

        monkeypatch.setattr(publication, "policy_problems", overtaken)
        before = platform.lakehouse.snapshot_id(small_table.READINGS)
        with pytest.raises(TransitionRefused, match="was put in force"):
            publication.publish(platform, "first")
        monkeypatch.setattr(publication, "policy_problems", real)
        assert platform.lakehouse.snapshot_id(small_table.READINGS) == before
        assert platform.ledger.publications("first") == []
        with pytest.raises(PublicationRefused, match="no publisher has decided"):
            publication.publish(platform, "first")
        decisions.publish(platform, "first", by="olga")
        assert platform.ledger.run("first").state is RunState.PUBLISHED
        small_table.closed(platform)


# --- age --------------------------------------------------------------------------------------------------------------


def test_a_run_that_is_too_old_is_neither_computed_nor_published_whatever_the_clock_says(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    rules(world, {"maxAgeDays": {"sincePlanning": 2, "sinceApproval": 1}})
    record = planned(world)
    decisions.approve(world.platform, record.run_id, by="bob")
    target, ledger = world.platform.products.target(TABLE), world.platform.ledger
    require_computable(world.platform, record.run_id, [], target=target)

    real = system_clock()
    with monkeypatch.context() as later:
        later.setattr(LedgerEngine, "clock", staticmethod(lambda: real + timedelta(days=1.5)))
        with pytest.raises(TransitionRefused, match=r"was approved 1\.5 days ago") as refusal:
            require_computable(world.platform, record.run_id, [], target=target)
        assert "plan the change again under a new run id" in str(refusal.value)
        assert [one.what[:30] for one in policy_problems(world.platform, record)]
    with monkeypatch.context() as back:
        # three days on something is recorded; then the clock is set back to where it was
        with ledger.engine.begin() as connection:
            of_run = runs.c.run_id == record.run_id
            connection.execute(sa.update(runs).where(of_run).values(updated_at=real + timedelta(days=3)))
        back.setattr(LedgerEngine, "clock", staticmethod(lambda: real))
        with pytest.raises(TransitionRefused, match=r"was planned 3\.0 days ago"):
            require_computable(world.platform, record.run_id, [], target=target)
        with ledger.engine.begin() as connection:
            connection.execute(sa.update(runs).where(of_run).values(updated_at=real))


# --- break-glass ------------------------------------------------------------------------------------------------------


def test_the_glass_is_broken_by_named_persons_with_a_reason_and_loudly(world: World, monkeypatch: pytest.MonkeyPatch):
    rules(world, {"approvers": ["bob"], "reviewsRequired": 3, "breakGlass": ["ana"]})
    run_id = planned(world).run_id
    with pytest.raises(TransitionRefused, match="'eve' may not break the glass"):
        decisions.approve(world.platform, run_id, by="eve", break_glass="the house is on fire")
    with pytest.raises(TransitionRefused, match="who breaks the glass says why"):
        decisions.approve(world.platform, run_id, by="ana", break_glass="fire")

    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    said = CliRunner().invoke(cli, ["approve", run_id, "--by", "ana", "--break-glass", "the house is on fire"])
    assert said.exit_code == 0, said.output
    assert "BREAK-GLASS" in said.output
    listed = CliRunner().invoke(cli, ["decisions", "--break-glass", "--json"])
    (one,) = [one for one in yaml.safe_load(listed.output) if one["runId"] == run_id]
    assert (one["by"], one["breakGlass"], one["selfApproved"]) == ("ana", "the house is on fire", True)
    bundle = bundle_files(world.platform, world.platform.ledger.run(run_id))
    assert [one["break_glass"] for one in bundle["approvals.json"]] == ["the house is on fire"]
    with world.dagster() as instance:
        key = dg.AssetKey([*TABLE.split(".")[:1], "case_sla_daily_published"])
        (event,) = instance.fetch_observations(key, limit=5).records
        assert event.asset_observation is not None
        assert "BREAK-GLASS by ana" in str(event.asset_observation.description)
        assert event.asset_observation.tags[BREAK_GLASS_TAG] == "true"


def test_broken_glass_skips_no_age_and_no_other_plan(world: World, monkeypatch: pytest.MonkeyPatch):
    rules(world, {"approvers": ["bob"], "breakGlass": ["eve"], "maxAgeDays": {"sincePlanning": 1}})
    run_id = planned(world).run_id
    with pytest.raises(TransitionRefused, match="looked at"):
        decisions.approve(world.platform, run_id, by="eve", break_glass="the house is on fire", plan_hash="0" * 64)
    at = system_clock() + timedelta(days=2)
    monkeypatch.setattr(LedgerEngine, "clock", staticmethod(lambda: at))
    with pytest.raises(TransitionRefused, match="days ago"):
        decisions.approve(world.platform, run_id, by="eve", break_glass="the house is on fire")


# --- from command and UI ----------------------------------------------------------------------------------------------


def test_the_forms_of_the_ui_decide_and_refuse_in_words(world: World):
    rules(world, {"approvers": ["bob"], "reviewsRequired": 1})
    record = planned(world)
    form = {"run_id": record.run_id, "comment": "seen", "plan_hash": record.plan_hash[:12]}

    def launch(job: dg.JobDefinition, op: str, by: str, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
        return job.execute_in_process(
            run_config={
                "ops": {op: {"config": form | {"by": by}}},
                "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
            },
            resources={"platform": world.platform},
            instance=instance,
            raise_on_error=False,
        )

    with world.dagster() as instance:
        refused = launch(approve_run, "approve", "eve", instance)
        (failure,) = [event for event in refused.all_events if event.is_step_failure]
        text = str(failure.step_failure_data.user_failure_data or failure.step_failure_data.error)
        assert not refused.success
        assert "'eve' is no approver" in text
        assert launch(review_run, "review", "cem", instance).success
        assert launch(approve_run, "approve", "bob", instance).success
        offered = instance.get_dynamic_partitions("backfills_of_silver_case_sla_daily")
    assert record.run_id in offered
    assert [one[:3] for one in decided(world, record.run_id)] == [
        ("REVIEWED", "reviewer", "cem"),
        ("APPROVED", "approver", "bob"),
    ]


def test_the_commands_say_who_decided_what_and_which_policy_is_in_force(world: World, monkeypatch: pytest.MonkeyPatch):
    rules(world, {"reviewsRequired": 1, "approvers": ["bob"]})
    run_id = planned(world).run_id
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))

    def say(*words: str) -> str:
        done = CliRunner().invoke(cli, list(words))
        assert done.exit_code == 0, done.output
        return done.output

    assert "REVIEWED by cem" in say("review", run_id, "--by", "cem", "--reason", "numbers agree")
    told = " ".join(say("approve", run_id, "--by", "bob").split())
    assert "APPROVED by bob" in told
    assert "in one commit, which replaces the files of these days in" in told
    listed = say("decisions", run_id)
    assert all(word in listed for word in ("REVIEWED", "numbers agree", "APPROVED", "bob"))
    assert "1 review(s) first" in say("policy")
    assert yaml.safe_load(say("policy", "--json"))["file"] == "policy.yaml"
    with pytest.raises(Exception, match="unknown"):
        CliRunner().invoke(cli, ["decisions", "no-such-run"], catch_exceptions=False)


# --- who somebody is -------------------------------------------------------------------------------------------------


def whoever(folder: Path) -> dict[str, Any]:
    """Return how an installation knows people whose name a file holds."""
    return {"authenticate": "COMMAND", "command": ["/bin/cat", str(folder / "who")]}


def test_a_typed_name_is_a_claim_in_ledger_evidence_and_output(world: World, monkeypatch: pytest.MonkeyPatch):
    run_id = planned(world).run_id
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    assert CliRunner().invoke(cli, ["approve", run_id, "--by", "bob"]).exit_code == 0
    (one,) = world.platform.ledger.decisions(run_id)
    assert (one.by, one.channel, one.proof) == ("bob", "CLI", "CLAIMED")
    (row,) = bundle_files(world.platform, world.platform.ledger.run(run_id))["approvals.json"]
    assert (row["decided_by"], row["channel"], row["proof"]) == ("bob", "CLI", "CLAIMED")
    assert "bob (claimed)" in " ".join(CliRunner().invoke(cli, ["decisions", run_id]).output.split())
    approval = world.platform.ledger.history(run_id)[-1]
    assert (approval.actor, approval.channel, approval.proof) == ("bob", "CLI", "CLAIMED")


def test_a_policy_may_want_to_know_who_decides_and_then_a_typed_name_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    rules(world, {"authenticated": True}, identity=whoever(tmp_path))
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    manifest = world.manifest()
    (tmp_path / "run.json").write_text(manifest.canonical())

    def say(who: str, *words: str) -> Any:
        (tmp_path / "who").write_text(who)
        return CliRunner().invoke(cli, list(words))

    # nobody requests in another's name, to approve in their own afterwards
    assert "who plans it is 'bob'" in str(say("bob", "plan", str(tmp_path / "run.json")).exception)
    with pytest.raises(PlanRefused, match="which nothing but the name shows"):
        plan_run(world.platform, manifest)
    assert say("ana", "plan", str(tmp_path / "run.json")).exit_code == 0
    for decide in ("approve", "review", "reject", "cancel"):
        refused = say("ana", decide, manifest.run_id, "--by", "bob")
        assert "nothing but the name shows that 'bob' decides" in str(refused.exception)
    with pytest.raises(TransitionRefused, match="wants authenticated decisions"):
        decisions.approve(world.platform, manifest.run_id, by="bob")
    assert "the approver differs from the requester" in str(say("ana", "approve", manifest.run_id).exception)
    assert "APPROVED by bob" in say("bob", "approve", manifest.run_id).output
    (one,) = world.platform.ledger.decisions(manifest.run_id)
    assert (one.by, one.channel, one.proof) == ("bob", "CLI", "COMMAND")
    # nor is the policy itself changed by a name
    file = tmp_path / "other.yaml"
    file.write_text("name: other\n")
    assert "decides about the policy" in str(say("ana", "policy", "propose", str(file), "--by", "bob").exception)
    assert say("ana", "policy", "propose", str(file)).exit_code == 0
    proposal = yaml.safe_load(say("ana", "policy", "history", "--json").stdout)[-1]
    assert (proposal["by"], proposal["proof"]) == ("ana", "COMMAND")
    assert "decides about the policy" in str(say("ana", "policy", "adopt", proposal["policy"], "--by", "bob").exception)
    assert say("bob", "policy", "adopt", proposal["policy"]).exit_code == 0


def test_a_decision_in_the_ui_carries_who_is_logged_in_and_no_typed_name_replaces_it(world: World):
    rules(world, {"authenticated": True, "approvers": ["olga", "bob"]})
    with acting(Actor("ana", Channel.CLI, Proof.COMMAND)):
        record = planned(world)

    def launch(instance: dg.DagsterInstance, by: str, tags: dict[str, str]) -> str:
        form = {"run_id": record.run_id, "plan_hash": record.plan_hash[:12], "by": by}
        done = approve_run.execute_in_process(
            run_config={
                "ops": {"approve": {"config": form}},
                "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
            },
            resources={"platform": world.platform},
            instance=instance,
            raise_on_error=False,
            tags=tags,
        )
        failures = [event.step_failure_data for event in done.all_events if event.is_step_failure]
        return "".join(str(one.user_failure_data or one.error) for one in failures)

    with world.dagster() as instance:
        assert "no name is given" in launch(instance, "", {})
        for typed in ("dagster/schedule_name", "dagster/sensor_name"):
            assert "no name is given" in launch(instance, "", {typed: "anything"})
        assert "nothing but the name shows that 'bob' decides" in launch(instance, "bob", {})
        assert "'bob' was typed, and 'olga' is logged in" in launch(instance, "bob", {USER_TAG: "olga"})
        assert "'victor' is no approver" in launch(instance, "", {USER_TAG: "victor"})
        assert launch(instance, "", {USER_TAG: "olga"}) == ""
    (one,) = world.platform.ledger.decisions(record.run_id)
    assert (one.by, one.channel, one.proof) == ("olga", "UI", "PROXY")


def test_what_dagster_runs_is_recorded_in_the_name_of_what_has_launched_it(world: World):
    assert actor_of({"dagster/sensor_name": "s"}) == Actor("sensor s", Channel.SENSOR, Proof.PLATFORM)
    assert actor_of({"dagster/schedule_name": "s"}) == Actor("schedule s", Channel.SCHEDULE, Proof.PLATFORM)
    assert actor_of({"dagster/sensor_name": "s", USER_TAG: "olga"}) == Actor("olga", Channel.UI, Proof.PROXY)
    assert actor_of({}) == Actor(SOMEBODY, Channel.UI, Proof.CLAIMED)


def test_nothing_is_decided_by_a_policy_that_no_decision_has_put_in_force(world: World):
    own = world.approved(world.manifest())
    engine = world.platform.ledger.engine
    with engine.begin() as connection:
        row = connection.execute(sa.select(policy_decisions).order_by(policy_decisions.c.id)).first()
        assert row is not None
        names = ", ".join(row._mapping.keys())
        connection.exec_driver_sql(  # by hand: not through the ledger's journal
            f"INSERT INTO policy_decisions ({names}) SELECT "
            + names.replace("id,", "999,", 1)
            + f" FROM policy_decisions WHERE id = {row.id}"
        )
    try:
        with pytest.raises(EnvironmentRefused, match="the decisions about the policy were changed by hand"):
            decisions.reject(world.platform, own.run_id, by="grace")
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM policy_decisions WHERE id = 999")
    decisions.reject(world.platform, own.run_id, by="grace")


def test_a_stop_carries_the_name_of_who_is_logged_in(world: World):
    record = world.approved(world.manifest())
    with acting(Actor("olga", Channel.UI, Proof.PROXY)):
        with pytest.raises(TransitionRefused, match="'grace' was typed, and 'olga' is logged in"):
            decisions.stop(world.platform, record.run_id, by="grace", through="the job stop_run")
        assert decisions.stop(world.platform, record.run_id, by="", through="the job stop_run")[0].stopped_by == "olga"


def test_a_publication_is_recorded_in_the_name_of_who_decided_it(tmp_path: Path):
    with small_table.declared():
        platform = small_table.opened(tmp_path / "home")
        small_table.initialise(platform)
        small_table.planned(platform, small_table.manifest("one", "REPLACE_PARTITIONS", small_table.HISTORY))
        small_table.staged(platform, "one")
        with acting(sensor("publish")):
            publish_body(platform, "one")
        with acting(Actor("olga", Channel.UI, Proof.PROXY)):
            decisions.rollback(platform, "one")
        who = [(one.actor, one.channel, one.proof) for one in platform.ledger.publications("one")]
        assert who == [("sensor publish", "SENSOR", "PLATFORM"), ("olga", "UI", "PROXY")]
        moves = [(one.to_state, one.actor, one.channel) for one in platform.ledger.history("one")]
        assert moves[-2:] == [("PUBLISHED", "sensor publish", "SENSOR"), ("ROLLED_BACK", "olga", "UI")]
        assert verify(platform, data=True).everything == []
        small_table.closed(platform)


# --- old data, at planning --------------------------------------------------------------------------------------------


def erased(world: World, *subjects: tuple[str, str], **erasure: Any) -> None:
    text = "subject,erased_on\n" + "".join(f"{subject},{day}\n" for subject, day in subjects)
    (world.home / "erased.csv").write_text(text)
    says = {"column": "case_id", "file": "erased.csv"} | erasure
    rules(world, sources=[{"table": SOURCE, "erasure": says}])


def test_a_plan_pins_who_is_erased_by_hash_and_the_ledger_keeps_no_key(world: World):
    erased(world, ("IT-0000001", "2020-01-01"), ("IT-0000002", "2999-01-01"))
    record = planned(world)
    assert record.plan.data is not None
    pin = record.plan.data.erasure
    assert pin is not None
    hashes = hashes_of(["IT-0000001"])  # the other one is not erased yet
    assert (pin.subjects, pin.hash) == (1, hash_of_subjects(hashes))
    assert world.platform.ledger.erasure_lists.subjects(pin.hash) == hashes
    assert plan_from_json(record.plan.to_json()) == record.plan
    assert "IT-0000001" not in record.plan.to_json()
    assert pin.possible_rows > 0


def test_a_preview_keeps_nothing(world: World):
    erased(world, ("IT-0000077", "2020-01-01"))
    plan = preview(world.platform, world.manifest())
    assert plan.data is not None
    assert plan.data.erasure is not None
    with pytest.raises(TransitionRefused, match="is not in the ledger"):
        world.platform.ledger.erasure_lists.subjects(plan.data.erasure.hash)


def test_subjects_that_no_file_can_hold_are_no_reason_to_refuse(world: World):
    erased(world, ("ZZ-9", "2020-01-01"), onErased="REFUSE")
    assert planned(world).plan.data is not None
    erased(world, ("IT-0000001", "2020-01-01"), onErased="REFUSE")
    with pytest.raises(PlanRefused, match="1 erased subjects"):
        planned(world)


def test_erased_subjects_are_read_from_a_table_at_its_snapshot(world: World):
    lakehouse, name = world.platform.lakehouse, "governance.erased_subjects"
    schema = Schema(
        NestedField(1, "person", StringType(), required=False), NestedField(2, "since", DateType(), required=False)
    )
    lakehouse.ensure(name, schema, PartitionSpec(), {})
    says = {"column": "case_id", "table": name, "keyColumn": "person", "dateColumn": "since"}
    rules(world, sources=[{"table": SOURCE, "erasure": says}])
    pins = []
    for number, key in enumerate(("IT-0000001", "IT-0000002")):
        row = [{"person": key, "since": date(2020, 1, 1)}]
        lakehouse.append(
            name, [pa.Table.from_pylist(row, schema=schema_to_pyarrow(schema))], {LOAD_PROPERTY: str(number)}
        )
        plan = planned(world).plan
        assert plan.data is not None
        assert plan.data.erasure is not None
        pins.append(plan.data.erasure)
        assert pins[-1].snapshot_id == lakehouse.snapshot_id(name)
    assert [pin.subjects for pin in pins] == [1, 2]
    assert pins[1].hash == hash_of_subjects(hashes_of(["IT-0000002", "IT-0000001"]))
    rules(world, sources=[{"table": SOURCE, "erasure": says | {"keyColumn": "who"}}])
    with pytest.raises(InputRefused, match="has no columns who and since"):
        planned(world)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ("person,erased_on\nx,2020-01-01\n", "lacks the column"),
        ("subject,erased_on\nx,soon\n", "row 1"),
        ("subject,erased_on\n,2020-01-01\n", "row 1"),
    ],
)
def test_a_list_that_cannot_be_read_stops_planning(world: World, text: str | None, says: str):
    erased(world)
    if text is None:
        (world.home / "erased.csv").unlink()
    else:
        (world.home / "erased.csv").write_text(text)
    with pytest.raises(EnvironmentRefused, match=says):
        planned(world)


def test_the_plan_on_the_terminal_says_what_is_not_used(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    erased(world, ("IT-0000001", "2020-01-01"))
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    (tmp_path / "run.yaml").write_text(world.manifest("shown-plan").canonical())
    said = CliRunner().invoke(cli, ["plan", str(tmp_path / "run.yaml"), "--preview"])
    assert said.exit_code == 0, said.output
    assert "1 erased subjects (erased.csv) are not used" in said.output
    assert "old_data_policy" in said.output


# --- the ledger -------------------------------------------------------------------------------------------------------


def test_a_ledger_of_before_keeps_its_approvals_and_is_upgraded(tmp_path: Path):
    from alembic import command as alembic

    from resources.ledger.schema import alembic_config

    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    with ledger.engine.begin() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        alembic.upgrade(config, "0002")
        at = "2024-05-01 12:00:00"
        connection.exec_driver_sql(
            "INSERT INTO runs VALUES ('old','REPAIR','BACKFILL','t','APPROVED','','a','{}','h','{}','p',?,?)", (at, at)
        )
        connection.exec_driver_sql(
            "INSERT INTO approvals (run_id, decision, decided_by, comment, plan_hash, self_approved, at) "
            "VALUES ('old','APPROVED','bob','','p',0,?)",
            (at,),
        )
        connection.exec_driver_sql(
            "INSERT INTO verdicts (run_id, chunk, gate, attempt, passed, summary, details, at) "
            "VALUES ('old','','g',1,1,'fine','{}',?)",
            (at,),
        )
    with pytest.raises(EnvironmentRefused, match="has schema 0002"):
        ledger.require_current()
    ledger.migrate()
    ledger.require_current()
    (one,) = ledger.decisions("old")
    assert (one.role, one.break_glass, one.void) == ("approver", "", False)
    (verdict,) = ledger.verdicts("old")
    assert not verdict.asks
    ledger.engine.dispose()
