"""From the bytes of a delimited file to its raw records, by the reader that fits it.

Put here what makes a file unreadable as text of records, and which reader fits. What a record means is its translator's; nothing
here knows a table.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from backfill_assets.declarations.feeds import FileLimits, FileReader, RawRecord, RejectedRecord

_FIRST_LINE = 1 << 16
"""Characters in which the names of columns have to stand."""


class UnreadableFileError(Exception):
    """A file that no reader of its feed fits, or that is none of text; it says why."""


@dataclass(frozen=True)
class RecordsOfFile:
    """The records of a file, the reader that fits, and the records that have other fields than the first line names."""

    reader: FileReader
    records: Sequence[RawRecord]
    misshapen: Sequence[tuple[RejectedRecord, RawRecord]]
    total: int


def read_records(
    content: bytes, readers: Sequence[FileReader], limits: FileLimits, *, is_whole: bool = False
) -> RecordsOfFile:
    """Return the records of a file; `is_whole` says that it is known not to have been cut.

    Raises:
        UnreadableFileError: if no reader fits, or it is damaged: a NUL, a byte order mark in the middle, a quote that is never closed
            or stands in the middle of a field, a last line without an end, a field or a number of records beyond the limits.
    """
    if not content.strip():
        raise UnreadableFileError("it is empty")
    reader, text = _fitting(content, readers)
    for mark, what in (("\0", "a NUL character"), ("\ufeff", "a byte order mark in the middle: files were joined")):
        if (place := text.find(mark)) >= 0:
            raise UnreadableFileError(f"it has {what}, in line {text.count(chr(10), 0, place) + 1:,}")
    if not (is_whole or reader.ends_without_newline or text.endswith(("\n", "\r"))):
        raise UnreadableFileError(
            "its last line has no line end: it may have been cut there (`ends_without_newline` of the reader)"
        )
    try:
        return _records(
            csv.reader(io.StringIO(text, newline=""), delimiter=reader.delimiter, strict=True), reader, limits
        )
    except csv.Error as error:
        raise UnreadableFileError(f"it is damaged: {error}") from error


def _fitting(content: bytes, readers: Sequence[FileReader]) -> tuple[FileReader, str]:
    texts: dict[str, str | None] = {}
    lines: dict[tuple[str, str], list[str]] = {}
    for reader in readers:
        for encoding in reader.encodings:
            if encoding not in texts:
                texts[encoding] = _decoded(content, encoding)
            text = texts[encoding]
            if text is None:
                continue
            form = (encoding, reader.delimiter)
            if (names := lines.get(form)) is None:
                names = lines[form] = _first_line(text, reader.delimiter)
            if len(names) == len(reader.columns) and set(names) == set(reader.columns):
                return reader, text
    raise UnreadableFileError(_why_none_fits(content, readers, texts, lines))


def _why_none_fits(
    content: bytes,
    readers: Sequence[FileReader],
    texts: Mapping[str, str | None],
    lines: Mapping[tuple[str, str], Sequence[str]],
) -> str:
    """Say why no reader fits: a text that is not in a reader's encoding is one, also where it could be read in another's."""
    others = {encoding for encoding, text in texts.items() if text is not None}
    damage = [_not_in(content, encoding) for encoding, text in texts.items() if text is None]
    if not others:
        return "; ".join(damage)
    # what stands in a line that names no columns may be anything, a person's name as well: only declared names are shown
    first = f"no reader of the feed fits its first line: {_nearest(readers, lines)}"
    return "; ".join([*damage, first])


def _nearest(readers: Sequence[FileReader], lines: Mapping[tuple[str, str], Sequence[str]]) -> str:
    """Say what the first line lacks of the reader that comes nearest, and has beside it."""
    tried = [
        (reader, lines[encoding, reader.delimiter])
        for reader in readers
        for encoding in reader.encodings
        if (encoding, reader.delimiter) in lines
    ]
    reader, names = max(
        tried, key=lambda one: len(set(one[1]) & set(one[0].columns)) - len(set(one[1]) ^ set(one[0].columns))
    )
    lacking = [name for name in reader.columns if name not in names]
    others = len(names) - len(reader.columns) + len(lacking)
    if len(lacking) == len(reader.columns):
        return f"it has none of the names of a reader's columns, and {len(names):,} field(s)"
    has = [f"{others:,} column(s) that are none of its, or named twice"] if others > 0 else []
    return f"of {reader.schema_version}, which is nearest, it " + " and ".join(
        [*([f"lacks {', '.join(map(repr, lacking))}"] if lacking else []), *[f"has {one}" for one in has]]
    )


def _not_in(content: bytes, encoding: str) -> str:
    """Say where the bytes of a file are no text of an encoding."""
    try:
        content.removeprefix(codecs.BOM_UTF8).decode(encoding)
    except UnicodeDecodeError as error:
        place = error.start + (len(codecs.BOM_UTF8) if content.startswith(codecs.BOM_UTF8) else 0)
        line = content.count(b"\n", 0, place) + 1
        return f"it is not {encoding.upper()}: byte {place:,}, in line {line:,}, is 0x{content[place]:02x}"
    raise AssertionError("it was no text of the encoding before")


def _decoded(content: bytes, encoding: str) -> str | None:
    try:
        return content.removeprefix(codecs.BOM_UTF8).decode(encoding)
    except UnicodeDecodeError:
        return None


def _first_line(text: str, delimiter: str) -> list[str]:
    try:
        return [
            name.strip()
            for name in next(csv.reader(io.StringIO(text[:_FIRST_LINE], newline=""), delimiter=delimiter), [])
        ]
    except csv.Error:
        return []


def _records(lines: Iterator[list[str]], reader: FileReader, limits: FileLimits) -> RecordsOfFile:
    names = [reader.columns[name.strip()] for name in next(lines)]
    records, misshapen, number = [], [], 0
    for cells in lines:
        if not cells:
            continue  # an empty line
        if number >= limits.rows:
            raise UnreadableFileError(f"it has more than {limits.rows:,} records (limits.rows of the feed)")
        if max(map(len, cells)) > limits.field_chars:
            raise UnreadableFileError(
                f"record {number:,} has a field of more than {limits.field_chars:,} characters (limits.field_chars of the feed)"
            )
        record = RawRecord(number, dict(zip_longest(names, [cell or None for cell in cells[: len(names)]])))
        if 0 <= len(names) - len(cells) <= reader.may_lack:
            records.append(record)
        else:
            said = f"{len(cells)} fields, and the first line has {len(names)}"
            misshapen.append((RejectedRecord(number, "fields as in the first line", said), record))
        number += 1
    return RecordsOfFile(reader, records, misshapen, number)
