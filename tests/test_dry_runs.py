"""A dry run as a gate of policy: planned, refused without one, approved on one, published and verified; real ledger and tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa
import yaml
from click.testing import CliRunner
from small_worlds import copy_of
from support import put_in_force
from worlds import FEW_GATES, killed_at, make_world

from backfill_assets import decisions, faults
from backfill_assets.audit.report import report
from backfill_assets.audit.verification import verify
from backfill_assets.cli.command import cli
from backfill_assets.defs.launch import initialise_instance
from backfill_assets.evidence.dry_runs import DRY_RUN_FILE
from backfill_assets.installation import Platform
from backfill_assets.operations.runbook import steps
from backfill_assets.planning.dry_runs import manifest_of_dry_run
from backfill_assets.planning.resolve import plan_run, plan_series, preview_series
from backfill_assets.publication import requirements
from backfill_assets.publication.dry_runs import dry_run_for, dry_run_in_words
from backfill_assets.publication.modes import stages_of
from backfill_assets.publication.publisher import prepare
from backfill_assets.publication.publisher import publish as publish_body
from backfill_assets.publication.requirements import policy_problems
from backfill_assets.ui.run_page import run_page
from benchmarks import small_table
from manifests.dry_run_samples import dry_run_id
from manifests.errors import InputRefused, Problem, Refused, TransitionRefused
from manifests.lifecycle import RunState
from manifests.model import Mode
from manifests.reading import manifest_from
from resources.files.kept_files import read_json
from resources.ledger.tables import approvals, chunks, runs

YEAR, FEW = ("2020-01-01", "2020-12-31"), ("2020-01-01", "2020-03-31")
RULE = {"fromChunks": 5, "chunksAtLeast": 4}


def with_history(platform: Platform) -> None:
    """An installation whose policy wants a dry run before five months or more are restated."""
    small_table.initialise(platform)
    small_table.planned(platform, small_table.manifest("history", "REPLACE_PARTITIONS", YEAR, computed_by="1"))
    small_table.staged(platform, "history")
    publish_body(platform, "history")
    put_in_force(platform, {"name": "test", "rules": [{"dryRun": RULE}]})


@pytest.fixture
def platform() -> Iterator[Platform]:
    with small_table.declared():
        yield copy_of(with_history)


def planned(platform: Platform, run_id: str = "big", scope: tuple[str, str] = YEAR, **changes: Any) -> Any:
    data = small_table.manifest_data(run_id, "REPLACE_PARTITIONS", scope) | changes
    return plan_run(platform, manifest_from(data))


def dry_run_of(platform: Platform, run_id: str = "big", *, computed: bool = True) -> str:
    """Plan the dry run of a run, and have it approved and computed."""
    record = plan_run(platform, manifest_of_dry_run(platform, run_id, "ada"))
    if record.state is RunState.PLANNED:
        decisions.approve(platform, record.run_id, by="grace")
    if computed:
        assert small_table.staged(platform, record.run_id).state is RunState.VALIDATED
    return record.run_id


def approved(platform: Platform, run_id: str = "big") -> Any:
    decisions.approve(platform, run_id, by="grace")
    return platform.ledger.approval_of(platform.ledger.run(run_id))


def refusal(decide: Any, *args: Any, **named: Any) -> list[Problem]:
    with pytest.raises(Refused) as caught:
        decide(*args, **named)
    return list(caught.value.problems)


def by_hand(platform: Platform, *statements: Any) -> None:
    """Change the ledger past this project, as somebody with a database client would."""
    url = platform.ledger.engine.url.render_as_string(hide_password=False)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for one in statements:
            connection.execute(one)
    engine.dispose()


def at(platform: Platform, instant: datetime) -> Any:
    """Have the ledger's clock stand still at an instant: a patch."""
    return mock.patch.object(platform.ledger.engine, "clock", return_value=instant)


# --- the way of one run -----------------------------------------------------------------------------------------------


def test_a_large_run_is_approved_on_a_dry_run_that_evidence_report_and_verify_know(platform: Platform):
    record = planned(platform)
    assert "12 chunks (from 5 on)" in record.plan.dry_run.describe()
    (missing,) = refusal(decisions.approve, platform, "big", by="grace")
    assert "no dry run counts for run 'big', which has 12 chunks (from 5 on)" in missing.what
    assert "4 of its chunks or more, computed by the same code from the same snapshots" in missing.rule
    assert "`backfill plan --dry-run-of big`" in missing.fix
    assert platform.ledger.approvals("big") == []
    assert "none counts yet: `backfill plan --dry-run-of big`" in dry_run_in_words(platform, record)

    dry = dry_run_of(platform)
    assert dry in missing.fix
    its = platform.ledger.run(dry)
    assert (its.mode, its.plan.dry_run, len(its.plan.chunks)) == (Mode.DRY_RUN, None, 4)
    assert {"2020-01", "2020-12"} <= {one.key for one in its.plan.chunks}
    assert f"there is '{dry}'" in dry_run_in_words(platform, record)
    link = approved(platform).rests_on
    assert (link.run_id, link.plan_hash, link.chunks) == (dry, its.plan_hash, 4)
    assert link.rows == sum(one.rows or 0 for one in platform.ledger.chunks(dry)) > 0
    assert f"approved on '{dry}'" in dry_run_in_words(platform, platform.ledger.run("big"))
    (said,) = (one for one in platform.ledger.decisions("big") if one.decision == "APPROVED")
    assert said.as_record()["dryRun"] == link
    assert any("dry run: approved on" in fact for step in steps(platform, "big") for fact in step.facts)

    small_table.staged(platform, "big")
    decisions.publish(platform, "big", by="ops")
    bundle = platform.evidence.path("big")
    sealed = read_json(bundle / DRY_RUN_FILE)
    assert sealed["link"]["evidence_hash"] == link.evidence_hash
    assert [one["chunk"] for one in sealed["facts"]["chunks"]] == [one.key for one in its.plan.chunks]
    (kept,) = read_json(bundle / "approvals.json")[:1]
    assert kept["dry_run"]["run_id"] == dry
    assert f"on dry run &#39;{dry}&#39;" in report(platform, "big")
    assert verify(platform, ["big"]).runs[0].problems == ()


