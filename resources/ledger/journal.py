"""The journal: an entry for each transaction that changed the ledger, with the hash of the entry before it.

Put here how entries are made, read back, and held against the ledger's rows. An entry names each row that a transaction
inserted, changed or deleted by the hashes of its cells before and after, so that a cell that was changed by hand shows, also
where a later transaction has changed the row again. It is written in the transaction itself, by listening to the engine:
whoever writes through a `Ledger` is in the journal, and nothing has to be done for it. Once the transaction is committed, a
link of the chain (`resources.evidence.chain`) gives the hash of the newest entry, and by that vouches for every entry before it, of all runs.

Two stores, and a process may die between them: then entries have no link yet, and the next link, of whichever run, covers
them. A row that no entry explains is covered by nothing, ever: no repair makes it lawful. Whoever writes rows, entries and
links as this code does is this code; what such a forgery cannot do is change the past that a kept head vouches for.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.dml import Delete, Insert, Update

from manifests.canonical import canonical_json_of_plain
from manifests.errors import EnvironmentRefused, Problem
from resources.evidence.chain import Chain, Link
from resources.ledger.locks import lock_journal
from resources.ledger.rows import cell, is_id, run_ids, unforgiving
from resources.ledger.tables import journal, metadata, runs

_LOG = logging.getLogger(__name__)
EVENT = "ledger"
"""What a link of the chain that vouches for the journal says it is."""
INSTALLATION = ""
"""The run under which rows of no run are journaled."""
NOTHING = "0" * 64
"""What the first entry names as the one before it."""
_APART = {"leases", "journal"}
"""Who holds which days just now, and the journal itself."""
_JOURNALED = frozenset(metadata.tables) - _APART
_TEXTS = {"runs": {"manifest": "manifest_hash", "plan": "plan_hash"}}
"""Long texts whose hash is another cell of the row: by table, the text and its hash."""
_TOUCHED, _WRITTEN, _CHAIN = "journal.touched", "journal.written", "journal.chain"
_PREVIOUS = '"previous":"'
"""What stands in the text of an entry before the hash of the one before it."""
_HEX = 32
"""Digits kept of the hash of a row: 128 bits."""
_BATCH = 400


@dataclass
class _Touched:
    """What a transaction has changed so far: rows as they were before, and where new ones begin."""

    before: dict[tuple[str, str, str], str | None] = field(default_factory=dict)
    """By table, run and key."""
    grown: dict[str, int] = field(default_factory=dict)
    """By table with numbered rows: the highest number before."""


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


class Journal:
    """What listens to an engine; with a chain, its entries are linked as they are committed."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.adopted: list[str] = []
        """Runs of an earlier version that this process has put under the journal, as they were."""
        sa.event.listen(engine, "before_execute", self._before_execute)
        sa.event.listen(engine, "commit", self._on_commit)
        sa.event.listen(engine, "rollback", _forget)
        sa.event.listen(engine, "checkin", self._on_checkin)

    @property
    def chain(self) -> Chain | None:
        """The chain that entries are linked in; whoever has the engine can ask it."""
        return _chain_of(self.engine)

    @chain.setter
    def chain(self, chain: Chain) -> None:
        self.engine.update_execution_options(**{_CHAIN: chain})

    # --- a transaction ----------------------------------------------------------------------------------------

    @staticmethod
    def _before_execute(
        connection: sa.Connection, clause: Any, multiparams: Any, params: Any, _options: Mapping[str, Any]
    ) -> None:
        """Keep what the rows are that a statement is about to change."""
        if not isinstance(clause, (Insert, Update, Delete)):
            return
        table = clause.table
        if table is not metadata.tables.get(getattr(table, "name", "")) or table.name not in _JOURNALED:
            return
        touched: _Touched = connection.info.setdefault(_TOUCHED, _Touched())
        each: list[Mapping[str, Any]] = list(multiparams) or [params or {}]
        if isinstance(clause, Insert):
            _about_to_insert(connection, touched, clause, each)
            return
        for values in each:
            query = _rows_of(table).with_for_update(key_share=True)
            if clause.whereclause is not None:
                query = query.where(clause.whereclause)
            for run_id, key, row in _read(connection, table, query, values):
                touched.before.setdefault((table.name, run_id, key), hash_of(row))

    def _on_commit(self, connection: sa.Connection) -> None:
        """Write an entry for each run whose rows have changed."""
        touched: _Touched | None = connection.info.pop(_TOUCHED, None)
        if touched is None:
            return
        changes = _changes(connection, touched)
        if not changes:
            return
        written = None
        follows = 0 if self.chain is None else self.chain.length()
        lock_journal(connection)
        for run_id, rows in sorted(changes.items()):
            written = _write(connection, run_id, rows, follows)
        connection.info[_WRITTEN] = written

    def _on_checkin(self, _connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
        """Link what was committed on a connection, now that the transaction is over."""
        record.info.pop(_TOUCHED, None)
        written: Link | None = record.info.pop(_WRITTEN, None)
        if written is not None and self.chain is not None:
            try:
                _link(self.chain, written)
            except (OSError, EnvironmentRefused) as error:  # the next link covers it: what is committed is committed
                _LOG.warning("the ledger's newest entry has no link in the chain yet: %s", error)

    # --- what is made up for ----------------------------------------------------------------------------------

    def catch_up(self) -> bool:
        """Link the newest entry if nothing vouches for it yet: its process died first. Return whether there was one.

        Rows that no entry explains stay unexplained.

        Raises:
            EnvironmentRefused: if that entry is not as a transaction has written it: no link is to vouch for it.
        """
        assert self.chain is not None
        with self.engine.connect() as connection:
            last = _last(connection)
        if last is None:
            return False
        said = _said(last.said)
        if (wrong := _wrong_in(last, said)) is not None:
            raise EnvironmentRefused(
                Problem(
                    f"{wrong.where} {wrong.what}",
                    "a link vouches for an entry as its transaction has written it",
                    "find out who has changed it; put back what `backfill verify` says was there, or the ledger from its backup",
                )
            )
        before = self.chain.length()
        link = _link(self.chain, Link(last.number, last.hash, said), newest=self._newest)
        return link.number > before

    def _newest(self) -> int:
        with self.engine.connect() as connection:
            return newest(connection)

    def adopt(self, connection: sa.Connection) -> None:
        """Enter every row of runs that the journal knows nothing of: those of an earlier version."""
        known = {row.run_id for row in connection.execute(sa.select(journal.c.run_id).distinct())}
        rows: dict[str, dict[str, Any]] = {}
        for name in sorted(_JOURNALED):
            table = metadata.tables[name]
            for run_id, key, row in _read(connection, table, _rows_of(table), {}):
                if run_id not in known:
                    _enter(rows, table, run_id, key, None, hash_of(row))
        lock_journal(connection)
        for run_id, found in sorted(rows.items()):
            connection.info[_WRITTEN] = _write(connection, run_id, found, 0, adopted=True)
        self.adopted = sorted(rows.keys() - {INSTALLATION})


def _forget(connection: sa.Connection) -> None:
    if connection.invalidated:
        return
    connection.info.pop(_TOUCHED, None)
    connection.info.pop(_WRITTEN, None)


def _about_to_insert(
    connection: sa.Connection, touched: _Touched, clause: Insert, each: Iterable[Mapping[str, Any]]
) -> None:
    table = clause.table
    assert isinstance(table, sa.Table)
    if _numbered(table):
        if table.name not in touched.grown:
            touched.grown[table.name] = connection.execute(sa.select(sa.func.max(table.c.id))).scalar() or 0
        return
    own = dict(clause.compile().params) if clause._values else {}  # noqa: SLF001 - compiled only where the statement brings values
    for values in each:
        run_id, key = _place(table, {**own, **values})
        touched.before.setdefault((table.name, run_id, key), None)


def _changes(connection: sa.Connection, touched: _Touched) -> dict[str, dict[str, Any]]:
    """Return by run what the entry of a transaction says of its rows."""
    changes: dict[str, dict[str, Any]] = {}
    after: dict[tuple[str, str, str], str] = {}
    for name, highest in touched.grown.items():
        table = metadata.tables[name]
        for run_id, key, row in _read(connection, table, _rows_of(table).where(table.c.id > highest), {}):
            after[name, run_id, key] = hash_of(row)
            touched.before[name, run_id, key] = None
    missing: dict[tuple[str, str], list[str]] = {}
    for name, run_id, key in touched.before:
        if (name, run_id, key) not in after:
            missing.setdefault((name, run_id), []).append(key)
    for (name, run_id), keys in missing.items():
        table = metadata.tables[name]
        for start in range(0, len(keys), _BATCH):
            query = _rows_of(table).where(_are(table, run_id, keys[start : start + _BATCH]))
            for _, key, row in _read(connection, table, query, {}):
                after[name, run_id, key] = hash_of(row)
    for (name, run_id, key), before in touched.before.items():
        now_ = after.get((name, run_id, key))
        if before != now_:
            _enter(changes, metadata.tables[name], run_id, key, before, now_)
    return changes


def _enter(
    changes: dict[str, dict[str, Any]], table: sa.Table, run_id: str, key: str, before: str | None, after: str | None
) -> None:
    of_table = changes.setdefault(run_id, {}).setdefault(table.name, {"columns": columns_of(table), "rows": {}})
    of_table["rows"][key] = [before, after]


def _write(
    connection: sa.Connection, run_id: str, rows: Mapping[str, Any], follows: int, *, adopted: bool = False
) -> Link:
    last = _last(connection)
    number, previous = (1, NOTHING) if last is None else (last.number + 1, last.hash)
    at = datetime.now(UTC)
    said: dict[str, Any] = {
        "number": number,
        "previous": previous,
        "run": run_id,
        "at": at.isoformat(),
        "follows": follows,
        "rows": rows,
    } | ({"adopted": True} if adopted else {})
    text = canonical_json_of_plain(said)
    own = hashlib.sha256(text.encode()).hexdigest()
    connection.execute(journal.insert().values(number=number, run_id=run_id, hash=own, said=text))
    return Link(number, own, {"follows": follows, "at": said["at"]})


def _last(connection: sa.Connection) -> sa.Row[Any] | None:
    """Return the newest entry as the ledger has it.

    Raises:
        EnvironmentRefused: if it has no number or no hash that the next one could name.
    """
    with unforgiving(connection):
        row = connection.execute(sa.select(journal).order_by(journal.c.number.desc()).limit(1)).one_or_none()
    if row is not None and not (isinstance(row.number, int) and isinstance(row.hash, str)):
        raise EnvironmentRefused(
            Problem(
                f"the newest entry of the ledger's journal has the number {row.number!r} and the hash {row.hash!r}",
                "each entry has a number, and the next one names its hash: nothing is written past one that has none",
                "`backfill verify --all`; find out who has changed it, and put back what was there, or the ledger from its "
                "backup",
            )
        )
    return row


def _link(chain: Chain, entry: Link, *, newest: Callable[[], int] | None = None) -> Link:
    """Append the link of an entry, unless one of it or of a later entry is there; of one that `newest` knows, if it is given."""
    content = {"event": EVENT, "run": INSTALLATION, "entry": entry.number, "entryHash": entry.hash}
    content["at"] = entry.content["at"]

    def same(link: Mapping[str, Any]) -> bool:
        told = link.get("entry")
        if link.get("event") != EVENT or not isinstance(told, int) or told < entry.number:
            return False
        return newest is None or told == entry.number or told <= newest()

    return chain.append(content, since=int(entry.content["follows"]), same=same)


# --- rows -------------------------------------------------------------------------------------------------------------


def columns_of(table: sa.Table) -> list[str]:
    """Return the columns whose cells the hash of a row covers; texts that have a hash of their own are left out."""
    return [column.name for column in table.c if column.name not in _TEXTS.get(table.name, ())]


def hash_of(cells: Sequence[Any]) -> str:
    """Return the hash of a row's cells."""
    text = json.dumps(list(cells), ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_HEX]


def _numbered(table: sa.Table) -> bool:
    return [column.name for column in table.primary_key] == ["id"]


def _keys(table: sa.Table) -> list[str]:
    names = [column.name for column in table.primary_key]
    return [name for name in names if name != "run_id"] or names


def _place(table: sa.Table, values: Mapping[str, Any]) -> tuple[str, str]:
    run_id = str(values["run_id"]) if "run_id" in table.c else INSTALLATION
    return run_id, "|".join(str(values[name]) for name in _keys(table))


def _are(table: sa.Table, run_id: str, keys: Sequence[str]) -> sa.ColumnElement[bool]:
    names = _keys(table)
    mine = table.c.run_id == run_id if "run_id" in table.c else sa.true()
    if len(names) > 1:
        return mine  # a small table: all of its rows
    column = table.c[names[0]]
    return sa.and_(mine, column.in_([int(key) for key in keys] if isinstance(column.type, sa.Integer) else keys))


@lru_cache(maxsize=256)
def _rows_of(table: sa.Table, columns: tuple[str, ...] | None = None) -> sa.Select[Any]:
    """Return the query for a table's rows: run, key cells, then the cells that a hash covers, as the database holds them.

    Kept: to build a query and to find its compiled text takes longer than to read a run's rows.
    """
    run = table.c.run_id if "run_id" in table.c else sa.literal(INSTALLATION)
    keys = [table.c[name].label(f"key_{name}") for name in _keys(table)]
    wanted = columns_of(table) if columns is None else columns
    cells = [sa.type_coerce(table.c[name], sa.types.NullType()).label(f"cell_{name}") for name in wanted]
    return sa.select(run.label("of_run"), *keys, *cells)


@lru_cache(maxsize=256)
def _rows_of_one(table: sa.Table, columns: tuple[str, ...] | None = None) -> sa.Select[Any]:
    """Return the query of `_rows_of` for the run that its parameter `one_run` names."""
    return _rows_of(table, columns).where(table.c.run_id == sa.bindparam("one_run"))


def _read(
    connection: sa.Connection,
    table: sa.Table,
    query: sa.Select[Any],
    values: Mapping[str, Any],
    columns: Sequence[str] | None = None,
) -> Iterator[tuple[str, str, list[Any]]]:
    """Yield run, key and cells of each row of a query of `_rows_of`."""
    keys = len(_keys(table))
    kinds = [table.c[name].type for name in (columns_of(table) if columns is None else columns)]
    with unforgiving(connection):
        found = connection.execute(query, dict(values)).all()
    for run_id, *rest in found:
        cells = [
            value if isinstance(value, str) and isinstance(kind, sa.Text) else cell(kind, value)
            for kind, value in zip(kinds, rest[keys:], strict=True)
        ]
        yield str(run_id), "|".join(str(part) for part in rest[:keys]), cells


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
        .where(journal.c.run_id == run_id)
        .order_by(journal.c.number)
    )
    with unforgiving(connection):
        entries = connection.execute(query).all()
    for row in entries:
        previous = NOTHING if row.number == 1 else row.previous
        if _wrong_in(row, said := _said(row.said)) is None and said["previous"] == previous:
            _fold(found, Entry(row.number, run_id, row.hash, said))
    return found


