"""How many chunks one Spark job takes: from the rows that chunks are known to have, and the memory that Spark computes in.

Plain arithmetic only. What a chunk has, and what memory there is, is looked up in `backfill_assets.planning.batch_sizes`; a manifest that
says how many has just as many, whatever they are.

A job works on few chunks at a time, a task on each, and writes what does not fit into memory to disk between its steps. So a batch may have
several times the rows that fit into memory at once, and no more: what is lost with a job that fails, and the disk that it takes meanwhile, stay
within bounds; and many small chunks, whose job would cost more than they do, are taken together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from manifests.file_sizes import in_bytes

if TYPE_CHECKING:
    from manifests.plan import PlannedChunk

MOST_CHUNKS = 960
"""The most chunks of a job, however small they are: what is lost with it, and halved if it fails, is no more than that."""
TIMES_MEMORY = 16
"""How many times the rows that fit into memory at once a batch may have."""
_OF_SPARK, _SHARE = 300 << 20, 0.6
"""What Spark keeps for itself of a JVM's memory, and the share of the rest in which rows are sorted and shuffled (`spark.memory.fraction`)."""


@dataclass(frozen=True)
class BatchSizes:
    """How many rows one Spark job takes, and why.

    Attributes:
        rows: the most rows of a batch, read or written, whichever is more; a chunk that has more is a batch by itself.
        memory_bytes: the memory that Spark computes in; `said_by` is the setting that says so.
        row_bytes: how many bytes a row takes there, by the types of its columns.
        rows_a_chunk: the rows that a chunk is written with of which nobody knows them: as chunks of `learned_from` have on the average;
            0 where no run is on record, and what a chunk reads alone counts.
        learned_from: recorded runs.
    """

    rows: int
    memory_bytes: int
    said_by: str
    row_bytes: int
    rows_a_chunk: int
    learned_from: tuple[str, ...]

    def describe(self) -> str:
        """Say in words how many rows a job takes, and why."""
        chunks = ""
        if self.rows_a_chunk:
            chunks = (
                f"; a chunk has {self.rows_a_chunk:,} rows on the average of {len(self.learned_from):,} recorded run(s)"
            )
        return (
            f"at most {self.rows:,} rows each, which is {TIMES_MEMORY} times what fits into {in_bytes(self.memory_bytes)} "
            f"({self.said_by}) at {self.row_bytes:,} bytes a row{chunks}"
        )


def rows_for(memory: int, row_bytes: int) -> int:
    """Return how many rows of so many bytes a batch has at most, where Spark computes in so many bytes of memory: one at least."""
    free = memory - min(_OF_SPARK, memory // 2)
    return max(1, int(free * _SHARE) * TIMES_MEMORY // row_bytes)


def rows_of_chunks(chunks: Sequence[PlannedChunk], reads: int, rows_a_chunk: int = 0) -> list[int]:
    """Return how many rows each chunk counts with: its share of those that are read for all, or those that it writes, if these are more.

    Args:
        chunks: the chunks.
        reads: source rows of the whole range. What each chunk reads by itself has its warm-up and the other rows of its files in it.
        rows_a_chunk: rows that a chunk is written with of which nobody knows them.
    """
    parts: Counter[tuple[date, date]] = Counter((one.start, one.end) for one in chunks)
    alone = sum({(one.start, one.end): one.reads.rows for one in chunks}.values())
    counted = min(reads, alone)
    found = []
    for one in chunks:
        # hours and parts of the same days read the same rows
        read = one.reads.rows * counted // (alone * parts[one.start, one.end]) if alone else 0
        found.append(max(read, rows_a_chunk if one.writes is None else one.writes))
    return found


def cut(rows: Sequence[int], most_chunks: int, most_rows: int | None = None) -> Iterator[slice]:
    """Yield chunks, by the rows that each counts with, in batches of so many chunks and rows at most; one chunk at least."""
    start, total = 0, 0
    for place, own in enumerate(rows):
        if place > start and (place - start == most_chunks or (most_rows is not None and total + own > most_rows)):
            yield slice(start, place)
            start, total = place, 0
        total += own
    if start < len(rows):
        yield slice(start, len(rows))
