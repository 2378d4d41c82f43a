"""Clocks that pause: the transform against a loop that lives through every case day by day, and what pauses mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date, datetime, timedelta
from typing import Any

import day_by_day
import polars as pl
import pytest
from disputes import COMPARED, DISPUTES, FILES, FOLDER, YEAR, expected, references, register, text_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from short_clocks import BEGAN, BOUNDS, FIRST, LAST, LENGTH, PLACE, SHORT, at, entry

from backfill_assets.products.enforcement import reference
from backfill_assets.products.enforcement.pausing import CASE_CLOCK_DAILY, DISPUTED, PRODUCT
from backfill_assets.products.enforcement.pausing.register import generate
from backfill_assets.products.enforcement.pausing.transform import PAUSES, RULES, warm_up
from backfill_assets.testing import Trial
from manifests.errors import PlanRefused
from manifests.reading import load_manifest


def trial(rows: Sequence[dict[str, Any]]) -> Trial:
    return Trial(
        CASE_CLOCK_DAILY,
        "1.0.0",
        [*BOUNDS, *rows],
        publish_range=(FIRST, LAST),
        references=SHORT,
        inputs=PRODUCT.inputs,
    )


def told(source: list[dict[str, Any]], known: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return list(day_by_day.rows_of(source, known, FIRST, LAST))


# --- the transform against the loop -----------------------------------------------------------------------------------

ACTIVITIES = ("open", "open", "close", "hold", "hold", "wait", "go on", "go on")
INSTANTS = st.builds(
    lambda days, hour: at(date(1996, 3, 14) + timedelta(days=days), hour),
    st.integers(0, 20),
    st.sampled_from([0, 10, 23]),
)
"""In Rome, 23 o'clock UTC is the next day; of two entries many are of one instant."""
BELATED = st.one_of(st.just(0), st.just(0), st.integers(-4, 12))
ENTRIES = st.lists(st.tuples(st.sampled_from(ACTIVITIES), INSTANTS, BELATED, st.integers(0, 3)), min_size=1, max_size=8)
CASES = st.lists(ENTRIES, min_size=60, max_size=60)


def rows_of(cases: Sequence[Sequence[tuple[str, datetime, int, int]]]) -> list[dict[str, Any]]:
    """Return entries of cases; places in a case may repeat, so that only the rule about pauses orders some."""
    return [
        entry(f"case-{number:03}", seq, activity, effective, effective + timedelta(days=days))
        for number, entries in enumerate(cases)
        for activity, effective, days, seq in entries
    ]


@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(cases=CASES)
def test_each_row_of_each_day_is_what_the_loop_says(cases: Sequence[Any]) -> None:
    tried = trial([*rows_of(cases), entry("sure", 0, "open", at(BEGAN))])
    tried.require_same_as(told)
    assert tried.violations() == {}


def test_each_row_of_a_generated_register_is_what_the_loop_says() -> None:
    first, last = date(2010, 1, 1), date(2010, 4, 30)
    entries = generate(90, 11, start=first, end=last)
    assert entries.equals(generate(90, 11, start=first, end=last))
    activities = set(generate(600, 11)["activity"])
    assert {"Escalate to Registry Office", "Return from Registry Office", "Escalate to Legal Office"} <= activities
    assert entries.filter(pl.col("recorded_at") > pl.col("effective_at")).height > 10
    assert entries.filter(pl.col("recorded_at") < pl.col("effective_at")).height > 0
    calendar = [asdict(day) for day in reference.jurisdiction_calendar(2009, 2011)]
    known = references() | {"reference.jurisdiction_calendar": calendar}
    tried = Trial(
        CASE_CLOCK_DAILY, "1.0.0", entries, publish_range=(first, last), references=known, inputs=PRODUCT.inputs
    )
    tried.require_same_as(lambda source, tables: list(day_by_day.rows_of(source, tables, first, last)))
    assert tried.violations() == {}
    rows = tried.rows()
    assert set(rows["true_state"]) == {"RUNNING", "PAUSED", "MET", "BREACHED"}
    assert rows.filter(pl.col("known_state").ne_missing(pl.col("true_state"))).height > 100


def test_rows_depend_on_nothing_but_what_is_read(lived_cases: list[dict[str, Any]]) -> None:
    tried = trial(lived_cases)
    tried.require_same_as(told)
    tried.require_pure()
    tried.require_no_look_ahead()


@pytest.fixture
def lived_cases() -> list[dict[str, Any]]:
    """Cases that are open over the end of a month, belated ones among them."""
    days = [BEGAN + timedelta(days=number) for number in range(30)]
    rows = []
    for number in range(12):
        case = f"case-{number}"
        rows += [
            entry(case, 0, "open", at(days[number % 5])),
            entry(case, 1, "hold", at(days[number % 3 + 4]), at(days[number + 6])),
            entry(case, 2, "go on", at(days[number + 10]), at(days[number + 10 + number % 4])),
            entry(case, 3, "close", at(days[number + 14])),
        ]
    return rows


# --- what pauses mean: of the loop, which is quick --------------------------------------------------------------------

QUICK = settings(deadline=None)
OFFSETS = st.lists(st.integers(0, 15), min_size=0, max_size=6)


def alone(*entries: tuple[str, int] | tuple[str, int, int]) -> dict[date, dict[str, Any]]:
    """Return the days of one PAYMENT clock that is opened on `BEGAN`; entries by days after that."""
    rows = [entry("one", 0, "open", at(BEGAN))]
    for seq, (activity, *days) in enumerate(entries, 1):
        holds, recorded = (at(BEGAN + timedelta(days=day)) for day in (days[0], days[-1]))
        rows.append(entry("one", seq, activity, holds, recorded))
    found = day_by_day.rows_of(rows, SHORT, FIRST, LAST)
    return {one["business_date"]: one for one in found if one["clock"] == "PAYMENT"}


