"""One at a time loads into an input table, releases its quarantined rows or takes a load back; who stood still is fenced."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from feed_world import TABLE, file_of, fresh_site
from test_quarantine_orders import READINGS, _products_as_they_were, held, load, opened, release_all

from backfill_assets import faults
from backfill_assets.ingestion import held_tables
from backfill_assets.ingestion.table_loads import load_file, undo_load
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.quarantine import unloads_interrupted
from backfill_assets.planning.quarantine_cases import cases_of
from manifests.errors import LeaseHeld, LeaseLost

__all__ = ["_products_as_they_were"]


@pytest.fixture(autouse=True)
def _nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_tables, "_WAIT_SECONDS", 0.0)


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    """An installation with one row loaded and one in quarantine that passes the rule of today."""
    load(opened(tmp_path / "home", 0), tmp_path, "a.csv", [("m1", 5), ("m2", -3)])
    return opened(tmp_path / "home", -20, lease_seconds=1)


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Callable[[], Any]], None]]:
    """Have something happen once at a named point."""

    def happens(point: str, what: Callable[[], Any]) -> None:
        left = [what]

        def reach(name: str) -> None:
            if name == point and left:
                left.pop()()

        monkeypatch.setattr(faults, "reach", reach)

    return happens


def _past_the_lease(then: Callable[[], Any]) -> Callable[[], Any]:
    def paused() -> None:
        time.sleep(1.1)
        then()

    return paused


def _file(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(f"meter,read_at,watt_hours\n{text}\n")
    return folder / name


def test_an_equal_row_is_not_loaded_beside_its_release(platform: Platform, tmp_path: Path, at: Any) -> None:
    equal = _file(tmp_path, "b.csv", "m2,2024-01-01T12:00:00Z,-3")
    refused = []

    def loads() -> None:
        with pytest.raises(LeaseHeld, match="release"):
            load_file(platform, READINGS, equal)
        refused.append(True)

    at("releasing.judged", loads)
    release_all(platform)
    assert refused
    assert held(platform) == Counter({("m1", 5): 1, ("m2", -3): 1})


def test_a_row_is_not_released_beside_an_equal_one_that_is_loaded(platform: Platform, tmp_path: Path, at: Any) -> None:
    def releases() -> None:
        with pytest.raises(LeaseHeld, match="load"):
            release_all(platform)

    at("loading.quarantined", releases)
    load_file(platform, READINGS, _file(tmp_path, "b.csv", "m2,2024-01-01T12:00:00Z,-3"))
    done = release_all(platform)
    assert [why for _, why in done.waiting] == ["the table has an equal row"]
    assert held(platform) == Counter({("m1", 5): 1, ("m2", -3): 1})


def test_a_load_that_stood_still_past_its_lease_brings_nothing(platform: Platform, tmp_path: Path, at: Any) -> None:
    file = _file(tmp_path, "b.csv", "m2,2024-01-01T12:00:00Z,-3")
    at("loading.quarantined", _past_the_lease(lambda: release_all(platform)))
    with pytest.raises(LeaseLost):
        load_file(platform, READINGS, file)
    assert held(platform) == Counter({("m1", 5): 1, ("m2", -3): 1})


def test_an_unload_that_stood_still_past_its_lease_is_refused_named_and_ended_by_itself(
    platform: Platform, tmp_path: Path, at: Any
) -> None:
    first = platform.lakehouse.loads(READINGS)[0].load_id
    other = _file(tmp_path, "b.csv", "m9,2024-01-01T12:00:00Z,9")
    at("unloading.quarantine", _past_the_lease(lambda: load_file(platform, READINGS, other)))
    with pytest.raises(LeaseLost):
        undo_load(platform, READINGS, first, by="ada", reason="the wrong file")
    assert held(platform) == Counter({("m1", 5): 1, ("m9", 9): 1})
    assert not cases_of(platform, platform.products.input(READINGS)).all
    (found,) = unloads_interrupted(platform)
    assert (found.kind, first in found.what, "backfill unload" in found.fix) == ("unload-interrupted", True, True)
    undo_load(platform, READINGS, first, by="ada", reason="the wrong file")
    assert held(platform) == Counter({("m9", 9): 1})
    assert list(unloads_interrupted(platform)) == []


def test_a_lease_is_kept_for_as_long_as_rows_are_written(platform: Platform) -> None:
    def batches() -> Iterator[int]:
        for number in range(3):
            time.sleep(0.5)
            yield number

    with held_tables.held_to_load(platform, READINGS) as table:
        for _ in table.keeping(batches()):
            pass
        with pytest.raises(LeaseHeld), held_tables.held_to_load(platform, READINGS):
            pass


def test_who_brings_rows_waits_for_the_table(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_tables, "_WAIT_SECONDS", 5.0)
    leases = platform.ledger.leases(1)
    with held_tables.held_to_load(platform, READINGS) as table:
        leases.renew(table.lease)
        began = time.monotonic()
        with held_tables.held_to_load(platform, READINGS) as second:  # the first one stands still for a second
            assert time.monotonic() - began > 0.5
            assert table.lease.token in second.lease.lost
        with pytest.raises(LeaseLost):
            leases.renew(table.lease)


def test_a_receipt_holds_the_table_and_decides_upon_nothing_once_it_has_lost_it(at: Any) -> None:
    site = fresh_site()
    site.land(file_of(1, 2, 3))
    site.receive()
    (entry,) = site.entries
    site.land(file_of(9, 2, 3))

    def takes_back() -> None:
        with pytest.raises(LeaseHeld, match="receive"):
            undo_load(site.platform, TABLE.name, entry.load_id, by="ada", reason="the wrong meter")

    at("receiving.kept", takes_back)
    site.receive()
    assert site.statuses() == ["ACCEPTED", "CORRECTION"]

    site.land(file_of(8, 2, 3))
    assert site.platform.ledger.repairs.open_leases() == []

    def another_takes_it_over() -> None:
        (mine,) = site.platform.ledger.repairs.open_leases()
        site.platform.ledger.repairs.lose_lease(mine.id)

    at("receiving.kept", another_takes_it_over)
    with pytest.raises(LeaseLost):
        site.receive()
    assert site.statuses() == ["ACCEPTED", "CORRECTION"]
    site.receive()
    assert site.statuses() == ["ACCEPTED", "CORRECTION", "CORRECTION"]
