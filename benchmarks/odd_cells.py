"""What the command says of a ledger in which one cell holds what nothing of this project writes there: a benchmark.

    python -m benchmarks.odd_cells --cells 1000 --seed 7

SQLite lets any value into any column. Makes one installation of the small table (`small_table`), puts one odd value after the
other into its ledger, and gives each command that reads it, as it is installed but in this process. A command understands the
cell, names it, or refuses with a rule and a way out; what it must never be is a traceback, an error that only the last net has
caught, or a wait without an end. Equal seeds put equal values. Exit code 1 if one command does otherwise.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from backfill_assets.cli.command import main
from backfill_assets.publication.publisher import publish
from benchmarks import small_table
from benchmarks.small_table import EMPTY, HISTORY, SCOPE, closed, declared, manifest, planned, staged
from resources.ledger.tables import metadata

ODD = (
    "x'ff'", "CAST(x'ff41' AS TEXT)", "'zzz'", "5", "-1", "1e999", "9223372036854775807", "''", "'{'", "'[5]'", "'5'", "'{\"a\": 5}'",
    "'[{\"path\": 5}]'", "'2026-13-45 00:00:00.000000'", "'9999-12-31 23:59:59.999999'",
)  # fmt: skip
"""Values as SQL has them: bytes, a text that is no UTF-8, other kinds, and texts that look like others of the ledger."""
READING = (
    ("verify", "--all"), ("doctor",), ("report", "{run}", "--output", os.devnull), ("status",), ("status", "{run}"), ("metrics",),
    ("gc",), ("decisions", "{run}"), ("decisions",), ("runbook", "{run}"), ("policy",), ("policy", "history"),
)  # fmt: skip
CHANGING = (
    ("stop", "approved", "--by", "olga"),
    ("rollback", "fixed", "--by", "olga"),
    ("publish", "waiting", "--by", "olga"),
)
_RUN = "waiting"
_FALLEN = frozenset({"Traceback", "nothing was prepared for"})


@dataclass(frozen=True)
class Cell:
    """A cell of the newest row of a table, and the value put into it."""

    table: str
    column: str
    value: str


@dataclass(frozen=True)
class Answer:
    """What a command made of a cell; `wrong` is empty where it understood, named or refused it."""

    cell: Cell
    line: str
    code: int
    wrong: str


class World:
    """An installation of the small table, put back before each cell."""

    def __init__(self, folder: Path) -> None:
        self.home, self._kept = folder / "home", folder / "kept"
        with declared():
            platform = small_table.opened(self.home)
            small_table.initialise(platform)
            for run_id, scope, version in (("history", HISTORY, "1"), ("fixed", SCOPE, "2"), (_RUN, SCOPE, "1")):
                planned(platform, manifest(run_id, "REPLACE_PARTITIONS", scope, computed_by=version))
                staged(platform, run_id)
                if run_id != _RUN:
                    publish(platform, run_id)
            planned(platform, manifest("approved", "REPLACE_PARTITIONS", EMPTY))
            closed(platform)
        shutil.copytree(self.home, self._kept)

    def copy_to(self, folder: Path) -> None:
        """Copy the installation as it was made."""
        shutil.copytree(self._kept, folder)

    def cells(self, dice: random.Random) -> list[Cell]:
        """Return every column that has a row, each with every odd value, shuffled."""
        with closing(sqlite3.connect(self._kept / "ledger.db")) as connection:
            found = [
                Cell(name, column.name, value)
                for name, table in sorted(metadata.tables.items())
                if connection.execute(f"SELECT 1 FROM {name}").fetchone()
                for column in table.c
                for value in ODD
            ]
        dice.shuffle(found)
        return found

    def put(self, cell: Cell) -> bool:
        """Put a value into a cell of the installation as it was made; False if the database does not take it."""
        shutil.rmtree(self.home)
        shutil.copytree(self._kept, self.home)
        of_run = f" WHERE run_id = '{_RUN}'" if "run_id" in metadata.tables[cell.table].c else ""
        newest = f"(SELECT max(rowid) FROM {cell.table}{{}})"
        change = f"UPDATE {cell.table} SET {cell.column} = {cell.value} WHERE rowid = "
        with closing(sqlite3.connect(self.home / "ledger.db")) as connection:
            try:
                changed = connection.execute(change + newest.format(of_run)).rowcount
                if not changed:
                    changed = connection.execute(change + newest.format("")).rowcount
            except sqlite3.Error:
                return False
            connection.commit()
        return bool(changed)

    def give(self, cell: Cell, line: Sequence[str]) -> Answer:
        """Give a command, as a shell would, and judge what came of it."""
        words = ["backfill", *(word.format(run=_RUN) for word in line)]
        said = io.StringIO()
        code, wrong = 0, ""
        environment = {"BACKFILL_HOME": str(self.home)}
        with mock.patch.dict(os.environ, environment), mock.patch.object(sys, "argv", words):
            try:
                with declared(), redirect_stdout(said), redirect_stderr(said):
                    main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except Exception as error:  # noqa: BLE001 - the very thing that is looked for
                wrong = f"a traceback: {type(error).__name__}: {str(error)[:200]}"
        if any(one in said.getvalue() for one in _FALLEN):
            wrong = f"a fault: {' '.join(said.getvalue().split())[-300:]}"
        return Answer(cell, " ".join(words[1:]), code, wrong)


def trial(world: World, cells: Iterable[Cell], lines: Sequence[Sequence[str]] = READING + CHANGING) -> Iterator[Answer]:
    """Put one cell after the other, and give each of the commands; those that change something come last."""
    for cell in cells:
        if world.put(cell):
            for line in lines:
                yield world.give(cell, line)


def _command() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=1000, help="how many cells")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--table", help="of this table only")
    options = parser.parse_args()
    codes: Counter[int] = Counter()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        cells = world.cells(random.Random(options.seed))
        cells = [one for one in cells if options.table in {None, one.table}][: options.cells]
        for answer in trial(world, cells):
            codes[answer.code] += 1
            if answer.wrong:
                wrong += 1
                print(
                    f"{answer.cell.table}.{answer.cell.column} = {answer.cell.value}: {answer.line}: {answer.wrong}",
                    flush=True,
                )
    print(f"{len(cells)} cells, {codes.total()} answers: {dict(sorted(codes.items()))}, {wrong} wrong")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    _command()
