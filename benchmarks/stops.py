"""Launches that are stopped at random moments, from the shell, from Dagster and by `backfill stop`, and launched again.

    python benchmarks/stops.py [--stops 50] [--seed 1] [--cases 400] [--json FILE]

A world of generated cases and a transform that is slow in the JVM and in Python's workers. A child process launches a run as
`backfill run` does, or as a Dagster run does; at a random moment it is stopped in one of the ways below, up to three times
in a row. Then it is launched once more, to its end. Held after each stop: the process and everything it has started is gone
within `LIMIT` seconds (on a machine that has cores to spare), unless a commit is let finish; it says so by its exit code; no
attempt is under way or FAILED; the stop is on record; nothing was published and the sensor asks for no publication, unless
the commit had begun. Held at the end: the digests are those of an undisturbed run. Prints a line a way; ends with 1 if
anything was not so.

What Dagster's code server does on Terminate is done here: the run is marked CANCELING, and its process gets SIGINT.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import dagster as dg
from dagster._core.definitions.partitions.context import partition_loading_context
from rich.console import Console
from rich.table import Table

ROOT = str(Path(__file__).resolve().parent.parent)
sys.path.insert(0, ROOT)

from backfill_assets import decisions
from backfill_assets.cli import command as cli
from backfill_assets.declarations import finding
from backfill_assets.declarations.target import Inputs, TargetTable, TransformContext, TransformVersion
from backfill_assets.defs.build import build_definitions
from backfill_assets.defs.launch import announce_approval, initialise_instance, instance_at
from backfill_assets.defs.launched_by import RUN_TAG
from backfill_assets.defs.publish import publication_requests
from backfill_assets.defs.staging import range_tags, staging_job_name
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.resolve import plan_run
from backfill_assets.products.enforcement import CASE_SLA_DAILY, PRODUCT
from backfill_assets.products.enforcement import loading as enforcement
from benchmarks.small_table import serves
from manifests.lifecycle import RunState
from manifests.reading import manifest_from
from resources.code.identity import code_identity
from resources.ledger import stops
from resources.ledger.facade import RunRecord
from resources.settings import load_settings

CONTEXT = multiprocessing.get_context("forkserver")
LIMIT = 5.0
"""Seconds from the stop to the end of everything that computed."""
SCOPE = (date(2010, 2, 1), date(2010, 7, 31))
GATES = ("all_chunks_staged", "every_started_case_is_present", "breach_totals_agree")
SLOW = "3.1.0"
SPARK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}
_PAUSE_SECONDS, _SPIN_SECONDS = 1.0, 0.5
_PATIENCE = 240.0

code_identity()  # git is asked once, in the process that the children are forked from


# --- what is slow -----------------------------------------------------------------------------------------------------


def slow_target(pause: float = _PAUSE_SECONDS, spin: float = _SPIN_SECONDS) -> TargetTable:
    """Return the shipped target with a version that takes its time, asleep and busy, for each batch of rows."""
    fast = CASE_SLA_DAILY.versions[SLOW]

    def slow(inputs: Inputs, context: TransformContext) -> Any:
        rows = fast.function(inputs, context)

        def linger(batches: Iterable[Any]) -> Iterator[Any]:
            for batch in batches:
                time.sleep(pause)
                until = time.monotonic() + spin
                while time.monotonic() < until:
                    pass
                yield batch

        return rows.mapInArrow(linger, rows.schema)

    versions = {**CASE_SLA_DAILY.versions, SLOW: TransformVersion(slow, clustered=fast.clustered)}
    return replace(CASE_SLA_DAILY, versions=versions)


@contextmanager
def declared(target: TargetTable | None = None) -> Iterator[None]:
    """Let the product have the slow target only."""
    with mock.patch.object(finding, "find_products", serves(replace(PRODUCT, targets=(target or slow_target(),)))):
        yield


# --- what is launched -------------------------------------------------------------------------------------------------


def _begin(folder: str) -> None:
    """Be the first of a group of one's own, as a shell makes one for a command, and write into files."""
    os.setsid()
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def by_command(home: str, run_id: str, folder: str) -> None:
    """Launch a run as `backfill run` does."""
    _begin(folder)
    os.environ |= {"BACKFILL_HOME": home, "BACKFILL_SPARK": json.dumps(SPARK)}
    sys.argv = ["backfill", "run", run_id]
    with declared():
        cli.main()


