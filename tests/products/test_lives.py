"""Clocks lived through entry by entry, as the reconciliations recompute them, against the loop that lives day by day. No Spark."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from typing import Any

import day_by_day
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from short_clocks import BEGAN, FIRST, LAST, PLACE, SHORT, at, entry

from backfill_assets.products.enforcement.pausing import lives
from backfill_assets.products.enforcement.pausing.transform import PAUSES, RULES

EPOCH = date(1970, 1, 1)
LONG_AFTER = LAST + timedelta(days=60)
"""Every entry is known by then: the loop lives on to it, and is cut to the range afterwards."""


def number(day: date) -> int:
    return (day - EPOCH).days


def terms(first: date, last: date) -> lives.Terms:
    rules: dict[tuple[str, str], list[lives.Rule]] = {}
    ordered = sorted(SHORT[RULES], key=lambda one: (one["clock"], one["valid_from"]))
    for one in ordered:
        later = [number(other["valid_from"]) for other in ordered if other["clock"] == one["clock"]]
        until = min((day for day in later if day > number(one["valid_from"])), default=10**7)
        own = (one["start_activity"], frozenset(one["stop_activities"]), number(one["valid_from"]), until)
        rules.setdefault((PLACE, one["clock"]), []).append(
            lives.Rule(*own, one["length"], one["unit"] == "BUSINESS_DAY")
        )
    effects: dict[tuple[str, str], dict[str, bool]] = {}
    for one in SHORT[PAUSES]:
        effects.setdefault((PLACE, one["clock"]), {})[one["activity"]] = one["effect"] == "PAUSES"
    calendar = SHORT["reference.jurisdiction_calendar"]
    days = sorted(number(one["day"]) for one in calendar if one["is_business_day"])
    reach = (min(number(one["day"]) for one in calendar), max(number(one["day"]) for one in calendar))
    return lives.Terms(number(first), number(last), rules, effects, {PLACE: days}, {PLACE: reach})


def found_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the gate is given of rows: each clock with its days, its states and its sums."""
    clocks: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        clocks.setdefault(row["clock"], []).append(row)
    made = []
    for clock, of in clocks.items():
        told = {"case_id": "one", "jurisdiction": PLACE, "clock": clock, "activity": None, "days": len(of)}
        for view in ("known", "true"):
            counts = Counter(row[f"{view}_state"] for row in of)
            told |= {f"{view}_{state}": counts[state] for state in lives.STATES}
            there = [row for row in of if row[f"{view}_state"] is not None]
            told[f"{view}_sum"] = sum(
                lives.weight(
                    number(row["business_date"]),
                    lives.STATES.index(row[f"{view}_state"]) + 1,
                    number(row[f"{view}_started_on"]),
                    number(row[f"{view}_breach_on"]) if row[f"{view}_breach_on"] else 0,
                    row[f"{view}_days_paused"],
                )
                for row in there
            )
        made.append(told)
    return made


def compared(register: list[dict[str, Any]], rows: list[dict[str, Any]], first: date, last: date) -> dict[str, Any]:
    """Return what the comparison says of each clock of a register's one case, by clock."""
    zone = day_by_day.ZoneInfo(SHORT[RULES][0]["time_zone"])
    told = [day_by_day.entry_of(one, zone) for one in register]
    entries = [
        {
            "case_id": "one",
            "jurisdiction": PLACE,
            "activity": one.activity,
            "at": int(one.at.timestamp()),
            "event_seq": one.seq,
            "day": number(one.holds_from),
            "known_on": max(number(one.holds_from), number(one.recorded_on)),
        }
        for one in told
    ]
    columns = dict.fromkeys(name for row in [*entries, *found_of(rows)] for name in row)
    both = [{name: row.get(name) for name in columns} for row in [*entries, *found_of(rows)]]
    batches = pa.Table.from_pylist(both).to_batches() if both else []
    said = [row for batch in lives.side_by_side(terms(first, last), batches) for row in batch.to_pylist()]
    return {row["clock"]: row for row in said}


def told(register: list[dict[str, Any]], first: date, last: date) -> list[dict[str, Any]]:
    rows = day_by_day.rows_of(register, SHORT, first, LONG_AFTER)
    return [row for row in rows if row["business_date"] <= last]


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(("open", "open", "close", "hold", "hold", "wait", "go on", "go on")),
        st.integers(0, 20),
        st.sampled_from((0, 10, 23)),
        st.one_of(st.just(0), st.integers(-4, 12)),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=8,
)


def register_of(entries: list[tuple[str, int, int, int, int]]) -> list[dict[str, Any]]:
    rows = []
    for activity, days, hour, late, seq in entries:
        holds = at(date(1996, 3, 14) + timedelta(days=days), hour)
        rows.append(entry("one", seq, activity, holds, holds + timedelta(days=late)))
    return rows


@settings(deadline=None, max_examples=400)
@given(entries=ENTRIES, since=st.integers(0, 30), long=st.integers(0, 40))
def test_entry_by_entry_is_day_by_day_in_whatever_range(
    entries: list[tuple[str, int, int, int, int]], since: int, long: int
) -> None:
    register, first = register_of(entries), FIRST + timedelta(days=since)
    last = first + timedelta(days=long)
    rows = told(register, first, last)
    said = compared(register, rows, first, last)
    assert set(said) == {row["clock"] for row in rows}
    wrong = {
        clock: row
        for clock, row in said.items()
        if not (row["expected"] and row["both"])
        or any(row[name] for name in ("missing", "extra", "days_differ", "known_differs", "true_differs"))
    }
    assert wrong == {}


CASE = [
    entry("one", 0, "open", at(BEGAN)),
    entry("one", 1, "hold", at(BEGAN + timedelta(days=2)), at(BEGAN + timedelta(days=5))),
    entry("one", 2, "go on", at(BEGAN + timedelta(days=7))),
]


def conditions_after(change: Any) -> set[str]:
    """Return what is said to be wrong with the PAYMENT clock of the case, once its rows have been changed."""
    rows = [row for row in told(CASE, FIRST, LAST) if row["clock"] == "PAYMENT"]
    said = compared(CASE, change([dict(row) for row in rows]), FIRST, LAST)["PAYMENT"]
    return {name for name in lives.CONDITIONS if said[name]} - {"expected", "both"}


def test_what_is_wrong_with_rows_is_said_by_view() -> None:
    def with_last(**values: Any) -> Any:
        return lambda rows: [*rows[:-1], rows[-1] | values]

    def swapped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The states of two days are exchanged: as many are in each as before."""
        one, other = next(
            (a, b)
            for a in range(len(rows))
            for b in range(a, len(rows))
            if rows[a]["true_state"] == "RUNNING" and rows[b]["true_state"] == "PAUSED"
        )
        rows[one]["true_state"], rows[other]["true_state"] = "PAUSED", "RUNNING"
        return rows

    assert conditions_after(lambda rows: rows) == set()
    assert conditions_after(lambda _: []) == {"missing"}
    assert "days_differ" in conditions_after(lambda rows: rows[:-1])
    assert conditions_after(with_last(true_state="MET")) == {"true_differs"}
    assert conditions_after(with_last(known_days_paused=1)) == {"known_differs"}
    assert conditions_after(with_last(known_breach_on=BEGAN)) == {"known_differs"}
    assert conditions_after(swapped) == {"true_differs"}
    nobody = compared([], told(CASE, FIRST, LAST), FIRST, LAST)
    assert {row["extra"] for row in nobody.values()} == {True}
