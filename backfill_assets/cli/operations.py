"""`backfill metrics` and `backfill runbook`: what those who operate an installation look at.

Put here arguments, output and exit codes. What a metric is, is `operations.metrics`'; what a step of the runbook is,
`operations.runbook`'s.
"""

from __future__ import annotations

from pathlib import Path

import click

from backfill_assets.cli.base import json_option, opened_platform, say, show, tell
from manifests.errors import InputRefused, Problem


@click.command()
@click.option("--output", type=click.Path(path_type=Path), help="Write them to this file, as a whole or not at all.")
@click.option("--listen", metavar="HOST:PORT", help="Serve them over HTTP until interrupted; PORT alone: this machine.")
@click.option(
    "--days",
    type=click.IntRange(0, 36_500),
    default=30,
    show_default=True,
    help="Days for which an ended run is shown.",
)
@click.option(
    "--runs", type=click.IntRange(0, 1_000_000), default=100, show_default=True, help="Runs shown one by one, at most."
)
@json_option
def metrics(output: Path | None, listen: str | None, days: int, runs: int, as_json: bool) -> None:
    """Print metrics for Prometheus, read from the ledger: rows, chunks, durations, failures, watermarks.

    Nothing is counted by a process: whoever asks, and whenever, gets what is on record. What is not on record is absent,
    never 0. Shown one by one are runs that are not over, and those that ended within --days; the newest --runs of them.

    \b
      backfill metrics --output /var/lib/node_exporter/textfile/backfill.prom     from a timer
      backfill metrics --listen 127.0.0.1:9464                                    http://127.0.0.1:9464/metrics

    HTTP has no login and no encryption: leave it on the loopback interface, or put a proxy in front of it.
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph
    from backfill_assets.operations import metrics as figures

    if sum((output is not None, listen is not None, as_json)) > 1:
        raise InputRefused(
            Problem("--output, --listen, --json", "these options exclude each other", "give one of them")
        )
    with opened_platform() as platform:
        held = figures.registry(platform, days=days, most=runs)
        if as_json:
            say(figures.samples(held))
        elif output is not None:
            figures.write(held, output)
            tell(f"written: {output}")
        elif listen is None:
            click.echo(figures.text(held), nl=False)
        else:
            host, port = figures.address(listen)
            port, server, thread = figures.serve(held, host, port)
            shown = f"[{host}]" if ":" in host else host
            tell(f"metrics on http://{shown}:{port}/metrics (stop with Ctrl-C)")
            if not figures.is_loopback(host):
                tell("others can reach this address: there is no login and no encryption", err=True)
            try:
                thread.join()
            except KeyboardInterrupt:
                server.shutdown()
            finally:
                server.server_close()


@click.command()
@click.argument("run_id")
@click.option("--markdown", is_flag=True, help="Print Markdown, for a ticket.")
@json_option
def runbook(run_id: str, markdown: bool, as_json: bool) -> None:
    """Print the runbook filled in with RUN_ID: each step with what is on record, and the next command. Changes nothing.

    The steps are those of docs/runbook.md, from the reason to the archive.
    """
    from backfill_assets.operations import runbook as book
    from resources.ledger import launches

    if markdown and as_json:
        raise InputRefused(Problem("--markdown and --json", "these options exclude each other", "give one of them"))
    with opened_platform() as platform:
        record = platform.ledger.run(run_id)
        steps = book.steps(platform, run_id)
        why = launches.reason(record, platform.ledger.launches.waits(record))
    if as_json:
        say({"runId": run_id, "state": record.state, "target": record.target, "steps": steps})
    elif markdown:
        click.echo(book.markdown(record, why, steps), nl=False)
    else:
        from backfill_assets.cli.console import runbook as shown

        show(shown(record, why, steps))
