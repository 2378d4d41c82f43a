"""The guard before Dagster's webserver: which requests reach it, and from whom.

Dagster's webserver asks nobody who they are, executes mutations that come as a plain GET, or in a POST that any web page
may send, and takes reports of asset events from anyone. Put here what is decided about a request before Dagster sees it,
whatever the listener. Which mutations operators may send is in `mutations`, how a document is read in `graphql_requests`.
Nothing here knows Dagster's Python code, the ledger, or how the server is started.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from graphql import DocumentNode, GraphQLError

from backfill_assets.ui.graphql_requests import MAX_DEPTH, depth_of, document_of, evaluates, mutations_of
from backfill_assets.ui.mutations import EVALUATION, FORBIDDEN_MUTATIONS, NO_EVALUATING, NO_FORGING, OPERATOR_MUTATIONS
from manifests.errors import Problem
from manifests.text import NAME_RULE, not_a_name

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GRAPHQL = "/graphql"
USER_HEADER = b"x-backfill-user"
USER_KEY = "backfill.user"
"""Where in the scope the guard leaves who asks; "" if nobody vouches for a name."""
ASKED_KEY = "backfill.asked"
"""Where in the scope the guard leaves which mutations are asked for; absent for a request that changes nothing."""
MAX_BODY = 4 * 1024 * 1024
_REPORTS = ("/report_asset_materialization", "/report_asset_check", "/report_asset_observation")
_NOTEBOOKS = frozenset({"/notebook", "/dagit/notebook"})
_ONCE = frozenset(
    {
        b"host", b"origin", b"accept", b"content-type", b"content-encoding", b"content-length",
        b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", USER_HEADER,
    }
)  # fmt: skip
"""Headers by which something is decided, here or after the guard: of two, one would be judged and the other obeyed."""
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_POLICY_VIOLATION = 1008


class Role(StrEnum):
    """What somebody may do in the UI."""

    VIEWER = "viewer"
    OPERATOR = "operator"


class RefusedRequest(Exception):  # noqa: N818 - it is a decision, not a fault
    """A request that does not reach Dagster."""

    def __init__(self, status: HTTPStatus, what: str, rule: str, fix: str) -> None:
        self.status = status
        self.problem = Problem(what, rule, fix)
        super().__init__(str(self.problem))

    @property
    def body(self) -> bytes:
        """Return the answer: for scripts under `error`, for Dagster's UI, which shows messages, under `errors`."""
        problem = self.problem
        text = f"{problem.what}. {problem.rule[:1].upper()}{problem.rule[1:]}. What to do: {problem.fix}."
        told = {"what": problem.what, "rule": problem.rule, "whatToDo": problem.fix}
        return json.dumps({"error": told, "errors": [{"message": text}]}).encode()


@dataclass(frozen=True)
class Door:
    """A listener, as the guard sees it: what those who come through it may do, and under which address.

    Attributes:
        role: what whoever comes through it may do.
        address: `https://host[:port]` of the proxy before it, which also says who asks; "" for people on this machine,
            through any port of the loopback interface (they may have forwarded it).
    """

    role: Role
    address: str = ""

    def is_its_host(self, host: str) -> bool:
        """Return whether a `Host` header names this server."""
        if self.address:
            return host.lower() in _hosts(self.address)
        try:
            return urlsplit(f"//{host}").hostname in _LOOPBACK
        except ValueError:
            return False

    def is_its_origin(self, origin: str, host: str) -> bool:
        """Return whether an `Origin` header is that of the page this server itself has sent."""
        scheme = urlsplit(self.address).scheme if self.address else "http"
        return origin.lower() == f"{scheme}://{host.lower()}"


@dataclass(frozen=True)
class Asked:
    """Mutations that were let through: who asked, in which role, by which fields."""

    user: str
    role: Role
    mutations: tuple[str, ...]


def _hosts(address: str) -> frozenset[str]:
    split = urlsplit(address.lower())
    name = split.hostname or ""
    port = split.port or {"https": 443, "http": 80}[split.scheme]
    usual = (split.scheme, port) in {("https", 443), ("http", 80)}
    return frozenset({f"{name}:{port}", *([name] if usual else [])})


