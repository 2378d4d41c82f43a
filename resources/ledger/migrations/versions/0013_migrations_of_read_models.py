"""Read models that move from one table to another: the steps that were taken, who reads which table, and what dual reads found.

Revision: 0013, after 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "migration_steps",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("migration", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("step", sa.String(16), nullable=False),
        sa.Column("old_table", sa.String(200), nullable=False),
        sa.Column("new_table", sa.String(200), nullable=False),
        sa.Column("cut_over", sa.String(16), nullable=False),
        sa.Column("declaration_hash", sa.String(64), nullable=False),
        sa.Column("readers", sa.Text(), nullable=False),
        sa.Column("findings", sa.Text(), nullable=False),
        sa.Column("decided_by", sa.String(200), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("channel", sa.String(16), nullable=False, server_default=""),
        sa.Column("proof", sa.String(32), nullable=False, server_default=""),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("migration", "number", name="migration_steps_by_number"),
    )
    op.create_table(
        "dual_reads",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("migration", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("old_snapshot_id", sa.BigInteger(), nullable=False),
        sa.Column("new_snapshot_id", sa.BigInteger(), nullable=False),
        sa.Column("compared", sa.BigInteger(), nullable=False),
        sa.Column("disagreeing", sa.BigInteger(), nullable=False),
        sa.Column("found", sa.Text(), nullable=False),
        sa.Column("made_by", sa.String(200), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Index("dual_reads_by_migration", "migration", "id"),
    )
