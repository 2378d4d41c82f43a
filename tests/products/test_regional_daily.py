"""Regional days: each says what the newest version of its report says, and a correction restates exactly its days."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from worlds import SPARK, World

from backfill_assets.defs.launch import initialise_instance
from backfill_assets.ingestion.file_history import files_on_record
from backfill_assets.ingestion.receiving import receive
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.products.public_health import PRODUCT, REGIONAL_DAILY, REGIONAL_FILES, REGIONAL_REPORTS, generator
from backfill_assets.products.public_health.regions import REGIONS
from backfill_assets.products.public_health.reports import REQUIRED
from backfill_assets.products.public_health.transforms import COLUMNS
from backfill_assets.testing import Trial
from manifests.model import RunManifest
from manifests.reading import manifest_from
from resources.settings import load_settings

TARGET = REGIONAL_DAILY.name
DAY = date(2020, 3, 1)
AT = datetime(2020, 3, 1, 17, tzinfo=UTC)


def version(day: date, at: datetime, file_id: str, cases: int) -> list[dict[str, Any]]:
    """Return the rows of a version of a day."""
    return [
        {
            "report_date": day,
            "published_at": at,
            "file_id": file_id,
            "is_withdrawal": False,
            "source_row": number,
            "region_code": region.code,
            "region_name": region.name,
            **dict.fromkeys(REQUIRED, 0),
            "total_cases": cases,
        }
        for number, region in enumerate(REGIONS)
    ]


def withdrawal(day: date, at: datetime, file_id: str) -> dict[str, Any]:
    return {"report_date": day, "published_at": at, "file_id": file_id, "is_withdrawal": True, "source_row": 0}


ROWS = [
    *version(DAY, AT, "20200301-00001-a", 1),
    *version(DAY, AT + timedelta(days=3), "20200301-00003-c", 3),
    *version(DAY, AT + timedelta(days=2), "20200301-00002-b", 2),
    *version(DAY + timedelta(days=1), AT, "20200302-00001-a", 5),
    *version(DAY + timedelta(days=1), AT, "20200302-00002-b", 6),
    *version(DAY + timedelta(days=2), AT, "20200303-00001-a", 7),
    withdrawal(DAY + timedelta(days=2), AT + timedelta(days=1), "20200303-00002-withdrawn"),
    *version(DAY + timedelta(days=3), AT, "20200304-00001-a", 8),
    withdrawal(DAY + timedelta(days=3), AT + timedelta(days=1), "20200304-00002-withdrawn"),
    *version(DAY + timedelta(days=3), AT + timedelta(days=2), "20200304-00003-c", 9),
]
TRIAL = Trial(REGIONAL_DAILY, "1.0.0", ROWS, publish_range=("2020-03-01", "2020-03-05"), inputs=(REGIONAL_REPORTS,))


def by_hand(source: Sequence[Mapping[str, Any]], _references: object) -> list[dict[str, Any]]:
    """Take the newest version day by day, without Spark."""
    newest: dict[date, tuple[datetime, str]] = {}
    for row in source:
        newest[row["report_date"]] = max(
            newest.get(row["report_date"], (AT, "")), (row["published_at"], row["file_id"])
        )
    return [
        {column: row.get(column) for column in COLUMNS}
        for row in source
        if (row["published_at"], row["file_id"]) == newest[row["report_date"]] and not row["is_withdrawal"]
    ]


def test_a_day_says_what_its_newest_version_says_and_nothing_once_that_was_taken_back() -> None:
    TRIAL.require_same_as(by_hand)
    cases = TRIAL.rows().group_by("report_date").agg(pl.col("total_cases").unique(), pl.len()).sort("report_date")
    assert cases.rows() == [
        (DAY, [3], 21),
        (DAY + timedelta(days=1), [6], 21),
        (DAY + timedelta(days=3), [9], 21),
    ]


def test_rows_pass_the_rules_and_depend_on_nothing_but_what_is_read() -> None:
    assert TRIAL.violations() == {}
    TRIAL.require_pure()


# --- a run of it ------------------------------------------------------------------------------------------------------


class Reports(World):
    """An installation of the product, with the manifests of its target."""

    def manifest(self, run_id: str | None = None, *, version: str = "1.0.0", **changes: Any) -> RunManifest:
        text: dict[str, Any] = {
            "runId": run_id or "rebuild",
            "kind": "BACKFILL",
            "requestedBy": "ana",
            "reason": "each day as its newest version says it",
            "source": {"table": REGIONAL_REPORTS.name},
            "transform": {"name": "regional_daily", "version": version},
            "target": {"table": TARGET, "publishRange": {"start": self.start, "end": self.end}},
            "safety": {"sinks": ["run_audit"]},
            "development": True,
        }
        return manifest_from(text | changes)

    def days(self) -> pl.DataFrame:
        frame = pl.from_arrow(self.platform.lakehouse.table(TARGET).scan().to_arrow())
        assert isinstance(frame, pl.DataFrame)
        return frame.sort("report_date", "region_code")


@pytest.fixture
def reports(tmp_path: Path) -> Iterator[Reports]:
    home = tmp_path / "home"
    settings = load_settings(home=home, spark=SPARK, products=["backfill_assets.products.public_health:PRODUCT"])
    platform = Platform.of(settings)
    initialise(platform)
    initialise_instance(settings)
    yield Reports(platform, home, generator.FIRST_DAY, generator.FIRST_DAY + timedelta(days=11))
    platform.ledger.close()


def test_a_file_that_is_published_again_restates_its_day_and_no_other(reports: Reports) -> None:
    assert PRODUCT.feeds == (REGIONAL_FILES,)
    landing = reports.home / "landing" / REGIONAL_FILES.name
    landing.mkdir(parents=True)
    versions = [one for one in generator.generate(12, seed=5) if one.number == 1]
    corrected = next(one for one in generator.generate(12, seed=6) if one.day == versions[4].day)
    again = replace(corrected, number=2, published_at=versions[4].published_at + timedelta(days=9))

    def land(*some: generator.Published) -> None:
        for one in some:
            place = landing / one.path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(one.content)
        generator.index_of(some).write_parquet(landing / generator.INDEX)

    land(*versions)
    assert dict(receive(reports.platform, REGIONAL_FILES.name).by_status) == {"ACCEPTED": 12}
    few = {"gates": ["all_chunks_staged", "rows_within_expected", "days_have_every_region"]}
    reports.published(reports.manifest("rebuild", validation=few))
    before = reports.days()
    assert before.height == 12 * 21
    (used,) = {one.runs for one in files_on_record(reports.platform, REGIONAL_FILES.name)}
    assert used == ("rebuild",)

    land(again)
    assert dict(receive(reports.platform, REGIONAL_FILES.name).by_status) == {"CORRECTION": 1}
    scope = {"table": TARGET, "publishRange": {"start": again.day, "end": again.day}}
    reports.published(reports.manifest("restate", kind="RESTATEMENT", target=scope, validation=few))
    after = reports.days()
    is_restated = pl.col("report_date") == again.day
    assert after.filter(~is_restated).equals(before.filter(~is_restated)), "no other day has changed, byte for byte"
    found = dict(after.filter(is_restated).select("region_code", "total_cases").iter_rows())
    assert found == {code: figures["total_cases"] for code, figures in again.figures.items()}
    assert after.filter(is_restated)["published_at"].unique().to_list() == [again.published_at]
