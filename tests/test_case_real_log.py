"""Clocks that pause on the real log: computed from all of it, and every case that pauses, with thousands of others, row by row against
the loop that lives through them day by day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import day_by_day
import polars as pl
import pytest
from disputes import references
from hypothesis import given, settings
from hypothesis import strategies as st
from short_clocks import BEGAN, LAST, PLACE, SHORT
from worlds import SPARK, World

from backfill_assets.declarations import finding
from backfill_assets.defs.launch import initialise_instance
from backfill_assets.ingestion.table_loads import load_file
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.products.enforcement import reference
from backfill_assets.products.enforcement.pausing import (
    CASE_CLOCK_DAILY,
    CASE_REGISTER,
    PRODUCT,
    lives,
    reconciliations,
)
from backfill_assets.products.enforcement.pausing.register import from_log
from backfill_assets.products.enforcement.pausing.transform import PAUSES, RULES
from benchmarks.small_table import serves
from manifests.reading import manifest_from
from resources.settings import load_settings

CALENDAR = "reference.jurisdiction_calendar"
FIRST, END = date(2000, 1, 1), date(2013, 6, 30)
SAMPLED = 3_000
"""Cases that do not pause, of which the loop tells, too."""
_AT_ONCE = 400


def told_by_case(register: pl.DataFrame, known: dict[str, list[dict[str, Any]]]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield what the loop says of each case of a register in IT: its rows."""
    calendar = {one["day"]: one["is_business_day"] for one in known[CALENDAR] if one["jurisdiction"] == PLACE}
    clocks: dict[str, list[dict[str, Any]]] = {}
    for rule in known[RULES]:
        if rule["jurisdiction"] == PLACE:
            clocks.setdefault(rule["clock"], []).append(rule)
    effects: dict[str, dict[str, str]] = {clock: {} for clock in clocks}
    for one in known[PAUSES]:
        if one["jurisdiction"] == PLACE:
            effects[one["clock"]][one["activity"]] = one["effect"]
    zones = {clock: ZoneInfo(rules[0]["time_zone"]) for clock, rules in clocks.items()}
    for (case,), of in register.partition_by("case_id", as_dict=True).items():
        given, rows = of.to_dicts(), []
        for clock, rules in clocks.items():
            entries = [day_by_day.entry_of(one, zones[clock]) for one in given]
            for day, said in day_by_day.lived_through(rules, effects[clock], entries, END, calendar.__getitem__):
                rows.append((case, clock, PLACE, day, *(said or ())))
        yield rows


def told(register: pl.DataFrame, known: dict[str, list[dict[str, Any]]]) -> Iterator[pl.DataFrame]:
    """Yield the same, some hundred cases at a time."""
    rows: list[tuple[Any, ...]] = []
    for number_of, of_case in enumerate(told_by_case(register, known), start=1):
        rows += of_case
        if number_of % _AT_ONCE == 0:
            yield pl.DataFrame(rows, schema=SCHEMA, orient="row")
            rows = []
    if rows:
        yield pl.DataFrame(rows, schema=SCHEMA, orient="row")


SCHEMA = {
    "case_id": pl.String,
    "clock": pl.String,
    "jurisdiction": pl.String,
    "business_date": pl.Date,
    "state": pl.String,
    "started_on": pl.Date,
    "breach_on": pl.Date,
    "days_paused": pl.Int32,
}


def that_pause(register: pl.DataFrame, known: dict[str, list[dict[str, Any]]]) -> set[str]:
    """Return the cases with an activity that pauses a clock of theirs."""
    pausing = {one["activity"] for one in known[PAUSES] if one["jurisdiction"] == PLACE and one["effect"] == "PAUSES"}
    return set(register.filter(pl.col("activity").is_in(sorted(pausing)))["case_id"])


