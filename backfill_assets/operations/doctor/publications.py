"""Looks at what runs have changed for readers: the ledger's entries against the history of the tables.

Put here changes that landed unrecorded, intents left open, bases without their tag, and corrections that outlived their
run. What the evidence says of a change is `evidence`'s; snapshots of no run are `tables`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from pyiceberg.table.snapshots import Snapshot

from backfill_assets.evidence.collected import collected_snapshots, collections
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement, outcome, some
from backfill_assets.operations.doctor.views import TableView, properties_of
from backfill_assets.planning.compacting import outlived
from backfill_assets.publication.change import Change
from backfill_assets.publication.modes import change_of
from backfill_assets.publication.recording import close_intent, protect_bases, record_landed
from manifests.compaction import COMPACTION
from manifests.errors import EnvironmentRefused
from manifests.lifecycle import ACCEPT, PUBLISH, REINSTATE, ROLLBACK, WITHDRAW, RunState
from resources.lakehouse.exchanges import exchanged
from resources.lakehouse.facade import ACTION_PROPERTY, RUN_PROPERTY, SEQUENCE_PROPERTY
from resources.lakehouse.lineage import withdrawn
from resources.lakehouse.lookups import changed_by
from resources.lakehouse.metadata import count_said
from resources.lakehouse.reads import rows_of_run
from resources.lakehouse.summaries import numbers_said
from resources.ledger.facade import BEFORE, PublicationRecord, RunRecord
from resources.ledger.leases import LeaseRecord

_USUAL_NUMBER = {PUBLISH: 1, ROLLBACK: 2}
"""Of a run's changes that do not say their number."""


@dataclass(frozen=True)
class _Landed:
    """The newest change of a run that a table's history shows; `number` counts the run's changes."""

    action: str
    number: int
    snapshot: Snapshot


def publications_off_the_record(views: Mapping[str, TableView], record: RunRecord) -> Iterator[Disagreement]:
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
    behind = None
    said = numbers_said(view.table, record.run_id, {ROLLBACK, REINSTATE})
    if any(number > len(recorded) + 1 for number, _ in said):
        behind = change_of(platform, record, platform.ledger.chunks(record.run_id)).later(len(recorded) + 1)
    is_unrecorded = landed is not None and landed.number > len(recorded)
    if behind is not None:
        yield _ledger_behind(view, record, *behind)
    elif landed is not None and is_unrecorded:
        held, begun = view.at_it.get(record.run_id), change.has_begun(landed.action)
        yield _unrecorded(view, record, landed, begun=begun) if held is None else _under_way(view, record, landed, held)
    elif landed is None and recorded and record.state is RunState.PUBLISHED and not _is_past(view, record):
        yield _not_in_history(view, record, recorded[-1].snapshot)
    for entry in entries:
        healed_first = behind is None and is_unrecorded and landed is not None and landed.action == entry.action
        if entry.is_intent and behind is not None and behind[0] == ROLLBACK:
            yield _taken_back(platform, record, entry)
        elif entry.is_intent and behind is None and not healed_first:
            later = [one for one in recorded if one.action == entry.action and one.id > entry.id]
            yield _open_intent(platform, record, entry, later[:1])


def _landed(
    view: TableView,
    record: RunRecord,
    change: Change,
    recorded: Sequence[PublicationRecord],
    intended: frozenset[str],
) -> _Landed | None:
    """Return the newest change of a run that readers can see, by main or by the name of its version.

    `intended` are the actions of its open intents: nothing else may have changed the name.
    """
    for snapshot in view.history:
        said = properties_of(snapshot)
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
            if named is None or properties_of(named).get(RUN_PROPERTY) != record.run_id:
                continue
            if by in intended and recorded and BEFORE[by] is record.state:  # it has changed the name, and nothing else
                return _Landed(by, len(recorded) + 1, named)
            return _Landed(PUBLISH, 1, named)
    return None


