"""The rules, calendars and date arithmetic that the enforcement clocks rest on."""

from collections import Counter
from dataclasses import replace
from datetime import date, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill_assets.products.enforcement.raw import ACTIVITIES
from backfill_assets.products.enforcement.reference import (
    TIME_ZONES,
    CalendarDay,
    SlaRule,
    breach_date,
    business_days_of,
    calendar_version,
    jurisdiction_calendar,
    rule_for,
    sla_rules,
)

CALENDAR = jurisdiction_calendar(2005, 2015)
BUSINESS_DAYS = business_days_of(CALENDAR)
DAY = {(row.jurisdiction, row.day): row for row in CALENDAR}

# How long an example takes says nothing about the domain, only about the machine.
unhurried = settings(deadline=None)
starts = st.dates(date(2005, 1, 1), date(2014, 6, 30))


def rule(jurisdiction: str, clock: str, on: date = date(2012, 1, 1)) -> SlaRule:
    return rule_for(sla_rules(), jurisdiction, clock, on)


@pytest.mark.parametrize(("created", "length"), [(date(2010, 8, 12), 150), (date(2010, 8, 13), 90)])
def test_italy_shortened_notification_on_13_august_2010(created: date, length: int) -> None:
    assert rule("IT", "NOTIFICATION", created).length == length


def test_an_italian_penalty_falls_60_calendar_days_after_notification() -> None:
    payment = rule("IT", "PAYMENT")
    # Case A100 of the public log: notified on 2007-01-15, penalty on 2007-03-16.
    assert breach_date(date(2007, 1, 15), payment, ()) == date(2007, 3, 16)


def test_a_breach_on_a_sunday_or_holiday_is_not_rolled_when_days_are_calendar_days() -> None:
    assert breach_date(date(2010, 10, 26), rule("IT", "PAYMENT"), ()) == date(2010, 12, 25)


def test_new_york_counts_business_days_over_its_own_holidays() -> None:
    # Friday 2 July 2010; Monday 5 July is Independence Day observed.
    one_day = replace(rule("US-NY", "PAYMENT"), length=1)
    assert breach_date(date(2010, 7, 2), one_day, BUSINESS_DAYS["US-NY"]) == date(2010, 7, 6)
    assert (rule("US-NY", "PAYMENT").length, rule("US-NY", "PAYMENT").unit) == (30, "BUSINESS_DAY")


@unhurried
@given(start=starts, jurisdiction=st.sampled_from(sorted(TIME_ZONES)), length=st.integers(1, 60))
def test_a_business_day_clock_breaches_on_the_length_th_business_day_after_its_start(
    start: date, jurisdiction: str, length: int
) -> None:
    clock = replace(rule(jurisdiction, "APPEAL"), length=length, unit="BUSINESS_DAY")
    breach = breach_date(start, clock, BUSINESS_DAYS[jurisdiction])
    after_start = [start + timedelta(days=n) for n in range(1, (breach - start).days + 1)]
    assert sum(DAY[jurisdiction, day].is_business_day for day in after_start) == length
    assert DAY[jurisdiction, breach].is_business_day


@pytest.mark.parametrize("start", [date(2015, 12, 20), date(2004, 12, 31), date(2030, 1, 1)])
def test_a_count_that_leaves_the_calendar_is_refused(start: date) -> None:
    with pytest.raises(ValueError, match=r"'US-NY' started on .* covers 2005-01-03 to 2015-12-31"):
        breach_date(start, rule("US-NY", "PAYMENT"), BUSINESS_DAYS["US-NY"])


def test_a_count_without_a_calendar_is_refused() -> None:
    with pytest.raises(ValueError, match="covers nothing"):
        breach_date(date(2010, 1, 1), rule("US-NY", "PAYMENT"), ())


def test_a_date_before_every_rule_has_none() -> None:
    with pytest.raises(LookupError, match="no PAYMENT rule of jurisdiction 'IT' is in force on 1989-12-31"):
        rule("IT", "PAYMENT", date(1989, 12, 31))


