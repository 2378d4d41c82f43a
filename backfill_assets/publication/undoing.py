"""What was published is taken back, and brought back: rollback and reinstatement.

Put here the order of things of an undoing. What is committed is the strategies'; that somebody may undo a run is decided in
`decisions`. Every step is safe to repeat after a crash, as the publisher's are.
"""

from __future__ import annotations

from backfill_assets import faults
from backfill_assets.evidence.bundles import bundle_in_use
from backfill_assets.evidence.events import REFUSED
from backfill_assets.evidence.preconditions import require_own_rows, require_unharmed
from backfill_assets.evidence.record_writing import catch_up
from backfill_assets.installation import Platform
from backfill_assets.planning.compacting import compacted
from backfill_assets.planning.old_data import require_nobody_erased
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
from backfill_assets.publication.dry_runs import approved_on, link_problems
from backfill_assets.publication.leasing import held, leases_of, publishing_lease, put_on_record
from backfill_assets.publication.modes import change_of
from backfill_assets.publication.requirements import require_ledger_as_new, require_unchanged_since
from backfill_assets.publication.undone_since import told_whom_to_reinstate
from manifests.chunks import in_words
from manifests.errors import InputRefused, LeaseLost, Problem, PublicationRefused, TransitionRefused
from manifests.lifecycle import REINSTATE, ROLLBACK, RunState, undone_by
from resources.ledger.accepted_versions import changed_hands
from resources.ledger.facade import RunRecord, operator
from resources.ledger.leases import Lease


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
        way_out = f"see `backfill status {run_id}`"
        if record.state is RunState.SUPERSEDED:
            holders = platform.ledger.accepted(record.target, [chunk.key for chunk in record.plan.chunks])
            later = sorted(set(holders.values()))
            way_out = f"roll back {', '.join(later)} first, or restate the scope with a new run"
        raise PublicationRefused(
            Problem(
                f"run '{run_id}' is {record.state}" + (f" ({record.state_reason})" if record.state_reason else ""),
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
    if by := sorted({one.run_id for one in compacted(platform, record.target, held(platform, change)).values()}):
        raise PublicationRefused(
            Problem(
                f"files of '{run_id}' were rewritten by compaction(s) {', '.join(by)}, with the same rows",
                "a run is rolled back while the table has the files that it has brought",
                f"roll back {', '.join(by)} first, or restate the scope with a new run",
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
                f"run '{run_id}' is {record.state}",
                "only a ROLLED_BACK run is reinstated",
                f"see `backfill status {run_id}`",
            )
        )
    with publishing_lease(platform, record, REINSTATE) as lease:
        change = change_of(platform, platform.ledger.run(run_id), platform.ledger.chunks(run_id), lease.token)
        _require_left_alone(platform, change)
        done, number = _undo(platform, change, REINSTATE, lease, after)
    tell_the_world(platform, record, done, REINSTATE, number)
    return done


def _require_left_alone(platform: Platform, change: Change) -> None:
    """Refuse to reinstate a run where others have taken its chunks since its rollback, even if they have no row there.

    Raises:
        PublicationRefused: naming them.
    """
    run_id, target = change.record.run_id, change.target.name
    rolled_back = [one.landed_at for one in change.committed if one.action == ROLLBACK]
    if not rolled_back:
        return
    if change.has_begun(REINSTATE) and change.strategy.has_undone(change, REINSTATE, len(change.committed) + 1):
        return  # it has landed, before whoever has come since
    keys = held(platform, change)
    holdings = [one for one in platform.ledger.holdings(target) if one.chunk in keys]
    found = changed_hands(holdings, run_id, rolled_back[-1])
    if not found.taken:
        return
    holders, undone = ", ".join(sorted(found.later or {*found.taken.values()})), sorted(found.undone)
    if found.later or not undone:
        what, fix = f"later run(s) {holders}", f"roll back {holders}"
    else:  # the rows on which it was published have gone since; who holds its chunks now was there before
        what = f"{holders} again, since the rows on which it was published were rolled back, too"
        fix = f"reinstate {', '.join(undone)}"
    raise PublicationRefused(
        Problem(
            f"{len(found.taken)} chunk(s) of '{run_id}' are held by {what}: {in_words(found.taken)}",
            "a run is reinstated only on the rows that its rollback has left",
            f"{fix} first, or restate the scope with a new run",
        )
    )


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
                f"see `backfill status {change.record.run_id}`",
            )
        )
    run_id, ledger = change.record.run_id, platform.ledger
    root = platform.evidence.verify(run_id, bundle_in_use(platform, run_id))
    require_unharmed(platform, run_id)
    done_before = change.committed
    if not done_before:
        raise not_on_record(change.record)
    require_unchanged_since(change, action, after)
    require_ledger_as_new(change, len(done_before) + 1)
    last = done_before[-1]
    undone = undone_by([one.change for one in done_before])
    entry = _set_out_to_undo(platform, change, action, lease, root)
    faults.reach("undoing.begun")
    try:
        leases_of(platform).renew(lease)
        commit = change.strategy.undo(change, action, len(done_before) + 1, undone, root)
    except (InputRefused, LeaseLost, PublicationRefused) as refusal:
        told = told_whom_to_reinstate(change, refusal) if action == REINSTATE else refusal
        if not change.strategy.has_undone(change, action, len(done_before) + 1):
            ledger.close_refused(entry, str(told))
        catch_up(platform, run_id, REFUSED, {"action": action})
        if told is refusal:
            raise
        raise told from refusal
    faults.reach("undoing.committed")
    put_on_record(platform, change, entry, action, commit)
    done = Published(
        run_id, commit.snapshot_id, last.snapshot_id, commit.files_added, commit.files_removed, root, new=True
    )
    return done, len(done_before) + 1


def _set_out_to_undo(platform: Platform, change: Change, action: str, lease: Lease, root: str) -> int:
    """Record the intent to undo a run's last change, held against the policy in force then; return its entry.

    Where another policy is adopted meanwhile, a reinstatement is to be decided again. A rollback is held against that one,
    too: who it shows again is asked, and nothing else of a policy keeps what is wrong before readers. A reinstatement asks for
    the dry run of the approval like the publication; a rollback does not.

    Raises:
        PublicationRefused: if readers would see somebody again who is erased, or what was approved on a dry run that does not stand.
        TransitionRefused: if another policy was adopted meanwhile.
    """
    done_before, run_id = change.committed, change.record.run_id
    undone, base = undone_by([one.change for one in done_before]), done_before[-1].snapshot_id
    has_undone = change.has_begun(action) and change.strategy.has_undone(change, action, len(done_before) + 1)
    if not has_undone:
        require_own_rows(platform, run_id)
        if action == REINSTATE and (problems := link_problems(platform, change.record)):
            raise PublicationRefused(problems)
    shows_again = action == REINSTATE and not has_undone
    files = [] if has_undone else change.strategy.returning(change, action, undone)
    while True:
        held_against = "" if has_undone else platform.policy.hash
        require_nobody_erased(change.run, files, f"the {action}")
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
                dry_run=approved_on(platform, change.record) if shows_again else None,
            )
        except TransitionRefused:
            if action != ROLLBACK:
                raise