def chosen_of(register: pl.DataFrame, known: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return all cases of the log that pause, and some thousand others from all over it."""
    pausing = that_pause(register, known)
    assert len(pausing) > 4_000
    others = register.filter(~pl.col("case_id").is_in(sorted(pausing)))["case_id"].unique().sort()
    chosen = [*sorted(pausing), *others.gather_every(others.len() // SAMPLED).to_list()]
    assert len(chosen) >= SAMPLED + len(pausing)
    return chosen


def wrong(found: pl.DataFrame, expected: pl.DataFrame) -> list[dict[str, Any]]:
    """Return rows of either side that the other does not have, in either view; some of them."""
    columns = list(SCHEMA)
    differing: list[dict[str, Any]] = []
    for view in ("known", "true"):
        said = found.select(*columns[:4], *(pl.col(f"{view}_{name}").alias(name) for name in columns[4:])).cast(SCHEMA)
        if not said.sort(columns[:4]).equals(expected.sort(columns[:4])):
            differing += said.join(expected, on=columns, how="anti", nulls_equal=True).head(5).to_dicts()
            differing += expected.join(said, on=columns, how="anti", nulls_equal=True).head(5).to_dicts()
    return differing


@pytest.mark.exhaustive
def test_the_whole_log_is_told_as_the_loop_tells_it(
    real_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = ("backfill_assets.products.enforcement",)
    monkeypatch.setattr(finding, "find_products", serves(replace(PRODUCT, code=code)))
    platform = Platform.of(load_settings(home=tmp_path / "home", spark=SPARK))
    initialise(platform)
    initialise_instance(platform.settings)
    register = from_log(real_log)
    assert (register.height, register["case_id"].n_unique()) == (561_470, 150_370)
    path = tmp_path / "register.parquet"
    register.write_parquet(path)
    load_file(platform, CASE_REGISTER.name, path)
    world = World(platform, tmp_path / "home", FIRST, END)
    gates = ["all_chunks_staged", *(one.name for one in reconciliations.ALL)]
    world.validated(
        manifest_from(
            {
                "runId": "the-whole-log",
                "kind": "BOOTSTRAP",
                "requestedBy": "ana",
                "reason": "Every case of the log, with its pauses.",
                "source": {"table": CASE_REGISTER.name},
                "transform": {"name": "case_clock_daily", "version": "1.0.0"},
                "target": {"table": CASE_CLOCK_DAILY.name, "publishRange": {"start": FIRST, "end": END}},
                "validation": {"gates": gates},
                "development": True,
            }
        )
    )
    verdicts = {one.gate: one for one in platform.ledger.verdicts("the-whole-log") if not one.chunk}
    for gate in reconciliations.ALL:
        assert verdicts[gate.name].passed, verdicts[gate.name].summary
    assert verdicts[reconciliations.ALL[0].name].details["compared"] == 150_370 + 79_860 + 4_188

    shipped = {
        name: platform.lakehouse.rows(name, platform.lakehouse.snapshot_id(name)) for name in (RULES, PAUSES, CALENDAR)
    }
    chosen = chosen_of(register, shipped)
    files = [
        file.path.removeprefix("file://") for chunk in platform.ledger.chunks("the-whole-log") for file in chunk.files
    ]
    compare(files, register.filter(pl.col("case_id").is_in(chosen)), shipped)


def compare(files: Sequence[str], register: pl.DataFrame, known: dict[str, list[dict[str, Any]]]) -> None:
    cases = register["case_id"].unique().to_list()
    rows = pl.scan_parquet(files, hive_partitioning=False).filter(pl.col("case_id").is_in(cases)).collect()
    states: dict[str, int] = {}
    compared = 0
    for expected in told(register, known):
        found = rows.join(expected.select("case_id").unique(), on="case_id", how="semi")
        assert wrong(found, expected) == []
        compared += expected.height
        for state, number in expected["state"].value_counts().iter_rows():
            states[state] = states.get(state, 0) + number
    assert compared == rows.height
    print(f"{len(cases):,} cases, {compared:,} rows compared: {states}")
    assert set(states) == {"RUNNING", "PAUSED", "MET", "BREACHED"}


def terms_of(known: dict[str, list[dict[str, Any]]]) -> lives.Terms:
    """Return the rules of IT as the reconciliations have them."""
    rules: dict[tuple[str, str], list[lives.Rule]] = {}
    ordered = sorted((one for one in known[RULES] if one["jurisdiction"] == PLACE), key=lambda one: one["valid_from"])
    for one in ordered:
        later = [number(other["valid_from"]) for other in ordered if other["clock"] == one["clock"]]
        until = min((day for day in later if day > number(one["valid_from"])), default=10**7)
        own = (one["start_activity"], frozenset(one["stop_activities"]), number(one["valid_from"]), until)
        made = lives.Rule(*own, one["length"], one["unit"] == "BUSINESS_DAY")
        rules.setdefault((PLACE, one["clock"]), []).append(made)
    effects: dict[tuple[str, str], dict[str, bool]] = {}
    for one in known[PAUSES]:
        if one["jurisdiction"] == PLACE:
            effects.setdefault((PLACE, one["clock"]), {})[one["activity"]] = one["effect"] == "PAUSES"
    calendar = sorted(
        (number(one["day"]), one["is_business_day"]) for one in known[CALENDAR] if one["jurisdiction"] == PLACE
    )
    reach = calendar[0][0], calendar[-1][0]
    business_days = [day for day, is_business_day in calendar if is_business_day]
    return lives.Terms(number(FIRST), number(END), rules, effects, {PLACE: business_days}, {PLACE: reach})


def number(day: date) -> int:
    return (day - date(1970, 1, 1)).days


@pytest.mark.exhaustive
def test_what_the_reconciliations_recompute_of_the_log_is_what_the_loop_tells(real_log: Path) -> None:
    """No Spark: of every case that pauses, and of thousands of others."""
    calendar = [asdict(day) for day in reference.jurisdiction_calendar(1999, 2020)]
    known = references() | {CALENDAR: calendar}
    terms, register = terms_of(known), from_log(real_log)
    register = register.filter(pl.col("case_id").is_in(chosen_of(register, known)))
    zone = ZoneInfo("Europe/Rome")
    compared = {"clocks": 0, "days": 0, "pausing": 0}
    for ((case,), of), rows in zip(
        register.partition_by("case_id", as_dict=True).items(), told_by_case(register, known), strict=True
    ):
        entries = [
            lives.Entry(one.at, one.seq, one.activity, number(one.holds_from), number(one.recorded_on))
            for one in (day_by_day.entry_of(row, zone) for row in of.to_dicts())
        ]
        for place, clock in terms.rules:
            found = lives.summed(terms, lives.views(terms, place, clock, entries))
            expected = summed_of([row for row in rows if row[1] == clock])
            assert found == expected, (case, clock)
            compared["clocks"] += expected is not None
            compared["days"] += 0 if expected is None else expected["days"]
            compared["pausing"] += expected is not None and "PAUSED" in expected["true"]
    print(compared)
    assert compared["pausing"] > 3_000


def summed_of(rows: list[tuple[Any, ...]]) -> dict[str, Any] | None:
    if not rows:
        return None
    counts = Counter(row[4] for row in rows)
    words = lives.in_words({state: counts[state] for state in lives.STATES})
    weights = sum(
        lives.weight(
            number(row[3]), lives.STATES.index(row[4]) + 1, number(row[5]), number(row[6]) if row[6] else 0, row[7]
        )
        for row in rows
    )
    return {"days": len(rows), "known": words, "true": words, "known_sum": weights, "true_sum": weights}


def entries_of(drawn: list[tuple[str, int]]) -> list[day_by_day.Entry]:
    made = []
    for seq, (activity, days) in enumerate(drawn):
        day = BEGAN + timedelta(days=days)
        made.append(day_by_day.Entry(datetime(day.year, day.month, day.day, 10, tzinfo=UTC), seq, activity, day, day))
    return made


@settings(deadline=None)
@given(
    drawn=st.lists(
        st.tuples(st.sampled_from(("open", "close", "hold", "wait", "go on")), st.integers(0, 25)),
        min_size=1,
        max_size=9,
    ),
    clock=st.sampled_from(("PAYMENT", "APPEAL")),
)
def test_one_life_says_of_each_day_what_a_life_up_to_it_says(drawn: list[tuple[str, int]], clock: str) -> None:
    rules = [one for one in SHORT[RULES] if one["clock"] == clock]
    effects = {one["activity"]: one["effect"] for one in SHORT[PAUSES] if one["clock"] == clock}
    calendar = {one["day"]: one["is_business_day"] for one in SHORT[CALENDAR]}
    entries = entries_of(drawn)
    for day, said in day_by_day.lived_through(rules, effects, entries, LAST, calendar.__getitem__):
        by_then = [one for one in entries if one.holds_from <= day]
        assert said == day_by_day.lived(rules, effects, by_then, day, calendar.__getitem__)


def test_cases_that_pause_are_found_by_the_rules() -> None:
    columns = {
        "case_id": ["a", "b", "c"],
        "activity": ["Insert Date Appeal to Prefecture", "Payment", "Appeal to Judge"],
    }
    assert that_pause(pl.DataFrame(columns), references()) == {"a", "c"}
