"""What Dagster is told of the verdicts that the ledger holds: when a launch has been judged, and again where one was not.

Dagster calls a check failed that a Dagster run was to evaluate and did not, whatever gates have found before: so what stands is told
again where a launch is refused, where somebody executes checks by themselves, and where an owner has accepted what a gate asked
about. Put here the events. Which checks there are, and what happens in a launch, is `checks`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from backfill_assets.declarations.target import ALL_CHUNKS_GATE, EXPECTED_ROWS_GATE, PURITY_GATE, TargetTable
from backfill_assets.defs.addresses import run_path
from backfill_assets.defs.dagster_private import AssetCheckEvaluationTargetMaterializationData
from backfill_assets.defs.staging import asset_key, partition_key
from backfill_assets.gates.exception_words import worded
from backfill_assets.installation import Platform
from backfill_assets.review.markdown import block, code, escaped, table
from manifests.chunks import CHUNK_GATE
from manifests.data_terms import OLD_DATA_GATE
from manifests.expected import EXPECTED_FIGURES_GATE
from manifests.lifecycle import ChunkState
from manifests.merge_policy import MERGE_DECISIONS_GATE
from manifests.timeliness import FUTURE_GATE, OnFuture
from resources.ledger import judged
from resources.ledger.facade import RunRecord, Verdict

_GRAVITY = [dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR]
_JUDGED = frozenset({ChunkState.PASSED, ChunkState.FAILED})


_PLATFORM_GATES = {
    ALL_CHUNKS_GATE: "Every planned chunk is staged and has passed its own gate.",
    EXPECTED_ROWS_GATE: "The run wrote at most the rows its manifest expects.",
    PURITY_GATE: "Some chunks, computed again in other surroundings (clock, time zone, hash seed, order and number of "
    "partitions, environment, no network), have the rows that are staged.",
    OLD_DATA_GATE: "Rows that the policy forbids were left out, and counted; no erased subject was staged.",
    EXPECTED_FIGURES_GATE: "Rows, sums and digests are those that the run's manifest expects.",
}
OF_SOME_RUNS = {
    OLD_DATA_GATE: "the plan leaves out no old data",
    FUTURE_GATE: "the plan leaves out no rows of the future",
    EXPECTED_FIGURES_GATE: "the run's manifest expects no figures",
    MERGE_DECISIONS_GATE: "the run merges nothing under a merge policy",
}
"""Gates that a plan has only where there is something for them to judge, and what is said where there is not."""
_NO_RUN = "not judged: no run has come so far"
_ANEW = "not judged: chunks of the run are computed anew since it was judged"
_CHUNK_FAILED = "not judged: not every chunk has passed its rules"
_OTHER_GATES = "not judged: the run's manifest names other gates"


def run_level_gates(target: TargetTable) -> dict[str, str]:
    """Return the run-level gates that are checks of a target, each with its description."""
    described = _PLATFORM_GATES | {
        item.name: f"{item.level.value}: {item.description}" for item in target.reconciliations
    }
    if any(target.timeliness_of(name).future is OnFuture.LEAVE_OUT for name in target.every_source):
        described[FUTURE_GATE] = (
            "Rows with a time after the commit of their source's snapshot were left out, and counted."
        )
    if target.merge_policy is not None:
        described[MERGE_DECISIONS_GATE] = (
            "Where history met what LIVE wrote, each decision is counted, and none is ambiguous."
        )
    return described


def result_of(key: dg.AssetKey, verdict: Verdict, accepted: Mapping[str, object], run_id: str) -> dg.AssetCheckResult:
    """Return what Dagster is told of the verdict of a run-level gate; `accepted` has who has accepted what a gate asked about."""
    said = f"asks for an owner: {verdict.summary}"
    if verdict.passed or not verdict.asks:
        said = verdict.summary
    elif verdict.gate in accepted:
        said = f"{accepted[verdict.gate]}: {verdict.summary}"
    asks = verdict.asks and not verdict.passed and verdict.gate not in accepted
    return dg.AssetCheckResult(
        passed=verdict.passed or verdict.gate in accepted,
        # it waits for an owner, which is no failure of the launch
        severity=dg.AssetCheckSeverity.WARN if asks else dg.AssetCheckSeverity.ERROR,
        check_name=verdict.gate,
        asset_key=key,
        description=said,
        metadata=verdict_metadata(verdict, run_id),
    )


def not_asked(key: dg.AssetKey, record: RunRecord, gate: str) -> dg.AssetCheckResult | None:
    """Return what Dagster is told of a gate that a plan has not, since there is nothing for it to judge; None of any other gate."""
    if gate not in OF_SOME_RUNS or gate in record.plan.gates:
        return None
    return dg.AssetCheckResult(
        passed=True, check_name=gate, asset_key=key, description=OF_SOME_RUNS[gate], metadata=of_run(record.run_id)
    )


def run_as_it_stands(platform: Platform, target: TargetTable) -> tuple[str, list[dg.AssetCheckEvaluation]]:
    """Return the run whose gates judged a target last ("" of none), and how each run-level gate stands: a verdict about other files is none."""
    run_id, key = platform.ledger.last_judged(target.name), asset_key(target.name)
    if run_id is None:
        return "", [_not_judged(key, gate, _NO_RUN) for gate in run_level_gates(target)]
    record, accepted = platform.ledger.run(run_id), platform.ledger.accepted_changes(run_id)
    found = {one.gate: one for one in standing_verdicts(platform, run_id)}
    fails = any(one.state is ChunkState.FAILED for one in platform.ledger.standing_chunks(run_id))
    told = []
    for gate in run_level_gates(target):
        if (verdict := found.get(gate)) is not None:
            told.append(_evaluation(result_of(key, verdict, accepted, run_id)))
        elif (of_others := not_asked(key, record, gate)) is not None:
            told.append(_evaluation(of_others))
        else:
            told.append(_not_judged(key, gate, why_not_judged(record, gate, fails=fails), run_id))
    return run_id, told


def standing_verdicts(platform: Platform, run_id: str) -> list[Verdict]:
    """Return the run-level verdicts about what is staged of a run: those about chunks that were planned anew since are none."""
    staged = judged.name_of(platform.ledger.standing_chunks(run_id))
    found = platform.ledger.verdicts(run_id, of_chunks=False)
    return [one for one in found if judged.is_about(one.judged, staged)]


def why_not_judged(record: RunRecord, gate: str, *, fails: bool) -> str:
    """Say why a run-level gate has no verdict of a run, a chunk of which `fails` its own gate or none does."""
    if gate not in record.plan.gates:
        return _OTHER_GATES
    return _CHUNK_FAILED if fails else _ANEW


def run_alone(
    platform: Platform, _instance: dg.DagsterInstance, target: TargetTable, _run_id: str, _chunks: Sequence[str]
) -> list[dg.AssetCheckEvaluation]:
    """Return how the run-level gates of a target stand, for a launch that has told of its chunks."""
    return run_as_it_stands(platform, target)[1]


def tell_run_again(platform: Platform, instance: dg.DagsterInstance, target: TargetTable, run_id: str) -> None:
    """Tell Dagster, outside any Dagster run, what the gates of a run have found, if no other was judged since."""
    last, told = run_as_it_stands(platform, target)
    for one in told if last == run_id else ():
        instance.report_runless_asset_event(one)


def as_it_stands(
    platform: Platform, instance: dg.DagsterInstance, target: TargetTable, run_id: str, chunks: Sequence[str]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield how the gates of chunks of a run stand, and those of the run that was judged last, for a launch that is refused."""
    yield from run_as_it_stands(platform, target)[1]
    yield from chunks_as_they_stand(platform, instance, target, run_id, chunks)


