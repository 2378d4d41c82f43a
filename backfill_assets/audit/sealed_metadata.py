"""The current metadata of a run's tables, held against what was sealed: tables, snapshots, their files, main, and versions.

Put here what is compared between what a run's evidence has of its tables (`evidence.seals`) and what the catalog's metadata says
now; everything is read anew and by hand. Columns are `sealed_columns`', the log and where new files go `table_metadata`'s, which
files readers get `accepted_files`'. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from backfill_assets.audit.findings import REPAIR, Report, World
from backfill_assets.audit.run_in_table import effects_on
from backfill_assets.audit.sealed_columns import check_columns
from backfill_assets.audit.table_metadata import check_log, check_numbers, check_refs, check_writing
from backfill_assets.evidence.seals import Sealed
from manifests.lifecycle import ACCEPT, REINSTATE, ROLLBACK
from manifests.model import Acceptance
from resources.lakehouse.facade import RUN_PROPERTY
from resources.lakehouse.lineage import withdrawn
from resources.lakehouse.snapshots import Seen, spec_facts, summary_facts

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def check_metadata(world: World, sealed: Sealed, report: Report) -> None:
    """Hold the current metadata of a run's tables against what was sealed: columns, specs, snapshots, files and branches."""
    said: set[str] = set()
    for name, facts in sealed.tables.items():
        if (seen := world.seen(name)) is not None:
            _same_table(seen, sealed, facts, report, said)
    for commit in sealed.commits:
        seen = world.seen(str(commit["table"]))
        if seen is None:
            continue
        _same_table(seen, sealed, commit, report, said)
        _same_snapshot(world, seen, commit, report)
    if sealed.is_whole and {one["snapshot_id"] for one in sealed.changes} - {
        one["snapshotId"] for one in sealed.commits
    }:
        report.notes.append(
            "published by a version of this project that did not seal columns and metadata files: they are held against "
            "the ledger's files, and with --data against the files' own columns"
        )
    changed = dict.fromkeys([sealed.table, *sealed.tables])
    for table in filter(None, map(world.seen, changed)):
        check_log(table, sealed, report)
        check_numbers(table, report)
    for table in filter(None, map(world.seen, dict.fromkeys([*changed, sealed.target.name]))):
        check_refs(table, sealed, report)
    _pinned_schemas(world, sealed, report)
    if (seen := world.seen(sealed.table)) is not None:
        _on_main(seen, sealed, report)
        _claims(world, seen, sealed, report)
        _version(world, seen, sealed, report)


def _pinned_schemas(world: World, sealed: Sealed, report: Report) -> None:
    """Say which schemas that the plan pins are gone: an expiry may take away what no snapshot needs, and nobody reads by it then."""
    for pin in sealed.plan.get("schemas", ()):
        seen = world.seen(str(pin["table"]))
        if seen is not None and pin["schema_id"] not in {one.schema_id for one in seen.table.metadata.schemas}:
            report.notes.append(f"schema {pin['schema_id']} of {seen.name}, which its plan pins, is gone")


def _same_table(seen: Seen, sealed: Sealed, facts: Mapping[str, Any], report: Report, said: set[str]) -> None:
    def add(where: str, what: str, expected: Any, found: Any) -> None:
        if where not in said:  # bundle and records say it of the same table
            said.add(where)
            report.add(where, what, expected, found)

    metadata = seen.table.metadata
    if str(metadata.table_uuid) != facts["uuid"]:
        add(f"{seen.name} uuid", "is another table than the one that was published", facts["uuid"], metadata.table_uuid)
    check_columns(seen, facts, add, sealed.is_renamed)
    specs = spec_facts(seen.table)
    for number, fields in facts["specs"].items():
        if specs.get(number) != fields:
            what = "is not the one that was sealed: files are looked for by it"
            add(f"{seen.name} partition spec {number}", what, fields, specs.get(number, "nothing"))
    check_writing(seen, facts, add)


