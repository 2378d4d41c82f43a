"""When the breaches of a run look unusual: the gate that asks for an owner, on made-up counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from backfill_assets.declarations.target import Finding, ReconciliationContext
from backfill_assets.products.enforcement.reconciliations import TOLERANCES, breaches_look_reasonable

MONTHS = [f"2011-{month:02}" for month in range(1, 13)]
USUAL = [100, 110, 90, 105, 95, 100, 120, 80, 100, 110, 90, 100]


def rows(month: str, count: int, jurisdiction: str = "IT") -> list[dict[str, Any]]:
    """Return what a chunk gate measures of a month: so many breaches, and many more days without."""
    where = {"jurisdiction": jurisdiction, "clock": "PAYMENT"}
    return [where | {"sla_state": "BREACHED", "rows": count}, where | {"sla_state": "RUNNING", "rows": 9_000}]


def judged(before: Sequence[int] | None, after: Sequence[int], **tolerances: float) -> Finding:
    accepted: Mapping[str, Any] = dict.fromkeys(MONTHS)
    if before is not None:
        accepted = {month: rows(month, count) for month, count in zip(MONTHS, before, strict=False)}
    staged = [{"chunk": month} | row for month, count in zip(MONTHS, after, strict=False) for row in rows(month, count)]
    context = ReconciliationContext(
        transform=cast("Any", None),
        source=cast("Any", None),
        source_rows=0,
        source_last_day=cast("Any", None),
        staged=cast("Any", None),
        measures=staged,
        after=staged,
        accepted=accepted,
        tolerances=TOLERANCES | tolerances,
        shared=cast("Any", None),
    )
    return breaches_look_reasonable(context)


def months_of(finding: Finding) -> list[str]:
    return [row["month"] for row in finding.sample]


def test_a_first_version_has_nothing_to_be_compared_with():
    assert judged(None, USUAL).passed


def test_breaches_that_stay_about_the_same_pass():
    found = judged(USUAL, [count + 7 for count in USUAL])
    assert found.passed
    assert not found.asks


def test_breaches_down_by_four_fifths_ask_for_an_owner_and_neither_pass_nor_fail():
    found = judged(USUAL, [count // 5 for count in USUAL])
    assert (found.passed, found.asks) == (False, True)
    assert "all" in months_of(found)
    assert found.sample[0]["change"] == "-80.0%"
    assert found.details == {"comparable_chunks": 12, "accepted": 1200, "staged": 240, "unusual": len(found.sample)}


def test_one_month_far_outside_its_own_history_asks():
    after = [*USUAL[:5], 1_000, *USUAL[6:]]
    assert months_of(judged(USUAL, after)) == ["all", "2011-06"]
    assert months_of(judged(USUAL, after, unusual_change_percent=5_000.0)) == []


def test_what_only_moved_to_the_month_beside_is_no_change():
    before, after = list(USUAL), list(USUAL)
    before[5], after[5] = 1_100, 100  # a backlog of a thousand was due on the first of a month: a day earlier, now
    after[4] = 1_095
    assert judged(before, after).passed


def test_a_change_within_what_the_slice_scatters_anyway_passes():
    wild = [10, 400, 20, 300, 5, 350, 15, 380, 12, 290, 30, 410]
    after = list(wild)
    after[0] = 200
    assert judged(wild, after).passed


def test_few_breaches_say_nothing_however_much_they_change():
    assert judged([3] * 12, [0] * 12).passed
    assert judged([3] * 12, [0] * 12, unusual_change_breaches=1.0).asks