@pytest.mark.parametrize(
    ("scope", "changes"),
    [(FEW, {}), (YEAR, {"mode": "DRY_RUN"}), (("2020-01-01", "2020-04-30"), {})],
    ids=["few chunks", "a dry run", "one chunk less"],
)
def test_what_needs_no_dry_run_is_approved_as_ever(platform: Platform, scope: tuple[str, str], changes: dict[str, Any]):
    record = planned(platform, scope=scope, **changes)
    assert record.plan.dry_run is None
    assert dry_run_for(platform, record) == (None, [])
    assert approved(platform).rests_on is None
    assert "dry_run" not in record.plan.to_json()


def test_by_rows_alike(platform: Platform):
    put_in_force(platform, {"name": "test", "rules": [{"dryRun": {"fromRows": 12}}]})
    assert planned(platform, "small", FEW).plan.dry_run is None
    assert planned(platform).plan.dry_run.why == "12 rows to read (from 12 on)"


def test_what_the_platform_proposes_and_a_rule_approves_needs_none_and_what_is_left_to_people_does(platform: Platform):
    rule = {"kinds": ["RESTATEMENT"], "proposals": {"approvedUpToChunks": 6}, "dryRun": RULE}
    put_in_force(platform, {"name": "test", "rules": [rule]})
    for run_id, end, needs in (("within", "2020-06-30", False), ("beyond", "2020-07-31", True)):
        data = small_table.manifest_data(run_id, "REPLACE_PARTITIONS", ("2020-01-01", end))
        manifest = manifest_from(data | {"requestedBy": "restatement sensor"})
        platform.ledger.ticks.record(manifest, platform.ledger.now())
        assert (plan_run(platform, manifest).plan.dry_run is not None) == needs
    decisions.approve_by_policy(platform, "within", by="policy:restatement", comment="")
    assert "no dry run counts" in refusal(decisions.approve, platform, "beyond", by="grace")[0].what


def test_nobody_breaks_the_glass_of_a_dry_run(platform: Platform):
    put_in_force(platform, {"name": "test", "rules": [{"dryRun": RULE, "breakGlass": ["eve"]}]})
    planned(platform)
    why = "the ministry waits for the figures"
    assert "no dry run counts" in refusal(decisions.approve, platform, "big", by="eve", break_glass=why)[0].what
    dry_run_of(platform)
    decisions.approve(platform, "big", by="eve", break_glass=why)


def test_the_dry_run_may_be_somebody_elses_or_the_approvers_own(platform: Platform):
    planned(platform)
    record = plan_run(platform, manifest_of_dry_run(platform, "big", "grace"))
    with pytest.raises(TransitionRefused, match="'grace' requested run"):
        decisions.approve(platform, record.run_id, by="grace")
    decisions.approve(platform, record.run_id, by="ada")
    small_table.staged(platform, record.run_id)
    assert approved(platform).rests_on.run_id == record.run_id


def test_a_dry_run_that_somebody_wrote_by_hand_counts_as_well(platform: Platform):
    record = planned(platform)
    sample = {"chunks": ["2020-02", "2020-03", "2020-04", "2020-05"]}
    planned(platform, "mine", mode="DRY_RUN", sample=sample)
    decisions.approve(platform, "mine", by="grace")
    small_table.staged(platform, "mine")
    assert record.plan.source_snapshot_id == platform.ledger.run("mine").plan.source_snapshot_id
    assert approved(platform).rests_on.run_id == "mine"


@pytest.mark.parametrize("otherwise", ["MASK", "REFUSE"])
def test_a_policy_with_classes_by_mode_has_dry_runs_see_what_their_runs_see_or_is_refused(
    platform: Platform, otherwise: str
):
    source = {"table": small_table.SOURCE, "columns": {"id": {"classification": "personal", "mask": "HASH"}}}
    text = {"name": "test", "rules": [{"dryRun": RULE}], "sources": [source]}
    personal = {"modes": ["LIVE", "BACKFILL"], "otherwise": otherwise}
    before = platform.policy.hash
    problem, *_ = refusal(put_in_force, platform, text | {"classifications": {"personal": personal}})
    assert f"column id of {small_table.SOURCE} is personal, which lets mode BACKFILL read it" in problem.what
    assert "list DRY_RUN beside BACKFILL in classifications.personal.modes" in problem.fix
    assert platform.policy.hash == before
    personal["modes"] = ["LIVE", "BACKFILL", "REPLAY", "DRY_RUN"]
    put_in_force(platform, text | {"classifications": {"personal": personal}})
    planned(platform)
    dry = dry_run_of(platform)
    assert approved(platform).rests_on.run_id == dry


