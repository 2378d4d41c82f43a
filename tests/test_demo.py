"""The demo, as `make demo` runs it, on few cases."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from backfill_assets.cli.command import cli
from resources.actors import Channel


@pytest.mark.exhaustive  # two demos on one home: three minutes
def test_a_demo_of_a_new_column_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BACKFILL_PRODUCTS", '["enforcement"]')
    for _ in range(2):
        done = CliRunner().invoke(cli, ["demo", "--cases", "300", "--column"])
        assert done.exit_code == 0, done.output
        rows = {
            when: found.split(" rows have a case_age_days")[0]
            for when in ("published", "rolled back", "reinstated")
            for found in [done.output.split(f"\n{when}: ")[1]]
        }
        filled, of, number = rows["published"].split()
        assert (of, filled) == ("of", number)
        assert rows == {
            "published": f"{number} of {number}",
            "rolled back": f"0 of {number}",
            "reinstated": f"{number} of {number}",
        }


@pytest.mark.exhaustive  # it starts Spark and Dagster as the command does: a minute
def test_what_the_demo_does_is_on_record_as_done_by_who_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path / "home"))
    done = CliRunner().invoke(cli, ["demo", "--cases", "300"])
    assert done.exit_code == 0, done.output
    assert "Where to go on" in done.output
    with closing(sqlite3.connect(tmp_path / "home" / "ledger.db")) as ledger:
        of_runs = {*ledger.execute("SELECT DISTINCT channel FROM transitions")}
        of_publications = {*ledger.execute("SELECT DISTINCT channel FROM publications")}
    assert of_runs == of_publications == {(Channel.CLI.value,)}
