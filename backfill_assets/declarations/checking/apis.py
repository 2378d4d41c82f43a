"""Mistakes in the feeds from servers that products declare.

Put here what can be said of a feed without asking its server. Whether its settings are set is known where it is extracted. No
message here quotes a text that could be a secret.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import polars as pl

from backfill_assets.declarations.apis import (
    PATTERNS,
    ApiFeed,
    BearerToken,
    ByCursor,
    ByIdRange,
    BySnapshotExport,
    ByTimeWindow,
    ClientCredentials,
    HeaderKey,
    NextCursor,
    PageNumbers,
    RateLimit,
    Retries,
)
from backfill_assets.declarations.checking.columns import ColumnTypes
from backfill_assets.declarations.checking.names import NAME_WORDS, did_you_mean, is_name
from backfill_assets.declarations.checking.parts import parts_of_kind, wrong_parts
from backfill_assets.declarations.checking.table_fields import in_words
from backfill_assets.declarations.checking.tables import in_problems, of_owners, of_setting_name
from backfill_assets.declarations.product import Product
from manifests.errors import Problem

_PLACE = re.compile(r"[^\s.]+(\.[^\s.]+)*")
_PARAMETER = re.compile(r"[!-~]{1,100}")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")
_PATH = re.compile(r"(?!\w+:)(?!//)[!-~]*")
_SECRET = re.compile(r"passw|secret|token|api.?key|bearer|credential|authorization", re.IGNORECASE)
_PLACE_WORDS = "names with dots between them, as data.items"
_PATH_WORDS = "it is an address below the base, as v1/orders, without parameters"


def wrong_api_fields(product: Product) -> Iterator[Problem]:
    """Yield each field of a product's feeds from servers that nobody can use, whatever else is declared."""
    return wrong_parts(product, "apis", ApiFeed, of_feed, "FEED")


def usable_apis(product: Product) -> tuple[ApiFeed, ...]:
    """Return those feeds of a product of which it is known what they are called and where their rows go."""
    return tuple(one for one in parts_of_kind(product, "apis", ApiFeed) if not any(of_feed(one)))


def of_feed(feed: ApiFeed) -> Iterator[Problem]:
    """Say what is wrong with one feed."""
    where = in_problems("feed", feed.name)
    yield from of_setting_name("feed", feed.name, "shop_orders")
    yield from _of_texts(feed, where)
    yield from of_owners(feed.owners, "a feed", where)
    if not callable(feed.translate):
        rule = "it is a function of a record and the facts of its answer, and returns a row or a `RecordRejected`"
        yield Problem(f"translate is {in_words(feed.translate)}", rule, "name the function", where)
    yield from _of_limits(feed, where)
    yield from _of_settings(feed, where)
    yield from _of_parameters(feed, where)
    yield from _of_patterns(feed, where)


def _of_texts(feed: ApiFeed, where: str) -> Iterator[Problem]:
    for field, value in (("description", feed.description), ("table", feed.table)):
        shown: Any = value
        if not isinstance(shown, str) or not shown.strip():
            yield Problem(f"{field} is {in_words(shown)}", "it says what it is, or which one", "write it", where)
    version: Any = feed.translator_version
    if not isinstance(version, str) or not version.strip():
        yield Problem(f"translator_version is {in_words(version)}", "it is a text, as '1'", "write it", where)
    yield from _of_path("path", feed.path, where)
    for field, place, may_be_empty in (
        ("records", feed.records, True),
        ("key", feed.key, False),
        ("updated_at", feed.updated_at, True),
    ):
        yield from _of_place(field, place, where, may_be_empty=may_be_empty)
    column: Any = feed.deleted_column
    if not isinstance(column, str):
        yield Problem(f"deleted_column is {in_words(column)}", "it names a column", "name it, or leave it out", where)


def _of_path(field: str, path: Any, where: str) -> Iterator[Problem]:
    if not isinstance(path, str) or not _PATH.fullmatch(path) or "?" in path or "#" in path or ".." in path.split("/"):
        said = in_words(path) if not isinstance(path, str) or not _SECRET.search(path) else "a text that is none"
        yield Problem(
            f"{field} is {said}", _PATH_WORDS, "the base address is a setting; parameters have a field", where
        )


