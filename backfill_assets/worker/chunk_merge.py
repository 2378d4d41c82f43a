"""What is published instead of a chunk's own rows: copies of files with merged rows (or correction events, see `chunk_corrections`).

Put here what is done, in Spark's workers, to one chunk's computed rows and the rows readers see today. Where the
computed rows come from is `staging.compute`'s; what is sent here, and what the answers mean, is `staging.derivation`'s.
`judging_merges` reads back what `merge` wrote and trusts nothing of the merge itself. Imports neither Dagster nor PySpark's SQL.

Memory is one file of today's rows and one chunk's computed rows for a merge; for corrections both of one chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import polars as pl

from backfill_assets.declarations.schema import LINEAGE_COLUMNS
from backfill_assets.declarations.tallies import Tally
from backfill_assets.worker.chunk_corrections import CorrectionSpec, correct
from backfill_assets.worker.chunk_gate import merged_measures
from backfill_assets.worker.chunk_rules import PARTITION_RULE
from backfill_assets.worker.columns import scan_file
from backfill_assets.worker.derive_tasks import Derived, DeriveTask
from backfill_assets.worker.derived_files import (
    ONE_PARTITION,
    Partition,
    PartitionedBy,
    Unreadable,
    by_partition,
    misplaced,
    read,
    read_whole,
    reading,
    rows_of,
    write,
)
from backfill_assets.worker.key_order import by_key, rows_between
from backfill_assets.worker.merge_decisions import HELD, LIVE_RULE, Terms, ambiguous_rows, counts_of, decided, held
from backfill_assets.worker.nested import in_one_form
from backfill_assets.worker.references import imported_by_path
from backfill_assets.worker.sums import added, as_text, sums_of, value_columns
from backfill_assets.worker.tallying import Counted
from backfill_assets.worker.violations import Violation, shown_row
from manifests.canonical import plain
from manifests.model import OlderVersion
from resources.files import stores
from resources.files.fingerprints import Fingerprint
from resources.spark.chunk_work import ChunkWork

OLDER_RULE = (
    "no version goes backwards (merge.onOlderVersion: OVERWRITE takes the computed row, KEEP the published one)"
)
TIE_RULE = "one version says one thing"
UNTOUCHED_RULE = "rows of other entities are as they were"
MERGED_RULE = "rows of the merged entities are the computed ones"
MERGED_KEY_RULE = "unique key after the merge"
ISSUED_RULE = "a correction is issued once"
_SAMPLE = 5
_LISTED = 100


@dataclass(frozen=True)
class MergeSpec:
    """How rows are merged: `schema` is the target's Iceberg schema as JSON; the rest as the plan has it.

    `lineage` are the columns that say whose a row is, and nothing of what it says. `by` is how files of the target are partitioned.
    `terms` are those under which history meets LIVE; None where the target declares no policy of it.
    `deletes_at` is the version of a deletion where `version_column` is the run clock's column, else None: it always wins.
    """

    schema: str
    key: tuple[str, ...]
    entity: str
    version_column: str
    on_older_version: OlderVersion
    run_id: str
    deletes_at: Any = None
    lineage: tuple[str, ...] = LINEAGE_COLUMNS
    by: PartitionedBy = ONE_PARTITION
    terms: Terms | None = None


@dataclass(frozen=True)
class MergedTask:
    """One merged chunk: what it was made of, all files that readers would see of it, and which of them are its own."""

    derived: DeriveTask
    merged: tuple[str, ...]
    own: tuple[str, ...]

    @property
    def chunk(self) -> str:
        """The chunk's key."""
        return self.derived.chunk


@dataclass(frozen=True)
class JudgedMerge:
    """What is wrong with a merged chunk: a few rows by broken rule; and its measures, as readers would see it.

    `visible` are its rows and the sums of its number columns; `hashes` are those of its own files, by path; `tallies` what the
    target's gates have counted, as readers would see it; `ambiguous` some keys that the merge policy decides nothing about.
    """

    chunk: str
    broken: dict[str, list[dict[str, Any]]]
    slices: list[dict[str, Any]]
    visible: dict[str, Any]
    hashes: dict[str, Fingerprint]
    tallies: dict[str, Any] = field(default_factory=dict)
    ambiguous: list[dict[str, Any]] = field(default_factory=list)


# --- merge ------------------------------------------------------------------------------------------------------------


