"""Has pandera imported for Polars alone: pandas and PySpark, which it takes along where they are installed, take a second.

Models are Polars', and every command, every worker and every page that looks at a declaration imports pandera. It can be installed
without pandas, and is imported here as it is then; what it would have from pandas is fetched when somebody asks for it, so that a
product whose own code validates pandas' frames with it notices nothing (but for `from pandera import *`, which has the names for Polars).
Nor does it look for pandas when it checks a frame of Polars, or import Hypothesis before somebody has it make up rows.
Put here nothing but this; it imports nothing that takes time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from backfill_assets.declarations.light_imports import hidden, put_around

_PANDERA = "pandera"
_HIDDEN = "pandas"
_CHECKS = "pandera.backends.register_checks"
_STRATEGIES = "pandera.strategies.base_strategies"
_OF_PANDAS = {_PANDERA: "pandera.pandas", "pandera.typing": "pandera.typing.pandas"}
"""Modules that have the names of another one where there is pandas."""


@contextmanager
def _light(_: ModuleType) -> Iterator[None]:
    """Have pandera executed without pandas, where that is not there already and costs nothing more."""
    if _HIDDEN in sys.modules:
        yield
        return
    import_module("polars")  # it asks as well whether there is pandas, and is told the truth
    with hidden(_HIDDEN):
        yield
    for name, source in _OF_PANDAS.items():
        if name in sys.modules:
            _fetch_late(sys.modules[name], source)


@contextmanager
def _polars_first(checks: ModuleType) -> Iterator[None]:
    """Have what checks frames of Polars looked for without asking first whether they are pandas'."""
    yield
    names = vars(checks)
    usual = names["register_default_check_backends"]

    def register(frame: type) -> None:
        if not frame.__module__.startswith("polars."):
            usual(frame)
            return
        use_narwhals = import_module("pandera.config").CONFIG.use_narwhals_backend
        import_module("pandera.backends.polars.register").register_polars_backends(use_narwhals_backend=use_narwhals)

    names["register_default_check_backends"] = register


@contextmanager
def _without_hypothesis(strategies: ModuleType) -> Iterator[None]:
    """Have checks declared without what makes up rows that pass them, where that is not there already."""
    if "hypothesis" in sys.modules:
        yield
        return
    with hidden("hypothesis"):
        yield
    if find_spec("hypothesis") is not None:
        vars(strategies)["HAS_HYPOTHESIS"] = True
        del strategies.SearchStrategy, strategies.composite  # which stand for Hypothesis' own where there is none
        _fetch_late(strategies, "hypothesis.strategies")


def _fetch_late(module: ModuleType, source: str) -> None:
    """Let a module have the names that it has from another one where there is pandas, once somebody asks for one of them."""

    def fetched(name: str) -> Any:
        if not name.startswith("__"):
            try:
                there = vars(import_module(source))
            except ImportError:  # there is no pandas
                there = {}
            missing = there.keys() - vars(module).keys()
            vars(module).update((own, there[own]) for own in missing if not own.startswith("_"))
            if name in there:
                return there[name]
        raise AttributeError(f"module '{module.__name__}' has no attribute '{name}'", name=name, obj=module)

    module.__getattr__ = fetched  # type: ignore[method-assign]


def install() -> None:
    """Have pandera imported so from now on; safe to repeat."""
    put_around(_PANDERA, _light)
    put_around(_CHECKS, _polars_first)
    put_around(_STRATEGIES, _without_hypothesis)
