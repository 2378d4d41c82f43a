"""A process is told from another of the same number, whatever containers and machines call themselves."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support import approved, staged_files

from resources import processes
from resources.ledger.admissions import require_place
from resources.ledger.facade import Ledger
from resources.ledger.tables import attempts
from resources.processes import has_ended, is_at_work, is_busy, is_gone, name_of, this_process

RUN = "restate-2012"
CHUNKS = ["2012-01", "2012-02", "2012-03"]
OTHER = "pid:[4026599999]"


@pytest.fixture
def dead() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def named(pid: int, **changes: str) -> str:
    host, machine, boot, namespace, _, began = name_of(pid).split("/")
    parts = {"host": host, "machine": machine, "boot": boot, "namespace": namespace, "pid": str(pid), "began": began}
    return "/".join((parts | changes).values())


def test_this_process_lives_and_an_ended_one_does_not(dead: int) -> None:
    assert (is_at_work(this_process()), is_gone(this_process())) == (True, False)
    assert (is_at_work(name_of(dead)), is_gone(name_of(dead))) == (False, True)
    again = named(os.getpid(), began="1")  # the number of a process is used again
    assert (is_at_work(again), is_gone(again)) == (False, True)


@pytest.mark.parametrize(
    "elsewhere", [{"namespace": OTHER}, {"boot": "another-boot"}, {"machine": "another"}, {"host": "another"}]
)
def test_nothing_is_said_of_a_process_that_cannot_be_seen_from_here(dead: int, elsewhere: dict[str, str]) -> None:
    if "boot" in elsewhere:  # what is said of another boot is below
        elsewhere["namespace"] = OTHER
    for pid in (dead, os.getpid()):
        name = named(pid, **elsewhere)
        assert (is_gone(name), is_at_work(name)) == (False, False), name


@pytest.mark.parametrize(
    ("machine", "namespace", "gone"), [("m-1", "init", True), ("", "init", False), ("m-1", OTHER, False)]
)
def test_a_machine_that_was_started_again_has_lost_its_processes_and_a_container_may_be_another(
    monkeypatch: pytest.MonkeyPatch, machine: str, namespace: str, gone: bool
) -> None:
    namespace = processes._OUTERMOST if namespace == "init" else namespace
    monkeypatch.setattr(processes, "_machine", lambda: machine)
    monkeypatch.setattr(processes, "_namespace", lambda: namespace)
    before = named(os.getpid(), boot="the-boot-before")
    assert (is_gone(before), is_at_work(before)) == (gone, False)


def test_records_of_older_code_name_host_and_number(dead: int) -> None:
    def worker(pid: int, host: str = socket.gethostname()) -> SimpleNamespace:
        return SimpleNamespace(host=host, pid=pid, process="")

    assert (has_ended(worker(dead)), has_ended(worker(os.getpid())), has_ended(worker(dead, "x"))) == (
        True,
        False,
        False,
    )
    assert (is_busy(worker(dead)), is_busy(worker(os.getpid())), is_busy(worker(os.getpid(), "x"))) == (
        False,
        True,
        False,
    )


def test_a_launch_in_another_container_of_the_same_host_name_keeps_its_attempt(ledger: Ledger, dead: int) -> None:
    record = approved(ledger, RUN)
    number, _ = ledger.start_attempt(RUN, CHUNKS, edition=0, actor="ada", location="/lake") or (0, "")
    with ledger.engine.begin() as connection:  # as the other container writes it; here its number is nobody's
        connection.execute(attempts.update().values(pid=dead, process=named(dead, namespace=OTHER)))
    ledger.fail_attempts_of_dead_processes(RUN)
    with ledger.engine.begin() as connection:
        require_place(connection, RUN, 1)
    assert [one.state for one in ledger.attempts(RUN)] == ["RUNNING"]
    ledger.stage(RUN, number, staged_files(record, number))
