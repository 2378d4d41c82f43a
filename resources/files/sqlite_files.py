"""The files of a SQLite database: the database itself, and what SQLite lays beside it.

Put here what must hold of them before SQLite opens one. It opens whatever has the name: a pipe is waited for in native code,
where not even Ctrl-C ends it, and of a folder SQLite says that the database is read-only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from manifests.errors import EnvironmentRefused, Problem
from resources.files.kept_files import not_a_file

_BESIDE = ("-journal", "-wal", "-shm")


def require_files(url: str, what: str) -> None:
    """Refuse to open a SQLite database of which a file is none, by its URL; other databases have no files here.

    The database itself may be a link to a file; what SQLite makes lies beside that file, and is no link.

    Raises:
        EnvironmentRefused: naming the file; `what` is whose database it is.
    """
    said = make_url(url)
    if said.get_backend_name() != "sqlite" or not said.database or said.database.startswith((":memory:", "file:")):
        return
    database = Path(os.path.realpath(said.database))
    for suffix in ("", *_BESIDE):
        file = database.with_name(database.name + suffix)
        try:
            why = not_a_file(file)
        except FileNotFoundError:
            continue
        if why:
            raise EnvironmentRefused(
                Problem(
                    f"{what} cannot be opened: {file} is {why}, not a file",
                    f"{what} is a SQLite database: a regular file, and regular files beside it",
                    _WAY_OUT if suffix else "find out who has put it there, and restore the database from its backup",
                )
            )


_WAY_OUT = "find out who has put it there and move it away: SQLite makes the file anew where it needs one"


def requiring_files(url: str, what: str) -> Callable[..., Any]:
    """Return what an engine is to be told to do before each connection that it makes (`do_connect`): see `require_files`."""

    def require(*_: Any) -> None:
        require_files(url, what)

    return require
