"""Files of changes as they were delivered: which transactions and snapshots in them are whole, and their changes in order.

Put here how a folder is read: `log.json`, which says what log it is, and `*.jsonl`, a message a line, in any order and any number of
times. A message is `debezium`'s; which of what is whole is landed, `ingestion`'s. Nothing here opens a table.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backfill_assets.declarations.changelogs import Changelog
from backfill_assets.extraction.changed_keys import earlier_key_of, key_of
from backfill_assets.extraction.debezium import (
    MESSAGE,
    Boundary,
    Change,
    ForeignError,
    Read,
    SaysNothing,
    UnreadableError,
    members_once,
    message_of,
)
from manifests.errors import InputRefused, Problem
from manifests.log_ranges import LogIdentity, LogKind, lsn

FACTS, ENDING = "log.json", ".jsonl"
_SHOWN = 5
_TOLD_EACH = 1_000
_HASH_BITS = 64


@dataclass(frozen=True)
class LogFacts:
    """What `log.json` says of a delivery: which log its changes are of, and how far its connector says that it is.

    Attributes:
        identity: the system identifier of the server, the database, and its timeline.
        slot: the name of the replication slot that it was read by.
        slot_created_lsn: the position at which that slot was made; None where it is not said.
        offset_lsn: the last commit that the connector's offset file has; None where it is not said.
        tables_were_empty: whether the tables had no row when the log began, so that no snapshot has one.
        confirmed_lsns: what the slot had confirmed before each start of the connector: up to there transactions had been delivered.
    """

    identity: LogIdentity
    slot: str
    slot_created_lsn: int | None = None
    offset_lsn: int | None = None
    tables_were_empty: bool = False
    confirmed_lsns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """Where a change was found: the number of its file, the line's number, its first byte and its length; and what tells it from another.

    `digest` has two hashes: of what the change says, and of the line's text.
    """

    file: int
    row: int
    begin: int
    size: int
    lsn: int
    order: int
    digest: int

    @property
    def said(self) -> int:
        """The hash of what the change says."""
        return self.digest >> _HASH_BITS

    def has(self, text: bytes) -> bool:
        """Whether a text is the line's."""
        return self.digest & ((1 << _HASH_BITS) - 1) == _hash(text)


@dataclass
class Transaction:
    """What was delivered of one transaction: its changes by their place in it, its end, if that has come, and if a change is of a declared table."""

    number: str
    changes: dict[int, Line] = field(default_factory=dict)
    commit: int | None = None
    count: int = 0
    previous: int | None = None
    first: int | None = None
    has_rows: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether its end and each of its changes are there: they have the places from 1 to as many as its end counts."""
        return self.commit is not None and max(self.changes, default=0) <= self.count == len(self.changes)

    def in_words(self) -> str:
        """Say what is there of it."""
        if self.commit is None:
            return f"transaction {self.number} ({len(self.changes):,} change(s), no end)"
        return (
            f"transaction {self.number} (commit at {lsn(self.commit)}, {len(self.changes):,} of {self.count:,} changes)"
        )


@dataclass
class Snapshot:
    """What was delivered of a snapshot: its reads by table and key, when the first was made, and whether first and last are there."""

    lsn: int
    micros: int
    reads: dict[tuple[str, str], Line] = field(default_factory=dict)
    has_first: bool = False
    has_last: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether both its ends are there; of one with a single row that is the last."""
        return self.has_last and (self.has_first or len(self.reads) == 1)

    def declared_tables(self, changelog: Changelog) -> tuple[str, ...]:
        """Return the declared tables that it has rows of, in order: of others it says nothing."""
        return tuple(sorted({table for table, _ in self.reads if changelog.changed_table(table) is not None}))


@dataclass(frozen=True)
class Unreadable:
    """A line that is no message: its file and number, the rule that it breaks, the offending value, and the line."""

    file: str
    row: int
    rule: str
    detail: str
    text: str


