"""How the files of a table are opened: by the code that the catalog names, and on a local disk only if they are files.

Put here what stands between PyIceberg and the disk. Opening a pipe waits until somebody writes into it: in native code, where
not even Ctrl-C ends it; and a device may have no end. Somebody who can write into the warehouse can put either in the place of
a metadata file or a data file; and into a table's metadata, properties by which PyIceberg has other code read its files, or
asks for them elsewhere. How PyIceberg is kept from obeying those is in `pyiceberg_private`; listing and deleting files is
`storage`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSystem
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.io.pyarrow import PyArrowLocalFileSystem

from resources.files.local_files import require_file
from resources.files.stores import StoreAccess
from resources.lakehouse.pyiceberg_private import FileIOWithOwnDisk

_OF_FILE_ACCESS = frozenset({PY_IO_IMPL, "DEFAULT_SCHEME", "DEFAULT_NETLOC"})
_OF_STORES = ("s3.", "gcs.", "adls.", "hdfs.", "hf.", "oss.", "client.")


class _Disk(PyArrowLocalFileSystem):
    def open_input_file(self, path: str) -> pa.NativeFile:
        require_file(path)
        return super().open_input_file(path)

    def open_input_stream(self, path: str, *args: Any, **options: Any) -> pa.NativeFile:
        require_file(path)
        return super().open_input_stream(path, *args, **options)


class TableFileIO(FileIOWithOwnDisk):
    """PyIceberg's own, but that nothing is opened on a local disk that is no file."""

    def local_disk(self) -> FileSystem:
        """Return a local file system that opens nothing but files."""
        return _Disk()


TABLE_FILE_IO = f"{TableFileIO.__module__}.{TableFileIO.__qualname__}"
"""The value of PyIceberg's property `py-io-impl` that has a catalog open files by `TableFileIO`."""


def access_to(properties: Mapping[str, str], single: Mapping[str, Mapping[str, str]] | None = None) -> StoreAccess:
    """Return what opens files as a catalog's properties say, and nothing else of these: of a SQL catalog they have its password.

    `single` are those that a server has given out for the tables in some places.
    """
    return StoreAccess.to(_only(properties), {place: _only(own) for place, own in (single or {}).items()})


def _only(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: str(value) for name, value in properties.items() if says_how_files_are_opened(name)}


def says_how_files_are_opened(name: str) -> bool:
    """Whether a property of that name has PyIceberg open files by other code, elsewhere, or as somebody else."""
    return name in _OF_FILE_ACCESS or name.startswith(_OF_STORES)