# --- why one does not count -------------------------------------------------------------------------------------------


def why_not(platform: Platform, dry: str, run_id: str = "big") -> str:
    missing, *others = refusal(decisions.approve, platform, run_id, by="grace")
    assert "no dry run counts" in missing.what
    (own,) = (one.what for one in others if f"'{dry}'" in one.what)
    return own


def test_a_dry_run_that_is_not_computed_does_not_count(platform: Platform):
    planned(platform)
    assert "it is APPROVED, not VALIDATED" in why_not(platform, dry_run_of(platform, computed=False))


@pytest.mark.parametrize(("end", "state"), [(decisions.cancel, "CANCELLED"), (decisions.reject, "REJECTED")])
def test_a_dry_run_that_was_ended_does_not_count_and_another_one_is_made(platform: Platform, end: Any, state: str):
    planned(platform)
    dry = dry_run_of(platform)
    end(platform, dry, by="grace")
    assert f"it is {state}, not VALIDATED" in why_not(platform, dry)
    assert dry_run_of(platform) == f"{dry}-2"
    assert approved(platform).rests_on.run_id == f"{dry}-2"


def test_a_dry_run_of_other_code_or_version_does_not_count(platform: Platform):
    planned(platform)
    other = small_table.manifest_data("other", "REPLACE_PARTITIONS", YEAR, computed_by="1") | {"mode": "DRY_RUN"}
    plan_run(platform, manifest_from(other))
    decisions.approve(platform, "other", by="grace")
    small_table.staged(platform, "other")
    assert "it was computed by readings 1, not readings 2" in why_not(platform, "other")


def test_a_dry_run_on_an_earlier_load_counts_only_where_the_policy_says_so_and_it_is_said(platform: Platform):
    planned(platform)
    dry = dry_run_of(platform)
    small_table.load_events(platform, "late", "2020-06-17")
    again = planned(platform)  # on what was loaded since: another plan
    assert again.plan.source_snapshot_id != platform.ledger.run(dry).plan.source_snapshot_id
    said = why_not(platform, dry)
    assert f"it has read {small_table.SOURCE} at snapshot" in said
    assert "and the run would at snapshot" in said
    put_in_force(platform, {"name": "test", "rules": [{"dryRun": {**RULE, "onOtherSnapshot": "ALLOW"}}]})
    planned(platform)
    link = approved(platform).rests_on
    assert link.run_id == dry
    assert "on other snapshots: " in dry_run_in_words(platform, platform.ledger.run("big"))


def test_a_dry_run_of_long_ago_does_not_count_and_another_one_is_made(platform: Platform):
    planned(platform)
    dry = dry_run_of(platform)
    late = platform.ledger.now() + timedelta(days=8)
    with at(platform, late):
        assert "its gates passed 8.0 days before, and 7 are allowed" in why_not(platform, dry)
        assert manifest_of_dry_run(platform, "big", "ada").run_id == f"{dry}-2"
        assert dry_run_of(platform) == f"{dry}-2"
        assert approved(platform).rests_on.run_id == f"{dry}-2"


def test_a_dry_run_that_is_older_than_a_run_may_become_does_not_count(platform: Platform):
    rule = {"dryRun": {**RULE, "withinDays": 30}, "maxAgeDays": {"sincePlanning": 3}}
    put_in_force(platform, {"name": "test", "rules": [rule]})
    planned(platform)
    dry = dry_run_of(platform)
    late = platform.ledger.now() + timedelta(days=4)
    with at(platform, late):
        planned(platform)
        assert f"run '{dry}' was planned 4.0 days ago" in why_not(platform, dry)


def test_too_small_a_sample_does_not_count(platform: Platform):
    planned(platform)
    planned(platform, "mine", mode="DRY_RUN", sample={"chunks": ["2020-02", "2020-03", "2020-04"]})
    decisions.approve(platform, "mine", by="grace")
    small_table.staged(platform, "mine")
    assert "it has computed 3 of the run's chunks, and 4 are asked for" in why_not(platform, "mine")


def test_chunks_without_a_row_where_the_run_reads_rows_do_not_count_and_the_next_sample_has_others(platform: Platform):
    planned(platform)
    with mock.patch.object(small_table, "rows_of", return_value=[]):
        dry = dry_run_of(platform)
    assert "it has computed 0 of the run's chunks, and 4 are asked for; chunks without a row" in why_not(platform, dry)
    again = dry_run_of(platform)
    keys, before = ({one.key for one in platform.ledger.run(run_id).plan.chunks} for run_id in (again, dry))
    assert (again, len(keys)) == (f"{dry}-2", 8)
    assert before < keys
    assert approved(platform).rests_on.run_id == again


