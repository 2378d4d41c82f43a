"""What the footers of Parquet files say of their columns, as PyIceberg reads it, for very many small files of few schemas.

Put here how statistics of a footer become the counts and bounds of a data file. A file of one row group is read here, column by column:
PyIceberg finds out anew for each file what files of one schema share, and what equal ends of a column mean. Of any other file, and of the
first one of each schema, PyIceberg's own answer is taken; tests hold the two against each other. What a file's partition is, is
`partitions`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
from pyarrow.lib import ArrowNotImplementedError
from pyarrow.types import is_nested
from pyiceberg.io.fileformat import DataFileStatistics
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    StatisticsCollector,
    StatsAggregator,
    data_file_statistics_from_parquet_metadata,
)
from pyiceberg.types import DecimalType
from pyiceberg.utils.decimal import unscaled_to_decimal

_MOST_KNOWN = 1_000
"""Ends that are kept of a column: a column that has others in each file would keep all of them."""


@dataclass(frozen=True)
class Described:
    """The statistics of a file, and its bounds by field as Iceberg keeps them."""

    statistics: DataFileStatistics
    lower: dict[int, bytes]
    upper: dict[int, bytes]

    @classmethod
    def by_pyiceberg(
        cls, metadata: pq.FileMetaData, wanted: dict[int, StatisticsCollector], ids: dict[str, int]
    ) -> Described:
        """Return what PyIceberg finds in a footer."""
        statistics = data_file_statistics_from_parquet_metadata(metadata, wanted, ids)
        said = statistics.to_serialized_dict()
        return cls(statistics, said["lower_bounds"], said["upper_bounds"])

    def as_arguments(self) -> dict[str, Any]:
        """Return it as `DataFile.from_args` takes it."""
        found = self.statistics
        return {
            "record_count": found.record_count,
            "column_sizes": found.column_sizes,
            "value_counts": found.value_counts,
            "null_value_counts": found.null_value_counts,
            "nan_value_counts": found.nan_value_counts,
            "lower_bounds": self.lower,
            "upper_bounds": self.upper,
            "split_offsets": found.split_offsets,
        }


class FootersOfSchema:
    """Reads the footers of files that have the schema of one, which PyIceberg has read."""

    def __init__(
        self, known: pq.FileMetaData, wanted: Mapping[int, StatisticsCollector], ids: Mapping[str, int]
    ) -> None:
        self._schema, self._words = known.schema, known.metadata
        self._arrow = known.schema.to_arrow_schema()
        # not told by their number: a struct of one column is one
        self._is_flat = not any(map(is_nested, self._arrow.types))
        self._paths = [known.schema.column(at).path for at in range(known.num_columns)]
        self._columns = [_Column(wanted[ids[path]]) for path in self._paths]
        self._has_twins = len(set(self._paths)) < len(self._paths)

    def has(self, metadata: pq.FileMetaData) -> bool:
        """Whether a file has this schema, in all that PyIceberg looks at: names, types, ids, and what is said beside them.

        Parquet compares columns with values only. What these lie in, of a schema that is not flat, is compared as Arrow reads it.
        """
        if not metadata.schema.equals(self._schema) or metadata.metadata != self._words:
            return False
        return self._is_flat or bool(metadata.schema.to_arrow_schema().equals(self._arrow, check_metadata=True))

    def read(self, metadata: pq.FileMetaData) -> Described | None:
        """Return what a footer of this schema says; None where it takes PyIceberg to say it."""
        columns = self._columns_in(metadata)
        if columns is None:
            return None
        sizes, values, nulls = dict[int, int](), dict[int, int](), dict[int, int]()
        aggregates, lower, upper = dict[int, StatsAggregator](), dict[int, bytes](), dict[int, bytes]()
        for column, known in zip(columns, self._columns, strict=True):
            field_id = known.field_id
            sizes[field_id] = column.total_compressed_size
            if not known.is_counted:
                continue
            values[field_id] = column.num_values
            if not column.is_stats_set:
                return None
            statistics = column.statistics
            if statistics.has_null_count:
                nulls[field_id] = statistics.null_count
            if not known.is_bounded:
                continue
            try:
                aggregates[field_id], low, high = known.ends(statistics)
            except ArrowNotImplementedError:
                return None
            if low is not None:
                lower[field_id] = low
            if high is not None:
                upper[field_id] = high
        found = DataFileStatistics(metadata.num_rows, sizes, values, nulls, {}, aggregates, [_begin(columns[0])])
        return Described(found, lower, upper)

    def _columns_in(self, metadata: pq.FileMetaData) -> list[pq.ColumnChunkMetaData] | None:
        """Return the columns of a file's one row group; None where it has several, or columns that are not told apart by their place.

        A row group says anew which column of the schema each is, and PyIceberg goes by that.
        """
        if metadata.num_row_groups != 1 or self._has_twins:
            return None
        group = metadata.row_group(0)
        columns = [group.column(at) for at in range(len(self._paths))]
        return columns if [one.path_in_schema for one in columns] == self._paths else None


class _Column:
    """One column of a schema, and the ends that files have had in it."""

    def __init__(self, collector: StatisticsCollector) -> None:
        self.field_id = collector.field_id
        self.is_counted = collector.mode.type != MetricModeTypes.NONE
        self.is_bounded = self.is_counted and collector.mode.type != MetricModeTypes.COUNTS
        self._collector = collector
        self._empty: StatsAggregator | None = None
        self._known: dict[tuple[Any, Any], tuple[StatsAggregator, bytes | None, bytes | None]] = {}

    def ends(self, statistics: pq.Statistics) -> tuple[StatsAggregator, bytes | None, bytes | None]:
        """Return the ends of a file's values, and both as Iceberg keeps them."""
        low, high = statistics.min_raw, statistics.max_raw
        key = (str(low), str(high)) if isinstance(low, float) else (low, high)  # as text 0.0 and -0.0 are two
        found = self._known.get(key)
        if found is None:
            found = self._read(statistics)
            is_told_apart = low is not None and high is not None and low == low and high == high  # noqa: PLR0124 - NaNs differ, not as text
            if is_told_apart and len(self._known) < _MOST_KNOWN:
                self._known[key] = found
        return found

    def _read(self, statistics: pq.Statistics) -> tuple[StatsAggregator, bytes | None, bytes | None]:
        kind, physical = self._collector.iceberg_type, statistics.physical_type
        if self._empty is None:
            try:
                self._empty = StatsAggregator(kind, physical, self._collector.mode.length)
            except ValueError as error:
                raise ValueError(f"{error} for column '{self._collector.column_name}'") from error
        found = copy(self._empty)
        if isinstance(kind, DecimalType) and physical != "FIXED_LEN_BYTE_ARRAY":
            raw = statistics.min_raw, statistics.max_raw
            low, high = (None if one is None else unscaled_to_decimal(one, kind.scale) for one in raw)
        else:
            low, high = statistics.min, statistics.max
        found.update_min(low)
        found.update_max(high)
        return found, found.min_as_bytes(), found.max_as_bytes()


def _begin(column: pq.ColumnChunkMetaData) -> int:
    """Return where a row group begins, by its first column."""
    if column.has_dictionary_page and column.dictionary_page_offset < column.data_page_offset:
        return int(column.dictionary_page_offset)
    return int(column.data_page_offset)
