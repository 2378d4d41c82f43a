"""Disputed cases of the shipped product, one by one: what must come out for each is on file, and was told by an oracle.

The oracle shares no code with the transform (`test_restatement.oracle`). A case is disputed where the bug of 2.4.1, which takes UTC
dates for local ones, says something else of the last day of a clock: who is told that they are late asks about just these.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from test_restatement import oracle
from worlds import TARGET, World, declare, make_world

import backfill_assets as ba
from backfill_assets.gates import exception_table
from backfill_assets.products.enforcement import CASE_SLA_DAILY
from manifests.lifecycle import RunState
from resources.ledger.facade import Verdict

FILE = Path(__file__).parent / "products" / "disputed_cases.csv"
COLUMNS = ("case_id", "clock", "business_date", "started_on", "breach_on", "sla_state")
KNOWN = ba.known_keys_gate(str(FILE), "disputed_cases")
COUNTED = (
    ba.null_share_gate({"amount": 50.0}, by=("clock",)),
    ba.enumeration_gate("sla_state", ("RUNNING", "MET", "BREACHED")),
    # in the first months of a log no clock has been open for long
    ba.distribution_gate("days_open", buckets=(30, 60), least_rows=100, psi=1.0),
)
GATES = (KNOWN, *COUNTED)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = make_world(tmp_path_factory.mktemp("disputed") / "home", cases=400)
    return replace(made, gates=[gate.name for gate in GATES])


def on_file() -> list[tuple[str, str, date, date, date, str]]:
    with FILE.open(encoding="utf-8", newline="") as file:
        return [
            (
                one["case_id"],
                one["clock"],
                *map(date.fromisoformat, (one[name] for name in COLUMNS[2:5])),
                one["sla_state"],
            )  # type: ignore[misc]
            for one in csv.DictReader(file)
        ]


def verdicts(world: World, run_id: str) -> dict[str, Verdict]:
    return {one.gate: one for one in world.platform.ledger.verdicts(run_id) if not one.chunk}


def test_the_file_has_more_than_a_hundred_cases_and_the_oracle_tells_each_so(world: World) -> None:
    cases = on_file()
    right, wrong = oracle(world), oracle(world, local=False)
    assert len(cases) >= 100
    assert set(cases) <= right
    assert not set(cases) & wrong, "what nobody disputes is not in the file"
    assert {clock for _, clock, *_ in cases} == {"NOTIFICATION", "PAYMENT", "APPEAL"}
    assert {state for *_, state in cases} == {"MET", "BREACHED"}


def test_each_disputed_case_comes_out_right_and_the_bug_is_told_case_by_case(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through Spark and its workers: these count what the other gates ask for."""
    declare(monkeypatch, replace(CASE_SLA_DAILY, reconciliations=GATES, tolerances={}, live=None))
    buggy = world.ran(world.manifest("buggy", version="2.4.1"))
    said = verdicts(world, "buggy")
    cases = on_file()
    assert buggy.state is RunState.FAILED
    assert said[KNOWN.name].summary.startswith(f"{len(cases)} known cases compared; {len(cases)} come out otherwise")
    kept = said[KNOWN.name].details["exceptions"]
    listed = exception_table.rows(world.platform, "buggy", {KNOWN.name: kept["judgement"]}, 1_000)
    keys = {tuple(json.loads(one["key"]).values()) for one in listed}
    assert keys == {(case, clock, day.isoformat()) for case, clock, day, *_ in cases}
    fixed = world.ran(world.manifest("fixed"))
    assert fixed.state is RunState.VALIDATED, fixed.state_reason
    said = verdicts(world, "fixed")
    assert said[KNOWN.name].summary == f"{len(cases)} known cases compared; 0 come out otherwise"
    assert said["nulls_within_limits"].details["rows"] == len(oracle(world))
    assert said["sla_state_is_known"].summary.startswith("0 of 3 values of sla_state")
    assert said["days_open_is_distributed_as_before"].details["without_history"] == 1
    assert fixed.target == TARGET
