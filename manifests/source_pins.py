"""At which snapshots a manifest has the sources beside the first read, and since which a merge takes their rows for changed.

Put here the fields of a manifest that name a snapshot of a further source. Which one is pinned where it names none is the
planner's; what a plan keeps of it, `further_sources`'.
"""

from __future__ import annotations

from manifests.fields import Part, SnapshotId, TableName


class FurtherPin(Part):
    """At which snapshot a source beside the first is read; without it the planner pins the current one."""

    table: TableName
    snapshot_id: SnapshotId


class ChangedSource(Part):
    """Since which snapshot of a source beside the first rows count as changed."""

    table: TableName
    changed_since: SnapshotId
