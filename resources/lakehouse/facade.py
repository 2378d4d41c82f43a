"""Iceberg through PyIceberg: pinned reads, staged files, and the commits that change what readers see.

Put here what talks to the catalog or to table metadata. Computing and writing data files is Spark's; deciding
whether a commit may happen is the publisher's. Every commit here is one snapshot, by metadata alone.
"""

from __future__ import annotations

import hashlib
import posixpath
import random
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import pyarrow.parquet as pq
from pyarrow import ArrowException, BufferReader
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    Or,
)
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.io.fileformat import DataFileStatistics
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_file_to_data_file,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import ManifestGroupPlanner, Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    UpdatesAndRequirements,
)
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT, Record
from pyiceberg.types import DateType, StringType, TimestamptzType
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from manifests.errors import EnvironmentRefused, InputRefused, LeaseLost, Problem, PublicationRefused
from manifests.planner import ReferenceState, SourceFile, SourceState, StagedFile
from resources.files.fingerprints import read_footer
from resources.files.local_files import NAME as TABLE_FILE_IO
from resources.files.local_files import open_as_the_catalog_says
from resources.files.sqlite_files import require_files
from resources.lakehouse.containment import days_of, in_words, reaching_beyond, require_inside
from resources.lakehouse.contents import content_property
from resources.lakehouse.declared_tables import isolation_problems, require_as_declared
from resources.lakehouse.gated_contents import require_gated_contents
from resources.lakehouse.lineage import ancestors
from resources.lakehouse.loads import (
    DATA_VERSION_PROPERTY,
    LOAD_PROPERTY,
    UNDOES_PROPERTY,
    Load,
    loads_of,
    snapshots_with,
    undoing,
)
from resources.lakehouse.metadata import (
    column_of,
    committable,
    committed_at,
    count_said,
    readable_bounds,
    readable_metadata,
    readable_rows,
    readable_table,
    require_countable,
    wrong_type,
)
from resources.ledger.locks import lost

RUN_PROPERTY = "backfill.run-id"
"""Snapshot summary key of the run that a publication belongs to."""
ACTION_PROPERTY = "backfill.action"
SEQUENCE_PROPERTY = "backfill.sequence"
"""Which of a run's changes to the table it is: a run may be rolled back, reinstated and rolled back again."""
PLAN_PROPERTY = "backfill.plan-hash"
EVIDENCE_PROPERTY = "backfill.evidence-root"
VERSION_PROPERTY = "backfill.transform-version"
DIFF_PROPERTY = "backfill.diff-id"
"""Snapshot summary key of a run's changed rows: the same ones are never put into the changes table twice."""
FENCE_ACTION = "fence"
_FOOTER_READERS = 8
_PARTITION = 3
"""Place of the partition in PyIceberg's record of a data file."""
_CONTENTION_SECONDS = 60.0
"""How long a commit is tried again because commits elsewhere in the table came between."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class PinnedRead:
    """The data files of one table at one snapshot that a read needs, and the schema they are read with.

    `rows` and `bytes` are those of the whole files: a read may leave some of their rows out.
    """

    table: str
    snapshot_id: int | None
    schema: Schema
    paths: tuple[str, ...]
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Scope:
    """Days of a table's day column, both inclusive: what one publication may touch."""

    column: str
    start: date
    end: date

    @property
    def filter(self) -> BooleanExpression:
        """The scope as an Iceberg expression."""
        return And(
            GreaterThanOrEqual(term=self.column, value=self.start.isoformat()),
            LessThanOrEqual(term=self.column, value=self.end.isoformat()),
        )

    def __str__(self) -> str:
        return f"{self.start} to {self.end}"


class ScopeChanged(PublicationRefused):
    """Somebody else has written into the scope since the plan was made."""


@dataclass(frozen=True)
class Commit:
    """A commit that landed."""

    snapshot_id: int
    files_added: int
    files_removed: int


class VersionTaken(Exception):  # noqa: N818 - a fact that the caller words, not yet an error
    """The name of a version stands for other content of its table by now."""


