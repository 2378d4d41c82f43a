"""The columns of the clocks that pause, as pandera models: the register they are computed from, the rules, and the published table.

Rules of one row stand here and are the chunk gate. What they mean is told in docs/case-study.md. Imported by Spark's Python
workers: keep it light.
"""

from __future__ import annotations

import pandera.polars as pa
import polars as pl

from backfill_assets.declarations.schema import Instant, PublishedInFull, row_rule
from backfill_assets.products.enforcement.schemas import CLOCKS

STATES = ("RUNNING", "PAUSED", "MET", "BREACHED")
EFFECTS = ("PAUSES", "RESUMES")
VIEWS = ("known", "true")
"""What the register said at the end of a day, and what all of it says of that day today."""


class CaseRegister(pa.DataFrameModel):
    """One entry of the register of cases: what happened, from when it holds, and when it was entered. Append-only."""

    entry_id: str = pa.Field(str_length={"min_value": 1}, description="The entry; one delivered twice has the same id.")
    case_id: str = pa.Field(str_length={"min_value": 1}, description="The case.")
    event_seq: pl.Int32 = pa.Field(
        ge=0, description="Place of the entry in its case, by which entries of one instant are ordered."
    )
    jurisdiction: str = pa.Field(description="Where the case is; decides rules, calendar and time zone.")
    activity: str = pa.Field(description="What happened, or was decided.")
    effective_at: Instant = pa.Field(description="From when it holds.")
    recorded_at: Instant = pa.Field(
        description="When it was entered. A decision may hold from an earlier day, or from a later one."
    )


class PauseRules(pa.DataFrameModel):
    """Which activity pauses or resumes which clock; versions are snapshots."""

    jurisdiction: str = pa.Field(description="Where the rule holds.")
    clock: str = pa.Field(isin=CLOCKS, description="Which clock it is for.")
    activity: str = pa.Field(str_length={"min_value": 1}, description="The activity.")
    effect: str = pa.Field(isin=EFFECTS, description="What it does to the clock.")

    class Config:
        """An activity does one thing to a clock."""

        unique = ["jurisdiction", "clock", "activity"]  # noqa: RUF012 - pandera's way


class CaseClockDaily(PublishedInFull):
    """One row per case, clock and day: what was known of the clock at the end of that day, and what was true of that day.

    `known_` columns go by the entries that had been recorded by the end of the day, `true_` columns by all entries of the
    source. Both go by entries that hold from that day or an earlier one.
    """

    case_id: str = pa.Field(str_length={"min_value": 1}, description="The case.")
    clock: str = pa.Field(isin=CLOCKS, description="Which deadline.")
    jurisdiction: str = pa.Field(str_length={"min_value": 1}, description="Where the case is.")
    business_date: pl.Date = pa.Field(description="The day, in the jurisdiction's time zone.")
    known_state: str = pa.Field(
        nullable=True, isin=STATES, description="State as known at the end of the day; empty if no start was known."
    )
    known_started_on: pl.Date = pa.Field(nullable=True, description="Start as known at the end of the day.")
    known_breach_on: pl.Date = pa.Field(
        nullable=True, description="Deadline as known at the end of the day; empty while paused."
    )
    known_days_paused: pl.Int32 = pa.Field(
        nullable=True, ge=0, description="Paused days up to the day, as known at its end."
    )
    true_state: str = pa.Field(
        nullable=True, isin=STATES, description="State on the day, by all that was recorded since."
    )
    true_started_on: pl.Date = pa.Field(nullable=True, description="Start, by all that was recorded since.")
    true_breach_on: pl.Date = pa.Field(
        nullable=True, description="Deadline on the day, by all that was recorded since; empty while paused."
    )
    true_days_paused: pl.Int32 = pa.Field(
        nullable=True, ge=0, description="Paused days up to the day, by all that was recorded since."
    )

    class Config:
        """The key is unique."""

        unique = ["case_id", "clock", "business_date"]  # noqa: RUF012 - pandera's way

    @row_rule("something is known or true")
    def _of_a_clock(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select(pl.col("known_state").is_not_null() | pl.col("true_state").is_not_null())

    @row_rule("a view has a state, a start and its paused days, or none of them")
    def _whole_views(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select(pl.all_horizontal(_is_whole(view) for view in VIEWS))

    @row_rule("a clock has a deadline unless it is paused, or was met while it was")
    def _deadlines(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select(pl.all_horizontal(_has_deadline(view) for view in VIEWS))

    @row_rule("a clock runs before its deadline, and is breached from it on")
    def _before_and_after(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select(pl.all_horizontal(_keeps_deadline(view) for view in VIEWS))

    @row_rule("paused days lie after the start and up to the day")
    def _paused_days(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select(pl.all_horizontal(_counts_pauses(view) for view in VIEWS))


def _is_whole(view: str) -> pl.Expr:
    there = pl.col(f"{view}_state").is_not_null()
    same = [there == pl.col(f"{view}_{name}").is_not_null() for name in ("started_on", "days_paused")]
    return pl.all_horizontal(*same, there | pl.col(f"{view}_breach_on").is_null())


def _has_deadline(view: str) -> pl.Expr:
    state, there = pl.col(f"{view}_state").fill_null("MET"), pl.col(f"{view}_breach_on").is_not_null()
    return pl.when(state == "PAUSED").then(~there).when(state != "MET").then(there).otherwise(pl.lit(True))


def _keeps_deadline(view: str) -> pl.Expr:
    state, day, deadline = pl.col(f"{view}_state"), pl.col("business_date"), pl.col(f"{view}_breach_on")
    kept = pl.when(state == "RUNNING").then(day < deadline).when(state == "BREACHED").then(day >= deadline)
    return kept.fill_null(value=True)


def _counts_pauses(view: str) -> pl.Expr:
    open_for = (pl.col("business_date") - pl.col(f"{view}_started_on")).dt.total_days()
    least = pl.when(pl.col(f"{view}_state") == "PAUSED").then(1).otherwise(0)
    return pl.col(f"{view}_days_paused").is_between(least, open_for).fill_null(value=True)


def measure_case_clock_daily(rows: pl.DataFrame) -> pl.DataFrame:
    """Count rows, and those of which less was known than was true, by jurisdiction, clock and true state."""
    return rows.group_by("jurisdiction", "clock", "true_state", maintain_order=True).agg(
        rows=pl.len().cast(pl.Int64),
        known_otherwise=pl.col("known_state").ne_missing(pl.col("true_state")).sum().cast(pl.Int64),
    )
