"""The doctor: holds ledger, tables, staged files and evidence against each other, and says what disagrees.

Put here a check for each way in which they can come to disagree, and the repair where one is provably safe. A check
changes nothing. It reads one store after the other, while others work: what it finds counts if nothing has moved
meanwhile, or if it is found again; what somebody is at just now is said to be under way, and is no disagreement yet. A
repair is one transaction that changes what was looked at or nothing, or the publisher's own way of recording what landed;
whatever needs a judgement is left to people, with what they can do.
"""

from __future__ import annotations

import logging
import socket
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from enum import StrEnum
from functools import partial
from typing import Any

from pyarrow import ArrowException
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import DateType

from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.declarations.target import TargetTable
from backfill_assets.evidence.collected import collected_snapshots, collections
from backfill_assets.evidence.events import MOVED
from backfill_assets.evidence.records import catch_up, harmed, harmed_of, is_behind, name_of, planted, untold
from backfill_assets.installation import Platform
from backfill_assets.planning.pinned_loads import MAY_BE_SHOWN, pinned, taken_back
from backfill_assets.publication.change import Change
from backfill_assets.publication.modes import change_of
from backfill_assets.publication.recording import PROCESS_ENDED, close_intent, protect_bases, record_landed, tell_again
from backfill_assets.review.kept_diffs import due, keep_diff
from manifests.chunks import Chunking, first_day, last_day
from manifests.errors import EnvironmentRefused, InputRefused, LedgerLocked, Refused, StateMoved
from manifests.lifecycle import ACCEPT, PUBLISH, REINSTATE, ROLLBACK, WAS_PUBLISHED, WITHDRAW, RunState
from manifests.model import Mode
from manifests.planner import StagedFile
from manifests.text import visible
from resources import logs
from resources.evidence.chain import Link
from resources.files.kept_files import open_kept
from resources.lakehouse.declared_tables import column_problems
from resources.lakehouse.facade import ACTION_PROPERTY, EVIDENCE_PROPERTY, RUN_PROPERTY, SEQUENCE_PROPERTY
from resources.lakehouse.history import referenced
from resources.lakehouse.lineage import lineage_of, withdrawn
from resources.lakehouse.metadata import (
    UnreadableMetadata,
    column_of,
    committed_at,
    count_said,
    readable_bounds,
    readable_metadata,
    wrong_type,
)
from resources.lakehouse.snapshots import redirected_access
from resources.lakehouse.storage import Storage, place_of
from resources.ledger import journal as journals
from resources.ledger.cells import IllegibleRow, illegible
from resources.ledger.facade import BEFORE, STAGED, ChunkRecord, PublicationRecord, RunRecord, now, operator
from resources.ledger.instants import CLOCK_TOLERANCE
from resources.ledger.journal import INSTALLATION
from resources.ledger.leases import LeaseRecord
from resources.processes import has_ended, is_busy

_log = logging.getLogger(__name__)
SILENT_AFTER = timedelta(days=1)
"""After how long an attempt on another machine is asked about."""
COMPARING = timedelta(minutes=15)
"""How long after a publication its diff is not missed: a process may be at it."""
_CLOCKS_APART = timedelta(days=1)
"""By how much a lease may seem to last longer than leases last: clocks differ, and so may the setting elsewhere."""
_READERS = 8
_SHOWN = 10
_ROUNDS = 5
_LOOKS = 3
"""How often is looked again at what moved while it was looked at."""
_AGAIN_SECONDS = 0.5
_SOON_DONE = frozenset({"evidence-not-told", "evidence-behind"})
"""What a process that is at work does a moment after it has recorded a change."""
_UNPUBLISHED = frozenset({RunState.RUNNING, RunState.STAGED, RunState.FAILED, RunState.VALIDATED})
_USUAL_NUMBER = {PUBLISH: 1, ROLLBACK: 2}
"""Of a run's changes that do not say their number."""


