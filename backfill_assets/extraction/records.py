"""Records in an answer: where they are, what identifies one, which version of it this is, and whether two are the same.

Put here how JSON is read. What a record means is its product's translator's. Numbers with decimals are `Decimal`, so that no
digit of an amount is lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
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


@dataclass(frozen=True)
class Record:
    """One record of an answer.

    `position` is its number in the answer, from 0; `key` identifies it, `version` tells which of two is newer (0 where the feed
    has none), and `digest` is the same for the same content. `problem` says why it has no key or no version; else it is empty.
    """

    position: int
    content: Any
    key: str
    version: int
    digest: str
    problem: str = ""


def parsed(body: bytes) -> Any:
    """Return what JSON says.

    Raises:
        MalformedAnswer: if it is no JSON.
    """
    try:
        return json.loads(body, parse_float=_decimal, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise MalformedAnswer(f"it is no JSON: {str(error)[:200] or type(error).__name__}") from error


def value_at(data: Any, path: str) -> Any:
    """Return what is at a path, names with dots between them; `NO_VALUE` where there is nothing."""
    for name in path.split(".") if path else ():
        if not isinstance(data, Mapping) or name not in data:
            return NO_VALUE
        data = data[name]
    return data


def contents_of(feed: ApiFeed, body: bytes, *, lines: bool = False) -> list[Any]:
    """Return the records of an answer as JSON has them, in order; an empty answer has none.

    Raises:
        MalformedAnswer: if it is no JSON, or has no list of records where they are declared to be.
    """
    if not body.strip():
        return []
    if lines:
        return [parsed(line) for line in body.splitlines() if line.strip()]
    found = value_at(parsed(body), feed.records)
    if not isinstance(found, list):
        where = f"at {feed.records}" if feed.records else "at its top"
        kind = "nothing" if found is NO_VALUE else f"a {type(found).__name__}"
        raise MalformedAnswer(f"it has {kind} {where}, and records are a list")
    return found


def records_of(feed: ApiFeed, body: bytes, *, lines: bool = False) -> Iterator[Record]:
    """Yield the records of an answer, each with what identifies it.

    Raises:
        MalformedAnswer: see `contents_of`.
    """
    for position, content in enumerate(contents_of(feed, body, lines=lines)):
        key, wrong_key = _key(feed, content)
        version, wrong_version = _version(feed, content)
        yield Record(position, content, key, version, digest_of(content), wrong_key or wrong_version)


def digest_of(content: Any) -> str:
    """Return a hash that is the same for the same content, whatever the order of its names and the zeros of its numbers."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=_digits)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def text_of(content: Any) -> str:
    """Return a record as JSON text, as the quarantine keeps it."""
    return json.dumps(content, ensure_ascii=True, default=str)


def _key(feed: ApiFeed, content: Any) -> tuple[str, str]:
    found = value_at(content, feed.key)
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
    found = value_at(content, feed.updated_at)
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
