"""Mistakes in the SQL of a target's transform: what it reads that is not declared, and what no transform may ask.

Put here what is said of a query beside its declaration. What is known of the query alone is `declarations.sql_reading`'s to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal

from backfill_assets.declarations.checking.names import did_you_mean, texts
from backfill_assets.declarations.checking.table_fields import in_words
from backfill_assets.declarations.product import Product
from backfill_assets.declarations.source_tables import SourceTable
from backfill_assets.declarations.sources import sources_of
from backfill_assets.declarations.sql_transforms import CONTEXT_PARAMETERS, LOOK_BACK, SOURCE, SqlTransform
from backfill_assets.declarations.target import TargetTable, TransformVersion
from manifests.errors import Problem

_PARAMETER_KINDS = (str, bool, int, float, Decimal, date, datetime)


def of_sql(target: TargetTable) -> Iterator[Problem]:
    """Say what is wrong with each version of a target's transform that is a file of SQL."""
    for name, function in _queries(target):
        where = f"{target.name}: versions[{name!r}]"
        if function.unread:
            yield Problem(
                f"{function.file} cannot be read: {function.unread}",
                "the file lies beside the module that declares it, and is text in UTF-8",
                "correct the name; the module is `__name__`",
                where,
            )
            continue
        reading = function.reading
        for found in reading.problems:
            yield Problem(found.what, found.rule, found.fix, f"{where}, {function.file} line {found.line}")
        if not any(one.rule.startswith("what it reads") for one in reading.problems):
            yield from _of_tables(target, function, where)
            yield from _of_parameters(target, function, where)


def of_sql_files(product: Product) -> Iterator[Problem]:
    """Say of each file of SQL that it is not among the code that a plan names: a change of it would void none."""
    for target in product.targets:
        for name, function in _queries(target):
            if function.unread or function.path in {file.resolve() for file in sources_of(product).files().values()}:
                continue
            yield Problem(
                f"{function.file} is no part of the code of product {product.name}",
                "a plan names the files of the product's packages, and a change of them voids it",
                f"put it into a package: make {function.module.rpartition('.')[2]} one, or name the package in `code`",
                f"{target.name}: versions[{name!r}]",
            )


def _queries(target: TargetTable) -> list[tuple[str, SqlTransform]]:
    return [
        (str(name), version.function)
        for name, version in target.versions.items()
        if isinstance(version, TransformVersion) and isinstance(version.function, SqlTransform)
    ]


def _of_tables(target: TargetTable, function: SqlTransform, where: str) -> Iterator[Problem]:
    """Say which tables a query reads that it is not given, and that it reads nothing of its source."""
    further = [one.table for one in target.sources if isinstance(one, SourceTable)]
    views = [SOURCE, *([LOOK_BACK] if target.look_back_columns else []), *further, *texts(target.references)]
    given = {str(name).lower() for name in views}
    for table in function.reading.tables:
        if table.name in given:
            continue
        of_itself = {target.source: SOURCE, LOOK_BACK: "look_back_columns"}.get(table.name)
        way_out = {
            SOURCE: "write `source`: the rows that are read of it",
            "look_back_columns": "declare `look_back_columns`, the columns that are read of earlier rows",
        }.get(
            of_itself or "",
            "declare it as a reference table, in `references`, or as a source, in `sources`, or take it out",
        )
        yield Problem(
            f"it reads {table.name}" + ("" if of_itself else did_you_mean(table.name, views)),
            f"a transform reads what it is given: {', '.join(views)}",
            way_out,
            f"{where}, {function.file} line {table.line}",
        )
    for name in (name for name in views if str(name).lower() in function.reading.own):
        yield Problem(
            f"it gives a common table expression the name {name}",
            "that is the name of a view that it is given",
            "give it another name",
            f"{where}, {function.file} line {function.reading.own[str(name).lower()]}",
        )
    if not any(table.name == SOURCE for table in function.reading.tables) and SOURCE not in function.reading.own:
        yield Problem(
            "it does not read `source`",
            f"rows are computed from the source, {target.source}",
            "read it: FROM source",
            f"{where}, {function.file}",
        )


def _of_parameters(target: TargetTable, function: SqlTransform, where: str) -> Iterator[Problem]:
    """Say which parameters of a query nobody gives, or not as one value."""
    known = [*CONTEXT_PARAMETERS, *(name for name in target.configuration if isinstance(name, str))]
    for name, line in function.reading.parameters.items():
        place = f"{where}, {function.file} line {line}"
        if name not in known:
            yield Problem(
                f"nobody gives :{name}" + did_you_mean(name, known),
                f"parameters are {', '.join(known)}",
                "correct the name, or give it in `configuration`",
                place,
            )
        elif name in target.configuration and name in CONTEXT_PARAMETERS:
            yield Problem(
                f"configuration has {name}",
                "a parameter of that name is the run's own",
                "give it another name in `configuration`",
                place,
            )
        elif name in target.configuration and not isinstance(target.configuration[name], _PARAMETER_KINDS):
            yield Problem(
                f":{name} is {in_words(target.configuration[name])}",
                "a parameter is one text, number, truth, day or instant",
                "give its parts one by one in `configuration`",
                place,
            )