def merge(spec: MergeSpec, task: DeriveTask) -> Derived:
    """Copy each file that holds rows of a merged entity, with the computed rows in their place.

    A computed row goes into the last such file of its partition that begins at or before it; where no file of its partition holds
    the entities the rows get a file of their own. A file without a row of a merged entity is not read beyond a few columns.
    """
    entities = read(task.entities)
    computed = rows_of(task.computed)
    touched = _touched(spec, task.base, entities)
    derived = Derived(task.chunk, [], [one.path for one in touched])
    counts = {"replaced": 0, "deleted": 0, "kept_newer": 0, "inserted": 0}
    stays: pl.DataFrame | None = None
    if spec.terms is not None:
        counts |= dict.fromkeys(HELD, 0)
        decisions = _decisions(spec, [read(path, spec.schema) for path in derived.replaced], entities, computed)
        if decisions is not None:
            stays = held(decisions, spec.key)
            computed = _without(spec, computed, stays)
            counts |= counts_of(decisions)
    fresh = computed
    if computed is not None and (newer := _newer_keys(spec, derived.replaced, entities, computed)) is not None:
        fresh = computed.join(newer, on=spec.key, how="anti")
    mine, without_file = _placed(spec, fresh, touched)
    matched = 0
    for one in touched:
        base = read(one.path, spec.schema)
        rest, old = _parted(spec, base, entities)
        if stays is not None:
            held_rows = old.join(stays, on=spec.key, how="semi", nulls_equal=True)
            rest, old = pl.concat([rest, held_rows]), old.join(stays, on=spec.key, how="anti", nulls_equal=True)
        kept = _newer(spec, old, computed)
        found = 0 if computed is None else old.join(computed.select(spec.key), on=spec.key, how="semi").height
        matched += found
        counts["replaced"] += found
        counts["deleted"] += old.height - found
        counts["kept_newer"] += kept.height
        merged = pl.concat([frame.select(base.columns) for frame in (rest, kept, *mine[one.path])]).sort(spec.key)
        derived.files.extend(write(merged, spec.schema, spec.by, task.output))
    for rows in without_file:
        derived.files.extend(write(rows, spec.schema, spec.by, task.output))
    counts["inserted"] = (0 if computed is None else computed.height) - matched
    derived.counts.update(counts)
    return derived


def _decisions(
    spec: MergeSpec, base: Sequence[pl.DataFrame], entities: pl.DataFrame, computed: pl.DataFrame | None
) -> pl.DataFrame | None:
    """Return what the merge policy says of each key; None where there are rows on neither side, or no policy."""
    known = computed if computed is not None else next((frame for frame in base), None)
    if spec.terms is None or known is None:
        return None
    today = [frame.select(known.columns).join(entities, on=spec.entity, how="semi") for frame in base]
    today_rows = pl.concat([known.clear(), *today])
    return decided(spec.terms, spec.key, spec.version_column, spec.lineage, today_rows, computed)


def _without(spec: MergeSpec, rows: pl.DataFrame | None, keys: pl.DataFrame) -> pl.DataFrame | None:
    return None if rows is None else rows.join(keys, on=spec.key, how="anti", nulls_equal=True)


@dataclass(frozen=True)
class _Touched:
    """A file of today with rows of a merged entity: its first key, and the partitions that its rows lie in by the spec of today."""

    first: tuple[Any, ...]
    path: str
    partitions: frozenset[Partition]


def _touched(spec: MergeSpec, paths: Sequence[str], entities: pl.DataFrame) -> list[_Touched]:
    """Return the files that hold rows of merged entities, in the order of their first keys."""
    found = []
    columns = list(dict.fromkeys((*spec.key, *(column for column, _ in spec.by.parts))))
    for path in paths:
        with reading(path):
            scan = scan_file(path, spec.schema, [spec.entity])
            if not scan.join(entities.lazy(), on=spec.entity, how="semi").head(1).collect().height:
                continue
            rows = scan_file(path, spec.schema, columns)
            first = rows.select(spec.key).head(1).collect().row(0)
            partitions = by_partition(rows.collect(), spec.schema, spec.by) if spec.by.parts else ((),)
            found.append(_Touched(first, path, frozenset(partitions)))
    return sorted(found, key=lambda one: (one.first, one.path))


