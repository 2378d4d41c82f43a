"""Staged Parquet files as data files of a table, held against what was gated, before a commit brings them in.

Put here what is read of a staged file to make an Iceberg data file of it, and what refuses one that is not as its gate has
read it. Files that a snapshot has already are `live_files`'s; whole contents are hashed in `gated_contents`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow.parquet as pq
from pyarrow import ArrowException, BufferReader
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    parquet_file_to_data_file,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import Table

from manifests.errors import EnvironmentRefused, Problem, PublicationRefused
from manifests.staged_file import StagedFile
from resources.files.fingerprints import footer_in, read_footer
from resources.files.stores import is_local
from resources.lakehouse.footer_statistics import Described, FootersOfSchema
from resources.lakehouse.gated_contents import require_gated_contents
from resources.lakehouse.partitions import Partitions
from resources.lakehouse.storage import ask_each

_SMALL = 64 << 10
"""Bytes of a file that is read whole where its footer is wanted and its contents are as well."""


@dataclass(frozen=True)
class Footer:
    """What a commit takes over from a Parquet file: its size in bytes, and its footer."""

    path: str
    size: int
    raw: bytes

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 (hex) of the footer."""
        return hashlib.sha256(self.raw).hexdigest()

    @property
    def metadata(self) -> pq.FileMetaData:
        """The footer as it is read; not kept: of very many files it takes more memory than all else.

        Raises:
            PublicationRefused: if it is none.
        """
        reader = pq.ParquetReader()  # by itself, without what `read_metadata` finds out of columns within columns
        try:
            reader.open(BufferReader(self.raw))
        except (OSError, ArrowException) as error:  # of bytes that were read: they are no footer
            raise _damaged(self.path, error) from error
        return reader.metadata


def data_files(table: Table, paths: Sequence[str], footers: Sequence[Footer] | None = None) -> list[DataFile]:
    """Make Iceberg data files of staged Parquet files, from their footers; order kept.

    As PyIceberg does it (`parquet_file_to_data_file`), but that whether a schema fits is asked of the first file that has it, and the
    others are read by what that one has told (`footer_statistics`). `footers` are theirs, where they were read already.

    Raises:
        KeyError, ValueError: of PyIceberg, for a file that does not fit the table's columns or partitions.
        PublicationRefused: for a file that is not there, or has no footer.
        EnvironmentRefused: for a file that could not be read just now.
    """
    metadata = table.metadata
    unpartitioned = metadata.model_copy(
        update={"default_spec_id": 0, "partition_specs": [UNPARTITIONED_PARTITION_SPEC]}
    )
    wanted = compute_statistics_plan(metadata.schema(), metadata.properties)
    ids = parquet_path_to_id_mapping(metadata.schema())
    schemas: list[FootersOfSchema] = []
    partitions = Partitions(table)

    def read(path: str, footer: pq.FileMetaData) -> Described:
        known = next((one for one in schemas if one.has(footer)), None)
        if known is None:
            parquet_file_to_data_file(table.io, unpartitioned, path)
            if footer.num_row_groups:  # else nobody asks for the fields of its columns, and one may have none
                schemas.append(FootersOfSchema(footer, wanted, ids))
        found = None if known is None else known.read(footer)
        return found or Described.by_pyiceberg(footer, wanted, ids)

    def described(path: str, footer: Footer) -> DataFile:
        found = read(path, footer.metadata)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=partitions.of(path, found.statistics),
            file_size_in_bytes=footer.size,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **found.as_arguments(),
        )

    if footers is None:
        footers = footers_of(table, paths)
    return [described(path, footer) for path, footer in zip(paths, footers, strict=True)]


def footers_of(table: Table, paths: Sequence[str], contents: dict[str, str] | None = None) -> list[Footer]:
    """Read the footers of Parquet files, each once; order kept.

    Of small files on a local disk, which are read whole then, the SHA-256 (hex) of all their bytes is put into `contents`, if it is given: to
    open such a file takes longer than to read it.

    Raises:
        PublicationRefused: for a file that is not there: it is not the one that was gated.
        EnvironmentRefused: for a file that could not be read just now: nothing is known of it.
    """

    def footer_of(path: str) -> Footer:
        try:
            file = table.io.new_input(path)
            with file.open() as stream:
                size = len(file)
                if contents is None or size > _SMALL or not is_local(path):
                    return Footer(path, size, read_footer(stream, size))
                raw = stream.read()
        except FileNotFoundError as error:
            raise _damaged(path, error) from error
        except OSError as error:
            raise EnvironmentRefused(
                Problem(
                    f"{path} could not be read just now: {type(error).__name__}: {error}",
                    "a file that cannot be read says nothing about what was staged",
                    "nothing has changed; run the same command again; if it stays so, see `backfill doctor`",
                )
            ) from error
        contents[path] = hashlib.sha256(raw).hexdigest()
        return Footer(path, len(raw), footer_in(raw))

    return ask_each(footer_of, paths)


def _damaged(path: str, error: Exception) -> PublicationRefused:
    return PublicationRefused(
        Problem(
            f"{path} cannot be read: {type(error).__name__}: {error}",
            "what is published is what was gated",
            "cancel the run: its staging was damaged after it was gated",
        )
    )


def gated_data_files(table: Table, staged: Sequence[StagedFile]) -> list[DataFile]:
    """Return the data files of staged files that are those that were gated, and that fit the table as it is.

    Raises:
        PublicationRefused: if one is gone, has other rows, footers or contents, or was made for other columns or partitions.
    """
    paths, contents = [file.path for file in staged], dict[str, str]()
    footers = footers_of(table, paths, contents)
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
    require_gated_contents(table, staged, contents)
    return new


def require_gated_bytes(table: Table, staged: Sequence[StagedFile]) -> list[Footer]:
    """Refuse files whose contents are not those that were gated, before a ref makes them visible; return their footers.

    Raises:
        PublicationRefused: if one is gone, or has another footer or content.
        EnvironmentRefused: if one could not be read just now.
    """
    contents = dict[str, str]()
    footers = footers_of(table, [file.path for file in staged], contents)
    for file, footer in zip(staged, footers, strict=True):
        if not file.footer:  # no hash of it is on record: it is a footer at least
            _ = footer.metadata
    _require_same_footers(staged, footers)
    require_gated_contents(table, staged, contents)
    return footers


def as_gated(table: Table, staged: Iterable[StagedFile]) -> frozenset[str]:
    """Return the paths of those staged files that are there, with the contents that were gated.

    Raises:
        EnvironmentRefused: if one could not be read just now.
    """
    files = list(staged)
    try:
        require_gated_bytes(table, files)
    except PublicationRefused:
        half = len(files) // 2
        return as_gated(table, files[:half]) | as_gated(table, files[half:]) if half else frozenset()
    return frozenset(file.path for file in files)


def _require_as_staged(staged: Sequence[StagedFile], described: Sequence[DataFile]) -> None:
    changed = [
        Problem(
            f"{file.path} has {data.record_count:,} rows and {data.file_size_in_bytes:,} bytes, "
            f"not {file.rows:,} and {file.bytes:,}",
            "what is published is what was gated",
            "cancel the run: its staging was changed after it was gated",
        )
        for file, data in zip(staged, described, strict=True)
        if (data.record_count, data.file_size_in_bytes) != (file.rows, file.bytes)
    ]
    if changed:
        raise PublicationRefused(changed)


def _require_same_footers(staged: Sequence[StagedFile], footers: Sequence[Footer]) -> None:
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
