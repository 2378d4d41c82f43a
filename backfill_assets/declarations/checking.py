"""What the products declare, held together when it is loaded: each mistake is a reason of one refusal.

Put here what can be said of a declaration without opening a table: names that must be columns, tables that must be
declared, types that a row digest or Iceberg has no encoding for. What needs the tables' state is the planner's. Nothing
here computes: Spark's workers are forked from processes that have imported this.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

import polars as pl

from backfill_assets.declarations.canonical_types import canonical_type
from backfill_assets.declarations.places import ROOT, is_core
from backfill_assets.declarations.quarantine import with_quarantines
from backfill_assets.declarations.schema import Corrections, Published, dtypes, iceberg_type
from backfill_assets.declarations.target import (
    ACCEPTED_ROWS_GATE,
    ALL_CHUNKS_GATE,
    EXPECTED_ROWS_GATE,
    NAME,
    PUBLISHED_RULES_GATE,
    InputTable,
    Product,
    Reconciliation,
    TargetTable,
    TransformVersion,
    WrongArgumentsError,
    is_amount,
)
from manifests.chunks import aligned, first_day
from manifests.errors import InputRefused, Problem
from manifests.model import PublishMode
from manifests.policy import OLD_DATA_GATE

_IMPORTING = Path(import_module.__code__.co_filename)
"""Where Python's own function imports a product: the lines of the product come after it."""
_NAME = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*")
_OFFSET = re.compile(r"[+-](0\d|1[0-8]):[0-5]\d")
_NOT_IN_MODULE = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_NO_ARGUMENT = re.compile(r"(\w+)\(\) got an unexpected keyword argument '(\w+)'")
_TARGET_TYPES = "a target has str, pl.Int32, pl.Int64, bool, pl.Date, Instant and Annotated[pl.Decimal, p, s]"
_INPUT_TYPES = "an input table may have pl.Float64 and pl.List(...) besides the types of a target"


def import_problems(error: Exception, module: str) -> list[Problem]:
    """Return what kept a product's module from being imported: the error, and the line of the product that it is in.

    Of arguments that a declaration does not have, or lacks, each is a reason of its own.
    """
    if isinstance(error, WrongArgumentsError):
        said = list(error.reasons)
    else:
        said = [str(error.msg) if isinstance(error, SyntaxError) else _words(error)]
    rule = "the modules of every product are imported before anything else is done"
    fix = (
        "correct that line, or leave the product out (`products` in backfill.toml names those that are served); "
        f"the whole traceback: `python -c 'import {module}'`"
    )
    return [Problem(one, rule, fix, _line_of(error)) for one in said]


def _words(error: Exception) -> str:
    """Return an error as Python words it, with the name that was probably meant."""
    meant = ""
    if isinstance(error, AttributeError) and error.name:
        meant = _meant(error.name, dir(error.obj))
    elif isinstance(error, ImportError) and (found := _NOT_IN_MODULE.match(str(error))):
        meant = _meant(found[1], dir(sys.modules.get(found[2])))
    elif isinstance(error, TypeError) and (found := _NO_ARGUMENT.match(str(error))):
        function = getattr(sys.modules["backfill_assets"], found[1], None)
        meant = _meant(found[2], signature(function).parameters) if callable(function) else ""
    return f"{type(error).__name__}: {error}{'' if 'id you mean' in str(error) else meant}"


def _line_of(error: Exception) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(Path(error.filename))}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    at = max((number for number, frame in enumerate(frames) if Path(frame.filename) == _IMPORTING), default=-1)
    inside = frames[at + 1 :]
    # the line of the product, not the one in pandera or here that found the mistake
    home = Path(inside[0].filename).parent if inside else ROOT
    own = [frame for frame in inside if Path(frame.filename).is_relative_to(home) and not is_core(frame.filename)]
    found = (own or inside[:1] or frames[at:] or frames)[-1]
    return f"{_shown(Path(found.filename))}:{found.lineno}"


