"""The command that proposes restatements: `propose`.

Put here arguments and output; what is proposed, and what a rule approves, is `backfill_assets.schedules.proposals`'.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.base import EXIT_FAILED, json_option, opened_instance, opened_platform, say, tell
from backfill_assets.cli.launching import execute
from manifests.errors import InputRefused, Problem
from manifests.lifecycle import RunState

if TYPE_CHECKING:
    from backfill_assets.schedules.proposals import Proposed


@click.command()
@click.argument("target", required=False)
@click.option("--preview", is_flag=True, help="Only say what would be proposed; plan nothing.")
@click.option("--run", "runs", is_flag=True, help="Then compute, gate and publish the proposals that are approved.")
@json_option
def propose(target: str | None, preview: bool, runs: bool, as_json: bool) -> None:
    """Plan a restatement of the published days of TARGET of which its source has a newer version.

    One planned run for each stretch of days without a gap, with the reason in its manifest; for every target that declares
    `restated`, unless TARGET is given. Does what the sensor in Dagster does. Safe to repeat: what is proposed stays proposed, and is
    replaced where the source says something else again. A person approves a proposal (`backfill approve`), or the
    rule of its table does (`proposals` in the policy).

    Exit codes: 0 proposed, or nothing to propose; 1 a run that --run computed was not published; 2 refused.
    """
    from backfill_assets.schedules import proposals

    if preview and (runs or as_json):
        raise InputRefused(
            Problem("--preview with --run or --json", "a preview plans nothing", "leave one of them out")
        )
    success = True
    with opened_platform() as platform, opened_instance(platform.settings) as instance:
        declared = [one for one in platform.products.targets if one.restated is not None]
        targets = declared if target is None else [platform.products.target(target)]
        for one in targets:
            if preview:
                tell(f"{one.name}: {proposals.foreseen(platform, one)}")
                continue
            proposed, done = proposals.propose(platform, one), {}
            if runs:
                for record in proposals.under_way(platform, one):
                    success &= execute(platform, instance, record.run_id, (), progress=not as_json, resumes=False)
                    done[record.run_id] = platform.ledger.run(record.run_id).state
            if as_json:
                say(_as_data(proposed, done))
            else:
                tell(f"{one.name}: {proposed.why}")
                for run_id, state in done.items():
                    tell(f"  {run_id} -> {state}")
    if not targets:
        tell("no target declares `restated`: nothing is proposed")
    if not success:
        sys.exit(EXIT_FAILED)


def _as_data(proposed: Proposed, done: Mapping[str, RunState]) -> dict[str, Any]:
    return {
        "target": proposed.target,
        "why": proposed.why,
        "proposals": [
            {
                "days": one.days,
                "runId": None if one.record is None else one.record.run_id,
                "state": None if one.record is None else done.get(one.record.run_id, one.record.state),
                "why": one.why,
            }
            for one in proposed.proposals
        ],
    }
