"""What a catalog raises when it does not answer, or does not let somebody in; and what is said of it.

Put here which errors those are (a SQL catalog's come from its driver, a REST catalog's from HTTP), and that of a commit they say
that nobody knows what came of it. When a commit is made again is `commits`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    ForbiddenError,
    NoSuchNamespaceError,
    OAuthError,
    RESTError,
    UnauthorizedError,
)
from sqlalchemy.exc import SQLAlchemyError

from manifests.errors import EnvironmentRefused, Problem

CATALOG_ERRORS = (SQLAlchemyError, OSError, RESTError)
"""What is raised where a catalog, or the storage of its metadata, does not answer as it should. That a table is not there, or
that a requirement of a commit does not hold, is an answer, and none of them."""
_NOT_LET_IN = (UnauthorizedError, AuthorizationExpiredError, ForbiddenError, OAuthError)
_CREDENTIALS = (
    "check `token` or `credential` in the properties of the catalog (see `backfill config`), and what they may do there"
)
_OF_ANOTHER_TIME = re.compile(r"\b(snapshot|update) timestamp\b", re.IGNORECASE)
"""What Iceberg's server says it of: a snapshot from the future, or from before the last one."""
_SHOWN = 300


@contextmanager
def reachable(name: str) -> Iterator[None]:
    """Refuse what is asked of a catalog that does not answer, or does not let this installation in.

    Raises:
        EnvironmentRefused: naming the catalog.
    """
    try:
        yield
    except (*CATALOG_ERRORS, NoSuchNamespaceError) as error:
        raise EnvironmentRefused(catalog_problem(name, error)) from error


def catalog_problem(name: str, error: BaseException) -> Problem:
    """Return what is said of a catalog that raised one of `CATALOG_ERRORS`."""
    if isinstance(error, _NOT_LET_IN):
        return Problem(
            f"the catalog '{name}' does not let this installation in: {words(error)}",
            "the catalog's properties have credentials that may read the tables and commit to them",
            _CREDENTIALS,
        )
    return Problem(
        f"the catalog '{name}' cannot be used: {words(error)}",
        "the catalog exists and can be reached",
        "see `backfill config`; for the embedded default, run `backfill init`",
    )


@contextmanager
def known_outcome(name: str) -> Iterator[None]:
    """Refuse what is made of a commit to a table whose outcome the catalog does not say.

    Raises:
        EnvironmentRefused: naming the table; the commit may have landed.
    """
    try:
        yield
    except CATALOG_ERRORS as error:
        if isinstance(error, BadRequestError) and _OF_ANOTHER_TIME.search(str(error)):
            raise EnvironmentRefused(
                Problem(
                    f"the catalog takes no commit to {name} that is dated as this machine's clock, or a writer before, has it: {words(error)}",
                    "snapshots of a table are dated in order, and none more than a minute ahead of the catalog's server",
                    "set the clock of the machine that is ahead; nothing has changed, and the same command does it then",
                )
            ) from error
        again = "run the same command again when it can: what has landed is found in the table, and not done twice"
        raise EnvironmentRefused(
            Problem(
                f"the outcome of a commit to {name} is unknown: {words(error)}",
                "the catalog can be reached, and says whether a commit has landed",
                f"{_CREDENTIALS}; then {again}" if isinstance(error, _NOT_LET_IN) else again,
            )
        ) from error


def words(error: BaseException) -> str:
    """Return the kind of an error and its first line, cut in the middle: a proxy may answer with a whole page, and clients end with the cause."""
    line = str(error).partition("\n")[0]
    if len(line) > _SHOWN:
        line = f"{line[: _SHOWN // 2]} ... {line[-_SHOWN // 2 :]}"
    return f"{type(error).__name__}: {line}"
