"""The commands of a read model that moves from one table to another: `migration plan`, `status`, `compare`, `advance`, `undo`, `where`.

Put here arguments, output and exit codes. What a step asks is `backfill_assets.migration`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.base import EXIT_FAILED, F, json_option, opened_instance, opened_platform, say, show, tell
from backfill_assets.cli.decisions import by_option
from backfill_assets.cli.launching import execute
from manifests.lifecycle import RunState
from manifests.text import visible

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from backfill_assets.declarations.migrations import Migration
    from backfill_assets.installation import Platform
    from backfill_assets.migration.catching_up import CatchUp
    from backfill_assets.migration.gates import Check
    from backfill_assets.migration.reading import Part
    from backfill_assets.migration.steps import Taken
    from resources.ledger.migration_steps import DualRead, MigrationStep

_ROUNDS = 10
_STEPS_SHOWN, _READINGS_SHOWN, _SLICES_SHOWN, _RUNS_SHOWN = 8, 10, 10, 10
_LAUNCHABLE = frozenset({RunState.APPROVED, RunState.RUNNING, RunState.STAGED, RunState.VALIDATED})


def _reason(*, required: bool) -> Callable[[F], F]:
    return click.option("--reason", default="" if not required else None, required=required, help="Why; on record.")


def _some(command: F) -> F:
    """Give a command `--consumer` and `--slice`."""
    command = click.option(
        "--slice", "slices", multiple=True, metavar="VALUE", help="Only this slice; may be repeated."
    )(command)
    return click.option("--consumer", "consumers", multiple=True, help="Only this consumer; may be repeated.")(command)


@click.group()
def migration() -> None:
    """Move a read model from its old table to a new one, step by step; every step but the last can be undone.

    \b
      PLANNED         it has begun; the history is to be computed for the new table
      SHADOWED        every day of the old table is in the new one
      CAUGHT_UP       so is what came meanwhile; with dual writes LIVE writes both
      COMPARED        dual reads agree; consumers and slices may go over one by one
      HELD            (hard cut-over) LIVE stands still
      CUT_OVER        everybody reads the new table
      RETURNING       (hard cut-over, undone) LIVE writes the old table again
      DECOMMISSIONED  nobody reads or writes the old one: there is no way back
      ABANDONED       given up, by undo from PLANNED; it may be planned anew

    \b
      backfill migration plan case_sla --reason "deadlines by the local calendar"
      backfill migration advance case_sla          again and again: it says what it waits for
      backfill migration advance case_sla --consumer billing
      backfill migration undo case_sla --reason "billing sees other totals"
      backfill migration where case_sla --consumer billing --json
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph


@migration.command("plan")
@click.argument("name")
@by_option
@_reason(required=True)
@json_option
def plan_migration(name: str, by: str | None, reason: str, as_json: bool) -> None:
    """Begin the migration NAME, as a product declares it; nobody reads or writes anything else by that. Safe to repeat."""
    from backfill_assets.migration import steps

    with opened_platform() as platform:
        declared = platform.products.migration(name)
        step = steps.planned(platform, declared, by=by, reason=reason)
        if as_json:
            say(_step_as_data(step))
            return
        tell(
            f"migration {name}: {step.step} since step {step.number}, {declared.old} -> {declared.new} ({declared.cut_over})"
        )
        tell(f"next: backfill migration advance {name}")


@migration.command("status")
@click.argument("name", required=False)
@json_option
def migration_status(name: str | None, as_json: bool) -> None:
    """Show where migrations stand, who reads which table, the steps that were taken and how dual reads have drifted."""
    with opened_platform() as platform:
        platform.ledger.migrations.require_explained()
        names = sorted(platform.products.migrations) if name is None else [platform.products.migration(name).name]
        if as_json:
            say([_status_as_data(platform, platform.products.migration(one)) for one in names])
            return
        if not names:
            tell("no product declares a migration (`migrations=(ba.Migration(...),)`)")
        for one in names:
            _show_status(platform, platform.products.migration(one))


@migration.command("compare")
@click.argument("name")
@json_option
def compare_tables(name: str, as_json: bool) -> None:
    """Read both tables at one snapshot of each, compare them by key, and put on record how many rows differ, by slice and month.

    Days of which either table is behind the other are left out. Starts Spark; writes no table. Exit code 1 if more keys disagree than
    the migration allows.
    """
    with opened_platform() as platform:
        declared = platform.products.migration(name)
        found = _compared(platform, declared)
        if as_json:
            say(_reading_as_data(found))
        else:
            _show_reading(declared, found)
        agrees = found.compared > 0 and found.share <= declared.most_disagreeing
    if not agrees:
        sys.exit(EXIT_FAILED)


