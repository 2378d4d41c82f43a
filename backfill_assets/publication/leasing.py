"""The lease of a publication: taken before anything is looked at for good, given back when all is on record.

Put here what a publisher does because others publish, too: it takes its scope, fences those it took it over from, and
first puts on record what they published and could not say. What is done under the lease is `publisher`'s, `undoing`'s,
`accepting`'s and `ending`'s.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import date

from backfill_assets import faults
from backfill_assets.installation import Platform
from backfill_assets.planning.accepted_base import not_on_record
from backfill_assets.publication.change import Change
from backfill_assets.publication.modes import change_of, strategy_of
from manifests.errors import EnvironmentRefused, LeaseHeld, Problem, Refused, StoreRefused
from manifests.lifecycle import ACCEPT, PUBLISH, REINSTATE, ROLLBACK, undone_by
from resources.lakehouse.facade import Commit
from resources.lakehouse.metadata import UnreadableMetadata
from resources.ledger.facade import RunRecord, operator
from resources.ledger.leases import Lease, Leases

COLLECTION = "gc"
"""Who holds the lease of a collection of garbage: no run, and too short to be the id of one."""
COLUMNS = "cc"
"""Who holds the lease of a change of columns: no run either."""
SPLITTING = "fs"
"""Who holds the lease of a split of files: no run either."""
READERS = "rm"
"""Who holds the leases of the two tables of a read model while its readers go over: no run either."""
INPUT = "qr"
"""Who holds the lease of an input table that somebody loads, or whose loads or quarantined rows somebody decides about: no run either."""
_LOOK_AGAIN = 0.1
"""Seconds between two looks at a lease that somebody else holds."""


@contextmanager
def publishing_lease(platform: Platform, record: RunRecord, action: str) -> Iterator[Lease]:
    """Hold the days a run may change while it is published or its publication is undone.

    Given back where it is certain what came of the body: it is done, or was refused. Where the outcome of a commit is
    unknown (the catalog could not be reached, any other error) the commit may land later, on a table that nobody else
    has changed: a cancelled run leaves the table unchanged, too. The lease is lost then, so that the next holder fences
    it before anything is looked at; a process that is killed leaves it to be taken over in the same way.

    Raises:
        LeaseHeld: if somebody else holds one of the days.
    """
    leases = leases_of(platform)
    lease = leases.acquire(record.target, *_days(record, action), record.run_id, action)
    faults.reach("leasing.taken")
    with _released_unless_fenced(leases, lease):
        fenced = _fence(platform, lease, _needed(platform, record, action))
        faults.reach("leasing.fenced")
        leases.fenced(fenced)
    with _given_back(leases, lease):
        _record_interrupted(platform, record, action, lease)
        yield lease


def _fence(platform: Platform, lease: Lease, needed: Collection[str]) -> tuple[int, ...]:
    """Fence the leases that one took over, in every table of the target: their holders may be completing any run's change.

    Returns those that are fenced in all of them. Where metadata cannot be read, a holder that has read it before may still
    commit: the `needed` tables must be readable. For the others nobody has to wait: the next holder tries again.

    Raises:
        UnreadableMetadata: if the metadata of a needed table cannot be read just now.
    """
    fenced = lease.lost
    for table in _tables(platform, lease.target) if lease.lost else ():
        try:
            if platform.lakehouse.exists(table):
                for token in lease.lost:
                    platform.lakehouse.fence(table, token)
        except UnreadableMetadata:
            if table in needed:
                raise
            fenced = ()
    return fenced


def _needed(platform: Platform, record: RunRecord, action: str) -> set[str]:
    """Return the tables that the holder looks at or changes: its run's, and those of what it brings to an end."""
    start, end = _days(record, action)
    runs = [record]
    for _, run_id, interrupted in platform.ledger.interrupted_publications(record.target):
        other = platform.ledger.run(run_id)
        first, last = _days(other, interrupted)
        if first <= end and last >= start:
            runs.append(other)
    target = platform.products.target(record.target)
    return {table for one in runs for table in strategy_of(one.plan).tables(target)}


@contextmanager
def _released_unless_fenced(leases: Leases, lease: Lease) -> Iterator[None]:
    """Release a lease whose holder could not fence those before it: a fence may land at any time and does no harm.

    Losing it would ask for one more fence at each try, and never end where the catalog leaves every answer out.
    """
    try:
        yield
    except BaseException:
        leases.release(lease)
        raise


@contextmanager
def _given_back(leases: Leases, lease: Lease) -> Iterator[None]:
    """Release a lease after a body of known outcome, and lose it after any other: the next holder fences it then."""
    is_settled = False
    try:
        yield
        is_settled = True
    except Refused as refusal:
        is_settled = not isinstance(refusal, EnvironmentRefused | StoreRefused)
        raise
    finally:
        if is_settled:
            leases.release(lease)
        else:
            leases.lose(lease)


