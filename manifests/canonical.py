"""One canonical text for data, and its hash.

Whatever is hashed in this project (manifest, plan, configuration, evidence) is hashed through here, so that two
hashes are comparable. Hashes of table rows are not: see `backfill_assets.worker.digest`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from enum import Enum
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel

LATER: Mapping[str, Any] = MappingProxyType({"later": True})
"""Metadata of a dataclass field that came after the first records were hashed: its default is not in the text."""


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_PLAIN = frozenset({str, int, float, bool, type(None)})


def plain(value: Any) -> Any:
    """Return `value` as JSON-ready data: dataclasses as mappings, dates as ISO text, instants in UTC."""
    if type(value) in _PLAIN:  # nearly all there is, and all else takes five times as long to be told apart
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return _plain_object(value)


def _plain_object(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not (field.metadata.get("later") and getattr(value, field.name) == field.default)
        }
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


def canonical_json(value: Any) -> str:
    """Return the canonical JSON of `value`: sorted keys, no blanks, UTF-8 kept, NaN refused."""
    return canonical_json_of_plain(plain(value))


def canonical_json_of_plain(data: Any) -> str:
    """Return the canonical JSON of what is plain data already: cells of the ledger, by the thousand."""
    return _ENCODER.encode(data)


def sha256_of(value: Any) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