@migration.command("advance")
@click.argument("name")
@_some
@click.option("--run", "runs", is_flag=True, help="Compute, gate and publish the approved runs that it waits for.")
@click.option("--final", is_flag=True, help="Decommission the old table: the one step that cannot be undone.")
@by_option
@_reason(required=False)
@json_option
def advance_migration(
    name: str,
    consumers: tuple[str, ...],
    slices: tuple[str, ...],
    runs: bool,
    final: bool,
    by: str | None,
    reason: str,
    as_json: bool,
) -> None:
    """Take the next step of the migration NAME, if what it asks for holds; else plan what is missing, and say what it waits for.

    Runs that fill the new table are planned as proposals: a person approves them, or the rule of the table does (`proposals` in
    the policy). Dual reads that it lacks are made (starts Spark). With --consumer or --slice only these go over to the new table.

    Exit codes: 0 a step was taken; 1 it waits; 2 refused.
    """
    with (
        opened_platform() as platform,
        opened_instance(platform.settings) if runs else nullcontext() as instance,
    ):
        declared = platform.products.migration(name)
        done = _advanced(platform, instance, declared, (by, reason, consumers, slices, final), quiet=as_json)
        _show_taken(declared, done, as_json=as_json)
    if not done.moved:
        sys.exit(EXIT_FAILED)


@migration.command("undo")
@click.argument("name")
@_some
@click.option(
    "--behind", is_flag=True, help="Although the old table lacks what the new one has: readers go back in time."
)
@by_option
@_reason(required=True)
@json_option
def undo_migration(
    name: str,
    consumers: tuple[str, ...],
    slices: tuple[str, ...],
    behind: bool,
    by: str | None,
    reason: str,
    as_json: bool,
) -> None:
    """Go a step of the migration NAME back: readers first, while any of them reads the new table. What was published stays.

    Readers go back once the old table lacks nothing that they have read in the new one. Exit codes as `advance`.
    """
    from backfill_assets.migration import steps

    with opened_platform() as platform:
        declared = platform.products.migration(name)
        done = steps.undo(platform, declared, by=by, reason=reason, consumers=consumers, slices=slices, behind=behind)
        _show_taken(declared, done, as_json=as_json)
    if not done.moved:
        sys.exit(EXIT_FAILED)


@migration.command("where")
@click.argument("name")
@click.option("--consumer", help="Who reads; one of the declared consumers.")
@click.option("--slice", "slice_", metavar="VALUE", help="The slice that is read.")
@json_option
def where_to_read(name: str, consumer: str | None, slice_: str | None, as_json: bool) -> None:
    """Say from which table, and at which snapshot, the read model NAME is read: what a consumer asks before it reads."""
    from backfill_assets.migration.reading import where_to_read as answer

    with opened_platform() as platform:
        found = answer(platform, name, consumer=consumer, slice_=slice_)
    if as_json:
        say(
            {
                "name": found.name,
                "edition": found.edition,
                "step": found.step,
                "parts": [_part(one) for one in found.parts],
            }
        )
        return
    for part in found.parts:
        which = ""
        if part.slices is not None:
            which = f" where {part.slice_column} is {'none' if part.but else 'one'} of {', '.join(map(visible, part.slices))}"
        tell(f"{part.table} at snapshot {part.snapshot_id}{which}")


# --- advancing ------------------------------------------------------------------------------------------------------


def _advanced(
    platform: Platform,
    instance: DagsterInstance | None,
    declared: Migration,
    asked: tuple[str | None, str, tuple[str, ...], tuple[str, ...], bool],
    *,
    quiet: bool,
) -> Taken:
    """Advance, make the dual reads and (with an `instance`) the runs that are lacking, and advance again, as long as that gets on."""
    from backfill_assets.migration import steps

    by, reason, consumers, slices, final = asked

    def once() -> Taken:
        return steps.advance(platform, declared, by=by, reason=reason, consumers=consumers, slices=slices, final=final)

    done = once()
    for _ in range(_ROUNDS):
        if done.moved:
            break
        computed = instance is not None and _computed(platform, instance, done.runs, quiet=quiet)
        if not computed:
            if not _another_reading_helps(declared, done):
                break
            found = _compared(platform, declared)
            if not quiet:
                tell(f"dual read: {found.disagreeing:,} of {found.compared:,} keys disagree")
        done = once()
    return done


