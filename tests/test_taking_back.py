"""What is taken back, and brought back: orders of rollbacks, reinstatements, acceptances and collections that once went wrong.

Each leaves readers, the ledger's holders and the evidence in agreement, and nobody's next publication in the way. The table
is the benchmarks' small one, without Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from functools import partial
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table.update import SetSnapshotRefUpdate
from small_worlds import copy_of
from support import put_in_force

from backfill_assets import decisions, faults
from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from backfill_assets.operations import garbage
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication import undoing
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.ending import cancel
from backfill_assets.publication.publisher import prepare, publish
from backfill_assets.publication.requirements import waits_for
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks import small_table
from benchmarks.small_table import (
    CORRECTIONS,
    HISTORY,
    READINGS,
    SCOPE,
    closed,
    declared,
    initialise,
    planned,
    rows,
    staged,
)
from benchmarks.stopped_actors import Died, bury, expire, no_lease_ends
from manifests.errors import PublicationDeferred, PublicationRefused, StateMoved
from manifests.lifecycle import ACCEPT, PUBLISH, REINSTATE, ROLLBACK, RunState
from manifests.model import Conflict, OnConflict
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.lineage import withdrawn
from resources.ledger.accepted_versions import take
from resources.ledger.leases import Leases
from resources.ledger.tables import accepted_versions
from resources.ledger.transactions import system_clock as now

pytestmark = pytest.mark.matrix

FEBRUARY, APRIL = ("2020-02-01", "2020-02-29"), ("2020-04-01", "2020-04-30")
MAY, TO_JUNE = ("2020-05-01", "2020-05-31"), ("2020-05-01", "2020-06-30")
NO_RETENTION = {"keep_snapshots_days": 0, "keep_superseded_days": 0, "keep_dead_runs_days": 0}
LATER = {"version": "v2", "acceptance": "LATER"}
PUBLISHED, ROLLED_BACK = RunState.PUBLISHED, RunState.ROLLED_BACK


@pytest.fixture
def platform() -> Iterator[Platform]:
    """A table without rows, of an installation that keeps nothing longer than it must."""
    with declared():
        opened_here = copy_of(initialise, **NO_RETENTION)
        yield opened_here
        closed(opened_here)


@pytest.fixture
def history() -> Iterator[Platform]:
    """The same with rows of four months, published by the run `base-run`."""
    with declared():
        opened_here = copy_of(with_history, **NO_RETENTION)
        yield opened_here
        closed(opened_here)


def with_history(platform: Platform) -> None:
    """Make the table, and have the run `base-run` publish four months of it."""
    initialise(platform)
    published(platform, "base-run", scope=HISTORY, computed_by="1")


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


def expired_by_another_program(platform: Platform, snapshot_id: int, name: str = READINGS) -> None:
    """Expire a snapshot as a program can that removes the names of it first."""
    table = platform.lakehouse.table(name)
    for ref in [ref for ref, one in table.refs().items() if one.snapshot_id == snapshot_id]:
        table.manage_snapshots().remove_tag(ref).commit()
        table = platform.lakehouse.table(name)
    table.maintenance.expire_snapshots().by_id(snapshot_id).commit()


@contextmanager
def dying_at(platform: Platform, point: str) -> Iterator[None]:
    """Let a process die at a point of `faults`; its lease is that of a process that is no more."""

    def die(reached: str) -> None:
        if reached == point:
            raise Died

    with no_lease_ends(), mock.patch.object(faults, "reach", die), pytest.raises(Died):
        yield
    bury(platform)


# --- what has to be brought back, or taken back, first ------------------------------------------------------------------


def test_a_run_whose_base_was_rolled_back_too_is_brought_back_after_it(history: Platform) -> None:
    shown = {run_id: readers(history) for run_id in ("below", "above") if published(history, run_id)}
    for run_id in ("above", "below"):
        rollback(history, run_id)
    with pytest.raises(PublicationRefused) as found:
        reinstate(history, "above")
    (why,) = found.value.problems
    assert "held by base-run again, since the rows on which it was published were rolled back, too" in why.what
    assert why.fix == "reinstate below first, or restate the scope with a new run"
    for run_id in ("below", "above"):
        reinstate(history, run_id)
        assert readers(history) == shown[run_id]
    assert agree(history)


def test_a_run_whose_chunks_a_later_one_holds_is_brought_back_after_that_one_is_taken_back(history: Platform) -> None:
    published(history, "one")
    rollback(history, "one")
    published(history, "two")
    with pytest.raises(PublicationRefused) as found:
        reinstate(history, "one")
    (why,) = found.value.problems
    assert "held by later run(s) two" in why.what
    assert why.fix == "roll back two first, or restate the scope with a new run"
    rollback(history, "two")
    reinstate(history, "one")
    assert agree(history)


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


# --- what another program shows ---------------------------------------------------------------------------------------


def shown_by_another_program(platform: Platform, ref: str) -> None:
    """Point main at what a ref names, as any program can that may write to the table."""
    snapshot = platform.lakehouse.snapshot_of(READINGS, ref)
    assert snapshot is not None
    platform.lakehouse.point(READINGS, expected={}, branches={"main": snapshot})


def no_decision(platform: Platform, run_id: str) -> bool:
    """Whether nothing but what another program has shown speaks for a run, and nothing of it is on record."""
    told = [(one.kind, one.where, one.repair) for one in examine(platform) if one.kind == "publication-unrecorded"]
    assert told == [("publication-unrecorded", run_id, None)]
    assert mend(platform)[0] == []
    assert platform.ledger.accepted(READINGS)["2020-02"] == "base-run"
    assert [one for one in verify(platform).everything if "readers get other files" in str(one.what)]
    return True


@pytest.mark.parametrize("held_by", ["a stop", "the publishers", "nothing"])
def test_a_candidate_that_another_program_shows_is_not_published_by_that(history: Platform, held_by: str) -> None:
    put_in_force(history, {"name": "t", "rules": [{"publishers": ["olga"]}] if held_by == "the publishers" else []})
    validated(history, "run", "SHADOW_SWAP")
    prepare(history, "run")
    if held_by == "a stop":
        history.ledger.stops.stop("run", by="ada", through="test", reason="wrong numbers")
    before = history.lakehouse.snapshot_id(READINGS)
    shown_by_another_program(history, "candidate-run")
    assert no_decision(history, "run")
    assert "another program" in str(waits_for(history, history.ledger.run("run")))  # so that no sensor tries
    with pytest.raises(
        PublicationRefused, match=r"readers of silver.readings can see .*no publication of it was begun"
    ) as refused:
        publish(history, "run")
    assert "cancel" in str(refused.value)
    assert (state(history, "run"), history.ledger.publications("run")) == (RunState.VALIDATED, [])
    assert no_decision(history, "run")
    assert before is not None  # one way out: it is pointed back, and the run is as it was
    history.lakehouse.point(READINGS, expected={}, branches={"main": before})
    assert agree(history)
    if held_by == "nothing":
        publish(history, "run")
        assert (state(history, "run"), readers(history)["2020-02"]) == (PUBLISHED, "run")


def test_a_run_that_another_program_shows_is_cancelled_and_its_scope_restated(history: Platform) -> None:
    validated(history, "run", "SHADOW_SWAP")
    prepare(history, "run")
    shown_by_another_program(history, "candidate-run")
    cancel(history, "run", "ada", "nobody has published it")
    assert state(history, "run") is RunState.CANCELLED
    published(history, "again")
    assert readers(history)["2020-02"] == history.ledger.accepted(READINGS)["2020-02"] == "again"


def test_a_version_that_another_program_shows_is_not_accepted_by_that(history: Platform) -> None:
    before = rows(history)
    published(history, "later", mode="VERSIONED", **LATER)
    shown_by_another_program(history, "v2")
    assert no_decision(history, "later")
    rollback(history, "later")  # one way out
    assert (rows(history), state(history, "later")) == (before, ROLLED_BACK)


def test_an_acceptance_is_a_decision_also_of_what_another_program_shows(history: Platform) -> None:
    published(history, "later", mode="VERSIONED", **LATER)
    shown_by_another_program(history, "v2")
    accept(history, "later")
    assert history.ledger.accepted(READINGS)["2020-02"] == "later"
    assert agree(history)


def test_a_version_that_others_have_written_over_is_not_accepted_after_all(history: Platform) -> None:
    validated(history, "later", "VERSIONED", **LATER)
    publish(history, "later")
    shown_by_another_program(history, "v2")
    published(history, "over", scope=FEBRUARY, computed_by="1")
    with pytest.raises(PublicationRefused, match=r"'over' has changed .* since"):
        accept(history, "later")
    assert history.ledger.accepted(READINGS)["2020-02"] == "over"


@pytest.mark.parametrize("point", ["publishing.prepared", "publishing.committed"])
def test_what_a_process_has_set_out_to_do_is_recorded_whoever_made_main_show_it(history: Platform, point: str) -> None:
    """An intent that is open cannot be told from what its process has committed before it died."""
    validated(history, "run", "SHADOW_SWAP")
    with dying_at(history, point):
        publish(history, "run")
    if point == "publishing.prepared":
        shown_by_another_program(history, "candidate-run")
    assert mend(history)[1] == []
    assert (state(history, "run"), history.ledger.accepted(READINGS)["2020-02"]) == (PUBLISHED, "run")
    assert agree(history)


# --- who sleeps before the lease, or is told that a commit has failed -------------------------------------------------


@contextmanager
def meanwhile(*acts: Callable[[], Any]) -> Iterator[None]:
    """Have others act between somebody's look and its lease."""
    real, todo = Leases.acquire, list(acts)

    def acquire(leases: Leases, *arguments: Any) -> Any:
        acting = todo[:]
        todo.clear()
        for act in acting:
            act()
        return real(leases, *arguments)

    with mock.patch.object(Leases, "acquire", acquire):
        yield
    assert todo == []


