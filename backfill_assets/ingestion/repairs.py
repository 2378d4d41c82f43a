"""Runs that repair what released rows touch: which published chunks read them, and the manifests of as few runs as hold those alone.

Put here what follows from the rows of a release. How the rows came in is `releases`'; a manifest is planned by
`planning.resolve`, as everybody's is. A chunk is touched if it reads a day of the rows: its own days, warm-up, look-back and windows
counted, as its accepted plan has them, and the day of margin for time zones.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from typing import Any

import polars as pl
import yaml

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.upstream import days_of_chunk
from manifests.chunks import Chunk, Chunking, Stretch, chunk_named, in_words, stretches_of
from manifests.lifecycle import RunState
from manifests.model import MAX_RUN_ID, Kind, RunManifest, Semantics
from manifests.plan import Plan
from manifests.reading import manifest_from

_OVER = frozenset({RunState.CANCELLED, RunState.REJECTED})
_OF_HASH = 8
_LONGEST_REASON = 2_000


@dataclass(frozen=True)
class Repair:
    """A run that is proposed: its manifest, as a model and as the data of a YAML file, and the published chunks that it computes."""

    target: str
    manifest: RunManifest
    data: dict[str, Any]
    chunks: tuple[str, ...]

    def describe(self) -> str:
        """Say in words what it computes again."""
        return f"{self.manifest.kind} of {self.target}: {in_words(list(self.chunks))}, {len(self.chunks)} chunk(s)"

    def as_yaml(self) -> str:
        """Return the text of its manifest's file."""
        text: str = yaml.safe_dump(self.data, sort_keys=False, allow_unicode=True, width=100)
        return f"# Proposed for rows that were released from the quarantine of {self.data['source']['table']}.\n{text}"


def repairs_of(platform: Platform, table: str, loads: Sequence[str], *, requested_by: str, reason: str) -> list[Repair]:
    """Return the runs that compute again what the rows of releases touch; none of what has read them already.

    Args:
        platform: the installation.
        table: the input table.
        loads: the loads by which the rows have come in.
        requested_by: whose manifests they are.
        reason: why the rows were released.
    """
    found = []
    for target in platform.products.targets:
        if table in target.every_source and (plans := _touched(platform, target, table, loads)):
            found += list(_repairs_of(platform, target, table, loads, plans, requested_by, reason))
    return found


def _touched(platform: Platform, target: TargetTable, table: str, loads: Sequence[str]) -> dict[str, Plan]:
    """Return the accepted chunks of a target that read the rows and were computed without them, each with its plan."""
    accepted = platform.ledger.accepted(target.name)
    plans: dict[str, Plan] = {}
    for run_id in sorted(set(accepted.values())):
        record = platform.ledger.run(run_id)
        own = platform.ledger.plans(platform.ledger.with_plan(record))
        plans |= {key: own.get(key, record.plan) for key, by in accepted.items() if by == run_id}
    touched: dict[str, Plan] = {}
    for load_id in loads:
        with_it = platform.lakehouse.snapshots_with_load(table, load_id)
        days = (
            None if target.chunking is Chunking.WHOLE else _days(platform, table, target.every_source[table], load_id)
        )
        touched |= {
            key: plan
            for key, plan in plans.items()
            if dict(plan.source_pins).get(table) not in with_it and _reads(target, plan, table, key, days)
        }
    return dict(sorted(touched.items()))


def _days(platform: Platform, table: str, column: str, load_id: str) -> list[date]:
    """Return the days (of UTC) of the rows of a load by a column of instants or dates, in order."""
    found: set[date] = set()
    for part in platform.lakehouse.rows_by_file(table, [column], load_id=load_id):
        values = pl.Series(part.rows[column]).drop_nulls()
        found |= set((values.dt.date() if isinstance(values.dtype, pl.Datetime) else values).unique().to_list())
    return sorted(found)


def _reads(target: TargetTable, plan: Plan, table: str, key: str, days: Collection[date] | None) -> bool:
    if days is None:
        return True
    first, last = days_of_chunk(target, plan, table, key)
    return any(first <= day <= last for day in days)


