"""Everything private of PyIceberg that this project uses, behind names of its own; `tests/test_upstream.py` pins each.

Put here what has no public way: a subclass that overrides a private method, a private function, an attribute that is none of
ours. No other module names them, and a test looks that none does: an upgrade of PyIceberg is judged by this file. What a
commit is made of and when it may be made is `commits`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import wraps
from http import HTTPStatus
from threading import Lock, local
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pyarrow as arrow
from pyarrow.fs import FileSystem
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import RESTError
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator, _StrictMetricsEvaluator
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowProjectionVisitor, PyArrowFileIO, PyArrowLocalFileSystem, _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table, TableProperties, Transaction
from pyiceberg.table import metadata as table_metadata
from pyiceberg.table import update as metadata_updates
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Summary, update_snapshot_summaries
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate, UpdatesAndRequirements
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT, Properties

from resources.lakehouse.metadata import readable_metadata
from resources.lakehouse.partition_counts import CountedOnce

# --- commits ----------------------------------------------------------------------------------------------------------


class Replacement(_OverwriteFiles):
    """PyIceberg's overwrite, with requirements of ours, and without manifests of nothing but files deleted in earlier snapshots.

    PyIceberg itself hands those on for ever: each replacement would read one more of them than the one before.
    """

    own_requirements: tuple[TableRequirement, ...] = ()
    """What the catalog has to find so besides what PyIceberg requires, at each try of the commit."""

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
        """Count all files; partitions of an earlier spec are not named among those of the current one.

        As PyIceberg does it, but that no path of a partition is written out where partitions are only counted.
        """
        metadata = self._transaction.table_metadata
        named = TableProperties.WRITE_PARTITION_SUMMARY_LIMIT
        limit = int(metadata.properties.get(named, TableProperties.WRITE_PARTITION_SUMMARY_LIMIT_DEFAULT))
        counted, schema, specs = CountedOnce(limit), metadata.schema(), metadata.specs()
        for file in self._added_data_files:
            if self._spec_of(file) == self._current_spec:
                counted.add_file(file, schema, specs[self._current_spec])
            else:
                counted.metrics.add_file(file)
        for file in self._deleted_data_files:
            counted.remove_file(file, schema, specs[file.spec_id])
        parent = None if self._parent_snapshot_id is None else metadata.snapshot_by_id(self._parent_snapshot_id)
        own = Summary(operation=self._operation, **counted.build(), **snapshot_properties)
        return update_snapshot_summaries(own, None if parent is None else parent.summary)

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
        return updates, (*requirements, *self.own_requirements)


class Rewriting(Replacement):
    """A replacement after which readers have the rows that they had: its snapshot is one of Iceberg's operation `replace`.

    Files that delete rows by position go with the files whose rows they delete, and come back with them: each file that comes back
    has the data sequence number that it had, by which readers know which deletes apply to it.
    """

    sequence_numbers: Mapping[str, int] = MappingProxyType({})
    """Of the files that come back, by path; what is not among them is new."""
    deletes_going: frozenset[DataFile] = frozenset()
    """The files that delete rows and go out."""

    def _existing_manifests(self) -> list[ManifestFile]:
        going, found = {one.file_path for one in self.deletes_going}, []
        for manifest in super()._existing_manifests():
            is_of_deletes = manifest.content == ManifestContent.DELETES
            entries = self.fetch_manifest_entry(manifest) if going and is_of_deletes else []
            if not any(entry.data_file.file_path in going for entry in entries):
                found.append(manifest)
                continue
            with self._writer_of_deletes(manifest.partition_spec_id) as writer:
                for entry in entries:
                    (writer.delete if entry.data_file.file_path in going else writer.existing)(entry)
            found.append(writer.to_manifest_file())
        return found

    def _manifests(self) -> list[ManifestFile]:
        back = [file for file in self._added_data_files if file.file_path in self.sequence_numbers]
        with self._adding([file for file in self._added_data_files if file.file_path not in self.sequence_numbers]):
            manifests = super()._manifests()
        alike: dict[tuple[int, bool], list[DataFile]] = {}
        for file in back:
            alike.setdefault((self._spec_of(file), file.content == DataFileContent.DATA), []).append(file)
        for (spec_id, is_data), files in alike.items():
            writer = self.new_manifest_writer(self.spec(spec_id)) if is_data else self._writer_of_deletes(spec_id)
            with writer:
                for file in files:
                    writer.add(
                        ManifestEntry.from_args(
                            status=ManifestEntryStatus.ADDED,
                            snapshot_id=self._snapshot_id,
                            sequence_number=self.sequence_numbers[file.file_path],
                            file_sequence_number=None,
                            data_file=file,
                        )
                    )
            manifests.append(writer.to_manifest_file())
        return manifests

    def _writer_of_deletes(self, spec_id: int) -> ManifestWriterV2:
        return WriterOfDeletes(
            self.spec(spec_id), self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression
        )

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        data_files = self._deleted_data_files
        self._deleted_data_files = data_files | self.deletes_going
        try:
            said = super()._summary(snapshot_properties)
        finally:
            self._deleted_data_files = data_files
        return Summary(operation=Operation.REPLACE, **said.additional_properties)


class WriterOfDeletes(ManifestWriterV2):
    """PyIceberg's writer of manifests, for manifests of files that delete rows."""

    def content(self) -> ManifestContent:
        """Return what its entries are."""
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class Append(_FastAppendFiles):
    """PyIceberg's append, with requirements of ours, refused where the manifest list that it goes on from cannot be read."""

    table: Table
    own_requirements: tuple[TableRequirement, ...] = ()
    """As of a `Replacement`."""

    def _existing_manifests(self) -> list[ManifestFile]:
        head = self._transaction.table_metadata.snapshot_by_name(MAIN_BRANCH)
        if head is None:
            return []
        with readable_metadata(self.table, head, head.manifest_list):
            return super()._existing_manifests()

    def _commit(self) -> UpdatesAndRequirements:
        updates, requirements = super()._commit()
        return updates, (*requirements, *self.own_requirements)


