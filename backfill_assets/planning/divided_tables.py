"""What the record and the source of a table say against how it is divided, or against a run over some of its values.

Put here why chunks of a divided table could not be published or judged. What its declaration says is `declarations.checking.chunks`';
its partitions, `foreign_tables`'.
"""

from __future__ import annotations

from collections.abc import Iterator

from backfill_assets.declarations.target import Level, TargetTable
from backfill_assets.installation import Platform
from manifests.chunks import first_day, in_words, last_day, part_of, time_of
from manifests.errors import Problem
from manifests.model import DayRange, Mode, RunManifest

_SHOWN = 6


def of_divided(platform: Platform, target: TargetTable, manifest: RunManifest) -> Iterator[Problem]:
    """Say that chunks on record are other parts than those of a table, or that its gates cannot be held against some values."""
    yield from _of_record(platform, target)
    yield from _of_gates(platform, target, manifest)


def _of_record(platform: Platform, target: TargetTable) -> Iterator[Problem]:
    """Say that runs hold chunks of parts that the table is not divided into: no run would ever replace them by name."""
    names = set(target.parts) or {""}
    others = [key for key in platform.ledger.accepted(target.name) if part_of(key) not in names]
    if others:
        division = (
            "is not divided beside time" if target.chunk_values is None else f"is divided by {target.chunk_values}"
        )
        yield Problem(
            f"{target.name} {division}, and holds chunks of other parts: {in_words(others)}",
            "a chunk is replaced by one of the same time and the same value or bucket",
            "declare chunk_values as it was when they were published, with every value that has chunks; to divide a table "
            "otherwise, fill another one and have its readers go over to it",
        )


def _of_gates(platform: Platform, target: TargetTable, manifest: RunManifest) -> Iterator[Problem]:
    """Say that a run over some values is held against a source that does not say whose its rows are."""
    division, chosen = target.chunk_values, manifest.validation.gates
    if division is None or division.column in platform.lakehouse.table(target.source).schema().column_names:
        return
    against = [one.name for one in target.reconciliations if one.level is not Level.CHANGE]
    gates = [name for name in against if chosen is None or name in chosen]
    if gates and manifest.target.values is not None:
        yield Problem(
            f"target.values names some of what {target.name} is divided by, and {target.source} has no column {division.column}",
            f"gates hold the run against the source's rows of the same values: {', '.join(gates)}",
            "leave target.values out, or name in validation.gates those that do not look at the source",
        )
        return
    is_looked_at = gates and manifest.execution_mode is Mode.RECONCILIATION
    if is_looked_at and (apart := _judged_apart(platform, target, manifest.target.publish_range)):
        yield Problem(
            f"values of {_in_words(apart)} of {target.name} are published by different rules, or not all of them, and "
            f"{target.source} has no column {division.column}",
            f"gates hold what was made by the same rules against the source's rows of the same values: {', '.join(gates)}",
            "name in validation.gates those that do not look at the source; or publish these days by one transform version and "
            "with the same reference data",
        )


def _judged_apart(platform: Platform, target: TargetTable, publish: DayRange) -> list[str]:
    """Return the times of a range of which not all parts were made by the same rules; of those of which none is held, nothing."""
    made: dict[str, dict[str, object]] = {}
    held = platform.ledger.accepted(target.name)
    records = {run_id: platform.ledger.with_plan(platform.ledger.run(run_id)) for run_id in set(held.values())}
    plans = {run_id: platform.ledger.plans(record) for run_id, record in records.items()}
    for key, run_id in held.items():
        begins = first_day(target.chunking, key)
        if begins <= publish.end and last_day(target.chunking, begins) >= publish.start:
            plan = plans[run_id].get(key, records[run_id].plan)
            made.setdefault(time_of(key), {})[part_of(key)] = plan.transform_version, plan.references
    return sorted(
        time for time, parts in made.items() if len(set(parts.values())) > 1 or set(parts) != set(target.parts)
    )


def _in_words(times: list[str]) -> str:
    return ", ".join(times[:_SHOWN]) + (f" and {len(times) - _SHOWN} more" if len(times) > _SHOWN else "")
