"""Names that belong to the platform: ids of live runs, and the names under which policies request and approve.

Put here what a person's manifest or decision may not be called. Which rights LIVE has is not a question of names: see
`resources.ledger.ticks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from backfill_assets.declarations.schedules import LivePolicy, ReconciliationPolicy, RestatementPolicy
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from manifests.canonical import sha256_of
from manifests.errors import Problem
from manifests.model import MAX_RUN_ID, Kind, RunManifest
from manifests.policy import OF_A_POLICY, names_group, same_name

ATTEMPTS = 5
"""Live runs for one source snapshot: each after the first stands in for one that lost its scope to somebody else."""
_SCOPE = "live"
"""What consumers' guards keep the ids of live events under, where those of other runs are under the run's id."""
_DIGEST = 8
"""Digits of the hash that stands for the snapshots of sources beside the first."""


def prefix_of(target: TargetTable) -> str:
    """Return what the ids of the target's live runs begin with; a snapshot id and an attempt have room behind it."""
    name = target.name.replace(".", "-")
    room = MAX_RUN_ID - len("live--") - len(f"{2**63}.{ATTEMPTS}") - (_DIGEST + 1 if target.sources else 0)
    return f"live-{fitting(name, room)}-"


def fitting(name: str, room: int) -> str:
    """Return a name that has room in a run id: a longer one is cut, and ends with a part of its hash."""
    return name if len(name) <= room else f"{name[: room - 9]}-{sha256(name.encode()).hexdigest()[:8]}"


def is_live_id(run_id: str, target: TargetTable) -> bool:
    """Whether a run id is one that the target's live runs have."""
    prefix = prefix_of(target)
    if not run_id.startswith(prefix):
        return False
    snapshot, _, further = run_id.removeprefix(prefix).partition(".")[0].partition("-")
    return snapshot.isdigit() and (not further or (bool(target.sources) and len(further) == _DIGEST))


def live_id(target: TargetTable, snapshot_id: int, further: Mapping[str, int]) -> str:
    """Return the id of the target's first live run for a snapshot of its first source, and for those of the others, by table."""
    first = f"{prefix_of(target)}{snapshot_id}"
    if not further:
        return first
    return f"{first}-{sha256_of(sorted(further.items()))[:_DIGEST]}"


def name_problems(platform: Platform, by: str) -> list[Problem]:
    """Say why nobody may decide or request under a name: it is one of the platform's own, or a group's."""
    named = same_name(by)
    if names_group(by):
        return [
            Problem(
                f"'{by}' is no person",
                "a policy names groups so, and each of their members decides in their own name",
                "give your own name",
            )
        ]
    if named not in _names(platform) and not named.startswith(OF_A_POLICY):
        return []
    return [
        Problem(
            f"'{by}' is no person",
            "the platform acts under this name by itself, and nobody else does",
            "give your own name",
        )
    ]


def claims(platform: Platform, manifest: RunManifest) -> list[Problem]:
    """Say what of the platform's names a person's manifest claims; nothing for LIVE, which the platform writes."""
    if manifest.kind is Kind.LIVE:
        return []
    asks_for_itself = manifest.kind is Kind.RECONCILIATION and _asks_to_reconcile(platform, manifest)
    problems = [] if asks_for_itself else name_problems(platform, manifest.requested_by)
    if problems and manifest.kind is Kind.RESTATEMENT and platform.ledger.ticks.has_proposed(manifest):
        problems = []
    # also of tables that have no live policy yet: it would find the id taken
    if any(is_live_id(manifest.run_id, target) for target in platform.products.targets):
        problems.append(
            Problem(
                f"the run id '{manifest.run_id}' is one of a live run",
                "the platform gives live runs their ids, and goes on with the run that has one",
                "give the run another id",
            )
        )
    if manifest.run_id == _SCOPE:
        problems.append(
            Problem(
                f"the run id '{manifest.run_id}' is the platform's",
                "consumers of topics keep what LIVE has told them under this name, and what a run has told them under its id",
                "give the run another id",
            )
        )
    return problems


def _asks_to_reconcile(platform: Platform, manifest: RunManifest) -> bool:
    """Whether a manifest is asked for under the name that the schedule of its table's reconciliations has."""
    asking = [
        _reconciled(target).requested_by for target in platform.products.targets if target.name == manifest.target.table
    ]
    return same_name(manifest.requested_by) in map(same_name, asking)


def _reconciled(target: TargetTable) -> ReconciliationPolicy:
    return target.reconciled or ReconciliationPolicy()


def _names(platform: Platform) -> set[str]:
    targets = platform.products.targets
    live = [one.live for one in targets if one.live is not None]
    restated = [one.restated for one in targets if one.restated is not None]
    policies: list[LivePolicy | ReconciliationPolicy | RestatementPolicy] = [
        *live,
        *map(_reconciled, targets),
        *restated,
    ]
    return {same_name(name) for one in policies for name in (one.requested_by, one.approved_by)}
