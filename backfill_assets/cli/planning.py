"""The commands that resolve a manifest: `plan`.

Put here arguments and output; what is looked up is `planning.resolve`'s, the rules are `manifests.planner`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.base import (
    json_option,
    opened_platform,
    say,
    show,
    tell,
)
from manifests.errors import (
    EnvironmentRefused,
    ManifestRefused,
    Problem,
    TransitionRefused,
)
from manifests.lifecycle import APPROVED_OR_LATER, RunState

if TYPE_CHECKING:
    from backfill_assets.installation import Platform
    from backfill_assets.planning.resolve import Check
    from manifests.model import RunManifest
    from manifests.plan import Plan
    from resources.ledger.facade import RunRecord


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path), required=False)
@click.option(
    "--dry-run-of",
    metavar="RUN_ID",
    help="In place of MANIFEST: a dry run of a planned run, on a sample of its chunks and the snapshots that it has pinned.",
)
@click.option("--preview", is_flag=True, help="Record no plan, only show it; requests for sinks are put on record.")
@click.option(
    "--check-transform",
    is_flag=True,
    help="Also ask the transform, in a Spark session, whether it returns the declared columns: takes the start of one, and no job.",
)
@json_option
def plan(manifest: Path | None, dry_run_of: str | None, preview: bool, check_transform: bool, as_json: bool) -> None:
    """Resolve MANIFEST (YAML or JSON) to a plan: pins, chunks, estimates, stages. Computes nothing.

    A manifest may be planned again, on newer tables, until it is approved; after that its text is immutable. A
    `progressive` manifest becomes a series of runs (RUN.s001, RUN.s002, ...), each published after the one before it.

    Where the policy asks for a dry run before a large run is approved, --dry-run-of RUN_ID plans it: a run of mode
    DRY_RUN on first, last and largest chunk and others that follow from the run's id, the same whoever asks.
    """
    from backfill_assets.cli.console import plan as show_plan
    from backfill_assets.operations.sinks import told_by
    from backfill_assets.planning import resolve as planning
    from backfill_assets.publication.modes import stages_of

    contract = _contract(manifest, dry_run_of)
    with opened_platform() as platform:
        check = _output_check() if check_transform else {}
        if preview:
            plans = planning.preview_series(platform, contract, **check)
            found = [(one, _as_preview(platform, one.run_id), False) for one in plans]
        else:
            records = planning.plan_series(platform, contract, **check)
            _refuse_dead(records)
            found = [(one.plan, one.state.value, one.state in APPROVED_OR_LATER) for one in records]
        programs = [stages_of(platform.products, planned) for planned, *_ in found]
        tells = told_by(platform, contract)
        next_steps = [] if preview or as_json else _before_approval(platform, records, dry_run_of)
        next_steps += (
            [] if as_json or any(before for *_, before in found) else _of_nobody(platform, contract, found[0][0])
        )
    if as_json:
        told = [
            {
                "state": state,
                "plannedBefore": before,
                "planHash": one.hash,
                "plan": one,
                "stages": [stage.describe() for stage in program],
                "tells": tells,
            }
            for (one, state, before), program in zip(found, programs, strict=True)
        ]
        say(told if contract.progressive is not None else told[0])
    else:
        of_each = zip(found, programs, strict=True)
        show(
            *(
                show_plan(
                    one,
                    _as_recorded(one, state) if before else state,
                    program,
                    contract.freeze,
                    contract.validation.expected,
                    tells,
                )
                for (one, state, before), program in of_each
            )
        )
        for one in next_steps:
            tell(one)


def _contract(manifest: Path | None, dry_run_of: str | None) -> RunManifest:
    """Return the manifest that is to be planned: of a file, or of the dry run of a run.

    Raises:
        UsageError: if neither is named, or both are.
        InputRefused: if the ledger holds no such run.
    """
    if manifest is not None and dry_run_of is None:
        return _valid(manifest)
    if manifest is not None:
        raise click.UsageError("A plan is of 'MANIFEST' or of the run that '--dry-run-of' names: give one of them.")
    if dry_run_of is None:
        raise click.UsageError("Missing argument 'MANIFEST', or '--dry-run-of RUN_ID' in its place.")
    from backfill_assets.planning.dry_runs import manifest_of_dry_run
    from resources.ledger.facade import operator

    with opened_platform() as platform:
        return manifest_of_dry_run(platform, dry_run_of, operator())


def _before_approval(platform: Platform, records: Sequence[RunRecord], dry_run_of: str | None) -> list[str]:
    """Say what a dry run is for and how it goes on, and of a run that needs one whether there is one that counts."""
    from backfill_assets.publication.dry_runs import dry_run_in_words

    if dry_run_of is not None:
        (record,) = records
        steps = f"`backfill approve {record.run_id} --by NAME`, `backfill run {record.run_id}`"
        return [f"next: {steps}; once its gates have passed, `backfill approve {dry_run_of} --by NAME` rests on it"]
    waiting = [one for one in records if one.state is RunState.PLANNED and one.plan.dry_run is not None]
    return [f"{one.run_id}: a dry run is {dry_run_in_words(platform, one)}" for one in waiting]


def _of_nobody(platform: Platform, contract: RunManifest, plan: Plan) -> list[str]:
    """Say what a run waits for that nobody could ever do by the policy in force."""
    from manifests.who_may import roles_of_nobody

    target = platform.products.target(plan.target)
    of_the_table = {one.name for one in target.reconciliations}
    found = roles_of_nobody(platform.policy, contract, target.owners, may_ask=not of_the_table.isdisjoint(plan.gates))
    return [
        f"{contract.run_id}: {one}; have the policy changed (`groups` say who belongs to a group or team)"
        for one in found
    ]


def _output_check() -> dict[str, Check]:
    """Return what `--check-transform` asks of a plan: it imports Spark, which planning does not."""
    from backfill_assets.staging.checked_output import checked

    return {"check": checked}


def _as_recorded(plan: Plan, state: str) -> str:
    """Return the state of a run that was approved before it was planned again: what is shown is the plan of then."""
    return (
        f"{state}: this is the plan on record, made {plan.run_clock:%Y-%m-%d %H:%M} UTC, and nothing was planned anew; give the "
        "change a run id of its own to plan it on the tables as they are now"
    )


def _as_preview(platform: Platform, run_id: str) -> str:
    """Say that a plan is not recorded, and of a run that cannot be planned anew that it never will be."""
    record = platform.ledger.find(run_id)
    if record is None or record.state not in APPROVED_OR_LATER:
        return "PREVIEW, not recorded"
    return (
        f"PREVIEW, not recorded: run '{run_id}' is {record.state} already and is not planned again; give the change a run id "
        "of its own"
    )


def _valid(manifest: Path) -> RunManifest:
    """Read a manifest.

    Raises:
        ManifestRefused: if it is not valid, with what the installation has against the rest of it, where there is one.
    """
    from backfill_assets.planning import resolve as planning
    from manifests.reading import load_manifest

    try:
        return load_manifest(manifest)
    except ManifestRefused as refusal:
        try:
            with opened_platform() as platform:
                whole = planning.whole_refusal(platform, refusal)
        except EnvironmentRefused:
            raise refusal from None
        raise whole from None


def _refuse_dead(records: Sequence[RunRecord]) -> None:
    """Refuse to show the plan of a run that nothing can come of any more as if it were one to approve."""
    dead = [record for record in records if record.state in {RunState.CANCELLED, RunState.REJECTED}]
    if dead:
        raise TransitionRefused(
            Problem(
                f"run '{record.run_id}' is {record.state}",
                "a run that is over is not planned again",
                "give the same change a run id of its own",
            )
            for record in dead
        )