def _shown(file: Path) -> str:
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else str(file)


def problems_of(declared: Sequence[Product]) -> list[Problem]:
    """Return everything in the declarations of an installation's products that cannot be used."""
    return list(_problems(declared))


_Columns = Mapping[str, pl.DataType]


def _problems(declared: Sequence[Product]) -> Iterator[Problem]:
    inputs = [table for product in declared for table in with_quarantines(product.inputs)]
    targets = [target for product in declared for target in product.targets]
    columns: dict[str, _Columns | None] = {}
    tables: list[InputTable | TargetTable] = [*inputs, *targets]
    for table in tables:
        try:
            columns[table.name] = dtypes(table.model)
        except Exception as error:  # noqa: BLE001 - pandera raises what it meets in a model
            columns[table.name] = None
            yield Problem(_words(error), "pandera makes a schema of it", "correct the model", f"{table.name}: model")
    yield from _twice(declared, inputs, targets)
    references = {table.name for table in inputs if table.is_reference}
    for product in declared:
        named = {} if product.references is None else {"references": product.references}
        named |= {f"loaders[{name!r}]": path for name, path in product.loaders.items()}
        for name, path in named.items():
            if not re.fullmatch(r"[\w.]+:\w+", path):
                yield Problem(
                    f"{name}={path!r}",
                    "it names a function or an attribute of a module, as `module:name`",
                    "write the full name of the module, a colon and the name",
                    f"product {product.name}",
                )
        for name in product.loaders:
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
                yield Problem(
                    f"a loader is named {name!r}",
                    "it is a command: small letters, digits and hyphens, where a table's name has a dot",
                    "for example case-events",
                    f"product {product.name}",
                )
        for own in product.inputs:
            yield from _of_input(own, columns)
        for target in product.targets:
            yield from _not_gates(target)
            yield from _of_target(_with_gates(target), columns, references)


def _twice(
    declared: Sequence[Product], inputs: Sequence[InputTable], targets: Sequence[TargetTable]
) -> Iterator[Problem]:
    named = [table.name for table in inputs] + [target.name for target in targets]
    named += [target.corrections.name for target in targets if target.corrections is not None]
    kinds = {"table": named + [target.changes for target in targets], "product": [one.name for one in declared]}
    for kind, names in kinds.items():
        for name, times in Counter(names).items():
            if times > 1:
                yield Problem(
                    f"{kind} {name} is declared {times} times",
                    f"a name stands for one {kind} in all products",
                    "give one of them another name; `<target>_changes` and `<input>_quarantine` are taken by the platform",
                )


def _of_input(table: InputTable, columns: Mapping[str, _Columns | None]) -> Iterator[Problem]:
    own = columns[table.name]
    yield from _of_every(table)
    if own is None:
        return
    yield from _without_type(table.name, own, _in_iceberg, _INPUT_TYPES)
    if table.partition_by is not None:
        yield from _of_kind(table.name, "partition_by", table.partition_by, table.name, own, _INSTANT)
    if table.quarantine_of:
        yield from _declared_table(table.name, "quarantine_of", table.quarantine_of, columns)


def _of_target(target: TargetTable, columns: Mapping[str, _Columns | None], references: set[str]) -> Iterator[Problem]:
    yield from _of_every(target)
    yield from _not_text(target)
    yield from _of_chunks(target)
    yield from _of_versions(target)
    yield from _of_gates(target)
    yield from _of_functions(target)
    yield from _of_live(target)
    for name in ("model", "measure", "outline.rows"):
        yield from _importable(target, name)
    yield from _declared_table(target.name, "source", target.source, columns)
    for name in _texts(target.references):
        yield from _declared_table(target.name, "references", name, columns, sorted(references))
    own, source = columns[target.name], columns.get(target.source)
    if own is not None:
        yield from _of_own_columns(target, own, columns)
    if source is not None:
        of = target.source
        yield from _of_kind(target.name, "source_time_column", target.source_time_column, of, source, _INSTANT)
        yield from _in_columns(target.name, "look_back_columns", _texts(target.look_back_columns), of, source)
        if target.entity is not None:
            yield from _in_columns(target.name, "entity", (target.entity,), of, source)
    for gate in target.reconciliations:
        yield from _of_needs(target, gate, own, source)


