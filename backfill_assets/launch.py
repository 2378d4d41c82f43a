"""Running the assets through Dagster: what the command does is what a launch from the UI does.

Put here the Dagster instance of an installation and the calls that run a job on it in this process.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
from dagster._core.definitions.partitions.context import partition_loading_context

from backfill_assets.definitions import build_definitions
from backfill_assets.inputs import observations
from backfill_assets.platform import Platform, target_named
from backfill_assets.publish import publish_job
from backfill_assets.staging import RUN_TAG, backfill_partitions, range_tags, staging_job_name, stretches
from manifests.errors import EnvironmentRefused, Problem
from resources.ledger import RunRecord

_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
"""The event log has everything; a terminal that shows a progress bar needs none of it twice."""


def initialise_instance(home: Path) -> None:
    """Create DAGSTER_HOME and its databases once, before several processes could race for it."""
    home.mkdir(parents=True, exist_ok=True)
    target = home / "dagster.yaml"
    if not target.exists():
        shutil.copyfile(Path(__file__).with_name("dagster.yaml"), target)
    with instance_at(home) as instance:
        instance.get_runs(limit=1)
        instance.all_asset_keys()


@contextmanager
def instance_at(home: Path) -> Iterator[dg.DagsterInstance]:
    """Yield the Dagster instance of a DAGSTER_HOME.

    Raises:
        EnvironmentRefused: if it was not initialised.
    """
    if not (home / "dagster.yaml").is_file():
        raise EnvironmentRefused(
            Problem(f"{home} is no DAGSTER_HOME", "the installation is initialised first", "run `backfill init`")
        )
    os.environ["DAGSTER_HOME"] = str(home)  # the instance's own configuration refers to it
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


def announce_approval(instance: dg.DagsterInstance, record: RunRecord) -> None:
    """Offer an approved run in the launch dialog of its asset."""
    name = backfill_partitions(target_named(record.target)).name
    assert name is not None
    if not instance.has_dynamic_partition(name, record.run_id):
        instance.add_dynamic_partitions(name, [record.run_id])


def run_chunks(
    platform: Platform,
    instance: dg.DagsterInstance,
    record: RunRecord,
    chunks: Sequence[str],
    *,
    started: Callable[[str], None] = lambda _: None,
) -> bool:
    """Stage and gate chunks of a run as Dagster runs in this process, one a stretch of chunks; return success.

    A Dagster run takes a contiguous range; chunks with gaps between them take several.
    """
    job = build_definitions(platform).resolve_job_def(staging_job_name(target_named(record.target)))
    success = True
    for first, last in stretches(record, chunks):
        tags = range_tags(record.run_id, first, last)
        started(f"{first} to {last}")
        with partition_loading_context(dynamic_partitions_store=instance):
            result = job.execute_in_process(instance=instance, tags=tags, run_config=_QUIET, raise_on_error=False)
        success &= result.success
    return success


def run_publication(platform: Platform, instance: dg.DagsterInstance, record: RunRecord) -> bool:
    """Materialise the publish asset of a run in this process; return success."""
    job = build_definitions(platform).resolve_job_def(publish_job(target_named(record.target)).name)
    with partition_loading_context(dynamic_partitions_store=instance):
        result = job.execute_in_process(
            instance=instance,
            partition_key=record.run_id,
            tags={RUN_TAG: record.run_id},
            run_config=_QUIET,
            raise_on_error=False,
        )
    return result.success


def report_inputs(platform: Platform, instance: dg.DagsterInstance) -> None:
    """Tell Dagster the current version of every input table."""
    changed, _ = observations(platform, {})
    for event in changed:
        instance.report_runless_asset_event(event)
