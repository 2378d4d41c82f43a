"""The command that takes in what is new: `live`.

Put here arguments and output; what a tick does is `live`'s.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.base import (
    EXIT_FAILED,
    EXIT_REFUSED,
    json_option,
    opened_instance,
    opened_platform,
    say,
)
from manifests.errors import (
    Refused,
    RunStopped,
)
from manifests.lifecycle import RunState

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from backfill_assets.declarations.target import TargetTable
    from backfill_assets.installation import Platform
from backfill_assets.cli.base import refuse, tell
from backfill_assets.cli.launching import execute


@click.command()
@click.argument("target", required=False)
@click.option("--once", is_flag=True, help="One tick, then end.")
@click.option("--every", type=click.IntRange(1, 86_400), default=60, show_default=True, help="Seconds between ticks.")
@json_option
def live(target: str | None, once: bool, every: int, as_json: bool) -> None:
    """Make and run the next live run of TARGET, or of every target with a live policy, until interrupted.

    Does what the live schedule and sensor in Dagster do: plan from the watermark, approve by policy, stage, gate, publish.
    Where nothing has changed since the last tick, nothing happens.
    """
    from backfill_assets.schedules.live import policy_of

    with opened_platform() as platform:
        declared = [one for one in platform.products.targets if one.live is not None]
        targets = declared if target is None else [platform.products.target(target)]
        for one in targets:
            policy_of(one)
        with opened_instance(platform.settings) as instance:
            _tick_until_interrupted(platform, instance, targets, once=once, every=every, as_json=as_json)


def _tick_until_interrupted(
    platform: Platform,
    instance: DagsterInstance,
    targets: Sequence[TargetTable],
    *,
    once: bool,
    every: int,
    as_json: bool,
) -> None:
    while True:
        worst = max((_live_tick(platform, instance, one, as_json) for one in targets), default=0)
        if once:
            sys.exit(worst)
        time.sleep(every)


def _live_tick(platform: Platform, instance: DagsterInstance, target: TargetTable, as_json: bool) -> int:
    """Make one tick of a target and run what it made; print what came of it and return the exit code of that."""
    from backfill_assets.schedules.live import LAUNCHABLE, positions_read, tick

    failures: list[str] = []
    try:
        done = tick(platform, target)
        record, success = done.record, True
        if record is not None and record.state in LAUNCHABLE | {RunState.VALIDATED}:
            success = execute(
                platform, instance, record.run_id, (), progress=False, failed=failures.append, resumes=False
            )
    except RunStopped as error:
        refuse(error)
        if error.signalled:
            sys.exit(EXIT_FAILED)
        return EXIT_FAILED
    except Refused as error:  # the other targets, and the next tick, are not to blame
        refuse(error)
        return EXIT_REFUSED
    for why in failures:
        tell(why, err=True)
    state = None if record is None else platform.ledger.run(record.run_id).state
    waits_for = None if record is None else platform.ledger.freezes.waiting().get(record.run_id)
    mark = platform.ledger.watermarks.current(target.name)
    if as_json:
        say(
            {
                "target": target.name,
                "runId": None if record is None else record.run_id,
                "state": state,
                "why": done.why,
                "waitsFor": waits_for,
                "completeUntil": None if mark is None else mark.complete_until,
                "sourceSnapshot": None if mark is None else mark.source_snapshot_id,
                "positions": positions_read(platform, target),
            }
        )
    else:
        tell(f"{target.name}: {done.why}" + ("" if state is None else f" -> {state}"))
        if waits_for is not None:
            tell(f"  waits: {waits_for}")
    return 0 if success and state is not RunState.FAILED else EXIT_FAILED
