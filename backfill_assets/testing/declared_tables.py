"""The declared tables that a trial reads, and whether it is given the rows of each.

Put here what is asked of a trial's tables by name. What their rows must be is `given_rows`'.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import polars as pl

from backfill_assets.declarations.finding import find_products
from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.target import TargetTable
from manifests.errors import InputRefused, Problem


def tables_of(target: TargetTable, inputs: Sequence[InputTable | TargetTable]) -> dict[str, InputTable]:
    """Return the sources and references of a target by name: of `inputs`, or of the registered products where none are given.

    Another target that is a source is one of them, as a table that is read.

    Raises:
        InputRefused: naming those that nobody declares.
    """
    products = () if inputs else find_products(None)
    registered: list[InputTable | TargetTable] = []
    for product in products:
        registered += [*product.inputs, *product.targets]
    given = inputs or registered
    wanted = {*target.every_source, *target.references}
    tables = {table.name: _as_input(table) for table in given if table.name in wanted}
    if missing := sorted(wanted - set(tables)):
        raise InputRefused(
            Problem(
                f"{'; '.join(missing)}: {'none of inputs' if inputs else 'no installed product'} declares it",
                "a trial checks rows against the declared tables that they are of",
                "give the trial the target's source and references: inputs=(SOURCE, REFERENCE)",
            )
        )
    return tables


def _as_input(table: InputTable | TargetTable) -> InputTable:
    if isinstance(table, InputTable):
        return table
    return InputTable(table.name, table.description, table.model, table.owners)


def require_given(named: str, target: TargetTable, references: Collection[str], sources: Collection[str]) -> None:
    """Refuse a trial that lacks the rows of a reference or of a further source, or has some that its target does not read.

    Raises:
        InputRefused: naming each of them.
    """
    problems = []
    for field, what, wanted, given in (
        ("references", "reference", set(target.references), set(references)),
        ("sources", "source beside the first", {one.table for one in target.sources}, set(sources)),
    ):
        said = [
            *(f"the rows of {name} are missing" for name in sorted(wanted - given)),
            *(f"{name} is no {what} of it" for name in sorted(given - wanted)),
        ]
        if said:
            problems.append(
                Problem(
                    f"{named}: {'; '.join(said)}",
                    f"a transform is given each {what} that its target declares, and no other",
                    f"give the trial the rows of those, as `{field}={{name: rows}}`",
                )
            )
    if problems:
        raise InputRefused(problems)


def require_known_versions(target: TargetTable, rows: Mapping[str, pl.DataFrame]) -> None:
    """Refuse rows of a version that the target declares no reader for, as planning does.

    Raises:
        InputRefused: naming each version.
    """
    problems = []
    for name, frame in rows.items():
        readers = target.readers_of(name)
        if readers is None:
            continue
        unknown = set(frame[readers.column].unique().to_list()) - set(readers.by_version)
        if unknown:
            shown = ", ".join(sorted("NULL" if one is None else repr(one) for one in unknown))
            problems.append(
                Problem(
                    f"rows of {name} have {readers.column} {shown}",
                    f"readers know {', '.join('None' if one is None else repr(one) for one in readers.by_version)}",
                    "declare what such rows mean, with a reader of that version, or correct the rows",
                )
            )
    if problems:
        raise InputRefused(problems)
