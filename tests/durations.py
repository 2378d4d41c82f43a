"""How long each test took when all of them were last recorded: what runs first, and what the inner loop runs.

`make durations` writes `durations.json`. Put here how it is written and read; the order is `conftest`'s.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parent / "durations.json"
QUICK_SECONDS = 5.0
"""The inner loop runs modules that took no longer, besides what is marked `check`."""


def of_modules() -> dict[str, float]:
    """Return the seconds of each recorded module, by its path from this folder."""
    recorded: dict[str, float] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    return recorded


def module_of(item: pytest.Item) -> str:
    """Return the name that a test's module is recorded under."""
    return item.path.relative_to(FILE.parent).as_posix()


def longest_first(items: list[pytest.Item]) -> None:
    """Sort modules by what they took, the longest first; one that was never recorded comes before all.

    A process that begins a long one last would be waited for by the others.
    """
    seconds = of_modules()
    items.sort(key=lambda item: -seconds.get(module_of(item), float("inf")))


def quick(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the tests of the inner loop."""
    seconds = of_modules()
    return [
        item
        for item in items
        if item.get_closest_marker("check") is not None or seconds.get(module_of(item), 0.0) <= QUICK_SECONDS
    ]


class Recorder:
    """Writes down what each module took, with the fixtures that its tests were the first to ask for."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        module = report.nodeid.partition("::")[0].removeprefix("tests/")
        self._seconds[module] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        recorded = {module: round(seconds, 1) for module, seconds in sorted(self._seconds.items())}
        FILE.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
