"""Loads of extractions: in the order of the table's history, each without the others' damage, under the table's lease."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from api_product import FEED, TABLE, translate, with_feed
from api_server import Shop, serving
from test_apis import asked, held, loaded, opened, rows, served, settings_of

import backfill_assets as ba
from backfill_assets import faults
from backfill_assets.extraction import http_client
from backfill_assets.extraction.credentials import Credentials
from backfill_assets.extraction.questions import question
from backfill_assets.extraction.refusals import ArchiveRefused, ExtractionRefused
from backfill_assets.ingestion import held_tables
from backfill_assets.ingestion.extractions import load_extractions
from backfill_assets.ingestion.table_loads import undo_load
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from manifests.errors import InputRefused, LeaseHeld
from resources.ledger.tables import leases


@pytest.fixture
def shop() -> Shop:
    return Shop(120)


@pytest.fixture
def url(shop: Shop) -> Iterator[str]:
    with serving(shop) as address:
        yield address


@pytest.fixture
def platform(tmp_path: Path, url: str) -> Platform:
    made = opened(tmp_path / "home", url)
    initialise(made)
    return made


@pytest.mark.parametrize("days", [-2, 2], ids=["clock set back", "clock ahead"])
def test_the_order_of_loads_does_not_go_by_clocks(
    platform: Platform, shop: Shop, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    asked(platform, ids="1..120")
    loaded(platform)
    first = platform.lakehouse.loads(TABLE)[0]
    if days > 0:  # taken back before the next load, by a clock that was ahead
        undo_load(platform, TABLE, first.load_id, by="ada", reason="too early")
    shop.change("update")
    asked(platform, snapshot=True)
    assert loaded(platform, only="shop-2")[0].changes == ({"new": 120} if days > 0 else {"equal": 119, "updated": 1})
    if days < 0:
        undo_load(platform, TABLE, first.load_id, by="ada", reason="too early")
    real = platform.lakehouse.loads

    def bent(name: str) -> list[Any]:
        return [
            replace(one, undone_at=one.undone_at + timedelta(days=days)) if one.undone_at else one for one in real(name)
        ]

    monkeypatch.setattr(platform.lakehouse, "loads", bent)
    loaded(platform)
    assert held(platform) == served(shop)
    assert len({row["order_id"] for row in rows(platform)}) == len(rows(platform)) == 120


def test_while_a_feed_is_loaded_no_load_of_its_table_is_taken_back_and_the_other_way_round(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_tables, "_WAIT_SECONDS", 0.0)
    asked(platform, ids="1..50")
    loaded(platform)
    first = platform.lakehouse.loads(TABLE)[0].load_id
    asked(platform, ids="1..120")
    refused: list[str] = []

    def reach(point: str) -> None:
        try:
            if point == "loading.quarantined" and not refused:
                undo_load(platform, TABLE, first, by="ada", reason="too early")
            elif point == "unloading.quarantine":
                load_extractions(platform, FEED)
        except LeaseHeld as held_by:
            refused.append(str(held_by))

    monkeypatch.setattr(faults, "reach", reach)
    assert loaded(platform)[0].changes == {"equal": 50, "new": 70}
    undo_load(platform, TABLE, first, by="ada", reason="too early")
    assert [("(load" in one, "(unload" in one) for one in refused] == [(True, False), (False, True)]
    assert len(rows(platform)) == 70


# --- answers that nobody expects --------------------------------------------------------------------------------------


def _changed(shop: Shop, number: int, **fields: Any) -> None:
    shop.orders[number] = shop.orders[number] | fields


def quarantined(platform: Platform) -> list[str]:
    return sorted(platform.lakehouse.table(f"{TABLE}_quarantine").scan().to_arrow().column("reason").to_pylist())


def test_half_a_character_and_an_instant_beyond_the_calendar_are_quarantined_where_they_stand(
    platform: Platform, shop: Shop
) -> None:
    _changed(shop, 1, id="\ud800")
    _changed(shop, 2, status="\udfff")
    _changed(shop, 3, updated_at="9999-12-31T23:59:59-05:00")
    _changed(shop, 4, updated_at="0001-01-01T00:00:00+05:00")
    assert asked(platform).state == "COMPLETE"
    (done,) = loaded(platform)
    assert (done.loaded.counted.events, done.loaded.counted.quarantined) == (116, 4)
    assert quarantined(platform) == [
        "an unknown status",
        "no text at id: half of a character",
        *["updated_at: not Datetime(time_unit='us', time_zone='UTC')"] * 2,
    ]


def _saying_twice(shop: Shop, monkeypatch: pytest.MonkeyPatch, twice: dict[str, str]) -> None:
    """Have the shop say more in its answers: by the beginning of an object, the members that come before it."""
    answer = shop.answer

    def bent(*asked: Any) -> Any:
        found = answer(*asked)
        text = found if found is None or isinstance(found, str) else json.dumps(found)
        for start, more in twice.items():
            text = text and text.replace(start, "{" + more + start.removeprefix("{"))
        return text

    monkeypatch.setattr(shop, "answer", bent)


def test_a_record_that_says_a_member_twice_is_quarantined_with_both_and_believed_when_it_says_it_once(
    platform: Platform, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    _changed(shop, 5, more=[{"size": 1, "note": None}])
    with monkeypatch.context() as patch:
        _saying_twice(
            shop,
            patch,
            {'{"id": 2,': '"status": "PAID", ', '{"id": 4,': '"id": 400, ', '{"size": 1,': '"size": 7.50, '},
        )
        asked(platform, ids="1..120")
    (done,) = loaded(platform)
    assert (done.loaded.counted.events, done.loaded.counted.quarantined) == (117, 3)
    assert quarantined(platform) == [f'has the member "{name}" twice' for name in ("id", "size", "status")]
    records = platform.lakehouse.table(f"{TABLE}_quarantine").scan().to_arrow()["record"].to_pylist()
    assert [
        any(said in record for record in records) for said in ('{"id": 400, "id": 4,', '[{"size": "7.50", "size": 1,')
    ] == [True] * 2
    asked(platform, ids="1..120")
    loaded(platform)
    assert held(platform) == served(shop)


def test_records_that_differ_in_what_they_say_first_of_a_member_alone_are_all_quarantined(
    platform: Platform, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = shop.answer

    def bent(*asked: Any) -> Any:
        found = answer(*asked)
        items = [json.dumps(one) for one in found["data"]["items"]]
        items += [
            f'{{"status": "{said}", {one[1:]}'
            for one in items
            if '"id": 2,' in one
            for said in ("PAID", "LOST", "PAID")
        ]
        return f'{{"data": {{"items": [{", ".join(items)}]}}}}'

    with monkeypatch.context() as patch:
        patch.setattr(shop, "answer", bent)
        asked(platform, ids="1..120")
    loaded(platform)
    records = platform.lakehouse.table(f"{TABLE}_quarantine").scan().to_arrow()["record"].to_pylist()
    assert sorted(record[: len('{"status": "PAID"')] for record in records) == [
        '{"status": "LOST"',
        '{"status": "PAID"',
    ]


def test_an_answer_that_says_twice_where_its_records_are_is_refused(
    platform: Platform, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    _saying_twice(shop, monkeypatch, {'{"items":': '"items": [], '})
    with pytest.raises(ExtractionRefused, match='it has the member "items" twice'):
        asked(platform, ids="1..120")


def test_half_a_character_that_a_translator_gives_is_quarantined(tmp_path: Path, url: str, shop: Shop) -> None:
    def translated(record: Any, facts: ba.ResponseFacts) -> Any:
        return dict(translate(record, facts)) | {"status": record["status"] + ("\ud800" if record["id"] == 7 else "")}

    platform = opened(tmp_path / "home", url, with_feed(translate=translated))
    initialise(platform)
    feed = platform.products.api("shop")
    asked(platform, feed, ids="1..120")
    assert loaded(platform, feed)[0].loaded.counted.by_reason == {"status: has half of a character": 1}


@pytest.mark.parametrize(
    ("start", "end"),
    [("9999-12-31T00:00-05:00", "9999-12-31T23:59-05:00"), ("0001-01-01T00:00+05:00", "2024-01-01")],
)
def test_a_time_that_is_in_no_year_cannot_be_asked_for(start: str, end: str) -> None:
    with pytest.raises(InputRefused, match="it is a day or an instant"):
        question(FEED, start=start, end=end)


def test_the_first_and_the_last_days_of_the_calendar_can_be_asked_for(platform: Platform) -> None:
    for start, end in (("0001-01-01", "0001-01-02"), ("9999-12-30", "9999-12-31T23:59:59")):
        assert asked(platform, start=start, end=end).records == 0


@pytest.mark.parametrize(
    "said", ["Fri, 31 Dec 99999 23:59:59 GMT", f"Fri, 31 Dec {'9' * 30} 23:59:59 GMT", "9" * 400, "soon", ""]
)
def test_a_time_to_wait_until_that_no_calendar_has_is_none(said: str) -> None:
    assert 0 <= http_client._retry_after(said, datetime(2024, 1, 1, tzinfo=UTC)) < 10**9


@pytest.mark.parametrize(("seconds", "asked_for"), [(10**400, 1), (-1, 3), (0, 3)])
def test_a_token_may_be_good_for_ever_or_for_no_time(seconds: int, asked_for: int) -> None:
    answers: list[bytes] = []

    def ask_for_token(_address: str, _form: Any) -> bytes:
        answers.append(f'{{"access_token": "t{len(answers)}", "expires_in": {seconds}}}'.encode())
        return answers[-1]

    credentials = Credentials(FEED, settings_of("http://localhost"))
    sent = [credentials.headers(ask_for_token)["Authorization"] for _ in range(3)]
    assert (len(answers), len(set(sent))) == (asked_for, asked_for)


# --- archives and declarations that have changed ----------------------------------------------------------------------


def test_records_that_are_declared_elsewhere_by_now_are_refused_by_name(platform: Platform) -> None:
    asked(platform, ids="1..50")
    with pytest.raises(InputRefused, match=r"read otherwise than when it came: it has nothing at data\.rows"):
        load_extractions(platform, replace(FEED, records="data.rows"))
    assert loaded(platform)[0].changes == {"new": 50}


def test_another_list_of_as_many_records_is_not_taken_for_the_one_that_was_read(platform: Platform, shop: Shop) -> None:
    real = shop.answer

    def twice(*given: Any) -> Any:
        found = real(*given)
        found["data"]["others"] = found["data"]["items"][::-1]
        return found

    shop.answer = twice  # type: ignore[method-assign]
    asked(platform, ids="1..50")
    with pytest.raises(InputRefused, match="record 0 is another one"):
        load_extractions(platform, replace(FEED, records="data.others"))
    assert rows(platform) == []


def _damage(platform: Platform, number: int, name: str) -> Path:
    file = platform.settings.responses_folder / "shop" / f"{number:06d}" / name
    file.chmod(0o644)
    file.rename(file.with_name("moved"))
    return file


@pytest.mark.parametrize("name", ["index.parquet", "000001.response"])
def test_an_extraction_whose_archive_is_damaged_does_not_hold_up_others(
    platform: Platform, shop: Shop, name: str
) -> None:
    asked(platform, ids="1..50")
    asked(platform, ids="40..120")
    file = _damage(platform, 1, name)
    with pytest.raises(ArchiveRefused, match=r"extraction shop-1 is not loaded: .*; loaded were shop-2"):
        loaded(platform)
    assert len(rows(platform)) == 81
    file.with_name("moved").rename(file)
    assert loaded(platform)[0].changes == {"equal": 11, "new": 39}
    assert held(platform) == served(shop)
    assert len(rows(platform)) == 120


def test_what_says_what_is_deleted_waits_for_a_damaged_one_before_it(platform: Platform, shop: Shop) -> None:
    asked(platform, ids="1..50")
    del shop.orders[7]
    asked(platform, snapshot=True, reconciles=True)
    file = _damage(platform, 1, "index.parquet")
    with pytest.raises(
        ArchiveRefused, match=r"shop-2 is not loaded: it says what the server has no more, and shop-1"
    ) as said:
        loaded(platform)
    assert rows(platform) == []
    assert "--extraction shop-2" in said.value.problems[1].fix
    assert [one.ended_how for one in _leases(platform)] == ["RELEASED"], "nobody has to fence what is given back"
    file.with_name("moved").rename(file)
    assert [one.changes for one in loaded(platform)] == [{"new": 50}, {"deleted": 1, "equal": 49, "new": 70}]
    assert held(platform) == served(shop)


def _leases(platform: Platform) -> list[Any]:
    with platform.ledger.engine.connect() as connection:
        return list(connection.execute(sa.select(leases).order_by(leases.c.id)).all())


def test_where_the_archive_of_what_is_loaded_is_gone_taking_it_back_is_a_way_out(
    platform: Platform, shop: Shop
) -> None:
    asked(platform, ids="1..50")
    loaded(platform)
    asked(platform, ids="40..60")
    loaded(platform)
    first, second = (one.load_id for one in platform.lakehouse.loads(TABLE))
    _damage(platform, 1, "index.parquet")
    asked(platform, ids="1..120")
    with pytest.raises(ArchiveRefused, match=f"newest first \\({second}, {first}\\)"):
        loaded(platform)
    for load_id in (second, first):
        undo_load(platform, TABLE, load_id, by="ada", reason="its archive is gone")
    with pytest.raises(ArchiveRefused, match="extraction shop-1 is not loaded"):
        loaded(platform)
    assert held(platform) == served(shop)
    assert len(rows(platform)) == 120
