"""Which ranges of a log a table has, as the loads that brought them and were not taken back say it.

Put here how they are found in a table's history, and what else has changed its rows. What ranges are, and how they are counted, is
`manifests.log_ranges`'.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import dropwhile

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from manifests.errors import EnvironmentRefused, Problem
from manifests.log_ranges import (
    LandedLog,
    LogIdentity,
    LogKind,
    LogRange,
    going_on,
    known_from,
    landed_from_json,
    same_positions,
    taken_out,
    without,
)
from resources.lakehouse.lineage import ancestors
from resources.lakehouse.live_files import pinned_snapshot
from resources.lakehouse.loads import (
    ACTOR_PROPERTY,
    GAP_PROPERTY,
    LOAD_PROPERTY,
    LOG_PROPERTY,
    OPEN_PROPERTY,
    REASON_PROPERTY,
    STANDING_PROPERTY,
    UNDOES_PROPERTY,
)
from resources.lakehouse.metadata import committed_at, count_said
from resources.lakehouse.summaries import summary_of

BEFORE = "before "
"""How the name of what stands for the loads before another one begins: no load's id does."""


@dataclass(frozen=True)
class LandedLoad:
    """A load that has brought ranges of a log, and whose rows are there.

    Attributes:
        load_id: the load; `snapshot_id` the snapshot that it was committed as, `at` that one's time.
        landed: what it has brought.
        by: who has landed it.
        reason: why positions between what was there and what it brought are accepted as lost, where some are.
        gap_said: the same with who has accepted it and, of a changelog, what is missing, as JSON.
    """

    load_id: str
    snapshot_id: int
    at: datetime
    landed: LandedLog
    by: str = ""
    reason: str = ""
    gap_said: str = ""

    @property
    def gap(self) -> tuple[LogRange, ...]:
        """The positions that it leaves out between what was there and what it brought."""
        return self.landed.lost


@dataclass(frozen=True)
class AcceptedGap:
    """What somebody has accepted as lost, with a load that stands.

    Attributes:
        load_id: the load that was landed beside the gap; `snapshot_id` its snapshot, `at` that one's time.
        positions: what is missing; none where a changelog's loss has no positions of its own. `landed_since` are those of them that are there by now.
        what: what was missing, in the words of the landing; empty of a topic.
        reason: why it was accepted, and `by` whom; empty where the snapshot that said it has expired.
    """

    load_id: str
    snapshot_id: int
    at: datetime
    positions: tuple[LogRange, ...]
    landed_since: tuple[LogRange, ...]
    what: str
    reason: str
    by: str


def accepted_gaps(table: str, loads: Sequence[LandedLoad]) -> list[AcceptedGap]:
    """Return what was accepted as lost with some loads of a table, in their order; each once, whichever loads one landing has made.

    Raises:
        EnvironmentRefused: if what a load says of its gap cannot be read.
    """
    there = [one.range for load in loads for one in load.landed.ranges]
    found: list[AcceptedGap] = []
    before = ""
    for load in loads:
        again, before = bool(load.gap_said) and load.gap_said == before, load.gap_said
        if not load.gap and (again or not load.gap_said):
            continue
        said = _said_of_gap(table, load)
        since = without(load.gap, without(load.gap, there))
        place = load.load_id, load.snapshot_id, load.at
        found.append(AcceptedGap(*place, load.gap, since, said["gap"], said["reason"], said["by"]))
    return found


def _said_of_gap(table: str, load: LandedLoad) -> dict[str, str]:
    if not load.gap_said:
        return {"gap": "", "reason": load.reason, "by": load.by}
    try:
        said = json.loads(load.gap_said)
        return {name: str(said[name]) for name in ("gap", "reason", "by")}
    except (ValueError, KeyError, TypeError) as error:
        raise EnvironmentRefused(
            Problem(
                f"load '{load.load_id}' of {table} does not say legibly which gap was accepted with it",
                f"the summary of its snapshot has that as {GAP_PROPERTY}",
                "find out who has written it; take the load back, and land it again",
            )
        ) from error


