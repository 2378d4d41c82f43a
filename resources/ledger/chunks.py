"""Chunks: where each part of a run stands, and which files hold its rows.

Put here what a chunk's row says and how it is read. Who computes chunks is `attempts`', what their gates say `verdicts`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from manifests.lifecycle import ChunkState
from manifests.staged_file import StagedFile
from resources.ledger.cells import legible, parsed
from resources.ledger.part import Part
from resources.ledger.tables import chunks

STAGED = frozenset({ChunkState.STAGED, ChunkState.PASSED})
"""States of a chunk whose files are on record."""


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


class Chunks(Part):
    """The chunks of a ledger's runs."""

    def chunks(self, run_id: str) -> list[ChunkRecord]:
        """Return the run's chunks, in order."""
        with self.engine.connect() as connection, legible(f"ledger chunks of {run_id}"):
            found = connection.execute(sa.select(chunks).where(chunks.c.run_id == run_id).order_by(chunks.c.idx))
            return [_chunk_record(row) for row in found]


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
        parsed(chunks.c.measures, row.measures, dict),
        row.error,
        staged_files(chunks.c.derived, row.derived),
        tuple(parsed(chunks.c.replaced, row.replaced, list)),
    )


def staged_files(column: sa.Column[Any], text: str) -> tuple[StagedFile, ...]:
    """Return the files that a cell of a column says.

    Raises:
        IllegibleCell: if it says none, or of one something else than this project writes.
        TypeError: likewise.
    """
    found = tuple(StagedFile(**file) for file in parsed(column, text, list))
    for file in found:
        if type(file.rows) is not int or type(file.bytes) is not int:
            raise TypeError(f"{column.name} has a file of {file.rows!r} rows and {file.bytes!r} bytes")
        if not all(isinstance(one, str) for one in (file.path, file.sha256, file.footer)):
            raise TypeError(f"{column.name} has a file of which path or hash is no text: {file.path!r}")
    return found