class Lakehouse:
    """The tables of one catalog; see the module."""

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self._name = name
        self._properties = dict(properties)
        self._catalog: Catalog | None = None

    @property
    def catalog(self) -> Catalog:
        """The PyIceberg catalog, opened at first use.

        Raises:
            EnvironmentRefused: if it cannot be reached.
        """
        if self._catalog is None:
            self._require_database()
            try:
                # its own tables are made by `backfill init` only: a refused command leaves nothing behind
                properties = {"init_catalog_tables": "false", PY_IO_IMPL: TABLE_FILE_IO} | _patient(self._properties)
                self._catalog = open_as_the_catalog_says(load_catalog(self._name, **properties))
            except Exception as error:
                raise EnvironmentRefused(
                    Problem(
                        f"the catalog '{self._name}' cannot be opened: {type(error).__name__}: {error}",
                        "the catalog properties are those of a reachable PyIceberg catalog",
                        "see `backfill config`; for the embedded default, run `backfill init`",
                    )
                ) from error
        return self._catalog

    def _require_database(self) -> None:
        """Refuse a SQLite catalog whose file is missing (opening it would create it), or whose files are none."""
        if self._properties.get("uri", "").startswith("sqlite"):
            require_files(self._properties["uri"], f"the catalog '{self._name}'")
        file = self._properties.get("uri", "").partition("sqlite:///")[2]
        if file and self._properties.get("init_catalog_tables") != "true" and not Path(file).exists():
            raise EnvironmentRefused(
                Problem(
                    f"the catalog '{self._name}' cannot be used: {file} does not exist",
                    "the catalog exists and can be reached",
                    "see `backfill config`; for the embedded default, run `backfill init`",
                )
            )

    def create_catalog(self) -> None:
        """Create what the catalog itself needs (a SQL catalog's own tables); safe to repeat.

        Raises:
            EnvironmentRefused: if it cannot be reached.
        """
        self._properties["init_catalog_tables"] = "true"
        self._catalog = None
        with _reachable(self._name):
            self.catalog.list_namespaces()

    # --- tables ---------------------------------------------------------------------------------------------------

    def ensure(self, name: str, schema: Schema, spec: PartitionSpec, properties: Mapping[str, str]) -> Table:
        """Create a table if it does not exist, and return it.

        Raises:
            EnvironmentRefused: if it exists and is not as declared, see `require_as_declared`.
        """
        namespace = name.rpartition(".")[0]
        try:
            self.catalog.create_namespace(namespace)
        except NamespaceAlreadyExistsError:
            namespace = ""  # somebody made it before us, which is all that is wanted
        try:
            return self.catalog.create_table(name, schema, partition_spec=spec, properties=dict(properties))
        except TableAlreadyExistsError:
            table = self.table(name)
        require_as_declared(table, schema, spec, properties)
        return table

    def table(self, name: str) -> Table:
        """Return a table with fresh metadata.

        Raises:
            InputRefused: if there is none.
            UnreadableMetadata: if its metadata file is missing or damaged.
        """
        try:
            with _reachable(self._name), readable_table(name):
                return self.catalog.load_table(name)
        except NoSuchTableError as error:
            raise InputRefused(
                Problem(f"table {name} does not exist", "tables are made by `backfill init`", "run it, then load data")
            ) from error

    def exists(self, name: str) -> bool:
        """Tell whether there is a table of a name.

        Raises:
            UnreadableMetadata: if there is, and its metadata file is missing or damaged.
        """
        with _reachable(self._name), readable_table(name):
            return bool(self.catalog.table_exists(name))

    def snapshot_id(self, name: str) -> int | None:
        """Return the current snapshot of a table, or None where nothing was ever committed."""
        snapshot = self.table(name).current_snapshot()
        return None if snapshot is None else snapshot.snapshot_id

    def location(self, name: str) -> str:
        """Return the folder below which the table's data files live."""
        return posixpath.join(self.table(name).location(), "data")

    # --- planning -------------------------------------------------------------------------------------------------

    def source_state(self, name: str, time_column: str, snapshot_id: int | None) -> SourceState:
        """Describe a source at a snapshot (the current one if None) from metadata alone.

        Raises:
            InputRefused: if the snapshot does not exist or has deletes this project cannot read.
        """
        table = self.table(name)
        snapshot = _snapshot(table, snapshot_id)
        files = []
        for file in _live_files(table, snapshot, AlwaysTrue()):
            low, high = _instants(table, file, time_column)
            files.append(SourceFile(file.record_count, file.file_size_in_bytes, low.date(), high.date()))
        return SourceState(name, snapshot.snapshot_id, committed_at(table, snapshot), tuple(files))

    def first_day_added(self, name: str, time_column: str, since: int, until: int) -> date | None:
        """Return the first day (UTC) of the files that a source has at one snapshot and had not at an earlier one.

        From metadata alone. None where there are none, or the earlier snapshot has expired.
        """
        table = self.table(name)
        earlier = table.snapshot_by_id(since)
        if earlier is None:
            return None
        known = {file.file_path for file in _live_files(table, earlier, AlwaysTrue())}
        new = [
            file for file in _live_files(table, _snapshot(table, until), AlwaysTrue()) if file.file_path not in known
        ]
        return min((_instants(table, file, time_column)[0].date() for file in new), default=None)

    def possible_rows(self, name: str, snapshot_id: int, column: str, keys: Collection[str]) -> int:
        """Return the rows of a source's files that may hold one of some values of a text column, by the files' bounds.

        A file without bounds may hold any of them.
        """
        table = self.table(name)
        field, wanted = column_of(table, column), sorted(keys)
        rows = 0
        for file in _live_files(table, _snapshot(table, snapshot_id), AlwaysTrue()):
            low, high = (file.lower_bounds or {}).get(field.field_id), (file.upper_bounds or {}).get(field.field_id)
            possible = bool(wanted)
            if low is not None and high is not None and isinstance(field.field_type, StringType):
                with readable_bounds(table):
                    first, last = from_bytes(field.field_type, low), from_bytes(field.field_type, high)
                place = bisect_left(wanted, first)
                possible = place < len(wanted) and wanted[place] <= last
            rows += file.record_count if possible else 0
        return rows

    def reference_state(self, name: str, recorded: frozenset[int]) -> ReferenceState:
        """Describe a reference table: its snapshots and its named versions."""
        table = self.table(name)
        current = table.current_snapshot()
        named: dict[str, list[tuple[int, str | None]]] = {}
        undone = set()
        for snapshot in table.snapshots():
            said = snapshot.summary.additional_properties if snapshot.summary else {}
            undone.add(said.get(UNDOES_PROPERTY))
            if version := said.get(DATA_VERSION_PROPERTY):
                named.setdefault(version, []).append((snapshot.snapshot_id, said.get(LOAD_PROPERTY)))
        # content that came back has its name twice: it stands for the newest load that was not taken back
        there = {
            version: [one for one in made if one[1] is None or one[1] not in undone] for version, made in named.items()
        }
        return ReferenceState(
            name,
            None if current is None else current.snapshot_id,
            frozenset(snapshot.snapshot_id for snapshot in table.snapshots()),
            {version: (there[version] or made)[-1][0] for version, made in named.items()},
            recorded,
            frozenset(version for version, left in there.items() if not left),
        )

    def has_version(self, name: str, version: str) -> bool:
        """Return whether a snapshot of a reference table has this name, also one whose content was taken back."""
        return _with_version(self.table(name), version)

    def refs(self, name: str) -> frozenset[str]:
        """Return the names of a table's branches and tags."""
        return frozenset(self.table(name).refs())

    def history(self, name: str) -> frozenset[int]:
        """Return the snapshots of the current one's history, itself included."""
        table = self.table(name)
        return frozenset(snapshot.snapshot_id for snapshot in ancestors(table))

    def rows_in(self, name: str, scope: Scope) -> int:
        """Return how many rows the current files of a scope hold, from metadata."""
        table = self.table(name)
        current = table.current_snapshot()
        return 0 if current is None else sum(file.record_count for file in _live_files(table, current, scope.filter))

    def files_beyond(self, name: str, scope: Scope, chunk_of: Callable[[date], str] | None = None) -> list[str]:
        """Describe the current files that may hold rows of a scope and of other days, from metadata.

        With `chunk_of` (from a day to the key of its chunk) also those that hold rows of more than one chunk.
        """
        table = self.table(name)
        files = _files_in(table, table.current_snapshot(), scope)
        beyond = {file.file_path for file in reaching_beyond(table, scope.filter, files)}
        if chunk_of is not None:
            for file in files:
                days = days_of(table, scope.column, file)
                if days is None or chunk_of(days[0]) != chunk_of(days[1]):
                    beyond.add(file.file_path)
        return [in_words(table, scope.column, file) for file in files if file.file_path in beyond]

    def files_in(self, name: str, snapshot_id: int, scopes: Iterable[Scope]) -> list[str]:
        """Return the data files that may hold rows of scopes at a snapshot, each once."""
        table = self.table(name)
        found = (file.file_path for scope in scopes for file in _files_at(table, snapshot_id, scope))
        return list(dict.fromkeys(found))

    def files_by_chunk(
        self, name: str, snapshot_id: int | None, scopes: Mapping[str, Scope], *, branch: str | None = None
    ) -> dict[str, tuple[str, ...]]:
        """Return the data files of each scope (a chunk's days, by its key) at a snapshot; None: as it is now.

        Raises:
            InputRefused: if a file lies in more than one chunk.
        """
        found = self.file_rows_by_chunk(name, snapshot_id, scopes, branch=branch)
        return {key: tuple(sorted(files)) for key, files in found.items()}

    def file_rows_by_chunk(
        self, name: str, snapshot_id: int | None, scopes: Mapping[str, Scope], *, branch: str | None = None
    ) -> dict[str, dict[str, int]]:
        """Return the data files of each scope with their rows, as `files_by_chunk` does; from metadata alone.

        Raises:
            InputRefused: if a file lies in more than one chunk.
        """
        table = self.table(name)
        snapshot = (
            table.snapshot_by_name(branch or MAIN_BRANCH) if snapshot_id is None else _snapshot(table, snapshot_id)
        )
        files: dict[str, dict[str, int]] = {key: {} for key in scopes}
        if snapshot is None or not scopes:
            return files
        column = next(iter(scopes.values())).column
        whole = Scope(column, min(one.start for one in scopes.values()), max(one.end for one in scopes.values()))
        by_start = sorted(scopes.items(), key=lambda item: item[1].start)
        starts = [scope.start for _, scope in by_start]
        for file in _live_files(table, snapshot, whole.filter):
            low, high = (instant.date() for instant in _instants(table, file, column))
            place = bisect_right(starts, low) - 1
            if place < 0 or high > by_start[place][1].end:
                if any(scope.start <= high and low <= scope.end for _, scope in by_start):
                    raise InputRefused(
                        Problem(
                            f"{file.file_path} holds {low} to {high}",
                            "a file of a target lies in one chunk",
                            "rewrite the file by chunk",
                        )
                    )
                continue  # of a chunk between two of these
            files[by_start[place][0]][file.file_path] = file.record_count
        return files

    # --- reading --------------------------------------------------------------------------------------------------

    def pinned(self, name: str, snapshot_id: int | None, row_filter: BooleanExpression | None = None) -> PinnedRead:
        """Plan a read of a table at a snapshot: the files that may hold rows of `row_filter`.

        A table without a snapshot is an empty read. Files with deletes on them are refused (they need a reader that
        applies the deletes; Spark's Parquet reader does not).
        """
        table = self.table(name)
        if snapshot_id is None:
            return PinnedRead(name, None, table.schema(), ())
        snapshot = _snapshot(table, snapshot_id)
        files = list(_live_files(table, snapshot, row_filter or AlwaysTrue()))
        paths = tuple(sorted(file.file_path for file in files))
        rows, size = sum(file.record_count for file in files), sum(file.file_size_in_bytes for file in files)
        return PinnedRead(name, snapshot.snapshot_id, table.schema(), paths, rows, size)

    def pinned_since(self, name: str, since: int, until: int) -> PinnedRead:
        """Plan a read of what was appended to a table after snapshot `since`, up to `until`.

        Raises:
            InputRefused: if files of `since` are gone by then: the table was not only appended to.
        """
        table = self.table(name)
        before = {file.file_path for file in _live_files(table, _snapshot(table, since), AlwaysTrue())}
        after = {file.file_path for file in _live_files(table, _snapshot(table, until), AlwaysTrue())}
        if before - after:
            raise InputRefused(
                Problem(
                    f"{len(before - after)} file(s) of {name} at snapshot {since} are gone at {until}",
                    "what has changed since a snapshot is told from files that were appended",
                    "name the entities in the manifest instead",
                )
            )
        return PinnedRead(name, until, table.schema(), tuple(sorted(after - before)))

    def unread(
        self, name: str, snapshot_id: int, row_filter: BooleanExpression | None = None
    ) -> tuple[list[str], list[str]]:
        """Return what a read at a snapshot would not find as it was written: files that are gone, and files of another length.

        Looks at file lengths only and opens no data file.

        Raises:
            UnreadableMetadata: if the snapshot's manifests cannot be read.
        """
        table = self.table(name)
        with readable_metadata(table, _snapshot(table, snapshot_id)):
            try:
                tasks = table.scan(row_filter=row_filter or AlwaysTrue(), snapshot_id=snapshot_id).plan_files()
                expected = sorted((task.file.file_path, int(task.file.file_size_in_bytes)) for task in tasks)
            except FileNotFoundError as error:  # one of the snapshot's own manifests
                return [str(error)], []

        def length(path: str) -> int | None:
            try:
                return len(table.io.new_input(path))
            except FileNotFoundError:
                return None

        found = _for_each(length, [path for path, _ in expected])
        gone = [path for (path, _), size in zip(expected, found, strict=True) if size is None]
        changed = [path for (path, was), size in zip(expected, found, strict=True) if size not in {None, was}]
        return gone, changed

    def rows(self, name: str, snapshot_id: int) -> list[dict[str, Any]]:
        """Return all rows of a (small) reference table at a snapshot."""
        table = self.table(name)
        with readable_rows(table):
            rows: list[dict[str, Any]] = table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
        return rows

    def some_rows(self, name: str, limit: int) -> tuple[int, list[dict[str, Any]]]:
        """Return how many rows a table has, and at most `limit` of them."""
        table = self.table(name)
        scan = table.scan(limit=limit)
        with readable_rows(table):
            rows: list[dict[str, Any]] = scan.to_arrow().to_pylist()
            return self.table(name).scan(snapshot_id=scan.snapshot_id).count(), rows

    # --- committing -----------------------------------------------------------------------------------------------

    def append(self, name: str, batches: Iterable[Any], properties: Mapping[str, str]) -> Commit | None:
        """Append Arrow tables as one snapshot; nothing is committed if writing any of them fails.

        Memory is bounded by one batch. Returns None if a snapshot with the same load id is in the table already, also if
        it came there while the files were written.
        """
        from pyiceberg.io.pyarrow import _dataframe_to_data_files  # noqa: PLC0415 - PyIceberg's own writer

        table = self.table(name)
        if _with_property(table, LOAD_PROPERTY, properties[LOAD_PROPERTY]) is not None:
            return None
        files: list[DataFile] = []
        for batch in batches:
            files += _dataframe_to_data_files(table.metadata, batch, table.io)
        said = {**properties, **content_property(table, [file.file_path for file in files])}
        new = self._load_once(name, properties, lambda table: _append(table, files, said))
        if new is None:
            self._delete_unreferenced(name, properties[LOAD_PROPERTY], [file.file_path for file in files])
            return None
        return Commit(new.snapshot_id, len(files), 0)

    def _delete_unreferenced(self, name: str, load_id: str, written: Sequence[str]) -> None:
        """Delete files of a load that another process has committed first: nobody knows their names but this one.

        If the load's snapshot has them it was this process's own commit that landed, whatever the catalog has said.
        """
        table = self.table(name)
        landed = _with_property(table, LOAD_PROPERTY, load_id)
        known = {file.file_path for file in _live_files(table, landed, AlwaysTrue())} if landed else set(written)
        if known.isdisjoint(written):
            for path in written:
                table.io.delete(path)

    def append_files(self, name: str, paths: Sequence[str], properties: Mapping[str, str]) -> Snapshot:
        """Append staged files as one snapshot, or find the one that has the same load id."""

        def append(table: Table) -> None:
            _append(table, data_files(table, paths), {**properties, **content_property(table, paths)})

        new = self._load_once(name, properties, append)
        return new or self._landed(name, LOAD_PROPERTY, properties[LOAD_PROPERTY])

    def _load_once(self, name: str, properties: Mapping[str, str], commit: Callable[[Table], None]) -> Snapshot | None:
        """Commit a load; return its snapshot, or None if another process has committed the same load.

        Every try looks for the load first, in the metadata that it commits to. PyIceberg's own retries would not look.
        """
        load_id, tried = properties[LOAD_PROPERTY], False

        def load(table: Table) -> None:
            nonlocal tried
            if _with_property(table, LOAD_PROPERTY, load_id) is None:
                tried = True
                commit(_committed_once(table))
            else:
                tried = False

        self._retrying(name, load)
        return self._landed(name, LOAD_PROPERTY, load_id) if tried else None

    def loads(self, name: str) -> list[Load]:
        """Return the loads in a table's history, oldest first."""
        return loads_of(self.table(name))

    def snapshots_with_load(self, name: str, load_id: str) -> frozenset[int]:
        """Return the snapshots of a table's history whose rows include those of a load."""
        return snapshots_with(self.table(name), load_id)

    def undo_load(self, name: str, load_id: str, properties: Mapping[str, str]) -> Snapshot:
        """Take back the files of a load as one snapshot, or find the one that took them back.

        Files that the load replaced come back. Snapshots that plans have pinned stay readable.

        Raises:
            InputRefused: if the table has no such load, or its files are no longer those that it brought.
        """

        def undo(table: Table) -> None:
            if (changes := undoing(table, load_id)) is not None:
                gone, back = changes
                commit_replacement(
                    _committed_once(table), AlwaysTrue(), gone, back, {**properties, UNDOES_PROPERTY: load_id}
                )

        self._retrying(name, undo)
        return self._landed(name, UNDOES_PROPERTY, load_id)

    def find_load(self, name: str, load_id: str) -> Snapshot | None:
        """Return the snapshot that a load was appended as, or None."""
        return _with_property(self.table(name), LOAD_PROPERTY, load_id)

    def overwrite_rows(
        self, name: str, rows: Any, properties: Mapping[str, str], *, new_version: bool = False
    ) -> Commit | None:
        """Make `rows` (an Arrow table) the whole content of a small table, as one snapshot with a named version.

        Raises:
            VersionTaken: if `new_version` asks for a name that no snapshot has, and one has it by now; nothing has changed then.
        """
        from pyiceberg.io.pyarrow import _dataframe_to_data_files  # noqa: PLC0415

        counts: list[int] = []

        def overwrite(table: Table) -> None:
            current = table.current_snapshot()
            if new_version and _with_version(table, properties[DATA_VERSION_PROPERTY]):
                raise VersionTaken(properties[DATA_VERSION_PROPERTY])
            old = [] if current is None else list(_live_files(table, current, AlwaysTrue()))
            new = list(_dataframe_to_data_files(table.metadata, rows, table.io))
            counts[:] = [len(new), len(old)]
            said = {**properties, **content_property(table, [file.file_path for file in new])}
            commit_replacement(table, AlwaysTrue(), old, new, said)

        new = self._load_once(name, properties, overwrite)
        return None if new is None else Commit(new.snapshot_id, *counts)

    def replace(
        self,
        name: str,
        scopes: Sequence[tuple[Scope, int | None]],
        *,
        staged: Sequence[StagedFile],
        properties: Mapping[str, str],
        replaced: Collection[str] | None = None,
        branch: str = MAIN_BRANCH,
        token: int | None = None,
    ) -> Commit:
        """Replace files of scopes by staged ones, as one snapshot.

        Args:
            name: the table.
            scopes: what may be touched, each with the snapshot whose files it must hold (None: no file).
            staged: the files that come in.
            properties: of the snapshot.
            replaced: the files that go; None: all of the scopes.
            branch: what the snapshot is committed to.
            token: of the lease under which it is done; without one nothing fences the commit.

        Raises:
            LeaseLost: if the token is fenced.
            PublicationRefused: if a scope's files are no longer those of its base, one that would go is none of them or
                holds rows of other days, or a staged file is not the one that was gated; nothing has changed then.
        """
        table = self.table(name)
        require_unfenced(table, token)
        current = table.snapshot_by_name(branch)
        present: list[DataFile] = []
        old: list[DataFile] = []
        for scope, base_snapshot_id in scopes:
            own = _unchanged_files(table, current, scope, base_snapshot_id)
            going = own if replaced is None else [file for file in own if file.file_path in replaced]
            require_inside(table, scope.filter, str(scope), going, scope.column)
            present, old = present + own, old + going
        _require_present(name, replaced or (), old)
        new = _as_gated(table, staged)
        self._commit(table, [scope for scope, _ in scopes], old, new, properties, branch, token, present)
        run_id, action = properties[RUN_PROPERTY], properties[ACTION_PROPERTY]
        return Commit(self._landed(name, RUN_PROPERTY, run_id, action, branch).snapshot_id, len(new), len(old))

    def put_rows(
        self, name: str, where: BooleanExpression, staged: Sequence[StagedFile], properties: Mapping[str, str]
    ) -> int:
        """Make staged files the rows of a run in a table that keeps those of many, as one snapshot; return the snapshot.

        `where` selects the files of the run: those that it has by now give way. If the newest snapshot of the run in the
        table's history has the same diff id, that is it, and nothing is put there twice.
        """
        run_id, diff_id = properties[RUN_PROPERTY], properties[DIFF_PROPERTY]
        new = data_files(self.table(name), [file.path for file in staged])

        def put(table: Table) -> None:
            landed = _with_property(table, RUN_PROPERTY, run_id)
            if landed is not None and landed.summary and landed.summary.additional_properties[DIFF_PROPERTY] == diff_id:
                return
            current = table.current_snapshot()
            old = [] if current is None else list(_live_files(table, current, where))
            require_inside(table, where, f"run '{run_id}'", old)
            commit_replacement(table, where, old, new, properties)

        self._retrying(name, _ensure_snapshot)
        self._retrying(name, put)
        return self._landed(name, RUN_PROPERTY, run_id).snapshot_id

    def require_gated(self, name: str, staged: Sequence[StagedFile]) -> None:
        """Refuse files whose contents are not those that were gated, before a ref makes them visible."""
        table = self.table(name)
        _require_same_footers(staged, _footers(table, [file.path for file in staged]))
        require_gated_contents(table, staged)

    def require_as_gated(self, name: str, staged: Sequence[StagedFile]) -> None:
        """Refuse files that `replace` would refuse to commit: gone, or other rows, footers or contents than were gated."""
        _as_gated(self.table(name), staged)

    def require_unchanged(
        self, name: str, scopes: Sequence[tuple[Scope, int | None]], *, replaced: bool = False
    ) -> None:
        """Refuse if a scope's files are no longer those of its snapshot: for changes of more than one table.

        With `replaced` also if they may not be replaced, because they hold rows of other days.

        Raises:
            PublicationRefused: naming the files that came and went, or reach beyond the scope.
        """
        table = self.table(name)
        current = table.current_snapshot()
        for scope, snapshot_id in scopes:
            if replaced or not _is_at(current, snapshot_id):
                files = _unchanged_files(table, current, scope, snapshot_id)
                require_inside(table, scope.filter, str(scope), files if replaced else (), scope.column)

    def restore(
        self,
        name: str,
        scopes: Sequence[Scope],
        *,
        from_snapshot_id: int,
        to_snapshot_id: int | None,
        properties: Mapping[str, str],
        token: int | None = None,
    ) -> Commit:
        """Put the files that scopes had at `to_snapshot_id` back in place of those of `from_snapshot_id`.

        Files that both have stay as they are. A file that held days beside its scope comes back if those days, too, have
        the files of `from_snapshot_id` still; none that holds them goes.

        Raises:
            LeaseLost: if the token is fenced.
            PublicationRefused: if a scope's files are no longer those of `from_snapshot_id`, or one that would go holds
                rows of other days.
        """
        table = self.table(name)
        require_unfenced(table, token)
        wider, going, coming, present = _restoring(table, scopes, from_snapshot_id, to_snapshot_id)
        self._commit(table, wider, going, coming, properties, MAIN_BRANCH, token, present)
        run_id, action = properties[RUN_PROPERTY], properties[ACTION_PROPERTY]
        return Commit(self._landed(name, RUN_PROPERTY, run_id, action).snapshot_id, len(coming), len(going))

    def exchange(
        self,
        name: str,
        scopes: Sequence[Scope],
        *,
        going: AbstractSet[str],
        coming: Sequence[StagedFile],
        at_snapshot_id: int | None,
        properties: Mapping[str, str],
        token: int | None = None,
    ) -> Commit:
        """Take files out of scopes, and bring others back as they were at a snapshot, whatever else is in the scopes by now.

        What comes back of a snapshot that has expired is made of the file itself, which must be as it was gated.

        Raises:
            LeaseLost: if the token is fenced.
            PublicationRefused: if one that is to go is not there, or one that is to come is not as it was; nothing has changed
                then.
        """
        wanted = {file.path: file for file in coming}
        give_up = time.monotonic() + _CONTENTION_SECONDS
        while True:
            table = self.table(name)
            require_unfenced(table, token)
            current = table.current_snapshot()
            present = {file.file_path: file for scope in scopes for file in _files_in(table, current, scope)}
            then = {file.file_path: file for scope in scopes for file in _files_at(table, at_snapshot_id, scope)}
            old = [present[path] for path in sorted(going & present.keys())]
            _require_present(name, going, old)
            missing = wanted.keys() - present.keys()
            expired = _as_gated(table, [wanted[path] for path in sorted(missing - then.keys())])
            new = [then[path] for path in sorted(missing & then.keys())] + expired
            try:
                self._commit(table, scopes, old, new, properties, MAIN_BRANCH, token, list(present.values()))
            except ScopeChanged:  # others have added files between the look and the commit: they are no reason
                if time.monotonic() > give_up:
                    raise
                continue
            run_id, action = properties[RUN_PROPERTY], properties[ACTION_PROPERTY]
            return Commit(self._landed(name, RUN_PROPERTY, run_id, action).snapshot_id, len(new), len(old))

    def require_restorable(
        self, name: str, scopes: Sequence[Scope], *, from_snapshot_id: int, to_snapshot_id: int | None
    ) -> None:
        """Refuse what `restore` would refuse of this table just now; changes nothing."""
        _restoring(self.table(name), scopes, from_snapshot_id, to_snapshot_id)

    def tag(self, name: str, tag: str, snapshot_id: int) -> None:
        """Tag a snapshot so that it is never expired; in a transaction of its own, and safe to repeat."""

        def create(table: Table) -> None:
            reference = table.refs().get(tag)
            if reference is None:
                table.manage_snapshots().create_tag(snapshot_id, tag).commit()
            elif reference.snapshot_id != snapshot_id:
                raise PublicationRefused(
                    Problem(
                        f"tag {tag} of {name} names snapshot {reference.snapshot_id}",
                        "a tag is never moved",
                        "look at the table's refs",
                    )
                )

        self._retrying(name, create)

    def fence(self, name: str, token: int) -> None:
        """Keep the holder of a lost lease out: from here on a commit that carries its token fails in the catalog.

        The fence is a tag. Nothing reads the snapshot it names: the one that main shows when the fence lands, because no
        expiry takes that one, and an expiry takes the tags of a snapshot with it (`history.forget` moves a fence on).
        A table without snapshots is given an empty one first, on no branch; readers never see it. Safe to repeat.
        """

        def create(table: Table) -> None:
            if fence_of(token) in table.refs():
                return
            _ensure_snapshot(table)
            table.refresh()
            shown = table.current_snapshot()
            tag = SetSnapshotRefUpdate(
                ref_name=fence_of(token),
                type=SnapshotRefType.TAG,
                snapshot_id=(shown or table.snapshots()[0]).snapshot_id,
                max_ref_age_ms=None,
                max_snapshot_age_ms=None,
                min_snapshots_to_keep=None,
            )
            requirements = (
                AssertTableUUID(uuid=table.metadata.table_uuid),
                AssertRefSnapshotId(ref=fence_of(token), snapshot_id=None),
                AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=None if shown is None else shown.snapshot_id),
            )
            table.catalog.commit_table(table, requirements, (tag,))

        self._retrying(name, create)

    def find_publication(
        self, name: str, run_id: str, action: str, ref: str = MAIN_BRANCH, sequence: int | None = None
    ) -> Snapshot | None:
        """Return the (newest) snapshot in which a run's action landed, if it is in the history of a ref's snapshot."""
        return _with_property(self.table(name), RUN_PROPERTY, run_id, action, ref, sequence)

    def snapshot_of(self, name: str, ref: str = MAIN_BRANCH) -> int | None:
        """Return the snapshot that a ref names, or None."""
        snapshot = self.table(name).snapshot_by_name(ref)
        return None if snapshot is None else snapshot.snapshot_id

    def open_branch(self, name: str, branch: str, snapshot_id: int | None) -> None:
        """Open a branch at a snapshot; safe to repeat. On an empty table its first commit opens it.

        The catalog refuses a branch beside main where there is no snapshot at all: a table without one is given an empty
        one first, on no branch; readers never see it.
        """

        def create(table: Table) -> None:
            if snapshot_id is not None and branch not in table.refs():
                table.manage_snapshots().create_branch(snapshot_id, branch).commit()

        if snapshot_id is None:
            self._retrying(name, _ensure_snapshot)
        self._retrying(name, create)

    def point(
        self,
        name: str,
        *,
        expected: Mapping[str, int | None],
        branches: Mapping[str, int] | None = None,
        tags: Mapping[str, int] | None = None,
        removed: Iterable[str] = (),
        token: int | None = None,
    ) -> None:
        """Move, make and remove refs in one commit, if the refs of `expected` name those snapshots (None: do not exist).

        Raises:
            LeaseLost: if the token is fenced.
            PublicationRefused: if they do not; nothing has changed then.
        """
        removed = list(removed)
        updates = [
            SetSnapshotRefUpdate(
                ref_name=ref,
                type=kind,
                snapshot_id=snapshot,
                max_ref_age_ms=None,
                max_snapshot_age_ms=None,
                min_snapshots_to_keep=None,
            )
            for kind, refs in ((SnapshotRefType.BRANCH, branches or {}), (SnapshotRefType.TAG, tags or {}))
            for ref, snapshot in refs.items()
        ]
        removals = [RemoveSnapshotRefUpdate(ref_name=ref) for ref in removed]
        required = [AssertRefSnapshotId(ref=ref, snapshot_id=snapshot) for ref, snapshot in expected.items()]
        if token is not None:
            required.append(_NotFenced(ref=fence_of(token), snapshot_id=None))

        wanted = {**(branches or {}), **(tags or {}), **dict.fromkeys(removed)}
        tried = False

        def swap(table: Table) -> None:
            nonlocal tried
            require_unfenced(table, token)
            if tried and all(self._names(table, ref) == snapshot for ref, snapshot in wanted.items()):
                return  # it has landed, whatever the catalog has said
            tried = True
            for requirement in required:
                try:
                    requirement.validate(table.metadata)
                except CommitFailedException as error:
                    raise PublicationRefused(
                        Problem(
                            f"{name} has moved: {error}",
                            "a pointer is swapped from the snapshot the run was planned on",
                            "plan the change again, under a new run id, on the table as it is now",
                        )
                    ) from error
            requirements: tuple[TableRequirement, ...] = (AssertTableUUID(uuid=table.metadata.table_uuid), *required)
            table.catalog.commit_table(table, requirements, (*updates, *removals))

        self._retrying(name, swap)

    @staticmethod
    def _names(table: Table, ref: str) -> int | None:
        found = table.refs().get(ref)
        return None if found is None else found.snapshot_id

    def total_rows(self, name: str, snapshot_id: int | None = None) -> int | None:
        """Return the rows of a table as the summary of its current, or of another, snapshot counts them.

        None where it does not say, or where the table does not know the snapshot any more.
        """
        table = self.table(name)
        snapshot = table.current_snapshot() if snapshot_id is None else table.snapshot_by_id(snapshot_id)
        if snapshot is None:
            return 0 if snapshot_id is None else None
        return count_said(table, snapshot, "total-records")

    def changed_files(self, name: str, snapshot: Snapshot) -> tuple[int, int]:
        """Return how many data files a snapshot added and removed, from its summary."""
        table = self.table(name)
        found = table.snapshot_by_id(snapshot.snapshot_id)
        if found is None:
            return 0, 0
        return count_said(table, found, "added-data-files") or 0, count_said(table, found, "deleted-data-files") or 0

    def _commit(
        self,
        table: Table,
        scopes: Sequence[Scope],
        old: Sequence[DataFile],
        new: Sequence[DataFile],
        properties: Mapping[str, str],
        branch: str = MAIN_BRANCH,
        token: int | None = None,
        present: Sequence[DataFile] | None = None,
    ) -> None:
        """Commit a replacement; it is tried again while commits elsewhere in the table come between.

        A commit that failed has changed nothing, unless it landed and was reported otherwise: that is looked up first,
        and then whether the scopes still hold the same files: only that refuses, whatever PyIceberg said.
        `present` are the files that the scopes hold, where not all of them go.
        """
        if found := isolation_problems(table):
            raise EnvironmentRefused(found)
        name = ".".join(table.name())
        anywhere = _any_of([scope.filter for scope in scopes])
        span = Scope(scopes[0].column, min(scope.start for scope in scopes), max(scope.end for scope in scopes))
        known = {snapshot.snapshot_id for snapshot in table.snapshots()}
        tried = False

        def replace_files(table: Table) -> None:
            nonlocal tried
            require_unfenced(table, token)
            if tried:
                run_id, action = properties[RUN_PROPERTY], properties[ACTION_PROPERTY]
                landed = _with_property(table, RUN_PROPERTY, run_id, action, branch)
                if landed is not None and landed.snapshot_id not in known:
                    return
                current = table.snapshot_by_name(branch)
                found = {file.file_path: file for scope in scopes for file in _files_in(table, current, scope)}
                require_same_files(name, span, old if present is None else present, list(found.values()))
            tried = True
            commit_replacement(table, anywhere, old, new, properties, branch=branch, token=token)

        self._retrying(name, replace_files, table)

    def _retrying(self, name: str, commit: Callable[[Table], None], table: Table | None = None) -> None:
        """Make a commit on fresh metadata, again if another one came between, for a bounded time.

        Raises:
            EnvironmentRefused: if others never let it through, and nothing has changed; or if the catalog could not be
                reached, or could not say what came of the commit, and it may have landed.
            UnreadableMetadata: if the table's metadata is none that a commit could go on from.
        """
        give_up = time.monotonic() + _CONTENTION_SECONDS
        pause = 0.05
        while True:
            try:
                with committable(name):
                    return commit(table or self.table(name))
            except (CommitFailedException, ValidationException) as error:  # or files of the same scope came between
                if time.monotonic() > give_up:
                    raise EnvironmentRefused(
                        Problem(
                            f"{name} could not be committed to for {_CONTENTION_SECONDS:.0f} s: {error}",
                            "a commit lands if nobody else commits to the table at the same moment",
                            "nothing has changed; run the same command again when fewer others write",
                        )
                    ) from error
            except (SQLAlchemyError, OSError, CommitStateUnknownException) as error:
                why = str(error).partition("\n")[0]
                raise EnvironmentRefused(
                    Problem(
                        f"the outcome of a commit to {name} is unknown: {type(error).__name__}: {why}",
                        "the catalog can be reached, and says whether a commit has landed",
                        "run the same command again when it can: what has landed is found in the table, and not done twice",
                    )
                ) from error
            table = None
            time.sleep(random.uniform(0, pause))  # noqa: S311 - to part those who collided
            pause = min(2 * pause, 1.0)

    def _landed(
        self, name: str, key: str, value: str, action: str | None = None, branch: str = MAIN_BRANCH
    ) -> Snapshot:
        snapshot = _with_property(self.table(name), key, value, action, branch)
        if snapshot is None:
            raise RuntimeError(
                f"the commit of {key}={value} to {name} returned, but its snapshot is not in the history"
            )
        return snapshot


