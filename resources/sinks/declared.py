"""What a sink is, as it is declared: its class, what it is told of, what writes to it, and the settings that needs by name.

Put here what can be said of a sink without opening it, and the sinks that the platform has of its own. Who may use one is
`resources.sinks.policy`'s; what writes to it, `resources.sinks.adapters`'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from manifests.canonical import canonical_json
from manifests.lifecycle import ACCEPT, PUBLISH, REINSTATE, ROLLBACK
from manifests.model import Mode


class SinkClass(StrEnum):
    """What a write to a sink does to the world."""

    ANALYTICAL_TABLE = "ANALYTICAL_TABLE"
    MATERIALISED_VIEW = "MATERIALISED_VIEW"
    EVENT_TOPIC = "EVENT_TOPIC"
    NOTIFICATION = "NOTIFICATION"
    TICKET = "TICKET"
    SEARCH_INDEX = "SEARCH_INDEX"
    FEATURE_STORE = "FEATURE_STORE"
    CACHE = "CACHE"
    EXTERNAL_API = "EXTERNAL_API"


ACTIONS = (PUBLISH, ROLLBACK, REINSTATE, ACCEPT)
"""The actions of a run that a sink can be told of."""
TIME_LIMIT_SECONDS = 60
"""How long a sink may take over one record, if its declaration does not say."""


@dataclass(frozen=True)
class Told:
    """What a sink is told: one action of one run.

    Attributes:
        run_id: the run; `action` what it did, with its number from the second change on, as `publish` or `rollback-2`.
            Together they name the record: what is told again has the same.
        at: when it is told, with its zone.
        details: the snapshots, counts of files, root of the evidence, and the sums that the chunk gates measured; JSON-ready.
        table: the target; `chunks` those of its chunks that the run changes.
        mode: the execution mode.
    """

    run_id: str
    action: str
    at: datetime
    details: Mapping[str, Any]
    table: str = ""
    chunks: tuple[str, ...] = ()
    mode: str = ""


def json_of(told: Told) -> str:
    """Return a record as one line of JSON, the same text for the same record."""
    return canonical_json(
        {
            "runId": told.run_id,
            "action": told.action,
            "at": told.at,
            "details": dict(told.details),
            **({"table": told.table} if told.table else {}),
            **({"chunks": list(told.chunks)} if told.chunks else {}),
            **({"mode": told.mode} if told.mode else {}),
        }
    )


@dataclass(frozen=True)
class ToTable:
    """The adapter of an append-only Iceberg table, which `backfill verify --data` reads: a row a run and action."""

    table: str


@dataclass(frozen=True)
class ToEventLog:
    """The adapter of a topic that is a file of JSON lines in the home folder, `topics/<sink>.jsonl`: a line an event."""


@dataclass(frozen=True)
class ToWebhook:
    """The adapter that posts JSON.

    `url` is the name of the setting that has the address, never the address; `token` that of the one that has what is sent as
    `Authorization: Bearer`, or None.
    """

    url: str = "url"
    token: str | None = None


@dataclass(frozen=True)
class ToCache:
    """The adapter of a key-value cache in the home folder, `caches/<sink>.db`: what was kept of a changed chunk is served no more."""


@dataclass(frozen=True)
class ToTopic:
    """The adapter of a topic of a Kafka broker that a run's published rows go to as events, once its table shows them.

    A run of LIVE writes to `topic`. Every other run writes to a topic of its own, `<topic>.backfill.<run id>`, or to the one that
    `backfill_topic` names, which nobody reads as the live one.

    Attributes:
        topic: the live topic.
        table: the target whose rows are events.
        key: columns of the message's key: one is its text, several are a JSON array. Messages of a key are in one partition.
        event_id: columns that name an event, among them the table's key; none: that key.
        order: columns by which events of a key are in order; none: what is left of the table's key. It begins what is left of it.
        value: columns of the message's value, or a pure function from a row to what its JSON says; none: every column but lineage.
        backfill_topic: the topic of all runs but LIVE's, which somebody has made; None: one of each run's own.
        partitions: of a topic of the run's own.
        messages_per_second: the most that is written in a second, and `bytes_per_second` of keys, values and headers.
        batch: the most events in one transaction.
        servers: the name of the setting with the brokers' addresses, never an address.
        security: names of further settings of the client, as `security_protocol`, which stands for librdkafka's `security.protocol`.
    """

    topic: str
    table: str
    key: tuple[str, ...]
    event_id: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    value: tuple[str, ...] | Callable[[Mapping[str, Any]], Mapping[str, Any]] = ()
    backfill_topic: str | None = None
    partitions: int = 1
    messages_per_second: int = 5_000
    bytes_per_second: int = 10_000_000
    batch: int = 5_000
    servers: str = "bootstrap_servers"
    security: tuple[str, ...] = ()

    def topic_of(self, mode: Mode, run_id: str) -> str:
        """Return the one topic that a run of a mode may write to."""
        return self.topic if mode is Mode.LIVE else self.backfill_topic or f"{self.topic}.backfill.{run_id}"

    @property
    def own_topic(self) -> str:
        """The topic of runs that are not LIVE's, in words."""
        return self.backfill_topic or f"{self.topic}.backfill.<run id>"


