"""Commands of contenders: run in processes of their own, timed on the clock and by processor, and killed where that is asked.

Put here how a command is started, measured and killed. What the commands are is each contender's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.installation import _descendants
from benchmarks.side_by_side.states import Look, read_looks

ROOT = Path(__file__).resolve().parents[2]
_TICKS = os.sysconf("SC_CLK_TCK")
_PATIENCE = 1800.0
_LINES = 30


@dataclass(frozen=True)
class Command:
    """A command line, with its environment and working folder."""

    words: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path = ROOT


@dataclass(frozen=True)
class Done:
    """What came of commands: seconds on the clock and of processors, whether the last succeeded or was killed, what they printed."""

    seconds: float
    computed: float
    succeeded: bool
    killed: bool
    printed: str


class _Processors(threading.Thread):
    """Samples the processor seconds of a process and of all its descendants; those that have ended count as last seen."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.root, self.stop = root, threading.Event()
        self.ticks: dict[int, int] = {}

    def run(self) -> None:
        """Sample ten times a second until stopped."""
        while not self.stop.wait(0.1):
            for pid in {*_descendants(self.root), *self.ticks}:
                with suppress(OSError):  # it has just ended
                    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    self.ticks[pid] = max(self.ticks.get(pid, 0), int(stat[11]) + int(stat[12]))

    @property
    def seconds(self) -> float:
        """What has been seen so far."""
        return sum(self.ticks.values()) / _TICKS


def run(
    commands: Sequence[Command], log: Path, kill_at: Callable[[float], bool] | None = None, extra: Mapping[str, str] | None = None
) -> Done:
    """Run commands one after the other until one fails; with `kill_at`, which is asked with the seconds of the last, kill -9 that.

    A kill takes its whole process group: it is what remains of a machine that went away. All output goes to `log`.
    """
    began, computed = time.monotonic(), 0.0
    code, killed = 0, False
    with log.open("ab") as output:
        for number, command in enumerate(commands, 1):
            environment = {**os.environ, **command.environment, **(extra or {})}
            process = subprocess.Popen(
                list(command.words),
                cwd=command.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            processors = _Processors(process.pid)
            processors.start()
            is_last = number == len(commands)
            killed = _waited(process, kill_at if is_last else None)
            processors.stop.set()
            processors.join()
            computed += processors.seconds
            code = process.returncode
            if code:
                break
    printed = log.read_text(errors="replace")
    return Done(time.monotonic() - began, computed, code == 0, killed, printed)


def _waited(process: subprocess.Popen[bytes], kill_at: Callable[[float], bool] | None) -> bool:
    """Wait for a process, or kill it with all that it started; return whether it was killed."""
    began = time.monotonic()
    while process.poll() is None:
        waited = time.monotonic() - began
        if waited > _PATIENCE or (kill_at is not None and kill_at(waited)):
            started = _descendants(process.pid)
            os.killpg(process.pid, signal.SIGKILL)
            for pid in started:  # PySpark's daemon has a group of its own
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            if waited > _PATIENCE:
                raise SystemExit(f"{' '.join(map(str, process.args[:6]))} has not ended in {_PATIENCE:g} s")  # type: ignore[index]
            return True
        time.sleep(0.05)
    return False


def require(done: Done, what: str) -> Done:
    """Return what came of commands that have to succeed, or end with what they printed."""
    if not done.succeeded:
        lines = "\n".join(done.printed.splitlines()[-_LINES:])
        raise SystemExit(f"{what} has failed:\n{lines}")
    return done


@contextmanager
def reader(kind: str, place: Path, notes: Path, hertz: float) -> Iterator[None]:
    """Have a process look at a table meanwhile; the body begins once it has looked, and it looks once more at the end."""
    words = [sys.executable, "-m", "benchmarks.side_by_side.readers", kind, str(place), str(notes), str(hertz)]
    process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        while not read_looks(notes):
            if process.poll() is not None:
                raise SystemExit(f"the reader of {place} has ended with {process.returncode}")
            time.sleep(0.05)
        yield
    finally:
        process.stdin.close()
        process.wait()


def last_look(notes: Path) -> Look:
    """Return what a reader saw last."""
    return read_looks(notes)[-1]
