"""Versions of a source's rows that no reader knows: refused when a run is planned, before anything is read by the wrong one.

Put here which versions the files of a read have; of a log of which a manifest names positions, the rows at these. What a team declares of them is `declarations.source_tables`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression

from backfill_assets.declarations.changelogs import UNKNOWN_VERSION
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.landed_logs import positions_asked
from manifests.errors import PlanRefused, Problem
from manifests.estimates import ZONE_MARGIN
from manifests.facts import SourceState
from manifests.further_sources import pin_of
from manifests.model import RunManifest
from resources.lakehouse.facade import before, between

_SHOWN = 10


def require_known_versions(
    platform: Platform, target: TargetTable, manifest: RunManifest, states: Mapping[str, SourceState], warm_up: int
) -> None:
    """Refuse to read files with rows of a version that the target declares no reader for; of a log, rows at positions that are read.

    Raises:
        PlanRefused: naming each version, and a file that has it.
    """
    problems = []
    for table, state in states.items():
        readers = target.readers_of(table)
        if readers is None:
            continue
        place = _read(target, table, state, manifest, warm_up)
        at = positions_asked(platform, target, manifest, state) if table == target.source else None
        of = table, state.snapshot_id, readers.column
        found = platform.lakehouse.values_in(*of, place if at is None else And(place, at))
        if at is not None and not found.keys() <= readers.by_version.keys():
            # a file of which a part is read may have such rows elsewhere: only now is it worth looking
            found = platform.lakehouse.values_in(*of, And(place, at), of_rows=True)
        unknown = {value: file for value, file in found.items() if value not in readers.by_version}
        for value, file in sorted(unknown.items(), key=str)[:_SHOWN]:
            problems.append(
                Problem(
                    f"{table} has rows of {readers.column} {'NULL' if value is None else repr(value)}, the first in {file}",
                    f"readers know {', '.join('None' if one is None else repr(one) for one in readers.by_version)}",
                    _way_out(platform, table, value),
                )
            )
    if problems:
        raise PlanRefused(problems)


def _way_out(platform: Platform, table: str, value: object) -> str:
    """Say what makes rows of a version readable: of a changelog, rows keep the version that they were landed as."""
    of_changelogs = {one.table for one in platform.products.changelogs.values()}
    if table not in of_changelogs or not str(value).startswith(UNKNOWN_VERSION):
        return "declare what such rows mean, with a reader of that version, or narrow the publish range"
    return (
        "declare these columns as a version in the changelog, with a reader, take back the loads that have such rows (`backfill "
        "unload`) and land the same files again: they keep the version that they were landed as; or name an earlier source.snapshotId"
    )


def _read(
    target: TargetTable, table: str, state: SourceState, manifest: RunManifest, warm_up: int
) -> BooleanExpression:
    """Return a filter that finds the files that a run reads of a source."""
    if table == target.source and not target.window_column:
        return AlwaysTrue()
    publish, column = manifest.target.publish_range, target.every_source[table]
    declared = next((one.contract for one in target.sources if one.table == table), None)
    if declared is None:
        asked = 0 if manifest.warm_up is None else manifest.warm_up.days
        start = publish.start - timedelta(days=max(warm_up, asked)) - ZONE_MARGIN
        days: tuple[date | None, date] = start, publish.end + timedelta(days=1) + ZONE_MARGIN
        if not state.has_dates:
            days = _midnight(start), _midnight(days[1])
    else:
        days = pin_of(declared, state).window(publish.start, publish.end)
    first, end = days
    return before(column, end) if first is None else between(column, first, end)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time.min, UTC)
