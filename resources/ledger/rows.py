"""The ledger's rows of one run, cell by cell: what the evidence seals, and what it is held against later.

Put here how rows are read and written down so that one changed byte shows, and which of their cells may move on after
they were sealed. What is done about a difference is `backfill_assets.audit.ledger_rows`' to say. Cells are read as the database
holds them, past every conversion that could forgive a change; a text that is canonical JSON is kept as the data it says.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cache, partial
from typing import Any

import sqlalchemy as sa

from manifests.canonical import canonical_json_of_plain, data_of
from manifests.lifecycle import AttemptState, DecisionKind, PublicationState, RunState
from resources.ledger.cells import Day, Utc, as_they_are
from resources.ledger.tables import metadata, runs

Row = dict[str, Any]
Rows = dict[str, dict[str, Row]]
"""By table and key: the cells of a row by column."""

_AS_TEXT = partial(str, encoding="utf-8", errors="backslashreplace")
"""Called for each text that is read: a function of Python's own takes twice the time."""
_HOUSEKEEPING = frozenset({"leases", "journal"})
"""Who held which days while publishing, given back after the event; and the journal, which has hashes of its own."""
_INSTANT = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}\.\d{6}")
_BEFORE_PUBLICATION = frozenset({DecisionKind.REVIEWED, DecisionKind.APPROVED, DecisionKind.REJECTED})
_KEYED_BY = {"runs": "run_id", "chunks": "chunk"}
_AS_THEY_ARE = frozenset({str, int, type(None)})
_CONVERTED = (Utc, Day, sa.Boolean, sa.Text)
"""Kinds of which `cell` looks at what a text or a number says."""


@dataclass(frozen=True)
class _Moves:
    """What may change of a table's rows after they were sealed.

    `cells` of a row may, once, while the cell `while_column` says `while_value`; `grows`: rows may be added.
    """

    cells: frozenset[str] = frozenset()
    while_column: str = ""
    while_value: Any = None
    grows: bool = False


_ENDS = _Moves(frozenset({"ended_at"}), "ended_at")
_MOVES: Mapping[str, _Moves] = {
    "runs": _Moves(frozenset({"state", "state_reason", "updated_at"})),
    "transitions": _Moves(grows=True),
    "approvals": _Moves(grows=True),
    "sink_attempts": _Moves(grows=True),
    "attempts": _Moves(frozenset({"state", "ended_at", "error"}), "state", AttemptState.RUNNING),
    "publications": _Moves(
        frozenset({"state", "snapshot_id", "files_added", "files_removed", "note", "ended_at"}),
        "state",
        PublicationState.INTENT,
        grows=True,
    ),
    "accepted_versions": _Moves(frozenset({"ended_at", "ended_by", "ended_how"}), "ended_at", grows=True),
    "watermarks": _Moves(_ENDS.cells, "ended_at", grows=True),
    "waits": _Moves(_ENDS.cells | {"until_at"}, "ended_at", grows=True),
    "freezes": _ENDS,
    "admissions": _ENDS,
    "launches": _Moves(grows=True),
    "topic_publications": _Moves(
        frozenset({"state", "events", "written", "note", "ended_at"}), "state", PublicationState.INTENT, grows=True
    ),
    "stops": _Moves(
        frozenset({"resumed_at", "resumed_by", "resume_reason", "resumed_channel", "resumed_proof"}),
        "resumed_at",
        grows=True,
    ),
}
"""Tables that are not named here never change once a run is sealed."""
MOVING = frozenset(_MOVES)
"""Tables whose rows may move on after a run was sealed."""


@dataclass(frozen=True)
class Difference:
    """A cell, or a whole row where `column` is empty, that is not as it was kept.

    `lawful` if it may have moved on so; `why` says what is impossible about a row that was added and is not.
    """

    table: str
    key: str
    column: str
    expected: Any
    found: Any
    lawful: bool
    why: str = ""

    @property
    def where(self) -> str:
        """Name the place."""
        return f"ledger {self.table} {self.key}" + (f" column {self.column}" if self.column else "")


def tables_of_runs() -> list[str]:
    """Return the tables that hold rows of runs, but for housekeeping."""
    return sorted(name for name, table in metadata.tables.items() if "run_id" in table.c and name not in _HOUSEKEEPING)


def rows_of(connection: sa.Connection, run_id: str, tables: Iterable[str] | None = None) -> Rows:
    """Return a run's rows by table and key, cell by cell. Numbers count up: a table's rows are in the order they came."""
    found: Rows = {}
    with unforgiving(connection):
        for name in tables if tables is not None else tables_of_runs():
            key, columns, rows = _KEYED_BY.get(name, "id"), _columns(name), dict[str, Row]()
            for values in connection.execute(_query(name), {"run": run_id}):
                row = {
                    column: value if taken and type(value) in _AS_THEY_ARE else cell(kind, value)
                    for (column, kind, taken), value in zip(columns, values, strict=True)
                }
                rows[str(row[key])] = row
            found[name] = rows
    return found


