"""What a dry run leaves as evidence: what it has computed and what its gates said, and the hash of that.

A dry run is never published and has no bundle of its own: an approval that rests on one keeps the hash of this, the bundle of the
approved run keeps all of it, and `verify` holds both against the ledger. Put here what it consists of. Whether a dry run counts is
`manifests.dry_run_proof`'s.
"""

from __future__ import annotations

from typing import Any

from backfill_assets.installation import Platform
from manifests.canonical import plain, sha256_of
from manifests.dry_runs import DryRunLink
from resources.ledger.facade import RunRecord

DRY_RUN_FILE = "dry_run.json"


def dry_run_facts(platform: Platform, run_id: str) -> dict[str, Any]:
    """Return what is on record of a dry run's chunks and verdicts; the same whatever becomes of the run afterwards."""
    ledger = platform.ledger
    record = ledger.run(run_id)
    newest = {one.gate: one for one in ledger.verdicts(run_id) if not one.chunk}
    accepted = ledger.accepted_gates(run_id)
    return {
        "run_id": run_id,
        "target": record.target,
        "manifest_hash": record.manifest_hash,
        "plan_hash": record.plan_hash,
        "chunks": [
            {"chunk": one.chunk, "attempt": one.attempt, "rows": one.rows, "digest": one.digest}
            for one in sorted(ledger.chunks(run_id), key=lambda one: one.index)
        ],
        "gates": [
            {
                "gate": name,
                "passed": one.passed,
                "accepted": name in accepted,
                "summary": one.summary,
                "judged": one.judged,
            }
            for name, one in sorted(newest.items())
        ],
    }


def dry_run_hash(platform: Platform, run_id: str) -> str:
    """Return the SHA-256 (hex) of what `dry_run_facts` returns."""
    return sha256_of(dry_run_facts(platform, run_id))


def sealed_dry_run(platform: Platform, record: RunRecord) -> dict[str, Any]:
    """Return the file of a run's bundle about the dry run that its approval rests on; none where it rests on none."""
    approval = platform.ledger.approval_of(record)
    link = None if approval is None else approval.rests_on
    if link is None:
        return {}
    return {DRY_RUN_FILE: {"link": plain(link), "facts": dry_run_facts(platform, link.run_id)}}


def changed_since(platform: Platform, link: DryRunLink) -> str:
    """Return the hash of what is on record of a dry run by now, where it is no longer that of its link; else an empty text."""
    found = dry_run_hash(platform, link.run_id)
    return "" if found == link.evidence_hash else found
