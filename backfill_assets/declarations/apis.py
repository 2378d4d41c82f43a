"""How a team declares history that comes from a paged HTTP source: `ApiFeed`, and what it is put together from.

Put here the vocabulary between a product, which knows what a record means, and `extraction`, which knows how a server is
asked. No credential and no address stands in a declaration: both are settings, and the declaration names them. Nothing here
opens a connection. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from backfill_assets.declarations.arguments import said_at_once


@said_at_once
@dataclass(frozen=True)
class PageNumbers:
    """Pages by number: `parameter` is `first`, then one more a page.

    With a `size_parameter`, each request asks for `size` records, and a page with fewer is the last; without, an empty one is.
    Where a server gives fewer than it is asked for, whatever there is, an extraction is refused: see that it gives `size`.
    """

    parameter: str
    first: int = 1
    size_parameter: str = ""
    size: int = 0


@said_at_once
@dataclass(frozen=True)
class NextCursor:
    """Pages by cursor: each answer has at `path` what the next request sends as `parameter`; the last one has none there."""

    parameter: str
    path: str


Paging = PageNumbers | NextCursor


@said_at_once
@dataclass(frozen=True)
class ByCursor:
    """Everything that the server has, from one cursor to the next. `path` is another address than the feed's."""

    cursor: NextCursor
    path: str = ""


@said_at_once
@dataclass(frozen=True)
class ByTimeWindow:
    """Records by when they were updated, a window at a time: `backfill extract FEED --from T --until T`.

    Attributes:
        start_parameter: gets the beginning of a window, `end_parameter` its end, which is not in it; ISO 8601 in UTC.
        length: of a window.
        overlap: by how much each window begins before the end of the one before: what came late there is read here.
        paging: how a window with many records is parted; None where one answer has all of them.
        path: another address than the feed's.
    """

    start_parameter: str
    end_parameter: str
    length: timedelta
    overlap: timedelta = timedelta(0)
    paging: Paging | None = None
    path: str = ""


@said_at_once
@dataclass(frozen=True)
class ByIdRange:
    """Records by their number, `step` of them at a time: `backfill extract FEED --ids A..B`.

    `first_parameter` and `last_parameter` get the ends of a range, both in it. `paging` as for a time window.
    """

    first_parameter: str
    last_parameter: str
    step: int
    paging: Paging | None = None
    path: str = ""


@said_at_once
@dataclass(frozen=True)
class BySnapshotExport:
    """All records at one moment, as a job of the server writes them: `backfill extract FEED --snapshot`.

    Attributes:
        start: the address that a POST to starts the job; `job` is where its answer has the job's id.
        poll: the address that says how far the job is, with `{job}` in it; `state` is where the answer says so, `done` what it
            says then, and `failed` what it says of a job that will never be done.
        download: the address of the records, with `{job}` in it.
        count: where the last answer to `poll` says how many records there are; empty where it does not.
        lines: whether the records are lines of JSON, and not at the feed's `records`.
        poll_seconds: how long to wait between two questions; `most_seconds` after which the job counts as failed.
    """

    start: str
    job: str
    poll: str
    state: str
    done: str
    download: str
    failed: tuple[str, ...] = ()
    count: str = ""
    lines: bool = False
    poll_seconds: float = 5.0
    most_seconds: int = 3600


Pattern = ByCursor | ByTimeWindow | ByIdRange | BySnapshotExport
PATTERNS: tuple[type[Any], ...] = (ByCursor, ByTimeWindow, ByIdRange, BySnapshotExport)


@said_at_once
@dataclass(frozen=True)
class RateLimit:
    """At most so many `requests` in any so many `seconds`, those of tokens and of jobs among them.

    A server that answers 429, or 503 with Retry-After, is not asked again before it says so.
    """

    requests: int
    seconds: float = 1.0


@said_at_once
@dataclass(frozen=True)
class Retries:
    """How often one request is made, and for how long, before the extraction fails; it goes on where it stopped.

    Made again is what was answered with 408, 425, 429 or 5xx, what was cut off or is no JSON, and what took longer than
    `timeout_seconds`. Before the first repetition `wait_seconds` pass, and before each further one twice as many, 30 s at most;
    more where the server says so.
    """

    attempts: int = 6
    seconds: int = 300
    timeout_seconds: float = 30.0
    wait_seconds: float = 0.5


