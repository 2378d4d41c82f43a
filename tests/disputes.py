"""Disputed cases of the clocks that pause: the questions, what the register says of each, and what must come out.

`python tests/disputes.py` writes the two files of the package: `disputed_register.csv`, which is loaded, and
`disputed_cases.csv`, which the gate compares. What must come out is told day by day (`day_by_day`), never by the transform. The
cases are made up. They are of a year before any other case, so that only a run of that year is held against them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from day_by_day import rows_of

from backfill_assets.products.enforcement import reference
from backfill_assets.products.enforcement.pausing import rules

FOLDER = Path(rules.__file__).parent
YEAR = (date(1996, 1, 1), date(1996, 12, 31))
START, PAUSE, RESUME, STOP = (
    "Insert Fine Notification",
    "Insert Date Appeal to Prefecture",
    "Notify Result Appeal to Offender",
    "Payment",
)
CLOCK = "PAYMENT"
COMPARED = tuple(
    f"{view}_{name}" for view in ("known", "true") for name in ("state", "started_on", "breach_on", "days_paused")
)
DUE = "due"
"""The day of the deadline if nothing happened but the start; a number beside it is of days after that."""


@dataclass(frozen=True)
class Dispute:
    """A question about one day of a clock. Days are numbers of days after the start, or `(DUE, days after the deadline)`.

    An entry is an activity, the day that it holds from, and the day that it was recorded on, where that is another.
    """

    question: str
    entries: tuple[tuple[Any, ...], ...]
    asked: int | tuple[str, int]
    is_absent: bool = False


STARTED = (START, 0)
ONCE = (STARTED, (PAUSE, 5), (RESUME, 9))
BELATED = (STARTED, (PAUSE, 4, 9))
DISPUTES = (
    Dispute("Does the day of the pause count?", ONCE, 5),
    Dispute("Is the day after the pause paused?", ONCE, 6),
    Dispute("Is the day of the resumption paused?", ONCE, 9),
    Dispute("Does the clock run the day after, with a later deadline?", ONCE, 10),
    Dispute("Is the old deadline still one?", ONCE, (DUE, 0)),
    Dispute("Do two pauses add up?", (*ONCE, (PAUSE, 10), (RESUME, 13)), 14),
    Dispute("Does a pause that is never resumed last?", (STARTED, (PAUSE, 5)), (DUE, 9)),
    Dispute("Does a second resumption do anything?", (*ONCE, (RESUME, 11)), 12),
    Dispute("Does a second pause do anything?", (STARTED, (PAUSE, 5), (PAUSE, 7), (RESUME, 9)), 10),
    Dispute("Does a resumption without a pause do anything?", (STARTED, (RESUME, 5)), 6),
    Dispute("Does a pause from before the start count?", ((PAUSE, -2), STARTED), 3),
    Dispute("Does a pause on the day of the start count?", (STARTED, (PAUSE, 0)), 1),
    Dispute("Paused and resumed at one instant, in this order: paused?", (STARTED, (PAUSE, 5), (RESUME, 5)), 6),
    Dispute("Resumed and paused at one instant, in this order: paused?", (STARTED, (RESUME, 5), (PAUSE, 5)), 6),
    Dispute("Does a pause on the day of the deadline come in time?", (STARTED, (PAUSE, (DUE, 0))), (DUE, 0)),
    Dispute("Does a pause on the eve of the deadline come in time?", (STARTED, (PAUSE, (DUE, -1))), (DUE, 0)),
    Dispute("Paid while paused: met?", (STARTED, (PAUSE, 5), (STOP, 8)), 8),
    Dispute("Paid on the eve of the deadline: met?", (STARTED, (STOP, (DUE, -1))), (DUE, -1)),
    Dispute("Paid on the day of the deadline: met?", (STARTED, (STOP, (DUE, 0))), (DUE, 0)),
    Dispute("Paid between the old deadline and the one after a pause: met?", (*ONCE, (STOP, (DUE, 1))), (DUE, 1)),
    Dispute("Paused after it was met: is there anything to say?", (STARTED, (STOP, 5), (PAUSE, 6)), 7, is_absent=True),
    Dispute("A pause that was recorded later, before that: what was known?", BELATED, 7),
    Dispute("A pause that was recorded later, on that day: what was known?", BELATED, 9),
    Dispute("A pause recorded after the breach, before that: breached?", (STARTED, (PAUSE, 4, (DUE, 6))), (DUE, 3)),
    Dispute("A pause recorded after the breach, on that day: breached?", (STARTED, (PAUSE, 4, (DUE, 6))), (DUE, 6)),
    Dispute("A payment recorded after the breach, before that: met?", (STARTED, (STOP, 6, (DUE, 4))), (DUE, 2)),
    Dispute("A payment recorded after the breach, on that day: met?", (STARTED, (STOP, 6, (DUE, 4))), (DUE, 4)),
    Dispute("A start that was recorded later, before that: running?", ((START, 0, 8),), 3),
    Dispute("A start that was recorded later, on that day: since when?", ((START, 0, 8),), 8),
    Dispute("A resumption that was recorded later: paused?", (STARTED, (PAUSE, 3), (RESUME, 6, 12)), 10),
    Dispute("A resumption that was recorded later, on that day: paused?", (STARTED, (PAUSE, 3), (RESUME, 6, 12)), 12),
    Dispute("A pause that was recorded in advance, before it holds: paused?", (STARTED, (PAUSE, 9, 2)), 9),
    Dispute("A pause that was recorded in advance, once it holds: paused?", (STARTED, (PAUSE, 9, 2)), 10),
)


def references() -> dict[str, list[dict[str, Any]]]:
    """Return the shipped reference tables, with the calendar of the year of the disputes and those beside it."""
    shipped = [
        {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(one).items()} for one in reference.sla_rules()
    ]
    calendar = [asdict(day) for day in reference.jurisdiction_calendar(1995, 1998)]
    return {
        "reference.sla_rules": shipped,
        "reference.pause_rules": [dict(one) for one in rules.pause_rules()],
        "reference.jurisdiction_calendar": calendar,
    }


def cases() -> Iterator[tuple[str, str, Dispute, date, date]]:
    """Yield each disputed case: its id, jurisdiction, question, start and first deadline."""
    business_days = reference.business_days_of(reference.jurisdiction_calendar(1995, 1998))
    for place, jurisdiction in enumerate(reference.TIME_ZONES):
        for number, dispute in enumerate(DISPUTES):
            start = YEAR[0] + timedelta(days=(number * 11 + place * 3) % 250 + 3)
            rule = reference.rule_for(reference.sla_rules(), jurisdiction, CLOCK, start)
            due = reference.breach_date(start, rule, business_days[jurisdiction])
            yield f"D-{jurisdiction}-{number + 1:02}", jurisdiction, dispute, start, due


def register() -> list[dict[str, Any]]:
    """Return the entries of all disputed cases, many close to midnight, and one by which the register reaches to the year's end."""
    rows = []
    for number, (case, jurisdiction, dispute, start, due) in enumerate(cases()):
        at = time(23, 40) if number % 2 else time(0, 20)
        zone = ZoneInfo(reference.TIME_ZONES[jurisdiction])
        for seq, (activity, *when) in enumerate(dispute.entries):
            effective, recorded = (datetime.combine(_day(day, start, due), at, zone) for day in (when[0], when[-1]))
            own = {"entry_id": f"{case}-{seq}", "case_id": case, "event_seq": seq, "jurisdiction": jurisdiction}
            rows.append(own | {"activity": activity, "effective_at": effective, "recorded_at": recorded})
    own = {"entry_id": "D-END-0", "case_id": "D-END", "event_seq": 0, "jurisdiction": "IT", "activity": "Send Fine"}
    last = datetime.combine(YEAR[1], time(12), ZoneInfo(reference.TIME_ZONES["IT"]))
    return [*rows, own | {"effective_at": last, "recorded_at": last}]


