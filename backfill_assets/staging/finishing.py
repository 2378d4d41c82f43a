"""Staged files that Spark alone cannot write as a table's: which they are, who finishes them, and what is refused.

Put here what a run and a test of a transform do alike. What is done to one file is `worker.chunk_finishing`'s; nothing here knows
an installation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, StructType, UUIDType

from backfill_assets.declarations.target import TargetTable
from backfill_assets.worker.chunk_finishing import NO_UUID, FinishTask, finishing
from manifests.errors import Problem, TransformRefused
from manifests.plan import Plan
from manifests.staged_file import StagedFile
from resources.lakehouse.facade import local_path
from resources.spark.chunk_work import Workers

_SHOWN = 10


def is_unfinished(kind: IcebergType) -> bool:
    """Whether Spark writes a type otherwise than a table has it: a list or a map (no field ids inside), or a UUID."""
    if isinstance(kind, StructType):
        return any(is_unfinished(one.field_type) for one in kind.fields)
    return isinstance(kind, ListType | MapType | UUIDType)


def finished(
    workers: Workers, target: TargetTable, plan: Plan, schema: Schema, files: Mapping[str, Sequence[StagedFile]]
) -> dict[str, list[StagedFile]]:
    """Return the files of chunks as the table has them; those of a table of which Spark writes every type are left alone.

    Raises:
        TransformRefused: if a map has a key twice, or a UUID not 16 bytes.
    """
    staged = {chunk: list(of) for chunk, of in files.items()}
    if not any(is_unfinished(field.field_type) for field in schema.fields):
        return staged
    tasks = [(FinishTask(chunk, local_path(file.path)), file.rows) for chunk, of in staged.items() for file in of]
    results = workers.do(plan.mode, finishing(schema.model_dump_json(), target.key), tasks)
    wrong = sorted((one for one in results if one.wrong), key=lambda one: (one.chunk, one.path))
    if wrong:
        raise TransformRefused(
            Problem(
                f"{plan.transform} {plan.transform_version} returned {one.column} of {target.name} with a value that is none of its "
                f"type: {one.wrong}, in the row {one.row}",
                "a UUID has 16 bytes" if one.wrong == NO_UUID else "a map has each key once",
                "e.g. `F.unhex(F.replace(column, F.lit('-'), F.lit('')))`"
                if one.wrong == NO_UUID
                else "decide in the transform which of the entries is right, e.g. with F.map_from_entries of distinct keys",
            )
            for one in wrong[:_SHOWN]
        )
    sizes = {one.path: one.size for one in results}
    return {chunk: [replace(file, bytes=sizes[local_path(file.path)]) for file in of] for chunk, of in staged.items()}
