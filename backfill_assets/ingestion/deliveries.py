"""Loading what a product's own loader delivers; safe to repeat after a crash.

Put here what becomes of a delivery. What its raw rows mean is the product's; files that have the columns of their table
are `ingestion.table_loads`'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyarrow.lib import ArrowException
from pyiceberg.exceptions import ResolveError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

from backfill_assets import faults
from backfill_assets.declarations.deliveries import Counted, Delivery
from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.quarantine import WITHHELD, Rejections, limit_problems
from backfill_assets.ingestion.columns_in_place import require_declared_columns
from backfill_assets.ingestion.held_tables import HeldTable, held_to_load
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


def load_delivery(
    platform: Platform, table: str, delivery: Delivery, limit: float, *, held: HeldTable | None = None
) -> Loaded:
    """Load raw rows: classify all of them, refuse a load of too many unknowns, then append what is known.

    Args:
        platform: the opened installation.
        table: the input table that they come into.
        delivery: what to load.
        limit: share of the rows that may be quarantined, 0 to 1.
        held: the table, by who holds it already; None: it is held while this load is made.

    Raises:
        InputRefused: if the load is damaged or too much of it cannot be classified, or if the table is a quarantine, or a
            reference table; nothing is written then.
        EnvironmentRefused: if the table, or its quarantine, does not have the columns of its model.
        LeaseHeld: if somebody else loads into the table, releases rows or takes a load back, for longer than is waited for.
        LeaseLost: if this process stood still for so long that somebody else has taken the table over; the same command again.
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
    reasons = Rejections(Counter(counted.by_reason), dict(counted.first))
    if problems := limit_problems(declared, delivery.source_file, reasons, total, limit, withheld=withheld):
        raise InputRefused(problems)
    if held is not None:
        return _append(platform, declared, delivery, at, counted, held)
    with held_to_load(platform, table) as mine:
        return _append(platform, declared, delivery, at, counted, mine)


def _append(
    platform: Platform, declared: InputTable, delivery: Delivery, at: datetime, counted: Counted, held: HeldTable
) -> Loaded:
    """Append what was counted of a delivery.

    The quarantine comes first: if this stops between the two, the repetition appends what is missing, and nothing twice.
    """
    table, token = declared.name, held.token
    to_make = load_to_make(platform.lakehouse.loads(table), delivery.load_id)
    load_id = to_make.load_id if to_make.before is None else to_make.before.load_id
    properties: dict[str, Any] = {
        LOAD_PROPERTY: load_id,
        FILE_PROPERTY: delivery.source_file,
        ACTOR_PROPERTY: operator(),
        REJECTED_PROPERTY: str(counted.quarantined),
    }
    quarantine = platform.products.quarantine_of(declared).name
    part = None
    if to_make.before is None:
        part = part_to_append(platform, quarantine, load_id, counted.by_reason, counted.first, token=token)
    if part is not None:
        rejected = as_counted(
            held.keeping(delivery.quarantined(at)), counted.quarantined, delivery.source_file, quarantine
        )
        append_delivered(platform, quarantine, delivery.source_file, rejected, {**properties, **part}, token=token)
    faults.reach("loading.quarantined")
    rows = as_counted(held.keeping(delivery.rows(at)), counted.events, delivery.source_file, table)
    commit = append_delivered(platform, table, delivery.source_file, rows, properties, token=token)
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


def as_counted(batches: Iterator[pa.Table], rows: int, file: str, table: str) -> Iterator[pa.Table]:
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


def append_delivered(
    platform: Platform,
    table: str,
    file: str,
    batches: Iterator[pa.Table],
    properties: Mapping[str, str],
    *,
    token: int | None = None,
) -> Commit | None:
    """Append what a delivery has for a table, under the lease of a token if one is given.

    Raises:
        InputRefused: if it does not have the table's columns.
        LeaseLost: if the token is fenced.
    """
    try:
        return platform.lakehouse.append(table, batches, properties, token=token)
    # of PyIceberg and Arrow, which say it in no other way
    except (KeyError, ValueError, ResolveError, UnsupportedPyArrowTypeException, ArrowException) as error:
        raise InputRefused(
            Problem(
                f"{file}: what is delivered for {table} does not fit it: {error}",
                "a loader delivers Arrow tables with the columns of the table's model, in their types",
                "correct the loader; nothing came into the table",
            )
        ) from error
