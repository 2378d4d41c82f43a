"""Kill -9 in every publish mode, at random times and at named points; the same command again must end as if undisturbed.

    python benchmarks/kills.py [--kills 300] [--seed 1] [--processes 1 | --postgres]

A cycle is one run of one mode: planned, approved, staged, gated, published, for some accepted, then rolled back and
reinstated. A child process does it, is killed, and is started again with what the operator has not seen finished, until
it ends. Meanwhile a reader polls every ref of both tables at 20 Hz. Then table, ledger and evidence are compared with
those of the same run undisturbed, which also says what states a reader may see, and in which order. Only Spark is left
out (`small_table`). A kill counts if the process was running and died of it. Prints a line a mode; ends with 1 if
anything differed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

ROOT = str(Path(__file__).resolve().parent.parent)
sys.path.insert(0, ROOT)

from backfill_assets import faults
from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.publisher import prepare, publish
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks.small_table import (
    CORRECTIONS,
    EMPTY,
    HISTORY,
    METERS,
    READINGS,
    SCOPE,
    closed,
    declared,
    initialise,
    manifest,
    opened,
    planned,
    rows,
    staged,
)
from manifests.canonical import plain
from manifests.errors import Refused
from resources.code.identity import code_identity
from resources.files.places import local
from resources.lakehouse.facade import ACTION_PROPERTY, EVIDENCE_PROPERTY, RUN_PROPERTY
from resources.ledger.tables import leases

CONTEXT = multiprocessing.get_context("forkserver")
HERTZ = 20
DISTURBED = 0.9
"""Share of the launches that are disturbed."""
AT_A_POINT = 0.3
"""Share of the disturbed ones that are killed at a named point."""
PATIENCE = 120.0
_REFUSALS = 200
KILLED = -signal.SIGKILL
ABSENT = "absent"
RUN, ACCEPT, ROLLBACK, REINSTATE = "run", "accept", "rollback", "reinstate"

code_identity()  # git is asked once, in the process that the children are forked from


@dataclass(frozen=True)
class Case:
    """A run that is done and killed: its mode, its scope and options, and the commands of its operator."""

    name: str
    mode: str
    scope: tuple[str, str] = SCOPE
    options: tuple[tuple[str, Any], ...] = ()
    steps: tuple[str, ...] = (RUN, ROLLBACK, REINSTATE)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.name.lower().replace("_", "-").replace(" ", "-").replace(",", "")

    @property
    def views(self) -> list[tuple[str, str]]:
        """What a reader looks at: table and ref."""
        version = dict(self.options).get("version")
        return [(READINGS, "main"), (CORRECTIONS, "main"), *([(READINGS, version)] if version else [])]


_LATER = (("version", "v2"), ("acceptance", "LATER"))
CASES = (
    Case("APPEND_ONLY", "APPEND_ONLY", EMPTY),
    Case("REPLACE_PARTITIONS", "REPLACE_PARTITIONS"),
    Case("MERGE_BY_KEY", "MERGE_BY_KEY", options=(("merge", {"entities": [METERS[1], METERS[4], "m9"]}),)),
    Case("SHADOW_SWAP", "SHADOW_SWAP"),
    Case("VERSIONED", "VERSIONED", options=(("version", "v2"),)),
    Case("VERSIONED, accepted later", "VERSIONED", options=_LATER, steps=(RUN, ACCEPT, ROLLBACK, REINSTATE)),
    Case("VERSIONED, never accepted", "VERSIONED", options=_LATER),
    Case("CORRECTION_EVENTS", "CORRECTION_EVENTS", options=(("corrections", "INSTEAD"),)),
    Case("CORRECTION_EVENTS beside", "CORRECTION_EVENTS", options=(("corrections", "BESIDE"),)),
)


# --- what the operator does -------------------------------------------------------------------------------------------


def _run(platform: Platform, case: Case) -> None:
    """Do what `backfill plan`, `approve`, `run` and `publish` do, as far as it is not done yet."""
    planned(platform, manifest(case.run_id, case.mode, case.scope, **dict(case.options)))
    staged(platform, case.run_id)
    prepare(platform, case.run_id)
    publish(platform, case.run_id)


STEPS: dict[str, Callable[[Platform, Case], Any]] = {
    RUN: _run,
    ACCEPT: lambda platform, case: accept(platform, case.run_id),
    ROLLBACK: lambda platform, case: rollback(platform, case.run_id),
    REINSTATE: lambda platform, case: reinstate(platform, case.run_id),
}


def operate(site: Path, case: Case, fault: str | None, begun: Connection) -> None:
    """Do the commands of a case that the operator has not seen finished; what is finished is noted beside the home."""
    try:
        begun.send(None)
        begun.close()
        if fault is not None:
            os.environ[faults.VARIABLE] = fault
        with declared():
            platform = at(site)
            for step in case.steps[len(_noted(site)) :]:
                STEPS[step](platform, case)
                with (site / "noted").open("a") as notes:
                    notes.write(f"{json.dumps([step, time.monotonic()])}\n")
    except BaseException:
        (site / "failure").write_text(traceback.format_exc())
        raise


def insist(site: Path, case: Case, told: Connection) -> None:
    """Do the first command of a case as an operator who gives it again when it is refused; tell how often it was."""
    refusals: list[str] = []
    with declared():
        platform = at(site)
        told.send(None)
        told.recv()  # all operators begin at the same moment
        while True:
            try:
                _run(platform, case)
            except Refused as refusal:
                refusals.append(str(refusal))
                if len(refusals) == _REFUSALS:
                    break
            else:
                break
    told.send(refusals)


def observe(site: Path, case: Case, begun: Connection, told: Connection) -> None:
    """Do the commands of a case undisturbed; tell which points they pass, and what is to be seen after each."""
    passed: dict[str, list[str]] = {step: [] for step in case.steps}
    try:
        begun.send(None)
        with declared():
            platform = at(site)
            seen = [_looks(platform, case)]
            for step in case.steps:
                since = time.monotonic()
                faults.reach = passed[step].append  # type: ignore[assignment]  # it is what the fault points call
                STEPS[step](platform, case)
                with (site / "noted").open("a") as notes:
                    notes.write(f"{json.dumps([step, time.monotonic() - since])}\n")
                seen.append(_looks(platform, case))
        told.send(({step: sorted(set(points)) for step, points in passed.items()}, seen))
    except BaseException:
        (site / "failure").write_text(traceback.format_exc())
        raise


def _noted(site: Path) -> list[tuple[str, float]]:
    file = site / "noted"
    lines = file.read_text().splitlines() if file.exists() else []
    return [tuple(json.loads(line)) for line in lines]


# --- what readers see -------------------------------------------------------------------------------------------------


def _fingerprint(platform: Platform, table: str, ref: str, loaded: Any = None) -> str:
    return hashlib.sha256(repr(rows(platform, table, ref, loaded)).encode()).hexdigest()[:12]


def _looks(platform: Platform, case: Case) -> list[str]:
    """Return a fingerprint of the rows of each view."""
    return [
        ABSENT if platform.lakehouse.snapshot_of(table, ref) is None else _fingerprint(platform, table, ref)
        for table, ref in case.views
    ]


@dataclass
class Seen:
    """What a reader has seen: the states of each view in order, how often it looked, and for how many seconds."""

    states: list[list[str]]
    polls: int = 0
    seconds: float = 0.0
    failure: str = ""


def read_on(site: Path, case: Case, orders: Connection) -> None:
    """Poll the views of a case until told to stop; tell what was seen."""
    seen = Seen([[] for _ in case.views])
    try:
        with declared():
            _poll(at(site), case, orders, seen)
    except Exception:  # noqa: BLE001 - told to the parent, which fails
        seen.failure = traceback.format_exc()
        orders.send(None)
    orders.send(seen)


def _poll(platform: Platform, case: Case, orders: Connection, seen: Seen) -> None:
    known: dict[tuple[str, int], str] = {}  # by table and snapshot; 0 where a ref is absent
    tables: dict[str, Any] = {}
    pointers: dict[str, str] = {}
    began = following = time.monotonic()
    last = False
    while True:
        again = seen.polls % HERTZ == 0  # once a second the rows of what is known already are read once more
        present = _pointers(platform)
        for table in {table for table, _ in case.views}:
            if again or pointers.get(table) != present[table]:
                tables[table] = platform.lakehouse.table(table)
        pointers = present
        for (table, ref), states in zip(case.views, seen.states, strict=True):
            snapshot = tables[table].snapshot_by_name(ref)
            place = (table, snapshot.snapshot_id if snapshot else 0)
            if again or place not in known:
                state = _fingerprint(platform, table, ref, tables[table]) if snapshot else ABSENT
                if known.setdefault(place, state) != state:
                    raise AssertionError(f"the rows of snapshot {place} have changed")
            state = known[place]
            if not states or states[-1] != state:
                states.append(state)
        seen.polls += 1
        seen.seconds = time.monotonic() - began
        if seen.polls == 1:
            orders.send(None)  # it has seen the table as it was
        if last:
            return
        following = max(following + 1 / HERTZ, time.monotonic())
        last = orders.poll(max(0.0, following - time.monotonic()))  # one more look after the order to stop


def _pointers(platform: Platform) -> dict[str, str]:
    """Return what the catalog says each table's metadata is: nothing of a table changes for readers unless this does."""
    with platform.lakehouse.catalog.engine.connect() as connection:  # type: ignore[attr-defined]
        found = connection.execute(
            sa.text("SELECT table_namespace, table_name, metadata_location FROM iceberg_tables")
        ).all()
    return {f"{row.table_namespace}.{row.table_name}": row.metadata_location for row in found}


