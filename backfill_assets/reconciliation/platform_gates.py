"""The gates that published rows of every target are held against: the model's rules, and the rows that were accepted.

Put here what these two find and how it is described. What a product declares is judged in `reconciliation.verdicts`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.exception_texts import INSTANTS, exception_rows, text_of
from backfill_assets.declarations.reconciliations import SLICES
from backfill_assets.declarations.target import (
    ACCEPTED_ROWS_GATE,
    PUBLISHED_RULES_GATE,
    Finding,
    TargetTable,
)
from backfill_assets.installation import Platform
from backfill_assets.reconciliation.manifest import policy_of
from backfill_assets.reconciliation.published_chunks import Published
from backfill_assets.run_context import RunContext
from backfill_assets.staging.folders import part_name
from backfill_assets.staging.pinned_rows import read
from backfill_assets.worker.chunk_gate import digest_columns
from backfill_assets.worker.gate_tasks import GateResult
from manifests.canonical import plain
from manifests.chunks import EVER, PART, Chunking, key_of
from manifests.plan import Plan
from resources.lakehouse.facade import PinnedRead

PLATFORM_GATES = {
    PUBLISHED_RULES_GATE: "What readers see passes the target's own row rules, chunk by chunk.",
    ACCEPTED_ROWS_GATE: "What readers see is what was gated and accepted, row by row: no other writer has changed it.",
}
_KEY_FORMAT = {
    Chunking.YEAR: "yyyy",
    Chunking.MONTH: "yyyy-MM",
    Chunking.DAY: "yyyy-MM-dd",
    Chunking.HOUR: "yyyy-MM-dd'T'HH",
}


def described_gates(target: TargetTable) -> dict[str, str]:
    """Return the gates that published rows of a target are held against, each with what it says."""
    own = {item.name: f"{item.level.value}: {item.description}" for item in target.reconciliations}
    chosen = policy_of(target).gates
    names = [gate for gate in target.published_gates if chosen is None or gate in chosen]
    return {name: (PLATFORM_GATES | own)[name] for name in names}


def rules_finding(platform: Platform, plan: Plan, results: Mapping[str, GateResult]) -> Finding:
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


def accepted_finding(run: RunContext, published: Mapping[str, Published], results: Mapping[str, GateResult]) -> Finding:
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
        exceptions=partial(_row_exceptions, run, differing),
    )


def _row_exceptions(run: RunContext, differing: Sequence[Published]) -> DataFrame:
    """Return each row of the chunks that was accepted and is not there, is there and was not accepted, or is another.

    Of a row that is another, the columns that differ are shown.
    """
    spark, target = run.spark, run.target
    table = run.platform.lakehouse.table(target.name)
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
    sides = {
        side: F.to_json(
            F.struct(*[F.when(differs[name], F.col(f"{side}.{name}")).alias(name) for name in others]), INSTANTS
        )
        for side in ("was", "now")
    }
    what = (
        F.when(missing, "an accepted row is missing")
        .when(extra, "the row was never accepted")
        .when(F.greatest(*differs.values(), F.lit(False)), "the row is another than the accepted one")
    )
    listed = both.select(
        _chunk_key(target).alias("chunk"),
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


def _chunk_key(target: TargetTable) -> Column:
    """Return the key of the chunk that a row of either side lies in."""
    part = None
    if target.chunk_values is not None:
        column = target.chunk_values.column
        part = part_name(target, F.coalesce(f"was.{column}", f"now.{column}"))
    if target.chunking is Chunking.WHOLE:
        assert part is not None
        alike = [one for one in target.parts if key_of(Chunking.WHOLE, EVER[0], one) != one]
        return F.when(part.isin(*alike), F.concat(F.lit(PART), part)).otherwise(part)
    chunk = _chunk_of(F.coalesce(f"was.{target.day_column}", f"now.{target.day_column}"), target.chunking)
    return chunk if part is None else F.concat(chunk, F.lit(PART), part)


def _chunk_of(day: Column, chunking: Chunking) -> Column:
    """Return the key of the chunk that a day lies in, as `manifests.chunks.key_of` writes it."""
    if chunking is not Chunking.WEEK:
        return F.date_format(day, _KEY_FORMAT[chunking])
    year, week = F.extract(F.lit("YEAROFWEEK"), day), F.extract(F.lit("WEEK"), day)
    return F.concat(F.lpad(year.cast("string"), 4, "0"), F.lit("-W"), F.lpad(week.cast("string"), 2, "0"))
