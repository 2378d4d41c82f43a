"""The runbook of a run says in every state what is done and what is next; one installation has a run in each of them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner
from support import lost_once_recorded
from test_docs import ROOT, read_page

from backfill_assets import faults
from backfill_assets.audit.report import report
from backfill_assets.audit.verification import verify
from backfill_assets.cli.command import cli
from backfill_assets.decisions import reject
from backfill_assets.gates.judging import gate_chunks
from backfill_assets.installation import Platform
from backfill_assets.operations.garbage import collect, find
from backfill_assets.operations.run_on_record import StepState
from backfill_assets.operations.runbook import TITLES, Step, markdown, steps
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.ending import cancel
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.staging import executor
from backfill_assets.staging.executor import stage_chunks
from benchmarks import small_table
from benchmarks.small_table import (
    HISTORY,
    READINGS,
    SCOPE,
    closed,
    compute,
    declared,
    initialise,
    manifest,
    opened,
    planned,
    staged,
)
from manifests.lifecycle import RunState
from manifests.limits import Safety
from manifests.model import Conflict, Mode, OnConflict, RunManifest
from manifests.run_terms import Freeze
from manifests.steps import Series
from resources.ledger import judged
from resources.ledger.facade import Verdict
from resources.ledger.tables import waits
from resources.ledger.transactions import system_clock as now
from resources.sinks.records_table import RecordsTable

DONE, NOW, LATER, NEVER = StepState.DONE, StepState.NOW, StepState.LATER, StepState.NEVER
MAY, JUNE, JULY, AUGUST, SEPTEMBER = [
    (f"2020-{month:02}-01", f"2020-{month:02}-{last}") for month, last in ((5, 31), (6, 30), (7, 31), (8, 31), (9, 30))
]
REPLACE = "REPLACE_PARTITIONS"


def changed(contract: RunManifest, **fields: Any) -> RunManifest:
    return contract.model_copy(update=fields)


def broken(*arguments: Any) -> Any:
    raise ValueError("the row of meter m3 cannot be read")


def misplaced(run: Any, chunks: Any, prefix: str, *_: Any) -> Any:
    """Compute rows of other days than the chunk's, which its gate finds."""
    right = small_table.rows_of

    def wrong(*arguments: Any) -> list[dict[str, Any]]:
        return [row | {"day": row["day"] + timedelta(days=70)} for row in right(*arguments)]

    with mock.patch.object(small_table, "rows_of", wrong):
        return compute(run, chunks, prefix)


def ran(platform: Platform, contract: RunManifest) -> None:
    planned(platform, contract)
    assert staged(platform, contract.run_id).state is RunState.VALIDATED


def build(platform: Platform) -> None:
    """Make a run in every state."""
    initialise(platform)
    with_publications(platform)
    under_way(platform)
    failed(platform)
    validated_or_ended(platform)


MANUAL = Safety(requiresManualPublish=True, sinks=("run_audit",))


def with_publications(platform: Platform) -> None:
    ran(platform, manifest("history", REPLACE, HISTORY, computed_by="1"))
    publish(platform, "history")
    ran(platform, changed(manifest("earlier", REPLACE, MAY, computed_by="1"), safety=MANUAL))
    publish(platform, "earlier")
    ran(platform, manifest("later", REPLACE, MAY))
    publish(platform, "later")
    ran(platform, manifest("taken-back", REPLACE, JUNE))
    publish(platform, "taken-back")
    rollback(platform, "taken-back")
    ran(platform, manifest("named", "VERSIONED", JULY, version="v2", acceptance="LATER"))
    publish(platform, "named")
    waits_a_while = Conflict(onConflict=OnConflict.WAIT, waitMinutes=60)
    replans = Conflict(onConflict=OnConflict.REPLAN)
    ran(platform, manifest("overtaken", REPLACE, AUGUST))
    ran(platform, changed(manifest("overtaken-waits", REPLACE, AUGUST), conflict=waits_a_while))
    ran(platform, changed(manifest("overtaken-replans", REPLACE, AUGUST), conflict=replans))
    ran(platform, manifest("overtaken-refused", REPLACE, AUGUST))
    ran(platform, manifest("overtaker", REPLACE, AUGUST))
    publish(platform, "overtaker")
    with pytest.raises(Exception, match="no longer holds"):
        publish(platform, "overtaken-refused")


