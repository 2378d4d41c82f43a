"""The columns of the tables that a run reads and writes, as its plan pins them.

Put here which schemas a plan pins, and whether one still holds: what was planned, computed or judged for other columns than a
table has by now is neither computed nor published. Whether a table is as its model says is `resources.lakehouse.declared_tables`'.
"""

from __future__ import annotations

from pyiceberg.schema import Schema

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from manifests.errors import Problem
from manifests.model import RunManifest
from manifests.plan import Plan
from resources.lakehouse.snapshots import schema_facts


def pinned_schemas(platform: Platform, target: TargetTable, manifest: RunManifest) -> dict[str, int]:
    """Return the id of the schema of each table that a run of a target reads or writes, as it is now."""
    corrections = (
        [] if target.corrections is None or manifest.target.correction_events is None else [target.corrections.name]
    )
    states = [] if manifest.source.start_from is None or target.starts_from is None else [target.starts_from.table]
    return {
        name: platform.lakehouse.table(name).schema().schema_id
        for name in dict.fromkeys([target.name, *corrections, *target.every_source, *target.references, *states])
    }


def schema_problems(platform: Platform, target: TargetTable, plan: Plan) -> list[Problem]:
    """Say which tables that a plan writes to have other columns by now than those that it was made for.

    A description, or a column that need not be there any more, is none: what is found by its field id, under its name and with
    its type, is found as before. Another order is: digests are made in it. Sources and references are read by the schemas that
    are pinned.
    """
    written = [name for name, _ in target.models if plan.schema_of(name) is not None]
    problems = []
    for name in written:
        table, pinned = platform.lakehouse.table(name), plan.schema_of(name)
        if table.schema().schema_id == pinned:
            continue
        then = next((one for one in table.metadata.schemas if one.schema_id == pinned), None)
        if then is not None and _facts(then) == _facts(table.schema()):
            continue
        problems.append(
            Problem(
                f"run '{plan.run_id}' was planned for schema {pinned} of {name}, and it has schema {table.schema().schema_id} now",
                "what is computed and judged for columns is published where the table still has them",
                "plan the change again under a new run id",
            )
        )
    return problems


def _facts(schema: Schema) -> list[tuple[str, list[str]]]:
    return list(schema_facts(schema).items())
