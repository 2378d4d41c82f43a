"""How the journal is written: by listening to the engine, in the transaction whose rows an entry names.

Put here what a transaction has changed, the entry that says so, and its link in the chain; whoever writes through a `Ledger` is
in the journal, and nothing has to be done for it. What an entry says, and how entries are read back, is `journal`'s.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.dml import Delete, Insert, Update

from manifests.canonical import canonical_json_of_plain
from manifests.errors import EnvironmentRefused, Problem, StoreRefused
from resources.evidence.chain import Chain, Link
from resources.files.places import ObjectPlace
from resources.ledger import instants
from resources.ledger.journal import (
    CHAIN,
    EVENT,
    NOTHING,
    OF_THIS_PROJECT,
    chain_of,
    newest,
    newest_link,
)
from resources.ledger.journal_entries import Entry, read_entry
from resources.ledger.journaled_rows import (
    INSTALLATION,
    JOURNALED,
    columns_of,
    hash_of,
    have_keys,
    is_numbered,
    place_of,
    query_of,
    read_rows,
)
from resources.ledger.locks import lock_journal
from resources.ledger.rows import unforgiving
from resources.ledger.tables import journal, metadata

_LOG = logging.getLogger(__name__)
_TOUCHED, _WRITTEN = "journal.touched", "journal.written"
_BATCH = 400
_ROWS_OF_AN_ENTRY = 20_000
"""Rows that one entry names; a transaction that changes more of them writes several entries."""


@dataclass
class _Touched:
    """What a transaction has changed so far: rows as they were before, and where new ones begin."""

    before: dict[tuple[str, str], dict[str, str | None]] = field(default_factory=dict)
    """By table and run, and in these by key."""
    grown: dict[str, int] = field(default_factory=dict)
    """By table with numbered rows: the highest number before."""

    def note(self, table: str, run_id: str, key: str, before: str | None) -> None:
        """Keep what a row was, unless it was changed before."""
        self.before.setdefault((table, run_id), {}).setdefault(key, before)


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
        return chain_of(self.engine)

    @chain.setter
    def chain(self, chain: Chain | None) -> None:
        self.engine.update_execution_options(**{CHAIN: chain})
        if chain is not None and (self.engine.dialect.name != "sqlite" or isinstance(chain.folder, ObjectPlace)):
            # else ledger and chain lie in one home, and nobody takes one home for another
            chain.before_first = partial(self._require_no_other, chain)

    def newest_link(self) -> list[Link]:
        """Return the newest link that vouches for an entry; see `journal.newest_link`."""
        return newest_link(self.engine)

    # --- a transaction ----------------------------------------------------------------------------------------

    @staticmethod
    def _before_execute(
        connection: sa.Connection, clause: Any, multiparams: Any, params: Any, _options: Mapping[str, Any]
    ) -> None:
        """Keep what the rows are that a statement is about to change."""
        if not isinstance(clause, (Insert, Update, Delete)):
            return
        table = clause.table
        if table is not metadata.tables.get(getattr(table, "name", "")) or table.name not in JOURNALED:
            return
        touched: _Touched = connection.info.setdefault(_TOUCHED, _Touched())
        each: list[Mapping[str, Any]] = list(multiparams) or [params or {}]
        if isinstance(clause, Insert):
            _about_to_insert(connection, touched, clause, each)
            return
        query = query_of(table).with_for_update(key_share=True)
        if clause.whereclause is not None:
            query = query.where(clause.whereclause)
        for (
            values
        ) in each:  # one query for all of them: to find its compiled text again takes longer than to read a row
            for run_id, key, row in read_rows(connection, table, query, values):
                touched.note(table.name, run_id, key, hash_of(row))

    def _on_commit(self, connection: sa.Connection) -> None:
        """Write an entry for each run whose rows have changed."""
        touched: _Touched | None = connection.info.pop(_TOUCHED, None)
        if touched is None:
            return
        written = None
        follows = 0
        for changes in _changes(connection, touched):
            if written is None:
                follows = 0 if self.chain is None else self.chain.length()
                lock_journal(connection)
            for run_id, rows in sorted(changes.items()):
                written = _write(connection, run_id, rows, follows)
        if written is not None:
            connection.info[_WRITTEN] = written

    def _on_checkin(self, _connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
        """Link what was committed on a connection, now that the transaction is over."""
        record.info.pop(_TOUCHED, None)
        written: Link | None = record.info.pop(_WRITTEN, None)
        if written is not None and self.chain is not None:
            try:
                _link(self.chain, written)
            except (
                OSError,
                EnvironmentRefused,
                StoreRefused,
            ) as error:  # the next link covers it: what is committed is committed
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
        entry = read_entry(last)
        if (wrong := entry.wrong) is not None:
            raise EnvironmentRefused(
                Problem(
                    f"{wrong.where} {wrong.what}",
                    "a link vouches for an entry as its transaction has written it",
                    "find out who has changed it; put back what `backfill verify` says was there, or the ledger from its backup",
                )
            )
        before = self.chain.length()
        link = _link(self.chain, Link(entry.number, entry.hash, entry.said), newest=self._newest)
        return link.number > before

    def _require_no_other(self, chain: Chain) -> None:
        """Refuse to begin a chain where an entry was written when there were links: these are elsewhere, or lost.

        Raises:
            EnvironmentRefused: if there is such an entry.
        """
        known = self._entry_after_a_link()
        if known is not None:
            raise EnvironmentRefused(
                Problem(
                    f"{chain.folder} has no link, and the ledger's entry {known.number} was written when the chain had {known.follows:,}",
                    "there is one chain of evidence for all hosts of a ledger: a second one would know nothing of the runs on record",
                    "set `evidence` (or `home`) to where the chain is, as on the other hosts; if it was moved, copy all of it here first; if it "
                    "is lost, restore it from its backup",
                )
            )

    def links_gone(self) -> int:
        """Return how many links there were when an entry was written, the newest that knows of any, if the chain has none now; else 0.

        The chain is lost then, or another place is asked than the one it is in.
        """
        if self.chain is None or self.chain.length():
            return 0
        known = self._entry_after_a_link()
        return 0 if known is None else known.follows

    def _entry_after_a_link(self) -> Entry | None:
        """Return the newest entry that was written when the chain had links; None if there is none."""
        with self.engine.connect() as connection:
            if not sa.inspect(connection).has_table(journal.name):
                return None
            query = sa.select(journal).where(OF_THIS_PROJECT).order_by(journal.c.number.desc())
            with unforgiving(connection):
                found = map(read_entry, connection.execute(query).yield_per(_BATCH))
                return next((one for one in found if one.follows), None)

    def _newest(self) -> int:
        with self.engine.connect() as connection:
            return newest(connection)

    def adopt(self, connection: sa.Connection) -> None:
        """Enter every row of runs that the journal knows nothing of: those of an earlier version."""
        known = {row.run_id for row in connection.execute(sa.select(journal.c.run_id).distinct())}
        rows: dict[str, dict[str, Any]] = {}
        for name in sorted(JOURNALED):
            table = metadata.tables[name]
            for run_id, key, row in read_rows(connection, table, query_of(table), {}):
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
    if is_numbered(table):
        if table.name not in touched.grown:
            touched.grown[table.name] = connection.execute(sa.select(sa.func.max(table.c.id))).scalar() or 0
        return
    own = dict(clause.compile().params) if clause._values else {}  # noqa: SLF001 - compiled only where the statement brings values
    for values in each:
        run_id, key = place_of(table, {**own, **values} if own else values)
        touched.note(table.name, run_id, key, None)


def _changes(connection: sa.Connection, touched: _Touched) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield by run what the entry of a transaction says of its rows: of very many rows several entries, one after the other."""
    new: dict[tuple[str, str], dict[str, str]] = {}
    for name, highest in touched.grown.items():
        table = metadata.tables[name]
        for run_id, key, row in read_rows(connection, table, query_of(table).where(table.c.id > highest), {}):
            new.setdefault((name, run_id), {})[key] = hash_of(row)
            touched.before.setdefault((name, run_id), {})[key] = None
    changes: dict[str, dict[str, Any]] = {}
    entered = 0
    for name, run_id in sorted(touched.before, key=lambda place: (place[1], place[0])):
        table, before = metadata.tables[name], touched.before[name, run_id]
        keys = list(before)
        for start in range(0, len(keys), _BATCH):
            some = keys[start : start + _BATCH]
            after = _hashes(connection, table, run_id, some, new.get((name, run_id), {}))
            for key in some:
                if before[key] != after.get(key):
                    _enter(changes, table, run_id, key, before[key], after.get(key))
                    entered += 1
            if entered >= _ROWS_OF_AN_ENTRY:
                yield changes
                changes, entered = {}, 0
    if changes:
        yield changes


