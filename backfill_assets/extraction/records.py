"""Records in an answer: where they are, what identifies one, which version of it this is, and whether two are the same.

Put here how JSON is read. What a record means is its product's translator's. Numbers with decimals are `Decimal`, so that no
digit of an amount is lost.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from backfill_assets.declarations.apis import ApiFeed
from backfill_assets.extraction.refusals import MalformedAnswer

NO_VALUE = object()
"""What a path finds where there is nothing."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MOST_VERSION = 1 << 62
_LONGEST_KEY = 500
_LONGEST_NAME = 80


class Repeating(dict[str, Any]):
    """A JSON object that says a member more than once: it has the last of each name, and `members` are all of them.

    Which of two counts, readers of JSON do not agree about: no record is believed that has such an object.
    """

    def __init__(self, members: Sequence[tuple[str, Any]]) -> None:
        """Keep all that was said."""
        super().__init__(members)
        self.members = members

    @property
    def repeated(self) -> list[str]:
        """The names that stand there more than once."""
        times = Counter(name for name, _ in self.members)
        return [name for name in self if times[name] > 1]


class _AllMembers(dict[str, Any]):
    """What a `Repeating` is written as: JSON takes the members of a derived class from `items`."""

    def __init__(self, members: Sequence[tuple[str, Any]]) -> None:
        super().__init__(members)
        self._members = members

    def items(self) -> Any:
        return self._members


@dataclass(frozen=True)
class Record:
    """One record of an answer.

    `position` is its number in the answer, from 0; `key` identifies it, `version` tells which of two is newer (0 where the feed
    has none), and `digest` is the same for the same content. `problem` says why it has no key or no version, or is not to be believed;
    else it is empty.
    """

    position: int
    content: Any
    key: str
    version: int
    digest: str
    problem: str = ""


def parsed(body: bytes) -> Any:
    """Return what JSON says; an object that says a member twice is a `Repeating`.

    Raises:
        MalformedAnswer: if it is no JSON.
    """
    return _parsed(body)[0]


