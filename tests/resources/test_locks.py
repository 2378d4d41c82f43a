"""Nobody comes between what a ledger transaction reads and what it writes, on SQLite as on PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from servers import Postgres
from support import (
    APPROVER,
    REQUESTER,
    TARGET,
    a_manifest,
    a_plan,
    approved,
    gated,
    moved,
    pass_all,
    planned,
    stage_all,
    staged_files,
)

from manifests.errors import EnvironmentRefused, Refused
from manifests.lifecycle import RunState
from resources.ledger.facade import ChunkState, Ledger, RunRecord

RUN = "restate-2012"
CHUNKS = ["2012-01", "2012-02", "2012-03"]
Operation = Callable[[Ledger], Any]
_PAUSE = 0.2


class Meanwhile:
    """What came of an operation during which another process did something else."""

    def __init__(self) -> None:
        self.overtaken = False
        self.refused: list[Refused] = []


def meanwhile(
    ledger: Ledger, operation: Operation, other: Operation, *, before: str = "", within: float = _PAUSE
) -> Meanwhile:
    """Run an operation, stop it before its first write (to the table `before`), and let another process try `other`.

    The operation goes on once the other one has ended, or has waited for so many seconds.
    """
    outcome = Meanwhile()
    theirs = Ledger(ledger.url)
    started: list[Future[None]] = []

    def attempt(act: Operation, own: Ledger) -> None:
        try:
            act(own)
        except Refused as refusal:
            outcome.refused.append(refusal)

    with ThreadPoolExecutor(1) as pool:

        def pause(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if started or not statement.startswith(("INSERT", "UPDATE", "DELETE")) or before not in statement:
                return
            started.append(pool.submit(attempt, other, theirs))
            waiting = threading.Event()
            started[0].add_done_callback(lambda _: waiting.set())
            outcome.overtaken = waiting.wait(within)

        sa.event.listen(ledger.engine, "before_cursor_execute", pause)
        try:
            attempt(operation, ledger)
        finally:
            sa.event.remove(ledger.engine, "before_cursor_execute", pause)
        assert started, "the operation wrote nothing: there was nothing to come between"
        started[0].result(30)
    theirs.engine.dispose()
    return outcome


def cancel(own: Ledger) -> None:
    moved(own, RUN, RunState.CANCELLED, "somebody")


def approve(record: RunRecord) -> Operation:
    return lambda own: own.decide(
        RUN, approve=True, by=APPROVER, comment="", self_approval=False, plan_hash=record.plan_hash
    )


def plan_again(own: Ledger) -> None:
    other = a_manifest(RUN, reason="a better reason for it")
    own.record_plan(other, a_plan(other), REQUESTER)


def start(own: Ledger) -> tuple[int, str]:
    return own.start_attempt(RUN, CHUNKS, edition=0, actor=REQUESTER, location="/lake/data")


def validated(ledger: Ledger, run_id: str) -> RunRecord:
    record = approved(ledger, run_id)
    pass_all(ledger, record, stage_all(ledger, record))
    moved(ledger, run_id, RunState.VALIDATED, REQUESTER)
    return ledger.run(run_id)


def accept(run_id: str) -> Operation:
    def act(own: Ledger) -> None:
        publication = own.open_publication(run_id, "publish", 7, "root", REQUESTER)
        own.accept(run_id, publication, snapshot_id=100, added=3, removed=2, actor=REQUESTER)

    return act


def undo(run_id: str) -> Operation:
    def act(own: Ledger) -> None:
        publication = own.open_publication(run_id, "rollback", 100, "root", REQUESTER)
        own.undo(run_id, publication, snapshot_id=101, added=2, removed=3, actor=REQUESTER)

    return act


# --- of one run -------------------------------------------------------------------------------------------------------


def test_a_plan_does_not_change_between_an_approvers_look_and_the_approval(ledger: Ledger) -> None:
    record = planned(ledger, RUN)
    found = meanwhile(ledger, approve(record), plan_again)

    assert not found.overtaken
    assert len(found.refused) == 1, "the other plan came after the approval"
    assert ledger.run(RUN).plan_hash == record.plan_hash == ledger.approvals(RUN)[0].plan_hash


def test_a_plan_is_not_approved_while_it_is_replaced(ledger: Ledger) -> None:
    record = planned(ledger, RUN)
    found = meanwhile(ledger, plan_again, approve(record))

    assert not found.overtaken
    assert len(found.refused) == 1, "the approval was of a plan that is no more"
    assert ledger.approvals(RUN) == []
    assert ledger.run(RUN).state is RunState.PLANNED


def test_of_two_first_plans_of_a_run_the_later_one_counts_and_neither_fails(ledger: Ledger) -> None:
    found = meanwhile(ledger, lambda own: planned(own, RUN), lambda own: planned(own, RUN, end="2012-02-29"))

    assert found.refused == []
    kept = ledger.run(RUN)
    assert kept.state is RunState.PLANNED
    assert [chunk.chunk for chunk in ledger.chunks(RUN)] == [chunk.key for chunk in kept.plan.chunks]
    assert len(ledger.history(RUN)) == 1


def test_two_attempts_never_have_the_same_number_and_folder(ledger: Ledger) -> None:
    approved(ledger, RUN)
    start(ledger)
    found = meanwhile(ledger, start, start)

    assert not found.overtaken
    assert [one.attempt for one in ledger.attempts(RUN)] == [1, 2, 3]
    assert len({one.prefix for one in ledger.attempts(RUN)}) == 3


def test_nothing_is_staged_into_a_run_that_is_cancelled_meanwhile(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    attempt, _ = start(ledger)
    found = meanwhile(ledger, lambda own: own.stage(RUN, attempt, staged_files(record, attempt)), cancel)

    assert not found.overtaken
    assert found.refused == []
    assert {chunk.state for chunk in ledger.chunks(RUN)} == {ChunkState.STAGED}, "they were staged before the end"
    assert ledger.run(RUN).state is RunState.CANCELLED


def test_two_launches_that_end_together_settle_the_run_once_and_neither_fails(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    attempt, _ = start(ledger)
    ledger.stage(RUN, attempt, staged_files(record, attempt))
    found = meanwhile(ledger, lambda own: own.settle(RUN, "one"), lambda own: own.settle(RUN, "two"))

    assert found.refused == []
    assert [one.to_state for one in ledger.history(RUN)][-2:] == ["RUNNING", "STAGED"]


def test_two_launches_that_begin_together_resume_the_run_once_and_neither_fails(ledger: Ledger) -> None:
    approved(ledger, RUN)
    found = meanwhile(ledger, lambda own: own.resume(RUN, "one"), lambda own: own.resume(RUN, "two"))

    assert found.refused == []
    assert [one.to_state for one in ledger.history(RUN)].count("RUNNING") == 1


def test_a_chunk_is_not_set_back_between_the_look_at_all_of_them_and_the_move_to_staged(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    attempt, _ = start(ledger)
    ledger.stage(RUN, attempt, staged_files(record, attempt))
    first = ledger.chunks(RUN)[0]

    def set_back(own: Ledger) -> None:
        assert own.repairs.plan_again(RUN, first, "its file is damaged", "doctor")

    found = meanwhile(ledger, set_back, lambda own: own.settle(RUN, "ada"))

    assert not found.overtaken
    assert [chunk.state.value for chunk in ledger.chunks(RUN)] == ["PLANNED", "STAGED", "STAGED"]
    assert ledger.run(RUN).state is RunState.RUNNING


def test_two_passes_over_the_same_chunks_do_not_wait_for_each_other_in_a_circle(ledger: Ledger) -> None:
    record = approved(ledger, RUN)
    attempt = stage_all(ledger, record)
    keys = [chunk.key for chunk in record.plan.chunks]

    def judge(order: list[str]) -> Operation:
        return lambda own: own.record_gated(RUN, [gated(key, attempt) for key in order])

    # the first pass holds its first chunk when it is stopped, before it records that chunk's verdict
    found = meanwhile(ledger, judge(keys), judge(keys[::-1]), before="verdicts")

    assert found.refused == []
    assert {chunk.state for chunk in ledger.chunks(RUN)} == {ChunkState.PASSED}


@pytest.mark.parametrize("ended", [RunState.CANCELLED, RunState.REJECTED])
def test_the_one_who_comes_second_is_told_what_the_first_one_did(ledger: Ledger, ended: RunState) -> None:
    planned(ledger, RUN)
    found = meanwhile(ledger, lambda own: moved(own, RUN, ended, "first"), cancel)

    said = "is CANCELLED already" if ended is RunState.CANCELLED else f"is {ended} and cannot become CANCELLED"
    assert [str(refusal).count(said) for refusal in found.refused] == [1]
    assert len(ledger.history(RUN)) == 2


def test_another_run_is_not_held_up(ledger: Ledger, backend: str) -> None:
    approved(ledger, RUN)
    planned(ledger, "other")
    within = 10.0 if backend == "postgres" else _PAUSE  # a machine that is busy takes its time
    found = meanwhile(ledger, start, lambda own: moved(own, "other", RunState.CANCELLED, "somebody"), within=within)

    assert found.overtaken == (backend == "postgres"), "SQLite has one writer at a time"
    assert found.refused == []


# --- of a target ------------------------------------------------------------------------------------------------------


def test_two_runs_accepted_together_never_both_hold_a_chunk(ledger: Ledger) -> None:
    for run_id in ("one", "two"):
        validated(ledger, run_id)
    found = meanwhile(ledger, accept("one"), accept("two"), before="accepted_versions")

    assert not found.overtaken
    assert found.refused == []
    assert ledger.accepted(TARGET) == dict.fromkeys(CHUNKS, "two")
    assert (ledger.run("one").state, ledger.run("two").state) == (RunState.SUPERSEDED, RunState.PUBLISHED)
    with ledger.engine.connect() as connection:
        held = connection.execute(sa.text("SELECT count(*) FROM accepted_versions WHERE ended_at IS NULL")).scalar()
    assert held == len(CHUNKS)


def test_a_rollback_and_an_acceptance_together_leave_one_holder_of_each_chunk(ledger: Ledger) -> None:
    for run_id in ("one", "two"):
        validated(ledger, run_id)
    accept("one")(ledger)
    found = meanwhile(ledger, undo("one"), accept("two"), before="accepted_versions")

    assert not found.overtaken
    assert found.refused == []
    assert ledger.accepted(TARGET) == dict.fromkeys(CHUNKS, "two")
    assert (ledger.run("one").state, ledger.run("two").state) == (RunState.ROLLED_BACK, RunState.PUBLISHED)


# --- of the server ----------------------------------------------------------------------------------------------------


def test_the_locks_do_not_depend_on_the_isolation_that_a_server_defaults_to(
    ledger: Ledger, postgres_server: Postgres
) -> None:
    if ledger.engine.dialect.name == "postgresql":
        with ledger.engine.begin() as connection:
            name = connection.execute(sa.text("SELECT current_database()")).scalar_one()
            level = "'repeatable read'"
            connection.execute(sa.text(f"ALTER DATABASE {name} SET default_transaction_isolation = {level}"))
        ledger.engine.dispose()
    approved(ledger, RUN)
    meanwhile(ledger, start, start)

    assert [one.attempt for one in ledger.attempts(RUN)] == [1, 2]


def test_a_wrong_password_is_refused_and_not_shown(postgres_server: Postgres) -> None:
    url = postgres_server.url("postgres").replace(postgres_server.password, "hunter2")
    for use in (Ledger.migrate, Ledger.require_current):
        with pytest.raises(EnvironmentRefused, match="password authentication failed") as refused:
            use(Ledger(url))
        assert "hunter2" not in str(refused.value)


def test_a_process_that_stands_still_with_a_lock_does_not_hold_the_others_for_ever(ledger: Ledger) -> None:
    if ledger.engine.dialect.name == "sqlite":
        with ledger.engine.begin() as connection:
            assert connection.execute(sa.text("PRAGMA busy_timeout")).scalar_one() == 60_000
        return
    for _ in range(2):  # also on a connection that comes from the pool
        with ledger.engine.connect() as connection:
            waits = [connection.execute(sa.text(f"SHOW {name}")).scalar_one() for name in TIMEOUTS]
            assert waits == ["1min", "1min"]


TIMEOUTS = ("lock_timeout", "idle_in_transaction_session_timeout")