@contextmanager
def collecting_lease(platform: Platform, target: str) -> Iterator[Lease]:
    """Hold every day of a target while snapshots of its tables are removed for good.

    A publication, or its undoing, that was looking at them meanwhile could show their files again, and a fence that it
    set could go with them. Under this lease none is under way, and one that still sleeps cannot commit.

    Raises:
        LeaseHeld: if somebody publishes to the target, or takes a publication back.
    """
    with _whole_lease(platform, target, COLLECTION, "collect") as lease:
        yield lease


@contextmanager
def columns_lease(platform: Platform, target: str) -> Iterator[Lease]:
    """Hold every day of a target while the columns of its tables are changed: a publication sees one schema from end to end.

    Raises:
        LeaseHeld: if somebody publishes to the target, or takes a publication back.
    """
    with _whole_lease(platform, target, COLUMNS, "change columns") as lease:
        yield lease


@contextmanager
def splitting_lease(platform: Platform, target: str) -> Iterator[Lease]:
    """Hold every day of a target while files of it are split.

    Raises:
        LeaseHeld: if somebody publishes to the target, or takes a publication back.
    """
    with _whole_lease(platform, target, SPLITTING, "split files") as lease:
        yield lease


@contextmanager
def input_lease(platform: Platform, table: str, action: str, *, wait: float = 0.0) -> Iterator[Lease]:
    """Hold an input table, and its quarantine, while rows are loaded, taken back, released or rejected: one at a time.

    `wait` is for how many seconds somebody else's lease is waited for.

    Raises:
        LeaseHeld: if somebody else holds the table, and has not given it back by then.
    """
    with _whole_lease(platform, table, INPUT, action, wait=wait) as lease:
        yield lease


@contextmanager
def readers_lease(platform: Platform, targets: Sequence[str], *, wait: float = 0.0) -> Iterator[tuple[int, ...]]:
    """Hold every day of some targets while their readers go from one to another; yield the tokens of the leases.

    What was committed to one of them and is not on record is put there first: what a target has is what is on record. `wait` is for
    how many seconds somebody else's lease of each is waited for.

    Raises:
        LeaseHeld: if somebody publishes to one of them, or takes a publication back, and has not done so by then.
    """
    with ExitStack() as stack:
        held = [
            stack.enter_context(_whole_lease(platform, one, READERS, "let readers go over", wait=wait))
            for one in sorted(targets)
        ]
        for lease in held:
            _complete_interrupted(platform, lease, (date.min, date.max), None)
        yield tuple(lease.token for lease in held)


@contextmanager
def _whole_lease(platform: Platform, target: str, holder: str, action: str, *, wait: float = 0.0) -> Iterator[Lease]:
    leases = leases_of(platform)
    lease = _acquired(leases, target, holder, action, time.monotonic() + wait)
    with _released_unless_fenced(leases, lease):
        leases.fenced(_fence(platform, lease, _tables(platform, target)))
    with _given_back(leases, lease):
        yield lease


def _acquired(leases: Leases, target: str, holder: str, action: str, until: float) -> Lease:
    """Take every day of a target; tried again until an instant of `time.monotonic` while somebody else holds it."""
    while True:
        try:
            return leases.acquire(target, date.min, date.max, holder, action)
        except LeaseHeld:
            if time.monotonic() >= until:
                raise
        time.sleep(_LOOK_AGAIN)


def _tables(platform: Platform, target: str) -> list[str]:
    """Return the tables that anybody changes under a lease of a target, or of an input table; some may not exist."""
    declared = platform.products.find_target(target)
    if declared is None:
        loaded = [one for one in platform.products.inputs if one.name == target]
        return list(dict.fromkeys([target, *(platform.products.quarantine_of(one).name for one in loaded)]))
    corrections = [] if declared.corrections is None else [declared.corrections.name]
    return [target, *corrections, declared.changes]


def leases_of(platform: Platform) -> Leases:
    """Return the leases of an installation."""
    return platform.ledger.leases(platform.settings.lease_seconds)


def held(platform: Platform, change: Change) -> list[str]:
    """Return the chunks of the target that are the run's while main shows it: also those of an accepted version."""
    done = platform.ledger.publications(change.record.run_id)
    if any(one.action == ACCEPT and one.has_landed for one in done):
        return [chunk.key for chunk in change.plan.chunks]
    return change.strategy.holds(change)


def _days(record: RunRecord, action: str) -> tuple[date, date]:
    """Return the first and last day that an action's commits may change."""
    return strategy_of(record.plan).days(record.plan, action)


def _change(platform: Platform, record: RunRecord, token: int | None = None) -> Change:
    return change_of(platform, record, platform.ledger.chunks(record.run_id), token)


def _record_interrupted(platform: Platform, record: RunRecord, wanted: str, lease: Lease) -> None:
    """Record what was published in this scope by a process that did not live to say so, but for the run's own `wanted`.

    A change of two tables of which one was committed is completed first: once another run has changed the target, nobody
    could.

    The ledger then names the holders in the order of the target's snapshots; a run that woke up after its successor
    and recorded itself would seem to supersede it. Only under the lease is it certain that nobody is about to.
    """
    _complete_interrupted(platform, lease, _days(record, wanted), (record.run_id, wanted))


