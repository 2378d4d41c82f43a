"""Ranges of a log: which positions of which partition were landed, are read, or are missing.

Put here what can be said of ranges without asking a server or opening a table. What a plan pins
of a log is `log_pins`'s; how a range is landed, `backfill_assets.ingestion`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from itertools import groupby

from manifests.canonical import LATER, canonical_json, reader_of

MOST_POSITION = 2**63 - 1
"""The greatest position at which a range may end: what columns of positions can hold."""


class LogKind(StrEnum):
    """What wrote a log."""

    KAFKA = "KAFKA"
    CHANGELOG = "CHANGELOG"


@dataclass(frozen=True, order=True)
class LogIdentity:
    """Which log it is: two logs with one name are told apart by it.

    Attributes:
        kind: what wrote it.
        server: the id of the cluster, or of the database server.
        name: of the topic, or of the database.
        incarnation: the id of the topic, or of the timeline: another one once the log was made anew.
    """

    kind: LogKind
    server: str
    name: str
    incarnation: str

    def __str__(self) -> str:
        return f"{self.name} ({self.kind} {self.server}, {self.incarnation})"


@dataclass(frozen=True, order=True)
class LogRange:
    """Positions of one partition, from `start` up to `until`, which is not in it; every one of them from 0 on."""

    partition: int
    start: int
    until: int

    def __post_init__(self) -> None:
        """Refuse what is no range."""
        if self.partition < 0 or not 0 <= self.start <= self.until <= MOST_POSITION:
            raise ValueError(f"no range of a log: partition {self.partition}, from {self.start} until {self.until}")

    def __str__(self) -> str:
        return f"partition {self.partition} from {self.start:,} until {self.until:,}"


@dataclass(frozen=True)
class LandedRange:
    """A range that a load has brought, with its rows: positions in between that have none are no records, or none that count.

    `first_time` and `last_time` are the least and the greatest time that its rows have; None where there are none. Rows of a snapshot of
    tables have the time at which its first one was read. `tables` are those of a database that they are rows of, of a changelog; empty
    of one that was landed before they were counted.
    """

    range: LogRange
    rows: int
    first_time: datetime | None = None
    last_time: datetime | None = None
    tables: tuple[str, ...] = field(default=(), metadata=LATER)

    def __post_init__(self) -> None:
        """Refuse what no load has brought."""
        first, last = self.first_time, self.last_time
        if self.rows < 0 or (first is None) != (last is None):
            raise ValueError(f"{self.range} has {self.rows} rows, from {first} until {last}")
        if first is not None and last is not None and (not _is_placed(first, last) or first > last):
            raise ValueError(f"{self.range} has times that are none, or end before they begin: {first}, {last}")


def _is_placed(*instants: datetime) -> bool:
    return all(one.tzinfo is not None for one in instants)


@dataclass(frozen=True)
class Observation:
    """A snapshot of the tables of a database that was landed: the position that it is of, and the time at which it was read first.

    `tables` are those that it has rows of; None of one that was landed before they were counted: it counts as one of all.
    """

    position: int
    at: datetime
    tables: tuple[str, ...] | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        """Refuse what is no observation."""
        if not 0 <= self.position < MOST_POSITION or not _is_placed(self.at):
            raise ValueError(f"no observation of a database: at {self.position}, {self.at}")

    def lacks(self, tables: Iterable[str]) -> tuple[str, ...]:
        """Return those of some tables that it has no row of, and so says nothing of, in order."""
        return () if self.tables is None else tuple(sorted(set(tables) - set(self.tables)))


@dataclass(frozen=True)
class LandedLog:
    """What one load has brought of a log: a range for each of its partitions, also for those without a row.

    Attributes:
        log: which log it is.
        ranges: what was landed.
        lost: positions that nobody has any more, and that somebody has accepted as lost when the load was made.
        complete_before: until when the load was asked to land, where it was asked by time.
        so_far: what had been landed before, in as few ranges as there can be, `lost_so_far` what of it was accepted as lost, and
            `observed_so_far` its snapshots: it is known by them when somebody has cut the history of the table.
        observed: of a changelog, the snapshots of the database's tables that it has brought.
        begun: of a changelog, the positions at which a later timeline of the server begins, in it or in what had been landed before.
        taken_back: positions that loads had brought which were taken back, and that were not there when this was written.
    """

    log: LogIdentity
    ranges: tuple[LandedRange, ...]
    lost: tuple[LogRange, ...] = field(default=(), metadata=LATER)
    complete_before: datetime | None = field(default=None, metadata=LATER)
    so_far: tuple[LandedRange, ...] = field(default=(), metadata=LATER)
    lost_so_far: tuple[LogRange, ...] = field(default=(), metadata=LATER)
    observed: tuple[Observation, ...] = field(default=(), metadata=LATER)
    observed_so_far: tuple[Observation, ...] = field(default=(), metadata=LATER)
    begun: tuple[int, ...] = field(default=(), metadata=LATER)
    taken_back: tuple[LogRange, ...] = field(default=(), metadata=LATER)

    def __post_init__(self) -> None:
        """Refuse what no load says of itself."""
        if self.complete_before is not None and not _is_placed(self.complete_before):
            raise ValueError(f"{self.complete_before} has no time zone")
        if any(not 0 <= one < MOST_POSITION for one in self.begun):
            raise ValueError(f"no positions of a log: {self.begun}")

    def to_json(self) -> str:
        """Return it as canonical JSON; `landed_from_json` reads it back."""
        return canonical_json(self)


def landed_from_json(text: str) -> LandedLog:
    """Read back what `LandedLog.to_json` wrote.

    Raises:
        ValueError: if it is something else.
    """
    return reader_of(LandedLog).validate_json(text)


def same_positions(one: LogIdentity, other: LogIdentity) -> bool:
    """Whether the positions of two logs can be held against one another: those of a server's timelines can, those of two topics cannot."""
    return one == other or (one.kind is LogKind.CHANGELOG and other.kind is LogKind.CHANGELOG)


