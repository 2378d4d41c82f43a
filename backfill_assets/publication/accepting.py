"""A version that was published under its own name becomes what main shows.

Put here the order of things of an acceptance, and which runs wait for one. What is committed is the strategies'. Every step
is safe to repeat after a crash, as the publisher's are.
"""

from __future__ import annotations

from backfill_assets import faults
from backfill_assets.evidence.bundles import bundle_in_use
from backfill_assets.evidence.events import REFUSED
from backfill_assets.evidence.preconditions import require_own_rows, require_unharmed
from backfill_assets.evidence.record_writing import catch_up
from backfill_assets.installation import Platform
from backfill_assets.publication.announcements import (
    Published,
    already_done,
    changes_on_record,
    last_committed,
    logged,
    tell_the_world,
)
from backfill_assets.publication.conflicts import require_bases
from backfill_assets.publication.dry_runs import approved_on, link_problems
from backfill_assets.publication.leasing import leases_of, publishing_lease
from backfill_assets.publication.modes import change_of, strategy_of
from backfill_assets.publication.requirements import (
    require_ledger_as_new,
    require_newest,
    require_no_staged_row_erased,
    require_unchanged_since,
)
from manifests.errors import InputRefused, LeaseLost, Problem, PublicationRefused
from manifests.lifecycle import ACCEPT, RunState
from resources.ledger.facade import RunRecord, operator
from resources.ledger.leases import Lease


@logged(ACCEPT)
def accept(platform: Platform, run_id: str, *, after: int | None = None) -> Published:
    """Make a version that was published under its name what main shows.

    Args:
        platform: the installation.
        run_id: the run.
        after: how often the run had changed its tables when it was decided; None: it is decided now.

    Raises:
        PublicationRefused: if the run has no such version, or main has moved since it was planned.
        StateMoved: if others have changed the run since it was decided.
    """
    record, done = _with_version(platform, run_id), None
    after = changes_on_record(platform, run_id) if after is None else after
    if last_committed(platform, run_id, {ACCEPT}) is None:
        with publishing_lease(platform, record, ACCEPT) as lease:
            record = _with_version(platform, run_id)  # its interrupted rollback may just have been recorded
            # another process may have accepted it just before this one got the lease
            is_done = last_committed(platform, run_id, {ACCEPT}) is not None
            done = None if is_done else _accept(platform, record, lease, after)
    if done is None:
        return already_done(platform, record, {ACCEPT})
    accepted, number = done
    tell_the_world(platform, record, accepted, ACCEPT, number)
    return accepted


def _accept(platform: Platform, record: RunRecord, lease: Lease, after: int) -> tuple[Published, int]:
    """Accept a version and record it; return the number of this change of the run, too."""
    run_id = record.run_id
    change = change_of(platform, record, platform.ledger.chunks(run_id), lease.token)
    require_unchanged_since(change, ACCEPT, after)
    root = platform.evidence.verify(run_id, bundle_in_use(platform, run_id))
    require_unharmed(platform, run_id)
    number = len(change.committed) + 1
    require_ledger_as_new(change, number)
    held_against = platform.policy.hash
    if landed := change.strategy.recorded_late(change, ACCEPT, number):
        require_newest(change, landed)
        held_against = "" if change.has_begun(ACCEPT) else held_against
    if held_against:  # what has landed is put on record, whatever the policy says today
        require_own_rows(platform, run_id)
        if problems := link_problems(platform, record):
            raise PublicationRefused(problems)
        require_no_staged_row_erased(change)
    base, ref = record.plan.base_snapshot_id, record.plan.version or ""
    entry = platform.ledger.open_publication(
        run_id,
        ACCEPT,
        base,
        root,
        operator(),
        ref=ref,
        token=lease.token,
        policy_hash=held_against,
        dry_run=approved_on(platform, record) if held_against else None,
    )
    try:
        leases_of(platform).renew(lease)
        if landed is None:
            require_bases(change)
        commit = change.strategy.accept(change)
    except (InputRefused, LeaseLost, PublicationRefused) as refusal:
        if change.strategy.recorded_late(change, ACCEPT, number) is None:
            platform.ledger.close_refused(entry, str(refusal))
        catch_up(platform, run_id, REFUSED, {"action": ACCEPT})
        raise
    faults.reach("accepting.committed")
    platform.ledger.accept_version(run_id, entry, snapshot_id=commit.snapshot_id, actor=operator())
    return Published(run_id, commit.snapshot_id, base, 0, 0, root, new=True), number


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
                f"see `backfill status {run_id}`",
            )
        )
    return record
