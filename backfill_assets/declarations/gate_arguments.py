"""What the arguments of a function that makes gates cannot be: collected with the gate, and refused with its target.

Put here what is asked of an argument alone. Whether a column that it names is there is `checking.gates`' to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec

from backfill_assets.declarations.arguments import WrongArgumentsError, wrong_arguments
from backfill_assets.declarations.checking.names import no_tuple
from backfill_assets.declarations.target import Finding, Reconciliation, ReconciliationContext
from manifests.errors import Problem

Arguments = ParamSpec("Arguments")


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


def named_apart(name: str, value: Any, own: Sequence[str]) -> Iterator[Problem]:
    """Require columns with other names than those by which a gate says what it has found; Spark has no two that differ by capitals."""
    rule = f"what the gate finds is named {', '.join(own)} beside it"
    for one in texts((value,) if isinstance(value, str) else value):
        fix = "give the column another name, or write a gate of your own"
        yield from unless(one.lower() not in own, f"a column of {name}", one, rule, fix)


def texts(value: Any) -> tuple[str, ...]:
    """Return the columns of an argument as far as it has some: what else it is was said."""
    if isinstance(value, str) or not isinstance(value, (tuple, list)):
        return ()
    return tuple(one for one in value if isinstance(one, str))


def declared_with(make: Callable[Arguments, Reconciliation]) -> Callable[Arguments, Reconciliation]:
    """Let a gate whose arguments are misspelt or missing be one with these mistakes: the declaration says all of its own."""
    known = signature(make).parameters
    required = {name for name, one in known.items() if one.default is Parameter.empty}
    places = [name for name, one in known.items() if one.kind is not Parameter.KEYWORD_ONLY]
    # what may be given by name only comes last
    names = [*places, *(name for name in known if name not in places)]

    @wraps(make)
    def made(*given: Arguments.args, **named: Arguments.kwargs) -> Reconciliation:
        reasons = wrong_arguments(make.__name__, names, required, given, named)
        if not reasons and len(given) > len(places):
            reasons = [f"{make.__name__} takes {', '.join(names[len(places) :])} by name"]
        if not reasons:
            return make(*given, **named)
        rule = f"its arguments are {', '.join(names)}"
        misspelt = [Problem(one, rule, "correct the name, or take it out") for one in reasons]
        understood: dict[str, Any] = dict(zip(places, given, strict=False))
        understood |= {name: value for name, value in named.items() if name in known}
        # of an argument that is missing nothing more is said than that
        without = dict.fromkeys(required - understood.keys(), ("_missing",))
        gate = make(**understood, **without)  # type: ignore[call-arg,arg-type]
        said = tuple(f"{name} is {value!r}" for name, value in without.items())
        mistakes = (*misspelt, *(one for one in gate.mistakes if not one.what.startswith(said)))
        check = partial(_unusable, reasons=reasons)
        return Reconciliation(gate.name, gate.level, gate.description, check, mistakes=mistakes)

    return made


def _unusable(_context: ReconciliationContext, *, reasons: list[str]) -> Finding:
    raise WrongArgumentsError(reasons)