def entries(platform: Platform, run_id: str) -> list[tuple[str, str]]:
    return [(one.action, one.state) for one in platform.ledger.publications(run_id)]


def holders_of(platform: Platform, chunk: str) -> list[str]:
    """Return the runs that the ledger has as holders of a chunk today, one a row."""
    open_rows = sa.select(accepted_versions.c.run_id).where(
        accepted_versions.c.chunk == chunk, accepted_versions.c.ended_at.is_(None)
    )
    with platform.ledger.engine.connect() as connection:
        return list(connection.execute(open_rows).scalars())


@pytest.mark.parametrize("more", [(), (rollback, reinstate)], ids=["accepted", "taken back and brought back, too"])
def test_a_version_is_accepted_once_by_whoever_was_first(history: Platform, more: Sequence[Callable[..., Any]]) -> None:
    published(history, "later", mode="VERSIONED", **LATER)
    others = [partial(act, history, "later") for act in (accept, *more)]
    with meanwhile(*others):
        assert not accept(history, "later").new
    assert entries(history, "later").count((ACCEPT, "COMMITTED")) == 1
    assert agree(history)
    rollback(history, "later")
    assert (state(history, "base-run"), holders_of(history, "2020-02")) == (PUBLISHED, ["base-run"])
    assert agree(history)


