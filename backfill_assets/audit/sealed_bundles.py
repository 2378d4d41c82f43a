"""A run's folder of the evidence: is each bundle as it was sealed, which one was published, and what of it is damaged.

Put here what is compared of bundles and the links that vouch for them. Records are `linked_records`', what the rows in a bundle
say `ledger_rows`'. Which names there may be in the folder is `foreign_files`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backfill_assets.audit.findings import Findings, shown_hash
from backfill_assets.audit.foreign_files import begun_bundles, interrupted, strange_files
from backfill_assets.audit.ledger_and_chain import LedgerAndChain
from backfill_assets.audit.published_tables import PublishedTables
from backfill_assets.evidence.bundles import RUN_FILE, files_of
from manifests.errors import EnvironmentRefused
from manifests.lifecycle import WAS_PUBLISHED
from resources.evidence.chain import Link
from resources.evidence.store import INDEX, SEALED, examine
from resources.files.kept_files import read_json
from resources.files.places import Place, is_there, names_in
from resources.lakehouse.facade import EVIDENCE_PROPERTY, RUN_PROPERTY
from resources.lakehouse.snapshots import summary_facts
from resources.ledger.rows import MOVING, tables_of_runs


@dataclass(frozen=True)
class Damage:
    """What of a run's evidence is not as it was written: nothing is compared with what it says now.

    `files` of its bundle; `tables` of the ledger of whose rows those files, or damaged records, would say what they are to be.
    """

    files: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()


def check_bundles(
    read: LedgerAndChain, tables: PublishedTables, run_id: str, links: Sequence[Link], found: Findings
) -> tuple[Place | None, str]:
    """Hash every file of every bundle; return the one that was published (else the last) and its root."""
    store = read.platform.evidence
    sealing = read.links_of(run_id, SEALED)
    sealed = {(str(link.content.get("bundle")), str(link.content.get("root"))) for link in sealing}
    rooted = {str(link.content.get("root")) for link in links}
    chosen: tuple[Place | None, str] = (None, "")
    for bundle in store.bundles(run_id):
        root, changed = examine(bundle, run_id)
        for one in changed:
            file = f"{run_id}/{bundle.name}/{one.name}".removesuffix("/.")
            found.add(file, "was changed after it was sealed", shown_hash(one.expected), shown_hash(one.found))
        if changed:
            root = _told_root(bundle)
        elif (bundle.name, root) not in sealed and (sealed or root not in rooted):  # an earlier version: of no link
            what = "is a bundle that no link of the chain vouches for: this project has not sealed it"
            found.add(f"{run_id}/{bundle.name}", what, found=f"root {root}")
        if chosen[0] is None or root in rooted or chosen[1] not in rooted:
            chosen = (bundle, root)
    if chosen[0] is None and (links or read.in_ledger.get(run_id) in WAS_PUBLISHED):
        found.add(f"{run_id}/bundle", "is missing: a published run has a sealed bundle", ", ".join(sorted(rooted)))
    elif rooted and chosen[1] not in rooted:
        found.add(
            f"{run_id}/{chosen[0].name if chosen[0] else 'bundle'}",
            "has another root than the chain",
            ", ".join(sorted(rooted)),
            chosen[1],
        )
    there = {(bundle.name, _told_root(bundle)) for bundle in store.bundles(run_id)}
    placed = {link.number: (str(link.content.get("bundle")), str(link.content.get("root"))) for link in sealing}
    missing = [link for link in sealing if placed[link.number] not in there]
    begun = begun_bundles(store, run_id) if missing else set()
    needed = rooted | _roots_of_changes(read, tables, run_id, found) if missing else rooted
    for link in missing:
        place = placed[link.number]
        if place not in begun or place[1] in needed:  # else a process ended before it could put it in its place
            found.is_behind = True
            what = f"is not there with the root that link {link.number} of the chain vouches for"
            found.add(f"{run_id}/{place[0]}", what, place[1], "nothing")
    return chosen


def _roots_of_changes(read: LedgerAndChain, tables: PublishedTables, run_id: str, found: Findings) -> set[str]:
    """Return the roots with which a run has set out to change its tables, or has put a candidate on its branch.

    Those bundles were in their place by then.
    """
    if read.ledger_problems:
        return set()
    with read.platform.ledger.reading() as moment:
        rows = moment.rows_of(run_id, ["publications", "runs"])
    roots = {str(entry["evidence_root"]) for entry in rows["publications"].values()}
    for table in {str(run["target"]) for run in rows["runs"].values()}:
        seen = tables.seen(table, found)
        said = [summary_facts(one) for one in seen.by_id.values()] if seen is not None else []
        roots |= {
            one[EVIDENCE_PROPERTY] for one in said if one.get(RUN_PROPERTY) == run_id and EVIDENCE_PROPERTY in one
        }
    return roots


def damage_of(
    read: LedgerAndChain, bundle: Place | None, links: Sequence[Link], harmed: Sequence[str], found: Findings
) -> Damage:
    """Return what of bundle and records is damaged, and note once that nothing is compared with it."""
    run_id = found.run_id
    files: frozenset[str] = frozenset()
    if bundle is not None:
        root, changed = examine(bundle, run_id)
        sealing = read.links_of(run_id, SEALED)
        sealed = {(str(one.content.get("bundle")), str(one.content.get("root"))) for one in sealing}
        files = frozenset(one.name for one in changed)
        if INDEX in files and (bundle.name, root) not in sealed:  # nothing says which of the others are as they were
            files |= set(names_in(bundle)) | {file for name in tables_of_runs() for file in files_of(name)}
    tables = {name for name in tables_of_runs() if not files.isdisjoint(files_of(name))}
    if bundle is not None and RUN_FILE not in files and not is_there(bundle / RUN_FILE):
        tables.clear()  # an earlier version sealed it, without rows
    if any(one.content.get("record") in harmed for one in links):
        tables |= MOVING
    folder = f"{run_id}/{bundle.name}" if bundle is not None else run_id
    named = [INDEX] if INDEX in files else sorted(files)
    named = [f"{folder}/{name}" for name in named] + [f"{run_id}/records/{name}.json" for name in harmed]
    if named:
        found.notes.append(
            f"what was said in {', '.join(named)} could not be compared with anything: restore the file(s), and verify again"
        )
    return Damage(files, frozenset(tables))


def check_folder(read: LedgerAndChain, run_id: str, found: Findings) -> None:
    """Name what else lies in the run's folder."""
    for one in strange_files(read.platform.evidence, run_id):
        found.add(one.where, one.what, one.expected, one.found)
    for left in interrupted(read.platform.evidence, run_id):
        found.notes.append(f"{left} is what a process has left that ended while it sealed a bundle: it proves nothing")


def _told_root(bundle: Place) -> str:
    """Return the root that a damaged bundle's index gives, for naming; empty if it gives none."""
    try:
        return str(read_json(bundle / INDEX)["root"])
    except (FileNotFoundError, EnvironmentRefused, ValueError, KeyError, TypeError):
        return ""
