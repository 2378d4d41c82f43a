"""Processes around a read model that moves: a source that grows, LIVE of both tables, readers, and operators who are killed.

Put here what each of them does until it is told to stop; what must hold of all of it together is the tests'. Each begins in a fresh
process (`forkserver`) and opens the installation for itself.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from backfill_assets import faults
from backfill_assets.installation import Platform
from backfill_assets.migration.reading import where_to_read
from backfill_assets.migration.steps import advance, undo
from backfill_assets.publication.publisher import publish
from backfill_assets.schedules.live import tick
from benchmarks.points import MIGRATION, NAME, NEW, OLD, RAW, REGIONS, opened, raw, written
from manifests.errors import Refused
from manifests.lifecycle import RunState
from resources.lakehouse.facade import LOAD_PROPERTY

GROWS_FROM = date(2024, 2, 11)
DAYS = 3
"""Each load says something else of so many days at once: rows of two loads are no content that there ever was."""
OF_OPERATORS = ("migration.held", "migration.checked", "migration.taken")
OF_LIVE = ("leasing.taken", "leasing.fenced", "publishing.sealed", "publishing.committed", "publishing.recorded")
"""Points of the code at which they die, if not at any moment."""


@dataclass
class Seen:
    """What a reader got: who asked, the edition of the switch, the table, and the newest load in each row's day."""

    edition: int
    table: str
    rows: tuple[tuple[Any, ...], ...] = field(repr=False)


def content(loads: int) -> list[tuple[Any, ...]]:
    """Return the rows of the days that grow after so many loads, as readers get them."""
    said: dict[tuple[str, date], tuple[Any, ...]] = {}
    for number in range(1, loads + 1):
        first = first_day(number)
        for offset in range(DAYS):
            for place in range(3):
                day = first + timedelta(days=offset)
                said[f"p{place}", day] = (f"p{place}", REGIONS[place], day, 1 + number)
    return sorted(said.values())


def first_day(number: int) -> date:
    """Return the first day that a load is about: a day later with every third."""
    return GROWS_FROM + timedelta(days=number // 3)


def grow(home: Path, stop: Any, loads: Any) -> None:
    """Load, and load again once LIVE has taken the last load into both tables, or after a while: it may have died."""
    platform = opened(home)
    while not stop.is_set():
        number = loads.value + 1
        first = first_day(number)
        rows = raw(first, first + timedelta(days=DAYS - 1), n=1 + number)
        try:
            platform.lakehouse.append(RAW, [rows], {LOAD_PROPERTY: f"grow-{number}"})
        except Refused:
            continue
        loads.value = number
        until = time.monotonic() + 15
        while time.monotonic() < until and not all(_has(platform, table, 1 + number) for table in (OLD, NEW)):
            time.sleep(0.1)
        time.sleep(random.uniform(0.2, 0.8))


def _has(platform: Platform, table: str, n: int) -> bool:
    found = platform.lakehouse.table(table).scan(row_filter=f"n == {n}", selected_fields=("n",), limit=1).to_arrow()
    return bool(found.num_rows)


def live(home: Path, table: str, stop: Any, deaths: Any, chance: float) -> None:
    """Tick, compute and publish, again and again for a while; with a chance, die at some point of it."""
    _doomed(deaths, chance, 2.0, OF_LIVE)
    platform = opened(home)
    until = time.monotonic() + random.uniform(1.5, 3.5)
    while not stop.is_set() and time.monotonic() < until:
        if not live_once(platform, table):
            time.sleep(0.15)


def live_once(platform: Platform, table: str) -> bool:
    """Take LIVE of a table a step on; return whether it published."""
    try:
        record = tick(platform, platform.products.target(table)).record
        if record is None:
            return False
        if record.state in {RunState.APPROVED, RunState.RUNNING}:
            written(platform, record)
        publish(platform, record.run_id)
    except Refused:
        return False  # somebody else holds what it needs: the next tick goes on
    return True


def read(home: Path, consumer: str | None, stop: Any, told: Any) -> None:
    """Ask where to read, read, and keep what was there."""
    platform = opened(home)
    while not stop.is_set():
        found = where_to_read(platform, NAME, consumer=consumer)
        (part,) = found.parts
        region = "region" if part.table == OLD else "area"
        rows = platform.lakehouse.table(part.table).scan(snapshot_id=part.snapshot_id).to_arrow()
        listed = sorted(tuple(row.values()) for row in rows.select(["point", region, "day", "n"]).to_pylist())
        told.put((consumer, Seen(found.edition, part.table, tuple(row for row in listed if row[2] >= GROWS_FROM))))
        time.sleep(0.3)


def operate(home: Path, what: str, consumer: str | None, told: Any, seed: int) -> None:
    """Act as an operator, and be killed meanwhile, or right after it."""
    _doomed(None, 1.0, 0.5, OF_OPERATORS, random.Random(seed))
    told.put(act(opened(home), what, consumer))


def act(platform: Platform, what: str, consumer: str | None, meanwhile: Callable[[], None] = lambda: None) -> str:
    """Let readers go over, or back, as soon as that is possible; return what was done, or why it was not."""
    consumers = () if consumer is None else (consumer,)
    step: Callable[..., Any] = advance if what == "advance" else undo
    last: list[str] = []
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            done = step(platform, MIGRATION, by="bob", reason="a campaign of kills", consumers=consumers)
        except Refused as refusal:
            if "is held by" not in str(refusal):
                return f"{what}: {refusal}"
            last = [str(refusal)]
        else:
            if done.moved:
                return what
            last = [f"{check.name}: {check.found}" for check in done.checks if not check.passed]
        meanwhile()
        time.sleep(0.1)
    return f"{what}: in vain: {last}"


def _doomed(
    deaths: Any, chance: float, seconds: float, points: Sequence[str], luck: random.Random | None = None
) -> None:
    """Have this process die, with a chance: after some time, or at a point of the code."""
    luck = luck or random.Random()
    if luck.random() >= chance:
        return

    def die() -> None:
        if deaths is not None:
            with deaths.get_lock():
                deaths.value += 1
        os.kill(os.getpid(), signal.SIGKILL)

    if luck.random() < 0.5:
        timer = threading.Timer(luck.uniform(0.05, seconds), die)
        timer.daemon = True
        timer.start()
        return
    point, times = luck.choice(points), luck.randint(1, 2)
    reached = 0

    def reach(here: str) -> None:
        nonlocal reached
        reached += here == point
        if reached == times:
            die()

    faults.reach = reach  # type: ignore[assignment]  # of this process
