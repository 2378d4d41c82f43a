"""Tables into which DuckDB has written: restated for a part of their days, parted first where files reach across its border.

What lies outside the days of a run is read by DuckDB before and after, and is the same.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from duckdb_engine import by_duckdb, packages, rest_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import parse_transform
from worlds import SPARK, World

from backfill_assets.audit.verification import verify
from backfill_assets.declarations.product import Product
from backfill_assets.declarations.schema import TABLE_PROPERTIES, iceberg_schema
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.operations.splitting import split_files
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.undoing import rollback
from benchmarks import orders
from benchmarks.orders import LINES, SOURCE, TARGET
from manifests.errors import InputRefused, PlanRefused
from manifests.reading import manifest_from
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.settings import load_settings

pytestmark = pytest.mark.exhaustive  # what it needs is fetched from a package registry

TABLES: dict[str, tuple[tuple[str, str], ...]] = {
    "months": (("ordered_on", "month"),),
    "regions": (("region", "identity"), ("ordered_on", "year")),
    "one_file": (),
    "deleted_outside": (("ordered_on", "month"),),
    "deleted_inside": (("ordered_on", "month"),),
}
PARTED = ("regions", "one_file")
REFUSED = ("deleted_inside",)


def opened(home: Path) -> Platform:
    targets = tuple(replace(TARGET, name=f"silver.{how}", model=orders.Bare) for how in TABLES)
    home.mkdir(parents=True)
    product = Product("orders", (SOURCE,), targets, code=("benchmarks.orders",))
    platform = Platform.of(load_settings(home=home, spark=SPARK), [product])
    platform.lakehouse.create_catalog()
    return platform


def manifest(how: str, **target: Any) -> Any:
    days = {"start": date(2024, 2, 1), "end": date(2024, 2, 29)}
    return manifest_from(
        {
            "runId": f"{how.replace('_', '-')}-1",
            "kind": "RESTATEMENT",
            "requestedBy": "ana",
            "reason": "a reason that is long enough",
            "source": {"table": LINES},
            "transform": {"name": "orders", "version": "2.0.0"},
            "target": {"table": f"silver.{how}", "publishRange": days} | target,
            "development": True,
        }
    )


def test_tables_of_duckdb_are_restated_for_a_month_or_refused_when_planned(tmp_path: Path) -> None:
    packages()
    platform = opened(tmp_path / "home")
    catalog, schema = platform.lakehouse.catalog, iceberg_schema(orders.Bare)
    catalog.create_namespace_if_not_exists("silver")
    for how, parts in TABLES.items():
        fields = [
            PartitionField(schema.find_field(column).field_id, 1000 + place, parse_transform(kind), f"part_{place}")
            for place, (column, kind) in enumerate(parts)
        ]
        catalog.create_table(
            f"silver.{how}", schema, partition_spec=PartitionSpec(*fields), properties=dict(TABLE_PROPERTIES)
        )
    pq.write_table(orders.lines(), tmp_path / "lines.parquet")
    rows = "order_id, CAST(ordered_at AS DATE), ordered_at, customer, region, price"
    everything = {how: f"SELECT * FROM ice.silver.{how} ORDER BY order_id" for how in TABLES}
    with rest_catalog(catalog) as endpoint:
        by_duckdb(
            endpoint,
            [f"INSERT INTO ice.silver.{how} SELECT {rows} FROM '{tmp_path}/lines.parquet'" for how in TABLES]
            + [
                "DELETE FROM ice.silver.deleted_outside WHERE ordered_on = DATE '2024-03-05'",
                "DELETE FROM ice.silver.deleted_inside WHERE ordered_on = DATE '2024-02-05'",
            ],
        )
        initialise(platform)
        platform.lakehouse.append(LINES, [orders.lines()], {LOAD_PROPERTY: "all"})
        before = by_duckdb(endpoint, queries=everything)
        world = World(platform, tmp_path / "home")
        for how in PARTED:
            with pytest.raises(PlanRefused, match="may hold days of 2024-02-01 to 2024-02-29 and others"):
                plan_run(platform, manifest(how))
            assert split_files(platform, manifest(how, filesAcrossBorder="SPLIT")).pieces
        assert by_duckdb(endpoint, queries=everything) == before
        with pytest.raises(InputRefused, match="publications work on data files without deletes"):
            plan_run(platform, manifest("deleted_inside"))
        for how in TABLES:
            if how not in REFUSED:
                world.published(manifest(how))
        after = by_duckdb(endpoint, queries=everything)
        for how in TABLES:
            inside, outside = (
                [row for row in before[how] if (row[1][:7] == "2024-02") is own] for own in (True, False)
            )
            assert [row for row in after[how] if row[1][:7] != "2024-02"] == outside
            assert len(outside) > 1_400
            found = [row for row in after[how] if row[1][:7] == "2024-02"]
            assert len(found) == len(inside)
            if how in REFUSED:
                assert found == inside
            else:
                assert [float(row[5]) for row in found] == [float(row[5]) + 1 for row in inside]
        assert verify(platform, data=True).everything == []
        for how in TABLES:
            if how not in REFUSED:
                rollback(platform, f"{how.replace('_', '-')}-1")
        assert by_duckdb(endpoint, queries=everything) == before
    print(f"restated: {', '.join(sorted(TABLES.keys() - set(REFUSED)))}; refused when planned: {', '.join(REFUSED)}")
