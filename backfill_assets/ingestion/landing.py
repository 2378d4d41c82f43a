"""Landing ranges of a topic: resolved first, read by workers into files, and committed as one snapshot a load.

Put here the order of things, and what makes it safe to kill and to repeat: what is landed is what snapshots say, so that the same command
lands what is missing, and nothing twice. Which ranges these are is `topic_ranges`'; how one is read, `extraction.topic_records`'.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from backfill_assets import faults
from backfill_assets.decisions import decider
from backfill_assets.declarations.topics import Topic
from backfill_assets.extraction.brokers import Brokers
from backfill_assets.extraction.refusals import TopicRefused
from backfill_assets.extraction.topic_records import Pace, RangeFailed, RangeRead, RangeTask, read_ranges
from backfill_assets.extraction.topic_state import TopicState
from backfill_assets.ingestion.columns_in_place import require_declared_columns
from backfill_assets.ingestion.held_tables import HeldTable, held_to_load
from backfill_assets.ingestion.landed_commits import (
    LoadLanded,
    commit_landed,
    instant,
    kept_while,
    landing_folder,
    load_id_of,
    other_rows,
    workers_of,
)
from backfill_assets.ingestion.topic_overlaps import Proven, require_equal
from backfill_assets.ingestion.topic_ranges import FirstSince, Resolved, Wanted, resolve
from backfill_assets.installation import Platform
from manifests.canonical import canonical_json
from manifests.errors import EnvironmentRefused, InputRefused, Problem
from manifests.log_ranges import LandedLog, LandedRange, LogIdentity, LogRange, in_words, positions, without
from manifests.model import Mode
from manifests.text import seen
from resources import actors, logs
from resources.lakehouse.facade import local_path
from resources.lakehouse.landed_logs import LandedLoad, landed_loads, taken_back
from resources.lakehouse.loads import GAP_PROPERTY, REASON_PROPERTY
from resources.spark.chunk_work import ChunkWork
from resources.spark.cores import tasks_at_once

_log = logging.getLogger(__name__)
_PIECE = 1_000_000
"""Offsets of one task of a worker: a partition with more is read by several."""
_READ = ChunkWork[RangeTask, RangeRead | RangeFailed]


@dataclass(frozen=True)
class Landed:
    """What a landing came to: what was to be landed, the loads, and what of that which was there is proven to be the same."""

    resolved: Resolved
    loads: tuple[LoadLanded, ...]
    proven: Proven | None = None


Told = Callable[[Resolved], None]


def land(
    platform: Platform,
    topic: Topic,
    wanted: Wanted,
    *,
    accept_gap: str | None = None,
    by: str | None = None,
    prove_overlap: bool = False,
    tell: Told = lambda _: None,
) -> Landed:
    """Land ranges of a topic: what of them is not landed yet, in as many loads as the limits of the topic ask for.

    Args:
        platform: the opened installation.
        topic: the topic.
        wanted: which ranges.
        accept_gap: why offsets between landed ones and these are left out; None refuses that.
        by: who accepts that, if another than the process says.
        prove_overlap: whether what is landed already of it is read again, and held against the table.
        tell: told what will be landed, before it is read.

    Raises:
        EnvironmentRefused: if a setting of the topic is missing, or the table does not have the columns of its model.
        TopicRefused: if the brokers do not answer, or a range could not be read; loads before it are landed.
        InputRefused: if a range cannot be landed, with every reason; nothing is written then.
        TransitionRefused: if `by` may not accept a gap.
        LeaseHeld: if somebody loads into the table, or takes a load back, for longer than is waited for.
        LeaseLost: if this process stood still for so long that somebody else has taken the table over; the same command again.
    """
    said = said_of_gap(platform, topic.table, accept_gap, by)
    declared = platform.products.input(topic.table)
    require_declared_columns(platform, declared)
    with (
        Brokers(topic, platform.settings.of_topic(topic.name)) as brokers,
        held_to_load(platform, topic.table) as held,
    ):
        table, state = platform.lakehouse.table(topic.table), brokers.state()
        loads = landed_loads(table)
        resolved = resolve(
            wanted,
            state,
            loads,
            brokers.first_since,
            accepts_gap=accept_gap is not None,
            taken_back=taken_back(table, log=state.log),
        )
        if problems := [*other_rows(platform, topic.table), *resolved.problems]:
            raise InputRefused(problems)
        tell(resolved)
        faults.reach("landing.resolved")
        before = _complete_before(wanted.before, state, brokers.first_since, platform.ledger.now())
        landing = _Landing(platform, topic, brokers, held, resolved, said, before, loads)
        proven = landing.proven() if prove_overlap else None
        return Landed(resolved, tuple(landing.loads()), proven)


def _complete_before(
    asked: datetime | None, state: TopicState, first_since: FirstSince, now: datetime
) -> datetime | None:
    """Return the instant up to which a landing was asked for, if it reaches there: it is over, and no open transaction is in the way."""
    if asked is None or asked > now:
        return None
    first = first_since(asked, state.partitions)
    reached = (
        one.stable == one.high if (found := first.get(partition)) is None else found <= one.stable
        for partition, one in state.partitions.items()
    )
    return asked if all(reached) else None


def said_of_gap(platform: Platform, table: str, reason: str | None, by: str | None) -> dict[str, str]:
    """Return what goes on record of a gap that is accepted: why, and who accepts it; nothing where no gap is.

    Raises:
        InputRefused: if the reason says nothing, or could not be on record.
        TransitionRefused: if `by` is no name, or the policy in force wants to know who people are, and nothing else says so.
    """
    if reason is None:
        return {}
    if not seen(reason):
        rule = "a gap is left out by decision: somebody says why"
        raise InputRefused(Problem("--accept-gap without a reason", rule, "give the reason after it"))
    if problems := actors.no_reason(reason):
        raise InputRefused(problems)
    who = decider(platform, by, f"a gap of {table}")
    return {REASON_PROPERTY: reason, GAP_PROPERTY: canonical_json({"gap": "", "by": who.name, "reason": reason})}


class _Landing:
    """One landing under way, of ranges that are resolved."""

    def __init__(
        self,
        platform: Platform,
        topic: Topic,
        brokers: Brokers,
        held: HeldTable,
        resolved: Resolved,
        said: Mapping[str, str],
        before: datetime | None,
        there: Sequence[LandedLoad],
    ) -> None:
        self._platform, self._topic, self._brokers, self._held = platform, topic, brokers, held
        self._resolved, self._said, self._before = resolved, said, before
        self._known = [one.landed for one in there]

    def loads(self) -> Iterator[LoadLanded]:
        """Make the loads, one after the other, until all ranges are landed."""
        left, gap = self._resolved.missing, self._resolved.gap
        while left:
            ranges = first_positions(left, self._topic.limits.positions)
            done = self._load(ranges, gap, left)
            brought = tuple(one.range for one in done.landed.ranges)
            yield done
            left, gap = without(left, brought), ()

    def _load(self, ranges: Sequence[LogRange], gap: tuple[LogRange, ...], left: Sequence[LogRange]) -> LoadLanded:
        """Read ranges, of those that are `left`, and commit what was read as one snapshot."""
        topic, log = self._topic, self._resolved.log
        load_id = load_id_of(self._platform, topic.table, log, ranges)
        logs.event(_log, logging.INFO, "range_resolved", f"{log}: {in_words(ranges)}", table=topic.table, load=load_id)
        read = self._read(self._tasks(ranges, load_id, topic.limits.bytes))
        faults.reach("landing.read")
        whole = _whole_ranges(ranges, read)
        brought = tuple(one for one, _ in whole)
        is_last = not without(left, [one.range for one in brought])
        there = {one.range.partition for one in (*brought, *(one for load in self._known for one in load.ranges))}
        # a partition of which nothing is landed is one of the log all the same: it holds back until when that is complete
        others = [LogRange(one, at, at) for one, at in self._resolved.begins.items() if one not in there]
        brought = (*brought, *(LandedRange(one, 0) for one in others))
        landed = LandedLog(log, brought, gap, self._before if is_last else None)
        said = self._said if gap else {}
        files = [path for _, own in whole for path in own]
        source = f"topic {topic.topic}"
        done = commit_landed(
            self._platform, topic.table, load_id, landed, self._known, files, self._held, source=source, more=said
        )
        self._known.append(done.landed)
        return replace(done, untimed=sum(one.untimed for one in read if not set(files).isdisjoint(one.files)))

    def proven(self) -> Proven | None:
        """Read again what is landed already of what was asked for, and return that it is the same; None where there is nothing.

        Raises:
            InputRefused: if it is not, naming the first offset at which it differs.
        """
        there = self._resolved.there
        if not there:
            return None
        read = self._read(self._tasks(there, "", 1 << 60), is_proof=True)
        files = [path for one in read for path in one.files]
        table = self._platform.lakehouse.table(self._topic.table)
        try:
            what = f"{self._topic.topic} at {self._brokers.addresses}"
            found = require_equal(
                table, [local_path(one) for one in files], there, what, compacted=self._resolved.compacted
            )
        finally:
            for one in files:
                table.io.delete(one)
        text = f"{in_words(there)}: {found.rows:,} records are as they were landed, {found.digest}"
        logs.event(_log, logging.INFO, "overlap_proven", text, table=self._topic.table, rows=found.rows)
        return found

    def _tasks(self, ranges: Sequence[LogRange], load_id: str, most_bytes: int) -> list[tuple[RangeTask, int]]:
        folder = landing_folder(self._platform, self._topic.table)
        pieces = list(in_pieces(ranges, _PIECE))
        return [
            (
                RangeTask(
                    chunk=f"{one.partition}:{one.start}",
                    partition=one.partition,
                    start=one.start,
                    until=one.until,
                    folder=folder,
                    load_id=load_id,
                    most_bytes=max(1, most_bytes // len(pieces)),
                ),
                one.until - one.start,
            )
            for one in pieces
        ]

    def _pace(self, pieces: int) -> Pace:
        """Return how fast each worker reads: those that read at once share what may be read in a second."""
        limits = self._topic.limits
        if not limits.records_per_second and not limits.bytes_per_second:
            return Pace()
        spark = self._platform.spark.session(Mode.BACKFILL)
        readers = max(1, min(pieces, limits.readers or pieces, tasks_at_once(spark)))
        return Pace(limits.records_per_second / readers, limits.bytes_per_second / readers)

    def _read(self, tasks: Sequence[tuple[RangeTask, int]], *, is_proof: bool = False) -> list[RangeRead]:
        """Have workers read, and keep the table meanwhile; as `is_proof`, records as they came, without what is read from them.

        Raises:
            TopicRefused: if a range could not be read, for each that could not; or if the topic is another one by now.
        """
        topic = self._topic
        schema = self._platform.lakehouse.table(topic.table).schema().model_dump_json()
        silence, pace = float(topic.limits.silence_seconds), self._pace(len(tasks))
        event_time = None if is_proof else topic.event_time
        read = partial(read_ranges, self._brokers.client, topic.topic, schema, silence, pace, event_time=event_time)
        work: _READ = ChunkWork(read, RangeTask, RangeRead | RangeFailed)
        do = partial(self._platform.workers.do, Mode.BACKFILL, work, tasks, topic.limits.readers)
        with workers_of(topic):
            done = kept_while(self._held, do)
        failed = [one for one in done if isinstance(one, RangeFailed)]
        if failed:
            where = f"topic {topic.name}"
            raise TopicRefused([Problem(one.what, one.rule, one.fix, where) for one in failed])
        _require_same_log(self._brokers.state(), self._resolved.log, topic)
        return [one for one in done if isinstance(one, RangeRead)]


def first_positions(ranges: Sequence[LogRange], most: int) -> list[LogRange]:
    """Return as many of the first positions of some ranges, a like share of each partition.

    A load that has the beginnings of all partitions reaches about the same time in each; a partition with less than its share leaves
    the rest to the others.
    """
    if positions(ranges) <= most:
        return list(ranges)
    left: dict[int, int] = {}
    for one in ranges:
        left[one.partition] = left.get(one.partition, 0) + one.until - one.start
    shares: dict[int, int] = {}
    room, parts = most, len(left)
    for partition, size in sorted(left.items(), key=lambda one: (one[1], one[0])):
        shares[partition] = min(size, -(-room // parts))
        room, parts = room - shares[partition], parts - 1
    taken = []
    for one in sorted(ranges):
        size = min(one.until - one.start, shares[one.partition])
        shares[one.partition] -= size
        if size:
            taken.append(LogRange(one.partition, one.start, one.start + size))
    return taken


def in_pieces(ranges: Iterable[LogRange], most: int) -> Iterator[LogRange]:
    """Yield ranges in pieces of so many positions at most."""
    for one in ranges:
        for start in range(one.start, one.until, most):
            yield LogRange(one.partition, start, min(start + most, one.until))


def _whole_ranges(ranges: Sequence[LogRange], read: Sequence[RangeRead]) -> list[tuple[LandedRange, tuple[str, ...]]]:
    """Return what was read of each range up to where the first of its pieces ends early, with the files of that.

    A piece ends early where a load has come to so many bytes as it may have; what was read beyond is left to the next one.
    """
    found = []
    for one in ranges:
        own = sorted(
            (piece for piece in read if piece.partition == one.partition and one.start <= piece.start < one.until),
            key=lambda piece: piece.start,
        )
        until, kept = one.start, []
        for piece in own:
            if piece.start != until:
                break
            kept.append(piece)
            until = piece.until
        if until == one.start:
            raise EnvironmentRefused(
                Problem(f"nothing was read of {one}", "workers say what they have read of each range", "run it again")
            )
        firsts = [piece.first_time for piece in kept if piece.first_time is not None]
        lasts = [piece.last_time for piece in kept if piece.last_time is not None]
        rows = sum(piece.rows for piece in kept)
        times = (instant(min(firsts)), instant(max(lasts))) if firsts and lasts else (None, None)
        landed = LandedRange(LogRange(one.partition, one.start, until), rows, *times)
        found.append((landed, tuple(path for piece in kept for path in piece.files)))
    return found


def _require_same_log(state: TopicState, log: LogIdentity, topic: Topic) -> None:
    """Refuse what was read while the topic was made anew.

    Raises:
        TopicRefused: if it is another log by now.
    """
    if state.log != log:
        raise TopicRefused(
            Problem(
                f"{log.name} was made anew while it was read: it was {log.incarnation}, and is {state.log.incarnation}",
                "a range is of one topic",
                "nothing was landed of this load; find out who makes topics anew",
                f"topic {topic.name}",
            )
        )
