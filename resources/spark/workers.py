"""Work on chunks done in Spark's Python workers: how it is spread over them, and how it comes back.

Put here nothing about what the work is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from manifests.model import Mode
from resources.files.stores import StoreAccess
from resources.spark.chunk_work import ChunkTask, ChunkWork, Result, Task, Weighed, in_worker, task_text
from resources.spark.cores import tasks_at_once
from resources.spark.failures import refusal
from resources.spark.sessions import ModeSpark

_TASKS_A_CORE = 2
"""Enough for the cores to end at about the same time; each task more only costs its start."""


class SparkWorkers:
    """Has work done by the Python workers of a mode's session, one Spark job for all chunks.

    `access` is asked for each job, and says what opens the files that it is about. It travels inside the pickled function, of
    which Spark shows the name alone, and is in no setting, environment or task.
    """

    def __init__(self, spark: ModeSpark, access: Callable[[], StoreAccess]) -> None:
        self._spark, self._access = spark, access

    def do(
        self, mode: Mode, work: ChunkWork[Task, Result], tasks: Sequence[Weighed[Task]], at_once: int = 0
    ) -> list[Result]:
        """Have the workers do the tasks; what comes back is a result a chunk, and never its rows. Without tasks Spark is not asked.

        Raises:
            EnvironmentRefused: if Spark's server has gone, or the code of its workers is another one.
        """
        if not tasks:  # chunks without rows have no files
            return []
        function = partial(in_worker, work, self._access())
        try:
            done = self.spread(mode, tasks, at_once).mapInArrow(function, "result string").collect()
        except Exception as error:
            if (refused := refusal(error)) is not None:
                raise refused from error
            raise
        return work.results(row["result"] for row in done)

    def spread(self, mode: Mode, tasks: Sequence[Weighed[ChunkTask]], at_once: int = 0) -> DataFrame:
        """Return tasks as a frame with a column `task` (JSON), evenly spread over its partitions: so many at most, if not 0."""
        spark = self._spark.session(mode)
        most = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        most = min(most, at_once or most, _TASKS_A_CORE * tasks_at_once(spark))
        slots = balanced([weight for _, weight in tasks], most)
        return spark.createDataFrame(
            [(slot, task_text(task)) for slot, (task, _) in zip(slots, tasks, strict=True)], "slot int, task string"
        ).repartitionById(max(slots, default=0) + 1, F.col("slot"))


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
