"""What other programs write and point at while a run is published, accepted, taken back or brought back.

Nothing of it is taken for a decision of somebody, or for the run's own doing. The table is the benchmarks' small one, without
Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyiceberg.expressions import AlwaysTrue
from test_own_changes import is_shown, said_of, written_by_another
from test_taking_back import (
    APRIL,
    BESIDE,
    FEBRUARY,
    LATER,
    MAY,
    NO_RETENTION,
    PUBLISHED,
    ROLLED_BACK,
    agree,
    compacted,
    dying_at,
    entries,
    expired_by_another_program,
    kinds,
    published,
    readers,
    shown_by_another_program,
    state,
    validated,
)

from backfill_assets import faults
from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks.small_table import CORRECTIONS, HISTORY, READINGS, closed, declared, initialise, opened, rows
from manifests.errors import PublicationRefused
from manifests.lifecycle import ACCEPT, PUBLISH, REINSTATE, ROLLBACK, RunState
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.lineage import withdrawn


@pytest.fixture
def history(tmp_path: Path) -> Iterator[Platform]:
    """A table with rows of four months, published by the run `base-run`."""
    with declared():
        platform = opened(tmp_path / "home", **NO_RETENTION)
        initialise(platform)
        published(platform, "base-run", scope=HISTORY, computed_by="1")
        yield platform
        closed(platform)


def issued(platform: Platform) -> Counter[tuple[Any, ...]]:
    """Return the corrections that readers see, each with how often they see it."""
    return Counter(rows(platform, CORRECTIONS))


# --- corrections that another program has written into files of its own -----------------------------------------------


def rolled_back_beside_a_compaction(platform: Platform) -> None:
    """Roll `run` back while another program compacts the corrections: they stay, in a file of its own."""
    published(platform, "run", **BESIDE)
    real = faults.reach
    with mock.patch.object(
        faults, "reach", lambda point: compacted(platform) if point == "undoing.halfway" else real(point)
    ):
        rollback(platform, "run")
    assert kinds(platform) == [("corrections-left", "run")]


def test_corrections_that_are_there_still_are_not_brought_back_a_second_time(history: Platform) -> None:
    rolled_back_beside_a_compaction(history)
    before, left = rows(history), issued(history)
    with pytest.raises(
        PublicationRefused, match=rf"{left.total()} correction\(s\) of 'run' are in {CORRECTIONS}"
    ) as refused:
        reinstate(history, "run")
    assert "restate the scope with a new run" in str(refused.value)
    assert (state(history, "run"), rows(history), issued(history)) == (ROLLED_BACK, before, left)
    assert kinds(history) == [("corrections-left", "run")]
    assert [one for one in entries(history, "run") if one[1] == "INTENT"] == []
    without = history.lakehouse.table(CORRECTIONS)  # the way out
    commit_replacement(without, AlwaysTrue(), [task.file for task in without.scan().plan_files()], [], {})
    published(history, "again", **BESIDE)
    assert max(issued(history).values()) == 1
    assert readers(history)["2020-02"] == "again"


def test_corrections_that_cannot_be_read_are_not_taken_for_none(history: Platform) -> None:
    rolled_back_beside_a_compaction(history)
    before = rows(history)
    for task in history.lakehouse.table(CORRECTIONS).scan().plan_files():
        Path(task.file.file_path.removeprefix("file://")).unlink()
    with pytest.raises(PublicationRefused, match=f"corrections of 'run' are in {CORRECTIONS} cannot be told"):
        reinstate(history, "run")
    assert (state(history, "run"), rows(history)) == (ROLLED_BACK, before)


@pytest.mark.parametrize("ended_by", ["the same command", "another run", "the doctor"])
@pytest.mark.parametrize("gone", ["all", "one"])
@pytest.mark.parametrize("action", [PUBLISH, REINSTATE])
def test_a_change_whose_corrections_are_gone_halfway_is_brought_to_an_end(
    history: Platform, action: str, gone: str, ended_by: str
) -> None:
    """Nothing current references them then, and whatever expires snapshots, or looks for orphans, may remove them."""
    before = rows(history)
    validated(history, "run", **BESIDE)
    validated(history, "elsewhere", scope=FEBRUARY, computed_by="1")
    act: Callable[..., Any] = publish
    if action == REINSTATE:
        publish(history, "run")
        snapshot = history.lakehouse.snapshot_id(CORRECTIONS)
        assert snapshot is not None
        rollback(history, "run")
        act = reinstate
    with dying_at(history, "undoing.halfway" if action == REINSTATE else "publishing.halfway"):
        act(history, "run")
    if action == REINSTATE:
        history.lakehouse.table(CORRECTIONS).maintenance.expire_snapshots().by_id(snapshot).commit()
    files = [file.path for chunk in history.ledger.chunks("run") for file in chunk.derived]
    removed = files if gone == "all" else files[:1]
    for path in removed:
        Path(path.removeprefix("file://")).unlink()
    if ended_by == "the same command":
        act(history, "run")
    elif ended_by == "another run":
        with pytest.raises(PublicationRefused, match="no longer holds"):
            publish(history, "elsewhere")  # it was planned on what is changed: nothing else stands against it
    mend(history)
    assert (state(history, "run"), readers(history)["2020-02"]) == (PUBLISHED, "run")
    listed = {task.file.file_path for task in history.lakehouse.table(CORRECTIONS).scan().plan_files()}
    assert listed == set(files) - set(removed)
    assert [one for one in kinds(history) if one[0] != "data-loss"] == [("corrections-missing", "run")]
    rollback(history, "run")  # the way out
    assert (rows(history), state(history, "run")) == (before, ROLLED_BACK)
    published(history, "again", scope=FEBRUARY)
    assert kinds(history) == []


# --- a version that nobody has accepted -------------------------------------------------------------------------------


def taken_back_from_another_program(platform: Platform) -> list[tuple[Any, ...]]:
    """Publish a version, have another program point main at it, and take it back; return the rows that readers get."""
    before = rows(platform)
    published(platform, "later", mode="VERSIONED", **LATER)
    shown_by_another_program(platform, "v2")
    rollback(platform, "later")
    assert (rows(platform), state(platform, "later")) == (before, ROLLED_BACK)
    return before


def test_a_version_that_nobody_has_accepted_is_brought_back_by_its_name_alone(history: Platform) -> None:
    before = taken_back_from_another_program(history)
    reinstate(history, "later")
    assert (rows(history), state(history, "later")) == (before, PUBLISHED)
    assert readers(history, "v2")["2020-02"] == "later"
    assert agree(history)
    with pytest.raises(PublicationRefused, match="has moved") as refused:  # main is not what it was made on any more
        accept(history, "later")
    assert "plan the change again" in str(refused.value)
    assert (rows(history), agree(history)) == (before, True)
    rollback(history, "later")
    assert (rows(history), withdrawn("v2") in history.lakehouse.refs(READINGS)) == (before, True)
    assert agree(history)
    published(history, "next", scope=FEBRUARY)
    assert agree(history)


@pytest.mark.parametrize("point", ["undoing.halfway", "undoing.committed"])
@pytest.mark.parametrize("action", [ROLLBACK, REINSTATE])
@pytest.mark.parametrize("ended_by", ["the same command", "another run", "the doctor"])
def test_what_takes_it_back_and_brings_it_back_is_brought_to_an_end(
    history: Platform, ended_by: str, action: str, point: str
) -> None:
    before = rows(history)
    published(history, "later", mode="VERSIONED", **LATER)
    validated(history, "elsewhere", scope=MAY)
    shown_by_another_program(history, "v2")
    act: Callable[..., Any] = rollback
    if action == REINSTATE:
        rollback(history, "later")
        act = reinstate
    with dying_at(history, point):
        act(history, "later")
    if ended_by == "the same command":
        act(history, "later")
    elif ended_by == "another run":
        publish(history, "elsewhere")
        act(history, "later")
    else:
        mend(history)
        act(history, "later")
    assert state(history, "later") is (ROLLED_BACK if action == ROLLBACK else PUBLISHED)
    assert [row for row in rows(history) if row in before] == before
    assert "later" not in readers(history).values()
    done = [one for one in history.ledger.publications("later") if one.state == "COMMITTED"]
    assert [one.action for one in done] == [PUBLISH, ROLLBACK, REINSTATE][: len(done)]
    assert (done[0].snapshot_id == done[1].snapshot_id) is False
    mend(history)
    assert agree(history)


def test_a_version_that_another_program_shows_once_more_is_taken_back_once_more(history: Platform) -> None:
    before = taken_back_from_another_program(history)
    reinstate(history, "later")
    shown_by_another_program(history, "v2")
    rollback(history, "later")
    assert (rows(history), state(history, "later")) == (before, ROLLED_BACK)
    assert "later" not in readers(history).values()


def test_a_version_that_another_program_shows_anew_after_its_rollback_can_be_accepted(history: Platform) -> None:
    taken_back_from_another_program(history)
    reinstate(history, "later")
    shown_by_another_program(history, "v2")
    accept(history, "later")
    assert readers(history)["2020-02"] == history.ledger.accepted(READINGS)["2020-02"] == "later"


# --- a candidate that another program has written to, and shown -------------------------------------------------------


def forged_and_shown(platform: Platform, mode: str, **options: Any) -> int:
    """Have a publisher die before its commit, and another program add to its candidate, in its words, and show that.

    Returns the snapshot that the other one has made.
    """
    validated(platform, "run", mode, **options)
    with dying_at(platform, "publishing.prepared"):
        publish(platform, "run")
    written_by_another(
        platform, said_of(platform.lakehouse.table(READINGS).snapshot_by_name("candidate-run")), "candidate-run"
    )
    shown_by_another_program(platform, "candidate-run")
    forged = platform.lakehouse.snapshot_id(READINGS)
    assert forged is not None
    return forged


@pytest.mark.parametrize("ended_by", ["the same command", "another run", "the doctor"])
def test_what_another_program_has_written_is_not_recorded_as_the_publication(history: Platform, ended_by: str) -> None:
    before = rows(history)
    validated(history, "elsewhere", scope=MAY)
    forged = forged_and_shown(history, "SHADOW_SWAP")
    own = history.lakehouse.parent_of(READINGS, forged)
    assert is_shown(history)
    if ended_by == "the same command":
        publish(history, "run")
    elif ended_by == "another run":
        publish(history, "elsewhere")
        mend(history)  # the other run has told nobody of it
    else:
        mend(history)
    (done,) = [one for one in history.ledger.publications("run") if one.has_landed]
    assert (done.snapshot_id, state(history, "run")) == (own, PUBLISHED)
    told = [str(one.where) + str(one.what) for one in verify(history).everything]
    assert [one for one in told if str(forged) in one]
    assert [one for one in told if str(own) in one and str(forged) not in one] == []
    with pytest.raises(PublicationRefused, match="somebody else wrote it"):
        rollback(history, "run")  # rows of others do not go with it
    if ended_by != "another run":
        assert own is not None  # the way out: what the other one has written is taken back
        history.lakehouse.point(READINGS, expected={}, branches={"main": own})
        rollback(history, "run")
        assert (rows(history), state(history, "run")) == (before, ROLLED_BACK)


def test_rows_that_another_program_writes_in_a_runs_words_are_not_its_publication(history: Platform) -> None:
    """A publisher dies before its commit; another program adds a file in the words that the run's commit would have had."""
    before = rows(history)
    validated(history, "run")
    with dying_at(history, "publishing.prepared"):
        publish(history, "run")
    entry, record = history.ledger.publications("run")[-1], history.ledger.run("run")
    said = {
        "backfill.run-id": "run",
        "backfill.action": "publish",
        "backfill.sequence": "1",
        "backfill.plan-hash": record.plan_hash,
        "backfill.evidence-root": entry.evidence_root,
    }
    written_by_another(history, said)
    shown = rows(history)
    mend(history)
    assert state(history, "run") is RunState.VALIDATED
    with pytest.raises(PublicationRefused):
        publish(history, "run")
    assert (state(history, "run"), rows(history)) == (RunState.REJECTED, shown)
    assert [one for one in history.ledger.publications("run") if one.has_landed or one.is_intent] == []
    assert len(shown) == len(before) + 1


