"""What Spark's workers are sent of a chunk whose published rows are derived from computed ones, and what they answer.

Put here what `chunk_merge` and `chunk_corrections` have in common; plain data only.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class DeriveTask:
    """One chunk: the files readers see today, the computed ones, and where to write.

    `entities` is a file with the entities of a merge; `issued` are the files of corrections that exist for the chunk.
    """

    chunk: str
    base: tuple[str, ...]
    computed: tuple[str, ...]
    output: str
    entities: str = ""
    issued: tuple[str, ...] = ()


@dataclass(frozen=True)
class Derived:
    """What was made of a chunk: new files (path, rows, bytes), the files they replace, and counts by what happened."""

    chunk: str
    files: list[tuple[str, int, int]]
    replaced: list[str]
    counts: dict[str, int] = field(default_factory=dict)
