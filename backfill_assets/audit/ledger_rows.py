"""The ledger's rows of a run, held cell by cell against what its bundle and records say they are to be today, and the journal.

Put here what is compared of rows. `resources.ledger.rows` says which changes are lawful; rows of no run are
`verification`'s.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from backfill_assets.audit.findings import REPAIR, Findings, text_of
from backfill_assets.audit.ledger_and_chain import LedgerAndChain
from backfill_assets.audit.sealed_bundles import Damage
from backfill_assets.evidence.bundles import sealed_rows
from backfill_assets.evidence.events import ADOPTED, REFUSED
from backfill_assets.evidence.records import Record, kept_rows
from backfill_assets.evidence.seals import COMMITTED
from manifests.canonical import sha256_of
from manifests.lifecycle import WAS_PUBLISHED, PublicationState
from resources.evidence.chain import Link
from resources.files.places import Place
from resources.ledger.journal import Unexplained
from resources.ledger.rows import MOVING, Difference, Rows, differences, hashes_of, tables_of_runs


def check_ledger_rows(
    read: LedgerAndChain,
    run_id: str,
    bundle: Place,
    links: Sequence[Link],
    records: Sequence[Record],
    root: str,
    damage: Damage,
    found: Findings,
) -> Rows | None:
    """Hold every cell of the run's rows against the evidence; return the rows as the evidence has them.

    Of tables of which damaged evidence would say what they are to be, the rows are those that the journal explains.
    """
    whole = sorted(set(tables_of_runs()) - damage.tables)
    kept, sealed = kept_rows(bundle, records, whole), sealed_rows(bundle, whole)
    if kept is None:
        why = "published before the evidence kept rows and had a chain: only its files were checked; "
        found.notes.append(why + "`backfill doctor --repair` puts it under the chain as it is now")
        return None
    try:
        with read.platform.ledger.reading() as moment:
            here, by_hand = moment.rows_of(run_id), read.by_hand(moment, run_id)
    except sa.exc.DBAPIError as error:
        found.add("ledger", f"cannot be read: {error.orig}")
        return kept
    kept |= {table: here[table] for table in damage.tables}
    found.is_blind = any(table in damage.tables for table, _ in by_hand)
    if sealed is not None:
        sealed |= {table: here[table] for table in damage.tables}
    published = bool(links) or read.in_ledger.get(run_id) in WAS_PUBLISHED
    for one in differences(kept, here):
        known = replace(one, lawful=False) if (one.table, one.key) in by_hand else one
        _difference(known, here, found, published=published, sealed=sealed)
    check_journal(run_id, by_hand, found)
    _hashes(run_id, bundle, kept, root, found)
    if "publications" not in damage.tables and run_id not in read.journal.adopted:
        _untold(kept, records, found)
    if not damage.tables:
        _sum(bundle, links, records, kept, found)
    return kept


def check_journal(run_id: str, wrong: Mapping[tuple[str, str], Unexplained], found: Findings) -> None:
    """Name the rows that are not as the journal has them, but for those that are named already."""
    named = {" ".join(problem.where.split(" ")[:3]) for problem in found.problems}
    if (gone := wrong.get(("runs", run_id))) is not None and gone.found == "nothing":
        found.add(gone.where, f"is gone, with {len(wrong) - 1} other row(s) of it", gone.expected, gone.found)
        return
    for (table, key), one in wrong.items():
        if f"ledger {table} {key}" not in named:
            found.add(one.where, one.what, one.expected, one.found)


def _difference(one: Difference, here: Rows, found: Findings, *, published: bool, sealed: Rows | None) -> None:
    if one.lawful and not published and sealed is not None:
        if (note := "it has moved on since its bundle was sealed, and was not published") not in found.notes:
            found.notes.append(note)
        return
    if not published and len(here.get("amendments", {})) > len((sealed or {}).get("amendments", {})):
        note = "chunks were planned anew after its bundle was sealed: the next bundle has their rows"
        if note not in found.notes:
            found.notes.append(note)
        return
    if one.column:
        what = "is not what the evidence has"
    elif one.expected is not None:
        what = "is gone"
    else:
        what = "is a row that the evidence does not have"
    if one.table == "publications" and one.lawful and not one.column and _is_of_an_open_one(one.found, here):
        found.notes.append(f"{one.where}: a {one.found['action']} is under way, or was interrupted (`backfill doctor`)")
        return
    what += f": {one.why}" if one.why else ""
    if one.lawful:
        found.is_behind = True
        what += "; it may be an event that no record tells of yet: " + REPAIR
    found.add(one.where, what, "" if one.expected is None and not one.column else one.expected, one.found)


def _is_of_an_open_one(entry: Mapping[str, Any], here: Rows) -> bool:
    """Whether an entry is an open intent, or an earlier try of what one is about: the record of how it ends tells of both."""
    if entry["state"] == PublicationState.INTENT:
        return True
    tries = (one for one in here.get("publications", {}).values() if one["state"] == PublicationState.INTENT)
    return entry["state"] == PublicationState.ABANDONED and any(one["action"] == entry["action"] for one in tries)


def _untold(kept: Rows, records: Sequence[Record], found: Findings) -> None:
    """Name each change of a run that no record with what was committed is about; of earlier versions' runs nobody knows."""
    told = [one.content for one in records if one.number]
    if any(one["event"] == ADOPTED for one in told):
        return
    known = Counter((one.get("action"), one.get("snapshot_id")) for one in told if COMMITTED in one)
    done = Counter[
        tuple[Any, Any]
    ]()  # a version that is renamed back and forth has one snapshot, and each renaming a record
    for key, entry in sorted(kept.get("publications", {}).items(), key=lambda one: int(one[0])):
        what_of = (entry["action"], entry["snapshot_id"])
        done[what_of] += entry["state"] == PublicationState.COMMITTED
        if entry["state"] == PublicationState.COMMITTED and done[what_of] > known[what_of]:
            found.is_behind = True
            what = f"is a {entry['action']} that no record tells of, with what it has committed; {REPAIR}"
            found.add(f"ledger publications {key}", what)


