"""What a run changes: the rows readers have before it against those they have after it, by business key.

Put here which files are before and after, how what the workers have found becomes one summary, the table of changed
rows, and the record beside the evidence. What is done to the rows of one chunk is `worker.chunk_diff`'s; how it is
shown is `cli.diff_view`'s. Nothing that grows with the rows comes to this process.

Before is what the run's plan was made on. After is what readers have once it is published: of a merge the files that it
leaves and those that it puts there, of corrections the rows with the corrections applied, else the computed rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, ListType, NestedField, StringType

from backfill_assets import faults
from backfill_assets.declarations.schema import TABLE_PROPERTIES, dtypes, iceberg_schema, lineage_columns
from backfill_assets.declarations.target import TargetTable
from backfill_assets.evidence.diff_records import (
    ChangesTable,
    ChunkDiff,
    ColumnDiff,
    RunDiff,
    Within,
    diff_of,
    no_diff,
)
from backfill_assets.evidence.records import Record, records_of, vouched_for
from backfill_assets.gates.chunk_changes import Side, diff_id_of, sides_of
from backfill_assets.installation import Platform
from backfill_assets.planning.old_data import concealed
from backfill_assets.publication.modes import change_of
from backfill_assets.run_context import RunContext
from backfill_assets.worker.changed_rows import KINDS, CompareSpec, RowsKept, RowsOfAll, key_columns
from backfill_assets.worker.chunk_corrections import ADDED, CHANGED, REMOVED
from backfill_assets.worker.chunk_diff import PRODUCER, ChunkCompared, CompareTask, comparing
from backfill_assets.worker.sums import difference, total_of, value_columns
from manifests.canonical import plain
from manifests.chunks import in_words
from manifests.errors import EnvironmentRefused, InputRefused, Problem
from manifests.lifecycle import RunState
from manifests.staged_file import StagedFile
from manifests.text import visible
from resources.files import stores
from resources.lakehouse.facade import DIFF_PROPERTY, RUN_PROPERTY, local_path
from resources.lakehouse.storage import Storage, place_of
from resources.ledger.facade import STAGED, ChunkRecord, RunRecord, operator
from resources.spark.chunk_work import ThisProcess, Weighed

LARGEST, SAMPLE = 5, 1
"""How many rows are kept unless somebody asks for more; see `CompareSpec`."""
MOST_LARGEST, MOST_SAMPLED = 1_000, 100
"""How many may be asked for, as the options of `backfill diff` say."""
RECORD, TABLE_RECORD = "diff", "diff-table"
"""Names of the records beside the evidence; where a run was computed anew, later ones are numbered."""
_SAID = 300
_WAITING = frozenset({RunState.RUNNING, RunState.STAGED, RunState.FAILED, RunState.VALIDATED})


@dataclass(frozen=True)
class Made:
    """A diff, whether it was made now or is the recorded one, and its table, if its rows were put into one."""

    diff: RunDiff
    new: bool
    table: ChangesTable | None = None


def diff_run(
    platform: Platform, run_id: str, *, largest: int | None = None, sample: int | None = None, table: bool = False
) -> Made:
    """Compare the rows before and after a run whose every chunk is staged, and put the summary on record.

    What is on record is not made again, unless more rows are asked for than it has. With `table` the changed rows are put into the
    changes table, as one commit; safe to repeat.

    Raises:
        InputRefused: if the run is unknown or not staged whole, or files that it needs are gone; or if a diff of it is there
            that says something else and that no link vouches for.
    """
    record, chunks = _require_staged(platform, run_id)
    run = RunContext.of(platform, record)
    target = run.target
    recorded, written = recorded_diff(platform, run_id), _table_record(platform, run_id)
    sides = sides_of(platform, target, record, chunks)
    diff_id = diff_id_of(target, sides)
    same = recorded is not None and recorded.diff_id == diff_id
    has_table = written is not None and written.diff_id == diff_id
    if recorded is not None and same and (has_table or not table) and _holds(recorded, largest or 0, sample or 0):
        return Made(recorded, new=False, table=written if has_table else None)
    keep = (LARGEST if largest is None else largest, SAMPLE if sample is None else sample)
    if not same and (unlinked := unlinked_diff(platform, run_id, diff_id)) is not None:
        keep = (unlinked.kept["largest"], unlinked.kept["sample"])  # it is completed, if it says the same
    _require_files(run, sides)
    output = _changes_folder(run, diff_id) if table and not has_table else ""
    found, files = _compared(run, chunks, sides, diff_id, keep, output=output)
    if not same:
        _append(platform, run_id, RECORD, found)
    if output:
        written = _put(run, diff_id, files, output)
    return Made(found, new=True, table=written if has_table or output else None)


def diff_here(platform: Platform, run_id: str, *, like: RunDiff | None = None) -> RunDiff:
    """Compare the rows before and after a run in this process, one chunk after the other; nothing is put on record.

    Memory is one chunk's, as in a worker. It takes no Spark session, which a process that only publishes does not have. As
    many rows are kept as of the diff that it is to be `like`; else the usual number, and none of a table whose rows a policy
    has erased by subject: what is kept of each publication stays for ever, and nobody has asked for the rows.

    Raises:
        InputRefused: if the run is unknown or not staged whole, or files that it needs are gone.
    """
    record, chunks = _require_staged(platform, run_id)
    run = RunContext.of(platform, record)
    sides = sides_of(platform, run.target, record, chunks)
    _require_files(run, sides)
    keep = (0, 0) if concealed(run).subject else (LARGEST, SAMPLE)
    keep = keep if like is None else (like.kept["largest"], like.kept["sample"])
    with stores.opened_by(platform.lakehouse.access):
        return _compared(run, chunks, sides, diff_id_of(run.target, sides), keep, here=True)[0]


def _holds(recorded: RunDiff, largest: int, sample: int) -> bool:
    return recorded.kept["largest"] >= largest and recorded.kept["sample"] >= sample


def stale_chunks(platform: Platform, run_id: str) -> list[str]:
    """Return the chunks of an unpublished run that readers have other rows of by now than it was compared with."""
    record = platform.ledger.run(run_id)
    if record.state not in _WAITING or not record.plan.publishes:
        return []
    change = change_of(platform, record, platform.ledger.chunks(run_id))
    return change.strategy.conflicts(change)


def _what_helps(record: RunRecord) -> str:
    """Return what to do about a run that cannot be compared because not all of it is staged."""
    match record.state:
        case RunState.FAILED:
            return (
                f"see what is wrong: `backfill exceptions {record.run_id}` lists rows that break a rule, `backfill status "
                f"{record.run_id}` the rest; `backfill runbook {record.run_id}` has the next step"
            )
        case RunState.CANCELLED | RunState.REJECTED:
            return "it is over: plan the change anew, under a run id of its own"
        case RunState.PLANNED | RunState.DRAFT:
            return f"approve it first: `backfill approve {record.run_id}`; then `backfill run {record.run_id}`"
        case _:
            return f"compute them first: `backfill run {record.run_id}`"


def _require_staged(platform: Platform, run_id: str) -> tuple[RunRecord, list[ChunkRecord]]:
    record, chunks = platform.ledger.run(run_id), platform.ledger.chunks(run_id)
    open_chunks = [chunk.chunk for chunk in chunks if chunk.state not in STAGED]
    if open_chunks or len(chunks) != len(record.plan.chunks):
        raise InputRefused(
            Problem(
                f"run '{run_id}' is {record.state}; {len(open_chunks)} of {len(chunks)} chunks are not staged: {in_words(open_chunks)}",
                "a run is compared once all of it is staged",
                _what_helps(record),
            )
        )
    if record.plan.compaction is not None and any(one.deletes for one in record.plan.compaction.chunks):
        raise InputRefused(
            Problem(
                f"run '{run_id}' is a compaction, of chunks of which rows are deleted by files of their own",
                "a diff compares rows of files without deletes; what a compaction has written is held by its gate against every row "
                "that readers have, with the deletes on them",
                f"there is no other row to be shown: `backfill status {run_id}` says of each chunk what its gate has found",
            )
        )
    return record, chunks


def _require_files(run: RunContext, sides: Mapping[str, Side]) -> None:
    paths = {place_of(path) for side in sides.values() for path in (*side.old, *side.new, *side.both)}
    gone = sorted(paths - Storage(run.platform.lakehouse.table(run.target.name)).look(paths).keys())
    if gone:
        raise InputRefused(
            Problem(
                f"{len(gone)} file(s) of '{run.run_id}' or of what it replaces are gone: {gone[0]}",
                "what is compared can be read; `backfill gc` removes the files of runs that are over",
                "a diff that was made before is shown by `backfill diff RUN --recorded`",
            )
        )


def _compared(
    run: RunContext,
    chunks: Sequence[ChunkRecord],
    sides: Mapping[str, Side],
    diff_id: str,
    keep: tuple[int, int],
    *,
    output: str = "",
    here: bool = False,
) -> tuple[RunDiff, list[StagedFile]]:
    """Have every chunk compared, one task a chunk; no row is shuffled, since a key stays in its chunk.

    By Spark's workers, or `here`: by this process, one chunk after the other, without a Spark job.
    """
    platform, target, plan = run.platform, run.target, run.plan
    values = value_columns(tuple(dtypes(target.model)), target.key, lineage_columns(target.model))
    schema = changes_schema(target).model_dump_json() if output else ""
    hidden = concealed(run)
    table = platform.lakehouse.table(target.name).schema().model_dump_json()
    near = {name: float(one) for name, one in target.diff_tolerances.items()}
    spec = CompareSpec(plan.run_id, target.key, values, *keep, schema, hidden, table, near)
    by_chunk: dict[str, ChunkCompared] = {}
    kept = RowsKept(spec)
    workers = ThisProcess() if here else platform.workers
    for result in workers.do(plan.mode, comparing(spec), _tasks(chunks, sides, output)):
        if isinstance(result, RowsOfAll):
            kept.add(result.largest, result.sample)
        else:
            by_chunk[result.chunk] = result
    _require_read(plan.run_id, by_chunk)
    _require_unique(target, by_chunk)
    found = [_chunk_diff(by_chunk[key]) for key in sides]
    scheme = "file://" if output.startswith("file:") else ""
    files = [StagedFile(f"{scheme}{path}", rows, size) for key in sides for path, rows, size in by_chunk[key].files]
    diff = RunDiff(
        diff_id=diff_id,
        run_id=plan.run_id,
        target=target.name,
        publish_mode=plan.publish_mode.value,
        base_snapshot_id=plan.base_snapshot_id,
        key=list(target.key),
        added=sum(chunk.added for chunk in found),
        removed=sum(chunk.removed for chunk in found),
        changed=sum(chunk.changed for chunk in found),
        unchanged=sum(chunk.unchanged for chunk in found),
        columns=[_column_diff(name, found) for name in values],
        chunks=found,
        largest=[row for name in values for kind in reversed(KINDS) for row in kept.largest.get(f"{name}|{kind}", [])],
        sample=[_without_place(row) for row in sorted(kept.sample, key=_by_chunk)],
        kept={"largest": keep[0], "sample": keep[1]},
        made_at=plain(platform.ledger.now()),
        made_by=operator(),
        concealed=sum(result.concealed for result in by_chunk.values()),
        within=tuple(
            Within(name, str(near[name]), sum(one.near.get(name, 0) for one in by_chunk.values()))
            for name in sorted(near)
        ),
        within_rows=sum(result.near_rows for result in by_chunk.values()),
    )
    return diff, files


def _tasks(chunks: Sequence[ChunkRecord], sides: Mapping[str, Side], output: str) -> list[Weighed[CompareTask]]:
    """Return the task of each chunk, with its rows."""
    weights = {chunk.chunk: chunk.rows or 0 for chunk in chunks}
    tasks = []
    for key, side in sides.items():
        old, new, both = (tuple(map(local_path, paths)) for paths in (side.old, side.new, side.both))
        tasks.append((CompareTask(key, old, new, both, local_path(output)), weights[key]))
    return tasks


def _by_chunk(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return row["chunk"], KINDS.index(row["kind"]), row["rank"]


def _without_place(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sampled row without what it was chosen by."""
    return {name: value for name, value in row.items() if name not in {"hash", "rank"}}


