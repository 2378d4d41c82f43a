"""Old data as policy allows it today: which rows and values a run does not see, and that erased subjects stay away.

Put here what the planner is told of source and erased subjects, how pinned terms are applied to a frame before any
transform sees it, and the check that no file which readers are about to see holds an erased subject. What the policy says
is `manifests.data_terms`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any

import polars as pl
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.schema import dtypes
from backfill_assets.declarations.target import Finding, TargetTable
from backfill_assets.installation import Platform
from backfill_assets.run_context import RunContext
from backfill_assets.worker.changed_rows import Concealed
from backfill_assets.worker.columns import UNREADABLE
from manifests.data_terms import DataTerms, ErasedList, MaskedColumn, SourceColumn, SourceFacts, hash_of_subjects
from manifests.errors import EnvironmentRefused, InputRefused, Problem, PublicationRefused
from manifests.further_sources import PinnedSource
from manifests.plan import Plan
from manifests.policy import Erasure, Mask, Policy
from resources.files import stores
from resources.policies import erased_in_file, erased_since, hashes_of

# --- planning ---------------------------------------------------------------------------------------------------------


def facts_of(
    platform: Platform, policy: Policy, target: TargetTable, source: str, snapshot_id: int, today: date, *, keep: bool
) -> SourceFacts | None:
    """Return what the policy must know of a source of a target at a snapshot, from metadata; None where it asks nothing.

    With `keep` the list of erased subjects is kept in the ledger, under the hash that a plan pins.
    """
    rule = policy.source_rule(source, target.name)
    if rule is None:
        return None
    schema = platform.lakehouse.table(source).schema()
    columns = {field.name: SourceColumn(str(field.field_type), field.required) for field in schema.fields}
    targets = frozenset(field.name for field in platform.lakehouse.table(target.name).schema().fields)
    erased = None
    if rule.erasure is not None:
        keys, at = erased_subjects(platform, rule.erasure, today)
        hashes = hashes_of(keys)
        found = hash_of_subjects(hashes)
        if keep:
            platform.ledger.erasure_lists.keep(found, hashes)
        possible = 0
        if rule.erasure.column in columns:
            possible = platform.lakehouse.possible_rows(source, snapshot_id, rule.erasure.column, frozenset(keys))
        erased = ErasedList(rule.erasure.table or str(rule.erasure.file), at, len(keys), found, possible)
    return SourceFacts(columns, target.every_source[source], targets, target.entity, erased, source)


def erased_subjects(platform: Platform, erasure: Erasure, today: date) -> tuple[Mapping[str, date], int | None]:
    """Return the subjects erased by today, each with since when, and the snapshot of the table that lists them (None for a file)."""
    if erasure.table is None:
        rows: Iterable[Mapping[str, Any]] = erased_in_file(platform.policy_in_force.folder, erasure)
        return erased_since(rows, erasure, today, where=str(erasure.file)), None
    snapshot_id = platform.lakehouse.snapshot_id(erasure.table)
    rows = [] if snapshot_id is None else platform.lakehouse.rows(erasure.table, snapshot_id)
    if rows and not {erasure.key_column, erasure.date_column} <= set(rows[0]):
        raise InputRefused(
            Problem(
                f"{erasure.table} has no columns {erasure.key_column} and {erasure.date_column}",
                "a list of erased subjects has both",
                "correct keyColumn and dateColumn in the policy",
            )
        )
    return erased_since(rows, erasure, today, where=erasure.table), snapshot_id


# --- computing --------------------------------------------------------------------------------------------------------


def allowed(run: RunContext, rows: DataFrame, source: PinnedSource | None = None) -> DataFrame:
    """Return the rows of a source that a plan lets a transform see, masked as it says; needs the columns it judges by.

    That is the first source, or the further one that is given.
    """
    terms = run.plan.data if source is None else source.data
    if terms is None:
        return rows
    if terms.not_before is not None:
        rows = rows.where(~_is_old(run, terms, source))
    if terms.erasure is not None:
        rows = _without_erased(run.platform, rows, terms)
    for one in terms.masks:
        if one.column in rows.columns:
            rows = rows.withColumn(one.column, _masked(one, rows))
    return rows


def _is_old(run: RunContext, terms: DataTerms, source: PinnedSource | None) -> Column:
    """Return whether a row of a source is older than may be used; a row without a day is."""
    if terms.not_before is None:
        return F.lit(False)
    begins = terms.not_before.date() if source is not None and source.has_dates else terms.not_before
    at = F.col(run.target.source_time_column if source is None else source.time_column)
    return F.coalesce(at < F.lit(begins), F.lit(True))


def needed_columns(target: TargetTable, plan: Plan, columns: Sequence[str]) -> tuple[str, ...]:
    """Return columns of a source, the one that places its rows in time, and those that `allowed` judges them by."""
    extra = [target.source_time_column] if target.source_time_column else []
    if plan.data is not None and plan.data.erasure is not None:
        extra.append(plan.data.erasure.column)
    return (*columns, *(name for name in extra if name not in columns))


def _without_erased(platform: Platform, rows: DataFrame, terms: DataTerms) -> DataFrame:
    assert terms.erasure is not None
    if not terms.erasure.subjects:
        return rows
    subject = F.sha2(F.col(terms.erasure.column).cast("string"), 256)
    return rows.join(F.broadcast(_listed(platform, rows, terms)), subject == F.col("_erased"), "left_anti")


def _listed(platform: Platform, rows: DataFrame, terms: DataTerms) -> DataFrame:
    assert terms.erasure is not None
    kept = platform.ledger.erasure_lists.subjects(terms.erasure.hash)
    return rows.sparkSession.createDataFrame([(one,) for one in sorted(kept)], "_erased string")


def _masked(one: MaskedColumn, rows: DataFrame) -> Column:
    column = F.col(one.column)
    match one.mask:
        case Mask.HASH:
            return F.sha2(column, 256)
        case Mask.CONSTANT:
            return F.when(column.isNotNull(), F.lit(one.constant))
        case Mask.NULL:
            return F.lit(None).cast(rows.schema[one.column].dataType)


# --- showing ----------------------------------------------------------------------------------------------------------


def concealed(run: RunContext) -> Concealed:
    """Return what is not shown of a target's rows that earlier runs may have written under another policy, or under none.

    Nobody who is erased by today; and, of columns that come from a masked one alone or have its name, the old values masked alike.
    """
    platform, target = run.platform, run.target
    by_column = {column: hashes_of(subjects) for column, subjects in erased_by_column(platform, target).items()}
    masks: dict[str, tuple[str, str | None]] = {}
    for table, terms in ((run.plan.source, run.plan.data), *((one.table, one.data) for one in run.plan.sources)):
        masks |= _masks_of(target, table, terms)
    (subject, erased), *further = [*by_column.items()] or [("", frozenset[str]())]
    return Concealed(subject, erased, masks, dict(further))


def erased_by_column(platform: Platform, target: TargetTable) -> dict[str, dict[str, date]]:
    """Return who is erased by today, and since when, by the column of a target that says whose a row is."""
    found: dict[str, dict[str, date]] = {}
    fields = {field.name for field in platform.lakehouse.table(target.name).schema().fields}
    for _, erasure in _erasures(platform, target):
        column = erasure.target_column or erasure.column
        if column in fields:
            keys, _ = erased_subjects(platform, erasure, platform.ledger.latest().date())
            of_column = found.setdefault(column, {})
            of_column |= {key: min(day, of_column.get(key, day)) for key, day in keys.items()}
    return found


def since_when_erased(erased: Mapping[str, Mapping[str, date]], row: Mapping[str, Any]) -> date | None:
    """Return since when a subject of a row is erased, by column who is; None where none is."""
    days = (subjects.get(_as_text(row[column])) for column, subjects in erased.items() if row.get(column) is not None)
    return min((day for day in days if day is not None), default=None)


def _as_text(value: Any) -> str:
    """Return a value as a list of subjects has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _masks_of(target: TargetTable, source: str, terms: DataTerms | None) -> dict[str, tuple[str, str | None]]:
    """Return, by column of a target, the masks of what it has from a source: by the same name, or as a copy of one column."""
    masked = {} if terms is None else {one.column: one for one in terms.masks}
    copies = {name: name for name in dtypes(target.model) if name in masked}
    for name, origins in target.column_origins.items():
        if len(origins) == 1 and origins[0].table == source and origins[0].column in masked:
            copies[name] = origins[0].column
    return {name: (masked[column].mask.value, masked[column].constant) for name, column in copies.items()}


