"""Servers that are asked for history: a real one on the loopback interface, real tables, no Spark."""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from api_product import FEED, PAGES, PRODUCT, TABLE, translate, with_feed
from api_server import ANSWERS, CHANGES, CLIENT, SECRET, STATIC_TOKEN, Shop, order, serving
from click.testing import CliRunner

import backfill_assets as ba
from backfill_assets.cli.command import cli
from backfill_assets.extraction import http_client
from backfill_assets.extraction.archive import alone_with
from backfill_assets.extraction.credentials import Credentials
from backfill_assets.extraction.extracting import extract
from backfill_assets.extraction.pacing import Pace
from backfill_assets.extraction.questions import question
from backfill_assets.extraction.refusals import ExtractionRefused
from backfill_assets.ingestion import extractions
from backfill_assets.ingestion.extractions import ExtractionLoaded, load_extractions, reconciled
from backfill_assets.ingestion.table_loads import undo_load
from backfill_assets.ingestion.versions import compared
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.initialise import initialise
from manifests.errors import EnvironmentRefused, InputRefused, TransitionRefused
from manifests.policy import Policy
from resources.ledger.extractions import ExtractionRecord, ExtractionState, Sealed
from resources.settings import load_settings

EVERYTHING = {"start": "2024-01-01", "end": "2025-01-01"}


@pytest.fixture
def shop() -> Shop:
    return Shop(120)


@pytest.fixture
def url(shop: Shop) -> Iterator[str]:
    with serving(shop) as address:
        yield address


def settings_of(url: str) -> dict[str, str]:
    return {
        "url": url,
        "token_url": f"{url}/token",
        "client_id": CLIENT,
        "client_secret": SECRET,
        "token": STATIC_TOKEN,
    }


def opened(home: Path, url: str, product: ba.Product = PRODUCT) -> Platform:
    return Platform.of(load_settings(home=home, apis={"shop": settings_of(url)}, quarantine_limit=0.5), [product])


@pytest.fixture
def platform(tmp_path: Path, url: str) -> Platform:
    made = opened(tmp_path / "home", url)
    initialise(made)
    return made


def by_window(others: Mapping[str, Any] | None = None, **changes: Any) -> ba.Product:
    """Return the product with a feed that is asked by windows alone, which are other ones."""
    return with_feed(patterns=(replace(FEED.patterns[1], **changes),), **(others or {}))


def asked(platform: Platform, feed: ba.ApiFeed = FEED, *, anew: bool = False, **options: Any) -> ExtractionRecord:
    return extract(platform, feed, question(feed, **options), anew=anew)


def loaded(platform: Platform, feed: ba.ApiFeed = FEED, only: str | None = None) -> list[ExtractionLoaded]:
    return load_extractions(platform, feed, only=only)


def rows(platform: Platform) -> list[dict[str, Any]]:
    return platform.lakehouse.table(TABLE).scan().to_arrow().to_pylist()


def newest(platform: Platform) -> dict[int, dict[str, Any]]:
    """Return the newest row of each order, as a reader would take it."""
    found: dict[int, dict[str, Any]] = {}
    for row in sorted(rows(platform), key=lambda row: (row["updated_at"], row["read_at"], row["is_deleted"])):
        found[row["order_id"]] = row
    return found


def held(platform: Platform) -> dict[int, str]:
    """Return the amount of each order that the table says the server has."""
    return {number: str(row["amount"]) for number, row in newest(platform).items() if not row["is_deleted"]}


def served(shop: Shop) -> dict[int, str]:
    return {number: one["amount"] for number, one in shop.orders.items()}


