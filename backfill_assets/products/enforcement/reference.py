"""Reference data of the enforcement product, as plain rows.

Put here the rules of the service-level clocks, the calendars of the jurisdictions,
their time zones, and the date arithmetic that follows from them. The arithmetic is
plain Python on purpose: the generator builds its logs with it and tests use it as an
oracle against the engine's own computation.

Keep out how these rows are stored, versioned or joined (that is the assets' work), the
raw shape of a case log (`raw`), and anything that runs a clock over events.

Italy's rules are the law's as the public case log shows them (4TU, doi
10.4121/uuid:270fd440): fines created before 2010-08-13 had to be notified within 150
days, later ones within 90, and the penalty falls 60 calendar days after notification.
The rules of the other jurisdictions are invented, in the manner of theirs.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from importlib.metadata import version
from types import MappingProxyType
from typing import Final, Literal

import holidays

Clock = Literal["NOTIFICATION", "PAYMENT", "APPEAL"]
Unit = Literal["CALENDAR_DAY", "BUSINESS_DAY"]

TIME_ZONES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "IT": "Europe/Rome",
        "PT": "Europe/Lisbon",
        "US-NY": "America/New_York",
        "NZ": "Pacific/Auckland",
    }
)
"""The IANA zone in which a jurisdiction reads the date of an event."""

# Jurisdiction -> (country, subdivision) as the `holidays` package names them.
_HOLIDAY_KEYS: Final[Mapping[str, tuple[str, str | None]]] = MappingProxyType(
    {"IT": ("IT", None), "PT": ("PT", None), "US-NY": ("US", "NY"), "NZ": ("NZ", None)}
)

_SATURDAY: Final = 5


@dataclass(frozen=True, slots=True)
class SlaRule:
    """How long one clock may run in one jurisdiction, from a date on.

    The clock starts at an event of `start_activity` and is stopped by the first later
    event of `stop_activities`. A stop on the breach date itself is a breach: the clock
    is met only by a stop before it. Dates are those of `time_zone`.
    """

    jurisdiction: str
    clock: Clock
    start_activity: str
    stop_activities: tuple[str, ...]
    pause_activities: tuple[str, ...]
    resume_activities: tuple[str, ...]
    valid_from: date
    length: int
    unit: Unit
    time_zone: str


@dataclass(frozen=True, slots=True)
class CalendarDay:
    """One day of one jurisdiction; `holiday` names the public holiday, if it is one."""

    jurisdiction: str
    day: date
    is_business_day: bool
    holiday: str | None


def sla_rules() -> list[SlaRule]:
    """Return the shipped rules, one row a (jurisdiction, clock, valid_from).

    No clock is longer than 150 calendar days or 60 business days, and none pauses.
    """
    always = date(1990, 1, 1)
    return [
        _notification("IT", always, 150, "CALENDAR_DAY"),
        # The Italian law that shortened notification, in force from this day on.
        _notification("IT", date(2010, 8, 13), 90, "CALENDAR_DAY"),
        _payment("IT", always, 60, "CALENDAR_DAY"),
        _appeal("IT", always, 30, "BUSINESS_DAY"),
        _notification("PT", always, 120, "CALENDAR_DAY"),
        _payment("PT", always, 15, "BUSINESS_DAY"),
        _appeal("PT", always, 20, "BUSINESS_DAY"),
        _notification("US-NY", always, 60, "BUSINESS_DAY"),
        _payment("US-NY", always, 30, "BUSINESS_DAY"),
        _appeal("US-NY", always, 45, "CALENDAR_DAY"),
        _notification("NZ", always, 90, "CALENDAR_DAY"),
        _payment("NZ", always, 28, "CALENDAR_DAY"),
        _appeal("NZ", always, 25, "BUSINESS_DAY"),
    ]


def rule_for(rules: Iterable[SlaRule], jurisdiction: str, clock: str, on: date) -> SlaRule:
    """Return the rule in force on a local date: the latest `valid_from` not after it.

    Raises LookupError if no rule of that jurisdiction and clock is in force then.
    """
    in_force = [
        rule for rule in rules if rule.jurisdiction == jurisdiction and rule.clock == clock and rule.valid_from <= on
    ]
    if not in_force:
        message = (
            f"no {clock} rule of jurisdiction {jurisdiction!r} is in force on {on}: "
            "a clock needs a rule with valid_from on or before its start; "
            "add one to sla_rules()"
        )
        raise LookupError(message)
    return max(in_force, key=lambda rule: rule.valid_from)


def breach_date(start: date, rule: SlaRule, business_days: Sequence[date]) -> date:
    """Return the local date on which a clock started on `start` breaches.

    Calendar days: `start` plus the length. Business days: the length-th business day
    after `start`, which is itself not counted, be it a business day or not.

    `business_days` are those of the rule's jurisdiction, ascending and of whole years
    (see `business_days_of`). Raises ValueError if they do not reach from `start` to
    the breach, for a count over a calendar with an end missing would be silently wrong.
    """
    if rule.unit == "CALENDAR_DAY":
        return start + timedelta(days=rule.length)
    position = bisect_right(business_days, start) + rule.length - 1
    if position >= len(business_days) or position < 0 or start.year < business_days[0].year:
        known = f"{business_days[0]} to {business_days[-1]}" if business_days else "nothing"
        message = (
            f"the {rule.clock} clock of {rule.jurisdiction!r} started on {start} needs "
            f"{rule.length} business days, and the calendar covers {known}: "
            "it must reach from the start to the breach; build jurisdiction_calendar() "
            "for more years"
        )
        raise ValueError(message)
    return business_days[position]


def jurisdiction_calendar(first_year: int = 1995, last_year: int = 2035) -> list[CalendarDay]:
    """Return one row a (jurisdiction, day) of the years, both included.

    A business day is Monday to Friday and no public holiday of the jurisdiction. The
    holidays are those of the installed `holidays` package, whose releases correct past
    dates: store `calendar_version()` beside the rows. Raises ValueError if the years
    are reversed.
    """
    if first_year > last_year:
        message = f"calendar from {first_year} to {last_year}: the first year must not be after the last; swap them"
        raise ValueError(message)
    first = date(first_year, 1, 1)
    days = [first + timedelta(days=offset) for offset in range((date(last_year, 12, 31) - first).days + 1)]
    rows: list[CalendarDay] = []
    for jurisdiction, (country, subdivision) in _HOLIDAY_KEYS.items():
        public = holidays.country_holidays(
            country,
            subdiv=subdivision,
            years=range(first_year, last_year + 1),
            # A year asked for later must not appear on its own: the rows are these.
            expand=False,
            # Named, so that the machine's locale never chooses the names.
            language="en_US",
        )
        for day in days:
            holiday = public.get(day)
            is_business_day = day.weekday() < _SATURDAY and holiday is None
            rows.append(CalendarDay(jurisdiction, day, is_business_day, holiday))
    return rows


def business_days_of(calendar: Iterable[CalendarDay]) -> dict[str, tuple[date, ...]]:
    """Return the business days of each jurisdiction of a calendar, ascending."""
    days: dict[str, list[date]] = {}
    for row in calendar:
        of_jurisdiction = days.setdefault(row.jurisdiction, [])
        if row.is_business_day:
            of_jurisdiction.append(row.day)
    return {jurisdiction: tuple(sorted(found)) for jurisdiction, found in days.items()}


def calendar_version() -> str:
    """Return the version of the calendar's source, such as ``holidays-0.108``."""
    return f"holidays-{version('holidays')}"


