"""The sink that is a webhook: each record is posted as JSON.

Put here how a record is posted, and what a receiver's answer means. Which setting has the address is the declaration's.
"""

from __future__ import annotations

import http.client
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from manifests.errors import Problem, SinkRefused
from manifests.text import words_of
from resources.settings import REDACTED
from resources.sinks.declared import Told, json_of

WEBHOOK_TIMEOUT_SECONDS = 10
_ANSWER_SHOWN = 300
"""Characters of what a receiver answered."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes a redirect for the error that it is: followed, a POST becomes a GET at a host that nobody named, token and all."""

    def redirect_request(self, *_given: Any) -> None:
        """Return no other request."""


_OPENER = urllib.request.build_opener(_NoRedirects)


class Webhook:
    """Posts JSON to the configured URL; `runId` and `action` let the receiver recognise a repetition."""

    def __init__(self, url: str, token: str | None = None) -> None:
        if not _is_address(url):
            raise SinkRefused(
                Problem(
                    "the webhook's address is not set to an http(s) URL",
                    "LIVE posts to a configured webhook: http(s)://HOST[:PORT]/PATH, without blanks and without a user before the host",
                    "correct the setting of the LIVE deployment that has it (`backfill sinks` names it)",
                )
            )
        if token is not None and not (token.isascii() and token.isprintable()):
            raise SinkRefused(
                Problem(
                    "the webhook's token is not printable ASCII",
                    "it is sent as the header Authorization: Bearer",
                    "correct the setting of the LIVE deployment that has it (`backfill sinks` names it)",
                )
            )
        self._url, self._token = url, token

    def send(self, told: Told) -> None:
        """Post the record.

        Raises:
            SinkRefused: if the receiver cannot be reached or answers with an error.
        """
        body = json_of(told).encode()
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked above
            self._url, data=body, headers=headers, method="POST"
        )
        try:
            with _OPENER.open(request, timeout=WEBHOOK_TIMEOUT_SECONDS):
                return
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            answer = words_of(error).replace(self._url, REDACTED)[:_ANSWER_SHOWN]
            raise SinkRefused(
                Problem(
                    f"the webhook did not take the record: {answer}",
                    "the receiver answers with success",
                    "check the receiver, then publish again: it is safe to repeat",
                )
            ) from error


def _is_address(url: str) -> bool:
    """Whether a request can be made to a URL: of any other the libraries quote what is wrong in it, which may be its secret."""
    if not (url.isascii() and url.isprintable()) or " " in url:
        return False
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in {"http", "https"} and bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
        )
    except ValueError:
        return False
