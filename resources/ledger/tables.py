"""The ledger's tables. Put here columns only; what may be done with them is `facade`'s and its neighbours' (`leases`, ...).

Instants are UTC. A change here comes with an alembic migration in `resources/ledger/migrations`.
"""

from __future__ import annotations

import sqlalchemy as sa

from resources.ledger.cells import BigInteger, Boolean, Day, Integer, String, Text, Utc, name_places

metadata = sa.MetaData()

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_NOW = sa.text("ended_at IS NULL")


def _who() -> tuple[sa.Column[str], sa.Column[str]]:
    """Return through what somebody acted, and what shows that it was them; empty for what came before this was kept."""
    return (
        sa.Column("channel", String(16), nullable=False, default="", server_default=""),
        sa.Column("proof", String(32), nullable=False, default="", server_default=""),
    )


def _policy() -> sa.Column[str]:
    """Return the hash of the policy that a decision was held against; empty for what came before this was kept."""
    return sa.Column("policy_hash", String(64), nullable=False, default="", server_default="")


def _run_key(*, primary: bool = False) -> sa.Column[str]:
    return sa.Column("run_id", String(64), sa.ForeignKey("runs.run_id"), nullable=False, primary_key=primary)


runs = sa.Table(
    "runs",
    metadata,
    sa.Column("run_id", String(64), primary_key=True),
    sa.Column("kind", String(32), nullable=False),
    sa.Column("mode", String(32), nullable=False),
    sa.Column("target", String(200), nullable=False, index=True),
    sa.Column("state", String(32), nullable=False, index=True),
    sa.Column("state_reason", Text, nullable=False, default=""),
    sa.Column("requested_by", String(200), nullable=False),
    sa.Column("manifest", Text, nullable=False),
    sa.Column("manifest_hash", String(64), nullable=False),
    sa.Column("plan", Text, nullable=False),
    sa.Column("plan_hash", String(64), nullable=False),
    sa.Column("created_at", Utc, nullable=False),
    sa.Column("updated_at", Utc, nullable=False),
)
transitions = sa.Table(
    "transitions",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("from_state", String(32), nullable=False),
    sa.Column("to_state", String(32), nullable=False),
    sa.Column("at", Utc, nullable=False),
    sa.Column("actor", String(200), nullable=False),
    sa.Column("reason", Text, nullable=False, default=""),
    *_who(),
)
chunks = sa.Table(
    "chunks",
    metadata,
    _run_key(primary=True),
    sa.Column("chunk", String(32), primary_key=True),
    sa.Column("idx", Integer, nullable=False),
    sa.Column("state", String(32), nullable=False),
    sa.Column("attempt", Integer, nullable=False, default=0),
    sa.Column("rows", BigInteger, nullable=True),
    sa.Column("bytes", BigInteger, nullable=True),
    sa.Column("files", Text, nullable=False, default="[]"),
    sa.Column("derived", Text, nullable=False, default="[]", server_default="[]"),
    sa.Column("replaced", Text, nullable=False, default="[]", server_default="[]"),
    sa.Column("digest", String(80), nullable=True),
    sa.Column("measures", Text, nullable=False, default="{}"),
    sa.Column("error", Text, nullable=False, default=""),
    sa.Column("updated_at", Utc, nullable=False),
)
attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("attempt", Integer, nullable=False),
    sa.Column("chunks", Text, nullable=False),
    sa.Column("state", String(32), nullable=False),
    sa.Column("prefix", Text, nullable=False),
    sa.Column("dagster_run_id", String(64), nullable=False, default=""),
    sa.Column("host", String(200), nullable=False),
    sa.Column("pid", Integer, nullable=False),
    sa.Column("process", String(400), nullable=False, default="", server_default=""),
    sa.Column("started_at", Utc, nullable=False),
    sa.Column("ended_at", Utc, nullable=True),
    sa.Column("error", Text, nullable=False, default=""),
    sa.Column("measures", Text, nullable=False, default="{}", server_default="{}"),
)
verdicts = sa.Table(
    "verdicts",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("chunk", String(32), nullable=False, default=""),
    sa.Column("gate", String(100), nullable=False),
    sa.Column("attempt", Integer, nullable=False),
    sa.Column("passed", Boolean, nullable=False),
    sa.Column("asks", Boolean, nullable=False, default=False, server_default=sa.false()),
    sa.Column("summary", Text, nullable=False),
    sa.Column("details", Text, nullable=False, default="{}"),
    sa.Column("judged", String(64), nullable=False, default="", server_default=""),
    sa.Column("at", Utc, nullable=False),
    sa.Index("verdicts_by_run", "run_id", "chunk", "gate"),
)
approvals = sa.Table(
    "approvals",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("decision", String(16), nullable=False),
    sa.Column("decided_by", String(200), nullable=False),
    sa.Column("comment", Text, nullable=False, default=""),
    sa.Column("plan_hash", String(64), nullable=False),
    sa.Column("self_approved", Boolean, nullable=False),
    sa.Column("role", String(16), nullable=False, default="approver", server_default="approver"),
    sa.Column("break_glass", Text, nullable=False, default="", server_default=""),
    *_who(),
    _policy(),
    sa.Column("at", Utc, nullable=False),
)
publications = sa.Table(
    "publications",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("action", String(16), nullable=False),
    sa.Column("state", String(16), nullable=False),
    sa.Column("base_snapshot_id", BigInteger, nullable=True),
    sa.Column("snapshot_id", BigInteger, nullable=True),
    sa.Column("files_added", Integer, nullable=False, default=0),
    sa.Column("files_removed", Integer, nullable=False, default=0),
    sa.Column("evidence_root", String(64), nullable=False, default=""),
    sa.Column("ref", String(100), nullable=False, default="", server_default=""),
    sa.Column("token", BigInteger, nullable=True),
    sa.Column("actor", String(200), nullable=False),
    sa.Column("note", Text, nullable=False, default=""),
    *_who(),
    sa.Column("started_at", Utc, nullable=False),
    sa.Column("ended_at", Utc, nullable=True),
    sa.Index("publications_by_state", "state"),
)
accepted_versions = sa.Table(
    "accepted_versions",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("target", String(200), nullable=False),
    sa.Column("chunk", String(32), nullable=False),
    _run_key(),
    sa.Column("accepted_at", Utc, nullable=False),
    sa.Column("ended_at", Utc, nullable=True),
    sa.Column("ended_by", String(64), nullable=True),
    sa.Column("ended_how", String(16), nullable=True),
    sa.Index("accepted_by_chunk", "target", "chunk"),
    sa.Index("accepted_by_run", "run_id", "ended_at"),
    sa.Index("accepted_until", "target", "ended_by"),
    sa.Index("accepted_now", "target", "chunk", sqlite_where=_NOW, postgresql_where=_NOW),
)
sink_attempts = sa.Table(
    "sink_attempts",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("run_id", String(64), nullable=False, index=True),  # also of runs that were refused at planning
    sa.Column("sink", String(64), nullable=False),
    sa.Column("sink_class", String(32), nullable=False),
    sa.Column("mode", String(32), nullable=False),
    sa.Column("action", String(32), nullable=False),
    sa.Column("decision", String(32), nullable=False),
    sa.Column("reason", Text, nullable=False),
    sa.Column("at", Utc, nullable=False),
)
topic_publications = sa.Table(
    "topic_publications",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("number", Integer, nullable=False),
    sa.Column("action", String(16), nullable=False),
    sa.Column("sink", String(64), nullable=False),
    sa.Column("state", String(16), nullable=False),
    sa.Column("topic", String(249), nullable=False),
    sa.Column("cluster_id", String(100), nullable=False),
    sa.Column("topic_id", String(100), nullable=False),
    sa.Column("starts", Text, nullable=False),
    sa.Column("events", BigInteger, nullable=True),
    sa.Column("written", Text, nullable=False, default="[]", server_default="[]"),
    sa.Column("actor", String(200), nullable=False),
    sa.Column("note", Text, nullable=False, default="", server_default=""),
    *_who(),
    sa.Column("started_at", Utc, nullable=False),
    sa.Column("ended_at", Utc, nullable=True),
    sa.UniqueConstraint("run_id", "sink", "number", name="topic_publications_by_change"),
)
leases = sa.Table(
    "leases",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),  # the fencing token: it only grows
    sa.Column("target", String(200), nullable=False),
    sa.Column("start_day", Day, nullable=False),
    sa.Column("end_day", Day, nullable=False),
    sa.Column("run_id", String(64), nullable=False),
    sa.Column("action", String(16), nullable=False),
    sa.Column("host", String(200), nullable=False),
    sa.Column("pid", Integer, nullable=False),
    sa.Column("process", String(400), nullable=False, default="", server_default=""),
    sa.Column("acquired_at", Utc, nullable=False),
    sa.Column("expires_at", Utc, nullable=False),
    sa.Column("ended_at", Utc, nullable=True),
    sa.Column("ended_how", String(16), nullable=True),
    sa.Index("leases_by_target", "target", "ended_at"),
)
amendments = sa.Table(
    "amendments",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("number", Integer, nullable=False),
    sa.Column("chunks", Text, nullable=False),
    sa.Column("plan", Text, nullable=False),
    sa.Column("reason", Text, nullable=False),
    sa.Column("actor", String(200), nullable=False),
    sa.Column("at", Utc, nullable=False),
    sa.UniqueConstraint("run_id", "number"),
)
watermarks = sa.Table(
    "watermarks",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("target", String(200), nullable=False, index=True),
    _run_key(),
    sa.Column("complete_until", Day, nullable=False),
    sa.Column("source_snapshot_id", BigInteger, nullable=False),
    sa.Column("at", Utc, nullable=False),
    sa.Column("ended_at", Utc, nullable=True),
)
freezes = sa.Table(
    "freezes",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("target", String(200), nullable=False, index=True),
    _run_key(),
    sa.Column("start_day", Day, nullable=False),
    sa.Column("end_day", Day, nullable=False),
    sa.Column("from_at", Utc, nullable=False),
    sa.Column("until_at", Utc, nullable=False),
    sa.Column("ended_at", Utc, nullable=True),
)
waits = sa.Table(
    "waits",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("target", String(200), nullable=False),
    sa.Column("why", Text, nullable=False),
    sa.Column("since_at", Utc, nullable=False),
    sa.Column("ended_at", Utc, nullable=True),
)
stops = sa.Table(
    "stops",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("stopped_by", String(200), nullable=False),
    sa.Column("through", Text, nullable=False),
    sa.Column("reason", Text, nullable=False, default=""),
    sa.Column("note", Text, nullable=False, default=""),
    sa.Column("at", Utc, nullable=False),
    sa.Column("resumed_at", Utc, nullable=True),
    sa.Column("resumed_by", String(200), nullable=True),
    sa.Index("stops_by_run", "run_id", "id"),
)
launches = sa.Table(
    "launches",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("launched_by", String(200), nullable=False),
    sa.Column("at", Utc, nullable=False),
    sa.Index("launches_by_run", "run_id", "id"),
)
quarantine_releases = sa.Table(
    "quarantine_releases",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("input_table", String(200), nullable=False),
    sa.Column("load_id", String(200), nullable=False),  # of the load by which the rows come into the table
    sa.Column("cases", Integer, nullable=False),
    sa.Column("rows", Integer, nullable=False),
    sa.Column("loads", Text, nullable=False),  # those that the rows had been quarantined by
    sa.Column("state", String(16), nullable=False),
    sa.Column("snapshot_id", BigInteger, nullable=True),
    sa.Column("at", Utc, nullable=False),
    sa.Column("ended_at", Utc, nullable=True),
    sa.Index("quarantine_releases_by_table", "input_table", "id"),
)
quarantine_decisions = sa.Table(
    "quarantine_decisions",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("input_table", String(200), nullable=False),
    sa.Column("case_id", String(64), nullable=False),
    sa.Column("decision", String(16), nullable=False),
    sa.Column("release_id", BigInteger, nullable=True),
    sa.Column("decided_by", String(200), nullable=False),
    sa.Column("reason", Text, nullable=False),
    *_who(),
    sa.Column("at", Utc, nullable=False),
    sa.Index("quarantine_decisions_by_table", "input_table", "id"),
)
acceptances = sa.Table(
    "acceptances",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    _run_key(),
    sa.Column("gate", String(100), nullable=False),
    sa.Column("accepted_by", String(200), nullable=False),
    sa.Column("reason", Text, nullable=False),
    sa.Column("plan_hash", String(64), nullable=False),
    sa.Column("numbers", Text, nullable=False),
    sa.Column("numbers_hash", String(64), nullable=False),
    *_who(),
    _policy(),
    sa.Column("at", Utc, nullable=False),
    sa.Index("acceptances_by_run", "run_id", "gate"),
)
policies = sa.Table(
    "policies",
    metadata,
    sa.Column("hash", String(64), primary_key=True),
    sa.Column("text", Text, nullable=False),
    sa.Column("at", Utc, nullable=False),
)
erasure_lists = sa.Table(
    "erasure_lists",
    metadata,
    sa.Column("hash", String(64), primary_key=True),
    sa.Column("subjects", Text, nullable=False),
    sa.Column("at", Utc, nullable=False),
)
imports = sa.Table(
    "imports",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("feed", String(40), nullable=False),
    sa.Column("file_id", String(64), nullable=False),
    sa.Column("path", Text, nullable=False),
    sa.Column("size", BigInteger, nullable=True),
    sa.Column("content_hash", String(64), nullable=False),  # empty: of what has no bytes, or more than are read
    sa.Column("published_at", Utc, nullable=True),
    sa.Column("business_date", Day, nullable=True),
    sa.Column("schema_version", String(100), nullable=False),
    sa.Column("translator_version", String(100), nullable=False),
    sa.Column("manifest_id", String(64), nullable=False),  # hash of the delivery index
    sa.Column("attempt", Integer, nullable=False),
    sa.Column("revision", Integer, nullable=False),  # which version of its date; 0: none
    sa.Column("status", String(16), nullable=False),
    sa.Column("decision", String(16), nullable=False),  # the status once its rows are in the table
    sa.Column("reason", Text, nullable=False),
    sa.Column("rows", BigInteger, nullable=False),
    sa.Column("rejected", BigInteger, nullable=False),
    sa.Column("first_seen", Utc, nullable=False),
    sa.Column("last_seen", Utc, nullable=False),
    sa.Column("sightings", Integer, nullable=False),
    sa.Column("load_id", String(300), nullable=False),
    sa.Column("snapshot_id", BigInteger, nullable=True),
    sa.Column("received_by", String(200), nullable=False),
    sa.Index("imports_by_feed", "feed", "status"),
    sa.Index("imports_by_date", "feed", "business_date"),
)
live_ticks = sa.Table(
    "live_ticks",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("run_id", String(64), nullable=False, index=True),  # also of runs that were refused at planning
    sa.Column("target", String(200), nullable=False),
    sa.Column("manifest_hash", String(64), nullable=False),
    sa.Column("source_snapshot_id", BigInteger, nullable=True),
    sa.Column("start_day", Day, nullable=False),
    sa.Column("end_day", Day, nullable=False),
    sa.Column("at", Utc, nullable=False),
)
policy_decisions = sa.Table(
    "policy_decisions",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("decision", String(16), nullable=False),
    sa.Column("policy_hash", String(64), nullable=False),
    sa.Column("before_hash", String(64), nullable=False),  # of the policy in force when it was decided
    sa.Column("decided_by", String(200), nullable=False),
    sa.Column("comment", Text, nullable=False),
    sa.Column("origin", Text, nullable=False),  # the file that was proposed; lists that it names lie beside it
    *_who(),
    sa.Column("at", Utc, nullable=False),
)
extractions = sa.Table(
    "extractions",
    metadata,
    sa.Column("extraction", String(120), primary_key=True),
    sa.Column("feed", String(100), nullable=False),
    sa.Column("number", Integer, nullable=False),
    sa.Column("pattern", String(32), nullable=False),
    sa.Column("asked", Text, nullable=False),
    sa.Column("state", String(16), nullable=False),
    sa.Column("reason", Text, nullable=False, default=""),
    sa.Column("responses", Integer, nullable=False, default=0),
    sa.Column("records", BigInteger, nullable=False, default=0),
    sa.Column("requests", Integer, nullable=False, default=0),
    sa.Column("first_at", Utc, nullable=True),
    sa.Column("last_at", Utc, nullable=True),
    sa.Column("pages_hash", String(64), nullable=False, default=""),
    sa.Column("index_hash", String(64), nullable=False, default=""),
    sa.Column("counts", Text, nullable=False, default="{}"),
    sa.Column("started_by", String(200), nullable=False),
    sa.Column("started_at", Utc, nullable=False),
    sa.Column("updated_at", Utc, nullable=False),
    sa.UniqueConstraint("feed", "number", name="extractions_by_number"),
)
responses = sa.Table(
    "responses",
    metadata,
    sa.Column("response", String(130), primary_key=True),
    sa.Column("extraction", String(120), sa.ForeignKey("extractions.extraction"), nullable=False),
    sa.Column("number", Integer, nullable=False),
    sa.Column("kind", String(16), nullable=False),
    sa.Column("part", String(200), nullable=False),
    sa.Column("reading", Integer, nullable=False),
    sa.Column("page", Integer, nullable=False),
    sa.Column("method", String(8), nullable=False),
    sa.Column("address", Text, nullable=False),
    sa.Column("parameters", Text, nullable=False),
    sa.Column("status", Integer, nullable=False),
    sa.Column("headers", Text, nullable=False),
    sa.Column("attempts", Integer, nullable=False),
    sa.Column("bytes", BigInteger, nullable=False),
    sa.Column("content_hash", String(64), nullable=False),
    sa.Column("at", Utc, nullable=False),
    sa.Index("responses_by_extraction", "extraction", "number"),
)
migration_steps = sa.Table(
    "migration_steps",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("migration", String(64), nullable=False),
    sa.Column("number", Integer, nullable=False),  # 1, 2, ...: the newest says where the migration stands
    sa.Column("action", String(16), nullable=False),
    sa.Column("step", String(16), nullable=False),
    sa.Column("old_table", String(200), nullable=False),
    sa.Column("new_table", String(200), nullable=False),
    sa.Column("cut_over", String(16), nullable=False),
    sa.Column("declaration_hash", String(64), nullable=False),
    sa.Column("readers", Text, nullable=False),  # who reads which table, as JSON
    sa.Column("findings", Text, nullable=False),  # what the step was taken on, as JSON
    sa.Column("decided_by", String(200), nullable=False),
    sa.Column("reason", Text, nullable=False),
    *_who(),
    sa.Column("at", Utc, nullable=False),
    sa.UniqueConstraint("migration", "number", name="migration_steps_by_number"),
)
dual_reads = sa.Table(
    "dual_reads",
    metadata,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("migration", String(64), nullable=False),
    sa.Column("number", Integer, nullable=False),  # of the step that it was made at
    sa.Column("old_snapshot_id", BigInteger, nullable=False),
    sa.Column("new_snapshot_id", BigInteger, nullable=False),
    sa.Column("compared", BigInteger, nullable=False),
    sa.Column("disagreeing", BigInteger, nullable=False),
    sa.Column("found", Text, nullable=False),  # by slice and by column, and what was left out, as JSON
    sa.Column("made_by", String(200), nullable=False),
    sa.Column("at", Utc, nullable=False),
    sa.Index("dual_reads_by_migration", "migration", "id"),
)
# of its cells `journal` itself says what is wrong with them
journal = sa.Table(
    "journal",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("run_id", sa.String(64), nullable=False, index=True),  # empty: of rows that are of no run
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("said", sa.Text, nullable=False),
)
for _of_runs in (transitions, attempts, approvals, publications, watermarks, freezes, waits):
    sa.Index(f"{_of_runs.name}_by_run", _of_runs.c.run_id, _of_runs.c.id)
name_places(metadata)
