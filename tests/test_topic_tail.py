"""A topic's live tail beside its history: landings and micro-runs of LIVE are killed at any moment, and nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from real_servers.kafka import Broker
from topic_sender import Sender, read_topic
from worlds import SPARK

from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.schedules.live import positions_read
from benchmarks.parcels import FIRST, LANDED, PRODUCT, SCANS, TARGET, TOPIC, expected, records
from manifests.log_ranges import gaps, joined, overlaps
from resources.settings import load_settings

pytestmark = pytest.mark.servers
KILLS = int(os.environ.get("BACKFILL_TEST_TAIL_KILLS", "4"))
"""Commands that are killed in the campaign."""
_ENDS = 5.0
CUT = FIRST + timedelta(days=2)
HISTORY = """
runId: history
kind: BACKFILL
requestedBy: ana
reason: the days before the cut line
source: {{table: {landed}}}
transform: {{name: scans, version: "1"}}
target:
  table: {target}
  publishRange: {{start: {start}, end: {end}}}
development: true
"""


class Tail:
    """An installation of its own processes beside a broker."""

    def __init__(self, home: Path, broker: Broker, topic: str) -> None:
        self.home = home
        self.topic = topic
        self.seconds: dict[str, float] = {}
        self._environment = os.environ | {
            "BACKFILL_HOME": str(home),
            "BACKFILL_PRODUCTS": json.dumps(["benchmarks.parcels:PRODUCT"]),
            "BACKFILL_SPARK": json.dumps(SPARK),
            "BACKFILL_TOPICS__PARCELS__BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        }
        self.run("init")

    @property
    def platform(self) -> Platform:
        return Platform.of(load_settings(home=self.home), [PRODUCT])

    def begin(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "backfill_assets.cli.command", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=self._environment, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def run(self, *words: str) -> str:
        """Run a command to its end; how long the first of its name has taken is kept."""
        began = time.monotonic()
        process = self.begin(*words)
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
        self.seconds.setdefault(words[0], time.monotonic() - began)
        return said

    def killed(self, share: float, *words: str) -> bool:
        """Begin a command and kill it, with all that it has started, after a share of its time, unless it is over before."""
        process = self.begin(*words)
        try:
            process.communicate(timeout=share * self.seconds[words[0]])
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return True
        return False

    def published(self) -> dict[str, tuple[Any, ...]]:
        rows = self.platform.lakehouse.table(SCANS).scan().to_arrow().to_pylist()
        found = {
            row["scan_id"]: (row["day"], row["parcel"], row["depot"], row["grams"], row["scanned_at"]) for row in rows
        }
        assert len(found) == len(rows), "a scan is there once"
        return found

    def positions(self) -> Mapping[int, int]:
        return positions_read(self.platform, TARGET).get(LANDED, {})

    def history(self, folder: Path) -> None:
        """Publish the days before the cut line, as people do."""
        path = folder / "history.yaml"
        path.write_text(HISTORY.format(landed=LANDED, target=SCANS, start=FIRST, end=CUT - timedelta(days=1)))
        self.run("plan", str(path))
        self.run("approve", "history", "--by", "bob")
        self.run("run", "history")
        self.run("publish", "history")


@pytest.fixture
def tail(tmp_path: Path, broker: Broker) -> Tail:
    if TOPIC in broker.admin().list_topics(timeout=10).topics:
        broker.delete(TOPIC)
    broker.create(TOPIC, 3, {"retention.ms": "-1"})  # the records' times are long over
    return Tail(tmp_path / "home", broker, TOPIC)


@pytest.mark.parametrize("first", ["history", "live"])
def test_history_and_tail_hand_over_in_either_order_under_kills(
    tail: Tail, broker: Broker, tmp_path: Path, first: str
) -> None:
    sender, random, kills = Sender(broker.bootstrap_servers), Random(len(first)), 0
    sender.send(records(6_000, 3, 1, days=3.5))
    groups = broker.groups()
    tail.run("land", "parcels", "--new")
    if first == "history":
        tail.history(tmp_path)
    tail.run("live", SCANS, "--once")
    began, days, number = time.monotonic(), 3.5, 2
    positions: dict[int, int] = {}
    while kills < KILLS // 2 or days < _ENDS:
        if days < _ENDS:
            sender.send(records(800, 3, number, days=0.5, begins=days))
            days, number = days + 0.5, number + 1
        for words in (("land", "parcels", "--new"), ("live", SCANS, "--once")):
            kills += tail.killed(random.uniform(0.1, 1.3), *words)
        now = dict(tail.positions())
        assert all(now.get(one, 0) >= until for one, until in positions.items()), "a position never goes back"
        positions = now
    for _ in range(2):  # what is under way is gone on with, and then comes what is new
        tail.run("land", "parcels", "--new")
        tail.run("live", SCANS, "--once")
    if first == "live":
        tail.history(tmp_path)
    _require_whole(tail, broker, sender, FIRST)
    assert groups == broker.groups()
    print(
        f"{kills} kills, {len(sender.committed):,} records and {sender.aborted:,} of aborted transactions in "
        f"{len(tail.platform.lakehouse.landed_loads(LANDED))} landings: {len(tail.published()):,} scans, {time.monotonic() - began:.0f} s"
    )


def _require_whole(tail: Tail, broker: Broker, sender: Sender, first: date) -> None:
    """Hold what was landed and published against what the producer knows to have committed."""
    platform = tail.platform
    read = sorted(message.value() for message in read_topic(broker.bootstrap_servers, TOPIC))
    assert read == sorted(one.value or b"" for one in sender.committed)
    landed = [one.range for load in platform.lakehouse.landed_loads(LANDED) for one in load.landed.ranges]
    assert gaps(landed) == overlaps(landed) == ()
    assert {one.partition: one.until for one in joined(landed)} == tail.positions()
    table = platform.lakehouse.table(LANDED).scan(selected_fields=("log_partition", "log_offset", "record_value"))
    rows = table.to_arrow().to_pylist()
    assert len({(row["log_partition"], row["log_offset"]) for row in rows}) == len(rows) == len(sender.committed)
    assert sorted(row["record_value"] for row in rows) == sorted(one.value or b"" for one in sender.committed)
    last = max(one.at for one in sender.committed).date()
    assert tail.published() == expected(sender.committed, first, last)
    assert verify(platform, data=True).everything == []
    assert examine(platform) == []
