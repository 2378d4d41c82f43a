"""Looks at the loads that plans have pinned: whether one was taken back since a run read it.

Put here what has become of a run's inputs. What it has made of them is `publications`' and `damaged_files`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement
from backfill_assets.operations.doctor.views import legible_runs
from backfill_assets.planning.pinned_loads import MAY_BE_SHOWN, pinned, taken_back
from manifests.lifecycle import RunState
from manifests.model import Mode
from manifests.text import visible
from resources.ledger.cells import IllegibleRow


def loads_taken_back(platform: Platform) -> Iterator[Disagreement]:
    """Find runs that readers see, or may come to see, and that have read a load which was taken back since.

    Nobody is told of one that is rolled back: it is where it should be, and named once it is reinstated.
    """
    looked_at = ({RunState.PUBLISHED} | MAY_BE_SHOWN) - {RunState.ROLLED_BACK}
    records = {one.run_id: one for one in legible_runs(platform) if one.state in looked_at and Mode(one.mode).publishes}
    pins = {}
    for run_id, record in records.items():
        with suppress(IllegibleRow):  # what looks at its target says so
            pins[run_id] = pinned(platform, record)
    for run_id, table, load in taken_back(platform, pins):
        state = records[run_id].state
        why = f": {visible(load.undone_because)}" if load.undone_because else ""
        yield Disagreement(
            "load-taken-back",
            run_id,
            f"it is {state}, and its plan reads load {load.load_id} of {table}, which {load.undone_by} has taken back{why}",
            Confidence.CERTAIN,
            "restate what it has published, or roll it back"
            if state is RunState.PUBLISHED
            else f"`backfill cancel {run_id}`, and plan the change again, under a new run id",
        )
