"""Mistakes in the declaration of a target: its columns, key, chunks, versions, references and corrections.

Put here one function a part of a `TargetTable`, called by `of_target`. What has to be called is held to be so in `functions`,
what a schedule may do in `policies`, its gates in `gates`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from backfill_assets.declarations.arguments import is_amount
from backfill_assets.declarations.checking.chunks import of_bounds, of_division
from backfill_assets.declarations.checking.columns import (
    DAY,
    ColumnTypes,
    declared_columns,
    in_columns,
    in_table,
    of_declared_table,
    of_kind,
    of_unique,
    orders_rows,
    without_type,
)
from backfill_assets.declarations.checking.functions import of_functions
from backfill_assets.declarations.checking.gates import of_gates, of_needs
from backfill_assets.declarations.checking.models import of_values
from backfill_assets.declarations.checking.names import no_tuple, texts
from backfill_assets.declarations.checking.policies import of_policies
from backfill_assets.declarations.checking.source_tables import of_sources
from backfill_assets.declarations.checking.sql import of_sql
from backfill_assets.declarations.checking.table_fields import in_words
from backfill_assets.declarations.checking.tables import of_every_table, of_name
from backfill_assets.declarations.checking.timeless import of_time
from backfill_assets.declarations.column_history import former_name_problems
from backfill_assets.declarations.column_types import is_floating, is_nested
from backfill_assets.declarations.schema import (
    LINEAGE_COLUMNS,
    Corrections,
    dtypes,
    has_lineage,
    lineage_columns,
    uuids,
)
from backfill_assets.declarations.target import ColumnOrigin, TargetTable, TransformVersion
from manifests.chunks import EXAMPLES, Chunking, first_day
from manifests.errors import InputRefused, Problem
from manifests.fields import NAME_PATTERN, NAME_WORDS, VERSION_PATTERN, VERSION_WORDS

_FOLDERS = frozenset({"chunk", "part"})
"""Columns that a batch is written with besides those of its table: `staging.folders`."""


def of_target(
    target: TargetTable, columns: Mapping[str, ColumnTypes | None], references: set[str]
) -> Iterator[Problem]:
    """Say what is wrong with the declaration of a target, part by part."""
    yield from of_every_table(target)
    yield from _single_texts(target)
    yield from of_time(target)
    yield from _of_chunks(target)
    yield from _of_transform(target)
    yield from _of_versions(target)
    yield from of_sql(target)
    yield from of_gates(target)
    yield from of_functions(target)
    yield from of_policies(target)
    yield from of_declared_table(target.name, "source", target.source, columns)
    if target.source == target.name:
        yield Problem(
            f"{target.name} is its own source",
            "a table is computed from another",
            "name the table whose rows it is made of",
            f"{target.name}: source",
        )
    yield from of_sources(target, columns)
    yield from _of_references(target, columns, references)
    own, source = columns[target.name], columns.get(target.source)
    if own is not None:
        yield from _of_own_columns(target, own, columns)
    if source is not None:
        of = target.source
        if target.source_time_column:
            yield from of_kind(target.name, "source_time_column", target.source_time_column, of, source, DAY)
        yield from in_columns(target.name, "look_back_columns", texts(target.look_back_columns), of, source)
        if target.entity is not None:
            yield from in_columns(target.name, "entity", (target.entity,), of, source)
    for gate in target.reconciliations:
        yield from of_needs(target, gate, own, source)
        if own is not None and not gate.mistakes:
            yield from gate.against(target, columns)


def _of_own_columns(
    target: TargetTable, own: ColumnTypes, columns: Mapping[str, ColumnTypes | None]
) -> Iterator[Problem]:
    name = target.name
    if not has_lineage(target.model):
        yield from _of_missing_lineage(target, own)
    yield from without_type(name, own)
    yield from _of_folders(name, own)
    yield from of_unique(name, target.model)
    yield from of_values(name, target.model, own)
    yield from former_name_problems(name, target.model)
    yield from _of_day_column(target, own)
    yield from in_columns(name, "key", texts(target.key), name, own)
    yield from _of_lineage_in_use(target, own)
    yield from _of_key(target, own)
    yield from of_division(target, own)
    yield from _of_types_in_use(target, own)
    if has_lineage(target.model):
        yield from in_columns(name, "version_column", (target.version_column,), name, own)
    if target.entity is not None:
        yield from in_columns(name, "entity", (target.entity,), name, own)
    if target.outline is not None:
        yield from in_columns(name, "outline", texts(target.outline.columns), name, own)
    yield from _of_diff_tolerances(target, own)
    yield from in_columns(name, "column_origins", target.column_origins, name, own)
    for column, origins in target.column_origins.items():
        for origin in origins:
            if not isinstance(origin, ColumnOrigin):
                yield Problem(
                    f"column_origins[{column!r}] has {in_words(origin)}",
                    "an origin is a ba.ColumnOrigin",
                    'for example ba.ColumnOrigin("bronze.readings", "kwh")',
                    f"{name}: column_origins",
                )
                continue
            field = f"column_origins[{column!r}]"
            yield from of_declared_table(name, field, origin.table, columns)
            upstream = columns.get(origin.table)
            if upstream is not None:
                yield from in_columns(name, field, (origin.column,), origin.table, upstream)
    if target.corrections is not None:
        yield from _of_corrections(target)


def _of_day_column(target: TargetTable, own: ColumnTypes) -> Iterator[Problem]:
    if target.day_column:
        yield from of_kind(target.name, "day_column", target.day_column, target.name, own, DAY)


def _of_folders(name: str, own: ColumnTypes) -> Iterator[Problem]:
    """Say which columns have names that a batch is written with besides."""
    for column in sorted(one for one in own if one.lower() in _FOLDERS):  # Spark tells no capitals apart
        yield Problem(
            f"column {column} has the name of a folder",
            "staged files lie in folders of these names, one for each chunk and partition",
            "give the column another name",
            f"{name}: model",
        )


def _of_lineage_in_use(target: TargetTable, own: ColumnTypes) -> Iterator[Problem]:
    """Say that a lineage column is the day, the key or the entity of rows: it is the run's, and another one in each."""
    lineage = lineage_columns(target.model)
    asked = {"day_column": (target.day_column,), "key": texts(target.key), "entity": (target.entity,)}
    for field, names in asked.items():
        for column in (one for one in names if one in lineage and one in own):
            yield Problem(
                f"{field} of {target.name} names {column!r}, a lineage column",
                "the platform gives every row of a run the same lineage: it says which run made a row, and nothing of the row",
                "name a column that the transform returns",
                f"{target.name}: {field}",
            )


