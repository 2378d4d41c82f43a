"""A gate of expected figures: rows and sums by slice that somebody else has, such as a finance system.

Put here how they are held against what a run computes. How their file is read is `table_files`'. Imported by Spark's Python
workers: keep it light.
"""

from __future__ import annotations

from calendar import monthrange
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal, localcontext
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from backfill_assets.declarations.amounts import off
from backfill_assets.declarations.gate_arguments import declared_with, flag, named_apart, several, texts, unless
from backfill_assets.declarations.needs import Needs
from backfill_assets.declarations.reconciliations import DIGITS
from backfill_assets.declarations.schema import dtypes
from backfill_assets.declarations.standard import table_files
from backfill_assets.declarations.standard.parts import (
    FOUND,
    amount,
    is_divided_right,
    is_number,
    judged,
    of_kind,
    table_of,
    tolerances,
    too_many,
)
from backfill_assets.declarations.tallies import Place, Tally
from backfill_assets.declarations.target import (
    Finding,
    Level,
    Reconciliation,
    ReconciliationContext,
    Tables,
    TargetTable,
)
from manifests.chunks import HOURS, PART, Chunk, Chunking, first_day
from manifests.errors import InputRefused, Problem

CHUNK, MONTH, ROWS = "chunk", "month", "rows"
Figures = dict[str, Decimal]


@declared_with
def checksum_gate(
    file: str,
    slices: tuple[str, ...],
    sums: tuple[str, ...] = (),
    name: str = "expected_sums_agree",
    *,
    percent: float = 0.0,
    asks: bool = False,
) -> Reconciliation:
    """Return a gate that rows and sums by slice are those of a file in the product's package.

    The file is a CSV table of the slices, with `rows`, the sums, or both. One of the slices says when: `chunk` (a chunk's key),
    `month` (2024-01), or the target's day column; the others are columns of the target, and an empty cell is NULL. What is
    compared are the chunks, months and days that the run has whole, as readers would see them; of these, slices that only one side
    has disagree, and of all others it is said how many there are. The sums are added up by the chunk gates, exactly.

    Args:
        file: its path, below the folder of the module that declares the gate.
        slices: the columns of a slice.
        sums: the number columns that are added up.
        name: of the gate. Its tolerance is `<name>_percent`.
        percent: by how much a figure may differ, in percent of the expected one; 0: not at all.
        asks: whether an owner may accept other figures with a reason.
    """
    fits = isinstance(file, str) and bool(file)
    own, added = texts(slices), texts(sums)
    mistakes = [
        *unless(fits, "file", file, "it is the path of a file in the product's package", '"expected_sums.csv"'),
        *several("slices", slices),
        *named_apart("slices", slices, (ROWS, "figure", "difference", *FOUND)),
        *several("sums", sums, some=False),
        *amount("percent", percent),
        *flag("asks", asks),
    ]
    path = table_files.beside_caller(file) if fits else Path()
    named = tolerances(name, {"percent": percent})
    tally = Tally(by=tuple(one for one in own if one not in (CHUNK, MONTH)), sums=added)
    read = partial(_expected, path=path, slices=own, sums=added)
    return Reconciliation(
        name,
        Level.STATE,
        f"Rows and sums by {' and '.join(own)} are those of {path.name}.",
        partial(_agree, name=name, read=read, tally=tally, slices=own, asks=asks is True),
        tolerances=named,
        needs=Needs(tolerances=tuple(named), rows=tally.columns),
        mistakes=tuple(mistakes),
        tallies=(tally,),
        against=partial(_wrong, gate=name, read=read, slices=own, sums=added),
        files=(path,) if fits else (),
    )


# --- the file ---------------------------------------------------------------------------------------------------------


def _wrong(
    target: TargetTable, tables: Tables, *, gate: str, read: Any, slices: tuple[str, ...], sums: tuple[str, ...]
) -> Iterator[Problem]:
    where = f"{target.name}: gate {gate}"
    if target.chunking is Chunking.WHOLE:
        what, rule = (
            f"{target.name} has no time",
            "a published figure is one of a time, and is held against the rows of it",
        )
        yield Problem(what, rule, "leave the gate out, or write one of your own", where)
        return
    when = [one for one in slices if one in (CHUNK, MONTH, target.day_column)]
    if len(when) != 1:
        rule = f"one of them says when: {CHUNK}, {MONTH} or {target.day_column}"
        yield Problem(f"slices are {', '.join(slices)}", rule, "name one of these", where)
        return
    if MONTH in slices and target.chunking not in {Chunking.MONTH, Chunking.DAY, Chunking.HOUR}:
        yield Problem(
            f"slices are {', '.join(slices)}, and {target.name} has chunks by {target.chunking.lower()}",
            "the month of a row is told from its chunk, which is a month, a day or an hour",
            f"name {CHUNK} instead",
            where,
        )
        return
    columns = tables.get(target.name) or {}
    yield from of_kind(where, sums, columns, "a number, which can be added up", is_number)
    yield from of_kind(where, slices, columns, "text, a whole number, a truth or a day", _is_slice)
    if is_divided_right(target) and all(
        one in columns for one in (*sums, *(name for name in slices if name not in (CHUNK, MONTH)))
    ):
        for one in read(target)[1]:
            yield Problem(one.what, one.rule, one.fix, f"{one.where or target.name}, gate {gate}")