def _computed(platform: Platform, instance: DagsterInstance, found: tuple[CatchUp, ...], *, quiet: bool) -> bool:
    """Compute, gate and publish the approved runs among some; return whether any was published."""
    published = False
    for one in found:
        if one.record is not None and one.record.state in _LAUNCHABLE:
            execute(platform, instance, one.record.run_id, (), progress=not quiet, resumes=False)
            state = platform.ledger.run(one.record.run_id).state
            published |= state is RunState.PUBLISHED
            if not quiet:
                tell(f"  {one.record.run_id} -> {state}")
    return published


def _another_reading_helps(declared: Migration, done: Taken) -> bool:
    """Whether nothing but dual reads is lacking, and the newest was not just made and found that the tables disagree."""
    wanting = {check.name: check for check in done.checks if not check.passed}
    if not wanting or wanting.keys() - {"dual_reads", "fresh"}:
        return False
    if "fresh" in wanting or done.newest is None:
        return True
    return done.newest.share <= declared.most_disagreeing and done.newest.compared > 0


def _compared(platform: Platform, declared: Migration) -> DualRead:
    from backfill_assets.migration.dual_read import compare
    from backfill_assets.migration.steps import standing

    return compare(platform, declared, standing(platform, declared))


# --- what is shown ----------------------------------------------------------------------------------------------------


def _show_taken(declared: Migration, done: Taken, *, as_json: bool) -> None:
    if as_json:
        say(
            _step_as_data(done.step)
            | {
                "moved": done.moved,
                "checks": [check.as_record() for check in done.checks],
                "runs": [
                    {"days": one.gap.days, "runId": None if one.record is None else one.record.run_id, "why": one.why}
                    for one in done.runs
                ],
            }
        )
        return
    step = done.step
    tell(f"migration {declared.name}: {step.step}" + (f" (step {step.number})" if done.moved else ", and stays there:"))
    _tell_checks(done.checks)
    for one in done.runs[:_RUNS_SHOWN]:
        tell(f"  {one.gap}: {one.why}")
    if len(done.runs) > _RUNS_SHOWN:
        tell(f"  and {len(done.runs) - _RUNS_SHOWN:,} more: `backfill status` lists runs")
    waiting = [
        one.record.run_id for one in done.runs if one.record is not None and one.record.state is RunState.PLANNED
    ]
    if waiting:
        tell(f"next: backfill approve {waiting[0]}; then backfill migration advance {declared.name} --run")
    elif done.runs:
        tell(f"next: backfill migration advance {declared.name} --run")
    if done.moved:
        _tell_readers(step)


def _tell_checks(checks: tuple[Check, ...]) -> None:
    for check in checks:
        tell(f"  {'ok     ' if check.passed else 'NOT YET'} {check.name}: {check.found}")


def _tell_readers(step: MigrationStep) -> None:
    readers = step.readers
    tell(f"  everybody reads {step.table_of(readers.everybody)}")
    for kind, said in (("consumer", readers.consumers), ("slice", readers.slices)):
        for name, side in said.items():
            tell(f"  {kind} {name} reads {step.table_of(side)}")
    writes = ", ".join(sorted(map(step.table_of, step.live)))
    tell(f"  LIVE {f'may write {writes}' if writes else 'stands still'}")


def _show_status(platform: Platform, declared: Migration) -> None:
    from backfill_assets.cli.terminal import Table
    from backfill_assets.migration.gates import is_fresh
    from manifests.migration_steps import OVER

    step = platform.ledger.migrations.newest(declared.name)
    if step is None:
        tell(f"migration {declared.name}: declared ({declared.old} -> {declared.new}), and not begun")
        tell(f"next: backfill migration plan {declared.name} --reason TEXT")
        return
    tell(f"migration {declared.name}: {step.step}, {step.old_table} -> {step.new_table} ({step.cut_over})")
    _tell_readers(step)
    table = Table(title="steps", title_justify="left")
    for column in ("step", "action", "to", "by", "at (UTC)", "what and why"):
        table.add_column(column)
    for one in platform.ledger.migrations.steps(declared.name)[-_STEPS_SHOWN:]:
        at = f"{one.at:%Y-%m-%d %H:%M:%S}"
        moved = next((each["found"] for each in one.findings.get("checks", []) if each["name"] == "moved"), "")
        why = ": ".join(part for part in (moved, one.reason) if part)
        table.add_row(str(one.number), one.action, one.step, visible(one.decided_by), at, visible(why))
    show(table)
    readings = platform.ledger.migrations.readings(declared.name, last=_READINGS_SHOWN)
    if readings:
        show(_drift_table(readings))
        _show_reading(declared, readings[-1])
        if step.step not in OVER and not (fresh := is_fresh(platform, declared, step)).passed:
            tell(f"  NOT OF TODAY: {fresh.found}")


