"""Data files cut into pieces at days, each piece with the rows, the columns and the partition that its file has.

Put here how the pieces of a file are written, held against it and described, and the one commit that has them in its place.
No row changes by it, and none goes into another partition. Which files are cut, whether they may be, and what is put on record
of it is `backfill_assets.operations.splitting`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from typing import Any
from uuid import uuid4

import numpy as np
import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq
from pyarrow import ArrowException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table

from manifests.errors import EnvironmentRefused, InputRefused, Problem, PublicationRefused
from resources.lakehouse.catalog import Tables
from resources.lakehouse.commits import commit_replacement, retry
from resources.lakehouse.data_files import Footer, footers_of
from resources.lakehouse.live_files import all_files
from resources.lakehouse.metadata import column_of
from resources.lakehouse.scopes import DAY_MICROSECONDS

SPLIT_FOLDER = "split="
"""How the folders of pieces begin, below a table's data: their files are in snapshots, or nothing needs them."""
_BATCH_ROWS = 65_536
_GROUP_ROWS = 131_072
"""Rows of a row group of a piece, where memory allows."""
_BUFFERED_BYTES = 256 * 1024 * 1024
"""Rows of all pieces of a file that wait to be written: beyond it the largest lot is."""
_EPOCH = date(1970, 1, 1)
_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class Pieces:
    """A data file, and the pieces that have its rows."""

    file: DataFile
    pieces: tuple[DataFile, ...]


def split_file(
    table: Table, file: DataFile, column: str, days: Sequence[date], told: Callable[[int], None] = lambda _: None
) -> Pieces:
    """Write the pieces of a file, and read them again; commits nothing.

    Rows keep their order. Each piece has those from one of `days` (in order) to before the next; rows without a day have
    one of their own. Memory is bounded by the batches of rows under way. `told` gets the number of rows of each batch.

    Raises:
        InputRefused: for a file that is not Parquet, or without the column.
        EnvironmentRefused: if a file cannot be read, or the pieces are not its rows.
    """
    if file.file_format is not FileFormat.PARQUET:
        raise InputRefused(
            Problem(
                f"{file.file_path} is a file of {file.file_format}", "Parquet files are split", "rewrite it as Parquet"
            )
        )
    try:
        _require_known_types(table, file)
        paths = _write(table, file, column, days, told)
        _require_same_rows(table, file, column, days, paths, told)
    except (OSError, ArrowException) as error:
        raise EnvironmentRefused(
            Problem(
                f"{file.file_path} could not be split: {type(error).__name__}: {error}",
                "the rows of a file are read, and written again below the table's location",
                "nothing has changed for readers; run the same command again when it can be read and there is room",
            )
        ) from error
    written = list(paths.values())
    described = [
        _described(table, file, path, footer) for path, footer in zip(written, footers_of(table, written), strict=True)
    ]
    return Pieces(file, tuple(described))


def commit_split(tables: Tables, name: str, split: Sequence[Pieces], properties: Mapping[str, str], token: int) -> None:
    """Put pieces in the place of their files by one commit, if the lease of `token` is not fenced.

    Raises:
        PublicationRefused: if a file is not there any more, or has rows deleted since.
        EnvironmentRefused, LeaseLost: as commits do.
    """
    paths = {one.file.file_path for one in split}
    new = [piece for one in split for piece in one.pieces]

    def put(table: Table) -> None:
        present = {file.file_path: file for file in all_files(table, table.current_snapshot())}
        if {file.file_path for file in new} <= present.keys():
            return  # it has landed, whatever the catalog has said
        if missing := sorted(paths - present.keys()):
            raise PublicationRefused(
                Problem(
                    f"{len(missing)} file(s) that were split are no files of {name} any more: {', '.join(missing[:10])}",
                    "pieces take the place of the file whose rows they have",
                    "nothing has changed; run the same command again",
                )
            )
        commit_replacement(table, AlwaysTrue(), [present[path] for path in sorted(paths)], new, properties, token=token)

    retry(tables, name, put)


