"""Days by what records say themselves: a record that came a week late is in its day, however the run is cut and wherever it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
import topic_world
from real_servers.kafka import Broker
from topic_sender import Sender
from topic_world import produce
from worlds import SPARK

import backfill_assets as ba
from backfill_assets import faults
from backfill_assets.extraction.refusals import ExtractionRefused
from backfill_assets.ingestion.archived_topics import land_archive
from backfill_assets.ingestion.landing import land
from backfill_assets.ingestion.topic_ranges import Wanted
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.initialise import initialise
from benchmarks.late_scans import DAYS, FIRST, LANDED, LATEST, PRODUCT, SCANS, TOPIC, expected, records
from resources.settings import load_settings
from resources.spark.chunk_work import ThisProcess

pytestmark = pytest.mark.servers
COMPLETE = FIRST + timedelta(days=DAYS) - LATEST - timedelta(days=2)
"""The last day of which no record may come any more."""
MANIFEST = """
runId: {run_id}
kind: {kind}
requestedBy: ana
reason: the days that are complete
source: {{table: {landed}}}
transform: {{name: late_scans, version: "1"}}
target:
  table: {target}
  publishRange: {{start: {start}, end: {end}}}
limits: {{maxChunksPerJob: {together}}}
development: true
"""


def said_at(record: ba.KafkaRecord) -> datetime | None:
    """Read when a record is of: its value says it, or nothing."""
    return datetime.fromisoformat(record.value.decode()) if record.value else None


@pytest.fixture
def name(broker: Broker) -> str:
    name = f"t{uuid.uuid4().hex[:12]}"
    broker.create(name, settings={"retention.ms": "-1"})
    return name


def opened(
    home: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, *topics: tuple[ba.InputTable, ba.Topic]
) -> Platform:
    """Return an installation with topics, in which this process does what a worker would."""
    monkeypatch.setattr(Platform, "workers", ThisProcess())
    servers = {topic.name: {"bootstrap_servers": broker.bootstrap_servers} for _, topic in topics}
    product = replace(topic_world.PRODUCT, inputs=[one for one, _ in topics], topics=[topic for _, topic in topics])
    platform = Platform.of(load_settings(home=home, topics=servers), [product])
    initialise(platform)
    return platform


def times(platform: Platform, table: str) -> list[datetime | None]:
    rows = platform.lakehouse.table(table).scan().to_arrow().sort_by("log_offset")
    return rows["event_time"].to_pylist()


AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
TIMED = replace(topic_world.TABLE, model=ba.TimedTopicRecord)


def test_a_record_without_an_answer_is_named_and_nothing_is_landed(
    broker: Broker, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(broker.bootstrap_servers, name, [(None, AT.isoformat().encode()), (None, b"p4ss-1b2c")])
    topic = replace(topic_world.TOPIC, topic=name, event_time=said_at)
    platform = opened(tmp_path, broker, monkeypatch, (TIMED, topic))
    with pytest.raises(ExtractionRefused, match="at offset 1") as refused:
        land(platform, topic, Wanted(new=True))
    assert "event_time raises ValueError (tests/test_event_days.py" in str(refused.value)
    assert "p4ss-1b2c" not in str(refused.value)
    assert platform.lakehouse.snapshot_id(TIMED.name) is None


def test_a_table_that_was_landed_without_gets_its_instants_as_an_archive_of_another(
    broker: Broker, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(broker.bootstrap_servers, name, [(None, AT.isoformat().encode()), (b"k", None)])
    plain = replace(topic_world.TOPIC, topic=name)
    other = replace(TIMED, name="bronze.orders_timed")
    timed = replace(plain, name="timed", table=other.name, event_time=said_at)
    platform = opened(tmp_path, broker, monkeypatch, (topic_world.TABLE, plain), (other, timed))
    land(platform, plain, Wanted(new=True))
    land_archive(platform, timed, plain.table)
    assert times(platform, other.name) == [AT, None]
    produce(broker.bootstrap_servers, name, [(None, (AT + timedelta(hours=1)).isoformat().encode())])
    land(platform, timed, Wanted(new=True))
    assert times(platform, other.name) == [AT, None, AT + timedelta(hours=1)]
    done = land(platform, timed, Wanted(start={0: 0}, until={0: 3}), prove_overlap=True)
    assert done.proven is not None
    assert done.proven.rows == 3


def test_a_table_that_gets_the_column_has_it_from_then_on(
    broker: Broker, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(broker.bootstrap_servers, name, [(None, AT.isoformat().encode())])
    plain = replace(topic_world.TOPIC, topic=name)
    land(opened(tmp_path, broker, monkeypatch, (topic_world.TABLE, plain)), plain, Wanted(new=True))
    timed = replace(plain, event_time=said_at)
    platform = opened(tmp_path, broker, monkeypatch, (TIMED, timed))
    produce(broker.bootstrap_servers, name, [(None, AT.isoformat().encode())])
    land(platform, timed, Wanted(new=True))
    assert times(platform, TIMED.name) == [None, AT]


class Site:
    """An installation of its own processes beside a broker."""

    def __init__(self, home: Path, broker: Broker) -> None:
        self.home = home
        self._environment = os.environ | {
            "BACKFILL_HOME": str(home),
            "BACKFILL_PRODUCTS": json.dumps(["benchmarks.late_scans:PRODUCT"]),
            "BACKFILL_SPARK": json.dumps(SPARK),
            "BACKFILL_TOPICS__LATE__BOOTSTRAP_SERVERS": broker.bootstrap_servers,
        }
        self.run("init")

    def run(self, *words: str, code: int = 0, fault: str = "") -> str:
        command = [sys.executable, "-m", "backfill_assets.cli.command", *words]
        environment = self._environment | ({faults.VARIABLE: fault} if fault else {})
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    @property
    def platform(self) -> Platform:
        return Platform.of(load_settings(home=self.home), [PRODUCT])

    def planned(self, run_id: str, start: date, end: date, together: int = 240) -> None:
        path = self.home.parent / f"{run_id}.yaml"
        kind = "RESTATEMENT" if self.platform.ledger.accepted(SCANS) else "BACKFILL"
        what = {"run_id": run_id, "kind": kind, "landed": LANDED, "target": SCANS}
        path.write_text(MANIFEST.format(start=start, end=end, together=together, **what))
        self.run("plan", str(path))
        self.run("approve", run_id, "--by", "bob")

    def digests(self, run_id: str) -> Mapping[str, str | None]:
        return {one.chunk: one.digest for one in self.platform.ledger.chunks(run_id)}


@pytest.fixture
def at(tmp_path: Path, broker: Broker) -> Site:
    if TOPIC in broker.admin().list_topics(timeout=10).topics:
        broker.delete(TOPIC)
    broker.create(TOPIC, 3, {"retention.ms": "-1"})  # the records' times are long over
    return Site(tmp_path / "home", broker)


def test_late_records_are_in_their_days_in_every_chunking_and_after_kills(at: Site, broker: Broker) -> None:
    sender = Sender(broker.bootstrap_servers, TOPIC)
    sender.send(records(9_000, 3, 5))
    at.run("land", "late", "--new")
    late = [one for one in sender.committed if one.value and one.at - _said(one.value) > timedelta(days=2)]
    assert len(late) > 1_000, "records that came more than a day after their day"
    at.planned("together", FIRST, COMPLETE)
    at.run("run", "together")
    at.planned("alone", FIRST, COMPLETE, together=1)
    at.run("run", "alone", fault="staging.recorded", code=-signal.SIGKILL)
    staged = [one.chunk for one in at.platform.ledger.chunks("alone") if one.rows is not None]
    assert 0 < len(staged) < len(at.digests("together")), "it was killed amid its batches"
    at.run("run", "alone")
    half = FIRST + (COMPLETE - FIRST) // 2
    at.planned("early", FIRST, half, together=3)
    at.planned("later", half + timedelta(days=1), COMPLETE, together=3)
    at.run("run", "early")
    at.run("run", "later")
    together = at.digests("together")
    assert at.digests("alone") == together
    assert {**at.digests("early"), **at.digests("later")} == together
    at.run("publish", "together")
    rows = at.platform.lakehouse.table(SCANS).scan().to_arrow().to_pylist()
    found = {(row["day"], row["scan_id"]): row["grams"] for row in rows}
    assert len(found) == len(rows)
    assert found == expected(sender.committed, FIRST, COMPLETE)
    # what comes for a published day changes nothing, and the doctor names the day until somebody restates it
    late = [one for one in records(400, 1, 6) if one.value and _said(one.value).date() == FIRST]
    sender.send(late, aborts=0)
    at.run("land", "late", "--new")
    (named,) = [one for one in examine(at.platform) if one.kind == "late-rows"]
    assert str(FIRST) in named.what


def _said(value: bytes) -> datetime:
    return datetime.fromisoformat(json.loads(value)["at"])
