"""Commits by which a run replaces, restores or exchanges files of its scopes, each one snapshot, and what refuses them.

Put here which files go, come back and must be there, publication by publication. How a commit is made and repeated is
`commits`'s; what a staged file must be, `data_files`'s; which change a publish mode makes is the publisher's to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from manifests.errors import Problem, PublicationRefused
from manifests.staged_file import StagedFile
from resources.lakehouse.catalog import Tables
from resources.lakehouse.commits import (
    Commit,
    commit_in_scopes,
    commit_replacement,
    end_of_contention,
    ensure_snapshot,
    landed,
    retry,
)
from resources.lakehouse.containment import days_of, in_words, reaching_out, require_in_scope, require_inside
from resources.lakehouse.data_files import data_files, gated_data_files
from resources.lakehouse.exchanges import same, taken_out
from resources.lakehouse.fences import require_unfenced
from resources.lakehouse.live_files import (
    ScopeChanged,
    files_at,
    files_in,
    is_at,
    live_files,
    pinned_snapshot,
    require_present,
    unchanged_files,
)
from resources.lakehouse.metadata import column_of
from resources.lakehouse.scopes import Scope
from resources.lakehouse.summaries import DIFF_PROPERTY, RUN_PROPERTY, snapshot_with, summary_of

_SHOWN = 10
"""Files that a refusal names."""


def replace_staged(
    tables: Tables,
    name: str,
    scopes: Sequence[tuple[Scope, int | None]],
    *,
    staged: Sequence[StagedFile],
    properties: Mapping[str, str],
    replaced: Collection[str] | None = None,
    branch: str = MAIN_BRANCH,
    token: int | None = None,
) -> Commit:
    """Replace files of scopes by staged ones; see `Lakehouse.replace`."""
    table = tables.table(name)
    require_unfenced(table, token)
    current = table.snapshot_by_name(branch)
    present: list[DataFile] = []
    old: list[DataFile] = []
    for scope, base_snapshot_id in scopes:
        own = unchanged_files(table, current, scope, base_snapshot_id)
        going = own if replaced is None else [file for file in own if file.file_path in replaced]
        require_in_scope(table, scope, going)
        present, old = present + own, old + going
    require_present(name, replaced or (), old)
    new = gated_data_files(table, staged)
    return commit_in_scopes(tables, table, [scope for scope, _ in scopes], old, new, properties, branch, token, present)


def require_unchanged(table: Table, scopes: Sequence[tuple[Scope, int | None]], *, replaced: bool = False) -> None:
    """Refuse if a scope's files are no longer those of its snapshot; see `Lakehouse.require_unchanged`."""
    current = table.current_snapshot()
    for scope, snapshot_id in scopes:
        if replaced or not is_at(current, snapshot_id):
            files = unchanged_files(table, current, scope, snapshot_id)
            require_in_scope(table, scope, files if replaced else ())


def put_rows(
    tables: Tables, name: str, where: BooleanExpression, staged: Sequence[StagedFile], properties: Mapping[str, str]
) -> int:
    """Make staged files the rows of a run in a table that keeps those of many; see `Lakehouse.put_rows`."""
    run_id, diff_id = properties[RUN_PROPERTY], properties[DIFF_PROPERTY]
    new = data_files(tables.table(name), [file.path for file in staged])

    def put(table: Table) -> None:
        earlier = snapshot_with(table, RUN_PROPERTY, run_id)
        if earlier is not None and summary_of(earlier)[DIFF_PROPERTY] == diff_id:
            return
        current = table.current_snapshot()
        old = [] if current is None else list(live_files(table, current, where))
        require_inside(table, where, f"run '{run_id}'", old)
        commit_replacement(table, where, old, new, properties)

    retry(tables, name, ensure_snapshot)
    retry(tables, name, put)
    return landed(tables, name, RUN_PROPERTY, run_id).snapshot_id


@dataclass
class Restoration:
    """What a restoration commits: the scopes as far as its files reach, and the files that go, come back, and are there."""

    scopes: list[Scope] = field(default_factory=list)
    going: dict[str, DataFile] = field(default_factory=dict)
    coming: dict[str, DataFile] = field(default_factory=dict)
    present: dict[str, DataFile] = field(default_factory=dict)


def restoration(
    table: Table, scopes: Sequence[Scope], from_snapshot_id: int, to_snapshot_id: int | None
) -> Restoration:
    """Return what `restore` would commit of a table just now; changes nothing.

    Raises:
        PublicationRefused: if a scope's files are no longer those of `from_snapshot_id`, or one that would go holds
            rows of other days.
    """
    wanted = Restoration()
    current = table.current_snapshot()
    for scope in scopes:
        published = {file.file_path: file for file in unchanged_files(table, current, scope, from_snapshot_id)}
        earlier = {file.file_path: file for file in files_at(table, to_snapshot_id, scope)}
        gone = {path: file for path, file in published.items() if path not in earlier}
        require_in_scope(table, scope, gone.values())
        back = {path: file for path, file in earlier.items() if path not in published}
        whole = _reach(table, scope, list(back.values()))
        wanted.scopes.append(whole)
        if whole != scope:  # it lost days of others with its own: nobody may have written those since
            published |= {file.file_path: file for file in unchanged_files(table, current, whole, from_snapshot_id)}
        wanted.present |= published
        wanted.going |= gone
        wanted.coming |= back
    _require_taken_out(table, from_snapshot_id, wanted.coming)
    return wanted


