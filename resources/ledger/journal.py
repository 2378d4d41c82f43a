"""The journal: an entry for each transaction that changed the ledger, with the hash of the entry before it.

Put here how entries are read back, and held against the ledger's rows and the links of the chain; how they are written is
`journaling`'s. An entry names each row that a transaction inserted, changed or deleted by the hashes of its cells before and
after, so that a cell that was changed by hand shows, also where a later transaction has changed the row again. Once the
transaction is committed, a link of the chain (`resources.evidence.chain`) gives the hash of the newest entry, and by that
vouches for every entry before it, of all runs.

Two stores, and a process may die between them: then entries have no link yet, and the next link, of whichever run, covers
them. A row that no entry explains is covered by nothing, ever: no repair makes it lawful. Whoever writes rows, entries and
links as this code does is this code; what such a forgery cannot do is change the past that a kept head vouches for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from resources.evidence.chain import Chain, Link
from resources.ledger.journal_entries import (
    Entry,
    Unexplained,
    is_count,
    read_entry,
    said_by,
)
from resources.ledger.journaled_rows import (
    INSTALLATION,
    JOURNALED,
    TEXTS,
    columns_of,
    hash_of,
    query_of,
    query_of_run,
    read_rows,
)
from resources.ledger.rows import is_id, run_ids, unforgiving
from resources.ledger.tables import journal, metadata, runs

__all__ = [
    "CHAIN",
    "EVENT",
    "INSTALLATION",
    "NOTHING",
    "OF_THIS_PROJECT",
    "Entry",
    "Explained",
    "Unexplained",
    "chain_of",
    "damages",
    "explain",
    "explain_run",
    "first_of",
    "go_on",
    "hash_of",
    "is_adopted",
    "newest",
    "newest_link",
    "of_nobody",
    "said_by",
    "unexplained",
]

EVENT = "ledger"
"""What a link of the chain that vouches for the journal says it is."""
NOTHING = "0" * 64
"""What the first entry names as the one before it."""
CHAIN = "journal.chain"
"""The option of an engine that is the chain in which entries are linked."""
OF_THIS_PROJECT = journal.c.number >= 1
"""Which entries a transaction of this project can have written, by their number; any other one explains nothing."""
_PREVIOUS = b'"previous":"'
"""What stands in the text of an entry before the hash of the one before it."""
_BATCH = 400


# --- what it explains -------------------------------------------------------------------------------------------------


@dataclass
class Explained:
    """The journal as it was read: what each row is to be, and what is wrong with its entries and links."""

    runs: dict[str, dict[str, dict[str, tuple[str | None, tuple[str, ...]]]]] = field(default_factory=dict)
    """By run, table and key: the hash of the row, and of which cells."""
    broken: dict[str, list[Unexplained]] = field(default_factory=dict)
    """By run: rows that were changed by hand between two entries."""
    damages: list[Unexplained] = field(default_factory=list)
    length: int = 0
    hash: str = NOTHING
    """The hash of the newest entry."""
    linked: int = 0
    """The newest entry that a link vouches for."""
    adopted: set[str] = field(default_factory=set)


def explain_run(connection: sa.Connection, run_id: str) -> Explained:
    """Read the entries of one run, each held against itself and the hash of the one before it only.

    Enough to know which of the run's rows were written by hand, as long as links and the entries of other runs need no look.
    """
    found = Explained()
    before = journal.alias("before")
    query = (
        sa.select(journal, before.c.hash.label("previous"))
        .join_from(journal, before, before.c.number == journal.c.number - 1, isouter=True)
        .where(journal.c.run_id == run_id, OF_THIS_PROJECT)
        .order_by(journal.c.number)
    )
    with unforgiving(connection):
        entries = connection.execute(query).all()
    for row in entries:
        previous = NOTHING if row.number == 1 else row.previous
        entry = read_entry(row)
        if entry.wrong is None and entry.said["previous"] == previous:
            _fold(found, entry)
    return found


def newest_link(ledger: sa.Engine | sa.Connection) -> list[Link]:
    """Return the newest link that vouches for an entry, and so for every entry before that one; nothing where there is none.

    Ask before the first statement of the transaction that reads the entries: what the link is about was committed by then.
    """
    chain = chain_of(ledger)
    for number in range(0 if chain is None else chain.length(), 0, -1):
        assert chain is not None
        link = next(chain.links(since=number - 1), None)
        if link is not None and link.content.get("event") == EVENT:
            return [link]
    return []


def chain_of(ledger: sa.Engine | sa.Connection) -> Chain | None:
    """Return the chain that the entries of a ledger are linked in."""
    chain: Chain | None = ledger.get_execution_options().get(CHAIN)
    return chain


def first_of(connection: sa.Connection, run_id: str) -> tuple[int, int]:
    """Return the first entry of a run, and the number of the chain's last link when it was written."""
    query = sa.select(journal.c.number, journal.c.said).where(journal.c.run_id == run_id, OF_THIS_PROJECT)
    with unforgiving(connection):
        row = connection.execute(query.order_by(journal.c.number).limit(1)).one_or_none()
    if row is None or not isinstance(row.number, int):
        return 1, 0
    follows = said_by(row.said).get("follows")
    return row.number, follows if isinstance(follows, int) and is_count(follows) else 0


