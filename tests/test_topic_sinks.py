"""What is wrong with the declaration of a topic, or with a manifest that grants one, is said before anything is written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pandera.polars as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from event_world import EVENTS, LIVE_TOPIC, own_topic, ran, serving, with_history, with_topic
from small_worlds import copy_of

import backfill_assets as ba
from backfill_assets import decisions
from backfill_assets.cli.status import show_run
from backfill_assets.declarations import finding
from backfill_assets.declarations.checking.products import problems_of
from backfill_assets.installation import Platform
from backfill_assets.operations.garbage import runs_over
from backfill_assets.publication import topic_publishing
from backfill_assets.publication.modes import stages_of
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.topic_publishing import FENCED, lacking, publish_events
from backfill_assets.publication.undoing import rollback
from benchmarks.small_table import PRODUCT, SCOPE, TARGET, closed, manifest_data, planned, serves
from manifests.errors import PlanRefused, SinkRefused
from manifests.lifecycle import PublicationState, RunState
from manifests.model import Mode, RunManifest
from manifests.planned_topics import PlannedTopic
from manifests.reading import manifest_from
from resources.ledger.cells import IllegibleRow
from resources.ledger.topic_publications import WrittenRange
from resources.settings import load_settings
from resources.sinks import leaders
from resources.sinks.policy import Decision, judge_granted, judge_topic
from resources.sinks.topics import TopicFacts


def said(*sinks: ba.Sink, **fields: Any) -> list[str]:
    product = replace(PRODUCT, sinks=sinks or (with_topic(**fields),))
    return [str(one) for one in problems_of((product,)) if "sink" in str(one)]


def test_a_topic_that_can_be_written_to_is_not_refused() -> None:
    assert said() == []
    assert (
        said(order=("day",), event_id=("day", "meter"), value=("meter", "value"), backfill_topic="readings.past") == []
    )
    assert said(value=lambda row: {"m": row["meter"]}, security=("security_protocol", "sasl_password")) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"topic": "no spaces"}, "a topic is named by"),
        ({"topic": "x" * 180}, "a topic is named by"),
        ({"backfill_topic": LIVE_TOPIC}, "only LIVE writes to the live topic"),
        ({"backfill_topic": ".."}, "backfill_topic is"),
        ({"table": "silver.reading"}, "did you mean"),
        ({"key": ()}, "key is"),
        ({"key": "meter"}, "key is"),
        ({"key": ("metre",)}, "has no such column"),
        ({"key": ("meter", "meter")}, "each once"),
        ({"event_id": ("meter",)}, "without day of the key"),
        ({"order": ("value",)}, "rows of a chunk lie in the order of the table's key"),
        ({"value": ("meter", "valeu")}, "has no such column"),
        ({"partitions": 0}, "partitions is 0"),
        ({"messages_per_second": 0}, "messages_per_second is 0"),
        ({"bytes_per_second": 1.5}, "bytes_per_second is 1.5"),
        ({"batch": True}, "batch is"),
        ({"servers": "broker:9092"}, "never its value"),
        ({"security": ("transactional_id",)}, "it is the platform's"),
    ],
)
def test_what_nobody_could_write_by_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    found = said(**fields)
    assert found
    assert any(words in one for one in found), found


def test_null_and_the_text_null_are_no_one_event() -> None:
    class Perhaps(TARGET.model):  # type: ignore[misc, name-defined]
        """What one meter said, if it was one."""

        meter: str = pa.Field(nullable=True, description="The meter.")

    for key, refused in ((("meter",), 1), (("meter", "day"), 0)):
        product = replace(PRODUCT, targets=(replace(TARGET, model=Perhaps, key=key),), sinks=(EVENTS,))
        found = [one for one in map(str, problems_of((product,))) if "events are named by meter alone" in one]
        assert len(found) == refused, found


def test_a_topic_is_told_of_nothing_and_is_of_one_class() -> None:
    assert any("told_of is" in one for one in said(replace(EVENTS, told_of=("publish",))))
    assert any("sink_class is" in one for one in said(replace(EVENTS, sink_class=ba.SinkClass.CACHE)))


def test_a_backfill_topic_is_no_live_topic_of_another_sink() -> None:
    other = replace(with_topic(backfill_topic=LIVE_TOPIC, topic="others"), name="other_events")
    assert any(
        f"backfill_topic is {LIVE_TOPIC}, the live topic of the sink reading_events" in one
        for one in said(EVENTS, other)
    )


def landed_from(topic: str) -> dict[str, Any]:
    """Return the fields of a product that lands the records of a topic."""
    table = ba.InputTable("bronze.fix_log", "records", ba.TopicRecord, ("team:a",), log=ba.TOPIC_PLACE)
    return {"inputs": (table,), "topics": (ba.Topic("fixlog", "records", ("team:a",), topic, table.name),)}


@pytest.mark.parametrize(
    ("backfill_topic", "words"),
    [
        (
            "past.x",
            "backfill_topic is past.x, and Kafka's metrics do not tell it from past_x, which records are landed from",
        ),
        ("past_x", "backfill_topic is past_x, which records are landed from"),
        ("live.y", "and Kafka's metrics do not tell it from live_y, the live topic of the sink reading_events"),
    ],
)
def test_a_backfill_topic_is_named_like_no_source_and_no_live_topic(backfill_topic: str, words: str) -> None:
    sink = with_topic(topic="live_y", backfill_topic=backfill_topic)
    found = [str(one) for one in problems_of((replace(PRODUCT, sinks=(sink,), **landed_from("past_x")),))]
    assert any(words in one for one in found), found


def test_a_topic_that_is_no_text_hides_nothing_that_is_wrong_with_another_sink() -> None:
    other = replace(with_topic(backfill_topic=LIVE_TOPIC, topic="others"), name="other_events")
    broken = replace(with_topic(topic=None), name="broken")
    assert any("the live topic of the sink reading_events" in one for one in said(broken, EVENTS, other))


# --- the policy -------------------------------------------------------------------------------------------------------


def test_a_topic_of_the_runs_own_is_allowed_and_the_live_one_is_lives() -> None:
    decisions = {mode: judge_granted(EVENTS, mode).decision for mode in Mode}
    assert decisions == {
        Mode.LIVE: Decision.ALLOWED,
        Mode.BACKFILL: Decision.ALLOWED_ISOLATED,
        Mode.REPLAY: Decision.ALLOWED_ISOLATED,
        Mode.DRY_RUN: Decision.REFUSED,
        Mode.RECONCILIATION: Decision.REFUSED,
    }
    assert judge_granted(EVENTS, Mode.LIVE, from_tick=False).decision is Decision.REFUSED
    assert judge_granted(EVENTS, Mode.LIVE, side_effects_allowed=False).decision is Decision.REFUSED
    declared = {EVENTS.name: EVENTS}
    for mode in (Mode.BACKFILL, Mode.REPLAY):
        assert judge_topic(EVENTS, own_topic("one"), mode, "one", declared) is None
        for other in (LIVE_TOPIC, own_topic("two"), "another"):
            answer = judge_topic(EVENTS, other, mode, "one", declared)
            assert answer is not None
            assert answer.decision is Decision.REFUSED
    assert judge_topic(EVENTS, LIVE_TOPIC, Mode.LIVE, "one", declared) is None
    assert judge_topic(EVENTS, own_topic("one"), Mode.LIVE, "one", declared) is not None


# --- manifests --------------------------------------------------------------------------------------------------------


def test_the_plan_names_the_topic_and_has_a_stage_for_it() -> None:
    with serving():
        platform = copy_of(with_history)
        ran(platform)
        plan = platform.ledger.run("restate").plan
        assert plan.topics == (PlannedTopic("reading_events", own_topic()),)
        assert own_topic() in stages_of(platform.products, plan)[-1].describe()
        closed(platform)


def test_a_manifest_whose_run_has_no_topic_is_refused_when_it_is_planned() -> None:
    def refused(run_id: str, mode: str = "REPLACE_PARTITIONS", **fields: Any) -> str:
        data = manifest_data(run_id, mode, SCOPE, **fields) | {"safety": {"sinks": ["reading_events", "other_events"]}}
        with pytest.raises(PlanRefused) as refusal:
            planned(platform, manifest_from(data))
        assert platform.ledger.find(run_id) is None
        return str(refusal.value)

    other = replace(with_topic(topic=own_topic("taken")), name="other_events")
    with serving(EVENTS, other):
        platform = copy_of(with_history)
        assert f"the topic {own_topic('taken')} is the live one of the sink other_events" in refused("taken")
        assert "such a run publishes none there" in refused("corrected", "CORRECTION_EVENTS", corrections="INSTEAD")
        assert "is the live one" not in refused("corrected", "CORRECTION_EVENTS", corrections="INSTEAD")
        closed(platform)


def test_a_run_whose_topic_kafka_takes_for_that_of_another_run_is_refused_by_name() -> None:
    with serving():
        platform = copy_of(with_history)
        ran(platform, "tariffs.2020")
        with pytest.raises(
            PlanRefused, match=r"does not tell the topic readings\.backfill\.tariffs_2020 from"
        ) as refused:
            ran(platform, "tariffs_2020")
        assert "that of the run 'tariffs.2020'" in str(refused.value)
        assert platform.ledger.find("tariffs_2020") is None
        ran(platform, "tariffs.2020")  # planned again, it is not held against itself
        decisions.reject(platform, "tariffs.2020", by="ops", comment="the other name is the one that was meant")
        ran(platform, "tariffs_2020")
        closed(platform)
    other = replace(with_topic(topic="readings.backfill.tariffs.2021"), name="other_events")
    with serving(EVENTS, other):
        platform = copy_of(with_history)
        with pytest.raises(PlanRefused, match=r"from the live topic readings\.backfill\.tariffs\.2021"):
            ran(platform, "tariffs_2021")
        closed(platform)
    other = replace(with_topic(backfill_topic="readings.backfill.tariffs.2021"), name="other_events")
    with serving(EVENTS, other):
        platform = copy_of(with_history)
        for run_id in ("tariffs.2021", "tariffs_2021"):
            with pytest.raises(PlanRefused, match="the backfill topic of the sink other_events"):
                ran(platform, run_id)
        closed(platform)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (own_topic("tariff-fix"), f"records of the topic fixlog are landed from {own_topic('tariff-fix')}"),
        ("readings_backfill_tariff-fix", "from readings_backfill_tariff-fix, which records of the topic fixlog"),
        (LIVE_TOPIC, ""),  # a product may land what its own LIVE has told
    ],
)
def test_a_run_whose_topic_is_a_source_is_refused_by_name(source: str, words: str) -> None:
    product = replace(PRODUCT, targets=(TARGET,), sinks=(EVENTS,), **landed_from(source))
    with serving(), mock.patch.object(finding, "find_products", serves(product)):
        platform = copy_of(with_history)
        if words:
            with pytest.raises(PlanRefused) as refusal:
                ran(platform, "tariff-fix")
            assert words in str(refusal.value)
            assert platform.ledger.find("tariff-fix") is None
        ran(platform, "tariffs")
        closed(platform)


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("starts", '{"0":"many"}'),
        ("starts", "[0]"),
        ("starts", "{}"),
        ("starts", '{"0":5,"2":7}'),
        ("starts", '{"0":-2}'),
        ("starts", '{"0":1.5}'),
        ("written", '[{"partition":0}]'),
        ("written", '["0"]'),
    ],
)
def test_cells_of_a_publication_that_nobody_here_wrote_are_refused_by_name(cell: str, value: str) -> None:
    with serving():
        platform = copy_of(with_history)
        ran(platform)
        begun = platform.ledger.topics.begin(
            "restate", EVENTS.name, 1, "publish", topic="t", cluster_id="c", topic_id="i", starts={0: 0}, actor="ops"
        )
        platform.ledger.topics.close(begun, PublicationState.COMMITTED, [WrittenRange(0, 0, 4, 4, "0" * 64)])
        (entry,) = platform.ledger.topics.of_run("restate")
        assert (entry.first_offsets, entry.ranges) == ({0: 0}, [WrittenRange(0, 0, 4, 4, "0" * 64)])
        forged = replace(entry, **{cell: value})
        with pytest.raises(IllegibleRow, match="the publication of run 'restate' to t has cells that cannot be read"):
            _ = (forged.first_offsets, forged.ranges)
        closed(platform)


def test_the_end_of_a_run_says_which_events_it_has_told_or_is_to_tell(capsys: pytest.CaptureFixture[str]) -> None:
    with serving():
        platform = copy_of(with_history)
        ran(platform)
        show_run(platform, "restate", as_json=False)
        said = " ".join(capsys.readouterr().out.split())
        assert f"events none yet in {own_topic()}: the publish writes them" in said
        publish(platform, "restate")
        show_run(platform, "restate", as_json=False)
        said = " ".join(capsys.readouterr().out.split())
        assert (
            f"events those of the publish are not in {own_topic()} yet: `backfill publish restate` writes them" in said
        )
        closed(platform)


def test_another_table_s_topic_is_refused_when_it_is_planned() -> None:
    elsewhere = replace(TARGET, name="silver.others", transform="others", corrections=None)
    sink = with_topic(table="silver.others")
    with (
        serving(sink),
        mock.patch.object(
            finding, "find_products", serves(replace(PRODUCT, targets=(TARGET, elsewhere), sinks=(sink,)))
        ),
    ):
        platform = copy_of(with_history)
        with pytest.raises(PlanRefused, match=r"whose events are rows of silver\.others"):
            ran(platform)
        assert platform.ledger.find("restate") is None
        closed(platform)


@pytest.mark.parametrize("mode", ["DRY_RUN", "RECONCILIATION"])
def test_a_mode_that_only_looks_gets_no_topic(mode: str) -> None:
    with serving():
        platform = copy_of(with_history)
        data = manifest_data("looks", "REPLACE_PARTITIONS", SCOPE) | {
            "safety": {"sinks": ["reading_events"]},
            "mode": mode,
        }
        data |= {"kind": "RECONCILIATION" if mode == "RECONCILIATION" else "RESTATEMENT"}
        with pytest.raises(SinkRefused, match="writes to no sink"):
            planned(platform, manifest_from(data))
        assert [one.decision for one in platform.ledger.sink_attempts("looks")] == ["REFUSED"]
        closed(platform)


def test_a_topic_is_no_sink_that_records_are_sent_to(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving():
        platform = copy_of(with_history)
        ran(platform)
        manifest = platform.ledger.run("restate").manifest
        with pytest.raises(SinkRefused, match="rows are published to it"):
            platform.sinks.open("reading_events", mode=Mode.BACKFILL, manifest=manifest, action="publish")
        assert not platform.sinks.is_told_of("reading_events", "publish")
        with pytest.raises(SinkRefused, match="lacks its setting bootstrap_servers"):
            platform.sinks.open_topic(
                "reading_events", own_topic(), mode=Mode.BACKFILL, manifest=manifest, action="publish"
            )
        assert load_settings().of_sink("reading_events") == {}
        closed(platform)


def test_without_the_client_the_refusal_names_the_extra() -> None:
    script = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "from resources.sinks.declared import SinkClass, SinkDeclaration, ToTopic\n"
        "from resources.sinks.topics import Topic\n"
        "sink = SinkDeclaration('events', SinkClass.EVENT_TOPIC, 'd', ('team:a',), ToTopic('t', 'a.b', ('k',)))\n"
        "try:\n    Topic(sink, 't', {'bootstrap_servers': 'x'})\n"
        "except Exception as refusal:\n    print(refusal)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'backfill-assets[kafka]'" in done.stdout


# --- collecting garbage -----------------------------------------------------------------------------------------------


def test_a_run_that_was_rolled_back_is_kept_until_its_events_are_taken_back() -> None:
    with serving():
        platform = copy_of(with_history)
        ran(platform)
        publish(platform, "restate")
        topics = platform.ledger.topics

        def told(number: int, action: str) -> None:
            where = {"topic": own_topic(), "cluster_id": "c", "topic_id": "t", "starts": {0: 0}, "actor": "ana"}
            entry = topics.begin("restate", "reading_events", number, action, **where)
            topics.close(entry, PublicationState.COMMITTED, [WrittenRange(0, 0, 9, 9, "0" * 64)])

        def over() -> set[str]:
            """The runs that `backfill gc` would take the files of, ten years from now."""
            return set(runs_over(platform, platform.ledger.runs(), datetime.now(UTC) + timedelta(days=3_650)))

        told(1, "publish")
        rollback(platform, "restate")
        assert platform.ledger.run("restate").state is RunState.ROLLED_BACK
        assert "restate" not in over(), "its retractions are written from its rows"
        told(2, "rollback")
        assert "restate" in over()
        closed(platform)


# --- fences -----------------------------------------------------------------------------------------------------------


class NoEvents:
    """A topic in which nobody's events are: what the publisher asks of one that has opened it."""

    declared = SimpleNamespace(backfill_topic=None)

    def __init__(self) -> None:
        self.fenced: list[str] = []

    @contextmanager
    def opened(self) -> Iterator[None]:
        yield

    def facts(self, *, make: bool = False) -> TopicFacts:
        del make
        return TopicFacts(own_topic(), "c", "t", 1)

    def require_kept(self) -> None:
        """It keeps what is written to it."""

    def fence(self, name: str) -> None:
        self.fenced.append(name)


