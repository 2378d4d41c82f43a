"""What the evidence keeps of the tables themselves: how their files are read, and the metadata files of each publication.

Put here what is taken from tables into a bundle (known before the commit: columns by field id, partition specs, what the
digests are made of) and into a record (known after it: the snapshot, its manifest list, its manifests, the metadata file),
and how both are found again. What is held against them is `audit.sealed_metadata`'s.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from typing import Any

import polars as pl
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from backfill_assets.declarations.schema import dtypes, iceberg_schema
from backfill_assets.declarations.target import TargetTable
from backfill_assets.evidence.column_records import Renamed
from backfill_assets.installation import Platform
from backfill_assets.worker.chunk_gate import digest_columns
from backfill_assets.worker.digest import ALGORITHM
from backfill_assets.worker.digest_types import dtype_of
from manifests.chunks import HOURS
from manifests.division import division_from
from manifests.errors import Problem
from manifests.lifecycle import PUBLISH, PublicationState
from manifests.model import Corrections
from resources.files.kept_files import read_json
from resources.files.places import Place, is_there
from resources.lakehouse.contents import said_of
from resources.lakehouse.facade import ACTION_PROPERTY, RUN_PROPERTY, SEQUENCE_PROPERTY, Scope
from resources.lakehouse.metadata import UnreadableMetadata
from resources.lakehouse.snapshots import (
    Facts,
    all_hashed,
    committed,
    entries_of,
    lineage_from,
    manifests_of,
    snapshot_facts,
    table_facts,
)
from resources.lakehouse.storage import Storage, place_of
from resources.lakehouse.type_words import type_words
from resources.ledger.facade import ChunkRecord, RunRecord
from resources.ledger.rows import Rows
from resources.ledger.verdicts import details_said

INPUTS_FILE = "inputs.json"
"""The file of a bundle that says what was read: source and references at their pinned snapshots, by the hashes of their metadata."""
BESIDE_FILE = "beside.json"
"""The file of a bundle with the hashes of what the run left beside its tables: outlines, and rows of the exception table."""
SCHEMA_FILE = "schema.json"
"""The file of a bundle that says how the rows of its tables are read."""
COMMITTED = "committed"
"""The part of a record that has the metadata of what was committed, table by table."""


@dataclass(frozen=True)
class Sealed:
    """What the evidence has of one run and its tables.

    Attributes:
        run_id: the run.
        target: its target, as it is declared today.
        rows: the ledger's rows as the evidence has them.
        digest: the columns that its digests were made of, with their Iceberg types, in order; None if an earlier version
            sealed it, without them.
        tables: by name: identity, columns and partition specs of a table when the bundle was sealed.
        commits: what was kept of each commit, oldest first.
        inputs: what was kept of each pinned input; None if an earlier version sealed it, without them.
        beside: path, bytes and SHA-256 of each file that the run left beside its tables, with its kind.
        policy: the text of the policy that decided; None if none is on record.
        is_whole: whether nothing of it was left out as damaged.
        renamed: the names that columns were given by changes on record.
    """

    run_id: str
    target: TargetTable
    rows: Rows
    digest: dict[str, str] | None
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    commits: Sequence[Mapping[str, Any]] = ()
    inputs: Sequence[Mapping[str, Any]] | None = None
    beside: Sequence[Mapping[str, Any]] = ()
    policy: Mapping[str, Any] | None = None
    is_whole: bool = True
    renamed: Renamed = field(default_factory=dict)

    def is_renamed(self, uuid: str, field_id: int, *names: str) -> bool:
        """Whether a column of a table was lawfully given each of these names: a change of columns on record says so."""
        return set(names) <= self.renamed.get((uuid, field_id), frozenset())

    @property
    def run(self) -> Mapping[str, Any]:
        """The run's own row."""
        return self.rows["runs"][self.run_id]

    @property
    def plan(self) -> Mapping[str, Any]:
        """The approved plan."""
        plan = self.run["plan"]
        return plan if isinstance(plan, dict) else {}

    @cached_property
    def scopes(self) -> dict[str, Scope]:
        """Each planned chunk as a scope of the target's tables."""
        target, said = self.target, self.plan.get("division")
        division = None if said is None else division_from(said)
        found, instants = {}, target.has_instants
        for one in self.plan["chunks"]:
            hour, part = one.get("hour"), str(one.get("part", ""))
            found[one["key"]] = Scope(
                target.day_column,
                date.fromisoformat(one["start"]),
                date.fromisoformat(one["end"]),
                instants,
                HOURS[0] if hour is None else hour,
                HOURS[-1] if hour is None else hour,
                division if part else None,
                (part,) if part else (),
            )
        return found

    def plan_of(self, chunk: str) -> Mapping[str, Any]:
        """The plan that a chunk was computed by: the approved one, or the last one that it was planned anew with."""
        anew = [one["plan"] for one in self.rows.get("amendments", {}).values() if chunk in one["chunks"]]
        return anew[-1] if anew and isinstance(anew[-1], dict) else self.plan

    @property
    def table(self) -> str:
        """The table by whose snapshots the ledger knows the changes of the run."""
        if self.plan.get("corrections") == Corrections.INSTEAD and self.target.corrections is not None:
            return self.target.corrections.name
        return self.target.name

    @property
    def changes(self) -> list[Mapping[str, Any]]:
        """The ledger's entries of what the run committed, oldest first."""
        return [one for one in self.rows.get("publications", {}).values() if one["state"] == PublicationState.COMMITTED]

    @property
    def accepted(self) -> list[Mapping[str, Any]]:
        """The chunks that readers of main get from the run."""
        held = {str(one["chunk"]) for one in self.rows.get("accepted_versions", {}).values() if one["ended_at"] is None}
        return [one for one in self.rows.get("chunks", {}).values() if one["chunk"] in held]


