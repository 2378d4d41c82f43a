"""The publish asset and its sensor: how Dagster asks for a publication.

The sensor requests, the publisher decides: the body verifies everything from the ledger again, whoever asked.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import dagster as dg
from dagster import AssetExecutionContext

from backfill_assets.declarations.schedules import LivePolicy
from backfill_assets.declarations.target import TargetTable
from backfill_assets.defs import changes, diff_events
from backfill_assets.defs.addresses import run_path
from backfill_assets.defs.dagster_private import RUN_KEY_TAG, UnresolvedAssetJobDefinition
from backfill_assets.defs.launched_by import RUN_TAG, launched
from backfill_assets.defs.run_queue import LIVE_FIRST, PUBLICATION
from backfill_assets.defs.spark_by_mode import SparkByMode
from backfill_assets.defs.staging import (
    asset_key,
    backfill_partitions,
    column_schema,
    in_plain_words,
    launched_by_dagster,
    range_tags,
    staging_job_name,
    stretches,
    tell_of_broken_glass,
    tie,
)
from backfill_assets.defs.starting import publication_sensor
from backfill_assets.execution import execute_publication
from backfill_assets.installation import Platform
from backfill_assets.publication.announcements import Published
from backfill_assets.publication.requirements import ATTEMPTS, tried, waits_for, waits_for_commit
from backfill_assets.review.kept_diffs import after_publication
from manifests.errors import LeaseHeld
from manifests.lifecycle import RunState
from manifests.model import Mode
from resources.ledger.facade import ChunkRecord, ChunkState, RunRecord
from resources.ledger.policy_in_force import ADOPTED
from resources.logs import also_to

SENSOR_SECONDS = 10
_LEASE_WAIT_SECONDS = 15
_FINISHED = frozenset({dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED})


def freshness(policy: LivePolicy) -> dg.FreshnessPolicy:
    """Return when Dagster calls a target late that LIVE keeps up to date; unknown before its first publication."""
    return dg.FreshnessPolicy.time_window(
        fail_window=timedelta(hours=policy.late_after_hours),
        warn_window=timedelta(hours=policy.late_after_hours * 0.75),
    )


def publish_asset(target: TargetTable, group: str) -> dg.AssetsDefinition:
    """Make the publish asset of a target."""

    @dg.asset(
        key=asset_key(f"{target.name}_published"),
        deps=[
            dg.AssetDep(asset_key(target.name), partition_mapping=dg.MultiToSingleDimensionPartitionMapping("backfill"))
        ],
        partitions_def=backfill_partitions(target),
        backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=1),
        group_name=group,
        owners=list(target.owners),
        kinds={"iceberg"},
        description=(
            f"What readers of {target.name} see. A partition is a backfill run; materialising it publishes the run by the "
            "commits that its plan names, if the ledger has every chunk staged, every gate passed and the approval; else it is refused."
        ),
        metadata={"dagster/column_schema": column_schema(target), "dagster/table_name": target.name},
        tags={"backfill/stage": "publication"},
        freshness_policy=None if target.live is None else freshness(target.live),
        output_required=False,  # a publication that Dagster knows of is not materialised again
    )
    def published(
        context: AssetExecutionContext, platform: dg.ResourceParam[Platform], spark: SparkByMode
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetObservation]:
        run_id = context.partition_key
        tie(context.instance, context.run_id, platform, run_id)
        platform = spark.confine(platform, platform.ledger.run(run_id).plan.mode)
        broken = tell_of_broken_glass(context, platform, run_id)
        before = accepted_chunks(platform, target.name, run_id)
        done = _publish(context, platform, run_id)
        chunks = platform.ledger.chunks(run_id)
        more: dict[str, Any] = {"break-glass": dg.MetadataValue.text(broken)} if broken else {}
        more |= {"chunks": len(chunks), "what changed": dg.MetadataValue.md(change_charts(before, chunks))}
        is_told = yield from _materialization(context, platform, target, run_id, more)
        page = after_publication(platform, run_id)
        if page is not None:
            more["report"] = dg.MetadataValue.url(f"{run_path(run_id)}/evidence/{page.name}")
        if not is_told:
            why = "its publication is an event of its own" if done.new else "it was published before"
            more["change"] = f"none: {why}"
        yield _observation(context, platform, target, run_id, more)

    return published


def _publish(context: AssetExecutionContext, platform: Platform, run_id: str) -> Published:
    """Have the publisher publish a run, or ask Dagster for another try while another publisher holds the scope."""
    with in_plain_words(), launched(context):
        try:
            with also_to(context.log), launched_by_dagster(context, platform, run_id, resumes=False) as launch:
                done = execute_publication(platform, run_id)
        except LeaseHeld as held:  # it is the next one's turn, and the sensor asks only once
            retries = platform.settings.lease_seconds // _LEASE_WAIT_SECONDS + 2
            raise dg.RetryRequested(max_retries=retries, seconds_to_wait=_LEASE_WAIT_SECONDS) from held
    if launch.stop is not None:
        context.log.warning("'%s' is published all the same: %s", run_id, launch.stop)
    return done


def _materialization(
    context: AssetExecutionContext, platform: Platform, target: TargetTable, run_id: str, more: dict[str, Any]
) -> Generator[dg.MaterializeResult[None], None, bool]:
    """Yield the event of a publication, unless another process tells of it; return whether it was told here."""
    is_told = False
    with also_to(context.log), changes.tolerant(target.name):  # at once: rows are compared for minutes
        changes.tell_changes(platform, context.instance, target.name)  # what comes before: this one is told below
        change, is_newest = changes.change_of_run(platform, target.name, run_id)
        shown = changes.metadata(platform, change, is_newest=is_newest)
        with changes.telling_of(platform, context.instance, change) as is_mine:
            if is_mine:
                data_version = dg.DataVersion(change.data_version)
                yield dg.MaterializeResult(data_version=data_version, metadata=shown | more)
                is_told = True
        # and what waited for this one
        changes.tell_changes(platform, context.instance, target.name, own=context.run_id)
    return is_told


def _observation(
    context: AssetExecutionContext, platform: Platform, target: TargetTable, run_id: str, more: dict[str, Any]
) -> dg.AssetObservation:
    """Return what a publication changed, row by row, once its diff is kept."""
    change, is_newest = changes.change_of_run(platform, target.name, run_id)  # it may be rolled back by now
    shown = changes.metadata(platform, change, is_newest=is_newest)
    return dg.AssetObservation(
        context.asset_key,
        partition=run_id,
        description=f"what the publication of {run_id} changed, row by row",
        metadata=shown | more | diff_events.of_run(platform, run_id),
        tags={RUN_TAG: run_id},
    )


def accepted_chunks(platform: Platform, target: str, run_id: str) -> list[ChunkRecord]:
    """Return the chunks that readers see where a run will publish, as the runs recorded them that published them."""
    record = platform.ledger.find(run_id)
    wanted = [] if record is None else [chunk.key for chunk in record.plan.chunks]
    holders = platform.ledger.accepted(target, wanted)
    by_run = {one: {chunk.chunk: chunk for chunk in platform.ledger.chunks(one)} for one in set(holders.values())}
    return [by_run[holder][key] for key, holder in holders.items() if holder != run_id and key in by_run[holder]]


def change_charts(before: Sequence[ChunkRecord], after: Sequence[ChunkRecord]) -> str:
    """Return a chart of the rows by chunk before and after, and one of each sum that the chunks' gates have measured."""
    keys = [chunk.chunk for chunk in after]

    def rows(chunks: Sequence[ChunkRecord]) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {"rows": {chunk.chunk: chunk.rows or 0 for chunk in chunks}}
        for chunk in chunks:
            for part in chunk.measures.get("slices", ()):
                for name, value in part.items():
                    if isinstance(value, int) and name != "rows":
                        by_chunk = found.setdefault(name, {})
                        by_chunk[chunk.chunk] = by_chunk.get(chunk.chunk, 0) + value
        return found

    old, new = rows(before), rows(after)
    from backfill_assets.audit import charts  # noqa: PLC0415 - Matplotlib takes a moment

    def line(values: Mapping[str, int]) -> list[float | None]:
        return [values.get(key) for key in keys]

    panels = {name: (line(old.get(name, {})), line(new[name])) for name in new}
    return charts.as_markdown("by chunk, before and after", charts.before_and_after(panels, keys, "measures"))


