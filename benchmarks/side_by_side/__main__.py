"""The same restatement, side by side in one run: this project, SQLMesh, one Dagster run a partition, and a plain script.

    python -m benchmarks.side_by_side [--events LOG] [--cases N] [--months N] [--sqlmesh PYTHON] [--only NAME]... [--json FILE]

All read the same files and compute the same rows, which are compared; history by 2.4.1 is restated by 3.1.0, month by month. Prints for
each: seconds on the clock and of processors; which distinct states a reader saw that looked all the time; what a bad chunk led to (a
calendar without the weekends of one month in one jurisdiction, so that deadlines are missing there); what kill -9 in the middle led to,
and the same command again. SQLMesh has an environment of its own, which `--sqlmesh` names; without one it is left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from backfill_assets.cli import demo
from backfill_assets.defs.launch import initialise_instance
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.installation import Platform, open_platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.products.enforcement import loading
from benchmarks.installation import log_options
from benchmarks.side_by_side import data
from benchmarks.side_by_side.commands import RoundError
from benchmarks.side_by_side.contender import Contender
from benchmarks.side_by_side.others import DagsterRuns, Ours, Script
from benchmarks.side_by_side.rounds import Reference, Result, Rounds
from benchmarks.side_by_side.sqlmesh_project import HOW, SQLMesh, versions
from resources.settings import load_settings

_WIDTH = 180
"""Of the table, where it is printed to a file."""


def main() -> None:
    """Run the benchmark."""
    parser = log_options(__doc__.splitlines()[0])
    parser.set_defaults(cases=20_000)
    parser.add_argument("--months", type=int, default=12, help="how many months are restated")
    parser.add_argument("--sqlmesh", type=Path, help=f"the interpreter of an environment with SQLMesh: {HOW}")
    parser.add_argument("--only", action="append", help="only contenders whose name has this word, besides the script")
    parser.add_argument("--json", type=Path, help="write all that was measured to a file")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        world = prepared(place, options)
        console.print(f"{world.months[0]} to {world.months[-1]}, bad month {world.bad_month}; {_versions()}")
        results = compared(contenders(place, options.sqlmesh, console), world, options.only or [], console)
    Console(width=max(console.width, _WIDTH)).print(table(results))
    if options.json:
        told = {
            "at": datetime.now(UTC).isoformat(),
            "months": world.months,
            "results": [one.plain() for one in results],
        }
        options.json.write_text(json.dumps(told, indent=1))
    if failed := [one for one in results if one.failure or not one.equal]:
        sys.exit("; ".join(f"{one.name}: {one.failure or 'its rows are others'}" for one in failed))


def prepared(place: Path, options: argparse.Namespace) -> data.World:
    """Make an installation with the log loaded, and the files that the others read."""
    settings = load_settings(home=place / "ours")
    initialise(Platform.of(settings))
    initialise_instance(settings)
    load = loading.from_file(options.events) if options.events else loading.generated(options.cases, 1)
    with open_platform(settings) as platform:
        load_delivery(platform, loading.EVENTS, load, settings.quarantine_limit)
        months = data.months_from(*demo._months_of_source(platform), options.months)
        return data.write(data.events_of(platform), place / "files", months)


def contenders(place: Path, sqlmesh: Path | None, console: Console) -> list[Contender]:
    """Return all contenders that can run here, the plain script first: the rows of the others are held against its rows."""
    pyspark, dagster = version("pyspark"), version("dagster")
    runs = DagsterRuns("a Dagster run a partition", f"dagster {dagster}, pyspark {pyspark}", place / "dagster")
    found: list[Contender] = [
        Script("plain script", f"pyspark {pyspark}", place / "script"),
        Ours("this project", f"pyspark {pyspark}, pyiceberg {version('pyiceberg')}", place / "ours"),
    ]
    there = versions(sqlmesh) if sqlmesh else "no --sqlmesh was given"
    if isinstance(there, str) or sqlmesh is None:
        console.print(f"SQLMesh is left out: {there}. {HOW}")
        return [*found, runs]
    for engine, batch, is_version in (
        ("duckdb", 0, False),
        ("duckdb", 1, False),
        ("duckdb", 0, True),
        ("spark", 0, False),
        ("spark", 0, True),
    ):
        package = "duckdb" if engine == "duckdb" else "pyspark"
        if package not in there:
            console.print(f"SQLMesh on {engine} is left out: {sqlmesh} has no {package}. {HOW}")
            continue
        how = "new version" if is_version else "in place, a month a batch" if batch else "in place"
        name = f"SQLMesh, {package}, {how}"
        home = place / f"sqlmesh-{len(found)}"
        said = f"sqlmesh {there['sqlmesh']}, {package} {there[package]}"
        found.append(SQLMesh(name, said, home, python=sqlmesh, engine=engine, batch=batch, is_version=is_version))
    return [*found, runs]


def compared(found: list[Contender], world: data.World, only: list[str], console: Console) -> list[Result]:
    """Take each contender through its rounds; one that fails does not end those of the others."""
    results: list[Result] = []
    reference: Reference | None = None
    for contender in found:
        is_wanted = not only or any(word in contender.name for word in only)
        if not is_wanted and reference is not None:
            continue

        def tell(what: str, name: str = contender.name) -> None:
            console.print(f"{datetime.now(UTC):%H:%M:%S} {name}: {what}")

        contender.home.mkdir(exist_ok=True)
        rounds = Rounds(contender, world, tell)
        result = Result(contender.name, contender.versions)
        try:
            before = rounds.history()
            after, good = rounds.good(result, reference)
            if reference is None:
                reference = Reference(before, after)
                data.require_bad(world, after)
            result.equal = result.equal and before.equals(reference.before)
            if is_wanted:
                rounds.judged(result, reference, good)
        except RoundError as error:
            result.failure = str(error)
        if is_wanted:
            results.append(result)
            console.print_json(json.dumps(result.plain()))
        if reference is None:
            sys.exit(result.failure)
    return results


def table(results: list[Result]) -> Table:
    """Return what was measured."""
    headings = (
        "contender",
        "s",
        "processor s",
        "rows equal",
        "states seen",
        "between",
        "after a bad chunk",
        "after kill -9",
        "again",
    )
    found = Table(*headings)
    for one in results:
        between = [word for word in one.states if word not in ("history", "the restatement")]
        failed = "fails" if one.bad_exit else "succeeds"
        again = f"{one.again_computed} computed; {one.again_after}{'' if one.again_equal else ', rows not equal'}"
        found.add_row(
            one.name,
            f"{one.seconds:.0f}",
            f"{one.computed:.0f}",
            "yes" if one.equal else "no",
            str(len(one.shown)),
            "; ".join(between[:2]) + ("; ..." if len(between) > 2 else "") or "none",
            f"{failed}; {one.bad_after}",
            one.kill_after,
            again,
        )
    return found


def _versions() -> str:
    names: tuple[Any, ...] = ("backfill-assets", "pyspark", "dagster", "pyiceberg")
    return f"Python {sys.version.split()[0]}, " + ", ".join(f"{name} {version(name)}" for name in names)


if __name__ == "__main__":
    main()
