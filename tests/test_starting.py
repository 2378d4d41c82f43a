"""What a command loads before it does anything: a person waits for it each time."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from support import approved

from backfill_assets.installation import Platform
from benchmarks import small_table
from resources.ledger.facade import Ledger
from resources.settings import load_settings

HEAVY = ("dagster", "pandera", "polars", "pyarrow", "pydantic", "pyiceberg", "pyspark", "rich", "sqlalchemy", "yaml")
"""Libraries that take from a tenth of a second to seconds to import."""
OF_THE_LEDGER = {"pydantic", "rich", "sqlalchemy"}
"""Those without which nobody reads the ledger."""
FOR_NOTHING = ("alembic", "dagster", "hypothesis", "pandera.engines.pandas_engine", "pyspark.pandas")
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


def test_a_plan_takes_nothing_along_that_it_has_no_use_for(tmp_path: Path) -> None:
    home, manifest = tmp_path / "home", tmp_path / "manifest.yaml"
    with small_table.declared():
        platform = small_table.opened(home)
        small_table.initialise(platform)
        small_table.closed(platform)
    manifest.write_text(
        yaml.safe_dump(small_table.manifest_data("planned", "REPLACE_PARTITIONS", ("2020-02-01", "2020-03-31")))
    )
    served = {"BACKFILL_PRODUCTS": '["benchmarks.small_table:PRODUCT"]'}
    assert loaded_by(["plan", str(manifest)], FOR_NOTHING, home, **served) == []
