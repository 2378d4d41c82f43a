"""What is published, held against its source: disagreement is named by slice and listed row by row, and nothing else changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import polars as pl
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JJavaError
from pyiceberg.expressions import AlwaysTrue, And, EqualTo, GreaterThanOrEqual, LessThanOrEqual
from pyspark.sql import functions as F
from worlds import SPARK, TARGET, World, declare, killed_at, make_world, with_version

from backfill_assets.cli.command import cli
from backfill_assets.cli.reconciliation import sparkline
from backfill_assets.declarations.reconciliations import Entities, keys, record_level, state_level
from backfill_assets.declarations.schedules import ReconciliationPolicy
from backfill_assets.declarations.standard_gates import change_gate, duplicate_gate, record_gate
from backfill_assets.declarations.target import (
    ACCEPTED_ROWS_GATE,
    EXCEPTION_COLUMNS,
    PUBLISHED_RULES_GATE,
    Finding,
    ReconciliationContext,
)
from backfill_assets.defs.build import build_definitions
from backfill_assets.defs.reconciliation_job import reconciled_asset, reconciliation_job
from backfill_assets.defs.spark_by_mode import spark_resources
from backfill_assets.defs.staging import asset_key
from backfill_assets.gates import exception_table
from backfill_assets.gates.exception_table import EXCEPTIONS_TABLE
from backfill_assets.gates.judging import reconciliation_context
from backfill_assets.products.enforcement import CASE_SLA_DAILY, reconciliations
from backfill_assets.products.enforcement.reconciliations import CLOCKS
from backfill_assets.products.enforcement.transforms import case_sla_daily
from backfill_assets.publication.publisher import publish
from backfill_assets.reconciliation.drift import readings, series
from backfill_assets.reconciliation.manifest import manifest_of, plan_reconciliation
from backfill_assets.reconciliation.reconcile import reconcile
from backfill_assets.run_context import RunContext
from backfill_assets.staging.raised import finding_of
from backfill_assets.worker.changed_rows import Concealed
from manifests.errors import InputRefused, PublicationRefused, TransitionRefused
from manifests.lifecycle import RunState
from manifests.model import DayRange, Mode
from resources.ledger.facade import ChunkState, RunRecord, Verdict
from resources.policies import hashes_of

pytestmark = pytest.mark.matrix

START, END = date(2010, 1, 1), date(2010, 4, 30)
STARTED, TOTALS, PENALTIES = "every_started_case_is_present", "breach_totals_agree", "payment_breaches_are_penalties"
GATES = (PUBLISHED_RULES_GATE, ACCEPTED_ROWS_GATE, STARTED, TOTALS, PENALTIES)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A published history of four months."""
    world = make_world(tmp_path_factory.mktemp("reconciled") / "home", cases=80, start=START, end=END)
    world.published(world.manifest("history"))
    return world


@contextmanager
def broken(world: World, how: Any) -> Iterator[None]:
    """Somebody else writes into the published table; afterwards it is as it was."""
    lakehouse = world.platform.lakehouse
    before = lakehouse.snapshot_id(TARGET)
    assert before is not None
    how(lakehouse.table(TARGET))
    try:
        yield
    finally:
        lakehouse.point(TARGET, expected={}, branches={"main": before})


def reconciled(world: World, **how: Any) -> tuple[RunRecord, dict[str, Verdict]]:
    record = plan_reconciliation(world.platform, manifest_of(world.platform, CASE_SLA_DAILY, **how))
    verdicts = reconcile(world.platform, record.run_id)
    return world.platform.ledger.run(record.run_id), {verdict.gate: verdict for verdict in verdicts}


def failed(verdicts: Mapping[str, Verdict]) -> set[str]:
    return {gate for gate, verdict in verdicts.items() if not verdict.passed}


def kept(world: World, run_id: str) -> pl.DataFrame:
    rows = world.platform.lakehouse.table(EXCEPTIONS_TABLE).scan(row_filter=EqualTo("run_id", run_id)).to_arrow()
    return cast("pl.DataFrame", pl.from_arrow(rows))


