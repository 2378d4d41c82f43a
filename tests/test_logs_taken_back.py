"""What was landed of a log and is taken back is missing, wherever it lay, whatever has expired since, until it is landed again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from change_world import CHANGES, Accounts, make_accounts
from pyiceberg.table import Table
from test_landing_changes import a_bank, tail_of, whole
from test_log_sources import FIRST, SECOND, clicked, later, planned
from test_topic_ranges import NEW, load, resolved, state

from backfill_assets.ingestion.table_loads import undo_load
from backfill_assets.ingestion.topic_ranges import Resolved, Wanted
from backfill_assets.operations.initialise import initialise
from backfill_assets.products.accounts.generator import Bank, Message
from benchmarks import clicks
from benchmarks.clicks import CLICKS, PLACE, click, land
from manifests.errors import InputRefused, PlanRefused
from manifests.lateness import Lateness, Watermark
from manifests.log_ranges import LogRange, joined
from resources.lakehouse.landed_logs import landed_loads, taken_back

WHY = {"by": "ana", "reason": "taken back to be landed anew"}


@pytest.fixture
def accounts(tmp_path: Path) -> Iterator[Accounts]:
    world = make_accounts(tmp_path / "home")
    yield world
    world.platform.ledger.close()


def after_a_snapshot() -> Bank:
    """Return a bank whose log begins with a snapshot, and goes on."""
    bank = Bank(7, accounts=40, truncates=0.0)
    bank.work(60)
    bank.snapshot()
    bank.work(16)
    return bank


def units_of(bank: Bank) -> list[list[Message]]:
    return whole(tail_of(bank))


def part(units: list[list[Message]], first: int, until: int | None = None) -> list[Message]:
    return [message for unit in units[first:until] for message in unit]


def expire(table: Table, number: int) -> None:
    """Have the oldest snapshots expire, as another program would."""
    oldest = sorted(table.snapshots(), key=lambda one: one.sequence_number)[:number]
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in oldest]).commit()


def test_a_beginning_that_was_taken_back_is_a_gap_of_the_next_delivery(accounts: Accounts) -> None:
    bank = after_a_snapshot()
    units = units_of(bank)
    first = accounts.land(part(units, 0, 1), "snapshot")
    accounts.land(part(units, 1, 6), "second")
    undo_load(accounts.platform, CHANGES, first.loads[0].load_id, **WHY)
    with pytest.raises(InputRefused, match="missing"):
        accounts.land(part(units, 6), "third")
    accounts.land(part(units, 0, 1), "snapshot")
    assert accounts.land(part(units, 6), "third").loads
    accounts.published(accounts.manifest("history-1", target={"table": "silver.account_history"}))
    rows = accounts.table("silver.account_history")
    assert rows["valid_to_lsn"].null_count() == len(bank.rows_at(bank.lsn))


@pytest.mark.parametrize("cut", ["the load", "its undoing, too"])
def test_a_beginning_that_was_taken_back_is_a_gap_also_once_its_load_has_expired(accounts: Accounts, cut: str) -> None:
    bank = after_a_snapshot()
    units = units_of(bank)
    first = accounts.land(part(units, 0, 1), "snapshot")
    accounts.land(part(units, 1, 4), "second")
    undo_load(accounts.platform, CHANGES, first.loads[0].load_id, **WHY)
    table = accounts.platform.lakehouse.table(CHANGES)
    expire(table, len(table.snapshots()) - 1)
    if cut == "its undoing, too":
        with pytest.raises(InputRefused, match="missing"):
            accounts.land(part(units, 4, 6), "third")
        accounts.land(part(units, 4, 6), "third", accept_gap="it comes later")
        table = accounts.platform.lakehouse.table(CHANGES)
        expire(table, len(table.snapshots()) - 1)
        assert taken_back(table.refresh()) == (first.loads[0].range,)
    else:
        with pytest.raises(InputRefused, match="missing"):
            accounts.land(part(units, 4), "third")


def test_topics_say_what_was_taken_back_also_once_its_load_has_expired(tmp_path: Path) -> None:
    platform = clicked(tmp_path / "home")
    later(platform, 40, 50)
    undo_load(platform, CLICKS, "second", **WHY)
    expire(platform.lakehouse.table(CLICKS), 2)
    table = platform.lakehouse.table(CLICKS)
    assert LogRange(0, 40, 50) in taken_back(table)
    expire(table, len(table.snapshots()) - 1)
    assert LogRange(0, 40, 50) in taken_back(platform.lakehouse.table(CLICKS))


def test_what_was_all_taken_back_is_a_gap_before_a_later_snapshot(accounts: Accounts) -> None:
    bank = after_a_snapshot()
    bank.snapshot()
    bank.work(16)
    units = units_of(bank)
    first, anew = (at for at, unit in enumerate(units) if any(one.value and one.value.get("op") == "r" for one in unit))
    assert first == 0
    taken = accounts.land(part(units, 0, 6), "first").loads
    for one in taken:
        undo_load(accounts.platform, CHANGES, one.load_id, **WHY)
    begun = format(taken[0].range.start - 1, "X")
    with pytest.raises(InputRefused, match=f"changes between the commits 0/{begun} and .* are missing"):
        accounts.land(part(units, anew), "anew")


def test_what_is_kept_of_an_open_transaction_stays_where_loads_were_taken_back_and_have_expired(
    accounts: Accounts,
) -> None:
    units = units_of(a_bank(7))
    changes = [sum(1 for one in unit if one.value and "op" in one.value) for unit in units]
    long = next(number for number in range(8, len(units)) if changes[number] > 1)
    assert accounts.land([*part(units, 0, 5), *units[long][:2]], "first").open
    for number in range(5, 7):  # the second is taken back when the first has expired
        more = accounts.land(part(units, number, number + 1), f"more-{number}")
        undo_load(accounts.platform, CHANGES, more.loads[0].load_id, **WHY)
        expire(accounts.platform.lakehouse.table(CHANGES), 2)
        if number == 5:
            accounts.land(part(units, 5, 6), "more-5")
    assert accounts.land([*part(units, 5, long), *units[long][2:]], "rest").loads


def test_a_plan_misses_a_beginning_that_was_taken_back(tmp_path: Path) -> None:
    platform = clicks.opened(tmp_path / "home", replace(PLACE, lateness=Lateness(Watermark.BY_BATCH)))
    initialise(platform)
    land(platform, "first", FIRST[:15] + SECOND[:7], [LogRange(0, 0, 15), LogRange(1, 0, 7)])
    known = datetime(2026, 3, 5, tzinfo=UTC)
    both = [LogRange(0, 15, 40), LogRange(1, 7, 20)]
    land(platform, "second", FIRST[15:] + SECOND[7:], both, complete_before=known)
    assert planned(platform, 2, 4).logs[0].is_whole
    undo_load(platform, CLICKS, "first", **WHY)
    with pytest.raises(
        PlanRefused,
        match=r"22 position\(s\).*offsets 0 to 14 of partition 0 \(15\), before load second, beginning with 15; offsets 0 to 6",
    ):
        planned(platform, 2, 4)


def test_a_plan_misses_a_partition_of_which_everything_was_taken_back(tmp_path: Path) -> None:
    platform = clicks.opened(tmp_path / "home", replace(PLACE, lateness=Lateness(Watermark.BY_BATCH)))
    initialise(platform)
    known = datetime(2026, 3, 5, tzinfo=UTC)
    land(platform, "first", FIRST, [LogRange(0, 0, 40)])
    land(platform, "second", SECOND, [LogRange(1, 0, 20)], complete_before=known)
    undo_load(platform, CLICKS, "second", **WHY)
    with pytest.raises(
        PlanRefused, match=r"offsets 0 to 19 of partition 1 \(20\), no load has an offset of that partition"
    ):
        planned(platform, 2, 4)


def test_what_is_new_of_a_topic_begins_where_a_load_did_that_was_taken_back() -> None:
    found = resolved(NEW, state((0, 9, 9)), load((0, 5, 9)), taken_back=(LogRange(0, 0, 5),))
    assert (found.missing, found.problems) == ((LogRange(0, 0, 5),), ())


@pytest.mark.parametrize(
    ("back", "lows", "lost"),
    [
        (("first", "second"), (12, 5), (LogRange(0, 0, 12), LogRange(1, 0, 5))),
        (("first",), (30, 0), (LogRange(0, 0, 15),)),
        (("second",), (20, 20), (LogRange(0, 15, 20), LogRange(1, 0, 20))),
    ],
)
def test_what_was_taken_back_and_retention_has_taken_since_is_on_record_once_somebody_accepts_it(
    tmp_path: Path, back: tuple[str, ...], lows: tuple[int, int], lost: tuple[LogRange, ...]
) -> None:
    platform = clicks.opened(tmp_path / "home", replace(PLACE, lateness=Lateness(Watermark.BY_BATCH)))
    initialise(platform)
    land(platform, "first", FIRST[:15], [LogRange(0, 0, 15), LogRange(1, 0, 0)])
    land(platform, "second", FIRST[15:] + SECOND, [LogRange(0, 15, 40), LogRange(1, 0, 20)])
    for one in back:
        undo_load(platform, CLICKS, one, **WHY)
    now = state(*((low, 45, 45) for low in lows), log=clicks.LOG)

    def asked(*, accepts_gap: bool) -> Resolved:
        table = platform.lakehouse.table(CLICKS)
        gone = taken_back(table, log=clicks.LOG)
        return resolved(NEW, now, *landed_loads(table), accepts_gap=accepts_gap, taken_back=gone)

    assert "cannot be landed: retention has removed them" in asked(accepts_gap=False).problems[0].what
    found = asked(accepts_gap=True)
    assert (found.problems, found.gap) == ((), lost)
    rows = [click(one.partition, at, at / 10, "home") for one in found.missing for at in range(one.start, one.until)]
    land(platform, "third", rows, found.missing, lost=found.gap, complete_before=datetime(2026, 3, 5, tzinfo=UTC))
    (log,) = planned(platform, 2, 4).logs
    assert (log.lost, log.is_whole) == (lost, True)
    assert (asked(accepts_gap=False).missing, asked(accepts_gap=True).gap) == ((), ())


def test_a_beginning_that_a_landing_leaves_out_of_a_partition_is_a_gap_like_any_other() -> None:
    now, there = state((0, 9, 9), (0, 9, 9)), load((0, 0, 9), (1, 0, 0))
    (problem,) = resolved(Wanted(start={1: 4}), now, there).problems
    assert problem.what.startswith("orders: offsets 0 to 3 of partition 1 (4) would be missing")
    found = resolved(Wanted(start={1: 4}), now, there, accepts_gap=True)
    assert (found.missing, found.gap, found.problems) == ((LogRange(1, 4, 9),), (LogRange(1, 0, 4),), ())


def test_what_was_taken_back_and_landed_again_goes_on_where_the_history_is_cut(accounts: Accounts) -> None:
    units = units_of(a_bank(7))
    accounts.land(part(units, 0, 6), "one")
    two = accounts.land(part(units, 6, 12), "two")
    accounts.land(part(units, 12, 18), "three")
    undo_load(accounts.platform, CHANGES, two.loads[0].load_id, **WHY)
    expire(accounts.platform.lakehouse.table(CHANGES), 2)
    assert accounts.land(part(units, 6, 12), "two").loads
    assert accounts.land(part(units, 18), "four").loads
    assert accounts.table(CHANGES).height == _changes(units)


def test_two_loads_that_were_taken_back_stay_so_where_the_history_is_cut(accounts: Accounts) -> None:
    units = units_of(a_bank(7))
    accounts.land(part(units, 0, 6), "one")
    two, three = accounts.land(part(units, 6, 12), "two"), accounts.land(part(units, 12, 18), "three")
    undo_load(accounts.platform, CHANGES, two.loads[0].load_id, **WHY)
    undo_load(accounts.platform, CHANGES, three.loads[0].load_id, **WHY)
    expire(accounts.platform.lakehouse.table(CHANGES), 2)
    assert accounts.land(part(units, 6), "again").loads
    assert accounts.table(CHANGES).height == _changes(units)


def test_topics_that_were_taken_back_stay_so_where_the_history_is_cut(tmp_path: Path) -> None:
    platform = clicked(tmp_path / "home")
    later(platform, 40, 50)
    later(platform, 50, 60, "third")
    undo_load(platform, CLICKS, "second", **WHY)
    undo_load(platform, CLICKS, "third", **WHY)
    expire(platform.lakehouse.table(CLICKS), 2)
    ranges = [one.range for load in platform.lakehouse.landed_loads(CLICKS) for one in load.landed.ranges]
    assert max(one.until for one in ranges if one.partition == 0) == 40
    assert platform.lakehouse.other_changes(CLICKS, platform.lakehouse.snapshot_id(CLICKS) or 0) == []


def test_a_load_whose_range_is_counted_with_those_before_the_cut_is_taken_back_all_the_same(tmp_path: Path) -> None:
    platform = clicked(tmp_path / "home")
    later(platform, 40, 50)
    later(platform, 50, 60, "third")
    undo_load(platform, CLICKS, "second", **WHY)
    expire(platform.lakehouse.table(CLICKS), 2)
    undo_load(platform, CLICKS, "third", **WHY)
    table = platform.lakehouse.table(CLICKS)
    assert taken_back(table) == (LogRange(0, 40, 60),)
    assert platform.lakehouse.other_changes(CLICKS, platform.lakehouse.snapshot_id(CLICKS) or 0) == []
    later(platform, 40, 60, "again")
    assert taken_back(platform.lakehouse.table(CLICKS)) == ()
    assert platform.lakehouse.other_changes(CLICKS, platform.lakehouse.snapshot_id(CLICKS) or 0) == []


def test_changes_whose_range_is_counted_with_those_before_the_cut_are_taken_back_all_the_same(
    accounts: Accounts,
) -> None:
    units = units_of(a_bank(7))
    accounts.land(part(units, 0, 6), "one")
    two, three = accounts.land(part(units, 6, 12), "two"), accounts.land(part(units, 12, 18), "three")
    undo_load(accounts.platform, CHANGES, two.loads[0].load_id, **WHY)
    expire(accounts.platform.lakehouse.table(CHANGES), 2)
    undo_load(accounts.platform, CHANGES, three.loads[0].load_id, **WHY)
    with pytest.raises(InputRefused, match="missing"):
        accounts.land(part(units, 18), "later")
    assert accounts.land(part(units, 6), "again").loads
    assert accounts.table(CHANGES).height == _changes(units)


@pytest.mark.parametrize("is_cut", [False, True])
def test_what_was_accepted_as_lost_with_a_load_of_a_topic_is_missing_once_that_is_taken_back(
    tmp_path: Path, is_cut: bool
) -> None:
    platform = clicks.opened(tmp_path / "home", replace(PLACE, lateness=Lateness(Watermark.BY_BATCH)))
    initialise(platform)
    known = datetime(2026, 3, 5, tzinfo=UTC)
    land(platform, "first", FIRST, [LogRange(0, 0, 40)], complete_before=known)
    land(platform, "second", SECOND[5:], [LogRange(1, 5, 20)], lost=(LogRange(1, 0, 5),), complete_before=known)
    undo_load(platform, CLICKS, "second", **WHY)
    if is_cut:
        expire(platform.lakehouse.table(CLICKS), 2)
    table = platform.lakehouse.table(CLICKS)
    assert LogRange(1, 0, 20) in joined(taken_back(table))
    with pytest.raises(
        PlanRefused, match=r"offsets 0 to 19 of partition 1 \(20\), no load has an offset of that partition"
    ):
        planned(platform, 2, 4)
    now = state((0, 60, 60), (5, 20, 20), log=clicks.LOG)
    found = resolved(NEW, now, *landed_loads(table), taken_back=taken_back(table, log=clicks.LOG))
    assert "offsets 0 to 4 of partition 1 (5)" in found.problems[0].what


def test_offsets_of_a_topic_that_was_made_anew_are_not_those_that_were_taken_back_before(tmp_path: Path) -> None:
    platform = clicked(tmp_path / "home")
    for one in platform.lakehouse.landed_loads(CLICKS):
        undo_load(platform, CLICKS, one.load_id, **WHY)
    anew = replace(clicks.LOG, incarnation="made-anew")
    later(platform, 0, 30, "anew", log=anew)
    table = platform.lakehouse.table(CLICKS)
    assert taken_back(table) == ()
    assert LogRange(0, 0, 40) in taken_back(table, log=clicks.LOG)
    expire(table, len(table.snapshots()) - 1)
    assert taken_back(platform.lakehouse.table(CLICKS)) == ()


def _changes(units: list[list[Message]]) -> int:
    """How many messages are changes: the others say where a transaction begins and ends, or are tombstones."""
    return sum("op" in (message.value or {}) for message in part(units, 0))
