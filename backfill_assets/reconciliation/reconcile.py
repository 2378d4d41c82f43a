"""RECONCILIATION: the published rows of a target held against its source. Reads, judges, records; changes no table of anybody.

Put here the manifest of a reconciliation, its approval by policy, and the judging. A run goes the states of every other up
to VALIDATED (everything agrees) or FAILED (something does not), in one go; nothing is computed into staging, and the
planner gives it no stage that could publish. The pieces that products declare are judged as for a run of their own, with
the published rows in place of staged ones, by the rules (transform version, reference data) that the rows were made by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cache, partial
from hashlib import sha256

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.pandas.types import to_arrow_schema

from backfill_assets import decisions, faults
from backfill_assets.declarations.reconciliations import SLICES, exception_rows, text_of
from backfill_assets.declarations.schema import spark_schema
from backfill_assets.declarations.target import (
    ACCEPTED_ROWS_GATE,
    PUBLISHED_RULES_GATE,
    Finding,
    Level,
    Reconciliation,
    ReconciliationContext,
    ReconciliationPolicy,
    TargetTable,
)
from backfill_assets.evidence.seals import SCHEMA_FILE
from backfill_assets.execution import Execution, Handler
from backfill_assets.gates.accepted_then import accepted_then
from backfill_assets.gates.exception_table import Judged, keep
from backfill_assets.gates.judging import CHUNK_GATE, everywhere, gate_spec, reconciliation_context, run_verdict
from backfill_assets.installation import Platform
from backfill_assets.planning import old_data
from backfill_assets.planning.resolve import plan_run
from backfill_assets.planning.scopes import chunk_scopes
from backfill_assets.staging import stopping
from backfill_assets.staging.compute import history_until_end
from backfill_assets.staging.raised import found_or_raised
from backfill_assets.staging.rows import read
from backfill_assets.worker.chunk_gate import digest_columns
from backfill_assets.worker.chunk_published import OutlineTask, judging, outline_batches
from backfill_assets.worker.gate_tasks import GateResult, GateTask
from backfill_assets.worker.references import reference_to
from backfill_assets.worker.violations import require_read
from manifests.canonical import plain, sha256_of
from manifests.chunks import Chunking, aligned, first_day, last_day
from manifests.data_terms import OLD_DATA_GATE
from manifests.errors import InputRefused, Problem, TransitionRefused
from manifests.lifecycle import RunState
from manifests.model import MAX_RUN_ID, DayRange, Kind, Mode, RunManifest
from manifests.plan import Plan
from manifests.reading import manifest_from
from manifests.stages import Reconcile, Step
from resources.files.kept_files import read_json
from resources.lakehouse.facade import PinnedRead, local_path
from resources.ledger import judged
from resources.ledger.facade import ChunkRecord, GatedChunk, RunRecord, Verdict, now, operator
from resources.spark.workers import SparkWorkers

PLATFORM_GATES = {
    PUBLISHED_RULES_GATE: "What readers see passes the target's own row rules, chunk by chunk.",
    ACCEPTED_ROWS_GATE: "What readers see is what was gated and accepted, row by row: nobody else has written there.",
}
_EXCEPTIONS_LIMIT = 10_000
_JUDGED = frozenset({RunState.VALIDATED, RunState.FAILED})
_CHUNK_FORMAT = {Chunking.MONTH: "yyyy-MM", Chunking.DAY: "yyyy-MM-dd"}


@dataclass(frozen=True)
class Published:
    """The published files of one chunk; `accepted` is the run and the chunk as it was accepted, if anybody did."""

    chunk: str
    files: tuple[str, ...]
    rows: int
    accepted: tuple[RunRecord, ChunkRecord, Plan] | None


def policy_of(target: TargetTable) -> ReconciliationPolicy:
    """Return how a target is reconciled: as it declares, or else against everything it has."""
    return target.reconciled or ReconciliationPolicy()


def described_gates(target: TargetTable) -> dict[str, str]:
    """Return the gates that published rows of a target are held against, each with what it says."""
    own = {item.name: f"{item.level.value}: {item.description}" for item in target.reconciliations}
    chosen = policy_of(target).gates
    names = [gate for gate in target.published_gates if chosen is None or gate in chosen]
    return {name: (PLATFORM_GATES | own)[name] for name in names}


# --- the manifest, and who approves it --------------------------------------------------------------------------------


def manifest_of(
    platform: Platform,
    target: TargetTable,
    *,
    days: DayRange | None = None,
    source_snapshot_id: int | None = None,
    gates: Sequence[str] = (),
    requested_by: str | None = None,
) -> RunManifest:
    """Write the manifest of a reconciliation of published chunks, by default of all; the source is read as it is now.

    Raises:
        InputRefused: if nothing is published in those days.
    """
    policy = policy_of(target)
    held = sorted(platform.ledger.accepted(target.name))
    if not held:
        raise InputRefused(
            Problem(
                f"nothing of {target.name} is published",
                "a reconciliation looks at published rows",
                "publish a run first; see `backfill status`",
            )
        )
    first, last = first_day(target.chunking, held[0]), last_day(target.chunking, first_day(target.chunking, held[-1]))
    if days is None:
        begins = first if policy.days is None else max(first, last - timedelta(days=policy.days - 1))
        start, end = aligned(target.chunking, begins, last)
    else:
        start, end = aligned(target.chunking, days.start, days.end)
    chosen = list(gates) or policy.gates
    at = now()
    source = "its current snapshot" if source_snapshot_id is None else f"snapshot {source_snapshot_id}"
    return manifest_from(
        {
            "runId": _free_run_id(platform, target, f"{at:%Y%m%d-%H%M%S}"),
            "kind": Kind.RECONCILIATION.value,
            "requestedBy": requested_by or operator(),
            "reason": f"Reconciliation of {target.name} as published from {start} to {end} with {target.source} at {source}.",
            "source": {"table": target.source, "snapshotId": source_snapshot_id},
            "transform": {"name": target.transform, "version": _version_held(platform, target, held, end)},
            "target": {
                "table": target.name,
                "publishRange": {"start": start.isoformat(), "end": end.isoformat()},
            },
            "validation": {"gates": None if chosen is None else list(chosen)},
            "purpose": policy.purpose,
            # it changes nothing, so that any code may run it; the record says when that was not committed
            "development": platform.code_of(target.name).is_dirty,
        },
        where=f"reconciliation of {target.name}",
    )


def _version_held(platform: Platform, target: TargetTable, held: Sequence[str], end: date) -> str:
    """Return the transform version of the newest published chunk of a range; other chunks are held to their own."""
    newest = [key for key in held if first_day(target.chunking, key) <= end] or list(held)
    return platform.ledger.run(platform.ledger.accepted(target.name, [newest[-1]])[newest[-1]]).plan.transform_version


def _free_run_id(platform: Platform, target: TargetTable, at: str) -> str:
    name = target.name.replace(".", "-").replace("_", "-")
    room = MAX_RUN_ID - len(f"reconcile--{at}.999")
    if len(name) > room:
        name = f"{name[: room - 9]}-{sha256(name.encode()).hexdigest()[:8]}"
    first, number = f"reconcile-{name}-{at}", 1
    while platform.ledger.find(run_id := first if number == 1 else f"{first}.{number}") is not None:
        number += 1
    return run_id


def plan_reconciliation(platform: Platform, manifest: RunManifest) -> RunRecord:
    """Plan a reconciliation and approve it in the name of the target's policy: it changes nothing.

    Raises:
        InputRefused: if the manifest is of another kind.
        Refused: if it cannot be planned.
    """
    if manifest.execution_mode is not Mode.RECONCILIATION:
        raise InputRefused(
            Problem(
                f"the manifest of '{manifest.run_id}' has mode {manifest.execution_mode}",
                "a policy approves reconciliations, which change nothing",
                "`backfill plan` and `backfill approve` are for all others",
            )
        )
    record = plan_run(platform, manifest)
    if record.state is RunState.PLANNED:
        decisions.approve_by_policy(
            platform,
            record.run_id,
            by=policy_of(platform.products.target(record.target)).approved_by,
            comment="a reconciliation reads what is published and changes nothing",
        )
    return platform.ledger.run(record.run_id)


# --- judging ----------------------------------------------------------------------------------------------------------


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
    target = platform.products.target(record.target)
    with stopping.launched(platform, run_id):
        handlers: dict[type, Handler] = {Reconcile: lambda _stages: _judge(platform, target, record)}
        Execution(platform, run_id, handlers=handlers).run(Step.RECONCILE)
    return _recorded(platform, run_id)


def _judge(platform: Platform, target: TargetTable, record: RunRecord) -> None:
    run_id = record.run_id
    platform.ledger.resume(run_id, operator())
    published = _published(platform, target, record.plan)
    results = _judged_chunks(platform, target, record.plan, published)
    faults.reach("gating.judged")
    platform.ledger.record_gated(run_id, [_as_gated(result) for result in results.values()])
    if platform.ledger.run(run_id).state is RunState.RUNNING:
        why = f"{len(results)} published chunks read"
        platform.ledger.move(run_id, RunState.STAGED, operator(), why, expected=RunState.RUNNING)
    verdicts = _verdicts(platform, target, record, published, results)
    faults.reach("gating.run_judged")
    # what is published does not change: whoever judged its chunks judged the same
    platform.ledger.judge(run_id, verdicts, operator(), of=judged.name_of(platform.ledger.chunks(run_id)))


def _recorded(platform: Platform, run_id: str) -> list[Verdict]:
    return [verdict for verdict in platform.ledger.verdicts(run_id) if not verdict.chunk]


def _published(platform: Platform, target: TargetTable, plan: Plan) -> dict[str, Published]:
    """Return the files of each chunk at the plan's base, and who had accepted it then: others may have published since."""
    scopes = chunk_scopes(target, plan.chunks)
    files = platform.lakehouse.file_rows_by_chunk(target.name, plan.base_snapshot_id, scopes)
    holders = accepted_then(platform, target.name, plan.base_snapshot_id, scopes)
    runs = {run_id: platform.ledger.run(run_id) for run_id in sorted(set(holders.values()))}
    plans = {run_id: platform.ledger.plans(record) for run_id, record in runs.items()}
    chunks = {run_id: {chunk.chunk: chunk for chunk in platform.ledger.chunks(run_id)} for run_id in runs}
    return {
        key: Published(
            key,
            tuple(sorted(files[key])),
            sum(files[key].values()),
            (runs[holder], chunks[holder][key], plans[holder][key]) if (holder := holders.get(key)) else None,
        )
        for key in scopes
    }


