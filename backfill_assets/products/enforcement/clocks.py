"""Clocks as the source would have them, beside those that are there: what the product's reconciliations compare.

Put here how clocks are recomputed in another way than the transform's, so that a mistake there is not repeated here: with
another engine, from the whole source, without warm-up, cutting and days. Only which local day an event falls on is told
to both alike. Runs in Spark's Python workers, one task a part of the cases: keep it light.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date

import polars as pl
import pyarrow as pa

CLOCK = ("case_id", "jurisdiction", "clock")
PENALTY, PAYMENT = "Add penalty", "PAYMENT"
CONDITIONS = (
    "started",
    "missing",
    "extra",
    "moved",
    "recomputed",
    "penalised",
    "compared",
    "displaced",
    "unpenalised",
)
"""Of a clock: it starts in the range; its first row is missing, extra or on another day; it breaches in the range; it has a
penalty; its penalty can be compared with its deadline; they differ; its breach has no penalty."""
_BREACH_CONDITIONS = ("unbreached", "overbreached", "breached_elsewhere")
_TERMS = ("jurisdiction", "clock", "terms")
SIDE_BY_SIDE = pa.schema(
    [
        *((name, pa.string()) for name in CLOCK),
        ("expected_on", pa.date32()),
        ("deadline", pa.date32()),
        ("breached", pa.bool_()),
        ("penalty_on", pa.date32()),
        ("started_on", pa.date32()),
        ("breached_as", pa.bool_()),
        ("breach_on", pa.date32()),
        ("month", pa.string()),
        *((name, pa.bool_()) for name in (*CONDITIONS, *_BREACH_CONDITIONS)),
    ]
)
"""A row a case, jurisdiction and clock. Expected, from the source: `expected_on` (first start, if in the publish range),
`deadline`, `breached` (no stop before the deadline) and `penalty_on` (of a PAYMENT clock, the local day of the penalty: a
fact of the world, local whatever the run takes for a day). Found: `started_on` and, where its last row is there,
`breached_as` (whether it says BREACHED) and `breach_on`. Then the conditions."""


@dataclass(frozen=True)
class Terms:
    """What clocks are recomputed with.

    Attributes:
        start: the first day of the publish range.
        end: its last day.
        last_day: the last day (UTC) that the source knows; it may not be over.
        rules: `jurisdiction, clock, terms, length, unit, valid_from, valid_until`. Rules of a clock that differ in their
            length only have the same `terms`: they are one for what matters to them.
        matters: `jurisdiction, activity, clock, terms, starts, stops`: what each activity means to which terms.
        calendar: `jurisdiction, day, is_business_day, nth`: the business days up to and with each day; of jurisdictions that
            count them.
    """

    start: date
    end: date
    last_day: date
    rules: pl.DataFrame
    matters: pl.DataFrame
    calendar: pl.DataFrame


def terms_of(rules: pl.DataFrame, calendar: pl.DataFrame, *, start: date, end: date, last_day: date) -> Terms:
    """Return what clocks are recomputed with, from the rows of the reference tables; arguments as the attributes."""
    activities = ["jurisdiction", "clock", "start_activity", "stop_activities"]
    versions = rules.sort("valid_from").with_columns(
        valid_until=pl.col("valid_from").shift(-1).over("jurisdiction", "clock"),
        terms=pl.col("valid_from").min().over(activities),
    )
    starts, stops = pl.col("activity") == pl.col("start_activity"), pl.col("activity").is_in("stop_activities")
    penalty = pl.when(pl.col("clock") == PAYMENT).then(pl.lit([PENALTY])).otherwise(pl.lit([], pl.List(pl.String)))
    matters = (
        versions.unique(_TERMS)
        .with_columns(activity=pl.concat_list("stop_activities", "start_activity", penalty))
        .explode("activity")
        .with_columns(starts=starts, stops=stops)
        .select("activity", *_TERMS, "starts", "stops")
        .unique()
    )
    counted = calendar.sort("day").with_columns(
        nth=pl.col("is_business_day").cast(pl.Int32).cum_sum().over("jurisdiction")
    )
    kept = versions.select(*_TERMS, "length", "unit", "valid_from", "valid_until")
    return Terms(start, end, last_day, kept, matters, counted)


def side_by_side(terms: Terms, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compare the clocks of one part of the cases, all of which fits into memory; see `SIDE_BY_SIDE`.

    Rows of the source have `case_id, jurisdiction, activity, day, penalty_day`; rows of found clocks have no activity, but
    `case_id, jurisdiction, clock, started_on, breached_as, breach_on`.
    """
    pl.Config.set_engine_affinity("in-memory")  # one worker a core, and the rows in memory already
    given = list(batches)
    if given:
        rows = pl.DataFrame(pa.Table.from_batches(given))
        yield from compared(terms, rows).select(SIDE_BY_SIDE.names).to_arrow().cast(SIDE_BY_SIDE).to_batches()


