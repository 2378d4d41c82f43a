"""A read model moves from one table to another: every step with what it asks, and back."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from migration_world import Moving, make, names_of

import backfill_assets as ba
from backfill_assets.audit.verification import verify
from backfill_assets.decisions import rollback
from backfill_assets.migration.dual_read import compare
from backfill_assets.migration.reading import where_to_read
from backfill_assets.migration.steps import Taken, advance, planned, standing, undo
from backfill_assets.planning.resolve import plan_run
from backfill_assets.schedules.live import foreseen, tick
from benchmarks.points import LAST, MIGRATION, NEW, OLD
from manifests.errors import DecisionRefused, InputRefused, PlanRefused
from manifests.lifecycle import RunState
from manifests.migration_steps import Side, Step

pytestmark = pytest.mark.exhaustive  # its tests go on from one another
WHY = "the new table is by day"


class Mover:
    """Who moves the read model: ana asks, bob lets readers go over."""

    def __init__(self, world: Moving) -> None:
        self.world, self.platform, self.migration = world, world.platform, world.migration

    def plan(self) -> None:
        planned(self.platform, self.migration, by="ana", reason=WHY)

    def advance(self, **options: object) -> Taken:
        return advance(self.platform, self.migration, by="bob", reason="", **options)  # type: ignore[arg-type]

    def undo(self, **options: object) -> Taken:
        return undo(self.platform, self.migration, by="bob", reason="other totals", **options)  # type: ignore[arg-type]

    def on(self, **options: object) -> Step:
        """Advance; what it waits for is computed, compared and published first."""
        done = self.advance(**options)
        for _ in range(6):
            if done.moved:
                return done.step.step
            for one in done.runs:
                assert one.record is not None, one.why
                self.world.take_on(one.record)
            if not done.runs:
                assert set(names_of(done.checks)) <= {"dual_reads", "fresh"}, done.checks
                self.compare()
            done = self.advance(**options)
        raise AssertionError(done.checks)

    def compare(self) -> tuple[int, int]:
        found = compare(self.platform, self.migration, standing(self.platform, self.migration))
        return found.compared, found.disagreeing

    def reads(self, **who: str | None) -> list[str]:
        return [part.table for part in where_to_read(self.platform, self.migration.name, **who).parts]


@pytest.fixture(scope="module")
def dual(tmp_path_factory: pytest.TempPathFactory) -> Mover:
    return Mover(make(tmp_path_factory.mktemp("dual") / "home"))


def test_the_history_is_computed_for_the_new_table_by_runs_that_somebody_approves(dual: Mover) -> None:
    world, platform = dual.world, dual.platform
    assert dual.reads() == [OLD]
    with pytest.raises(DecisionRefused, match="was not begun"):
        dual.advance()
    dual.plan()
    dual.plan()  # the same again changes nothing
    assert [one.number for one in platform.ledger.migrations.steps("points")] == [1]
    assert foreseen(platform, platform.products.target(NEW)) == "migration points is PLANNED: LIVE writes silver.points"
    waits = dual.advance()
    assert not waits.moved
    assert names_of(waits.checks) == ["history"]
    (run,) = waits.runs
    assert run.record is not None
    assert (run.record.kind, run.record.state) == ("MIGRATION", RunState.PLANNED)
    assert "waits for approval" in run.why
    assert [one.record.run_id for one in dual.advance().runs if one.record] == [
        run.record.run_id
    ]  # two calls make one run
    world.take_on(run.record)
    assert dual.on() is Step.SHADOWED
    assert world.said(NEW) == world.said(OLD)
    assert dual.reads() == [OLD]


def test_what_came_meanwhile_is_caught_up_with_before_live_writes_both(dual: Mover) -> None:
    world, platform = dual.world, dual.platform
    new = platform.products.target(NEW)
    world.load(date(2024, 1, 5), date(2024, 1, 6), n=7)  # late rows, taken in by a repair of the old table alone
    world.published(world.run_of("late", OLD, date(2024, 1, 1), date(2024, 1, 31), kind="REPAIR"))
    world.load(date(2024, 2, 11), date(2024, 2, 12), n=2)
    assert world.live(OLD) is not None
    waits = dual.advance()
    assert names_of(waits.checks) == ["caught_up"]
    # of January the two days and one on each side, for time zones; what LIVE's first run takes in is left to it
    said = [(one.gap.days.start, one.gap.days.end) for one in waits.runs]
    assert said == [(date(2024, 1, 4), date(2024, 1, 7))]
    assert tick(platform, new).record is None
    assert dual.on() is Step.CAUGHT_UP
    assert world.live(NEW) is not None
    assert world.said(NEW) == world.said(OLD)


def test_dual_reads_find_what_differs_by_slice_and_stop_the_way(dual: Mover) -> None:
    world, platform = dual.world, dual.platform
    assert names_of(dual.advance().checks) == ["dual_reads", "fresh"]
    assert dual.compare() == (129, 0)
    world.published(world.run_of("wrong", NEW, date(2024, 1, 10), date(2024, 1, 12), kind="RESTATEMENT", version="0"))
    assert dual.compare() == (129, 3)
    newest = platform.ledger.migrations.readings("points")[-1]
    assert newest.found["columns"] == {"n": 3}
    assert newest.found["slices"] == [
        {"slice": "north", "month": "2024-01", "compared": 31, "different": 3, "column n": 3}
    ]
    assert names_of(dual.advance().checks) == ["dual_reads"]
    world.published(world.run_of("right", NEW, date(2024, 1, 10), date(2024, 1, 12), kind="RESTATEMENT"))
    assert names_of(dual.advance().checks) == ["dual_reads", "fresh"]
    assert dual.on() is Step.COMPARED
    assert dual.reads() == dual.reads(consumer="billing") == [OLD]


def test_consumers_and_slices_go_over_one_by_one_and_back(dual: Mover) -> None:
    platform = dual.platform
    with pytest.raises(InputRefused, match="no consumer of points"):
        dual.advance(consumers=("nobody",))
    with pytest.raises(DecisionRefused, match="'ana' has planned"):
        advance(platform, dual.migration, by="ana", reason="", consumers=("billing",))
    assert dual.advance(consumers=("billing",)).moved
    assert (dual.reads(consumer="billing"), dual.reads(consumer="maps"), dual.reads()) == ([NEW], [OLD], [OLD])
    assert dual.advance(slices=("south",)).moved
    with pytest.raises(DecisionRefused, match="south read"):
        dual.advance(slices=("south",))
    with pytest.raises(InputRefused, match="have no row with region 'soth'"):
        dual.advance(slices=("soth",))
    assert dual.reads(slice_="south") == [NEW]
    assert dual.reads(slice_="north") == [OLD]
    both = where_to_read(platform, "points").parts
    assert [(one.table, one.slice_column, one.slices, one.but) for one in both] == [
        (OLD, "region", ("south",), True),
        (NEW, "area", ("south",), False),
    ]
    rows = [row for one in both for row in _rows(dual, one)]
    assert sorted(rows) == dual.world.said(OLD)
    back = dual.undo(slices=("south",))
    assert back.moved
    assert dual.reads(slice_="south") == [OLD]
    # whoever of them reads the new table goes back first: the step itself is undone by the next undo
    assert dual.undo().step.step is Step.COMPARED
    assert dual.reads(consumer="billing") == [OLD]


def _rows(mover: Mover, part: object) -> list[tuple[object, ...]]:
    rows = mover.world.said(part.table, part.snapshot_id)  # type: ignore[attr-defined]
    wanted = set(part.slices)  # type: ignore[attr-defined]
    return [row for row in rows if (row[1] in wanted) is not part.but]  # type: ignore[attr-defined]


def test_nobody_goes_over_while_the_other_table_lacks_something(dual: Mover) -> None:
    world = dual.world
    world.load(date(2024, 2, 13), date(2024, 2, 13), n=3)
    assert world.live(OLD) is not None
    waits = dual.advance()
    assert names_of(waits.checks) == ["caught_up"]
    assert dual.reads() == [OLD]
    assert world.live(NEW) is not None
    assert dual.advance().step.step is Step.CUT_OVER  # what LIVE published to both since the dual read does not matter
    assert dual.reads() == dual.reads(consumer="maps") == [NEW]


def test_the_way_back_is_open_until_the_last_step(dual: Mover) -> None:
    world, platform = dual.world, dual.platform
    world.load(date(2024, 2, 14), date(2024, 2, 14), n=4)
    assert world.live(NEW) is not None
    assert names_of(dual.undo().checks) == ["caught_up"]  # readers would go back in time
    assert dual.reads() == [NEW]
    went = dual.undo(behind=True)
    assert went.step.step is Step.COMPARED
    assert "taken upon them" in went.step.findings["checks"][-1]["found"]
    assert world.live(OLD) is not None
    assert dual.on() is Step.CUT_OVER
    with pytest.raises(DecisionRefused, match="only step that cannot be undone"):
        dual.advance()
    assert verify(platform, data=True).everything == []
    with pytest.raises(InputRefused, match="is too short"):
        dual.advance(final=True)
    done = advance(platform, dual.migration, by="bob", reason="nobody asks for it any more", final=True)
    assert done.step.step is Step.DECOMMISSIONED
    with pytest.raises(DecisionRefused, match="was decommissioned by bob"):
        rollback(platform, "late", by="bob")
    with pytest.raises(DecisionRefused, match="cannot be undone"):
        dual.undo()
    with pytest.raises(PlanRefused, match="was decommissioned by bob"):
        plan_run(platform, world.run_of("too-late", OLD, date(2024, 1, 1), date(2024, 1, 31), kind="RESTATEMENT"))
    assert "decommissioned" in foreseen(platform, platform.products.target(OLD))
    with pytest.raises(DecisionRefused, match="is over"):
        dual.plan()
    assert verify(platform, data=True).everything == []


def test_a_hard_cut_over_stands_still_goes_over_and_comes_back(tmp_path: Path) -> None:
    mover = Mover(
        make(tmp_path / "home", replace(MIGRATION, cut_over=ba.CutOver.HARD, consumers=(), readings=1, rewind_days=3))
    )
    world, platform = mover.world, mover.platform
    old, new = (platform.products.target(name) for name in (OLD, NEW))
    mover.plan()
    for expected in (Step.SHADOWED, Step.CAUGHT_UP, Step.COMPARED):
        assert mover.on() is expected
        assert tick(platform, new).record is None
    with pytest.raises(DecisionRefused, match="one by one"):
        mover.advance(slices=("north",))
    world.load(date(2024, 2, 11), date(2024, 2, 12), n=2)
    assert world.live(OLD) is not None
    assert mover.on() is Step.HELD
    assert (tick(platform, old).why, tick(platform, new).why) == (
        "migration points is HELD: LIVE writes neither table",
    ) * 2
    waits = mover.advance()
    assert names_of(waits.checks) == ["caught_up", "dual_reads", "fresh"]
    # the day before what is missing may have got rows of another time zone; three days before it are computed once more, too
    assert [(one.gap.days.start, one.gap.days.end) for one in waits.runs] == [(date(2024, 2, 7), date(2024, 2, 12))]
    before = [row for row in world.said(NEW) if row[2] <= LAST]
    assert mover.on() is Step.CUT_OVER
    assert [row for row in world.said(NEW) if row[2] <= LAST] == before
    assert mover.reads() == [NEW]
    world.load(date(2024, 2, 13), date(2024, 2, 13), n=3)
    assert tick(platform, old).record is None
    assert world.live(NEW) is not None
    assert mover.undo().step.step is Step.RETURNING
    assert mover.reads() == [NEW]  # until the old table has caught up
    assert names_of(mover.undo().checks) == ["caught_up"]
    assert world.live(OLD) is not None
    assert mover.undo().step.step is Step.COMPARED
    assert mover.reads() == [OLD]
    assert world.said(OLD) == world.said(NEW)
    assert verify(platform, data=True).everything == []
    for _ in range(4):
        mover.undo()
    assert standing_step(mover) is Step.ABANDONED
    with pytest.raises(DecisionRefused, match="was given up"):
        mover.advance()
    mover.plan()
    assert standing_step(mover) is Step.PLANNED


def standing_step(mover: Mover) -> Step:
    found = mover.platform.ledger.migrations.newest("points")
    assert found is not None
    assert found.readers.everybody is Side.OLD
    return found.step
