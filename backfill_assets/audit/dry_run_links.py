"""The dry run that a run was approved on: is it on record as it was then, by nobody's hand but its own.

Put here what is compared of it. That the link itself is as it was written is `ledger_rows`'; which dry run counts for an approval
was asked when it was made (`publication.dry_runs`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backfill_assets.audit.findings import Findings
from backfill_assets.audit.ledger_and_chain import LedgerAndChain
from backfill_assets.evidence.dry_runs import dry_run_hash
from manifests.canonical import canonical_json_of_plain
from manifests.dry_runs import DryRunLink, link_from_json
from manifests.lifecycle import DecisionKind
from resources.ledger.rows import Rows


def check_dry_runs(read: LedgerAndChain, rows: Rows, found: Findings) -> None:
    """Hold each dry run that an approval among a run's kept rows rests on against its hash there, and its rows against the journal.

    The approval of a plan that asks for a dry run names one.
    """
    asking = {one["plan_hash"] for one in rows.get("runs", {}).values() if _asks(one["plan"])}
    for key, row in sorted(rows.get("approvals", {}).items()):
        if (link := link_of(row)) is not None:
            _check(read, key, link, found)
        elif row["decision"] == DecisionKind.APPROVED and row["plan_hash"] in asking:
            where = f"ledger approvals {key} column dry_run"
            found.add(where, "names no dry run, and the plan that was approved asks for one", "a dry run", "nothing")


def link_of(approval: Mapping[str, Any]) -> DryRunLink | None:
    """Return the link of an approval's kept row; None of one that rests on no dry run, or is older than links are.

    Raises:
        ValueError: if the cell is no link.
    """
    kept = approval.get("dry_run") or ""
    return link_from_json(kept if isinstance(kept, str) else canonical_json_of_plain(kept))


def _asks(plan: Any) -> bool:
    """Whether a plan of a kept row, text or what it says, has terms of a dry run."""
    said = json.loads(plan) if isinstance(plan, str) else plan
    return said.get("dry_run") is not None


def _check(read: LedgerAndChain, key: str, link: DryRunLink, found: Findings) -> None:
    where, ledger = f"ledger approvals {key} column dry_run", read.platform.ledger
    record = ledger.find(link.run_id)
    if record is None:
        found.add(where, f"names dry run '{link.run_id}', which is not on record", link.run_id, "nothing")
        return
    if record.plan_hash != link.plan_hash:
        found.add(where, f"names another plan than dry run '{link.run_id}' has", link.plan_hash, record.plan_hash)
    if (own := dry_run_hash(read.platform, link.run_id)) != link.evidence_hash:
        found.add(where, f"has the hash of other results than dry run '{link.run_id}' has", link.evidence_hash, own)
    with ledger.reading() as moment:
        by_hand = read.by_hand(moment, link.run_id)
    for one in by_hand.values():
        found.add(one.where, f"{one.what} (of dry run '{link.run_id}')", one.expected, one.found)
