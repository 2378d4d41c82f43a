"""Arguments of a declaration: every one that is misspelt, missing or no amount is named at once.

Put here what holds of the arguments of any declaration. What can be said once it is made is `checking`'s.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, fields
from decimal import Decimal
from difflib import get_close_matches
from functools import wraps
from inspect import currentframe
from math import isfinite
from numbers import Real
from traceback import StackSummary, walk_stack
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from manifests.errors import Problem

NAME = r"\w+"
"""What a gate, or a tolerance, is named."""
Declared = TypeVar("Declared")


@runtime_checkable
class KnowsMistakes(Protocol):
    """A gate that was made of arguments, some of which cannot be; see `target.Reconciliation`."""

    @property
    def name(self) -> str:
        """What it is named."""

    @property
    def mistakes(self) -> tuple[Problem, ...]:
        """What is wrong with its arguments."""


def is_amount(value: Any) -> bool:
    """Return whether a value is a number that something can be tolerated by."""
    is_number = isinstance(value, (Real, Decimal)) and not isinstance(value, bool)
    return is_number and isfinite(value) and value >= 0


class WrongArgumentsError(TypeError):
    """Arguments of a declaration that it does not have, or lacks: all of them at once.

    Attributes:
        reasons: each of them.
        way: the lines that led to the declaration, if the error was collected instead of raised.
    """

    reasons: tuple[str, ...]
    way: StackSummary | None

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons, self.way = tuple(reasons), None
        super().__init__("; ".join(reasons))

    def remembered(self) -> Self:
        """Return the error with the lines that have led to the call of whoever asks for this."""
        here = currentframe()
        maker = None if here is None else here.f_back
        frames = [frame for frame, _ in walk_stack(None if maker is None else maker.f_back)]
        self.way = StackSummary.extract((frame, frame.f_lineno) for frame in reversed(frames))
        return self


_collected: ContextVar[list[WrongArgumentsError] | None] = ContextVar("collected", default=None)


@contextmanager
def collected() -> Iterator[list[WrongArgumentsError]]:
    """Let declarations with wrong arguments be made all the same within, each unusable, and yield what was wrong with them.

    For a process that ends afterwards: nothing that was declared within may ever be served.
    """
    found: list[WrongArgumentsError] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def wrong_arguments(
    name: str, names: Sequence[str], required: Container[str], given: Sequence[Any], named: Mapping[str, Any]
) -> list[str]:
    """Return every argument of a call that is misspelt, missing or one too many, with the name that was probably meant."""
    left = names[len(given) :]
    missing = [one for one in left if one in required and one not in named]
    reasons = [f"{name} takes {len(names)} arguments, and {len(given)} are given"] if len(given) > len(names) else []
    reasons += [f"{name} is given {one} twice" for one in names[: len(given)] if one in named]
    for one in (one for one in named if one not in names):
        close = get_close_matches(one, [other for other in left if other not in named], n=1)
        reasons.append(f"{name} has no {one}" + (f"; did you mean {close[0]}?" if close else ""))
        missing = [other for other in missing if other not in close]
    return reasons + [f"{name} lacks {one}" for one in missing]


def said_at_once(declared: type[Declared]) -> type[Declared]:
    """Have a dataclass name every argument that is misspelt or missing, where Python stops at the first.

    What is wrong with the gates that it is given is named with them: nothing else would load the declaration that has them.
    """
    init, name = declared.__init__, declared.__name__
    known = [one for one in fields(declared) if one.init]  # type: ignore[arg-type]
    required = {one.name for one in known if one.default is MISSING and one.default_factory is MISSING}
    names = [one.name for one in known]

    @wraps(init)
    def checked(self: Declared, *given: Any, **named: Any) -> None:
        if reasons := wrong_arguments(name, names, required, given, named):
            error = WrongArgumentsError([*reasons, *_of_gates((*given, *named.values()))])
            if (others := _collected.get()) is None:
                raise error
            others.append(error.remembered())
            understood = dict(zip(names, given, strict=False)) | {name: named[name] for name in named if name in names}
            for one in known:
                default = one.default_factory() if one.default_factory is not MISSING else one.default
                object.__setattr__(self, one.name, understood.get(one.name, None if default is MISSING else default))
            return
        init(self, *given, **named)

    declared.__init__ = checked  # type: ignore[method-assign, assignment]
    return declared


def _of_gates(values: Sequence[Any]) -> Iterator[str]:
    """Yield what is wrong with the gates among the arguments of a declaration."""
    for value in values:
        for gate in value if isinstance(value, (tuple, list)) else ():
            if isinstance(gate, KnowsMistakes):
                yield from (f"gate {gate.name}: {one.what}" for one in gate.mistakes)
