"""What must hold before a migration goes a step on, or back: each a check with what was found, in words.

Put here questions to ledger and tables; nothing is changed. Which step asks which of them is `steps`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backfill_assets.declarations.migrations import Migration
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.migration.catching_up import OPEN
from backfill_assets.migration.lag import Gap, gaps
from backfill_assets.publication.leasing import has_landed
from backfill_assets.schedules import live
from manifests.errors import Refused
from manifests.lifecycle import PUBLISH
from manifests.migration_steps import CutOver, Side
from manifests.model import Mode
from resources.ledger.migration_steps import DualRead, MigrationStep

_SHOWN = 5


@dataclass(frozen=True)
class Check:
    """One thing that a step asks for: whether it is so, and what was found; `gaps` are those of `side`, if it is about them."""

    name: str
    passed: bool
    found: str
    gaps: Sequence[Gap] = ()
    side: Side | None = None

    def as_record(self) -> Mapping[str, Any]:
        """Return the check as it is on record with a step."""
        return {"name": self.name, "passed": self.passed, "found": self.found}


def has_history(platform: Platform, migration: Migration) -> Check:
    """Every day that the old table has is in the new one."""
    old, new = platform.products.target(migration.old), platform.products.target(migration.new)
    if not platform.ledger.accepted(old.name):
        return Check("history", passed=False, found=f"nothing of {old.name} is published: there is nothing to move")
    missing = [gap for gap in gaps(platform, new, old) if gap.missing]
    found = _of_gaps(new, missing) or f"{new.name} has every day that {old.name} has"
    return Check("history", not missing, found, missing, Side.NEW)


def is_caught_up(
    platform: Platform, migration: Migration, step: MigrationStep, side: Side, *, live_takes: bool = False
) -> Check:
    """The table of one side lacks nothing of the other's; with `live_takes`, but for what LIVE's next run of it covers.

    No run is asked for what LIVE takes in, where it may write the table, or will from here on.
    """
    target = platform.products.target(migration.table(side))
    other = platform.products.target(migration.table(side.other))
    left = gaps(platform, target, other)
    if not left:
        return Check("caught_up", passed=True, found=f"{target.name} lacks nothing that {other.name} has")
    ours = _without_live(platform, target, left) if live_takes or side in step.live else left
    if live_takes and not ours:
        found = f"{target.name} lacks nothing that {other.name} has, but for what LIVE takes in: {left[0]}"
        return Check("caught_up", passed=True, found=found)
    wider = gaps(platform, target, other, rewind_days=migration.rewind_days) if migration.rewind_days else left
    kept = [
        gap for gap in wider if any(gap.days.start <= one.days.end and gap.days.end >= one.days.start for one in ours)
    ]
    waits = "" if ours else "; LIVE takes it in"
    return Check("caught_up", passed=False, found=_of_gaps(target, left) + waits, gaps=kept, side=side)


def _without_live(platform: Platform, target: TargetTable, found: Sequence[Gap]) -> list[Gap]:
    """Return the gaps that LIVE's next run of a target does not cover."""
    if not found or target.live is None:
        return list(found)
    try:
        manifest = live.live_manifest(platform, target)
    except Refused:
        return list(found)
    if manifest is None:
        return list(found)
    days = manifest.target.publish_range
    return [gap for gap in found if not (days.start <= gap.days.start and gap.days.end <= days.end)]


def _of_gaps(target: TargetTable, found: Sequence[Gap]) -> str:
    more = f", and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    return f"{target.name} lacks {'; '.join(map(str, found[:_SHOWN]))}{more}" if found else ""


def readings_of(platform: Platform, step: MigrationStep) -> list[DualRead]:
    """Return the dual reads since LIVE writes, and readers read, as they do today; oldest first."""
    since = max(
        (one.number for one in platform.ledger.migrations.steps(step.migration) if one.live != step.live), default=0
    )
    return [one for one in platform.ledger.migrations.readings(step.migration) if one.number > since]


def agree(platform: Platform, migration: Migration, step: MigrationStep, *, wanted: int) -> Check:
    """The last dual reads agree, as many as are wanted, and no day was left out of them; nor does a later one disagree."""
    readings = readings_of(platform, step)
    whole = [one for one in readings if not one.found.get("left_out")]
    found = whole[-wanted:]
    if readings and readings[-1] not in found:
        found = [*found, readings[-1]]
    wrong = [one for one in found if one.share > migration.most_disagreeing or not one.compared]
    if wrong or len(whole) >= wanted:
        told = ", ".join(f"{one.disagreeing:,} of {one.compared:,} keys" for one in found)
        allowed = f" ({migration.most_disagreeing:.2%} may)" if migration.most_disagreeing else ""
        return Check("dual_reads", not wrong, f"in the last {len(found)} dual read(s) disagree {told}{allowed}")
    parts = len(readings) - len(whole)
    left = f"; {parts} more left days out, of which one table was behind the other" if parts else ""
    return Check("dual_reads", passed=False, found=f"{len(whole)} of {wanted} dual read(s) are there{left}")


