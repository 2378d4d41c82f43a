"""The publisher: the one place where what readers see is changed, and changed back.

Put here the order of things of a publication, of its undoing and of a run's end without one. What must be true before is
`requirements`'s and `conflicts`'s, what is committed where the strategies', what is said of it `announcements`'s. It trusts
the ledger and the target's own history, and nothing that Dagster or a caller says. Every step is safe to repeat after a
crash: whether a commit landed is read from the target.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from backfill_assets import faults
from backfill_assets.evidence.events import REFUSED
from backfill_assets.evidence.records import (
    AMENDMENTS_FILE,
    bundle_files,
    bundle_in_use,
    catch_up,
    require_explained,
    require_no_later,
    require_of_the_run,
    require_own_rows,
    require_unharmed,
    require_vouched_for,
)
from backfill_assets.installation import Platform
from backfill_assets.planning.old_data import PUBLISHING, require_nobody_erased
from backfill_assets.publication.announcements import (
    Published,
    already_done,
    changes_on_record,
    last_committed,
    logged,
    not_on_record,
    tell_the_world,
)
from backfill_assets.publication.change import Change
from backfill_assets.publication.conflicts import reject, require_bases, settle_conflict
from backfill_assets.publication.leasing import held, leases_of, publishing_lease, put_on_record
from backfill_assets.publication.modes import change_of, strategy_of
from backfill_assets.publication.requirements import (
    policy_problems,
    require_newest,
    require_predecessor,
    require_publishable,
    require_thawed,
    shown_by_others,
)
from manifests.chunks import in_words
from manifests.errors import (
    InputRefused,
    LeaseHeld,
    LeaseLost,
    Problem,
    PublicationRefused,
    StateMoved,
    TransitionRefused,
)
from manifests.lifecycle import ACCEPT, CANCEL, PREPARE, PUBLISH, REINSTATE, ROLLBACK, RunState, undone_by
from resources import logs
from resources.lakehouse.facade import Commit, ScopeChanged
from resources.ledger.facade import RunRecord, operator
from resources.ledger.leases import Lease

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
    record, _ = require_publishable(platform, run_id)
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
    if problems := policy_problems(platform, change.record):
        raise PublicationRefused(problems)
    require_thawed(platform, change.record)
    try:
        require_bases(change)
    except PublicationRefused as refusal:
        reject(platform, run_id, refusal.problems[0].what, lease)
        raise
    if conflicts := change.strategy.conflicts(change):
        settle_conflict(platform, change, conflicts, lease)
    try:
        _require_nobody_erased(platform, change)
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


def _require_nobody_erased(platform: Platform, change: Change) -> None:
    files = [file.path for table in change.tables for file in change.strategy.files(change, table)]
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
    on_branch = strategy_of(record.plan).waits_on_branch and record.plan.publishes
    return on_branch and record.state is RunState.VALIDATED


def _prepare(platform: Platform, run_id: str, lease: Lease) -> str:
    record, chunks = require_publishable(platform, run_id)
    change = change_of(platform, record, chunks, lease.token)
    require_explained(platform, run_id)
    require_vouched_for(platform, run_id)
    require_unharmed(platform, run_id)
    require_bases(change)
    _require_nobody_erased(platform, change)
    root = _seal(platform, change)
    leases_of(platform).renew(lease)
    change.strategy.prepare(change, root)
    return change.branch


@logged(ROLLBACK)
def rollback(platform: Platform, run_id: str, *, after: int | None = None) -> Published:
    """Put back what a published run replaced, as a new snapshot.

    Args:
        platform: the installation.
        run_id: the run.
        after: how many changes of the run were on record when it was decided; None: as many as there are now.

    Raises:
        PublicationRefused: if the run is not published, a later run holds part of its scope, or somebody else wrote there.
        StateMoved: if others have changed the run since it was decided.
    """
    record = up_to_date(platform, run_id, ROLLBACK)
    after = changes_on_record(platform, run_id) if after is None else after
    if record.state is RunState.ROLLED_BACK:
        return already_done(platform, record, {ROLLBACK})
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
        done, number = _roll_back(platform, run_id, lease, after)
    tell_the_world(platform, record, done, ROLLBACK, number)
    return done


def _roll_back(platform: Platform, run_id: str, lease: Lease, after: int) -> tuple[Published, int]:
    record = platform.ledger.run(run_id)
    change = change_of(platform, record, platform.ledger.chunks(run_id), lease.token)
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
    return _undo(platform, change, ROLLBACK, lease, after)


@logged(REINSTATE)
def reinstate(platform: Platform, run_id: str, *, after: int | None = None) -> Published:
    """Undo the rollback of a run, as a new snapshot: its rows are what readers see again. Arguments as of `rollback`.

    Raises:
        PublicationRefused: if the run is not rolled back, or somebody has written into its scope since.
        StateMoved: if others have changed the run since it was decided.
    """
    record = up_to_date(platform, run_id, REINSTATE)
    after = changes_on_record(platform, run_id) if after is None else after
    if record.state is RunState.PUBLISHED and last_committed(platform, run_id, {REINSTATE}) is not None:
        return already_done(platform, record, {REINSTATE})
    if record.state is not RunState.ROLLED_BACK:
        raise PublicationRefused(
            Problem(
                f"run '{run_id}' is {record.state}", "only a ROLLED_BACK run is reinstated", "see `backfill status`"
            )
        )
    with publishing_lease(platform, record, REINSTATE) as lease:
        change = change_of(platform, platform.ledger.run(run_id), platform.ledger.chunks(run_id), lease.token)
        done, number = _undo(platform, change, REINSTATE, lease, after)
    tell_the_world(platform, record, done, REINSTATE, number)
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


def _undo(platform: Platform, change: Change, action: str, lease: Lease, after: int) -> tuple[Published, int]:
    """Undo a run's last change of its tables, its `after`th, by a new one, and record it; return its number, too.

    Raises:
        PublicationRefused: if another process has done it just before this one got the lease.
        StateMoved: if its last change is another one by now: whoever decided it has seen it otherwise.
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
    done_before = change.committed
    if not done_before:
        raise not_on_record(change.record)
    if len(done_before) != after:
        since = ", ".join(one.action for one in done_before[after:])
        raise StateMoved(
            Problem(
                f"run '{run_id}' was changed {len(done_before) - after} time(s) since the {action} was decided: {since}",
                "a decision is about what a run was when it was decided, and undoes no newer one",
                "see `backfill status`, and decide again",
            )
        )
    last = done_before[-1]
    undone = undone_by([one.change for one in done_before])
    entry = _set_out_to_undo(platform, change, action, lease, root)
    try:
        leases_of(platform).renew(lease)
        commit = change.strategy.undo(change, action, len(done_before) + 1, undone, root)
    except (InputRefused, LeaseLost, PublicationRefused) as refusal:
        if not change.strategy.has_undone(change, action, len(done_before) + 1):
            ledger.close_refused(entry, str(refusal))
        catch_up(platform, run_id, REFUSED, {"action": action})
        raise
    faults.reach("undoing.committed")
    put_on_record(platform, change, entry, action, commit)
    done = Published(
        run_id, commit.snapshot_id, last.snapshot_id, commit.files_added, commit.files_removed, root, new=True
    )
    return done, len(done_before) + 1


