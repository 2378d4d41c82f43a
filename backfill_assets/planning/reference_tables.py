"""What is known of the reference tables of a target: their snapshots and versions, which of them people have accepted, their rows.

Put here how acceptances on record become versions of reference tables: a person who accepts a run (`backfill accept`) accepts the
version of each table that its manifest names. What semantics make of it is `manifests.reference_pins`'s; what there is of a
table, the lakehouse's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.accepted_base import touches
from manifests.errors import PlanRefused
from manifests.facts import AcceptedReference, ReferenceState
from manifests.lifecycle import ACCEPT, REINSTATE, ROLLBACK
from manifests.model import ReferenceData, RunManifest
from manifests.reference_pins import pin_reference
from resources.ledger.facade import PublicationRecord


def reference_states(platform: Platform, target: TargetTable, manifest: RunManifest) -> dict[str, ReferenceState]:
    """Return what is known of each reference table that a target reads, for a run of some of its days."""
    recorded: dict[str, set[int]] = {table: set() for table in target.references}
    scope = manifest.target.publish_range
    for run_id in sorted(set(platform.ledger.accepted(target.name).values())):
        record = platform.ledger.run(run_id)
        if touches(record.manifest.target.publish_range, scope):
            for pin in record.plan.references:
                if pin.table in recorded:  # of a table that the target reads no more nothing is asked
                    recorded[pin.table].add(pin.snapshot_id)
    accepted = accepted_references(platform, target.references)
    found = {table: platform.lakehouse.reference_state(table, frozenset(pins)) for table, pins in recorded.items()}
    return {table: replace(state, accepted=accepted[table]) for table, state in found.items()}


def accepted_references(platform: Platform, tables: Collection[str]) -> dict[str, tuple[AcceptedReference, ...]]:
    """Return what people have accepted of each of these reference tables, the latest first; nothing of one that nobody has.

    What was accepted for any target counts for all of them. An acceptance whose run has been rolled back counts no more, until
    the run is reinstated; that a later run has superseded it changes nothing.
    """
    found: dict[str, list[AcceptedReference]] = {table: [] for table in tables}
    entries = [
        entry
        for target in platform.products.targets
        if not found.keys().isdisjoint(target.references)
        for entry in _in_force(platform.ledger.committed(target.name))
    ]
    for entry in sorted(entries, key=lambda one: (one.landed_at, one.id), reverse=True):
        record = platform.ledger.run(entry.run_id)
        named = {one.name for one in record.manifest.reference_data}
        for pin in record.plan.references:
            if pin.table in named and pin.table in found:
                found[pin.table].append(AcceptedReference(pin.snapshot_id, entry.run_id))
    return {table: tuple(one) for table, one in found.items()}


def _in_force(committed: Collection[PublicationRecord]) -> list[PublicationRecord]:
    """Return the acceptances of a target's runs that were not undone, in order."""
    accepted: dict[str, PublicationRecord] = {}
    undone: set[str] = set()
    for entry in committed:
        if entry.action == ACCEPT:
            accepted[entry.run_id] = entry
        elif entry.action == ROLLBACK:
            undone.add(entry.run_id)
        elif entry.action == REINSTATE:
            undone.discard(entry.run_id)
    return [entry for run_id, entry in accepted.items() if run_id not in undone]


class PinnedRows(Mapping[str, list[dict[str, Any]]]):
    """The rows of each reference at its pin, read when somebody looks: the warm-up depends on some of them."""

    def __init__(
        self, platform: Platform, target: TargetTable, manifest: RunManifest, states: Mapping[str, ReferenceState]
    ) -> None:
        asked = {reference.name: reference for reference in manifest.reference_data}
        self._lakehouse = platform.lakehouse
        self._snapshots: dict[str, int] = {}
        self._read: dict[str, list[dict[str, Any]]] = {}
        self.unreadable: Exception | None = None
        """Why rows could not be read: no fault of whoever asks for them."""
        for table in target.references:
            pin = pin_reference(asked.get(table) or ReferenceData(name=table), states[table])
            if not hasattr(pin, "snapshot_id"):
                raise PlanRefused(pin)
            self._snapshots[table] = pin.snapshot_id

    def __getitem__(self, table: str) -> list[dict[str, Any]]:
        if table not in self._read:
            snapshot_id = self._snapshots[table]
            try:
                self._read[table] = self._lakehouse.rows(table, snapshot_id)
            except Exception as error:
                self.unreadable = error
                raise
        return self._read[table]

    def __iter__(self) -> Iterator[str]:
        return iter(self._snapshots)

    def __len__(self) -> int:
        return len(self._snapshots)
