"""Decisions from the UI: jobs whose form asks for the run, for who decides, and why.

Put here forms and what Dagster is told; whether somebody may decide is `decisions`'. Dagster knows no users: who decides
is who is logged in at the proxy before it, and where there is none who the form says, as a claim (docs/policy.md).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster import OpExecutionContext
from pydantic import Field

from backfill_assets import decisions
from backfill_assets.defs.changes import tell_changes, tolerant
from backfill_assets.defs.evaluations import tell_run_again
from backfill_assets.defs.launched_by import launched
from backfill_assets.defs.staging import (
    BREAK_GLASS_TAG,
    asset_key,
    in_plain_words,
    offer_run,
    tell_of_broken_glass,
    tie,
)
from backfill_assets.installation import Platform
from backfill_assets.operations import pausing
from backfill_assets.publication.dry_runs import dry_run_in_words
from backfill_assets.publication.modes import stages_of
from backfill_assets.review.kept_diffs import after_publication
from resources.ledger.facade import ApprovalRecord, RunRecord
from resources.logs import also_to


class Decision(dg.Config):
    """What every decision says."""

    run_id: str = Field(description="The backfill run.")
    by: str = Field(
        "", description="Who decides: your name, as the policy knows it. Leave it empty where you are logged in."
    )
    comment: str = Field("", description="Why.")


class PlanDecision(Decision):
    """A decision about a plan that was looked at."""

    plan_hash: str = Field(description="Of the plan you have looked at: its first 12 characters, or all of them.")


class Approval(PlanDecision):
    """An approval."""

    break_glass: str = Field(
        "",
        description="Only in an emergency, for those whom the policy names: why the decision does not wait for anybody else.",
    )


class Publication(Decision):
    """A publication by hand, or a rollback: who may is said for both."""

    break_glass: str = Field(
        "", description="Only in an emergency, for those whom the policy names: why roles are not waited for."
    )


class Acceptance(PlanDecision):
    """An owner's acceptance of a change; `comment` is the reason."""

    gate: str = Field(description="The gate that asks for an owner.")


@contextmanager
def announcing(platform: Platform, instance: dg.DagsterInstance, run_id: str) -> Iterator[list[ApprovalRecord]]:
    """Announce each decision of the body for which somebody broke the glass, whatever becomes of it; yield them, then."""
    known = len(platform.ledger.broken_glass(run_id))
    broken: list[ApprovalRecord] = []
    try:
        yield broken
    finally:
        broken += platform.ledger.broken_glass(run_id)[known:]
        for one in broken:
            announce_break_glass(instance, platform.ledger.run(run_id), one.decided_by, one.break_glass)


def announce_break_glass(instance: dg.DagsterInstance, record: RunRecord, by: str, reason: str) -> None:
    """Put it on the page of the run's publish asset that somebody broke the glass."""
    instance.report_runless_asset_event(
        dg.AssetObservation(
            asset_key(f"{record.target}_published"),
            partition=record.run_id,
            description=f"BREAK-GLASS by {by}: {reason}",
            metadata={"break-glass by": by, "break-glass reason": reason, "run": record.run_id},
            tags={BREAK_GLASS_TAG: "true"},
        )
    )


@contextmanager
def _deciding(context: OpExecutionContext, platform: Platform, run_id: str) -> Iterator[None]:
    """Tie the Dagster run to its backfill run, say refusals in words, and let nobody break the glass in silence."""
    with in_plain_words(), launched(context, by_people=True), announcing(platform, context.instance, run_id):
        tie(context.instance, context.run_id, platform, run_id)
        yield
    tell_of_broken_glass(context, platform, run_id)


def _tell_change(context: OpExecutionContext, platform: Platform, run_id: str) -> None:
    target = platform.ledger.run(run_id).target
    with also_to(context.log), tolerant(target):
        tell_changes(platform, context.instance, target)


@dg.op
def approve(context: OpExecutionContext, platform: dg.ResourceParam[Platform], config: Approval) -> None:
    """Approve the plan of a run."""
    with _deciding(context, platform, config.run_id):
        record = decisions.approve(
            platform,
            config.run_id,
            by=config.by,
            comment=config.comment,
            plan_hash=config.plan_hash,
            break_glass=config.break_glass,
        )
    offer_run(context.instance, platform.products.target(record.target), record.run_id)
    context.log.info("%s: APPROVED by %s (plan %s)", config.run_id, config.by, record.plan_hash)
    for number, stage in enumerate(stages_of(platform.products, record.plan), start=1):
        context.log.info("%d. %s", number, stage.describe())
    if rests_on := dry_run_in_words(platform, record):
        context.log.info("dry run: %s", rests_on)
    for name, said in () if record.plan.costs is None else record.plan.costs.describe():
        context.log.info("%s: %s", name, said)