def _complete_interrupted(
    platform: Platform, lease: Lease, days: tuple[date, date], but: tuple[str, str] | None
) -> None:
    ledger, (start, end) = platform.ledger, days
    for entry, run_id, action in ledger.interrupted_publications(lease.target):
        other = ledger.run(run_id)
        first, last = _days(other, action)
        if (run_id, action) == but or first > end or last < start:
            continue
        change = _change(platform, other, lease.token)
        commit = brought_to_an_end(platform, change, action)
        if commit is not None:
            put_on_record(platform, change, entry, action, commit)


def brought_to_an_end(platform: Platform, change: Change, action: str) -> Commit | None:
    """Return what an action of a run has committed, after completing it where it has in one of two tables; else None.

    None as well where the table shows a later change of the run: others are not held up by a ledger that is older than that.

    Only for the holder of the run's days: the change carries the lease's token.

    Raises:
        PublicationRefused: if what is left of a change cannot be done any more.
    """
    strategy, entries = change.strategy, platform.ledger.publications(change.record.run_id)
    done = [one for one in entries if one.has_landed]
    number = _number(change, action)
    if action == PUBLISH:
        strategy.take_announcement_back(change)
    if change.later(number) is not None:
        return None  # the ledger is older than the table: this change is not its last one
    if not strategy.is_half_done(change, action, number):
        return strategy.recorded_late(change, action, number)
    root = next(one.evidence_root for one in reversed(entries) if one.action == action)
    if action == PUBLISH:
        return strategy.publish(change, root)
    return strategy.undo(change, action, number, undone_by([one.change for one in done]), root)


def _number(change: Change, action: str) -> int:
    """Return which change of its run an interrupted action is."""
    entries = change.platform.ledger.publications(change.record.run_id)
    return 1 if action == PUBLISH else sum(one.has_landed for one in entries) + 1


def landed_beside(platform: Platform, record: RunRecord) -> Iterator[Problem]:
    """Yield what has been committed in other days than a run's, and is not on record: its own are recorded under its lease."""
    start, end = _days(record, PUBLISH)
    for _, run_id, action in platform.ledger.interrupted_publications(record.target):
        other = platform.ledger.run(run_id)
        first, last = _days(other, action)
        if (first > end or last < start) and has_landed(platform, other, action):
            yield not_on_record(run_id, action, record.target)


def has_landed(platform: Platform, record: RunRecord, action: str) -> bool:
    """Whether an interrupted action of a run shows in one of the tables that it changes, and no later one of the run does."""
    change = _change(platform, record)
    number, strategy = _number(change, action), change.strategy
    if change.later(number) is not None:
        return False
    return strategy.is_half_done(change, action, number) or strategy.recorded_late(change, action, number) is not None


def record_what_has_landed(platform: Platform, record: RunRecord) -> None:
    """Put on record what others, who have died since, have committed in the days of a run.

    Raises:
        LeaseHeld: if somebody is publishing there: it is theirs to say.
    """
    with publishing_lease(platform, record, PUBLISH):
        pass


def tag_bases(platform: Platform, change: Change) -> list[str]:
    """Tag the bases of a run that its target's history still has, so that no expiry takes them; return the tags that are new.

    Raises:
        PublicationRefused: if there is such a tag, and it names another snapshot.
    """
    lakehouse, target = platform.lakehouse, change.target.name
    known, refs = lakehouse.history(target), lakehouse.refs(target)
    tags = {tag: base for tag, base in change.base_tags.items() if base in known}
    for tag, base in tags.items():
        lakehouse.tag(target, tag, base)
    return sorted(tags.keys() - refs)


def put_on_record(platform: Platform, change: Change, entry: int, action: str, commit: Commit) -> None:
    """Record under an entry what an action has committed: accepted versions, supersession and state."""
    ledger, run_id = platform.ledger, change.record.run_id
    facts = {"snapshot_id": commit.snapshot_id, "added": commit.files_added, "removed": commit.files_removed}
    if action == ACCEPT:
        ledger.accept_version(run_id, entry, snapshot_id=commit.snapshot_id, actor=operator())
    elif action == ROLLBACK:
        ledger.undo(run_id, entry, **facts, actor=operator())
    else:
        ledger.accept(run_id, entry, **facts, actor=operator(), keys=held(platform, change))
    if action in {ROLLBACK, REINSTATE}:
        _protect_again(platform, change, action)


def _protect_again(platform: Platform, change: Change, action: str) -> None:
    """Tag the bases of the runs that are published again: a collection may have taken the tags while they were over.

    The change is on record. What cannot be tagged now, the doctor finds.
    """
    keys = [chunk.key for chunk in change.plan.chunks]
    holders = (
        platform.ledger.accepted(change.target.name, keys).values() if action == ROLLBACK else [change.record.run_id]
    )
    for run_id in sorted(set(holders)):
        with suppress(Refused):
            tag_bases(platform, _change(platform, platform.ledger.run(run_id)))
