"""What a table said at an instant of its producer's time: the rows of the version of each day that was in force then.

Put here what is looked up in a table that keeps every version (`declarations.revisions`). The answer comes from the rows that the
table has now, since none of them is ever replaced: what was published since, which snapshots have expired, and when the versions
were loaded make no difference. Without Spark; memory is that of the days, and of one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any

import polars as pl
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    In,
    LessThanOrEqual,
)

from backfill_assets.declarations.key_texts import parse_columns
from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.revisions import KnownVersion, Revisions, in_force, of_versions
from backfill_assets.installation import Platform
from manifests.errors import InputRefused, Problem
from manifests.model import DayRange

_MOST_NAMED = 200
"""Versions that a read is filtered by; of more, all rows of their days are read."""


@dataclass(frozen=True)
class AsOf:
    """What was said at an instant, about some days.

    Attributes:
        table: the table; `snapshot_id` is the one that was read, None of a table without any.
        system_time: the instant: what was said later is left out.
        days: the days asked about; None for all of them.
        versions: the version in force of each day of which anything was said by then, in order of days.
        where: the values of columns that rows have, where not all were asked for.
    """

    table: InputTable
    snapshot_id: int | None
    system_time: datetime
    days: DayRange | None
    versions: Mapping[date, KnownVersion]
    where: Mapping[str, Any]


def versions_at(
    platform: Platform, table: str, system_time: datetime, days: DayRange | None, columns: Sequence[str]
) -> AsOf:
    """Return which version of each day was in force at an instant.

    Args:
        platform: the opened installation.
        table: an input table that keeps every version.
        system_time: an instant with its offset.
        days: the days asked about, both inclusive; None for all.
        columns: `column=value` of the rows asked for; none for all.

    Raises:
        InputRefused: if the table is not declared, or keeps no versions; if the policy protects it; of columns that it has not.
    """
    declared = platform.products.input(table)
    revisions = _revisions(platform, declared)
    where = parse_columns(declared.name, declared.model, columns)
    snapshot_id = platform.lakehouse.snapshot_id(declared.name)
    found: Mapping[date, KnownVersion] = {}
    if snapshot_id is not None:
        said = And(_within(revisions, days), LessThanOrEqual(term=revisions.system, value=system_time.isoformat()))
        rows = platform.lakehouse.batches(declared.name, snapshot_id, said, revisions.columns)
        found = in_force(revisions, rows, system_time)
    return AsOf(declared, snapshot_id, system_time, days, dict(sorted(found.items())), where)


def rows_at(platform: Platform, asked: AsOf) -> Iterator[pl.DataFrame]:
    """Yield the rows of those versions, file by file."""
    revisions = asked.table.revisions
    if revisions is None or asked.snapshot_id is None or not asked.versions:
        return
    named = {one.version for one in asked.versions.values()}
    # a table may have days that nobody can ask about: they are told all the same
    terms = [_within(revisions, DayRange.model_construct(start=min(asked.versions), end=max(asked.versions)))]
    terms += [In(term=revisions.version, literals=named)] if len(named) <= _MOST_NAMED else []
    terms += [EqualTo(term=name, value=_literal(value)) for name, value in asked.where.items()]
    for batch in platform.lakehouse.batches(asked.table.name, asked.snapshot_id, _all_of(terms)):
        frame = pl.from_arrow(batch)
        assert isinstance(frame, pl.DataFrame)
        if not (rows := of_versions(revisions, frame, asked.versions)).is_empty():
            yield rows


def _revisions(platform: Platform, table: InputTable) -> Revisions:
    problems = []
    if table.revisions is None:
        kept = [one.name for one in platform.products.inputs if one.revisions is not None]
        problems.append(
            Problem(
                f"{table.name} does not say which rows supersede which",
                "what was said at an instant is told of tables that keep every version: "
                + (", ".join(kept) or "no product declares one"),
                "ask one of them, or declare revisions=ba.Revisions(...) of this one; what readers of a target had is told by "
                "`backfill explain`, key by key",
            )
        )
    if platform.policy.protects(table.name):
        problems.append(
            Problem(
                f"the policy protects columns or subjects of {table.name}",
                "its rows are shown to no one as they came",
                "ask a target that is computed from it",
            )
        )
    if problems or table.revisions is None:
        raise InputRefused(problems)
    return table.revisions


def _within(revisions: Revisions, days: DayRange | None) -> BooleanExpression:
    if days is None:
        return AlwaysTrue()
    first, last = days.start.isoformat(), days.end.isoformat()
    return And(GreaterThanOrEqual(term=revisions.valid, value=first), LessThanOrEqual(term=revisions.valid, value=last))


def _all_of(terms: Sequence[BooleanExpression]) -> BooleanExpression:
    return terms[0] if len(terms) == 1 else And(*terms)


def _literal(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date | time) else value
