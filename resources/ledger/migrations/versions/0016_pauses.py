"""Pauses: stops that end by a decision with a reason, who made them through what, and why.

Revision: 0016, after 0015
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    for name, kind in (
        ("kind", sa.String(16)),
        ("cause", sa.String(32)),
        ("channel", sa.String(16)),
        ("proof", sa.String(32)),
        ("resume_reason", sa.Text()),
        ("resumed_channel", sa.String(16)),
        ("resumed_proof", sa.String(32)),
    ):
        default = "STOP" if name == "kind" else ""
        op.add_column("stops", sa.Column(name, kind, nullable=False, server_default=default))
