"""Mistakes in the feeds that products declare: their patterns, readers and limits, and the columns of their tables.

Put here what can be said of a feed without a file of it. What is wrong with a file is said by `ingestion`, when it comes.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

import polars as pl

from backfill_assets.declarations.checking.columns import (
    DATE,
    INSTANT,
    ColumnTypes,
    of_declared_table,
    of_kind,
)
from backfill_assets.declarations.checking.names import names_of
from backfill_assets.declarations.checking.parts import parts_of_kind, wrong_parts
from backfill_assets.declarations.checking.table_fields import in_words
from backfill_assets.declarations.checking.tables import of_owners
from backfill_assets.declarations.feeds import (
    MOST_OF_A_FIELD,
    DeliveryIndex,
    FileFeed,
    FileLimits,
    FileReader,
    NewBytes,
    TimeFromPath,
    TimeOfFile,
)
from backfill_assets.declarations.product import InputTable, Product
from manifests.errors import Problem

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_LONGEST = 40
_A_DAY = 86_400
ENCODINGS = ("utf-8", "latin-1", "cp1252")
"""Those that a reader may try."""
ALGORITHMS = ("sha256", "sha1", "md5", "git-blob")
"""Those that a delivery index may list hashes of."""
INDEX_ENDINGS = (".csv", ".parquet", ".json")
_TEXT: tuple[str, Any] = ("text (str)", lambda kind: kind == pl.String)


def wrong_feed_fields(product: Product) -> Iterator[Problem]:
    """Yield each field of a product's feeds that nobody can use, and each that cannot be so, whatever else is declared."""
    return wrong_parts(product, "feeds", FileFeed, of_feed, "FEED")


def usable_feeds(product: Product) -> tuple[FileFeed, ...]:
    """Return those feeds of a product with which nothing is wrong by themselves."""
    return tuple(one for one in parts_of_kind(product, "feeds", FileFeed) if not any(of_feed(one)))


def of_feed(feed: FileFeed) -> Iterator[Problem]:
    """Say what is wrong with one feed by itself."""
    name: Any = feed.name
    is_name = isinstance(name, str) and _NAME.fullmatch(name) is not None
    where = f"feed {name}" if is_name else "a feed"
    if not is_name:
        rule = f"a feed is named in small letters, digits and '_', at most {_LONGEST}, a letter first: its folders are named by it"
        yield Problem(f"name is {in_words(name)}", rule, "for example daily_reports", where)
    version: Any = feed.translator_version
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        rule = f"letters, digits and . _ -, at most {_LONGEST}, a letter or digit first"
        yield Problem(f"translator_version is {in_words(version)}", rule, 'for example "1.0.0"', where)
    for field in ("description", "table", "date_column", "time_column", "file_column"):
        value: Any = getattr(feed, field)
        if not isinstance(value, str) or not value.strip():
            yield Problem(f"{field} is {in_words(value)}", "it is a text", f"give `{field}`", where)
    yield from of_owners(feed.owners, "a feed", where)
    if not isinstance(feed.new_bytes, NewBytes):
        rule = "it is ba.NewBytes.CORRECTION or ba.NewBytes.REJECTED"
        yield Problem(f"new_bytes is {in_words(feed.new_bytes)}", rule, "name one of them, or leave it out", where)
    seconds: Any = feed.settled_seconds
    if type(seconds) is not int or not 1 <= seconds <= _A_DAY:
        rule = f"it is a whole number of seconds, from 1 to {_A_DAY:,}"
        yield Problem(f"settled_seconds is {in_words(seconds)}", rule, "correct it, or leave it out", where)
    yield from _of_path(feed, where)
    yield from _of_time(feed, where)
    yield from _of_readers(feed, where)
    yield from _of_limits(feed.limits, where)
    yield from _of_translator(feed.translate, where)


def _pattern(value: Any, field: str, where: str) -> Iterator[Problem | re.Pattern[str]]:
    """Yield what a text is as a regular expression, or why it is none."""
    try:
        yield re.compile(value)
    except (re.error, TypeError, RecursionError, OverflowError) as error:
        said = f"{field} is {in_words(value)}: {error}"
        yield Problem(said, "it is a regular expression of Python, as text", f"correct `{field}`", where)


def _of_path(feed: FileFeed, where: str) -> Iterator[Problem]:
    for found in _pattern(feed.path, "path", where):
        if isinstance(found, Problem):
            yield found
        elif "date" not in found.groupindex:
            yield Problem(
                f"path is {in_words(feed.path)}, without a group `date`",
                "the path of a file says which business date it is about",
                r"for example data=(?P<date>\d{8})/\w+\.csv",
                where,
            )
    yield from (one for one in _pattern(feed.skips, "skips", where) if isinstance(one, Problem))
    yield from _of_format(feed.date_format, "date_format", ("%Y", "%m", "%d"), where)


