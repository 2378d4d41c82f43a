"""What LIVE waits beside a full backfill: from rows landed to rows published, as a ratio against the same without one.

    python -m benchmarks.live_beside [--events LOG] [--cases N] [--ticks 10] [--rounds 2] [--pause 6]

LIVE is a warm process, as `backfill live` is one: it lands a point, ticks, computes and publishes, then pauses. The backfill is
another process over the same ledger and warehouse: it restates the whole history of the case study, again and again, each time to
the publication. Rounds without and with it take turns. Prints each round's seconds, and the ratio of all rounds together of the
mean, the median and the slowest tick but one in ten. What LIVE may wait for, and how much processor it gets, is in `docs/runbook.md`.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, timedelta
from itertools import count
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any, cast

from dagster import DagsterInstance
from rich.console import Console
from rich.table import Table

import backfill_assets as ba
from backfill_assets.cli import demo
from backfill_assets.cli.launching import execute
from backfill_assets.defs.launch import initialise_instance, instance_at
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.installation import Platform, open_platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.products.enforcement import loading as enforcement
from backfill_assets.schedules.live import tick
from benchmarks import points
from benchmarks.installation import Installation, log_options
from manifests.lifecycle import RunState
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.settings import load_settings

_SELF = "benchmarks.live_beside"
_FIRST = date(2024, 1, 1)
_LIVE = ba.LivePolicy(transform_version="1", rewind_days=5, begins_on=_FIRST, development=True)
PRODUCT = replace(points.product(), targets=(replace(points.product().targets[0], live=_LIVE),), migrations=())
_STARTS_SECONDS, _ENDS_SECONDS = 300, 900


def _opened(home: Path) -> Platform:
    return Platform.of(
        load_settings(home=home, products=["backfill_assets.products.enforcement:PRODUCT", f"{_SELF}:PRODUCT"])
    )


class _Live:
    """LIVE of a small table; each tick lands a point of a day of its own."""

    def __init__(self, platform: Platform, instance: DagsterInstance) -> None:
        self._platform, self._instance = platform, instance
        self._target = platform.products.target(points.OLD)
        self._days = count()

    def tick(self) -> float:
        """Land a point and publish it; return the seconds from the one to the other."""
        day = _FIRST + timedelta(days=next(self._days) % 300)
        rows = points.raw(day, day)
        self._platform.lakehouse.table(points.RAW).append(
            rows, snapshot_properties={LOAD_PROPERTY: f"{time.time_ns()}"}
        )
        began = time.perf_counter()
        made = tick(self._platform, self._target)
        if (record := made.record) is None:
            raise SystemExit(f"LIVE has made no run: {made.why}")
        if not execute(self._platform, self._instance, record.run_id, (), progress=False):
            raise SystemExit(f"{record.run_id}: {self._platform.ledger.run(record.run_id).state_reason}")
        took = time.perf_counter() - began
        if (state := self._platform.ledger.run(record.run_id).state) is not RunState.PUBLISHED:
            raise SystemExit(f"{record.run_id} is {state}")
        return took


def _restate(home: Path, scope: tuple[date, date]) -> None:
    """Restate all of history until the file `stop` lies in the home; write the number of those that are published to `done`."""
    settings = _opened(home).settings
    with open_platform(settings) as platform, instance_at(settings) as instance:
        world = Installation(platform, instance, cast("Any", None), scope, home)  # the log is loaded already
        if not platform.ledger.runs(target=demo._TARGET):
            world.run(world.manifest(demo.HISTORY, "history"))
        for number in count(1):
            if (home / "stop").exists():
                return
            world.run(world.manifest(demo.RESTATEMENT, f"beside-{time.time_ns()}"))
            (home / "done").write_text(f"{number}")


@contextmanager
def _backfill(home: Path, scope: tuple[date, date]) -> Iterator[None]:
    """Have another process restate history meanwhile, which has begun to compute."""
    for name in ("stop", "done"):
        (home / name).unlink(missing_ok=True)
    command = [sys.executable, "-m", _SELF, "--restate", str(home), *(day.isoformat() for day in scope)]
    with (home / "backfill.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until = time.monotonic() + _STARTS_SECONDS
        while not (home / "done").exists():  # its JVM is warm then, as LIVE's is
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the backfill has not begun: {home / 'backfill.log'}")
            time.sleep(0.2)
        yield
        if process.poll() is not None:
            raise SystemExit(f"the backfill has ended: {(home / 'backfill.log').read_text()[-2000:]}")
    finally:
        (home / "stop").touch()
        process.wait(_ENDS_SECONDS)


def _round(live: _Live, ticks: int, pause: float) -> list[float]:
    took = []
    for _ in range(ticks):
        time.sleep(pause)
        took.append(live.tick())
    return took


def _late(seconds: list[float]) -> float:
    """Return the seconds that nine in ten stay below."""
    return sorted(seconds)[math.ceil(0.9 * len(seconds)) - 1]


def _measure(options: argparse.Namespace, home: Path) -> None:
    quiet: list[float] = []
    beside: list[float] = []
    table = Table(
        "round", "without: mean", "slowest", "beside a backfill: mean", "slowest", "restated", caption="seconds"
    )
    with open_platform(_opened(home).settings) as platform, instance_at(platform.settings) as instance:
        load = enforcement.from_file(options.events) if options.events else enforcement.generated(options.cases, 1)
        load_delivery(platform, enforcement.EVENTS, load, platform.settings.quarantine_limit)
        scope = demo._months_of_source(platform)
        live = _Live(platform, instance)
        _round(live, options.warm_up, 0)
        for number in range(1, options.rounds + 1):
            alone = _round(live, options.ticks, options.pause)
            with _backfill(home, scope):
                crowded = _round(live, options.ticks, options.pause)
                restated = int((home / "done").read_text())
            quiet += alone
            beside += crowded
            shown = (mean(alone), max(alone), mean(crowded), max(crowded))
            table.add_row(f"{number}", *(f"{value:.2f}" for value in shown), f"{restated}")
    Console().print(table)
    for name, of in (("mean", mean), ("median", median), ("nine in ten below", _late)):
        print(
            f"{name}: {of(quiet):.2f} s without, {of(beside):.2f} s beside a backfill, ratio {of(beside) / of(quiet):.2f}"
        )


def main() -> None:
    """Run the benchmark."""
    parser = log_options(__doc__.splitlines()[0])
    parser.add_argument("--ticks", type=int, default=10, help="of LIVE in a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--pause", type=float, default=6, help="seconds between two ticks, in which the backfill computes"
    )
    parser.add_argument("--warm-up", type=int, default=8, help="ticks before those that are measured")
    parser.add_argument("--restate", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.restate:
        home, first, last = options.restate
        _restate(Path(home), (date.fromisoformat(first), date.fromisoformat(last)))
        return
    with TemporaryDirectory() as folder:
        settings = _opened(Path(folder)).settings
        initialise(Platform.of(settings))
        initialise_instance(settings)
        _measure(options, Path(folder))


if __name__ == "__main__":
    main()