def _repairs_of(
    platform: Platform,
    target: TargetTable,
    table: str,
    loads: Sequence[str],
    plans: dict[str, Plan],
    requested_by: str,
    reason: str,
) -> Iterator[Repair]:
    """Yield a run for each stretch of chunks that were made alike: by one version of the transform, with the same references."""
    alike: dict[tuple[str, tuple[tuple[str, int], ...]], list[str]] = defaultdict(list)
    for key, plan in plans.items():
        pins = tuple(sorted((pin.table, pin.snapshot_id) for pin in plan.references))
        alike[plan.transform_version, pins].append(key)
    whole = len(plans) == len(platform.ledger.accepted(target.name)) > 1
    number = 0
    for (version, pins), keys in sorted(alike.items(), key=lambda one: one[1][0]):
        for stretch, own in stretches_to_run(target.chunking, keys):
            number += 1
            data = {
                "runId": _run_id(platform, target, loads, number),
                "kind": (Kind.RESTATEMENT if whole and len(own) == len(plans) else Kind.REPAIR).value,
                "requestedBy": requested_by,
                "reason": _why(table, loads, reason),
                "source": {"table": target.source},
                "transform": {"name": target.transform, "version": version},
                "referenceData": [{"name": name, "semantics": Semantics.AS_RECORDED_THEN.value} for name, _ in pins],
                "target": {"table": target.name} | _scope(target, stretch),
            }
            manifest = manifest_from(data, where=f"repair of {target.name}")
            yield Repair(target.name, manifest, data, tuple(own))


def stretches_to_run(chunking: Chunking, keys: Collection[str]) -> list[tuple[Stretch, list[str]]]:
    """Return chunks as the stretches that one run each can hold, with their keys: no gap in time, the same parts, whole days."""
    chunks = sorted((chunk_named(chunking, key) for key in keys), key=lambda one: (one.start, one.hour or 0, one.part))
    found: list[Stretch] = []
    for one in stretches_of(chunks):
        before = next((other for other in found if _share_a_day(other, one)), None)
        if before is None:
            found.append(one)
        else:
            found[found.index(before)] = Stretch(before.first, one.last, before.parts)
    return [(one, [chunk.key for chunk in chunks if _is_in(chunk, one)]) for one in found]


def _share_a_day(before: Stretch, after: Stretch) -> bool:
    """Whether two stretches of the same parts have hours of one day: whole days are published."""
    return before.parts == after.parts and before.last.hour is not None and before.last.end >= after.first.start


def _is_in(chunk: Chunk, stretch: Stretch) -> bool:
    return chunk.part in stretch.parts and stretch.first.start <= chunk.start <= stretch.last.start


def _scope(target: TargetTable, stretch: Stretch) -> dict[str, Any]:
    days = (
        {}
        if target.chunking is Chunking.WHOLE
        else {"publishRange": {"start": stretch.first.start.isoformat(), "end": stretch.last.end.isoformat()}}
    )
    return days | ({} if stretch.parts == ("",) else {"values": list(stretch.parts)})


def _why(table: str, loads: Sequence[str], reason: str) -> str:
    named = ", ".join(loads)
    return f"Rows of the quarantine of {table} were released (load {named}): {reason}"[:_LONGEST_REASON]


def _run_id(platform: Platform, target: TargetTable, loads: Sequence[str], number: int) -> str:
    """Return the id of a proposed run: the same for the same rows and target, but for runs that are over."""
    name = re.sub(r"[^a-z0-9]+", "-", target.name.lower()).strip("-")
    own = sha256(" ".join(sorted(loads)).encode()).hexdigest()[:_OF_HASH]
    room = MAX_RUN_ID - len(f"release--{own}-9999.99")
    if len(name) > room:
        name = f"{name[: room - 9]}-{sha256(name.encode()).hexdigest()[:8]}"
    first = f"release-{name}-{own}-{number}"
    run_id, again = first, 1
    while (record := platform.ledger.find(run_id)) is not None and record.state in _OVER:
        again += 1
        run_id = f"{first}.{again}"
    return run_id
