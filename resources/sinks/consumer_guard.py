"""A guard for consumers of topics: it tells live events from those of backfills by their headers, and lets each be done once.

A consumer opts in: it asks the guard about the headers of each message before it does anything. Without being told otherwise the
guard lets live events through and refuses all others, so that a consumer that was pointed at the wrong topic does nothing by it.
Put here what a consumer's process imports: the standard library, and nothing of this project.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

_RUN, _MODE, _SYNTHETIC, _EVENT_ID = "x-run-id", "x-processing-mode", "x-synthetic", "x-event-id"
_CONTENT, _CORRECTS, _OPERATION, _RETRACT = "x-content", "x-corrects", "x-op", "retract"
_OWN = frozenset({_RUN, _MODE, _SYNTHETIC, _CORRECTS, "x-transform-version", "x-input-snapshot", "x-publication"})
"""Headers of this project's events: a message that has one of them has all that say whose it is, or is refused."""
_SAY_SOMETHING = _OWN | {_CONTENT, _OPERATION}
"""Headers that this project writes with a value: one without it tells less than its event did."""
_OPERATIONS = frozenset({"publish", _RETRACT})
_LIVE, _LIVE_SCOPE = "LIVE", "live"
_TELLING = frozenset({_LIVE, "BACKFILL", "REPLAY"})
"""Execution modes that write events; no other does, and none is spelled otherwise."""
_RUN_ID = re.compile(r"[a-z0-9][a-z0-9._-]{1,62}[a-z0-9]")
"""A run's id, as `manifests.model` has it: it is the scope of the run's event ids, and must be no scope of LIVE's."""
_BESIDE = "\x1f"
_AFTER = "\x20"
"""The character after `_BESIDE`: ids that begin with one text and `_BESIDE` lie between the two."""
_T = TypeVar("_T")
_APART = str.maketrans({"\x1e": "\x1ee", _BESIDE: "\x1eu", "\0": "\x1e0"})
"""What stands in an id for characters that would be taken for the end of it."""
Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]] | None
"""Headers of a message as a client has them: pairs (confluent-kafka, kafka-python), a mapping, or None."""


class Verdict(StrEnum):
    """What is to be done with a message."""

    PROCESS = "PROCESS"
    ROUTE = "ROUTE"
    """It is for something else than live work: `Decision.route` says for what."""
    REFUSE = "REFUSE"
    DUPLICATE = "DUPLICATE"
    """It was done before."""


@dataclass(frozen=True)
class Decision:
    """What the guard says of one message.

    Attributes:
        verdict: what is to be done with it; `why` in words.
        scope: within what its event id is told from others: "live", of events without headers too, or the run whose event it is.
        event_id: the id of the event; None where it has none.
        run_id: the run that wrote it; empty of one that no run of this project did.
        route: where it goes, of one that is routed.
    """

    verdict: Verdict
    why: str
    scope: str = ""
    event_id: str | None = None
    run_id: str = ""
    route: str = ""


class EventIds(Protocol):
    """Remembers which events were done."""

    def once(self, scope: str, event_id: str, work: Callable[[], _T]) -> tuple[bool, _T | None]:
        """Do `work` if an event was not done before, and remember that it is; return whether it was, and what it returned.

        If the work raises, the event is not remembered.
        """

    def newest(
        self, scope: str, event_id: str, telling: str, content: str, work: Callable[[], _T]
    ) -> tuple[bool, _T | None]:
        """Do `work` if an event was not done before as it is told now; return whether it was, and what it returned.

        Several runs tell one event. It was done if this `telling` of it was, or if what was done last of it has the same `content`. An empty
        content takes the event back: whatever is told of it next is done.
        """


