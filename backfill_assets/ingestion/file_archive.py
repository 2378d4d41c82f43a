"""The files of a feed as they came: by the hash of their bytes, written whole or not at all, and never again.

Put here how bytes are kept and found. Which folder a file goes to is `receiving`'s to say; nothing here is ever deleted.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from manifests.errors import InputRefused, Problem

ACCEPTED, REJECTED = "accepted", "rejected"


@dataclass(frozen=True)
class FileArchive:
    """The folders of one feed below the home of an installation."""

    home: Path
    feed: str

    @property
    def landing(self) -> Path:
        """Where files are put that are to be received."""
        return self.home / "landing" / self.feed

    def folder(self, kind: str) -> Path:
        """Return where the bytes of accepted, or of rejected, files are kept."""
        return self.home / "archive" / kind / self.feed

    def make(self) -> None:
        """Make the folders; those that are there stay."""
        for folder in (self.landing, self.folder(ACCEPTED), self.folder(REJECTED)):
            folder.mkdir(parents=True, exist_ok=True)

    def keep(self, kind: str, content_hash: str, content: bytes) -> None:
        """Keep bytes under their hash, on the disk once `settle` has returned; what is there already stays as it is.

        What is there and has been damaged is set aside, beside the bytes that it should have been.
        """
        place = self.folder(kind) / content_hash
        if place.exists():
            if _hash_of(place) == content_hash:
                return
            place.replace(place.with_name(f"{content_hash}.damaged-{uuid4().hex[:8]}"))
        number, partial = tempfile.mkstemp(prefix=".", suffix=".partial", dir=place.parent)
        try:
            with os.fdopen(number, "wb") as stream:
                stream.write(content)
                os.fchmod(stream.fileno(), 0o444)
                stream.flush()
                os.fsync(stream.fileno())
            Path(partial).replace(place)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise

    def settle(self) -> None:
        """Have the names of what was kept be on the disk: what was delivered is removed after this."""
        for kind in (ACCEPTED, REJECTED):
            _on_disk(self.folder(kind))

    def has(self, content_hash: str) -> bool:
        """Whether bytes are kept under their hash, as they were."""
        places = (self.folder(kind) / content_hash for kind in (ACCEPTED, REJECTED))
        return any(_hash_of(place) == content_hash for place in places if place.is_file())

    def read(self, content_hash: str) -> bytes:
        """Return the bytes that have a hash.

        Raises:
            InputRefused: if they are not there, or have changed.
        """
        for kind in (ACCEPTED, REJECTED):
            place = self.folder(kind) / content_hash
            if place.is_file():
                content = place.read_bytes()
                if hashlib.sha256(content).hexdigest() == content_hash:
                    return content
        raise InputRefused(
            Problem(
                f"{self.folder(ACCEPTED) / content_hash} is not there, or not as it was kept",
                "the bytes of a file that came are kept under their hash, and never changed",
                "put the file back from its backup, or receive it again",
            )
        )


def _hash_of(place: Path) -> str:
    return hashlib.sha256(place.read_bytes()).hexdigest()


def _on_disk(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
