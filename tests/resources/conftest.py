"""A ledger and a catalog of its own for each test, on SQLite below the test's folder and on a PostgreSQL server; and a small S3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from servers import Postgres
from small_s3 import SmallStore, small_store
from support import catalog_properties

from resources.files import s3_objects
from resources.lakehouse.facade import Lakehouse
from resources.ledger.facade import Ledger


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest) -> str:
    """What the ledger and the catalog of a test are kept in."""
    return str(request.param)


@pytest.fixture(scope="session")
def ledger_template(postgres_server: Postgres) -> str:
    """A migrated ledger that nobody is connected to: a copy of it takes less time than a migration."""
    url = postgres_server.database()
    made = Ledger(url)
    made.migrate()
    made.engine.dispose()
    return url


@pytest.fixture
def databases(request: pytest.FixtureRequest, backend: str, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Return the URL of the test's ledger, or of its catalog: files, or one database for both."""
    if backend == "sqlite":
        yield lambda name: f"sqlite:///{tmp_path / name}.db"
        return
    server: Postgres = request.getfixturevalue("postgres_server")
    url = server.database(request.getfixturevalue("ledger_template"))
    yield lambda _: url
    server.drop(url)


@pytest.fixture
def ledger(databases: Callable[[str], str]) -> Iterator[Ledger]:
    opened = Ledger(databases("ledger"))
    opened.migrate()
    yield opened
    opened.engine.dispose()


@pytest.fixture
def catalog(databases: Callable[[str], str], tmp_path: Path) -> dict[str, str]:
    """Return the properties of a catalog that is yet to be created."""
    return catalog_properties(tmp_path) | {"uri": databases("catalog")}


@pytest.fixture
def lakehouse(catalog: dict[str, str]) -> Iterator[Lakehouse]:
    opened = Lakehouse("lake", catalog)
    opened.create_catalog()
    yield opened
    opened.catalog.close()


@pytest.fixture
def small() -> Iterator[SmallStore]:
    """A store of objects in this process."""
    with small_store() as server:
        yield server


@pytest.fixture
def impatient() -> Iterator[None]:
    """Ask a store again at once, where seconds would be waited."""
    with mock.patch.object(s3_objects, "_WAITS", (0.01, 0.02, 0.05)):
        yield
