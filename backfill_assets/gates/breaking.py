"""The circuit breaker over what gates have judged so far, and the canary: a run is paused before its other chunks are computed.

Put here who looks, at what, and the pause. What is past which threshold is `manifests.breaker`'s to say; of failed attempts, and of what is live,
`staging.breaker_checks` asks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from backfill_assets.gates.chunk_changes import VISIBLE
from backfill_assets.installation import Platform
from backfill_assets.run_context import RunContext
from backfill_assets.staging import pacing
from manifests.breaker import CANARY, Gated, PlannedBreaker, Trip, trips
from manifests.chunks import in_words
from manifests.errors import Problem, TransitionRefused
from manifests.lifecycle import ChunkState
from manifests.plan import Plan
from resources.ledger.facade import STAGED, ChunkRecord

_JUDGED = frozenset({ChunkState.PASSED, ChunkState.FAILED})


def portions(plan: Plan, keys: Sequence[str], passed: Collection[str]) -> Iterator[list[str]]:
    """Yield chunks in the portions after which what is gated is looked at: the canary, then a batch at a time.

    `passed` are those that have passed their gate. The canary are the first chunks of the plan: a launch that asks for others computes
    all of it before, whether it asks for that or not.
    """
    breaker = plan.breaker
    if breaker is None or not breaker.looks_at_verdicts:
        yield list(keys)
        return
    canary = canary_of(plan)
    is_open = not set(canary) <= set(passed)
    rest = [key for key in keys if key not in canary]
    if is_open:
        first = canary if rest else [key for key in keys if key in canary]
        if first:
            yield first
    else:
        rest = list(keys)
    if breaker.rejected_percent is None and breaker.drift_percent is None:
        if rest:
            yield rest
        return
    for batch in plan.cut([plan.chunk(key) for key in rest], plan.max_chunks_per_job):
        yield [chunk.key for chunk in batch]


def look(run: RunContext) -> None:
    """Pause a run for what its gates have found so far, or once its canary is there to be looked at; what was resumed stays so."""
    ledger, breaker = run.platform.ledger, run.plan.breaker
    if breaker is None:
        return
    decided = {one.cause for one in ledger.stops.of_run(run.run_id) if one.is_pause and one.resumed_at is not None}
    chunks = ledger.chunks(run.run_id)
    found = [one for one in trips(breaker, gated_of(run.platform, run.plan, chunks)) if one.cause not in decided]
    if not found:
        found = [one for one in _canary(breaker, run.plan, chunks) if one.cause not in decided]
    for one in found:
        pacing.pause_for(run, one)


def canary_of(plan: Plan) -> list[str]:
    """Return the chunks that come before all others."""
    return [] if plan.breaker is None else [chunk.key for chunk in plan.chunks[: plan.breaker.canary_chunks]]


def require_canary(run: RunContext, keys: Sequence[str]) -> None:
    """End a launch that asks for more than the canary, unless each chunk of that has passed its gate.

    Raises:
        TransitionRefused: naming those that have not.
    """
    standing = run.platform.ledger.standing_chunks(run.run_id)
    canary, states = canary_of(run.plan), {one.chunk: one.state for one in standing}
    others = [key for key in keys if key not in canary and states[key] not in STAGED]
    failed = [key for key in canary if states[key] is not ChunkState.PASSED]
    if not (failed and others):
        return
    raise TransitionRefused(
        Problem(
            f"{len(failed)} of the first {len(canary)} chunk(s) have not passed: {in_words(failed)}",
            f"safety.canary: the others are computed once each of them has; {len(others)} wait for that",
            f"`backfill status {run.run_id}` says what failed, and why: `backfill run {run.run_id}` tries again, or reject the run, "
            "and plan the change under a new run id",
        )
    )


def _canary(breaker: PlannedBreaker, plan: Plan, chunks: Sequence[ChunkRecord]) -> Iterator[Trip]:
    first = set(canary_of(plan))
    passed = {one.chunk for one in chunks if one.state is ChunkState.PASSED}
    waiting = any(one.state not in STAGED for one in chunks if one.chunk not in first)
    if breaker.canary_waits and first and first <= passed and waiting:
        yield Trip(
            CANARY,
            f"safety.canary: the first {len(first)} chunk(s) are computed and have passed, and the others wait until somebody has "
            "looked at them",
        )


def gated_of(platform: Platform, plan: Plan, chunks: Sequence[ChunkRecord]) -> list[Gated]:
    """Return what the gates have found of each chunk that is judged, beside what is accepted today."""
    judged = [one for one in chunks if one.state in _JUDGED and VISIBLE in one.measures]
    broken: dict[str, int] = {}
    for verdict in platform.ledger.verdicts(plan.run_id):
        if verdict.chunk:
            # which rows break several rules is not on record: each counts as another one, which errs towards a pause
            broken[verdict.chunk] = sum(one["count"] for one in verdict.details.get("violations", []))
    holders = platform.ledger.accepted(plan.target, [one.chunk for one in judged])
    held = {
        chunk.chunk: chunk.measures.get(VISIBLE)
        for run_id in set(holders.values()) - {plan.run_id}
        for chunk in platform.ledger.chunks(run_id)
        if holders.get(chunk.chunk) == run_id
    }
    return [
        Gated(
            one.chunk,
            one.rows or 0,
            min(found := broken.get(one.chunk, 0), one.rows or found),
            _figures(one.measures[VISIBLE]) or {},
            _figures(held.get(one.chunk)),
        )
        for one in judged
    ]


def _figures(visible: object) -> dict[str, str] | None:
    if not isinstance(visible, dict) or visible.get("rows") is None:
        return None
    return {"rows": str(visible["rows"])} | {name: str(total) for name, total in (visible.get("sums") or {}).items()}
