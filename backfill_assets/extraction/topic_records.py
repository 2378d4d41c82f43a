"""Records of one range of a topic, read by a worker and written to Parquet files as they came.

Put here what is known of reading a partition: where a range ends, what is no record, and when a broker is given up. Which ranges are read
is said by who asks; what their files are to a table, `ingestion.landing`'s. Imported by Spark's Python workers: nothing of PySpark.

Whoever serves the topic or reads it live goes first: reading is done by threads of a low priority, at the pace that is declared, and no more
is asked of a broker ahead of that than it lets through in a second.

A range ends by position and not by count: records of aborted transactions, the marks of transactions, and records that compaction has
removed leave offsets without a record.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as arrow
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from backfill_assets.declarations.topics import EventTime, KafkaRecord
from backfill_assets.extraction import event_times
from backfill_assets.extraction.brokers import reader_settings, shown
from backfill_assets.extraction.record_files import RecordFiles
from resources import processes
from resources.sinks.leaders import LEADERS_CHANGE
from resources.sinks.message_headers import headers_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BATCH_BYTES = 16 << 20
_MOST_RECORDS, _FIRST_RECORDS = 20_000, 16
"""How many records are taken from librdkafka at once: at most, and before it is known how large they are."""
_WAIT_SECONDS = 0.05
"""How long a batch that is not full is waited for: at the end of a range, where offsets without a record leave it short, in vain."""
_TIME_TYPES = {1: "CREATE_TIME", 2: "LOG_APPEND_TIME"}
_LAST_MILLISECOND = 253_402_300_799_999
"""Of the year 9999."""
_MOST_QUEUED, _MOST_ANSWERED, _MOST_WAITING = 200_000, 16 << 20, 64 << 20
"""Large answers: records and bytes that wait in a worker at most, and bytes of one partition in an answer."""
_LEAST_ANSWERED = 1 << 20
_A_PART = 4
"""Into how many parts what may be read in a second is cut: each is waited for on its own."""
_END, _NOT_THERE = "_PARTITION_EOF", frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})
_IN_PASSING = LEADERS_CHANGE | {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE"}
"""Errors by their names, as librdkafka gives them: the end of a log, offsets that it does not have, and what may be over soon."""


@dataclass(frozen=True)
class RangeTask:
    """A range to read, and where its files go; `chunk` names it among others.

    `most_bytes` is after how many bytes of records it may end before `until`.
    """

    chunk: str
    partition: int
    start: int
    until: int
    folder: str
    load_id: str
    most_bytes: int


@dataclass(frozen=True)
class Pace:
    """How much one worker may read in a second: records, and bytes of their keys, values and headers; 0 for any number."""

    records: float = 0.0
    bytes: float = 0.0

    def fetching(self) -> dict[str, Any]:
        """Return what a consumer asks for ahead: large answers, but no more than about a second's share of what is let through."""
        waiting = _within(_MOST_WAITING, self.bytes, least=_LEAST_ANSWERED)
        answered = min(_MOST_ANSWERED, waiting)
        return {
            "fetch.max.bytes": waiting,
            "max.partition.fetch.bytes": answered,
            "fetch.wait.max.ms": 100,
            "queued.min.messages": _within(_MOST_QUEUED, self.records),
            "queued.max.messages.kbytes": waiting >> 10,
        }


def _within(most: int, rate: float, least: int = 1) -> int:
    """Return a number of no more than a rate lets through; the most of a rate of 0."""
    return most if rate <= 0 else max(least, min(most, int(rate)))


