"""Reconciliations in pieces: what a product puts together to say that records, totals and outcomes agree.

Put here how things are held against each other and how what disagrees is named: by slice, and row by row. Which things,
and how they are found in another way than the transform's, is the product's to say; how far two amounts are apart is `amounts`'s,
how a row is written `exception_texts`'s. Where several gates ask of the same entities, they share one `Comparison`, which is
counted in one Spark job whatever their number; what disagrees is looked up only where a gate has not passed. Imported by Spark's
Python workers with the products: keep it light.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import localcontext
from functools import partial, reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.amounts import difference, for_record, off
from backfill_assets.declarations.exception_texts import exception_rows, json_of, text_of
from backfill_assets.declarations.gate_arguments import flag, function, named_apart, several, text, texts, unless
from backfill_assets.declarations.needs import Needs
from backfill_assets.declarations.target import Finding, Level, Reconciliation, ReconciliationContext
from manifests.errors import Problem

SLICES = 50
"""Failing slices that a verdict names; their number is kept whole, and the exception table has a row for each."""
DIGITS = 100
"""What decimals are added up with: no sum of Spark's has half as many, and of those nothing is rounded."""


@dataclass(frozen=True)
class Comparison:
    """Entities, expected and found side by side.

    Attributes:
        name: under which its counts are shared by the gates of a run.
        rows: from the context to a frame of one row an entity: `key`, `slices`, a Boolean column for each condition
            (NULL counts as false), and whatever is to be shown of an entity that disagrees.
        key: what identifies an entity.
        slices: the business slices that entities are counted by.
        conditions: the Boolean columns that are counted.
    """

    name: str
    rows: Callable[[ReconciliationContext], DataFrame]
    key: tuple[str, ...]
    slices: tuple[str, ...]
    conditions: tuple[str, ...]

    def counts(self, context: ReconciliationContext) -> list[dict[str, Any]]:
        """Return how many entities have each condition, by slice: one Spark job for all gates that share it."""
        found: list[dict[str, Any]] = context.shared(self.name, self._count)
        return found

    def _count(self, context: ReconciliationContext) -> list[dict[str, Any]]:
        counted = [F.count_if(F.col(name)).alias(name) for name in self.conditions]
        rows = self.rows(context).select(*self.slices, *self.conditions)
        return [row.asDict() for row in rows.groupBy(*self.slices).agg(*counted).collect()]


@dataclass(frozen=True)
class Wrong:
    """A condition of entities that disagree, and what it is in words.

    `only_where`: it is wrong only in slices of the gate that have entities of this other condition.
    """

    condition: str
    what: str
    only_where: str | None = None


@dataclass(frozen=True)
class Entities:
    """Entities that can disagree: which they are, why they are wrong, and the columns that say what was expected and found.

    `needs`: what their comparison looks for by name. `mistakes`: what the arguments it was made of cannot be.
    """

    comparison: Comparison
    wrong: tuple[Wrong, ...]
    expected: tuple[str, ...]
    found: tuple[str, ...]
    needs: Needs = field(default_factory=Needs)
    mistakes: tuple[Problem, ...] = ()


def keys(
    name: str,
    *,
    eligible: Callable[[ReconciliationContext], DataFrame],
    key: tuple[str, ...],
    slices: tuple[str, ...] = (),
    found: Callable[[ReconciliationContext], DataFrame] | None = None,
) -> Entities:
    """Return the entities of a record-level gate: those the source makes eligible against those that are there.

    Args:
        name: under which the counts are shared.
        eligible: every entity that is to be present in the publish range, from the source.
        key: the columns that identify one.
        slices: the columns to count by; both frames have them.
        found: the entities that are there; the staged rows (their outline, if the target declares one) unless given.
    """

    def side_by_side(context: ReconciliationContext) -> DataFrame:
        own = [column for column in slices if column not in key]
        expected = eligible(context).select(*key, *own).dropDuplicates(list(key)).withColumn("expected", F.lit(True))
        present = (context.staged if found is None else found(context)).select(*key, *own).dropDuplicates(list(key))
        merged = each_of(expected, present.withColumn("found", F.lit(True)), key, own)
        return merged.withColumns(
            {
                "eligible": F.col("expected").isNotNull(),
                "missing": F.col("found").isNull(),
                "extra": F.col("expected").isNull(),
            }
        )

    return Entities(
        Comparison(name, side_by_side, key, slices, ("eligible", "missing", "extra")),
        wrong=(Wrong("missing", "missing"), Wrong("extra", "extra")),
        expected=("expected",),
        found=("found",),
        needs=Needs(target=tuple(dict.fromkeys((*texts(key), *texts(slices)))) if found is None else (), tolerances=()),
        mistakes=(
            *text("name of its keys", name),
            *function("eligible", eligible),
            *several("key", key),
            *several("slices", slices, some=False),
            *named_apart("key", key, ("expected", "found", "eligible", "missing", "extra")),
            *named_apart("slices", slices, ("expected", "found", "eligible", "missing", "extra", "compared", "wrong")),
            *function("found", found, optional=True),
        ),
    )


