"""Which tests `make test` leaves to `make test-exhaustive`: both together are every test there is.

A test marked `matrix` has cases that are a product: each mode with each point, each point with each act. `make test` tries
as many of them as it takes to try each value of each parameter once, the others are marked `exhaustive` here. What is
marked `exhaustive` as a whole is a long campaign, with a short one beside it that is not, or a day in a browser.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest

Value = tuple[object, object]
"""The parameters of one `parametrize`, and what it has given them."""


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark the cases of each matrix that are left out as `exhaustive`."""
    matrices: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("matrix") is not None and hasattr(item, "callspec"):
            matrices[item.nodeid.partition("[")[0]].append(item)
    for cases in matrices.values():
        tried = set(covering([_values(case) for case in cases]))
        for number, case in enumerate(cases):
            if number not in tried:
                case.add_marker("exhaustive")


def covering(cases: Sequence[frozenset[Value]]) -> list[int]:
    """Return the numbers of some cases that have, between them, each value that any case has.

    The one with most values that none before it has comes next, the first of several: always the same ones.
    """
    left = frozenset[Value]().union(*cases)
    chosen = []
    while left:
        best = max(range(len(cases)), key=lambda number: (len(cases[number] & left), -number))
        chosen.append(best)
        left -= cases[best]
    return chosen


def _values(case: pytest.Item) -> frozenset[Value]:
    """Return what each `parametrize` has given a case; what is given together is one value."""
    given: dict[str, object] = case.callspec.params  # type: ignore[attr-defined]  # of a case of a parametrised test
    found = set()
    for together in case.iter_markers("parametrize"):
        names = together.args[0]
        names = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)
        found.add((names, tuple(id(given[name]) for name in names)))
    return frozenset(found)
