"""Rules of clocks that last a few days, and entries of cases: what the tests of clocks that pause live through."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from disputes import references

from backfill_assets.products.enforcement.pausing.transform import PAUSES, RULES

LENGTH, UNIT, PLACE, ZONE = 6, "CALENDAR_DAY", "IT", "Europe/Rome"
FIRST, LAST = date(1996, 3, 1), date(1996, 4, 30)
BEGAN = date(1996, 3, 20)
SHORT = {
    RULES: [
        {
            "jurisdiction": PLACE,
            "clock": clock,
            "start_activity": "open",
            "stop_activities": ["close"],
            "pause_activities": [],
            "resume_activities": [],
            "valid_from": valid_from,
            "length": length,
            "unit": unit,
            "time_zone": ZONE,
        }
        for clock, valid_from, length, unit in (
            ("PAYMENT", date(1990, 1, 1), LENGTH, UNIT),
            ("PAYMENT", date(1996, 3, 25), 3, UNIT),
            ("APPEAL", date(1996, 3, 5), 4, "BUSINESS_DAY"),
        )
    ],
    PAUSES: [
        {"jurisdiction": PLACE, "clock": clock, "activity": activity, "effect": effect}
        for clock in ("PAYMENT", "APPEAL")
        for activity, effect in (("hold", "PAUSES"), ("wait", "PAUSES"), ("go on", "RESUMES"))
    ],
    "reference.jurisdiction_calendar": [
        one for one in references()["reference.jurisdiction_calendar"] if one["jurisdiction"] == PLACE
    ],
}
"""Rules of a few days, so that much happens around deadlines: one of calendar days that gets shorter, one of business days."""


def at(day: date, hour: int = 10) -> datetime:
    return datetime(day.year, day.month, day.day, hour, tzinfo=UTC)


def entry(case: str, seq: int, activity: str, effective: datetime, recorded: datetime | None = None) -> dict[str, Any]:
    own = {"entry_id": f"{case}-{seq}", "case_id": case, "event_seq": seq, "jurisdiction": PLACE, "activity": activity}
    return own | {"effective_at": effective, "recorded_at": recorded or effective}


BOUNDS = [entry("bounds", 0, "start of the log", at(FIRST)), entry("bounds", 1, "end of the log", at(LAST))]
"""So that the source holds days of each month; no rule knows the activity."""