@pytest.mark.parametrize(
    "options",
    [{}, EVERYTHING, {"ids": "1..120"}, {"snapshot": True}],
    ids=["cursor", "windows", "ids", "snapshot"],
)
def test_every_pattern_brings_each_record_once_and_the_server_is_not_asked_to_load_it(
    platform: Platform, shop: Shop, options: dict[str, Any]
) -> None:
    record = asked(platform, **options)
    assert (record.state, record.records) == (ExtractionState.COMPLETE, 120)
    requests = len(shop.asked)
    (done,) = loaded(platform)
    assert (done.changes, done.loaded.counted.events) == ({"new": 120}, 120)
    assert loaded(platform) == []
    assert len(shop.asked) == requests
    assert len(rows(platform)) == 120
    assert held(platform) == served(shop)
    assert shop.most_within(FEED.limit.seconds) <= FEED.limit.requests


def test_a_second_extraction_brings_what_is_new_and_nothing_twice(platform: Platform, shop: Shop) -> None:
    asked(platform, **EVERYTHING)
    loaded(platform)
    shop.change("insert")
    shop.orders[7] = order(7, shop.tick(), "99.50", "SHIPPED")
    shop.orders[8] = shop.orders[8] | {"amount": "11.00"}  # without a word
    asked(platform, **EVERYTHING)
    (done,) = loaded(platform)
    assert done.changes == {"corrected": 1, "equal": 118, "new": 1, "updated": 1}
    assert held(platform) == served(shop)
    assert len(rows(platform)) == 123


def test_a_record_of_overlapping_windows_is_one_and_is_counted(platform: Platform, shop: Shop) -> None:
    record = asked(platform, start="2024-01-01", end="2024-01-07")
    in_two = [one for one in range(1, 121) if one % 24 in {22, 23}]  # the two hours before each day
    assert record.counted["repeated"] == len(in_two)
    assert (record.records, record.counted["read"]) == (120, 120 + len(in_two))


def test_what_is_missed_corrected_and_deleted_is_found_listed_and_loaded(platform: Platform, shop: Shop) -> None:
    asked(platform, snapshot=True)
    loaded(platform)
    del shop.orders[5], shop.orders[6]
    shop.orders[8] = shop.orders[8] | {"amount": "11.00"}
    for _ in range(3):
        shop.change("insert")
    record = asked(platform, snapshot=True, reconciles=True)
    found = reconciled(platform, FEED, record)
    assert found.counts == {"corrected": 1, "deleted": 2, "equal": 117, "new": 3}
    assert found.keys == {"corrected": ["8"], "deleted": ["5", "6"], "new": ["121", "122", "123"]}
    (done,) = loaded(platform)
    assert done.loaded.counted.events == 6
    assert [number for number, row in newest(platform).items() if row["is_deleted"]] == [5, 6]
    assert held(platform) == served(shop)
    again = asked(platform, snapshot=True, reconciles=True)
    assert reconciled(platform, FEED, again).counts == {"equal": 121}
    shop.orders[5] = order(5, shop.clock)
    asked(platform, ids="1..10", reconciles=True)
    assert [one.changes for one in loaded(platform)] == [{"equal": 121}, {"equal": 8, "returned": 1}]
    assert held(platform) == served(shop)


@pytest.mark.parametrize(
    "unusable", [None, "yesterday", "2024-03-01T12:00:00"], ids=["none", "no instant", "no offset"]
)
def test_a_record_that_the_server_has_is_not_deleted_because_its_version_is_unusable(
    platform: Platform, shop: Shop, unusable: str | None
) -> None:
    asked(platform, snapshot=True)
    loaded(platform)
    shop.orders[7] |= {"updated_at": unusable}
    del shop.orders[5]
    found = reconciled(platform, FEED, asked(platform, snapshot=True, reconciles=True))
    assert found.counts == {"deleted": 1, "equal": 118, "unusable": 1}
    assert (found.keys, found.keyless) == ({"deleted": ["5"], "unusable": ["7"]}, 0)
    loaded(platform)
    assert [number for number, row in newest(platform).items() if row["is_deleted"]] == [5]
    again = reconciled(platform, FEED, asked(platform, snapshot=True, reconciles=True))
    assert again.counts == {"equal": 118, "unusable": 1}


