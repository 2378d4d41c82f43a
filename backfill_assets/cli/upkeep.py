"""The commands that keep an installation and its tables healthy: `doctor`, `gc`, `split-files`.

Put here arguments and output; what disagrees is `operations.doctor`'s, what may go `operations.garbage`'s,
which files are parted `operations.splitting`'s.
"""

from __future__ import annotations

import sys
from datetime import datetime
from functools import partial
from pathlib import Path

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


@click.command("split-files")
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option("--preview", is_flag=True, help="Only show which files would be parted, and where.")
@json_option
def split_files(manifest: Path, preview: bool, as_json: bool) -> None:
    """Part the files of a table that hold rows on both sides of MANIFEST's publish range, so that it can be planned.

    For tables that somebody else has written: a publication replaces whole files. Their rows are written again as they are,
    in files of their own on each side of the border, held against what they were, and put in their place by one commit:
    readers have the same rows before and after. The manifest has to ask for it (target.filesAcrossBorder: SPLIT); files of
    runs are never parted. Safe to kill and to repeat.
    """
    from backfill_assets.cli.terminal import make_console
    from backfill_assets.operations import splitting
    from manifests.reading import load_manifest

    contract = load_manifest(manifest)
    with opened_platform() as platform:
        plan = splitting.split_plan(platform, contract)
        if preview or not plan.files:
            done = splitting.Done(plan)
        elif as_json:
            done = splitting.split_files(platform, contract)
        else:
            from rich.progress import Progress

            with Progress(console=make_console(stderr=True)) as bars:
                task = bars.add_task("splitting", total=2 * plan.rows)
                done = splitting.split_files(platform, contract, lambda rows: bars.advance(task, rows))
    if as_json:
        say(done.shown())
        return
    for file in done.plan.files:
        tell(f"{'would part' if preview else 'parted'} {file.file_path} ({file.record_count:,} rows)")
    for run_id in done.plan.ends_for:
        tell(
            f"'{run_id}', which was rolled back, {'could' if preview else 'can'} not be reinstated any more: plan its change anew"
        )
    if not done.plan.files:
        tell(f"no file of {done.plan.table} holds rows on both sides of the publish range: plan the run")
    elif not preview:
        tell(
            f"{done.plan.rows:,} rows of {len(done.plan.files)} file(s) lie in {done.pieces} by snapshot {done.snapshot_id}, "
            "unchanged: plan the run"
        )