def sealed_schema(platform: Platform, record: RunRecord) -> dict[str, Any]:
    """Return what a bundle says of how the rows that it is about are read, by their digests and by readers."""
    target = platform.products.target(record.target)
    names = (
        [target.name] if target.corrections is None or not record.plan.corrections else tables_changed(platform, record)
    )
    digested = {field.name: type_words(field.field_type) for field in iceberg_schema(target.model).fields}
    without = target.without(record.plan.transform_version)
    return {
        "digest": {
            "algorithm": ALGORITHM,
            "columns": [[name, digested[name]] for name in digest_columns(target.model) if name not in without],
        },
        "tables": {name: table_facts(platform.lakehouse.table(name)) for name in names},
    }


def tables_changed(platform: Platform, record: RunRecord) -> list[str]:
    """Return the tables that a run's actions commit to."""
    target, corrections = platform.products.target(record.target), record.plan.corrections
    if corrections is None or target.corrections is None:
        return [target.name]
    return [target.corrections.name] if corrections is Corrections.INSTEAD else [target.corrections.name, target.name]


def sealed_inputs(platform: Platform, record: RunRecord) -> list[dict[str, Any]]:
    """Return what a bundle says of what its run has read: of each pinned snapshot the hashes of all its metadata files.

    The manifests name every data file with its length and rows; `loads` are the hashes of what the loads of the table
    say of their files' contents (`resources.lakehouse.contents`).
    """
    plans = {plan.hash: plan for plan in [record.plan, *platform.ledger.plans(record).values()]}.values()
    pins = {pin for plan in plans for pin in plan.source_pins}
    pins |= {(pin.table, pin.snapshot_id) for plan in plans for pin in plan.references}
    found = []
    for name, snapshot_id in sorted(pins):
        table = platform.lakehouse.table(name)
        snapshot = table.snapshot_by_id(snapshot_id)
        if snapshot is None:
            found.append({"table": name, "snapshotId": snapshot_id, "expired": True})
            continue
        try:
            with _readable(f"snapshot {snapshot_id} of {name}"):
                facts = snapshot_facts(table, snapshot, every=True)
        except (
            FileNotFoundError
        ) as error:  # somebody has cleared it away: it cannot be read again, which is all there is to say
            found.append({"table": name, "snapshotId": snapshot_id, "expired": True, "missing": str(error)})
            continue
        found.append(facts | {"loads": said_of(lineage_from(table, snapshot))})
    return found


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Refuse what is done next to evidence if a file cannot be read, or is damaged; one that is not there is for the caller.

    Raises:
        UnreadableMetadata: naming it.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise UnreadableMetadata(
            Problem(
                f"{what} cannot be read: {type(error).__name__}: {error}",
                "what a run has read and left is hashed into its evidence before it is published",
                "run the same command again when it can be read, and restore it from a backup if it stays so; nothing has "
                "changed",
            )
        ) from error