class SqliteEventIds:
    """Event ids in a table of SQLite, which is made if it is not there.

    Given the connection of a database that the consumer's work writes to as well, work and id are committed together: an event
    has its effect exactly once, wherever the process is killed. Given a file of its own, the id is kept after the work: a process
    that is killed in between does that one event again.
    """

    def __init__(self, place: str | Path | sqlite3.Connection, table: str = "guarded_events") -> None:
        if not table.isidentifier():
            raise ValueError(f"{table!r} is no name of a table")
        self._own = not isinstance(place, sqlite3.Connection)
        self._database = place if isinstance(place, sqlite3.Connection) else sqlite3.connect(place, timeout=30)
        self._table = table
        self._database.execute(
            f"CREATE TABLE IF NOT EXISTS {table} (scope TEXT, event_id TEXT, PRIMARY KEY (scope, event_id)) WITHOUT ROWID"
        )
        self._database.commit()

    def once(self, scope: str, event_id: str, work: Callable[[], _T]) -> tuple[bool, _T | None]:
        """Do `work` if an event was not done before; see `EventIds`. Whoever else asks of the database waits meanwhile."""
        with self._transaction():
            return (True, work()) if self._entered(scope, event_id) else (False, None)

    def newest(
        self, scope: str, event_id: str, telling: str, content: str, work: Callable[[], _T]
    ) -> tuple[bool, _T | None]:
        """Do `work` if an event was not done before as it is told now; see `EventIds`."""
        event_id = event_id.translate(_APART)
        last, begins = f"{scope}, last", f"{event_id}{_BESIDE}"
        with self._transaction():
            if not self._entered(scope, f"{begins}{telling}"):
                return False, None
            # a range of the key: to compare beginnings would be to look at every event that was ever done
            known = f"DELETE FROM {self._table} WHERE scope = ? AND event_id >= ? AND event_id < ? RETURNING event_id"  # noqa: S608
            between = (last, begins, f"{event_id}{_AFTER}")
            before = [one for (one,) in self._database.execute(known, between).fetchall()]
            if content:
                self._entered(last, f"{begins}{content}")
            return (False, None) if content and before == [f"{begins}{content}"] else (True, work())

    def _entered(self, scope: str, event_id: str) -> bool:
        """Return whether an id is new, and keep it."""
        text = f"INSERT OR IGNORE INTO {self._table} VALUES (?, ?)"  # noqa: S608 - the name is checked above
        return self._database.execute(text, (scope, event_id)).rowcount == 1

    def close(self) -> None:
        """Close a database of its own; a connection that it was given stays open."""
        if self._own:
            self._database.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._database.in_transaction:
            raise RuntimeError("the connection has a transaction open: commit it before the next event is asked about")
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.rollback()
            raise
        self._database.commit()


@dataclass
class ConsumerGuard:
    """Decides about messages by their headers; see the module.

    Attributes:
        events: remembers which events were done; None: each message is decided by its headers alone.
        runs: runs whose events are processed as live ones are: those that the consumer waits for.
        routes: by execution mode (`BACKFILL`, `REPLAY`), or `*` for any but LIVE, the name of where such events go.
        requires_headers: whether a message without this project's headers is refused; else it is taken for a live one.
        counts: how often each verdict was given, by verdict and mode (`-` without headers).
    """

    events: EventIds | None = None
    runs: Sequence[str] = ()
    routes: Mapping[str, str] = field(default_factory=dict)
    requires_headers: bool = False
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def decide(self, headers: Headers) -> Decision:
        """Say what is to be done with a message by its headers alone; what was done before is not asked."""
        return self._decided(_Read.of(headers))

    def _decided(self, read: _Read) -> Decision:
        found = read.texts
        mode, run_id, event_id = found.get(_MODE), found.get(_RUN, ""), found.get(_EVENT_ID)
        if not read.names & _OWN:
            if self.requires_headers:
                return Decision(Verdict.REFUSE, "it has no header that says who wrote it", event_id=event_id)
            if _EVENT_ID in read.doubled:
                return Decision(Verdict.REFUSE, f"it has {_EVENT_ID} twice, and they differ", event_id=event_id)
            return Decision(Verdict.PROCESS, "no run of a backfill wrote it", _LIVE_SCOPE, event_id)
        why = _contradiction(read)
        if why:
            return Decision(Verdict.REFUSE, why, event_id=event_id, run_id=run_id)
        if mode == _LIVE:
            return Decision(Verdict.PROCESS, "it is live", _LIVE_SCOPE, event_id, run_id)
        if run_id in self.runs:
            return Decision(Verdict.PROCESS, f"the consumer waits for run {run_id}", run_id, event_id, run_id)
        assert mode is not None  # it contradicts nothing
        route = self.routes.get(mode, self.routes.get("*"))
        if route is not None:
            return Decision(Verdict.ROUTE, f"events of {mode} go to {route}", run_id, event_id, run_id, route)
        return Decision(
            Verdict.REFUSE,
            f"it is of run {run_id} ({mode}), and only live events are processed",
            run_id,
            event_id,
            run_id,
        )

    def handle(
        self,
        headers: Headers,
        process: Callable[[], object],
        routed: Mapping[str, Callable[[], object]] | None = None,
    ) -> Decision:
        """Decide about a message and do what is to be done: `process` it, or what `routed` has for its route, once an event.

        Raises:
            KeyError: if it is routed to what `routed` does not have.
            Exception: what the work raises; the event counts as not done then.
        """
        read = _Read.of(headers)
        decision = self._decided(read)
        if decision.verdict in {Verdict.PROCESS, Verdict.ROUTE}:
            work = process if decision.verdict is Verdict.PROCESS else (routed or {})[decision.route]
            if self.events is None or decision.event_id is None:
                work()
            elif not self._once(self.events, decision, read.texts, work):
                decision = Decision(
                    Verdict.DUPLICATE, "the event was done before", decision.scope, decision.event_id, decision.run_id
                )
        self.counts[decision.verdict.value, read.texts.get(_MODE, "-")] += 1
        return decision

    @staticmethod
    def _once(events: EventIds, decision: Decision, found: Mapping[str, str], work: Callable[[], object]) -> bool:
        """Do an event that was not done before; of LIVE, whose runs tell days again, one that says something else by now."""
        event_id, content = decision.event_id or "", found.get(_CONTENT, "")
        if decision.scope != _LIVE_SCOPE or not decision.run_id or not content:
            return events.once(decision.scope, event_id, work)[0]
        if found.get(_OPERATION) == _RETRACT:
            content = ""
        told = f"{decision.run_id}{_BESIDE}{event_id}"
        return events.newest(decision.scope, found.get(_CORRECTS, event_id), told, content, work)[0]