@contextmanager
def _reachable(name: str) -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        why = str(error).partition("\n")[0]
        raise EnvironmentRefused(
            Problem(
                f"the catalog '{name}' cannot be used: {type(error).__name__}: {why}",
                "the catalog exists and can be reached",
                "see `backfill config`; for the embedded default, run `backfill init`",
            )
        ) from error


class _NotFenced(AssertRefSnapshotId):
    """Iceberg's requirement that a ref does not exist, by the rule of the specification.

    PyIceberg's own refuses any ref but main in a table without snapshots; the first publication carries a token, too.
    """

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as in PyIceberg
        if base_metadata is None or base_metadata.snapshots:
            super().validate(base_metadata)


class _Replacement(_OverwriteFiles):
    """PyIceberg's overwrite, fenced, and without manifests that hold nothing but files deleted in earlier snapshots.

    PyIceberg itself hands those on for ever: each replacement would read one more of them than the one before.
    """

    token: int | None = None

    def _build_delete_files_partition_predicate(self) -> None:
        """Leave the predicate as it is given: `commit_replacement` is told a scope that all deleted files lie in.

        PyIceberg adds a term for each of their partitions, and then holds each manifest against hundreds of terms.
        """

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        # PyIceberg's remembers the manifest it is asked about, and PyIceberg asks one of them from several threads: files
        # that are there were said to be missing once in some hundred commits
        evaluate, one_at_a_time = super()._build_manifest_evaluator(spec_id), Lock()

        def might_match(manifest: ManifestFile) -> bool:
            with one_at_a_time:
                return evaluate(manifest)

        return might_match

    def _manifests(self) -> list[ManifestFile]:
        """Write files that come back from an earlier partition spec to manifests of that spec.

        PyIceberg writes all added files to one of the current spec, whose partitions theirs are not.
        """
        by_spec: dict[int, list[DataFile]] = {}
        for file in self._added_data_files:
            by_spec.setdefault(self._spec_of(file), []).append(file)
        with self._adding(by_spec.pop(self._current_spec, [])):
            manifests = super()._manifests()
        for spec_id, files in by_spec.items():
            with self.new_manifest_writer(self.spec(spec_id)) as writer:
                for file in files:
                    writer.add(
                        ManifestEntry.from_args(
                            status=ManifestEntryStatus.ADDED,
                            snapshot_id=self._snapshot_id,
                            sequence_number=None,
                            file_sequence_number=None,
                            data_file=file,
                        )
                    )
            manifests.append(writer.to_manifest_file())
        return manifests

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        """Count all files; partitions of an earlier spec are not named among those of the current one."""
        added = self._added_data_files
        with self._adding(
            [file if self._spec_of(file) == self._current_spec else _without_partition(file) for file in added]
        ):
            return super()._summary(snapshot_properties)

    @contextmanager
    def _adding(self, files: list[DataFile]) -> Iterator[None]:
        whole = self._added_data_files
        self._added_data_files = files
        try:
            yield
        finally:
            self._added_data_files = whole

    @property
    def _current_spec(self) -> int:
        return self._transaction.table_metadata.default_spec_id

    def _spec_of(self, file: DataFile) -> int:
        """Return the partition spec of a file: a new one is told of none, and has the current one."""
        return getattr(file, "_spec_id", self._current_spec)

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        return [
            manifest
            for manifest in manifests
            if manifest.added_snapshot_id == self.snapshot_id
            or manifest.has_added_files()
            or manifest.has_existing_files()
        ]

    def _commit(self) -> UpdatesAndRequirements:
        updates, requirements = super()._commit()  # again for each retry: what is required is always in it
        if self.token is None:
            return updates, requirements
        return updates, (*requirements, _NotFenced(ref=fence_of(self.token), snapshot_id=None))