@dataclass(frozen=True)
class RangeRead:
    """What was read of a range: files in order, and up to which offset. Times are microseconds since 1970, None without a record.

    `untimed` is how many records the topic's `event_time` found no instant in.
    """

    chunk: str
    partition: int
    start: int
    until: int
    files: tuple[str, ...]
    rows: int
    bytes: int
    first_time: int | None
    last_time: int | None
    untimed: int = 0


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
    client: Mapping[str, Any],
    topic: str,
    schema: str,
    silence_seconds: float,
    pace: Pace,
    tasks: Iterator[RangeTask],
    *,
    event_time: EventTime | None = None,
) -> Iterator[RangeRead | RangeFailed]:
    """Read ranges of a topic one after the other, each into files of its own, by one consumer.

    Args:
        client: what a client of the topic is configured with.
        topic: the topic.
        schema: the table's columns, Iceberg's JSON.
        silence_seconds: after how long without a word from the brokers a range is given up.
        pace: how fast this worker reads.
        tasks: what to read.
        event_time: reads from a record its instant, where the topic declares that.
    """
    kinds = schema_to_pyarrow(Schema.model_validate_json(schema))
    with ThreadPoolExecutor(1, initializer=processes.give_way) as apart:  # a process could not raise its priority again
        reader = apart.submit(_Reader, client, topic, silence_seconds, pace, event_time).result()
        try:
            for task in tasks:
                yield apart.submit(reader.read, task, kinds).result()
        finally:
            apart.submit(reader.close).result()


class _Reader:
    """A consumer of a topic that reads ranges, one after the other, at a pace that goes on from one to the next."""

    def __init__(
        self,
        client: Mapping[str, Any],
        topic: str,
        silence_seconds: float,
        pace: Pace,
        event_time: EventTime | None = None,
    ) -> None:
        self._client, self._topic, self._silence = client, topic, silence_seconds
        self._event_time = event_time
        self._heard: list[str] = []
        self._paced = _Paced(pace)
        self._consumer = Consumer(reader_settings(client) | pace.fetching() | {"error_cb": self._hear})

    def _hear(self, error: KafkaError) -> None:
        self._heard[:] = [shown(error, self._client)]

    def read(self, task: RangeTask, kinds: arrow.Schema) -> RangeRead | RangeFailed:
        """Read one range into files."""
        records = _Records(
            self._consumer, self._topic, task, self._silence, self._client, self._heard, self._paced.at_once
        )
        try:
            return _read_range(records, task, kinds, self._paced, self._event_time)
        except _NotRead as why:
            what, rule, fix = why.args
            return RangeFailed(task.chunk, what, rule, fix)

    def close(self) -> None:
        """Let go of the brokers."""
        self._consumer.close()


