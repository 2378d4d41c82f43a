"""Archives that a feed is to receive: their members one by one as they are unpacked, in memory and never into a folder.

Put here what is asked of an archive and of each member. An archive brings all that it has or nothing: one that is damaged, or
unpacks to more than is allowed, is refused as a whole. What lies in a folder is `landed_files`'.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from io import RawIOBase
from pathlib import Path
from typing import IO, Any, cast

from backfill_assets.declarations.feeds import FileLimits
from backfill_assets.extraction.landed_files import Landed, plain_path, too_large, wrong_path

ENDINGS = (".tar", ".tar.xz", ".tar.gz", ".tgz", ".tar.bz2", ".txz")
_HEADERS = 1 << 20
"""Bytes that the headers of one member may take: names, and what extensions of the format say besides."""
_BLOCK = 1 << 16
_DAMAGED = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError, OverflowError, RecursionError)


class DamagedArchiveError(Exception):
    """An archive cannot be read to its end, or unpacks to more than is allowed."""


class _Unpacked(RawIOBase):
    """The bytes of an archive as they are unpacked; more than `most` of them, or than is allowed at a time, are refused."""

    def __init__(self, stream: IO[bytes], most: int) -> None:
        self._stream, self._most, self._read, self._until = stream, most, 0, 0

    def allow(self, more: int) -> None:
        """Allow so many bytes more than were read so far."""
        self._until = self._read + more

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(_BLOCK if size < 0 else size)
        self._read += len(block)
        if self._read > self._most:
            raise DamagedArchiveError(
                f"it unpacks to more than {self._most:,} bytes (limits.archive_bytes of the feed)"
            )
        if self._read > self._until:
            raise DamagedArchiveError(f"the headers of a member take more than {_HEADERS:,} bytes")
        return block


def is_archive(name: str) -> bool:
    """Whether a name is that of an archive which is read member by member."""
    return name.lower().endswith(ENDINGS)


def members(place: Path, limits: FileLimits) -> Iterator[Landed]:
    """Yield the members of an archive in its order, but for folders.

    Raises:
        DamagedArchiveError: if it cannot be read to its end, or is more than the limits allow.
    """
    try:
        with _opened(place) as stream:
            unpacked = _Unpacked(stream, limits.archive_bytes)
            unpacked.allow(_HEADERS)
            with tarfile.open(fileobj=cast("IO[bytes]", unpacked), mode="r|", bufsize=_BLOCK, errorlevel=2) as archive:
                yield from _each(archive, unpacked, limits)
            _require_end(unpacked)
    except _DAMAGED as error:
        said = str(error) or type(error).__name__
        raise DamagedArchiveError(f"it cannot be read to its end: {said[:200]}") from error


def _opened(place: Path) -> IO[bytes]:
    name = place.name.lower()
    if name.endswith((".xz", ".txz")):
        return cast("IO[bytes]", lzma.open(place))
    if name.endswith((".gz", ".tgz")):
        return cast("IO[bytes]", gzip.open(place))
    return cast("IO[bytes]", bz2.open(place)) if name.endswith(".bz2") else place.open("rb")


def _each(archive: tarfile.TarFile, unpacked: _Unpacked, limits: FileLimits) -> Iterator[Landed]:
    before, number = 0, 0
    while True:
        unpacked.allow(before + _HEADERS)  # what is left of the member before, and the next one's headers
        member = archive.next()
        if member is None:
            return
        archive.members.clear()  # type: ignore[attr-defined] # an archive of a million members is not kept in memory
        number += 1
        if number > limits.archive_files:
            raise DamagedArchiveError(
                f"it has more than {limits.archive_files:,} members (limits.archive_files of the feed)"
            )
        before = max(member.size, 0)
        if not member.isdir():
            unpacked.allow(before + _HEADERS)
            yield _landed(archive, member, limits.bytes)


def _landed(archive: tarfile.TarFile, member: tarfile.TarInfo, most: int) -> Landed:
    shown = plain_path(member.name)
    if wrong := wrong_path(member.name) or _no_file(member):
        return Landed(shown, None, None, None, wrong)
    modified = _instant(member.mtime)
    if member.size > most:
        return Landed(shown, None, member.size, modified, too_large(member.size, most))
    stream: Any = archive.extractfile(member)
    content = stream.read(most + 1)
    if len(content) != member.size:
        raise DamagedArchiveError(f"it ends within {shown}")
    return Landed(shown, content, len(content), modified)


def _no_file(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return "it is a link to elsewhere, and no file"
    if member.isfifo():
        return "it is a pipe, and no file"
    if member.ischr() or member.isblk():
        return "it is a device, and no file"
    return "" if member.isreg() and not member.issparse() else "it is a member of an unknown kind, and no file"


def _instant(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _require_end(unpacked: _Unpacked) -> None:
    """Read what follows the last member, so that the checksums of the compressed file are compared."""
    while True:
        unpacked.allow(_BLOCK)
        if not unpacked.read(_BLOCK):
            return