class Guard:
    """ASGI middleware that lets pass what a door's role may ask of this server, from its own pages or from a script."""

    def __init__(self, app: App, door: Door, note: Callable[[Asked], None] = lambda _: None) -> None:
        self.app, self.door, self.note = app, door, note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge a request, and answer it here or hand it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _with_headers(send)
        try:
            headers = self._headers(scope)
            if scope["method"] == "POST":
                receive = await self._post(scope, headers, receive)
            else:
                _judge_reading(scope, headers)
        except RefusedRequest as refusal:
            body = refusal.body
            length = (b"content-length", str(len(body)).encode())
            start = {"type": "http.response.start", "status": int(refusal.status)}
            await answer(start | {"headers": [(b"content-type", b"application/json"), length]})
            await answer({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
            return
        await self.app(scope, receive, answer)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._headers(scope)
            if scope["path"] != GRAPHQL:
                raise _foreign(f"a websocket on {scope['path']}", f"the only one is {GRAPHQL}")
        except RefusedRequest:
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return

        async def screened() -> Message:
            message = await receive()
            if message["type"] == "websocket.receive" and not _is_subscription(message):
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": "subscriptions only"})
                return {"type": "websocket.disconnect", "code": _POLICY_VIOLATION}
            return message

        await self.app(scope, screened, send)

    def _headers(self, scope: Scope) -> dict[bytes, str]:
        """Return the headers after judging whom the request is for and which page it comes from.

        A browser says which page a request comes from, always for a POST and a websocket. A script says nothing, and no
        web page can make a browser say nothing.
        """
        found: dict[bytes, str] = {}
        for name, value in scope["headers"]:
            if name in found and name in _ONCE:
                raise _foreign(
                    f"several headers {name.decode('latin-1')}",
                    "something is decided by it, here or by Dagster, so that it is given once",
                    "send it once; a browser does, and so does a proxy that adds none",
                )
            found[name] = value.decode("latin-1")
        host, origin, site = (found.get(name, "") for name in (b"host", b"origin", b"sec-fetch-site"))
        if not self.door.is_its_host(host):
            raise _foreign(
                f"the host '{host[:200]}'",
                f"this server answers as {self.door.address or 'localhost and 127.0.0.1'} only, so that no other name can "
                "be pointed at it",
                "open that address; for another name, start `backfill ui` with --behind",
            )
        if b"origin" in found and not self.door.is_its_origin(origin, host):
            raise _foreign(f"a request from a page of '{origin[:200]}'", "only pages of this server may ask it")
        navigation = scope["type"] == "http" and scope["method"] == "GET" and _opens_a_page(found)
        if site not in {"", "same-origin", "none"} and not navigation:
            raise _foreign(f"a request from a page elsewhere ({site[:50]})", "only pages of this server may ask it")
        vouched = (
            _name(found.get(USER_HEADER, "")) if self.door.address else ""
        )  # else anybody could write any name there
        if vouched and (wrong := not_a_name(vouched)) is not None:
            raise RefusedRequest(
                HTTPStatus.BAD_REQUEST,
                f"the name {vouched[:200]!a}: {wrong}",
                NAME_RULE,
                "have the proxy's list of people, or what it asks, give the name as people see it",
            )
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name != USER_HEADER]
        scope[USER_KEY] = vouched
        return found

    async def _post(self, scope: Scope, headers: dict[bytes, str], receive: Receive) -> Receive:
        """Judge a POST; return its body as it was judged."""
        path = scope["path"]
        if path.startswith(_REPORTS):
            raise RefusedRequest(HTTPStatus.FORBIDDEN, f"a report on {path}", *NO_FORGING)
        if path != GRAPHQL:
            raise _foreign(f"a POST on {path}", f"the only address that takes one is {GRAPHQL}")
        media_type = headers.get(b"content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json" or b"content-encoding" in headers:
            raise _foreign(
                f"a POST as '{headers.get(b'content-type', '')[:100]}'",
                "a query is plain application/json, which no page of another site can send unasked",
                "send the header Content-Type: application/json",
            )
        payload, document = _parsed(await _whole(receive))
        asked = mutations_of(document)
        self._judge_mutations(asked)
        if evaluates(document):
            raise RefusedRequest(HTTPStatus.FORBIDDEN, f"'{EVALUATION}' in a query", *NO_EVALUATING)
        if asked:
            self.note(Asked(scope[USER_KEY], self.door.role, asked))
            scope[ASKED_KEY] = asked
        # what was judged is what is executed, whatever another reader would make of the bytes or of the address
        body = json.dumps(payload).encode()
        scope["query_string"] = b""
        kept = [pair for pair in scope["headers"] if pair[0] not in {b"content-type", b"content-length"}]
        length = str(len(body)).encode()
        scope["headers"] = [*kept, (b"content-type", b"application/json"), (b"content-length", length)]
        return _replay(body, receive)

    def _judge_mutations(self, asked: Iterable[str]) -> None:
        for name in asked:
            if self.door.role is not Role.OPERATOR:
                raise RefusedRequest(
                    HTTPStatus.FORBIDDEN,
                    f"'{name[:100]}' as {self.door.role}",
                    "viewers look; only operators launch, stop or change anything",
                    "ask an operator, or the person who maintains the list of operators",
                )
            if name not in OPERATOR_MUTATIONS:
                rule, fix = FORBIDDEN_MUTATIONS.get(
                    name, ("only what this project knows and uses is let through", "use the command on the machine")
                )
                raise RefusedRequest(HTTPStatus.FORBIDDEN, f"'{name[:100]}'", rule, fix)


def _foreign(what: str, rule: str, fix: str = "open the UI's own address and do it there") -> RefusedRequest:
    return RefusedRequest(HTTPStatus.FORBIDDEN, what, rule, fix)


def _opens_a_page(headers: dict[bytes, str]) -> bool:
    """Return whether a browser follows a link, in a window of its own and not inside another page."""
    mode, where = headers.get(b"sec-fetch-mode", ""), headers.get(b"sec-fetch-dest", "")
    return mode == "navigate" and where == "document"


def _judge_reading(scope: Scope, headers: dict[bytes, str]) -> None:
    if scope["method"] not in {"GET", "HEAD"}:
        raise RefusedRequest(
            HTTPStatus.METHOD_NOT_ALLOWED,
            f"the method {scope['method'][:20]}",
            "this server knows GET, HEAD and POST",
            "use one of them",
        )
    if ".." in scope["path"].split("/"):
        raise RefusedRequest(
            HTTPStatus.NOT_FOUND, "a path that climbs", "a path names one thing", "open a link of the UI"
        )
    if scope["path"].rstrip("/") in _NOTEBOOKS:
        raise RefusedRequest(
            HTTPStatus.NOT_FOUND,
            "a notebook",
            "no asset here has one, and its address could be that of any notebook of this machine",
            "open it where it lies",
        )
    if scope["path"].rstrip("/") != GRAPHQL:
        return
    if "text/html" not in headers.get(b"accept", ""):
        raise RefusedRequest(
            HTTPStatus.FORBIDDEN,
            "a query by GET",
            "a GET changes nothing: links and images of any page can cause one",
            "send it by POST, as application/json",
        )
    # what is handed on is a page and no query: the page reads the address in the browser
    scope["query_string"] = b""


def _name(header: str) -> str:
    """Return the name that a proxy has written, in UTF-8 where it is that."""
    try:
        return header.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        return header


def _parsed(body: bytes) -> tuple[dict[str, Any], DocumentNode]:
    """Return a GraphQL request and its document."""
    try:
        payload = json.loads(body)
        if isinstance(payload, dict) and isinstance(text := payload.get("variables"), str):
            payload["variables"] = json.loads(text)  # as Dagster reads them
        return payload, document_of(payload)
    except (ValueError, KeyError, TypeError, GraphQLError, RecursionError) as error:
        raise RefusedRequest(
            HTTPStatus.BAD_REQUEST,
            f"a query that cannot be read: {type(error).__name__}: {str(error)[:200]}",
            "it is a JSON object with one GraphQL document under `query`",
            "correct it",
        ) from error


def _is_subscription(message: Message) -> bool:
    """Return whether a message of a websocket is one of the protocol that starts no mutation, and runs nobody's body."""
    try:
        said = json.loads(message.get("text") or "")  # Dagster reads no message of bytes
        if depth_of(said) > MAX_DEPTH or not isinstance(said.get("id"), str | int | None):
            return False
        if said.get("type") != "start":
            return True
        document = document_of(said["payload"])
        return not mutations_of(document) and not evaluates(document)
    except (ValueError, KeyError, TypeError, AttributeError, GraphQLError, RecursionError):
        return False


async def _whole(receive: Receive) -> bytes:
    body = b""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusedRequest(HTTPStatus.BAD_REQUEST, "half a request", "it is sent whole", "send it again")
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            raise RefusedRequest(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request", f"it has at most {MAX_BODY:,} bytes", "send less"
            )
        more = message.get("more_body", False)
    return body


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


_HEADERS = (
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)
_NO_FRAMES = (b"content-security-policy", b"frame-ancestors 'none'")
"""A policy of its own beside the application's: a browser obeys all of them."""


def _with_headers(send: Send) -> Send:
    ours = {name for name, _ in _HEADERS}

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [pair for pair in message.get("headers", []) if pair[0].lower() not in ours]
            message = {**message, "headers": [*kept, *_HEADERS, _NO_FRAMES]}
        await send(message)

    return sending
