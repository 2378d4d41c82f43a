"""What a run has read, and what it left beside its tables, held against the hashes in its evidence.

Put here sources, references, outlines, rows of the exception and audit tables, and the text of the policy. What readers get of
the published tables is said by `sealed_metadata`, `accepted_files` and `published_rows`. Nothing is changed.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table.snapshots import Snapshot

from backfill_assets.audit.findings import Report, World
from backfill_assets.evidence.seals import Sealed
from backfill_assets.installation import Platform
from manifests.further_sources import PinnedSource
from manifests.model import DayRange
from resources.lakehouse.contents import hash_of, proven_sha256, said_of, sha256_at
from resources.lakehouse.facade import before
from resources.lakehouse.scopes import any_of
from resources.lakehouse.snapshots import (
    Entry,
    Seen,
    lineage_from,
    manifests_of,
    schema_facts,
    spec_facts,
    summary_facts,
)
from resources.lakehouse.storage import place_of
from resources.sinks.declared import tables_of


class Inputs:
    """What is read once for all runs: two of them read the same files as a rule."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._hashes: dict[tuple[str, str, bool], tuple[int, str] | None] = {}
        self._audit: dict[str, dict[tuple[str, str], list[str | None]]] = {}

    # --- by metadata --------------------------------------------------------------------------------------------

    def check(self, world: World, sealed: Sealed, report: Report) -> None:
        """Hold the metadata of the pinned inputs, and the policy in the ledger, against what was sealed."""
        for facts in sealed.inputs or ():
            if facts.get("expired") or (seen := world.seen(facts["table"])) is None:
                continue
            where = f"{seen.name} snapshot {facts['snapshotId']}"
            if str(seen.table.metadata.table_uuid) != facts["uuid"]:
                found = seen.table.metadata.table_uuid
                report.add(f"{seen.name} uuid", "is another table than the one that was read", facts["uuid"], found)
            snapshot = seen.by_id.get(facts["snapshotId"])
            if snapshot is None:
                report.notes.append(f"{where}, which it has read, has expired: its input cannot be read again")
                continue
            _same_input(seen, where, facts, report)
        self._policy(sealed, report)

    def _policy(self, sealed: Sealed, report: Report) -> None:
        kept = self._platform.ledger.policies.text(sealed.plan.get("policy"))
        if sealed.policy is not None and kept != sealed.policy:
            where = f"ledger policies {sealed.plan.get('policy')}"
            report.add(where, "is not the text of the policy that decided", sealed.policy, kept or "nothing")

    # --- by content -----------------------------------------------------------------------------------------------

    def read(self, world: World, sealed: Sealed, report: Report, collected: Container[str]) -> None:
        """Read the inputs, and what lies beside the tables, and hold every file against its hash.

        `collected` are the files that collections of garbage on record have removed.
        """
        for facts in sealed.inputs or ():
            if not facts.get("expired") and (seen := world.seen(facts["table"])) is not None:
                self._read_input(seen, sealed, facts, report)
        gone = [self._read_beside(world, sealed, facts, report, collected) for facts in sealed.beside]
        if any(gone):
            report.notes.append(
                f"{sum(gone)} of its outlines were collected, as nothing needs them any more: they cannot be read"
            )
        self._read_audit(world, sealed, report)

    def _read_input(self, seen: Seen, sealed: Sealed, facts: Mapping[str, Any], report: Report) -> None:
        wanted = _read_by(sealed, str(facts["table"]))
        entries = seen.entries_at(facts["snapshotId"], wanted)
        unknown = 0
        for entry in (entries or {}).values():
            unknown += not self._is_hashed(seen, entry, facts["loads"], report)
        if unknown:
            report.notes.append(
                f"{unknown} of {len(entries or ())} file(s) of {seen.name} that it has read were brought by no load on record: "
                "of them the length alone is checked (rows of a target are proved with the runs that published them)"
            )

    def _is_hashed(self, seen: Seen, entry: Entry, loads: Mapping[str, str], report: Report) -> bool:
        """Hold a file against its length and, where its load has hashed it, its hash; return whether it has."""
        where = f"{seen.name} {entry.place}"
        known = (
            hash_of(entry.place, seen.by_id.get(entry.snapshot_id or 0)) if str(entry.snapshot_id) in loads else None
        )
        found = self._hash(seen, entry.file.file_path, known or "")
        if found is None:
            report.add(where, "was read by it, and is missing", "a file", "nothing")
        elif found[0] != entry.file.file_size_in_bytes:
            report.add(where, "was read by it, and has another length", entry.file.file_size_in_bytes, found[0])
        elif known is not None and found[1] != known:
            report.add(where, "was read by it, and was changed", f"SHA-256 {known}", f"SHA-256 {found[1]}")
        return known is not None

    def _hash(self, seen: Seen, path: str, expected: str) -> tuple[int, str] | None:
        """Return the length of a file and its SHA-256 (hex), None where it is missing; read once where no hash is expected of it."""
        place = seen.name, path, bool(expected)
        if place not in self._hashes:
            try:
                length = len(seen.table.io.new_input(path))
                hash_ = proven_sha256(seen.table, path, expected) if expected else sha256_at(seen.table, path)
                self._hashes[place] = length, hash_
            except FileNotFoundError:
                self._hashes[place] = None
        return self._hashes[place]

    def _read_beside(
        self, world: World, sealed: Sealed, facts: Mapping[str, Any], report: Report, collected: Container[str]
    ) -> bool:
        """Hold a file against its hash; return whether it was lawfully removed."""
        seen = world.seen(str(facts.get("table", sealed.target.name)))
        if seen is None:
            return False
        where, expected = f"{facts['kind']} {facts['path']}", f"SHA-256 {facts['sha256']}"
        found = self._hash(seen, facts["path"], facts["sha256"])
        if found is None and place_of(facts["path"]) in collected:
            return True
        if found is None:
            report.add(where, "is missing, and no collection of garbage on record has removed it", expected, "nothing")
        elif found[1] != facts["sha256"]:
            report.add(where, "was changed after it was sealed", expected, f"SHA-256 {found[1]}")
        return False

    def _read_audit(self, world: World, sealed: Sealed, report: Report) -> None:
        """Require that a sink's table has a row of each action that it was told of, which says what was committed."""
        tables = tables_of(self._platform.products.sinks.values())
        sent = {
            (table, str(one["action"]))
            for one in sealed.rows.get("sink_attempts", {}).values()
            if one["decision"] == "SENT" and (table := tables.get(str(one["sink"]))) is not None
        }
        done = [{name: one[name] for name in _AUDITED} for one in sealed.changes]
        for table, action in sorted(sent):
            if (seen := world.seen(table)) is None:
                continue
            told = self._audited(seen).get((sealed.run_id, action), [])
            where = f"{table} {sealed.run_id} {action}"
            if len(told) != 1:
                report.add(where, "is not told of once", 1, len(told))
                continue
            details = _object_in(told[0])
            found = None if details is None else {name: details.get(name) for name in _AUDITED}
            if found not in done:
                report.add(where, "says something else than was committed", done, told[0] if found is None else found)

    def _audited(self, seen: Seen) -> Mapping[tuple[str, str], list[str | None]]:
        """Return the details in a sink's table, as they stand there, by run and action."""
        if seen.name not in self._audit:
            found: dict[tuple[str, str], list[str | None]] = {}
            for row in seen.table.scan(selected_fields=("run_id", "action", "details")).to_arrow().to_pylist():
                found.setdefault((row["run_id"], row["action"]), []).append(row["details"])
            self._audit[seen.name] = found
        return self._audit[seen.name]