class Sure(StrEnum):
    """How sure a finding is."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


@dataclass(frozen=True)
class Disagreement:
    """Something that disagrees.

    Attributes:
        kind: the check's name for it, for scripts.
        where: the run, table, chunk or file.
        what: what disagrees with what.
        sure: how sure that is.
        fix: what to do about it.
        repair: does it and says what was done, or None where people must decide.
    """

    kind: str
    where: str
    what: str
    sure: Sure
    fix: str
    repair: Callable[[], str] | None = field(default=None, compare=False, repr=False)

    def shown(self) -> dict[str, Any]:
        """Return the finding as JSON-ready data."""
        facts = {name: getattr(self, name) for name in ("kind", "where", "what", "sure", "fix")}
        return facts | {"repairable": self.repair is not None}


@dataclass(frozen=True)
class Repaired:
    """A finding that was repaired, and what was done."""

    found: Disagreement
    done: str


@dataclass(frozen=True)
class _View:
    """One table of a target with everything that the checks of it look at."""

    platform: Platform
    target: TargetTable
    name: str
    table: Table
    storage: Storage
    history: Sequence[Snapshot]
    runs: Sequence[RunRecord]
    known: frozenset[str]
    """Ids of all runs of the ledger, also of other targets."""
    at_it: Mapping[str, LeaseRecord]
    """By run, the living lease under which somebody is changing the target."""


@dataclass(frozen=True)
class _Landed:
    """The newest change of a run that a table's history shows; `number` counts the run's changes."""

    action: str
    number: int
    snapshot: Snapshot


def _properties(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}


def examine(platform: Platform) -> list[Disagreement]:
    """Return everything that disagrees. Changes nothing."""
    found: list[Disagreement] = []
    declared = {target.name: target for target in platform.products.targets}
    for name in sorted({record.target for record in _runs(platform)} | declared.keys()):
        target = declared.get(name)
        tables = () if target is None else target.changed_tables
        look_at = partial(_look_at_target, platform, name, target)
        found += _settled(platform, partial(_as_far_as_possible, platform, name, look_at), tables)
    for look in (_attempts, _loads, _evidence, _records, _diffs, _journal, _leases, _freezes, _clock, _policy_file):
        found += _settled(platform, partial(_as_far_as_possible, platform, "ledger", partial(look, platform)))
    for one in found:
        text = f"{one.where}: {one.what}"
        level = logging.ERROR if one.kind == "DATA-LOSS" else logging.WARNING
        logs.event(_log, level, "disagreement", text, told=True, **one.shown())
    return found


def _runs(platform: Platform) -> list[RunRecord]:
    """Return the runs, without those that cannot be read because somebody has changed their cells: `_journal` names the rows."""
    try:
        return platform.ledger.runs()
    except IllegibleRow:
        with platform.ledger.reading() as moment:
            known = moment.run_ids()
    found = []
    for run_id in known:
        with suppress(IllegibleRow):
            found.append(platform.ledger.run(run_id))
    return found


def _as_far_as_possible(
    platform: Platform, where: str, look: Callable[[], Iterable[Disagreement]]
) -> Iterator[Disagreement]:
    """Look; where a look fails on what somebody has damaged or changed by hand, say that.

    Of the ledger `_journal` names the cells.
    """
    try:
        yield from look()
    except UnreadableMetadata as refusal:
        yield _damaged(where, refusal)
    except IllegibleRow as refusal:
        yield not_checked(where, refusal)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if not any(_journal(platform)):
            raise
        yield not_checked(where, illegible("the ledger", f"{type(error).__name__}: {error}"))


def not_checked(where: str, refusal: IllegibleRow) -> Disagreement:
    """Return the finding of cells that keep the doctor from looking. Which they are, and what was there, the journal says."""
    fix = "put right first what was changed by hand, then look again"
    return Disagreement("not-checked", where, refusal.problems[0].what, Sure.CERTAIN, fix)


def _settled(
    platform: Platform, look: Callable[[], Iterable[Disagreement]], tables: Sequence[str] = ()
) -> list[Disagreement]:
    """Look until nothing has moved meanwhile, or the same is found again; a few times.

    What was found only once by then is asked about, and not repaired.

    Raises:
        StateMoved: if a run is planned anew each time that it is looked at.
    """
    before = _moving(platform, tables)
    found = _found_by(look)
    is_first = True
    for _ in range(_LOOKS):
        soon = is_first and any(one.kind in _SOON_DONE for one in found or ())
        if found is not None and not soon and not (found and _moving(platform, tables) != before):
            return found
        time.sleep(_AGAIN_SECONDS)
        before, is_first = _moving(platform, tables), False
        earlier, found = found, _found_by(look)
        if earlier is not None and found is not None and all(one in earlier for one in found):
            return found
    if found is None:
        return list(look())
    return [
        one if one in (earlier or ()) else replace(one, sure=Sure.POSSIBLE, fix=_MOVES, repair=None) for one in found
    ]


_MOVES = "somebody is at work on it: look again when that is done"


def _moving(platform: Platform, tables: Sequence[str]) -> tuple[Any, ...]:
    """Return what moves with whatever is done: the ledger's newest entry, the chain's last link, metadata of tables."""
    metadata = [_metadata(platform, name) for name in tables]
    with platform.ledger.reading() as moment:
        return moment.newest_entry(), platform.evidence.chain.length(), *metadata


def _metadata(platform: Platform, table: str) -> str:
    """Return the metadata file of a table, or what is wrong with it."""
    try:
        return platform.lakehouse.table(table).metadata_location
    except (InputRefused, UnreadableMetadata) as refusal:
        return str(refusal)


def _found_by(look: Callable[[], Iterable[Disagreement]]) -> list[Disagreement] | None:
    """Return what is found; None if a run was planned anew since it was read, so that nothing is known."""
    try:
        return list(look())
    except StateMoved:
        return None


def _policy_file(platform: Platform) -> Iterator[Disagreement]:
    """A file that proposes another policy than is in force: somebody may take it for what counts."""
    if said := platform.ledger.policies.disagreement(platform.settings):
        fix = "`backfill policy propose --by NAME`, and somebody else adopts it; or make the file say what is in force"
        yield Disagreement("policy-file", "policy", said, Sure.CERTAIN, fix)


def mend(
    platform: Platform, more: Callable[[], Iterable[Disagreement]] = tuple
) -> tuple[list[Repaired], list[Disagreement]]:
    """Repair what is provably safe; return what was repaired, and what is left after looking again.

    `more` looks for what disagrees besides.
    """
    repaired: list[Repaired] = []
    refused: dict[tuple[str, str], str] = {}
    left = [*examine(platform), *more()]
    for _ in range(_ROUNDS):  # a repair may bring another one within reach
        todo = [item for item in left if item.repair is not None and (item.kind, item.where) not in refused]
        if not todo:
            break
        for item in todo:
            assert item.repair is not None
            try:
                repaired.append(Repaired(item, item.repair()))
                text = f"{item.where}: {repaired[-1].done}"
                logs.event(_log, logging.INFO, "repaired", text, kind=item.kind, where=item.where)
            except Refused as refusal:
                refused[item.kind, item.where] = str(refusal)
        left = [*examine(platform), *more()]
    told = [(item, refused.get((item.kind, item.where))) for item in left]
    return repaired, [
        item if why is None else Disagreement(item.kind, item.where, f"{item.what}; repair: {why}", item.sure, item.fix)
        for item, why in told
    ]


def _undeclared(name: str, runs: Sequence[RunRecord]) -> Disagreement:
    return Disagreement(
        "undeclared-target",
        name,
        f"{len(runs)} run(s) of the ledger are for a target that no product declares",
        Sure.CERTAIN,
        "use code that declares it, or restore the declaration: nothing was checked of it",
    )


def _look_at_target(platform: Platform, name: str, target: TargetTable | None) -> Iterator[Disagreement]:
    if target is None:
        yield _undeclared(name, [one for one in _runs(platform) if one.target == name])
        return
    everything = _runs(platform)
    runs, known = [record for record in everything if record.target == name], {record.run_id for record in everything}
    yield from _examine_target(platform, target, runs, frozenset(known))


def _examine_target(
    platform: Platform, target: TargetTable, runs: Sequence[RunRecord], known: frozenset[str]
) -> Iterator[Disagreement]:
    at_it = {held.run_id: held for held in platform.ledger.repairs.open_leases() if _is_at_it(held, target)}
    views = {}
    for name in target.changed_tables:
        try:
            table = platform.lakehouse.table(name)
            storage = Storage(table)
        except InputRefused as refusal:
            yield Disagreement(
                "table-missing", name, refusal.problems[0].what, Sure.CERTAIN, "`backfill init`, or restore the catalog"
            )
            continue
        except UnreadableMetadata as refusal:
            yield _lost(name, refusal)
            continue
        views[name] = _View(platform, target, name, table, storage, lineage_of(table), runs, known, at_it)
        yield from _as_far_as_possible(platform, name, partial(_strangers, views[name]))
        yield from _columns(views[name])
        yield from _file_access(views[name])
    open_ends: list[Disagreement] = []
    for record in runs:
        if record.was_planned_anew:
            continue  # nobody had approved what was looked at: none of it can have been published
        if record.state in _UNPUBLISHED and (view := views.get(target.name)):
            yield from _staged_files(view, record)
        if all(name in views for name in target.changed_tables):
            open_ends += _as_far_as_possible(platform, record.run_id, partial(_publications, views, record))
            open_ends += _untold(platform, record)
            yield from _base_tag(views[target.name], record)
            yield from _as_far_as_possible(platform, record.run_id, partial(_corrections_left, views, record))
    # whatever brings those to an end completes the records, also of the runs that were superseded
    yield from open_ends or [one for record in runs for one in _evidence_behind(platform, record)]
    lost = [one for view in views.values() for one in _lost_files(view)]
    if target.name in views:
        found = _as_far_as_possible(platform, target.name, partial(_accepted_files, views[target.name]))
        yield from (one for one in found if one.what not in {other.what for other in lost})
    yield from lost


# --- publications -----------------------------------------------------------------------------------------------------


def _columns(view: _View) -> Iterator[Disagreement]:
    """Hold the columns of a table against the model that declares them: no run can be planned where they differ."""
    corrections = view.target.corrections
    model = corrections.model if corrections is not None and view.name == corrections.name else view.target.model
    if problems := column_problems(view.table, iceberg_schema(model)):
        what, way_out = ("; ".join(said) for said in zip(*((one.what, one.fix) for one in problems), strict=True))
        yield Disagreement("columns-differ", view.name, what, Sure.CERTAIN, way_out)


def _file_access(view: _View) -> Iterator[Disagreement]:
    """Find properties by which others open a table's files otherwise than this project: they may read something else."""
    if found := redirected_access(view.table):
        yield Disagreement(
            "file-access-redirected",
            view.name,
            f"its metadata says how its files are opened ({', '.join(map(visible, found))}): other programs that go by it may "
            "read other bytes, or run other code; this project goes by the catalog's properties alone",
            Sure.CERTAIN,
            "find out who has set them, put what is meant into the properties of the catalog, and remove them from the table",
        )