def is_adopted(connection: sa.Connection, run_id: str) -> bool:
    """Whether an entry has put a run of an earlier version under the journal, as it was."""
    query = sa.select(journal.c.said).where(journal.c.run_id == run_id, OF_THIS_PROJECT).order_by(journal.c.number)
    with unforgiving(connection):
        first = connection.execute(query.limit(1)).scalar_one_or_none()
    return bool(said_by(first).get("adopted"))


def explain(
    connection: sa.Connection, links: Iterable[Link], *, first: int = 1, run_id: str | None = None
) -> Explained:
    """Read the journal and hold each entry against the one before it and the links of the chain.

    With `first`, from that entry on: of what came before, only the hash of the entry before it is asked. From the first one on,
    what has a number that comes before it is named as well. With `run_id`, what the entries say of other runs' rows is not kept.
    """
    found = Explained()
    previous, follows = _hash_of_entry(connection, first - 1), first
    asked = sa.true() if first <= 1 else journal.c.number >= first
    query = sa.select(journal).where(asked).order_by(journal.c.number)
    with unforgiving(connection):
        entries = [_kept(read_entry(row), run_id) for row in connection.execute(query).yield_per(_BATCH)]
    told = _told(links, found, {one.number: one.follows for one in entries if isinstance(one.number, int)})
    for row in entries:
        where = f"ledger journal {row.number}"
        if not (isinstance(row.number, int) and row.number > 0):
            counts = "has a number that no entry has: a transaction of this project counts from 1"
            what = counts if isinstance(row.number, int) else "has no number"
            found.damages.append(Unexplained(where, what, expected=str(follows), found=str(row.number)))
            continue
        if row.number != follows:
            found.damages.append(
                Unexplained(where, "follows entries that are gone", expected=str(follows), found=str(row.number))
            )
        follows = row.number + 1
        vouched = told.get(row.number)
        if row.wrong is not None:
            found.damages.append(row.wrong)
        elif row.said["previous"] != previous:
            what = "names another entry before it"
            found.damages.append(Unexplained(where, what, expected=previous, found=row.said["previous"]))
        if row.wrong is None and vouched is not None and vouched[1] != row.own:
            what = f"is not the entry that link {vouched[0]} of the chain vouches for"
            found.damages.append(Unexplained(where, what, expected=vouched[1], found=row.own))
        previous, found.length = str(row.hash), row.number
        found.hash = previous
        if row.wrong is None and run_id in {None, row.run_id}:
            _fold(found, row)
    found.linked = max((number for number in told if number <= found.length), default=0)
    here = {row.number for row in entries}
    for number, (link_number, hash_) in told.items():
        if number > found.length or (number >= first and number not in here):
            what = f"is missing: link {link_number} of the chain vouches for it"
            found.damages.append(Unexplained(f"ledger journal {number}", what, expected=hash_, found="nothing"))
    return found


def damages(connection: sa.Connection, links: Sequence[Link]) -> list[Unexplained]:
    """Return what is wrong with the entries and with the newest of the chain's links (see `newest_link`), of all runs.

    Up to the entry that the link vouches for, it is enough that each names the hash of the one before it: an entry cannot be
    changed, put in or taken out then. They are parsed, which takes twenty times as long, only to name what is wrong.
    """
    linked = next((number for link in links if isinstance(number := link.content.get("entry"), int)), 0)
    whole = _follow_each_other(connection, linked)
    found = explain(connection, links, first=max(linked, 1) if whole else 1).damages
    return found if whole or found else [Unexplained("ledger journal", "has an entry that follows no entry")]


def _follow_each_other(connection: sa.Connection, last: int) -> bool:
    """Whether the entries up to a number count up, each with the hash of the text before it."""
    before, follows = NOTHING.encode(), 1
    for number, said in _raw_texts(connection, last):
        if number != follows or said is None:
            return False
        place = said.find(_PREVIOUS) + len(_PREVIOUS)  # the text is canonical: no other field before it can say so
        if said[place : place + len(before)] != before:
            return False
        before, follows = hashlib.sha256(said).hexdigest().encode(), number + 1
    return follows == last + 1