def test_the_ledger_records_one_acceptance_of_a_version(history: Platform) -> None:
    published(history, "later", mode="VERSIONED", **LATER)
    accept(history, "later")
    done = history.ledger.publications("later")[-1]
    entry = history.ledger.open_publication("later", ACCEPT, done.base_snapshot_id, done.evidence_root, "ada")
    history.ledger.accept_version("later", entry, snapshot_id=done.snapshot_id, actor="ada")
    assert entries(history, "later")[1:] == [(ACCEPT, "COMMITTED"), (ACCEPT, "REFUSED")]
    assert holders_of(history, "2020-02") == ["later"]


def test_a_version_that_an_earlier_version_of_the_ledger_has_accepted_twice_is_taken_back_from_itself(
    history: Platform,
) -> None:
    published(history, "later", mode="VERSIONED", **LATER)
    accept(history, "later")
    with history.ledger.engine.begin() as connection:
        take(connection, READINGS, ["2020-02", "2020-03"], "later", now())
    rollback(history, "later")
    assert (state(history, "later"), holders_of(history, "2020-02")) == (ROLLED_BACK, ["base-run"])
    assert agree(history)


@contextmanager
def said_to_fail_and_overtaken(platform: Platform, successor: str) -> Iterator[None]:
    """Have the next move of main land and be said to have failed, and its lease be taken over by one that dies once it has
    fenced."""
    commit, done = SqlCatalog.commit_table, []

    def commit_table(catalog: SqlCatalog, table: Any, requirements: Any, updates: Any) -> Any:
        moves = any(isinstance(one, SetSnapshotRefUpdate) and one.ref_name == "main" for one in updates)
        found = commit(catalog, table, requirements, updates)
        if moves and not done:
            done.append(True)
            expire(platform)
            with dying_at(platform, "leasing.fenced"):
                publish(platform, successor)
            raise CommitFailedException("409")
        return found

    with mock.patch.object(SqlCatalog, "commit_table", commit_table):
        yield
    assert done == [True]


