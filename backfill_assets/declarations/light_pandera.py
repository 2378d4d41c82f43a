"""Has pandera imported for Polars alone: pandas and PySpark, which it takes along where they are installed, take a second.

Models are Polars', and every command, every worker and every page that looks at a declaration imports pandera. It can be installed
without pandas, and is imported here as it is then; what it would have from pandas is fetched when somebody asks for it, so that a
product whose own code validates pandas' frames with it notices nothing (but for `from pandera import *`, which has the names for Polars). Put here nothing but this; it imports nothing that takes time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import get_ident
from types import ModuleType
from typing import Any

_PANDERA = "pandera"
_HIDDEN = "pandas"
_OF_PANDAS = {_PANDERA: "pandera.pandas", "pandera.typing": "pandera.typing.pandas"}
"""Modules that have the names of another one where there is pandas."""


class _Hidden(MetaPathFinder):
    """Finds no pandas for the thread that imports pandera; other threads find it."""

    def __init__(self) -> None:
        self._thread = get_ident()

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> None:
        if name == _HIDDEN and get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


class _Light(Loader):
    """Loads pandera as another loader does, without pandas."""

    def __init__(self, usual: Loader) -> None:
        self._usual = usual

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        import_module("polars")  # it asks as well whether there is pandas, and is told the truth
        module.__loader__ = self._usual
        if module.__spec__ is not None:
            module.__spec__.loader = self._usual
        with _without_pandas():
            self._usual.exec_module(module)
        for name, source in _OF_PANDAS.items():
            if name in sys.modules:
                _fetch_late(sys.modules[name], source)


class _FindsPandera(MetaPathFinder):
    """Finds pandera, which it has imported so."""

    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _PANDERA or _HIDDEN in sys.modules:  # what is there already costs nothing more
            return None
        found = PathFinder.find_spec(name, path)
        if found is not None and found.loader is not None:
            found.loader = _Light(found.loader)
        return found


@contextmanager
def _without_pandas() -> Iterator[None]:
    hidden = _Hidden()
    sys.meta_path.insert(0, hidden)
    try:
        yield
    finally:
        sys.meta_path.remove(hidden)


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
    if not any(isinstance(one, _FindsPandera) for one in sys.meta_path):
        sys.meta_path.insert(0, _FindsPandera())
