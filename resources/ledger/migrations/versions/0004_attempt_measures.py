"""What an attempt was given to read, and what of it another attempt had staged before.

Revision: 0004, after 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("measures", sa.Text(), nullable=False, server_default="{}"))