def _of_missing_lineage(target: TargetTable, own: ColumnTypes) -> Iterator[Problem]:
    """Say what a table cannot have whose rows do not say which run made them."""
    model = target.model.__name__
    for column in LINEAGE_COLUMNS:
        if column in own:
            yield Problem(
                f"{model} has a column {column}, and does not inherit Published",
                "columns of that name say which run made a row; a table has all of them, or none",
                f"class {model}(ba.Published), or give the column another name",
                f"{target.name}: model",
            )
    for field, why in (
        ("entity", "a merge leaves rows of several runs in a chunk"),
        ("corrections", "a correction names the run of the row that it corrects"),
    ):
        if getattr(target, field) is not None:
            yield Problem(
                f"{model} does not inherit Published, and {field} is declared",
                f"{why}: only lineage columns say which run made which row",
                f"class {model}(ba.Published), or leave {field} out",
                f"{target.name}: {field}",
            )


def _of_types_in_use(target: TargetTable, own: ColumnTypes) -> Iterator[Problem]:
    """Say which columns have a type that cannot do what a field of the declaration wants of them."""
    name, bytes_ = target.name, uuids(target.model)
    uses: list[tuple[str, Sequence[str], Callable[[str, pl.DataType], bool], str, str]] = [
        (
            "key",
            texts(target.key),
            lambda _, kind: orders_rows(kind),
            "a key identifies a row and orders it: a floating-point number is rounded, and what has others inside has no one order",
            "name another column, or declare this one as a decimal, an integer or a text",
        ),
        (
            "version_column",
            (target.version_column,),
            lambda _, kind: orders_rows(kind) and kind not in {pl.Binary, pl.Time, pl.Boolean},
            "it says which of two rows of a key is newer, of any two",
            "name a column that has a number, a day or an instant in each row, or leave it out: it is produced_at then",
        ),
        (
            "entity",
            () if target.entity is None else (target.entity,),
            lambda one, kind: orders_rows(kind) and one not in bytes_ and kind not in {pl.Binary, pl.Time, pl.Boolean},
            "a manifest names entities, and rows are found by them in the source and here",
            "name a column of text, of integers or of days; an id as a text",
        ),
        (
            "outline",
            () if target.outline is None else texts(target.outline.columns),
            lambda _, kind: not is_nested(kind) and kind != pl.Time,
            "an outline has plain columns, which Polars writes and Spark reads",
            "have the outline's function return a text or a number that it makes of the value, or leave the column out",
        ),
    ]
    for field, names, can, rule, fix in uses:
        for one in names:
            if one in own and _is_stored(one, own[one]) and not can(one, own[one]):
                if field == "version_column" and own[one] == pl.Boolean:
                    continue  # said of the key's versions, with what may be NULL
                what = "a UUID" if one in bytes_ else str(own[one])
                yield Problem(f"{field} names {one!r}, which is {what}", rule, fix, f"{name}: {field}")


