"""Clocks that pause, told day by day: the plainest reading of the rules of docs/case-study.md, and slow.

For each day a case is lived through again from its first entry on, with the entries that a view has on that day. Nothing here
counts stretches, looks a deadline up, or knows Spark; nothing is taken from the transform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

ONE_DAY = timedelta(days=1)
OPEN = ("RUNNING", "PAUSED")
NAMES = ("state", "started_on", "breach_on", "days_paused")
Row = Mapping[str, Any]
Told = tuple[str, date, date | None, int] | None
"""State, start, deadline and paused days of a clock on a day; None before it has started."""


@dataclass(frozen=True)
class Entry:
    """An entry of a case, by the days of its jurisdiction."""

    at: datetime
    seq: int
    activity: str
    holds_from: date
    recorded_on: date


def entry_of(row: Row, zone: ZoneInfo) -> Entry:
    return Entry(
        row["effective_at"],
        row["event_seq"],
        row["activity"],
        row["effective_at"].astimezone(zone).date(),
        row["recorded_at"].astimezone(zone).date(),
    )


def started(rules: Sequence[Row], entries: Sequence[Entry]) -> tuple[Row, date] | None:
    """Return the rule of a clock and the day of its start: the rule is the one in force on the first day of its own start activity."""
    ordered = sorted(rules, key=lambda rule: rule["valid_from"])
    for number, rule in enumerate(ordered):
        days = [one.holds_from for one in entries if one.activity == rule["start_activity"]]
        until = ordered[number + 1]["valid_from"] if number + 1 < len(ordered) else date.max
        if days and rule["valid_from"] <= min(days) < until:
            return rule, min(days)
    return None


def lived(
    rules: Sequence[Row],
    effects: Mapping[str, str],
    entries: Sequence[Entry],
    today: date,
    is_business_day: Callable[[date], bool],
) -> Told:
    """Live through a clock from its start to `today`, a day at a time."""
    begun = started(rules, entries)
    if begun is None:
        return None
    rule, start = begun
    counts = is_business_day if rule["unit"] == "BUSINESS_DAY" else _every_day
    counted, paused, days_paused, day = 0, False, 0, start
    while True:
        if day > start and not paused and counts(day):
            counted += 1
            if counted == rule["length"]:
                return "BREACHED", start, day, days_paused
        due = None if paused else _deadline(day, rule["length"] - counted, counts)
        of_day = [one for one in entries if one.holds_from == day]
        if any(one.activity in rule["stop_activities"] for one in of_day):
            return "MET", start, due, days_paused
        days_paused += paused
        if day == today:
            return "PAUSED" if paused else "RUNNING", start, due, days_paused
        paused = _paused_after(paused, of_day, effects)
        day += ONE_DAY


def _every_day(_: date) -> bool:
    return True


def _deadline(after: date, left: int, counts: Callable[[date], bool]) -> date:
    """Return the day on which a clock is breached of which so many days are left, if nothing happens any more."""
    while left:
        after += ONE_DAY
        left -= counts(after)
    return after


def _paused_after(paused: bool, of_day: Sequence[Entry], effects: Mapping[str, str]) -> bool:
    """Return whether a clock is paused after the entries of a day; of one instant and place the pause comes first."""
    for one in sorted(of_day, key=lambda one: (one.at, one.seq, effects.get(one.activity) == "RESUMES")):
        if one.activity in effects:
            paused = effects[one.activity] == "PAUSES"
    return paused


def rows_of(
    register: Sequence[Row], references: Mapping[str, Sequence[Row]], first: date, last: date
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the days from `first` to `last` that a register makes."""
    calendar = {
        (one["jurisdiction"], one["day"]): one["is_business_day"]
        for one in references["reference.jurisdiction_calendar"]
    }
    cases = sorted({(one["case_id"], one["jurisdiction"]) for one in register})
    clocks = sorted({(one["jurisdiction"], one["clock"]) for one in references["reference.sla_rules"]})
    for case, place in cases:
        for clock in (clock for of, clock in clocks if of == place):
            rules = [
                one
                for one in references["reference.sla_rules"]
                if (one["jurisdiction"], one["clock"]) == (place, clock)
            ]
            effects = {
                one["activity"]: one["effect"]
                for one in references["reference.pause_rules"]
                if (one["jurisdiction"], one["clock"]) == (place, clock)
            }
            zone = ZoneInfo(rules[0]["time_zone"])
            entries = [
                entry_of(one, zone) for one in register if (one["case_id"], one["jurisdiction"]) == (case, place)
            ]

            if started(rules, entries) is None:
                continue

            def is_business_day(day: date, place: str = place) -> bool:
                return bool(calendar[place, day])

            for day, known, true in _days(rules, effects, entries, last, is_business_day):
                if day >= first:
                    own = {"case_id": case, "clock": clock, "jurisdiction": place, "business_date": day}
                    views = {"known": known or (None,) * 4, "true": true or (None,) * 4}
                    yield own | {
                        f"{view}_{name}": value
                        for view, told in views.items()
                        for name, value in zip(NAMES, told, strict=True)
                    }


def _days(
    rules: Sequence[Row],
    effects: Mapping[str, str],
    entries: Sequence[Entry],
    last: date,
    is_business_day: Callable[[date], bool],
) -> list[tuple[date, Told, Told]]:
    """Return the days of a clock from the first on which it is known or true to the last on which anything changes."""
    found: list[tuple[date, Told, Told]] = []
    day, before = min((one.holds_from for one in entries), default=last), (None, None)
    kept = 0
    while day <= last:
        holding = [one for one in entries if one.holds_from <= day]
        known = lived(rules, effects, [one for one in holding if one.recorded_on <= day], day, is_business_day)
        true = lived(rules, effects, holding, day, is_business_day)
        if known or true:
            found.append((day, known, true))
            is_open = any(told is not None and told[0] in OPEN for told in (known, true))
            if is_open or (known, true) != before:
                kept = len(found)
        before = known, true
        day += ONE_DAY
    return found[:kept]


def lived_through(
    rules: Sequence[Row],
    effects: Mapping[str, str],
    entries: Sequence[Entry],
    last: date,
    is_business_day: Callable[[date], bool],
) -> Iterator[tuple[date, Told]]:
    """Yield each day of a clock up to the one on which it ends, or the last, and what `lived` says of it: in one life.

    Of a clock whose entries were all known as they happened: what was known of a day is then what is true of it.
    """
    begun = started(rules, entries)
    if begun is None:
        return
    rule, start = begun
    counts = is_business_day if rule["unit"] == "BUSINESS_DAY" else _every_day
    by_day: dict[date, list[Entry]] = {}
    for one in entries:
        by_day.setdefault(one.holds_from, []).append(one)
    counted, paused, days_paused, day, due = 0, False, 0, start, _deadline(start, rule["length"], counts)
    while day <= last:
        if day > start and not paused and counts(day):
            counted += 1
            if counted == rule["length"]:
                yield day, ("BREACHED", start, day, days_paused)
                return
        of_day = by_day.get(day, ())
        if any(one.activity in rule["stop_activities"] for one in of_day):
            yield day, ("MET", start, None if paused else due, days_paused)
            return
        days_paused += paused
        yield day, ("PAUSED" if paused else "RUNNING", start, None if paused else due, days_paused)
        was, paused = paused, _paused_after(paused, of_day, effects)
        if was and not paused:  # looked up again only where it can have moved
            due = _deadline(day, rule["length"] - counted, counts)
        day += ONE_DAY
