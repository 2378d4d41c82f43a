"""Clocks recomputed for the reconciliations, against the plainest way of saying what is expected and what is wrong."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill_assets.declarations.schema import dtypes
from backfill_assets.products.enforcement.clocks import (
    CLOCK,
    PAYMENT,
    PENALTY,
    SIDE_BY_SIDE,
    Terms,
    compared,
    side_by_side,
    terms_of,
)
from backfill_assets.products.enforcement.schemas import JurisdictionCalendar, SlaRules

START = date(2012, 1, 2)
DAYS = [START + timedelta(days=number) for number in range(14)]
SCOPE = (DAYS[3], DAYS[9])
LAST_DAY = DAYS[8]
CASES, PLACES, NAMES = ("a", "b"), ("IT", "NZ"), ("PAYMENT", "APPEAL")
ACTIVITIES = ("open", "open", "reopen", "pay", "close", PENALTY, "chat")
ROWS = pl.Schema(
    {
        "case_id": pl.String,
        "jurisdiction": pl.String,
        "activity": pl.String,
        "day": pl.Date,
        "penalty_day": pl.Date,
        "clock": pl.String,
        "started_on": pl.Date,
        "breached_as": pl.Boolean,
        "breach_on": pl.Date,
    }
)
day = st.sampled_from(DAYS)
rule = st.fixed_dictionaries(
    {
        "jurisdiction": st.sampled_from(PLACES),
        "clock": st.sampled_from(NAMES),
        "start_activity": st.sampled_from(("open", "reopen")),
        "stop_activities": st.sampled_from((["pay"], ["close"], ["pay", "close"])),
        "valid_from": st.sampled_from([DAYS[0], DAYS[5]]),
        "length": st.integers(1, 4),
        "unit": st.sampled_from(("CALENDAR_DAY", "BUSINESS_DAY")),
    }
)
# one rule a place, clock and first day
rules = st.lists(
    rule, min_size=4, max_size=8, unique_by=lambda one: (one["jurisdiction"], one["clock"], one["valid_from"])
)
event = st.fixed_dictionaries(
    {
        "case_id": st.sampled_from(CASES),
        "jurisdiction": st.sampled_from(PLACES),
        "activity": st.sampled_from(ACTIVITIES),
        "day": day,
    }
)
end = st.one_of(st.none(), st.tuples(st.booleans(), day))
found_row = st.fixed_dictionaries(
    {
        "case_id": st.sampled_from(CASES),
        "jurisdiction": st.sampled_from(PLACES),
        "clock": st.sampled_from(NAMES),
        "started_on": st.one_of(st.none(), day),
        "end": end,
    }
)
found_rows = st.lists(
    found_row, min_size=2, max_size=6, unique_by=lambda one: (one["case_id"], one["jurisdiction"], one["clock"])
)
holidays = st.sets(day, max_size=6)


def calendar(free: set[date]) -> pl.DataFrame:
    """Return a calendar of every day, Saturdays and Sundays free as well."""
    rows = [
        {"jurisdiction": place, "day": one, "is_business_day": one.weekday() < 5 and one not in free, "holiday": None}
        for place in PLACES
        for one in DAYS
    ]
    return pl.DataFrame(rows, schema=dtypes(JurisdictionCalendar)).select("jurisdiction", "day", "is_business_day")


def terms(given: list[dict[str, Any]], free: set[date]) -> Terms:
    rows = [one | {"pause_activities": [], "resume_activities": [], "time_zone": "Europe/Rome"} for one in given]
    table = pl.DataFrame(rows, schema=dtypes(SlaRules))
    return terms_of(table, calendar(free), start=SCOPE[0], end=SCOPE[1], last_day=LAST_DAY)


def both_sides(events: list[dict[str, Any]], found: list[dict[str, Any]]) -> pl.DataFrame:
    """Return rows as the driver sends them: the penalty's day apart, a first and a last day of each clock in rows of their own."""
    rows = [one | {"penalty_day": one["day"] if one["activity"] == PENALTY else None} for one in events]
    for one in found:
        key = {name: one[name] for name in CLOCK}
        if one["started_on"] is not None:
            rows.append(key | {"started_on": one["started_on"]})
        if one["end"] is not None:
            rows.append(key | dict(zip(("breached_as", "breach_on"), one["end"], strict=True)))
    return pl.DataFrame(rows, schema=ROWS)


def deadline_of(one: dict[str, Any], start: date, free: set[date]) -> date | None:
    """Count days one by one; None where the calendar ends before."""
    if one["unit"] == "CALENDAR_DAY":
        return start + timedelta(days=one["length"])
    after = [later for later in DAYS if later > start and later.weekday() < 5 and later not in free]
    return after[one["length"] - 1] if len(after) >= one["length"] else None


def expected(
    given: list[dict[str, Any]], free: set[date], events: list[dict[str, Any]]
) -> dict[tuple[str, ...], dict[str, Any]]:
    """Say of each clock when it starts, when it is due, whether it is stopped in time, and when its penalty came."""
    clocks: dict[tuple[str, ...], dict[str, Any]] = {}
    for one in given:
        later = [
            other["valid_from"]
            for other in given
            if (other["jurisdiction"], other["clock"]) == (one["jurisdiction"], one["clock"])
            and other["valid_from"] > one["valid_from"]
        ]
        for case in CASES:
            own = [each for each in events if (each["case_id"], each["jurisdiction"]) == (case, one["jurisdiction"])]
            starts = [each["day"] for each in own if each["activity"] == one["start_activity"]]
            if not starts or not one["valid_from"] <= min(starts) < min(later, default=date.max):
                continue
            start = min(starts)
            due = deadline_of(one, start, free)
            stops = [each["day"] for each in own if each["activity"] in one["stop_activities"] and each["day"] >= start]
            penalties = [each["day"] for each in own if each["activity"] == PENALTY and one["clock"] == PAYMENT]
            clock = clocks.setdefault(
                (case, one["jurisdiction"], one["clock"]), {"starts": [], "due": [], "breached": [], "penalty": []}
            )
            clock["starts"].append(start)
            clock["due"] += [due] if due else []
            clock["breached"] += [not any(stop < due for stop in stops)] if due else []
            clock["penalty"] += penalties
    return clocks


