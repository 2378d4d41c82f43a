"""A ledger with the history of thousands of published runs, as their own transactions would have left it.

Put here how it is written: through the ledger's tables, its lifecycle and its journal, so many runs a transaction, so that what is read
later is what a real one has. No file is written: each run is published over the one before it, and nobody asks for what readers see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256

import sqlalchemy as sa

from backfill_assets.installation import Platform
from manifests.chunks import cut
from manifests.lifecycle import ChunkState, PublicationState, RunState
from manifests.model import DayRange, RunManifest
from manifests.plan import Plan, PlannedChunk
from resources import actors
from resources.ledger import accepted_versions, instants
from resources.ledger.runs import move_run
from resources.ledger.tables import approvals, attempts, chunks, publications, runs, verdicts

_GATES = ("all_chunks_staged", "rows_within_expected", "keys_unique")
_BY = "benchmark"


def write(platform: Platform, manifest: RunManifest, plan: Plan, number: int, at_once: int, days: int) -> None:
    """Put so many runs on record, each like `plan`, over one of so many days from its first one on."""
    made = [_run(manifest, plan, one, days) for one in range(number)]
    engine = platform.ledger.engine
    for start in range(0, number, at_once):
        slab = made[start : start + at_once]
        for step in (_planned, _approved, _computed, _published):
            with engine.begin() as connection:
                step(connection, slab)


def _run(manifest: RunManifest, plan: Plan, number: int, days: int) -> tuple[RunManifest, Plan]:
    run_id, day = f"history-{number:06}", plan.publish_range.start + timedelta(days=number % days)
    scope = DayRange(start=day, end=day)
    own = manifest.model_copy(
        update={"run_id": run_id, "target": manifest.target.model_copy(update={"publish_range": scope})}
    )
    cells = cut(plan.chunking, day, day, plan.values or ())
    planned = tuple(
        PlannedChunk(one.key, one.index, one.start, one.end, plan.reads, one.hour, one.part) for one in cells
    )
    return own, replace(plan, run_id=run_id, manifest_hash=own.hash, publish_range=scope, chunks=planned)


def _planned(connection: sa.Connection, slab: Sequence[tuple[RunManifest, Plan]]) -> None:
    at = instants.now(connection)
    for manifest, plan in slab:
        connection.execute(
            runs.insert().values(
                run_id=plan.run_id,
                kind=manifest.kind.value,
                mode=plan.mode.value,
                target=plan.target,
                state=RunState.DRAFT,
                state_reason="",
                requested_by=manifest.requested_by,
                manifest=manifest.canonical(),
                manifest_hash=manifest.hash,
                plan=plan.to_json(),
                plan_hash=plan.hash,
                created_at=at,
                updated_at=at,
            )
        )
        move_run(connection, plan.run_id, RunState.DRAFT, RunState.PLANNED, _BY, "planned")
    connection.execute(
        chunks.insert(),
        [
            {"run_id": plan.run_id, "chunk": one.key, "idx": one.index, "state": ChunkState.PLANNED, "updated_at": at}
            for _, plan in slab
            for one in plan.chunks
        ],
    )


def _approved(connection: sa.Connection, slab: Sequence[tuple[RunManifest, Plan]]) -> None:
    at = instants.now(connection)
    for _, plan in slab:
        connection.execute(
            approvals.insert().values(
                run_id=plan.run_id,
                decision="APPROVED",
                decided_by="grace",
                plan_hash=plan.hash,
                self_approved=False,
                at=at,
                **actors.columns("grace"),
            )
        )
        move_run(connection, plan.run_id, RunState.PLANNED, RunState.APPROVED, _BY, "")
        connection.execute(
            attempts.insert().values(
                run_id=plan.run_id,
                attempt=1,
                chunks=f"[{','.join(chr(34) + one.key + chr(34) for one in plan.chunks)}]",
                state="STAGED",
                prefix=f"file:///warehouse/{plan.target}/data/run={plan.run_id}/attempt-1",
                host="benchmark",
                pid=1,
                started_at=at,
                ended_at=at,
            )
        )
        move_run(connection, plan.run_id, RunState.APPROVED, RunState.RUNNING, _BY, "")


def _computed(connection: sa.Connection, slab: Sequence[tuple[RunManifest, Plan]]) -> None:
    at = instants.now(connection)
    own = {"of": sa.bindparam("of"), "key": sa.bindparam("key")}
    change = (
        chunks.update()
        .where(chunks.c.run_id == own["of"], chunks.c.chunk == own["key"])
        .values(
            state=ChunkState.PASSED,
            attempt=1,
            rows=1,
            bytes=1_000,
            files=sa.bindparam("staged"),
            digest=sa.bindparam("hash"),
            updated_at=at,
        )
    )
    cells = [(plan.run_id, one.key) for _, plan in slab for one in plan.chunks]
    values = [
        {"of": run, "key": key, "staged": _file(run, key), "hash": f"rows-sha256-v1:{_sha(run + key)}"}
        for run, key in cells
    ]
    connection.execute(change, values)
    common = {
        "attempt": 1,
        "passed": True,
        "asks": False,
        "summary": "as it should be",
        "details": "{}",
        "judged": "",
        "at": at,
    }
    found = [{"run_id": run, "chunk": key, "gate": "chunk_rules", **common} for run, key in cells]
    found += [{"run_id": plan.run_id, "chunk": "", "gate": gate, **common} for _, plan in slab for gate in _GATES]
    connection.execute(verdicts.insert(), found)
    for _, plan in slab:
        move_run(connection, plan.run_id, RunState.RUNNING, RunState.STAGED, _BY, "")
        move_run(connection, plan.run_id, RunState.STAGED, RunState.VALIDATED, _BY, "")


def _published(connection: sa.Connection, slab: Sequence[tuple[RunManifest, Plan]]) -> None:
    for _, plan in slab:
        at = instants.now(connection)
        connection.execute(
            publications.insert().values(
                run_id=plan.run_id,
                action="publish",
                state=PublicationState.COMMITTED,
                base_snapshot_id=plan.base_snapshot_id,
                snapshot_id=int(_sha(plan.run_id)[:12], 16),
                files_added=len(plan.chunks),
                evidence_root=_sha(plan.run_id),
                actor=_BY,
                started_at=at,
                ended_at=at,
                **actors.columns(_BY),
            )
        )
        keys = [one.key for one in plan.chunks]
        before = accepted_versions.take(connection, plan.target, keys, plan.run_id, at)
        move_run(connection, plan.run_id, RunState.VALIDATED, RunState.PUBLISHED, _BY, "published")
        for run_id in sorted(set(before.values())):
            if not accepted_versions.still_holds(connection, run_id):
                move_run(
                    connection, run_id, RunState.PUBLISHED, RunState.SUPERSEDED, _BY, f"superseded by {plan.run_id}"
                )


def _file(run_id: str, key: str) -> str:
    path = f"file:///warehouse/{run_id}/attempt-1/chunk={key}/part-0.parquet"
    return f'[{{"bytes":1000,"footer":"{_sha(path)}","path":"{path}","rows":1,"sha256":"{_sha(key)}"}}]'


def _sha(text: str) -> str:
    return sha256(text.encode()).hexdigest()