@pytest.mark.parametrize("action", [ACCEPT, PUBLISH, ROLLBACK])
def test_what_landed_and_is_said_to_have_failed_is_recorded_although_its_lease_was_lost(
    history: Platform, action: str
) -> None:
    validated(history, "run", "VERSIONED", **LATER) if action == ACCEPT else validated(history, "run", "SHADOW_SWAP")
    validated(history, "elsewhere", scope=MAY)
    if action != PUBLISH:
        publish(history, "run")
    with said_to_fail_and_overtaken(history, "elsewhere"):
        {ACCEPT: accept, PUBLISH: publish, ROLLBACK: rollback}[action](history, "run")
    assert entries(history, "run")[-1] == (action, "COMMITTED")
    publish(history, "elsewhere")
    mend(history)
    assert agree(history)


def test_an_acceptance_that_an_earlier_version_said_was_refused_takes_no_chunk_from_a_later_run(
    history: Platform,
) -> None:
    """It landed, and its process closed it; since then others restate what it shows."""
    published(history, "later", mode="VERSIONED", **LATER)
    with dying_at(history, "accepting.committed"):
        accept(history, "later")
    history.ledger.close_refused(history.ledger.publications("later")[-1].id, "the lease was lost")
    published(history, "over", scope=FEBRUARY, computed_by="1")
    assert mend(history)[0] == []
    with pytest.raises(PublicationRefused, match=r"'over' has changed .* since"):
        accept(history, "later")
    assert history.ledger.accepted(READINGS)["2020-02"] == readers(history)["2020-02"] == "over"


# --- a decision that others have overtaken ----------------------------------------------------------------------------


@pytest.mark.parametrize("action", [ROLLBACK, REINSTATE])
def test_a_decision_does_not_undo_a_newer_one(history: Platform, action: str) -> None:
    """Who has decided sleeps before the lease; others do the same, and then decide otherwise."""
    published(history, "run")
    if action == REINSTATE:
        rollback(history, "run")
    was = state(history, "run")
    both = [decisions.rollback, decisions.reinstate]
    others = both if action == ROLLBACK else both[::-1]
    decide = getattr(decisions, action)
    newer = [partial(act, history, "run", by=f"other-{number}") for number, act in enumerate(others)]
    with (
        meanwhile(*newer),
        pytest.raises(StateMoved, match=f"'run' was changed 2 time.* since the {action} was decided"),
    ):
        decide(history, "run", by="ann")
    assert state(history, "run") is was
    assert agree(history)
    assert decide(history, "run", by="ann").new  # she has looked again
    assert agree(history)


def test_a_decision_that_was_overtaken_before_the_publisher_looked_is_no_newer(history: Platform) -> None:
    published(history, "run")
    real = undoing.rollback

    def late(*arguments: Any, **named: Any) -> Any:
        with mock.patch.object(undoing, "rollback", real):
            decisions.rollback(history, "run", by="bob")
        decisions.reinstate(history, "run", by="cem")
        return real(*arguments, **named)

    with (
        mock.patch.object(undoing, "rollback", late),
        pytest.raises(StateMoved, match="since the rollback was decided"),
    ):
        decisions.rollback(history, "run", by="ann")
    assert state(history, "run") is PUBLISHED


# --- a base that another program has expired --------------------------------------------------------------------------

ON_BRANCH = {"SHADOW_SWAP": {}, "VERSIONED": {"version": "v2"}, "VERSIONED, later": LATER}


def without_its_base(platform: Platform, mode: str) -> int:
    """Return the base of the run `run`, which another program has expired since the run was validated."""
    validated(platform, "run", mode.partition(",")[0], scope=FEBRUARY, **ON_BRANCH.get(mode, {}))
    base = platform.ledger.run("run").plan.base_snapshot_id
    assert base is not None
    published(platform, "elsewhere", scope=APRIL)
    expired_by_another_program(platform, base)
    return base


