"""Mistakes in the topics that products declare.

Put here what can be said of a topic without asking its brokers. Whether its settings are set is known where it is landed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from backfill_assets.declarations.checking.columns import ColumnTypes, declared_columns
from backfill_assets.declarations.checking.functions import importable, of_function
from backfill_assets.declarations.checking.names import NAME_WORDS, did_you_mean, is_name
from backfill_assets.declarations.checking.parts import parts_of_kind, wrong_parts
from backfill_assets.declarations.checking.table_fields import in_words
from backfill_assets.declarations.checking.tables import in_problems, of_owners, of_setting_name
from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.topics import (
    TOPIC_PLACE,
    TimedTopicRecord,
    Topic,
    TopicLimits,
    TopicRecord,
    TopicSecurity,
)
from manifests.errors import Problem

_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_PROTOCOLS = ("SASL_SSL", "SASL_PLAINTEXT", "SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MOST = {
    "positions": (1, 1_000_000_000),
    "bytes": (1 << 20, 1 << 44),
    "records_per_second": (0, 1_000_000_000),
    "bytes_per_second": (0, 1 << 44),
    "readers": (0, 10_000),
    "silence_seconds": (1, 86_400),
}


def wrong_topic_fields(product: Product) -> Iterator[Problem]:
    """Yield each field of a product's topics that nobody can use, whatever else is declared."""
    return wrong_parts(product, "topics", Topic, of_topic, "TOPIC")


def usable_topics(product: Product) -> tuple[Topic, ...]:
    """Return those topics of a product of which it is known what they are called and where their records go."""
    return tuple(one for one in parts_of_kind(product, "topics", Topic) if not any(of_topic(one)))


def of_topic(topic: Topic) -> Iterator[Problem]:
    """Say what is wrong with one topic."""
    where = in_problems("topic", topic.name)
    yield from of_setting_name("topic", topic.name, "orders")
    for field, value in (("description", topic.description), ("table", topic.table)):
        shown: Any = value
        if not isinstance(shown, str) or not shown.strip():
            yield Problem(f"{field} is {in_words(shown)}", "it says what it is, or which one", "write it", where)
    yield from of_owners(topic.owners, "a topic", where)
    called: Any = topic.topic
    if type(called) is not str or not _TOPIC.fullmatch(called):
        rule = "a broker's name of a topic has letters, digits, '.', '_' and '-', at most 249 of them"
        yield Problem(f"topic is {in_words(called)}", rule, "write it as the broker has it", where)
    yield from _of_settings(topic, where)
    yield from _of_limits(topic, where)
    if topic.event_time is not None:
        rule = "from a record (`ba.KafkaRecord`) to the instant that it says, with its time zone, or None"
        problems = list(of_function("event_time", topic.event_time, ("record",), rule, where))
        yield from problems or importable(topic.event_time, f"{where}: event_time")


def _of_settings(topic: Topic, where: str) -> Iterator[Problem]:
    security: Any = topic.security
    named: dict[str, Any] = {"bootstrap": topic.bootstrap}
    if isinstance(security, TopicSecurity):
        yield from _of_security(security, where)
        fields = ["authority", "certificate", "key"] + (["username", "password"] if _has_password(security) else [])
        named |= {f"security.{field}": value for field in fields if (value := getattr(security, field)) != ""}
    elif security is not None:
        rule = "it is a `TopicSecurity`"
        yield Problem(f"security is {in_words(security)}", rule, "leave it out where everybody may ask", where)
    for field, setting in named.items():
        if not is_name(setting):
            said = f"a text of {len(setting)} characters" if isinstance(setting, str) else in_words(setting)
            yield Problem(
                f"{field} is {said} that is no name",
                f"it is the name of a setting, never its value: {NAME_WORDS}",
                "name it; its value stands in BACKFILL_TOPICS__<topic>__<name>, or in backfill.toml",
                where,
            )
    twice = [one for one, times in Counter(str(one) for one in named.values()).items() if times > 1]
    if twice:
        yield Problem("two fields name one setting", "each setting has one value", "give each a name of its own", where)


def _has_password(security: TopicSecurity) -> bool:
    protocol: Any = security.protocol
    return isinstance(protocol, str) and security.has_password


