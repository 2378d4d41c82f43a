"""The shipped target's rows told event by event, in plain Python: what a transform and a query in SQL are held against."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from backfill_assets.products.enforcement import reference


def clocks_by_hand(events: list[dict[str, Any]], references: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Run each clock over the events of its case, one by one."""
    rules = [reference.SlaRule(**rule) for rule in references["reference.sla_rules"]]
    business = reference.business_days_of(
        reference.CalendarDay(**day) for day in references["reference.jurisdiction_calendar"]
    )
    cases: dict[tuple[str, str], list[tuple[date, dict[str, Any]]]] = {}
    for event in events:
        zone = ZoneInfo(reference.TIME_ZONES[event["jurisdiction"]])
        case = cases.setdefault((event["case_id"], event["jurisdiction"]), [])
        case.append((event["event_at"].astimezone(zone).date(), event))
    rows = []
    for (case_id, place), known in cases.items():
        for clock in ("NOTIFICATION", "PAYMENT", "APPEAL"):
            begins = next(rule.start_activity for rule in rules if (rule.jurisdiction, rule.clock) == (place, clock))
            days = [day for day, event in known if event["activity"] == begins]
            if not days:
                continue
            started = min(days)
            rule = reference.rule_for(rules, place, clock, started)
            breach = reference.breach_date(started, rule, business[place])
            stops = [day for day, event in known if event["activity"] in rule.stop_activities and day >= started]
            ended = min([breach, *stops])
            stated = [
                (day, event["event_seq"], event["amount"])
                for day, event in known
                if event["amount"] is not None and day <= started
            ]
            for offset in range((ended - started).days + 1):
                day = started + timedelta(days=offset)
                state = "RUNNING" if day < ended else "MET" if ended < breach else "BREACHED"
                midnight = datetime.combine(breach, time(), ZoneInfo(rule.time_zone)).astimezone(UTC)
                rows.append(
                    {
                        "case_id": case_id, "clock": clock, "jurisdiction": place, "business_date": day,
                        "started_on": started, "breach_on": breach, "days_open": offset, "sla_state": state,
                        "breach_at": midnight if state == "BREACHED" else None,
                        "amount": max(stated)[2] if stated else None,
                    }
                )  # fmt: skip
    return rows
