"""What `make test` leaves to `make test-exhaustive`: tests that take long, and cases that would take a test too long."""

from __future__ import annotations

from itertools import product

import pytest
from durations import dealt, part
from durations import test_of as name_of
from exhaustive import CASE_SECONDS, CASES_SECONDS, FIXTURES_SECONDS, covering, mark, spread

pytest_plugins = ["pytester"]

MODULE = """
import pytest

@pytest.mark.matrix
@pytest.mark.parametrize("point", ["a", "b", "c"])
@pytest.mark.parametrize("mode", ["x", "y"])
def test_of_a_matrix(mode, point): ...

@pytest.mark.parametrize("mode", ["x", "y"])
def test_of_each(mode): ...

@pytest.mark.matrix
def test_of_one_case(): ...

@pytest.mark.exhaustive
def test_at_length(): ...

@pytest.mark.parametrize("number", range(10))
def test_of_ten(number): ...

@pytest.mark.parametrize("number", [*range(5), pytest.param(5, marks=pytest.mark.check)])
def test_that_is_long(number): ...

@pytest.mark.parametrize("number", [3, pytest.param(2000, marks=pytest.mark.exhaustive)])
def test_of_a_campaign_that_is_long(number): ...
"""


def test_each_value_is_tried_by_as_many_cases_as_the_longest_parameter_has_values() -> None:
    cases = [frozenset({("mode", mode), ("point", point)}) for mode, point in product(range(3), range(5))]
    tried = covering(cases)
    assert len(tried) == 5
    assert frozenset().union(*(cases[number] for number in tried)) == frozenset().union(*cases)
    assert covering(cases) == tried
    assert covering([]) == []


def test_what_one_target_leaves_out_the_other_one_tries(pytester: pytest.Pytester) -> None:
    tried = tried_in(pytester)
    assert {"test_of_each[x]", "test_of_each[y]", "test_of_one_case"} < tried
    assert "test_at_length" not in tried
    of_the_matrix = {name for name in tried if "of_a_matrix" in name}
    assert len(of_the_matrix) == 3
    assert {letter for name in of_the_matrix for letter in name.partition("[")[2] if letter.isalpha()} == set("xyabc")


def tried_in(pytester: pytest.Pytester) -> set[str]:
    pytester.makeini("[pytest]\nmarkers =\n matrix\n exhaustive\n check")
    items = pytester.getitems(MODULE)
    mark(items)
    return {item.name for item in items if item.get_closest_marker("exhaustive") is None}


def test_of_a_test_as_many_cases_are_tried_as_its_time_allows(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"test_of_ten": CASES_SECONDS * 10 / 3, "test_of_a_matrix": CASES_SECONDS * 6, "test_of_each": 0.1}
    monkeypatch.setattr("exhaustive.seconds_of", lambda item: seconds.get(name_of(item.nodeid), 0.0))
    tried = tried_in(pytester)
    assert {name for name in tried if "of_ten" in name} == {"test_of_ten[0]", "test_of_ten[3]", "test_of_ten[6]"}
    assert [name for name in tried if "of_a_matrix" in name] == ["test_of_a_matrix[x-a]"]
    assert len([name for name in tried if "of_each" in name]) == 2


def test_one_that_takes_long_is_left_out_but_for_what_the_inner_loop_runs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exhaustive.seconds_of", lambda item: CASE_SECONDS * 6 + 1 if "long" in item.name else 0.0)
    tried = tried_in(pytester)
    assert {name for name in tried if "that_is_long" in name} == {
        "test_that_is_long[5]",
        "test_of_a_campaign_that_is_long[3]",
    }
    assert len([name for name in tried if "of_ten" in name]) == 10


def test_a_module_whose_fixtures_take_long_is_left_out_but_for_what_the_inner_loop_runs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exhaustive.fixtures_of", lambda _: 0.0)
    tried = tried_in(pytester)
    monkeypatch.setattr("exhaustive.fixtures_of", lambda _: FIXTURES_SECONDS * len(tried))
    assert tried_in(pytester) == tried
    monkeypatch.setattr("exhaustive.fixtures_of", lambda _: FIXTURES_SECONDS * len(tried) + 1)
    assert tried_in(pytester) == {"test_that_is_long[5]"}


def test_a_spread_is_from_all_over() -> None:
    assert spread(range(10), 3) == [0, 3, 6]
    assert spread([4, 2], 5) == [4, 2]


def test_the_parts_of_what_is_left_out_are_all_of_it_and_take_equally_long() -> None:
    seconds = {"a": 50.0, "b": 20.0, "c": 20.0, "d": 12.0, **dict.fromkeys("efgh", 0.0)}
    parts = dealt(seconds, 2)
    assert set(parts) == set(seconds)
    assert {number: sum(seconds[module] for module in seconds if parts[module] == number) for number in (1, 2)} == {
        1: 50,
        2: 52,
    }
    assert dealt(dict(reversed(seconds.items())), 2) == parts
    assert set(dealt(seconds, 1).values()) == {1}


def test_a_part_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no part 3 of 2"):
        part([], 3, 2)
