"""What was landed of the logs that a target reads, looked up when a run is planned.

Put here what is asked of tables and of their rows. Which positions a plan pins, and why they may not be read, is `manifests.log_pins`';
how records are landed, `ingestion`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import polars as pl
from pyiceberg.expressions import BooleanExpression, GreaterThanOrEqual

from backfill_assets.declarations.logs import OWN_TIMES, LogPlace
from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from manifests.facts import SourceState
from manifests.lateness import last_times
from manifests.log_pins import FoundLog, first_positions, pin_of_log, wanted_ranges
from manifests.log_ranges import LandedLog, LandedRange, LogRange, without
from manifests.model import RunManifest
from manifests.source_pins import SourceLog
from resources.lakehouse.facade import in_ranges
from resources.lakehouse.landed_logs import landed_loads, taken_back


def log_tables(platform: Platform, target: TargetTable) -> dict[str, InputTable]:
    """Return the sources of a target that are logs, by name."""
    return {
        table.name: table
        for table in platform.products.inputs
        if table.name in target.every_source and table.log is not None
    }


def found_logs(
    platform: Platform, target: TargetTable, manifest: RunManifest, states: Mapping[str, SourceState]
) -> dict[str, FoundLog]:
    """Return what is known of each source that is a log, in the state that a run would read it in.

    Raises:
        EnvironmentRefused: if rows have to be asked for an instant, and cannot be read.
    """
    return {
        name: _found(
            platform,
            table,
            states[name],
            manifest.source.log if name == target.source else None,
            target.every_source[name],
            is_whole=name == target.source and target.reads_whole,
        )
        for name, table in log_tables(platform, target).items()
        if name in states
    }


def positions_asked(
    platform: Platform, target: TargetTable, manifest: RunManifest, state: SourceState
) -> BooleanExpression | None:
    """Return a filter of the rows of the first source at the positions that a manifest names; None where it names none, or it is no log.

    Raises:
        EnvironmentRefused: as `found_logs`.
    """
    asked, table = manifest.source.log, log_tables(platform, target).get(target.source)
    if table is None or asked is None or not asked.names_positions:
        return None
    found, _ = _landed(platform, table, state, asked, target.every_source[target.source])
    if found.log is None:
        return None  # refused: which positions they are cannot be told
    return in_ranges(found.position, found.partition, wanted_ranges(asked, found))


def _found(
    platform: Platform,
    table: InputTable,
    state: SourceState,
    asked: SourceLog | None,
    time_column: str,
    *,
    is_whole: bool,
) -> FoundLog:
    place = table.log
    assert place is not None
    found, rows = _landed(platform, table, state, asked, time_column)
    if time_column and not is_whole:
        found = replace(found, untimed=platform.lakehouse.nulls_in(table.name, state.snapshot_id, time_column))
    if found.log is None:
        return found
    pin = pin_of_log(asked, found)
    if pin is not None and not pin.is_whole:
        files = platform.lakehouse.files_of_log(pin, time_column, state.snapshot_id, is_whole=is_whole)
        found = replace(found, read=files)
    if place.lateness is None:
        return found
    wanted = wanted_ranges(asked, found)
    last, false = last_times(_stretches(rows, found, wanted), place.lateness.disorder)
    # a record of the future says nothing about others: nobody has landed what is still to come
    last = dict.fromkeys((one.partition for one in found.ranges), None) | {
        partition: None if at is None else min(at, state.committed_at) for partition, at in last.items()
    }
    batch = _batch(found.landed, wanted, first_positions(asked, found))
    return replace(found, last=last, false_times=false, batch=batch)


def _landed(
    platform: Platform, table: InputTable, state: SourceState, asked: SourceLog | None, time_column: str
) -> tuple[FoundLog, _Rows]:
    """Return what was landed of a log, with the positions that instants of a manifest stand for, and its rows."""
    place, snapshot_id = table.log, state.snapshot_id
    assert place is not None
    landed_in = platform.lakehouse.table(table.name)
    loads = landed_loads(landed_in, snapshot_id)
    others = tuple(platform.lakehouse.other_changes(table.name, snapshot_id))
    landed = {one.load_id: one.landed for one in loads}
    found = FoundLog(table.name, place.position, place.partition, landed, others, place.lateness)
    found = replace(found, taken_back=taken_back(landed_in, snapshot_id))
    rows = _Rows(platform, table.name, snapshot_id, place, place.time or time_column)
    if found.log is None:
        return found, rows  # refused: which positions they are cannot be told
    if asked is not None and asked.from_time is not None:
        found = replace(found, from_time=rows.positions_at(asked.from_time, found.ranges))
    if asked is not None and asked.until_time is not None:
        found = replace(found, until_time=rows.positions_at(asked.until_time, found.ranges))
    return found, rows


def _batch(landed: Mapping[str, LandedLog], wanted: Sequence[LogRange], begins: Mapping[int, int]) -> datetime | None:
    """Return until when loads were asked to land of which nothing is left out; None where none was asked by time.

    A load brings what is new: of a partition in which it has found nothing, what it was asked for are the positions of the loads
    before it. So those are read as well, from where the run `begins`, or it does not count.
    """
    cut: dict[int, int] = {}
    for one in without([one.range for load in landed.values() for one in load.ranges], wanted):
        if one.until > begins.get(one.partition, 0):
            cut.setdefault(one.partition, max(one.start, begins.get(one.partition, 0)))
    read = []
    for load in landed.values():
        if any(one.range.until > cut.get(one.range.partition, one.range.until) for one in load.ranges):
            break
        if load.complete_before is not None and not without([one.range for one in load.ranges], wanted):
            read.append(load.complete_before)
    return max(read, default=None)


def _stretches(rows: _Rows, found: FoundLog, wanted: Sequence[LogRange]) -> Iterator[tuple[LogRange, datetime | None]]:
    """Yield what is read of each load with its greatest time: as the load says, or where it says nothing of that column, or a part of it is left out, as its rows do."""
    parts: list[LogRange] = []
    whole: list[LandedRange] = []
    for load in found.landed.values():
        for one in load.ranges:
            if left_out := without([one.range], wanted):
                parts += without([one.range], left_out)
            else:
                whole.append(one)
    if rows.are_timed_by_loads:
        yield from ((one.range, one.last_time) for one in whole)
    else:
        parts += [one.range for one in whole]
    yield from rows.last_times(parts).items()


class _Rows:
    """The places and times of a log table's rows at a snapshot; memory is one file's."""

    def __init__(self, platform: Platform, table: str, snapshot_id: int, place: LogPlace, time_column: str) -> None:
        self._lakehouse = platform.lakehouse
        self._of = table, snapshot_id
        self._place, self._time = place, time_column
        self.are_timed_by_loads = time_column == OWN_TIMES[place.kind]

    def positions_at(self, instant: datetime, landed: Sequence[LogRange]) -> dict[int, int]:
        """Return by partition the first position with a row of an instant or later; where there is none, the end of what was landed."""
        found = {
            partition: max(one.until for one in landed if one.partition == partition)
            for partition in {one.partition for one in landed}
        }
        for frame in self._frames(GreaterThanOrEqual(term=self._time, value=instant.isoformat())):
            least = frame.filter(pl.col("at") >= instant).group_by("partition").agg(pl.col("position").min())
            for partition, position in least.iter_rows():
                found[partition] = min(found.get(partition, position), position)
        return found

    def last_times(self, ranges: Sequence[LogRange]) -> dict[LogRange, datetime | None]:
        """Return the greatest time of the rows in each of some ranges; None of one without such a row."""
        if not ranges:
            return {}
        place = self._place.position, self._place.partition
        found, asked = self._lakehouse.last_times(*self._of, place, self._time, ranges)
        found |= dict.fromkeys(asked)
        for frame in self._frames(in_ranges(*place, asked)) if asked else ():
            for one in asked:
                inside = pl.col("position").is_between(one.start, one.until - 1)
                newest = frame.filter((pl.col("partition") == one.partition) & inside)["at"].max()
                if isinstance(newest, datetime):
                    before = found[one]
                    found[one] = newest if before is None else max(before, newest)
        return found

    def _frames(self, row_filter: BooleanExpression) -> Iterator[pl.DataFrame]:
        place = self._place
        columns = [*place.columns, self._time]
        for batch in self._lakehouse.batches(*self._of, row_filter, columns):
            frame = pl.from_arrow(batch)
            assert isinstance(frame, pl.DataFrame)
            yield frame.select(
                partition=pl.lit(0, pl.Int32) if place.partition is None else pl.col(place.partition),
                position=place.position,
                at=self._time,
            )
