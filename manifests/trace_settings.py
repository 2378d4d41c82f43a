"""Whether spans of runs are sent to a collector of OpenTelemetry, to which one, and how long anybody waits for it.

Put here what makes these settings usable. Which spans there are is `resources.logs.traces`', how they are sent
`resources.logs.span_export`'s.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

_PATH = "/v1/traces"
"""Where a collector takes spans, by the OTLP specification."""
_FORM = "http://host:4318 or https://host/path"
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
"""Of a header: characters of ASCII that are seen, and blanks between them."""
_ADDRESS = re.compile(r"[!-~]+")
_OWN_HEADERS = frozenset(
    {"content-type", "content-length", "content-encoding", "host", "transfer-encoding", "user-agent"}
)
"""What the exporter says itself, of each request."""
_MOST_SECONDS = 60.0


class Traces(BaseModel):
    """Where spans go; off where there is no endpoint, or nothing is sampled."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str = Field("", description="The collector's address, OTLP over HTTP.")
    sample_ratio: float = Field(1.0, ge=0, le=1, allow_inf_nan=False, description="Which share of the runs is traced.")
    timeout_seconds: float = Field(
        5.0, gt=0, le=_MOST_SECONDS, allow_inf_nan=False, description="How long the collector may take for a request."
    )
    exit_seconds: float = Field(
        1.0,
        ge=0,
        le=_MOST_SECONDS,
        allow_inf_nan=False,
        description="How long the end of a process waits for it at most.",
    )
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="Headers of each request, such as credentials; none is ever shown."
    )

    @field_validator("endpoint")
    @classmethod
    def _is_address(cls, value: str) -> str:
        """Refuse what is no address. What is said has none of it: it may have a password."""
        if not value:
            return value
        if _ADDRESS.fullmatch(value) is None:
            raise ValueError(f"it is no address of a collector, which is written {_FORM}: it has blanks or other signs")
        try:
            url = urlsplit(value)
            port, host = url.port, url.hostname
        except ValueError as error:
            raise ValueError(
                f"it is no address of a collector, which is written {_FORM}: its host or port is none"
            ) from error
        if "@" in url.netloc:
            raise ValueError("it has a user or a password: give credentials as `headers`, which are never shown")
        if url.scheme not in {"http", "https"} or not host or port == 0:
            raise ValueError(f"it is no address of a collector, which is written {_FORM}")
        if "?" in value or "#" in value:
            raise ValueError("it has a ? or a #: give credentials as `headers`, which are never shown")
        return value

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        """Refuse what no request could carry. What is said has no value."""
        for name, secret in value.items():
            if _HEADER.fullmatch(name) is None or name.lower() in _OWN_HEADERS:
                raise ValueError(f"{name!a} is no name of a header that may be given")
            if _VALUE.fullmatch(secret.get_secret_value()) is None:
                raise ValueError(
                    f"the value of {name} is no text of a header: letters, digits and signs of ASCII in one line"
                )
        return value

    @property
    def are_on(self) -> bool:
        """Whether any run leaves spans."""
        return bool(self.endpoint) and self.sample_ratio > 0

    @property
    def address(self) -> str:
        """The address that spans are posted to."""
        whole = self.endpoint.rstrip("/")
        return whole if whole.endswith(_PATH) else whole + _PATH

    def secrets(self) -> dict[str, str]:
        """Return the headers with their values."""
        return {name: value.get_secret_value() for name, value in self.headers.items()}
