"""A proxy before an S3 server that answers as broken networks, proxies and servers do, on order."""

from __future__ import annotations

import http.client
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

UNAVAILABLE = "503"
NOT_FOUND = "404, of a proxy that knows no such server"
SWALLOWED = "200, of a proxy that has sent nothing on"
LOST = "nothing, though the server has done it"
CUT = "half of the body, and neither its length nor its checksum"
_STATUS = {UNAVAILABLE: 503, NOT_FOUND: 404, SWALLOWED: 200}
_HOP = {"transfer-encoding", "connection"}


class Proxy(ThreadingHTTPServer):
    """Sends requests on as they are, but for those that `answers` has an answer to, by method and path."""

    daemon_threads = True

    def __init__(self, host: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.host, self.endpoint = host, f"http://127.0.0.1:{self.server_address[1]}"
        self.answers: Callable[[str, str], str | None] = lambda _, __: None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that a client or the server has ended; it is what is tried."""
        if not isinstance(sys.exception(), ConnectionError | http.client.HTTPException):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _body(self) -> bytes:
        if length := self.headers.get("Content-Length"):
            return self.rfile.read(int(length))
        found = b""
        while self.headers.get("Transfer-Encoding") and (size := int(self.rfile.readline().partition(b";")[0], 16)):
            found += self.rfile.read(size)
            self.rfile.readline()
        return found

    def _answer(self) -> None:
        body = self._body()
        how = self.server.answers(self.command, self.path)
        if how in _STATUS:
            self.send_response(_STATUS[how])
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._sent_on(body, how)

    def _sent_on(self, body: bytes, how: str | None) -> None:
        is_cut = how == CUT
        upstream = http.client.HTTPConnection(self.server.host, timeout=30)
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _HOP:
                upstream.putheader(name, value)
        if self.headers.get("Transfer-Encoding") and not self.headers.get("Content-Length"):
            upstream.putheader("Content-Length", str(len(body)))
        upstream.endheaders(body)
        answer = upstream.getresponse()
        found = b"" if self.command == "HEAD" else answer.read()
        if how == LOST:
            upstream.close()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            says_whole = name.lower() == "content-length" or "checksum" in name.lower()
            if name.lower() not in _HOP and not (is_cut and says_whole):
                self.send_header(name, value)
        if is_cut:
            self.send_header("Connection", "close")
            self.close_connection = True
        elif self.command != "HEAD" and answer.getheader("Content-Length") is None:
            self.send_header("Content-Length", str(len(found)))
        self.end_headers()
        self.wfile.write(found[: len(found) // 2] if is_cut else found)
        upstream.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - names of http.server


@contextmanager
def misbehaving(server: str) -> Iterator[Proxy]:
    """Yield a proxy before a server, by its endpoint, for this block."""
    with Proxy(server.removeprefix("http://")) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
