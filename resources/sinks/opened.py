"""A sink that was granted: what writes to it, held to its time limit, and never quoted with the values of its settings.

Put here what holds of every adapter, whoever wrote it, once it is opened; a product's author runs the same code in the contract
test of an adapter. Whether a sink may be opened is decided by `resources.sinks.adapters`, which is where the record is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from inspect import getattr_static
from threading import Thread
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, quote_plus

from manifests.errors import Problem, Refused, SinkRefused
from manifests.text import words_of
from resources.settings import REDACTED
from resources.sinks.declared import SinkDeclaration, Told, place_of_setting

_T = TypeVar("_T")
_SHORTEST_SECRET = 4
"""Characters from which on a setting's value is taken out of what is said: shorter ones are parts of any text."""
_AGAIN = "look at what receives it; the same command tells it again"


class Adapter(Protocol):
    """What can be done with a sink that was granted."""

    def send(self, told: Told) -> None:
        """Write one record; safe to repeat for the same run and action. Whatever it raises is on record as why it failed."""


@dataclass(frozen=True)
class OpenedSink:
    """A sink with what writes to it."""

    sink: SinkDeclaration
    adapter: Adapter
    _values: tuple[str, ...] = ()

    def send(self, told: Told) -> None:
        """Write one record.

        Raises:
            SinkRefused: if the adapter refuses it, takes longer than its time limit, ends the process or quotes a setting.
            Exception: whatever else the adapter raises.
        """
        _held(self.sink, self._values, f"tell of {told.action}", lambda: self.adapter.send(told))


def open_own(sink: SinkDeclaration, make: Callable[[], Any], values: Mapping[str, str]) -> OpenedSink:
    """Return a sink with the adapter that its product has written.

    Args:
        sink: its declaration.
        make: imports the attribute that it names.
        values: the values of the settings that it needs.

    Raises:
        SinkRefused: if a setting is missing, the attribute is of another class, or makes nothing that has `send`.
        DeclarationRefused: if it cannot be imported.
    """
    require_settings(sink, values)
    given = {name: values[name] for name in sink.needs}
    secrets = tuple(given.values())
    rule = f"the adapter of {sink.name} is `backfill_assets.SinkAdapter`: of its sink's class, called with settings, with `send`"

    def made() -> Any:
        factory = make()
        claimed = getattr(factory, "sink_class", None)
        if claimed is not sink.sink_class:
            what = f"{sink.adapter} is of class {claimed}, and the sink {sink.name} of {sink.sink_class}"
            raise SinkRefused(Problem(what, rule, "give both the class of what a write does to the world"))
        return factory(given)

    adapter = _held(sink, secrets, "open", made)
    if not callable(getattr_static(type(adapter), "send", None)):
        what = f"{sink.adapter} makes a {type(adapter).__name__}, which has no `send`"
        raise SinkRefused(Problem(what, rule, "have it make an object with `send(told)`"))
    return OpenedSink(sink, adapter, secrets)


def require_settings(sink: SinkDeclaration, values: Mapping[str, str]) -> None:
    """Refuse a sink that lacks a setting.

    Raises:
        SinkRefused: naming each, and where it is set.
    """
    missing = [name for name in sink.needs if not values.get(name)]
    if missing:
        raise SinkRefused(
            Problem(
                f"the sink {sink.name} lacks its setting {name}",
                "what a sink needs is set for the deployment whose mode may use it",
                f"set {place_of_setting(sink.name, name)}; then the same command tells it again",
            )
            for name in missing
        )


def _held(sink: SinkDeclaration, secrets: tuple[str, ...], what: str, work: Callable[[], _T]) -> _T:
    """Return what `work` does, in its time; what it raises has no value of a setting in it."""
    done: list[_T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - raised below, where it is waited for
            failed.append(error)

    # a thread cannot be ended: one that hangs is left behind, and ends with the process. What it still writes is what would be
    # written again, of the same run and action
    thread = Thread(target=copy_context().run, args=(run,), name=f"sink {sink.name}", daemon=True)
    thread.start()
    thread.join(sink.time_limit_seconds)
    if done:
        return done[0]
    if not failed:
        raise SinkRefused(
            Problem(
                f"the sink {sink.name} took longer than {sink.time_limit_seconds} s to {what}: nobody knows whether it has it",
                "a sink answers within its time limit (`time_limit_seconds` of its declaration)",
                _AGAIN,
            )
        )
    raise _sayable(sink, secrets, failed[0])


def _sayable(sink: SinkDeclaration, secrets: tuple[str, ...], error: BaseException) -> Exception:
    """Return what was raised, as it can go on record: without values of settings, and ending nothing but the attempt."""
    said = words_of(error)
    secrets = tuple(form for secret in secrets if len(secret) >= _SHORTEST_SECRET for form in _forms_of(secret))
    parts = [said, type(error).__name__]
    if isinstance(error, Refused):
        parts += [text for one in error.problems for text in (one.what, one.rule, one.fix)]
    quoted = any(secret in part for secret in secrets for part in parts)
    if isinstance(error, Exception) and not quoted:
        return error
    first = error.problems[0].what if isinstance(error, Refused) and error.problems else said
    kind = type(error).__name__
    for secret in sorted(secrets, key=len, reverse=True):
        first, kind = first.replace(secret, REDACTED), kind.replace(secret, REDACTED)
    what = f"the sink {sink.name} raised {kind}" + (f": {first}" if first else "")
    return SinkRefused(Problem(what, "an adapter says that it has not told by raising an error", _AGAIN))


def _forms_of(secret: str) -> Iterator[str]:
    """Yield a secret as it is, and as addresses, JSON and Python write it."""
    yield secret
    yield quote(secret)
    yield quote_plus(secret)
    yield json.dumps(secret)[1:-1]
    yield repr(secret)[1:-1]
