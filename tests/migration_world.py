"""A read model that moves house: points by month in the old table, by day and with another column name in the new one.

Put here an installation with a published history, and how its runs get to their publication.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from worlds import SPARK, World

import backfill_assets as ba
from backfill_assets.operations.initialise import initialise
from backfill_assets.publication.publisher import publish
from backfill_assets.schedules.live import tick
from benchmarks.points import FIRST, LAST, MIGRATION, OLD, RAW, opened, raw, written
from manifests.lifecycle import RunState
from manifests.model import RunManifest
from manifests.reading import manifest_from
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.ledger.facade import RunRecord


class Moving(World):
    """An installation whose read model moves."""

    migration: ba.Migration = MIGRATION
    loads = 0

    def load(self, first: date, last: date, *, n: int) -> int:
        """Load points of days, each saying `n`."""
        self.loads += 1
        self.platform.lakehouse.append(RAW, [raw(first, last, n=n)], {LOAD_PROPERTY: f"load-{n}-{first}-{self.loads}"})
        found = self.platform.lakehouse.snapshot_id(RAW)
        assert found is not None
        return found

    def run_of(
        self, run_id: str, table: str, first: date, last: date, *, kind: str = "BACKFILL", version: str = "1"
    ) -> RunManifest:
        """Return the contract of a run over days of one of the tables."""
        transform = "points" if table == OLD else "points_v2"
        return manifest_from(
            {
                "runId": run_id,
                "kind": kind,
                "requestedBy": "ana",
                "reason": "a reason that is long enough",
                "source": {"table": RAW},
                "transform": {"name": transform, "version": version},
                "target": {"table": table, "publishRange": {"start": first, "end": last}},
                "development": True,
            }
        )

    def live(self, table: str) -> RunRecord | None:
        """Let LIVE of a table take in what is new, as its schedule does; return its run, or None where there is nothing to do."""
        done = tick(self.platform, self.platform.products.target(table))
        if done.record is not None:
            self.take_on(done.record)
        return done.record

    def take_on(self, record: RunRecord) -> None:
        """Compute an approved run by Spark, gate and publish it."""
        if record.state is RunState.PLANNED:
            self.platform.ledger.decide(
                record.run_id, approve=True, by="bob", comment="", self_approval=False, plan_hash=record.plan_hash
            )
        self.stage(self.platform.ledger.run(record.run_id))
        publish(self.platform, record.run_id)

    def said(self, table: str, snapshot_id: int | None = None) -> list[tuple[Any, ...]]:
        """Return what readers of a table get, in the old table's words."""
        found = self.platform.lakehouse.table(table).scan(snapshot_id=snapshot_id).to_arrow()
        region = "region" if table == OLD else "area"
        rows = found.select(["point", region, "day", "n"]).to_pylist()
        return sorted(tuple(row.values()) for row in rows)


def make(home: Path, migration: ba.Migration = MIGRATION, *, by_spark: bool = True, **changes: Any) -> Moving:
    """Make an installation with a published history of the old table."""
    platform = opened(home, migration, spark=SPARK, **changes)
    initialise(platform)
    world = Moving(platform, home)
    world.migration = migration
    world.load(FIRST, LAST, n=1)
    history = world.run_of("history", OLD, date(2024, 1, 1), date(2024, 2, 29))
    if by_spark:
        world.published(history)
    else:
        written(platform, world.approved(history))
        publish(platform, "history")
    return world


def names_of(found: Sequence[Any]) -> list[str]:
    """Return the names of checks that do not hold."""
    return [check.name for check in found if not check.passed]
