"""How large the files of a run become: who declares it, and what earlier files of the table say of the bytes that a row takes.

Put here what is looked up for a plan, from metadata, of one file its footer. What runs have on record is handed in (`batch_sizes`). How rows a file follow from it is
`manifests.file_sizes`'; how they are counted out, `staging.compute`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    FloatType,
    IntegerType,
    PrimitiveType,
    StringType,
    UUIDType,
)

from backfill_assets.declarations.schema import LATER_LINEAGE_COLUMNS, LINEAGE_COLUMNS, lineage_columns
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from manifests.compaction import DEFAULT_FILE_SIZE, FILE_SIZES
from manifests.errors import PlanRefused, Problem
from manifests.file_sizes import FileSizes, even_rows, rows_that_fill, shortened, whole_number
from manifests.model import Corrections, RunManifest
from manifests.plan import Plan
from manifests.staged_file import StagedFile
from resources.lakehouse.compactable import FILE_SIZE_PROPERTY
from resources.lakehouse.partitions import parts_of_chunks
from resources.lakehouse.storage import filesystem_of
from resources.lakehouse.summaries import summary_of
from resources.ledger.measured import Written
from resources.settings import DEFAULT_ROWS_PER_FILE, ROWS_PER_FILE_KEY
from resources.spark.memory import of_mode

_TEXT, _NESTED, _TRUTH = 16.0, 32.0, 0.125
"""Bytes that a text, what is nested and a truth are reckoned with, where no file of the table is on record."""
_PACKED = 0.5
"""Which share of these bytes is left in a file, where the source does not say either."""
_FEW = 1_000
"""Source rows of which it does not say: of a small file the half is footer."""
_SHOWN = 3
_LINEAGE = (*LINEAGE_COLUMNS, *LATER_LINEAGE_COLUMNS)


def declared_file_size(target: TargetTable, properties: Mapping[str, str], manifest: RunManifest) -> tuple[int, str]:
    """Return how large files become, and who says so: the manifest, else the declaration, else the table, else nobody.

    A table whose property is beyond every size (its writers are to begin no second file) has files of the largest size there is.

    Raises:
        PlanRefused: if what the table says is no such size.
    """
    if manifest.target.file_size_bytes is not None:
        return manifest.target.file_size_bytes, "target.fileSizeBytes"
    if target.file_size_bytes is not None:
        return target.file_size_bytes, "file_size_bytes of the declaration"
    said, (least, most) = properties.get(FILE_SIZE_PROPERTY), FILE_SIZES
    if said is None:
        return DEFAULT_FILE_SIZE, "the default"
    size = whole_number(said)
    if size is None or size < least:
        raise PlanRefused(
            Problem(
                f"{FILE_SIZE_PROPERTY} of {target.name} is {shortened(said)!a}",
                f"a file has a size of {least:,} bytes or more",
                "correct the table's property, or name target.fileSizeBytes",
            )
        )
    return min(size, most), FILE_SIZE_PROPERTY


def with_file_sizes(
    platform: Platform, target: TargetTable, table: Table, plan: Plan, manifest: RunManifest, written: Written | None
) -> Plan:
    """Return a plan with how large its files become; as it is where none of the files that it writes are published as they are.

    `table` is the target as it is, `written` what earlier runs have on record.

    Those are a merge's, and of correction events alone, which are written anew from those that readers have; and a compaction's, whose
    every chunk has a number of files of its own.

    Raises:
        PlanRefused: if the table has a size of files that is none.
    """
    derived = plan.merge is not None or plan.corrections is Corrections.INSTEAD
    if plan.compaction is not None or derived:
        return plan
    size, said_by = declared_file_size(target, table.properties, manifest)
    row_bytes, own_bytes, learned_from = _bytes_of_rows(platform, target, plan, table, written)
    full = rows_that_fill(size, row_bytes, own_bytes)
    most = rows_of_settings(of_mode(platform.settings, plan.mode))
    # of a chunk with several partitions nobody knows how many rows are in each
    divided = parts_of_chunks(table, target.day_column, target.chunking, target.chunk_values)
    known = [] if divided else [one.writes for one in plan.chunks if one.writes is not None]
    rows = even_rows(full, known, most)
    return replace(plan, file_sizes=FileSizes(size, said_by, row_bytes, own_bytes, learned_from, rows))


def rows_of_settings(spark: Mapping[str, str]) -> int | None:
    """Return the most rows that a file has by Spark's settings, whatever its size; None where these say that there is no limit."""
    return whole_number(spark.get(ROWS_PER_FILE_KEY, str(DEFAULT_ROWS_PER_FILE)).strip()) or None


