"""What a kind of run means, held against what the plan finds: a kind is not a word that its author chooses freely.

Policies have rules by kind, so that a kind whose meaning the plan contradicts would choose its rule. Put here what each
kind says about the target as it is; who may do what under a kind is `manifests.who_may`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

from manifests.chunks import in_words, part_of
from manifests.errors import Problem
from manifests.model import Kind, RunManifest, scope_in_words

FIRST_OUTPUT = frozenset({Kind.BACKFILL, Kind.BOOTSTRAP, Kind.MIGRATION, Kind.REPLAY})
"""Kinds that never replace what was accepted by something else."""
FILLS = frozenset({Kind.BOOTSTRAP, Kind.MIGRATION})


@dataclass(frozen=True)
class Holder:
    """Of the accepted run that holds a chunk: its kind, its transform's version, and the snapshot it read of each source."""

    kind: Kind
    transform_version: str
    sources: frozenset[tuple[str, int]]


@dataclass(frozen=True)
class Present:
    """What there is of a target when a run is planned.

    Attributes:
        holders: by chunk, the accepted run that holds it; of the whole target.
        days: first and last day of each chunk of `holders`.
        rows_of_others: whether the publish range has rows that no run of this installation has published.
        live_has_begun: whether LIVE has ever published into the target.
    """

    holders: Mapping[str, Holder] = field(default_factory=dict)
    days: Mapping[str, tuple[date, date]] = field(default_factory=dict)
    rows_of_others: bool = False
    live_has_begun: bool = False


def kind_problems(
    manifest: RunManifest, present: Present, sources: frozenset[tuple[str, int]], *, told_apart: bool
) -> list[Problem]:
    """Say why a run is not of the kind that its manifest names, and which kind it is of.

    Args:
        manifest: the contract.
        present: what there is of its target.
        sources: its sources, each with the snapshot that it would read.
        told_apart: whether the policy treats a RESTATEMENT of this table otherwise than a BACKFILL. Where it does not,
            a RESTATEMENT of days that are not published yet is let pass: it asks for nothing that it may not have.
    """
    kind, scope, table = manifest.kind, manifest.target.publish_range, manifest.target.table
    values = manifest.target.values
    held = {
        key: holder
        for key, holder in present.holders.items()
        if present.days[key][0] <= scope.end
        and present.days[key][1] >= scope.start
        and (values is None or part_of(key) in values)
    }
    found = _found(table, held, present)
    match kind:
        case Kind.BACKFILL if found:
            return [_is(kind, Kind.RESTATEMENT, found, "a BACKFILL produces output that is missing")]
        case Kind.BOOTSTRAP | Kind.MIGRATION if found:
            return [_is(kind, Kind.RESTATEMENT, found, f"a {kind} fills what is empty, before LIVE begins")]
        case Kind.BOOTSTRAP | Kind.MIGRATION if present.live_has_begun:
            begun = f"LIVE has published into {table}"
            return [_is(kind, Kind.BACKFILL, begun, f"a {kind} fills a new target, before LIVE begins")]
        case Kind.BOOTSTRAP | Kind.MIGRATION if others := sorted(
            {holder.kind for holder in present.holders.values()} - FILLS
        ):
            others_said = f"{table} is in use: it holds chunks of runs of kind {', '.join(others)}"
            return [_is(kind, Kind.BACKFILL, others_said, f"a {kind} fills a new target")]
        case Kind.REPAIR | Kind.REPROCESSING | Kind.REPLAY if not found:
            nothing = f"nothing of {table} is published from {scope_in_words(scope, values)}"
            return [_is(kind, Kind.BACKFILL, nothing, f"a {kind} works on what was processed before")]
        case Kind.RESTATEMENT if not found and told_apart:
            nothing = f"nothing of {table} is published from {scope_in_words(scope, values)}"
            rule = "a RESTATEMENT supersedes what was accepted, and the policy has another rule for a first output"
            return [_is(kind, Kind.BACKFILL, nothing, rule)]
        case Kind.REPAIR if manifest.target.merge is None and len(held) == len(present.holders) > 1:
            whole = f"the publish range holds all {len(held)} published chunks of {table}"
            return [_is(kind, Kind.RESTATEMENT, whole, "a REPAIR reprocesses a bounded part of what is published")]
        case Kind.REPLAY if present.rows_of_others or any(
            (one.transform_version, one.sources) != (manifest.transform.version, sources) for one in held.values()
        ):
            rule = "a REPLAY of what is published reads the snapshot that was read for it, with the version of the transform"
            return [_is(kind, Kind.RESTATEMENT, f"{found}, made otherwise", rule)]
    return []


def _found(table: str, held: Mapping[str, Holder], present: Present) -> str:
    """Say what is published in the publish range; empty if nothing is."""
    if held:
        keys = sorted(held)
        return f"{len(keys)} chunk(s) of {table} in the publish range are published ({in_words(keys)})"
    return (
        f"{table} has rows in the publish range that this installation has not published"
        if present.rows_of_others
        else ""
    )


def _is(kind: Kind, right: Kind, what: str, rule: str) -> Problem:
    return Problem(f"kind is {kind}, and {what}", rule, f"this is a {right}: state `kind: {right}`")
