"""The ledger's tables. Put here columns only; what may be done with them is `ledger`'s and its neighbours' (leases, ...).

Instants are UTC. A change here comes with an alembic migration in `resources/migrations`.
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa

metadata = sa.MetaData()


class Utc(sa.TypeDecorator[datetime]):
    """An instant: UTC in, UTC out, whatever the database keeps of time zones."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        """Store UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        """Say UTC where the database has forgotten it."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _who() -> tuple[sa.Column[str], sa.Column[str]]:
    """Return through what somebody acted, and what shows that it was them; empty for what came before this was kept."""
    return (
        sa.Column("channel", sa.String(16), nullable=False, default="", server_default=""),
        sa.Column("proof", sa.String(32), nullable=False, default="", server_default=""),
    )


def _policy() -> sa.Column[str]:
    """Return the hash of the policy that a decision was held against; empty for what came before this was kept."""
    return sa.Column("policy_hash", sa.String(64), nullable=False, default="", server_default="")


def _run_key(*, primary: bool = False) -> sa.Column[str]:
    return sa.Column("run_id", sa.String(64), sa.ForeignKey("runs.run_id"), nullable=False, primary_key=primary)


runs = sa.Table(
    "runs",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("mode", sa.String(32), nullable=False),
    sa.Column("target", sa.String(200), nullable=False, index=True),
    sa.Column("state", sa.String(32), nullable=False, index=True),
    sa.Column("state_reason", sa.Text, nullable=False, default=""),
    sa.Column("requested_by", sa.String(200), nullable=False),
    sa.Column("manifest", sa.Text, nullable=False),
    sa.Column("manifest_hash", sa.String(64), nullable=False),
    sa.Column("plan", sa.Text, nullable=False),
    sa.Column("plan_hash", sa.String(64), nullable=False),
    sa.Column("created_at", Utc, nullable=False),
    sa.Column("updated_at", Utc, nullable=False),
)
transitions = sa.Table(
    "transitions",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("from_state", sa.String(32), nullable=False),
    sa.Column("to_state", sa.String(32), nullable=False),
    sa.Column("at", Utc, nullable=False),
    sa.Column("actor", sa.String(200), nullable=False),
    sa.Column("reason", sa.Text, nullable=False, default=""),
    *_who(),
)
chunks = sa.Table(
    "chunks",
    metadata,
    _run_key(primary=True),
    sa.Column("chunk", sa.String(32), primary_key=True),
    sa.Column("idx", sa.Integer, nullable=False),
    sa.Column("state", sa.String(32), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False, default=0),
    sa.Column("rows", sa.BigInteger, nullable=True),
    sa.Column("bytes", sa.BigInteger, nullable=True),
    sa.Column("files", sa.Text, nullable=False, default="[]"),
    sa.Column("derived", sa.Text, nullable=False, default="[]", server_default="[]"),
    sa.Column("replaced", sa.Text, nullable=False, default="[]", server_default="[]"),
    sa.Column("digest", sa.String(80), nullable=True),
    sa.Column("measures", sa.Text, nullable=False, default="{}"),
    sa.Column("error", sa.Text, nullable=False, default=""),
    sa.Column("updated_at", Utc, nullable=False),
)
attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("chunks", sa.Text, nullable=False),
    sa.Column("state", sa.String(32), nullable=False),
    sa.Column("prefix", sa.Text, nullable=False),
    sa.Column("dagster_run_id", sa.String(64), nullable=False, default=""),
    sa.Column("host", sa.String(200), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("process", sa.String(400), nullable=False, default="", server_default=""),
    sa.Column("started_at", Utc, nullable=False),
    sa.Column("ended_at", Utc, nullable=True),
    sa.Column("error", sa.Text, nullable=False, default=""),
    sa.Column("measures", sa.Text, nullable=False, default="{}", server_default="{}"),
)
verdicts = sa.Table(
    "verdicts",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("chunk", sa.String(32), nullable=False, default=""),
    sa.Column("gate", sa.String(100), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("passed", sa.Boolean, nullable=False),
    sa.Column("asks", sa.Boolean, nullable=False, default=False, server_default=sa.false()),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("details", sa.Text, nullable=False, default="{}"),
    sa.Column("judged", sa.String(64), nullable=False, default="", server_default=""),
    sa.Column("at", Utc, nullable=False),
    sa.Index("verdicts_by_run", "run_id", "chunk", "gate"),
)
approvals = sa.Table(
    "approvals",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("decision", sa.String(16), nullable=False),
    sa.Column("decided_by", sa.String(200), nullable=False),
    sa.Column("comment", sa.Text, nullable=False, default=""),
    sa.Column("plan_hash", sa.String(64), nullable=False),
    sa.Column("self_approved", sa.Boolean, nullable=False),
    sa.Column("role", sa.String(16), nullable=False, default="approver", server_default="approver"),
    sa.Column("break_glass", sa.Text, nullable=False, default="", server_default=""),
    *_who(),
    _policy(),
    sa.Column("at", Utc, nullable=False),
)
publications = sa.Table(
    "publications",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("action", sa.String(16), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("base_snapshot_id", sa.BigInteger, nullable=True),
    sa.Column("snapshot_id", sa.BigInteger, nullable=True),
    sa.Column("files_added", sa.Integer, nullable=False, default=0),
    sa.Column("files_removed", sa.Integer, nullable=False, default=0),
    sa.Column("evidence_root", sa.String(64), nullable=False, default=""),
    sa.Column("ref", sa.String(100), nullable=False, default="", server_default=""),
    sa.Column("token", sa.BigInteger, nullable=True),
    sa.Column("actor", sa.String(200), nullable=False),
    sa.Column("note", sa.Text, nullable=False, default=""),
    *_who(),
    sa.Column("started_at", Utc, nullable=False),
    sa.Column("ended_at", Utc, nullable=True),
)
accepted_versions = sa.Table(
    "accepted_versions",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("target", sa.String(200), nullable=False),
    sa.Column("chunk", sa.String(32), nullable=False),
    _run_key(),
    sa.Column("accepted_at", Utc, nullable=False),
    sa.Column("ended_at", Utc, nullable=True),
    sa.Column("ended_by", sa.String(64), nullable=True),
    sa.Column("ended_how", sa.String(16), nullable=True),
    sa.Index("accepted_by_chunk", "target", "chunk"),
)
sink_attempts = sa.Table(
    "sink_attempts",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("run_id", sa.String(64), nullable=False, index=True),  # also of runs that were refused at planning
    sa.Column("sink", sa.String(64), nullable=False),
    sa.Column("sink_class", sa.String(32), nullable=False),
    sa.Column("mode", sa.String(32), nullable=False),
    sa.Column("action", sa.String(32), nullable=False),
    sa.Column("decision", sa.String(32), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("at", Utc, nullable=False),
)
leases = sa.Table(
    "leases",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),  # the fencing token: it only grows
    sa.Column("target", sa.String(200), nullable=False),
    sa.Column("start_day", sa.Date, nullable=False),
    sa.Column("end_day", sa.Date, nullable=False),
    sa.Column("run_id", sa.String(64), nullable=False),
    sa.Column("action", sa.String(16), nullable=False),
    sa.Column("host", sa.String(200), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("process", sa.String(400), nullable=False, default="", server_default=""),
    sa.Column("acquired_at", Utc, nullable=False),
    sa.Column("expires_at", Utc, nullable=False),
    sa.Column("ended_at", Utc, nullable=True),
    sa.Column("ended_how", sa.String(16), nullable=True),
    sa.Index("leases_by_target", "target", "ended_at"),
)
amendments = sa.Table(
    "amendments",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("chunks", sa.Text, nullable=False),
    sa.Column("plan", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("actor", sa.String(200), nullable=False),
    sa.Column("at", Utc, nullable=False),
    sa.UniqueConstraint("run_id", "number"),
)
watermarks = sa.Table(
    "watermarks",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("target", sa.String(200), nullable=False, index=True),
    _run_key(),
    sa.Column("complete_until", sa.Date, nullable=False),
    sa.Column("source_snapshot_id", sa.BigInteger, nullable=False),
    sa.Column("at", Utc, nullable=False),
    sa.Column("ended_at", Utc, nullable=True),
)
freezes = sa.Table(
    "freezes",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("target", sa.String(200), nullable=False, index=True),
    _run_key(),
    sa.Column("start_day", sa.Date, nullable=False),
    sa.Column("end_day", sa.Date, nullable=False),
    sa.Column("from_at", Utc, nullable=False),
    sa.Column("until_at", Utc, nullable=False),
    sa.Column("ended_at", Utc, nullable=True),
)
waits = sa.Table(
    "waits",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("target", sa.String(200), nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("since_at", Utc, nullable=False),
    sa.Column("ended_at", Utc, nullable=True),
)
stops = sa.Table(
    "stops",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("stopped_by", sa.String(200), nullable=False),
    sa.Column("through", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False, default=""),
    sa.Column("note", sa.Text, nullable=False, default=""),
    sa.Column("at", Utc, nullable=False),
    sa.Column("resumed_at", Utc, nullable=True),
    sa.Column("resumed_by", sa.String(200), nullable=True),
    sa.Index("stops_by_run", "run_id", "id"),
)
launches = sa.Table(
    "launches",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("launched_by", sa.String(200), nullable=False),
    sa.Column("at", Utc, nullable=False),
    sa.Index("launches_by_run", "run_id", "id"),
)
acceptances = sa.Table(
    "acceptances",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("gate", sa.String(100), nullable=False),
    sa.Column("accepted_by", sa.String(200), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("plan_hash", sa.String(64), nullable=False),
    sa.Column("numbers", sa.Text, nullable=False),
    sa.Column("numbers_hash", sa.String(64), nullable=False),
    *_who(),
    _policy(),
    sa.Column("at", Utc, nullable=False),
    sa.Index("acceptances_by_run", "run_id", "gate"),
)
policies = sa.Table(
    "policies",
    metadata,
    sa.Column("hash", sa.String(64), primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("at", Utc, nullable=False),
)
erasure_lists = sa.Table(
    "erasure_lists",
    metadata,
    sa.Column("hash", sa.String(64), primary_key=True),
    sa.Column("subjects", sa.Text, nullable=False),
    sa.Column("at", Utc, nullable=False),
)
live_ticks = sa.Table(
    "live_ticks",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("run_id", sa.String(64), nullable=False, index=True),  # also of runs that were refused at planning
    sa.Column("target", sa.String(200), nullable=False),
    sa.Column("manifest_hash", sa.String(64), nullable=False),
    sa.Column("source_snapshot_id", sa.BigInteger, nullable=True),
    sa.Column("start_day", sa.Date, nullable=False),
    sa.Column("end_day", sa.Date, nullable=False),
    sa.Column("at", Utc, nullable=False),
)
policy_decisions = sa.Table(
    "policy_decisions",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("decision", sa.String(16), nullable=False),
    sa.Column("policy_hash", sa.String(64), nullable=False),
    sa.Column("before_hash", sa.String(64), nullable=False),  # of the policy in force when it was decided
    sa.Column("decided_by", sa.String(200), nullable=False),
    sa.Column("comment", sa.Text, nullable=False),
    sa.Column("origin", sa.Text, nullable=False),  # the file that was proposed; lists that it names lie beside it
    *_who(),
    sa.Column("at", Utc, nullable=False),
)
journal = sa.Table(
    "journal",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("run_id", sa.String(64), nullable=False, index=True),  # empty: of rows that are of no run
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("said", sa.Text, nullable=False),
)
