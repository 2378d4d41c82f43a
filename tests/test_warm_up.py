"""A warm-up is what a product computes: one that raises, or is no number of days, refuses the plan in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from backfill_assets.declarations import finding
from backfill_assets.declarations.product import Product
from backfill_assets.installation import Platform
from backfill_assets.planning.resolve import plan_run
from benchmarks import small_table
from benchmarks.small_table import serves
from manifests.errors import PlanRefused


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with small_table.declared():
        platform = small_table.opened(tmp_path_factory.mktemp("warm") / "home")
        small_table.initialise(platform)
        yield platform
        small_table.closed(platform)


def by_name(references: Any) -> int:
    return int(references["reference.meters"][0]["days"])


def raising(_: Any) -> int:
    raise ValueError("no meter is read that often\nand more")


@pytest.mark.parametrize(
    ("warm_up", "said"),
    [
        (by_name, "it raised KeyError: 'reference.meters' (test_warm_up.py, line 30)"),
        (raising, "it raised ValueError: no meter is read that often (test_warm_up.py, line 34)"),
        (lambda _: -1, "it returned -1"),
        (lambda _: 10**9, "it returned 1000000000"),
        (lambda _: 2.5, "it returned 2.5"),
        (lambda _: None, "it returned None"),
        (lambda _: True, "it returned True"),
    ],
)
def test_a_warm_up_that_cannot_be_used_refuses_the_plan(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, warm_up: Callable[[Any], Any], said: str
) -> None:
    target = replace(small_table.TARGET, warm_up_days=warm_up)
    monkeypatch.setattr(finding, "find_products", serves(Product("readings", (), (target,))))
    with pytest.raises(PlanRefused) as refused:
        plan_run(platform, small_table.manifest("warm", "REPLACE_PARTITIONS", small_table.SCOPE))
    (problem,) = refused.value.problems
    assert (problem.where, problem.what) == ("silver.readings: warm_up_days", said)
    assert "returns whole days, 0 to 36500" in problem.rule
    assert problem.fix == "correct the function; the references are none"