def _notification(jurisdiction: str, valid_from: date, length: int, unit: Unit) -> SlaRule:
    return SlaRule(
        jurisdiction=jurisdiction,
        clock="NOTIFICATION",
        start_activity="Create Fine",
        # Who pays beforehand no longer has to be notified.
        stop_activities=("Insert Fine Notification", "Payment"),
        pause_activities=(),
        resume_activities=(),
        valid_from=valid_from,
        length=length,
        unit=unit,
        time_zone=TIME_ZONES[jurisdiction],
    )


def _payment(jurisdiction: str, valid_from: date, length: int, unit: Unit) -> SlaRule:
    return SlaRule(
        jurisdiction=jurisdiction,
        clock="PAYMENT",
        start_activity="Insert Fine Notification",
        stop_activities=("Payment",),
        pause_activities=(),
        resume_activities=(),
        valid_from=valid_from,
        length=length,
        unit=unit,
        time_zone=TIME_ZONES[jurisdiction],
    )


def _appeal(jurisdiction: str, valid_from: date, length: int, unit: Unit) -> SlaRule:
    return SlaRule(
        jurisdiction=jurisdiction,
        clock="APPEAL",
        start_activity="Insert Date Appeal to Prefecture",
        stop_activities=("Send Appeal to Prefecture",),
        pause_activities=(),
        resume_activities=(),
        valid_from=valid_from,
        length=length,
        unit=unit,
        time_zone=TIME_ZONES[jurisdiction],
    )
