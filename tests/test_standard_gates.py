"""The gates that any target gets by naming them: what they find, and what they are given of the rows that readers see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import backfill_assets as ba
from backfill_assets.declarations.target import ChunkRows, Finding
from backfill_assets.gates.judging import rows_by_chunk
from backfill_assets.publication.publisher import publish
from benchmarks.small_table import (
    HISTORY,
    SCOPE,
    TARGET,
    closed,
    declared,
    initialise,
    manifest,
    opened,
    planned,
    rows,
    staged,
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
            found = rows_by_chunk(platform, TARGET, record.plan, platform.ledger.chunks(run_id))
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
