"""The shipped target in SQL, for DuckDB and for Spark, and the rules of its chunk gate as audits of SQLMesh.

Put here what is asked of the data, by engine. The rows are to equal those of `transforms.case_sla_daily`; the benchmark compares
them, of history and of the restatement. Files and projects that carry this text are `sqlmesh_project`'s.
"""

from __future__ import annotations

from string import Template

COLUMNS = (
    "case_id",
    "clock",
    "jurisdiction",
    "business_date",
    "started_on",
    "breach_on",
    "days_open",
    "sla_state",
    "breach_at",
    "amount",
)
"""What all contenders compute; the project adds its lineage, SQLMesh and the others the month."""

WORDS = {
    "duckdb": {
        "local_day": "CAST(event_at AT TIME ZONE {zone} AS DATE)",
        "latest_amount": "ARG_MAX(e.amount, STRUCT_PACK(d := e.day, s := e.event_seq, a := e.amount))",
        "instant": "CAST(breach_on AS TIMESTAMP) AT TIME ZONE time_zone",
        "days": "CAST(UNNEST(GENERATE_SERIES(CAST(first_day AS TIMESTAMP), CAST(last_day AS TIMESTAMP), INTERVAL 1 DAY)) AS DATE)",
        "days_between": "DATE_DIFF('day', started_on, business_date)",
        "days_later": "started_on + length",
        "month": "STRFTIME(business_date, '%Y-%m')",
    },
    "spark": {
        "local_day": "TO_DATE(FROM_UTC_TIMESTAMP(event_at, {zone}))",
        "latest_amount": "MAX_BY(e.amount, STRUCT(e.day, e.event_seq, e.amount))",
        "instant": "TO_UTC_TIMESTAMP(CAST(breach_on AS TIMESTAMP), time_zone)",
        "days": "EXPLODE(SEQUENCE(first_day, last_day))",
        "days_between": "DATEDIFF(business_date, started_on)",
        "days_later": "DATE_ADD(started_on, length)",
        "month": "DATE_FORMAT(business_date, 'yyyy-MM')",
    },
}
"""What the two engines say in other words."""

_QUERY = Template("""
WITH rules AS (
  SELECT r.*, LEAD(valid_from) OVER (PARTITION BY jurisdiction, clock ORDER BY valid_from) AS valid_until
  FROM $rules AS r
), zones AS (
  SELECT DISTINCT jurisdiction, day_zone, time_zone FROM $rules
), events AS (
  SELECT e.case_id, e.jurisdiction, e.activity, e.event_seq, e.amount, $local_day AS day
  FROM $events AS e JOIN zones AS z ON e.jurisdiction = z.jurisdiction
), started AS (
  SELECT e.case_id, r.jurisdiction, r.clock, r.valid_from, r.valid_until, r.length, r.unit, r.time_zone, MIN(e.day) AS started_on
  FROM events AS e JOIN rules AS r ON e.jurisdiction = r.jurisdiction AND e.activity = r.start_activity
  GROUP BY e.case_id, r.jurisdiction, r.clock, r.valid_from, r.valid_until, r.length, r.unit, r.time_zone
), clocks AS (
  SELECT * FROM started
  WHERE started_on >= valid_from AND (valid_until IS NULL OR started_on < valid_until) AND started_on <= $end
), stopped AS (
  SELECT c.case_id, c.jurisdiction, c.clock, MIN(e.day) AS stopped_on
  FROM clocks AS c
  JOIN $stops AS s ON s.jurisdiction = c.jurisdiction AND s.clock = c.clock AND s.valid_from = c.valid_from
  JOIN events AS e
    ON e.case_id = c.case_id AND e.jurisdiction = c.jurisdiction AND e.activity = s.activity AND e.day >= c.started_on
  GROUP BY c.case_id, c.jurisdiction, c.clock
), stated AS (
  SELECT c.case_id, c.jurisdiction, c.clock, $latest_amount AS amount
  FROM clocks AS c JOIN events AS e ON e.case_id = c.case_id AND e.jurisdiction = c.jurisdiction
  WHERE e.amount IS NOT NULL AND e.day <= c.started_on
  GROUP BY c.case_id, c.jurisdiction, c.clock
), calendar AS (
  SELECT jurisdiction, day, is_business_day,
    SUM(CASE WHEN is_business_day THEN 1 ELSE 0 END) OVER (PARTITION BY jurisdiction ORDER BY day) AS nth
  FROM $calendar
), due AS (
  SELECT c.case_id, c.jurisdiction, c.clock, c.time_zone, c.started_on, s.stopped_on, a.amount,
    CASE c.unit WHEN 'BUSINESS_DAY' THEN l.day WHEN 'CALENDAR_DAY' THEN $days_later END AS breach_on
  FROM clocks AS c
  LEFT JOIN stopped AS s ON s.case_id = c.case_id AND s.jurisdiction = c.jurisdiction AND s.clock = c.clock
  LEFT JOIN stated AS a ON a.case_id = c.case_id AND a.jurisdiction = c.jurisdiction AND a.clock = c.clock
  LEFT JOIN calendar AS f ON f.jurisdiction = c.jurisdiction AND f.day = c.started_on AND c.unit = 'BUSINESS_DAY'
  LEFT JOIN calendar AS l ON l.jurisdiction = c.jurisdiction AND l.is_business_day AND l.nth = f.nth + c.length
), ended AS (
  SELECT *, CASE WHEN breach_on IS NOT NULL THEN LEAST(breach_on, stopped_on) END AS ended_on,
    CASE WHEN stopped_on < breach_on THEN 'MET' ELSE 'BREACHED' END AS last_state
  FROM due
), cut AS (
  SELECT *, GREATEST(started_on, $start) AS first_day, LEAST(COALESCE(ended_on, started_on), $end) AS last_day
  FROM ended
  WHERE COALESCE(ended_on, started_on) >= $start
), daily AS (
  SELECT *, $days AS business_date FROM cut
)
SELECT
  case_id, clock, jurisdiction, business_date, started_on, breach_on,
  CAST($days_between AS INT) AS days_open,
  CASE WHEN business_date = ended_on THEN last_state ELSE 'RUNNING' END AS sla_state,
  CASE WHEN business_date = ended_on AND last_state = 'BREACHED' THEN $instant END AS breach_at,
  amount,
  $month AS month
FROM daily
""")