def going_on(landed: LandedLog, before: Iterable[LandedLog], taken_back: Iterable[LogRange] = ()) -> LandedLog:
    """Return what a load has landed with what the loads `before` it have, that were not taken back.

    Of the positions that were `taken_back` it says those that none of them has brought.
    """
    known = list(before)
    begun = set(known[-1].begun) if known else set()
    if known and landed.ranges and landed.log.kind is LogKind.CHANGELOG:
        first = min(one.range.start for one in landed.ranges)
        # an earlier snapshot of the same timeline may be found later
        own = {one.range.start for load in known if load.log == landed.log for one in load.ranges}
        later = {at for at in begun & own if at > first}
        if later or all(load.log != landed.log for load in known):
            begun = (begun - later) | {first}
    ordered = sorted((one for load in known for one in load.ranges), key=lambda one: one.range)
    so_far: list[LandedRange] = []
    for one in ordered:
        last = so_far[-1] if so_far else None
        follows = last is not None and last.range.partition == one.range.partition
        if last is None or not follows or one.range.start != last.range.until or one.range.start in begun:
            so_far.append(one)
            continue
        times = [at for at in (last.first_time, one.first_time, last.last_time, one.last_time) if at is not None]
        whole = LogRange(one.range.partition, last.range.start, one.range.until)
        tables = tuple(sorted({*last.tables, *one.tables}))
        so_far[-1] = LandedRange(
            whole, last.rows + one.rows, min(times, default=None), max(times, default=None), tables
        )
    lost = joined(one for load in known for one in load.lost)
    observed = tuple(sorted({one for load in known for one in load.observed}, key=lambda one: one.position))
    mine = [load for load in [*known, landed] if same_positions(load.log, landed.log)]
    missing = without(taken_back, [one.range for load in mine for one in load.ranges])
    return replace(
        landed,
        so_far=tuple(so_far),
        lost_so_far=lost,
        observed_so_far=observed,
        begun=tuple(sorted(begun)),
        taken_back=missing,
    )


