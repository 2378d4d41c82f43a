"""The steps of a migration: planned, advanced, undone, each recorded with what it was taken on.

Put here what a step does and what it asks for, in which order; the questions are `gates`'. A step is one row of the ledger: it is
there or it is not, whoever is killed. Where readers go over, both tables stand still meanwhile (`readers_lease`), and the table
that they go to lacks nothing that the other one has: nobody reads a past that they have seen the end of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from backfill_assets import faults
from backfill_assets.declarations.migrations import Migration
from backfill_assets.evidence.migration_records import record_step
from backfill_assets.installation import Platform
from backfill_assets.migration import gates
from backfill_assets.migration.catching_up import CatchUp, catch_up, withdraw
from backfill_assets.migration.decisions import (
    deciding,
    known_readers,
    require_free,
    require_reason,
    require_slices,
    require_something_to_move,
)
from backfill_assets.migration.gates import Check, failed
from backfill_assets.migration.reading import require_as_declared
from backfill_assets.publication.leasing import readers_lease
from manifests.errors import DecisionRefused, Problem, Refused
from manifests.migration_steps import OVER, CutOver, Readers, Side, Step, next_step, step_before
from manifests.policy import Policy
from resources import logs
from resources.ledger.migration_steps import ADVANCE, PLAN, SWITCH, UNDO, DualRead, MigrationStep

_log = logging.getLogger(__name__)
_WAIT_SECONDS = 30.0
"""For how long a publication to one of the tables is waited for, before nobody goes over."""


@dataclass(frozen=True)
class Taken:
    """What came of an action: where the migration stands, and, if it could not go on, what does not hold and what is under way."""

    step: MigrationStep
    moved: bool
    checks: tuple[Check, ...] = ()
    runs: tuple[CatchUp, ...] = ()
    newest: DualRead | None = None
    """The newest dual read, where the migration could not go on."""


def planned(platform: Platform, migration: Migration, *, by: str | None, reason: str) -> MigrationStep:
    """Begin a migration; the same again changes nothing.

    Raises:
        DecisionRefused: if it is under way with another declaration, is over, or who acts may not ask for it.
        InputRefused: if there is nothing to move.
    """
    before = _completed(platform, migration)
    if before is not None and before.step not in OVER:
        require_as_declared(migration, before)
        return before
    if before is not None and before.step is Step.DECOMMISSIONED:
        raise DecisionRefused(
            Problem(
                f"migration {migration.name} is over: {before.old_table} was decommissioned",
                "a migration ends with its old table",
                "declare another one, under another name, from the table of today",
            )
        )
    with deciding(platform, migration, by, reason, None) as (name, policy):
        require_reason(reason)
        require_free(platform, migration)
        require_something_to_move(platform, migration)
        facts = platform.ledger.accepted(migration.old)
        return _taken(
            platform,
            migration,
            before,
            PLAN,
            Step.PLANNED,
            Readers(),
            [Check("to_move", passed=True, found=f"{len(facts):,} chunk(s) of {migration.old} are published")],
            (name, reason, policy),
        )


def advance(
    platform: Platform,
    migration: Migration,
    *,
    by: str | None,
    reason: str = "",
    consumers: Sequence[str] = (),
    slices: Sequence[str] = (),
    final: bool = False,
) -> Taken:
    """Take the next step if what it asks for holds; else plan what is missing, and say what it waits for.

    With `consumers` or `slices`, only these go over to the new table. The last step, which cannot be undone, is taken with `final`.

    Raises:
        DecisionRefused: if who acts may not decide, or somebody has taken a step meanwhile.
        LeaseHeld: if somebody publishes to one of the tables while readers are to go over.
    """
    step = standing(platform, migration)
    some = known_readers(platform, migration, consumers, slices)
    following = next_step(migration.cut_over, step.step)
    if some:
        return _switched(platform, migration, step, Side.NEW, (by, reason), *some)
    if following is None:
        raise DecisionRefused(
            Problem(f"migration {migration.name} is {step.step}", "that is its end", "there is nothing to advance")
        )
    if following is Step.DECOMMISSIONED and not final:
        raise DecisionRefused(
            Problem(
                f"the next step of migration {migration.name} decommissions {migration.old}",
                "it is the only step that cannot be undone",
                "give --final, if nobody will want the old table again",
            )
        )
    if final:
        require_reason(reason)
    goes_over = following in {Step.CUT_OVER, Step.DECOMMISSIONED}
    with deciding(platform, migration, by, reason, step if goes_over else None) as (name, policy):
        decided = (name, reason, policy)
        if not goes_over:
            checks = _checks(platform, migration, step, following)
            if any(failed(checks)):
                return _waiting(platform, migration, step, checks)
            return Taken(
                _taken(platform, migration, step, ADVANCE, following, step.readers, checks, decided), moved=True
            )
        return _under_leases(
            platform,
            migration,
            step,
            (ADVANCE, following, Readers(Side.NEW)),
            lambda: _checks(platform, migration, step, following),
            decided,
        )


def undo(
    platform: Platform,
    migration: Migration,
    *,
    by: str | None,
    reason: str,
    consumers: Sequence[str] = (),
    slices: Sequence[str] = (),
    behind: bool = False,
) -> Taken:
    """Go a step back: readers first, while any reads the new table. With `behind`, though the old table lacks what the new one has.

    Raises:
        DecisionRefused: if there is no way back, who acts may not decide, or somebody has taken a step meanwhile.
        LeaseHeld: if somebody publishes to one of the tables while readers are to go back.
    """
    step = standing(platform, migration)
    require_reason(reason)
    if some := known_readers(platform, migration, consumers, slices):
        return _switched(platform, migration, step, Side.OLD, (by, reason), *some, behind=behind)
    before = step_before(migration.cut_over, step.step)
    if before is None:
        raise DecisionRefused(
            Problem(
                f"migration {migration.name} is {step.step}",
                "the last step cannot be undone",
                f"restate {migration.new}, or declare a migration back from it",
            )
        )
    some_read_new = Side.NEW in step.readers.sides
    partly = some_read_new and step.step is Step.COMPARED
    goes_back = some_read_new and before is not Step.RETURNING
    with deciding(platform, migration, by, reason, step if goes_back else None, undoing=True) as (name, policy):
        decided = (name, reason, policy)
        if not goes_back:
            made = _taken(platform, migration, step, UNDO, before, step.readers, [], decided)
            return Taken(made, moved=True)
        change = (UNDO, step.step if partly else before, Readers())
        return _under_leases(
            platform, migration, step, change, lambda: _back(platform, migration, step, behind=behind), decided
        )


def _switched(
    platform: Platform,
    migration: Migration,
    step: MigrationStep,
    side: Side,
    who: tuple[str | None, str],
    consumers: tuple[str, ...],
    slices: tuple[str, ...],
    *,
    behind: bool = False,
) -> Taken:
    """Let some readers go over, or back."""
    if step.step is not Step.COMPARED or migration.cut_over is CutOver.HARD:
        raise DecisionRefused(
            Problem(
                f"migration {migration.name} is {step.step}, and its cut-over {migration.cut_over}",
                "consumers and slices go over one by one while LIVE writes both tables, and dual reads agree",
                "declare cut_over=ba.CutOver.DUAL_WRITES, or let all go over at once"
                if migration.cut_over is CutOver.HARD
                else "undo it for everybody first"
                if step.step is Step.CUT_OVER
                else "advance it to COMPARED first",
            )
        )
    readers = step.readers.with_some(side, consumers, slices)
    if readers == step.readers:
        raise DecisionRefused(
            Problem(
                f"{', '.join((*consumers, *slices))} read(s) {migration.table(side)} already",
                "a step changes who reads which table",
                f"see `backfill migration status {migration.name}`",
            )
        )
    require_slices(platform, migration, slices)
    moved = Check("moved", passed=True, found=f"{', '.join((*consumers, *slices))} to {migration.table(side)}")

    def checks() -> list[Check]:
        if side is Side.NEW:
            return [moved, *_checks(platform, migration, step, Step.CUT_OVER)]
        return [moved, *_back(platform, migration, step, behind=behind)]

    with deciding(platform, migration, who[0], who[1], step, undoing=side is Side.OLD) as (name, policy):
        change = (SWITCH, step.step, readers)
        return _under_leases(platform, migration, step, change, checks, (name, who[1], policy))


def _under_leases(
    platform: Platform,
    migration: Migration,
    step: MigrationStep,
    change: tuple[str, Step, Readers],
    checks: Callable[[], list[Check]],
    decided: tuple[str, str, Policy],
) -> Taken:
    """Have readers go over while both tables stand still, if what that asks for holds then."""
    with readers_lease(platform, [migration.old, migration.new], wait=_WAIT_SECONDS) as tokens:
        faults.reach("migration.held")
        asked = [gates.nobody_is_interrupted(platform, [migration.old, migration.new]), *checks()]
        if any(failed(asked)):
            found = asked
        else:
            made = _taken(platform, migration, step, *change, asked, decided, tokens)
            return Taken(made, moved=True, checks=tuple(asked))
    return _waiting(platform, migration, step, found)


def _checks(platform: Platform, migration: Migration, step: MigrationStep, following: Step) -> list[Check]:
    """Ask what a step on asks for."""
    dual = migration.cut_over is CutOver.DUAL_WRITES
    match following:
        case Step.SHADOWED:
            return [gates.has_history(platform, migration)]
        case Step.CAUGHT_UP:
            return [gates.is_caught_up(platform, migration, step, Side.NEW, live_takes=dual)]
        case Step.COMPARED:
            return [
                gates.agree(platform, migration, step, wanted=migration.readings),
                gates.is_fresh(platform, migration, step)
                if dual
                else gates.is_caught_up(platform, migration, step, Side.NEW),
            ]
        case Step.HELD:
            return []
        case Step.CUT_OVER:
            held = [] if dual else [gates.nobody_publishes(platform, migration.old, only_live=True)]
            return [
                *held,
                gates.is_caught_up(platform, migration, step, Side.NEW),
                gates.agree(platform, migration, step, wanted=1),
                gates.is_fresh(platform, migration, step),
            ]
        case _:
            return [
                gates.everybody_reads(step, Side.NEW),
                gates.is_caught_up(platform, migration, step, Side.NEW),
                gates.nobody_computes_from(platform, migration.old),
                gates.nobody_publishes(platform, migration.old, only_live=False),
            ]


def _back(platform: Platform, migration: Migration, step: MigrationStep, *, behind: bool) -> list[Check]:
    """Ask what readers who go back ask for: that the old table lacks nothing, unless somebody takes that upon them."""
    found = gates.is_caught_up(platform, migration, step, Side.OLD)
    return [replace(found, passed=True, found=f"taken upon them: {found.found}") if behind else found]


def _waiting(platform: Platform, migration: Migration, step: MigrationStep, checks: Sequence[Check]) -> Taken:
    """Plan the runs that fill what is missing, and say what does not hold."""
    runs: list[CatchUp] = []
    for check in failed(checks):
        if check.side is None:
            continue
        target = platform.products.target(migration.table(check.side))
        version = migration.transform_version if check.side is Side.NEW else _version_of(platform, target.name)
        for gap in check.gaps:
            try:
                runs.append(catch_up(platform, migration, target, version, gap))
            except Refused as refusal:  # the other gaps are not to blame
                problem = refusal.problems[0]
                runs.append(CatchUp(gap, None, f"{problem.what}: {problem.rule}; {problem.fix}"))
    readings = gates.readings_of(platform, step)
    return Taken(step, False, tuple(checks), tuple(runs), readings[-1] if readings else None)


def _version_of(platform: Platform, table: str) -> str:
    """Return the version that the newest accepted run of a table was computed with."""
    held = set(platform.ledger.accepted(table).values())
    plans = [platform.ledger.run(run_id).plan for run_id in held]
    return max(plans, key=lambda plan: plan.run_clock).transform_version


# --- who decides, and what is recorded ------------------------------------------------------------------------------


def _taken(
    platform: Platform,
    migration: Migration,
    before: MigrationStep | None,
    action: str,
    step: Step,
    readers: Readers,
    checks: Sequence[Check],
    decided: tuple[str, str, Policy],
    tokens: Sequence[int] = (),
) -> MigrationStep:
    snapshots = {
        table: platform.lakehouse.snapshot_id(table)
        for table in (migration.old, migration.new)
        if platform.lakehouse.exists(table)
    }
    readings = platform.ledger.migrations.readings(migration.name, last=1)
    faults.reach("migration.checked")
    made = platform.ledger.migrations.take(
        migration.name,
        action,
        step,
        known=0 if before is None else before.number,
        tables=(migration.old, migration.new),
        cut_over=migration.cut_over,
        declaration_hash=migration.hash,
        readers=readers,
        findings={
            "checks": [dict(one.as_record()) for one in checks],
            "snapshots": snapshots,
            "dual_read": readings[0].id if readings else None,
        },
        by=decided[0],
        reason=decided[1],
        policy_hash=decided[2].hash,
        leases=tokens,
    )
    faults.reach("migration.taken")
    record_step(platform, made)
    withdraw(platform, migration)
    text = f"migration {made.migration} is {made.step} ({made.action}, step {made.number}) by {made.decided_by}"
    logs.event(_log, logging.INFO, "migration_step", text, told=True, migration=made.migration, step=made.step.value)
    return made


def standing(platform: Platform, migration: Migration) -> MigrationStep:
    """Return where a migration stands, with the record of each step of it in the evidence.

    Raises:
        DecisionRefused: if it was not begun, or has another declaration by now.
        EnvironmentRefused: if its record was changed by hand.
    """
    step = _completed(platform, migration)
    if step is None or step.step is Step.ABANDONED:
        raise DecisionRefused(
            Problem(
                f"migration {migration.name} was not begun"
                if step is None
                else f"migration {migration.name} was given up",
                "a migration begins with its plan",
                f"`backfill migration plan {migration.name} --reason TEXT`",
            )
        )
    require_as_declared(migration, step)
    return step


def _completed(platform: Platform, migration: Migration) -> MigrationStep | None:
    """Return the newest step, after completing what whoever took it was killed before: its record, and what it withdraws."""
    platform.ledger.migrations.require_explained()  # before a step is put among the evidence
    steps = platform.ledger.migrations.steps(migration.name)
    for one in steps:
        record_step(platform, one)
    if steps and steps[-1].step in OVER:
        withdraw(platform, migration)
    return steps[-1] if steps else None
