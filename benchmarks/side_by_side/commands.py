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


class RoundError(Exception):
    """A round of a contender could not be done; it says why."""


@dataclass(frozen=True)
class Command:
    """A command line, with its environment and working folder."""

    words: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path = ROOT


@dataclass(frozen=True)
class Done:
    """What came of commands: seconds on the clock and of processors, whether the last succeeded or was killed, what they printed.

    `written` are the seconds in which the last one wrote, as far as it says so.
    """

    seconds: float
    computed: float
    succeeded: bool
    killed: bool
    printed: str
    written: float


Writes = Callable[[str], tuple[bool, bool]]
"""Called with what a command has printed: whether it has begun to write by now, and whether it has written all."""
KillAt = Callable[[float | None], bool]
"""Called with the seconds since the last command had begun to write, None before: whether to kill it now."""


class _Processors(threading.Thread):
    """Samples the processor seconds of a process and of all its descendants; those that have ended count as last seen."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.root, self.stop = root, threading.Event()
        self.ticks: dict[int, int] = {}

    def run(self) -> None:
        """Sample five times a second until stopped."""
        while not self.stop.wait(0.2):
            for pid in {*_descendants(self.root), *self.ticks}:
                with suppress(OSError):  # it has just ended
                    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    self.ticks[pid] = max(self.ticks.get(pid, 0), int(stat[11]) + int(stat[12]))

    @property
    def seconds(self) -> float:
        """What has been seen so far."""
        return sum(self.ticks.values()) / _TICKS


def run(
    commands: Sequence[Command],
    log: Path,
    *,
    writes: Writes = lambda _: (True, False),
    kill_at: KillAt | None = None,
    extra: Mapping[str, str] | None = None,
) -> Done:
    """Run commands one after the other until one fails; with `kill_at`, which is asked about the last, kill -9 that.

    A kill takes all its processes: it is what remains of a machine that went away. All output goes to `log`.
    """
    began, computed, code, killed = time.monotonic(), 0.0, 0, False
    watch = _Watch(log, writes)
    with log.open("ab") as output:
        for number, command in enumerate(commands, 1):
            watch = _Watch(log, writes)
            process = subprocess.Popen(
                list(command.words),
                cwd=command.folder,
                env={**os.environ, **command.environment, **(extra or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            processors = _Processors(process.pid)
            processors.start()
            killed = _waited(process, watch, kill_at if number == len(commands) else None)
            processors.stop.set()
            processors.join()
            computed += processors.seconds
            code = process.returncode
            if code:
                break
    printed = log.read_text(errors="replace") if log.exists() else ""
    return Done(time.monotonic() - began, computed, code == 0, killed, printed, watch.written())


class _Watch:
    """Watches what a command prints for the words that it has begun to write, and has written."""

    def __init__(self, log: Path, writes: Writes) -> None:
        self.log, self.writes, self.began = log, writes, time.monotonic()
        self.before = log.stat().st_size if log.exists() else 0
        self.begun_at: float | None = None
        self.written_at: float | None = None

    def since_begun(self) -> float | None:
        """Return the seconds since it had begun to write; None before."""
        now = time.monotonic()
        if self.written_at is None:
            with self.log.open("rb") as file:
                file.seek(self.before)
                has_begun, has_written = self.writes(file.read().decode(errors="replace"))
            if has_begun and self.begun_at is None:
                self.begun_at = now
            if has_written:
                self.written_at = now
        return None if self.begun_at is None else now - self.begun_at

    def written(self) -> float:
        """Return the seconds in which it wrote: to its end, where it does not say that it has written all."""
        return (self.written_at or time.monotonic()) - (self.begun_at or self.began)


def _waited(process: subprocess.Popen[bytes], watch: _Watch, kill_at: KillAt | None) -> bool:
    """Wait for a process, or kill it with all that it started; return whether it was killed."""
    while process.poll() is None:
        waited, since = time.monotonic() - watch.began, watch.since_begun()
        if waited > _PATIENCE or (kill_at is not None and kill_at(since)):
            started = _descendants(process.pid)
            for pid in started:  # PySpark's daemon has a group of its own
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            if waited > _PATIENCE:
                raise RoundError(f"{process.args!r} has not ended in {_PATIENCE:g} s")
            return True
        time.sleep(0.02)
    return False


def require(done: Done, what: str) -> Done:
    """Return what came of commands that have to succeed; raise with what they printed."""
    if not done.succeeded:
        lines = "\n".join(done.printed.splitlines()[-_LINES:])
        raise RoundError(f"{what} has failed:\n{lines}")
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
                raise RoundError(f"the reader of {place} has ended with {process.returncode}")
            time.sleep(0.05)
        yield
    finally:
        process.stdin.close()
        process.wait()


def last_look(notes: Path) -> Look:
    """Return what a reader saw last."""
    return read_looks(notes)[-1]