ShippedAdapter = ToTable | ToEventLog | ToWebhook | ToCache | ToTopic
CLASSES_OF: dict[type[ShippedAdapter], frozenset[SinkClass]] = {
    ToTable: frozenset({SinkClass.ANALYTICAL_TABLE}),
    ToEventLog: frozenset({SinkClass.EVENT_TOPIC}),
    ToWebhook: frozenset({SinkClass.NOTIFICATION, SinkClass.TICKET, SinkClass.EXTERNAL_API}),
    ToCache: frozenset({SinkClass.CACHE}),
    ToTopic: frozenset({SinkClass.EVENT_TOPIC}),
}
"""What a write by each adapter that ships does to the world: no declaration can call it something else."""
KEEP_RUNS_APART: frozenset[type[ShippedAdapter]] = frozenset({ToTable, ToEventLog, ToCache, ToTopic})
"""The adapters whose records say which run they are of, where they lie."""


@dataclass(frozen=True)
class SinkDeclaration:
    """A sink by name.

    Attributes:
        name: as manifests grant it.
        sink_class: what a write to it does to the world; by it the policy decides which mode may.
        description: what it is, in one sentence.
        owners: users or teams who answer for what receives it.
        adapter: what writes to it: one that ships (`ToTable`, `ToEventLog`, `ToWebhook`, `ToCache`, `ToTopic`), or `module:ATTRIBUTE` of
            the product's own, which is imported only once the policy has allowed the sink.
        isolated: whether what it is given is kept apart by run, so that a run can be told from another; None for what the
            adapter that ships does, and for no of another.
        told_of: the actions that it is told of; none of a `ToTopic`, which gets rows instead.
        settings: names of the settings that an adapter of the product's own needs, never their values.
        time_limit_seconds: how long it may take over one record before that counts as failed.
    """

    name: str
    sink_class: SinkClass
    description: str
    owners: tuple[str, ...]
    adapter: ShippedAdapter | str
    isolated: bool | None = None
    told_of: tuple[str, ...] = ACTIONS
    settings: tuple[str, ...] = ()
    time_limit_seconds: int = TIME_LIMIT_SECONDS

    def __post_init__(self) -> None:
        """Fill in what follows from the adapter."""
        if self.isolated is None:
            object.__setattr__(self, "isolated", type(self.adapter) in KEEP_RUNS_APART)
        if isinstance(self.adapter, ToTopic) and self.told_of == ACTIONS:
            object.__setattr__(self, "told_of", ())

    @property
    def table(self) -> str | None:
        """The table that it appends its records to, if it is one."""
        return self.adapter.table if isinstance(self.adapter, ToTable) else None

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of every setting that it needs."""
        if isinstance(self.adapter, ToTopic):
            return tuple(dict.fromkeys((self.adapter.servers, *self.adapter.security)))
        hook = self.adapter if isinstance(self.adapter, ToWebhook) else None
        own = () if hook is None else (hook.url, *(() if hook.token is None else (hook.token,)))
        return tuple(dict.fromkeys((*own, *self.settings)))


Declared = Mapping[str, SinkDeclaration]
"""The sinks that an installation has, by name: the platform's, and those of the products that it serves."""
PLATFORM_SINKS: Declared = {
    sink.name: sink
    for sink in (
        SinkDeclaration(
            "run_audit",
            SinkClass.ANALYTICAL_TABLE,
            "append-only audit table, a row an action",
            ("team:platform",),
            ToTable("audit.run_audit"),
        ),
    )
}
"""The sinks that every installation has."""


def tables_of(declared: Iterable[SinkDeclaration]) -> dict[str, str]:
    """Return the tables of those sinks that are one, by the sink's name."""
    return {sink.name: sink.table for sink in declared if sink.table is not None}


def place_of_setting(sink: str, setting: str) -> str:
    """Say where a setting of a sink is set, either way."""
    return f"BACKFILL_SINKS__{sink.upper()}__{setting.upper()}, or `{setting}` below [sinks.{sink}] in backfill.toml"
