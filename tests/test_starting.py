"""What a command loads before it does anything: a person waits for it each time."""

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow
import pytest
import yaml
from pyiceberg.io.pyarrow import schema_to_pyarrow
from span_collector import collecting
from support import approved, manifest_data

from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from benchmarks import metered, small_table
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.ledger.facade import Ledger
from resources.settings import load_settings

HEAVY = (
    "confluent_kafka",
    "dagster",
    "grpc",
    "httpx",
    "hypothesis",
    "jinja2",
    "numpy",
    "opentelemetry",
    "pandas",
    "pandera",
    "polars",
    "pyarrow",
    "pydantic",
    "pyiceberg",
    "pyspark",
    "rich",
    "sqlalchemy",
    "yaml",
)
"""Libraries that take from a tenth of a second to seconds to import."""
OF_THE_LEDGER = {"pydantic", "rich", "sqlalchemy"}
"""Those without which nobody reads the ledger."""
FOR_NOTHING = (
    "alembic",
    "boto3",
    "botocore",
    "confluent_kafka",
    "dagster",
    "fsspec",
    "grpc",
    "httpx",
    "hypothesis",
    "jinja2",
    "opentelemetry",
    "pandera.engines.pandas_engine",
    "plotext",
    "pyspark.pandas",
    "requests",
    "rich.progress",
    "s3fs",
)
"""What planning has no use for, and comes along easily."""
RUN = "restate-2012"


def loaded_by(arguments: Sequence[str], asked: Sequence[str], home: Path | None = None, **variables: str) -> list[str]:
    """Run a command, and return those of some modules that it has imported by its end."""
    script = (
        "import sys\n"
        "from backfill_assets.cli.command import main\n"
        f"sys.argv = ['backfill', *{list(arguments)!r}]\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        f"    print('loaded:', *(one for one in {list(asked)!r} if one in sys.modules))\n"
    )
    environment = dict(os.environ) | variables | ({} if home is None else {"BACKFILL_HOME": str(home)})
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment)
    (loaded,) = (line for line in done.stdout.splitlines() if line.startswith("loaded:"))
    if home is not None:
        assert done.returncode == 0, done.stdout + done.stderr
    return loaded.split()[1:]


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["land", "--help"], ["nonsense"]])
def test_help_loads_nothing_that_takes_time(arguments: list[str]) -> None:
    assert loaded_by(arguments, HEAVY) == []


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of an installation with a run on record, and nothing else."""
    home = tmp_path_factory.mktemp("recorded") / "home"
    home.mkdir()
    ledger: Ledger = Platform.of(load_settings(home=home)).ledger
    ledger.migrate()
    approved(ledger, RUN)
    ledger.close()
    return home


@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"], ["status", RUN], ["status", RUN, "--json"]])
def test_where_runs_stand_is_told_by_the_ledger_alone(recorded: Path, arguments: list[str]) -> None:
    assert set(loaded_by(arguments, (*HEAVY, "alembic"), recorded)) == OF_THE_LEDGER


def test_a_command_that_leaves_no_span_loads_nothing_to_send_one(recorded: Path) -> None:
    on = {"BACKFILL_TRACES__ENDPOINT": "http://127.0.0.1:9"}
    assert loaded_by(["status", RUN], ("opentelemetry.trace", "opentelemetry.sdk", "requests"), recorded, **on) == []


@pytest.fixture
def plannable(tmp_path: Path) -> tuple[Path, Path, dict[str, str]]:
    """A home, a manifest that can be planned there, and the variables by which its product is found."""
    home, manifest = tmp_path / "home", tmp_path / "manifest.yaml"
    platform = Platform.of(load_settings(home=home), [metered.PRODUCT])
    initialise(platform)
    schema = schema_to_pyarrow(iceberg_schema(metered.Readings), include_field_ids=False)
    read = [{"meter": "m1", "read_at": datetime(2024, 3, 31, tzinfo=UTC), "watt_hours": 7}]
    platform.lakehouse.append(metered.READINGS, [pyarrow.Table.from_pylist(read, schema)], {LOAD_PROPERTY: "readings"})
    small_table.closed(platform)
    target = {"table": metered.DAILY, "publishRange": {"start": "2024-03-31", "end": "2024-03-31"}}
    own = {
        "source": {"table": metered.READINGS},
        "transform": {"name": "daily_watts", "version": "1"},
        "target": target,
    }
    manifest.write_text(yaml.safe_dump(manifest_data(RUN, development=True, **own)))

    served = {"BACKFILL_PRODUCTS": '["benchmarks.metered:PRODUCT"]', "PYTHONPATH": str(Path(__file__).parents[1])}
    return home, manifest, served


def test_a_plan_takes_nothing_along_that_it_has_no_use_for(plannable: tuple[Path, Path, dict[str, str]]) -> None:
    home, manifest, served = plannable
    assert loaded_by(["plan", str(manifest)], FOR_NOTHING, home, **served) == []


def test_a_command_sends_its_spans_before_it_ends_and_says_nothing_of_them(
    plannable: tuple[Path, Path, dict[str, str]],
) -> None:
    home, manifest, served = plannable
    command = [sys.executable, "-m", "backfill_assets.cli.command", "plan", str(manifest)]
    with collecting() as collector:
        traced = {"BACKFILL_HOME": str(home), "BACKFILL_TRACES__ENDPOINT": collector.address}
        environment = dict(os.environ) | served | traced
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.startswith(f"plan of {RUN}")
    assert done.stderr == ""
    (plan,) = collector.named("backfill.plan")
    assert (plan.attributes["run_id"], plan.failed) == (RUN, False)
