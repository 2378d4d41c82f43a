"""Landings that are killed, at every point and at any moment: the same command ends as if nobody had killed it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from real_servers.kafka import Broker
from topic_world import TopicSite, numbered, produce, site, transaction

import backfill_assets as ba
from backfill_assets.operations.garbage import collect, find
from backfill_assets.operations.garbage_found import SCRATCH
from manifests.log_ranges import gaps, overlaps
from resources.lakehouse.history import referenced

pytestmark = pytest.mark.servers

LANDS = """
import sys
from pathlib import Path
import pytest, backfill_assets as ba
from topic_world import site
at = site(Path(sys.argv[1]), sys.argv[2], sys.argv[3], pytest.MonkeyPatch(), limits=ba.TopicLimits(positions=int(sys.argv[4])))
print("ready", flush=True)
at.land()
print("done", flush=True)
"""
POSITIONS = 300


def lands(home: Path, broker: Broker, name: str, *, point: str = "", seconds: float | None = None) -> int:
    """Land whatever is new in a process of its own, killed at a point or so many seconds after it begins; return its exit code."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)} | ({"BACKFILL_FAULT": point} if point else {})
    arguments = [sys.executable, "-c", LANDS, str(home), broker.bootstrap_servers, name, str(POSITIONS)]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if seconds is not None:
            time.sleep(seconds)
            process.kill()
        process.stdout.read()
    return process.returncode


@pytest.fixture
def name(broker: Broker) -> str:
    name = f"t{uuid.uuid4().hex[:12]}"
    broker.create(name, partitions=3)
    for partition in range(3):
        produce(broker.bootstrap_servers, name, numbered(0, 300), partition=partition)
        ends = transaction(
            broker.bootstrap_servers,
            name,
            numbered(300, 20),
            partition=partition,
            end="abort",
            name=f"{name}-{partition}",
        )
        del ends
    return name


def require_as_if_never_killed(at: TopicSite, whole: TopicSite) -> None:
    whole.land()
    assert at.rows().equals(whole.rows())
    assert gaps(at.ranges) == overlaps(at.ranges) == ()
    table = at.platform.lakehouse.table(at.topic.table)
    live = referenced(table, {one.snapshot_id for one in table.snapshots()})
    later = at.platform.ledger.now() + timedelta(days=2)
    found = [one for one in find(at.platform, at=later) if one.table == at.topic.table]
    assert not any(item.file.path in live for one in found for item in one.files)
    assert {item.kind for one in found for item in one.files} <= {SCRATCH}
    collect(at.platform, found, by="somebody", at=later)
    assert [one for one in find(at.platform, at=later) if one.files and one.table == at.topic.table] == []
    assert at.rows().equals(whole.rows())


@pytest.mark.parametrize("point", ["landing.resolved", "landing.read", "landing.committed"])
def test_a_landing_that_is_killed_goes_on(
    broker: Broker, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    at = site(tmp_path / "home", broker.bootstrap_servers, name, monkeypatch)
    assert lands(tmp_path / "home", broker, name, point=point) == -9
    assert len(at.loads) == (1 if point == "landing.committed" else 0)
    assert lands(tmp_path / "home", broker, name) == 0
    assert len(at.loads) == 4
    require_as_if_never_killed(at, site(tmp_path / "whole", broker.bootstrap_servers, name, monkeypatch))


@pytest.mark.parametrize("seed", range(int(os.environ.get("TOPIC_KILLS", "2"))))
def test_a_landing_that_is_killed_at_any_moment_and_again_goes_on(
    broker: Broker, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    moments = random.Random(seed)
    at = site(tmp_path / "home", broker.bootstrap_servers, name, monkeypatch)
    for _ in range(6):
        lands(tmp_path / "home", broker, name, seconds=moments.uniform(0.0, 2.5))
    assert lands(tmp_path / "home", broker, name) == 0
    whole = site(tmp_path / "whole", broker.bootstrap_servers, name, monkeypatch, limits=ba.TopicLimits())
    require_as_if_never_killed(at, whole)
