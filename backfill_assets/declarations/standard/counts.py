"""Gates of how many rows there are, and how many of them have no value.

Put here what needs numbers of rows alone. Which values rows have is `values`'. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.gate_arguments import declared_with, flag, named_apart, several, texts, unless
from backfill_assets.declarations.needs import Needs
from backfill_assets.declarations.standard.parts import (
    FOUND,
    NOT_COMPARED,
    amount,
    in_slice,
    judged,
    of_chunks,
    percent_of,
    share,
    source_day,
    tolerances,
    too_many,
)
from backfill_assets.declarations.tallies import Tally
from backfill_assets.declarations.target import Finding, Level, Reconciliation, ReconciliationContext
from manifests.chunks import Chunk, span, time_of

ACCEPTED, SOURCE = "accepted", "source"
_ROWS = Tally()


@declared_with
def row_count_gate(
    name: str = "rows_within_bounds",
    *,
    lower: float | None = 10.0,
    upper: float | None = 10.0,
    total_lower: float | None = None,
    total_upper: float | None = None,
    absolute: bool = False,
    against: str = ACCEPTED,
    zone: str = "UTC",
    asks: bool = False,
) -> Reconciliation:
    """Return a gate that each chunk has about as many rows as its accepted version, or as the source has for its days.

    A chunk without an accepted version is not compared, and that is said. It reads no row of the target; against the source it
    counts the source rows of the range by day, in one Spark job. Of a merge, the source rows and the computed rows of its
    entities are compared.

    Args:
        name: of the gate; its tolerances are `<name>_lower`, `<name>_upper`, `<name>_total_lower` and `<name>_total_upper`.
        lower: by how much fewer rows a chunk may have, in percent; None: by any number.
        upper: by how much more, the same.
        total_lower: by how much fewer all compared chunks may have together; None: by any number.
        total_upper: by how much more, the same.
        absolute: whether the bounds are in rows rather than in percent.
        against: "accepted" or "source".
        zone: the time zone whose days the target has; for the source.
        asks: whether an owner may accept other numbers with a reason; otherwise the run has failed.
    """
    limits = {"lower": lower, "upper": upper, "total_lower": total_lower, "total_upper": total_upper}
    mistakes = [one for which, value in limits.items() for one in amount(which, value, optional=True)]
    bounded = any(value is not None for value in limits.values())
    mistakes += [
        *unless(
            bounded, "each of lower, upper, total_lower and total_upper", None, "one of them is a bound", "lower=10.0"
        ),
        *flag("absolute", absolute),
        *unless(
            against in (ACCEPTED, SOURCE), "against", against, "it is 'accepted' or 'source'", "against='accepted'"
        ),
        *flag("asks", asks),
    ]
    named = tolerances(name, limits)
    of_source = against == SOURCE
    than = "the source has for its days" if of_source else "its accepted version had"
    return Reconciliation(
        name,
        Level.STATE if of_source else Level.CHANGE,
        f"Each chunk has as many rows as {than}, within the bounds.",
        partial(_counted, name=name, absolute=absolute is True, zone=zone if of_source else None, asks=asks is True),
        tolerances=named,
        needs=Needs(tolerances=tuple(named), zone=zone if of_source else "UTC"),
        mistakes=tuple(mistakes),
        tallies=(_ROWS,) if of_source else (),
    )


def _counted(context: ReconciliationContext, *, name: str, absolute: bool, zone: str | None, asks: bool) -> Finding:
    if zone is None:
        rows = context.rows()
        there = sorted(chunk for chunk, measures in context.accepted.items() if measures is not None)
        pairs = {chunk: (rows[chunk].accepted, rows[chunk].after) for chunk in there}
        than, missing = "accepted", NOT_COMPARED
    else:
        source, days = _source_rows(context, zone), _by_days(context.transform.chunks)
        counted: Counter[str] = Counter()
        for chunk, one in context.tallies.computed(_ROWS).items():
            counted[days[chunk]] += one.rows
        pairs = {chunk: (source.get(chunk, 0), rows) for chunk, rows in sorted(counted.items())}
        than, missing = "in the source", "no chunk to compare"
    every = len(context.accepted) if zone is None else len(pairs)
    if not pairs:
        return Finding(True, missing, {"comparable_chunks": 0}, compared=0, disagreeing=0)
    failing: list[dict[str, Any]] = []
    for chunk, (was, is_) in pairs.items():
        if said := _beyond(was, is_, context.tolerances, name, "", absolute=absolute):
            failing.append({"chunk": chunk, "expected": was, "found": is_, "change": _change(was, is_), "what": said})
    was, is_ = (sum(pair[side] for pair in pairs.values()) for side in (0, 1))
    failing.sort(key=lambda row: (-abs(row["found"] - row["expected"]), row["chunk"]))
    chunks = len(failing)
    if said := _beyond(was, is_, context.tolerances, name, "total_", absolute=absolute):
        total = {"chunk": "all of them", "expected": was, "found": is_, "change": _change(was, is_), "what": said}
        failing.insert(0, total)
    summary = (
        f"{was:,} rows {than}, {is_:,} now ({_change(was, is_)}); {of_chunks(chunks, len(pairs), 'beyond the bounds')}"
    )
    summary += "; all of them together as well" if len(failing) > chunks else ""
    if len(pairs) < every:
        summary += f"; {of_chunks(every - len(pairs), every, 'without an accepted version')}"
    return judged(
        context,
        failing,
        summary,
        {"comparable_chunks": len(pairs), "expected": was, "found": is_, "failing_chunks": chunks},
        slices=("chunk",),
        what="",
        compared=len(pairs),
        disagreeing=max(chunks, 1 if failing else 0),
        asks=asks,
    )


def _by_days(chunks: Sequence[Chunk]) -> dict[str, str]:
    """Return what the source is counted for instead of each chunk: hours and parts of the same days are counted together."""
    together: dict[tuple[date, date], list[Chunk]] = {}
    for chunk in chunks:
        together.setdefault((chunk.start, chunk.end), []).append(chunk)
    return {
        one.key: one.key if len(own) == 1 else time_of(one.key).partition("T")[0] or span([each.key for each in own])
        for own in together.values()
        for one in own
    }


def _source_rows(context: ReconciliationContext, zone: str) -> dict[str, int]:
    """Return the source rows of each chunk's days."""
    scope = context.transform.publish_range
    day = source_day(context, zone)
    rows = context.source.select(day.alias("day")).where(F.col("day").between(F.lit(scope.start), F.lit(scope.end)))
    found: Counter[str] = Counter()
    days = _by_days(context.transform.chunks)
    for row in rows.groupBy("day").count().collect():  # a row a day of the range
        chunk = next((one.key for one in context.transform.chunks if one.start <= row["day"] <= one.end), None)
        if chunk is not None:
            found[days[chunk]] += row["count"]
    return found