def _require_read(run_id: str, by_chunk: Mapping[str, ChunkCompared]) -> None:
    if unread := [result.unread for result in by_chunk.values() if result.unread]:
        raise EnvironmentRefused(
            Problem(
                f"files of {len(unread)} chunk(s) of '{run_id}' could not be read just now: {visible(unread[0])[:_SAID]}",
                "a file that cannot be read says nothing about its rows",
                "nothing was compared; run the same command again; if it stays so, see `backfill doctor`",
            )
        )
    if damaged := [result.unreadable for result in by_chunk.values() if result.unreadable]:
        raise InputRefused(
            Problem(
                f"{len(damaged)} file(s) of '{run_id}' or of what it replaces cannot be read: {visible(damaged[0])[:_SAID]}",
                "what is compared can be read",
                "`backfill doctor` and `backfill verify --data` say what else is damaged; restore the file from a backup",
            )
        )


def _require_unique(target: TargetTable, by_chunk: Mapping[str, ChunkCompared]) -> None:
    doubled = [key for key, result in by_chunk.items() if result.duplicates]
    if doubled:
        raise InputRefused(
            Problem(
                f"{len(doubled)} chunk(s) of {target.name} have a key more than once: {in_words(doubled)}",
                f"rows are compared by their key ({', '.join(target.key)}), which is unique",
                "find out who wrote them: publications of this project are gated for it",
            )
        )


