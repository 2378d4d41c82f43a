"""From the register of cases to one row per case, clock and day: what was known that day, and what is true of it.

Pure functions of frames and a context. How it is computed: a view of a case is what its entries say that were recorded up to
some day; a case without belated entries has one view, others one more for each day on which some came in. Of each view a clock
is a few stretches of days in one state, found by counting, not day by day. What was known is each view's stretches while it was
the newest, what is true is the last view's. Both are laid over one another, cut by chunk, and only then multiplied into days.

The days of a clock are counted by numbers: of a calendar-day clock the days since 1970, of a business-day clock the business
days of the calendar up to each day. A deadline is then a number, and a pause adds to it what was counted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.target import Inputs, TransformContext, TransformVersion
from backfill_assets.products.enforcement.transforms import CALENDAR, RULES, local_date
from manifests.errors import PlanRefused, Problem

PAUSES = "reference.pause_rules"
LOOK_BACK_COLUMNS = ("case_id", "jurisdiction", "activity", "event_seq", "effective_at", "recorded_at")
_CLOCK = ("case_id", "jurisdiction", "clock")
_EVER, _NEVER = "DATE'0001-01-01'", "DATE'9999-12-31'"
_PAYLOAD = ("state", "started_on", "breach_on", "paused", "pause_from")
"""What a stretch says of each of its days; of a paused one the days paused are `paused` and those since `pause_from`."""


def warm_up(references: Mapping[str, list[dict[str, Any]]]) -> int:
    """Return the days to read before the publish range: none, since whatever has gone before is looked back at.

    Raises:
        PlanRefused: naming every rule by which a clock could not be told.
    """
    if problems := list(_wrong_rules(references[RULES], references[PAUSES])):
        raise PlanRefused(problems)
    return 0


def _wrong_rules(rules: list[dict[str, Any]], pauses: list[dict[str, Any]]) -> Iterator[Problem]:
    own = sorted({_named(rule) for rule in rules if rule["pause_activities"] or rule["resume_activities"]})
    if own:
        yield Problem(
            f"{RULES} pauses {', '.join(own)}",
            f"which activity pauses a clock of case_clock_daily is said in {PAUSES}, and nowhere else",
            f"move these activities to a version of {PAUSES}",
        )
    known: dict[str, set[str]] = {}
    for rule in rules:
        known.setdefault(_named(rule), set()).update((rule["start_activity"], *rule["stop_activities"]))
    for pause in sorted(pauses, key=lambda one: (_named(one), one["activity"])):
        clock = _named(pause)
        if clock not in known:
            yield Problem(
                f"{PAUSES}: {pause['activity']} {pause['effect'].lower()} {clock}, which {RULES} does not have",
                "a rule of pauses is about a clock that there is",
                f"correct jurisdiction or clock, or add the clock to {RULES}",
            )
        elif pause["activity"] in known[clock]:
            yield Problem(
                f"{PAUSES}: {pause['activity']} {pause['effect'].lower()} {clock}, and starts or stops it by {RULES}",
                "an activity does one thing to a clock: starts, stops, pauses or resumes it",
                "take it out of one of the two",
            )


def _named(rule: Mapping[str, Any]) -> str:
    return f"{rule['jurisdiction']} {rule['clock']}"


def case_clock_daily(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Compute the rows of the context's chunks, each in the partition of its slot, sorted by key; see the module."""
    rules, pauses, calendar = (context.references[name] for name in (RULES, PAUSES, CALENDAR))
    # small: one task, no shuffle
    counted = F.sum(F.col("is_business_day").cast("int")).over(Window.partitionBy("jurisdiction").orderBy("day"))
    days = calendar.coalesce(1).select("jurisdiction", "day", "is_business_day", counted.cast("long").alias("nth"))
    cases = _cases(inputs, rules, pauses, days)
    return _daily(_laid_over(_stretches(_clocks(cases, rules, pauses), days)), context)


