"""What `make test` leaves to `make test-exhaustive`: of a product of cases it tries each value of each parameter."""

from __future__ import annotations

from itertools import product

import pytest
from exhaustive import covering, mark

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
"""


def test_each_value_is_tried_by_as_many_cases_as_the_longest_parameter_has_values() -> None:
    cases = [frozenset({("mode", mode), ("point", point)}) for mode, point in product(range(3), range(5))]
    tried = covering(cases)
    assert len(tried) == 5
    assert frozenset().union(*(cases[number] for number in tried)) == frozenset().union(*cases)
    assert covering(cases) == tried
    assert covering([]) == []


def test_what_one_target_leaves_out_the_other_one_tries(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n matrix\n exhaustive")
    items = pytester.getitems(MODULE)
    mark(items)
    left = {item.name for item in items if item.get_closest_marker("exhaustive") is not None}
    tried = {item.name for item in items} - left
    assert {"test_of_each[x]", "test_of_each[y]", "test_of_one_case"} < tried
    assert "test_at_length" in left
    of_the_matrix = {name for name in tried if "of_a_matrix" in name}
    assert len(of_the_matrix) == 3
    assert {letter for name in of_the_matrix for letter in name.partition("[")[2] if letter.isalpha()} == set("xyabc")