def _chunk_diff(result: ChunkCompared) -> ChunkDiff:
    kinds = result.kinds
    columns = {name: number for name, number in result.columns.items() if number}
    return ChunkDiff(result.chunk, kinds[ADDED], kinds[REMOVED], kinds[CHANGED], result.unchanged, columns, result.sums)


def _column_diff(name: str, chunks: Sequence[ChunkDiff]) -> ColumnDiff:
    changed = sum(chunk.columns.get(name, 0) for chunk in chunks)
    sums = [chunk.sums[name] for chunk in chunks if name in chunk.sums]
    if not sums:
        return ColumnDiff(name, changed)
    before, after = (str(total_of(pair[side] for pair in sums)) for side in (0, 1))
    return ColumnDiff(name, changed, before, after, difference(before, after))


# --- the changes table ------------------------------------------------------------------------------------------------


def changes_schema(target: TargetTable) -> Schema:
    """Return the Iceberg schema of a target's changes table: a row a changed key, each value before and after."""
    declared = {field.name: field for field in iceberg_schema(target.model).fields}
    values = value_columns(tuple(declared), target.key, lineage_columns(target.model))
    keys = key_columns(target.key, values)
    columns: list[tuple[str, IcebergType, str]] = [
        ("run_id", StringType(), "Run that changes the row."),
        ("chunk", StringType(), "Chunk that the row is in."),
        ("kind", StringType(), "ADDED, REMOVED or CHANGED."),
        ("changed_columns", StringType(), "Of a CHANGED row: the columns that differ."),
        *((own, declared[name].field_type, declared[name].doc or "") for name, own in keys.items()),
        *((f"{name}_old", declared[name].field_type, f"Before: {declared[name].doc or ''}") for name in values),
        *((f"{name}_new", declared[name].field_type, f"After: {declared[name].doc or ''}") for name in values),
        (f"{PRODUCER}_old", StringType(), "Run that wrote the row before."),
    ]
    fields = []
    for number, (name, kind, doc) in enumerate(columns, start=1):
        text = kind
        if name == "changed_columns":
            text = ListType(element_id=len(columns) + 1, element_type=kind, element_required=False)
        fields.append(NestedField(number, name, text, required=False, doc=doc))
    return assign_fresh_schema_ids(Schema(*fields))  # what is inside a value before and after has an id each