def _job_name(target: TargetTable) -> str:
    return f"publish_{target.name.replace('.', '_')}"


def publish_job(target: TargetTable) -> UnresolvedAssetJobDefinition:
    """Make the job that the sensor runs."""
    return dg.define_asset_job(
        _job_name(target),
        selection=[asset_key(f"{target.name}_published")],
        description=f"Publishes validated backfill runs of {target.name}.",
    )


def publication_requests(
    platform: Platform, target: TargetTable, instance: dg.DagsterInstance | None = None
) -> Iterator[dg.RunRequest]:
    """Yield a request for each validated run that may be published without anybody saying so, and need not wait.

    A run key fires once: it carries the number of publications tried, and of what else a request meets that leaves no
    publication on record, so that one that failed, or that met a stop after all, is asked for again. With `instance`, it is known
    which requests Dagster has under way, or have come to nothing: those take no room from others, and are not asked for.
    """
    yield from _asked(platform, target, None if instance is None else lambda: instance).requests


@dataclass
class _Asked:
    """What a sensor asks for, and why it does not ask for other runs, by run."""

    requests: list[dg.RunRequest] = field(default_factory=list)
    new: int = 0
    waiting: dict[str, str] = field(default_factory=dict)


def _asked(platform: Platform, target: TargetTable, instance: Callable[[], dg.DagsterInstance] | None) -> _Asked:
    """Return what is asked for: what is under way in Dagster, and as many others as the hour has room for beside it."""
    found, others, ahead = _Asked(), list[tuple[RunRecord, dg.RunRequest, int | None]](), list[str]()
    for record, request, room in _wanted(platform, target):
        known = [] if instance is None else _known(instance(), target, record.run_id)
        under_way = [key for key, status in known if status not in _FINISHED]
        mine = request.with_replaced_attrs(run_key=under_way[0]) if under_way else _not_failed(request, known)
        if isinstance(mine, str):
            found.waiting[record.run_id] = mine
        elif under_way:
            found.requests.append(mine)
            ahead += [] if record.plan.mode is Mode.LIVE else [record.run_id]
        else:
            others.append((record, mine, room))
    for record, request, room in others:
        if room is not None and len(ahead) >= room:
            found.waiting[record.run_id] = (
                f"limits.maxCommitsPerHour leaves room for {room} publication(s) of {target.name}, and "
                f"{', '.join(ahead)} is asked for before it"
            )
            continue
        found.requests.append(request)
        found.new += 1
        ahead += [] if record.plan.mode is Mode.LIVE else [record.run_id]
    return found