def compared(terms: Terms, rows: pl.DataFrame) -> pl.DataFrame:
    """Return each clock that is expected or found, with both sides and what is wrong with it."""
    in_range = pl.col("expected_on").is_between(terms.start, terms.end)
    found = rows.filter(pl.col("activity").is_null()).select(*CLOCK, "started_on", "breached_as", "breach_on")
    expected = expected_clocks(terms, rows.filter(pl.col("activity").is_not_null()))
    clocks = (
        pl.concat([expected, found], how="diagonal")
        .group_by(CLOCK)
        .agg(
            pl.col("expected_on").filter(in_range).min(),
            pl.col("deadline").min(),
            pl.col("breached").max(),
            pl.col("penalty_on").min(),
            pl.col("started_on").min(),
            pl.col("breached_as").max(),
            pl.col("breach_on").max(),
        )
    )
    is_due, is_there = pl.col("expected_on").is_not_null(), pl.col("started_on").is_not_null()
    recomputed = pl.col("breached") & pl.col("deadline").is_between(terms.start, terms.end)
    month, found_month = (
        pl.when(breached).then(pl.col(day).dt.strftime("%Y-%m"))
        for breached, day in ((recomputed, "deadline"), (pl.col("breached_as"), "breach_on"))
    )
    is_ended_payment = (pl.col("clock") == PAYMENT) & pl.col("breached_as").is_not_null()
    is_known = pl.col("breach_on") < terms.last_day  # that day may not be over
    is_penalised = pl.col("penalty_on").is_not_null()
    return clocks.with_columns(
        month=pl.coalesce(month, found_month),
        started=is_due,
        missing=is_due & ~is_there,
        extra=is_there & ~is_due,
        moved=pl.col("expected_on") != pl.col("started_on"),
        recomputed=recomputed,
        penalised=is_penalised,
        compared=is_ended_payment & is_penalised,
        displaced=is_ended_payment & (pl.col("penalty_on") != pl.col("breach_on")),
        unpenalised=is_ended_payment & pl.col("breached_as") & ~is_penalised & is_known,
        unbreached=month.is_not_null() & found_month.is_null(),
        overbreached=month.is_null() & found_month.is_not_null(),
        breached_elsewhere=month != found_month,
    )


def expected_clocks(terms: Terms, events: pl.DataFrame) -> pl.DataFrame:
    """Return the clocks that events start: `expected_on`, `deadline`, `breached` and `penalty_on` of each."""
    known = events.select("case_id", "jurisdiction", "activity", "day", "penalty_day")
    meant = known.join(terms.matters, ["jurisdiction", "activity"])
    clock = ["case_id", *_TERMS]
    started = meant.group_by(clock).agg(
        expected_on=pl.col("day").filter("starts").min(), penalty_on=pl.col("penalty_day").min()
    )
    stopped = (
        meant.filter("stops")
        .join(started, clock, nulls_equal=True)
        .filter(pl.col("day") >= pl.col("expected_on"))
        .group_by(clock)
        .agg(stopped_on=pl.col("day").min())
    )
    is_valid = (pl.col("expected_on") >= pl.col("valid_from")) & (
        pl.col("valid_until").is_null() | (pl.col("expected_on") < pl.col("valid_until"))
    )
    ruled = started.join(terms.rules, _TERMS).filter(is_valid)
    due = with_deadline(ruled, terms.calendar).join(stopped, clock, how="left", nulls_equal=True)
    in_time = (pl.col("stopped_on") < pl.col("deadline")).fill_null(value=False)
    breached = pl.when(pl.col("deadline").is_not_null()).then(~in_time)
    return due.select(*CLOCK, "expected_on", "deadline", "penalty_on", breached=breached)


def with_deadline(clocks: pl.DataFrame, calendar: pl.DataFrame) -> pl.DataFrame:
    """Add `deadline`: the `length`-th day or business day after `expected_on`; null where nobody can say."""
    nth = calendar.select("jurisdiction", expected_on="day", nth="nth")
    ends = calendar.filter("is_business_day").select("jurisdiction", nth="nth", business_deadline="day")
    is_business = (pl.col("unit") == "BUSINESS_DAY").fill_null(value=False)
    counted = (
        clocks.filter(is_business)
        .join(nth, ["jurisdiction", "expected_on"], how="left")
        .with_columns(pl.col("nth") + pl.col("length"))
        .join(ends, ["jurisdiction", "nth"], how="left")
        .rename({"business_deadline": "deadline"})
        .drop("nth")
    )
    after = pl.when(pl.col("unit") == "CALENDAR_DAY").then(pl.col("expected_on") + pl.duration(days="length"))
    return pl.concat([counted, clocks.filter(~is_business).with_columns(deadline=after)], how="diagonal")
