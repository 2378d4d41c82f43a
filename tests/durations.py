"""How long each test took when all of them were last recorded: what runs first, and what each target of make leaves out.

`make durations` writes `durations.json`: the seconds of each module, how many of them its fixtures took and, of each test that takes
longer than one case of a quick one, the seconds with all its cases. What is recorded of modules that did not run stays. Put here how
it is written and read; which cases are left out is `exhaustive`'s.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parent / "durations.json"
QUICK_SECONDS, QUICK_FIXTURES_SECONDS = 0.15, 2.0
"""The inner loop runs tests of which a case takes no longer, of modules whose fixtures take no longer together."""


@cache
def recorded() -> Mapping[str, Mapping[str, Any]]:
    """Return what is recorded of each module, by its path from this folder: `seconds`, of its `fixtures`, and of its `tests`."""
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    return found


def module_of(item: pytest.Item) -> str:
    """Return the name that a test's module is recorded under."""
    return item.path.relative_to(FILE.parent).as_posix() if item.path.is_relative_to(FILE.parent) else item.path.name


def test_of(nodeid: str) -> str:
    """Return the name that a test is recorded under, whichever of its cases is meant."""
    return nodeid.partition("::")[2].partition("[")[0]


def seconds_of(item: pytest.Item) -> float:
    """Return what all cases of a test took together; 0 if it was too little to be listed."""
    seconds: float = recorded().get(module_of(item), {}).get("tests", {}).get(test_of(item.nodeid), 0.0)
    return seconds


def fixtures_of(module: str) -> float:
    """Return what the fixtures of a module took that its tests were the first to ask for."""
    seconds: float = recorded().get(module, {}).get("fixtures", 0.0)
    return seconds


def by_test(items: Iterable[pytest.Item]) -> list[list[pytest.Item]]:
    """Return the cases of each test together."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    return list(cases.values())


def longest_first(items: list[pytest.Item]) -> None:
    """Sort modules by what they took, the longest first; one that was never recorded comes before all.

    A process that begins a long one last would be waited for by the others.
    """
    known = recorded()
    items.sort(key=lambda item: -known.get(module_of(item), {}).get("seconds", float("inf")))


def quick(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the tests of the inner loop: the quick ones, and what is marked `check`."""
    return [
        item
        for cases in by_test(items)
        for item in cases
        if item.get_closest_marker("check") is not None or _is_quick(item, len(cases))
    ]


def _is_quick(item: pytest.Item, cases: int) -> bool:
    return fixtures_of(module_of(item)) <= QUICK_FIXTURES_SECONDS and seconds_of(item) <= QUICK_SECONDS * cases


def part(items: Sequence[pytest.Item], number: int, of: int) -> list[pytest.Item]:
    """Return the tests of one of so many parts, modules whole.

    Raises:
        ValueError: if there is no part of that number.
    """
    if not 1 <= number <= of:
        raise ValueError(f"there is no part {number} of {of}")
    seconds = {module_of(item): fixtures_of(module_of(item)) for item in items}
    for cases in by_test(items):
        seconds[module_of(cases[0])] += seconds_of(cases[0])
    dealt_to = dealt(seconds, of)
    return [item for item in items if dealt_to[module_of(item)] == number]


def dealt(seconds: Mapping[str, float], of: int) -> dict[str, int]:
    """Return the part of each module, by what each takes: parts that take about as long as each other."""
    taken = dict.fromkeys(range(1, of + 1), (0.0, 0))
    parts = {}
    for module in sorted(seconds, key=lambda module: (-seconds[module], module)):
        shortest = min(taken, key=taken.__getitem__)
        parts[module] = shortest
        so_far, modules = taken[shortest]
        taken[shortest] = (so_far + seconds[module], modules + 1)
    return parts


class Recorder:
    """Writes down what each test took, and each module with the fixtures that its tests were the first to ask for."""

    def __init__(self) -> None:
        self._modules: Counter[str] = Counter()
        self._fixtures: Counter[str] = Counter()
        self._tests: dict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        module = report.nodeid.partition("::")[0].removeprefix("tests/")
        self._modules[module] += report.duration  # type: ignore[assignment]
        if report.when == "call":
            self._tests[module][test_of(report.nodeid)] += report.duration  # type: ignore[assignment]
        else:
            self._fixtures[module] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        written = {
            module: {
                "seconds": round(seconds, 1),
                "fixtures": round(self._fixtures[module], 1),
                "tests": {
                    test: round(took, 2) for test, took in sorted(self._tests[module].items()) if took >= QUICK_SECONDS
                },
            }
            for module, seconds in sorted(self._modules.items())
        }
        kept = {module: found for module, found in recorded().items() if (FILE.parent / module).is_file()}
        FILE.write_text(json.dumps(dict(sorted((kept | written).items())), indent=1) + "\n", encoding="utf-8")