def _erasures(platform: Platform, target: TargetTable) -> list[tuple[str, Erasure]]:
    """Return by which lists the policy has subjects of a target's sources erased, each with the source."""
    rules = ((name, platform.policy.source_rule(name, target.name)) for name in target.every_source)
    return [(name, rule.erasure) for name, rule in rules if rule is not None and rule.erasure is not None]


# --- gating -----------------------------------------------------------------------------------------------------------


def finding(run: RunContext, sources: Mapping[str, DataFrame], files: Sequence[str]) -> Finding:
    """Count exactly what a run left out of each source, and look for erased subjects in what it staged.

    `sources` have every row up to the end of the plan's read, as it is at the pinned snapshot, by table name.
    """
    plan, found = run.plan, set[str]()
    pins: dict[str, PinnedSource | None] = {plan.source: None} | {one.table: one for one in plan.sources}
    counts, details, texts = [], {}, []
    for name, pin in pins.items():
        terms = plan.data if pin is None else pin.data
        if terms is None or not terms.leaves_out_rows:
            continue
        counted = _left_out(run, sources[name], terms, pin)
        counts.append(counted)
        details[name] = counted
        texts.append(
            f"{counted['source_rows']:,} source rows: {counted['too_old_rows']:,} too old and {counted['erased_rows']:,} of "
            f"{counted['erased_subjects_with_rows']:,} erased subjects left out"
        )
        if terms.erasure is not None and terms.erasure.target_column is not None:
            hashes = run.platform.ledger.erasure_lists.subjects(terms.erasure.hash)
            found |= {
                one for one in _values(run.platform, files, terms.erasure.target_column) if hashes_of([one]) <= hashes
            }
    said = (
        texts[0]
        if len(details) == 1
        else "; ".join(f"{name}: {text}" for name, text in zip(details, texts, strict=True))
    )
    return Finding(
        not found,
        f"{said}; {len(found):,} erased subjects in what was staged",
        {**(counts[0] if len(details) == 1 else {"sources": details}), "policy": plan.policy},
        [{"erased subjects staged": len(found)}] if found else [],
    )


