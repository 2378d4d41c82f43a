"""Another timeline of a database server: when its positions may follow on those that are landed, and when they are another log's.

Put here what is said of the identity of a delivery. Which of its positions are new, and which are missing, is `change_ranges`'.

A server that was promoted, or restored, goes on at a timeline of its own. Positions of two timelines are comparable up to the one at which
they part, which nobody tells a reader. So what is landed of the earlier one stays, the later one begins with a snapshot that is after
all of it, and between the two lies a break.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backfill_assets.extraction.change_files import Delivered
from manifests.errors import Problem
from manifests.log_breaks import continued, in_sequence, timeline
from manifests.log_ranges import LandedLog, LogIdentity, LogRange, lsn


def is_later_timeline(delivered: LogIdentity, landed: LogIdentity | None) -> bool:
    """Whether a delivery is of a later timeline of the server and database whose changes are landed."""
    if landed is None or not continued((delivered.incarnation, landed.incarnation)):
        return False
    same = (delivered.kind, delivered.server, delivered.name) == (landed.kind, landed.server, landed.name)
    return same and timeline(delivered.incarnation) > timeline(landed.incarnation)


def new_timeline(delivered: LogIdentity, landed: LogIdentity | None, ranges: Sequence[LogRange]) -> Iterator[Problem]:
    """Say why a later timeline is a decision, if it is one: what the earlier one had after what is landed of it is lost."""
    if not is_later_timeline(delivered, landed):
        return
    until = max((one.until for one in ranges), default=0)
    yield Problem(
        f"the files are of {delivered}, and what is landed until LSN {lsn(until)} is of {landed}",
        "a changelog goes on at a later timeline with a break: what was committed before it may be gone from the server, and nothing says so",
        "land all the same with --accept-gap REASON, which goes on record; plan a RESTATEMENT of what was published since the server changed",
    )


def of_another_log(
    delivered: LogIdentity, landed: LogIdentity | None, ranges: Sequence[LogRange], found: Delivered, table: str
) -> Iterator[Problem]:
    """Say why what was delivered cannot follow on what is landed, whatever anybody accepts."""
    if landed is None or delivered == landed:
        return
    if not is_later_timeline(delivered, landed):
        yield Problem(
            f"the files are of {delivered}, and {table} is of {landed}",
            "positions of two servers or databases, or of an earlier timeline, are none of one log, and say nothing of one another",
            "correct log.json if it names the wrong one; declare a changelog with a table of its own for the other log",
        )
        return
    until = max((one.until for one in ranges), default=0)
    whole = [one.lsn for one in found.snapshots.values() if one.is_whole]
    commits = [one.commit for one in found.transactions.values() if one.is_whole and one.commit is not None]
    first = min([*whole, *commits], default=None)
    if first is None:
        return  # nothing is landed of it
    if first < until:
        what = "the snapshot" if first in whole else "a commit"
        yield Problem(
            f"{what} at LSN {lsn(first)} of {delivered} is older than what is landed of {landed}: until LSN {lsn(until)}",
            "a later timeline begins after everything that is landed: by positions alone its changes would come before those that they replace",
            f"take a new snapshot once the server is beyond LSN {lsn(until)}, and deliver that and what follows on it; or take the loads "
            "back that are beyond the snapshot (`backfill unload`)",
        )
    elif first not in whole:
        yield Problem(
            f"the files of {delivered} begin with a commit at LSN {lsn(first)}, and with no snapshot",
            "a later timeline begins with a snapshot: where it has parted from the earlier one nobody knows",
            "take a snapshot of the tables, and deliver it with what follows on it",
        )


def begins_at(delivered: LogIdentity, loads: Sequence[LandedLog], found: Delivered) -> int:
    """Return the position at which the timeline of a delivery begins: that of its first snapshot after all that is landed of earlier ones.

    It is 0 where nothing is landed of an earlier one, and where no such snapshot is there. Where the table's history was cut, it is the
    position at which its newest timeline is known to begin.
    """
    if not continued((delivered.incarnation, *(one.log.incarnation for one in loads))):
        return 0
    number = timeline(delivered.incarnation)
    earlier = [part for one in loads if timeline(one.log.incarnation) < number for part in one.ranges]
    if not earlier:
        return max(loads[-1].begun, default=0) if loads else 0
    ends = max(part.range.until for part in earlier)
    snapshots = {one.lsn for one in found.snapshots.values() if one.is_whole}
    snapshots |= {seen.position for one in loads if timeline(one.log.incarnation) == number for seen in one.observed}
    return min((one for one in snapshots if one >= ends), default=0)


def out_of_sequence(
    delivered: LogIdentity,
    begins: int,
    loads: Sequence[LandedLog],
    new: Sequence[LandedLog],
    found: Delivered,
    table: str,
) -> Iterator[Problem]:
    """Say why a delivery would not go on after what is landed, whatever anybody accepts: `new` is what its loads would be."""
    rule = "a later timeline begins with a snapshot, after all that is landed of those before it"
    commits = [one.commit for one in found.transactions.values() if one.is_whole and one.commit is not None]
    # at such a position the table has changes of an earlier timeline, which are other ones
    older = sorted(one for one in commits if one < begins)
    if loads and older:
        yield Problem(
            f"commits of {delivered}, from LSN {lsn(older[0])} until {lsn(older[-1])}, are older than the snapshot at LSN "
            f"{lsn(begins)} that it begins with",
            f"{rule}: that says what became of what was committed before it",
            f"take the files with them out of the folder: {table} has what the snapshot at LSN {lsn(begins)} found",
        )
        return
    if not new or not loads or in_sequence([*loads, *new]):
        return
    yield Problem(
        f"{delivered} would begin without a snapshot",
        rule,
        "deliver the snapshot that it begins with; where there is none, take the loads of this timeline back (`backfill unload`), take a "
        "snapshot of the tables, and deliver that with what follows on it",
    )
