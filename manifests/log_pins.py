"""Positions of a log that a run reads: which ones a plan pins of what was landed, and why they may not be read.

Put here the rules, and what a plan keeps. What was landed is looked up by `backfill_assets.planning.landed_logs`; ranges by themselves
are `log_ranges`', days that are complete `lateness`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta

from manifests.canonical import LATER
from manifests.chunks import Chunking, in_words
from manifests.errors import Problem
from manifests.facts import SourceFile, SourceState, TargetContract
from manifests.lateness import FalseTime, Lateness, last_complete_day
from manifests.log_breaks import (
    InheritedBreaks,
    LogBreak,
    breaks_of,
    in_sequence,
    problems_of_breaks,
    problems_of_inherited,
    still_lost,
)
from manifests.log_gaps import place_of_gap, positions_in_words
from manifests.log_ranges import (
    LandedLog,
    LogIdentity,
    LogKind,
    LogRange,
    joined,
    lsn_ranges,
    overlaps,
    positions,
    without,
)
from manifests.log_ranges import in_words as ranges_in_words
from manifests.model import Mode, RunManifest
from manifests.source_pins import Breaks, IncompleteDays, SourceLog

_SHOWN = 5


@dataclass(frozen=True)
class PinnedLog:
    """Of a source that is a log, the positions that a run reads at the snapshot that is pinned.

    Attributes:
        table: the source.
        log: which log it is.
        position: the column of a row's position, and `partition` that of its partition; None where there is one only.
        ranges: what is read.
        is_whole: whether that is all that the snapshot has.
        lost: positions in between that somebody has accepted as lost.
        complete_before: the instant before which the log is complete, as its declaration has it; None where it says nothing, or
            nothing is known to be complete.
        lateness: that declaration in words; empty where there is none.
        untimed: rows of the snapshot without the time by which the run reads it: no chunk reads them.
        breaks: of a changelog, the breaks in what is read, each with what is known around it.
        false_times: times that make nothing complete, since what was landed after them contradicts them.
    """

    table: str
    log: LogIdentity
    position: str
    partition: str | None
    ranges: tuple[LogRange, ...]
    is_whole: bool
    lost: tuple[LogRange, ...] = ()
    complete_before: datetime | None = None
    lateness: str = ""
    untimed: int = field(default=0, metadata=LATER)
    breaks: tuple[LogBreak, ...] = field(default=(), metadata=LATER)
    false_times: tuple[FalseTime, ...] = field(default=(), metadata=LATER)

    def describe(self) -> list[tuple[str, str]]:
        """Say in words what is read of the log, and until when it is complete."""
        written = lsn_ranges if self.log.kind is LogKind.CHANGELOG else ranges_in_words
        said = [(f"log {self.table}", f"{self.log}: {written(self.ranges) or 'nothing'}")]
        if self.lost:
            said.append(("accepted as lost", written(self.lost)))
        said += [("break", one.describe()) for one in self.breaks]
        said += [("does not count", one.describe()) for one in self.false_times]
        if self.untimed:
            said.append(("without a time", f"{self.untimed:,} rows, which no chunk reads"))
        if self.lateness:
            until = (
                "nothing is known to be"
                if self.complete_before is None
                else f"before {self.complete_before.isoformat()}"
            )
            said.append(("complete", f"{until} ({self.lateness})"))
        return said


@dataclass(frozen=True)
class FoundLog:
    """What is known of a source that is a log, at the snapshot that a run would read.

    Attributes:
        table: the source.
        position: the column of a row's position, and `partition` that of its partition; None where there is one only.
        landed: what each load has brought that was not taken back, by its id.
        others: what else has brought rows: loads without ranges, by their ids, and snapshots of other programs, by theirs.
        lateness: what is declared of records that come late; None where nothing is.
        from_time: by partition, the position that the instant of the manifest's `fromTime` stands for; None where it names none.
            `until_time` likewise.
        last: by partition, the greatest time in the ranges that are read, where lateness is declared; `false_times` are not among them.
        batch: until when the newest load was asked to land, where all of it is read.
        untimed: how many rows have no time by which a run would read them.
        read: the files that may hold rows at the positions that are read; None where that are all.
    """

    table: str
    position: str
    partition: str | None
    landed: Mapping[str, LandedLog] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    lateness: Lateness | None = None
    from_time: Mapping[int, int] | None = None
    until_time: Mapping[int, int] | None = None
    last: Mapping[int, datetime | None] = field(default_factory=dict)
    false_times: tuple[FalseTime, ...] = ()
    batch: datetime | None = None
    untimed: int = 0
    taken_back: tuple[LogRange, ...] = ()
    """What was landed, was taken back and is not there again."""
    read: tuple[SourceFile, ...] | None = None

    @property
    def ranges(self) -> tuple[LogRange, ...]:
        """Every range that a load has brought."""
        return tuple(one.range for load in self.landed.values() for one in load.ranges)

    @property
    def log(self) -> LogIdentity | None:
        """Which log it is: of a database's changes its newest timeline; None where loads are of several logs, or there are none."""
        loads = list(self.landed.values())
        identities = {load.log for load in loads}
        if len(identities) == 1:
            return identities.pop()
        return loads[-1].log if loads and in_sequence(loads) else None

    @property
    def lost(self) -> tuple[LogRange, ...]:
        """Every range that somebody has accepted as lost, and that nobody has found since."""
        return still_lost(self.landed.values())


