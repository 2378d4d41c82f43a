"""Steps of a migration: each but the last has a way back, LIVE always has its turn, and a switch says one thing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.migration_steps import OVER, CutOver, Readers, Side, Step, live_at, next_step, step_before

SIDES = st.sampled_from(list(Side))
NAMES = st.sampled_from(["a", "b", "c"])


@given(st.sampled_from(list(CutOver)), st.lists(st.booleans(), max_size=40))
def test_whatever_is_done_there_is_a_way_on_and_back_until_it_is_over(cut_over: CutOver, ways: list[bool]) -> None:
    step = Step.PLANNED
    for on in ways:
        following = next_step(cut_over, step) if on else step_before(cut_over, step)
        if step in OVER:
            assert following is None
            return
        assert following is not None
        step = following


@pytest.mark.parametrize("cut_over", list(CutOver))
def test_undoing_leads_back_to_where_it_came_from_but_for_a_hard_return(cut_over: CutOver) -> None:
    steps = [Step.PLANNED]
    while (following := next_step(cut_over, steps[-1])) is not None:
        steps.append(following)
    assert steps[-1] is Step.DECOMMISSIONED
    assert step_before(cut_over, Step.DECOMMISSIONED) is None
    for before, after in pairwise(steps[:-1]):
        back = step_before(cut_over, after)
        assert back is (Step.RETURNING if (cut_over, after) == (CutOver.HARD, Step.CUT_OVER) else before)
    assert step_before(CutOver.HARD, Step.RETURNING) is Step.COMPARED


@pytest.mark.parametrize("cut_over", list(CutOver))
@pytest.mark.parametrize("step", list(Step))
def test_live_writes_what_is_read_and_stands_still_only_while_readers_go_over(cut_over: CutOver, step: Step) -> None:
    writes = live_at(cut_over, step)
    assert bool(writes) is not (cut_over is CutOver.HARD and step is Step.HELD)
    if step is Step.DECOMMISSIONED:
        assert writes == {Side.NEW}
    elif step is Step.CUT_OVER:
        assert Side.NEW in writes
    elif step is not Step.HELD:
        assert Side.OLD in writes


@given(
    SIDES,
    st.dictionaries(NAMES, SIDES),
    st.dictionaries(NAMES, SIDES),
    SIDES,
    st.lists(NAMES, max_size=2),
    st.lists(NAMES, max_size=2),
)
def test_a_switch_moves_those_who_are_meant_and_nobody_else(
    everybody: Side,
    consumers: dict[str, Side],
    slices: dict[str, Side],
    side: Side,
    moved: list[str],
    moved_slices: list[str],
) -> None:
    before = Readers(everybody, consumers, slices)
    after = before.with_some(side, tuple(moved), tuple(moved_slices))
    assert Readers.of(after.as_record()) == after
    for consumer in (None, "a", "b", "c"):
        for slice_ in (None, "a", "b", "c"):
            found = after.side(consumer, slice_)
            if consumer in moved or (consumer not in after.consumers and slice_ in moved_slices):
                assert found is side
            else:
                assert found is before.side(consumer, slice_)
    assert after.sides == {after.everybody, *after.consumers.values(), *after.slices.values()}
