"""The publisher: the one place where what readers see is changed, and changed back.

Put here what must be true before a publication, the publication itself and its undoing. It trusts the ledger and the
target's own history, and nothing that Dagster or a caller says. Every step is safe to repeat after a crash: whether a
commit landed is read from the target.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, wraps
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

from backfill_assets import faults
from backfill_assets.evidence.events import REFUSED, TOLD
from backfill_assets.evidence.records import (
    AMENDMENTS_FILE,
    bundle_files,
    bundle_in_use,
    catch_up,
    name_of,
    require_explained,
    require_no_later,
    require_of_the_run,
    require_unharmed,
    require_vouched_for,
    tell,
)
from backfill_assets.gates.judging import CHUNK_GATE
from backfill_assets.installation import Platform
from backfill_assets.planning.old_data import PUBLISHING, require_nobody_erased
from backfill_assets.planning.resolve import replanned
from backfill_assets.publication.changes_by_mode import Change
from backfill_assets.publication.heads import keep
from backfill_assets.publication.leasing import held, leases_of, publishing_lease, put_on_record
from backfill_assets.staging import stopping
from backfill_assets.staging.derivation import chunk_scopes
from backfill_assets.staging.executor import require_young
from manifests.canonical import plain
from manifests.chunks import in_words
from manifests.errors import (
    InputRefused,
    LeaseHeld,
    LeaseLost,
    Problem,
    PublicationDeferred,
    PublicationRefused,
    Refused,
    StateMoved,
)
from manifests.kinds import FIRST_OUTPUT
from manifests.lifecycle import ACCEPT, CANCEL, PREPARE, PUBLISH, REINSTATE, ROLLBACK, DecisionKind, RunState, undone_by
from manifests.model import ON_BRANCH, Acceptance, OnConflict, PublishMode
from manifests.planner import Plan, step_id
from manifests.policy import Role
from resources import logs
from resources.lakehouse.facade import ScopeChanged
from resources.ledger import judged, launches, stops
from resources.ledger.facade import ChunkRecord, ChunkState, PublicationRecord, RunRecord, now, operator
from resources.ledger.leases import Lease

_log = logging.getLogger(__name__)
_PUBLISHED = frozenset({RunState.PUBLISHED, RunState.SUPERSEDED})
_PREPARING_SECONDS = 30.0
"""How long a candidate waits for a scope that somebody else holds, looking again after `_PREPARING_PAUSE`."""
_PREPARING_PAUSE = 0.5


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


_P = ParamSpec("_P")
_R = TypeVar("_R")


_HEADLINES = {
    ROLLBACK: "the rollback is refused",
    REINSTATE: "the reinstatement is refused",
    ACCEPT: "the acceptance is refused",
}
"""What a refusal says of what was asked for, where that is no publication."""


def _logged(
    action: str,
) -> Callable[[Callable[Concatenate[Platform, str, _P], _R]], Callable[Concatenate[Platform, str, _P], _R]]:
    """Have what is written about a run carry its fields, and write that an action was asked for and what came of it."""

    def decorate(
        function: Callable[Concatenate[Platform, str, _P], _R],
    ) -> Callable[Concatenate[Platform, str, _P], _R]:
        @wraps(function)
        def wrapped(platform: Platform, run_id: str, /, *args: _P.args, **named: _P.kwargs) -> _R:
            with logs.of_run(platform.ledger.run(run_id).plan):
                logs.event(
                    _log, logging.INFO, f"{action}_started", f"{action} asked for by {operator()}", by=operator()
                )
                try:
                    with stopping.undisturbed(platform, run_id):
                        done = function(platform, run_id, *args, **named)
                except (PublicationDeferred, LeaseHeld) as wait:
                    why = wait.problems[0].what
                    logs.event(
                        _log, logging.INFO, f"{action}_waits", f"{action} has to wait: {why}", told=True, why=why
                    )
                    raise
                except Refused as refusal:
                    if isinstance(refusal, PublicationRefused):
                        refusal.headline = _HEADLINES.get(action, refusal.headline)
                    why = refusal.problems[0].what
                    logs.event(
                        _log, logging.WARNING, f"{action}_refused", f"{action} refused: {why}", told=True, why=why
                    )
                    raise
                facts: dict[str, Any] = {}
                if isinstance(done, Published):
                    facts = {name: value for name, value in plain(done).items() if name != "run_id"}
                said = f": snapshot {done.snapshot_id}" if isinstance(done, Published) else ""
                again = "" if facts.get("new", True) else ", done before"
                logs.event(_log, logging.INFO, f"{action}_done", f"{action} done{said}{again}", **facts)
                keep(platform)
                return done

        return wrapped

    return decorate


def require_publishable(platform: Platform, run_id: str) -> tuple[RunRecord, list[ChunkRecord]]:
    """Return the run and its chunks if everything that must precede a publication is on record.

    Raises:
        PublicationRefused: with everything that is missing.
    """
    record = platform.ledger.run(run_id)
    plan = record.plan
    chunks = platform.ledger.chunks(run_id)
    problems: list[Problem] = []
    if record.state is not RunState.VALIDATED:
        if (stop := platform.ledger.stops.held(run_id)) is not None:
            problems += stops.refusal(stop).problems
        said = launches.reason(record, None if stop else platform.ledger.launches.waits(record, chunks=chunks))
        why = f" ({said})" if said and not (stop and record.state is RunState.RUNNING) else ""
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
    if not any(one.decision is DecisionKind.APPROVED and one.plan_hash == record.plan_hash for one in decisions):
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


def policy_problems(platform: Platform, record: RunRecord) -> list[Problem]:
    """Say what people have decided that stands against a publication: a stop, the run's age, and who has to publish.

    Not asked of a publication that has landed already: it is put on record, whatever the policy says today.
    """
    platform.ledger.policies.require_explained()
    problems = platform.ledger.ticks.problems(record.manifest)
    if (stop := platform.ledger.stops.held(record.run_id)) is not None:
        problems += stops.refusal(stop).problems
    try:
        require_young(platform, record)
    except Refused as refusal:
        problems += refusal.problems
    policy = platform.policy
    publishers = policy.rule_for(record.target, record.kind).of(Role.PUBLISHER)
    decided = platform.ledger.publication_decided(record)
    by_one = decided is not None and bool(decided.break_glass or policy.includes(publishers or (), decided.decided_by))
    if publishers is not None and not by_one:
        problems.append(
            Problem(
                f"no publisher has decided to publish '{record.run_id}'",
                f"the policy names {', '.join(publishers) or 'nobody'} as publishers of {record.target}",
                f"`backfill publish {record.run_id} --by NAME`, or the job publish_run",
            )
        )
    return problems


def _gate_problems(platform: Platform, run_id: str, plan: Plan, chunks: list[ChunkRecord]) -> list[Problem]:
    problems: list[Problem] = []
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
    accepted = platform.ledger.accepted_gates(run_id)
    not_passed = [gate for gate in plan.gates if ("", gate) in verdicts and not verdicts["", gate].passed]
    failed = [gate for gate in not_passed if gate not in accepted]
    staged = judged.name_of(chunks)
    older = [
        gate for gate in plan.gates if ("", gate) in verdicts and not judged.is_about(verdicts["", gate].judged, staged)
    ]
    if older:
        problems.append(
            Problem(
                f"{', '.join(older)} judged other files than those that are staged",
                "a verdict counts for the files it was made of",
                f"`backfill run {run_id}` judges what is staged",
            )
        )
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
    frozen = platform.ledger.freezes.ask(record.plan, now())
    if frozen:
        raise PublicationDeferred(
            Problem(
                f"run '{record.run_id}' would write into what is frozen by {freeze}",
                "LIVE waits for the end of a freeze; nothing of it is lost, and nothing was changed",
                f"it goes on by itself when '{freeze.run_id}' has ended; cancelling that run ends the freeze as well",
            )
            for freeze in frozen
        )


@_logged(PUBLISH)
def publish(platform: Platform, run_id: str) -> Published:
    """Publish a validated run by one commit of each table that it changes, in the way its publish mode says.

    Safe to repeat: a publication that landed, recorded or not, is found in the target and not made twice.

    Raises:
        LeaseHeld: if somebody else is publishing into the scope.
        LeaseLost: if this process was paused for so long that somebody else has taken the scope over.
        PublicationRefused: if anything that must precede it is missing, or somebody else wrote into the scope.
        PublicationDeferred: if it has to wait (a LIVE run for the end of a freeze), or chunks in conflict were planned
            anew and must be computed first.
    """
    record = platform.ledger.run(run_id)
    if record.state in _PUBLISHED:
        return _already(platform, record, {PUBLISH, REINSTATE})
    record, _ = require_publishable(platform, run_id)
    _require_predecessor(platform, record)
    with publishing_lease(platform, record, PUBLISH) as lease:
        # another process may have published it just before this one got the lease
        done = None if platform.ledger.run(run_id).state in _PUBLISHED else _publish(platform, run_id, lease)
    if done is None:
        return _already(platform, platform.ledger.run(run_id), {PUBLISH, REINSTATE})
    _tell_the_world(platform, record, done, PUBLISH)
    return done


def _publish(platform: Platform, run_id: str, lease: Lease) -> Published:
    record, chunks = require_publishable(platform, run_id)
    change = change_of(platform, record, chunks, lease)
    change.take_announcement_back()
    held_against = ""  # what has landed is put on record, whatever the policy says today
    if not change.has_landed:
        require_explained(platform, run_id)
        require_vouched_for(platform, run_id)
        require_unharmed(platform, run_id)  # before anything lands: what has happened could not be recorded past it
        held_against = platform.policy.hash
        if found := policy_problems(platform, record):
            raise PublicationRefused(found)
        _require_thawed(platform, record)
        if conflicts := change.conflicts():
            _in_conflict(platform, change, conflicts, lease)
        try:
            _require_nobody_erased(platform, change)
        except PublicationRefused as refusal:  # what is staged can never be shown: it must be computed anew
            _reject(platform, run_id, refusal.problems[0].what, lease)
            raise
    root = _seal(platform, change)
    faults.reach("publishing.sealed")
    plan = record.plan
    ref = plan.version or ""
    entry = platform.ledger.open_publication(
        run_id,
        PUBLISH,
        plan.base_snapshot_id,
        root,
        operator(),
        ref=ref,
        token=lease.token,
        unless_stopped=not change.has_landed,
        policy_hash=held_against,
    )
    for tag, base in change.base_tags.items():
        platform.lakehouse.tag(plan.target, tag, base)
    faults.reach("publishing.tagged")
    try:
        change.prepare(root)
        faults.reach("publishing.prepared")
        leases_of(platform).renew(lease)
        faults.reach("publishing.leased")
        commit = change.publish(root)
    except (LeaseLost, PublicationRefused) as refusal:
        if (
            not change.has_landed
        ):  # else, whatever the catalog has said, the next holder of the scope brings it to an end
            _not_committed(platform, change, entry, refusal, lease)
        raise
    faults.reach("publishing.committed")
    platform.ledger.accept(
        run_id,
        entry,
        snapshot_id=commit.snapshot_id,
        added=commit.files_added,
        removed=commit.files_removed,
        actor=operator(),
        keys=change.holds,
    )
    faults.reach("publishing.recorded")
    return Published(
        run_id, commit.snapshot_id, plan.base_snapshot_id, commit.files_added, commit.files_removed, root, new=True
    )


def _not_committed(
    platform: Platform, change: Change, entry: int, refusal: LeaseLost | PublicationRefused, lease: Lease
) -> None:
    """Close the entry of a publication that changed nothing; the run is as good as before only where its lease was lost."""
    platform.ledger.close_refused(entry, str(refusal))
    if isinstance(refusal, LeaseLost):
        return
    if isinstance(refusal, ScopeChanged) and (conflicts := change.conflicts()):
        _in_conflict(platform, change, conflicts, lease)
    _reject(platform, change.record.run_id, refusal.problems[0].what, lease)


def _reject(platform: Platform, run_id: str, why: str, lease: Lease) -> None:
    """Move a validated run to REJECTED for what was found in its target under a lease."""
    platform.ledger.move(run_id, RunState.REJECTED, operator(), why, expected=RunState.VALIDATED, token=lease.token)


def _require_nobody_erased(platform: Platform, change: Change) -> None:
    files = [file.path for table in change.tables for file in change.files(table)]
    require_nobody_erased(platform, change.target, change.plan, files, PUBLISHING)


def prepare(platform: Platform, run_id: str) -> str | None:
    """Put the candidate of a validated run on its branch, where its publish mode has one; return the branch.

    Safe to repeat. Anybody can query the branch before the publication, which then only moves a pointer. None as well where
    somebody else holds the scope for so long that it is left to the publication, which prepares what is not prepared yet.
    """
    record = platform.ledger.run(run_id)
    give_up = time.monotonic() + _PREPARING_SECONDS
    while _has_candidate(record):
        try:
            with publishing_lease(platform, record, PREPARE) as lease:
                record = platform.ledger.run(run_id)  # a publisher may have been here just before
                return _prepare(platform, run_id, lease) if _has_candidate(record) else None
        except (LeaseHeld, LeaseLost) as other:
            if time.monotonic() > give_up:
                why = other.problems[0].what
                logs.event(
                    _log, logging.INFO, "prepare_waits", f"the candidate is left to the publication: {why}", why=why
                )
                return None
        time.sleep(_PREPARING_PAUSE)
        record = platform.ledger.run(run_id)
    return None


def _has_candidate(record: RunRecord) -> bool:
    on_branch = record.plan.publish_mode in ON_BRANCH and record.plan.publishes
    return on_branch and record.state is RunState.VALIDATED


def _prepare(platform: Platform, run_id: str, lease: Lease) -> str:
    change = change_of(platform, *require_publishable(platform, run_id), lease)
    require_explained(platform, run_id)
    require_vouched_for(platform, run_id)
    require_unharmed(platform, run_id)
    _require_nobody_erased(platform, change)
    root = _seal(platform, change)
    leases_of(platform).renew(lease)
    change.prepare(root)
    return change.branch


@_logged(ROLLBACK)
def rollback(platform: Platform, run_id: str) -> Published:
    """Put back what a published run replaced, as a new snapshot.

    Raises:
        PublicationRefused: if the run is not published, a later run holds part of its scope, or somebody else wrote there.
    """
    record = up_to_date(platform, run_id, ROLLBACK)
    if record.state is RunState.ROLLED_BACK:
        return _already(platform, record, {ROLLBACK})
    if record.state is not RunState.PUBLISHED:
        way_out = "see `backfill status`"
        if record.state is RunState.SUPERSEDED:
            holders = platform.ledger.accepted(record.target, [chunk.key for chunk in record.plan.chunks])
            later = sorted(set(holders.values()))
            way_out = f"roll back {', '.join(later)} first, or restate the scope with a new run"
        raise PublicationRefused(
            Problem(
                f"run '{run_id}' is {record.state}" + (f" {record.state_reason}" if record.state_reason else ""),
                "only a PUBLISHED run is rolled back",
                way_out,
            )
        )
    with publishing_lease(platform, record, ROLLBACK) as lease:
        done, number = _roll_back(platform, run_id, lease)
    _tell_the_world(platform, record, done, ROLLBACK, number)
    return done


def _roll_back(platform: Platform, run_id: str, lease: Lease) -> tuple[Published, int]:
    record = platform.ledger.run(run_id)
    change = change_of(platform, record, platform.ledger.chunks(run_id), lease)
    holders = platform.ledger.accepted(record.target, held(platform, change))
    later = sorted({holder for holder in holders.values() if holder != run_id})
    if later:
        chunks = sorted(chunk for chunk, holder in holders.items() if holder != run_id)
        raise PublicationRefused(
            Problem(
                f"{len(chunks)} chunk(s) of '{run_id}' are held by later run(s) {', '.join(later)}: {in_words(chunks)}",
                "a run is rolled back while it holds its whole scope",
                f"roll back {', '.join(later)} first, or restate the scope with a new run",
            )
        )
    return _undo(platform, change, ROLLBACK, lease)


@_logged(REINSTATE)
def reinstate(platform: Platform, run_id: str) -> Published:
    """Undo the rollback of a run, as a new snapshot: its rows are what readers see again.

    Raises:
        PublicationRefused: if the run is not rolled back, or somebody has written into its scope since.
    """
    record = up_to_date(platform, run_id, REINSTATE)
    if record.state is RunState.PUBLISHED and _last(platform, run_id, {REINSTATE}) is not None:
        return _already(platform, record, {REINSTATE})
    if record.state is not RunState.ROLLED_BACK:
        raise PublicationRefused(
            Problem(
                f"run '{run_id}' is {record.state}", "only a ROLLED_BACK run is reinstated", "see `backfill status`"
            )
        )
    with publishing_lease(platform, record, REINSTATE) as lease:
        change = change_of(platform, platform.ledger.run(run_id), platform.ledger.chunks(run_id), lease)
        done, number = _undo(platform, change, REINSTATE, lease)
    _tell_the_world(platform, record, done, REINSTATE, number)
    return done


def up_to_date(platform: Platform, run_id: str, action: str) -> RunRecord:
    """Return a run after recording what another action of its own has committed and could not say.

    Else "it is rolled back already" could be said of rows that an interrupted reinstatement shows to everybody.
    """
    record = platform.ledger.run(run_id)
    if record.state not in {RunState.PUBLISHED, RunState.ROLLED_BACK}:
        return record
    interrupted = platform.ledger.interrupted_publications(record.target)
    if any(one == run_id and what != action for _, one, what in interrupted):
        with publishing_lease(platform, record, action):
            return platform.ledger.run(run_id)
    return record


def _undo(platform: Platform, change: Change, action: str, lease: Lease) -> tuple[Published, int]:
    """Undo a run's last change of its tables by a new one, and record it; return its number, too.

    Raises:
        PublicationRefused: if another process has done it just before this one got the lease.
    """
    wanted = RunState.PUBLISHED if action == ROLLBACK else RunState.ROLLED_BACK
    if change.record.state is not wanted:
        raise PublicationRefused(
            Problem(
                f"run '{change.record.run_id}' is {change.record.state} by now",
                f"a {action} starts from {wanted}",
                "see `backfill status`",
            )
        )
    run_id, ledger = change.record.run_id, platform.ledger
    root = platform.evidence.verify(run_id, bundle_in_use(platform, run_id))
    require_unharmed(platform, run_id)
    done_before = [one for one in ledger.publications(run_id) if one.has_landed]
    if not done_before:
        raise _not_on_record(change.record)
    last = done_before[-1]
    undone = undone_by([one.change for one in done_before])
    if not change.has_undone(action, len(done_before) + 1):
        files = change.returning(action, undone)
        require_nobody_erased(platform, change.target, change.plan, files, f"the {action}")
    entry = ledger.open_publication(
        run_id, action, last.snapshot_id, root, operator(), ref=change.plan.version or "", token=lease.token
    )
    try:
        leases_of(platform).renew(lease)
        commit = change.undo(action, len(done_before) + 1, undone, root)
    except (InputRefused, LeaseLost, PublicationRefused) as refusal:
        if not change.has_undone(action, len(done_before) + 1):
            ledger.close_refused(entry, str(refusal))
        catch_up(platform, run_id, REFUSED, {"action": action})
        raise
    faults.reach("undoing.committed")
    put_on_record(platform, change, entry, action, commit)
    done = Published(
        run_id, commit.snapshot_id, last.snapshot_id, commit.files_added, commit.files_removed, root, new=True
    )
    return done, len(done_before) + 1


@_logged(ACCEPT)
def accept(platform: Platform, run_id: str) -> Published:
    """Make a version that was published under its name what main shows.

    Raises:
        PublicationRefused: if the run has no such version, or main has moved since it was planned.
    """
    record = _with_version(platform, run_id)
    if _last(platform, run_id, {ACCEPT}) is not None:
        return _already(platform, record, {ACCEPT})
    with publishing_lease(platform, record, ACCEPT) as lease:
        record = _with_version(platform, run_id)  # its interrupted rollback may just have been recorded
        change = change_of(platform, record, platform.ledger.chunks(run_id), lease)
        root = platform.evidence.verify(run_id, bundle_in_use(platform, run_id))
        require_unharmed(platform, run_id)
        _require_nobody_erased(platform, change)
        base, ref = record.plan.base_snapshot_id, record.plan.version or ""
        entry = platform.ledger.open_publication(run_id, ACCEPT, base, root, operator(), ref=ref, token=lease.token)
        try:
            leases_of(platform).renew(lease)
            commit = change.accept()
        except (LeaseLost, PublicationRefused) as refusal:
            platform.ledger.close_refused(entry, str(refusal))
            catch_up(platform, run_id, REFUSED, {"action": ACCEPT})
            raise
        faults.reach("accepting.committed")
        platform.ledger.accept_version(run_id, entry, snapshot_id=commit.snapshot_id, actor=operator())
    done = Published(run_id, commit.snapshot_id, record.plan.base_snapshot_id, 0, 0, root, new=True)
    number = sum(one.has_landed for one in platform.ledger.publications(run_id))
    _tell_the_world(platform, record, done, ACCEPT, number)
    return done


def may_be_accepted(platform: Platform, run_id: str) -> bool:
    """Whether a run has published a version under its name that main was not made to show yet."""
    record = platform.ledger.run(run_id)
    published = record.state is RunState.PUBLISHED and record.plan.acceptance is Acceptance.LATER
    return published and _last(platform, run_id, {ACCEPT}) is None


def _with_version(platform: Platform, run_id: str) -> RunRecord:
    record = platform.ledger.run(run_id)
    if record.state is not RunState.PUBLISHED or record.plan.acceptance is not Acceptance.LATER:
        raise PublicationRefused(
            Problem(
                f"run '{run_id}' is {record.state} with acceptance {record.plan.acceptance or 'on publication'}",
                "a PUBLISHED run of publishMode VERSIONED and acceptance LATER is accepted",
                "see `backfill status`",
            )
        )
    return record


@_logged(CANCEL)
def cancel(platform: Platform, run_id: str, by: str, comment: str) -> None:
    """End a run without a publication.

    Raises:
        LeaseHeld: if it is being published just now.
        LeaseLost: if this process was paused for so long that somebody else has taken the scope over.
        PublicationRefused: if its publication has landed and was not recorded: readers have seen it.
    """

    def end(found: RunState, token: int | None) -> None:
        platform.ledger.move(run_id, RunState.CANCELLED, by, comment, expected=found, token=token)

    end_unpublished(platform, run_id, end)


def end_unpublished(platform: Platform, run_id: str, end: Callable[[RunState, int | None], None]) -> None:
    """Have a run ended that is not published: `end` moves it from the state it is given, and from no other.

    A run that could be published just now is ended under the lease of its scope, whose token `end` is given as well. If
    another process has moved the run since it was looked at, it is looked at again: it may have become VALIDATED, and
    may be published by now.

    Raises:
        LeaseHeld: if it is being published just now.
        LeaseLost: if this process was paused for so long that somebody else has taken the scope over.
        PublicationRefused: if its publication has landed and was not recorded: readers have seen it.
    """
    while True:  # each turn follows a step that somebody else took with the run
        record = platform.ledger.run(run_id)
        faults.reach("ending.looked")
        try:
            if record.state is not RunState.VALIDATED or not record.plan.publishes:
                return end(record.state, None)
            with publishing_lease(platform, record, CANCEL) as lease:
                record = platform.ledger.run(run_id)
                change = change_of(platform, record, platform.ledger.chunks(run_id), lease)
                _require_unseen(change)
                change.take_announcement_back()
                faults.reach("ending.leased")
                return end(record.state, lease.token)
        except StateMoved:
            continue


def _require_unseen(change: Change) -> None:
    """Refuse to end a run that readers have seen.

    Raises:
        PublicationRefused: if its publication has landed.
    """
    record = change.record
    if record.state is RunState.PUBLISHED or change.has_landed:
        raise PublicationRefused(
            Problem(
                f"the publication of '{record.run_id}' has landed in {record.target}",
                "what readers have seen is rolled back, not cancelled or rejected",
                f"roll it back; if it is VALIDATED still, `backfill publish {record.run_id}` first: it records what landed",
            )
        )


def change_of(platform: Platform, record: RunRecord, chunks: list[ChunkRecord], lease: Lease | None = None) -> Change:
    """Return the change that a run makes, under the lease it is committed with."""
    plans = platform.ledger.plans(record)
    return Change(
        platform, platform.products.target(record.target), record, chunks, plans, None if lease is None else lease.token
    )


def waits_for(platform: Platform, record: RunRecord) -> str | None:
    """Say what a validated run's publication waits for; None if it can be tried."""
    try:
        _require_predecessor(platform, record)
    except PublicationDeferred as wait:
        return wait.problems[0].what
    found = policy_problems(platform, record)
    if found and not change_of(platform, record, platform.ledger.chunks(record.run_id)).has_landed:
        return found[0].what
    terms = record.plan.conflict
    if terms is None or terms.on_conflict is not OnConflict.WAIT:
        return None
    if now() >= record.updated_at + timedelta(minutes=terms.wait_minutes):
        return None
    conflicts = change_of(platform, record, platform.ledger.chunks(record.run_id)).conflicts()
    return f"{len(conflicts)} chunk(s) have changed: {in_words(conflicts)}" if conflicts else None


