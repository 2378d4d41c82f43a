"""How a server knows who asks: what is sent with a request, and what no text may show.

Put here what is made of the settings of a feed. Nothing here is ever written to a file, a log or the ledger; it lives as long
as the process that extracts.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, urlsplit

from backfill_assets.declarations.apis import ApiFeed, BearerToken, ClientCredentials, HeaderKey, place_of_setting
from backfill_assets.extraction.records import parsed, value_at
from backfill_assets.extraction.refusals import MalformedAnswer
from manifests.errors import EnvironmentRefused, Problem
from resources.settings import REDACTED

_LEAST_SECRET = 4
"""Characters from which on a text is looked for: a shorter one would be found in anything."""
_MOST_SECONDS = 10**9
"""A token that is said to be good for longer is good for as long as any process lives."""
_MARGIN = 0.1
"""The share of a token's time before whose end it is renewed."""


def required_settings(feed: ApiFeed, settings: Mapping[str, str]) -> None:
    """Refuse to ask a server whose address or credentials are not set, or could not be sent.

    Raises:
        EnvironmentRefused: naming all of them, and the value of none.
    """
    problems = [
        Problem(
            f"the setting {name} of the feed {feed.name} is not set",
            "a server is asked with the address and the credentials that the feed names",
            f"set {place_of_setting(feed.name, name)}",
        )
        for name in feed.needs
        if not settings.get(name)
    ]
    addresses = {feed.base} | ({feed.auth.address} if isinstance(feed.auth, ClientCredentials) else set())
    problems += [
        Problem(
            f"the setting {name} of the feed {feed.name} is no address",
            "it is http(s)://HOST[:PORT]/PATH, without a user before the host and without parameters",
            f"correct {place_of_setting(feed.name, name)}; a credential has a setting of its own",
        )
        for name in sorted(addresses & settings.keys())
        if not is_address(settings[name])
    ]
    problems += [
        Problem(
            f"the setting {name} of the feed {feed.name} is not printable ASCII",
            "it is sent in a header",
            f"correct {place_of_setting(feed.name, name)}",
        )
        for name in feed.needs
        if name not in addresses and not (settings.get(name, "").isascii() and settings.get(name, "a").isprintable())
    ]
    if problems:
        raise EnvironmentRefused(problems)


def is_address(url: str) -> bool:
    """Whether a text is an address that can be on record: it has no user, no password and no parameters."""
    if not (url.isascii() and url.isprintable()) or " " in url:
        return False
    try:
        parts = urlsplit(url)
        is_plain = "@" not in parts.netloc and not parts.query and not parts.fragment and parts.port != 0
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and is_plain


class Credentials:
    """What is sent with the requests of one feed."""

    def __init__(self, feed: ApiFeed, settings: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._auth, self._settings, self._clock = feed.auth, settings, clock
        addresses = {feed.base} | ({feed.auth.address} if isinstance(feed.auth, ClientCredentials) else set())
        self._secrets = {settings[name] for name in feed.needs if name not in addresses and name in settings}
        self._name = settings.get(feed.auth.client_id, "") if isinstance(feed.auth, ClientCredentials) else ""
        self._token, self._renew_at = "", 0.0

    @property
    def can_renew(self) -> bool:
        """Whether another token can be asked for where the server refuses one: it may have forgotten it before its time."""
        return isinstance(self._auth, ClientCredentials)

    def headers(self, ask_for_token: Callable[[str, Mapping[str, str]], bytes]) -> dict[str, str]:
        """Return the headers of a request; a token that is due is asked for, with an address and the fields of a form."""
        auth = self._auth
        if isinstance(auth, BearerToken):
            return {"Authorization": f"Bearer {self._settings[auth.token]}"}
        if isinstance(auth, HeaderKey):
            return {auth.header: self._settings[auth.key]}
        if isinstance(auth, ClientCredentials):
            if not self._token or self._clock() >= self._renew_at:
                self._renew(auth, ask_for_token)
            return {"Authorization": f"Bearer {self._token}"}
        return {}

    def _renew(self, auth: ClientCredentials, ask_for_token: Callable[[str, Mapping[str, str]], bytes]) -> None:
        form = {
            "grant_type": "client_credentials",
            "client_id": self._settings[auth.client_id],
            "client_secret": self._settings[auth.client_secret],
        }
        asked_at = self._clock()
        answer = parsed(
            ask_for_token(self._settings[auth.address], form | ({"scope": auth.scope} if auth.scope else {}))
        )
        token, seconds = value_at(answer, "access_token"), value_at(answer, "expires_in")
        if not isinstance(token, str) or not token or not (token.isascii() and token.isprintable()):
            raise MalformedAnswer("it has no access_token that could be sent")
        self._token = token
        self._secrets.add(token)
        is_known = isinstance(seconds, int) and not isinstance(seconds, bool)
        self._renew_at = asked_at + (min(seconds, _MOST_SECONDS) * (1 - _MARGIN) if is_known else float("inf"))

    def forget(self) -> None:
        """Ask for another token with the next request."""
        self._token = ""

    def without_secrets(self, text: str) -> str:
        """Return a text in which nothing can be read that is not to be shown."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            if len(secret) >= _LEAST_SECRET:
                for spelled in (
                    secret,
                    repr(secret)[1:-1],
                    json.dumps(secret)[1:-1],
                    quote(secret),
                    quote_plus(secret),
                ):
                    text = text.replace(spelled, REDACTED)
        return text

    def is_in(self, body: bytes) -> bool:
        """Whether an answer has a credential in it, in whatever spelling of JSON: it must not be kept. The name of a client is none."""
        text = body.decode("utf-8", "replace")
        texts = (text, _ESCAPE.sub(_meant, text))
        secrets = [one for one in self._secrets if len(one) >= _LEAST_SECRET and one != self._name]
        return any(one in said for one in secrets for said in texts)

    def shown(self, value: Any) -> str:
        """Return what an error says, without secrets and in one line."""
        return " ".join(self.without_secrets(str(value)).split())[:300]


_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/]))')
"""A character of a text of JSON that is written as an escape."""


def _meant(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else escape[2]
