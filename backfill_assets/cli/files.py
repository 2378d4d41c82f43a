"""Commands of files that are published again: `receive` takes them in, `files` lists what came and what became of it.

Put here arguments, output and exit codes. What a receipt is, is `ingestion.receiving`'s; the import ledger is
`resources.ledger.imports`'.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.base import json_option, opened_instance, opened_platform, say, show, tell
from manifests.text import visible

if TYPE_CHECKING:
    from backfill_assets.ingestion.file_history import FileOnRecord
    from backfill_assets.ingestion.receiving import Received

_SHOWN = 10
_LISTED = 50
STATUSES = ("SEEN", "ACCEPTED", "CORRECTION", "REPROCESSED", "IGNORED", "QUARANTINED", "REJECTED")


@click.command()
@click.argument("feed")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH]...")
@click.option(
    "--again",
    multiple=True,
    metavar="FILE_ID",
    help="Read a file of `backfill files` once more, from the bytes that were kept. Can be given several times.",
)
@click.option(
    "--settled",
    type=click.IntRange(0, 86_400),
    default=0,
    metavar="SECONDS",
    help="Leave files of a folder alone that were changed within so many seconds: somebody may be writing them.",
)
@json_option
def receive(feed: str, paths: tuple[Path, ...], again: tuple[str, ...], settled: int, as_json: bool) -> None:
    """Receive files of a FEED: from its landing folder, or each PATH (a file, a folder, or a .tar, also .xz, .gz or .bz2).

    \b
      backfill receive daily_reports                          what lies in <home>/landing/daily_reports
      backfill receive daily_reports history.tar.xz index.csv an archive, and the feed's delivery index
      backfill receive daily_reports --again 20240131-00002-5f0c1b2a9d3e   by the reader and translator of now

    Each file is read by the reader that fits, translated by the product, and held against the table's model. The first of its
    business date is ACCEPTED, other bytes for that date are a CORRECTION (or REJECTED, as the feed declares), the same bytes
    IGNORED; what breaks too many rules is QUARANTINED, what is no file of the feed REJECTED. All that are taken become one load.

    Bytes are kept in <home>/archive; what is kept is taken out of the landing folder. Safe to repeat, also after a crash.
    Exit code 0 whatever became of single files: `backfill files FEED` lists them.
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph
    from backfill_assets.defs.launch import report_inputs
    from backfill_assets.ingestion.receiving import receive as receive_files

    with opened_platform() as platform, opened_instance(platform.settings) as instance:
        with _bar(shown=not as_json) as progress:
            done = receive_files(platform, feed, paths, again=again, settled_seconds=settled, progress=progress)
        report_inputs(platform, instance)
    if as_json:
        say(done)
    else:
        _tell(done)


@contextmanager
def _bar(*, shown: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """Show on a terminal what is done just now, and how many files of it are."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from backfill_assets.cli.terminal import make_console

    console = make_console(stderr=True)
    columns = (TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not shown or not sys.stderr.isatty()) as bars:
        tasks: dict[str, object] = {}

        def progress(what: str, done: int, of: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=of)
            bars.update(tasks[what], completed=done, total=of)  # type: ignore[arg-type]

        yield progress


def _tell(done: Received) -> None:
    for load_id in done.completed:
        tell(f"  brought to its end first: load {load_id}, of a receipt that had stopped")
    number = sum(done.by_status.values())
    said = ", ".join(f"{files:,} {status}" for status, files in done.by_status.items())
    tell(f"{done.feed}: {number:,} file(s) decided upon{f': {said}' if said else ''}")
    for what, files in (
        ("on record before, the same", done.seen_again),
        ("none of the feed's, left out", done.skipped),
        ("in the delivery index, and did not come", done.not_delivered),
    ):
        if files:
            tell(f"  {files:,} {what}")
    for path, why in list(done.refused.items())[:_SHOWN]:
        tell(f"  {path}: {why}")
    if len(done.refused) > _SHOWN:
        tell(f"  and {len(done.refused) - _SHOWN:,} more that were refused: backfill files {done.feed}")
    if done.left:
        tell(f"  left where they lie: {', '.join(done.left[:_SHOWN])}{' …' if len(done.left) > _SHOWN else ''}")
    if done.load_id:
        tell(f"  {done.table}: {done.rows:,} rows, {done.rejected:,} records quarantined")
        tell(f"  load {done.load_id}, snapshot {done.snapshot_id}")


@click.command()
@click.argument("feed")
@click.option("--status", type=click.Choice(STATUSES, case_sensitive=False), help="Only those of which this became.")
@click.option("--date", "day", type=click.DateTime(["%Y-%m-%d"]), help="Only those of this business date.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=_LISTED,
    show_default=True,
    help="At most so many, the newest.",
)
@json_option
def files(feed: str, status: str | None, day: datetime | None, limit: int, as_json: bool) -> None:
    """List the import ledger of a FEED: each file that came, what became of it, why, and which load and runs used it.

    Of a file whose load was taken back (`backfill unload`) that is said. --json has everything that is on record.
    """
    from backfill_assets.ingestion.file_history import files_on_record

    with opened_platform() as platform:
        found = files_on_record(platform, feed, status=status, business_date=None if day is None else day.date())
    if as_json:
        say(found[-limit:])
        return
    if not found:
        tell(f"{feed}: no such file is on record")
        return
    show(_listed(feed, found, limit, None if day is None else day.date()))
    counted = Counter(str(one.entry.status) for one in found)
    tell(f"{len(found):,} file(s): {', '.join(f'{number:,} {name}' for name, number in sorted(counted.items()))}")


def _listed(feed: str, found: Sequence[FileOnRecord], limit: int, day: date | None) -> object:
    from backfill_assets.cli.terminal import Table

    shown = Table(title=f"{min(limit, len(found)):,} of {len(found):,} files of {feed}", title_justify="left")
    columns = ["status", "business date", "published (UTC)", "path", "rows", "why", "file id"]
    if day is None:
        columns.remove("published (UTC)")
    for column in columns:
        shown.add_column(column, justify="right" if column == "rows" else "left")
    for one in found[-limit:]:
        entry = one.entry
        why = f"{entry.reason}; taken back by {one.taken_back_by}" if one.taken_back_by else entry.reason
        if one.runs:
            why += f"; used by {', '.join(one.runs)}"
        cells = {
            "status": str(entry.status),
            "business date": "" if entry.business_date is None else f"{entry.business_date}",
            "published (UTC)": "" if entry.published_at is None else f"{entry.published_at:%Y-%m-%d %H:%M:%S}",
            "path": visible(entry.path),
            "rows": f"{entry.rows:,}",
            "why": visible(why),
            "file id": entry.file_id,
        }
        shown.add_row(*(cells[column] for column in columns))
    return shown