def each_of(one: DataFrame, other: DataFrame, key: Sequence[str], further: Sequence[str] = ()) -> DataFrame:
    """Return the keys that two frames have, each once, with what both say of it; NULL in a key is the same as NULL.

    Of `further` columns, which both have, what the first one says comes before the other.
    """
    names = {name: f"_other_{name}" for name in (*key, *further)}
    same = [F.col(name).eqNullSafe(F.col(names[name])) for name in key]
    both = one.join(other.withColumnsRenamed(names), same, "full_outer")
    return both.withColumns({name: F.coalesce(name, own) for name, own in names.items()}).drop(*names.values())


def record_level(
    name: str,
    description: str,
    entities: Entities,
    *,
    compared: str = "eligible",
    by: tuple[str, ...] | None = None,
    summary: str = "{compared:,} entities are eligible; {wrong:,} are missing or extra",
) -> Reconciliation:
    """Return a gate that the eligible entities are present, and no others.

    Args:
        name: of the gate.
        description: what it holds, in one sentence.
        entities: what is held against each other.
        compared: the condition of the entities that are counted as compared.
        by: the slices that failures are named by; those of the comparison unless given.
        summary: what was found, with `compared` and `wrong`.
    """
    return _of_entities(name, Level.RECORD, description, entities, compared, by, summary)


def outcome_level(
    name: str,
    description: str,
    entities: Entities,
    *,
    compared: str = "compared",
    by: tuple[str, ...] | None = None,
    summary: str = "{compared:,} decisions compared; {wrong:,} differ",
) -> Reconciliation:
    """Return a gate that decisions downstream agree with what was computed; arguments as of `record_level`."""
    return _of_entities(name, Level.OUTCOME, description, entities, compared, by, summary)


def _of_entities(
    name: str,
    level: Level,
    description: str,
    entities: Entities,
    compared: str,
    by: tuple[str, ...] | None,
    summary: str,
) -> Reconciliation:
    check = partial(_agreement, entities=entities, compared=compared, by=by, summary=summary)
    mistakes = [*text("description", description), *_of_summary(summary)]
    if not isinstance(entities, Entities):
        made = "entities are those of `keys`, or an `Entities`"
        mistakes += unless(False, "entities", entities, made, "for example keys(...)")
        return Reconciliation(name, level, description, check, mistakes=tuple(mistakes))
    comparison = entities.comparison
    conditions = f"conditions of its entities are {', '.join(comparison.conditions)}"
    mistakes += entities.mistakes
    mistakes += unless(compared in comparison.conditions, "compared", compared, conditions, "name one of them")
    if by is not None:
        mistakes += several("by", by, some=False)
        known = f"slices of its entities are {', '.join(texts(comparison.slices)) or 'none'}"
        for column in texts(by):
            mistakes += unless(column in texts(comparison.slices), "a column of by", column, known, "name one of them")
    return Reconciliation(name, level, description, check, needs=entities.needs, mistakes=tuple(mistakes))


def _of_summary(summary: Any) -> Iterator[Problem]:
    try:
        summary.format(compared=0, wrong=0)
    except Exception:  # noqa: BLE001 - whatever is given
        rule = "it is a text with the places {compared} and {wrong}"
        yield from unless(False, "summary", summary, rule, "for example '{compared:,} compared; {wrong:,} differ'")


def _agreement(
    context: ReconciliationContext, *, entities: Entities, compared: str, by: tuple[str, ...] | None, summary: str
) -> Finding:
    columns = entities.comparison.slices if by is None else by
    counts = _by_slice(entities.comparison.counts(context), columns)
    judged = {
        one.condition: [place for place, row in counts.items() if one.only_where is None or row[one.only_where]]
        for one in entities.wrong
    }
    failing: dict[tuple[Any, ...], int] = {}
    for one in entities.wrong:
        for place in judged[one.condition]:
            if number := counts[place][one.condition]:
                failing[place] = failing.get(place, 0) + number
    total, wrong = sum(row[compared] for row in counts.values()), sum(failing.values())
    worst = sorted(failing, key=lambda place: (-failing[place], str(place)))
    return Finding(
        wrong == 0,
        summary.format(compared=total, wrong=wrong),
        {"compared": total, "wrong": wrong, "failing_slices": len(failing)},
        compared=total,
        disagreeing=wrong,
        slices=[
            dict(zip(columns, place, strict=True)) | {"compared": counts[place][compared], "wrong": failing[place]}
            for place in worst[:SLICES]
        ],
        exceptions=partial(_exceptions, context, entities, columns, judged),
    )


