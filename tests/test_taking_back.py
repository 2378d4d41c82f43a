"""What is taken back, and brought back: orders of rollbacks, reinstatements, acceptances and collections that once went wrong.

Each leaves readers, the ledger's holders and the evidence in agreement, and nobody's next publication in the way. The table
is the benchmarks' small one, without Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from backfill_assets import faults
from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from backfill_assets.operations import garbage
from backfill_assets.operations.doctor import examine, mend
from backfill_assets.publication.publisher import accept, publish, reinstate, rollback
from benchmarks import small_table
from benchmarks.interleavings import Died, _no_lease_ends, bury
from benchmarks.small_table import HISTORY, READINGS, SCOPE, closed, declared, initialise, opened, planned, rows, staged
from manifests.errors import PublicationDeferred, PublicationRefused
from manifests.lifecycle import PUBLISH, REINSTATE, ROLLBACK, RunState
from manifests.model import Conflict, OnConflict
from resources.lakehouse.lineage import withdrawn
from resources.ledger.facade import now

FEBRUARY, APRIL = ("2020-02-01", "2020-02-29"), ("2020-04-01", "2020-04-30")
MAY, TO_JUNE = ("2020-05-01", "2020-05-31"), ("2020-05-01", "2020-06-30")
NO_RETENTION = {"keep_snapshots_days": 0, "keep_superseded_days": 0, "keep_dead_runs_days": 0}
LATER = {"version": "v2", "acceptance": "LATER"}
PUBLISHED, ROLLED_BACK = RunState.PUBLISHED, RunState.ROLLED_BACK


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    """A table without rows, of an installation that keeps nothing longer than it must."""
    with declared():
        opened_here = opened(tmp_path / "home", **NO_RETENTION)
        initialise(opened_here)
        yield opened_here
        closed(opened_here)


@pytest.fixture
def history(platform: Platform) -> Platform:
    """The same with rows of four months, published by the run `base`."""
    validated(platform, "base-run", scope=HISTORY, computed_by="1")
    publish(platform, "base-run")
    return platform


def validated(
    platform: Platform,
    run_id: str,
    mode: str = "REPLACE_PARTITIONS",
    *,
    scope: tuple[str, str] = SCOPE,
    computed_by: str = "2",
    **options: Any,
) -> str:
    planned(platform, small_table.manifest(run_id, mode, scope, computed_by=computed_by, **options))
    assert staged(platform, run_id).state is RunState.VALIDATED
    return run_id


def published(platform: Platform, run_id: str, **options: Any) -> str:
    publish(platform, validated(platform, run_id, **options))
    return run_id


def readers(platform: Platform, ref: str = "main") -> dict[str, str]:
    """Return the run whose rows readers see of each month."""
    months: dict[str, set[str]] = defaultdict(set)
    for row in rows(platform, ref=ref):
        months[f"{row[1]:%Y-%m}"].add(row[3])
    return {month: ", ".join(sorted(runs)) for month, runs in months.items()}


def state(platform: Platform, run_id: str) -> RunState:
    return platform.ledger.run(run_id).state


def refs(platform: Platform) -> frozenset[str]:
    return platform.lakehouse.refs(READINGS)


def agree(platform: Platform) -> bool:
    """Whether readers see of each month what its holder wrote, and neither doctor nor verification finds anything."""
    shown = readers(platform)
    assert {month: run for month, run in platform.ledger.accepted(READINGS).items() if month in shown} == shown
    assert [f"{one.kind} {one.where}: {one.what}" for one in examine(platform)] == []
    assert [f"{one.run_id} {one.where}: {one.what}" for one in verify(platform).everything] == []
    return True


def collected(platform: Platform) -> None:
    """Collect, days later, what nothing needs."""
    at = now() + timedelta(days=3)
    garbage.collect(platform, garbage.find(platform, at=at), by="ada", at=at)


def expired_by_another_program(platform: Platform, snapshot_id: int) -> None:
    """Expire a snapshot as a program can that removes the names of it first."""
    table = platform.lakehouse.table(READINGS)
    for name in [name for name, ref in table.refs().items() if ref.snapshot_id == snapshot_id]:
        table.manage_snapshots().remove_tag(name).commit()
        table = platform.lakehouse.table(READINGS)
    table.maintenance.expire_snapshots().by_id(snapshot_id).commit()


@contextmanager
def dying_at(platform: Platform, point: str) -> Iterator[None]:
    """Let a process die at a point of `faults`; its lease is that of a process that is no more."""

    def die(reached: str) -> None:
        if reached == point:
            raise Died

    with _no_lease_ends(), mock.patch.object(faults, "reach", die), pytest.raises(Died):
        yield
    bury(platform)


# --- a version that is accepted after it was taken back and brought back ----------------------------------------------


def test_a_version_that_was_brought_back_before_it_was_accepted_is_taken_back_from_main(history: Platform) -> None:
    before = rows(history)
    validated(history, "later", "VERSIONED", **LATER)
    for act in (publish, rollback, reinstate, accept):
        act(history, "later")
    after = rows(history)
    assert readers(history)["2020-02"] == "later"
    rollback(history, "later")
    assert (rows(history), state(history, "later")) == (before, ROLLED_BACK)
    assert agree(history)
    reinstate(history, "later")
    assert (rows(history), state(history, "later")) == (after, PUBLISHED)
    assert agree(history)


def test_a_rollback_of_it_that_dies_after_its_commit_is_completed_by_the_next_publisher(history: Platform) -> None:
    before = rows(history)
    validated(history, "later", "VERSIONED", **LATER)
    validated(history, "elsewhere", scope=MAY)
    for act in (publish, rollback, reinstate, accept):
        act(history, "later")
    with dying_at(history, "undoing.halfway"):
        rollback(history, "later")
    assert rows(history) == before
    publish(history, "elsewhere")
    assert state(history, "later") is ROLLED_BACK
    assert "v2" not in refs(history)
    mend(history)  # the other run has told nobody of it
    assert agree(history)


def test_what_an_earlier_version_took_back_by_name_alone_is_brought_back_and_then_taken_back(history: Platform) -> None:
    """It renamed a version that main showed: the ledger has it as rolled back, with the snapshot that was published."""
    before = rows(history)
    validated(history, "later", "VERSIONED", **LATER)
    for act in (publish, rollback, reinstate, accept):
        act(history, "later")
    ledger, snapshot = history.ledger, history.lakehouse.snapshot_of(READINGS, "v2")
    assert snapshot is not None
    entry = ledger.open_publication("later", ROLLBACK, snapshot, ledger.publications("later")[0].evidence_root, "ada")
    history.lakehouse.point(READINGS, expected={"v2": snapshot}, tags={withdrawn("v2"): snapshot}, removed=["v2"])
    ledger.undo("later", entry, snapshot_id=snapshot, added=0, removed=0, actor="ada")
    reinstate(history, "later")
    assert (readers(history)["2020-02"], state(history, "later")) == ("later", PUBLISHED)
    rollback(history, "later")
    assert (rows(history), state(history, "later")) == (before, ROLLED_BACK)


def test_a_version_whose_rollback_has_left_mains_history_is_not_brought_back_by_its_name(history: Platform) -> None:
    validated(history, "later", "VERSIONED", **LATER)
    for act in (publish, accept, rollback):
        act(history, "later")
    published(history, "next", scope=APRIL)
    expired_by_another_program(history, history.ledger.publications("later")[-1].snapshot_id)
    with pytest.raises(PublicationRefused, match="the rollback of 'later' is not in the history"):
        reinstate(history, "later")
    assert state(history, "later") is ROLLED_BACK
    assert withdrawn("v2") in refs(history)


# --- two versions of one name -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("acceptance", ["LATER", "ON_PUBLICATION"])
def test_a_name_that_a_version_has_had_since_the_plan_is_not_given_again(history: Platform, acceptance: str) -> None:
    validated(history, "one", "VERSIONED", version="v2")
    validated(history, "two", "VERSIONED", version="v2", acceptance=acceptance, computed_by="1")
    publish(history, "one")
    rollback(history, "one")
    with pytest.raises(PublicationRefused, match="has a version v2 already: withdrawn-v2") as refused:
        publish(history, "two")
    assert "next name" in str(refused.value)
    assert state(history, "two") is RunState.REJECTED
    reinstate(history, "one")
    assert readers(history, "v2")["2020-02"] == "one"
    assert agree(history)


def both_named_alike(platform: Platform) -> None:
    """Publish two versions of one name, the second once the first was rolled back, as an earlier version allowed."""
    validated(platform, "one", "VERSIONED", version="v2")
    validated(platform, "two", "VERSIONED", computed_by="1", **LATER)
    validated(platform, "elsewhere", scope=MAY)
    publish(platform, "one")
    rollback(platform, "one")
    point = platform.lakehouse.point

    def unlike(name: str, *, expected: dict[str, Any], **changes: Any) -> None:
        point(name, expected={ref: one for ref, one in expected.items() if ref != withdrawn("v2")}, **changes)

    snapshot_of = platform.lakehouse.snapshot_of

    def hidden(name: str, ref: str = "main") -> int | None:
        return None if ref == withdrawn("v2") else snapshot_of(name, ref)

    with (
        mock.patch.object(platform.lakehouse, "point", unlike),
        mock.patch.object(platform.lakehouse, "snapshot_of", hidden),
    ):
        publish(platform, "two")


def test_a_version_is_not_brought_back_under_the_name_of_another(history: Platform) -> None:
    both_named_alike(history)
    before = rows(history)
    with pytest.raises(PublicationRefused, match="v2 is the name of another version") as refused:
        reinstate(history, "one")
    assert "restate the scope" in str(refused.value)
    assert rows(history) == before
    publish(history, "elsewhere")  # nobody waits for it
    with pytest.raises(PublicationRefused, match="withdrawn-v2 is the name of another version"):
        rollback(history, "two")
    assert readers(history, "v2")["2020-02"] == "two"
    assert agree(history)


def test_a_reinstatement_that_landed_and_finds_its_name_taken_is_recorded_without_it(history: Platform) -> None:
    """An earlier version committed to main first, and could never record it: every later action was refused."""
    both_named_alike(history)
    with (
        dying_at(history, "undoing.halfway"),
        mock.patch("backfill_assets.publication.move_references.NameVersion.require_undoable"),
    ):
        reinstate(history, "one")
    publish(history, "elsewhere")
    assert (state(history, "one"), readers(history)["2020-02"]) == (PUBLISHED, "one")
    assert readers(history, "v2")["2020-02"] == "two"
    rollback(history, "one")
    assert readers(history, "v2")["2020-02"] == "two"  # which is not the one that was rolled back


# --- who holds a chunk ------------------------------------------------------------------------------------------------


@pytest.fixture
def without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first version of the transform compute no row of May."""
    rows_of = small_table.rows_of

    def none_of_may(version: str, start: date, end: date) -> list[dict[str, Any]]:
        return [] if (version, start.month) == ("1", 5) else rows_of(version, start, end)

    monkeypatch.setattr(small_table, "rows_of", none_of_may)


