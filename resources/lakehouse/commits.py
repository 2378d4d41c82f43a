"""One commit to a table, fenced, tried again while others come between, and found again when its outcome was in doubt.

Put here how a commit is made and repeated. Which files go and come is for `replacements` and `load_commits`; commits of refs are
in `refs`; what is overridden of PyIceberg for it, in `pyiceberg_private`. Whether a commit may happen is the publisher's to
decide. Every commit of files is one snapshot, by metadata alone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot

from manifests.errors import EnvironmentRefused, Problem
from resources.lakehouse.catalog import Tables
from resources.lakehouse.catalog_errors import known_outcome
from resources.lakehouse.declared_tables import isolation_problems
from resources.lakehouse.fences import not_fenced, require_unfenced
from resources.lakehouse.live_files import files_in, require_same_files, sequence_numbers
from resources.lakehouse.lookups import changed_by
from resources.lakehouse.metadata import committable, require_countable
from resources.lakehouse.pyiceberg_private import Append, EmptySnapshot, QuickTransaction, Replacement, Rewriting
from resources.lakehouse.scopes import Scope, any_of, span_of
from resources.lakehouse.summaries import ACTION_PROPERTY, RUN_PROPERTY, each_with, snapshot_with
from resources.logs import traces

FENCE_ACTION = "fence"
"""Action of the empty snapshot that a table without any is given, so that a ref has something to name."""
_CONTENTION_SECONDS = 60.0
"""How long a commit is tried again because commits elsewhere in the table came between."""


@dataclass(frozen=True)
class Commit:
    """A commit that landed."""

    snapshot_id: int
    files_added: int
    files_removed: int


def commit_replacement(
    table: Table,
    scope: BooleanExpression,
    old: Iterable[DataFile],
    new: Iterable[DataFile],
    properties: Mapping[str, str],
    *,
    branch: str = MAIN_BRANCH,
    token: int | None = None,
    same_rows: Mapping[str, int] | None = None,
) -> int:
    """Commit one snapshot that has `new` in place of `old`, if the lease of `token` is not fenced; return its id.

    With `same_rows` it says that readers have the rows that they had, and files that delete rows may be among those that go and
    come: it has the data sequence number of each file that comes back, by path.

    The scope is given to the commit as its predicate: that is what limits conflict detection to it. Without it, any
    concurrent append anywhere in the table would abort the commit.
    """
    head = table.snapshot_by_name(branch)
    require_countable(table, head)
    operation = Operation.APPEND if head is None else Operation.OVERWRITE
    gone, made = list(old), Replacement if same_rows is None else Rewriting
    with QuickTransaction(table) as transaction:
        replacement = made(operation, transaction, table.io, snapshot_properties=dict(properties), branch=branch)
        replacement.own_requirements = not_fenced(token)
        if isinstance(replacement, Rewriting):
            replacement.sequence_numbers = same_rows or {}
            replacement.deletes_going = frozenset(file for file in gone if file.content != DataFileContent.DATA)
            gone = [file for file in gone if file.content == DataFileContent.DATA]
        with replacement as update:
            update.delete_by_predicate(scope)
            for file in gone:
                update.delete_data_file(file)
            for file in new:
                update.append_data_file(file)
    return replacement.snapshot_id


def commit_append(
    table: Table, files: Iterable[DataFile], properties: Mapping[str, str], token: int | None = None
) -> None:
    """Commit one snapshot that has `files` besides those that main has, if the lease of `token` is not fenced.

    Raises:
        LeaseLost: if the token is fenced.
        UnreadableMetadata: if what main has cannot be read.
    """
    require_unfenced(table, token)
    require_countable(table, table.current_snapshot())
    with table.transaction() as transaction:
        append = Append(Operation.APPEND, transaction, table.io, snapshot_properties=dict(properties))
        append.table = table
        append.own_requirements = not_fenced(token)
        with append as update:
            for file in files:
                update.append_data_file(file)


def ensure_snapshot(table: Table) -> None:
    """Give a table without snapshots an empty one, on no branch: a ref can name it, and readers never see it."""
    if not table.snapshots():
        with (
            table.transaction() as transaction,
            EmptySnapshot(
                Operation.APPEND,
                transaction,
                table.io,
                snapshot_properties={ACTION_PROPERTY: FENCE_ACTION},
                branch=None,
            ),
        ):
            pass


def commits_once(table: Table) -> Table:
    """Return a table whose commits fail if another one came between, and are not tried again by PyIceberg.

    It takes that from a table property, which the tables of an installation have set otherwise. This one is changed here
    only: a commit sends its own updates to the catalog, and not the properties it was made with.
    """
    once = dict(table.metadata.properties) | {TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": once})
    return table


def end_of_contention() -> float:
    """Return until when (of `time.monotonic`) a commit that begins now is tried again."""
    return time.monotonic() + _CONTENTION_SECONDS


def retry(tables: Tables, name: str, commit: Callable[[Table], None], table: Table | None = None) -> None:
    """Make a commit on fresh metadata (first on that of `table`), again if another one came between, for a bounded time.

    Raises:
        EnvironmentRefused: if others never let it through, and nothing has changed; or if the catalog could not be
            reached, or could not say what came of the commit, and it may have landed.
        UnreadableMetadata: if the table's metadata is none that a commit could go on from.
    """
    give_up = end_of_contention()
    pause = 0.05
    while True:
        try:
            with known_outcome(name), committable(name):
                return commit(table or tables.table(name))
        except (CommitFailedException, ValidationException) as error:  # or files of the same scope came between
            if time.monotonic() > give_up:
                raise EnvironmentRefused(
                    Problem(
                        f"{name} could not be committed to for {_CONTENTION_SECONDS:.0f} s: {error}",
                        "a commit lands if no other commit to the table happens at the same moment",
                        "nothing has changed; run the same command again when fewer others write",
                    )
                ) from error
        table = None
        time.sleep(random.uniform(0, pause))  # noqa: S311 - to part those who collided
        pause = min(2 * pause, 1.0)


def landed(
    tables: Tables, name: str, key: str, value: str, action: str | None = None, branch: str = MAIN_BRANCH
) -> Snapshot:
    """Return the snapshot of a commit that has returned, by a property of its summary."""
    snapshot = snapshot_with(tables.table(name), key, value, action, branch)
    if snapshot is None:
        raise RuntimeError(f"the commit of {key}={value} to {name} returned, but its snapshot is not in the history")
    return snapshot


def _require_isolation(table: Table) -> None:
    if problems := isolation_problems(table):
        raise EnvironmentRefused(problems)


def _numbers_of(table: Table, files: Sequence[DataFile], as_of: Snapshot | None) -> dict[str, int]:
    """Return the data sequence number of each file that comes back from a snapshot, by path."""
    had = {} if as_of is None else sequence_numbers(table, as_of)
    return {file.file_path: had[file.file_path] for file in files if file.file_path in had}


def commit_in_scopes(
    tables: Tables,
    table: Table,
    scopes: Sequence[Scope],
    old: Sequence[DataFile],
    new: Sequence[DataFile],
    properties: Mapping[str, str],
    branch: str = MAIN_BRANCH,
    token: int | None = None,
    present: Sequence[DataFile] | None = None,
    as_of: Snapshot | None = None,
) -> Commit:
    """Commit a replacement for a run's action; it is tried again while commits elsewhere in the table come between.

    A commit that failed has changed nothing, unless it landed and was reported otherwise: that is looked up first, and then whether
    the scopes still hold the same files: only that refuses, whatever PyIceberg said. `present` are the files that the scopes
    hold, where not all of them go. Of scopes with the `same_rows`, `as_of` is the snapshot whose files come back.

    Raises:
        EnvironmentRefused: if the table would let a concurrent append through; and as `retry` does.
        LeaseLost: if the token is fenced.
        ScopeChanged: if the scopes no longer hold those files; nothing has changed then.
    """
    _require_isolation(table)
    name = ".".join(table.name())
    anywhere, span = any_of(scopes), span_of(scopes)
    known = {snapshot.snapshot_id for snapshot in table.snapshots()}
    run_id, action = properties[RUN_PROPERTY], properties[ACTION_PROPERTY]
    exchanged = {file.file_path for file in new}, {file.file_path for file in old}
    tried, committed = False, set[int]()
    back = _numbers_of(table, new, as_of) if scopes[0].same_rows else None
    commit = partial(commit_replacement, branch=branch, token=token, same_rows=back)

    def made(table: Table) -> Snapshot | None:
        """Return the snapshot of this replacement: what else came since may say the same words of itself."""
        said = list(each_with(table, RUN_PROPERTY, run_id, action, branch))
        ours = next((one for one in said if one.snapshot_id in committed), None)
        others = (one for one in said if one.snapshot_id not in known)
        return ours or next((one for one in others if changed_by(table, one) == exchanged), None)

    def replace_files(table: Table) -> None:
        nonlocal tried
        if tried and made(table) is not None:
            return  # it has landed, whatever the catalog has said, and whoever has the lease by now
        require_unfenced(table, token)
        if tried:
            there = [file for one in scopes for file in files_in(table, table.snapshot_by_name(branch), one)]
            require_same_files(name, span, old if present is None else present, there)
        tried = True
        committed.add(commit(table, anywhere, old, new, properties))

    with traces.span("commit", table=name, action=action, files_added=len(new), files_removed=len(old)):
        retry(tables, name, replace_files, table)
        snapshot = made(tables.table(name))
        if snapshot is None:
            raise RuntimeError(
                f"the commit of {action} of '{run_id}' to {name} returned, and no snapshot of it is there"
            )
        traces.note(snapshot_id=str(snapshot.snapshot_id))
    return Commit(snapshot.snapshot_id, len(new), len(old))
