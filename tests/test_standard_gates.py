"""The gates that any target gets by naming them: what they find, and what they are given of the rows that readers see."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date
from html import escape, unescape
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pandera.polars as pa
import polars as pl
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from worlds import SPARK

import backfill_assets as ba
from backfill_assets import decisions
from backfill_assets.audit.explain import explain
from backfill_assets.audit.report import report
from backfill_assets.cli import explain_view
from backfill_assets.cli.command import cli
from backfill_assets.cli.terminal import make_console
from backfill_assets.declarations import finding
from backfill_assets.declarations.tallies import ChunkRows
from backfill_assets.declarations.target import Finding
from backfill_assets.defs.launch import initialise_instance, instance_at
from backfill_assets.defs.staging import asset_key
from backfill_assets.gates import exception_table
from backfill_assets.gates.judging import rows_by_chunk
from backfill_assets.ingestion.table_loads import load_file
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise as make_installation
from backfill_assets.operations.runbook import steps
from backfill_assets.publication.publisher import publish
from backfill_assets.run_context import RunContext
from backfill_assets.ui.run_page import run_page
from benchmarks.small_table import (
    HISTORY,
    SCOPE,
    TARGET,
    closed,
    declared,
    initialise,
    manifest,
    manifest_data,
    opened,
    planned,
    rows,
    serves,
    staged,
)
from manifests.errors import InputRefused, PublicationRefused, TransitionRefused
from manifests.lifecycle import RunState
from manifests.reading import manifest_from
from resources.ledger.facade import RunRecord, Verdict
from resources.settings import load_settings
from resources.spark.chunk_work import ThisProcess

OWNER = "olga@example.org"
CHANGE, RECORDS, TWICE = "change_within_tolerance", "every_entity_is_present", "no_source_row_is_there_twice"


class Readings(pa.DataFrameModel):
    """What meters have said."""

    meter: str = pa.Field()
    read_at: ba.Instant = pa.Field()
    energy: pl.Int64 = pa.Field(ge=0)


class Daily(ba.Published):
    """What a meter has said on a day, added up."""

    meter: str = pa.Field(description="The meter.")
    day: date = pa.Field(description="The day.")
    energy: pl.Int64 = pa.Field(description="Of that day.")


def daily(inputs: ba.Inputs, _context: ba.TransformContext) -> DataFrame:
    by_day = inputs.source.groupBy("meter", F.to_date("read_at").alias("day"))
    return by_day.agg(F.sum("energy").alias("energy"))


def energy(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(pl.col("energy").sum())


READ = ba.InputTable("bronze.readings", "What meters have said.", Readings, ("team:metering",), partition_by="read_at")
METERED = ba.TargetTable(
    name="silver.daily",
    description="A row a meter and day.",
    model=Daily,
    key=("meter", "day"),
    day_column="day",
    chunking=ba.Chunking.MONTH,
    chunks_from="2020-01",
    chunks_until="2020-12",
    source=READ.name,
    source_time_column="read_at",
    transform="daily",
    versions={"1": ba.TransformVersion(daily)},
    owners=(OWNER,),
    measure=energy,
    reconciliations=(ba.change_gate(), ba.record_gate(("meter",)), ba.duplicate_gate(("meter", "read_at"))),
)
MONTHS = ("2020-01", "2020-02", "2020-03")
_Sums = Mapping[str, int | str]


def judged(
    before: Mapping[str, tuple[int, list[_Sums]]],
    after: Mapping[str, tuple[int, list[_Sums]]],
    gate: ba.Reconciliation | None = None,
    **tolerances: float,
) -> Finding:
    gate = gate or ba.change_gate()
    found = ba.ReconciliationContext(
        transform=cast("Any", None),
        source=cast("Any", None),
        source_rows=0,
        source_last_day=cast("Any", None),
        staged=cast("Any", None),
        measures=[],
        after=[{"chunk": month} | dict(row) for month, (_, measured) in after.items() for row in measured],
        accepted={month: list(before[month][1]) if month in before else None for month in after},
        tolerances=dict(gate.tolerances) | tolerances,
        shared=cast("Any", None),
        rows=lambda: {month: ChunkRows(before.get(month, (0, []))[0], count) for month, (count, _) in after.items()},
    )
    return gate.check(found)


def unmeasured(*counts: int) -> dict[str, tuple[int, list[_Sums]]]:
    return {month: (count, []) for month, count in zip(MONTHS, counts, strict=False)}


def test_a_chunk_without_an_accepted_version_is_not_compared() -> None:
    assert judged({}, unmeasured(100, 5)).passed
    found = judged(unmeasured(100), unmeasured(101, 5))
    assert (found.passed, found.compared) == (True, 1)


def test_a_chunk_whose_rows_double_is_named_however_many_others_stay() -> None:
    found = judged(unmeasured(100, 1000, 1000), unmeasured(200, 1000, 1000))
    assert (found.passed, found.asks, found.compared, found.disagreeing) == (False, False, 3, 1)
    assert [dict(one) for one in found.slices] == [
        {"chunk": "2020-01", "measure": "rows", "accepted": 100, "staged": 200, "change": "+100.00%"}
    ]
    assert found.summary == "rows 2,100 -> 2,200; 1 of 3 chunks changed by more than 20%"


def test_a_change_as_large_as_the_tolerance_passes_and_the_manifest_says_how_large_that_is() -> None:
    assert judged(unmeasured(100), unmeasured(80)).passed
    assert not judged(unmeasured(100), unmeasured(79)).passed
    assert judged(unmeasured(100), unmeasured(50), change_percent=50.0).passed
    assert not judged(unmeasured(100), unmeasured(98), ba.change_gate(percent=1.0)).passed


def test_a_chunk_that_loses_or_gains_all_its_rows_does_not_pass() -> None:
    assert not judged(unmeasured(100), unmeasured(0)).passed
    assert not judged(unmeasured(0), unmeasured(100)).passed
    assert judged(unmeasured(0), unmeasured(0)).passed


def test_sums_of_a_chunk_are_added_over_its_slices_and_compared_as_its_rows_are() -> None:
    before: dict[str, tuple[int, list[_Sums]]] = {
        "2020-01": (10, [{"city": "Rome", "energy": 60}, {"city": "Oslo", "energy": 40}])
    }
    moved: dict[str, tuple[int, list[_Sums]]] = {
        "2020-01": (10, [{"city": "Rome", "energy": 40}, {"city": "Oslo", "energy": 60}])
    }
    doubled: dict[str, tuple[int, list[_Sums]]] = {"2020-01": (10, [{"city": "Rome", "energy": 200}])}
    assert judged(before, moved).passed
    assert [(one["measure"], one["staged"]) for one in judged(before, doubled).slices] == [("energy", 200)]


def test_a_sum_that_the_accepted_version_was_not_measured_by_is_not_compared() -> None:
    assert judged(unmeasured(10), {"2020-01": (10, [{"energy": 100}])}).passed


def test_a_sum_is_compared_in_the_chunks_that_were_accepted_with_it() -> None:
    before: dict[str, tuple[int, list[_Sums]]] = {
        "2020-01": (10, [{"energy": 100}]),
        "2020-02": (10, []),
        "2020-03": (0, []),
    }
    after: dict[str, tuple[int, list[_Sums]]] = {
        "2020-01": (10, [{"energy": 100}]),
        "2020-02": (10, [{"energy": 50}]),
        "2020-03": (0, []),
    }
    found = judged(before, after)
    assert (found.passed, found.summary) == (
        True,
        "energy 100 -> 100; rows 20 -> 20; 0 of 3 chunks changed by more than 20%",
    )
    first = judged(before, after | {"2020-03": (1, [{"energy": 7}])})
    assert [(one["chunk"], one["measure"], one["change"]) for one in first.slices] == [
        ("2020-03", "energy", "from nothing"),
        ("2020-03", "rows", "from nothing"),
    ]


def test_an_owner_is_asked_where_the_gate_was_declared_so() -> None:
    asking = ba.change_gate(asks=True)
    assert judged(unmeasured(100), unmeasured(200), asking).asks
    assert not judged(unmeasured(100), unmeasured(100), asking).asks


def test_a_target_has_the_tolerance_of_the_gate_it_names_and_may_set_another() -> None:
    target = replace(TARGET, reconciliations=(ba.change_gate(),))
    assert dict(target.contract({}).tolerances) == {"change_percent": 20.0}
    assert dict(replace(target, tolerances={"change_percent": 3.0}).contract({}).tolerances) == {"change_percent": 3.0}


def test_rows_by_chunk_are_those_that_readers_see_before_and_after(tmp_path: Path) -> None:
    with declared():
        platform = opened(tmp_path / "home")
        initialise(platform)
        for run_id, mode, scope, options in (
            ("history", "REPLACE_PARTITIONS", HISTORY, {"computed_by": "1"}),
            ("replaced", "REPLACE_PARTITIONS", SCOPE, {}),
            ("merged", "MERGE_BY_KEY", HISTORY, {"merge": {"entities": ["m1"]}}),
        ):
            before = months(rows(platform))
            record = staged(platform, planned(platform, manifest(run_id, mode, scope, **options)).run_id)
            found = rows_by_chunk(RunContext(platform, TARGET, record.plan), platform.ledger.chunks(run_id))
            publish(platform, run_id)
            after = months(rows(platform))
            assert found == {key: ChunkRows(before.get(key, 0), after.get(key, 0)) for key in found}
            assert {key for key in after if after[key] != before.get(key, 0)} <= set(found)
        assert before != after
        closed(platform)


def months(found: list[tuple[Any, ...]]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for row in found:
        counted[str(row[1])[:7]] = counted.get(str(row[1])[:7], 0) + 1
    return counted


# --- through the gates of a run ---------------------------------------------------------------------------------------


def naming(monkeypatch: pytest.MonkeyPatch, *gates: ba.Reconciliation) -> None:
    """Have the target name these gates."""
    target = replace(METERED, reconciliations=gates or METERED.reconciliations)
    monkeypatch.setattr(finding, "find_products", serves(ba.Product("metering", (READ,), (target,))))


@pytest.fixture
def metering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """An installation of that target, with readings of two months that are loaded and published."""
    naming(monkeypatch)
    monkeypatch.setattr(Platform, "workers", ThisProcess())  # Spark's workers do not import what a test declares
    platform = Platform.of(load_settings(home=tmp_path / "home", spark=SPARK))
    make_installation(platform)
    load(platform, tmp_path / "first.csv", range(1, 3))
    assert ran(platform, "first").state is RunState.VALIDATED
    assert {one.gate: one.passed for one in verdicts(platform, "first")} == dict.fromkeys(
        [CHANGE, RECORDS, TWICE], True
    )
    publish(platform, "first")
    return platform


def load(platform: Platform, file: Path, months: Iterable[int], meters: Iterable[str] = ("m1", "m2")) -> None:
    lines = [
        f"{meter},2020-{month:02}-{day:02}T06:00:00Z,{day}" for month in months for meter in meters for day in (3, 4)
    ]
    file.write_text("\n".join(["meter,read_at,energy", *lines, ""]))
    assert load_file(platform, READ.name, file).load.rows == len(lines)


def ran(platform: Platform, run_id: str) -> RunRecord:
    """Plan, approve, compute and judge a run over the two months, as `backfill run` does."""
    contract = manifest_data(run_id, "REPLACE_PARTITIONS", ("2020-01-01", "2020-02-29"), computed_by="1")
    contract["source"] = {"table": READ.name}
    contract["transform"]["name"] = METERED.transform
    contract["target"]["table"] = METERED.name
    return staged(platform, planned(platform, manifest_from(contract)).run_id)


def verdicts(platform: Platform, run_id: str) -> list[Verdict]:
    return [one for one in platform.ledger.verdicts(run_id) if one.gate in {CHANGE, RECORDS, TWICE}]


def test_a_load_that_is_doubled_fails_its_run_by_the_change_and_by_the_duplicates(
    metering: Platform, tmp_path: Path
) -> None:
    load(metering, tmp_path / "once-more.csv", [2], ["m2", "m1"])
    record = ran(metering, "doubled")
    assert (record.state, record.state_reason) == (RunState.FAILED, f"gate(s) not passed: {CHANGE}, {TWICE}")
    found = {one.gate: one for one in verdicts(metering, "doubled")}
    assert {gate: (one.passed, one.asks) for gate, one in found.items()} == {
        CHANGE: (False, False),
        RECORDS: (True, False),
        TWICE: (False, False),
    }
    assert found[CHANGE].details["slices"] == [
        {"chunk": "2020-02", "measure": "energy", "accepted": 14, "staged": 28, "change": "+100.00%"}
    ]
    assert (found[TWICE].details["compared"], found[TWICE].details["disagreeing"]) == (8, 4)
    kept = found[TWICE].details["exceptions"]
    listed = exception_table.rows(metering, "doubled", {TWICE: kept["judgement"]}, 10)
    assert [json.loads(one["key"])["meter"] for one in listed] == ["m1", "m1", "m2", "m2"]
    assert {one["what"] for one in listed} == {"the source has it more than once"}
    with pytest.raises(PublicationRefused, match=CHANGE):
        publish(metering, "doubled")


def test_a_change_that_asks_leaves_its_run_waiting_for_an_owner_who_may_accept_it(
    metering: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    naming(monkeypatch, ba.change_gate(asks=True), ba.record_gate(("meter",)))
    load(metering, tmp_path / "once-more.csv", [2], ["m2", "m1"])
    record = ran(metering, "asked")
    waits = f"waits for an owner: {CHANGE} (`backfill accept-change asked --gate {CHANGE} --reason WHY`)"
    assert (record.state, record.state_reason) == (RunState.STAGED, waits)
    assert {one.gate: (one.passed, one.asks) for one in verdicts(metering, "asked")} == {
        CHANGE: (False, True),
        RECORDS: (True, False),
    }
    with pytest.raises(PublicationRefused, match="waits for an owner"):
        publish(metering, "asked")
    assert staged(metering, "asked").state_reason == waits, "judged again it still waits"
    why = "meters were read twice"
    with pytest.raises(InputRefused, match=f"'{RECORDS}' of 'asked' does not ask for an owner"):
        decisions.accept_change(metering, "asked", RECORDS, by=OWNER, reason=why)
    with pytest.raises(TransitionRefused, match=r"'eve' is no owner of silver\.daily"):
        decisions.accept_change(metering, "asked", CHANGE, by="eve", reason=why)
    assert metering.ledger.run("asked").state is RunState.STAGED
    initialise_instance(metering.settings)
    monkeypatch.setenv("BACKFILL_HOME", str(metering.settings.home))
    said = ["--gate", CHANGE, "--by", OWNER, "--reason", why]
    done = CliRunner().invoke(cli, ["accept-change", "asked", *said], catch_exceptions=False)
    assert (done.exit_code, done.stderr) == (0, ""), "Dagster was told"
    assert metering.ledger.run("asked").state is RunState.VALIDATED
    with instance_at(metering.settings) as instance:
        check = dg.AssetCheckKey(asset_key(METERED.name), CHANGE)
        (newest,) = instance.event_log_storage.get_asset_check_execution_history(check, limit=1)
    assert newest.status.value == "SUCCEEDED"
    assert newest.event is not None
    told = newest.event.get_dagster_event().asset_check_evaluation_data
    assert told.description is not None
    assert told.description.startswith(f"accepted by {OWNER}")
    assert publish(metering, "asked").new


def test_what_an_owner_has_accepted_is_said_wherever_its_run_is_shown(
    metering: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    naming(monkeypatch, ba.change_gate(asks=True), ba.record_gate(("meter",)))
    load(metering, tmp_path / "once-more.csv", [2], ["m2", "m1"])
    ran(metering, "asked")
    why = "resends fall <away>"
    decisions.accept_change(metering, "asked", CHANGE, by=OWNER, reason=why)
    publish(metering, "asked")
    accepted = f"not passed, accepted by {OWNER}: {why}"

    page = " ".join(unescape(re.sub("<[^>]*>", " ", report(metering, "asked"))).split())
    of = len(metering.ledger.run("asked").plan.gates)
    assert f"{of - 1} of {of} passed, 1 accepted by an owner" in page
    assert accepted.replace("<away>", "&lt;away&gt;") in report(metering, "asked")
    assert "NOT PASSED" not in page
    assert f"what {CHANGE} found accepted by {OWNER}" in page

    record = metering.ledger.run("asked")
    shown = bytes(run_page(metering.ledger, metering.evidence, record, (), None).body).decode()
    assert f"<td>{escape(accepted)}<td>" in shown
    assert "not passed</b>" not in shown
    assert f"<td>decided: accepted {CHANGE}<td>{OWNER}<td>" in shown

    told = {one.title: one for one in steps(metering, "asked")}
    assert any(one.startswith(f"{CHANGE} {accepted}: ") for one in told["Judge"].facts)
    assert any(one.startswith(f"ACCEPTED {CHANGE} by {OWNER}") for one in told["Approve"].facts)

    rows = metering.lakehouse.table(METERED.name).scan().to_arrow().to_pylist()
    row = next(one for one in rows if one["run_id"] == "asked")
    found = explain(metering, METERED.name, [f"meter={row['meter']},day={row['day']}"])
    assert found.producer is not None
    assert [one["gate"] for one in found.producer.gates] == ["chunk_rules", *record.plan.gates], "in the plan's order"
    assert {one["accepted"] for one in found.producer.gates if one["gate"] == CHANGE} == {f"accepted by {OWNER}: {why}"}
    assert (f"ACCEPTED {CHANGE}", OWNER, why) in {
        (one["decision"], one["decided_by"], one["comment"]) for one in found.producer.decisions
    }
    terminal = make_console()
    terminal.width = 400
    with terminal.capture() as capture:
        terminal.print(explain_view.shown(found))
    assert accepted in capture.get()


def test_a_change_that_asks_is_no_way_round_a_gate_that_does_not(
    metering: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    naming(monkeypatch, ba.change_gate(asks=True), ba.duplicate_gate(("meter", "read_at")))
    load(metering, tmp_path / "once-more.csv", [2], ["m2", "m1"])
    record = ran(metering, "both")
    assert record.state is RunState.FAILED
    assert TWICE in record.state_reason