def _of_security(security: TopicSecurity, where: str) -> Iterator[Problem]:
    if security.protocol not in _PROTOCOLS:
        rule = f"it is one of {', '.join(_PROTOCOLS)}"
        what = f"security.protocol is {in_words(security.protocol)}"
        yield Problem(what, rule, "leave security out where nothing is encrypted and everybody may ask", where)
    elif _has_password(security) and security.mechanism not in _MECHANISMS:
        rule = f"it is one of {', '.join(_MECHANISMS)}"
        yield Problem(f"security.mechanism is {in_words(security.mechanism)}", rule, "correct it", where)
    elif security.mechanism and not _has_password(security):
        rule = "SSL knows who asks by a certificate"
        yield Problem("security.mechanism beside the protocol SSL", rule, "leave it out, or name SASL_SSL", where)
    if bool(security.certificate) != bool(security.key):
        rule = "a certificate is of use with its private key, and a key with its certificate"
        yield Problem("one of security.certificate and security.key is left out", rule, "name both", where)
    if _has_password(security) and not (security.username and security.password):
        rule = "who asks is known by a name and a password"
        yield Problem("security.username or security.password is empty", rule, "name the settings", where)


def _of_limits(topic: Topic, where: str) -> Iterator[Problem]:
    limits: Any = topic.limits
    if not isinstance(limits, TopicLimits):
        yield Problem(f"limits is {in_words(limits)}", "it is a `TopicLimits`", "leave it out, or correct it", where)
        return
    for field, (least, most) in _MOST.items():
        value: Any = getattr(limits, field)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            rule = f"it is a whole number from {least:,} to {most:,}"
            yield Problem(f"limits.{field} is {in_words(value)}", rule, "correct it", where)


def of_all_topics(
    declared: Sequence[Product], columns: Mapping[str, ColumnTypes | None], others: Iterable[str]
) -> Iterator[Problem]:
    """Say what is wrong with the topics of all products together, and with the tables that they are landed in.

    `others` are names that `backfill land` gives to something else.
    """
    topics = [(product, topic) for product in declared for topic in product.topics]
    taken = set(others)
    for name, times in Counter(topic.name for _, topic in topics).items():
        if times > 1 or name in taken:
            what = (
                f"topic {name} is declared {times} times" if times > 1 else f"topic {name} is called as another log is"
            )
            yield Problem(what, "`backfill land` names one log by a name", "give one of them another name")
    for table, times in Counter(topic.table for _, topic in topics).items():
        if times > 1:
            rule = "the offsets of a table are those of one topic"
            yield Problem(f"{table} is the table of {times} topics", rule, "give each an input table of its own")
    plain_types, _ = declared_columns("", TopicRecord)
    timed_types, _ = declared_columns("", TimedTopicRecord)
    for product, topic in topics:
        where = f"topic {topic.name}"
        own = {table.name: table for table in product.inputs}
        found = own.get(topic.table)
        if found is None:
            yield Problem(
                f"table is {topic.table!r}{did_you_mean(topic.table, list(own))}",
                "it is an input table of the same product",
                "name it, and declare it in `inputs`",
                where,
            )
        else:
            wanted = plain_types if topic.event_time is None else timed_types
            yield from _of_table(topic, found, columns.get(found.name), wanted or {}, where)


def _model_of(topic: Topic, more: Sequence[str]) -> str:
    """Say which model a topic's table has; `more` are the columns of its own that it has."""
    if topic.event_time is not None:
        return "let the model be `ba.TimedTopicRecord`, or inherit it and add rules only; or leave event_time out"
    if [*more] == ["event_time"]:
        return "declare the topic's `event_time`, or let the model be `ba.TopicRecord`"
    return "let the model be `ba.TopicRecord`, or inherit it and add rules only"


def _of_table(
    topic: Topic, table: InputTable, types: ColumnTypes | None, wanted: ColumnTypes, where: str
) -> Iterator[Problem]:
    """Say why records of a topic cannot be landed in a table as it is declared."""
    if table.log is None or replace(table.log, lateness=None, time=None) != TOPIC_PLACE:
        rule = "rows that are records of a topic say their places by log_partition and log_offset"
        yield Problem(
            f"log of {table.name} is {in_words(table.log)}",
            rule,
            "write log=ba.TOPIC_PLACE, or what `dataclasses.replace` makes of it",
            where,
        )
    if table.partition_by is not None:
        rule = "a file has a range of offsets, of whatever times; its bounds of record_time say which"
        yield Problem(f"{table.name} is partitioned by {table.partition_by!r}", rule, "leave partition_by out", where)
    if types is None:
        return
    wrong = [name for name, kind in wanted.items() if types.get(name) != kind]
    more = [name for name in types if name not in wanted]
    if wrong or more:
        said = [
            *(f"{name} is {types.get(name, 'missing')}" for name in wrong),
            *(f"{name} is its own" for name in more),
        ]
        yield Problem(
            f"the columns of {table.name} are not a record's: {', '.join(said)}",
            "records are kept as they came, with the instant that the topic's event_time reads; what else they mean is the transform's to say",
            _model_of(topic, more),
            where,
        )
