"""The gate that computes chunks again in other surroundings: what it catches, whom it does not accuse, and what it computes.

The transforms are `benchmarks.impure`'s: another way to be impure is a line there.
"""

from __future__ import annotations

import datetime as instants
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from support import a_contract, a_plan
from worlds import SPARK, World, killed_at

from backfill_assets.declarations import target as declarations
from backfill_assets.declarations.target import (
    ALL_CHUNKS_GATE,
    EXPECTED_ROWS_GATE,
    PURITY_GATE,
    Inputs,
    TransformContext,
)
from backfill_assets.gates import exception_table
from backfill_assets.gates.judging import gate_run
from backfill_assets.gates.purity import MOST_CHUNKS, SHARE, sampled
from backfill_assets.installation import Platform
from backfill_assets.products.enforcement import CASE_SLA_DAILY
from backfill_assets.run_context import RunContext
from backfill_assets.staging.recomputing import Part, differing_rows
from benchmarks import impure
from benchmarks.impure import (
    COMPUTED,
    IMPURE,
    NAMES,
    PURE,
    STATIC,
    TABLE,
    by_python,
    carried,
    carried_on,
    daily,
    installed,
    ran,
    verdict_of,
)
from manifests.errors import TransformRefused
from manifests.lifecycle import RunState
from manifests.plan import Plan
from resources.ledger.facade import ChunkRecord, ChunkState
from resources.spark.surroundings import SHIFT, RefusedElsewhereError, elsewhere

QUICK = {
    "current_date",
    "today in words",
    "first",
    "year of now",
    "order of a set",
    "network of a worker",
    "a state without its look-back",
    "sums",
    "a set in order",
}
"""Of the transforms, those that are always tried; the others take minutes."""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with installed(tmp_path_factory.mktemp("purity") / "home", spark=SPARK) as found:
        yield found


def cases(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive) for name in names]


@pytest.mark.parametrize("name", cases(IMPURE))
def test_an_impure_transform_is_never_validated(name: str, platform: Platform) -> None:
    caught, transform = IMPURE[name]
    if caught == STATIC:
        with pytest.raises(TransformRefused, match="asks for"):
            ran(platform, transform)
        return
    run_id = ran(platform, transform)
    verdict = verdict_of(platform, run_id)
    assert not verdict.passed, verdict
    assert platform.ledger.run(run_id).state is RunState.FAILED


@pytest.mark.parametrize("name", cases(PURE))
def test_a_pure_transform_is_not_accused(name: str, platform: Platform) -> None:
    run_id = ran(platform, PURE[name])
    verdict = verdict_of(platform, run_id)
    assert verdict.passed, verdict
    assert platform.ledger.run(run_id).state is RunState.VALIDATED


FEBRUARY = {"target": {"table": TABLE, "publishRange": {"start": "2020-02-01", "end": "2020-02-29"}}}


def test_a_chunk_that_is_computed_alone_is_computed_again_after_the_one_before_it(platform: Platform) -> None:
    run_id = ran(platform, carried, **FEBRUARY)
    verdict = verdict_of(platform, run_id)
    assert not verdict.passed, verdict
    assert "232 row(s) of 2020-02 are others" in verdict.summary  # 29 days of 8 meters
    declared = {"look_back_columns": ("name", "at", "value", "note")}
    assert verdict_of(platform, ran(platform, carried_on, declared=declared, **FEBRUARY)).passed
    assert verdict_of(platform, ran(platform, PURE["sums"], **FEBRUARY)).passed
    # and where no batch has two chunks
    limits = {"limits": {"maxChunksPerJob": 1}}
    assert not verdict_of(platform, ran(platform, carried, **limits)).passed
    assert verdict_of(platform, ran(platform, carried_on, declared=declared, **limits)).passed


def test_rows_without_a_day_are_the_chunk_gates_to_tell(platform: Platform) -> None:
    def undated(inputs: Inputs, _: TransformContext) -> DataFrame:
        return daily(inputs).withColumn("day", F.expr("nullif(day, DATE '2020-02-03')"))

    run_id = ran(platform, undated)
    record = platform.ledger.run(run_id)
    (target,) = impure._declared(undated).targets
    run = RunContext(platform, target, record.plan)
    staged = {one.chunk: one for one in platform.ledger.chunks(run_id)}
    assert [one.chunk for one in platform.ledger.verdicts(run_id) if not one.passed] == ["2020-01"]
    for chunk in record.plan.chunks[:3]:
        assert differing_rows(run, chunk, staged[chunk.key], Part()) == []


def test_more_than_forty_ways_to_be_impure_are_tried() -> None:
    assert len(IMPURE) >= 40
    assert {caught for caught, _ in IMPURE.values()} == {STATIC, COMPUTED}