def _of_place(field: str, place: Any, where: str, *, may_be_empty: bool = False) -> Iterator[Problem]:
    if not isinstance(place, str) or not (_PLACE.fullmatch(place) or (may_be_empty and place == "")):
        yield Problem(f"{field} is {in_words(place)}", f"it is {_PLACE_WORDS}", "write where the answer has it", where)


def _of_number(
    field: str, value: Any, least: float, most: float, where: str, *, whole: bool = True
) -> Iterator[Problem]:
    is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        kind = "a whole number" if whole else "a number"
        yield Problem(f"{field} is {in_words(value)}", f"it is {kind}, {least:,} to {most:,}", "correct it", where)


def _of_limits(feed: ApiFeed, where: str) -> Iterator[Problem]:
    limit: Any = feed.limit
    if isinstance(limit, RateLimit):
        yield from _of_number("limit.requests", limit.requests, 1, 10_000, where)
        yield from _of_number("limit.seconds", limit.seconds, 0.001, 86_400, where, whole=False)
    else:
        rule = "it is a `RateLimit`: how often the server may be asked"
        yield Problem(f"limit is {in_words(limit)}", rule, "for example limit=ba.RateLimit(requests=5)", where)
    retries: Any = feed.retries
    if isinstance(retries, Retries):
        yield from _of_number("retries.attempts", retries.attempts, 1, 100, where)
        yield from _of_number("retries.seconds", retries.seconds, 1, 86_400, where)
        yield from _of_number("retries.timeout_seconds", retries.timeout_seconds, 0.01, 3_600, where, whole=False)
        yield from _of_number("retries.wait_seconds", retries.wait_seconds, 0.001, 60, where, whole=False)
    else:
        yield Problem(f"retries is {in_words(retries)}", "it is a `Retries`", "leave it out, or write one", where)
    yield from _of_number("most_passes", feed.most_passes, 1, 100, where)
    yield from _of_number("most_response_bytes", feed.most_response_bytes, 1_000, 4 << 30, where)


def _of_settings(feed: ApiFeed, where: str) -> Iterator[Problem]:
    auth: Any = feed.auth
    named: dict[str, Any] = {"base": feed.base}
    if isinstance(auth, BearerToken):
        named["auth.token"] = auth.token
    elif isinstance(auth, HeaderKey):
        named["auth.key"] = auth.key
        header: Any = auth.header
        if not isinstance(header, str) or not _HEADER.fullmatch(header):
            yield Problem("auth.header is no header", "it is the name of one, as X-Api-Key", "correct it", where)
    elif isinstance(auth, ClientCredentials):
        named |= {
            "auth.address": auth.address,
            "auth.client_id": auth.client_id,
            "auth.client_secret": auth.client_secret,
        }
        scope: Any = auth.scope
        if not isinstance(scope, str):
            yield Problem(f"auth.scope is {in_words(scope)}", "it is a text", "correct it, or leave it out", where)
    elif auth is not None:
        rule = "it is a `BearerToken`, a `HeaderKey` or `ClientCredentials`"
        yield Problem(f"auth is a {type(auth).__name__}", rule, "leave it out where everybody may ask", where)
    for field, setting in named.items():
        if not is_name(setting):
            said = f"a text of {len(setting)} characters" if isinstance(setting, str) else in_words(setting)
            yield Problem(
                f"{field} is {said} that is no name",
                f"it is the name of a setting, never its value: {NAME_WORDS}",
                "name it; its value stands in BACKFILL_APIS__<feed>__<name>, or in backfill.toml",
                where,
            )
    twice = [one for one, times in Counter(str(one) for one in named.values()).items() if times > 1]
    if twice:
        yield Problem("two fields name one setting", "each setting has one value", "give each a name of its own", where)


