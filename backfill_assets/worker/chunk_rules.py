"""The rules that rows of a chunk are held against: those of the model, and those that every chunk has.

Put here a rule about the rows of every table, and how rules are put together for a bundle or a chunk. Which rows are held
against them, and when, is `chunk_gate`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from datetime import UTC, date, datetime, time
from functools import cache
from typing import Any

import pandera.polars as pa
import polars as pl
from pandera.errors import SchemaError, SchemaErrors

from backfill_assets.declarations.pandera_private import is_built_in, tell_any_failure
from backfill_assets.declarations.schema import LATER_LINEAGE_COLUMNS, LINEAGE_COLUMNS, is_row_rule
from backfill_assets.worker.gate_tasks import GateSpec
from backfill_assets.worker.references import imported_by_path
from backfill_assets.worker.violations import SAMPLE_ROWS, Violation, add_violation, shown_row

tell_any_failure()
_VALUE_CHECKS = frozenset(
    {
        "equal_to",
        "not_equal_to",
        "greater_than",
        "greater_than_or_equal_to",
        "less_than",
        "less_than_or_equal_to",
        "in_range",
        "isin",
        "notin",
        "str_matches",
        "str_contains",
        "str_startswith",
        "str_endswith",
        "str_length",
    }
)
"""pandera's own checks of one value at a time; whatever else a model declares may look at several rows."""
CHUNK_RULE = "in its chunk"
KEY_RULE = "unique key"
FILES_RULE = "files have disjoint key ranges"
PARTITION_RULE = "each file lies in one partition"
ROWS_RULE = "rows as staged"
MEASURE_RULE = "measure does not raise"
OUTLINE_RULE = "outline does not raise"
_CONSTANT = "constant "
INSTANT = pl.Datetime("us", "UTC")
_RULE_LENGTH = 100


def rule_name(rule: str) -> str:
    """Return the name of a rule without what differs from chunk to chunk and from run to run: its days and constants."""
    if rule.partition(": ")[2].startswith(f"{CHUNK_RULE},"):
        return f"{rule.partition(': ')[0]}: {CHUNK_RULE}"
    if rule.partition(": ")[2].startswith(_CONSTANT):
        return f"{rule.partition(': ')[0]}: {_CONSTANT.strip()}"
    return rule[:_RULE_LENGTH]


@cache
def _base_schema(model: str) -> pa.DataFrameSchema:
    declared: type[pa.DataFrameModel] = imported_by_path(model)
    return declared.to_schema()


def lies_in(days: pl.Series, start: date, end: date, hour: int | None = None) -> bool:
    """Whether there are days, in each row, and all of them are in a chunk; what is no date is left to pandera. With `hour` in that hour."""
    if days.null_count():
        return False
    if hour is not None:
        low, high = instants(start, end, hour)
        return days.dtype == INSTANT and bool(days.len()) and bool(days.is_between(low, high).all())
    if days.dtype == INSTANT:
        days = days.dt.date()
    first, last = (days.min(), days.max()) if days.dtype == pl.Date else (None, None)
    return isinstance(first, date) and isinstance(last, date) and start <= first and last <= end


def schema_for(
    spec: GateSpec,
    start: date,
    end: date,
    hour: int | None = None,
    *,
    rows_pass: bool,
    keys_pass: bool,
    days_pass: bool,
) -> pa.DataFrameSchema | None:
    """Return the model's schema with what is true of this run and chunk, without the rules that are known to hold.

    A shallow copy, made for every file. None where nothing is left to be looked at.

    Args:
        spec: what the chunk is held against.
        start: its first day.
        end: its last day.
        hour: its hour of that day, of a chunk of an hour.
        rows_pass: whether the rules about single rows hold.
        keys_pass: whether each key is above the one before it, and so unique.
        days_pass: whether every day lies in the chunk.
    """
    schema = _with_run_rules(spec)
    if keys_pass:
        schema.unique = None
    in_chunk = []
    if spec.day_column and not days_pass:
        low, high = _ends(schema.columns[spec.day_column], start, end, hour)
        days = f"{start} to {end}" if hour is None else f"{start}T{hour:02}"
        in_chunk.append(pa.Check.in_range(low, high, error=f"{CHUNK_RULE}, {days}"))
    if rows_pass:
        schema.strict = False
        schema.checks = [one for one in schema.checks if not is_row_rule(one)]
        others = {
            name: [one for one in column.checks if not _is_value_rule(one)] for name, column in schema.columns.items()
        }
        if in_chunk:
            others[spec.day_column] += in_chunk
        schema.columns = {
            name: _column(schema.columns[name], checks, nullable=not in_chunk or name != spec.day_column)
            for name, checks in others.items()
            if checks
        }
        return schema if schema.columns or schema.checks or schema.unique else None
    if in_chunk:
        day = schema.columns[spec.day_column]
        schema.columns[spec.day_column] = _column(day, [*day.checks, *in_chunk], nullable=False)
    return schema