def _object_in(text: str | None) -> dict[str, Any] | None:
    """Return the JSON object that a text is; None if it is none."""
    try:
        found = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


_AUDITED = ("snapshot_id", "files_added", "files_removed", "evidence_root")


def _same_input(seen: Seen, where: str, facts: Mapping[str, Any], report: Report) -> None:
    snapshot = seen.by_id[facts["snapshotId"]]
    if snapshot.timestamp_ms != facts["at"]:
        report.add(f"{where} time", "is not when it was committed", facts["at"], snapshot.timestamp_ms)
    if snapshot.sequence_number != facts.get("sequence", snapshot.sequence_number):
        report.add(f"{where} sequence number", "is not its own", facts["sequence"], snapshot.sequence_number)
    parent = facts.get("parentId", snapshot.parent_snapshot_id)
    if snapshot.parent_snapshot_id != parent and (snapshot.parent_snapshot_id is not None or parent in seen.by_id):
        report.add(f"{where} parent", "is not the snapshot that it followed", parent, snapshot.parent_snapshot_id)
    if summary_facts(snapshot) != facts["summary"]:
        report.add(f"{where} summary", "is not what it was when it was read", facts["summary"], summary_facts(snapshot))
    if snapshot.manifest_list != facts["manifestList"]["path"]:
        report.add(f"{where} manifest list", "is another file", facts["manifestList"]["path"], snapshot.manifest_list)
    _same_reading(seen, snapshot, where, facts, report)
    for file in [facts["manifestList"], *facts["manifests"]]:
        if (found := seen.sha256(file["path"])) != file["sha256"]:
            what = "was changed after it was read" if found else "is missing, and the metadata needs it"
            report.add(f"{seen.name} metadata {file['path']}", what, f"SHA-256 {file['sha256']}", f"SHA-256 {found}")
    loads = said_of(lineage_from(seen.table, snapshot))
    for number in sorted(facts["loads"].keys() & loads.keys()):
        if facts["loads"][number] != loads[number]:
            report.add(f"{seen.name} snapshot {number}", "gives other hashes of its files than when it was read")


