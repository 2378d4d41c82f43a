"""A paused run: its batch ends, no other begins, no launch goes on, and a decision with a reason ends it, from command and UI."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner
from test_pages import page

from backfill_assets.cli.command import cli
from backfill_assets.declarations.schedules import ReconciliationPolicy
from backfill_assets.defs.decision_jobs import DECISION_JOBS, pause_run, resume_run
from backfill_assets.defs.launch import initialise_instance
from backfill_assets.defs.publish import publication_requests
from backfill_assets.defs.run_queue import AT_ONCE
from backfill_assets.installation import Platform
from backfill_assets.operations import pausing
from backfill_assets.operations.runbook import steps
from backfill_assets.publication import publisher
from backfill_assets.publication.publisher import publish
from backfill_assets.staging import executor, stopping
from benchmarks import kills, small_table
from benchmarks.small_table import closed, manifest_data, planned, staged
from manifests.errors import PublicationRefused, RunStopped, TransitionRefused
from manifests.lifecycle import RunState
from manifests.reading import manifest_from

RUN = "paused"
WHY = "the month's end comes first"
CLOSED = "the month is closed"


@pytest.fixture
def platform(kept_site: Path) -> Iterator[Platform]:
    kills.restore(kept_site)
    platform = kills.at(kept_site)
    data = manifest_data(RUN, "REPLACE_PARTITIONS", small_table.SCOPE) | {"limits": {"maxChunksPerJob": 1}}
    planned(platform, manifest_from(data))
    yield platform
    closed(platform)


def keys(platform: Platform) -> list[str]:
    return [chunk.key for chunk in platform.ledger.run(RUN).plan.chunks]


def launched(platform: Platform) -> None:
    with stopping.launched(platform, RUN):
        staged(platform, RUN)


def pause(platform: Platform) -> None:
    pausing.pause(platform, RUN, by="olga", reason=WHY, through="backfill pause")


def while_computing(platform: Platform, act: Callable[[], Any], number: int = 1) -> Callable[..., Any]:
    """Return what computes a batch, and does something during the one of a number."""
    done: list[int] = []

    def compute(*arguments: Any, **named: Any) -> Any:
        done.append(1)
        if len(done) == number:
            act()
        return small_table.compute(*arguments, **named)

    return compute


def test_the_batch_under_way_is_staged_and_no_other_begins_in_whatever_launch(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(keys(platform)) == 2
    monkeypatch.setattr(executor, "compute_batch", while_computing(platform, lambda: pause(platform)))
    with pytest.raises(RunStopped, match=r"paused by olga \(backfill pause\)"):
        launched(platform)
    assert [one.state for one in platform.ledger.attempts(RUN)] == ["STAGED"], "nothing is interrupted, and none begins"
    assert [one.state for one in platform.ledger.chunks(RUN)] == ["STAGED", "PLANNED"], "and no gate judges"
    for _ in range(2):  # as after a kill
        with pytest.raises(RunStopped, match=WHY):
            launched(platform)
    assert len(platform.ledger.attempts(RUN)) == 1
    pausing.resume(platform, RUN, by="ada", reason=CLOSED)
    launched(platform)
    assert platform.ledger.run(RUN).state is RunState.VALIDATED
    assert publish(platform, RUN).new


def test_a_pause_during_the_last_batch_keeps_the_gates_from_judging(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "compute_batch", while_computing(platform, lambda: pause(platform), 2))
    with pytest.raises(RunStopped, match=WHY):
        launched(platform)
    assert [one.state for one in platform.ledger.chunks(RUN)] == ["STAGED", "STAGED"]
    assert platform.ledger.verdicts(RUN) == []


def test_a_validated_run_that_is_paused_is_published_by_nobody_until_it_is_resumed(platform: Platform) -> None:
    staged(platform, RUN)
    pause(platform)
    assert list(publication_requests(platform, small_table.TARGET)) == []
    with pytest.raises(PublicationRefused, match=WHY):
        publish(platform, RUN)
    pausing.resume(platform, RUN, by="ada", reason=CLOSED)
    assert [one.partition_key for one in publication_requests(platform, small_table.TARGET)] == [RUN]
    assert publish(platform, RUN).new
    rows = json.loads((platform.evidence.path(RUN) / "stops.json").read_text())
    (row,) = rows
    assert (row["kind"], row["stopped_by"], row["reason"], row["resumed_by"], row["resume_reason"]) == (
        "PAUSE",
        "olga",
        WHY,
        "ada",
        CLOSED,
    )


def test_status_page_and_runbook_say_that_it_is_paused_by_whom_and_why(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause(platform)
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    for arguments in (["status", RUN], ["status"]):
        shown = " ".join(CliRunner().invoke(cli, arguments).output.split())
        assert "paused by olga" in shown, arguments
        assert "month's end" in shown, arguments
    text = page(platform, f"/backfill/{RUN}")
    assert "<b>Paused</b> by olga" in text
    assert "month&#x27;s end" in text
    assert "resume_run" in text
    assert "paused, waits until somebody resumes it" in page(platform, "/backfill")
    (step,) = [one for one in steps(platform, RUN) if one.title == "Launch"]
    assert step.commands == (f"backfill resume {RUN} --by NAME --reason WHY",)


def test_the_commands_pause_and_resume_a_run(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    initialise_instance(platform.settings)
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    run = CliRunner()
    assert "at least 10 visible" in said(run, 2, "pause", RUN, "--by", "olga", "--reason", "short")
    assert "paused by olga" in said(run, 0, "pause", RUN, "--by", "olga", "--reason", WHY)
    assert WHY in said(run, 1, "run", RUN), "a launch is refused, and says why"
    assert "no reason is given" in said(run, 2, "resume", RUN)
    assert "resumed by ada" in said(run, 0, "resume", RUN, "--by", "ada", "--reason", CLOSED, "--no-launch")
    told = json.loads(run.invoke(cli, ["decisions", RUN, "--json"]).output)
    found = [(one["decision"], one["by"], one["comment"]) for one in told if one["decision"] in {"PAUSED", "RESUMED"}]
    assert sorted(found) == [("PAUSED", "olga", WHY), ("RESUMED", "ada", CLOSED)]


def test_a_pause_that_comes_while_the_run_is_published_says_so_and_holds_nothing_afterwards(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    initialise_instance(platform.settings)
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    staged(platform, RUN)
    usual, told = publisher._commit, list[str]()

    def commit(*arguments: Any, **named: Any) -> Any:
        told.append(said(CliRunner(), 0, "pause", RUN, "--by", "olga", "--reason", WHY))
        return usual(*arguments, **named)

    monkeypatch.setattr(publisher, "_commit", commit)
    assert publish(platform, RUN).new
    assert "was under way and is not interrupted" in told[0]
    assert platform.ledger.run(RUN).state is RunState.PUBLISHED
    assert platform.ledger.pauses.held(RUN) is None
    assert "olga" not in page(platform, "/backfill")


def test_what_has_paused_a_run_since_somebody_looked_is_not_resumed_with_it(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause(platform)
    pauses = type(platform.ledger.pauses)
    usual = pauses.holding

    def meanwhile(self: Any, run_id: str) -> Any:
        found = usual(self, run_id)
        self.pause(run_id, by="the platform", through="limits", reason="a budget is spent", cause="BUDGET")
        return found

    monkeypatch.setattr(pauses, "holding", meanwhile)
    with pytest.raises(TransitionRefused, match="was meanwhile paused by the platform"):
        pausing.resume(platform, RUN, by="ada", reason=CLOSED)
    assert len(usual(platform.ledger.pauses, RUN)) == 2


def said(run: CliRunner, code: int, *arguments: str) -> str:
    done = run.invoke(cli, list(arguments))
    refusal = "" if done.exception is None else str(done.exception)
    found = done.exit_code if isinstance(done.exception, SystemExit) or done.exception is None else 2
    assert found == code, done.output + refusal
    return " ".join((done.output + refusal).split())


def test_what_a_limit_has_paused_an_approver_resumes(platform: Platform) -> None:
    from support import put_in_force

    put_in_force(
        platform,
        {"apiVersion": "backfill-policy/v1", "name": "named", "rules": [{"tables": ["*"], "approvers": ["grace"]}]},
    )
    platform.ledger.pauses.pause(RUN, by="the platform", through="limits", reason="a budget is spent", cause="BUDGET")
    with pytest.raises(TransitionRefused, match="'ada' is no approver"):
        pausing.resume(platform, RUN, by="ada", reason=CLOSED)
    (ended,) = pausing.resume(platform, RUN, by="grace", reason="the budget is right, the estimate was not")
    assert ended.resumed_by == "grace"
    pause(platform)
    assert pausing.resume(platform, RUN, by="ada", reason=CLOSED), "what a person has paused, anybody named may"


def spent(platform: Platform) -> None:
    platform.ledger.pauses.pause(RUN, by="the platform", through="limits", reason="a budget is spent", cause="BUDGET")


def test_what_a_limit_has_paused_its_requester_does_not_resume(platform: Platform) -> None:
    spent(platform)
    pause(platform)  # a pause of a person beside it opens no way around it
    for name in ("ada", " Ada"):
        with pytest.raises(TransitionRefused, match="requested run 'paused', and a limit of it has paused it"):
            pausing.resume(platform, RUN, by=name, reason=CLOSED)
    assert len(platform.ledger.pauses.holding(RUN)) == 2
    assert len(pausing.resume(platform, RUN, by="grace", reason=CLOSED)) == 2


def test_without_four_eyes_a_requester_who_may_approve_resumes_what_a_limit_has_paused(platform: Platform) -> None:
    from support import put_in_force

    rule = {"tables": ["*"], "approvers": ["ada"], "fourEyes": False}
    put_in_force(platform, {"apiVersion": "backfill-policy/v1", "name": "alone", "rules": [rule]})
    spent(platform)
    with pytest.raises(TransitionRefused, match="'grace' is no approver"):
        pausing.resume(platform, RUN, by="grace", reason=CLOSED)
    assert pausing.resume(platform, RUN, by="ada", reason=CLOSED)


def test_nobody_resumes_what_a_limit_has_paused_under_a_name_of_the_platform(platform: Platform) -> None:
    name = ReconciliationPolicy().approved_by
    spent(platform)
    with pytest.raises(TransitionRefused, match="is no person"):
        pausing.resume(platform, RUN, by=name, reason=CLOSED)
    assert platform.ledger.pauses.held(RUN) is not None


def test_the_job_of_the_ui_refuses_the_requester_as_well(platform: Platform) -> None:
    spent(platform)
    with dg.DagsterInstance.ephemeral() as instance:
        form = {"comment": CLOSED}
        assert not asked(platform, instance, resume_run, "resume", form | {"by": "ada"}).success
        assert asked(platform, instance, resume_run, "resume", form | {"by": "grace"}).success


def test_the_jobs_of_the_ui_pause_and_resume_a_run(platform: Platform) -> None:
    assert {pause_run.name, resume_run.name} <= AT_ONCE & {job.name for job in DECISION_JOBS}
    with dg.DagsterInstance.ephemeral() as instance:
        assert asked(platform, instance, pause_run, "pause", {"by": "olga", "comment": WHY}).success
        held = platform.ledger.pauses.held(RUN)
        assert held is not None
        assert (held.stopped_by, held.through, held.reason) == ("olga", "the job pause_run", WHY)
        assert not asked(platform, instance, resume_run, "resume", {"by": "ada"}).success, "it wants a reason"
        assert asked(platform, instance, resume_run, "resume", {"by": "ada", "comment": CLOSED}).success
    assert platform.ledger.pauses.held(RUN) is None


def asked(
    platform: Platform, instance: dg.DagsterInstance, job: dg.JobDefinition, op: str, form: dict[str, str]
) -> dg.ExecuteInProcessResult:
    return job.execute_in_process(
        run_config={"ops": {op: {"config": {"run_id": RUN} | form}}},
        resources={"platform": platform},
        instance=instance,
        raise_on_error=False,
    )
