"""A ledger and a catalog of its own for each test: SQLite and files below the test's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import a_lakehouse

from resources.lakehouse import Lakehouse
from resources.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    opened.migrate()
    yield opened
    opened.engine.dispose()


@pytest.fixture
def lakehouse(tmp_path: Path) -> Lakehouse:
    return a_lakehouse(tmp_path)