@pytest.mark.usefixtures("without_rows")
def test_a_chunk_goes_back_to_who_held_it_before_and_to_nobody_where_that_was_nobody(history: Platform) -> None:
    published(history, "empty", scope=TO_JUNE, computed_by="1")
    published(history, "above", scope=MAY)
    for act, run_id in ((rollback, "above"), (rollback, "empty"), (reinstate, "above"), (rollback, "above")):
        act(history, run_id)
    assert "2020-05" not in history.ledger.accepted(READINGS)
    published(history, "next", scope=MAY)
    assert (state(history, "next"), readers(history)["2020-05"]) == (PUBLISHED, "next")
    assert agree(history)


def test_a_chunk_goes_back_to_who_held_it_although_it_went_back_to_the_run_itself_since(history: Platform) -> None:
    published(history, "first", scope=FEBRUARY)
    published(history, "second", scope=FEBRUARY, computed_by="1")
    rollback(history, "second")
    rollback(history, "first")
    assert history.ledger.accepted(READINGS)["2020-02"] == "base-run"
    assert agree(history)


@pytest.mark.parametrize("acceptance", ["ON_PUBLICATION", "LATER"])
def test_a_publication_that_landed_is_recorded_whoever_held_its_chunks(history: Platform, acceptance: str) -> None:
    """Earlier versions could name a run as holder that is rolled back; it is not moved on, and holds nothing again."""
    published(history, "first", scope=FEBRUARY)
    rollback(history, "first")
    with history.ledger.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE accepted_versions SET run_id = 'first' WHERE chunk = '2020-02' AND ended_at IS NULL"
        )
    published(history, "next", mode="VERSIONED", version="v2", acceptance=acceptance)
    if acceptance == "LATER":
        accept(history, "next")
    assert history.ledger.accepted(READINGS)["2020-02"] == "next"
    assert (state(history, "next"), state(history, "first")) == (PUBLISHED, ROLLED_BACK)
    rollback(history, "next")
    assert "2020-02" not in history.ledger.accepted(READINGS)
    assert state(history, "first") is ROLLED_BACK