def _left_out(run: RunContext, rows: DataFrame, terms: DataTerms, source: PinnedSource | None) -> dict[str, Any]:
    """Count what a run left out of a source, all of whose rows up to the end of its read are given."""
    is_old, is_erased = _is_old(run, terms, source), F.lit(False)
    if terms.erasure is not None:
        subject = F.sha2(F.col(terms.erasure.column).cast("string"), 256)
        rows = rows.join(F.broadcast(_listed(run.platform, rows, terms)), subject == F.col("_erased"), "left")
        is_erased = F.col("_erased").isNotNull()
    subjects = F.lit(0) if terms.erasure is None else F.count_distinct(F.when(is_erased, F.col(terms.erasure.column)))
    row = rows.agg(
        F.count(F.lit(1)).alias("all"),
        F.count_if(is_old).alias("old"),
        F.count_if(is_erased & ~is_old).alias("erased"),
        subjects.alias("subjects"),
    ).collect()[0]
    return {
        "source_rows": row["all"],
        "too_old_rows": row["old"],
        "erased_rows": row["erased"],
        "erased_subjects_with_rows": row["subjects"],
        "used_rows": row["all"] - row["old"] - row["erased"],
        "erasure_list": None if terms.erasure is None else terms.erasure.hash,
    }


def _values(platform: Platform, files: Iterable[str], column: str) -> list[str]:
    """Return the distinct values of a column of data files, as text."""
    with stores.opened_by(platform.lakehouse.access):
        return _values_in(files, column)