@pytest.mark.parametrize("sample", [["2020-02", "2020-03", "2020-04", "2020-05"], ["2020-02"]])
def test_a_newer_dry_run_alike_that_was_rejected_is_named_where_an_older_one_counts(
    platform: Platform, sample: list[str]
):
    planned(platform)
    dry = dry_run_of(platform)
    planned(platform, "newer", mode="DRY_RUN", sample={"chunks": sample})
    decisions.approve(platform, "newer", by="grace")
    small_table.staged(platform, "newer")
    decisions.reject(platform, "newer", by="grace", comment="all wrong")
    link = approved(platform).rests_on
    assert (link.run_id, link.against) == (dry, ("'newer' is REJECTED (all wrong)",) if len(sample) == 4 else ())
    assert ("of newer ones alike, 'newer' is REJECTED" in dry_run_in_words(platform, platform.ledger.run("big"))) == (
        len(sample) == 4
    )


def forged(platform: Platform, dry: str) -> None:
    """Write by hand what a dry run that has passed has in the ledger."""
    at = str(platform.ledger.now())[:26]
    gates = platform.ledger.run(dry).plan.gates
    rows = [(one.key, "chunk_rules") for one in platform.ledger.run(dry).plan.chunks] + [("", gate) for gate in gates]
    by_hand(
        platform,
        sa.text(f"UPDATE runs SET state = 'VALIDATED' WHERE run_id = '{dry}'"),
        sa.text(f"UPDATE chunks SET state = 'PASSED', rows = 9, digest = 'rows-sha256-v1:aa' WHERE run_id = '{dry}'"),
        *(
            sa.text(
                "INSERT INTO verdicts (run_id, chunk, gate, attempt, passed, asks, summary, details, judged, at) "
                f"VALUES ('{dry}', '{chunk}', '{gate}', 0, 1, 0, '', '{{}}', '', '{at}')"
            )
            for chunk, gate in rows
        ),
        sa.text(
            "INSERT INTO transitions (run_id, from_state, to_state, at, actor, reason, channel, proof) "
            f"VALUES ('{dry}', 'STAGED', 'VALIDATED', '{at}', 'ada', '', '', '')"
        ),
    )


def test_a_dry_run_that_somebody_has_written_into_the_ledger_does_not_count(platform: Platform):
    planned(platform)
    dry = dry_run_of(platform, computed=False)
    forged(platform, dry)
    assert "ledger " in why_not(platform, dry)
    assert platform.ledger.approvals("big") == []


def test_a_dry_run_that_was_changed_by_hand_does_not_count(platform: Platform):
    planned(platform)
    dry = dry_run_of(platform)
    by_hand(platform, chunks.update().where(chunks.c.run_id == dry, chunks.c.chunk == "2020-01").values(rows=1))
    assert "ledger chunks 2020-01" in why_not(platform, dry)


def test_a_dry_run_that_was_approved_longer_ago_than_a_run_may_be_is_replaced_by_the_same_command(platform: Platform):
    rule = {"dryRun": {**RULE, "withinDays": 30}, "maxAgeDays": {"sinceApproval": 3}}
    put_in_force(platform, {"name": "test", "rules": [rule]})
    planned(platform)
    dry = dry_run_of(platform)
    with at(platform, platform.ledger.now() + timedelta(days=4)):
        assert f"run '{dry}' was approved 4.0 days ago" in why_not(platform, dry)
        assert dry_run_of(platform) == f"{dry}-2"
        assert approved(platform).rests_on.run_id == f"{dry}-2"


def test_a_dry_run_that_is_too_old_to_be_computed_is_replaced_and_one_that_is_only_planned_is_planned_again(
    platform: Platform,
):
    put_in_force(platform, {"name": "test", "rules": [{"dryRun": RULE, "maxAgeDays": {"sincePlanning": 3}}]})
    planned(platform)
    first = plan_run(platform, manifest_of_dry_run(platform, "big", "ada")).run_id
    with at(platform, platform.ledger.now() + timedelta(days=4)):
        assert dry_run_of(platform, computed=False) == first
    with at(platform, platform.ledger.now() + timedelta(days=8)):
        assert manifest_of_dry_run(platform, "big", "ada").run_id == f"{first}-2"


def test_a_dry_run_that_was_changed_by_hand_is_replaced_by_the_same_command(platform: Platform):
    planned(platform)
    dry = dry_run_of(platform)
    by_hand(platform, chunks.update().where(chunks.c.run_id == dry, chunks.c.chunk == "2020-01").values(rows=1))
    (said,) = (one.fix for one in refusal(decisions.approve, platform, "big", by="grace") if f"'{dry}'" in one.what)
    assert "`backfill plan --dry-run-of big` makes another one" in said
    assert dry_run_of(platform) == f"{dry}-2"
    assert approved(platform).rests_on.run_id == f"{dry}-2"


# --- between approval and publication ---------------------------------------------------------------------------------


def ready(platform: Platform) -> str:
    """Take the large run to VALIDATED; return its dry run."""
    planned(platform)
    dry = dry_run_of(platform)
    approved(platform)
    assert small_table.staged(platform, "big").state is RunState.VALIDATED
    return dry


