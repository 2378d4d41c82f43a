"""What becomes of a run whose scope somebody else has changed since it was planned.

Put here what the approved manifest says of a conflict: refuse for good, wait, or plan the chunks in conflict anew. Whether
there is one is the strategy's to say.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import NoReturn

from backfill_assets.installation import Platform
from backfill_assets.planning import pinned_snapshots
from backfill_assets.planning.pinned_snapshots import pins_of
from backfill_assets.planning.replanning import replanned
from backfill_assets.planning.scopes import chunk_scopes
from backfill_assets.publication.change import Change, held_by_others_since
from manifests.chunks import in_words
from manifests.errors import Problem, PublicationDeferred, PublicationRefused
from manifests.kinds import FIRST_OUTPUT
from manifests.lifecycle import PUBLISH, RunState
from manifests.model import OnConflict
from resources.ledger.facade import operator
from resources.ledger.leases import Lease


def settle_conflict(platform: Platform, change: Change, conflicts: list[str], lease: Lease) -> NoReturn:
    """Do what the approved manifest says of a conflict: refuse for good, wait, or plan the chunks in conflict anew.

    Raises:
        LeaseLost: if somebody else has taken the scope over since the conflict was found, and nothing is done.
        PublicationRefused: the run is REJECTED.
        PublicationDeferred: the run waits, or must be computed again where it was planned anew.
    """
    run_id, terms = change.record.run_id, change.plan.conflict
    what = f"{len(conflicts)} chunk(s) of {change.target.name} have changed since '{run_id}' was planned: {in_words(conflicts)}"
    again = "plan the change again, under a new run id, on the table as it is now"
    policy = OnConflict.REFUSE if terms is None else terms.on_conflict
    if terms is not None and policy is OnConflict.WAIT:
        since = change.record.updated_at
        until = since + timedelta(minutes=terms.wait_minutes)
        if platform.ledger.now() < until:
            raise PublicationDeferred(
                Problem(what, f"it waits until {until:%Y-%m-%d %H:%M} UTC for the other change to be undone", again)
            )
        again = f"it has waited {terms.wait_minutes} minutes; {again}"
    if terms is not None and policy is OnConflict.REPLAN:
        tried = len(platform.ledger.amendments(run_id))
        pinned = change.record.manifest.pins_a_source
        if _would_replace_first_rows(change, conflicts):
            again = f"{_first_output(change)} never replaces rows, so that planning it anew cannot help; {again}"
        elif tried < terms.max_replans and not pinned:
            plan = replanned(change.run)
            number = platform.ledger.replan(run_id, plan, conflicts, actor=operator(), reason=what, token=lease.token)
            pinned_snapshots.keep(platform, pins_of([plan]))
            raise PublicationDeferred(
                Problem(what, f"they are planned anew (time {number} of {terms.max_replans})", "run them again")
            )
        elif pinned:
            again = f"the manifest pins a source's snapshot; {again}"
        else:
            again = f"planned anew {tried} times; {again}"
    lines = _differing_files(change, conflicts)
    refusal = PublicationRefused(
        Problem(
            f"{change.target.name} no longer holds the plan's files:\n      " + "\n      ".join(lines),
            "somebody else has written into the scope since the plan was made",
            again,
        )
    )
    refuse_for_good(platform, change, refusal, what, lease)


def require_bases(change: Change) -> None:
    """Refuse what can be held against nothing any more, because a snapshot that it was planned on has expired.

    Raises:
        PublicationRefused: naming the snapshots and the way out.
    """
    if expired := change.expired_bases:
        named = ", ".join(f"snapshot {base}" for base in expired)
        raise PublicationRefused(
            Problem(
                f"{named} of {change.target.name}, on which '{change.record.run_id}' was planned, has expired",
                "a publication is held against the snapshot that it was planned on, which a rollback goes back to",
                "plan the change again, under a new run id, on the table as it is now; and have whatever expires snapshots leave "
                "those that a run waits for",
            )
        )


def refuse_for_good(
    platform: Platform, change: Change, refusal: PublicationRefused, why: str, lease: Lease
) -> NoReturn:
    """Put on record that a publication was tried and refused, and move the run to REJECTED: LIVE goes on with another."""
    run_id = change.record.run_id
    entry = platform.ledger.open_publication(
        run_id, PUBLISH, change.plan.base_snapshot_id, "", operator(), token=lease.token
    )
    platform.ledger.close_refused(entry, str(refusal))
    reject(platform, run_id, why, lease)
    raise refusal


def reject(platform: Platform, run_id: str, why: str, lease: Lease) -> None:
    """Move a validated run to REJECTED for what was found in its target under a lease."""
    platform.ledger.move(run_id, RunState.REJECTED, operator(), why, expected=RunState.VALIDATED, token=lease.token)


def _would_replace_first_rows(change: Change, conflicts: list[str]) -> bool:
    """Whether a run that writes first rows only would, planned anew, replace what somebody else has written since."""
    if not _first_output(change):
        return False
    scopes = chunk_scopes(change.target, [chunk for chunk in change.plan.chunks if chunk.key in set(conflicts)])
    return any(change.platform.lakehouse.rows_in(change.target.name, scope) for scope in scopes.values())


def _first_output(change: Change) -> str:
    """Name what a run says of itself that means: it replaces nobody's rows; empty if it may."""
    if change.strategy.first_rows_only:
        return change.plan.publish_mode.value
    kind = change.record.manifest.kind
    return f"kind {kind}" if kind in FIRST_OUTPUT else ""


def _differing_files(change: Change, conflicts: list[str], limit: int = 20) -> list[str]:
    """Name files that came and went since the base, chunk by chunk."""
    scopes = {key: scope for key, scope in change.chunk_scopes.items() if key in set(conflicts)}
    lakehouse, name = change.platform.lakehouse, change.target.name
    listed = partial(lakehouse.paths_by_chunk, name, scopes=scopes, with_others=change.plan.values is None)
    present, bases = listed(None), {change.plans[key].base_snapshot_id for key in scopes}
    before = {base: listed(base) for base in bases if base is not None}
    taken, lines = held_by_others_since(change), []
    for key in scopes:
        base = change.plans[key].base_snapshot_id
        then = before[base][key] if base is not None else set()
        lines += [f"+ {path}" for path in sorted(present[key] - then)]
        lines += [f"- {path}" for path in sorted(then - present[key])]
        if then == present[key] and key in taken:
            lines.append(f"= {key}, accepted from '{taken[key]}' since")
        if len(lines) > limit:
            return [*lines[:limit], f"… and more, in {len(conflicts)} chunk(s)"]
    return lines