def newest_link(ledger: sa.Engine | sa.Connection) -> list[Link]:
    """Return the newest link that vouches for an entry, and so for every entry before that one; nothing where there is none.

    Ask before the first statement of the transaction that reads the entries: what the link is about was committed by then.
    """
    chain = _chain_of(ledger)
    for number in range(0 if chain is None else chain.length(), 0, -1):
        assert chain is not None
        link = next(chain.links(since=number - 1), None)
        if link is not None and link.content.get("event") == EVENT:
            return [link]
    return []


def _chain_of(ledger: sa.Engine | sa.Connection) -> Chain | None:
    chain: Chain | None = ledger.get_execution_options().get(_CHAIN)
    return chain


def first_of(connection: sa.Connection, run_id: str) -> tuple[int, int]:
    """Return the first entry of a run, and the number of the chain's last link when it was written."""
    query = sa.select(journal.c.number, journal.c.said).where(journal.c.run_id == run_id).order_by(journal.c.number)
    with unforgiving(connection):
        row = connection.execute(query.limit(1)).one_or_none()
    if row is None or not isinstance(row.number, int):
        return 1, 0
    follows = _said(row.said).get("follows")
    return row.number, follows if isinstance(follows, int) and _is_count(follows) else 0


def is_adopted(connection: sa.Connection, run_id: str) -> bool:
    """Whether an entry has put a run of an earlier version under the journal, as it was."""
    query = sa.select(journal.c.said).where(journal.c.run_id == run_id).order_by(journal.c.number)
    with unforgiving(connection):
        first = connection.execute(query.limit(1)).scalar_one_or_none()
    return bool(_said(first).get("adopted"))