def _require_predecessor(platform: Platform, record: RunRecord) -> None:
    """Refuse to publish a step of a progressive run before the one it follows.

    Raises:
        PublicationDeferred: if that one is not published.
    """
    series = record.manifest.series
    if series is None or series.step == 1:
        return
    before = step_id(series.of, series.step - 1)
    found = platform.ledger.find(before)
    if found is None or found.state not in {RunState.PUBLISHED, RunState.SUPERSEDED}:
        raise PublicationDeferred(
            Problem(
                f"run '{before}' is {'unknown' if found is None else found.state}",
                f"step {series.step} of '{series.of}' is published after step {series.step - 1}",
                f"publish '{before}' first",
            )
        )


def _seal(platform: Platform, change: Change) -> str:
    """Seal the run as it is under the lease, as the edition that it has there: it may be planned anew at any time after it."""
    record = change.record
    files = bundle_files(platform, record, change.token)
    edition = len(files.get(AMENDMENTS_FILE, ()))
    try:
        require_no_later(platform, record, edition)
        settled = partial(require_of_the_run, platform, record, files)
        return platform.evidence.seal(record.run_id, files, edition=edition, require=settled)
    except PublicationRefused:
        bundle_files(platform, record, change.token)  # a publisher that slept meets what the next one has sealed
        raise


