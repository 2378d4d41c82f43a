"""What limits say against a plan: the manifest's own, and those of the policy that it has to stay within.

Put here what is judged of them from what is planned, and the pace that a plan keeps. What a batch waits for is `pace`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime

from manifests.breaker import PlannedBreaker
from manifests.errors import Problem
from manifests.estimates import Estimate
from manifests.further_sources import PinnedSource
from manifests.limits import Breaker, Hours, Pace
from manifests.model import Mode, RunManifest
from manifests.pace import PlannedPace, Work, never, opens_at
from manifests.plan import PlannedChunk
from manifests.policy import Policy

_SEASONS = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 7, 1, tzinfo=UTC))
"""From when on it is looked whether hours are ever open: zones put their clocks forward in one of them."""
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
        # LIVE never waits for the commits of others
        commits_per_hour=None if manifest.execution_mode is Mode.LIVE else least("max_commits_per_hour"),
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
    pace: PlannedPace | None,
    chunks: Sequence[PlannedChunk],
    look_back: Estimate | None,
    reads: Estimate,
    further: Sequence[PinnedSource] = (),
) -> list[Problem]:
    """Return why a run could not keep its pace.

    That is a chunk that no 10 minutes have room for, a budget that is less than one reading, or hours that are never open at once.
    """
    if pace is None:
        return []
    given = [one for one in further if not one.for_gates]
    found = _window_problems(pace)
    for chunk, work in zip(chunks, _works(chunks, look_back, reads, given), strict=True):
        if why := never(pace, work):
            found.append(
                Problem(
                    f"chunk {chunk.key} reads {'; '.join(why)}",
                    "a rate holds over any 10 minutes, and a chunk is not divided",
                    "raise the limit",
                )
            )
            break
    parts = [reads, look_back or Estimate(0, 0, 0), *(one.reads for one in given)]
    for name, of_what, most, least in (
        ("limits.budget.rows", "rows", pace.budget_rows, sum(one.rows for one in parts)),
        ("limits.budget.bytes", "bytes", pace.budget_bytes, sum(one.bytes for one in parts)),
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


def _works(
    chunks: Sequence[PlannedChunk], look_back: Estimate | None, reads: Estimate, further: Sequence[PinnedSource]
) -> Iterator[Work]:
    """Yield what each chunk is given to read by itself: its own part, all that is earlier where the transform looks back, and the rest.

    A file that several chunks share is in each of their parts, and is read once.
    """
    parts: dict[tuple[date, int], list[Estimate]] = {}
    for chunk in chunks:
        parts.setdefault((chunk.start, chunk.hour or 0), []).append(chunk.reads)
    rows = size = 0
    earlier = {}
    for begins, found in sorted(parts.items(), key=lambda one: one[0]):
        earlier[begins] = min(rows, reads.rows), min(size, reads.bytes)
        rows, size = rows + sum(one.rows for one in found), size + sum(one.bytes for one in found)
    for chunk in chunks:
        more = [_of_chunk(one, chunk, chunks) for one in further]
        if look_back is not None:
            more += [(look_back.rows, look_back.bytes), earlier[chunk.start, chunk.hour or 0]]
        yield Work(1, chunk.reads.rows + sum(one for one, _ in more), chunk.reads.bytes + sum(one for _, one in more))


def _of_chunk(source: PinnedSource, chunk: PlannedChunk, chunks: Sequence[PlannedChunk]) -> tuple[int, int]:
    """Return rows and bytes that a chunk reads of a further source: all of a state, or of what has no beginning; else its days' share."""
    share = 1.0
    if source.day is None and source.days_before is not None:
        around = 1 + source.days_before + source.days_after
        whole = (max(one.end for one in chunks) - min(one.start for one in chunks)).days + around
        share = ((chunk.end - chunk.start).days + around) / whole
    return round(source.reads.rows * share), round(source.reads.bytes * share)


def _window_problems(pace: PlannedPace) -> list[Problem]:
    """Return that hours of the manifest and of the policy have no instant in common, in summer and in winter."""
    if any(opens_at(pace.windows, at) is not None for at in _SEASONS):
        return []
    return [
        Problem(
            f"batches would never begin: {' and '.join(' or '.join(map(str, hours)) for hours in pace.windows)}",
            "limits.windows of the manifest and of the policy are open at once at some time",
            "give hours that lie in the policy's, or have the policy changed (`limits` of the rule)",
        )
    ]
