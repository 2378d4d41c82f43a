"""Which files came by which feed, and what became of each.

Revision: 0010, after 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "imports",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("feed", sa.String(40), nullable=False),
        sa.Column("file_id", sa.String(64), nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=True),
        sa.Column("content_hash", sa.String(64), nullable=False),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("business_date", sa.Date, nullable=True),
        sa.Column("schema_version", sa.String(100), nullable=False),
        sa.Column("translator_version", sa.String(100), nullable=False),
        sa.Column("manifest_id", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("decision", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("rejected", sa.BigInteger, nullable=False),
        sa.Column("first_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sightings", sa.Integer, nullable=False),
        sa.Column("load_id", sa.String(300), nullable=False),
        sa.Column("snapshot_id", sa.BigInteger, nullable=True),
        sa.Column("received_by", sa.String(200), nullable=False),
        sa.Index("imports_by_feed", "feed", "status"),
        sa.Index("imports_by_date", "feed", "business_date"),
    )