# --- conflicts --------------------------------------------------------------------------------------------------------


def _in_conflict(platform: Platform, change: Change, conflicts: list[str], lease: Lease) -> NoReturn:
    """Do what the approved manifest says of a conflict: refuse for good, wait, or plan the chunks in conflict anew.

    Raises:
        LeaseLost: if somebody else has taken the scope over since the conflict was found, and nothing is done.
        PublicationRefused: the run is REJECTED.
        PublicationDeferred: the run waits, or must be computed again where it was planned anew.
    """
    run_id, terms = change.record.run_id, change.plan.conflict
    shown = ", ".join(conflicts[:10]) + (" …" if len(conflicts) > 10 else "")  # noqa: PLR2004
    what = f"{len(conflicts)} chunk(s) of {change.target.name} have changed since '{run_id}' was planned: {shown}"
    again = "plan the change again, under a new run id, on the table as it is now"
    policy = OnConflict.REFUSE if terms is None else terms.on_conflict
    if terms is not None and policy is OnConflict.WAIT:
        since = change.record.updated_at
        until = since + timedelta(minutes=terms.wait_minutes)
        if now() < until:
            raise PublicationDeferred(
                Problem(what, f"it waits until {until:%Y-%m-%d %H:%M} UTC for the other change to be undone", again)
            )
        again = f"it has waited {terms.wait_minutes} minutes; {again}"
    if terms is not None and policy is OnConflict.REPLAN:
        tried = len(platform.ledger.amendments(run_id))
        pinned = change.record.manifest.source.snapshot_id
        if _would_replace_first_rows(change, conflicts):
            again = f"{_first_output(change)} never replaces rows, so that planning it anew cannot help; {again}"
        elif tried < terms.max_replans and pinned is None:
            plan = replanned(platform, change.target, change.plan)
            number = platform.ledger.replan(run_id, plan, conflicts, actor=operator(), reason=what, token=lease.token)
            raise PublicationDeferred(
                Problem(what, f"they are planned anew (time {number} of {terms.max_replans})", "run them again")
            )
        elif pinned:
            again = f"the manifest pins the source's snapshot; {again}"
        else:
            again = f"planned anew {tried} times; {again}"
    lines = _differing_files(change, conflicts)
    refusal = PublicationRefused(
        Problem(
            f"{change.target.name} no longer holds the plan's files:\n      " + "\n      ".join(lines),
            "somebody else has written into the scope since the plan was made",
            again,
        )
    )
    entry = platform.ledger.open_publication(
        run_id, PUBLISH, change.plan.base_snapshot_id, "", operator(), token=lease.token
    )
    platform.ledger.close_refused(entry, str(refusal))
    _reject(platform, run_id, what, lease)
    raise refusal