def under_way(platform: Platform) -> None:
    ledger = platform.ledger
    plan_run(platform, manifest("planned", REPLACE, SCOPE))
    planned(platform, changed(manifest("approved", REPLACE, SCOPE), freeze=Freeze(hours=2)))
    for name, process in (("computed", os.getpid()), ("abandoned", dead_process())):
        record = planned(platform, manifest(name, REPLACE, SCOPE))
        with mock.patch("os.getpid", return_value=process):
            ledger.start_attempt(
                name, [one.key for one in record.plan.chunks], edition=0, actor="ada", location="file:///staging"
            )
    record = planned(platform, manifest("staged", REPLACE, SCOPE))
    stage_chunks(platform, "staged", [one.key for one in record.plan.chunks])
    record = planned(platform, manifest("half-staged", REPLACE, SCOPE))
    stage_chunks(platform, "half-staged", [record.plan.chunks[0].key])
    gate_chunks(platform, "half-staged")
    record = planned(platform, manifest("gated", REPLACE, SCOPE))
    stage_chunks(platform, "gated", [one.key for one in record.plan.chunks])
    gate_chunks(platform, "gated")
    record = planned(platform, manifest("unusual", REPLACE, SCOPE))
    stage_chunks(platform, "unusual", [one.key for one in record.plan.chunks])
    gate_chunks(platform, "unusual")
    asks = [Verdict(gate, passed=False, summary="down by 80%", details={}, asks=True) for gate in record.plan.gates[:1]]
    assert ledger.judge("unusual", asks, "ada", of=judged.name_of(ledger.chunks("unusual")))


def failed(platform: Platform) -> None:
    planned(platform, manifest("failed-computing", REPLACE, SCOPE))
    with mock.patch.object(executor, "compute_batch", broken):
        staged(platform, "failed-computing")
    planned(platform, manifest("failed-chunk-gate", REPLACE, SCOPE))
    with mock.patch.object(executor, "compute_batch", misplaced):
        staged(platform, "failed-chunk-gate")
    planned(platform, changed(manifest("failed-run-gate", REPLACE, SCOPE), safety=Safety(maxRowsExpected=20)))
    staged(platform, "failed-run-gate")


def validated_or_ended(platform: Platform) -> None:
    ledger = platform.ledger
    ran(platform, manifest("valid", REPLACE, SCOPE))
    ran(platform, changed(manifest("valid-manual", REPLACE, SCOPE), safety=MANUAL))
    ran(platform, changed(manifest("valid-dry", REPLACE, SCOPE), mode=Mode.DRY_RUN))
    ran(platform, changed(manifest("steps.s002", REPLACE, SCOPE), series=Series(of="steps", step=2, steps=2)))
    ran(platform, manifest("valid-frozen", REPLACE, SCOPE))
    with ledger.engine.begin() as connection:
        why = "frozen by approved (2020-02-01 to 2020-03-31, at most until 2020-01-01 00:00 UTC)"
        row = {"run_id": "valid-frozen", "target": small_table.READINGS, "why": why, "since_at": now()}
        connection.execute(waits.insert().values(**row))
    record = plan_run(platform, manifest("rejected", REPLACE, SCOPE))
    reject(platform, "rejected", by="grace", comment="not before year end", plan_hash=record.plan_hash)
    ran(platform, manifest("rejected-late", REPLACE, SCOPE))
    reject(platform, "rejected-late", by="grace", comment="the figures are wrong")
    planned(platform, manifest("cancelled", REPLACE, SCOPE))
    cancel(platform, "cancelled", "ada", "nobody wants it")


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    home = tmp_path_factory.mktemp("runbook") / "home"
    with declared():
        platform = opened(home)
        build(platform)
        yield platform
        closed(platform)


Book = Callable[[str], dict[str, Step]]


@pytest.fixture
def book(platform: Platform) -> Book:
    return lambda run_id: {step.title: step for step in steps(platform, run_id)}


