"""Loading a file into a declared input table, and taking a load back.

Put here the order of things: every row is checked before anything is written, the quarantine is written before the table,
and what was loaded is found by the file's content. What is wrong with a row is `input_files`'s to say, which rows repeat a key
`repeated_keys`'; which load somebody names is `load_names`'; what a product's own loader makes of its files is the product's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as arrow

from backfill_assets import faults
from backfill_assets.decisions import decider
from backfill_assets.declarations.checking.rules import rule_problems
from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.quarantine import WITHHELD, FirstRow, Quarantine, Rejections, limit_problems
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.ingestion.columns_in_place import require_declared_columns
from backfill_assets.ingestion.held_tables import HeldTable, held_to_load
from backfill_assets.ingestion.input_files import DETAIL, REASON, RECORD, ROW, Checked, InputFile
from backfill_assets.ingestion.load_names import load_meant, short_name
from backfill_assets.ingestion.quarantine_parts import part_to_append
from backfill_assets.ingestion.releases import require_none_released
from backfill_assets.ingestion.repeated_keys import RepeatedRows, repeated_rows
from backfill_assets.installation import Platform
from backfill_assets.planning.pinned_loads import SHOWN, publishing_with
from backfill_assets.publication.leasing import input_lease
from backfill_assets.worker.columns import table_of
from manifests.errors import DeclarationRefused, InputRefused, Problem
from manifests.fields import VERSION_PATTERN
from manifests.text import seen
from resources import actors
from resources.lakehouse.facade import Commit, LoadedSince, VersionTaken
from resources.lakehouse.landed_logs import standing_without
from resources.lakehouse.loads import (
    ACTOR_PROPERTY,
    DATA_VERSION_PROPERTY,
    FILE_PROPERTY,
    LOAD_PROPERTY,
    REASON_PROPERTY,
    REJECTED_PROPERTY,
    Load,
    LoadToMake,
    content_of,
    load_of_part,
    load_to_make,
    undoing,
)
from resources.ledger.facade import operator


@dataclass(frozen=True)
class FileLoaded:
    """What a load brought: rows loaded and quarantined, by reason; `new` is False if the content was there before.

    `first` is the first row of each reason; its value is withheld where the policy protects the table.
    """

    load: Load
    by_reason: dict[str, int]
    new: bool
    first: dict[str, FirstRow] = field(default_factory=dict)


@dataclass(frozen=True)
class QuarantinedRows:
    """Some rows of a quarantine, and how many it has; without values if `withheld`."""

    table: str
    total: int
    rows: list[dict[str, Any]]
    withheld: bool


@dataclass(frozen=True)
class LoadUndone:
    """A load that was taken back, and the runs whose published rows were computed with it.

    `new` is False if all of it was taken back before, and nothing was done. `may_be_published_with_it` are the runs that have
    read it, or will, and are not over: readers may see it by them yet.
    """

    load: Load
    snapshot_id: int
    published_with_it: tuple[str, ...]
    new: bool
    may_be_published_with_it: tuple[str, ...] = ()


def load_file(
    platform: Platform,
    table: str,
    path: Path,
    *,
    version: str | None = None,
    if_new: bool = False,
    again: bool = False,
) -> FileLoaded:
    """Load a Parquet or CSV file into a declared input table.

    A row that does not have the declared types or breaks a rule of the table's model goes to the table's quarantine with its
    reason. A reference table is replaced as a whole, as a named version, and takes no quarantined row.

    Args:
        platform: the opened installation.
        table: the declared input table.
        path: the file.
        version: name of the new version of a reference table; the start of the content's hash unless given.
        if_new: what was loaded before is left as it is, instead of being refused; also if it was replaced or taken back since.
        again: a reference table takes content back that another load has replaced since.

    Raises:
        InputRefused: if the table is not declared, the file does not have its columns, too many rows would be quarantined, or
            the same content was loaded before. Nothing is written then. Or if the load was taken back while it was made.
        EnvironmentRefused: if the table, or its quarantine, does not have the columns of its model.
        DeclarationRefused: if a rule of the model could be answered for no row, whatever the file has.
        LeaseHeld: if somebody else loads into the table, releases rows or takes a load back, for longer than is waited for.
        LeaseLost: if this process stood still for so long that somebody else has taken the table over; the same command again.
    """
    declared = _loadable(platform, table, version)
    require_declared_columns(platform, declared)
    if problems := [*rule_problems({declared.name: declared.model})]:
        raise DeclarationRefused(problems)
    limit = 0.0 if declared.is_reference else platform.settings.quarantine_limit
    opened = InputFile(path, declared.model)
    content = f"{declared.name}:{opened.content_hash}"
    loads = platform.lakehouse.loads(declared.name)
    to_make = load_to_make(loads, content, replaces=declared.is_reference)
    before = to_make.before
    ever = next((one for one in reversed(loads) if content_of(one.load_id) == content), None)
    if if_new and ever is not None and not again:  # also if it was taken back: somebody had a reason
        return FileLoaded(ever if before is None else before, {}, new=False)
    if before is not None and not (again and to_make.replaced_by is not None):
        raise _loaded_before(declared, path, loads, before, to_make.replaced_by)
    if version is not None:
        _require_new_version(platform, declared, version)
    with repeated_rows(opened, declared) as repeated:
        withheld = platform.policy.protects(declared.name)
        reasons, rows = _reasons(opened, repeated)
        _require_few(path, declared, reasons, rows, limit, withheld=withheld)
        with held_to_load(platform, declared.name) as table_held:
            commit = _make_load(
                platform, declared, opened, repeated, reasons, to_make, table_held, file=path.name, version=version
            )
    made = _load_made(platform, declared, to_make.load_id)
    shown = {
        reason: replace(one, detail=WITHHELD) if withheld else one for reason, one in sorted(reasons.first.items())
    }
    return FileLoaded(made, dict(sorted(reasons.counts.items())), new=commit is not None, first=shown)


def _make_load(
    platform: Platform,
    declared: InputTable,
    opened: InputFile,
    repeated: RepeatedRows,
    reasons: Rejections,
    to_make: LoadToMake,
    table_held: HeldTable,
    *,
    file: str,
    version: str | None,
) -> Commit | None:
    """Write a file's rows as a load: the whole content of a reference table, or what is appended to another.

    Returns no commit if the load was there already.
    """
    properties = {
        LOAD_PROPERTY: to_make.load_id,
        FILE_PROPERTY: file,
        ACTOR_PROPERTY: operator(),
        REJECTED_PROPERTY: str(reasons.total),
    }
    if not declared.is_reference:
        return _append_rows(platform, declared, opened, repeated, properties, reasons, table_held)
    properties[DATA_VERSION_PROPERTY] = version or opened.content_hash[:12]
    whole = arrow.concat_tables(_loaded(opened, declared, repeated))
    against = to_make.replaced_by if to_make.before is not None else None
    return _replace_rows(
        platform,
        declared,
        whole,
        properties,
        new_version=version is not None,
        against=against,
        token=table_held.token,
    )


def _replace_rows(
    platform: Platform,
    declared: InputTable,
    whole: arrow.Table,
    properties: Mapping[str, str],
    *,
    new_version: bool,
    against: Load | None,
    token: int,
) -> Commit | None:
    """Make rows the whole content of a reference table, as a version; return no commit if the load was there already.

    `against` is the newer content that older content replaces by somebody's decision.
    """
    try:
        replacing = None if against is None else against.load_id
        return platform.lakehouse.overwrite_rows(
            declared.name, whole, properties, new_version=new_version, replacing=replacing, token=token
        )
    except LoadedSince as since:
        (newest,) = since.args
        raise InputRefused(
            Problem(
                f"{newest.file or 'another file'} was loaded into {declared.name} meanwhile, as load '{newest.load_id}'",
                "older content replaces newer only by an explicit decision, and there is none for that content",
                f"see `backfill loads {declared.name}`; to put the older content back all the same: the same command again",
            )
        ) from None
    except VersionTaken:  # another process was faster with other content
        raise _version_taken(declared, properties[DATA_VERSION_PROPERTY]) from None


def _append_rows(
    platform: Platform,
    declared: InputTable,
    opened: InputFile,
    repeated: RepeatedRows,
    properties: Mapping[str, str],
    reasons: Rejections,
    table_held: HeldTable,
) -> Commit | None:
    """Append a file's rows, and those that are none of the table's to its quarantine; return no commit if they were there.

    The quarantine comes first: if this stops between the two, the repetition appends what is missing, and nothing twice.
    """
    at = platform.ledger.now().replace(microsecond=0)
    quarantine, load_id = platform.products.quarantine_of(declared).name, properties[LOAD_PROPERTY]
    token = table_held.token
    part = part_to_append(platform, quarantine, load_id, reasons.counts, reasons.first, token=token)
    if part is not None:
        rejected = table_held.keeping(_quarantined(opened, properties[FILE_PROPERTY], at, repeated))
        platform.lakehouse.append(quarantine, rejected, {**properties, **part}, token=token)
    faults.reach("loading.quarantined")
    rows = table_held.keeping(_loaded(opened, declared, repeated))
    return platform.lakehouse.append(declared.name, rows, properties, token=token)


def _load_made(platform: Platform, declared: InputTable, load_id: str) -> Load:
    """Return a load as the table's history has it now, unless it was taken back meanwhile."""
    made = next(load for load in platform.lakehouse.loads(declared.name) if load.load_id == load_id)
    if made.undone_by is not None:  # another process had loaded it first
        raise InputRefused(
            Problem(
                f"load '{made.load_id}' of {declared.name} was taken back by {made.undone_by} while it was made here",
                "what is loaded is there",
                "if it is to be there all the same, load it again",
            )
        )
    return made


