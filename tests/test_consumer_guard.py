"""A consumer that asks the guard does live events once each, and nothing by a backfill that it does not wait for."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import backfill_assets as ba
from manifests import model
from resources.sinks import consumer_guard

LIVE = [("x-run-id", b"live-1"), ("x-processing-mode", b"LIVE"), ("x-synthetic", b"false"), ("x-event-id", b"e1")]
PAST = [("x-run-id", b"bf-1"), ("x-processing-mode", b"BACKFILL"), ("x-synthetic", b"true"), ("x-event-id", b"e1")]


def without(name: str, headers: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    return [one for one in headers if one[0] != name]


def test_by_default_only_live_events_are_processed() -> None:
    guard, done = ba.ConsumerGuard(), []
    for headers in (LIVE, PAST, None, [], {"trace": "1"}):
        guard.handle(headers, lambda: done.append(1))
    assert len(done) == 4
    assert guard.counts == {("PROCESS", "LIVE"): 1, ("REFUSE", "BACKFILL"): 1, ("PROCESS", "-"): 3}


@pytest.mark.parametrize(
    "headers",
    [
        without("x-run-id", PAST),
        without("x-processing-mode", PAST),
        without("x-synthetic", PAST),
        without("x-event-id", PAST),
        [*without("x-processing-mode", PAST), ("x-processing-mode", b"LIVE")],
        [*without("x-synthetic", PAST), ("x-synthetic", b"false")],
        [*without("x-synthetic", PAST), ("x-synthetic", b"\xff")],
        without("x-synthetic", LIVE),
        without("x-run-id", LIVE),
        without("x-event-id", LIVE),
        [*PAST, *LIVE],
        [*PAST, ("x-processing-mode", b"LIVE"), ("x-synthetic", b"false")],
        [*LIVE, ("x-run-id", b"live-2")],
        [*LIVE, ("x-event-id", b"e2")],
        [(name, None) for name, _ in PAST],
        [("x-event-id", b"e1"), ("x-publication", b"bf-1/sink/1"), ("x-op", b"retract")],
        [("x-event-id", b"e1"), ("x-corrects", None)],
        [("x-event-id", b"e1"), ("x-event-id", b"e2")],
        [*without("x-processing-mode", PAST), ("x-processing-mode", b"DRY_RUN")],
        [*without("x-processing-mode", PAST), ("x-processing-mode", b"")],
        *(
            [*without("x-processing-mode", PAST), ("x-processing-mode", mode)]
            for mode in (b"dry_run", b"DRY_RUN ", b"RECONCILIATION\0", b"live", b"Live", b"backfill", b"MADEUP")
        ),
        *([*events, ("x-op", said)] for events in (LIVE, PAST) for said in (b"RETRACT", b"delete", b"", None)),
        *(
            [*events, (name, said)]
            for events in (LIVE, PAST)
            for name in ("x-content", "x-transform-version", "x-input-snapshot", "x-publication")
            for said in (b"", None)
        ),
        [*LIVE, ("x-op", b"retract"), ("x-corrects", None)],
    ],
)
def test_headers_that_contradict_one_another_are_refused_whoever_is_waited_for(
    headers: list[tuple[str, bytes]],
) -> None:
    guard = ba.ConsumerGuard(runs=("bf-1",), routes={"*": "rebuild"})
    assert guard.decide(headers).verdict == "REFUSE"


@pytest.mark.parametrize("run_id", ["live", "live, last", "live\n", "Live", "l", "bf 1", "x" * 65, "bf-\u0661x"])
def test_no_run_takes_the_place_of_what_live_has_told(run_id: str) -> None:
    guard, done = ba.ConsumerGuard(ba.SqliteEventIds(":memory:"), runs=(run_id,), routes={"*": "rebuild"}), []
    for event in ("a", "a\x1f1"):  # as LIVE's are kept by themselves, and by what was told last
        past = [("x-run-id", run_id.encode()), *without("x-run-id", without("x-event-id", PAST))]
        told = guard.handle([*past, ("x-event-id", event.encode())], done.clear, {"rebuild": done.clear})
        assert told.verdict == "REFUSE"
    assert guard.handle(LIVE, lambda: done.append("e1")).verdict == "PROCESS"
    assert guard.handle(told_live("live-8", "a", "1"), lambda: done.append("a")).verdict == "PROCESS"
    assert done == ["e1", "a"]


def test_every_run_id_of_a_manifest_is_one_to_the_guard() -> None:
    assert consumer_guard._RUN_ID.pattern == model._RUN_ID.pattern
    assert {mode.value for mode in model.Mode} - consumer_guard._TELLING == {"DRY_RUN", "RECONCILIATION"}


def test_an_event_may_have_an_empty_text_as_its_id() -> None:
    guard, emptied = ba.ConsumerGuard(), [*without("x-event-id", LIVE), ("x-event-id", b"~live-1~rollback-2")]
    assert guard.decide([*emptied, ("x-op", b"retract"), ("x-corrects", b"")]).verdict == "PROCESS"
    assert (
        guard.decide([("x-event-id", b"e1"), ("x-op", b"upsert"), ("x-content", None)]).verdict == "PROCESS"
    )  # not ours


@pytest.mark.parametrize("spelled", [str.upper, str.title])
def test_names_in_other_letters_and_the_same_said_twice_are_no_other_headers(spelled: Callable[[str], str]) -> None:
    guard = ba.ConsumerGuard()
    assert guard.decide([(spelled(name), value) for name, value in PAST]).verdict == "REFUSE"
    assert guard.decide({spelled(name): value for name, value in LIVE}).verdict == "PROCESS"
    assert guard.decide([*LIVE, *LIVE]).verdict == "PROCESS"
    assert guard.decide([("X-Event-Id", None), ("trace", b"\xff")]).verdict == "PROCESS"  # who knows no headers


def test_ids_that_are_no_text_are_told_from_one_another() -> None:
    guard = ba.ConsumerGuard(ba.SqliteEventIds(":memory:"))
    ids = (b"\xff", b"\xfe", b"\xff", b"\x00\x81", b"\x00\x82")
    told = [guard.handle([("x-event-id", one)], lambda: None).verdict for one in ids]
    assert told == ["PROCESS", "PROCESS", "DUPLICATE", "PROCESS", "PROCESS"]


def test_headers_that_can_be_read_once_are_read_once() -> None:
    guard, done = ba.ConsumerGuard(ba.SqliteEventIds(":memory:")), []
    for run, content in (("live-1", "1"), ("live-2", "2"), ("live-3", "2")):
        guard.handle(iter(told_live(run, "a", content)), lambda content=content: done.append(content))
    assert done == ["1", "2"]
    assert guard.counts == {("PROCESS", "LIVE"): 2, ("DUPLICATE", "LIVE"): 1}


@pytest.mark.parametrize("odd", ["a\0b", "a\x1fb", "a\x1eb", "a\x1f", "\0"])
def test_an_id_with_characters_that_end_others_is_done_once_beside_one_that_it_begins_with(odd: str) -> None:
    guard, done = ba.ConsumerGuard(ba.SqliteEventIds(":memory:")), []
    for run, event in (("live-1", odd), ("live-1", "a"), ("live-1", ""), ("live-2", odd), ("live-2", "a")):
        guard.handle(told_live(run, event, "1"), lambda event=event: done.append(event))
    assert done == [odd, "a", ""]


def test_who_waits_for_a_run_gets_it_and_other_modes_are_routed() -> None:
    guard = ba.ConsumerGuard(runs=("bf-1",), routes={"REPLAY": "rebuild"}, requires_headers=True)
    assert guard.decide(PAST).verdict == "PROCESS"
    assert guard.decide(None).verdict == "REFUSE"
    other = [*without("x-run-id", PAST), ("x-run-id", b"bf-2")]
    assert guard.decide(other).verdict == "REFUSE"
    replay = [*without("x-processing-mode", other), ("x-processing-mode", b"REPLAY")]
    assert (guard.decide(replay).verdict, guard.decide(replay).route) == ("ROUTE", "rebuild")
    done: list[str] = []
    guard.handle(replay, lambda: done.append("live"), {"rebuild": lambda: done.append("rebuild")})
    assert done == ["rebuild"]
    with pytest.raises(KeyError):
        guard.handle(replay, lambda: None)


def test_an_event_is_done_once_in_its_scope(tmp_path: Path) -> None:
    events = ba.SqliteEventIds(tmp_path / "seen.db")
    guard, done = ba.ConsumerGuard(events, runs=("bf-1",)), []
    for headers in (LIVE, LIVE, PAST, PAST, LIVE):
        guard.handle(headers, lambda: done.append(1))
    assert len(done) == 2  # the live one, and what the run says of the same event
    events.close()
    again = ba.ConsumerGuard(ba.SqliteEventIds(tmp_path / "seen.db"))
    assert again.handle(LIVE, lambda: done.append(1)).verdict == "DUPLICATE"
    assert len(done) == 2


def test_work_that_fails_is_done_again(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "own.db")
    database.execute("CREATE TABLE balance (amount INTEGER)")
    database.commit()
    guard = ba.ConsumerGuard(ba.SqliteEventIds(database))

    def fails() -> None:
        database.execute("INSERT INTO balance VALUES (1)")
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        guard.handle(LIVE, fails)
    assert database.execute("SELECT count(*) FROM balance").fetchone() == (0,)
    assert guard.handle(LIVE, lambda: database.execute("INSERT INTO balance VALUES (1)")).verdict == "PROCESS"
    assert guard.handle(LIVE, fails).verdict == "DUPLICATE"
    assert database.execute("SELECT count(*) FROM balance").fetchone() == (1,)


def test_a_consumer_killed_anywhere_has_each_effect_once(tmp_path: Path) -> None:
    script = """
