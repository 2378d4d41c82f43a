"""The dry run that an approval rests on, where the policy asks for one.

Revision: 0018, after 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.add_column("approvals", sa.Column("dry_run", sa.Text(), nullable=False, server_default=""))
