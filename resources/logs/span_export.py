"""How spans leave the process: OpenTelemetry's SDK, held to what a run may be asked to wait and to lose.

Put here all that imports OpenTelemetry. What is worth a span is `traces`'. A collector that is down, slow or refuses costs spans and
no time: they wait in a queue of a bounded length, one thread sends them, what fails is not tried again for a while, and the end of
the process waits for that thread no longer than the settings say.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.util import Finalize
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.status import Status, StatusCode

from manifests.trace_settings import Traces
from resources.logs.lines import event

_log = logging.getLogger(f"backfill_assets.{__name__}")
_QUEUE, _BATCH = 2048, 256
"""Spans that wait at most, the newest in the place of the oldest; and how many of them go into one request."""
_EVERY_MS = 1000
"""How long a span waits for others to be sent with."""
_PAUSE_SECONDS = 30.0
"""How long nothing is sent once a request has failed: what ends meanwhile is lost."""
_AT_THE_END = 100
"""Before what else multiprocessing tidies up as a process ends: that may wait for other processes."""
_new_trace: ContextVar[int] = ContextVar("new_trace", default=0)


@dataclass(frozen=True)
class Started:
    """The ids of a span that has begun, in hexadecimal, and whether it will be sent."""

    trace_id: str
    span_id: str
    is_sent: bool


class Exporting:
    """What makes spans in this process, and sends them."""

    def __init__(self, settings: Traces) -> None:
        """Begin; nothing is sent yet.

        The SDK's own loggers write to stderr whatever a collector does not take; what an operator has to know of it, one line of
        our log says.
        """
        silenced = logging.getLogger("opentelemetry")
        silenced.addHandler(logging.NullHandler())
        silenced.propagate = False
        self._seconds = settings.exit_seconds
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            resource=_resource(),
            id_generator=_Ids(),
            shutdown_on_exit=False,  # which waits for as long as a request takes
        )
        sending = OTLPSpanExporter(settings.address, timeout=settings.timeout_seconds, headers=settings.secrets())
        self._provider.add_span_processor(
            BatchSpanProcessor(
                _Sparing(sending, settings.address),
                max_queue_size=_QUEUE,
                max_export_batch_size=_BATCH,
                schedule_delay_millis=_EVERY_MS,
            )
        )
        self._tracer = self._provider.get_tracer("backfill_assets", version("backfill-assets"))
        self._ending, self._ended = threading.Event(), threading.Event()
        # begun now: as Python ends, no thread can be begun any more
        threading.Thread(target=self._end, name="end of spans", daemon=True).start()
        self._at_exit = Finalize(None, self.end, exitpriority=_AT_THE_END)

    def end(self) -> None:
        """Have what is left sent, and wait for that no longer than the settings say."""
        self._at_exit.cancel()
        self._ending.set()
        self._ended.wait(self._seconds)

    def _end(self) -> None:
        self._ending.wait()
        try:
            self._provider.shutdown()
        finally:
            self._ended.set()

    def is_within(self) -> bool:
        """Whether this is done within a span."""
        return trace.get_current_span().get_span_context().is_valid

    @contextmanager
    def started(self, name: str, of_trace: int, attributes: Mapping[str, str | float | bool]) -> Iterator[Started]:
        """Make a span of what is done meanwhile: of the trace around it, or of another one, of which it is a root then."""
        around = trace.get_current_span().get_span_context()
        context = Context() if of_trace and around.trace_id != of_trace else None
        token = _new_trace.set(of_trace)
        try:
            span = self._tracer.start_span(name, context, attributes=attributes)
        finally:
            _new_trace.reset(token)
        ids = span.get_span_context()
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield Started(f"{ids.trace_id:032x}", f"{ids.span_id:016x}", ids.trace_flags.sampled)
        finally:
            span.end()

    def note(self, attributes: Mapping[str, str | float | bool]) -> None:
        """Give the span around this more attributes."""
        trace.get_current_span().set_attributes(attributes)

    def fail(self, kind: str, said: str, *, waits: bool) -> None:
        """Put an error on the span around this; what only waits is no failure of it.

        Not by the SDK's own function: that has the text of every error, and its traceback.
        """
        span = trace.get_current_span()
        span.add_event("exception", {"exception.type": kind} | ({"exception.message": said} if said else {}))
        if not waits:
            span.set_attribute("error.type", kind)
            span.set_status(Status(StatusCode.ERROR, said or kind))


class _Ids(IdGenerator):
    """Ids of traces as they are asked for, and ids of spans that no seed, and no fork of a process, repeats."""

    def generate_trace_id(self) -> int:
        """Return the id of the trace that is begun."""
        return _new_trace.get() or secrets.randbits(128) or 1

    def generate_span_id(self) -> int:
        """Return an id that no other span has."""
        return secrets.randbits(64) or 1


class _Sparing(SpanExporter):
    """Sends spans; leaves a collector that does not take them alone for a while, and says so once a process."""

    def __init__(self, sending: SpanExporter, address: str) -> None:
        self._sending, self._address = sending, address
        self._again = 0.0
        self._has_said = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans, unless the collector has failed to take others just before."""
        if time.monotonic() < self._again:
            return SpanExportResult.FAILURE
        done = self._sending.export(spans)
        if done is not SpanExportResult.SUCCESS:
            self._again = time.monotonic() + _PAUSE_SECONDS
            self._say()
        return done

    def _say(self) -> None:
        if not self._has_said:
            self._has_said = True
            text = (
                f"the collector at {urlsplit(self._address).netloc} does not take spans: they are lost, and runs go on"
            )
            event(_log, logging.INFO, "spans_not_sent", text)

    def shutdown(self) -> None:
        """End what is being sent."""
        self._sending.shutdown()


def _resource() -> Resource:
    """Return what says whose spans these are; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over it."""
    own: dict[str, str | int] = {
        "service.name": "backfill-assets",
        "service.version": version("backfill-assets"),
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
    }
    return Resource.create({**own}).merge(OTELResourceDetector().detect())