def is_fresh(platform: Platform, migration: Migration, step: MigrationStep) -> Check:
    """The last whole dual read is of the tables as they are, but for what LIVE has published to both of them since."""
    readings = [one for one in readings_of(platform, step) if not one.found.get("left_out")]
    if not readings:
        return Check("fresh", passed=False, found="there is no dual read of all days")
    last = readings[-1]
    changed = [
        *_changes_since(platform, migration, migration.old, last.old_snapshot_id),
        *_changes_since(platform, migration, migration.new, last.new_snapshot_id),
    ]
    what = "; ".join(changed[:_SHOWN]) or "nothing but LIVE has changed either table"
    return Check("fresh", not changed, f"since the dual read of {last.at:%Y-%m-%d %H:%M} UTC {what}")


def _changes_since(platform: Platform, migration: Migration, table: str, snapshot_id: int) -> Iterator[str]:
    """Say what has changed a table since a snapshot; what LIVE published of the same sources does not count where it writes both tables."""
    old, new = (platform.products.target(one).every_source.keys() for one in (migration.old, migration.new))
    # of sources that the tables do not share nobody can say whether LIVE has brought both of them as far
    strict = migration.cut_over is CutOver.HARD or old != new
    history = platform.lakehouse.snapshots_in_order(table)
    if snapshot_id not in history:
        yield f"{table} was set back, or has forgotten the snapshot that was read"
        return
    on_record = {one.snapshot_id: one for one in platform.ledger.committed(table)}
    for later in history[: history.index(snapshot_id)]:
        one = on_record.get(later)
        if one is None:
            yield f"{table} was changed by another program (snapshot {later})"
        elif one.action != PUBLISH:
            yield f"{table} was changed by the {one.action.lower()} of {one.run_id}"
        elif strict or platform.ledger.run(one.run_id).mode != Mode.LIVE:
            yield f"{one.run_id} was published to {table}"


def nobody_publishes(platform: Platform, table: str, *, only_live: bool) -> Check:
    """No run (of LIVE, with `only_live`) may change a table yet."""
    open_ = [
        record.run_id
        for record in platform.ledger.runs(target=table, states=OPEN)
        if record.plan.mode.publishes and (record.mode == Mode.LIVE or not only_live)
    ]
    what = f"{', '.join(open_[:_SHOWN])} may change {table} yet" if open_ else f"no run may change {table} any more"
    return Check("no_open_runs", not open_, what)


def nobody_is_interrupted(platform: Platform, tables: Sequence[str]) -> Check:
    """No change of the tables has landed that is not on record; one that was begun and has not, cannot any more under their leases."""
    left = [
        run_id
        for table in tables
        for _, run_id, action in platform.ledger.interrupted_publications(table)
        if has_landed(platform, platform.ledger.run(run_id), action)
    ]
    what = (
        f"the publication of {', '.join(left[:_SHOWN])} was interrupted" if left else "every publication is on record"
    )
    return Check("on_record", not left, what)


def nobody_computes_from(platform: Platform, table: str) -> Check:
    """No declared target is computed from a table, and no read model that moved to it before is still asked for."""
    readers = [one.name for one in platform.products.targets if table in (*one.every_read, *one.references)]
    for one in platform.products.migrations.values():
        newest = platform.ledger.migrations.newest(one.name)
        if newest is not None and newest.old_table != table and table in map(newest.table_of, newest.readers.sides):
            readers.append(f"migration {one.name}")
    what = f"{', '.join(readers)} read(s) {table}" if readers else f"nothing else reads {table}"
    return Check("no_readers", not readers, what)


def everybody_reads(step: MigrationStep, side: Side) -> Check:
    """Readers all read one side."""
    readers = step.readers
    others = sorted(
        name for said in (readers.consumers, readers.slices) for name, one in said.items() if one is not side
    )
    passed = readers.everybody is side and not others
    what = f"{', '.join(others) or 'everybody'} read(s) {step.table_of(side.other)}"
    return Check("readers", passed, f"everybody reads {step.table_of(side)}" if passed else what)


def failed(checks: Sequence[Check]) -> Iterator[Check]:
    """Yield the checks that do not hold."""
    return (one for one in checks if not one.passed)
