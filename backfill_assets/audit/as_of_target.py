"""What a target would have said at an instant: its transform over the versions of its source that were in force then.

Put here how it is computed; nothing is written. It is what a run over these days would publish that knew of its source what was known
then: with the code and the reference data of today. Which version of a day was in force is `as_of`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.audit.as_of import AsOf, versions_at
from backfill_assets.declarations.key_texts import parse_columns
from backfill_assets.declarations.schema import dtypes, lineage_columns
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.resolve import preview
from backfill_assets.run_context import RunContext
from backfill_assets.staging.compute import pinned_inputs, transform_context
from backfill_assets.staging.rows import computed_rows, running
from manifests.chunks import aligned, first_day, last_day
from manifests.errors import InputRefused, Problem
from manifests.model import DayRange, Kind, Mode, RunManifest
from manifests.reading import manifest_from

_BATCH = 10_000


@dataclass(frozen=True)
class ComputedAsOf:
    """What a target would have said at an instant.

    Attributes:
        target: the target.
        transform_version: the version that computes it: that of the newest published chunk, or of the newest declaration.
        source: which version of each day of the source was in force, with the days that the target's days are computed from.
        frames: the rows, in batches; the columns of the target without those of lineage. They are computed when they are asked for.
    """

    target: TargetTable
    transform_version: str
    source: AsOf
    frames: Iterator[pl.DataFrame]


def target_at(
    platform: Platform, table: str, system_time: datetime, days: DayRange | None, columns: Sequence[str]
) -> ComputedAsOf:
    """Return what a target would have said at an instant; see `ComputedAsOf`.

    Args:
        platform: the opened installation.
        table: a target whose source keeps every version of a day.
        system_time: an instant with its offset, of the source's producer.
        days: the days of the target asked about, both inclusive; None for all that anything was said about by then.
        columns: `column=value` of the rows asked for; none for all.

    Raises:
        InputRefused: if the table is no target, or its source keeps no versions; of columns that it has not.
        Refused: if such a run could not be planned.
    """
    target = platform.products.target(table)
    where = parse_columns(target.name, target.model, columns)
    version = _version(platform, target)
    said = versions_at(platform, target.source, system_time, None, ())
    known = _known(target, said, days)
    if known is None or said.snapshot_id is None:
        return ComputedAsOf(target, version, replace(said, versions={}), iter(()))
    run = RunContext(platform, target, preview(platform, _manifest(target, version, said.snapshot_id, known)))
    first = run.plan.input_range.start
    read = {day: one for day, one in said.versions.items() if first <= day <= known.end}
    asked = days or DayRange.model_construct(
        start=max(min(said.versions), known.start), end=min(max(said.versions), known.end)
    )
    return ComputedAsOf(target, version, replace(said, versions=read), _frames(run, system_time, asked, where))


def _version(platform: Platform, target: TargetTable) -> str:
    held = platform.ledger.accepted(target.name)
    if not held:
        return list(target.versions)[-1]
    return platform.ledger.run(held[max(held, key=lambda key: first_day(target.chunking, key))]).plan.transform_version


def _known(target: TargetTable, said: AsOf, days: DayRange | None) -> DayRange | None:
    """Return the whole chunks that hold the days asked about, as far as anything was said by then and the table can have them."""
    if not said.versions:
        return None
    start, end = min(said.versions), max(said.versions)
    if days is not None:
        start, end = days.start, min(days.end, end)
    last = first_day(target.chunking, target.chunks_until)
    start, end = max(start, first_day(target.chunking, target.chunks_from)), min(end, last_day(target.chunking, last))
    if start > end:
        return None
    first, until = aligned(target.chunking, start, end)
    return DayRange.model_construct(start=first, end=until)


def _manifest(target: TargetTable, version: str, snapshot_id: int, days: DayRange) -> RunManifest:
    """Return the contract of a dry run that is never recorded."""
    return manifest_from(
        {
            "runId": "as-of",
            "kind": Kind.RESTATEMENT.value,
            "mode": Mode.DRY_RUN.value,
            "requestedBy": "as-of",
            "reason": "What the target would have said at an instant.",
            "source": {"table": target.source, "snapshotId": snapshot_id},
            "transform": {"name": target.transform, "version": version},
            "target": {
                "table": target.name,
                "publishRange": {"start": days.start.isoformat(), "end": days.end.isoformat()},
            },
            "development": True,
        },
        where=f"{target.name} as of an instant",
    )


def _frames(run: RunContext, system_time: datetime, days: DayRange, where: Mapping[str, Any]) -> Iterator[pl.DataFrame]:
    target, plan = run.target, run.plan
    source = run.platform.products.input(target.source)
    if source.revisions is None:
        raise InputRefused(
            Problem(f"{source.name} keeps no versions", "what was said is told from versions", "ask another table")
        )
    schema = run.platform.lakehouse.table(target.name).schema()
    names = [name for name in dtypes(target.model) if name not in lineage_columns(target.model)]
    inputs = pinned_inputs(run, plan.chunks)
    known = inputs.source.where(F.col(source.revisions.system) <= F.lit(system_time))
    rows: DataFrame = computed_rows(
        target, plan, plan.chunks, replace(inputs, source=known), transform_context(run, plan.chunks), schema
    ).select(*names)
    if target.day_column:
        day = F.to_date(target.day_column)  # of an instant that of UTC, which is the session's time zone
        rows = rows.where((day >= F.lit(days.start)) & (day <= F.lit(days.end)))
    for name, value in where.items():
        rows = rows.where(F.col(name) == F.lit(value))
    types: dict[str, Any] = {name: kind for name, kind in dtypes(target.model).items() if name in names}
    with running(plan):
        found = rows.sort(*target.key).toLocalIterator()
        while batch := list(islice(found, _BATCH)):
            yield pl.DataFrame([row.asDict() for row in batch], schema=types)
