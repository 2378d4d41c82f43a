"""Spark by execution mode as Dagster's resources: what a run of a mode computes with, and what it may reach.

Put here what Dagster shows of the modes, and hands to assets and checks. The sessions and their settings are
`resources.spark.sessions`'; which sink a mode may use is `resources.sinks.policy`'s. A step whose run is of one mode gets that
mode's sessions and no other's.
"""

from typing import Any

import dagster as dg
from pydantic import Field

from backfill_assets.installation import Platform
from manifests.model import Mode
from resources.sinks.declared import Declared
from resources.sinks.policy import judge_granted
from resources.spark.one_mode import SparkOfOneMode

_MODES = (Mode.LIVE, Mode.BACKFILL, Mode.REPLAY, Mode.DRY_RUN, Mode.RECONCILIATION)
_WITHOUT_LIVE = (
    "JDBC, in both directions",
    "a local path outside the warehouse, where the warehouse is a local folder or in S3",
    "credentials of sinks: neither the JVM nor its Python workers have them in their environment",
)
_WRITES = {
    Mode.DRY_RUN: "files of its run below the warehouse's staging; nothing of it is ever published",
    Mode.RECONCILIATION: "nothing but the table of exceptions that a gate keeps",
}
_STAGES = "files of its run below the warehouse's staging; what readers see changes with its publication"


class SparkOfMode(dg.ConfigurableResource[SparkOfOneMode]):
    """The Spark sessions of one execution mode, made with dagster-pyspark at first use, in the step's own process."""

    mode: str = Field(description="The execution mode; a session says which it is of, and is used in no other.")
    reads: str = Field(description="What its sessions read.")
    writes: str = Field(description="What its sessions write.")
    sinks: list[str] = Field(description="Sinks that the mode may be granted by a manifest.")
    refuses: list[str] = Field(description="What its sessions refuse, whatever a transform asks for.")

    def confine(self, platform: Platform) -> Platform:
        """Return the installation with the sessions of this mode only."""
        return platform.with_spark(SparkOfOneMode(platform.spark, Mode(self.mode)))


class SparkByMode(dg.ConfigurableResource[None]):
    """Spark, a resource an execution mode: a step is given the one of its run's mode."""

    spark_live: dg.ResourceDependency[SparkOfMode]
    spark_backfill: dg.ResourceDependency[SparkOfMode]
    spark_replay: dg.ResourceDependency[SparkOfMode]
    spark_dry_run: dg.ResourceDependency[SparkOfMode]
    spark_reconciliation: dg.ResourceDependency[SparkOfMode]

    def confine(self, platform: Platform, mode: Mode) -> Platform:
        """Return the installation with the sessions of one mode only."""
        resource: SparkOfMode = getattr(self, resource_key(mode))
        return resource.confine(platform)


def resource_key(mode: Mode) -> str:
    """Return the key of a mode's resource, as `spark_dry_run`."""
    return f"spark_{mode.value.lower()}"


def spark_resources(sinks: Declared) -> dict[str, dg.ConfigurableResource[Any]]:
    """Return a resource a mode, by its key, and `spark`, which has all of them; `sinks` are those of the installation."""
    by_mode = {resource_key(mode): _of_mode(mode, sinks) for mode in _MODES}
    return {**by_mode, "spark": SparkByMode(**by_mode)}


def _of_mode(mode: Mode, sinks: Declared) -> SparkOfMode:
    granted = [sink.name for sink in sinks.values() if judge_granted(sink, mode).is_allowed]
    refuses = [] if mode is Mode.LIVE else list(_WITHOUT_LIVE)
    if mode is Mode.RECONCILIATION:
        refuses.append("every write of a frame to files")
    return SparkOfMode(
        mode=mode.value,
        reads="the pinned snapshots of the run's plan",
        writes=_WRITES.get(mode, _STAGES),
        sinks=granted,
        refuses=refuses,
    )
