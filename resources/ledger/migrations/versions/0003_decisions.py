"""Roles and break-glass of decisions, acceptances of changes, policies and lists of erased subjects.

Revision: 0003, after 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "acceptances",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("gate", sa.String(length=100), nullable=False),
        sa.Column("accepted_by", sa.String(length=200), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("plan_hash", sa.String(length=64), nullable=False),
        sa.Column("numbers", sa.Text(), nullable=False),
        sa.Column("numbers_hash", sa.String(length=64), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"],
            ["runs.run_id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("acceptances_by_run", "acceptances", ["run_id", "gate"], unique=False)
    op.create_table(
        "policies",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("hash"),
    )
    op.create_table(
        "erasure_lists",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("subjects", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("hash"),
    )
    op.add_column("approvals", sa.Column("role", sa.String(length=16), server_default="approver", nullable=False))
    op.add_column("approvals", sa.Column("break_glass", sa.Text(), server_default="", nullable=False))
    op.add_column("verdicts", sa.Column("asks", sa.Boolean(), server_default=sa.false(), nullable=False))
