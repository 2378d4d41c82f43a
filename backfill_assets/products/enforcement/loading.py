"""From files to the bronze and reference tables: what one load of the enforcement product is.

Put here which rows go to which table. How a table is appended to is the lakehouse's; what a raw row means is `raw`'s.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import polars as pl
import pyarrow as pa

from backfill_assets.declarations.deliveries import Counted, Loader, QuarantinedRecord
from backfill_assets.declarations.quarantine import Rejections
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.delivered_files import content_hash
from backfill_assets.products.enforcement import generator, raw, raw_files, reference, schemas, transforms
from manifests.canonical import sha256_of
from manifests.errors import InputRefused, Problem

EVENTS = "bronze.case_events"
DEFAULT_JURISDICTION = "IT"
BATCH_ROWS = 1_000_000
"""Rows classified at once: a load leaves a file a month and batch behind."""


@dataclass(frozen=True)
class RawLoad:
    """One load of raw rows: an id that is the same for the same content, and its batches in file order."""

    load_id: str
    source_file: str
    batches: Callable[[], Iterator[pl.DataFrame]]

    def count(self, ingested_at: datetime) -> Counted:
        """Classify the rows without keeping anything: what they would bring.

        Raises:
            InputRefused: if the file turns out to be damaged.
        """
        events, reasons = 0, Rejections()
        for part in self._classified(ingested_at):
            events += part.events.height
            reasons.add(part.quarantined, row="source_row", reason="reason", detail="detail")
        return Counted(events, reasons.total, dict(sorted(reasons.counts.items())), dict(sorted(reasons.first.items())))

    def rows(self, ingested_at: datetime) -> Iterator[pa.Table]:
        """Yield the classified events, a batch at a time, as Arrow tables of `bronze.case_events`."""
        for part in self._classified(ingested_at):
            if part.events.height:
                yield _arrow(part.events, schemas.CaseEvents)

    def quarantined(self, ingested_at: datetime) -> Iterator[pa.Table]:
        """Yield the quarantined rows, a batch at a time, as Arrow tables of `bronze.case_events_quarantine`."""
        for part in self._classified(ingested_at):
            if part.quarantined.height:
                yield _arrow(part.quarantined, schemas.CaseEventsQuarantine)

    def _classified(self, ingested_at: datetime) -> Iterator[raw.Classified]:
        known = frozenset(reference.TIME_ZONES)
        try:
            for batch in self.batches():
                yield raw.classify(
                    batch,
                    source_file=self.source_file,
                    ingested_at=ingested_at,
                    default_jurisdiction=DEFAULT_JURISDICTION,
                    known_jurisdictions=known,
                )
        except raw_files.RawFileError as error:
            raise InputRefused(
                Problem(str(error), "a raw log is read to its end", "correct or fetch the file again")
            ) from error


def from_file(path: Path) -> RawLoad:
    """Return the load of a file; its id is the hash of the file's content.

    Raises:
        InputRefused: if the file cannot be read, does not have the shape of a raw log, or has a quote too many.
    """
    try:
        raw_files.read_batches(path)  # judges the file at the call
        content = content_hash(path)
    except (raw_files.RawFileError, OSError) as error:
        raise InputRefused(
            Problem(str(error), "a raw log is a readable Parquet or CSV file", "correct the file")
        ) from error
    return RawLoad(f"case-events:{content}", path.name, lambda: raw_files.read_batches(path, BATCH_ROWS))


def generated(cases: int, seed: int) -> RawLoad:
    """Return the load of a generated log of `cases` cases."""
    name = f"generated-{cases}-cases-seed-{seed}"
    return RawLoad(f"case-events:{name}", name, lambda: raw.number_rows(generator.generate(cases, seed)))


@dataclass(frozen=True)
class RawRecords(RawLoad):
    """Raw rows that were quarantined, to be read by the rules of today: one batch for each file and shape they came in."""

    records: tuple[QuarantinedRecord, ...] = ()

    def _classified(self, ingested_at: datetime) -> Iterator[raw.Classified]:
        shapes: dict[tuple[str, tuple[str, ...]], list[dict[str, str | int | None]]] = {}
        for one in self.records:
            values = json.loads(one.record)
            shapes.setdefault((one.source_file, tuple(values)), []).append(values | {"source_row": one.source_row})
        for (source_file, names), rows in shapes.items():
            schema = dict.fromkeys(names, pl.String()) | {"source_row": pl.Int64()}
            yield raw.classify(
                pl.DataFrame(rows, schema=schema),
                source_file=source_file,
                ingested_at=ingested_at,
                default_jurisdiction=DEFAULT_JURISDICTION,
                known_jurisdictions=frozenset(reference.TIME_ZONES),
            )


def from_records(records: Sequence[QuarantinedRecord]) -> RawRecords:
    """Return the delivery of raw rows that were quarantined; a log without a jurisdiction is read as it was."""
    name = f"quarantined-{len(records)}"
    return RawRecords(f"case-events:{name}", name, lambda: iter(()), tuple(records))


def reference_tables() -> Iterable[tuple[str, pa.Table, str]]:
    """Return each shipped reference table: its name, its rows and the name of this version of it."""
    rules = [asdict(rule) for rule in reference.sla_rules()]
    listed = [
        {key: list(value) if isinstance(value, tuple) else value for key, value in rule.items()} for rule in rules
    ]
    schema = iceberg_schema(schemas.SlaRules).as_arrow()
    yield transforms.RULES, pa.Table.from_pylist(listed, schema=schema), f"rules-{sha256_of(listed)[:12]}"
    schema = iceberg_schema(schemas.JurisdictionCalendar).as_arrow()
    days = reference.jurisdiction_calendar()  # tens of thousands: by column
    columns = {name: [getattr(day, name) for day in days] for name in schema.names}
    yield transforms.CALENDAR, pa.Table.from_pydict(columns, schema=schema), reference.calendar_version()


def _arrow(frame: pl.DataFrame, model: type) -> pa.Table:
    return frame.to_arrow().cast(iceberg_schema(model).as_arrow())


CASE_EVENTS = Loader(
    EVENTS,
    "Load enforcement case events from FILE (Parquet or CSV), or generate them.",
    from_file,
    generated,
    from_records,
)
"""What `backfill load case-events` does."""
