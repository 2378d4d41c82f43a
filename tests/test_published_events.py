"""A run's events are the rows that readers of its table get of it, in the order of the key, whatever its publish mode; without a broker."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner
from event_world import EVENTS, ran, serving, with_history
from small_worlds import copy_of

import backfill_assets as ba
from backfill_assets.cli import evidence
from backfill_assets.installation import Platform
from backfill_assets.publication import published_events
from backfill_assets.publication.modes import change_of
from backfill_assets.publication.published_events import events_of
from backfill_assets.publication.publisher import publish
from benchmarks.small_table import READINGS, closed
from manifests.errors import PublicationRefused
from resources.sinks.topic_events import Message


def events(platform: Platform, action: str = "publish", number: int = 1, **fields: Any) -> list[Message]:
    assert isinstance(EVENTS.adapter, ba.ToTopic)
    record = platform.ledger.run("restate")
    change = change_of(platform, record, platform.ledger.chunks("restate"))
    return list(events_of(change, "reading_events", replace(EVENTS.adapter, **fields), action, number))


MERGE = {"merge": {"entities": ["m1", "m4"]}}


@pytest.mark.parametrize(
    ("mode", "options"),
    [("REPLACE_PARTITIONS", {}), ("MERGE_BY_KEY", MERGE), ("SHADOW_SWAP", {}), ("VERSIONED", {"version": "v2"})],
)
def test_events_are_the_rows_of_the_run_that_readers_get(mode: str, options: dict[str, Any]) -> None:
    with serving():
        platform = copy_of(with_history)
        ran(platform, mode=mode, options=options)
        publish(platform, "restate")
        rows = platform.lakehouse.table(READINGS).scan().to_arrow().to_pylist()
        mine = [(one["meter"], str(one["day"]), one["value"]) for one in rows if one["run_id"] == "restate"]
        assert mine
        found = events(platform)
        said = [tuple(json.loads(one.value)[name] for name in ("meter", "day", "value")) for one in found]
        assert sorted(said) == sorted(mine)
        assert [one.sequence for one in found] == list(range(len(found)))
        for meter in {one[0] for one in said}:
            assert [one[1] for one in said if one[0] == meter] == sorted(one[1] for one in said if one[0] == meter)
        assert events(platform) == found
        closed(platform)


def test_events_say_what_is_declared_and_are_taken_back_by_name() -> None:
    with serving():
        platform = copy_of(with_history)
        ran(platform)
        publish(platform, "restate")
        plain = events(platform)
        shaped = events(
            platform,
            key=("meter", "day"),
            event_id=("day", "meter"),
            value=lambda row: {"m": row["meter"], "twice": 2 * row["value"]},
        )
        assert [json.loads(one.value)["m"] for one in shaped] == [json.loads(one.value)["meter"] for one in plain]
        assert json.loads(shaped[0].key) == [json.loads(plain[0].value)["meter"], json.loads(plain[0].value)["day"]]
        assert len({dict(one.headers)["x-event-id"] for one in shaped}) == len(shaped)
        taken_back = events(platform, "rollback", 2)
        for one, other in zip(plain, taken_back, strict=True):
            event_id = dict(one.headers)["x-event-id"]
            assert other.key == one.key
            assert dict(other.headers)["x-op"] == b"retract"
            assert dict(other.headers)["x-corrects"] == event_id
            assert dict(other.headers)["x-event-id"] == event_id + b"~restate~rollback-2"
            assert json.loads(other.value) == {"retracts": event_id.decode()}
        closed(platform)


def test_verify_says_which_events_were_not_read_and_why() -> None:
    with serving():
        platform = copy_of(with_history)
        ran(platform)
        publish(platform, "restate")

        def shown(*options: str, code: int = 0) -> str:
            with mock.patch.object(evidence, "opened_platform", return_value=nullcontext(platform)):
                result = CliRunner().invoke(evidence.verify, ["restate", *options], terminal_width=300)
            assert result.exit_code == code, result.output
            return " ".join(result.output.split())

        due = "topic readings.backfill.restate, events of the publish: not read: nothing of it is on record yet"
        assert f"{due}; `backfill publish restate` goes on" in shown("--data")
        (run,) = json.loads(shown("--data", "--json"))["runs"]
        assert [(one["reading"], one["events"], one["ranges"]) for one in run["topics"]] == [("NOT_READ", None, None)]
        assert "topic readings" not in shown(), "nothing is on record"
        place = {"topic": "readings.backfill.restate", "cluster_id": "c", "topic_id": "t", "starts": {0: 0}}
        platform.ledger.topics.begin("restate", "reading_events", 1, "publish", **place, actor="ana")
        assert "events of the publish: not read: they are not all written yet" in shown("--data", code=1)
        assert "events of the publish: not read: run it with --data to read them" in shown(code=1), (
            "no record of the run tells of it"
        )
        closed(platform)


def test_no_more_than_a_batch_of_each_file_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_events, "_ROWS", 2)
    with serving():
        platform = copy_of(with_history)
        ran(platform)
        publish(platform, "restate")
        in_twos = events(platform)
        monkeypatch.setattr(published_events, "_ROWS", 4_096)
        assert in_twos == events(platform)
        closed(platform)


def test_rows_that_do_not_lie_in_order_are_no_events() -> None:
    with serving():
        platform = copy_of(with_history)
        ran(platform)
        publish(platform, "restate")
        record, chunks = platform.ledger.run("restate"), platform.ledger.chunks("restate")
        twice = [replace(one, files=(*one.files, *one.files)) for one in chunks]
        assert isinstance(EVENTS.adapter, ba.ToTopic)
        with pytest.raises(PublicationRefused, match="not in the order of meter, day"):
            list(events_of(change_of(platform, record, twice), "reading_events", EVENTS.adapter, "publish", 1))
        closed(platform)
