"""The publisher: a validated run becomes what readers see, or waits as a candidate on a branch.

Put here the order of things of a publication and of what prepares one. What must be true before is `requirements`'s and
`conflicts`'s, what is committed where the strategies', what is said of it `announcements`'s. What changes it afterwards is
`undoing`'s and `accepting`'s, and a run that ends without a publication `ending`'s. All of them trust the ledger and the
target's own history, and nothing that Dagster or a caller says; and every step is safe to repeat after a crash: whether a
commit landed is read from the target.
"""

from __future__ import annotations

import logging
import time
from functools import partial

from backfill_assets import faults
from backfill_assets.evidence.bundle_contents import bundle_files, edition_of, settled_files
from backfill_assets.evidence.preconditions import (
    require_explained,
    require_no_later,
    require_of_the_run,
    require_unharmed,
    require_vouched_for,
)
from backfill_assets.installation import Platform
from backfill_assets.planning.schemas import schema_problems
from backfill_assets.publication.announcements import Published, already_done, logged, tell_the_world
from backfill_assets.publication.asked_again import problems_by_now, require_neighbours_on_record
from backfill_assets.publication.change import Change
from backfill_assets.publication.conflicts import refuse_for_good, reject, require_bases, settle_conflict
from backfill_assets.publication.dry_runs import approved_on, link_problems, unexplained_link
from backfill_assets.publication.leasing import leases_of, publishing_lease
from backfill_assets.publication.modes import change_of, strategy_of
from backfill_assets.publication.requirements import (
    policy_problems,
    require_commit_allowed,
    require_ledger_as_new,
    require_looks_publishable,
    require_no_staged_row_erased,
    require_predecessor,
    require_publishable,
    require_thawed,
    shown_by_others,
)
from manifests.errors import InputRefused, LeaseHeld, LeaseLost, PublicationRefused
from manifests.lifecycle import PREPARE, PUBLISH, REINSTATE, RunState
from resources import logs
from resources.lakehouse.facade import Commit, ScopeChanged
from resources.ledger.facade import RunRecord, operator
from resources.ledger.leases import Lease
from resources.logs import traces

_log = logging.getLogger(__name__)
_PUBLISHED = frozenset({RunState.PUBLISHED, RunState.SUPERSEDED})
_PREPARING_SECONDS = 30.0
"""How long a candidate waits for a scope that somebody else holds, looking again after `_PREPARING_PAUSE`."""
_PREPARING_PAUSE = 0.5


@logged(PUBLISH)
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
        return already_done(platform, record, {PUBLISH, REINSTATE})
    record = require_looks_publishable(platform, run_id)
    require_predecessor(platform, record)
    with publishing_lease(platform, record, PUBLISH) as lease:
        # another process may have published it just before this one got the lease
        done = None if platform.ledger.run(run_id).state in _PUBLISHED else _publish(platform, run_id, lease)
    if done is None:
        return already_done(platform, platform.ledger.run(run_id), {PUBLISH, REINSTATE})
    tell_the_world(platform, record, done, PUBLISH)
    return done


def _publish(platform: Platform, run_id: str, lease: Lease) -> Published:
    record, chunks = require_publishable(platform, run_id)
    change = change_of(platform, record, chunks, lease.token)
    change.strategy.take_announcement_back(change)
    if other := shown_by_others(change):
        raise PublicationRefused(other)
    has_landed = change.has_landed
    require_ledger_as_new(change, 1)
    # what has landed is put on record, whatever the policy says today
    held_against = "" if has_landed else _require_free(platform, change, lease)
    root = _seal(platform, change)
    faults.reach("publishing.sealed")
    plan = record.plan
    entry = platform.ledger.open_publication(
        run_id,
        PUBLISH,
        plan.base_snapshot_id,
        root,
        operator(),
        ref=plan.version or "",
        token=lease.token,
        unless_stopped=not has_landed,
        policy_hash=held_against,
        commits_per_hour=None if has_landed or plan.pace is None else plan.pace.commits_per_hour,
        dry_run=None if has_landed else approved_on(platform, record),
    )
    commit = _commit(platform, change, entry, root, lease, has_landed=has_landed)
    faults.reach("publishing.committed")
    platform.ledger.accept(
        run_id,
        entry,
        snapshot_id=commit.snapshot_id,
        added=commit.files_added,
        removed=commit.files_removed,
        actor=operator(),
        keys=change.strategy.holds(change),
    )
    faults.reach("publishing.recorded")
    return Published(
        run_id, commit.snapshot_id, plan.base_snapshot_id, commit.files_added, commit.files_removed, root, new=True
    )


