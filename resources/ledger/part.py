"""What the classes of the ledger's entities share.

Put here nothing of any entity. A class holds whole transactions, and other packages reach it through `Ledger`; a function
beside it takes the connection of a transaction that several entities change together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from resources.ledger import instants


class Part:
    """The entities of one kind in one ledger."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine

    def _rows(self, query: sa.Select[Any]) -> list[dict[str, Any]]:
        with self.engine.connect() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]  # noqa: SLF001 - SQLAlchemy's public name

    def _keep(self, table: sa.Table, key: str, values: Mapping[str, Any]) -> None:
        """Keep a text under its hash; safe to repeat."""
        try:
            with self.engine.begin() as connection:
                if connection.execute(sa.select(table.c.hash).where(table.c.hash == key)).scalar() is None:
                    connection.execute(table.insert().values(hash=key, at=instants.now(), **values))
        except sa.exc.IntegrityError:
            return  # somebody else kept the same at the same moment
