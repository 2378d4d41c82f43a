"""Tables of an installation in a project of `dg`: scaffolded, checked and listed by its own commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import SPARK

from backfill_assets.defs.component import BackfillTables
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.products.enforcement import PRODUCT
from manifests.errors import DeclarationRefused
from resources.settings import load_settings

PYPROJECT = """
[project]
name = "lake"
version = "0.1.0"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "lake"
"""
DEFINITIONS = """
from pathlib import Path

from dagster import definitions, load_from_defs_folder


@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
DEFS_OF_THEIRS = """
import dagster as dg


@dg.asset(key=["bronze", "case_events"])
def case_events() -> None: ...


@dg.asset(deps=[dg.AssetKey(["silver", "case_sla_daily_published"])])
def dashboard() -> None: ...
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("component") / "home"
    initialise(Platform.of(load_settings(home=home, spark=SPARK), [PRODUCT]))
    return home


def dg(project: Path, home: Path, *words: str) -> str:
    beside = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(project / "src")}
    command = [str(Path(sys.executable).parent / "dg"), *words]
    done = subprocess.run(
        command,
        cwd=project,
        env=os.environ | beside | {"BACKFILL_HOME": str(home), "DG_CLI_DISABLE_CACHE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.exhaustive  # five processes that load Dagster
def test_a_project_of_dg_serves_the_tables_by_a_component_that_it_scaffolds(tmp_path: Path, home: Path) -> None:
    files = {"pyproject.toml": PYPROJECT, "src/lake/__init__.py": "", "src/lake/definitions.py": DEFINITIONS}
    files |= {"src/lake/defs/__init__.py": "", "src/lake/defs/theirs.py": DEFS_OF_THEIRS}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert "backfill_assets.BackfillTables" in dg(tmp_path, home, "list", "components", "--json")
    dg(tmp_path, home, "scaffold", "defs", "backfill_assets.BackfillTables", "tables")
    own = tmp_path / "src/lake/defs/tables/defs.yaml"
    own.write_text(
        "type: backfill_assets.BackfillTables\n"
        "attributes:\n  products: [enforcement]\n  made_elsewhere: [bronze.case_events]\n"
    )
    dg(tmp_path, home, "check", "yaml")
    dg(tmp_path, home, "check", "defs")
    listed = json.loads(dg(tmp_path, home, "list", "defs", "--json"))
    text = json.dumps(listed["assets"])
    for key in ("bronze/case_events", "silver/case_sla_daily", "silver/case_sla_daily_published", "dashboard"):
        assert f'"{key}"' in text
    assert len(listed["asset_checks"]) > 10
    assert len(listed["sensors"]) > 5


def test_a_product_that_is_not_there_is_refused_by_name(home: Path) -> None:
    component = BackfillTables(products=["nobody.knows:PRODUCT"], home=str(home))
    with pytest.raises(DeclarationRefused, match="nobody"):
        component.build_defs(None)  # type: ignore[arg-type]  # it is not looked at
