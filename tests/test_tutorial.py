"""The tutorial as a newcomer does it: its files, in a checkout of their own, with the commands it names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from worlds import SPARK

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = ROOT / "docs" / "tutorial"
RUN = "meter-daily-2024-q1"
COMMANDS = """
import contextlib, io, json, runpy, sys
from backfill_assets.cli.command import cli

def run(*words):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        cli(list(words), standalone_mode=False)
    return said.getvalue()

trial = runpy.run_path("docs/tutorial/test_metering.py")
tested = [name for name in trial if name.startswith("test_")]
for name in tested:
    trial[name]()
print("TESTED " + json.dumps(tested))

run("init")
sys.argv = ["make_readings.py", "readings.csv"]
runpy.run_path("docs/tutorial/make_readings.py")
run("load", "bronze.meter_readings", "readings.csv")
run("plan", "docs/tutorial/meter-daily-2024-q1.yaml")
run("approve", "meter-daily-2024-q1", "--by", "data owner")
run("run", "meter-daily-2024-q1", "--json")
print("STATUS " + json.dumps(json.loads(run("status", "meter-daily-2024-q1", "--json"))))

from backfill_assets.installation import open_platform
from resources.settings import load_settings
with open_platform(load_settings()) as platform:
    rows = platform.lakehouse.table("silver.meter_daily").scan().to_arrow()
    print("ROWS " + json.dumps([row["meter_id"] for row in rows.to_pylist()]))
    print("ENERGY " + str(sum(rows["watt_hours"].to_pylist())))
"""


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=newcomer", "-c", "user.email=newcomer@example.invalid")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the product added as the tutorial says, and committed."""
    folder = tmp_path_factory.mktemp("tutorial") / "checkout"
    tracked = ("backfill_assets", "resources", "manifests", "docs", "pyproject.toml", "requirements.lock")
    for name in tracked:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    product = folder / "backfill_assets" / "products" / "metering"
    product.mkdir()
    shutil.copy(TUTORIAL / "metering.py", product / "__init__.py")
    page = (TUTORIAL / "README.md").read_text(encoding="utf-8")
    registry = folder / "backfill_assets" / "products" / "registry.py"
    (shown,) = (block.partition("```")[0] for block in page.split("```python\n")[1:])
    registry.write_text(shown, encoding="utf-8")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "Metering")
    return folder


@pytest.fixture(scope="module")
def said(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("tutorial-home") / "home"
    environment = os.environ | {
        "BACKFILL_HOME": str(home),
        "BACKFILL_SPARK": json.dumps(SPARK),
        "PYTHONPATH": str(checkout),
    }
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        cwd=checkout, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.split(" ")[0].isupper())
    return {name: json.loads(text) for name, text in lines.items()}


def test_the_table_takes_fewer_than_sixty_lines() -> None:
    product = (TUTORIAL / "metering.py").read_text(encoding="utf-8")
    manifest = (TUTORIAL / "meter-daily-2024-q1.yaml").read_text(encoding="utf-8")
    written = [line for line in (product + manifest).splitlines() if line.strip()]
    assert len(written) + len(["an import", "its name"]) < 60


def test_the_transform_passes_the_tests_of_it_alone_which_the_page_shows(said: dict[str, Any]) -> None:
    assert len(said["TESTED"]) == 4
    page = (ROOT / "docs" / "adding-a-table.md").read_text(encoding="utf-8")
    assert f"```python\n{(TUTORIAL / 'test_metering.py').read_text(encoding='utf-8')}```\n" in page


def test_the_table_is_published_with_its_three_months(said: dict[str, Any]) -> None:
    assert said["STATUS"]["state"] == "PUBLISHED"
    assert len(said["ROWS"]) == 273
    assert said["ENERGY"] == sum(100 * meter + number % 7 for meter in (1, 2, 3) for number in range(91 * 4))


def test_the_readme_shows_what_the_tutorial_has() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("metering.py", "meter-daily-2024-q1.yaml"):
        assert (TUTORIAL / name).read_text(encoding="utf-8") in readme