def _without_partition(file: DataFile) -> DataFile:
    copy = DataFile(*(file[place] for place in range(len(file))))
    copy[_PARTITION] = Record()
    return copy


class _Transaction(Transaction):
    """PyIceberg's transaction, which applies its updates to a copy of the metadata once and not at each look at it."""

    _seen: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with the transaction's updates."""
        seen = self._seen
        if seen is None or seen[0] is not self._table.metadata or seen[1] is not self._updates:
            self._seen = seen = (self._table.metadata, self._updates, super().table_metadata)
        return seen[2]


class _Append(_FastAppendFiles):
    """PyIceberg's append, refused where the manifest list that it goes on from cannot be read."""

    table: Table

    def _existing_manifests(self) -> list[ManifestFile]:
        head = self._transaction.table_metadata.snapshot_by_name(MAIN_BRANCH)
        if head is None:
            return []
        with readable_metadata(self.table, head, head.manifest_list):
            return super()._existing_manifests()


class _Nothing(_FastAppendFiles):
    """A snapshot of no files at all."""

    def _existing_manifests(self) -> list[ManifestFile]:
        return []


def fence_of(token: int) -> str:
    """Return the name of the tag that fences a lease."""
    return f"fence-{token}"


def is_fence(ref: str) -> bool:
    """Tell whether a ref has the name of a fence."""
    return ref.startswith("fence-") and ref.removeprefix("fence-").isdigit()


