"""The gates of `declarations.standard`, through whole runs: computed by Spark, counted by its workers, judged and published."""

from __future__ import annotations

import json
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
from backfill_assets import decisions
from backfill_assets.audit.verification import verify
from backfill_assets.declarations import finding
from backfill_assets.gates import exception_table
from backfill_assets.ingestion.table_loads import load_file
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise as make_installation
from backfill_assets.publication.publisher import publish
from backfill_assets.reconciliation.manifest import manifest_of, plan_reconciliation
from backfill_assets.reconciliation.reconcile import reconcile
from benchmarks.small_table import manifest_data, planned, serves, staged
from manifests.errors import PublicationRefused
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
    platform = installed(tmp_path, monkeypatch)
    ran(platform, "first")
    publish(platform, "first")
    return platform


def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *gates: ba.Reconciliation) -> Platform:
    """Return an installation of that target, with these gates and reports of January and February, and no row of it."""
    naming(monkeypatch, *gates)
    monkeypatch.setattr(Platform, "workers", ThisProcess())  # Spark's workers do not import what a test declares
    platform = Platform.of(load_settings(home=tmp_path / "home", spark=SPARK))
    make_installation(platform)
    (tmp_path / "regions.csv").write_text("region\nLombardia\nVeneto\n")
    load_file(platform, REGIONS.name, tmp_path / "regions.csv", version="1")
    load(platform, tmp_path / "first.csv", reports(range(1, 3)))
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
    # from now on what was counted is on record: no file is read for it again
    monkeypatch.setattr("backfill_assets.gates.visible_rows.counting", None)
    assert ran(health, "once-more").state is RunState.VALIDATED
    assert verify(health, ["first", "again"], data=True).everything == []


def corrected(*rows: tuple[str, str, str | None, int]) -> list[dict[str, Any]]:
    """Return reports that come later on their days, and count instead of those of before."""
    return [
        {"region": region, "at": f"{day}T20:00:00Z", "state": state, "total": total}
        for region, day, state, total in rows
    ]


def exceptions(platform: Platform, run_id: str, gate: str) -> list[dict[str, Any]]:
    kept = verdicts(platform, run_id)[gate].details["exceptions"]
    return exception_table.rows(platform, run_id, {gate: kept["judgement"]}, 100)