def _require_free(platform: Platform, change: Change, lease: Lease) -> str:
    """Refuse what evidence, policy, people or the target say against a publication; return the hash of that policy.

    Raises:
        PublicationRefused: for good, where it is the target or an erasure that says so.
        PublicationDeferred: if it has to wait.
    """
    run_id = change.record.run_id
    require_explained(platform, run_id)
    require_vouched_for(platform, run_id)
    require_unharmed(platform, run_id)  # before anything lands: what has happened could not be recorded past it
    held_against = platform.policy.hash
    problems = policy_problems(platform, change.record) or unexplained_link(platform, change.record)
    if problems := [*problems, *schema_problems(platform, change.target, change.plan)]:
        raise PublicationRefused(problems)
    require_thawed(platform, change.record)
    require_commit_allowed(platform.ledger, change.record)
    require_predecessor(platform, change.record)  # once more: it may have been rolled back before the lease was taken
    try:
        require_bases(change)
    except PublicationRefused as refusal:
        reject(platform, run_id, refusal.problems[0].what, lease)
        raise
    if conflicts := change.strategy.conflicts(change):
        settle_conflict(platform, change, conflicts, lease)
    require_neighbours_on_record(change)
    if problems := problems_by_now(change):
        refuse_for_good(platform, change, PublicationRefused(problems), problems[0].what, lease)
    try:
        require_no_staged_row_erased(change)
    except PublicationRefused as refusal:  # what is staged can never be shown: it must be computed anew
        reject(platform, run_id, refusal.problems[0].what, lease)
        raise
    return held_against


def _commit(
    platform: Platform, change: Change, entry: int, root: str, lease: Lease, *, has_landed: bool = False
) -> Commit:
    """Make the commits of a publication that is recorded as intended; close its entry where nothing was changed.

    What has landed is put on record also where another program has expired its bases since.
    """
    try:
        if not has_landed:
            require_bases(change)
        for tag, base in change.base_tags.items():
            if base not in change.expired_bases:
                platform.lakehouse.tag(change.target.name, tag, base)
        faults.reach("publishing.tagged")
        change.strategy.prepare(change, root)
        faults.reach("publishing.prepared")
        leases_of(platform).renew(lease)
        faults.reach("publishing.leased")
        return change.strategy.publish(change, root)
    except (InputRefused, LeaseLost, PublicationRefused) as refusal:
        if (
            not change.has_landed
        ):  # else, whatever the catalog has said, the next holder of the scope brings it to an end
            _not_committed(platform, change, entry, refusal, lease)
        raise


def _not_committed(
    platform: Platform, change: Change, entry: int, refusal: InputRefused | LeaseLost | PublicationRefused, lease: Lease
) -> None:
    """Close the entry of a publication that changed nothing; the run is as good as before unless the target speaks against it."""
    platform.ledger.close_refused(entry, str(refusal))
    if not isinstance(refusal, PublicationRefused):
        return
    if isinstance(refusal, ScopeChanged) and (conflicts := change.strategy.conflicts(change)):
        settle_conflict(platform, change, conflicts, lease)
    reject(platform, change.record.run_id, refusal.problems[0].what, lease)


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
                with traces.span_of("prepare", record.plan):
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
    on_branch = strategy_of(record.plan).waits_on_branch and record.plan.publishes
    return on_branch and record.state is RunState.VALIDATED


def _prepare(platform: Platform, run_id: str, lease: Lease) -> str:
    record, chunks = require_publishable(platform, run_id)
    change = change_of(platform, record, chunks, lease.token)
    require_explained(platform, run_id)
    require_vouched_for(platform, run_id)
    require_unharmed(platform, run_id)
    if problems := link_problems(platform, record):
        raise PublicationRefused(problems)
    require_bases(change)
    require_no_staged_row_erased(change)
    root = _seal(platform, change)
    leases_of(platform).renew(lease)
    change.strategy.prepare(change, root)
    return change.branch


def _seal(platform: Platform, change: Change) -> str:
    """Seal the run as it is under the lease, as the edition that it has there: it may be planned anew at any time after it.

    What would be sealed is put together where it is not sealed yet. A bundle that is there is held against the ledger's rows.
    """
    record = change.record
    edition = edition_of(platform, record, change.token)
    try:
        require_no_later(platform, record, edition)
        settled = partial(require_of_the_run, platform, record, settled_files(platform, record))
        contents = partial(bundle_files, platform, record, change.token)
        return platform.evidence.seal(record.run_id, contents, edition=edition, require=settled)
    except PublicationRefused:
        edition_of(platform, record, change.token)  # a publisher that slept meets what the next one has sealed
        raise
