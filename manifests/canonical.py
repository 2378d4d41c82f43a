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
from typing import Any

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


def canonical_json(value: Any) -> str:
    """Return the canonical JSON of `value`: sorted keys, no blanks, UTF-8 kept, NaN refused."""
    return canonical_json_of_plain(plain(value))


def canonical_json_of_plain(data: Any) -> str:
    """Return the canonical JSON of what is plain data already: cells of the ledger, by the thousand."""
    return _ENCODER.encode(data)


def sha256_of(value: Any) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