def _cases(inputs: Inputs, rules: DataFrame, pauses: DataFrame, days: DataFrame) -> DataFrame:
    """One row per case, jurisdiction and view: its entries, and the days on which it was the newest view."""
    read = inputs.source.select(*LOOK_BACK_COLUMNS)
    if inputs.look_back is not None:
        read = read.unionByName(inputs.look_back.select(*LOOK_BACK_COLUMNS))
    zones = rules.groupBy("jurisdiction").agg(F.min("time_zone").alias("time_zone"))
    of_rules = rules.select(
        "jurisdiction", F.explode(F.array_append("stop_activities", F.col("start_activity"))).alias("activity")
    )
    matters = of_rules.unionByName(pauses.select("jurisdiction", "activity")).distinct()
    zone = F.col("time_zone")
    entries = (
        read.join(F.broadcast(zones), "jurisdiction")
        .join(F.broadcast(matters), ["jurisdiction", "activity"])
        .withColumn("day", local_date(F.col("effective_at"), zone))
        .withColumn("known_on", F.greatest("day", local_date(F.col("recorded_at"), zone)))
        .join(F.broadcast(days.select("jurisdiction", "day", "nth")), ["jurisdiction", "day"], "left")
    )
    entry = F.struct("effective_at", "event_seq", "day", "known_on", "nth", "activity")
    belated = "array_sort(array_distinct(transform(filter(entries, e -> e.known_on > e.day), e -> e.known_on)))"
    return (
        entries.groupBy("case_id", "jurisdiction")
        .agg(F.collect_list(entry).alias("entries"))
        .withColumn("_since", F.expr(f"concat(array({_EVER}), {belated})"))
        .selectExpr("case_id", "jurisdiction", "entries", "_since", "posexplode(_since) AS (_at, since)")
        .selectExpr(
            "case_id",
            "jurisdiction",
            "since",
            f"coalesce(date_sub(get(_since, _at + 1), 1), {_NEVER}) AS newest_until",
            "_at = size(_since) - 1 AS is_last",
            "filter(entries, e -> e.known_on = e.day OR e.known_on <= since) AS entries",
        )
    )


def _clocks(cases: DataFrame, rules: DataFrame, pauses: DataFrame) -> DataFrame:
    """One row per case, clock and view: its rule, when it started and stopped, and what paused and resumed it since."""
    window = Window.partitionBy("jurisdiction", "clock").orderBy("valid_from")
    rule = F.struct(
        "valid_from",
        F.lead("valid_from").over(window).alias("valid_until"),
        "start_activity",
        "stop_activities",
        "length",
        "unit",
    )
    ruled = (
        rules.select("jurisdiction", "clock", rule.alias("rule"))
        .groupBy("jurisdiction", "clock")
        .agg(F.array_sort(F.collect_list("rule")).alias("rules"))
    )
    switched = pauses.groupBy("jurisdiction", "clock").agg(
        F.collect_set(F.when(F.col("effect") == "PAUSES", F.col("activity"))).alias("pausing"),
        F.collect_set(F.when(F.col("effect") == "RESUMES", F.col("activity"))).alias("resuming"),
    )
    starts = "array_min(transform(filter(entries, e -> e.activity = r.start_activity), e -> struct(e.day, e.nth)))"
    started = f"transform(rules, r -> struct(r AS rule, {starts} AS start))"
    in_force = (
        "x -> x.start.day >= x.rule.valid_from AND (x.rule.valid_until IS NULL OR x.start.day < x.rule.valid_until)"
    )
    stops = "filter(entries, e -> array_contains(rule.stop_activities, e.activity) AND e.day >= start.day)"
    number = "CASE WHEN rule.unit = 'BUSINESS_DAY' THEN {0}.nth ELSE CAST(unix_date({0}.day) AS BIGINT) END"
    matter = "filter(entries, e -> e.day >= start.day AND (array_contains(pausing, e.activity) OR array_contains(resuming, e.activity)))"
    # of one instant and place the pause comes first: `false` before `true`
    switch = f"""struct(
        e.effective_at, e.event_seq, array_contains(resuming, e.activity) AS resumes, e.day, {number.format("e")} AS number)"""
    return (
        cases.join(F.broadcast(ruled), "jurisdiction")
        .join(F.broadcast(switched), ["jurisdiction", "clock"], "left")
        .withColumns({name: F.coalesce(name, F.array().cast("array<string>")) for name in ("pausing", "resuming")})
        .withColumn("_begun", F.expr(f"get(filter({started}, {in_force}), 0)"))
        .selectExpr(
            *_CLOCK, "since", "newest_until", "is_last", "entries", "pausing", "resuming", "_begun.rule", "_begun.start"
        )
        .selectExpr(
            *_CLOCK,
            "since",
            "newest_until",
            "is_last",
            "start.day AS started_on",
            f"{number.format('start')} + rule.length AS due",
            "rule.unit = 'BUSINESS_DAY' AS in_business_days",
            f"array_min(transform({stops}, e -> e.day)) AS stopped_on",
            f"array_sort(transform({matter}, e -> {switch})) AS switches",
        )
    )