def explain(connection: sa.Connection, links: Iterable[Link], *, first: int = 1) -> Explained:
    """Read the journal and hold each entry against the one before it and the links of the chain.

    With `first`, from that entry on: of what came before, only the hash of the entry before it is asked.
    """
    found = Explained()
    previous, follows = _hash_of_entry(connection, first - 1), first
    query = sa.select(journal).where(journal.c.number >= first).order_by(journal.c.number)
    with unforgiving(connection):
        entries = connection.execute(query).all()
    told = _told(links, found, _written_after(entries))
    for row in entries:
        where = f"ledger journal {row.number}"
        if not isinstance(row.number, int):
            found.damages.append(Unexplained(where, "has no number", expected=str(follows), found=str(row.number)))
            continue
        if row.number != follows:
            found.damages.append(
                Unexplained(where, "follows entries that are gone", expected=str(follows), found=str(row.number))
            )
        follows = row.number + 1
        own, said, vouched = _own_hash(row.said), _said(row.said), told.get(row.number)
        wrong = _wrong_in(row, said)
        whole = wrong is None
        if wrong is not None:
            found.damages.append(wrong)
        elif said["previous"] != previous:
            what = "names another entry before it"
            found.damages.append(Unexplained(where, what, expected=previous, found=said["previous"]))
        if whole and vouched is not None and vouched[1] != own:
            what = f"is not the entry that link {vouched[0]} of the chain vouches for"
            found.damages.append(Unexplained(where, what, expected=vouched[1], found=own))
        previous, found.length = str(row.hash), row.number
        found.hash = previous
        if whole:
            _fold(found, Entry(row.number, str(row.run_id), own, said))
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
    query = sa.select(journal.c.number, journal.c.said).where(journal.c.number <= last).order_by(journal.c.number)
    before, follows = NOTHING, 1
    with unforgiving(connection):
        for number, said in connection.execute(query).yield_per(_BATCH):
            if number != follows or not isinstance(said, str):
                return False
            place = said.find(_PREVIOUS) + len(_PREVIOUS)  # the text is canonical: no other field before it can say so
            if said[place : place + len(before)] != before:
                return False
            before, follows = _own_hash(said), number + 1
    return follows == last + 1


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
        own, said = _own_hash(row.said), _said(row.said)
        if _wrong_in(row, said) is not None or (row.number, said.get("previous")) != (found.length + 1, found.hash):
            return
        found.length, found.hash = row.number, own
        _fold(found, Entry(row.number, str(row.run_id), own, said))


