"""The columns of the tables of accounts, as pandera models.

Put here what a row is, and the rules within one. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from typing import Annotated

import pandera.polars as pa
import polars as pl

from backfill_assets.declarations.changelogs import ChangeRecord
from backfill_assets.declarations.schema import Instant, Published, row_rule


class AccountChanges(ChangeRecord):
    """A change of the bank's table of accounts, as its database's log has it."""


class _Account(Published):
    """What the bank says of an account."""

    account_id: str = pa.Field(description="Number of the account, as text: a merge names accounts by it.")
    opened_on: pl.Date = pa.Field(description="Day (UTC) on which it was opened: it stays when the number changes.")
    owner: str = pa.Field(description="Who owns it.")
    contact: str = pa.Field(nullable=True, description="How the owner is reached; an e-mail address at first.")
    balance: Annotated[pl.Decimal, 12, 2] = pa.Field(description="What is on it.")
    note: str = pa.Field(nullable=True, description="What the bank has noted.")
    tier: str = pa.Field(
        nullable=True, description="What the bank counts it among; NULL before there was such a column."
    )


class AccountHistory(_Account):
    """What an account was from one commit up to another."""

    valid_from_lsn: pl.Int64 = pa.Field(ge=0, description="The commit that made it so, or the snapshot that found it.")
    valid_from: Instant = pa.Field(description="When that was.")
    valid_to_lsn: pl.Int64 = pa.Field(nullable=True, description="The commit that ended it; NULL while it holds.")
    valid_to: Instant = pa.Field(nullable=True, description="When that was.")
    is_observed: bool = pa.Field(description="Whether a snapshot found it so: it may have been so before.")
    is_end_observed: bool = pa.Field(
        nullable=True,
        description="Whether a snapshot did not find it so any more: it may have ended before. NULL while it holds.",
    )

    @row_rule("what has ended has ended later than it began")
    def _ends_later(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        ended = pl.col("valid_to_lsn").is_null() | (pl.col("valid_to_lsn") > pl.col("valid_from_lsn"))
        said = pl.col("valid_to_lsn").is_null()
        known = (pl.col("valid_to").is_null() == said) & (pl.col("is_end_observed").is_null() == said)
        return data.lazyframe.select(ended & known)


class AccountState(_Account):
    """An account as the newest commit leaves it; one that is closed stays, and says so."""

    is_closed: bool = pa.Field(description="Whether the bank has it no more; the rest is what it said last.")
    changed_at: Instant = pa.Field(description="When it became so.")
    is_observed: bool = pa.Field(
        description="Whether a snapshot has found it so, or has not found it: it may have become so before."
    )
    source_version: pl.Int64 = pa.Field(
        ge=0, description="LSN of the commit that made it so: of two states the greater is the newer."
    )


class AccountDaily(_Account):
    """An account at the end of a day (UTC)."""

    day: pl.Date = pa.Field(description="The day.")
    changed_at: Instant = pa.Field(description="The commit that it was last changed by.")