_PAUSE = "struct<since: date, since_number: bigint, until: date, until_number: bigint>"
_PAUSES_OF = f"""aggregate(switches, CAST(array() AS array<{_PAUSE}>), (found, s) -> CASE
    WHEN s.resumes AND size(found) > 0 AND get(found, size(found) - 1).until IS NULL THEN concat(
        slice(found, 1, size(found) - 1),
        array(CAST(struct(get(found, size(found) - 1).since, get(found, size(found) - 1).since_number, s.day, s.number) AS {_PAUSE})))
    WHEN NOT s.resumes AND (size(found) = 0 OR get(found, size(found) - 1).until IS NOT NULL)
        THEN concat(found, array(CAST(struct(s.day, s.number, NULL, NULL) AS {_PAUSE})))
    ELSE found END)"""
"""From pauses and resumptions in order to pauses from a day to a day; what pauses a paused clock or resumes a running one is none."""
_STRETCH = "struct<state: string, begins: date, ends: date, due: bigint, paused: int>"
_PART = (
    "struct<state: string, begins: date, ends: date, started_on: date, breach_on: date, paused: int, pause_from: date>"
)
_SO_FAR = f"struct<found: array<{_STRETCH}>, begins: date, due: bigint, paused: int, is_over: boolean>"
_STRETCHES_OF = f"""aggregate(pauses,
    CAST(struct(array(), started_on, due, 0, false) AS {_SO_FAR}),
    (so_far, p) -> CASE WHEN so_far.is_over OR so_far.due <= p.since_number THEN so_far ELSE CAST(struct(
        concat(so_far.found, array(
            CAST(struct('RUNNING', so_far.begins, p.since, so_far.due, so_far.paused) AS {_STRETCH}),
            CAST(struct('PAUSED', date_add(p.since, 1), coalesce(p.until, {_NEVER}), NULL, so_far.paused) AS {_STRETCH}))),
        date_add(p.until, 1),
        so_far.due + p.until_number - p.since_number,
        so_far.paused + datediff(p.until, p.since),
        p.until IS NULL) AS {_SO_FAR}) END,
    so_far -> CASE WHEN so_far.is_over THEN so_far.found ELSE concat(so_far.found, array(
        CAST(struct('RUNNING', so_far.begins, {_NEVER}, so_far.due, so_far.paused) AS {_STRETCH}))) END)"""
"""From pauses to stretches: a clock runs up to and with the day of a pause, and is paused up to and with that of the resumption."""


def _stretches(clocks: DataFrame, days: DataFrame) -> DataFrame:
    """One row per case, clock, view and stretch of days in one state: of every day there is one, of days before the start an empty one."""
    ends = days.where("is_business_day").select(
        "jurisdiction", F.col("nth").alias("_due"), F.col("day").alias("_business_day")
    )
    counted = F.col("in_business_days")
    stretches = (
        clocks.withColumn("pauses", F.expr(_PAUSES_OF))
        .withColumn(
            "_found",
            F.expr(f"CASE WHEN started_on IS NOT NULL THEN filter({_STRETCHES_OF}, s -> s.begins <= s.ends) END"),
        )
        .selectExpr(
            *_CLOCK,
            "since",
            "newest_until",
            "is_last",
            "started_on",
            "stopped_on",
            "in_business_days",
            "posexplode_outer(_found) AS (_at, s)",
        )
        .select("*", F.col("s.due").alias("_due"))
        .join(F.broadcast(ends), ["jurisdiction", "_due"], "left")
        .withColumn(
            "breach_on",
            F.when(counted, F.col("_business_day")).otherwise(F.date_from_unix_date(F.col("_due").cast("int"))),
        )
    )
    before = f"struct(NULL, {_EVER}, coalesce(date_sub(started_on, 1), {_NEVER}), NULL, NULL, NULL, NULL)"
    own = """struct(s.state, s.begins, least(s.ends, date_sub(stopped_on, 1), date_sub(breach_on, 1)), started_on,
        breach_on, s.paused, CASE WHEN s.state = 'PAUSED' THEN s.begins END)"""
    is_met = "stopped_on BETWEEN s.begins AND s.ends AND (breach_on IS NULL OR stopped_on < breach_on)"
    # the deadline of a stretch that a pause ends lies after it: only the last one is breached
    is_breached = "breach_on <= s.ends AND (stopped_on IS NULL OR stopped_on >= breach_on)"
    paused = "s.paused + CASE WHEN s.state = 'PAUSED' THEN datediff(stopped_on, s.begins) ELSE 0 END"
    parts = f"""array(
        CASE WHEN _at IS NULL OR _at = 0 THEN CAST({before} AS {_PART}) END,
        CASE WHEN s IS NOT NULL THEN CAST({own} AS {_PART}) END,
        CASE WHEN {is_met} THEN CAST(struct('MET', stopped_on, {_NEVER}, started_on, breach_on, {paused}, NULL) AS {_PART}) END,
        CASE WHEN {is_breached} THEN CAST(
            struct('BREACHED', breach_on, {_NEVER}, started_on, breach_on, s.paused, NULL) AS {_PART}) END)"""
    return stretches.selectExpr(
        *_CLOCK, "since", "newest_until", "is_last", f"explode(filter({parts}, p -> p.begins <= p.ends)) AS p"
    )