def test_an_unknown_jurisdiction_has_no_rule() -> None:
    with pytest.raises(LookupError, match="'XX'"):
        rule("XX", "PAYMENT")


def test_every_jurisdiction_has_every_clock_from_one_day_on_once() -> None:
    keys = Counter((row.jurisdiction, row.clock, row.valid_from) for row in sla_rules())
    assert set(keys.values()) == {1}
    assert {key[:2] for key in keys} == {
        (jurisdiction, clock) for jurisdiction in TIME_ZONES for clock in ("NOTIFICATION", "PAYMENT", "APPEAL")
    }


@pytest.mark.parametrize("row", sla_rules(), ids=lambda row: f"{row.jurisdiction}-{row.clock}-{row.valid_from}")
def test_a_shipped_rule_is_bounded_and_speaks_of_known_activities_and_zones(row: SlaRule) -> None:
    assert 0 < row.length <= {"CALENDAR_DAY": 150, "BUSINESS_DAY": 60}[row.unit]
    assert {row.start_activity, *row.stop_activities} <= set(ACTIVITIES)
    assert (row.pause_activities, row.resume_activities) == ((), ())
    assert ZoneInfo(row.time_zone).key == TIME_ZONES[row.jurisdiction]


def test_the_calendar_has_each_day_of_each_jurisdiction_once() -> None:
    days = [date(2005, 1, 1) + timedelta(days=n) for n in range((date(2016, 1, 1) - date(2005, 1, 1)).days)]
    assert len(CALENDAR) == len(DAY)
    assert set(DAY) == {(jurisdiction, day) for jurisdiction in TIME_ZONES for day in days}


def test_a_business_day_is_a_weekday_without_a_holiday() -> None:
    assert all(row.is_business_day == (row.day.weekday() < 5 and row.holiday is None) for row in CALENDAR)


@pytest.mark.parametrize(
    ("jurisdiction", "day", "holiday"),
    [
        ("IT", date(2010, 8, 16), None),
        ("IT", date(2011, 4, 25), "Easter Monday; Liberation Day"),
        ("PT", date(2010, 6, 10), "Day of Portugal"),
        ("US-NY", date(2010, 2, 12), "Lincoln's Birthday"),
        ("NZ", date(2010, 4, 26), None),
        ("NZ", date(2010, 12, 28), "Boxing Day (observed)"),
    ],
)
def test_a_jurisdiction_keeps_its_own_holidays(jurisdiction: str, day: date, holiday: str | None) -> None:
    found = DAY[jurisdiction, day]
    assert found.is_business_day == (holiday is None)
    assert (found.holiday or "").startswith(holiday or "")
    assert (found.holiday is None) == (holiday is None)


def test_the_years_asked_for_do_not_change_the_days_within_them() -> None:
    # 2010-12-31 is New Year's Day of 2011 observed: a holiday that another year causes.
    alone = jurisdiction_calendar(2010, 2010)
    assert alone == [row for row in CALENDAR if row.day.year == 2010]
    assert not DAY["US-NY", date(2010, 12, 31)].is_business_day


def test_the_calendar_covers_1995_to_2035_unless_told_otherwise() -> None:
    days = [row.day for row in jurisdiction_calendar()]
    assert (min(days), max(days)) == (date(1995, 1, 1), date(2035, 12, 31))


def test_reversed_years_are_refused() -> None:
    with pytest.raises(ValueError, match="calendar from 2011 to 2010"):
        jurisdiction_calendar(2011, 2010)


def test_business_days_are_ascending_whatever_the_order_of_the_calendar() -> None:
    rows = [
        CalendarDay("IT", date(2010, 1, 5), is_business_day=True, holiday=None),
        CalendarDay("IT", date(2010, 1, 4), is_business_day=True, holiday=None),
        CalendarDay("IT", date(2010, 1, 3), is_business_day=False, holiday=None),
    ]
    assert business_days_of(rows) == {"IT": (date(2010, 1, 4), date(2010, 1, 5))}


def test_the_calendar_names_the_release_it_comes_from() -> None:
    name, _, release = calendar_version().partition("-")
    assert name == "holidays"
    assert all(part.isdigit() for part in release.split("."))