@cache
def _columns(name: str) -> list[tuple[str, sa.types.TypeEngine[Any], bool]]:
    """Return name and kind of each column of a table, and whether `cell` takes texts and numbers of that kind as they are."""
    return [(one.name, one.type, not isinstance(one.type, _CONVERTED)) for one in metadata.tables[name].c]


@cache
def _query(name: str) -> sa.Select[Any]:
    table = metadata.tables[name]
    order = table.c["idx" if name == "chunks" else "run_id" if name == "runs" else "id"]
    raw = (sa.type_coerce(column, sa.types.NullType()).label(column.name) for column in table.c)
    return sa.select(*raw).where(table.c.run_id == sa.bindparam("run")).order_by(order)


def run_ids(connection: sa.Connection) -> list[str]:
    """Return the ids of all runs, oldest first; what can be no id is left out (`journal.of_nobody` names it)."""
    raw = sa.type_coerce(runs.c.run_id, sa.types.NullType())
    with unforgiving(connection):
        found: Sequence[Any] = (
            connection.execute(sa.select(raw).order_by(runs.c.created_at, runs.c.run_id)).scalars().all()
        )
    return [value for value in found if is_id(value)]


_LONGEST = 200
"""Bytes of a name that is still that of a file with an ending of this project's."""


def is_id(value: object) -> bool:
    """Whether a cell can be the id of a run: a text that can name a folder. One that is no UTF-8 is shown with backslashes."""
    if not isinstance(value, str) or value in {"", ".", ".."} or not value.isprintable():
        return False
    return not set(value) & {"/", "\\"} and len(value.encode()) <= _LONGEST


@contextmanager
def unforgiving(connection: sa.Connection) -> Iterator[None]:
    """Let a cell that holds something else than its column says be read and shown, instead of failing the whole query."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name != "sqlite":
        yield
        return
    usual = driver.text_factory
    driver.text_factory = _AS_TEXT
    try:
        with as_they_are():
            yield
    finally:
        driver.text_factory = usual


def cell(kind: sa.types.TypeEngine[Any], value: Any) -> Any:
    """Return a value as JSON can hold it; equal cells have equal values, whatever the database."""
    if value is None:
        return None
    if isinstance(kind, Utc):
        if isinstance(value, datetime):
            value = value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        return f"{value.replace(' ', 'T')}Z" if isinstance(value, str) and _INSTANT.fullmatch(value) else repr(value)
    if isinstance(kind, sa.Boolean):
        return bool(value) if value in {0, 1} and isinstance(value, int) else repr(value)
    if isinstance(kind, Day):
        return value.isoformat() if isinstance(value, date) else value
    if isinstance(kind, sa.Text) and isinstance(value, str) and value[:1] in {"{", "["}:
        return _parsed(value)
    return value if isinstance(value, (str, int)) else repr(value)


def _parsed(text: str) -> Any:
    """Return what a text says, if it is canonical JSON (so that the text follows from what it says); else the text."""
    try:
        data = data_of(text)
        return data if canonical_json_of_plain(data) == text else text
    except (ValueError, RecursionError):
        return text


def hashes_of(rows: Rows) -> dict[str, str]:
    """Return the hash of each table's rows."""
    return {
        table: hashlib.sha256(canonical_json_of_plain(found).encode()).hexdigest()
        for table, found in sorted(rows.items())
    }


def of_no_form(changes: Any, *, is_adopted: bool = False) -> str:
    """Say why nothing of this project gives rows so, as changes by table, key and column; empty if it can be.

    Either cells that may move on, or rows that were added; with `is_adopted` every row of a run, of any of its tables.
    """
    if not isinstance(changes, dict):
        return "its rows are not given by table"
    for table, rows in changes.items():
        if table not in (tables_of_runs() if is_adopted else MOVING):
            return f"it changes rows of {table}"
        if not isinstance(rows, dict):
            return f"its rows of {table} are not given by key"
        for key, cells in rows.items():
            if not isinstance(cells, dict) or not _is_change(table, key, cells, is_adopted=is_adopted):
                return f"no event changes {table} {key} so"
    return ""


def _is_change(table: str, key: str, cells: Row, *, is_adopted: bool) -> bool:
    columns, moves = metadata.tables[table].c, _MOVES.get(table, _Moves())
    own = _KEYED_BY.get(table, "id")
    if own in cells:  # a whole row; columns that came later have a default
        needed = {one.name for one in columns if not one.nullable and one.server_default is None}
        if not (is_adopted or moves.grows) or str(cells[own]) != key or not needed <= cells.keys():
            return False
    elif is_adopted or not cells.keys() <= moves.cells:
        return False
    return all(name in columns and _is_cell(columns[name], value) for name, value in cells.items())


