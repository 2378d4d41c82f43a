"""Tables that Iceberg's Java library has written: restated for a part of their days, or refused when a run is planned.

What lies outside the days of a run is read by that library before and after, and is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from other_engines import by_java, jar, metadata_of
from worlds import SPARK, World

from backfill_assets.audit.reproduce import Outcome, reproduce
from backfill_assets.audit.verification import verify
from backfill_assets.declarations.product import Product
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.operations.splitting import split_files
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.undoing import rollback
from benchmarks import orders
from benchmarks.orders import LINES, SOURCE, TARGET
from manifests.errors import Refused
from manifests.reading import manifest_from
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.settings import load_settings

pytestmark = pytest.mark.exhaustive  # JVMs beside that of the tests

COLUMNS = "order_id bigint, ordered_on date, ordered_at timestamp, customer string, region string, price decimal(12, 2)"
NAMES = "order_id, ordered_on, ordered_at, customer, region, price"
FEBRUARY = date(2024, 2, 1), date(2024, 2, 29)
IN_FEBRUARY = "ordered_on BETWEEN date'2024-02-01' AND date'2024-02-29'"


@dataclass(frozen=True)
class Foreign:
    """A table as somebody else makes it: what it is created with, what is done to it, and what a plan says of it."""

    created: str = ""
    statements: tuple[str, ...] = ()
    refused: str = ""
    parted: bool = False
    columns: str = COLUMNS
    filled: bool = True


def inserted(where: str = "true", names: str = NAMES, values: str = NAMES) -> str:
    return f"INSERT INTO {{table}} ({names}) SELECT {values} FROM parquet.`{{rows}}` WHERE {where}"


MERGE_ON_READ = "TBLPROPERTIES ('format-version' = '{}', 'write.delete.mode' = 'merge-on-read')"
TABLES = {
    "sorted": Foreign(
        "PARTITIONED BY (months(ordered_on))", ("ALTER TABLE {table} WRITE ORDERED BY customer, price DESC",)
    ),
    "locally_sorted": Foreign(
        "PARTITIONED BY (days(ordered_at))", ("ALTER TABLE {table} WRITE LOCALLY ORDERED BY region",)
    ),
    "buckets": Foreign("PARTITIONED BY (bucket(4, order_id), months(ordered_on))"),
    "regions": Foreign("PARTITIONED BY (region, years(ordered_on))", parted=True),
    "truncated": Foreign("PARTITIONED BY (truncate(10, customer), months(ordered_at))"),
    "one_file": Foreign(parted=True),
    "evolved": Foreign(
        "PARTITIONED BY (months(ordered_on))",
        (
            inserted("ordered_on < date'2024-02-01'"),
            "ALTER TABLE {table} REPLACE PARTITION FIELD months(ordered_on) WITH days(ordered_on)",
            inserted("ordered_on >= date'2024-02-01'"),
            "ALTER TABLE {table} ADD PARTITION FIELD bucket(2, customer)",
        ),
        filled=False,
    ),
    "other_columns": Foreign(
        "PARTITIONED BY (months(ordered_on))",
        (
            inserted(
                "ordered_on < date'2024-01-01'",
                *(NAMES.replace("customer, region", "who"), NAMES.replace("customer, region", "customer")),
            ),
            "ALTER TABLE {table} RENAME COLUMN who TO customer",
            "ALTER TABLE {table} ADD COLUMN region string AFTER customer",
            "ALTER TABLE {table} DROP COLUMN obsolete",
            "ALTER TABLE {table} ALTER COLUMN order_id TYPE bigint",
            "ALTER TABLE {table} ALTER COLUMN price TYPE decimal(12, 2)",
            inserted("ordered_on >= date'2024-01-01'"),
        ),
        columns="order_id int, obsolete string, ordered_on date, ordered_at timestamp, who string, price decimal(10, 2)",
        filled=False,
    ),
    "deleted_outside": Foreign(
        f"PARTITIONED BY (months(ordered_on)) {MERGE_ON_READ.format(2)}",
        ("DELETE FROM {table} WHERE ordered_on = date'2024-03-05'",),
    ),
    "deleted_inside": Foreign(
        f"PARTITIONED BY (months(ordered_on)) {MERGE_ON_READ.format(2)}",
        ("DELETE FROM {table} WHERE ordered_on = date'2024-02-05'",),
        refused="publications work on data files without deletes",
    ),
    "third_format": Foreign(
        f"PARTITIONED BY (months(ordered_on)) {MERGE_ON_READ.format(3)}", refused="is of Iceberg's format 3"
    ),
    "without_a_column": Foreign(
        "PARTITIONED BY (months(ordered_on))",
        ("ALTER TABLE {table} DROP COLUMN region",),
        refused="has had another column region",
    ),
}


NOT_SERVED = "without_a_column"
"""A product that declares it is refused by `backfill init`, whole."""


def name_of(how: str) -> str:
    return f"silver.{how}"


def target_of(how: str) -> Any:
    return replace(TARGET, name=name_of(how), model=orders.Bare)


def opened(home: Path) -> Platform:
    targets = tuple(map(target_of, TABLES))
    product = Product("orders", (SOURCE,), targets, code=("benchmarks.orders",))
    home.mkdir(parents=True)
    platform = Platform.of(load_settings(home=home, spark=SPARK, table_folders=[str(home.parent / "lake")]), [product])
    platform.lakehouse.create_catalog()
    return platform


def write(folder: Path) -> None:
    """Have Iceberg's Java library make the tables."""
    rows = [row | {"ordered_on": row["ordered_at"].date()} for row in orders.lines().to_pylist()]
    pq.write_table(
        orders.lines().append_column("ordered_on", [[row["ordered_on"] for row in rows]]), folder / "rows.parquet"
    )
    statements = ["CREATE NAMESPACE ice.silver"]
    for how, table in TABLES.items():
        names = {"table": f"ice.{name_of(how)}", "rows": str(folder / "rows.parquet")}
        statements.append(f"CREATE TABLE {names['table']} ({table.columns}) USING iceberg {table.created}")
        first, *rest = table.statements or ("",)
        done = [first, inserted(), *rest] if table.filled and "ORDERED" in first else [inserted(), *table.statements]
        statements += [one.format(**names) for one in (done if table.filled else table.statements)]
    by_java(folder, statements)