@pytest.mark.parametrize("key", [None, True, "", "\ud800", "7" * 501])
def test_while_a_record_has_no_usable_key_nothing_is_concluded_to_be_deleted(
    platform: Platform, shop: Shop, key: Any
) -> None:
    asked(platform, snapshot=True)
    loaded(platform)
    whole = shop.orders[7]
    shop.orders[7] = whole | {"id": key}
    del shop.orders[5]
    for _ in range(2):  # more than what is quarantined
        shop.change("insert")
    for options in ({}, EVERYTHING, {"snapshot": True}):
        found = reconciled(platform, FEED, asked(platform, **options, reconciles=True))
        assert found.counts == {"equal": 118, "new": 2, "unusable": 1}
        assert (found.keys, found.keyless) == ({"new": ["121", "122"]}, 1)
    (done,) = load_extractions(platform, FEED, only=found.extraction)
    assert (done.keyless, done.loaded.counted.events, done.loaded.counted.quarantined) == (1, 2, 1)
    assert not [one for one in rows(platform) if one["is_deleted"]]
    shop.orders[7] = whole
    load_extractions(platform, FEED, only=asked(platform, snapshot=True, reconciles=True).id)
    assert held(platform) == served(shop)


@pytest.mark.parametrize("broken", [{"updated_at": None}, {"id": None}], ids=["no version", "no key"])
def test_what_an_earlier_version_has_loaded_as_deleted_comes_back(
    platform: Platform, shop: Shop, monkeypatch: pytest.MonkeyPatch, broken: dict[str, Any]
) -> None:
    asked(platform, snapshot=True)
    loaded(platform)
    whole = shop.orders[7]
    shop.orders[7] = whole | broken
    del shop.orders[5]
    for _ in range(2):  # more than what is quarantined
        shop.change("insert")
    asked(platform, snapshot=True, reconciles=True)
    with monkeypatch.context() as earlier:
        earlier.setattr(extractions, "compared", partial(compared, usable_alone=True))
        loaded(platform)
    assert sorted(number for number, row in newest(platform).items() if row["is_deleted"]) == [5, 7]
    shop.orders[7] = whole
    found = reconciled(platform, FEED, asked(platform, snapshot=True, reconciles=True))
    assert found.keys == {"returned": ["7"]}
    loaded(platform)
    assert held(platform) == served(shop)
    assert sum(row["is_deleted"] for row in rows(platform)) == 2, "none is said to be deleted twice"


def test_a_range_judges_its_numbers_only_and_a_time_no_deletions(platform: Platform, shop: Shop) -> None:
    asked(platform, snapshot=True)
    loaded(platform)
    del shop.orders[5], shop.orders[60]
    assert reconciled(platform, FEED, asked(platform, ids="1..50", reconciles=True)).keys == {"deleted": ["5"]}
    of_time = reconciled(platform, FEED, asked(platform, **EVERYTHING, reconciles=True))
    assert of_time.keys == {"absent": ["5", "60"]}


def test_without_a_deleted_column_deletions_are_reported_and_not_loaded(tmp_path: Path, shop: Shop, url: str) -> None:
    def own(record: Any, facts: ba.ResponseFacts) -> Any:
        return dict(translate(record, facts)) | {"is_deleted": facts.is_deleted}

    product = with_feed(deleted_column="", translate=own)
    (feed,) = product.apis
    platform = opened(tmp_path / "home", url, product)
    initialise(platform)
    asked(platform, feed, snapshot=True)
    loaded(platform, feed)
    del shop.orders[5]
    for _ in range(2):  # it stays reported
        record = asked(platform, feed, snapshot=True, reconciles=True)
        assert reconciled(platform, feed, record).keys == {"deleted": ["5"]}
        (done,) = loaded(platform, feed)
        assert done.loaded.counted.events == 0
    assert len(rows(platform)) == 120


