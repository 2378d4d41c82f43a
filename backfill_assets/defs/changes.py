"""What Dagster is told of each change of what readers see: publications, rollbacks, reinstatements, accepted versions.

The ledger has the changes; the published asset of a table shows them, each once, in their order, on the partition of its
run. Put here which of them Dagster was not told of and how it is told. Nothing here decides anything, and no change waits
for Dagster: what it could not be told at once, the sensor or the doctor tells it later, and no lock of the ledger is held
while it is told.

A change is known by the data version of its event, which Dagster has an index of.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import dagster as dg

from backfill_assets.defs.addresses import run_path
from backfill_assets.defs.inputs import DATA_VERSION_TAG
from backfill_assets.defs.launched_by import RANGE_START, RUN_TAG, is_tick, tried_out
from backfill_assets.defs.staging import PROCESS_TAG, asset_key, offer_run
from backfill_assets.installation import Platform
from backfill_assets.review.markdown import table
from manifests.chunks import in_words
from manifests.errors import EnvironmentRefused
from manifests.lifecycle import ACCEPT, PUBLISH, REINSTATE, ROLLBACK
from resources import logs
from resources.processes import is_gone

_log = logging.getLogger(__name__)
SENSOR_SECONDS = 10
_PARTITION_TAG = "dagster/partition"
_SAID = {
    PUBLISH: "{run} is published: readers see its rows",
    ROLLBACK: "{run} is rolled back: readers see again what it had replaced",
    REINSTATE: "{run} is reinstated: readers see its rows again",
    ACCEPT: "the version of {run} is accepted: readers see its rows",
}


@dataclass(frozen=True)
class ReaderChange:
    """One recorded change of what readers of a table see; `number` is that of its entry in the ledger."""

    number: int
    run_id: str
    target: str
    action: str
    snapshot_id: int
    base_snapshot_id: int | None
    version: str
    """The name under which the rows are published; empty where they are what main shows."""
    files_added: int
    files_removed: int
    evidence_root: str
    by: str
    at: datetime

    @property
    def data_version(self) -> str:
        """What tells its event from every other one; a publication's is its snapshot."""
        return str(self.snapshot_id) + ("" if self.action == PUBLISH else f"-{self.action}-{self.number}")


def recorded(platform: Platform, target: str) -> list[ReaderChange]:
    """Return every change of a target that the ledger has on record, in order."""
    return [
        ReaderChange(
            entry.id,
            entry.run_id,
            target,
            entry.action,
            entry.snapshot,
            entry.base_snapshot_id,
            entry.ref,
            entry.files_added,
            entry.files_removed,
            entry.evidence_root,
            entry.actor,
            entry.landed_at,
        )
        for entry in platform.ledger.committed(target)
        if entry.action in _SAID
    ]


def untold(platform: Platform, instance: dg.DagsterInstance) -> list[ReaderChange]:
    """Return the changes that Dagster was not told of, and could be: none that a living Dagster run is about to tell.

    Neither that one nor those after it: they are told when it was.
    """
    found = []
    for target in platform.products.targets:
        changes = recorded(platform, target.name)
        for change, is_busy in _waiting(instance, changes, _known(instance, target.name) if changes else set()):
            if is_busy:
                break
            found.append(change)
    return found


def _waiting(
    instance: dg.DagsterInstance, changes: Sequence[ReaderChange], known: Collection[str], own: str = ""
) -> list[tuple[ReaderChange, bool]]:
    """Return which changes of a target Dagster was not told of, and whether a Dagster run is about to tell it by itself."""
    waiting = [change for change in changes if change.data_version not in known]
    # in this order: whoever was publishing when the ledger was read, and is no more, has told what it had to tell
    busy = _publishing(instance, {change.run_id for change in waiting}, own)
    return [(change, change.action == PUBLISH and change.run_id in busy) for change in waiting]


