"""Whether a process that the ledger or Dagster names still lives; asked about processes of this machine only."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_process() -> str:
    """Return the name of this process, which no other has: host, namespace of process numbers, number, when it began."""
    return f"{socket.gethostname()}/{_namespace()}/{os.getpid()}/{_began(os.getpid())}"


def is_gone(name: str) -> bool:
    """Return whether the process of a name (see `this_process`) was of this machine, or container, and has ended."""
    host, namespace, number, began = ("", "", "", *name.rsplit("/", 3))[-4:]
    if (host, namespace) != (socket.gethostname(), _namespace()) or not number.isdigit():
        return False
    # when another user's process began may be hidden: then it is taken for the one that is meant
    return not is_alive(int(number)) or _began(int(number)) not in {"", began}


def _namespace() -> str:
    """Return in which namespace this process has its number: containers may share a host's name."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
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
