"""A chunk computed again, in another batch and other surroundings, and held against the rows that are staged of it.

Put here in which surroundings that is, and how rows are compared. What a run computes first is `compute`'s, which expressions are
refused before anything is computed `unsteady`'s; which chunks are computed again, and what follows, is `gates.purity`'s.
Nothing is written.

What differs: order and number of partitions of what is read, other shuffles, the batch (what was computed after earlier chunks is
computed alone, what was computed alone after the chunk before it), and for Python code
what `resources.spark.surroundings` has: time zone, clock, environment, network and machine, of Spark's workers also the hash seed.
The session's time zone is UTC, as it is of every session: it belongs to the configuration of a plan.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.schema import dtypes, lineage_columns
from backfill_assets.declarations.target import Inputs
from backfill_assets.run_context import RunContext
from backfill_assets.staging.compute import entities_of, pinned_inputs, transform_context
from backfill_assets.staging.map_values import without_maps
from backfill_assets.staging.pinned_rows import read
from backfill_assets.staging.rows import computed_rows, running, sources_by_name
from backfill_assets.staging.versions_read import read_elsewhere
from manifests.plan import PlannedChunk
from resources.lakehouse.facade import PinnedRead
from resources.ledger.facade import ChunkRecord
from resources.spark.pyspark_private import without_lines
from resources.spark.sessions import computing_otherwise
from resources.spark.surroundings import elsewhere

LIMIT = 1_000
"""Rows that are fetched of those that differ, and kept."""
_PARTITIONS = 3
_TIMES = "_times"


@dataclass(frozen=True)
class Part:
    """Which rows of a chunk are computed again: those of every `of`-th value of the entity, by its hash; all where `of` is 1."""

    of: int = 1
    number: int = 0

    def rows(self, frame: DataFrame, entity: str | None) -> DataFrame:
        """Return the rows of a frame that belong to it."""
        if self.of == 1 or entity is None:
            return frame
        # as text: source and target may have it in types of their own
        place = F.crc32(F.col(entity).cast("string").cast("binary"))
        return frame.where(F.pmod(place, F.lit(self.of)) == F.lit(self.number))


def residue(entity: str, of: int) -> int:
    """Return the number of the part that an entity, as text, belongs to."""
    return zlib.crc32(entity.encode()) % of


def differing_rows(
    run: RunContext, chunk: PlannedChunk, staged: ChunkRecord, part: Part, earlier: PlannedChunk | None = None
) -> list[dict[str, Any]]:
    """Compute a chunk, or a part of it, again; return rows that are on one side only, at most `LIMIT` and one more.

    It is computed alone, or in one batch with an `earlier` chunk. Each row has the columns of the digest, and in `_times` how many more times it was computed than it is staged.

    Raises:
        TransformRefused: if its frame cannot be built in other surroundings.
    """
    target, plan, spark = run.target, run.plan, run.spark
    schema = run.platform.lakehouse.table(target.name).schema()
    names = [name for name in dtypes(target.model) if name not in lineage_columns(target.model)]
    batch = [chunk] if earlier is None else [earlier, chunk]
    with computing_otherwise(spark), without_lines():
        found = pinned_inputs(run, batch, reading=read_elsewhere)
        mine = partial(_arranged, run, part)
        # rows of further sources belong to no one entity: they are there in other order, and all of them
        further = {name: _shuffled(one) for name, one in found.sources.items()}
        look_back = None if found.look_back is None else mine(found.look_back)
        inputs = Inputs(mine(found.source), look_back, sources_by_name(further))
        context = transform_context(run, batch)
        context = replace(context, references={name: _reordered(one) for name, one in context.references.items()})
        with elsewhere():
            computed = computed_rows(target, plan, [chunk], inputs, context, schema)
        before = read(spark, PinnedRead(target.name, None, schema, tuple(file.path for file in staged.files)))
        # a row without a day lies in the first chunk of its batch, whichever that is: the gate of that chunk tells
        if target.day_column:
            computed, before = (side.where(F.col(target.day_column).isNotNull()) for side in (computed, before))
        sides = [
            part.rows(side, target.entity).select(
                *(without_maps(F.col(name), side.schema[name].dataType).alias(name) for name in names),
                F.lit(times).alias(_TIMES),
            )
            for side, times in ((computed, 1), (before, -1))
        ]
        times = sides[0].unionByName(sides[1]).groupBy(*names).agg(F.sum(_TIMES).alias(_TIMES))
        with running(plan):
            # both sides of a key come beside each other
            differing = times.where(F.col(_TIMES) != 0).orderBy(*target.key, _TIMES)
            return [row.asDict() for row in differing.limit(LIMIT + 1).collect()]


def _arranged(run: RunContext, part: Part, rows: DataFrame) -> DataFrame:
    if run.plan.merge is not None:
        rows = rows.join(entities_of(run.platform, run.plan), run.plan.merge.entity, "left_semi")
    return _shuffled(part.rows(rows, run.target.entity))


def _shuffled(rows: DataFrame) -> DataFrame:
    """Put rows into other partitions and another order, which follow from the rows alone."""
    return _reordered(rows.repartition(_PARTITIONS, _hash(rows, _PARTITIONS)))


def _reordered(rows: DataFrame) -> DataFrame:
    return rows.sortWithinPartitions(_hash(rows, 1))


def _hash(rows: DataFrame, seed: int) -> Column:
    values = (without_maps(F.col(f"`{field.name}`"), field.dataType) for field in rows.schema.fields)
    return F.xxhash64(F.lit(seed), *values)
