"""Data files of any store, opened, read and written in one way: by the driver, and by Spark's Python workers.

Put here how the bytes of a file are had, and how they are written; what they mean is for whoever asks. A file is named by a local
path or by the URI that its table gives it. What opens a store is the catalog's to say: the driver takes it from the lakehouse
(`Tables.access`), workers get it with their work (`resources.spark.workers`), and neither looks for it in its environment.

What is judged is what was read: of a store a file is taken whole, and decoded from memory, so that an error of decoding is never
one of the network. Imported by Spark's Python workers: PyIceberg is imported once a file of a store is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as arrow
import pyarrow.fs as pafs
import pyarrow.parquet as pq

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


def use(access: StoreAccess) -> None:
    """Open the files of stores by an access from now on: a worker, which does one piece of work after the other."""
    _in_force.set(access)


@contextmanager
def opened_by(access: StoreAccess) -> Iterator[None]:
    """Open the files of stores by an access meanwhile, in this thread."""
    before = _in_force.set(access)
    try:
        yield
    finally:
        _in_force.reset(before)


_KEPT_BYTES = 256 << 20
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
    """Return what the file system calls a URI: a local path, bucket and key, or on HDFS the path alone."""
    parts = urlsplit(uri)
    if parts.scheme in {"", "file"}:
        return local_path(uri)
    return parts.path if parts.scheme in NAMED_HOSTS else parts.netloc + parts.path


# --- files ------------------------------------------------------------------------------------------------------------


def opened(path: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system that a file is in, and what it is called there."""
    if is_local(path):
        return pafs.LocalFileSystem(), local_path(path)
    parts = urlsplit(path)
    return _file_io(_in_force.get().of(path)).fs_by_scheme(parts.scheme, parts.netloc or None), place_of(path)


@lru_cache(maxsize=16)
def _file_io(properties: _Properties) -> Any:
    """Return what opens the files of stores by properties: what the catalog's own property `py-io-impl` names."""
    from pyiceberg.io import load_file_io  # noqa: PLC0415 - not for local files

    return load_file_io(dict(properties))


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
    filesystem, name = opened(path)
    with filesystem.open_input_file(name) as stream:
        raw = bytes(stream.read())
    if kept is not None and sum(map(len, kept.values())) + len(raw) <= _KEPT_BYTES:
        kept[path] = raw
    return raw


def source(path: str) -> str | bytes:
    """Return what Polars scans of a file: its path, and of a store all of its bytes.

    Raises:
        OSError: if a store's cannot be read; FileNotFoundError if it is not there.
    """
    return local_path(path) if is_local(path) else content(path)


def footer(found: str | bytes) -> pq.FileMetaData:
    """Return the footer of a Parquet file, by its name, or of its bytes.

    Raises:
        OSError: if it cannot be read, FileNotFoundError if it is not there.
        arrow.ArrowException: if what was read is no footer.
    """
    if isinstance(found, bytes):
        return _footer(BytesIO(found))
    filesystem, name = opened(found)
    with filesystem.open_input_file(name) as stream:
        return pq.read_metadata(stream)


def _footer(raw: BytesIO) -> pq.FileMetaData:
    try:
        return pq.read_metadata(raw)
    except OSError as error:  # Arrow's word for bytes that it cannot make sense of
        raise arrow.ArrowInvalid(str(error)) from error


def size_of(path: str) -> int:
    """Return how many bytes a file has."""
    filesystem, name = opened(path)
    return int(filesystem.get_file_info(name).size)


def remove(path: str) -> None:
    """Delete a file, if it is there."""
    filesystem, name = opened(path)
    if filesystem.get_file_info(name).is_file:
        filesystem.delete_file(name)


@contextmanager
def output(path: str) -> Iterator[Any]:
    """Yield a stream: what is written to it is there as a file once the block has ended well, whole or not at all.

    In a store it is put there by one request, and is in memory until then; on a local disk it is written beside, and gets its name.
    """
    if not is_local(path):
        buffer = arrow.BufferOutputStream()
        yield buffer
        filesystem, name = opened(path)
        (_kept.get() or {}).pop(path, None)
        with filesystem.open_output_stream(name) as stream:
            stream.write(buffer.getvalue())
        return
    place = Path(local_path(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f"{place.name}.{uuid4().hex}.partial")
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
