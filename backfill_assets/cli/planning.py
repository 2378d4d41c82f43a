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
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option("--preview", is_flag=True, help="Show the plan without recording it.")
@click.option(
    "--check-transform",
    is_flag=True,
    help="Also ask the transform, in a Spark session, whether it returns the declared columns: takes the start of one, and no job.",
)
@json_option
def plan(manifest: Path, preview: bool, check_transform: bool, as_json: bool) -> None:
    """Resolve MANIFEST (YAML or JSON) to a plan: pins, chunks, estimates, stages. Computes nothing.

    A manifest may be planned again, on newer tables, until it is approved; after that its text is immutable. A
    `progressive` manifest becomes a series of runs (RUN.s001, RUN.s002, ...), each published after the one before it.
    """
    from backfill_assets.cli.console import plan as show_plan
    from backfill_assets.operations.sinks import told_by
    from backfill_assets.planning import resolve as planning
    from backfill_assets.publication.modes import stages_of

    contract = _valid(manifest)
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
