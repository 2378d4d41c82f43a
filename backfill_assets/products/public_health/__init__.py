"""Public health: daily reports of an epidemic by region, which their producer publishes again when he knows better."""

from __future__ import annotations

from backfill_assets.declarations.feeds import DeliveryIndex, FileFeed, FileLimits
from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.revisions import Revisions
from backfill_assets.declarations.schedules import RestatementPolicy
from backfill_assets.declarations.target import ColumnOrigin, TargetTable
from backfill_assets.products.public_health import gates, reports, schemas, transforms
from manifests.chunks import Chunking

OWNERS = ("team:public-health-data",)

REGIONAL_REPORTS = InputTable(
    name="bronze.regional_reports",
    description="Every version of every daily report, a row a region, with the names and codes of today beside those published.",
    model=schemas.RegionalReports,
    owners=OWNERS,
    revisions=Revisions(valid="report_date", system="published_at", version="file_id"),
)
REGIONAL_FILES = FileFeed(
    name="regional_reports",
    description="A report of one day, a record a region; published again when the producer knows better.",
    owners=OWNERS,
    table=REGIONAL_REPORTS.name,
    path=r"regioni/data=(?P<date>\d{8})/v(?P<number>\d{2})_(?P<commit>[0-9a-f]{12})\.csv",
    date_format="%Y%m%d",
    time=DeliveryIndex(
        file="*_version_index.parquet",
        path="{kind}/data={partition}/v{version:02d}_{commit:.12}.csv",
        time="commit_time",
        content_hash="blob",
        algorithm="git-blob",
        withdrawn=("status", "D"),
        withdrawn_date="partition",
    ),
    readers=reports.READERS,
    translate=reports.translate,
    translator_version=reports.TRANSLATOR_VERSION,
    limits=FileLimits(bytes=1 << 20, rows=1_000, field_chars=8_192, archive_bytes=1 << 30, archive_files=100_000),
    skips=r"nazionale/.*",
)
REGIONAL_DAILY = TargetTable(
    name="silver.regional_daily",
    description="One row per region and day, as the newest version of that day's report says it.",
    model=schemas.RegionalDaily,
    key=("report_date", "region_code"),
    day_column="report_date",
    chunking=Chunking.DAY,
    chunks_from="2020-02-23",
    chunks_until="2030-12-31",
    source=REGIONAL_REPORTS.name,
    source_time_column="report_date",
    versions=transforms.VERSIONS,
    reconciliations=gates.ALL,
    owners=OWNERS,
    column_origins={column: (ColumnOrigin(REGIONAL_REPORTS.name, column),) for column in transforms.COLUMNS},
    chunks_per_run=600,
    restated=RestatementPolicy("1.0.0"),
)

PRODUCT = Product(
    name="public_health",
    inputs=(REGIONAL_REPORTS,),
    targets=(REGIONAL_DAILY,),
    feeds=(REGIONAL_FILES,),
)