def manifest(how: str, run_id: str, **target: Any) -> Any:
    return manifest_from(
        {
            "runId": run_id,
            "kind": "RESTATEMENT",
            "requestedBy": "ana",
            "reason": "a reason that is long enough",
            "source": {"table": LINES},
            "transform": {"name": "orders", "version": "2.0.0"},
            "target": {"table": name_of(how), "publishRange": {"start": FEBRUARY[0], "end": FEBRUARY[1]}} | target,
            "development": True,
        }
    )


def is_inside(row: dict[str, Any]) -> bool:
    return bool(row["ordered_on"].startswith("2024-02"))


def read(folder: Path, platform: Platform) -> dict[str, list[dict[str, Any]]]:
    locations = {how: platform.lakehouse.table(name_of(how)).metadata_location for how in TABLES}
    return by_java(folder, reads=locations)


def test_tables_of_another_engine_are_restated_for_a_month_or_refused_when_planned(tmp_path: Path) -> None:
    jar()
    write(tmp_path)
    platform = opened(tmp_path / "home")
    platform.lakehouse.catalog.create_namespace_if_not_exists("silver")
    for how in TABLES:
        platform.lakehouse.catalog.register_table(name_of(how), f"file://{metadata_of(tmp_path, name_of(how))}")
    with pytest.raises(Refused) as refused:
        initialise(platform)
    refused_by_init = refused.value.problems
    assert [one.what for one in refused_by_init] == [f"{name_of(NOT_SERVED)} has had another column region (field 5)"]
    serving = [target_of(how) for how in TABLES if how != NOT_SERVED]
    platform = Platform.of(
        load_settings(home=tmp_path / "home", spark=SPARK, table_folders=[str(tmp_path / "lake")]),
        [Product("orders", (SOURCE,), tuple(serving), code=("benchmarks.orders",))],
    )
    initialise(platform)
    platform.lakehouse.append(LINES, [orders.lines()], {LOAD_PROPERTY: "all"})
    world = World(platform, tmp_path / "home")
    before = read(tmp_path, platform)
    published, planned = [], {}
    for how, table in TABLES.items():
        run_id = f"{how.replace('_', '-')}-1"
        if how == NOT_SERVED:
            planned[how] = "; ".join(one.what for one in refused_by_init)
        elif table.refused:
            with pytest.raises(Refused) as refused:
                plan_run(platform, manifest(how, run_id))
            planned[how] = str(refused.value)
        else:
            if table.parted:
                with pytest.raises(Refused, match="may hold days of 2024-02-01 to 2024-02-29 and others"):
                    plan_run(platform, manifest(how, run_id))
                assert split_files(platform, manifest(how, run_id, filesAcrossBorder="SPLIT")).pieces
            world.published(manifest(how, run_id))
            published.append(how)
    assert {
        how: table.refused in planned.get(how, "") for how, table in TABLES.items() if table.refused
    } == dict.fromkeys(planned, True), planned
    after = read(tmp_path, platform)
    for how in TABLES:
        outside = [[row for row in rows if not is_inside(row)] for rows in (before[how], after[how])]
        assert outside[0] == outside[1], how
        assert len(outside[0]) > 1_000, how
        inside = [{row["order_id"]: row for row in rows if is_inside(row)} for rows in (before[how], after[how])]
        if how in published:
            assert {key: round(row["price"] + 1, 2) for key, row in inside[0].items()} == {
                key: row["price"] for key, row in inside[1].items()
            }, how
        else:
            assert inside[0] == inside[1], how
    assert verify(platform, data=True).everything == []
    for how in published:
        rollback(platform, f"{how.replace('_', '-')}-1")
    assert read(tmp_path, platform) == before
    print(f"restated: {', '.join(published)}; refused when planned: {', '.join(planned)}")