def _judged_chunks(
    platform: Platform, target: TargetTable, plan: Plan, published: Mapping[str, Published]
) -> dict[str, GateResult]:
    """Have every published chunk read in Spark's workers: rules, measures, digest. A merged chunk has rows of several runs.

    Each digest is made of the columns that the accepted one was made of: the table may have got more since.
    """
    digested = {run.run_id: _digested(platform, target, run) for run in _accepted_runs(published)}
    tasks = [
        GateTask(
            one.chunk,
            0,
            plan.chunk(one.chunk).start,
            plan.chunk(one.chunk).end,
            tuple(map(local_path, one.files)),
            one.rows,
            digest=() if one.accepted is None else digested[one.accepted[0].run_id],
        )
        for one in published.values()
    ]
    schema = platform.lakehouse.table(target.name).schema().model_dump_json()
    spec = replace(gate_spec(target, plan), lineage={}, outline=None, schema=schema)
    found = platform.workers.do(plan.mode, judging(spec), [(task, task.rows) for task in tasks])
    require_read(one for result in found for one in result.violations)
    return {result.chunk: result for result in sorted(found, key=lambda result: result.chunk)}


def _accepted_runs(published: Mapping[str, Published]) -> list[RunRecord]:
    return [one.accepted[0] for one in published.values() if one.accepted is not None]


