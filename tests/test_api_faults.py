"""A server that does everything wrong, and processes that are killed: what it holds at the end is in the table once."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from api_product import FEED, TABLE
from api_server import ANSWERS, BEGAN, CHANGES, Shop, serving
from launches import launch
from test_apis import asked, held, loaded, newest, opened, rows, served, settings_of

import backfill_assets as ba
from backfill_assets import faults
from backfill_assets.extraction.refusals import ExtractionRefused
from backfill_assets.ingestion.extractions import load_extractions, reconciled
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from resources.ledger.extractions import ExtractionRecord, ExtractionState

POINTS = sorted(point for point in faults.POINTS if point.startswith("extracting."))


class Unreliable:
    """Decides, by a seed, which request goes wrong and how; every fault is injected in so many requests on average."""

    def __init__(self, seed: int, every: int) -> None:
        self.random, self.every, self.on = random.Random(seed), every, True

    def __call__(self, _path: str, _number: int) -> str:
        if not self.on or self.random.randrange(self.every):
            return ""
        kinds = [one for one in (*ANSWERS, *CHANGES) if one not in {"429-after", "slow"}]
        # what takes a second, or a time-out, is rarer
        return self.random.choice([*kinds * 4, "429-after", "slow"])


TIGHT = replace(FEED, limit=ba.RateLimit(requests=6, seconds=0.2))
"""The feed of the campaign: a limit that is reached all the time."""


def whatever_it_takes(platform: Platform, **options: Any) -> ExtractionRecord:
    """Give a command until it is done, as a person would; what is unstable is loaded on purpose, and reconciled later."""
    for _ in range(200):
        try:
            record = asked(platform, TIGHT, **options)
        except ExtractionRefused:
            continue
        if record.state is ExtractionState.UNSTABLE:
            load_extractions(platform, FEED, only=record.id, unstable=True)
        return record
    raise AssertionError("an extraction is never done")


def campaign(platform: Platform, shop: Shop, seed: int, wanted: int) -> None:
    """Ask for everything in each way until so many faults were injected, loading as it comes; then reconcile without any."""
    unreliable = shop.plan = Unreliable(seed, every=3)
    ways: list[dict[str, Any]] = [{}, {"ids": "1..1500"}, {"snapshot": True}]
    number = 0
    while shop.faults.total() < wanted:
        until = (BEGAN + timedelta(days=6)).date().isoformat()
        way = [*ways, {"start": "2024-01-01", "end": until}][number % 4]
        whatever_it_takes(platform, **way, reconciles=number % 3 == 2)
        loaded(platform)
        number += 1
    unreliable.on = False
    asked(platform, TIGHT, snapshot=True, reconciles=True)
    loaded(platform)


@pytest.mark.parametrize("wanted", [60, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_whatever_goes_wrong_each_record_of_the_server_is_there_once_and_the_limit_is_kept(
    tmp_path: Path, wanted: int
) -> None:
    shop = Shop(300, seed=wanted)
    with serving(shop) as url:
        platform = opened(tmp_path / "home", url)
        initialise(platform)
        campaign(platform, shop, wanted, wanted)
        last = asked(platform, TIGHT, snapshot=True, reconciles=True)
        assert set(reconciled(platform, FEED, last).counts) == {"equal"}
    assert shop.faults.total() >= wanted
    assert {*shop.faults} >= {"shift", "delete", "silent", "reset", "truncated", "expired"}
    assert held(platform) == served(shop)
    versions = Counter((row["order_id"], row["updated_at"], row["amount"], row["is_deleted"]) for row in rows(platform))
    current = [row for row in newest(platform).values() if not row["is_deleted"]]
    assert len(current) == len(shop.orders)
    assert versions.total() == len({row["response"] + str(row["is_deleted"]) for row in rows(platform)})
    most, limit = shop.most_within(TIGHT.limit.seconds), TIGHT.limit
    print(
        f"{shop.faults.total()} faults, {len(shop.arrived)} requests, at most {most} in {limit.seconds} s: {shop.faults}"
    )
    assert most == limit.requests  # it was reached, and never exceeded


# --- processes that are killed ----------------------------------------------------------------------------------------


@pytest.fixture
def shop() -> Shop:
    return Shop(300)


@pytest.fixture
def url(shop: Shop) -> Iterator[str]:
    with serving(shop) as address:
        yield address


@pytest.fixture
def home(tmp_path: Path, url: str) -> Path:
    initialise(opened(tmp_path / "home", url))
    return tmp_path / "home"


def variables(home: Path, url: str) -> dict[str, str]:
    own = {f"BACKFILL_APIS__SHOP__{name.upper()}": value for name, value in settings_of(url).items()}
    return own | {"BACKFILL_HOME": str(home), "BACKFILL_PRODUCTS": json.dumps(["api_product:PRODUCT"])}


@pytest.mark.parametrize("point", POINTS)
def test_an_extraction_that_is_killed_goes_on_where_it_stopped(home: Path, url: str, shop: Shop, point: str) -> None:
    arguments = ("extract", "shop", "--ids", "1..300", "--json")
    assert launch(*arguments, environment=variables(home, url) | {faults.VARIABLE: point}).ended() == -signal.SIGKILL
    before = Counter(shop.asked)
    again = launch(*arguments, environment=variables(home, url))
    again.finish(0)
    said = json.loads(again.output)["extraction"]
    over_before = point == "extracting.sealed"
    assert (said["state"], said["records"], said["number"]) == ("COMPLETE", 300, 2 if over_before else 1)
    twice = [path for path, times in Counter(shop.asked).items() if times > 1]
    kept_before = {} if point == "extracting.answered" else before
    assert over_before or set(twice).isdisjoint(kept_before)
    platform = opened(home, url)
    loaded(platform)
    assert held(platform) == served(shop)
    assert len(rows(platform)) == 300
    assert not list(platform.settings.responses_folder.rglob("*.partial"))


def test_an_extraction_that_is_killed_at_any_moment_ends_as_one_that_is_not(home: Path, url: str, shop: Shop) -> None:
    slow = variables(home, url)
    arguments = ("extract", "shop", "--from", "2024-01-01", "--until", "2024-01-14", "--json")
    kills = 0
    for requests in (3, 6, 9):
        process = launch(*arguments, environment=slow)
        while len(shop.asked) < requests and process.is_running():
            pass
        process.kill()
        kills += 1
    last = launch(*arguments, environment=slow)
    last.finish(0)
    assert kills == 3
    assert json.loads(last.output)["extraction"]["records"] == 300
    assert max(Counter(shop.asked).values()) <= 1 + 3  # what was under way when it was killed, once for each kill
    kept = opened(home, url).ledger.extractions.responses("shop-1")
    assert len({(one.part, one.reading, one.page) for one in kept}) == len(kept)
    assert shop.most_within(FEED.limit.seconds) <= FEED.limit.requests


def test_a_load_that_is_repeated_after_a_kill_appends_nothing_twice(home: Path, url: str, shop: Shop) -> None:
    shop.orders[3] |= {"status": "LOST"}
    platform = opened(home, url)
    asked(platform, ids="1..300")
    append, left = type(platform.lakehouse).append, [1]

    def dies(self: Any, name: str, *rest: Any, **named: Any) -> Any:
        if name == TABLE and left.pop():
            raise KeyboardInterrupt  # between the quarantine and the table
        return append(self, name, *rest, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(platform.lakehouse), "append", dies)
        with pytest.raises(KeyboardInterrupt):
            loaded(platform)
    (done,) = loaded(opened(home, url))
    assert done.loaded.counted.events == 299
    assert platform.lakehouse.table(f"{TABLE}_quarantine").scan().to_arrow().num_rows == 1
    assert len(rows(platform)) == 299
