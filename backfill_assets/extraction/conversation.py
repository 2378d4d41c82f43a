"""What a server is asked, one request after the other, as it follows from what it has answered so far.

Put here the order of requests of each pattern, and nothing that sends one: a conversation is a generator that yields what to ask
next and is sent the answer. Whoever goes on with an extraction sends it the answers that are kept first, and it comes to the
request at which that stopped. How pages change while they are read is found here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
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

PAGE, LINES, JOB, POLL, BEHIND = "PAGE", "LINES", "JOB", "POLL", "BEHIND"
"""What an answer is: records, records that are lines of JSON, a job that was started, one that is done, or what stands behind the
last page, which is nobody's record."""
OF_RECORDS = frozenset({PAGE, LINES})
_MOST_PAGES = 1_000_000
_MOST_ALIKE = 3
"""So many pages in a row with the same records are a server's that does not count pages; what has moved makes two."""
_MOST_LOOKS = 3
"""So often the page behind one with the same number of records is looked at: by then they are so many by chance."""
_LONGEST_CURSOR = 4_000
_FIRST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Ask:
    """What to ask next.

    `part` is what is read, `reading` how often it was begun, `page` the number of the page in it, from 1. `is_there` says of an
    answer whether it is the one that is waited for: it is asked for again until then, every `poll_seconds`, for `most_seconds`.
    `may_be_nothing` as of a `Request`.
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
    may_be_nothing: bool = False


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
class _Fullest:
    """How many records the fullest page of an extraction had so far, and how often it was looked behind one with so many."""

    records: int = 0
    looks: int = 0

    def is_to_look_behind(self, records: int) -> bool:
        """Count a page that is its part's last if the server gives as many records as it is asked for."""
        if records > self.records:
            self.records, self.looks = records, 0
        if not records or records < self.records or self.looks >= _MOST_LOOKS:
            return False
        self.looks += 1
        return True


def _parts(
    feed: ApiFeed, path: str, parts: Iterator[tuple[str, dict[str, str]]], paging: Paging | None
) -> Conversation:
    is_stable, fullest = True, _Fullest()
    for part, own in parts:
        is_stable &= yield from _until_alike(feed, path, part, {**feed.parameters, **own}, paging, fullest)
    return is_stable


def _until_alike(
    feed: ApiFeed, path: str, part: str, parameters: Mapping[str, str], paging: Paging | None, fullest: _Fullest
) -> Conversation:
    """Read a part until two readings in a row have the same records; one answer is of one moment, and needs no other."""
    before: frozenset[_Said] | None = None
    for reading in range(1, feed.most_passes + 1):
        if isinstance(paging, PageNumbers):
            seen, pages = yield from _read_by_number(feed, path, part, reading, parameters, paging, fullest)
        else:
            seen, pages = yield from _read(feed, path, part, reading, parameters, paging)
        if pages == 1 or feed.most_passes == 1 or seen == before:
            return True
        before = seen
    return False


_Said = tuple[str, str]
"""A record: its key, and its digest."""
_Reading = Generator[Ask, bytes, tuple[frozenset[_Said], int]]
"""Returns the records of a part, and how many pages they took."""


def _read(
    feed: ApiFeed, path: str, part: str, reading: int, parameters: Mapping[str, str], paging: NextCursor | None
) -> _Reading:
    """Read a part from its first page to the one that leads on to no other."""
    seen: set[_Said] = set()
    cursors: set[str] = set()
    own: dict[str, str] = {}
    for page in range(1, _MOST_PAGES):
        body = yield Ask(
            "GET", path, part, reading, page, PAGE, lambda body: _understood(feed, paging, body), {**parameters, **own}
        )
        seen.update(_said(feed, body))
        cursor = "" if paging is None else _cursor(paging, body)
        if paging is None or not cursor:
            return frozenset(seen), page
        if cursor in cursors:
            raise _unexpected(
                feed, f"{part}: the cursor {cursor[:80]!r} came twice", "a cursor leads on, and never back"
            )
        cursors.add(cursor)
        own = {paging.parameter: cursor}
    raise _too_many(feed, part)


def _read_by_number(
    feed: ApiFeed,
    path: str,
    part: str,
    reading: int,
    parameters: Mapping[str, str],
    paging: PageNumbers,
    fullest: _Fullest,
) -> _Reading:
    """Read a part until a page has fewer records than were asked for, or none.

    A server may give fewer than it is asked for, whatever there is: until a page has had all of them, what stands behind a page that
    is as full as any is looked at.
    """
    seen: set[_Said] = set()
    before: list[_Said] = []
    alike = 1
    for page in range(1, _MOST_PAGES):
        own = {**parameters, **_page(paging, page - 1)}
        body = yield Ask("GET", path, part, reading, page, PAGE, lambda body: _understood(feed, paging, body), own)
        found = _said(feed, body)
        alike = alike + 1 if found == before else 1
        if found and alike >= _MOST_ALIKE:
            raise _same_page(feed, paging, part, page)
        seen.update(found)
        if not found or len(found) < paging.size:
            if fullest.is_to_look_behind(len(found)):
                yield from _require_nothing_behind(feed, path, part, reading, page, parameters, paging, found)
            return frozenset(seen), page
        fullest.records = max(fullest.records, len(found))
        before = found
    raise _too_many(feed, part)


def _require_nothing_behind(
    feed: ApiFeed,
    path: str,
    part: str,
    reading: int,
    last: int,
    parameters: Mapping[str, str],
    paging: PageNumbers,
    found: Sequence[_Said],
) -> Generator[Ask, bytes, None]:
    """Ask for the page behind one that has fewer records than were asked for: if it has others, that one was not the last.

    A server may give its last page again, and a record may have changed meanwhile: another record is one of another key.
    """
    own = {**parameters, **_page(paging, last)}
    body = yield Ask("GET", path, part, reading, last + 1, BEHIND, len, own, may_be_nothing=True)
    keys = {key for key, _ in found}
    try:
        others = [key for key, _ in _said(feed, body) if key not in keys]
    except MalformedAnswer:
        return
    if others:
        raise ExtractionRefused(
            Problem(
                f"{part}: {paging.parameter}={paging.first + last - 1} has fewer records than the {paging.size} that were asked for, and "
                f"{paging.parameter}={paging.first + last} has others",
                "with a `size_parameter`, a page with fewer records than `size` is the last",
                "declare the `size` that the server gives; or, where it has empty pages behind its last one, leave out `size` and "
                "`size_parameter`: pages are then read until one is empty. Then `--anew`",
                f"feed {feed.name}",
            )
        )


def _said(feed: ApiFeed, body: bytes) -> list[_Said]:
    return [(record.key, record.digest) for record in records_of(feed, body)]


def _same_page(feed: ApiFeed, paging: PageNumbers, part: str, page: int) -> ExtractionRefused:
    asked = ", ".join(f"{paging.parameter}={paging.first + before}" for before in range(page - _MOST_ALIKE, page))
    return ExtractionRefused(
        Problem(
            f"{part}: pages have the same records ({asked})",
            f"`{paging.parameter}` leads from page to page, to one with fewer records than `size` or none; a server that ignores it, or "
            "gives its last page again, has no end",
            "correct `parameter` or `first` of `ba.PageNumbers`; declare `paging=None` where one answer has everything, or another `size` "
            "where the last page comes again; then `--anew`",
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
