"""The order of the records that change a run's rows: which have a link, which are due without one, and which were planted.

Put here what a record has to follow from, and what it may say, where its process ended before it could append the link. How a
record is written and linked is `record_writing`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from backfill_assets.evidence.bundles import ALL_TABLES, bundle_in_use, root_of
from backfill_assets.evidence.events import ACTIONS, ADOPTED, EVENTS
from backfill_assets.evidence.records import OF_A_CHANGE, Record, is_linked, kept_rows, records_of, vouched_for
from backfill_assets.evidence.seals import COMMITTED, adopted_commits, commits_of
from backfill_assets.installation import Platform
from manifests.lifecycle import ACCEPT, WAS_PUBLISHED, PublicationState
from resources.ledger.facade import RunRecord
from resources.ledger.moments import Moment
from resources.ledger.rows import MOVING, Difference, Row, Rows, differences, fold, hashes_of

_SAID = frozenset(
    {"event", "run_id", "number", "bundle", "evidence_root", "follows", "at", "rows", "tables", "beside", COMMITTED}
)
"""What every record says that changes rows."""
_FACTS = frozenset({"action", "by", "completedBy", "why"})
"""What the record of an event beside a change may say of it."""
_AS_COMMITTED = (
    "snapshotId",
    "parentId",
    "sequence",
    "at",
    "snapshotSchemaId",
    "summary",
    "manifestList",
    "manifests",
)
"""What is kept of a snapshot and never changes again, whatever is committed to its table afterwards."""
_UNNUMBERED = 2
"""How many changes of a run are recorded under the action's name alone."""


def in_order(
    platform: Platform, moment: Moment, run_id: str, records: Sequence[Record]
) -> tuple[list[Record], list[Record]]:
    """Return the records of a run that change rows: those that have a link, and those whose process ended before it.

    Of the second each goes on from the one before, and says what the ledger's rows say. What is neither was planted: nothing
    goes on from it, and no link is made for it.
    """
    numbered = [one for one in records if one.number]
    linked = [one for one in numbered if is_linked(platform, run_id, one)]
    late: list[Record] = []
    for one in numbered:
        if one not in linked and _is_due(platform, moment, run_id, [*linked, *late], records, one):
            late.append(one)
    return linked, late


def planted(platform: Platform, record: RunRecord) -> list[str]:
    """Return the names of the records of a published run that say they change rows and were never due."""
    if record.state not in WAS_PUBLISHED or not platform.evidence.bundles(record.run_id):
        return []
    records = records_of(platform, record.run_id)
    claim = [one for one in records if one.number or one.wrong]
    if all(is_linked(platform, record.run_id, one) for one in claim):
        return []
    with platform.ledger.holding(record.target) as moment:
        linked, late = in_order(platform, moment, record.run_id, records)
    known = [*linked, *late]
    return [
        one.name for one in claim if one not in known and not (one.wrong and is_linked(platform, record.run_id, one))
    ]


def _is_due(
    platform: Platform,
    moment: Moment,
    run_id: str,
    before: Sequence[Record],
    records: Sequence[Record],
    one: Record,
) -> bool:
    """Whether a record without a link is the next one: what it says follows from those before it and from the ledger's rows."""
    try:
        return _follows_from(platform, moment, run_id, before, records, one)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False  # this project does not write what cannot even be compared


def _follows_from(
    platform: Platform,
    moment: Moment,
    run_id: str,
    before: Sequence[Record],
    records: Sequence[Record],
    one: Record,
) -> bool:
    store, said, is_first = platform.evidence, one.content, not before
    bundle, changes, follows = bundle_in_use(platform, run_id), one.content["rows"], one.content["follows"]
    kept = kept_rows(bundle, before, None if is_first else sorted(MOVING))
    adopts = kept is None and is_first and said["event"] == ADOPTED
    if (kept is None and not adopts) or not _is_rows(changes, ALL_TABLES if adopts else MOVING):
        return False
    after: Rows = {table: {key: dict(row) for key, row in found.items()} for table, found in (kept or {}).items()}
    fold(after, changes)
    here = moment.rows_of(run_id, None if adopts else sorted(MOVING))
    touched = {(table, key) for table, rows in changes.items() for key in rows}
    journal = moment.explain_run(run_id)
    by_hand = {(bad.table, bad.key) for bad in moment.unexplained(journal, run_id, here)}
    then, now = ({name: rows.get(name, {}) for name in here} for rows in (kept or after, after))
    unlawful = {(bad.table, bad.key) for bad in [*differences(then, now), *differences(now, here)] if not bad.lawful}
    hashes = (dict(before[-1].content.get("tables", {})) if before else {}) | hashes_of(after)
    beside = {other.name: other.hash for other in vouched_for(platform, run_id, records)}
    told = (one.number, said.get("run_id"), said.get("bundle"), said.get("evidence_root"), said.get("at"))
    return (
        told
        == (len(before) + 1, run_id, bundle.name, root_of(bundle), newest_instant(changes) or newest_instant(after))
        and isinstance(follows, int)
        and 0 <= follows <= store.chain.length()
        and touched.isdisjoint(by_hand | unlawful)
        and _are_in(said.get("tables"), hashes)
        and _are_in(said.get("beside"), beside)
        and _says_what_happened(one, here["publications"], has_changes=bool(touched))
        and _says_what_was_committed(platform, run_id, one, after, of_earlier_version=run_id in journal.adopted)
    )


