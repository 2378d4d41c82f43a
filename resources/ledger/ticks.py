"""Which manifests the platform's own ticks have written: what gives a run the rights of LIVE, or of a proposal.

Put here the recording of a tick's manifest and the question whether a manifest is one. What a tick writes is
`backfill_assets.schedules.live`'s, `backfill_assets.schedules.proposals`' or `backfill_assets.migration`'s. Rows are only ever added: a tick that writes its manifest anew, on newer tables, adds another.
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from manifests.errors import Problem
from manifests.model import Kind, RunManifest
from resources.ledger.journal import explain, first_of, newest_link, unexplained
from resources.ledger.locks import lock_run
from resources.ledger.part import Part
from resources.ledger.tables import live_ticks, runs

ONLY_TICKS = (
    "LIVE is the platform's own: its tick (schedule, sensor, `backfill live`) writes the manifest and records it"
)


class Ticks(Part):
    """The manifests that ticks have put on record in a ledger."""

    def record(self, manifest: RunManifest, at: datetime) -> None:
        """Put on record that the tick has written this manifest; safe to repeat.

        A tick that comes late, when its run has another text by now, leaves no row: the run's evidence knows none, and the plan is
        refused for its text.
        """
        scope = manifest.target.publish_range
        with self.engine.begin() as connection:
            lock_run(connection, manifest.run_id)
            text = connection.execute(sa.select(runs.c.manifest_hash).where(runs.c.run_id == manifest.run_id)).scalar()
            if text in {None, manifest.hash} and not _written(connection, manifest.run_id, manifest.hash):
                connection.execute(
                    live_ticks.insert().values(
                        run_id=manifest.run_id,
                        target=manifest.target.table,
                        manifest_hash=manifest.hash,
                        source_snapshot_id=manifest.source.snapshot_id,
                        start_day=scope.start,
                        end_day=scope.end,
                        at=at,
                    )
                )

    def has_written(self, manifest: RunManifest) -> bool:
        """Whether a tick has written exactly this manifest, whatever the manifest says of itself."""
        with self.engine.connect() as connection:
            return _is_live(connection, manifest)

    def has_proposed(self, manifest: RunManifest) -> bool:
        """Whether a tick has written exactly this manifest of a change of history, whatever the manifest says of itself."""
        with self.engine.connect() as connection:
            return manifest.kind is not Kind.LIVE and _is_of_a_tick(connection, manifest)

    def problems(self, manifest: RunManifest) -> list[Problem]:
        """Say why a manifest of kind LIVE has no rights of LIVE; nothing for other kinds and for what a tick has written."""
        with self.engine.connect() as connection:
            return problems_in(connection, manifest)


def problems_in(connection: sa.Connection, manifest: RunManifest) -> list[Problem]:
    """Say the same of what a transaction sees."""
    if manifest.kind is not Kind.LIVE or _is_live(connection, manifest):
        return []
    return [
        Problem(
            f"the manifest of '{manifest.run_id}' has kind LIVE, and no tick has written it",
            ONLY_TICKS,
            f"`backfill live {manifest.target.table}` takes in what is new; for a change of history choose kind BACKFILL, "
            "RESTATEMENT or REPAIR",
        )
    ]


def _is_live(connection: sa.Connection, manifest: RunManifest) -> bool:
    return manifest.kind is Kind.LIVE and _is_of_a_tick(connection, manifest)


def _is_of_a_tick(connection: sa.Connection, manifest: RunManifest) -> bool:
    links = newest_link(connection)  # first: what it is about was committed by then
    if not _written(connection, manifest.run_id, manifest.hash):
        return False
    # a row that no transaction of this project has written gives no rights, nor does an entry that follows no entry
    first, _ = first_of(connection, manifest.run_id)
    found = explain(connection, links, first=first)
    return not found.damages and not unexplained(connection, found, manifest.run_id, [live_ticks.name])


def _written(connection: sa.Connection, run_id: str, manifest_hash: str) -> bool:
    query = sa.select(live_ticks.c.id).where(live_ticks.c.run_id == run_id, live_ticks.c.manifest_hash == manifest_hash)
    return connection.execute(query.limit(1)).first() is not None
