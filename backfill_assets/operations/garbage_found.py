"""What a collection of garbage finds and what it did, as plain data.

Put here words that several modules of it share. What is garbage is said by `garbage`, and of landings by `dead_landings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from resources.lakehouse.storage import FileFound

GRACE = timedelta(days=1)
"""How long leftovers stay, whatever retention says: somebody may be at work on them.

Manifests are written before the commit that references them, and a snapshot may be made before the ref that names it.
"""
STAGED, OUTLINE, LEFTOVER, SCRATCH, MANIFEST = "staged", "outline", "leftover", "scratch", "manifest"


@dataclass(frozen=True)
class Garbage:
    """A file that nothing needs, as it was seen; `owner` is its run, or the scratch folder it lies in."""

    kind: str
    owner: str
    file: FileFound


@dataclass(frozen=True)
class TableGarbage:
    """What can go of one table of a target, and what was left alone with the reason, by folder.

    `refs` are the names that kept the base or the candidate of a run that is over, or what it read: of a table that is only read
    there are no others, and it is of no `target`.
    """

    target: str
    table: str
    refs: tuple[str, ...]
    snapshots: tuple[int, ...]
    files: tuple[Garbage, ...]
    left: Mapping[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of the files."""
        return sum(item.file.bytes for item in self.files)

    def sums(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return files and bytes by owner and kind."""
        sums: dict[tuple[str, str], tuple[int, int]] = {}
        for item in self.files:
            files, size = sums.get((item.owner, item.kind), (0, 0))
            sums[item.owner, item.kind] = (files + 1, size + item.file.bytes)
        return dict(sorted(sums.items()))


@dataclass
class Collected:
    """What a collection did of one table: what was removed, and what was left alone and why, by path."""

    table: str
    refs: list[str] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    left: dict[str, str] = field(default_factory=dict)
