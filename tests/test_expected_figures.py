"""The gate of what a manifest expects: equal figures pass, others block the run and are told by chunk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from worlds import SPARK

from backfill_assets.gates import exception_table
from backfill_assets.installation import Platform
from benchmarks.impure import EVENTS_A_DAY, NAMES, PURE, installed, ran
from manifests.expected import EXPECTED_FIGURES_GATE
from manifests.lifecycle import RunState
from resources.ledger.facade import Verdict

ROWS = {"2020-01": 31 * len(NAMES), "2020-02": 29 * len(NAMES), "2020-03": 31 * len(NAMES)}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with installed(tmp_path_factory.mktemp("expected") / "home", spark=SPARK) as found:
        yield found


def judged(platform: Platform, expected: Any, **changes: Any) -> tuple[str, Verdict]:
    run_id = ran(platform, PURE["sums"], validation={"expected": expected}, **changes)
    (found,) = [one for one in platform.ledger.verdicts(run_id) if one.gate == EXPECTED_FIGURES_GATE]
    return run_id, found


def value_of(first: int, last: int) -> int:
    """What the events of days from `first` to `last`, counted from the first of January, add up to."""
    return sum(
        1000 * day + 37 * number + event
        for day in range(first, last + 1)
        for number in range(len(NAMES))
        for event in range(EVENTS_A_DAY)
    )


def test_figures_that_come_out_pass(platform: Platform) -> None:
    first = ran(platform, PURE["sums"])
    digests = {chunk.chunk: chunk.digest for chunk in platform.ledger.chunks(first)}
    sums = {"2020-01": value_of(0, 30), "2020-02": value_of(31, 59), "2020-03": value_of(60, 90)}
    run_id, verdict = judged(
        platform,
        {
            "whole": {"rows": sum(ROWS.values()), "sums": {"value": str(value_of(0, 90))}},
            "chunks": {key: {"rows": ROWS[key], "sums": {"value": sums[key]}, "digest": digests[key]} for key in ROWS},
        },
    )
    assert verdict.passed
    assert verdict.summary == "figures of 3 chunk(s) and of all chunks compared with the manifest's; they are equal"
    assert platform.ledger.run(run_id).state is RunState.VALIDATED


def test_other_figures_block_the_run_and_are_told_by_chunk(platform: Platform) -> None:
    run_id, verdict = judged(
        platform,
        {
            "whole": {"rows": 1},
            "chunks": {
                "2020-01": {"rows": ROWS["2020-01"], "sums": {"value": str(value_of(0, 30))}},
                "2020-02": {"rows": 7, "sums": {"value": 7}},
                "2020-03": {"digest": f"rows-sha256-v1:{'0' * 64}"},
            },
        },
    )
    assert not verdict.passed
    assert platform.ledger.run(run_id).state is RunState.FAILED
    assert (verdict.details["compared"], verdict.details["disagreeing"]) == (4, 3)
    assert f"2020-02 has rows {ROWS['2020-02']}, not 7" in verdict.summary
    kept = verdict.details["exceptions"]
    rows = exception_table.rows(platform, run_id, {EXPECTED_FIGURES_GATE: kept["judgement"]}, 10)
    told = {(json.loads(row["slice"])["chunk"], *json.loads(row["expected"])) for row in rows}
    assert told == {
        ("2020-02", "rows"),
        ("2020-02", "sum of value"),
        ("2020-03", "digest"),
        ("all chunks", "rows"),
    }
    row = next(one for one in rows if "sum of value" in one["expected"])
    assert json.loads(row["found"]) == {"sum of value": str(value_of(31, 59))}


def test_a_dry_run_holds_rows_against_what_is_expected(platform: Platform) -> None:
    run_id, verdict = judged(
        platform, {"chunks": {"2020-01": {"rows": 0}}}, mode="DRY_RUN", sample={"chunks": ["2020-01"]}
    )
    assert not verdict.passed
    assert platform.ledger.run(run_id).state is RunState.FAILED


def test_of_a_merge_figures_are_those_that_readers_see(platform: Platform) -> None:
    """Nothing is published before: the rows after the merge are the merged ones."""
    _, verdict = judged(
        platform,
        {"whole": {"rows": 2 * 91}},
        declared={"entity": "name"},
        target={
            "table": "silver.meter_days",
            "publishRange": {"start": "2020-01-01", "end": "2020-03-31"},
            "publishMode": "MERGE_BY_KEY",
            "merge": {"entities": ["ann", "bob"], "onOlderVersion": "OVERWRITE"},
        },
    )
    assert verdict.passed, verdict


def test_a_chunk_without_rows_has_sums_of_nothing(platform: Platform) -> None:
    def none(inputs: Any, context: Any) -> Any:
        return PURE["sums"](inputs, context).where("day >= DATE '2020-02-01'")

    run_id = ran(platform, none, validation={"expected": {"chunks": {"2020-01": {"rows": 0, "sums": {"value": 0}}}}})
    (verdict,) = [one for one in platform.ledger.verdicts(run_id) if one.gate == EXPECTED_FIGURES_GATE]
    assert verdict.passed, verdict
