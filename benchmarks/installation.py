"""What the benchmarks of the enforcement product share: an installation on a log, runs of it, seconds and memory.

Put here what two benchmarks need. What is measured, and against what, is each benchmark's own.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from dagster import DagsterInstance

from backfill_assets.cli import demo
from backfill_assets.cli.launching import execute
from backfill_assets.defs.launch import announce_approval, initialise_instance, instance_at
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.installation import Platform, open_platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.resolve import plan_run
from backfill_assets.products.enforcement import loading as enforcement
from manifests.canonical import plain
from manifests.model import RunManifest
from manifests.reading import manifest_from
from resources.ledger.facade import PublicationRecord, RunRecord
from resources.settings import load_settings

_MOST_ROWS = 10**9


@dataclass(frozen=True)
class Installation:
    """An installation with a log loaded; `scope` are the months that the log can fill."""

    platform: Platform
    instance: DagsterInstance
    load: enforcement.RawLoad
    scope: tuple[date, date]
    folder: Path

    def manifest(self, name: str, run_id: str, *, target: dict[str, Any] | None = None, **changes: Any) -> RunManifest:
        """Return a shipped manifest over the whole log, however large that is; `target` and `changes` replace fields of it."""
        text = plain(demo._manifest(self.platform, name, self.scope).model_dump(mode="json", by_alias=True))
        text["target"] |= target or {}
        text["safety"]["maxRowsExpected"] = _MOST_ROWS
        return manifest_from(text | changes | {"runId": run_id})

    def run(self, manifest: RunManifest) -> RunRecord:
        """Plan, approve and run a manifest as `backfill run` does, publication included where a sensor may ask for it."""
        record = plan_run(self.platform, manifest)
        run_id, ledger = record.run_id, self.platform.ledger
        ledger.decide(run_id, approve=True, by="benchmark", comment="", self_approval=False, plan_hash=record.plan_hash)
        announce_approval(self.platform, self.instance, record)
        if not execute(self.platform, self.instance, run_id, (), progress=False):
            raise SystemExit(f"{run_id}: {ledger.run(run_id).state_reason}")
        return ledger.run(run_id)


def log_options(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that say which log a benchmark runs on."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--events", type=Path, help="a log to use instead of generated cases")
    parser.add_argument("--cases", type=int, default=60_000, help="how many cases to generate")
    return parser


@contextmanager
def installed(options: argparse.Namespace) -> Iterator[Installation]:
    """Make an installation in a folder of its own, and load the log."""
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(home=Path(folder))
        initialise(Platform.of(settings))
        initialise_instance(settings)
        with open_platform(settings) as platform, instance_at(settings) as instance:
            load = enforcement.from_file(options.events) if options.events else enforcement.generated(options.cases, 1)
            load_delivery(platform, enforcement.EVENTS, load, settings.quarantine_limit)
            yield Installation(platform, instance, load, demo._months_of_source(platform), Path(folder))


@contextmanager
def timed() -> Iterator[list[float]]:
    """Yield a list that holds the seconds of the body once it has ended, and those that all processes computed in it."""
    seconds: list[float] = []
    start, computed = time.perf_counter(), _computed()
    yield seconds
    seconds += [time.perf_counter() - start, _computed() - computed]


def seconds_of(entry: PublicationRecord) -> float:
    """Return the seconds from an intent to the record of what came of it."""
    if entry.ended_at is None:
        raise SystemExit(f"{entry.action} of {entry.run_id} has not ended")
    return (entry.ended_at - entry.started_at).total_seconds()


def _computed() -> float:
    """Return the processor seconds of this process, of all its descendants, and of those of them that have ended."""
    ticks = 0
    for pid in _descendants(os.getpid()):
        with suppress(OSError):  # it has just ended
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class PeakMemory(threading.Thread):
    """Samples the proportional memory of this process and all its descendants (MiB).

    Attributes:
        peak: the most that all of them had at one time.
        peaks: the most of each kind: "driver" is this process, "java" Spark's, "workers" the other ones of Python together.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0
        self.peaks: dict[str, float] = {}
        self.stop = threading.Event()
        self.pauses = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is done meanwhile: another program that is a child of this process."""
        self.pauses = True
        try:
            yield
        finally:
            self.pauses = False

    def run(self) -> None:
        """Sample twice a second until stopped."""
        while not self.stop.wait(0.5):
            if self.pauses:
                continue
            by_kind: dict[str, float] = {}
            for pid in _descendants(os.getpid()):
                kind = _kind_of(pid)
                by_kind[kind] = by_kind.get(kind, 0.0) + _pss(pid) / 1024
            self.peak = max(self.peak, sum(by_kind.values()))
            for kind, size in by_kind.items():
                self.peaks[kind] = max(self.peaks.get(kind, 0.0), size)

    def in_words(self) -> str:
        """Return the peaks, in words."""
        by_kind = ", ".join(f"{kind} {size:,.0f}" for kind, size in sorted(self.peaks.items()))
        return f"peak memory of all processes: {self.peak:,.0f} MiB (proportional set size); of each kind: {by_kind}"


def _kind_of(pid: int) -> str:
    if pid == os.getpid():
        return "driver"
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        name = ""  # it has just ended
    return "java" if name == "java" else "workers"


def _descendants(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # it has just ended
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += parents.get(one, [])
    return found


def _pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)
