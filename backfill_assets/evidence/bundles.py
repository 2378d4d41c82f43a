"""A run's sealed bundle: which files it is made of, where the ledger's rows lie in them, and which of several bundles counts.

Put here how a bundle is read. `bundle_contents` says what is put into one, `resources.evidence.store` which of its files
were changed since.
"""

from __future__ import annotations

from collections.abc import Sequence

from backfill_assets.installation import Platform
from resources.evidence.store import INDEX, examine
from resources.files.kept_files import read_json
from resources.files.places import Place, found_in, is_there
from resources.ledger.rows import Rows
from resources.ledger.tables import runs

RUN_FILE, _MANIFEST_FILE, _PLAN_FILE = "run.json", "manifest.json", "plan.json"
AMENDMENTS = "amendments"
"""The table of what was planned anew, and how often: a bundle's edition."""
_FILES = {"sink_attempts": "sink_requests"}
FILED_APART = {"manifest": _MANIFEST_FILE, "plan": _PLAN_FILE}
ALL_TABLES = frozenset(name for name, table in runs.metadata.tables.items() if "run_id" in table.c)
"""The tables of the ledger that can have rows of a run, `runs` among them."""


def file_of(table: str) -> str:
    """Return the file of a bundle that has the rows of a table, but for `runs`, which has several."""
    return f"{_FILES.get(table, table)}.json"


def files_of(table: str) -> set[str]:
    """Return the files of a bundle that have the rows of one of the ledger's tables."""
    return {RUN_FILE, *FILED_APART.values()} if table == "runs" else {file_of(table)}


def tables_in(files: set[str]) -> frozenset[str]:
    """Return the tables whose rows are in some files of a bundle; all of them if the list of its files is among those."""
    return ALL_TABLES if INDEX in files else frozenset(one for one in ALL_TABLES if not files.isdisjoint(files_of(one)))


def damaged_tables(bundle: Place, run_id: str) -> frozenset[str]:
    """Return the tables whose rows a bundle no longer has as it was sealed; all of them where nothing says which files were."""
    return tables_in({one.name for one in examine(bundle, run_id)[1]})


def sealed_rows(bundle: Place, tables: Sequence[str] | None = None) -> Rows | None:
    """Return the ledger's rows as a bundle has them; None if an earlier version sealed it, without them.

    Raises:
        EnvironmentRefused: if something else lies in the place of a file of the bundle, or it cannot be read.
        ValueError: if a file of the bundle is no JSON any more.
    """
    if not is_there(bundle / RUN_FILE) and (tables is None or "runs" in tables):
        return None
    rows: Rows = {}
    keys = {"chunks": "chunk"}
    for file in found_in(bundle, "*.json"):
        table = next((name for name, other in _FILES.items() if other == file.stem), file.stem)
        if file.name == RUN_FILE and (tables is None or "runs" in tables):
            run = read_json(file)
            apart = {cell: read_json(bundle / name) for cell, name in FILED_APART.items()}
            rows["runs"] = {run["run_id"]: run | apart}
        elif table in ALL_TABLES - {"runs"} and (tables is None or table in tables):
            rows[table] = {str(row[keys.get(table, "id")]): row for row in read_json(file)}
    return rows


def bundle_in_use(platform: Platform, run_id: str) -> Place:
    """Return the bundle with which a run was published: whose root its links cite, else the ledger's entries; or would be."""
    store = platform.evidence
    bundles = store.bundles(run_id)
    if len(bundles) > 1 and not store.cited(run_id):  # nothing of it was told yet
        done = {one.evidence_root for one in platform.ledger.publications(run_id) if one.has_landed}
        own = store.path(run_id, len(platform.ledger.amendments(run_id)))
        return next((one for one in bundles if examine(one, run_id)[0] in done), own if own in bundles else bundles[-1])
    return store.path(run_id)


def root_of(bundle: Place) -> str:
    """Return the root hash that a bundle's index gives: whether it is right is for whoever verifies."""
    return str(read_json(bundle / "index.json")["root"])
