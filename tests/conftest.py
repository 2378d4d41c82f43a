"""Fixtures that test modules share: an installation of one's own, the one JVM and the one server of the test process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import durations
import exhaustive
import pytest
from hypothesis import settings
from launches import CONTEXT
from real_servers.fixtures import (  # noqa: F401 - fixtures
    broker,
    debezium_environment,
    disk_store,
    logical_server,
    moto_store,
    rest_server,
)
from servers import NoServerError, Postgres, postgres
from worlds import World, keep, make_world

from backfill_assets.audit import verification
from backfill_assets.declarations import finding
from backfill_assets.evidence import preconditions
from backfill_assets.gates import judging
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor import journal, settling
from backfill_assets.staging import executor
from benchmarks import kills
from benchmarks.small_table import declared

os.environ.setdefault("TZ", "UTC")
_MEMORY = Path("/dev/shm")
_NEEDED = 4 * 2**30
"""Bytes: the folders of all tests take some 0.7 GB, whose thousands of small files a disk would be waited for."""
if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _NEEDED:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))
# pytest's processes hand on a width of 80; no test is about the terminal that started it
os.environ.pop("COLUMNS", None)
# no test is about how long an example takes: a busy machine would fail it
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
# there is one server in a test process that others are forked from, whoever asks for it first: what it has imported
CONTEXT.set_forkserver_preload(
    [
        "backfill_assets.cli.command",
        "backfill_assets.gates.judging",
        "backfill_assets.defs.launch",
        "benchmarks.kills",
        "benchmarks.publishers",
    ]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--inner-loop", action="store_true", help="the quick tests, and what is marked `check`")
    parser.addoption(
        "--part", default="1/1", metavar="K/N", help="the K-th of N parts of the tests that `make test` leaves out"
    )
    parser.addoption("--record-durations", action="store_true", help="write down what each test takes")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(durations.Recorder())


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what `-m` does not name
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    exhaustive.mark(items)
    if config.getoption("--inner-loop"):
        _keep(config, items, durations.quick(items))
    number, _, of = config.getoption("--part").partition("/")
    if int(of) > 1:
        left_out = [item for item in items if item.get_closest_marker("exhaustive") is not None]
        _keep(config, items, durations.part(left_out, int(number), int(of)))
    durations.longest_first(items)


def _keep(config: pytest.Config, items: list[pytest.Item], left: list[pytest.Item]) -> None:
    kept = set(left)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = left


@pytest.fixture(scope="session")
def initialised(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], World]:
    """Return what puts an installation with 400 generated cases of two years back to how it began."""
    folder = tmp_path_factory.mktemp("initialised")
    return keep(make_world(folder / "home", cases=400), folder / "kept")


@pytest.fixture
def world(initialised: Callable[[], World]) -> World:
    """An initialised installation with 400 generated cases of two years."""
    return initialised()


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Like `world`, one for all tests of a module: they use run ids of their own."""
    return make_world(tmp_path_factory.mktemp("shared") / "home", cases=400)


@pytest.fixture(scope="module")
def kept_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with an installation of the small table that has a history, and a copy of it: `kills.restore` puts it back."""
    site = tmp_path_factory.mktemp("kept") / "site"
    with declared():
        kills.build(site)
        yield site


@pytest.fixture
def looked_at_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests beside which nobody works: what is looked at again after half a second has not changed by then."""
    for module, name in (
        (settling, "AGAIN_SECONDS"),
        (journal, "AGAIN_SECONDS"),
        (verification, "_AGAIN_SECONDS"),
        (preconditions, "_AGAIN_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.01)


@pytest.fixture(scope="session")
def real_log() -> Path:
    """The real enforcement log; tests that need it are skipped, saying so, where it is absent."""
    folder = os.environ.get("BACKFILL_TEST_DATA")
    root = Path(folder) if folder else Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    file = root / "road_traffic_fines.parquet"
    if not file.is_file():
        pytest.skip(
            "the real enforcement log is not here (set BACKFILL_TEST_DATA to its folder): its totals are not checked"
        )
    return file


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A PostgreSQL server of this test process; tests that need it are skipped, saying why, where none starts."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(postgres())
        except NoServerError as reason:
            pytest.skip(f"nothing is tested on PostgreSQL: {reason}")
        yield server


@pytest.fixture(autouse=True)
def _nothing_stays_replaced() -> Iterator[None]:
    """Fail the test after which something else stands where `small_table.declared` puts its own: later tests would meet it.

    It happens where both it and `monkeypatch` replace one name: whichever was first to replace it must put it back last.
    """
    before = _replaceable()
    yield
    assert _replaceable() == before, (
        "put back in the wrong order: use `mock.patch.object` inside `small_table.declared()`"
    )


def _replaceable() -> tuple[object, ...]:
    return finding.find_products, executor.compute_batch, judging.purity_finding, vars(Platform)["workers"]
