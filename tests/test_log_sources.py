"""Runs whose source is a log: which positions are pinned and read, and what is refused by name when it is planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo
from worlds import SPARK, World

import backfill_assets as ba
from backfill_assets.audit.reproduce import Outcome, reproduce
from backfill_assets.audit.verification import verify
from backfill_assets.declarations.finding import check_products
from backfill_assets.ingestion.table_loads import undo_load
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.replanning import replanned
from backfill_assets.planning.resolve import plan_run, preview
from backfill_assets.run_context import RunContext
from benchmarks import clicks
from benchmarks.clicks import BY_OFFSET, CLICKS, DAILY, LOG, MARCH, PLACE, click, land, manifest
from manifests.errors import DeclarationRefused, ManifestRefused, PlanRefused
from manifests.lateness import Lateness, Watermark
from manifests.log_ranges import LogIdentity, LogKind, LogRange, joined
from manifests.plan import Plan, plan_from_json
from manifests.reading import manifest_from

FIRST = [click(0, place, place / 10, "home" if place % 3 else "help") for place in range(40)]
"""Partition 0 has four days of ten clicks, one every 2.4 hours."""
SECOND = [click(1, place, place / 5, "home") for place in range(20)]
RANGES = [LogRange(0, 0, 40), LogRange(1, 0, 20)]


def clicked(home: Path) -> ba.Platform:
    found = clicks.opened(home)
    initialise(found)
    land(found, "first", FIRST + SECOND, RANGES)
    return found


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> ba.Platform:
    """An installation that is only asked."""
    return clicked(tmp_path_factory.mktemp("asked") / "home")


@pytest.fixture
def changing(tmp_path: Path) -> ba.Platform:
    """An installation of which the log is changed."""
    return clicked(tmp_path / "home")


def refused(platform: ba.Platform, *words: Any, **changes: Any) -> list[str]:
    with pytest.raises(PlanRefused) as refusal:
        preview(platform, manifest("asked", *words, **changes))
    return [f"{one.what} | {one.rule} | {one.fix}" for one in refusal.value.problems]


def planned(platform: ba.Platform, *words: Any, **changes: Any) -> Plan:
    plan = preview(platform, manifest("asked", *words, **changes))
    assert plan_from_json(plan.to_json()) == plan
    return plan


def test_a_plan_pins_what_was_landed_and_says_until_when_it_is_complete(platform: ba.Platform) -> None:
    (log,) = planned(platform, 1, 3).logs
    assert (log.log, log.ranges, log.is_whole) == (LOG, tuple(RANGES), True)
    # the partition that is further behind says it: 19/5 days, two hours before
    assert log.complete_before == datetime(2026, 3, 4, 19, 12, tzinfo=UTC) - timedelta(hours=2)
    said = dict(log.describe())
    assert "partition 0 from 0 until 40; partition 1 from 0 until 20" in said[f"log {CLICKS}"]
    assert said["complete"].startswith("before 2026-03-04T17:12:00+00:00 (BY_PARTITION")


def test_days_of_which_records_may_still_come_are_refused_unless_the_manifest_takes_them(platform: ba.Platform) -> None:
    (said,) = refused(platform, 3, 5)
    assert "records of 2026-03-04 to 2026-03-05 may still come" in said
    assert "it is complete before 2026-03-04T17:12" in said
    plan = planned(platform, 3, 4, {"incompleteDays": "PUBLISH"})
    assert (plan.source_ends, plan.complete_until) == (date(2026, 3, 3), date(2026, 3, 3))


@pytest.mark.parametrize(
    ("log", "ranges"),
    [
        ({"until": {0: 20, 1: 10}}, (LogRange(0, 0, 20), LogRange(1, 0, 10))),
        ({"from": {0: 5}, "until": {0: 20}}, (LogRange(0, 5, 20),)),
        ({"until": {"1": 10}}, (LogRange(1, 0, 10),)),
        ({"untilTime": "2026-03-03T00:00:00Z"}, (LogRange(0, 0, 20), LogRange(1, 0, 10))),
        ({"untilTime": "2026-03-03"}, (LogRange(0, 0, 20), LogRange(1, 0, 10))),
        ({"untilTime": "2026-03-02T23:59:59+00:00"}, (LogRange(0, 0, 20), LogRange(1, 0, 10))),
        ({"untilTime": "2026-03-03T00:00:01Z"}, (LogRange(0, 0, 21), LogRange(1, 0, 11))),
        ({"fromTime": "2026-03-02T00:00:00Z", "until": {0: 20, 1: 10}}, (LogRange(0, 10, 20), LogRange(1, 5, 10))),
        ({"untilTime": "2027-01-01T00:00:00Z"}, tuple(RANGES)),
    ],
)
def test_positions_and_instants_are_resolved_when_planned(
    platform: ba.Platform, log: dict[str, Any], ranges: tuple[LogRange, ...]
) -> None:
    plan = planned(platform, 1, 1, log | {"incompleteDays": "PUBLISH"})
    assert plan.logs[0].ranges == ranges
    assert plan.logs[0].is_whole == (ranges == tuple(RANGES))
    last = max(row["said_at"] for row in FIRST if ranges[0].start <= row["log_offset"] < ranges[0].until)
    if all(one.partition == 0 for one in ranges):
        assert plan.logs[0].complete_before is None, "nothing is read of the other partition"
    elif len(ranges) == 2:
        other = max(row["said_at"] for row in SECOND if ranges[1].start <= row["log_offset"] < ranges[1].until)
        assert plan.logs[0].complete_before == min(last, other) - timedelta(hours=2)


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (
            {"until": {0: 50, 1: 5}},
            (
                "10 position(s) of bronze.clicks that the run would read are not landed: offsets 40 to 49 of partition 0 (10), "
                "after load first, ending with 39"
            ),
        ),
        ({"until": {7: 5}}, "source.log names partition 7, of which nothing was landed"),
        ({"from": {0: 30, 1: 0}, "until": {0: 20, 1: 5}}, "source.log begins at 30 and ends at 20 in partition 0"),
        ({"fromTime": "2026-03-03T00:00:00Z", "untilTime": "2026-03-02T00:00:00Z"}, "begins at 20 and ends at 10"),
    ],
)
def test_positions_that_are_not_there_are_refused_by_name(
    platform: ba.Platform, log: dict[str, Any], says: str
) -> None:
    assert any(says in one for one in refused(platform, 1, 1, log | {"incompleteDays": "PUBLISH"}))


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ({"until": {0: 5}, "untilTime": "2026-03-03T00:00:00Z"}, "give until or untilTime"),
        ({"from": {0: 5}, "until": {1: 5}}, "from and until name the same partitions"),
        ({"untilTime": "2026-03-03T00:00"}, "has a time and a zone"),
        ({"untilTime": "2026-02-30"}, "has a time and a zone"),
        ({"untilTime": "0001-01-01T00:00:00+14:00"}, "from 1970 on"),
        ({"until": -1}, "a position is a whole number"),
        ({"until": "0/XYZ"}, "a position is a whole number"),
        ({"until": True}, "a position is a whole number"),
        ({"until": "FFFFFFFF/FFFFFFFF"}, "a position is a whole number"),
        ({"until": {}}, "name a partition"),
        ({"until": {"a": 1}}, "a partition is a whole number"),
        ({"until": {0: 1, "0": 2}}, "named once"),
        ({"offsets": {0: 1}}, "unknown key"),
    ],
)
def test_what_names_no_positions_is_no_manifest(log: dict[str, Any], says: str) -> None:
    with pytest.raises(ManifestRefused) as refusal:
        manifest("asked", 1, 1, log)
    assert any(says in f"{one.what} {one.rule}" for one in refusal.value.problems), refusal.value.problems


def test_an_lsn_is_a_position_as_the_server_writes_it() -> None:
    asked = manifest("asked", 1, 1, {"until": "16/B374D848"}).source.log
    assert asked is not None
    assert asked.until == {0: 0x16B374D848}


def later(platform: ba.Platform, start: int, until: int, load_id: str = "second", **said: Any) -> None:
    rows = [click(0, place, place / 10) for place in range(start, until)]
    land(platform, load_id, rows, [LogRange(0, start, until)], **said)


def more_of(identity: LogIdentity) -> Callable[[ba.Platform], None]:
    return lambda platform: later(platform, 40, 50, log=identity)


@pytest.mark.parametrize(
    ("does", "says"),
    [
        (
            lambda platform: later(platform, 45, 50),
            (
                "5 position(s) of bronze.clicks that the run would read are not landed: offsets 40 to 44 of partition 0 (5), "
                "between load first, ending with 39, and load second, beginning with 45"
            ),
        ),
        (
            lambda platform: later(platform, 35, 50),
            "two loads have brought the same positions of bronze.clicks: partition 0 from 35",
        ),
        (more_of(replace(LOG, incarnation="topic-2")), "has records of 2 logs"),
        (more_of(replace(LOG, server="cluster-2")), "has records of 2 logs"),
        (lambda platform: later(platform, 40, 50, log=None), "has rows that no landing has brought: load second"),
        (
            lambda platform: platform.lakehouse.table(CLICKS).append(
                platform.lakehouse.table(CLICKS).scan().to_arrow()
            ),
            "of another program",
        ),
        (lambda platform: platform.lakehouse.table(CLICKS).delete(EqualTo("page", "help")), "of another program"),
    ],
)
def test_what_is_wrong_with_the_log_is_named_when_planned(
    changing: ba.Platform, does: Callable[[ba.Platform], None], says: str
) -> None:
    does(changing)
    assert any(says in one for one in refused(changing, 1, 1, {"incompleteDays": "PUBLISH"}))


def test_a_gap_that_is_accepted_as_lost_is_in_the_plan(changing: ba.Platform) -> None:
    later(changing, 45, 50, lost=(LogRange(0, 40, 45),))
    (log,) = planned(changing, 1, 2).logs
    assert log.ranges == (LogRange(0, 0, 50), LogRange(1, 0, 20))
    assert log.lost == (LogRange(0, 40, 45),)
    assert ("accepted as lost", "partition 0 from 40 until 45") in log.describe()
    (log,) = planned(changing, 1, 1, {"until": {0: 42, 1: 20}}).logs
    assert log.lost == (LogRange(0, 40, 42),)


def test_what_a_plan_counts_to_read_are_files_with_positions_that_it_reads(changing: ba.Platform) -> None:
    anything = {"incompleteDays": "PUBLISH"}
    alone = planned(changing, 4, 4, anything)
    first = alone.reads
    assert (first.files, first.rows) == (1, len(FIRST + SECOND))
    # days 4 and 5 again, each a file of its own
    land(changing, "second", [click(0, place, place / 10) for place in range(40, 50)], [LogRange(0, 40, 50)])
    land(changing, "third", [click(1, place, 3.5) for place in range(20, 27)], [LogRange(1, 20, 27)])
    whole = planned(changing, 4, 4, anything)
    assert (whole.reads.files, whole.reads.rows) == (3, 77)
    assert planned(changing, 4, 4, anything | {"from": {0: 0, 1: 0}}).chunks == whole.chunks, "all that was landed"

    def counted_for(log: dict[str, Any], *days: int) -> tuple[int, int]:
        plan = planned(changing, *days, anything | log)
        assert {one.reads.rows for one in plan.chunks} == {plan.reads.rows}
        return plan.reads.files, plan.reads.rows

    outside = {"until": {0: 40, 1: 20}}
    assert planned(changing, 4, 4, anything | outside).reads == first
    assert counted_for({"from": {0: 40}, "until": {0: 50}}, 4, 4) == (1, 10)
    assert counted_for({"from": {1: 20}, "until": {1: 27}}, 4, 4) == (2, 67), "the first file has both, by its bounds"
    # a file that has one of the positions counts with all of its rows, as one that has one of the days
    assert counted_for({"from": {0: 39}, "until": {0: 41}}, 4, 4) == (2, 70)
    assert counted_for({"fromTime": "2026-03-05T00:00:00Z"}, 4, 4) == (1, 10)


def test_a_limit_of_rows_is_held_against_the_positions_that_are_read(changing: ba.Platform) -> None:
    later(changing, 40, 50)
    limit = {"safety": {"maxRowsExpected": 60}}
    assert any("maxRowsExpected" in one for one in refused(changing, 4, 4, {"incompleteDays": "PUBLISH"}, **limit))
    asked = {"incompleteDays": "PUBLISH", "until": {0: 40, 1: 20}}
    assert planned(changing, 4, 4, asked, **limit).reads.rows == 60
    record = plan_run(changing, manifest("asked", 4, 4, asked, **limit))
    later(changing, 50, 60, "third")
    anew = replanned(RunContext.of(changing, record))
    assert anew.source_snapshot_id != record.plan.source_snapshot_id
    assert anew.logs[0].ranges == record.plan.logs[0].ranges


def test_a_history_that_somebody_has_cut_is_known_from_the_oldest_load_that_is_left(changing: ba.Platform) -> None:
    later(changing, 45, 50, lost=(LogRange(0, 40, 45),))
    later(changing, 50, 60, "third")
    whole = planned(changing, 1, 2).logs
    changing.lakehouse.table(CLICKS).maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
    assert len(changing.lakehouse.table(CLICKS).snapshots()) == 1
    assert planned(changing, 1, 2).logs == whole


def test_a_history_of_which_too_little_is_left_is_said_and_not_guessed(changing: ba.Platform) -> None:
    later(changing, 40, 50)
    table = changing.lakehouse.table(CLICKS)
    table.overwrite(table.scan().to_arrow())
    changing.lakehouse.table(CLICKS).maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
    assert any("has rows that no landing has brought" in one for one in refused(changing, 1, 1))


def test_a_load_that_was_taken_back_is_not_known_again_when_its_history_is_cut(changing: ba.Platform) -> None:
    later(changing, 40, 50)
    later(changing, 50, 60, "third")
    undo_load(changing, CLICKS, "second", by="ana", reason="it was landed twice over there")
    left = [one.range for load in changing.lakehouse.landed_loads(CLICKS) for one in load.landed.ranges]
    changing.lakehouse.table(CLICKS).maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
    assert len(changing.lakehouse.table(CLICKS).snapshots()) == 1
    found = [one.range for load in changing.lakehouse.landed_loads(CLICKS) for one in load.landed.ranges]
    assert set(joined(found)) == set(joined(left))
    assert any(
        "10 position(s) of bronze.clicks" in one
        and "offsets 40 to 49 of partition 0 (10), " in one
        and "taken back had brought all of them" in one
        for one in refused(changing, 1, 1)
    )


def test_a_record_of_the_future_makes_no_day_complete_that_is_still_to_come(changing: ba.Platform) -> None:
    tomorrow = (datetime.now(UTC) - datetime(2026, 3, 1, tzinfo=UTC)).days + 400
    rows = [click(0, 40, tomorrow), click(1, 20, tomorrow)]
    land(changing, "skewed", rows, [LogRange(0, 40, 41), LogRange(1, 20, 21)])
    (log,) = planned(changing, 1, 1).logs
    assert log.complete_before is not None
    assert log.complete_before <= datetime.now(UTC) - timedelta(hours=2)


def test_a_run_over_no_position_is_refused(changing: ba.Platform) -> None:
    end = {"from": {"0": 40, "1": 20}, "until": {"0": 40, "1": 20}, "incompleteDays": "PUBLISH"}
    assert any("would read no position" in one for one in refused(changing, 1, 1, end))


def test_a_partition_of_which_nothing_is_landed_holds_back_what_is_complete(changing: ba.Platform) -> None:
    land(changing, "third partition", [], [LogRange(2, 0, 0)])
    assert planned(changing, 1, 1, {"incompleteDays": "PUBLISH"}).logs[0].complete_before is None
    assert any("nothing is known to be complete" in one for one in refused(changing, 1, 1))


def test_a_source_that_is_no_log_has_no_positions(tmp_path: Path) -> None:
    platform = clicks.opened(tmp_path / "home", place=None)
    initialise(platform)
    land(platform, "first", FIRST, [], log=None)
    assert planned(platform, 1, 1).logs == ()
    assert any("bronze.clicks is no log" in one for one in refused(platform, 1, 1, {"until": {0: 5}}))


@pytest.mark.parametrize(
    ("lateness", "last", "batch", "expected"),
    [
        (Lateness(), {0: 4, 1: 3}, None, 3),
        (Lateness(), {0: 4, 1: None}, None, None),
        (Lateness(idle=timedelta(days=2)), {0: 4, 1: None}, None, 4),
        (Lateness(idle=timedelta(days=2)), {0: 9, 1: 3, 2: 8}, None, 8),
        (Lateness(Watermark.BY_TIME, timedelta(days=1)), {0: 4, 1: 3}, None, 3),
        (Lateness(Watermark.BY_BATCH), {0: 4}, 6, 6),
        (Lateness(Watermark.BY_BATCH), {0: 4}, None, None),
        (Lateness(Watermark.BY_TIME), {0: None}, None, None),
    ],
)
def test_watermarks(lateness: Lateness, last: dict[int, int | None], batch: int | None, expected: int | None) -> None:
    def at(day: int | None) -> datetime | None:
        return None if day is None else datetime(2026, 3, day, tzinfo=UTC)

    assert lateness.complete_before({one: at(day) for one, day in last.items()}, at(batch)) == at(expected)


def test_a_batch_is_complete_until_it_was_asked_for_if_all_of_it_is_read(tmp_path: Path) -> None:
    platform = clicks.opened(tmp_path / "home", replace(PLACE, lateness=Lateness(Watermark.BY_BATCH)))
    initialise(platform)
    asked = datetime(2026, 3, 5, tzinfo=UTC)
    land(platform, "first", FIRST + SECOND, RANGES, complete_before=asked)
    assert planned(platform, 1, 4).logs[0].complete_before == asked
    assert any("nothing is known to be complete" in one for one in refused(platform, 1, 1, {"until": {0: 20, 1: 20}}))


@pytest.mark.parametrize(
    ("asked", "complete"),
    [
        ({}, 20),
        # partition 1 ends amid the first load, and the second has brought nothing of it
        ({"until": {0: 40, 1: 5}}, None),
        ({"untilTime": "2026-03-02"}, None),
        ({"until": {0: 40}}, None),
        ({"until": {0: 20, 1: 20}}, 13),
        ({"until": {0: 30, 1: 20}}, 13),
        # what lies before the beginning of a run takes nothing from it
        ({"from": {0: 20, 1: 20}}, 20),
        ({"from": {0: 10, 1: 10}}, 20),
        ({"from": {0: 10, 1: 10}, "until": {0: 40, 1: 15}}, None),
    ],
)
def test_a_load_counts_only_if_what_was_landed_before_it_is_read_as_well(
    tmp_path: Path, asked: dict[str, Any], complete: int | None
) -> None:
    platform = clicks.opened(tmp_path / "home", replace(PLACE, lateness=Lateness(Watermark.BY_BATCH)))
    initialise(platform)
    before = {day: datetime(2026, 3, day, tzinfo=UTC) for day in (13, 20)}
    land(platform, "first", FIRST[:20] + SECOND, [LogRange(0, 0, 20), LogRange(1, 0, 20)], complete_before=before[13])
    land(platform, "second", FIRST[20:], [LogRange(0, 20, 40)], complete_before=before[20])  # the other one was quiet
    (log,) = planned(platform, 1, 1, asked | {"incompleteDays": "PUBLISH"}).logs
    assert log.complete_before == (None if complete is None else before[complete])


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (replace(PLACE, position="log_partition"), "log.position names a whole number"),
        (replace(PLACE, partition="log_offset"), "log.partition names a whole number"),
        (replace(PLACE, position="offset"), "'offset' is no column"),
        (replace(PLACE, time="page"), "log.time names an instant"),
        (replace(PLACE, time=None), "says how late records come, and not by which column"),
        (replace(PLACE, lateness=Lateness(disorder=timedelta(-1))), "nothing is late by less than no time"),
        (replace(PLACE, lateness=Lateness(Watermark.BY_TIME, idle=timedelta(1))), "leave idle out"),
    ],
)
def test_places_that_cannot_be_are_refused(place: ba.LogPlace, says: str) -> None:
    table = replace(clicks.INPUT, log=place)
    with pytest.raises(DeclarationRefused) as refusal:
        check_products((ba.Product("web", (table,), (clicks.TARGET,), code=("benchmarks.clicks",)),))
    assert any(says in f"{one.what} {one.rule} {one.fix}" for one in refusal.value.problems), refusal.value


# --- whole runs -------------------------------------------------------------------------------------------------------


def counted(rows: list[dict[str, Any]]) -> Counter[tuple[date, str]]:
    return Counter((row["said_at"].date(), row["page"]) for row in rows)


def published_counts(platform: ba.Platform) -> Counter[tuple[date, str]]:
    rows = platform.lakehouse.table(DAILY).scan().to_arrow().to_pylist()
    return Counter({(row["day"], row["page"]): row["clicks"] for row in rows})


def test_a_run_reads_the_positions_that_it_pins_and_a_replay_in_other_chunks_says_the_same(tmp_path: Path) -> None:
    platform = clicks.opened(tmp_path / "home", spark=SPARK)
    initialise(platform)
    land(platform, "first", FIRST + SECOND, RANGES)
    world = World(platform, tmp_path / "home")
    asked = {"until": {0: 25, 1: 20}, "incompleteDays": "PUBLISH"}
    world.published(manifest("history", 1, 3, asked))
    expected = counted([row for row in FIRST if row["log_offset"] < 25] + SECOND)
    assert published_counts(platform) == Counter(
        {key: n for key, n in expected.items() if key[0] < MARCH + timedelta(3)}
    )
    # what was landed meanwhile is not read by a replay of the same positions, another day and one chunk at a time
    land(platform, "late", [click(0, 40, 0.5, "help"), click(0, 41, 4.5)], [LogRange(0, 40, 42)])
    again = manifest("again", 1, 3, asked, limits={"maxChunksPerJob": 1}, kind="RESTATEMENT")
    world.published(again)
    assert world.digests("again") == world.digests("history")
    assert reproduce(platform, "again").outcome is Outcome.EQUAL
    assert verify(platform, data=True).everything == []
    world.published(
        manifest("all", 1, 4, kind="RESTATEMENT", source={"table": CLICKS, "log": {"incompleteDays": "PUBLISH"}})
    )
    expected = counted([*FIRST, *SECOND, click(0, 40, 0.5, "help")])
    assert published_counts(platform) == Counter(
        {key: n for key, n in expected.items() if key[0] < MARCH + timedelta(4)}
    )
    assert platform.ledger.run("all").plan.logs[0].log.kind == LogKind.KAFKA


def test_chunks_may_be_ranges_of_offsets_and_bound_the_records_of_each(tmp_path: Path) -> None:
    platform = clicks.opened(tmp_path / "home", target=BY_OFFSET, spark=SPARK)
    initialise(platform)
    land(platform, "first", FIRST + SECOND, RANGES)
    world = World(platform, tmp_path / "home")

    def by_offset(run_id: str, kind: str, *values: str, **log: Any) -> None:
        text = manifest(run_id, 1, 1, kind=kind).model_dump(mode="json", by_alias=True, exclude_unset=True)
        text["source"]["log"] = log
        text["transform"]["name"] = "told"
        text["target"] = {"table": BY_OFFSET.name, "values": list(values)}
        world.published(manifest_from(text))

    by_offset("whole", "BACKFILL", "0-to-10", "10-to-20", "20-to-30", "30-to-40")
    told = platform.lakehouse.table(BY_OFFSET.name).scan().to_arrow().to_pylist()
    assert {(row["log_partition"], row["log_offset"], row["page"].lower()) for row in told} == {
        (row["log_partition"], row["log_offset"], row["page"]) for row in FIRST + SECOND
    }
    digests = world.digests("whole")
    by_offset("alone", "RESTATEMENT", "10-to-20", until={"0": 20, "1": 20})
    assert world.digests("alone")["10-to-20"] == digests["10-to-20"]
    assert verify(platform, data=True).everything == []


def test_a_time_that_the_log_contradicts_makes_nothing_complete_and_is_named(changing: ba.Platform) -> None:
    before = planned(changing, 1, 3).logs[0]
    assert before.false_times == ()
    # said to be of the 20th, long before it was landed: nothing but what comes after it says otherwise
    land(changing, "false", [click(0, 40, 19.0), click(1, 20, 4.0)], [LogRange(0, 40, 41), LogRange(1, 20, 21)])
    land(changing, "later", [click(0, 41, 4.1), click(1, 21, 4.2)], [LogRange(0, 41, 42), LogRange(1, 21, 22)])
    (log,) = planned(changing, 1, 3).logs
    (false,) = log.false_times
    assert (false.range, false.at.day, false.after.day) == (LogRange(0, 40, 41), 20, 5)
    assert log.complete_before == datetime(2026, 3, 5, 2, 24, tzinfo=UTC) - timedelta(hours=2)
    assert false.describe() in dict(log.describe())["does not count"]
    (said,) = refused(changing, 4, 6)
    assert "partition 0 from 40 until 41 has a record of 2026-03-20" in said
