"""Classes and functions of products by name, so that a worker imports them from the same installed package.

Put here how `module:attribute` is made and followed. What is named so is in the tasks that workers get.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def imported_by_path(reference: str) -> Any:
    """Return what `module:attribute` names."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def import_path_of(thing: type | Callable[..., Any]) -> str:
    """Return the `module:attribute` of a module-level class or function."""
    if imported_by_path(f"{thing.__module__}:{thing.__qualname__}") is not thing:
        raise TypeError(f"{thing!r} is not a module-level name: Spark's workers could not import it")
    return f"{thing.__module__}:{thing.__qualname__}"
