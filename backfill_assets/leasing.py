"""The lease of a publication: taken before anything is looked at for good, given back when all is on record.

Put here what a publisher does because others publish, too: it takes its scope, fences those it took it over from, and
first puts on record what they published and could not say. What is published is `publication`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from backfill_assets.platform import Platform
from resources.leases import Lease, Leases
from resources.ledger import RunRecord, operator


@contextmanager
def publishing_lease(platform: Platform, record: RunRecord, action: str) -> Iterator[Lease]:
    """Hold the days a run may change while it is published or rolled back.

    Given back however the body ends; only a process that is killed leaves it, to be taken over. Giving it back when
    the outcome of a commit is unknown is safe: a commit that lands late lands on an unchanged table or not at all.

    Raises:
        LeaseHeld: if somebody else holds one of the days.
    """
    leases = leases_of(platform)
    days = record.plan.publish_range
    lease = leases.acquire(record.target, days.start, days.end, record.run_id, action)
    try:
        for token in lease.lost:
            platform.lakehouse.fence(record.target, token)
        leases.fenced(lease.lost)
        _record_interrupted(platform, record)
        yield lease
    finally:
        leases.release(lease)


def leases_of(platform: Platform) -> Leases:
    """Return the leases of an installation."""
    return Leases(platform.ledger.engine, platform.settings.lease_seconds)


def _record_interrupted(platform: Platform, record: RunRecord) -> None:
    """Record what other runs have published in this scope without living to say so.

    The ledger then names the holders in the order of the target's snapshots; a run that woke up after its successor
    and recorded itself would seem to supersede it. Only under the lease is it certain that nobody is about to.
    """
    days = record.plan.publish_range
    for entry, run_id, action in platform.ledger.interrupted_publications(record.target):
        other = platform.ledger.run(run_id)
        theirs = other.plan.publish_range
        if run_id == record.run_id or theirs.start > days.end or theirs.end < days.start:
            continue
        landed = platform.lakehouse.find_publication(record.target, run_id, action)
        if landed is not None:
            added, removed = platform.lakehouse.changed_files(record.target, landed)
            write = platform.ledger.undo if action == "rollback" else platform.ledger.accept
            write(run_id, entry, snapshot_id=landed.snapshot_id, added=added, removed=removed, actor=operator())
