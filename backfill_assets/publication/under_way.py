"""What an action that is not on record yet has done to its tables: one that is under way, or that was interrupted.

Put here which snapshots of main an open intent of the ledger explains, and which files of which chunks by that. It explains one
that its action would have made: made after it, with what the action says of itself, the run's own files coming, described as they were, and those of the run's
own days going, no more and no less. What is held against what is `audit.accepted_files`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from itertools import dropwhile, islice
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Snapshot

from backfill_assets.declarations.target import TargetTable
from backfill_assets.publication.change import PublishStrategy
from backfill_assets.publication.modes import strategy_in
from manifests.division import Division, division_from
from manifests.lifecycle import ACCEPT, PUBLISH, PublicationState, undone_by
from resources.lakehouse.exchanges import exchanged, same
from resources.lakehouse.facade import (
    ACTION_PROPERTY,
    EVIDENCE_PROPERTY,
    PLAN_PROPERTY,
    RUN_PROPERTY,
    SEQUENCE_PROPERTY,
    VERSION_PROPERTY,
)
from resources.lakehouse.lineage import ancestors
from resources.lakehouse.parts import known_part
from resources.lakehouse.snapshots import Days, Entry, Seen, days_of
from resources.lakehouse.storage import place_of
from resources.ledger.facade import ABANDONED
from resources.ledger.rows import Row, Rows

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CLOCKS = timedelta(minutes=1)
"""How far the clocks of the machines that write to one table may differ, as Iceberg itself allows."""


@dataclass(frozen=True)
class Intent:
    """What a run has set out to do to its tables, from the ledger's rows of it as they are.

    Attributes:
        run: the run's own row.
        entry: the open entry.
        entries: all of its entries, oldest first.
        chunks: what is staged.
    """

    run: Row
    entry: Row
    entries: Sequence[Row]
    chunks: Sequence[Row]

    @property
    def run_id(self) -> str:
        """The run."""
        return str(self.run["run_id"])

    @property
    def action(self) -> str:
        """What it has set out to do."""
        return str(self.entry["action"])

    @property
    def plan(self) -> Mapping[str, Any]:
        """The approved plan."""
        return self.run["plan"]  # type: ignore[no-any-return]

    @cached_property
    def strategy(self) -> PublishStrategy:
        """How its publish mode changes tables."""
        return strategy_in(self.plan)

    @property
    def committed(self) -> list[Row]:
        """The entries of what it has done before, oldest first."""
        return [one for one in self.entries if one["state"] == PublicationState.COMMITTED]

    @property
    def began(self) -> datetime:
        """When it was first tried: an interrupted try may have committed what a later one is to record."""
        tries = [str(self.entry["started_at"])]
        for one in self.entries:
            if one["state"] == PublicationState.COMMITTED:
                tries = [str(self.entry["started_at"])]
            elif one["action"] == self.action and one["state"] in {PublicationState.INTENT, ABANDONED}:
                tries.append(str(one["started_at"]))
        return min(map(datetime.fromisoformat, tries))

    def tables(self, target: TargetTable) -> list[str]:
        """Return the tables that it changes: first the one by whose snapshots the ledger knows the action."""
        return self.strategy.tables(target)

    @property
    def changed(self) -> list[str]:
        """The chunks whose days it may change."""
        unchanged = {
            str(chunk["chunk"])
            for chunk in self.chunks
            if not self.strategy.changes(chunk["derived"], chunk["replaced"])
        }
        return [key for one in self.plan["chunks"] if (key := str(one["key"])) not in unchanged]

    @cached_property
    def days(self) -> dict[str, list[Days]]:
        """The days of those chunks, by their part: those that follow one another together."""
        changed = set(self.changed)
        found: dict[str, list[Days]] = {}
        for one in self.plan["chunks"]:
            if one["key"] not in changed:
                continue
            first, last = date.fromisoformat(one["start"]), date.fromisoformat(one["end"])
            own = found.setdefault(str(one.get("part", "")), [])
            if own and first.toordinal() <= own[-1][1].toordinal() + 1:
                own[-1] = own[-1][0], max(own[-1][1], last)
            else:
                own.append((first, last))
        return found

    @property
    def division(self) -> Division | None:
        """What its table is divided by beside time."""
        said = self.plan.get("division")
        return None if said is None else division_from(said)


def intents_in(rows: Rows) -> list[Intent]:
    """Return the open intents in the ledger's rows of one run."""
    entries = list(rows["publications"].values())
    chunks = list(rows["chunks"].values())
    return [
        Intent(run, entry, entries, chunks)
        for run in rows["runs"].values()
        for entry in entries
        if entry["state"] == PublicationState.INTENT
    ]


