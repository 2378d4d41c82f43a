"""What `land` does of the changes of a database, and what it prints.

Put here what is said of a changelog. Its arguments are `cli.logs`'; what landing one is, `ingestion.landed_changes`'.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from backfill_assets.cli.base import opened_instance, opened_platform, say, tell
from backfill_assets.cli.log_gaps import accepted_as_data, missing_as_data, not_accepted, tell_accepted, tell_missing
from manifests.log_breaks import breaks_of
from manifests.log_ranges import LogKind, LogRange, gaps, joined, lsn_ranges
from manifests.log_ranges import lsn as lsn_in_words

if TYPE_CHECKING:
    from backfill_assets.ingestion.landed_changes import Landed, LandedLoad
    from backfill_assets.installation import Platform

_SHOWN = 5


def land_changelog(log: str, folder: Path, *, accept_gap: str | None, by: str | None, as_json: bool) -> None:
    """Land a changelog in the installation of this process, tell Dagster of it, and print what came of it."""
    from backfill_assets.defs.launch import report_inputs
    from backfill_assets.ingestion.landed_changes import land_changes

    with opened_platform() as platform, opened_instance(platform.settings) as instance:
        done = land_changes(platform, log, folder, accept_gap=accept_gap, by=by)
        report_inputs(platform, instance)
    if as_json:
        say(done)
    else:
        tell_landed(done)
        if accept_gap is not None and not done.accepted:
            tell("  no gap was accepted: nothing that was landed has one before it that nobody had accepted")
    if not done.is_open_kept:
        raise SystemExit(1)  # whoever deletes what was landed keeps these files


def tell_landed(done: Landed) -> None:
    """Say what was landed of a delivery, and what was not."""
    if not done.loads:
        tell(f"{done.changelog}: nothing new in the files")
    for one in done.loads:
        tell(f"{done.changelog}: {one.rows:,} changes landed, {lsn_ranges([one.range])}")
        tell(f"  {done.table}: snapshot {one.snapshot_id}, load {one.load_id}")
        _tell_undeclared(one, done.table)
    if done.again:
        tell(f"  in the table already: {done.again:,} transactions and snapshots")
    for lsn in done.passed_over:
        tell(f"  the snapshot at {lsn_in_words(lsn)} is of a range that is landed: its reads were left out")
    for what, number in done.left_out.items():
        tell(f"  left out: {what}: {number:,}")
    _tell_unfinished(done)
    for gap in done.accepted:
        tell(f"  accepted, and on record: {gap}")


def _tell_unfinished(done: Landed) -> None:
    for open_one in done.open[:_SHOWN]:
        tell(f"  still open{', and kept' if done.is_open_kept else ''}: {open_one}")
    for rule, number in done.unreadable.items():
        tell(f"  {'quarantined' if done.is_kept else 'unreadable'} {rule}: {number:,}")
    if not done.is_open_kept:
        tell(
            "  nothing of it was kept, since nothing new is whole: deliver these files once more with those that follow"
        )
    elif not done.is_kept and done.unreadable:
        tell("  they were not quarantined, since nothing was landed: what the table has is whole without them")


def _tell_undeclared(one: LandedLoad, table: str) -> None:
    """Say which rows no run is planned over, and what makes them readable."""
    for columns, number in one.undeclared.items():
        tell(f"  {number:,} of them have columns that no declared version of their table has: {columns}")
    if one.undeclared:
        tell(
            f"  no run is planned over them: declare the version and a reader, `backfill unload {table}` this load, and land it again"
        )


def changelog_shown(platform: Platform, name: str) -> dict[str, Any]:
    """Return what is landed of a changelog, as plain data."""
    from resources.lakehouse.landed_logs import accepted_gaps

    changelog = platform.products.changelog(name)
    loads = platform.lakehouse.landed_loads(changelog.table)
    ranges = [one for load in loads for one in load.landed.ranges]
    breaks = breaks_of(load.landed for load in loads)
    missing = joined([*gaps(one.range for one in ranges), *(one.lost for one in breaks)])
    accepted = accepted_gaps(changelog.table, loads)
    times = [at for one in ranges for at in (one.first_time, one.last_time) if at is not None]
    return {
        "log": name,
        "table": changelog.table,
        "identity": loads[-1].landed.log if loads else None,
        "loads": len(loads),
        "ranges": [[one.start, one.until] for one in joined(one.range for one in ranges)],
        "gaps": [[one.start, one.until] for one in missing],
        "missing": missing_as_data(not_accepted(missing, accepted), loads, LogKind.CHANGELOG),
        "accepted_gaps": accepted_as_data(accepted, loads),
        "breaks": breaks,
        "changes": sum(one.rows for one in ranges),
        "first_time": min(times, default=None),
        "last_time": max(times, default=None),
    }


def show_changelog(found: dict[str, Any]) -> None:
    """Print what is landed of a changelog."""
    tell(f"{found['log']}: the changes of a database, in {found['table']}")
    if found["identity"] is None:
        tell("  nothing is landed")
        return
    tell(f"  {found['identity']}, {found['loads']:,} load(s), {found['changes']:,} changes")
    for name in ("ranges", "gaps"):
        said = lsn_ranges(LogRange(0, start, until) for start, until in found[name])
        tell(f"  {'landed' if name == 'ranges' else 'gaps'}: {said or 'none'}")
    tell_missing(found["missing"], LogKind.CHANGELOG, found["log"])
    tell_accepted(found["accepted_gaps"], LogKind.CHANGELOG)
    for one in found["breaks"]:
        tell(f"  break: {one.describe()}")
    if found["first_time"] is None:  # positions of which no change is of a declared table
        return
    tell(f"  committed {found['first_time']:%Y-%m-%d %H:%M:%S} to {found['last_time']:%Y-%m-%d %H:%M:%S} (UTC)")
