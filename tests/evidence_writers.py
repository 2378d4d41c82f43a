"""Processes that write evidence at the same time as others, or are killed while they do.

Put here what such a process does. Each is started afresh rather than forked from the test's own: threads of libraries do not
live on in a fork, and what such a library then frees there may end the process (Kafka's client, left by an earlier test).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

from launches import CONTEXT

from resources.evidence.chain import Chain
from resources.evidence.object_chain import chain_in
from resources.evidence.store import EvidenceStore
from resources.files import s3_objects
from resources.files.places import ObjectPlace, object_place
from resources.files.s3_objects import Bucket

Where = Path | tuple[str, Mapping[str, str]]
"""A folder, or the address of a bucket's folder and how to reach it."""

WAITS = (0.01, 0.02, 0.05)
"""Seconds between a request to a store and the same again, where the product waits seconds."""


def where(place: ObjectPlace) -> Where:
    """Return how another process finds a place, with connections of its own."""
    return place.uri, place.bucket._properties


def started(work: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a process that does this work, a function of this module."""
    process = CONTEXT.Process(target=_work, args=(work, arguments), daemon=True)
    process.start()
    return process


def _work(work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    with mock.patch.object(s3_objects, "_WAITS", WAITS):
        work(*arguments)


def appended(chain: Chain, event: str, since: int = 0) -> int:
    """Append an event unless it is there after the first `since` links; return its number."""

    def same(link: Mapping[str, Any]) -> bool:
        return link.get("event") == event

    return chain.append({"event": event}, since=since, same=same).number


def append_many(at: Where, name: str, number: int, is_shared: bool) -> None:
    """Append so many events; of those that several processes append, each is appended once."""
    chain = chain_in(_place(at))
    for one in range(number):
        appended(chain, f"{name}-{one}", since=0 if is_shared else chain.length())


def append_one(at: Where, event: str) -> None:
    appended(chain_in(_place(at)), event)


def seal(at: Where, run: str, files: Mapping[str, Any]) -> str:
    return EvidenceStore(_place(at)).seal(run, files)


def seal_and_say(at: Where, run: str, files: Mapping[str, Any], said: Any) -> None:
    """Seal a run's files, and put the root of the bundle that is there then on a queue."""
    said.put(seal(at, run, files))


def die(at: Where, number: int, when: str, work: Callable[..., object], *arguments: Any) -> None:
    """Do some work until it has made its object of this number, and be killed `before` or `after`."""
    real, made = Bucket.make, []
    lock = threading.Lock()

    def make(bucket: Bucket, key: str, raw: bytes, still: Any = None) -> str:
        with lock:
            made.append(key)
            is_last = len(made) == number
        if is_last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(bucket, key, raw, still)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    with mock.patch.object(Bucket, "make", make):
        work(at, *arguments)


def _place(at: Where) -> Path | ObjectPlace:
    return at if isinstance(at, Path) else object_place(*at)
