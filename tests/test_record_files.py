"""Files that records of a log are landed in: what a run over one day of it reads of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as arrow
import pyarrow.parquet as pq

from backfill_assets.extraction.record_files import RecordFiles
from backfill_assets.testing.sessions import new_folder, spark_sessions
from manifests.model import Mode

KINDS = arrow.schema(
    [
        ("log_partition", arrow.int32()),
        ("log_offset", arrow.int64()),
        ("record_time", arrow.timestamp("us", "UTC")),
        ("record_value", arrow.binary()),
    ]
)
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
DAYS, A_DAY = 30, 20_000


def test_a_day_of_a_log_is_read_without_the_pages_of_the_other_days() -> None:
    folder = new_folder()
    folder.mkdir()
    with RecordFiles(str(folder), 0, KINDS) as files:
        for day in range(DAYS):
            at = FIRST + timedelta(days=day)
            offsets = range(day * A_DAY, (day + 1) * A_DAY)
            columns = [[0] * A_DAY, list(offsets), [at] * A_DAY, [b"%032d" % (one * 7919 % 10**9) for one in offsets]]
            files.write(arrow.table(columns, schema=KINDS), A_DAY * 48)
    (path,) = files.paths
    found = pq.ParquetFile(path).metadata
    assert found.num_row_groups == 1, "so that only pages can be left out"
    assert all(found.row_group(0).column(one).has_column_index for one in range(len(KINDS)))
    spark = spark_sessions().session(Mode.BACKFILL)
    third = FIRST + timedelta(days=2)
    rows = spark.read.parquet(path).where(f"record_time = timestamp'{third:%Y-%m-%d %H:%M:%S}+00:00'")
    assert len(rows.collect()) == A_DAY
    read = int(
        rows._jdf.queryExecution().executedPlan().collectLeaves().head().metrics().apply("numOutputRows").value()
    )
    assert A_DAY <= read <= 3 * A_DAY