def _strangers(view: _View) -> Iterator[Disagreement]:
    """Find snapshots that no run of this ledger made."""
    for snapshot in view.history:
        run_id = _properties(snapshot).get(RUN_PROPERTY)
        if run_id in view.known:
            continue
        when = committed_at(view.table, snapshot).isoformat(timespec="seconds")
        what = "by nobody's run" if run_id is None else f"by run '{run_id}', which the ledger does not know"
        yield Disagreement(
            "foreign-write" if run_id is None else "unknown-run",
            f"{view.name} snapshot {snapshot.snapshot_id}",
            f"written at {when} {what}",
            Sure.CERTAIN,
            "find out who writes past this project; a restatement of what it touched makes the table a run's again"
            if run_id is None
            else "restore the ledger that knows the run, or find out whose installation shares this table",
        )


def _publications(views: Mapping[str, _View], record: RunRecord) -> Iterator[Disagreement]:
    """Hold what the ledger says of a run's changes of its tables against their history."""
    platform = next(iter(views.values())).platform
    entries = platform.ledger.publications(record.run_id)
    recorded = [entry for entry in entries if entry.has_landed]
    change = change_of(platform, record, [])
    view = views[change.tables[0]]  # the one by which readers, and the ledger, know it
    intended = frozenset(entry.action for entry in entries if entry.is_intent)
    landed = _landed(view, record, change, recorded, intended)
    for table in change.tables[1:]:  # half of a change of two tables is not nothing
        other = _landed(views[table], record, change, recorded, intended)
        if other is not None and other.number > max(len(recorded), landed.number if landed else 0):
            view, landed = views[table], other
    if landed is not None and landed.number > len(recorded):
        held, begun = view.at_it.get(record.run_id), change.has_begun(landed.action)
        yield _unrecorded(view, record, landed, begun=begun) if held is None else _under_way(view, record, landed, held)
    elif landed is None and recorded and record.state is RunState.PUBLISHED:
        yield _not_in_history(view, record, recorded[-1].snapshot)
    for entry in entries:
        healed_first = landed is not None and landed.number > len(recorded) and landed.action == entry.action
        if entry.is_intent and not healed_first:
            later = [one for one in recorded if one.action == entry.action and one.id > entry.id]
            yield _open_intent(platform, record, entry, later[:1])


def _landed(
    view: _View,
    record: RunRecord,
    change: Change,
    recorded: Sequence[PublicationRecord],
    intended: frozenset[str],
) -> _Landed | None:
    """Return the newest change of a run that readers can see, by main or by the name of its version.

    `intended` are the actions of its open intents: nothing else may have changed the name.
    """
    for snapshot in view.history:
        said = _properties(snapshot)
        if said.get(RUN_PROPERTY) != record.run_id:
            continue
        action = said.get(ACTION_PROPERTY, PUBLISH)
        if action == WITHDRAW:
            return None
        if action == PUBLISH and not change.strategy.shows_main:
            if change.strategy.accepted_later and not any(one.action == ACCEPT for one in recorded):
                return _Landed(ACCEPT, len(recorded) + 1, snapshot)
            return _Landed(PUBLISH, 1, snapshot)
        number = count_said(view.table, snapshot, SEQUENCE_PROPERTY)
        return _Landed(action, _USUAL_NUMBER.get(action, 1) if number is None else number, snapshot)
    if change.plan.version is not None:
        for name, by in ((change.plan.version, REINSTATE), (withdrawn(change.plan.version), ROLLBACK)):
            named = view.table.snapshot_by_name(name)
            if named is None or _properties(named).get(RUN_PROPERTY) != record.run_id:
                continue
            if by in intended and recorded and BEFORE[by] is record.state:  # it has changed the name, and nothing else
                return _Landed(by, len(recorded) + 1, named)
            return _Landed(PUBLISH, 1, named)
    return None


def _not_in_history(view: _View, record: RunRecord, snapshot_id: int) -> Disagreement:
    """Say why the history of a table does not show what a published run has made of it."""
    what = f"its snapshot {snapshot_id} is not in the history of {view.name}"
    fix = "somebody moved or expired the table's history: the run cannot be rolled back; restate its scope"
    evidence = view.platform.evidence
    collected: frozenset[str] = frozenset()
    with suppress(EnvironmentRefused):  # the chain cannot be read: found as such below
        collected = collected_snapshots(collections(evidence, evidence.chain.contents()))
    if f"{view.name} snapshot {snapshot_id}" in collected:
        what += ": a collection of garbage has removed it, as policy allows of a run that others have superseded"
        fix = "its rows are what readers see, and nothing is lost; to take them back restate its scope with a new run"
    return Disagreement("publication-not-in-history", record.run_id, what, Sure.CERTAIN, fix)