def _by_slice(counts: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> dict[tuple[Any, ...], dict[str, int]]:
    """Add up counts by some of the slices they were counted by."""
    totals: dict[tuple[Any, ...], dict[str, int]] = {}
    for row in counts:
        place = totals.setdefault(tuple(row[column] for column in columns), {})
        for name, value in row.items():
            if name not in columns and isinstance(value, int):
                place[name] = place.get(name, 0) + value
    return totals


def state_level(
    name: str,
    description: str,
    *,
    slices: tuple[str, ...],
    measures: tuple[str, ...],
    expected: Callable[[ReconciliationContext], DataFrame | Iterable[Mapping[str, Any]]],
    found: Callable[[ReconciliationContext], DataFrame | Iterable[Mapping[str, Any]]] | None = None,
    tolerance: str | None = None,
    relative: bool = False,
    entities: Entities | None = None,
) -> Reconciliation:
    """Return a gate that aggregates agree, slice by slice, within a tolerance.

    Args:
        name: of the gate.
        description: what it holds, in one sentence.
        slices: the columns of a business slice.
        measures: the columns that are added up by slice.
        expected: the aggregates, recomputed from the source in another way than the transform's: slices and measures,
            one row a slice or several that are added up. As many rows come to the driver: aggregate first.
        found: the same of the rows that are there; what the chunk gates measured, unless given.
        tolerance: the tolerance's name; without one they are equal.
        relative: whether it is in percent of what is expected, or in the measures' own unit.
        entities: what a slice that differs can be looked into: entities whose slices are those of the gate.
    """
    check = partial(
        _totals_agree,
        slices=slices,
        measures=measures,
        expected=expected,
        found=found or (lambda context: context.measures),
        tolerance=tolerance,
        relative=relative,
        entities=entities,
    )
    mistakes = [
        *text("description", description),
        *several("slices", slices, some=False),
        *several("measures", measures),
        *function("expected", expected),
        *function("found", found, optional=True),
        *flag("relative", relative),
    ]
    needs = Needs(tolerances=())
    if isinstance(entities, Entities):
        needs, mistakes = entities.needs, [*mistakes, *entities.mistakes]
    elif entities is not None:
        made = "entities are those of `keys`, or an `Entities`"
        mistakes += unless(False, "entities", entities, made, "for example keys(...), or leave it out")
    if tolerance is None:
        rule = "relative says that a tolerance is in percent: without one, aggregates are equal"
        mistakes += unless(relative is not True, "relative", relative, rule, "name the tolerance, or take relative out")
    else:
        mistakes += text("tolerance", tolerance)
        needs = replace(needs, tolerances=texts((tolerance,)))
    if found is None:
        needs = replace(needs, measured=tuple(dict.fromkeys((*texts(slices), *texts(measures)))))
    return Reconciliation(name, Level.STATE, description, check, needs=needs, mistakes=tuple(mistakes))


def _totals_agree(
    context: ReconciliationContext,
    *,
    slices: tuple[str, ...],
    measures: tuple[str, ...],
    expected: Callable[[ReconciliationContext], DataFrame | Iterable[Mapping[str, Any]]],
    found: Callable[[ReconciliationContext], DataFrame | Iterable[Mapping[str, Any]]],
    tolerance: str | None,
    relative: bool,
    entities: Entities | None,
) -> Finding:
    wanted, there = _given(expected(context)), _given(found(context))  # by a product, which computes as it always does
    with localcontext(prec=DIGITS):
        return _sums_agree(context, (wanted, there), slices, measures, tolerance, relative=relative, entities=entities)


def _sums_agree(
    context: ReconciliationContext,
    sides: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]],
    slices: tuple[str, ...],
    measures: tuple[str, ...],
    tolerance: str | None,
    *,
    relative: bool,
    entities: Entities | None,
) -> Finding:
    wanted, there = (_totals(rows, slices, measures) for rows in sides)
    limit = 0.0 if tolerance is None else context.tolerances[tolerance]
    everywhere = sorted(wanted.keys() | there.keys(), key=str)
    differing = []
    failing = set()
    for place in everywhere:
        for measure in measures:
            was, is_ = (side.get(place, {}).get(measure, 0) for side in (wanted, there))
            if off(was, is_, relative=relative) > limit:
                row = dict(zip(slices, place, strict=True))
                row |= {"measure": measure, "expected": was, "found": is_, "difference": difference(was, is_)}
                differing.append((-off(was, is_, relative=False), row))
                failing.add(place)
    differing.sort(key=lambda one: (one[0], str(one[1])))
    rows = [row for _, row in differing]
    sums = {
        measure: [sum(row.get(measure, 0) for row in side.values()) for side in (wanted, there)] for measure in measures
    }
    said = ", ".join(f"{one[0]:,} {measure} recomputed, {one[1]:,} found" for measure, one in sums.items())
    within = "" if tolerance is None else f" by more than {limit:g}{'%' if relative else ''}"
    return Finding(
        not differing,
        f"{said}; {_of_slices(len(failing), len(everywhere), slices)}{within}",
        {
            "totals": {
                measure: {"expected": for_record(one[0]), "found": for_record(one[1])} for measure, one in sums.items()
            },
            "differing": len(failing),
            "failing_slices": len(failing),
        }
        | ({} if tolerance is None else {"limit": limit}),
        compared=len(everywhere),
        disagreeing=len(failing),
        slices=[{name: for_record(one) for name, one in row.items()} for row in rows[:SLICES]],
        exceptions=partial(_slice_exceptions, context, slices, rows, entities),
    )


