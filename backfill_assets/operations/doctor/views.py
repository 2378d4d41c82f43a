"""What the looks are given: the runs that can be read, and one table of a target with what the looks at it need.

Put here what several looks read in the same way. What is found in it is said by the module that looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from resources.lakehouse.storage import Storage
from resources.ledger.cells import IllegibleRow
from resources.ledger.facade import RunRecord
from resources.ledger.leases import LeaseRecord
from resources.processes import has_ended


@dataclass(frozen=True)
class TableView:
    """One table of a target with everything that the checks of it look at."""

    platform: Platform
    target: TargetTable
    name: str
    table: Table
    storage: Storage
    history: Sequence[Snapshot]
    runs: Sequence[RunRecord]
    known: frozenset[str]
    """Ids of all runs of the ledger, also of other targets."""
    at_it: Mapping[str, LeaseRecord]
    """By run, the living lease under which somebody is changing the target."""


def properties_of(snapshot: Snapshot) -> Mapping[str, str]:
    """Return what a commit has said of itself in its snapshot's summary."""
    return snapshot.summary.additional_properties if snapshot.summary else {}


def legible_runs(platform: Platform) -> list[RunRecord]:
    """Return the runs, without those whose cells somebody has changed so that they cannot be read: `journal` names the rows."""
    try:
        return platform.ledger.runs()
    except IllegibleRow:
        with platform.ledger.reading() as moment:
            known = moment.run_ids()
    found = []
    for run_id in known:
        with suppress(IllegibleRow):
            found.append(platform.ledger.run(run_id))
    return found


def is_at_it(held: LeaseRecord, target: TargetTable, at: datetime) -> bool:
    """Whether a lease that nobody has ended is one of a target that holds, and of a process that may live."""
    return held.target == target.name and held.expires_at >= at and not has_ended(held)
