"""What is no file in the place of one of a SQLite database's is refused by name before SQLite opens it: it would wait, or mislead."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from manifests.errors import EnvironmentRefused
from resources.files.sqlite_files import require_files
from resources.lakehouse.facade import Lakehouse
from resources.ledger.facade import Ledger

pytestmark = pytest.mark.matrix

OPEN = """
import sys
from manifests.errors import EnvironmentRefused
from resources.lakehouse.facade import Lakehouse
from resources.ledger.facade import Ledger
try:
    if sys.argv[1] == "ledger":
        Ledger(sys.argv[2]).require_current()
    else:
        Lakehouse("lake", {"type": "sql", "uri": sys.argv[2]}).catalog.list_namespaces()
except EnvironmentRefused as refusal:
    print(refusal)
"""


def pipe(file: Path) -> None:
    os.mkfifo(file)


def link(file: Path) -> None:
    file.symlink_to(file.with_name("elsewhere"))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "some.db"


def made(of: str, database: Path) -> str:
    url = f"sqlite:///{database}"
    if of == "ledger":
        ledger = Ledger(url)
        ledger.migrate()
        ledger.engine.dispose()
    else:
        lakehouse = Lakehouse("lake", {"type": "sql", "uri": url})
        lakehouse.create_catalog()
        lakehouse.catalog.engine.dispose()  # type: ignore[attr-defined]
    return url


@pytest.mark.parametrize("put", [pipe, Path.mkdir, link])
@pytest.mark.parametrize("suffix", ["-journal", "-wal", "-shm"])
@pytest.mark.parametrize("of", ["ledger", "catalog"])
def test_what_is_no_file_beside_a_database_is_refused_by_name_and_not_waited_for(
    database: Path, of: str, suffix: str, put: Callable[[Path], None]
) -> None:
    url = made(of, database)
    beside = database.with_name(database.name + suffix)
    beside.unlink(missing_ok=True)
    put(beside)
    # in a process of its own: SQLite waits in native code
    done = subprocess.run([sys.executable, "-c", OPEN, of, url], capture_output=True, text=True, timeout=60, check=True)
    assert re.search(rf"{re.escape(str(beside))} is (a pipe|a folder|a link to elsewhere), not a file", done.stdout), (
        done
    )
    beside.rmdir() if put is Path.mkdir else beside.unlink()
    require_files(url, of)


@pytest.mark.parametrize("put", [pipe, Path.mkdir])
def test_what_is_no_file_in_the_place_of_a_database_is_refused_by_name(
    database: Path, put: Callable[[Path], None]
) -> None:
    put(database)
    for connect in (
        lambda: Ledger(f"sqlite:///{database}").require_current(),
        lambda: Lakehouse("lake", {"type": "sql", "uri": f"sqlite:///{database}"}).catalog,
    ):
        with pytest.raises(EnvironmentRefused, match=rf"{re.escape(str(database))} is (a pipe|a folder), not a file"):
            connect()


def test_a_database_may_be_a_link_to_a_file_and_what_lies_beside_that_file_counts(
    database: Path, tmp_path: Path
) -> None:
    other = tmp_path / "disk" / "real.db"
    other.parent.mkdir()
    made("ledger", other)
    database.symlink_to(other)
    Ledger(f"sqlite:///{database}").require_current()
    os.mkfifo(f"{other}-journal")
    with pytest.raises(EnvironmentRefused, match=r"real\.db-journal is a pipe, not a file"):
        Ledger(f"sqlite:///{database}").require_current()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "postgresql+psycopg://nobody@nowhere/x"])
def test_a_database_without_files_is_opened_as_it_is(url: str) -> None:
    require_files(url, "the ledger")
