"""Topics that runs have published events to: what was about to be written, and which ranges of offsets were.

Revision: 0014, after 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "topic_publications",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("run_id", sa.String(64), sa.ForeignKey("runs.run_id"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("sink", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("topic", sa.String(249), nullable=False),
        sa.Column("cluster_id", sa.String(100), nullable=False),
        sa.Column("topic_id", sa.String(100), nullable=False),
        sa.Column("starts", sa.Text(), nullable=False),
        sa.Column("events", sa.BigInteger(), nullable=True),
        sa.Column("written", sa.Text(), nullable=False, server_default="[]"),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("note", sa.Text(), nullable=False, server_default=""),
        sa.Column("channel", sa.String(16), nullable=False, server_default=""),
        sa.Column("proof", sa.String(32), nullable=False, server_default=""),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.UniqueConstraint("run_id", "sink", "number", name="topic_publications_by_change"),
    )