def test_pages_that_move_are_read_until_two_readings_agree(platform: Platform, shop: Shop) -> None:
    for number in range(1, 121):  # all in one window: three pages
        shop.orders[number]["updated_at"] = "2024-03-01T12:00:00Z"
    moved = iter((2, 5))

    def plan(_path: str, number: int) -> str:
        if number in {2, 5}:
            next(moved)
            last = max(shop.orders)
            shop.orders = {last: shop.orders[last]} | shop.orders  # all others move by a place
            shop.orders.pop(1) if number == 5 else None
        return ""

    shop.plan = plan
    record = asked(platform, start="2024-03-01", end="2024-03-02")
    assert record.state is ExtractionState.COMPLETE
    assert {one.reading for one in platform.ledger.extractions.responses(record.id)} >= {1, 2, 3}
    assert record.counted["doubled"] >= 1
    loaded(platform)
    assert served(shop).items() <= held(platform).items()


def test_pages_that_never_agree_make_an_extraction_unstable_which_is_loaded_on_purpose_only(
    platform: Platform, shop: Shop
) -> None:
    for number in range(1, 121):
        shop.orders[number]["updated_at"] = "2024-03-01T12:00:00Z"
    shop.plan = lambda _path, _number: "silent"
    record = asked(platform, start="2024-03-01", end="2024-03-02")
    assert (record.state, record.reason) == (
        ExtractionState.UNSTABLE,
        "what takes several pages was read otherwise each time: records may be missing",
    )
    assert loaded(platform) == []
    with pytest.raises(InputRefused, match="UNSTABLE"):
        load_extractions(platform, FEED, only=record.id)
    shop.plan = lambda _path, _number: ""
    load_extractions(platform, FEED, only=record.id, unstable=True)
    asked(platform, snapshot=True, reconciles=True)
    loaded(platform)
    assert held(platform) == served(shop)


@pytest.mark.parametrize("behind", [[], None, 404, 400, 401, 500, 503, 302, "again"])
def test_whatever_a_server_says_behind_its_last_page_ends_a_reading(
    platform: Platform, shop: Shop, behind: object
) -> None:
    shop.behind_the_last = behind
    record = asked(platform, **EVERYTHING)
    assert record.state is ExtractionState.COMPLETE
    loaded(platform)
    assert held(platform) == served(shop)


def test_a_server_that_gives_its_last_page_again_may_have_changed_it_meanwhile(platform: Platform, shop: Shop) -> None:
    given, shop.behind_the_last = shop._paged, "again"

    def changing(query: dict[str, str]) -> Any:
        for one in shop.orders.values():
            one["status"] = "PAID" if int(query["page"]) > 1 else "OPEN"
        return given(query)

    shop._paged = changing  # type: ignore[method-assign]
    assert asked(platform, **EVERYTHING).state is ExtractionState.COMPLETE


def test_the_page_behind_the_fullest_is_looked_at_until_one_was_full(platform: Platform, shop: Shop) -> None:
    kept = platform.ledger.extractions.responses(asked(platform, **EVERYTHING).id)
    expected, fullest, looks = [], 0, 0
    for part in dict.fromkeys(one.part for one in kept):
        first, last = map(datetime.fromisoformat, part.split(".."))
        number = sum(first <= datetime.fromisoformat(one["updated_at"]) < last for one in shop.orders.values())
        if number > fullest:
            fullest, looks = number, 0
        if number and number == fullest and looks < 3:
            expected.append(part)
            looks += 1
    assert [one.part for one in kept if one.kind == "BEHIND"] == expected != []
    assert len(shop.asked) == len(kept) == 366 + len(expected)

    (feed,) = by_window(length=timedelta(days=366)).apis
    again = platform.ledger.extractions.responses(asked(platform, feed, **EVERYTHING).id)
    assert [(one.kind, one.page) for one in again] == [("PAGE", 1), ("PAGE", 2), ("PAGE", 3)] * 2


