"""What a feed's files say: read, translated, and held against the model of their table, many at a time.

Put here what is asked of a file by itself: that a reader fits, that its translator can make rows of it, and that these are rows of
the table. What it is taken for beside other files of its date is `file_decisions`'.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from backfill_assets.declarations.checking.imports import python_words
from backfill_assets.declarations.feeds import (
    DeliveryIndex,
    FileFacts,
    FileFeed,
    RawRecord,
    RejectedRecord,
    Translated,
)
from backfill_assets.declarations.places import place
from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.schema import dtypes
from backfill_assets.extraction.delimited_files import UnreadableFileError, read_records
from backfill_assets.ingestion.input_files import ROW, broken_rules, without_uniqueness
from backfill_assets.ingestion.translated_values import InexactValue, TranslatedColumns

_GROUP = 20_000
"""Rows that are held against the model at once."""
_DETAIL = 200


@dataclass(frozen=True)
class FileToJudge:
    """A file of a feed: what is known of it, its version's id (empty before it has one), and where its bytes are."""

    facts: FileFacts
    content: Callable[[], bytes]
    file_id: str = ""


@dataclass
class JudgedFile:
    """What a file says.

    Attributes:
        file: which one it is.
        schema_version: of the reader that fits; empty where none does.
        unreadable: why no records can be read from it; empty if they can.
        refused: why it cannot be believed although it can be read; empty if it can.
        rows: of the table, with its columns.
        rejected: records that no row is made of, each as it came.
        total: records that it has.
    """

    file: FileToJudge
    schema_version: str = ""
    unreadable: str = ""
    refused: str = ""
    rows: pl.DataFrame = field(default_factory=pl.DataFrame)
    rejected: list[tuple[RejectedRecord, Mapping[str, Any]]] = field(default_factory=list)
    total: int = 0

    @property
    def reasons(self) -> Counter[str]:
        """How many records are rejected, by rule."""
        return Counter(one.rule for one, _ in self.rejected)


@dataclass
class _Translation:
    judged: JudgedFile
    made: Sequence[tuple[int, Mapping[str, Any]]] = ()
    records: Mapping[int, RawRecord] = field(default_factory=dict)


class TranslatorError(TypeError):
    """A translator returns something else than it is declared to return."""


def judged_files(files: Iterable[FileToJudge], feed: FileFeed, table: InputTable) -> Iterator[JudgedFile]:
    """Read, translate and judge files, in their order; memory is that of a few thousand rows.

    Whatever a file or the translator of it does is said of that file: nothing is raised for one.
    """
    group: list[_Translation] = []
    rows = 0
    columns = TranslatedColumns(table.model)
    for file in files:
        group.append(_translated(file, feed, table, columns))
        rows += len(group[-1].made)
        if rows >= _GROUP:
            yield from _held_against_model(group, feed, table, columns)
            group, rows = [], 0
    yield from _held_against_model(group, feed, table, columns)


def _translated(file: FileToJudge, feed: FileFeed, table: InputTable, columns: TranslatedColumns) -> _Translation:
    judged = JudgedFile(file)
    records: Sequence[RawRecord] = ()
    if not file.facts.is_withdrawn:
        try:
            # of a file whose hash the producer's list has, it is known that it was not cut
            is_whole = isinstance(feed.time, DeliveryIndex) and bool(feed.time.content_hash)
            found = read_records(file.content(), feed.readers, feed.limits, is_whole=is_whole)
        except UnreadableFileError as error:
            judged.unreadable = str(error)
            return _Translation(judged)
        judged.schema_version, judged.total, records = found.reader.schema_version, found.total, found.records
        judged.rejected += [(why, record.fields) for why, record in found.misshapen]
    facts = replace(file.facts, schema_version=judged.schema_version, misshapen=len(judged.rejected))
    try:
        translated = _checked(feed.translate(records, facts), feed, table)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a product's code may raise anything, of one file
        # what it says may quote a record: a rule is shown to everybody, and the file is kept
        said = python_words(error) if isinstance(error, TranslatorError) else type(error).__name__
        judged.refused = f"its translator fails: {said} ({place(error)})"
        return _Translation(judged)
    by_number = {record.row: record for record in records}
    judged.refused = translated.refused
    judged.rejected += [(one, by_number[one.row].fields if one.row in by_number else {}) for one in translated.rejected]
    return _exact(_Translation(judged, translated.rows, by_number), columns)


