"""One process at a time tells Dagster of the changes of a target; nobody else waits for it.

Put here the lock only; what is told is `backfill_assets.defs.changes`'. It is none of the ledger's locks: while Dagster is slow,
or hangs, the ledger is read and written. Processes with the same ledger exclude each other: by a file beside a SQLite
ledger, and on PostgreSQL by an advisory lock of a session of its own, with no transaction that stands still. Both end with
the process.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from manifests.errors import EnvironmentRefused, Problem
from resources.files.space import refusal

WAIT = 30
"""Seconds that a teller waits for the one before it."""
_BETWEEN_LOOKS = 0.05


@contextmanager
def telling(engine: sa.Engine, target: str) -> Iterator[None]:
    """Let nobody else tell of a target's changes meanwhile.

    Raises:
        EnvironmentRefused: if somebody else has been telling for longer than a teller waits; or something else lies in the
            place of the file that is locked.
    """
    with (_session if engine.dialect.name == "postgresql" else _file)(engine, target):
        yield


@contextmanager
def _file(engine: sa.Engine, target: str) -> Iterator[None]:
    opened = _opened(f"{engine.url.database}.telling-{target}", target)
    try:

        def take() -> bool:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        _wait(take, target)
        try:
            yield
        finally:
            fcntl.flock(opened, fcntl.LOCK_UN)  # at once, even if a process forked meanwhile has the file open as well
    finally:
        os.close(opened)


def _opened(file: str, target: str) -> int:
    # for reading: whoever may read the ledger's folder can lock it, whoever made the file; a pipe is not waited for
    flags = os.O_RDONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        opened = os.open(file, flags, 0o644)
    except OSError as error:
        raise refusal(error, file) or _no_lock(file, target, error.strerror or str(error)) from error
    if stat.S_ISREG(os.fstat(opened).st_mode):
        return opened
    os.close(opened)
    raise _no_lock(file, target, "it is no regular file")


def _no_lock(file: str, target: str, why: str) -> EnvironmentRefused:
    return EnvironmentRefused(
        Problem(
            f"{file} cannot be locked: {why}",
            f"one process at a time tells Dagster of changes of {target}: the one that has locked that file",
            "find out who has put it there and move it away: it is made anew; the sensor tell_changes or `backfill doctor "
            "--repair` tells the changes then",
        )
    )


@contextmanager
def _session(engine: sa.Engine, target: str) -> Iterator[None]:
    lock = sa.select(sa.func.pg_try_advisory_lock(sa.func.hashtext(f"telling of {target}")))
    with engine.connect() as connection:
        connection.detach()  # no other transaction gets this session, and it ends with this block

        def take() -> bool:
            taken = bool(connection.execute(lock).scalar_one())
            connection.commit()  # the lock is the session's; a transaction that stands still would be ended
            return taken

        _wait(take, target)
        yield


def _wait(take: Callable[[], bool], target: str) -> None:
    until = time.monotonic() + WAIT
    while not take():
        if time.monotonic() > until:
            raise EnvironmentRefused(
                Problem(
                    f"another process is telling Dagster of changes of {target}; waited {WAIT} s",
                    "one process at a time tells them, so that each is told once",
                    "see whether Dagster's storage answers; the sensor tell_changes or `backfill doctor --repair` tells it then",
                )
            )
        time.sleep(_BETWEEN_LOOKS)
