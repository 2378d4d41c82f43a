"""Whether a process that the ledger names still lives; asked about processes of this machine only."""

from __future__ import annotations

import os
from pathlib import Path


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