def _raw_texts(connection: sa.Connection, last: int) -> Iterator[tuple[Any, bytes | None]]:
    """Yield number and text of each entry up to a number, in UTF-8; None of what is no text.

    As SQLite keeps them: to make texts of all that was ever done, only to hash them, takes as long as the hashes.
    """
    raw: sa.ColumnElement[Any] = sa.type_coerce(journal.c.said, sa.types.NullType())
    kind: sa.ColumnElement[Any] = sa.literal("text")
    if connection.dialect.name == "sqlite":
        raw, kind = sa.cast(journal.c.said, sa.LargeBinary), sa.func.typeof(journal.c.said)
    query = sa.select(journal.c.number, raw, kind).where(journal.c.number <= last).order_by(journal.c.number)
    with unforgiving(connection):
        for number, said, is_kept_as in connection.execute(query).yield_per(_BATCH):
            text = said.encode("utf-8", "surrogatepass") if isinstance(said, str) else said
            is_text = is_kept_as == "text" and isinstance(text, bytes)
            yield number, text if is_text and (text.isascii() or _is_utf8(text)) else None


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _hash_of_entry(connection: sa.Connection, number: int) -> str:
    """Return the hash that the ledger gives an entry; that of no entry before the first one, and empty for one that is gone."""
    if number < 1:
        return NOTHING
    with unforgiving(connection):
        return str(connection.execute(sa.select(journal.c.hash).where(journal.c.number == number)).scalar() or "")


def go_on(connection: sa.Connection, found: Explained) -> None:
    """Take over the entries that were written since the journal was read, each only if it follows the one before it.

    For whoever has read the journal before the rows: in the transaction in which they are read. Whether links vouch for those
    entries is for whoever reads the journal next.
    """
    query = sa.select(journal).where(journal.c.number > found.length).order_by(journal.c.number)
    with unforgiving(connection):
        entries = connection.execute(query).all()
    for row in entries:
        entry = read_entry(row)
        if entry.wrong or (entry.number, entry.said.get("previous")) != (found.length + 1, found.hash):
            return
        found.length, found.hash = entry.number, entry.own
        _fold(found, entry)


def newest(connection: sa.Connection, run_id: str | None = None) -> int:
    """Return the number of the newest entry (of a run, if given), 0 if there is none."""
    of = sa.true() if run_id is None else journal.c.run_id == run_id
    return connection.execute(sa.select(sa.func.max(journal.c.number)).where(OF_THIS_PROJECT, of)).scalar() or 0


def _kept(entry: Entry, run_id: str | None) -> Entry:
    """Return an entry without what it says of rows, if it is another run's than is asked for: that may be very much."""
    if run_id in {None, entry.run_id}:
        return entry
    return replace(entry, said={name: said for name, said in entry.said.items() if name != "rows"})


def _told(links: Iterable[Link], found: Explained, written: Mapping[int, int]) -> dict[int, tuple[int, str]]:
    """Return by entry which link vouches for it and the hash that it gives.

    One that came before its entry, or is about none that there is, says nothing of those that follow it.
    """
    told: dict[int, tuple[int, str]] = {}
    newest, last = 0, max(written, default=0)
    for link in links:
        if link.content.get("event") != EVENT:
            continue
        number, hash_ = link.content.get("entry"), link.content.get("entryHash")
        if not isinstance(number, int) or number <= newest or number in told:
            what = "vouches for an entry of the ledger's journal that an earlier link vouches for"
            where = f"chain link {link.number}"
            found.damages.append(Unexplained(where, what, expected=f"an entry after {newest}", found=str(number)))
            continue
        if number > last:  # of entries that are gone, or were never there
            told[number] = (link.number, str(hash_))
            continue
        if link.number <= written.get(number, 0):
            what = "vouches for an entry of the ledger's journal that was written after it"
            said = f"a link after {written[number]}"
            found.damages.append(Unexplained(f"chain link {link.number}", what, expected=said, found=str(number)))
            continue
        newest = number
        told[number] = (link.number, str(hash_))
    return told


def _fold(found: Explained, entry: Entry) -> None:
    """Take over what an entry says of rows; a row that it met otherwise than the entry before had left it was changed by hand."""
    tables = found.runs.setdefault(entry.run_id, {})
    if entry.adopted:
        found.adopted.add(entry.run_id)
    for name, changed in entry.said["rows"].items():
        columns = tuple(changed["columns"])
        rows = tables.setdefault(name, {})
        for key, (before, after) in changed["rows"].items():
            left, of = rows.get(key, (None, columns))
            if left != before and of == columns:
                what = f"was changed by hand before entry {entry.number} of the journal changed it again"
                found.broken.setdefault(entry.run_id, []).append(
                    Unexplained(f"ledger {name} {key}", what, name, key, str(left), str(before))
                )
            rows[key] = (after, columns)


