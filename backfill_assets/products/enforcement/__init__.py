"""Enforcement cases: deadlines of fines and appeals, a row a day. The first product, and the example of one."""

from __future__ import annotations

from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.schedules import LivePolicy, ReconciliationPolicy
from backfill_assets.declarations.sinks import Sink, SinkClass, ToWebhook
from backfill_assets.declarations.target import ColumnOrigin, CorrectionsTable, Outline, TargetTable
from backfill_assets.products.enforcement import reconciliations, schemas, transforms
from manifests.chunks import Chunking

OWNERS = ("team:enforcement-data",)

CASE_EVENTS = InputTable(
    name="bronze.case_events",
    description="Every delivery of every event of an enforcement case, as it came. Append-only.",
    model=schemas.CaseEvents,
    owners=OWNERS,
    partition_by="event_at",
)
QUARANTINE = InputTable(
    name="bronze.case_events_quarantine",
    description="Input rows that no rule could classify, with the reason and the raw row.",
    model=schemas.CaseEventsQuarantine,
    owners=OWNERS,
    quarantine_of=CASE_EVENTS.name,
)
SLA_RULES = InputTable(
    name=transforms.RULES,
    description="Deadlines by jurisdiction, clock and first day of validity. Each snapshot is a version.",
    model=schemas.SlaRules,
    owners=OWNERS,
    is_reference=True,
)
CALENDAR = InputTable(
    name=transforms.CALENDAR,
    description="Business days by jurisdiction. Each snapshot is a version.",
    model=schemas.JurisdictionCalendar,
    owners=OWNERS,
    is_reference=True,
)


def _from_events(*columns: str) -> tuple[ColumnOrigin, ...]:
    return tuple(ColumnOrigin(CASE_EVENTS.name, column) for column in columns)


def _from_rules(*columns: str) -> tuple[ColumnOrigin, ...]:
    return tuple(ColumnOrigin(SLA_RULES.name, column) for column in columns)


_DAYS = _from_events("event_at", "activity") + _from_rules("start_activity", "time_zone")
_DEADLINE = _DAYS + _from_rules("length", "unit", "valid_from") + (ColumnOrigin(CALENDAR.name, "is_business_day"),)
_STATE = _DEADLINE + _from_rules("stop_activities")

CASE_SLA_DAILY = TargetTable(
    name="silver.case_sla_daily",
    description="One row per case, clock and day on which the clock ran: how long it was open and how it ended.",
    model=schemas.CaseSlaDaily,
    key=("case_id", "clock", "business_date"),
    day_column="business_date",
    chunking=Chunking.MONTH,
    chunks_from="1995-01",
    chunks_until="2030-12",
    source=CASE_EVENTS.name,
    source_time_column="event_at",
    look_back_columns=transforms.LOOK_BACK_COLUMNS,
    references=(SLA_RULES.name, CALENDAR.name),
    warm_up_days=transforms.longest_clock,
    transform="case_sla_daily",
    versions=transforms.VERSIONS,
    measure=schemas.measure_case_sla_daily,
    entity="case_id",
    corrections=CorrectionsTable("silver.case_sla_daily_corrections", schemas.CaseSlaDailyCorrections),
    outline=Outline(schemas.ENDS, schemas.ends_of_clocks),
    reconciliations=reconciliations.ALL,
    tolerances=reconciliations.TOLERANCES,
    owners=OWNERS,
    column_origins={
        "case_id": _from_events("case_id"),
        "clock": _from_rules("clock"),
        "jurisdiction": _from_events("jurisdiction"),
        "business_date": _STATE,
        "started_on": _DAYS,
        "breach_on": _DEADLINE,
        "days_open": _DAYS,
        "sla_state": _STATE,
        "breach_at": _DEADLINE,
        "amount": _from_events("amount", "event_seq"),
    },
    live=LivePolicy(
        transform_version="3.1.0",
        rewind_days=7,
        # not the others: a penalty of the last day may not have come yet, and a month that is not over only grows
        gates=("every_started_case_is_present", "breach_totals_agree"),
        sinks=("run_audit",),
    ),
    reconciled=ReconciliationPolicy(),
)

BREACH_NOTIFICATIONS = Sink(
    name="breach_notifications",
    sink_class=SinkClass.NOTIFICATION,
    description="webhook told of breaches by jurisdiction",
    owners=OWNERS,
    adapter=ToWebhook(),
)

PRODUCT = Product(
    name="enforcement",
    inputs=(CASE_EVENTS, QUARANTINE, SLA_RULES, CALENDAR),
    targets=(CASE_SLA_DAILY,),
    references="backfill_assets.products.enforcement.loading:reference_tables",
    loaders={"case-events": "backfill_assets.products.enforcement.loading:CASE_EVENTS"},
    sinks=(BREACH_NOTIFICATIONS,),
)