def _is_rows(changes: Any, tables: Collection[str]) -> bool:
    """Whether what a record gives as its changes has the form of cells by column, by key, by table."""
    return isinstance(changes, dict) and all(
        table in tables and isinstance(rows, dict) and all(isinstance(cells, dict) for cells in rows.values())
        for table, rows in changes.items()
    )


def _are_in(said: Any, known: Mapping[str, str]) -> bool:
    return isinstance(said, dict) and said.items() <= known.items()


def _says_what_happened(one: Record, entries: Mapping[str, Row], *, has_changes: bool) -> bool:
    """Whether the facts of a record are those of a change that the ledger has, or of an event beside one."""
    said, event = one.content, str(one.content["event"])
    if not isinstance(said.get("why", ""), str):
        return False
    if event == ADOPTED and one.name != f"{event}-{one.number}":  # with the record of a change, under that one's name
        event = str(said.get("action"))
    if event not in ACTIONS:
        return (
            has_changes
            and event in EVENTS
            and one.name == f"{said['event']}-{one.number}"
            and said.keys() <= _SAID | _FACTS
        )
    committed = [entry for entry in entries.values() if entry["state"] == PublicationState.COMMITTED]
    names = {event, *(f"{event}-{number}" for number in range(1, len(committed) + 1))}
    return (one.name in names and said.keys() <= _SAID | _FACTS | OF_A_CHANGE) and any(
        said.get("action") == entry["action"] == event and all(said.get(name) == entry[name] for name in OF_A_CHANGE)
        for entry in committed
    )


def _says_what_was_committed(
    platform: Platform, run_id: str, one: Record, after: Rows, *, of_earlier_version: bool
) -> bool:
    """Whether a record has of the snapshots that it is about what their tables have of them.

    One that has expired since is not asked. An earlier version of this project kept nothing of them.
    """
    said, event = one.content, str(one.content["event"])
    if event not in {ADOPTED, *ACTIONS}:
        return COMMITTED not in said
    if COMMITTED not in said:
        return of_earlier_version
    if event == ADOPTED:
        there = adopted_commits(platform, after)
    else:
        entries = [entry for entry in after["publications"].values() if entry["state"] == PublicationState.COMMITTED]
        told_of = (event, said["snapshot_id"])
        places = [at for at, one in enumerate(entries, 1) if (one["action"], one["snapshot_id"]) == told_of]
        number = next((at for at in places if one.name in {name_of(event, at), f"{event}-{at}"}), places[0])
        there = commits_of(platform, platform.ledger.run(run_id), event, number, said["snapshot_id"])
    known = {(facts["table"], facts["snapshotId"]) for facts in there}
    told = [facts for facts in said[COMMITTED] if (facts["table"], facts["snapshotId"]) in known]
    return [_as_committed(facts) for facts in told] == [_as_committed(facts) for facts in there]


def _as_committed(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name in ("table", *_AS_COMMITTED)}


def name_of(action: str, number: int) -> str:
    """Return the name of the record of a run's change; the first two, and an acceptance, go by the action's name alone."""
    return action if number <= _UNNUMBERED or action == ACCEPT else f"{action}-{number}"  # a run is accepted once


def moved_on(moment: Moment, run_id: str, kept: Rows, tables: Collection[str] = MOVING) -> list[Difference]:
    """Return what of tables has lawfully changed since rows were kept, and was changed by a transaction that the journal has.

    What was changed by hand is never taken over, however possible it looks: `verify` and `doctor` name it.
    """
    by_hand = {(one.table, one.key) for one in moment.unexplained(moment.explain_run(run_id), run_id, tables)}
    found = {
        table: {key: row for key, row in rows.items() if (table, key) not in by_hand or key in kept.get(table, {})}
        for table, rows in moment.rows_of(run_id, sorted(tables)).items()
    }
    return [one for one in differences(kept, found) if one.lawful and (one.table, one.key) not in by_hand]


def newest_instant(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the newest instant in rows: when what they say happened."""
    names = ("at", "updated_at", "started_at", "ended_at", "accepted_at")
    cells = (row.get(name) for found in rows.values() for row in found.values() for name in names)
    return max((cell for cell in cells if isinstance(cell, str)), default="")
