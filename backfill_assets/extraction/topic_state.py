"""What brokers say of a topic before it is read: which log it is, and which offsets it has.

Put here what they say, as plain data. How they are asked is `brokers`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from manifests.log_ranges import LogIdentity


@dataclass(frozen=True)
class PartitionState:
    """Which offsets a partition has.

    Attributes:
        low: the first that retention has left.
        stable: the one before which every transaction is over: what `read_committed` reads ends there.
        high: the one that the next record gets.
    """

    low: int
    stable: int
    high: int


@dataclass(frozen=True)
class TopicState:
    """Which log a topic is now, and which offsets its partitions have, by their numbers."""

    log: LogIdentity
    partitions: Mapping[int, PartitionState]
    is_compacted: bool
