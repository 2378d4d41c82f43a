"""Files across the border of a publish range: parted without a change of any row, or left alone and told why."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType
from test_existing_tables import spec_of
from test_taking_back import dying_at
from worlds import SPARK, World

from backfill_assets.audit.verification import verify
from backfill_assets.cli.command import cli
from backfill_assets.declarations.schema import TABLE_PROPERTIES, iceberg_schema
from backfill_assets.installation import Platform
from backfill_assets.operations import garbage
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.splitting import split_files, split_plan
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from benchmarks import orders
from benchmarks.orders import ORDERS, manifest, opened, rows_of
from manifests.errors import EnvironmentRefused, InputRefused, LeaseHeld, PlanRefused, PublicationRefused
from manifests.lifecycle import RunState
from manifests.model import RunManifest
from resources.lakehouse import file_splits
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.facade import ACTION_PROPERTY, local_path
from resources.lakehouse.storage import FileFound, Storage
from resources.lakehouse.summaries import SPLIT
from resources.ledger.transactions import system_clock

FEBRUARY = date(2024, 2, 1), date(2024, 2, 29)


def asking(run_id: str = "february", *, split: bool = True, **target: Any) -> RunManifest:
    start, end = FEBRUARY
    wanted = {"table": ORDERS, "publishRange": {"start": start, "end": end}} | target
    return manifest(run_id, start, end, target=wanted | ({"filesAcrossBorder": "SPLIT"} if split else {}))


def made(tmp_path: Path, *parts: tuple[str, str], lots: int = 1) -> Platform:
    """Return an installation whose target somebody else has written: files of all four months."""
    platform = opened(tmp_path / "home", spark=SPARK)
    lakehouse = platform.lakehouse
    lakehouse.catalog.create_namespace_if_not_exists("silver")
    schema = iceberg_schema(orders.Order)
    table = lakehouse.catalog.create_table(
        ORDERS, schema, partition_spec=spec_of(*parts), properties=dict(TABLE_PROPERTIES)
    )
    lines = orders.lines().to_pylist()
    rows = [row | {"ordered_on": row["ordered_at"].date(), "run_id": "theirs", "processing_mode": "x"} for row in lines]
    for lot in range(lots):
        table.append(arrow.Table.from_pylist(rows[lot::lots], schema_to_pyarrow(schema, include_field_ids=False)))
    orders.fill(platform)
    return platform


def files(platform: Platform) -> set[str]:
    found = platform.lakehouse.table(ORDERS).inspect.data_files()
    return set(found["file_path"].to_pylist())


@pytest.mark.parametrize(
    "parts",
    [(), (("ordered_on", "year"),), (("region", "identity"),), (("order_id", "bucket[3]"), ("ordered_on", "year"))],
    ids=["none", "year", "identity", "bucket and year"],
)
def test_a_month_of_files_of_all_months_is_restated_once_they_are_parted(
    tmp_path: Path, parts: tuple[tuple[str, str], ...]
) -> None:
    platform = made(tmp_path, *parts)
    before, old = rows_of(platform), files(platform)
    at = platform.lakehouse.snapshot_id(ORDERS)
    with pytest.raises(PlanRefused) as refused:
        World(platform, tmp_path / "home").approved(asking())
    assert "`backfill split-files` with this manifest" in refused.value.problems[0].fix
    done = split_files(platform, asking())
    assert rows_of(platform) == before
    assert set(done.shown()["files"]) == old - files(platform)
    assert len(files(platform)) == len(old) - len(done.plan.files) + done.pieces
    assert split_files(platform, asking()).pieces == 0
    assert platform.lakehouse.snapshot_id(ORDERS) == done.snapshot_id
    world = World(platform, tmp_path / "home")
    world.published(asking())
    after = rows_of(platform)
    inside = [row for row in after if FEBRUARY[0] <= row["ordered_on"] <= FEBRUARY[1]]
    assert {row["run_id"] for row in inside} == {"february"}
    assert [row for row in after if row not in inside] == [
        row for row in before if not FEBRUARY[0] <= row["ordered_on"] <= FEBRUARY[1]
    ]
    assert verify(platform, data=True).everything == []
    rollback(platform, "february")
    assert rows_of(platform) == before
    assert {one.kind for one in examine(platform)} <= {"untold"}
    then = platform.lakehouse.table(ORDERS).scan(snapshot_id=at).to_arrow()
    assert then.num_rows == len(before)


def test_a_merge_needs_files_of_one_chunk_each_and_gets_them(tmp_path: Path) -> None:
    platform = made(tmp_path, lots=3)
    start, end = date(2024, 1, 1), date(2024, 2, 29)
    wanted = asking(
        publishMode="MERGE_BY_KEY", publishRange={"start": start, "end": end}, merge={"entities": ["customer-1"]}
    )
    done = split_files(platform, wanted)
    assert done.plan.days == (start, date(2024, 2, 1), date(2024, 3, 1))
    assert (len(done.plan.files), done.pieces) == (3, 12)
    assert split_plan(platform, wanted).files == ()


def test_it_is_refused_where_the_manifest_does_not_ask_for_it_or_ends_within_a_chunk(tmp_path: Path) -> None:
    platform = made(tmp_path)
    before = files(platform)
    with pytest.raises(PlanRefused, match=r"target\.filesAcrossBorder is REFUSE"):
        split_files(platform, asking(split=False))
    with pytest.raises(PlanRefused, match="changed by whole chunks"):
        split_files(platform, asking(publishRange={"start": date(2024, 2, 1), "end": date(2024, 2, 20)}))
    assert files(platform) == before


def test_a_run_that_waits_was_planned_on_files_that_stay(tmp_path: Path) -> None:
    platform = made(tmp_path)
    world = World(platform, tmp_path / "home")
    start, end = orders.FIRST, orders.LAST
    waits = manifest("all", start, end)
    world.validated(waits)
    with pytest.raises(PlanRefused, match="run 'all' is VALIDATED, and was planned on") as refused:
        split_files(platform, asking())
    assert refused.value.problems[0].fix == "publish or cancel 'all' first"


def test_a_run_that_is_planned_or_not_accepted_yet_needs_the_files_too(tmp_path: Path) -> None:
    platform = made(tmp_path)
    world = World(platform, tmp_path / "home")
    days = {"start": orders.FIRST, "end": orders.LAST}
    plan_run(platform, manifest("all", orders.FIRST, orders.LAST))
    with pytest.raises(PlanRefused, match="run 'all' is PLANNED, and was planned on"):
        split_files(platform, asking())
    platform.ledger.move("all", RunState.CANCELLED, "ana", "for a test", expected=RunState.PLANNED)
    version = {
        "table": ORDERS,
        "publishRange": days,
        "publishMode": "VERSIONED",
        "version": "v2",
        "acceptance": "LATER",
    }
    world.published(manifest("version", orders.FIRST, orders.LAST, target=version))
    with pytest.raises(PlanRefused, match="run 'version' is PUBLISHED") as refused:
        split_files(platform, asking())
    assert refused.value.problems[0].fix == "accept 'version', or roll it back, first"


def test_a_run_that_was_rolled_back_is_named_before_it_cannot_come_back(tmp_path: Path) -> None:
    platform = made(tmp_path)
    World(platform, tmp_path / "home").published(manifest("all", orders.FIRST, orders.LAST))
    rollback(platform, "all")
    assert split_plan(platform, asking()).ends_for == ("all",)
    assert split_files(platform, asking()).shown()["cannotBeReinstated"] == ["all"]


def test_files_of_several_chunks_of_a_run_are_no_conflict_with_what_is_committed_elsewhere(tmp_path: Path) -> None:
    platform = made(tmp_path)
    world = World(platform, tmp_path / "home")
    split_files(platform, asking())
    winter = manifest("winter", date(2023, 12, 1), date(2024, 1, 31))
    world.validated(winter)
    world.published(asking())
    publish(platform, "winter")
    assert platform.ledger.run("winter").state is RunState.PUBLISHED
    assert verify(platform, data=True).everything == []


def test_files_of_runs_are_never_parted(tmp_path: Path) -> None:
    platform = made(tmp_path)
    world = World(platform, tmp_path / "home")
    world.published(manifest("all", orders.FIRST, orders.LAST))
    with (
        mock.patch("backfill_assets.operations.splitting.files_across", lambda table, *_: [*_listed(table)]),
        pytest.raises(PlanRefused, match="of the files are those of run 'all'"),
    ):
        split_files(platform, asking())


def _listed(table: Table) -> Iterator[Any]:
    return (task.file for task in table.scan().plan_files())


def test_a_table_without_bounds_of_its_days_is_left_as_it_is(tmp_path: Path) -> None:
    platform = made(tmp_path)
    with platform.lakehouse.table(ORDERS).transaction() as transaction:
        transaction.set_properties({"write.metadata.metrics.column.ordered_on": "counts"})
    before = files(platform)
    with pytest.raises(InputRefused, match="does not say which days it holds"):
        split_files(platform, asking())
    assert files(platform) == before


def test_pieces_that_are_not_the_rows_of_their_file_never_come_in(tmp_path: Path) -> None:
    platform = made(tmp_path)
    before = files(platform)
    own = pq.ParquetWriter.write_table

    def forgetful(writer: Any, rows: arrow.Table, **options: Any) -> None:
        own(writer, rows.slice(1), **options)

    with (
        mock.patch.object(pq.ParquetWriter, "write_table", forgetful),
        pytest.raises(EnvironmentRefused, match="has not the rows of"),
    ):
        split_files(platform, asking())
    assert files(platform) == before


@pytest.mark.parametrize("point", ["splitting.written", "splitting.recorded", "splitting.committed"])
def test_killed_anywhere_it_is_done_by_the_same_command(tmp_path: Path, point: str) -> None:
    platform = made(tmp_path)
    world = World(platform, tmp_path / "home")
    split_files(platform, asking())
    world.published(asking())  # from here on what others write is told
    january = asking(publishRange={"start": date(2024, 1, 1), "end": date(2024, 1, 31)})
    before = rows_of(platform)
    (old,) = (file.file_path for file in split_plan(platform, january).files)
    with dying_at(platform, point):
        split_files(platform, january)
    assert rows_of(platform) == before
    split_files(platform, january)
    assert rows_of(platform) == before
    assert old not in files(platform)
    assert split_plan(platform, january).files == ()
    assert [one for one in examine(platform) if one.kind == "foreign-write"] == []
    assert verify(platform, data=True).everything == []
    left = [one for found in garbage.find(platform, at=system_clock() + timedelta(days=400)) for one in found.files]
    orphaned = {one.file.path for one in left if "/split=" in one.file.path}
    assert bool(orphaned) is (point != "splitting.committed")
    assert orphaned.isdisjoint({path.removeprefix("file://") for path in files(platform)})


def test_what_only_says_that_it_is_a_split_is_somebody_elses(tmp_path: Path) -> None:
    platform = made(tmp_path)
    world = World(platform, tmp_path / "home")
    split_files(platform, asking())
    world.published(asking())
    table = platform.lakehouse.table(ORDERS)
    table.append(table.scan(limit=3).to_arrow(), snapshot_properties={ACTION_PROPERTY: SPLIT, "backfill.split": "x"})
    assert "foreign-write" in {one.kind for one in examine(platform)}


def test_who_publishes_is_waited_for_and_files_that_are_gone_meanwhile_refuse(tmp_path: Path) -> None:
    platform = made(tmp_path)
    leases = platform.ledger.leases(60)
    lease = leases.acquire(ORDERS, *FEBRUARY, "other", "publish")
    with pytest.raises(LeaseHeld):
        split_files(platform, asking())
    leases.release(lease)

    def rewritten(*args: Any, **named: Any) -> Any:
        table = platform.lakehouse.table(ORDERS)
        table.overwrite(table.scan().to_arrow())
        return own(*args, **named)

    own = file_splits.commit_split
    with (
        mock.patch("backfill_assets.operations.splitting.commit_split", rewritten),
        pytest.raises(PublicationRefused, match="are no files of"),
    ):
        split_files(platform, asking())
    assert split_files(platform, asking()).pieces


def test_others_may_append_meanwhile(tmp_path: Path) -> None:
    platform = made(tmp_path)
    own = file_splits.commit_split

    def beside(*args: Any, **named: Any) -> Any:
        table = platform.lakehouse.table(ORDERS)
        table.append(table.scan(limit=5).to_arrow())
        return own(*args, **named)

    with mock.patch("backfill_assets.operations.splitting.commit_split", beside):
        split_files(platform, asking())
    assert len(rows_of(platform)) == 2_005
    assert len(split_plan(platform, asking()).files) == 1  # the one that was added


def test_columns_partitions_and_names_may_have_changed_since_a_file_was_written(tmp_path: Path) -> None:
    platform = made(tmp_path)
    table = platform.lakehouse.table(ORDERS)
    before = {row["order_id"]: row for row in rows_of(platform)}
    with table.update_schema() as update:
        update.add_column("note", StringType())
        update.rename_column("price", "amount")
        update.rename_column("ordered_on", "day")
        update.delete_column("region")
    with table.update_spec() as update:
        update.add_field("order_id", BucketTransform(4))
    file = next(_listed(platform.lakehouse.table(ORDERS)))
    split = file_splits.split_file(platform.lakehouse.table(ORDERS), file, "day", [FEBRUARY[0], date(2024, 3, 1)])
    assert [piece.spec_id for piece in split.pieces] == [0, 0, 0]
    commit_replacement(platform.lakehouse.table(ORDERS), AlwaysTrue(), [file], split.pieces, {})
    rows = platform.lakehouse.table(ORDERS).scan().to_arrow().to_pylist()
    assert {row["order_id"]: (row["amount"], row["day"], row["note"]) for row in rows} == {
        key: (row["price"], row["ordered_on"], None) for key, row in before.items()
    }


VALUES = st.fixed_dictionaries(
    {
        "at": st.none() | st.integers(-(10**16) // 32, 10**16 // 32),
        "number": st.none() | st.floats(width=64),
        "small": st.none() | st.floats(width=32),
        "text": st.none() | st.text(max_size=5),
        "parts": st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=3),
        "inside": st.none()
        | st.fixed_dictionaries({"a": st.none() | st.binary(max_size=3), "b": st.none() | st.booleans()}),
    }
)
KINDS = arrow.schema(
    [
        arrow.field("at", arrow.timestamp("us", "UTC")),
        arrow.field("number", arrow.float64()),
        arrow.field("small", arrow.float32()),
        arrow.field("text", arrow.string()),
        arrow.field("parts", arrow.list_(arrow.int32())),
        arrow.field("inside", arrow.struct([arrow.field("a", arrow.binary()), arrow.field("b", arrow.bool_())])),
    ]
)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Platform:
    platform = opened(tmp_path_factory.mktemp("kinds") / "home")
    platform.lakehouse.catalog.create_namespace_if_not_exists("any")
    return platform


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(VALUES, min_size=1, max_size=40),
    days=st.lists(st.dates(date(1960, 1, 1), date(1980, 1, 1)), min_size=1, max_size=5, unique=True).map(sorted),
    batch=st.integers(1, 50),
)
def test_each_row_is_in_the_piece_of_its_day_as_it_was_and_in_its_order(
    empty: Platform, rows: list[dict[str, Any]], days: list[date], batch: int
) -> None:
    catalog = empty.lakehouse.catalog
    if catalog.table_exists("any.kinds"):
        catalog.drop_table("any.kinds")
    table = catalog.create_table("any.kinds", KINDS)
    given_rows = arrow.Table.from_pylist(rows, KINDS)
    table.append(given_rows)
    (file,) = _listed(table)
    with mock.patch.object(file_splits, "_BATCH_ROWS", batch), mock.patch.object(file_splits, "_GROUP_ROWS", 7):
        split = file_splits.split_file(table, file, "at", days)
    whole = pl.DataFrame(given_rows).with_row_index()
    place = pl.lit(0)
    for day in days:
        place += (pl.col("at").dt.date() >= day).cast(pl.Int32)
    of_piece = whole.with_columns(place=pl.when(pl.col("at").is_null()).then(len(days) + 1).otherwise(place))
    expected = [frame.drop("index", "place") for _, frame in sorted(of_piece.group_by("place"), key=lambda one: one[0])]
    found = [pl.DataFrame(pq.read_table(table.io.new_input(piece.file_path).open())) for piece in split.pieces]
    assert [frame.rows() for frame in map(_told, found)] == [
        frame.sort("index", maintain_order=True).rows() if "index" in frame.columns else frame.rows()
        for frame in map(_told, expected)
    ]
    assert sum(piece.record_count for piece in split.pieces) == len(rows)


def _told(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame whose floating-point numbers can be compared as text: NaN and both zeros are told."""

    def said(number: float | None) -> str | None:
        return None if number is None else "nan" if math.isnan(number) else number.hex()

    return frame.with_columns(
        pl.col("number").map_elements(said, pl.String), pl.col("small").map_elements(said, pl.String)
    )


