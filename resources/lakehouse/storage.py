"""The files of a table, through the file system that its catalog gives: a local folder or an object store.

Put here listing, looking and deleting, file by file. Which file may go is `backfill_assets.operations.garbage`'s to decide. Links
are never followed, and a folder is never deleted with what is in it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyarrow import ArrowInvalid, BufferReader
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from manifests.errors import EnvironmentRefused, Problem
from resources.files.fingerprints import read_footer
from resources.files.stores import NAMED_HOSTS, local_path, place_of, readings_differ, require_seen, seen
from resources.lakehouse.metadata import readable_place

__all__ = ["FileFound", "Storage", "ask_each", "filesystem_of", "local_path", "place_of", "store_of"]
_LOOK_AT_ONCE = 1_000
_ASKED_TOGETHER = 8
_PIECES, _MOST_OF_A_PIECE = 3, 8 << 20
_SAME_STORE = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb", "gcs": "gs"}
"""Schemes that name the same store as another one."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class FileFound:
    """A file as it was seen: `path` is a place (see `place_of`), `modified_ns` is 0 where the store does not say."""

    path: str
    bytes: int
    modified_ns: int


def store_of(uri: str) -> str:
    """Return which file system a URI is of: with `place_of` it says which file, and another spelling of both is the same."""
    parts = urlsplit(uri)
    host = parts.netloc if parts.scheme in {*NAMED_HOSTS, "file"} and parts.netloc != "localhost" else ""
    return f"{_SAME_STORE.get(parts.scheme, parts.scheme) or 'file'}://{host}"


def filesystem_of(table: Table, uri: str) -> tuple[pafs.FileSystem, str, str]:
    """Return the file system of a URI with the catalog's own credentials, the place in it, and the scheme to restore."""
    parts = urlsplit(uri)
    io = table.io
    if not isinstance(io, PyArrowFileIO):
        raise EnvironmentRefused(
            Problem(
                f"the catalog's property {PY_IO_IMPL} names {type(io).__module__}.{type(io).__qualname__}",
                "files are listed and looked at through PyArrow",
                f"remove {PY_IO_IMPL} from the properties of the catalog (see `backfill config`)",
            )
        )
    with readable_place(table, uri):
        filesystem = io.fs_by_scheme(parts.scheme or "file", parts.netloc or None)
    if parts.scheme in {"", "file"}:
        return filesystem, place_of(uri), "file://" if parts.scheme else ""
    host = parts.netloc if parts.scheme in NAMED_HOSTS else ""
    return filesystem, place_of(uri), f"{parts.scheme}://{host}"


def ask_each(ask: Callable[[str], _Answer], paths: Sequence[str]) -> list[_Answer]:
    """Ask something of each file, order kept: of a store together, on a local disk one by one, where nothing is waited for."""
    if all(path.startswith("file:") for path in paths):
        return [ask(path) for path in paths]
    with ThreadPoolExecutor(_ASKED_TOGETHER) as pool:
        return list(pool.map(ask, paths))