def _of_parameters(feed: ApiFeed, where: str) -> Iterator[Problem]:
    parameters: Any = feed.parameters
    if not isinstance(parameters, Mapping):
        yield Problem(
            f"parameters is {in_words(parameters)}", "it gives each its value", "write a dict of texts", where
        )
        return
    for name, value in parameters.items():
        if not isinstance(name, str) or not _PARAMETER.fullmatch(name) or not isinstance(value, str):
            rule = "a parameter and its value are texts, the name without blanks"
            yield Problem(f"parameters has {in_words(name)}", rule, "write the value in quotes", where)
        elif _SECRET.search(name):
            yield Problem(
                f"parameters has {name}, which reads like a credential",
                "parameters are kept with each answer, and credentials never are",
                "use `auth`: a server that takes a credential in its address only cannot be asked",
                where,
            )


def _of_patterns(feed: ApiFeed, where: str) -> Iterator[Problem]:
    patterns: Any = feed.patterns
    kinds = ", ".join(f"ba.{kind.__name__}" for kind in PATTERNS)
    rule, fix = f"it is a tuple of one or more of {kinds}, at most one of each", "write `patterns=(PATTERN,)`"
    if not isinstance(patterns, (tuple, list)) or not patterns:
        yield Problem(f"patterns is {in_words(patterns)}", rule, fix, where)
        return
    for kind, times in Counter(type(one) for one in patterns).items():
        if kind not in PATTERNS:
            yield Problem(f"patterns has a {kind.__name__}", rule, fix, where)
        elif times > 1:
            yield Problem(
                f"patterns has {times} {kind.__name__}", rule, "take one out: a feed of its own has it", where
            )
    for pattern in patterns:
        place = f"{where}: {type(pattern).__name__}"
        if isinstance(pattern, BySnapshotExport):
            yield from _of_export(pattern, place)
        elif type(pattern) in PATTERNS:
            yield from _of_path("path", pattern.path, place)
            if isinstance(pattern, ByTimeWindow):
                yield from _of_window(feed, pattern, place)
            yield from _of_paged(feed, pattern, place)


def _of_window(feed: ApiFeed, pattern: ByTimeWindow, where: str) -> Iterator[Problem]:
    length: Any = pattern.length
    overlap: Any = pattern.overlap
    if not isinstance(length, timedelta) or length < timedelta(seconds=1):
        yield Problem(f"length is {in_words(length)}", "it is a timedelta of a second or more", "correct it", where)
    if not isinstance(overlap, timedelta) or overlap < timedelta(0):
        yield Problem(f"overlap is {in_words(overlap)}", "it is a timedelta, 0 or more", "correct it", where)
    if not feed.updated_at:
        rule = "records of a time are told by when they were updated"
        yield Problem("updated_at of the feed is empty", rule, "say where a record has it", where)


def _of_paged(feed: ApiFeed, pattern: Any, where: str) -> Iterator[Problem]:
    """Say what is wrong with the parameters of a pattern's requests."""
    names: dict[str, Any] = {}
    if isinstance(pattern, ByCursor):
        yield from _of_paging(pattern.cursor, where, names, only_cursor=True)
    elif isinstance(pattern, ByTimeWindow):
        names |= {"start_parameter": pattern.start_parameter, "end_parameter": pattern.end_parameter}
    elif isinstance(pattern, ByIdRange):
        names |= {"first_parameter": pattern.first_parameter, "last_parameter": pattern.last_parameter}
        yield from _of_number("step", pattern.step, 1, 1_000_000, where)
    if not isinstance(pattern, ByCursor) and pattern.paging is not None:
        yield from _of_paging(pattern.paging, where, names)
    for field, name in names.items():
        if not isinstance(name, str) or not _PARAMETER.fullmatch(name):
            yield Problem(f"{field} is {in_words(name)}", "it is the name of a parameter", "correct it", where)
    several = Counter([*map(str, names.values()), *(feed.parameters if isinstance(feed.parameters, Mapping) else ())])
    for name in [one for one, times in several.items() if times > 1]:
        rule = "each parameter of a request is said once"
        yield Problem(f"the parameter {in_words(name)} is named twice", rule, "correct one of them", where)