def wanted_ranges(asked: SourceLog | None, found: FoundLog) -> tuple[LogRange, ...]:
    """Return the positions that a manifest asks for, those that were not landed too; without any, all from the first landed one to the last.

    A range that ends before it begins is left out: `log_problems` names it.
    """
    begins, ends = _hull(found)
    firsts = first_positions(asked, found)
    until = found.until_time if asked is None or asked.until is None else asked.until
    named = asked is not None and (asked.from_ or asked.until)
    partitions = sorted(named or begins)
    ranges = []
    for one in partitions:
        first = firsts.get(one, 0)
        last = ends.get(one, 0) if until is None else until.get(one, ends.get(one, 0))
        if first < last:
            ranges.append(LogRange(one, first, last))
    return joined(ranges)


def first_positions(asked: SourceLog | None, found: FoundLog) -> dict[int, int]:
    """Return by partition where a run begins: as a manifest asks; of a partition that it does not name, where what was landed does."""
    start = found.from_time if asked is None or asked.from_ is None else asked.from_
    return _hull(found)[0] | dict(start or {})


def _hull(found: FoundLog) -> tuple[dict[int, int], dict[int, int]]:
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for one in (*found.ranges, *found.lost):
        begins[one.partition] = min(begins.get(one.partition, one.start), one.start)
        ends[one.partition] = max(ends.get(one.partition, one.until), one.until)
    for one in found.taken_back if begins else ():
        # what a log began with, and somebody has taken back, is missing; what it ended with is not there yet
        begins[one.partition] = min(begins.get(one.partition, one.start), one.start)
        ends.setdefault(one.partition, one.until)
    return begins, ends


def pin_of_log(asked: SourceLog | None, found: FoundLog) -> PinnedLog | None:
    """Return what a plan keeps of a log; None where it cannot be told which log it is."""
    log = found.log
    if log is None:
        return None
    lost = joined(found.lost)
    wanted = wanted_ranges(asked, found)
    lateness = found.lateness
    return PinnedLog(
        found.table,
        log,
        found.position,
        found.partition,
        wanted,
        is_whole=not without(joined(found.ranges), wanted),
        lost=without(wanted, without(wanted, lost)),
        complete_before=None if lateness is None else lateness.complete_before(found.last, found.batch),
        lateness="" if lateness is None else lateness.describe(),
        untimed=found.untimed,
        breaks=breaks_of(found.landed.values(), wanted),
        false_times=found.false_times,
    )


