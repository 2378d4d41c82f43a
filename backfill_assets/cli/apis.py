"""Commands that ask servers for history, and load what they have answered: `extract`, `extractions`, and `load FEED`.

Put here arguments, output and exit codes. How a server is asked is `backfill_assets.extraction`'s; what of an answer is new to a
table, `ingestion.extractions`'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.base import json_option, opened_instance, opened_platform, say, show, tell
from manifests.errors import EnvironmentRefused, InputRefused, Problem

if TYPE_CHECKING:
    from backfill_assets.extraction.extracting import Progress
    from backfill_assets.ingestion.extractions import ExtractionLoaded, Reconciled
    from resources.ledger.extractions import ExtractionRecord

_KEYS = 20
"""Keys of each kind of difference that a person is shown; `--json` has all of them."""
_NEEDED = ("httpx", "tenacity")


@click.command()
@click.argument("feed")
@click.option("--from", "start", help="Ask for what was updated from this day or instant on (UTC), by time windows.")
@click.option("--until", "end", help="Up to this day or instant, which is not in it.")
@click.option("--ids", metavar="A..B", help="Ask for the records with these numbers, both in it.")
@click.option("--snapshot", is_flag=True, help="Have the server export all records as they are at one moment.")
@click.option("--reconcile", is_flag=True, help="Hold what the server has against what was loaded.")
@click.option(
    "--anew", is_flag=True, help="Begin with the first request; what asks the same and is not over is given up."
)
@json_option
def extract(
    feed: str,
    start: str | None,
    end: str | None,
    ids: str | None,
    snapshot: bool,
    reconcile: bool,
    anew: bool,
    as_json: bool,
) -> None:
    """Ask the server of an API FEED for records, and keep each of its answers whole in the archive; nothing is loaded.

    \b
      backfill extract shop_orders                                        everything, from cursor to cursor
      backfill extract shop_orders --from 2024-01-01 --until 2024-02-01   by time windows
      backfill extract shop_orders --ids 1..5000                          by ranges of numbers
      backfill extract shop_orders --snapshot --reconcile                 what was missed, corrected or deleted
      backfill load shop_orders                                           load what was extracted

    A command that is stopped, killed or refused goes on where it stopped when it is given again: what is kept is never asked for
    twice. The server is asked no more often than the feed's rate limit says. What takes several pages is read until two readings
    agree; where they never do, the extraction is UNSTABLE (exit code 1) and is not loaded by itself.

    Address and credentials are settings (`backfill doctor` names those that are missing), and are never written down.
    `backfill extractions FEED` lists what was extracted.
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph
    from backfill_assets.extraction.questions import question
    from backfill_assets.ingestion.extractions import reconciled
    from resources.ledger.extractions import ExtractionState

    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise EnvironmentRefused(
            Problem(
                f"{' and '.join(missing)} cannot be imported",
                "servers are asked with what the extra `api` brings",
                "pip install 'backfill-assets[api]'",
            )
        )
    from backfill_assets.extraction.extracting import extract as extracted

    with opened_platform() as platform:
        declared = platform.products.api(feed)
        asked = question(declared, start=start, end=end, ids=ids, snapshot=snapshot, reconciles=reconcile)
        with _progress(quiet=as_json) as told:
            record = extracted(platform, declared, asked, anew=anew, tell=told)
        differs = reconciled(platform, declared, record) if reconcile else None
    if as_json:
        say({"extraction": _shown(record), **({} if differs is None else {"reconciled": differs})})
    else:
        _tell_extracted(record, differs, has_column=bool(declared.deleted_column))
    if record.state is ExtractionState.UNSTABLE:
        raise SystemExit(1)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Show how far an extraction is: what is read, how many answers are kept, how many records are in them."""
    from rich.progress import Progress as Bars
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    from backfill_assets.cli.terminal import make_console

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Bars(*columns, console=make_console(stderr=True), disable=quiet, transient=True) as bars:
        task = bars.add_task("asking", total=None)
        yield lambda far: bars.update(
            task, description=f"{far.part}: {far.responses:,} answers, {far.records:,} records read"
        )


def _tell_extracted(record: ExtractionRecord, differs: Reconciled | None, *, has_column: bool) -> None:
    tell(f"extraction {record.id}: {record.state}, {record.records:,} records in {record.responses:,} answers")
    if record.reason:
        tell(f"  {record.reason}")
    if counted := record.counted:
        tell(f"  counted: {_in_words(counted)}")
    if differs is None:
        tell(f"  to load it: backfill load {record.feed}")
        return
    tell(f"  against what was loaded: {_in_words(differs.counts) or 'nothing'}")
    for change, keys in differs.keys.items():
        more = f", and {len(keys) - _KEYS:,} more (--json has all)" if len(keys) > _KEYS else ""
        tell(f"  {change}: {', '.join(keys[:_KEYS])}{more}")
    if differs.withheld:
        tell("  keys are withheld, because the policy protects columns of the table")
    _tell_keyless(differs.keyless)
    if differs.counts.get("deleted") and not has_column:
        tell("  what was deleted is not loaded: the feed declares no deleted_column")
    tell(f"  to load what differs: backfill load {record.feed}")


def _tell_keyless(records: int) -> None:
    if records:
        have = "record has" if records == 1 else "records have"
        tell(f"  deletions are not concluded: {records:,} {have} no usable key, and may be any that is missing")


def _in_words(counts: Mapping[str, object]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in counts.items())


def _shown(record: ExtractionRecord) -> dict[str, object]:
    return record.as_record() | {"asked": record.question, "counts": record.counted}


@click.command()
@click.argument("feed")
@json_option
def extractions(feed: str, as_json: bool) -> None:
    """List the extractions of an API FEED, oldest first: what was asked, how far it is, and whether it is loaded.

    OPEN: under way, or stopped; FAILED: refused, with the reason. Both go on when the command that began them is given again.
    COMPLETE ones never change again. UNSTABLE: read to its end, but pages changed while they were read.
    """
    from backfill_assets.ingestion.extractions import loads_of

    with opened_platform() as platform:
        declared = platform.products.api(feed)
        found = platform.ledger.extractions.of_feed(feed)
        loaded = loads_of(platform, declared, found)
    if as_json:
        say([_shown(one) | {"loaded": one.id in loaded} for one in found])
    elif not found:
        tell(f"{feed}: nothing was extracted")
    else:
        show(_listed(feed, found, loaded))


def _listed(feed: str, found: list[ExtractionRecord], loaded: frozenset[str]) -> object:
    from backfill_assets.cli.terminal import Table

    shown = Table(title=f"extractions of {feed}", title_justify="left")
    for column in ("begun (UTC)", "extraction", "pattern", "asked", "state"):
        shown.add_column(column)
    for column in ("answers", "records"):
        shown.add_column(column, justify="right")
    for column in ("loaded", "by", "why"):
        shown.add_column(column)
    for one in found:
        shown.add_row(
            f"{one.started_at:%Y-%m-%d %H:%M}",
            one.id,
            one.pattern,
            ", ".join(f"{name} {value}" for name, value in one.question.items()),
            one.state,
            f"{one.responses:,}",
            f"{one.records:,}",
            "yes" if one.id in loaded else "",
            one.started_by,
            one.reason,
        )
    return shown


def of_feed(name: str) -> click.Command:
    """Make the command that loads what was extracted of a feed."""

    @click.command(name)
    @click.argument("files", nargs=-1, metavar="")
    @click.option(
        "--extraction", help="Load this one only. Default: all that are COMPLETE and not loaded, oldest first."
    )
    @click.option("--unstable", is_flag=True, help="Load the one that is named although it is UNSTABLE.")
    @json_option
    def load_feed(files: tuple[str, ...], extraction: str | None, unstable: bool, as_json: bool) -> None:
        from backfill_assets.defs.launch import report_inputs
        from backfill_assets.ingestion.extractions import load_extractions

        with opened_platform() as platform, opened_instance(platform.settings) as instance:
            declared = platform.products.api(name)
            if files:
                raise InputRefused(
                    Problem(
                        f"{files[0]} is given beside the API feed {name}",
                        "what was extracted of a feed is loaded from the archive; a file is loaded into a table",
                        f"`backfill load {name}`, or `backfill load {declared.table} {files[0]}`",
                    )
                )
            try:
                done = load_extractions(platform, declared, only=extraction, unstable=unstable)
            finally:  # one that is damaged is refused at the end: the others are loaded
                report_inputs(platform, instance)
        if as_json:
            say(done)
            return
        if not done:
            tell(f"{name}: nothing to load; `backfill extractions {name}` lists what was extracted")
        for one in done:
            _tell_loaded(declared.table, one)

    load_feed.help = (
        f"Load what was extracted of the API feed {name}, from the archive; no server is asked.\n\nEach extraction is a load of its "
        "own. Records that are loaded already are left out; newer or corrected ones are further versions."
    )
    return load_feed


def _tell_loaded(table: str, one: ExtractionLoaded) -> None:
    counted = one.loaded.counted
    tell(
        f"extraction {one.extraction}: {counted.events:,} rows loaded, {counted.quarantined:,} quarantined"
        + ("" if one.loaded.new else "; loaded before, nothing was appended")
    )
    if one.changes:
        tell(f"  records: {_in_words(one.changes)}")
    _tell_keyless(one.keyless)
    for reason, number in counted.by_reason.items():
        tell(f"  quarantined {reason}: {number:,}, first in {counted.first[reason].in_words(reason)}")
    tell(f"  {table}: snapshot {one.loaded.snapshot_id}")
