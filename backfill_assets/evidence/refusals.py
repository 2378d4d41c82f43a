"""Decisions of publishers that came to nothing: why each was refused, as far as that is on record.

Put here how a decision is found in what is on record of its outcome: the ledger's entry of the action, or, where it was refused
before there was one, the record in the evidence that has the decision among its rows. Of a publication that was refused before
anything was begun (by a freeze, or a lease that somebody held) there is neither: only the command has said why. What the policy
refuses is no decision, and is not on record at all. What is written then is `decisions`'.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from backfill_assets.evidence.events import REFUSED
from backfill_assets.evidence.records import Record, is_about, record_of
from manifests.errors import EnvironmentRefused
from manifests.lifecycle import DecisionKind, PublicationState
from manifests.text import visible
from resources.evidence.store import EvidenceStore
from resources.files.kept_files import read_each
from resources.files.places import found_in
from resources.ledger.facade import PROCESS_ENDED, RECORDED_BY_ANOTHER, Ledger

_ACTED_ON = frozenset({DecisionKind.PUBLISH, DecisionKind.ROLLBACK, DecisionKind.REINSTATE, DecisionKind.ACCEPT})
_PROBLEM = re.compile(r"^  - (.*)$", re.MULTILINE)
"""What is wrong, in the text of a refusal."""


def refusals_of(ledger: Ledger, evidence: EvidenceStore, run_id: str) -> dict[int, str]:
    """Return why decisions about a run were refused, by the ids of their approvals; the evidence is read where one came to nothing."""
    decided = [one.as_record() for one in ledger.approvals(run_id)]
    if not any(one["decision"] in _ACTED_ON for one in decided):
        return {}
    entries = [one.as_record() for one in ledger.publications(run_id)]
    return refused(decided, entries, _records_of_refusals(evidence, run_id))


def refused(
    decided: Sequence[Mapping[str, Any]], entries: Sequence[Mapping[str, Any]], records: Sequence[Record]
) -> dict[int, str]:
    """Return why decisions were refused, by their ids.

    Args:
        decided: the rows of a run's approvals, in order.
        entries: the rows of its publications, in order, with instants of the same kind.
        records: those of its records that a link vouches for.
    """
    told = _told(records, decided)
    found: dict[int, str] = {}
    for number, one in enumerate(decided):
        if one["decision"] not in _ACTED_ON:
            continue
        later = (other["at"] for other in decided[number + 1 :] if other["decision"] == one["decision"])
        until = next(later, None)
        mine = [
            entry
            for entry in entries
            if entry["action"] == one["decision"].lower()
            and entry["started_at"] >= one["at"]
            and (until is None or entry["started_at"] < until)
        ]
        states = [entry["state"] for entry in mine]
        if PublicationState.COMMITTED in states or PublicationState.INTENT in states[-1:]:
            continue
        closed = [entry["note"] for entry in mine if entry["state"] == PublicationState.REFUSED]
        notes = [note for note in closed if not note.startswith((PROCESS_ENDED, RECORDED_BY_ANOTHER))]
        if notes:
            found[one["id"]] = "; ".join(_PROBLEM.findall(notes[-1])) or notes[-1].partition("\n")[0]
        elif one["id"] in told:
            found[one["id"]] = told[one["id"]]
    return found


def in_words(why: str | None) -> str:
    """Return what is said of a decision that was refused, and why as far as that is on record; empty of one that was not."""
    if why is None:
        return ""
    return f"refused: {visible(why)}" if why else "refused"


def _told(records: Sequence[Record], decided: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return what records of refusals say of the decisions among their rows."""
    kinds = {one["id"]: one["decision"].lower() for one in decided}
    found: dict[int, str] = {}
    for one in records:
        why, action = one.content.get("why"), one.content.get("action")
        if not _is_refusal(one):
            continue
        mine = sorted(int(key) for key in one.content["rows"].get("approvals", {}) if key.isdecimal())
        if isinstance(action, str):  # where a run comes under the chain by it, the record has earlier decisions, too
            mine = [key for key in mine if kinds.get(key) == action][-1:]
        found |= dict.fromkeys(mine, why if isinstance(why, str) else "")
    return found


def _records_of_refusals(evidence: EvidenceStore, run_id: str) -> list[Record]:
    """Return the records of refusals that a link vouches for; what is damaged says nothing: `verify` names it."""
    found = []
    for file, raw in read_each(found_in(evidence.records(run_id), "*.json")):
        if not isinstance(raw, Exception):
            found.append(record_of(file, run_id, raw))
    hashes = {one.hash: one for one in found if _is_refusal(one)}
    if not hashes:
        return []
    since = min(int(one.content["follows"]) for one in hashes.values())
    try:
        links = list(evidence.chain.contents(since=since))
    except (OSError, ValueError, EnvironmentRefused):
        return []
    return [
        hashes[link["recordHash"]]
        for link in links
        if link.get("recordHash") in hashes and is_about(link, run_id, hashes[link["recordHash"]])
    ]


def _is_refusal(record: Record) -> bool:
    """Whether a record is of a refusal, perhaps one by which a run of an earlier version came under the chain."""
    return record.number > 0 and (record.content.get("event") == REFUSED or "why" in record.content)