def _problems_of_one(
    manifest: RunManifest, found: FoundLog, asked: SourceLog | None, chunks: Sequence[tuple[str, date, date]]
) -> Iterator[Problem]:
    """Say why a log may not be read as a manifest asks; `chunks` are keys with first and last day, of a target that has days."""
    identities = sorted({load.log for load in found.landed.values()})
    if found.others:
        yield Problem(
            f"{found.table} has rows that no landing has brought: {_shown(found.others)}",
            "the rows of a log's table come by `backfill land`, which says which positions they are",
            "take such a load back (`backfill unload`); rows of another program have to be removed by it",
        )
    if not identities:
        yield Problem(
            f"nothing was landed in {found.table}",
            "a run reads what was landed of a log",
            "land it first: `backfill land`",
        )
        return
    if found.log is None:
        yield Problem(
            f"{found.table} has records of {len(identities)} logs: {_shown(map(str, identities))}",
            "positions of a log that was made anew mean something else",
            "land each in a table of its own; take the loads of one of them back (`backfill unload`)",
        )
        return
    written = lsn_ranges if identities[0].kind is LogKind.CHANGELOG else ranges_in_words
    if twice := overlaps(found.ranges):
        yield Problem(
            f"two loads have brought the same positions of {found.table}: {written(twice)}",
            "each record of a log is in its table once",
            "take one of the loads back (`backfill unload`)",
        )
    yield from _of_ends(asked, found)
    if not wanted_ranges(asked, found):
        rule = "what a run computes of no record is nothing, and nothing would take the place of what is published"
        yield Problem(
            f"the run would read no position of {found.table}", rule, "correct source.log, or land records first"
        )
    missing = without(wanted_ranges(asked, found), [*found.ranges, *found.lost])
    if missing:
        yield _not_landed(found, missing, identities[0].kind)
    if _publishes_history(manifest):
        yield from _of_days(asked, found, chunks)
        if asked is None or asked.breaks is Breaks.REFUSE:
            yield from problems_of_breaks(
                found.table, breaks_of(found.landed.values(), wanted_ranges(asked, found)), chunks
            )


def _not_landed(found: FoundLog, missing: Sequence[LogRange], kind: LogKind) -> Problem:
    """Say which positions a run would read and are not there: each gap with the loads around it, and whether it was there before."""
    loads = {name: [one.range for one in load.ranges] for name, load in found.landed.items()}
    gaps = [f"{positions_in_words([one], kind)}, {place_of_gap(one, loads, kind)}" for one in missing[:_SHOWN]]
    gaps += [f"and {len(missing) - _SHOWN:,} more gaps"] if len(missing) > _SHOWN else []
    had = without(missing, without(missing, found.taken_back))
    these = "all of them" if had == joined(missing) else positions_in_words(had, kind)
    back = f"; loads that were taken back had brought {these}" if had else ""
    of_topic = ", from an archive what the topic does not have any more" if kind is LogKind.KAFKA else ""
    return Problem(
        f"{positions(missing):,} position(s) of {found.table} that the run would read are not landed: {'; '.join(gaps)}{back}",
        "a run reads a log without gaps but those that somebody has accepted",
        f"land them (`backfill land`{of_topic}); if nobody has them, land what comes after with --accept-gap REASON; or have "
        "source.log name positions without them",
    )


def _publishes_history(manifest: RunManifest) -> bool:
    return manifest.execution_mode.publishes and manifest.execution_mode is not Mode.LIVE