def by_dagster(home: str, run_id: str, folder: str) -> None:
    """Launch a run as a process of Dagster's does that was asked for a range of its chunks."""
    _begin(folder)
    platform = opened(Path(home))
    with declared(), instance_at(platform.settings) as instance:
        record = platform.ledger.run(run_id)
        job = build_definitions(platform).resolve_job_def(staging_job_name(platform.products.target(record.target)))
        tags = range_tags(run_id, record.plan.chunks[0].key, record.plan.chunks[-1].key)
        with partition_loading_context(dynamic_partitions_store=instance):
            result = job.execute_in_process(instance=instance, tags=tags, raise_on_error=False)
        Path(folder, "dagster").write_text(instance.get_run_by_id(result.run_id).status.value)  # type: ignore[union-attr]
    sys.exit(0 if result.success else 1)


# --- how it is stopped ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """A way of stopping a launch: `stop` returns at which instant it did; `through` is what its record begins with."""

    name: str
    launch: Callable[[str, str, str], None]
    stop: Callable[[Platform, str, BaseProcess], float]
    through: str


def _pid(process: BaseProcess) -> int:
    assert process.pid is not None
    return process.pid


def _terminate(platform: Platform, run_id: str, process: BaseProcess) -> float:
    with instance_at(platform.settings) as instance:
        runs = instance.get_runs(dg.RunsFilter(tags={RUN_TAG: run_id}, statuses=[dg.DagsterRunStatus.STARTED]))
        at = time.monotonic()
        for run in runs:
            instance.report_run_canceling(run)
        os.kill(_pid(process), signal.SIGINT)
    return at


def _twice(_platform: Platform, _run_id: str, process: BaseProcess) -> float:
    at = time.monotonic()
    os.killpg(_pid(process), signal.SIGINT)
    time.sleep(0.3)
    if process.is_alive():
        os.killpg(_pid(process), signal.SIGINT)
    return at


def _to_process(number: signal.Signals, *, group: bool = False) -> Callable[[Platform, str, BaseProcess], float]:
    def send(_platform: Platform, _run_id: str, process: BaseProcess) -> float:
        at = time.monotonic()
        (os.killpg if group else os.kill)(_pid(process), number)
        return at

    return send


def _elsewhere(platform: Platform, run_id: str, _process: BaseProcess) -> float:
    at = time.monotonic()
    decisions.stop(platform, run_id, by="olga", reason="the campaign", through="backfill stop")
    return at


WAYS = (
    Way("Ctrl-C in the shell", by_command, _to_process(signal.SIGINT, group=True), "SIGINT"),
    Way("Ctrl-C twice", by_command, _twice, "SIGINT"),
    Way("SIGTERM to the process", by_command, _to_process(signal.SIGTERM), "SIGTERM"),
    Way("SIGTERM to the group", by_command, _to_process(signal.SIGTERM, group=True), "SIGTERM"),
    Way("backfill stop", by_command, _elsewhere, "backfill stop"),
    Way("Terminate in Dagster", by_dagster, _terminate, "Terminate"),
    Way("backfill stop of a Dagster run", by_dagster, _elsewhere, "backfill stop"),
)


# --- the campaign -----------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What came of the stops of one way: how long each took to end everything, by what was under way, and what was wrong."""

    seconds: list[float] = field(default_factory=list)
    found: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def opened(home: Path) -> Platform:
    """Return the platform of the installation."""
    return Platform.of(load_settings(home=home, spark=SPARK))


def build(home: Path, cases: int) -> Platform:
    """Make an installation whose table is empty, with generated cases of two years."""
    platform = opened(home)
    initialise(platform)
    initialise_instance(platform.settings)
    load_delivery(platform, enforcement.EVENTS, enforcement.generated(cases, 7), 0.5)
    return platform


