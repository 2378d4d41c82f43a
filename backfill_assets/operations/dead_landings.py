"""Files of attempts to land a range that died before their commit: found, and removed if nothing has come to need them.

Put here what is asked of tables that topics are landed in. What of targets nothing needs is `garbage`'s, whose command shows and removes these.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from datetime import datetime

from pyiceberg.table import Table

from backfill_assets.installation import Platform
from backfill_assets.operations.garbage_found import GRACE, SCRATCH, Collected, Garbage, TableGarbage
from manifests.errors import InputRefused
from resources.lakehouse.history import referenced
from resources.lakehouse.loads import LANDING_FOLDER
from resources.lakehouse.storage import FileFound, Storage


def find(platform: Platform, at: datetime) -> Iterator[TableGarbage]:
    """Yield what is left of attempts to land ranges of logs, by the tables that these are landed in."""
    for name in sorted({topic.table for topic in platform.products.topics.values()}):
        if files := _dead_files(platform, name, at - GRACE):
            found = [Garbage(SCRATCH, posixpath.basename(posixpath.dirname(file.path)), file) for file in files]
            yield TableGarbage("", name, (), (), tuple(found))


def collect(platform: Platform, listed: TableGarbage, at: datetime, tell: Callable[[int], None]) -> Collected:
    """Remove what is left of attempts to land ranges, as far as it is as it was seen and nothing needs it now either."""
    files = [item.file for item in listed.files]
    removed = _remove(platform, listed.table, files, at - GRACE)
    left = {file.path: "it is needed now, or it changed since it was listed" for file in files if file not in removed}
    tell(len(files))
    return Collected(listed.table, files=len(removed), bytes=sum(file.bytes for file in removed), left=left)


def _dead_files(platform: Platform, name: str, before: datetime) -> list[FileFound]:
    """Return the files of landings that no snapshot has, of folders in which nothing has changed since an instant."""
    try:
        table = platform.lakehouse.table(name)
    except InputRefused:
        return []  # declared and not made yet: there is nothing of it
    return _dead(table, Storage(table), before)


def _dead(table: Table, storage: Storage, before: datetime) -> list[FileFound]:
    old: list[FileFound] = []
    for folder in storage.folders(posixpath.join(storage.location, "data")):
        if posixpath.basename(folder).startswith(LANDING_FOLDER):
            files = storage.files(folder)
            if all(0 < file.modified_ns < before.timestamp() * 1e9 for file in files):
                old += files
    if not old:
        return []
    live = referenced(table, {one.snapshot_id for one in table.snapshots()})
    return [file for file in old if file.path not in live]


def _remove(platform: Platform, name: str, listed: list[FileFound], before: datetime) -> list[FileFound]:
    """Remove those of the listed files that are still as they were seen and that nothing needs now either; return them."""
    table = platform.lakehouse.table(name)
    storage = Storage(table)
    still = _dead(table, storage, before)
    removed = [file for file in listed if file in still and storage.delete(file)]
    for folder in sorted({posixpath.dirname(file.path) for file in removed}):
        storage.drop_empty(folder)
    return removed
