"""A gate of how often each value of a column is there, against the chunks before.

Put here how two distributions are held against each other. That a value is there at all is `values`'. Imported by Spark's Python
workers: keep it light.

The measure is the population stability index, the sum over the groups of (p - q) ln(p / q), where p is a group's share of the rows
and q its share before: 0 where they agree, and the same whichever comes first. Below 0.1 little has changed, from 0.25 on much has
(N. Siddiqi, Credit Risk Scorecards, 2006; the thresholds go back to E. M. Lewis, 1992). Each group has half a row added on both
sides, so that one which is empty on a side has a logarithm. By chance alone the index of n rows in k groups against m rows is
about (k - 1)(1/n + 1/m) (B. Yurdakul and J. Naranjo, Journal of Risk Model Validation, 2020): few rows say little, and chunks
of fewer than `least_rows` are not compared.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal
from functools import partial
from itertools import pairwise
from math import isfinite, log
from typing import Any

import polars as pl

from backfill_assets.declarations.gate_arguments import declared_with, flag, named_apart, several, texts, unless
from backfill_assets.declarations.needs import Needs
from backfill_assets.declarations.standard.parts import (
    FOUND,
    amount,
    count,
    gate_name,
    in_slice,
    is_number,
    judged,
    tolerances,
    too_many,
)
from backfill_assets.declarations.standard.parts import (
    column as a_column,
)
from backfill_assets.declarations.tallies import Place, Tallied, Tally, limits_of
from backfill_assets.declarations.target import (
    Finding,
    Level,
    Reconciliation,
    ReconciliationContext,
    Tables,
    TargetTable,
)
from manifests.chunks import Chunking, part_of
from manifests.errors import Problem

_ADDED = 0.5
_MOVED = 3
Slices = dict[Place, Counter[str | None]]
"""Rows by group of the column, by slice."""


@declared_with
def distribution_gate(
    column: str,
    name: str | None = None,
    *,
    buckets: tuple[Any, ...] = (),
    by: tuple[str, ...] = (),
    psi: float = 0.25,
    history: int = 12,
    least_rows: int = 200,
    asks: bool = False,
) -> Reconciliation:
    """Return a gate that the values of a column are distributed in each chunk as in the chunks before it.

    Of the chunks before, the accepted versions count; where there is none and the run has the chunk, as in a first load of many
    chunks, its rows. A chunk that no other precedes is not compared, and neither is a slice of too few rows; both are counted.
    NULL is a group of its own, and so is a value that is new.

    Args:
        column: the column: of few values, or a number or a day that is grouped by `buckets`.
        name: of the gate; `<column>_is_distributed_as_before` unless given. Its tolerance is `<name>_psi`.
        buckets: the limits between groups, ascending; a value that equals a limit is above it.
        by: columns of slices, for each of which the distributions are compared.
        psi: the population stability index that is tolerated.
        history: how many chunks before each are taken together.
        least_rows: how many rows a slice has on both sides at least to be compared.
        asks: whether an owner may accept another distribution with a reason.
    """
    gate = gate_name(name, "{}_is_distributed_as_before", column)
    limits, slices = _limits(buckets), texts(by)
    mistakes = [
        *a_column("column", column),
        *unless(limits is not None, "buckets", buckets, "they are numbers or days, in ascending order", "(0, 10, 100)"),
        *several("by", by, some=False),
        *named_apart("by", by, ("chunk", "psi", *FOUND)),
        *amount("psi", psi),
        *count("history", history, least=1),
        *count("least_rows", least_rows, least=1),
        *flag("asks", asks),
    ]
    named = tolerances(gate, {"psi": psi})
    if not isinstance(column, str):
        return Reconciliation(gate, Level.CHANGE, "", partial(_distributed), mistakes=tuple(mistakes))
    tally = Tally(by=(*slices, column), edges=((column, limits),) if limits else ())
    return Reconciliation(
        gate,
        Level.CHANGE,
        f"{column} is distributed in each chunk as in the {history} before it.",
        partial(_distributed, name=gate, tally=tally, history=history, least_rows=least_rows, asks=asks is True),
        tolerances=named,
        needs=Needs(tolerances=tuple(named), rows=tally.by),
        mistakes=tuple(mistakes),
        tallies=(tally,),
        against=partial(_wrong, gate=gate, column=column, limits=limits or ()),
    )


def _limits(buckets: Any) -> tuple[str, ...] | None:
    """Return limits as text; None where they are none."""
    if not isinstance(buckets, (tuple, list)):
        return None
    kinds = {date if isinstance(one, date) else Decimal for one in buckets}
    fits = all(isinstance(one, (int, float, Decimal, date)) and not isinstance(one, bool) for one in buckets)
    fits = fits and all(isfinite(one) for one in buckets if isinstance(one, (float, Decimal)))
    if not fits or len(kinds) > 1 or any(a >= b for a, b in pairwise(buckets)):
        return None
    return tuple(one.isoformat() if isinstance(one, date) else format(Decimal(str(one)), "f") for one in buckets)


def _wrong(
    target: TargetTable, tables: Tables, *, gate: str, column: str, limits: tuple[str, ...]
) -> Iterator[Problem]:
    """Say that no chunk is before another, and what of the limits cannot be with the column's type."""
    kind = (tables.get(target.name) or {}).get(column)
    where = f"{target.name}: gate {gate}"
    if target.chunking is Chunking.WHOLE:
        what, rule = f"{target.name} has no time", "the gate compares a chunk with those before it"
        yield Problem(what, rule, "leave the gate out", where)
    if kind is None or not limits:
        return
    if not (is_number(kind) or kind == pl.Date):
        yield Problem(f"{column!r} is {kind}", "buckets are of a number or a day", "leave the buckets out", where)
        return
    for limit in limits:
        try:
            same = limits_of(kind, [limit]).cast(pl.String)[0]
            fits = same == limit or (is_number(kind) and Decimal(same) == Decimal(limit))
        except (pl.exceptions.PolarsError, ArithmeticError, TypeError):
            fits = False
        if not fits:
            yield Problem(
                f"the limit {limit} is no {kind}", f"limits are values as {column} has them", "correct it", where
            )