def _set_out_to_undo(platform: Platform, change: Change, action: str, lease: Lease, root: str) -> int:
    """Record the intent to undo a run's last change, held against the policy in force then; return its entry.

    Where another policy is adopted meanwhile, a reinstatement is to be decided again. A rollback is held against that one,
    too: who it shows again is asked, and nothing else of a policy keeps what is wrong before readers.

    Raises:
        PublicationRefused: if readers would see somebody again who is erased.
        TransitionRefused: if another policy was adopted meanwhile.
    """
    done_before, run_id = change.committed, change.record.run_id
    undone, base = undone_by([one.change for one in done_before]), done_before[-1].snapshot_id
    has_undone = change.has_begun(action) and change.strategy.has_undone(change, action, len(done_before) + 1)
    if not has_undone:
        require_own_rows(platform, run_id)
    files = [] if has_undone else change.strategy.returning(change, action, undone)
    while True:
        held_against = "" if has_undone else platform.policy.hash
        require_nobody_erased(platform, change.target, change.plan, files, f"the {action}")
        try:
            return platform.ledger.open_publication(
                run_id,
                action,
                base,
                root,
                operator(),
                ref=change.plan.version or "",
                token=lease.token,
                policy_hash=held_against,
            )
        except TransitionRefused:
            if action != ROLLBACK:
                raise