def _require_known_types(table: Table, file: DataFile) -> None:
    """Refuse a file with columns that no piece could be described by.

    Raises:
        InputRefused: naming the file and what PyIceberg says.
    """
    with _opened(table, file.file_path) as source:
        try:
            pyarrow_to_schema(source.schema_arrow, name_mapping=table.name_mapping())
        except (TypeError, ValueError) as error:
            raise InputRefused(
                Problem(
                    f"{file.file_path} cannot be split: {error}",
                    "the columns of a piece are those of its file, and of Iceberg's types",
                    "rewrite the file with the engine that wrote it",
                )
            ) from error


def _write(
    table: Table, file: DataFile, column: str, days: Sequence[date], told: Callable[[int], None]
) -> dict[int, str]:
    """Write the pieces; return the path of each by its number."""
    folder = f"{table.location().rstrip('/')}/data/{SPLIT_FOLDER}{uuid4().hex}"
    paths: dict[int, str] = {}
    with ExitStack() as opened:
        source = opened.enter_context(_opened(table, file.file_path))
        writers: dict[int, pq.ParquetWriter] = {}
        waiting: dict[int, list[arrow.Table]] = {}

        def write(number: int) -> None:
            if number not in writers:
                paths[number] = f"{folder}/{number:05}.parquet"
                stream = opened.enter_context(table.io.new_output(paths[number]).create())
                writers[number] = opened.enter_context(
                    pq.ParquetWriter(stream, source.schema_arrow, compression=_compression(source))
                )
            writers[number].write_table(arrow.concat_tables(waiting.pop(number)), row_group_size=_GROUP_ROWS)

        for number, rows in _parts(table, source, column, days, told):
            waiting.setdefault(number, []).append(rows)
            if sum(one.num_rows for one in waiting[number]) >= _GROUP_ROWS:
                write(number)
            while sum(one.nbytes for lot in waiting.values() for one in lot) > _BUFFERED_BYTES:
                write(max(waiting, key=lambda one: sum(lot.nbytes for lot in waiting[one])))
        for number in sorted(waiting):
            write(number)
    return dict(sorted(paths.items()))


def _opened(table: Table, path: str) -> pq.ParquetFile:
    return pq.ParquetFile(table.io.new_input(path).open())


def _compression(source: pq.ParquetFile) -> str:
    """Return how the columns of a file are compressed, as a writer is told."""
    groups = source.metadata
    name = groups.row_group(0).column(0).compression if groups.num_row_groups and groups.num_columns else "ZSTD"
    return "none" if name == "UNCOMPRESSED" else str(name).lower()


def _parts(
    table: Table, source: pq.ParquetFile, column: str, days: Sequence[date], told: Callable[[int], None]
) -> Iterator[tuple[int, arrow.Table]]:
    """Yield the rows of a file with the number of the piece that they are of, in the order of the file."""
    name = _column_in(table, source, column)
    first = np.array([(day - _EPOCH).days for day in days])
    for batch in source.iter_batches(batch_size=_BATCH_ROWS):
        rows = arrow.Table.from_batches([batch], source.schema_arrow)
        numbers = _numbers(rows[name], first)
        for number in np.unique(numbers):
            yield int(number), rows.filter(arrow.array(numbers == number))
        told(rows.num_rows)


