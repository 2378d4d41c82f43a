"""What limits say against a plan: the manifest's own, and those of the policy that it has to stay within.

Put here what is judged of them from what is planned, and the pace that a plan keeps. What a batch waits for is `pace`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from manifests.breaker import PlannedBreaker
from manifests.errors import Problem
from manifests.estimates import Estimate
from manifests.limits import Breaker, Hours, Pace
from manifests.model import Mode, RunManifest
from manifests.pace import PlannedPace, Work, never
from manifests.plan import PlannedChunk
from manifests.policy import Policy

_AT_MOST = {
    "max_chunks_in_parallel": "limits.maxChunksInParallel",
    "max_rows_per_minute": "limits.maxRowsPerMinute",
    "max_bytes_per_minute": "limits.maxBytesPerMinute",
    "max_commits_per_hour": "limits.maxCommitsPerHour",
}


def row_limit_problems(manifest: RunManifest, source: str, reads: Estimate) -> list[Problem]:
    """Return that a run would read more rows than its manifest expects at most."""
    limit = manifest.safety.max_rows_expected
    if limit is None or reads.rows <= limit:
        return []
    return [
        Problem(
            f"the run would read {reads.rows:,} rows of {source}",
            f"safety.maxRowsExpected is {limit:,}",
            "narrow the publish range, or raise the limit if the figure is right",
        )
    ]


def limits_of(policy: Policy | None, manifest: RunManifest) -> tuple[Pace, ...]:
    """Return what the policy limits runs of the manifest's kind and table to: by the rule that counts, or by all where none names the kind."""
    if policy is None:
        return ()
    return tuple(one.limits for one in policy.rules_for(manifest.target.table, manifest.kind) if one.limits != Pace())


def pace_of(manifest: RunManifest, policy: Policy | None) -> PlannedPace | None:
    """Return the pace of a run: the manifest's limits, and where it says nothing the policy's; None where neither does."""
    if manifest.execution_mode is Mode.RECONCILIATION:
        return None
    own, safety = manifest.limits, manifest.safety
    all_of = [own, *limits_of(policy, manifest)]

    def least(name: str, within: str | None = None) -> int | None:
        parts = all_of if within is None else [getattr(one, within) for one in all_of]
        return min((value for one in parts if one and (value := getattr(one, name)) is not None), default=None)

    longest = max((one.pause_between_batches_seconds or 0 for one in all_of), default=0)
    windows: list[tuple[Hours, ...]] = [one.windows for one in all_of if one.windows]
    found = PlannedPace(
        chunks_in_parallel=least("max_chunks_in_parallel"),
        rows_per_minute=least("max_rows_per_minute"),
        bytes_per_minute=least("max_bytes_per_minute"),
        commits_per_hour=least("max_commits_per_hour"),
        pause_seconds=longest or None,
        windows=tuple(dict.fromkeys(windows)),
        budget_rows=least("rows", "budget"),
        budget_bytes=least("bytes", "budget"),
        duration_minutes=safety.max_duration_minutes,
        cost_usd=safety.max_cost_usd,
    )
    return None if found == PlannedPace() else found


def breaker_of(manifest: RunManifest) -> PlannedBreaker | None:
    """Return past which thresholds a run is paused, and its canary; None where its manifest says neither."""
    asked, canary = manifest.safety.breaker or Breaker(), manifest.safety.canary
    found = PlannedBreaker(
        rejected_percent=asked.max_rejected_percent,
        drift_percent=asked.max_drift_percent,
        failed_attempts=asked.max_failed_attempts,
        live_delay_seconds=asked.max_live_delay_seconds,
        free_memory_mb=asked.min_free_memory_mb,
        canary_chunks=0 if canary is None else canary.chunks,
        canary_waits=canary is not None and canary.waits,
    )
    return None if found == PlannedBreaker() or manifest.execution_mode is Mode.RECONCILIATION else found


def limit_problems(manifest: RunManifest, policy: Policy | None) -> list[Problem]:
    """Return which limits of a manifest go beyond the policy's."""
    found = []
    for most in limits_of(policy, manifest):
        assert policy is not None
        for field, wanted, allowed in _compared(manifest.limits, most):
            found.append(
                Problem(
                    f"{field} is {wanted:,}",
                    f"the policy '{policy.name}' allows {allowed:,} for {manifest.target.table}",
                    "lower it, or leave it out: what the policy says holds then; or have the policy changed (`limits` of the rule)",
                )
            )
        shortest, asked = most.pause_between_batches_seconds, manifest.limits.pause_between_batches_seconds
        if shortest is not None and asked is not None and asked < shortest:
            found.append(
                Problem(
                    f"limits.pauseBetweenBatchesSeconds is {asked:,}",
                    f"the policy '{policy.name}' wants at least {shortest:,} for {manifest.target.table}",
                    "raise it, or leave it out: what the policy says holds then",
                )
            )
    return found


def _compared(own: Pace, most: Pace) -> Iterator[tuple[str, int, int]]:
    pairs = [(name, getattr(own, field), getattr(most, field)) for field, name in _AT_MOST.items()]
    if own.budget is not None and most.budget is not None:
        pairs += [
            ("limits.budget.rows", own.budget.rows, most.budget.rows),
            ("limits.budget.bytes", own.budget.bytes, most.budget.bytes),
        ]
    for name, wanted, allowed in pairs:
        if wanted is not None and allowed is not None and wanted > allowed:
            yield name, wanted, allowed


def pace_problems(
    pace: PlannedPace | None, chunks: Sequence[PlannedChunk], look_back: Estimate | None, reads: Estimate
) -> list[Problem]:
    """Return why a run could not keep its pace: a chunk that no 10 minutes have room for, or a budget that is less than one reading."""
    if pace is None:
        return []
    before = look_back or Estimate(0, 0, 0)
    found: list[Problem] = []
    for chunk in chunks:
        work = Work(1, chunk.reads.rows + before.rows, chunk.reads.bytes + before.bytes)
        if why := never(pace, work):
            found.append(
                Problem(
                    f"chunk {chunk.key} reads {'; '.join(why)}",
                    "a rate holds over any 10 minutes, and a chunk is not divided",
                    "raise the limit",
                )
            )
            break
    for name, of_what, most, least in (
        ("limits.budget.rows", "rows", pace.budget_rows, reads.rows + before.rows),
        ("limits.budget.bytes", "bytes", pace.budget_bytes, reads.bytes + before.bytes),
    ):
        if most is not None and least > most:
            found.append(
                Problem(
                    f"the run would read {least:,} {of_what}",
                    f"{name} is {most:,}",
                    "narrow the publish range, or raise the budget if the figure is right",
                )
            )
    return found
