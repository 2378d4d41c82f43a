"""The `backfill` command: from the reason to the publication and back, on a terminal or for a script.

Put here the group, what is of no family, and exit codes; each family of commands has a module beside this one. What is done is done by the modules that Dagster uses as well. Exit codes:
0 done, 1 something ran and did not succeed, 2 refused (by `publish`, `rollback` and `reinstate` also where the table has changed, and a
topic could not be told), 3 `init --preview` has found a difference, 141 nobody reads the output any more.
"""

from __future__ import annotations

import atexit
import gc as collector
import json
import os
import select
import signal
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from backfill_assets.cli import unexpected
from backfill_assets.cli.apis import extract, extractions
from backfill_assets.cli.as_of import as_of
from backfill_assets.cli.base import (
    CONTEXT,
    EXIT_FAILED,
    EXIT_REFUSED,
    WHOLE_PROCESS,
    json_option,
    refuse,
    say,
    show,
    tell,
)
from backfill_assets.cli.decisions import COMMANDS as DECISIONS
from backfill_assets.cli.differences import diff, explain
from backfill_assets.cli.evidence import head, report, verify
from backfill_assets.cli.files import files, receive
from backfill_assets.cli.launching import resume, run
from backfill_assets.cli.live import live
from backfill_assets.cli.loads import load, loads, unload
from backfill_assets.cli.logs import land, logs_command
from backfill_assets.cli.migration import migration
from backfill_assets.cli.new_product import new_product
from backfill_assets.cli.operations import metrics, runbook
from backfill_assets.cli.planning import plan
from backfill_assets.cli.policy import policy
from backfill_assets.cli.proposals import propose
from backfill_assets.cli.publication import accept, publish, reinstate, rollback
from backfill_assets.cli.quarantine import quarantine
from backfill_assets.cli.reconciliation import drift, exceptions, reconcile
from backfill_assets.cli.reproduction import reproduce
from backfill_assets.cli.sinks import sinks
from backfill_assets.cli.source_rows import compare_source
from backfill_assets.cli.spark import spark
from backfill_assets.cli.status import status
from backfill_assets.cli.stopping import pause, stop
from backfill_assets.cli.ui import ui
from backfill_assets.cli.upkeep import doctor, gc, split_files
from manifests.errors import (
    Refused,
)

_YOUNG_OBJECTS = 500_000
"""New objects before the youngest are collected: at Python's 700 a fifth of what a command takes to start is looking at modules."""
EXIT_UNREAD = 128 + signal.SIGPIPE
"""What a shell says of a program that was ended because nobody reads its output any more (`| head`)."""


class _UnreadError(Exception):
    """Whoever read the output has closed it: what the command did stays done, and the rest of what it says is not said."""


class _Commands(click.Group):
    """The group; a closed output is no failure of a command, of which Click would make one."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            done = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            if not _is_unread():
                raise RuntimeError(f"a connection was closed: {error}") from error
            raise _UnreadError from error
        return done


def _is_unread() -> bool:
    """Whether standard output is a pipe or a socket whose reader is gone."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