# --- bases ------------------------------------------------------------------------------------------------------------


def planned_anew(platform: Platform) -> int:
    """Publish a run that was planned while the table had no rows, and anew on those of `other`; return their snapshot."""
    contract = small_table.manifest("anew", "REPLACE_PARTITIONS", MAY)
    planned(platform, contract.model_copy(update={"conflict": Conflict(onConflict=OnConflict.REPLAN)}))
    staged(platform, "anew")
    published(platform, "other", scope=TO_JUNE, computed_by="1")
    with pytest.raises(PublicationDeferred):
        publish(platform, "anew")
    staged(platform, "anew")
    publish(platform, "anew")
    base = platform.lakehouse.table(READINGS).current_snapshot().parent_snapshot_id
    assert base is not None
    return base


def test_the_base_of_a_chunk_that_was_planned_anew_is_kept_from_expiry_by_a_tag_of_its_own(platform: Platform) -> None:
    base = planned_anew(platform)
    assert f"before-anew@{base}" in refs(platform)
    with pytest.raises(ValueError, match="protected"):
        platform.lakehouse.table(READINGS).maintenance.expire_snapshots().by_id(base).commit()
    rollback(platform, "anew")
    assert readers(platform) == {"2020-05": "other", "2020-06": "other"}
    assert agree(platform)


