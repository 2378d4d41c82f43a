"""A gate that raises has not passed: its run fails with the gate's name and the error, and says what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from pyspark.sql import functions as F
from test_pages import page
from worlds import World, declare, make_world

from backfill_assets import exception_table
from backfill_assets.pages import run_path
from backfill_assets.products.enforcement import CASE_SLA_DAILY
from backfill_assets.reconciling import manifest_of, plan_reconciliation, reconcile
from backfill_assets.runbook import StepState, steps
from backfill_assets.target import EXCEPTION_COLUMNS, Finding, Level, Reconciliation
from manifests.lifecycle import RunState
from resources.ledger import RunRecord, Verdict

GATE = "meters_agree"
UNKNOWN = "AnalysisException: [UNRESOLVED_COLUMN"


@pytest.fixture(scope="module")
def one_month(tmp_path_factory: pytest.TempPathFactory) -> World:
    home = tmp_path_factory.mktemp("raised") / "home"
    return make_world(home, cases=30, start=date(2010, 1, 1), end=date(2010, 1, 31), gates=[GATE])


def declared(monkeypatch: pytest.MonkeyPatch, check: Any) -> None:
    gate = Reconciliation(GATE, Level.RECORD, "The meters agree.", check)
    declare(monkeypatch, replace(CASE_SLA_DAILY, reconciliations=(*CASE_SLA_DAILY.reconciliations, gate)))


def raises(context: Any) -> Finding:
    return Finding(context.source.select("metre").count() == 0, "never said")


def passes(_context: Any) -> Finding:
    return Finding(True, "they agree")


def cannot_list(context: Any) -> Finding:
    return Finding(False, "one differs", exceptions=lambda: context.source.select(F.col("metre").alias("key")))


def verdict(world: World, record: RunRecord) -> Verdict:
    found: Mapping[str, Verdict] = {one.gate: one for one in world.platform.ledger.verdicts(record.run_id)}
    return found[GATE]


def test_a_gate_that_raises_fails_its_run_and_a_launch_lets_it_judge_again(
    one_month: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared(monkeypatch, raises)
    record = one_month.ran(one_month.manifest())
    assert record.state is RunState.FAILED
    assert record.state_reason.startswith(f"gate(s) not passed: {GATE}; {GATE} raised {UNKNOWN}")
    assert "\n" not in record.state_reason
    found = verdict(one_month, record)
    assert not found.passed
    assert found.summary.startswith(f"could not judge: {UNKNOWN}")

    judged = {step.title: step for step in steps(one_month.platform, record.run_id)}["Judge"]
    assert judged.state is StepState.NOW
    assert "launch again" in judged.facts[-1]
    assert judged.commands[0] == f"backfill run {record.run_id}"
    assert "a gate could not judge" in page(one_month.platform, run_path(record.run_id))

    declared(monkeypatch, passes)
    again = one_month.stage(record)
    assert again.computed == []
    assert one_month.platform.ledger.run(record.run_id).state is RunState.VALIDATED


def test_rows_that_cannot_be_listed_do_not_hide_what_the_gate_has_found(
    one_month: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared(monkeypatch, cannot_list)
    record = one_month.ran(one_month.manifest())
    assert (record.state, record.state_reason) == (RunState.FAILED, f"gate(s) not passed: {GATE}")
    summary = verdict(one_month, record).summary
    assert summary.startswith(f"one differs; the rows that disagree could not be listed: {UNKNOWN}")


def test_what_is_judged_again_is_listed_whatever_was_listed_before(
    one_month: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, world = "clocks_agree", replace(one_month, gates=["clocks_agree", GATE])

    def differs(context: Any) -> Finding:
        row = [
            F.lit(text).alias(name) for name, text in zip(EXCEPTION_COLUMNS, ("{}", "{}", "1", "2", "x"), strict=True)
        ]
        return Finding(False, "one differs", exceptions=lambda: context.source.limit(1).select(*row))

    def gates(check: Any) -> None:
        both = [Reconciliation(name, Level.RECORD, "They agree.", by) for name, by in ((other, differs), (GATE, check))]
        declare(monkeypatch, replace(CASE_SLA_DAILY, reconciliations=(*CASE_SLA_DAILY.reconciliations, *both)))

    gates(raises)
    record = world.ran(world.manifest())
    gates(cannot_list)
    world.stage(record)
    assert "could not be listed" in verdict(world, record).summary
    gates(differs)
    world.stage(record)
    assert world.platform.ledger.run(record.run_id).state is RunState.FAILED
    found = {one.gate: one for one in world.platform.ledger.verdicts(record.run_id)}
    for gate in (other, GATE):
        pointer = found[gate].details["exceptions"]
        listed = exception_table.rows(world.platform, record.run_id, {gate: pointer["judgement"]}, 10)
        assert (pointer["rows"], [row["what"] for row in listed]) == (1, ["x"])


def test_a_reconciliation_of_what_is_published_fails_by_a_gate_that_raises(
    one_month: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared(monkeypatch, passes)
    one_month.published(one_month.manifest())
    declared(monkeypatch, raises)
    manifest = manifest_of(one_month.platform, CASE_SLA_DAILY, gates=[GATE])
    record = plan_reconciliation(one_month.platform, manifest)
    assert not reconcile(one_month.platform, record.run_id)[0].passed
    assert one_month.platform.ledger.run(record.run_id).state is RunState.FAILED
    assert verdict(one_month, record).summary.startswith(f"could not judge: {UNKNOWN}")