def test_a_refused_expression_is_named_with_its_column_and_nothing_is_staged(platform: Platform) -> None:
    before = {record.run_id for record in platform.ledger.runs()}
    with pytest.raises(TransformRefused) as refusal:
        ran(
            platform,
            lambda i, _: daily(i, label=F.max("note")).withColumn("label", F.concat("label", F.expr("uuid()"))),
        )
    (problem,) = refusal.value.problems
    assert problem.what == "meter_days 1 asks for Uuid in column label"
    (run_id,) = {record.run_id for record in platform.ledger.runs()} - before
    assert platform.ledger.run(run_id).state is RunState.FAILED
    assert not [chunk for chunk in platform.ledger.chunks(run_id) if chunk.files]


def test_rows_that_are_others_are_named_by_their_key(platform: Platform) -> None:
    run_id = ran(platform, IMPURE["first"][1])
    verdict = verdict_of(platform, run_id)
    kept = verdict.details["exceptions"]
    rows = exception_table.rows(platform, run_id, {PURITY_GATE: kept["judgement"]}, 5)
    assert len(rows) == 5
    assert kept["rows"] == kept["disagree"] > 5
    for row in rows:
        assert row["what"] == "computed again it has another label"
        assert set(json.loads(row["key"])) == {"name", "day"}
        assert row["expected"] != row["found"]


# --- which chunks -----------------------------------------------------------------------------------------------------


def staged_of(plan: Plan, rows: int = 10) -> list[ChunkRecord]:
    return [
        ChunkRecord(chunk.key, chunk.index, ChunkState.PASSED, 1, rows, 1, (), "digest", {}, "")
        for chunk in plan.chunks
    ]


def test_the_sample_follows_from_the_plan_and_reads_a_small_share_of_it() -> None:
    chosen = set()
    for number in range(40):
        plan = a_plan(contract=a_contract(warm_up_days=0), configuration_hash=str(number))
        found = sampled(plan, staged_of(plan))
        assert found == sampled(plan, staged_of(plan))
        assert 1 <= len(found) <= MOST_CHUNKS
        assert len(found) == 1 or sum(chunk.reads.rows for chunk, _ in found) <= SHARE * plan.reads.rows
        chosen |= {chunk.key for chunk, _ in found}
    # no chunk is safe but the first, before which there is nothing that a row could depend on
    assert chosen == {chunk.key for chunk in plan.chunks[1:]}


def test_of_a_chunk_that_is_a_large_part_of_the_run_a_part_is_enough() -> None:
    plan = a_plan(contract=a_contract(warm_up_days=0))
    ((chunk, parts),) = sampled(plan, staged_of(plan))
    assert parts > 1
    assert chunk.reads.rows / parts <= SHARE * plan.reads.rows


def test_a_chunk_with_rows_is_computed_again_before_one_without() -> None:
    plan = a_plan(contract=a_contract(warm_up_days=0))
    last = plan.chunks[-1].key
    staged = [*staged_of(plan, rows=0)[:-1], staged_of(plan)[-1]]
    ((chunk, _),) = sampled(plan, staged)
    assert chunk.key == last


@pytest.mark.parametrize("name", ["sums", "first"])
def test_a_part_of_a_chunk_is_held_against_the_same_part_of_what_is_staged(name: str, platform: Platform) -> None:
    transform = PURE[name] if name in PURE else IMPURE[name][1]
    with mock.patch("backfill_assets.gates.purity.FEWEST_ENTITIES", 3):
        run_id = ran(platform, transform, declared={"entity": "name"})
    verdict = verdict_of(platform, run_id)
    assert "(1 of 2 parts, by name)" in verdict.summary
    assert verdict.passed is (name in PURE), verdict
    if not verdict.passed:
        kept = verdict.details["exceptions"]
        rows = exception_table.rows(platform, run_id, {PURITY_GATE: kept["judgement"]}, 1000)
        named = {row["key"].split('"name":"')[1].partition('"')[0] for row in rows}
        assert 0 < len(named) < len(NAMES)


# --- which runs -------------------------------------------------------------------------------------------------------


def test_a_plan_on_record_without_the_gate_is_judged_as_before(platform: Platform) -> None:
    with mock.patch.object(declarations, "PLATFORM_GATES", (ALL_CHUNKS_GATE, EXPECTED_ROWS_GATE)):
        run_id = ran(platform, IMPURE["current_date"][1])
    record = platform.ledger.run(run_id)
    assert PURITY_GATE not in record.plan.gates
    assert record.state is RunState.VALIDATED


