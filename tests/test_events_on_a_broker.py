"""Rows of a run go to a topic of its own as events: each once and in order, on record, and taken back by more events."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions
from event_world import (
    EVENTS,
    LIVE_TOPIC,
    SETTING,
    ids,
    of_broker,
    own_topic,
    ran,
    read,
    serving,
    with_history,
    with_topic,
)
from real_servers.kafka import Broker
from real_servers.processes import wait_until
from small_worlds import copy_of
from topic_kills import POINTS, SINK, campaign, consumed, differences, ended, started

import backfill_assets as ba
from backfill_assets import decisions
from backfill_assets.audit.verification import verify
from backfill_assets.cli import publication, status
from backfill_assets.declarations import finding
from backfill_assets.execution import execute_publication
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.topic_publishing import publish_events
from backfill_assets.publication.undoing import rollback
from backfill_assets.schedules import live
from backfill_assets.ui.topic_parts import topic_parts
from benchmarks.small_table import (
    PRODUCT,
    READINGS,
    SCOPE,
    WITH_LIVE,
    closed,
    compute_events,
    declared,
    initialise,
    load_events,
    manifest_data,
    opened,
    planned,
    rows_of,
    serves,
    staged,
    take_load_back,
)
from manifests.canonical import plain
from manifests.errors import PublicationRefused, SinkRefused
from manifests.lifecycle import PublicationState
from manifests.reading import manifest_from
from resources.sinks import topics
from resources.sinks.topics import Topic

pytestmark = pytest.mark.servers


@pytest.fixture
def servers(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from of_broker(broker, monkeypatch)


def with_live_history(platform: Platform) -> None:
    initialise(platform)
    take_load_back(platform, "events")
    load_events(platform, "base", "2020-01-02", "2020-02-02")
    history = manifest_data("history", "REPLACE_PARTITIONS", ("2020-01-01", "2020-02-29")) | {"kind": "BOOTSTRAP"}
    planned(platform, manifest_from(history))
    staged(platform, "history")
    publish(platform, "history")


def told_of(platform: Platform) -> list[dict[str, Any]]:
    """What the end of `backfill run` and `backfill status` say with --json of the events of the run."""
    with mock.patch.object(status, "say") as said:
        status.show_run(platform, "restate", as_json=True)
    return plain(said.call_args.args[0])["topics"]  # type: ignore[no-any-return]


def rolled_back(platform: Platform) -> list[dict[str, Any]]:
    """Roll the run back as the command does; return what it says of events with --json."""
    with (
        mock.patch.object(publication, "opened_platform", return_value=nullcontext(platform)),
        mock.patch.object(publication, "say") as said,
    ):
        publication._decided(decisions.rollback, "restate", "rolled back", None, "", "", True)
    return plain(said.call_args.args[0])["topics"]  # type: ignore[no-any-return]


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_run_publishes_its_rows_to_a_topic_of_its_own_and_takes_them_back(servers: str) -> None:
    with serving():
        platform = copy_of(with_history)
        ran(platform)
        assert [one["state"] for one in told_of(platform)] == ["PLANNED"]
        execute_publication(platform, "restate")
        computed = rows_of("2", date.fromisoformat(SCOPE[0]), date.fromisoformat(SCOPE[1]))
        messages = read(servers, own_topic())
        assert ids(messages) == {
            json.dumps([one["meter"], str(one["day"])], separators=(",", ":")): 1 for one in computed
        }
        said = sorted((one["meter"], one["day"], one["value"]) for one in (json.loads(each[3]) for each in messages))
        assert said == sorted((one["meter"], str(one["day"]), one["value"]) for one in computed)
        (entry,) = platform.ledger.topics.of_run("restate")
        assert entry.state is PublicationState.COMMITTED
        assert entry.events == len(computed)
        (said_of_it,) = told_of(platform)
        assert (said_of_it["state"], said_of_it["events"]) == (PublicationState.COMMITTED, len(computed))
        assert sum(one["events"] for one in said_of_it["ranges"]) == len(computed)
        execute_publication(platform, "restate")
        assert read(servers, own_topic()) == messages
        said_of_both = rolled_back(platform)
        assert [(one["action"], one["events"]) for one in said_of_both] == [
            ("publish", len(computed)),
            ("rollback", len(computed)),
        ]
        after = read(servers, own_topic())
        assert [one for one in after if one[4]["x-op"] == "publish"] == messages
        assert {one[4]["x-corrects"] for one in after if one[4]["x-op"] == "retract"} == set(ids(messages))
        assert max(ids(after, "retract").values()) == 1
        decisions.reinstate(platform, "restate")
        again = read(servers, own_topic())
        assert len(again) == 3 * len(messages)
        assert [one.action for one in platform.ledger.topics.of_run("restate")] == ["publish", "rollback", "reinstate"]
        seen = verify(platform, data=True)
        assert seen.everything == []
        partitions = len({one[0] for one in messages})
        told = next(one.topics for one in seen.runs if one.run_id == "restate")
        assert [(one.action, one.reading, one.events, one.ranges, one.differs) for one in told] == [
            (action, "READ", len(computed), partitions, False) for action in ("publish", "rollback", "reinstate")
        ]
        assert told[0].describe() == (
            f"topic {own_topic()}, events of the publish: {len(computed):,} in {partitions} range(s) of offsets were read again, "
            "and are as recorded"
        )
        (unread,) = {one.why for one in verify(platform, ["restate"]).runs[0].topics}
        assert unread == "run it with --data to read them"
        closed(platform)


def test_events_of_a_key_are_in_order_and_say_whose_they_are(servers: str) -> None:
    with serving():
        platform = copy_of(with_history)
        ran(platform)
        execute_publication(platform, "restate")
        plan = platform.ledger.run("restate").plan
        days: dict[bytes, list[str]] = {}
        places: dict[bytes, set[int]] = {}
        for place, _, key, raw, headers in read(servers, own_topic()):
            days.setdefault(key, []).append(json.loads(raw)["day"])
            places.setdefault(key, set()).add(place)
            assert headers.pop("x-content") == hashlib.sha256(raw).hexdigest()[:16]
            assert headers | {"x-event-id": "", "x-sequence": ""} == {
                "x-run-id": "restate",
                "x-processing-mode": "BACKFILL",
                "x-transform-version": "2",
                "x-input-snapshot": str(plan.source_snapshot_id),
                "x-synthetic": "true",
                "x-event-id": "",
                "x-op": "publish",
                "x-publication": "restate/reading_events/1",
                "x-sequence": "",
            }
        assert all(found == sorted(found) for found in days.values())
        assert {len(found) for found in places.values()} == {1}
        closed(platform)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", ["publish", "rollback"])
def test_a_publisher_that_is_killed_goes_on_where_it_was(servers: str, name: str, point: str) -> None:
    with serving(SINK):
        platform = copy_of(with_history)
        home = platform.settings.home
        closed(platform)
        if name == "rollback":
            assert ended(started(home, "restate", "publish", servers)) == 0
        assert ended(started(home, "restate", name, servers, point)) == -signal.SIGKILL
        assert ended(started(home, "restate", name, servers)) == 0
        assert differences(consumed(servers, "restate"), 1 if name == "publish" else 2) == []
        platform = opened(home)
        assert verify(platform, ["restate"], data=True).everything == []
        closed(platform)


def test_a_run_that_is_rolled_back_while_its_events_are_written_takes_back_those_that_were(servers: str) -> None:
    with serving(SINK):
        platform = copy_of(with_history)
        home = platform.settings.home
        closed(platform)
        assert ended(started(home, "restate", "publish", servers, "telling.committed")) == -signal.SIGKILL
        there = read(servers, own_topic())
        assert len(there) == 9
        assert ended(started(home, "restate", "rollback", servers)) == 0
        after = read(servers, own_topic())
        assert len(after) == 18
        assert {one[4]["x-corrects"] for one in after if one[4]["x-op"] == "retract"} == set(ids(there))
        platform = opened(home)
        states = [(one.action, one.state.value, one.events) for one in platform.ledger.topics.of_run("restate")]
        assert states == [("publish", "ABANDONED", 9), ("rollback", "COMMITTED", 9)]
        assert verify(platform, ["restate"], data=True).everything == []
        closed(platform)


def test_a_publisher_that_slept_is_fenced_and_writes_nothing_more(servers: str) -> None:
    with serving(SINK):
        platform = copy_of(with_history)
        home = platform.settings.home
        closed(platform)
        sleeper = started(home, "restate", "publish", servers, "telling.committed:stop")
        wait_until(lambda: is_stopped(sleeper.pid), "the publisher that sleeps")
        assert ended(started(home, "restate", "publish", servers)) == 0
        there = read(servers, own_topic())
        os.kill(sleeper.pid, signal.SIGCONT)
        assert ended(sleeper) == 1
        assert read(servers, own_topic()) == there
        assert differences(consumed(servers, "restate"), 1) == []
        platform = opened(home)
        failed = [one.reason for one in platform.ledger.sink_attempts("restate") if one.decision == "FAILED"]
        assert any("fenced" in one for one in failed), failed
        assert verify(platform, ["restate"], data=True).everything == []
        closed(platform)


def topics_behind(platform: Platform) -> list[str]:
    """The runs that the doctor names for their topics; on a busy machine it names a diff that nobody has kept yet, too."""
    return [one.where for one in examine(platform) if one.kind == "topic-behind"]


def test_a_publisher_that_looked_before_a_rollback_and_slept_writes_nothing_after_it(servers: str) -> None:
    with serving(SINK):
        platform = copy_of(with_history)
        home = platform.settings.home
        closed(platform)
        sleeper = started(home, "restate", "publish", servers, "telling.fenced:stop")
        wait_until(lambda: is_stopped(sleeper.pid), "the publisher that sleeps")
        platform = opened(home)
        assert platform.ledger.topics.of_run("restate") == []
        closed(platform)
        assert ended(started(home, "restate", "rollback", servers)) == 0
        os.kill(sleeper.pid, signal.SIGCONT)
        assert ended(sleeper) == 1
        assert read(servers, own_topic()) == []
        assert ended(started(home, "restate", "rollback", servers)) == 0
        platform = opened(home)
        failed = [one.reason for one in platform.ledger.sink_attempts("restate") if one.decision == "FAILED"]
        assert any("fenced" in one for one in failed), failed
        states = [(one.action, one.state.value, one.events) for one in platform.ledger.topics.of_run("restate")]
        assert states == [("publish", "ABANDONED", 0)]
        fenced = [one.action for one in platform.ledger.sink_attempts("restate") if one.decision == "FENCED"]
        assert fenced == ["rollback"], "a fence that is on record is not made again"
        assert topics_behind(platform) == []
        assert verify(platform, ["restate"], data=True).everything == []
        closed(platform)


def test_a_rollback_whose_fence_failed_is_named_until_it_is_made(servers: str) -> None:
    with serving(SINK):
        platform = copy_of(with_history)
        home = platform.settings.home
        closed(platform)
        sleeper = started(home, "restate", "publish", servers, "telling.fenced:stop")
        wait_until(lambda: is_stopped(sleeper.pid), "the publisher that sleeps")
        assert ended(started(home, "restate", "rollback", "127.0.0.1:1")) == 1
        platform = opened(home)
        assert topics_behind(platform) == ["restate"]
        closed(platform)
        assert ended(started(home, "restate", "rollback", servers)) == 0
        platform = opened(home)
        assert topics_behind(platform) == []
        closed(platform)
        os.kill(sleeper.pid, signal.SIGKILL)
        ended(sleeper)


def test_partitions_that_are_added_amid_a_publication_are_left_alone_by_it_and_by_its_retraction(
    servers: str, broker: Broker
) -> None:
    shared = with_topic(backfill_topic="readings.past", batch=9)
    broker.create("readings.past", 2)
    with serving(shared):
        platform = copy_of(with_history)
        ran(platform)
        publish(platform, "restate")
        with mock.patch.object(Topic, "heard", side_effect=SystemExit), pytest.raises(SystemExit):
            execute_publication(platform, "restate")  # ended before its events were read back
        admin = broker.admin()
        admin.create_partitions([NewPartitions("readings.past", 5)])["readings.past"].result(20)
        wait_until(
            lambda: len(admin.list_topics("readings.past", timeout=10).topics["readings.past"].partitions) == 5,
            "the partitions that were added",
        )
        execute_publication(platform, "restate")
        told = read(servers, "readings.past")
        decisions.rollback(platform, "restate")
        after = read(servers, "readings.past")
        taken = [one for one in after if one[4]["x-op"] == "retract"]
        assert len(taken) == len(told) > 0
        assert {one[0] for one in after} == {0, 1}
        places = {one[4]["x-event-id"]: one[0] for one in told}
        assert {one[4]["x-corrects"]: one[0] for one in taken} == places
        assert [len(one.first_offsets) for one in platform.ledger.topics.of_run("restate")] == [2, 2]
        assert verify(platform, ["restate"], data=True).everything == []
        ran(platform, "again")
        execute_publication(platform, "again")
        (entry,) = platform.ledger.topics.of_run("again")
        assert len(entry.first_offsets) == 5
        closed(platform)


def test_processes_killed_at_any_moment_lose_and_double_nothing(servers: str) -> None:
    kills, seconds = (
        int(os.environ.get("TOPIC_KILLS", "12")),
        float(os.environ.get("TOPIC_SECONDS", "240")),
    )
    with serving(SINK):
        platform = copy_of(with_history)
        home = platform.settings.home
        closed(platform)
        done = campaign(home, servers, kills=kills, seed=int(os.environ.get("TOPIC_SEED", "20")), seconds=seconds)
    print(f"{done.kills} kills, {done.acts} acts, {done.events:,} events at guarded consumers, wrong: {done.wrong}")
    assert done.wrong == []
    assert done.kills > 0


def test_live_writes_to_the_live_topic_and_a_backfill_leaves_it_alone(servers: str, broker: Broker) -> None:
    assert WITH_LIVE.live is not None
    granted = replace(WITH_LIVE.live, sinks=("reading_events",), side_effects_allowed=True)
    target = replace(WITH_LIVE, live=granted)
    product = replace(PRODUCT, targets=(target,), sinks=(EVENTS,))
    with declared(target, compute_events), mock.patch.object(finding, "find_products", serves(product)):
        platform = copy_of(with_live_history)
        broker.create(LIVE_TOPIC, 2)
        load_events(platform, "load", "2020-03-03")
        found = live.tick(platform, platform.products.target(READINGS))
        assert found.record is not None, found.why
        staged(platform, found.record.run_id)
        execute_publication(platform, found.record.run_id)
        messages = read(servers, LIVE_TOPIC)
        assert messages
        assert {(one[4]["x-run-id"], one[4]["x-synthetic"]) for one in messages} == {(found.record.run_id, "false")}
        guard = ba.ConsumerGuard()
        assert {guard.decide(one[4]).verdict for one in messages} == {"PROCESS"}
        asked = [(one.decision, one.mode) for one in platform.ledger.sink_attempts(found.record.run_id)]
        assert asked[1:] == [("ALLOWED", "LIVE"), ("SENT", "LIVE")]

        past = ("2020-02-01", "2020-02-29")
        data = manifest_data("repair", "REPLACE_PARTITIONS", past) | {"safety": {"sinks": ["reading_events"]}}
        planned(platform, manifest_from(data))
        staged(platform, "repair")
        execute_publication(platform, "repair")
        assert read(servers, LIVE_TOPIC) == messages
        own = read(servers, own_topic("repair"))
        assert own
        assert {guard.decide(one[4]).verdict for one in own} == {"REFUSE"}
        closed(platform)


# --- what is on record, and what the topic has ---------------------------------------------------------------------------


def test_verify_names_what_somebody_else_has_written_in_the_runs_name(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving():
        platform = copy_of(with_history)
        ran(platform)
        execute_publication(platform, "restate")
        assert verify(platform, ["restate"], data=True).everything == []
        _, _, key, value, headers = read(servers, own_topic())[-1]
        producer = Producer({"bootstrap.servers": servers})
        producer.produce(own_topic(), value, key=key, partition=1, headers=list(headers.items()))
        producer.flush(10)
        found = [one.where for one in verify(platform, ["restate"], data=True).everything]
        assert f"topic {own_topic()} publish partition 1 hash" in found
        assert all(own_topic() in one for one in found)
        (told,) = verify(platform, ["restate"], data=True).runs[0].topics
        assert (told.reading, told.differs) == ("READ", True)
        assert told.describe().endswith("were read again, and are not what was written")
        monkeypatch.delenv(SETTING)
        (unread,) = verify(platform, ["restate"], data=True).runs
        assert unread.problems == ()
        assert (unread.topics[0].reading, unread.topics[0].events) == ("NOT_READ", told.events - 1)
        assert "setting" in unread.topics[0].why
        assert unread.notes == (unread.topics[0].describe(),)
        monkeypatch.setenv(SETTING, servers)
        (seen,) = verify(platform, ["restate"]).runs  # without the data, nobody is asked
        assert (seen.problems, seen.notes) == ((), ())
        closed(platform)


def test_a_topic_that_was_made_anew_is_another_one(servers: str, broker: Broker) -> None:
    with serving(SINK):
        platform = copy_of(with_history)
        home = platform.settings.home
        closed(platform)
        assert ended(started(home, "restate", "publish", servers, "telling.committed")) == -signal.SIGKILL
        broker.delete(own_topic())
        platform = opened(home)
        with pytest.raises(SinkRefused, match="is not there"):
            execute_publication(platform, "restate")
        broker.create(own_topic(), 3)
        with pytest.raises(PublicationRefused, match="goes on in the topic that it was begun in"):
            execute_publication(platform, "restate")
        assert read(servers, own_topic()) == []
        closed(platform)


def test_a_topic_that_was_made_anew_with_fewer_partitions_takes_no_retractions(servers: str, broker: Broker) -> None:
    with serving(SINK):
        platform = copy_of(with_history)
        home = platform.settings.home
        closed(platform)
        assert ended(started(home, "restate", "publish", servers)) == 0
        broker.delete(own_topic())
        broker.create(own_topic(), 2)
        platform = opened(home)
        rollback(platform, "restate")
        with pytest.raises(PublicationRefused, match="goes on in the topic that it was begun in"):
            publish_events(platform, "restate")
        assert read(servers, own_topic()) == []
        assert [one.action for one in platform.ledger.topics.of_run("restate")] == ["publish"]
        closed(platform)


def found(platform: Platform) -> list[tuple[str, str]]:
    """Return what the doctor finds, and of whom; but for diffs, which a slow machine has not kept yet."""
    return [(one.kind, one.where) for one in examine(platform) if one.kind != "diff-missing"]


def test_a_topic_of_several_runs_is_shared_and_one_that_is_compacted_is_refused(servers: str, broker: Broker) -> None:
    shared = with_topic(backfill_topic="readings.past")
    with serving(shared):
        platform = copy_of(with_history)
        ran(platform)
        with pytest.raises(SinkRefused, match="is not there"):
            execute_publication(platform, "restate")
        assert found(platform) == [("topic-behind", "restate")]
        broker.create("readings.past", 2, {"cleanup.policy": "compact"})
        with pytest.raises(SinkRefused, match=r"has cleanup\.policy=compact"):
            execute_publication(platform, "restate")
        assert platform.ledger.topics.of_run("restate") == []
        broker.delete("readings.past")
        broker.create("readings.past", 2)
        execute_publication(platform, "restate")
        one = len(read(servers, "readings.past"))
        ran(platform, "again")
        execute_publication(platform, "again")
        messages = read(servers, "readings.past")
        assert len(messages) == 2 * one
        assert {each[4]["x-run-id"] for each in messages} == {"restate", "again"}
        assert verify(platform, ["restate", "again"], data=True).everything == []
        assert found(platform) == []
        closed(platform)


def test_an_open_transaction_of_another_keeps_a_publisher_from_guessing(
    servers: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = with_topic(backfill_topic="readings.past")
    broker.create("readings.past", 1)
    other = Producer({"bootstrap.servers": servers, "transactional.id": "another"})
    other.init_transactions(20)
    other.begin_transaction()
    other.produce("readings.past", b"theirs")
    other.flush(20)
    monkeypatch.setattr(topics, "WAIT_SECONDS", 5.0)
    with serving(shared):
        platform = copy_of(with_history)
        ran(platform)
        with pytest.raises(SinkRefused, match="was not read to its end"):
            execute_publication(platform, "restate")
        other.commit_transaction(20)
        execute_publication(platform, "restate")
        (entry,) = platform.ledger.topics.of_run("restate")
        assert entry.events == len(read(servers, "readings.past")) - 1
        closed(platform)


def test_the_runs_page_shows_what_was_written_where(servers: str) -> None:
    with serving():
        platform = copy_of(with_history)
        ran(platform)
        execute_publication(platform, "restate")
        shown = "".join(topic_parts(platform.ledger.topics.of_run("restate")))
        (entry,) = platform.ledger.topics.of_run("restate")
        for part in (own_topic(), entry.cluster_id, entry.topic_id, "written, and read back", f"{entry.events:,}"):
            assert part in shown
        assert all(one.hash[:16] in shown for one in entry.ranges)
        closed(platform)