def test_a_run_that_was_planned_anew_is_not_taken_back_to_no_rows_where_its_base_has_expired(
    platform: Platform,
) -> None:
    base = planned_anew(platform)
    expired_by_another_program(platform, base)
    with pytest.raises(PublicationRefused, match="the snapshot before the publish of 'anew' has expired"):
        rollback(platform, "anew")
    assert readers(platform) == {"2020-05": "anew", "2020-06": "other"}


def test_the_tags_of_bases_go_with_the_run_that_they_are_of(platform: Platform) -> None:
    base = planned_anew(platform)
    platform.lakehouse.table(READINGS).manage_snapshots().remove_tag(f"before-anew@{base}").commit()
    repaired, left = mend(platform)
    assert ([one.done for one in repaired], left) == ([f"created tag before-anew@{base}"], [])
    rollback(platform, "anew")
    collected(platform)
    assert not [name for name in refs(platform) if name.startswith("before-anew")]
    assert agree(platform)


# --- collections ------------------------------------------------------------------------------------------------------


def test_a_version_keeps_its_branch_and_base_while_it_has_a_name(history: Platform) -> None:
    validated(history, "later", "VERSIONED", **LATER)
    for act in (publish, rollback):
        act(history, "later")
    collected(history)
    assert {withdrawn("v2"), "candidate-later"} <= refs(history)
    before = rows(history)
    for act in (reinstate, accept, rollback):
        act(history, "later")
    assert rows(history) == before
    assert agree(history)


@pytest.mark.parametrize("ended_by", ["the same command", "another run", "the doctor"])
@pytest.mark.parametrize("action", [ROLLBACK, REINSTATE])
def test_a_change_of_a_versions_name_that_was_not_recorded_is_known_by_the_name(
    history: Platform, action: str, ended_by: str
) -> None:
    """Also where an earlier version's collection has taken the candidate's branch."""
    validated(history, "later", "VERSIONED", **LATER)
    validated(history, "elsewhere", scope=MAY)
    for act in (publish, rollback, reinstate)[: 1 if action == ROLLBACK else 2]:
        act(history, "later")
    snapshot = history.ledger.publications("later")[0].snapshot_id
    history.lakehouse.table(READINGS).manage_snapshots().remove_branch("candidate-later").commit()
    act = rollback if action == ROLLBACK else reinstate
    with dying_at(history, "undoing.committed"):
        act(history, "later")
    assert [one.kind for one in examine(history)] == ["publication-unrecorded"]
    if ended_by == "the same command":
        act(history, "later")
    elif ended_by == "another run":
        publish(history, "elsewhere")
    else:
        assert mend(history)[1] == []
    done = [one for one in history.ledger.publications("later") if one.state == "COMMITTED"]
    assert (done[-1].action, {one.snapshot_id for one in done}) == (action, {snapshot})
    assert state(history, "later") is (ROLLED_BACK if action == ROLLBACK else PUBLISHED)
    mend(history)  # the other run has told nobody of it
    assert agree(history)