def _distributed(
    context: ReconciliationContext, *, name: str, tally: Tally, history: int, least_rows: int, asks: bool
) -> Finding:
    after, accepted = context.tallies.after(tally), context.tallies.accepted(tally, before=history)
    if (said := too_many(tally.by, {**accepted, **after})) is not None:
        return said
    orders: dict[str, list[str]] = {}  # the chunks before one are those of its own value or bucket
    for key in sorted({*accepted, *after}):
        orders.setdefault(part_of(key), []).append(key)
    limit, failing, compared, alone, few, worst = context.tolerances[f"{name}_psi"], [], 0, 0, 0, 0.0
    for chunk in sorted(after):
        order = orders[part_of(chunk)]
        at = bisect_left(order, chunk)
        before = [accepted.get(key) or after.get(key) for key in order[max(0, at - history) : at]]
        then = _by_slice(one for one in before if one is not None and one.groups)
        if not then:
            alone += 1
            continue
        now = _by_slice([after[chunk]])
        for place in sorted(now.keys() | then.keys(), key=str):
            new, old = now.get(place, Counter()), then.get(place, Counter())
            if min(new.total(), old.total()) < least_rows:
                few += 1
                continue
            compared += 1
            index, moved = _psi(new, old)
            worst = max(worst, index)
            if index > limit:
                row = {"chunk": chunk, **in_slice(tally.by[:-1], place), "psi": f"{index:.3f}"}
                row |= {"expected": _shares(old, moved, tally), "found": _shares(new, moved, tally)}
                failing.append((-index, str(row), row))
    failing.sort(key=lambda one: one[:2])
    column, what = tally.by[-1], "slices" if len(tally.by) > 1 else "chunks"
    summary = f"{len(failing):,} of {compared:,} {what} have another distribution of {column} than before (index above {limit:g}"
    summary += f", the largest is {worst:.3f})" if compared else ")"
    summary += f"; {alone:,} without a chunk before them" if alone else ""
    summary += f"; {few:,} of fewer than {least_rows:,} rows, now or before" if few else ""
    if not compared:
        summary = "nothing to compare with: " + summary.partition("; ")[2]
    return judged(
        context,
        [row for *_, row in failing],
        summary,
        {"limit": limit, "largest": round(worst, 6), "without_history": alone, "too_few_rows": few},
        slices=("chunk", *tally.by[:-1]),
        what=f"{column} is distributed otherwise than before",
        compared=compared,
        disagreeing=len(failing),
        asks=asks,
    )


def _by_slice(chunks: Any) -> Slices:
    found: Slices = {}
    one: Tallied
    for one in chunks:
        for place, group in one.groups.items():
            found.setdefault(place[:-1], Counter())[place[-1]] += group.rows
    return found


def _psi(new: Mapping[str | None, int], old: Mapping[str | None, int]) -> tuple[float, list[str | None]]:
    """Return the index of two distributions, and the groups that it comes from most."""
    groups = sorted(new.keys() | old.keys(), key=lambda one: (one is None, one or ""))
    sides = []
    for side in (new, old):
        whole = sum(side.values()) + _ADDED * len(groups)
        sides.append([(side.get(one, 0) + _ADDED) / whole for one in groups])
    parts = [(p - q) * log(p / q) for p, q in zip(*sides, strict=True)]
    by_part = sorted(range(len(groups)), key=lambda at: (-parts[at], at))
    return sum(parts), [groups[at] for at in by_part[:_MOVED]]


def _shares(rows: Mapping[str | None, int], groups: list[str | None], tally: Tally) -> str:
    """Say how large a share of the rows some groups have."""
    whole = sum(rows.values())
    return ", ".join(f"{_named(one, tally)} {rows.get(one, 0) * 100.0 / whole:.1f}%" for one in groups)


def _named(group: str | None, tally: Tally) -> str:
    if group is None:
        return "NULL"
    limits = dict(tally.edges).get(tally.by[-1])
    if limits is None:
        return group
    at = int(group)
    if at == 0:
        return f"below {limits[0]}"
    return f"{limits[at - 1]} and more" if at == len(limits) else f"{limits[at - 1]} to below {limits[at]}"
