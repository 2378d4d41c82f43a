"""Mistakes in the functions that a target names: that they can be called, with what, and found by Spark's workers.

Put here what can be said of a function without calling it. What it returns is known where it is called: the planner, the
gates, the workers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from operator import attrgetter
from typing import Any

from backfill_assets.declarations.target import TargetTable, TransformVersion
from manifests.errors import Problem

_Function = tuple[Any, tuple[str, ...], str]
"""What is declared, what it is called with, and what it makes of that."""


def of_functions(target: TargetTable) -> Iterator[Problem]:
    """Say of what has to be called that it cannot be, or not with what it is given."""
    for field, (thing, given, rule) in _functions(target).items():
        same = (
            f"; {thing!r} days always are `def warm_up(references): return {thing!r}`" if isinstance(thing, int) else ""
        )
        yield from of_function(field, thing, given, rule, f"{target.name}: {field}", same)
    for field in ("model", "measure", "outline.rows"):
        named: Any = target
        for part in field.split("."):
            named = getattr(named, part, None)
        yield from importable(named, f"{target.name}: {field}")


def of_function(
    field: str, thing: Any, given: tuple[str, ...], rule: str, where: str, more: str = ""
) -> Iterator[Problem]:
    """Say of what has to be called that it cannot be, or not with what it is given; `more` is said of what is no function."""
    if not callable(thing):
        fix = f"name the function, without calling it{more}"
        yield Problem(f"{field} is {thing!r}", f"it is a function, {rule}", fix, where)
    elif (kind := _no_plain_function(thing)) is not None:
        name = getattr(thing, "__qualname__", repr(thing))
        fix = "define it with `def`, and return what it makes"
        yield Problem(f"{name} is {kind}", f"it is a function, {rule}", fix, where)
    elif (why := _cannot_take(thing, given)) is not None:
        name = getattr(thing, "__qualname__", repr(thing))
        fix = f"define it as `def {getattr(thing, '__name__', 'function')}({', '.join(given)})`"
        yield Problem(
            f"{name} cannot be called with {' and '.join(given)}: {why}", f"it is a function, {rule}", fix, where
        )


def _functions(target: TargetTable) -> dict[str, _Function]:
    """Return what has to be called, by its field."""
    warm_up = "from the rows of the pinned references, by table name, to the days to read before the publish range"
    fields: dict[str, _Function] = {"warm_up_days": (target.warm_up_days, ("references",), warm_up)}
    if target.measure is not None:
        rule = "from the rows of one file of a chunk to a small frame of slices and sums"
        fields["measure"] = (target.measure, ("rows",), rule)
    if target.outline is not None:
        rule = "from the rows of one file of a chunk to those that the gates look at"
        fields["outline.rows"] = (target.outline.rows, ("rows",), rule)
    for name, version in target.versions.items():
        if isinstance(version, TransformVersion):
            rule = "from the inputs and the context to a Spark frame"
            fields[f"versions[{name!r}]"] = (version.function, ("inputs", "context"), rule)
    for gate in target.reconciliations:
        fields[f"gate {gate.name}"] = (gate.check, ("context",), "from the context to a Finding")
    return fields


def _no_plain_function(function: Any) -> str | None:
    """Return what a function is that returns nothing by itself when it is called; None if it does."""
    if iscoroutinefunction(function):
        return "a coroutine (`async def`)"
    return "a generator (it has a `yield`)" if isgeneratorfunction(function) or isasyncgenfunction(function) else None


def _cannot_take(function: Any, given: tuple[str, ...]) -> str | None:
    """Return why a function cannot be called with these arguments by place; None if it can, or if it does not say."""
    try:
        taken = signature(function, follow_wrapped=False)  # a decorator may give what it wraps more, or less
    except Exception:  # noqa: BLE001 - of some of those that are not written in Python nobody knows; one may raise anything
        return None
    try:
        taken.bind(*given)
    except TypeError as error:
        return str(error)
    if hasattr(function, "__signature__"):
        return None  # a wrapper may say what it wraps, and put it in order
    same = [name for name in taken.parameters if name in given]
    return f"it takes {' and '.join(same)}" if len(same) == len(given) and same != [*given] else None


def importable(thing: Any, where: str) -> Iterator[Problem]:
    """Say of what Spark's workers import by name that it has none; nothing of what is not declared."""
    if thing is None:
        return
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    found: Any = None
    with suppress(KeyError, AttributeError):
        found = attrgetter(str(name))(sys.modules[str(module)])
    if found is not thing:
        yield Problem(
            f"{name or thing!r} is not a name of module {module}",
            "Spark's workers import it by name",
            "define it at the top level of a module; a lambda or an inner function has no such name",
            where,
        )
