"""The command that tells what a table said at an instant: `as-of`.

Put here arguments and output. Which rows were in force is `audit.as_of`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.base import json_option, opened_platform, say, show, tell
from manifests.errors import InputRefused, Problem
from manifests.text import visible

if TYPE_CHECKING:
    import polars as pl

    from backfill_assets.audit.as_of import AsOf
    from backfill_assets.installation import Platform
    from manifests.model import DayRange

_SHOWN = 20
_ENDINGS = (".csv", ".parquet")


@click.command("as-of")
@click.argument("table")
@click.option(
    "--system-time",
    required=True,
    metavar="INSTANT",
    help="As it was known then, with an offset: 2020-03-25T18:00:00+01:00, or ...Z for UTC.",
)
@click.option("--valid", "days", metavar="A[..B]", help="Only about these days, both inclusive. Default: all of them.")
@click.option(
    "--key", "columns", multiple=True, metavar="COLUMN=VALUE", help="Only rows with this value; may be repeated."
)
@click.option("--limit", type=click.IntRange(1, 100_000), help=f"Rows shown at most. Default: {_SHOWN}.")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Write all of the rows to this file, .csv or .parquet, instead."
)
@json_option
def as_of(
    table: str,
    system_time: str,
    days: str | None,
    columns: tuple[str, ...],
    limit: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Say what TABLE said at an instant of its producer's time: of each day the version that was in force then.

    TABLE is an input table that keeps every version of what was said about a day (`revisions` of its declaration), or a target that is
    computed from one: what a run would publish that knew of its source what was known then (starts Spark). Nothing that was
    published, said or expired since changes the answer; what is loaded later and was said by then does, and a load that is taken back.

    \b
      backfill as-of bronze.station_readings --system-time 2020-03-26T00:00:00Z --valid 2020-03-10
      backfill as-of bronze.station_readings --system-time 2020-03-26T00:00:00Z --key station=north --output then.csv
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph
    from backfill_assets.cli.reconciliation import range_of

    instant = _instant(system_time)
    asked = None if days is None else range_of(days, "--valid")
    if output is not None:
        _require_writable(output, limit, as_json=as_json)
    with opened_platform() as platform:
        what, found, rows = _asked(platform, table, instant, asked, columns)
        if output is not None:
            tell(f"{output}: {_written(rows, output):,} rows of {len(found.versions):,} days")
            return
        most = limit or _SHOWN
        some = list(islice(_each(rows), most + 1))
    if as_json:
        say(_as_data(table, found, some[:most], more=len(some) > most))
    else:
        _show(what, found, some[:most], more=len(some) > most)


def _asked(
    platform: Platform, table: str, instant: datetime, days: DayRange | None, columns: tuple[str, ...]
) -> tuple[str, AsOf, Iterator[pl.DataFrame]]:
    """Return what is asked in words, which versions were in force, and the rows."""
    from backfill_assets.audit.as_of import rows_at, versions_at

    if platform.products.find_target(table) is None:
        found = versions_at(platform, table, instant, days, columns)
        return table, found, rows_at(platform, found)
    from backfill_assets.audit.as_of_target import target_at

    computed = target_at(platform, table, instant, days, columns)
    what = f"{table}, computed by version {computed.transform_version} from {computed.source.table.name}"
    return what, computed.source, computed.frames


def _instant(text: str) -> datetime:
    instant: datetime | None = None
    with suppress(ValueError, OverflowError):
        said = datetime.fromisoformat(text)
        instant = None if said.tzinfo is None else said.astimezone(UTC)
    if instant is None:
        raise InputRefused(
            Problem(
                f"--system-time is {text}",
                "it is a date and a time with an offset, or with Z for UTC",
                "for example 2020-03-25T18:00:00+01:00",
            )
        )
    return instant


def _require_writable(output: Path, limit: int | None, *, as_json: bool) -> None:
    problems = []
    if output.suffix.lower() not in _ENDINGS:
        problems.append(
            Problem(
                f"--output is {output}",
                f"a file's name ends in {' or '.join(_ENDINGS)}",
                "give it one of these endings",
            )
        )
    if limit is not None or as_json:
        problems.append(
            Problem("--output with --limit or --json", "a file gets all of the rows", "leave one of them out")
        )
    if problems:
        raise InputRefused(problems)


def _each(frames: Iterator[pl.DataFrame]) -> Iterator[dict[str, Any]]:
    for frame in frames:
        yield from frame.iter_rows(named=True)


def _written(frames: Iterator[pl.DataFrame], output: Path) -> int:
    """Write rows to a file, whole or not at all; return how many there are."""
    from pyarrow import csv, parquet, types

    from resources.files.whole_files import replaced_whole

    first = next(frames, None)
    if first is None:
        raise InputRefused(
            Problem("no row was said by then", "a file of rows has one or more", "see the days without --output")
        )
    total, schema = 0, first.to_arrow().schema
    nested = [field.name for field in schema if types.is_nested(field.type)]
    if nested and output.suffix.lower() == ".csv":
        raise InputRefused(
            Problem(
                f"column(s) {', '.join(nested)} have values inside", "text has a value a cell", "write a .parquet file"
            )
        )
    with replaced_whole(output) as partial:
        writer = (
            parquet.ParquetWriter(partial, schema)
            if output.suffix.lower() == ".parquet"
            else csv.CSVWriter(partial, schema)
        )
        with writer:
            for frame in chain([first], frames):
                writer.write_table(frame.to_arrow().cast(schema))
                total += frame.height
    return total


def _as_data(table: str, found: AsOf, rows: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    return {
        "table": table,
        "source": found.table.name,
        "snapshotId": found.snapshot_id,
        "systemTime": found.system_time,
        "versions": [{"day": day, "version": one.version, "saidAt": one.system} for day, one in found.versions.items()],
        "rows": rows,
        "more": more,
    }


def _show(what: str, found: AsOf, rows: list[dict[str, Any]], *, more: bool) -> None:
    from backfill_assets.cli.terminal import Table

    if not found.versions:
        tell(f"{what}: nothing was said by {found.system_time.isoformat()}")
        return
    first, *_, last = [*found.versions] * 2
    newest = max(found.versions.values())
    tell(
        f"{what} as of {found.system_time.isoformat()}: {len(found.versions):,} days, {first} to {last}; "
        f"the newest version is {visible(newest.version)}, said {newest.system:%Y-%m-%d %H:%M:%S} UTC"
    )
    if not rows:
        tell("  no row has these values")
        return
    shown = Table(title_justify="left")
    for name in rows[0]:
        shown.add_column(name)
    for row in rows:
        shown.add_row(*("" if value is None else visible(str(value)) for value in row.values()))
    show(shown)
    if more:
        tell(f"  {len(rows):,} rows are shown; --limit shows more, --output writes all of them to a file")
