"""What must agree once every chunk of a run of the clocks that pause is staged: the register and the rows, clock by clock.

Clocks are recomputed in another way than the transform's: that is `lives`. What is asked of them stands here.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import date
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.pandas.types import from_arrow_schema

from backfill_assets.declarations.reconciliations import Comparison, Entities, Wrong, outcome_level, record_level
from backfill_assets.declarations.target import ReconciliationContext
from backfill_assets.products.enforcement.pausing import lives
from backfill_assets.products.enforcement.pausing.schemas import VIEWS
from backfill_assets.products.enforcement.pausing.transform import PAUSES
from backfill_assets.products.enforcement.transforms import CALENDAR, RULES, local_date

_ENTRIES_A_PART = 250_000
"""Entries of the register whose cases are compared at once, in a worker's memory."""
_EPOCH = date(1970, 1, 1)
_NEVER = 10**7


def _clocks(context: ReconciliationContext) -> DataFrame:
    """One row per case, jurisdiction and clock, as the register says and as found, and what is wrong with it; see `lives`."""
    terms = _terms(context)
    parts = max(
        int(context.source.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1),
        -(-context.source_rows // _ENTRIES_A_PART),
    )
    both = _entries(context, terms).unionByName(_found(context), allowMissingColumns=True)
    # cases of both sides in one place: a part of them is compared in memory
    return both.repartition(parts, "case_id").mapInArrow(
        partial(lives.side_by_side, terms), from_arrow_schema(lives.SIDE_BY_SIDE)
    )


def _terms(context: ReconciliationContext) -> lives.Terms:
    references, scope = context.transform.references, context.transform.publish_range
    rules: dict[tuple[str, str], list[lives.Rule]] = defaultdict(list)
    rows = sorted(references[RULES].collect(), key=lambda one: (one["jurisdiction"], one["clock"], one["valid_from"]))
    for at, row in enumerate(rows):
        clock = row["jurisdiction"], row["clock"]
        follows = rows[at + 1] if at + 1 < len(rows) else None
        replaced = follows is not None and (follows["jurisdiction"], follows["clock"]) == clock
        rules[clock].append(
            lives.Rule(
                row["start_activity"],
                frozenset(row["stop_activities"]),
                _number(row["valid_from"]),
                _number(follows["valid_from"]) if follows is not None and replaced else _NEVER,
                row["length"],
                row["unit"] == "BUSINESS_DAY",
            )
        )
    effects: dict[tuple[str, str], dict[str, bool]] = defaultdict(dict)
    for row in references[PAUSES].collect():
        effects[row["jurisdiction"], row["clock"]][row["activity"]] = row["effect"] == "PAUSES"
    counted = sorted({place for (place, _), own in rules.items() if any(one.in_business_days for one in own)})
    business_days, calendar = _calendar(references[CALENDAR].where(F.col("jurisdiction").isin(counted)))
    return lives.Terms(_number(scope.start), _number(scope.end), dict(rules), dict(effects), business_days, calendar)


def _calendar(days: DataFrame) -> tuple[dict[str, list[int]], dict[str, tuple[int, int]]]:
    """Return the business days of each jurisdiction in order, and the first and the last day that its calendar has."""
    rows = sorted((row["jurisdiction"], _number(row["day"]), row["is_business_day"]) for row in days.collect())
    business_days: dict[str, list[int]] = defaultdict(list)
    reach: dict[str, tuple[int, int]] = {}
    for place, day, is_business_day in rows:
        reach[place] = (reach.get(place, (day, day))[0], day)
        if is_business_day:
            business_days[place].append(day)
    return dict(business_days), reach


def _number(day: date) -> int:
    return (day - _EPOCH).days


def _entries(context: ReconciliationContext, terms: lives.Terms) -> DataFrame:
    """What the register says of cases: the entries that matter to a clock, by the days of their jurisdiction."""
    activities = {one for of in terms.rules.values() for rule in of for one in (rule.start, *rule.stops)}
    activities |= {one for of in terms.effects.values() for one in of}
    zones = context.transform.references[RULES].groupBy("jurisdiction").agg(F.min("time_zone").alias("time_zone"))
    read = context.source.where(F.col("activity").isin(sorted(activities))).join(F.broadcast(zones), "jurisdiction")
    holds, recorded = (F.unix_date(local_date(F.col(name), F.col("time_zone"))) for name in _INSTANTS)
    return read.select(
        "case_id",
        "jurisdiction",
        "activity",
        F.unix_micros("effective_at").alias("at"),
        "event_seq",
        holds.alias("day"),
        F.greatest(holds, recorded).alias("known_on"),
    )


_INSTANTS = ("effective_at", "recorded_at")


def _found(context: ReconciliationContext) -> DataFrame:
    """What the rows say of clocks: of each its days, how many are in which state, and what they add up to."""
    counts = [F.count(F.lit(1)).alias("days")]
    for view in VIEWS:
        state = F.col(f"{view}_state")
        counts += [F.count_if(state == one).alias(f"{view}_{one}") for one in lives.STATES]
        counts.append(F.coalesce(F.sum(_weight(view)), F.lit(0)).alias(f"{view}_sum"))
    return context.staged.groupBy(*lives.CLOCK).agg(*counts)


def _weight(view: str) -> Column:
    place = F.array_position(F.array(*(F.lit(one) for one in lives.STATES)), F.col(f"{view}_state"))
    started, due = (F.unix_date(f"{view}_{name}").cast("bigint") for name in ("started_on", "breach_on"))
    day, paused = F.unix_date("business_date").cast("bigint"), F.col(f"{view}_days_paused").cast("bigint")
    weight: Column = lives.weight(day, place, started, F.coalesce(due, F.lit(0)), paused)
    return weight


CLOCKS = Entities(
    Comparison("clocks_that_pause", _clocks, lives.CLOCK, ("jurisdiction", "clock"), lives.CONDITIONS),
    (
        Wrong("missing", "the clock has no day in the range"),
        Wrong("extra", "the register starts no such clock, or it was over before the range"),
        Wrong("days_differ", "the clock has another number of days"),
    ),
    expected=("register_days", "register_known", "register_true"),
    found=("found_days", "found_known", "found_true"),
)
SAID = Entities(
    CLOCKS.comparison,
    (
        Wrong("true_differs", "what was true of its days is otherwise by the register"),
        Wrong("known_differs", "what was known on its days is otherwise by the register"),
    ),
    expected=("register_known", "register_true", "register_known_sum", "register_true_sum"),
    found=("found_known", "found_true", "found_known_sum", "found_true_sum"),
)
ALL = (
    record_level(
        "every_clock_has_its_days",
        "Each case and clock has as many days in the publish range as the register gives it, and no other has one.",
        CLOCKS,
        compared="expected",
        summary="{compared:,} clocks have days in the range by the register; {wrong:,} are missing, extra or of other days",
    ),
    outcome_level(
        "clocks_say_what_the_register_says",
        "States, starts, deadlines and paused days, known and true, are those of the register lived through entry by entry.",
        SAID,
        compared="both",
        summary="{compared:,} clocks compared with the register; {wrong:,} say otherwise what was known or true",
    ),
)
"""Both ask of the same clocks, which are counted in one job."""