def _is_slice(kind: pl.DataType) -> bool:
    return kind.is_integer() or kind in (pl.String, pl.Boolean, pl.Date)


def _expected(
    target: TargetTable, *, path: Path, slices: tuple[str, ...], sums: tuple[str, ...]
) -> tuple[dict[Place, Figures] | None, list[Problem]]:
    """Return the figures of a file by slice; where they cannot be compared with a table, None and why."""
    where = f"{target.name}: {path.name}"
    file, problems = table_files.read(path)
    if file is None:
        return None, [Problem(one.what, one.rule, one.fix, where) for one in problems]
    what = "the slices, rows and the sums"
    problems = list(table_files.wrong_columns(file, (*slices, ROWS, *sums), (*slices, *sums), what, where))
    if ROWS not in file.columns and not sums:
        what = f"{path.name} has no figure to compare"
        problems.append(Problem(what, "it has rows, or sums that the gate names", "add a column `rows`", where))
    if problems:
        return None, problems
    kinds = dtypes(target.model)
    own: dict[str, pl.DataType] = {name: kind for name, kind in kinds.items() if name in slices} | {ROWS: pl.Int64()}
    own |= {name: pl.Decimal(38, getattr(kinds[name], "scale", 0)) for name in sums}  # a whole number has no scale
    rows, problems = table_files.values_of(file, own, where)
    found: dict[Place, Figures] = {}
    lines: dict[Place, int] = {}
    for row in rows if not problems else ():
        place = tuple(_as_counted(row[name]) for name in slices)
        problems += _of_row(target, file.name, row, slices, (*sums, ROWS), where)
        if place in found:
            what = f"lines {lines[place]:,} and {row['_line']:,} of {file.name} have the same slice"
            problems.append(Problem(what, "a slice is there once", "take one of them out", where))
        found[place] = {name: Decimal(row[name]) for name in (ROWS, *sums) if row.get(name) is not None}
        lines.setdefault(place, row["_line"])
    return (None, problems) if problems else (found, [])


def _of_row(
    target: TargetTable, file: str, row: Mapping[str, Any], slices: Sequence[str], figures: Sequence[str], where: str
) -> Iterator[Problem]:
    """Say that a row does not say when, or has no figure."""
    line = f"line {row['_line']:,} of {file}"
    for name, chunking in ((CHUNK, target.chunking), (MONTH, Chunking.MONTH)):
        if name in slices:
            key = row[name] or ""
            try:
                first_day(chunking, key)
            except InputRefused as refused:
                problem = refused.problems[0]
                yield Problem(f"{line}: {problem.what}", problem.rule, "correct it", where)
            else:
                if name == CHUNK and not _is_chunk_of(target, key):
                    rule = f"its chunks are from {target.chunks_from} to {target.chunks_until}"
                    rule += f", each time divided by {target.chunk_values}" if target.parts else ""
                    yield Problem(f"{line}: {target.name} has no chunk '{key}'", rule, "correct it", where)
    if target.day_column in slices and row[target.day_column] is None:
        yield Problem(f"{line} has no {target.day_column}", "a slice says when", "fill it in", where)
    if all(row.get(name) is None for name in figures):
        yield Problem(f"{line} has no figure", "a slice has rows or a sum", "fill it in, or take the line out", where)


def _is_chunk_of(target: TargetTable, key: str) -> bool:
    """Whether a table can have a chunk: in the time that it has, and in one of its parts if it has some."""
    when, mark, part = key.partition(PART)
    is_part = part in target.parts if target.parts else not mark
    return is_part and str(target.chunks_from) <= when <= str(target.chunks_until)


def _as_counted(value: Any) -> str | None:
    """Return a value of the file as the text that it is counted under."""
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- held against a run -----------------------------------------------------------------------------------------------


def _agree(
    context: ReconciliationContext, *, name: str, read: Any, tally: Tally, slices: tuple[str, ...], asks: bool
) -> Finding:
    expected, problems = read(table_of(context))
    if expected is None:
        raise ValueError("; ".join(one.what for one in problems))
    chunks = context.tallies.after(tally)
    if (said := too_many(tally.by, chunks)) is not None:
        return said
    with localcontext(prec=DIGITS):
        return _compared(context, expected, _found(chunks, tally, slices), name=name, slices=slices, asks=asks)


