"""A gate of known cases: rows that somebody has verified or disputed, and what must come out for each.

Put here how they are held against what a run computes. How their file is read is `table_files`'. Imported by Spark's Python
workers: keep it light.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.divided import part_of_value
from backfill_assets.declarations.gate_arguments import declared_with, flag, named_apart, several, text, texts, unless
from backfill_assets.declarations.needs import Needs
from backfill_assets.declarations.schema import dtypes, iceberg_schema, iceberg_type, spark_schema
from backfill_assets.declarations.standard import table_files
from backfill_assets.declarations.standard.parts import FOUND, is_divided_right, judged, table_of
from backfill_assets.declarations.target import (
    Finding,
    Level,
    Reconciliation,
    ReconciliationContext,
    Tables,
    TargetTable,
)
from manifests.chunks import EVER, Chunk, Chunking
from manifests.errors import Problem

_NAMED = 20
_LINE = "_line"
Case = dict[str, Any]
Key = tuple[Any, ...]


@declared_with
def known_keys_gate(
    file: str,
    name: str = "known_cases_come_out",
    *,
    notes: tuple[str, ...] = (),
    absent: str | None = None,
    asks: bool = False,
) -> Reconciliation:
    """Return a gate that known cases come out as they must: each row of a file in the product's package, value by value.

    The file is a CSV table. It has the columns of the target's key, its day column, the column that divides it besides, and those of
    the values that must come out; only the columns that it has are compared. A case is the row of its key on its day, in its part. An
    empty cell is NULL, and `""` is the empty text. Of a run, the cases that lie in its chunks are compared with what readers would
    see; of a merge, those of its entities, where the file has the entity's column. How many are not compared is said, and so is
    that none was. One Spark job looks the keys up.

    Args:
        file: its path, below the folder of the module that declares the gate.
        name: of the gate.
        notes: columns of the file that are shown beside a case that disagrees, and not compared: a ticket, who verified it.
        absent: a column of the file that says `true` of a case that must not be there; empty or `false` of all others.
        asks: whether an owner may accept other values with a reason.
    """
    fits = isinstance(file, str) and bool(file)
    mistakes = [
        *unless(fits, "file", file, "it is the path of a file in the product's package", '"known_cases.csv"'),
        *several("notes", notes, some=False),
        *([] if absent is None else text("absent", absent)),
        *flag("asks", asks),
    ]
    path = table_files.beside_caller(file) if fits else Path()
    read = partial(_cases, path=path, notes=texts(notes), absent=absent if isinstance(absent, str) else None)
    return Reconciliation(
        name,
        Level.RECORD,
        f"The cases of {path.name} come out as they must.",
        partial(_compared, read=read, asks=asks is True),
        needs=Needs(tolerances=()),
        mistakes=tuple(mistakes),
        against=partial(_wrong, gate=name, read=read),
        files=(path,) if fits else (),
    )


# --- the file ---------------------------------------------------------------------------------------------------------


class _Cases:
    """The cases of a file: the columns that are compared, the notes, and the cases in order."""

    def __init__(self, values: tuple[str, ...], notes: tuple[str, ...], cases: list[Case], absent: str | None) -> None:
        self.values, self.notes, self.cases, self._absent = values, notes, cases, absent

    def is_absent(self, case: Case) -> bool:
        """Whether a case must not be there."""
        return self._absent is not None and case[self._absent] is True


def _cases(
    target: TargetTable, *, path: Path, notes: tuple[str, ...], absent: str | None
) -> tuple[_Cases | None, list[Problem]]:
    """Return the cases of a file; where they cannot be compared with a table, None and why."""
    where = f"{target.name}: {path.name}"
    file, problems = table_files.read(path)
    if file is None:
        return None, [Problem(one.what, one.rule, one.fix, where) for one in problems]
    kinds, key, place = dtypes(target.model), texts(target.key), _place(target)
    beside = (*notes, *(() if absent is None else (absent,)))
    what = "those of the table" + (", and its notes" if beside else "")
    wanted = dict.fromkeys((*place, *beside))
    problems = [*named_apart("the key", key, FOUND)]
    problems += list(table_files.wrong_columns(file, dict.fromkeys((*kinds, *beside)), wanted, what, where))
    values = tuple(name for name in file.columns if name not in (*key, *beside))
    if not values and absent is None:
        what = f"{path.name} has no value to compare"
        problems.append(Problem(what, "it has a column of a value that must come out", "add it", where))
    for name in (*key, *values):
        if name in kinds and not table_files.has_values(kinds[name]):
            rule = "a cell of a file has no form for what has others inside"
            fix = "take the column out, or put it among `notes`"
            if name in key:
                fix = "compare cases of such a key with a gate of your own"
            problems.append(Problem(f"{path.name} has {name}, which is {kinds[name]}", rule, fix, where))
    if problems:
        return None, problems
    read = {name: kinds[name] for name in (*key, *values)} | ({} if absent is None else {absent: pl.Boolean()})
    cases, problems = table_files.values_of(file, read, where)
    division = target.chunk_values
    filled = [name for name in place if division is None or name != division.column or not division.nulls]
    problems += _of_keys(file.name, cases, place, filled, where)
    return (None, problems) if problems else (_Cases(values, notes, cases, absent), [])


def _place(target: TargetTable) -> tuple[str, ...]:
    """Return the columns that say which row a case is: a key is unique in its chunk, which the day and the part tell."""
    division = target.chunk_values
    chunk = (target.day_column, "" if division is None else division.column)
    return tuple(dict.fromkeys((*texts(target.key), *filter(None, chunk))))


def _of_keys(
    name: str, cases: Sequence[Case], place: Sequence[str], filled: Sequence[str], where: str
) -> Iterator[Problem]:
    """Say which cases have no key, no day or no part, and which are there twice."""
    seen: dict[Key, int] = {}
    for case in cases:
        empty = [column for column in filled if column in case and case[column] is None]
        if empty:
            rule = "a case has its key, and what says in which chunk it is looked for"
            yield Problem(f"line {case[_LINE]:,} of {name} has no {', '.join(empty)}", rule, "fill it in", where)
            continue
        key = tuple(case.get(column) for column in place)
        if key in seen:
            what = f"lines {seen[key]:,} and {case[_LINE]:,} of {name} have the same key"
            yield Problem(what, "a case is there once", "take one of them out", where)
        seen.setdefault(key, case[_LINE])


def _wrong(target: TargetTable, _tables: Tables, *, gate: str, read: Any) -> Iterator[Problem]:
    for one in read(target)[1] if is_divided_right(target) else ():
        yield Problem(one.what, one.rule, one.fix, f"{one.where or target.name}, gate {gate}")


# --- held against a run -----------------------------------------------------------------------------------------------


def _day_of(value: date) -> date:
    """Return the day by which a case is in a chunk; of an instant that of UTC."""
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).date()
    return value


def _inside(target: TargetTable, cases: Sequence[Case], chunks: Sequence[Chunk]) -> list[Case]:
    """Return the cases that lie in some chunks, by their day and their part."""
    timeless, division = target.chunking is Chunking.WHOLE, target.chunk_values
    days = [EVER[0] if timeless else _day_of(case[target.day_column]) for case in cases]
    parts: Sequence[str | None] = [""] * len(cases)
    if division is not None:
        kind = iceberg_type(division.column, dtypes(target.model)[division.column])
        parts = [part_of_value(division, kind, case[division.column]) for case in cases]
    return [
        case
        for case, day, part in zip(cases, days, parts, strict=True)
        if any(one.start <= day <= one.end and one.part == part for one in chunks)
    ]


def _compared(context: ReconciliationContext, *, read: Any, asks: bool) -> Finding:
    target = table_of(context)
    known, problems = read(target)
    if known is None:
        raise ValueError("; ".join(one.what for one in problems))
    inside = _inside(target, known.cases, context.transform.chunks)
    cases = _of_entities(context, inside)
    outside, others = len(known.cases) - len(inside), len(inside) - len(cases)
    left_out = f"; {outside:,} of other days{' or parts' if target.parts else ''} are not compared" if outside else ""
    left_out += f"; {others:,} of entities that are not merged are not compared" if others else ""
    counted = {"cases": len(known.cases), "other_days": outside, "other_entities": others}
    if not cases:
        return Finding(
            True, f"compared nothing: no known case is in these chunks{left_out}", counted, compared=0, disagreeing=0
        )
    there = _there(context, target, known.values, cases)
    failing, lines = [], []
    for case in cases:
        own = there.get(_as_key(case[name] for name in _place(target)))
        if (row := _disagrees(known, case, own)) is not None:
            place = {name: _said(case[name]) for name in target.key}
            noted = [f"{name} {case[name]}" for name in known.notes if case[name] is not None]
            row["what"] = "; ".join((row["what"], *noted, f"line {case[_LINE]}"))
            failing.append({**place, **row})
            lines.append(case[_LINE])
    found = judged(
        context,
        failing,
        f"{len(cases):,} known cases compared; {len(failing):,} come out otherwise{_lines(lines)}{left_out}",
        counted,
        slices=(),
        what="",
        compared=len(cases),
        disagreeing=len(failing),
        asks=asks,
        key=target.key,
    )
    return replace(found, slices=())  # a key is no slice: the exceptions have it, without those of erased subjects


def _of_entities(context: ReconciliationContext, cases: list[Case]) -> list[Case]:
    """Return the cases of the entities that a merge computes; all of them where it computes all, or they do not say whose they are."""
    entities = context.entities()
    if entities is None or not cases or (name := entities.columns[0]) not in cases[0]:
        return cases
    asked = context.source.sparkSession.createDataFrame(
        [(one,) for one in sorted({case[name] for case in cases if case[name] is not None})], entities.schema
    )
    merged = {row[0] for row in asked.join(entities, name, "left_semi").collect()}
    return [case for case in cases if case[name] in merged]


def _there(
    context: ReconciliationContext, target: TargetTable, values: Sequence[str], cases: Sequence[Case]
) -> dict[Key, Mapping[str, Any]]:
    """Return what there is in the places of cases: no more rows than there are cases."""
    place = _place(target)
    schema = spark_schema(iceberg_schema(target.model), place, field_ids=False)
    names = schema.fieldNames()
    keys = context.source.sparkSession.createDataFrame([tuple(case[name] for name in names) for case in cases], schema)
    keys = keys.withColumnsRenamed({name: f"_{name}" for name in names})
    columns = list(dict.fromkeys((*place, *values)))
    # a part may be that of the rows without a value
    same = [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in names]
    rows = context.visible(0).select(*columns).join(F.broadcast(keys), same, "left_semi")
    kinds = dtypes(target.model)
    # an instant as a number: what `collect` makes of one depends on the process's time zone
    plain = [
        F.unix_micros(F.col(name).cast("timestamp")).alias(name)
        if isinstance(kinds[name], pl.Datetime)
        else F.col(name)
        for name in columns
    ]
    collected = [row.asDict() for row in rows.select(*plain).collect()]
    found = [
        {name: bytes(one) if isinstance(one, bytearray) else one for name, one in row.items()} for row in collected
    ]
    return {_as_key(row[name] for name in place): row for row in found}


def _as_key(values: Iterable[Any]) -> Key:
    return tuple(_comparable(_plain(one)) for one in values)


def _comparable(value: Any) -> Any:
    """Return a value that is equal to another one where SQL says so: no number is the same as no number."""
    return "NaN" if isinstance(value, float) and value != value else value  # noqa: PLR0124 - it asks for NaN


def _disagrees(known: _Cases, case: Case, found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what was expected of a case and what was found, where that is not the same."""
    if known.is_absent(case):
        if found is None:
            return None
        shown = {name: _said(_as_read(case, name, found[name])) for name in known.values}
        return {"expected": "no row", "found": shown or "a row", "what": "it is there, and must not be"}
    expected = {name: _said(case[name]) for name in known.values}
    if found is None:
        return {"expected": expected, "found": "no row", "what": "it is not there"}
    differ = [name for name in known.values if _comparable(found[name]) != _comparable(_plain(case[name]))]
    if not differ:
        return None
    return {
        "expected": {name: expected[name] for name in differ},
        "found": {name: _said(_as_read(case, name, found[name])) for name in differ},
        "what": f"{', '.join(differ)} differ{'s' if len(differ) == 1 else ''}",
    }


def _plain(value: Any) -> Any:
    """Return a value of the file as the rows that are found have it."""
    if isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return value


def _as_read(case: Case, name: str, found: Any) -> Any:
    """Return a value that was found as the file would have it."""
    if isinstance(case[name], datetime) and found is not None:
        at = datetime.fromtimestamp(found // 1_000_000, UTC).replace(microsecond=found % 1_000_000)
        return at if case[name].tzinfo else at.replace(tzinfo=None)
    return found


def _said(value: Any) -> Any:
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return str(value) if isinstance(value, (float, Decimal)) else value


def _lines(lines: Sequence[int]) -> str:
    """Name lines of the file: what is said of a gate is logged, and no place for keys of rows."""
    if not lines:
        return ""
    more = f" and {len(lines) - _NAMED:,} more" if len(lines) > _NAMED else ""
    return f": those of lines {', '.join(map(str, lines[:_NAMED]))}{more}"