@pytest.mark.parametrize("mode", [*ON_BRANCH, "REPLACE_PARTITIONS"])
def test_a_run_whose_base_has_expired_is_refused_by_name_and_leaves_no_intent(history: Platform, mode: str) -> None:
    base = without_its_base(history, mode)
    if mode in ON_BRANCH:
        with pytest.raises(PublicationRefused, match=f"snapshot {base}.* has expired"):
            prepare(history, "run")
    with pytest.raises(PublicationRefused, match=f"snapshot {base}.* has expired") as refused:
        publish(history, "run")
    assert "new run id" in str(refused.value)
    assert [one for one in entries(history, "run") if one[1] == "INTENT"] == []
    assert state(history, "run") is RunState.REJECTED
    assert [one for one in examine(history) if one.kind.startswith("intent")] == []


def test_a_base_that_expires_while_it_is_tagged_leaves_no_intent(history: Platform) -> None:
    validated(history, "run", "SHADOW_SWAP", scope=FEBRUARY)
    base = history.ledger.run("run").plan.base_snapshot_id
    assert base is not None
    published(history, "elsewhere", scope=APRIL)
    sealed = faults.reach

    def reach(point: str) -> None:
        if point == "publishing.sealed":
            expired_by_another_program(history, base)
        sealed(point)

    with mock.patch.object(faults, "reach", reach), pytest.raises(PublicationRefused, match="has expired"):
        publish(history, "run")
    assert (entries(history, "run"), state(history, "run")) == ([(PUBLISH, "REFUSED")], RunState.REJECTED)


def test_what_landed_is_recorded_although_its_base_has_expired_since(history: Platform) -> None:
    validated(history, "run", "SHADOW_SWAP", scope=FEBRUARY)
    base = history.ledger.run("run").plan.base_snapshot_id
    assert base is not None
    with dying_at(history, "publishing.committed"):
        publish(history, "run")
    expired_by_another_program(history, base)
    publish(history, "run")
    assert (state(history, "run"), readers(history)["2020-02"]) == (PUBLISHED, "run")


# --- half of a change of two tables, and another program in the second ------------------------------------------------


def compacted(platform: Platform, table: str = CORRECTIONS) -> None:
    """Write a table's files anew as one, as a program does that compacts."""
    loaded = platform.lakehouse.table(table)
    old, found = [task.file for task in loaded.scan().plan_files()], loaded.scan().to_arrow()
    new = list(_dataframe_to_data_files(loaded.metadata, found, loaded.io)) if len(found) else []
    commit_replacement(loaded, AlwaysTrue(), old, new, {})


def kinds(platform: Platform) -> list[tuple[str, str]]:
    """Return what the doctor finds, but for what another program has written."""
    return [(one.kind, one.where) for one in examine(platform) if one.kind != "foreign-write"]


BESIDE = {"mode": "CORRECTION_EVENTS", "corrections": "BESIDE"}


@pytest.mark.parametrize("expired", [False, True], ids=["compacted", "compacted and expired"])
@pytest.mark.parametrize("ended_by", ["the same command", "another run", "the doctor", "itself"])
def test_a_rollback_whose_corrections_another_program_has_rewritten_is_brought_to_an_end(
    history: Platform, ended_by: str, expired: bool
) -> None:
    before = rows(history)
    published(history, "run", **BESIDE)
    validated(history, "elsewhere", scope=FEBRUARY, computed_by="1")
    issued = history.lakehouse.snapshot_id(CORRECTIONS)
    assert issued is not None

    def rewritten() -> None:
        compacted(history)
        if expired:
            history.lakehouse.table(CORRECTIONS).maintenance.expire_snapshots().by_id(issued).commit()

    if ended_by == "itself":
        real = faults.reach
        with mock.patch.object(
            faults, "reach", lambda point: rewritten() if point == "undoing.halfway" else real(point)
        ):
            rollback(history, "run")
    else:
        with dying_at(history, "undoing.halfway"):
            rollback(history, "run")
        rewritten()
    if ended_by == "the same command":
        rollback(history, "run")
    elif ended_by == "another run":
        with pytest.raises(PublicationRefused, match="no longer holds"):
            publish(history, "elsewhere")  # it was planned on what is rolled back: nothing else stands against it
    elif ended_by == "the doctor":
        mend(history)
    assert (state(history, "run"), rows(history)) == (ROLLED_BACK, before)
    mend(history)
    assert kinds(history) == [("corrections-left", "run")]
    assert len(rows(history, CORRECTIONS)) > 0
    published(history, "next", scope=FEBRUARY)
    without = history.lakehouse.table(CORRECTIONS)  # the way out: whoever has rewritten them takes them out
    commit_replacement(without, AlwaysTrue(), [task.file for task in without.scan().plan_files()], [], {})
    assert kinds(history) == []
