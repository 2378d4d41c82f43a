"""Landing an archive of a topic: records that were kept elsewhere before retention passed over them, behind the same table.

Put here the order of things. The seam with what is landed is an offset: what both have is proven equal, and what is missing is copied. Which
offsets a file has is `extraction.archived_records`'s; what of a topic its brokers have, `landing`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from backfill_assets import faults
from backfill_assets.declarations.topics import Topic
from backfill_assets.extraction import event_times
from backfill_assets.extraction.archived_records import (
    ArchivedFile,
    Copied,
    CopyTask,
    copy_files,
    files_below,
    looked_at,
)
from backfill_assets.extraction.brokers import Brokers
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
from backfill_assets.ingestion.landing import Landed, said_of_gap
from backfill_assets.ingestion.topic_overlaps import require_equal, unreadable
from backfill_assets.ingestion.topic_ranges import Resolved, landed_ranges, left_of_beginnings
from backfill_assets.installation import Platform
from backfill_assets.worker.violations import UNREAD_RULE, Violation, require_read
from manifests.errors import InputRefused, Problem
from manifests.log_ranges import (
    LandedLog,
    LandedRange,
    LogIdentity,
    LogRange,
    gaps,
    in_words,
    joined,
    overlaps,
    without,
)
from manifests.model import Mode
from resources import logs
from resources.files import stores
from resources.lakehouse.facade import local_path
from resources.lakehouse.landed_logs import LandedLoad, landed_loads, taken_back
from resources.lakehouse.live_files import all_files
from resources.spark.chunk_work import ChunkWork

_log = logging.getLogger(__name__)
_COPY = ChunkWork[CopyTask, Copied]


def land_archive(
    platform: Platform,
    topic: Topic,
    place: str,
    *,
    accept_gap: str | None = None,
    by: str | None = None,
    tell: Callable[[Resolved], None] = lambda _: None,
) -> Landed:
    """Land what an archive has of a topic and the table has not, as one load, once what both have is proven equal.

    Args:
        platform: the opened installation.
        topic: the topic.
        place: a Parquet file, a folder with some below it, or a table of the catalog.
        accept_gap: why offsets between files of the archive, or between it and landed ones, are left out; None refuses that.
        by: who accepts that, if another than the process says.
        tell: told what will be landed, before it is copied.

    Raises:
        InputRefused: if the archive is none, or disagrees with what is landed, with every reason; nothing is written then.
        EnvironmentRefused: if nothing is landed, and a setting of the topic is missing.
        TransitionRefused: if `by` may not accept a gap.
        TopicRefused: if nothing is landed, and the brokers do not say which topic it is.
        LeaseHeld: if somebody loads into the table, or takes a load back, for longer than is waited for.
        LeaseLost: if this process stood still for so long that somebody else has taken the table over; the same command again.
    """
    said = said_of_gap(platform, topic.table, accept_gap, by)
    require_declared_columns(platform, platform.products.input(topic.table))
    with held_to_load(platform, topic.table) as held:
        table = platform.lakehouse.table(topic.table)
        with stores.opened_by(platform.lakehouse.access):
            found = [looked_at(path, table.schema()) for path in _files_of(platform, place)]
        loads = landed_loads(table)
        files = [one for one in found if isinstance(one, ArchivedFile)]
        problems = [one for one in found if isinstance(one, Problem)]
        of_table = [] if Path(place).exists() else landed_loads(platform.lakehouse.table(place))
        problems += other_rows(platform, topic.table)
        resolved = _resolved(
            platform,
            topic,
            loads,
            files,
            of_table,
            accepts_gap=accept_gap is not None,
            problems=problems,
            taken_back=taken_back(table, log=loads[-1].landed.log) if loads else (),
        )
        if resolved.problems:
            raise InputRefused(list(resolved.problems))
        tell(resolved)
        proven = None
        if resolved.there:
            held.keep()
            proven = require_equal(table, [one.path for one in files], resolved.there, f"the archive {place}")
        if not resolved.missing:
            return Landed(resolved, (), proven)
        done = _copied(platform, topic, place, files, resolved, said, held, loads)
        return Landed(resolved, (done,), proven)


def _files_of(platform: Platform, place: str) -> list[str]:
    """Return the Parquet files of an archive.

    Raises:
        InputRefused: if there is none.
    """
    path = Path(place)
    if path.exists():
        found = files_below(path)
    else:
        table = platform.lakehouse.table(place)
        found = [local_path(file.file_path) for file in all_files(table, table.current_snapshot())]
    if not found:
        rule = "an archive is a Parquet file, a folder with some below it, or a table of the catalog that has rows"
        raise InputRefused(Problem(f"{place} has no Parquet file", rule, "correct the place"))
    return found


def _resolved(
    platform: Platform,
    topic: Topic,
    loads: Sequence[LandedLoad],
    files: Sequence[ArchivedFile],
    of_table: Sequence[LandedLoad],
    *,
    accepts_gap: bool,
    problems: Sequence[Problem],
    taken_back: Sequence[LogRange] = (),
) -> Resolved:
    """Return what of an archive is missing, and what is there, or every reason why nothing of it is landed.

    `of_table` are the loads of an archive that is a table of a log: what has no record in their ranges is none that counts.
    `taken_back` are the offsets that were landed, or accepted as lost, with loads that were taken back, and are not there again.
    """
    log, partitions = (loads[-1].landed.log, ()) if loads else _asked(platform, topic)
    ranges = [one for file in files for one in file.ranges]
    said = [*problems, *_twice(files), *_of_other_logs(log, of_table)]
    landed = landed_ranges(loads)
    archived = joined([*ranges, *landed_ranges(of_table)])
    missing, there = without(archived, landed), overlaps([*landed, *archived])
    accepted = joined(one for load in loads for one in load.gap)
    # what is missing between landed offsets is none of the archive's
    between = without(gaps([*landed, *missing]), gaps(landed))
    gap = without([*between, *left_of_beginnings(loads, taken_back, missing)], accepted)
    if not accepts_gap:
        said += map(_gap, gap)
        gap = ()
    # a partition of which the archive has nothing is one of the log all the same
    begins = dict.fromkeys(partitions, 0) | {
        one.range.partition: one.range.start for load in of_table for one in load.landed.ranges
    }
    return Resolved(log, missing, there, gap if missing else (), (), False, tuple(said), begins)


def _asked(platform: Platform, topic: Topic) -> tuple[LogIdentity, tuple[int, ...]]:
    """Return which log the topic is, and its partitions, by its brokers: nothing of it is landed that would say so."""
    with Brokers(topic, platform.settings.of_topic(topic.name)) as brokers:
        state = brokers.state()
        return state.log, tuple(state.partitions)


def _of_other_logs(log: LogIdentity, of_table: Sequence[LandedLoad]) -> Iterator[Problem]:
    for other in sorted({one.landed.log for one in of_table} - {log}):
        rule = "an archive has a topic's own records: offsets of another log say nothing about it"
        yield Problem(f"the archive has records of {other}", rule, f"name an archive of {log}")


def _twice(files: Sequence[ArchivedFile]) -> Iterator[Problem]:
    for one in overlaps(range_ for file in files for range_ in file.ranges):
        names = [Path(file.path).name for file in files if any(overlaps([one, mine]) for mine in file.ranges)]
        yield Problem(
            f"{one} is in several files of the archive: {', '.join(names[:5])}",
            "each offset of an archive lies in one file",
            "give the files that belong together, or write the archive anew",
        )


def _gap(gap: LogRange) -> Problem:
    return Problem(
        f"{gap}: no file of the archive has it, and it is not landed",
        "offsets between two files may be records that are lost, or none that count: nobody can tell from the files",
        "complete the archive, or say why they are left out: --accept-gap REASON",
    )


def _copied(
    platform: Platform,
    topic: Topic,
    place: str,
    files: Sequence[ArchivedFile],
    resolved: Resolved,
    said: Mapping[str, str],
    held: HeldTable,
    loads: Sequence[LandedLoad],
) -> LoadLanded:
    """Have workers copy what is missing, and commit it as one load."""
    log, missing = resolved.log, resolved.missing
    load_id = load_id_of(platform, topic.table, log, missing)
    text = f"{log}: {in_words(missing)}, of an archive"
    logs.event(_log, logging.INFO, "range_resolved", text, table=topic.table, load=load_id)
    table = platform.lakehouse.table(topic.table)
    folder = landing_folder(platform, topic.table)
    tasks = [
        (CopyTask(file.path, own, folder, load_id), sum(one.until - one.start for one in own))
        for file in files
        if (own := overlaps([*missing, *file.ranges]))
    ]
    copy = partial(copy_files, table.schema().model_dump_json(), event_time=topic.event_time)
    work: _COPY = ChunkWork(copy, CopyTask, Copied)
    with workers_of(topic):
        done = kept_while(held, partial(platform.workers.do, Mode.BACKFILL, work, tasks))
    require_read(Violation(UNREAD_RULE, 1, [{"file": one.chunk, "error": one.unread}]) for one in done if one.unread)
    for one in done:
        if one.unreadable:
            raise unreadable(one.chunk, one.unreadable)
    if untimed := [one for one in done if one.refused]:
        raise InputRefused(
            [Problem(f"{one.chunk}: {one.refused}", event_times.RULE, event_times.FIX) for one in untimed]
        )
    faults.reach("landing.read")
    there = {one.partition for one in missing} | {one.range.partition for load in loads for one in load.landed.ranges}
    others = [LandedRange(LogRange(one, at, at), 0) for one, at in resolved.begins.items() if one not in there]
    landed = LandedLog(log, (*(_landed(one, done) for one in missing), *others), resolved.gap)
    paths = [path for one in done for path in one.files]
    source = f"archive {Path(place).name or place}"
    before, more = [one.landed for one in loads], said if resolved.gap else {}
    made = commit_landed(platform, topic.table, load_id, landed, before, paths, held, source=source, more=more)
    return replace(made, untimed=sum(one.untimed for one in done))


def _landed(one: LogRange, done: Sequence[Copied]) -> LandedRange:
    own = [part for part in done if part.partition == one.partition and one.start <= part.start < one.until]
    firsts = [part.first_time for part in own if part.first_time is not None]
    lasts = [part.last_time for part in own if part.last_time is not None]
    times = (instant(min(firsts)), instant(max(lasts))) if firsts and lasts else (None, None)
    return LandedRange(one, sum(part.rows for part in own), *times)
