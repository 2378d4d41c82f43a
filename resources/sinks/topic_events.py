"""Events as messages of a topic: key, value, headers, their partition, and the hash that stands for many of them in order.

Put here what can be said of a message without a broker. What sends and reads messages is `topics`'; which rows are events is the
publication's.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

RUN, MODE, VERSION, SNAPSHOT = "x-run-id", "x-processing-mode", "x-transform-version", "x-input-snapshot"
SYNTHETIC, EVENT_ID, OPERATION = "x-synthetic", "x-event-id", "x-op"
CORRECTS, PUBLICATION, SEQUENCE = "x-corrects", "x-publication", "x-sequence"
CONTENT = "x-content"
"""SHA-256 (hex, 16 digits) of the value: whether an event says the same as one of its id that a run before has told."""
EMIT, RETRACT = "publish", "retract"
"""What an event does: it says what a row says, or takes back the event that it names."""


@dataclass(frozen=True)
class Message:
    """One event: `sequence` counts those of its publication from 0, `headers` are in a fixed order."""

    sequence: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]

    @property
    def bytes(self) -> int:
        """How long key, value and headers are together."""
        return len(self.key) + len(self.value) + sum(len(name) + len(value) for name, value in self.headers)


@dataclass
class Heard:
    """What a partition has of a publication: its first and last offset, how many, and the hash over them in order."""

    events: int = 0
    first: int = -1
    last: int = -1
    hash: Any = field(default_factory=hashlib.sha256)

    def add(self, key: bytes, value: bytes, headers: tuple[tuple[str, bytes | None], ...], offset: int = -1) -> None:
        """Take one more event into account; a header that somebody else has written may have no value."""
        self.events += 1
        self.first = offset if self.first < 0 else self.first
        self.last = offset
        parts: list[bytes | None] = [
            key,
            value,
            *(part for name, header in headers for part in (name.encode(), header)),
        ]
        lengths = ",".join("none" if part is None else str(len(part)) for part in parts)
        self.hash.update(f"{lengths};".encode() + b"".join(part for part in parts if part is not None))


_SEED, _FACTOR, _MASK, _WORD = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF, 4


@lru_cache(maxsize=65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key as Kafka's own producers choose it (murmur2): a live producer's events of it are there, too."""
    length = len(key)
    found = _SEED ^ length
    whole = length - length % _WORD
    for place in range(0, whole, _WORD):
        word = int.from_bytes(key[place : place + _WORD], "little") * _FACTOR & _MASK
        word = (word ^ word >> 24) * _FACTOR & _MASK
        found = (found * _FACTOR & _MASK) ^ word
    if whole < length:
        found = (found ^ int.from_bytes(key[whole:], "little")) * _FACTOR & _MASK
    found = (found ^ found >> 13) * _FACTOR & _MASK
    return ((found ^ found >> 15) & 0x7FFFFFFF) % partitions


class Throttle:
    """Lets so many messages and bytes through in a second; what was not used earlier is not saved up.

    `pause` seconds long by `now`'s clock; both are given by tests.
    """

    def __init__(
        self,
        messages_per_second: int,
        bytes_per_second: int,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._messages, self._bytes = messages_per_second, bytes_per_second
        self._now, self._pause = now, pause
        self._free_at = now()

    def let_through(self, messages: int, length: int) -> None:
        """Return once so many may be sent."""
        at = self._now()
        if self._free_at > at:
            self._pause(self._free_at - at)
        begins = max(at, self._free_at)
        self._free_at = begins + max(messages / self._messages, length / self._bytes)

    def owed(self) -> float:
        """Return for how many seconds the next ones would wait."""
        return max(0.0, self._free_at - self._now())