def newest(connection: sa.Connection) -> int:
    """Return the number of the newest entry, 0 if there is none."""
    return connection.execute(sa.select(sa.func.max(journal.c.number))).scalar() or 0


def _written_after(entries: Iterable[sa.Row[Any]]) -> dict[int, int]:
    """Return by entry the number that the chain had reached when it was written; 0 where it does not say so."""
    said = ((row.number, _said(row.said).get("follows")) for row in entries if isinstance(row.number, int))
    return {number: follows if isinstance(follows, int) and _is_count(follows) else 0 for number, follows in said}


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


def _said(text: Any) -> Mapping[str, Any]:
    try:
        said = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _own_hash(said: Any) -> str:
    return hashlib.sha256(str(said).encode("utf-8", "surrogatepass")).hexdigest()


def _wrong_in(row: sa.Row[Any], said: Mapping[str, Any]) -> Unexplained | None:
    """Say that an entry has another hash, number or run than it says, or what no transaction of this project writes."""
    own, where = _own_hash(row.said), f"ledger journal {row.number}"
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
        _is_count(said.get("follows")) and isinstance(said.get("at"), str) and isinstance(said.get("previous"), str)
    ):
        return f"{what}: it has no instant, or nothing that it follows"
    if not isinstance(changes, dict) or not changes:
        return f"{what}: it gives no rows by table"
    strange = [name for name, changed in changes.items() if name not in _JOURNALED or not _are_changes(changed)]
    return f"{what}: of {', '.join(strange)} it gives no hashes of rows" if strange else ""


