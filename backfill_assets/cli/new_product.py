"""A product that somebody begins with: `backfill new-product`.

Put here what is asked and what is said. What is written, and what is guessed, is `operations.new_product`'s.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.base import json_option, opened_platform, say, tell
from manifests.errors import InputRefused, Problem

if TYPE_CHECKING:
    from backfill_assets.operations.new_product.drafts import Draft, Likeness, Source

_APPROVER = "'somebody else'"


@click.command("new-product")
@click.argument("name")
@click.option("--source", metavar="NS.TABLE", help="Compute from this table of the catalog, of whoever fills it.")
@click.option("--from-table", metavar="NS.TABLE", help="Declare the columns, key and partitions that this table has.")
@click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path),
    help="Compute from this CSV or Parquet file, which `backfill load` is to bring in.",
)
@click.option(
    "--time", "time_column", metavar="COLUMN", help="When a row happened. Default: the first instant of its columns."
)
@click.option("--sql", "is_sql", is_flag=True, help="Write the transform as a file of SQL.")
@json_option
def new_product(
    name: str,
    source: str | None,
    from_table: str | None,
    file: Path | None,
    time_column: str | None,
    is_sql: bool,
    as_json: bool,
) -> None:
    """Write a product NAME that runs as it is: the folder NAME-product, with its declaration, transform, first manifest and test.

    Alone it is a small example with rows to load. With --file or --source its rows are counted by day and by what they are
    about, which is right of any table; with --from-table a target has the columns of that one, copied from --source as far as it
    has them. Nothing is computed that nobody has asked for.

    What is guessed is marked `review` in the files, and what is guessed from the data is listed here: read all of it before
    somebody approves the first run. The folder is a distribution of its own: commit it and install it as the last lines say.
    Nothing is written over; all files are written, or none.
    """
    from backfill_assets.operations.new_product import folders
    from backfill_assets.operations.new_product.drafts import draft

    folder = folders.folder_of(name)
    folders.require_new(name, folder)
    found, like = _looked_up(name, source, from_table, file, time_column)
    made = draft(name, found, like, is_sql=is_sql)
    files = folders.write(made, folder)
    following = _next(made, folders.manifest_name(made), folders.run_id(made))
    if as_json:
        say({"folder": str(folder.resolve()), "files": files, "review": made.guessed, "next": following})
        return
    tell(f"written: {folder.resolve()}")
    for one in files:
        tell(f"  {one}")
    if made.guessed:
        tell("look at these, and at whatever else is marked `review` in the files:")
    for text in made.guessed:
        tell(f"  {text}")
    tell("what comes next:")
    for line in following:
        tell(f"  {line}")


def _looked_up(
    name: str, source: str | None, from_table: str | None, file: Path | None, time_column: str | None
) -> tuple[Source | None, Likeness | None]:
    """Return what a product is to be made from; tables are looked up in the installation."""
    if file is not None and source is not None:
        raise InputRefused(
            Problem("both --file and --source were given", "rows come from one of them", "leave one of them out")
        )
    if source is not None and source == from_table:
        raise InputRefused(
            Problem(
                f"{source} was given as --source and as --from-table",
                "rows are read of one table and written to another",
                "name the table that its rows are computed from as --source, or leave it out",
            )
        )
    if time_column is not None and file is None and source is None:
        raise InputRefused(
            Problem(
                "--time was given without --file or --source",
                "it names one of their columns",
                "name one, or leave it out",
            )
        )
    delivered = None if file is None else _of_file(name, file, time_column)
    if source is None and from_table is None:
        return delivered, None
    from backfill_assets.operations.new_product.guesses import INSTANT
    from backfill_assets.operations.new_product.tables import likeness_of, source_of

    with opened_platform() as platform:
        found = delivered if source is None else source_of(platform, source, time_column)
        if found is not None and time_column is not None:
            _require_instant(found.table, {one.name for one in found.columns if one.kind == INSTANT}, time_column)
        return found, None if from_table is None else likeness_of(platform, from_table)


def _of_file(name: str, file: Path, wanted: str | None) -> Source:
    """Return a file as the source of a new product: the table that it is to be loaded into."""
    from backfill_assets.ingestion.guessed_columns import guessed_columns
    from backfill_assets.operations.new_product.drafts import Source
    from backfill_assets.operations.new_product.guesses import NamedColumn, time_column_of

    found = guessed_columns(file)
    columns = tuple(NamedColumn(one.name, one.kind, one.nullable, repeats=one.repeats) for one in found)
    if wanted is not None:
        _require_instant(str(file), {one.name for one in found if one.days is not None}, wanted)
    time_column, _ = time_column_of(columns, wanted)
    days = next((one.days for one in found if one.name == time_column), None)
    partitioned_by = next((one.name for one in found if one.name == time_column and not one.nullable), None)
    return Source(
        f"bronze.{name}_rows", columns, days, partitioned_by=partitioned_by, time_column=wanted, file=str(file)
    )


def _require_instant(what: str, instants: Collection[str], wanted: str) -> None:
    """Refuse a column that does not say when a row happened."""
    if wanted not in instants:
        raise InputRefused(
            Problem(
                f"--time is {wanted}, which is no instant of {what}",
                f"rows are placed in time by an instant: {', '.join(sorted(instants)) or 'it has none'}",
                "name one of these",
            )
        )


def _next(draft: Draft, manifest: str, run: str) -> list[str]:
    """Return the commands that follow, for the folder that the product's folder is in."""
    from backfill_assets.operations.new_product import folders
    from backfill_assets.operations.new_product.drafts import SAMPLE

    folder, file = folders.folder_of(draft.name), draft.source.file
    loaded = str(folder / file) if file == SAMPLE else file
    return [
        f"git -C {folder} init --quiet && git -C {folder} add . && git -C {folder} commit --quiet -m 'As it was begun'",
        f"pip install --no-deps --no-build-isolation --editable {folder}",
        f"python -m pytest {folder}",
        "backfill init",
        *([f"backfill load {draft.source.table} {shlex.quote(loaded)}"] if loaded else []),
        f"backfill plan {folder}/{manifest}",
        f"backfill approve {run} --by {_APPROVER}",
        f"backfill run {run}",
    ]
