"""How a snapshot's summary counts the files that come and go by partition, for commits of very many files.

Put here what spares PyIceberg a text for each partition where nobody is told which these are. What else a summary says is
`pyiceberg_private`'s and `summaries`'.
"""

from __future__ import annotations

from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import SnapshotSummaryCollector


class CountedOnce(SnapshotSummaryCollector):
    """PyIceberg's count of what comes and goes, where partitions are only counted: to write out the path of each takes longer than all else."""

    def update_partition_metrics(
        self, partition_spec: PartitionSpec, file: DataFile, is_add_file: bool, schema: Schema
    ) -> None:
        """Count a file to its partition: by its values, where PyIceberg takes two of one path (NULL and the text `null`) for one."""
        if self.max_changed_partitions_for_summaries:
            super().update_partition_metrics(partition_spec, file, is_add_file, schema)
            return
        values = file.partition
        _ = self.partition_metrics[repr((partition_spec.spec_id, *(values[place] for place in range(len(values)))))]