def _is_count(value: Any) -> bool:
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
        and all(isinstance(pair, list) and [*map(_is_hash, pair)] == [True, True] for pair in pairs)
    )


def _is_hash(value: Any) -> bool:
    return value is None or isinstance(value, str)


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
    for name in sorted(_JOURNALED if tables is None else _JOURNALED & set(tables)):
        table = metadata.tables[name]
        if run_id != INSTALLATION and "run_id" not in table.c:
            continue
        if run_id == INSTALLATION and "run_id" in table.c:
            continue
        rows = expected.get(name, {})
        here: set[str] = set()
        for columns in {of for _, of in rows.values()} | {tuple(columns_of(table))}:
            known = tuple(column for column in columns if column in table.c)
            query = _rows_of(table, known) if run_id == INSTALLATION else _rows_of_one(table, known)
            for _, key, cells in _read(connection, table, query, {"one_run": run_id}, known):
                here.add(key)
                hash_, of = rows.get(key, (None, tuple(columns_of(table))))
                if of != columns:
                    continue
                own = hash_of(cells)
                where = f"ledger {name} {key}"
                if hash_ is None:
                    what = "is a row that no transaction of this project has written"
                    wrong.append(Unexplained(where, what, name, key, "", json.dumps(cells)))
                elif own != hash_:
                    what = "is not as it was last written: a cell was changed by hand"
                    wrong.append(Unexplained(where, what, name, key, hash_, own))
        wrong += [
            Unexplained(f"ledger {name} {key}", "is gone", name, key, str(hash_), "nothing")
            for key, (hash_, _) in rows.items()
            if hash_ is not None and key not in here
        ]
        wrong += _texts(connection, table, run_id)
    return wrong