def test_a_server_that_gives_fewer_records_a_page_than_it_is_asked_for_is_refused_and_read_as_it_pages(
    tmp_path: Path, platform: Platform, shop: Shop, url: str
) -> None:
    shop.most_per_page = 10
    with pytest.raises(
        ExtractionRefused, match=r"page=1 has fewer records than the 50 .*, and page=2 has others"
    ) as refusal:
        asked(platform, **EVERYTHING)
    assert "declare the `size` that the server gives" in str(refusal.value)
    assert platform.ledger.extractions.of_feed("shop")[0].state is ExtractionState.FAILED
    until_empty = by_window({"parameters": {"size": "50"}}, paging=ba.PageNumbers("page"))
    for number, product in enumerate((until_empty, by_window(paging=replace(PAGES, size=10)))):
        (feed,) = product.apis
        another = opened(tmp_path / f"home-{number}", url, product)
        initialise(another)
        asked(another, feed, **EVERYTHING)
        loaded(another, feed)
        assert held(another) == served(shop)


def test_a_server_that_ignores_the_number_of_the_page_is_refused_by_its_name(platform: Platform, shop: Shop) -> None:
    shop.ignores_page = True
    with_a_short_page = asked(platform, start="2024-01-01", end="2024-01-02")
    assert with_a_short_page.state is ExtractionState.COMPLETE  # its one page has everything
    (feed,) = by_window(length=timedelta(days=366)).apis
    with pytest.raises(ExtractionRefused, match=r"pages have the same records \(page=1, page=2, page=3\)") as refusal:
        asked(platform, feed, **EVERYTHING)
    assert "correct `parameter`" in str(refusal.value)


def test_a_record_that_is_no_row_is_quarantined_with_where_it_lies(platform: Platform, shop: Shop) -> None:
    shop.orders[3] |= {"status": "LOST"}
    shop.orders[4] |= {"amount": "0.00"}
    shop.orders[5] |= {"amount": "1.005"}
    shop.orders[6] |= {"status": "PA\x00ID"[:2] + "ID\x00"}
    shop.orders[7] |= {"updated_at": "yesterday"}
    shop.orders[8] |= {"id": None}
    asked(platform, ids="1..20")
    (done,) = loaded(platform)
    assert done.loaded.counted.by_reason == {
        "no key at id": 1,
    } | {
        "an unknown status": 2,
        "an order that is paid has an amount": 1,
        "amount: not Decimal(precision=12, scale=2)": 1,
        "no instant at updated_at": 1,
    }
    found = platform.lakehouse.table(f"{TABLE}_quarantine").scan().to_arrow().to_pylist()
    assert {(one["source_file"], one["source_row"]) for one in found} == {
        ("shop-1/000001.response", position) for position in range(2, 8)
    }
    assert json.loads(found[0]["record"])["status"] == "LOST"
    assert sorted(row["order_id"] for row in rows(platform)) == [1, 2, *range(9, 21)]


def test_a_load_that_is_taken_back_is_loaded_again(platform: Platform, shop: Shop) -> None:
    asked(platform, ids="1..50")
    (first,) = loaded(platform)
    (load,) = platform.lakehouse.loads(TABLE)
    undo_load(platform, TABLE, load.load_id, by="ada", reason="too early")
    assert rows(platform) == []
    (again,) = loaded(platform)
    assert again.changes == first.changes
    assert len(rows(platform)) == 50


# --- what goes wrong on the way ---------------------------------------------------------------------------------------


def test_no_request_comes_before_the_server_wants_it(platform: Platform, shop: Shop) -> None:
    shop.plan = lambda _path, number: "429-after" if number == 2 else ""
    asked(platform, ids="1..120")
    times = shop.arrived[1:]  # the first is the token's
    assert times[2] - times[1] >= 1.0
    assert times[1] - times[0] < 1.0


