"""Reading files where something else may lie: what is no regular file is named, never waited for, followed or read.

Put here how a file of the evidence is opened and parsed. A folder, a pipe, a socket, a device or a link in a file's place
was put there by somebody, and so was a file that is larger than evidence gets; what that means for a run is said by whoever
wanted the file.
"""

from __future__ import annotations

import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from manifests.errors import EnvironmentRefused, Problem

MOST_BYTES = 4 << 30
"""Bytes of the largest file of a bundle, and of the largest record: an adopted run's has all its rows.

A chunk takes up to 1 kB with a file or two, and 0.25 kB for each further file: these are a million chunks of a dozen files.
"""
MOST_OF_A_LINK = 1 << 20
"""Bytes of the largest link: it has hashes, names and an instant, a few hundred bytes."""
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


def open_kept(path: Path, most: int = MOST_BYTES) -> BufferedReader:
    """Open a regular file of at most `most` bytes for reading; nothing else is opened.

    Raises:
        FileNotFoundError: if nothing lies there.
        EnvironmentRefused: if something else does, or it cannot be read, or is larger.
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
            found = os.fstat(stream.fileno())
            is_file = stat.S_ISREG(found.st_mode)
            if is_file and found.st_size <= most:
                return stream
            stream.close()
            why = f"has {found.st_size:,} bytes, and at most {most:,} are read" if is_file else "is no regular file"
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


def read_kept(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises:
        FileNotFoundError: if nothing lies there.
        EnvironmentRefused: if something else does, or it cannot be read, or is larger, or than the memory that is left.
    """
    with open_kept(path, most) as stream:
        try:
            return stream.read(os.fstat(stream.fileno()).st_size)  # and no further, if it grows meanwhile
        except (OSError, MemoryError) as error:
            why = "it is larger than the memory that is left" if isinstance(error, MemoryError) else error.strerror
            raise EnvironmentRefused(
                Problem(
                    f"{path} cannot be read: {why or error}",
                    "evidence is kept in regular files that this user can read",
                    "look at the disk; restore the file from its backup",
                )
            ) from error


def json_of(raw: bytes) -> Any:
    """Return what JSON text says.

    Raises:
        ValueError: if it is no JSON, or nested so deeply, or so large, that it is none of ours.
    """
    try:
        return json.loads(raw)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except MemoryError as error:
        raise ValueError("it says more than the memory that is left can hold") from error


def read_json(path: Path) -> Any:
    """Return what a regular file of JSON text says.

    Raises:
        FileNotFoundError: if nothing lies there.
        EnvironmentRefused: if something else does, or it cannot be read.
        ValueError: if it is no JSON.
    """
    return json_of(read_kept(path))