def a_breach(world: World) -> dict[str, Any]:
    """A case whose PAYMENT clock starts and is breached within the published days."""
    breaches = world.rows().filter((pl.col("sla_state") == "BREACHED") & (pl.col("clock") == "PAYMENT"))
    return breaches.filter(pl.col("started_on") >= START).row(0, named=True)


def without(case: str) -> Any:
    return lambda table: table.delete(EqualTo("case_id", case))


def with_amount(row: Mapping[str, Any], amount: Decimal) -> Any:
    """Write the chunk of a row again, with another amount in that row."""

    def write(table: Any) -> None:
        month = row["business_date"].replace(day=1)
        last = pl.Series([month]).dt.month_end()[0]
        scope = And(
            GreaterThanOrEqual("business_date", month.isoformat()), LessThanOrEqual("business_date", last.isoformat())
        )
        rows = cast("pl.DataFrame", pl.from_arrow(table.scan(row_filter=scope).to_arrow()))
        is_it = (
            (pl.col("case_id") == row["case_id"])
            & (pl.col("clock") == row["clock"])
            & (pl.col("business_date") == row["business_date"])
        )
        other = rows.with_columns(
            pl.when(is_it).then(pl.lit(amount)).otherwise("amount").cast(rows["amount"].dtype).alias("amount")
        )
        table.overwrite(other.to_arrow().cast(table.schema().as_arrow()), overwrite_filter=scope)

    return write


# --- reconciling what is published ------------------------------------------------------------------------------------


def test_a_clean_table_passes_and_nothing_is_changed(world: World) -> None:
    snapshots, accepted = world.snapshots(), world.platform.ledger.accepted(TARGET)
    record, verdicts = reconciled(world)

    assert record.state is RunState.VALIDATED, record.state_reason
    assert tuple(verdicts) == GATES
    assert failed(verdicts) == set()
    assert verdicts[ACCEPTED_ROWS_GATE].summary == "4 of 4 published chunks hold the accepted rows"
    assert verdicts[STARTED].details["compared"] > 0
    assert (record.kind, record.mode) == ("RECONCILIATION", "RECONCILIATION")
    (approval,) = world.platform.ledger.approvals(record.run_id)
    assert approval.decided_by == "policy:reconciliation"
    chunks = world.platform.ledger.chunks(record.run_id)
    assert {chunk.state for chunk in chunks} == {ChunkState.PASSED}
    assert [chunk.files for chunk in chunks] == [()] * 4
    assert world.digests(record.run_id) == world.digests("history")
    assert (world.snapshots(), world.platform.ledger.accepted(TARGET)) == (snapshots, accepted)
    assert not list(Path(world.home, "warehouse").rglob(f"*{record.run_id}*"))