def _is_cell(column: sa.Column[Any], value: Any) -> bool:
    """Whether a value is one that `cell` gives of a column."""
    kind = column.type
    if value is None:
        return bool(column.nullable)
    if isinstance(kind, sa.Boolean):
        return isinstance(value, bool)
    if isinstance(kind, sa.Integer):
        return type(value) is int
    if isinstance(kind, sa.Text) and isinstance(value, (dict, list)):
        try:
            return bool(canonical_json_of_plain(value))
        except (ValueError, RecursionError):
            return False
    return isinstance(value, str)


def fold(rows: Rows, changes: Mapping[str, Mapping[str, Row]]) -> None:
    """Bring kept rows up to date with the cells that changed, and the rows that were added."""
    for table, changed in changes.items():
        for key, cells in changed.items():
            rows.setdefault(table, {}).setdefault(key, {}).update(cells)


def differences(kept: Rows, found: Rows) -> list[Difference]:
    """Return what is not as it was kept. Columns that came later than the evidence are not compared."""
    different: list[Difference] = []
    for table in sorted(kept.keys() | found.keys()):
        then, here = kept.get(table, {}), found.get(table, {})
        moves = _MOVES.get(table, _Moves())
        for key in then:
            if key not in here:
                different.append(Difference(table, key, "", then[key], None, lawful=False))
                continue
            free = not moves.while_column or then[key].get(moves.while_column) == moves.while_value
            different += [
                Difference(table, key, column, value, here[key].get(column), lawful=free and column in moves.cells)
                for column, value in then[key].items()
                if not _same(value, here[key].get(column))
            ]
        added = {key: row for key, row in here.items() if key not in then}
        impossible = _impossible(table, kept) if added and moves.grows else None
        for key, row in added.items():
            why = "" if impossible is None else impossible(row)
            different.append(Difference(table, key, "", None, row, lawful=moves.grows and not why, why=why))
    return _runs_by_their_transitions(_continued(different, kept), found)


def _impossible(table: str, kept: Rows) -> Callable[[Row], str]:
    """Return what says why no event can have added a row to those that are kept; empty if one can.

    Its date is not asked: a clock may have been set back. That it came later, the journal proves.
    """
    newest = max((one["id"] for one in kept.get(table, {}).values() if isinstance(one.get("id"), int)), default=0)
    published = any(one.get("to_state") == RunState.PUBLISHED for one in kept.get("transitions", {}).values())

    def why(row: Row) -> str:
        if not isinstance(row.get("id"), int) or row["id"] <= newest:
            return f"rows that came later have higher ids than {newest}"
        if table == "approvals" and published and row.get("decision") in _BEFORE_PUBLICATION:
            return f"{row['decision']} is decided of runs that are not published"
        return ""

    return why


def _continued(different: list[Difference], kept: Rows) -> list[Difference]:
    """Transitions that were added go on from the last state that is kept, one after the other, or are not lawful."""
    last = max(kept.get("transitions", {}).values(), key=_number, default={}).get("to_state")
    judged: dict[str, str] = {}
    added = [one for one in different if one.table == "transitions" and not one.column and one.expected is None]
    for one in sorted(added, key=lambda one: _number(one.found)):
        if one.lawful and one.found["from_state"] != last:
            judged[one.key] = f"it starts from {one.found['from_state']}, and the run was {last}"
        elif one.lawful:
            last = one.found["to_state"]
    return [
        replace(one, lawful=False, why=judged[one.key])
        if one.table == "transitions" and not one.column and one.key in judged
        else one
        for one in different
    ]


def _number(row: Row) -> int:
    return row["id"] if isinstance(row.get("id"), int) else -1


def _same(kept: Any, found: Any) -> bool:
    """Python takes 1, 1.0 and True for equal; a cell does not."""
    if type(kept) is not type(found):
        return False
    return (
        bool(kept == found)
        if isinstance(kept, (str, int))
        else canonical_json_of_plain(kept) == canonical_json_of_plain(found)
    )


def _runs_by_their_transitions(different: list[Difference], found: Rows) -> list[Difference]:
    """A run's state moves with a transition that says the same, or not lawfully."""
    transitions = list(found.get("transitions", {}).values())
    last = max(transitions, key=_number, default={})
    says = {"state": last.get("to_state"), "state_reason": last.get("reason"), "updated_at": last.get("at")}
    return [
        replace(one, lawful=one.found == says.get(one.column)) if one.table == "runs" and one.lawful else one
        for one in different
    ]


def changes_of(different: list[Difference]) -> dict[str, dict[str, Row]]:
    """Return the lawful differences as `fold` takes them: changed cells, and rows that were added."""
    changes: dict[str, dict[str, Row]] = {}
    for one in different:
        if one.lawful:
            cells = {one.column: one.found} if one.column else one.found
            changes.setdefault(one.table, {}).setdefault(one.key, {}).update(cells)
    return changes
