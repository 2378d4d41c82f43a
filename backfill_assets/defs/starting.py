"""What Dagster was asked to do for runs and has not ended: launches that wait, begin or are at work; and whether it asks by itself.

A launch of chunks in Dagster is first a Dagster backfill, which its daemon takes up within half a minute; then a run in its
queue; then a process that starts. Put here how all of that is found from its first moment on, by the tag that the server
writes. What a process does once it works is in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from backfill_assets.defs.dagster_private import BACKFILL_ID_TAG, BulkActionsFilter, BulkActionStatus
from backfill_assets.defs.launched_by import RUN_TAG, actor_of, is_decided, is_executed_again, known_stop
from backfill_assets.defs.run_queue import AT_ONCE
from resources.actors import SOMEBODY

_DOING = {
    dg.DagsterRunStatus.NOT_STARTED: "waits in Dagster's queue",
    dg.DagsterRunStatus.QUEUED: "waits in Dagster's queue",
    dg.DagsterRunStatus.STARTING: "its process is starting",
    dg.DagsterRunStatus.STARTED: "its process has begun",
    dg.DagsterRunStatus.CANCELING: "it is being cancelled",
}
_MOST = 1000


@dataclass(frozen=True)
class Starting:
    """Something that Dagster was asked to do for a run: when, by whom (if that is known), how far it is, its page in Dagster.

    `publishes` says that it is the run's publication, and no launch of its chunks; `decided` that a person has asked for it, `knows`
    which was the newest stop of the run then, where somebody looked: by both, a stop ends with it, or it with the stop.
    """

    run_id: str
    at: datetime
    by: str
    doing: str
    address: str
    publishes: bool = False
    decided: bool = True
    knows: int | None = None


def starting(instance: dg.DagsterInstance) -> dict[str, list[Starting]]:
    """Return what Dagster has not ended, by run, in the order in which it was asked for."""
    found: dict[str, list[Starting]] = {}
    for one in sorted([*_runs(instance), *_backfills(instance)], key=lambda one: one.at):
        found.setdefault(one.run_id, []).append(one)
    return found


def publication_sensor(target: str) -> str:
    """Return the name of the sensor that asks for the publication of a target's validated runs."""
    return f"publish_{target.replace('.', '_')}_when_validated"


def is_switched_off(instance: dg.DagsterInstance, sensor: str) -> bool:
    """Whether somebody has stopped a sensor in Dagster, which runs where nobody has."""
    states = [one.status.value for one in instance.all_instigator_state() if one.instigator_name == sensor]
    return bool(states) and all(one == "STOPPED" for one in states)


def _runs(instance: dg.DagsterInstance) -> Iterator[Starting]:
    for record in instance.get_run_records(dg.RunsFilter(statuses=list(_DOING)), limit=_MOST):
        run = record.dagster_run
        if run.job_name in AT_ONCE - {"publish_run"}:
            continue  # a decision, which launches nothing
        if run_id := run.tags.get(RUN_TAG):
            publishes = any(key.path[-1].endswith("_published") for key in run.asset_selection or ())
            publishes = publishes or run.job_name.startswith("publish_")
            at, by = record.create_timestamp.astimezone(UTC), _by(run.tags)
            again = is_executed_again(run.tags)  # by somebody, who has asked for no more than that
            whole = None if again else instance.get_backfill(run.tags.get(BACKFILL_ID_TAG, ""))
            if whole is not None:  # it was asked for as a whole
                at = datetime.fromtimestamp(whole.backfill_timestamp, UTC)
            decided, knows = is_decided(run.tags), known_stop(run.tags)
            yield Starting(run_id, at, by, _DOING[run.status], f"/runs/{run.run_id}", publishes, decided, knows)


def _backfills(instance: dg.DagsterInstance) -> Iterator[Starting]:
    """Yield the Dagster backfills of which no run was made yet."""
    asked = BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED])
    for backfill in instance.get_backfills(asked, limit=_MOST):
        run_id = backfill.tags.get(RUN_TAG)
        if not run_id or instance.get_run_ids(dg.RunsFilter(tags={BACKFILL_ID_TAG: backfill.backfill_id}), limit=1):
            continue
        at = datetime.fromtimestamp(backfill.backfill_timestamp, UTC)
        publishes = any(key.path[-1].endswith("_published") for key in backfill.asset_selection or ())
        doing = "Dagster takes it up within half a minute"
        decided, knows, address = (
            is_decided(backfill.tags),
            known_stop(backfill.tags),
            f"/runs/b/{backfill.backfill_id}",
        )
        yield Starting(run_id, at, _by(backfill.tags), doing, address, publishes, decided, knows)


def _by(tags: Mapping[str, str]) -> str:
    """Return who has launched something of these tags; nothing where only Dagster or the command knows of somebody."""
    name = actor_of(tags).name
    return "" if name == SOMEBODY else name