@dataclass
class Delivered:
    """What is in the files of a delivery."""

    changelog: Changelog
    files: list[Path]
    names: list[str]
    transactions: dict[str, Transaction] = field(default_factory=dict)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    unreadable: list[Unreadable] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    databases: dict[str, Line] = field(default_factory=dict)
    """The databases that messages say they are of, each with its first one."""

    def open_snapshots(self, observed: Iterable[int] = ()) -> list[Snapshot]:
        """Return those that are not whole, in order; one that was given up, since a later one is whole or `observed`, is none of them."""
        newest = max([*observed, *(one.lsn for one in self.snapshots.values() if one.is_whole)], default=-1)
        return [one for lsn, one in sorted(self.snapshots.items()) if not one.is_whole and lsn > newest]

    def open_lines(self, observed: Iterable[int] = ()) -> list[Line]:
        """Return the changes of what is not whole, in the order of the files; `observed` as in `open_snapshots`."""
        found = [line for one in self.transactions.values() if not one.is_whole for line in one.changes.values()]
        found += [line for one in self.open_snapshots(observed) for line in one.reads.values()]
        return sorted(found, key=lambda line: (line.file, line.begin))

    def texts(self, lines: Iterable[Line]) -> Iterator[tuple[Line, str]]:
        """Yield lines with their texts, read anew.

        Raises:
            InputRefused: if a file is not what it was when it was read first.
        """
        streams: dict[int, Any] = {}
        try:
            for line in lines:
                try:
                    if line.file not in streams:
                        streams[line.file] = self.files[line.file].open("rb")
                    streams[line.file].seek(line.begin)
                    text = streams[line.file].read(line.size)
                except OSError as error:
                    raise _changed(self.names[line.file], f": {error}") from error
                if not line.has(text):
                    raise _changed(self.names[line.file], f": line {line.row + 1:,} is another one")
                yield line, text.decode()
        finally:
            for stream in streams.values():
                stream.close()

    def unreadable_problems(self) -> Iterator[Problem]:
        """Say which lines are no message: what is missing may be in one of them."""
        fix = "correct it: what is missing may be in it"
        for one in self.unreadable[:_SHOWN]:
            yield Problem(f"{one.file} line {one.row + 1:,} is no message", one.rule, fix)
        if (more := len(self.unreadable) - _SHOWN) > 0:
            yield Problem(f"and {more:,} more lines are no messages", "a line of a delivery is a message", fix)

    def of_other_databases(self, facts: LogFacts) -> Iterator[Problem]:
        """Say which messages are of another database than their delivery says."""
        for name, line in sorted(self.databases.items()):
            if name != facts.identity.name:
                yield Problem(
                    f"{self.names[line.file]} line {line.row + 1:,} is of the database {name}, and {FACTS} says {facts.identity.name}",
                    "the messages of a delivery are of the log that it says",
                    f"correct {FACTS} if it names the wrong database; else take the files with such messages out of the folder",
                )


def _changed(name: str, how: str) -> InputRefused:
    return InputRefused(
        Problem(
            f"{name} was changed while it was landed{how}",
            "a file is complete when it is landed, and stays as it is until that is done",
            "deliver it again, and land the folder once nobody writes to it",
        )
    )


