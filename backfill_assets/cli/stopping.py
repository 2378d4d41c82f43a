"""`backfill stop` and `backfill pause`: end what is being computed of a run, at once or after its batch, from wherever the ledger is reached.

Put here arguments and output; what a stop is, is `resources.ledger.stops`', what a pause is, `resources.ledger.pauses`', and what a computing process
does, `staging.watched_launch`'s.
"""

from __future__ import annotations

import click

from backfill_assets.cli.base import json_option, opened_platform, say, tell
from backfill_assets.cli.decisions import named
from manifests.lifecycle import ENDED


@click.command()
@click.argument("run_id")
@click.option("--by", required=True, callback=named, help="Who stops it.")
@click.option("--reason", default="", help="Why.")
@json_option
def stop(run_id: str, by: str, reason: str, as_json: bool) -> None:
    """Stop RUN_ID: whatever computes it, here or elsewhere, ends within seconds; what is staged stays.

    Nothing of it is published until somebody launches it again (`backfill resume RUN_ID`, `backfill run`, or a launch in
    Dagster). A commit that has begun is let finish, which is said. To end a run for good: `backfill cancel`.

    \b
      backfill stop restate-2012 --by ana --reason "the cluster is needed for the month's end"
      backfill resume restate-2012
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph
    from backfill_assets import decisions

    with opened_platform() as platform:
        done, record = decisions.stop(platform, run_id, by=by, reason=reason, through="backfill stop")
    if as_json:
        say({"runId": run_id, "state": record.state, "stop": done})
        return
    tell(f"{run_id}: {done}")
    if done.note:
        tell(f"  {done.note}; it is {record.state}")
    else:
        goes_on = f"it is {record.state}" if record.state in ENDED else f"`backfill resume {run_id}` goes on"
        tell(f"  what is staged stays; {goes_on}")


@click.command()
@click.argument("run_id")
@click.option("--by", required=True, callback=named, help="Who pauses it.")
@click.option("--reason", required=True, help="Why, on record; at least 10 visible characters.")
@json_option
def pause(run_id: str, by: str, reason: str, as_json: bool) -> None:
    """Pause RUN_ID: the batch under way is let finish and is staged, and no other begins, here or elsewhere.

    No launch ends a pause, and nothing is published meanwhile: somebody resumes the run, and says why. To end what is under way
    at once: `backfill stop`.

    \b
      backfill pause restate-2012 --by ana --reason "the month's end comes first"
      backfill resume restate-2012 --by ana --reason "the month is closed"
    """  # noqa: D301 - \b is the character that keeps Click from wrapping a paragraph
    from backfill_assets.operations import pausing

    with opened_platform() as platform:
        done, record = pausing.pause(platform, run_id, by=by, reason=reason, through="backfill pause")
        under_way = [one.attempt for one in platform.ledger.attempts(run_id) if one.is_running]
    if as_json:
        say({"runId": run_id, "state": record.state, "pause": done, "attemptsUnderWay": under_way})
        return
    tell(f"{run_id}: {done}")
    if done.note:
        tell(f"  {done.note}; it is {record.state}")
        return
    ends = f"attempt {', '.join(map(str, under_way))} is let finish; " if under_way else ""
    tell(f"  {ends}what is staged stays; `backfill resume {run_id} --by NAME --reason TEXT` goes on")
