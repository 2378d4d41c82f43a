"""A change that stopped halfway is completed by whoever gets some of its days: two at once, and one that slept meanwhile.

Also a ledger that is older than the table. The table is the benchmarks' small one, without Spark.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from pyiceberg.expressions import AlwaysTrue
from test_others_writing import UNDOINGS, history
from test_taking_back import (
    APRIL,
    BESIDE,
    FEBRUARY,
    LATER,
    NO_RETENTION,
    PUBLISHED,
    ROLLED_BACK,
    dying_at,
    published,
    readers,
    state,
    validated,
)

from backfill_assets import faults
from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication import undoing
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.ending import cancel
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks.small_table import CORRECTIONS, READINGS, closed, opened, rows
from benchmarks.stopped_actors import Died, bury, expire
from manifests.errors import LeaseLost, PublicationRefused
from manifests.lifecycle import PUBLISH, REINSTATE, ROLLBACK, RunState
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.facade import ACTION_PROPERTY, RUN_PROPERTY, SEQUENCE_PROPERTY
from resources.lakehouse.lineage import ancestors

pytestmark = pytest.mark.matrix

__all__ = ["history"]

TABLES = (READINGS, CORRECTIONS)
MARCH = ("2020-03-01", "2020-03-31")


@contextmanager
def pausing_before(
    platform: Platform, call: str, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Any]
) -> Iterator[Platform]:
    """Have another process that sleeps before its first call of one thing of its lakehouse, while something is done."""
    other = opened(platform.settings.home, **NO_RETENTION)
    made, slept = getattr(type(other.lakehouse), call), []

    def paused(self: Any, *arguments: Any, **named: Any) -> Any:
        if self is other.lakehouse and not slept:
            slept.append(call)
            meanwhile()
        return made(self, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(type(other.lakehouse), call, paused)
        yield other
    assert slept
    closed(other)


def corrections_of_the_run(platform: Platform) -> int:
    return len([row for row in rows(platform, CORRECTIONS) if "run" in row])


def commits(platform: Platform) -> int:
    """Return how many commits the main of the corrections table has."""
    return len(list(ancestors(platform.lakehouse.table(CORRECTIONS))))


def findings(platform: Platform) -> list[str]:
    """Return what is found once the doctor has told what nobody has been told of yet."""
    mend(platform)
    return [one.what for one in examine(platform)] + [one.what for one in verify(platform).everything]


def halfway(platform: Platform, action: str) -> None:
    """Have an action of `run` die between its two tables."""
    if action != PUBLISH:
        publish(platform, "run")
    if action == REINSTATE:
        rollback(platform, "run")
    with dying_at(platform, "publishing.halfway" if action == PUBLISH else "undoing.halfway"):
        (publish if action == PUBLISH else UNDOINGS[action])(platform, "run")


@pytest.mark.parametrize("action", [PUBLISH, ROLLBACK])
def test_one_that_slept_while_it_completed_anothers_change_commits_nothing_any_more(
    history: Platform, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    validated(history, "run", **BESIDE)
    halfway(history, action)
    validated(history, "next", scope=FEBRUARY)
    validated(history, "third", scope=FEBRUARY)

    def meanwhile() -> None:
        expire(history)
        publish(history, "third")  # it takes over, completes and records `run`
        rollback(history, "third")
        if action == PUBLISH:
            rollback(history, "run")
        else:
            reinstate(history, "run")

    with pausing_before(history, "exchange", monkeypatch, meanwhile) as other, pytest.raises(LeaseLost):
        publish(other, "next")
    assert state(history, "run") is (ROLLED_BACK if action == PUBLISH else PUBLISHED)
    staged = sum(file.rows for chunk in history.ledger.chunks("run") for file in chunk.derived)
    assert corrections_of_the_run(history) == (0 if action == PUBLISH else staged)
    assert findings(history) == []


@pytest.mark.parametrize("action", [PUBLISH, ROLLBACK, REINSTATE])
def test_two_that_complete_a_change_at_once_make_one_commit_of_it(
    history: Platform, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    validated(history, "run", **BESIDE)
    halfway(history, action)
    validated(history, "feb", scope=FEBRUARY)
    validated(history, "mar", scope=MARCH)
    before = commits(history)
    with pausing_before(history, "exchange", monkeypatch, lambda: publish(history, "feb")) as other:
        publish(other, "mar")
    assert commits(history) == before + 1
    assert findings(history) == []
    rollback(history, "mar")
    rollback(history, "feb")
    assert findings(history) == []
    (reinstate if action == ROLLBACK else rollback)(history, "run")
    assert findings(history) == []


def test_two_that_complete_the_change_of_a_versions_name_at_once_refuse_nothing(
    history: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(history, "run", mode="VERSIONED", version="v2")
    with dying_at(history, "undoing.halfway"):
        rollback(history, "run")
    validated(history, "feb", scope=FEBRUARY)
    validated(history, "mar", scope=MARCH)
    with pausing_before(history, "point", monkeypatch, lambda: publish(history, "feb")) as other:
        assert publish(other, "mar").new
    assert state(history, "run") is ROLLED_BACK
    assert findings(history) == []


def test_an_acceptance_is_told_as_what_it_was_although_it_was_taken_back_at_once(
    history: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(history, "run", mode="VERSIONED", **LATER)

    other = opened(history.settings.home, **NO_RETENTION)
    leases = type(history.ledger.leases(1.0))
    release, done = leases.release, []

    def released(self: Any, lease: Any) -> None:
        release(self, lease)
        if lease.action == "accept" and not done:
            done.append(1)

            def die(*_: Any, **__: Any) -> None:
                raise Died

            with monkeypatch.context() as patch, suppress(Died):
                patch.setattr(undoing, "tell_the_world", die)
                rollback(history, "run")
            bury(history)

    monkeypatch.setattr(leases, "release", released)
    assert accept(other, "run").new
    assert done
    assert state(history, "run") is ROLLED_BACK
    rollback(history, "run")  # which tells what it had not told
    assert mend(history)[1] == []
    assert verify(history).everything == []
    closed(other)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("by", ["the same command", "the doctor"])
def test_a_change_that_the_table_has_taken_back_since_the_ledgers_backup_is_not_recorded(
    history: Platform, tmp_path: Path, by: str, masked: bool
) -> None:
    ledger, backup = history.settings.home / "ledger.db", tmp_path / "backup.db"
    validated(history, "run")
    validated(history, "next", scope=FEBRUARY)
    reach = faults.reach

    def copied(point: str) -> None:
        if point == "publishing.committed":
            with sqlite3.connect(ledger) as source, sqlite3.connect(backup) as kept:
                source.backup(kept)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "reach", copied)
        publish(history, "run")
    assert faults.reach is reach
    rollback(history, "run")
    seen = readers(history)
    closed(history)
    for file in history.settings.home.glob("ledger.db*"):
        file.unlink()
    shutil.copy(backup, ledger)
    restored = opened(history.settings.home, **NO_RETENTION)
    bury(restored)
    if masked:  # another program says the number of the run's publication once more, after its rollback
        says(restored, ROLLBACK, "1")
    told = [(one.where, one.repair) for one in examine(restored) if "lacks what came before" in one.what]
    assert told == [("run", None)]
    with pytest.raises(PublicationRefused, match="the ledger is older than the table"):
        publish(restored, "run")
    if by == "the doctor":
        mend(restored)
        cancel(restored, "run", "grace", "its publication was taken back")
        assert state(restored, "run") is RunState.CANCELLED
    assert state(restored, "run") is not PUBLISHED
    assert restored.ledger.accepted(READINGS) == readers(restored) == seen
    closed(restored)


def says(platform: Platform, action: str, number: str) -> None:
    """Have another program commit an empty snapshot to the target in the words of the run."""
    said = {RUN_PROPERTY: "run", ACTION_PROPERTY: action, SEQUENCE_PROPERTY: number}
    commit_replacement(platform.lakehouse.table(READINGS), AlwaysTrue(), [], [], said)


@pytest.mark.parametrize("number", ["99", "x", "-1", "9" * 400])
def test_a_number_that_another_program_says_of_a_run_refuses_nothing(history: Platform, number: str) -> None:
    published(history, "run")
    rollback(history, "run")
    reinstate(history, "run")
    validated(history, "next", scope=FEBRUARY)
    says(history, ROLLBACK, number)
    assert not [one for one in examine(history) if "lacks what came before" in one.what]
    rollback(history, "run")
    assert state(history, "run") is ROLLED_BACK


def test_a_table_whose_metadata_is_damaged_holds_up_nobody_who_does_not_change_it(history: Platform) -> None:
    published(history, "earlier", scope=APRIL, **BESIDE)
    validated(history, "run")
    validated(history, "next", scope=FEBRUARY)
    with dying_at(history, "publishing.tagged"):
        publish(history, "run")
    metadata = Path(urlparse(history.lakehouse.table(CORRECTIONS).metadata_location).path)
    kept = metadata.read_bytes()
    metadata.write_text("{")
    assert publish(history, "next").new
    metadata.write_bytes(kept)
    rollback(history, "next")
    fences = [{ref for ref in history.lakehouse.refs(table) if ref.startswith("fence-")} for table in TABLES]
    assert fences[0] == fences[1] != set(), "whoever comes next fences where it could not be done"


def test_corrections_that_were_damaged_when_the_target_had_changed_already_hold_up_nobody(history: Platform) -> None:
    validated(history, "run", **BESIDE)
    halfway(history, PUBLISH)
    validated(history, "next", scope=FEBRUARY)
    staged = [file for chunk in history.ledger.chunks("run") for file in chunk.derived]
    damaged = Path(urlparse(staged[0].path).path)
    damaged.write_bytes(damaged.read_bytes()[:-50])
    publish(history, "next")
    assert state(history, "run") is PUBLISHED
    assert corrections_of_the_run(history) == sum(file.rows for file in staged[1:])
    assert [one.kind for one in mend(history)[1]] == ["corrections-missing"]
    rollback(history, "next")
    rollback(history, "run")
    assert corrections_of_the_run(history) == 0
    assert state(history, "run") is ROLLED_BACK