def _drift_table(readings: list[DualRead]) -> Any:
    from backfill_assets.cli.reconciliation import sparkline
    from backfill_assets.cli.terminal import Table
    from backfill_assets.migration.dual_read import by_slice

    first, last = readings[0].at, readings[-1].at
    table = Table(
        title=f"drift: {len(readings)} dual read(s), {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC",
        title_justify="left",
    )
    table.add_column("slice")
    for column in ("disagree", "of"):
        table.add_column(column, justify="right")
    table.add_column("over time", no_wrap=True)
    totals = [one.disagreeing for one in readings]
    table.add_row("all", f"{totals[-1]:,}", f"{readings[-1].compared:,}", sparkline(tuple(map(float, totals))))
    for name, values in list(by_slice(readings))[:_SLICES_SHOWN]:
        if name:
            table.add_row(visible(name), f"{values[-1]:,}", "", sparkline(tuple(map(float, values))))
    return table


def _show_reading(declared: Migration, found: DualRead) -> None:
    from backfill_assets.migration.dual_read import months

    said = found.found
    tell(
        f"dual read {found.id}, {found.at:%Y-%m-%d %H:%M:%S} UTC: {found.disagreeing:,} of {found.compared:,} keys disagree "
        f"({found.share:.3%}; {declared.most_disagreeing:.3%} may)"
    )
    if found.disagreeing:
        tell(
            f"  only in the old table {said['only_old']:,}, only in the new one {said['only_new']:,}, "
            f"in both and different {said['different']:,}"
        )
        for name, number in said["columns"].items():
            tell(f"  column {name}: {number:,}")
        told = ", ".join(f"{month}: {number:,}" for month, number in list(months(said).items())[:_SLICES_SHOWN])
        tell(f"  by month: {told}")
    for gap in said.get("left_out", [])[:_SLICES_SHOWN]:
        tell(f"  left out, one table is behind: {gap}")


def _step_as_data(step: MigrationStep) -> dict[str, Any]:
    return {
        "migration": step.migration,
        "number": step.number,
        "action": step.action,
        "step": step.step,
        "old": step.old_table,
        "new": step.new_table,
        "cutOver": step.cut_over,
        "readers": step.readers.as_record(),
        "live": sorted(map(step.table_of, step.live)),
        "by": step.decided_by,
        "reason": step.reason,
        "at": step.at,
        "findings": dict(step.findings),
    }


def _reading_as_data(found: DualRead) -> dict[str, Any]:
    return {
        "id": found.id,
        "at": found.at,
        "oldSnapshotId": found.old_snapshot_id,
        "newSnapshotId": found.new_snapshot_id,
        "compared": found.compared,
        "disagreeing": found.disagreeing,
        "found": dict(found.found),
    }


def _status_as_data(platform: Platform, declared: Migration) -> dict[str, Any]:
    steps = platform.ledger.migrations.steps(declared.name)
    readings = platform.ledger.migrations.readings(declared.name, last=_READINGS_SHOWN)
    return {
        "migration": declared.name,
        "old": declared.old,
        "new": declared.new,
        "step": steps[-1].step if steps else None,
        "readers": steps[-1].readers.as_record() if steps else None,
        "steps": [_step_as_data(one) for one in steps],
        "readings": [_reading_as_data(one) for one in readings],
    }


def _part(part: Part) -> dict[str, Any]:
    return {
        "table": part.table,
        "side": part.side,
        "snapshotId": part.snapshot_id,
        "sliceColumn": part.slice_column or None,
        "slices": None if part.slices is None else list(part.slices),
        "but": part.but,
        "columns": None if part.columns is None else dict(part.columns),
    }