class EmptySnapshot(_FastAppendFiles):
    """A snapshot of no files at all."""

    def _existing_manifests(self) -> list[ManifestFile]:
        return []


class QuickTransaction(Transaction):
    """PyIceberg's transaction, which applies its updates to a copy of the metadata once and not at each look at it."""

    _seen: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with the transaction's updates."""
        seen = self._seen
        if seen is None or seen[0] is not self._table.metadata or seen[1] is not self._updates:
            self._seen = seen = (self._table.metadata, self._updates, super().table_metadata)
        return seen[2]


class FencedTransaction(Transaction):
    """PyIceberg's transaction of changes that make no snapshot, with requirements of ours beside its own."""

    own_requirements: tuple[TableRequirement, ...] = ()

    def commit_transaction(self) -> Table:
        """Commit what was changed, if the catalog finds everything that is required."""
        if self._updates:
            self._requirements += self.own_requirements
        return super().commit_transaction()


# --- when a commit is made --------------------------------------------------------------------------------------------


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Told(datetime):
    """PyIceberg's clock for metadata: the instant that `dated_by` has said for what this thread does just now, or this machine's."""

    at = local()

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        """Return the present instant."""
        said: datetime | None = getattr(cls.at, "instant", None)
        return datetime.now(tz) if said is None else said.astimezone(tz)


@contextmanager
def _dating(instant: datetime) -> Iterator[None]:
    _Told.at.instant = instant
    try:
        yield
    finally:
        _Told.at.instant = None


