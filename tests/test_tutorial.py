"""The tutorial as a newcomer does it: a product in a repository and an environment of its own, with the commands it names.

The environment has this package beside it, as a checkout that is committed; the product that ships is served with it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from sysconfig import get_path
from typing import Any

import pytest
from worlds import SPARK

pytestmark = pytest.mark.exhaustive  # a repository and two environments are made: a minute before the first test
ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = ROOT / "docs" / "tutorial"
RUN = "meter-daily-2024-q1"
OTHER = "fines-2010-q1"
BEGINNING = """
import contextlib, io, json, runpy, sys
from pathlib import Path
from backfill_assets.cli.command import cli

def run(*words):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        cli(list(words), standalone_mode=False)
    return said.getvalue()
"""
COMMANDS = f"""{BEGINNING}
trial = runpy.run_path("test_metering.py")
tested = [name for name in trial if name.startswith("test_")]
for name in tested:
    trial[name]()
print("TESTED " + json.dumps(tested))

run("init")
sys.argv = ["make_readings.py", "readings.csv"]
runpy.run_path("make_readings.py")
run("load", "bronze.meter_readings", "readings.csv")
run("plan", "meter-daily-2024-q1.yaml")
run("approve", "meter-daily-2024-q1", "--by", "data owner")
run("run", "meter-daily-2024-q1", "--json")
print("STATUS " + json.dumps(json.loads(run("status", "meter-daily-2024-q1", "--json"))))

from backfill_assets.installation import open_platform
from resources.settings import load_settings

def table():
    with open_platform(load_settings()) as platform:
        return platform.lakehouse.table("silver.meter_daily").scan().to_arrow()

rows = table()
print("ROWS " + json.dumps([row["meter_id"] for row in rows.to_pylist()]))
print("ENERGY " + str(sum(rows["watt_hours"].to_pylist())))
run("verify", "meter-daily-2024-q1", "--data")
run("rollback", "meter-daily-2024-q1", "--by", "data owner", "--reason", "the tutorial is over")
print("LEFT " + str(table().num_rows))

run("load", "case-events", "--cases", "200")
text = Path("meter-daily-2024-q1.yaml").read_text()
Path("again.yaml").write_text(text.replace("meter-daily-2024-q1", "meter-daily-again"))
for name in ("again", "fines"):
    run("plan", f"{{name}}.yaml")
run("approve", "meter-daily-again", "--by", "data owner")
run("approve", "{OTHER}", "--by", "data owner")
"""
LATER = f"""{BEGINNING}
from manifests.errors import Refused

def refusal(*words):
    try:
        run(*words)
    except Refused as refused:
        return [problem.what for problem in refused.problems]
    return []

print("AGAIN " + json.dumps(refusal("run", "meter-daily-again", "--json")))
run("run", "{OTHER}", "--json")
print("STATUS " + json.dumps(json.loads(run("status", "{OTHER}", "--json"))))
"""
UNCOMMITTED = f"""{BEGINNING}
from manifests.errors import Refused

text = Path("meter-daily-2024-q1.yaml").read_text()
Path("third.yaml").write_text(text.replace("meter-daily-2024-q1", "meter-daily-third"))
try:
    run("plan", "third.yaml")
except Refused as refused:
    print("PLAN " + json.dumps([problem.what for problem in refused.problems]))
"""
FINES = f"""
runId: {OTHER}
kind: BACKFILL
requestedBy: fines team
reason: The product that ships is computed beside another one's.
source: {{table: bronze.case_events}}
transform: {{name: case_sla_daily, version: 3.1.0}}
target:
  table: silver.case_sla_daily
  publishRange: {{start: 2010-01-01, end: 2010-03-31}}
validation: {{gates: []}}
"""


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=newcomer", "-c", "user.email=newcomer@example.invalid")
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def committed(folder: Path, why: str) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", why)
    return git(folder, "rev-parse", "HEAD")


@dataclass(frozen=True)
class Newcomer:
    """An environment with this package and a product of its own, and the folder of that product."""

    python: Path
    product: Path
    checkout: Path

    def says(self, script: str) -> dict[str, Any]:
        """Run a script in a process of its own, in the product's folder; return what it prints by name."""
        environment = os.environ | {
            "BACKFILL_HOME": str(self.product.parent / "home"),
            "BACKFILL_SPARK": json.dumps(SPARK),
            "PYTHONPATH": str(self.checkout),
        }
        done = subprocess.run(
            [self.python, "-c", script],
            cwd=self.product, env=environment, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.split(" ")[0].isupper())
        return {name: json.loads(text) for name, text in lines.items()}


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    """A product added as the tutorial says, and committed."""
    folder = tmp_path_factory.mktemp("tutorial")
    checkout, product, environment = folder / "checkout", folder / "metering", folder / "environment"
    for name in ("backfill_assets", "resources", "manifests", "pyproject.toml", "requirements.lock"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, checkout / name)
    shutil.copytree(TUTORIAL, product, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (product / "fines.yaml").write_text(FINES, encoding="utf-8")
    (product / ".gitignore").write_text("*.egg-info/\n", encoding="utf-8")
    for place in (checkout, product):
        git(place, "init", "--quiet")
        committed(place, "First")
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    site = next((environment / "lib").glob("python*/site-packages"))
    # what this environment has installed, without installing it once more
    (site / "beside.pth").write_text(f"import site; site.addsitedir({get_path('purelib')!r})\n", encoding="utf-8")
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", str(product)]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True, capture_output=True)
    return Newcomer(python, product, checkout)


@pytest.fixture(scope="module")
def said(newcomer: Newcomer) -> dict[str, Any]:
    return newcomer.says(COMMANDS)


def test_the_table_takes_fewer_than_sixty_lines() -> None:
    product = (TUTORIAL / "metering.py").read_text(encoding="utf-8")
    manifest = (TUTORIAL / "meter-daily-2024-q1.yaml").read_text(encoding="utf-8")
    written = [line for line in (product + manifest).splitlines() if line.strip()]
    assert len(written) + len(["a group", "an entry point"]) < 60


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


def test_the_run_is_verified_and_rolled_back(said: dict[str, Any]) -> None:
    assert said["LEFT"] == 0


def test_a_change_of_one_product_voids_its_own_plans_and_no_others(said: dict[str, Any], newcomer: Newcomer) -> None:
    assert said["STATUS"]["state"] == "PUBLISHED"
    module = newcomer.product / "metering.py"
    before = git(newcomer.product, "rev-parse", "HEAD")
    module.write_text(module.read_text(encoding="utf-8") + "\n# a comment\n", encoding="utf-8")
    (what,) = newcomer.says(UNCOMMITTED)["PLAN"]
    assert what == f"the code of product metering is git commit {before} with uncommitted changes"
    after = committed(newcomer.product, "A comment")
    later = newcomer.says(LATER)
    (what,) = later["AGAIN"]
    assert "was planned with code" in what
    assert f"(git {before[:12]})" in what.partition("this is")[0]
    assert f"(git {after[:12]})" in what.partition("this is")[2]
    assert later["STATUS"]["state"] == "PUBLISHED"