# a letter a step, in order: d(one), n(ow), l(ater), - (does not apply)
EXPECTED = {
    "planned": "ddnlll-lllll",
    "approved": "dddnll-lllll",
    "computed": "ddddnl-lllll",
    "abandoned": "dddnll-lllll",
    "half-staged": "dddnll-lllll",
    "staged": "ddddnl-lllll",
    "gated": "dddddn-lllll",
    "unusual": "dddddn-lllll",
    "failed-computing": "dddnll-lllll",
    "failed-chunk-gate": "ddddnl-lllll",
    "failed-run-gate": "dddddn-lllll",
    "valid": "dddddd-nllll",
    "valid-manual": "ddddddnnllll",
    "valid-dry": "ddddddn---ll",
    "valid-frozen": "dddddd-nllll",
    "steps.s002": "dddddd-nllll",
    "overtaken": "dddddd-nllll",
    "overtaken-waits": "dddddd-nllll",
    "overtaken-replans": "dddddd-nllll",
    "overtaken-refused": "dddddd----ll",
    "history": "dddddd-ddlll",
    "named": "dddddd-ndlll",
    "earlier": "ddddddddd-ll",
    "taken-back": "dddddd-dddll",
    "rejected": "ddd--------l",
    "rejected-late": "dddddd----ll",
    "cancelled": "ddd--------l",
}


@pytest.mark.parametrize("run_id", EXPECTED)
def test_every_state(book: Book, run_id: str) -> None:
    letters = {DONE: "d", NOW: "n", LATER: "l", NEVER: "-"}
    found = book(run_id)
    assert tuple(found) == TITLES
    assert "".join(letters[step.state] for step in found.values()) == EXPECTED[run_id], markdownish(found)


def markdownish(found: dict[str, Step]) -> str:
    return "\n".join(f"{step.title}: {step.state}: {step.facts} {step.commands}" for step in found.values())


# what is next, and a fact that says why; the whole of both, so that a wrong command is seen
NEXT = {
    "planned": ("Approve", "the approver cannot be ada", ["approve", "reject"]),
    "approved": ("Launch", "materialise silver.readings for backfill 'approved'", ["run"]),
    "computed": ("Watch", "chunks: planned 2", ["status"]),
    "abandoned": ("Launch", "waits for a launch of 2020-02 to 2020-03", ["run"]),
    "half-staged": ("Launch", "waits for a launch of 2020-03, 1 chunk(s)", ["run"]),
    "staged": ("Watch", "staged chunks wait for their gate", ["run"]),
    "gated": ("Judge", "nothing has judged the run yet", ["run"]),
    "unusual": ("Judge", "an owner of the table says", ["diff", "accept-change", "cancel"]),
    "failed-computing": ("Launch", "2020-02: ValueError", ["run", "reject"]),
    "failed-chunk-gate": ("Watch", "2020-02: day: in its chunk", ["status", "reject"]),
    "failed-run-gate": ("Judge", "rows_within_expected NOT PASSED", ["status", "reject"]),
    "valid": ("Publish", "the sensor publishes it", ["publish"]),
    "valid-manual": ("Publish", "nothing stands against it", ["publish"]),
    "valid-dry": ("Review", "mode DRY_RUN", ["status", "cancel"]),
    "valid-frozen": ("Publish", "waits: frozen by approved", ["runbook approved"]),
    "steps.s002": ("Publish", "run 'steps.s001' is unknown", ["runbook steps.s001"]),
    "overtaken": ("Publish", "1 chunk(s) of silver.readings have changed", ["reject"]),
    "overtaken-waits": ("Publish", "onConflict WAIT: until", ["status"]),
    "overtaken-replans": ("Publish", "(0 of 3 times)", ["run"]),
    "named": ("Publish", "its version is v2", ["accept"]),
}


@pytest.mark.parametrize("run_id", NEXT)
def test_what_is_next(book: Book, run_id: str) -> None:
    title, fact, commands = NEXT[run_id]
    step = book(run_id)[title]
    assert step.state is NOW
    assert fact in "; ".join(step.facts)
    said = [command.removeprefix("backfill ").partition(" --")[0] for command in step.commands]
    assert [one.removesuffix(f" {run_id}") for one in said] == commands


