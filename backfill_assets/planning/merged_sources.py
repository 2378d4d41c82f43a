"""What sources say against a merge: of which nobody can tell which entities have changed in them.

Put here why `changedSince` finds nothing, or not everything, in a source of a target. Which entities a merge computes, and from which
rows, is `staging.compute`'s; what the mode asks of its target, `manifests.publish_mode_problems`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from manifests.errors import InputRefused, Problem
from manifests.model import RunManifest


def of_changed_since(platform: Platform, target: TargetTable, manifest: RunManifest) -> Iterator[Problem]:
    """Say why nobody can tell which entities have changed since the snapshots that a merge names."""
    newest = {one.table: one.snapshot_id for one in manifest.sources} | {target.source: manifest.source.snapshot_id}
    until = {name: newest.get(name) or platform.lakehouse.snapshot_id(name) for name in target.every_source}
    yield from changed_since_problems(platform, target, manifest, until)


def changed_since_problems(
    platform: Platform, target: TargetTable, manifest: RunManifest, until: Mapping[str, int | None]
) -> Iterator[Problem]:
    """Say the same of snapshots of the sources, by table: what would be read of each."""
    merge = manifest.target.merge
    if merge is None or merge.changed_since is None:
        return
    yield from _of_appends(platform, target, target.source, merge.changed_since, until[target.source])
    for one in merge.sources:
        if one.table in until and one.table != target.source:
            yield from _of_further(platform, target, one.table, one.changed_since, until[one.table])


def _of_further(
    platform: Platform, target: TargetTable, table: str, since: int, until: int | None
) -> Iterator[Problem]:
    """Say why a source beside the first does not say which entities have changed."""
    if since not in platform.lakehouse.history(table):
        yield Problem(
            f"merge.sources names snapshot {since} of {table}",
            f"it is a snapshot in the history of {table}",
            "see the table's snapshots",
        )
        return
    if since == until or target.entity is None:
        return  # nothing has changed; without an entity there is no merge, which the planner says
    own, first = (platform.lakehouse.table(name).schema() for name in (table, target.source))
    kinds = {
        name: str(schema.find_type(target.entity)) if target.entity in schema.column_names else None
        for name, schema in ((table, own), (target.source, first))
    }
    if kinds[table] is None or kinds[table] != kinds[target.source]:
        said = "has no column" if kinds[table] is None else f"has as {kinds[table]} the column"
        yield Problem(
            f"{table} {said} {target.entity}, and has changed since snapshot {since}",
            f"which entities of {target.name} have changed is told by that column, as {target.source} has it",
            "choose REPLACE_PARTITIONS, since any of them may have; or name the entities in the manifest instead (merge.entities)",
        )
        return
    yield from _of_appends(platform, target, table, since, until)


def _of_appends(
    platform: Platform, target: TargetTable, table: str, since: int, until: int | None
) -> Iterator[Problem]:
    """Say why nobody can tell what has come into a source since a snapshot, and of which entities."""
    if until is None or not {since, until} <= platform.lakehouse.history(table):
        return  # of a snapshot that is not there the planner says so
    entity = target.entity
    if entity is None or entity not in platform.lakehouse.table(table).schema().column_names:
        return  # which is refused by itself
    try:
        without = platform.lakehouse.files_with_nulls_since(table, since, until, entity)
    except InputRefused as refusal:
        yield Problem(
            refusal.problems[0].what,
            "what has changed since a snapshot is told from the files that came and went, and their rows",
            "name the entities in the manifest instead (merge.entities), or rewrite the source's files without such deletes",
        )
    else:
        if without:
            yield Problem(
                f"rows of {table} that came after snapshot {since} have no {entity}, or may have none, or those that went: {without[0]}"
                + (f" and {len(without) - 1:,} more files" if len(without) > 1 else ""),
                f"which entities of {target.name} have changed is told by that column, and such a row may be any entity's",
                "choose REPLACE_PARTITIONS; or name the entities in the manifest instead (merge.entities)",
            )