def require_unfenced(table: Table, token: int | None) -> None:
    """Refuse if a lease was taken over by somebody else.

    Raises:
        LeaseLost: if the table has the fence of its token.
    """
    if token is not None and fence_of(token) in table.refs():
        raise LeaseLost(lost(".".join(table.name()), token))


def _ensure_snapshot(table: Table) -> None:
    if not table.snapshots():
        with (
            table.transaction() as transaction,
            _Nothing(
                Operation.APPEND,
                transaction,
                table.io,
                snapshot_properties={ACTION_PROPERTY: FENCE_ACTION},
                branch=None,
            ),
        ):
            pass


def commit_replacement(
    table: Table,
    scope: BooleanExpression,
    old: Iterable[DataFile],
    new: Iterable[DataFile],
    properties: Mapping[str, str],
    *,
    branch: str = MAIN_BRANCH,
    token: int | None = None,
) -> None:
    """Commit one snapshot that has `new` in place of `old`, if the lease of `token` is not fenced.

    The scope is given to the commit as its predicate: that is what limits conflict detection to it. Without it, any
    concurrent append anywhere in the table would abort the commit.
    """
    head = table.snapshot_by_name(branch)
    require_countable(table, head)
    operation = Operation.APPEND if head is None else Operation.OVERWRITE
    with _Transaction(table) as transaction:
        replacement = _Replacement(
            operation, transaction, table.io, snapshot_properties=dict(properties), branch=branch
        )
        replacement.token = token
        with replacement as update:
            update.delete_by_predicate(scope)
            for file in old:
                update.delete_data_file(file)
            for file in new:
                update.append_data_file(file)