def _follows(seen: Sequence[str], allowed: Sequence[str]) -> bool:
    """Return whether a reader's states are some of the allowed ones in their order: it may miss one, not see another."""
    left = iter(allowed)
    return all(state in left for state in seen)


# --- what is left afterwards ------------------------------------------------------------------------------------------


def outcome(platform: Platform, case: Case) -> dict[str, Any]:
    """Return all that must be equal after a disturbed and an undisturbed run."""
    ledger, run_id = platform.ledger, case.run_id
    table = platform.lakehouse.table(READINGS)
    main = rows(platform)
    keys = [row[:2] for row in main]
    committed = [one for one in ledger.publications(run_id) if one.state == "COMMITTED"]
    root = platform.evidence.verify(run_id)
    folder = local(platform.evidence.folder / run_id)
    with ledger.engine.connect() as connection:
        open_leases = connection.execute(
            sa.select(sa.func.count()).select_from(leases).where(leases.c.ended_at.is_(None))
        ).scalar_one()
    refs = sorted(ref for ref in table.refs() if not ref.startswith("fence-"))
    return {
        "rows": main,
        "rows of corrections": rows(platform, CORRECTIONS),
        "keys that are there twice": sorted({key for key in keys if keys.count(key) > 1}),
        "rows of each ref": {ref: _fingerprint(platform, READINGS, ref) for ref in refs},
        "history": {name: _history(platform, name, root) for name in (READINGS, CORRECTIONS)},
        "states": {record.run_id: record.state.value for record in ledger.runs()},
        "transitions": [(one.from_state, one.to_state) for one in ledger.history(run_id)],
        "approvals": [one.decision for one in ledger.approvals(run_id)],
        "chunks": [
            (one.chunk, one.state.value, one.rows, one.digest, len(one.files), len(one.derived), len(one.replaced))
            for one in ledger.chunks(run_id)
        ],
        "attempts that were staged": [one.chunks for one in ledger.attempts(run_id) if one.state == "STAGED"],
        "attempts left open": [one.attempt for one in ledger.attempts(run_id) if one.state == "RUNNING"],
        "verdicts": sorted((one.chunk, one.gate, one.passed) for one in ledger.verdicts(run_id)),
        "accepted": ledger.accepted(READINGS),
        "publications": [(one.action, one.ref, one.files_added, one.files_removed) for one in committed],
        "publications left open": [one.id for one in ledger.publications(run_id) if one.state == "INTENT"],
        "evidence roots of the publications": {one.evidence_root == root for one in committed},
        "evidence": sorted(file.name for file in folder.glob("bundle/*")),
        "records": {file.name: _record(file, root) for file in sorted(folder.glob("records/*.json"))},
        "leases left open": open_leases,
        "what verifying the evidence finds": [
            f"{one.run_id} {one.where}: {one.what}" for one in verify(platform).everything
        ],
        "what the doctor finds": [f"{one.kind}: {one.where}: {one.what}" for one in examine(platform)],
    }


