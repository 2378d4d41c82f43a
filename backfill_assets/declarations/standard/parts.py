"""What the standard gates share: how arguments are held to be right, how chunks are compared, how what differs is listed.

Put here what two of them need. Imported by Spark's Python workers with the products: keep it light.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.types import DateType

from backfill_assets.declarations.arguments import NAME, is_amount
from backfill_assets.declarations.checking.names import did_you_mean
from backfill_assets.declarations.exception_texts import exception_rows, json_of
from backfill_assets.declarations.gate_arguments import texts, unless
from backfill_assets.declarations.reconciliations import SLICES
from backfill_assets.declarations.tallies import MOST_GROUPS, Place, Tallied
from backfill_assets.declarations.target import Finding, ReconciliationContext, TargetTable
from manifests.chunks import EVER, Chunking
from manifests.division import Division, division_problems
from manifests.errors import Problem

_WHOLE = 100
FOUND = ("expected", "found", "what")
"""What `judged` and `listed` say of a slice or a row, beside its columns."""
NOT_COMPARED = "no accepted version to compare with"


def gate_name(name: Any, default: str, of: Any) -> str:
    """Return the name of a gate: the given one, or the one that it has by the column that it is about."""
    if name is not None:
        return name  # type: ignore[no-any-return] # of one that is no text the declaration says what it is
    words = "_".join(texts((of,) if isinstance(of, str) else of)) or "columns"
    return default.format(re.sub(r"\W", "_", words))


def amount(name: str, value: Any, *, optional: bool = False) -> Iterator[Problem]:
    """Require a number that something can be bounded by."""
    holds = is_amount(value) or (optional and value is None)
    yield from unless(holds, name, value, f"{name} is a number, 0 or more", "for example 10.0")


def share(name: str, value: Any) -> Iterator[Problem]:
    """Require a share in percent."""
    holds = is_amount(value) and value <= _WHOLE
    yield from unless(holds, name, value, f"{name} is a share in percent, 0 to 100", "for example 5.0")


def count(name: str, value: Any, *, least: int = 0) -> Iterator[Problem]:
    """Require a whole number."""
    holds = type(value) is int and value >= least
    yield from unless(holds, name, value, f"{name} is a whole number, {least} or more", "for example 12")


def column(name: str, value: Any) -> Iterator[Problem]:
    """Require the name of a column."""
    holds = isinstance(value, str) and bool(value)
    yield from unless(holds, name, value, f"{name} is the name of a column", 'for example "amount"')


def tolerances(name: Any, limits: Mapping[str, Any]) -> dict[str, float]:
    """Return the tolerances of a gate by name, which begins with the gate's; a bound that is not given has none."""
    known = name if isinstance(name, str) and re.fullmatch(NAME, name) else "gate"
    return {
        f"{known}_{which}": value if is_amount(value) else 0.0 for which, value in limits.items() if value is not None
    }


def of_kind(
    where: str, names: Iterable[str], columns: Mapping[str, pl.DataType], kinds: str, holds: Any
) -> Iterator[Problem]:
    """Say of columns that are there which of them are not of a kind that can be used."""
    for name in names:
        if name in columns and not holds(columns[name]):
            yield Problem(f"{name!r} is {columns[name]}", f"it is {kinds}", "name another column", where)


def is_number(kind: pl.DataType) -> bool:
    """Whether a column of a target can be added up."""
    return kind.is_integer() or isinstance(kind, pl.Decimal)


def is_divided_right(target: TargetTable) -> bool:
    """Whether nothing is wrong with what a table is divided by: of what is, the declaration says so."""
    division: Any = target.chunk_values
    return division is None or (isinstance(division, Division) and not any(division_problems(division, "")))


def declared_table(where: str, name: Any, names: Iterable[str], what: str) -> Iterator[Problem]:
    """Require that a table is among some."""
    names = list(names)
    if name not in names:
        yield Problem(
            f"{name!r} is no {what}" + did_you_mean(name, names),
            f"{what}s are {', '.join(names) or 'none'}",
            "correct the name, or declare it",
            where,
        )