def _append(table: Table, files: Iterable[DataFile], properties: Mapping[str, str]) -> None:
    require_countable(table, table.current_snapshot())
    with table.transaction() as transaction:
        append = _Append(Operation.APPEND, transaction, table.io, snapshot_properties=dict(properties))
        append.table = table
        with append as update:
            for file in files:
                update.append_data_file(file)


def _committed_once(table: Table) -> Table:
    """Return a table whose commits fail if another one came between, and are not tried again by PyIceberg.

    It takes that from a table property, which the tables of an installation have set otherwise. This one is changed here
    only: a commit sends its own updates to the catalog, and not the properties it was made with.
    """
    once = dict(table.metadata.properties) | {TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": once})
    return table


def data_files(table: Table, paths: Sequence[str], footers: Sequence[_Footer] | None = None) -> list[DataFile]:
    """Make Iceberg data files of staged Parquet files, from their footers; order kept.

    As PyIceberg does it (`parquet_file_to_data_file`), but for what is the same for files of the same schema, which takes
    it two thirds of the time: that is found out for the first of them. `footers` are theirs, where they were read already.
    """
    metadata = table.metadata
    wanted = compute_statistics_plan(metadata.schema(), metadata.properties)
    ids = parquet_path_to_id_mapping(metadata.schema())
    known: list[Any] = []
    bounds: dict[tuple[int, bool, str], bytes | None] = {}

    def serialized(statistics: DataFileStatistics) -> dict[str, Any]:
        """Return statistics with bounds as Iceberg keeps them; many files have the same ones in many columns."""
        whole = replace(statistics, column_aggregates={}).to_serialized_dict()
        for field_id, found in statistics.column_aggregates.items():
            for name, is_lower, value in (
                ("lower_bounds", True, found.current_min),
                ("upper_bounds", False, found.current_max),
            ):
                if value is None:
                    continue
                key = (field_id, is_lower, str(value))  # as text 0.0 and -0.0 are two
                if key not in bounds:
                    bounds[key] = found.min_as_bytes() if is_lower else found.max_as_bytes()
                if bounds[key] is not None:
                    whole[name][field_id] = bounds[key]
        return whole

    def described(path: str, footer: _Footer) -> DataFile:
        schema = footer.metadata.schema.to_arrow_schema()
        if not any(schema.equals(one, check_metadata=True) for one in known):
            checked = parquet_file_to_data_file(table.io, metadata, path)
            known.append(schema)
            return checked
        statistics = data_file_statistics_from_parquet_metadata(footer.metadata, wanted, ids)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=statistics.partition(metadata.spec(), metadata.schema()),
            file_size_in_bytes=footer.size,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **serialized(statistics),
        )

    if footers is None:
        footers = _footers(table, paths)
    return [described(path, footer) for path, footer in zip(paths, footers, strict=True)]


