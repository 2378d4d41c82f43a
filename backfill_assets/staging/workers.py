"""Work done in Spark's Python workers, one task a chunk: how it is spread, and how it comes back.

Put here nothing about what the work is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.installation import Platform
from manifests.planner import Plan

_TASKS_A_CORE = 2
"""Enough for the cores to end at about the same time; each task more only costs its start."""
RESULT_SCHEMA = "chunk string, result string"


def in_workers(
    platform: Platform, plan: Plan, tasks: Sequence[tuple[str, int, str]], function: Callable[..., Any]
) -> list[str]:
    """Have Spark's Python workers do tasks (chunk, weight, JSON), evenly spread; return the results as JSON.

    `function` maps Arrow batches with columns `chunk` and `task` to such with `chunk` and `result`.
    """
    done = spread(platform, plan, tasks).mapInArrow(function, RESULT_SCHEMA).collect()
    return [row["result"] for row in done]


def spread(platform: Platform, plan: Plan, tasks: Sequence[tuple[str, int, str]]) -> DataFrame:
    """Return tasks (chunk, weight, JSON) as a frame with columns `chunk` and `task`, evenly spread over its partitions."""
    spark = platform.spark.session(plan.mode)
    most = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    slots = balanced(
        [weight for _, weight, _ in tasks], min(most, _TASKS_A_CORE * spark.sparkContext.defaultParallelism)
    )
    return spark.createDataFrame(
        [(slot, chunk, task) for slot, (chunk, _, task) in zip(slots, tasks, strict=True)],
        "slot int, chunk string, task string",
    ).repartitionById(max(slots) + 1, F.col("slot"))


def balanced(sizes: Sequence[int], slots: int) -> list[int]:
    """Spread work over at most `slots` slots, largest first to the emptiest; return the slot of each.

    A slot is a Spark task. One a chunk would be simpler, but each task of a Python worker costs 0.15 s before it begins
    (PySpark invalidates the import caches, which reads its zip files again).
    """
    load = [(0, slot) for slot in range(min(slots, len(sizes)))]
    chosen = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        filled, slot = heapq.heappop(load)
        chosen[index] = slot
        heapq.heappush(load, (filled + sizes[index] + 1, slot))
    return chosen