def _is_past(view: TableView, record: RunRecord) -> bool:
    """Whether a run is a compaction whose files nobody gets any more: like a superseded run it needs nothing kept."""
    return record.kind == COMPACTION and record.run_id in outlived(view.platform, record.target)


def _not_in_history(view: TableView, record: RunRecord, snapshot_id: int) -> Disagreement:
    """Say why the history of a table does not show what a published run has made of it."""
    what = f"its snapshot {snapshot_id} is not in the history of {view.name}"
    fix = "somebody moved or expired the table's history: the run cannot be rolled back; restate its scope"
    evidence = view.platform.evidence
    collected: frozenset[str] = frozenset()
    with suppress(EnvironmentRefused):  # the chain cannot be read: found as such by `journal`
        collected = collected_snapshots(collections(evidence, evidence.chain.contents()))
    if f"{view.name} snapshot {snapshot_id}" in collected:
        what += ": a collection of garbage has removed it, as policy allows of a run that others have superseded"
        fix = "its rows are what readers see, and nothing is lost; to take them back restate its scope with a new run"
    return Disagreement("publication-not-in-history", record.run_id, what, Confidence.CERTAIN, fix)


def _ledger_behind(view: TableView, record: RunRecord, action: str, shown: Snapshot) -> Disagreement:
    return Disagreement(
        "publication-unrecorded",
        record.run_id,
        f"snapshot {shown.snapshot_id} of {view.name} is its {action}, and the ledger lacks what came before that, too: the "
        "ledger is older than the table",
        Confidence.CERTAIN,
        "restore the newest ledger: nothing of this run is recorded, published or taken back by this one; where it is lost, "
        "restate the run's scope with a new run",
    )


def _taken_back(platform: Platform, record: RunRecord, entry: PublicationRecord) -> Disagreement:
    return Disagreement(
        "intent-left-open",
        f"{record.run_id} publication {entry.id}",
        f"the intent to {entry.action} is open, and the table shows that the run was rolled back since",
        Confidence.CERTAIN,
        "close it as refused: readers see nothing of it; then the run can be cancelled",
        partial(_close_intent, platform, record.run_id, entry.id, entry.action),
    )


def _unrecorded(view: TableView, record: RunRecord, landed: _Landed, *, begun: bool) -> Disagreement:
    action, snapshot = landed.action, landed.snapshot.snapshot_id

    def heal() -> str:
        recorded = record_landed(view.platform, record.run_id, action, landed.number)
        return outcome(recorded is not None, f"recorded the {action} of snapshot {recorded}")

    can = action in BEFORE and record.state is BEFORE[action]
    if can and not begun:
        return Disagreement(
            "publication-unrecorded",
            record.run_id,
            f"snapshot {snapshot} of {view.name} is what its {action} would show; the ledger says {record.state}, and nobody has "
            f"set out to {action} it: another program shows it, or the ledger is older than the table",
            Confidence.CERTAIN,
            f"find out who shows it, and have the table's references put back to what they were; {_DECIDED[action]} where the "
            "ledger came from a backup, restore a newer one",
        )
    return Disagreement(
        "publication-unrecorded",
        record.run_id,
        f"its {action} is snapshot {snapshot} of {view.name}; the ledger says {record.state}",
        Confidence.CERTAIN,
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


def _under_way(view: TableView, record: RunRecord, landed: _Landed, held: LeaseRecord) -> Disagreement:
    return Disagreement(
        "intent-in-doubt",
        record.run_id,
        f"its {landed.action} is under way: it is snapshot {landed.snapshot.snapshot_id} of {view.name}, and process "
        f"{held.pid} on {held.host} is about to record it",
        Confidence.POSSIBLE,
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
            Confidence.CERTAIN,
            "close it, naming the entry that records what happened",
            close,
        )
    if record.state is not before or platform.ledger.repairs.is_given_up(entry):
        return Disagreement(
            "intent-left-open",
            f"{record.run_id} publication {number}",
            f"the intent to {action} is open, nothing landed, and "
            + (f"the run is {record.state}" if record.state is not before else "no process is working on it"),
            Confidence.CERTAIN,
            "close it as refused: it changed nothing",
            close,
        )
    return Disagreement(
        "intent-in-doubt",
        f"{record.run_id} publication {number}",
        f"the intent to {action} since {entry.started_at.isoformat(timespec='seconds')} is open; nothing landed so far",
        Confidence.POSSIBLE,
        f"somebody may be at it; if not, `backfill {action} {record.run_id}` brings it to an end",
    )


def _close_intent(platform: Platform, run_id: str, entry: int, action: str) -> str:
    state = close_intent(platform, run_id, entry, action)
    return outcome(state is not None, f"closed as {str(state).lower()}")


def unprotected_bases(view: TableView, record: RunRecord) -> Iterator[Disagreement]:
    """Find a published run whose base snapshot nothing protects."""
    if record.state is not RunState.PUBLISHED or _is_past(view, record):
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
                Confidence.CERTAIN,
                "tag the snapshot, so that no expiry takes it",
                partial(_tag_again, view.platform, record.run_id),
            )
        elif reference.snapshot_id != base:
            yield Disagreement(
                "base-tag-moved",
                record.run_id,
                f"tag {tag} of {view.target.name} names snapshot {reference.snapshot_id}, the run's base is {base}",
                Confidence.CERTAIN,
                "find out who moved it; a tag of this project is never moved",
            )