def _of_diff_tolerances(target: TargetTable, own: ColumnTypes) -> Iterator[Problem]:
    where = f"{target.name}: diff_tolerances"
    yield from in_columns(target.name, "diff_tolerances", target.diff_tolerances, target.name, own)
    for name, value in target.diff_tolerances.items():
        if name in own and not (is_floating(own[name]) and name not in texts(target.key)):
            yield Problem(
                f"diff_tolerances names {name!r}, which is {own[name]}",
                "a tolerance is one of rounding, which floating-point numbers have: every other value is compared exactly",
                "take it out, or declare the column as pl.Float64",
                where,
            )
        if not is_amount(value) or not value:
            what, rule = f"the tolerance of {name!r} is {value!r}", "it is a number above 0, in the column's own unit"
            yield Problem(what, rule, "for example 1e-9; without one, values are compared exactly", where)


def _is_stored(name: str, kind: pl.DataType) -> bool:
    """Return whether a type is one of a table's: of any other, that is said."""
    try:
        in_table(name, kind)
    except (TypeError, ValueError):
        return False
    return True


def _of_key(target: TargetTable, own: ColumnTypes) -> Iterator[Problem]:
    schema = target.model.to_schema()
    key = texts(target.key)
    if key and schema.unique and set(schema.unique) <= schema.columns.keys() and set(schema.unique) != set(key):
        yield Problem(
            f"the key of {target.name} is {', '.join(key)}, and its model says that {', '.join(schema.unique)} is unique",
            "the key is what is unique",
            "correct the key, or `unique` in the model's Config",
            f"{target.name}: key",
        )
    version = schema.columns.get(target.version_column)
    if version is not None and (version.nullable or own[target.version_column] == pl.Boolean):
        what = "may be NULL" if version.nullable else "is a truth"
        yield Problem(
            f"version_column {target.version_column!r} {what}",
            "it says which of two rows of a key is newer, of any two",
            "name a column that has a number, a day or an instant in each row, or leave it out: it is produced_at then",
            f"{target.name}: version_column",
        )
    if target.entity is None:
        return
    found_by = dict.fromkeys((*key, target.entity))
    empty = [name for name in found_by if name in schema.columns and schema.columns[name].nullable]
    if empty:
        yield Problem(
            f"{target.name} declares entity={target.entity!r}, and its model allows NULL in {', '.join(empty)}",
            "a merge finds rows by entity and key, and would leave such a row where it is for ever",
            "declare the column without nullable=True, or declare no entity",
            f"{target.name}: entity",
        )


def _of_corrections(target: TargetTable) -> Iterator[Problem]:
    assert target.corrections is not None
    table, model, where = target.corrections.name, target.corrections.model, f"{target.name}: corrections"
    yield from of_name(table, where)
    own, problems = declared_columns(table, model)
    yield from problems
    if own is None:
        return
    if not issubclass(model, Corrections):
        yield Problem(
            f"{model.__name__} does not inherit Corrections",
            "a correction says what it corrects, from what to what and why",
            f"class {model.__name__}(ba.Corrections), with the columns of the key",
            where,
        )
    yield from of_unique(table, model)
    yield from of_values(table, model, own)
    yield from former_name_problems(table, model)
    if texts(target.key):
        yield from in_columns(target.name, "corrections", texts(target.key), table, own)
        yield from _of_corrections_columns(target, own, where)


def _of_corrections_columns(target: TargetTable, own: ColumnTypes, where: str) -> Iterator[Problem]:
    """Say which columns of a corrections table are not the key's, or of another type: nothing would fill them."""
    assert target.corrections is not None
    key, of_target = texts(target.key), dtypes(target.model)
    for name in (one for one in key if one in own and one in of_target and own[one] != of_target[one]):
        yield Problem(
            f"{name!r} of {target.corrections.name} is {own[name]}, and of {target.name} {of_target[name]}",
            "a correction has the key of the row that it corrects",
            f"declare it as {of_target[name]}, as {target.model.__name__} does",
            where,
        )
    lineage = dtypes(Corrections)
    for name in (one for one in own if one not in key and one not in lineage):
        yield Problem(
            f"{name!r} of {target.corrections.name} is no column of the key of {target.name}",
            "a correction has the key, and what `ba.Corrections` declares; the other columns are in old_values and new_values",
            "take the column out of the model of corrections",
            where,
        )


def _single_texts(target: TargetTable) -> Iterator[Problem]:
    fields: dict[str, Any] = {
        "key": target.key,
        "references": target.references,
        "look_back_columns": target.look_back_columns,
        "outline": () if target.outline is None else target.outline.columns,
    }
    for field, value in fields.items():
        if isinstance(value, str):
            yield no_tuple(f"{target.name}: {field}", f"{field} is", value)
        else:
            yield from _of_repeated(f"{target.name}: {field}", field, value)
    if not target.key:
        yield Problem("key is empty", "a key identifies a row", "name its columns", f"{target.name}: key")


