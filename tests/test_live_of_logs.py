"""LIVE of a table whose source is a log: micro-runs from where the ledger says, beside backfills of what is before the cut line."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from worlds import SPARK, World, killed_at

import backfill_assets as ba
from backfill_assets.audit.verification import verify
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.initialise import initialise
from backfill_assets.publication.publisher import publish
from backfill_assets.schedules.live import LAUNCHABLE, positions_read, tick
from benchmarks import clicks
from benchmarks.clicks import CLICKS, DAILY, MARCH, TARGET, click, land, manifest
from manifests.log_ranges import LogRange
from manifests.plan import Plan

CUT = MARCH + timedelta(days=2)
LIVE = replace(TARGET, live=ba.LivePolicy(transform_version="1", rewind_days=0, begins_on=CUT, development=True))


class Tail(World):
    """An installation with a log of two partitions, whose records come out of order by less than the declared disorder."""

    ends: list[int]
    records: list[dict[str, Any]]
    random: Random

    def land(self, until: float) -> None:
        """Land what both partitions have up to a day, a record every fourteen minutes or so."""
        rows, ranges = [], []
        for partition in (0, 1):
            start = self.ends[partition]
            end = max(start, int(until * 100))
            ranges.append(LogRange(partition, start, end))
            self.ends[partition] = end
            for offset in range(start, end):
                behind = self.random.random() * 0.08  # of two hours of disorder
                page = self.random.choice(("home", "help", "cart"))
                rows.append(click(partition, offset, max(0.0, offset / 100 - behind), page))
        self.records += rows
        land(self.platform, f"until-{until}", rows, ranges)

    def ticked(self) -> Plan | None:
        record = tick(self.platform, LIVE).record
        if record is None:
            return None
        if record.state in LAUNCHABLE:
            self.stage(record)
        publish(self.platform, record.run_id)
        return record.plan

    def expected(self, first: date, last: date) -> Counter[tuple[date, str]]:
        found = Counter((row["said_at"].date(), row["page"]) for row in self.records)
        return Counter({key: number for key, number in found.items() if first <= key[0] <= last})

    def counts(self) -> Counter[tuple[date, str]]:
        rows = self.platform.lakehouse.table(DAILY).scan().to_arrow().to_pylist()
        return Counter({(row["day"], row["page"]): row["clicks"] for row in rows})

    def mark(self) -> date:
        found = self.platform.ledger.watermarks.current(DAILY)
        assert found is not None
        return found.complete_until


@pytest.fixture
def tail(tmp_path: Path) -> Tail:
    platform = clicks.opened(tmp_path / "home", target=LIVE, spark=SPARK)
    initialise(platform)
    found = Tail(platform, tmp_path / "home")
    found.ends, found.records, found.random = [0, 0], [], Random(20)
    return found


@pytest.mark.parametrize("first", ["history", "live"])
def test_live_and_history_hand_over_in_either_order(tail: Tail, first: str) -> None:
    tail.land(3.5)
    if first == "history":
        tail.published(manifest("history", 1, 2))
    plan = tail.ticked()
    assert plan is not None
    # of the last day that it publishes more may come: the target is complete up to the one before
    assert (plan.publish_range.start, plan.publish_range.end) == (CUT, MARCH + timedelta(days=3))
    assert tail.mark() == CUT
    assert positions_read(tail.platform, LIVE) == {CLICKS: {0: 350, 1: 350}}
    assert tail.ticked() is None, "nothing new has come"
    if first == "live":
        tail.published(manifest("history", 1, 2))
    assert tail.counts() == tail.expected(MARCH, MARCH + timedelta(days=3))
    tail.land(5.2)
    plan = tail.ticked()
    assert plan is not None
    assert plan.publish_range.start == MARCH + timedelta(days=3), "it goes on with the day that was not complete"
    assert plan.logs[0].ranges == (LogRange(0, 0, 520), LogRange(1, 0, 520))
    assert tail.counts() == tail.expected(MARCH, MARCH + timedelta(days=5))
    assert verify(tail.platform, data=True).everything == []
    assert examine(tail.platform) == []


@pytest.mark.parametrize("point", ["planning.recorded", "staging.written", "publishing.committed"])
def test_a_micro_run_that_dies_is_gone_on_with_from_the_same_position(
    tail: Tail, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail.land(3.5)
    tail.published(manifest("history", 1, 2))
    tail.ticked()
    tail.land(4.5)
    with killed_at(point, monkeypatch):
        tail.ticked()
    before = positions_read(tail.platform, LIVE)
    assert before == {CLICKS: {0: 350, 1: 350}}, "accepted is what is recorded, and nothing was"
    tail.land(4.9)  # comes while the run is under way, and waits for the next
    for _ in range(2):
        tail.ticked()
    assert positions_read(tail.platform, LIVE) == {CLICKS: {0: 490, 1: 490}}
    assert tail.counts() == tail.expected(MARCH, MARCH + timedelta(days=4))
    assert tail.ticked() is None


def test_a_tail_in_many_small_landings_ends_as_one(tail: Tail) -> None:
    tail.land(2.6)
    tail.published(manifest("history", 1, 2))
    for number in range(27, 60, 4):
        tail.land(number / 10)
        tail.ticked()
        positions = positions_read(tail.platform, LIVE)[CLICKS]
        assert positions == {0: tail.ends[0], 1: tail.ends[1]}
        assert tail.counts() == tail.expected(MARCH, MARCH + timedelta(days=(number - 1) // 10))
        complete = (tail.ends[0] - 1) / 100 - 2 / 24 - 0.08
        assert tail.mark() >= MARCH + timedelta(days=int(complete) - 1)
