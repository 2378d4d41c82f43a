"""A freeze lasts from the approval to the end of its run or of its hours; LIVE waits for it, and that is on record."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from support import APPROVER, REQUESTER, a_manifest, a_plan, moved, pass_all, planned, stage_all

from manifests.lifecycle import RunState
from resources.ledger.facade import Ledger, RunRecord
from resources.ledger.tables import freezes as freezes_table
from resources.ledger.transactions import system_clock as now

YEAR = ("2012-01-01", "2012-12-31")


def approved(ledger: Ledger, run_id: str, start: str, end: str, **changes: Any) -> RunRecord:
    record = planned(ledger, run_id, start, end, **changes)
    ledger.decide(run_id, approve=True, by=APPROVER, comment="", self_approval=False, plan_hash=record.plan_hash)
    return ledger.run(run_id)


def live(ledger: Ledger, start: str, end: str, run_id: str = "live") -> RunRecord:
    return approved(ledger, run_id, start, end, kind="LIVE")


def published(ledger: Ledger, record: RunRecord) -> None:
    pass_all(ledger, record, stage_all(ledger, record))
    moved(ledger, record.run_id, RunState.VALIDATED, REQUESTER)
    publication = ledger.open_publication(record.run_id, "publish", 7, "root", REQUESTER)
    ledger.accept(record.run_id, publication, snapshot_id=100, added=3, removed=2, actor=REQUESTER)


def asked(ledger: Ledger, record: RunRecord, hours: float = 0) -> list[str]:
    return [one.run_id for one in ledger.freezes.ask(record.plan, now() + timedelta(hours=hours))]


def test_a_plan_freezes_nothing_before_its_approval(ledger: Ledger) -> None:
    waiting = live(ledger, *YEAR)
    manifest = a_manifest("backfill", freeze={"hours": 2})
    ledger.record_plan(manifest, a_plan(manifest), REQUESTER)
    assert asked(ledger, waiting) == []
    ledger.decide(
        "backfill",
        approve=True,
        by=APPROVER,
        comment="",
        self_approval=False,
        plan_hash=ledger.run("backfill").plan_hash,
    )
    assert asked(ledger, waiting) == ["backfill"]


def test_only_live_and_only_in_the_frozen_days_waits(ledger: Ledger) -> None:
    backfill = approved(ledger, "backfill", "2012-01-01", "2012-03-31", freeze={"hours": 2})
    assert asked(ledger, backfill) == []
    assert asked(ledger, approved(ledger, "other", "2012-03-01", "2012-04-30")) == []
    assert asked(ledger, live(ledger, "2012-04-01", "2012-04-30", "live-after")) == []
    assert ledger.freezes.waiting() == {}
    assert asked(ledger, live(ledger, "2012-03-01", "2012-04-30")) == ["backfill"]
    assert list(ledger.freezes.waiting()) == ["live"]


def test_a_freeze_ends_after_its_hours_and_the_wait_with_it(ledger: Ledger) -> None:
    approved(ledger, "backfill", *YEAR, freeze={"hours": 2})
    waiting = live(ledger, *YEAR)
    assert asked(ledger, waiting) == asked(ledger, waiting, hours=1.9) == ["backfill"]
    assert asked(ledger, waiting, hours=2.1) == []
    assert ledger.freezes.waiting() == {}
    assert ledger.freezes.waits_of("live") == 1  # asking twice is one wait


@pytest.mark.parametrize("how", [RunState.CANCELLED, RunState.REJECTED, RunState.PUBLISHED])
def test_a_freeze_and_the_waits_for_it_end_with_its_run(ledger: Ledger, how: RunState) -> None:
    backfill = approved(ledger, "backfill", *YEAR, freeze={"hours": 2})
    waiting = live(ledger, *YEAR)
    assert asked(ledger, waiting) == ["backfill"]
    if how is RunState.PUBLISHED:
        published(ledger, backfill)
    else:
        moved(ledger, "backfill", how, REQUESTER)
    assert ledger.freezes.waiting() == {}
    assert asked(ledger, waiting) == []


def test_a_failed_run_keeps_its_freeze(ledger: Ledger) -> None:
    approved(ledger, "backfill", *YEAR, freeze={"hours": 2})
    moved(ledger, "backfill", RunState.RUNNING, REQUESTER)
    moved(ledger, "backfill", RunState.FAILED, REQUESTER)
    assert asked(ledger, live(ledger, *YEAR)) == ["backfill"]


def test_the_wait_goes_on_while_another_freeze_lasts(ledger: Ledger) -> None:
    approved(ledger, "one", "2012-01-01", "2012-03-31", freeze={"hours": 2})
    approved(ledger, "two", "2012-04-01", "2012-06-30", freeze={"hours": 2})
    waiting = live(ledger, *YEAR)
    assert asked(ledger, waiting) == ["one", "two"]
    moved(ledger, "one", RunState.CANCELLED, REQUESTER)
    assert list(ledger.freezes.waiting()) == ["live"]
    assert asked(ledger, waiting) == ["two"]


def test_a_live_run_that_is_cancelled_waits_no_longer(ledger: Ledger) -> None:
    approved(ledger, "backfill", *YEAR, freeze={"hours": 2})
    assert asked(ledger, live(ledger, *YEAR)) == ["backfill"]
    moved(ledger, "live", RunState.CANCELLED, REQUESTER)
    assert ledger.freezes.waiting() == {}


def test_a_run_that_will_never_publish_freezes_nothing(ledger: Ledger) -> None:
    approved(ledger, "dry", *YEAR, freeze={"hours": 2}, mode="DRY_RUN")
    with ledger.engine.connect() as connection:
        assert connection.execute(sa.select(freezes_table)).all() == []
