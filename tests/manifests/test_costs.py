"""What a run is estimated to take, by recorded runs, and how far off that is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support import a_plan

from manifests.costs import Measured, Prices, RunCosts, error_of, estimate, in_time, in_usd, seconds_for
from manifests.plan import plan_from_json

PRICES = Prices(usd_per_core_hour=0.36, usd_per_gb_read=0.5, usd_per_gb_written=2.0)


def run(name: str, rows: int, seconds: float, written: int = 0) -> Measured:
    return Measured(name, rows, rows * 10, written or rows * 2, seconds)


def test_one_run_says_how_long_a_row_takes_and_not_how_wrong_that_is() -> None:
    costs = estimate(2_000, 20_000, [run("a", 1_000, 50)], 2, PRICES)
    assert (costs.seconds, costs.core_seconds, costs.written, costs.error) == (100.0, 200.0, 4_000, None)
    assert costs.usd == pytest.approx(200 / 3_600 * 0.36 + 20_000 / 1e9 * 0.5 + 4_000 / 1e9 * 2.0)
    assert (
        costs.describe()[0][1]
        == "about 100 s of computing, 200 core-seconds on 2 cores; learned from 1 recorded run(s)"
    )


def test_runs_of_several_sizes_tell_what_each_run_takes_from_what_each_row_does() -> None:
    found = [run("a", 1_000, 20 + 1), run("b", 10_000, 20 + 10), run("c", 100_000, 20 + 100)]
    assert seconds_for(found, 1_000_000) == pytest.approx(1_020)
    assert seconds_for(found, 1) == pytest.approx(20.001)


def test_one_run_on_a_busy_machine_says_little() -> None:
    found = [run(str(number), 1_000, 10) for number in range(6)] + [run("busy", 1_000, 1_000)]
    assert seconds_for(found, 1_000) == 10
    error = error_of(found)
    assert error is not None
    assert error == pytest.approx(0.99), "and the error says that one was missed"


@given(
    st.lists(st.tuples(st.integers(1, 10**9), st.floats(0.01, 10**6)), min_size=1, max_size=12), st.integers(0, 10**12)
)
def test_an_estimate_is_never_negative_and_grows_with_the_rows(sizes: list[tuple[int, float]], rows: int) -> None:
    found = [run(str(number), size, seconds) for number, (size, seconds) in enumerate(sizes)]
    less, more = seconds_for(found, rows), seconds_for(found, rows * 2 + 1)
    assert less is not None
    assert more is not None
    assert 0 <= less <= more


def test_the_error_is_that_of_a_run_by_the_others_alone() -> None:
    assert error_of([run("a", 1_000, 10), run("b", 1_000, 20)]) == 1.0
    assert error_of([run("a", 1_000, 10)]) is None
    said = estimate(1_000, 1, [run("a", 1_000, 10), run("b", 1_000, 20)], None, None).describe()
    assert said == [
        (
            "time",
            "about 15 s of computing; learned from 2 recorded run(s); it would have missed the worst of them by 100%",
        )
    ]


def test_what_is_not_known_is_not_said_and_never_free() -> None:
    nothing = estimate(1_000, 10_000, [], 2, PRICES)
    assert (nothing.seconds, nothing.usd, nothing.core_seconds) == (None, None, None)
    assert nothing.describe() == [("time and cost", "not estimated: no run of this transform is on record")]
    assert estimate(1_000, 10_000, [run("a", 1_000, 50)], None, PRICES).usd is None, "nobody knows the cores"
    assert estimate(1_000, 10_000, [run("a", 1_000, 50)], 2, None).usd is None, "nothing costs anything"
    by_bytes = Prices(usd_per_gb_read=1.0)
    assert estimate(1, 10**9, [run("a", 1, 50)], None, by_bytes).usd == pytest.approx(1.0), "cores cost nothing"
    assert not Prices().are_given
    assert PRICES.are_given


def test_a_plan_reads_its_estimate_back_and_says_nothing_where_there_is_none() -> None:
    from dataclasses import replace

    plan = a_plan()
    assert plan.costs is None
    assert "costs" not in plan.to_json()
    costs = RunCosts(1, 2, 3, 4.5, 2, PRICES, ("a", "b"), 0.25)
    assert plan_from_json(replace(plan, costs=costs).to_json()).costs == costs


@pytest.mark.parametrize(("seconds", "said"), [(90, "90 s"), (600, "10 min"), (9_000, "2.5 h")])
def test_a_duration_is_said_as_people_say_it(seconds: float, said: str) -> None:
    assert in_time(seconds) == said


@pytest.mark.parametrize("price", [-1.0, 1e7, 1e308, float("nan"), float("inf")])
def test_a_price_is_none_that_no_cost_could_be_reckoned_from(price: float) -> None:
    with pytest.raises(ValidationError):
        Prices(usd_per_core_hour=price)
    assert Prices(usd_per_core_hour=1e6).are_given


@pytest.mark.parametrize(
    ("usd", "said"),
    [
        (0.0, "0.00"),
        (0.004, "0.004"),
        (0.0046, "0.0046"),
        (0.00001234, "0.000012"),
        (0.01, "0.01"),
        (0.5, "0.50"),
        (1234.5, "1,234.50"),
    ],
)
def test_an_amount_of_less_than_a_cent_is_not_said_as_nothing(usd: float, said: str) -> None:
    assert in_usd(usd) == said
