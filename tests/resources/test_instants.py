"""With the clock back, nothing is decided before what it is about."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from support import APPROVER, approved, planned

from manifests.errors import TransitionRefused
from manifests.lifecycle import RunState
from manifests.policy import Role
from resources.ledger import approvals
from resources.ledger.facade import Ledger
from resources.ledger.transactions import LedgerEngine, system_clock

RUN = "restate-2012"
Clock = Callable[[timedelta], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Set the clock of whoever decides, from what it is."""

    def move(by: timedelta) -> None:
        monkeypatch.setattr(LedgerEngine, "clock", staticmethod(lambda: system_clock() + by))

    return move


def decide(ledger: Ledger, *, approve: bool = True) -> None:
    plan_hash = ledger.run(RUN).plan_hash
    ledger.decide(RUN, approve=approve, by=APPROVER, comment="", self_approval=False, plan_hash=plan_hash)


def review(ledger: Ledger) -> None:
    ledger.record_decision(
        RUN,
        approvals.REVIEWED,
        role=Role.REVIEWER,
        by="hedy",
        comment="",
        plan_hash=ledger.run(RUN).plan_hash,
        states=approvals.REVIEWABLE,
    )


@pytest.mark.parametrize("back", [timedelta(days=-10), timedelta(seconds=-5)])
def test_no_approval_is_recorded_before_the_plan_that_it_approves(
    ledger: Ledger, clock: Clock, back: timedelta
) -> None:
    planned(ledger, RUN)
    clock(back)
    for deciding in (decide, review, lambda one: decide(one, approve=False)):
        with pytest.raises(TransitionRefused, match="nothing is decided before what it is about"):
            deciding(ledger)
    assert (ledger.run(RUN).state, ledger.approvals(RUN)) == (RunState.PLANNED, [])
    clock(timedelta(0))
    decide(ledger)
    assert ledger.run(RUN).state is RunState.APPROVED


def test_no_approval_is_recorded_before_a_review_that_it_counts(ledger: Ledger, clock: Clock) -> None:
    planned(ledger, RUN)
    clock(timedelta(days=1))
    review(ledger)
    clock(timedelta(0))
    with pytest.raises(TransitionRefused, match="set the machine's clock right"):
        decide(ledger)


def test_another_runs_time_is_not_asked(ledger: Ledger, clock: Clock) -> None:
    clock(timedelta(days=1))
    approved(ledger, "ahead")
    clock(timedelta(0))
    planned(ledger, RUN)
    decide(ledger)
    assert ledger.run(RUN).state is RunState.APPROVED
