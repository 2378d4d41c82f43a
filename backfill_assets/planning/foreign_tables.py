"""What a table that somebody else has made says against a plan: its format, its place, its partitions.

Put here why a run could not read or write a table that `backfill init` would have made otherwise. Its columns are
`resources.lakehouse.declared_tables`', what a partition spec says by itself `resources.lakehouse.partitions`'; files that hold more
than a chunk are the planner's.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table import Table

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.divided_tables import of_divided
from backfill_assets.planning.merged_sources import of_changed_since
from manifests.errors import PlanRefused, Problem
from manifests.model import Mode, RunManifest
from resources.lakehouse.declared_tables import metrics_problems
from resources.lakehouse.metadata import UnreadableMetadata
from resources.lakehouse.partitions import WRITTEN_FORMAT, is_divided, partition_problems
from resources.lakehouse.storage import local_path


def require_usable_tables(platform: Platform, target: TargetTable, manifest: RunManifest) -> None:
    """Refuse a plan for tables that no session could read, or that its rows could not be written into.

    Raises:
        PlanRefused: naming each table, and what is wrong with it.
    """
    changed = [target.name]
    if manifest.target.correction_events is not None and target.corrections is not None:
        changed.append(target.corrections.name)
    problems: list[Problem] = []
    for name in dict.fromkeys((*changed, *target.every_read)):
        try:
            table = platform.lakehouse.table(name)
        except UnreadableMetadata:
            continue  # whoever reads it next says so
        problems += _out_of_reach(platform, table)
        if name in changed and manifest.execution_mode is not Mode.RECONCILIATION:
            problems += [*_of_format(table), *partition_problems(table)]
            problems += _of_division(table, target)
            division = target.chunk_values
            named = {target.day_column} | ({division.column} if division is not None and division.bounds else set())
            own = named & set(table.schema().column_names)
            problems += [] if partition_problems(table) else metrics_problems(table, own)
    problems += [*of_changed_since(platform, target, manifest), *of_divided(platform, target, manifest)]
    if problems:
        raise PlanRefused(problems)


def _out_of_reach(platform: Platform, table: Table) -> Iterator[Problem]:
    """Say that a table lies where the sessions of runs see nothing."""
    location, folders = table.location(), platform.settings.reachable_folders
    if not folders or "://" in local_path(location):
        return
    place = local_path(location)
    if any(f"{place}/".startswith(f"{folder}/") for folder in folders):
        return
    yield Problem(
        f"{_name(table)} lies in {place}",
        f"runs read and write files below {', '.join(folders)} alone",
        "name the folder in the setting table_folders, if it is meant for tables of runs",
    )


def _of_format(table: Table) -> Iterator[Problem]:
    if table.format_version > WRITTEN_FORMAT:
        yield Problem(
            f"{_name(table)} is of Iceberg's format {table.format_version}",
            f"tables are written in the formats up to {WRITTEN_FORMAT}; those of later ones can be read as sources",
            "publish into a table of an earlier format, or wait for a version of PyIceberg that writes it",
        )


def _of_division(table: Table, target: TargetTable) -> Iterator[Problem]:
    """Say that a table's metadata does not say in which value or bucket its new files lie."""
    division = target.chunk_values
    if division is None or division.column not in table.schema().column_names or is_divided(table, division):
        return
    yield Problem(
        f"{_name(table)} is divided by {division}, and not partitioned by {division.transform}({division.column})",
        "which values a file holds is told from its table's metadata alone: its partition says so",
        f'add the partition field (PyIceberg: `table.update_spec().add_field("{division.column}", "{division.transform}")`); files '
        "that hold several values are rewritten first, which planning says by their names",
    )


def _name(table: Table) -> str:
    return ".".join(table.name())
