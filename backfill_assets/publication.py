"""The publisher: the one place where what readers see is changed, and changed back.

Put here what must be true before a publication, the publication itself and its undoing. It trusts the ledger and the
target's own history, and nothing that Dagster or a caller says. Every step is safe to repeat after a crash: whether a
commit landed is read from the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backfill_assets import faults
from backfill_assets.executor import CHUNK_GATE
from backfill_assets.platform import Platform, target_named
from backfill_assets.target import TargetTable
from manifests.canonical import plain
from manifests.errors import Problem, PublicationDeferred, PublicationRefused, Refused
from manifests.lifecycle import RunState
from manifests.planner import Plan
from resources import freezes
from resources.lakehouse import (
    ACTION_PROPERTY,
    EVIDENCE_PROPERTY,
    PLAN_PROPERTY,
    RUN_PROPERTY,
    VERSION_PROPERTY,
    Scope,
)
from resources.ledger import ChunkRecord, ChunkState, RunRecord, now, operator

PUBLISH, ROLLBACK = "publish", "rollback"


@dataclass(frozen=True)
class Published:
    """A publication (or rollback) that landed. `new` is False if it had landed before this call."""

    run_id: str
    snapshot_id: int
    base_snapshot_id: int | None
    files_added: int
    files_removed: int
    evidence_root: str
    new: bool


def require_publishable(platform: Platform, run_id: str) -> tuple[RunRecord, list[ChunkRecord]]:
    """Return the run and its chunks if everything that must precede a publication is on record.

    Raises:
        PublicationRefused: with everything that is missing.
    """
    record = platform.ledger.run(run_id)
    plan = record.plan
    chunks = platform.ledger.chunks(run_id)
    problems = []
    if record.state is not RunState.VALIDATED:
        why = f" ({record.state_reason})" if record.state_reason else ""
        problems.append(
            Problem(
                f"run '{run_id}' is {record.state}{why}",
                "only a VALIDATED run is published",
                "see `backfill status` for what it waits for",
            )
        )
    if not plan.publishes:
        problems.append(
            Problem(
                f"run '{run_id}' has mode {plan.mode}",
                "a run that only looks is never published",
                "plan it as what it is",
            )
        )
    if plan.hash != record.plan_hash or record.manifest.hash != plan.manifest_hash:
        problems.append(
            Problem(
                f"the recorded plan or manifest of '{run_id}' does not match its hash",
                "an approved plan is immutable",
                "the ledger was changed by hand; find out by whom",
            )
        )
    decisions = platform.ledger.approvals(run_id)
    if not any(one["decision"] == "APPROVED" and one["plan_hash"] == record.plan_hash for one in decisions):
        problems.append(
            Problem(
                f"no approval of plan {record.plan_hash} is on record",
                "a plan is approved before it runs",
                "have it approved",
            )
        )
    problems += _gate_problems(platform, run_id, plan, chunks)
    if problems:
        raise PublicationRefused(problems)
    return record, chunks


def _gate_problems(platform: Platform, run_id: str, plan: Plan, chunks: list[ChunkRecord]) -> list[Problem]:
    problems = []
    verdicts = {(verdict.chunk, verdict.gate): verdict for verdict in platform.ledger.verdicts(run_id)}
    open_chunks = [
        chunk.chunk
        for chunk in chunks
        if chunk.state is not ChunkState.PASSED
        or (verdict := verdicts.get((chunk.chunk, CHUNK_GATE))) is None
        or not verdict.passed
        or verdict.attempt != chunk.attempt
    ]
    if open_chunks or len(chunks) != len(plan.chunks):
        shown = ", ".join(open_chunks[:10]) + (" …" if len(open_chunks) > 10 else "")  # noqa: PLR2004
        problems.append(
            Problem(
                f"{len(open_chunks)} chunk(s) have not passed their gate: {shown}",
                "every planned chunk is staged and has passed",
                "run or repair them",
            )
        )
    missing = [gate for gate in plan.gates if ("", gate) not in verdicts]
    failed = [gate for gate in plan.gates if ("", gate) in verdicts and not verdicts["", gate].passed]
    if missing:
        problems.append(
            Problem(f"no verdict of {', '.join(missing)}", "every run-level gate has judged", "run the gates")
        )
    if failed:
        problems.append(
            Problem(
                f"not passed: {', '.join(failed)}",
                "every run-level gate passes",
                "see `backfill status` for the rows that disagree",
            )
        )
    return problems


def _require_thawed(platform: Platform, record: RunRecord) -> None:
    frozen = freezes.ask(platform.ledger.engine, record.plan, now())
    if frozen:
        raise PublicationDeferred(
            Problem(
                f"run '{record.run_id}' would write into what is frozen by {freeze}",
                "LIVE waits for the end of a freeze; nothing of it is lost, and nothing was changed",
                f"it goes on by itself when '{freeze.run_id}' has ended; cancelling that run ends the freeze as well",
            )
            for freeze in frozen
        )


def publish(platform: Platform, run_id: str) -> Published:
    """Publish a validated run as one snapshot of its target.

    Safe to repeat: a publication that landed, recorded or not, is found in the target and not made twice.

    Raises:
        PublicationRefused: if anything that must precede it is missing, or somebody else wrote into the scope.
        PublicationDeferred: if the run is LIVE and a freeze covers part of its scope; it stays VALIDATED.
    """
    record = platform.ledger.run(run_id)
    target = target_named(record.target)
    landed = platform.lakehouse.find_publication(target.name, run_id, PUBLISH)
    if landed is not None and record.state in {RunState.PUBLISHED, RunState.SUPERSEDED}:
        return _already(platform, record, landed.snapshot_id, PUBLISH)
    record, chunks = require_publishable(platform, run_id)
    if landed is None:
        _require_thawed(platform, record)
    root = platform.evidence.seal(run_id, evidence_files(platform, record, chunks))
    faults.reach("publishing.sealed")
    plan = record.plan
    entry = platform.ledger.open_publication(run_id, PUBLISH, plan.base_snapshot_id, root, operator())
    if landed is None:
        if plan.base_snapshot_id is not None:
            platform.lakehouse.tag(target.name, f"before-{run_id}", plan.base_snapshot_id)
        faults.reach("publishing.tagged")
        try:
            commit = platform.lakehouse.replace(
                target.name,
                scope_of(target, plan),
                base_snapshot_id=plan.base_snapshot_id,
                staged=[file for chunk in chunks for file in chunk.files],
                properties=_properties(record, PUBLISH, root),
            )
        except PublicationRefused as refusal:
            platform.ledger.close_refused(entry, str(refusal))
            platform.ledger.move(run_id, RunState.REJECTED, operator(), refusal.problems[0].what)
            raise
        snapshot_id, added, removed = commit.snapshot_id, commit.files_added, commit.files_removed
    else:  # it landed, and the process died before it could say so
        snapshot_id, added, removed = landed.snapshot_id, *platform.lakehouse.changed_files(target.name, landed)
    faults.reach("publishing.committed")
    platform.ledger.accept(run_id, entry, snapshot_id=snapshot_id, added=added, removed=removed, actor=operator())
    faults.reach("publishing.recorded")
    done = Published(run_id, snapshot_id, plan.base_snapshot_id, added, removed, root, new=True)
    _tell_the_world(platform, record, done, PUBLISH)
    return done


def rollback(platform: Platform, run_id: str) -> Published:
    """Put back what a published run replaced, as a new snapshot.

    Raises:
        PublicationRefused: if the run is not published, a later run holds part of its scope, or somebody else wrote there.
    """
    record = platform.ledger.run(run_id)
    target = target_named(record.target)
    undone = platform.lakehouse.find_publication(target.name, run_id, ROLLBACK)
    if undone is not None and record.state is RunState.ROLLED_BACK:
        return _already(platform, record, undone.snapshot_id, ROLLBACK)
    if record.state is not RunState.PUBLISHED:
        raise PublicationRefused(
            Problem(f"run '{run_id}' is {record.state}", "only a PUBLISHED run is rolled back", "see `backfill status`")
        )
    published = platform.lakehouse.find_publication(target.name, run_id, PUBLISH)
    if published is None:
        raise PublicationRefused(
            Problem(
                f"the publication of '{run_id}' is not in the history of {target.name}",
                "a rollback undoes what the target's history shows",
                "somebody moved the table; inspect its snapshots",
            )
        )
    plan = record.plan
    holders = platform.ledger.accepted(target.name, [chunk.key for chunk in plan.chunks])
    later = sorted({holder for holder in holders.values() if holder != run_id})
    if later:
        chunks = sorted(chunk for chunk, holder in holders.items() if holder != run_id)
        raise PublicationRefused(
            Problem(
                f"{len(chunks)} chunk(s) of '{run_id}' are held by later run(s) {', '.join(later)}: {', '.join(chunks[:10])}",
                "a run is rolled back while it holds its whole scope",
                f"roll back {', '.join(later)} first, or restate the scope with a new run",
            )
        )
    root = platform.evidence.verify(run_id)
    entry = platform.ledger.open_publication(run_id, ROLLBACK, published.snapshot_id, root, operator())
    if undone is None:
        try:
            commit = platform.lakehouse.restore(
                target.name,
                scope_of(target, plan),
                from_snapshot_id=published.snapshot_id,
                to_snapshot_id=published.parent_snapshot_id,
                properties=_properties(record, ROLLBACK, root),
            )
        except PublicationRefused as refusal:
            platform.ledger.close_refused(entry, str(refusal))
            raise
        snapshot_id, added, removed = commit.snapshot_id, commit.files_added, commit.files_removed
    else:
        snapshot_id, added, removed = undone.snapshot_id, *platform.lakehouse.changed_files(target.name, undone)
    faults.reach("publishing.committed")
    platform.ledger.undo(run_id, entry, snapshot_id=snapshot_id, added=added, removed=removed, actor=operator())
    done = Published(run_id, snapshot_id, published.snapshot_id, added, removed, root, new=True)
    _tell_the_world(platform, record, done, ROLLBACK)
    return done


def scope_of(target: TargetTable, plan: Plan) -> Scope:
    """Return what a plan may change of its target."""
    return Scope(target.day_column, plan.publish_range.start, plan.publish_range.end)


def evidence_files(platform: Platform, record: RunRecord, chunks: list[ChunkRecord]) -> dict[str, Any]:
    """Return the content of a run's evidence bundle, from the ledger alone."""
    run_id = record.run_id
    return {
        "manifest.json": record.manifest.model_dump(mode="json", by_alias=True),
        "plan.json": record.plan,
        "hashes.json": {"manifest": record.manifest_hash, "plan": record.plan_hash},
        "code.json": record.plan.code,
        "chunks.json": chunks,
        "verdicts.json": platform.ledger.verdicts(run_id),
        "approvals.json": platform.ledger.approvals(run_id),
        "attempts.json": platform.ledger.attempts(run_id),
        "transitions.json": platform.ledger.history(run_id),
        "sink_requests.json": platform.ledger.sink_attempts(run_id),
    }


