"""What a run's bundle contains when it is sealed: a file for each of the ledger's tables, and what people look for.

Put here another file of a bundle, or what one of them says. What it keeps of tables and inputs is up to `seals`; how a bundle is
read, and which of several counts, to `bundles`.
"""

from __future__ import annotations

from typing import Any

from backfill_assets.evidence.bundles import AMENDMENTS, FILED_APART, RUN_FILE, file_of
from backfill_assets.evidence.dry_runs import sealed_dry_run
from backfill_assets.evidence.records import DIFF, last_diff
from backfill_assets.evidence.run_costs import sealed_costs
from backfill_assets.evidence.seals import (
    BESIDE_FILE,
    INPUTS_FILE,
    SCHEMA_FILE,
    sealed_beside,
    sealed_inputs,
    sealed_schema,
)
from backfill_assets.gates.chunk_changes import CHANGES_FILE, VISIBLE, changes_of_run
from backfill_assets.installation import Platform
from resources.evidence.bundle_files import PlainRows
from resources.ledger.chunks import chunks_in
from resources.ledger.facade import RunRecord
from resources.ledger.rows import Rows

_ALWAYS = frozenset({"chunks", "attempts", "verdicts", "approvals", "amendments", "transitions", "sink_attempts"})
"""Tables that a bundle has a file of even where there is no row: nobody is to wonder."""


def bundle_files(platform: Platform, record: RunRecord, token: int | None = None) -> dict[str, Any]:
    """Return the content of a run's bundle: a file for each of the ledger's tables, and what people look for.

    Raises:
        LeaseLost: if the lease of `token` was taken over: what the run is by now is another publisher's to seal.
    """
    run_id = record.run_id
    with platform.ledger.holding(record.target, token=token) as moment:
        rows = moment.rows_of(run_id)
    (run,) = rows["runs"].values()
    before, chunks = accepted_before(platform, record), chunks_in(rows["chunks"], run_id)
    files: dict[str, Any] = {
        RUN_FILE: {name: cell for name, cell in run.items() if name not in FILED_APART},
        **settled_files(platform, record),
        "reconciliation.json": _reconciliation(platform, rows, record),
        "accepted_before.json": before,
        CHANGES_FILE: changes_of_run(platform, record, chunks, before),
        SCHEMA_FILE: sealed_schema(platform, record),
        INPUTS_FILE: sealed_inputs(platform, record),
        BESIDE_FILE: sealed_beside(platform, record, chunks, rows["verdicts"]),
        **sealed_costs(platform, record),
        **sealed_dry_run(platform, record),
        **{name: run[cell] for cell, name in FILED_APART.items()},
        **{
            file_of(table): PlainRows(found.values())
            for table, found in rows.items()
            if table != "runs" and (found or table in _ALWAYS)
        },
    }
    diff = last_diff(platform, run_id)  # of one that nobody vouches for nothing is sealed
    return files if diff is None else files | {f"{DIFF}.json": diff}


def settled_files(platform: Platform, record: RunRecord) -> dict[str, Any]:
    """Return what a run's bundle contains beside rows that is the same whenever it is sealed."""
    return {
        "hashes.json": {"manifest": record.manifest_hash, "plan": record.plan_hash},
        "code.json": record.plan.code,
        "policy.json": platform.ledger.policies.text(record.plan.policy),
    }


def edition_of(platform: Platform, record: RunRecord, token: int | None = None) -> int:
    """Return how often a run was planned anew: the edition of the bundle that is to be sealed.

    Raises:
        LeaseLost: as `bundle_files`.
    """
    with platform.ledger.holding(record.target, token=token) as moment:
        return len(moment.rows_of(record.run_id, [AMENDMENTS])[AMENDMENTS])


def _reconciliation(platform: Platform, rows: Rows, record: RunRecord) -> list[dict[str, Any]]:
    """Return what the run-level gates found, at which level: the newest verdict of each."""
    levels = {item.name: item.level.value for item in platform.products.target(record.target).reconciliations}
    newest = {row["gate"]: row for row in rows["verdicts"].values() if not row["chunk"]}
    shown = ("gate", "passed", "summary", "details", "at")
    return [
        {"level": levels.get(gate, "platform")} | {name: newest[gate][name] for name in shown}
        for gate in record.plan.gates
        if gate in newest
    ]


def accepted_before(platform: Platform, record: RunRecord) -> dict[str, Any]:
    """Return what readers saw of each chunk just before: whose it was, its digest, and what its gate measured and added up."""
    holders = platform.ledger.accepted(record.target, [chunk.key for chunk in record.plan.chunks])
    found = {}
    for run_id in sorted(set(holders.values()) - {record.run_id}):
        for chunk in platform.ledger.measured_chunks(run_id):
            if holders.get(chunk.chunk) == run_id:
                facts = {"run": run_id, "digest": chunk.digest, "rows": chunk.rows}
                facts |= {VISIBLE: chunk.measures[VISIBLE]} if VISIBLE in chunk.measures else {}
                found[chunk.chunk] = facts | {"slices": chunk.measures.get("slices", [])}
    return found