def _changes_folder(run: RunContext, diff_id: str) -> str:
    """Make the changes table if it is not there; return where the files of a diff lie, whoever writes them."""
    lakehouse, name = run.platform.lakehouse, run.target.changes
    schema = changes_schema(run.target)
    by_run = PartitionSpec(PartitionField(schema.find_field("run_id").field_id, 1000, IdentityTransform(), "run_id"))
    lakehouse.ensure(name, schema, by_run, TABLE_PROPERTIES)
    return f"{lakehouse.location(name)}/run={run.run_id}/diff-{diff_id[:16]}"


def _put(run: RunContext, diff_id: str, files: Sequence[StagedFile], output: str) -> ChangesTable:
    """Put the changed rows into the table, or find that they are there, and put that on record."""
    lakehouse, run_id, name = run.platform.lakehouse, run.run_id, run.target.changes
    faults.reach("comparing.written")
    properties = {RUN_PROPERTY: run_id, DIFF_PROPERTY: diff_id}
    landed = lakehouse.put_rows(name, EqualTo(term="run_id", value=run_id), files, properties)
    faults.reach("comparing.committed")
    storage, mine = Storage(lakehouse.table(name)), {place_of(file.path) for file in files}
    for file in storage.files(place_of(output)):  # what a killed one has left half written
        if file.path not in mine:
            storage.delete(file)
    written = ChangesTable(name, landed, sum(file.rows for file in files), len(files), diff_id)
    _append(run.platform, run_id, TABLE_RECORD, written)
    return written


# --- the record -------------------------------------------------------------------------------------------------------