def _unrecorded(view: _View, record: RunRecord, landed: _Landed, *, begun: bool) -> Disagreement:
    action, snapshot = landed.action, landed.snapshot.snapshot_id

    def heal() -> str:
        recorded = record_landed(view.platform, record.run_id, action, landed.number)
        return _done(recorded is not None, f"recorded the {action} of snapshot {recorded}")

    can = action in BEFORE and record.state is BEFORE[action]
    if can and not begun:
        return Disagreement(
            "publication-unrecorded",
            record.run_id,
            f"snapshot {snapshot} of {view.name} is what its {action} would show; the ledger says {record.state}, and nobody has "
            f"set out to {action} it: another program shows it, or the ledger is older than the table",
            Sure.CERTAIN,
            f"find out who shows it, and have the table's references put back to what they were; {_DECIDED[action]} where the "
            "ledger came from a backup, restore a newer one",
        )
    return Disagreement(
        "publication-unrecorded",
        record.run_id,
        f"its {action} is snapshot {snapshot} of {view.name}; the ledger says {record.state}",
        Sure.CERTAIN,
        f"`backfill {action} {record.run_id}` records it"
        if can
        else f"readers see what a {record.state} run wrote: restate its scope with a new run",
        heal if can else None,
    )


_DECIDED = {
    PUBLISH: "or cancel the run, and restate its scope with a new one;",
    ACCEPT: "or have it decided: `backfill accept` leaves it as it is, `backfill rollback` takes it back;",
    ROLLBACK: "or have it decided: `backfill rollback` puts on record what is shown;",
    REINSTATE: "or have it decided: `backfill reinstate` puts on record what is shown;",
}
"""What can be decided about what another program shows of a run, by the action that would have shown it."""


def _is_at_it(held: LeaseRecord, target: TargetTable) -> bool:
    """Whether a lease that nobody has ended is one of a target that holds, and of a process that may live."""
    return held.target == target.name and held.expires_at >= now() and not has_ended(held)


def _under_way(view: _View, record: RunRecord, landed: _Landed, held: LeaseRecord) -> Disagreement:
    return Disagreement(
        "intent-in-doubt",
        record.run_id,
        f"its {landed.action} is under way: it is snapshot {landed.snapshot.snapshot_id} of {view.name}, and process "
        f"{held.pid} on {held.host} is about to record it",
        Sure.POSSIBLE,
        f"look again when that is done; if the process dies first, `backfill {landed.action} {record.run_id}` records it",
    )


def _open_intent(
    platform: Platform, record: RunRecord, entry: PublicationRecord, recorded: Sequence[PublicationRecord]
) -> Disagreement:
    action, number = entry.action, entry.id
    before = BEFORE.get(action)
    close = partial(_close_intent, platform, record.run_id, number, action)
    if recorded:
        return Disagreement(
            "intent-left-open",
            f"{record.run_id} publication {number}",
            f"the intent to {action} is open; entry {recorded[-1].id} recorded snapshot {recorded[-1].snapshot_id}",
            Sure.CERTAIN,
            "close it, naming the entry that records what happened",
            close,
        )
    if record.state is not before or platform.ledger.repairs.is_given_up(entry):
        return Disagreement(
            "intent-left-open",
            f"{record.run_id} publication {number}",
            f"the intent to {action} is open, nothing landed, and "
            + (f"the run is {record.state}" if record.state is not before else "nobody is at it any more"),
            Sure.CERTAIN,
            "close it as refused: it changed nothing",
            close,
        )
    return Disagreement(
        "intent-in-doubt",
        f"{record.run_id} publication {number}",
        f"the intent to {action} since {entry.started_at.isoformat(timespec='seconds')} is open; nothing landed so far",
        Sure.POSSIBLE,
        f"somebody may be at it; if not, `backfill {action} {record.run_id}` brings it to an end",
    )


def _close_intent(platform: Platform, run_id: str, entry: int, action: str) -> str:
    state = close_intent(platform, run_id, entry, action)
    return _done(state is not None, f"closed as {str(state).lower()}")


def _untold(platform: Platform, record: RunRecord) -> Iterator[Disagreement]:
    """Find a run with a change that is recorded, and of which the evidence does not know."""
    recorded = platform.ledger.landed(record.run_id)
    if record.state not in WAS_PUBLISHED or not recorded:
        return
    last, number = recorded[-1].action, len(recorded)
    folder = platform.evidence.records(record.run_id)
    missing = [(place, said["action"]) for place, said in untold(platform, record)]
    place, action = missing[0] if missing else (number, last)
    names = sorted({name_of(action, place), f"{action}-{place}"}, key=len)
    if last in BEFORE and (missing or not any((folder / f"{name}.json").is_file() for name in names)):
        if _is_harmed(platform, record.run_id, names):
            return  # it was told: the record that is missing is found below
        yield Disagreement(
            "evidence-not-told",
            record.run_id,
            f"its {action} is recorded in the ledger, and {folder / names[0]}.json is missing",
            Sure.CERTAIN,
            f"`backfill {last} {record.run_id}` writes it, and tells the sinks that were not told",
            partial(_tell_again, platform, record.run_id, last, number),
        )


def _evidence_behind(platform: Platform, record: RunRecord) -> Iterator[Disagreement]:
    """Find what came after the last record of a run: a link, or what another run's change did to its rows."""
    try:
        what = is_behind(platform, record)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, EnvironmentRefused):
        return  # damaged: found as such below
    if what and not _is_harmed(platform, record.run_id):
        yield Disagreement(
            "evidence-behind",
            record.run_id,
            what,
            Sure.CERTAIN,
            "complete its records and their links in the chain",
            partial(_complete, platform, record.run_id),
        )


def _is_harmed(platform: Platform, run_id: str, names: Sequence[str] = ()) -> bool:
    """Whether records of a run (of these names, if any are given) are missing or changed: what they say is not known then."""
    try:
        found = harmed_of(platform, run_id)
    except EnvironmentRefused:
        return True  # the chain cannot be read: found as such below
    return any(not names or one.name in names for one in found)


def _complete(platform: Platform, run_id: str) -> str:
    done = platform.ledger.landed(run_id)
    tell_again(platform, run_id, done[-1].action, len(done))
    catch_up(platform, run_id, MOVED, {"completedBy": "doctor"})
    return "completed the records and their links"