@dataclass(frozen=True)
class Effect:
    """What a snapshot of main did that an open intent explains.

    Attributes:
        snapshot_id: the snapshot.
        intent: what explains it.
        came: the places of the files that it brought.
        gone: the places of those that it took.
        after: the places of all files that were there then.
        keys: the chunks of the target that it changed.
        staged: what is known of those that it brought and the run has staged, by place; of a publication.
    """

    snapshot_id: int
    intent: Intent
    came: frozenset[str]
    gone: frozenset[str]
    after: frozenset[str]
    keys: frozenset[str]
    staged: Mapping[str, Mapping[str, Any]]

    def has_brought(self, key: str, place: str) -> bool:
        """Whether readers get a file of a chunk by it that was not accepted: also one that a merge has left there."""
        is_left = self.intent.strategy.leaves_files and key in self.keys and place in self.after
        return place in self.came or is_left

    def has_taken(self, key: str, place: str) -> bool:
        """Whether readers do not get an accepted file of a chunk by it: also one that was gone before from what it changed."""
        return place in self.gone or (key in self.keys and place not in self.after)


def effects(seen: Seen, target: TargetTable, day: int | None, intents: Iterable[Intent]) -> list[Effect]:
    """Return what snapshots of a table's main did that open intents of runs of a target explain; `day` is the days' field."""
    mine = [one for one in intents if one.run["target"] == target.name and seen.name in one.tables(target)]
    named = {one.run_id for one in mine}
    found = (
        _effect(seen, target, day, snapshot, intent)
        for snapshot in ancestors(seen.table)
        if _said(snapshot).get(RUN_PROPERTY) in named
        for intent in mine
    )
    return [one for one in found if one is not None]


def _effect(seen: Seen, target: TargetTable, day: int | None, snapshot: Snapshot, intent: Intent) -> Effect | None:
    """Return what a snapshot did, if it is all that the intent's action would have done and nothing else."""
    if not _is_said_to_be(snapshot, intent) or not _is_in_time(snapshot, intent):
        return None
    exchange, after = exchanged(seen.table, snapshot), seen.live(snapshot.snapshot_id)
    if after is None:
        return None
    came, gone = ({place_of(file.file_path) for file in files} for files in (exchange.came, exchange.gone))
    before = None if exchange.before is None else seen.live(snapshot.parent_snapshot_id)
    staged: Mapping[str, Mapping[str, Any]] = {}
    going: set[str] | None
    if intent.action in {PUBLISH, ACCEPT}:
        staged, going = _published(seen, target, day, before, intent)
        if came != staged.keys() or any(not _is(after[place].file, file) for place, file in staged.items()):
            return None
    else:
        undone = _undone(seen, target, day, snapshot, intent)
        if undone is None:
            return None
        returning, going = undone
        if came != returning.keys() or not same([after[place].file for place in came], returning.values()):
            return None
    if going is not None and gone != going:
        return None
    keys = frozenset(intent.changed) if seen.name == target.name else frozenset()
    return Effect(snapshot.snapshot_id, intent, frozenset(came), frozenset(gone), frozenset(after), keys, staged)


def _is(listed: DataFile, staged: Mapping[str, Any]) -> bool:
    """Whether a file is listed with the rows and bytes that were staged."""
    return (listed.record_count, listed.file_size_in_bytes) == (staged["rows"], staged["bytes"])


def _said(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}


