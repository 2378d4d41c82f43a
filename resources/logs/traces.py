"""Spans of runs: how long what took, under what, and what came of it, for a collector of OpenTelemetry. Off by default.

Put here what a span says. How spans leave the process is `span_export`'s, which is imported with the first span that is
wanted: while traces are off, `span` hands out one object that does nothing, and nothing of OpenTelemetry is loaded. Spans hold
counts, names and ids: never a row's values, a secret, or the text of an error that may quote a row. What is said once and for
all is for the log, the ledger and the evidence; a span may be lost.

Every span is part of the trace of its run, whose id follows from the run's. So what plans a run, what computes it and what
publishes it leave one trace, in whatever processes they are. What begins in a process is a root of that trace, the rest is
below it; below no root there are no spans.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING

from manifests.errors import EnvironmentRefused, InputRefused, LeaseHeld, Problem, PublicationDeferred, Refused
from manifests.plan import Plan
from manifests.trace_settings import Traces
from resources.logs.lines import bound, event, without_passwords

if TYPE_CHECKING:
    from resources.logs.span_export import Exporting, Started

_log = logging.getLogger(f"backfill_assets.{__name__}")
Value = str | int | float | bool | None
_NAMES = "backfill."
"""What the names of spans and of their attributes begin with."""
_LONGEST = 300
"""Characters of what a refusal says."""
_NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_NOTHING: AbstractContextManager[None] = nullcontext()


class _Tracing:
    """What this process traces by: its settings, and what sends spans once there was one."""

    def __init__(self) -> None:
        self.settings = Traces()
        self.exporting: Exporting | None = None
        self._lock = threading.Lock()
        self._forgets = False

    @property
    def are_on(self) -> bool:
        return self.settings.are_on

    def begin(self, settings: Traces) -> None:
        self.end()
        self.settings = settings
        if self.are_on and not self._forgets:
            os.register_at_fork(after_in_child=self._forget)
            self._forgets = True

    def end(self) -> None:
        exporting, self.exporting, self.settings = self.exporting, None, Traces()
        if exporting is not None:
            exporting.end()

    def opened(self) -> Exporting | None:
        """Return what sends spans, made with the first one; None, and off from now on, where that cannot be made."""
        if self.exporting is None:
            with self._lock:
                if self.exporting is None and self.are_on:
                    self.exporting = self._made()
        return self.exporting

    def _made(self) -> Exporting | None:
        try:
            from resources.logs.span_export import Exporting  # noqa: PLC0415 - it loads OpenTelemetry

            return Exporting(self.settings)
        except Exception as error:  # noqa: BLE001 - no run fails of its traces, whatever a library is in the way
            self.settings = Traces()
            text = f"no spans are sent: OpenTelemetry could not be begun ({type(error).__name__})"
            event(_log, logging.WARNING, "spans_not_sent", text)
            return None

    def _forget(self) -> None:
        """Have a forked process make its own: its parent's thread is not there, and its connection is the parent's."""
        self.exporting, self._lock = None, threading.Lock()


_tracing = _Tracing()


def configure(settings: Traces) -> None:
    """Trace from now on as the settings say; safe to repeat.

    Raises:
        EnvironmentRefused: if traces are wanted, and what sends them is not installed.
    """
    if settings == _tracing.settings:
        return
    if settings.are_on and (missing := [name for name in _NEEDED if not _is_there(name)]):
        raise EnvironmentRefused(
            Problem(
                f"traces.endpoint is set, and {' and '.join(missing)} cannot be imported",
                "spans are sent with what the extra `traces` brings",
                "pip install 'backfill-assets[traces]', or unset BACKFILL_TRACES__ENDPOINT",
            )
        )
    _tracing.begin(settings)


def end() -> None:
    """Send what is left, for as long as the settings allow, and trace nothing from now on."""
    _tracing.end()


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def trace_id(run_id: str) -> int:
    """Return the id of a run's trace: the first 16 bytes of the SHA-256 of `backfill-assets run ` and the run's id."""
    return int.from_bytes(sha256(f"backfill-assets run {run_id}".encode()).digest()[:16]) or 1


def span(name: str, run_id: str = "", **attributes: Value) -> AbstractContextManager[None]:
    """Measure what is done meanwhile, as a span `backfill.<name>` with attributes `backfill.<attribute>`.

    With a run it is part of that run's trace, below the span around it if that is as well. Without one it is part of the trace
    around it; where there is none, nothing is measured. An attribute that is None is left out. What is raised meanwhile is the
    span's error, but for what only has to wait.
    """
    return _span(name, run_id, attributes) if _tracing.are_on else _NOTHING


def span_of(name: str, plan: Plan, **attributes: Value) -> AbstractContextManager[None]:
    """Measure what is done meanwhile for the run of a plan."""
    if not _tracing.are_on:
        return _NOTHING
    about = {"target": plan.target, "mode": plan.mode.value, "publish_mode": plan.publish_mode.value}
    return span(name, plan.run_id, **about, **attributes)


def note(**attributes: Value) -> None:
    """Give the span around this more attributes, or others, if it is one of ours."""
    if _tracing.are_on and (exporting := _tracing.opened()) is not None:
        exporting.note(_named(attributes))


def failed(error: BaseException) -> None:
    """Give the span around this an error that is not raised any further."""
    if _tracing.are_on and (exporting := _tracing.opened()) is not None:
        exporting.fail(type(error).__name__, _said(error), waits=_waits(error))


@contextmanager
def _span(name: str, run_id: str, attributes: dict[str, Value]) -> Iterator[None]:
    exporting = _tracing.opened()
    if exporting is None or not (run_id or exporting.is_within()):
        yield
        return
    about: dict[str, Value] = {"run_id": run_id or None}
    began = exporting.started(_NAMES + name, trace_id(run_id) if run_id else 0, _named(about | attributes))
    with began as started, _on_lines(started):
        try:
            yield
        except BaseException as error:
            exporting.fail(type(error).__name__, _said(error), waits=_waits(error))
            raise


def _on_lines(started: Started) -> AbstractContextManager[None]:
    """Have lines of the log say within which span they are written, if it is sent."""
    return bound(trace_id=started.trace_id, span_id=started.span_id) if started.is_sent else _NOTHING


def _named(attributes: dict[str, Value]) -> dict[str, str | int | float | bool]:
    return {_NAMES + name: value for name, value in attributes.items() if value is not None}


def _waits(error: BaseException) -> bool:
    return isinstance(error, (PublicationDeferred, LeaseHeld))


def _said(error: BaseException) -> str:
    """Return what may be said of an error: why something was refused, but for data and transforms, which may quote a row."""
    if not isinstance(error, Refused) or isinstance(error, InputRefused) or not error.problems:
        return ""
    return without_passwords(error.problems[0].what)[:_LONGEST]