def _require_taken_out(table: Table, snapshot_id: int, coming: Mapping[str, DataFile]) -> None:
    """Refuse files to come back that are not those which a snapshot has taken out: the list of the one before was changed since.

    Raises:
        PublicationRefused: naming them.
    """
    gone = taken_out(table, pinned_snapshot(table, snapshot_id))
    if same(gone, coming.values()):
        return
    here = ".".join(table.name())
    others = sorted({file.file_path for file in gone} ^ coming.keys()) or sorted(coming)
    named = ", ".join(others[:_SHOWN]) + (f" … and {len(others) - _SHOWN} more" if len(others) > _SHOWN else "")
    raise PublicationRefused(
        Problem(
            f"what comes back into {here} is not what snapshot {snapshot_id} has taken out of it: {named}",
            "what comes back are the files that were replaced, described as they were",
            f"somebody has changed the metadata of {here} since: `backfill verify --data` says what it finds; restore the "
            "table's metadata from a backup, or restate the scope with a new run",
        )
    )


def restore(
    tables: Tables,
    name: str,
    scopes: Sequence[Scope],
    *,
    from_snapshot_id: int,
    to_snapshot_id: int | None,
    properties: Mapping[str, str],
    token: int | None = None,
) -> Commit:
    """Put the files that scopes had at a snapshot back in place of those of another; see `Lakehouse.restore`."""
    table = tables.table(name)
    require_unfenced(table, token)
    wanted = restoration(table, scopes, from_snapshot_id, to_snapshot_id)
    old, new, present = (list(files.values()) for files in (wanted.going, wanted.coming, wanted.present))
    as_of = None if to_snapshot_id is None else pinned_snapshot(table, to_snapshot_id)
    return commit_in_scopes(tables, table, wanted.scopes, old, new, properties, MAIN_BRANCH, token, present, as_of)


def _reach(table: Table, scope: Scope, files: Sequence[DataFile]) -> Scope:
    """Return the scope, made wider by the days beside it that files hold: of these, and of its own, all hours and parts.

    Raises:
        PublicationRefused: if one of them does not say which days it holds.
    """
    own = scope
    for file in reaching_out(table, own, files):
        days = days_of(table, scope.column, file)
        if days is None or (file.null_value_counts or {}).get(column_of(table, scope.column).field_id):
            raise PublicationRefused(
                Problem(
                    f"a file that would come back may hold rows of any day: {in_words(table, scope.column, file)}",
                    f"what is put back is what {scope} held, and what was there beside it is untouched since",
                    "restate the scope with a new run",
                )
            )
        scope = replace(scope.whole, start=min(scope.start, days[0]), end=max(scope.end, days[1]))
    return scope


def exchange(
    tables: Tables,
    name: str,
    scopes: Sequence[Scope],
    *,
    going: AbstractSet[str],
    coming: Sequence[StagedFile],
    at_snapshot_id: int | None,
    properties: Mapping[str, str],
    token: int | None = None,
    landed: Callable[[], Commit | None] = lambda: None,
) -> Commit:
    """Take files that are there out of scopes, and bring others back as they were at a snapshot; see `Lakehouse.exchange`."""
    wanted = {file.path: file for file in coming}
    give_up = end_of_contention()
    while True:
        table = tables.table(name)
        require_unfenced(table, token)
        current = table.current_snapshot()
        present = {file.file_path: file for scope in scopes for file in files_in(table, current, scope)}
        if (done := landed()) is not None:  # asked after that look: what lands from here on makes the commit fail
            return done
        known = at_snapshot_id if at_snapshot_id and table.snapshot_by_id(at_snapshot_id) else None
        then = {file.file_path: file for scope in scopes for file in files_at(table, known, scope)}
        old = [present[path] for path in sorted(going & present.keys())]
        missing = wanted.keys() - present.keys()
        expired = gated_data_files(table, [wanted[path] for path in sorted(missing - then.keys())])
        new = [then[path] for path in sorted(missing & then.keys())] + expired
        try:
            return commit_in_scopes(
                tables, table, scopes, old, new, properties, MAIN_BRANCH, token, list(present.values())
            )
        except ScopeChanged:  # others have added files between the look and the commit: they are no reason
            if time.monotonic() > give_up:
                raise
