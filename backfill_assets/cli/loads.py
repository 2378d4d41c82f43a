"""Commands that bring input in and take it back: `load`, `loads`, `unload`.

Put here arguments, output and exit codes. What a load is, is `ingestion.table_loads`' and `ingestion.deliveries`'; what a
product's own files are, its loader's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.apis import of_feed
from backfill_assets.cli.base import json_option, opened_instance, opened_platform, say, show, tell
from manifests.errors import InputRefused, Problem
from manifests.text import visible

if TYPE_CHECKING:
    from backfill_assets.declarations.deliveries import Delivery, Loader
    from backfill_assets.ingestion.table_loads import QuarantinedRows
    from resources.lakehouse.loads import Load


class _Tables(click.Group):
    """The products' own loaders by their names, and every declared input table by its own."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is Click's
        return sorted([*_own_loaders(), *_feeds()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if "." in cmd_name:
            return _of_table(cmd_name)
        if (declared := _own_loaders().get(cmd_name)) is not None:
            return _of_loader(cmd_name, *declared)
        return of_feed(cmd_name) if re.fullmatch(r"\w+", cmd_name) else None

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "TABLE FILE [OPTIONS]")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show what a load of a table can be told, which is the same for every table."""
        options = [parameter for parameter in _of_table("TABLE").params if isinstance(parameter, click.Option)]
        with formatter.section("Options of TABLE FILE"):
            formatter.write_dl([record for option in options if (record := option.get_help_record(ctx)) is not None])
        super().format_options(ctx, formatter)


@click.group(cls=_Tables)
def load() -> None:
    """Load FILE (Parquet, or CSV in UTF-8 with a header line) into the declared input TABLE.

    \b
      backfill load bronze.meter_readings readings.parquet
      backfill load reference.tariffs tariffs.csv --version 2026-11
      backfill load bronze.meter_readings readings.parquet --if-new --json      from a script

    Every row is held against the table's model before anything is written: types, nulls, ranges, row rules, unique keys. A
    row that is not accepted goes to TABLE_quarantine with its reason; a load with too many of them is refused whole
    (setting quarantine_limit), and so is content that was loaded before. A reference table is replaced as a whole, as a
    named version; content that another load has replaced since comes back with --again.

    What `backfill extract FEED` has asked a server for is loaded by `backfill load FEED`, from the archive.
    `backfill loads TABLE` lists what was loaded; `backfill unload TABLE LOAD` takes a load back.
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph


def _of_table(table: str) -> click.Command:
    @click.command(table)
    @click.argument("file", type=click.Path(path_type=Path))
    @click.option(
        "--version", help="Name of this version of a reference table. Default: the start of its content's hash."
    )
    @click.option(
        "--if-new",
        is_flag=True,
        help="Do nothing, and succeed, if this content was loaded before, also if it was taken back since.",
    )
    @click.option(
        "--again", is_flag=True, help="Put content back into a reference table that another load has replaced since."
    )
    @json_option
    def load_table(file: Path, version: str | None, if_new: bool, again: bool, as_json: bool) -> None:
        from backfill_assets.defs.launch import report_inputs
        from backfill_assets.ingestion.table_loads import load_file

        with opened_platform() as platform, opened_instance(platform.settings) as instance:
            done = load_file(platform, table, file, version=version, if_new=if_new, again=again)
            report_inputs(platform, instance)
        if as_json:
            say(done)
            return
        if done.load.undone_by is not None:
            why = f" ({done.load.undone_because})" if done.load.undone_because else ""
            tell(f"{file.name}: loaded before, and taken back by {done.load.undone_by}{why}; nothing was appended")
        elif not done.new:
            tell(f"{file.name}: loaded before, nothing was appended")
        else:
            tell(f"{file.name}: {done.load.rows:,} rows loaded, {done.load.quarantined:,} quarantined")
        for reason, number in done.by_reason.items():
            first = done.first[reason].in_words(reason)
            tell(f"  quarantined {reason}: {number:,}, first in {first}")
        if done.by_reason:
            name = platform.products.quarantine_of(platform.products.input(table)).name
            tell(f"  in {name}, rows counted from 0; to see them: backfill loads {table} --quarantine")
        version = f", version {done.load.version}" if done.load.version else ""
        tell(f"  {table}: load {done.load.load_id}, snapshot {done.load.snapshot_id}{version}")

    load_table.__doc__ = f"Load FILE into {table}: see `backfill load --help`."
    load_table.help = load_table.__doc__
    return load_table


def _feeds() -> list[str]:
    """Return the names of the feeds from servers that products declare."""
    from backfill_assets.installation import Platform
    from resources.settings import load_settings

    return list(Platform.of(load_settings()).products.apis)


def _own_loaders() -> dict[str, tuple[str, str]]:
    """Return the loaders that products declare: the product's name and the import path, by the command's name."""
    from backfill_assets.installation import Platform
    from resources.settings import load_settings

    products = Platform.of(load_settings()).products
    return {name: (product.name, path) for product in products for name, path in product.loaders.items()}


def _of_loader(name: str, product: str, path: str) -> click.Command:
    """Make the command of a product's own loader."""
    from backfill_assets.declarations.finding import imported_loader

    loader = imported_loader(path, product)

    @click.command(name)
    @click.argument("file", required=False, type=click.Path(path_type=Path))
    @click.option("--cases", type=click.IntRange(1, 10_000_000), help="Generate this many instead of reading a file.")
    @click.option(
        "--seed", type=int, default=1, show_default=True, help="Seed of the generator; equal seeds give equal rows."
    )
    @json_option
    def bring_in(file: Path | None, as_json: bool, cases: int | None = None, seed: int = 1) -> None:
        source = _opened(name, loader, file, cases, seed)
        _bring_in(loader.table, source, as_json)

    if loader.generated is None:
        bring_in.params = [one for one in bring_in.params if one.name not in {"cases", "seed"}]
    bring_in.help = (
        f"{loader.description}\n\nSafe to repeat: the same content is loaded once. A load with too many unknown rows is "
        "refused whole (setting quarantine_limit)."
    )
    return bring_in


def _opened(name: str, loader: Loader, file: Path | None, cases: int | None, seed: int) -> Delivery:
    from backfill_assets.ingestion.own_loaders import delivered

    if file is not None and cases is None:
        path = file
        return delivered(name, lambda: loader.from_file(path), path)
    if file is None and cases is not None and loader.generated is not None:
        make, number = loader.generated, cases
        return delivered(name, lambda: make(number, seed))
    raise InputRefused(
        Problem(
            "give a FILE or --cases, one of them" if loader.generated else "give a FILE",
            "a load has one source",
            f"see `backfill load {name} --help`",
        )
    )


def _bring_in(table: str, source: Delivery, as_json: bool) -> None:
    from backfill_assets.defs.launch import report_inputs
    from backfill_assets.ingestion.deliveries import load_delivery

    with opened_platform() as platform, opened_instance(platform.settings) as instance:
        done = load_delivery(platform, table, source, platform.settings.quarantine_limit)
        report_inputs(platform, instance)
        quarantine = platform.products.quarantine_of(platform.products.input(table)).name
    if as_json:
        say(done)
        return
    tell(
        f"{source.source_file}: {done.counted.events:,} events, {done.counted.quarantined:,} quarantined"
        + ("" if done.new else "; loaded before, nothing was appended")
    )
    for reason, number in done.counted.by_reason.items():
        first = done.counted.first[reason]
        tell(f"  quarantined {reason}: {number:,}, first in {first.in_words(reason)}")
    if done.counted.by_reason:
        tell(f"  in {quarantine}, rows counted from 0; to see them: backfill loads {table} --quarantine")
    tell(f"  {table}: snapshot {done.snapshot_id}")


_QUARANTINED = 20


@click.command()
@click.argument("table")
@click.option("--quarantine", is_flag=True, help="Show rows of the table's quarantine instead.")
@click.option("--limit", type=click.IntRange(1, 100_000), help=f"At most so many of them. Default: {_QUARANTINED}.")
@json_option
def loads(table: str, quarantine: bool, limit: int | None, as_json: bool) -> None:
    """List the loads of an input TABLE, oldest first: when, from which file, by whom, and which were taken back.

    With --quarantine, the rows that its loads did not bring in: file, number of the row in it (from 0), the rule it breaks,
    the offending value, and the row as it came. Values are withheld where the policy protects columns of the table.
    """
    from backfill_assets.ingestion.table_loads import quarantined_rows

    if limit is not None and not quarantine:
        raise InputRefused(
            Problem(
                "--limit was given without --quarantine", "all loads are listed", "add --quarantine, or leave it out"
            )
        )
    with opened_platform() as platform:
        if quarantine:
            rows = quarantined_rows(platform, table, limit or _QUARANTINED)
            if as_json:
                say(rows)
            else:
                _show_quarantined(rows)
            return
        found = platform.lakehouse.loads(platform.products.input(table).name)
    if as_json:
        say(found)
    elif not found:
        tell(f"{table}: nothing was loaded")
    else:
        show(_listed(table, found))


def _show_quarantined(found: QuarantinedRows) -> None:
    from backfill_assets.cli.terminal import Table

    if not found.total:
        tell(f"{found.table}: no rows")
        return
    shown = Table(title=f"{len(found.rows):,} of {found.total:,} rows of {found.table}", title_justify="left")
    shown.add_column("file")
    shown.add_column("row", justify="right")
    columns = ("reason", "detail", "record")
    for column in columns[:1] if found.withheld else columns:
        shown.add_column(column, overflow="fold")
    for row in found.rows:
        values = [visible(row[column] or "") for column in (columns[:1] if found.withheld else columns)]
        shown.add_row(visible(row["source_file"]), f"{row['source_row']:,}", *values)
    show(shown)
    if found.withheld:
        tell("values are withheld, because the policy protects columns of this table")


def _listed(table: str, found: list[Load]) -> object:
    from backfill_assets.cli.terminal import Table

    shown = Table(title=f"loads of {table}", title_justify="left")
    for column, kept in (("loaded (UTC)", "left"), ("file", "left"), ("rows", "right"), ("quarantined", "right")):
        shown.add_column(column, justify=kept)
    versioned = any(one.version for one in found)  # a reference table's
    for column in ("by", "taken back", *(["version"] if versioned else []), "load"):
        shown.add_column(column)
    for one in found:
        undone = (
            "" if one.undone_at is None else f"{one.undone_at:%Y-%m-%d %H:%M} by {one.undone_by}: {one.undone_because}"
        )
        version = [one.version] if versioned else []
        shown.add_row(
            f"{one.at:%Y-%m-%d %H:%M}",
            one.file,
            f"{one.rows:,}",
            f"{one.quarantined:,}",
            one.by,
            undone,
            *version,
            one.load_id,
        )
    return shown


@click.command()
@click.argument("table")
@click.argument("load_id", metavar="LOAD")
@click.option("--by", required=True, help="Who decides.")
@click.option("--reason", required=True, help="Why.")
@json_option
def unload(table: str, load_id: str, by: str, reason: str, as_json: bool) -> None:
    """Take back what a LOAD brought to the input TABLE: its rows, and those of its quarantine.

    A new snapshot without the load's files; nothing is deleted, and runs that pinned an earlier snapshot still read it. The
    runs whose published rows were computed with it are named: restate them. Refused if the files were rewritten since.
    `backfill loads TABLE` lists the ids of loads. LOAD is such an id, or a beginning that no other load of the table has: of
    the id, or of the hash in it from 4 characters on. Safe to repeat: what was taken back before is left as it is.
    """
    from backfill_assets.defs.launch import report_inputs
    from backfill_assets.ingestion.table_loads import undo_load

    with opened_platform() as platform, opened_instance(platform.settings) as instance:
        done = undo_load(platform, table, load_id, by=by, reason=reason)
        report_inputs(platform, instance)
    if as_json:
        say(done)
        return
    if done.new:
        said = f"taken back ({done.load.rows:,} rows), snapshot {done.snapshot_id}"
    else:
        said = (
            f"was taken back before, {done.load.undone_at:%Y-%m-%d %H:%M} UTC by {done.load.undone_by}: "
            f"{done.load.undone_because}; nothing was done"
        )
    tell(f"{table}: load {done.load.load_id} {said}")
    if done.published_with_it:
        tell(f"  published rows were computed with it, by: {', '.join(done.published_with_it)}")
        tell("  plan a restatement of what they published")
    if done.may_be_published_with_it:
        tell(f"  may be published with it yet: {', '.join(done.may_be_published_with_it)}")
        tell("  cancel them, and plan them again; one that is rolled back is not to be reinstated")
