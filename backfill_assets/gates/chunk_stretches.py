"""Which chunks of a run are reconciled together: those without a gap that one plan has made.

Put here how they are found and named. What is looked at of them is `judging`'s, or `reconciliation.verdicts`'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from manifests.chunks import first_instant, last_instant, stretches_of
from manifests.plan import Plan, PlannedChunk


def alike_stretches(chunks: Iterable[tuple[Plan, PlannedChunk]]) -> list[tuple[Plan, list[str]]]:
    """Return the keys of chunks, in order, as stretches without a gap that have one plan: all times, in each of some parts."""
    by_plan: dict[str, tuple[Plan, list[PlannedChunk]]] = {}
    for plan, chunk in chunks:
        by_plan.setdefault(plan.hash, (plan, []))[1].append(chunk)
    found: list[tuple[int, Plan, list[str]]] = []
    for plan, own in by_plan.values():
        for stretch in stretches_of(own):
            first, last, parts = first_instant(stretch.first), last_instant(stretch.last), set(stretch.parts)
            inside = [one for one in own if one.part in parts and first <= first_instant(one) <= last]
            found.append((inside[0].index, plan, [one.key for one in inside]))
    return [(plan, keys) for _, plan, keys in sorted(found, key=lambda one: one[0])]


def named_stretches(
    stretches: Iterable[tuple[Plan, list[str]]], name: Callable[[Plan, list[str]], str]
) -> dict[str, tuple[Plan, list[str]]]:
    """Return stretches by a name of each, which a number makes another where two have the same."""
    found: dict[str, tuple[Plan, list[str]]] = {}
    for plan, keys in stretches:
        said, number = name(plan, keys), 2
        while said in found:
            said, number = f"{name(plan, keys)} ({number})", number + 1
        found[said] = plan, keys
    return found