def landed_loads(table: Table, snapshot_id: int | None = None) -> list[LandedLoad]:
    """Return the loads of ranges that are there at a snapshot in the history of a table (None: now), oldest first.

    Where somebody has cut the history, what the oldest load that is left says of those before it stands for them.

    Raises:
        EnvironmentRefused: if what a load says of its ranges cannot be read.
    """
    history = [(snapshot, summary_of(snapshot)) for snapshot in _history(table, snapshot_id)]
    is_cut = _lacks_undone(history)
    found: list[LandedLoad] = []
    undone: set[str] = set()
    oldest: LandedLoad | None = None
    for snapshot, said in history:
        taken_back = said.get(UNDOES_PROPERTY)
        if taken_back is not None and is_cut and STANDING_PROPERTY in said:
            # a load that was taken back is of a history that is cut: what stood after the last one was is what that says
            standing = _landed(table, taken_back, said[STANDING_PROPERTY])
            at = committed_at(table, snapshot)
            return [LandedLoad(f"{BEFORE}{taken_back}", snapshot.snapshot_id, at, standing), *found[::-1]]
        if taken_back is not None:
            undone.add(taken_back)
        if LOG_PROPERTY not in said:
            continue
        oldest = _load(table, snapshot, said[LOG_PROPERTY])
        if oldest.load_id not in undone:
            found.append(oldest)
    if oldest is not None and (oldest.landed.so_far or oldest.landed.lost_so_far):
        earlier = known_from(oldest.landed)
        found.append(LandedLoad(f"{BEFORE}{oldest.load_id}", oldest.snapshot_id, oldest.at, earlier))
    return found[::-1]


def _lacks_undone(history: Sequence[tuple[Snapshot, Mapping[str, str]]]) -> bool:
    """Whether a load was taken back that a history, newest first, has no more; one of its id may have been made since."""
    older: set[str | None] = set()
    for _, said in reversed(history):
        undone = said.get(UNDOES_PROPERTY)
        if undone is not None and undone not in older and STANDING_PROPERTY in said:
            return True
        if LOG_PROPERTY in said:
            older.add(said.get(LOAD_PROPERTY))
    return False


def taken_back(table: Table, snapshot_id: int | None = None, *, log: LogIdentity | None = None) -> tuple[LogRange, ...]:
    """Return the positions of a log that loads have brought which were taken back, and that no load has brought again.

    Of a topic they are also those that were accepted as lost with such loads: that was a decision about what is not there any more.
    They are missing, also before the first that is landed. Of a load whose snapshot has expired, what took it back says them, and
    every later load. Without a `log` it is the one of the newest load; offsets of a topic that was made anew are others than those of
    the topic before it, and timelines of one server have the same positions.
    """
    undone: set[str] = set()
    ranges: list[LogRange] = []
    for snapshot in _history(table, snapshot_id):
        said = summary_of(snapshot)
        if (load_id := said.get(UNDOES_PROPERTY)) is not None:
            undone.add(load_id)
            if STANDING_PROPERTY in said:
                standing = _landed(table, load_id, said[STANDING_PROPERTY])
                log = standing.log if log is None else log
                ranges += standing.taken_back if same_positions(standing.log, log) else ()
        if LOG_PROPERTY not in said:
            continue
        landed = _load(table, snapshot, said[LOG_PROPERTY]).landed
        log = landed.log if log is None else log
        if not same_positions(landed.log, log):
            continue
        ranges += landed.taken_back
        if said.get(LOAD_PROPERTY) in undone:
            ranges += missing_without(landed)
    there = [load.landed for load in landed_loads(table, snapshot_id)]
    mine = [landed for landed in there if log is not None and same_positions(landed.log, log)]
    return without(ranges, [one.range for landed in mine for one in landed.ranges])


def missing_without(landed: LandedLog) -> list[LogRange]:
    """Return the positions that are missing once a load is taken back.

    Of a changelog that was begun without a snapshot what is before may be lost, and need not be any more once it begins with one
    (`still_lost`): the next delivery says it.
    """
    lost = () if landed.log.kind is LogKind.CHANGELOG else landed.lost
    return [*(one.range for one in landed.ranges), *lost]


