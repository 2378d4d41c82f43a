"""A shop's server on the loopback interface, whose orders can be asked for in every way that a feed can declare; and its faults.

Put here what the server holds, how it answers, what it does wrong when a test wants it to, and when each request reached it. What the
orders mean is `api_product`'s.
"""

from __future__ import annotations

import http.server
import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

BEGAN = datetime(2024, 1, 1, tzinfo=UTC)
CLIENT, SECRET, STATIC_TOKEN = "shop-client", "s3cret-of-the-shop", "t0ken-of-the-shop"
ANSWERS = ("429", "429-after", "500", "502", "503", "408", "reset", "truncated", "cut", "slow", "garbage", "expired")
"""Faults of one answer: the next one may be right."""
CHANGES = ("shift", "silent", "update", "delete", "insert")
"""What happens to the orders while they are read."""
SLOW_SECONDS = 0.4


def order(number: int, updated: datetime, amount: str = "10.00", status: str = "PAID") -> dict[str, Any]:
    return {"id": number, "updated_at": updated.isoformat().replace("+00:00", "Z"), "amount": amount, "status": status}


class Shop:
    """What a server holds, and how it behaves. One request at a time is decided upon (`lock`)."""

    def __init__(self, orders: int = 0, *, seed: int = 1) -> None:
        self.lock = threading.RLock()
        self.random = random.Random(seed)
        self.orders = {one: order(one, BEGAN + timedelta(hours=one)) for one in range(1, orders + 1)}
        self.clock = BEGAN + timedelta(hours=orders)
        self.arrived: list[float] = []
        self.asked: list[str] = []
        self.faults: Counter[str] = Counter()
        self.plan: Callable[[str, int], str] = lambda _path, _number: ""
        self.tokens: dict[str, float] = {}
        self.given_tokens = 0
        self.token_seconds = 3600
        self.token_clock: Callable[[], float] = time.monotonic  # what tokens expire by
        self.jobs: dict[str, dict[str, Any]] = {}
        self.polls_until_done = 2
        self.echo = ""
        self.most_per_page = 1_000_000  # whatever is asked for
        self.ignores_page = False
        self.behind_the_last: Any = []  # what is said behind the last page: records, a status, or "again" for the last page

    # --- what happens to the orders -------------------------------------------------------------------------------

    def tick(self) -> datetime:
        self.clock += timedelta(seconds=1)
        return self.clock

    def change(self, kind: str) -> None:
        if kind == "insert" or not self.orders:
            number = max(self.orders, default=0) + 1
            self.orders[number] = order(number, self.tick(), f"{self.random.randint(1, 999)}.50")
            return
        number = self.random.choice(sorted(self.orders))
        if kind == "delete":
            del self.orders[number]
        elif kind == "silent":
            self.orders[number] = self.orders[number] | {"amount": f"{self.random.randint(1, 9999)}.25"}
        elif kind == "update":
            self.orders[number] = order(number, self.tick(), f"{self.random.randint(1, 999)}.75", "SHIPPED")
        elif kind == "shift":  # what moves from the end to the front moves all others by a place
            found = self.orders.pop(number)
            self.orders = {number: found} | self.orders

    # --- how it answers -------------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, query: dict[str, str]) -> Any:
        if path == "/v1/orders":
            return self._paged(query)
        if path == "/v1/all":
            return self._by_cursor(query)
        if path == "/v1/range":
            first, last = int(query["first"]), int(query["last"])
            return {"data": {"items": [one for number, one in sorted(self.orders.items()) if first <= number <= last]}}
        if path == "/v1/exports" and method == "POST":
            job = f"job-{len(self.jobs) + 1}"
            self.jobs[job] = {"polls": 0, "rows": None}
            return {"job": {"id": job}}
        parts = path.strip("/").split("/")
        if parts[:2] == ["v1", "exports"] and parts[2] in self.jobs:
            return self._export(self.jobs[parts[2]], parts[3:])
        return None

    def _paged(self, query: dict[str, str]) -> Any:
        first, last = (datetime.fromisoformat(query[name]) for name in ("from", "until"))
        found = [one for one in self.orders.values() if first <= datetime.fromisoformat(one["updated_at"]) < last]
        page, size = int(query["page"]), min(int(query["size"]), self.most_per_page)
        last = max(1, -(-len(found) // size))
        if self.ignores_page or (page > last and self.behind_the_last == "again"):
            page = 1 if self.ignores_page else last
        elif page > last:
            return (
                self.behind_the_last
                if isinstance(self.behind_the_last, int)
                else {"data": {"items": self.behind_the_last}}
            )
        return {"data": {"items": found[(page - 1) * size : page * size]}}

    def _by_cursor(self, query: dict[str, str]) -> Any:
        place, size = int(query.get("after", "0")), 50
        found = list(self.orders.values())[place : place + size]
        more = {"next": str(place + size)} if place + size < len(self.orders) else {"next": None}
        return {"data": {"items": found}, "meta": more}

    def _export(self, job: dict[str, Any], what: list[str]) -> Any:
        if what == ["rows"]:
            return "\n".join(json.dumps(one) for one in job["rows"])
        job["polls"] += 1
        if job["polls"] >= self.polls_until_done and job["rows"] is None:
            job["rows"] = list(self.orders.values())
        return {"state": "RUNNING"} if job["rows"] is None else {"state": "DONE", "rows": len(job["rows"])}

    def most_within(self, seconds: float) -> int:
        """Return how many requests have reached the server in any so many seconds."""
        first = most = 0
        for last, at in enumerate(self.arrived):
            while self.arrived[first] <= at - seconds:
                first += 1
            most = max(most, last - first + 1)
        return most


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer is sent at once
    disable_nagle_algorithm = True
    server: Any

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        if parsed:
            self.server.shop.arrived.append(time.monotonic())
        return parsed

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        if urlsplit(self.path).path == "/token":
            self._token(dict(parse_qsl(body)))
        else:
            self._serve("POST")

    def do_GET(self) -> None:
        self._serve("GET")

    def _token(self, form: dict[str, str]) -> None:
        shop: Shop = self.server.shop
        if (form.get("client_id"), form.get("client_secret")) != (CLIENT, SECRET):
            self._send(401, b"{}")
            return
        with shop.lock:
            shop.given_tokens += 1
            token = f"access-{shop.given_tokens:06d}-{shop.random.randrange(10**9)}"
            shop.tokens = {token: shop.token_clock() + shop.token_seconds}
        self._send(200, json.dumps({"access_token": token, "expires_in": shop.token_seconds}).encode())

    def _serve(self, method: str) -> None:
        shop: Shop = self.server.shop
        parts = urlsplit(self.path)
        with shop.lock:
            shop.asked.append(self.path)
            if not self._is_known():
                self._send(401, b'{"error": "who asks?"}')
                return
            fault = shop.plan(parts.path, len(shop.asked))
            if fault:
                shop.faults[fault] += 1
            if fault in CHANGES:
                shop.change(fault)
            elif fault == "expired":
                shop.tokens.clear()
                self._send(401, b"{}")
                return
            found = shop.answer(method, parts.path, dict(parse_qsl(parts.query)))
        if isinstance(found, int):
            self._send(found, b'[{"id": 1, "detail": "Invalid page."}]')
            return
        body = b"" if found is None else found.encode() if isinstance(found, str) else json.dumps(found).encode()
        if shop.echo:
            body = body[:-1] + f', "echo": "{self.headers.get("Authorization", "")}"}}'.encode()
        if fault in ANSWERS:
            self._fail(fault, body)
        else:
            self._send(404 if found is None else 200, body)

    def _is_known(self) -> bool:
        said = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return said == STATIC_TOKEN or self.server.shop.tokens.get(said, 0.0) > self.server.shop.token_clock()

    def _fail(self, fault: str, body: bytes) -> None:
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        elif fault == "truncated":
            self._send(200, body[: len(body) // 2], length=len(body) + 7)
        elif fault == "cut":
            self._send(200, body[: max(1, len(body) - 3)], length=None)
        elif fault == "slow":
            time.sleep(SLOW_SECONDS)
            self._send(200, body)
        elif fault == "garbage":
            self._send(200, b"<html>we are sorry</html>")
        else:
            after = {"429-after": {"Retry-After": "1"}}.get(fault, {})
            self._send(int(fault[:3]), b'{"error": "later"}', headers=after)

    def _send(
        self, status: int, body: bytes, *, length: int | None = -1, headers: dict[str, str] | None = None
    ) -> None:
        with suppress(OSError):  # whoever asked has given up
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            if length is None:
                self.send_header("Connection", "close")
            else:
                self.send_header("Content-Length", str(len(body) if length == -1 else length))
            self.end_headers()
            self.wfile.write(body)
        if length != -1:
            self.close_connection = True


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    shop: Shop

    def handle_error(self, *_: Any) -> None:
        """Say nothing of a connection that was reset on purpose."""


@contextmanager
def serving(shop: Shop) -> Iterator[str]:
    """Serve a shop; yield the address."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.shop = shop
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
