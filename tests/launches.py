"""The `backfill` command, or a function, in a process of its own, which can be killed like any other.

It is forked from a server that has imported what commands import (`conftest`): of the seconds that a test waits, four
were Python's imports. What the process does then is its own, Spark's start included. A function has to be in a module
that each process imports quickly, as `contenders`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Launch:
    """A process under way, or ended."""

    process: BaseProcess
    folder: Path

    @property
    def output(self) -> str:
        return (self.folder / "out").read_text(errors="replace")

    @property
    def errors(self) -> str:
        return (self.folder / "err").read_text(errors="replace")

    def is_running(self) -> bool:
        return self.process.is_alive()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def ended(self, timeout: float = 300) -> int:
        """Wait for the end of the process, and return how it ended: an exit code, or minus a signal."""
        self.process.join(timeout)
        if self.process.is_alive():
            self.kill()
            raise TimeoutError(f"not done in {timeout} s\n{self.output[-2000:]}\n{self.errors[-4000:]}")
        assert self.process.exitcode is not None
        return self.process.exitcode

    def finish(self, expected: int) -> None:
        """Wait for the end of the process, and require how it ended."""
        found = self.ended()
        assert found == expected, f"{found}\n{self.output[-2000:]}\n{self.errors[-4000:]}"


@cache
def _outputs() -> TemporaryDirectory[str]:
    """Return where outputs are kept until this process ends: made when asked for, since commands import this module too."""
    return TemporaryDirectory(prefix="backfill-commands-")


def launch(*arguments: str, environment: Mapping[str, str]) -> Launch:
    """Start `backfill` with these arguments, and with this environment besides the one of this process."""
    return begin(_command, *arguments, environment=environment)


def begin(function: Callable[..., None], *arguments: Any, environment: Mapping[str, str]) -> Launch:
    """Start a function with these arguments, and with this environment besides the one of this process."""
    folder = Path(mkdtemp(dir=_outputs().name))
    whole = dict(os.environ) | environment
    process = CONTEXT.Process(target=_become, args=(whole, folder, function, arguments), daemon=True)
    process.start()
    return Launch(process, folder)


def _become(
    environment: dict[str, str], folder: Path, function: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    function(*arguments)


def _command(*arguments: str) -> None:
    sys.argv = ["backfill", *arguments]
    from backfill_assets.cli.command import main

    main()
