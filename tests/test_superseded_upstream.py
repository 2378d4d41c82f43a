"""Whom the doctor tells that what was read of another target is superseded: whose chunks have read it, and which days to restate."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from worlds import SPARK, World

import backfill_assets as ba
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.planning.resolve import preview
from backfill_assets.planning.upstream import superseded, superseded_of
from benchmarks import orders, payments, regions
from manifests.model import RunManifest
from manifests.plan import Plan

JANUARY, MARCH = (date(2024, 1, 1), date(2024, 1, 31)), (date(2024, 3, 1), orders.LAST)
FEBRUARY = date(2024, 2, 1), date(2024, 2, 29)


def told_of(platform: Platform) -> list[tuple[str, str, str]]:
    """Return whom the doctor tells of superseded chunks, how sure it is, and the range that it advises to restate."""
    found = [one for one in examine(platform) if one.kind == "upstream-superseded"]
    return [
        (one.where, str(one.sure), one.fix.partition("RESTATEMENT of ")[2].partition(" (it pins")[0]) for one in found
    ]


def of_regions(run_id: str, start: date, end: date, **scope: Any) -> RunManifest:
    return regions.manifest(
        run_id, target={"table": regions.REGIONS, "publishRange": {"start": start, "end": end}, **scope}
    )


def test_a_run_is_told_of_what_the_chunks_that_it_holds_have_read_for_their_own_days(tmp_path: Path) -> None:
    divided = replace(regions.TARGET, chunk_values=ba.ByBucket("region", 3))
    platform = regions.opened(tmp_path / "home", divided, spark=SPARK)
    payments.fill(platform)
    world = World(platform, tmp_path / "home")
    world.published(orders.manifest("orders", orders.FIRST, FEBRUARY[1], "1.0.0"))
    world.published(of_regions("history", orders.FIRST, FEBRUARY[1]))
    world.published(orders.manifest("march", *MARCH, "1.0.0"))  # whose first day is the margin of February
    assert told_of(platform) == []
    first, others = divided.parts[:1], ", ".join(divided.parts[1:])
    world.published(of_regions("some", *FEBRUARY, values=list(first)))
    world.published(orders.manifest("dearer", *FEBRUARY, "2.0.0"))
    assert sorted(told_of(platform)) == [
        ("history", "certain", f"2024-02-01 to 2024-02-29 of {others}"),
        ("some", "certain", f"2024-02-01 to 2024-02-29 of {first[0]}"),
    ]
    (one,) = superseded_of(platform, platform.ledger.run("history"))
    assert (one.chunks, one.read, one.by) == (("2024-02",), "orders", "dearer")
    assert one.describe().endswith(f"run 'dearer' holds it now (read for 2024-02 of {others})")
    world.published(of_regions("restated", *FEBRUARY))  # exactly what is advised
    assert told_of(platform) == []


def test_what_is_superseded_in_the_margin_of_instants_alone_is_told_to_be_that(tmp_path: Path) -> None:
    by_instants = replace(regions.TARGET, source_time_column="ordered_at")
    platform = regions.opened(tmp_path / "home", by_instants, spark=SPARK)
    payments.fill(platform)
    world = World(platform, tmp_path / "home")
    world.published(orders.manifest("orders", orders.FIRST, FEBRUARY[1], "1.0.0"))
    world.published(of_regions("history", orders.FIRST, FEBRUARY[1]))
    world.published(orders.manifest("march", *MARCH, "1.0.0"))
    # an order of the first hours of March in UTC may be one of February in the transform's zone
    assert told_of(platform) == [("history", "possible", "2024-02-01 to 2024-02-29")]
    (one,) = superseded_of(platform, platform.ledger.run("history"))
    assert (one.chunks, one.read, one.by, one.margin) == (("2024-03",), "", "march", True)
    assert one.describe().endswith("(read for 2024-02, in the day of margin for time zones alone)")
    world.published(orders.manifest("dearer", *FEBRUARY, "2.0.0"))
    assert told_of(platform) == [
        ("history", "certain", "2024-02-01 to 2024-02-29"),  # and with it what it has read of March
        ("history", "possible", "2024-01-01 to 2024-01-31"),
    ]
    world.published(of_regions("restated", *FEBRUARY))
    assert told_of(platform) == [("history", "possible", "2024-01-01 to 2024-01-31")]


def planned_before_january_changed(platform: Platform) -> Plan:
    """Return the plan of a run over all months, after which January of what it reads was published anew."""
    payments.fill(platform)
    world = World(platform, platform.settings.home)
    world.published(orders.manifest("orders", orders.FIRST, orders.LAST, "1.0.0"))
    plan = preview(platform, regions.manifest("history"))
    world.published(orders.manifest("dearer", *JANUARY, "2.0.0"))
    return plan


@pytest.mark.parametrize(
    ("declared", "read_for"),
    [
        ({}, ["2024-01"]),
        ({"warm_up_days": lambda _: 3}, ["2024-01", "2024-02"]),
        ({"warm_up_days": lambda _: 40}, ["2024-01", "2024-02", "2024-03"]),
        ({"look_back_columns": ("order_id", "ordered_on")}, ["2024-01", "2024-02", "2024-03"]),
    ],
    ids=["its own days", "a warm-up", "a longer one", "a look-back"],
)
def test_nothing_that_a_chunk_needs_is_passed_over(
    tmp_path: Path, declared: dict[str, Any], read_for: list[str]
) -> None:
    platform = regions.opened(tmp_path / "home", replace(regions.TARGET, **declared), spark=SPARK)
    found = list(superseded(platform, planned_before_january_changed(platform)))
    assert [(one.margin, one.chunks, list(one.reading)) for one in found] == [(False, ("2024-01",), read_for)]


def test_by_another_date_than_what_is_read_is_cut_by_any_chunk_may_have_read_it(tmp_path: Path) -> None:
    platform = regions.opened(tmp_path / "home", spark=SPARK)
    plan = planned_before_january_changed(platform)
    find = platform.products.find_target
    by_another = replace(regions.TARGET, source_time_column="shipped_on")
    with mock.patch.object(
        type(platform.products),
        "find_target",
        lambda _, name: by_another if name == by_another.name else find(name),
    ):
        every = [chunk.key for chunk in plan.chunks]
        assert [(one.margin, list(one.reading)) for one in superseded(platform, plan)] == [(False, every)]
        (one,) = superseded(platform, plan, {"2024-03"})
        assert (one.margin, one.chunks, one.reading) == (False, ("2024-01",), ("2024-03",))