import os, random, signal, sqlite3, sys
import backfill_assets as ba
place, seed = sys.argv[1], int(sys.argv[2])
random.seed(seed)
database = sqlite3.connect(place, timeout=30)
database.execute("CREATE TABLE IF NOT EXISTS done (event TEXT)")
database.commit()
guard = ba.ConsumerGuard(ba.SqliteEventIds(database))
for number in range(200):
    headers = [("x-run-id", b"r"), ("x-processing-mode", b"LIVE"), ("x-synthetic", b"false"), ("x-event-id", b"%d" % number)]
    def work():
        database.execute("INSERT INTO done VALUES (?)", (str(number),))
        if random.random() < 0.02: os.kill(os.getpid(), signal.SIGKILL)
    guard.handle(headers, work)
    if random.random() < 0.01: os.kill(os.getpid(), signal.SIGKILL)
"""
    codes = []
    for seed in range(60):
        codes.append(
            subprocess.run([sys.executable, "-c", script, str(tmp_path / "own.db"), str(seed)], check=False).returncode
        )
        if codes[-1] == 0:
            break
    assert codes[-1] == 0
    assert -signal.SIGKILL in codes
    found = [one for (one,) in sqlite3.connect(tmp_path / "own.db").execute("SELECT event FROM done")]
    assert sorted(found, key=int) == [str(number) for number in range(200)]


def test_of_two_that_ask_at_once_one_does_it(tmp_path: Path) -> None:
    done: list[int] = []
    gate = threading.Barrier(2)

    def consumer() -> None:
        guard = ba.ConsumerGuard(ba.SqliteEventIds(tmp_path / "seen.db"))
        gate.wait()
        for number in range(100):
            guard.handle([*without("x-event-id", LIVE), ("x-event-id", b"%d" % number)], lambda: done.append(1))

    threads = [threading.Thread(target=consumer) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(done) == 100


def test_a_consumer_s_process_imports_the_standard_library_alone() -> None:
    script = (
        "import sys, json; before = set(sys.modules)\n"
        "import backfill_assets as ba; ba.ConsumerGuard, ba.SqliteEventIds\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(json.dumps(sorted(new - set(sys.stdlib_module_names))))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert json.loads(done.stdout) == ["backfill_assets", "resources"]


def told_live(run: str, event: str, content: str, *, retract: bool = False) -> list[tuple[str, bytes]]:
    """Headers of an event of a LIVE run, or of its retraction."""
    headers = {"x-run-id": run, "x-processing-mode": "LIVE", "x-synthetic": "false", "x-content": content}
    headers["x-event-id"] = f"{event}~{run}~rollback-2" if retract else event
    headers |= {"x-op": "retract", "x-corrects": event} if retract else {"x-op": "publish"}
    return [(name, text.encode()) for name, text in headers.items()]


def test_what_live_tells_again_is_done_where_it_says_something_else_or_was_taken_back() -> None:
    guard, state = ba.ConsumerGuard(ba.SqliteEventIds(":memory:")), Counter[str]()
    first = [told_live("live-1", "a", "1"), told_live("live-1", "b", "1")]
    rewound = [told_live("live-2", "a", "1"), told_live("live-2", "b", "2")]
    back = [told_live("live-3", "b", "1")]
    taken_back = [told_live("live-3", "b", "r", retract=True)]
    again = [told_live("live-4", "b", "1")]
    verdicts = []
    for headers in (*first, *rewound, *back, *taken_back, *again):
        event = dict(headers)["x-event-id"].decode()
        verdicts.append(guard.handle(headers, lambda event=event: state.update([event])).verdict)
    assert verdicts == ["PROCESS", "PROCESS", "DUPLICATE", "PROCESS", "PROCESS", "PROCESS", "PROCESS"]
    # delivered once more, from the beginning: nothing is done twice
    for headers in (*first, *rewound, *back, *taken_back, *again):
        assert guard.handle(headers, lambda: pytest.fail("done twice")).verdict == "DUPLICATE"
    assert state == {"a": 1, "b": 4, "b~live-3~rollback-2": 1}


def test_what_live_says_is_not_lost_to_an_event_without_headers_nor_that_to_live() -> None:
    unknown = [("x-event-id", b"a")]
    for order in ((unknown, told_live("live-1", "a", "1")), (told_live("live-1", "a", "1"), unknown)):
        guard, done = ba.ConsumerGuard(ba.SqliteEventIds(":memory:")), []
        for headers in (*order, *order):
            guard.handle(headers, lambda headers=headers, done=done: done.append(headers))
        assert done == list(order)  # each once: nothing shows whether they say the same


def test_a_live_event_costs_the_same_however_many_were_done_before() -> None:
    database = sqlite3.connect(":memory:")
    guard, steps = ba.ConsumerGuard(ba.SqliteEventIds(database)), Counter[str]()
    database.set_progress_handler(lambda: steps.update(["looked"]), 50)  # once in so many steps of SQLite's machine

    def looked(first: int, until: int) -> int:
        before = steps["looked"]
        for number in range(first, until):
            assert guard.handle(told_live("live-1", f"meter {number}", "1"), lambda: None).verdict == "PROCESS"
        return steps["looked"] - before

    assert (few := looked(0, 200)) > 0
    looked(200, 2_000)
    assert looked(2_000, 2_200) <= 2 * few


def test_what_live_says_of_an_event_is_not_taken_for_what_it_said_of_one_with_a_longer_id() -> None:
    guard = ba.ConsumerGuard(ba.SqliteEventIds(":memory:"))
    told = ("a", "a ", "a b", "a~", "ab", "aä", "A")
    for run, verdict in (("live-1", "PROCESS"), ("live-2", "DUPLICATE")):
        assert [guard.handle(told_live(run, one, "1"), lambda: None).verdict for one in told] == [verdict] * len(told)