def _loaded_before(
    declared: InputTable, path: Path, loads: list[Load], before: Load, replaced_by: Load | None
) -> InputRefused:
    which = (
        f"load '{before.load_id}' of {before.file or 'a file'}, {before.rows:,} rows, {before.at:%Y-%m-%d %H:%M} UTC"
    )
    if replaced_by is not None:
        return InputRefused(
            Problem(
                f"the content of {path} was loaded into {declared.name} before: {which}; since then "
                f"{replaced_by.file or 'another file'} has replaced it, {replaced_by.at:%Y-%m-%d %H:%M} UTC",
                "older content replaces newer only if somebody says so",
                "to put it back, as a version of its own: the same command with --again; a script that loads what is new "
                "asks with --if-new",
            )
        )
    return InputRefused(
        Problem(
            f"the content of {path} is in {declared.name} already: {which}",
            "the same content is loaded once",
            f"there is nothing to do; a script asks with --if-new; to take it back: `backfill unload {declared.name} "
            f"'{short_name(loads, before.load_id)}' --by NAME --reason TEXT`",
        )
    )


def _require_new_version(platform: Platform, declared: InputTable, version: str) -> None:
    """Refuse a version's name that a manifest could not say, or that stands for other content already."""
    if not re.fullmatch(VERSION_PATTERN, version):
        raise InputRefused(
            Problem(
                f"'{version[:80]}' cannot name a version of {declared.name}",
                "a version is named in letters, digits and . _ + -, at most 64 of them, a letter or digit first",
                "give another --version",
            )
        )
    if platform.lakehouse.has_version(declared.name, version):
        raise _version_taken(declared, version)


