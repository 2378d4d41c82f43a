"""Limits of a manifest and of a policy, the pace that a plan keeps, and what a batch waits for."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support import a_manifest, a_plan

from manifests import limits
from manifests.errors import ManifestRefused, PlanRefused
from manifests.estimates import Estimate
from manifests.further_sources import PinnedSource
from manifests.limit_problems import pace_of, pace_problems
from manifests.limits import Hours
from manifests.pace import (
    MARGIN,
    WINDOW,
    Admitted,
    PlannedPace,
    Wait,
    Work,
    never,
    opens_at,
    over_budget,
    soonest,
    waits,
)
from manifests.plan import Plan, PlannedChunk, plan_from_json
from manifests.policy import parse_policy

AT = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)
NIGHT = {"opens": "22:00", "closes": "06:00", "zone": "Europe/Rome"}


def planned(policy: dict[str, Any] | None = None, **limits: Any) -> Plan:
    rules = {"name": "paced", "rules": [{"tables": ["*"], "limits": policy or {}}]}
    return a_plan(a_manifest(limits=limits), policy=parse_policy(yaml.safe_dump(rules)))


def why(policy: dict[str, Any] | None = None, **limits: Any) -> str:
    with pytest.raises(PlanRefused) as refusal:
        planned(policy, **limits)
    return str(refusal.value)


def hours(opens: str, closes: str, zone: str = "UTC") -> Hours:
    return Hours.model_validate({"opens": opens, "closes": closes, "zone": zone})


# --- the manifest and the policy ----------------------------------------------------------------------------------------


def test_a_plan_without_limits_says_nothing_of_a_pace_and_its_text_is_as_it_was() -> None:
    plan = a_plan()
    assert plan.pace is None
    assert "pace" not in plan.to_json()
    text = a_manifest(limits={"maxChunksPerJob": 12}).canonical()
    assert '"limits":{"maxChunksPerJob":12,"maxRunsInParallel":1}' in text


def test_a_plan_keeps_the_limits_of_its_manifest_and_reads_them_back() -> None:
    limits = {
        "maxChunksInParallel": 2,
        "maxRowsPerMinute": 10_000,
        "maxBytesPerMinute": 10_000_000,
        "maxCommitsPerHour": 3,
        "pauseBetweenBatchesSeconds": 30,
        "windows": [NIGHT, {"opens": "12:00", "closes": "13:00"}],
        "budget": {"rows": 1_000_000, "bytes": 10_000_000},
    }
    plan = planned(**limits)
    expected = PlannedPace(
        chunks_in_parallel=2,
        rows_per_minute=10_000,
        bytes_per_minute=10_000_000,
        commits_per_hour=3,
        pause_seconds=30,
        windows=((hours("22:00", "06:00", "Europe/Rome"), hours("12:00", "13:00")),),
        budget_rows=1_000_000,
        budget_bytes=10_000_000,
    )
    assert plan.pace == expected
    assert plan_from_json(plan.to_json()) == plan
    assert "22:00 to 06:00 (Europe/Rome) or 12:00 to 13:00 (UTC)" in "\n".join(expected.describe())
    assert [len(batch) for batch in plan.batches()] == [2, 1], "a batch is no larger than what may be computed at once"


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"maxRowsPerMinute": 0}, "a whole number from 1"),
        ({"windows": [{"opens": "22:00", "closes": "22:00"}]}, "closes at another time than it opens"),
        ({"windows": [{"opens": "25:00", "closes": "06:00"}]}, 'from "00:00" to "23:59"'),
        ({"windows": [{"opens": "22:00", "closes": "06:00", "zone": "Rome"}]}, "Europe/Rome"),
        ({"budget": {}}, "give rows, bytes, or both"),
    ],
)
def test_what_is_no_limit_is_refused_in_words(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(ManifestRefused, match=said):
        a_manifest(limits=limits)


def test_what_the_policy_says_holds_where_the_manifest_says_nothing_or_more_strictly() -> None:
    policy = {"maxRowsPerMinute": 5_000, "pauseBetweenBatchesSeconds": 10, "windows": [NIGHT]}
    pace = planned(policy).pace
    assert pace is not None
    assert (pace.rows_per_minute, pace.pause_seconds) == (5_000, 10)
    pace = planned(
        policy, maxRowsPerMinute=1_000, pauseBetweenBatchesSeconds=60, windows=[{"opens": "23:00", "closes": "07:00"}]
    ).pace
    assert pace is not None
    assert (pace.rows_per_minute, pace.pause_seconds, len(pace.windows)) == (1_000, 60, 2)


def test_more_than_the_policy_allows_is_refused_with_every_field() -> None:
    policy = {
        "maxRowsPerMinute": 5_000,
        "maxChunksInParallel": 2,
        "pauseBetweenBatchesSeconds": 10,
        "budget": {"rows": 9_000},
    }
    said = why(
        policy, maxRowsPerMinute=5_001, maxChunksInParallel=3, pauseBetweenBatchesSeconds=9, budget={"rows": 9_001}
    )
    for field in (
        "maxRowsPerMinute is 5,001",
        "maxChunksInParallel is 3",
        "pauseBetweenBatchesSeconds is 9",
        "budget.rows is 9,001",
    ):
        assert f"limits.{field}" in said
    assert "'paced' allows 5,000" in said


def test_where_no_rule_names_the_kind_the_strictest_of_all_counts() -> None:
    rules = [
        {"tables": ["*"], "kinds": ["REPAIR"], "limits": {"maxRowsPerMinute": 100_000, "windows": [NIGHT]}},
        {"tables": ["*"], "kinds": ["REPLAY"], "limits": {"maxRowsPerMinute": 70_000}},
    ]
    pace = a_plan(policy=parse_policy(yaml.safe_dump({"name": "two", "rules": rules}))).pace
    assert pace is not None
    assert (pace.rows_per_minute, len(pace.windows)) == (70_000, 1)


def test_a_chunk_that_no_ten_minutes_have_room_for_and_a_budget_below_one_reading_are_refused_when_planning() -> None:
    reads = a_plan().reads.rows + (a_plan().look_back.rows if a_plan().look_back else 0)
    assert reads > 10
    said = why(maxRowsPerMinute=1)
    assert "allows 10 in 10 minutes" in said
    assert "chunk 2012-01 reads" in said
    assert f"would read {reads:,} rows" in why(budget={"rows": reads - 1})
    assert planned(budget={"rows": reads}).pace is not None


def chunks_of(*rows: int) -> list[PlannedChunk]:
    return [
        PlannedChunk(f"2012-{number:02}", number, date(2012, number, 1), date(2012, number, 28), Estimate(1, count, 1))
        for number, count in enumerate(rows, 1)
    ]


def test_a_chunk_reads_what_is_earlier_in_the_range_as_well_where_the_transform_looks_back() -> None:
    """Else the plan is taken, and a launch refused for good in the middle."""
    chunks, pace, reads = chunks_of(100, 100, 100), PlannedPace(rows_per_minute=29), Estimate(3, 300, 3)
    assert pace_problems(pace, chunks, None, reads) == []
    (found,) = pace_problems(pace, chunks, Estimate(0, 0, 0), reads)
    assert "chunk 2012-03 reads 300 rows" in found.what
    assert pace_problems(PlannedPace(rows_per_minute=30), chunks, Estimate(0, 0, 0), reads) == []
    shared = Estimate(1, 100, 1)  # one file that all of them lie in
    assert pace_problems(pace, chunks, Estimate(0, 0, 0), shared) == []


def further(rows: int, days_before: int | None, *, for_gates: bool = False) -> PinnedSource:
    return PinnedSource("other", "day", True, 1, None, days_before, 0, Estimate(1, rows, 1), for_gates=for_gates)


def test_a_chunk_reads_its_part_of_further_sources_and_all_of_what_has_no_beginning() -> None:
    chunks, pace, reads = chunks_of(100, 100, 100), PlannedPace(rows_per_minute=29), Estimate(3, 300, 3)
    (found,) = pace_problems(pace, chunks, None, reads, [further(191, None)])
    assert "chunk 2012-01 reads 291 rows" in found.what
    assert pace_problems(pace, chunks, None, reads, [further(191, None, for_gates=True), further(300, 0)]) == []
    (found,) = pace_problems(PlannedPace(budget_rows=400), chunks, None, reads, [further(191, 0)])
    assert "would read 491 rows" in found.what


def test_live_waits_for_no_commits_of_others() -> None:
    manifest = a_manifest(kind="LIVE", limits={"maxCommitsPerHour": 1, "pauseBetweenBatchesSeconds": 1})
    assert pace_of(manifest, None) == PlannedPace(pause_seconds=1)


def test_hours_that_have_no_instant_in_common_with_the_policys_are_refused_when_planning() -> None:
    day, policy = {"opens": "08:00", "closes": "10:00"}, {"windows": [{"opens": "22:00", "closes": "06:00"}]}
    assert "batches would never begin: 08:00 to 10:00 (UTC) and 22:00 to 06:00 (UTC)" in why(policy, windows=[day])
    assert planned(policy, windows=[day, {"opens": "05:00", "closes": "07:00"}]).pace is not None


# --- windows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "is_open"),
    [
        ("2026-01-10T20:59:00", False),
        ("2026-01-10T21:00:00", True),
        ("2026-01-11T04:59:59", True),
        ("2026-01-11T05:00:00", False),
        ("2026-07-10T19:59:00", False),
        ("2026-07-10T20:00:00", True),
    ],
)
def test_hours_go_over_midnight_and_with_the_clocks_of_their_zone(at: str, is_open: bool) -> None:
    assert hours(**NIGHT).is_open(datetime.fromisoformat(at).replace(tzinfo=UTC)) == is_open


@given(
    st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 28)),  # noqa: DTZ001 - Hypothesis wants them without a zone
    st.tuples(st.integers(0, 47), st.integers(0, 47)).filter(lambda pair: pair[0] != pair[1]),
    st.sampled_from(["UTC", "Europe/Rome", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]),
)
def test_a_window_that_is_shut_opens_when_it_says_and_not_before(
    at: datetime, halves: tuple[int, int], zone: str
) -> None:
    texts = [f"{half // 2:02}:{30 * (half % 2):02}" for half in halves]
    found, at = hours(texts[0], texts[1], zone), at.replace(tzinfo=UTC)
    opens = opens_at([[found]], at)
    assert opens is not None
    assert found.is_open(opens)
    assert opens - at <= timedelta(days=2)
    between = [at + (opens - at) * part / 50 for part in range(50)]
    assert opens == at or not any(found.is_open(one) for one in between)


def test_several_windows_are_open_at_once_or_never() -> None:
    both = [[hours("08:00", "12:00")], [hours("11:00", "15:00")]]
    assert opens_at(both, AT.replace(hour=13)) == AT.replace(day=11, hour=11)
    assert opens_at([[hours("08:00", "09:00")], [hours("10:00", "11:00")]], AT) is None


def test_an_hour_that_comes_twice_opens_twice() -> None:
    back = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)  # 02:30 in Rome, for the first time
    window = hours("02:30", "03:00", "Europe/Rome")
    assert window.opens_after(back - timedelta(hours=1)) == back
    assert window.opens_after(back + timedelta(minutes=40)) == back + timedelta(hours=1)
    forward = datetime(2026, 3, 29, 0, 0, tzinfo=UTC)
    assert window.opens_after(forward) == forward + timedelta(minutes=90), "what is left out begins later than it says"


@pytest.mark.parametrize("zone", ["localtime", "Factory", "posixrules", "Europe/Nowhere"])
def test_a_zone_that_each_machine_has_of_its_own_is_none(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_timezones", lambda: {"UTC", "localtime", "Factory", "posixrules"})
    limits._zones.cache_clear()
    try:
        with pytest.raises(ValidationError, match="IANA"):
            hours("01:00", "02:00", zone)
    finally:
        limits._zones.cache_clear()


def test_hours_are_those_of_the_clock_also_where_it_was_set_back() -> None:
    pace = PlannedPace(windows=((hours("22:00", "23:30"),),))
    night = AT.replace(hour=23)
    assert waits(pace, Work(1, 1, 1), [], night) == []
    (found,) = waits(pace, Work(1, 1, 1), [], night, AT)
    assert found.until == AT.replace(hour=22)


# --- what a batch waits for ---------------------------------------------------------------------------------------------


def ran(rows: int, ended: float | None, began: float = 30, chunks: int = 1) -> Admitted:
    """A batch that began and ended so many minutes ago."""
    end = None if ended is None else AT - timedelta(minutes=ended)
    return Admitted(Work(chunks, rows, rows * 10), AT - timedelta(minutes=began), end)


def test_a_rate_counts_whole_what_was_under_way_in_the_last_ten_minutes() -> None:
    pace = PlannedPace(rows_per_minute=100)
    assert waits(pace, Work(1, 400, 1), [ran(600, 9.9)], AT) == []
    (wait,) = waits(pace, Work(1, 401, 1), [ran(600, 9.9), ran(600, 10.1)], AT)
    assert wait.until == AT + timedelta(minutes=0.1, microseconds=1) + MARGIN
    assert waits(pace, Work(1, 401, 1), [ran(600, 9.9)], wait.until) == []
    assert waits(pace, Work(1, 401, 1), [ran(600, None)], AT)[0].until is None, "nobody knows when that ends"
    (wait,) = waits(PlannedPace(bytes_per_minute=100), Work(1, 1, 401), [ran(60, 0)], AT)
    assert wait == Wait(
        "limits.maxBytesPerMinute is 100, over any 10 minutes", AT + WINDOW + MARGIN + timedelta(microseconds=1)
    )


def test_a_batch_waits_for_all_that_holds_it_and_until_the_last_of_it() -> None:
    pace = PlannedPace(rows_per_minute=100, pause_seconds=3_600, windows=((hours("22:00", "06:00"),),))
    found = waits(pace, Work(1, 1_000, 1), [ran(1_000, 5)], AT)
    assert [one.why.partition(" ")[0].rstrip(":") for one in found] == [
        "limits.windows",
        "limits.maxRowsPerMinute",
        "limits.pauseBetweenBatchesSeconds",
    ]
    assert soonest(found) == AT.replace(hour=22)
    assert soonest([]) is None


def test_places_are_counted_by_chunks_and_one_batch_alone_has_always_one() -> None:
    pace = PlannedPace(chunks_in_parallel=3)
    assert waits(pace, Work(1, 1, 1), [ran(1, None, chunks=2)], AT) == []
    assert waits(pace, Work(2, 1, 1), [ran(1, None, chunks=2)], AT) != []
    assert waits(pace, Work(4, 1, 1), [], AT) == []


def test_what_no_waiting_helps_and_what_a_budget_has_no_room_for_is_said() -> None:
    assert never(PlannedPace(rows_per_minute=10), Work(1, 100, 1)) == []
    assert "allows 100 in 10 minutes" in never(PlannedPace(rows_per_minute=10), Work(1, 101, 1))[0]
    pace = PlannedPace(budget_rows=100, budget_bytes=50)
    assert over_budget(pace, Work(1, 40, 10), 60, 40) == ""
    assert "limits.budget.rows is 100: 61 rows" in over_budget(pace, Work(1, 40, 10), 61, 40)
    assert "limits.budget.bytes" in over_budget(pace, Work(1, 40, 11), 60, 40)