def standing_without(table: Table, load_id: str) -> dict[str, str]:
    """Return what goes on record of a log's table from which a load is taken back: what it has all the same, ranges and what is open.

    It also says which ranges it lacks, since the snapshots of loads that were taken back may expire.
    """
    loads = landed_loads(table)
    if not loads:
        return {}
    own = _brought(table, load_id)
    left = [one for one in loads if one.load_id != load_id]
    stays = [one.landed for one in left]
    if own is not None and len(left) == len(loads):  # what stands for it and others, since the history was cut
        stays = [taken_out(one.landed, own) if one.load_id.startswith(BEFORE) else one.landed for one in left]
    log = (left or loads)[-1].landed.log  # of a later timeline that was taken back nothing is left
    gone = [*taken_back(table, log=log), *(() if own is None else missing_without(own))]
    standing = known_from(going_on(LandedLog(log, ()), stays, gone))
    newest = table.snapshot_by_id(left[-1].snapshot_id) if left else None
    is_open = {} if newest is None else summary_of(newest)
    return {STANDING_PROPERTY: standing.to_json()} | {
        name: said for name, said in is_open.items() if name == OPEN_PROPERTY
    }


def _brought(table: Table, load_id: str) -> LandedLog | None:
    """Return what a load has brought, taken back or not; None if its snapshot has expired."""
    for snapshot in _history(table, None):
        said = summary_of(snapshot)
        if LOG_PROPERTY in said and said.get(LOAD_PROPERTY) == load_id:
            return _load(table, snapshot, said[LOG_PROPERTY]).landed
    return None


def other_changes(table: Table, snapshot_id: int) -> list[str]:
    """Return what else than loads of ranges has changed the rows of a table up to a snapshot of it, in words.

    That are other loads that were not taken back, by their ids, and snapshots of other programs; and how many rows differ.

    Raises:
        EnvironmentRefused: as `landed_loads`.
    """
    others: list[str] = []
    undone: set[str] = set()
    for snapshot in _history(table, snapshot_id):
        said = summary_of(snapshot)
        load_id = said.get(LOAD_PROPERTY)
        if (taken_back := said.get(UNDOES_PROPERTY)) is not None:
            undone.add(taken_back)
        elif load_id is not None:
            others += [] if load_id in undone or LOG_PROPERTY in said else [f"load {load_id}"]
        elif count_said(table, snapshot, "added-records") or count_said(table, snapshot, "deleted-records"):
            others.append(f"snapshot {snapshot.snapshot_id} of another program")
    total = count_said(table, pinned_snapshot(table, snapshot_id), "total-records")
    known = sum(one.rows for load in landed_loads(table, snapshot_id) for one in load.landed.ranges)
    if not others and total is not None and total != known:
        others.append(f"snapshot {snapshot_id} has {total:,} rows, and its loads on record have brought {known:,}")
    return others


def _history(table: Table, snapshot_id: int | None) -> Iterator[Snapshot]:
    """Yield a snapshot in the history of a table (None: the current one) and those before it."""
    found = ancestors(table)
    return found if snapshot_id is None else dropwhile(lambda one: one.snapshot_id != snapshot_id, found)


def _load(table: Table, snapshot: Snapshot, text: str) -> LandedLoad:
    said = summary_of(snapshot)
    load_id = said.get(LOAD_PROPERTY, "")
    at, by = committed_at(table, snapshot), said.get(ACTOR_PROPERTY, "")
    landed = _landed(table, load_id, text)
    why = said.get(REASON_PROPERTY, ""), said.get(GAP_PROPERTY, "")
    return LandedLoad(load_id, snapshot.snapshot_id, at, landed, by, *why)


def _landed(table: Table, load_id: str, text: str) -> LandedLog:
    try:
        return landed_from_json(text)
    except ValueError as error:
        raise EnvironmentRefused(
            Problem(
                f"load '{load_id}' of {'.'.join(table.name())} does not say legibly which ranges it has brought",
                f"the summary of its snapshot has them as {LOG_PROPERTY}",
                "find out who has written it; take the load back, and land the ranges again",
            )
        ) from error
