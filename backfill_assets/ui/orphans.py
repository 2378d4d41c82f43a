"""No orphans: children end with the server, and what they have started ends with them.

Put here how processes that came from this one are found, waited for and ended. Which the server starts is `serving`'s.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STOP_SECONDS = 15.0
"""How long what was told to stop may take until it is killed."""
_JVM = "java"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Have the kernel end this child with its parent, where it can; called between fork and exec, so it only calls libc."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def ends_what_it_started() -> Iterator[None]:
    """At the end, end every process that came from this one: run workers outlive the code server that started them.

    Linux only: elsewhere what is left ends by itself once it finds its parent gone.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        if _libc is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                _end_children(number)
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


class Adopted:
    """Processes that became this one's children when what had started them ended: the JVM of a run that is over.

    Nobody else waits for them. Those that this process has started itself are their starters' to wait for: the children that
    it has when this begins, and any that is waited for between two looks.
    """

    def __init__(self) -> None:
        me = os.getpid()
        self._own = {pid for pid, (_, parent) in processes().items() if parent == me}
        self._known: set[int] = set()
        self._ended: set[int] = set()

    def bury(self) -> list[int]:
        """Take note of what lives below the children, and wait for what has ended, and was noted before or has ended for a while."""
        me, found = os.getpid(), processes()
        ended = {pid for pid, (state, parent) in found.items() if state == "Z" and parent == me} - self._own
        buried = []
        for pid in ended & (self._known | self._ended):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
                buried.append(pid)
        of_others = {pid for pid in descendants(me) if found.get(pid, ("", me))[1] != me}
        self._known = (self._known & found.keys() - set(buried)) | of_others
        self._ended = ended - set(buried)
        return buried


def processes() -> dict[int, tuple[str, int]]:
    """Return state and parent of every process, as /proc has them."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        found[int(folder.name)] = (state, int(parent))
    return found


def _end_children(number: signal.Signals) -> None:
    """Tell every process that came from this one to end, and wait a while; a JVM in use is only killed, not told."""
    until = time.monotonic() + STOP_SECONDS
    told: set[int] = set()
    while time.monotonic() < until:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # those that have ended are ours to bury, too
                pass
        left = descendants(os.getpid())
        if not left:
            return
        if number is not signal.SIGKILL:
            left -= in_use(os.getpid())
        for pid in left - told:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        told |= left
        time.sleep(0.1)


def in_use(pid: int) -> set[int]:
    """Return the JVMs below a process that another one below it works with, and what they have started: they end with that one.

    Who computes and is told to end asks its JVM to cancel the jobs first.
    """
    found = processes()
    jvms = {one for one in descendants(pid) if _command(one) == _JVM and found.get(one, ("", pid))[1] != pid}
    return jvms.union(*(descendants(one) for one in jvms))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it has ended meanwhile


def descendants(pid: int) -> set[int]:
    """Return the processes that came from one, as /proc has them; those that have ended are left out."""
    parents = {one: parent for one, (state, parent) in processes().items() if state != "Z"}
    found: set[int] = set()
    while more := {one for one, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found
