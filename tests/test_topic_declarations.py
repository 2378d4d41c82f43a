"""Topics that cannot be used, and landings that cannot be asked for: refused at once, all of it, before a broker is asked."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pandera.polars as pandera
import polars as pl
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, TopicPartition
from topic_world import PRODUCT, TABLE, TOPIC

import backfill_assets as ba
from backfill_assets.cli import logs
from backfill_assets.cli.command import cli
from backfill_assets.declarations import finding
from backfill_assets.declarations.finding import check_products
from backfill_assets.defs.launch import initialise_instance
from backfill_assets.extraction import brokers
from backfill_assets.extraction.brokers import Brokers, client_settings, shown
from backfill_assets.extraction.refusals import ExtractionRefused
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.products.accounts import PRODUCT as ACCOUNTS
from benchmarks.small_table import serves
from manifests.errors import DeclarationRefused, EnvironmentRefused, Refused
from resources.settings import load_settings

SECRET = "p4ss-9f8a7b6c"
SECURE = ba.TopicSecurity("SASL_SSL", "SCRAM-SHA-512")


class Odd(ba.TopicRecord):
    """A record with a column that no broker has."""

    order_id: str = pandera.Field()


class Ruled(ba.TopicRecord):
    """A record with a rule of its own."""

    @ba.row_rule("a record has a key")
    def _keyed(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select(pl.col("record_key").is_not_null())


def with_topic(own: ba.InputTable = TABLE, /, **changes: Any) -> ba.Product:
    return replace(PRODUCT, inputs=(own,), topics=(replace(TOPIC, **changes),))


def refused(product: ba.Product) -> str:
    with pytest.raises(DeclarationRefused) as found:
        check_products([product])
    return str(found.value)


def test_the_product_of_these_tests_can_be_used() -> None:
    assert check_products([PRODUCT]).topic("orders") is TOPIC
    assert check_products([with_topic(replace(TABLE, model=Ruled), security=SECURE)]).topic("orders").needs == (
        "bootstrap_servers",
        "username",
        "password",
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "The Orders"}, "name is 'The Orders'"),
        ({"name": None}, "a topic: name is None"),
        ({"description": " "}, "description is ' '"),
        ({"owners": "team:shop"}, "owners='team:shop'"),
        ({"owners": ("the shop",)}, "owners="),
        ({"topic": "or ders"}, "topic is 'or ders'"),
        ({"topic": ".."}, "topic is '..'"),
        ({"topic": 7}, "topic is 7"),
        ({"table": "bronze.orders_lg"}, "table is 'bronze.orders_lg'; did you mean 'bronze.orders_log'?"),
        ({"bootstrap": "broker-1:9092"}, "bootstrap is a text of 13 characters that is no name"),
        ({"security": "SASL_SSL"}, "security is 'SASL_SSL'"),
        ({"security": ba.TopicSecurity("PLAINTEXT")}, "security.protocol is 'PLAINTEXT'"),
        ({"security": ba.TopicSecurity("SASL_SSL", "GSSAPI")}, "security.mechanism is 'GSSAPI'"),
        ({"security": ba.TopicSecurity("SSL", "PLAIN")}, "security.mechanism beside the protocol SSL"),
        ({"security": replace(SECURE, password=SECRET)}, "security.password is a text of 13 characters that is no name"),
        ({"security": replace(SECURE, password="username")}, "two fields name one setting"),
        ({"security": replace(SECURE, username="")}, "security.username or security.password is empty"),
        ({"security": ba.TopicSecurity("SSL", certificate="certificate")}, "one of security.certificate and security.key"),
        ({"limits": 5}, "limits is 5"),
        ({"limits": ba.TopicLimits(positions=0)}, "limits.positions is 0"),
        ({"limits": ba.TopicLimits(bytes=True)}, "limits.bytes is True"),
        ({"limits": ba.TopicLimits(records_per_second=-1)}, "limits.records_per_second is -1"),
        ({"limits": ba.TopicLimits(bytes_per_second=-1)}, "limits.bytes_per_second is -1"),
        ({"limits": ba.TopicLimits(readers=-1)}, "limits.readers is -1"),
        ({"limits": ba.TopicLimits(silence_seconds=0)}, "limits.silence_seconds is 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_by_name(changes: dict[str, Any], said: str) -> None:
    text = refused(with_topic(**changes))
    assert said in text
    assert SECRET not in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"log": None}, "log of bronze.orders_log is None"),
        ({"model": Odd}, "the columns of bronze.orders_log are not a record's: order_id is its own"),
        ({"partition_by": "record_time"}, "bronze.orders_log is partitioned by 'record_time'"),
    ],
)
def test_a_table_that_no_topic_can_be_landed_in_is_refused(changes: dict[str, Any], said: str) -> None:
    assert said in refused(with_topic(replace(TABLE, **changes)))


def test_two_topics_have_neither_a_name_nor_a_table_in_common() -> None:
    text = refused(replace(PRODUCT, topics=(TOPIC, replace(TOPIC, topic="other"))))
    assert "topic orders is declared 2 times" in text
    assert "bronze.orders_log is the table of 2 topics" in text


def test_every_mistake_is_said_at_once() -> None:
    text = refused(with_topic(topic="", limits=ba.TopicLimits(positions=0), security=ba.TopicSecurity("SSL", "PLAIN")))
    assert "for 3 reasons" in text


def test_settings_that_are_missing_or_no_addresses_are_named_without_values() -> None:
    topic = replace(TOPIC, security=SECURE)
    with pytest.raises(EnvironmentRefused) as found:
        Brokers(topic, {"bootstrap_servers": f"user:{SECRET}@broker", "username": "u"})
    text = str(found.value)
    assert "the setting password of the topic orders is not set" in text
    assert "BACKFILL_TOPICS__ORDERS__PASSWORD, or `password` below [topics.orders] in backfill.toml" in text
    assert "the setting bootstrap_servers of the topic orders is no list of addresses" in text
    assert SECRET not in text


def test_a_certificate_that_is_none_is_refused_before_anybody_is_asked() -> None:
    topic = replace(TOPIC, security=ba.TopicSecurity("SSL", authority="authority"))
    with pytest.raises(EnvironmentRefused, match="no client of the topic orders can be made"):
        Brokers(topic, {"bootstrap_servers": "127.0.0.1:1", "authority": "no certificate"})


class _Electing(Consumer):
    """A consumer whose brokers answer with an error a few times, and then with what they know."""

    errors: ClassVar[list[int]] = []

    def offsets_for_times(self, wanted: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        del timeout
        if not self.errors:
            return wanted
        return [SimpleNamespace(partition=0, offset=-1, error=KafkaError(self.errors.pop()))]  # type: ignore[list-item]


def test_brokers_that_choose_a_leader_are_asked_again_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "Consumer", _Electing)
    passing = [KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.FENCED_LEADER_EPOCH]
    instant = datetime(2026, 3, 5, tzinfo=UTC)
    with Brokers(TOPIC, {TOPIC.bootstrap: "127.0.0.1:1"}) as asked:
        monkeypatch.setattr(_Electing, "errors", passing)
        assert asked.first_since(instant, [0]) == {0: int(instant.timestamp() * 1000)}
        monkeypatch.setattr(_Electing, "errors", [KafkaError.TOPIC_AUTHORIZATION_FAILED])
        with pytest.raises(ExtractionRefused, match="uthorization failed"):
            asked.first_since(instant, [0])


def test_a_topic_that_is_not_there_is_told_from_brokers_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "Consumer", _Electing)
    with Brokers(TOPIC, {TOPIC.bootstrap: "127.0.0.1:1"}) as asked:
        monkeypatch.setattr(_Electing, "errors", [KafkaError.UNKNOWN_TOPIC_OR_PART])
        with pytest.raises(ExtractionRefused, match="has no topic orders") as found:
            asked.first_since(datetime(2026, 3, 5, tzinfo=UTC), [0])
    assert "correct `topic` in the declaration, or the addresses (BACKFILL_TOPICS__ORDERS__" in str(found.value)


def test_brokers_that_do_not_answer_are_named_with_how_long_that_was_and_why() -> None:
    topic = replace(TOPIC, limits=ba.TopicLimits(silence_seconds=1))
    with Brokers(topic, {TOPIC.bootstrap: "127.0.0.1:1"}) as asked, pytest.raises(ExtractionRefused) as found:
        asked.state()
    assert "127.0.0.1:1 does not say which cluster it is: no answer in 1 s; the last thing heard: KafkaError{" in str(
        found.value
    )


def test_a_password_is_not_in_what_is_said_of_an_error() -> None:
    client = client_settings(
        replace(TOPIC, security=SECURE), {"bootstrap_servers": "b:1", "username": "u", "password": SECRET}
    )
    assert client["sasl.password"] == SECRET
    assert shown(f"refused\n{SECRET}", client) == "refused ***"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(finding, "find_products", serves(PRODUCT))
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path / "home"))
    settings = load_settings()
    initialise(Platform.of(settings, [PRODUCT]))
    initialise_instance(settings)
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "it is not said what is to be landed"),
        (["--new", "--from-time", "2026-01-01"], "what is to be landed is said in several ways"),
        (["--new", "--archive", "here"], "what is to be landed is said in several ways"),
        (["--from-offsets", "0-5"], "--from-offsets is '0-5'"),
        (["--from-offsets", "0:5,0:6"], "--from-offsets is '0:5,0:6'"),
        (["--until-offsets", f"0:{1 << 63}"], "--until-offsets is"),
        (["--from-time", "soon"], "--from-time is 'soon'"),
        (["--new", "--prove-overlap"], "--prove-overlap with --new or --archive"),
        (["--new", "--by", "ana"], "--by without --accept-gap"),
        ([str(Path(__file__).parent), "--by", "ana"], "--by without --accept-gap"),
        (["--new", "--accept-gap", " "], "--accept-gap without a reason"),
        (["--new"], "the setting bootstrap_servers of the topic orders is not set"),
    ],
)
def test_a_landing_that_cannot_be_asked_for_is_refused(home: Path, arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, ["land", "orders", *arguments])
    assert said in str(result.exception)


def test_a_log_of_the_other_kind_is_named_with_what_is_to_be_given_of_it(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "find_products", serves(PRODUCT, ACCOUNTS))
    initialise(Platform.of(load_settings(), [PRODUCT, ACCOUNTS]))
    for arguments in ([], ["--new"], ["--until-offsets", "0-5"]):
        result = CliRunner().invoke(cli, ["land", "bank_changes", *arguments])
        assert "bank_changes is a changelog" in str(result.exception)
        assert "give the folder with its files" in str(result.exception)
    result = CliRunner().invoke(cli, ["land", "orders", str(tmp_path)])
    assert "orders is a topic" in str(result.exception)
    assert "backfill land orders --new" in str(result.exception)


def test_where_the_client_is_missing_the_extra_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "find_spec", lambda _: None)
    result = CliRunner().invoke(cli, ["land", "orders", "--new"])
    assert "pip install 'backfill-assets[kafka]'" in str(result.exception)


def test_what_is_landed_is_shown_where_nobody_can_be_asked(home: Path) -> None:
    result = CliRunner().invoke(cli, ["logs"])
    assert result.exit_code == 0
    assert "not known how far behind: the setting bootstrap_servers of the topic orders is not set" in result.output
    assert CliRunner().invoke(cli, ["logs", "--offline", "--json"]).exit_code == 0


def test_a_file_is_not_loaded_beside_ranges(home: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("log_partition\n0\n")
    result = CliRunner().invoke(cli, ["load", TABLE.name, str(tmp_path / "rows.csv")])
    assert "bronze.orders_log is the table of the topic orders" in str(result.exception)
    assert "backfill land orders --archive FILE" in str(result.exception)


def test_an_archive_that_is_nowhere_is_refused(home: Path) -> None:
    result = CliRunner().invoke(cli, ["land", "orders", "--archive", "nowhere.at_all"])
    assert "nowhere.at_all" in str(result.exception)
    assert isinstance(result.exception, Refused)
    result = CliRunner().invoke(cli, ["land", "orders", "--archive", "/no/such/folder"])
    assert isinstance(result.exception, Refused)


def test_settings_of_topics_are_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BACKFILL_TOPICS__ORDERS__PASSWORD", SECRET)
    settings = load_settings(home=tmp_path)
    assert settings.of_topic("orders") == {"password": SECRET}
    assert SECRET not in str(settings.shown()) + repr(settings)
    assert os.environ["BACKFILL_TOPICS__ORDERS__PASSWORD"] == SECRET