@settings(max_examples=300, deadline=None)
@given(rules, holidays, st.lists(event, min_size=5, max_size=30), found_rows)
def test_clocks_are_what_counting_them_one_by_one_gives(
    given_rules: list[dict[str, Any]], free: set[date], events: list[dict[str, Any]], found: list[dict[str, Any]]
) -> None:
    wanted = expected(given_rules, free, events)
    there = {tuple(one[name] for name in CLOCK): one for one in found if one["started_on"] or one["end"]}
    rows = compared(terms(given_rules, free), both_sides(events, found)).to_dicts()

    assert {tuple(row[name] for name in CLOCK) for row in rows} == wanted.keys() | there.keys()
    assert len(rows) == len(wanted.keys() | there.keys())
    for row in rows:
        key = tuple(row[name] for name in CLOCK)
        clock = wanted.get(key, {"starts": [], "due": [], "breached": [], "penalty": []})
        one = there.get(key, {"started_on": None, "end": None})
        in_range = [start for start in clock["starts"] if SCOPE[0] <= start <= SCOPE[1]]
        said, said_on = one["end"] or (None, None)
        assert row["expected_on"] == min(in_range, default=None)
        assert row["deadline"] == min(clock["due"], default=None)
        assert row["penalty_on"] == min(clock["penalty"], default=None)
        assert (row["started_on"], row["breached_as"], row["breach_on"]) == (one["started_on"], said, said_on)
        breaches = any(clock["breached"]) and SCOPE[0] <= row["deadline"] <= SCOPE[1]
        months = row["deadline"].strftime("%Y-%m") if breaches else None, said_on.strftime("%Y-%m") if said else None
        is_payment = row["clock"] == PAYMENT and said is not None
        conditions = {
            "started": bool(in_range),
            "missing": bool(in_range) and one["started_on"] is None,
            "extra": not in_range and one["started_on"] is not None,
            "moved": bool(in_range) and one["started_on"] not in {None, row["expected_on"]},
            "recomputed": breaches,
            "unbreached": breaches and not said,
            "overbreached": not breaches and bool(said),
            "breached_elsewhere": None not in months and months[0] != months[1],
            "penalised": bool(clock["penalty"]),
            "compared": is_payment and bool(clock["penalty"]),
            "displaced": is_payment and bool(clock["penalty"]) and row["penalty_on"] != said_on,
            "unpenalised": is_payment and bool(said) and not clock["penalty"] and said_on < LAST_DAY,
        }
        assert {name: bool(row[name]) for name in conditions} == conditions
        assert row["month"] == (months[0] or months[1])


def test_parts_of_the_cases_are_compared_as_the_whole_is() -> None:
    given_rules = [
        {
            "jurisdiction": "IT",
            "clock": "PAYMENT",
            "start_activity": "open",
            "stop_activities": ["pay"],
            "valid_from": DAYS[0],
            "length": 5,
            "unit": "BUSINESS_DAY",
        }
    ]
    at = terms(given_rules, set())
    events = [{"case_id": case, "jurisdiction": "IT", "activity": "open", "day": DAYS[4]} for case in CASES]
    rows = both_sides(events, [])
    whole = [row for batch in side_by_side(at, rows.to_arrow().to_batches()) for row in batch.to_pylist()]
    parts = [side_by_side(at, rows.filter(case_id=case).to_arrow().to_batches()) for case in CASES]

    assert sorted((row["case_id"], row["deadline"]) for row in whole) == [
        ("a", date(2012, 1, 13)),
        ("b", date(2012, 1, 13)),
    ]
    found = [batch for part in parts for batch in part]
    assert all(batch.schema == SIDE_BY_SIDE for batch in found)
    assert sorted(pa.Table.from_batches(found).to_pylist(), key=str) == sorted(whole, key=str)
    assert list(side_by_side(at, [])) == []


def test_a_rule_of_no_known_unit_gives_no_deadline() -> None:
    wrong = {"jurisdiction": "IT", "clock": "PAYMENT", "start_activity": "open", "stop_activities": ["pay"]}
    events = [{"case_id": "a", "jurisdiction": "IT", "activity": "open", "day": DAYS[4]}]
    for unit in ("LUNCH", None):
        at = terms([wrong | {"valid_from": DAYS[0], "length": 5, "unit": unit}], set())
        (row,) = compared(at, both_sides(events, [])).to_dicts()
        assert (row["expected_on"], row["deadline"], row["breached"], row["missing"]) == (DAYS[4], None, None, True)


def test_a_place_without_rules_and_an_event_that_means_nothing_start_no_clock() -> None:
    events = [{"case_id": "a", "jurisdiction": "IT", "activity": "open", "day": DAYS[4]}]
    assert compared(terms([], set()), both_sides(events, [])).is_empty()