def _hashes(run_id: str, bundle: Place, kept: Rows, root: str, found: Findings) -> None:
    """Hold the hashes in the rows against what they are of."""
    run = kept.get("runs", {}).get(run_id, {})
    for text, column in (("manifest", "manifest_hash"), ("plan", "plan_hash")):
        own = hashlib.sha256(text_of(run[text]).encode()).hexdigest() if text in run else None
        if own != run.get(column):
            found.add(f"{bundle.name}/{text}.json", f"does not have the {column} on record", run.get(column), own)
    for entry in kept.get("publications", {}).values():
        if entry["state"] == PublicationState.COMMITTED and entry["evidence_root"] != root:
            where = f"ledger publications {entry['id']} column evidence_root"
            found.add(where, "is another root than the bundle's", root, entry["evidence_root"])


def _sum(bundle: Place, links: Sequence[Link], records: Sequence[Record], kept: Rows, found: Findings) -> None:
    """Hold the kept rows against the hash of them that the run's last link gives."""
    numbered = sorted((one for one in records if one.number), key=lambda one: one.number)
    if not numbered or not links or numbered[-1].name != links[-1].content.get("record"):
        return  # a record that has no link yet, or one whose link is about no record of this place: named as such
    own, told = _sum_of(kept, numbered[-1]), links[-1].content.get("rows")
    if own == told:
        return
    where = f"chain link {links[-1].number}"
    if not found.problems and _was_summed_over_damage(bundle, links, numbered, kept):
        found.notes.append(
            f"{where} of a refusal was appended while the bundle was damaged, by an earlier version of this project: the "
            "hash of the rows that it gives is of what the damaged file said; each file, record and row is as recorded"
        )
        return
    found.add(where, "gives the hash of other rows than its records and the bundle add up to", told, own)


def _sum_of(kept: Rows, record: Record) -> str:
    """Return the hash of kept rows, of the tables that a record has hashes of, as the record's link gives it."""
    known = record.content.get("tables", {})
    return sha256_of({name: hash_ for name, hash_ in hashes_of(kept).items() if name in known})


def _was_summed_over_damage(bundle: Place, links: Sequence[Link], numbered: Sequence[Record], kept: Rows) -> bool:
    """Whether the sum of the last link is wrong in a way that an earlier version of this project has left behind.

    It recorded a refusal for damaged evidence with hashes of what the damaged file said. Whatever else a link says is right
    then, every file and record has its hash, and the rows add up until the refusals. Asked where nothing else is wrong:
    the sum alone proves nothing that those do not.
    """
    before = list(numbered)
    while before and before[-1].content.get("event") == REFUSED:
        before.pop()
    own = hashes_of(kept)
    if not before or len(before) == len(numbered) or len(links) != len(numbered):
        return False
    other = {name for name, hash_ in numbered[-1].content["tables"].items() if own.get(name) != hash_}
    rows = kept_rows(bundle, before)
    return other <= MOVING and rows is not None and _sum_of(rows, before[-1]) == links[len(before) - 1].content["rows"]