def _hash(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=_HASH_BITS // 8).digest())


def facts_of(folder: Path) -> LogFacts:
    """Return what `log.json` in a folder says.

    Raises:
        InputRefused: if it is not there, or says something else; all reasons at once.
    """
    place = folder / FACTS
    try:
        said = json.loads(place.read_text(encoding="utf-8-sig"), object_pairs_hook=members_once)
    except UnreadableError as error:
        what = f"{place} says {error.detail!r} twice"
        raise InputRefused(Problem(what, error.rule, "leave the one that is right")) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputRefused(
            Problem(
                f"{place} cannot be read: {error}",
                "beside files of changes lies a file that says which log they are of",
                'write {"system_identifier": "…", "timeline": 1, "database": "…", "slot": "…"} there: IDENTIFY_SYSTEM of the '
                "server says the first two",
            )
        ) from None
    said = said if isinstance(said, Mapping) else {}
    problems = [
        Problem(f"{name} is {said.get(name)!r}", "it is a text", f"write {name} into it", str(place))
        for name in ("system_identifier", "database", "slot")
        if not isinstance(said.get(name), str) or not said[name].strip()
    ]
    offset = said.get("offset")
    positions = {"timeline": said.get("timeline"), "slot_created_lsn": said.get("slot_created_lsn")}
    positions["offset.lsn_commit"] = offset.get("lsn_commit") if isinstance(offset, Mapping) else None
    for name, value in positions.items():
        if not (type(value) is int and value >= 0) and (value is not None or name == "timeline"):
            problems.append(Problem(f"{name} is {value!r}", "it is a whole number", "correct it", str(place)))
    confirmed = said.get("slot_confirmed_lsns", [])
    if not isinstance(confirmed, list) or not all(type(one) is int and one >= 0 for one in confirmed):
        what = f"slot_confirmed_lsns is {confirmed!r}"
        fix = "write confirmed_flush_lsn of the slot before each start of the connector, or leave it out"
        problems.append(Problem(what, "it is a list of whole numbers", fix, str(place)))
    if not isinstance(said.get("tables_were_empty", False), bool):
        what = f"tables_were_empty is {said['tables_were_empty']!r}"
        problems.append(Problem(what, "it is true or false", "correct it, or leave it out", str(place)))
    if problems:
        raise InputRefused(problems)
    identity = LogIdentity(
        LogKind.CHANGELOG, said["system_identifier"], said["database"], f"timeline {said['timeline']}"
    )
    positions_said = positions["slot_created_lsn"], positions["offset.lsn_commit"]
    were_empty = said.get("tables_were_empty", False)
    return LogFacts(
        identity, said["slot"], *positions_said, tables_were_empty=were_empty, confirmed_lsns=tuple(confirmed)
    )


def delivered(
    changelog: Changelog, folder: Path, kept: Sequence[Path] = (), tell: Callable[[], None] = lambda: None
) -> Delivered:
    """Return what is in the files of a folder, and in files that were kept of earlier deliveries; `tell` is called while they are read.

    Memory is some 300 bytes a change. A last line without a line end is left alone if it is no whole message: somebody is still writing it. A
    byte order mark at the beginning of a file is no part of its first line.

    Raises:
        InputRefused: if the folder has no file of changes, or a file cannot be read.
    """
    files = (
        sorted(one for one in folder.iterdir() if one.name.endswith(ENDING) and one.is_file())
        if folder.is_dir()
        else []
    )
    if not files:
        raise InputRefused(
            Problem(
                f"{folder} has no file *{ENDING}",
                "changes are delivered as files of a folder, a message a line",
                "name the folder that the connector's messages were written to",
            )
        )
    found = Delivered(
        changelog, [*kept, *files], [f"kept {one.name[:12]}" for one in kept] + [one.name for one in files]
    )
    for number, place in enumerate(found.files):
        try:
            _read(found, number, place, tell)
        except OSError as error:
            raise _changed(found.names[number], f", or cannot be read: {error}") from error
    found.problems += _repeated(found)
    return found


def _read(found: Delivered, number: int, place: Path, tell: Callable[[], None]) -> None:
    begin = 0
    with place.open("rb") as stream:
        for row, line in enumerate(stream):
            mark = len(codecs.BOM_UTF8) if not row and line.startswith(codecs.BOM_UTF8) else 0
            raw = line[mark:]
            if raw.strip():
                _take(found, number, row, begin + mark, raw)
            begin += len(line)
            if row % _TOLD_EACH == 0:
                tell()


def _take(found: Delivered, number: int, row: int, begin: int, raw: bytes) -> None:
    try:
        text = raw.decode()
        read: Read = message_of(text)
        if isinstance(read, Change):
            _enter(found, read, number, row, begin, raw)
    except ForeignError as error:
        if len(found.problems) < _SHOWN:
            what = f"{found.names[number]} line {row + 1:,}: {error.what}"
            found.problems.append(Problem(what, error.rule, error.fix))
        return
    except (UnreadableError, UnicodeDecodeError) as error:
        if not raw.endswith(b"\n"):
            return
        rule, detail = (
            (error.rule, error.detail) if isinstance(error, UnreadableError) else ("a line is UTF-8", str(error))
        )
        text = raw.decode(errors="backslashreplace").rstrip("\n")
        found.unreadable.append(Unreadable(found.names[number], row, rule, detail, text))
        return
    if isinstance(read, Boundary):
        _bound(found, read)
    elif isinstance(read, SaysNothing):
        found.left_out[read.what] += 1


def _enter(found: Delivered, read: Change, number: int, row: int, begin: int, raw: bytes) -> None:
    key = key_of(found.changelog, read)
    earlier_key_of(found.changelog, read)  # one that cannot be written is found here, where its line is quarantined
    if found.changelog.changed_table(read.table) is None:
        found.left_out[f"change of {read.table}, which is not declared"] += 1
    told = repr((read.op, read.table, key, read.before, read.after, read.lsn)).encode()
    line = Line(number, row, begin, len(raw), read.lsn, read.order, _hash(told) << _HASH_BITS | _hash(raw))
    if read.database is not None:
        found.databases.setdefault(read.database, line)
    if read.transaction is None:
        snapshot = found.snapshots.setdefault(read.lsn, Snapshot(read.lsn, read.micros))
        snapshot.micros = min(snapshot.micros, read.micros)
        snapshot.has_first |= read.snapshot == "first"
        snapshot.has_last |= read.snapshot == "last"
        # rows of a table that is not declared may have no key: they are told apart by what they say
        _once(found, snapshot.reads, (read.table, key or f"{line.said:x}"), line, f"the snapshot at {lsn(read.lsn)}")
        return
    one = found.transactions.setdefault(read.transaction, Transaction(read.transaction))
    one.has_rows |= is_of_a_row(read, found.changelog)
    _once(found, one.changes, read.order, line, f"transaction {read.transaction}")
    if one.first is None or read.order < one.first:
        one.first, one.previous = read.order, read.previous
    elif read.order == one.first and read.previous is not None:
        # who goes on amid a transaction names a position within it: the least is that of the commit before
        one.previous = read.previous if one.previous is None else min(one.previous, read.previous)


def _once(found: Delivered, lines: dict[Any, Line], place: Any, line: Line, where: str) -> None:
    """Enter a change where its place is free; what was delivered again is the same."""
    before = lines.setdefault(place, line)
    if before.said != line.said and len(found.problems) < _SHOWN and not _is_respelled(found, before, line):
        found.problems.append(
            Problem(
                f"{where} was delivered twice and says two things: {found.names[before.file]} line {before.row + 1:,}, "
                f"{found.names[line.file]} line {line.row + 1:,}",
                "a change that is delivered again is the same",
                "find out which of the files is of another log, and take it out of the folder",
            )
        )


@dataclass(frozen=True, slots=True)
class _Number:
    """A number of JSON by its text: none of its digits is lost, and it is no text."""

    text: str


_EXACT = json.JSONDecoder(
    parse_int=_Number, parse_float=_Number, object_pairs_hook=lambda pairs: tuple(sorted(pairs, key=lambda one: one[0]))
)


def _is_respelled(found: Delivered, before: Line, line: Line) -> bool:
    """Whether two lines say the same of a row in another spelling of JSON: members in another order, spaces, escaped letters."""
    said = []
    for _, text in found.texts((before, line)):
        read = message_of(text)
        assert isinstance(read, Change)  # it was one
        rows = [None if row is None else _EXACT.decode(row) for row in (read.before, read.after)]
        said.append((read.op, read.table, key_of(found.changelog, read), read.lsn, rows))
    return said[0] == said[1]


def _bound(found: Delivered, read: Boundary) -> None:
    one = found.transactions.setdefault(read.transaction, Transaction(read.transaction))
    if not read.is_end:
        return
    if one.commit is not None and (one.commit, one.count) != (read.lsn, read.count) and len(found.problems) < _SHOWN:
        found.problems.append(
            Problem(
                f"transaction {read.transaction} ends at {lsn(one.commit)} with {one.count:,} changes, and at {lsn(read.lsn)} with {read.count:,}",
                "a transaction ends once",
                "deliver the files of one log, and those that are further apart than the server's numbers go in folders of their own",
            )
        )
    one.commit, one.count = read.lsn, read.count


def _repeated(found: Delivered) -> Iterator[Problem]:
    """Say which transactions have a change that their end does not count or that is later than their commit, or one position."""
    seen: dict[int, str] = {}
    for one in found.transactions.values():
        if one.commit is None:
            continue
        other = seen.setdefault(one.commit, one.number)
        if other != one.number:
            what, rule = (
                f"transactions {other} and {one.number} both end at {lsn(one.commit)}",
                "a commit has a position of its own",
            )
            yield Problem(what, rule, "deliver the files of one log")
        if (last := max(one.changes, default=0)) > one.count:
            what = f"{one.in_words()}: it has a change in place {last:,}, more than its end says"
            yield Problem(what, "its end counts all of a transaction's changes", "deliver the files of one log")
        if (latest := max((line.lsn for line in one.changes.values()), default=0)) > one.commit:
            what = f"{one.in_words()}: it has a change at {lsn(latest)}, after its commit"
            yield Problem(what, "a transaction ends after all of its changes", "deliver the files of one log")


def in_order(one: Transaction | Snapshot) -> list[Line]:
    """Return the lines of a transaction or snapshot in the order of its changes; those of a snapshot by table and key."""
    if isinstance(one, Snapshot):
        return [line for _, line in sorted(one.reads.items())]
    return sorted(one.changes.values(), key=lambda line: (line.lsn, line.order))


def is_of_a_row(read: Change, changelog: Changelog) -> bool:
    """Whether a change is one of a declared table: else it is left out."""
    return read.op != MESSAGE and changelog.changed_table(read.table) is not None