def _of_format(value: Any, field: str, needed: Sequence[str], where: str) -> Iterator[Problem]:
    told = {"%F": ("%Y", "%m", "%d"), "%j": ("%m", "%d"), "%b": ("%m",), "%B": ("%m",)}
    has = (
        []
        if not isinstance(value, str)
        else [part for code in re.findall(r"%.", value) for part in (code, *told.get(code, ()))]
    )
    if missing := [one for one in needed if one not in has]:
        yield Problem(
            f"{field} is {in_words(value)}, without {', '.join(missing)}",
            "it is a format of `datetime.strptime`, and says year, month and day",
            "for example %Y%m%d",
            where,
        )


def _of_time(feed: FileFeed, where: str) -> Iterator[Problem]:
    time: Any = feed.time
    if isinstance(time, TimeFromPath):
        for found in _pattern(feed.path, "path", where):
            if isinstance(found, re.Pattern) and time.group not in found.groupindex:
                fix = "name the group of the path that has the time"
                yield Problem(f"time.group is {in_words(time.group)}", "it is a group of `path`", fix, where)
        yield from _of_format(time.format, "time.format", ("%Y", "%m", "%d"), where)
    elif isinstance(time, DeliveryIndex):
        yield from _of_index(time, where)
    elif not isinstance(time, TimeOfFile):
        rule = "it is a ba.TimeFromPath, a ba.TimeOfFile() or a ba.DeliveryIndex"
        yield Problem(f"time is {in_words(time)}", rule, "say when the producer has published a file", where)


def _of_index(index: DeliveryIndex, where: str) -> Iterator[Problem]:
    for field in ("file", "path", "time"):
        value: Any = getattr(index, field)
        if not isinstance(value, str) or not value:
            yield Problem(f"time.{field} is {in_words(value)}", "it is a text", f"give `{field}`", where)
    if isinstance(index.file, str) and (not index.file.endswith(INDEX_ENDINGS) or "/" in index.file):
        rule = f"it is the name of a file, and ends in {', '.join(INDEX_ENDINGS)}"
        yield Problem(f"time.file is {in_words(index.file)}", rule, "for example delivery-*.csv", where)
    if isinstance(index.path, str):
        yield from _of_made_path(index, where)
    if index.algorithm not in ALGORITHMS:
        rule = f"it is one of {', '.join(ALGORITHMS)}"
        yield Problem(f"time.algorithm is {in_words(index.algorithm)}", rule, "name the hash that the list has", where)
    if index.withdrawn is not None:
        yield from _of_withdrawn(index, where)


def _of_made_path(index: DeliveryIndex, where: str) -> Iterator[Problem]:
    try:
        columns = [name for _, name, _, _ in string.Formatter().parse(index.path) if name is not None]
    except ValueError as error:
        fix = "for example data={day}/v{version:02d}.csv"
        yield Problem(f"time.path is {in_words(index.path)}: {error}", "it is a text for `str.format`", fix, where)
    else:
        if not columns or any(not name.isidentifier() for name in columns):
            rule = "it names columns of the list, and no part of one"
            yield Problem(f"time.path is {in_words(index.path)}", rule, "for example {path}", where)


def _of_withdrawn(index: DeliveryIndex, where: str) -> Iterator[Problem]:
    taken_back: Any = index.withdrawn
    if not isinstance(taken_back, tuple) or len(taken_back) != 2 or len(names_of(taken_back)) != 2:  # noqa: PLR2004
        rule = "it is a column and the value in it that says so, both text"
        yield Problem(f"time.withdrawn is {in_words(taken_back)}", rule, 'for example ("status", "D")', where)
    if not isinstance(index.withdrawn_date, str) or not index.withdrawn_date:
        rule = "a file that was taken back has no path here; a column of the list says which business date it was about"
        yield Problem(f"time.withdrawn_date is {in_words(index.withdrawn_date)}", rule, "name the column", where)


def _of_readers(feed: FileFeed, where: str) -> Iterator[Problem]:
    readers: Any = feed.readers
    if not isinstance(readers, (tuple, list)) or not readers or not all(isinstance(one, FileReader) for one in readers):
        rule = "a feed has a tuple of one or more `FileReader`"
        yield Problem(f"readers is {in_words(readers)}", rule, "declare each form that files come in", where)
        return
    for reader in readers:
        yield from _of_reader(reader, f"{where}: reader {reader.name if isinstance(reader.name, str) else '?'}")
    seen = Counter((one.name, one.version) for one in readers)
    for (name, version), times in seen.items():
        if times > 1:
            rule = "name and version stand for one form: the import ledger keeps them"
            yield Problem(f"reader {name}/{version} is declared {times} times", rule, "give another version", where)
    forms = Counter(
        (one.delimiter, frozenset(one.columns), encoding)
        for one in readers
        if isinstance(one.columns, Mapping) and isinstance(one.encodings, (tuple, list))
        for encoding in one.encodings
    )
    if any(times > 1 for times in forms.values()):
        rule = "a file is read by the first reader that fits: the second would read nothing"
        yield Problem("two readers have the same columns, delimiter and encoding", rule, "take one out", where)