def test_each_gate_finds_what_it_is_for_and_names_the_rows(
    health: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    naming(monkeypatch, *COUNTED)
    wrong = [
        ("Lombardia", "2020-02-10", "FINAL", 5),
        *(("Veneto", f"2020-02-{day:02}", None, 10 * (56 + day)) for day in range(1, 12)),
        ("Molise", "2020-02-05", "FINEL", 1),
    ]
    load(health, tmp_path / "wrong.csv", corrected(*wrong))
    record = ran(health, "wrong")
    found = own(health, "wrong")
    assert record.state is RunState.FAILED
    assert {gate for gate, (passed, _) in found.items() if passed} == {"rows_within_bounds"}
    said = {gate: one.summary for gate, one in verdicts(health, "wrong").items()}
    assert "125 rows in the source, 113 now (-9.60%); 1 of 2 chunks beyond the bounds" in said["as_many_as_reported"]
    assert "'FINEL'" in said["state_is_known"]
    (fall,) = exceptions(health, "wrong", "total_never_falls")
    assert (json.loads(fall["slice"]), json.loads(fall["key"])) == ({"region": "Lombardia"}, {"day": "2020-02-10"})
    assert json.loads(fall["found"]) == {"figure": 5}
    assert json.loads(fall["expected"]) == {"day_before": "2020-02-09", "before": 650}
    (orphan,) = exceptions(health, "wrong", "region_is_in_regions")
    assert (json.loads(orphan["key"]), orphan["what"]) == (
        {"region": "Molise"},
        "refers to nothing in reference.regions",
    )
    (null,) = exceptions(health, "wrong", "nulls_within_limits")
    assert json.loads(null["slice"]) == {"chunk": "2020-02", "region": "Veneto", "column": "state"}
    assert null["found"] == '{"found":"11 of 28 rows"}'
    with pytest.raises(PublicationRefused, match="total_never_falls"):
        publish(health, "wrong")


def test_a_new_value_waits_for_an_owner_who_may_accept_it(
    health: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    naming(monkeypatch, ba.enumeration_gate("state", asks=True), ba.row_count_gate())
    load(health, tmp_path / "new.csv", corrected(("Veneto", "2020-02-10", "ESTIMATED", 660)))
    record = ran(health, "new")
    assert record.state is RunState.STAGED
    assert record.state_reason.startswith("waits for an owner: state_is_known")
    assert own(health, "new") == {"state_is_known": (False, True), "rows_within_bounds": (True, False)}
    decisions.accept_change(health, "new", "state_is_known", by=OWNER, reason="estimates are new")
    publish(health, "new")
    naming(monkeypatch, ba.enumeration_gate("state"))
    assert own(health, ran(health, "after", ("2020-02-01", "2020-02-29")).run_id) == {"state_is_known": (True, False)}


def test_a_first_load_says_what_there_was_nothing_to_compare_with(
    health: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    naming(monkeypatch, *COUNTED, ba.bounded_change_gate("total", ("region",), rise=5.0))
    load(health, tmp_path / "more.csv", reports([6, 7]))
    ran(health, "more", ("2020-06-01", "2020-07-31"))
    said = {gate: one.summary for gate, one in verdicts(health, "more").items()}
    assert said["rows_within_bounds"] == "no accepted version to compare with"
    assert said["state_is_known"] == "0 of 1 values of state are not among the 1 known ones"  # of January and February
    assert said["total_never_falls"].startswith("110 steps")
    assert own(health, "more")["total_changes_within_bounds"] == (True, False)


def test_the_very_first_run_of_a_table_is_held_against_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = installed(tmp_path, monkeypatch, *COUNTED)
    record = ran(platform, "first")
    assert record.state is RunState.VALIDATED, record.state_reason
    said = {gate: one.summary for gate, one in verdicts(platform, "first").items()}
    assert said["rows_within_bounds"] == "no accepted version to compare with"
    assert said["state_is_known"] == "no accepted version to compare with; state has 1 different values"
    assert said["as_many_as_reported"].startswith("112 rows in the source, 112 now")
    assert said["state_is_distributed_as_before"].startswith("0 of 1 chunks have another distribution")
    assert said["total_never_falls"].startswith("110 steps")


def test_of_a_merge_the_gates_judge_what_readers_would_have(
    health: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cases.csv").write_text(
        "region,day,total,state\nLombardia,2020-02-10,661,FINAL\nVeneto,2020-02-10,1,FINAL\nVeneto,2020-05-10,1,FINAL\n"
    )
    known = ba.known_keys_gate(str(tmp_path / "cases.csv"))
    naming(monkeypatch, *COUNTED, known)
    load(health, tmp_path / "late.csv", corrected(("Lombardia", "2020-02-10", "FINAL", 661)))
    merge = {"entities": ["Lombardia"], "onOlderVersion": "OVERWRITE"}
    record = ran(health, "merged", ("2020-02-01", "2020-02-29"), mode="MERGE_BY_KEY", merge=merge)
    said = {gate: one.summary for gate, one in verdicts(health, "merged").items()}
    assert said["rows_within_bounds"].startswith("56 rows accepted, 56 now")
    assert said["as_many_as_reported"].startswith("29 rows in the source, 28 now (-3.45%)")
    assert said["total_never_falls"].startswith("56 steps of total")  # those of both regions, from January on
    assert said["region_is_in_regions"].startswith("1 different values of region; 0 of them")
    assert said[known.name] == (
        "1 known cases compared; 0 come out otherwise; 1 of other days are not compared; "
        "1 of entities that are not merged are not compared"
    )
    assert record.state is RunState.FAILED  # two reports of a day are one row


def test_known_cases_and_expected_figures_are_held_against_a_run_and_against_what_is_published(
    health: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cases.csv").write_text(
        "region,day,total,state,ticket,absent\n"
        "Lombardia,2020-01-10,380,FINAL,T-1,\n"
        "Veneto,2020-01-10,381,,T-2,\n"
        "Molise,2020-01-10,,,T-3,true\n"
        "Veneto,2020-01-11,,,T-4,true\n"
        "Molise,2020-01-12,1,FINAL,,\n"
        "Veneto,2020-09-10,1,FINAL,,\n"
    )
    (tmp_path / "sums.csv").write_text("chunk,region,rows,total\n2020-01,Lombardia,28,11900\n2020-01,Veneto,28,11901\n")
    known = ba.known_keys_gate(str(tmp_path / "cases.csv"), notes=("ticket",), absent="absent")
    sums = ba.checksum_gate(str(tmp_path / "sums.csv"), ("chunk", "region"), ("total",))
    naming(monkeypatch, known, sums)
    record = ran(health, "held")
    assert record.state is RunState.FAILED
    said = {gate: one.summary for gate, one in verdicts(health, "held").items()}
    assert said[known.name].startswith(
        "5 known cases compared; 3 come out otherwise: those of lines 3, 5, 6; 1 of other days"
    )
    assert said[sums.name] == "2 slices by chunk and region compared; 1 differ; nothing is expected of 2020-02"
    rows = {
        json.loads(one["key"])["region"] + json.loads(one["key"])["day"]: one
        for one in exceptions(health, "held", known.name)
    }
    assert rows["Veneto2020-01-10"]["what"] == "total, state differ; ticket T-2; line 3"
    assert json.loads(rows["Veneto2020-01-10"]["expected"]) == {"total": 381, "state": None}
    assert json.loads(rows["Veneto2020-01-10"]["found"]) == {"total": 380, "state": "FINAL"}
    assert rows["Veneto2020-01-11"]["what"] == "it is there, and must not be; ticket T-4; line 5"
    assert rows["Molise2020-01-12"]["what"] == "it is not there; line 6"
    (sum_,) = exceptions(health, "held", sums.name)
    assert (json.loads(sum_["expected"]), json.loads(sum_["found"])) == (
        {"expected": "11901"},
        {"found": "11900"},
    )

    naming(monkeypatch, *COUNTED, known, sums)
    manifest = manifest_of(health, health.products.target(REPORTED.name))
    published = plan_reconciliation(health, manifest).run_id
    found = {one.gate: (one.passed, one.summary) for one in reconcile(health, published)}
    assert found[known.name] == (False, said[known.name])
    assert found[sums.name] == (False, said[sums.name])
    assert {gate for gate, (passed, _) in found.items() if not passed} == {known.name, sums.name}
    assert not {"rows_within_bounds", "state_is_known"} & found.keys(), "what is published has not changed"
