"""One process at a time tells of a target's changes, and keeps nobody else waiting, on SQLite as on PostgreSQL."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from support import planned

from manifests.errors import EnvironmentRefused
from resources.ledger import telling as telling_module
from resources.ledger import transactions
from resources.ledger.facade import Ledger
from resources.ledger.telling import telling


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
    with ledger.telling("silver.one"):
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
    with pytest.raises(sa.exc.ArgumentError), ledger.telling("silver.one"):
        raise sa.exc.ArgumentError("Dagster's storage broke down")
    with telling(other.engine, "silver.one"):
        pass


def test_the_ledger_is_read_and_written_while_somebody_tells(ledger: Ledger, other: Ledger) -> None:
    with ledger.telling("silver.one"):
        planned(other, "meanwhile")
        planned(ledger, "own")
    assert {record.run_id for record in ledger.runs()} == {"meanwhile", "own"}


def pipe(file: Path) -> None:
    os.mkfifo(file)


def loop(file: Path) -> None:
    file.symlink_to(file)


def elsewhere(file: Path) -> None:
    file.symlink_to(file.with_name("made-elsewhere"))


@pytest.mark.parametrize("put", [pipe, Path.mkdir, loop, elsewhere])
def test_what_lies_in_the_place_of_the_lock_is_refused_by_name_and_not_waited_for(
    ledger: Ledger, put: Callable[[Path], None]
) -> None:
    if ledger.engine.dialect.name == "postgresql":
        pytest.skip("its lock is no file")
    file = Path(f"{ledger.engine.url.database}.telling-silver.one")
    put(file)
    with (
        not_for_ever(),
        pytest.raises(EnvironmentRefused, match=rf"{re.escape(str(file))} cannot be locked"),
        ledger.telling("silver.one"),
    ):
        pytest.fail("it tells without a lock")
    assert not file.with_name("made-elsewhere").exists()
    file.rmdir() if put is Path.mkdir else file.unlink()
    with ledger.telling("silver.one"):
        pass


@contextmanager
def not_for_ever() -> Iterator[None]:
    """Fail where something waits, as for a pipe that nobody writes to."""

    def give_up(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(10)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
