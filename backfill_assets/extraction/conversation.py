"""What a server is asked, one request after the other, as it follows from what it has answered so far.

Put here the order of requests of each pattern, and nothing that sends one: a conversation is a generator that yields what to ask
next and is sent the answer. Whoever goes on with an extraction sends it the answers that are kept first, and it comes to the
request at which that stopped. How pages change while they are read is found here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from backfill_assets.declarations.apis import (
    ApiFeed,
    ByCursor,
    ByIdRange,
    BySnapshotExport,
    ByTimeWindow,
    NextCursor,
    PageNumbers,
    Paging,
)
from backfill_assets.extraction.questions import Question
from backfill_assets.extraction.records import NO_VALUE, contents_of, is_text, parsed, records_of, value_at
from backfill_assets.extraction.refusals import ExtractionRefused, MalformedAnswer
from manifests.errors import Problem

PAGE, LINES, JOB, POLL = "PAGE", "LINES", "JOB", "POLL"
"""What an answer is: records, records that are lines of JSON, a job that was started, or one that is done."""
OF_RECORDS = frozenset({PAGE, LINES})
_MOST_PAGES = 1_000_000
_SECOND = 2
_LONGEST_CURSOR = 4_000
_FIRST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Ask:
    """What to ask next.

    `part` is what is read, `reading` how often it was begun, `page` the number of the page in it, from 1. `is_there` says of an
    answer whether it is the one that is waited for: it is asked for again until then, every `poll_seconds`, for `most_seconds`.
    With `may_be_refused` a server that will not answer it says that there is nothing: see `http_client.NOTHING_THERE`.
    """

    method: str
    path: str
    part: str
    reading: int
    page: int
    kind: str
    understood: Callable[[bytes], object]
    parameters: Mapping[str, str] = field(default_factory=dict)
    is_there: Callable[[bytes], bool] | None = None
    poll_seconds: float = 0.0
    most_seconds: float = 0.0
    may_be_refused: bool = False


Conversation = Generator[Ask, bytes, bool]
"""Yields requests, is sent the answers, and returns whether what takes several pages was read alike twice."""


def converse(feed: ApiFeed, asked: Question) -> Conversation:
    """Return the conversation of a question.

    Raises:
        ExtractionRefused: if the server says something that does not fit the declaration.
    """
    pattern = asked.pattern
    if isinstance(pattern, BySnapshotExport):
        return _export(feed, pattern)
    if isinstance(pattern, ByCursor):
        parts: Iterator[tuple[str, dict[str, str]]] = iter([("everything", {})])
        return _parts(feed, pattern.path or feed.path, parts, pattern.cursor)
    parts = _windows(pattern, asked) if isinstance(pattern, ByTimeWindow) else _ranges(pattern, asked)
    return _parts(feed, pattern.path or feed.path, parts, pattern.paging)


def _windows(pattern: ByTimeWindow, asked: Question) -> Iterator[tuple[str, dict[str, str]]]:
    assert asked.start is not None
    assert asked.end is not None
    begins = asked.start
    while begins < asked.end:
        ends = asked.end if asked.end - begins <= pattern.length else begins + pattern.length
        overlap = min(pattern.overlap, begins - _FIRST)  # before the first instant there is none
        first, last = _instant(begins - overlap), _instant(ends)
        yield f"{first}..{last}", {pattern.start_parameter: first, pattern.end_parameter: last}
        begins = ends


def _instant(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _ranges(pattern: ByIdRange, asked: Question) -> Iterator[tuple[str, dict[str, str]]]:
    assert asked.first is not None
    assert asked.last is not None
    for first in range(asked.first, asked.last + 1, pattern.step):
        last = min(first + pattern.step - 1, asked.last)
        yield f"{first}..{last}", {pattern.first_parameter: str(first), pattern.last_parameter: str(last)}


@dataclass
class _Pages:
    """What the pages of an extraction have shown of its server so far.

    How many records the fullest one had; whether it gives fewer than it is asked for; whether another number is another page.
    """

    fullest: int = 0
    gives_fewer: bool = False
    are_counted: bool = False


def _parts(
    feed: ApiFeed, path: str, parts: Iterator[tuple[str, dict[str, str]]], paging: Paging | None
) -> Conversation:
    is_stable, pages = True, _Pages()
    for part, own in parts:
        is_stable &= yield from _until_alike(feed, path, part, {**feed.parameters, **own}, paging, pages)
    return is_stable


Reading = Generator[Ask, bytes, tuple[frozenset[tuple[str, str]], bool]]
"""Returns the records of a part, and whether one answer had all of them."""


def _until_alike(
    feed: ApiFeed, path: str, part: str, parameters: Mapping[str, str], paging: Paging | None, pages: _Pages
) -> Conversation:
    """Read a part until two readings in a row have the same records; one answer is of one moment, and needs no other."""
    before: frozenset[tuple[str, str]] | None = None
    for reading in range(1, feed.most_passes + 1):
        if isinstance(paging, PageNumbers):
            seen, is_one = yield from _read_numbered(feed, path, part, reading, parameters, paging, pages)
        else:
            seen, is_one = yield from _read(feed, path, part, reading, parameters, paging)
        if is_one or feed.most_passes == 1 or seen == before:
            return True
        before = seen
    return False


def _read(
    feed: ApiFeed, path: str, part: str, reading: int, parameters: Mapping[str, str], paging: NextCursor | None
) -> Reading:
    """Read a part from its first page to the one that leads on to no other."""
    seen: set[tuple[str, str]] = set()
    cursors: set[str] = set()
    own: dict[str, str] = {}
    for page in range(1, _MOST_PAGES):
        body = yield Ask(
            "GET", path, part, reading, page, PAGE, lambda body: _understood(feed, paging, body), {**parameters, **own}
        )
        seen.update((record.key, record.digest) for record in records_of(feed, body))
        cursor = "" if paging is None else _cursor(paging, body)
        if paging is None or not cursor:
            return frozenset(seen), page == 1
        if cursor in cursors:
            raise _unexpected(
                feed, f"{part}: the cursor {cursor[:80]!r} came twice", "a cursor leads on, and never back"
            )
        cursors.add(cursor)
        own = {paging.parameter: cursor}
    raise _too_many(feed, part)


def _read_numbered(
    feed: ApiFeed,
    path: str,
    part: str,
    reading: int,
    parameters: Mapping[str, str],
    paging: PageNumbers,
    pages: _Pages,
) -> Reading:
    """Read a part until a page has no record: one with fewer than were asked for may be as many as the server gives.

    Behind a page that is not full as far as is known, a server may say that there is no such page, or give the same one again. One
    answer had all records if it was not full: of a server that gives fewer than it is asked for, where another page had more.
    """
    seen: set[tuple[str, str]] = set()
    before: frozenset[tuple[str, str]] = frozenset()
    fullest, is_short, is_one = 0, False, True
    for page in range(1, _MOST_PAGES):
        body = yield Ask(
            "GET",
            path,
            part,
            reading,
            page,
            PAGE,
            lambda body: _understood(feed, paging, body),
            {**parameters, **_page(paging, page - 1)},
            may_be_refused=is_short,
        )
        found = [(record.key, record.digest) for record in records_of(feed, body)]
        if not found:
            pages.are_counted |= page > 1
            return frozenset(seen), is_one and page <= _SECOND
        if frozenset(found) == before:
            if pages.are_counted and is_short:
                return frozenset(seen), is_one and page == _SECOND
            raise _same_page(feed, paging, part, page)
        pages.are_counted |= page > 1
        pages.gives_fewer |= not paging.size or (page > 1 and len(before) < paging.size)
        before = frozenset(found)
        seen |= before
        fullest = max(fullest, len(found))
        is_short = len(found) < (paging.size if page == 1 else fullest)
        is_one = len(found) < (pages.fullest if pages.gives_fewer else paging.size)
        pages.fullest = max(pages.fullest, len(found))
    raise _too_many(feed, part)


def _same_page(feed: ApiFeed, paging: PageNumbers, part: str, page: int) -> ExtractionRefused:
    asked = ", ".join(f"{paging.parameter}={paging.first + before}" for before in (page - 2, page - 1))
    return ExtractionRefused(
        Problem(
            f"{part}: two pages have the same records ({asked})",
            f"`paging` says that `{paging.parameter}` leads from page to page; a server that ignores it gives one page for ever, "
            "and what is behind that is never read",
            "correct `parameter` of `ba.PageNumbers`, or declare `paging=None` where one answer has everything; then `--anew`",
            f"feed {feed.name}",
        )
    )


def _too_many(feed: ApiFeed, part: str) -> ExtractionRefused:
    return _unexpected(feed, f"{part} has more than {_MOST_PAGES:,} pages", "a part ends")


def _page(paging: PageNumbers, before: int) -> dict[str, str]:
    size = {paging.size_parameter: str(paging.size)} if paging.size_parameter else {}
    return {paging.parameter: str(paging.first + before), **size}


def _understood(feed: ApiFeed, paging: Paging | None, body: bytes) -> None:
    contents_of(feed, body)
    if isinstance(paging, NextCursor):
        _cursor(paging, body)


def _cursor(paging: NextCursor, body: bytes) -> str:
    found = value_at(parsed(body), paging.path) if body.strip() else None
    if found is NO_VALUE or found is None or found == "" or found is False:
        return ""
    if isinstance(found, bool) or not isinstance(found, (str, int)) or len(str(found)) > _LONGEST_CURSOR:
        raise MalformedAnswer(f"it has a {type(found).__name__} at {paging.path}, which is no cursor")
    if not is_text(str(found)):
        raise MalformedAnswer(f"it has half of a character at {paging.path}, which is no cursor")
    return str(found)


def _export(feed: ApiFeed, pattern: BySnapshotExport) -> Conversation:
    """Have the server write all records as they are at one moment, wait until it has, and read them."""
    started = yield Ask("POST", pattern.start, "export", 1, 1, JOB, lambda body: _job(pattern, body))
    job = _job(pattern, started)

    def is_done(body: bytes) -> bool:
        state = str(value_at(parsed(body), pattern.state))
        if state in pattern.failed:
            raise _unexpected(
                feed, f"the export job {job} is {state}", "a job that failed is never done; `--anew` starts another one"
            )
        return state == pattern.done

    done = yield Ask(
        "GET",
        pattern.poll.replace("{job}", job),
        "export",
        1,
        2,
        POLL,
        parsed,
        is_there=is_done,
        poll_seconds=pattern.poll_seconds,
        most_seconds=pattern.most_seconds,
    )
    kind = LINES if pattern.lines else PAGE
    expected = value_at(parsed(done), pattern.count) if pattern.count else NO_VALUE

    def understood(body: bytes) -> None:
        found = len(contents_of(feed, body, lines=pattern.lines))
        if expected is not NO_VALUE and found != expected:
            raise MalformedAnswer(f"it has {found:,} records, and the job has said {expected}")

    yield Ask("GET", pattern.download.replace("{job}", job), "export", 1, 3, kind, understood, dict(feed.parameters))
    return True


def _job(pattern: BySnapshotExport, body: bytes) -> str:
    found: Any = value_at(parsed(body), pattern.job)
    if isinstance(found, bool) or not isinstance(found, (str, int)) or not str(found).replace("-", "").isalnum():
        raise MalformedAnswer(f"it has no id of a job at {pattern.job}")
    return str(found)


def _unexpected(feed: ApiFeed, what: str, rule: str) -> ExtractionRefused:
    return ExtractionRefused(
        Problem(what, rule, "compare the declaration with what the server says of itself", f"feed {feed.name}")
    )