def _same_reading(seen: Seen, snapshot: Snapshot, where: str, facts: Mapping[str, Any], report: Report) -> None:
    """Hold by what schema and partition specs a snapshot is read against what was sealed.

    What the table's owner does to its columns later goes into another schema, and is no change of what was read. What no
    snapshot needs any more, an expiry may take away.
    """
    read_by = facts.get("snapshotSchemaId")
    if read_by is not None and snapshot.schema_id != read_by:
        report.add(f"{where} schema", "is not the one that it was read with", read_by, snapshot.schema_id)
    schema = next((one for one in seen.table.metadata.schemas if one.schema_id == facts["schemaId"]), None)
    if schema is None and facts["schemaId"] in {read_by, snapshot.schema_id}:
        what = "is gone, and what it was read with"
        report.add(f"{seen.name} schema {facts['schemaId']}", what, facts["fields"], "nothing")
    elif schema is not None and schema_facts(schema) != facts["fields"]:
        what = "is not the one that it was read with"
        report.add(f"{seen.name} schema {facts['schemaId']}", what, facts["fields"], schema_facts(schema))
    specs = spec_facts(seen.table)
    for number, fields in facts.get("specs", {}).items():
        if specs.get(number) != fields and (number in specs or number in _specs_of(seen, snapshot)):
            what = "is not the one that it was read by: files are looked for by it"
            report.add(f"{seen.name} partition spec {number}", what, fields, specs.get(number, "nothing"))


def _specs_of(seen: Seen, snapshot: Snapshot) -> set[str]:
    return {str(one.partition_spec_id) for one in manifests_of(seen.table, snapshot)}


def _read_by(sealed: Sealed, table: str) -> BooleanExpression:
    """Return a filter that finds every file of a table that the run may have read."""
    if (pin := next((one for one in sealed.plan.get("sources") or () if one["table"] == table), None)) is not None:
        published = TypeAdapter(DayRange).validate_python(sealed.plan["publish_range"])
        further = TypeAdapter(PinnedSource).validate_python(pin)
        return before(further.time_column, further.window(published.start, published.end)[1])
    if sealed.plan.get("merge") or table != sealed.plan.get("source"):
        return AlwaysTrue()
    if sealed.plan.get("compaction") is not None:  # of its target, the chunks that it has rewritten
        return any_of(list(sealed.scopes.values()))
    until = datetime.fromisoformat(str(sealed.plan["read_until"]))
    has_dates = sealed.plan.get("source_has_dates", False)
    return before(sealed.target.window_column, until.date() if has_dates else until)