def _bytes_of_rows(
    platform: Platform, target: TargetTable, plan: Plan, table: Table, written: Written | None
) -> tuple[float, int, str]:
    """Return how many bytes a row takes in a file of the table, those of a file besides, and from what that is known, in words."""
    if written is not None:
        named = ", ".join(f"'{one}'" for one in written.run_ids[:_SHOWN])
        more = f" and {len(written.run_ids) - _SHOWN:,} more" if len(written.run_ids) > _SHOWN else ""
        found = _parts_of_file(table, max(written.files, key=lambda one: one.rows)) if written.files else None
        row_bytes, own_bytes = found or (written.bytes / written.rows, 0)
        return _rounded(row_bytes), own_bytes, f"the largest chunks of run {named}{more}"
    snapshot = None if plan.base_snapshot_id is None else table.snapshot_by_id(plan.base_snapshot_id)
    if snapshot is not None:
        said = summary_of(snapshot)
        rows, size = (whole_number(said.get(name, "")) for name in ("total-records", "total-files-size"))
        if rows and size:
            return _rounded(size / rows), 0, f"the files of snapshot {snapshot.snapshot_id}"
    own = _width_of_row(table.schema(), lineage_columns(target.model))
    if plan.reads.rows < _FEW or not plan.reads.bytes:
        return _rounded(own * _PACKED), 0, "the types of its columns"
    of_source = _width_of_row(platform.lakehouse.table(plan.source).schema(), _LINEAGE)
    packed = min(1.0, plan.reads.bytes / plan.reads.rows / of_source)
    return _rounded(own * packed), 0, f"the types of its columns, packed as the files of {plan.source} are"


def _parts_of_file(table: Table, file: StagedFile) -> tuple[float, int] | None:
    """Return how many bytes a row takes in a file, and how many the file has besides; None where it cannot be asked any more.

    A file that is gone, or damaged, says nothing of rows, and refuses no plan: whoever needs it says so.
    """
    try:
        filesystem, place, _ = filesystem_of(table, file.path)
        with filesystem.open_input_file(place) as stream:
            footer = pq.read_metadata(stream)
    except (OSError, arrow.ArrowException):
        return None
    groups = map(footer.row_group, range(footer.num_row_groups))
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    dictionaries = sum(one.data_page_offset - one.dictionary_page_offset for one in columns if one.has_dictionary_page)
    rows = sum(one.total_compressed_size for one in columns) - dictionaries
    if rows <= 0 or not footer.num_rows:
        return None
    return rows / footer.num_rows, max(0, file.bytes - rows)


def _rounded(row_bytes: float) -> float:
    return max(0.001, round(row_bytes, 3))


def _width_of_row(schema: Schema, constant: Collection[str]) -> float:
    """Return the bytes of a row's values by the types of its columns, before they are packed; what is the same in each row takes nothing."""
    return max(1.0, sum(_width(field.field_type) for field in schema.fields if field.name not in constant))


def _width(kind: Any) -> float:
    if isinstance(kind, BooleanType):
        return _TRUTH
    if isinstance(kind, (StringType, BinaryType)):
        return _TEXT
    if not isinstance(kind, PrimitiveType):
        return _NESTED
    if isinstance(kind, (IntegerType, DateType, FloatType)):
        return 4.0
    if isinstance(kind, FixedType):
        return float(len(kind))
    is_wide = isinstance(kind, DecimalType) and kind.precision > 18  # noqa: PLR2004 - the digits of 64 bits
    return 16.0 if is_wide or isinstance(kind, UUIDType) else 8.0
