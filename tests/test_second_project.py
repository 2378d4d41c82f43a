"""Somebody else's Dagster project with a product in it: an environment and a git repository of its own, and one graph.

The product is one that `backfill new-product` has begun, with its transform in SQL; what the project adds is its own assets, before
and behind.
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
from checkouts import commit, git, write
from worlds import SPARK

pytestmark = pytest.mark.exhaustive  # a repository and two environments are made: a minute before the first test
ROOT = Path(__file__).resolve().parent.parent
RUN = "clinic-daily-first"
QUERY = "clinic/clinic_daily.sql"
PIPELINES = '''
"""The clinic's own pipelines, and the tables that are rewritten with backfill-assets: one code location."""

import csv

import dagster as dg
import pyarrow as arrow
from clinic import PRODUCT
from datetime import datetime

import backfill_assets as ba
from backfill_assets.installation import open_platform
from resources.settings import load_settings


class Exports(dg.ConfigurableResource):
    """Where the clinic's system puts its files."""

    folder: str

    def rows(self):
        with open(f"{self.folder}/sample.csv", newline="") as file:
            for row in csv.DictReader(file):
                when = datetime.fromisoformat(row["happened_at"])
                yield row | {"happened_at": when, "amount": int(row["amount"]) if row["amount"] else None}


def table(platform, name):
    return platform.lakehouse.table(name)


@dg.asset
def export(exports: Exports) -> int:
    return sum(1 for _ in exports.rows())


@dg.asset(key=["bronze", "clinic_events"], deps=[export])
def clinic_events(exports: Exports) -> None:
    with open_platform(load_settings()) as platform:
        into = table(platform, "bronze.clinic_events")
        into.append(arrow.Table.from_pylist(list(exports.rows()), schema=into.schema().as_arrow()))


@dg.asset(deps=[dg.AssetKey(["silver", "clinic_daily_published"])])
def dashboard() -> dg.MaterializeResult:
    with open_platform(load_settings()) as platform:
        rows = table(platform, "silver.clinic_daily").scan().to_arrow()
    return dg.MaterializeResult(metadata={"rows": rows.num_rows, "events": sum(rows["events"].to_pylist())})


