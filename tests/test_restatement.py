"""A restatement from the manifest to the published table, against an oracle that shares no code with it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pandera.polars as pandera
import polars as pl
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import functions as F
from worlds import END, SPARK, START, TARGET, World, declare, generated, real_world, with_version

from backfill_assets.declarations.schema import row_rule
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.planning.resolve import plan_run
from backfill_assets.products.enforcement import CASE_SLA_DAILY, reference, transforms
from backfill_assets.products.enforcement.loading import EVENTS
from backfill_assets.products.enforcement.schemas import CaseSlaDaily
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from manifests.chunks import CHUNK_GATE
from manifests.errors import InputRefused, PlanRefused, PublicationRefused, TransitionRefused
from manifests.lifecycle import RunState
from manifests.model import Mode
from resources.lakehouse.facade import DATA_VERSION_PROPERTY, LOAD_PROPERTY
from resources.ledger.facade import ChunkState
from resources.spark.pyspark_private import gateway_of
from resources.spark.sessions import _in_a_thread
from resources.spark.worker_daemon import MODULES_VARIABLE, without_own_archives

SPRING = (date(2010, 3, 1), date(2010, 5, 31))


def oracle(world: World, *, local: bool = True) -> set[tuple[object, ...]]:
    """Every expected row, event by event in plain Python: (case, clock, day, started, breach, state)."""
    events = world.platform.lakehouse.table("bronze.case_events").scan().to_arrow().to_pylist()
    rules = reference.sla_rules()
    business = reference.business_days_of(reference.jurisdiction_calendar())
    cases = defaultdict(list)
    for event in events:
        zone = ZoneInfo(reference.TIME_ZONES[event["jurisdiction"]]) if local else UTC
        cases[event["case_id"], event["jurisdiction"]].append(
            (event["event_at"].astimezone(zone).date(), event["activity"])
        )
    expected: set[tuple[object, ...]] = set()
    for (case, place), seen in cases.items():
        for clock in ("NOTIFICATION", "PAYMENT", "APPEAL"):
            start_activity = next(r.start_activity for r in rules if (r.jurisdiction, r.clock) == (place, clock))
            starts = [day for day, activity in seen if activity == start_activity]
            if not starts:
                continue
            started = min(starts)
            rule = reference.rule_for(rules, place, clock, started)
            breach = reference.breach_date(started, rule, business[place])
            stop = min(
                (day for day, activity in seen if activity in rule.stop_activities and day >= started), default=None
            )
            last = breach if stop is None else min(stop, breach)
            ended = "MET" if stop is not None and stop < breach else "BREACHED"
            day = started
            while day <= last:
                if world.start <= day <= world.end:
                    expected.add((case, clock, day, started, breach, ended if day == last else "RUNNING"))
                day += timedelta(days=1)
    return expected


def as_rows(frame: pl.DataFrame) -> set[tuple[object, ...]]:
    return set(frame.select("case_id", "clock", "business_date", "started_on", "breach_on", "sla_state").rows())


@pytest.mark.check
def test_history_and_restatement_are_published_as_one_snapshot_each_and_equal_the_oracle(world: World) -> None:
    history = world.published(world.manifest("history", version="2.4.1"))
    assert as_rows(world.rows()) == oracle(world, local=False)
    fixed = world.published(world.manifest("fixed"))
    rows = world.rows()
    assert as_rows(rows) == oracle(world)
    assert rows.height == len(oracle(world))  # no row twice
    assert world.snapshots() == [history.snapshot_id, fixed.snapshot_id]
    assert rows["run_id"].unique().to_list() == ["fixed"]
    assert rows["produced_at"].unique().to_list() == [world.platform.ledger.run("fixed").plan.run_clock]
    assert world.platform.ledger.run("history").state is RunState.SUPERSEDED
    table = world.platform.lakehouse.table(TARGET)
    summary = table.current_snapshot().summary.additional_properties
    assert summary["backfill.run-id"] == "fixed"
    assert summary["backfill.plan-hash"] == world.platform.ledger.run("fixed").plan_hash
    assert summary["backfill.evidence-root"] == world.platform.evidence.verify("fixed") == fixed.evidence_root
    assert table.refs()["before-fixed"].snapshot_id == history.snapshot_id
    audit = world.platform.lakehouse.table("audit.run_audit").scan().to_arrow().to_pylist()
    assert sorted((row["run_id"], row["action"]) for row in audit) == [("fixed", "publish"), ("history", "publish")]
    # and back: the rows of the history, as a third snapshot, nothing deleted
    undone = rollback(world.platform, "fixed")
    assert as_rows(world.rows()) == oracle(world, local=False)
    assert world.snapshots() == [history.snapshot_id, fixed.snapshot_id, undone.snapshot_id]
    assert world.platform.ledger.run("fixed").state is RunState.ROLLED_BACK
    assert world.platform.ledger.run("history").state is RunState.PUBLISHED
    assert not rollback(world.platform, "fixed").new


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority of each thread")
def test_what_computes_history_gives_way_to_live_and_its_driver_does_not(shared_world: World) -> None:
    """A driver may go on to publish, or to compute for LIVE, and could not raise its priority again."""
    jvm = gateway_of(shared_world.platform.spark.session(Mode.BACKFILL)).proc.pid
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    found = set()
    for one in Path(f"/proc/{jvm}/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that has just ended
            found.add(os.getpriority(os.PRIO_PROCESS, int(one.name)))
    assert found == {min(19, mine + 10)}
    said: list[int] = []
    _in_a_thread(lambda: said.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())), gives_way=False)
    assert said == [mine]


def test_chunking_never_changes_the_result(shared_world: World) -> None:
    world = shared_world.with_few_gates()
    scope = world.scope(date(2010, 3, 1), date(2010, 11, 30))
    one_batch = world.approved(world.manifest("one-batch", target=scope))
    world.stage(one_batch)
    sevens = world.approved(world.manifest("sevens", target=scope, limits={"maxChunksPerJob": 7}))
    world.stage(sevens)
    alone = world.approved(world.manifest("alone", target=scope, limits={"maxChunksPerJob": 1}))
    # in another order, and with gaps between the chunks of a call
    keys = [chunk.key for chunk in alone.plan.chunks][1::3][::-1]
    world.stage(alone, keys)
    assert len({attempt.attempt for attempt in world.platform.ledger.attempts("sevens")}) == 2
    assert len(world.platform.ledger.attempts("alone")) == len(keys) == 3
    expected = world.digests("one-batch")
    assert None not in expected.values()
    assert world.digests("sevens") == expected
    assert {key: world.digests("alone")[key] for key in keys} == {key: expected[key] for key in keys}


def test_a_narrow_range_gives_the_digests_of_the_whole(shared_world: World) -> None:
    world = shared_world.with_few_gates()
    whole = world.validated(world.manifest("whole", target=world.scope(date(2010, 10, 1), date(2011, 6, 30))))
    narrow = world.validated(world.manifest("narrow", target=world.scope(date(2011, 3, 1), date(2011, 4, 30))))
    assert narrow.plan.input_range.start == date(2011, 3, 1) - timedelta(days=150)
    expected = {key: digest for key, digest in world.digests(whole.run_id).items() if key in {"2011-03", "2011-04"}}
    assert world.digests("narrow") == expected


def test_the_time_zone_of_the_machine_changes_nothing(shared_world: World) -> None:
    world = shared_world.with_few_gates()
    here = world.validated(world.manifest("zone-here", target=world.scope(*SPRING)))
    there = world.approved(world.manifest("zone-there", target=world.scope(*SPRING)))
    script = (
        "from resources.settings import load_settings\n"
        "from backfill_assets.installation import Platform\n"
        "from backfill_assets.gates.judging import gate_chunks\n"
        "from backfill_assets.staging.executor import stage_chunks\n"
        "import time; assert time.tzname != ('UTC', 'UTC'), time.tzname\n"
        f"platform = Platform.of(load_settings(home={str(world.home)!r}, spark={SPARK!r}))\n"
        f"keys = {[chunk.key for chunk in there.plan.chunks]!r}\n"
        "stage_chunks(platform, 'zone-there', keys)\n"
        "gate_chunks(platform, 'zone-there')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ | {"TZ": "America/New_York"}, timeout=300)
    assert world.digests("zone-there") == world.digests(here.run_id)


def test_nothing_outside_the_publish_range_changes(world: World) -> None:
    world = world.with_few_gates()
    world.published(world.manifest("all", version="2.4.1"))
    before = world.rows()
    world.published(world.manifest("part", target=world.scope(date(2010, 6, 1), date(2010, 8, 31))))
    after = world.rows()
    inside = pl.col("business_date").is_between(date(2010, 6, 1), date(2010, 8, 31))
    assert before.filter(~inside).equals(after.filter(~inside))
    assert after.filter(inside)["run_id"].unique().to_list() == ["part"]
    ledger = world.platform.ledger
    assert ledger.run("all").state is RunState.PUBLISHED  # it still holds the other chunks
    with pytest.raises(PublicationRefused, match="held by later run"):
        rollback(world.platform, "all")
    assert world.rows().equals(after)


def test_a_write_into_the_scope_since_the_plan_refuses_the_publication(world: World) -> None:
    world = world.with_few_gates()
    late = world.approved(world.manifest("late", target=world.scope(*SPRING)))
    world.published(world.manifest("first", target=world.scope(*SPRING)))
    world.stage(late)
    before = world.snapshots()
    with pytest.raises(PublicationRefused, match="no longer holds the plan's files"):
        publish(world.platform, "late")
    assert world.snapshots() == before
    assert world.platform.ledger.run("late").state is RunState.REJECTED


def test_a_poisoned_chunk_fails_alone_and_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world.with_few_gates()

    def poisoned(inputs, context):
        rows = transforms.case_sla_daily(inputs, context.__class__(**{**context.__dict__, "version": "3.1.0"}))
        is_bad = F.date_format("business_date", "yyyy-MM") == "2010-05"
        return rows.withColumn("amount", F.when(is_bad, F.raise_error(F.lit("poison"))).otherwise(F.col("amount")))

    with_version(monkeypatch, "9.9.9", poisoned)
    monkeypatch.setitem(transforms.DAY_OF, "9.9.9", transforms.local_date)
    record = world.approved(world.manifest("poisoned", version="9.9.9", target=world.scope(*SPRING)))
    outcome = world.stage(record)
    assert set(outcome.failed) == {"2010-05"}
    assert "poison" in outcome.failed["2010-05"]
    states = {chunk.chunk: chunk.state for chunk in world.platform.ledger.chunks("poisoned")}
    assert {key for key, state in states.items() if state is ChunkState.PASSED} == set(states) - {"2010-05"}
    run = world.platform.ledger.run("poisoned")
    assert run.state is RunState.FAILED
    assert "2010-05" in run.state_reason
    with pytest.raises(PublicationRefused, match="2010-05"):
        publish(world.platform, "poisoned")
    # the same command once the cause is gone: only that chunk is computed
    with_version(monkeypatch, "9.9.9", transforms.case_sla_daily)
    again = world.stage(record)
    assert again.computed == ["2010-05"]
    assert again.skipped == ["2010-03", "2010-04"]
    assert world.platform.ledger.run("poisoned").state is RunState.VALIDATED


def _misspelt(inputs, context):
    return transforms.case_sla_daily(inputs, context).withColumn("amount", F.col("ammount"))


def _mistaken(inputs, context):
    raise KeyError("no such rule")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_misspelt, "AnalysisException: .*ammount"),
        (_mistaken, r"KeyError: 'no such rule' \(tests/test_restatement\.py:\d+, in _mistaken\)"),
    ],
)
def test_a_frame_that_cannot_be_built_is_not_tried_for_any_other_chunk(
    shared_world: World,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    function: Callable[..., Any],
    said: str,
) -> None:
    world, run_id = shared_world.with_few_gates(), f"not-built{function.__name__.replace('_', '-')}"
    with_version(monkeypatch, "9.9.5", function)
    monkeypatch.setitem(transforms.DAY_OF, "9.9.5", transforms.local_date)
    record = world.approved(world.manifest(run_id, version="9.9.5", target=world.scope(*SPRING)))
    with pytest.raises(InputRefused, match=said):
        world.stage(record)
    assert len(world.platform.ledger.attempts(run_id)) == 1
    found = world.platform.ledger.run(run_id)
    assert found.state is RunState.FAILED
    assert re.search(said, found.state_reason)
    assert "\n" not in found.state_reason, "no query plan, no stack"
    assert len(capfd.readouterr().err) < 5_000


def test_columns_of_another_type_are_refused_together_and_never_cast(
    shared_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bent(inputs, context):
        rows = transforms.case_sla_daily(inputs, context)
        return rows.withColumns(
            {
                "amount": F.col("amount").cast("double"),
                "days_open": F.col("days_open") + F.lit(0.9),
                "started_on": F.col("started_on").cast("timestamp"),
                "case_id": F.hash("case_id"),
            }
        )

    with_version(monkeypatch, "9.9.6", bent)
    monkeypatch.setitem(transforms.DAY_OF, "9.9.6", transforms.local_date)
    record = shared_world.approved(shared_world.manifest("bent", version="9.9.6", target=shared_world.scope(*SPRING)))
    with pytest.raises(InputRefused) as refused:
        shared_world.stage(record)
    said = [problem.what for problem in refused.value.problems]
    for column, kinds in {
        "amount": "double; it is declared as decimal",
        "days_open": "; it is declared as int",
        "started_on": "timestamp; it is declared as date",
        "case_id": "int; it is declared as string",
    }.items():
        assert [kinds in what for what in said if f" {column} of " in what] == [True], said
    assert len(said) == 4
    assert shared_world.platform.ledger.run("bent").state is RunState.FAILED
    chunks = shared_world.platform.ledger.chunks("bent")
    assert {chunk.state for chunk in chunks} == {ChunkState.PLANNED}


def test_a_broken_rule_is_counted_exactly_and_is_never_published(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world.with_few_gates()

    def wrong(inputs, context):
        rows = transforms.case_sla_daily(inputs, context)
        is_wrong = (F.col("business_date") == F.lit(date(2010, 7, 14))) & (F.col("clock") == "NOTIFICATION")
        return rows.withColumn("days_open", F.when(is_wrong, F.col("days_open") + 1).otherwise(F.col("days_open")))

    with_version(monkeypatch, "9.9.8", wrong)
    monkeypatch.setitem(transforms.DAY_OF, "9.9.8", transforms.local_date)
    world.stage(
        world.approved(
            world.manifest("wrong", version="9.9.8", target=world.scope(date(2010, 6, 1), date(2010, 8, 31)))
        )
    )
    verdicts = {v.chunk: v for v in world.platform.ledger.verdicts("wrong") if v.gate == CHUNK_GATE}
    assert {chunk for chunk, verdict in verdicts.items() if not verdict.passed} == {"2010-07"}
    (violation,) = verdicts["2010-07"].details["violations"]
    expected = sum(row[1] == "NOTIFICATION" and row[2] == date(2010, 7, 14) for row in oracle(world))
    assert expected > 0
    assert (violation["rule"], violation["count"]) == ("days_open counts from started_on", expected)
    assert {row["business_date"] for row in violation["sample"]} == {"2010-07-14"}
    assert world.platform.ledger.run("wrong").state is RunState.FAILED
    with pytest.raises(PublicationRefused):
        publish(world.platform, "wrong")
    assert world.snapshots() == []


def test_a_transform_that_lies_about_its_clustering_is_caught(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world.with_few_gates()

    def lying(inputs, context):
        return transforms.case_sla_daily(inputs, context).repartitionById(2, F.abs(F.hash("case_id")) % 2)

    with_version(monkeypatch, "9.9.7", lying, clustered=True)
    monkeypatch.setitem(transforms.DAY_OF, "9.9.7", transforms.local_date)
    record = world.approved(
        world.manifest("lying", version="9.9.7", target=world.scope(date(2010, 3, 1), date(2010, 4, 30)))
    )
    world.stage(record)
    rules = {
        violation["rule"]
        for verdict in world.platform.ledger.verdicts("lying")
        if verdict.gate == CHUNK_GATE
        for violation in verdict.details["violations"]
    }
    assert rules == {"files have disjoint key ranges"}
    # said honestly, the platform clusters the same output itself
    with_version(monkeypatch, "9.9.7", lying, clustered=False)
    honest = world.validated(
        world.manifest("honest", version="9.9.7", target=world.scope(date(2010, 3, 1), date(2010, 4, 30)))
    )
    plain = world.validated(world.manifest("plain", target=world.scope(date(2010, 3, 1), date(2010, 4, 30))))
    assert world.digests(honest.run_id) == world.digests(plain.run_id)


def test_a_row_rule_that_sums_rows_up_is_refused_when_a_run_is_planned(
    shared_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(CaseSlaDaily):
        @row_rule("some money in all")
        def _some_money_in_all(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805
            return data.lazyframe.select(pl.col("amount").sum() > 0)

    target = replace(CASE_SLA_DAILY, model=Wrong)
    declare(monkeypatch, target)
    with pytest.raises(PlanRefused, match="declares as row_rule what looks at several rows: some money in all"):
        plan_run(shared_world.platform, shared_world.manifest("summing"))
    assert shared_world.platform.ledger.find("summing") is None


def test_a_large_chunk_in_several_files_has_the_digest_of_one_file(world: World) -> None:
    world = world.with_few_gates()
    scope = world.scope(date(2010, 3, 1), date(2010, 3, 31))
    one = world.validated(world.manifest("one-file", target=scope))
    session = world.platform.spark.session(one.plan.mode)
    session.conf.set("spark.sql.files.maxRecordsPerFile", "100")
    many = world.validated(world.manifest("many-files", target=scope))
    (chunk,) = world.platform.ledger.chunks(many.run_id)
    assert len(chunk.files) > 3
    assert world.digests(many.run_id) == world.digests(one.run_id)
    publish(world.platform, many.run_id)
    assert world.rows().height == chunk.rows


_ASKED_OF_WORKERS = """
import gc, json, sys
from pathlib import Path
import pyarrow as pa
from backfill_assets.installation import Platform
from manifests.model import Mode
from resources.settings import load_settings

