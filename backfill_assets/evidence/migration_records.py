"""What the steps of migrations have put on record beside the evidence of runs: each step once, with a link in the chain.

Put here how that record is written. The steps themselves are rows of the ledger, and come first: a process that was killed between
the two has the record written by the next command of its migration.
"""

from __future__ import annotations

from backfill_assets.evidence.events import MIGRATIONS
from backfill_assets.installation import Platform
from manifests.canonical import plain
from resources.ledger.migration_steps import MigrationStep


def record_step(platform: Platform, step: MigrationStep) -> None:
    """Put a step on record; safe to repeat."""
    said = {name: value for name, value in step.as_record().items() if name != "id"}
    content = plain(said | {"readers": step.readers.as_record(), "findings": dict(step.findings)})
    platform.evidence.append(MIGRATIONS, f"{step.migration}-{step.number:06}", content)
