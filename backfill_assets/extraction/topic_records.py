"""Records of one range of a topic, read by a worker and written to Parquet files as they came.

Put here what is known of reading a partition: where a range ends, what is no record, and when a broker is given up. Which ranges are read
is said by who asks; what their files are to a table, `ingestion.landing`'s. Imported by Spark's Python workers: nothing of PySpark.

A range ends by position and not by count: records of aborted transactions, the marks of transactions, and records that compaction has
removed leave offsets without a record.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as arrow
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from backfill_assets.extraction.brokers import reader_settings, shown
from backfill_assets.extraction.record_files import RecordFiles

_BATCH_BYTES = 16 << 20
_MOST_RECORDS, _FIRST_RECORDS = 20_000, 16
"""How many records are taken from librdkafka at once: at most, and before it is known how large they are."""
_WAIT_SECONDS = 0.25
_TIME_TYPES = {1: "CREATE_TIME", 2: "LOG_APPEND_TIME"}
_LAST_MILLISECOND = 253_402_300_799_999
"""Of the year 9999."""
_FAST = {
    "fetch.max.bytes": 64 << 20,
    "max.partition.fetch.bytes": 16 << 20,
    "fetch.wait.max.ms": 100,
    "queued.min.messages": 200_000,
    "queued.max.messages.kbytes": 64 << 10,
}
"""Large answers, and no more than 64 MiB of them waiting in a worker."""
_END, _NOT_THERE = "_PARTITION_EOF", frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})
_IN_PASSING = frozenset(
    {
        "_TRANSPORT",
        "_ALL_BROKERS_DOWN",
        "_TIMED_OUT",
        "_RESOLVE",
        "NOT_LEADER_FOR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "OFFSET_NOT_AVAILABLE",
    }
)
"""Errors by their names, as librdkafka gives them: the end of a log, offsets that it does not have, and what may be over soon."""


@dataclass(frozen=True)
class RangeTask:
    """A range to read, and where its files go; `chunk` names it among others.

    `most_bytes` is after how many bytes of records it may end before `until`; `per_second` how many records may be read in a second, 0
    for any number.
    """

    chunk: str
    partition: int
    start: int
    until: int
    folder: str
    load_id: str
    most_bytes: int
    per_second: float


@dataclass(frozen=True)
class RangeRead:
    """What was read of a range: files in order, and up to which offset. Times are microseconds since 1970, None without a record."""

    chunk: str
    partition: int
    start: int
    until: int
    files: tuple[str, ...]
    rows: int
    bytes: int
    first_time: int | None
    last_time: int | None


@dataclass(frozen=True)
class RangeFailed:
    """Why a range could not be read."""

    chunk: str
    what: str
    rule: str
    fix: str


class _NotRead(Exception):  # noqa: N818 - becomes a `RangeFailed`, which is told where it is refused
    """Why a range is not read: what happened, the rule, and the way out."""


def read_ranges(
    client: Mapping[str, Any], topic: str, schema: str, silence_seconds: float, tasks: Iterator[RangeTask]
) -> Iterator[RangeRead | RangeFailed]:
    """Read ranges of a topic one after the other, each into files of its own, by one consumer.

    Args:
        client: what a client of the topic is configured with.
        topic: the topic.
        schema: the table's columns, Iceberg's JSON.
        silence_seconds: after how long without a word from the brokers a range is given up.
        tasks: what to read.
    """
    kinds = schema_to_pyarrow(Schema.model_validate_json(schema))
    heard: list[str] = []
    consumer = Consumer(
        reader_settings(client)
        | _FAST
        | {"error_cb": lambda error: heard.__setitem__(slice(None), [shown(error, client)])}
    )
    try:
        for task in tasks:
            try:
                yield _read_range(_Records(consumer, topic, task, silence_seconds, client, heard), task, kinds)
            except _NotRead as why:
                what, rule, fix = why.args
                yield RangeFailed(task.chunk, what, rule, fix)
    finally:
        consumer.close()


def _read_range(records: _Records, task: RangeTask, kinds: arrow.Schema) -> RangeRead:
    first: int | None = None
    last: int | None = None
    rows = size = 0
    pace = _Pace(task.per_second)
    with RecordFiles(task.folder, task.partition, kinds) as files:
        for batch in records.batches():
            table, times, own = _columns(batch, task, kinds)
            files.write(table, own)
            rows += table.num_rows
            size += own
            if times:
                low, high = min(times) * 1000, max(times) * 1000
                first = low if first is None else min(first, low)
                last = high if last is None else max(last, high)
            if size >= task.most_bytes:
                break
            pace.after(rows)
    return RangeRead(
        task.chunk, task.partition, task.start, records.position, tuple(files.paths), rows, size, first, last
    )


class _Records:
    """The records of one range, batch by batch; `position` is up to where it is read."""

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        task: RangeTask,
        silence_seconds: float,
        client: Mapping[str, Any],
        heard: list[str],
    ) -> None:
        self._consumer, self._topic, self._task, self._heard = consumer, topic, task, heard
        self._silence, self._client = silence_seconds, client
        self.position = task.start
        self._records, self._bytes = _FIRST_RECORDS, 0

    def batches(self) -> Iterator[list[Message]]:
        """Yield the records in the order of their offsets, none of them empty; bounded in number and about in bytes.

        Raises:
            _NotRead: if the range is not there any more, or nobody says what is in it.
        """
        task = self._task
        if task.start == task.until:
            return
        self._consumer.assign([TopicPartition(self._topic, task.partition, task.start)])
        until_silent = time.monotonic() + self._silence
        self._heard.clear()
        try:
            while self.position < task.until:
                found = self._consumer.consume(
                    min(self._records, task.until - self.position + 1), timeout=_WAIT_SECONDS
                )
                position = self.position
                batch = self._in_range(found)
                if batch or self.position > position:
                    until_silent = time.monotonic() + self._silence
                elif time.monotonic() > until_silent:
                    raise self._silent()
                if batch:
                    yield batch
                    until_silent = (
                        time.monotonic() + self._silence
                    )  # what was done with it is no silence of the broker's
        except KafkaException as error:
            raise self._failed(error.args[0] if error.args else error) from None
        finally:
            self._consumer.unassign()

    def _in_range(self, found: Sequence[Message]) -> list[Message]:
        """Return the records of the range among what was received, and move the position on."""
        task = self._task
        batch: list[Message] = []
        for message in found:
            error = message.error()
            if error is not None:
                self._pass(message, error)
                continue
            offset = message.offset()
            if message.partition() != task.partition or offset < self.position:
                continue  # of the range before, handed over late
            if offset >= task.until:
                self.position = task.until
                break
            batch.append(message)
            self.position = offset + 1
        if batch:
            size = sum(map(len, batch))
            self._bytes += size
            room = min(_BATCH_BYTES, task.most_bytes - self._bytes)
            self._records = max(1, min(_MOST_RECORDS, room * len(batch) // (size + 1)))
        return batch

    def _pass(self, message: Message, error: KafkaError) -> None:
        """Take in what is no record: the end of the log, something in passing, or why the range cannot be read."""
        task = self._task
        name = error.name()
        if name == _END:
            # an end before the range's would be a leader that knows less for a moment: it is waited for
            if message.partition() == task.partition and message.offset() >= task.until:
                self.position = task.until
        elif name not in _IN_PASSING:
            raise self._failed(error)

    def _failed(self, error: Any) -> _NotRead:
        if isinstance(error, KafkaError) and error.name() in _NOT_THERE:
            low, high = self._log_now()
            gone = self.position < low
            return _NotRead(
                f"{self._where()}: offset {self.position:,} is not there: the log has offsets from {low:,} until {high:,}",
                "a range is landed whole; " + ("retention has passed over it" if gone else "the log was truncated"),
                "land it from an archive, or begin where the log does and accept the gap (--accept-gap REASON)"
                if gone
                else "find out what has become of the topic; what was landed stays as it is",
            )
        return _NotRead(
            f"{self._where()}: {shown(error, self._client)}",
            "a range is read by who may read the topic, from brokers that have it",
            "see to the brokers and their permissions; the same command begins the load anew",
        )

    def _log_now(self) -> tuple[int, int]:
        """Return the first offset of the log, and the one after the last; of brokers that do not say, as if it had gone."""
        place = TopicPartition(self._topic, self._task.partition)
        try:
            low, high = self._consumer.get_watermark_offsets(place, timeout=10)
        except KafkaException:
            return self._task.until, self._task.until
        return int(low), int(high)

    def _silent(self) -> _NotRead:
        heard = f"; the last thing heard: {self._heard[-1]}" if self._heard else ""
        return _NotRead(
            f"{self._where()}: nothing came for {self._silence:,.0f} s from offset {self.position:,} on{heard}",
            "brokers that say nothing are waited for so long (`limits.silence_seconds` of the topic)",
            "see to the brokers; the same command begins the load anew, and nothing was written to the table",
        )

    def _where(self) -> str:
        task = self._task
        brokers = self._client["bootstrap.servers"]
        return f"{self._topic} at {brokers}, partition {task.partition} from {task.start:,} until {task.until:,}"


class _Pace:
    """Lets no more records a second be read than are allowed."""

    def __init__(self, per_second: float) -> None:
        self._per_second, self._begun = per_second, time.monotonic()

    def after(self, records: int) -> None:
        """Wait until so many records may have been read since the beginning."""
        if self._per_second > 0:
            time.sleep(max(0.0, self._begun + records / self._per_second - time.monotonic()))


def _columns(batch: Sequence[Message], task: RangeTask, kinds: arrow.Schema) -> tuple[arrow.Table, list[int], int]:
    """Return records as the rows of a table, the times (ms) that they have, and their bytes."""
    count = len(batch)
    stamps = [one.timestamp() for one in batch]
    headers = [one.headers() or () for one in batch]
    # a time that no timestamp has is none: the record is kept, and the plan of a run counts those without
    times = [at if kind in _TIME_TYPES and 0 <= at <= _LAST_MILLISECOND else None for kind, at in stamps]
    columns = {
        "log_partition": arrow.repeat(arrow.scalar(task.partition, arrow.int32()), count),
        "log_offset": arrow.array([one.offset() for one in batch], arrow.int64()),
        "record_time": arrow.array(times, arrow.timestamp("ms", "UTC")),
        "record_time_type": arrow.array([_TIME_TYPES.get(kind, "NONE") for kind, _ in stamps], arrow.string()),
        "record_key": arrow.array([one.key() for one in batch], arrow.binary()),
        "record_value": arrow.array([one.value() for one in batch], arrow.binary()),
        "record_headers": _headers(headers),
        "load_id": arrow.repeat(arrow.scalar(task.load_id, arrow.string()), count),
    }
    rows = arrow.table([columns[name] for name in kinds.names], names=kinds.names).cast(kinds)
    size = sum(columns[name].nbytes for name in ("record_key", "record_value", "record_headers"))
    return rows, [at for at in times if at is not None], size


def _headers(headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> arrow.Array:
    """Return the headers of records as lists of names and values."""
    kind = arrow.struct([("name", arrow.string()), ("value", arrow.binary())])
    offsets, names, values, total = [0], [], [], 0
    for own in headers:
        for name, value in own:
            names.append(name)
            values.append(value)
        total += len(own)
        offsets.append(total)
    entries = arrow.StructArray.from_arrays(
        [arrow.array(names, arrow.string()), arrow.array(values, arrow.binary())], fields=list(kind)
    )
    return arrow.ListArray.from_arrays(arrow.array(offsets, arrow.int32()), entries)