@pytest.mark.parametrize("mode", ["BACKFILL", "DRY_RUN"])
def test_no_manifest_leaves_the_gate_out(mode: str, platform: Platform) -> None:
    run_id = ran(platform, IMPURE["first"][1], mode=mode, validation={"gates": []})
    record = platform.ledger.run(run_id)
    assert record.plan.gates == (ALL_CHUNKS_GATE, EXPECTED_ROWS_GATE, PURITY_GATE)
    assert record.state is RunState.FAILED


def test_a_reconciliation_computes_nothing_again() -> None:
    assert PURITY_GATE not in CASE_SLA_DAILY.published_gates


def test_a_merge_computes_its_own_entities_again(platform: Platform) -> None:
    merge = {
        "table": "silver.meter_days",
        "publishRange": {"start": "2020-01-01", "end": "2020-03-31"},
        "publishMode": "MERGE_BY_KEY",
        "merge": {"entities": ["ann", "bob"], "onOlderVersion": "OVERWRITE"},
    }
    for transform, passes in ((PURE["sums"], True), (IMPURE["first"][1], False)):
        run_id = ran(platform, transform, declared={"entity": "name"}, target=merge)
        assert verdict_of(platform, run_id).passed is passes


def test_the_product_that_ships_is_not_accused(shared_world: World) -> None:
    record = shared_world.with_few_gates().validated()
    (verdict,) = [one for one in shared_world.platform.ledger.verdicts(record.run_id) if one.gate == PURITY_GATE]
    assert verdict.passed
    assert verdict.details["computed_again"]


def test_a_kill_before_the_verdicts_are_recorded_changes_nothing(
    shared_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = shared_world.with_few_gates()
    record = world.approved()
    with killed_at("gating.run_judged", monkeypatch):
        world.stage(record)
    assert world.platform.ledger.run(record.run_id).state is RunState.STAGED
    verdicts = gate_run(world.platform, record.run_id)
    assert verdicts is not None
    assert {one.gate: one.passed for one in verdicts}[PURITY_GATE]
    assert world.platform.ledger.run(record.run_id).state is RunState.VALIDATED


@pytest.mark.parametrize("again", [False, True])
def test_a_worker_that_is_killed_while_it_computes_again_accuses_nobody(
    again: bool, platform: Platform, tmp_path: Path
) -> None:
    """Only in other surroundings, where it asks for the folder that it works in, does it end itself."""

    def dies(frame: pd.DataFrame) -> pd.Series:
        dead = Path(tmp_path) / "dead"
        if os.getcwd() == "/elsewhere" and (again or not dead.exists()):  # noqa: PTH109 - it is asked
            dead.touch()
            os.kill(int(os.readlink("/proc/self")), signal.SIGKILL)  # noqa: PTH115 - not its moved id
        return frame["name"].str.upper()

    run_id = ran(platform, lambda i, _: by_python(i, dies))
    verdict = verdict_of(platform, run_id)
    assert (tmp_path / "dead").exists()
    if not again:
        assert verdict.passed, verdict
    else:
        assert verdict.summary.startswith("could not judge: "), verdict
        assert "are others" not in verdict.summary
        assert platform.ledger.run(run_id).state is RunState.FAILED


# --- surroundings -----------------------------------------------------------------------------------------------------


def test_only_the_thread_that_calls_is_elsewhere_and_everything_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METER", "7")
    seen: dict[str, Any] = {}

    def look(name: str) -> None:
        seen[name] = (datetime.now(UTC), os.environ["METER"], os.getenv("METER"), os.getpid(), socket.gethostname())

    before = (
        instants.datetime.now,
        instants.date.today,
        time.time,
        os.getpid,
        type(os.environ),
        subprocess.Popen.__init__,
    )
    zone = time.tzname
    with elsewhere():
        look("here")
        other = threading.Thread(target=look, args=("there",))
        other.start()
        other.join()
        assert date.today() > seen["there"][0].date() + SHIFT / 2  # noqa: DTZ011 - it is asked
        with pytest.raises(RefusedElsewhereError):
            socket.create_connection(("127.0.0.1", 9))
        with pytest.raises(RefusedElsewhereError):
            subprocess.run(["true"], check=True)
    look("after")
    here, there, after = (seen[name] for name in ("here", "there", "after"))
    assert here[0] - there[0] > SHIFT / 2
    assert after[0] - there[0] < SHIFT / 2
    assert (here[1:3], there[1:3], after[1:3]) == (("8", "8"), ("7", "7"), ("7", "7"))
    assert here[3] != there[3] == after[3] == os.getpid()
    assert here[4] != there[4] == after[4]
    assert before == (
        instants.datetime.now,
        instants.date.today,
        time.time,
        os.getpid,
        type(os.environ),
        subprocess.Popen.__init__,
    )
    assert time.tzname == zone
