"""One request and its answer: at the pace that is allowed, made again where there is none, and never for longer than declared.

Put here what is known of HTTP. What is asked for, and in which order, is `conversation`'s; what is sent so that the server
knows who asks, `credentials`'. A redirect is never followed: it would take the credential to a host that nobody named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self
from urllib.parse import urljoin

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, stop_any, stop_before_delay

from backfill_assets.declarations.apis import ApiFeed
from backfill_assets.extraction.credentials import Credentials, required_settings
from backfill_assets.extraction.pacing import Pace
from backfill_assets.extraction.refusals import ExtractionRefused, MalformedAnswer
from manifests.errors import Problem

KEPT_HEADERS = ("content-type", "date", "etag", "last-modified", "link", "retry-after", "x-request-id", "x-total-count")
"""Headers of an answer that are kept with it."""
_AGAIN = frozenset({408, 425, 429})
_REFUSED, _SERVER_ERROR, _REDIRECT, _CLIENT_ERROR = 401, 500, 300, 400
_MOST_WAIT = 30.0
"""Seconds that a request waits at most before it is made again, where the server does not say more."""
_OF_A_SLOW_ANSWER = 10
"""How many times the time of a request's one step all of them may take."""


class _NoAnswer(Exception):  # noqa: N818 - it may be one next time
    """There is no answer yet; `retry_after` is how many seconds the server wants to be left alone."""

    def __init__(self, why: str, retry_after: float = 0.0) -> None:
        super().__init__(why)
        self.retry_after = retry_after


@dataclass(frozen=True)
class Request:
    """What a server is asked; `understood` raises `MalformedAnswer` of an answer that says nothing, which is asked for again.

    Where there `may_be_nothing`, any answer that is no success is an empty one, unless the server says that it is asked too often.
    """

    method: str
    path: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    understood: Callable[[bytes], object] = len
    may_be_nothing: bool = False


@dataclass(frozen=True)
class Answer:
    """What a server has answered: `address` without parameters, `body` as it is once unpacked, `attempts` until it came."""

    address: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    at: datetime
    attempts: int


