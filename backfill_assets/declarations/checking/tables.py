"""Mistakes that every table can make, and those of an input table.

Put here what is asked of a table because it is one. What only a target declares is `targets`'.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from backfill_assets.declarations.checking.columns import (
    INSTANT,
    ColumnTypes,
    of_declared_table,
    of_kind,
    of_unique,
    without_type,
)
from backfill_assets.declarations.checking.models import of_values
from backfill_assets.declarations.checking.names import no_tuple, texts
from backfill_assets.declarations.column_history import former_name_problems
from backfill_assets.declarations.sinks import PLATFORM_TABLES
from backfill_assets.declarations.target import InputTable, TargetTable
from manifests.errors import Problem

OWNER = re.compile(r"team:.*\S.*|.*\S@\S.*")
_NAME = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*")


def of_input(table: InputTable, columns: Mapping[str, ColumnTypes | None]) -> Iterator[Problem]:
    """Say what is wrong with the declaration of an input table."""
    own = columns[table.name]
    yield from of_every_table(table)
    if own is None:
        return
    yield from without_type(table.name, own)
    yield from of_unique(table.name, table.model)
    yield from of_values(table.name, table.model, own)
    yield from former_name_problems(table.name, table.model)
    if table.partition_by is not None:
        yield from of_kind(table.name, "partition_by", table.partition_by, table.name, own, INSTANT)
    if table.quarantine_of:
        yield from of_declared_table(table.name, "quarantine_of", table.quarantine_of, columns)
        if table.quarantine_of == table.name:
            rule = "a quarantine has the rows that another table refuses"
            yield Problem(f"{table.name} is its own quarantine", rule, "leave it out", f"{table.name}: quarantine_of")


def of_every_table(table: InputTable | TargetTable) -> Iterator[Problem]:
    """Say what is wrong with the name or the owners of a table."""
    yield from of_name(table.name, f"{table.name}: name")
    if isinstance(table.owners, str) and table.owners.strip(" ,"):
        yield no_tuple(f"{table.name}: owners", "owners is", table.owners)
        return
    wrong = [owner for owner in texts(table.owners) if not OWNER.fullmatch(owner)]
    if wrong or not table.owners or isinstance(table.owners, str):
        yield Problem(
            f"owners={table.owners!r}",
            "an owner is team:NAME or an e-mail address, and a table has one or more",
            'for example owners=("team:metering",)',
            table.name,
        )


def of_name(name: str, where: str) -> Iterator[Problem]:
    """Say that a table cannot have its name."""
    if not _NAME.fullmatch(name):
        yield Problem(
            f"a table is named {name!r}",
            "a table's name is <namespace>.<table>, of letters, digits and underscores",
            "for example silver.meter_daily",
            where,
        )
    if name in PLATFORM_TABLES:
        yield Problem(
            f"{name} is a table of the platform's own", "a name stands for one table", "give it another", where
        )