def _digested(platform: Platform, target: TargetTable, record: RunRecord) -> tuple[str, ...]:
    """Return the columns that the digests of a published run were made of, of those that the model declares today."""
    try:
        sealed = read_json(platform.evidence.path(record.run_id) / SCHEMA_FILE)
    except FileNotFoundError:  # an earlier version sealed it: what its digests were made of is not on record
        return ()
    names = {name for name, _ in sealed["digest"]["columns"]}
    return tuple(name for name in digest_columns(target.model) if name in names)


def _as_gated(result: GateResult) -> GatedChunk:
    details = {"rows": result.rows, "digest": result.digest, "violations": plain(result.violations)}
    verdict = Verdict(CHUNK_GATE, result.passed, result.summary, details, result.chunk, result.attempt)
    return GatedChunk(result.chunk, result.attempt, result.digest, result.rows, {"slices": result.measures}, verdict)


def _verdicts(
    platform: Platform,
    target: TargetTable,
    record: RunRecord,
    published: Mapping[str, Published],
    results: Mapping[str, GateResult],
) -> list[Verdict]:
    plan = record.plan
    found: dict[str, Judged] = {}
    if PUBLISHED_RULES_GATE in plan.gates:
        rules = _rules_finding(platform, plan, results)
        found[PUBLISHED_RULES_GATE] = Judged(PUBLISHED_RULES_GATE, Level.RECORD.value, rules, _EXCEPTIONS_LIMIT)
    if ACCEPTED_ROWS_GATE in plan.gates:
        same = _accepted_finding(platform, target, plan, published, results)
        found[ACCEPTED_ROWS_GATE] = Judged(ACCEPTED_ROWS_GATE, Level.RECORD.value, same, _EXCEPTIONS_LIMIT)
    asked = [item for item in target.reconciliations if item.name in plan.gates]
    chunks = {chunk.chunk: chunk for chunk in platform.ledger.chunks(record.run_id)}

    @cache
    def contexts() -> dict[str, ReconciliationContext]:
        return {
            f"{stretch[0]} to {stretch[-1]}, {own.transform_version}": reconciliation_context(
                platform,
                target,
                own,
                [chunks[key] for key in stretch],
                published=_outlines(platform, target, own, [published[key] for key in stretch]),
            )
            for own, stretch in _stretches(plan, published)
        }

    def reconciled(item: Reconciliation) -> Finding:
        return everywhere(item, contexts()) if contexts() else Finding(True, "nothing is published in these days")

    for item in asked:
        finding = found_or_raised(platform, record.run_id, item.name, partial(reconciled, item))
        found[item.name] = Judged(item.name, item.level.value, finding, item.exceptions_limit)
    if OLD_DATA_GATE in plan.gates:
        source = history_until_end(platform, target, plan, whole=True)
        paths = [path for one in published.values() for path in one.files]
        old = old_data.finding(platform, target, plan, source, paths)
        found[OLD_DATA_GATE] = Judged(OLD_DATA_GATE, Level.RECORD.value, old, _EXCEPTIONS_LIMIT)
    judgement = sha256_of([[key, result.digest, result.rows] for key, result in results.items()])
    kept = keep(
        platform,
        record.run_id,
        judgement,
        mode=plan.mode,
        target=target.name,
        judged=list(found.values()),
        concealed=old_data.concealed(platform, target, plan),
    )
    return [run_verdict(gate, found[gate].finding, kept.get(gate, {})) for gate in plan.gates]


