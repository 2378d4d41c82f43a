"""A transform whose output does not fit the declared columns is refused when it is planned, by whoever asks; and that it was asked shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import functions as F
from worlds import SPARK, World, make_world, with_version

from backfill_assets.cli.command import cli
from backfill_assets.planning.resolve import plan_run, preview
from backfill_assets.products.enforcement.transforms import case_sla_daily
from backfill_assets.staging.checked_output import checked
from manifests.errors import PlanRefused
from manifests.lifecycle import RunState
from manifests.plan import plan_from_json

JANUARY = (date(2010, 1, 1), date(2010, 1, 31))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    home = tmp_path_factory.mktemp("checked") / "home"
    return make_world(home, cases=20, start=date(2010, 1, 1), end=date(2010, 3, 31), gates=["all_chunks_staged"])


def shipped(inputs: Any, context: Any) -> Any:
    return case_sla_daily(inputs, replace(context, version="3.1.0"))


def wrong_types(inputs: Any, context: Any) -> Any:
    rows = shipped(inputs, context)
    return rows.withColumn("days_open", F.col("days_open").cast("double")).withColumn("amount", F.lit("much"))


def other_columns(inputs: Any, context: Any) -> Any:
    return shipped(inputs, context).withColumnRenamed("days_open", "open_days")


def no_such_column(inputs: Any, _context: Any) -> Any:
    return inputs.source.select("metre")


def no_frame(_inputs: Any, _context: Any) -> Any:
    return None


def odd_row(inputs: Any, context: Any) -> Any:
    """Run a job while the frame is built, which a row makes fail."""
    inputs.source.select(F.raise_error(F.lit("an odd row"))).collect()
    return shipped(inputs, context)


WRONG: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "types": (wrong_types, ("returned days_open of silver.case_sla_daily as double", "returned amount of")),
    "columns": (other_columns, ("lacks days_open; has besides open_days",)),
    "unknown": (no_such_column, ("cannot be built: AnalysisException: [UNRESOLVED_COLUMN",)),
    "nothing": (no_frame, ("returned nothing",)),
    "rows": (odd_row, ("cannot be built for 2010-01: ", "an odd row", "test_checked_output.py")),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_an_output_that_does_not_fit_is_refused_when_planned(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    function, said = WRONG[name]
    with_version(monkeypatch, "9.0.0", function)
    manifest = world.manifest(f"wrong-{name}", version="9.0.0", target=world.scope(*JANUARY))
    assert preview(world.platform, manifest).output_checked is False, "without being asked, planning does not know"
    with pytest.raises(PlanRefused) as refused:
        plan_run(world.platform, manifest, checked)
    for text in said:
        assert text in str(refused.value)
    assert "planned under a new run id" not in str(refused.value), "nothing is planned yet"
    assert world.platform.ledger.find(f"wrong-{name}") is None


def test_an_output_that_fits_is_on_record_and_no_job_has_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = world.platform.spark.session(preview(world.platform, world.manifest("looks")).mode).sparkContext
    tracker = jobs.statusTracker()
    jobs.setJobGroup("check", "what the check asks")
    record = plan_run(world.platform, world.manifest("fits", target=world.scope(*JANUARY)), checked)
    assert list(tracker.getJobIdsForGroup("check")) == []
    assert record.plan.output_checked
    assert plan_from_json(record.plan.to_json()).output_checked
    without = preview(world.platform, world.manifest("unasked", target=world.scope(*JANUARY)))
    assert "output_checked" not in json.loads(without.to_json()), "plans on record keep their hashes"
    world.platform.ledger.decide(
        "fits", approve=True, by="bob", comment="", self_approval=False, plan_hash=record.plan_hash
    )
    world.stage(world.platform.ledger.run("fits"))
    assert world.platform.ledger.run("fits").state is RunState.VALIDATED


def test_the_command_asks_and_says_so(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    monkeypatch.setenv("BACKFILL_SPARK", json.dumps(SPARK))
    monkeypatch.setenv("COLUMNS", "200")
    for run_id, options, shown in (
        ("asked", ["--check-transform"], "checked when planned"),
        ("not-asked", [], "not checked: `backfill plan --check-transform`"),
    ):
        file = tmp_path / f"{run_id}.json"
        file.write_text(world.manifest(run_id, target=world.scope(*JANUARY)).canonical())
        done = CliRunner().invoke(cli, ["plan", str(file), *options], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert shown in done.output
    for run_id, warned in (("asked", False), ("not-asked", True)):
        done = CliRunner().invoke(cli, ["approve", run_id, "--by", "bob"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert ("was not checked when it was planned" in done.output) is warned