def _numbers(values: arrow.ChunkedArray, first: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return which piece each row is of: 0 before the first day, then one a day of `first`, and the last where there is none."""
    kind, size = values.type, len(first)
    if arrow.types.is_timestamp(kind):
        instants = values.cast(arrow.timestamp("us", kind.tz), safe=False).cast(arrow.int64())
        unit = DAY_MICROSECONDS
    else:
        instants, unit = values.cast(arrow.date32()).cast(arrow.int32()), 1
    whole = instants.fill_null(0).to_numpy() // unit
    numbers = np.searchsorted(first, whole, side="right")
    return np.where(values.is_null().to_numpy(), size + 1, numbers)


def _column_in(table: Table, source: pq.ParquetFile, column: str) -> str:
    """Return what a column of the table is called in a file: by its id, where the file says ids.

    Raises:
        InputRefused: if the file does not have it.
    """
    wanted = str(column_of(table, column).field_id).encode()
    fields = list(source.schema_arrow)
    ids = {(field.metadata or {}).get(_FIELD_ID): field.name for field in fields}
    if wanted in ids:
        return str(ids[wanted])
    if ids.keys() == {None} and column in {field.name for field in fields}:
        return column
    raise InputRefused(
        Problem(
            f"a file of {'.'.join(table.name())} has no column {column}: {source.schema_arrow.names}",
            "a file is split by the days of its rows",
            "rewrite it by the table's columns",
        )
    )


def _require_same_rows(
    table: Table,
    file: DataFile,
    column: str,
    days: Sequence[date],
    paths: Mapping[int, str],
    told: Callable[[int], None],
) -> None:
    """Read file and pieces again, and refuse pieces that have not each row of the file once, in its order.

    Raises:
        EnvironmentRefused: naming the piece.
    """
    with ExitStack() as opened:
        source = opened.enter_context(_opened(table, file.file_path))
        found = {number: _Rows(opened.enter_context(_opened(table, path))) for number, path in paths.items()}
        for number, rows in _parts(table, source, column, days, told):
            if not _same(rows, found[number].take(rows.num_rows)):
                raise _differs(paths[number], file)
        for number, rest in found.items():
            if rest.take(1).num_rows:
                raise _differs(paths[number], file)


class _Rows:
    """The rows of a Parquet file, a number of them at a time."""

    def __init__(self, file: pq.ParquetFile) -> None:
        self._batches = file.iter_batches(batch_size=_BATCH_ROWS)
        self._rest = file.schema_arrow.empty_table()

    def take(self, number: int) -> arrow.Table:
        while self._rest.num_rows < number:
            batch = next(self._batches, None)
            if batch is None:
                break
            self._rest = arrow.concat_tables([self._rest, arrow.Table.from_batches([batch], self._rest.schema)])
        taken, self._rest = self._rest.slice(0, number), self._rest.slice(number)
        return taken


def _same(one: arrow.Table, other: arrow.Table) -> bool:
    """Whether two lots of rows are the same to the bit, in their order."""
    frame, others = pl.DataFrame(_as_bits(one)), pl.DataFrame(_as_bits(other))
    return frame.equals(others, null_equal=True)


def _as_bits(rows: arrow.Table) -> arrow.Table:
    """Return rows with whole numbers of the same bits for floating-point ones: a NaN is equal to itself, 0.0 is not -0.0."""
    as_whole = {arrow.float32(): arrow.int32(), arrow.float64(): arrow.int64()}
    for place, field in enumerate(rows.schema):
        if field.type in as_whole:
            whole = as_whole[field.type]
            viewed = arrow.chunked_array([chunk.view(whole) for chunk in rows.column(place).chunks], whole)
            rows = rows.set_column(place, field.name, viewed)
    return rows


def _differs(piece: str, file: DataFile) -> EnvironmentRefused:
    return EnvironmentRefused(
        Problem(
            f"{piece} has not the rows of {file.file_path} for its days",
            "pieces have each row of their file once, as it was",
            "nothing has changed for readers: look after the storage, then run the same command again",
        )
    )


def _described(table: Table, file: DataFile, path: str, footer: Footer) -> DataFile:
    """Return a piece as a data file of the table: in the partition, spec and sort order of the file that it is of."""
    metadata = footer.metadata
    schema = pyarrow_to_schema(metadata.schema.to_arrow_schema(), name_mapping=table.name_mapping())
    statistics = data_file_statistics_from_parquet_metadata(
        metadata, compute_statistics_plan(schema, table.properties), parquet_path_to_id_mapping(schema)
    )
    piece = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=file.partition,
        file_size_in_bytes=footer.size,
        sort_order_id=file.sort_order_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    piece.spec_id = file.spec_id  # it goes to a manifest of its own spec, as files do that come back
    return piece
