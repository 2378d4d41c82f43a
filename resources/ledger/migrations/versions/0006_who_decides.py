"""What LIVE's tick has written, which policy is in force, and who decided through what.

Revision: 0006, after 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _who() -> tuple[sa.Column[str], sa.Column[str]]:
    return (
        sa.Column("channel", sa.String(length=16), server_default="", nullable=False),
        sa.Column("proof", sa.String(length=32), server_default="", nullable=False),
    )


def upgrade() -> None:
    op.create_table(
        "live_ticks",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=200), nullable=False),
        sa.Column("manifest_hash", sa.String(length=64), nullable=False),
        sa.Column("source_snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("start_day", sa.Date(), nullable=False),
        sa.Column("end_day", sa.Date(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_live_ticks_run_id", "live_ticks", ["run_id"], unique=False)
    op.create_table(
        "policy_decisions",
        sa.Column("id", _ID, autoincrement=True, nullable=False),
        sa.Column("decision", sa.String(length=16), nullable=False),
        sa.Column("policy_hash", sa.String(length=64), nullable=False),
        sa.Column("before_hash", sa.String(length=64), nullable=False),
        sa.Column("decided_by", sa.String(length=200), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        *_who(),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    for table in ("transitions", "approvals", "publications", "acceptances"):
        for column in _who():
            op.add_column(table, column)
    for table in ("approvals", "acceptances"):
        op.add_column(table, sa.Column("policy_hash", sa.String(length=64), server_default="", nullable=False))