class Storage:
    """The files below one table's location."""

    def __init__(self, table: Table) -> None:
        self._filesystem, self.location, _ = filesystem_of(table, table.location().rstrip("/"))
        self._local = isinstance(self._filesystem, pafs.LocalFileSystem)

    def inside(self, path: str) -> bool:
        """Return whether a place lies below the table's location, and no link leads out of it on the way."""
        if not path.startswith(f"{self.location}/") or ".." in path.split("/"):
            return False
        while self._local and path != self.location:
            if os.path.islink(path):  # noqa: PTH114 - a place is text, whatever holds it
                return False
            path = os.path.dirname(path)  # noqa: PTH120 - a place is text
        return True

    def through_link(self, path: str) -> bool:
        """Return whether a place below the table's location is, or lies below, a link: what is there is not the table's own."""
        return self._local and path.startswith(f"{self.location}/") and not self.inside(path)

    def folders(self, folder: str) -> list[str]:
        """Return the folders directly in `folder`, without links."""
        return [info.path for info in self._entries(folder, recursive=False) if not info.is_file]

    def files(self, folder: str) -> list[FileFound]:
        """Return every file below `folder`; a link is neither returned nor followed."""
        if not self._local:
            return [_found(info) for info in self._entries(folder, recursive=True) if info.is_file]
        files: list[FileFound] = []
        waiting = [folder] if self.inside(folder) else []
        while waiting:
            for info in self._entries(waiting.pop(), recursive=False):
                if info.is_file:
                    files.append(_found(info))
                else:
                    waiting.append(info.path)
        return sorted(files, key=lambda file: file.path)

    def _entries(self, folder: str, *, recursive: bool) -> list[pafs.FileInfo]:
        selector = pafs.FileSelector(folder, recursive=recursive, allow_not_found=True)
        found = self._filesystem.get_file_info(selector)
        if not self._local:
            return list(found)
        return [info for info in found if not os.path.islink(info.path)]  # noqa: PTH114 - Arrow follows links

    def look(self, paths: Iterable[str]) -> dict[str, FileFound]:
        """Return those of `paths` that are files now; what a manifest names that can be no place is none, nor is a link.

        Raises:
            EnvironmentRefused: if one is not found, nor its bucket.
        """
        wanted = [path for path in paths if path and "\0" not in path and not self.through_link(path)]
        found: dict[str, FileFound] = {}
        for start in range(0, len(wanted), _LOOK_AT_ONCE):
            for info in self._filesystem.get_file_info(wanted[start : start + _LOOK_AT_ONCE]):
                if info.is_file:
                    found[info.path] = _found(info)
        if len(found) < len(set(wanted)):
            self._require_seen()
        return found

    def _require_seen(self) -> None:
        """Require that the bucket is seen before a file of it is said to be gone.

        Raises:
            EnvironmentRefused: if it is not.
        """
        try:
            require_seen(self._filesystem, self.location)
        except OSError as error:
            raise EnvironmentRefused(
                Problem(
                    str(error),
                    "a file that is not found is gone only where its bucket is seen",
                    "nothing has changed; see the properties of the catalog (`backfill config`), and run the same command again",
                )
            ) from error

    def rows(self, path: str) -> int:
        """Return the rows of a Parquet file, from its footer.

        Raises:
            ArrowException: if what was read is no footer.
            OSError: if it cannot be read, or is reached by a link; FileNotFoundError if it is not there.
        """
        self._require_own(path)
        with seen(self._filesystem, path), self._filesystem.open_input_file(path) as stream:
            raw = read_footer(stream, stream.size())
        try:
            return int(pq.read_metadata(BufferReader(raw)).num_rows)
        except OSError as error:  # Arrow's word for bytes that it cannot make sense of
            raise ArrowInvalid(str(error)) from error

    def content(self, path: str, *, sha256: str = "") -> bytes:
        """Return a whole file. What a store gives is read once more, in pieces, unless it has the SHA-256 (hex) that is expected of it.

        Raises:
            OSError: if it cannot be read, has other bytes the second time, or is reached by a link; FileNotFoundError if it is not there.
        """
        self._require_own(path)
        with seen(self._filesystem, path), self._filesystem.open_input_file(path) as stream:
            raw = bytes(stream.read())
            if self._local or (sha256 and hashlib.sha256(raw).hexdigest() == sha256):
                return raw
        with seen(self._filesystem, path), self._filesystem.open_input_file(path) as stream:
            size = min(_MOST_OF_A_PIECE, len(raw) // _PIECES + 1)
            at = range(0, len(raw) + 1, size)
            if not all(stream.read(size) == raw[begin : begin + size] for begin in at):
                raise readings_differ(path)
        return raw

    def _require_own(self, path: str) -> None:
        if self.through_link(path):
            raise OSError(f"{path} is reached by a link, and links below a table's location are not followed")

    def delete(self, file: FileFound) -> bool:
        """Delete a file if it is still the one that was found; return whether it was deleted."""
        if not self.inside(file.path) or self.look([file.path]).get(file.path) != file:
            return False
        self._filesystem.delete_file(file.path)
        return True

    def drop_empty(self, top: str) -> None:
        """Remove `top` and the folders below it that are empty by now; only a local folder is more than a name."""
        if not self._local or not self.inside(top):
            return
        for folder in self.folders(top):
            self.drop_empty(folder)
        with suppress(OSError):  # something is in it, or somebody else has removed it
            os.rmdir(top)  # noqa: PTH106 - a place is text


def _found(info: pafs.FileInfo) -> FileFound:
    return FileFound(info.path, int(info.size or 0), int(info.mtime_ns or 0))