def _exact(one: _Translation, columns: TranslatedColumns) -> _Translation:
    """Reject the rows of a file with a value that its column would hold as another one."""
    left = []
    for number, row in one.made:
        try:
            left.append((number, columns.exact_row(row)))
        except InexactValue as value:
            came = one.records[number].fields if number in one.records else {}
            one.judged.rejected.append((RejectedRecord(number, value.rule, value.detail), came))
    one.made = left
    return one


def _checked(translated: Any, feed: FileFeed, table: InputTable) -> Translated:
    """Return what a translator has made, if it is that."""
    if not isinstance(translated, Translated):
        raise TranslatorError(f"it returns a {type(translated).__name__}, and no ba.Translated")
    columns = set(dtypes(table.model)) - set(feed.filled_in)
    for number, row in translated.rows:
        if type(number) is not int or number < 0:
            raise TranslatorError(f"a row is made of record {number!r}, which is no number")
        if not row.keys() <= columns:
            raise TranslatorError(
                f"it gives {', '.join(sorted(map(str, row.keys() - columns)))}, no column(s) that it fills in"
            )
    return translated


def _held_against_model(
    group: list[_Translation], feed: FileFeed, table: InputTable, columns: TranslatedColumns
) -> Iterator[JudgedFile]:
    """Make rows of what translators have made, and reject those that the model refuses."""
    if not group:
        return
    whole = _frame(group, feed, columns).with_row_index(ROW).with_columns(pl.col(ROW).cast(pl.Int64))
    schema = without_uniqueness(table.model.to_schema())
    nulls = [
        pl.when(pl.col(name).is_null()).then(pl.lit(f"{name}: null"))
        for name, column in schema.columns.items()
        if not column.nullable
    ]
    null = whole.select(ROW, pl.coalesce([*nulls, pl.lit(None, pl.String)]).alias("_rule")).drop_nulls("_rule")
    broken, about_all = broken_rules(schema, whole.join(null, on=ROW, how="anti"))
    if about_all and len(group) > 1:  # of which file, is not said
        for one in group:
            yield from _held_against_model([one], feed, table, columns)
        return
    rules = dict(null.iter_rows()) | dict(broken.iter_rows())
    first = 0
    rows = whole.drop(ROW)
    for one in group:
        yield _split(one, rows.slice(first, len(one.made)), first, rules, about_all)
        first += len(one.made)


def _split(
    one: _Translation, frame: pl.DataFrame, first: int, rules: Mapping[int, str], about_all: Sequence[str]
) -> JudgedFile:
    judged = one.judged
    wrong = [number for number in range(frame.height) if first + number in rules]
    for number in wrong:
        row, values = one.made[number]
        rule = rules[first + number]
        column = rule.partition(":")[0]
        detail = f"{column} is {values[column]}"[:_DETAIL] if column in values else ""
        came = one.records[row].fields if row in one.records else {}
        judged.rejected.append((RejectedRecord(row, rule, detail), came))
    judged.rows = frame if not wrong else frame.with_row_index("_n").filter(~pl.col("_n").is_in(wrong)).drop("_n")
    if about_all and not judged.refused:
        judged.refused = f"rules about all rows are not met: {', '.join(about_all)}"
    judged.rejected.sort(key=lambda found: (found[0].row, found[0].rule))
    return judged


def _frame(group: list[_Translation], feed: FileFeed, columns: TranslatedColumns) -> pl.DataFrame:
    """Return the rows of files together."""
    filled: dict[str, list[Any]] = {name: [] for name in feed.filled_in}
    for one in group:
        facts, number = one.judged.file.facts, len(one.made)
        values = (facts.business_date, facts.published_at, one.judged.file.file_id)
        for name, value in zip(feed.filled_in, values, strict=True):
            filled[name] += [value] * number
    return columns.frame([row for one in group for _, row in one.made], filled)


def record_as_text(fields: Mapping[str, Any]) -> str:
    """Return a record as the quarantine keeps it."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