def tell_changes(
    platform: Platform, instance: dg.DagsterInstance, target: str | None = None, *, own: str = ""
) -> list[ReaderChange]:
    """Tell Dagster the changes (of one target, if given) that it does not know of; return those that were told now.

    Safe to repeat, and to do in several processes at once. What a living Dagster run publishes it tells by itself: that
    change, and those after it, are left for later, unless that Dagster run is `own`.
    """
    names = [target] if target is not None else [one.name for one in platform.products.targets]
    return [change for name in names for change in _tell(platform, instance, name, own=own)[0]]


def _tell(
    platform: Platform, instance: dg.DagsterInstance, name: str, *, own: str = ""
) -> tuple[list[ReaderChange], bool]:
    """Tell the changes of one target; return those that were told now, and whether none is left."""
    changes = recorded(platform, name)
    known = _known(instance, name) if changes else set()
    told: list[ReaderChange] = []
    for change, is_busy in _waiting(instance, changes, known, own):
        if is_busy:
            return told, False
        after = changes[changes.index(change) + 1 :]
        # one that is told after a later one is the asset's latest: it says what readers see now, too
        shown = metadata(platform, change, is_newest=not after or any(one.data_version in known for one in after))
        with platform.ledger.telling(name):
            known = _known(instance, name)
            if change.data_version in known:
                continue
            offer_run(instance, platform.products.target(name), change.run_id)
            instance.report_runless_asset_event(_event(change, shown, after, known))
        told.append(change)
    return told, True


@contextmanager
def telling_of(platform: Platform, instance: dg.DagsterInstance, change: ReaderChange) -> Iterator[bool]:
    """Yield whether who calls is to tell a publication by itself, now; nobody else tells of its target meanwhile.

    Not where it is told, nor out of its turn: `tell_changes` does that.

    Raises:
        EnvironmentRefused: if somebody else has been telling for too long.
    """
    changes = recorded(platform, change.target)
    turn = changes.index(change)
    with platform.ledger.telling(change.target):
        known = _known(instance, change.target)
        is_next = all(one.data_version in known for one in changes[:turn])
        yield is_next and not any(one.data_version in known for one in changes[turn:])


@contextmanager
def tolerant(target: str) -> Iterator[None]:
    """Go on where Dagster cannot be told just now, and say so: what readers see has changed all the same."""
    try:
        yield
    except EnvironmentRefused as refusal:
        why = refusal.problems[0].what
        text = f"Dagster was not told of the change of {target}: {why}; the sensor tell_changes tells it"
        logs.event(_log, logging.WARNING, "dagster_not_told", text, target=target, why=why)


def _event(
    change: ReaderChange, shown: dict[str, Any], after: Sequence[ReaderChange], known: Collection[str]
) -> dg.AssetMaterialization | dg.AssetObservation:
    """Return the event of a change.

    One that a change of the same run `after` it was told before must not be taken for the latest of their partition; after
    one of another run it is the only one that makes its partition a materialised one.
    """
    said = _SAID[change.action].format(run=change.run_id)
    later = [one.run_id for one in after if one.data_version in known]
    event = dg.AssetObservation if change.run_id in later else dg.AssetMaterialization
    return event(
        asset_key(f"{change.target}_published"),
        partition=change.run_id,
        description=f"{said} (told when a later change was told already)" if later else said,
        metadata=shown,
        tags={DATA_VERSION_TAG: change.data_version, RUN_TAG: change.run_id},
    )


def metadata(platform: Platform, change: ReaderChange, *, is_newest: bool) -> dict[str, Any]:
    """Return what is shown of a change: what it was, and, of the newest one, what readers see now."""
    rows = _rows(platform, change, is_newest=is_newest)
    shows = change.action != ROLLBACK
    own = sum(chunk.rows or 0 for chunk in platform.ledger.chunks(change.run_id)) if shows else 0
    shown: dict[str, Any] = {
        "change": change.action,
        "run": change.run_id,
        "snapshot": str(change.snapshot_id),
        "base snapshot": str(change.base_snapshot_id or "none"),
        "files added": change.files_added,
        "files removed": change.files_removed,
        "dagster/partition_row_count": own,
        "by": change.by,
        "at": f"{change.at:%Y-%m-%d %H:%M:%S} UTC",
        "evidence root": change.evidence_root,
        "evidence": dg.MetadataValue.url(f"{run_path(change.run_id)}#evidence"),
        "run page": dg.MetadataValue.url(run_path(change.run_id)),
        "manifest": dg.MetadataValue.url(f"{run_path(change.run_id)}/manifest.json"),
    }
    if change.version:
        shown["version"] = change.version
    if rows is not None:
        shown["dagster/row_count"] = rows
    if is_newest:
        shown["what readers see"] = dg.MetadataValue.md(_readers_see(platform, change.target))
    return shown