def of_nobody(connection: sa.Connection, found: Explained) -> Iterator[Unexplained]:
    """Yield the rows of runs that the ledger does not have and the journal has never had, and runs whose id can be none.

    Whoever looks at one run after the other sees none of them: their cell of the run may hold anything.
    """
    known = {*filter(is_id, found.runs), *run_ids(connection)} - {INSTALLATION}  # held against the journal run by run
    for name in sorted(_JOURNALED):
        table = metadata.tables[name]
        if "run_id" not in table.c:
            continue
        query = _rows_of(table)
        if table is not runs:
            query = query.where(~sa.exists().where(runs.c.run_id == table.c.run_id))
        for run_id, key, cells in _read(connection, table, query, {}):
            if run_id in known:
                continue
            what = f"is a row of '{run_id}', which is no run: no transaction of this project has written it"
            yield Unexplained(f"ledger {name} {key}", what, name, key, "", json.dumps(cells))


def _texts(connection: sa.Connection, table: sa.Table, run_id: str) -> Iterator[Unexplained]:
    """Hold the long texts of rows against the cells that have their hashes."""
    for text, hash_ in _TEXTS.get(table.name, {}).items():
        query = _rows_of_one(table, (text, hash_))
        for _, key, (said, expected) in _read(connection, table, query, {"one_run": run_id}, [text, hash_]):
            own = hashlib.sha256(str(said).encode("utf-8", "surrogatepass")).hexdigest()
            if own != expected:
                what = f"does not have the {hash_} on record"
                yield Unexplained(f"ledger {table.name} {key} column {text}", what, table.name, key, str(expected), own)
