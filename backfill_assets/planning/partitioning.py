"""What the partitions of a target's tables say against a plan.

A table has the partitions that whoever made it has chosen. Put here why a run could not be written by them. What a partition spec
says by itself is `resources.lakehouse.partitions`'.
"""

from __future__ import annotations

from collections.abc import Iterator

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from manifests.errors import PlanRefused, Problem
from manifests.model import Mode, RunManifest
from resources.lakehouse.partitions import partition_problems, parts_of_chunks


def require_writable_partitions(platform: Platform, target: TargetTable, manifest: RunManifest) -> None:
    """Refuse a plan for tables by whose partitions its rows cannot be written.

    Raises:
        PlanRefused: naming the table, and what it is partitioned by.
    """
    if manifest.execution_mode is Mode.RECONCILIATION:
        return
    if problems := [*_problems(platform, target, manifest)]:
        raise PlanRefused(problems)


def _problems(platform: Platform, target: TargetTable, manifest: RunManifest) -> Iterator[Problem]:
    derived = [target.name] if manifest.target.merge is not None else []
    if manifest.target.correction_events is not None and target.corrections is not None:
        derived.append(target.corrections.name)
    for name in dict.fromkeys((target.name, *derived)):
        table = platform.lakehouse.table(name)
        yield from partition_problems(table)
        parts = parts_of_chunks(table, target.day_column, target.chunking) if name in derived else ()
        if parts:
            shown = ", ".join(f"{transform}({column})" for column, transform in parts)
            yield Problem(
                f"target.publishMode is {manifest.target.publish_mode}, and a chunk of {name} has files of several partitions "
                f"({shown})",
                f"{manifest.target.publish_mode} rewrites a file at a time, and puts new rows of a chunk into one",
                "publish with REPLACE_PARTITIONS, or partition the table by its chunks alone",
            )
