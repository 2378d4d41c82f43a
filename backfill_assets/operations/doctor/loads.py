"""Looks at what plans have pinned: whether a load was taken back since a run read it, and whether tags keep the snapshots.

Put here what has become of a run's inputs. What it has made of them is `publications`' and `damaged_files`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement, outcome
from backfill_assets.operations.doctor.views import legible_runs
from backfill_assets.planning.pinned_loads import MAY_BE_SHOWN, pinned, taken_back
from backfill_assets.planning.pinned_snapshots import keep, pins_of_run, untagged_of
from manifests.lifecycle import RunState
from manifests.model import Mode
from manifests.text import visible
from resources.ledger.cells import IllegibleRow
from resources.ledger.facade import RunRecord

_SHOWN = 5


def loads_taken_back(platform: Platform) -> Iterator[Disagreement]:
    """Find runs that readers see, or may come to see, and that have read a load which was taken back since.

    Nobody is told of one that is rolled back: it is where it should be, and named once it is reinstated.
    """
    records = {one.run_id: one for one in _shown_runs(platform)}
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


def pins_untagged(platform: Platform) -> Iterator[Disagreement]:
    """Find snapshots that such runs have read, and that no tag keeps from another program's expiry."""
    if not platform.settings.tag_pinned_snapshots:
        return
    needed: dict[str, set[int]] = {}
    for record in _shown_runs(platform):
        with suppress(IllegibleRow):
            for name, snapshot_ids in pins_of_run(platform, record).items():
                needed.setdefault(name, set()).update(snapshot_ids)
    for name, snapshot_ids in sorted(needed.items()):
        if untagged := untagged_of(platform, name, snapshot_ids):
            shown = ", ".join(map(str, untagged[:_SHOWN])) + (", …" if len(untagged) > _SHOWN else "")
            yield Disagreement(
                "pin-untagged",
                name,
                f"no tag keeps {len(untagged)} snapshot(s) that runs have read: {shown}",
                Confidence.CERTAIN,
                "tag them, so that no other program's expiry takes them",
                partial(_tag, platform, name, untagged),
            )


def _tag(platform: Platform, name: str, untagged: list[int]) -> str:
    keep(platform, {name: set(untagged)})
    return outcome(not untagged_of(platform, name, untagged), f"tagged {len(untagged)} snapshot(s)")


def _shown_runs(platform: Platform) -> list[RunRecord]:
    """Return the runs that readers see, or may come to see."""
    states = ({RunState.PUBLISHED} | MAY_BE_SHOWN) - {RunState.ROLLED_BACK}
    return [one for one in legible_runs(platform) if one.state in states and Mode(one.mode).publishes]