def unexplained(
    connection: sa.Connection, found: Explained, run_id: str, tables: Iterable[str] | None = None
) -> list[Unexplained]:
    """Return the rows of a run (of some tables, if given) that are not as the journal's entries left them."""
    wrong = list(found.broken.get(run_id, ()))
    expected = found.runs.get(run_id, {})
    present = JOURNALED if run_id == INSTALLATION else _with_rows_of(connection, run_id)
    for name in sorted(JOURNALED if tables is None else JOURNALED & set(tables)):
        table = metadata.tables[name]
        if run_id != INSTALLATION and "run_id" not in table.c:
            continue
        if run_id == INSTALLATION and "run_id" in table.c:
            continue
        rows = expected.get(name, {})
        if not rows and name not in present:
            continue
        here: set[str] = set()
        unknown = None, tuple(columns_of(table))
        for columns in {of for _, of in rows.values()} | {unknown[1]}:
            known = tuple(column for column in columns if column in table.c)
            query = query_of(table, known) if run_id == INSTALLATION else query_of_run(table, known)
            for _, key, cells in read_rows(connection, table, query, {"one_run": run_id}, known):
                here.add(key)
                hash_, of = rows.get(key, unknown)
                if of != columns:
                    continue
                own = hash_of(cells)
                if own == hash_:
                    continue
                where = f"ledger {name} {key}"
                if hash_ is None:
                    what = "is a row that no transaction of this project has written"
                    wrong.append(Unexplained(where, what, name, key, "", json.dumps(cells)))
                else:
                    what = "is not as it was last written: a cell was changed by hand"
                    wrong.append(Unexplained(where, what, name, key, hash_, own))
        wrong += [
            Unexplained(f"ledger {name} {key}", "is gone", name, key, str(hash_), "nothing")
            for key, (hash_, _) in rows.items()
            if hash_ is not None and key not in here
        ]
        wrong += _texts(connection, table, run_id)
    return wrong


@lru_cache(maxsize=1)
def _which_have_rows() -> sa.Select[Any]:
    """Return the query that tells of each table whether the run that its parameter `one_run` names has rows in it."""
    of_runs = [table for name in sorted(JOURNALED) if "run_id" in (table := metadata.tables[name]).c]
    return sa.select(
        *(sa.exists().where(table.c.run_id == sa.bindparam("one_run")).label(table.name) for table in of_runs)
    )


def _with_rows_of(connection: sa.Connection, run_id: str) -> set[str]:
    """Return the tables that have rows of a run: a question to all of them at once, of which most have none."""
    found = connection.execute(_which_have_rows(), {"one_run": run_id}).mappings().one()
    return {name for name, has in found.items() if has}


def of_nobody(connection: sa.Connection, found: Explained) -> Iterator[Unexplained]:
    """Yield the rows of runs that the ledger does not have and the journal has never had, and runs whose id can be none.

    Whoever looks at one run after the other sees none of them: their cell of the run may hold anything.
    """
    known = {*filter(is_id, found.runs), *run_ids(connection)} - {INSTALLATION}  # held against the journal run by run
    for name in sorted(JOURNALED):
        table = metadata.tables[name]
        if "run_id" not in table.c:
            continue
        query = query_of(table)
        if table is not runs:
            query = query.where(~sa.exists().where(runs.c.run_id == table.c.run_id))
        for run_id, key, cells in read_rows(connection, table, query, {}):
            if run_id in known:
                continue
            what = f"is a row of '{run_id}', which is no run: no transaction of this project has written it"
            yield Unexplained(f"ledger {name} {key}", what, name, key, "", json.dumps(cells))


def _texts(connection: sa.Connection, table: sa.Table, run_id: str) -> Iterator[Unexplained]:
    """Hold the long texts of rows against the cells that have their hashes."""
    for text, hash_ in TEXTS.get(table.name, {}).items():
        query = query_of_run(table, (text, hash_))
        for _, key, (said, expected) in read_rows(connection, table, query, {"one_run": run_id}, [text, hash_]):
            own = hashlib.sha256(str(said).encode("utf-8", "surrogatepass")).hexdigest()
            if own != expected:
                what = f"does not have the {hash_} on record"
                yield Unexplained(f"ledger {table.name} {key} column {text}", what, table.name, key, str(expected), own)
