"""Collecting garbage beside others: whoever commits, fences or takes back at the same moment loses nothing by it.

Here the order of events is forced, without Spark; what policy lets go is `test_gc`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from click.testing import CliRunner, Result
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.io.pyarrow import schema_to_pyarrow

from backfill_assets import faults
from backfill_assets.audit.explain import explain
from backfill_assets.audit.verification import verify
from backfill_assets.cli.command import cli
from backfill_assets.declarations import finding
from backfill_assets.installation import Platform
from backfill_assets.operations import clock
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.garbage import collect, find
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks.publishers import DAYS, initialise, opened, validated
from benchmarks.small_table import serves
from manifests.errors import EnvironmentRefused, LeaseHeld, LeaseLost, PublicationRefused
from manifests.lifecycle import RunState
from resources.lakehouse.commits import ensure_snapshot, retry
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.lakehouse.fences import fence_of, require_unfenced
from resources.lakehouse.history import forget
from resources.lakehouse.lineage import is_past, lineage_of
from resources.lakehouse.storage import place_of
from resources.ledger.tables import leases as leases_table
from resources.ledger.transactions import LedgerEngine
from resources.ledger.transactions import system_clock as now

JANUARY, FEBRUARY = ("2020-01-01", "2020-01-31"), ("2020-02-01", "2020-02-29")
YEAR = ("2020-01-01", "2020-12-31")
DECADE = timedelta(days=3652)
NO_RETENTION = {"keep_snapshots_days": 0, "keep_dead_runs_days": 0, "keep_superseded_days": 0}


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """An installation that keeps nothing longer than it must, with one table that has no rows."""
    monkeypatch.setattr(finding, "find_products", serves())
    platform = opened({"home": tmp_path / "home"} | NO_RETENTION)
    initialise(platform)
    yield platform
    platform.ledger.engine.dispose()


def published(platform: Platform, run_id: str, scope: tuple[str, str] = JANUARY) -> int:
    validated(platform, run_id, *scope)
    return publish(platform, run_id).snapshot_id


def sweep(platform: Platform, at: datetime | None = None) -> int:
    """Collect what there is at an instant; return how many files went."""
    at = at or now()
    return sum(one.files for one in collect(platform, find(platform, at=at), by="ana", at=at))


def rows(platform: Platform) -> int:
    return int(platform.lakehouse.table(DAYS).scan().to_arrow().num_rows)


def before_commits(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], *, number: int = 1) -> None:
    """Let something happen once, where a commit (the first, or a later one) only has to swap the catalog's pointer."""
    commit, left = SqlCatalog.commit_table, [number]

    def interrupted(self: SqlCatalog, table: Any, requirements: Any, updates: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            act()
        return commit(self, table, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", interrupted)


def written_elsewhere(platform: Platform, load: str) -> None:
    """Append a row as another program would, without a lease."""
    table = platform.lakehouse.table(DAYS)
    facts = {"run_id": "live", "processing_mode": "LIVE", "transform_version": "1", "input_snapshot_id": 1}
    row = {"day": datetime(2020, 6, 1).date(), "value": load, "produced_at": now()} | facts  # noqa: DTZ001 - a day
    batch = arrow.Table.from_pylist([row], schema=schema_to_pyarrow(table.schema()))
    platform.lakehouse.append(DAYS, [batch], {LOAD_PROPERTY: load})


def test_what_a_commit_has_written_and_not_yet_shown_is_left_alone(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where policy keeps no snapshot a day: its manifests are referenced by nothing until its last step."""
    published(platform, "one")
    before_commits(monkeypatch, lambda: sweep(platform))
    written_elsewhere(platform, "late")
    assert rows(platform) == 32


def test_a_snapshot_that_was_just_made_waits_for_the_ref_that_will_name_it(platform: Platform) -> None:
    """A fence on an empty table is two commits: a snapshot, then the tag."""
    retry(platform.lakehouse, DAYS, ensure_snapshot)
    sweep(platform, now() + timedelta(hours=23))
    assert len(platform.lakehouse.table(DAYS).snapshots()) == 1


# --- fences -----------------------------------------------------------------------------------------------------------


def superseded(platform: Platform) -> None:
    """Let a first publication be over, whose snapshot only the tag of a dead run names."""
    published(platform, "one")
    validated(platform, "undone", *FEBRUARY)
    for run_id in ("two", "three"):
        published(platform, run_id)
    publish(platform, "undone")
    rollback(platform, "undone")


def test_a_fence_that_is_set_while_snapshots_expire_is_there_afterwards(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    superseded(platform)
    at = now() + DECADE
    listed = find(platform, at=at)
    assert listed[0].snapshots
    before_commits(monkeypatch, lambda: platform.lakehouse.fence(DAYS, 4711))
    with pytest.raises(EnvironmentRefused, match="refs were made or removed: fence-4711"):
        collect(platform, listed, by="ana", at=at)
    for _ in range(2):
        with pytest.raises(LeaseLost):
            require_unfenced(platform.lakehouse.table(DAYS), 4711)
        sweep(platform, at)


@pytest.mark.parametrize("landed", [True, False])
def test_a_collection_whose_commit_is_not_answered_is_refused_and_finished_by_the_next(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    superseded(platform)
    at = now() + DECADE
    listed = find(platform, at=at)
    commit = SqlCatalog.commit_table

    def unanswered(*arguments: Any) -> Any:
        if landed:
            commit(*arguments)
        raise CommitStateUnknownException("no answer in time")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", unanswered)
        with pytest.raises(EnvironmentRefused, match="is unknown"):
            collect(platform, listed, by="ana", at=at)
    sweep(platform, at)
    assert not any(one.snapshots for one in find(platform, at=at))


def test_a_fence_outlives_the_snapshot_that_it_named(platform: Platform) -> None:
    published(platform, "one")
    platform.lakehouse.fence(DAYS, 4711)
    fenced = platform.lakehouse.snapshot_id(DAYS)
    for run_id in ("two", "three"):
        published(platform, run_id)
    sweep(platform, now() + DECADE)
    table = platform.lakehouse.table(DAYS)
    assert table.snapshot_by_id(fenced) is None, "it keeps no snapshot for ever"
    assert table.refs()[fence_of(4711)].snapshot_id == platform.lakehouse.snapshot_id(DAYS)


def test_a_collection_that_lost_its_lease_removes_nothing(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """It slept, its scope was taken over: what the new holder is looking at must not go."""
    superseded(platform)
    at = now() + DECADE
    listed = find(platform, at=at)
    before = platform.lakehouse.table(DAYS).snapshots()

    def taken_over(point: str) -> None:
        if point == "collecting.leased":
            monkeypatch.setattr(faults, "reach", lambda _: None)
            expire_leases(platform)
            published(platform, "four", FEBRUARY)

    monkeypatch.setattr(faults, "reach", taken_over)
    with pytest.raises(LeaseLost):
        collect(platform, listed, by="ana", at=at)
    assert platform.lakehouse.table(DAYS).snapshots()[: len(before)] == before


def test_a_collection_waits_for_no_publisher_and_disturbs_none(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    superseded(platform)
    at = now() + DECADE
    listed = find(platform, at=at)
    validated(platform, "four", *FEBRUARY)

    def meanwhile(point: str) -> None:
        if point == "publishing.leased":
            with pytest.raises(LeaseHeld, match="run 'four'"):
                collect(platform, listed, by="ana", at=at)

    monkeypatch.setattr(faults, "reach", meanwhile)
    publish(platform, "four")
    assert rows(platform) == 31 + 29
    assert collect(platform, listed, by="ana", at=at)[0].snapshots


def expire_leases(platform: Platform) -> None:
    with platform.ledger.engine.begin() as connection:
        connection.execute(leases_table.update().values(expires_at=now() - timedelta(seconds=1)))


@pytest.mark.parametrize("asleep", [False, True])
def test_files_that_a_reinstatement_wants_back_are_there_or_it_is_refused(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, *, asleep: bool
) -> None:
    """A collection comes between its look at the table and its commit; of a sleeper it takes the lease over."""
    published(platform, "one")
    published(platform, "two")
    rollback(platform, "two")
    published(platform, "three", FEBRUARY)
    at = now() + DECADE
    listed = find(platform, at=at)
    assert listed[0].snapshots

    def collecting() -> None:
        if asleep:
            expire_leases(platform)
            collect(platform, listed, by="ana", at=at)
        else:
            with pytest.raises(LeaseHeld, match="run 'two'"):
                collect(platform, listed, by="ana", at=at)

    before_commits(monkeypatch, collecting)
    if asleep:
        with pytest.raises(LeaseLost):
            reinstate(platform, "two")
        assert platform.ledger.run("two").state is RunState.ROLLED_BACK
    reinstate(platform, "two")  # its intent was on record: nothing of it was collected
    assert rows(platform) == 31 + 29
    assert platform.ledger.run("two").state is RunState.PUBLISHED
    rollback(platform, "two")
    assert collect(platform, find(platform, at=at), by="ana", at=at)[0].files
    with pytest.raises(PublicationRefused, match="has expired"):
        reinstate(platform, "two")


# --- a long history ---------------------------------------------------------------------------------------------------


def test_ten_years_later_what_nothing_needs_has_left_the_disk(platform: Platform) -> None:
    """Though the bootstrap still holds most of its chunks: a year at first, a month of it restated twelve times."""
    published(platform, "bootstrap", YEAR)
    restated = [f"restated-{number:02}" for number in range(1, 13)]
    for run_id in restated:
        published(platform, run_id)
    rollback(platform, restated[-1])
    before, at = rows(platform), now() + DECADE
    found = find(platform, at=at)[0]
    over = {f"restated-{number:02}" for number in (*range(1, 10), 12)}
    # restated-10 is what a rollback of restated-11 brings back, and so stays as long as that one is accepted
    assert {item.owner for item in found.files if item.kind == "staged"} == over
    assert len(found.snapshots) == 14 - 4, "kept: the bootstrap's, the last two restatements', and the rollback's"
    sweep(platform, at)
    table = platform.lakehouse.table(DAYS)
    assert len(table.snapshots()) == 4
    for snapshot in table.snapshots():
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == before
    data = Path(place_of(table.location())) / "data"
    assert {path.name for path in data.iterdir()} == {"run=bootstrap", "run=restated-10", "run=restated-11"}
    after = find(platform, at=at)[0]
    assert (after.refs, after.snapshots, after.files) == ((), (), ())
    # what is left can still be found and undone, and what is gone is refused
    assert examine(platform) == []
    assert verify(platform).everything == []
    january = explain(platform, DAYS, ["day=2020-01-05"])
    assert [one.run_id for one in january.versions] == ["restated-11", "restated-10", "bootstrap"]
    assert sum("have expired" in note for note in january.notes) == 2
    for run_id in ("bootstrap", "restated-11"):
        assert platform.lakehouse.find_publication(DAYS, run_id, "publish") is not None
    with pytest.raises(PublicationRefused, match="has expired"):
        reinstate(platform, "restated-12")
    rollback(platform, "restated-11")
    assert platform.ledger.accepted(DAYS)["2020-01"] == "restated-10"
    with pytest.raises(PublicationRefused, match="has expired"):
        rollback(platform, "restated-10")
    reinstate(platform, "restated-11")
    published(platform, "another")
    assert rows(platform) == before
    assert examine(platform) == []
    assert verify(platform).everything == []


def test_main_is_followed_behind_its_gaps_and_only_there(platform: Platform) -> None:
    for number in range(6):
        written_elsewhere(platform, f"load-{number}")
    table = platform.lakehouse.table(DAYS)
    ids = [snapshot.snapshot_id for snapshot in lineage_of(table)]
    forget(table, refs=[], snapshot_ids=[ids[1], ids[3]])
    table.refresh()
    assert [one.snapshot_id for one in lineage_of(table)] == [ids[0], ids[2], ids[4], ids[5]]
    assert {ref.snapshot_id for name, ref in table.refs().items() if is_past(name, ref.snapshot_id)} == {ids[2], ids[4]}
    for load in ("load-5", "load-3", "load-1", "load-0"):
        assert platform.lakehouse.find_load(DAYS, load) is not None
    assert platform.lakehouse.find_load(DAYS, "load-2") is None
    forget(table, refs=[], snapshot_ids=[ids[2]])  # two gaps become one
    table.refresh()
    assert {ref.snapshot_id for name, ref in table.refs().items() if is_past(name, ref.snapshot_id)} == {ids[4]}
    table.manage_snapshots().set_current_snapshot(snapshot_id=ids[5]).commit()  # somebody moves main back
    assert [one.snapshot_id for one in lineage_of(table.refresh())] == [ids[5]]


def test_two_collections_at_once_are_one(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        written_elsewhere(platform, f"load-{number}")
    table = platform.lakehouse.table(DAYS)
    oldest = [lineage_of(table)[-1].snapshot_id]
    before_commits(monkeypatch, lambda: forget(platform.lakehouse.table(DAYS), refs=[], snapshot_ids=oldest))
    with pytest.raises(EnvironmentRefused, match="snapshots were removed"):
        forget(table, refs=[], snapshot_ids=oldest)


# --- the clock --------------------------------------------------------------------------------------------------------


def run_gc(platform: Platform, monkeypatch: pytest.MonkeyPatch, ahead: timedelta, *options: str) -> Result:
    """Remove what there is by the command, on a machine whose clock is ahead."""
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    with monkeypatch.context() as patch:
        patch.setattr(LedgerEngine, "clock", staticmethod(lambda: now() + ahead))
        return CliRunner().invoke(cli, ["gc", "--delete", "--yes", *options])


def files_of(platform: Platform) -> list[Path]:
    return sorted(Path(place_of(platform.lakehouse.table(DAYS).location())).rglob("*"))


def test_a_clock_that_has_jumped_removes_nothing(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    superseded(platform)
    before = files_of(platform)
    jumped = run_gc(platform, monkeypatch, timedelta(days=400))
    assert isinstance(jumped.exception, EnvironmentRefused)
    assert "the file system of" in str(jumped.exception)
    assert files_of(platform) == before
    agreeing = {"the file system of /home": now() + timedelta(days=400)}  # the whole machine's clock is wrong
    monkeypatch.setattr(clock, "present_instants", lambda _: agreeing)
    believed = run_gc(platform, monkeypatch, timedelta(days=400))
    assert isinstance(believed.exception, EnvironmentRefused)
    (problem,) = believed.exception.problems
    assert "the newest record of this installation is of" in problem.what
    wanted = (now() + timedelta(days=400)).date()
    assert f"--today {wanted}" in problem.fix
    assert isinstance(
        run_gc(platform, monkeypatch, timedelta(days=400), "--today", "2024-01-01").exception, EnvironmentRefused
    )
    assert files_of(platform) == before
    confirmed = run_gc(platform, monkeypatch, timedelta(days=400), "--today", str(wanted))
    assert confirmed.exit_code == 0, confirmed.output
    assert "removed" in confirmed.stdout
    assert files_of(platform) != before


@pytest.mark.parametrize(
    ("present", "recorded", "said"),
    [
        ({"a server": timedelta(hours=-30)}, timedelta(0), "a server says"),
        ({"a server": timedelta(hours=2)}, timedelta(days=2), "there are records of"),
        ({}, timedelta(days=-32), "32 days before"),
    ],
)
def test_a_clock_is_believed_that_everything_else_agrees_with(
    present: dict[str, timedelta], recorded: timedelta, said: str
) -> None:
    at = now()
    others = {name: at + ahead for name, ahead in present.items()}
    with pytest.raises(EnvironmentRefused, match=said):
        clock.require_believable(at, others, {"runs.updated_at": at + recorded})
    clock.require_believable(at, {"a server": at}, {"runs.updated_at": at - timedelta(days=30)})
    clock.require_believable(at, {"a server": at}, {})
