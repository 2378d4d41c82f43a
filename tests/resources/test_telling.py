"""One process at a time tells of a target's changes, and keeps nobody else waiting, on SQLite as on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from support import planned

from manifests.errors import EnvironmentRefused
from resources import telling as telling_module
from resources import transactions
from resources.ledger import Ledger
from resources.telling import telling


@pytest.fixture
def other(ledger: Ledger) -> Iterator[Ledger]:
    """The same ledger, as another process has it open."""
    opened = Ledger(ledger.url)
    yield opened
    opened.engine.dispose()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling_module, "WAIT", 0.3)
    monkeypatch.setattr(transactions, "WRITE_WAIT", 1)


def test_nobody_else_tells_of_the_same_target_meanwhile(ledger: Ledger, other: Ledger) -> None:
    with telling(ledger.engine, "silver.one"):
        with telling(other.engine, "silver.two"):
            pass
        refused = pytest.raises(
            EnvironmentRefused, match=r"another process is telling Dagster of changes of silver\.one"
        )
        with refused, telling(other.engine, "silver.one"):
            pytest.fail("two tell at once")
    with telling(other.engine, "silver.one"):
        pass


def test_the_next_one_tells_though_telling_has_failed(ledger: Ledger, other: Ledger) -> None:
    with pytest.raises(sa.exc.ArgumentError), telling(ledger.engine, "silver.one"):
        raise sa.exc.ArgumentError("Dagster's storage broke down")
    with telling(other.engine, "silver.one"):
        pass


def test_the_ledger_is_read_and_written_while_somebody_tells(ledger: Ledger, other: Ledger) -> None:
    with telling(ledger.engine, "silver.one"):
        planned(other, "meanwhile")
        planned(ledger, "own")
    assert {record.run_id for record in ledger.runs()} == {"meanwhile", "own"}
