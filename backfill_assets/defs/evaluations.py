"""What Dagster is told of the verdicts that the ledger holds: when a launch has been judged, and again where one was not.

Dagster calls a check failed that a Dagster run was to evaluate and did not, whatever gates have found before: so what stands is told
again where a launch is refused, where somebody executes checks by themselves, and where an owner has accepted what a gate asked
about. Put here the events. Which checks there are, and what happens in a launch, is `checks`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from backfill_assets.declarations.target import TargetTable
from backfill_assets.defs.addresses import run_path
from backfill_assets.defs.dagster_private import AssetCheckEvaluationTargetMaterializationData
from backfill_assets.defs.staging import asset_key, partition_key
from backfill_assets.gates.exception_words import worded
from backfill_assets.installation import Platform
from backfill_assets.review.markdown import block, code, escaped, table
from manifests.chunks import CHUNK_GATE
from resources.ledger.facade import Verdict


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


def told_again(platform: Platform, target: TargetTable) -> tuple[str, list[dg.AssetCheckResult]]:
    """Return the run whose gates judged a target last, and what they found; none where no run has come so far."""
    run_id = platform.ledger.last_judged(target.name)
    if run_id is None:
        return "", []
    accepted = platform.ledger.accepted_changes(run_id)
    key = asset_key(target.name)
    return run_id, [result_of(key, one, accepted, run_id) for one in platform.ledger.verdicts(run_id, of_chunks=False)]


def tell_run_again(platform: Platform, instance: dg.DagsterInstance, target: TargetTable, run_id: str) -> None:
    """Tell Dagster, outside any Dagster run, what the gates of a run have found, if no other was judged since."""
    last, results = told_again(platform, target)
    for one in results if last == run_id else ():
        instance.report_runless_asset_event(as_evaluation(one))


def as_it_stands(
    platform: Platform, instance: dg.DagsterInstance, target: TargetTable, run_id: str, chunks: Sequence[str]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield how the gates of chunks of a run stand, and those of the run that was judged last, for a launch that is refused."""
    yield from map(as_evaluation, told_again(platform, target)[1])
    yield from chunks_as_they_stand(platform, instance, target, run_id, chunks)


def chunks_as_they_stand(
    platform: Platform, instance: dg.DagsterInstance, target: TargetTable, run_id: str, chunks: Sequence[str]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield what the gate has found of chunks of a run; of one that it has not judged, that there is nothing to judge."""
    found = {one.chunk: one for one in platform.ledger.verdicts_of_chunks(run_id, chunks) if one.gate == CHUNK_GATE}
    key = asset_key(target.name)
    yield from chunk_evaluations(instance, key, run_id, found)
    for chunk in (one for one in chunks if one not in found):
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=CHUNK_GATE,
            passed=False,
            severity=dg.AssetCheckSeverity.WARN,
            partition=partition_key(run_id, chunk),
            description="not judged: nothing of this chunk is computed for the run",
            metadata={"run": run_id, "run page": dg.MetadataValue.url(run_path(run_id))},
        )


def in_all(key: dg.AssetKey, run_id: str, of_chunks: Sequence[dg.AssetCheckEvaluation]) -> dg.AssetCheckEvaluation:
    """Return what the gate of chunks has found of a run, of no partition: a result of the check would have to have one."""
    passed = sum(one.passed for one in of_chunks)
    return dg.AssetCheckEvaluation(
        passed=passed == len(of_chunks),
        check_name=CHUNK_GATE,
        asset_key=key,
        description=f"{passed:,} of {len(of_chunks):,} chunks of '{run_id}' pass every rule",
        blocking=True,
        metadata={"run": run_id, "run page": dg.MetadataValue.url(run_path(run_id))},
    )


def as_evaluation(result: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
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
    shown: dict[str, Any] = {"run": run_id, "run page": dg.MetadataValue.url(run_path(run_id))} if run_id else {}
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
