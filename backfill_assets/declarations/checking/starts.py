"""Mistakes in the states that a target's runs may start from: their table, the day by which rows are in them, versions that fit.

Put here what a target and its table of states say of one another. Whether a run may start from a state is `manifests.starts`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from backfill_assets.declarations.checking.columns import ColumnTypes, of_declared_table, of_kind
from backfill_assets.declarations.checking.names import texts
from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.source_tables import StartsFrom
from backfill_assets.declarations.sql_transforms import SqlTransform
from backfill_assets.declarations.target import TargetTable
from manifests.chunks import Chunking
from manifests.errors import Problem

_DATE = ("a date (pl.Date)", lambda kind: kind == pl.Date)


def of_starts(
    target: TargetTable,
    columns: Mapping[str, ColumnTypes | None],
    tables: Mapping[str, InputTable | TargetTable],
) -> Iterator[Problem]:
    """Say what is wrong with the states that runs of a target may start from; `tables` are all that are declared."""
    starts = target.starts_from
    if starts is None:
        return
    where = f"{target.name}: starts_from"
    yield from of_declared_table(target.name, "starts_from", starts.table, columns)
    taken = {target.name, *target.every_source, *texts(target.references)}
    if starts.table in taken:
        rule = "states to start from are in a table of their own, which nothing else of the target is read from"
        yield Problem(
            f"{starts.table} is the target itself, or a source or a reference of it", rule, "name another", where
        )
    yield from _of_day(target, starts, columns.get(target.source), tables.get(target.source), where)
    states = tables.get(starts.table)
    if isinstance(states, InputTable):
        rule = "a run starts from what was computed, gated and published: from another target"
        yield Problem(f"{starts.table} is an input", rule, "declare the states as a target", where)
    if isinstance(states, TargetTable) and starts.table not in taken:
        yield from _of_states(target, states, where)
        yield from _of_versions(target, starts, states, where)


def _of_day(
    target: TargetTable, starts: StartsFrom, source: ColumnTypes | None, table: object, where: str
) -> Iterator[Problem]:
    """Say that which rows are in a state could not be told, or that none would be read after it."""
    if starts.source_day not in target.look_back_columns:
        yield Problem(
            f"look_back_columns of {target.name} are without {starts.source_day!r}",
            "of earlier rows those after the state are read, by their day",
            f"declare `look_back_columns` with {starts.source_day!r}: a target without look-back reads few rows anyway",
            where,
        )
    if source is None:
        return
    yield from of_kind(target.name, "starts_from", starts.source_day, target.source, source, _DATE)
    model = table.model if isinstance(table, (InputTable, TargetTable)) else None
    if model is not None and starts.source_day in source and model.to_schema().columns[starts.source_day].nullable:
        yield Problem(
            f"{starts.source_day!r} of {target.source} may be empty",
            "a row without a day is in no state, and after none",
            "name a column that is never empty",
            where,
        )


def _of_states(target: TargetTable, states: TargetTable, where: str) -> Iterator[Problem]:
    if states.source != target.source:
        yield Problem(
            f"{states.name} is computed from {states.source}, and {target.name} from {target.source}",
            "a state is what the rows of the target's first source have come to",
            f"name states of {target.source}",
            where,
        )
    if further := [one.table for one in states.sources if not one.for_gates]:
        yield Problem(
            f"{states.name} is computed from {', '.join(further)}, too",
            "that nothing has changed under a state is asked of its one source",
            "compute the states from the first source of the target alone",
            where,
        )
    if states.chunking in {Chunking.WHOLE, Chunking.HOUR} or states.chunk_values is not None or states.has_instants:
        yield Problem(
            f"{states.name} has chunks of {states.chunking}, by {states.day_column or 'nothing'}"
            + ("" if states.chunk_values is None else f" and {states.chunk_values}"),
            "each chunk of days has one state, of its last day, which a column of dates names",
            "cut the table of states by YEAR, MONTH, WEEK or DAY alone, and give it a day column of dates",
            where,
        )


def _of_versions(target: TargetTable, starts: StartsFrom, states: TargetTable, where: str) -> Iterator[Problem]:
    asked = [(target, version) for version in starts.fits]
    asked += [(states, one) for fitting in starts.fits.values() for one in fitting]
    for table, version in asked:
        if version not in table.versions:
            known = ", ".join(map(str, table.versions))
            yield Problem(f"fits names version {version!r} of {table.name}", f"it has {known}", "correct it", where)
    for version in starts.fits:
        if version in target.versions and isinstance(target.versions[version].function, SqlTransform):
            yield Problem(
                f"version {version!r} of {target.name} is a file of SQL",
                "a query names its tables, and the states are there only where a run starts from one",
                "write the version as a function, or take it out of `fits`",
                where,
            )
    if not starts.fits:
        yield Problem(
            "fits is empty", "it says which versions go on from which states", "name a version of each", where
        )