def _of_own_columns(target: TargetTable, own: _Columns, columns: Mapping[str, _Columns | None]) -> Iterator[Problem]:
    name = target.name
    if not issubclass(target.model, Published):
        yield Problem(
            f"{target.model.__name__} does not inherit Published",
            "it adds the columns that say which run made a row, and refuses columns that are not declared",
            f"class {target.model.__name__}(ba.Published)",
            f"{name}: model",
        )
    yield from _without_type(name, own, _in_digest, _TARGET_TYPES)
    yield from _of_kind(name, "day_column", target.day_column, name, own, _DATE)
    yield from _in_columns(name, "key", _texts(target.key), name, own)
    yield from _of_key(target)
    yield from _in_columns(name, "version_column", (target.version_column,), name, own)
    if target.entity is not None:
        yield from _in_columns(name, "entity", (target.entity,), name, own)
    if target.outline is not None:
        yield from _in_columns(name, "outline", _texts(target.outline.columns), name, own)
    yield from _in_columns(name, "column_origins", target.column_origins, name, own)
    for column, origins in target.column_origins.items():
        for origin in origins:
            field = f"column_origins[{column!r}]"
            yield from _declared_table(name, field, origin.table, columns)
            upstream = columns.get(origin.table)
            if upstream is not None:
                yield from _in_columns(name, field, (origin.column,), origin.table, upstream)
    if target.corrections is not None:
        yield from _of_corrections(target)


def _of_key(target: TargetTable) -> Iterator[Problem]:
    schema = target.model.to_schema()
    key = _texts(target.key)
    if schema.unique and set(schema.unique) != set(key):
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
    model, where = target.corrections.model, f"{target.name}: corrections"
    if not issubclass(model, Corrections):
        yield Problem(
            f"{model.__name__} does not inherit Corrections",
            "a correction says what it corrects, from what to what and why",
            f"class {model.__name__}(ba.Corrections), with the columns of the key",
            where,
        )
    yield from _in_columns(target.name, "corrections", _texts(target.key), target.corrections.name, dtypes(model))


# --- one kind of mistake each -----------------------------------------------------------------------------------------

_DATE = ("a date (pl.Date)", lambda kind: kind == pl.Date)
_INSTANT = ("an instant (ba.Instant, timestamptz)", lambda kind: kind == pl.Datetime("us", "UTC"))


def _of_every(table: InputTable | TargetTable) -> Iterator[Problem]:
    if not _NAME.fullmatch(table.name):
        yield Problem(
            f"a table is named {table.name!r}",
            "a table's name is <namespace>.<table>, of letters, digits and underscores",
            "for example silver.meter_daily",
        )
    wrong = [owner for owner in _texts(table.owners) if not owner.startswith("team:") and "@" not in owner]
    if wrong or isinstance(table.owners, str) or not table.owners:
        yield Problem(
            f"owners={table.owners!r}",
            "an owner is team:NAME or an e-mail address, and a table has one or more",
            'for example owners=("team:metering",)',
            table.name,
        )


def _texts(value: Any) -> tuple[Any, ...]:
    """Return the names of a field that has several; none of one that is a single text: `_not_text` says so."""
    return () if isinstance(value, str) else tuple(value)


def _not_text(target: TargetTable) -> Iterator[Problem]:
    fields: dict[str, Any] = {
        "key": target.key,
        "references": target.references,
        "look_back_columns": target.look_back_columns,
        "outline": () if target.outline is None else target.outline.columns,
    }
    for field, value in fields.items():
        if isinstance(value, str):
            yield _no_tuple(f"{target.name}: {field}", f"{field} is", value)
    if not target.key:
        yield Problem("key is empty", "a key identifies a row", "name its columns", f"{target.name}: key")