def published(platform: Platform) -> RunManifest:
    """Publish a run whose rows are events of a topic, and return its manifest; nothing is told."""
    ran(platform)
    publish(platform, "restate")
    return platform.ledger.run("restate").manifest


def test_a_rollback_of_a_publication_that_has_written_no_event_fences_and_owes_nothing_then() -> None:
    with serving():
        platform = copy_of(with_history)
        manifest = published(platform)
        # as a publisher leaves it that was killed before it could write
        platform.sinks.record_outcome(manifest, EVENTS.name, "publish", "ALLOWED_ISOLATED", "")
        where = {"topic": own_topic(), "cluster_id": "c", "topic_id": "t", "starts": {0: 0}, "actor": "ana"}
        platform.ledger.topics.begin("restate", EVENTS.name, 1, "publish", **where)
        rollback(platform, "restate")
        topic = NoEvents()
        with (
            mock.patch.object(type(platform.sinks), "open_topic", return_value=topic),
            mock.patch.object(topic_publishing, "_write", return_value=[]),
        ):
            assert lacking(platform, platform.ledger.run("restate")) != []
            (entry,) = publish_events(platform, "restate")
            assert (entry.state, entry.events) == (PublicationState.ABANDONED, 0)
            assert lacking(platform, platform.ledger.run("restate")) == []
            publish_events(platform, "restate")
        assert len(topic.fenced) == 1
        assert [one.action for one in platform.ledger.sink_attempts("restate") if one.decision == FENCED] == [
            "rollback"
        ]
        closed(platform)


