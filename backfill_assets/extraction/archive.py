"""The archive of answers: a file each, whole or not at all, never overwritten, in a folder an extraction.

Put here how an answer is written and read. A file is one line of JSON, which says what was asked and what came, and then what
the server has sent, byte by byte as it is once unpacked. What the answers say is `records`'; that they are on record is
`resources.ledger.extractions`'.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from pathlib import Path

from backfill_assets.extraction.refusals import ArchiveRefused
from backfill_assets.installation import Platform
from manifests.canonical import canonical_json
from manifests.errors import EnvironmentRefused, Problem
from resources.files.kept_files import json_of, read_kept
from resources.ledger.extractions import ExtractionRecord, ResponseRecord

_ENDING = ".response"
_RULE = "an answer is kept as it came, and never changed"
_FIX = "restore the archive from its backup, or extract again: that is an extraction of its own, and is loaded without this one"


def file_of(number: int) -> str:
    """Return the name of the file of an answer, by its number in the extraction."""
    return f"{number:06d}{_ENDING}"


class Archive:
    """The answers of one extraction; one process writes it at a time (`alone_with`)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, response: ResponseRecord, body: bytes) -> None:
        """Write an answer, whole or not at all.

        Raises:
            EnvironmentRefused: if another one lies there, or it cannot be written.
        """
        self.write(file_of(response.number), canonical_json(response.as_record()).encode() + b"\n" + body)

    def write(self, name: str, raw: bytes) -> None:
        """Write a file beside the answers; it is left as it is where the same lies there.

        Raises:
            EnvironmentRefused: if another one lies there, or it cannot be written.
        """
        file, partial = self.folder / name, self.folder / f".{name}.partial"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if file.exists():
                self._require_same(file, raw)
                return
            partial.unlink(missing_ok=True)  # of a process that was killed
            with partial.open("xb") as stream:
                stream.write(raw)
                stream.flush()
                os.fsync(stream.fileno())
            os.link(partial, file)  # fails where something lies by now: nothing is ever overwritten
            partial.unlink()
            _sync(self.folder)
        except OSError as error:
            raise EnvironmentRefused(
                Problem(
                    f"{file} cannot be written: {error.strerror or error}",
                    "answers are kept in the archive of the home folder before anything else is done with them",
                    "look at the disk; the same command goes on from here",
                )
            ) from error

    @staticmethod
    def _require_same(file: Path, raw: bytes) -> None:
        if read_kept(file) != raw:
            raise EnvironmentRefused(Problem(f"{file} has another content than it is to have", _RULE, _FIX))

    def read(self, response: ResponseRecord) -> bytes:
        """Return what a server has sent, held against its hash.

        Raises:
            EnvironmentRefused: if the file is not there, or was changed.
        """
        found, body = self._opened(response.number)
        if found != response:
            raise ArchiveRefused(
                Problem(f"{self.folder / file_of(response.number)} is not the answer that is on record", _RULE, _FIX)
            )
        return body

    def beyond(self, number: int) -> Iterator[ResponseRecord]:
        """Yield the answers that are kept and not on record, from a number on: a process was killed between the two."""
        while (self.folder / file_of(number)).exists():
            yield self._opened(number)[0]
            number += 1

    def _opened(self, number: int) -> tuple[ResponseRecord, bytes]:
        file = self.folder / file_of(number)
        try:
            raw = read_kept(file)
            head, _, body = raw.partition(b"\n")
            said = json_of(head)
            said["at"] = datetime.fromisoformat(said["at"])
            response = ResponseRecord(**{field.name: said[field.name] for field in fields(ResponseRecord)})
        except FileNotFoundError:
            raise ArchiveRefused(Problem(f"{file} is not there", _RULE, _FIX)) from None
        except (ValueError, TypeError, KeyError) as error:
            raise ArchiveRefused(Problem(f"{file} is no answer that was kept", _RULE, _FIX)) from error
        if hashlib.sha256(body).hexdigest() != response.content_hash or len(body) != response.bytes:
            raise ArchiveRefused(Problem(f"{file} has another content than came", _RULE, _FIX))
        return response, body


def archive_of(platform: Platform, record: ExtractionRecord) -> Archive:
    """Return the archive of an extraction."""
    return Archive(platform.settings.responses_folder / record.feed / f"{record.number:06d}")


def content_hash(body: bytes) -> str:
    """Return the SHA-256 (hex) of what a server has sent."""
    return hashlib.sha256(body).hexdigest()


@contextmanager
def alone_with(folder: Path, name: str, what: str) -> Iterator[None]:
    """Let no other process of this machine have the same meanwhile; what a process held that was killed is free.

    Raises:
        EnvironmentRefused: if another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            raise EnvironmentRefused(
                Problem(
                    f"another process {what}: {lock.read().strip() or 'it does not say which'}",
                    "one process does so at a time: its requests are counted, and loads come one after the other",
                    "wait until it is done, or end it; the same command goes on where it stopped",
                )
            ) from error
        lock.truncate(0)
        lock.write(json.dumps({"pid": os.getpid()}))
        lock.flush()
        yield


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
