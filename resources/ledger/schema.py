"""The schema of a ledger: made, upgraded, and held against what this version of the code knows.

Put here revisions and their order; a migration itself is a file in `resources/ledger/migrations`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from manifests.errors import EnvironmentRefused, Problem
from resources.ledger.journaling import Journal
from resources.ledger.locks import lock_schema
from resources.ledger.tables import journal, metadata

if TYPE_CHECKING:
    from alembic.config import Config as AlembicConfig

_MIGRATIONS = Path(__file__).parent / "migrations"
_VERSION = sa.table("alembic_version", sa.column("version_num", sa.String))
"""Where alembic keeps the revision of a schema."""


def migrate(engine: sa.Engine, entries: Journal, complete: Callable[[sa.Connection, str | None], None]) -> str | None:
    """Bring the schema to this version of the code; safe to repeat. Return the revision it had; None for a new ledger.

    The journal adopts the runs that were there before it: `Journal.adopted` names them. `complete` is told the revision
    that the ledger had, in the same transaction: a process that dies has done all of it or nothing.

    Raises:
        EnvironmentRefused: if the database cannot be opened or was made by newer code.
    """
    try:
        if file := _sqlite_file(engine):
            Path(file).parent.mkdir(parents=True, exist_ok=True)
        found = _revision(engine)
        _refuse_newer(engine, found)
        with engine.begin() as connection:
            lock_schema(connection)
            had_journal = sa.inspect(connection).has_table(journal.name)
            _upgrade(connection)
            if not had_journal:
                entries.adopt(connection)  # its lock is not the last one here: nobody else uses such a ledger
            complete(connection, found)
            return found
    except (sa.exc.DBAPIError, OSError) as error:
        raise _unusable(engine, error) from error


def require_current(engine: sa.Engine) -> None:
    """Refuse to work on a schema of another version.

    Raises:
        EnvironmentRefused: if the ledger is missing, older or newer.
    """
    head = revisions()[-1]
    try:
        found = _revision(engine)
    except sa.exc.DBAPIError as error:
        raise _unusable(engine, error) from error
    _refuse_newer(engine, found)
    if found != head:
        raise EnvironmentRefused(
            Problem(
                f"the ledger {engine.url!r} has schema {found or 'none'}",
                f"this code needs schema {head}",
                "run `backfill init` (it creates or upgrades the ledger)",
            )
        )
    if missing := _missing(engine):
        raise EnvironmentRefused(
            Problem(
                f"the ledger {engine.url!r} has schema {found}, but lacks {', '.join(missing)}",
                "a schema is whole",
                "somebody has changed it by hand: restore the ledger from its backup",
            )
        )


def _missing(engine: sa.Engine) -> list[str]:
    """Return the tables, and the columns of others, that this code reads and the database does not have."""
    with engine.connect() as connection:
        inspected = sa.inspect(connection).get_multi_columns()
    there = {name: {one["name"] for one in columns} for (_, name), columns in inspected.items()}
    return [
        name if name not in there else f"{name}.{column}"
        for name, table in sorted(metadata.tables.items())
        for column in (table.columns.keys() if name in there else [""])
        if name not in there or column not in there[name]
    ]


def _revision(engine: sa.Engine) -> str | None:
    file = _sqlite_file(engine)
    if file is not None and not Path(file).exists():
        return None  # looking must not create it
    with engine.connect() as connection:
        if not sa.inspect(connection).has_table(_VERSION.name):
            return None
        return connection.execute(sa.select(_VERSION.c.version_num)).scalar_one_or_none()


def _refuse_newer(engine: sa.Engine, found: str | None) -> None:
    known = revisions()
    if found is not None and found not in known:
        raise EnvironmentRefused(
            Problem(
                f"the ledger {engine.url!r} has schema {found}",
                f"this code knows the schemas {', '.join(known)}",
                "the ledger was made by newer code: upgrade this installation's code",
            )
        )


def _unusable(engine: sa.Engine, error: Exception) -> EnvironmentRefused:
    return EnvironmentRefused(
        Problem(
            f"the ledger {engine.url!r} cannot be opened: {getattr(error, 'orig', None) or error}",
            "the ledger is a database this user can read and write",
            "check BACKFILL_LEDGER_URL, or restore the database from its backup",
        )
    )


def _sqlite_file(engine: sa.Engine) -> str | None:
    return engine.url.database if engine.dialect.name == "sqlite" else None


@cache
def revisions() -> tuple[str, ...]:
    """Return the revisions of the schema that this code knows, oldest first: what the names of the migrations begin with."""
    return tuple(sorted(file.name.partition("_")[0] for file in (_MIGRATIONS / "versions").glob("[0-9]*_*.py")))


def _upgrade(connection: sa.Connection) -> None:
    from alembic import command  # noqa: PLC0415 - half a second, and hardly any command upgrades a ledger

    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def alembic_config() -> AlembicConfig:
    """Return how alembic finds the migrations; whoever uses it gives the connection."""
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    return config