def _in_columns(table: str, field: str, names: Iterable[str], of: str, columns: _Columns) -> Iterator[Problem]:
    for name in names:
        if name not in columns:
            yield Problem(
                f"{name!r} is no column of {of}" + _meant(name, columns),
                f"columns of {of} are {', '.join(columns)}",
                "correct the name, or declare the column in the model",
                f"{table}: {field}",
            )


def _of_kind(
    table: str, field: str, name: str, of: str, columns: _Columns, kind: tuple[str, Callable[[Any], bool]]
) -> Iterator[Problem]:
    yield from _in_columns(table, field, (name,), of, columns)
    if name in columns and not kind[1](columns[name]):
        yield Problem(
            f"{name!r} of {of} is {columns[name]}",
            f"{field} names {kind[0]}",
            "name another column, or correct its type in the model",
            f"{table}: {field}",
        )


def _declared_table(
    table: str, field: str, name: str, columns: Mapping[str, Any], offered: Sequence[str] | None = None
) -> Iterator[Problem]:
    if name not in columns:
        names = sorted(columns) if offered is None else offered
        yield Problem(
            f"no product declares the table {name!r}" + _meant(name, names),
            f"declared are {', '.join(names) or 'none'}",
            "correct the name, or declare it as an InputTable of a product",
            f"{table}: {field}",
        )


def _no_tuple(where: str, what: str, value: str) -> Problem:
    return Problem(
        f"{what} the text {value!r}",
        "several names are a tuple; one name in brackets is no tuple",
        f"write ({value!r},), with the comma",
        where,
    )


