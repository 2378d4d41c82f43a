"""Hashes of a Parquet file: of all its bytes, and of its footer alone, which can be taken again in no time.

Put here nothing else: Spark's workers import this module. The footer holds the schema, the row counts, the places and
the statistics of the columns: what a commit takes over from a file. The pages with the rows are only in the whole hash.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

_TAIL = 8
"""Bytes at the end of a Parquet file: the footer's length (little-endian, 4 bytes) and the magic number."""


class Fingerprint(NamedTuple):
    """SHA-256 (hex) of a file's bytes and of its footer."""

    sha256: str
    footer: str


def fingerprint(raw: bytes) -> Fingerprint:
    """Return the hashes of a file that was read whole."""
    return Fingerprint(hashlib.sha256(raw).hexdigest(), hashlib.sha256(footer_in(raw)).hexdigest())


def footer_in(raw: bytes) -> bytes:
    """Return the footer of a file that was read whole."""
    return raw[-_footer(raw[-_TAIL:]) :]


def read_footer(stream: Any, size: int) -> bytes:
    """Return the footer of a file of known size, reading nothing else of it. `stream` seeks and reads bytes."""
    stream.seek(max(0, size - _TAIL))
    begins = max(0, size - _footer(stream.read(_TAIL)))
    stream.seek(begins)
    raw: bytes = stream.read(size - begins)
    return raw


def _footer(tail: bytes) -> int:
    """Return how many bytes the footer has, with its length and the magic number."""
    return _TAIL + int.from_bytes(tail[:4], "little")