def test_a_run_whose_dry_run_was_rejected_since_is_not_published(platform: Platform):
    dry = ready(platform)
    decisions.reject(platform, dry, by="grace", comment="the figures are wrong after all")
    (problem,) = refusal(decisions.publish, platform, "big", by="ops")
    assert f"rests on dry run '{dry}', which is REJECTED by now (the figures are wrong after all)" in problem.what
    assert "plan the change again under a new run id" in problem.fix
    assert platform.ledger.run("big").state is RunState.VALIDATED
    assert [one.what for one in policy_problems(platform, platform.ledger.run("big"))] == [problem.what]


@pytest.mark.parametrize("end", [decisions.reject, decisions.cancel])
def test_a_dry_run_that_is_ended_while_its_run_is_being_published_is_asked_again(platform: Platform, end: Any):
    dry = ready(platform)
    reach, ended = faults.reach, []

    def end_before_the_intent(point: str) -> None:
        if point == "publishing.sealed" and not ended:
            ended.append(end(platform, dry, by="grace", comment="the figures are wrong after all"))
        reach(point)

    with mock.patch.object(faults, "reach", end_before_the_intent):
        if end is decisions.cancel:
            decisions.publish(platform, "big", by="ops")
        else:
            (problem,) = refusal(decisions.publish, platform, "big", by="ops")
            assert f"dry run '{dry}' is REJECTED by now (the figures are wrong after all)" in problem.what
    state = RunState.PUBLISHED if end is decisions.cancel else RunState.VALIDATED
    assert (platform.ledger.run("big").state, len(ended)) == (state, 1)
    assert len(platform.ledger.publications("big")) == (1 if end is decisions.cancel else 0)


def test_a_publication_that_was_killed_before_its_commit_asks_again(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
):
    dry = ready(platform)
    with killed_at("publishing.tagged", monkeypatch):
        decisions.publish(platform, "big", by="ops")
    decisions.reject(platform, dry, by="grace", comment="wrong")
    with at(platform, platform.ledger.now() + timedelta(minutes=30)):
        assert "is REJECTED by now (wrong)" in refusal(decisions.publish, platform, "big", by="ops")[0].what
        assert platform.ledger.run("big").state is RunState.VALIDATED


def test_a_dry_run_that_was_put_away_since_stands(platform: Platform):
    dry = ready(platform)
    decisions.cancel(platform, dry, by="ada")
    late = platform.ledger.now() + timedelta(days=30)  # how old it may be is asked when the run is approved
    with at(platform, late):
        decisions.publish(platform, "big", by="ops")
    assert verify(platform, ["big"]).runs[0].problems == ()


def test_a_run_whose_dry_run_says_something_else_by_now_is_not_published(platform: Platform):
    dry = ready(platform)
    digest = (
        chunks.update().where(chunks.c.run_id == dry, chunks.c.chunk == "2020-01").values(digest="rows-sha256-v1:00")
    )
    by_hand(platform, digest)
    (problem,) = refusal(decisions.publish, platform, "big", by="ops")
    assert "whose results on record are others by now" in problem.what


def test_a_run_whose_dry_run_was_changed_by_hand_is_not_published(platform: Platform):
    dry = ready(platform)
    by_hand(platform, runs.update().where(runs.c.run_id == dry).values(requested_by="nobody"))
    (problem,) = refusal(decisions.publish, platform, "big", by="ops")
    assert f"rests on dry run '{dry}': ledger runs {dry}" in problem.what


def test_an_approval_that_was_recorded_without_a_dry_run_publishes_nothing(platform: Platform):
    record = planned(platform)
    named = {"by": "grace", "comment": "", "self_approval": False, "plan_hash": record.plan_hash}
    platform.ledger.decide("big", approve=True, **named)
    small_table.staged(platform, "big")
    (problem,) = refusal(decisions.publish, platform, "big", by="ops")
    assert problem.what == "the approval of 'big' names no dry run"


def test_a_dry_run_that_is_ended_while_the_run_is_approved_is_told(platform: Platform):
    record = planned(platform)
    dry = dry_run_of(platform)
    link, _ = dry_run_for(platform, record)
    decisions.cancel(platform, dry, by="ada")
    named = {"by": "grace", "comment": "", "self_approval": False, "plan_hash": record.plan_hash}
    with pytest.raises(TransitionRefused, match=f"dry run '{dry}' is CANCELLED by now"):
        platform.ledger.decide("big", approve=True, dry_run=link, **named)
    assert platform.ledger.run("big").state is RunState.PLANNED


def test_a_version_whose_dry_run_was_rejected_since_is_not_accepted(platform: Platform):
    plan_run(platform, small_table.manifest("big", "VERSIONED", YEAR, version="v2", acceptance="LATER"))
    dry = dry_run_of(platform)
    approved(platform)
    small_table.staged(platform, "big")
    decisions.publish(platform, "big", by="ops")
    decisions.reject(platform, dry, by="grace", comment="wrong")
    (problem,) = refusal(decisions.accept, platform, "big", by="ops")
    assert f"rests on dry run '{dry}', which is REJECTED by now (wrong)" in problem.what
    assert problem.fix.startswith("plan the change again under a new run id")