def _is_said_to_be(snapshot: Snapshot, intent: Intent) -> bool:
    """Whether a snapshot says of itself what the intent's action makes it say."""
    said, shows = _said(snapshot), intent.action == ACCEPT  # which makes main show what was published before
    number = 1 if intent.action in {PUBLISH, ACCEPT} else len(intent.committed) + 1
    expected = {
        RUN_PROPERTY: intent.run_id,
        ACTION_PROPERTY: PUBLISH if shows else intent.action,
        PLAN_PROPERTY: intent.run["plan_hash"],
        VERSION_PROPERTY: intent.plan.get("transform_version"),
        EVIDENCE_PROPERTY: intent.entry["evidence_root"],
    }
    recorded = {one["snapshot_id"] for one in intent.committed}
    return (
        expected.items() <= said.items()
        and said.get(SEQUENCE_PROPERTY) in {None, str(number)}
        and (snapshot.snapshot_id in recorded) is shows
    )


def _is_in_time(snapshot: Snapshot, intent: Intent) -> bool:
    """Whether a snapshot was made after the intent; a candidate that waited on a branch was made before."""
    if intent.action == ACCEPT or (intent.action == PUBLISH and intent.strategy.waits_on_branch):
        return True
    return _EPOCH + timedelta(milliseconds=snapshot.timestamp_ms) >= intent.began - _CLOCKS


def _published(
    seen: Seen, target: TargetTable, day: int | None, before: Mapping[str, Entry] | None, intent: Intent
) -> tuple[dict[str, Mapping[str, Any]], set[str] | None]:
    """Return the staged files that a publication brings into a table, and the places of those that it takes out of it.

    None for these, where what was there before has expired: nobody knows then which they were.
    """
    staged = "derived" if intent.strategy.is_derived(target, seen.name) else "files"
    came = {place_of(file["path"]): file for chunk in intent.chunks for file in chunk[staged]}
    named = {place_of(path) for chunk in intent.chunks for path in chunk["replaced"]}
    gone = intent.strategy.gone(target, seen.name, named)
    if gone is not None:
        return came, set(gone)
    return came, None if before is None else _in_days(seen, before, day, intent)


def _undone(
    seen: Seen, target: TargetTable, day: int | None, snapshot: Snapshot, intent: Intent
) -> tuple[dict[str, DataFile], set[str]] | None:
    """Return the files that come back and the places of those that go where a run's last change is undone; None if it has expired."""
    if not intent.committed:
        return None
    undone = undone_by([(one["action"], one["snapshot_id"]) for one in intent.committed])
    if intent.tables(target)[0] == seen.name:  # of which the entry names the snapshot that is undone
        earlier = [one for one in [seen.by_id.get(intent.entry["base_snapshot_id"])] if one is not None]
    else:
        then = dropwhile(lambda one: one.snapshot_id != snapshot.snapshot_id, ancestors(seen.table))
        earlier = list(islice(then, 1, None))
    said = {RUN_PROPERTY: intent.run_id, ACTION_PROPERTY: undone}
    last = next((one for one in earlier if said.items() <= _said(one).items()), None)
    if last is None:
        return None
    shown, before = seen.live(last.snapshot_id), seen.live(last.parent_snapshot_id)
    if shown is None or before is None:
        return None
    going, coming = (_in_days(seen, files, day, intent) for files in (shown, before))
    return {place: before[place].file for place in coming - going}, going - coming


def _in_days(seen: Seen, files: Mapping[str, Entry], day: int | None, intent: Intent) -> set[str]:
    """Return the places of the files that may hold rows of the chunks that an intent may change."""
    division, found = intent.division, set()
    every = [one for own in intent.days.values() for one in own]
    for place, entry in files.items():
        low, high = days_of(seen, entry, day)
        part = None if division is None else known_part(seen.table, division, entry.file)
        # where all parts may change, files of a value that nobody has declared go with those of their time
        of_others = part is None or (intent.plan.get("values") is None and part not in intent.days)
        days = every if of_others else intent.days.get(str(part), [])
        if any(low <= last and first <= high for first, last in days):
            found.add(place)
    return found
