"""Mistakes in the topics that products declare rows to go to: names, columns, limits, and two things of one name.

Put here what can be said of a `ToTopic` without a broker. Whether a run may write to a topic is `resources.sinks.policy`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from backfill_assets.declarations.checking.names import NAME_WORDS, did_you_mean, is_name, no_tuple
from backfill_assets.declarations.checking.table_fields import in_words
from backfill_assets.declarations.product import Product
from backfill_assets.declarations.schema import dtypes
from backfill_assets.declarations.sinks import ToTopic
from backfill_assets.declarations.target import TargetTable
from manifests.errors import Problem
from manifests.planned_topics import TOPIC, metric_name

_LONGEST = 249 - len(".backfill.") - 64
"""Characters of a topic that leaves room for a run's id."""
_AMOUNTS = {
    "partitions": 10_000,
    "messages_per_second": 10_000_000,
    "bytes_per_second": 10_000_000_000,
    "batch": 100_000,
}
"""The most of each."""
_TOPIC_RULE = f"a topic is named by letters and digits of ASCII, '.', '_' and '-', at most {_LONGEST} of them"
_KEPT = frozenset(
    {"transactional_id", "group_id", "enable_idempotence", "acks", "isolation_level", "enable_auto_commit", "log_level"}
)
"""Settings of the client by which each event is written once: they are the platform's."""


def of_topic(adapter: ToTopic, where: str) -> Iterator[Problem]:
    """Say what is wrong with a topic by itself."""
    for field, name in (("topic", adapter.topic), ("backfill_topic", adapter.backfill_topic)):
        if field == "backfill_topic" and name is None:
            continue
        if type(name) is not str or not TOPIC.fullmatch(name) or name in {".", ".."} or len(name) > _LONGEST:
            yield Problem(f"{field} is {in_words(name)}", _TOPIC_RULE, "for example meter.readings", where)
    if adapter.backfill_topic is not None and adapter.backfill_topic == adapter.topic:
        yield Problem(
            f"backfill_topic is {adapter.topic}, the live topic",
            "only LIVE writes to the live topic",
            "name another, or leave it out: each run has a topic of its own then",
            where,
        )
    for field, most in _AMOUNTS.items():
        amount: Any = getattr(adapter, field)
        if type(amount) is not int or not 0 < amount <= most:
            rule = f"it is a whole number, 1 to {most:,}"
            yield Problem(f"{field} is {in_words(amount)}", rule, "correct it, or leave it out", where)
    yield from _of_names(adapter, where)
    named = [("servers", adapter.servers)]
    named += [("security", one) for one in adapter.security] if isinstance(adapter.security, tuple) else []
    for field, name in named:
        if not is_name(name):
            yield Problem(
                f"{field} has what is no name of a setting",
                f"it is the name of a setting, never its value: {NAME_WORDS}",
                "for example sasl_password, whose value stands in BACKFILL_SINKS__<sink>__SASL_PASSWORD, or in backfill.toml",
                where,
            )
        elif name in _KEPT:
            fix = "take it out"
            yield Problem(f"{field} has {name}", "by it each event is written once: it is the platform's", fix, where)


def _of_names(adapter: ToTopic, where: str) -> Iterator[Problem]:
    fields = {"key": adapter.key, "event_id": adapter.event_id, "order": adapter.order, "security": adapter.security}
    if not callable(adapter.value):
        fields["value"] = adapter.value
    for field, names in fields.items():
        if isinstance(names, str):
            yield no_tuple(f"{where}: {field}", f"{field} is", names)
        elif not isinstance(names, tuple) or any(not isinstance(one, str) for one in names):
            yield Problem(f"{field} is {in_words(names)}", "it is a tuple of names", 'for example ("meter",)', where)
        elif len(set(names)) < len(names) or (field == "key" and not names):
            yield Problem(f"{field} is {in_words(names)}", "it names columns, each once", "correct it", where)


