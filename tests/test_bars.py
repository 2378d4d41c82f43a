"""How far a run is, as it is shown while it is computed: in a terminal, and where stderr is none."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import textwrap
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backfill_assets.cli import bars as shown
from backfill_assets.cli import launching
from backfill_assets.cli.bars import bars
from backfill_assets.staging import progress
from manifests.lifecycle import ChunkState
from resources.ledger import facade

STEP = """
import os, subprocess, sys, threading
import dagster as dg
from backfill_assets.cli.bars import bars

seen, enough = [], threading.Event()

def look():
    seen.append(len(seen))
    if len(seen) == 3:
        raise OSError("the ledger does not answer just now")
    if len(seen) > 10:
        enough.set()
    return min(4, len(seen)), 0

@dg.op
def compute():
    assert not os.isatty(2), "Dagster captures what a step prints"
    subprocess.run(["sh", "-c", "echo WARN: of a JVM >&2; echo WARN: its second line >&2"], check=True)
    print("said by a step", file=sys.stderr)
    assert enough.wait(60)

@dg.job
def work():
    compute()

with dg.DagsterInstance.local_temp(sys.argv[1]) as instance, bars(4, look):
    done = work.execute_in_process(instance=instance, raise_on_error=False)
print("succeeded" if done.success else "failed")
"""
_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def in_a_terminal(program: str, *arguments: str) -> str:
    """Return all that a Python program writes to a terminal of its own."""
    own, its = pty.openpty()
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment) as process:
        os.close(its)
        pieces = []
        try:
            while piece := os.read(own, 65_536):
                pieces.append(piece)
        except OSError:  # its other end is closed
            assert process.wait() == 0
        os.close(own)
    return b"".join(pieces).decode()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bars")


@pytest.fixture(scope="module")
def written(home: Path) -> str:
    return in_a_terminal(STEP, str(home))


def test_bars_go_on_while_dagster_captures_what_a_step_prints(written: str, home: Path) -> None:
    said = _CODES.sub("", written)
    assert said.rstrip().endswith("succeeded"), said
    counts = [int(one) for one in re.findall(r"computing\s+\S+\s+(\d)/4 0:00:\d\d", said)]
    assert counts == sorted(counts)
    assert {1, 2, 4} <= set(counts), "every look is shown, also after one that failed"
    captured = "".join(one.read_text() for one in home.rglob("*.err"))
    assert "its second line\nsaid by a step\n" in captured, "and Dagster has what was printed"


def test_what_others_print_stands_above_the_bars_and_is_not_drawn_over(written: str) -> None:
    screen = drawn(written)
    text = "\n".join(screen)
    assert [one for one in screen if one.startswith(("WARN", "said"))] == [
        "WARN: of a JVM",
        "WARN: its second line",
        "said by a step",
    ]
    assert len(re.findall("computing", text)) == len(re.findall("gating", text)) == 1, text
    assert screen.index("said by a step") < next(at for at, one in enumerate(screen) if one.startswith("computing"))


def drawn(written: str) -> list[str]:
    """Return the lines of a terminal after a text with the few codes that bars use."""
    lines, row = [""], 0
    for code, text in re.findall(r"(\x1b\[[0-9;?]*[a-zA-Z]|\r|\n)|([^\x1b\r\n]+)", written):
        if code == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif code == "\x1b[2K":
            lines[row] = ""
        elif code.endswith("A"):
            row -= int(code[2:-1])
        lines[row] += text
    return [line.rstrip() for line in lines]


def test_without_a_terminal_a_line_now_and_then_says_how_far_it_is(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "LINE_SECONDS", 0.01)
    answers = iter([None, (3, 0), (48, 0), (48, 17)])
    last = threading.Event()

    def look() -> tuple[int, int] | None:
        try:
            return next(answers)
        except StopIteration:
            last.set()
            return 48, 48

    with bars(48, look):
        assert last.wait(60)
    out, err = capfd.readouterr()
    assert out == "", "scripts read stdout"
    said = [line.rpartition(", after ")[0] for line in err.splitlines()]
    assert said[:4] == [
        "computing",
        "computing: 3 of 48 chunks are computed, 0 have passed",
        "gating: 48 of 48 chunks are computed, 0 have passed",
        "gating: 48 of 48 chunks are computed, 17 have passed",
    ]
    assert said[-1] == "gating: 48 of 48 chunks are computed, 48 have passed"


def test_a_command_whose_stderr_is_closed_or_full_ends_as_any_other() -> None:
    program = "from backfill_assets.cli.bars import bars\nwith bars(1, lambda: (1, 1)):\n    print('done')\n"
    for where in ("2>&-", "2>/dev/full"):
        done = subprocess.run(
            ["sh", "-c", f'"$0" -c "$1" {where}', sys.executable, program],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "done\n"), where


def test_lines_go_where_stderr_led_before_it_was_captured(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shown, "LINE_SECONDS", 0.01)
    looks = threading.Semaphore(0)

    def look() -> tuple[int, int]:
        looks.release()
        return 1, 0

    with bars(2, look), (tmp_path / "log").open("w") as log:
        before = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            for _ in range(3):
                assert looks.acquire(timeout=60)
        finally:
            os.dup2(before, 2)
            os.close(before)
    assert (tmp_path / "log").read_text() == ""
    assert capfd.readouterr().err.count("computing: 1 of 2 chunks are computed") >= 3


def test_the_count_does_not_fall_back_between_spark_s_commit_and_the_ledger_s_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = ["2012-01", "2012-02", "2012-03"]
    under_way = SimpleNamespace(prefix="file:///staging/attempt-1", is_running=True, keys=keys)
    again = SimpleNamespace(prefix="file:///staging/attempt-2", is_running=True, keys=keys)
    attempts, written, looks = [under_way], {"2012-01", "2012-02"}, list[Any]()
    chunks = [SimpleNamespace(chunk=key, state=ChunkState.PLANNED) for key in keys]
    ledger = SimpleNamespace(chunks=lambda _: chunks, attempts=lambda _: attempts, close=lambda: None, url="")
    monkeypatch.setattr(facade, "Ledger", lambda _: ledger)
    monkeypatch.setattr(progress, "written_chunks", lambda _: written)
    monkeypatch.setattr(launching, "bars", lambda _, look: nullcontext(looks.append(look)))
    with launching._progress(cast("Any", SimpleNamespace(ledger=ledger)), "run", [one.chunk for one in chunks]):
        (look,) = looks
        assert look() == (2, 0)
        written.clear()  # Spark has committed: its folder of what is under way is gone
        assert look() == (2, 0)
        attempts.append(again)  # what failed is computed anew
        assert look() == (0, 0)
        for one in chunks:
            one.state = ChunkState.STAGED
        attempts.clear()
        assert look() == (3, 0)


def test_a_bar_counts_nothing_of_another_launch_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = SimpleNamespace(prefix="file:///staging/attempt-1", is_running=True, keys=["2012-01", "2012-02"])
    other = SimpleNamespace(prefix="file:///staging/attempt-2", is_running=True, keys=["2012-03", "2012-04"])
    written = {mine.prefix: {"2012-01"}, other.prefix: {"2012-03", "2012-04"}}
    chunks = [SimpleNamespace(chunk=key, state=ChunkState.PLANNED) for one in (mine, other) for key in one.keys]
    ledger = SimpleNamespace(chunks=lambda _: chunks, attempts=lambda _: [mine, other], close=lambda: None, url="")
    looks = list[Any]()
    monkeypatch.setattr(facade, "Ledger", lambda _: ledger)
    monkeypatch.setattr(progress, "written_chunks", written.__getitem__)
    monkeypatch.setattr(launching, "bars", lambda _, look: nullcontext(looks.append(look)))
    with launching._progress(cast("Any", SimpleNamespace(ledger=ledger)), "run", mine.keys):
        assert looks[0]() == (1, 0)
