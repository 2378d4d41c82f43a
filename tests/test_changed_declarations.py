"""Events are gone on with, and taken back, as they were begun, whatever a sink or a table declares meanwhile; and each topic by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pandera.polars as pa
import polars as pl
import pytest
from event_world import EVENTS, LIVE_TOPIC, ids, of_broker, own_topic, ran, read, serving, with_history, with_topic
from real_servers.kafka import Broker
from small_worlds import copy_of

import backfill_assets as ba
from backfill_assets import decisions
from backfill_assets.installation import Platform
from backfill_assets.publication import topic_publishing
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.topic_publishing import lacking, publish_events
from benchmarks.small_table import TARGET, closed, opened
from manifests.errors import PublicationRefused, SinkRefused
from manifests.lifecycle import PublicationState, RunState

pytestmark = pytest.mark.servers
CHANGED = (
    {"key": ("day",), "event_id": ("day", "meter")},
    {"value": ("meter", "value")},
    {"value": lambda row: {"m": row["meter"]}},
)


class KilledError(BaseException):
    """Stands for a process that ends."""


@pytest.fixture
def servers(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from of_broker(broker, monkeypatch)


@contextmanager
def then(platform: Platform, *sinks: ba.Sink, target: ba.TargetTable = TARGET) -> Iterator[Platform]:
    """Serve what is declared by now, to a process that begins."""
    with serving(*sinks, target=target):
        again = opened(platform.settings.home)
        yield again
        closed(again)


@contextmanager
def killed_at(point: str) -> Iterator[None]:
    def reach(name: str) -> None:
        if name == point:
            raise KilledError

    with mock.patch.object(topic_publishing.faults, "reach", side_effect=reach), pytest.raises(KilledError):
        yield


def published() -> Platform:
    platform = copy_of(with_history)
    ran(platform)
    publish(platform, "restate")
    return platform


def states(platform: Platform, sink: str = EVENTS.name) -> list[tuple[str, str]]:
    return [(one.action, one.state.name) for one in platform.ledger.topics.of_run("restate", sink)]


@pytest.mark.parametrize("changed", CHANGED)
def test_a_rollback_takes_events_back_by_the_declaration_that_they_were_told_by(
    servers: str, changed: dict[str, Any]
) -> None:
    with serving():
        platform = published()
        publish_events(platform, "restate")
        told = read(servers, own_topic())
    with then(platform, with_topic(**changed)) as platform:
        with pytest.raises(PublicationRefused, match="put the declaration of the sink reading_events back as it was"):
            decisions.rollback(platform, "restate")
        assert platform.ledger.run("restate").state is RunState.ROLLED_BACK
        assert read(servers, own_topic()) == told
        assert [action for _, action in lacking(platform, platform.ledger.run("restate"))] == ["rollback"]
    with then(platform) as platform:
        publish_events(platform, "restate")
        after = read(servers, own_topic())
        assert set(ids(after, "retract").values()) == {1}
        assert {(one[0], one[2], one[4]["x-corrects"]) for one in after if one[4]["x-op"] == "retract"} == {
            (one[0], one[2], one[4]["x-event-id"]) for one in told
        }
    with (
        then(platform, with_topic(**changed)) as platform,
        pytest.raises(PublicationRefused, match="would be told in another way"),
    ):
        decisions.reinstate(platform, "restate")
    with then(platform) as platform:
        publish_events(platform, "restate")
        assert states(platform) == [("publish", "COMMITTED"), ("rollback", "COMMITTED"), ("reinstate", "COMMITTED")]


@pytest.mark.parametrize("changed", CHANGED)
def test_a_publication_goes_on_as_it_was_begun_or_not_at_all(servers: str, changed: dict[str, Any]) -> None:
    with serving():
        platform = published()
        with killed_at("telling.committed"):
            publish_events(platform, "restate")
        begun = read(servers, own_topic())
        assert begun
    with then(platform, with_topic(**changed)) as platform, pytest.raises(PublicationRefused, match="there already"):
        publish_events(platform, "restate")
    assert read(servers, own_topic()) == begun
    with then(platform) as platform:
        publish_events(platform, "restate")
        assert states(platform) == [("publish", "COMMITTED")]
        assert set(ids(read(servers, own_topic())).values()) == {1}


def test_a_publication_that_nobody_can_go_on_with_is_undone_and_taken_back(servers: str) -> None:
    with serving():
        platform = published()
        with killed_at("telling.committed"):
            publish_events(platform, "restate")
        begun = read(servers, own_topic())
    with then(platform, with_topic(**CHANGED[1])) as platform:
        with pytest.raises(PublicationRefused, match="would be told in another way"):
            decisions.rollback(platform, "restate")
        assert states(platform) == [("publish", PublicationState.ABANDONED.name)]
    with then(platform) as platform:
        publish_events(platform, "restate")
        after = read(servers, own_topic())
        assert [one for one in after if one[4]["x-op"] == "publish"] == begun
        assert {one[4]["x-corrects"] for one in after if one[4]["x-op"] == "retract"} == set(ids(begun))


class Wider(TARGET.model):  # type: ignore[misc,name-defined]
    """The table, with a column that came after the run."""

    tariff: pl.Float64 = pa.Field(nullable=True)


def test_a_column_that_came_since_changes_nothing_of_what_is_told(servers: str) -> None:
    with serving():
        platform = published()
        with killed_at("telling.committed"):
            publish_events(platform, "restate")
    with then(platform, target=replace(TARGET, model=Wider)) as platform:
        publish_events(platform, "restate")
        told = read(servers, own_topic())
        assert set(ids(told).values()) == {1}
        assert {tuple(sorted(json.loads(one[3]))) for one in told} == {("day", "meter", "value")}
        decisions.rollback(platform, "restate")
        assert set(ids(read(servers, own_topic()), "retract").values()) == {1}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"value": ("meter", "gone")}, "no column gone"),
        ({"key": ("gone",)}, "no column gone"),
        ({"value": lambda row: {1: 2}[row["meter"]]}, "its rows: KeyError"),
    ],
)
def test_what_a_declaration_cannot_make_of_a_row_is_refused_by_name(
    servers: str, fields: dict[str, Any], said: str
) -> None:
    with serving():
        platform = published()
    wrong = with_topic(value=lambda row: row["value"] // 0)
    with then(platform, with_topic(**fields)) as platform, pytest.raises(PublicationRefused, match=said) as refused:
        publish_events(platform, "restate")
    assert "m1" not in str(refused.value), "what an error says may quote a row"
    with then(platform, wrong) as platform, pytest.raises(PublicationRefused, match="ZeroDivisionError"):
        publish_events(platform, "restate")
    with then(platform) as platform:
        assert read(servers, own_topic()) == []
        publish_events(platform, "restate")


def test_a_topic_that_refuses_keeps_no_other_from_its_own(servers: str, broker: Broker) -> None:
    first, second = (
        replace(with_topic(backfill_topic=f"{LIVE_TOPIC}.of.{name}"), name=f"{name}_events") for name in ("one", "two")
    )
    for name in ("one", "two"):
        broker.create(f"{LIVE_TOPIC}.of.{name}", 2)
    with (
        serving(first, second),
        pytest.MonkeyPatch.context() as patch,
    ):
        for sink in (first, second):
            patch.setenv(f"BACKFILL_SINKS__{sink.name.upper()}__BOOTSTRAP_SERVERS", servers)
        platform = copy_of(with_history)
        ran(platform, sinks=(first.name, second.name))
        publish(platform, "restate")
        publish_events(platform, "restate")
        broker.delete(f"{LIVE_TOPIC}.of.one")
        broker.create(f"{LIVE_TOPIC}.of.one", 2)  # made anew
        with pytest.raises((PublicationRefused, SinkRefused), match=f"{LIVE_TOPIC}.of.one"):
            decisions.rollback(platform, "restate")
        assert states(platform, second.name) == [("publish", "COMMITTED"), ("rollback", "COMMITTED")]
        assert states(platform, first.name) == [("publish", "COMMITTED")]
        closed(platform)


def test_a_run_that_a_later_one_has_superseded_tells_no_more(servers: str) -> None:
    with serving():
        platform = published()
        with killed_at("telling.committed"):
            publish_events(platform, "restate")
        begun = read(servers, own_topic())
        ran(platform, "later")
        publish(platform, "later")
        publish_events(platform, "later")
        assert platform.ledger.run("restate").state is RunState.SUPERSEDED
        publish_events(platform, "restate")
        assert read(servers, own_topic()) == begun
        assert lacking(platform, platform.ledger.run("restate")) == []
        decisions.rollback(platform, "later")  # what was superseded is what readers have again
        assert platform.ledger.run("restate").state is RunState.PUBLISHED
        publish_events(platform, "restate")
        assert states(platform) == [("publish", "COMMITTED")]
        closed(platform)


def test_an_entry_that_was_put_there_by_hand_does_not_count_as_told(servers: str) -> None:
    with serving():
        platform = published()
        with platform.ledger.engine.begin() as connection:
            columns = {
                "run_id": "restate", "number": 1, "action": "publish", "sink": EVENTS.name, "state": "COMMITTED",
                "topic": own_topic(), "cluster_id": "c", "topic_id": "t", "starts": '{"0":0}', "events": 9, "written": "[]",
                "actor": "eve", "note": "", "channel": "", "proof": "", "started_at": "2026-01-01", "ended_at": "2026-01-01",
            }  # fmt: skip
            names = ", ".join(columns)
            values = ", ".join(f":{name}" for name in columns)
            connection.exec_driver_sql(f"INSERT INTO topic_publications ({names}) VALUES ({values})", columns)
        with pytest.raises(PublicationRefused, match="were changed by hand"):
            publish_events(platform, "restate")
        closed(platform)