def _history(platform: Platform, name: str, root: str) -> list[tuple[Any, ...]]:
    """Return what each snapshot of main says of itself."""
    table = platform.lakehouse.table(name)
    found = []
    snapshot = table.current_snapshot()
    while snapshot is not None:
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        mine = said.get(EVIDENCE_PROPERTY) == root
        found.append((said.get(RUN_PROPERTY), said.get(ACTION_PROPERTY), mine, said.get("total-records")))
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id else None
    return found[::-1]


_OF_ITS_OWN = frozenset({"at", "snapshot_id", "base_snapshot_id", "rows", "tables", "beside", "follows", "committed"})
"""What a record says that no two runs have in common; whether it is right is for `verify` to say."""


def _record(file: Path, root: str) -> dict[str, Any]:
    facts = json.loads(file.read_text())
    facts["evidence_root"] = facts["evidence_root"] == root
    return {name: value for name, value in facts.items() if name not in _OF_ITS_OWN}


# --- the harness ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Twin:
    """The undisturbed run of a case: what it leaves, what may be seen of each view in order, how long its steps take."""

    outcome: dict[str, Any]
    states: list[list[str]]
    seconds: dict[str, float]
    points: dict[str, list[str]]


@dataclass
class Tally:
    """What was done in one mode, and everything that was wrong."""

    case: Case
    cycles: int = 0
    kills: int = 0
    at_points: dict[str, int] = field(default_factory=dict)
    launches: int = 0
    polls: int = 0
    seconds: float = 0.0
    states: int = 0
    wrong: list[str] = field(default_factory=list)


