"""Room on the disk: asked for before anything is computed, and named where it has run out.

Put here how a full disk is told from other errors, whoever met it (Python, SQLite, PyArrow, Spark's Java), and what people
are told then. What is written in one transaction, or renamed into place, is not half there after it: nothing is undone here.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from manifests.errors import EnvironmentRefused, Problem
from manifests.text import words_of

MARGIN = 32 * 1024 * 1024
"""Bytes that are left for the ledger, metadata and evidence beside the rows of a run."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_SHORT_OF_ROOM = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
"""What SQLite says where the files beside a database find no room; it says so of other trouble as well."""
_A_FEW_PAGES = 64 * 1024
_SAID = ("No space left on device", "Disk quota exceeded", "database or disk is full")
_NEXT = "make room there (`backfill gc` lists what the policy lets go), then the same command again goes on from here"


def require_room(place: Path, needed: int, what: str) -> None:
    """Refuse what will not fit on the disk.

    Args:
        place: where it is to be written; it need not exist yet.
        needed: bytes, as far as anybody can tell before.
        what: who needs them.

    Raises:
        EnvironmentRefused: saying where, how much is needed and how much is free.
    """
    folder = _existing(place.absolute())
    free = shutil.disk_usage(folder).free
    if free < needed + MARGIN:
        raise EnvironmentRefused(
            Problem(
                f"{what} needs about {in_words(needed)}; {in_words(free)} are free where {folder} lies",
                f"rows are computed where they fit, with {in_words(MARGIN)} left for the ledger, metadata and evidence",
                _NEXT,
            )
        )


def refusal(error: BaseException, file: str | None = None) -> EnvironmentRefused | None:
    """Return what people are told of an error that a full disk has caused, None where something else has.

    Args:
        error: what was raised; what had caused it is looked at as well.
        file: what was being written, or the folder it lies in, where the error does not say.
    """
    for one in _chain(error):
        if (said := _said(one, file)) is None:
            continue
        named = one.filename if isinstance(one, OSError) else None
        name = os.fsdecode(named) if isinstance(named, (str, bytes)) else file
        return _full(said, name)
    return None


def _full(said: str, file: str | None) -> EnvironmentRefused:
    free = ""
    if file is not None:
        free = f"; {in_words(_free(file))} are free there"
    return EnvironmentRefused(
        Problem(
            f"the disk is full: {file or 'a file'} could not be written ({said}){free}",
            "what cannot be written whole is no part of any run: what is on record stands, and nothing else",
            _NEXT if file is not None else f"look where (`df`): the home folder, or Spark's `spark.local.dir`; {_NEXT}",
        )
    )


def in_words(size: int) -> str:
    """Return a number of bytes for people."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _said(error: BaseException, file: str | None) -> str | None:
    if isinstance(error, OSError) and error.errno in _FULL:
        return error.strerror or os.strerror(error.errno)
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        short = code in _SHORT_OF_ROOM and file is not None and _free(file) < _A_FEW_PAGES
        return str(error) if short or code == sqlite3.SQLITE_FULL else None
    if isinstance(error, Exception):
        text = words_of(error)
        return next((said for said in _SAID if said in text), None)
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _free(file: str) -> int:
    return shutil.disk_usage(_existing(Path(file).absolute())).free


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
