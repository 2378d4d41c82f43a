"""What people are told while another process writes the ledger, or keeps it to itself: at once, or why not and who does."""

from __future__ import annotations

import gc
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from support import planned
from test_bad_inputs import own_environment, run_command, squeezed

from resources.ledger import transactions
from resources.ledger.cells import IllegibleRow
from resources.ledger.facade import Ledger

RUN = "planned-run"
HOLDER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    database.execute(statement)
print("held", flush=True)
sys.stdin.read()
"""
WRITING = ("BEGIN IMMEDIATE",)
ALONE = ("PRAGMA locking_mode=EXCLUSIVE", "BEGIN EXCLUSIVE")
REFUSED = 2


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ledger of an initialised installation with a planned run."""
    own_environment(monkeypatch, tmp_path / "home", tmp_path)
    assert run_command("init") == 0
    (file,) = (tmp_path / "home").rglob("ledger.db")
    ledger = Ledger(f"sqlite:///{file}")
    planned(ledger, RUN)
    ledger.engine.dispose()
    gc.collect()  # the connections of `init`, whose process would have ended
    return file


@contextmanager
def held(database: Path, *statements: str) -> Iterator[int]:
    """Have another process hold a database; yield its number."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(database), *statements],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.communicate()


def test_status_answers_at_once_while_somebody_writes(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with held(database, *WRITING):
        for command in (["status"], ["status", RUN], ["status", "--json"]):
            began = time.monotonic()
            assert run_command(*command) == 0
            assert time.monotonic() - began < 10
            assert RUN in capsys.readouterr().out


def test_status_says_within_seconds_who_keeps_the_ledger_to_himself(
    database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with held(database, *ALONE) as pid:
        began = time.monotonic()
        assert run_command("status") == REFUSED
        assert time.monotonic() - began < 10
        found = squeezed(capsys.readouterr().err)
        assert f"islockedbyprocess{pid}" in found
        assert "waited5s" in found
    assert run_command("status") == 0


def test_who_cannot_write_is_told_who_does_and_nothing_is_changed(
    database: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "WRITE_WAIT", 1)
    before = Ledger(f"sqlite:///{database}").history(RUN)
    with held(database, *WRITING) as pid:
        assert run_command("approve", RUN, "--by", "grace") == REFUSED
        found = squeezed(capsys.readouterr().err)
        assert re.search(rf"islockedbyprocess{pid}\(.*\);waited1s", found)
        assert "nothingwaschanged" in found
    assert Ledger(f"sqlite:///{database}").history(RUN) == before


def test_what_a_command_wrote_is_in_the_ledger_s_file_once_it_has_ended(tmp_path: Path) -> None:
    """A copy of the file alone is whole: nothing of it waits in the write-ahead log for whoever opens it next."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BACKFILL_")}
    command = [sys.executable, "-m", "backfill_assets.cli.command", "init"]
    subprocess.run(command, env=kept | {"BACKFILL_HOME": str(tmp_path / "home")}, check=True, capture_output=True)
    (file,) = (tmp_path / "home").rglob("ledger.db")
    assert [one.name for one in file.parent.glob("ledger.db*")] == ["ledger.db"]
    copied = sqlite3.connect(shutil.copy(file, tmp_path / "copy.db"))
    assert copied.execute("SELECT count(*) FROM alembic_version").fetchall() == [(1,)]
    copied.close()


def test_a_text_that_is_no_utf_8_is_a_cell_that_cannot_be_read_and_no_locked_ledger(tmp_path: Path) -> None:
    engine = transactions.make_engine(f"sqlite:///{tmp_path / 'ledger.db'}")
    with engine.connect() as connection, pytest.raises(IllegibleRow, match="Could not decode to UTF-8"):
        connection.execute(sa.text("SELECT CAST(x'ff41' AS TEXT)")).all()