def approved(platform: Platform, run_id: str) -> RunRecord:
    """Plan a run of the slow version, and have it approved and announced."""
    manifest = manifest_from(
        {
            "runId": run_id,
            "kind": "RESTATEMENT",
            "requestedBy": "ana",
            "reason": "a launch that is going to be stopped",
            "source": {"table": CASE_SLA_DAILY.source},
            "transform": {"name": CASE_SLA_DAILY.transform, "version": SLOW},
            "target": {
                "table": CASE_SLA_DAILY.name,
                "publishRange": {"start": SCOPE[0].isoformat(), "end": SCOPE[1].isoformat()},
            },
            "validation": {"gates": list(GATES)},
            "development": True,
        }
    )
    record = plan_run(platform, manifest)
    platform.ledger.decide(run_id, approve=True, by="bob", comment="", self_approval=False, plan_hash=record.plan_hash)
    with instance_at(platform.settings) as instance:
        announce_approval(platform, instance, record)
    return platform.ledger.run(run_id)


def started(home: Path, run_id: str, folder: Path, launch: Callable[[str, str, str], None]) -> BaseProcess:
    """Start a launch in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    process = CONTEXT.Process(target=launch, args=(str(home), run_id, str(folder)))
    process.start()
    return process


def _members(group: int) -> list[int]:
    """Return the processes of a group that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended while we looked
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(int(stat.parent.name))
    return found


