"""Requests to S3, signed by the clock of the store: a host whose own clock is wrong is answered all the same.

Put here what is private of botocore, and nothing else. A store refuses what was signed at another time than its own (15 minutes apart, at AWS), and says what time
it has; PyArrow's client and Hadoop's go by that from then on, and botocore does not. Imported once a bucket is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from botocore import UNSIGNED
from botocore.auth import S3SigV4Auth

_FORM = "%Y%m%dT%H%M%SZ"


@dataclass
class StoreClock:
    """What the time is at a store: this machine's, and how far that is off, as far as the store has said so."""

    off: timedelta = timedelta()

    def learn(self, headers: Mapping[str, str]) -> bool:
        """Take over the time that an answer gives; return whether it gives one."""
        try:
            said = parsedate_to_datetime(headers["date"])
        except (KeyError, ValueError):
            return False
        self.off = said - datetime.now(UTC)
        return True

    def sign_for(self, client: Any, credentials: Any) -> None:
        """Have a client sign its requests by this clock, with the credentials of its session."""

        def by_hand(**_: Any) -> Any:
            return UNSIGNED

        def sign(request: Any, region_name: str, **_: Any) -> None:
            _ByClock(self, credentials.get_frozen_credentials(), region_name).add_auth(request)

        client.meta.events.register_first("choose-signer.s3", by_hand)
        client.meta.events.register_last("before-sign.s3", sign)


class _ByClock(S3SigV4Auth):  # type: ignore[misc]
    """The signature of S3, at the time of a store."""

    def __init__(self, clock: StoreClock, credentials: Any, region: str) -> None:
        super().__init__(credentials, "s3", region)
        self._clock = clock

    def _modify_request_before_signing(self, request: Any) -> None:
        request.context["timestamp"] = (datetime.now(UTC) + self._clock.off).strftime(_FORM)
        super()._modify_request_before_signing(request)
