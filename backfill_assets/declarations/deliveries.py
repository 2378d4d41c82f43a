"""What a product's own way of bringing input in is: `Loader`, and what it makes of a file, a `Delivery`.

Put here the vocabulary between a product, which knows what its raw rows mean, and `ingestion`, which appends what it is
given. An input table whose files have its own columns needs none of it: `backfill load TABLE FILE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from backfill_assets.declarations.quarantine import FirstRow

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Counted:
    """How the rows of a delivery were classified.

    Attributes:
        events: rows that the input table gets.
        quarantined: rows that its quarantine gets.
        by_reason: how many rows are quarantined for each reason.
        first: the first row of each reason.
    """

    events: int
    quarantined: int
    by_reason: Mapping[str, int]
    first: Mapping[str, FirstRow]


class Delivery(Protocol):
    """Raw rows to load: every method reads them anew, a batch at a time."""

    @property
    def load_id(self) -> str:
        """An id that is the same for the same content."""

    @property
    def source_file(self) -> str:
        """The file's name, or what the rows are called."""

    def count(self, ingested_at: datetime) -> Counted:
        """Classify every row without keeping anything.

        Raises:
            InputRefused: if the file turns out to be damaged.
        """

    def rows(self, ingested_at: datetime) -> Iterator[pa.Table]:
        """Yield what the input table gets, with its columns."""

    def quarantined(self, ingested_at: datetime) -> Iterator[pa.Table]:
        """Yield what the quarantine gets, with its columns."""


@dataclass(frozen=True)
class QuarantinedRecord:
    """A quarantined row as it came: the number of the row in its file, from 0, and what the product's loader kept of it (JSON text)."""

    source_file: str
    source_row: int
    record: str


@dataclass(frozen=True)
class Loader:
    """How a product brings raw rows into one of its input tables: the command `backfill load NAME`.

    Attributes:
        table: the input table.
        description: one sentence, for `--help`.
        from_file: opens a delivered file; raises `InputRefused` where it has not the shape that is expected.
        generated: makes up a delivery from a number (cases, orders, ...) and a seed; None where there is no generator.
        from_records: makes a delivery of rows that were quarantined, to be read by the rules of today: what is no row of the
            table yet is quarantined in it again, by the same file and number. Its `load_id` is not used. None where the loader
            cannot read back what it has quarantined: such rows cannot be released.
    """

    table: str
    description: str
    from_file: Callable[[Path], Delivery]
    generated: Callable[[int, int], Delivery] | None = None
    from_records: Callable[[Sequence[QuarantinedRecord]], Delivery] | None = None
