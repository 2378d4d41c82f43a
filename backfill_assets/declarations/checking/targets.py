"""Mistakes in the declaration of a target: its columns, key, chunks, versions, functions, LIVE and corrections.

Put here one function a part of a `TargetTable`, called by `of_target`. Its gates are held against it in `gates`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any

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
from backfill_assets.declarations.checking.gates import of_gates, of_needs
from backfill_assets.declarations.checking.names import no_tuple, texts
from backfill_assets.declarations.checking.tables import of_every_table
from backfill_assets.declarations.schema import Corrections, Published
from backfill_assets.declarations.target import LivePolicy, ReconciliationPolicy, TargetTable, TransformVersion
from manifests.chunks import aligned, first_day
from manifests.errors import InputRefused, Problem
from manifests.fields import NAME_PATTERN, NAME_WORDS, VERSION_PATTERN, VERSION_WORDS
from manifests.model import PublishMode
from manifests.text import NAME_RULE, not_a_name


def of_target(
    target: TargetTable, columns: Mapping[str, ColumnTypes | None], references: set[str]
) -> Iterator[Problem]:
    """Say what is wrong with the declaration of a target, part by part."""
    yield from of_every_table(target)
    yield from _single_texts(target)
    yield from _of_chunks(target)
    yield from _of_transform(target)
    yield from _of_versions(target)
    yield from _of_names(target)
    yield from of_gates(target)
    yield from _of_functions(target)
    yield from _of_live(target)
    for name in ("model", "measure", "outline.rows"):
        yield from _importable(target, name)
    yield from of_declared_table(target.name, "source", target.source, columns)
    for name in texts(target.references):
        yield from of_declared_table(target.name, "references", name, columns, sorted(references))
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
    yield from of_kind(name, "day_column", target.day_column, name, own, DATE)
    yield from in_columns(name, "key", texts(target.key), name, own)
    yield from _of_key(target)
    yield from in_columns(name, "version_column", (target.version_column,), name, own)
    if target.entity is not None:
        yield from in_columns(name, "entity", (target.entity,), name, own)
    if target.outline is not None:
        yield from in_columns(name, "outline", texts(target.outline.columns), name, own)
    yield from in_columns(name, "column_origins", target.column_origins, name, own)
    for column, origins in target.column_origins.items():
        for origin in origins:
            field = f"column_origins[{column!r}]"
            yield from of_declared_table(name, field, origin.table, columns)
            upstream = columns.get(origin.table)
            if upstream is not None:
                yield from in_columns(name, field, (origin.column,), origin.table, upstream)
    if target.corrections is not None:
        yield from _of_corrections(target)


def _of_key(target: TargetTable) -> Iterator[Problem]:
    schema = target.model.to_schema()
    key = texts(target.key)
    if schema.unique and set(schema.unique) <= schema.columns.keys() and set(schema.unique) != set(key):
        yield Problem(
            f"the key of {target.name} is {', '.join(key)}, and its model says that {', '.join(schema.unique)} is unique",
            "the key is what is unique",
            "correct the key, or `unique` in the model's Config",
            f"{target.name}: key",
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


def _of_live(target: TargetTable) -> Iterator[Problem]:
    live, where = target.live, f"{target.name}: live"
    if live is None:
        return
    if live.rewind_days < 0:
        yield Problem(f"rewind_days is {live.rewind_days}", "LIVE goes back by 0 days or more", "correct it", where)
    if live.publish_mode is not PublishMode.REPLACE_PARTITIONS:
        yield Problem(
            f"publish_mode is {live.publish_mode}",
            "a rewind covers days again, which is a replacement",
            "take it out",
            where,
        )
    begins = live.begins_on
    if begins is not None and aligned(target.chunking, begins, begins)[0] != begins:
        yield Problem(
            f"begins_on is {begins}, in the middle of a {target.chunking}",
            "LIVE begins with the first day of a chunk",
            f"{aligned(target.chunking, begins, begins)[0]}, or the first day of the one after it",
            where,
        )


def _of_corrections(target: TargetTable) -> Iterator[Problem]:
    assert target.corrections is not None
    table, model, where = target.corrections.name, target.corrections.model, f"{target.name}: corrections"
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
    yield from in_columns(target.name, "corrections", texts(target.key), table, own)
    yield from of_unique(table, model)


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
    if not target.key:
        yield Problem("key is empty", "a key identifies a row", "name its columns", f"{target.name}: key")


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
                "write it in quotes",
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


def _of_names(target: TargetTable) -> Iterator[Problem]:
    """Say of whom a policy of a target names that nobody is named so."""
    policies: dict[str, LivePolicy | ReconciliationPolicy | None] = {
        "live": target.live,
        "reconciled": target.reconciled,
    }
    for field, policy in policies.items():
        for name in ("requested_by", "approved_by"):
            value: Any = getattr(policy, name, "nobody")
            is_name = isinstance(value, str) and value.strip()
            wrong = not_a_name(value) if is_name else ""
            if wrong is not None:
                what = f"{name} is {value!r}" + (f": {wrong}" if wrong else "")
                yield Problem(what, NAME_RULE, "write who it is, or leave it out", f"{target.name}: {field}")


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
    if target.live is not None and target.live.transform_version not in target.versions:
        yield Problem(
            f"{target.live.transform_version!r} is no version",
            f"versions are {', '.join(target.versions)}",
            "correct live.transform_version",
            f"{target.name}: live",
        )


def _of_functions(target: TargetTable) -> Iterator[Problem]:
    """Say of what has to be called that it cannot be."""
    outline = None if target.outline is None else target.outline.rows
    fields: dict[str, tuple[Any, str]] = {
        "warm_up_days": (
            target.warm_up_days,
            "from the rows of the pinned references, by table name, to the days to read before the publish range",
        ),
        "measure": (target.measure, "from the rows of one file of a chunk to a small frame of slices and sums"),
        "outline.rows": (outline, "from the rows of one file of a chunk to those that the gates look at"),
    }
    fields |= {
        f"versions[{name!r}]": (version.function, "from the inputs and the context to a Spark frame")
        for name, version in target.versions.items()
        if isinstance(version, TransformVersion)
    }
    fields |= {f"gate {gate.name}": (gate.check, "from the context to a Finding") for gate in target.reconciliations}
    for field, (thing, rule) in fields.items():
        if callable(thing) or (thing is None and field in {"measure", "outline.rows"}):
            continue
        same = (
            f"; {thing!r} days always are `def warm_up(references): return {thing!r}`" if isinstance(thing, int) else ""
        )
        yield Problem(
            f"{field} is {thing!r}",
            f"it is a function, {rule}",
            "name the function, without calling it" + same,
            f"{target.name}: {field}",
        )


def _importable(target: TargetTable, field: str) -> Iterator[Problem]:
    """Say of what Spark's workers import by name that it has none."""
    thing: Any = target
    for part in field.split("."):
        thing = getattr(thing, part, None)
    if thing is None:
        return
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    found: Any = None
    with suppress(KeyError, AttributeError):
        found = attrgetter(str(name))(sys.modules[str(module)])
    if found is not thing:
        yield Problem(
            f"{name or thing!r} is not a name of module {module}",
            "Spark's workers import it by name",
            "define it at the top level of a module; a lambda or an inner function has no such name",
            f"{target.name}: {field}",
        )