def _rows(platform: Platform, change: ReaderChange, *, is_newest: bool) -> int | None:
    """Return how many rows readers see (saw) with a change; None where the table does not say so any more."""
    if is_newest:
        return platform.lakehouse.total_rows(change.target)
    return None if change.version else platform.lakehouse.total_rows(change.target, change.snapshot_id)


def _readers_see(platform: Platform, target: str) -> str:
    by_run: dict[str, list[str]] = {}
    for chunk, holder in sorted(platform.ledger.accepted(target).items()):
        by_run.setdefault(holder, []).append(chunk)
    rows = [(run, len(chunks), in_words(chunks)) for run, chunks in by_run.items()]
    return table(("last changed by", "chunks", "which"), rows) if rows else "no run's rows"


def _known(instance: dg.DagsterInstance, target: str) -> set[str]:
    """Return the data versions of every event of a published asset."""
    found = instance.get_event_tags_for_asset(asset_key(f"{target}_published"))
    return {tags[DATA_VERSION_TAG] for tags in found if DATA_VERSION_TAG in tags}


def _publishing(instance: dg.DagsterInstance, run_ids: Collection[str], own: str = "") -> set[str]:
    """Return which of some runs a living Dagster run is publishing as their published asset."""
    statuses = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    if not run_ids:
        return set()
    found = set()
    for run in instance.get_runs(dg.RunsFilter(statuses=statuses)):
        run_id = run.tags.get(RUN_TAG, "")
        publishes = run_id in {run.tags.get(_PARTITION_TAG), run.tags.get(RANGE_START)}
        if run_id in run_ids and publishes and run.run_id != own and not is_gone(run.tags.get(PROCESS_TAG, "")):
            found.add(run_id)
    return found


def change_of_run(platform: Platform, target: str, run_id: str) -> tuple[ReaderChange, bool]:
    """Return the publication of a run that is on record, and whether it is the newest change of its target."""
    changes = recorded(platform, target)
    change = next(one for one in changes if one.run_id == run_id and one.action == PUBLISH)
    return change, change == changes[-1]


def is_told(instance: dg.DagsterInstance, change: ReaderChange) -> bool:
    """Whether Dagster knows of a change."""
    return change.data_version in _known(instance, change.target)


def summary(told: Sequence[ReaderChange]) -> str:
    """Name changes that were told."""
    return ", ".join(f"{change.action} of {change.run_id}" for change in told)


@dg.sensor(
    name="tell_changes",
    minimum_interval_seconds=SENSOR_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Shows on the published assets what the command, the doctor or a process that was killed has changed of "
    "what readers see.",
)
def changes_sensor(context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]) -> dg.SkipReason:
    """Look once, at the tables whose changes are not as many as when all of them were told."""
    if not is_tick(context):
        return tried_out("It shows changes of what readers see that Dagster was not told of.")
    known: dict[str, int] = json.loads(context.cursor) if context.cursor else {}
    told: list[ReaderChange] = []
    for target in platform.products.targets:
        number = len(recorded(platform, target.name))
        if number == known.get(target.name, 0):
            continue
        with tolerant(target.name):
            now_told, all_told = _tell(platform, context.instance, target.name)
            told += now_told
            known |= {target.name: number} if all_told else {}
    context.update_cursor(json.dumps(known))
    return dg.SkipReason(f"told: {summary(told)}" if told else "nothing new is on record")
