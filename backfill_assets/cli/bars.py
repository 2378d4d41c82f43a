"""How far a command is, while it computes: bars in a terminal, and lines where stderr is none.

Put here what is shown meanwhile. What there is to count, and where that is seen, the command brings.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, TextIO

from backfill_assets.cli.base import POLL_SECONDS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    Look = Callable[[], tuple[int, int] | None]

LINE_SECONDS = 30.0
"""How often it is said how far the command is where stderr is no terminal."""
_PHASES = ("computing", "gating")
_LAST_WORDS_SECONDS = 0.5
_PIECE = 65_536


@contextmanager
def bars(total: int, look: Look) -> Iterator[None]:
    """Show how many of `total` chunks are computed and gated while the body runs: what `look` says, in another thread.

    Dagster has the descriptors of stdout and stderr lead to its logs while a step runs: what is shown goes where stderr led before.
    In a terminal nothing is shown before `look` says anything. Where it cannot look, what it has said last stays.
    """
    with _stderr_of_now() as own:
        if own.isatty():
            with _bars(total, look, own):
                yield
        else:
            with _lines(total, look, own):
                yield


@contextmanager
def _stderr_of_now() -> Iterator[TextIO]:
    """Yield a stream that leads where stderr leads now, whatever becomes of its descriptor."""
    if sys.stderr is None:  # it was closed before the command began
        yield io.StringIO()
        return
    try:
        number = os.dup(sys.stderr.fileno())
    except (OSError, ValueError):  # it is no file
        yield sys.stderr
        return
    own = os.fdopen(number, "w", encoding=sys.stderr.encoding, errors="backslashreplace", buffering=1)
    try:
        yield own
    finally:
        with suppress(OSError):  # nobody reads it any more, and what was computed is computed
            own.close()


@contextmanager
def _bars(total: int, look: Look, own: TextIO) -> Iterator[None]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    from backfill_assets.cli.terminal import make_console

    class Clock(TimeElapsedColumn):
        # the last chunk is not the end: what judges the run as a whole comes after it
        def render(self, task: Task) -> Text:
            return Text(str(timedelta(seconds=int(task.elapsed or 0))), style="progress.elapsed")

    columns = (TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), Clock())
    console = make_console(stderr=True, file=own)
    # what is printed meanwhile is for Dagster's log as well: the library must not take it from there
    shown = Progress(*columns, console=console, refresh_per_second=1, redirect_stdout=False, redirect_stderr=False)
    with _while_there_is_a_terminal(shown), _printed_above(console):
        tasks = [shown.add_task(name, total=total, visible=False) for name in _PHASES]

        def update() -> None:
            for task, done in zip(tasks, _seen(look) or (), strict=False):
                shown.update(task, completed=min(total, done), visible=True)
            shown.refresh()

        with _each(POLL_SECONDS, update):
            yield


@contextmanager
def _while_there_is_a_terminal(shown: Progress) -> Iterator[None]:
    """Show bars while the body runs; a terminal that is gone ends nothing."""
    with suppress(OSError):
        shown.start()
    try:
        yield
    finally:
        with suppress(OSError):
            shown.stop()


@contextmanager
def _lines(total: int, look: Look, own: TextIO) -> Iterator[None]:
    began = time.monotonic()

    def tell() -> None:
        seen = _seen(look)
        if seen is None:
            said = _PHASES[0]
        else:
            computed, gated = (min(total, done) for done in seen)
            said = f"{_PHASES[computed == total]}: {computed:,} of {total:,} chunks are computed, {gated:,} have passed"
        own.write(f"{said}, after {time.monotonic() - began:,.0f} s\n")
        own.flush()

    with _each(LINE_SECONDS, tell):
        yield


def _seen(look: Look) -> tuple[int, int] | None:
    try:
        return look()
    except Exception:  # noqa: BLE001 - a ledger that does not answer just now ends no computation, and no clock
        return None


@contextmanager
def _each(seconds: float, show: Callable[[], None]) -> Iterator[None]:
    """Show something every so many seconds while the body runs, and once more at its end."""
    stop = threading.Event()

    def shown() -> bool:
        try:
            show()
        except OSError:  # nobody reads it any more
            return False
        return True

    def watch() -> None:
        while not stop.wait(seconds) and shown():
            pass

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
        shown()


@contextmanager
def _printed_above(console: Console) -> Iterator[None]:
    """Have what this process and those it starts print to the terminal meanwhile stand above the bars, line by line.

    A bar is drawn over the lines above the cursor: what others print there by themselves would be lost. A process that outlives the
    body goes on printing through this one.
    """
    above = _Above(console)
    with ExitStack() as stack:
        for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
            if os.isatty(number):
                stack.enter_context(_leads_to(above.pipe, number, stream))
        os.close(above.pipe)
        try:
            yield
        finally:
            stack.close()
            above.end()


@contextmanager
def _leads_to(target: int, number: int, stream: TextIO) -> Iterator[None]:
    """Have a descriptor, and the stream that writes to it, lead elsewhere while the body runs."""
    stream.flush()
    before = os.dup(number)
    os.dup2(target, number)
    try:
        yield
    finally:
        stream.flush()
        os.dup2(before, number)
        os.close(before)


class _Above:
    """Prints what comes through a pipe: above what a console shows, and by itself once that has ended."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._terminal = os.dup(console.file.fileno())
        self._source, self.pipe = os.pipe()
        self._shown = True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        rest = b""
        # whatever becomes of the terminal: who prints must not have to wait
        while piece := os.read(self._source, _PIECE):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._print(line)
        if rest:
            self._print(rest)
        os.close(self._source)
        os.close(self._terminal)

    def _print(self, line: bytes) -> None:
        try:
            if self._shown:
                self._console.print(line.decode(errors="backslashreplace").rstrip("\r"), soft_wrap=True)
            else:
                os.write(self._terminal, line + b"\n")
        except (OSError, SystemExit):  # the terminal is gone
            self._shown = False

    def end(self) -> None:
        """Print what has come so far, and leave the place above the bars to the command."""
        self._reader.join(_LAST_WORDS_SECONDS)  # longer where a process that was started lives on
        self._shown = False
