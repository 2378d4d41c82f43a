"""Mistakes in the declaration of a target: its columns, key, chunks, versions, references and corrections.

Put here one function a part of a `TargetTable`, called by `of_target`. What has to be called is held to be so in `functions`,
what a schedule may do in `policies`, its gates in `gates`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from backfill_assets.declarations.checking.columns import (
    DATE,
    INSTANT,
    TARGET_TYPES,
    ColumnTypes,
    declared_columns,
    in_columns,
    in_digest,
    of_declared_table,
    of_kind,
    of_unique,
    without_type,
)
from backfill_assets.declarations.checking.functions import of_functions
from backfill_assets.declarations.checking.gates import of_gates, of_needs
from backfill_assets.declarations.checking.models import of_values
from backfill_assets.declarations.checking.names import no_tuple, texts
from backfill_assets.declarations.checking.policies import of_policies
from backfill_assets.declarations.checking.table_fields import in_words
from backfill_assets.declarations.checking.tables import of_every_table, of_name
from backfill_assets.declarations.column_history import former_name_problems
from backfill_assets.declarations.schema import LINEAGE_COLUMNS, Corrections, Published, dtypes
from backfill_assets.declarations.target import ColumnOrigin, TargetTable, TransformVersion
from manifests.chunks import Chunking, first_day
from manifests.errors import InputRefused, Problem
from manifests.fields import NAME_PATTERN, NAME_WORDS, VERSION_PATTERN, VERSION_WORDS


def of_target(
    target: TargetTable, columns: Mapping[str, ColumnTypes | None], references: set[str]
) -> Iterator[Problem]:
    """Say what is wrong with the declaration of a target, part by part."""
    yield from of_every_table(target)
    yield from _single_texts(target)
    yield from _of_chunks(target)
    yield from _of_transform(target)
    yield from _of_versions(target)
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
    yield from _of_references(target, columns, references)
    own, source = columns[target.name], columns.get(target.source)
    if own is not None:
        yield from _of_own_columns(target, own, columns)
    if source is not None:
        of = target.source
        yield from of_kind(target.name, "source_time_column", target.source_time_column, of, source, INSTANT)
        yield from in_columns(target.name, "look_back_columns", texts(target.look_back_columns), of, source)
        if target.entity is not None:
            yield from in_columns(target.name, "entity", (target.entity,), of, source)
    for gate in target.reconciliations:
        yield from of_needs(target, gate, own, source)


def _of_own_columns(
    target: TargetTable, own: ColumnTypes, columns: Mapping[str, ColumnTypes | None]
) -> Iterator[Problem]:
    name = target.name
    if not issubclass(target.model, Published):
        yield Problem(
            f"{target.model.__name__} does not inherit Published",
            "it adds the columns that say which run made a row, and refuses columns that are not declared",
            f"class {target.model.__name__}(ba.Published)",
            f"{name}: model",
        )
    yield from without_type(name, own, in_digest, TARGET_TYPES)
    yield from of_unique(name, target.model)
    yield from of_values(name, target.model, own)
    yield from former_name_problems(name, target.model)
    yield from of_kind(name, "day_column", target.day_column, name, own, DATE)
    yield from in_columns(name, "key", texts(target.key), name, own)
    yield from _of_key(target, own)
    yield from in_columns(name, "version_column", (target.version_column,), name, own)
    if target.entity is not None:
        yield from in_columns(name, "entity", (target.entity,), name, own)
    if target.outline is not None:
        yield from in_columns(name, "outline", texts(target.outline.columns), name, own)
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
    bounds = {}
    for field in ("chunks_from", "chunks_until"):
        try:
            bounds[field] = first_day(target.chunking, getattr(target, field))
        except InputRefused as refused:
            problem = refused.problems[0]
            yield Problem(problem.what, problem.rule, "correct it", f"{target.name}: {field}")
        except TypeError:
            yield Problem(
                f"{field} is {getattr(target, field)!r}",
                f"it is the text of a chunk, a {target.chunking}",
                f"for example {'2024-01' if target.chunking is Chunking.MONTH else '2024-01-31'!r}, in quotes",
                f"{target.name}: {field}",
            )
    if len(bounds) == len(("from", "until")) and bounds["chunks_from"] > bounds["chunks_until"]:
        yield Problem(
            f"chunks_from {target.chunks_from} is after chunks_until {target.chunks_until}",
            "a table has one chunk or more",
            "exchange them",
            f"{target.name}: chunks_from",
        )


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
    found_by = {*target.key, target.day_column, target.entity, target.version_column, *LINEAGE_COLUMNS}
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
