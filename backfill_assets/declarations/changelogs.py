"""Change data capture as a product declares it: `Changelog`, the tables of a database it is of, and the model of what is landed.

Put here what a product writes down of a changelog, and what a landed change looks like. What is wrong with a declaration is
`checking.changelogs`' to say; how a change is read `extraction.debezium`'s; what changes come to, `changes`'. Imported by Spark's
Python workers: keep it light.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandera.polars as pa
import polars as pl

from backfill_assets.declarations.arguments import said_at_once
from backfill_assets.declarations.schema import Instant, row_rule

CREATED, UPDATED, DELETED, READ, TRUNCATED = "c", "u", "d", "r", "t"
OPERATIONS = (CREATED, UPDATED, DELETED, READ, TRUNCATED)
"""What a change is, in Debezium's letters."""
UNKNOWN_VERSION = "unknown: "
"""In front of the columns of a row that is of no declared version; no reader has a version that begins so."""


class ChangeRecord(pa.DataFrameModel):
    """A change of a row of a database, as it came; append-only. Rows are ordered by commit, LSN and position, and by nothing else."""

    commit_lsn: pl.Int64 = pa.Field(
        ge=0,
        description="Position in the log: LSN of the commit of its transaction; of a snapshot read, of the snapshot.",
    )
    lsn: pl.Int64 = pa.Field(ge=0, description="LSN of the change itself.")
    position: pl.Int64 = pa.Field(
        ge=0, description="Place within its transaction, from 1, over all tables; 0 of a snapshot read."
    )
    op: str = pa.Field(
        isin=OPERATIONS, description="c created, u updated, d deleted, r read by a snapshot, t truncated."
    )
    source_table: str = pa.Field(description="The table of the database, as schema.table.")
    key: str = pa.Field(nullable=True, description="The row's key as canonical JSON; NULL of a truncate.")
    before: str = pa.Field(nullable=True, description="The row before, JSON as it came; NULL where nothing came.")
    after: str = pa.Field(nullable=True, description="The row after, JSON as it came; NULL where nothing came.")
    committed_at: Instant = pa.Field(
        description="When its transaction was committed; of a snapshot read, when the first row of the snapshot was read."
    )
    transaction_id: str = pa.Field(
        nullable=True, description="The database's id of its transaction; NULL of a snapshot read."
    )
    schema_version: str = pa.Field(description="The declared version whose columns the row has.")
    is_snapshot_read: bool = pa.Field(
        description="Whether it is no change but an observation: the row as a snapshot found it."
    )
    previous_commit_lsn: pl.Int64 = pa.Field(
        nullable=True, description="The commit before it, as the connector says it."
    )
    source_file: str = pa.Field(description="Name of the delivered file.")
    source_row: pl.Int64 = pa.Field(ge=0, description="Number of the line in it, from 0.")
    landed_at: Instant = pa.Field(description="When it was landed.")

    @row_rule("every change but a truncate has a key")
    def _has_a_key(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select(pl.col("key").is_null() == (pl.col("op") == TRUNCATED))

    @row_rule("what is there afterwards has a row, what is gone has none")
    def _has_its_row(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select(pl.col("after").is_null() == pl.col("op").is_in([DELETED, TRUNCATED]))


@said_at_once
@dataclass(frozen=True)
class ChangedTable:
    """A table of a database whose changes are landed.

    Attributes:
        name: of the table in the database, `schema.table`.
        key: the columns that identify a row, in the order of its primary key.
        versions: by version, the columns that its rows have, in any order; oldest version first. A row of other columns is landed as
            of an unknown version: no reader has that, so that no run is planned over it before it is declared, and landed again.
    """

    name: str
    key: tuple[str, ...]
    versions: Mapping[str, tuple[str, ...]]

    def version_of(self, columns: frozenset[str]) -> str:
        """Return the version of a row that has these columns; of none declared, one that says which they are."""
        for version, declared in self.versions.items():
            if columns == frozenset(declared):
                return version
        return UNKNOWN_VERSION + ", ".join(sorted(columns))

    @property
    def newest_version(self) -> str:
        """The version that was declared last."""
        return list(self.versions)[-1]


@said_at_once
@dataclass(frozen=True)
class Changelog:
    """The changes of a database, landed by `backfill land NAME FOLDER` in one input table.

    Attributes:
        name: of the changelog, in small letters; its archive is named by it.
        description: what it is of, in a sentence; `owners` users or teams, as Dagster writes them.
        table: the input table that changes are landed in; its model is `ChangeRecord` or inherits it, its `log` a
            `LogPlace(LogKind.CHANGELOG, "commit_lsn")`.
        tables: the tables of the database. Changes of others are counted and left out.
    """

    name: str
    description: str
    owners: tuple[str, ...]
    table: str
    tables: tuple[ChangedTable, ...]

    def changed_table(self, name: str) -> ChangedTable | None:
        """Return the table of the database that has a name; None where changes of it are left out."""
        return next((one for one in self.tables if one.name == name), None)
