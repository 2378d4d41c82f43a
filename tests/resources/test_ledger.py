"""The ledger holds what must be true across processes and crashes."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from support import (
    APPROVER,
    REQUESTER,
    TARGET,
    a_manifest,
    a_plan,
    a_source,
    approved,
    gated,
    moved,
    pass_all,
    planned,
    stage_all,
    staged_files,
)

from manifests.errors import EnvironmentRefused, InputRefused, Refused, StateMoved, TransitionRefused
from manifests.lifecycle import RunState
from manifests.plan import Plan
from manifests.staged_file import StagedFile
from resources.ledger.facade import ChunkState, Ledger, RunRecord, Verdict, open_ledger, operator
from resources.ledger.tables import chunks, metadata, publications
from resources.ledger.tables import runs as runs_table
from resources.ledger.transactions import LedgerEngine

RUN = "restate-2012"
CHUNKS = ["2012-01", "2012-02", "2012-03"]


def validated(ledger: Ledger, run_id: str, start: str = "2012-01-01", end: str = "2012-03-31") -> RunRecord:
    record = approved(ledger, run_id, start, end)
    pass_all(ledger, record, stage_all(ledger, record))
    moved(ledger, run_id, RunState.VALIDATED, REQUESTER)
    return ledger.run(run_id)


def published(ledger: Ledger, run_id: str, start: str = "2012-01-01", end: str = "2012-03-31") -> int:
    validated(ledger, run_id, start, end)
    publication = ledger.open_publication(run_id, "publish", 7, "root", REQUESTER)
    ledger.accept(run_id, publication, snapshot_id=100, added=3, removed=2, actor=REQUESTER)
    return publication


def rolled_back(ledger: Ledger, run_id: str) -> None:
    publication = ledger.open_publication(run_id, "rollback", 100, "root", REQUESTER)
    ledger.undo(run_id, publication, snapshot_id=101, added=2, removed=3, actor=REQUESTER)


def states(ledger: Ledger, *run_ids: str) -> list[str]:
    return [ledger.run(run_id).state.value for run_id in run_ids]


# --- schema -----------------------------------------------------------------------------------------------------------


def test_a_migrated_ledger_is_current(ledger: Ledger) -> None:
    ledger.require_current()


def test_migrating_again_changes_nothing_and_keeps_the_runs(ledger: Ledger) -> None:
    planned(ledger, RUN)
    ledger.migrate()

    assert ledger.run(RUN).state is RunState.PLANNED


def test_the_migrated_schema_is_the_one_the_code_declares(ledger: Ledger) -> None:
    with ledger.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})

        assert compare_metadata(context, metadata) == []


@pytest.mark.parametrize(
    ("statement", "lacks"), [("DROP TABLE verdicts", "verdicts"), ("ALTER TABLE stops DROP COLUMN note", "stops.note")]
)
def test_a_ledger_that_lacks_a_table_or_a_column_is_refused_by_name(tmp_path: Path, statement: str, lacks: str) -> None:
    file = tmp_path / "ledger.db"
    fresh = Ledger(f"sqlite:///{file}")
    fresh.migrate()
    fresh.engine.dispose()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(statement)
    with pytest.raises(EnvironmentRefused, match=rf"lacks {lacks}\n"), open_ledger(f"sqlite:///{file}"):
        pytest.fail("it was opened")


def test_migrating_makes_the_folder_of_the_ledger(tmp_path: Path) -> None:
    fresh = Ledger(f"sqlite:///{tmp_path / 'not' / 'yet' / 'ledger.db'}")
    fresh.migrate()
    fresh.require_current()
    fresh.engine.dispose()


def test_a_missing_ledger_is_refused_and_not_made_by_looking(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"

    with pytest.raises(EnvironmentRefused, match="has schema none"), open_ledger(f"sqlite:///{file}"):
        pytest.fail("a missing ledger was opened")
    assert not file.exists()


def test_a_database_without_the_ledgers_schema_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE other (x INTEGER)")

    with pytest.raises(EnvironmentRefused, match="run `backfill init`"):
        Ledger(f"sqlite:///{file}").require_current()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    file.write_text("a shopping list, long enough to be no database header at all\n" * 50)

    with pytest.raises(EnvironmentRefused, match="cannot be opened: file is not a database"):
        Ledger(f"sqlite:///{file}").require_current()


def test_a_folder_in_place_of_the_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRefused, match="cannot be opened"):
        Ledger(f"sqlite:///{tmp_path}").require_current()


def test_a_ledger_of_another_version_is_refused_with_both_versions(ledger: Ledger) -> None:
    with ledger.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))

    with pytest.raises(EnvironmentRefused, match="has schema 9999") as refused:
        ledger.require_current()
    assert "0001" in str(refused.value)


def test_a_newer_ledger_is_refused_by_migration_too(ledger: Ledger) -> None:
    with ledger.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))

    with pytest.raises(EnvironmentRefused):
        ledger.migrate()


def test_a_refusal_never_shows_the_password_of_the_ledger() -> None:
    # refused for want of the driver, or because nobody listens there
    with pytest.raises(EnvironmentRefused) as refused:
        Ledger("postgresql+psycopg2://ada:hunter2@127.0.0.1:1/ledger").require_current()
    assert "hunter2" not in str(refused.value)


# --- plans ------------------------------------------------------------------------------------------------------------


def test_a_recorded_plan_is_read_back_as_it_was(ledger: Ledger) -> None:
    manifest = a_manifest(RUN)
    plan = a_plan(manifest)
    ledger.record_plan(manifest, plan, "grace")
    record = ledger.run(RUN)

    assert record.state is RunState.PLANNED
    assert (record.manifest, record.manifest_hash) == (manifest, manifest.hash)
    assert (record.plan, record.plan_hash, record.plan.hash) == (plan, plan.hash, plan.hash)
    assert (record.kind, record.mode, record.target, record.requested_by) == ("RESTATEMENT", "BACKFILL", TARGET, "ada")
    assert [(move.from_state, move.to_state, move.actor) for move in ledger.history(RUN)] == [
        ("DRAFT", "PLANNED", "grace")
    ]
    assert [(chunk.chunk, chunk.index, chunk.state) for chunk in ledger.chunks(RUN)] == [
        (key, index, ChunkState.PLANNED) for index, key in enumerate(CHUNKS)
    ]


def test_before_approval_a_run_is_planned_again_with_another_text_and_other_chunks(ledger: Ledger) -> None:
    planned(ledger, RUN)
    record = planned(ledger, RUN, "2012-01-01", "2012-01-31", reason="a better reason for it")

    assert record.state is RunState.PLANNED
    assert record.manifest.reason == "a better reason for it"
    assert record.plan_hash == record.plan.hash
    assert [chunk.chunk for chunk in ledger.chunks(RUN)] == ["2012-01"]
    assert len(ledger.history(RUN)) == 1


def test_an_approved_run_answers_the_same_text_with_the_plan_that_was_approved(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    newer = a_plan(record.manifest, source=a_source(snapshot_id=12))

    assert ledger.record_plan(record.manifest, newer, REQUESTER).plan == record.plan
    assert ledger.run(RUN).plan_hash == record.plan_hash
    existing = ledger.existing(record.manifest)
    assert existing is not None
    assert existing.plan == record.plan


def test_another_text_under_the_id_of_an_approved_run_is_refused_with_both_hashes(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    other = a_manifest(RUN, reason="a better reason for it")

    for attempt in (lambda: ledger.record_plan(other, a_plan(other), REQUESTER), lambda: ledger.existing(other)):
        with pytest.raises(TransitionRefused, match="after approval a manifest cannot change") as refused:
            attempt()
        assert record.manifest_hash in str(refused.value)
        assert other.hash in str(refused.value)
    assert ledger.run(RUN) == record


def test_a_run_that_is_not_approved_is_planned_anew(ledger: Ledger) -> None:
    record = planned(ledger, RUN)

    assert ledger.existing(record.manifest) is None
    assert ledger.existing(a_manifest("never-planned")) is None


@pytest.mark.parametrize("final", [RunState.CANCELLED, RunState.REJECTED])
def test_a_run_that_was_given_up_is_not_planned_again(ledger: Ledger, final: RunState) -> None:
    planned(ledger, RUN)
    moved(ledger, RUN, final, REQUESTER)
    other = a_manifest(RUN, reason="a better reason for it")

    with pytest.raises(TransitionRefused):
        ledger.record_plan(other, a_plan(other), REQUESTER)


def test_an_unknown_run_is_refused(ledger: Ledger) -> None:
    assert ledger.find("nobody") is None
    with pytest.raises(InputRefused, match="run 'nobody' is unknown"):
        ledger.run("nobody")
    with pytest.raises(InputRefused, match="run 'nobody' is unknown"):
        moved(ledger, "nobody", RunState.CANCELLED, REQUESTER)


def test_runs_are_listed_oldest_first_by_target_and_state(ledger: Ledger) -> None:
    for run_id in ("run-c", "run-a", "run-b"):
        planned(ledger, run_id)
    moved(ledger, "run-a", RunState.CANCELLED, REQUESTER)

    assert [record.run_id for record in ledger.runs()] == ["run-c", "run-a", "run-b"]
    assert [record.run_id for record in ledger.runs(states=[RunState.PLANNED])] == ["run-c", "run-b"]
    assert len(ledger.runs(target=TARGET)) == 3
    assert ledger.runs(target="silver.other") == []
    assert ledger.runs(states=[]) == []


# --- approval ---------------------------------------------------------------------------------------------------------


def decide(ledger: Ledger, by: str, *, approve: bool = True, self_approval: bool = False, plan_hash: str = "") -> None:
    ledger.decide(
        RUN,
        approve=approve,
        by=by,
        comment="I looked",
        self_approval=self_approval,
        plan_hash=plan_hash or ledger.run(RUN).plan_hash,
    )


def test_somebody_else_approves_a_plan_and_it_is_on_record(ledger: Ledger) -> None:
    record = planned(ledger, RUN)
    decide(ledger, "grace")

    (decision,) = ledger.approvals(RUN)
    assert states(ledger, RUN) == ["APPROVED"]
    assert (decision.decision, decision.decided_by, decision.comment) == ("APPROVED", "grace", "I looked")
    assert (decision.plan_hash, decision.self_approved) == (record.plan_hash, False)


@pytest.mark.parametrize("by", ["ada", "ADA", " Ada ", "ada\n", "\tada"])
def test_a_requester_cannot_approve_their_own_run_however_they_write_their_name(ledger: Ledger, by: str) -> None:
    planned(ledger, RUN)

    with pytest.raises(TransitionRefused, match="the approver differs from the requester"):
        decide(ledger, by)
    assert states(ledger, RUN) == ["PLANNED"]
    assert ledger.approvals(RUN) == []


def test_self_approval_where_the_policy_allows_it_is_on_record(ledger: Ledger) -> None:
    planned(ledger, RUN)
    decide(ledger, "Ada", self_approval=True)

    assert [decision.self_approved for decision in ledger.approvals(RUN)] == [True]


def test_an_approval_by_somebody_else_is_no_self_approval_whatever_the_policy(ledger: Ledger) -> None:
    planned(ledger, RUN)
    decide(ledger, "grace", self_approval=True)

    assert [decision.self_approved for decision in ledger.approvals(RUN)] == [False]


@pytest.mark.parametrize("by", ["", "  "])
def test_a_decision_has_a_name(ledger: Ledger, by: str) -> None:
    planned(ledger, RUN)

    with pytest.raises(TransitionRefused, match="a decision has a name"):
        decide(ledger, by)


def test_an_approval_is_of_the_plan_that_was_looked_at(ledger: Ledger) -> None:
    seen = planned(ledger, RUN).plan_hash
    newer = planned(ledger, RUN, "2012-01-01", "2012-01-31").plan_hash

    with pytest.raises(TransitionRefused, match=f"the plan of '{RUN}' is {newer}, not {seen}"):
        decide(ledger, "grace", plan_hash=seen)
    assert states(ledger, RUN) == ["PLANNED"]


def test_a_requester_may_reject_their_own_run(ledger: Ledger) -> None:
    planned(ledger, RUN)
    decide(ledger, REQUESTER, approve=False)

    assert states(ledger, RUN) == ["REJECTED"]
    assert [decision.decision for decision in ledger.approvals(RUN)] == ["REJECTED"]


def test_a_move_has_a_name(ledger: Ledger) -> None:
    planned(ledger, RUN)

    with pytest.raises(TransitionRefused, match="no name is given"):
        moved(ledger, RUN, RunState.CANCELLED, " ")
    assert states(ledger, RUN) == ["PLANNED"]


def test_a_run_is_approved_once(ledger: Ledger) -> None:
    approved(ledger, RUN)

    with pytest.raises(TransitionRefused, match="is APPROVED already"):
        decide(ledger, "grace")
    assert len(ledger.approvals(RUN)) == 1


# --- compare and set --------------------------------------------------------------------------------------------------


def race(url: str, *moves: Callable[[Ledger], object]) -> list[BaseException | None]:
    """Let each move run on a connection pool of its own, all at the same moment; return what each raised."""
    barrier = threading.Barrier(len(moves))

    def run(move: Callable[[Ledger], object]) -> BaseException | None:
        own = Ledger(url)
        barrier.wait()
        try:
            move(own)
        except Refused as refusal:
            return refusal
        finally:
            own.engine.dispose()
        return None

    with ThreadPoolExecutor(len(moves)) as pool:
        return list(pool.map(run, moves))


def test_of_two_who_move_the_same_run_at_once_one_wins(ledger: Ledger) -> None:
    planned(ledger, RUN)
    lost = race(ledger.url, *[lambda own: moved(own, RUN, RunState.CANCELLED, "somebody")] * 6)

    assert lost.count(None) == 1
    assert len(ledger.history(RUN)) == 2


def test_of_two_who_decide_at_once_one_decision_stands(ledger: Ledger) -> None:
    record = planned(ledger, RUN)

    def decision(approve: bool) -> Callable[[Ledger], None]:
        return lambda own: own.decide(
            RUN, approve=approve, by=APPROVER, comment="", self_approval=False, plan_hash=record.plan_hash
        )

    race(ledger.url, decision(True), decision(True), decision(True))

    assert [one.decision for one in ledger.approvals(RUN)] == ["APPROVED"]


def test_a_plan_and_its_approval_at_once_leave_the_approved_plan(ledger: Ledger) -> None:
    record = planned(ledger, RUN)
    other = a_manifest(RUN, reason="a better reason for it")
    lost = race(
        ledger.url,
        lambda own: own.record_plan(other, a_plan(other), REQUESTER),
        lambda own: own.decide(
            RUN, approve=True, by=APPROVER, comment="", self_approval=False, plan_hash=record.plan_hash
        ),
    )

    assert lost.count(None) == 1, "either the plan changed first and the approval was refused, or the other way round"
    for decision in ledger.approvals(RUN):
        assert decision.plan_hash == ledger.run(RUN).plan_hash


def test_attempts_opened_at_once_have_numbers_and_folders_of_their_own(ledger: Ledger) -> None:
    approved(ledger, RUN)
    found: list[tuple[int, str]] = []
    race(
        ledger.url,
        *[lambda own: found.append(own.start_attempt(RUN, CHUNKS, edition=0, actor=REQUESTER, location="/lake/data"))]
        * 4,
    )

    assert sorted(found) == [(number, f"/lake/data/run={RUN}/attempt-{number}") for number in (1, 2, 3, 4)]


# --- chunks and attempts ----------------------------------------------------------------------------------------------


def test_a_run_that_nobody_approved_cannot_compute(ledger: Ledger) -> None:
    planned(ledger, RUN)

    with pytest.raises(TransitionRefused, match="is PLANNED and cannot become RUNNING"):
        ledger.start_attempt(RUN, CHUNKS, edition=0, actor=REQUESTER, location="/lake")
    assert ledger.attempts(RUN) == []


def test_chunks_that_another_launch_has_staged_and_judged_are_neither_computed_nor_judged_again(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    attempt = stage_all(ledger, record)
    assert ledger.start_attempt(RUN, CHUNKS, edition=0, actor="grace", location="/lake") is None
    pass_all(ledger, record, attempt)
    ledger.settle(RUN, REQUESTER)
    before = ledger.chunks(RUN), ledger.verdicts(RUN), ledger.attempts(RUN), ledger.history(RUN)
    assert ledger.start_attempt(RUN, CHUNKS[:1], edition=0, actor="grace", location="/lake") is None
    ledger.record_gated(RUN, [gated(CHUNKS[0], attempt, passed=False)])
    assert (ledger.chunks(RUN), ledger.verdicts(RUN), ledger.attempts(RUN), ledger.history(RUN)) == before


def test_a_late_verdict_does_not_pass_a_chunk_that_was_planned_anew(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    attempt = stage_all(ledger, record)
    own = (chunks.c.run_id == RUN, chunks.c.chunk == CHUNKS[0])
    with ledger.engine.begin() as connection:
        connection.execute(chunks.update().where(*own).values(state="PLANNED", files="[]", digest=None))
    ledger.record_gated(RUN, [gated(chunk, attempt) for chunk in CHUNKS])
    assert [chunk.state.value for chunk in ledger.chunks(RUN)] == ["PLANNED", "PASSED", "PASSED"]
    assert [verdict.chunk for verdict in ledger.verdicts(RUN)] == CHUNKS[1:]


def test_an_attempt_is_on_record_with_where_it_runs_and_writes(ledger: Ledger) -> None:
    approved(ledger, RUN)
    number, prefix = ledger.start_attempt(
        RUN, CHUNKS, edition=0, actor=REQUESTER, location="/lake", dagster_run_id="d-1"
    )

    (attempt,) = ledger.attempts(RUN)
    assert (number, prefix) == (1, f"/lake/run={RUN}/attempt-1")
    assert (attempt.state, attempt.prefix, attempt.dagster_run_id) == ("RUNNING", prefix, "d-1")
    assert attempt.pid == os.getpid()
    assert states(ledger, RUN) == ["RUNNING"]


def test_a_staged_chunk_exists_with_its_files_and_counts(ledger: Ledger) -> None:
    approved(ledger, RUN)
    number, _ = ledger.start_attempt(RUN, CHUNKS[:2], edition=0, actor=REQUESTER, location="/lake")
    files = [StagedFile("/lake/a.parquet", 3, 30), StagedFile("/lake/b.parquet", 4, 40)]
    ledger.stage(RUN, number, {"2012-01": files, "2012-02": []})

    first, second, third = ledger.chunks(RUN)
    assert (first.state, first.attempt, first.rows, first.bytes, first.files) == ("STAGED", 1, 7, 70, tuple(files))
    assert (second.state, second.rows, second.bytes, second.files) == ("STAGED", 0, 0, ())
    assert (third.state, third.attempt, third.rows) == ("PLANNED", 0, None)
    assert ledger.attempts(RUN)[0].state == "STAGED"
    assert ledger.attempts(RUN)[0].ended_at is not None


def test_staging_is_one_transaction(ledger: Ledger) -> None:
    approved(ledger, RUN)
    number, _ = ledger.start_attempt(RUN, CHUNKS, edition=0, actor=REQUESTER, location="/lake")

    def files() -> Iterator[tuple[str, list[StagedFile]]]:
        yield "2012-01", [StagedFile("/lake/a.parquet", 3, 30)]
        raise RuntimeError("the process died here")

    class Dying(dict[str, list[StagedFile]]):
        def items(self) -> Iterator[tuple[str, list[StagedFile]]]:  # type: ignore[override]
            return files()

    with pytest.raises(RuntimeError, match="died here"):
        ledger.stage(RUN, number, Dying())
    assert {chunk.state for chunk in ledger.chunks(RUN)} == {ChunkState.PLANNED}
    assert ledger.attempts(RUN)[0].state == "RUNNING"


def test_of_two_attempts_at_a_chunk_the_one_that_staged_it_first_keeps_it(ledger: Ledger) -> None:
    approved(ledger, RUN)
    first, _ = ledger.start_attempt(RUN, CHUNKS, edition=0, actor=REQUESTER, location="/lake")
    second, _ = ledger.start_attempt(RUN, ["2012-01"], edition=0, actor="grace", location="/lake")
    ledger.stage(RUN, second, {"2012-01": [StagedFile("/lake/second.parquet", 3, 30)]})
    ledger.stage(RUN, first, {"2012-01": [StagedFile("/lake/first.parquet", 3, 30)], "2012-02": []})

    january, february, _ = ledger.chunks(RUN)
    assert (january.attempt, [file.path for file in january.files]) == (second, ["/lake/second.parquet"])
    assert (february.state.value, february.attempt) == ("STAGED", first)


def test_a_chunk_that_failed_its_gate_is_staged_again_without_digest_and_measures(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    attempt = stage_all(ledger, record)
    ledger.record_gated(RUN, [gated("2012-01", attempt, passed=False), gated("2012-02", attempt)])
    attempt, _ = ledger.start_attempt(RUN, ["2012-01"], edition=0, actor=REQUESTER, location="/lake")
    ledger.stage(RUN, attempt, {"2012-01": []})

    first, second, _ = ledger.chunks(RUN)
    assert (first.state, first.attempt, first.digest, first.measures) == ("STAGED", 2, None, {})
    assert first.error == ""
    assert (second.state, second.attempt) == ("PASSED", 1)


def test_a_failed_chunk_says_why_and_the_run_fails_with_it(ledger: Ledger) -> None:
    approved(ledger, RUN)
    number, _ = ledger.start_attempt(RUN, ["2012-02"], edition=0, actor=REQUESTER, location="/lake")
    ledger.fail_attempt(RUN, number, "no space left", chunk="2012-02")

    assert ledger.settle(RUN, REQUESTER) is RunState.FAILED
    assert [(chunk.state.value, chunk.error) for chunk in ledger.chunks(RUN)] == [
        ("PLANNED", ""),
        ("FAILED", "no space left"),
        ("PLANNED", ""),
    ]
    assert ledger.run(RUN).state_reason == "1 chunk(s) failed: 2012-02"
    assert ledger.attempts(RUN)[0].error == "no space left"


def test_a_failed_batch_leaves_its_chunks_to_be_tried_alone(ledger: Ledger) -> None:
    approved(ledger, RUN)
    number, _ = ledger.start_attempt(RUN, CHUNKS, edition=0, actor=REQUESTER, location="/lake")
    ledger.fail_attempt(RUN, number, "one of them is bad")

    assert {chunk.state for chunk in ledger.chunks(RUN)} == {ChunkState.PLANNED}
    assert ledger.settle(RUN, REQUESTER) is RunState.RUNNING


def test_a_failed_run_resumes_and_is_staged_once_its_last_chunk_is(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    number, _ = ledger.start_attempt(RUN, CHUNKS, edition=0, actor=REQUESTER, location="/lake")
    ledger.stage(RUN, number, {key: files for key, files in staged_files(record, 1).items() if key != "2012-02"})
    assert ledger.settle(RUN, REQUESTER) is RunState.RUNNING

    number, _ = ledger.start_attempt(RUN, ["2012-02"], edition=0, actor=REQUESTER, location="/lake")
    ledger.fail_attempt(RUN, number, "no space left", chunk="2012-02")
    assert ledger.settle(RUN, REQUESTER) is RunState.FAILED

    assert ledger.resume(RUN, REQUESTER).state is RunState.RUNNING
    number, _ = ledger.start_attempt(RUN, ["2012-02"], edition=0, actor=REQUESTER, location="/lake")
    ledger.stage(RUN, number, {"2012-02": []})
    assert ledger.settle(RUN, REQUESTER) is RunState.STAGED
    assert [chunk.attempt for chunk in ledger.chunks(RUN)] == [1, 3, 1]


def test_settling_again_changes_nothing(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    stage_all(ledger, record)
    moves = len(ledger.history(RUN))

    assert ledger.settle(RUN, REQUESTER) is RunState.STAGED
    assert len(ledger.history(RUN)) == moves


def test_settling_leaves_a_run_alone_that_has_not_begun_or_is_over(ledger: Ledger) -> None:
    planned(ledger, "run-planned")
    validated(ledger, "run-validated")

    assert ledger.settle("run-planned", REQUESTER) is RunState.PLANNED
    assert ledger.settle("run-validated", REQUESTER) is RunState.VALIDATED


def test_resuming_moves_only_a_run_that_waits_to_compute(ledger: Ledger) -> None:
    approved(ledger, RUN)

    assert ledger.resume(RUN, REQUESTER).state is RunState.RUNNING
    assert ledger.resume(RUN, REQUESTER).state is RunState.RUNNING
    assert len(ledger.history(RUN)) == 3


def test_a_late_attempt_does_not_replace_what_a_newer_one_staged(ledger: Ledger) -> None:
    # a process that was thought dead comes back after its chunk was computed again
    record = approved(ledger, RUN)
    late, _ = ledger.start_attempt(RUN, CHUNKS, edition=0, actor=REQUESTER, location="/lake")
    pass_all(ledger, record, stage_all(ledger, record))
    with suppress(Refused):
        ledger.stage(RUN, late, staged_files(record, late))

    assert [(chunk.state.value, chunk.attempt) for chunk in ledger.chunks(RUN)] == [("PASSED", 2)] * 3


def test_a_late_failure_does_not_fail_what_a_newer_attempt_staged(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    late, _ = ledger.start_attempt(RUN, ["2012-01"], edition=0, actor=REQUESTER, location="/lake")
    stage_all(ledger, record)
    with suppress(Refused):
        ledger.fail_attempt(RUN, late, "the connection was lost", chunk="2012-01")

    assert [(chunk.state.value, chunk.attempt) for chunk in ledger.chunks(RUN)] == [("STAGED", 2)] * 3


def test_planning_chunks_anew_ends_the_attempts_at_them_and_no_others(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    numbers = []
    for keys in (CHUNKS[:2], CHUNKS[1:], CHUNKS[2:]):
        number, _ = ledger.start_attempt(RUN, keys, edition=0, actor=REQUESTER, location="/lake")
        numbers.append(number)
    pass_all(ledger, record, stage_all(ledger, record))
    ledger.settle(RUN, REQUESTER)
    moved(ledger, RUN, RunState.VALIDATED, REQUESTER)
    assert ledger.edition(RUN) == 0
    assert ledger.replan(RUN, record.plan, CHUNKS[:1], actor=REQUESTER, reason="changed") == 1
    assert ledger.edition(RUN) == 1

    states = {one.attempt: (one.state, one.ended_at is None) for one in ledger.attempts(RUN)}
    assert [states[number] for number in numbers] == [("OBSOLETE", False), ("RUNNING", True), ("RUNNING", True)]
    ledger.stage(RUN, numbers[1], {key: [] for key in CHUNKS[1:]})  # its chunks have the plan that they had
    for keys in (CHUNKS[:1], CHUNKS[:2]):
        with pytest.raises(StateMoved, match=rf"(?m)planned anew.*: {CHUNKS[0]}$"):
            ledger.start_attempt(RUN, keys, edition=0, actor=REQUESTER, location="/lake")
    with pytest.raises(StateMoved, match="planned anew"):
        ledger.stage(RUN, numbers[0], {key: [] for key in CHUNKS[:2]})
    assert (
        ledger.fail_attempt(RUN, numbers[0], "lost", chunk=CHUNKS[0], fails_run="lost", actor=REQUESTER) == "OBSOLETE"
    )
    assert ledger.run(RUN).state is RunState.RUNNING
    assert [one.state.value for one in ledger.chunks(RUN)] == ["PLANNED", "PASSED", "PASSED"]
    assert ledger.start_attempt(RUN, CHUNKS[:1], edition=1, actor=REQUESTER, location="/lake") is not None


def test_a_refused_attempt_fails_its_run_unless_that_has_moved_on(ledger: Ledger) -> None:
    approved(ledger, RUN)
    number, _ = ledger.start_attempt(RUN, CHUNKS, edition=0, actor=REQUESTER, location="/lake")
    assert ledger.fail_attempt(RUN, number, "no", fails_run="a file is gone", actor=REQUESTER) == "FAILED"
    assert (ledger.run(RUN).state, ledger.run(RUN).state_reason) == (RunState.FAILED, "a file is gone")

    record = approved(ledger, "another")
    late, _ = ledger.start_attempt("another", CHUNKS, edition=0, actor=REQUESTER, location="/lake")
    stage_all(ledger, record)
    ledger.settle("another", REQUESTER)
    assert ledger.fail_attempt("another", late, "no", fails_run="a file is gone", actor=REQUESTER) == "FAILED"
    assert ledger.run("another").state is RunState.STAGED


def test_an_attempt_that_has_ended_stays_as_it_ended_and_its_chunk_is_left_to_who_is_at_it(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    stage_all(ledger, record)
    ledger.fail_attempt(RUN, 1, "the connection was lost")
    assert [(one.state, one.error) for one in ledger.attempts(RUN)] == [("STAGED", "")]

    approved(ledger, "another")
    late, _ = ledger.start_attempt("another", ["2012-01"], edition=0, actor=REQUESTER, location="/lake")
    ledger.repairs.end_attempt("another", late, "process ended")
    ledger.start_attempt("another", ["2012-01"], edition=0, actor=REQUESTER, location="/lake")
    ledger.fail_attempt("another", late, "the connection was lost", chunk="2012-01")
    assert [(one.state, one.error) for one in ledger.attempts("another")] == [
        ("FAILED", "process ended"),
        ("RUNNING", ""),
    ]
    assert (ledger.chunks("another")[0].state, ledger.chunks("another")[0].error) == (ChunkState.PLANNED, "")


@pytest.mark.parametrize("end", ["published", "cancelled"])
def test_a_run_that_is_over_takes_no_more_staged_chunks(ledger: Ledger, end: str) -> None:
    record = validated(ledger, RUN)
    if end == "published":
        publication = ledger.open_publication(RUN, "publish", 7, "root", REQUESTER)
        ledger.accept(RUN, publication, snapshot_id=100, added=3, removed=2, actor=REQUESTER)
    else:
        moved(ledger, RUN, RunState.CANCELLED, REQUESTER)
    before = ledger.chunks(RUN)
    with suppress(Refused):
        ledger.stage(RUN, 1, {key: [] for key in staged_files(record, 1)})

    assert ledger.chunks(RUN) == before


# --- gates ------------------------------------------------------------------------------------------------------------


def test_a_gated_chunk_has_its_digest_measures_and_verdict(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    attempt = stage_all(ledger, record)
    ledger.record_gated(RUN, [gated("2012-01", attempt), gated("2012-02", attempt, passed=False)])

    first, second, third = ledger.chunks(RUN)
    assert (first.state.value, first.digest, first.measures, first.error) == (
        "PASSED",
        "rows-sha256-v1:aa",
        {"slices": []},
        "",
    )
    assert (second.state.value, second.error) == ("FAILED", "unique key: 2")
    assert third.state.value == "STAGED"
    found = {verdict.chunk: verdict for verdict in ledger.verdicts(RUN)}
    assert found["2012-01"].passed
    assert not found["2012-02"].passed
    assert found["2012-01"].attempt == attempt
    assert ledger.settle(RUN, REQUESTER) is RunState.FAILED


def test_what_was_gated_of_an_outdated_attempt_is_ignored(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    ledger.record_gated(RUN, [gated("2012-01", stage_all(ledger, record), passed=False)])
    newer, _ = ledger.start_attempt(RUN, ["2012-01"], edition=0, actor=REQUESTER, location="/lake")
    ledger.stage(RUN, newer, {"2012-01": []})
    ledger.record_gated(RUN, [gated("2012-01", 1), gated("2012-02", 1)])

    first, second, _ = ledger.chunks(RUN)
    assert (first.state.value, first.digest) == ("STAGED", None)
    assert second.state.value == "PASSED"
    assert [(verdict.chunk, verdict.passed) for verdict in ledger.verdicts(RUN)] == [
        ("2012-01", False),
        ("2012-02", True),
    ]


def test_the_newest_verdict_of_a_gate_counts(ledger: Ledger) -> None:
    approved(ledger, RUN)
    for passed in (False, True):
        ledger.record_verdicts(RUN, [Verdict("record_counts", passed, "", {"share": 0.5})])
    ledger.record_verdicts(RUN, [Verdict("other", False, "", {})])

    assert {verdict.gate: verdict.passed for verdict in ledger.verdicts(RUN)} == {"record_counts": True, "other": False}
    assert ledger.verdicts(RUN)[0].details == {"share": 0.5}


# --- publication ------------------------------------------------------------------------------------------------------


def test_an_accepted_run_holds_its_chunks(ledger: Ledger) -> None:
    published(ledger, RUN)

    assert states(ledger, RUN) == ["PUBLISHED"]
    assert ledger.accepted(TARGET) == dict.fromkeys(CHUNKS, RUN)
    assert ledger.accepted(TARGET, ["2012-02", "1999-01"]) == {"2012-02": RUN}
    assert ledger.accepted("silver.other") == {}
    (entry,) = ledger.publications(RUN)
    assert (entry.state, entry.snapshot_id, entry.base_snapshot_id) == ("COMMITTED", 100, 7)
    assert (entry.files_added, entry.files_removed, entry.evidence_root) == (3, 2, "root")


def test_accepting_again_after_a_crash_changes_nothing(ledger: Ledger) -> None:
    publication = published(ledger, RUN)
    moves = len(ledger.history(RUN))
    ledger.accept(RUN, publication, snapshot_id=100, added=3, removed=2, actor=REQUESTER)

    assert len(ledger.history(RUN)) == moves
    assert ledger.accepted(TARGET) == dict.fromkeys(CHUNKS, RUN)


def test_a_run_whose_gates_have_not_passed_cannot_be_accepted(ledger: Ledger) -> None:
    stage_all(ledger, approved(ledger, RUN))
    publication = ledger.open_publication(RUN, "publish", 7, "root", REQUESTER)

    with pytest.raises(TransitionRefused, match="is STAGED and cannot become PUBLISHED"):
        ledger.accept(RUN, publication, snapshot_id=100, added=3, removed=2, actor=REQUESTER)
    assert ledger.accepted(TARGET) == {}
    assert ledger.publications(RUN)[0].state == "INTENT", "the whole transaction is undone"


def test_a_refused_publication_is_on_record_with_the_reason(ledger: Ledger) -> None:
    validated(ledger, RUN)
    publication = ledger.open_publication(RUN, "publish", 7, "root", REQUESTER)
    ledger.close_refused(publication, "somebody wrote there")

    (entry,) = ledger.publications(RUN)
    assert (entry.state, entry.note, entry.snapshot_id) == ("REFUSED", "somebody wrote there", None)


def test_a_later_run_over_the_same_chunks_supersedes_the_earlier_one(ledger: Ledger) -> None:
    published(ledger, "run-one")
    published(ledger, "run-two")

    assert states(ledger, "run-one", "run-two") == ["SUPERSEDED", "PUBLISHED"]
    assert ledger.accepted(TARGET) == dict.fromkeys(CHUNKS, "run-two")
    assert ledger.run("run-one").state_reason == "by run run-two"


def test_a_run_that_lost_only_part_of_its_chunks_stays_published(ledger: Ledger) -> None:
    published(ledger, "run-one")
    published(ledger, "run-two", "2012-02-01", "2012-02-29")

    assert states(ledger, "run-one", "run-two") == ["PUBLISHED", "PUBLISHED"]
    assert ledger.accepted(TARGET) == {"2012-01": "run-one", "2012-02": "run-two", "2012-03": "run-one"}


def test_a_run_that_loses_its_chunks_one_by_one_is_superseded_with_the_last(ledger: Ledger) -> None:
    published(ledger, "run-one")
    for number, (start, end) in enumerate([("2012-01-01", "2012-01-31"), ("2012-02-01", "2012-03-31")]):
        assert states(ledger, "run-one") == ["PUBLISHED"]
        published(ledger, f"part-{number}", start, end)

    assert states(ledger, "run-one") == ["SUPERSEDED"]


def test_one_run_supersedes_several(ledger: Ledger) -> None:
    published(ledger, "run-jan", "2012-01-01", "2012-01-31")
    published(ledger, "run-feb", "2012-02-01", "2012-02-29")
    published(ledger, "run-all")

    assert states(ledger, "run-jan", "run-feb", "run-all") == ["SUPERSEDED", "SUPERSEDED", "PUBLISHED"]


def test_rolling_back_a_run_accepts_what_it_superseded_again(ledger: Ledger) -> None:
    published(ledger, "run-jan", "2012-01-01", "2012-01-31")
    published(ledger, "run-feb", "2012-02-01", "2012-02-29")
    published(ledger, "run-all")
    rolled_back(ledger, "run-all")

    assert states(ledger, "run-jan", "run-feb", "run-all") == ["PUBLISHED", "PUBLISHED", "ROLLED_BACK"]
    assert ledger.accepted(TARGET) == {"2012-01": "run-jan", "2012-02": "run-feb"}
    assert ledger.run("run-jan").state_reason == "readers have it again: run-all was rolled back"


def test_rolling_back_a_partial_supersession_gives_back_the_part(ledger: Ledger) -> None:
    published(ledger, "run-one")
    published(ledger, "run-two", "2012-02-01", "2012-02-29")
    rolled_back(ledger, "run-two")

    assert states(ledger, "run-one", "run-two") == ["PUBLISHED", "ROLLED_BACK"]
    assert ledger.accepted(TARGET) == dict.fromkeys(CHUNKS, "run-one")


def test_rolling_back_twice_over_restores_the_first_of_three(ledger: Ledger) -> None:
    for run_id in ("run-one", "run-two", "run-three"):
        published(ledger, run_id)
    rolled_back(ledger, "run-three")
    assert states(ledger, "run-one", "run-two", "run-three") == ["SUPERSEDED", "PUBLISHED", "ROLLED_BACK"]

    rolled_back(ledger, "run-two")
    assert states(ledger, "run-one", "run-two", "run-three") == ["PUBLISHED", "ROLLED_BACK", "ROLLED_BACK"]
    assert ledger.accepted(TARGET) == dict.fromkeys(CHUNKS, "run-one")


def test_rolling_back_the_first_run_of_a_target_leaves_nobody_accepted(ledger: Ledger) -> None:
    published(ledger, RUN)
    rolled_back(ledger, RUN)

    assert ledger.accepted(TARGET) == {}
    assert [entry.action for entry in ledger.publications(RUN)] == ["publish", "rollback"]


def test_rolling_back_again_after_a_crash_changes_nothing(ledger: Ledger) -> None:
    published(ledger, "run-one")
    published(ledger, "run-two")
    rolled_back(ledger, "run-two")
    moves = len(ledger.history("run-two"))
    rolled_back(ledger, "run-two")

    assert ledger.accepted(TARGET) == dict.fromkeys(CHUNKS, "run-one")
    assert len(ledger.history("run-two")) == moves


def actions(ledger: Ledger) -> list[tuple[str, str]]:
    return [(entry.run_id, entry.action) for entry in ledger.committed(TARGET)]


def test_changes_are_on_record_in_their_order_though_the_clock_is_set_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a rollback gives back is what the run took last, too."""
    for run_id in ("run-one", "run-two"):
        published(ledger, run_id)
    rolled_back(ledger, "run-two")
    published(ledger, "run-three")
    monkeypatch.setattr(LedgerEngine, "clock", staticmethod(lambda: datetime.now(UTC) - timedelta(hours=1)))
    again = ledger.open_publication("run-two", "reinstate", 101, "root", REQUESTER)
    ledger.accept("run-two", again, snapshot_id=102, added=3, removed=2, actor=REQUESTER)
    assert states(ledger, "run-one", "run-two", "run-three") == ["SUPERSEDED", "PUBLISHED", "SUPERSEDED"]
    rolled_back(ledger, "run-two")

    assert ledger.accepted(TARGET) == dict.fromkeys(CHUNKS, "run-three")
    assert states(ledger, "run-one", "run-two", "run-three") == ["SUPERSEDED", "ROLLED_BACK", "PUBLISHED"]
    assert actions(ledger) == [
        ("run-one", "publish"),
        ("run-two", "publish"),
        ("run-two", "rollback"),
        ("run-three", "publish"),
        ("run-two", "reinstate"),
        ("run-two", "rollback"),
    ]


