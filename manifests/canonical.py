"""One canonical text for data, and its hash.

Whatever is hashed in this project (manifest, plan, configuration, evidence) is hashed through here, so that two
hashes are comparable. Hashes of table rows are not: see `backfill_assets.worker.digest`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from enum import Enum
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined] # typeshed lacks the first
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, TypeAdapter

_T = TypeVar("_T")
LATER: Mapping[str, Any] = MappingProxyType({"later": True})
"""Metadata of a dataclass field that came after the first records were hashed: its default is not in the text."""


_ITEMS_OF_A_PIECE = 1_000
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_pieces_of = c_make_encoder(None, _ENCODER.default, encode_basestring, None, ":", ",", True, False, False)
"""What `_ENCODER` makes anew for each text: twice the time of most of them."""
_DECODER = json.JSONDecoder()
_PLAIN = frozenset({str, int, float, bool, type(None)})
_known_fields: dict[type, tuple[tuple[str, Any], ...]] = {}
_known_readers: dict[Any, TypeAdapter[Any]] = {}


def plain(value: Any) -> Any:
    """Return `value` as JSON-ready data: dataclasses as mappings, dates as ISO text, instants in UTC."""
    kind = type(value)
    if kind in _PLAIN:  # nearly all there is, and all else takes five times as long to be told apart
        return value
    if kind is date:
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return _plain_object(value)


def _plain_object(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(item) for name, item in _said(value)}
    if isinstance(value, BaseModel):
        return plain(value.model_dump(by_alias=True))
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"the instant {value!r} has no time zone")
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return value


def _fields(kind: type) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a dataclass, each with the value that is not said of it; MISSING where every value is said."""
    if kind not in _known_fields:
        _known_fields[kind] = tuple(
            (one.name, one.default if one.metadata.get("later") else dataclasses.MISSING)
            for one in dataclasses.fields(kind)
        )
    return _known_fields[kind]


def _said(value: Any) -> list[tuple[str, Any]]:
    """Return what a dataclass says: its fields, without those that came later and have their default."""
    found = [(name, getattr(value, name), unsaid) for name, unsaid in _fields(type(value))]
    return [(name, item) for name, item, unsaid in found if unsaid is dataclasses.MISSING or item != unsaid]


def completed(kind: Any, data: Any) -> Any:
    """Return plain data of a dataclass with the defaults of the fields that it lacks, at every depth; what it says stays.

    Its text lacks them where an earlier version wrote it, and those that came `LATER` wherever they say their default.
    """
    if isinstance(data, list):
        return [completed(kind, one) for one in data]
    if not isinstance(data, dict):
        return data
    found = dict(data)
    for within in (kind, *get_args(kind)):  # of what may be None, or of each of several, the class is inside
        if not (isinstance(within, type) and dataclasses.is_dataclass(within)):
            continue
        kinds = get_type_hints(within)
        for field in dataclasses.fields(within):
            if field.name in found:
                found[field.name] = completed(kinds[field.name], found[field.name])
            elif field.default is not dataclasses.MISSING:
                found[field.name] = plain(field.default)
    return found


def reader_of(kind: type[_T]) -> TypeAdapter[_T]:
    """Return what reads plain data back as a dataclass, or as a list or tuple of some; made when the first is read."""
    if kind not in _known_readers:
        _known_readers[kind] = TypeAdapter(kind)
    return _known_readers[kind]


def canonical_json(value: Any) -> str:
    """Return the canonical JSON of `value`: sorted keys, no blanks, UTF-8 kept, NaN refused."""
    return canonical_json_of_plain(plain(value))


def canonical_pieces(value: Any) -> Iterator[str]:
    """Yield the canonical JSON of a dataclass in pieces: of a field with very many items, some of them at a time."""
    before = "{"
    for name, item in sorted(_said(value)):
        yield f"{before}{_ENCODER.encode(name)}:"
        before = ","
        if not isinstance(item, (list, tuple)) or len(item) <= _ITEMS_OF_A_PIECE:
            yield canonical_json(item)
            continue
        for start in range(0, len(item), _ITEMS_OF_A_PIECE):
            text = canonical_json(item[start : start + _ITEMS_OF_A_PIECE])
            yield ("," if start else "[") + text[1:-1]
        yield "]"
    yield "{}" if before == "{" else "}"


def canonical_json_of_plain(data: Any) -> str:
    """Return the canonical JSON of what is plain data already: cells of the ledger, by the thousand.

    Raises:
        ValueError, TypeError, RecursionError: of what JSON cannot say.
    """
    return encode_basestring(data) if type(data) is str else "".join(_pieces_of(data, 0))


def data_of(text: str) -> Any:
    """Return what the text of JSON says; one without blanks around it, as canonical JSON is, in half the time of `json.loads`.

    Raises:
        ValueError, RecursionError: if it is no JSON.
    """
    try:
        data, end = _DECODER.raw_decode(text)
    except ValueError:
        return json.loads(text)
    return data if end == len(text) else json.loads(text)


def sha256_of(value: Any) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of `value`."""
    return sha256_of_text(canonical_json(value))


def sha256_of_text(text: str) -> str:
    """Return the SHA-256 (hex) of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
