"""From a file, or the generator, to the table of order lines: what one load of the product is.

Put here which rows go to which table. What a raw row is is `raw`'s; how a table is appended to, the platform's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import polars as pl
import pyarrow as pa

from backfill_assets.declarations.deliveries import Counted, Loader
from backfill_assets.declarations.quarantine import Rejections
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.delivered_files import content_hash
from backfill_assets.products.orders import generator, raw, raw_files, schemas
from manifests.errors import InputRefused, Problem

LINES = "bronze.order_lines"
SOURCE_SYSTEM, GENERATED = "retail-shop", "generator"


@dataclass(frozen=True)
class LinesLoad:
    """One load of order lines: an id that is the same for the same content, and its batches in file order."""

    load_id: str
    source_file: str
    source_system: str
    batches: Callable[[], Iterator[pl.DataFrame]]

    def count(self, ingested_at: datetime) -> Counted:
        """Classify the rows without keeping anything.

        Raises:
            InputRefused: if the file turns out to be damaged.
        """
        lines, reasons = 0, Rejections()
        for part in self._classified(ingested_at):
            lines += part.lines.height
            reasons.add(part.quarantined, row="source_row", reason="reason", detail="detail")
        return Counted(lines, reasons.total, dict(sorted(reasons.counts.items())), dict(sorted(reasons.first.items())))

    def rows(self, ingested_at: datetime) -> Iterator[pa.Table]:
        """Yield the lines, a batch at a time, as Arrow tables of `bronze.order_lines`."""
        for part in self._classified(ingested_at):
            if part.lines.height:
                yield _arrow(part.lines, schemas.OrderLines)

    def quarantined(self, ingested_at: datetime) -> Iterator[pa.Table]:
        """Yield the quarantined rows, a batch at a time, as Arrow tables of `bronze.order_lines_quarantine`."""
        for part in self._classified(ingested_at):
            if part.quarantined.height:
                yield _arrow(part.quarantined, schemas.OrderLinesQuarantine)

    def _classified(self, ingested_at: datetime) -> Iterator[raw.Classified]:
        for batch in self.batches():
            yield raw.classify(
                batch, source_system=self.source_system, source_file=self.source_file, ingested_at=ingested_at
            )


def from_file(path: Path) -> LinesLoad:
    """Return the load of a file; its id is the hash of the file's content.

    Raises:
        InputRefused: if the file cannot be read, or is none of order lines.
    """
    try:
        content = content_hash(path)
    except OSError as error:
        raise InputRefused(Problem(str(error), "order lines come as a readable file", "name the file")) from error
    raw_files.require_shape(path)
    return LinesLoad(f"order-lines:{content}", path.name, SOURCE_SYSTEM, lambda: raw_files.read_batches(path))


def generated(orders: int, seed: int) -> LinesLoad:
    """Return the load of made-up lines of so many orders."""
    name = f"generated-{orders}-orders-seed-{seed}"
    return LinesLoad(f"order-lines:{name}", name, GENERATED, lambda: iter([generator.generate(orders, seed)]))


def _arrow(frame: pl.DataFrame, model: type) -> pa.Table:
    return frame.to_arrow().cast(iceberg_schema(model).as_arrow())


ORDER_LINES = Loader(LINES, "Load order lines from FILE (Parquet or CSV), or generate them.", from_file, generated)
"""What `backfill load order-lines` does."""