def test_a_removed_case_is_named_by_every_level_and_listed_row_by_row(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    breach = a_breach(world)
    rows = world.rows().filter(pl.col("case_id") == breach["case_id"])
    month = breach["breach_on"].strftime("%Y-%m")
    with broken(world, without(breach["case_id"])):
        record = plan_reconciliation(world.platform, manifest_of(world.platform, CASE_SLA_DAILY))
        with killed_at("gating.run_judged", monkeypatch):
            reconcile(world.platform, record.run_id)
        once = kept(world, record.run_id)
        verdicts = {verdict.gate: verdict for verdict in reconcile(world.platform, record.run_id)}
        again = reconcile(world.platform, record.run_id)

    found = world.platform.ledger.run(record.run_id)
    assert failed(verdicts) == {ACCEPTED_ROWS_GATE, STARTED, TOTALS}
    assert found.state is RunState.FAILED
    assert STARTED in found.state_reason
    assert [verdict.passed for verdict in again] == [verdict.passed for verdict in verdicts.values()]
    listed = kept(world, record.run_id)
    assert listed.equals(once), "judged again, nothing is listed twice"

    lost = listed.filter(pl.col("gate") == ACCEPTED_ROWS_GATE)
    assert set(lost["what"]) == {"an accepted row is missing"}
    assert lost.height == rows.height
    assert {json.loads(key)["case_id"] for key in lost["key"]} == {breach["case_id"]}
    started = verdicts[STARTED].details
    assert [(one["jurisdiction"], one["wrong"]) for one in started["slices"]] == [
        (breach["jurisdiction"], rows.filter(pl.col("business_date") == pl.col("started_on")).height)
    ]
    assert started["disagreeing"] == started["wrong"] == listed.filter(pl.col("gate") == STARTED).height
    totals = [one for one in verdicts[TOTALS].details["slices"] if one["month"] == month]
    assert [one["difference"] for one in totals] == [-1]
    inside = listed.filter((pl.col("gate") == TOTALS) & (pl.col("what") == "the breach is missing"))
    assert breach["case_id"] in {json.loads(key)["case_id"] for key in inside["key"]}
    pointer = started["exceptions"]
    assert (pointer["table"], pointer["rows"], pointer["cut"]) == (EXCEPTIONS_TABLE, started["wrong"], False)
    assert pointer["snapshot"] == str(world.platform.lakehouse.snapshot_id(EXCEPTIONS_TABLE))
    assert f"run_id = '{record.run_id}' AND gate = '{STARTED}'" in pointer["query"]


@pytest.fixture
def context(world: World) -> ReconciliationContext:
    """What the gates of the published history look at."""
    record = world.platform.ledger.run("history")
    chunks = world.platform.ledger.chunks("history")
    return reconciliation_context(RunContext.of(world.platform, record), chunks)


def test_a_penalty_may_still_come_on_the_last_day_of_the_source(world: World, context: ReconciliationContext) -> None:
    """The day of the source's last event need not be over: a log of 12,000 generated cases had such a breach."""
    breach = a_breach(world)
    is_it = F.col("case_id") == breach["case_id"]
    source = context.source.where(~(is_it & (F.col("activity") == "Add penalty")))
    due = datetime.combine(breach["breach_on"], time.min, UTC)

    def unpenalised(last_day: datetime) -> bool | None:
        rows = CLOCKS.rows(replace(context, source=source, source_last_day=last_day))
        (row,) = rows.where(is_it & (F.col("clock") == "PAYMENT")).select("unpenalised").collect()
        return cast("bool | None", row["unpenalised"])

    assert not unpenalised(due)
    assert unpenalised(due + timedelta(days=1))


def test_a_large_source_is_compared_in_more_parts_with_the_same_outcome(
    context: ReconciliationContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compared() -> tuple[int, list[dict[str, Any]]]:
        rows = CLOCKS.rows(context)
        return rows.rdd.getNumPartitions(), sorted((row.asDict() for row in rows.collect()), key=repr)

    few, expected = compared()
    monkeypatch.setattr(reconciliations, "_EVENTS_A_PART", -(-context.source_rows // 5))
    many, found = compared()
    assert (few, many) == (context.tasks, 6)  # as many as are compared at once, or a multiple of that
    assert context.tasks == 2
    assert len(expected) > 80
    assert found == expected


def test_no_list_of_exceptions_names_somebody_erased(world: World) -> None:
    def exception(number: int, **texts: str) -> dict[str, str | None]:
        return dict.fromkeys(EXCEPTION_COLUMNS, None) | {"what": str(number)} | texts

    ann, bob = json.dumps({"case_id": "ann"}), json.dumps({"case_id": "bob"})
    listed = [
        *(exception(number, **{part: ann}) for number, part in enumerate(("key", "slice", "expected", "found"))),
        exception(4, key=bob, found=json.dumps({"name": "ann"})),
        exception(5, slice=json.dumps({"jurisdiction": "IT"}), found=json.dumps("ann")),
    ]
    schema = ", ".join(f"{name} string" for name in EXCEPTION_COLUMNS)
    frame = world.platform.spark.session(Mode.BACKFILL).createDataFrame(listed, schema)

    def named(concealed: Concealed) -> list[str]:
        return sorted(row["what"] for row in exception_table._without_erased(frame, concealed).collect())

    # of a text that is no object of its own nobody can say whose it is
    odd = [
        '{"case_id":NaN}',
        "ann",
        '["ann"]',
        "12345",
        '{"case_id":"bob"} ann',
        f"{bob}{ann}",
        '{"case_id":"bob","case_id":"ann"}',
    ]
    frame = frame.unionByName(
        world.platform.spark.session(Mode.BACKFILL).createDataFrame(
            [exception(number, key=text) for number, text in enumerate(odd, start=6)], schema
        )
    )
    assert named(Concealed("case_id", hashes_of(["ann"]))) == ["4"]
    everyone = sorted(str(number) for number in range(6 + len(odd)))
    assert named(Concealed("case_id", frozenset())) == named(Concealed("", hashes_of(["ann"]))) == everyone


def test_a_changed_amount_is_found_and_shown_beside_the_accepted_one(world: World) -> None:
    row = a_breach(world)
    amount = row["amount"] + Decimal("1000.00")
    with broken(world, with_amount(row, amount)):
        record, verdicts = reconciled(world, days=DayRange(start=row["business_date"], end=row["business_date"]))

    chunk = row["business_date"].strftime("%Y-%m")
    assert failed(verdicts) == {ACCEPTED_ROWS_GATE}
    assert [one["chunk"] for one in verdicts[ACCEPTED_ROWS_GATE].details["slices"]] == [chunk]
    (exception,) = kept(world, record.run_id).to_dicts()
    assert (exception["slice"], exception["what"]) == (
        json.dumps({"chunk": chunk}, separators=(",", ":")),
        "the row is another than the accepted one",
    )
    assert json.loads(exception["key"])["business_date"] == row["business_date"].isoformat()
    assert [Decimal(str(json.loads(exception[side])["amount"])) for side in ("expected", "found")] == [
        row["amount"],
        amount,
    ]


def test_a_rule_that_a_foreign_row_breaks_is_named(world: World) -> None:
    row = a_breach(world) | {"case_id": "nobody", "days_open": 99_999}

    def add(table: Any) -> None:
        schema = table.schema().as_arrow()
        table.append(pl.DataFrame([row], schema=world.rows().schema).to_arrow().cast(schema))

    with broken(world, add):
        record, verdicts = reconciled(
            world,
            days=DayRange(start=row["business_date"], end=row["business_date"]),
            gates=[PUBLISHED_RULES_GATE, ACCEPTED_ROWS_GATE],
        )

    assert failed(verdicts) == set(verdicts) == {PUBLISHED_RULES_GATE, ACCEPTED_ROWS_GATE}
    listed = kept(world, record.run_id)
    assert "days_open counts from started_on" in " ".join(listed["what"])
    assert listed.filter(pl.col("what") == "the row was never accepted").height == 1
    (chunk,) = world.platform.ledger.chunks(record.run_id)
    assert chunk.state is ChunkState.FAILED


def test_what_is_listed_is_bounded_and_the_true_number_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = replace(
        CASE_SLA_DAILY,
        reconciliations=tuple(replace(one, exceptions_limit=1) for one in CASE_SLA_DAILY.reconciliations),
    )
    declare(monkeypatch, bounded)
    with broken(world, lambda table: table.delete(AlwaysTrue())):
        record, verdicts = reconciled(world, gates=[STARTED])

    details = verdicts[STARTED].details
    assert details["wrong"] == details["compared"] > 1
    assert (details["exceptions"]["rows"], details["exceptions"]["cut"]) == (1, True)
    assert details["exceptions"]["disagree"] == details["wrong"]
    assert kept(world, record.run_id).height == 1


def test_a_run_that_stages_rows_keeps_exceptions_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the mode: the table is evidence, and no sink."""
    lost = a_breach(world)

    def forgetful(inputs: Any, context: Any) -> Any:
        return case_sla_daily(inputs, context).where(F.col("case_id") != lost["case_id"])

    with_version(monkeypatch, "3.1.0", forgetful)
    manifest = world.manifest("forgetful", mode="DRY_RUN", safety={}, validation={"gates": [STARTED]})
    world.ran(manifest)
    (verdict,) = [one for one in world.platform.ledger.verdicts("forgetful") if one.gate == STARTED]

    assert not verdict.passed
    assert [one["jurisdiction"] for one in verdict.details["slices"]] == [lost["jurisdiction"]]
    assert {one["case_id"] for one in verdict.details["sample"]} == {lost["case_id"]}
    listed = kept(world, "forgetful")
    assert listed.height == verdict.details["wrong"] == verdict.details["exceptions"]["rows"]
    assert set(listed["what"]) == {"the first day of the clock is missing"}
    assert set(listed["level"]) == {"record"}


# --- read-only --------------------------------------------------------------------------------------------------------


def test_a_reconciliation_s_session_writes_no_files(world: World) -> None:
    session = world.platform.spark.session(Mode.RECONCILIATION)
    folder = f"{world.platform.lakehouse.location(TARGET)}/run=forbidden"

    for mode in ("append", "overwrite"):
        with pytest.raises(Py4JJavaError, match=r"NoSuchMethodException.*FileCommitProtocol"):
            session.range(1).write.mode(mode).parquet(folder)
    with world.platform.spark.writing_evidence(Mode.RECONCILIATION) as allowed:
        assert "SQLHadoop" in (allowed.conf.get("spark.sql.sources.commitProtocolClass") or "")
    with pytest.raises(Py4JJavaError, match="FileCommitProtocol"):
        session.range(1).write.parquet(folder)
    assert not Path(folder.removeprefix("file://")).exists()
    others = world.platform.spark.session(Mode.BACKFILL)
    assert "SQLHadoop" in (others.conf.get("spark.sql.sources.commitProtocolClass") or "")


def test_a_reconciliation_is_neither_computed_nor_published_and_a_policy_approves_nothing_else(world: World) -> None:
    record, _ = reconciled(world, days=DayRange(start=START, end=START), gates=[ACCEPTED_ROWS_GATE])

    with pytest.raises(TransitionRefused, match="computes nothing"):
        world.stage(record)
    with pytest.raises(PublicationRefused, match="RECONCILIATION"):
        publish(world.platform, record.run_id)
    with pytest.raises(InputRefused, match="BACKFILL"):
        plan_reconciliation(world.platform, world.manifest("not-mine"))
    assert world.platform.ledger.find("not-mine") is None
    with pytest.raises(TransitionRefused, match="kind RECONCILIATION"):
        reconcile(world.platform, "history")


# --- over time --------------------------------------------------------------------------------------------------------


def test_the_commands_say_what_disagrees_and_how_it_was_before(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(world.home))
    monkeypatch.setenv("BACKFILL_SPARK", json.dumps(SPARK))
    monkeypatch.setenv("COLUMNS", "200")
    run = CliRunner().invoke
    words = ["reconcile", TARGET, "--range", "2010-01-01..2010-02-28", "--gate", ACCEPTED_ROWS_GATE]
    case = world.rows().filter(pl.col("business_date") < date(2010, 2, 1))["case_id"][0]
    with broken(world, without(case)):
        red = run(cli, [*words, "--json"])
    green = run(cli, words)

    assert (red.exit_code, green.exit_code) == (1, 0), red.output + green.output
    run_id = json.loads(red.output)["runId"]
    assert not json.loads(red.output)["agrees"]
    assert "everything agrees" in green.output
    shown = run(cli, ["exceptions", run_id, "--limit", "1"], catch_exceptions=False)
    assert case in shown.output
    assert "shown are 1" in shown.output
    data = json.loads(
        run(cli, ["exceptions", run_id, "--gate", ACCEPTED_ROWS_GATE, "--limit", "100000", "--json"]).output
    )
    assert data["gates"][ACCEPTED_ROWS_GATE]["rows"] == len(data["exceptions"])
    refused = run(cli, ["exceptions", run_id, "--gate", "lunch", "--json"])
    assert refused.exit_code != 0
    status = run(cli, ["status", run_id], catch_exceptions=False).output
    assert "chunk=2010-01" in status
    assert f"backfill exceptions {run_id}" in status, status

    told = json.loads(run(cli, ["drift", TARGET, "--last", "2", "--json"]).output)
    assert told["reconciliations"][0] == run_id
    by_slice = {(one["gate"], one["slice"]): one["values"] for one in told["series"]}
    assert by_slice[ACCEPTED_ROWS_GATE, ""][0] > by_slice[ACCEPTED_ROWS_GATE, ""][1] == 0
    assert by_slice[ACCEPTED_ROWS_GATE, "2010-01"][0] > 0
    table = run(cli, ["drift", TARGET, "--last", "2"], catch_exceptions=False).output
    assert "█▁" in table
    assert len({one.run_id for one in readings(world.platform, TARGET, 100)}) >= 2
    nowhere = run(cli, ["reconcile", TARGET, "--range", "2010-02-01..2010-01-01"])
    assert isinstance(nowhere.exception, (InputRefused, SystemExit))


def test_dagster_has_the_checks_with_numbers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = build_definitions(world.platform)
    schedule = loaded.resolve_schedule_def("reconcile_silver_case_sla_daily_daily")
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    target = replace(CASE_SLA_DAILY, reconciled=ReconciliationPolicy(gates=(ACCEPTED_ROWS_GATE, STARTED), days=31))
    declare(monkeypatch, target)
    job = dg.Definitions(
        assets=[reconciled_asset(target, "enforcement")],
        jobs=[reconciliation_job(target)],
        resources={"platform": world.platform, **spark_resources(world.platform.products.sinks)},
    ).resolve_job_def("reconcile_silver_case_sla_daily")
    case = world.rows().filter(pl.col("started_on") >= date(2010, 4, 1))["case_id"][0]
    with broken(world, without(case)), world.dagster() as instance:
        done = job.execute_in_process(instance=instance)
        key = asset_key(f"{TARGET}_reconciled")
        (materialized,) = done.asset_materializations_for_node(key.to_python_identifier())
        results = {one.check_name: one for one in done.get_asset_check_evaluations()}

    assert {name: one.passed for name, one in results.items()} == {ACCEPTED_ROWS_GATE: False, STARTED: False}
    assert materialized.metadata[f"{STARTED}: disagreeing"].value == results[STARTED].metadata["disagreeing"].value > 0
    assert 0 < materialized.metadata[f"{STARTED}: share"].value < 1
    assert materialized.metadata["days"].value == "2010-03-01 to 2010-04-30"
    assert "backfill exceptions reconcile-" in results[STARTED].metadata["exceptions"].value
    assert "jurisdiction" in results[STARTED].metadata["failing slices"].value
    tagged = instance.get_run_tags(["backfill/run_id"])
    assert tagged[0][1] == {materialized.metadata["run"].value}


@pytest.mark.parametrize(
    ("values", "bars"),
    [((), ""), ((0.0, 0.0), "▁▁"), ((0.0, 1.0, 1000.0), "▁▂█"), ((8.0, 4.0, 0.0), "█▅▁")],
)
def test_a_sparkline_shows_whatever_is_not_nothing(values: tuple[float, ...], bars: str) -> None:
    assert sparkline(values) == bars


# --- the pieces -------------------------------------------------------------------------------------------------------


def a_context(**fields: Any) -> ReconciliationContext:
    shared: dict[str, Any] = {}
    context = SimpleNamespace(tolerances={}, measures=[], **fields)

    def find(name: str, function: Any) -> Any:
        if name not in shared:
            shared[name] = function(context)
        return shared[name]

    context.shared = find
    return cast("ReconciliationContext", context)


EXPECTED = [{"place": "IT", "sum": 100}, {"place": "NO", "sum": 10}, {"place": "IT", "sum": 100}]


@pytest.mark.parametrize(
    ("found", "tolerance", "relative", "failing"),
    [
        ([("IT", 200), ("NO", 10)], None, False, []),
        ([("IT", 199), ("NO", 10)], None, False, ["IT"]),
        ([("IT", 199), ("NO", 10)], 1.0, False, []),
        ([("IT", 198), ("NO", 10)], 1.0, False, ["IT"]),
        ([("IT", 198), ("NO", 9)], 1.0, True, ["NO"]),
        ([("IT", 200), ("NO", 10), ("CO", 1)], 50.0, True, ["CO"]),
        ([("IT", 200)], 50.0, True, ["NO"]),
        ([("IT", 200)], 10.0, False, []),
        ([("NO", 0)], None, False, ["IT", "NO"]),
    ],
)
def test_totals_agree_by_slice_within_a_tolerance(
    found: list[tuple[str, int]], tolerance: float | None, relative: bool, failing: list[str]
) -> None:
    there = [{"place": place, "sum": number} for place, number in found]
    finding = of_sums(EXPECTED, there, tolerance, relative=relative)

    assert finding.passed == (not failing)
    assert [one["place"] for one in finding.slices] == failing
    assert finding.disagreeing == len(failing)


@pytest.mark.parametrize(
    ("expected", "found", "tolerance", "agree"),
    [
        (2**53 + 1, 2**53, None, False),
        (Decimal("330.10"), Decimal("330.10"), None, True),
        (Decimal("330.10"), Decimal("330.11"), None, False),
        (Decimal("330.10"), Decimal("330.11"), 0.02, True),
        (Decimal("0.5"), 0.5, None, True),
        (float("nan"), 1.0, None, False),
        (float("nan"), 1.0, 5.0, False),
        (float("nan"), float("nan"), None, True),
        (float("inf"), float("inf"), 1.0, True),
        (float("inf"), 1.0, 1.0, False),
        (10**400, 1, None, False),
        (Decimal("12345678901.000000000000000001"), Decimal("12345678901.000000000000000002"), None, False),
        (Decimal("1234567890123456789012345678901.01"), Decimal("1234567890123456789012345678901.99"), None, False),
    ],
    ids=str,
)
def test_totals_are_compared_as_they_are_and_can_be_put_on_record(
    expected: Any, found: Any, tolerance: float | None, agree: bool
) -> None:
    finding = finding_of(of_sums([{"place": "NO", "sum": expected}], [{"place": "NO", "sum": found}], tolerance))
    assert (finding.passed, len(finding.slices)) == (agree, 0 if agree else 1)


@pytest.mark.parametrize(
    ("expected", "found"), [(float("inf"), 1.0), (float("-inf"), 7), (float("-inf"), float("inf"))]
)
def test_nothing_is_within_some_percent_of_what_has_none(expected: Any, found: Any) -> None:
    assert not of_sums([{"place": "NO", "sum": expected}], [{"place": "NO", "sum": found}], 5.0, relative=True).passed


def of_sums(expected: Any, found: Any, tolerance: float | None, *, relative: bool = False) -> Finding:
    """Return what a gate finds of these sums by place."""
    gate = state_level(
        "sums",
        "Sums agree.",
        slices=("place",),
        measures=("sum",),
        expected=lambda _: expected,
        found=lambda _: found,
        tolerance=None if tolerance is None else "off",
        relative=relative,
    )
    return gate.check(replace_tolerances(a_context(), tolerance))


def replace_tolerances(context: ReconciliationContext, tolerance: float | None) -> ReconciliationContext:
    cast("Any", context).tolerances = {} if tolerance is None else {"off": tolerance}
    return context


def test_totals_name_the_slice_that_is_furthest_off_first() -> None:
    gate = state_level("sums", "", slices=("place",), measures=("sum",), expected=lambda _: EXPECTED)
    finding = gate.check(a_context())

    assert [(one["place"], one["difference"]) for one in finding.slices] == [("IT", -200), ("NO", -10)]
    assert finding.summary == "210 sum recomputed, 0 found; 2 of 2 slices by place differ"


@pytest.mark.parametrize("side", ["expected", "found"])
def test_totals_of_a_measure_that_no_row_has_agree_with_nothing(side: str) -> None:
    """Else a misspelt measure would be 0 on both sides, and the gate would pass whatever there is."""
    other = {"expected": lambda _: EXPECTED, "found": lambda _: EXPECTED} | {
        side: lambda _: [{"place": "IT", "smu": 3}]
    }
    gate = state_level("sums", "", slices=("place",), measures=("sum",), **other)
    with pytest.raises(KeyError, match="no row to be added up has the measure 'sum'; they have place, smu"):
        gate.check(a_context())


def test_eligible_entities_are_held_against_those_that_are_there(world: World) -> None:
    spark = world.platform.spark.session(Mode.BACKFILL)
    schema = "meter string, day string, place string"
    source = spark.createDataFrame([("a", "1", "IT"), ("a", "1", "IT"), ("b", "1", "NO"), ("c", "1", "NO")], schema)
    staged = spark.createDataFrame([("a", "1", "IT"), ("c", "1", "NO"), ("d", "1", "IT")], schema)
    entities = keys("meters", eligible=lambda context: context.source, key=("meter", "day"), slices=("place",))
    assert isinstance(entities, Entities)
    gate = record_level("meters_are_there", "Every meter is there.", entities)
    finding: Finding = gate.check(a_context(source=source, staged=staged))

    assert (finding.passed, finding.compared, finding.disagreeing) == (False, 3, 2)
    assert {one["place"]: one["wrong"] for one in finding.slices} == {"IT": 1, "NO": 1}
    assert finding.exceptions is not None
    listed = finding.exceptions().select("slice", F.get_json_object("key", "$.meter"), "what").collect()
    assert {tuple(row) for row in listed} == {('{"place":"IT"}', "d", "extra"), ('{"place":"NO"}', "b", "missing")}
    same = gate.check(a_context(source=source, staged=source))
    assert (same.passed, same.slices) == (True, [])


def test_the_gates_of_records_and_duplicates_need_the_names_of_columns_only(world: World) -> None:
    spark = world.platform.spark.session(Mode.BACKFILL)
    read = [
        ("early", "2020-01-31 12:00:00"),
        ("a", "2020-02-01 00:00:00"),
        ("b", "2020-02-29 23:30:00.023598"),
        ("b", "2020-02-29 23:30:00.023598"),
        ("b", "2020-02-29 23:45:00"),
        ("late", "2020-03-01 00:00:00"),
    ]
    source = spark.createDataFrame(read, "meter string, at string").withColumn("at", F.to_timestamp("at"))
    staged = spark.createDataFrame([("a",), ("early",)], "meter string")
    scope = DayRange(start=date(2020, 2, 1), end=date(2020, 2, 29))
    found = a_context(source=source, staged=staged)
    cast("Any", found).transform, cast("Any", found).source_time_column = SimpleNamespace(publish_range=scope), "at"
    cast("Any", found).target = None

    records = record_gate(("meter",)).check(found)
    assert (records.compared, records.disagreeing) == (2, 2)
    assert records.exceptions is not None
    listed = records.exceptions().select(F.get_json_object("key", "$.meter"), "what").collect()
    assert {tuple(row) for row in listed} == {("b", "missing"), ("early", "extra")}
    assert record_gate(("meter",), "carried", carried=True).check(found).disagreeing == 1
    # in Rome the last readings of b are of the day after, and those of "early" stay where they are
    assert record_gate(("meter",), "local", zone="Europe/Rome").check(found).compared == 1

    twice = duplicate_gate(("meter", "at")).check(found)
    assert (twice.passed, twice.compared, twice.disagreeing) == (False, 3, 1)
    assert twice.exceptions is not None
    listed = twice.exceptions().select("key", "expected", "found").collect()
    assert [tuple(row) for row in listed] == [
        ('{"meter":"b","at":"2020-02-29T23:30:00.023598Z"}', '{"expected":1}', '{"found":2}')
    ]
    cast("Any", found).source = source.dropDuplicates()
    assert duplicate_gate(("meter", "at"), "once").check(found).passed


def test_the_change_gate_holds_a_run_against_the_rows_that_readers_see(world: World) -> None:
    record, chunks = world.platform.ledger.run("history"), world.platform.ledger.chunks("history")
    again = replace(record.plan, base_snapshot_id=world.platform.lakehouse.snapshot_id(TARGET))
    run = RunContext.of(world.platform, record).with_plan(again)
    gate = change_gate(percent=0.0)
    staged = replace(reconciliation_context(run, chunks), tolerances=dict(gate.tolerances))
    same = gate.check(staged)
    assert (same.passed, same.compared, same.disagreeing) == (True, 4, 0)
    assert same.details["totals"]["rows"]["staged"] == sum(chunk.rows or 0 for chunk in chunks)
    shorter = [replace(chunks[0], rows=(chunks[0].rows or 0) - 1), *chunks[1:]]
    less = reconciliation_context(run, shorter)
    found = gate.check(replace(less, tolerances=dict(gate.tolerances)))
    assert [(one["chunk"], one["measure"], one["staged"] - one["accepted"]) for one in found.slices] == [
        (chunks[0].chunk, "rows", -1)
    ]


def test_series_are_of_gates_and_of_every_slice_that_ever_failed(world: World) -> None:
    found = readings(world.platform, TARGET, 100)
    lines = series(found)
    gates = [one.gate for one in lines if not one.slice]

    assert sorted(gates) == sorted(set(gates))
    assert all(len(one.values) == sum(reading.gate == one.gate for reading in found) for one in lines)
