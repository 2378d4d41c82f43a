"""Feeds from servers that cannot be used, and questions that they cannot be asked: refused at once, all of it, before anything is asked."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandera.polars as pandera
import pytest
from api_product import FEED, PAGES, PRODUCT, TABLE, ShopOrders, translate, with_feed
from click.testing import CliRunner

import backfill_assets as ba
from backfill_assets.cli.command import cli
from backfill_assets.declarations.finding import check_products
from backfill_assets.declarations.sources import sources_of
from backfill_assets.extraction.credentials import Credentials
from backfill_assets.extraction.http_client import ApiClient
from backfill_assets.extraction.questions import question
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.initialise import initialise
from manifests.errors import DeclarationRefused, EnvironmentRefused, InputRefused
from manifests.model import Mode
from resources.settings import load_settings
from resources.spark.sessions import ModeSpark

WINDOW = ba.ByTimeWindow("from", "until", timedelta(days=1))
EXPORT = FEED.pattern(ba.BySnapshotExport)
SECRET = "Bearer-9f8a7b6c"


def refused(product: ba.Product) -> str:
    with pytest.raises(DeclarationRefused) as found:
        check_products([product])
    return str(found.value)


def test_the_product_of_these_tests_can_be_used() -> None:
    products = check_products([PRODUCT])
    assert products.api("shop") is FEED
    assert FEED.needs == ("url", "token_url", "client_id", "client_secret")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "Shop Orders"}, "name is 'Shop Orders'"),
        ({"name": None}, "a feed: name is None"),
        ({"description": " "}, "description is ' '"),
        ({"owners": ("the shop",)}, "owners="),
        ({"owners": "team:shop"}, "owners='team:shop'"),
        ({"table": "bronze.shop_order"}, "table is 'bronze.shop_order'; did you mean 'bronze.shop_orders'?"),
        ({"path": "https://shop.example/v1"}, "path is 'https://shop.example/v1'"),
        ({"path": "//shop.example/v1"}, "path is '//shop.example/v1'"),
        ({"path": "v1/../admin"}, "path is 'v1/../admin'"),
        ({"path": "v1?page=1"}, "path is 'v1?page=1'"),
        ({"patterns": ()}, "patterns is ()"),
        ({"patterns": WINDOW}, "patterns is a ByTimeWindow"),
        ({"patterns": (WINDOW, WINDOW)}, "patterns has 2 ByTimeWindow"),
        ({"patterns": ("cursor",)}, "patterns has a str"),
        ({"patterns": (replace(WINDOW, length=timedelta(0)),)}, "length is a timedelta"),
        ({"patterns": (replace(WINDOW, overlap=timedelta(-1)),)}, "overlap is a timedelta"),
        ({"patterns": (replace(WINDOW, start_parameter="until"),)}, "the parameter 'until' is named twice"),
        ({"patterns": (replace(WINDOW, paging="page"),)}, "paging is 'page'"),
        ({"patterns": (replace(WINDOW, paging=replace(PAGES, size=0)),)}, "paging.size is 0"),
        ({"patterns": (replace(WINDOW, paging=ba.PageNumbers("page", size=5)),)}, "paging.size without size_parameter"),
        ({"patterns": (WINDOW,), "updated_at": ""}, "updated_at of the feed is empty"),
        ({"patterns": (ba.ByCursor(PAGES),)}, "cursor is a PageNumbers"),
        ({"patterns": (ba.ByIdRange("a", "b", step=0),)}, "step is 0"),
        ({"patterns": (replace(EXPORT, poll="v1/exports"),)}, "poll is 'v1/exports'"),
        ({"patterns": (replace(EXPORT, failed=("DONE",)),)}, "failed is ('DONE',)"),
        ({"patterns": (replace(EXPORT, poll_seconds=0),)}, "poll_seconds is 0"),
        ({"records": "data items"}, "records is 'data items'"),
        ({"key": ""}, "key is ''"),
        ({"updated_at": 5}, "updated_at is 5"),
        ({"translate": "translate"}, "translate is 'translate'"),
        ({"limit": 5}, "limit is 5"),
        ({"limit": ba.RateLimit(0)}, "limit.requests is 0"),
        ({"limit": ba.RateLimit(1, -1)}, "limit.seconds is -1"),
        ({"retries": ba.Retries(attempts=0)}, "retries.attempts is 0"),
        ({"retries": None}, "retries is None"),
        ({"base": "https://shop.example"}, "base is a text of 20 characters that is no name"),
        ({"auth": ba.BearerToken(SECRET)}, "auth.token is a text of 15 characters that is no name"),
        ({"auth": ba.HeaderKey("X Key")}, "auth.header is no header"),
        ({"auth": SECRET}, "auth is a str"),
        ({"auth": ba.ClientCredentials(client_id="url")}, "two fields name one setting"),
        ({"parameters": {"api_key": SECRET}}, "parameters has api_key, which reads like a credential"),
        ({"parameters": {"size": 5}}, "parameters has 'size'"),
        ({"parameters": {"from": "x"}}, "the parameter 'from' is named twice"),
        ({"deleted_column": "gone"}, "deleted_column 'gone' is no column of bronze.shop_orders"),
        ({"deleted_column": "status"}, "deleted_column 'status' is of String of bronze.shop_orders"),
        ({"most_passes": 0}, "most_passes is 0"),
        ({"most_response_bytes": "1 MB"}, "most_response_bytes is '1 MB'"),
    ],
)
def test_a_declaration_that_cannot_be_used_is_refused_by_name_and_shows_no_secret(
    changes: dict[str, Any], said: str
) -> None:
    text = refused(with_feed(**changes))
    assert said in text
    assert SECRET not in text


def test_all_mistakes_of_a_feed_are_said_at_once() -> None:
    text = refused(with_feed(name="A", owners=(), limit=None, key="", translate=None))
    assert [
        one
        for one in ("name is 'A'", "owners=()", "limit is None", "key is ''", "translate is None")
        if one not in text
    ] == []


def test_names_and_tables_stand_for_one_feed() -> None:
    other = replace(FEED, name="other")
    assert "bronze.shop_orders is the table of 2 feeds" in refused(replace(PRODUCT, apis=(FEED, other)))
    assert "feed shop is declared 2 times" in refused(replace(PRODUCT, apis=(FEED, FEED)))
    assert "apis is a ApiFeed" in refused(replace(PRODUCT, apis=FEED))
    assert "apis has 'shop'" in refused(replace(PRODUCT, apis=("shop",)))
    loader = {"shop": "api_product:FEED"}
    assert "feed shop is called as a loader is" in refused(replace(PRODUCT, loaders=loader))
    reference = ba.InputTable(TABLE, "orders", ShopOrders, ("team:shop",), is_reference=True)
    assert "no reference table, no quarantine" in refused(replace(PRODUCT, inputs=(reference,)))


def test_an_argument_that_is_misspelt_is_named() -> None:
    with pytest.raises(TypeError, match="ByIdRange has no stepp; did you mean step"):
        ba.ByIdRange("a", "b", stepp=5)  # type: ignore[call-arg]


def test_the_module_of_a_translator_is_code_of_the_product() -> None:
    class Alone(pandera.DataFrameModel):
        number: int = pandera.Field()

    Alone.__module__ = "api_server"
    table = ba.InputTable("bronze.alone", "rows", Alone, ("team:shop",))
    product = ba.Product("alone", (table,), (), apis=(replace(FEED, table="bronze.alone", deleted_column=""),))
    assert translate.__module__ == "api_product"
    assert "api_product" in sources_of(product).packages


# --- questions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feed", "options", "said"),
    [
        (FEED, {"start": "2024-01-01"}, "--until is None"),
        (FEED, {"start": "soon", "end": "later"}, "for 2 reasons"),
        (FEED, {"start": "2024-02-01", "end": "2024-01-01"}, "--from 2024-02-01 is not before --until 2024-01-01"),
        (FEED, {"ids": "5"}, "--ids is '5'"),
        (FEED, {"ids": "9..5"}, "--ids is '9..5'"),
        (FEED, {"ids": "1..5", "snapshot": True}, "asked for with --ids A..B and --snapshot"),
        (replace(FEED, patterns=(WINDOW,)), {}, "it can be asked for with one of: --from T --until T"),
        (replace(FEED, patterns=(WINDOW,)), {"snapshot": True}, "asked for with --snapshot"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(feed: ba.ApiFeed, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputRefused) as found:
        question(feed, **options)
    assert said in str(found.value)


def test_the_same_words_are_the_same_question_in_any_zone() -> None:
    one = question(FEED, start="2024-01-01T01:00+01:00", end="2024-01-02")
    assert one == question(FEED, start="2024-01-01", end="2024-01-02T00:00Z")


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "for 4 reasons"),
        ({"url": "ftp://shop"}, "the setting url of the feed shop is no address"),
        ({"url": "https://user:pa55word@shop"}, "the setting url of the feed shop is no address"),
        ({"url": "https://shop/?key=pa55word"}, "the setting url of the feed shop is no address"),
        ({"client_secret": "pa55word\n"}, "the setting client_secret of the feed shop is not printable ASCII"),
    ],
)
def test_a_setting_that_is_missing_or_cannot_be_sent_is_named_and_not_shown(
    settings: dict[str, str], said: str
) -> None:
    whole = {"url": "http://shop", "token_url": "http://shop/t", "client_id": "me", "client_secret": "s"}
    with pytest.raises(EnvironmentRefused) as found:
        ApiClient(FEED, whole | settings if settings else {}, now=lambda: None)  # type: ignore[arg-type, return-value]
    assert said in str(found.value)
    assert "pa55word" not in str(found.value)


def test_the_doctor_names_settings_that_are_missing_and_settings_of_nobody(tmp_path: Path) -> None:
    apis = {"shop": {"url": "http://shop", "tokn": "x1"}, "shpo": {"url": "x"}}
    platform = Platform.of(load_settings(home=tmp_path / "home", apis=apis), [PRODUCT])
    initialise(platform)
    found = {(one.kind, one.where, one.what) for one in examine(platform) if one.kind.startswith("api-")}
    assert found == {
        ("api-setting-missing", "shop", "its setting(s) token_url, client_id, client_secret are not set here"),
        (
            "api-setting-unknown",
            "shop",
            "the setting tokn is set for it, and its settings are url, token_url, client_id, client_secret",
        ),
        ("api-setting-unknown", "shpo", "the setting url is set for it, and no product declares such a feed"),
    }


def test_settings_of_feeds_are_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path))
    monkeypatch.setenv("BACKFILL_APIS__SHOP__TOKEN", SECRET)
    settings = load_settings()
    assert settings.of_api("shop") == {"token": SECRET}
    assert SECRET not in json.dumps(settings.shown()) + repr(settings)


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_feed_that_nobody_declares_is_refused_with_the_one_that_was_meant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BACKFILL_PRODUCTS", '["api_product:PRODUCT"]')
    assert CliRunner().invoke(cli, ["init"]).exit_code == 0
    for command in (["extract", "shp"], ["extractions", "shp"]):
        found = CliRunner().invoke(cli, command)
        assert isinstance(found.exception, InputRefused)
        assert "did you mean shop?" in str(found.exception)
    listed = CliRunner().invoke(cli, ["load", "--help"])
    assert "shop" in listed.output
    assert "nothing to load" in CliRunner().invoke(cli, ["load", "shop"]).output


def test_no_session_of_spark_begins_with_the_settings_of_a_feed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: dict[str, str] = {}

    def begins(_self: ModeSpark, _mode: Mode) -> None:
        seen.update(os.environ)

    monkeypatch.setenv("BACKFILL_APIS__SHOP__TOKEN", SECRET)
    monkeypatch.setattr(ModeSpark, "_start_without_credentials", begins)
    monkeypatch.setattr("resources.spark.one_reach._confined", set())
    for mode in (Mode.LIVE, Mode.BACKFILL):
        monkeypatch.setattr("resources.spark.one_reach._confined", set())
        ModeSpark(load_settings(home=tmp_path), ())._start(mode)
    assert SECRET not in seen.values()
    assert "BACKFILL_APIS__SHOP__TOKEN" not in os.environ


SECRET = 'abc/def"9\\  tail'


@pytest.mark.parametrize(
    "body",
    [
        SECRET,
        json.dumps(SECRET),
        json.dumps(SECRET).replace("/", "\\/"),
        "".join(f"\\u{ord(one):04x}" for one in SECRET),
    ],
    ids=["plain", "json", "slash", "unicode"],
)
def test_an_answer_with_a_credential_in_any_spelling_is_not_kept(body: str) -> None:
    settings = {"url": "https://x", "token_url": "https://y", "client_id": "shop-reader", "client_secret": SECRET}
    credentials = Credentials(FEED, settings)
    assert credentials.is_in(body.encode())
    assert not credentials.is_in(b'{"by": "shop-reader"}')
    for spelled in (SECRET, repr(SECRET), json.dumps(SECRET), quote(SECRET)):
        assert "abc" not in credentials.shown(f"refused: {spelled}")