def _properties(record: RunRecord, action: str, root: str) -> dict[str, str]:
    return {
        RUN_PROPERTY: record.run_id,
        ACTION_PROPERTY: action,
        PLAN_PROPERTY: record.plan_hash,
        VERSION_PROPERTY: record.plan.transform_version,
        EVIDENCE_PROPERTY: root,
    }


def _already(platform: Platform, record: RunRecord, snapshot_id: int, action: str) -> Published:
    entry = next(
        one
        for one in reversed(platform.ledger.publications(record.run_id))
        if one["action"] == action and one["state"] == "COMMITTED"
    )
    done = Published(
        record.run_id,
        snapshot_id,
        entry["base_snapshot_id"],
        entry["files_added"],
        entry["files_removed"],
        entry["evidence_root"],
        new=False,
    )
    _tell_the_world(platform, record, done, action)  # in case the process died between recording and telling
    return done


def _tell_the_world(platform: Platform, record: RunRecord, done: Published, action: str) -> None:
    """Append to the evidence, and send to each sink the manifest grants; each recognises a repetition."""
    facts = {name: value for name, value in plain(done).items() if name != "new"}
    platform.evidence.append(record.run_id, action, facts | {"at": now()})
    done_before = {
        (one["sink"], one["action"])
        for one in platform.ledger.sink_attempts(record.run_id)
        if one["decision"] == "SENT"
    }
    for name in record.manifest.safety.sinks:
        if (name, action) in done_before:
            continue
        try:
            sink = platform.sinks.open(name, mode=record.plan.mode, manifest=record.manifest, action=action)
            sink.send(
                record.run_id, action, now(), facts | {"measured": _totals(platform.ledger.chunks(record.run_id))}
            )
        except Refused as refusal:
            platform.sinks.record_outcome(record.manifest, name, action, "FAILED", str(refusal))
        else:
            platform.sinks.record_outcome(record.manifest, name, action, "SENT", "")


def _totals(chunks: list[ChunkRecord]) -> list[dict[str, Any]]:
    """Add up what the chunk gates measured, slice by slice: what a sink is told of a run."""
    totals: dict[tuple[tuple[str, Any], ...], dict[str, int]] = {}
    for chunk in chunks:
        for row in chunk.measures.get("slices", []):
            sums = {name: value for name, value in row.items() if isinstance(value, int)}
            found = totals.setdefault(tuple((name, value) for name, value in row.items() if name not in sums), {})
            for name, value in sums.items():
                found[name] = found.get(name, 0) + value
    return [dict(place) | sums for place, sums in sorted(totals.items(), key=repr)]