def _tag_again(platform: Platform, run_id: str) -> str:
    tags = protect_bases(platform, run_id)
    return outcome(bool(tags), f"created tag {', '.join(tags)}")


def corrections_left(views: Mapping[str, TableView], record: RunRecord) -> Iterator[Disagreement]:
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
    rows, files = rows_of_run(view.table, record.run_id)
    if rows:  # a file that cannot be read is found as such
        yield Disagreement(
            "corrections-left",
            record.run_id,
            f"it is {record.state}, and {rows:,} of its corrections are in {view.name} still: another program has written them "
            f"into files of its own: {some(files)}",
            Confidence.CERTAIN,
            f"have that program take the rows whose run_id is {record.run_id} out of {view.name}, and leave files of runs "
            "as they are; nothing waits for it",
        )


def corrections_missing(views: Mapping[str, TableView], record: RunRecord) -> Iterator[Disagreement]:
    """Find corrections of a published run that were gone or damaged when its change was completed without them."""
    platform = next(iter(views.values())).platform
    change = change_of(platform, record, platform.ledger.chunks(record.run_id))
    *_, table = change.tables
    if table == change.tables[0] or record.state is not RunState.PUBLISHED:
        return
    view, own = views[table], {file.path for file in change.strategy.files(change, table)}
    for snapshot in view.history:
        said = properties_of(snapshot)
        if said.get(RUN_PROPERTY) != record.run_id or said.get(ACTION_PROPERTY) not in {PUBLISH, REINSTATE}:
            continue
        missing = sorted(own - changed_by(view.table, snapshot)[0])
        if missing:
            exchange = exchanged(view.table, snapshot)
            stayed = (exchange.before or frozenset()) - {file.file_path for file in exchange.gone}
            missing = sorted(own - {file.file_path for file in exchange.came} - stayed)
        if missing:
            yield Disagreement(
                "corrections-missing",
                record.run_id,
                f"{len(missing)} file(s) of its corrections were gone or damaged when its {said[ACTION_PROPERTY]} was brought to an end, and "
                f"are not in {table}: {some(missing)}",
                Confidence.CERTAIN,
                "find out what removes or changes staged files; take the run back, and restate its scope with a new run",
            )
        return


_TAKEN_BACK = frozenset({RunState.ROLLED_BACK, RunState.CANCELLED, RunState.REJECTED})
"""States of a run of which nothing is to be seen, although something of it was."""
