"""What a plan reads stays readable: its snapshots are tagged, whoever expires what, until no run needs them."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest
from pyiceberg.table import Table
from support import moved
from worlds import killed_at

from backfill_assets.installation import Platform
from backfill_assets.operations import garbage, released_pins
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.resolve import plan_run
from benchmarks import orders
from benchmarks.orders import LINES, manifest, opened
from manifests.lifecycle import RunState
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.lakehouse.refs import pin_of

DAYS = (date(2024, 2, 1), date(2024, 2, 29))
LONG = timedelta(days=4_000)


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    platform = opened(tmp_path / "home")
    orders.fill(platform, 200)
    return platform


def pins(platform: Platform) -> set[str]:
    return {name for name in source(platform).refs() if name.startswith("pinned-")}


def source(platform: Platform) -> Table:
    return platform.lakehouse.table(LINES)


def load_more(platform: Platform, name: str) -> None:
    platform.lakehouse.append(LINES, [orders.lines(20)], {LOAD_PROPERTY: name})


def cancelled(platform: Platform, run_id: str) -> None:
    moved(platform.ledger, run_id, RunState.CANCELLED, "ana", "not needed")


def expire_all_but_the_newest(platform: Platform) -> None:
    """Do what another program's expiry does: every snapshot goes that no ref names."""
    table = source(platform)
    named = {ref.snapshot_id for ref in table.refs().values()}
    with table.maintenance.expire_snapshots() as expiry:
        for snapshot in table.snapshots():
            if snapshot.snapshot_id not in named:
                expiry.by_id(snapshot.snapshot_id)


def test_another_programs_expiry_leaves_what_a_plan_reads(platform: Platform) -> None:
    record = plan_run(platform, manifest("kept", *DAYS, kind="BACKFILL"))
    read = record.plan.source_snapshot_id
    load_more(platform, "second")
    load_more(platform, "third")
    assert pins(platform) == {pin_of(read)}
    expire_all_but_the_newest(platform)
    assert [one.snapshot_id for one in source(platform).snapshots()] == [read, platform.lakehouse.snapshot_id(LINES)]
    assert platform.lakehouse.pinned(LINES, read).paths


def test_runs_that_read_the_same_share_a_tag_and_the_last_of_them_lets_it_go(platform: Platform) -> None:
    first = plan_run(platform, manifest("first", *DAYS, kind="BACKFILL"))
    second = plan_run(platform, manifest("second", *DAYS, kind="BACKFILL"))
    load_more(platform, "more")
    third = plan_run(platform, manifest("third", *DAYS, kind="BACKFILL"))
    shared, own = pin_of(first.plan.source_snapshot_id), pin_of(third.plan.source_snapshot_id)
    assert first.plan.source_snapshot_id == second.plan.source_snapshot_id
    assert pins(platform) == {shared, own}
    later = platform.ledger.now() + LONG
    for run_id, left in (("first", {shared, own}), ("second", {own})):
        cancelled(platform, run_id)
        found = [one for one in garbage.find(platform, at=later) if one.table == LINES]
        assert [one.refs for one in found] == ([] if left == {shared, own} else [(shared,)])
        garbage.collect(platform, found, by="bob", at=later)
        assert pins(platform) == left
    assert garbage.find(platform, at=platform.ledger.now()) == [
        one for one in garbage.find(platform, at=platform.ledger.now()) if one.table != LINES
    ], "what policy keeps for a while keeps what it has read"


def test_a_tag_of_somebody_else_is_left_alone(platform: Platform) -> None:
    record = plan_run(platform, manifest("kept", *DAYS, kind="BACKFILL"))
    read = record.plan.source_snapshot_id
    load_more(platform, "more")
    newest = platform.lakehouse.snapshot_id(LINES)
    assert newest is not None
    platform.lakehouse.tag(LINES, "quarter-end", read)
    platform.lakehouse.tag(LINES, "pinned-by-finance", newest)
    platform.lakehouse.tag(LINES, pin_of(17), newest)  # a name like ours, at another snapshot
    cancelled(platform, "kept")
    later = platform.ledger.now() + LONG
    garbage.collect(platform, garbage.find(platform, at=later), by="bob", at=later)
    assert set(source(platform).refs()) == {"main", "quarter-end", "pinned-by-finance", pin_of(17)}


def test_whoever_comes_to_need_a_snapshot_while_its_tag_goes_gets_it_back(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = plan_run(platform, manifest("first", *DAYS, kind="BACKFILL")).plan.source_snapshot_id
    cancelled(platform, "first")
    later = platform.ledger.now() + LONG
    listed = garbage.find(platform, at=later)
    looked_at = released_pins.needed_pins

    def planned_after_the_look(*given: object) -> dict[str, set[int]]:
        found = looked_at(*given)  # type: ignore[arg-type]
        monkeypatch.setattr(garbage, "needed_pins", looked_at)
        plan_run(platform, manifest("second", *DAYS, kind="BACKFILL"))  # finds the tag, which then goes
        return found

    monkeypatch.setattr(garbage, "needed_pins", planned_after_the_look)
    garbage.collect(platform, listed, by="bob", at=later)
    assert pins(platform) == {pin_of(read)}


def test_a_plan_that_died_before_its_tag_is_tagged_by_the_same_command(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = manifest("died", *DAYS, kind="BACKFILL")
    with killed_at("planning.recorded", monkeypatch):
        plan_run(platform, text)
    assert pins(platform) == set()
    planned = platform.ledger.run("died")
    platform.ledger.decide(
        "died", approve=True, by="bob", comment="", self_approval=False, plan_hash=planned.plan_hash
    )  # which makes planning it again return what is on record
    record = plan_run(platform, text)
    assert pins(platform) == {pin_of(record.plan.source_snapshot_id)}


def test_the_doctor_names_and_tags_what_a_run_has_read_and_init_does(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run_id, mended in (("one", lambda: mend(platform)), ("two", lambda: initialise(platform))):
        load_more(platform, run_id)
        with killed_at("planning.recorded", monkeypatch):
            plan_run(platform, manifest(run_id, *DAYS, kind="BACKFILL"))
        (found,) = [one for one in examine(platform) if one.kind == "pin-untagged"]
        assert found.where == LINES
        assert str(platform.lakehouse.snapshot_id(LINES)) in found.what
        mended()
        assert [one.kind for one in examine(platform)] == []
