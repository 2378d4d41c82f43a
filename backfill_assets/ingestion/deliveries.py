"""Loading what a product's own loader delivers; safe to repeat after a crash.

Put here what becomes of a delivery. What its raw rows mean is the product's; files that have the columns of their table
are `ingestion.table_loads`'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyarrow.lib import ArrowException
from pyiceberg.exceptions import ResolveError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

from backfill_assets.declarations.deliveries import Counted, Delivery
from backfill_assets.declarations.quarantine import WITHHELD, Rejections
from backfill_assets.declarations.target import InputTable
from backfill_assets.ingestion.columns_in_place import require_declared_columns
from backfill_assets.ingestion.quarantine_parts import part_to_append
from backfill_assets.installation import Platform
from manifests.errors import InputRefused, Problem
from resources.lakehouse.facade import Commit
from resources.lakehouse.loads import (
    ACTOR_PROPERTY,
    FILE_PROPERTY,
    LOAD_PROPERTY,
    REJECTED_PROPERTY,
    load_to_make,
)
from resources.ledger.facade import operator


@dataclass(frozen=True)
class Loaded:
    """What a load brought; `new` is False if the very same content was loaded before."""

    new: bool
    counted: Counted
    snapshot_id: int | None


def load_delivery(platform: Platform, table: str, delivery: Delivery, limit: float) -> Loaded:
    """Load raw rows: classify all of them, refuse a load of too many unknowns, then append what is known.

    Args:
        platform: the opened installation.
        table: the input table that they come into.
        delivery: what to load.
        limit: share of the rows that may be quarantined, 0 to 1.

    Raises:
        InputRefused: if the load is damaged or too much of it cannot be classified, or if the table is a quarantine, or a
            reference table; nothing is written then.
        EnvironmentRefused: if the table, or its quarantine, does not have the columns of its model.
    """
    declared = platform.products.input(table)
    _require_appended_to(declared)
    require_declared_columns(platform, declared)
    at = platform.ledger.now().replace(microsecond=0)
    counted = delivery.count(at)
    withheld = platform.policy.protects(table)
    if withheld:
        first = {reason: replace(one, detail=WITHHELD) for reason, one in counted.first.items()}
        counted = replace(counted, first=first)
    total = counted.events + counted.quarantined
    share = counted.quarantined / total if total else 0.0
    if share > limit:
        reasons = Rejections(Counter(counted.by_reason), dict(counted.first)).in_words(withheld=withheld)
        raise InputRefused(
            Problem(
                f"{delivery.source_file}: {counted.quarantined:,} of {total:,} rows ({share:.1%}) cannot be classified ({reasons})",
                f"at most {limit:.1%} of a load may be quarantined (setting quarantine_limit)",
                "correct the file, or raise the limit if the rows are rightly unusable",
            )
        )
    # quarantine first: if this stops between the two, the repetition appends what is missing, and nothing twice
    to_make = load_to_make(platform.lakehouse.loads(table), delivery.load_id)
    load_id = to_make.load_id if to_make.before is None else to_make.before.load_id
    properties: dict[str, Any] = {
        LOAD_PROPERTY: load_id,
        FILE_PROPERTY: delivery.source_file,
        ACTOR_PROPERTY: operator(),
        REJECTED_PROPERTY: str(counted.quarantined),
    }
    quarantine = platform.products.quarantine_of(platform.products.input(table)).name
    part = None
    if to_make.before is None:
        part = part_to_append(platform, quarantine, load_id, counted.by_reason, counted.first)
    if part is not None:
        rejected = _as_counted(delivery.quarantined(at), counted.quarantined, delivery.source_file, quarantine)
        _append(platform, quarantine, delivery.source_file, rejected, {**properties, **part})
    rows = _as_counted(delivery.rows(at), counted.events, delivery.source_file, table)
    commit = _append(platform, table, delivery.source_file, rows, properties)
    snapshot = commit.snapshot_id if commit else platform.lakehouse.snapshot_id(table)
    return Loaded(commit is not None, counted, snapshot)


def _require_appended_to(table: InputTable) -> None:
    if not (table.is_reference or table.quarantine_of):
        return
    what = f"the quarantine of {table.quarantine_of}" if table.quarantine_of else "a reference table"
    raise InputRefused(
        Problem(
            f"{table.name} is {what}",
            "a loader brings rows into an input table: a quarantine is filled by loads of its table, and a reference table is "
            "replaced whole, as a version",
            f"correct the loader's table; `backfill load {table.name} FILE` replaces a reference table"
            if table.is_reference
            else f"correct the loader's table: {table.quarantine_of}",
        )
    )


def _as_counted(batches: Iterator[pa.Table], rows: int, file: str, table: str) -> Iterator[pa.Table]:
    """Yield the batches of a delivery; refuse one that has other rows than were counted, before they are committed."""
    found = 0
    for batch in batches:
        found += batch.num_rows
        yield batch
    if found != rows:
        raise InputRefused(
            Problem(
                f"{file}: {found:,} rows are delivered for {table}, and {rows:,} were counted",
                "a load is held to what was counted of it",
                "correct the loader, or leave the file as it is while it is read; nothing came into the table",
            )
        )


def _append(
    platform: Platform, table: str, file: str, batches: Iterator[pa.Table], properties: Mapping[str, str]
) -> Commit | None:
    """Append what a delivery has for a table.

    Raises:
        InputRefused: if it does not have the table's columns.
    """
    try:
        return platform.lakehouse.append(table, batches, properties)
    # of PyIceberg and Arrow, which say it in no other way
    except (KeyError, ValueError, ResolveError, UnsupportedPyArrowTypeException, ArrowException) as error:
        raise InputRefused(
            Problem(
                f"{file}: what is delivered for {table} does not fit it: {error}",
                "a loader delivers Arrow tables with the columns of the table's model, in their types",
                "correct the loader; nothing came into the table",
            )
        ) from error
