"""What is private of PyArrow and used by this project, behind names of its own; `tests/test_upstream.py` pins it.

Put here what has no public way. No other module names it: an upgrade of PyArrow is judged by this file.
"""

from __future__ import annotations

import pyarrow as arrow
import pyarrow.parquet as pq
from pyarrow import ArrowException
from pyarrow._parquet import _reconstruct_filemetadata

_MAGIC, _LENGTH = b"PAR1", 4


def read_as_kept(footer: bytes) -> pq.FileMetaData | None:
    """Return what the footer of a Parquet file says, read as PyArrow reads one that it has pickled; None where that cannot be had.

    A reader makes an Arrow schema of it besides, which takes longer than to read it. None of bytes that are no footer: a reader says why.
    """
    ends = len(footer) - _LENGTH - len(_MAGIC)
    if ends < 0 or footer[-len(_MAGIC) :] != _MAGIC or int.from_bytes(footer[ends : ends + _LENGTH], "little") != ends:
        return None
    try:
        return _reconstruct_filemetadata(arrow.py_buffer(memoryview(footer)[:ends]))
    except (OSError, ArrowException):
        return None