def known_from(oldest: LandedLog) -> LandedLog:
    """Return what had been landed before the oldest load that is known."""
    return LandedLog(
        oldest.log,
        oldest.so_far,
        oldest.lost_so_far,
        observed=oldest.observed_so_far,
        begun=oldest.begun,
        taken_back=oldest.taken_back,
    )


def taken_out(of: LandedLog, gone: LandedLog) -> LandedLog:
    """Return what is left of several loads, which one stands for, without what one of them has brought.

    Their rows are counted together: those of a range that falls apart count with its first part.
    """
    away = [one.range for one in gone.ranges]
    left: list[LandedRange] = []
    for one in of.ranges:
        inside = [other for other in gone.ranges if without([other.range], [one.range]) == ()]
        rows = one.rows - sum(other.rows for other in inside)
        parts = without([one.range], away)
        left += [replace(one, range=part, rows=0 if number else rows) for number, part in enumerate(parts)]
    at = {one.position for one in gone.observed}
    observed = tuple(one for one in of.observed if one.position not in at)
    return replace(of, ranges=tuple(left), lost=without(of.lost, gone.lost), observed=observed)


def joined(ranges: Iterable[LogRange]) -> tuple[LogRange, ...]:
    """Return the same positions in as few ranges as there can be, in order; empty ones are left out."""
    found: list[LogRange] = []
    for one in sorted(ranges):
        if one.start == one.until:
            continue
        last = found[-1] if found else None
        if last is not None and last.partition == one.partition and one.start <= last.until:
            found[-1] = LogRange(one.partition, last.start, max(last.until, one.until))
        else:
            found.append(one)
    return tuple(found)


def without(ranges: Iterable[LogRange], taken: Iterable[LogRange]) -> tuple[LogRange, ...]:
    """Return the positions of `ranges` that are not in `taken`, in order."""
    away: dict[int, list[LogRange]] = {}
    for one in joined(taken):
        away.setdefault(one.partition, []).append(one)
    left: list[LogRange] = []
    for one in joined(ranges):
        start = one.start
        for gone in away.get(one.partition, ()):
            if gone.until <= start or gone.start >= one.until:
                continue
            if gone.start > start:
                left.append(LogRange(one.partition, start, gone.start))
            start = gone.until
        if start < one.until:
            left.append(LogRange(one.partition, start, one.until))
    return tuple(left)


def overlaps(ranges: Iterable[LogRange]) -> tuple[LogRange, ...]:
    """Return the positions that are in more than one of some ranges, in order."""
    found: list[LogRange] = []
    for _, of_one in groupby(sorted(ranges), key=lambda one: one.partition):
        until = 0
        for one in of_one:
            if one.start < min(until, one.until):
                found.append(LogRange(one.partition, one.start, min(until, one.until)))
            until = max(until, one.until)
    return joined(found)


def gaps(ranges: Iterable[LogRange]) -> tuple[LogRange, ...]:
    """Return the positions between the first and the last of each partition that are in no range, in order."""
    known = joined(ranges)
    whole = [
        LogRange(partition, min(one.start for one in of_one), max(one.until for one in of_one))
        for partition, of_one in ((key, list(group)) for key, group in groupby(known, key=lambda one: one.partition))
    ]
    return without(whole, known)


def positions(ranges: Iterable[LogRange]) -> int:
    """Return how many positions some ranges have, each counted once."""
    return sum(one.until - one.start for one in joined(ranges))


def in_words(ranges: Iterable[LogRange], most: int = 5) -> str:
    """Return ranges in words, in order, the first `most` of them by name."""
    known = sorted(ranges)
    more = f" and {len(known) - most:,} more" if len(known) > most else ""
    return "; ".join(map(str, known[:most])) + more


def lsn_ranges(ranges: Iterable[LogRange]) -> str:
    """Return ranges of a log of one partition as the server writes positions."""
    return "; ".join(f"from {lsn(one.start)} until {lsn(one.until)}" for one in sorted(ranges))


def lsn(position: int) -> str:
    """Return a position of a changelog as the server writes it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"