@logged(ACCEPT)
def accept(platform: Platform, run_id: str) -> Published:
    """Make a version that was published under its name what main shows.

    Raises:
        PublicationRefused: if the run has no such version, or main has moved since it was planned.
    """
    record, done = _with_version(platform, run_id), None
    if last_committed(platform, run_id, {ACCEPT}) is None:
        with publishing_lease(platform, record, ACCEPT) as lease:
            record = _with_version(platform, run_id)  # its interrupted rollback may just have been recorded
            # another process may have accepted it just before this one got the lease
            is_done = last_committed(platform, run_id, {ACCEPT}) is not None
            done = None if is_done else _accept(platform, record, lease)
    if done is None:
        return already_done(platform, record, {ACCEPT})
    tell_the_world(platform, record, done, ACCEPT, changes_on_record(platform, run_id))
    return done


def _accept(platform: Platform, record: RunRecord, lease: Lease) -> Published:
    run_id = record.run_id
    change = change_of(platform, record, platform.ledger.chunks(run_id), lease.token)
    root = platform.evidence.verify(run_id, bundle_in_use(platform, run_id))
    require_unharmed(platform, run_id)
    number = len(change.committed) + 1
    held_against = platform.policy.hash
    if landed := change.strategy.recorded_late(change, ACCEPT, number):
        require_newest(change, landed)
        held_against = "" if change.has_begun(ACCEPT) else held_against
    if held_against:  # what has landed is put on record, whatever the policy says today
        require_own_rows(platform, run_id)
        _require_nobody_erased(platform, change)
    base, ref = record.plan.base_snapshot_id, record.plan.version or ""
    entry = platform.ledger.open_publication(
        run_id, ACCEPT, base, root, operator(), ref=ref, token=lease.token, policy_hash=held_against
    )
    try:
        leases_of(platform).renew(lease)
        commit = change.strategy.accept(change)
    except (LeaseLost, PublicationRefused) as refusal:
        if change.strategy.recorded_late(change, ACCEPT, number) is None:
            platform.ledger.close_refused(entry, str(refusal))
        catch_up(platform, run_id, REFUSED, {"action": ACCEPT})
        raise
    faults.reach("accepting.committed")
    platform.ledger.accept_version(run_id, entry, snapshot_id=commit.snapshot_id, actor=operator())
    return Published(run_id, commit.snapshot_id, base, 0, 0, root, new=True)


def may_be_accepted(platform: Platform, run_id: str) -> bool:
    """Whether a run has published a version under its name that main was not made to show yet."""
    record = platform.ledger.run(run_id)
    published = record.state is RunState.PUBLISHED and strategy_of(record.plan).accepted_later
    return published and last_committed(platform, run_id, {ACCEPT}) is None


def _with_version(platform: Platform, run_id: str) -> RunRecord:
    record = platform.ledger.run(run_id)
    if record.state is not RunState.PUBLISHED or not strategy_of(record.plan).accepted_later:
        raise PublicationRefused(
            Problem(
                f"run '{run_id}' is {record.state} with acceptance {record.plan.acceptance or 'on publication'}",
                "a PUBLISHED run of publishMode VERSIONED and acceptance LATER is accepted",
                "see `backfill status`",
            )
        )
    return record


@logged(CANCEL)
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
                change = change_of(platform, record, platform.ledger.chunks(run_id), lease.token)
                _require_unseen(change)
                change.strategy.take_announcement_back(change)
                faults.reach("ending.leased")
                return end(record.state, lease.token)
        except StateMoved:
            continue


def _require_unseen(change: Change) -> None:
    """Refuse to end a run that readers have seen by a publication of it; not one that another program shows.

    Raises:
        PublicationRefused: if its publication has landed.
    """
    record = change.record
    if record.state is RunState.PUBLISHED or (change.has_landed and change.has_begun(PUBLISH)):
        raise PublicationRefused(
            Problem(
                f"the publication of '{record.run_id}' has landed in {record.target}",
                "what readers have seen is rolled back, not cancelled or rejected",
                f"roll it back; if it is VALIDATED still, `backfill publish {record.run_id}` first: it records what landed",
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
