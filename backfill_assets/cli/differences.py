"""The commands that show what a run changes, and why a row says what it says.

Put here arguments and output of both; what is done is `review.diff`'s and `audit.explain`'s.
"""

from __future__ import annotations

import click

from backfill_assets.cli.base import json_option, opened_instance, opened_platform, say, show
from manifests.errors import InputRefused, Problem


@click.command()
@click.argument("run_id")
@click.option(
    "--largest", type=click.IntRange(0, 1_000), help="Rows shown of the largest changes, by column and kind [5]."
)
@click.option("--sample", type=click.IntRange(0, 100), help="Rows sampled of each kind of change in each chunk [1].")
@click.option(
    "--table",
    is_flag=True,
    help="Put every changed row into the table TARGET_changes, which anybody can query: old and new values side by side.",
)
@click.option("--recorded", is_flag=True, help="Only show the diff that is on record; read no rows.")
@json_option
def diff(run_id: str, largest: int | None, sample: int | None, table: bool, recorded: bool, as_json: bool) -> None:
    """Compare what readers have before RUN_ID with what they have after it, row by row, by business key.

    RUN_ID is staged whole, or published. Before is the snapshot that it was planned on; after are its staged rows, of a
    merge the rows that it leaves, of corrections the rows with the corrections applied. Lineage columns are not compared.

    Safe to repeat: the summary is put on record beside the run's evidence once, and shown from there the next time. The
    changes table is a copy of business data in a place of its own: it is written with --table only, once a run.
    """
    from backfill_assets.cli import diff_view
    from backfill_assets.cli.terminal import make_console
    from backfill_assets.defs import diff_events
    from backfill_assets.review.diff import diff_run, diff_summary, stale_chunks
    from backfill_assets.review.diff import recorded as on_record

    with opened_platform() as platform:
        record = platform.ledger.run(run_id)
        stale: list[str] = []
        if recorded:
            found = on_record(platform, run_id)
            if found is None:
                raise InputRefused(
                    Problem(f"no diff of '{run_id}' is on record", "--recorded makes none", "leave the option out")
                )
            made = found
        else:
            with make_console(stderr=True).status(f"comparing {len(record.plan.chunks)} chunks of {run_id}"):
                made = diff_run(platform, run_id, largest=largest, sample=sample, table=table)
            stale = stale_chunks(platform, run_id)
            summary = diff_summary(platform, run_id)
            if made.new and summary is not None:
                with opened_instance(platform.settings) as instance:
                    diff_events.report(platform, instance, record.plan, summary)
    if as_json:
        say({"new": made.new, "stale_chunks": stale, "changes_table": made.table, "diff": made.diff})
    else:
        show(diff_view.shown(made, stale))


@click.command()
@click.argument("table")
@click.option(
    "--key",
    "keys",
    multiple=True,
    required=True,
    metavar="COLUMN=VALUE[,...]",
    help="The row's key. Given once with commas, or once a column, where a value holds a comma.",
)
@json_option
def explain(table: str, keys: tuple[str, ...], as_json: bool) -> None:
    """Say why a row of TABLE says what it says.

    Which run made it, who asked for that and why, from which source rows and with which code, what its gates said; and
    what the row said before, version by version. Of a key that is not there: whether it ever was, and what removed it.
    Reads a few files with PyIceberg and starts no Spark.
    """
    from backfill_assets.audit.explain import explain as find
    from backfill_assets.cli import explain_view

    with opened_platform() as platform:
        found = find(platform, table, keys)
    if as_json:
        say(found)
    else:
        show(explain_view.shown(found))
