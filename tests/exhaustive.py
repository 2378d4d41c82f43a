"""Which cases `make test` leaves to `make test-exhaustive`: both together are every test there is.

`make test` aims at ten minutes. It tries each test of which a case takes at most `CASE_SECONDS`, and as many cases of it as take
no more than `CASES_SECONDS` together, one at least; none of a module whose fixtures take more than `FIXTURES_SECONDS` for each of
them. A test marked `matrix` has cases that are a product, each mode with each
point, each point with each act: of those the first are the ones that try each value of each parameter once. What is marked
`check` is always tried: a restatement from plan to published, a crash of each phase. What is left out is marked `exhaustive`
here. What is marked so where it stands is a long campaign or a day in a browser; cases beside it that are not are always tried.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest
from durations import by_test, fixtures_of, module_of, seconds_of

CASE_SECONDS, CASES_SECONDS = 1.0, 1.0
"""Seconds that `make test` has for one case of a test, and for those that it tries of one test."""
FIXTURES_SECONDS = 1.0
"""Seconds that it has for the fixtures of a module, for each test of the module that it tries."""
Value = tuple[object, object]
"""The parameters of one `parametrize`, and what it has given them."""


def mark(items: Sequence[pytest.Item]) -> None:
    """Mark the cases of each test that are left out as `exhaustive`."""
    for all_cases in by_test(items):
        cases = [case for case in all_cases if case.get_closest_marker("exhaustive") is None]
        if len(cases) < len(all_cases):
            continue  # a long campaign, and what is short beside it
        tried = set(tried_of(cases, seconds_of(cases[0])))
        _leave_out(case for number, case in enumerate(cases) if number not in tried)
    by_module: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("exhaustive") is None:
            by_module[module_of(item)].append(item)
    for module, tried_there in by_module.items():
        if fixtures_of(module) > FIXTURES_SECONDS * len(tried_there):
            _leave_out(tried_there)


def _leave_out(cases: Iterable[pytest.Item]) -> None:
    for case in cases:
        if case.get_closest_marker("check") is None:
            case.add_marker("exhaustive")


def tried_of(cases: Sequence[pytest.Item], seconds: float) -> list[int]:
    """Return the numbers of the cases that are not left out; `seconds` is what all of them take."""
    if seconds > CASE_SECONDS * len(cases):
        return []
    order = list(range(len(cases)))
    if cases[0].get_closest_marker("matrix") is not None and hasattr(cases[0], "callspec"):
        order = covering([_values(case) for case in cases])
    fitting = int(CASES_SECONDS * len(cases) / seconds) if seconds else len(cases)
    return spread(order, max(1, fitting))


def spread(numbers: Sequence[int], how_many: int) -> list[int]:
    """Return so many of some numbers, from all over them and always the same ones."""
    if len(numbers) <= how_many:
        return list(numbers)
    return [numbers[place * len(numbers) // how_many] for place in range(how_many)]


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
