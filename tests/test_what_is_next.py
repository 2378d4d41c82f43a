"""What `run`, `status` and `resume` say of a run that is published: who does not see it yet, and that nothing is left to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from backfill_assets import decisions
from backfill_assets.cli.command import cli
from backfill_assets.defs.launch import announce_approval, initialise_instance, instance_at
from backfill_assets.installation import Platform
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from benchmarks import kills, small_table
from benchmarks.small_table import closed, declared, manifest, planned, staged

RUN = "named"
NOT_SEEN = f"readers of main do not see it before `backfill accept {RUN}`"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    site = tmp_path_factory.mktemp("next") / "site"
    with declared():
        kills.build(site)
        yield site


@pytest.fixture
def platform(kept: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    kills.restore(kept)
    platform = kills.at(kept)
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


def told(*arguments: str) -> object:
    return json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).output)


def waits_for(run_id: str) -> set[object]:
    """Return what a run waits for by the list of runs and by its own status."""
    runs, run = told("status"), told("status", run_id)
    assert isinstance(runs, list)
    assert isinstance(run, dict)
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