def test_who_waits_for_the_target_changes_it_after_whom_he_waited_for(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated(ledger, "run-feb", "2012-02-01", "2012-02-29")
    before_locking = Ledger._before_locking
    opened = ledger.open_publication("run-feb", "publish", 7, "root", REQUESTER)

    def overtaken(own: Ledger, run_id: str) -> tuple[Plan, str]:
        if run_id == "run-feb":
            published(own, "run-jan", "2012-01-01", "2012-01-31")
        return before_locking(own, run_id)

    monkeypatch.setattr(Ledger, "_before_locking", overtaken)
    ledger.accept("run-feb", opened, snapshot_id=101, added=1, removed=1, actor=REQUESTER)
    assert actions(ledger) == [("run-jan", "publish"), ("run-feb", "publish")]


def test_a_ledger_that_was_written_with_a_clock_set_back_has_the_changes_of_a_run_in_their_order(
    ledger: Ledger,
) -> None:
    for run_id in ("run-one", "run-two"):
        published(ledger, run_id)
    rolled_back(ledger, "run-two")
    with ledger.engine.begin() as connection:  # as earlier versions left it
        connection.execute(
            publications.update()
            .where(publications.c.action == "rollback")
            .values(ended_at=datetime.now(UTC) - timedelta(hours=1))
        )
    assert actions(ledger) == [("run-one", "publish"), ("run-two", "publish"), ("run-two", "rollback")]


def test_every_version_that_was_ever_accepted_stays_on_record(ledger: Ledger) -> None:
    published(ledger, "run-one")
    published(ledger, "run-two")
    rolled_back(ledger, "run-two")
    with ledger.engine.connect() as connection:
        rows = connection.execute(
            sa.text("SELECT run_id, ended_by, ended_how FROM accepted_versions WHERE chunk = '2012-01' ORDER BY id")
        ).all()

    assert [tuple(row) for row in rows] == [
        ("run-one", "run-two", "SUPERSEDED"),
        ("run-two", "run-two", "ROLLED_BACK"),
        ("run-one", None, None),
    ]


# --- instants, people, sinks ------------------------------------------------------------------------------------------


@pytest.fixture(params=["UTC", "Pacific/Auckland", "America/St_Johns"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def test_instants_are_utc_whatever_the_zone_of_the_machine(ledger: Ledger, zone: str) -> None:
    before = datetime.now(UTC)
    record = planned(ledger, RUN)
    after = datetime.now(UTC)

    assert before <= record.created_at <= after
    assert record.created_at.utcoffset() == timedelta(0)
    assert before <= ledger.history(RUN)[0].at <= after
    with ledger.engine.connect() as connection:
        raw = connection.execute(sa.text("SELECT created_at FROM runs")).scalar_one()
    # SQLite keeps text without a zone; PostgreSQL an instant, which its driver returns in the zone of the session
    stored = raw if isinstance(raw, datetime) else datetime.fromisoformat(raw).replace(tzinfo=UTC)
    assert before <= stored <= after


def test_an_instant_of_another_zone_is_kept_as_the_same_instant(ledger: Ledger, zone: str) -> None:
    planned(ledger, RUN)
    given = datetime.fromisoformat("2012-03-25T01:30:00+13:00")
    with ledger.engine.begin() as connection:
        connection.execute(sa.update(runs_table).values(created_at=given))

    assert ledger.run(RUN).created_at == given
    assert ledger.run(RUN).created_at.tzinfo == UTC


def test_the_operator_is_who_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_OPERATOR", "grace")
    assert operator() == "grace"
    monkeypatch.delenv("BACKFILL_OPERATOR")
    assert operator()


def test_sink_requests_are_on_record_even_of_a_run_that_was_never_planned(ledger: Ledger) -> None:
    for decision in ("REFUSED", "ALLOWED"):
        ledger.record_sink_attempt(
            RUN,
            sink="run_audit",
            sink_class="ANALYTICAL_TABLE",
            mode="BACKFILL",
            action="plan",
            decision=decision,
            reason="why",
        )

    assert [entry.decision for entry in ledger.sink_attempts(RUN)] == ["REFUSED", "ALLOWED"]
    assert ledger.sink_attempts("another") == []
