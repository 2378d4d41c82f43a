"""Rows as the journal knows them: by run and key, and by the hash of their cells.

Put here which tables are journaled, what a row's key is and which cells its hash covers. Cells are read as the database holds
them, past every conversion that could forgive a change (`rows.unforgiving`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from json.encoder import c_make_encoder, encode_basestring_ascii  # type: ignore[attr-defined] # typeshed lacks the first
from typing import Any

import sqlalchemy as sa

from resources.ledger.cells import Day, Utc
from resources.ledger.rows import cell, unforgiving
from resources.ledger.tables import metadata

INSTALLATION = ""
"""The run under which rows of no run are journaled."""
_APART = {"leases", "journal"}
"""Who holds which days just now, and the journal itself."""
JOURNALED = frozenset(metadata.tables) - _APART
TEXTS = {"runs": {"manifest": "manifest_hash", "plan": "plan_hash"}}
"""Long texts whose hash is another cell of the row: by table, the text and its hash."""
_ENCODER = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"))
_pieces_of = c_make_encoder(None, _ENCODER.default, encode_basestring_ascii, None, ":", ",", False, False, True)
"""What `_ENCODER` makes anew for each text: a ledger has very many rows."""
_AS_THEY_ARE = frozenset({str, int, type(None)})
_CONVERTED = (Utc, Day, sa.Boolean)
"""Kinds whose cells are not taken as they are, whatever they hold."""
_HEX = 32
"""Digits kept of the hash of a row: 128 bits."""


def columns_of(table: sa.Table) -> list[str]:
    """Return the columns whose cells the hash of a row covers; texts that have a hash of their own are left out."""
    return [column.name for column in table.c if column.name not in TEXTS.get(table.name, ())]


def hash_of(cells: Sequence[Any]) -> str:
    """Return the hash of a row's cells."""
    text = "".join(_pieces_of(cells, 0))
    return hashlib.sha256(text.encode()).hexdigest()[:_HEX]


def is_numbered(table: sa.Table) -> bool:
    """Tell whether a table's rows are numbered in the order in which they came."""
    return [column.name for column in table.primary_key] == ["id"]


def keys_of(table: sa.Table) -> list[str]:
    """Return the columns that make up the key of a row within its run."""
    names = [column.name for column in table.primary_key]
    return [name for name in names if name != "run_id"] or names


def place_of(table: sa.Table, values: Mapping[str, Any]) -> tuple[str, str]:
    """Return the run and the key of a row that is about to be written."""
    run_id = str(values["run_id"]) if "run_id" in table.c else INSTALLATION
    return run_id, "|".join(str(values[name]) for name in keys_of(table))


def have_keys(table: sa.Table, run_id: str, keys: Sequence[str]) -> sa.ColumnElement[bool]:
    """Return the condition for the rows of a run that have one of these keys."""
    names = keys_of(table)
    mine = table.c.run_id == run_id if "run_id" in table.c else sa.true()
    if len(names) > 1:
        return mine  # a small table: all of its rows
    column = table.c[names[0]]
    return sa.and_(mine, column.in_([int(key) for key in keys] if isinstance(column.type, sa.Integer) else keys))


@lru_cache(maxsize=256)
def query_of(table: sa.Table, columns: tuple[str, ...] | None = None) -> sa.Select[Any]:
    """Return the query for a table's rows: run, key cells, then the cells that a hash covers, as the database holds them.

    Kept: to build a query and to find its compiled text takes longer than to read a run's rows.
    """
    run = table.c.run_id if "run_id" in table.c else sa.literal(INSTALLATION)
    keys = [table.c[name].label(f"key_{name}") for name in keys_of(table)]
    wanted = columns_of(table) if columns is None else columns
    cells = [sa.type_coerce(table.c[name], sa.types.NullType()).label(f"cell_{name}") for name in wanted]
    return sa.select(run.label("of_run"), *keys, *cells)


@lru_cache(maxsize=256)
def query_of_run(table: sa.Table, columns: tuple[str, ...] | None = None) -> sa.Select[Any]:
    """Return the query of `query_of` for the run that its parameter `one_run` names."""
    return query_of(table, columns).where(table.c.run_id == sa.bindparam("one_run"))


def read_rows(
    connection: sa.Connection,
    table: sa.Table,
    query: sa.Select[Any],
    values: Mapping[str, Any],
    columns: Sequence[str] | None = None,
) -> Iterator[tuple[str, str, list[Any]]]:
    """Yield run, key and cells of each row of a query of `query_of`."""
    keys = len(keys_of(table))
    columns = columns_of(table) if columns is None else columns
    kinds = [(table.c[name].type, isinstance(table.c[name].type, _CONVERTED)) for name in columns]
    with unforgiving(connection):
        found = connection.execute(query, dict(values)).all()
    for run_id, *rest in found:
        cells = [
            value
            if (not converted and type(value) in _AS_THEY_ARE) or (isinstance(value, str) and isinstance(kind, sa.Text))
            else cell(kind, value)
            for (kind, converted), value in zip(kinds, rest[keys:], strict=True)
        ]
        yield str(run_id), "|".join(str(part) for part in rest[:keys]), cells
