"""Chunks: where each part of a run stands, and which files hold its rows.

Put here what a chunk's row says and how it is read. Who computes chunks is `attempts`', what their gates say `verdicts`'.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from manifests.lifecycle import ChunkState
from manifests.staged_file import StagedFile
from resources.ledger.cells import as_said, legible
from resources.ledger.part import Part
from resources.ledger.tables import chunks

STAGED = frozenset({ChunkState.STAGED, ChunkState.PASSED})
"""States of a chunk whose files are on record."""
_KEYS_AT_ONCE = 500


@dataclass(frozen=True)
class ChunkRecord:
    """One chunk of one run. `digest` is set once its gate has read the files back.

    `files` hold the computed rows. Where something else is published (merged rows, corrections) it is `derived` from
    them, and `replaced` are the target's files that it takes the place of.
    """

    chunk: str
    index: int
    state: ChunkState
    attempt: int
    rows: int | None
    bytes: int | None
    files: tuple[StagedFile, ...]
    digest: str | None
    measures: dict[str, Any]
    error: str
    derived: tuple[StagedFile, ...] = ()
    replaced: tuple[str, ...] = ()


@dataclass(frozen=True)
class DerivedFiles:
    """What was made of one chunk's computed rows; see `ChunkRecord`. `counts` says what happened to how many rows."""

    files: tuple[StagedFile, ...] = ()
    replaced: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


class ChunkStanding(NamedTuple):
    """Where a chunk of a run stands, without its files and measures."""

    chunk: str
    state: ChunkState
    attempt: int
    digest: str | None


class ChunkMeasured(NamedTuple):
    """What the gate of a chunk has counted and measured, without its files."""

    chunk: str
    rows: int | None
    digest: str | None
    measures: dict[str, Any]


class Chunks(Part):
    """The chunks of a ledger's runs."""

    def chunks(
        self, run_id: str, keys: Collection[str] | None = None, *, state: ChunkState | None = None
    ) -> list[ChunkRecord]:
        """Return the run's chunks (of `keys`, or in one state, if given), in order: a run may have very many, each with its files."""
        with self.engine.connect() as connection, legible(f"ledger chunks of {run_id}"):
            return [_chunk_record(row) for row in _rows(connection, sa.select(chunks), run_id, keys, state)]

    def measured_chunks(self, run_id: str) -> list[ChunkMeasured]:
        """Return what was measured of the run's chunks, in order."""
        query = sa.select(chunks.c.chunk, chunks.c.rows, chunks.c.digest, chunks.c.measures)
        with self.engine.connect() as connection, legible(f"ledger chunks of {run_id}"):
            found = connection.execute(query.where(chunks.c.run_id == run_id).order_by(chunks.c.idx))
            return [
                ChunkMeasured(chunk, rows, digest, as_said(chunks.c.measures, measures, dict))
                for chunk, rows, digest, measures in found
            ]

    def standing_chunks(self, run_id: str, keys: Collection[str] | None = None) -> list[ChunkStanding]:
        """Return where the run's chunks (of `keys`, if given) stand, in order."""
        query = sa.select(chunks.c.chunk, chunks.c.state, chunks.c.attempt, chunks.c.digest, chunks.c.idx)
        with self.engine.connect() as connection, legible(f"ledger chunks of {run_id}"):
            found = _rows(connection, query, run_id, keys)
            return [ChunkStanding(row.chunk, ChunkState(row.state), row.attempt, row.digest) for row in found]

    def bytes_of_chunks(self, run_id: str, keys: Collection[str]) -> int:
        """Return how many bytes the staged files of chunks have together."""
        with self.engine.connect() as connection, legible(f"ledger chunks of {run_id}"):
            found = _rows(connection, sa.select(chunks.c.bytes, chunks.c.idx), run_id, keys)
            return sum(row.bytes or 0 for row in found)


def _rows(
    connection: sa.Connection,
    query: sa.Select[Any],
    run_id: str,
    keys: Collection[str] | None,
    state: ChunkState | None = None,
) -> list[sa.Row[Any]]:
    """Return the rows that a query of a run's chunks finds, in order: of `keys` so many a statement."""
    query = query.where(chunks.c.run_id == run_id).order_by(chunks.c.idx)
    query = query if state is None else query.where(chunks.c.state == state)
    if keys is None:
        return list(connection.execute(query))
    found = [
        row for some in by_the_statement(keys) for row in connection.execute(query.where(chunks.c.chunk.in_(some)))
    ]
    return sorted(found, key=lambda row: row.idx)


def by_the_statement(keys: Collection[str]) -> Iterator[list[str]]:
    """Yield keys of chunks, each once, in the portions that one statement asks for."""
    ordered = sorted(set(keys))
    for start in range(0, len(ordered), _KEYS_AT_ONCE):
        yield ordered[start : start + _KEYS_AT_ONCE]


def open_ones(connection: sa.Connection, run_id: str, keys: Collection[str]) -> set[str]:
    """Return the chunks of `keys` that are not staged, in a transaction that has locked the run."""
    query = sa.select(chunks.c.chunk, chunks.c.idx).where(chunks.c.state.not_in(STAGED))
    return {row.chunk for row in _rows(connection, query, run_id, keys)}


def chunks_in(rows: Mapping[str, Mapping[str, Any]], run_id: str) -> list[ChunkRecord]:
    """Return the chunks that rows of a run are, read cell by cell (`rows.rows_of`), in their order.

    Raises:
        IllegibleRow: if a cell holds what this project does not write there.
    """
    with legible(f"ledger chunks of {run_id}"):
        return [_chunk_record(_Cells(row)) for row in rows.values()]


_NUMBERS = [(column.name, column.nullable) for column in chunks.c if isinstance(column.type, sa.Integer)]


class _Cells:
    """A row that was read cell by cell, as a row of a query is.

    Raises:
        TypeError: if a number is none: of a cell that is read by itself, whatever it holds is a text.
    """

    def __init__(self, cells: Mapping[str, Any]) -> None:
        for name, may_lack in _NUMBERS:
            if type(cells[name]) is not int and not (may_lack and cells[name] is None):
                raise TypeError(f"{name} is {cells[name]!r}")
        self.__dict__.update(cells)


def _chunk_record(row: Any) -> ChunkRecord:
    return ChunkRecord(
        row.chunk,
        row.idx,
        ChunkState(row.state),
        row.attempt,
        row.rows,
        row.bytes,
        staged_files(chunks.c.files, row.files),
        row.digest,
        as_said(chunks.c.measures, row.measures, dict),
        row.error,
        staged_files(chunks.c.derived, row.derived),
        tuple(as_said(chunks.c.replaced, row.replaced, list)),
    )


def staged_files(column: sa.Column[Any], said: Any) -> tuple[StagedFile, ...]:
    """Return the files that a cell of a column says: its text, or what that says.

    Raises:
        IllegibleCell: if it says none, or of one something else than this project writes.
        TypeError: likewise.
    """
    found = tuple(StagedFile(**file) for file in as_said(column, said, list))
    for file in found:
        if type(file.rows) is not int or type(file.bytes) is not int:
            raise TypeError(f"{column.name} has a file of {file.rows!r} rows and {file.bytes!r} bytes")
        if not all(isinstance(one, str) for one in (file.path, file.sha256, file.footer)):
            raise TypeError(f"{column.name} has a file of which path or hash is no text: {file.path!r}")
    return found
