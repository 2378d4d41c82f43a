"""Files on a local disk: only what is a regular file is opened.

Put here how something else in the place of a file is told from one. Opening a pipe waits until somebody writes into it, and a
device may have no end. How the files of tables are opened is `resources.lakehouse.file_access`'s.
"""

from __future__ import annotations

import os
import stat


class NotAFileError(OSError):
    """Something else than a regular file lies where a file is expected."""


def require_file(path: str) -> None:
    """Refuse to open what is there and is no regular file; links are followed.

    Raises:
        NotAFileError: naming it.
    """
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - a place is text, whatever holds it
    except (OSError, ValueError):
        return  # opening it says why
    if not stat.S_ISREG(mode):
        raise NotAFileError(f"{path} is {kind_of(mode)}, not a file")


def kind_of(mode: int) -> str:
    """Say what lies somewhere, by its mode."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFLNK: "a link to elsewhere",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
