"""The columns of the public health tables, as pandera models.

Put here what a row is, and the rules within one. What compares days is in `gates`. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

import pandera.polars as pa
import polars as pl

from backfill_assets.declarations.column_types import LocalTimestamp
from backfill_assets.declarations.schema import Instant, Published, row_rule


def _figure(what: str) -> pl.Int64:
    found: pl.Int64 = pa.Field(nullable=True, description=what)
    return found


class RegionalReports(pa.DataFrameModel):
    """A region in one version of the report of one day; append-only. A report that was taken back is one row without a region."""

    report_date: pl.Date = pa.Field(description="The day that the report is about: valid time.")
    published_at: Instant = pa.Field(description="When this version was published: system time.")
    file_id: str = pa.Field(
        description="Version of the day's report; of versions published at one time the greater one counts."
    )
    is_withdrawal: bool = pa.Field(
        description="Whether the producer has taken the day's report back; there are no figures then."
    )
    source_row: pl.Int64 = pa.Field(ge=0, description="Number of the record in its file, from 0.")
    reported_at: LocalTimestamp = pa.Field(
        nullable=True, description="Date and time that the record gives, as published."
    )
    country: str = pa.Field(nullable=True, description="Country, as published.")
    region_code: str = pa.Field(nullable=True, description="Code of the region today.")
    region_name: str = pa.Field(nullable=True, description="Name of the region today.")
    raw_region_code: str = pa.Field(nullable=True, description="The code as published.")
    raw_region_name: str = pa.Field(nullable=True, description="The name as published.")
    latitude: pl.Float64 = pa.Field(nullable=True, description="Degrees north.")
    longitude: pl.Float64 = pa.Field(nullable=True, description="Degrees east.")
    hospitalised_with_symptoms: pl.Int64 = _figure("In hospital with symptoms, outside intensive care.")
    intensive_care: pl.Int64 = _figure("In intensive care.")
    total_hospitalised: pl.Int64 = _figure("In hospital.")
    home_isolation: pl.Int64 = _figure("In isolation at home.")
    total_positive: pl.Int64 = _figure("Positive at present.")
    total_positive_change: pl.Int64 = _figure("Change of those against the day before.")
    new_positive: pl.Int64 = _figure("New cases; below 0 where earlier ones were taken back.")
    discharged_recovered: pl.Int64 = _figure("Recovered since the beginning.")
    deaths: pl.Int64 = _figure("Died since the beginning.")
    cases_from_suspicion: pl.Int64 = _figure("Cases found on suspicion, since the beginning.")
    cases_from_screening: pl.Int64 = _figure("Cases found by screening, since the beginning.")
    total_cases: pl.Int64 = _figure("Cases since the beginning.")
    tests: pl.Int64 = _figure("Tests since the beginning.")
    people_tested: pl.Int64 = _figure("People tested since the beginning.")
    intensive_care_admissions: pl.Int64 = _figure("Admissions to intensive care on the day.")
    positive_by_molecular_test: pl.Int64 = _figure("Cases by molecular test, since the beginning.")
    positive_by_antigen_test: pl.Int64 = _figure("Cases by rapid antigen test, since the beginning.")
    molecular_tests: pl.Int64 = _figure("Molecular tests since the beginning.")
    antigen_tests: pl.Int64 = _figure("Rapid antigen tests since the beginning.")
    notes: str = pa.Field(nullable=True, description="Notes of the producer.")
    notes_english: str = pa.Field(nullable=True, description="The same in English.")
    notes_on_tests: str = pa.Field(nullable=True, description="Notes on tests.")
    notes_on_cases: str = pa.Field(nullable=True, description="Notes on cases.")
    nuts_1: str = pa.Field(nullable=True, description="NUTS code of the group of regions.")
    nuts_2: str = pa.Field(nullable=True, description="NUTS code of the region.")
    unnamed: str = pa.Field(nullable=True, description="A column that came without a name.")
    set_aside: str = pa.Field(nullable=True, description="Cells that are no value of their column, as JSON by column.")

    @row_rule("a report has regions, unless it was taken back")
    def _has_a_region(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select(pl.col("region_code").is_null() == pl.col("is_withdrawal"))


class RegionalDaily(Published):
    """A region on a day, as the newest version of that day's report says it."""

    report_date: pl.Date = pa.Field(description="The day.")
    region_code: str = pa.Field(description="Code of the region today.")
    region_name: str = pa.Field(description="Name of the region today.")
    hospitalised_with_symptoms: pl.Int64 = pa.Field(
        ge=0, description="In hospital with symptoms, outside intensive care."
    )
    intensive_care: pl.Int64 = pa.Field(ge=0, description="In intensive care.")
    total_hospitalised: pl.Int64 = pa.Field(ge=0, description="In hospital.")
    home_isolation: pl.Int64 = pa.Field(description="In isolation at home; below 0 where the producer says so.")
    total_positive: pl.Int64 = pa.Field(description="Positive at present; below 0 where the producer says so.")
    total_positive_change: pl.Int64 = pa.Field(description="Change of those against the day before.")
    new_positive: pl.Int64 = pa.Field(
        nullable=True, description="New cases; below 0 where earlier ones were taken back."
    )
    discharged_recovered: pl.Int64 = pa.Field(ge=0, description="Recovered since the beginning.")
    deaths: pl.Int64 = pa.Field(ge=0, description="Died since the beginning.")
    total_cases: pl.Int64 = pa.Field(ge=0, description="Cases since the beginning.")
    tests: pl.Int64 = pa.Field(nullable=True, description="Tests since the beginning.")
    people_tested: pl.Int64 = pa.Field(nullable=True, description="People tested since the beginning.")
    intensive_care_admissions: pl.Int64 = pa.Field(
        nullable=True, description="Admissions to intensive care on the day."
    )
    notes: str = pa.Field(nullable=True, description="Notes of the producer.")
    published_at: Instant = pa.Field(description="When the version that says so was published.")
    file_id: str = pa.Field(description="That version.")