def _same_snapshot(world: World, seen: Seen, commit: Mapping[str, Any], report: Report) -> None:
    """Hold a snapshot, and the files that say what is in it, against what was kept when it was committed."""
    where = f"{seen.name} snapshot {commit['snapshotId']}"
    snapshot = seen.by_id.get(commit["snapshotId"])
    listed = commit["manifestList"]
    if snapshot is None:
        world.gone(where, _EPOCH + timedelta(milliseconds=commit["at"]))
        in_use = {one.manifest_path for one in seen.manifests}
        _same_files(seen, [one for one in commit["manifests"] if one["path"] in in_use], "manifest", report)
        return
    if snapshot.timestamp_ms != commit["at"]:
        report.add(f"{where} time", "is not when it was committed", commit["at"], snapshot.timestamp_ms)
    if snapshot.sequence_number != commit["sequence"]:
        report.add(f"{where} sequence number", "is not its own", commit["sequence"], snapshot.sequence_number)
    if snapshot.schema_id != commit["snapshotSchemaId"]:
        report.add(f"{where} schema", "is not its own", commit["snapshotSchemaId"], snapshot.schema_id)
    parent = commit["parentId"]
    if snapshot.parent_snapshot_id != parent and (snapshot.parent_snapshot_id is not None or parent in seen.by_id):
        report.add(f"{where} parent", "is not the snapshot that it followed", parent, snapshot.parent_snapshot_id)
    summary = summary_facts(snapshot)
    for key in sorted(summary.keys() | commit["summary"].keys()):
        if summary.get(key) != commit["summary"].get(key):
            what = "is not what was committed"
            report.add(f"{where} summary {key}", what, commit["summary"].get(key), summary.get(key))
    if snapshot.manifest_list != listed["path"]:
        report.add(f"{where} manifest list", "is another file", listed["path"], snapshot.manifest_list)
    _same_files(seen, [listed], "manifest list", report)
    _same_files(seen, commit["manifests"], "manifest", report)
    _same_files(seen, [commit["metadata"]], "metadata file", report, may_go=True)


def _same_files(
    seen: Seen, files: Iterable[Mapping[str, Any]], kind: str, report: Report, *, may_go: bool = False
) -> None:
    for file in files:
        found = seen.sha256(file["path"])
        if found == file["sha256"] or (found is None and may_go):
            continue
        what = "was changed after it was committed" if found else "is missing, and the metadata needs it"
        shown = f"SHA-256 {found}" if found else "nothing"
        report.add(f"{seen.name} {kind} {file['path']}", what, f"SHA-256 {file['sha256']}", shown)


def _on_main(seen: Seen, sealed: Sealed, report: Report) -> None:
    """Require that main's history has every snapshot of the run that main was ever made to show."""
    main = None if seen.main is None else seen.main.snapshot_id
    if seen.named_main != main:
        where = f"{seen.name} main"
        report.add(where, "is named by the branch and by the metadata as two snapshots", seen.named_main, main)
    if sealed.plan.get("acceptance") == Acceptance.LATER and not any(one["action"] == ACCEPT for one in sealed.changes):
        return  # under its version's name only
    oldest = next(reversed(seen.lineage.values()), None)
    for entry in sealed.changes:
        snapshot = seen.by_id.get(entry["snapshot_id"])
        if snapshot is None or snapshot.snapshot_id in seen.lineage:
            continue
        if oldest is not None and (snapshot.sequence_number or 0) < (oldest.sequence_number or 0):
            continue  # an expiry has cut the links there
        what = f"does not have the {entry['action']} of '{sealed.run_id}' in its history: readers get an older state"
        report.add(f"{seen.name} main", what, snapshot.snapshot_id, main)


def _claims(world: World, seen: Seen, sealed: Sealed, report: Report) -> None:
    """Require that each snapshot of main's history that says it is the run's is on record."""
    recorded = {one["snapshot_id"] for one in sealed.changes}
    recorded |= {one["snapshotId"] for one in sealed.commits}
    claimed = {
        number: one
        for number, one in seen.lineage.items()
        if number not in recorded
        and one.summary
        and one.summary.additional_properties.get(RUN_PROPERTY) == sealed.run_id
    }
    explained = {one.snapshot_id for one in effects_on(world, seen, sealed)} if claimed else set()
    for number, snapshot in claimed.items():
        if number in explained:
            continue  # said of the ledger's entry
        what = (
            f"says that it is of '{sealed.run_id}', and by the evidence that never committed it: somebody else wrote it, "
            f"or a process ended before it could record it; {REPAIR}, if the ledger's rows say the same"
        )
        report.add(f"{seen.name} snapshot {number}", what, "no such snapshot", summary_facts(snapshot))


def _version(world: World, seen: Seen, sealed: Sealed, report: Report) -> None:
    """Require that the name of a version names what was published under it."""
    version = sealed.plan.get("version")
    if not version or not sealed.changes:
        return
    shown = [one for one in sealed.changes if one["action"] != ACCEPT]
    is_withdrawn = shown[-1]["action"] == ROLLBACK
    name = withdrawn(version) if is_withdrawn else version
    published = next(one["snapshot_id"] for one in shown if one["action"] not in {ROLLBACK, REINSTATE})
    refs = {name: ref.snapshot_id for name, ref in seen.table.refs().items()}
    found = refs.get(name)
    if found != published:
        other = version if is_withdrawn else withdrawn(version)
        if refs.get(other) == published and any(one.run_id == sealed.run_id for one in world.intents()):
            return  # it is just being given its other name
        what = f"does not name the snapshot of '{sealed.run_id}'"
        report.add(f"{seen.name} version {name}", what, published, "nothing" if found is None else found)