def test_the_command_shows_what_it_would_do_and_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = made(tmp_path)
    file = tmp_path / "february.yaml"
    file.write_text(asking().model_dump_json(by_alias=True, exclude_none=True))
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    with mock.patch("backfill_assets.cli.upkeep.opened_platform") as opening:
        opening.return_value.__enter__.return_value = platform
        shown = CliRunner().invoke(cli, ["split-files", str(file), "--preview"])
        assert (shown.exit_code, "would part" in shown.output) == (0, True)
        done = CliRunner().invoke(cli, ["split-files", str(file)])
        assert "2,000 rows of 1 file(s) lie in 3 by snapshot" in done.output
        again = CliRunner().invoke(cli, ["split-files", str(file)])
        assert "no file of silver.orders holds rows on both sides" in again.output


# --- links ------------------------------------------------------------------------------------------------------------


def test_a_file_or_a_folder_that_is_a_link_is_neither_read_nor_written_nor_deleted(tmp_path: Path) -> None:
    platform = made(tmp_path)
    (file,) = (Path(local_path(path)) for path in files(platform))
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    moved = outside / "rows.parquet"
    file.rename(moved)
    file.symlink_to(moved)
    storage = Storage(platform.lakehouse.table(ORDERS))
    with pytest.raises(PlanRefused, match="is a link, or lies below one") as refused:
        split_plan(platform, asking())
    assert str(file) in str(refused.value)
    assert storage.look([str(file)]) == {}
    for read in (storage.rows, storage.content):
        with pytest.raises(OSError, match="is reached by a link"):
            read(str(file))
    assert storage.files(storage.location) == [one for one in storage.files(storage.location) if one.path != str(file)]
    found = FileFound(str(file), moved.stat().st_size, moved.stat().st_mtime_ns)
    assert not storage.delete(found)
    assert moved.exists()

    # the folder: files below it are where they were, and yet are not the table's own
    file.unlink()
    moved.rename(file)
    data = file.parent
    data.rename(outside / "data")
    data.symlink_to(outside / "data")
    before = sorted(path.name for path in (outside / "data").iterdir())
    with pytest.raises(PlanRefused, match=f"{data} is a link"):
        split_files(platform, asking())
    assert sorted(path.name for path in (outside / "data").iterdir()) == before