@dataclass(frozen=True)
class _Footer:
    """What a commit takes over from a Parquet file: its size in bytes, its footer, and the footer's SHA-256 (hex)."""

    size: int
    sha256: str
    metadata: pq.FileMetaData


def _footers(table: Table, paths: Sequence[str]) -> list[_Footer]:
    """Read the footers of Parquet files, each once; order kept.

    Raises:
        PublicationRefused: for a file that is not there, or has no footer: it is not the one that was gated.
        EnvironmentRefused: for a file that could not be read just now: nothing is known of it.
    """

    def damaged(path: str, error: Exception) -> PublicationRefused:
        return PublicationRefused(
            Problem(
                f"{path} cannot be read: {type(error).__name__}: {error}",
                "what is published is what was gated",
                "cancel the run: its staging was damaged after it was gated",
            )
        )

    def footer_of(path: str) -> _Footer:
        try:
            file = table.io.new_input(path)
            with file.open() as stream:
                size = len(file)
                raw = read_footer(stream, size)
        except FileNotFoundError as error:
            raise damaged(path, error) from error
        except OSError as error:
            raise EnvironmentRefused(
                Problem(
                    f"{path} could not be read just now: {type(error).__name__}: {error}",
                    "a file that cannot be read says nothing about what was staged",
                    "nothing has changed; run the same command again; if it stays so, see `backfill doctor`",
                )
            ) from error
        try:
            return _Footer(size, hashlib.sha256(raw).hexdigest(), pq.read_metadata(BufferReader(raw)))
        except (OSError, ArrowException) as error:  # of bytes that were read: they are no footer
            raise damaged(path, error) from error

    return _for_each(footer_of, paths)


def _for_each(ask: Callable[[str], _T], paths: Sequence[str]) -> list[_T]:
    """Ask something of each file, order kept: of a store together, on a local disk one by one, where nothing is waited for."""
    if all(path.startswith("file:") for path in paths):
        return [ask(path) for path in paths]
    with ThreadPoolExecutor(_FOOTER_READERS) as pool:
        return list(pool.map(ask, paths))


def require_same_files(name: str, scope: Scope, base: Sequence[DataFile], present: Sequence[DataFile]) -> None:
    """Refuse if a scope does not hold exactly the files it held at the base.

    Raises:
        PublicationRefused: naming the files that came and went.
    """
    before, after = {file.file_path for file in base}, {file.file_path for file in present}
    if before == after:
        return
    changes = [f"+ {path}" for path in sorted(after - before)] + [f"- {path}" for path in sorted(before - after)]
    shown = changes[:20] + ([f"… and {len(changes) - 20} more"] if len(changes) > 20 else [])  # noqa: PLR2004
    raise ScopeChanged(
        Problem(
            f"{name} no longer holds the plan's files in {scope.start} to {scope.end}:\n      "
            + "\n      ".join(shown),
            "somebody else has written into the scope since the plan was made",
            "plan the change again, under a new run id, on the table as it is now",
        )
    )


def _as_gated(table: Table, staged: Sequence[StagedFile]) -> list[DataFile]:
    """Return the data files of staged files that are those that were gated, and that fit the table as it is.

    Raises:
        PublicationRefused: if one is gone, has other rows, footers or contents, or was made for other columns or partitions.
    """
    paths = [file.path for file in staged]
    footers = _footers(table, paths)
    try:
        new = data_files(table, paths, footers)
    except (KeyError, ValueError) as error:  # of PyIceberg, which says it in no other way
        raise PublicationRefused(
            Problem(
                f"staged files do not fit {'.'.join(table.name())} as it is now: {type(error).__name__}: {error}",
                "what is published has the columns of the table, and each file lies in one of its partitions",
                "somebody has changed the table's columns or partitioning since: plan the change again, under a new run id",
            )
        ) from error
    _require_as_staged(staged, new)
    _require_same_footers(staged, footers)
    require_gated_contents(table, staged)
    return new


def _require_present(name: str, replaced: Collection[str], old: Sequence[DataFile]) -> None:
    """Refuse to replace files that are not there: what was made of them would come in beside them."""
    missing = sorted(set(replaced) - {file.file_path for file in old})
    if missing:
        raise PublicationRefused(
            Problem(
                f"{len(missing)} file(s) are to be replaced and are not files of {name} in its scope: {'; '.join(missing[:10])}",
                "a file that is replaced goes in the commit in which its copy comes",
                "plan the change again, under a new run id",
            )
        )


def _require_as_staged(staged: Sequence[StagedFile], found: Sequence[DataFile]) -> None:
    changed = [
        Problem(
            f"{file.path} has {data.record_count:,} rows and {data.file_size_in_bytes:,} bytes, "
            f"not {file.rows:,} and {file.bytes:,}",
            "what is published is what was gated",
            "cancel the run: its staging was changed after it was gated",
        )
        for file, data in zip(staged, found, strict=True)
        if (data.record_count, data.file_size_in_bytes) != (file.rows, file.bytes)
    ]
    if changed:
        raise PublicationRefused(changed)


def _require_same_footers(staged: Sequence[StagedFile], footers: Sequence[_Footer]) -> None:
    """Refuse files whose footer is not the one that was gated: what a commit says of a file comes from there."""
    changed = [
        Problem(
            f"the footer of {file.path} has the SHA-256 {footer.sha256}, not {file.footer}",
            "what is published is what was gated",
            "cancel the run: its staging was changed after it was gated",
        )
        for file, footer in zip(staged, footers, strict=True)
        if file.footer and footer.sha256 != file.footer
    ]
    if changed:
        raise PublicationRefused(changed)