def _laid_over(stretches: DataFrame) -> DataFrame:
    """One row per case, clock and stretch of days on which neither view changes: from the first start to the last change."""
    payload = ", ".join(f"s.p.{name}" for name in _PAYLOAD)
    known = f"""filter(transform(stretches, s -> struct(
        greatest(s.p.begins, s.since) AS begins, least(s.p.ends, s.newest_until) AS ends, {payload})), k -> k.begins <= k.ends)"""
    true = f"transform(filter(stretches, s -> s.is_last), s -> struct(s.p.begins, s.p.ends, {payload}))"
    is_other = " OR ".join(f"NOT (v.{name} <=> get(view, i - 1).{name})" for name in _PAYLOAD)
    # an open clock changes day by day; an ended one on the day from which it is another than on the day before
    last_change = f"""array_max(transform(view, (v, i) -> CASE
        WHEN v.state IN ('RUNNING', 'PAUSED') THEN v.ends WHEN i > 0 AND ({is_other}) THEN v.begins END))"""
    pairs = """flatten(transform(true_view, t -> transform(filter(known_view, k -> k.begins <= t.ends AND k.ends >= t.begins), k -> struct(
        greatest(t.begins, k.begins) AS begins, least(t.ends, k.ends, last_day) AS ends, k AS known_view, t AS true_view))))"""
    return (
        stretches.groupBy(*_CLOCK)
        .agg(F.collect_list(F.struct("since", "newest_until", "is_last", "p")).alias("stretches"))
        .withColumn("known_view", F.expr(f"array_sort({known})"))
        .withColumn("true_view", F.expr(f"array_sort({true})"))
        .withColumn(
            "last_day",
            F.expr(f"greatest({', '.join(last_change.replace('view', view) for view in ('known_view', 'true_view'))})"),
        )
        .withColumn("pair", F.explode(F.expr(pairs)))
        .where("pair.begins <= pair.ends AND (pair.known_view.state IS NOT NULL OR pair.true_view.state IS NOT NULL)")
        .select(*_CLOCK, "pair.*")
    )


def _daily(stretches: DataFrame, context: TransformContext) -> DataFrame:
    """Cut stretches by chunk, bring each chunk to the partition of its slot in key order, then multiply into days."""
    spark: SparkSession = stretches.sparkSession
    chunks = spark.createDataFrame(
        [(slot, chunk.start, chunk.end) for slot, chunk in zip(context.slots, context.chunks, strict=True)],
        "slot int, chunk_start date, chunk_end date",
    )
    first, last = min(chunk.start for chunk in context.chunks), max(chunk.end for chunk in context.chunks)
    # a pause that is never resumed has no last day: it ends with the last chunk
    begins, ends = F.greatest("begins", F.lit(first)), F.least("ends", F.lit(last))
    months = F.sequence(F.trunc(begins, "MM"), F.trunc(ends, "MM"), F.expr("INTERVAL 1 MONTH"))
    cut = (
        stretches.where(begins <= ends)
        .withColumn("chunk_start", F.explode(months))
        .join(F.broadcast(chunks), "chunk_start")
        .repartitionById(context.slots[-1] + 1, F.col("slot"))
        .sortWithinPartitions("case_id", "clock", "begins")
    )
    days = F.sequence(F.greatest("begins", "chunk_start"), F.least("ends", "chunk_end"))
    return cut.withColumn("business_date", F.explode(days)).select(
        "case_id",
        "clock",
        "jurisdiction",
        "business_date",
        *(one for view in ("known", "true") for one in _columns(view)),
    )


def _columns(view: str) -> list[Column]:
    paused_now = F.when(
        F.col(f"{view}_view.state") == "PAUSED", F.datediff("business_date", f"{view}_view.pause_from") + 1
    )
    paused = F.col(f"{view}_view.paused") + F.coalesce(paused_now, F.lit(0))
    own = {name: F.col(f"{view}_view.{name}") for name in ("state", "started_on", "breach_on")}
    return [column.alias(f"{view}_{name}") for name, column in (own | {"days_paused": paused}).items()]


VERSIONS = {"1.0.0": TransformVersion(case_clock_daily, clustered=True)}