AUDITS = {
    "rows_have_all_that_is_required": """
SELECT * FROM @this_model
WHERE business_date BETWEEN @start_ds AND @end_ds
  AND (case_id IS NULL OR clock IS NULL OR jurisdiction IS NULL OR started_on IS NULL OR breach_on IS NULL
    OR days_open IS NULL OR sla_state IS NULL)""",
    "keys_are_unique": """
SELECT case_id, clock, business_date FROM @this_model
WHERE business_date BETWEEN @start_ds AND @end_ds
GROUP BY case_id, clock, business_date HAVING COUNT(*) > 1""",
    "values_are_in_range": """
SELECT * FROM @this_model
WHERE business_date BETWEEN @start_ds AND @end_ds
  AND (clock NOT IN ('NOTIFICATION', 'PAYMENT', 'APPEAL') OR sla_state NOT IN ('RUNNING', 'MET', 'BREACHED')
    OR case_id = '' OR jurisdiction = '' OR days_open < 0)""",
    "rows_agree_with_themselves": """
SELECT * FROM @this_model
WHERE business_date BETWEEN @start_ds AND @end_ds
  AND (business_date < started_on OR business_date > breach_on
    OR (business_date = breach_on) <> (sla_state = 'BREACHED')
    OR (breach_at IS NOT NULL) <> (sla_state = 'BREACHED'))""",
    "days_open_counts_from_the_start": """
SELECT * FROM @this_model
WHERE business_date BETWEEN @start_ds AND @end_ds AND days_open <> $days_between""",
}
"""The rules of the chunk gate (`schemas.CaseSlaDaily`), each as a query that finds the rows that break it."""


def query(engine: str, *, start: str, end: str, zone: str = "day_zone", schema: str = "source") -> str:
    """Return the rows of the days from `start` to `end` (expressions of dates) as a query of an engine.

    `zone` is the column of the rules in which the day of an event is taken: `day_zone` is UTC in those that history was made by.
    """
    words = WORDS[engine] | {"local_day": WORDS[engine]["local_day"].format(zone=f"z.{zone}")}
    tables = {name: f"{schema}.{name}" for name in ("rules", "stops", "events", "calendar")}
    return _QUERY.substitute(words, start=start, end=end, **tables).strip()


def audits(engine: str) -> dict[str, str]:
    """Return the audits of an engine by name."""
    return {name: Template(text).safe_substitute(WORDS[engine]).strip() for name, text in AUDITS.items()}
