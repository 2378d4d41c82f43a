"""Readers go over and back while LIVE writes both tables, and processes are killed at any moment: nobody reads a mixture."""

from __future__ import annotations

import multiprocessing
import queue
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from migration_world import Moving, make
from movers import GROWS_FROM, Seen, act, content, grow, live, live_once, operate, read
from worlds import killed_at

from backfill_assets.migration.reading import where_to_read
from backfill_assets.migration.steps import Taken, advance, planned, standing
from backfill_assets.publication.publisher import publish
from benchmarks.points import MIGRATION, NAME, NEW, OLD, opened, written
from manifests.lifecycle import RunState
from manifests.migration_steps import Side, Step

CONSUMERS = (None, "billing")
_IMPORTED_ONCE = [
    "benchmarks.points",
    "backfill_assets.schedules.live",
    "backfill_assets.migration.reading",
    "backfill_assets.migration.steps",
    "backfill_assets.publication.publisher",
]
"""What every process needs; modules of the tests are not found where that is looked for."""


def compared(home: Path) -> Moving:
    """Return an installation whose migration has come to COMPARED; Spark has nothing to do but what the dual reads do."""
    world = make(home, by_spark=False)
    planned(world.platform, MIGRATION, by="ana", reason="the new table is by day")
    for expected in (Step.SHADOWED, Step.CAUGHT_UP):
        done = _advanced(world)
        for one in done.runs:
            assert one.record is not None, one.why
            record = one.record
            world.platform.ledger.decide(
                record.run_id, approve=True, by="bob", comment="", self_approval=False, plan_hash=record.plan_hash
            )
            written(world.platform, world.platform.ledger.run(record.run_id))
            publish(world.platform, record.run_id)
        done = done if done.moved else _advanced(world)
        assert done.step.step is expected, done.checks
    _agreed(world)
    done = _advanced(world)
    assert done.step.step is Step.COMPARED, done.checks
    return world


def _advanced(world: Moving) -> Taken:
    return advance(world.platform, MIGRATION, by="bob", reason="")


def _agreed(world: Moving) -> None:
    """Put on record what two dual reads would find of tables that are the same; `test_migration` makes real ones."""
    platform = world.platform
    assert world.said(OLD) == world.said(NEW)
    snapshots = tuple(platform.lakehouse.snapshot_id(table) or 0 for table in (OLD, NEW))
    for _ in range(MIGRATION.readings):
        platform.ledger.migrations.record_reading(
            NAME,
            standing(platform, MIGRATION).number,
            snapshots=(snapshots[0], snapshots[1]),
            compared=len(world.said(OLD)),
            disagreeing=0,
            found={},
            by="ana",
        )


class Campaign:
    """The processes of a campaign, and what they told."""

    def __init__(self, world: Moving, *, dying: float) -> None:
        self.home = world.home
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(_IMPORTED_ONCE)
        self.stop, self.loads = self.context.Event(), self.context.Value("i", 0)
        self.deaths, self.told, self.seen = self.context.Value("i", 0), self.context.Queue(), self.context.Queue()
        self.dying = dying
        self.readings: list[tuple[str | None, Seen]] = []
        self.kills = 0
        self.live: dict[str, Any] = {}
        self.others = [self._start(grow, self.home, self.stop, self.loads)]
        self.others += [self._start(read, self.home, consumer, self.stop, self.seen) for consumer in CONSUMERS]
        self.keep_live()

    def _start(self, what: Any, *arguments: Any) -> Any:
        process = self.context.Process(target=what, args=arguments)
        process.start()
        return process

    def keep_live(self) -> None:
        """Start LIVE of each table again if it was killed, or has ended."""
        for table in (OLD, NEW):
            if table not in self.live or not self.live[table].is_alive():
                self.live[table] = self._start(live, self.home, table, self.stop, self.deaths, self.dying)

    def killed(self, what: str, consumer: str | None, luck: random.Random) -> None:
        """Have an operator act who is killed; it may have done it by then, or not."""
        process = self._start(operate, self.home, what, consumer, self.told, luck.randrange(2**32))
        while process.is_alive():
            self.keep_live()
            self._take_in()
            process.join(0.1)
        self.kills += process.exitcode == -signal.SIGKILL

    def _take_in(self) -> None:
        while True:
            try:
                self.readings.append(self.seen.get_nowait())
            except queue.Empty:
                return

    def end(self) -> None:
        """Stop everybody."""
        self.stop.set()
        processes = [*self.others, *self.live.values()]
        until = time.monotonic() + 60
        while any(process.is_alive() for process in processes) and time.monotonic() < until:
            self._take_in()  # whoever has something to tell ends once it is taken
            time.sleep(0.05)
        for process in processes:
            process.join(1)
        self._take_in()
        self.kills += self.deaths.value


