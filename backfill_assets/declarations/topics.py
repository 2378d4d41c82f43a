"""How a team declares history that comes from a topic of Kafka: `Topic`, the rows that its records become, and who asks for them.

Put here the vocabulary between a product and `extraction`, which knows how a broker is asked. No address and no credential stands in a
declaration: both are settings, and the declaration names them. Nothing here opens a connection. What a record means is the product's
transform's to say. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

import pandera.polars as pa
import polars as pl

from backfill_assets.declarations.arguments import said_at_once
from backfill_assets.declarations.logs import LogPlace
from backfill_assets.declarations.schema import Instant
from manifests.log_ranges import LogKind

TOPIC_PLACE = LogPlace(LogKind.KAFKA, "log_offset", "log_partition")
"""Where the rows of a `TopicRecord` say which place they are from: `log=` of the table that a topic is landed in."""
TIME_TYPES = ("CREATE_TIME", "LOG_APPEND_TIME", "NONE")
"""What the time of a record is: when its producer made it, when the broker took it, or nothing."""


class TopicRecord(pa.DataFrameModel):
    """A record of a topic as it came; the model of the table that a topic is landed in."""

    log_partition: pl.Int32 = pa.Field(ge=0, description="The partition that the record is in.")
    log_offset: pl.Int64 = pa.Field(ge=0, description="Its offset there.")
    record_time: Instant = pa.Field(nullable=True, description="Its timestamp, to the millisecond.")
    record_time_type: str = pa.Field(isin=TIME_TYPES, description="What the timestamp is.")
    record_key: pl.Binary = pa.Field(nullable=True, description="The key's bytes; NULL where it has none.")
    record_value: pl.Binary = pa.Field(nullable=True, description="The value's bytes; NULL of a tombstone.")
    record_headers: pl.List(pl.Struct({"name": pl.String, "value": pl.Binary})) = pa.Field(  # type: ignore[valid-type]
        description="Its headers, in their order, repeated ones too; none of a record without."
    )
    load_id: str = pa.Field(description="The load that has brought it.")


class TimedTopicRecord(TopicRecord):
    """A record of a topic as it came, with the instant that it says itself: the model of a table whose topic has an `event_time`."""

    event_time: Instant = pa.Field(
        nullable=True,
        description="The instant that the topic's `event_time` reads from the record; NULL where it has none.",
    )


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record of a topic, as the function of a topic's `event_time` is given it.

    Attributes:
        key: the key's bytes; None where it has none.
        value: the value's bytes; None of a tombstone.
        headers: its headers, in their order, repeated ones too.
        time: its timestamp, to the millisecond; None where it has none.
    """

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    time: datetime | None


EventTime = Callable[[KafkaRecord], datetime | None]
"""Reads from a record the instant that it is about, with its time zone; None of a record that has none."""


@said_at_once
@dataclass(frozen=True)
class TopicSecurity:
    """How a broker knows who asks. All but `protocol` and `mechanism` are names of settings, never values.

    Attributes:
        protocol: `SASL_SSL`, `SASL_PLAINTEXT` or `SSL`.
        mechanism: `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`; empty where the protocol is `SSL`.
        username: the setting that has the name of who asks; `password` the one with the password. Of no use to `SSL`.
        authority: the setting with the certificates of who vouches for the brokers (PEM); empty where the machine knows them.
        certificate: the setting with the client's own certificate (PEM), and `key` the one with its private key; both, or neither.
    """

    protocol: str
    mechanism: str = ""
    username: str = "username"
    password: str = "password"  # noqa: S105 - the name of a setting
    authority: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def has_password(self) -> bool:
        """Whether who asks is known by a name and a password."""
        return self.protocol.startswith("SASL")

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the settings that it needs."""
        named = (self.username, self.password) if self.has_password else ()
        return (*named, *(one for one in (self.authority, self.certificate, self.key) if one))


@said_at_once
@dataclass(frozen=True)
class TopicLimits:
    """How much of a topic is landed together, and how fast.

    Attributes:
        positions: the most offsets of one load, records or not; a larger range is landed in several loads.
        bytes: the most bytes (keys, values and headers) of one load, about: a load that comes to so many ends there.
        records_per_second: how fast a topic is read, by all workers together; 0 for as fast as the broker gives it.
        bytes_per_second: how many bytes (keys, values and headers) of it are read in a second, by all workers together; 0 likewise.
        readers: how many workers read it at once; 0 for as many as there are.
        silence_seconds: for how long a broker may say nothing before a landing fails.
    """

    positions: int = 10_000_000
    bytes: int = 16 << 30
    records_per_second: int = 0
    bytes_per_second: int = 0
    readers: int = 0
    silence_seconds: int = 60


@said_at_once
@dataclass(frozen=True)
class Topic:
    """A topic whose records are landed in an input table, range by range.

    Attributes:
        name: as commands name it.
        description: what a record is.
        owners: as of a table.
        topic: what the brokers call it.
        table: the input table that its records are landed in: its model is `TopicRecord` (with `event_time`:
            `TimedTopicRecord`) or inherits it, its `log` is `TOPIC_PLACE`.
        bootstrap: the name of the setting that has the addresses of brokers to begin with (`host:port`, with commas between them).
        security: how the broker knows who asks; None where everybody may, unencrypted.
        limits: how much of it is landed together, and how fast.
        event_time: reads from a record the instant that it is about, which is kept in the column `event_time` of its table, whose model
            is `TimedTopicRecord` then; None where days go by the time of the record. A function of a module that workers can import.
    """

    name: str
    description: str
    owners: tuple[str, ...]
    topic: str
    table: str
    bootstrap: str = "bootstrap_servers"
    security: TopicSecurity | None = None
    limits: TopicLimits = field(default_factory=TopicLimits)
    event_time: EventTime | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of every setting that it needs."""
        return tuple(dict.fromkeys((self.bootstrap, *(() if self.security is None else self.security.needs))))


def place_of_topic_setting(topic: str, setting: str) -> str:
    """Say where a setting of a topic is set, either way."""
    return (
        f"BACKFILL_TOPICS__{topic.upper()}__{setting.upper()}, or `{setting}` below [topics.{topic}] in backfill.toml"
    )