def _meant(name: Any, names: Iterable[str]) -> str:
    close = get_close_matches(str(name), list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _in_iceberg(name: str, kind: pl.DataType) -> None:
    iceberg_type(name, kind, 0)


def _in_digest(name: str, kind: pl.DataType) -> None:
    canonical_type(name, kind)
    iceberg_type(name, kind, 0)


def _without_type(
    table: str, columns: _Columns, encode: Callable[[str, pl.DataType], None], rule: str
) -> Iterator[Problem]:
    for name, kind in columns.items():
        try:
            encode(name, kind)
        except (TypeError, ValueError) as error:
            yield Problem(str(error), rule, "declare another type; money is a decimal", f"{table}: model")


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


def _gates(target: TargetTable) -> Sequence[Any]:
    """Return what is declared as the gates of a target."""
    given: Any = target.reconciliations
    return given if isinstance(given, (tuple, list)) else (given,)


def _not_gates(target: TargetTable) -> Iterator[Problem]:
    field, made = f"{target.name}: reconciliations", "a gate is a Reconciliation, as `ba.change_gate()` returns one"
    if not isinstance(target.reconciliations, (tuple, list)):
        fix = "write (GATE,), with the comma"
        yield Problem(f"it is {target.reconciliations!r}"[:200], "several gates are a tuple", fix, field)
        return
    for gate in _gates(target):
        if not isinstance(gate, Reconciliation):
            yield Problem(f"{gate!r} is no gate", made, "call the function that makes it", field)


def _with_gates(target: TargetTable) -> TargetTable:
    """Return a target with those of its gates that are some."""
    return replace(target, reconciliations=tuple(one for one in _gates(target) if isinstance(one, Reconciliation)))


def _not_amounts(tolerances: Mapping[str, Any], where: str) -> Iterator[Problem]:
    for name, value in tolerances.items():
        if not is_amount(value):
            yield Problem(f"{name} is {value!r}", "a tolerance is a number, 0 or more", "for example 0.5", where)


def _of_gate(target: TargetTable, gate: Reconciliation) -> Iterator[Problem]:
    where = f"{target.name}: gate {gate.name}"
    if not (isinstance(gate.name, str) and re.fullmatch(NAME, gate.name)):
        rule = "a gate has a name of letters, digits and _"
        yield Problem(f"name is {gate.name!r}", rule, "for example totals_agree", where)
    yield from (replace(one, where=where) for one in gate.mistakes)
    yield from _not_amounts(gate.tolerances, where)
    if type(gate.exceptions_limit) is not int or gate.exceptions_limit < 0:
        rule = "it is how many rows that disagree are kept, 0 or more"
        yield Problem(f"exceptions_limit is {gate.exceptions_limit!r}", rule, "for example 10_000", where)


def _of_gates(target: TargetTable) -> Iterator[Problem]:
    yield from _not_amounts(target.tolerances, f"{target.name}: tolerances")
    for gate in target.reconciliations:
        yield from _of_gate(target, gate)
    if target.live is not None:
        yield from _not_amounts(target.live.tolerances, f"{target.name}: live")
    own = [item.name for item in target.reconciliations if isinstance(item.name, str)]
    known = [ALL_CHUNKS_GATE, EXPECTED_ROWS_GATE, *own]
    for name, times in Counter([*known, PUBLISHED_RULES_GATE, ACCEPTED_ROWS_GATE, OLD_DATA_GATE]).items():
        if times > 1:
            yield Problem(
                f"gate {name} is declared {times} times",
                "a gate's name stands for one gate",
                "give one of them another name",
                f"{target.name}: reconciliations",
            )
    asked = {
        "live": (target.live.gates if target.live else None, known),
        "reconciled": (target.reconciled.gates if target.reconciled else None, target.published_gates),
    }
    for field, (names, there) in asked.items():
        for name in names or ():
            if name not in there:
                yield Problem(
                    f"{name!r} is no gate" + _meant(name, there),
                    f"gates are {', '.join(there)}",
                    "correct the name",
                    f"{target.name}: {field}",
                )
    for name in target.live.tolerances if target.live else ():
        if name not in target.all_tolerances:
            yield Problem(
                f"{name!r} is no tolerance" + _meant(name, target.all_tolerances),
                f"tolerances are {', '.join(target.all_tolerances) or 'none'}",
                "correct the name, or declare it in `tolerances`",
                f"{target.name}: live",
            )


def _of_needs(
    target: TargetTable, gate: Reconciliation, own: _Columns | None, source: _Columns | None
) -> Iterator[Problem]:
    """Say of what a gate looks for by name what is not there: while it judges it would raise, once everything is computed."""
    field, needs = f"gate {gate.name}", gate.needs
    of = target.name
    if own is not None and target.outline is not None:
        of = f"the outline of {target.name}"
        own = {name: own[name] for name in _texts(target.outline.columns) if name in own}
    for side, names, table, columns in (
        ("source", needs.source, target.source, source),
        ("target", needs.target, of, own),
    ):
        if isinstance(names, str):
            yield _no_tuple(f"{target.name}: {field}", f"its {side} columns are", names)
        elif columns is not None:
            yield from _in_columns(target.name, field, names, table, columns)
    if not _is_zone(needs.zone):
        yield Problem(
            f"{needs.zone!r} is no time zone" + _meant(needs.zone, _zones()),
            "a zone has its name in the time zone database, or is an offset",
            "for example Europe/Rome, UTC or +02:00",
            f"{target.name}: {field}",
        )
    for name in needs.tolerances:
        if name not in target.all_tolerances:
            yield Problem(
                f"{name!r} is no tolerance" + _meant(name, target.all_tolerances),
                f"tolerances of {target.name} are {', '.join(target.all_tolerances) or 'none'}",
                "correct the name, or declare it with its default in `tolerances`",
                f"{target.name}: {field}",
            )


def _is_zone(name: Any) -> bool:
    return isinstance(name, str) and (name == "UTC" or _OFFSET.fullmatch(name) is not None or name in _zones())


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


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
