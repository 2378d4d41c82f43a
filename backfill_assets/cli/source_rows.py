"""The command that holds published rows against rows of their source at a position of its log: `compare-source`.

Put here arguments, output and exit codes. What is compared is `reconciliation.source_rows`'.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.base import EXIT_FAILED, json_option, opened_platform, say, tell

if TYPE_CHECKING:
    from backfill_assets.reconciliation.source_rows import SourceCompared

_KEYS = 20
"""Keys of each kind of difference that a person is shown; `--json` has all of them."""


def _position(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    from manifests.source_pins import position_of

    if text is None:
        return None
    try:
        return position_of(int(text) if text.isdigit() else text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command("compare-source")
@click.argument("table")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--key", "keys", required=True, multiple=True, metavar="COLUMN", help="A column of the key; may be repeated."
)
@click.option(
    "--lsn",
    callback=_position,
    metavar="LSN",
    help="The position that the file is of, where TABLE is a history: 0/16B3748, or as a number.",
)
@click.option("--slice", "slice_column", default="", metavar="COLUMN", help="Say by this column what differs.")
@json_option
def compare_source(
    table: str, file: Path, keys: tuple[str, ...], lsn: int | None, slice_column: str, as_json: bool
) -> None:
    """Hold the published rows of TABLE against a Parquet FILE with the rows of its source at a position of its log.

    \b
      backfill compare-source silver.account_history rows.parquet --key account_id --lsn 26401448
      backfill compare-source silver.account_state rows.parquet --key account_id --slice tier

    Rows are compared by key and by a hash of all columns that the file has, under the names and types of TABLE. What is missing,
    surplus or different is named. Nothing is changed. Exit code 1 if anything differs.
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph
    from backfill_assets.reconciliation.source_rows import compared_with_source

    with opened_platform() as platform:
        found = compared_with_source(platform, table, file, keys, lsn=lsn, slice_column=slice_column)
    if as_json:
        say(found)
    else:
        _tell(found)
    if not found.agrees:
        raise SystemExit(EXIT_FAILED)


def _tell(found: SourceCompared) -> None:
    tell(
        f"{found.target}, snapshot {found.snapshot_id}: {'agrees with' if found.agrees else 'differs from'} its source"
    )
    tell(f"  compared: {', '.join(found.columns)}")
    for one in found.slices:
        name = f"{one.value}: " if one.value else ""
        tell(
            f"  {name}{one.source_rows:,} rows of the source, {one.target_rows:,} published; {one.missing:,} missing, "
            f"{one.surplus:,} surplus, {one.different:,} different"
        )
    for name, keys in (("missing", found.missing), ("surplus", found.surplus), ("different", found.different)):
        if keys:
            more = f", and {len(keys) - _KEYS:,} more (--json has all)" if len(keys) > _KEYS else ""
            tell(f"  {name}: {', '.join(keys[:_KEYS])}{more}")
    if found.withheld:
        tell("  keys are withheld, because the policy protects columns of the table")