def test_a_candidate_whose_dry_run_was_rejected_since_is_put_on_no_branch(platform: Platform):
    plan_run(platform, small_table.manifest("big", "SHADOW_SWAP", YEAR))
    dry = dry_run_of(platform)
    approved(platform)
    small_table.staged(platform, "big")
    decisions.reject(platform, dry, by="grace", comment="wrong")
    assert "is REJECTED by now (wrong)" in refusal(prepare, platform, "big")[0].what


def test_a_run_whose_dry_run_was_rejected_since_is_taken_back_and_not_brought_back(platform: Platform):
    dry = ready(platform)
    decisions.publish(platform, "big", by="ops")
    decisions.reject(platform, dry, by="grace", comment="wrong")
    decisions.rollback(platform, "big", by="ops")
    assert "is REJECTED by now (wrong)" in refusal(decisions.reinstate, platform, "big", by="ops")[0].what
    assert platform.ledger.run("big").state is RunState.ROLLED_BACK


def test_verify_names_an_approval_that_names_no_dry_run_and_should(platform: Platform):
    record = planned(platform)
    named = {"by": "grace", "comment": "", "self_approval": False, "plan_hash": record.plan_hash}
    platform.ledger.decide("big", approve=True, **named)
    small_table.staged(platform, "big")
    with mock.patch.object(requirements, "link_problems", return_value=[]):  # as a program that does not ask
        decisions.publish(platform, "big", by="ops")
    (found,) = verify(platform, ["big"]).runs[0].problems
    assert "names no dry run, and the plan that was approved asks for one" in found.what


@pytest.mark.parametrize("what", ["results", "link"])
def test_verify_names_a_dry_run_or_a_link_that_was_changed_after_the_publication(platform: Platform, what: str):
    dry = ready(platform)
    decisions.publish(platform, "big", by="ops")
    assert verify(platform, ["big"]).runs[0].problems == ()
    if what == "results":
        by_hand(platform, chunks.update().where(chunks.c.run_id == dry, chunks.c.chunk == "2020-12").values(rows=1))
    else:
        by_hand(platform, approvals.update().where(approvals.c.run_id == "big").values(dry_run=""))
    found = verify(platform, ["big"]).runs[0].problems
    where = " ".join(f"{one.where}: {one.what}" for one in found)
    assert (
        "has the hash of other results" if what == "results" else "column dry_run: is not what the evidence has"
    ) in where


# --- crashes, repetition, series --------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["planning.resolved", "planning.recorded", "planning.pinned"])
def test_a_dry_run_whose_planning_was_killed_is_planned_by_the_same_command(
    platform: Platform, point: str, monkeypatch: pytest.MonkeyPatch
):
    planned(platform)
    with killed_at(point, monkeypatch):
        plan_run(platform, manifest_of_dry_run(platform, "big", "ada"))
    dry = dry_run_of(platform)
    assert [one.run_id for one in platform.ledger.runs(mode=Mode.DRY_RUN)] == [dry]
    assert approved(platform).rests_on.run_id == dry


def test_the_same_command_again_makes_no_other_dry_run_whoever_gives_it(platform: Platform):
    planned(platform)
    dry = dry_run_of(platform, computed=False)
    for by in ("ada", "linus"):
        assert plan_run(platform, manifest_of_dry_run(platform, "big", by)).run_id == dry
    assert dry_run_of(platform) == dry == dry_run_of(platform)


def test_another_run_under_the_id_of_a_dry_run_is_not_taken_for_it(platform: Platform):
    own = dry_run_id("big", planned(platform).plan_hash)
    planned(platform, own, FEW)  # it would change the table
    assert dry_run_of(platform) == f"{own}-2"
    assert approved(platform).rests_on.run_id == f"{own}-2"
    small = planned(platform, "small", FEW)
    others = dry_run_id("small", small.plan_hash)
    planned(platform, others, YEAR, mode="DRY_RUN", sample={"chunks": ["2020-11"]})
    assert manifest_of_dry_run(platform, "small", "ada").run_id == f"{others}-2"


def test_a_dry_run_of_what_changes_nothing_or_is_decided_is_refused(platform: Platform):
    with pytest.raises(InputRefused, match="run 'none' is unknown"):
        manifest_of_dry_run(platform, "none", "ada")
    planned(platform)
    dry = dry_run_of(platform, computed=False)
    with pytest.raises(TransitionRefused, match=r"is APPROVED(.|\n)*has mode DRY_RUN"):
        manifest_of_dry_run(platform, dry, "ada")
    with pytest.raises(TransitionRefused, match="'history' is PUBLISHED"):
        manifest_of_dry_run(platform, "history", "ada")


def test_steps_of_a_progressive_run_count_together_and_one_dry_run_serves_them_all(platform: Platform):
    data = small_table.manifest_data("steps", "REPLACE_PARTITIONS", YEAR) | {"progressive": {"chunksPerStep": 3}}
    manifest = manifest_from(data)
    assert [one.dry_run.chunks for one in preview_series(platform, manifest)] == [12] * 4
    records = plan_series(platform, manifest)
    assert [(len(one.plan.chunks), one.plan.dry_run.chunks) for one in records] == [(3, 12)] * 4
    again = plan_run(platform, records[1].manifest)  # a step by itself is no small run
    assert again.plan.dry_run.chunks == 12
    assert (
        "no dry run counts for run 'steps.s001'"
        in refusal(decisions.approve, platform, "steps.s001", by="grace")[0].what
    )
    dry = dry_run_of(platform, "steps")
    assert dry.startswith("steps.s001.dry-")
    assert {"2020-01", "2020-12"} <= {one.key for one in platform.ledger.run(dry).plan.chunks}
    for record in records:
        assert approved(platform, record.run_id).rests_on.run_id == dry
    for record in records:
        small_table.staged(platform, record.run_id)
        decisions.publish(platform, record.run_id, by="ops")