class Server(Protocol):
    """A database server on which an installation keeps ledger and catalog."""

    def database(self, template: str = ...) -> str:
        """Create a database, like another one, and return its URL."""

    def drop(self, url: str) -> None:
        """Remove a database, whoever is connected to it."""


_SERVERS: dict[Path, Server] = {}
"""The server of each site that has one, in the process that builds and restores it."""


def at(site: Path) -> Platform:
    """Return the platform of a site: its files, and the databases it uses now, if they are on a server."""
    file = site / "databases"
    if not file.exists():
        return opened(site / "home")
    urls = json.loads(file.read_text())
    catalog = {"type": "sql", "uri": urls["catalog"], "warehouse": f"file://{site}/home/warehouse"}
    return opened(site / "home", ledger_url=urls["ledger"], catalog=catalog)


def build(site: Path, server: Server | None = None) -> None:
    """Make an installation whose table has a history, and keep a copy of it."""
    site.mkdir(parents=True, exist_ok=True)
    if server is not None:
        _SERVERS[site] = server
        (site / "databases").write_text(json.dumps({name: server.database() for name in ("ledger", "catalog")}))
    platform = at(site)
    initialise(platform)
    planned(platform, manifest("history", "REPLACE_PARTITIONS", HISTORY, computed_by="1"))
    staged(platform, "history")
    publish(platform, "history")
    closed(platform)
    shutil.copytree(site / "home", site / "kept")
    if server is not None:
        shutil.move(site / "databases", site / "kept-databases")


def restore(site: Path) -> None:
    """Put the installation back to its history."""
    for left in ("home", "noted", "failure"):
        path = site / left
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    shutil.copytree(site / "kept", site / "home")
    if site in _SERVERS:
        server, used = _SERVERS[site], site / "databases"
        for url in json.loads(used.read_text()).values() if used.exists() else ():
            server.drop(url)
        kept = json.loads((site / "kept-databases").read_text())
        used.write_text(json.dumps({name: server.database(url) for name, url in kept.items()}))


