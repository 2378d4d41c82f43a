"""The list that a producer delivers with his files: what it says of each path.

Put here how a list is read and held against what came. When a file counts as published without one, `receiving` says.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import polars as pl

from backfill_assets.declarations.feeds import DeliveryIndex, FileFeed
from backfill_assets.extraction.records import members_of, wrong_member
from manifests.errors import InputRefused, Problem

_SHOWN = 3


@dataclass(frozen=True)
class Listed:
    """What a list says of a file: the producer's time (UTC), the hash of its content ("" for none), and of one taken back its date."""

    published_at: datetime
    content_hash: str
    withdrawn: date | None = None


@dataclass(frozen=True)
class DeliveryList:
    """A list of files by path, and its own name and SHA-256."""

    name: str
    manifest_id: str
    files: Mapping[str, Listed]


def read_list(name: str, content: bytes, feed: FileFeed, index: DeliveryIndex) -> DeliveryList:
    """Read a delivery index.

    Raises:
        InputRefused: if it cannot be read, lacks a column, or says of a path nothing or two things; all reasons at once.
    """
    rows = _rows(name, content)
    needed = {index.time, *filter(None, (index.content_hash, index.withdrawn_date))}
    needed |= {index.withdrawn[0]} if index.withdrawn else set()
    missing = sorted(needed - set(rows[0])) if rows else []
    if missing or not rows:
        what = f"has no column {', '.join(missing)}" if rows else "lists nothing"
        raise _refused(name, what)
    files: dict[str, Listed] = {}
    wrong: list[str] = []
    for number, row in enumerate(rows):
        try:
            path, listed = index.path.format(**row), _listed(row, feed, index)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError) as error:
            wrong.append(f"row {number:,}: {type(error).__name__}: {str(error)[:80]}")
            continue
        if files.setdefault(path, listed) != listed:
            wrong.append(f"row {number:,} says of {path} something else than a row before it")
    if wrong:
        more = f"; and {len(wrong) - _SHOWN:,} more" if len(wrong) > _SHOWN else ""
        raise _refused(name, f"has rows that cannot be used: {'; '.join(wrong[:_SHOWN])}{more}")
    return DeliveryList(name, hashlib.sha256(content).hexdigest(), files)


def _listed(row: Mapping[str, Any], feed: FileFeed, index: DeliveryIndex) -> Listed:
    said = row[index.time]
    at = said if isinstance(said, datetime) else datetime.fromisoformat(said)
    if at.tzinfo is None:
        raise ValueError(f"{index.time} is {at}, without an offset from UTC")
    withdrawn = None
    if index.withdrawn is not None and row[index.withdrawn[0]] == index.withdrawn[1]:
        withdrawn = datetime.strptime(str(row[index.withdrawn_date]), feed.date_format).date()  # noqa: DTZ007 - a date
    content = str(row[index.content_hash] or "").lower() if index.content_hash else ""
    return Listed(at.astimezone(UTC), "" if withdrawn else content, withdrawn)


def _rows(name: str, content: bytes) -> list[dict[str, Any]]:
    try:
        if name.endswith(".parquet"):
            return pl.read_parquet(io.BytesIO(content)).to_dicts()
        if name.endswith(".csv"):
            return pl.read_csv(io.BytesIO(content), infer_schema=False).to_dicts()
        found = json.loads(content, object_pairs_hook=members_of)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, RecursionError) as error:
        raise _refused(name, f"cannot be read: {str(error).splitlines()[0][:200]}") from error
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise _refused(name, "is JSON, and no list of objects")
    if wrong := wrong_member(found):
        raise _refused(name, wrong)
    return found


def content_hash(content: bytes, algorithm: str) -> str:
    """Return the hash of a file's content as a delivery index lists it."""
    if algorithm == "git-blob":
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    return hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()


def _refused(name: str, what: str) -> InputRefused:
    return InputRefused(
        Problem(
            f"the delivery index {name} {what}",
            "it lists each file once: its path, when it was published (ISO 8601, with an offset), and its hash if the feed says so",
            "have it delivered again; nothing was received",
        )
    )
