"""The commands that keep an installation healthy: `doctor`, `gc`.

Put here arguments and output; what disagrees is `operations.doctor`'s, what may go `operations.garbage`'s.
"""

from __future__ import annotations

import sys
from datetime import datetime
from functools import partial

import click

from backfill_assets.cli.base import (
    EXIT_FAILED,
    json_option,
    opened_platform,
    say,
    show,
    tell,
)
from manifests.errors import (
    InputRefused,
    Problem,
)


@click.command()
@click.option("--repair", is_flag=True, help="Repair what is provably safe; without it nothing is changed.")
@json_option
def doctor(repair: bool, as_json: bool) -> None:
    """Hold ledger, tables, staged files and evidence against each other, and say what disagrees.

    Exit code 0 if nothing does (after the repairs, if asked for), else 1.
    """
    from backfill_assets.cli import console
    from backfill_assets.defs.untold import dagster_disagreements
    from backfill_assets.operations.doctor.examination import examine
    from backfill_assets.operations.doctor.repairing import mend

    with opened_platform() as platform:
        more = partial(dagster_disagreements, platform)
        repaired, left = mend(platform, more) if repair else ([], [*examine(platform), *more()])
    if as_json:
        say(
            {
                "repaired": [one.found.shown() | {"done": one.done} for one in repaired],
                "findings": [one.shown() for one in left],
            }
        )
    else:
        show(console.disagreements(left, repaired))
    if left:
        sys.exit(EXIT_FAILED)


def _agreed(as_json: bool) -> bool:
    """Ask whether what was shown may be removed; refuse where nobody can be asked."""
    if as_json or not sys.stdin.isatty():
        raise InputRefused(
            Problem("there is no terminal to confirm on", "a removal is agreed to first", "add --yes to --delete")
        )
    return click.confirm("Remove it for good?")


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what and how much: the default, said aloud.")
@click.option("--delete", is_flag=True, help="Remove it, after asking.")
@click.option("--yes", is_flag=True, help="With --delete: do not ask.")
@click.option(
    "--today",
    type=click.DateTime(["%Y-%m-%d"]),
    help="The date as another clock says it: only where this machine's clock is not believed by itself.",
)
@json_option
def gc(dry_run: bool, delete: bool, yes: bool, today: datetime | None, as_json: bool) -> None:
    """Remove staged files of dead runs and old snapshots that no run needs, after showing what and how much.

    Settings keep_superseded_days, keep_dead_runs_days and keep_snapshots_days say for how long what is kept. Never a file
    that any snapshot references, nothing that an accepted run needs, no evidence. Safe to kill and to repeat.
    What is too old is told by this machine's clock: it is held against the file system's, the ledger's and the catalog's.
    """
    from backfill_assets.cli import console
    from backfill_assets.operations import clock
    from backfill_assets.operations.garbage import collect, find, tables
    from resources.ledger.facade import operator

    if dry_run and delete:
        raise InputRefused(
            Problem(
                "--dry-run and --delete", "these options exclude each other: --dry-run only lists", "give one of them"
            )
        )
    confirmed = None if today is None else today.date()
    with opened_platform() as platform:
        at = platform.ledger.now()
        if delete:
            recorded = clock.recorded_instants(platform, tables(platform))
            clock.require_believable(at, clock.present_instants(platform), recorded, confirmed)
        found = find(platform, at=at)
        if not as_json:
            show(console.garbage(found))
        if not delete:
            if as_json:
                say({"dryRun": True, "bytes": sum(one.bytes for one in found), "found": found})
            return
        if not (yes or _agreed(as_json)):
            tell("nothing was removed")
            return
        done = collect(platform, found, by=operator(), at=at, confirmed=confirmed)
    if as_json:
        say({"dryRun": False, "found": found, "collected": done})
        return
    for one in done:
        tell(
            f"{one.table}: removed {one.files:,} files ({one.bytes / 1e6:,.3f} MB), {len(one.snapshots)} snapshots, "
            f"{len(one.refs)} refs; left {len(one.left)} of the listed files alone"
        )
    if not done:
        tell("nothing to remove")