def dated_by(catalog: Catalog, clock: Callable[[], datetime]) -> Catalog:
    """Have a catalog's tables and commits dated by a clock, and not by that of this machine: hosts with wrong clocks share tables.

    A REST server dates the rest itself, and refuses snapshots that lie more than a minute ahead of it; so do Iceberg's readers refuse a
    table whose log goes back by more.
    """
    commit, create = catalog.commit_table, catalog.create_table

    def commit_table(
        table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        # after what is there, whoever wrote that by which clock: no reader takes a log that goes back by more than a minute
        instant = max(clock(), _EPOCH + timedelta(milliseconds=table.metadata.last_updated_ms + 1))
        with _dating(instant):
            return commit(table, requirements, tuple(_dated(one, instant) for one in updates))

    @wraps(create)
    def create_table(*arguments: Any, **options: Any) -> Table:
        with _dating(clock()):
            return create(*arguments, **options)

    catalog.commit_table = commit_table  # type: ignore[method-assign]
    catalog.create_table = create_table  # type: ignore[method-assign]
    return catalog


def _dated(update: TableUpdate, instant: datetime) -> TableUpdate:
    if not isinstance(update, AddSnapshotUpdate):
        return update
    snapshot = update.snapshot.model_copy(update={"timestamp_ms": (instant - _EPOCH) // timedelta(milliseconds=1)})
    return update.model_copy(update={"snapshot": snapshot})


def tell_time_as_dated() -> None:
    """Have PyIceberg ask `_Told` where it dates metadata; safe to repeat."""
    updates: Any = metadata_updates
    metadata: Any = table_metadata
    updates.datetime = _Told
    metadata.datetime = SimpleNamespace(datetime=_Told)


tell_time_as_dated()


# --- data files -------------------------------------------------------------------------------------------------------


def write_data_files(table: Table, rows: Any) -> Iterable[DataFile]:
    """Write an Arrow table below a table's location, by its partitions, and yield the data files; commits nothing."""
    return _dataframe_to_data_files(table.metadata, rows, table.io)


def holds_only(schema: Schema, where: BooleanExpression) -> Callable[[DataFile], bool]:
    """Return what tells whether all rows of a data file are selected by a filter, by the bounds of its columns."""
    evaluator = _StrictMetricsEvaluator(schema, where)
    return lambda file: bool(evaluator.eval(file))


def may_hold(schema: Schema, where: BooleanExpression) -> Callable[[DataFile], bool]:
    """Return what tells whether any row of a data file may be selected by a filter, by the bounds of its columns."""
    evaluator = _InclusiveMetricsEvaluator(schema, where, case_sensitive=True)
    return lambda file: bool(evaluator.eval(file))


# --- how files are opened ---------------------------------------------------------------------------------------------


class FileIOWithOwnDisk(PyArrowFileIO):
    """PyIceberg's own, with a local file system that a subclass may choose."""

    def local_disk(self) -> FileSystem:
        """Return the local file system that files are opened with."""
        return PyArrowLocalFileSystem()

    def _initialize_local_fs(self) -> FileSystem:
        return self.local_disk()


def open_as_the_catalog_says(catalog: Catalog) -> Catalog:
    """Have a catalog's own properties, and what its server hands out, say how files are opened, and no table's.

    PyIceberg lets a table's properties go before the catalog's: whoever writes metadata would choose the code that reads it.
    """
    load_file_io = catalog._load_file_io  # noqa: SLF001 - the one place where PyIceberg chooses

    def of_the_catalog(properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:  # noqa: ARG001
        return load_file_io(location=location)

    respond = getattr(catalog, "_response_to_table", None)
    if respond is None:
        catalog._load_file_io = of_the_catalog  # type: ignore[method-assign]  # noqa: SLF001
        return catalog

    def without_properties(identifier: tuple[str, ...], response: Any) -> Table:
        # a REST server's answer has the metadata's properties apart from its own, such as credentials for this table
        bare = response.metadata.model_copy(update={"properties": {}})
        table: Table = respond(identifier, response.model_copy(update={"metadata": bare}))
        table.metadata = response.metadata
        return table

    catalog._response_to_table = without_properties  # type: ignore[attr-defined]  # noqa: SLF001
    catalog._session.hooks["response"].append(_require_answer)  # type: ignore[attr-defined]  # noqa: SLF001
    return catalog


_MEANT = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT})
"""Statuses by which a REST catalog says that something is not there, or that a commit was not made."""


class NoAnswerError(RESTError):
    """What came back from a REST catalog's address is none of the protocol's answers: a page of a proxy, or of a log-in."""


def _require_answer(response: Any, *_: Any, **__: Any) -> None:
    """Raise where a response to what a REST catalog is asked is no answer of the protocol, before PyIceberg takes it for one.

    Raises:
        NoAnswerError: of a commit it says nothing: it may have landed.
    """
    status, content = response.status_code, response.content.lstrip()
    if response.request.method == "HEAD" or (status < HTTPStatus.BAD_REQUEST and not content):
        return
    is_answer = content.startswith(b"{")
    if is_answer and status in _MEANT:
        try:
            is_answer = isinstance(response.json().get("error"), dict)
        except ValueError:
            is_answer = False
    if status == HTTPStatus.NOT_IMPLEMENTED or (
        not is_answer and (status < HTTPStatus.BAD_REQUEST or status in _MEANT)
    ):
        text = content[:100].decode(errors="replace")
        raise NoAnswerError(
            f"{response.request.method} is answered by {status} and {text!r}, which is none of the protocol's answers"
        )


def keep_nested_nulls() -> None:
    """Have PyIceberg keep each NULL that stands for a list, or a map, of structs, in what it reads and writes.

    Its own projection makes an empty one of it: rows that are loaded would no longer be those of the file. Safe to repeat.
    """
    for name in ("list", "map"):
        own = getattr(ArrowProjectionVisitor, name)
        if not hasattr(own, "without_nulls"):
            setattr(ArrowProjectionVisitor, name, _with_nulls(own))


def _with_nulls(own: Callable[..., arrow.Array | None]) -> Callable[..., arrow.Array | None]:
    @wraps(own)
    def projected(self: Any, kind: Any, given: arrow.Array | None, *inside: arrow.Array | None) -> arrow.Array | None:
        found = own(self, kind, given, *inside)
        if found is None or given is None or found.null_count == given.null_count:
            return found
        # by its parts: a function of Arrow would drop the field ids inside, and the file would have none
        offsets, parts = arrow.array(found.offsets.to_numpy()), [found.values]
        if isinstance(found, arrow.MapArray):
            parts = [found.keys, found.items]
        return type(found).from_arrays(offsets, *parts, type=found.type, mask=given.is_null())

    projected.without_nulls = own  # type: ignore[attr-defined]
    return projected


keep_nested_nulls()