def chunks_as_they_stand(
    platform: Platform, instance: dg.DagsterInstance, target: TargetTable, run_id: str, chunks: Sequence[str]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield what the gate has found of chunks of a run, as they are now; of one that it has not judged, that it has not."""
    if not chunks:
        return
    now = {one.chunk: one.attempt for one in platform.ledger.standing_chunks(run_id, chunks) if one.state in _JUDGED}
    found = {
        one.chunk: one
        for one in platform.ledger.verdicts_of_chunks(run_id, chunks)
        if one.gate == CHUNK_GATE and now.get(one.chunk) == one.attempt
    }
    key = asset_key(target.name)
    yield from chunk_evaluations(instance, key, run_id, found)
    for chunk in (one for one in chunks if one not in found):
        yield _not_judged(key, CHUNK_GATE, "not judged: its gate has seen no rows of it", run_id, chunk)


def _not_judged(key: dg.AssetKey, gate: str, why: str, run_id: str = "", chunk: str = "") -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=gate,
        passed=False,
        severity=dg.AssetCheckSeverity.WARN,
        partition=partition_key(run_id, chunk) if chunk else None,
        description=why,
        metadata=of_run(run_id) if run_id else {},
    )


def of_run(run_id: str) -> dict[str, Any]:
    """Return what Dagster shows of a run beside a verdict: its name, and its page."""
    return {"run": run_id, "run page": dg.MetadataValue.url(run_path(run_id))}


def in_all(key: dg.AssetKey, run_id: str, of_chunks: Sequence[dg.AssetCheckEvaluation]) -> dg.AssetCheckEvaluation:
    """Return what the gate of chunks has found of a run, of no partition: a result of the check would have to have one."""
    passed = sum(one.passed for one in of_chunks)
    return dg.AssetCheckEvaluation(
        passed=passed == len(of_chunks),
        severity=max((one.severity for one in of_chunks if not one.passed), key=_GRAVITY.index, default=_GRAVITY[-1]),
        check_name=CHUNK_GATE,
        asset_key=key,
        description=f"{passed:,} of {len(of_chunks):,} chunks of '{run_id}' pass every rule",
        blocking=True,
        metadata=of_run(run_id),
    )


def _evaluation(result: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """Return a result as what Dagster stores of it, which an execution without a partition may yield as well."""
    assert result.asset_key is not None
    assert result.check_name is not None
    return dg.AssetCheckEvaluation(
        asset_key=result.asset_key,
        check_name=result.check_name,
        passed=result.passed,
        severity=result.severity,
        description=result.description,
        metadata=result.metadata,
        blocking=True,
    )


def chunk_evaluations(
    instance: dg.DagsterInstance, key: dg.AssetKey, run_id: str, verdicts: Mapping[str, Verdict]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield what Dagster is told of the verdicts of chunks."""
    targets = _materializations(instance, key, [partition_key(run_id, chunk) for chunk in verdicts])
    for chunk, verdict in sorted(verdicts.items()):
        partition = partition_key(run_id, chunk)
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=CHUNK_GATE,
            passed=verdict.passed,
            partition=partition,
            blocking=True,
            description=verdict.summary,
            metadata=verdict_metadata(verdict),
            target_materialization_data=targets.get(partition),
        )