def _compared(
    context: ReconciliationContext,
    expected: Mapping[Place, Figures],
    there: Mapping[Place, Figures],
    *,
    name: str,
    slices: tuple[str, ...],
    asks: bool,
) -> Finding:
    target = table_of(context)
    chunks_there = {chunk.key for chunk in context.transform.chunks}
    covers = partial(_covers, slices, target.day_column, chunks_there, _whole_days(target, context.transform.chunks))
    wanted = {place: figures for place, figures in expected.items() if covers(place)}
    whens = {_when(slices, target.day_column, place) for place in wanted}
    found = {place: one for place, one in there.items() if _when(slices, target.day_column, place) in whens}
    without = {_when(slices, target.day_column, place) for place in there} - whens
    limit, failing = context.tolerances[f"{name}_percent"], []
    for place in sorted({*wanted, *found}, key=str):
        row = dict(zip(slices, place, strict=True))
        failing += [{**row, **one} for one in _differences(wanted.get(place), found.get(place), limit)]
    failing.sort(key=lambda row: (-_size(row), str(row)))
    places = {tuple(row[one] for one in slices) for row in failing}
    of = len({*wanted, *found})
    summary = f"{of:,} slices by {' and '.join(slices)} compared; {len(places):,} differ"
    summary += f" by more than {limit:g}%" if limit else ""
    others = len(expected) - len(wanted)
    left = f"; {others:,} of the file's are not in the run, or not whole" if others else ""
    left += f"; nothing is expected of {_named(without)}" if without else ""
    if not of:
        return Finding(True, f"compared nothing{left}", {"expected": len(expected)}, compared=0, disagreeing=0)
    return judged(
        context,
        failing,
        summary + left,
        {
            "expected": len(expected),
            "compared_slices": of,
            "not_in_the_run": others,
            "nothing_expected": sorted(without)[:50],
        },
        slices=slices,
        what="",
        compared=of,
        disagreeing=len(places),
        asks=asks,
    )


def _named(whens: set[str]) -> str:
    shown = sorted(whens)
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3:,} more" if len(shown) > 3 else "")  # noqa: PLR2004


def _when(slices: Sequence[str], day: str, place: Place) -> str:
    at = next(at for at, name in enumerate(slices) if name in (CHUNK, MONTH, day))
    return str(place[at])


def _whole_days(target: TargetTable, chunks: Sequence[Chunk]) -> list[tuple[date, date]]:
    """Return first and last of the days that a run has whole: of a table of hours or parts those of which it has all of them."""
    there: Counter[tuple[date, date]] = Counter((one.start, one.end) for one in chunks)
    of_each = (len(HOURS) if target.chunking is Chunking.HOUR else 1) * max(len(target.parts), 1)
    return [days for days, number in there.items() if number == of_each]


def _covers(
    slices: Sequence[str], day: str, chunks: Collection[str], whole: Sequence[tuple[date, date]], place: Place
) -> bool:
    """Whether a run has the whole of what a slice is about."""
    when = _when(slices, day, place)
    if CHUNK in slices:
        return when in chunks
    start = date.fromisoformat(f"{when}-01" if MONTH in slices else when)
    end = start.replace(day=monthrange(start.year, start.month)[1]) if MONTH in slices else start
    inside = [(max(start, first), min(end, last)) for first, last in whole if first <= end and last >= start]
    return sum((last - first).days + 1 for first, last in inside) == (end - start).days + 1


def _found(chunks: Mapping[str, Any], tally: Tally, slices: Sequence[str]) -> dict[Place, Figures]:
    """Add up what was counted of the chunks by the slices of the file."""
    found: dict[Place, Figures] = {}
    for chunk, tallied in sorted(chunks.items()):
        for place, group in tallied.groups.items():
            if not group.rows:
                continue
            named = dict(zip(tally.by, place, strict=True)) | {CHUNK: chunk, MONTH: chunk[:7]}
            figures = found.setdefault(tuple(named[name] for name in slices), {ROWS: Decimal(0)})
            figures[ROWS] += group.rows
            for column, value in group.sums.items():
                figures[column] = figures.get(column, Decimal(0)) + value
    return found


def _differences(expected: Figures | None, found: Figures | None, limit: float) -> Iterator[dict[str, Any]]:
    """Yield what of a slice differs: figures, or that one side has none."""
    if found is None:
        shown = {name: str(value) for name, value in (expected or {}).items()}
        if any(value != 0 for value in (expected or {}).values()):
            yield {"expected": shown, "found": "no row", "what": "expected, and no row is there"}
        return
    if expected is None:
        shown = {name: str(value) for name, value in found.items()}
        yield {"expected": "nothing", "found": shown, "what": "there, and nothing is expected"}
        return
    for name, value in expected.items():
        if off(value, found[name], relative=True) > limit:
            one = {"expected": str(value), "found": str(found[name]), "difference": str(found[name] - value)}
            yield {"figure": name, **one, "what": f"{name} differ{'' if name == ROWS else 's'}"}


def _size(row: Mapping[str, Any]) -> Decimal:
    return abs(Decimal(row["difference"])) if "difference" in row else Decimal("Infinity")