def _beyond(was: int, is_: int, limits: Mapping[str, float], name: str, which: str, *, absolute: bool) -> str:
    """Say beyond which bound a number of rows is; nothing where it is within."""
    off = float(abs(is_ - was))
    if not absolute:
        off = off * 100.0 / was if was else (float("inf") if off else 0.0)
    side = "lower" if is_ < was else "upper"
    limit = limits.get(f"{name}_{which}{side}")
    if limit is None or off <= limit:
        return ""
    unit = " rows" if absolute else "%"
    return f"{'fewer' if is_ < was else 'more'} rows than within {limit:g}{unit}"


def _change(was: int, is_: int) -> str:
    if was:
        return f"{(is_ - was) * 100.0 / was:+.2f}%"
    return "from nothing" if is_ else "none"


@declared_with
def null_share_gate(
    most: Mapping[str, float],
    name: str = "nulls_within_limits",
    *,
    by: tuple[str, ...] = (),
    asks: bool = False,
) -> Reconciliation:
    """Return a gate that no more than a share of the rows of each chunk has no value in some columns.

    It counts what readers would see, while the chunk gates read the files anyway, so that it works for a first load as well.
    A column that may never be NULL is declared without `nullable=True`: that is a rule of the row.

    Args:
        most: the share of NULLs that is tolerated in percent of the rows, by column; each is a tolerance `<name>_<column>`.
        name: of the gate.
        by: columns of slices, for each of which the share is held to the limit, within each chunk.
        asks: whether an owner may accept a larger share with a reason.
    """
    fits = isinstance(most, Mapping) and bool(most) and all(isinstance(one, str) and one for one in most)
    given: Mapping[Any, Any] = most if fits else {}
    mistakes = [
        *unless(fits, "most", most, "it has the share that is tolerated by column", 'for example {"amount": 5.0}'),
        *(one for column, limit in given.items() for one in share(f"most of {column}", limit)),
        *several("by", by, some=False),
        *named_apart("by", by, ("chunk", "column", "share", *FOUND)),
        *flag("asks", asks),
    ]
    columns, slices = tuple(given), texts(by)
    named = tolerances(name, given)
    return Reconciliation(
        name,
        Level.STATE,
        f"No more rows of a chunk are without {', '.join(columns) or 'a value'} than is tolerated.",
        partial(_nulls, name=name, tally=Tally(by=slices, nulls=columns), asks=asks is True),
        tolerances=named,
        needs=Needs(tolerances=tuple(named), rows=(*columns, *slices)),
        mistakes=tuple(mistakes),
        tallies=(Tally(by=slices, nulls=columns),),
    )


def _nulls(context: ReconciliationContext, *, name: str, tally: Tally, asks: bool) -> Finding:
    chunks = context.tallies.after(tally)
    if (said := too_many(tally.by, chunks)) is not None:
        return said
    failing, compared = [], 0
    rows = sum(one.rows for one in chunks.values())
    nulls = dict.fromkeys(tally.nulls, 0)
    for chunk, tallied in sorted(chunks.items()):
        for place, group in tallied.groups.items():
            compared += 1
            for column in tally.nulls:
                nulls[column] += group.nulls[column]
                limit = context.tolerances[f"{name}_{column}"]
                part = percent_of(group.nulls[column], group.rows)
                if part > limit:
                    row = {"chunk": chunk, **in_slice(tally.by, place), "column": column, "share": f"{part:.2f}%"}
                    row |= {
                        "expected": f"at most {limit:g}%",
                        "found": f"{group.nulls[column]:,} of {group.rows:,} rows",
                    }
                    failing.append((-part, str(row), row))
    failing.sort(key=lambda one: one[:2])
    places = {(row["chunk"], *(row[one] for one in tally.by)) for *_, row in failing}
    lacking = ", ".join(f"{column} of {number:,} ({percent_of(number, rows):.2f}%)" for column, number in nulls.items())
    what = f"slices by chunk and {' and '.join(tally.by)}" if tally.by else "chunks"
    return judged(
        context,
        [row for *_, row in failing],
        f"of {rows:,} rows there is no {lacking}; {len(places):,} of {compared:,} {what} above the limit",
        {"rows": rows, "nulls": nulls, "failing_slices": len(places)},
        slices=("chunk", *tally.by, "column"),
        what="more rows without a value than are tolerated",
        compared=compared,
        disagreeing=len(places),
        asks=asks,
    )
