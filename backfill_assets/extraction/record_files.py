"""Records of a log written by a worker to Parquet files of its table.

Put here how such a file is begun, filled and closed, with memory bounded by a row group. What is written is said by who reads it:
`topic_records` from brokers, `archived_records` from an archive. Imported by Spark's Python workers: nothing of PySpark.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self
from uuid import uuid4

import pyarrow as arrow
import pyarrow.parquet as pq

from resources.files import stores

_FILE_BYTES = 512 << 20
"""Bytes of keys, values and headers after which another file is begun."""
_GROUP_BYTES = 32 << 20
"""Bytes after which a row group is written: what a worker holds of a file."""
_REPEATED = ["log_partition", "record_time_type", "load_id", "record_key"]


class RecordFiles:
    """The Parquet files of one range, each under a name never used before; what is not closed is no file of a load."""

    def __init__(self, folder: str, partition: int, kinds: arrow.Schema) -> None:
        self._place, self._kinds = f"{folder}/p{partition:05}", kinds
        self.paths: list[str] = []
        self._open = ExitStack()
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[arrow.Table] = []
        self._of_group = self._of_file = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self._close()
        else:
            self._open.close()

    def write(self, rows: arrow.Table, size: int) -> None:
        """Add rows; they are in a file once a row group is full, or the file is closed."""
        self._waiting.append(rows)
        self._of_group += size
        self._of_file += size
        if self._of_group >= _GROUP_BYTES:
            self._flush()
        if self._of_file >= _FILE_BYTES:
            self._close()

    def _flush(self) -> None:
        if not self._waiting:
            return
        if self._writer is None:
            self._writer = self._begun()
        rows = arrow.concat_tables(self._waiting)
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._waiting, self._of_group = [], 0

    def _begun(self) -> pq.ParquetWriter:
        path = f"{self._place}-{uuid4().hex}.parquet"
        filesystem, name = stores.opened(path)
        stores.require_folder(path)
        stream = self._open.enter_context(filesystem.open_output_stream(name))
        writer = pq.ParquetWriter(
            stream, self._kinds, compression="zstd", use_dictionary=_REPEATED, write_page_index=True
        )
        self._open.callback(writer.close)
        self.paths.append(path)
        return writer

    def _close(self) -> None:
        self._flush()
        self._open.close()
        self._writer, self._of_file = None, 0
