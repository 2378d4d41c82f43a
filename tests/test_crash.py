"""Kill -9 anywhere and run the same command: the end state is that of a run that was never disturbed."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import date
from pathlib import Path

import dagster as dg
import polars as pl
import pytest
from launches import Launch, launch
from worlds import END, FEW_GATES, SPARK, TARGET, World, make_world

from backfill_assets import faults
from backfill_assets.audit.verification import verify
from backfill_assets.defs.launched_by import RUN_TAG
from backfill_assets.publication.publisher import publish
from backfill_assets.review.diff import recorded_diff
from manifests.lifecycle import RunState
from manifests.model import Mode
from manifests.reading import manifest_from
from resources.lakehouse.facade import local_path

KILLED = -9
CHUNKS = (date(2010, 2, 1), date(2010, 7, 31))


def command(world: World, *arguments: str, fault: str | None = None) -> Launch:
    environment = {"BACKFILL_HOME": str(world.home), "BACKFILL_SPARK": json.dumps(SPARK)}
    return launch(*arguments, environment=environment | ({faults.VARIABLE: fault} if fault else {}))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = make_world(tmp_path_factory.mktemp("crash") / "home", cases=300, end=END, gates=FEW_GATES)
    world.published(world.manifest("history", version="2.4.1"))
    return world


IN_EACH_PHASE = ("staging.written", "gating.recorded", "publishing.committed")
EVERYWHERE = (
    "staging.written",
    "staging.derived",
    "staging.recorded",
    "gating.judged",
    "gating.recorded",
    "gating.run_judged",
    "leasing.taken",
    "leasing.fenced",
    "publishing.sealed",
    "publishing.tagged",
    "publishing.prepared",
    "publishing.leased",
    "publishing.committed",
    "publishing.recorded",
    "recording.told",
    "recording.sent",
    "comparing.kept",
)
OF_A_COMPACTION = tuple(point for point in EVERYWHERE if point not in {"recording.sent", "comparing.kept"})
"""It tells no sink, and has no diff: no row changes."""
BEFORE_THE_LEDGERS_COMMIT = {"staging.written", "staging.derived"}
ONCE_LANDED = {"publishing.committed", "publishing.recorded", "recording.told", "recording.sent", "comparing.kept"}


@pytest.mark.parametrize(
    ("run_id", "points"),
    [("disturbed", IN_EACH_PHASE), pytest.param("everywhere", EVERYWHERE, marks=pytest.mark.exhaustive)],
    ids=["a kill in each phase", "a kill at every point"],
)
def test_the_same_command_after_each_kill_ends_as_if_nothing_had_happened(
    world: World, run_id: str, points: tuple[str, ...]
) -> None:
    disturbed = world.announced(world.manifest(run_id, target=world.scope(*CHUNKS)))
    undisturbed = world.validated(world.manifest(f"{run_id}-not", target=world.scope(*CHUNKS)))
    history, before = world.snapshots(), set(world.rows()["run_id"].unique())
    ledger = world.platform.ledger
    for point in points:
        command(world, "run", run_id, fault=point).finish(KILLED)
        visible = set(world.rows()["run_id"].unique())
        # readers see all of the history or all of the restatement, at every point
        assert visible == ({"history", run_id} if point in ONCE_LANDED else before)
        if point == "publishing.committed":
            assert ledger.run(run_id).state is RunState.VALIDATED  # it landed, nobody could say so
    assert recorded_diff(world.platform, run_id) is None
    command(world, "run", run_id).finish(0)
    assert recorded_diff(world.platform, run_id) is not None  # kept, once, by the command that was repeated
    assert ledger.run(run_id).state is RunState.PUBLISHED
    assert world.digests(run_id) == world.digests(undisturbed.run_id)
    assert len(world.snapshots()) == len(history) + 1  # one publication, not one a try
    # each kill before the ledger's commit cost that attempt; no later one computed a chunk again
    failed = ["FAILED" for point in points if point in BEFORE_THE_LEDGERS_COMMIT]
    assert [attempt.state for attempt in ledger.attempts(run_id)] == [*failed, "STAGED"]
    inside = world.rows().filter(pl.col("run_id") == run_id)
    assert inside.height == sum(chunk.rows or 0 for chunk in ledger.chunks(run_id))
    assert inside.select("case_id", "clock", "business_date").is_duplicated().sum() == 0
    assert publish(world.platform, run_id).new is False
    states = [entry.state for entry in ledger.publications(run_id)]
    assert states.count("COMMITTED") == 1
    assert "INTENT" not in states
    assert disturbed.plan_hash == ledger.run(run_id).plan_hash


@pytest.mark.parametrize(
    ("run_id", "points"),
    [("compact", IN_EACH_PHASE), pytest.param("compact-all", OF_A_COMPACTION, marks=pytest.mark.exhaustive)],
    ids=["a kill in each phase", "a kill at every point"],
)
def test_a_compaction_that_is_killed_ends_as_if_nothing_had_happened(
    world: World, run_id: str, points: tuple[str, ...]
) -> None:
    scope, session = world.scope(*CHUNKS), world.platform.spark.session(Mode.BACKFILL)
    most = session.conf.get("spark.sql.files.maxRecordsPerFile")
    session.conf.set("spark.sql.files.maxRecordsPerFile", "20")
    world.published(world.manifest(f"small-files-{run_id}", target=scope))
    session.conf.set("spark.sql.files.maxRecordsPerFile", most or "4000000")
    before, held, ledger = world.rows(), world.platform.ledger.accepted(TARGET), world.platform.ledger
    history = world.snapshots()
    text = {"runId": run_id, "kind": "COMPACTION", "requestedBy": "ana", "reason": "a reason that is long enough"}
    world.announced(manifest_from(text | {"target": scope, "development": True}))
    for point in points:
        command(world, "run", run_id, fault=point).finish(KILLED)
        assert world.rows().equals(before), point
    command(world, "run", run_id).finish(0)
    assert ledger.run(run_id).state is RunState.PUBLISHED
    assert world.rows().equals(before)
    assert world.platform.ledger.accepted(TARGET) == held
    assert len(world.snapshots()) == len(history) + 1  # one publication, not one a try
    assert [len(chunk.files) for chunk in ledger.chunks(run_id)] == [1] * 6
    assert verify(world.platform, [run_id, f"small-files-{run_id}"], data=True).everything == []


@pytest.mark.check
def test_a_kill_while_planning_leaves_a_plan_or_none(world: World, tmp_path: Path) -> None:
    file = tmp_path / "planned.json"
    contract = world.manifest("planned", target=world.scope(*CHUNKS))
    file.write_text(contract.canonical())
    command(world, "plan", str(file), fault="planning.resolved").finish(KILLED)
    assert world.platform.ledger.find("planned") is None
    command(world, "plan", str(file), fault="planning.recorded").finish(KILLED)
    assert world.platform.ledger.run("planned").state is RunState.PLANNED
    command(world, "plan", str(file)).finish(0)
    moves = [(one.from_state, one.to_state) for one in world.platform.ledger.history("planned")]
    assert moves == [("DRAFT", "PLANNED")]


def in_the_middle_of_a_write(world: World, run_id: str, attempt: int) -> Launch:
    """Launch a run, and wait until an attempt has written a file that it has not committed."""
    process = command(world, "run", run_id)
    data = Path(local_path(world.platform.lakehouse.location(TARGET)))
    deadline = time.monotonic() + 240
    while not list(data.glob(f"run={run_id}/attempt-{attempt}/_temporary/0/*/*/*.parquet")):
        assert process.is_running(), process.errors[-4000:]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return process


def test_ctrl_c_and_a_kill_in_the_middle_of_a_spark_write_lose_nothing(world: World) -> None:
    scope, ledger = world.scope(date(2010, 8, 1), date(2011, 8, 31)), world.platform.ledger
    world.announced(world.manifest("mid-write", target=scope))
    process = in_the_middle_of_a_write(world, "mid-write", 1)
    assert process.process.pid is not None
    os.kill(process.process.pid, signal.SIGINT)
    process.finish(1)
    assert "the run was stopped" in process.errors
    assert "Traceback" not in process.errors
    assert [attempt.state for attempt in ledger.attempts("mid-write")] == ["STOPPED"]
    stop = ledger.stops.held("mid-write")
    assert stop is not None
    assert stop.through.startswith("SIGINT to process")
    with world.dagster() as instance:
        (launched,) = instance.get_runs(dg.RunsFilter(tags={RUN_TAG: "mid-write"}))
        assert launched.status is dg.DagsterRunStatus.CANCELED
    in_the_middle_of_a_write(world, "mid-write", 2).kill()
    assert {chunk.state.value for chunk in ledger.chunks("mid-write")} == {"PLANNED"}
    command(world, "resume", "mid-write").finish(0)
    undisturbed = world.validated(world.manifest("mid-write-undisturbed", target=scope))
    assert world.digests("mid-write") == world.digests(undisturbed.run_id)
    assert ledger.run("mid-write").state is RunState.PUBLISHED


def test_every_named_point_is_passed_by_a_run() -> None:
    root = Path(faults.__file__).parent
    text = "".join(file.read_text() for file in root.rglob("*.py"))
    assert {point for point in faults.POINTS if f'faults.reach("{point}")' in text} == faults.POINTS
