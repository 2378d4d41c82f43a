"""What the ledger's tables are made of: cells that several of them have. Put here no table; those are in `tables`."""

from __future__ import annotations

import sqlalchemy as sa

from resources.ledger.cells import String

METADATA = sa.MetaData()

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def who() -> tuple[sa.Column[str], sa.Column[str]]:
    """Return through what somebody acted, and what shows that it was them; empty for what came before this was kept."""
    return (
        sa.Column("channel", String(16), nullable=False, default="", server_default=""),
        sa.Column("proof", String(32), nullable=False, default="", server_default=""),
    )


def policy_cell() -> sa.Column[str]:
    """Return the hash of the policy that a decision was held against; empty for what came before this was kept."""
    return sa.Column("policy_hash", String(64), nullable=False, default="", server_default="")


def run_key(*, primary: bool = False) -> sa.Column[str]:
    """Return the run that a row belongs to."""
    return sa.Column("run_id", String(64), sa.ForeignKey("runs.run_id"), nullable=False, primary_key=primary)
