"""Clocks that pause, and decisions that hold from another day than they were recorded on: the case study to its end.

`products = ["backfill_assets.products.enforcement.pausing:PRODUCT"]` in backfill.toml serves it instead of `enforcement`: with
all of that product's tables, and the table silver.case_clock_daily beside them. What it says is told in docs/case-study.md.
"""

from __future__ import annotations

from dataclasses import replace

from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.schedules import LivePolicy, ReconciliationPolicy
from backfill_assets.declarations.standard.known_cases import known_keys_gate
from backfill_assets.declarations.target import ColumnOrigin, TargetTable
from backfill_assets.products import enforcement
from backfill_assets.products.enforcement.pausing import reconciliations, schemas, transform
from manifests.chunks import Chunking

CASE_REGISTER = InputTable(
    name="bronze.case_register",
    description="Entries of the register of cases: what happened or was decided, from when it holds, when it was entered. Append-only.",
    model=schemas.CaseRegister,
    owners=enforcement.OWNERS,
    partition_by="effective_at",
)
PAUSE_RULES = InputTable(
    name=transform.PAUSES,
    description="Which activity pauses or resumes which clock. Each snapshot is a version.",
    model=schemas.PauseRules,
    owners=enforcement.OWNERS,
    is_reference=True,
)


def _from_register(*columns: str) -> tuple[ColumnOrigin, ...]:
    return tuple(ColumnOrigin(CASE_REGISTER.name, column) for column in columns)


def _from_rules(*columns: str) -> tuple[ColumnOrigin, ...]:
    return tuple(ColumnOrigin(enforcement.SLA_RULES.name, column) for column in columns)


_STARTS = _from_register("effective_at", "activity") + _from_rules("start_activity", "time_zone", "valid_from")
_PAUSED = _STARTS + tuple(ColumnOrigin(PAUSE_RULES.name, column) for column in ("activity", "effect"))
_DEADLINE = _PAUSED + _from_rules("length", "unit") + (ColumnOrigin(enforcement.CALENDAR.name, "is_business_day"),)
_OF_A_VIEW = {
    "state": _DEADLINE + _from_rules("stop_activities"),
    "started_on": _STARTS,
    "breach_on": _DEADLINE,
    "days_paused": _PAUSED,
}

DISPUTED = known_keys_gate("disputed_cases.csv", "disputed_cases_come_out", notes=("question",), absent="is_absent")
"""Held against runs of 1996, the year of the disputed cases; `disputed_register.csv` beside it has their entries."""

CASE_CLOCK_DAILY = TargetTable(
    name="silver.case_clock_daily",
    description="One row per case, clock and day: what was known of the clock that day, and what was true of it.",
    model=schemas.CaseClockDaily,
    key=("case_id", "clock", "business_date"),
    day_column="business_date",
    chunking=Chunking.MONTH,
    chunks_from="1995-01",
    chunks_until="2030-12",
    source=CASE_REGISTER.name,
    # not when it was recorded: what holds from a day decides over that day, however late it came
    source_time_column="effective_at",
    look_back_columns=transform.LOOK_BACK_COLUMNS,
    references=(enforcement.SLA_RULES.name, PAUSE_RULES.name, enforcement.CALENDAR.name),
    warm_up_days=transform.warm_up,
    transform="case_clock_daily",
    versions=transform.VERSIONS,
    measure=schemas.measure_case_clock_daily,
    reconciliations=(*reconciliations.ALL, DISPUTED),
    entity="case_id",
    owners=enforcement.OWNERS,
    column_origins={
        "case_id": _from_register("case_id"),
        "clock": _from_rules("clock"),
        "jurisdiction": _from_register("jurisdiction"),
        "business_date": _OF_A_VIEW["state"],
        **{f"true_{name}": origins for name, origins in _OF_A_VIEW.items()},
        **{f"known_{name}": (*origins, *_from_register("recorded_at")) for name, origins in _OF_A_VIEW.items()},
    },
    # entries come in late: a month more than the newest is computed once more, and what comes later is for a restatement
    live=LivePolicy(transform_version="1.0.0", rewind_days=31),
    # each night what is published, held against the register as it is by then: entries that came in since show as drift
    reconciled=ReconciliationPolicy(),
)

PRODUCT = replace(
    enforcement.PRODUCT,
    inputs=(*enforcement.PRODUCT.inputs, CASE_REGISTER, PAUSE_RULES),
    targets=(*enforcement.PRODUCT.targets, CASE_CLOCK_DAILY),
    references="backfill_assets.products.enforcement.pausing.loading:reference_tables",
)
