"""Whether a dry run counts for a plan: every reason why it does not, and what it has read otherwise.

Put here what is judged from two plans and what the ledger has of the dry run. What the ledger has, and whether anybody has changed it
by hand, is looked up by `backfill_assets.publication.dry_runs`; which runs need one is `dry_runs`'.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from manifests.chunks import in_words
from manifests.data_terms import DataTerms
from manifests.dry_runs import MOST_SAMPLED, DryRunTerms
from manifests.expected import EXPECTED_FIGURES_GATE
from manifests.lifecycle import RunState
from manifests.model import Mode
from manifests.plan import Plan

_OF_THE_WHOLE = frozenset({EXPECTED_FIGURES_GATE})
"""Run-level gates that a sample may not have: the figures of a manifest may be those of other chunks."""


@dataclass(frozen=True)
class FoundDryRun:
    """A dry run as the ledger has it.

    `validated_at` is when its last gate passed, None where it has not; `rows` how many each chunk has, by key, None of one that is not
    computed.
    """

    run_id: str
    plan: Plan
    development: bool
    state: RunState
    validated_at: datetime | None
    rows: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """The run that is to be approved, and what of its steps, if it has some, a dry run may be of.

    Attributes:
        run_id: the run. `plan` and `development` alike.
        scope: keys of the chunks that a dry run may take, of all steps.
        left: how many chunks the steps that are still to be published have: no more are asked for; None: as many as the terms say.
        reads: how many source rows each of them reads, by key.
    """

    run_id: str
    plan: Plan
    development: bool
    scope: Collection[str]
    left: int | None = None
    reads: Mapping[str, int] = field(default_factory=dict)

    def least(self, terms: DryRunTerms) -> int:
        """Return how many chunks a dry run computes at least."""
        return terms.least if self.left is None else min(terms.least, self.left)


def reasons_against(asked: Asked, terms: DryRunTerms, found: FoundDryRun, at: datetime) -> list[str]:
    """Say each reason why a dry run does not count for a run at an instant; nothing if it counts."""
    return [*_state(terms, found, at), *reasons_against_contents(asked, terms, found)]


def reasons_against_contents(asked: Asked, terms: DryRunTerms, found: FoundDryRun) -> list[str]:
    """Say each reason why a dry run does not count for a run, whatever has become of it."""
    plan, dry = asked.plan, found.plan
    reasons = [*_contents(plan, dry)]
    if plan.code.is_same(dry.code) and found.development and not asked.development:
        reasons.append("it is marked as development: it may have been computed by other code than its plan names")
    if not terms.other_snapshots:
        reasons += [f"it has read {one}" for one in other_snapshots(plan, dry)]
    outside = [chunk.key for chunk in dry.chunks if chunk.key not in asked.scope]
    if outside or dry.chunking is not plan.chunking:
        what = in_words(outside) if outside else f"chunks of a {dry.chunking}"
        reasons.append(f"it has computed what the run does not: {what}")
    inside, least = len(dry.chunks) - len(outside), asked.least(terms)
    empty = [chunk.key for chunk in dry.chunks if is_empty(asked, found, chunk.key)]
    most = min(len(asked.scope) if asked.left is None else asked.left, MOST_SAMPLED)
    if inside < least or (inside - len(empty) < least and inside < most):
        without = f"; chunks without a row where the run reads rows do not count: {in_words(empty)}" if empty else ""
        reasons.append(
            f"it has computed {inside - len(empty):,} of the run's chunks, and {least:,} are asked for{without}"
        )
    if inside and {chunk.key for chunk in dry.chunks}.isdisjoint(chunk.key for chunk in plan.chunks):
        reasons.append("it has computed chunks of other steps only, and none of this one")
    return reasons


def is_empty(asked: Asked, found: FoundDryRun, key: str) -> bool:
    """Whether a dry run has computed no row of a chunk of the run's for which the run reads rows."""
    return found.rows.get(key) == 0 and asked.reads.get(key, 0) > 0


