"""How manifests are written, many entries a block, and how a snapshot's summary counts them: for commits of very many files.

Put here how the entries of a manifest become bytes and counts. PyIceberg writes a block for each entry, compressed by itself, asks an object
for each number in it, and writes out the path of its partition to count it: that is most of the time of such a commit, and the blocks are of
each later reading. What an entry's bytes and a summary say is PyIceberg's, to the last one; tests hold both against each other. Which entries
are written is `pyiceberg_private`'s.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, cast

from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.avro.writer import (
    BinaryWriter,
    IntegerWriter,
    MapWriter,
    OptionWriter,
    StringWriter,
    StructWriter,
    Writer,
)
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestWriterV2
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import SnapshotSummaryCollector

_BLOCK = 64 << 10
"""Bytes after which a block ends, as of Iceberg's own writers: who reads one entry reads its block."""
_MOST_KNOWN = 100_000
Encode = Callable[[Any], bytes]


class _Numbers(dict[int, bytes]):
    """Numbers as Avro has them: each is reckoned out once."""

    def __missing__(self, number: int) -> bytes:
        left, found = (number << 1) ^ (number >> 63), bytearray()
        while left & ~0x7F:
            found.append((left & 0x7F) | 0x80)
            left >>= 7
        found.append(left)
        raw = bytes(found)
        if len(self) < _MOST_KNOWN:
            self[number] = raw
        return raw


_NUMBERS = _Numbers()


def encoder_of(writer: Writer) -> Encode:
    """Return what makes the bytes that a writer of PyIceberg writes of a value."""
    kind = type(writer)
    if kind is IntegerWriter:
        return _NUMBERS.__getitem__
    if kind is BinaryWriter:
        return lambda raw: _NUMBERS[len(raw)] + raw
    if kind is StringWriter:
        return _text
    if isinstance(writer, OptionWriter):
        some = encoder_of(writer.option)
        return lambda value: b"\x00" if value is None else b"\x02" + some(value)
    if isinstance(writer, StructWriter):
        fields = [(place, encoder_of(one)) for place, one in writer.field_writers]
        return lambda record: b"".join([one(None if place is None else record[place]) for place, one in fields])
    if isinstance(writer, MapWriter):
        return _of_map(writer)
    return _by_pyiceberg(writer)


def _text(text: str) -> bytes:
    raw = text.encode()
    return _NUMBERS[len(raw)] + raw


def _of_map(writer: MapWriter) -> Encode:
    key_of, value_of, numbers = encoder_of(writer.key_writer), encoder_of(writer.value_writer), _NUMBERS
    by_number = type(writer.key_writer) is IntegerWriter
    of_numbers, of_bytes = (by_number and type(writer.value_writer) is kind for kind in (IntegerWriter, BinaryWriter))

    def encode(values: dict[Any, Any]) -> bytes:
        if not values:
            return b"\x00"
        if of_numbers:  # counts by column, and bounds: nearly all of an entry
            pairs = [numbers[key] + numbers[one] for key, one in values.items()]
        elif of_bytes:
            pairs = [numbers[key] + numbers[len(one)] + one for key, one in values.items()]
        else:
            pairs = [key_of(key) + value_of(one) for key, one in values.items()]
        return b"".join([numbers[len(values)], *pairs, b"\x00"])

    return encode


def _by_pyiceberg(writer: Writer) -> Encode:
    def encode(value: Any) -> bytes:
        found = io.BytesIO()
        writer.write(BinaryEncoder(found), value)
        return found.getvalue()

    return encode


class _InBlocks:
    """An Avro file of PyIceberg whose records are gathered into blocks."""

    def __init__(self, file: AvroOutputFile[ManifestEntry]) -> None:
        self.output_file = file.output_file
        self._file = file
        self._encode = encoder_of(file.writer)
        self._records: list[bytes] = []
        self._bytes = 0

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._end_block()
        finally:
            self._file.__exit__(kind, error, trace)

    def write_block(self, objects: list[ManifestEntry]) -> None:
        """Take records in, as they are now."""
        for one in objects:
            raw = self._encode(one)
            self._records.append(raw)
            self._bytes += len(raw)
        if self._bytes >= _BLOCK:
            self._end_block()

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._file.tell() + self._bytes

    def _end_block(self) -> None:
        if not self._records:
            return
        content, encoder, codec = b"".join(self._records), self._file.encoder, self._file.compression_codec()
        if codec is not None:
            content, _ = codec.compress(content)
        encoder.write_int(len(self._records))
        encoder.write_bytes(content)
        encoder.write(self._file.sync_bytes)
        self._records, self._bytes = [], 0


class ManifestInBlocks(ManifestWriterV2):
    """PyIceberg's writer of manifests of data files, whose entries are gathered into blocks."""

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        """Return the file that entries are written to."""
        return cast("AvroOutputFile[ManifestEntry]", _InBlocks(super().new_writer()))


class CountedOnce(SnapshotSummaryCollector):
    """PyIceberg's count of what comes and goes, where partitions are only counted: to write out the path of each takes longer than all else."""

    def update_partition_metrics(
        self, partition_spec: PartitionSpec, file: DataFile, is_add_file: bool, schema: Schema
    ) -> None:
        """Count a file to its partition."""
        if self.max_changed_partitions_for_summaries:
            super().update_partition_metrics(partition_spec, file, is_add_file, schema)
            return
        values = file.partition
        named = (f"{field.name}={values[place]}" for place, field in enumerate(partition_spec.fields))
        _ = self.partition_metrics["/".join(named)]