def _ended(process: BaseProcess) -> float | None:
    """Wait for the end of a process and of all it has started; return when, or None after a long while."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        process.join(0.02)
        if not process.is_alive() and not _members(_pid(process)):
            return time.monotonic()
    return None


def digests(platform: Platform, run_id: str) -> dict[str, str | None]:
    """Return the digest of each chunk of a run."""
    return {chunk.chunk: chunk.digest for chunk in platform.ledger.chunks(run_id)}


def finish(home: Path, platform: Platform, run_id: str, folder: Path) -> list[str]:
    """Launch a run to its end; return what is wrong with that."""
    process = started(home, run_id, folder, by_command)
    if _ended(process) is None:
        process.kill()
        return [f"{run_id}: the launch after the stop did not end"]
    record = platform.ledger.run(run_id)
    if process.exitcode != 0 or record.state is not RunState.PUBLISHED:
        said = (folder / "err").read_text()[-1500:]
        return [f"{run_id}: the launch after the stop ended with {process.exitcode}, {record.state}: {said}"]
    return []


def stop_once(home: Path, platform: Platform, run_id: str, way: Way, delay: float, folder: Path, tally: Tally) -> bool:
    """Launch a run and stop it after a delay; return False if it had ended before."""
    ledger, before = platform.ledger, platform.lakehouse.snapshot_id(CASE_SLA_DAILY.name)
    process = started(home, run_id, folder, way.launch)
    _begun(process)
    if way.launch is by_dagster:
        _asked_for(platform, run_id, process)
    process.join(delay)
    if not process.is_alive():
        return False
    known, attempts = ledger.stops.newest(run_id), ledger.attempts(run_id)
    under_way = "computing" if any(one.state == "RUNNING" for one in attempts) else ledger.run(run_id).state.lower()
    at = time.monotonic()
    try:
        at = way.stop(platform, run_id, process)
    except Exception as error:  # noqa: BLE001 - what cannot be stopped is over
        if ledger.run(run_id).state in stops.STOPPABLE:
            tally.wrong.append(f"{run_id}: {way.name} was refused: {error}")
    end = _ended(process)
    record = ledger.run(run_id)
    stop = ledger.stops.after(run_id, known)
    where = f"{run_id}, {way.name} after {delay:.1f} s ({under_way})"
    if end is None:
        tally.wrong.append(f"{where}: did not end")
        for member in _members(_pid(process)):
            os.kill(member, signal.SIGKILL)
        return True
    tally.seconds.append(end - at)
    tally.found[under_way] = tally.found.get(under_way, 0) + 1
    published = record.state is RunState.PUBLISHED
    wrong = {
        f"took {end - at:.1f} s, load {os.getloadavg()[0]:.1f}": end - at > LIMIT and not published,
        "exit code 0": process.exitcode == 0 and not published and way.launch is by_command,
        "attempts left RUNNING": any(one.state == "RUNNING" for one in ledger.attempts(run_id)),
        "an attempt FAILED": any(one.state == "FAILED" for one in ledger.attempts(run_id)),
        f"not on record: {stop}": under_way == "computing"
        and (stop is None or not stop.through.startswith(way.through)),
        "stopped, and nobody has said so": under_way != "computing"
        and stop is None
        and attempts != ledger.attempts(run_id),
        "readers see something else": not published and platform.lakehouse.snapshot_id(record.target) != before,
        "the sensor asks for its publication": stop is not None and not published and run_id in _wanted(platform),
    }
    if way.launch is by_dagster and stop is not None and (folder / "dagster").exists():
        status = (folder / "dagster").read_text()
        wrong[f"the Dagster run is {status}"] = status != "CANCELED" and record.state is not RunState.VALIDATED
    told = [text for text, is_so in wrong.items() if is_so]
    if told:
        tally.wrong.append(f"{where}: {'; '.join(told)}; {record.state}; {(folder / 'err').read_text()[-800:]}")
    return True


def _begun(process: BaseProcess) -> None:
    """Wait until a process has a group of its own: what is sent before that reaches nobody."""
    with suppress(ProcessLookupError):
        while process.is_alive() and os.getpgid(_pid(process)) != _pid(process):
            time.sleep(0.01)


def _asked_for(platform: Platform, run_id: str, process: BaseProcess) -> None:
    """Wait until Dagster knows the run: what is stopped before that is no launch yet."""
    with instance_at(platform.settings) as instance:
        known = len(instance.get_run_ids(dg.RunsFilter(tags={RUN_TAG: run_id})))
        while process.is_alive() and len(instance.get_run_ids(dg.RunsFilter(tags={RUN_TAG: run_id}))) == known:
            time.sleep(0.05)


def _wanted(platform: Platform) -> list[str | None]:
    with declared():
        return [one.partition_key for one in publication_requests(platform, slow_target())]


def campaign(
    home: Path, number: int, seed: int, cases: int, ways: Sequence[Way] = WAYS, say: Callable[[str], None] = print
) -> Mapping[str, Tally]:
    """Stop launches of as many runs as it takes; return what came of it, by way."""
    chance, tallies = random.Random(seed), {way.name: Tally() for way in ways}
    with declared():
        platform = build(home, cases)
        approved(platform, "undisturbed")
        began = time.monotonic()
        wrong = finish(home, platform, "undisturbed", home.parent / "undisturbed")
        duration, expected = time.monotonic() - began, digests(platform, "undisturbed")
        tallies[ways[0].name].wrong += wrong
        say(f"undisturbed: {duration:.1f} s, {len(expected)} chunks")
        done, run_number = 0, 0
        while done < number and not wrong:
            run_number += 1
            run_id = f"stopped-{run_number:03}"
            approved(platform, run_id)
            for _ in range(chance.randint(1, 3)):
                way = ways[done % len(ways)]
                delay = chance.uniform(0.0, duration)
                if done == number or not stop_once(
                    home, platform, run_id, way, delay, home.parent / run_id, tallies[way.name]
                ):
                    break
                done += 1
                took = tallies[way.name].seconds[-1:]
                load = os.getloadavg()[0]
                say(f"{done}: {way.name} after {delay:.1f} s: ended in {took[0]:.1f} s (load {load:.1f})")
            tally = tallies[way.name]
            tally.wrong += finish(home, platform, run_id, home.parent / run_id)
            if digests(platform, run_id) != expected:
                tally.wrong.append(f"{run_id}: its digests are not those of the undisturbed run")
            for text in tally.wrong:
                say(text)
        platform.ledger.engine.dispose()
    return tallies


def main() -> None:
    """Run the campaign, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stops-"))
    try:
        tallies = campaign(folder / "home", given.stops, given.seed, given.cases)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = Table("way", "stops", "median s", "longest s", "under way", "wrong")
    for name, tally in tallies.items():
        seconds = tally.seconds or [0.0]
        table.add_row(
            name,
            str(len(tally.seconds)),
            f"{median(seconds):.2f}",
            f"{max(seconds):.2f}",
            ", ".join(f"{what} {count}" for what, count in sorted(tally.found.items())),
            str(len(tally.wrong)),
        )
    Console(width=140).print(table)
    everything = sorted(one for tally in tallies.values() for one in tally.seconds)
    wrong = [text for tally in tallies.values() for text in tally.wrong]
    if everything:
        p95 = everything[int(len(everything) * 0.95) - 1]
        print(
            f"{len(everything)} stops: median {median(everything):.2f} s, 95% {p95:.2f} s, longest {everything[-1]:.2f} s"
        )
    print(*wrong, sep="\n")
    if given.json is not None:
        given.json.write_text(json.dumps({name: vars(tally) for name, tally in tallies.items()}, indent=2))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