def _tell_again(platform: Platform, run_id: str, action: str, number: int) -> str:
    told = tell_again(platform, run_id, action, number)
    return _done(told is not None, f"told the evidence and the sinks of the {action}")


def _base_tag(view: _View, record: RunRecord) -> Iterator[Disagreement]:
    """Find a published run whose base snapshot nothing protects."""
    if record.state is not RunState.PUBLISHED:
        return
    for tag, base in change_of(view.platform, record, []).base_tags.items():
        reference = view.table.refs().get(tag)
        if view.table.snapshot_by_id(base) is None:
            continue
        if reference is None:
            yield Disagreement(
                "base-tag-missing",
                record.run_id,
                f"no tag {tag} protects snapshot {base} of {view.target.name}, the run's base",
                Sure.CERTAIN,
                "tag the snapshot, so that no expiry takes it",
                partial(_tag_again, view.platform, record.run_id),
            )
        elif reference.snapshot_id != base:
            yield Disagreement(
                "base-tag-moved",
                record.run_id,
                f"tag {tag} of {view.target.name} names snapshot {reference.snapshot_id}, the run's base is {base}",
                Sure.CERTAIN,
                "find out who moved it; a tag of this project is never moved",
            )


def _corrections_left(views: Mapping[str, _View], record: RunRecord) -> Iterator[Disagreement]:
    """Find corrections of a run that is published no more: another program has written their rows into a file of its own.

    They were not the run's files any more when it was taken back, which could not wait for that.
    """
    platform = next(iter(views.values())).platform
    change = change_of(platform, record, [])
    *_, view = (views[name] for name in change.tables)
    if view.name == change.target.name or record.state not in _TAKEN_BACK:
        return
    if view.at_it.get(record.run_id) is not None or change.has_begun(REINSTATE):
        return
    current = view.table.current_snapshot()
    if current is None:
        return
    with readable_metadata(view.table, current):
        scan = view.table.scan(row_filter=EqualTo(term="run_id", value=record.run_id), selected_fields=("run_id",))
        tasks = list(scan.plan_files())
    rows = 0
    with suppress(OSError, ArrowException):  # a file that cannot be read is found as such
        rows = scan.to_arrow().num_rows if tasks else 0
    if rows:
        yield Disagreement(
            "corrections-left",
            record.run_id,
            f"it is {record.state}, and {rows:,} of its corrections are in {view.name} still: another program has written them "
            f"into files of its own: {_some(task.file.file_path for task in tasks)}",
            Sure.CERTAIN,
            f"have that program take the rows whose run_id is {record.run_id} out of {view.name}, and leave files of runs "
            "as they are; nobody waits for it",
        )


_TAKEN_BACK = frozenset({RunState.ROLLED_BACK, RunState.CANCELLED, RunState.REJECTED})
"""States of a run of which nothing is to be seen, although something of it was."""


def _tag_again(platform: Platform, run_id: str) -> str:
    tags = protect_bases(platform, run_id)
    return _done(bool(tags), f"created tag {', '.join(tags)}")


# --- attempts ---------------------------------------------------------------------------------------------------------


def _attempts(platform: Platform) -> Iterator[Disagreement]:
    """Find attempts that are on record as running and are not."""
    for record in _runs(platform):
        yield from _attempts_of(platform, record)


def _attempts_of(platform: Platform, record: RunRecord) -> Iterator[Disagreement]:
    for attempt in platform.ledger.attempts(record.run_id):
        if not attempt.is_running:
            continue
        number = attempt.attempt
        where = f"{record.run_id} attempt {number}"
        if has_ended(attempt):
            yield Disagreement(
                "attempt-of-dead-process",
                where,
                f"it is RUNNING (the run is {record.state}), and its process {attempt.pid} on {attempt.host} is no more",
                Sure.CERTAIN,
                f"record that it ended; `backfill run {record.run_id}` goes on from what is staged",
                partial(_end_attempt, platform, record.run_id, number),
            )
        elif not is_busy(attempt) and attempt.started_at < now() - SILENT_AFTER:
            yield Disagreement(
                "attempt-elsewhere",
                where,
                f"it is RUNNING on {attempt.host} since {attempt.started_at.isoformat(timespec='seconds')}",
                Sure.POSSIBLE,
                f"run `backfill doctor` on {attempt.host}: only there can be seen whether process {attempt.pid} lives",
            )


def _end_attempt(platform: Platform, run_id: str, attempt: int) -> str:
    return _done(
        platform.ledger.repairs.end_attempt(run_id, attempt, PROCESS_ENDED), "recorded as FAILED: " + PROCESS_ENDED
    )


# --- inputs -----------------------------------------------------------------------------------------------------------


def _loads(platform: Platform) -> Iterator[Disagreement]:
    """Find runs that readers see, or may come to see, and that have read a load which was taken back since.

    Nobody is told of one that is rolled back: it is where it should be, and named once it is reinstated.
    """
    looked_at = ({RunState.PUBLISHED} | MAY_BE_SHOWN) - {RunState.ROLLED_BACK}
    records = {one.run_id: one for one in _runs(platform) if one.state in looked_at and Mode(one.mode).publishes}
    pins = {}
    for run_id, record in records.items():
        with suppress(IllegibleRow):  # what looks at its target says so
            pins[run_id] = pinned(platform, record)
    for run_id, table, load in taken_back(platform, pins):
        state = records[run_id].state
        why = f": {visible(load.undone_because)}" if load.undone_because else ""
        yield Disagreement(
            "load-taken-back",
            run_id,
            f"it is {state}, and its plan reads load {load.load_id} of {table}, which {load.undone_by} has taken back{why}",
            Sure.CERTAIN,
            "restate what it has published, or roll it back"
            if state is RunState.PUBLISHED
            else f"`backfill cancel {run_id}`, and plan the change again, under a new run id",
        )


# --- files ------------------------------------------------------------------------------------------------------------


def _staged_files(view: _View, record: RunRecord) -> Iterator[Disagreement]:
    """Find staged chunks of a run that is not published whose files are not what was staged."""
    chunks = [chunk for chunk in view.platform.ledger.chunks(record.run_id) if chunk.state in STAGED]
    expected = {place_of(f.path): (f.bytes, f.rows) for chunk in chunks for f in _files(chunk)}
    wrong, unread = _wrong(view.storage, expected)
    yield from _unread(record.run_id, unread)
    for chunk in chunks:
        why = [wrong[place] for file in _files(chunk) if (place := place_of(file.path)) in wrong]
        if not why:
            continue
        again = record.state is not RunState.VALIDATED
        yield Disagreement(
            "staged-file-damaged",
            f"{record.run_id} chunk {chunk.chunk}",
            f"{chunk.state} in the ledger; {_some(why)}",
            Sure.CERTAIN,
            f"plan the chunk again; `backfill run {record.run_id}` computes it"
            if again
            else f"the run was judged with these files: `backfill cancel {record.run_id}`, and plan it under a new run id",
            partial(_compute_again, view, record, chunk, _some(why)) if again else None,
        )