def too_many(by: Sequence[str], chunks: Mapping[str, Tallied | None]) -> Finding | None:
    """Return that chunks have more groups than are counted, if some do: nothing is compared then."""
    found = {key: one.too_many for key, one in chunks.items() if one is not None and one.too_many}
    if not found:
        return None
    worst = max(found, key=lambda key: (found[key], key))
    what = f"{' and '.join(by)} of {worst} have {found[worst]:,} different values"
    if len(by) == 1:
        what = f"{by[0]} has {found[worst]:,} different values in {worst}"
    return Finding(
        False,
        f"not compared: {what}, and {MOST_GROUPS:,} of a chunk are counted: name columns that have fewer",
        {"groups": dict(sorted(found.items())[:SLICES]), "most": MOST_GROUPS},
        compared=0,
        disagreeing=0,
    )


def percent_of(part: float, whole: float) -> float:
    """Return a part in percent of the whole; of nothing there is none."""
    return part * 100.0 / whole if whole else 0.0


def in_slice(by: Sequence[str], place: Place) -> dict[str, Any]:
    """Return a group as a row of slices has it: its columns by name."""
    return dict(zip(by, place, strict=True))


def of_chunks(number: int, whole: int, what: str) -> str:
    """Say how many of some chunks."""
    return f"{number:,} of {whole:,} chunk{'' if whole == 1 else 's'} {what}"


def listed(
    context: ReconciliationContext,
    rows: Sequence[Mapping[str, Any]],
    slices: Sequence[str],
    what: str,
    key: Sequence[str] = (),
) -> DataFrame:
    """Return rows that are known already as exceptions: `slices` and `key` name the place, the rest is shown as it is."""
    spark = context.source.sparkSession
    return exception_rows(
        spark,
        [
            {
                "slice": json_of({name: row[name] for name in slices if name in row}),
                "key": json_of({name: row[name] for name in key if name in row}),
                "expected": _part("expected", row["expected"]),
                "found": _part("found", row["found"]),
                "what": row.get("what", what),
            }
            for row in rows
        ],
    )


def _part(name: str, value: Any) -> str:
    return json_of(value if isinstance(value, Mapping) else {name: value})


def judged(
    context: ReconciliationContext,
    failing: Sequence[Mapping[str, Any]],
    summary: str,
    details: Mapping[str, Any],
    *,
    slices: Sequence[str],
    what: str,
    compared: int,
    disagreeing: int,
    asks: bool,
    key: Sequence[str] = (),
) -> Finding:
    """Return what a gate found: it has passed where nothing is failing; `failing` comes worst first."""
    return Finding(
        not failing,
        summary,
        details,
        asks=asks and bool(failing),
        compared=compared,
        disagreeing=disagreeing,
        slices=[{name: cell for name, cell in row.items() if name != "what"} for row in failing[:SLICES]],
        exceptions=partial(listed, context, failing, slices, what, key),
    )


def table_of(context: ReconciliationContext) -> TargetTable:
    """Return the declaration of the table that is judged."""
    if context.target is None:
        raise LookupError("this context does not say which table is judged")
    return context.target


def source_day(context: ReconciliationContext, zone: str) -> Column:
    """Return the day of a source row in a zone; of a source that has dates, its date. The session's time zone is UTC.

    Of a target without time, which is computed from all of them, the first day of its publish range.
    """
    if context.target is not None and context.target.chunking is Chunking.WHOLE:
        return F.lit(EVER[0])
    name = context.source_time_column
    if isinstance(context.source.schema[name].dataType, DateType):
        return F.col(name)
    return F.to_date(F.from_utc_timestamp(name, zone))


def own_rows(context: ReconciliationContext) -> DataFrame:
    """Return the rows that readers would have of the chunks; of a merge, those of the entities that it computes."""
    rows, entities = context.visible(0), context.entities()
    return rows if entities is None else rows.join(entities, entities.columns[0], "left_semi")
