"""Mistakes in what is declared of tables that keep every version, and of restatements that are proposed from them.

Put here what `Revisions` and `RestatementPolicy` ask of the tables they stand in. The names in a policy, and its transform version,
are `policies`', its gates `gates`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandera.polars as pa
import polars as pl

from backfill_assets.declarations.checking.columns import DATE, INSTANT, ColumnTypes, of_kind
from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.target import TargetTable
from manifests.errors import Problem

_TEXT = ("a text (str)", lambda kind: kind == pl.String)
_WHOLE = ("a whole number (pl.Int32 or pl.Int64)", lambda kind: kind in (pl.Int32, pl.Int64))


def of_revisions(table: InputTable, own: ColumnTypes) -> Iterator[Problem]:
    """Say which columns an input table names for its versions that it has not, or that cannot tell versions apart."""
    revisions = table.revisions
    if revisions is None:
        return
    kinds = {"valid": DATE, "system": INSTANT, "version": _TEXT, "sequence": _WHOLE}
    named = {name: column for name in kinds if (column := getattr(revisions, name)) is not None}
    for name, column in named.items():
        yield from of_kind(table.name, f"revisions.{name}", column, table.name, own, kinds[name])
    for column in sorted({column for column in named.values() if column in own and _may_be_null(table.model, column)}):
        yield Problem(
            f"{column!r} of {table.name} may be NULL",
            "a row without its day, its instant or its version belongs to no version",
            "take nullable=True off the column",
            f"{table.name}: revisions",
        )
    if table.is_reference or table.quarantine_of:
        yield Problem(
            f"{table.name} is a {'reference table' if table.is_reference else 'quarantine'}",
            "versions of a day are kept in a table that loads append to",
            "leave revisions out" + ("; a reference table has named versions" if table.is_reference else ""),
            f"{table.name}: revisions",
        )


def _may_be_null(model: type[pa.DataFrameModel], column: str) -> bool:
    return bool(model.to_schema().columns[column].nullable)


def of_restated(target: TargetTable, inputs: Mapping[str, InputTable]) -> Iterator[Problem]:
    """Say why no restatement of a target can be proposed: nothing says which days a newer version of its source changes."""
    if target.restated is None:
        return
    where = f"{target.name}: restated"
    source = inputs.get(target.source)
    if source is None or source.revisions is None:
        yield Problem(
            f"{target.source} does not say which rows supersede which",
            "a restatement is proposed for the days of which the source has a newer version",
            "declare revisions=ba.Revisions(...) of the source, or leave restated out",
            where,
        )
    elif source.revisions.valid != target.source_time_column:
        yield Problem(
            f"source_time_column is {target.source_time_column!r}, and versions are of a day in {source.revisions.valid!r}",
            "the days that a version is about are those by which the target reads the rows",
            f"read the source by {source.revisions.valid!r}, or leave restated out",
            where,
        )
    if target.look_back_columns:
        yield Problem(
            f"{target.name} reads {', '.join(target.look_back_columns)} of every earlier row",
            "a newer version of a day would change every day after it, whichever that is",
            "leave restated out: a person says what is to be restated",
            where,
        )
