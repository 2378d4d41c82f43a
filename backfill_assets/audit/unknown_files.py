"""Live files that no published run has written, opened: what they hold, whatever their bounds and partitions say.

Put here what is read of files of other programs with `--data`: the days and the runs of their rows, or the files whose rows
they delete. What follows from it is `accepted_files`' and `issued_corrections`'. Each file is read once, by its own columns; memory is one file's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from io import BytesIO
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as pq
from pyarrow import compute
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.transforms import IdentityTransform

from backfill_assets.audit.file_columns import columns_of
from resources.lakehouse.scopes import DAY_MICROSECONDS
from resources.lakehouse.snapshots import Days, Entry, Seen, day_at
from resources.lakehouse.storage import Storage, place_of, store_of

UNPROVABLE = "belongs to no known run, and cannot be opened: what readers get by it of accepted days cannot be proved"
"""What is said of a file about which there is trouble."""
_PATH_FIELD = 2147483546
_PATH_NAME = "file_path"
"""Field id and name of the column of a file of deleted positions that names the file in which they are."""
_UNREADABLE = (OSError, arrow.ArrowException, ValueError, LookupError, TypeError)


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

    @property
    def are_opened(self) -> bool:
        """Whether files are opened."""
        return self.files is not None

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
            return Holds(deletes=frozenset(map(place_of, _paths(raw))))
        columns, constants = columns_of(raw, seen.table.name_mapping()), _constants(seen, entry)
        days, runs = (columns.get(field) if field is not None else None for field in (day, run))
        instants = days is not None and arrow.types.is_timestamp(days.type)
        kind = days.type if days is not None and instants else arrow.date32()
        numbers = {
            one
            for values in _values(raw, days, kind)
            for one in compute.unique(values.cast(arrow.date32())).cast(arrow.int32()).to_pylist()
        }
        names = {one for values in _values(raw, runs, arrow.string()) for one in values.to_pylist()}
        numbers |= {constants[day] // (DAY_MICROSECONDS if instants else 1)} if day in constants else set()
        names |= {constants[run]} if run in constants else set()
        return Holds(tuple(sorted({day_at(number) for number in numbers})), frozenset(names))
    except _UNREADABLE as error:
        return Holds(trouble=f"{type(error).__name__}: {str(error)[:200]}")


def _constants(seen: Seen, entry: Entry) -> dict[int | None, Any]:
    """Return by field what a file's partition has as it is: some engines give that to readers, whatever is in the file."""
    spec = seen.table.specs()[entry.file.spec_id]
    fields = [(one, entry.file.partition[place]) for place, one in enumerate(spec.fields)]
    return {
        one.source_id: value
        for one, value in fields
        if isinstance(one.transform, IdentityTransform) and value is not None
    }


def _paths(raw: bytes) -> set[str]:
    """Return the files of which a file of deleted positions deletes rows; some engines find its column by id, some by name."""
    column = columns_of(raw, None).get(_PATH_FIELD)
    if column is None or column.name != _PATH_NAME:
        raise ValueError(f"it has no column {_PATH_NAME} with field id {_PATH_FIELD}")
    return {one for values in _values(raw, column, arrow.string()) for one in values.to_pylist()}


def _values(raw: bytes, column: arrow.Field | None, kind: arrow.DataType) -> Iterator[arrow.Array]:
    """Yield what is in a column but NULLs, of each part of a file once; nothing of a column that the file lacks.

    Raises:
        ValueError: if the column is of another type.
    """
    if column is None:
        return
    if column.type != kind:
        raise ValueError(f"its column {column.name} is of {column.type}, not of {kind}")
    for batch in pq.ParquetFile(BytesIO(raw)).iter_batches(columns=[column.name]):
        yield compute.drop_null(compute.unique(batch.column(column.name).cast(kind)))
