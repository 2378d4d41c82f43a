"""An S3 server of a few verbs, in this process: for what has to be tried at every step, and for stores that do less than S3.

Put here what the evidence asks of a store: an object made if there is none, read, listed. It looks at no signature. Whether a real
server does the same is tried with `real_servers.s3`.
"""

from __future__ import annotations

import hashlib
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

_META = "x-amz-meta-"
LOST = "the answer is lost"
_ERRORS = {"NoSuchKey": 404, "NoSuchBucket": 404, "AccessDenied": 403, "PreconditionFailed": 412, "SlowDown": 503}
_ERRORS |= {"InvalidRequest": 400, "BadDigest": 400}


@dataclass(frozen=True)
class Kept:
    """An object of a bucket."""

    raw: bytes
    etag: str
    metadata: dict[str, str]


class SmallStore(ThreadingHTTPServer):
    """The server, with one bucket.

    Attributes:
        objects: what the bucket has, by key.
        asked: method and key of each request, or the prefix that was listed.
        answers: what is answered instead, by method and key: the code of an error, `LOST`, or nothing of the kind.
        gives_names_once: whether it knows the condition that nothing of a name is there.
        keeps_metadata: whether it has the metadata of objects.
        locks_objects: whether it keeps objects from being changed for some time, and so asks for the hash of what is put.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, Kept] = {}
        self.asked: list[tuple[str, str]] = []
        self.answers: Callable[[str, str], str | None] = lambda _, __: None
        self.gives_names_once = self.keeps_metadata = True
        self.locks_objects = False
        self.lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def properties(self) -> dict[str, str]:
        """Return what a catalog says of the server."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": "tests",
            "s3.secret-access-key": "secret-of-tests",
            "s3.region": "us-east-1",
        }

    def bucket(self, name: str) -> str:
        return name

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that have ended."""


@dataclass
class _Page:
    keys: list[str] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    more: str = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # an answer is one packet
    server: SmallStore

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def handle_expect_100(self) -> bool:
        """Have the body sent at once."""
        done = super().handle_expect_100()
        self.wfile.flush()
        return done

    def _say(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, code: str) -> None:
        said = f"<Error><Code>{code}</Code><Message>of the tests</Message></Error>"
        self._say(_ERRORS[code], said.encode())

    def _asked(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        query = {name: found[0] for name, found in parse_qs(parts.query, keep_blank_values=True).items()}
        return unquote(parts.path).lstrip("/").partition("/")[2], query

    def _before(self, key: str) -> str | None:
        self.server.asked.append((self.command, key))
        return self.server.answers(self.command, key)

    def _lose(self) -> None:
        self.close_connection = True
        self.connection.close()

    def do_PUT(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        if len(raw) != length:  # its sender has died
            self._lose()
            return
        key, _ = self._asked()
        answer = self._before(key)
        told = self.headers.get("Content-MD5")
        if answer is None and told is None and self.server.locks_objects:
            answer = "InvalidRequest"
        if answer is None and told not in {None, b64encode(hashlib.md5(raw).digest()).decode()}:
            answer = "BadDigest"
        if answer not in {None, LOST}:
            self._refuse(str(answer))
            return
        metadata = {
            name.lower().removeprefix(_META): value
            for name, value in self.headers.items()
            if self.server.keeps_metadata and name.lower().startswith(_META)
        }
        with self.server.lock:
            is_taken = self.server.gives_names_once and self.headers.get("If-None-Match") and key in self.server.objects
            if not is_taken:
                self.server.objects[key] = Kept(raw, f'"{hashlib.md5(raw).hexdigest()}"', metadata)
        if answer == LOST:
            self._lose()
        elif is_taken:
            self._refuse("PreconditionFailed")
        else:
            self._say(200, ETag=self.server.objects[key].etag)

    def do_GET(self) -> None:
        key, query = self._asked()
        if not key:
            self._list(query)
            return
        answer = self._before(key)
        found = self.server.objects.get(key)
        if answer == LOST:
            self._lose()
        elif answer or found is None:
            self._refuse(answer or "NoSuchKey")
        else:
            own = {f"{_META}{name}": value for name, value in found.metadata.items()}
            self._say(200, found.raw, ETag=found.etag, **own)

    def do_DELETE(self) -> None:
        """Remove an object, for tests that tamper: the evidence never asks for it."""
        key, _ = self._asked()
        self.server.asked.append((self.command, key))
        self.server.objects.pop(key, None)
        self._say(204)

    def _list(self, query: dict[str, str]) -> None:
        answer = self._before(query["prefix"])
        if answer == LOST:
            self._lose()
            return
        if answer:
            self._refuse(answer)
            return
        page = self._page(query)

        def named(name: str) -> str:
            return escape(quote(name, safe="/"))

        contents = "".join(
            f"<Contents><Key>{named(key)}</Key><Size>{len(self.server.objects[key].raw)}</Size>"
            f"<ETag>{escape(self.server.objects[key].etag)}</ETag></Contents>"
            for key in page.keys
        )
        prefixes = "".join(f"<CommonPrefixes><Prefix>{named(one)}</Prefix></CommonPrefixes>" for one in page.prefixes)
        more = f"<NextContinuationToken>{named(page.more)}</NextContinuationToken>" if page.more else ""
        said = (
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>tests</Name>'
            f"<EncodingType>url</EncodingType><IsTruncated>{str(bool(page.more)).lower()}</IsTruncated>"
            f"{more}{contents}{prefixes}</ListBucketResult>"
        )
        self._say(200, said.encode(), Date=formatdate(usegmt=True))

    def _page(self, query: dict[str, str]) -> _Page:
        prefix, delimiter = query["prefix"], query.get("delimiter", "")
        after = unquote(query.get("continuation-token", "")) or query.get("start-after", "")
        most, page = int(query.get("max-keys", 1000)), _Page()
        with self.server.lock:
            keys = sorted(key for key in self.server.objects if key.startswith(prefix) and key > after)
        for key in keys:
            if len(page.keys) + len(page.prefixes) == most:
                page.more = after
                break
            rest = key.removeprefix(prefix)
            after = key
            if delimiter and delimiter in rest:
                folder = prefix + rest.partition(delimiter)[0] + delimiter
                if folder not in page.prefixes:
                    page.prefixes.append(folder)
            else:
                page.keys.append(key)
        return page


@contextmanager
def small_store() -> Iterator[SmallStore]:
    """Yield a server, for this block."""
    with SmallStore() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
