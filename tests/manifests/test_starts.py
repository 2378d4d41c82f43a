"""States that a run may start from: what a plan pins of one, and each reason for which it is not started from. By rules alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from support import a_contract, a_manifest, a_plan, a_source, monthly_files, publishing

from manifests.errors import PlanRefused
from manifests.facts import DeclaredStart
from manifests.model import DayRange
from manifests.plan import Plan, plan_from_json
from manifests.starts import FoundStart, MadeState, start_problems

STATES, SOURCE = "silver.states", "bronze.case_events"
QUARTER = publishing("2012-01-01", "2012-03-31")
DAY = date(2011, 11, 30)
MADE = MadeState("made-them", "2.0.0", "", "", 5, is_ancestor=True, came=())
DECLARED = DeclaredStart(STATES, {"2": ("2.0.0",)})
FOUND = FoundStart(
    "as_of",
    "2011-11",
    DAY,
    a_source(monthly_files(date(2011, 1, 1), 12), table=STATES, snapshot_id=77, has_dates=True),
    MADE,
)


def asking(table: str = STATES, day: date = DAY, **changes: Any) -> Any:
    start = {"table": table, "day": day}
    return a_manifest(**({"target": QUARTER, "source": {"table": SOURCE, "startFrom": start}} | changes))


def started(found: FoundStart | None = FOUND, declared: DeclaredStart | None = DECLARED, **changes: Any) -> Plan:
    return a_plan(
        asking(**changes), contract=a_contract(start=declared, warm_up_days=3, reads_look_back=True), start=found
    )


def test_a_plan_pins_the_state_and_its_hash_is_of_it() -> None:
    plan = started()
    assert plan.start is not None
    assert (plan.start.table, plan.start.day, plan.start.snapshot_id) == (STATES, DAY, 77)
    assert [(one.run_id, one.chunks) for one in plan.start.upstream] == [("made-them", ("2011-11",))]
    assert plan.start.window(date(2012, 2, 1), date(2012, 2, 29)) == (DAY, date(2011, 12, 1)), "whichever chunk it is"
    assert plan_from_json(plan.to_json()) == plan
    other = started(replace(FOUND, made=replace(MADE, run_id="another")))
    assert other.hash != plan.hash
    assert plan.made_of == [(SOURCE, plan.source_snapshot_id)]
    assert plan.source_pins == [*plan.made_of, (STATES, 77)]


def test_a_plan_without_says_nothing_of_it() -> None:
    plan, manifest = a_plan(), a_manifest()
    assert plan.start is None
    assert "startFrom" not in manifest.canonical()
    whole = a_plan(a_manifest(target=QUARTER), contract=a_contract(reads_look_back=True))
    part = started()
    assert whole.look_back is not None
    assert part.look_back is not None
    assert part.look_back.rows < whole.look_back.rows, "what is in the state is not read"


REASONS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing declared": ({"declared": None}, "declares none"),
    "another table": ({"table": "silver.others"}, "declares those of silver.states"),
    "a day within the chunks": (
        {"day": date(2012, 1, 31), "found": replace(FOUND, chunk="2012-01", chunk_ends=date(2012, 1, 31))},
        "reads the days from 2011-12-29 on as they are",
    ),
    "a day within the warm-up": ({"day": date(2011, 12, 30)}, "reads the days from 2011-12-29 on as they are"),
    "within a chunk": ({"day": date(2011, 11, 15)}, "chunk 2011-11 of silver.states ends on 2011-11-30"),
    "nobody holds it": ({"found": replace(FOUND, made=None)}, "no accepted run holds 2011-11 of silver.states"),
    "no snapshot": ({"found": replace(FOUND, state=None, made=None)}, "no accepted run holds 2011-11"),
    "a policy": ({"found": replace(FOUND, policy=(SOURCE,))}, "the policy says what may be used of bronze.case_events"),
    "another version": (
        {"found": replace(FOUND, made=replace(MADE, version="1.0.0"))},
        "was made by version 1.0.0 ('made-them')",
    ),
    "a version without": (
        {"declared": DeclaredStart(STATES, {"9": ("2.0.0",)})},
        "starts from states of version none",
    ),
    "other code": (
        {"found": replace(FOUND, made=replace(MADE, code="then", code_now="now"))},
        "and the code is now now",
    ),
    "another history": (
        {"found": replace(FOUND, made=replace(MADE, is_ancestor=False))},
        "was made of snapshot 5 of bronze.case_events",
    ),
    "an expired one": ({"found": replace(FOUND, made=replace(MADE, came=None))}, "is gone"),
    "late rows": (
        {"found": replace(FOUND, made=replace(MADE, came=(date(2011, 3, 4), date(2011, 5, 6))))},
        "rows of bronze.case_events of 2011-03-04",
    ),
}


ALSO_NO_END = ("a day within the warm-up",)
"""Its day is none with a state, either."""


@pytest.mark.parametrize("name", REASONS)
def test_a_state_that_does_not_fit_is_refused_by_name(name: str) -> None:
    changes, said = REASONS[name]
    with pytest.raises(PlanRefused) as found:
        started(**changes)
    assert said in str(found.value)
    assert {one.where for one in found.value.problems} == {"source.startFrom"}
    assert len(found.value.problems) == 1 + (name in ALSO_NO_END)
    assert all(one.rule and one.fix for one in found.value.problems)


def test_every_reason_is_said_at_once() -> None:
    wrong = replace(MADE, version="1.0.0", code="then", code_now="now", came=(date(2011, 3, 4),))
    with pytest.raises(PlanRefused) as found:
        started(replace(FOUND, made=wrong, policy=(SOURCE,)))
    assert len(found.value.problems) == 4


def test_what_computes_no_rows_or_whole_entities_starts_from_nothing() -> None:
    days = DayRange(start=date(2012, 1, 1), end=date(2012, 3, 31))
    contract = a_contract(start=DECLARED)
    merged = QUARTER | {"publishMode": "MERGE_BY_KEY", "merge": {"entities": ["C1"]}}
    said = start_problems(asking(target=merged, kind="REPAIR"), contract, FOUND, days)
    assert [one.what for one in said] == ["the run merges, and names states to start from"]
    said = start_problems(asking(kind="RECONCILIATION"), contract, FOUND, days)
    assert [one.what for one in said] == ["the run is a reconciliation"]