def diff_summary(platform: Platform, run_id: str) -> Mapping[str, Any] | None:
    """Return the recorded diff of a run (its last one, where it was computed anew), ready for JSON; None if none was made.

    `changes_table` says where its rows are, if they were put into the table.
    """
    found = _last_record(platform, run_id, RECORD)
    if found is None:
        return None
    written = _last_record(platform, run_id, TABLE_RECORD)
    has_table = written is not None and written["diff_id"] == found["diff_id"]
    return {**found, **({"changes_table": written} if has_table else {})}


def recorded_diff(platform: Platform, run_id: str) -> RunDiff | None:
    """Return the recorded diff of a run, or None; one that no link vouches for is none."""
    found = _last_record(platform, run_id, RECORD)
    return None if found is None else diff_of(found)


def unlinked_diff(platform: Platform, run_id: str, diff_id: str) -> RunDiff | None:
    """Return what is there under the name of a recorded diff and has no link: its process ended before it, or it was planted."""
    for one in _unlinked(platform, run_id, RECORD, diff_id):
        try:
            found = diff_of(one.content)
            if 0 <= found.kept["largest"] <= MOST_LARGEST and 0 <= found.kept["sample"] <= MOST_SAMPLED:
                return found
        except ValueError:
            continue  # it has not the form of a diff: no diff says the same
    return None


def recorded(platform: Platform, run_id: str) -> Made | None:
    """Return what is on record of a run's diff, or None; reads no rows and no table."""
    found, written = recorded_diff(platform, run_id), _table_record(platform, run_id)
    if found is None:
        return None
    return Made(found, new=False, table=written if written and written.diff_id == found.diff_id else None)


def _table_record(platform: Platform, run_id: str) -> ChangesTable | None:
    found = _last_record(platform, run_id, TABLE_RECORD)
    return None if found is None else ChangesTable(**found)


def put_diff(platform: Platform, diff: RunDiff) -> None:
    """Put a diff on record, if it is not: one of other files than the last one's gets a record of its own.

    One whose process ended before its link gets it now, if it says the same.

    Raises:
        InputRefused: if a record is there that says something else, and that no link vouches for.
    """
    _append(platform, diff.run_id, RECORD, diff)


def _append(platform: Platform, run_id: str, name: str, content: RunDiff | ChangesTable) -> None:
    """Add a record; one of another diff of the same run gets the next number."""
    if (_last_record(platform, run_id, name) or {}).get("diff_id") == content.diff_id:
        return
    for one in _unlinked(platform, run_id, name, content.diff_id):
        file = platform.evidence.records(run_id) / f"{one.name}.json"
        if _findings(one.content) != _findings(plain(content)):
            raise InputRefused(
                Problem(
                    f"{file} says something else than the rows of '{run_id}' do, and no link vouches for it",
                    "a diff on record is what the rows say",
                    f"`backfill verify {run_id}` names it; move it out of the folder, keep it, and find out who has put it there",
                )
            )
        platform.evidence.vouch_for(run_id, file)
        return
    number = max((number for number, *_ in _named(platform, run_id, name)), default=0) + 1
    platform.evidence.append(run_id, name if number == 1 else f"{name}-{number}", plain(content))


def _findings(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record has found, whoever made it and when."""
    return {name: value for name, value in said.items() if name not in {"made_at", "made_by"}}


def _last_record(platform: Platform, run_id: str, name: str) -> Mapping[str, Any] | None:
    """Return the last record of that name that the chain vouches for, or None."""
    named = _named(platform, run_id, name)
    found = {number: one for number, one, is_vouched in named if is_vouched and not no_diff(one.name, one.content)}
    return found[max(found)].content if found else None


def _unlinked(platform: Platform, run_id: str, name: str, diff_id: str) -> list[Record]:
    """Return the records of a diff that nothing vouches for."""
    named = _named(platform, run_id, name)
    return [one for _, one, is_vouched in named if not is_vouched and one.content.get("diff_id") == diff_id]


def _named(platform: Platform, run_id: str, name: str) -> list[tuple[int, Record, bool]]:
    """Return number and content of each record of that name, and whether the chain vouches for it."""
    records = records_of(platform, run_id)
    vouched = vouched_for(platform, run_id, records)
    numbered = ((re.fullmatch(rf"{name}(?:-(\d+))?", one.name), one) for one in records)
    return [(int(found[1] or 1), one, one in vouched) for found, one in numbered if found is not None]