def _of_ends(asked: SourceLog | None, found: FoundLog) -> Iterator[Problem]:
    if asked is None:
        return
    begins, ends = _hull(found)
    named = {**(asked.from_ or {}), **(asked.until or {})}
    if unknown := sorted(named.keys() - begins.keys()):
        yield Problem(
            f"source.log names partition {', '.join(map(str, unknown))}, of which nothing was landed",
            f"landed of {found.table} are the partitions {', '.join(map(str, sorted(begins)))}",
            "correct the partition, or land it first",
        )
    start = found.from_time if asked.from_ is None else asked.from_
    until = found.until_time if asked.until is None else asked.until
    for one in sorted(begins.keys() & (named.keys() or begins.keys())):
        first = begins[one] if start is None else start.get(one, begins[one])
        last = ends[one] if until is None else until.get(one, ends[one])
        if first > last:
            yield Problem(
                f"source.log begins at {first:,} and ends at {last:,} in partition {one}",
                "a range of a log ends after it begins",
                "correct the positions, or the instants",
            )


def _of_days(asked: SourceLog | None, found: FoundLog, chunks: Sequence[tuple[str, date, date]]) -> Iterator[Problem]:
    if found.lateness is None or (asked is not None and asked.incomplete_days is IncompleteDays.PUBLISH):
        return
    before = found.lateness.complete_before(found.last, found.batch)
    last = None if before is None else last_complete_day(before)
    late = [key for key, _, ends in chunks if last is None or ends > last]
    if not late:
        return
    until = "nothing is known to be complete" if before is None else f"it is complete before {before.isoformat()}"
    until += "".join(f"; {one.describe()}" for one in found.false_times[:_SHOWN])
    yield Problem(
        f"records of {in_words(late)} may still come into {found.table}: {until}",
        f"the log's declaration says how late they may be: {found.lateness.describe()}",
        "land more of the log, or narrow the publish range; source.log.incompleteDays: PUBLISH publishes what there is",
    )


def _shown(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:_SHOWN]) + (f" and {len(known) - _SHOWN:,} more" if len(known) > _SHOWN else "")


def log_problems(
    manifest: RunManifest,
    contract: TargetContract,
    logs: Mapping[str, FoundLog],
    chunks: Sequence[tuple[str, date, date]],
    inherited: Sequence[InheritedBreaks] = (),
) -> list[Problem]:
    """Return why the sources that are logs, or are computed from logs, may not be read as a manifest asks.

    `chunks` are keys with first and last day; `inherited` are the breaks behind the sources that are targets.
    """
    asked, problems = manifest.source.log, []
    # what is published nevertheless is so of every log; positions are the first source's
    nevertheless = None if asked is None else asked.without_positions
    if asked is not None and asked.names_positions and contract.source not in logs:
        rule = "source.log names positions of a log, and records of none are landed there"
        problems.append(Problem(f"{contract.source} is no log", rule, "leave source.log out", "source.log"))
    days = [] if contract.chunking is Chunking.WHOLE else chunks
    for table, found in logs.items():
        problems += _problems_of_one(manifest, found, asked if table == contract.source else nevertheless, days)
    if _publishes_history(manifest) and (asked is None or asked.breaks is Breaks.REFUSE):
        problems += problems_of_inherited(inherited)
    return problems


def pinned_logs(manifest: RunManifest, source: str, logs: Mapping[str, FoundLog]) -> tuple[PinnedLog, ...]:
    """Return which positions a plan pins of the sources that are logs: of the first `source` those that the manifest names."""
    pins = (
        pin_of_log(manifest.source.log if table == source else None, found) for table, found in sorted(logs.items())
    )
    return tuple(pin for pin in pins if pin is not None)


def with_files_read(source: SourceState, logs: Mapping[str, FoundLog]) -> SourceState:
    """Return a source with the files that a run reads of it: of a log, those that may hold rows at its positions."""
    found = logs.get(source.table)
    return source if found is None or found.read is None else replace(source, files=found.read)


def last_complete(logs: Iterable[PinnedLog], start: date, ends: date) -> date:
    """Return the last day, up to `ends`, that logs are complete for as declared; the one before `start` where none is."""
    before = start - timedelta(days=1)
    declared = [one.complete_before for one in logs if one.lateness]
    return min([ends, *(before if one is None else max(before, last_complete_day(one)) for one in declared)])