def _values_in(files: Iterable[str], column: str) -> list[str]:
    values: set[str] = set()
    for path in files:
        try:
            scan = pl.scan_parquet(stores.source(path), hive_partitioning=False, glob=False)
            if column not in scan.collect_schema():
                raise InputRefused(
                    Problem(f"{path} has no column {column}", "erased subjects are told by it", "correct targetColumn")
                )
            found = scan.select(pl.col(column).cast(pl.String).unique()).collect()
        except UNREADABLE as error:
            raise EnvironmentRefused(
                Problem(
                    f"{path} cannot be read: {type(error).__name__}: {str(error)[:500]}",
                    "a file that cannot be read may hold erased subjects",
                    "nothing has changed; run the same command again; if it stays so, see `backfill doctor`",
                )
            ) from error
        values.update(value for value in found[column].to_list() if value is not None)
    return sorted(values)


# --- publishing -------------------------------------------------------------------------------------------------------


def require_nobody_erased(run: RunContext, files: Sequence[str], what: str) -> None:
    """Refuse to show readers files that hold a subject who is erased by today, whatever the plan knew of it.

    Where the target does not say whose a row is, the list must be the plan's: nobody may have been added.

    Args:
        run: the run whose files they are.
        files: data files that readers would see from now on and do not see yet.
        what: what would be done with them, in words.

    Raises:
        PublicationRefused: saying how many, and the way out. The subjects are not named: refusals are kept as evidence.
    """
    for source, erasure in _erasures(run.platform, run.target) if files else ():
        _require_nobody_erased(run, source, erasure, files, what)


def _require_nobody_erased(run: RunContext, source: str, erasure: Erasure, files: Sequence[str], what: str) -> None:
    platform, target, plan = run.platform, run.target, run.plan
    keys, _ = erased_subjects(platform, erasure, platform.ledger.latest().date())
    if not keys:
        return
    column = erasure.target_column or erasure.column
    fields = {field.name for field in platform.lakehouse.table(target.name).schema().fields}
    if column in fields:
        found = keys.keys() & set(_values(platform, files, column))
        if found:
            raise PublicationRefused(_erased_problem(len(found), len(files), target, plan, what))
        return
    terms = {plan.source: plan.data, **{one.table: one.data for one in plan.sources}}.get(source)
    pinned = terms.erasure if terms is not None else None
    known = frozenset() if pinned is None else platform.ledger.erasure_lists.subjects(pinned.hash)
    added = hashes_of(keys) - known
    if added or what != PUBLISHING:
        raise PublicationRefused(
            Problem(
                f"{len(added) or len(keys):,} subject(s) may be in what {what} of '{plan.run_id}' would show again",
                f"{target.name} does not say whose a row is: its files cannot be searched for erased subjects",
                _WAY_OUT,
            )
        )


PUBLISHING = "the publication"
_WAY_OUT = "plan the change again under a new run id: it leaves out everybody who is erased by then"


def _erased_problem(found: int, files: int, target: TargetTable, plan: Plan, what: str) -> Problem:
    way_out = _WAY_OUT
    if what != PUBLISHING:
        way_out = f"the rows stay away; to change the days all the same, {_WAY_OUT}"
    elif plan.derives:
        way_out = (
            f"their rows are in {target.name} today: remove them first (a MERGE_BY_KEY that names them as entities, or "
            "a restatement of the days), then plan this change again under a new run id"
        )
    return Problem(
        f"{what} of '{plan.run_id}' would show {found:,} erased subject(s) to readers of {target.name}, in {files:,} file(s)",
        "who is erased does not come back: not by a replay, a merge, a reinstatement or a rollback",
        way_out,
    )
