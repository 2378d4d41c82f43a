"""What people have decided of quarantined rows, and by which loads those that were released came into their table.

Revision: 0011, after 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "quarantine_releases",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("input_table", sa.String(200), nullable=False),
        sa.Column("load_id", sa.String(200), nullable=False),
        sa.Column("cases", sa.Integer(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("loads", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Index("quarantine_releases_by_table", "input_table", "id"),
    )
    op.create_table(
        "quarantine_decisions",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("input_table", sa.String(200), nullable=False),
        sa.Column("case_id", sa.String(64), nullable=False),
        sa.Column("decision", sa.String(16), nullable=False),
        sa.Column("release_id", sa.BigInteger(), nullable=True),
        sa.Column("decided_by", sa.String(200), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("channel", sa.String(16), nullable=False, server_default=""),
        sa.Column("proof", sa.String(32), nullable=False, server_default=""),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Index("quarantine_decisions_by_table", "input_table", "id"),
    )