def _would_replace_first_rows(change: Change, conflicts: list[str]) -> bool:
    """Whether a run that writes first rows only would, planned anew, replace what somebody else has written since."""
    if not _first_output(change):
        return False
    scopes = chunk_scopes(change.target, [chunk for chunk in change.plan.chunks if chunk.key in set(conflicts)])
    return any(change.platform.lakehouse.rows_in(change.target.name, scope) for scope in scopes.values())


def _first_output(change: Change) -> str:
    """Name what a run says of itself that means: it replaces nobody's rows; empty if it may."""
    if change.plan.publish_mode is PublishMode.APPEND_ONLY:
        return PublishMode.APPEND_ONLY.value
    kind = change.record.manifest.kind
    return f"kind {kind}" if kind in FIRST_OUTPUT else ""


def _differing_files(change: Change, conflicts: list[str], limit: int = 20) -> list[str]:
    """Name files that came and went since the base, chunk by chunk."""
    scopes = chunk_scopes(change.target, [chunk for chunk in change.plan.chunks if chunk.key in set(conflicts)])
    lakehouse, name = change.platform.lakehouse, change.target.name
    present = lakehouse.files_by_chunk(name, None, scopes)
    lines = []
    for key, scope in scopes.items():
        base = change.plans[key].base_snapshot_id
        then = set(lakehouse.files_by_chunk(name, base, {key: scope})[key]) if base is not None else set()
        lines += [f"+ {path}" for path in sorted(set(present[key]) - then)]
        lines += [f"- {path}" for path in sorted(then - set(present[key]))]
        if len(lines) > limit:
            return [*lines[:limit], f"… and more, in {len(conflicts)} chunk(s)"]
    return lines


