"""What is asked of a delivered file before a value of it is believed, whichever loader reads it.

Put here what the libraries that read CSV and Parquet let pass in silence, so that rows or values would be other than what
was delivered. What a row must be is `ingestion.input_files`'s and the product's; nothing here knows a table.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as arrow

from manifests.errors import InputRefused, Problem

_READ = 1 << 20
_MARK = b"\xef\xbb\xbf"
_ENDS_A_CELL = (b",", b"\r", b"\n")
_ENCLOSED = re.compile(rb'[^"]*+(?:""[^"]*+)*+')
"""Up to the quote that closes a cell."""
_SOUND = re.compile(rb'(?:[^"]++|(?<=[^,\r\n])"[^,\r\n]*+|"[^"]*+(?:""[^"]*+)*+"(?=[,\r\n]))*+')
"""Up to a quote that opens a cell and is not closed before the text ends, or not at the end of its cell."""


def content_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content; memory is a block's.

    The quotes of a CSV file are followed while it is read: Arrow takes the end of the file for a closing quote, and
    whatever follows a closing quote for more of the cell. A stray quote would make one cell of the rows after it.

    Raises:
        InputRefused: if a quote of a CSV file is not closed, or not at the end of its cell.
        OSError: if the file cannot be read.
    """
    total = hashlib.sha256()
    quotes = _Quotes(path) if path.suffix.lower() == ".csv" else None
    with path.open("rb") as stream:
        while block := stream.read(_READ):
            total.update(block)
            if quotes is not None:
                quotes.follow(block)
    if quotes is not None:
        quotes.end()
    return total.hexdigest()


@dataclass(frozen=True)
class SeenFile:
    """A file as it was when a load of it began: every row that is loaded is one of the content that the load is named by.

    Attributes:
        path: the file.
        state: what the file system said of it then.
    """

    path: Path
    state: tuple[int, ...]

    @classmethod
    def now(cls, path: Path) -> SeenFile:
        """Return a file as it is; OSError if there is none."""
        return cls(path, _state(path))

    def require_unchanged(self) -> None:
        """Refuse to go on with a file that was written, or replaced by another, since.

        Raises:
            InputRefused: if it was, or is gone.
        """
        try:
            same = _state(self.path) == self.state
        except OSError:
            same = False
        if not same:
            raise InputRefused(
                Problem(
                    f"{self.path} was changed while it was loaded",
                    "a load is named by the content that it was begun with, and brings that",
                    "leave the file as it is until it is loaded, or load a copy: the same command again",
                )
            )


def _state(path: Path) -> tuple[int, ...]:
    facts = path.stat()
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


@dataclass(frozen=True)
class Damaged:
    """A value of a Parquet file that is none of its type, such as text that is not UTF-8: its column, its row and why."""

    column: str
    row: int
    why: str


def damaged(batch: Any, first: int) -> Damaged | None:
    """Return the first damaged value of an Arrow record batch whose first row is the file's row `first`, if there is one.

    Arrow hands on what it reads without a look at it, and Polars believes it: what is not UTF-8 would be written, and
    make the file that it is in unreadable for others.
    """
    if _why_damaged(batch) is None:
        return None
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if _why_damaged(column) is None:
            continue
        # the values of a dictionary are judged whole, whichever of them a row has
        values = column.dictionary_decode() if arrow.types.is_dictionary(column.type) else column
        low, high = 0, len(values)
        while high - low > 1:
            middle = (low + high) // 2
            # taken, not sliced: a slice of lists is judged by the values of all of them
            if _why_damaged(values.take(arrow.array(range(low, middle)))) is None:
                low = middle
            else:
                high = middle
        return Damaged(name, first + low, str(_why_damaged(column)))
    return Damaged(", ".join(batch.schema.names), first, str(_why_damaged(batch)))


def _why_damaged(values: Any) -> str | None:
    try:
        values.validate(full=True)
    except arrow.ArrowInvalid as error:
        return str(error).splitlines()[0]
    return None


def is_no_text(text: pl.Expr) -> pl.Expr:
    """Return whether text has what no writer means: a NUL, as damaged files have them, or a byte order mark in front.

    A mark that is not the file's first bytes is what joined files leave behind, and nobody sees that two keys differ by it.
    """
    return text.str.contains("\0", literal=True) | text.str.starts_with("\ufeff")


def without_nul(text: pl.Expr) -> pl.Expr:
    """Return text for people, with NUL written out."""
    return text.str.replace_all("\0", "\\0", literal=True)


class _Place(Enum):
    OUTSIDE = auto()
    ENCLOSED = auto()
    AFTER = auto()
    """Behind a quote that closes a cell, or is the first of two that stand for one."""


class _Quotes:
    """The quotes of a CSV file, followed block by block as Arrow reads them.

    A quote opens a cell at its beginning only; in the middle of a cell that has none there it is a character like others.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = self._opened = 0
        self._place = _Place.OUTSIDE
        self._before = b"\n"
        """What stands before the next byte outside of quotes; `x` for all that ends no cell."""

    def follow(self, block: bytes) -> None:
        rest = block.removeprefix(_MARK) if not self._read else block
        self._read += len(block)
        while rest:
            if self._place is _Place.OUTSIDE:
                rest = self._outside(rest)
            elif self._place is _Place.ENCLOSED:
                enclosed = _ENCLOSED.match(rest)
                assert enclosed is not None
                if enclosed.end() < len(rest):
                    self._place = _Place.AFTER
                rest = rest[enclosed.end() + 1 :]
            elif rest[:1] == b'"':
                self._place, rest = _Place.ENCLOSED, rest[1:]
            elif rest[:1] in _ENDS_A_CELL:
                self._place, self._before = _Place.OUTSIDE, b"x"
            else:
                raise self._refused(
                    f", and after the one that closes it, in line {self._line(self._read - len(rest)):,}, comes "
                    f"'{rest[:1].decode('ascii', 'backslashreplace')}'"
                )

    def end(self) -> None:
        if self._place is _Place.ENCLOSED:
            raise self._refused(" that is never closed")

    def _outside(self, text: bytes) -> bytes:
        text = self._before + text
        sound = _SOUND.match(text)
        assert sound is not None
        end = max(sound.end(), 1)
        self._before = text[end - 1 : end] if text[end - 1 : end] in _ENDS_A_CELL else b"x"
        if end < len(text):
            self._place = _Place.ENCLOSED
            self._opened = self._read - (len(text) - end)
        return text[end + 1 :]

    def _refused(self, what: str) -> InputRefused:
        return InputRefused(
            Problem(
                f"{self._path} opens a quote in line {self._line(self._opened):,}{what}",
                "a cell that begins with a quote ends with one, before a comma or the end of its line; a quote within it "
                "is written twice. A stray one makes one cell of the rows that follow",
                "mend that line, or deliver the file again; nothing of it was loaded",
            )
        )

    def _line(self, offset: int) -> int:
        """Return the number of the line, from 1, that a byte of the file stands in."""
        line, last = 1, b""
        with self._path.open("rb") as stream:
            while offset > 0 and (block := stream.read(min(_READ, offset))):
                line += block.count(b"\n") + block.count(b"\r") - (last + block).count(b"\r\n")
                last, offset = block[-1:], offset - len(block)
        return line