def _placed(
    spec: MergeSpec, computed: pl.DataFrame | None, touched: Sequence[_Touched]
) -> tuple[dict[str, list[pl.DataFrame]], list[pl.DataFrame]]:
    """Return the computed rows that go into each touched file, and those of partitions of which no file is touched."""
    mine: dict[str, list[pl.DataFrame]] = {one.path: [] for one in touched}
    without_file = []
    parted = (
        {} if computed is None or not computed.height else by_partition(computed.sort(spec.key), spec.schema, spec.by)
    )
    for partition, rows in parted.items():
        homes = [one for one in touched if partition in one.partitions]
        if not homes:
            without_file.append(rows)
        for number, one in enumerate(homes):
            begins = one.first if number else None
            ends = homes[number + 1].first if number + 1 < len(homes) else None
            mine[one.path].append(rows_between(rows, spec.key, begins, ends))
    return mine, without_file


def _parted(spec: MergeSpec, rows: pl.DataFrame, entities: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of other entities, and those of the merged ones, each in the order they have.

    A row without an entity is of no merged one: Polars answers NULL for it, and a filter would drop it from both.
    """
    merged = rows[spec.entity].is_in(entities[spec.entity].implode()).fill_null(value=False)
    return rows.filter(~merged), rows.filter(merged)


def _newer_keys(
    spec: MergeSpec, paths: Sequence[str], entities: pl.DataFrame, computed: pl.DataFrame | None
) -> pl.DataFrame | None:
    """Return the keys of today's rows that win over computed ones; None where none can."""
    if spec.on_older_version is not OlderVersion.KEEP or not paths:
        return None
    columns = [*spec.key, spec.version_column]
    today = (read(path, spec.schema, [*{*columns, spec.entity}]) for path in paths)
    old = (frame.join(entities, on=spec.entity, how="semi") for frame in today)
    return pl.concat([_newer(spec, frame, computed).select(spec.key) for frame in old])


def _newer(spec: MergeSpec, old: pl.DataFrame, computed: pl.DataFrame | None) -> pl.DataFrame:
    """Return the rows of today that are newer than what would take their place, if those win."""
    if spec.on_older_version is not OlderVersion.KEEP:
        return old.clear()
    return _compared(spec, old, computed).filter(pl.col("_version") < pl.col(spec.version_column)).select(old.columns)


def _compared(spec: MergeSpec, old: pl.DataFrame, computed: pl.DataFrame | None) -> pl.DataFrame:
    """Return today's rows with the version that would take their place: the computed row's, or the deletion's."""
    kind = old.schema[spec.version_column]
    deletes_at = pl.lit(spec.deletes_at).cast(kind)
    if computed is None:
        return old.with_columns(_version=deletes_at)
    versions = computed.select(*spec.key, pl.col(spec.version_column).alias("_version"))
    return old.join(versions, on=spec.key, how="left").with_columns(_version=pl.coalesce("_version", deletes_at))


def merge_violations(spec: MergeSpec, task: DeriveTask, merged: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Read everything back and return, by broken rule, a few of the rows that break it.

    Raises:
        Unreadable: naming the first file that cannot be read.
    """
    return _violations(spec, task, [read(path, spec.schema) for path in merged])


def _violations(spec: MergeSpec, task: DeriveTask, merged: Sequence[pl.DataFrame]) -> dict[str, list[dict[str, Any]]]:
    """Hold the rows that readers would see against what they were made of."""
    entities = read(task.entities)
    computed = rows_of(task.computed)
    computed = None if computed is None else in_one_form(computed)
    before = [in_one_form(read(path, spec.schema)) for path in task.base]
    return _broken(spec, entities, computed, before, list(map(in_one_form, merged)))


def _broken(
    spec: MergeSpec,
    entities: pl.DataFrame,
    computed: pl.DataFrame | None,
    before: Sequence[pl.DataFrame],
    after: Sequence[pl.DataFrame],
) -> dict[str, list[dict[str, Any]]]:
    broken: dict[str, list[dict[str, Any]]] = {}

    def require(rule: str, wrong: pl.DataFrame) -> None:
        if wrong.height:
            broken[rule] = [shown_row(row) for row in wrong.head(_SAMPLE).to_dicts()]

    others, old = _all_sides(spec, before, entities)
    others_after, mine = _all_sides(spec, after, entities)
    wrong = _misplaced(before, others, old) or _misplaced(after, others_after, mine) or _differ(others, others_after)
    if wrong:
        broken[UNTOUCHED_RULE] = [wrong]
    if len(after) != 1 or not by_key(after[0], spec.key)[1]:
        keys = pl.concat([frame.select(spec.key) for frame in after]) if after else pl.DataFrame()
        if keys.height:
            require(MERGED_KEY_RULE, keys.filter(keys.is_duplicated()))
    known = computed if computed is not None else next((frame.clear() for frame in (*before, *after)), None)
    if known is None:
        return broken
    decisions = _decisions(spec, before, entities, computed)
    stay, old, computed, lost = _held_back(spec, decisions, known.clear(), old, computed)
    require(LIVE_RULE, lost)
    known = _or_none(computed, known)
    kept = pl.concat([known.clear(), *(_newer(spec, frame, computed).select(known.columns) for frame in old)])
    wanted = pl.concat([known.join(kept.select(spec.key), on=spec.key, how="anti"), kept, stay])
    found = pl.concat([known.clear(), *(frame.select(known.columns) for frame in mine)])
    require(MERGED_RULE, wanted.join(found, on=known.columns, how="anti", nulls_equal=True).select(spec.key))
    require(MERGED_RULE, found.join(wanted, on=known.columns, how="anti", nulls_equal=True).select(spec.key))
    for frame in old:
        compared = _compared(spec, frame, computed)
        version = pl.col(spec.version_column)
        if spec.on_older_version is OlderVersion.REFUSE:
            require(OLDER_RULE, compared.filter(pl.col("_version") < version).select(*spec.key, version, "_version"))
        if computed is not None:
            same = (*spec.key, spec.version_column, *spec.lineage)
            values = [name for name in frame.columns if name not in same]
            ties = frame.join(computed, on=[*spec.key, spec.version_column], how="inner", suffix="_computed")
            differ = pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_computed")) for name in values)
            require(TIE_RULE, ties.filter(differ).select(*spec.key, version))
    return broken


def _held_back(
    spec: MergeSpec,
    decisions: pl.DataFrame | None,
    none: pl.DataFrame,
    old: list[pl.DataFrame],
    computed: pl.DataFrame | None,
) -> tuple[pl.DataFrame, list[pl.DataFrame], pl.DataFrame | None, pl.DataFrame]:
    """Return the rows of today that the merge policy has stay, both sides without what it decides, and LIVE's rows that are lost."""
    if decisions is None:
        return none, old, computed, none.select(spec.key)
    keys = held(decisions, spec.key)
    stay = [one.join(keys, on=spec.key, how="semi", nulls_equal=True).select(none.columns) for one in old]
    rest = [one.join(keys, on=spec.key, how="anti", nulls_equal=True) for one in old]
    lost = decisions.filter("overrides_live").select(*spec.key)
    return pl.concat([none, *stay]), rest, _without(spec, computed, keys), lost


def _or_none(rows: pl.DataFrame | None, like: pl.DataFrame) -> pl.DataFrame:
    return like.clear() if rows is None else rows


def _sides(spec: MergeSpec, rows: pl.DataFrame, entities: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of other entities, and those of the merged ones, as the judge tells them apart.

    By joins, and not as the merge itself does it: one mistake must not be made on both sides of a comparison.
    """
    return rows.join(entities, on=spec.entity, how="anti"), rows.join(entities, on=spec.entity, how="semi")


def _all_sides(
    spec: MergeSpec, frames: Sequence[pl.DataFrame], entities: pl.DataFrame
) -> tuple[list[pl.DataFrame], list[pl.DataFrame]]:
    sides = [_sides(spec, frame, entities) for frame in frames]
    return [rest for rest, _ in sides], [merged for _, merged in sides]


def _misplaced(
    whole: Sequence[pl.DataFrame], others: Sequence[pl.DataFrame], merged: Sequence[pl.DataFrame]
) -> dict[str, int]:
    """Count rows, if some are on no side or on both: what is on no side would be compared with nothing."""
    rows, of_others, of_merged = (sum(map(len, frames)) for frames in (whole, others, merged))
    found = {"rows": rows, "of merged entities": of_merged, "of others": of_others}
    return {} if rows == of_others + of_merged else found


def _differ(before: Sequence[pl.DataFrame], after: Sequence[pl.DataFrame]) -> dict[str, int]:
    """Count the rows of two sets of files, if they do not hold the same ones: in the same order, as a rule, else in any."""
    if len(before) == len(after) and all(
        one.select(sorted(one.columns)).equals(other.select(sorted(other.columns)))
        for one, other in zip(before, after, strict=True)
    ):
        return {}
    same = sum(map(_fingerprint, before)) == sum(map(_fingerprint, after))
    return {} if same else {"rows before": sum(map(len, before)), "after": sum(map(len, after))}


def _fingerprint(frame: pl.DataFrame) -> int:
    """Return a sum over the hashes of rows: equal for equal rows in any order, within one process."""
    if not frame.height:
        return 0
    halves = pl.DataFrame({"hash": frame.hash_rows()}).select(
        high=(pl.col("hash") // 2**32).sum(), low=(pl.col("hash") % 2**32).sum()
    )
    high, low = halves.row(0)
    return int(high) * 2**64 + int(low) + frame.height * 2**128


# --- in workers --------------------------------------------------------------------------------------------------------


def deriving(spec: MergeSpec | CorrectionSpec) -> ChunkWork[DeriveTask, Derived | Violation]:
    """Return the work of deriving chunks; of one of which a file cannot be read the result is that violation."""
    return ChunkWork(partial(_derive, spec), DeriveTask, Derived | Violation)


def _derive(spec: MergeSpec | CorrectionSpec, tasks: Iterable[DeriveTask]) -> Iterator[Derived | Violation]:
    for task in tasks:
        try:
            with stores.each_read_once():
                found: Derived | Violation = merge(spec, task) if isinstance(spec, MergeSpec) else correct(spec, task)
        except Unreadable as error:
            found = error.violation
        yield found


def judging_merges(
    spec: MergeSpec, measure: str | None, tallies: Sequence[Tally] = ()
) -> ChunkWork[MergedTask, JudgedMerge]:
    """Return the work of judging merged chunks, and measuring them as readers would see them."""
    return ChunkWork(partial(_judge_merges, spec, measure, tuple(tallies)), MergedTask, JudgedMerge)


def _in_several_partitions(spec: MergeSpec, own: Iterable[pl.DataFrame]) -> dict[str, list[dict[str, Any]]]:
    """Return which of the files of a merge have rows of several partitions, by the rule that each lies in one."""
    if not spec.by.parts:
        return {}
    found = [one for rows in own for one in misplaced(rows, spec.schema, spec.by)]
    return {PARTITION_RULE: found[:_SAMPLE]} if found else {}


def _judge_merges(
    spec: MergeSpec, measure: str | None, tallies: Sequence[Tally], tasks: Iterable[MergedTask]
) -> Iterator[JudgedMerge]:
    for task in tasks:
        with stores.each_read_once():
            judged = _judge_merge(spec, measure, tallies, task)
        yield judged


def _judge_merge(spec: MergeSpec, measure: str | None, tallies: Sequence[Tally], task: MergedTask) -> JudgedMerge:
    """Judge a chunk; each of its own files is read once, and its hash is that of the very bytes that are judged."""
    counted = Counted(tallies)
    after: dict[str, pl.DataFrame] = {}
    hashes: dict[str, Fingerprint] = {}
    try:
        for path in task.own:
            after[path], hashes[path] = read_whole(path, spec.schema)
        merged = [after[path] if path in after else read(path, spec.schema) for path in task.merged]
        broken = _violations(spec, task.derived, merged) | _in_several_partitions(spec, after.values())
    except Unreadable as error:
        broken, hashes, merged = {error.violation.rule: error.violation.sample}, {}, []
    slices: pl.DataFrame | None = None
    sums: dict[str, Any] = {}
    seen = 0
    for rows in () if broken else merged:
        seen += rows.height
        counted.add(rows)
        sums = added(sums, sums_of(rows.lazy().select(value_columns(rows.columns, spec.key, spec.lineage))))
        slices = None if measure is None else merged_measures(slices, imported_by_path(measure)(rows))
    return JudgedMerge(
        task.chunk,
        broken,
        [] if slices is None else plain(slices.to_dicts()),
        {"rows": seen, "sums": as_text(sums)},
        hashes,
        counted.as_record(),
        [] if broken else _ambiguous(spec, task.derived),
    )


def _ambiguous(spec: MergeSpec, task: DeriveTask) -> list[dict[str, Any]]:
    if spec.terms is None:
        return []
    base = [read(path, spec.schema) for path in task.base]
    decisions = _decisions(spec, base, read(task.entities), rows_of(task.computed))
    return [] if decisions is None else ambiguous_rows(decisions, spec.key, spec.lineage, _LISTED)