def ask(batches):
    archives = [entry for entry in sys.path if entry.endswith((".zip", ".jar")) and "pyspark" in entry]
    for _ in batches:
        told = {
            "archives": archives,
            "pyspark": sys.modules["pyspark"].__file__,
            "gates": "backfill_assets.worker.chunk_gate" in sys.modules,
            "frozen": gc.get_freeze_count() > 100_000,
        }
        yield pa.RecordBatch.from_pydict({"told": [json.dumps(told)]})

session = Platform.of(load_settings(home=Path(sys.argv[1]), spark=json.loads(sys.argv[2]))).spark.session(Mode.BACKFILL)
print("TOLD " + json.dumps([json.loads(row["told"]) for row in session.range(4).mapInArrow(ask, "told string").collect()]))
"""


def test_workers_have_everything_imported_and_no_archive_to_read_again(tmp_path: Path) -> None:
    """Asked in a process of its own: the first session of a process says what its workers import."""
    command = [sys.executable, "-c", _ASKED_OF_WORKERS, str(tmp_path / "home"), json.dumps(SPARK)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.partition("TOLD ")[2])
    assert told
    assert told == [{"archives": [], "pyspark": pyspark.__file__, "gates": True, "frozen": True}] * len(told)


@pytest.mark.parametrize("installed", [False, True])
def test_archives_that_are_all_there_is_of_pyspark_stay_on_the_path(tmp_path: Path, installed: bool) -> None:
    package = tmp_path / "site" / "pyspark"
    path = [str(package / "python/lib/pyspark.zip"), str(tmp_path / "pyspark.zip"), str(package.parent)]
    package.mkdir(parents=True)
    if installed:
        (package / "__init__.py").touch()
    assert without_own_archives(path) == (path[1:] if installed else path)


@pytest.mark.parametrize("own", ["", "backfill_assets.worker.chunk_gate,"])
def test_a_product_that_computes_while_it_is_imported_leaves_no_worker_waiting(tmp_path: Path, own: str) -> None:
    """A worker is forked without the threads of Polars, and would wait for them: it imports the product itself."""
    (tmp_path / "computing.py").write_text(
        "import polars as pl\nTOTAL = pl.LazyFrame({'a': [1, 2]}).select(pl.col('a').sum()).collect()\n"
    )
    paths = os.pathsep.join([str(Path(__file__).resolve().parent.parent), str(tmp_path)])
    daemon = subprocess.Popen(
        [sys.executable, "-m", "resources.spark.worker_daemon", "pyspark.worker"],
        env=os.environ | {MODULES_VARIABLE: f"{own}computing", "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert daemon.stdout is not None
        assert int.from_bytes(daemon.stdout.read(4), "big") > 0  # its port: it serves
        assert (b"polars" in Path(f"/proc/{daemon.pid}/maps").read_bytes()) is bool(own)
    finally:
        daemon.kill()
        _, told = daemon.communicate(timeout=60)
    assert told.decode().startswith("computing: something is computed while they are imported")


def test_a_gate_that_would_have_found_the_bug_keeps_2_4_1_from_being_published(world: World) -> None:
    manifest = world.manifest(
        "strict", version="2.4.1", validation={}, target=world.scope(date(2010, 1, 1), date(2010, 12, 31))
    )
    record = world.approved(manifest)
    world.stage(record)
    failed = {verdict.gate: verdict for verdict in world.platform.ledger.verdicts("strict") if not verdict.passed}
    assert set(failed) == {"payment_breaches_are_penalties"}
    assert failed["payment_breaches_are_penalties"].details["sample"]
    with pytest.raises(PublicationRefused, match="payment_breaches_are_penalties"):
        publish(world.platform, "strict")


def test_the_gates_judge_a_clock_by_the_rule_valid_at_its_start(world: World) -> None:
    """Rules change what stops a clock, too: from 2010-08-13 a payment no longer stops NOTIFICATION."""
    lakehouse = world.platform.lakehouse
    rules = lakehouse.table("reference.sla_rules").scan().to_arrow()
    changed = [
        row | {"stop_activities": [row["stop_activities"][0]]}
        if row["clock"] == "NOTIFICATION" and row["valid_from"] >= date(2010, 8, 13)
        else row
        for row in rules.to_pylist()
    ]
    assert changed != rules.to_pylist()
    table = pa.Table.from_pylist(changed, schema=rules.schema)
    lakehouse.overwrite_rows("reference.sla_rules", table, {LOAD_PROPERTY: "rules", DATA_VERSION_PROPERTY: "changed"})
    record = world.validated(world.manifest("changed-rules"))
    assert record.state is RunState.VALIDATED, record.state_reason


def test_new_input_is_not_read_by_a_run_planned_before_it(world: World) -> None:
    world = world.with_few_gates()
    before = world.validated(world.manifest("pinned-1", target=world.scope(*SPRING)))
    waiting = world.approved(world.manifest("pinned-2", target=world.scope(*SPRING)))
    load_delivery(world.platform, EVENTS, generated(300, 99, START, END), 0.5)
    world.stage(waiting)
    assert world.digests("pinned-2") == world.digests(before.run_id)
    after = world.validated(world.manifest("pinned-3", target=world.scope(*SPRING)))
    assert world.digests(after.run_id) != world.digests(before.run_id)


def test_an_unapproved_run_is_not_computed(world: World) -> None:
    record = plan_run(world.platform, world.manifest("unapproved"))
    with pytest.raises(TransitionRefused, match="PLANNED"):
        world.stage(record)
    assert world.platform.ledger.attempts("unapproved") == []


def test_a_maximum_of_written_rows_holds_a_run_back(world: World) -> None:
    manifest = world.manifest("too-many", safety={"maxRowsExpected": 2_500}, validation={}, target=world.scope(*SPRING))
    world.stage(world.approved(manifest))
    failed = [verdict.gate for verdict in world.platform.ledger.verdicts("too-many") if not verdict.passed]
    assert failed == ["rows_within_expected"]


@contextmanager
def polled(world: World) -> Iterator[list[tuple[int, int]]]:
    """Read the target's `main` at 20 Hz meanwhile: files and rows."""
    states, stop = [], threading.Event()

    def read() -> None:
        while True:
            tasks = list(world.platform.lakehouse.table(CASE_SLA_DAILY.name).scan().plan_files())
            states.append((len(tasks), sum(task.file.record_count for task in tasks)))
            if stop.wait(0.05):
                return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield states
    finally:
        stop.set()
        reader.join()