# --- an acceptance on a base that has expired -------------------------------------------------------------------------


def test_an_acceptance_whose_base_has_expired_is_refused_by_name_and_leaves_no_intent(history: Platform) -> None:
    published(history, "later", mode="VERSIONED", scope=FEBRUARY, **LATER)
    base = history.ledger.run("later").plan.base_snapshot_id
    assert base is not None
    published(history, "elsewhere", scope=APRIL)
    expired_by_another_program(history, base)
    with pytest.raises(PublicationRefused, match=f"snapshot {base}.* has expired") as refused:
        accept(history, "later")
    assert "new run id" in str(refused.value)
    assert [one for one in entries(history, "later") if one[1] == "INTENT"] == []
    assert state(history, "later") is PUBLISHED
    assert [one for one in examine(history) if one.kind.startswith("intent")] == []
    rollback(history, "later")
    assert (state(history, "later"), readers(history)["2020-02"]) == (ROLLED_BACK, "base-run")


def test_an_acceptance_whose_base_expires_while_it_looks_leaves_no_intent(history: Platform) -> None:
    published(history, "later", mode="VERSIONED", scope=FEBRUARY, **LATER)
    base = history.ledger.run("later").plan.base_snapshot_id
    assert base is not None
    published(history, "elsewhere", scope=APRIL)
    real = history.ledger.open_publication

    def opened_late(*arguments: Any, **named: Any) -> int:
        entry = real(*arguments, **named)
        expired_by_another_program(history, base)
        return entry

    with (
        mock.patch.object(history.ledger, "open_publication", opened_late),
        pytest.raises(PublicationRefused, match="has expired"),
    ):
        accept(history, "later")
    assert [one for one in entries(history, "later") if one[0] == ACCEPT] == [(ACCEPT, "REFUSED")]


def test_an_acceptance_that_landed_is_recorded_although_its_base_has_expired_since(history: Platform) -> None:
    published(history, "later", mode="VERSIONED", scope=FEBRUARY, **LATER)
    base = history.ledger.run("later").plan.base_snapshot_id
    assert base is not None
    with dying_at(history, "accepting.committed"):
        accept(history, "later")
    expired_by_another_program(history, base)
    accept(history, "later")
    assert (entries(history, "later")[-1], readers(history)["2020-02"]) == ((ACCEPT, "COMMITTED"), "later")