def _stretches(plan: Plan, published: Mapping[str, Published]) -> list[tuple[Plan, list[str]]]:
    """Return accepted chunks that follow one another and were made by the same rules, each with a plan that has those."""
    stretches: list[tuple[Plan, list[str]]] = []
    follows: date | None = None
    for chunk in plan.chunks:
        accepted = published[chunk.key].accepted
        if accepted is None:
            follows = None
            continue
        made_by = accepted[2]
        own = replace(plan, transform_version=made_by.transform_version, references=made_by.references)
        if stretches and follows == chunk.start and stretches[-1][0].hash == own.hash:
            stretches[-1][1].append(chunk.key)
        else:
            stretches.append((own, [chunk.key]))
        follows = chunk.end + timedelta(days=1)
    return stretches


def _outlines(platform: Platform, target: TargetTable, plan: Plan, published: Sequence[Published]) -> DataFrame:
    """Return what the reconciliations look at of published rows: their outlines, made while they are read."""
    spark = platform.spark.session(plan.mode)
    schema = platform.lakehouse.table(target.name).schema()
    if target.outline is None:
        paths = tuple(path for one in published for path in one.files)
        return read(spark, PinnedRead(target.name, plan.base_snapshot_id, schema, paths))
    columns = spark_schema(schema, target.outline.columns, field_ids=False)
    tasks = [(OutlineTask(one.chunk, tuple(map(local_path, one.files))), one.rows) for one in published]
    function = partial(
        outline_batches, reference_to(target.outline.rows), schema.model_dump_json(), to_arrow_schema(columns)
    )
    return SparkWorkers(platform.spark).spread(plan.mode, tasks).mapInArrow(function, columns)


# --- the gates that every target has ----------------------------------------------------------------------------------


def _rules_finding(platform: Platform, plan: Plan, results: Mapping[str, GateResult]) -> Finding:
    """Hold the published chunks against the rules of the target's model."""
    broken = [
        {"chunk": result.chunk, "rule": violation.rule, "rows": violation.count, "sample": violation.sample}
        for result in results.values()
        for violation in result.violations
    ]
    failing = [result for result in results.values() if not result.passed]
    spark = platform.spark.session(plan.mode)
    return Finding(
        not broken,
        f"{len(results) - len(failing)} of {len(results)} published chunks pass every rule",
        {"failing_slices": len(failing)},
        compared=len(results),
        disagreeing=len(failing),
        slices=[{"chunk": result.chunk, "rules": result.summary} for result in failing[:SLICES]],
        exceptions=lambda: exception_rows(
            spark,
            [
                {
                    "slice": json.dumps({"chunk": one["chunk"]}),
                    "key": "{}",
                    "expected": "{}",
                    "found": json.dumps({"rows": one["rows"], "for example": plain(one["sample"])}, default=str),
                    "what": f"rows break the rule: {one['rule']}",
                }
                for one in broken
            ],
        ),
    )


