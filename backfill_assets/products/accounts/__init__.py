"""Accounts of a bank, kept by the changes of its database: how each is, how it was from when to when, and at the end of each day."""

from __future__ import annotations

from backfill_assets.declarations.changelogs import ChangedTable, Changelog
from backfill_assets.declarations.logs import LogPlace
from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.target import ColumnOrigin, TargetTable
from backfill_assets.products.accounts import schemas, transforms
from backfill_assets.products.accounts.generator import COLUMNS
from manifests.chunks import Chunking
from manifests.division import ByBucket
from manifests.log_ranges import LogKind
from manifests.merge_policy import MergePolicy

OWNERS = ("team:account-data",)

ACCOUNT_CHANGES = InputTable(
    name="bronze.account_changes",
    description="Every change of the bank's table of accounts, as the log of its database has it. Append-only.",
    model=schemas.AccountChanges,
    owners=OWNERS,
    log=LogPlace(LogKind.CHANGELOG, "commit_lsn"),
)
BANK = Changelog(
    name="bank_changes",
    description="the log of the bank's database",
    owners=OWNERS,
    table=ACCOUNT_CHANGES.name,
    tables=(ChangedTable(transforms.SOURCE_TABLE, ("account_id",), COLUMNS),),
)
ACCOUNT_HISTORY = TargetTable(
    name="silver.account_history",
    description="What each account was, from one commit of the bank's database up to another.",
    model=schemas.AccountHistory,
    key=("account_id", "valid_from_lsn"),
    chunking=Chunking.WHOLE,
    chunk_values=ByBucket("account_id", 4),
    source=ACCOUNT_CHANGES.name,
    source_time_column="committed_at",
    readers=transforms.READERS,
    versions=transforms.HISTORY_VERSIONS,
    owners=OWNERS,
    column_origins={
        name: (ColumnOrigin(ACCOUNT_CHANGES.name, "after"),) for name in ("account_id", "owner", "contact", "balance")
    },
)
ACCOUNT_STATE = TargetTable(
    name="silver.account_state",
    description="Each account as the newest commit leaves it; one that is closed stays, and says so.",
    model=schemas.AccountState,
    key=("account_id", "opened_on"),
    day_column="opened_on",
    chunking=Chunking.MONTH,
    chunks_from="2015-01",
    source=ACCOUNT_HISTORY.name,
    # a history is read by the day on which its account was opened, whenever it was changed
    source_time_column="opened_on",
    versions=transforms.STATE_VERSIONS,
    entity="account_id",
    version_column="source_version",
    merge_policy=MergePolicy(),
    owners=OWNERS,
    column_origins={
        name: (ColumnOrigin(ACCOUNT_HISTORY.name, name),) for name in ("account_id", "owner", "contact", "balance")
    },
)
ACCOUNT_DAILY = TargetTable(
    name="silver.account_daily",
    description="Each account at the end of each day.",
    model=schemas.AccountDaily,
    key=("day", "account_id"),
    day_column="day",
    chunking=Chunking.DAY,
    chunks_from="2015-01-01",
    chunks_until="2035-12-31",
    source=ACCOUNT_CHANGES.name,
    source_time_column="committed_at",
    readers=transforms.READERS,
    warm_up_days=transforms.every_day_before,
    versions=transforms.DAILY_VERSIONS,
    owners=OWNERS,
    column_origins={
        name: (ColumnOrigin(ACCOUNT_CHANGES.name, "after"),) for name in ("account_id", "owner", "contact", "balance")
    },
)

PRODUCT = Product(
    name="accounts",
    inputs=(ACCOUNT_CHANGES,),
    targets=(ACCOUNT_HISTORY, ACCOUNT_STATE, ACCOUNT_DAILY),
    changelogs=(BANK,),
)
