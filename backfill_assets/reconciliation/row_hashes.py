"""Two sets of rows held against each other by the hashes of their keys and of themselves, in parts that lie on disk.

Put here how a set of rows of any size is hashed and cut, and how two of them are compared; memory is a part's of both. Which rows
these are, and what is said of them, is `source_rows`'. What lies on disk are hashes, and no value of a row.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as arrow

from manifests.canonical import canonical_json

PART_ROWS = 200_000
"""Rows of a part, about: parts are those of the hashes of keys, which lie evenly."""
_MOST_PARTS = 4_096
_HASH = 32
_RECORD = np.dtype([("key", "u1", _HASH), ("row", "u1", _HASH), ("slice", "<u4")])
"""What is on disk of a row: hashes of its key and of all its values, and the number of its slice."""


def key_text(row: dict[str, Any], key: Sequence[str]) -> str:
    """Return the key of a row as JSON: the same text for the same values."""
    return canonical_json({name: _text(row[name]) for name in key})


def key_hash(text: str) -> bytes:
    """Return the hash of a key, by which rows are cut into parts and are in order."""
    return hashlib.sha256(text.encode()).digest()


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.hex() if isinstance(value, bytes) else str(value)


def parts_for(rows: int) -> int:
    """Return into how many parts so many rows are cut."""
    return min(_MOST_PARTS, max(1, -(-rows // PART_ROWS)))


class HashedRows:
    """The hashes of one side's rows, by part; `slices` numbers the slices, and is shared by both sides."""

    def __init__(self, folder: Path, parts: int, slices: dict[str, int]) -> None:
        folder.mkdir()
        self._folder, self.parts, self._slices = folder, parts, slices
        self.without_key = 0

    def add(self, rows: pl.DataFrame, key: Sequence[str], slice_column: str) -> None:
        """Hash rows, and put the hashes to those of their parts."""
        keys, hashes, numbers = bytearray(), bytearray(), []
        for row in rows.iter_rows(named=True):
            self.without_key += any(row[name] is None for name in key)
            keys += key_hash(key_text(row, key))
            hashes += hashlib.sha256(
                canonical_json({name: _text(value) for name, value in row.items()}).encode()
            ).digest()
            said = str(_text(row[slice_column])) if slice_column else ""
            numbers.append(self._slices.setdefault(said, len(self._slices)))
        found = np.empty(rows.height, _RECORD)
        found["key"] = np.frombuffer(keys, np.uint8).reshape(-1, _HASH)
        found["row"] = np.frombuffer(hashes, np.uint8).reshape(-1, _HASH)
        found["slice"] = numbers
        # the first 32 bits of a hash say in which part it is, so that parts in their order have the hashes in theirs
        leading = np.ascontiguousarray(found["key"][:, :4]).view(">u4").ravel().astype(np.uint64)
        places = (leading * self.parts) >> np.uint64(32)
        for place in np.unique(places):
            with (self._folder / str(place)).open("ab") as file:
                file.write(found[places == place].tobytes())

    def part(self, number: int) -> pl.DataFrame:
        """Return the hashes of a part, in the order of the keys' hashes."""
        path = self._folder / str(number)
        found = np.fromfile(path, _RECORD) if path.exists() else np.empty(0, _RECORD)
        columns = {name: _binary(found[name]) for name in ("key", "row")}
        return pl.DataFrame({**columns, "slice": found["slice"]}).sort("key", "row")


def _binary(values: np.ndarray[Any, Any]) -> pl.Series:
    data = arrow.py_buffer(np.ascontiguousarray(values).tobytes())
    fixed = arrow.FixedSizeBinaryArray.from_buffers(arrow.binary(_HASH), len(values), [None, data])
    found = pl.from_arrow(fixed.cast(arrow.binary()))
    assert isinstance(found, pl.Series)
    return found


@dataclass
class Tally:
    """What is known of a slice: how many rows each side has, how many keys differ, by how, and the hash over the rows of each."""

    rows: list[int] = field(default_factory=lambda: [0, 0])
    differing: Counter[str] = field(default_factory=Counter)
    hashes: tuple[Any, Any] = field(default_factory=lambda: (hashlib.sha256(), hashlib.sha256()))


@dataclass
class Comparison:
    """What two sides have in common and what not: by the number of a slice, and the hashes of the keys that differ, with how they do.

    `repeated` are the rows of each side that are more than its keys.
    """

    slices: dict[int, Tally] = field(default_factory=dict)
    keys: dict[bytes, str] = field(default_factory=dict)
    repeated: list[int] = field(default_factory=lambda: [0, 0])


def compared(theirs: HashedRows, ours: HashedRows) -> Comparison:
    """Hold two sides against each other, part by part."""
    found = Comparison()
    for number in range(theirs.parts):
        sides = theirs.part(number), ours.part(number)
        for place, rows in enumerate(sides):
            found.repeated[place] += rows.height - rows["key"].n_unique()
            _count(found, place, rows)
        if not any(found.repeated):
            for how, rows in _differing(*sides):
                found.keys.update(dict.fromkeys(rows["key"].to_list(), how))
                for slice_number, many in rows.group_by("slice").len().iter_rows():
                    found.slices[slice_number].differing[how] += many
    return found


def _count(found: Comparison, place: int, rows: pl.DataFrame) -> None:
    for (number,), own in rows.group_by("slice", maintain_order=True):
        tally = found.slices.setdefault(int(str(number)), Tally())
        tally.rows[place] += own.height
        tally.hashes[place].update(b"".join(own["row"].to_list()))


def _differing(theirs: pl.DataFrame, ours: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield how keys differ, and those that do; a row that has gone to another slice is one of the slice that the source has it in."""
    yield "missing", theirs.join(ours, on="key", how="anti")
    yield "surplus", ours.join(theirs, on="key", how="anti")
    both = theirs.join(ours, on="key", suffix="_ours")
    yield "different", both.filter(pl.col("row") != pl.col("row_ours"))


def texts_of(
    batches: Iterable[pl.DataFrame], key: Sequence[str], wanted: dict[bytes, str]
) -> Iterator[tuple[str, str]]:
    """Yield how a key differs, and the key as JSON, of each row whose key is wanted."""
    for rows in batches:
        for row in rows.select(key).iter_rows(named=True):
            text = key_text(row, key)
            how = wanted.get(key_hash(text))
            if how is not None:
                yield how, text
