"""Batches that were admitted within the limits of their run, and who waits for a limit until when.

Revision: 0017, after 0016
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_table(
        "admissions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("run_id", sa.String(64), sa.ForeignKey("runs.run_id"), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("chunks", sa.Integer(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Index("admissions_by_run", "run_id", "id"),
    )
    op.add_column("waits", sa.Column("until_at", sa.DateTime(timezone=True), nullable=True))
    for name, kind, default in (
        ("host", sa.String(200), ""),
        ("pid", sa.Integer(), "0"),
        ("process", sa.String(400), ""),
    ):
        op.add_column("waits", sa.Column(name, kind, nullable=False, server_default=default))