def _of_reader(reader: FileReader, where: str) -> Iterator[Problem]:
    for field in ("name", "version"):
        value: Any = getattr(reader, field)
        if not isinstance(value, str) or not _VERSION.fullmatch(value):
            rule = f"letters, digits and . _ -, at most {_LONGEST}, a letter or digit first"
            yield Problem(f"{field} is {in_words(value)}", rule, 'for example name="report", version="2"', where)
    delimiter: Any = reader.delimiter
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n\0 ':
        rule = "it is one character, and neither a quote nor a line end"
        yield Problem(f"delimiter is {in_words(delimiter)}", rule, "for example ';'", where)
    if not names_of(reader.encodings) or any(one not in ENCODINGS for one in reader.encodings):
        rule = f"it is a tuple of one or more of {', '.join(ENCODINGS)}"
        yield Problem(f"encodings is {in_words(reader.encodings)}", rule, 'for example ("utf-8", "latin-1")', where)
    lacking: Any = reader.may_lack
    if type(lacking) is not int or lacking < 0:
        yield Problem(f"may_lack is {in_words(lacking)}", "it is a whole number, 0 or more", "correct it", where)
    without: Any = reader.ends_without_newline
    if type(without) is not bool:
        yield Problem(f"ends_without_newline is {in_words(without)}", "it is True or False", "correct it", where)
    columns: Any = reader.columns
    if (
        not isinstance(columns, Mapping)
        or not columns
        or not all(isinstance(one, str) for pair in columns.items() for one in pair)
    ):
        rule = "it gives what each column of the file is called in records, by its name in the first line"
        yield Problem(f"columns is {in_words(columns)}", rule, 'for example {"data": "reported_at"}', where)
        return
    for name, times in Counter(columns.values()).items():
        if times > 1:
            rule = "a field of a record has one value"
            yield Problem(f"{times} columns are called {name!r} in records", rule, "give each a name of its own", where)


def _of_limits(limits: Any, where: str) -> Iterator[Problem]:
    if not isinstance(limits, FileLimits):
        yield Problem(f"limits is {in_words(limits)}", "it is a ba.FileLimits", "give one, or leave it out", where)
        return
    for field in ("bytes", "rows", "field_chars", "archive_bytes", "archive_files"):
        value: Any = getattr(limits, field)
        if type(value) is not int or value < 1:
            yield Problem(
                f"limits.{field} is {in_words(value)}", "it is a whole number, 1 or more", "correct it", where
            )
    if type(limits.field_chars) is int and limits.field_chars > MOST_OF_A_FIELD:
        yield Problem(
            f"limits.field_chars is {limits.field_chars}",
            f"no field longer than {MOST_OF_A_FIELD:,} characters is read",
            "lower it",
            where,
        )
    share: Any = limits.rejected_share
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        yield Problem(f"limits.rejected_share is {in_words(share)}", "it is a share, 0 to 1", "for example 0.05", where)


def _of_translator(function: Any, where: str) -> Iterator[Problem]:
    rule, fix = "it is a function, from the records of a file and its facts to a ba.Translated", "name the function"
    if not callable(function):
        yield Problem(f"translate is {in_words(function)}", rule, fix, where)
        return
    try:
        signature(function).bind("records", "facts")
    except TypeError as error:
        yield Problem(f"translate cannot be called with records and facts: {error}", rule, fix, where)
    except ValueError:
        return  # of some of those that are not written in Python nobody knows


def of_all_feeds(products: Sequence[Product], columns: Mapping[str, ColumnTypes | None]) -> Iterator[Problem]:
    """Say what of feeds cannot be with the tables that products declare, and which feeds share a name."""
    feeds = [feed for product in products for feed in usable_feeds(product)]
    for name, times in Counter(feed.name for feed in feeds).items():
        if times > 1:
            rule = "a name stands for one feed in all products: its folders are named by it"
            yield Problem(
                f"feed {name} is declared {times} times", rule, "give one of them another name", f"feed {name}"
            )
    tables = {table.name: table for product in products for table in product.inputs}
    for feed in feeds:
        where = f"feed {feed.name}"
        yield from of_declared_table(where, "table", feed.table, columns, sorted(tables))
        if (table := tables.get(feed.table)) is not None:
            yield from _of_table(feed, table, columns[feed.table], where)


def _of_table(feed: FileFeed, table: InputTable, columns: ColumnTypes | None, where: str) -> Iterator[Problem]:
    if table.is_reference or table.quarantine_of:
        rule = "versions of files are appended: a reference table is replaced whole, a quarantine filled by loads of its table"
        yield Problem(
            f"table is {table.name}, a {'reference' if table.is_reference else 'quarantine'}",
            rule,
            "name another",
            where,
        )
    if columns is None:
        return
    for field, kind in (("date_column", DATE), ("time_column", INSTANT), ("file_column", _TEXT)):
        yield from of_kind(where, field, getattr(feed, field), feed.table, columns, kind)
    if len(set(feed.filled_in)) < len(feed.filled_in):
        rule = "date, time and file id are a column each"
        yield Problem(f"two of {', '.join(feed.filled_in)} are one column", rule, "name three columns", where)
