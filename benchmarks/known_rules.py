"""What must hold of a table whose rows say what their run has known: who holds a month, by what source, over whom.

Put here how readers, ledger and history are held against one another after a schedule of `known`. The ledger's record of
who has held what since when is read as it is; what a rule of the product makes of it is worked out here once more, from
documents and not by the product's own functions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property, partial

from pyiceberg.table import Table

from backfill_assets.audit.verification import verify
from backfill_assets.declarations.schema import dtypes
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication import ending
from backfill_assets.publication.publisher import publish
from backfill_assets.schedules import live
from benchmarks.known_acts import OPEN, PAST, World, brought_on
from benchmarks.small_table import READINGS, Reading, events_at, load_events, seen, staged
from manifests.errors import Refused
from manifests.kinds import FIRST_OUTPUT
from manifests.lifecycle import ACCEPT, PUBLISH, REINSTATE, ROLLBACK, RunState
from manifests.model import Kind
from manifests.plan import Plan
from resources.ledger.accepted_versions import AcceptedVersion
from resources.ledger.facade import PublicationRecord, RunRecord

_FOREIGN = frozenset({"foreign-write", "accepted-files-differ", "unknown-run"})
"""What the doctor rightly finds in a table that was written past the project."""
_RIGHTLY = frozenset({"load-taken-back", "lease-expired"})
"""What it rightly finds, and has nothing to repair: runs that have read what was taken back, leases of those that died."""


def settled(world: World, *, thoroughly: bool) -> list[str]:
    """Return what is wrong once the doctor has been, and every run has been brought to its end; `thoroughly`, once LIVE has gone on."""
    platform, allowed = world.others, _RIGHTLY | (_FOREIGN if world.appended else frozenset())
    try:
        _, left = mend(platform)
    except Refused as refusal:
        return [f"the doctor was refused: {refusal}"]
    wrong = [f"the doctor finds {one.kind}: {one.where}: {one.what}" for one in left if one.kind not in allowed]
    for _, run_id, action in platform.ledger.interrupted_publications(READINGS):
        wrong.append(f"the {action} of {run_id} is on record as under way, and nobody is at it")
    wrong += [f"{one} (after the doctor)" for one in disagreements(world)]
    for record in platform.ledger.runs(target=READINGS, states=OPEN):
        wrong += _ends(platform, record.run_id)
    wrong += [f"{one} (with every run at its end)" for one in disagreements(world)]
    if not thoroughly:
        return wrong
    wrong += _live_goes_on(platform)
    wrong += [f"{one} (at the end)" for one in disagreements(world)]
    if not world.appended:
        wrong += [f"verify: {one.run_id} {one.where}: {one.what}" for one in verify(platform).everything]
        left = [one for one in examine(platform) if one.kind not in allowed]
        wrong += [f"the doctor finds at the end {one.kind}: {one.where}: {one.what}" for one in left]
    return wrong


def _ends(platform: Platform, run_id: str) -> Iterator[str]:
    """Publish a run that is under way, or cancel it: one of them must be possible."""
    refusals = []
    for end in (brought_on, brought_on, partial(ending.cancel, by="grace", comment="over")):
        try:
            end(platform, run_id)
        except Refused as refusal:
            refusals.append(str(refusal))
        if platform.ledger.run(run_id).state not in OPEN:
            return
    yield f"{run_id} is {platform.ledger.run(run_id).state} and can neither be published nor cancelled: {refusals}"


def _live_goes_on(platform: Platform) -> Iterator[str]:
    """Load newer events, and have LIVE publish them: where something is complete, nothing keeps LIVE from going on.

    The source has something of each month again: of one in which it holds no day LIVE publishes nothing, and says so.
    """
    load_events(platform, "afterwards", *(f"2020-{month:02}-28" for month in range(1, 9)))
    held = platform.ledger.accepted(READINGS)
    try:
        found = live.tick(platform, platform.products.target(READINGS))
        if found.record is None:
            if held:
                yield f"LIVE does not go on, and {sorted(held)} are published: {found.why}"
            return
        staged(platform, found.record.run_id)
        publish(platform, found.record.run_id)
    except Refused as refusal:
        yield f"LIVE cannot go on: {refusal}"


# --- readers, ledger and history --------------------------------------------------------------------------------------


def disagreements(world: World) -> list[str]:
    """Return what readers see that its holder has not known, or do not see; and what has replaced what it must not."""
    known = Known(world.others)
    return [*_rows(world, known), *_rows_of_others(world), *_states(known), *_taken(known)]


@dataclass
class Known:
    """What the ledger says of the small table: its runs, what they have committed, and who has held what since when."""

    platform: Platform

    @cached_property
    def records(self) -> dict[str, RunRecord]:
        """The runs."""
        return {record.run_id: record for record in self.platform.ledger.runs(target=READINGS)}

    @cached_property
    def committed(self) -> list[PublicationRecord]:
        """What they have committed, oldest first."""
        return self.platform.ledger.committed(READINGS)

    @cached_property
    def holdings(self) -> list[AcceptedVersion]:
        """Who has held which chunk."""
        return self.platform.ledger.holdings(READINGS)

    @cached_property
    def plans(self) -> dict[str, dict[str, Plan]]:
        """The plan of each chunk of each run: of one that was planned anew, by which it was computed."""
        return {run_id: self.platform.ledger.plans(record) for run_id, record in self.records.items()}

    @cached_property
    def table(self) -> Table:
        """The table."""
        return self.platform.lakehouse.table(READINGS)

    def entry_at(self, at: datetime) -> PublicationRecord:
        """Return what was put on record at an instant at which a chunk has changed hands."""
        return next(one for one in self.committed if one.landed_at == at)

    def held_before(self, chunk: str, at: datetime) -> AcceptedVersion | None:
        """Return the holding of a chunk that has ended at an instant, or was there then."""
        found = [one for one in self.holdings if one.chunk == chunk and one.accepted_at < at]
        return next((one for one in found if one.ended_at is None or one.ended_at >= at), None)

    def was_published(self, run_id: str, at: datetime) -> bool:
        """Tell whether a run was published, and not rolled back, before an instant."""
        done = [one.action for one in self.committed if one.run_id == run_id and one.landed_at < at]
        return bool(done) and done[-1] != ROLLBACK

    def led_to(self, snapshot_id: int | None) -> set[int] | None:
        """Return a snapshot and those before it; None if one of them is not known any more."""
        parents = {one.snapshot_id: one.parent_snapshot_id for one in self.table.snapshots()}
        found: set[int] = set()
        while snapshot_id is not None:
            if snapshot_id not in parents:
                return None
            found.add(snapshot_id)
            snapshot_id = parents[snapshot_id]
        return found

    def held_at(self, snapshot_id: int | None) -> dict[str, str] | None:
        """Return who held which chunk when main was a snapshot, whatever was recorded late; None if that is not known any more."""
        before, here = self.led_to(snapshot_id), {one.snapshot_id for one in self.table.snapshots()}
        if before is None:
            return None
        found: dict[str, str] = {}
        for one in self.holdings:
            began = self.entry_at(one.accepted_at).snapshot_id
            ended = None if one.ended_at is None else self.entry_at(one.ended_at).snapshot_id
            if began not in here or (ended is not None and ended not in here):
                return None
            if began in before and ended not in before:
                found[one.chunk] = one.run_id
        return found


def _rows(world: World, known: Known) -> Iterator[str]:
    """Hold each month that readers see against the events of the snapshot that its holder has read."""
    names = [name for name in dtypes(Reading) if name != "produced_at"]
    months: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for row in (dict(zip(names, values, strict=True)) for values in seen(world.others)):
        if row["run_id"] != PAST:
            months[f"{row['day']:%Y-%m}"].append((row["meter"], row["run_id"], row["input_snapshot_id"]))
    holders = world.others.ledger.accepted(READINGS)
    for month in sorted(months.keys() | holders.keys()):
        wanted: list[tuple[str, str, int]] = []
        if (holder := holders.get(month)) is not None:
            source = known.plans[holder][month].source_snapshot_id
            events = events_at(world.others, source)
            wanted = sorted((name, holder, source) for name, day in events if f"{day:%Y-%m}" == month)
        if (found := sorted(months[month])) != wanted:
            yield f"{month} is held by {holder}: readers see {found}, and not {wanted}"


def _rows_of_others(world: World) -> Iterator[str]:
    found = [row[0] for row in seen(world.others) if PAST in row]
    yield from (f"{name} is there {found.count(name)} times" for name in sorted(set(found)) if found.count(name) > 1)
    yield from (f"nobody has written {name}" for name in sorted(set(found) - world.appended.keys()))


def _states(known: Known) -> Iterator[str]:
    holders = set(known.platform.ledger.accepted(READINGS).values())
    for run_id, record in known.records.items():
        if run_id in holders and record.state is not RunState.PUBLISHED:
            yield f"{run_id} holds chunks and is {record.state}"
    watermark = known.platform.ledger.watermarks.current(READINGS)
    if watermark is not None and known.records[watermark.run_id].state is RunState.ROLLED_BACK:
        yield f"the watermark is {watermark.run_id}'s, which was rolled back"


def _taken(known: Known) -> Iterator[str]:
    """Look at each chunk that has changed hands: over whom, by whom, and whether that was lawful."""
    first: dict[tuple[str, datetime], list[str]] = defaultdict(list)
    for held in known.holdings:
        entry = known.entry_at(held.accepted_at)
        if entry.run_id != held.run_id:  # the rollback of another run has given it back
            continue
        if entry.action == REINSTATE:
            yield from _reinstated(known, held)
        if entry.action in {PUBLISH, ACCEPT}:
            first[held.run_id, held.accepted_at].append(held.chunk)
            if (before := known.held_before(held.chunk, held.accepted_at)) is not None:
                yield from _over(known, held, before)
                yield from _unseen(known, held, before)
    for (run_id, at), chunks in first.items():
        if known.records[run_id].manifest.kind is Kind.LIVE:
            yield from _gap(known, run_id, at, min(chunks))


def _over(known: Known, held: AcceptedVersion, before: AcceptedVersion) -> Iterator[str]:
    """Say what keeps a run from taking a chunk from another one: its kind, or older knowledge."""
    manifest, chunk, at = known.records[held.run_id].manifest, held.chunk, held.accepted_at
    mine, theirs = known.plans[held.run_id][chunk], known.plans[before.run_id][chunk]
    said = f"{held.run_id} ({manifest.kind}) has taken {chunk} from {before.run_id}"
    if manifest.kind in FIRST_OUTPUT and (
        manifest.kind is not Kind.REPLAY or mine.source_snapshot_id != theirs.source_snapshot_id
    ):
        yield f"{said}, which a {manifest.kind} never does"
    scope = manifest.target.publish_range
    of_live = [
        run_id
        for run_id, record in known.records.items()
        if record.manifest.kind is Kind.LIVE and known.was_published(run_id, at) and run_id != held.run_id
        if record.manifest.target.publish_range.start <= scope.end
        and record.manifest.target.publish_range.end >= scope.start
    ]
    if (of_live or manifest.kind is Kind.LIVE) and mine.source_committed_at < theirs.source_committed_at:
        yield f"{said}, by older knowledge: {mine.source_snapshot_id} is older than {theirs.source_snapshot_id}"


def _unseen(known: Known, held: AcceptedVersion, before: AcceptedVersion) -> Iterator[str]:
    """Say that a run has taken a chunk from one that did not hold it in the snapshot that its plan was made on."""
    then = known.held_at(known.plans[held.run_id][held.chunk].base_snapshot_id)
    if then is not None and then.get(held.chunk) != before.run_id:
        was = then.get(held.chunk)
        yield f"{held.run_id} has taken {held.chunk} from {before.run_id}, and was planned on what {was} held"


def _reinstated(known: Known, held: AcceptedVersion) -> Iterator[str]:
    """Say that a run was brought back over one that has taken its chunk since its rollback."""
    undone = [one.landed_at for one in known.committed if one.run_id == held.run_id and one.action == ROLLBACK]
    rolled_back = max(at for at in undone if at < held.accepted_at)
    before = known.held_before(held.chunk, held.accepted_at)
    left = next((one for one in known.holdings if one.chunk == held.chunk and one.accepted_at == rolled_back), None)
    if before is not None and (left is None or left.run_id != before.run_id):
        yield f"{held.run_id} was reinstated over {before.run_id}, which has taken {held.chunk} since its rollback"


def _gap(known: Known, run_id: str, at: datetime, first: str) -> Iterator[str]:
    """Say that LIVE has left days out between it and what was complete when it landed, or that nothing was."""
    by_id = {one.snapshot_id: one for one in known.table.snapshots()}
    landed = by_id.get(known.entry_at(at).snapshot)
    held = None if landed is None else known.held_at(landed.parent_snapshot_id)
    if held is None:
        return
    if not held:
        yield f"{run_id} has begun at {first}, and nothing was complete before"
    before = {chunk for chunk in held if chunk < first}
    if before and max(before) != _month_before(first):
        yield f"{run_id} has begun at {first}, and what was complete ended with {max(before)}"


def _month_before(month: str) -> str:
    return f"{date.fromisoformat(f'{month}-01') - timedelta(days=1):%Y-%m}"