def _of_slices(failing: int, everywhere: int, columns: tuple[str, ...]) -> str:
    """Say how many slices differ; without columns there is one, which is the whole."""
    if columns:
        return f"{failing} of {everywhere} slice{'' if everywhere == 1 else 's'} by {' and '.join(columns)} differ"
    return "they differ" if failing else "they do not differ"


def _given(rows: DataFrame | Iterable[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return [row.asDict() for row in rows.collect()] if isinstance(rows, DataFrame) else list(rows)


def _totals(
    given: Sequence[Mapping[str, Any]], slices: tuple[str, ...], measures: tuple[str, ...]
) -> dict[tuple[Any, ...], dict[str, Any]]:
    for measure in measures:
        if given and not any(measure in row for row in given):
            known = ", ".join(dict.fromkeys(name for row in given[:SLICES] for name in row))
            raise KeyError(f"no row to be added up has the measure {measure!r}; they have {known}")
    totals: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in given:
        place = totals.setdefault(tuple(row[column] for column in slices), dict.fromkeys(measures, 0))
        for measure in measures:
            place[measure] += row.get(measure) or 0
    return totals


# --- what disagrees, row by row ---------------------------------------------------------------------------------------


def _exceptions(
    context: ReconciliationContext,
    entities: Entities,
    columns: tuple[str, ...],
    judged: Mapping[str, Sequence[tuple[Any, ...]]],
) -> DataFrame:
    """Return every entity that disagrees; `judged` has the slices in which a condition is wrong."""
    what = F.lit(None).cast("string")
    for one in reversed(entities.wrong):
        applies = F.col(one.condition)
        if one.only_where is not None:
            applies = applies & _is_one_of(columns, judged[one.condition])
        what = F.when(applies, F.lit(one.what)).otherwise(what)
    rows = entities.comparison.rows(context).withColumn("_what", what).where(F.col("_what").isNotNull())
    return rows.select(
        text_of(*columns).alias("slice"),
        text_of(*entities.comparison.key).alias("key"),
        text_of(*entities.expected).alias("expected"),
        text_of(*entities.found).alias("found"),
        F.col("_what").alias("what"),
    )


def _is_one_of(columns: tuple[str, ...], places: Sequence[tuple[Any, ...]]) -> Column:
    alike = [
        reduce(
            Column.__and__, [F.col(name).eqNullSafe(F.lit(value)) for name, value in zip(columns, place, strict=True)]
        )
        for place in places
    ]
    return reduce(Column.__or__, alike) if alike else F.lit(False)


def _slice_exceptions(
    context: ReconciliationContext,
    slices: tuple[str, ...],
    differing: Sequence[Mapping[str, Any]],
    entities: Entities | None,
) -> DataFrame:
    """Return a row for each slice and measure that differs, and the entities of those slices that disagree."""
    spark = context.source.sparkSession
    rows = [
        {
            "slice": json_of({column: row[column] for column in slices}),
            "key": "{}",
            "expected": json_of({row["measure"]: row["expected"]}),
            "found": json_of({row["measure"]: row["found"]}),
            "what": f"{row['measure']} of the slice differ",
        }
        for row in differing
    ]
    named = exception_rows(spark, rows)
    if entities is None:
        return named
    inside = _exceptions(context, entities, slices, {})
    return named.unionByName(inside.join(F.broadcast(named.select("slice").distinct()), "slice", "left_semi"))