def _read_range(
    records: _Records, task: RangeTask, kinds: arrow.Schema, paced: _Paced, event_time: EventTime | None
) -> RangeRead:
    first: int | None = None
    last: int | None = None
    rows = size = untimed = 0
    with RecordFiles(task.folder, task.partition, kinds) as files:
        for batch in records.batches():
            table, times, own = _columns(batch, task, kinds, records.where(), event_time)
            files.write(table, own)
            rows += table.num_rows
            size += own
            untimed += 0 if event_time is None else table[event_times.COLUMN].null_count
            if times:
                low, high = min(times) * 1000, max(times) * 1000
                first = low if first is None else min(first, low)
                last = high if last is None else max(last, high)
            paced.after(table.num_rows, own)
            if size >= task.most_bytes:
                break
    return RangeRead(
        task.chunk, task.partition, task.start, records.position, tuple(files.paths), rows, size, first, last, untimed
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
        at_once: Pace,
    ) -> None:
        self._consumer, self._topic, self._task, self._heard = consumer, topic, task, heard
        self._silence, self._client = silence_seconds, client
        self._most_records = _within(_MOST_RECORDS, at_once.records)
        self._most_bytes = _within(_BATCH_BYTES, at_once.bytes)
        self.position = task.start
        self._records, self._bytes = min(_FIRST_RECORDS, self._most_records), 0

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
            room = min(self._most_bytes, task.most_bytes - self._bytes)
            self._records = max(1, min(self._most_records, room * len(batch) // (size + 1)))
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
                f"{self.where()}: offset {self.position:,} is not there: the log has offsets from {low:,} until {high:,}",
                "a range is landed whole; " + ("retention has passed over it" if gone else "the log was truncated"),
                "land it from an archive, or begin where the log does and accept the gap (--accept-gap REASON)"
                if gone
                else "find out what has become of the topic; what was landed stays as it is",
            )
        return _NotRead(
            f"{self.where()}: {shown(error, self._client)}",
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
            f"{self.where()}: nothing came for {self._silence:,.0f} s from offset {self.position:,} on{heard}",
            "brokers that say nothing are waited for so long (`limits.silence_seconds` of the topic)",
            "see to the brokers; the same command begins the load anew, and nothing was written to the table",
        )

    def where(self) -> str:
        """Say which range of which topic it is."""
        task = self._task
        brokers = self._client["bootstrap.servers"]
        return f"{self._topic} at {brokers}, partition {task.partition} from {task.start:,} until {task.until:,}"


class _Paced:
    """Lets no more be read in a second than a pace allows; what was not used is not saved up."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._free_from = time.monotonic()
        self.at_once = Pace(pace.records / _A_PART, pace.bytes / _A_PART)

    def after(self, records: int, size: int) -> None:
        """Wait for as long as what was read takes at the pace."""
        shares = ((records, self._pace.records), (size, self._pace.bytes))
        now = time.monotonic()
        self._free_from = max(self._free_from, now - 1 / _A_PART) + max(
            (many / rate for many, rate in shares if rate > 0), default=0.0
        )
        if self._free_from > now:
            time.sleep(self._free_from - now)


def _columns(
    batch: Sequence[Message],
    task: RangeTask,
    kinds: arrow.Schema,
    where: str,
    event_time: EventTime | None = None,
) -> tuple[arrow.Table, list[int], int]:
    """Return records as the rows of a table, the times (ms) that they have, and their bytes.

    Raises:
        _NotRead: if a record cannot be landed as it came.
    """
    count = len(batch)
    stamps = [one.timestamp() for one in batch]
    headers = [headers_of(one) for one in batch]
    if unnamed := [one for one, own in zip(batch, headers, strict=True) if own is None]:
        raise _without_names(unnamed[0], where)
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
    if event_time is not None:
        columns[event_times.COLUMN] = _event_times(event_time, batch, headers, times, where)
    elif event_times.COLUMN in kinds.names:  # records are read again as they came
        columns[event_times.COLUMN] = arrow.nulls(count, kinds.field(event_times.COLUMN).type)
    rows = arrow.table([columns[name] for name in kinds.names], names=kinds.names).cast(kinds)
    size = sum(columns[name].nbytes for name in ("record_key", "record_value", "record_headers"))
    return rows, [at for at in times if at is not None], size


def _event_times(
    read: EventTime,
    batch: Sequence[Message],
    headers: Sequence[Sequence[tuple[str, bytes | None]] | None],
    times: Sequence[int | None],
    where: str,
) -> arrow.Array:
    """Return the instants that records say.

    Raises:
        _NotRead: if the topic's function has no answer to one of them.
    """
    records = (
        (
            int(one.offset() or 0),
            KafkaRecord(
                one.key(), one.value(), tuple(own or ()), None if at is None else _EPOCH + timedelta(milliseconds=at)
            ),
        )
        for one, own, at in zip(batch, headers, times, strict=True)
    )
    try:
        return event_times.event_times(read, records)
    except event_times.NotTimedError as error:
        problem = error.problem
        raise _NotRead(f"{where}: {problem.what}", problem.rule, problem.fix) from error


def _without_names(record: Message, where: str) -> _NotRead:
    """Say that a record has a header whose name is no text."""
    at = record.offset() or 0
    return _NotRead(
        f"{where}: the record at offset {at:,} has a header whose name is no UTF-8",
        "a record is landed as it came, and names of headers are texts: a client that writes others breaks Kafka's protocol",
        f"land what is before it (--until-offsets {record.partition()}:{at}), then what is after it (--from-offsets "
        f"{record.partition()}:{at + 1}, with --accept-gap REASON); find out who writes so",
    )


def _headers(headers: Sequence[Sequence[tuple[str, bytes | None]] | None]) -> arrow.Array:
    """Return the headers of records as lists of names and values."""
    kind = arrow.struct([("name", arrow.string()), ("value", arrow.binary())])
    offsets, names, values, total = [0], [], [], 0
    for own in headers:
        for name, value in own or ():
            names.append(name)
            values.append(value)
        total += len(own or ())
        offsets.append(total)
    entries = arrow.StructArray.from_arrays(
        [arrow.array(names, arrow.string()), arrow.array(values, arrow.binary())], fields=list(kind)
    )
    return arrow.ListArray.from_arrays(arrow.array(offsets, arrow.int32()), entries)
