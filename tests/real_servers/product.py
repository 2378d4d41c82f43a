"""A product that has the changes of the table of `changing.py` landed: what is tested of landing and reconstruction on a real log."""

from __future__ import annotations

from typing import Annotated

import pandera.polars as pa
import polars as pl
from pyspark.sql import DataFrame

from backfill_assets.declarations.changelogs import ChangedTable, Changelog, ChangeRecord
from backfill_assets.declarations.changes import history, renamed
from backfill_assets.declarations.logs import LogPlace
from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.schema import Instant, Published
from backfill_assets.declarations.source_tables import Readers, as_it_is
from backfill_assets.declarations.target import ColumnOrigin, Inputs, TargetTable, TransformContext, TransformVersion
from manifests.chunks import Chunking
from manifests.division import ByBucket
from manifests.log_ranges import LogKind

TABLE = "public.account"
_FIRST = "id bigint, owner string, balance decimal(14, 2), visits int, notes string, changed string"
_SECOND = f"{_FIRST}, grade int"
ROW = _SECOND.replace("visits", "seen")
"""The table's columns at the end; before it was renamed, `seen` was `visits`, and before it was added, there was no `grade`."""
COLUMNS = ("id", "owner", "balance", "seen", "notes", "changed", "grade")
_OLD = ("id", "owner", "balance", "visits", "notes", "changed")
READERS = Readers(
    "schema_version",
    {"1": renamed(_FIRST, {"visits": "seen"}), "2": renamed(_SECOND, {"visits": "seen"}), "3": as_it_is},
)


class Changes(ChangeRecord):
    """A change of the table."""


CHANGES = InputTable(
    name="bronze.account_log",
    description="Every change of a table that several writers change at once.",
    model=Changes,
    owners=("team:tests",),
    log=LogPlace(LogKind.CHANGELOG, "commit_lsn"),
)
CHANGELOG = Changelog(
    name="account_log",
    description="the log of a database of the tests",
    owners=("team:tests",),
    table=CHANGES.name,
    tables=(ChangedTable(TABLE, ("id",), {"1": _OLD, "2": (*_OLD, "grade"), "3": COLUMNS}),),
)


class History(Published):
    """What a row was from one commit up to another."""

    id: pl.Int64 = pa.Field(description="Its key.")
    owner: str = pa.Field(description="Some letters.")
    balance: Annotated[pl.Decimal, 14, 2] = pa.Field(nullable=True, description="Some number.")
    seen: pl.Int32 = pa.Field(nullable=True, description="Some other number.")
    notes: str = pa.Field(nullable=True, description="Many letters.")
    changed: str = pa.Field(nullable=True, description="When a writer last changed it, as Debezium writes it.")
    grade: pl.Int32 = pa.Field(nullable=True, description="The number that was added.")
    valid_from_lsn: pl.Int64 = pa.Field(ge=0, description="The commit that made it so.")
    valid_from: Instant = pa.Field(description="When that was.")
    valid_to_lsn: pl.Int64 = pa.Field(nullable=True, description="The commit that ended it; NULL while it holds.")
    valid_to: Instant = pa.Field(nullable=True, description="When that was.")


def row_history(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Return what each row was, from one commit up to another."""
    del context
    found = history(inputs.source, ROW)
    return found.select(*COLUMNS, "valid_from_lsn", "valid_from", "valid_to_lsn", "valid_to")


HISTORY = TargetTable(
    name="silver.account_log_history",
    description="What each row was, from one commit up to another.",
    model=History,
    key=("id", "valid_from_lsn"),
    chunking=Chunking.WHOLE,
    chunk_values=ByBucket("id", 4),
    source=CHANGES.name,
    source_time_column="committed_at",
    readers=READERS,
    versions={"1.0.0": TransformVersion(row_history)},
    owners=("team:tests",),
    column_origins={name: (ColumnOrigin(CHANGES.name, "after"),) for name in COLUMNS},
)
PRODUCT = Product(name="accounts_of_tests", inputs=(CHANGES,), targets=(HISTORY,), changelogs=(CHANGELOG,))