def _went(world: Moving, campaign: Campaign, *, kills: int, undos: int, seed: int) -> list[str]:
    """Let readers go over and back until there were enough kills and undos: each command again after its process was killed."""
    luck = random.Random(seed)
    done: list[str] = []
    until = time.monotonic() + 420
    while time.monotonic() < until:
        campaign.keep_live()
        if campaign.kills + campaign.deaths.value >= kills and done.count("undo") >= undos:
            break
        step = world.platform.ledger.migrations.newest(NAME)
        assert step is not None
        over = step.step is Step.CUT_OVER
        consumer = None if over or luck.random() < 0.5 else "billing"
        back = over or (consumer is not None and step.readers.side(consumer, None) is Side.NEW)
        what = "undo" if back else "advance"
        if campaign.kills < kills / 3:
            campaign.killed(what, consumer, luck)
            now = world.platform.ledger.migrations.newest(NAME)
            if now is not None and now.number > step.number:
                done.append(what)
                continue
        done.append(act(world.platform, what, consumer, campaign.keep_live))
    return done


def _require_no_mixture(readings: Sequence[tuple[str | None, Seen]], loads: int) -> set[str]:
    """Hold what each reader got against every content that there was: it is one of them, and never an older one than before."""
    contents = {tuple(content(number)): number for number in range(loads + 2)}
    tables = set()
    for consumer in CONSUMERS:
        newest = edition = 0
        for one in (seen for who, seen in readings if who == consumer):
            assert one.rows in contents, (consumer, one, [row for row in one.rows if row[2] >= GROWS_FROM])
            assert contents[one.rows] >= newest, (consumer, one.edition, contents[one.rows], newest)
            assert one.edition >= edition
            newest, edition = contents[one.rows], one.edition
            tables.add(one.table)
    return tables


def campaign_of(home: Path, *, kills: int, undos: int, seed: int) -> None:
    world = compared(home)
    campaign = Campaign(world, dying=0.75)
    try:
        done = _went(world, campaign, kills=kills, undos=undos, seed=seed)
    finally:
        campaign.end()
    assert set(done) <= {"advance", "undo"}, done
    print(
        f"{campaign.kills} kills, {done.count('undo')} undos, {len(campaign.readings)} reads, {campaign.loads.value} loads"
    )
    assert campaign.kills >= kills
    assert done.count("undo") >= undos
    assert _require_no_mixture(campaign.readings, campaign.loads.value) == {OLD, NEW}
    # left alone, LIVE takes in what is left, and both tables say the same
    platform = opened(home)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if not (live_once(platform, OLD) | live_once(platform, NEW)) and world.said(OLD) == world.said(NEW):
            break
    grown = [row for row in world.said(NEW) if row[2] >= GROWS_FROM]
    assert grown == content(campaign.loads.value) == [row for row in world.said(OLD) if row[2] >= GROWS_FROM]
    assert world.said(OLD) == world.said(NEW)
    steps = platform.ledger.migrations.steps(NAME)
    assert [one.number for one in steps] == list(range(1, len(steps) + 1))
    standing(platform, MIGRATION)  # completes the evidence of the last step
    assert {path.stem for path in platform.evidence.records("mg").glob("*.json")} == {
        f"{NAME}-{one.number:06}" for one in steps
    }
    assert all(run.state is not RunState.VALIDATED for run in platform.ledger.runs())


@pytest.mark.parametrize("point", ["migration.held", "migration.checked", "migration.taken"])
def test_a_step_that_was_killed_is_there_once_after_the_same_command(
    at_comparison: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    platform = opened(at_comparison)
    before = len(platform.ledger.migrations.steps(NAME))
    for what, step, side in (("advance", Step.CUT_OVER, Side.NEW), ("undo", Step.COMPARED, Side.OLD)):
        before += 1
        with killed_at(point, monkeypatch):
            assert act(platform, what, None) == "killed"
        there = where_to_read(platform, NAME)
        (part,) = there.parts
        assert (part.side is side) is (point == "migration.taken")  # gone over, or not: nothing between
        if point != "migration.taken":
            assert act(platform, what, None) == what
        newest = standing(platform, MIGRATION)  # completes the evidence, as any command does
        assert (newest.number, newest.step, newest.readers.everybody) == (before, step, side)
        assert (platform.evidence.records("mg") / f"{NAME}-{before:06}.json").is_file()


@pytest.fixture(scope="module")
def at_comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compared(tmp_path_factory.mktemp("compared") / "home").home


@pytest.mark.exhaustive
def test_fifty_kills_and_twenty_undos_in_the_middle_of_a_cut_over_under_live_writes(tmp_path: Path) -> None:
    campaign_of(tmp_path / "home", kills=50, undos=20, seed=2)