def test_the_real_log_gives_the_issue_s_totals_and_its_own_penalties(tmp_path: Path, real_log: Path) -> None:
    world = real_world(tmp_path / "home", real_log)
    record = world.validated(world.manifest("real"))
    verdicts = {verdict.gate: verdict for verdict in world.platform.ledger.verdicts("real") if not verdict.chunk}
    assert record.state is RunState.VALIDATED, record.state_reason
    totals: dict[tuple[str, str], int] = defaultdict(int)
    for chunk in world.platform.ledger.chunks("real"):
        for row in chunk.measures["slices"]:
            totals[row["clock"], row["sla_state"]] += row["rows"]
    assert totals["NOTIFICATION", "RUNNING"] == 11_684_683
    assert totals["NOTIFICATION", "MET"] == 117_254
    assert totals["NOTIFICATION", "BREACHED"] == 32_414
    assert totals["PAYMENT", "RUNNING"] == 4_661_432
    assert totals["PAYMENT", "MET"] == 3_902
    assert totals["PAYMENT", "BREACHED"] == 75_958
    outcome = verdicts["payment_breaches_are_penalties"]
    assert (outcome.details["compared"], outcome.details["wrong"]) == (79_860, 0)
    # the log's own oracle, from the file and the staged rows, without Spark or any code of the product
    events = pl.read_parquet(real_log).filter(pl.col("concept:name") == "Add penalty")
    penalties = dict(
        zip(
            events["case:concept:name"],
            (datetime.fromisoformat(t).date() for t in events["time:timestamp"]),
            strict=True,
        )
    )
    files = [
        file.path.removeprefix("file://") for chunk in world.platform.ledger.chunks("real") for file in chunk.files
    ]
    payments = (
        pl.scan_parquet(files, hive_partitioning=False)
        .filter((pl.col("clock") == "PAYMENT") & (pl.col("business_date") == pl.col("started_on")))
        .select("case_id", "breach_on")
        .collect()
    )
    assert dict(payments.iter_rows()) == penalties
    total = sum(totals.values())
    with polled(
        world
    ) as states:  # what a reader's plan of the table finds, all through 162 chunks' publication and undoing
        done = publish(world.platform, "real")
        assert (done.files_added, done.files_removed) == (162, 0)
        undone = rollback(world.platform, "real")
        assert (undone.files_added, undone.files_removed) == (0, 162)
    assert {(0, 0), (162, total)} == set(states)
