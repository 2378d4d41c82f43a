"""Which snapshot of a reference table a run reads, and why that one.

Put here how versions, snapshots and semantics of the manifest become pins. What there is of a reference table is a fact
(`manifests.facts`).
"""

from __future__ import annotations

from collections.abc import Mapping

from manifests.errors import Problem
from manifests.facts import ReferenceState, TargetContract
from manifests.model import ReferenceData, RunManifest, Semantics
from manifests.plan import PinnedReference


def pin_references(
    manifest: RunManifest, contract: TargetContract, states: Mapping[str, ReferenceState]
) -> tuple[tuple[PinnedReference, ...], list[Problem]]:
    """Pin each reference table that a target reads; those that the manifest says nothing of are read by default."""
    asked = {reference.name: reference for reference in manifest.reference_data}
    pins, problems = [], []
    for table in contract.references:
        pin = pin_reference(asked.get(table) or ReferenceData(name=table), states[table])
        if isinstance(pin, Problem):
            problems.append(pin)
        else:
            pins.append(pin)
    return tuple(pins), problems


def pin_reference(reference: ReferenceData, state: ReferenceState) -> PinnedReference | Problem:
    """Resolve what the manifest says of one reference table to a snapshot, or say why it cannot be."""
    snapshot: int | None
    if reference.version is not None:
        snapshot = state.versions.get(reference.version)
        if reference.version in state.taken_back:
            return Problem(
                f"referenceData {state.table} version {reference.version} was taken back",
                "what was taken back is not read under its name any more",
                f"choose one of {', '.join(sorted(state.versions.keys() - state.taken_back)) or 'none'}, or name the "
                f"snapshotId ({snapshot}) if it is to be read all the same",
            )
        if snapshot is None:
            return Problem(
                f"referenceData {state.table} version {reference.version} is unknown",
                f"known versions are {', '.join(sorted(state.versions)) or 'none'}",
                "choose one of them",
            )
    elif reference.snapshot_id is not None:
        snapshot = reference.snapshot_id
        if snapshot not in state.snapshots:
            return Problem(
                f"referenceData {state.table} has no snapshot {snapshot}",
                "a pinned snapshot exists in the table's history",
                "see the table's snapshots",
            )
    elif reference.semantics is Semantics.AS_RECORDED_THEN:
        if len(state.recorded) != 1:
            return Problem(
                f"referenceData {state.table} was recorded with {len(state.recorded)} snapshots in the publish range",
                "AS_RECORDED_THEN without a version needs exactly one, from the runs accepted there",
                "name the version or snapshotId",
            )
        snapshot = next(iter(state.recorded))
    else:
        snapshot = state.current
        if snapshot is None:
            return Problem(
                f"referenceData {state.table} has no snapshot", "a reference table holds a version", "load it"
            )
    version = next((name for name, pinned in sorted(state.versions.items()) if pinned == snapshot), None)
    return PinnedReference(state.table, snapshot, reference.semantics, version)
