"""Dagster's launch dialog on a divided table: a list of values is launched by the request that the dialog sends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from operators import Server, until
from worlds import SPARK, World

from backfill_assets.defs.launch import initialise_instance
from backfill_assets.defs.staging import partition_key
from backfill_assets.publication.publisher import publish
from benchmarks import customers
from benchmarks.customers import BY_JURISDICTION, CUSTOMERS, manifest, opened, rows_of

ROOT = Path(__file__).parents[1]


def test_a_list_of_values_in_the_second_dimension_is_launched_and_no_other_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = opened(tmp_path / "home", BY_JURISDICTION, spark=SPARK)
    customers.fill(platform)
    initialise_instance(platform.settings)
    world = World(platform, tmp_path / "home")
    record = world.announced(manifest("run"))
    monkeypatch.setenv("BACKFILL_PRODUCTS", json.dumps(["benchmarks.customers:PRODUCT"]))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    chunks = lambda: {one.chunk: str(one.state) for one in platform.ledger.chunks(record.run_id)}  # noqa: E731
    server = Server(world)
    try:
        server.launch(
            CUSTOMERS.replace(".", "/"), [str(partition_key("run", key)) for key in ("CA", "WA")]
        )  # with NY between them
        until("the listed values are computed", lambda: chunks()["CA"] == chunks()["WA"] == "PASSED", 300)
        assert chunks()["NY"] == "PLANNED"
        server.launch(CUSTOMERS.replace(".", "/"), [str(partition_key("run", "NY"))])
        until("the run is whole", lambda: str(platform.ledger.run("run").state) in {"VALIDATED", "PUBLISHED"}, 300)
    finally:
        server.stop()
    publish(platform, "run")
    assert len(rows_of(platform)) == 30
