"""Processes that publish a run's events and are killed anywhere, and what a guarded consumer has of them afterwards.

Put here the campaign; how long it is, its caller says. Each act is what the command does; killed, it is given again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from event_world import SETTING, own_topic, ran, read, serving, with_topic

import backfill_assets as ba
from backfill_assets import decisions, faults
from backfill_assets.execution import execute_publication
from backfill_assets.installation import Platform
from benchmarks.small_table import METERS, SCOPE, closed, opened, rows_of
from manifests.lifecycle import RunState

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["topic_kills"])
POINTS = sorted(point for point in faults.POINTS if point.startswith("telling."))
SINK = with_topic(batch=9)


def published(platform: Platform, run_id: str) -> None:
    """Do what `backfill plan`, `approve` and `run` do, from wherever a killed process has left it."""
    found = platform.ledger.find(run_id)
    if found is None or found.state not in {RunState.VALIDATED, RunState.PUBLISHED}:
        ran(platform, run_id)
    execute_publication(platform, run_id)


ACTS: dict[str, Callable[[Platform, str], object]] = {
    "publish": published,
    "rollback": decisions.rollback,
    "reinstate": decisions.reinstate,
}


def act(home: Path, run_id: str, name: str, servers: str, fault: str) -> None:
    """Be the process that acts."""
    os.environ[SETTING] = servers
    os.environ.pop("BACKFILL_CONFIG", None)
    os.environ.pop(faults.VARIABLE, None)
    if fault:
        os.environ[faults.VARIABLE] = fault
    with serving(SINK):
        platform = opened(home)
        ACTS[name](platform, run_id)
        closed(platform)


def started(home: Path, run_id: str, name: str, servers: str, fault: str = "") -> Any:
    """Return a process that acts."""
    process = CONTEXT.Process(target=act, args=(home, run_id, name, servers, fault))
    process.start()
    return process


def ended(process: Any, seconds: float = 180) -> int:
    """Wait for a process; return its exit code."""
    process.join(seconds)
    assert process.exitcode is not None, "a process that acts hangs"
    return int(process.exitcode)


@dataclass
class Campaign:
    """What has been done and found."""

    home: Path
    servers: str
    rng: random.Random
    kills: int = 0
    acts: int = 0
    events: int = 0
    wrong: list[str] = field(default_factory=list)
    typical: float = 2.0

    def act(self, run_id: str, name: str, most: int) -> None:
        """Have an act done by processes that are killed up to `most` times: at a point, or at any moment."""
        for _ in range(most):
            fault = self.rng.choice(POINTS) if self.rng.random() < 0.4 else ""
            process = started(self.home, run_id, name, self.servers, fault)
            if not fault:
                process.join(self.rng.uniform(0.02, self.typical))
                if process.exitcode is None:
                    os.kill(process.pid, signal.SIGKILL)
            code = ended(process)
            if code == -signal.SIGKILL:
                self.kills += 1
                continue
            if code == 0:
                self.acts += 1
                return
            self.wrong.append(f"{name} of {run_id} ended with {code}")
            return
        begun = time.monotonic()
        code = ended(started(self.home, run_id, name, self.servers))
        self.typical = max(0.3, 0.7 * self.typical + 0.3 * (time.monotonic() - begun))
        self.acts += 1
        if code != 0:
            self.wrong.append(f"{name} of {run_id} ended with {code} and was not killed")

    def run(self, run_id: str, most: int) -> None:
        """Have a run published, and perhaps rolled back and reinstated; look at what a guarded consumer has of it."""
        acts = self.rng.choice((("publish",), ("publish", "rollback"), ("publish", "rollback", "reinstate")))
        for name in acts:
            self.act(run_id, name, most)
        found = consumed(self.servers, run_id)
        self.events += len(found)
        self.wrong += differences(found, len(acts))


def consumed(servers: str, run_id: str) -> list[tuple[str, str, str]]:
    """Return operation, key and day of each effect at a guarded consumer that gets every message twice."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE effects (place INTEGER PRIMARY KEY, op TEXT, key TEXT, day TEXT)")
    database.commit()
    guard = ba.ConsumerGuard(ba.SqliteEventIds(database), runs=(run_id,))
    messages = read(servers, own_topic(run_id))
    for _, _, key, raw, headers in [*messages, *messages]:
        value = json.loads(raw)
        day = json.loads(value["retracts"])[1] if headers["x-op"] == "retract" else value["day"]
        effect = (headers["x-op"], key.decode(), day)
        guard.handle(headers, lambda: database.execute("INSERT INTO effects (op, key, day) VALUES (?, ?, ?)", effect))  # noqa: B023
    assert guard.counts["DUPLICATE", "BACKFILL"] == len(messages), guard.counts
    found = database.execute("SELECT op, key, day FROM effects ORDER BY place").fetchall()
    if len(found) != len(messages):
        raise AssertionError(f"{len(messages)} messages, {len(found)} effects")
    return found


def differences(found: list[tuple[str, str, str]], acts: int) -> list[str]:
    """Say what a consumer has lost, has twice, or has in another order than its key's days have."""
    rows = rows_of("2", date.fromisoformat(SCOPE[0]), date.fromisoformat(SCOPE[1]))
    wrong = []
    for meter in METERS:
        days = sorted(str(row["day"]) for row in rows if row["meter"] == meter)
        expected = [(op, meter, day) for op in ("publish", "retract", "publish")[:acts] for day in days]
        mine = [one for one in found if one[1] == meter]
        if mine != expected:
            wrong.append(f"{meter}: {len(mine)} events of {len(expected)}, or in another order")
    if any(one[1] not in METERS for one in found):
        wrong.append("events of a key that no row has")
    return wrong


def campaign(home: Path, servers: str, *, kills: int, seed: int, most: int = 6, seconds: float = 3_600) -> Campaign:
    """Publish runs one after the other until so many processes were killed, or the time is over."""
    done = Campaign(home, servers, random.Random(seed))
    until, number = time.monotonic() + seconds, 0
    while done.kills < kills and not done.wrong and time.monotonic() < until:
        number += 1
        done.run(f"killed-{seed}-{number}", most)
    return done
