"""An installation that has the changes of the table of `changing.py` landed, and what its published history says the table was.

Put here how the landing folder of an engine becomes a table, and how a table is read at an LSN; `product.py` has the declarations.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
from worlds import SPARK, World

from backfill_assets.defs.launch import initialise_instance
from backfill_assets.ingestion.landed_changes import Landed, land_changes
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from manifests.reading import manifest_from
from real_servers.product import CHANGELOG, HISTORY
from resources.settings import load_settings


class Captured(World):
    """An installation of the product."""

    def land(self, folder: Path) -> Landed:
        """Land what an engine has written."""
        return land_changes(self.platform, CHANGELOG.name, folder)

    def table(self, name: str) -> pl.DataFrame:
        """Return all rows of a table."""
        found = pl.from_arrow(self.platform.lakehouse.table(name).scan().to_arrow())
        assert isinstance(found, pl.DataFrame)
        return found

    def history(self, run_id: str) -> pl.DataFrame:
        """Publish the history of the table by a run, and return it."""
        manifest = {
            "runId": run_id,
            "kind": "BACKFILL",
            "requestedBy": "ana",
            "reason": "the table as the log has it",
            "source": {"table": HISTORY.source},
            "transform": {"name": HISTORY.transform, "version": "1.0.0"},
            "target": {"table": HISTORY.name, "publishMode": "REPLACE_PARTITIONS"},
            "safety": {"sinks": ["run_audit"]},
            "development": True,
        }
        self.published(manifest_from(manifest))
        return self.table(HISTORY.name)


def captured(home: Path) -> Captured:
    """Make an installation."""
    settings = load_settings(home=home, spark=SPARK, products=["real_servers.product:PRODUCT"])
    platform = Platform.of(settings)
    initialise(platform)
    initialise_instance(settings)
    return Captured(platform, home)


def at(position: int) -> pl.Expr:
    """Return whether a row of a history is of the table at an LSN."""
    return (pl.col("valid_from_lsn") <= position) & (
        pl.col("valid_to_lsn").is_null() | (pl.col("valid_to_lsn") > position)
    )
