"""Indexes by which the rows of one run, and who holds the chunks of a target today, are found among those of all the others.

Revision: 0015, after 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

_NOW = sa.text("ended_at IS NULL")


def upgrade() -> None:
    for table in ("transitions", "attempts", "approvals", "publications", "watermarks", "freezes", "waits"):
        op.create_index(f"{table}_by_run", table, ["run_id", "id"])
    op.create_index("publications_by_state", "publications", ["state"])
    op.create_index("accepted_by_run", "accepted_versions", ["run_id", "ended_at"])
    op.create_index("accepted_until", "accepted_versions", ["target", "ended_by"])
    op.create_index("accepted_now", "accepted_versions", ["target", "chunk"], sqlite_where=_NOW, postgresql_where=_NOW)