SOURCE_COLUMNS = "order_id bigint, customer string, region string, ordered_at timestamp, price decimal(12, 2)"


@pytest.mark.parametrize("version", [2, 3], ids=["position deletes", "deletion vectors"])
def test_rows_that_another_engine_has_deleted_from_a_source_are_not_computed_with(tmp_path: Path, version: int) -> None:
    jar()
    pq.write_table(orders.lines(), tmp_path / "rows.parquet")
    names = "order_id, customer, region, ordered_at, price"
    by_java(
        tmp_path,
        [
            "CREATE NAMESPACE ice.bronze",
            f"CREATE TABLE ice.bronze.order_lines ({SOURCE_COLUMNS}) USING iceberg PARTITIONED BY (months(ordered_at)) "
            + MERGE_ON_READ.format(version),
            f"INSERT INTO ice.bronze.order_lines ({names}) SELECT {names} FROM parquet.`{tmp_path}/rows.parquet`",
            "DELETE FROM ice.bronze.order_lines WHERE order_id % 7 = 3",
            "DELETE FROM ice.bronze.order_lines WHERE customer = 'customer-5' AND ordered_at >= timestamp'2024-02-01'",
        ],
    )
    home = tmp_path / "home"
    platform = orders.opened(home, TARGET, spark=SPARK, table_folders=[str(tmp_path / "lake")])
    platform.lakehouse.catalog.create_namespace_if_not_exists("bronze")
    platform.lakehouse.catalog.register_table(LINES, f"file://{metadata_of(tmp_path, LINES)}")
    initialise(platform)
    deleted = platform.lakehouse.pinned(LINES, platform.lakehouse.snapshot_id(LINES)).deleted
    assert len(deleted) == 4, "each month has rows that are deleted"
    world = World(platform, home)
    world.published(orders.manifest("first", date(2023, 12, 1), date(2024, 3, 31), kind="BACKFILL"))
    left = {
        row["order_id"]: row["price"] + 1
        for row in orders.lines().to_pylist()
        if row["order_id"] % 7 != 3
        and not (row["customer"] == "customer-5" and row["ordered_at"].year == 2024 and row["ordered_at"].month > 1)
    }
    assert {row["order_id"]: row["price"] for row in orders.rows_of(platform)} == left
    assert reproduce(platform, "first").outcome is Outcome.EQUAL


def test_rows_that_another_engine_has_deleted_stay_deleted_in_a_compaction_and_after_it(tmp_path: Path) -> None:
    jar()
    name, run_id = name_of("deleted"), "compact"
    rows = [row["ordered_at"].date() for row in orders.lines().to_pylist()]
    pq.write_table(orders.lines().append_column("ordered_on", [rows]), tmp_path / "rows.parquet")
    names = {"table": f"ice.{name}", "rows": str(tmp_path / "rows.parquet")}
    by_java(
        tmp_path,
        [
            "CREATE NAMESPACE ice.silver",
            f"CREATE TABLE ice.{name} ({COLUMNS}) USING iceberg PARTITIONED BY (months(ordered_on)) "
            + MERGE_ON_READ.format(2),
            *(inserted(f"order_id % 3 = {lot}").format(**names) for lot in range(3)),
            f"DELETE FROM ice.{name} WHERE order_id % 7 = 3",
        ],
    )
    home = tmp_path / "home"
    platform = orders.opened(home, target_of("deleted"), spark=SPARK, table_folders=[str(tmp_path / "lake")])
    platform.lakehouse.catalog.create_namespace_if_not_exists("silver")
    platform.lakehouse.catalog.register_table(name, f"file://{metadata_of(tmp_path, name)}")
    orders.fill(platform)

    def read_now() -> list[dict[str, Any]]:
        return by_java(tmp_path, reads={"now": platform.lakehouse.table(name).metadata_location})["now"]

    before = read_now()
    assert len(before) == 2_000 - 286
    text = {"runId": run_id, "kind": "COMPACTION", "requestedBy": "ana", "reason": "a reason that is long enough"}
    days = {"start": orders.FIRST, "end": orders.LAST}
    contract = manifest_from(text | {"target": {"table": name, "publishRange": days}, "development": True})
    done = World(platform, home).published(contract)
    assert (done.files_added, done.files_removed >= 16) == (4, True)
    assert read_now() == before
    assert platform.lakehouse.pinned(name, platform.lakehouse.snapshot_id(name)).deleted == ()
    assert verify(platform, data=True).everything == []
    rollback(platform, run_id)
    assert platform.lakehouse.pinned(name, platform.lakehouse.snapshot_id(name)).deleted
    assert read_now() == before
    assert verify(platform, data=True).everything == []
