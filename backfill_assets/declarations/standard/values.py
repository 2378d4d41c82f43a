"""Gates of which values a column has: those of an enumeration, declared or known from what was accepted.

Put here what asks which values there are. How often each is there is `distributions`'. Imported by Spark's Python workers: keep
it light.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

import polars as pl

from backfill_assets.declarations.gate_arguments import declared_with, flag, named_apart, unless
from backfill_assets.declarations.needs import Needs
from backfill_assets.declarations.reconciliations import SLICES
from backfill_assets.declarations.standard import table_files
from backfill_assets.declarations.standard.parts import (
    FOUND,
    count,
    gate_name,
    judged,
    percent_of,
    share,
    tolerances,
    too_many,
)
from backfill_assets.declarations.standard.parts import (
    column as a_column,
)
from backfill_assets.declarations.tallies import Tallied, Tally
from backfill_assets.declarations.target import (
    Finding,
    Level,
    Reconciliation,
    ReconciliationContext,
    Tables,
    TargetTable,
)
from manifests.errors import Problem

_KINDS = (str, int, bool, date)
_NAMED = 5


@declared_with
def enumeration_gate(
    column: str,
    values: Iterable[Any] | None = None,
    name: str | None = None,
    *,
    percent: float = 0.0,
    history: int = 12,
    asks: bool = False,
) -> Reconciliation:
    """Return a gate that a column has the values of an enumeration: the declared ones, or those that were accepted before.

    A value that may never be there is a rule of the row: `pa.Field(isin=(...))` in the model, which names each row. This gate is
    for what can be said of a chunk alone: that a share of its rows may have other values, or that a value is new. What is new is
    held against the accepted version of the run's chunks and of those before them; where there is none, as of a first load,
    nothing is compared, and that is said. NULL is no value here.

    Args:
        column: the column; it has up to 1,000 different values in a chunk.
        values: those it may have, as the column has them; None: those that it has in what was accepted.
        name: of the gate; `<column>_is_known` unless given. Its tolerance is `<name>_percent`.
        percent: the share of the rows of a chunk that may have others, in percent.
        history: how many chunks before those of the run are known as well, where `values` are not declared.
        asks: whether an owner may accept others with a reason.
    """
    gate = gate_name(name, "{}_is_known", column)
    listed = None if values is None else _listed(values)
    rule = "they are a tuple of text, whole numbers, truths or days, one or more"
    mistakes = [
        *a_column("column", column),
        *named_apart("column", column, ("chunk", *FOUND)),
        *unless(values is None or bool(listed), "values", values, rule, 'for example ("OPEN", "CLOSED")'),
        *share("percent", percent),
        *count("history", history),
        *flag("asks", asks),
    ]
    named = tolerances(gate, {"percent": percent})
    tally = Tally(by=(column,) if isinstance(column, str) else ())
    known = None if listed is None else frozenset(listed)
    said = "has only the values that it may have" if values is not None else "has no value that it did not have before"
    return Reconciliation(
        gate,
        Level.CHANGE if values is None else Level.STATE,
        f"{column} {said}.",
        partial(_values, name=gate, tally=tally, known=known, history=history, asks=asks is True),
        tolerances=named,
        needs=Needs(tolerances=tuple(named), rows=tally.by),
        mistakes=tuple(mistakes),
        tallies=(tally,),
        against=partial(_wrong, gate=gate, column=column, listed=listed or ()),
    )


def _listed(values: Any) -> tuple[str, ...]:
    """Return values as the text that they are counted under; none where some cannot be values."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        return ()
    values = list(values)
    if not all(isinstance(one, _KINDS) for one in values):
        return ()
    return tuple(str(one).lower() if isinstance(one, bool) else str(one) for one in values)


def _wrong(target: TargetTable, tables: Tables, *, gate: str, column: str, listed: Sequence[str]) -> Iterator[Problem]:
    """Say which values no row is counted under: they are none of the column's type, or it writes them otherwise."""
    kind = (tables.get(target.name) or {}).get(column)
    if kind is None or not table_files.has_values(kind):
        return
    for one in listed:
        try:
            counted = pl.Series([table_files.value_of(kind, one)], dtype=kind).cast(pl.String)[0]
        except table_files.NO_VALUE:
            counted = None
        if counted != one:
            yield Problem(
                f"the value {one!r} is none that {column} has, which is {kind}",
                "values are as the column has them",
                "correct it" if counted is None else f"write {counted!r}",
                f"{target.name}: gate {gate}",
            )


def _values(
    context: ReconciliationContext, *, name: str, tally: Tally, known: frozenset[str] | None, history: int, asks: bool
) -> Finding:
    (column,) = tally.by
    chunks = context.tallies.after(tally)
    before: Mapping[str, Tallied | None] = {} if known is not None else context.tallies.accepted(tally, before=history)
    if (said := too_many(tally.by, {**before, **chunks})) is not None:
        return said
    there = Counter[str]()
    for tallied in chunks.values():
        there.update({place[0]: group.rows for place, group in tallied.groups.items() if place[0] is not None})
    if known is None:
        compared_with = [one for one in before.values() if one is not None]
        if not compared_with:
            text = f"no accepted version to compare with; {column} has {len(there):,} different values"
            return Finding(True, text, {"values": len(there)}, compared=0, disagreeing=0)
        known = frozenset(place[0] for one in compared_with for place in one.groups if place[0] is not None)
    limit, failing = context.tolerances[f"{name}_percent"], []
    for chunk, tallied in sorted(chunks.items()):
        others = {place[0]: group.rows for place, group in tallied.groups.items() if place[0] not in (*known, None)}
        share = percent_of(sum(others.values()), tallied.rows)
        if share <= limit:
            continue
        failing += [
            {"chunk": chunk, column: value, "expected": "a known value", "found": f"{rows:,} of {tallied.rows:,} rows"}
            for value, rows in others.items()
        ]
    unknown = {value: rows for value, rows in there.items() if value not in known}
    failing.sort(key=lambda row: (-unknown[str(row[column])], str(row[column]), str(row["chunk"])))
    shown = sorted(unknown, key=lambda value: (-unknown[value], value))
    said_of = f": {', '.join(map(repr, shown[:_NAMED]))}{' and others' if len(shown) > _NAMED else ''}" if shown else ""
    bad = {row["chunk"] for row in failing}
    summary = (
        f"{len(unknown):,} of {len(there):,} values of {column} are not among the {len(known):,} known ones{said_of}"
    )
    summary += f"; {len(bad)} of {len(chunks)} chunks have more than {limit:g}% of them" if unknown else ""
    gone = sorted(known - there.keys())
    return judged(
        context,
        failing,
        summary,
        {"unknown": {value: unknown[value] for value in shown[:SLICES]}, "not_there": gone[:SLICES]},
        slices=("chunk", column),
        what=f"{column} has a value that is not known",
        compared=len(there),
        disagreeing=len({row[column] for row in failing}),
        asks=asks,
    )
