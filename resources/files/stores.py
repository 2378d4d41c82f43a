"""Data files of any store, opened, read and written in one way: by the driver, and by Spark's Python workers.

Put here how the bytes of a file are had, and how they are written; what they mean is for whoever asks. A file is named by a local
path or by the URI that its table gives it. What opens a store is the catalog's to say: the driver takes it from the lakehouse
(`Tables.access`), workers get it with their work (`resources.spark.workers`), and neither looks for it in its environment.

What is judged is what was read: of a store a file is taken whole, and decoded from memory, so that an error of decoding is never
one of the network. One reading proves nothing against an object: an answer that was cut may have the length of a whole one, with
anything for its end (`require_alike`), and who cannot see a bucket is told that its files are not there (`require_seen`).

Imported by Spark's Python workers: PyIceberg is imported once a file of a store is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from errno import ENOENT
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4
from zlib import crc32

import pyarrow as arrow
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from manifests.errors import EnvironmentRefused, Problem
from resources.files.fingerprints import read_footer
from resources.files.object_names import ambiguous

NAMED_HOSTS = frozenset({"hdfs", "viewfs"})
"""Schemes whose host is a part of the file system, and not of a file's place in it; as in PyIceberg."""
_Properties = tuple[tuple[str, str], ...]


@dataclass(frozen=True, repr=False)
class StoreAccess:
    """What opens the files of stores: properties of PyIceberg's FileIO, by the beginning of the URIs that they are for.

    It holds credentials, and travels to workers. It is never shown: of its properties it says the names.
    """

    by_place: tuple[tuple[str, _Properties], ...] = ()

    @classmethod
    def to(cls, properties: Mapping[str, str], single: Mapping[str, Mapping[str, str]] | None = None) -> StoreAccess:
        """Return the access that properties give; those of `single` places, by the beginning of their URIs, go before them."""
        places = {"": properties, **(single or {})}
        return cls(tuple((place, tuple(sorted(own.items()))) for place, own in places.items()))

    def of(self, uri: str) -> _Properties:
        """Return the properties that open a file: those of the longest place that it lies in."""
        found = [(len(place), own) for place, own in self.by_place if _lies_in(uri, place)]
        return max(found, default=(0, ()))[1]

    def __repr__(self) -> str:
        names = {name for _, own in self.by_place for name, _ in own}
        return f"{type(self).__name__}({', '.join(sorted(names))})"


def _lies_in(uri: str, place: str) -> bool:
    return not place or uri == place or uri.startswith(f"{place.rstrip('/')}/")


NO_STORE = StoreAccess()
"""What opens local files alone."""
_in_force: ContextVar[StoreAccess] = ContextVar("access of stores", default=NO_STORE)


@dataclass(frozen=True)
class _Had:
    """What was had by an access: what opens files, by its properties, and a checksum of each file that was read whole."""

    openers: dict[_Properties, Any] = field(default_factory=dict)
    readings: dict[str, int] = field(default_factory=dict)


_had: ContextVar[_Had | None] = ContextVar("what was had by the access", default=None)


@contextmanager
def opened_by(access: StoreAccess) -> Iterator[None]:
    """Open the files of stores by an access meanwhile, in this thread; nothing of it is kept for longer."""
    before, had = _in_force.set(access), _had.set(_Had())
    try:
        yield
    finally:
        _had.reset(had)
        _in_force.reset(before)


_KEPT_BYTES = 256 << 20
_PIECES, _MOST_BYTES = 3, 8 << 20
_kept: ContextVar[dict[str, bytes] | None] = ContextVar("files of stores that were read", default=None)


@contextmanager
def each_read_once() -> Iterator[None]:
    """Ask a store once for each file that is read several times meanwhile, in this thread; so much of them is kept in memory.

    For one piece of work on files that nobody changes: whether a file is still as it was, it does not say.
    """
    before = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(before)


# --- names ------------------------------------------------------------------------------------------------------------


def local_path(uri: str) -> str:
    """Return the path of a file: URI, and anything else unchanged."""
    return uri.removeprefix("file://").removeprefix("file:")


