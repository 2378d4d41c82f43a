"""Loading extractions, and holding a server's records against what was loaded.

Put here the order of loads of a feed: one after the other, each from the archive alone. What of an extraction is new is
`versions`', and how its rows are made `kept_responses`'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from backfill_assets.declarations.apis import ApiFeed
from backfill_assets.extraction.archive import Archive, alone_with, archive_of
from backfill_assets.extraction.indexes import Entry, entries_of, pages_hash
from backfill_assets.extraction.refusals import ArchiveRefused
from backfill_assets.ingestion.deliveries import Loaded, load_delivery
from backfill_assets.ingestion.held_tables import HeldTable, held_to_load
from backfill_assets.ingestion.kept_responses import Kept, KeptDelivery, load_id_of
from backfill_assets.ingestion.versions import (
    Brought,
    Change,
    Found,
    State,
    brought,
    compared,
    compared_then,
    concludes_deletions,
    keyless,
    merge,
)
from backfill_assets.installation import Platform
from manifests.errors import EnvironmentRefused, InputRefused, Problem
from resources.lakehouse.loads import Load, content_of
from resources.ledger.extractions import ExtractionRecord, ExtractionState

_OVER = frozenset({ExtractionState.COMPLETE, ExtractionState.UNSTABLE})


@dataclass(frozen=True)
class ExtractionLoaded:
    """What the load of an extraction brought: its records by what they were to the table, and the load itself.

    `keyless` records of one that reconciles keep anything from being concluded to be deleted.
    """

    extraction: str
    changes: dict[str, int]
    loaded: Loaded
    keyless: int = 0


@dataclass(frozen=True)
class Reconciled:
    """What a server has against what was loaded: how many records by what they are, and the keys of those that differ.

    Without keys if `withheld`, because the policy protects columns of the table. `keyless` records have no usable key: they keep
    anything from being concluded to be deleted.
    """

    extraction: str
    counts: dict[str, int]
    keys: dict[str, list[str]]
    withheld: bool = False
    keyless: int = 0


def load_extractions(
    platform: Platform, feed: ApiFeed, *, only: str | None = None, unstable: bool = False
) -> list[ExtractionLoaded]:
    """Load the extractions of a feed that are over and not loaded, in the order in which they began; each is a load.

    Args:
        platform: the opened installation.
        feed: the feed.
        only: the id of the one to load; None for all that are COMPLETE.
        unstable: whether one that is UNSTABLE may be loaded, too; it has to be named.

    Raises:
        InputRefused: if the one that is named cannot be loaded, or a load is refused; those before it are loaded.
        LeaseHeld: if somebody loads, takes back or releases rows of the table for longer than is waited for.
        EnvironmentRefused: if another process loads the same feed.
        ArchiveRefused: if what is kept of an extraction is damaged; the others are loaded, unless it is one that the table has.
    """
    done: list[ExtractionLoaded] = []
    damaged: ArchiveRefused | None = None
    with (
        alone_with(platform.settings.responses_folder, f"load-{feed.name}", f"loads {feed.name}"),
        held_to_load(platform, feed.table) as held,  # no load is taken back while it is told what is there
    ):
        records = platform.ledger.extractions.of_feed(feed.name)
        if only is not None:
            _require_loadable(feed, records, only, unstable=unstable)
        loaded = loads_of(platform, feed, records)
        wanted = [
            one
            for one in records
            if one.id not in loaded and (one.id == only if only else one.state is ExtractionState.COMPLETE)
        ]
        try:
            done += _load_each(platform, feed, wanted, _state(platform, feed, records), held)
        except ArchiveRefused as refusal:  # raised below: nothing is under way, and the table is given back
            damaged = refusal
    if damaged is not None:
        raise damaged
    return done


def _load_each(
    platform: Platform, feed: ApiFeed, wanted: Sequence[ExtractionRecord], state: State, held: HeldTable
) -> Iterator[ExtractionLoaded]:
    model = platform.products.input(feed.table).model
    kept = cache(lambda number: _kept(platform, feed, number))
    damaged: dict[str, ArchiveRefused] = {}
    loaded = []
    for record in wanted:
        if damaged and record.question.get("reconciles"):
            damaged[record.id] = _waits(feed, record, next(iter(damaged)))
            continue
        try:
            found = list(compared(state, record, entries_of(_required(platform, record), record)))
            delivery = KeptDelivery(feed, model, record, kept, found)
            done = load_delivery(platform, feed.table, delivery, platform.settings.quarantine_limit, held=held)
        except ArchiveRefused as refusal:  # nothing of it was loaded, and what comes later does not need it
            damaged[record.id] = refusal
            continue
        merge(state, brought(record, found))
        loaded.append(record.id)
        yield ExtractionLoaded(record.id, _counts(found), done, _keyless(record, found))
    if damaged:
        raise _damaged(damaged, loaded)


def _waits(feed: ApiFeed, record: ExtractionRecord, before: str) -> ArchiveRefused:
    """Say why an extraction that tells what a server has no more is not loaded before one that is damaged."""
    return ArchiveRefused(
        Problem(
            f"it says what the server has no more, and {before} before it is not loaded",
            "what is deleted at the source is told of what was loaded before: else it would come back once that is loaded",
            f"restore the archive of {before}; or, where that is gone for good, load this one by its name: "
            f"`backfill load {feed.name} --extraction {record.id}`",
        )
    )


def _damaged(damaged: Mapping[str, ArchiveRefused], loaded: Sequence[str]) -> ArchiveRefused:
    others = f"; loaded were {', '.join(loaded)}" if loaded else ""
    return ArchiveRefused(
        Problem(
            f"extraction {name} is not loaded: {problem.what}{others}",
            problem.rule,
            problem.fix,
            problem.where,
        )
        for name, refusal in damaged.items()
        for problem in refusal.problems
    )


def reconciled(platform: Platform, feed: ApiFeed, record: ExtractionRecord) -> Reconciled:
    """Return what an extraction says of the records that are loaded by now.

    Raises:
        EnvironmentRefused: if the archive was changed.
    """
    others = [one for one in platform.ledger.extractions.of_feed(feed.name) if one.id != record.id]
    found = list(compared(_state(platform, feed, others), record, entries_of(_required(platform, record), record)))
    keys: dict[str, list[str]] = {}
    withheld = platform.policy.protects(feed.table)
    for one in found:
        if one.change is not Change.EQUAL and one.version.entry.key and not withheld:
            keys.setdefault(one.change.value, []).append(one.version.entry.key)
    by_change = {name: sorted(several) for name, several in sorted(keys.items())}
    return Reconciled(record.id, _counts(found), by_change, withheld, _keyless(record, found))


def loads_of(platform: Platform, feed: ApiFeed, records: Sequence[ExtractionRecord]) -> frozenset[str]:
    """Return the ids of those extractions that are loaded, and were not taken back."""
    return frozenset(record.id for record, load in _loaded(platform, feed, records) if load.undone_by is None)


def _loaded(
    platform: Platform, feed: ApiFeed, records: Sequence[ExtractionRecord]
) -> list[tuple[ExtractionRecord, Load]]:
    """Return each load of an extraction that there ever was, in their order; one may have several, all but one taken back."""
    by_load = {load_id_of(one): one for one in records if one.state in _OVER}
    loads = platform.lakehouse.loads(feed.table)
    return [(by_load[content], one) for one in loads if (content := content_of(one.load_id)) in by_load]


def _state(platform: Platform, feed: ApiFeed, records: Sequence[ExtractionRecord]) -> State:
    """Return what the table has: of each load what it has brought to the table as it was then, unless it was taken back."""
    there: list[tuple[Load, Brought]] = []
    state: State = {}
    loaded = _loaded(platform, feed, records)

    @cache
    def shown(load_id: str) -> frozenset[int]:
        return platform.lakehouse.snapshots_with_load(feed.table, load_id)

    for record, load in _that_count(loaded, shown):
        there, state = _without(there, state, partial(_was_there, shown, load.snapshot_id))
        entries = _entries_of_loaded(platform, feed, record, load, loaded, shown)
        found = compared_then(state, record, entries, load.rows + load.quarantined)
        there.append((load, brought(record, found)))
        merge(state, there[-1][1])
    return _without(there, state, lambda _: False)[1]


def _that_count(
    loaded: Sequence[tuple[ExtractionRecord, Load]], shown: Callable[[str], frozenset[int]]
) -> list[tuple[ExtractionRecord, Load]]:
    """Return the loads that say something of what the table has: those that are in it, and those that one of them was made beside."""
    found: list[tuple[ExtractionRecord, Load]] = []
    for record, load in reversed(loaded):
        if load.undone_by is None or any(later.snapshot_id in shown(load.load_id) for _, later in found):
            found.append((record, load))
    return found[::-1]


def _entries_of_loaded(
    platform: Platform,
    feed: ApiFeed,
    record: ExtractionRecord,
    load: Load,
    loaded: Sequence[tuple[ExtractionRecord, Load]],
    shown: Callable[[str], frozenset[int]],
) -> list[Entry]:
    """Return the index of an extraction that was loaded: without it nobody knows what the table has.

    Raises:
        ArchiveRefused: naming the loads to take back, which end that.
    """
    try:
        return entries_of(archive_of(platform, record), record)
    except ArchiveRefused as refusal:
        there = [one for _, one in loaded if one.undone_by is None]
        to_go = [one for one in there if one.load_id == load.load_id or one.snapshot_id in shown(load.load_id)]
        names = ", ".join(one.load_id for one in reversed(to_go))
        raise ArchiveRefused(
            Problem(
                f"what the table {feed.table} has of extraction {record.id} is not known: {problem.what}",
                "what is new in a later extraction is told by the indexes of those that were loaded",
                f"restore the archive from its backup; or take back what was loaded by it, and beside it, newest first ({names}), and "
                f"load {feed.name} anew: `backfill unload {feed.table} LOAD --by NAME --reason TEXT`",
                problem.where,
            )
            for problem in refusal.problems
        ) from None


def _was_there(shown: Callable[[str], frozenset[int]], snapshot_id: int, load: Load) -> bool:
    return snapshot_id in shown(load.load_id)


def _without(
    there: list[tuple[Load, Brought]], state: State, was_there: Callable[[Load], bool]
) -> tuple[list[tuple[Load, Brought]], State]:
    """Return loads without those that were taken back, but for those that were there yet, and the table's state with them.

    What was there when is the history of the table to say, and no clock.
    """
    left = [(load, what) for load, what in there if load.undone_by is None or was_there(load)]
    if len(left) == len(there):
        return there, state
    state = {}
    for _, what in left:
        merge(state, what)
    return left, state


def _required(platform: Platform, record: ExtractionRecord) -> Archive:
    """Return the archive of an extraction whose answers on record are those that were sealed."""
    if pages_hash(platform.ledger.extractions.responses(record.id)) != record.pages_hash:
        raise EnvironmentRefused(
            Problem(
                f"the answers on record of extraction {record.id} are not those that were sealed",
                "an extraction that is over never changes again",
                "find out who has changed the ledger; restore it from its backup",
            )
        )
    return archive_of(platform, record)


def _kept(platform: Platform, feed: ApiFeed, number: int) -> Kept:
    record = platform.ledger.extractions.one(f"{feed.name}-{number}")
    responses = {one.number: one for one in platform.ledger.extractions.responses(record.id)}
    return Kept(record, archive_of(platform, record), responses)


def _require_loadable(feed: ApiFeed, records: Sequence[ExtractionRecord], wanted: str, *, unstable: bool) -> None:
    found = next((one for one in records if one.id == wanted), None)
    if found is not None and (
        found.state is ExtractionState.COMPLETE or (unstable and found.state is ExtractionState.UNSTABLE)
    ):
        return
    if found is None:
        what, fix = (
            f"the feed {feed.name} has no extraction '{wanted}'",
            f"`backfill extractions {feed.name}` lists them",
        )
    elif found.state is ExtractionState.UNSTABLE:
        what = f"extraction {wanted} is UNSTABLE: {found.reason}"
        fix = (
            "extract again when less is changed there; or load what was read, with --unstable, and reconcile afterwards"
        )
    else:
        what = f"extraction {wanted} is {found.state}" + (f": {found.reason}" if found.reason else "")
        fix = "the command that began it goes on with it"
    raise InputRefused(Problem(what, "what is loaded was read to its end, and is COMPLETE", fix))


def _keyless(record: ExtractionRecord, found: Sequence[Found]) -> int:
    return keyless(found) if concludes_deletions(record) else 0


def _counts(found: Sequence[Found]) -> dict[str, int]:
    return dict(sorted(Counter(one.change.value for one in found).items()))
