"""What every contender offers: a home that can be put back, commands, a reader, and the rows that readers see."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from benchmarks.side_by_side.commands import Command
from benchmarks.side_by_side.data import World


@dataclass(frozen=True)
class Reader:
    """How a contender's table is looked at: by a process of its own (`kind` and `place`), or by the command itself (`environment`)."""

    kind: str = ""
    place: Path = Path()
    hertz: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Contender(ABC):
    """One way to restate; `home` has all that it keeps, so that a copy of it puts history back."""

    name: str
    versions: str
    home: Path
    log: str = field(default="", init=False)

    @abstractmethod
    def make(self, world: World) -> Sequence[Command]:
        """Return the commands that make history, once what they need is there."""

    @abstractmethod
    def restate(self, world: World, *, bad: bool) -> Sequence[Command]:
        """Return the commands that restate, of which the last one computes; with `bad`, from a calendar with days missing."""

    @abstractmethod
    def reader(self, notes: Path) -> Reader:
        """Return how the table is looked at."""

    @abstractmethod
    def rows(self, exported: Path) -> pl.DataFrame:
        """Return the rows that readers see; of `exported` where the contender has commands for that."""

    @abstractmethod
    def computed_again(self, printed: str, world: World) -> str:
        """Return what the second command computed after a kill, by what both printed or have on record."""

    def again(self, world: World) -> Sequence[Command]:
        """Return the commands that are given again after a kill: by default the last one."""
        return self.restate(world, bad=False)[-1:]

    def writes(self, printed: str) -> tuple[bool, bool]:
        """Return whether a command has begun to write rows by now, and has written all, by what it has printed; a kill comes between."""
        del printed
        return True, False

    def look(self, notes: Path) -> Sequence[Command]:
        """Return commands that look once more; none where the reader has a process of its own."""
        del notes
        return ()

    def export(self, file: Path) -> Sequence[Command]:
        """Return commands that write what readers see to a file; none where this process can read it."""
        del file
        return ()
