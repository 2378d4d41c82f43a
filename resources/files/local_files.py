"""Files of tables: opened by the code that the catalog names, and on a local disk only if they are files.

Put here what stands between PyIceberg and the disk. Opening a pipe waits until somebody writes into it: in native code, where
not even Ctrl-C ends it; and a device may have no end. Somebody who can write into the warehouse can put either in the place of
a metadata file or a data file; and into a table's metadata, properties by which PyIceberg has other code read its files, or
asks for them elsewhere.
"""

from __future__ import annotations

import os
import stat
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSystem
from pyiceberg.catalog import Catalog
from pyiceberg.io import PY_IO_IMPL, FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO, PyArrowLocalFileSystem
from pyiceberg.table import Table
from pyiceberg.typedef import EMPTY_DICT, Properties

_OF_FILE_ACCESS = frozenset({PY_IO_IMPL, "DEFAULT_SCHEME", "DEFAULT_NETLOC"})
_OF_STORES = ("s3.", "gcs.", "adls.", "hdfs.", "hf.", "oss.", "client.")


class NotAFileError(OSError):
    """Something else than a regular file lies where a table has a file."""


def require_file(path: str) -> None:
    """Refuse to open what is there and is no regular file; links are followed.

    Raises:
        NotAFileError: naming it.
    """
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - a place is text, whatever holds it
    except (OSError, ValueError):
        return  # opening it says why
    if not stat.S_ISREG(mode):
        raise NotAFileError(f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a file")


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class _Disk(PyArrowLocalFileSystem):
    def open_input_file(self, path: str) -> pa.NativeFile:
        require_file(path)
        return super().open_input_file(path)

    def open_input_stream(self, path: str, *args: Any, **options: Any) -> pa.NativeFile:
        require_file(path)
        return super().open_input_stream(path, *args, **options)


class TableFileIO(PyArrowFileIO):
    """PyIceberg's own, but that nothing is opened on a local disk that is no file."""

    def _initialize_local_fs(self) -> FileSystem:
        return _Disk()


NAME = f"{TableFileIO.__module__}.{TableFileIO.__qualname__}"
"""What PyIceberg's property `py-io-impl` calls it."""


def says_how_files_are_opened(name: str) -> bool:
    """Whether a property of that name has PyIceberg open files by other code, elsewhere, or as somebody else."""
    return name in _OF_FILE_ACCESS or name.startswith(_OF_STORES)


def open_as_the_catalog_says(catalog: Catalog) -> Catalog:
    """Have a catalog's own properties, and what its server hands out, say how files are opened, and no table's.

    PyIceberg lets a table's properties go before the catalog's: whoever writes metadata would choose the code that reads it.
    """
    load_file_io = catalog._load_file_io  # noqa: SLF001 - the one place where PyIceberg chooses

    def of_the_catalog(properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:  # noqa: ARG001
        return load_file_io(location=location)

    respond = getattr(catalog, "_response_to_table", None)
    if respond is None:
        catalog._load_file_io = of_the_catalog  # type: ignore[method-assign]  # noqa: SLF001
        return catalog

    def without_properties(identifier: tuple[str, ...], response: Any) -> Table:
        # a REST server's answer has the metadata's properties apart from its own, such as credentials for this table
        bare = response.metadata.model_copy(update={"properties": {}})
        table: Table = respond(identifier, response.model_copy(update={"metadata": bare}))
        table.metadata = response.metadata
        return table

    catalog._response_to_table = without_properties  # type: ignore[attr-defined]  # noqa: SLF001
    return catalog
