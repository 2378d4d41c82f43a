"""The gates of `declarations.standard` on a real history of restatements: the regional COVID-19 figures of 2020, as published.

Each is held against plain Polars over the same file: which days fall, what the months add up to, what single days say.
"""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path

import polars as pl
import pytest
from test_gates_of_every_table import READ, REGIONS, exceptions, naming, own, ran, verdicts
from worlds import SPARK

import backfill_assets as ba
from backfill_assets.ingestion.table_loads import load_file
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise as make_installation
from backfill_assets.publication.publisher import publish
from manifests.lifecycle import RunState
from resources.settings import load_settings
from resources.spark.chunk_work import ThisProcess

DAYS = ("2020-02-01", "2020-12-31")


@pytest.fixture(scope="session")
def figures() -> pl.DataFrame:
    """Every version of every regional figure of 2020: region, day, version, total."""
    folder = os.environ.get("BACKFILL_TEST_DATA")
    root = Path(folder) if folder else Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    file = root / "pcm_covid_regioni_all_versions.parquet"
    if not file.is_file():
        pytest.skip(
            "the real regional figures are not here (set BACKFILL_TEST_DATA to their folder): gates are not tried on them"
        )
    rows = pl.read_parquet(file).filter(pl.col("totale_casi").is_not_null(), pl.col("_partition") < "20210101")
    return rows.select(
        region="denominazione_regione",
        day=pl.col("_partition").str.to_date("%Y%m%d"),
        version="_version",
        total=pl.col("totale_casi").cast(pl.Int64),
    )


def load(platform: Platform, file: Path, rows: pl.DataFrame, hour: int) -> None:
    """Load figures as reports of an hour of their day: later ones count instead of earlier ones."""
    at = pl.format("{}T{}:00:00Z", pl.col("day").cast(pl.String), pl.lit(f"{hour:02}"))
    rows.select("region", reported_at=at, state=pl.lit("FINAL"), total="total").write_csv(file)
    load_file(platform, READ.name, file)


def test_the_gates_find_what_plain_polars_finds_in_real_figures(
    figures: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = figures.filter(pl.col("version") == pl.col("version").max().over("day")).sort("region", "day")
    first = figures.filter(pl.col("version") == pl.col("version").min().over("day"))
    # a region that was renamed leaves the rows of its old name beside those of the new one: nothing replaces them
    there = pl.concat([first, last]).unique(["region", "day"], keep="last", maintain_order=True).sort("region", "day")
    steps = there.with_columns(before=pl.col("total").shift().over("region"))
    falls = steps.filter(pl.col("total") < pl.col("before"))
    assert falls.height > 0
    month = pl.col("day").dt.strftime("%Y-%m")
    by_month = last.group_by(month=month, region="region").agg(rows=pl.len(), total=pl.col("total").sum())
    found_by_month = there.group_by(month=month, region="region").agg(rows=pl.len(), total=pl.col("total").sum())
    by_month.sort("month", "region").write_csv(tmp_path / "sums.csv")
    cases = last.sample(200, seed=11).select("region", "day", "total")
    cases.write_csv(tmp_path / "cases.csv")

    naming(monkeypatch)
    monkeypatch.setattr(Platform, "workers", ThisProcess())
    platform = Platform.of(load_settings(home=tmp_path / "home", spark=SPARK))
    make_installation(platform)
    figures.select("region").unique().sort("region").write_csv(tmp_path / "regions.csv")
    load_file(platform, REGIONS.name, tmp_path / "regions.csv", version="1")
    load(platform, tmp_path / "first.csv", first, hour=17)
    ran(platform, "first", DAYS)
    publish(platform, "first")

    load(platform, tmp_path / "last.csv", last, hour=20)
    known = ba.known_keys_gate(str(tmp_path / "cases.csv"))
    sums = ba.checksum_gate(str(tmp_path / "sums.csv"), ("month", "region"), ("total",))
    rows = ba.row_count_gate()
    naming(
        monkeypatch,
        known,
        sums,
        rows,
        ba.monotonic_gate("total", ("region",)),
        ba.reference_gate(("region",), REGIONS.name),
    )
    record = ran(platform, "last", DAYS)
    found = own(platform, "last")
    assert record.state is RunState.FAILED
    said = {gate: one.summary for gate, one in verdicts(platform, "last").items()}
    assert found[known.name] == (True, False), said[known.name]
    assert said[known.name] == "200 known cases compared; 0 come out otherwise"
    differ = found_by_month.join(by_month, ["month", "region", "rows", "total"], "anti").sort("month", "region")
    assert (found[sums.name], differ.height > 0) == ((False, False), True), (
        "rows of renamed regions are twice in the sums"
    )
    slices = [json.loads(one["slice"]) for one in exceptions(platform, "last", sums.name)]
    assert {(one["month"], one["region"]) for one in slices} == set(differ.select("month", "region").iter_rows())
    listed = exceptions(platform, "last", "total_never_falls")
    by_gate = {
        (json.loads(one["slice"])["region"], date.fromisoformat(json.loads(one["key"])["day"])): (
            json.loads(one["expected"])["before"],
            json.loads(one["found"])["figure"],
        )
        for one in listed
    }
    by_hand = {(row["region"], row["day"]): (row["before"], row["total"]) for row in falls.to_dicts()}
    assert by_gate == by_hand