@dg.op
def reject(context: OpExecutionContext, platform: dg.ResourceParam[Platform], config: PlanDecision) -> None:
    """Reject a run for good."""
    with _deciding(context, platform, config.run_id):
        decisions.reject(platform, config.run_id, by=config.by, comment=config.comment, plan_hash=config.plan_hash)
    context.log.info("%s: REJECTED by %s", config.run_id, config.by)


@dg.op
def review(context: OpExecutionContext, platform: dg.ResourceParam[Platform], config: PlanDecision) -> None:
    """Record a review of a run."""
    with _deciding(context, platform, config.run_id):
        decisions.review(platform, config.run_id, by=config.by, comment=config.comment, plan_hash=config.plan_hash)
    context.log.info("%s: REVIEWED by %s", config.run_id, config.by)


@dg.op
def publish(context: OpExecutionContext, platform: dg.ResourceParam[Platform], config: Publication) -> None:
    """Decide to publish a validated run, and publish it."""
    with _deciding(context, platform, config.run_id):
        done = decisions.publish(
            platform, config.run_id, by=config.by, comment=config.comment, break_glass=config.break_glass
        )
    _tell_change(context, platform, config.run_id)
    after_publication(platform, config.run_id)
    context.log.info("%s: PUBLISHED by %s as snapshot %s", config.run_id, config.by, done.snapshot_id)


@dg.op
def roll_back(context: OpExecutionContext, platform: dg.ResourceParam[Platform], config: Publication) -> None:
    """Decide to roll a published run back, and do it."""
    with _deciding(context, platform, config.run_id):
        done = decisions.rollback(
            platform, config.run_id, by=config.by, comment=config.comment, break_glass=config.break_glass
        )
    _tell_change(context, platform, config.run_id)
    after_publication(platform, config.run_id)
    context.log.info("%s: ROLLED_BACK by %s as snapshot %s", config.run_id, config.by, done.snapshot_id)


@dg.op
def reinstate(context: OpExecutionContext, platform: dg.ResourceParam[Platform], config: Publication) -> None:
    """Decide to undo a rollback, and do it."""
    with _deciding(context, platform, config.run_id):
        done = decisions.reinstate(
            platform, config.run_id, by=config.by, comment=config.comment, break_glass=config.break_glass
        )
    _tell_change(context, platform, config.run_id)
    after_publication(platform, config.run_id)
    context.log.info("%s: reinstated by %s as snapshot %s", config.run_id, config.by, done.snapshot_id)


@dg.op
def cancel(context: OpExecutionContext, platform: dg.ResourceParam[Platform], config: Decision) -> None:
    """End a run without a publication."""
    with _deciding(context, platform, config.run_id):
        decisions.cancel(platform, config.run_id, by=config.by, comment=config.comment)
    context.log.info("%s: CANCELLED by %s", config.run_id, config.by)


@dg.op
def accept(context: OpExecutionContext, platform: dg.ResourceParam[Platform], config: Acceptance) -> None:
    """Accept, as an owner, what a gate asks an owner for."""
    with _deciding(context, platform, config.run_id):
        record = decisions.accept_change(
            platform, config.run_id, config.gate, by=config.by, reason=config.comment, plan_hash=config.plan_hash
        )
    tell_run_again(platform, context.instance, platform.products.target(record.target), record.run_id)
    context.log.info("%s: %s accepted by %s; the run is %s", config.run_id, config.gate, config.by, record.state)


@dg.op
def stop(context: OpExecutionContext, platform: dg.ResourceParam[Platform], config: Decision) -> None:
    """Stop a run: what is being computed of it ends, and nothing is published until it is launched again."""
    with _deciding(context, platform, config.run_id):
        done, record = decisions.stop(
            platform, config.run_id, by=config.by, reason=config.comment, through="the job stop_run"
        )
    context.log.info("%s: %s; the run is %s. %s", config.run_id, done, record.state, done.note)


