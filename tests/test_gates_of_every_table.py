"""The gates of `declarations.standard`, through whole runs: computed by Spark, counted by its workers, judged and published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from worlds import SPARK

import backfill_assets as ba
from backfill_assets.declarations import finding
from backfill_assets.ingestion.table_loads import load_file
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise as make_installation
from backfill_assets.publication.publisher import publish
from benchmarks.small_table import manifest_data, planned, serves, staged
from manifests.lifecycle import RunState
from manifests.reading import manifest_from
from resources.ledger.facade import RunRecord, Verdict
from resources.settings import load_settings
from resources.spark.chunk_work import ThisProcess

OWNER = "olga@example.org"


class Figures(pa.DataFrameModel):
    """What a region has reported of a day."""

    region: str = pa.Field()
    reported_at: ba.Instant = pa.Field()
    state: str = pa.Field(nullable=True)
    total: pl.Int64 = pa.Field()


class Regions(pa.DataFrameModel):
    """The regions that there are."""

    region: str = pa.Field()


class Daily(ba.Published):
    """A region and day: its cumulative total, and the state it was reported in."""

    region: str = pa.Field(description="The region.")
    day: date = pa.Field(description="The day.")
    state: str = pa.Field(nullable=True, description="How the figure was reported.")
    total: pl.Int64 = pa.Field(description="Of all days so far.")


def daily(inputs: ba.Inputs, _context: ba.TransformContext) -> DataFrame:
    by_day = inputs.source.groupBy("region", F.to_date("reported_at").alias("day"))
    return by_day.agg(F.max_by("state", "reported_at").alias("state"), F.max_by("total", "reported_at").alias("total"))


READ = ba.InputTable("bronze.figures", "Reports.", Figures, ("team:health",), partition_by="reported_at")
REGIONS = ba.InputTable("reference.regions", "Regions.", Regions, ("team:health",), is_reference=True)
REPORTED = ba.TargetTable(
    name="silver.reported",
    description="A row a region and day.",
    model=Daily,
    key=("region", "day"),
    day_column="day",
    chunking=ba.Chunking.MONTH,
    chunks_from="2020-01",
    chunks_until="2020-12",
    source=READ.name,
    source_time_column="reported_at",
    references=(REGIONS.name,),
    transform="daily",
    versions={"1": ba.TransformVersion(daily)},
    owners=(OWNER,),
    entity="region",
)
COUNTED = (
    ba.row_count_gate(),
    ba.row_count_gate("as_many_as_reported", against="source", lower=0.0, upper=0.0),
    ba.null_share_gate({"state": 10.0}, by=("region",)),
    ba.enumeration_gate("state", asks=True),
    ba.distribution_gate("state", least_rows=20),
    ba.monotonic_gate("total", by=("region",)),
    ba.reference_gate(("region",), REGIONS.name),
)


def naming(monkeypatch: pytest.MonkeyPatch, *gates: ba.Reconciliation) -> None:
    """Have the target name these gates."""
    target = replace(REPORTED, reconciliations=gates)
    monkeypatch.setattr(finding, "find_products", serves(ba.Product("health", (READ, REGIONS), (target,))))


@pytest.fixture
def health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """An installation of that target, whose January and February are published, without a gate of its own."""
    naming(monkeypatch)
    monkeypatch.setattr(Platform, "workers", ThisProcess())  # Spark's workers do not import what a test declares
    platform = Platform.of(load_settings(home=tmp_path / "home", spark=SPARK))
    make_installation(platform)
    (tmp_path / "regions.csv").write_text("region\nLombardia\nVeneto\n")
    load_file(platform, REGIONS.name, tmp_path / "regions.csv", version="1")
    load(platform, tmp_path / "first.csv", reports(range(1, 3)))
    ran(platform, "first")
    publish(platform, "first")
    return platform


def reports(months: Iterable[int], regions: Iterable[str] = ("Lombardia", "Veneto")) -> list[dict[str, Any]]:
    """Return a report a region and day of 28 days of each month; totals rise by ten a day."""
    return [
        {
            "region": region,
            "at": f"2020-{month:02}-{day:02}T17:00:00Z",
            "state": "FINAL",
            "total": 10 * (28 * month + day),
        }
        for region in regions
        for month in months
        for day in range(1, 29)
    ]


def load(platform: Platform, file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    lines = [f"{one['region']},{one['at']},{one['state'] or ''},{one['total']}" for one in rows]
    file.write_text("\n".join(["region,reported_at,state,total", *lines, ""]))
    assert load_file(platform, READ.name, file).load.rows == len(lines)


def ran(
    platform: Platform, run_id: str, days: tuple[str, str] = ("2020-01-01", "2020-02-29"), **options: Any
) -> RunRecord:
    """Plan, approve, compute and judge a run over some days, as `backfill run` does."""
    mode = options.pop("mode", "REPLACE_PARTITIONS")
    contract = manifest_data(run_id, mode, days, computed_by="1", **options)
    contract["source"] = {"table": READ.name}
    contract["transform"]["name"] = REPORTED.transform
    contract["target"]["table"] = REPORTED.name
    return staged(platform, planned(platform, manifest_from(contract)).run_id)


def verdicts(platform: Platform, run_id: str) -> dict[str, Verdict]:
    return {one.gate: one for one in platform.ledger.verdicts(run_id) if not one.chunk}


def own(platform: Platform, run_id: str) -> dict[str, tuple[bool, bool]]:
    """Whether each gate of the product passed, and whether it asks."""
    names = {gate.name for gate in platform.products.target(REPORTED.name).reconciliations}
    return {gate: (one.passed, one.asks) for gate, one in verdicts(platform, run_id).items() if gate in names}


def test_gates_that_are_new_compare_with_what_was_accepted_before_anybody_counted_it(
    health: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    naming(monkeypatch, *COUNTED)
    record = ran(health, "again")
    assert record.state is RunState.VALIDATED, record.state_reason
    assert {gate: passed for gate, (passed, _) in own(health, "again").items()} == {gate.name: True for gate in COUNTED}
    said = {gate: one.summary for gate, one in verdicts(health, "again").items()}
    assert said["rows_within_bounds"] == "112 rows accepted, 112 now (+0.00%); 0 of 2 chunks beyond the bounds"
    assert said["as_many_as_reported"] == "112 rows in the source, 112 now (+0.00%); 0 of 2 chunks beyond the bounds"
    assert said["total_never_falls"].startswith("110 steps of total from a day to the next by region; 0 fall")
    assert said["state_is_known"] == "0 of 1 values of state are not among the 1 known ones"
    assert said["region_is_in_regions"] == "2 different values of region; 0 of them are not in reference.regions"
    publish(health, "again")
