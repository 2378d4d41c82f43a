"""What the arguments of a function that makes gates cannot be: collected with the gate, and refused with its target.

Put here what is asked of an argument alone. Whether a column that it names is there is `checking.gates`' to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from backfill_assets.declarations.checking.names import no_tuple
from manifests.errors import Problem


def unless(holds: bool, name: str, value: Any, rule: str, fix: str) -> Iterator[Problem]:
    """Say what an argument is, and which rule it breaks, unless the rule holds."""
    if not holds:
        yield Problem(f"{name} is {value!r}"[:200], rule, fix)


def flag(name: str, value: Any) -> Iterator[Problem]:
    """Require True or False."""
    yield from unless(isinstance(value, bool), name, value, f"{name} is True or False", "write it without quotes")


def text(name: str, value: Any) -> Iterator[Problem]:
    """Require a text."""
    yield from unless(isinstance(value, str), name, value, f"{name} is a text", "write it in quotes")


def function(name: str, value: Any, *, optional: bool = False) -> Iterator[Problem]:
    """Require a function of the context."""
    holds = callable(value) or (optional and value is None)
    yield from unless(holds, name, value, f"{name} is a function of the context", "name it, without calling it")


def several(name: str, value: Any, *, some: bool = True) -> Iterator[Problem]:
    """Require a tuple of columns, each named once; of `some`, one or more."""
    if isinstance(value, str):
        yield no_tuple("", f"{name} is", value)
    elif not isinstance(value, (tuple, list)) or not all(isinstance(one, str) for one in value):
        yield from unless(False, name, value, f"{name} is a tuple of columns", 'for example ("meter_id",)')
    else:
        rule = f"{name} is a tuple of one column or more"
        yield from unless(bool(value) or not some, name, value, rule, 'for example ("meter_id",)')
        yield from unless(
            len(set(value)) == len(value), name, value, "each column is named once", "take the others out"
        )


def texts(value: Any) -> tuple[str, ...]:
    """Return the columns of an argument as far as it has some: what else it is was said."""
    if isinstance(value, str) or not isinstance(value, (tuple, list)):
        return ()
    return tuple(one for one in value if isinstance(one, str))
