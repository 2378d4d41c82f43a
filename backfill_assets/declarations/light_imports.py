"""Has libraries imported in a lighter way, whoever imports them and when: they are found as Python finds them, and something is done around.

A finder that somebody puts in front later, and that asks no other one, goes before this: what it finds is imported without.
Put here how that is done. What is done around which library is said in `light_pandera`; neither imports anything that takes time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import get_ident
from types import ModuleType
from typing import Any

Around = Callable[[ModuleType], AbstractContextManager[None]]
"""What is entered before a module is executed, and left after it."""


class _Loads(Loader):
    """Loads a module as another loader does, with something around; whatever else is asked of it, the other one answers."""

    def __init__(self, usual: Loader, around: Around) -> None:
        self._usual, self._around = usual, around

    def __getattr__(self, name: str) -> Any:
        if name == "_usual":  # nothing is there yet: it is being copied
            raise AttributeError(name)
        return getattr(self._usual, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._usual
        if module.__spec__ is not None:
            module.__spec__.loader = self._usual
        with self._around(module):
            self._usual.exec_module(module)


class _Finds(MetaPathFinder):
    """Has some modules loaded with something around, as whichever of the other finders finds them: an editable installation has its own."""

    def __init__(self) -> None:
        self.around: dict[str, Around] = {}
        self._asking: set[tuple[int, str]] = set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        around, asked = self.around.get(name), (get_ident(), name)
        if around is None or asked in self._asking:  # another finder may ask all of them, this one, too
            return None
        self._asking.add(asked)
        try:
            found = _found_by_others(self, name, path, target)
        finally:
            self._asking.remove(asked)
        if found is not None and found.loader is not None and hasattr(found.loader, "exec_module"):
            found.loader = _Loads(found.loader, around)
        return found


def _found_by_others(
    but: MetaPathFinder, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        if finder is but or not hasattr(finder, "find_spec"):
            continue
        found = finder.find_spec(name, path, target)
        if found is not None:
            return found
    return None


class _Hides(MetaPathFinder):
    """Finds no module of some name for the thread that it was made by; other threads find it."""

    def __init__(self, hidden: str) -> None:
        self._hidden, self._thread = hidden, get_ident()

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> None:
        if name == self._hidden and get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


_finds = _Finds()


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Have this thread find no library of a name; what is imported already, it has all the same."""
    hides = _Hides(name)
    sys.meta_path.insert(0, hides)
    try:
        yield
    finally:
        sys.meta_path.remove(hides)


def put_around(name: str, around: Around) -> None:
    """Have something done around a module from now on, whenever it is imported; safe to repeat."""
    _finds.around[name] = around
    if _finds not in sys.meta_path:
        sys.meta_path.insert(0, _finds)
