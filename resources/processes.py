"""Whether a process that the ledger or Dagster names still lives; asked about processes of this machine only."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_process() -> str:
    """Return the name of this process, which no other has: host, number, and when it began."""
    return f"{socket.gethostname()}/{os.getpid()}/{_began(os.getpid())}"


def is_gone(name: str) -> bool:
    """Return whether the process of a name (see `this_process`) was of this machine and has ended."""
    host, number, began = name.rsplit("/", 2)
    return host == socket.gethostname() and not (is_alive(int(number)) and _began(int(number)) == began)


def _began(pid: int) -> str:
    """Return when a process began, in the kernel's ticks; nothing where the system has no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
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