def sealed_beside(
    platform: Platform, record: RunRecord, chunks: Sequence[ChunkRecord], verdicts: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return path, bytes and SHA-256 of the outlines of a run's chunks, and of what it put into the exception table.

    `verdicts` are the run's rows of the ledger, in their order: the newest one of each gate and chunk counts.
    """
    found: list[dict[str, Any]] = []
    target = platform.lakehouse.table(record.target)
    outlines = [path for chunk in chunks if (path := chunk.measures.get("outline"))]
    there = Storage(target).look(map(place_of, outlines))
    with _readable(f"an outline of '{record.run_id}'"):
        outlined = all_hashed(target, [path for path in outlines if place_of(path) in there])
    found += [{"kind": "outline", **facts} for facts in outlined]
    newest = {(row["chunk"], row["gate"]): row["details"] for row in verdicts.values()}
    kept = [details_said(details).get("exceptions") for details in newest.values()]
    for name, snapshot_id in sorted({(one["table"], int(one["snapshot"])) for one in kept if isinstance(one, dict)}):
        table = platform.lakehouse.table(name)
        snapshot = table.snapshot_by_id(snapshot_id)
        if snapshot is None:
            continue
        with _readable(f"snapshot {snapshot_id} of {name}"):
            mine = [one for one in manifests_of(table, snapshot) if one.added_snapshot_id == snapshot_id]
            paths = [entry.file.file_path for entry in entries_of(table, mine)]
        found += [{"kind": "exceptions", "table": name, **facts} for facts in all_hashed(table, paths)]
    return found


def commits_of(
    platform: Platform, record: RunRecord, action: str, number: int, snapshot_id: int
) -> list[dict[str, Any]]:
    """Return what is kept of the snapshots in which an action of a run landed: one of each table that it changed.

    `number` counts the run's changes; `snapshot_id` is the one that the ledger knows the action by.

    Raises:
        UnreadableMetadata: if a file of the metadata cannot be read.
    """
    found = []
    for name in tables_changed(platform, record):
        table = platform.lakehouse.table(name)
        said = {RUN_PROPERTY: record.run_id, ACTION_PROPERTY: action, SEQUENCE_PROPERTY: str(number)}
        snapshot = table.snapshot_by_id(snapshot_id) or committed(table, said)
        if snapshot is None:
            continue
        found.append(_committed_facts(table, snapshot))
    return found


def _committed_facts(table: Table, snapshot: Snapshot) -> Facts:
    try:
        return snapshot_facts(table, snapshot)
    except (OSError, ValueError) as error:
        raise UnreadableMetadata(
            Problem(
                f"the metadata of snapshot {snapshot.snapshot_id} of {'.'.join(table.name())} cannot be read: {error}",
                "the metadata files of what was committed are hashed into the evidence",
                "run the same command again when they can be read, and restore them from a backup if it stays so: what was "
                "committed is not done twice",
            )
        ) from error


def adopted_commits(platform: Platform, rows: Rows) -> list[dict[str, Any]]:
    """Return what is kept of the snapshots that a run has committed, as its target shows them now; expired ones are left out.

    Raises:
        UnreadableMetadata: if a file of the metadata cannot be read.
    """
    (run,) = rows["runs"].values()
    table = platform.lakehouse.table(str(run["target"]))
    found = []
    for entry in rows.get("publications", {}).values():
        snapshot = (
            table.snapshot_by_id(entry["snapshot_id"] or 0) if entry["state"] == PublicationState.COMMITTED else None
        )
        if snapshot is not None:
            found.append(_committed_facts(table, snapshot))
    return found


def sealed_of(
    run_id: str,
    target: TargetTable,
    rows: Rows,
    bundle: Place,
    records: Sequence[Mapping[str, Any]],
    *,
    damaged: Container[str] = (),
    is_whole: bool = True,
) -> Sealed:
    """Return what bundle and records have of a run's tables; the damaged files of the bundle are not read.

    Raises:
        OSError, ValueError, KeyError, EnvironmentRefused: if the file that has it is no longer as it was sealed.
    """
    told = {
        name: None if name in damaged else _read(bundle / name)
        for name in (SCHEMA_FILE, INPUTS_FILE, BESIDE_FILE, "policy.json")
    }
    said = told[SCHEMA_FILE] or {}
    digest = dict(said["digest"]["columns"]) if said else None
    commits = [{"action": one.get("action", PUBLISH), **facts} for one in records for facts in one.get(COMMITTED, [])]
    return Sealed(
        run_id,
        target,
        rows,
        digest,
        said.get("tables", {}),
        commits,
        told[INPUTS_FILE],
        told[BESIDE_FILE] or (),
        told["policy.json"],
        is_whole,
    )


def _read(file: Place) -> Any:
    return read_json(file) if is_there(file) else None


def digest_types(sealed: Sealed, present: Mapping[str, Any] | None = None) -> dict[str, pl.DataType]:
    """Return the columns of a run's digests with their types, in order.

    Of a run that was sealed without them, those of today's model that its files (`present`: their columns) have: a column
    that was declared later is in none of its digests.
    """
    if sealed.digest is not None:
        return {name: dtype_of(kind) for name, kind in sealed.digest.items()}
    columns = digest_columns(sealed.target.model)
    return {
        name: kind
        for name, kind in dtypes(sealed.target.model).items()
        if name in columns and (present is None or name in present)
    }
