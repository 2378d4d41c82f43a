"""A run moves through its states one way; what is final stays final."""

from __future__ import annotations

import itertools

import pytest

from manifests.errors import TransitionRefused
from manifests.lifecycle import APPROVED_OR_LATER, COMPUTABLE, TRANSITIONS, RunState, check_transition

ALLOWED = {
    "DRAFT": {"PLANNED", "CANCELLED"},
    "PLANNED": {"APPROVED", "REJECTED", "CANCELLED"},
    "APPROVED": {"RUNNING", "REJECTED", "CANCELLED"},
    "RUNNING": {"STAGED", "FAILED", "CANCELLED"},
    "STAGED": {"VALIDATED", "RUNNING", "FAILED", "CANCELLED"},
    "VALIDATED": {"PUBLISHED", "RUNNING", "REJECTED", "CANCELLED"},
    "FAILED": {"RUNNING", "REJECTED", "CANCELLED"},
    "PUBLISHED": {"SUPERSEDED", "ROLLED_BACK"},
    "SUPERSEDED": {"PUBLISHED"},
    "ROLLED_BACK": {"PUBLISHED"},
    "REJECTED": set(),
    "CANCELLED": set(),
}
PAIRS = list(itertools.product(RunState, RunState))


def reachable(start: RunState, without: RunState | None = None) -> set[RunState]:
    found, waiting = {start}, [start]
    while waiting:
        for state in TRANSITIONS[waiting.pop()] - found - {without}:
            found.add(state)
            waiting.append(state)
    return found


@pytest.mark.parametrize(("current", "wanted"), [(a, b) for a, b in PAIRS if b.value in ALLOWED[a.value]])
def test_an_allowed_transition_passes(current: RunState, wanted: RunState) -> None:
    check_transition("restate-2012", current, wanted)


@pytest.mark.parametrize(("current", "wanted"), [(a, b) for a, b in PAIRS if b.value not in ALLOWED[a.value]])
def test_any_other_transition_is_refused_with_both_states_and_the_way_out(current: RunState, wanted: RunState) -> None:
    with pytest.raises(TransitionRefused) as refused:
        check_transition("restate-2012", current, wanted)

    (problem,) = refused.value.problems
    assert problem.what == (
        f"run 'restate-2012' is {current} already"
        if wanted is current
        else f"run 'restate-2012' is {current} and cannot become {wanted}"
    )
    assert problem.fix
    for state in ALLOWED[current.value]:
        assert state in problem.rule


def test_the_table_knows_every_state() -> None:
    assert set(TRANSITIONS) == set(RunState)
    assert reachable(RunState.DRAFT) == set(RunState)


@pytest.mark.parametrize(
    "gate", [RunState.PLANNED, RunState.APPROVED, RunState.RUNNING, RunState.STAGED, RunState.VALIDATED]
)
def test_no_way_to_a_publication_goes_round_approval_staging_and_gates(gate: RunState) -> None:
    assert RunState.PUBLISHED not in reachable(RunState.DRAFT, without=gate)


@pytest.mark.parametrize("final", [RunState.REJECTED, RunState.CANCELLED])
def test_a_final_state_is_final(final: RunState) -> None:
    with pytest.raises(TransitionRefused, match="nothing: it is final"):
        check_transition("restate-2012", final, RunState.RUNNING)


def test_what_was_published_can_never_be_computed_again() -> None:
    assert reachable(RunState.PUBLISHED) == {RunState.PUBLISHED, RunState.SUPERSEDED, RunState.ROLLED_BACK}


def test_manifest_and_plan_can_change_before_approval_only() -> None:
    assert set(RunState) - APPROVED_OR_LATER == {RunState.DRAFT, RunState.PLANNED}


def test_only_an_approved_run_that_is_not_yet_validated_computes() -> None:
    computes = {RunState.APPROVED, RunState.RUNNING, RunState.STAGED, RunState.FAILED}
    assert computes == COMPUTABLE
    assert COMPUTABLE <= APPROVED_OR_LATER