def test_every_command_exists_with_its_options(platform: Platform) -> None:
    said = {command for run_id in EXPECTED for step in steps(platform, run_id) for command in step.commands}
    assert len({command.split()[1] for command in said}) >= 10
    for command in said:
        _, name, *rest = command.split()
        known = {option for parameter in cli.commands[name].params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= known, command


def test_what_is_done_is_said_with_who_and_how_much(book: Book) -> None:
    facts = {title: "; ".join(step.facts) for title, step in book("earlier").items()}
    assert "requested by ada: meters that were misread" in facts["Write the manifest"]
    assert "APPROVED by grace" in facts["Approve"]
    assert "1 attempt(s) STAGED" in facts["Launch"]
    assert "chunks: passed 1; " in facts["Watch"]
    assert "all_chunks_staged passed" in facts["Judge"]
    assert "2 files added, 0 removed" in facts["Publish"]
    assert ": snapshot none -> " in "; ".join(book("history")["Publish"].facts)  # nothing was there before
    assert "sink run_audit: told of the publish" in facts["Tell"]
    assert "by run later" in facts["Undo"]
    assert "unharmed" in facts["Prove"]
    assert "365 days" in facts["Archive"]
    assert "rollback by " in "; ".join(book("taken-back")["Undo"].facts)
    assert book("taken-back")["Undo"].commands == ("backfill reinstate taken-back",)
    assert book("history")["Undo"].commands == ("backfill rollback history",)
    assert "not before year end" in "; ".join(book("rejected")["Approve"].facts)
    assert "nobody wants it" in "; ".join(book("cancelled")["Launch"].facts)


def test_damaged_evidence_is_said(platform: Platform, book: Book) -> None:
    file = platform.evidence.path("history") / "plan.json"
    content = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(content.replace(b"readings", b"findings", 1))
    try:
        step = book("history")["Prove"]
    finally:
        file.write_bytes(content)
    assert (step.state, step.commands) == (NOW, ("backfill verify history", "backfill doctor"))
    assert "plan.json" in "; ".join(step.facts)


def test_evidence_that_was_not_told_is_told_again(platform: Platform, book: Book) -> None:
    ran(platform, manifest("untold", REPLACE, SEPTEMBER))
    with mock.patch.object(faults, "reach", lost_once_recorded), pytest.raises(ConnectionError):
        publish(platform, "untold")
    step = book("untold")["Tell"]
    assert (step.state, step.commands) == (NOW, ("backfill publish untold",))
    assert "MISSING" in "; ".join(step.facts)
    publish(platform, "untold")
    assert book("untold")["Tell"].state is DONE


def test_evidence_that_was_told_and_is_gone_is_no_publication_to_be_told_again(platform: Platform, book: Book) -> None:
    record = platform.evidence.folder / "history" / "records" / "publish.json"
    raw = record.read_bytes()
    record.unlink()
    step = book("history")["Tell"]
    assert (step.state, step.commands) == (NOW, ("backfill verify history",))
    assert "restore" in "; ".join(step.facts)
    record.write_bytes(raw)
    assert book("history")["Tell"].state is DONE


def test_what_is_kept_long_enough_is_archived(platform: Platform) -> None:
    later = opened(platform.settings.home, keep_dead_runs_days=0)
    try:
        step = steps(later, "rejected-late")[-1]
        assert (step.state, step.commands) == (NOW, ("backfill gc", "backfill gc --delete"))
        assert steps(later, "rejected")[-1].state is DONE, "it never had a file"
        collect(later, find(later, at=now()), by="ada", at=now())
        assert steps(later, "rejected-late")[-1].state is DONE
    finally:
        closed(later)


def test_the_command_prints_json_markdown_and_a_table(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))

    def said(*words: str) -> str:
        found = CliRunner().invoke(cli, ["runbook", *words], catch_exceptions=False)
        assert found.exit_code == 0
        return found.stdout

    told = json.loads(said("valid", "--json"))
    assert (told["runId"], told["state"]) == ("valid", "VALIDATED")
    assert [one["title"] for one in told["steps"]] == list(TITLES)
    assert {"title", "state", "facts", "commands"} == set(told["steps"][0])
    assert said("valid", "--markdown") == markdown(
        platform.ledger.run("valid"), platform.ledger.run("valid").state_reason, steps(platform, "valid")
    )
    table = said("valid")
    assert all(title in table for title in TITLES)
    assert "$ backfill publish valid" in table


def test_the_page_has_the_same_steps(platform: Platform) -> None:
    rows = [line for _, line in read_page(ROOT / "docs" / "runbook.md")[1] if line.startswith("| ")]
    numbered = [line.split("|")[1:3] for line in rows if line.split("|")[1].strip().isdigit()]
    assert [(int(number), title.strip()) for number, title in numbered] == list(enumerate(TITLES, start=1))