@click.group(cls=_Commands, context_settings=CONTEXT)
@click.version_option(package_name="backfill-assets")
def cli() -> None:
    """Rewrite the history of data tables safely.

    \b
    The way of one run:
      backfill new-product NAME        begin a product of your own
      backfill init                    create home, ledger, tables, reference data
      backfill load TABLE FILE         bring input in, each row held to its model
      backfill loads TABLE             what was loaded; `unload` takes a load back
      backfill receive FEED [PATH]     files that come again and again; `files`
      backfill land LOG FOLDER         changes of a database, whole transactions
      backfill quarantine list TABLE   rows that were not loaded; `release` them
      backfill extract FEED            ask a server for history, keep each answer
      backfill extractions FEED        what was asked; `load FEED` loads it
      backfill land LOG                bring ranges of a log in; `logs`: which are
      backfill plan MANIFEST.yaml      what would be read, computed and changed
      backfill review RUN --by NAME    somebody looks first, where policy asks
      backfill approve RUN --by NAME   somebody other than the requester agrees
      backfill decisions [RUN]         who decided what, when; `policy`: who may
      backfill run RUN                 compute chunks into staging and gate them
      backfill stop RUN --by NAME      end it at once; `resume` goes on
      backfill pause RUN --by NAME     end it after its batch, until `resume`
      backfill status [RUN]            where every run and chunk stands
      backfill diff RUN                what it changes, row by row
      backfill accept-change RUN       an owner accepts what a gate asks about
      backfill publish RUN             one atomic snapshot, once every gate passed
      backfill rollback RUN            put back what the run replaced
      backfill reinstate RUN           undo a rollback
      backfill accept RUN              make a version what main shows
      backfill explain TABLE --key K=V why a row says what it says, and said once
      backfill as-of TABLE --system-time T  what was said then
      backfill reproduce RUN           compute it again and compare every digest
      backfill reconcile [TABLE]       hold what is published against its source
      backfill compare-source TABLE FILE  or against rows of the source at an LSN
      backfill exceptions RUN          rows that disagree; `drift`: over time
      backfill verify RUN | --all      is evidence (--data: and rows) as recorded
      backfill report RUN              one page about a run that stands by itself
      backfill doctor                  what disagrees with what; --repair
      backfill gc                      what nothing needs any more; --delete
      backfill split-files MANIFEST    part files that reach across its range
      backfill runbook RUN             its steps: what is done, what is next
      backfill sinks                   what runs can tell, and which mode may
      backfill spark start             a Spark server that is kept; `stop` ends it
      backfill migration plan NAME     move readers to another table; `advance`
      backfill metrics                 figures for Prometheus; --output, --listen

    Beside it, `backfill live` takes in what is new, run by run, and `backfill propose` plans the days that were said anew.

    `backfill demo` shows all of it; `backfill ui` opens Dagster. Settings: `backfill config`.
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph


@cli.command()
@click.option("--preview", is_flag=True, help="Only show what differs between models and tables; nothing is written.")
@json_option
def init(preview: bool, as_json: bool) -> None:
    """Create the home folder, the ledger, the tables and the Dagster instance; load reference data.

    Safe to repeat: what exists is kept, an older ledger is upgraded. Columns of tables become what their models say, as far as
    no reader breaks: added, renamed, widened, reordered, documented, made optional; anything else is refused.

    With --preview the exit code is 0 if nothing differs, 3 if something would be made or changed, 2 if something would be
    refused.
    """
    from backfill_assets.cli import columns
    from backfill_assets.declarations.products import tables_of
    from backfill_assets.defs.launch import initialise_instance
    from backfill_assets.installation import Platform
    from backfill_assets.operations.doctor.environment import chain_elsewhere
    from backfill_assets.operations.initialise import initialise
    from resources.settings import load_settings

    settings = load_settings()
    platform = Platform.of(settings)
    if preview:
        columns.preview(platform, as_json)
        return
    done = initialise(platform)
    if elsewhere := chain_elsewhere(platform):
        tell(f"{platform.evidence.folder} {elsewhere[0]}. What to do: {elsewhere[-1]}", err=True)
    held = done.references
    initialise_instance(settings)
    adopted = platform.ledger.journal.adopted
    tables = {product.name: dict(tables_of(product)) for product in platform.products}
    if as_json:
        changed = {table: columns.told(changes) for table, changes in done.columns.items()}
        facts = {
            "home": str(settings.home),
            "evidence": settings.evidence_place,
            "tables": tables,
            "references": held,
            "adopted": adopted,
        }
        say(facts | {"columns": changed})
        return
    tell(f"ready: {settings.home}")
    if settings.evidence:
        tell(f"  evidence: {settings.evidence_place}, whose store gives every name away once")
    if adopted:
        tell(
            f"  adopted: {len(adopted)} run(s) of an earlier version are protected from now on, as they are today: "
            + ", ".join(adopted)
        )
    for table, changes in done.columns.items():
        tell(f"  columns of {table}: {', '.join(columns.told(changes))}")
    for product, names in tables.items():
        tell(f"  product {product}")
        for name, what in names.items():
            tell(f"    {name}: {what}" + (f" {held[name]}" if name in held else ""))


@cli.command()
@json_option
def config(as_json: bool) -> None:
    """Print the resolved settings, without secrets.

    `catalog_name` and `catalog` are what `pyiceberg.catalog.load_catalog(name, **properties)` takes.
    """
    from backfill_assets.cli.console import facts
    from resources.settings import load_settings

    settings = load_settings()
    shown = settings.shown()
    if not settings.home.is_dir():
        tell(f"there is no installation at {settings.home}: set BACKFILL_HOME, or run `backfill init`", err=True)
    if as_json:
        say(shown)
    else:
        show(
            facts(
                ((name, json.dumps(value) if isinstance(value, dict) else value) for name, value in shown.items()),
                "settings",
            )
        )


@cli.command()
@click.option("--events", type=click.Path(path_type=Path), help="A log to use instead of generated cases.")
@click.option(
    "--cases", type=click.IntRange(100, 1_000_000), default=20_000, show_default=True, help="Cases to generate."
)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--column", is_flag=True, help="Go on: a column that comes later, and a run that fills its history.")
def demo(events: Path | None, cases: int, seed: int, column: bool) -> None:
    """Show a whole restatement: history with a bug, the correction, its gates, what changed, and a refusal."""
    from backfill_assets.cli.demo import show

    show(events, cases, seed, column=column)


for _command in (
    *DECISIONS,
    accept,
    as_of,
    compare_source,
    diff,
    doctor,
    drift,
    exceptions,
    explain,
    files,
    extract,
    extractions,
    gc,
    head,
    land,
    live,
    load,
    loads,
    logs_command,
    metrics,
    migration,
    new_product,
    pause,
    plan,
    policy,
    propose,
    publish,
    receive,
    quarantine,
    reconcile,
    reinstate,
    report,
    reproduce,
    resume,
    rollback,
    run,
    runbook,
    sinks,
    spark,
    split_files,
    status,
    stop,
    ui,
    unload,
    verify,
):
    cli.add_command(_command)


def main() -> None:
    """Run the command; a refusal is printed with its reasons and exits with 2, an unforeseen error in one line and with 1."""
    collector.set_threshold(_YOUNG_OBJECTS, *collector.get_threshold()[1:])
    atexit.register(
        collector.freeze
    )  # else all that was imported is looked through once more, for nothing, as Python ends
    if sys.stdout is None:  # closed by whoever started this: nobody reads it
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    elif isinstance(sys.stdout, TextIOWrapper):  # of an encoding that may lack what a table, a name or a reason has
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        unexpected.require_text(sys.argv[1:])
        unexpected.require_working_folder()
        cli(standalone_mode=False, obj=WHOLE_PROCESS)
        sys.stdout.flush()
    except _UnreadError:
        # where what is buffered is written when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_UNREAD)
    except Refused as error:
        with unexpected.said_where_possible():
            refuse(error)
        sys.exit(EXIT_REFUSED)
    except click.exceptions.Abort:
        tell("interrupted; the same command again goes on from here", err=True)
        sys.exit(EXIT_FAILED)
    except click.ClickException as error:
        with unexpected.said_where_possible():
            (unexpected.all_missing(error) if isinstance(error, click.MissingParameter) else error).show()
        sys.exit(EXIT_REFUSED)
    except BaseException as error:
        if not unexpected.is_unexpected(error):
            raise
        if (outside := unexpected.of_the_machine(error)) is not None:
            with unexpected.said_where_possible():
                refuse(outside)
            sys.exit(EXIT_REFUSED)
        unexpected.tell(error)
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