def _ends(day: Any, start: date, end: date, hour: int | None) -> tuple[date, date]:
    """Return the least and the greatest value that a day column has in a chunk; of instants by their days of UTC."""
    return instants(start, end, hour) if day.dtype.type == INSTANT else (start, end)


def instants(start: date, end: date, hour: int | None) -> tuple[datetime, datetime]:
    """Return the first and the last instant of days, or of an hour of each."""
    first, last = time.min if hour is None else time(hour), time.max if hour is None else time(hour, 59, 59, 999_999)
    return datetime.combine(start, first, UTC), datetime.combine(end, last, UTC)


def row_rules(spec: GateSpec) -> pa.DataFrameSchema:
    """Return the model's columns, types and rules about single rows: the part that several chunks can share."""
    schema = _with_run_rules(spec)
    schema.checks, schema.unique = [one for one in schema.checks if is_row_rule(one)], None
    for name, column in schema.columns.items():
        schema.columns[name] = _column(column, filter(_is_value_rule, column.checks), nullable=column.nullable)
    return schema


def _is_value_rule(check: pa.Check) -> bool:
    return check.name in _VALUE_CHECKS and is_built_in(check)


def _with_run_rules(spec: GateSpec) -> pa.DataFrameSchema:
    schema = copy(_base_schema(spec.model))
    schema.columns = dict(schema.columns)
    schema.unique = list(spec.key)  # whether or not the model says so
    schema.strict = True
    for name in (*LINEAGE_COLUMNS, *LATER_LINEAGE_COLUMNS) if spec.rewritten else ():
        if name in schema.columns:
            schema.columns[name] = _column(schema.columns[name], schema.columns[name].checks, nullable=True)
    for name, value in spec.lineage.items():
        # a table without lineage columns: the ledger says whose a chunk is; or a plan of before it had this one
        if name not in schema.columns or value is None:
            continue
        shown = value.isoformat() if isinstance(value, datetime) else value
        column = schema.columns[name]
        constant = pa.Check.eq(value, error=f"{_CONSTANT}{shown}")
        # those that a table got later may be NULL in older rows, and are there in every row of a run
        schema.columns[name] = _column(column, [*column.checks, constant], nullable=False)
    return schema


def _column(column: Any, checks: Iterable[pa.Check], *, nullable: bool) -> Any:
    changed = copy(column)
    changed.checks, changed.nullable = list(checks), nullable
    return changed


def check_rows(schema: pa.DataFrameSchema, frame: pl.DataFrame, violations: dict[str, Violation]) -> None:
    """Hold rows against a schema, and add the rules that they break."""
    try:
        schema.validate(frame, lazy=True)
    except SchemaErrors as errors:
        _read_failures(errors.failure_cases, frame, violations)
    except SchemaError as error:
        add_violation(violations, str(error)[:200], 1, [])


def _read_failures(cases: pl.DataFrame, frame: pl.DataFrame, violations: dict[str, Violation]) -> None:
    for (column, check), group in cases.group_by("column", "check", maintain_order=True):
        rule = str(check) if column is None or group["schema_context"][0] == "DataFrameSchema" else f"{column}: {check}"
        if str(check) == "multiple_fields_uniqueness":
            rule = KEY_RULE
        rows = group["index"].drop_nulls().unique(maintain_order=True)
        count = rows.len() or group.height
        sample = (
            frame[rows.head(SAMPLE_ROWS).to_list()].to_dicts()
            if rows.len()
            else [{"found": str(case)[:500]} for case in group["failure_case"].head(SAMPLE_ROWS)]
        )
        add_violation(violations, rule, count, [shown_row(row) for row in sample])