def of_all_topic_sinks(declared: Sequence[Product]) -> Iterator[Problem]:
    """Say which topics of products have no table, or columns that it does not have; and which stand for two things."""
    sinks = [(product, sink) for product in declared for sink in product.sinks if isinstance(sink.adapter, ToTopic)]
    targets = {target.name: target for product in declared for target in product.targets}
    read = [topic.topic for product in declared for topic in product.topics]
    lives: dict[str, str] = {}
    for _, sink in sinks:
        if isinstance(sink.adapter, ToTopic) and type(sink.adapter.topic) is str:
            lives.setdefault(sink.adapter.topic, sink.name)
    for product, sink in sinks:
        adapter, where = sink.adapter, f"sink {sink.name}"
        assert isinstance(adapter, ToTopic)
        if any(True for _ in of_topic(adapter, where)):
            continue  # said with the sink itself
        if (live := _same(adapter.backfill_topic, lives)) is not None:
            what = f"backfill_topic is {_taken_for(adapter.backfill_topic, live)}, the live topic of the sink {lives[live]}"
            yield Problem(what, "only LIVE writes to a live topic", "name another", where)
        if (source := _same(adapter.backfill_topic, read)) is not None:
            what = f"backfill_topic is {_taken_for(adapter.backfill_topic, source)}, which records are landed from"
            yield Problem(what, "a run that is not LIVE writes to no topic that is a source", "name another", where)
        target = targets.get(adapter.table)
        if target is None or target not in product.targets:
            what = f"table is {in_words(adapter.table)}{did_you_mean(adapter.table, targets)}"
            rule = f"events are rows of a target of the product; it has {', '.join(one.name for one in product.targets) or 'none'}"
            yield Problem(what, rule, "name one of them", where)
            continue
        yield from _of_columns(adapter, target, where)


def _same(topic: str | None, others: Iterable[str]) -> str | None:
    """Return which of other topics is one of a name, or is to the metrics of a broker."""
    alike = [one for one in others if topic is not None and metric_name(one) == metric_name(topic)]
    return topic if topic in alike else next(iter(alike), None)


def _taken_for(topic: str | None, other: str) -> str:
    return other if topic == other else f"{topic}, and Kafka's metrics do not tell it from {other}"


def _of_columns(adapter: ToTopic, target: TargetTable, where: str) -> Iterator[Problem]:
    try:
        columns: Mapping[str, Any] = dtypes(target.model)
    except Exception:  # noqa: BLE001 - what is wrong with the model is said of the table
        return
    named = {"key": adapter.key, "event_id": adapter.event_id, "order": adapter.order}
    named |= {} if callable(adapter.value) else {"value": adapter.value}
    unknown = [(field, one) for field, names in named.items() for one in names if one not in columns]
    for field, name in unknown:
        what = f"{field} names {name}, and {target.name} has no such column{did_you_mean(name, columns)}"
        yield Problem(what, f"its columns are {', '.join(columns)}", "correct it", where)
    if unknown:
        return
    lacking = [name for name in target.key if adapter.event_id and name not in adapter.event_id]
    if lacking:
        yield Problem(
            f"event_id is {', '.join(adapter.event_id)}, without {', '.join(lacking)} of the key of {target.name}",
            "two rows are two events: what names an event has every column of the table's key",
            "add them, or leave event_id out: it is that key then",
            where,
        )
    yield from _of_event_id(adapter.event_id or target.key, columns, target, where)
    rest = tuple(name for name in target.key if name not in adapter.key)
    if adapter.order and adapter.order != rest[: len(adapter.order)]:
        yield Problem(
            f"order is {', '.join(adapter.order)}, and beside {', '.join(adapter.key)} the key of {target.name} has "
            f"{', '.join(rest) or 'nothing'}",
            "rows of a chunk lie in the order of the table's key: by that events of a message's key are in order, in bounded memory",
            f"put {', '.join(adapter.order)} first in what the table's key has beside {', '.join(adapter.key)}, or leave order out",
            where,
        )


def _of_event_id(
    names: tuple[str, ...], columns: Mapping[str, Any], target: TargetTable, where: str
) -> Iterator[Problem]:
    """Say where two events have one id: that of NULL alone is the text `null`; among several columns JSON tells them apart."""
    if len(names) == 1 and columns.get(names[0]) == pl.String and target.model.to_schema().columns[names[0]].nullable:
        yield Problem(
            f"events are named by {names[0]} alone, and its model allows NULL in it",
            "two rows are two events: NULL alone, and the text null, would be one, and a consumer would do the first of them only",
            f"take nullable=True off {names[0]}, or name a column beside it in event_id",
            where,
        )
