"""RECONCILIATION: the published rows of a target held against its source. Reads, judges, records; changes no table of anybody.

Put here the way of a reconciliation. It goes the states of every other run up to VALIDATED (everything agrees) or FAILED
(something does not), in one go; nothing is computed into staging, and the planner gives it no stage that could publish. How it
is asked for is in `reconciliation.manifest`, what is judged in `reconciliation.verdicts`.
"""

from __future__ import annotations

from backfill_assets import faults
from backfill_assets.execution import Execution, Handler
from backfill_assets.gates.visible_rows import TALLIES
from backfill_assets.installation import Platform
from backfill_assets.reconciliation.published_chunks import published_chunks, read_chunks
from backfill_assets.reconciliation.verdicts import verdicts_of
from backfill_assets.run_context import RunContext
from backfill_assets.staging import stopping
from backfill_assets.worker.gate_tasks import GateResult
from manifests.canonical import plain
from manifests.chunks import CHUNK_GATE
from manifests.errors import Problem, TransitionRefused
from manifests.lifecycle import RunState
from manifests.model import Mode
from manifests.stages import Reconcile, Step
from resources.ledger import judged
from resources.ledger.facade import GatedChunk, Verdict, operator

_JUDGED = frozenset({RunState.VALIDATED, RunState.FAILED})


def reconcile(platform: Platform, run_id: str) -> list[Verdict]:
    """Judge the published rows of an approved reconciliation, and record what was found; safe to repeat.

    One that has been judged is answered with its verdicts. One that was interrupted is judged whole, on the snapshots that
    its plan pins; its exceptions are kept once.

    Raises:
        RunStopped: if somebody stops it meanwhile.
        TransitionRefused: if it is no reconciliation, or not approved.
    """
    record = platform.ledger.run(run_id)
    if record.plan.mode is not Mode.RECONCILIATION:
        raise TransitionRefused(
            Problem(
                f"run '{run_id}' has mode {record.plan.mode}",
                "what is reconciled is a run of kind RECONCILIATION",
                f"`backfill run {run_id}` is for all others",
            )
        )
    if record.state in _JUDGED:
        return _recorded(platform, run_id)
    if record.state not in {RunState.APPROVED, RunState.RUNNING, RunState.STAGED}:
        raise TransitionRefused(
            Problem(
                f"run '{run_id}' is {record.state}",
                "an approved reconciliation is judged",
                f"`backfill reconcile {record.target}` makes another one",
            )
        )
    run = RunContext.of(platform, record)
    with stopping.launched(platform, run_id):
        handlers: dict[type, Handler] = {Reconcile: lambda _stages: _judge(run)}
        Execution(platform, run_id, handlers=handlers).run(Step.RECONCILE)
    return _recorded(platform, run_id)


def _judge(run: RunContext) -> None:
    run_id, ledger = run.run_id, run.platform.ledger
    ledger.resume(run_id, operator())
    published = published_chunks(run)
    results = read_chunks(run, published)
    faults.reach("gating.judged")
    ledger.record_gated(run_id, [_as_gated(result) for result in results.values()])
    if ledger.run(run_id).state is RunState.RUNNING:
        why = f"{len(results)} published chunks read"
        ledger.move(run_id, RunState.STAGED, operator(), why, expected=RunState.RUNNING)
    verdicts = verdicts_of(run, published, results)
    faults.reach("gating.run_judged")
    # what is published does not change: whoever judged its chunks judged the same
    ledger.judge(run_id, verdicts, operator(), of=judged.name_of(ledger.chunks(run_id)))


def _recorded(platform: Platform, run_id: str) -> list[Verdict]:
    return [verdict for verdict in platform.ledger.verdicts(run_id) if not verdict.chunk]


def _as_gated(result: GateResult) -> GatedChunk:
    details = {"rows": result.rows, "digest": result.digest, "violations": plain(result.violations)}
    verdict = Verdict(CHUNK_GATE, result.passed, result.summary, details, result.chunk, result.attempt)
    measures = {"slices": result.measures, TALLIES: result.tallies}
    return GatedChunk(result.chunk, result.attempt, result.digest, result.rows, measures, verdict)
