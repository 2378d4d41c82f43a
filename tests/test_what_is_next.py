"""What `run`, `status` and `resume` say of a run that is published: who does not see it yet, and that nothing is left to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from table_world import NOBODY

from backfill_assets import decisions
from backfill_assets.cli.command import cli
from backfill_assets.defs.launch import announce_approval, initialise_instance, instance_at
from backfill_assets.installation import Platform
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from benchmarks import kills, small_table
from benchmarks.small_table import closed, manifest, planned, staged
from resources.ledger.tables import attempts
from resources.processes import name_of

RUN = "named"
NOT_SEEN = f"readers of main do not see it before `backfill accept {RUN}`"


@pytest.fixture
def platform(kept_site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    kills.restore(kept_site)
    platform = kills.at(kept_site)
    initialise_instance(platform.settings)
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    yield platform
    closed(platform)


def said(code: int, *arguments: str) -> str:
    done = CliRunner().invoke(cli, list(arguments))
    refusal = "" if done.exception is None else str(done.exception)
    found = done.exit_code if isinstance(done.exception, SystemExit) or done.exception is None else 2
    assert found == code, done.output + refusal
    return " ".join((done.output + refusal).split())


def told(*arguments: str) -> Any:
    return json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).output)


def waits_for(run_id: str) -> set[object]:
    """Return what a run waits for by the list of runs and by its own status."""
    runs, run = told("status"), told("status", run_id)
    return {run["waitsFor"], *(one["waitsFor"] for one in runs if one["runId"] == run_id)}


def test_a_version_that_main_does_not_show_waits_for_its_acceptance(platform: Platform) -> None:
    record = planned(platform, manifest(RUN, "VERSIONED", small_table.SCOPE, version="v2", acceptance="LATER"))
    with instance_at(platform.settings) as instance:
        announce_approval(platform, instance, record)
    staged(platform, RUN)
    assert waits_for(RUN) == {None}
    assert NOT_SEEN in said(0, "run", RUN), "the run publishes it, and says who does not see it"
    for arguments in (["status", RUN], ["status"]):
        assert NOT_SEEN in said(0, *arguments).replace("waits: ", "")
    assert waits_for(RUN) == {NOT_SEEN}
    decisions.accept(platform, RUN, by="grace")
    assert "do not see it" not in said(0, "status", RUN)
    assert waits_for(RUN) == {None}


def test_a_version_that_main_shows_at_once_or_no_more_waits_for_nothing(platform: Platform) -> None:
    planned(platform, manifest("at-once", "VERSIONED", small_table.SCOPE, version="v2"))
    staged(platform, "at-once")
    publish(platform, "at-once")
    assert waits_for("at-once") == {None}
    planned(platform, manifest(RUN, "VERSIONED", small_table.SCOPE, version="v3", acceptance="LATER"))
    staged(platform, RUN)
    publish(platform, RUN)
    rollback(platform, RUN)
    assert waits_for(RUN) == {None}


def launched(platform: Platform, run_id: str) -> None:
    record = planned(platform, manifest(run_id, "REPLACE_PARTITIONS", small_table.SCOPE))
    with instance_at(platform.settings) as instance:
        announce_approval(platform, instance, record)
    staged(platform, run_id)


NOTHING, NO_RECORD = "there is nothing to resume", "what --by and --reason say is on no record"


def test_resume_of_a_run_that_is_published_says_that_there_is_nothing_to_resume(platform: Platform) -> None:
    launched(platform, "done")
    publish(platform, "done")
    changes = platform.ledger.publications("done")
    shown = said(0, "resume", "done", "--by", "ada", "--reason", "it looked as if it had not ended")
    assert f"done: {NOTHING}: it is PUBLISHED; {NO_RECORD}" in shown
    assert platform.ledger.stops.of_run("done") == []
    assert platform.ledger.publications("done") == changes
    done = CliRunner().invoke(cli, ["resume", "done", "--json"])
    assert json.loads(done.stdout)["state"] == "PUBLISHED", "scripts read stdout"
    assert NOTHING in done.stderr


def test_resume_of_a_run_that_nothing_holds_says_so_and_goes_on_as_after_a_kill(platform: Platform) -> None:
    launched(platform, "killed")
    shown = said(0, "resume", "killed", "--reason", "the machine went down")
    assert f"killed: {NOTHING}: no stop and no pause holds it. It is launched" in shown
    assert "what --reason says is on no record" in shown
    assert told("status", "killed")["state"] == "PUBLISHED"


def test_resume_of_a_run_whose_process_was_killed_says_that_it_ended_without_a_word(platform: Platform) -> None:
    record = planned(platform, manifest("lost", "REPLACE_PARTITIONS", small_table.SCOPE))
    with instance_at(platform.settings) as instance:
        announce_approval(platform, instance, record)
    keys = [chunk.key for chunk in record.plan.chunks]
    platform.ledger.start_attempt("lost", keys, edition=0, actor="ada", location=str(platform.settings.home))
    with platform.ledger.engine.begin() as connection:
        connection.execute(attempts.update().values(pid=NOBODY, process=name_of(NOBODY)))
    shown = said(0, "resume", "lost", "--reason", "the machine went down")
    assert "lost: nobody has stopped or paused it: the process that computed it has ended without a word" in shown
    assert NOTHING not in shown
    assert "what --reason says is on no record: only of a pause it is asked for" in shown
    assert told("status", "lost")["state"] == "PUBLISHED"


def test_resume_of_a_run_that_is_stopped_does_not_say_that_there_is_nothing(platform: Platform) -> None:
    launched(platform, "held")
    decisions.stop(platform, "held", by="olga", through="backfill stop")
    shown = said(0, "resume", "held")
    assert NOTHING not in shown
    assert "on no record" not in shown
    assert told("status", "held")["state"] == "PUBLISHED"


def test_resume_of_a_run_that_is_over_is_refused_in_the_words_of_a_launch(platform: Platform) -> None:
    launched(platform, "over")
    decisions.cancel(platform, "over", by="grace")
    shown = said(2, "resume", "over")
    assert NOTHING not in shown
    assert "CANCELLED" in shown