@said_at_once
@dataclass(frozen=True)
class BearerToken:
    """A token that is sent as `Authorization: Bearer`; `token` is the name of the setting that has it."""

    token: str = "token"  # noqa: S105 - the name of a setting


@said_at_once
@dataclass(frozen=True)
class HeaderKey:
    """A key that is sent in a header; `key` is the name of the setting that has it."""

    header: str
    key: str = "key"


@said_at_once
@dataclass(frozen=True)
class ClientCredentials:
    """OAuth 2 client credentials: tokens are asked for, renewed before they expire, and anew when the server refuses one.

    All but `scope` are names of settings: `address` of the one that has the token endpoint's.
    """

    address: str = "token_url"
    client_id: str = "client_id"
    client_secret: str = "client_secret"  # noqa: S105 - the name of a setting
    scope: str = ""


Auth = BearerToken | HeaderKey | ClientCredentials


@dataclass(frozen=True)
class ResponseFacts:
    """What is known of the answer that a record is from.

    Attributes:
        feed: the feed; `extraction` the extraction, by its id.
        response: the file in the archive that has the answer; `position` the number of the record in it, from 0.
        address: what was asked, without its parameters.
        read_at: when the answer came.
        content_hash: SHA-256 (hex) of the answer.
        is_deleted: whether the server has the record no more; the record is then the last one that it had.
        translator_version: that of the feed, for rows that say by which they were made.
    """

    feed: str
    extraction: str
    response: str
    position: int
    address: str
    read_at: datetime
    content_hash: str
    is_deleted: bool = False
    translator_version: str = "1"


@dataclass(frozen=True)
class RecordRejected:
    """What a translator returns of a record that is no row: it is quarantined. `detail` is the offending value, in words."""

    reason: str
    detail: str = ""


Translated = Mapping[str, Any] | RecordRejected


@said_at_once
@dataclass(frozen=True)
class ApiFeed:
    """Records of one kind that a server is asked for, and what becomes of them.

    Attributes:
        name: as commands name it; `description` and `owners` as of a table.
        table: the input table that its rows come into.
        path: the address of the records, below the base; a pattern can have another.
        patterns: how the server can be asked: at most one of each kind.
        records: where an answer has its records, as names with dots between them; empty where it is a list of them.
        key: where a record has what identifies it.
        updated_at: where a record has the instant, or the number, of its version; empty where it has none.
        translate: makes a row of a record, as the values of the table's columns by their names, or says why it is none; pure.
        translator_version: what is counted up when `translate` changes what it says; loads and the facts of records have it.
        limit: how often the server may be asked.
        base: the name of the setting that has the base address.
        auth: how the server knows who asks; None where everybody may.
        retries: what is done about an answer that is none.
        parameters: what every request for records has beside what its pattern says.
        deleted_column: the column that says whether the server has the record no more; without it, that is only reported.
        most_passes: how often what takes several pages is read, until two readings in a row agree; 1 for a server that keeps
            pages as they are.
        most_response_bytes: an answer that is larger is refused.
    """

    name: str
    description: str
    owners: tuple[str, ...]
    table: str
    path: str
    patterns: tuple[Pattern, ...]
    records: str
    key: str
    translate: Callable[[Mapping[str, Any], ResponseFacts], Translated]
    limit: RateLimit
    updated_at: str = ""
    translator_version: str = "1"
    base: str = "url"
    auth: Auth | None = None
    retries: Retries = field(default_factory=Retries)
    parameters: Mapping[str, str] = field(default_factory=dict)
    deleted_column: str = ""
    most_passes: int = 5
    most_response_bytes: int = 256 << 20

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of every setting that it needs."""
        auth = self.auth
        named: tuple[str, ...] = ()
        if isinstance(auth, BearerToken):
            named = (auth.token,)
        elif isinstance(auth, HeaderKey):
            named = (auth.key,)
        elif isinstance(auth, ClientCredentials):
            named = (auth.address, auth.client_id, auth.client_secret)
        return tuple(dict.fromkeys((self.base, *named)))

    def pattern(self, kind: type[Any]) -> Any:
        """Return its pattern of a kind, or None."""
        return next((one for one in self.patterns if isinstance(one, kind)), None)


def place_of_setting(feed: str, setting: str) -> str:
    """Say where a setting of a feed is set, either way."""
    return f"BACKFILL_APIS__{feed.upper()}__{setting.upper()}, or `{setting}` below [apis.{feed}] in backfill.toml"