def expected() -> list[dict[str, Any]]:
    """Return what must come out for each disputed case, told day by day."""
    own: dict[str, list[dict[str, Any]]] = {}
    for row in register():
        own.setdefault(row["case_id"], []).append(row)
    rows, known = [], references()
    for case, _, dispute, start, due in cases():
        day = _day(dispute.asked, start, due)
        # on to where all is recorded: of an ended clock there is a row as long as less is known
        told = rows_of(own[case], known, day, due + timedelta(days=10))
        row = next((one for one in told if (one["clock"], one["business_date"]) == (CLOCK, day)), None)
        assert (row is None) is dispute.is_absent, f"{case}: {dispute.question} {day} {row}"
        values = {name: None if row is None else row[name] for name in COMPARED}
        beside = {"is_absent": dispute.is_absent, "question": dispute.question}
        rows.append({"case_id": case, "clock": CLOCK, "business_date": day} | values | beside)
    return rows


def _day(given: int | tuple[str, int], start: date, due: date) -> date:
    return start + timedelta(days=given) if isinstance(given, int) else due + timedelta(days=given[1])


def text_of(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as CSV text, as the gate and a load read them."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, (date, datetime)) else value


FILES = {"disputed_register.csv": register, "disputed_cases.csv": expected}

if __name__ == "__main__":
    for name, rows in FILES.items():
        (FOLDER / name).write_text(text_of(rows()), encoding="utf-8")