def _files(chunk: ChunkRecord) -> tuple[StagedFile, ...]:
    """Return the computed and the derived files of a chunk."""
    return (*chunk.files, *chunk.derived)


def _compute_again(view: _View, record: RunRecord, chunk: ChunkRecord, why: str) -> str:
    changed = view.platform.ledger.repairs.plan_again(record.run_id, chunk, f"doctor: {why}", operator())
    return _done(changed, f"chunk {chunk.chunk} is PLANNED again")


def _lost_files(view: _View) -> Iterator[Disagreement]:
    """Find files that snapshots of the table reference and that are not there any more, or not readable."""
    damages: list[UnreadableMetadata] = []
    current = view.table.current_snapshot()
    now_seen = referenced(view.table, {current.snapshot_id}, damages=damages) if current else None
    everything = referenced(view.table, damages=damages)
    by_file: dict[str, UnreadableMetadata] = {}
    for damage in damages:  # of main and of every snapshot: each file once
        by_file.setdefault(damage.problems[0].fix, damage)
    yield from (_lost(view.name, damage) for damage in by_file.values())
    visible = now_seen.files if now_seen else {}
    wrong, unread = _wrong(view.storage, visible)
    yield from _unread(view.name, unread)
    earlier = {path: size for path, size in everything.files.items() if path not in visible}
    older, _ = _wrong(view.storage, earlier, footers=False)
    holders = view.platform.ledger.accepted(view.target.name)
    owners = _owners(view, frozenset(holders.values()))
    by_run: dict[str, list[str]] = defaultdict(list)
    for path, why in sorted(wrong.items()):
        run_id, chunk = owners.get(path, ("", ""))
        by_run[run_id].append(f"{why} (chunk {chunk})" if chunk else why)
    for run_id, whys in by_run.items():
        yield Disagreement(
            "DATA-LOSS",
            f"{view.name} {f'run {run_id}' if run_id else 'files of no accepted run'}",
            f"DATA LOSS: readers of main meet {len(whys)} damaged file(s): {_some(whys)}",
            Sure.CERTAIN,
            "restore the files from a backup, byte by byte; if there is none, restate the chunks with a new run",
        )
    if older:
        yield Disagreement(
            "DATA-LOSS",
            f"{view.name} older snapshots",
            f"DATA LOSS: {len(older)} file(s) that only older snapshots reference are damaged: {_some(older.values())}",
            Sure.CERTAIN,
            "restore the files from a backup: without them a rollback, and queries of the past, fail",
        )


def _lost(where: str, refusal: UnreadableMetadata) -> Disagreement:
    (problem,) = refusal.problems
    return Disagreement("DATA-LOSS", where, problem.what, Sure.CERTAIN, problem.fix)


def _damaged(where: str, refusal: UnreadableMetadata) -> Disagreement:
    (problem,) = refusal.problems
    return Disagreement("metadata-damaged", where, problem.what, Sure.CERTAIN, problem.fix)


def _owners(view: _View, run_ids: frozenset[str]) -> dict[str, tuple[str, str]]:
    """Return run and chunk of each staged file of runs, by place."""
    return {
        place_of(file.path): (run_id, chunk.chunk)
        for run_id in sorted(run_ids)
        for chunk in view.platform.ledger.chunks(run_id)
        for file in _files(chunk)
    }