def _wanted(platform: Platform, target: TargetTable) -> Iterator[tuple[RunRecord, dg.RunRequest, int | None]]:
    """Yield each validated run that need not wait for anything but others of its target, its request, and what room its limit leaves."""
    stopped = platform.ledger.stops.all_held()
    for record in platform.ledger.runs(target=target.name, states=[RunState.VALIDATED]):
        if record.run_id in stopped or not record.manifest.execution_mode.publishes or record.plan.manual_publish:
            continue
        if waits_for(platform, record):
            continue
        if platform.ledger.freezes.ask(record.plan, platform.ledger.now()):
            continue
        room, made = _room(platform, record)
        number, met = tried(platform.ledger, record.run_id), _met(platform, record) + made
        if number < ATTEMPTS:
            request = dg.RunRequest(
                run_key=f"{record.run_id}:{number}" + (f":{met}" if met else ""),
                partition_key=record.run_id,
                tags={RUN_TAG: record.run_id} | (LIVE_FIRST if record.plan.mode is Mode.LIVE else PUBLICATION),
            )
            yield record, request, room


def _room(platform: Platform, record: RunRecord) -> tuple[int | None, int]:
    """Return how many publications its limit has room for within this hour, None without one, and how often room was made.

    No more are asked for than there is room for: the others would fail. One that fails all the same, since somebody has published by hand,
    is asked for anew once there is room.
    """
    pace = record.plan.pace
    if pace is None or pace.commits_per_hour is None or record.plan.mode is Mode.LIVE:
        return None, 0
    return platform.ledger.admissions.room(record.run_id, record.target, pace.commits_per_hour)


def _met(platform: Platform, record: RunRecord) -> int:
    """Count what may have refused a request before its publication was on record: freezes, stops, plans and policies."""
    ledger = platform.ledger
    adopted = [one for one in ledger.policies.history() if one.decision == ADOPTED and one.at >= record.created_at]
    waited, stopped = ledger.freezes.waits_of(record.run_id), ledger.stops.of_run(record.run_id)
    return waited + len(stopped) + len(ledger.amendments(record.run_id)) + len(adopted)


def _known(instance: dg.DagsterInstance, target: TargetTable, run_id: str) -> list[tuple[str, dg.DagsterRunStatus]]:
    """Return the key and the status of each publication of a run that Dagster was asked for, the newest first."""
    asked = instance.get_runs(dg.RunsFilter(job_name=_job_name(target), tags={RUN_TAG: run_id}))
    return [(key, one.status) for one in asked if (key := one.tags.get(RUN_KEY_TAG)) is not None]


