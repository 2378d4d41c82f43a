"""The enforcement tables' columns, as pandera models: the one declaration that every schema is derived from.

Rules that hold within one row or one chunk stand here and are the chunk gate; what compares tables is in
`reconciliations`. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from typing import Annotated

import pandera.polars as pa
import polars as pl

from backfill_assets.declarations.quarantine import Quarantine
from backfill_assets.declarations.schema import Corrections, Instant, Published, row_rule

Money = Annotated[pl.Decimal, 12, 2]

CLOCKS = ("NOTIFICATION", "PAYMENT", "APPEAL")
STATES = ("RUNNING", "MET", "BREACHED")
UNITS = ("CALENDAR_DAY", "BUSINESS_DAY")


class CaseEvents(pa.DataFrameModel):
    """One delivery of one event of an enforcement case; append-only."""

    event_id: str = pa.Field(description="Hash of what the event is: the same event delivered twice has the same id.")
    case_id: str = pa.Field(description="The case.")
    event_seq: pl.Int32 = pa.Field(ge=0, description="Place of the event in its case.")
    jurisdiction: str = pa.Field(description="Where the case is; decides rules, calendar and time zone.")
    activity: str = pa.Field(description="What happened.")
    event_at: Instant = pa.Field(description="When it happened.")
    amount: Money = pa.Field(nullable=True, description="Amount the event states, in the jurisdiction's currency.")
    source_file: str = pa.Field(description="File the event came in.")
    source_row: pl.Int64 = pa.Field(ge=0, description="0-based row in that file.")
    ingested_at: Instant = pa.Field(description="When the file was loaded.")


class CaseEventsQuarantine(Quarantine):
    """Input rows that no rule could classify."""


class SlaRules(pa.DataFrameModel):
    """The deadlines: one row a jurisdiction, clock and first day of validity; versions are snapshots."""

    jurisdiction: str = pa.Field(description="Where the rule holds.")
    clock: str = pa.Field(isin=CLOCKS, description="Which clock it is for.")
    start_activity: str = pa.Field(description="Activity that starts the clock.")
    stop_activities: pl.List(pl.String) = pa.Field(description="Activities that stop it.")  # type: ignore[valid-type]
    pause_activities: pl.List(pl.String) = pa.Field(description="Activities that pause it.")  # type: ignore[valid-type]
    resume_activities: pl.List(pl.String) = pa.Field(description="Activities that resume it.")  # type: ignore[valid-type]
    valid_from: pl.Date = pa.Field(description="First start date the rule is for.")
    length: pl.Int32 = pa.Field(gt=0, description="Length of the clock, in `unit`.")
    unit: str = pa.Field(isin=UNITS, description="What `length` counts.")
    time_zone: str = pa.Field(description="IANA zone in which the jurisdiction's days begin.")


class JurisdictionCalendar(pa.DataFrameModel):
    """Which days are business days; one row a jurisdiction and day; versions are snapshots."""

    jurisdiction: str = pa.Field(description="Where the day is.")
    day: pl.Date = pa.Field(description="The day.")
    is_business_day: bool = pa.Field(description="Monday to Friday and no public holiday.")
    holiday: str = pa.Field(nullable=True, description="Name of the public holiday.")


class CaseSlaDaily(Published):
    """One row per case, clock and day on which the clock ran."""

    case_id: str = pa.Field(str_length={"min_value": 1}, description="The case.")
    clock: str = pa.Field(isin=CLOCKS, description="Which deadline.")
    jurisdiction: str = pa.Field(str_length={"min_value": 1}, description="Where the case is.")
    business_date: pl.Date = pa.Field(description="The day, in the jurisdiction's time zone.")
    started_on: pl.Date = pa.Field(description="Day of the first start activity.")
    breach_on: pl.Date = pa.Field(description="Deadline, as known on that day.")
    days_open: pl.Int32 = pa.Field(ge=0, description="Days since started_on.")
    sla_state: str = pa.Field(isin=STATES, description="RUNNING; on the last day MET or BREACHED.")
    breach_at: Instant = pa.Field(
        nullable=True, description="Instant at which breach_on began, on the day of a breach."
    )
    amount: Money = pa.Field(nullable=True, description="Latest amount stated in the case up to started_on.")

    class Config:
        """The key is unique."""

        unique = ["case_id", "clock", "business_date"]  # noqa: RUF012 - pandera's way

    @row_rule("the day lies between start and deadline")
    def _day_between(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        day = pl.col("business_date")
        return data.lazyframe.select((day >= pl.col("started_on")) & (day <= pl.col("breach_on")))

    @row_rule("days_open counts from started_on")
    def _days_open(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        open_for = (pl.col("business_date") - pl.col("started_on")).dt.total_days()
        return data.lazyframe.select(pl.col("days_open") == open_for)

    @row_rule("on the deadline a clock is BREACHED, and only then")
    def _breached_on_deadline(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        on_deadline = pl.col("business_date") == pl.col("breach_on")
        return data.lazyframe.select(on_deadline == (pl.col("sla_state") == "BREACHED"))

    @row_rule("breach_at is set exactly where the clock is BREACHED")
    def _breach_at(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select(pl.col("breach_at").is_not_null() == (pl.col("sla_state") == "BREACHED"))


class CaseSlaDailyCorrections(Corrections):
    """One row per corrected case, clock and day."""

    case_id: str = pa.Field(str_length={"min_value": 1}, description="The case.")
    clock: str = pa.Field(isin=CLOCKS, description="Which deadline.")
    business_date: pl.Date = pa.Field(description="The day, in the jurisdiction's time zone.")


def measure_case_sla_daily(rows: pl.DataFrame) -> pl.DataFrame:
    """Count rows, and clocks that began, by jurisdiction, clock and state."""
    return rows.group_by("jurisdiction", "clock", "sla_state", maintain_order=True).agg(
        rows=pl.len().cast(pl.Int64),
        started=(pl.col("business_date") == pl.col("started_on")).sum().cast(pl.Int64),
    )


ENDS = ("case_id", "clock", "jurisdiction", "business_date", "started_on", "breach_on", "sla_state")


def ends_of_clocks(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the first and the last day of each clock."""
    return rows.filter((pl.col("business_date") == pl.col("started_on")) | (pl.col("sla_state") != "RUNNING"))