def _accepted_finding(
    platform: Platform,
    target: TargetTable,
    plan: Plan,
    published: Mapping[str, Published],
    results: Mapping[str, GateResult],
) -> Finding:
    """Hold the published chunks against the digests of the rows that were accepted.

    A chunk that a merge holds has rows of several runs; nobody has a digest of the whole, so that it is not compared.
    """
    differing: list[Published] = []
    compared = merged = 0
    for one in published.values():
        if one.accepted is None:
            if one.rows:
                compared += 1
                differing.append(one)
        elif one.accepted[2].merge is not None:
            merged += 1
        else:
            compared += 1
            if results[one.chunk].digest != one.accepted[1].digest:
                differing.append(one)
    slices = [
        {
            "chunk": one.chunk,
            "accepted_run": None if one.accepted is None else one.accepted[0].run_id,
            "expected": 0 if one.accepted is None else one.accepted[1].rows or 0,
            "found": one.rows,
        }
        for one in differing
    ]
    return Finding(
        not differing,
        f"{compared - len(differing)} of {compared} published chunks hold the accepted rows"
        + (f"; {merged} hold merged rows and are not compared" if merged else ""),
        {"not_compared": merged, "failing_slices": len(differing)},
        compared=compared,
        disagreeing=len(differing),
        slices=slices[:SLICES],
        exceptions=partial(_row_exceptions, platform, target, plan, differing),
    )


def _row_exceptions(platform: Platform, target: TargetTable, plan: Plan, differing: Sequence[Published]) -> DataFrame:
    """Return each row of the chunks that was accepted and is not there, is there and was not accepted, or is another.

    Of a row that is another, the columns that differ are shown.
    """
    spark = platform.spark.session(plan.mode)
    table = platform.lakehouse.table(target.name)
    accepted = tuple(file.path for one in differing if one.accepted is not None for file in one.accepted[1].files)
    gone = [path for path in accepted if not table.io.new_input(path).exists()]
    if gone:
        rows = [
            {
                "slice": json.dumps({"chunk": one.chunk}),
                "key": "{}",
                "expected": json.dumps({"rows": one.accepted[1].rows if one.accepted else 0}),
                "found": json.dumps({"rows": one.rows}),
                "what": f"the rows differ; {len(gone)} accepted file(s) are gone, so that they cannot be listed",
            }
            for one in differing
        ]
        return exception_rows(spark, rows)
    present = tuple(path for one in differing for path in one.files)
    was, now_ = (
        read(spark, PinnedRead(target.name, None, table.schema(), paths)).alias(name)
        for name, paths in (("was", accepted), ("now", present))
    )
    first = target.key[0]
    others = [name for name in digest_columns(target.model) if name not in target.key]
    both = was.join(now_, [F.col(f"was.{name}").eqNullSafe(F.col(f"now.{name}")) for name in target.key], "full_outer")
    missing, extra = F.col(f"now.{first}").isNull(), F.col(f"was.{first}").isNull()
    differs = {name: ~F.col(f"was.{name}").eqNullSafe(F.col(f"now.{name}")) for name in others}

    columns = {name: F.coalesce(f"was.{name}", f"now.{name}") for name in target.key}
    day = F.coalesce(f"was.{target.day_column}", f"now.{target.day_column}")
    sides = {
        side: F.to_json(F.struct(*[F.when(differs[name], F.col(f"{side}.{name}")).alias(name) for name in others]))
        for side in ("was", "now")
    }
    what = (
        F.when(missing, "an accepted row is missing")
        .when(extra, "the row was never accepted")
        .when(F.greatest(*differs.values(), F.lit(False)), "the row is another than the accepted one")
    )
    listed = both.select(
        F.date_format(day, _CHUNK_FORMAT[target.chunking]).alias("chunk"),
        *[value.alias(name) for name, value in columns.items()],
        F.when(extra, "{}").otherwise(sides["was"]).alias("_expected"),
        F.when(missing, "{}").otherwise(sides["now"]).alias("_found"),
        what.alias("what"),
    ).where("what IS NOT NULL")
    return listed.select(
        text_of("chunk").alias("slice"),
        text_of(*target.key).alias("key"),
        F.col("_expected").alias("expected"),
        F.col("_found").alias("found"),
        "what",
    )