def test_a_version_that_has_lost_its_name_is_not_renamed(history: Platform) -> None:
    publish(history, validated(history, "later", "VERSIONED", **LATER))
    history.lakehouse.table(READINGS).manage_snapshots().remove_tag("v2").commit()
    with pytest.raises(PublicationRefused, match=r"neither v2 nor withdrawn-v2 of .* names the snapshot of 'later'"):
        rollback(history, "later")
    assert state(history, "later") is PUBLISHED
    assert {one.snapshot_id for one in history.ledger.publications("later")} - {None} != {0}


def test_a_run_that_is_published_again_has_its_base_kept_from_expiry_again(history: Platform) -> None:
    published(history, "first", scope=FEBRUARY, computed_by="1")
    published(history, "elsewhere", scope=APRIL)
    published(history, "second", scope=FEBRUARY)
    collected(history)
    assert "before-first" not in refs(history)
    rollback(history, "second")
    assert (state(history, "first"), "before-first" in refs(history)) == (PUBLISHED, True)
    collected(history)
    assert "before-second" not in refs(history)
    assert agree(history)
    rollback(history, "first")
    assert agree(history)


def test_a_rollback_is_done_and_recorded_whether_or_not_a_base_can_be_tagged(history: Platform) -> None:
    published(history, "first", scope=FEBRUARY, computed_by="1")
    published(history, "elsewhere", scope=APRIL)
    published(history, "second", scope=FEBRUARY)
    collected(history)
    commit = SqlCatalog.commit_table

    def no_tags(self: SqlCatalog, table: Any, requirements: Any, updates: Any) -> Any:
        if any(getattr(one, "ref_name", "").startswith("before-") for one in updates):
            raise OSError("the catalog cannot be reached")
        return commit(self, table, requirements, updates)

    with mock.patch.object(SqlCatalog, "commit_table", no_tags):
        rollback(history, "second")
    assert (state(history, "second"), state(history, "first")) == (ROLLED_BACK, PUBLISHED)
    assert [one.kind for one in examine(history)] == ["base-tag-missing"]


def collected_while_superseded(platform: Platform) -> str:
    """Have the snapshot of a run collected while it is superseded, and the run that superseded it rolled back."""
    published(platform, "first", scope=FEBRUARY, computed_by="1")
    published(platform, "april", scope=APRIL)
    published(platform, "april-again", scope=APRIL, computed_by="1")
    published(platform, "second", scope=FEBRUARY)
    collected(platform)
    rollback(platform, "second")
    assert state(platform, "first") is PUBLISHED
    return "first"


def test_a_publication_that_policy_has_collected_is_said_to_be_collected(history: Platform) -> None:
    run_id = collected_while_superseded(history)
    with pytest.raises(PublicationRefused, match=f"the {PUBLISH} of '{run_id}' is not in the history") as refused:
        rollback(history, run_id)
    assert "restate the scope" in str(refused.value)
    (found,) = [one for one in examine(history) if one.kind == "publication-not-in-history"]
    assert found.where == run_id
    assert "a collection of garbage has removed it" in found.what
    assert "somebody" not in found.what + found.fix
    assert verify(history).everything == []


def test_a_publication_that_no_collection_has_removed_is_said_to_be_somebodys_doing(history: Platform) -> None:
    published(history, "first", scope=FEBRUARY)
    published(history, "april", scope=APRIL)
    expired_by_another_program(history, history.ledger.publications("first")[0].snapshot_id)
    (found,) = [one for one in examine(history) if one.where == "first"]
    assert (found.kind, "somebody moved or expired" in found.fix) == ("publication-not-in-history", True)
