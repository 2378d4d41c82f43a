"""What a run-level verdict was made of, and the full name of the process of an attempt or a lease.

Revision: 0005, after 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("verdicts", sa.Column("judged", sa.String(64), nullable=False, server_default=""))
    for table in ("attempts", "leases"):
        op.add_column(table, sa.Column("process", sa.String(400), nullable=False, server_default=""))
