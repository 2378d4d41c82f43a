"""One entry of the journal: what its text says, and whether a transaction of this project can have written it.

Put here what one entry says by itself. What follows from many of them, and how they are held against rows and links, is `journal`'s.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import sqlalchemy as sa

from resources.ledger.journaled_rows import INSTALLATION, JOURNALED
from resources.ledger.rows import is_id

_KINDS = frozenset({str, type(None)})
"""What the hash of a row is: a text, or nothing where there was, or is, no row."""


@dataclass(frozen=True)
class Entry:
    """One entry: which rows of which run a transaction changed.

    Attributes:
        number: its place; entries count up without a gap.
        run_id: the run whose rows they are.
        hash: the hash of what the entry says.
        said: number, previous, run, at, follows, rows; empty if it is not as it was written.
    """

    number: int
    run_id: str
    hash: str
    said: Mapping[str, Any]

    @property
    def adopted(self) -> bool:
        """Whether the rows were there before the journal was."""
        return bool(self.said.get("adopted"))


@dataclass(frozen=True)
class Unexplained:
    """A row, an entry or a link that the journal cannot explain."""

    where: str
    what: str
    table: str = ""
    key: str = ""
    expected: str = ""
    found: str = ""


@dataclass(frozen=True)
class ReadEntry:
    """An entry as the ledger has it.

    Attributes:
        number: its cell of the number; `run_id` that of the run, `hash` that of the hash.
        own: the hash of its text.
        said: what the text says.
        wrong: why it explains nothing; None if it does.
    """

    number: Any
    run_id: Any
    hash: Any
    own: str
    said: Mapping[str, Any]
    wrong: Unexplained | None

    @property
    def follows(self) -> int:
        """The number that the chain had reached when it was written; 0 where it does not say so."""
        said = self.said.get("follows")
        return said if isinstance(said, int) and is_count(said) else 0


def read_entry(row: sa.Row[Any]) -> ReadEntry:
    """Read an entry, and look whether a transaction of this project can have written it."""
    said = said_by(row.said)
    return ReadEntry(row.number, row.run_id, row.hash, own_hash(row.said), said, wrong_in(row, said))


def said_by(text: Any) -> Mapping[str, Any]:
    """Return what the text of an entry says; empty if it is no JSON object."""
    try:
        said = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def own_hash(said: Any) -> str:
    """Return the hash of the text of an entry."""
    return hashlib.sha256(str(said).encode("utf-8", "surrogatepass")).hexdigest()


def wrong_in(row: sa.Row[Any], said: Mapping[str, Any]) -> Unexplained | None:
    """Say that an entry has another hash, number or run than it says, or what no transaction of this project writes."""
    own, where = own_hash(row.said), f"ledger journal {row.number}"
    if own != row.hash or (said.get("number"), said.get("run")) != (row.number, row.run_id):
        return Unexplained(where, "was changed after it was written", expected=str(row.hash), found=own)
    wrong = _of_no_form(said)
    return Unexplained(where, wrong, found=str(row.said)) if wrong else None


def _of_no_form(said: Mapping[str, Any]) -> str:
    """Say why no transaction of this project has written an entry, whatever hash it has; empty if one can have."""
    what, changes = "says what no transaction of this project writes", said.get("rows")
    if said.get("run") != INSTALLATION and not is_id(said.get("run")):
        return f"{what}: it is of no run that there could be"
    if not (
        is_count(said.get("follows")) and isinstance(said.get("at"), str) and isinstance(said.get("previous"), str)
    ):
        return f"{what}: it has no instant, or nothing that it follows"
    if not isinstance(changes, dict) or not changes:
        return f"{what}: it gives no rows by table"
    strange = [name for name, changed in changes.items() if name not in JOURNALED or not _are_changes(changed)]
    return f"{what}: of {', '.join(strange)} it gives no hashes of rows" if strange else ""


def is_count(value: Any) -> bool:
    """Whether a value counts something."""
    return type(value) is int and value >= 0


def _are_changes(changed: Any) -> bool:
    """Whether an entry gives of a table its columns, and of each row the hashes before and after."""
    if not isinstance(changed, dict) or changed.keys() != {"columns", "rows"} or not isinstance(changed["rows"], dict):
        return False
    columns, pairs = changed["columns"], changed["rows"].values()
    return (
        isinstance(columns, list)
        and bool(pairs)
        and all(isinstance(column, str) for column in columns)
        and _are_hashes(pairs)
    )


def _are_hashes(pairs: Collection[Any]) -> bool:
    """Whether each is a list of two hashes; an entry may have very many."""
    return (
        set(map(type, pairs)) == {list}
        and set(map(len, pairs)) == {2}
        and set(map(type, chain.from_iterable(pairs))) <= _KINDS
    )
