"""A collector of OpenTelemetry in this process: what it was sent over HTTP, decoded.

Put here what stands for a collector, also one that is slow or refuses. What spans a run leaves is `test_traces`'.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """A span as a collector has it; ids in hexadecimal, attributes without `backfill.` before their names."""

    name: str
    trace: str
    id: str
    parent: str
    process: int
    attributes: dict[str, Any]
    failed: bool
    said: str
    events: tuple[dict[str, Any], ...]


@dataclass
class Collector:
    """What was sent so far; `answer` is the status that requests get, once `hangs` is set where there is one."""

    address: str = ""
    answer: int = 200
    hangs: threading.Event | None = None
    bodies: list[bytes] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    @property
    def spans(self) -> list[Span]:
        return [span for body in self.bodies for span in _decoded(body)]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def _decoded(body: bytes) -> Iterator[Span]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        process = _values(resource.resource.attributes)["process.pid"]
        for scope in resource.scope_spans:
            for one in scope.spans:
                yield Span(
                    one.name,
                    one.trace_id.hex(),
                    one.span_id.hex(),
                    one.parent_span_id.hex(),
                    process,
                    {name.removeprefix("backfill."): value for name, value in _values(one.attributes).items()},
                    one.status.code == one.status.STATUS_CODE_ERROR,
                    one.status.message,
                    tuple({"name": event.name} | _values(event.attributes) for event in one.events),
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Yield a collector that listens on this machine."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # a connection is kept, as collectors keep it

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            if found.hangs is not None:
                found.hangs.wait(60)
            if found.answer == 200:
                found.bodies.append(body)
            self.send_response(found.answer)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *_: Any) -> None:
            """Say nothing of a client that has gone."""

    server = Server(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield found
    finally:
        if found.hangs is not None:
            found.hangs.set()
        server.shutdown()
        server.server_close()