def undisturbed(site: Path, case: Case) -> Twin:
    """Do a case without a disturbance."""
    restore(site)
    begun, told = CONTEXT.Pipe(), CONTEXT.Pipe()
    child = CONTEXT.Process(target=observe, args=(site, case, begun[1], told[1]))
    child.start()
    told[1].close()
    try:
        points, looks = told[0].recv()
    except EOFError:
        raise RuntimeError(f"{case.name} fails undisturbed:\n{_failure(site)}") from None
    child.join()
    platform = at(site)
    left = outcome(platform, case)
    closed(platform)
    for who in ("what the doctor finds", "what verifying the evidence finds"):
        if left[who]:
            raise RuntimeError(f"{case.name}: after an undisturbed run, {who}: {left[who]}")
    states = [list(view) for view in zip(*looks, strict=True)]
    return Twin(left, states, dict(_noted(site)), points)


def _failure(site: Path) -> str:
    file = site / "failure"
    return file.read_text() if file.exists() else "(it left no word)"


def cycle(site: Path, case: Case, twin: Twin, tally: Tally, chance: random.Random, most: int) -> None:
    """Do a case once, with at most so many kills, and hold what was seen and what is left against its twin."""
    restore(site)
    orders, theirs = CONTEXT.Pipe()
    reader = CONTEXT.Process(target=read_on, args=(site, case, theirs))
    reader.start()
    orders.recv()
    kills = 0
    while True:
        disturbed = kills < most and chance.random() < DISTURBED
        todo = case.steps[len(_noted(site)) :]
        ahead = sorted({point for step in todo for point in twin.points[step]})
        fault = chance.choice(ahead) if disturbed and ahead and chance.random() < AT_A_POINT else None
        left = sum(twin.seconds[step] for step in todo)
        moment = chance.uniform(0, left) if disturbed and fault is None else None
        code = _launch(site, case, fault, moment)
        tally.launches += 1
        if code == KILLED:
            kills += 1
            if fault is not None:
                tally.at_points[fault] = tally.at_points.get(fault, 0) + 1
            continue
        if code != 0:
            tally.wrong.append(f"{case.name}: the command ended with {code}:\n{_failure(site)}")
        break
    tally.kills += kills
    tally.cycles += 1
    orders.send(None)
    _judge_reader(orders.recv(), twin, tally)
    reader.join()
    try:
        platform = at(site)
        found = outcome(platform, case)
        closed(platform)
    except Refused as refusal:
        tally.wrong.append(f"{case.name}: {refusal}")
        return
    for name, expected in twin.outcome.items():
        if plain(found[name]) != plain(expected):
            tally.wrong.append(f"{case.name}: {name}: {found[name]!r}, undisturbed {expected!r}"[:2000])


def _launch(site: Path, case: Case, fault: str | None, moment: float | None) -> int:
    """Start the operator's commands, kill them after a while if told so, and return how the process ended."""
    mine, theirs = CONTEXT.Pipe(duplex=False)
    child = CONTEXT.Process(target=operate, args=(site, case, fault, theirs))
    child.start()
    theirs.close()
    mine.recv()  # it works from here on
    if moment is not None:
        child.join(moment)
        if child.exitcode is None:
            child.kill()
    child.join(PATIENCE)
    if child.exitcode is None:
        (site / "failure").write_text(f"it hangs: nothing came of it in {PATIENCE:.0f} s")
        child.kill()
        child.join()
        return 1
    return int(child.exitcode)


def _judge_reader(seen: Seen, twin: Twin, tally: Tally) -> None:
    tally.polls += seen.polls
    tally.seconds += seen.seconds
    tally.states += sum(len(states) for states in seen.states)
    if seen.failure:
        tally.wrong.append(f"{tally.case.name}: a reader met\n{seen.failure}")
    for view, states, allowed in zip(tally.case.views, seen.states, twin.states, strict=True):
        if not _follows(states, allowed):
            tally.wrong.append(f"{tally.case.name}: readers of {view} saw {states}, undisturbed {allowed}")