def _files_at(table: Table, snapshot_id: int | None, scope: Scope) -> list[DataFile]:
    """Return the files of a scope at a snapshot; None stands for the table before its first one."""
    return [] if snapshot_id is None else _files_in(table, _snapshot(table, snapshot_id), scope)


def _reach(table: Table, scope: Scope, files: Sequence[DataFile]) -> Scope:
    """Return the scope, made wider by the days beside it that files hold.

    Raises:
        PublicationRefused: if one of them does not say which days it holds.
    """
    for file in reaching_beyond(table, scope.filter, files):
        days = days_of(table, scope.column, file)
        if days is None or (file.null_value_counts or {}).get(column_of(table, scope.column).field_id):
            raise PublicationRefused(
                Problem(
                    f"a file that would come back may hold rows of any day: {in_words(table, scope.column, file)}",
                    f"what is put back is what {scope} held, and what was there beside it is untouched since",
                    "restate the scope with a new run",
                )
            )
        scope = replace(scope, start=min(scope.start, days[0]), end=max(scope.end, days[1]))
    return scope


def _is_at(current: Snapshot | None, snapshot_id: int | None) -> bool:
    return (None if current is None else current.snapshot_id) == snapshot_id


def _restoring(
    table: Table, scopes: Sequence[Scope], from_snapshot_id: int, to_snapshot_id: int | None
) -> tuple[list[Scope], list[DataFile], list[DataFile], list[DataFile]]:
    """Return what `Lakehouse.restore` commits: the scopes as far as its files reach, files that go, come back, and are there."""
    present: dict[str, DataFile] = {}
    going: dict[str, DataFile] = {}
    coming: dict[str, DataFile] = {}
    wider: list[Scope] = []
    current = table.current_snapshot()
    for scope in scopes:
        published = {file.file_path: file for file in _unchanged_files(table, current, scope, from_snapshot_id)}
        earlier = {file.file_path: file for file in _files_at(table, to_snapshot_id, scope)}
        gone = {path: file for path, file in published.items() if path not in earlier}
        require_inside(table, scope.filter, str(scope), gone.values(), scope.column)
        back = {path: file for path, file in earlier.items() if path not in published}
        whole = _reach(table, scope, list(back.values()))
        wider.append(whole)
        if whole != scope:  # it lost days of others with its own: nobody may have written those since
            published |= {file.file_path: file for file in _unchanged_files(table, current, whole, from_snapshot_id)}
        present, going, coming = present | published, going | gone, coming | back
    return wider, list(going.values()), list(coming.values()), list(present.values())


def _unchanged_files(table: Table, current: Snapshot | None, scope: Scope, snapshot_id: int | None) -> list[DataFile]:
    """Return the files of a scope at a snapshot, if the current one still has the same; see `require_same_files`."""
    then = _files_at(table, snapshot_id, scope)
    if not _is_at(current, snapshot_id):  # else nothing at all has changed, and nothing is listed again
        require_same_files(".".join(table.name()), scope, then, _files_in(table, current, scope))
    return then


def _files_in(table: Table, snapshot: Snapshot | None, scope: Scope) -> list[DataFile]:
    return [] if snapshot is None else list(_live_files(table, snapshot, scope.filter))


def _any_of(filters: Sequence[BooleanExpression]) -> BooleanExpression:
    return filters[0] if len(filters) == 1 else Or(*filters)


def local_path(uri: str) -> str:
    """Return the path of a file: URI, and anything else unchanged."""
    return uri.removeprefix("file://").removeprefix("file:")


def between(column: str, start: datetime, end: datetime) -> BooleanExpression:
    """Rows with start <= column < end."""
    return And(GreaterThanOrEqual(term=column, value=start.isoformat()), LessThan(term=column, value=end.isoformat()))


def before(column: str, end: datetime) -> BooleanExpression:
    """Rows with column < end."""
    return LessThan(term=column, value=end.isoformat())


def _snapshot(table: Table, snapshot_id: int | None) -> Snapshot:
    name = ".".join(table.name())
    if snapshot_id is None:
        current = table.current_snapshot()
        if current is None:
            raise InputRefused(Problem(f"{name} has no snapshot", "a table that is read holds data", "load it first"))
        return current
    found = table.snapshot_by_id(snapshot_id)
    if found is None:
        raise InputRefused(
            Problem(
                f"{name} has no snapshot {snapshot_id}",
                "a pinned snapshot exists in the table's history",
                "it may have expired, or belong to another table; see the table's snapshots",
            )
        )
    return found


def _live_files(table: Table, snapshot: Snapshot, row_filter: BooleanExpression) -> Iterator[DataFile]:
    with readable_metadata(table, snapshot):
        # what a scan would say of each file besides (what is left of the filter to apply) takes twice as long as all else
        planner = ManifestGroupPlanner(table.metadata, table.io, row_filter)
        entries = planner.plan_manifest_entries(snapshot.manifests(table.io))
        files = [entry.data_file for entry in chain.from_iterable(entries)]
    if all(file.content == DataFileContent.DATA for file in files):
        yield from files
        return
    with readable_metadata(table, snapshot):
        tasks = list(table.scan(row_filter=row_filter, snapshot_id=snapshot.snapshot_id).plan_files())
    for task in tasks:
        if task.delete_files or task.file.content != DataFileContent.DATA:
            raise InputRefused(
                Problem(
                    f"{task.file.file_path} of {'.'.join(table.name())} has {len(task.delete_files)} delete file(s)",
                    "pinned reads and publications work on data files without deletes",
                    "compact the table first (rewrite its data files)",
                )
            )
        yield task.file


def _instants(table: Table, file: DataFile, column: str) -> tuple[datetime, datetime]:
    field = column_of(table, column)
    low, high = (file.lower_bounds or {}).get(field.field_id), (file.upper_bounds or {}).get(field.field_id)
    if low is None or high is None:
        raise InputRefused(
            Problem(
                f"{file.file_path} has no bounds for {column}",
                "a source keeps column metrics for its time column; the planner works from metadata alone",
                f"set write.metadata.metrics.column.{column}=full and rewrite the file",
            )
        )
    kind = field.field_type
    if isinstance(kind, DateType):
        unit = timedelta(days=1)
    elif isinstance(kind, TimestamptzType):
        unit = timedelta(microseconds=1)
    else:
        raise wrong_type(table, field, "a date or timestamptz")
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    with readable_bounds(table):
        return epoch + int(from_bytes(kind, low)) * unit, epoch + int(from_bytes(kind, high)) * unit


def _with_version(table: Table, version: str) -> bool:
    return any(
        snapshot.summary is not None and snapshot.summary.additional_properties.get(DATA_VERSION_PROPERTY) == version
        for snapshot in table.snapshots()
    )


def _with_property(
    table: Table,
    key: str,
    value: str,
    action: str | None = None,
    ref: str = MAIN_BRANCH,
    sequence: int | None = None,
) -> Snapshot | None:
    for snapshot in ancestors(table, ref):
        found = snapshot.summary.additional_properties if snapshot.summary else {}
        if found.get(key) != value or (action is not None and found.get(ACTION_PROPERTY) != action):
            continue
        if sequence is None or found.get(SEQUENCE_PROPERTY) in {None, str(sequence)}:
            return snapshot
    return None


def _patient(properties: Mapping[str, str]) -> dict[str, str]:
    """Let a SQLite catalog wait for its lock as long as the ledger does; the driver's own 5 s are short for a crowd."""
    uri = properties.get("uri", "")
    if not uri.startswith("sqlite") or "timeout" in make_url(uri).query:
        return dict(properties)
    return {
        **properties,
        "uri": make_url(uri).update_query_dict({"timeout": "60"}).render_as_string(hide_password=False),
    }
