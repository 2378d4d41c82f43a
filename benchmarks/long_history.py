"""A ledger with the history of thousands of published runs, each published over the one before it.

Put here the rows that such runs leave, written through the ledger's tables and its journal, so many runs a transaction: what is read later is
what a real ledger has, in fewer and longer entries of the journal. No file is written: nobody asks for what readers see.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import pairwise
from typing import Any

from backfill_assets.installation import Platform
from manifests.chunks import CHUNK_GATE, cut
from manifests.lifecycle import RunState
from manifests.model import DayRange, RunManifest
from manifests.plan import Plan, PlannedChunk
from resources import actors
from resources.ledger.tables import metadata

S = RunState
_STATES = (S.DRAFT, S.PLANNED, S.APPROVED, S.RUNNING, S.STAGED, S.VALIDATED, S.PUBLISHED)
_GATES = ("all_chunks_staged", "rows_within_expected", "keys_unique")
_BY = "benchmark"
_WHO = actors.columns(_BY)
Rows = dict[str, list[dict[str, Any]]]
"""By table."""


def write(platform: Platform, manifest: RunManifest, plan: Plan, number: int, at_once: int, days: int) -> None:
    """Put so many runs on record, each like `plan`, over one of so many days from its first one on."""
    at = platform.ledger.now()
    for start in range(0, number, at_once):
        rows: Rows = {}
        for one in range(start, min(number, start + at_once)):
            over = _name(one + days) if one + days < number else None
            for table, own in _rows(*_run(manifest, plan, one, days), over, at).items():
                rows.setdefault(table, []).extend(own)
        with platform.ledger.engine.begin() as connection:
            for table, own in rows.items():
                connection.execute(metadata.tables[table].insert(), own)


def _name(number: int) -> str:
    return f"history-{number:06}"


def _run(manifest: RunManifest, plan: Plan, number: int, days: int) -> tuple[RunManifest, Plan]:
    run_id, day = _name(number), plan.publish_range.start + timedelta(days=number % days)
    scope = DayRange(start=day, end=day)
    target = manifest.target.model_copy(update={"publish_range": scope})
    own = manifest.model_copy(update={"run_id": run_id, "target": target})
    planned = tuple(
        PlannedChunk(one.key, one.index, one.start, one.end, plan.reads, one.hour, one.part)
        for one in cut(plan.chunking, day, day, plan.values or ())
    )
    return own, replace(plan, run_id=run_id, manifest_hash=own.hash, publish_range=scope, chunks=planned)


def _rows(manifest: RunManifest, plan: Plan, over: str | None, at: datetime) -> Rows:
    """Return the rows of a run; `over` is the run that was published over it, if there is one."""
    mine: dict[str, Any] = {"run_id": plan.run_id}
    text = plan.to_json()
    moves = [*pairwise(_STATES), *([] if over is None else [(S.PUBLISHED, S.SUPERSEDED)])]
    ended = {"ended_at": None if over is None else at, "ended_by": over, "ended_how": over and S.SUPERSEDED}
    judged = {"attempt": 1, "passed": True, "summary": "as it should be", "at": at}
    keys = [one.key for one in plan.chunks]
    run = {
        **mine,
        "kind": manifest.kind.value,
        "mode": plan.mode.value,
        "target": plan.target,
        "state": moves[-1][1],
        "state_reason": "",
        "requested_by": manifest.requested_by,
        "manifest": manifest.canonical(),
        "manifest_hash": manifest.hash,
        "plan": text,
        "plan_hash": plan.hash,
        "created_at": at,
        "updated_at": at,
    }
    attempt = {"attempt": 1, "chunks": f"[{','.join(f'{chr(34)}{key}{chr(34)}' for key in keys)}]", "state": "STAGED"}
    attempt |= {"prefix": f"file:///warehouse/run={plan.run_id}/attempt-1", "host": _BY, "pid": 1}
    approval = {"decision": "APPROVED", "decided_by": _BY, "plan_hash": plan.hash, "self_approved": False, "at": at}
    publication = {"action": "publish", "state": "COMMITTED", "base_snapshot_id": plan.base_snapshot_id, "actor": _BY}
    publication |= {"snapshot_id": int(_sha(plan.run_id)[:12], 16), "evidence_root": _sha(plan.run_id)}
    staged = {"state": "PASSED", "attempt": 1, "rows": 1, "bytes": 1_000, "updated_at": at}
    return {
        "runs": [run],
        "transitions": [
            {**mine, **_WHO, "from_state": one, "to_state": other, "at": at, "actor": _BY} for one, other in moves
        ],
        "chunks": [
            {
                **mine,
                **staged,
                "chunk": one.key,
                "idx": one.index,
                "files": _file(plan.run_id, one.key),
                "digest": _sha(one.key),
            }
            for one in plan.chunks
        ],
        "attempts": [{**mine, **attempt, "started_at": at, "ended_at": at}],
        "verdicts": [
            *({**mine, **judged, "chunk": key, "gate": CHUNK_GATE} for key in keys),
            *({**mine, **judged, "chunk": "", "gate": gate} for gate in _GATES),
        ],
        "approvals": [{**mine, **_WHO, **approval}],
        "publications": [{**mine, **_WHO, **publication, "started_at": at, "ended_at": at}],
        "accepted_versions": [
            {**mine, **ended, "target": plan.target, "chunk": key, "accepted_at": at} for key in keys
        ],
    }


def _file(run_id: str, key: str) -> str:
    path = f"file:///warehouse/{run_id}/attempt-1/chunk={key}/part-0.parquet"
    return f'[{{"bytes":1000,"footer":"{_sha(path)}","path":"{path}","rows":1,"sha256":"{_sha(key)}"}}]'


def _sha(text: str) -> str:
    return sha256(text.encode()).hexdigest()