def test_after_a_request_without_an_answer_the_limit_counts_as_used_up() -> None:
    """It may reach the server after its end: whoever counted it as over would ask once too often."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    pace = Pace(ba.RateLimit(requests=3, seconds=1.0), clock=lambda: now, sleep=sleep)
    began = []
    for number in range(6):
        with suppress(TimeoutError), pace.request():
            began.append(now)
            now += 0.25
            if number == 2:
                raise TimeoutError
    assert began == [1.0, 1.25, 1.5, 2.75, 3.0, 3.25]


def test_a_server_that_wants_to_be_left_alone_for_longer_than_a_request_may_take_stops_the_extraction(
    tmp_path: Path, shop: Shop, url: str
) -> None:
    (feed,) = with_feed(retries=replace(FEED.retries, seconds=1, wait_seconds=0.001)).apis
    platform = opened(tmp_path / "home", url, replace(PRODUCT, apis=(feed,)))
    initialise(platform)
    shop.plan = lambda _path, number: "429-after" if number >= 2 else ""
    with pytest.raises(ExtractionRefused, match="without an answer, the last time: 429"):
        asked(platform, feed, ids="1..120")
    (record,) = platform.ledger.extractions.of_feed("shop")
    assert (record.state, record.responses) == (ExtractionState.FAILED, 1)
    assert "429" in record.reason
    shop.plan = lambda _path, _number: ""
    requests = len(shop.asked)
    done = asked(platform, feed, ids="1..120")
    assert (done.id, done.state, len(shop.asked) - requests) == (record.id, ExtractionState.COMPLETE, 2)


@pytest.mark.parametrize("fault", ANSWERS)
def test_an_answer_that_is_none_is_asked_for_again(platform: Platform, shop: Shop, fault: str) -> None:
    shop.plan = lambda _path, number: fault if number in {1, 3} else ""
    record = asked(platform, ids="1..120")
    assert (record.state, record.records) == (ExtractionState.COMPLETE, 120)
    assert shop.faults[fault] == 2
    assert record.requests == record.responses + 2


def test_a_token_is_renewed_before_it_expires(platform: Platform, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    # a clock that only requests move, so that a busy machine cannot expire a token: 0.1 s for the first token, 0.95 s for all else
    seconds = [0.0]

    def at_the_server() -> float:
        seconds[0] += 0.95 if shop.tokens else 0.1
        return seconds[0]

    shop.token_seconds, shop.token_clock = 10, at_the_server
    monkeypatch.setattr(http_client, "Credentials", partial(Credentials, clock=lambda: seconds[0]))
    record = asked(platform, ids="1..800")
    assert record.state is ExtractionState.COMPLETE
    assert shop.given_tokens >= 2
    assert record.requests == record.responses  # none was refused


def test_a_credential_that_is_refused_stops_the_extraction_and_is_not_shown(
    tmp_path: Path, shop: Shop, url: str
) -> None:
    product = with_feed(auth=ba.BearerToken())
    platform = Platform.of(
        load_settings(home=tmp_path / "home", apis={"shop": {"url": url, "token": "wr0ng-t0ken"}}), [product]
    )
    initialise(platform)
    with pytest.raises(ExtractionRefused, match="the server answers 401") as refused:
        asked(platform, product.apis[0])
    assert len(shop.asked) == 1
    assert "wr0ng-t0ken" not in str(refused.value)


def test_no_credential_is_in_a_file_the_ledger_or_an_error(
    platform: Platform, shop: Shop, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    given = set()
    shop.plan = lambda _path, number: given.update(shop.tokens) or ("expired" if number == 3 else "")
    asked(platform, **EVERYTHING)
    loaded(platform)
    shop.echo = "yes"
    with pytest.raises(ExtractionRefused, match="the answer has a credential in it") as refused:
        asked(platform, ids="1..10")
    secrets = {SECRET, *given, *shop.tokens}
    assert len(secrets) >= 3
    said = str(refused.value) + caplog.text + "".join(capfd.readouterr())
    kept = b"".join(file.read_bytes() for file in platform.settings.home.rglob("*") if file.is_file())
    assert [one for one in secrets if one in said or one.encode() in kept] == []


def test_an_answer_that_was_changed_in_the_archive_is_not_loaded(platform: Platform) -> None:
    record = asked(platform, ids="1..50")
    file = platform.settings.responses_folder / "shop" / "000001" / "000001.response"
    file.write_bytes(file.read_bytes().replace(b'"10.00"', b'"90.00"', 1))
    with pytest.raises(EnvironmentRefused, match="has another content than came"):
        loaded(platform)
    assert platform.lakehouse.loads(TABLE) == []
    assert record.state is ExtractionState.COMPLETE


def test_an_extraction_that_is_over_never_changes(platform: Platform) -> None:
    record = asked(platform, ids="1..50")
    (response,) = platform.ledger.extractions.responses(record.id)
    for change in (
        lambda: platform.ledger.extractions.keep(record.id, [replace(response, number=2)]),
        lambda: platform.ledger.extractions.stop(record.id, ExtractionState.FAILED, "late"),
        lambda: platform.ledger.extractions.seal(record.id, ExtractionState.COMPLETE, Sealed("", "", 0, {})),
    ):
        with pytest.raises(TransitionRefused, match="is COMPLETE"):
            change()
    assert platform.ledger.extractions.one(record.id) == record


def test_an_extraction_goes_on_by_the_declaration_that_it_began_with(
    tmp_path: Path, shop: Shop, platform: Platform
) -> None:
    shop.plan = lambda _path, number: "500" if number >= 2 else ""
    short = replace(FEED, retries=replace(FEED.retries, attempts=2))
    with pytest.raises(ExtractionRefused, match="2 time"):
        asked(platform, short, ids="1..120")
    shop.plan = lambda _path, _number: ""
    other = replace(FEED, parameters={"with": "lines"})
    with pytest.raises(ExtractionRefused, match="is to another request than would be made now"):
        asked(platform, other, ids="1..120")
    anew = asked(platform, other, ids="1..120", anew=True)
    states = [one.state for one in platform.ledger.extractions.of_feed("shop")]
    assert (anew.number, states) == (2, [ExtractionState.GIVEN_UP, ExtractionState.COMPLETE])


def test_two_processes_do_not_ask_one_server_at_once(platform: Platform, url: str) -> None:
    server = hashlib.sha256(url.encode()).hexdigest()[:16]
    with (
        alone_with(platform.settings.responses_folder, f"server-{server}", "asks"),
        pytest.raises(EnvironmentRefused, match="another process asks the server of shop"),
    ):
        asked(platform, ids="1..50")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_extracts_lists_loads_and_reconciles(
    platform: Platform, shop: Shop, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    monkeypatch.setenv("BACKFILL_PRODUCTS", '["api_product:PRODUCT"]')
    for name, value in settings_of(url).items():
        if name != "token":
            monkeypatch.setenv(f"BACKFILL_APIS__SHOP__{name.upper()}", value)

    def said(*arguments: str, exit_code: int = 0) -> str:
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == exit_code, done.output
        return done.stdout

    said("init")
    assert "extraction shop-1: COMPLETE, 120 records in 3 answers" in said("extract", "shop", "--ids", "1..120")
    assert json.loads(said("extractions", "shop", "--json"))[0]["loaded"] is False
    assert "extraction shop-1: 120 rows loaded, 0 quarantined\n  records: new 120\n" in said("load", "shop")
    (listed,) = json.loads(said("extractions", "shop", "--json"))
    assert (listed["loaded"], listed["asked"]) == (True, {"first": 1, "last": 120})
    del shop.orders[9]
    shown = said("extract", "shop", "--snapshot", "--reconcile")
    assert "against what was loaded: deleted 1, equal 119\n  deleted: 9\n" in shown
    assert json.loads(said("load", "shop", "--json"))[0]["changes"] == {"deleted": 1, "equal": 119}
    assert "shop: nothing to load" in said("load", "shop")
    assert "BySnapshotExport" in said("extractions", "shop")
    whole = shop.orders.pop(8)
    shop.orders[7] |= {"id": None}
    not_concluded = "  deletions are not concluded: 1 record has no usable key, and may be any that is missing\n"
    assert not_concluded in said("extract", "shop", "--snapshot", "--reconcile")
    monkeypatch.setenv("BACKFILL_QUARANTINE_LIMIT", "1")
    assert not_concluded in said("load", "shop")
    shop.orders |= {7: whole | {"id": 7}, 8: whole}
    for number in shop.orders:
        shop.orders[number]["updated_at"] = "2024-03-01T12:00:00Z"
    shop.plan = lambda _path, _number: "silent"
    assert "UNSTABLE" in said("extract", "shop", "--from", "2024-03-01", "--until", "2024-03-02", exit_code=1)
    assert [one.kind for one in examine(platform) if one.kind.startswith("extraction")] == ["extraction-unstable"]


def test_keys_are_withheld_where_the_policy_protects_the_table(platform: Platform, shop: Shop) -> None:
    asked(platform, ids="1..120")
    loaded(platform)
    del shop.orders[9]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Policy, "protects", lambda _self, table: table == TABLE)
        found = reconciled(platform, FEED, asked(platform, snapshot=True, reconciles=True))
    assert (found.counts, found.keys, found.withheld) == ({"deleted": 1, "equal": 119}, {}, True)


def test_a_load_that_is_taken_back_leaves_nothing_out_that_a_later_one_had_found_loaded(
    platform: Platform, shop: Shop
) -> None:
    asked(platform, ids="1..120")
    loaded(platform)
    shop.change("update")
    asked(platform, snapshot=True)
    assert loaded(platform)[0].changes == {"equal": 119, "updated": 1}
    first, _ = platform.lakehouse.loads(TABLE)
    undo_load(platform, TABLE, first.load_id, by="ada", reason="too early")
    assert len(rows(platform)) == 1
    assert loaded(platform)[0].changes == {"new": 119, "outdated": 1}
    assert held(platform) == served(shop)
    assert len(rows(platform)) == 120


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_whatever_is_extracted_loaded_and_taken_back_ends_with_each_record_once(
    platform: Platform, shop: Shop, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(14):
        for _ in range(chance.randrange(4)):
            shop.change(chance.choice(CHANGES))
        match chance.randrange(5):
            case 0:
                asked(platform, snapshot=True, reconciles=chance.random() < 0.5)
            case 1:
                asked(platform, ids=f"{chance.randint(1, 40)}..{chance.randint(50, 130)}", reconciles=True)
            case 2 if live := [one for one in platform.lakehouse.loads(TABLE) if one.undone_by is None]:
                undo_load(platform, TABLE, chance.choice(live).load_id, by="ada", reason="chance")
            case _:
                loaded(platform)
    asked(platform, snapshot=True, reconciles=True)
    loaded(platform)
    assert held(platform) == served(shop)
    assert max(Counter((row["response"], row["is_deleted"]) for row in rows(platform)).values()) == 1


def test_a_row_of_an_extraction_that_somebody_has_changed_is_named(platform: Platform) -> None:
    record = asked(platform, ids="1..50")
    with sqlite3.connect(platform.settings.home / "ledger.db") as connection:
        connection.execute("UPDATE extractions SET state = 'OPEN'")
    found = [(one.kind, record.id in one.where) for one in examine(platform) if not one.kind.startswith("api-")]
    assert found == [("changed-by-hand", True)]


def test_an_answer_on_record_that_somebody_has_changed_is_not_loaded(platform: Platform) -> None:
    asked(platform, ids="1..50")
    with sqlite3.connect(platform.settings.home / "ledger.db") as connection:
        connection.execute("UPDATE responses SET content_hash = 'other'")
    with pytest.raises(EnvironmentRefused, match="are not those that were sealed"):
        loaded(platform)
