"""Looks at a table's metadata: whose snapshots it has, its columns, and how others open its files.

Put here what can be said of a table without a run. What a run has changed in it is `publications`', its files are
`damaged_files`' and `accepted_files`'.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table.snapshots import Snapshot

from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.evidence.split_records import splits_on_record
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement, table_missing
from backfill_assets.operations.doctor.views import TableView, properties_of
from manifests.errors import InputRefused
from manifests.text import visible
from resources.lakehouse.declared_tables import column_problems
from resources.lakehouse.facade import ACTION_PROPERTY, RUN_PROPERTY
from resources.lakehouse.fences import fence_of, fenced_in
from resources.lakehouse.lookups import changed_by
from resources.lakehouse.metadata import committed_at
from resources.lakehouse.snapshots import redirected_access
from resources.lakehouse.summaries import SPLIT


def columns_that_differ(view: TableView) -> Iterator[Disagreement]:
    """Hold the columns of a table against the model that declares them: no run can be planned where they differ."""
    corrections = view.target.corrections
    model = corrections.model if corrections is not None and view.name == corrections.name else view.target.model
    for one in column_problems(view.table, iceberg_schema(model)):
        yield Disagreement("columns-differ", view.name, one.what, Confidence.CERTAIN, one.fix)


def input_columns_that_differ(platform: Platform, table: InputTable) -> Iterator[Disagreement]:
    """Hold the columns of an input table against its model: where they differ it takes no loads.

    No plan may read one that lacks a column or has one of another type; what it has besides is no matter to plans.
    """
    try:
        found = platform.lakehouse.table(table.name)
    except InputRefused as refusal:
        yield table_missing(table.name, refusal)
        return
    for one in column_problems(found, iceberg_schema(table.model)):
        yield Disagreement("columns-differ", table.name, one.what, Confidence.CERTAIN, one.fix)


def redirected_file_access(view: TableView) -> Iterator[Disagreement]:
    """Find properties by which others open a table's files otherwise than this project: they may read something else."""
    if found := redirected_access(view.table):
        yield Disagreement(
            "file-access-redirected",
            view.name,
            f"its metadata says how its files are opened ({', '.join(map(visible, found))}): other programs that go by it may "
            "read other bytes, or run other code; this project goes by the catalog's properties alone",
            Confidence.CERTAIN,
            "find out who has set them, put what is meant into the properties of the catalog, and remove them from the table",
        )


def planted_fences(platform: Platform, name: str) -> Iterator[Disagreement]:
    """Find fences of leases that the ledger has never given: they will keep out whoever gets the lease of that number."""
    given = platform.ledger.repairs.newest_token()
    for token in sorted(fenced_in(platform.lakehouse.table(name)) if platform.lakehouse.exists(name) else ()):
        if token <= given:
            continue
        yield Disagreement(
            "fence-unknown",
            f"{name} tag {fence_of(token)}",
            f"it fences lease {token}, which this ledger has not given yet: the publisher who gets that lease will be kept out",
            Confidence.CERTAIN,
            "restore the ledger that has given it; or, once no process of another ledger can still be at the table, remove the tag",
        )


def foreign_snapshots(view: TableView) -> Iterator[Disagreement]:
    """Find snapshots that no run of this ledger made, since the first that one made: what a table held before is not ours."""
    for snapshot in _since_adopted(view):
        run_id = properties_of(snapshot).get(RUN_PROPERTY)
        if run_id in view.known or _is_split(view, snapshot):
            continue
        when = committed_at(view.table, snapshot).isoformat(timespec="seconds")
        what = "by no known run" if run_id is None else f"by run '{run_id}', which the ledger does not know"
        yield Disagreement(
            "foreign-write" if run_id is None else "unknown-run",
            f"{view.name} snapshot {snapshot.snapshot_id}",
            f"written at {when} {what}",
            Confidence.CERTAIN,
            "find out who writes past this project; a restatement of what it touched makes the table a run's again"
            if run_id is None
            else "restore the ledger that knows the run, or find out whose installation shares this table",
        )


def _is_split(view: TableView, snapshot: Snapshot) -> bool:
    """Whether a snapshot is that of a split, by what it has exchanged: what it says of itself any program can say."""
    if properties_of(snapshot).get(ACTION_PROPERTY) != SPLIT:
        return False
    evidence = view.platform.evidence
    came, went = changed_by(view.table, snapshot)
    return (frozenset(came), frozenset(went)) in splits_on_record(evidence, evidence.chain.contents(), view.table)


def _since_adopted(view: TableView) -> list[Snapshot]:
    """Return the history of a table from the first snapshot on that a known run has made; all of it where there is none."""
    own = [one for one in view.history if properties_of(one).get(RUN_PROPERTY) in view.known]
    if not own:
        return list(view.history)
    first = min(one.sequence_number or 0 for one in own)
    return [one for one in view.history if (one.sequence_number or 0) >= first]
