"""What servers were asked for, and which of their answers are kept.

Revision: 0012, after 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "extractions",
        sa.Column("extraction", sa.String(120), primary_key=True),
        sa.Column("feed", sa.String(100), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("pattern", sa.String(32), nullable=False),
        sa.Column("asked", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("responses", sa.Integer(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.Column("first_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("pages_hash", sa.String(64), nullable=False),
        sa.Column("index_hash", sa.String(64), nullable=False),
        sa.Column("counts", sa.Text(), nullable=False),
        sa.Column("started_by", sa.String(200), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.UniqueConstraint("feed", "number", name="extractions_by_number"),
    )
    op.create_table(
        "responses",
        sa.Column("response", sa.String(130), primary_key=True),
        sa.Column("extraction", sa.String(120), sa.ForeignKey("extractions.extraction"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("part", sa.String(200), nullable=False),
        sa.Column("reading", sa.Integer(), nullable=False),
        sa.Column("page", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(8), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("parameters", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("content_hash", sa.String(64), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Index("responses_by_extraction", "extraction", "number"),
    )
