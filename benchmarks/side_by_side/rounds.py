"""What is done with each contender: history, then three restatements from it: a good one, one with a bad chunk, one that is killed.

Put here the order of things and what is read from them. Each restatement begins at the same history, put back from a copy.
A kill comes in the middle: once a reader has seen half of the months restated, or anything torn; where a reader sees nothing of
the kind, once half of the time has passed that the good restatement took from its first write to its end.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.side_by_side.commands import Done, RoundError, last_look, reader, require, run
from benchmarks.side_by_side.contender import Contender
from benchmarks.side_by_side.data import World
from benchmarks.side_by_side.model import COLUMNS
from benchmarks.side_by_side.others import put_back
from benchmarks.side_by_side.readers import figures
from benchmarks.side_by_side.states import Expected, distinct, in_words, is_between, read_looks

_TYPES = {"days_open": pl.Int32(), "amount": pl.Decimal(12, 2), "breach_at": pl.Datetime("us", "UTC")}
_KEY = ("case_id", "clock", "business_date")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Result:
    """What came of a contender; `states` are what a reader saw in a good restatement, in words, each once."""

    name: str
    versions: str
    seconds: float = 0.0
    computed: float = 0.0
    rows: int = 0
    equal: bool = False
    states: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    bad_exit: bool = False
    bad_seen: list[str] = field(default_factory=list)
    bad_after: str = ""
    kill_seen: list[str] = field(default_factory=list)
    kill_after: str = ""
    again_succeeded: bool = False
    again_seconds: float = 0.0
    again_computed: str = ""
    again_after: str = ""
    again_equal: bool = False
    failure: str = ""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


@dataclass(frozen=True)
class Reference:
    """The rows of history and of the restatement, as the first contender has made them, and their figures."""

    before: pl.DataFrame
    after: pl.DataFrame

    @property
    def expected(self) -> Expected:
        """Return the figures."""
        return Expected(figures(self.before), figures(self.after))


def sorted_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows as contenders are compared: the columns that all have, in the same types, in order."""
    return rows.select(pl.col(name).cast(_TYPES[name]) if name in _TYPES else pl.col(name) for name in COLUMNS).sort(
        _KEY
    )


class Rounds:
    """The rounds of one contender; what it prints and what its readers note is kept beside its home."""

    def __init__(self, contender: Contender, world: World, tell: Callable[[str], None]) -> None:
        self.contender, self.world, self.tell = contender, world, tell
        self.beside = contender.home.with_name(f"{contender.home.name}.notes")
        self.beside.mkdir()
        self.kept = contender.home.with_name(f"{contender.home.name}.kept")

    def history(self) -> pl.DataFrame:
        """Make history, keep a copy of it, and return its rows."""
        self.tell("history")
        require(run(self.contender.make(self.world), self.beside / "history.log"), f"{self.contender.name}: history")
        rows = self.rows("history")
        shutil.copytree(self.contender.home, self.kept, symlinks=True)
        return rows

    def rows(self, name: str) -> pl.DataFrame:
        """Return the rows that readers see."""
        file = self.beside / f"{name}.parquet"
        if commands := self.contender.export(file):
            require(run(commands, self.beside / f"{name}-export.log"), f"{self.contender.name}: what readers see")
        return sorted_rows(self.contender.rows(file))

    @contextmanager
    def watched(self, name: str) -> Iterator[tuple[Path, dict[str, str]]]:
        """Look meanwhile, and once more at the end; yield the notes, and the environment by which a command looks itself."""
        notes = self.beside / f"{name}.jsonl"
        asked = self.contender.reader(notes)
        if asked.kind:
            with reader(asked.kind, asked.place, notes, asked.hertz):
                yield notes, {}
        else:
            yield notes, dict(asked.environment)
            run(self.contender.look(notes), self.beside / f"{name}-look.log")

    def good(self, result: Result, reference: Reference | None) -> tuple[pl.DataFrame, Done]:
        """Restate, timed and watched; a reader in the same process would be timed as well, so then it is done twice."""
        self.tell("a good restatement")
        asked = self.contender.reader(Path())
        done = None
        if not asked.kind:
            commands = self.contender.restate(self.world, bad=False)
            done = require(run(commands, self.beside / "timed.log", writes=self.contender.writes), self.contender.name)
            put_back(self.kept, self.contender.home)
        commands = self.contender.restate(self.world, bad=False)
        with self.watched("good") as (_, extra):
            watched = run(commands, self.beside / "good.log", writes=self.contender.writes, extra=extra)
        require(watched, f"{self.contender.name}: restatement")
        done = done or watched
        result.seconds, result.computed = done.seconds, done.computed
        rows = self.rows("good")
        result.rows = rows.height
        result.equal = reference is None or rows.equals(reference.after)
        return rows, watched

    def judged(self, result: Result, reference: Reference, good: Done) -> None:
        """Say what a reader saw in the good restatement, then restate with a bad chunk, and with a kill."""
        result.shown = distinct(read_looks(self.beside / "good.jsonl"), reference.expected)
        result.states = [in_words(state) for state in result.shown]
        self.bad(result, reference.expected)
        self.kill(result, reference, good)

    def bad(self, result: Result, expected: Expected) -> None:
        """Restate with a bad chunk; say what readers saw, and what they see afterwards."""
        self.tell("a bad chunk")
        put_back(self.kept, self.contender.home)
        commands = self.contender.restate(self.world, bad=True)
        with self.watched("bad") as (notes, extra):
            done = run(commands, self.beside / "bad.log", extra=extra)
        result.bad_exit = not done.succeeded
        result.bad_seen = distinct(read_looks(notes), expected)
        result.bad_after = in_words(expected.shown(last_look(notes)))

    def kill(self, result: Result, reference: Reference, good: Done) -> None:
        """Restate, kill -9 in the middle, look, and give the same command again."""
        self.tell("kill -9")
        put_back(self.kept, self.contender.home)
        expected = reference.expected
        commands = self.contender.restate(self.world, bad=False)
        with self.watched("kill") as (notes, extra):
            middle = _Middle(notes, expected, good)
            done = run(commands, self.beside / "kill.log", writes=self.contender.writes, kill_at=middle, extra=extra)
        if not done.killed:
            raise RoundError(f"{self.contender.name} ended before it was killed: run again")
        result.kill_seen = distinct(read_looks(notes), expected)
        result.kill_after = in_words(expected.shown(last_look(notes)))
        self.tell("the same command again")
        with self.watched("again") as (notes, extra):
            again = run(self.contender.again(self.world), self.beside / "again.log", extra=extra)
        result.again_succeeded, result.again_seconds = again.succeeded, again.seconds
        result.again_computed = self.contender.computed_again(_COLOURS.sub("", again.printed), self.world)
        result.again_after = in_words(expected.shown(last_look(notes)))
        result.again_equal = again.succeeded and self.rows("again").equals(reference.after)


class _Middle:
    """Says when a restatement is in its middle."""

    def __init__(self, notes: Path, expected: Expected, good: Done) -> None:
        self.notes, self.expected = notes, expected
        self.patience = good.written / 2

    def __call__(self, since_begun: float | None) -> bool:
        looks = read_looks(self.notes)
        state = self.expected.shown(looks[-1]) if looks else ""
        if state and is_between(state) and (set(state) - set("ab") or state.count("a") * 2 >= len(state)):
            return True
        return since_begun is not None and since_begun > self.patience