def _version_taken(declared: InputTable, version: str) -> InputRefused:
    return InputRefused(
        Problem(
            f"{declared.name} has a version '{version}' already",
            "a version's name stands for one content, also once it was taken back: manifests pin versions by name",
            "give another --version",
        )
    )


def undo_load(platform: Platform, table: str, load_id: str, *, by: str, reason: str) -> LoadUndone:
    """Take back what a load brought, by metadata alone: its rows in the table, and those in its quarantine.

    `load_id` is the load's id, or a beginning that no other load of the table has: of the id, or of the hash in it.
    Safe to repeat. Runs that were planned before it still read the snapshot that they pinned.

    Raises:
        InputRefused: if the table has no such load, or several whose ids begin so, or its files were rewritten since; or if
            rows that it had quarantined were released, and are in the table.
        LeaseHeld: if somebody loads into the table, or decides about its quarantined rows, just now.
        LeaseLost: if this process stood still for so long that somebody else has taken the table over; the same command again
            takes back what is left of the load.
        IllegibleRow: if a plan on record cannot be read, so that nobody could say who has read the load.
        TransitionRefused: if the policy wants to know who decides, and nothing but a name says so.
    """
    declared = platform.products.input(table)
    if not by.strip() or not seen(reason):
        raise InputRefused(
            Problem("no name or no reason given", "undoing a load is a decision: who and why", "give --by and --reason")
        )
    if problems := actors.no_reason(reason):
        raise InputRefused(problems)
    who = decider(platform, by, f"the loads of {table}")
    found = load_meant(platform.lakehouse.loads(declared.name), declared.name, load_id)
    properties = {ACTOR_PROPERTY: who.name, REASON_PROPERTY: reason}
    is_new = found.undone_by is None
    undoing(platform.lakehouse.table(declared.name), found.load_id)  # refuses before anything is written
    publishing_with(platform, declared.name, found.load_id)  # as does a plan that cannot be read
    quarantine = platform.products.quarantine_of(declared)
    with input_lease(platform, declared.name, "unload") as lease:
        if quarantine.name != declared.name:
            require_none_released(platform, declared, found.load_id)
            # the quarantine first: until the last commit the content counts as loaded, and nobody loads it a second time beside
            for rejected in platform.lakehouse.loads(quarantine.name):
                if load_of_part(rejected.load_id) == found.load_id:
                    is_new |= rejected.undone_by is None
                    platform.lakehouse.undo_load(quarantine.name, rejected.load_id, properties, token=lease.token)
        faults.reach("unloading.quarantine")
        if declared.log is not None:
            properties |= standing_without(platform.lakehouse.table(declared.name), found.load_id)
        snapshot = platform.lakehouse.undo_load(declared.name, found.load_id, properties, token=lease.token)
    load = next(load for load in platform.lakehouse.loads(declared.name) if load.load_id == found.load_id)
    with_it = publishing_with(platform, declared.name, load.load_id)
    return LoadUndone(
        load,
        snapshot.snapshot_id,
        tuple(run_id for run_id, state in with_it.items() if state in SHOWN),
        is_new,
        tuple(run_id for run_id, state in with_it.items() if state not in SHOWN),
    )