OWN = dg.Definitions(assets=[export, clinic_events, dashboard])
defs = dg.Definitions.merge(
    OWN,
    ba.build_definitions(
        products=[PRODUCT], resources={"exports": Exports(folder=".")}, made_elsewhere=["bronze.clinic_events"]
    ),
)
'''
BEGINNING = """
import contextlib, io, json
from pathlib import Path
from backfill_assets.cli.command import cli
from manifests.errors import Refused

def run(*words):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        cli(list(words), standalone_mode=False)
    return said.getvalue()

def refusal(*words):
    try:
        run(*words)
    except Refused as refused:
        return [problem.what for problem in refused.problems]
    return []

def say(name, value):
    print(name + " " + json.dumps(value))

def another(run_id, **changes):
    text = Path("clinic-daily-first.yaml").read_text().replace("clinic-daily-first", run_id)
    text = text.replace("kind: BACKFILL", "kind: RESTATEMENT")
    Path(f"{run_id}.yaml").write_text(text + "".join(f"{name}: {value}\\n" for name, value in changes.items()))
    return f"{run_id}.yaml"

def product_code(run_id):
    from backfill_assets.installation import open_platform
    from resources.settings import load_settings
    with open_platform(load_settings()) as platform:
        code = platform.ledger.run(run_id).plan.code.product
        return {"commit": code.git_commit, "dirty": code.dirty, "packages": list(code.packages)}
"""
FIRST = f"""{BEGINNING}
import dagster as dg
run("init")
from clinic_pipelines import defs
graph = defs.resolve_asset_graph()
say("BEHIND", sorted(key.to_user_string() for key in dg.AssetSelection.keys("export").downstream().resolve(graph)))
say("BEFORE", sorted(key.to_user_string() for key in dg.AssetSelection.keys("dashboard").upstream().resolve(graph)))

def materialise(*keys):
    job = defs.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(asset_selection=[dg.AssetKey(key) for key in keys])

materialise(["export"], ["bronze", "clinic_events"])
run("plan", "clinic-daily-first.yaml")
run("approve", "{RUN}", "--by", "data owner")
run("run", "{RUN}", "--json")
done = materialise(["dashboard"])
(event,) = [one for one in done.asset_materializations_for_node("dashboard")]
say("DASHBOARD", {{name: one.value for name, one in event.metadata.items()}})
say("CODE", product_code("{RUN}"))
say("EXPLAINED", json.loads(run("explain", "silver.clinic_daily", "--key", "thing_id=thing-1,day=2024-02-01", "--json")))
run("plan", another("again"))
run("approve", "again", "--by", "data owner")
"""
UNCOMMITTED = f"""{BEGINNING}
say("REFUSED", refusal("plan", another("third")))
run("plan", another("developed", development="true"))
say("CODE", product_code("developed"))
"""
LATER = f"""{BEGINNING}
say("REFUSED", refusal("run", "again", "--json"))
"""


@dataclass(frozen=True)
class Project:
    """Somebody's project: its environment's Python, its repository, and where this package's checkout is."""

    python: Path
    folder: Path
    checkout: Path

    def says(self, *words: str | Path, folder: Path | None = None) -> str:
        """Run the project's Python in its folder; return what it prints."""
        environment = os.environ | {
            "BACKFILL_HOME": str(self.folder.parent / "home"),
            "BACKFILL_SPARK": json.dumps(SPARK),
            "DAGSTER_HOME": "",
            "PYTHONPATH": str(self.checkout),
        }
        done = subprocess.run(
            [self.python, *words],
            cwd=folder or self.folder, env=environment, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def named(self, script: str) -> dict[str, Any]:
        """Run a script; return what it prints, by name."""
        lines = [line.partition(" ") for line in self.says("-c", script).splitlines()]
        return {name: json.loads(text) for name, _, text in lines if name.isupper()}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A product begun by the command, and the pipelines of its owners beside it, committed and installed."""
    folder = tmp_path_factory.mktemp("second")
    checkout, environment = folder / "checkout", folder / "environment"
    for name in ("backfill_assets", "resources", "manifests", "pyproject.toml", "requirements.lock"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, checkout / name)
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    site = next((environment / "lib").glob("python*/site-packages"))
    # what this environment has installed, without installing it once more
    (site / "beside.pth").write_text(f"import site; site.addsitedir({get_path('purelib')!r})\n", encoding="utf-8")
    made = Project(python, folder / "clinic-product", checkout)
    made.says("-m", "backfill_assets.cli.command", "new-product", "clinic", "--sql", folder=folder)
    write(made.folder, "clinic_pipelines/__init__.py", PIPELINES)
    declared = made.folder / "pyproject.toml"
    text = declared.read_text(encoding="utf-8")
    declared.write_text(text.replace('["clinic"]', '["clinic", "clinic_pipelines"]'), encoding="utf-8")
    for place in (checkout, made.folder):
        git(place, "init", "--quiet")
        commit(place, "First")
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", str(made.folder)]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def said(project: Project) -> dict[str, Any]:
    return project.named(FIRST)


def test_lineage_runs_from_their_assets_through_ours_and_back_to_theirs(said: dict[str, Any]) -> None:
    whole = [
        "bronze/clinic_events",
        "dashboard",
        "export",
        "silver/clinic_daily",
        "silver/clinic_daily_published",
    ]
    assert set(whole) <= set(said["BEHIND"])
    assert sorted(said["BEFORE"]) == whole


def test_their_asset_reads_what_was_published_of_what_their_asset_has_filled(said: dict[str, Any]) -> None:
    assert said["DASHBOARD"] == {"rows": 273, "events": 546}


def test_a_plan_has_the_commit_of_their_repository_and_that_nothing_is_uncommitted(
    said: dict[str, Any], project: Project
) -> None:
    first = git(project.folder, "rev-list", "--max-parents=0", "HEAD")
    assert said["CODE"] == {"commit": first, "dirty": False, "packages": ["clinic"]}


def test_a_row_is_explained_with_the_file_of_sql_that_made_it(said: dict[str, Any]) -> None:
    text = json.dumps(said["EXPLAINED"])
    assert '"written_in": "clinic_daily.sql (sha256 ' in text


def test_a_change_of_their_file_of_sql_is_uncommitted_first_and_then_voids_the_plan(
    said: dict[str, Any], project: Project
) -> None:
    before = said["CODE"]["commit"]
    query = project.folder / QUERY
    query.write_text(query.read_text(encoding="utf-8").replace("count(*)", "count(amount)"), encoding="utf-8")
    now = project.named(UNCOMMITTED)
    assert now["REFUSED"] == [f"the code of product clinic is git commit {before} with uncommitted changes"]
    assert now["CODE"] == {"commit": before, "dirty": True, "packages": ["clinic"]}
    after = commit(project.folder, "Events that have an amount")
    (what,) = project.named(LATER)["REFUSED"]
    assert "was planned with code" in what
    assert f"(git {before[:12]})" in what.partition("this is")[0]
    assert f"(git {after[:12]})" in what.partition("this is")[2]
