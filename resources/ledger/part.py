"""What the classes of the ledger's entities share.

Put here nothing of any entity. A class holds whole transactions, and other packages reach it through `Ledger`; a function
beside it takes the connection of a transaction that several entities change together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Self, TypeVar

import sqlalchemy as sa

from resources.ledger import instants
from resources.ledger.cells import legible


@dataclass(frozen=True)
class Stored:
    """A row of one of the ledger's tables: a field a column, in the table's order."""

    table: ClassVar[sa.Table]

    @classmethod
    def of(cls, row: sa.Row[Any]) -> Self:
        """Return what a row of the table says."""
        return cls(**row._mapping)  # noqa: SLF001 - SQLAlchemy's public name

    def as_record(self) -> dict[str, Any]:
        """Return the row's cells by column, as the table has them."""
        cells = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: cell.value if isinstance(cell, StrEnum) else cell for name, cell in cells.items()}


_Stored = TypeVar("_Stored", bound=Stored)


class Part:
    """The entities of one kind in one ledger."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine

    def _stored(self, kind: type[_Stored], query: sa.Select[Any]) -> list[_Stored]:
        """Return the rows that a query of a kind's table finds.

        Raises:
            IllegibleRow: if a cell does not say what this project writes there.
        """
        with self.engine.connect() as connection:
            found = connection.execute(query).all()
        with legible(f"ledger {kind.table.name}"):
            return [kind.of(row) for row in found]

    def _keep(self, table: sa.Table, key: str, values: Mapping[str, Any]) -> None:
        """Keep a text under its hash; safe to repeat."""
        try:
            with self.engine.begin() as connection:
                if connection.execute(sa.select(table.c.hash).where(table.c.hash == key)).scalar() is None:
                    connection.execute(table.insert().values(hash=key, at=instants.now(connection), **values))
        except sa.exc.IntegrityError:
            return  # somebody else kept the same at the same moment