def members_of(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object; a `Repeating` of one that says a member twice."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else Repeating(pairs)


def _parsed(body: bytes) -> tuple[Any, bool]:
    """Return what JSON says, and whether any object of it says a member twice."""
    repeating = False

    def members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeating
        found = members_of(pairs)
        repeating = repeating or type(found) is Repeating
        return found

    try:
        found = json.loads(body, parse_float=_decimal, parse_constant=_no_number, object_pairs_hook=members)
    except (ValueError, RecursionError) as error:
        raise MalformedAnswer(f"it is no JSON: {str(error)[:200] or type(error).__name__}") from error
    return found, repeating


def value_at(data: Any, path: str) -> Any:
    """Return what is at a path, names with dots between them; `NO_VALUE` where there is nothing.

    Raises:
        MalformedAnswer: if a name of the path is there twice.
    """
    for name in path.split(".") if path else ():
        if not isinstance(data, Mapping) or name not in data:
            return NO_VALUE
        if isinstance(data, Repeating) and name in data.repeated:
            raise MalformedAnswer(f"it has {_twice(name)}")
        data = data[name]
    return data


def contents_of(feed: ApiFeed, body: bytes, *, lines: bool = False) -> list[Any]:
    """Return the records of an answer as JSON has them, in order; an empty answer has none.

    Raises:
        MalformedAnswer: if it is no JSON, or has no list of records where they are declared to be.
    """
    return _contents(feed, body, lines=lines)[0]


def _contents(feed: ApiFeed, body: bytes, *, lines: bool) -> tuple[list[Any], bool]:
    """Return the records of an answer, and whether any object of it says a member twice."""
    if not body.strip():
        return [], False
    if lines:
        read = [_parsed(line) for line in body.splitlines() if line.strip()]
        return [content for content, _ in read], any(repeating for _, repeating in read)
    whole, repeating = _parsed(body)
    found = value_at(whole, feed.records)
    if not isinstance(found, list):
        where = f"at {feed.records}" if feed.records else "at its top"
        kind = "nothing" if found is NO_VALUE else f"a {type(found).__name__}"
        raise MalformedAnswer(f"it has {kind} {where}, and records are a list")
    return found, repeating


def records_of(feed: ApiFeed, body: bytes, *, lines: bool = False) -> Iterator[Record]:
    """Yield the records of an answer, each with what identifies it.

    Raises:
        MalformedAnswer: see `contents_of`.
    """
    contents, repeating = _contents(feed, body, lines=lines)
    for position, content in enumerate(contents):
        key, wrong_key = _key(feed, content)
        version, wrong_version = _version(feed, content)
        problem = wrong_key or wrong_version or (wrong_member(content) if repeating else "")
        yield Record(position, content, key, version, digest_of(content), problem)


def digest_of(content: Any) -> str:
    """Return a hash that is the same for the same content, whatever the order of its names and the zeros of its numbers."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=_digits)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def text_of(content: Any) -> str:
    """Return a record as JSON text, as the quarantine keeps it: what it says twice stands there twice."""
    if wrong_member(content):
        with suppress(RecursionError):  # of one that is nested that deep, the last of each name
            content = _with_all_members(content)
    return json.dumps(content, ensure_ascii=True, default=str)


def what_tells_apart(content: Any) -> str:
    """Return what tells a record from others of its digest: of one that says a member twice, all that it says; else nothing."""
    return text_of(content) if wrong_member(content) else ""


def _twice(name: str) -> str:
    """Say which member is there twice; an escape stands for what is no ASCII, since JSON can have half of a character."""
    return f"the member {json.dumps(name)[:_LONGEST_NAME]} twice"


def wrong_member(content: Any) -> str:
    """Say which member is twice within one object of what JSON says; empty where none is."""
    left = [content]
    while left:
        one = left.pop()
        if isinstance(one, Repeating):
            return f"has {_twice(one.repeated[0])}"
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return ""


def _with_all_members(content: Any) -> Any:
    if isinstance(content, list):
        return [_with_all_members(one) for one in content]
    if isinstance(content, Repeating):
        return _AllMembers([(name, _with_all_members(one)) for name, one in content.members])
    return {name: _with_all_members(one) for name, one in content.items()} if isinstance(content, dict) else content


def _key(feed: ApiFeed, content: Any) -> tuple[str, str]:
    try:
        found = value_at(content, feed.key)
    except MalformedAnswer:
        return "", wrong_member(content)
    if isinstance(found, bool) or not isinstance(found, (str, int)) or found == "" or len(str(found)) > _LONGEST_KEY:
        return "", f"no key at {feed.key}"
    return (str(found), "") if is_text(str(found)) else ("", f"no text at {feed.key}: half of a character")


def is_text(text: str) -> bool:
    """Whether a text can be written: JSON can have half of a character as an escape, and UTF-8 has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _version(feed: ApiFeed, content: Any) -> tuple[int, str]:
    if not feed.updated_at:
        return 0, ""
    try:
        found = value_at(content, feed.updated_at)
    except MalformedAnswer:
        return 0, wrong_member(content)
    if isinstance(found, int) and not isinstance(found, bool) and abs(found) < _MOST_VERSION:
        return found, ""
    if isinstance(found, str):
        try:
            instant = datetime.fromisoformat(found)
        except ValueError:
            return 0, f"no instant at {feed.updated_at}"
        if instant.tzinfo is not None:
            return (instant - _EPOCH) // _MICROSECOND, ""
        return 0, f"no offset from UTC at {feed.updated_at}"
    return 0, f"neither an instant nor a number at {feed.updated_at}"


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f"{text[:40]} is no number") from error


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _digits(value: Any) -> str:
    """Write a decimal without the zeros that say nothing."""
    sign, digits, exponent = Decimal(value).as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    return f"{'-' if sign and kept else ''}{kept}e{int(exponent) + len(text) - len(kept) if kept else 0}"
