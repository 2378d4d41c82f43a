"""Records of an archive's files: their offsets are known and their rows are copied in order, whatever the order and the size of a file."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import assign_fresh_schema_ids

import backfill_assets as ba
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.extraction import archived_records
from backfill_assets.extraction.archived_records import ArchivedFile, Copied, CopyTask, copy_files, looked_at
from backfill_assets.extraction.record_files import RecordFiles
from backfill_assets.ingestion import archived_topics
from backfill_assets.ingestion.topic_ranges import Resolved
from backfill_assets.worker import file_batches
from backfill_assets.worker.columns import scan_file
from manifests.errors import Problem
from manifests.log_ranges import LandedLog, LandedRange, LogIdentity, LogKind, LogRange
from resources.lakehouse.landed_logs import LandedLoad

SCHEMA = assign_fresh_schema_ids(iceberg_schema(ba.TopicRecord))
HEADERS = pl.List(pl.Struct({"name": pl.String, "value": pl.Binary}))


def records(offsets: list[int], partition: int = 0, size: int = 20) -> pl.DataFrame:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = {
        "log_partition": pl.Series([partition] * len(offsets), dtype=pl.Int32),
        "log_offset": pl.Series(offsets, dtype=pl.Int64),
        "record_time": pl.Series([at] * len(offsets), dtype=pl.Datetime("us", "UTC")),
        "record_time_type": ["CREATE_TIME"] * len(offsets),
        "record_key": pl.Series([b"k%d" % (one % 7) for one in offsets], dtype=pl.Binary),
        "record_value": pl.Series([random.Random(one).randbytes(size) for one in offsets], dtype=pl.Binary),
        "record_headers": pl.Series([[{"name": "n", "value": b"%d" % one}] for one in offsets], dtype=HEADERS),
    }
    return pl.DataFrame(rows)


def copied(path: Path, folder: Path, *ranges: LogRange) -> tuple[list[Copied], pl.DataFrame]:
    task = CopyTask(str(path), ranges, str(folder), "load-1")
    done = list(copy_files(SCHEMA.model_dump_json(), iter([task])))
    return done, pl.concat(pl.read_parquet(one) for part in done for one in part.files).drop("load_id")


@pytest.fixture
def shuffled(tmp_path: Path) -> tuple[Path, pl.DataFrame]:
    """A file of two partitions in no order, with large gaps between offsets, in several row groups."""
    chance = random.Random(3)
    whole = pl.concat([records(sorted(chance.sample(range(10**9), 3_000)), one) for one in (0, 1)])
    path = tmp_path / "shuffled.parquet"
    pq.write_table(whole.sample(fraction=1, shuffle=True, seed=3).to_arrow(), path, row_group_size=1_500)
    return path, whole


def test_rows_in_no_order_are_copied_in_the_order_of_their_offsets_part_by_part(
    shuffled: tuple[Path, pl.DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, whole = shuffled
    looked = looked_at(str(path), SCHEMA)
    assert isinstance(looked, ArchivedFile)
    own = [whole.filter(pl.col("log_partition") == one)["log_offset"].to_list() for one in (0, 1)]
    assert looked.ranges == tuple(LogRange(one, own[one][0], own[one][-1] + 1) for one in (0, 1))
    monkeypatch.setattr(archived_records, "_SORTED_BYTES", 20_000)
    sizes: list[int] = []
    sort = pl.DataFrame.sort

    def counted(frame: pl.DataFrame, *words: Any, **more: Any) -> pl.DataFrame:
        sizes.append(frame.height)
        return sort(frame, *words, **more)

    monkeypatch.setattr(pl.DataFrame, "sort", counted)
    done, rows = copied(path, tmp_path / "copied", *looked.ranges)
    assert rows.equals(whole)
    assert [one.rows for one in done] == [3_000, 3_000]
    assert len(sizes) > 10
    assert max(sizes) < 450


def test_a_part_of_a_file_in_order_is_copied_batch_by_batch_and_its_times_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, whole = tmp_path / "one.parquet", records(list(range(100)), size=2_000)
    pq.write_table(whole.to_arrow(), path, row_group_size=80)
    monkeypatch.setattr(file_batches, "_BYTES", 10_000)
    written: list[int] = []
    write = RecordFiles.write

    def noted(files: RecordFiles, rows: arrow.Table, size: int) -> None:
        written.append(rows.num_rows)
        write(files, rows, size)

    monkeypatch.setattr(RecordFiles, "write", noted)
    done, rows = copied(path, tmp_path / "copied", LogRange(0, 25, 91))
    assert rows.equals(whole[25:91])
    at = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)
    assert (done[0].rows, done[0].first_time, done[0].last_time) == (66, at, at)
    assert max(written) < 6, "rows of one batch are written, never those of a file or of a row group"


def test_an_offset_that_is_there_twice_is_refused_wherever_it_lies(
    shuffled: tuple[Path, pl.DataFrame], tmp_path: Path
) -> None:
    _, whole = shuffled
    for number, rows in enumerate(
        [whole[:50].vstack(whole[49:60]), whole.vstack(whole[7:8]).vstack(whole[3_500:3_502])]
    ):
        path = tmp_path / f"twice-{number}.parquet"
        pq.write_table(rows.to_arrow(), path, row_group_size=1_000)
        found = looked_at(str(path), SCHEMA)
        assert isinstance(found, Problem)
        assert f"{1 + 2 * number} offsets are there more than once" in found.what


def test_rows_without_a_place_are_refused(tmp_path: Path) -> None:
    whole = records(list(range(10)))
    odd = whole.with_columns(
        pl.when(pl.col("log_offset") == 4).then(None).otherwise(pl.col("log_offset")).alias("log_offset")
    )
    odd = odd.with_columns(
        pl.when(pl.col("log_offset") == 7).then(None).otherwise(pl.col("log_partition")).alias("log_partition")
    )
    path = tmp_path / "odd.parquet"
    odd.write_parquet(path)
    found = looked_at(str(path), SCHEMA)
    assert isinstance(found, Problem)
    assert "2 rows have no place" in found.what


@pytest.mark.parametrize(
    "odd",
    [
        pl.col("log_partition").cast(pl.Int64) + 2**31,
        pl.lit(2**63 - 1).alias("log_offset"),
        (pl.col("record_time").to_physical() + 8_000 * 366 * 86_400_000_000).cast(pl.Datetime("us", "UTC")),
        (pl.col("record_time").to_physical() // 1000 + 8_000 * 366 * 86_400_000).cast(pl.Datetime("ms", "UTC")),
        pl.lit([{"name": None, "value": b"1"}], dtype=HEADERS).alias("record_headers"),
        pl.lit([{"name": "n", "value": b"1"}, None], dtype=HEADERS).alias("record_headers"),
    ],
    ids=["partition", "offset", "microseconds", "milliseconds", "header without a name", "no header"],
)
def test_rows_that_are_no_records_of_a_topic_are_refused(tmp_path: Path, odd: pl.Expr) -> None:
    whole, path = records(list(range(10))), tmp_path / "odd.parquet"
    name = odd.meta.output_name()
    fine = whole.with_columns(whole[name].cast(whole.select(odd).schema[name]))
    fine.write_parquet(path)
    assert isinstance(looked_at(str(path), SCHEMA), ArchivedFile)
    pl.concat([fine[:9], whole[9:].with_columns(odd)]).write_parquet(path)
    found = looked_at(str(path), SCHEMA)
    assert isinstance(found, Problem)
    assert "1 rows have no place" in found.what


def test_a_name_with_brackets_is_that_of_a_file_and_no_pattern(tmp_path: Path) -> None:
    for name in ("part[1].parquet", "part1.parquet"):
        records([7] if name == "part1.parquet" else [1]).write_parquet(tmp_path / name)
    looked = looked_at(str(tmp_path / "part[1].parquet"), SCHEMA)
    assert isinstance(looked, ArchivedFile)
    assert looked.ranges == (LogRange(0, 1, 2),)
    assert scan_file(str(tmp_path / "part[1].parquet"), "").collect()["log_offset"].to_list() == [1]


def test_a_page_that_is_damaged_is_said_and_nothing_of_it_is_copied(tmp_path: Path) -> None:
    path = tmp_path / "damaged.parquet"
    pq.write_table(records(list(range(500)), size=400).to_arrow(), path, compression="zstd", row_group_size=100)
    column = pq.read_metadata(path).row_group(3).column(5)
    assert column.path_in_schema == "record_value"
    raw = bytearray(path.read_bytes())
    begins = column.dictionary_page_offset or column.data_page_offset
    raw[begins : begins + 60] = bytes(60)
    path.write_bytes(raw)
    looked = looked_at(str(path), SCHEMA)
    assert isinstance(looked, ArchivedFile), "the columns that say where its records are can be read"
    task = CopyTask(str(path), looked.ranges, str(tmp_path / "copied"), "load-1")
    (done,) = copy_files(SCHEMA.model_dump_json(), iter([task]))
    assert done.unreadable
    assert (done.files, done.rows) == ((), 0)
    assert list((tmp_path / "copied").rglob("*.parquet")) == []


def test_texts_that_are_none_are_refused_before_anything_is_copied(tmp_path: Path) -> None:
    path = tmp_path / "texts.parquet"
    rows = records(list(range(10))).to_arrow()
    place = rows.schema.get_field_index("record_headers")
    headers = arrow.array([[{"name": b"\xff\xfe", "value": b"1"}]] * 10)
    # as a writer does that takes the bytes as they are
    kind = arrow.list_(arrow.struct({"name": arrow.string(), "value": arrow.binary()}))
    texts = arrow.ListArray.from_arrays(
        headers.offsets,
        arrow.StructArray.from_arrays(
            [headers.values.field(0).view(arrow.string()), headers.values.field(1)], fields=list(kind.value_type)
        ),
    )
    pq.write_table(rows.set_column(place, "record_headers", texts), path)
    found = looked_at(str(path), SCHEMA)
    assert isinstance(found, Problem)
    assert "cannot be read" in found.what


def test_a_file_that_is_damaged_anywhere_is_refused_or_read_and_nothing_else(tmp_path: Path) -> None:
    path, chance = tmp_path / "damaged.parquet", random.Random(1)
    pq.write_table(records(list(range(300)), size=40).to_arrow(), path, row_group_size=100)
    raw, said = path.read_bytes(), Counter[str]()
    for number in range(200):
        damaged = bytearray(raw)
        for _ in range(chance.choice([1, 8, 64])):
            damaged[chance.randrange(len(raw)) if number % 2 else chance.randrange(len(raw) - 4000, len(raw))] = (
                chance.randrange(256)
            )
        path.write_bytes(damaged)
        looked = looked_at(str(path), SCHEMA)
        if isinstance(looked, Problem):
            said["refused"] += 1
            continue
        task = CopyTask(str(path), looked.ranges, str(tmp_path / f"copied-{number}"), "load-1")
        for done in copy_files(SCHEMA.model_dump_json(), iter([task])):
            said["unreadable" if done.unreadable else "copied"] += 1
    assert said["refused"] > 20
    assert said["copied"] + said["unreadable"] > 20


def test_what_is_missing_between_landed_offsets_is_not_accepted_as_lost_with_a_gap_of_an_archive() -> None:
    log, at = LogIdentity(LogKind.KAFKA, "cluster", "orders", "id"), datetime(2026, 1, 1, tzinfo=UTC)

    def load(start: int, until: int) -> LandedLoad:
        return LandedLoad(f"{start}", 1, at, LandedLog(log, (LandedRange(LogRange(0, start, until), until - start),)))

    loads, files = [load(1000, 1100), load(1200, 1300)], [ArchivedFile("file", (LogRange(0, 0, 500),))]
    for accepts, gap, named in ((True, (LogRange(0, 500, 1000),), 0), (False, (), 1)):
        found = archived_topics._resolved(None, None, loads, files, [], accepts_gap=accepts, problems=[])  # type: ignore[arg-type]
        assert (found.gap, len(found.problems)) == (gap, named)


@pytest.mark.parametrize("of_new", [(), (LogRange(2, 0, 0),)])
def test_a_beginning_that_an_archive_leaves_out_of_a_partition_that_was_added_is_a_gap(
    of_new: tuple[LogRange, ...],
) -> None:
    log, at = LogIdentity(LogKind.KAFKA, "cluster", "orders", "id"), datetime(2026, 1, 1, tzinfo=UTC)
    landed = LandedLog(log, tuple(LandedRange(one, one.until - one.start) for one in (LogRange(0, 7, 100), *of_new)))
    loads, files = [LandedLoad("first", 1, at, landed)], [ArchivedFile("file", (LogRange(2, 50, 80),))]

    def asked(*, accepts: bool, back: tuple[LogRange, ...] = ()) -> Resolved:
        return archived_topics._resolved(
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            loads,
            files,
            [],
            accepts_gap=accepts,
            problems=[],
            taken_back=back,
        )

    (problem,) = asked(accepts=False).problems
    assert problem.what == "partition 2 from 0 until 50: no file of the archive has it, and it is not landed"
    found = asked(accepts=True)
    assert (found.missing, found.gap, found.problems) == ((LogRange(2, 50, 80),), (LogRange(2, 0, 50),), ())
    if not of_new:  # it was landed from there on, and taken back
        assert asked(accepts=False, back=(LogRange(2, 50, 60),)).problems == ()
