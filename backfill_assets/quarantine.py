"""The quarantine of an input table: where the rows of its loads are kept that its model does not accept.

Put here what such a table looks like and which input tables get one. What is wrong with a row is said by whatever read it.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandera.polars as pa
import polars as pl

from backfill_assets.schema import Instant
from backfill_assets.target import InputTable


class Quarantine(pa.DataFrameModel):
    """A row of a delivered file that was not loaded, and why."""

    source_file: str = pa.Field(description="Name of the delivered file.")
    source_row: pl.Int64 = pa.Field(ge=0, description="Number of the row in it, from 0.")
    reason: str = pa.Field(description="The rule that the row breaks, the first of several.")
    detail: str = pa.Field(nullable=True, description="The offending value, in words.")
    record: str = pa.Field(description="The row as it came, as JSON text.")
    ingested_at: Instant = pa.Field(description="When the file was loaded.")


def with_quarantines(tables: Iterable[InputTable]) -> list[InputTable]:
    """Return input tables, each followed by the quarantine that it needs and has not declared.

    A reference table has none: it is replaced whole or not at all.
    """
    declared = list(tables)
    served = {table.quarantine_of for table in declared}
    found = []
    for table in declared:
        found.append(table)
        if not (table.is_reference or table.quarantine_of or table.name in served):
            found.append(
                InputTable(
                    f"{table.name}_quarantine",
                    f"Rows of loads of {table.name} that its model does not accept, each with the rule it breaks.",
                    Quarantine,
                    table.owners,
                    quarantine_of=table.name,
                )
            )
    return found