def _materializations(
    instance: dg.DagsterInstance, key: dg.AssetKey, partitions: Sequence[str]
) -> dict[str, AssetCheckEvaluationTargetMaterializationData]:
    found: dict[str, AssetCheckEvaluationTargetMaterializationData] = {}
    cursor = None
    records_filter = dg.AssetRecordsFilter(asset_key=key, asset_partitions=list(partitions))
    while len(found) < len(partitions):
        page = instance.fetch_materializations(records_filter, limit=1000, cursor=cursor)
        for record in page.records:
            if record.partition_key is not None:  # newest first
                found.setdefault(
                    record.partition_key,
                    AssetCheckEvaluationTargetMaterializationData(
                        storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
                    ),
                )
        if not page.has_more:
            break
        cursor = page.cursor
    return found


def verdict_metadata(verdict: Verdict, run_id: str = "") -> dict[str, Any]:
    """Return what Dagster shows of a verdict: numbers, failing slices, rows that disagree, and where all of them are."""
    details = dict(verdict.details)
    shown = of_run(run_id) if run_id else {}
    if slices := details.pop("slices", []):
        shown["failing slices"] = dg.MarkdownMetadataValue(_rows_table(slices))
    if kept := details.pop("exceptions", None):
        cut = f" of {kept['disagree']:,}, cut" if kept["cut"] else ""
        text = f"{kept['rows']:,} row(s){cut} in {code(kept['table'])}: {code(kept['command'])}\n\n"
        text += "\n".join(block(str(kept["query"]).splitlines(), "sql"))
        shown["exceptions"] = dg.MarkdownMetadataValue(text)
    for name in ("rows", "digest"):
        if name in details and not isinstance(details[name], dict):
            shown[name] = details.pop(name)
    violations = details.pop("violations", [])
    if violations:
        shown["violations"] = dg.MarkdownMetadataValue(_violations_table(violations))
    sample = details.pop("sample", [])
    if sample:
        shown["rows that disagree"] = dg.MarkdownMetadataValue(_rows_table(sample))
    return shown | {name: value for name, value in details.items() if value is not None}


def _violations_table(violations: Sequence[dict[str, Any]]) -> str:
    parts = []
    for violation in violations:
        parts.append(f"**{escaped(violation['rule'])}**: {violation['count']:,} row(s)")
        if violation["sample"]:
            parts.append(_rows_table(violation["sample"]))
    return "\n\n".join(parts)


def _rows_table(rows: Sequence[dict[str, Any]]) -> str:
    rows = [worded(row) for row in rows]
    columns = list(rows[0])
    return table(columns, ([row.get(column, "") for column in columns] for row in rows))