def is_local(path: str) -> bool:
    """Whether a path, or a URI, is of this machine's own files."""
    return "://" not in local_path(path)


def place_of(uri: str) -> str:
    """Return what the file system calls a URI: a local path, bucket and key, or on HDFS the path alone.

    Raises:
        EnvironmentRefused: if it is of a store, and names another object to one library than to the next.
    """
    parts = urlsplit(uri)
    if parts.scheme in {"", "file"}:
        return local_path(uri)
    if wrong := ambiguous(uri):
        raise EnvironmentRefused(
            Problem(
                f"{uri!a} has {wrong}",
                "an object of a store has one name: that would be cut, or left out, where it is read as a URI",
                "give the table another location, or the file another name",
            )
        )
    return parts.path if parts.scheme in NAMED_HOSTS else parts.netloc + parts.path


# --- files ------------------------------------------------------------------------------------------------------------


def opened(path: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system that a file is in, and what it is called there."""
    if is_local(path):
        return pafs.LocalFileSystem(), local_path(path)
    place, parts = place_of(path), urlsplit(path)
    return _file_io(_in_force.get().of(path)).fs_by_scheme(parts.scheme, parts.netloc or None), place


def _file_io(properties: _Properties) -> Any:
    """Return what opens the files of stores by properties: what the catalog's own property `py-io-impl` names."""
    from pyiceberg.io import load_file_io  # noqa: PLC0415 - not for local files

    had = _had.get() or _Had()
    if properties not in had.openers:
        had.openers[properties] = load_file_io(dict(properties))
    return had.openers[properties]


@contextmanager
def opened_input(path: str) -> Iterator[arrow.NativeFile]:
    """Yield a stream of a file's bytes.

    Raises:
        OSError: if it cannot be read; FileNotFoundError if it is not there.
    """
    filesystem, name = opened(path)
    with seen(filesystem, name), filesystem.open_input_file(name) as stream:
        yield stream


@contextmanager
def seen(filesystem: pafs.FileSystem, name: str) -> Iterator[None]:
    """Let that a file of a store is not there be known only where its bucket is seen."""
    try:
        yield
    except FileNotFoundError as error:
        require_seen(filesystem, name, error)
        raise


def require_seen(filesystem: pafs.FileSystem, name: str, error: Exception | None = None) -> None:
    """Require of a file that is not found that its bucket is: of unknown keys, or behind a proxy, nothing is.

    Raises:
        OSError: if nothing is known of the file.
    """
    bucket = name.partition("/")[0] or "/"
    if not isinstance(filesystem, pafs.LocalFileSystem) and not _is_there(filesystem, bucket):
        raise OSError(f"{bucket} cannot be seen with these keys at this address, so whether {name} is there") from error


def _is_there(filesystem: pafs.FileSystem, place: str) -> bool:
    return bool(filesystem.get_file_info(place).type != pafs.FileType.NotFound)


def content(path: str) -> bytes:
    """Return a whole file.

    Raises:
        OSError: if it cannot be read; FileNotFoundError if it is not there.
    """
    if is_local(path):
        return Path(local_path(path)).read_bytes()
    kept = _kept.get()
    if kept is not None and path in kept:
        return kept[path]
    with opened_input(path) as stream:
        raw = bytes(stream.read())
    if (had := _had.get()) is not None:
        had.readings[path] = crc32(raw)
    if kept is not None and sum(map(len, kept.values())) + len(raw) <= _KEPT_BYTES:
        kept[path] = raw
    return raw


def source(path: str) -> str | bytes:
    """Return what Polars scans of a file: its path, and of a store all of its bytes.

    Raises:
        OSError: if a store's cannot be read; FileNotFoundError if it is not there.
    """
    return local_path(path) if is_local(path) else content(path)


def ending(path: str) -> str | bytes:
    """Return what Polars finds a file's columns in: its path, and of a store the bytes of its footer.

    Raises:
        OSError: if a store's cannot be read; FileNotFoundError if it is not there.
        arrow.ArrowInvalid: if what was read of a store is no footer.
    """
    return local_path(path) if is_local(path) else _ending(path)


def _ending(path: str) -> bytes:
    with opened_input(path) as stream:
        raw = read_footer(stream, stream.size())
    if not is_local(path):
        try:
            _footer(raw)
        except arrow.ArrowInvalid:
            if _in_pieces(path, len(raw)) != crc32(raw):
                raise readings_differ(path) from None
            raise
    return raw


def footer(found: str | bytes) -> pq.FileMetaData:
    """Return the footer of a Parquet file, by its name, or of its bytes.

    Raises:
        OSError: if it cannot be read, FileNotFoundError if it is not there.
        arrow.ArrowInvalid: if what was read is no footer.
    """
    return _footer(found if isinstance(found, bytes) else _ending(found))


def _footer(raw: bytes) -> pq.FileMetaData:
    with decoding():
        return pq.read_metadata(BytesIO(raw))


@contextmanager
def decoding() -> Iterator[None]:
    """Say one thing of bytes in memory that nobody can make sense of, whatever Arrow raises of them.

    Raises:
        arrow.ArrowInvalid: if it is anything but a lack of memory.
    """
    try:
        yield
    except MemoryError:
        raise
    except (OSError, arrow.ArrowException, UnicodeDecodeError) as error:
        raise arrow.ArrowInvalid(f"{type(error).__name__}: {error}") from error


def require_alike(path: str) -> None:
    """Read a store's file once more, in pieces, before anything is held against it.

    Raises:
        OSError: if it has other bytes than when it was read whole, or cannot be read.
    """
    had, kept = _had.get(), _kept.get()
    before = None if had is None or is_local(path) else had.readings.get(path)
    if before is not None and _in_pieces(path) != before:
        if kept is not None:
            kept.pop(path, None)
        raise readings_differ(path)


def _in_pieces(path: str, last: int | None = None) -> int:
    """Return the checksum of a file, or of its last bytes, read in some pieces: an answer that is cut is cut elsewhere."""
    found = 0
    with opened_input(path) as stream:
        size = stream.size()
        begins = 0 if last is None else max(0, size - last)
        stream.seek(begins)
        piece = min(_MOST_BYTES, (size - begins) // _PIECES + 1)
        while raw := stream.read(piece):
            found = crc32(raw, found)
    return found


def readings_differ(path: str) -> OSError:
    """Return the error of a store's file that has other bytes each time it is read: an answer was cut on its way."""
    return OSError(f"two readings of {path}, one after the other, have other bytes")


def size_of(path: str) -> int:
    """Return how many bytes a file has.

    Raises:
        OSError: if that cannot be known; FileNotFoundError if it is not there.
    """
    filesystem, name = opened(path)
    info = filesystem.get_file_info(name)
    if not info.is_file:
        require_seen(filesystem, name)
        raise FileNotFoundError(ENOENT, "there is no such file", path)
    return int(info.size)


def remove(path: str) -> None:
    """Delete a file, if it is there."""
    filesystem, name = opened(path)
    if filesystem.get_file_info(name).is_file:
        filesystem.delete_file(name)


@contextmanager
def output(path: str) -> Iterator[Any]:
    """Yield a stream: what is written to it is there as a file once the block has ended well, whole or not at all.

    In a store it appears with its last request, and is in memory until then; on a local disk it is written beside, and gets its name.

    Raises:
        OSError: if it cannot be written, or a store has not as many bytes of it as were sent.
    """
    if not is_local(path):
        buffer = arrow.BufferOutputStream()
        yield buffer
        filesystem, name = opened(path)
        (_kept.get() or {}).pop(path, None)
        content_of = buffer.getvalue()
        with filesystem.open_output_stream(name) as stream:
            stream.write(content_of)
        if (found := size_of(path)) != content_of.size:
            raise OSError(f"{path} has {found} bytes, after {content_of.size} were written")
        return
    place = Path(local_path(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{uuid4().hex}.partial")  # no longer than a name may be, however long the file's is
    try:
        with arrow.OSFile(str(beside), "wb") as stream:
            yield stream
        beside.replace(place)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def require_folder(path: str) -> None:
    """Make the folder of a file that will be written; a store has none."""
    if is_local(path):
        Path(local_path(path)).parent.mkdir(parents=True, exist_ok=True)
