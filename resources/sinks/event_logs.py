"""The sink that is a topic of events: a file of JSON lines, one an event, in the order in which they were told.

Put here how an event is appended and read. It stands in for a broker until there is one: a product that has one names an adapter
of its own, and its consumers see the same fields. The file lies in the installation's home folder; whoever appends holds a
lock on it, so that processes of one machine, or of one that shares the folder with locks, take turns.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from manifests.errors import Problem, SinkRefused
from resources.sinks.declared import Told, json_of


def log_file(home: Path, topic: str) -> Path:
    """Return the file of a topic."""
    return home / "topics" / f"{topic}.jsonl"


class EventLog:
    """An append-only topic; every line has its `offset`, counted from 0 without a gap, and its `topic`."""

    def __init__(self, file: Path, topic: str) -> None:
        self._file, self._topic = file, topic

    def send(self, told: Told) -> None:
        """Append the event, once a run and action; when this returns, the line is on the disk.

        Raises:
            SinkRefused: if a line before it is none of an event: what was told is not known then.
            OSError: if the file cannot be written.
        """
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self._file) as descriptor:
            told_before = [(event["runId"], event["action"]) for event in _events(self._file)]
            told_before += self._finished(descriptor, len(told_before))
            if (told.run_id, told.action) in told_before:
                return
            offset = len(told_before)
            line = json.dumps({"topic": self._topic, "offset": offset, "event": json.loads(json_of(told))})
            os.lseek(descriptor, 0, os.SEEK_END)
            _write(descriptor, f"{line}\n".encode())
            os.fsync(descriptor)
        _sync_folder(self._file.parent)

    def _finished(self, descriptor: int, offset: int) -> list[tuple[str, str]]:
        """Put in order what a killed writer has left behind the last whole line; return the event that it is, if it is one.

        A whole event lacks its line end, and gets it; of a torn one no reader has seen anything, and it counts as not told.

        Raises:
            SinkRefused: if it is nothing that a writer of this topic leaves: it is somebody else's, or was edited.
        """
        end = _end_of_lines(descriptor)
        left = os.pread(descriptor, os.fstat(descriptor).st_size - end, end)
        if (event := _event_in(left, offset)) is not None:
            os.lseek(descriptor, 0, os.SEEK_END)
            _write(descriptor, b"\n")
            return [(event["runId"], event["action"])]
        head = json.dumps({"topic": self._topic, "offset": offset})[:-1].encode()
        if not (left.startswith(head) or head.startswith(left)):
            raise SinkRefused(
                Problem(
                    f"the end of {self._file} is no event that a writer was killed in",
                    "a topic's file holds the events that were told, each a line of its own, and nobody else's text",
                    "restore the file from a backup; if it is not this topic's, move it away",
                )
            )
        os.ftruncate(descriptor, end)
        return []


def events_of(file: Path) -> list[dict[str, Any]]:
    """Return the events of a topic, in order: what was told of each run and action; none of a topic that has none yet.

    Raises:
        SinkRefused: if a whole line is none of an event.
    """
    return list(_events(file)) if file.exists() else []


def _events(file: Path) -> Iterator[dict[str, Any]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines):
            if not line.endswith(b"\n"):
                return  # the writer was killed in the middle of it: the next one cuts it off, and tells it again
            event = _event_in(line, number)
            if event is None:
                raise SinkRefused(
                    Problem(
                        f"line {number + 1} of {file} is no event with offset {number}",
                        "only whole events are appended, and none is changed",
                        "restore the file from a backup",
                    )
                )
            yield event


def _event_in(line: bytes, offset: int) -> dict[str, Any] | None:
    """Return the event that a line has at an offset; None of any other line."""
    try:
        entry = json.loads(line)
        event: dict[str, Any] = entry["event"]
        return event if entry["offset"] == offset and {"runId", "action"} <= event.keys() else None
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


@contextmanager
def _locked(file: Path) -> Iterator[int]:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _end_of_lines(descriptor: int) -> int:
    """Return where the last whole line ends."""
    position = os.fstat(descriptor).st_size
    while position > 0:
        begin = max(0, position - 65_536)
        end = os.pread(descriptor, position - begin, begin).rfind(b"\n")
        if end >= 0:
            return begin + end + 1
        position = begin
    return 0


def _write(descriptor: int, raw: bytes) -> None:
    while raw:
        raw = raw[os.write(descriptor, raw) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