@dg.op
def pause(context: OpExecutionContext, platform: dg.ResourceParam[Platform], config: Decision) -> None:
    """Pause a run: its batch is let finish, and nothing begins after it until somebody resumes the run."""
    with _deciding(context, platform, config.run_id):
        done, record = pausing.pause(
            platform, config.run_id, by=config.by, reason=config.comment, through="the job pause_run"
        )
    context.log.info("%s: %s; the run is %s. %s", config.run_id, done, record.state, done.note)


@dg.op
def resume(context: OpExecutionContext, platform: dg.ResourceParam[Platform], config: Decision) -> None:
    """Decide that a paused run goes on, and why; whoever launches its chunks next computes what is left."""
    with _deciding(context, platform, config.run_id):
        ended = pausing.resume(platform, config.run_id, by=config.by, reason=config.comment)
    for one in ended:
        context.log.info("%s: resumed by %s; it was %s. Launch its chunks again.", config.run_id, one.resumed_by, one)


_TO_FILL_IN = {
    "run_id": "FILL IN: the backfill run",
    "plan_hash": "FILL IN: the first 12 characters of the plan",
    "gate": "FILL IN: the gate that asks",
    "by": "",
    "comment": "",
}


def _form(op: str, config: type[Decision]) -> dict[str, Any]:
    """Return what a job's form starts with: what has to be said, in words, in the place where it is said.

    It is complete, so that Dagster finds no fault with it before anybody has typed; sent as it is, no such run is found.
    Breaking the glass is not suggested.
    """
    wanted = {name: text for name, text in _TO_FILL_IN.items() if name in config.model_fields}
    return {"ops": {op: {"config": wanted}}}


@dg.job(
    description="Approves the plan of a backfill run; refused, in words, where the policy does not allow it.",
    config=_form("approve", Approval),
)
def approve_run() -> None:
    """Approve a run from a form."""
    approve()


@dg.job(
    description="Rejects a backfill run for good.",
    config=_form("reject", PlanDecision),
)
def reject_run() -> None:
    """Reject a run from a form."""
    reject()


@dg.job(
    description="Records that somebody has reviewed a backfill run.",
    config=_form("review", PlanDecision),
)
def review_run() -> None:
    """Review a run from a form."""
    review()


@dg.job(
    description="Publishes a validated backfill run by hand, in the name of a publisher.",
    config=_form("publish", Publication),
)
def publish_run() -> None:
    """Publish a run from a form."""
    publish()


@dg.job(
    description="Rolls a published backfill run back, in the name of a publisher: what it replaced is shown again.",
    config=_form("roll_back", Publication),
)
def roll_back_run() -> None:
    """Roll a run back from a form."""
    roll_back()


@dg.job(
    description="Undoes the rollback of a backfill run, in the name of a publisher: what it had published is shown again.",
    config=_form("reinstate", Publication),
)
def reinstate_run() -> None:
    """Reinstate a run from a form."""
    reinstate()


@dg.job(
    description="Ends a backfill run without publishing it; what is staged stays on record.",
    config=_form("cancel", Decision),
)
def cancel_run() -> None:
    """Cancel a run from a form."""
    cancel()


@dg.job(
    description="Accepts, as an owner of the table, a change that a gate asks an owner for.",
    config=_form("accept", Acceptance),
)
def accept_change() -> None:
    """Accept a change from a form."""
    accept()


@dg.job(
    description="Stops a backfill run: what is being computed of it ends within seconds, what is staged stays, and nothing is "
    "published until its chunks are launched again.",
    config=_form("stop", Decision),
)
def stop_run() -> None:
    """Stop a run from a form."""
    stop()


@dg.job(
    description="Pauses a backfill run: the batch under way is let finish and is staged, none begins after it, and nothing is "
    "published, until somebody resumes the run. `comment` is the reason, which is asked for.",
    config=_form("pause", Decision),
)
def pause_run() -> None:
    """Pause a run from a form."""
    pause()


@dg.job(
    description="Ends the pause of a backfill run, with the reason that is asked for in `comment`; then its chunks are launched again.",
    config=_form("resume", Decision),
)
def resume_run() -> None:
    """Resume a run from a form."""
    resume()


DECISION_JOBS = (
    approve_run,
    reject_run,
    review_run,
    publish_run,
    roll_back_run,
    reinstate_run,
    accept_change,
    stop_run,
    pause_run,
    resume_run,
    cancel_run,
)
