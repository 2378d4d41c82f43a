"""Live files that no published run has written, opened: what they hold, whatever their bounds and partitions say.

Put here what is read of files of other programs with `--data`: the days and the runs of their rows, or the files whose rows
they delete. What follows from it is `accepted_files`' and `issued_corrections`'. Each file is read once, by its own columns; memory is one file's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from io import BytesIO
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as pq
from pyarrow import compute
from pyiceberg.manifest import DataFileContent, FileFormat

from resources.lakehouse.snapshots import Days, Entry, Seen
from resources.lakehouse.storage import Storage, place_of, store_of

UNPROVABLE = "is of nobody's run, and cannot be opened: what readers get by it of accepted days cannot be proved"
"""What is said of a file about which there is trouble."""
_PATH_FIELD = 2147483546
"""Field id of the column of a file of deleted positions that names the file in which they are."""
_UNREADABLE = (OSError, arrow.ArrowException, ValueError, KeyError, TypeError)


@dataclass(frozen=True)
class Holds:
    """What a file holds.

    Attributes:
        days: of its rows, in order.
        runs: that its rows say they are of.
        deletes: the places of the files of which it deletes rows; what deletes by value names none, and does so in its partition.
        trouble: why it cannot be known.
    """

    days: tuple[date, ...] = ()
    runs: frozenset[str] = frozenset()
    deletes: frozenset[str] = frozenset()
    trouble: str = ""


class UnknownFiles:
    """What files hold that were opened, of all tables.

    `published` says by place, of the files that runs of a target have published to a table, for which days they were gated.
    """

    def __init__(self, published: Callable[[str, str], Mapping[str, Days]]) -> None:
        self._published = published
        self._gated: dict[tuple[str, str], Mapping[str, Days]] = {}
        self._holds: dict[tuple[str, str, bool], Holds] = {}

    def gated(self, target: str, table: str) -> Mapping[str, Days]:
        """Return the files that runs of a target have published to a table: with its run each is held against its hash."""
        if (target, table) not in self._gated:
            self._gated[target, table] = self._published(target, table)
        return self._gated[target, table]

    def holds(self, seen: Seen, entry: Entry, day: int | None, run: int | None) -> Holds:
        """Return what a file of main holds; `day` and `run` are the fields of the days and of the run."""
        key = seen.name, entry.place, entry.is_data
        if key not in self._holds:
            self._holds[key] = _opened(seen, entry, day, run)
        return self._holds[key]


@dataclass(frozen=True)
class UnknownIn:
    """The files of one table of a target; nothing is opened where `files` is None."""

    files: UnknownFiles | None
    seen: Seen
    target: str
    day: int | None
    run: int | None

    def gated_for(self, place: str) -> Days | None:
        """Return the days for which a run has published a file; None if none has."""
        return None if self.files is None else self.files.gated(self.target, self.seen.name).get(place)

    def holds(self, entry: Entry) -> Holds:
        """Return what a file holds."""
        return Holds() if self.files is None else self.files.holds(self.seen, entry, self.day, self.run)


def _opened(seen: Seen, entry: Entry, day: int | None, run: int | None) -> Holds:
    file = entry.file
    if file.content == DataFileContent.EQUALITY_DELETES:
        return Holds()
    store = store_of(seen.table.location())
    if store_of(file.file_path) != store:
        return Holds(trouble=f"{file.file_path} is in another store than its table")
    if file.file_format != FileFormat.PARQUET:
        return Holds(trouble=f"it is listed as a file of {FileFormat(file.file_format).value}")
    try:
        raw = Storage(seen.table).content(entry.place)
        if not entry.is_data:
            return Holds(deletes=frozenset(map(place_of, _values(raw, _PATH_FIELD, "file_path"))))
        schema = seen.table.schema()
        days, runs = (
            _values(raw, field, schema.find_column_name(field) or "") if field is not None else []
            for field in (day, run)
        )
        return Holds(tuple(sorted(days)), frozenset(map(str, runs)))
    except _UNREADABLE as error:
        return Holds(trouble=f"{type(error).__name__}: {str(error)[:200]}")


def _values(raw: bytes, field_id: int, name: str) -> list[Any]:
    """Return what is in a column of a Parquet file: the one with the field id, or in a file without ids the one with the name."""
    parquet = pq.ParquetFile(BytesIO(raw))
    ids = {int(one.metadata[b"PARQUET:field_id"]): one.name for one in parquet.schema_arrow if _has_id(one)}
    own = ids.get(field_id) if ids else name
    found: set[Any] = set()
    if own in parquet.schema_arrow.names:
        for batch in parquet.iter_batches(columns=[own]):
            found |= set(compute.unique(batch.column(0)).to_pylist())
    return list(found - {None})


def _has_id(field: arrow.Field) -> bool:
    return b"PARQUET:field_id" in (field.metadata or {})
