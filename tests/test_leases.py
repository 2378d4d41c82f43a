"""Two publishers never change one scope at once, and one that lost its lease cannot commit, even if it was only paused."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from contenders import processes, publish_a_run, take_a_lease
from launches import begin
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from support import BY_MONTH, DAYS_SCHEMA, a_lakehouse, day_rows, of_run, scope, stage_file
from support import DAYS as SMALL

from backfill_assets import faults
from backfill_assets.declarations import finding
from backfill_assets.installation import Platform
from backfill_assets.publication import publisher as publication
from backfill_assets.publication.leasing import leases_of, publishing_lease
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from benchmarks import publishers
from benchmarks.publishers import DAYS, initialise, opened, validated
from benchmarks.small_table import serves
from manifests.errors import EnvironmentRefused, LeaseHeld, LeaseLost, PublicationRefused
from manifests.lifecycle import PUBLISH, ROLLBACK, RunState
from resources import processes as processes_module
from resources.lakehouse import commits
from resources.lakehouse.facade import Lakehouse
from resources.lakehouse.fences import fence_of
from resources.ledger.facade import Ledger
from resources.ledger.leases import Lease, Leases
from resources.ledger.tables import leases as leases_table
from resources.ledger.transactions import LedgerEngine

pytestmark = pytest.mark.matrix

TARGET = "silver.table"
JANUARY = (date(2020, 1, 1), date(2020, 1, 31))
FEBRUARY = (date(2020, 2, 1), date(2020, 2, 29))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger.migrate()
    yield ledger
    ledger.engine.dispose()


@pytest.fixture
def leases(ledger: Ledger) -> Leases:
    return ledger.leases(60)


def take(leases: Leases, days: tuple[date, date] = JANUARY, run_id: str = "one", target: str = TARGET) -> Lease:
    return leases.acquire(target, *days, run_id, "publish")


def edit(ledger: Ledger, token: int, **values: Any) -> None:
    with ledger.engine.begin() as connection:
        connection.execute(leases_table.update().where(leases_table.c.id == token).values(**values))


def ended(ledger: Ledger, token: int) -> str | None:
    with ledger.engine.connect() as connection:
        return connection.execute(sa.select(leases_table.c.ended_how).where(leases_table.c.id == token)).scalar_one()


def expire(ledger: Ledger, token: int) -> None:
    edit(ledger, token, expires_at=datetime.now(UTC) - timedelta(seconds=1))


def of_process(pid: int) -> dict[str, Any]:
    return {"pid": pid, "process": processes_module.name_of(pid)}


def ended_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


# --- leases -----------------------------------------------------------------------------------------------------------


def test_one_day_in_common_is_enough_to_be_refused_and_the_refusal_names_the_holder(leases: Leases) -> None:
    take(leases, (date(2020, 1, 1), date(2020, 2, 1)))
    with pytest.raises(LeaseHeld, match=rf"run 'one' \(publish, process {os.getpid()} on .*\) since .* UTC"):
        take(leases, FEBRUARY, "two")


def test_other_days_and_other_targets_are_free(leases: Leases) -> None:
    tokens = [take(leases).token, take(leases, FEBRUARY).token, take(leases, target="silver.other").token]
    assert tokens == sorted(set(tokens))


def test_a_released_scope_is_free_and_owes_no_fence(leases: Leases, ledger: Ledger) -> None:
    first = take(leases)
    leases.release(first)
    second = take(leases, run_id="two")
    assert (second.lost, second.token > first.token, ended(ledger, first.token)) == ((), True, "RELEASED")
    with pytest.raises(LeaseLost):
        leases.renew(first)


def test_an_expired_lease_is_taken_over_and_its_holder_is_told(leases: Leases, ledger: Ledger) -> None:
    first = take(leases)
    expire(ledger, first.token)
    second = take(leases, run_id="two")
    assert second.lost == (first.token,)
    with pytest.raises(LeaseLost, match=f"lease {first.token} of {TARGET} was lost"):
        leases.renew(first)
    leases.release(first)  # changes nothing: it is not its holder's any more
    assert ended(ledger, first.token) == "LOST"
    leases.renew(second)


def test_an_expired_lease_that_nobody_wanted_is_still_held(leases: Leases, ledger: Ledger) -> None:
    first = take(leases)
    expire(ledger, first.token)
    leases.renew(first)
    with pytest.raises(LeaseHeld):
        take(leases, run_id="two")


def test_the_lease_of_an_ended_process_on_this_machine_is_free_at_once(leases: Leases, ledger: Ledger) -> None:
    first = take(leases)
    edit(ledger, first.token, **of_process(ended_process()))
    assert take(leases, run_id="two").lost == (first.token,)


def test_a_process_that_nobody_has_waited_for_has_ended_all_the_same(leases: Leases, ledger: Ledger) -> None:
    first = take(leases)
    process = subprocess.Popen(["true"])
    edit(ledger, first.token, **of_process(process.pid))
    stat = Path(f"/proc/{process.pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
    assert take(leases, run_id="two").lost == (first.token,)
    process.wait()


def test_a_process_on_another_machine_is_trusted_until_its_lease_ends(leases: Leases, ledger: Ledger) -> None:
    first = take(leases)
    edit(ledger, first.token, pid=ended_process(), host=f"not-{socket.gethostname()}")
    with pytest.raises(LeaseHeld):
        take(leases, run_id="two")
    expire(ledger, first.token)
    assert take(leases, run_id="two").lost == (first.token,)


def test_a_holder_that_died_before_it_fenced_leaves_that_to_the_next(leases: Leases, ledger: Ledger) -> None:
    first = take(leases)
    expire(ledger, first.token)
    second = take(leases, FEBRUARY, "other days")
    assert second.lost == ()
    third = take(leases, run_id="two")
    expire(ledger, third.token)
    fourth = take(leases, run_id="three")
    assert fourth.lost == (first.token, third.token)
    leases.fenced(fourth.lost)
    expire(ledger, fourth.token)
    assert take(leases, run_id="four").lost == (fourth.token,)


def test_a_clock_that_was_set_back_brings_no_lease_to_life(
    leases: Leases, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = take(leases)
    later = datetime.now(UTC) + timedelta(hours=2)
    monkeypatch.setattr(LedgerEngine, "clock", staticmethod(lambda: later))
    second = take(leases, FEBRUARY, "later")
    monkeypatch.setattr(LedgerEngine, "clock", staticmethod(lambda: later - timedelta(hours=2, seconds=1)))
    third = take(leases, run_id="two")
    assert third.lost == (first.token,)  # it had expired before, and has
    with pytest.raises(LeaseHeld):
        take(leases, FEBRUARY, "too early")
    leases.renew(second)


def test_of_many_at_once_exactly_one_gets_the_scope(ledger: Ledger) -> None:
    with processes(4) as at_once:
        assert sorted(at_once(take_a_lease, [(ledger.url,)] * 4), key=str) == [1, None, None, None]


# --- fences -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def lakehouse(tmp_path: Path) -> Lakehouse:
    lakehouse = a_lakehouse(tmp_path)
    lakehouse.ensure(SMALL, DAYS_SCHEMA, BY_MONTH, {})
    return lakehouse


def put(lakehouse: Lakehouse, run_id: str, day: str, token: int | None) -> None:
    staged = stage_file(lakehouse.table(SMALL), f"{run_id}.parquet", day_rows(day))
    month = scope(f"{day[:7]}-01", f"{day[:7]}-28")
    base = lakehouse.snapshot_id(SMALL)
    lakehouse.replace(SMALL, [(month, base)], staged=[staged], properties=of_run(run_id), token=token)


@pytest.mark.parametrize("history", [True, False])
def test_a_fence_stops_its_token_and_no_other(lakehouse: Lakehouse, history: bool) -> None:
    if history:
        put(lakehouse, "history", "2020-03-01", None)
    before = lakehouse.snapshot_id(SMALL)
    lakehouse.fence(SMALL, 7)
    lakehouse.fence(SMALL, 7)
    assert lakehouse.snapshot_id(SMALL) == before  # readers see what they saw
    with pytest.raises(LeaseLost, match="lease 7"):
        put(lakehouse, "seven", "2020-01-01", 7)
    put(lakehouse, "eight", "2020-01-01", 8)
    assert [row["id"] for row in lakehouse.table(SMALL).scan().to_arrow().to_pylist()].count("case-2020-01-01") == 1


def test_a_fence_names_what_main_shows_because_no_expiry_takes_that(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where main moves on between the look and the fence."""
    put(lakehouse, "first", "2020-01-01", None)
    lakehouse.tag(SMALL, "before-something", lakehouse.snapshot_id(SMALL))
    commit, late = SqlCatalog.commit_table, iter([True])

    def moved(self: SqlCatalog, table: Any, requirements: Any, updates: Any) -> Any:
        if next(late, None):
            put(lakehouse, "second", "2020-02-01", None)
        return commit(self, table, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", moved)
    lakehouse.fence(SMALL, 1)
    assert lakehouse.table(SMALL).refs()[fence_of(1)].snapshot_id == lakehouse.snapshot_id(SMALL)


@pytest.mark.parametrize("history", [True, False])
def test_a_fence_that_comes_between_the_check_and_the_commit_still_stops_it(
    lakehouse: Lakehouse, history: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if history:
        put(lakehouse, "history", "2020-03-01", None)
    before = lakehouse.snapshot_id(SMALL)
    commit = commits.commit_replacement

    def late(*arguments: Any, **named: Any) -> None:
        lakehouse.fence(SMALL, 7)
        commit(*arguments, **named)

    monkeypatch.setattr(commits, "commit_replacement", late)
    with pytest.raises(LeaseLost):
        put(lakehouse, "seven", "2020-01-01", 7)
    assert lakehouse.snapshot_id(SMALL) == before


@pytest.mark.parametrize(
    "said",
    [
        CommitFailedException("Table has been updated by another process"),
        ValidationException("Missing required files to delete: one that is there"),
    ],
)
def test_a_commit_that_others_crowd_out_is_tried_again_and_no_conflict(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, said: Exception
) -> None:
    commit, crowded = commits.commit_replacement, iter(range(3))

    def crowd(*arguments: Any, **named: Any) -> None:
        if next(crowded, None) is not None:
            raise said
        commit(*arguments, **named)

    monkeypatch.setattr(commits, "commit_replacement", crowd)
    put(lakehouse, "one", "2020-01-01", 1)
    assert lakehouse.find_publication(SMALL, "one", "publish") is not None
    monkeypatch.setattr(commits, "_CONTENTION_SECONDS", 0)
    crowded = iter(range(3))
    with pytest.raises(EnvironmentRefused, match="nothing has changed"):
        put(lakehouse, "two", "2020-01-01", 2)


def test_a_commit_that_landed_but_was_reported_failed_is_not_made_twice(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = commits.commit_replacement

    def lie(*arguments: Any, **named: Any) -> None:
        commit(*arguments, **named)
        raise CommitFailedException("a lie")

    monkeypatch.setattr(commits, "commit_replacement", lie)
    put(lakehouse, "one", "2020-01-01", 1)
    assert len(lakehouse.table(SMALL).snapshots()) == 1


def test_a_sqlite_catalog_waits_for_its_lock(lakehouse: Lakehouse) -> None:
    with lakehouse.catalog.engine.connect() as connection:
        assert connection.exec_driver_sql("pragma busy_timeout").scalar_one() == 60_000


# --- publications -----------------------------------------------------------------------------------------------------


@dataclass
class Days:
    """An installation whose only table is `silver.days`; no Spark."""

    platform: Platform
    settings: dict[str, Any]

    def rows(self) -> set[str]:
        return {row["value"] for row in self.platform.lakehouse.table(DAYS).scan().to_arrow().to_pylist()}

    def runs(self) -> set[str]:
        return {value.split()[0] for value in self.rows()}

    def validated(self, run_id: str, month: str = "01") -> str:
        return validated(self.platform, run_id, f"2020-{month}-01", f"2020-{month}-31").run_id

    def entries(self, run_id: str) -> list[tuple[str, str]]:
        return [(one.action, one.state) for one in self.platform.ledger.publications(run_id)]

    def state(self, run_id: str) -> RunState:
        return self.platform.ledger.run(run_id).state


@pytest.fixture
def days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Days]:
    monkeypatch.setattr(finding, "find_products", serves())  # put back afterwards
    settings = {"home": tmp_path / "home", "lease_seconds": 1}
    days = Days(opened(settings), settings)
    initialise(days.platform)
    yield days
    days.platform.ledger.engine.dispose()


def until(condition: Any) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Paused:
    """A publisher in a process of its own, stopped on its way to the commit."""

    def __init__(self, days: Days, run_id: str, where: str) -> None:
        in_the_catalog = where == "in the catalog"
        environment = {"BACKFILL_OPERATOR": "paused"} | ({} if in_the_catalog else {faults.VARIABLE: f"{where}:stop"})
        self.launch = begin(publish_a_run, days.settings, run_id, in_the_catalog, environment=environment)
        stat = Path(f"/proc/{self.launch.process.pid}/stat")
        until(lambda: not self.launch.is_running() or stat.read_text().rpartition(")")[2].split()[0] == "T")
        assert self.launch.is_running(), self.launch.errors
        time.sleep(1.1)  # its lease runs out

    def wakes(self) -> tuple[int, str]:
        assert self.launch.process.pid is not None
        os.kill(self.launch.process.pid, signal.SIGCONT)
        return self.launch.ended(), self.launch.errors

    def is_killed(self) -> None:
        self.launch.kill()


@pytest.mark.parametrize("where", ["publishing.leased", "in the catalog"])
@pytest.mark.parametrize("history", [True, False])
def test_a_paused_publisher_cannot_commit_once_its_scope_was_taken_over(days: Days, where: str, history: bool) -> None:
    if history:
        publish(days.platform, days.validated("history"))
    sleeper, other = days.validated("sleeper"), days.validated("other")
    before = days.rows()
    paused = Paused(days, sleeper, where)
    with publishing_lease(days.platform, days.platform.ledger.run(other), PUBLISH) as lease:
        code, said = paused.wakes()  # the other one has not committed yet: the table is still the sleeper's base
        assert code != 0
        assert "the lease is lost" in said
        assert days.rows() == before
        publication._publish(days.platform, other, lease)
    assert days.runs() == {"other"}
    assert (days.state(other), days.entries(sleeper)) == (RunState.PUBLISHED, [("publish", "REFUSED")])
    assert days.state(sleeper) is RunState.VALIDATED  # nothing is wrong with it but its base
    with pytest.raises(PublicationRefused, match="no longer holds the plan's files"):
        publish(days.platform, sleeper)
    assert days.runs() == {"other"}


@pytest.mark.parametrize("where", ["publishing.leased", "in the catalog"])
def test_a_paused_publisher_cannot_commit_after_its_successor_has(days: Days, where: str) -> None:
    publish(days.platform, days.validated("history"))
    sleeper, other = days.validated("sleeper"), days.validated("other")
    paused = Paused(days, sleeper, where)
    publish(days.platform, other)
    code, said = paused.wakes()
    assert code != 0
    assert "the lease is lost" in said
    assert days.runs() == {"other"}
    assert days.platform.ledger.accepted(DAYS) == {"2020-01": "other"}


def test_two_operators_publish_the_same_run_and_the_one_that_slept_does_no_harm(days: Days) -> None:
    run = days.validated("run")
    paused = Paused(days, run, "publishing.leased")
    done = publish(days.platform, run)
    assert paused.wakes()[0] == 0  # it finds that it is done
    assert days.state(run) is RunState.PUBLISHED
    # the second, under the lease it took over, has put down that the first never said what came of it
    assert sorted(days.entries(run)) == [("publish", "ABANDONED"), ("publish", "COMMITTED")]
    assert publish(days.platform, run).snapshot_id == done.snapshot_id


def test_one_that_slept_after_its_commit_finds_its_publication_on_record_in_the_right_order(days: Days) -> None:
    sleeper = days.validated("sleeper")
    paused = Paused(days, sleeper, "publishing.committed")
    assert days.runs() == {"sleeper"}  # landed, and nobody has said so
    publish(days.platform, days.validated("successor"))
    assert days.state(sleeper) is RunState.SUPERSEDED
    assert paused.wakes()[0] == 0
    assert (days.state(sleeper), days.state("successor")) == (RunState.SUPERSEDED, RunState.PUBLISHED)
    assert days.platform.ledger.accepted(DAYS) == {"2020-01": "successor"}
    assert [(one.token, one.state) for one in days.platform.ledger.publications(sleeper)] == [(1, "COMMITTED")]
    rollback(days.platform, "successor")
    assert (days.runs(), days.state(sleeper)) == ({"sleeper"}, RunState.PUBLISHED)


def test_a_live_holder_is_waited_for_and_a_dead_one_is_not(days: Days) -> None:
    one, other = days.validated("one"), days.validated("other")
    object.__setattr__(days.platform.settings, "lease_seconds", 600)
    with publishing_lease(days.platform, days.platform.ledger.run(one), PUBLISH):
        with pytest.raises(LeaseHeld, match="held by run 'one'"):
            publish(days.platform, other)
        publish(days.platform, days.validated("elsewhere", "03"))
    assert (days.state(other), days.entries(other)) == (RunState.VALIDATED, [])
    paused = Paused(days, one, "publishing.leased")
    paused.is_killed()
    publish(days.platform, one)  # the same command again, at once
    assert days.runs() == {"one", "elsewhere"}


def test_a_rollback_holds_its_scope_and_can_be_lost_like_a_publication(
    days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(days.platform, days.validated("one"))
    with (
        publishing_lease(days.platform, days.platform.ledger.run("one"), ROLLBACK),
        pytest.raises(LeaseHeld, match=r"\(rollback, "),
    ):
        rollback(days.platform, "one")
    restore = Lakehouse.restore

    def fenced_first(lakehouse: Lakehouse, name: str, *arguments: Any, **named: Any) -> Any:
        lakehouse.fence(name, named["token"])
        return restore(lakehouse, name, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Lakehouse, "restore", fenced_first)
        with pytest.raises(LeaseLost):
            rollback(days.platform, "one")
    assert days.runs() == {"one"}
    assert rollback(days.platform, "one").new
    assert days.rows() == set()
    assert days.entries("one") == [("publish", "COMMITTED"), ("rollback", "REFUSED"), ("rollback", "COMMITTED")]


def test_an_error_gives_the_scope_back_to_be_fenced(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    run = days.validated("run")

    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("the catalog is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Lakehouse, "replace", unreachable)
        with pytest.raises(OSError, match="gone"):
            publish(days.platform, run)
    lease = leases_of(days.platform).acquire(DAYS, *JANUARY, "another", "publish")
    assert len(lease.lost) == 1  # nobody knows what came of it


def test_eight_publishers_leave_what_a_serial_replay_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "find_products", serves())
    tallies, found = publishers.measure({"home": tmp_path / "home"}, 6)
    assert found == []
    assert all(tally.landed for tally in tallies if tally.name.startswith("own-"))
    assert any(tally.landed for tally in tallies if tally.name.startswith("shared-"))
    assert sum(tally.held for tally in tallies) > 0