def campaign(
    folder: Path, kills: int, seed: int, cases: Sequence[Case] = CASES, server: Server | None = None
) -> list[Tally]:
    """Kill so many times, mode after mode; return what came of it."""
    chance = random.Random(seed)
    tallies = [Tally(case) for case in cases]
    with declared():
        build(folder, server)
        twins = [undisturbed(folder, case) for case in cases]
        done = 0
        while done < kills:
            for number, (twin, tally) in enumerate(zip(twins, tallies, strict=True)):
                left = kills - done
                # each mode its share of what is left, so that the last ones are not left out of a short campaign
                share = max(1, round(left / (len(cases) - number))) if left else 0
                before = tally.kills
                if share:
                    cycle(folder, tally.case, twin, tally, chance, min(share, 8))
                done += tally.kills - before
    return tallies


def _import_once() -> None:
    """Have the server that this process forks others from import this module, by its name: 3.11 preloads no main module."""
    CONTEXT.set_forkserver_preload(["benchmarks.kills"])


def _campaign_told(folder: Path, kills: int, seed: int, told: Connection) -> None:
    _import_once()  # this process has such a server of its own
    told.send(campaign(folder, kills, seed))


def campaigns(folder: Path, kills: int, seed: int, processes: int, *, on_server: bool) -> list[Tally]:
    """Have campaigns beside one another, each with an installation of its own; return what came of all."""
    if on_server:
        sys.path.insert(0, f"{ROOT}/tests")
        from servers import postgres

        with postgres() as server:
            return campaign(folder / "site", kills, seed, server=server)
    if processes == 1:
        return campaign(folder / "site", kills, seed)
    pipes = []
    for number in range(processes):
        mine, theirs = CONTEXT.Pipe(duplex=False)
        share = kills // processes + (number < kills % processes)
        CONTEXT.Process(target=_campaign_told, args=(folder / f"site-{number}", share, seed + number, theirs)).start()
        theirs.close()
        pipes.append(mine)
    total, *others = [pipe.recv() for pipe in pipes]
    for tallies in others:
        for tally, more in zip(total, tallies, strict=True):
            for name in ("cycles", "kills", "launches", "polls", "seconds", "states", "wrong"):
                setattr(tally, name, getattr(tally, name) + getattr(more, name))
            for point, number in more.at_points.items():
                tally.at_points[point] = tally.at_points.get(point, 0) + number
    return list(total)


def shown(tallies: Sequence[Tally]) -> Table:
    """Return a table of what was done and found, a line a mode."""
    table = Table("mode", "cycles", "kills", "at points", "repeats", "reader polls", "Hz", "states seen", "verdict")
    for tally in tallies:
        table.add_row(
            tally.case.name,
            *map(str, (tally.cycles, tally.kills, sum(tally.at_points.values()), tally.launches - tally.cycles)),
            str(tally.polls),
            f"{tally.polls / tally.seconds:.1f}" if tally.seconds else "",
            str(tally.states),
            f"{len(tally.wrong)} wrong" if tally.wrong else "as undisturbed",
        )
    total = [sum(getattr(tally, name) for tally in tallies) for name in ("cycles", "kills", "launches", "polls")]
    hertz = total[3] / max(sum(tally.seconds for tally in tallies), 1e-9)
    at_points = sum(sum(tally.at_points.values()) for tally in tallies)
    states, wrong = sum(tally.states for tally in tallies), sum(len(tally.wrong) for tally in tallies)
    table.add_row(
        "all",
        *map(str, (total[0], total[1], at_points, total[2] - total[0], total[3])),
        f"{hertz:.1f}",
        str(states),
        f"{wrong} wrong" if wrong else "as undisturbed",
    )
    return table


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="campaigns at once, each with its own installation")
    parser.add_argument("--postgres", action="store_true", help="ledger and catalog on a PostgreSQL server of its own")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])  # the children's
    _import_once()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tallies = campaigns(Path(folder), options.kills, options.seed, options.processes, on_server=options.postgres)
    console = Console(width=140)
    console.print(shown(tallies))
    points = sorted({point for tally in tallies for point in tally.at_points})
    console.print(f"seed {options.seed}, {time.monotonic() - began:.0f} s; killed at the points {', '.join(points)}")
    wrong = [one for tally in tallies for one in tally.wrong]
    if wrong:
        raise SystemExit("\n".join(wrong))
    console.print("0 rows lost, 0 doubled, 0 partial states seen; ledger and evidence as undisturbed")


if __name__ == "__main__":
    main()