def test_a_topic_that_the_policy_has_refused_to_open_has_nobody_to_fence() -> None:
    with serving():
        platform = copy_of(with_history)
        manifest = published(platform)
        platform.sinks.record_outcome(manifest, EVENTS.name, "publish", Decision.REFUSED, "no such sink is declared")
        rollback(platform, "restate")
        assert lacking(platform, platform.ledger.run("restate")) == []
        platform.sinks.record_outcome(manifest, EVENTS.name, "publish", Decision.ALLOWED_ISOLATED, "")
        assert len(lacking(platform, platform.ledger.run("restate"))) == 1
        closed(platform)


def test_a_partition_that_gets_its_leader_is_asked_again_and_only_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaders, "_AGAIN_SECONDS", 0.0)
    errors = [KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION]

    def ask() -> str:
        if errors:
            raise KafkaException(KafkaError(errors.pop()))
        return "led"

    assert leaders.once_led(ask, 30.0) == "led"
    errors.append(KafkaError.NOT_LEADER_FOR_PARTITION)
    with pytest.raises(KafkaException, match="Not leader"):
        leaders.once_led(ask, -1.0)
    errors.append(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException, match="uthorization"):
        leaders.once_led(ask, 30.0)
    with pytest.raises(TimeoutError):
        leaders.once_led(_never, 30.0)


def _never() -> None:
    raise TimeoutError
