"""What a plan of a million chunks costs, and what everything beside it does: status, pages, publication, gc and verification.

    python -m benchmarks.many_chunks [--chunks 10000 100000 1000000] [--runs 20000] [--within 1000] [--profile NAME] [--folder FOLDER]

A chunk is an hour of a tenant. The source has an event a month and no Spark is started: chunks are computed by PyArrow, so that what is
measured is the record. The ledger first gets a history of so many published runs of 24 chunks each, through its own tables and journal, so many
runs a transaction. Then each measure is taken in a process of its own: seconds, processor seconds and the largest memory it ever had
(`ru_maxrss`), imports included, those of an empty process beside them. `--profile` prints where the time of one measure goes instead.
"""

from __future__ import annotations

import argparse
import cProfile
import gc as collector
import json
import multiprocessing
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import date, timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from rich.console import Console
from rich.table import Table

from backfill_assets.audit.verification import verify
from backfill_assets.cli import terminal
from backfill_assets.cli.command import _YOUNG_OBJECTS
from backfill_assets.cli.status import _waits as waits
from backfill_assets.cli.status import show_run
from backfill_assets.declarations.schema import TABLE_PROPERTIES, Published, iceberg_schema
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.operations import garbage
from backfill_assets.operations.initialise import _spec, make_ledger
from backfill_assets.planning.resolve import plan_run, preview
from backfill_assets.publication.publisher import publish
from backfill_assets.run_context import RunContext
from backfill_assets.staging.compute import staged_files
from backfill_assets.staging.folders import CHUNK_FOLDER, folder_of
from backfill_assets.staging.rows import lineage
from backfill_assets.ui.run_page import run_page
from backfill_assets.ui.runs_page import index_page
from benchmarks import long_history, small_table
from manifests.chunks import Chunking, first_instant
from manifests.division import ByValue
from manifests.model import RunManifest
from manifests.plan import PlannedChunk
from manifests.reading import manifest_from
from manifests.staged_file import StagedFile
from resources.lakehouse.facade import local_path
from resources.ledger.transactions import system_clock as now

HOURLY = "silver.hourly"
FIRST, DAYS = date(2020, 1, 1), 335
TENANTS = tuple(f"t{number:03}" for number in range(125))
RUN = "within"
A_TRANSACTION = 200
"""Runs of the history that each of its transactions changes."""


class Hour(Published):
    """What one tenant has used in one hour."""

    tenant: str = pa.Field(description="The tenant.")
    at: pl.Datetime("us", "UTC") = pa.Field(description="The hour.")  # type: ignore[valid-type]
    value: pl.Int64 = pa.Field(description="How much.")


TARGET = TargetTable(
    name=HOURLY,
    description="A row a tenant and hour.",
    model=Hour,
    key=("tenant", "at"),
    day_column="at",
    chunking=Chunking.HOUR,
    chunks_from="2020-01-01T00",
    chunks_until="2020-12-31T23",
    chunk_values=ByValue("tenant", TENANTS),
    source=small_table.SOURCE,
    source_time_column="at",
    references=(),
    warm_up_days=lambda _: 0,
    transform="readings",
    versions=small_table.TARGET.versions,
    owners=("team:benchmarks",),
)


def compute(run: RunContext, chunks: Sequence[PlannedChunk], prefix: str, *_: Any) -> dict[str, list[StagedFile]]:
    """Compute chunks by PyArrow: a file of one row each."""
    platform, plan = run.platform, run.plan
    schema = schema_to_pyarrow(platform.lakehouse.table(HOURLY).schema())
    constants = lineage(plan, Hour)
    for chunk in chunks:
        folder = Path(local_path(prefix)) / f"{CHUNK_FOLDER}={folder_of(chunk)}"
        folder.mkdir(parents=True)
        row = {"tenant": chunk.part, "at": first_instant(chunk), "value": chunk.index} | constants
        pq.write_table(arrow.Table.from_pylist([row], schema=schema), folder / "part-0.parquet")
    return staged_files(platform, run.target, prefix, plan.chunking, [chunk.key for chunk in chunks])


def manifest(run_id: str, first: date, days: int, tenants: Sequence[str]) -> RunManifest:
    """Return the manifest of a run over some days of some tenants."""
    data = small_table.manifest_data(run_id, "REPLACE_PARTITIONS", ("", ""))
    scope = {"start": first.isoformat(), "end": (first + timedelta(days=days - 1)).isoformat()}
    data["target"] = {"table": HOURLY, "publishRange": scope}
    if len(tenants) < len(TENANTS):
        data["target"]["values"] = list(tenants)
    return manifest_from(data)


@contextmanager
def opened(home: Path) -> Iterator[Platform]:
    """Yield the installation, whose only product is this table, without Spark."""
    with small_table.declared(TARGET, compute):
        platform = small_table.opened(home)
        try:
            yield platform
        finally:
            small_table.closed(platform)


def initialise(home: Path) -> None:
    """Make ledger, catalog, source and target."""
    with opened(home) as platform:
        small_table.initialise(platform)
        schema = iceberg_schema(Hour)
        platform.lakehouse.ensure(
            HOURLY, schema, _spec(schema, "at", Chunking.HOUR, TARGET.chunk_values), TABLE_PROPERTIES
        )
        make_ledger(platform)


