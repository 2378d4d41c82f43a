"""Two launches of one run in two processes, by the clock on the wall: no 10 minutes have more rows than the limit, however the two ask.

    python -m benchmarks.pace [--rows-per-minute 1] [--processes 2]

The run computes a year of the small table, a chunk a batch, without Spark: each batch is given the source files that Spark would be given. Prints each
batch with its rows, the most that any 10 minutes have, and how much of the allowance was used; ends with 1 if the limit was exceeded.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from backfill_assets.installation import Platform
from backfill_assets.run_context import RunContext
from backfill_assets.staging import executor, stopping
from backfill_assets.staging.compute import scans_of
from benchmarks import small_table
from benchmarks.small_table import closed, declared, initialise, manifest_data, opened, planned
from manifests.plan import PlannedChunk
from manifests.reading import manifest_from

RUN, YEAR = "paced", ("2020-01-01", "2020-12-31")
WINDOW = timedelta(minutes=10)
SECONDS = 2.0


def compute(run: RunContext, chunks: Sequence[PlannedChunk], prefix: str, count: Any) -> Any:
    """Compute a batch without Spark, which is said to have read what it was given."""
    for part, scan in scans_of(run, chunks):
        count(part, scan)
    time.sleep(SECONDS)
    return small_table.compute(run, chunks, prefix)


def launch(home: Path, number: int, processes: int) -> None:
    """Launch a part of the chunks, as one of several processes."""
    with declared(computed=compute):
        platform = opened(home)
        keys = [chunk.key for chunk in platform.ledger.run(RUN).plan.chunks][number::processes]

        def tell(event: str, of: Sequence[str], text: str) -> None:
            if event in {"attempt", "waiting"}:
                print(
                    f"{datetime.now(UTC):%H:%M:%S} launch {number + 1}: {event} {' '.join(of)} {text[-90:]}", flush=True
                )

        with stopping.launched(platform, RUN):
            executor.stage_chunks(platform, RUN, keys, tell=tell)
        closed(platform)


def measured(platform: Platform) -> list[tuple[datetime, datetime, int]]:
    """Return when each batch was computed, and what it was given to read, from its attempt's own record."""
    return [
        (one.started_at, one.ended_at, json.loads(one.measures)["range_rows"])
        for one in platform.ledger.attempts(RUN)
        if one.ended_at is not None
    ]


def most_in_ten_minutes(found: Sequence[tuple[datetime, datetime, int]]) -> int:
    """Return the most rows of the batches that any 10 minutes touch, wherever those begin."""
    begins = [begin for begin, *_ in found] + [begin - WINDOW for begin, *_ in found] + [end for _, end, _ in found]
    return max(sum(rows for begin, end, rows in found if begin <= at + WINDOW and end >= at) for at in begins)


def main() -> None:
    """Run it, and say what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows-per-minute", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, declared():
        home, began = Path(folder) / "home", time.monotonic()
        platform = opened(home)
        initialise(platform)
        limits = {"limits": {"maxRowsPerMinute": options.rows_per_minute, "maxChunksPerJob": 1}}
        planned(platform, manifest_from(manifest_data(RUN, "REPLACE_PARTITIONS", YEAR) | limits))
        closed(platform)
        context = multiprocessing.get_context("forkserver")
        each = [
            context.Process(target=launch, args=(home, number, options.processes))
            for number in range(options.processes)
        ]
        for one in each:
            one.start()
        for one in each:
            one.join()
        found, most = measured(opened(home)), 10 * options.rows_per_minute
        for begin, end, rows in found:
            print(f"{begin:%H:%M:%S} to {end:%H:%M:%S}: {rows} rows")
        worst, minutes = most_in_ten_minutes(found), (time.monotonic() - began) / 60
        total = sum(rows for *_, rows in found)
        print(f"{len(found)} batches, {total} rows in {minutes:.1f} minutes by {options.processes} processes")
        print(f"the most of any 10 minutes: {worst} rows; the limit allows {most}")
        sys.exit(int(worst > most or any(one.exitcode for one in each)))


if __name__ == "__main__":
    main()
