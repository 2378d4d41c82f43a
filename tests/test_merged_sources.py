"""Merges into a table of three sources: an entity whose rows have changed in any of them is computed anew, and nobody else."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from worlds import SPARK, World, killed_at

from backfill_assets.audit.reproduce import Outcome, reproduce
from backfill_assets.audit.verification import verify
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.pinned_snapshots import untagged_of
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.staging.compute import entities_of
from benchmarks import accounts
from benchmarks.accounts import BALANCES, ENTRIES, FEES, FIRST, LAST, LIMITS, Row, manifest
from manifests.errors import PlanRefused, PublicationDeferred


class Accounts(World):
    """An installation with balances of two months, and what was loaded of each source."""

    loaded: dict[str, list[Row]]
    since: dict[str, int]

    def load(self, table: str, *rows: Row) -> int:
        self.loaded[table] = [*self.loaded.get(table, []), *rows]
        return accounts.load(self.platform, table, rows, f"{table}-{len(self.loaded[table])}")

    def expected(self) -> dict[tuple[str, date], tuple[int, ...]]:
        return accounts.expected(*(self.loaded[table] for table in (ENTRIES, LIMITS, FEES)))

    def merge(self, **since: int) -> dict[str, object]:
        """Return what a target says that merges whatever has changed since the first loads, or since snapshots by table."""
        known = self.since | since
        sources = [{"table": table, "changedSince": known[table]} for table in (LIMITS, FEES)]
        return {
            "table": BALANCES,
            "publishRange": {"start": FIRST, "end": LAST},
            "publishMode": "MERGE_BY_KEY",
            "merge": {"changedSince": known[ENTRIES], "sources": sources},
        }


@pytest.fixture
def world(tmp_path: Path) -> Accounts:
    platform = accounts.opened(tmp_path / "home", spark=SPARK)
    initialise(platform)
    found = Accounts(platform, tmp_path / "home")
    found.loaded, found.since = {}, {}
    for table, rows in ((ENTRIES, accounts.entries()), (LIMITS, accounts.limits()), (FEES, accounts.fees())):
        found.since[table] = found.load(table, *rows)
    found.published(manifest("history"))
    assert accounts.values_of(accounts.rows_of(platform)) == found.expected()
    return found


def booked(account: str, day: date, cents: int) -> Row:
    return {"account": account, "booked_at": datetime(day.year, day.month, day.day, 12, tzinfo=UTC), "cents": cents}


def test_an_entity_that_has_changed_in_any_source_is_computed_anew_and_no_other(
    world: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform, before = world.platform, accounts.rows_of(world.platform)
    world.load(ENTRIES, booked("a1", date(2024, 1, 20), 7), booked("new", date(2024, 2, 3), 9))
    world.load(LIMITS, {"account": "a3", "valid_from": date(2024, 1, 15), "cents": 77})
    record = world.validated(manifest("merged", target=world.merge()))
    # what is compared is kept by tags, like what is read
    assert record.plan.merge is not None
    for table, snapshot_id in world.since.items():
        assert untagged_of(platform, table, [snapshot_id]) == []
    with killed_at("publishing.committed", monkeypatch):
        publish(platform, "merged")
    assert verify(platform, data=True).everything == []
    publish(platform, "merged")
    assert [one.action for one in platform.ledger.landed("merged")] == ["publish"]
    after = accounts.rows_of(platform)
    assert accounts.values_of(after) == world.expected()
    assert {row["account"] for row in after if row["run_id"] == "merged"} == {"a1", "a3", "new"}
    assert [row for row in after if row["run_id"] != "merged"] == [
        row for row in before if row["account"] not in {"a1", "a3"}
    ]
    assert verify(platform, data=True).everything == []
    assert reproduce(platform, "merged").outcome is Outcome.EQUAL
    assert examine(platform) == []
    rollback(platform, "merged")
    assert accounts.rows_of(platform) == before
    assert verify(platform, data=True).everything == []


def test_named_entities_are_computed_from_every_source_whole(world: Accounts) -> None:
    world.load(FEES, {"valid_from": date(2024, 1, 10), "cents": 50})
    target = world.merge() | {"merge": {"entities": ["a2", "a5"]}}
    world.published(manifest("merged", target=target))
    old = {row["account"]: row for row in accounts.rows_of(world.platform) if row["run_id"] == "history"}
    assert "a2" not in old
    found = accounts.values_of([row for row in accounts.rows_of(world.platform) if row["run_id"] == "merged"])
    assert found == {key: row for key, row in world.expected().items() if key[0] in {"a2", "a5"}}
    assert verify(world.platform, data=True).everything == []


def test_what_does_not_say_whose_its_rows_are_is_refused_when_planned_and_rows_that_are_gone_count(
    world: Accounts,
) -> None:
    platform = world.platform
    only_first = world.merge() | {"merge": {"changedSince": world.since[ENTRIES]}}
    with pytest.raises(PlanRefused, match=r"nothing is said of bronze\.limits, bronze\.fees"):
        plan_run(platform, manifest("silent", target=only_first))
    with pytest.raises(PlanRefused, match=r"snapshot 5 of bronze\.limits"):
        plan_run(platform, manifest("unknown", target=world.merge(**{LIMITS: 5})))
    world.load(FEES, {"valid_from": date(2024, 1, 10), "cents": 50})
    with pytest.raises(PlanRefused, match=r"bronze\.fees has no column account, and has changed since"):
        plan_run(platform, manifest("whose", target=world.merge()))
    fees = platform.lakehouse.snapshot_id(FEES)
    assert fees is not None
    plan_run(platform, manifest("whose", target=world.merge(**{FEES: fees})))  # nothing of it has changed since
    limits = platform.lakehouse.snapshot_id(LIMITS)
    world.load(LIMITS, {"account": None, "valid_from": date(2024, 1, 15), "cents": 900})
    with pytest.raises(PlanRefused, match=r"rows of bronze\.limits that came after snapshot \d+ have no account"):
        plan_run(platform, manifest("anybody", target=world.merge(**{FEES: fees})))
    now = platform.lakehouse.snapshot_id(LIMITS)
    assert now is not None
    assert limits is not None
    plan_run(platform, manifest("anybody", target=world.merge(**{FEES: fees, LIMITS: now})))
    platform.lakehouse.table(LIMITS).delete("account = 'a1'")
    record = plan_run(platform, manifest("deleted", target=world.merge(**{FEES: fees, LIMITS: now})))
    assert {row["account"] for row in entities_of(platform, record.plan).collect()} == {"a1"}


def test_a_merge_that_is_planned_anew_finds_what_has_changed_in_any_source_by_then(world: Accounts) -> None:
    platform = world.platform
    world.load(ENTRIES, booked("a1", date(2024, 1, 20), 7))
    world.validated(manifest("merged", target=world.merge(), conflict={"onConflict": "REPLAN"}))
    world.load(LIMITS, {"account": "a3", "valid_from": date(2024, 2, 15), "cents": 77})
    february = {"table": BALANCES, "publishRange": {"start": date(2024, 2, 1), "end": LAST}}
    entities = {"publishMode": "MERGE_BY_KEY", "merge": {"entities": ["a0"]}}
    world.published(manifest("between", target=february | entities))
    with pytest.raises(PublicationDeferred, match="planned anew"):
        publish(platform, "merged")
    world.stage(platform.ledger.run("merged"))
    publish(platform, "merged")
    after = accounts.rows_of(platform)
    assert accounts.values_of(after) == world.expected()
    assert {row["account"] for row in after if row["run_id"] == "merged"} == {"a1", "a3"}
    assert verify(platform, data=True).everything == []
