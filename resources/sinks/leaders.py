"""A partition of a topic that is getting its leader, of a topic just made or of brokers that begin: asked again until it has one.

Put here what brokers say meanwhile. What they are asked is `topics`', and the extraction's of a topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

LEADERS_CHANGE = frozenset(
    {
        "NOT_LEADER_FOR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "OFFSET_NOT_AVAILABLE",
        "UNKNOWN_LEADER_EPOCH",
        "FENCED_LEADER_EPOCH",
    }
)
"""Errors by their names, as librdkafka gives them."""
_AGAIN_SECONDS = 0.2
_Answer = TypeVar("_Answer")


def once_led(ask: Callable[[], _Answer], seconds: float) -> _Answer:
    """Return what brokers answer once the partition has a leader; whatever else they say, or say after `seconds`, is raised."""
    until = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except Exception as error:
            if not _is_passing(error) or time.monotonic() > until:
                raise
        time.sleep(_AGAIN_SECONDS)


def _is_passing(error: Exception) -> bool:
    """Whether an exception of the client is one of these: its only argument is the error, which has a name."""
    name = getattr(error.args[0], "name", None) if error.args else None
    return callable(name) and name() in LEADERS_CHANGE
