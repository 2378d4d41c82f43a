"""The verdicts of a reconciliation: what every gate of its plan finds of the published chunks, and the exceptions it keeps.

Put here which gate is asked what. Products' reconciliations are judged as for a run of their own, by the rules (transform
version, reference data) that the rows were made by. The two gates that every target has are in `reconciliation.platform_gates`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from backfill_assets.declarations.target import (
    ACCEPTED_ROWS_GATE,
    PUBLISHED_RULES_GATE,
    Finding,
    Level,
    Reconciliation,
    ReconciliationContext,
)
from backfill_assets.gates.chunk_stretches import alike_stretches, named_stretches
from backfill_assets.gates.exception_table import Judged, keep
from backfill_assets.gates.future_rows import future_rows_finding
from backfill_assets.gates.judging import everywhere, reconciliation_context, run_verdict
from backfill_assets.planning import old_data
from backfill_assets.reconciliation.platform_gates import accepted_finding, rules_finding
from backfill_assets.reconciliation.published_chunks import Published, outlines_of
from backfill_assets.run_context import RunContext
from backfill_assets.staging.compute import histories_until_end
from backfill_assets.staging.raised import found_or_raised
from backfill_assets.worker.gate_tasks import GateResult
from manifests.canonical import sha256_of
from manifests.chunks import span
from manifests.data_terms import OLD_DATA_GATE
from manifests.plan import Plan, PlannedChunk
from manifests.timeliness import FUTURE_GATE
from resources.ledger.facade import Verdict

_EXCEPTIONS_LIMIT = 10_000


def verdicts_of(
    run: RunContext, published: Mapping[str, Published], results: Mapping[str, GateResult]
) -> list[Verdict]:
    """Ask every gate of the plan, in its order; the exceptions that they name are kept once, however often it is judged."""
    plan = run.plan
    found = {
        judged.gate: judged
        for judged in (
            *_of_every_target(run, published, results),
            *_of_the_product(run, published),
            *_of_the_policy(run, published),
            *_of_the_future(run),
        )
    }
    judgement = sha256_of([[key, result.digest, result.rows] for key, result in results.items()])
    kept = keep(
        run.platform,
        run.run_id,
        judgement,
        mode=plan.mode,
        target=run.target.name,
        judged=list(found.values()),
        concealed=old_data.concealed(run),
    )
    return [run_verdict(gate, found[gate].finding, kept.get(gate, {})) for gate in plan.gates]


def _of_every_target(
    run: RunContext, published: Mapping[str, Published], results: Mapping[str, GateResult]
) -> Iterator[Judged]:
    if PUBLISHED_RULES_GATE in run.plan.gates:
        yield _recorded(PUBLISHED_RULES_GATE, rules_finding(run.platform, run.plan, results))
    if ACCEPTED_ROWS_GATE in run.plan.gates:
        yield _recorded(ACCEPTED_ROWS_GATE, accepted_finding(run, published, results))


def _of_the_product(run: RunContext, published: Mapping[str, Published]) -> Iterator[Judged]:
    """Judge what the product declares, stretch by stretch of chunks that were made by the same rules."""
    plan = run.plan
    chunks = {chunk.chunk: chunk for chunk in run.platform.ledger.chunks(run.run_id)}

    @cache
    def contexts() -> dict[str, ReconciliationContext]:
        return {
            name: reconciliation_context(
                run.with_plan(own),
                [chunks[key] for key in stretch],
                published=outlines_of(run.with_plan(own), [published[key] for key in stretch]),
                files={key: published[key].files for key in stretch},
            )
            for name, (own, stretch) in named_stretches(
                _stretches(plan, published), lambda own, stretch: f"{span(stretch)}, {own.transform_version}"
            ).items()
        }

    def reconciled(item: Reconciliation) -> Finding:
        if not (there := contexts()):
            return Finding(True, "nothing is published in these days")
        with run.platform.spark.settings_kept(plan.mode):
            return everywhere(item, there)

    for item in run.target.reconciliations:
        if item.name in plan.gates:
            finding = found_or_raised(run.platform, run.run_id, item.name, partial(reconciled, item))
            yield Judged(item.name, item.level.value, finding, item.exceptions_limit)


def _of_the_policy(run: RunContext, published: Mapping[str, Published]) -> Iterator[Judged]:
    if OLD_DATA_GATE in run.plan.gates:
        sources = histories_until_end(run, whole=True)
        paths = [path for one in published.values() for path in one.files]
        yield _recorded(OLD_DATA_GATE, old_data.finding(run, sources, paths))


def _of_the_future(run: RunContext) -> Iterator[Judged]:
    if FUTURE_GATE in run.plan.gates:
        yield _recorded(FUTURE_GATE, future_rows_finding(run, histories_until_end(run, whole=True)))


def _recorded(gate: str, finding: Finding) -> Judged:
    return Judged(gate, Level.RECORD.value, finding, _EXCEPTIONS_LIMIT)


def _stretches(plan: Plan, published: Mapping[str, Published]) -> list[tuple[Plan, list[str]]]:
    """Return accepted chunks that follow one another and were made by the same rules, each with a plan that has those."""
    made: list[tuple[Plan, PlannedChunk]] = []
    alike: dict[tuple[str, Any], Plan] = {}
    for chunk in plan.chunks:
        accepted = published[chunk.key].accepted
        if accepted is not None:
            version, references = accepted[2].transform_version, accepted[2].references
            if (version, references) not in alike:
                alike[version, references] = replace(plan, transform_version=version, references=references)
            made.append((alike[version, references], chunk))
    return alike_stretches(made)
