"""Who has launched a Dagster run, and through what: read from its tags, and put on record with what the run does.

Put here what tags mean. The server stamps the name of who is logged in over whatever was sent (`backfill_assets.ui.serving`);
Dagster stamps its sensors and schedules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

import dagster as dg

from resources import actors
from resources.actors import SOMEBODY, Actor, Channel, Proof

RUN_TAG = "backfill/run_id"
"""Tag that ties a Dagster run, and the Dagster backfill that it is of, to the backfill run that it works for."""
STOP_TAG = "backfill/knows_stop"
"""Tag with the number of the newest stop that held the run when its launch was asked for; the server writes it."""
USER_TAG = "backfill/launched_by"
"""Tag of what somebody has launched through a proxy that says who asks; the server writes it, over what was sent."""
_SENSOR, _SCHEDULE = "dagster/sensor_name", "dagster/schedule_name"
STAMPED_TAGS = frozenset({USER_TAG, STOP_TAG, _SENSOR, _SCHEDULE})
"""What says who has launched, and what was stopped before; whoever launches through the server cannot say it."""
RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
_ONE_OF_TWO, _PARTITION = "dagster/partition/backfill", "dagster/partition"
_PARENT, _RETRY = "dagster/parent_run_id", "dagster/retry_number"
"""Tags of a run that is executed again, and of one that Dagster has tried again by itself."""


def actor_of(tags: Mapping[str, str]) -> Actor:
    """Return who acts in a Dagster run of these tags."""
    if user := tags.get(USER_TAG):
        return Actor(user, Channel.UI, Proof.PROXY)
    again = is_executed_again(tags)
    if not again and (name := tags.get(_SENSOR)):
        return sensor(name)
    if not again and (name := tags.get(_SCHEDULE)):
        return schedule(name)
    return Actor(SOMEBODY, Channel.UI)


def is_executed_again(tags: Mapping[str, str]) -> bool:
    """Whether somebody executes a run of Dagster's again by one of these tags, most of which Dagster has copied from it."""
    return _PARENT in tags and _RETRY not in tags


def run_and_chunk(partition: str) -> tuple[str, str]:
    """Return the run and the chunk of a partition key of a target: neither holds a `|`."""
    run_id, _, chunk = partition.rpartition("|")
    return run_id, chunk


def run_of(partitions: Iterable[str]) -> str:
    """Return the run that partition keys of a target, or of its publications, are of; nothing if they are of several."""
    found = {run_and_chunk(key)[0] or key for key in partitions}
    return found.pop() if len(found) == 1 else ""


def worked_for(tags: Mapping[str, str]) -> str:
    """Return the run that a Dagster run of these tags is to work for, by its partitions; nothing if they do not say."""
    if run_id := tags.get(_ONE_OF_TWO):
        return run_id
    ends = [tags[name] for name in (RANGE_START, RANGE_END) if name in tags]
    return run_of(ends or [tags[name] for name in (_PARTITION,) if name in tags])


def known_stop(tags: Mapping[str, str]) -> int | None:
    """Return the newest stop that held the run when a Dagster run of these tags was asked for; None if nobody looked."""
    number = tags.get(STOP_TAG, "")
    return int(number) if number.isdecimal() else None


def cancelled(instance: dg.DagsterInstance, dagster_run_id: str) -> dg.EventLogEntry | None:
    """Return the event with which somebody has first asked for the end of a Dagster run; None if nobody has."""
    found = instance.all_logs(dagster_run_id, of_type=dg.DagsterEventType.RUN_CANCELING)
    return found[0] if found else None


def terminated_at(instance: dg.DagsterInstance, dagster_run_id: str) -> datetime | None:
    """Return when that was: minutes before the run ends, where its process does not answer."""
    event = cancelled(instance, dagster_run_id)
    return None if event is None else datetime.fromtimestamp(event.timestamp, UTC)


def is_decided(tags: Mapping[str, str]) -> bool:
    """Whether a person has launched a Dagster run of these tags: no sensor, no schedule, no retry of Dagster's."""
    return _RETRY not in tags and actor_of(tags).proof is not Proof.PLATFORM


def sensor(name: str) -> Actor:
    """Return the actor that a sensor is."""
    return Actor(f"sensor {name}", Channel.SENSOR, Proof.PLATFORM)


def schedule(name: str) -> Actor:
    """Return the actor that a schedule is."""
    return Actor(f"schedule {name}", Channel.SCHEDULE, Proof.PLATFORM)


def is_tick(context: dg.SensorEvaluationContext | dg.ScheduleEvaluationContext) -> bool:
    """Whether Dagster's daemon evaluates a sensor or a schedule by a tick of its own, and not somebody who tries it out.

    The daemon writes its tick down first, and the tick's number ends the name of its log. Whoever tries one out, by a
    query, the button of its page or `dagster ... preview`, has no tick: Dagster puts the time there, which is no number.
    """
    *_, number = context.log_key or [""]
    return number.isdecimal()


def tried_out(would: str) -> dg.SkipReason:
    """Return the answer to somebody who tries a sensor or a schedule out: what its tick would do."""
    return dg.SkipReason(f"nothing was done: only a tick of Dagster's daemon acts. {would}")


@contextmanager
def launched(context: dg.OpExecutionContext | dg.AssetExecutionContext, *, by_people: bool = False) -> Iterator[None]:
    """Have what a Dagster run does be recorded in the name of who has launched it; of the command, where that runs it.

    What is done `by_people` only is never a sensor's or a schedule's, whatever the tags say.
    """
    if actors.is_known():
        yield
        return
    actor = actor_of(context.run.tags)
    with actors.acting(Actor(SOMEBODY, Channel.UI) if by_people and actor.proof is Proof.PLATFORM else actor):
        yield
