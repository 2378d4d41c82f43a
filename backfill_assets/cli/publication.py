"""The commands that change what readers see: `publish`, `rollback`, `reinstate`, `accept`.

Put here arguments and output; who may is `decisions`', what is done `publication.publisher`'s, `publication.undoing`'s and
`publication.accepting`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.base import (
    json_option,
    opened_instance,
    opened_platform,
    say,
    show,
    tell,
)
from backfill_assets.cli.decisions import loud, publisher_options

if TYPE_CHECKING:
    from backfill_assets.cli.terminal import Table
    from backfill_assets.publication.announcements import Published


@click.command()
@click.argument("run_id")
@publisher_options
@json_option
def publish(run_id: str, by: str | None, comment: str, break_glass: str, as_json: bool) -> None:
    """Publish the validated RUN_ID. Safe to repeat; refused if somebody else wrote into its scope.

    Who publishes is on record; where the policy names publishers, it is one of them. No gate is ever skipped.
    """
    from backfill_assets import decisions

    _decided(decisions.publish, run_id, "published", by, comment, break_glass, as_json)


@click.command()
@click.argument("run_id")
@publisher_options
@json_option
def rollback(run_id: str, by: str | None, comment: str, break_glass: str, as_json: bool) -> None:
    """Put back what the published RUN_ID replaced, as a new snapshot. Refused if a later run holds part of its scope."""
    from backfill_assets import decisions

    _decided(decisions.rollback, run_id, "rolled back", by, comment, break_glass, as_json)


@click.command()
@click.argument("run_id")
@publisher_options
@json_option
def reinstate(run_id: str, by: str | None, comment: str, break_glass: str, as_json: bool) -> None:
    """Undo the rollback of RUN_ID, as a new snapshot. Refused if somebody has written into its scope since."""
    from backfill_assets import decisions

    _decided(decisions.reinstate, run_id, "reinstated", by, comment, break_glass, as_json)


@click.command()
@click.argument("run_id")
@publisher_options
@json_option
def accept(run_id: str, by: str | None, comment: str, break_glass: str, as_json: bool) -> None:
    """Make the version that RUN_ID published under its name (VERSIONED, acceptance LATER) what main shows."""
    from backfill_assets import decisions

    _decided(decisions.accept, run_id, "accepted", by, comment, break_glass, as_json)


def _decided(
    act: Callable[..., Any], run_id: str, verb: str, by: str | None, comment: str, break_glass: str, as_json: bool
) -> None:
    """Decide about a publication in somebody's name, see to its diff and report, and say what was done."""
    from backfill_assets.cli.status import topics_told
    from backfill_assets.defs.decision_jobs import announcing
    from backfill_assets.defs.launch import tell_dagster
    from backfill_assets.review.kept_diffs import after_publication
    from resources.ledger.facade import ApprovalRecord

    broken: list[ApprovalRecord] = []

    def say_so() -> None:
        for one in broken if not as_json else ():
            loud(run_id, one.decided_by, one.break_glass)

    with opened_platform() as platform, ExitStack() as stack:
        if break_glass:
            instance = stack.enter_context(opened_instance(platform.settings))
            stack.callback(say_so)
            broken = stack.enter_context(announcing(platform, instance, run_id))
        done = act(platform, run_id, by=by, comment=comment, break_glass=break_glass)
        record = platform.ledger.run(run_id)
        not_told = tell_dagster(platform, record.target)
        after_publication(platform, run_id)
        topics = topics_told(platform, record)
    _tell(done, verb, topics, as_json)
    if not_told:
        tell(f"{not_told}. Readers see it all the same; `backfill doctor --repair` tells it later.", err=True)


def _tell(done: Published, verb: str, topics: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Say what was done to the table, and what the run has told topics since it was first published, as `status` does."""
    from backfill_assets.cli.status import told_in_words
    from manifests.canonical import plain

    if as_json:
        say(plain(done) | {"topics": topics})
    else:
        show(published(done, verb, [told_in_words(one) for one in topics]))


def published(done: Published, verb: str, events: Sequence[str] = ()) -> Table:
    """Show what a publication or rollback did; `events` says what topics were told."""
    from backfill_assets.cli.console import facts

    return facts(
        [
            ("snapshot", done.snapshot_id),
            ("base", f"snapshot {done.base_snapshot_id}" if done.base_snapshot_id else "none"),
            ("files", f"{done.files_added:,} added, {done.files_removed:,} removed"),
            ("evidence root", done.evidence_root),
            *(("events", one) for one in events),
        ],
        f"{done.run_id}: {verb}" + ("" if done.new else " before; the table was not changed again"),
    )
