"""LIVE of tables of several sources, of hours, and of tables that are divided beside time: one run for what is new in any of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from worlds import SPARK, World, killed_at

from backfill_assets.audit.verification import verify
from backfill_assets.declarations.schedules import LivePolicy
from backfill_assets.declarations.target import TargetTable
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.live_names import claims, is_live_id
from backfill_assets.planning.pinned_snapshots import untagged_of
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.schedules.live import Tick, foreseen, tick
from benchmarks import accounts, sales
from benchmarks.accounts import ENTRIES, FEES, LIMITS, Row
from benchmarks.sales import BY_HOUR, BY_HOUR_AND_VALUE, BY_MONTH, JURISDICTIONS, RAW, SALES
from manifests.division import ByBucket
from manifests.errors import PlanRefused, PublicationDeferred, PublicationRefused, Refused
from manifests.lifecycle import RunState
from manifests.plan import Plan

POLICY = LivePolicy(transform_version="1.0.0", rewind_days=1, development=True)
JANUARY, FEBRUARY = (date(2024, 1, 1), date(2024, 1, 31)), (date(2024, 2, 1), date(2024, 2, 29))


class LiveWorld(World):
    """An installation with one target that LIVE keeps up."""

    @property
    def target(self) -> TargetTable:
        (found,) = self.platform.products.targets
        return found

    def ticked(self) -> Tick:
        return tick(self.platform, self.target)

    def live(self) -> Plan:
        """Tick, stage, gate and publish what came of it."""
        record = self.ticked().record
        assert record is not None
        self.stage(record)
        publish(self.platform, record.run_id)
        return record.plan

    def nothing_new(self) -> str:
        done = self.ticked()
        assert done.record is None, done.why
        return done.why

    def mark(self) -> date:
        found = self.platform.ledger.watermarks.current(self.target.name)
        assert found is not None
        return found.complete_until


# --- several sources --------------------------------------------------------------------------------------------------


class Accounts(LiveWorld):
    """Balances of January, and what was loaded of each source."""

    loaded: dict[str, list[Row]]

    def load(self, table: str, *rows: Row) -> int:
        self.loaded[table] = [*self.loaded.get(table, []), *rows]
        return accounts.load(self.platform, table, rows, f"{table}-{len(self.loaded[table])}")

    def expected(self) -> dict[tuple[str, date], tuple[int, ...]]:
        return accounts.expected(*(self.loaded[table] for table in (ENTRIES, LIMITS, FEES)))

    def rows(self, snapshot_id: int | None = None) -> dict[tuple[str, date], tuple[int, ...]]:  # type: ignore[override]
        return accounts.values_of(accounts.rows_of(self.platform, snapshot_id))


@pytest.fixture
def books(tmp_path: Path) -> Accounts:
    target = replace(accounts.TARGET, live=POLICY)
    platform = accounts.opened(tmp_path / "home", target, spark=SPARK)
    initialise(platform)
    world = Accounts(platform, tmp_path / "home")
    world.loaded = {}
    world.load(ENTRIES, *accounts.entries(*JANUARY))
    world.load(LIMITS, *accounts.limits())
    world.load(FEES, *accounts.fees())
    world.published(accounts.manifest("history", *JANUARY))
    return world


def test_live_goes_on_when_something_is_new_in_any_source_once(
    books: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = books.platform
    assert "is complete up to 2024-01-31" in books.nothing_new()
    first = books.load(ENTRIES, *accounts.entries(date(2024, 2, 1), date(2024, 2, 10)))
    plan = books.live()
    assert dict(plan.source_pins)[ENTRIES] == first
    assert [chunk.key for chunk in plan.chunks] == ["2024-01", "2024-02"]  # a day of January is covered once more
    assert books.rows() == books.expected()
    assert books.mark() == date(2024, 2, 10)
    books.nothing_new()
    # a limit and no entry: the same days on what is known by now
    second = books.load(LIMITS, {"account": "a1", "valid_from": date(2024, 2, 3), "cents": 1})
    assert foreseen(platform, books.target).startswith("A tick would plan live-gold-balances-")
    again = books.ticked().record
    assert again is not None
    assert books.ticked().record == again  # two ticks make one run
    assert dict(again.plan.source_pins) == {ENTRIES: first, LIMITS: second, FEES: platform.lakehouse.snapshot_id(FEES)}
    assert again.run_id != plan.run_id
    assert is_live_id(again.run_id, books.target)
    assert claims(platform, accounts.manifest(again.run_id)) != []  # no name for anybody else's run
    for table, snapshot_id in again.plan.source_pins:
        assert untagged_of(platform, table, [snapshot_id]) == []
    books.stage(again)
    with killed_at("publishing.committed", monkeypatch):
        publish(platform, again.run_id)
    assert verify(platform, data=True).everything == []
    publish(platform, again.run_id)
    assert books.rows() == books.expected()
    assert books.mark() == date(2024, 2, 10)
    books.nothing_new()
    # what is taken back is not repeated by itself, and the next snapshot of any source goes on
    rollback(platform, again.run_id)
    assert "ROLLED_BACK" in books.nothing_new()
    books.load(FEES, {"valid_from": date(2024, 2, 5), "cents": 9})
    books.live()
    assert books.rows() == books.expected()
    assert verify(platform, data=True).everything == []
    assert examine(platform) == []


def test_what_came_for_days_before_a_live_run_is_said_of_each_source_and_left_to_a_repair(books: Accounts) -> None:
    books.load(ENTRIES, *accounts.entries(date(2024, 2, 1), date(2024, 2, 29)))
    books.live()
    books.load(ENTRIES, *accounts.entries(date(2024, 3, 1), date(2024, 3, 2)))
    books.live()
    assert books.mark() == date(2024, 3, 2)
    before = books.platform.lakehouse.snapshot_id(LIMITS)
    books.load(LIMITS, {"account": "a1", "valid_from": date(2024, 1, 15), "cents": 2})
    plan = books.live()
    assert [chunk.key for chunk in plan.chunks] == ["2024-03"]
    reason = books.platform.ledger.run(plan.run_id).manifest.reason
    assert (
        f"Rows of days back to 2024-01-15 have come since snapshot {before} of {LIMITS}: those before 2024-03-01"
        in reason
    )
    wrong = {key for key, row in books.expected().items() if books.rows()[key] != row}
    assert wrong
    assert all(key[0] == "a1" and key[1] < date(2024, 3, 1) for key in wrong)
    books.published(accounts.manifest("repair", *JANUARY, kind="REPAIR"))
    books.published(accounts.manifest("repair-2", *FEBRUARY, kind="REPAIR"))
    assert books.rows() == books.expected()
    books.nothing_new()


def test_older_rows_of_a_further_source_never_replace_what_live_has_published(books: Accounts) -> None:
    older = books.platform.lakehouse.snapshot_id(LIMITS)
    early = {"sources": [{"table": LIMITS, "snapshotId": older}]}
    waiting = books.validated(accounts.manifest("waiting", *JANUARY, **early))
    books.load(LIMITS, {"account": "a1", "valid_from": date(2024, 1, 3), "cents": 1})
    books.load(ENTRIES, *accounts.entries(date(2024, 2, 1), date(2024, 2, 3)))
    books.live()
    with pytest.raises(PlanRefused, match=r"older knowledge never replaces newer") as refused:
        plan_run(books.platform, accounts.manifest("older", *JANUARY, **early))
    assert LIMITS in str(refused.value)
    with pytest.raises(PublicationRefused):
        publish(books.platform, waiting.run_id)
    assert books.rows() == books.expected()
    plan_run(books.platform, accounts.manifest("newest", *JANUARY))


def test_a_source_that_has_to_have_rows_for_a_chunk_holds_live_back_until_it_has(tmp_path: Path) -> None:
    whole = accounts.TARGET
    limits = replace(whole.sources[0], may_be_empty=False, reads=accounts.ba.Window())
    target = replace(whole, live=POLICY, sources=(limits, whole.sources[1]))
    platform = accounts.opened(tmp_path / "home", target, spark=SPARK)
    initialise(platform)
    world = Accounts(platform, tmp_path / "home")
    world.loaded = {}
    world.load(ENTRIES, *accounts.entries(*JANUARY))
    world.load(LIMITS, {"account": "a1", "valid_from": date(2024, 1, 15), "cents": 2})
    world.published(accounts.manifest("history", *JANUARY))  # of fees there is no snapshot yet
    world.load(ENTRIES, *accounts.entries(date(2024, 2, 1), date(2024, 2, 3)))
    with pytest.raises(Refused, match=r"bronze\.limits holds no rows for 2024-02"):
        world.ticked()
    # of the first day: the chunks of a batch read each other's days, and a limit of January would else count for February's
    world.load(LIMITS, {"account": "a1", "valid_from": date(2024, 2, 1), "cents": 2})
    assert [chunk.key for chunk in world.live().chunks] == ["2024-01", "2024-02"]
    world.nothing_new()
    world.load(FEES, *accounts.fees())  # its first snapshot is new, too
    plan = world.live()
    assert f"Rows of days back to 2023-01-01 have come into {FEES}" in platform.ledger.run(plan.run_id).manifest.reason
    assert {(key[1].month, row[2]) for key, row in world.rows().items()} == {(1, 0), (2, 4)}


# --- hours, values, buckets -------------------------------------------------------------------------------------------


def made(tmp_path: Path, target: TargetTable, last: date, until_hour: int = 23, **policy: object) -> LiveWorld:
    """Return an installation whose history is loaded up to an hour of its last day; nothing is published yet."""
    live = replace(POLICY, transform_version="1", **policy)  # type: ignore[arg-type]
    platform = sales.opened(tmp_path / "home", replace(target, live=live), spark=SPARK)
    initialise(platform)
    world = LiveWorld(platform, tmp_path / "home")
    arrive(world, date(2024, 1, 1), last, until_hour=until_hour)
    return world


def arrive(
    world: LiveWorld, first: date, last: date, *, from_hour: int = 0, until_hour: int = 23, name: str = "s"
) -> None:
    """Load the sales of days, of the first from an hour on, of the last up to one."""
    rows = sales.raw(list(sales.days_between(date(2024, 1, 1), last)), name=name).to_pylist()
    begins = datetime(first.year, first.month, first.day, from_hour, tzinfo=UTC)
    ends = datetime(last.year, last.month, last.day, until_hour, 59, tzinfo=UTC)
    own = [row for row in rows if begins <= row["sold_at"] <= ends]
    schema = sales.raw([]).schema
    table = sales.arrow.Table.from_pylist(own, schema)
    world.platform.lakehouse.append(RAW, [table], {sales.LOAD_PROPERTY: f"{name}-{begins:%FT%H}"})


def source_of(world: LiveWorld) -> list[str]:
    return sorted(world.platform.lakehouse.table(RAW).scan().to_arrow()["sale"].to_pylist())


def held(world: LiveWorld) -> list[str]:
    return [row["sale"] for row in sales.rows_of(world.platform)]


@pytest.mark.parametrize(
    "target",
    [BY_HOUR, BY_HOUR_AND_VALUE, replace(BY_HOUR, chunk_values=ByBucket("sale", 3))],
    ids=["hour", "value", "bucket"],
)
def test_live_takes_in_hours_as_they_come(tmp_path: Path, target: TargetTable) -> None:
    world = made(tmp_path, target, date(2024, 1, 3), until_hour=9)
    platform = world.platform
    world.published(sales.manifest("history", end=date(2024, 1, 3)))
    assert world.mark() == date(2024, 1, 3)
    world.nothing_new()
    arrive(world, date(2024, 1, 3), date(2024, 1, 4), from_hour=10, until_hour=5)
    plan = world.live()
    # the rest of a day that was known by half is of the rewind
    assert (plan.chunks[0].start, plan.chunks[-1].end) == (date(2024, 1, 3), date(2024, 1, 4))
    assert len(plan.chunks) == 48 * max(len(target.parts), 1)
    assert held(world) == source_of(world)
    assert world.mark() == date(2024, 1, 4)
    world.nothing_new()
    arrive(world, date(2024, 1, 4), date(2024, 1, 4), from_hour=6)  # later hours of the day that is known already
    world.live()
    assert held(world) == source_of(world)
    assert world.mark() == date(2024, 1, 4)
    world.nothing_new()
    arrive(world, date(2024, 1, 2), date(2024, 1, 2), from_hour=5, until_hour=8, name="late")
    plan = world.live()
    assert "Rows of days back to 2024-01-02 have come" in platform.ledger.run(plan.run_id).manifest.reason
    missing = Counter(source_of(world)) - Counter(held(world))
    assert {one.partition("-")[0] for one in missing} == {"late1"}
    world.published(sales.manifest("repair", date(2024, 1, 2), date(2024, 1, 2), kind="REPAIR"))
    assert held(world) == source_of(world)
    assert verify(platform, data=True).everything == []
    assert examine(platform) == []


def test_live_and_a_run_over_one_value_meet_only_where_both_change_the_same(tmp_path: Path) -> None:
    world = made(tmp_path, BY_MONTH, FEBRUARY[1])
    platform = world.platform
    world.published(sales.manifest("history", end=FEBRUARY[1]))
    # a run over January of one value is under way, while LIVE covers February and March
    january = world.validated(sales.manifest("january", *JANUARY, version="2", target={"values": ["NY"]}))
    february = world.validated(sales.manifest("february", *FEBRUARY, version="2", target={"values": ["CA"]}))
    arrive(world, date(2024, 3, 1), date(2024, 3, 3))
    plan = world.live()
    assert [chunk.key for chunk in plan.chunks] == [
        f"{month}~{one}" for month in ("2024-02", "2024-03") for one in JURISDICTIONS
    ]
    publish(platform, january.run_id)
    with pytest.raises(PublicationRefused, match="somebody else has written into the scope"):
        publish(platform, february.run_id)
    assert held(world) == source_of(world)
    # the other way round: a value that came between the plan and the publication of LIVE, which another run follows
    arrive(world, date(2024, 3, 4), date(2024, 3, 5))
    waiting = world.ticked().record
    assert waiting is not None
    world.stage(waiting)
    world.published(
        sales.manifest("new-york", date(2024, 3, 1), date(2024, 3, 31), version="2", target={"values": ["NY"]})
    )
    with pytest.raises(PublicationRefused, match="somebody else has written into the scope"):
        publish(platform, waiting.run_id)
    assert world.mark() == date(2024, 3, 3)  # some values of days do not complete them
    assert world.live().run_id == f"{waiting.run_id}.2"
    assert world.mark() == date(2024, 3, 5)
    assert held(world) == source_of(world)
    accepted = platform.ledger.accepted(SALES)
    assert accepted["2024-01~NY"] == "january"
    assert accepted["2024-01~CA"] == "history"
    assert {accepted[f"2024-03~{one}"] for one in JURISDICTIONS} == {f"{waiting.run_id}.2"}
    assert verify(platform, data=True).everything == []


def test_a_freeze_over_days_of_one_value_holds_live_back_from_these_days(tmp_path: Path) -> None:
    world = made(tmp_path, BY_MONTH, FEBRUARY[1])
    platform = world.platform
    world.published(sales.manifest("history", end=FEBRUARY[1]))
    frozen = {"target": {"values": ["CA"]}, "freeze": {"hours": 2}, "version": "2"}
    run = world.validated(sales.manifest("slow", *FEBRUARY, **frozen))  # type: ignore[arg-type]
    other = world.validated(
        sales.manifest("other", *JANUARY, version="2", target={"values": ["CA"]}, freeze={"hours": 2})
    )
    arrive(world, date(2024, 3, 1), date(2024, 3, 3))
    live = world.ticked().record
    assert live is not None
    world.stage(live)
    with pytest.raises(PublicationDeferred, match="slow"):
        publish(platform, live.run_id)
    assert platform.ledger.run(live.run_id).state is RunState.VALIDATED
    publish(platform, other.run_id)  # a freeze holds back LIVE, and nobody else
    publish(platform, run.run_id)
    with pytest.raises(PublicationRefused, match="somebody else has written into the scope"):
        publish(platform, live.run_id)
    assert world.live().run_id == f"{live.run_id}.2"
    assert held(world) == source_of(world)
    assert world.mark() == date(2024, 3, 3)
    assert verify(platform, data=True).everything == []


def test_days_of_which_one_value_is_published_are_not_complete(tmp_path: Path) -> None:
    world = made(tmp_path, BY_MONTH, FEBRUARY[1])
    platform = world.platform
    for value, last in (("CA", FEBRUARY[1]), ("NY", JANUARY[1])):
        world.published(sales.manifest(f"history-{value.lower()}", end=last, target={"values": [value]}))
    assert platform.ledger.watermarks.current(SALES) is None
    assert "names no first day" in world.nothing_new()  # Washington has no day yet
    # a run with a cut line leaves out no day of any value that it is about
    march = {"start": date(2024, 3, 1), "end": date(2024, 3, 31)}
    arrive(world, date(2024, 3, 1), date(2024, 3, 31))
    text = {"kind": "BACKFILL", "cutLine": date(2024, 4, 1)}
    plan_run(platform, sales.manifest("march-ca", *march.values(), target={"values": ["CA"]}, **text))
    with pytest.raises(PlanRefused, match="no run would cover the days 2024-02-01 to 2024-02-29"):
        plan_run(platform, sales.manifest("march-ny", *march.values(), target={"values": ["CA", "NY"]}, **text))
    world.published(sales.manifest("history-wa", end=JANUARY[1], target={"values": ["WA"]}))
    plan = world.live()  # it goes on from what is complete in every value
    assert plan.chunks[0].key == "2024-01~CA"
    assert world.mark() == date(2024, 3, 31)
    assert held(world) == source_of(world)


def test_history_and_live_meet_at_the_cut_line_of_a_table_of_hours(tmp_path: Path) -> None:
    cut = date(2024, 1, 5)
    world = made(tmp_path, BY_HOUR_AND_VALUE, date(2024, 1, 6), begins_on=cut)
    text = {"kind": "BACKFILL", "cutLine": cut}
    with pytest.raises(PlanRefused, match="beyond the cut line 2024-01-05"):
        plan_run(world.platform, sales.manifest("over", end=cut, **text))
    with pytest.raises(PlanRefused, match="no run would cover the days 2024-01-04 to 2024-01-04"):
        plan_run(world.platform, sales.manifest("short", end=cut - timedelta(days=2), **text))
    live = world.live()  # LIVE need not wait for history
    assert (live.chunks[0].key, live.chunks[-1].key) == ("2024-01-05T00~CA", "2024-01-06T23~WA")
    world.published(sales.manifest("history", end=cut - timedelta(days=1), **text))
    assert held(world) == source_of(world)
    assert world.mark() == date(2024, 1, 6)
    arrive(world, date(2024, 1, 7), date(2024, 1, 7))
    assert world.live().chunks[0].key == "2024-01-06T00~CA"
    assert held(world) == source_of(world)
    assert verify(world.platform, data=True).everything == []