def end_of(days: dict[date, dict[str, Any]]) -> dict[str, Any]:
    return days[max(days)]


@QUICK
@given(length=st.integers(0, 20), since=st.integers(0, LENGTH - 1))
def test_days_paused_do_not_count(length: int, since: int) -> None:
    last = end_of(alone(("hold", since), ("go on", since + length)))
    assert last["true_state"] == "BREACHED"
    assert last["true_days_paused"] == length
    assert last["business_date"] == BEGAN + timedelta(days=LENGTH + length)


@QUICK
@given(since=st.integers(0, LENGTH - 1), again=OFFSETS)
def test_what_pauses_a_paused_clock_or_resumes_a_running_one_does_nothing(since: int, again: list[int]) -> None:
    once = alone(("hold", since), ("go on", since + 16))
    within = [("wait", since + number) for number in again]
    after = [("go on", since + 16 + number) for number in again]
    assert alone(("hold", since), ("go on", since + 16), *within, *after) == once


@QUICK
@given(since=st.integers(0, LENGTH - 1))
def test_a_pause_that_is_never_resumed_lasts(since: int) -> None:
    last = end_of(alone(("hold", since)))
    assert (last["business_date"], last["true_state"], last["true_breach_on"]) == (LAST, "PAUSED", None)


@QUICK
@given(
    entries=st.lists(
        st.tuples(st.sampled_from(("hold", "go on", "close")), st.integers(0, 12), st.integers(0, 20)), max_size=6
    )
)
def test_what_was_known_is_what_would_be_true_if_nothing_came_in_later(entries: list[tuple[str, int, int]]) -> None:
    whole = alone(*entries)
    for day, row in whole.items():
        by_then = [one for one in entries if BEGAN + timedelta(days=one[2]) <= day]
        then = alone(*by_then)
        # a clock that was over by then has its last row on an earlier day
        before = then.get(day) or then[max(one for one in then if one <= day)]
        assert [row[f"known_{name}"] for name in day_by_day.NAMES] == [
            before[f"true_{name}"] for name in day_by_day.NAMES
        ]


# --- the disputed cases -----------------------------------------------------------------------------------------------


def test_the_shipped_files_are_what_the_loop_says_of_more_than_a_hundred_cases() -> None:
    for name, made in FILES.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text_of(made()), f"run tests/disputes.py: {name}"
    assert len({one["case_id"] for one in expected()}) == 4 * len(DISPUTES) >= 100


def test_every_disputed_case_comes_out_one_by_one() -> None:
    frame = pl.read_csv(FOLDER / "disputed_cases.csv", try_parse_dates=True)
    tried = Trial(
        CASE_CLOCK_DAILY, "1.0.0", register(), publish_range=YEAR, references=references(), inputs=PRODUCT.inputs
    )
    found = {(one["case_id"], one["clock"], one["business_date"]): one for one in tried.rows().to_dicts()}
    wrong = []
    for case in frame.to_dicts():
        row = found.get((case["case_id"], case["clock"], case["business_date"]))
        told_so = None if case["is_absent"] else {name: case[name] for name in COMPARED}
        if (None if row is None else {name: row[name] for name in COMPARED}) != told_so:
            wrong.append(f"{case['case_id']} {case['question']}: {told_so} {row}")
    assert wrong == []
    assert tried.violations() == {}
    assert DISPUTED.name in {one.name for one in CASE_CLOCK_DAILY.reconciliations}


def test_the_shipped_manifest_computes_the_year_of_the_disputed_cases() -> None:
    shipped = load_manifest(FOLDER / "disputed-1996.yaml")
    assert (shipped.target.table, shipped.source.table) == (CASE_CLOCK_DAILY.name, CASE_CLOCK_DAILY.source)
    assert (shipped.target.publish_range.start, shipped.target.publish_range.end) == YEAR
    assert shipped.transform.name == CASE_CLOCK_DAILY.transform
    assert shipped.transform.version in CASE_CLOCK_DAILY.versions
    assert {one.name for one in shipped.reference_data} <= set(CASE_CLOCK_DAILY.references)
    assert shipped.validation.gates is None, "every gate is held against it, that of the disputed cases too"


# --- rules that cannot be ---------------------------------------------------------------------------------------------


def test_rules_by_which_no_clock_could_be_told_are_refused_all_at_once() -> None:
    pauses = [
        {"jurisdiction": PLACE, "clock": "PAYMENT", "activity": "close", "effect": "PAUSES"},
        {"jurisdiction": PLACE, "clock": "NOTIFICATION", "activity": "hold", "effect": "PAUSES"},
    ]
    rules = [one | {"pause_activities": ["hold"]} if one["clock"] == "APPEAL" else one for one in SHORT[RULES]]
    with pytest.raises(PlanRefused) as refused:
        warm_up({RULES: rules, PAUSES: pauses})
    said = str(refused.value)
    assert "reference.sla_rules pauses IT APPEAL" in said
    assert "hold pauses IT NOTIFICATION, which reference.sla_rules does not have" in said
    assert "close pauses IT PAYMENT, and starts or stops it" in said
    assert warm_up(SHORT) == 0


def test_a_deadline_that_the_calendar_does_not_reach_is_refused_by_the_gate() -> None:
    short = replace(
        trial([entry("one", 0, "open", at(BEGAN))]),
        references=SHORT
        | {
            "reference.jurisdiction_calendar": [
                one for one in SHORT["reference.jurisdiction_calendar"] if one["day"] <= BEGAN
            ]
        },
    )
    broken = {one.rule for found in short.violations().values() for one in found}
    assert broken == {"a clock has a deadline unless it is paused, or was met while it was"}