class ApiClient:
    """Asks the server of one feed."""

    def __init__(
        self,
        feed: ApiFeed,
        settings: Mapping[str, str],
        *,
        now: Callable[[], datetime],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare to ask; nothing is sent yet.

        Raises:
            EnvironmentRefused: if a setting of the feed is missing or cannot be one.
        """
        required_settings(feed, settings)
        self._feed, self._now, self._sleep = feed, now, sleep
        self._base = settings[feed.base].rstrip("/") + "/"
        self.credentials = Credentials(feed, settings)
        self._pace = Pace(feed.limit, sleep=sleep)
        self._http = httpx.Client(timeout=feed.retries.timeout_seconds, follow_redirects=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def address(self, path: str) -> str:
        """Return the whole address of a path below the base."""
        return urljoin(self._base, path.lstrip("/"))

    def ask(self, request: Request) -> Answer:
        """Return the answer to a request, made as often and for as long as the feed declares.

        Raises:
            ExtractionRefused: if there is none, or it is one that no repetition changes.
        """
        retries = self._feed.retries
        made = Retrying(
            stop=stop_any(stop_after_attempt(retries.attempts), stop_before_delay(retries.seconds)),
            wait=self._wait,
            retry=retry_if_exception_type(_NoAnswer),
            sleep=self._sleep,
            reraise=True,
        )
        attempts = 0
        try:
            for attempt in made:
                with attempt:
                    attempts = attempt.retry_state.attempt_number
                    return self._asked_once(request, attempts)
        except _NoAnswer as error:
            raise self._refused(
                request,
                f"{attempts} time(s) without an answer, the last time: {self.credentials.shown(error)}",
                f"a request is made {retries.attempts} times within {retries.seconds} s (`retries` of the feed)",
                "look at the server; the same command goes on where it stopped",
            ) from None
        raise AssertionError("a request is answered or refused")

    def _wait(self, state: RetryCallState) -> float:
        """Return how long to wait before a request is made again: what the server says, and else twice as long as last time."""
        error: Any = None if state.outcome is None else state.outcome.exception()
        own: float = min(_MOST_WAIT, self._feed.retries.wait_seconds * 2 ** (state.attempt_number - 1))
        return max(own, error.retry_after if isinstance(error, _NoAnswer) else 0.0)

    def _asked_once(self, request: Request, attempts: int) -> Answer:
        address = self.address(request.path)
        sent = self._headers()
        status, headers, body, at = self._sent(request.method, address, sent, parameters=request.parameters)
        if request.may_be_nothing and status >= _REDIRECT and status not in _AGAIN:
            body = b""
        elif status == _REFUSED and self.credentials.can_renew:
            self.credentials.forget()
            raise _NoAnswer("401: the token is refused")
        else:
            self._require_success(request, status, headers)
        if self.credentials.is_in(body):
            raise self._refused(
                request,
                "the answer has a credential in it",
                "answers are kept, and credentials are not",
                "have the server changed, so that it does not say what it is told; then change the credential",
            )
        try:
            request.understood(body)
        except MalformedAnswer as error:
            raise _NoAnswer(f"{status}, and {error}") from None
        kept = {name: self.credentials.without_secrets(headers[name]) for name in KEPT_HEADERS if name in headers}
        return Answer(address, status, kept, body, at, attempts)

    def _headers(self) -> dict[str, str]:
        def ask_for_token(address: str, form: Mapping[str, str]) -> bytes:
            token_request = Request("POST", "the token endpoint")
            status, headers, body, _ = self._sent("POST", address, {}, form=form)
            self._require_success(token_request, status, headers)
            return body

        try:
            return {"Accept": "application/json", **self.credentials.headers(ask_for_token)}
        except MalformedAnswer as error:
            raise _NoAnswer(f"the token endpoint answered, and {error}") from None

    def _require_success(self, request: Request, status: int, headers: Mapping[str, str]) -> None:
        """Raise what an answer that is none is: to be asked for again, or refused."""
        if status in _AGAIN or status >= _SERVER_ERROR:
            raise _NoAnswer(f"{status}", _retry_after(headers.get("retry-after", ""), self._now()))
        if status < _REDIRECT:
            return
        redirects = status < _CLIENT_ERROR
        raise self._refused(
            request,
            f"the server answers {status}",
            "a redirect is not followed: it would take the credential to another host"
            if redirects
            else "what the server says it will not answer is not asked for again",
            "correct the address"
            if redirects
            else "correct the declaration, the address or the credential; `--anew` begins anew where the server has forgotten "
            "a cursor or a job",
        )

    def _sent(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str],
        *,
        parameters: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes, datetime]:
        """Send one request, when it may be, and return status, headers, body, and when it was there.

        Raises:
            _NoAnswer: if none comes, or only a part of it.
        """
        until = time.monotonic() + _OF_A_SLOW_ANSWER * self._feed.retries.timeout_seconds
        with self._pace.request():
            try:
                with self._http.stream(
                    method,
                    address,
                    headers=dict(headers),
                    params=dict(parameters or {}) or None,
                    data=dict(form or {}) or None,
                ) as answer:
                    body = bytearray()
                    for part in answer.iter_bytes():
                        body += part
                        self._require_bounded(len(body), address)
                        if time.monotonic() > until:
                            raise _NoAnswer("the answer came too slowly")
                    return answer.status_code, answer.headers, bytes(body), self._now()
            except (httpx.TransportError, httpx.DecodingError, httpx.StreamError) as error:
                raise _NoAnswer(f"{type(error).__name__}: {error}") from None

    def _require_bounded(self, size: int, address: str) -> None:
        most = self._feed.most_response_bytes
        if size > most:
            raise ExtractionRefused(
                Problem(
                    f"the answer of {address} is larger than {most:,} bytes",
                    "an answer is read as a whole (`most_response_bytes` of the feed)",
                    "ask for smaller pages, windows or ranges, or raise the limit",
                )
            )

    def _refused(self, request: Request, what: str, rule: str, fix: str) -> ExtractionRefused:
        asked = "&".join(f"{name}={value}" for name, value in request.parameters.items())
        shown = self.credentials.without_secrets(f"{request.method} {request.path}{'?' if asked else ''}{asked}")
        return ExtractionRefused(Problem(f"{shown}: {what}", rule, fix, f"feed {self._feed.name}"))


def _retry_after(said: str, now: datetime) -> float:
    """Return the seconds that a server wants to be left alone; it says them, or an instant."""
    if said.strip().isdecimal():
        return float(said.strip()[:9])
    try:
        until = parsedate_to_datetime(said)
    except (ValueError, OverflowError):  # or a year that no calendar has
        return 0.0
    return max(0.0, ((until if until.tzinfo else until.replace(tzinfo=UTC)) - now).total_seconds())