def test_what_a_step_may_read_in_all_does_not_refuse_the_dry_run_of_all_steps(platform: Platform):
    data = small_table.manifest_data("steps", "REPLACE_PARTITIONS", YEAR)
    (whole,) = plan_series(platform, manifest_from(data | {"runId": "whole"}))
    rows = whole.plan.reads.rows
    limits = {"budget": {"rows": rows // 2}, "maxChunksInParallel": 2}
    records = plan_series(platform, manifest_from(data | {"progressive": {"chunksPerStep": 3}, "limits": limits}))
    dry = dry_run_of(platform, "steps")
    plan = platform.ledger.run(dry).plan
    assert rows // 2 < plan.reads.rows <= rows, "its chunks are of all steps, and read more than one may"
    assert (plan.pace.budget_rows, plan.pace.chunks_in_parallel) == (None, 2)
    assert plan_run(platform, manifest_of_dry_run(platform, "steps", "ada")).run_id == dry
    assert approved(platform, records[0].run_id).rests_on.run_id == dry
    for record in records[:3]:
        decisions.cancel(platform, record.run_id, by="ada")
    of_the_last = manifest_of_dry_run(platform, "steps.s004", "ada")
    assert of_the_last.limits.budget is not None, "it is of one step"


def a_step(platform: Platform, number: int, scope: tuple[str, str], version: str = "2") -> Any:
    """Plan a step of a series that somebody has written by hand."""
    data = small_table.manifest_data(f"by-hand.s00{number}", "REPLACE_PARTITIONS", scope, computed_by=version)
    return plan_run(platform, manifest_from(data | {"series": {"of": "by-hand", "step": number, "steps": 2}}))


FIRST_HALF, SECOND_HALF = ("2020-01-01", "2020-06-30"), ("2020-07-01", "2020-12-31")


@pytest.mark.parametrize("how", ["another change", "cancelled", "other chunks"])
def test_no_dry_run_of_another_run_counts_for_what_only_calls_itself_a_step_beside_it(platform: Platform, how: str):
    a_step(platform, 2, SECOND_HALF, "1" if how == "another change" else "2")
    record = a_step(platform, 1, FIRST_HALF)
    assert record.plan.dry_run.chunks == (6 if how == "another change" else 12)
    planned(platform, "mine", mode="DRY_RUN", sample={"chunks": ["2020-07", "2020-08", "2020-09", "2020-10"]})
    decisions.approve(platform, "mine", by="grace")
    small_table.staged(platform, "mine")
    if how == "cancelled":
        decisions.cancel(platform, "by-hand.s002", by="ada")
    said = why_not(platform, "mine", "by-hand.s001")
    assert "none of this one" in said if how == "other chunks" else "it has computed what the run does not" in said


@pytest.mark.parametrize("mode", ["REPLACE_PARTITIONS", "APPEND_ONLY"])
def test_the_rest_of_a_progressive_backfill_gets_a_dry_run_of_its_own(mode: str):
    def without_history(platform: Platform) -> None:
        small_table.initialise(platform)
        put_in_force(platform, {"name": "test", "rules": [{"dryRun": RULE}]})

    with small_table.declared():
        platform = copy_of(without_history)
        data = small_table.manifest_data("steps", mode, YEAR) | {
            "kind": "BACKFILL",
            "progressive": {"chunksPerStep": 3},
        }
        records = plan_series(platform, manifest_from(data))
        dry = dry_run_of(platform, "steps")
        for record in records[:3]:
            assert approved(platform, record.run_id).rests_on.run_id == dry
            small_table.staged(platform, record.run_id)
            decisions.publish(platform, record.run_id, by="ops")
        with at(platform, platform.ledger.now() + timedelta(days=8)):
            assert "its gates passed 8.0 days before" in why_not(platform, dry, "steps.s004")
            rest = dry_run_of(platform, "steps")
            assert {one.key for one in platform.ledger.run(rest).plan.chunks} == {"2020-10", "2020-11", "2020-12"}
            assert approved(platform, "steps.s004").rests_on.run_id == rest


@pytest.mark.parametrize("mode", ["MERGE_BY_KEY", "CORRECTION_EVENTS", "SHADOW_SWAP", "VERSIONED"])
def test_every_publish_mode_has_dry_runs(platform: Platform, mode: str):
    options: dict[str, Any] = {
        "MERGE_BY_KEY": {"merge": {"entities": ["m1", "m2"]}},
        "VERSIONED": {"version": "v2"},
    }.get(mode, {})
    plan_run(platform, small_table.manifest("big", mode, YEAR, **options))
    dry_run_of(platform)
    assert approved(platform).rests_on is not None


# --- the command and the page -----------------------------------------------------------------------------------------


@pytest.fixture
def say(platform: Platform, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Return what gives a command in the installation, and returns what it has said."""
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    monkeypatch.setenv("BACKFILL_OPERATOR", "ada")
    initialise_instance(platform.settings)
    file = tmp_path / "big.yaml"
    file.write_text(yaml.safe_dump(small_table.manifest_data("big", "REPLACE_PARTITIONS", YEAR)))

    def give(*words: str) -> Any:
        return CliRunner().invoke(cli, [str(file) if word == "BIG" else word for word in words], catch_exceptions=True)

    return give


def in_one_line(output: str) -> str:
    return " ".join(output.split())


def test_the_command_plans_the_dry_run_and_says_at_each_step_what_comes_next(
    platform: Platform, say: Callable[..., Any]
):
    told = in_one_line(say("plan", "BIG").output)
    assert "required before the approval, for 12 chunks (from 5 on)" in told
    assert "none counts yet: `backfill plan --dry-run-of big`" in told
    refused = say("approve", "big", "--by", "grace")
    assert refused.exit_code != 0
    assert "no dry run counts" in str(refused.exception)
    assert "none counts yet" in in_one_line(say("status", "big").output)

    preview = json.loads(say("plan", "--dry-run-of", "big", "--preview", "--json").stdout)
    assert platform.ledger.runs(mode=Mode.DRY_RUN) == []
    told = in_one_line(say("plan", "--dry-run-of", "big").output)
    (dry,) = (one.run_id for one in platform.ledger.runs(mode=Mode.DRY_RUN))
    assert preview["plan"]["run_id"] == dry
    assert f"next: `backfill approve {dry} --by NAME`, `backfill run {dry}`" in told
    assert say("approve", dry, "--by", "grace").exit_code == 0
    small_table.staged(platform, dry)
    assert f"there is '{dry}'" in in_one_line(say("status", "big").output)
    assert f"dry run: approved on '{dry}'" in in_one_line(say("approve", "big", "--by", "grace").output)
    assert f"approved on '{dry}'" in json.loads(say("status", "big", "--json").stdout)["dryRun"]
    (said,) = (one for one in json.loads(say("decisions", "big", "--json").stdout))
    assert said["dryRun"]["run_id"] == dry
    assert "on dry run" in in_one_line(say("decisions", "big").output)
    assert "from 5 chunks on a dry run of 4 of the chunks within 7 days" in in_one_line(say("policy").output)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "Missing argument 'MANIFEST', or '--dry-run-of RUN_ID' in its place"),
        (("BIG", "--dry-run-of", "big"), "A plan is of 'MANIFEST' or of the run that '--dry-run-of' names"),
        (("--dry-run-of", "nobodys"), "run 'nobodys' is unknown"),
    ],
)
def test_a_plan_is_of_a_manifest_or_of_a_runs_dry_run(
    platform: Platform, say: Callable[..., Any], words: tuple[str, ...], why: str
):
    refused = say("plan", *words)
    assert refused.exit_code != 0
    assert why in in_one_line(refused.output) + str(refused.exception)
    assert platform.ledger.runs(mode=Mode.DRY_RUN) == []


def test_the_page_of_a_run_says_that_it_needs_a_dry_run_and_leads_to_the_one_that_it_was_approved_on(
    platform: Platform,
):
    def shown() -> str:
        program = partial(stages_of, platform.products)
        return bytes(
            run_page(platform.ledger, platform.evidence, platform.ledger.run("big"), (), program).body
        ).decode()

    planned(platform)
    assert "<code>backfill plan --dry-run-of big</code>" in shown()
    assert "required before the approval, for 12 chunks (from 5 on)" in shown()
    dry = dry_run_of(platform)
    assert f"after a dry run: <a href='/backfill/{dry}'>{dry}</a> is VALIDATED" in shown()
    approved(platform)
    assert f"<a href='/backfill/{dry}'>{dry}</a>: &#x27;{dry}&#x27; (plan " in shown()
    assert "after a dry run" not in shown()


# --- with Spark -------------------------------------------------------------------------------------------------------


def test_a_restatement_with_spark_is_approved_on_the_digests_that_it_publishes(tmp_path: Path):
    world = make_world(tmp_path / "home", cases=40, gates=FEW_GATES)
    platform = world.platform
    world.published(world.manifest("history", version="2.4.1"))
    put_in_force(platform, {"name": "test", "rules": [{"dryRun": {"fromChunks": 20, "percentAtLeast": 20}}]})
    plan_run(platform, world.manifest("big", safety={"sinks": ["run_audit"]}))
    assert "no dry run counts" in refusal(decisions.approve, platform, "big", by="grace")[0].what
    record = plan_run(platform, manifest_of_dry_run(platform, "big", "ada"))
    assert len(record.plan.chunks) == 5
    decisions.approve(platform, record.run_id, by="grace")
    world.stage(platform.ledger.run(record.run_id))
    link = approved(platform).rests_on
    assert link.run_id == record.run_id
    world.stage(platform.ledger.run("big"))
    decisions.publish(platform, "big", by="ops")
    tried, done = world.digests(record.run_id), world.digests("big")
    assert tried == {key: done[key] for key in tried}
    found = verify(platform, ["big"], data=True).runs[0]
    assert found.problems == ()