def _of_repeated(where: str, field: str, names: Sequence[str]) -> Iterator[Problem]:
    for name, times in Counter(names).items():
        if times > 1:
            yield Problem(f"{field} has {name!r} {times} times", "each is named once", "take the others out", where)


def _of_references(
    target: TargetTable, columns: Mapping[str, ColumnTypes | None], references: set[str]
) -> Iterator[Problem]:
    """Say which references are not declared, or declared as something else: the rows of a reference are read whole."""
    for name in texts(target.references):
        yield from of_declared_table(target.name, "references", name, columns, sorted(references))
        if name in columns and name not in references:
            yield Problem(
                f"{name} is {'the source' if name == target.source else 'no reference table'}",
                "a reference is an InputTable with is_reference=True, and planning reads it whole",
                "declare it so if it is one, or take it out; a source is read as `inputs.source`",
                f"{target.name}: references",
            )


def _of_chunks(target: TargetTable) -> Iterator[Problem]:
    if target.chunking is Chunking.WHOLE:
        return
    bounds = {}
    for field in ("chunks_from", "chunks_until"):
        if getattr(target, field) == "":
            continue  # said of what a table with time needs
        try:
            bounds[field] = first_day(target.chunking, getattr(target, field))
        except InputRefused as refused:
            problem = refused.problems[0]
            yield Problem(problem.what, problem.rule, "correct it", f"{target.name}: {field}")
        except (TypeError, AttributeError):  # no text at all
            yield Problem(
                f"{field} is {getattr(target, field)!r}",
                f"it is the text of a chunk, a {target.chunking}",
                f"for example {EXAMPLES[target.chunking]!r}, in quotes",
                f"{target.name}: {field}",
            )
    if len(bounds) == len(("from", "until")) and bounds["chunks_from"] > bounds["chunks_until"]:
        yield Problem(
            f"chunks_from {target.chunks_from} is after chunks_until {target.chunks_until}",
            "a table has one chunk or more",
            "exchange them",
            f"{target.name}: chunks_from",
        )
    yield from of_bounds(target, bounds)


def _of_transform(target: TargetTable) -> Iterator[Problem]:
    if not re.fullmatch(NAME_PATTERN, target.transform):
        yield Problem(
            f"transform is {target.transform!r}",
            f"a manifest names it: {NAME_WORDS}",
            "for example meter_daily",
            f"{target.name}: transform",
        )


def _of_versions(target: TargetTable) -> Iterator[Problem]:
    where = f"{target.name}: versions"
    if not target.versions:
        yield Problem(
            "versions is empty",
            "a table is computed with a version of its transform",
            'for example versions={"1.0.0": ba.TransformVersion(function)}',
            where,
        )
    for name, version in target.versions.items():
        if not isinstance(name, str):
            yield Problem(
                f"a version is named {name!r}", "its name is a text, as in a manifest", "put it in quotes", where
            )
        elif not re.fullmatch(VERSION_PATTERN, name):
            yield Problem(
                f"a version is named {name!r}", f"a manifest names it: {VERSION_WORDS}", "for example 1.0.0", where
            )
        if not isinstance(version, TransformVersion):
            yield Problem(
                f"version {name!r} is {version!r}",
                "a version is a TransformVersion",
                f'write "{name}": ba.TransformVersion(function)',
                where,
            )
        elif wrong := _wrong_without(target, name, version):
            yield wrong
        elif not isinstance(version.clustered, bool):
            yield Problem(
                f"clustered of version {name!r} is {version.clustered!r}",
                "it is True or False",
                "write it without quotes",
                where,
            )


def _wrong_without(target: TargetTable, name: str, version: TransformVersion) -> Problem | None:
    """Say which columns cannot have come after a version of a transform."""
    without: Any = version.without
    where = f"{target.name}: versions"
    if not isinstance(without, tuple) or not all(isinstance(one, str) for one in without):
        rule = "it is a tuple of the columns that the table got after the version"
        return Problem(f"without of version {name!r} is {without!r}", rule, 'for example without=("quality",)', where)
    schema = target.model.to_schema().columns
    found_by = {*target.key, target.day_column, target.entity, target.version_column, *lineage_columns(target.model)}
    found_by |= {getattr(target.chunk_values, "column", None)}
    wrong = [one for one in without if one not in schema or one in found_by or not schema[one].nullable]
    if not wrong:
        return None
    return Problem(
        f"without of version {name!r} has {', '.join(wrong)}",
        "it names columns of the model that may be NULL: a version knows nothing of what came after it; rows are found by their "
        "key and their day, and have their lineage",
        "correct the names, or declare these columns with `pa.Field(nullable=True)`",
        where,
    )
