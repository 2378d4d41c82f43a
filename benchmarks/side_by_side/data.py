"""The files that all contenders read: one set of events, and reference data as it was, as it should be, and as it must not be.

events.parquet, stops.parquet     as loaded
rules.parquet, rules-before.parquet
                                  `day_zone` is the zone in which the day of an event is taken: its own, or UTC as by 2.4.1
calendar.parquet, calendar-bad.parquet
                                  the bad one lacks the weekends of one month in one jurisdiction: clocks that begin there have
                                  no deadline, in one chunk
"""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import polars as pl

from backfill_assets.installation import Platform
from backfill_assets.products.enforcement import loading
from backfill_assets.products.enforcement.transforms import CALENDAR, LOOK_BACK_COLUMNS, RULES

BAD_JURISDICTION = "US-NY"
_SATURDAY = 6


@dataclass(frozen=True)
class World:
    """What is restated: months in order, where the files lie, and which month is bad in the bad calendar."""

    months: tuple[str, ...]
    files: Path
    bad_month: str

    @property
    def start(self) -> str:
        """The first day."""
        return f"{self.months[0]}-01"

    @property
    def end(self) -> str:
        """The last day."""
        return f"{last_day(self.months[-1])}"


def last_day(month: str) -> date:
    """Return the last day of a month such as 2010-02."""
    year, number = map(int, month.split("-"))
    return date(year, number, monthrange(year, number)[1])


def months_from(first: date, last: date, number: int) -> tuple[str, ...]:
    """Return so many whole months in the middle of a range, or all of them where there are no more."""
    every = [
        f"{year}-{month:02}"
        for year in range(first.year, last.year + 1)
        for month in range(1, 13)
        if first <= date(year, month, 1) <= last
    ]
    skipped = max(0, (len(every) - number) // 2)
    return tuple(every[skipped : skipped + number])


def events_of(platform: Platform) -> pl.DataFrame:
    """Return the events that an installation has loaded, with the columns that the transform reads."""
    events = pl.from_arrow(platform.lakehouse.table(loading.EVENTS).scan(selected_fields=LOOK_BACK_COLUMNS).to_arrow())
    assert isinstance(events, pl.DataFrame)
    return events


def write(events: pl.DataFrame, files: Path, months: tuple[str, ...]) -> World:
    """Write the files of these events and of the shipped reference tables."""
    files.mkdir()
    events.write_parquet(files / "events.parquet", row_group_size=100_000)
    calendar = write_references(files)
    bad_month = months[len(months) // 2]
    without_weekends(calendar, bad_month).write_parquet(files / "calendar-bad.parquet")
    return World(months, files, bad_month)


def write_references(files: Path) -> pl.DataFrame:
    """Write the shipped reference tables, as the model in SQL reads them; return the calendar."""
    references = {name: pl.from_arrow(rows) for name, rows, _ in loading.reference_tables()}
    rules, calendar = references[RULES], references[CALENDAR]
    assert isinstance(rules, pl.DataFrame)
    assert isinstance(calendar, pl.DataFrame)
    key = ("jurisdiction", "clock", "valid_from")
    stops = rules.select(*key, activity="stop_activities").explode("activity")
    stops.write_parquet(files / "stops.parquet")
    rules = rules.drop("pause_activities", "resume_activities")
    rules.with_columns(day_zone="time_zone").write_parquet(files / "rules.parquet")
    rules.with_columns(day_zone=pl.lit("UTC")).write_parquet(files / "rules-before.parquet")
    calendar.write_parquet(files / "calendar.parquet")
    return calendar


def without_weekends(calendar: pl.DataFrame, month: str) -> pl.DataFrame:
    """Return a calendar without the weekends of a month in one jurisdiction; no business day is missing, so no other day is counted anew."""
    day = pl.col("day")
    is_left_out = (
        (pl.col("jurisdiction") == BAD_JURISDICTION)
        & (day.dt.strftime("%Y-%m") == month)
        & (day.dt.weekday() >= _SATURDAY)
    )
    return calendar.filter(~is_left_out)


def require_bad(world: World, rows: pl.DataFrame) -> None:
    """End if no clock begins on a day that the bad calendar lacks: then it would be as good as the other.

    Clocks that begin at a weekend in that jurisdiction are there, and those of its rules that count business days need the calendar.
    """
    day = pl.col("started_on")
    begin = rows.filter(
        (pl.col("jurisdiction") == BAD_JURISDICTION)
        & (day.dt.strftime("%Y-%m") == world.bad_month)
        & (day.dt.weekday() >= _SATURDAY)
        & pl.col("clock").is_in(["NOTIFICATION", "PAYMENT"])
    )
    if begin.is_empty():
        raise SystemExit(
            f"no clock of {BAD_JURISDICTION} begins at a weekend of {world.bad_month}: generate more --cases"
        )