def test_each_step_of_the_page_leads_to_its_section() -> None:
    lines = [line for _, line in read_page(ROOT / "docs" / "runbook.md")[1]]
    headings = {anchor(line.removeprefix("## ")) for line in lines if line.startswith("## ")}
    linked = [
        link.split(")")[0]
        for line in lines
        if line.startswith("| ") and line.split("|")[1].strip().isdigit()
        for link in line.split("(#")[1:]
    ]
    assert len(linked) >= len(TITLES)
    assert set(linked) <= headings


def anchor(heading: str) -> str:
    kept = "".join(one for one in heading.lower() if one.isalnum() or one in " -")
    return kept.replace(" ", "-")


def test_a_merge_that_left_chunks_alone_is_undone_although_an_earlier_run_holds_them(tmp_path: Path) -> None:
    with declared():
        platform = opened(tmp_path / "home")
        initialise(platform)
        right = small_table.rows_of

        def rows_of(version: str, start: date, end: date) -> list[dict[str, Any]]:
            return [row for row in right(version, start, end) if row["meter"] != "m1" or start >= date(2020, 3, 1)]

        with mock.patch.object(small_table, "rows_of", rows_of):
            ran(platform, manifest("history", REPLACE, HISTORY, computed_by="1"))
            publish(platform, "history")
            ran(platform, manifest("merged", "MERGE_BY_KEY", HISTORY, merge={"entities": ["m1"]}))
        publish(platform, "merged")
        keys = [chunk.key for chunk in platform.ledger.run("merged").plan.chunks]
        assert set(platform.ledger.accepted(READINGS, keys).values()) == {"history", "merged"}

        def undo(run_id: str) -> Step:
            return steps(platform, run_id)[TITLES.index("Undo")]

        later = "Later runs hold part of its scope"
        assert (later in report(platform, "history"), later in report(platform, "merged")) == (True, False)
        assert undo("merged").commands == ("backfill rollback merged",)
        assert undo("history").facts == ("part of its scope is held by later runs: roll back merged first",)
        assert rollback(platform, "merged").files_removed
        assert later not in report(platform, "history")
        closed(platform)


@pytest.mark.parametrize("raised", [ValueError("no such column\x1b"), OSError("the disk is full")])
def test_a_sink_that_fails_in_a_way_of_its_own_is_on_record_and_is_told_again(
    tmp_path: Path, raised: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    with declared():
        platform = opened(tmp_path / "home")
        initialise(platform)
        ran(platform, changed(manifest("told", REPLACE, HISTORY), safety=Safety(sinks=("run_audit",))))
        with mock.patch.object(RecordsTable, "send", side_effect=raised):
            assert publish(platform, "told").new
        assert platform.ledger.run("told").state is RunState.PUBLISHED
        assert "\x1b" not in capsys.readouterr().err
        failed = next(one for one in platform.ledger.sink_attempts("told") if one.decision == "FAILED")
        assert failed.reason == f"{type(raised).__name__}: {raised}"
        tell = steps(platform, "told")[TITLES.index("Tell")]
        assert (tell.state, tell.commands) == (NOW, ("backfill publish told",))
        publish(platform, "told")
        assert steps(platform, "told")[TITLES.index("Tell")].state is DONE
        assert verify(platform, ["told"]).everything == []
        closed(platform)


def test_a_run_that_was_planned_with_other_code_than_is_installed_is_not_told_to_be_launched(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = next(one for one in platform.ledger.runs(states=[RunState.APPROVED]))
    ours = dataclasses.replace(record, manifest=changed(record.manifest, development=False))
    monkeypatch.setattr(platform.ledger, "run", lambda _run_id: ours)
    launch = TITLES.index("Launch")
    step = steps(platform, record.run_id)[launch]
    assert (step.state, step.commands) == (NOW, (f"backfill run {record.run_id}",))
    installed = dataclasses.replace(record.plan.code, content_hash="0" * 64)
    monkeypatch.setattr(Platform, "code_of", lambda *_: installed)
    step = steps(platform, record.run_id)[launch]
    assert step.commands == ()
    assert any("no launch here would compute it" in fact and "this is 000000000000" in fact for fact in step.facts)
