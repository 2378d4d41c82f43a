"""From all versions of the reports to what holds of each day: pure functions of their input frames."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.target import Inputs, TransformContext, TransformVersion

COLUMNS = (
    "report_date",
    "region_code",
    "region_name",
    "hospitalised_with_symptoms",
    "intensive_care",
    "total_hospitalised",
    "home_isolation",
    "total_positive",
    "total_positive_change",
    "new_positive",
    "discharged_recovered",
    "deaths",
    "total_cases",
    "tests",
    "people_tested",
    "intensive_care_admissions",
    "notes",
    "published_at",
    "file_id",
)


def regional_daily(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Return each day's rows of its newest version: the one published last, and of those published at one time the one accepted last.

    A day whose newest version takes its report back has no rows.
    """
    del context
    version = F.struct("published_at", "file_id")
    newest = inputs.source.groupBy("report_date").agg(F.max(version).alias("_newest"))
    rows = inputs.source.join(F.broadcast(newest), "report_date")
    is_newest = F.struct("published_at", "file_id") == F.col("_newest")
    return rows.where(is_newest & ~F.col("is_withdrawal")).select(*COLUMNS)


VERSIONS = {"1.0.0": TransformVersion(regional_daily)}
