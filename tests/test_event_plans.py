"""Plans over topics by what records say: what has no instant is counted, and watermarks go by the declared time, however loads are cut."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from real_servers.kafka import Broker
from topic_world import Record, produce

import backfill_assets as ba
from backfill_assets.extraction.refusals import ExtractionRefused
from backfill_assets.ingestion.archived_topics import land_archive
from backfill_assets.ingestion.landing import Landed, land
from backfill_assets.ingestion.table_loads import undo_load
from backfill_assets.ingestion.topic_ranges import Wanted
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.resolve import preview
from benchmarks.late_scans import LANDED, LOG, PRODUCT, SCANNERS, SCANS, said_at
from manifests.chunks import EVER
from manifests.errors import PlanRefused
from manifests.log_pins import PinnedLog
from manifests.reading import manifest_from
from resources.lakehouse.landed_logs import landed_loads
from resources.settings import load_settings
from resources.spark.chunk_work import ThisProcess

pytestmark = pytest.mark.servers
SENT = datetime(2026, 10, 1, tzinfo=UTC)
WEEK = ba.Lateness(disorder=timedelta(days=7))
TOMBSTONE: Record = (b"k", None)


def on(day: int, month: int = 3, year: int = 2026) -> datetime:
    return datetime(year, month, day, 12, tzinfo=UTC)


def scans(*instants: datetime) -> list[Record]:
    said = [json.dumps({"scan_id": f"s{one:%m%d}", "at": one.isoformat(), "grams": 5}) for one in instants]
    return [(b"k", one.encode()) for one in said]


def raises(record: ba.KafkaRecord) -> datetime | None:
    raise ValueError(record)


class Site:
    """An installation with a topic of a real broker, in which this process does what a worker would."""

    def __init__(self, home: Path, broker: Broker, name: str) -> None:
        self._home, self._servers, self._name = home, broker.bootstrap_servers, name

    def declared(
        self,
        *,
        time: str = "event_time",
        lateness: ba.Lateness | None = WEEK,
        event_time: Callable[[ba.KafkaRecord], datetime | None] | None = said_at,
    ) -> None:
        """Declare the topic so, and open the installation with that."""
        model = ba.TopicRecord if event_time is None else ba.TimedTopicRecord
        place = ba.TOPIC_PLACE if lateness is None else replace(ba.TOPIC_PLACE, lateness=lateness, time=time)
        table, plain = replace(LOG, model=model, log=place), replace(LOG, name="bronze.plain_log", model=ba.TopicRecord)
        plain = replace(plain, log=ba.TOPIC_PLACE)
        self.topic = replace(SCANNERS, topic=self._name, event_time=event_time)
        self.plain = replace(SCANNERS, name="plain", topic=self._name, table=plain.name, event_time=None)
        product = replace(PRODUCT, inputs=(table, plain), topics=(self.topic, self.plain))
        if event_time is None:  # nothing reads the table by what its records say yet
            product = replace(product, targets=(), code=())
        servers = {one: {"bootstrap_servers": self._servers} for one in ("late", "plain")}
        self.platform = Platform.of(load_settings(home=self._home, topics=servers), [product])
        initialise(self.platform)

    def send(self, records: Sequence[Record], partition: int = 0, sent: datetime = SENT) -> None:
        produce(self._servers, self._name, records, partition=partition, time=int(sent.timestamp() * 1000))

    def land(self, **more: Any) -> Landed:
        return land(self.platform, self.topic, Wanted(new=True), **more)

    def pin(self, first: int = 2, last: int = 2, **log: Any) -> PinnedLog:
        """Plan days of March, and return what the plan says of the log."""
        data = {
            "runId": "run", "kind": "BACKFILL", "requestedBy": "ana", "reason": "the days that are complete",
            "source": {"table": LANDED} | ({"log": log} if log else {}), "transform": {"name": "late_scans", "version": "1"},
            "target": {"table": SCANS, "publishRange": {"start": f"2026-03-{first:02}", "end": f"2026-03-{last:02}"}},
            "development": True,
        }  # fmt: skip
        (found,) = preview(self.platform, manifest_from(data)).logs
        return found


@pytest.fixture
def at(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(Platform, "workers", ThisProcess())
    name = f"t{uuid.uuid4().hex[:12]}"
    broker.create(name, 2, {"retention.ms": "-1"})
    return Site(tmp_path / "home", broker, name)


EVENTS = scans(*(on(day) for day in range(2, 12)))


def test_a_load_of_tombstones_alone_is_counted_and_hinders_no_plan(at: Site) -> None:
    at.declared(time="record_time")
    at.send(EVENTS)
    at.send([TOMBSTONE], partition=1)
    at.land()
    assert at.pin(2, 11).untimed == 1
    at.send([TOMBSTONE])
    at.land()
    assert at.pin(2, 11).untimed == 2


def test_a_table_that_was_landed_before_it_had_the_column_is_planned_and_its_records_are_counted(at: Site) -> None:
    at.declared(event_time=None, lateness=None)
    at.send(EVENTS[:8])
    at.land()
    at.declared(time="record_time", lateness=ba.Lateness(ba.Watermark.BY_TIME, disorder=timedelta(days=7)))
    at.send([*EVENTS[8:], TOMBSTONE])
    at.land()
    assert at.pin(10, 11).untimed == 9
    at.send([TOMBSTONE], partition=1)
    at.land()
    assert at.pin(10, 11, **{"from": {"0": 8, "1": 0}}).untimed == 10


@pytest.mark.parametrize("watermark", [ba.Watermark.BY_TIME, ba.Watermark.BY_PARTITION])
def test_one_load_and_parts_of_it_are_judged_by_the_declared_time(at: Site, watermark: ba.Watermark) -> None:
    at.declared(lateness=ba.Lateness(watermark, disorder=timedelta(days=7)), time="event_time")
    for partition in range(2):
        at.send(EVENTS, partition)
    land(at.platform, at.topic, Wanted(new=True))
    whole = at.pin()
    part = at.pin(**{"from": {"0": 1, "1": 1}})
    assert (whole.complete_before, part.complete_before) == (on(4), on(4))
    with pytest.raises(PlanRefused, match="may still come"):
        at.pin(2, 10)


def test_a_partition_that_is_behind_by_what_its_records_say_holds_back(at: Site) -> None:
    at.declared()
    at.send(scans(*(on(day) for day in range(12, 24))))
    at.send(EVENTS, partition=1)
    at.land()
    assert at.pin().complete_before == on(4)


def test_by_the_time_of_sending_a_late_record_contradicts_no_other(at: Site) -> None:
    at.declared(time="record_time")
    for partition in range(2):
        at.send(EVENTS, partition)
    at.land()
    at.send(scans(on(2)), sent=SENT + timedelta(days=1))  # alone in its load
    at.land()
    found = at.pin(2, 11)
    assert found.complete_before == SENT - timedelta(days=7)
    assert found.false_times == ()


def test_by_what_records_say_a_load_of_one_late_record_contradicts_those_before_it_and_is_named(at: Site) -> None:
    at.declared(lateness=ba.Lateness(ba.Watermark.BY_TIME, disorder=timedelta(days=7)))
    at.send(EVENTS)
    at.land()
    at.send(scans(on(1)))
    at.land()
    with pytest.raises(PlanRefused, match="may still come"):
        at.pin()


@pytest.mark.parametrize("instant", [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, tzinfo=UTC)])
def test_instants_at_the_ends_of_time_end_no_plan(at: Site, instant: datetime) -> None:
    at.declared(lateness=ba.Lateness(ba.Watermark.BY_TIME, disorder=timedelta(days=7)))
    at.send(scans(instant))
    at.land()
    with pytest.raises(PlanRefused):
        at.pin(2, 31)
    at.send(EVENTS)
    at.land()
    assert at.pin().complete_before is not None


def test_an_archive_that_is_a_table_has_the_partitions_without_records_too(at: Site) -> None:
    at.declared()
    at.send(EVENTS)
    land(at.platform, at.plain, Wanted(new=True))
    land_archive(at.platform, at.topic, "bronze.plain_log")
    (load,) = landed_loads(at.platform.lakehouse.table(LANDED))
    assert [str(one.range) for one in load.landed.ranges] == [
        "partition 0 from 0 until 10",
        "partition 1 from 0 until 0",
    ]
    with pytest.raises(PlanRefused, match="nothing is known to be complete"):
        at.pin()
    at.send(EVENTS, partition=1)
    assert at.land().loads[0].rows == 10
    assert at.pin().complete_before == on(4)


def test_an_overlap_is_proven_of_records_as_they_came_whatever_the_function_is_by_now(at: Site) -> None:
    at.declared()
    at.send(EVENTS)
    at.land()
    at.declared(event_time=raises)
    done = land(at.platform, at.topic, Wanted(start={0: 0}, until={0: 10}), prove_overlap=True)
    assert done.proven is not None
    assert (done.proven.rows, done.loads) == (10, ())


def test_what_is_landed_again_is_read_anew(at: Site) -> None:
    at.declared()
    at.send(EVENTS)
    (load,) = at.land().loads
    undo_load(at.platform, LANDED, load.load_id, by="ana", reason="instants were read wrongly")
    at.declared(event_time=raises)
    with pytest.raises(ExtractionRefused, match="raises ValueError"):
        at.land()
    at.declared()
    assert at.land().loads[0].rows == 10


def test_a_target_that_reads_its_source_whole_counts_records_without_an_instant_as_read(at: Site) -> None:
    at.declared(time="record_time")
    at.send([TOMBSTONE] * 3)
    at.land()
    whole = replace(
        PRODUCT.targets[0],
        chunking=ba.Chunking.WHOLE,
        chunk_values=ba.ByRange("log_offset", (0, 1_000)),
        key=("log_partition", "log_offset"),
        day_column="",
        chunks_from="",
        chunks_until="",
    )
    state = at.platform.lakehouse.source_state(LANDED, "event_time", None, is_whole=whole.reads_whole)
    assert [(one.rows, one.first_day) for one in state.files] == [(3, EVER[0])], (
        "as old as rows can be: retention goes by that"
    )
    assert at.platform.lakehouse.source_state(LANDED, "event_time", None).files == ()
    with pytest.raises(PlanRefused, match="holds no rows"):
        at.pin()
