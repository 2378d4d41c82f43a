"""What a commit says of itself in the summary of its snapshot, and how the snapshot is found again by that.

Put here the keys of publications, and looking a snapshot up by a key. The keys of loads, and what loads say besides, are
`loads`'s; the order of snapshots is `lineage`'s.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot

from resources.lakehouse.lineage import ancestors

RUN_PROPERTY = "backfill.run-id"
"""Snapshot summary key of the run that a publication belongs to."""
ACTION_PROPERTY = "backfill.action"
SPLIT = "split"
"""Action of a snapshot that has pieces in the place of files: the rows are the same."""
SEQUENCE_PROPERTY = "backfill.sequence"
"""Which of a run's changes to the table it is: a run may be rolled back, reinstated and rolled back again."""
PLAN_PROPERTY = "backfill.plan-hash"
EVIDENCE_PROPERTY = "backfill.evidence-root"
VERSION_PROPERTY = "backfill.transform-version"
MODE_PROPERTY = "backfill.processing-mode"
SOURCE_PROPERTY = "backfill.input-snapshot-id"
CLOCK_PROPERTY = "backfill.produced-at"
"""With the run's id and its transform's version, what the lineage columns of a row say; a table need not have those."""
DIFF_PROPERTY = "backfill.diff-id"
"""Snapshot summary key of a run's changed rows: the same ones are never put into the changes table twice."""


def summary_of(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the properties in the summary of a snapshot; none if it has no summary."""
    return snapshot.summary.additional_properties if snapshot.summary else {}


def leaves_rows(snapshot: Snapshot) -> bool:
    """Return whether a snapshot says that a run has written rows anew as they were: a compaction, or its undoing."""
    said = snapshot.summary
    return said is not None and said.operation is Operation.REPLACE and RUN_PROPERTY in said.additional_properties


def snapshot_with(
    table: Table,
    key: str,
    value: str,
    action: str | None = None,
    ref: str = MAIN_BRANCH,
    sequence: int | None = None,
) -> Snapshot | None:
    """Return the newest snapshot in the history of a ref whose summary has a property; None if there is none.

    With `action` and `sequence` only one that has those, too; a snapshot without a sequence number has any.
    """
    return next(each_with(table, key, value, action, ref, sequence), None)


def each_with(
    table: Table,
    key: str,
    value: str,
    action: str | None = None,
    ref: str = MAIN_BRANCH,
    sequence: int | None = None,
) -> Iterator[Snapshot]:
    """Yield every such snapshot, newest first: what one says of itself anybody can write."""
    for snapshot in ancestors(table, ref):
        properties = summary_of(snapshot)
        if properties.get(key) != value or (action is not None and properties.get(ACTION_PROPERTY) != action):
            continue
        if sequence is None or properties.get(SEQUENCE_PROPERTY) in {None, str(sequence)}:
            yield snapshot


def numbers_said(table: Table, run_id: str, actions: Collection[str]) -> set[tuple[int, str]]:
    """Return the numbers that snapshots of main say they are of a run's changes, each with its action; none that is no number."""
    found = set()
    for snapshot in each_with(table, RUN_PROPERTY, run_id):
        said = summary_of(snapshot)
        action, number = said.get(ACTION_PROPERTY), said.get(SEQUENCE_PROPERTY) or ""
        if action is not None and action in actions and re.fullmatch("[0-9]{1,9}", number):
            found.add((int(number), action))
    return found
