"""What `logs` shows of gaps: what is missing and what to do about it, and what somebody has accepted, who, when and why.

Put here what is said of both kinds of logs. The words for positions are `manifests.log_gaps`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from backfill_assets.cli.base import tell
from manifests.log_gaps import load_in_words, place_of_gap, positions_in_words
from manifests.log_ranges import LogKind, LogRange, without

if TYPE_CHECKING:
    from resources.lakehouse.landed_logs import AcceptedGap, LandedLoad

_SHOWN = 20
"""Gaps that a person is shown; `--json` has all of them."""


def accepted_as_data(gaps: Iterable[AcceptedGap], loads: Sequence[LandedLoad]) -> list[dict[str, Any]]:
    """Return what was accepted, as plain data."""
    names = [one.load_id for one in loads]
    return [
        {
            "gap": one.positions,
            "landed_since": one.landed_since,
            "what": one.what,
            "reason": one.reason,
            "by": one.by,
            "at": one.at,
            "load": one.load_id,
            "load_in_words": load_in_words(one.load_id, names),
            "snapshot": one.snapshot_id,
        }
        for one in gaps
    ]


def not_accepted(missing: Iterable[LogRange], gaps: Iterable[AcceptedGap]) -> tuple[LogRange, ...]:
    """Return what is missing and nobody has accepted as lost."""
    return without(missing, [part for one in gaps for part in one.positions])


def missing_as_data(missing: Sequence[LogRange], loads: Sequence[LandedLoad], kind: LogKind) -> list[dict[str, Any]]:
    """Return what is missing, each gap with its place among the loads, as plain data."""
    brought = {load.load_id: [one.range for one in load.landed.ranges] for load in loads}
    return [
        {"partition": one.partition, "gap": [one.start, one.until], "where": place_of_gap(one, brought, kind)}
        for one in missing
    ]


def tell_missing(found: Sequence[dict[str, Any]], kind: LogKind, log: str) -> None:
    """Say what is missing, and what to do."""
    for one in found[:_SHOWN]:
        gap = LogRange(one["partition"], *one["gap"])
        tell(f"  missing: {positions_in_words([gap], kind)}, {one['where']}")
        tell(f"    {_what_to_do(gap, kind, log)}")
    if len(found) > _SHOWN:
        tell(f"  and {len(found) - _SHOWN:,} more gaps (--json has all of them)")


def _what_to_do(gap: LogRange, kind: LogKind, log: str) -> str:
    if kind is LogKind.CHANGELOG:
        return (
            f"deliver the files that have it: `backfill land {log} FOLDER`; if nobody has them any more, the next landing "
            "accepts the gap, on record: --accept-gap REASON"
        )
    offsets = f"--from-offsets {gap.partition}:{gap.start} --until-offsets {gap.partition}:{gap.until}"
    return (
        f"land it: `backfill land {log} {offsets}`, or from an archive what the topic does not have any more (--archive PLACE); "
        "if nobody has it, the next landing accepts the gap, on record: --accept-gap REASON"
    )


def tell_accepted(found: Sequence[dict[str, Any]], kind: LogKind) -> None:
    """Say what was accepted as lost: which positions, who, when, with which load, and why."""
    for one in found[-_SHOWN:]:
        positions = positions_in_words(one["gap"], kind) or one["what"]
        who = f"by {one['by']}, {one['at']:%Y-%m-%d %H:%M} UTC, with {one['load_in_words']}: {one['reason']}"
        if not one["reason"]:
            who = f"with {one['load_in_words']}; the snapshot that says who and why has expired"
        tell(f"  accepted gap: {positions}, {who}")
        if one["landed_since"]:
            tell(f"    of it was landed since: {positions_in_words(one['landed_since'], kind)}")
    if len(found) > _SHOWN:
        tell(f"  and {len(found) - _SHOWN:,} gaps that were accepted before (--json has all of them)")
