"""Reading files where something else may lie: what is no regular file is named, never waited for, followed or read.

Put here how a file of the evidence is opened and parsed. A folder, a pipe, a socket, a device or a link in a file's place
was put there by somebody; what that means for a run is said by whoever wanted the file.
"""

from __future__ import annotations

import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from manifests.errors import EnvironmentRefused, Problem

_KINDS = (
    (stat.S_ISLNK, "a link to elsewhere"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def not_a_file(path: Path) -> str:
    """Say what lies at a path in the place of a regular file; empty if it is one.

    Raises:
        FileNotFoundError: if nothing lies there.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        raise
    except OSError as error:
        return f"something that cannot be looked at ({error.strerror or error})"
    return "" if stat.S_ISREG(mode) else next((said for fits, said in _KINDS if fits(mode)), "a device")


def is_text_name(name: str) -> bool:
    """Whether a name that a file system gives is text: nothing that this project has made is called otherwise."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def open_kept(path: Path) -> BufferedReader:
    """Open a regular file for reading; nothing else is opened.

    Raises:
        FileNotFoundError: if nothing lies there.
        EnvironmentRefused: if something else does, or it cannot be read.
    """
    why = not_a_file(path)
    if not why:
        try:
            # if a pipe took its place since, nobody waits for its writer
            stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
        except FileNotFoundError:
            raise
        except OSError as error:
            why = f"cannot be read: {error.strerror or error}"
        else:
            if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return stream
            stream.close()
            why = "is no regular file"
    else:
        why = f"is {why}, not a file"
    raise EnvironmentRefused(
        Problem(
            f"{path} {why}",
            "evidence is kept in regular files that this user can read",
            "`backfill verify --all` names everything that is not as it was recorded; find out who has put it there, and "
            "put back the file that belongs there",
        )
    )


def read_kept(path: Path) -> bytes:
    """Return the content of a regular file.

    Raises:
        FileNotFoundError: if nothing lies there.
        EnvironmentRefused: if something else does, or it cannot be read.
    """
    with open_kept(path) as stream:
        try:
            return stream.read()
        except OSError as error:
            raise EnvironmentRefused(
                Problem(
                    f"{path} cannot be read: {error.strerror or error}",
                    "evidence is kept in regular files that this user can read",
                    "look at the disk; restore the file from its backup",
                )
            ) from error


def json_of(raw: bytes) -> Any:
    """Return what JSON text says.

    Raises:
        ValueError: if it is no JSON, or nested so deeply that it is none of ours.
    """
    try:
        return json.loads(raw)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_json(path: Path) -> Any:
    """Return what a regular file of JSON text says.

    Raises:
        FileNotFoundError: if nothing lies there.
        EnvironmentRefused: if something else does, or it cannot be read.
        ValueError: if it is no JSON.
    """
    return json_of(read_kept(path))