@dataclass(frozen=True)
class _Read:
    """Headers of a message, read once, by names in small letters: some ways between two brokers change the letters.

    Attributes:
        texts: those that have a value; the last one of a name counts, as everywhere in Kafka's clients.
        names: all of them, those without a value too.
        doubled: those that are there several times, and do not say the same each time.
    """

    texts: dict[str, str]
    names: frozenset[str]
    doubled: frozenset[str]

    @classmethod
    def of(cls, headers: Headers) -> _Read:
        pairs = () if headers is None else headers.items() if isinstance(headers, Mapping) else headers
        found: dict[str, list[str | None]] = {}
        for name, raw in pairs:
            found.setdefault(_text(name).lower(), []).append(None if raw is None else _text(raw))
        return cls(
            {name: said[-1] for name, said in found.items() if said[-1] is not None},
            frozenset(found),
            frozenset(name for name, said in found.items() if len(set(said)) > 1),
        )


def _text(raw: bytes | str) -> str:
    """Return what a header says; bytes that are no UTF-8 are told from one another."""
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else raw


def _contradiction(read: _Read) -> str:
    """Say why headers of an event of this project are not whole, or do not go together; empty where they do."""
    found = read.texts
    mode, run_id, synthetic = found.get(_MODE), found.get(_RUN), found.get(_SYNTHETIC)
    operation = found.get(_OPERATION)
    said = f"{_MODE}={mode}, {_SYNTHETIC}={synthetic}, {_RUN}={run_id or None}"
    if twice := sorted(read.doubled & {*_OWN, _EVENT_ID, _CONTENT, _OPERATION}):
        return f"it has {', '.join(twice)} twice, and they differ"
    if not mode or not run_id or found.get(_EVENT_ID) is None:
        return f"its headers are not whole: {said}, {_EVENT_ID}{'' if _EVENT_ID in found else ' is missing'}"
    if synthetic != ("false" if mode == _LIVE else "true"):
        return f"its headers contradict one another: {said}"
    if mode not in _TELLING:
        return f"no run writes events in the mode {mode!a}, only in {', '.join(sorted(_TELLING))}"
    if mode != _LIVE and (run_id == _LIVE_SCOPE or not _RUN_ID.fullmatch(run_id)):
        return f"no run of {mode} has the id {run_id!a}"
    if empty := sorted(name for name in read.names & _SAY_SOMETHING if _is_empty(name, found.get(name))):
        return f"its headers are not whole: {', '.join(empty)} without a value"
    if operation is not None and operation not in _OPERATIONS:
        return f"{_OPERATION} is {operation!a}, and an event is one of {', '.join(sorted(_OPERATIONS))}"
    return ""


def _is_empty(name: str, said: str | None) -> bool:
    """Whether a header says nothing; an event may have an empty text as its id, and another correct it by that."""
    return said is None or (said == "" and name != _CORRECTS)