def _wrong(
    storage: Storage, expected: Mapping[str, tuple[int, int]], *, footers: bool = True
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what is wrong with files of known bytes and rows, by place; and what could not be read just now."""
    found = storage.look(expected)
    wrong: dict[str, str] = {}
    unread: dict[str, str] = {}
    whole = []
    for path, (size, _) in expected.items():
        if path not in found:
            wrong[path] = f"{path} is missing"
        elif found[path].bytes != size:
            wrong[path] = f"{path} has {found[path].bytes:,} bytes, not {size:,}"
        elif footers:
            whole.append(path)

    def judge(path: str) -> str | None:
        try:
            rows = storage.rows(path)
        except FileNotFoundError:
            return f"{path} is missing"
        except ArrowException as error:  # of what was read: an error of reading is the system's
            return f"{path} cannot be read: {type(error).__name__}: {error}"
        except OSError as error:
            unread[path] = f"{path} could not be read just now: {type(error).__name__}: {error}"
            return None
        return None if rows == expected[path][1] else f"{path} has {rows:,} rows, not {expected[path][1]:,}"

    with ThreadPoolExecutor(_READERS) as pool:
        wrong |= {path: why for path, why in zip(whole, pool.map(judge, whole), strict=True) if why is not None}
    return wrong, unread


def _unread(where: str, whys: Mapping[str, str]) -> Iterator[Disagreement]:
    """Report files of which nothing is known: no proof of damage, and no repair."""
    if whys:
        yield Disagreement(
            "file-unreadable",
            where,
            f"{len(whys)} file(s): {_some(whys.values())}",
            Sure.POSSIBLE,
            "look again when the storage can be read; if it stays so, find out why it cannot",
        )


def _accepted_files(view: _View) -> Iterator[Disagreement]:
    """Find chunks whose files in the table are not those of the run that the ledger holds as accepted."""
    holders = view.platform.ledger.accepted(view.target.name)
    accepted = set(holders.values())
    merges = {record.run_id: record.plan.merge is not None for record in view.runs if record.run_id in accepted}
    expected: dict[str, set[str]] = {}
    for run_id in sorted(accepted):
        for chunk in view.platform.ledger.chunks(run_id):
            if holders.get(chunk.chunk) == run_id:
                files = chunk.derived if merges.get(run_id) else chunk.files
                expected[chunk.chunk] = {place_of(file.path) for file in files}
    present, deleted_from = _files_by_chunk(view, holders)
    if deleted_from:
        yield Disagreement(
            "rows-deleted",
            view.target.name,
            f"delete files take rows out of {len(deleted_from)} data file(s): {_some(deleted_from)}",
            Sure.CERTAIN,
            "no run writes delete files: find out who does, compact the table, and restate the chunks",
        )
    changing = {chunk.key for one in view.runs if one.run_id in view.at_it for chunk in one.plan.chunks}
    for key, run_id in sorted(holders.items()):
        if run_id not in merges or key in changing:
            continue  # of a run that is not there, the history is reported; whose chunks they are is being changed
        here = present.get(key, set())
        missing = sorted(expected.get(key, set()) - here)
        extra = (
            sorted(here - expected.get(key, set())) if not merges[run_id] else []
        )  # a merge leaves the files it does not touch
        if missing or extra:
            changes = [f"- {path}" for path in missing] + [f"+ {path}" for path in extra]
            yield Disagreement(
                "accepted-files-differ",
                f"{view.target.name} chunk {key}",
                f"the ledger has it accepted from run {run_id}; the table lacks {len(missing)} of the run's files and "
                f"holds {len(extra)} others: {_some(changes)}",
                Sure.CERTAIN,
                "see who wrote the table's snapshots since, and restate the chunk with a new run",
            )


def _files_by_chunk(view: _View, keys: Iterable[str]) -> tuple[dict[str, set[str]], list[str]]:
    """Return the places of the current data files by those of `keys` whose days they may hold, and those with deletes."""
    chunks = _Chunks(view.target.chunking, keys)
    column = column_of(view.table, view.target.day_column)
    if not isinstance(column.field_type, DateType):
        raise wrong_type(view.table, column, "a date")
    present: dict[str, set[str]] = defaultdict(set)
    deleted_from = []
    for task in _current_files(view.table):
        path = place_of(task.file.file_path)
        if task.delete_files:
            deleted_from.append(path)
        days = _days_of(view, task.file, column.field_id, column.field_type)
        for chunk in () if days is None else chunks.between(*days):
            present[chunk].add(path)
    return present, sorted(deleted_from)


def _current_files(table: Table) -> list[FileScanTask]:
    current = table.current_snapshot()
    if current is None:
        return []
    with readable_metadata(table, current):
        return list(table.scan().plan_files())


class _Chunks:
    """Chunks in the order of their days, to be asked which of them a span of days touches."""

    def __init__(self, chunking: Chunking, keys: Iterable[str]) -> None:
        found = {}
        for key in sorted(keys):
            with suppress(
                InputRefused
            ):  # no chunk: somebody has written it into the ledger, and the journal names the cell
                found[key] = first_day(chunking, key)
        self._keys, self._first = list(found), list(found.values())
        self._last = [last_day(chunking, first) for first in self._first]

    def between(self, first: date, last: date) -> list[str]:
        """Return the keys of those that have one of these days."""
        return self._keys[bisect_left(self._last, first) : bisect_right(self._first, last)]


def _days_of(view: _View, file: DataFile, field_id: int, kind: Any) -> tuple[date, date] | None:
    """Return the first and the last day that a file may hold; None where its manifest does not say."""
    low, high = (file.lower_bounds or {}).get(field_id), (file.upper_bounds or {}).get(field_id)
    if low is None or high is None:
        return None
    with readable_bounds(view.table):
        first, last = (date(1970, 1, 1) + timedelta(days=int(from_bytes(kind, bound))) for bound in (low, high))
    return first, last


# --- evidence, leases, freezes, clock ---------------------------------------------------------------------------------


def _evidence(platform: Platform) -> Iterator[Disagreement]:
    """Find published runs whose sealed evidence is missing, changed, or another than the one they were published with."""
    for record in _runs(platform):
        if record.state not in WAS_PUBLISHED:
            continue
        recorded = {
            entry.evidence_root
            for entry in platform.ledger.publications(record.run_id)
            if entry.has_landed and entry.evidence_root
        }
        try:
            root, strange = platform.evidence.verify(record.run_id), planted(platform, record)
        except (UnreadableMetadata, LedgerLocked):
            continue  # of a table, found as such; or somebody writes the ledger, and may be about to link a record
        except Refused as refusal:
            yield Disagreement(
                "evidence-damaged", record.run_id, refusal.problems[0].what, Sure.CERTAIN, refusal.problems[0].fix
            )
            continue
        except OSError as error:
            yield Disagreement(
                "evidence-damaged",
                record.run_id,
                f"its evidence cannot be read: {error}",
                Sure.CERTAIN,
                "make the evidence folder readable, or restore it",
            )
            continue
        for name in sorted(one for one in strange if not _is_harmed(platform, record.run_id, [one])):
            yield Disagreement(
                "record-planted",
                record.run_id,
                f"record {name} has no link in the chain, and says other things than the ledger's rows do",
                Sure.CERTAIN,
                f"move {platform.evidence.records(record.run_id) / name}.json out of the folder, keep it, and find out who has "
                "put it there",
            )
        if recorded and root not in recorded:
            yield Disagreement(
                "evidence-replaced",
                record.run_id,
                f"its bundle has the root {root}; the ledger has {', '.join(sorted(recorded))}",
                Sure.CERTAIN,
                f"the bundle was made anew by somebody: compare with {EVIDENCE_PROPERTY} in the target's history",
            )


def _records(platform: Platform) -> Iterator[Disagreement]:
    """Find records of any run that are missing, or are not as the chain vouches for them. Nothing can make them again."""
    chain = platform.evidence.chain.read()
    damaged = {one.name for one in chain.damages}
    links = (link.content for link in chain.links if f"{link.number:08}.json" not in damaged)
    found = harmed(platform, links)
    for one in found:
        where = f"{one.run_id} record {one.name}"
        yield Disagreement("record-damaged", where, one.what, Sure.CERTAIN, one.fix)
    named = {one.file for one in found}
    for record in _runs(platform):
        for file in sorted(set(platform.evidence.records(record.run_id).glob("*.json")) - named):
            try:
                open_kept(file).close()
            except FileNotFoundError:
                continue
            except EnvironmentRefused as refusal:
                where = f"{record.run_id} record {visible(file.stem)}"
                yield Disagreement("record-damaged", where, refusal.problems[0].what, Sure.CERTAIN, _UNREADABLE)


_UNREADABLE = (
    "nothing is recorded of the run past it: find out who has put it there, move it out of the folder if no link of the chain "
    "vouches for it, and put back the file that belongs there"
)


def _diffs(platform: Platform) -> Iterator[Disagreement]:
    """Find publications whose diff is to be kept and is not: their process ended before it was made, or could not make it."""
    for record in _runs(platform):
        try:
            missing = due(platform, record) and not _just_published(platform, record.run_id)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, EnvironmentRefused):
            continue  # damaged evidence: found as such
        if missing and not _is_harmed(platform, record.run_id):
            yield Disagreement(
                "diff-missing",
                record.run_id,
                "it is published, and the diff that is kept of each publication is not on record",
                Sure.CERTAIN,
                "have its rows compared; nothing is published again, and readers see what they see",
                partial(_keep_diff, platform, record.run_id),
            )


def _just_published(platform: Platform, run_id: str) -> bool:
    """Whether the process that has published a run may be comparing its rows."""
    done = [one.landed_at for one in platform.ledger.landed(run_id)]
    return bool(done) and now() - max(done) < COMPARING


def _keep_diff(platform: Platform, run_id: str) -> str:
    return _done(keep_diff(platform, run_id) is not None, "made its diff and put it on record")


def _journal(platform: Platform) -> Iterator[Disagreement]:
    """Find what the ledger's journal cannot explain. No repair takes it over: who has changed it, and why, is for people."""
    chain = platform.evidence.chain.read()
    links = chain.links
    for damage in chain.damages:
        yield Disagreement(
            "chain-damaged",
            f"chain {damage.name}",
            f"{damage.what}: {damage.found}",
            Sure.CERTAIN,
            f"find out who has changed it; put back what belongs there, from a backup of {platform.evidence.chain.folder}",
        )
    with platform.ledger.reading() as moment:  # one moment of journal and rows
        journal = moment.explain(links)
        wrong = [("journal-damaged", one) for one in journal.damages]
        for run_id in sorted({*journal.runs, *moment.run_ids(), INSTALLATION}):
            wrong += [("changed-by-hand", one) for one in moment.unexplained(journal, run_id)]
        wrong += [("changed-by-hand", one) for one in moment.of_nobody(journal)]
    for kind, one in wrong:
        yield Disagreement(
            kind,
            one.where,
            one.what,
            Sure.CERTAIN,
            "find out who has changed it; put back what `backfill verify` says was there, or the ledger from its backup",
        )
    if journal.length > journal.linked and not _is_linked_soon(platform, journal.length, links):
        yield Disagreement(
            "journal-unlinked",
            f"ledger journal {journal.linked + 1}",
            "has no link in the chain: a process ended before it could append it",
            Sure.CERTAIN,
            "append it: what the journal explains is vouched for, nothing else",
            lambda: _done(platform.ledger.journal.catch_up(), "appended the link"),
        )


def _is_linked_soon(platform: Platform, entry: int, links: Sequence[Link]) -> bool:
    """Whether a link of an entry comes within a moment: it is appended once the transaction is over."""
    time.sleep(_AGAIN_SECONDS)
    since = links[-1].number if links else 0
    said = [one for one in platform.evidence.chain.contents(since=since) if one.get("event") == journals.EVENT]
    return any(isinstance(told := one.get("entry"), int) and told >= entry for one in said)


def _leases(platform: Platform) -> Iterator[Disagreement]:
    for number, (what, is_open) in platform.ledger.repairs.illegible_leases().items():
        yield Disagreement(
            "lease-damaged",
            f"lease {number}",
            what,
            Sure.CERTAIN,
            f"find out who has changed it; {_END_LEASE}"
            if is_open
            else "find out who has changed it, and put back what was there; it has ended, and holds nobody up",
            partial(_lose_lease, platform, number) if is_open else None,
        )
    longest = now() + timedelta(seconds=platform.settings.lease_seconds) + _CLOCKS_APART
    for held in platform.ledger.repairs.open_leases():
        if held.expires_at > longest:
            yield Disagreement(
                "lease-too-long",
                f"{held.target} lease {held.id}",
                f"run {held.run_id} holds {held.start_day} to {held.end_day} until "
                f"{held.expires_at.isoformat(timespec='seconds')} ({held.host}, process {held.pid}); a lease lasts "
                f"{platform.settings.lease_seconds} s, unless its holder asks for more",
                Sure.LIKELY,
                "its process lives, and ends it; where a clock was ahead and was put right, leases last until then"
                if is_busy(held)
                else f"find out who has written it, and that no such process lives; {_END_LEASE}",
                None if is_busy(held) else partial(_lose_lease, platform, held.id),
            )
        if held.expires_at < now():
            yield Disagreement(
                "lease-expired",
                f"{held.target} lease {held.id}",
                f"run {held.run_id} held {held.start_day} to {held.end_day} until "
                f"{held.expires_at.isoformat(timespec='seconds')} ({held.host}, process {held.pid}) "
                "and did not give it back",
                Sure.LIKELY,
                f"nothing: it no longer holds anybody up; see what became of run {held.run_id}",
            )


_END_LEASE = "ending it harms nothing: whoever takes its days next fences it, so that nothing lands under it any more"


def _lose_lease(platform: Platform, token: int) -> str:
    return _done(platform.ledger.repairs.lose_lease(token), "ended as lost: whoever takes its days next fences it")


def _freezes(platform: Platform) -> Iterator[Disagreement]:
    for freeze in platform.ledger.repairs.open_freezes():
        if freeze.until_at < now():
            yield Disagreement(
                "freeze-over",
                f"{freeze.target} freeze {freeze.id}",
                f"run {freeze.run_id} froze {freeze.start_day} to {freeze.end_day} until "
                f"{freeze.until_at.isoformat(timespec='seconds')}, and it is not ended",
                Sure.CERTAIN,
                "end it",
                partial(_end_freeze, platform, freeze.id),
            )


def _end_freeze(platform: Platform, freeze: int) -> str:
    return _done(platform.ledger.repairs.end_freeze(freeze, now()), "ended")


def _clock(platform: Platform) -> Iterator[Disagreement]:
    here = now()
    ahead = {name: at for name, at in platform.ledger.repairs.newest_instants().items() if at > here + CLOCK_TOLERANCE}
    if ahead:
        name, at = max(ahead.items(), key=lambda item: item[1])
        yield Disagreement(
            "clock-behind",
            socket.gethostname(),
            f"the ledger has records of {at.isoformat(timespec='seconds')} ({name}); this machine's clock says "
            f"{here.isoformat(timespec='seconds')}",
            Sure.CERTAIN,
            "correct this machine's clock, or find the machine whose clock was ahead; leases and retention depend on it",
        )


def _some(items: Iterable[str]) -> str:
    shown = list(items)
    return "; ".join(shown[:_SHOWN]) + (f"; and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "")


def _done(changed: bool, text: str) -> str:
    return text if changed else "it had changed meanwhile: nothing was done"
