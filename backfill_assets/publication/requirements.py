"""What must be true before a publication: the run's own state, its gates, and what people have decided.

Put here what is looked at, and refused or waited for, before anything is committed; nothing here writes to a table. What the
target itself has to say against a publication is `conflicts`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from backfill_assets.installation import Platform
from backfill_assets.planning.accepted_base import not_on_record
from backfill_assets.planning.old_data import PUBLISHING, require_nobody_erased
from backfill_assets.planning.read_models import decommissioned
from backfill_assets.planning.schemas import schema_problems
from backfill_assets.publication.asked_again import require_neighbours_on_record
from backfill_assets.publication.change import Change
from backfill_assets.publication.dry_runs import link_problems
from backfill_assets.publication.gate_problems import gate_problems
from backfill_assets.publication.leasing import has_landed
from backfill_assets.publication.modes import change_of
from backfill_assets.staging.executor import require_not_expired
from manifests.chunks import in_words
from manifests.errors import (
    EnvironmentRefused,
    Problem,
    PublicationDeferred,
    PublicationRefused,
    Refused,
    StateMoved,
    StoreRefused,
)
from manifests.lifecycle import ENDED, PUBLISH, ROLLBACK, DecisionKind, RunState
from manifests.model import OnConflict
from manifests.policy import Role
from manifests.series import step_id
from resources.lakehouse.facade import Commit
from resources.ledger import launches, stops
from resources.ledger.facade import ChunkRecord, ChunkStanding, Ledger, RunRecord


def require_publishable(platform: Platform, run_id: str) -> tuple[RunRecord, list[ChunkRecord]]:
    """Return the run and its chunks if everything that must precede a publication is on record.

    Raises:
        PublicationRefused: with everything that is missing.
    """
    record, chunks = platform.ledger.run(run_id), platform.ledger.chunks(run_id)
    _require_publishable(platform, record, chunks)
    return record, chunks


def require_looks_publishable(platform: Platform, run_id: str) -> RunRecord:
    """Return the run if everything that must precede a publication is on record: asked before its scope is held, of what may change.

    Raises:
        PublicationRefused: as `require_publishable`, which has to be asked under the lease.
    """
    record = platform.ledger.run(run_id)
    _require_publishable(platform, record, platform.ledger.standing_chunks(run_id))
    return record


def _require_publishable(platform: Platform, record: RunRecord, chunks: Sequence[ChunkRecord | ChunkStanding]) -> None:
    run_id, plan = record.run_id, record.plan
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
                f"see `backfill status {run_id}` for what "
                + ("became of it, and plan the change under a new run id" if record.state in ENDED else "it waits for"),
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
                f"`backfill approve {run_id}`, by somebody whom the policy lets",
            )
        )
    problems += gate_problems(platform, run_id, plan, chunks) + decommissioned(platform, plan.target)
    if problems:
        raise PublicationRefused(problems)


def shown_by_others(change: Change) -> Problem | None:
    """Say that readers see what a run has computed, and that nobody has set out to publish it; None if it is not so.

    It is taken for no publication, and the run stays as it is.
    """
    if not change.has_landed or change.has_begun(PUBLISH):
        return None
    run_id, table = change.record.run_id, change.tables[0]
    return Problem(
        f"readers of {table} can see what '{run_id}' has computed, and no publication of it was begun: another program shows "
        "it, or the ledger is older than the table",
        "a publication is begun on record before anything is shown; what another program shows becomes none by that",
        f"have the table's references put back to what they were, and publish; or `backfill cancel {run_id}`, and restate the "
        "scope with a new run; where the ledger came from a backup, restore a newer one",
    )


def require_unchanged_since(change: Change, action: str, after: int) -> None:
    """Refuse an action that was decided when the run had changed its tables `after` times, if it has done so since.

    Raises:
        StateMoved: naming what was done since.
    """
    done = change.committed
    if len(done) != after:
        since = ", ".join(one.action for one in done[after:])
        raise StateMoved(
            Problem(
                f"run '{change.record.run_id}' was changed {len(done) - after} time(s) since the {action} was decided: {since}",
                "a decision is about what a run was when it was decided, and undoes no newer one",
                f"see `backfill status {change.record.run_id}`, and decide again",
            )
        )


def require_ledger_as_new(change: Change, number: int) -> None:
    """Refuse what would be a run's `number`th change where its table shows a later one: the ledger is older than the table.

    Raises:
        PublicationRefused: naming the later change.
    """
    if (later := change.later(number)) is None:
        return
    action, snapshot = later
    raise PublicationRefused(
        Problem(
            f"snapshot {snapshot.snapshot_id} of {change.tables[0]} is the {action} of '{change.record.run_id}', and the ledger "
            "does not have it: the ledger is older than the table",
            "what a run has done is on record before it does anything more",
            "restore the newest ledger; where it is lost, restate the scope with a new run (`backfill doctor` closes what is open)",
        )
    )


def require_newest(change: Change, landed: Commit) -> None:
    """Refuse to put a change of main on record late, if holders of its chunks have changed main since: they hold them.

    Raises:
        PublicationRefused: naming them.
    """
    ledger, run_id, target = change.platform.ledger, change.record.run_id, change.target.name
    holders = set(ledger.accepted(target, [chunk.key for chunk in change.plan.chunks]).values()) - {run_id}
    later = sorted(holders & change.platform.lakehouse.runs_since(target, landed.snapshot_id))
    if later:
        named = ", ".join(f"'{one}'" for one in later)
        raise PublicationRefused(
            Problem(
                f"{named} has changed {target} since it first showed what '{run_id}' has computed",
                "a chunk is held by the run whose rows readers see",
                "restate the scope with a new run",
            )
        )


def policy_problems(platform: Platform, record: RunRecord) -> list[Problem]:
    """Say what people have decided that stands against a publication: a stop, the run's age, its dry run, and who has to publish.

    Not asked of a publication that has landed already: it is put on record, whatever the policy says today.
    """
    platform.ledger.policies.require_explained()
    problems = platform.ledger.ticks.problems(record.manifest)
    if (stop := platform.ledger.stops.held(record.run_id)) is not None:
        problems += stops.refusal(stop).problems
    try:
        require_not_expired(platform, record)
    except Refused as refusal:
        problems += refusal.problems
    problems += link_problems(platform, record)
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


def require_no_staged_row_erased(change: Change) -> None:
    """Refuse to show what a run has staged if it holds a subject who is erased by today.

    Raises:
        PublicationRefused: saying how many, and the way out.
    """
    files = [file.path for table in change.tables for file in change.strategy.files(change, table)]
    require_nobody_erased(change.run, files, PUBLISHING)


def require_thawed(platform: Platform, record: RunRecord) -> None:
    """Refuse to publish into what is frozen.

    Raises:
        PublicationDeferred: naming each freeze, until the last of them has ended.
    """
    frozen = platform.ledger.freezes.ask(record.plan, platform.ledger.now())
    if frozen:
        raise PublicationDeferred(
            Problem(
                f"run '{record.run_id}' would write into what is frozen by {freeze}",
                "LIVE waits for the end of a freeze; nothing of it is lost, and nothing was changed",
                f"it goes on by itself when '{freeze.run_id}' has ended; cancelling that run ends the freeze as well",
            )
            for freeze in frozen
        )


def require_commit_allowed(ledger: Ledger, record: RunRecord) -> None:
    """Refuse to publish into a target that has taken its commits of the hour; nothing of LIVE waits for that.

    Raises:
        PublicationDeferred: saying until when.
    """
    pace = record.plan.pace
    most = None if pace is None else pace.commits_per_hour
    ledger.admissions.require_commit(record.run_id, record.target, most)


def waits_for_commit(ledger: Ledger, record: RunRecord) -> str:
    """Say until when a run waits because its target has taken its commits of the hour; empty if it does not."""
    try:
        require_commit_allowed(ledger, record)
    except PublicationDeferred as wait:
        return f"{wait.problems[0].what}: {wait.problems[0].rule}"
    return ""


def require_predecessor(platform: Platform, record: RunRecord) -> None:
    """Refuse to publish a step of a progressive run before the one it follows.

    Raises:
        PublicationDeferred: if that one is not published, or was rolled back, which is not on record yet.
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
                f"`backfill reinstate {before}`"
                if found is not None and found.state is RunState.ROLLED_BACK
                else f"publish '{before}' first",
            )
        )
    for _, run_id, action in platform.ledger.interrupted_publications(record.target):
        if run_id == before and action == ROLLBACK and has_landed(platform, found, action):
            raise PublicationDeferred(not_on_record(before, action, record.target))


