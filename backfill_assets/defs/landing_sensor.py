"""The sensor of a landing folder: on files that have come by a feed, how Dagster does what `backfill receive FEED` does.

Put here the job that receives, and when it is asked for: once for what lies there, and not while somebody may be writing it. What becomes
of a file is `ingestion.receiving`'s.
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg
from dagster import OpExecutionContext

from backfill_assets.declarations.feeds import DeliveryIndex, FileFeed
from backfill_assets.defs.inputs import observations
from backfill_assets.defs.launched_by import is_tick, launched, tried_out
from backfill_assets.defs.staging import in_plain_words
from backfill_assets.extraction.arrived_files import has_list
from backfill_assets.extraction.landed_files import lying_below
from backfill_assets.ingestion.file_archive import FileArchive
from backfill_assets.ingestion.receiving import Received, receive
from backfill_assets.installation import Platform
from manifests.canonical import sha256_of
from manifests.errors import Refused

SENSOR_SECONDS = 30
LYING_TAG = "backfill/landed"
"""Tag that says what lay in the landing folder when a receipt was asked for."""
_LAUNCHES = 3
"""Dagster runs for what lies in a folder, each after the one before it has failed, before it is left to people."""
_SHOWN = 20


def receiving_job(feed: FileFeed) -> dg.JobDefinition:
    """Make the job that receives what lies in the landing folder of a feed; the sensor asks for it, and whoever likes."""

    @dg.op(name=f"files_of_{feed.name}", description=f"Receives what lies in the landing folder of {feed.name}.")
    def receive_files(context: OpExecutionContext, platform: dg.ResourceParam[Platform]) -> None:
        with in_plain_words(), launched(context):
            done = receive(platform, feed.name, settled_seconds=feed.settled_seconds)
        for event in observations(platform, {})[0]:
            context.log_event(event)
        context.add_output_metadata(_told(done))

    @dg.job(
        name=f"receive_{feed.name}",
        description=(
            f"Does what `backfill receive {feed.name}` does: decides upon each file in the landing folder, keeps its bytes and loads "
            f"what is taken into {feed.table}. Files that were changed within {feed.settled_seconds} s are left alone."
        ),
    )
    def job() -> None:
        receive_files()

    return job


def _told(done: Received) -> dict[str, Any]:
    """Return what Dagster shows of a receipt."""
    shown: dict[str, Any] = {f"files {status}": number for status, number in done.by_status.items()}
    shown |= {"seen again": done.seen_again, "rows": done.rows, "quarantined records": done.rejected}
    if done.load_id:
        shown |= {"load": done.load_id, "snapshot": str(done.snapshot_id)}
    for name, several in (("left in the folder", done.left), ("refused", list(done.refused))):
        if several:
            shown[name] = dg.MetadataValue.json([*several[:_SHOWN], *(["…"] if len(several) > _SHOWN else [])])
    return shown


def request_for(
    platform: Platform, instance: dg.DagsterInstance, feed: FileFeed, job_name: str
) -> dg.RunRequest | dg.SkipReason:
    """Return the request for a receipt of what lies in the landing folder of a feed, or why there is none.

    What lies there is told by names, sizes and times. A run key fires once: it carries the number of launches so far, so that a receipt
    that has failed is repeated, and what stays in the folder is not received again and again.
    """
    landing = FileArchive(platform.settings.home, feed.name).landing
    if not landing.is_dir():
        return dg.SkipReason(f"{landing} is not there: nothing has come yet")
    try:
        found = lying_below(landing, feed.settled_seconds)
    except Refused as refusal:
        return dg.SkipReason(refusal.problems[0].what)
    if waits := _why_it_waits(feed, len(found.settled), found.young, list(found.settled)):
        return dg.SkipReason(waits)
    lies = sha256_of({path: list(state) for path, state in found.settled.items()})[:32]
    of_feed = instance.get_runs(dg.RunsFilter(job_name=job_name), limit=_SHOWN)
    if any(not run.is_finished for run in of_feed):
        return dg.SkipReason(f"the feed {feed.name} is being received")
    mine = instance.get_runs(dg.RunsFilter(job_name=job_name, tags={LYING_TAG: lies}))
    if any(run.is_success for run in mine):
        return dg.SkipReason(
            f"{len(found.settled):,} file(s) were received, and stay: see `backfill files {feed.name}`"
        )
    if len(mine) >= _LAUNCHES:
        return dg.SkipReason(f"what lies there was received {len(mine)} times in vain: see the runs of {job_name}")
    return dg.RunRequest(run_key=f"{feed.name}:{lies}:{len(mine)}", tags={LYING_TAG: lies})


def _why_it_waits(feed: FileFeed, settled: int, young: int, paths: Sequence[str]) -> str:
    """Say why nothing is received yet; empty if something is."""
    if isinstance(feed.time, DeliveryIndex) and young:
        return f"{young:,} file(s) were changed within {feed.settled_seconds} s: files and their list are received together"
    if not settled:
        return f"{young:,} file(s) were changed within {feed.settled_seconds} s" if young else "nothing lies there"
    return "" if has_list(feed, paths) else f"the list of the files is not there: {feed.time.file}"  # type: ignore[union-attr]


def landing_sensor(feed: FileFeed, job: dg.JobDefinition) -> dg.SensorDefinition:
    """Make the sensor of a feed's landing folder; it is off until somebody turns it on."""

    @dg.sensor(
        name=f"receive_{feed.name}_on_landing",
        job=job,
        minimum_interval_seconds=SENSOR_SECONDS,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=(
            f"On files in the landing folder of {feed.name} that nobody has changed for {feed.settled_seconds} s: receives them, as "
            f"`backfill receive {feed.name}` does."
        ),
    )
    def on_landing(
        context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]
    ) -> dg.RunRequest | dg.SkipReason:
        found = request_for(platform, context.instance, feed, job.name)
        if is_tick(context) or isinstance(found, dg.SkipReason):
            return found
        return tried_out("It would receive what lies there.")

    return on_landing
