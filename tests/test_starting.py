"""What a command loads before it does anything: a person waits for it each time."""

import subprocess
import sys

import pytest

HEAVY = ("dagster", "pandera", "polars", "pyarrow", "pydantic", "pyiceberg", "pyspark", "rich", "sqlalchemy", "yaml")
"""Libraries that take from a tenth of a second to seconds to import."""


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["land", "--help"], ["nonsense"]])
def test_help_loads_nothing_that_takes_time(arguments: list[str]) -> None:
    script = (
        "import sys\n"
        "from backfill_assets.cli.command import main\n"
        f"sys.argv = ['backfill', *{arguments!r}]\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        f"    print('loaded:', *(one for one in {HEAVY!r} if one in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    (loaded,) = (line for line in done.stdout.splitlines() if line.startswith("loaded:"))
    assert loaded == "loaded:", done.stderr
