"""Commits of loads: rows appended, staged files appended, a small table overwritten, and a load taken back; each once.

Put here what makes a load land exactly once, whoever else makes the same one. How a load is recognised in a table's history,
and what undoing it changes, is `loads`'s; how a commit is made and repeated, `commits`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from resources.lakehouse.catalog import Tables
from resources.lakehouse.commits import Commit, commit_append, commit_replacement, commits_once, landed, retry
from resources.lakehouse.contents import content_property
from resources.lakehouse.data_files import data_files
from resources.lakehouse.fences import require_unfenced
from resources.lakehouse.live_files import all_files
from resources.lakehouse.loads import DATA_VERSION_PROPERTY, LOAD_PROPERTY, UNDOES_PROPERTY, loads_of, undoing
from resources.lakehouse.lookups import has_version
from resources.lakehouse.pyiceberg_private import write_data_files
from resources.lakehouse.summaries import snapshot_with
from resources.logs import traces


class VersionTaken(Exception):  # noqa: N818 - a fact that the caller words, not yet an error
    """The name of a version stands for other content of its table by now."""


class LoadedSince(Exception):  # noqa: N818 - likewise
    """Another load has become a table's newest content; it is the exception's only argument."""


def append(
    tables: Tables, name: str, batches: Iterable[Any], properties: Mapping[str, str], token: int | None = None
) -> Commit | None:
    """Append Arrow tables as one snapshot; see `Lakehouse.append`."""
    table = tables.table(name)
    if snapshot_with(table, LOAD_PROPERTY, properties[LOAD_PROPERTY]) is not None:
        return None
    files: list[DataFile] = []
    for batch in batches:
        files += write_data_files(table, batch)
    said = {**properties, **content_property(table, [file.file_path for file in files])}
    new = _load_once(tables, name, properties, lambda table: commit_append(table, files, said, token))
    if new is None:
        _delete_unreferenced(tables.table(name), properties[LOAD_PROPERTY], [file.file_path for file in files])
        return None
    return Commit(new.snapshot_id, len(files), 0)


def _delete_unreferenced(table: Table, load_id: str, written: Sequence[str]) -> None:
    """Delete files of a load that another process has committed first: nobody knows their names but this one.

    If the load's snapshot has them it was this process's own commit that landed, whatever the catalog has said.
    """
    snapshot = snapshot_with(table, LOAD_PROPERTY, load_id)
    known = {file.file_path for file in all_files(table, snapshot)} if snapshot else set(written)
    if known.isdisjoint(written):
        for path in written:
            table.io.delete(path)


def append_files(
    tables: Tables, name: str, paths: Sequence[str], properties: Mapping[str, str], token: int | None = None
) -> Snapshot:
    """Append staged files as one snapshot, or find the one that has the same load id."""

    def commit(table: Table) -> None:
        commit_append(table, data_files(table, paths), {**properties, **content_property(table, paths)}, token)

    with traces.span("commit", table=name, files_added=len(paths), files_removed=0):
        new = _load_once(tables, name, properties, commit)
        done = new or landed(tables, name, LOAD_PROPERTY, properties[LOAD_PROPERTY])
        traces.note(snapshot_id=str(done.snapshot_id))
    return done


def overwrite_rows(
    tables: Tables,
    name: str,
    rows: Any,
    properties: Mapping[str, str],
    *,
    new_version: bool = False,
    replacing: str | None = None,
    token: int | None = None,
) -> Commit | None:
    """Make an Arrow table the whole content of a small table, as one snapshot; see `Lakehouse.overwrite_rows`."""
    counts: list[int] = []

    def overwrite(table: Table) -> None:
        require_unfenced(table, token)
        current = table.current_snapshot()
        if new_version and has_version(table, properties[DATA_VERSION_PROPERTY]):
            raise VersionTaken(properties[DATA_VERSION_PROPERTY])
        if replacing is not None:
            newest = next(load for load in reversed(loads_of(table)) if load.undone_by is None)
            if newest.load_id != replacing:
                raise LoadedSince(newest)
        old = all_files(table, current)
        new = list(write_data_files(table, rows))
        counts[:] = [len(new), len(old)]
        said = {**properties, **content_property(table, [file.file_path for file in new])}
        commit_replacement(table, AlwaysTrue(), old, new, said, token=token)

    new = _load_once(tables, name, properties, overwrite)
    return None if new is None else Commit(new.snapshot_id, *counts)


def undo_load(
    tables: Tables, name: str, load_id: str, properties: Mapping[str, str], token: int | None = None
) -> Snapshot:
    """Take back the files of a load as one snapshot; see `Lakehouse.undo_load`."""

    def undo(table: Table) -> None:
        if (changes := undoing(table, load_id)) is not None:
            require_unfenced(table, token)
            gone, back = changes
            said = {**properties, UNDOES_PROPERTY: load_id}
            commit_replacement(commits_once(table), AlwaysTrue(), gone, back, said, token=token)

    retry(tables, name, undo)
    return landed(tables, name, UNDOES_PROPERTY, load_id)


def _load_once(
    tables: Tables, name: str, properties: Mapping[str, str], commit: Callable[[Table], None]
) -> Snapshot | None:
    """Commit a load; return its snapshot, or None if another process has committed the same load.

    Every try looks for the load first, in the metadata that it commits to. PyIceberg's own retries would not look.
    """
    load_id, tried = properties[LOAD_PROPERTY], False

    def load(table: Table) -> None:
        nonlocal tried
        if snapshot_with(table, LOAD_PROPERTY, load_id) is None:
            tried = True
            commit(commits_once(table))
        else:
            tried = False

    retry(tables, name, load)
    return landed(tables, name, LOAD_PROPERTY, load_id) if tried else None
