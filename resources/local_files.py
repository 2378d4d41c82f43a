"""Files of tables on a local disk, opened only if they are files.

Put here what stands between PyIceberg and the disk. Opening a pipe waits until somebody writes into it: in native code, where
not even Ctrl-C ends it; and a device may have no end. Somebody who can write into the warehouse can put either in the place of
a metadata file or a data file.
"""

from __future__ import annotations

import os
import stat
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO, PyArrowLocalFileSystem


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