def quarantined_rows(platform: Platform, table: str, limit: int) -> QuarantinedRows:
    """Return at most `limit` rows of the quarantine of an input table, and how many it has.

    Raises:
        InputRefused: if the table is not declared, or is a reference table, which has no quarantine.
    """
    declared = platform.products.input(table)
    quarantine = platform.products.quarantine_of(declared)
    if not quarantine.quarantine_of:
        raise InputRefused(
            Problem(
                f"{table} has no quarantine",
                "a reference table is replaced whole or not at all: a load with a row that its model refuses is refused",
                f"`backfill loads {table}` lists what was loaded",
            )
        )
    withheld = platform.policy.protects(quarantine.quarantine_of) or platform.policy.protects(quarantine.name)
    total, rows = platform.lakehouse.some_rows(quarantine.name, limit)
    if withheld:
        rows = [row | {"detail": WITHHELD, "record": WITHHELD} for row in rows]
    return QuarantinedRows(quarantine.name, total, rows, withheld)


def _loadable(platform: Platform, name: str, version: str | None) -> InputTable:
    table = platform.products.input(name)
    if table.quarantine_of:
        raise InputRefused(
            Problem(
                f"{name} is the quarantine of {table.quarantine_of}",
                "a quarantine is filled by loads of its table",
                f"load the file into {table.quarantine_of}",
            )
        )
    topic = next((one.name for one in platform.products.topics.values() if one.table == name), None)
    if topic is not None:
        raise InputRefused(
            Problem(
                f"{name} is the table of the topic {topic}",
                "its rows are ranges of the topic, and a load says which: a file says nothing of what it leaves out",
                f"`backfill land {topic} --archive FILE` lands what a file has of it",
            )
        )
    if version is not None and not table.is_reference:
        raise InputRefused(
            Problem(f"{name} has no named versions", "reference tables have versions", "leave out --version")
        )
    return table


def _checked(opened: InputFile, repeated: RepeatedRows) -> Iterator[Checked]:
    return (repeated.split(checked) for checked in opened.batches())


def _reasons(opened: InputFile, repeated: RepeatedRows) -> tuple[Rejections, int]:
    """Return the rows that would be quarantined, by reason, and how many rows there are."""
    reasons = Rejections()
    rows = 0
    for checked in _checked(opened, repeated):
        rows += checked.passed.height + checked.rejected.height
        reasons.add(checked.rejected, row=ROW, reason=REASON, detail=DETAIL)
    return reasons, rows


def _require_few(
    path: Path, table: InputTable, reasons: Rejections, rows: int, limit: float, *, withheld: bool
) -> None:
    rejected = reasons.total
    if not rows:
        raise InputRefused(
            Problem(
                f"{path} has no rows", "a load brings rows", "deliver the file again; there is nothing to load in it"
            )
        )
    if table.is_reference and rejected:
        raise InputRefused(
            Problem(
                f"{path}: {rejected:,} of {rows:,} rows ({rejected / rows:.1%}) are not rows of {table.name}: "
                f"{reasons.in_words(withheld=withheld)}",
                "a reference table takes no row that its model refuses",
                "correct the file",
            )
        )
    if problems := limit_problems(table, str(path), reasons, rows, limit, withheld=withheld):
        raise InputRefused(problems)


def _loaded(opened: InputFile, table: InputTable, repeated: RepeatedRows) -> Iterator[Any]:
    schema = iceberg_schema(table.model)
    for checked in _checked(opened, repeated):
        if checked.passed.height:
            yield table_of(checked.passed.drop(ROW), schema)


def _quarantined(opened: InputFile, file: str, at: datetime, repeated: RepeatedRows) -> Iterator[Any]:
    schema = iceberg_schema(Quarantine).as_arrow()
    for checked in _checked(opened, repeated):
        if checked.rejected.height:
            rows = checked.rejected.select(
                pl.lit(file).alias("source_file"),
                pl.col(ROW).alias("source_row"),
                pl.col(REASON).alias("reason"),
                pl.col(DETAIL).alias("detail"),
                pl.col(RECORD).alias("record"),
                pl.lit(at).alias("ingested_at"),
            )
            yield rows.to_arrow().cast(schema)
