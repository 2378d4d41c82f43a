"""The rows that break a rule of their table are shown by commands, and what is said next can help. Without Spark."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from backfill_assets.cli.command import cli
from backfill_assets.cli.terminal import make_console
from backfill_assets.declarations.schema import LINEAGE_COLUMNS
from benchmarks import small_table
from benchmarks.small_table import SCOPE, TARGET, manifest, manifest_data, planned, staged
from manifests.errors import Refused
from manifests.lifecycle import RunState

DOUBLED = "doubled"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An installation with a run whose rows are all there twice, and one that was cancelled."""
    folder = tmp_path_factory.mktemp("broken")
    whole = small_table.rows_of
    with small_table.declared(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_table, "rows_of", lambda *asked: whole(*asked) * 2)
        for name in [name for name in os.environ if name.startswith("BACKFILL_")]:
            patch.delenv(name)
        patch.setenv("BACKFILL_HOME", str(folder / "home"))
        patch.chdir(folder)
        platform = small_table.opened(folder / "home")
        small_table.initialise(platform)
        planned(platform, manifest(DOUBLED, "REPLACE_PARTITIONS", SCOPE))
        assert staged(platform, DOUBLED).state is RunState.FAILED
        small_table.closed(platform)
        yield folder


def given(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(cli, arguments, env=variables)


def told(*arguments: str) -> Any:
    return json.loads(given(*arguments, "--json").stdout)


def test_what_only_a_preview_has_named_is_verified_as_no_run(home: Path) -> None:
    file = home / "never.json"
    asked = manifest_data("never", "REPLACE_PARTITIONS", SCOPE) | {"safety": {"sinks": ["run_audit"]}}
    file.write_text(json.dumps(asked))
    assert given("plan", str(file), "--preview").exit_code == 0
    said = given("verify", "never").exception
    assert isinstance(said, Refused)
    assert "run 'never' was never planned: sink requests only" in str(said)
    done = told("verify", "--all")
    assert [one["run_id"] for one in done["runs"]] == [DOUBLED]
    assert done["ok"]
    ledger = home / "home" / "ledger.db"
    with closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute("UPDATE sink_attempts SET reason = 'granted' WHERE run_id = 'never'")
    assert any(
        one["what"].startswith("is not as it was last written") for one in told("verify", "--all")["chain"]["problems"]
    )
    assert given("plan", str(file)).exit_code == 0
    assert "never" in [one["run_id"] for one in told("verify", "--all")["runs"]]


@pytest.mark.usefixtures("home")
def test_the_rows_that_break_a_rule_are_shown_with_their_chunk_and_rule() -> None:
    found = told("exceptions", DOUBLED)["brokenRules"]
    assert [one["chunk"] for one in found] == ["2020-02", "2020-03"]
    for one in found:
        assert (one["gate"], one["rule"]) == ("chunk_rules", found[0]["rule"])
        assert one["rows"] > 0
        assert set(TARGET.key) <= set(one["sample"][0])
    shown = given("exceptions", DOUBLED).stdout
    wide = given("exceptions", DOUBLED, COLUMNS="400").stdout
    first = found[0]["sample"][0]
    assert ", ".join(f"{name}={first[name]}" for name in ("meter", "day", "value")) in wide, (
        "the key, then the other columns as they are declared"
    )
    assert not [name for name in LINEAGE_COLUMNS if f"{name}=" in wide]
    for text in ("2020-02", found[0]["rule"], "of them on record", f"meter={found[0]['sample'][0]['meter']}"):
        assert text in shown
    assert told("exceptions", DOUBLED, "--gate", "chunk_rules")["brokenRules"] == found
    assert given("exceptions", DOUBLED, "--gate", "chunk_rules", "--limit", "1").stdout.count("meter=") == 1


@pytest.mark.usefixtures("home")
def test_a_gate_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    refused = given("exceptions", DOUBLED, "--gate", "chunk_rule")
    said = " ".join(str(refused.exception).split())
    assert "'chunk_rule' is no gate of run" in said
    assert "did you mean 'chunk_rules'?" in said
    assert "all_chunks_staged" in said
    none = " ".join(str(given("exceptions", DOUBLED, "--gate", "all_chunks_staged").exception).split())
    assert "has no exceptions" in none


@pytest.mark.usefixtures("home")
def test_status_has_the_chunks_that_failed_among_the_gates_in_their_order_and_names_the_next_command() -> None:
    gates = told("status", DOUBLED)["gates"]
    assert [one["chunk"] for one in gates if not one["passed"] and one["chunk"]] == ["2020-02", "2020-03"]
    assert all(one["details"]["violations"] for one in gates if one["chunk"])
    shown = given("status", DOUBLED).stdout
    assert f"backfill exceptions {DOUBLED}" in shown
    assert shown.index("  2020-02") < shown.index("  2020-03")


@pytest.mark.usefixtures("home")
def test_the_diff_of_a_failed_run_names_what_helps() -> None:
    refused = given("diff", DOUBLED).exception
    assert isinstance(refused, Refused)
    assert f"backfill exceptions {DOUBLED}" in str(refused)
    assert f"backfill run {DOUBLED}" not in str(refused)


def test_a_run_that_is_over_is_not_shown_as_one_to_approve(home: Path) -> None:
    file = home / "over.json"
    file.write_text(json.dumps(manifest_data("over-run", "REPLACE_PARTITIONS", SCOPE)))
    assert given("plan", str(file)).exit_code == 0
    assert given("cancel", "over-run", "--by", "ada").exit_code == 0
    again = given("plan", str(file))
    assert isinstance(again.exception, Refused)
    assert "'over-run' is CANCELLED" in str(again.exception)
    assert "a run id of its own" in str(again.exception)
    assert again.stdout == ""


@pytest.mark.usefixtures("home")
def test_a_chunk_that_breaks_a_rule_is_not_computed_again_but_planned_anew_once_it_is_corrected() -> None:
    refused = given("publish", DOUBLED, "--by", "grace").exception
    assert isinstance(refused, Refused)
    (problem,) = [one for one in refused.problems if "chunk(s) have not passed" in one.what]
    assert problem.fix.endswith("plan the change under a new run id")
    assert f"backfill exceptions {DOUBLED}" in problem.fix
    assert f"backfill run {DOUBLED}" not in problem.fix


def test_a_plan_that_is_on_record_is_not_shown_as_a_new_one(home: Path) -> None:
    file = home / "twice.json"
    file.write_text(json.dumps(manifest_data("twice", "REPLACE_PARTITIONS", SCOPE)))
    first = told("plan", str(file))
    assert (first["state"], first["plannedBefore"]) == ("PLANNED", False)
    assert not told("plan", str(file))["plannedBefore"], "until it is approved, it is planned again"
    platform = small_table.opened(home / "home")
    hashed = platform.ledger.run("twice").plan_hash
    platform.ledger.decide("twice", approve=True, by="grace", comment="", self_approval=False, plan_hash=hashed)
    small_table.closed(platform)
    again = told("plan", str(file))
    assert (again["state"], again["plannedBefore"]) == ("APPROVED", True)
    said = " ".join(given("plan", str(file)).stdout.split())
    assert "APPROVED: this is the plan on record, made " in said
    assert "nothing was planned anew" in said


def test_a_preview_of_a_run_that_is_not_planned_anew_says_so(home: Path) -> None:
    file = home / "previewed.json"
    file.write_text(json.dumps(manifest_data("previewed", "REPLACE_PARTITIONS", SCOPE)))
    for prepared in ([], ["plan", str(file)]):
        assert not prepared or given(*prepared).exit_code == 0
        assert told("plan", str(file), "--preview")["state"] == "PREVIEW, not recorded"
    assert given("cancel", "previewed", "--by", "ada").exit_code == 0
    said = told("plan", str(file), "--preview")["state"]
    assert said.startswith("PREVIEW, not recorded: run 'previewed' is CANCELLED already and is not planned again")
    assert "a run id of its own" in " ".join(given("plan", str(file), "--preview").stdout.split())
    again = given("cancel", "previewed", "--by", "ada").exception
    assert "run 'previewed' is CANCELLED already" in str(again)


@pytest.mark.usefixtures("home")
def test_a_misspelt_run_id_is_answered_with_those_like_it() -> None:
    assert f"did you mean {DOUBLED}?" in str(given("status", "dubled").exception)
    assert "did you mean" not in str(given("status", "zzz-zzz").exception)


@pytest.mark.parametrize(("asked", "width"), [("100", 100), ("", 140), ("wide", 140), ("0", 140), ("9" * 9, 140)])
def test_output_that_is_no_terminal_is_as_wide_as_columns_says(
    asked: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", asked)
    assert make_console().width == width