def other_snapshots(plan: Plan, dry: Plan) -> tuple[str, ...]:
    """Say of each source that a dry run has read at another snapshot than the run would, which both are."""
    ours, its = _snapshots(plan), _snapshots(dry)
    found = [
        f"{table} at {_snapshot(its.get(table))}, and the run would at {_snapshot(ours.get(table))}"
        for table in sorted(ours.keys() | its.keys())
        if ours.get(table) != its.get(table)
    ]
    if found:
        return tuple(found)
    positions = {one.table: (one.ranges, one.lost) for one in plan.logs}
    others = [one.table for one in dry.logs if positions.get(one.table) != (one.ranges, one.lost)]
    return tuple(f"other positions of the log {table}" for table in others)


def _state(terms: DryRunTerms, found: FoundDryRun, at: datetime) -> Iterator[str]:
    """Yield why it is none that has passed, or has passed too long ago."""
    if found.plan.mode is not Mode.DRY_RUN:
        yield f"its mode is {found.plan.mode}, not {Mode.DRY_RUN}"
    if found.state is not RunState.VALIDATED or found.validated_at is None:
        yield f"it is {found.state}, not {RunState.VALIDATED}"
        return
    age = at - found.validated_at
    if age > timedelta(days=terms.within_days):
        days = age / timedelta(days=1)
        yield f"its gates passed {days:,.1f} days before, and {terms.within_days:g} are allowed"


def _contents(plan: Plan, dry: Plan) -> Iterator[str]:
    """Yield what it was made of, and held against, that is another than the run's."""
    ours, its = f"{plan.transform} {plan.transform_version}", f"{dry.transform} {dry.transform_version}"
    change, of_it = (plan.publish_mode, plan.merge, plan.corrections), (dry.publish_mode, dry.merge, dry.corrections)
    warm_up = f"it has {dry.warm_up_days} days of warm-up, not {plan.warm_up_days}"
    for differs, what in (
        (dry.target != plan.target, f"it is about {dry.target}, not {plan.target}"),
        (its != ours, f"it was computed by {its}, not {ours}"),
        (not plan.code.is_same(dry.code), f"it was computed by other code: {dry.code}, not {plan.code}"),
        (dry.configuration_hash != plan.configuration_hash, "it was computed with other Spark settings"),
        (dry.warm_up_days != plan.warm_up_days, warm_up),
        (
            of_it != change,
            f"it is about another change of the table: {dry.publish_mode}, with other terms than the run's",
        ),
        (_schemas(plan) != _schemas(dry), "its tables had other columns"),
        (_data_of(plan) != _data_of(dry), "the policy has other rows or columns left out of it"),
        (dry.tolerances != plan.tolerances, "it was held against other tolerances"),
    ):
        if differs:
            yield what
    for table, said in _differing(_references(plan), _references(dry)):
        yield f"it has read the reference {table} at {said}"
    if missing := sorted(set(plan.gates) - set(dry.gates) - _OF_THE_WHOLE):
        yield f"it was not held against {', '.join(missing)}"


def _snapshots(plan: Plan) -> dict[str, int | None]:
    return {plan.source: plan.source_snapshot_id} | {one.table: one.snapshot_id for one in plan.sources}


def _references(plan: Plan) -> dict[str, int]:
    return {pin.table: pin.snapshot_id for pin in plan.references}


def _schemas(plan: Plan) -> dict[str, int]:
    return {one.table: one.schema_id for one in plan.schemas}


def _differing(ours: Mapping[str, int], its: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for table in sorted(ours.keys() | its.keys()):
        if ours.get(table) != its.get(table):
            yield table, f"{_snapshot(its.get(table))}, not at {_snapshot(ours.get(table))}"


def _snapshot(snapshot_id: int | None) -> str:
    return "no snapshot" if snapshot_id is None else f"snapshot {snapshot_id}"


def _data_of(plan: Plan) -> list[Any]:
    """Return what the policy has a run not see, without what moves on from day to day: how old is too old, and who is erased."""

    def said(terms: DataTerms | None) -> Any:
        if terms is None:
            return None
        erased = None if terms.erasure is None else (terms.erasure.column, terms.erasure.origin)
        return terms.not_before is not None, erased, terms.masks

    return [said(plan.data), *((one.table, one.day, said(one.data)) for one in plan.sources)]