def _of_paging(paging: Any, where: str, names: dict[str, Any], *, only_cursor: bool = False) -> Iterator[Problem]:
    """Say what is wrong with how pages follow, and note the parameters that it sends."""
    if isinstance(paging, NextCursor):
        names["cursor.parameter" if only_cursor else "paging.parameter"] = paging.parameter
        yield from _of_place("the cursor's path", paging.path, where)
    elif isinstance(paging, PageNumbers) and not only_cursor:
        names["paging.parameter"] = paging.parameter
        yield from _of_number("paging.first", paging.first, 0, 1_000, where)
        if paging.size_parameter:
            names["paging.size_parameter"] = paging.size_parameter
            yield from _of_number("paging.size", paging.size, 1, 1_000_000, where)
        elif paging.size:
            rule = "a page with fewer records than were asked for is the last"
            yield Problem("paging.size without size_parameter", rule, "give both, or neither", where)
    else:
        rule = "it is a `NextCursor`" if only_cursor else "it is `PageNumbers`, a `NextCursor`, or None"
        yield Problem(f"{'cursor' if only_cursor else 'paging'} is {in_words(paging)}", rule, "correct it", where)


def _of_export(pattern: BySnapshotExport, where: str) -> Iterator[Problem]:
    yield from _of_path("start", pattern.start, where)
    for field, path in (("poll", pattern.poll), ("download", pattern.download)):
        yield from _of_path(field, path, where)
        if isinstance(path, str) and path.count("{job}") != 1:
            yield Problem(
                f"{field} is {in_words(path)}", "it has {job} in it, once", "write where the id of the job goes", where
            )
    yield from _of_place("job", pattern.job, where)
    yield from _of_place("state", pattern.state, where)
    yield from _of_place("count", pattern.count, where, may_be_empty=True)
    done: Any = pattern.done
    failed: Any = pattern.failed
    if not isinstance(done, str) or not done:
        yield Problem(
            f"done is {in_words(done)}", "it is what the server says of a job that is done", "write it", where
        )
    if not isinstance(failed, (tuple, list)) or any(not isinstance(one, str) or one == done for one in failed):
        rule = "it is a tuple of what the server says of a job that failed"
        yield Problem(f"failed is {in_words(failed)}", rule, 'for example failed=("FAILED",)', where)
    yield from _of_number("poll_seconds", pattern.poll_seconds, 0.01, 3_600, where, whole=False)
    yield from _of_number("most_seconds", pattern.most_seconds, 1, 7 * 86_400, where)


def of_all_apis(
    declared: Sequence[Product], columns: Mapping[str, ColumnTypes | None], loaders: Iterable[str]
) -> Iterator[Problem]:
    """Say what is wrong with the feeds of all products together, and with where their rows go."""
    feeds = [(product, feed) for product in declared for feed in product.apis]
    taken = set(loaders)
    for name, times in Counter(feed.name for _, feed in feeds).items():
        if times > 1 or name in taken:
            what = f"feed {name} is declared {times} times" if times > 1 else f"feed {name} is called as a loader is"
            yield Problem(what, "`backfill load` names one thing by a name", "give one of them another name")
    for table, times in Counter(feed.table for _, feed in feeds).items():
        if times > 1:
            rule = "which version of a record a table has follows from one feed"
            yield Problem(f"{table} is the table of {times} feeds", rule, "give each an input table of its own")
    for product, feed in feeds:
        own = {table.name: table for table in product.inputs}
        where = f"feed {feed.name}"
        target = own.get(feed.table)
        if target is None or target.is_reference or target.quarantine_of:
            plain = [name for name, one in own.items() if not (one.is_reference or one.quarantine_of)]
            yield Problem(
                f"table is {feed.table!r}{did_you_mean(feed.table, plain)}",
                "it is an input table of the same product that loads are appended to: no reference table, no quarantine",
                "name it, and declare it in `inputs`",
                where,
            )
            continue
        types = columns.get(feed.table)
        if feed.deleted_column and types is not None:
            kind = types.get(feed.deleted_column)
            if kind != pl.Boolean:
                said = "no column" if kind is None else f"of {kind}"
                rule = "it is a column of truth values: whether the server has the record no more"
                yield Problem(
                    f"deleted_column {feed.deleted_column!r} is {said} of {feed.table}", rule, "name one", where
                )
