"""Whether a process that the ledger or Dagster names still lives, and which of them goes first; of processes of this machine only.

A host's name does not tell: containers may share it and number their processes each by itself, and so may two machines.
So a process is named by host, machine, boot, namespace of process numbers, number, and when it began; and nothing is said
of one that cannot be seen from here. Ledgers of older code name host and number alone.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Protocol

_OUTERMOST = "pid:[4026531836]"
"""The namespace of process numbers that is no container's, the same in every Linux kernel (PROC_PID_INIT_INO)."""

_NICENESS = 10
"""By how much what gives way is below others in priority: it gets a tenth of a core that both want."""


def give_way() -> None:
    """Put the calling thread, and the threads and processes that it starts, below others in priority.

    Only where the operating system knows the priority of a thread: a process could not raise its own again.
    """
    if sys.platform == "linux":
        this = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, this, min(19, os.getpriority(os.PRIO_PROCESS, this) + _NICENESS))


def session_gives_way(leader: int) -> None:
    """Put a session of processes below others, by its leader's number: Linux may share the processor among sessions first."""
    with suppress(OSError):  # not Linux, without such groups, or not ours to set
        Path(f"/proc/{leader}/autogroup").write_text(str(_NICENESS))


def this_process() -> str:
    """Return the name of this process, which no other has; see the module."""
    return name_of(os.getpid())


def name_of(pid: int) -> str:
    """Return the name of the process with a number here and now."""
    return f"{socket.gethostname()}/{_machine()}/{_boot()}/{_namespace()}/{pid}/{_began(pid)}"


def is_gone(name: str) -> bool:
    """Return whether the process of a name (see `this_process`) was of this machine, or container, and has ended."""
    place, number, began = ("", "", *name.rsplit("/", 2))[-3:]
    if not number.isdigit():
        return False
    if _is_here(place):
        # when another user's process began may be hidden: then it is taken for the one that is meant
        return not is_alive(int(number)) or _began(int(number)) not in {"", began}
    host, machine, boot, namespace = ("", "", "", "", *place.split("/"))[-4:]
    here = host == socket.gethostname() and machine == _machine() != ""
    outside = namespace == _namespace() == _OUTERMOST  # in a container the machine's id is the image's
    return here and outside and boot != "" and _boot() not in {"", boot}  # this machine was started again since


def is_at_work(name: str) -> bool:
    """Return whether the process of a name is of this machine, or container, and lives."""
    place, number, _ = ("", "", *name.rsplit("/", 2))[-3:]
    return number.isdigit() and _is_here(place) and not is_gone(name)


class Worker(Protocol):
    """A process on record."""

    @property
    def host(self) -> str:
        """The name of its machine."""

    @property
    def pid(self) -> int:
        """Its number there."""

    @property
    def process(self) -> str:
        """Its name (`this_process`); empty where older code has written the record."""


def has_ended(worker: Worker) -> bool:
    """Return whether a process on record (`host`, `pid`, `process`) was of this machine, or container, and has ended."""
    if worker.host != socket.gethostname():
        return False
    return is_gone(worker.process) if worker.process else not is_alive(worker.pid)


def is_busy(worker: Worker) -> bool:
    """Return whether a process on record (`host`, `pid`, `process`) is of this machine, or container, and lives."""
    if worker.host != socket.gethostname():
        return False
    return is_at_work(worker.process) if worker.process else is_alive(worker.pid)


def _is_here(place: str) -> bool:
    """Tell whether process numbers of a place mean the same as here; names of older code have neither machine nor boot."""
    host, namespace = socket.gethostname(), _namespace()
    return place in {f"{host}/{_machine()}/{_boot()}/{namespace}", f"{host}/{namespace}"}


def age() -> timedelta | None:
    """Return how long ago this process began, to a hundredth of a second and by no clock of the day; None where there is no /proc."""
    ticks = _began(os.getpid())
    try:
        up = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return None
    return timedelta(seconds=up - int(ticks) / os.sysconf("SC_CLK_TCK")) if ticks else None


def _namespace() -> str:
    """Return in which namespace this process has its number."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


@cache
def _boot() -> str:
    """Return the id that the kernel gave itself when it was started."""
    return _text_of("/proc/sys/kernel/random/boot_id")


@cache
def _machine() -> str:
    """Return the id of the installed system; nothing where it has none, as most images of containers."""
    return _text_of("/etc/machine-id")


def _text_of(file: str) -> str:
    try:
        return Path(file).read_text().strip().replace("/", "-")
    except (OSError, UnicodeDecodeError):
        return ""


def _began(pid: int) -> str:
    """Return when a process began, in the kernel's ticks; nothing where the system has no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Return whether this machine has a process of that number that has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it lives, and is somebody else's
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return not Path("/proc/self/stat").exists()  # gone just now, unless this system has no such folder
    return stat.rpartition(")")[2].split()[0] not in "ZX"  # one that has ended is listed until its parent has asked
