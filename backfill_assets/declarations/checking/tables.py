"""Mistakes that every table can make, and those of an input table.

Put here what is asked of a table because it is one. What only a target declares is `targets`'.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from backfill_assets.declarations.checking.columns import (
    INSTANT,
    ColumnTypes,
    of_declared_table,
    of_kind,
    of_unique,
    without_type,
)
from backfill_assets.declarations.checking.logs import of_log
from backfill_assets.declarations.checking.models import of_values
from backfill_assets.declarations.checking.names import NAME_WORDS, is_name, names_of, no_tuple, texts
from backfill_assets.declarations.checking.revisions import of_revisions
from backfill_assets.declarations.checking.table_fields import in_words
from backfill_assets.declarations.column_history import former_name_problems
from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.sinks import PLATFORM_TABLES
from backfill_assets.declarations.target import TargetTable
from manifests.errors import Problem

OWNER = re.compile(r"team:.*\S.*|.*\S@\S.*")
_NAME = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*")


def of_input(table: InputTable, columns: Mapping[str, ColumnTypes | None]) -> Iterator[Problem]:
    """Say what is wrong with the declaration of an input table."""
    own = columns[table.name]
    yield from of_every_table(table)
    yield from _of_limits(table)
    if own is None:
        return
    yield from without_type(table.name, own)
    yield from of_unique(table.name, table.model)
    yield from of_values(table.name, table.model, own)
    yield from former_name_problems(table.name, table.model)
    yield from of_revisions(table, own)
    yield from of_log(table, own)
    if table.partition_by is not None:
        yield from of_kind(table.name, "partition_by", table.partition_by, table.name, own, INSTANT)
    if table.quarantine_of:
        yield from of_declared_table(table.name, "quarantine_of", table.quarantine_of, columns)
        if table.quarantine_of == table.name:
            rule = "a quarantine has the rows that another table refuses"
            yield Problem(f"{table.name} is its own quarantine", rule, "leave it out", f"{table.name}: quarantine_of")


def _of_limits(table: InputTable) -> Iterator[Problem]:
    """Say which limits a table declares for a quarantine that it has not."""
    if not (table.is_reference or table.quarantine_of):
        return
    what = (
        f"the quarantine of {table.quarantine_of}"
        if table.quarantine_of
        else "a reference table, which has no quarantine"
    )
    for name, value in (
        ("quarantine_limits", table.quarantine_limits),
        ("quarantine_age_days", table.quarantine_age_days),
    ):
        if value:
            yield Problem(
                f"{name} of {table.name}, which is {what}",
                "limits are declared of the table whose rows are quarantined",
                f"declare it of {table.quarantine_of}" if table.quarantine_of else "leave it out",
                f"{table.name}: {name}",
            )


def in_problems(kind: str, name: Any) -> str:
    """Return how what is declared is called in a problem: by its name, where that is one."""
    return f"{kind} {name}" if is_name(name) else f"a {kind}"


def of_setting_name(kind: str, name: Any, example: str, shown: Callable[[Any], str] = in_words) -> Iterator[Problem]:
    """Say that what is declared has a name that no setting can be called by; `shown` says how it is quoted."""
    if not is_name(name):
        rule = f"a {kind} is named by {NAME_WORDS}"
        yield Problem(f"name is {shown(name)}", rule, f"for example {example}", in_problems(kind, name))


def of_owners(owners: Any, whose: str, where: str, shown: Callable[[Any], str] = in_words) -> Iterator[Problem]:
    """Say that what is declared, in words `whose`, has no owners, or some that are none; `shown` says how they are quoted."""
    if isinstance(owners, str) or not names_of(owners) or any(not OWNER.fullmatch(str(one)) for one in owners):
        rule = f"an owner is team:NAME or an e-mail address, and {whose} has one or more"
        yield Problem(f"owners={shown(owners)}", rule, 'for example owners=("team:metering",), a tuple', where)


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
