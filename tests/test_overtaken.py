"""Whoever was paused goes on from what others have done meanwhile, and reports or decides nothing that is no longer so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from small_worlds import copy_of
from support import put_in_force
from test_taking_back import (
    FEBRUARY,
    LATER,
    agree,
    dying_at,
    entries,
    published,
    readers,
    state,
    validated,
    with_history,
)

from backfill_assets import decisions, faults
from backfill_assets.installation import Platform
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks import small_table
from benchmarks.small_table import closed, declared, planned, staged
from benchmarks.stopped_actors import expire
from manifests.errors import LeaseLost, PublicationDeferred, StateMoved, TransitionRefused
from manifests.lifecycle import RunState
from manifests.model import Conflict, OnConflict

pytestmark = pytest.mark.matrix


@pytest.fixture
def history() -> Iterator[Platform]:
    """A table with rows of four months, published by the run `base-run`."""
    with declared():
        platform = copy_of(with_history)
        yield platform
        closed(platform)


def rolled_back(platform: Platform) -> None:
    rollback(platform, published(platform, "run"))


def later(platform: Platform) -> None:
    published(platform, "run", mode="VERSIONED", **LATER)


@pytest.mark.parametrize(
    ("prepared", "act", "committed", "dies_at", "wanted"),
    [
        (lambda it: validated(it, "run"), publish, "publishing.committed", "publishing.tagged", RunState.PUBLISHED),
        (lambda it: published(it, "run"), rollback, "undoing.committed", "undoing.committed", RunState.ROLLED_BACK),
        (rolled_back, reinstate, "undoing.committed", "undoing.committed", RunState.PUBLISHED),
        (later, accept, "accepting.committed", "accepting.committed", RunState.PUBLISHED),
    ],
    ids=["publish", "rollback", "reinstate", "accept"],
)
def test_a_publisher_that_slept_while_another_took_over_reports_nothing(
    history: Platform, prepared: Callable[[Platform], Any], act: Any, committed: str, dies_at: str, wanted: RunState
) -> None:
    """The other one has opened an entry of its own and died: what landed is not on record."""
    prepared(history)
    before, told = state(history, "run"), [one.name for one in history.evidence.records("run").glob("*.json")]
    real, slept = faults.reach, []

    def reach(point: str) -> None:
        if point == committed and not slept:
            slept.append(point)
            expire(history)
            with dying_at(history, dies_at):
                act(history, "run")
            return
        real(point)

    with mock.patch.object(faults, "reach", reach), pytest.raises(LeaseLost, match="has taken over what entry"):
        act(history, "run")
    assert [how for what, how in entries(history, "run") if what == act.__name__][-2:] == ["ABANDONED", "INTENT"]
    assert state(history, "run") is before
    assert [one.name for one in history.evidence.records("run").glob("*.json")] == told
    act(history, "run")
    assert state(history, "run") is wanted
    assert entries(history, "run")[-1] == (act.__name__, "COMMITTED")
    assert agree(history)


def test_a_publishers_decision_is_about_no_rows_that_were_computed_after_the_look(history: Platform) -> None:
    put_in_force(history, {"name": "two publishers", "rules": [{"publishers": ["olga", "bob"]}]})
    contract = small_table.manifest("run", "REPLACE_PARTITIONS", FEBRUARY)
    planned(history, contract.model_copy(update={"conflict": Conflict(onConflict=OnConflict.REPLAN)}))
    staged(history, "run")
    decisions.publish(history, validated(history, "other", scope=FEBRUARY, computed_by="1"), by="bob")
    real = decisions._record_publisher

    def slowly(*given: Any) -> None:
        with mock.patch.object(decisions, "_record_publisher", real):
            with pytest.raises(PublicationDeferred):
                decisions.publish(history, "run", by="bob")
            staged(history, "run")
        real(*given)

    with (
        mock.patch.object(decisions, "_record_publisher", slowly),
        pytest.raises(TransitionRefused, match="computed since you have looked at it"),
    ):
        decisions.publish(history, "run", by="olga")
    assert state(history, "run") is RunState.VALIDATED
    assert [one.decided_by for one in history.ledger.approvals("run") if one.decision == "PUBLISH"] == ["bob"]
    decisions.publish(history, "run", by="olga")
    assert readers(history)["2020-02"] == "run"


def test_an_acceptance_is_not_carried_out_over_newer_decisions(history: Platform) -> None:
    later(history)
    real = accept

    def slowly(platform: Platform, run_id: str, **decided: Any) -> Any:
        decisions.rollback(platform, run_id, by="bob")
        decisions.reinstate(platform, run_id, by="cem")
        return real(platform, run_id, **decided)

    with (
        mock.patch.object(decisions.accepting, "accept", slowly),
        pytest.raises(StateMoved, match="was changed 2 time"),
    ):
        decisions.accept(history, "run", by="ann")
    assert readers(history)["2020-02"] == "base-run"
    decisions.accept(history, "run", by="ann")
    assert readers(history)["2020-02"] == "run"
    assert agree(history)