ATTEMPTS = 5
"""Publications of one run that the sensor asks for before it leaves a failing one to people, and tries of each that fail before."""


def tried(ledger: Ledger, run_id: str) -> int:
    """Return how often a publication of a run was tried."""
    return sum(entry.action == PUBLISH for entry in ledger.publications(run_id))


def waits_for(platform: Platform, record: RunRecord) -> str | None:
    """Say what a validated run's publication waits for; None if it can be tried.

    What refuses it while the table is looked at, a file without bounds in its days, say, is for people to clear away: it is
    the run's own reason to wait, and none for others.

    Raises:
        EnvironmentRefused: if what has to be looked at cannot be read: nothing is known then.
        StoreRefused: if the store of the evidence cannot be asked.
    """
    try:
        return _waits_for(platform, record)
    except (EnvironmentRefused, StoreRefused):
        raise
    except Refused as refusal:
        return refusal.problems[0].what


def _waits_for(platform: Platform, record: RunRecord) -> str | None:
    try:
        require_predecessor(platform, record)
        require_commit_allowed(platform.ledger, record)
    except PublicationDeferred as wait:
        return wait.problems[0].what
    change = change_of(platform, record, platform.ledger.chunks(record.run_id))
    if other := shown_by_others(change):
        return other.what
    if change.has_landed:
        return None
    if found := [*policy_problems(platform, record), *schema_problems(platform, change.target, record.plan)]:
        return found[0].what
    try:
        require_neighbours_on_record(change)
    except PublicationDeferred as wait:
        return wait.problems[0].what
    terms = record.plan.conflict
    if terms is None or terms.on_conflict is not OnConflict.WAIT:
        return None
    if platform.ledger.now() >= record.updated_at + timedelta(minutes=terms.wait_minutes):
        return None
    conflicts = [] if change.expired_bases else change.strategy.conflicts(change)
    return f"{len(conflicts)} chunk(s) have changed: {in_words(conflicts)}" if conflicts else None
