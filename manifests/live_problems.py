"""What keeps history and LIVE from meeting: a crossed cut line, days that no run would cover, older knowledge.

Put here rules about runs beside LIVE. What a run of kind LIVE must be is `manifests.model`'s; when the next one is due,
`backfill_assets.schedules.live`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from types import MappingProxyType

from manifests.chunks import Chunking, aligned, cut, first_day, last_day
from manifests.errors import Problem
from manifests.facts import BaseState, SourceState, TargetContract
from manifests.model import Kind, Mode, RunManifest


def live_problems(
    manifest: RunManifest,
    contract: TargetContract,
    source: SourceState,
    base: BaseState,
    further: Mapping[str, tuple[int | None, datetime | None]] = MappingProxyType({}),
) -> list[Problem]:
    """Return what keeps history and LIVE from meeting: a crossed cut line, days between them, older knowledge.

    `further` has the snapshot that is read of each source beside the first, and its commit.
    """
    problems = _gap_problems(manifest, contract, base)
    publish, cut_line = manifest.target.publish_range, manifest.cut_line
    if cut_line is not None and publish.end >= cut_line + timedelta(days=manifest.overlap_days):
        days = (publish.end - cut_line).days + 1
        problems.append(
            Problem(
                f"target.publishRange ends on {publish.end}, {days} day(s) beyond the cut line {cut_line}",
                f"LIVE owns the days from the cut line on; overlapDays is {manifest.overlap_days}",
                f"end it before {cut_line}, or declare overlapDays: {days} if the overlap is meant",
            )
        )
    is_live = manifest.execution_mode is Mode.LIVE
    known = [at for at in (base.complete_at, base.held_at) if at is not None]
    newest = max(known, default=None) if is_live else base.live_at
    if manifest.execution_mode is Mode.RECONCILIATION or manifest.kind is Kind.COMPACTION:
        newest = None  # no row is replaced
    if newest is not None and source.committed_at < newest:
        if not is_live:
            held = f"published by LIVE in this range from {contract.source}"
        elif newest == base.complete_at:
            held = f"complete with {contract.source}"
        else:
            held = f"published in this range from {contract.source}"
        problems.append(
            Problem(
                f"the source snapshot {source.snapshot_id} is of {source.committed_at.isoformat()}",
                f"{contract.table} is {held} as of {newest.isoformat()}: older knowledge never replaces newer",
                "leave source.snapshotId out, so that the current snapshot is read, or narrow the publish range",
            )
        )
    return [*problems, *_older_further(manifest, contract, base, further)]


def _older_further(
    manifest: RunManifest,
    contract: TargetContract,
    base: BaseState,
    further: Mapping[str, tuple[int | None, datetime | None]],
) -> Iterator[Problem]:
    """Say the same of sources beside the first: that older rows of them are read than those that are published."""
    is_live = manifest.execution_mode is Mode.LIVE
    if manifest.execution_mode is Mode.RECONCILIATION or not (is_live or base.live_at is not None):
        return
    for table, (snapshot_id, committed_at) in further.items():
        known = [base.held_sources.get(table), base.complete_sources.get(table) if is_live else None]
        newest = max((at for at in known if at is not None), default=None)
        if newest is None or (committed_at is not None and committed_at >= newest):
            continue
        of = "none" if committed_at is None else f"of {committed_at.isoformat()}"
        yield Problem(
            f"the snapshot {snapshot_id} of {table} is {of}",
            f"{contract.table} is published in this range from {table} as of {newest.isoformat()}: older knowledge never "
            "replaces newer",
            f"leave {table} out of sources, so that its current snapshot is read, or narrow the publish range",
        )


def _gap_problems(manifest: RunManifest, contract: TargetContract, base: BaseState) -> list[Problem]:
    """Return the days between what is complete and the run, and between the run and its cut line, that nobody covers.

    Only LIVE and runs with a cut line promise to leave none. A step of a series meets the steps before and after it.
    """
    is_live, cut_line, series = manifest.execution_mode is Mode.LIVE, manifest.cut_line, manifest.series
    if not is_live and cut_line is None:
        return []
    publish, one_day = manifest.target.publish_range, timedelta(days=1)
    stretches = []
    if series is None or series.step == 1:
        chunking, parts = contract.chunking, contract.parts(manifest.target.values)
        complete = [last_day(chunking, day) for day in complete_times(chunking, base.accepted, parts)]
        since = max((day for day in complete if day < publish.start), default=None)
        if is_live and base.complete_until is not None:
            since = base.complete_until
        if since is not None:
            stretches.append((since + one_day, publish.start - one_day))
    if cut_line is not None and (series is None or series.step == series.steps):
        stretches.append((publish.end + one_day, cut_line - one_day))
    parts = contract.parts(manifest.target.values)
    gaps = [
        gap for first, last in stretches if (gap := _uncovered(contract.chunking, first, last, base.accepted, parts))
    ]
    return [
        Problem(
            f"no run would cover the days {start} to {end}",
            f"{'LIVE' if is_live else 'a run with a cut line'} leaves no days out between it and what is complete in "
            f"{contract.table}, or its cut line",
            "widen target.publishRange over them, or publish them first",
        )
        for start, end in gaps
    ]


def complete_times(chunking: Chunking, accepted: Collection[str], parts: Sequence[str] = ()) -> list[date]:
    """Return the first day of each time of which every chunk is accepted: every hour of the day, and every one of some parts."""
    begins = sorted({first_day(chunking, key) for key in accepted})
    held = frozenset(accepted)
    return [
        day for day in begins if all(chunk.key in held for chunk in cut(chunking, day, last_day(chunking, day), parts))
    ]


def _uncovered(
    chunking: Chunking, start: date, end: date, accepted: frozenset[str], parts: Sequence[str]
) -> tuple[date, date] | None:
    """Return the first and last day from `start` to `end` that no accepted chunk holds; None if each is held.

    A chunk that begins before `start` is complete up to there only: its other days are not covered.
    """
    if start > end:
        return None
    chunks = cut(chunking, *aligned(chunking, start, end), parts)
    missing = [chunk for chunk in chunks if chunk.start < start or chunk.key not in accepted]
    return (max(missing[0].start, start), min(missing[-1].end, end)) if missing else None