def _not_failed(request: dg.RunRequest, known: Sequence[tuple[str, dg.DagsterRunStatus]]) -> dg.RunRequest | str:
    """Return a request as one that has not failed yet, where its process failed before anything was on record.

    Or why it is not asked for: that has happened too often, or somebody has canceled it; what is put on record meanwhile makes it
    another request.
    """
    run_id = request.partition_key
    for time in range(ATTEMPTS):
        key = f"{request.run_key}/{time}" if time else request.run_key
        statuses = [status for known_key, status in known if known_key == key]
        if dg.DagsterRunStatus.CANCELED in statuses:
            return f"its publication was canceled in Dagster: `backfill publish {run_id}`"
        if any(status is not dg.DagsterRunStatus.FAILURE for status in statuses):
            return f"its publication has ended in Dagster, and is not on record: `backfill publish {run_id}`"
        if not statuses:
            return request.with_replaced_attrs(run_key=key)
    return _failed_too_often(str(run_id))


def _failed_too_often(run_id: str) -> str:
    return (
        f"its publication was asked for {ATTEMPTS} times and failed: see the runs of Dagster, and then "
        f"`backfill publish {run_id}`"
    )


def publish_sensor(target: TargetTable, job: UnresolvedAssetJobDefinition) -> dg.SensorDefinition:
    """Make the sensor that asks for the publication of validated runs."""

    @dg.sensor(
        name=publication_sensor(target.name),
        job=job,
        minimum_interval_seconds=SENSOR_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Asks for the publication of each run whose chunks are staged and whose gates have passed.",
    )
    def when_validated(
        context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        asked = _asked(platform, target, lambda: context.instance)
        if not asked.new and (asked.waiting or not asked.requests):
            waiting = _waiting(platform, target, asked.waiting)
            yield dg.SkipReason(
                "; ".join(f"{run_id} waits: {why}" for run_id, why in waiting.items())
                or f"no validated run of {target.name} waits for its publication"
            )
            return
        yield from asked.requests

    return when_validated


def _waiting(platform: Platform, target: TargetTable, others: Mapping[str, str]) -> dict[str, str]:
    """Return why validated runs of a target are not asked for: a freeze, a stop, a limit, or that asking for them came to nothing (`others`)."""
    waiting = platform.ledger.freezes.waiting(target.name)
    validated = platform.ledger.runs(target=target.name, states=[RunState.VALIDATED])
    waiting |= {
        run_id: str(stop) for run_id, stop in platform.ledger.stops.all_held([one.run_id for one in validated]).items()
    }
    waiting |= {
        one.run_id: why
        for one in validated
        if one.run_id not in waiting and (why := waits_for_commit(platform.ledger, one))
    }
    often = [one.run_id for one in validated if tried(platform.ledger, one.run_id) >= ATTEMPTS]
    return {**others, **{run_id: _failed_too_often(run_id) for run_id in often}, **waiting}


def recomputation_requests(platform: Platform, target: TargetTable) -> Iterator[dg.RunRequest]:
    """Yield requests to compute the chunks of runs that were planned anew after a conflict."""
    for record in platform.ledger.runs(target=target.name, states=[RunState.RUNNING]):
        amendments = platform.ledger.amendments(record.run_id)
        waiting = {chunk.chunk for chunk in platform.ledger.chunks(record.run_id) if chunk.state is ChunkState.PLANNED}
        if not amendments or not waiting or platform.ledger.stops.held(record.run_id) is not None:
            continue
        for first, last in stretches(target, record, waiting):
            yield dg.RunRequest(
                run_key=f"{record.run_id}:{len(amendments)}:{first}",
                tags=range_tags(record.run_id, first, last),
            )


def recomputation_sensor(target: TargetTable, job: UnresolvedAssetJobDefinition) -> dg.SensorDefinition:
    """Make the sensor that has chunks computed again that were planned anew."""

    @dg.sensor(
        name=f"{staging_job_name(target)}_after_conflict",
        job=job,
        minimum_interval_seconds=SENSOR_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Has the chunks computed again whose run was planned anew, because others had changed them.",
    )
    def after_conflict(platform: dg.ResourceParam[Platform]) -> Iterator[dg.RunRequest | dg.SkipReason]:
        requests = list(recomputation_requests(platform, target))
        if not requests:
            yield dg.SkipReason(f"no run of {target.name} was planned anew")
        yield from requests

    return after_conflict
