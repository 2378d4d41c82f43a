"""Which snapshot of a reference table a run reads, and why that one.

Put here how versions, snapshots and semantics of the manifest become pins. What there is of a reference table is a fact
(`manifests.facts`).
"""

from __future__ import annotations

from collections.abc import Mapping

from manifests.errors import Problem
from manifests.facts import AcceptedReference, ReferenceState, TargetContract
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
    accepted = _accepted(state) if reference.semantics is Semantics.CURRENT_ACCEPTED else None
    found = _named(reference, state) if _is_named(reference) else _meant(reference, state, accepted)
    if isinstance(found, Problem):
        return found
    version = next((name for name, pinned in sorted(state.versions.items()) if pinned == found), None)
    return PinnedReference(
        state.table, found, reference.semantics, version, "" if accepted is None else accepted.run_id
    )


def _is_named(reference: ReferenceData) -> bool:
    return reference.version is not None or reference.snapshot_id is not None


def _named(reference: ReferenceData, state: ReferenceState) -> int | Problem:
    """Return the snapshot that the manifest names."""
    if reference.version is None:
        if reference.snapshot_id in state.snapshots:
            return reference.snapshot_id
        return Problem(
            f"referenceData {state.table} has no snapshot {reference.snapshot_id}",
            "a pinned snapshot exists in the table's history",
            "see the table's snapshots",
        )
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
    return snapshot


def _meant(reference: ReferenceData, state: ReferenceState, accepted: AcceptedReference | None) -> int | Problem:
    """Return the snapshot that the semantics mean."""
    if reference.semantics is Semantics.AS_RECORDED_THEN:
        if len(state.recorded) == 1:
            return next(iter(state.recorded))
        return Problem(
            f"referenceData {state.table} was recorded with {len(state.recorded)} snapshots in the publish range",
            "AS_RECORDED_THEN without a version needs exactly one, from the runs accepted there",
            "name the version or snapshotId",
        )
    if accepted is not None:
        if accepted.snapshot_id in state.snapshots:
            return accepted.snapshot_id
        return Problem(
            f"referenceData {state.table} has no snapshot {accepted.snapshot_id} any more, which was accepted with run "
            f"'{accepted.run_id}'",
            "CURRENT_ACCEPTED reads what a person accepted last",
            "name a version (AS_DECIDED), or ask for the newest (CORRECTED_TRUTH) and accept that run",
        )
    if state.current is None:
        return Problem(f"referenceData {state.table} has no snapshot", "a reference table holds a version", "load it")
    return state.current


def _accepted(state: ReferenceState) -> AcceptedReference | None:
    """Return what a person accepted last, leaving out what was taken back since; None where nobody has accepted a version."""
    gone = {state.versions[version] for version in state.taken_back}
    return next((one for one in state.accepted if one.snapshot_id not in gone), None)
