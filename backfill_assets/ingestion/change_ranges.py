"""Which of the delivered transactions and snapshots are new to a table, which range of the log they are, and what is missing between.

Put here what follows from positions alone: pure, no table is opened. How files are read is `extraction.change_files`', what is done with
a range `landed_changes`'.

A transaction that names the commit before it says that there is nothing between the two. So it covers the log from that one, exclusive,
up to its own commit. What nobody covers is a gap: changes were lost, or are still to be delivered.

The first transaction after a start of the connector names none. Two things speak for what is before it: an overlap (the same transaction
is there from before the start, and names one), or a snapshot right before it whose slot it came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from backfill_assets.extraction.change_files import Delivered, LogFacts, Snapshot, Transaction
from manifests.errors import Problem
from manifests.log_ranges import LogRange, gaps, joined, lsn, lsn_ranges, positions, without

_SHOWN = 5


@dataclass(frozen=True)
class Piece:
    """A range of the log without a gap that is to be landed as one load, with what is in it, in order."""

    range: LogRange
    units: tuple[Transaction | Snapshot, ...]


@dataclass(frozen=True)
class ToLand:
    """What a delivery brings.

    Attributes:
        pieces: what is new, in order.
        missing: the positions between the first and the last that nobody covers, and that nobody has accepted as lost; where the log
            begins without a snapshot, those from 0 up to its first one, too.
        lost: why something is missing, each a reason to refuse the delivery unless somebody accepts it.
        again: how many whole transactions and snapshots are in the table already.
        passed_over: positions of snapshots that were taken of a range that is landed: the table knows more than they do.
    """

    pieces: tuple[Piece, ...]
    missing: tuple[LogRange, ...]
    lost: tuple[Problem, ...]
    again: int
    passed_over: tuple[int, ...]


def to_land(
    found: Delivered,
    facts: LogFacts,
    known: Sequence[LogRange],
    observed: Sequence[int],
    accepted: Sequence[LogRange] = (),
    begins: int = 0,
    taken_back: Sequence[LogRange] = (),
) -> ToLand:
    """Return what of a delivery is new, and what is missing.

    Args:
        found: what was delivered.
        facts: what is said beside it.
        known: the ranges that the table has.
        observed: the positions of the snapshots that it has.
        accepted: the positions that its loads say somebody has accepted as lost.
        begins: the position that its timeline begins at: no transaction after it speaks for what is before.
        taken_back: positions that were landed, were taken back and are not there again.
    """
    known = joined(known)
    whole: list[tuple[int, Transaction | Snapshot]] = []
    whole += [(_position(one), one) for one in found.transactions.values() if one.is_whole]
    snapshots = [(one.lsn, one) for one in found.snapshots.values() if one.is_whole]
    # what is there already speaks for what is before it, too
    of_log: dict[int, Transaction | Snapshot] = dict([*whole, *snapshots])
    observed_at = {*observed, *(lsn for lsn, _ in snapshots)}
    begun = {lsn for lsn in observed_at if facts.slot_created_lsn is None or facts.slot_created_lsn <= lsn}
    covered = [
        _covered(position, one, of_log, known, begun, begins, facts.confirmed_lsns) for position, one in of_log.items()
    ]
    new = {position: one for position, one in of_log.items() if not _has(known, position)}
    # a gap that a load has left which was taken back is nobody's decision any more
    first = min((one.start for one in (known or covered)), default=0)
    begun_with = [one for one in taken_back if one.until <= first]
    missing = without([*gaps([*known, *covered, *begun_with]), *begun_with], [*accepted, *covered])
    pieces = []
    for part in without(joined(covered), known):
        inside = tuple(one for position, one in sorted(new.items()) if part.start <= position < part.until)
        if inside:
            pieces.append(Piece(part, inside))
    unbegun = _unbegun(pieces, known, accepted, taken_back, were_empty=facts.tables_were_empty)
    passed = tuple(sorted(lsn for lsn, _ in snapshots if _has(known, lsn) and lsn not in observed))
    again = len(of_log) - len(new) - len(passed)
    lost = [*_lost_before(unbegun, new), *_lost(found, facts, known, missing, new, observed)]
    return ToLand(tuple(pieces), joined([*missing, *unbegun]), tuple(lost), again, passed)


def _unbegun(
    pieces: Sequence[Piece],
    known: Sequence[LogRange],
    accepted: Sequence[LogRange],
    taken_back: Sequence[LogRange],
    *,
    were_empty: bool,
) -> tuple[LogRange, ...]:
    """Return the positions before what the log is to begin with, where that is no snapshot, and nobody has accepted them as lost.

    Of tables that were empty when it began, these are the ones that were landed and taken back.
    """
    first = pieces[0] if pieces else None
    if first is None or isinstance(first.units[0], Snapshot) or (known and known[0].start < first.range.start):
        return ()
    before: tuple[LogRange, ...] = (LogRange(0, 0, first.range.start),)
    if were_empty:
        before = without(before, without(before, taken_back))
    return without(before, accepted)


def _position(one: Transaction) -> int:
    assert one.commit is not None  # it is whole
    return one.commit


def _has(ranges: Sequence[LogRange], position: int) -> bool:
    return any(one.start <= position < one.until for one in ranges)


def _covered(
    position: int,
    one: Transaction | Snapshot,
    of_log: dict[int, Transaction | Snapshot],
    known: Sequence[LogRange],
    snapshots: set[int],
    begins: int,
    confirmed: Sequence[int],
) -> LogRange:
    """Return the range that a transaction or snapshot speaks for."""
    if isinstance(one, Snapshot):
        return LogRange(0, position, position + 1)
    if one.previous is not None:
        return LogRange(0, min(max(one.previous + 1, begins), position), position + 1)
    # the first one after a snapshot names none: nothing was delivered between the two, and what follows on it names it. A slot that was
    # made after the snapshot does not have what was committed in between, nor does one that had confirmed some of it when the
    # connector was started once more
    before = [other for other in of_log if other < position] + [
        part.until - 1 for part in known if part.until <= position
    ]
    last = max(before, default=None)
    follows = last in snapshots and not any(last < at < position for at in confirmed)
    return LogRange(0, last + 1 if last is not None and follows else position, position + 1)


_RULE = "a changelog is landed without a gap: what is missing would be missing in every state that is made of it"
_FIX = (
    "deliver the files that have it; where it is lost for good, take a new snapshot of the tables, and land all the same with "
    "--accept-gap REASON, which goes on record"
)
_CAPTURED = (
    "have the publication list the captured tables alone (publication.autocreate.mode=filtered makes one that does)"
)


def _lost_before(unbegun: Sequence[LogRange], new: dict[int, Transaction | Snapshot]) -> Iterator[Problem]:
    """Say what is missing before the first commit, if anything is."""
    if not unbegun:
        return
    yield Problem(
        f"rows from before the commit {lsn(min(new))} are missing: no snapshot was delivered that the changes go on from",
        _RULE,
        f"{_FIX}; the snapshot says how the tables are from then on. Where they were empty when the log began, so that no snapshot "
        'has a row: write "tables_were_empty": true into log.json, and nothing is missing',
    )


def _lost(
    found: Delivered,
    facts: LogFacts,
    known: Sequence[LogRange],
    missing: Sequence[LogRange],
    new: dict[int, Transaction | Snapshot],
    observed: Sequence[int],
) -> Iterator[Problem]:
    """Say what is missing, and by what it shows."""
    open_ones = [one.in_words() for one in found.transactions.values() if not one.is_whole and one.changes]
    beside = f"; delivered in part are {', '.join(open_ones[:_SHOWN])}" if open_ones else ""
    for part in missing[:_SHOWN]:
        yield Problem(
            f"changes between the commits {lsn(part.start - 1)} and {lsn(part.until)} are missing"
            f"{_by_slot(facts, known, part) or _by_start(new, part)}{beside}",
            _RULE,
            f"{_CAPTURED}; of what is there already: {_FIX}" if _is_empty(new.get(part.until)) else _FIX,
        )
    if len(missing) > _SHOWN:
        yield Problem(f"and {len(missing) - _SHOWN:,} more gaps, {positions(missing):,} positions in all", _RULE, _FIX)
    for one in found.transactions.values():
        if one.commit is not None and not one.is_whole and not _has(known, one.commit):
            yield Problem(f"{one.in_words()}: changes of it are missing", _RULE, _FIX)
    for snapshot in found.open_snapshots(observed):
        if not _has(known, snapshot.lsn) and any(position > snapshot.lsn for position in new):
            ends = " and no ".join(
                end for end, is_there in (("first", snapshot.has_first), ("last", snapshot.has_last)) if not is_there
            )
            what = f"the snapshot at {lsn(snapshot.lsn)} has no {ends} row, and later commits are there: rows of it are missing"
            yield Problem(what, _RULE, _FIX)
    commits = [one.commit for one in found.transactions.values() if one.commit is not None]
    reach = max([*commits, *new, *(part.until - 1 for part in known)], default=-1)
    if facts.offset_lsn is not None and facts.offset_lsn > reach:
        yield Problem(
            f"the connector's offset file is newer than its changes: it has the commit {lsn(facts.offset_lsn)}, and they reach "
            f"{lsn(max(reach, 0))}",
            _RULE,
            _FIX,
        )


def _by_slot(facts: LogFacts, known: Sequence[LogRange], part: LogRange) -> str:
    created = facts.slot_created_lsn
    if created is None or not known or created < part.start:
        return ""
    return f": the slot {facts.slot} was made at {lsn(created)}, after what is landed ({lsn_ranges(known[-1:])})"


def _by_start(new: dict[int, Transaction | Snapshot], part: LogRange) -> str:
    one = new.get(part.until)
    if not isinstance(one, Transaction) or one.previous is not None:
        return ""
    if _is_empty(one):
        return (
            f": transaction {one.number} ends with a count of 0 changes, so that none of them names the commit before it; the publication "
            "has tables that are not captured"
        )
    return (
        f": transaction {one.number} is the first after a start of the connector and names no commit before it, and it was not delivered "
        "before that start, so that nothing overlaps"
    )


def _is_empty(one: Transaction | Snapshot | None) -> bool:
    """Whether it is a transaction without a change: nothing in it says what is before it."""
    return isinstance(one, Transaction) and not one.count