def write_history(home: Path, number: int) -> None:
    """Put the history on record."""
    with opened(home) as platform:
        contract = manifest("history", FIRST, 1, TENANTS[:1])
        long_history.write(platform, contract, preview(platform, contract), number, A_TRANSACTION, DAYS)


def stage(home: Path, within: int) -> None:
    """Plan a run of that many chunks, and have it staged and gated."""
    with opened(home) as platform:
        small_table.planned(platform, manifest(RUN, FIRST, 1, TENANTS[: within // 24]))
        small_table.staged(platform, RUN)


# --- what is measured -------------------------------------------------------------------------------------------------


def _plan(platform: Platform, chunks: int) -> None:
    """Plan and record a run of that many chunks."""
    a_day = 24 * len(TENANTS)
    contract = manifest(f"plan-{chunks}", FIRST, max(1, min(DAYS, round(chunks / a_day))), TENANTS)
    planned = plan_run(platform, contract).plan
    print(f"{len(planned.chunks):,} chunks", file=sys.stderr)


def _status(platform: Platform, _: int) -> None:
    with mock.patch.object(terminal, "make_console", return_value=Console(file=StringIO())):
        show_run(platform, RUN, as_json=False)


def _page(platform: Platform, _: int) -> None:
    run_page(platform.ledger, platform.evidence, platform.ledger.run(RUN), (), None)


def _index(platform: Platform, _: int) -> None:
    index_page(platform.ledger, {}, {})


def _runs(platform: Platform, _: int) -> None:
    waits(platform, platform.ledger.runs())


def _gc(platform: Platform, _: int) -> None:
    garbage.find(platform, at=now())


def _publication(platform: Platform, _: int) -> None:
    publish(platform, RUN)


def _verify(platform: Platform, _: int) -> None:
    found = verify(platform, [RUN])
    print(f"{len(found.everything)} problems", file=sys.stderr)


def _nothing(_: Platform, __: int) -> None:
    """Measure what a process takes that only opens the installation."""


MEASURES: dict[str, Callable[[Platform, int], None]] = {
    "nothing": _nothing,
    "plan": _plan,
    "status of the run": _status,
    "page of the run": _page,
    "status of all": _runs,
    "page of all": _index,
    "publication": _publication,
    "verification of the run": _verify,
    "gc, listing": _gc,
}


def measure(home: Path, name: str, size: int, *, profiled: bool) -> None:
    """Take one measure in this process, which collects garbage as a command does, and print it as JSON."""
    collector.set_threshold(_YOUNG_OBJECTS)
    with opened(home) as platform:
        platform.ledger.require_current()
        _ = platform.products, platform.lakehouse.catalog
        began, computed = time.perf_counter(), time.process_time()
        with cProfile.Profile() if profiled else nullcontext() as profile:
            MEASURES[name](platform, size)
        took = time.perf_counter() - began, time.process_time() - computed
    if profile is not None:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(60)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": took[0], "computed": took[1], "MiB": peak}))


def main() -> None:
    """Run the benchmark, or one measure of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, nargs="*", default=[10_000, 100_000, 1_000_000], help="of plans")
    parser.add_argument("--runs", type=int, default=20_000, help="of the history")
    parser.add_argument("--within", type=int, default=1_008, help="chunks of the run beside them")
    parser.add_argument("--folder", type=Path, help="where the installation is made, or left as it is if there is one")
    parser.add_argument("--only", nargs="*", choices=list(MEASURES), help="take these measures")
    parser.add_argument("--profile", action="store_true", help="print where the time of each goes")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.folder, options.measure[0], int(options.measure[1]), profiled=options.profile)
        return
    with tempfile.TemporaryDirectory(prefix="many-chunks-") as folder:
        home = options.folder or Path(folder) / "home"
        if not home.exists():
            made(home, options.runs, options.within)
        print_measures(home, options)


def made(home: Path, runs: int, within: int) -> None:
    """Make the installation, its history and the run of so many chunks, each in a process of its own."""
    for step in (partial(initialise, home), partial(write_history, home, runs), partial(stage, home, within)):
        began = time.perf_counter()
        child = multiprocessing.get_context("fork").Process(target=step)
        child.start()
        child.join()
        if child.exitcode:
            raise SystemExit(f"{step.func.__name__} failed")
        print(f"{step.func.__name__}: {time.perf_counter() - began:.1f} s", file=sys.stderr)


def print_measures(home: Path, options: argparse.Namespace) -> None:
    """Take each measure in a process of its own, plans from the smallest on, and print them."""
    table = Table("measure", "s", "CPU s", "largest memory, MiB")
    each = [(name, size) for name in MEASURES for size in (options.chunks if name == "plan" else [0])]
    for name, size in each:
        if options.only and name not in options.only:
            continue
        command = [sys.executable, "-m", "benchmarks.many_chunks", "--folder", str(home), "--measure", name, str(size)]
        done = subprocess.run(
            [*command, *(["--profile"] if options.profile else [])], stdout=subprocess.PIPE, text=True, check=True
        )
        took = json.loads(done.stdout.splitlines()[-1])
        label = f"{name} of {size:,} chunks" if size else name
        table.add_row(label, *(f"{took[one]:.2f}" for one in ("seconds", "computed")), f"{took['MiB']:,.0f}")
    size = sum(file.stat().st_size for file in home.glob("ledger.db*")) / 1e6
    Console().print(f"{options.runs:,} runs in the history; the ledger has {size:,.0f} MB")
    Console().print(table)


if __name__ == "__main__":
    main()