def _hashes(
    connection: sa.Connection, table: sa.Table, run_id: str, keys: Sequence[str], known: Mapping[str, str]
) -> dict[str, str]:
    """Return the hashes of the rows of a run that have some keys, by key: of those that are not `known`, as the database has them."""
    found = {key: known[key] for key in keys if key in known}
    if len(found) < len(keys):
        query = query_of(table).where(have_keys(table, run_id, [key for key in keys if key not in known]))
        found |= {key: hash_of(row) for _, key, row in read_rows(connection, table, query, {})}
    return found


def _enter(
    changes: dict[str, dict[str, Any]], table: sa.Table, run_id: str, key: str, before: str | None, after: str | None
) -> None:
    of_run = changes.setdefault(run_id, {})
    if table.name not in of_run:
        of_run[table.name] = {"columns": columns_of(table), "rows": {}}
    of_run[table.name]["rows"][key] = [before, after]


def _write(
    connection: sa.Connection, run_id: str, rows: Mapping[str, Any], follows: int, *, adopted: bool = False
) -> Link:
    last = _last(connection)
    number, previous = (1, NOTHING) if last is None else (last.number + 1, last.hash)
    at = instants.now(connection)
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
    query = sa.select(journal).where(OF_THIS_PROJECT).order_by(journal.c.number.desc())
    with unforgiving(connection):
        row = connection.execute(query.limit(1)).one_or_none()
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