def _last(platform: Platform, run_id: str, actions: set[str]) -> PublicationRecord | None:
    done = [one for one in platform.ledger.publications(run_id) if one.has_landed]
    return next((one for one in reversed(done) if one.action in actions), None)


def _already(platform: Platform, record: RunRecord, actions: set[str]) -> Published:
    """Return what was done before; what a crash left untold is told now."""
    entry = _last(platform, record.run_id, actions)
    if entry is None:
        raise _not_on_record(record)
    done = [one for one in platform.ledger.publications(record.run_id) if one.has_landed]
    number = sum(one.id <= entry.id for one in done)
    return tell_of(platform, record, entry, number)


def tell_of(platform: Platform, record: RunRecord, entry: PublicationRecord, number: int) -> Published:
    """Tell of a change that an entry of the ledger has on record; what was told before is not told again."""
    done = Published(
        record.run_id,
        entry.snapshot,
        entry.base_snapshot_id,
        entry.files_added,
        entry.files_removed,
        entry.evidence_root,
        new=False,
    )
    _tell_the_world(platform, record, done, entry.action, number)
    return done


def _not_on_record(record: RunRecord) -> PublicationRefused:
    return PublicationRefused(
        Problem(
            f"run '{record.run_id}' is {record.state}, and no entry of the ledger says which snapshot that was",
            "what is undone, or told again, is what the ledger has as COMMITTED",
            "the ledger's publications were changed: `backfill verify` shows what they were; restate the scope with a new run",
        )
    )


def _tell_the_world(platform: Platform, record: RunRecord, done: Published, action: str, number: int = 1) -> None:
    """Append to the evidence, and send to each sink the manifest grants; each recognises a repetition."""
    facts = {name: value for name, value in plain(done).items() if name != "new"}
    tell(platform, record, action, facts, number)
    faults.reach("recording.told")
    action = name_of(action, number)
    done_before = {
        (one.sink, one.action) for one in platform.ledger.sink_attempts(record.run_id) if one.decision == "SENT"
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
            text = f"sink {name} was not told of {action}: {refusal.problems[0].what}"
            logs.event(_log, logging.WARNING, "sink_failed", text, sink=name, action=action)
        else:
            platform.sinks.record_outcome(record.manifest, name, action, "SENT", "")
            logs.event(_log, logging.INFO, "sink_sent", f"sink {name} was told of {action}", sink=name, action=action)
    catch_up(platform, record.run_id, TOLD, {"action": action})


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
