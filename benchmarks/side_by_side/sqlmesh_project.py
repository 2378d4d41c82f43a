"""SQLMesh as a contender: its project, on DuckDB or on Spark, restated in place or as a new version that is then promoted.

Put here how the project is written and which commands its users give. It follows SQLMesh's documentation: a model of the kind
INCREMENTAL_BY_TIME_RANGE, one interval a month, audits that block, the state in a database of its own. History is made with reference
data whose `day_zone` is UTC. It is corrected in one of two ways:

- in place: the reference data is corrected, and `sqlmesh plan --restate-model` computes the months again;
- as a new version: the model takes another column, and `sqlmesh plan` computes a table of its own, audits it, and points the view to it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from benchmarks.side_by_side.commands import Command
from benchmarks.side_by_side.contender import Contender, Reader
from benchmarks.side_by_side.data import World, last_day
from benchmarks.side_by_side.model import COLUMNS, audits, query
from benchmarks.side_by_side.states import FIGURES

DRIVER = Path(__file__).with_name("sqlmesh_driver.py")
HOW = "python -m venv sqlmesh-venv; sqlmesh-venv/bin/pip install sqlmesh pyspark==4.1.4; then --sqlmesh sqlmesh-venv/bin/python"
HERTZ = {"duckdb": 10.0, "spark": 2.0}
_MODEL = """MODEL (
  name silver.case_sla_daily,
  kind INCREMENTAL_BY_TIME_RANGE (
    time_column business_date{kind}
  ),
  cron '@monthly',
  start '{start}',
  grain (case_id, clock, business_date){layout},
  audits ({audits})
);

{query}
"""


def versions(python: Path) -> dict[str, str] | str:
    """Return the versions of what an environment has, or why it cannot be used."""
    names = ("sqlmesh", "duckdb", "pyspark")
    script = (
        "import json; from importlib import metadata as m\n"
        "there = {one.metadata['Name'].lower(): one.version for one in m.distributions()}\n"
        f"print(json.dumps({{name: there[name] for name in {names!r} if name in there}}))"
    )
    try:
        done = subprocess.run([str(python), "-c", script], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"{python} cannot be run: {error}"
    found: dict[str, str] = json.loads(done.stdout)
    return found if "sqlmesh" in found else f"{python} has no SQLMesh"


@dataclass
class SQLMesh(Contender):
    """SQLMesh on an engine; `batch` is how many months are one statement (0: all), `is_version` whether a new version is promoted."""

    python: Path = Path()
    engine: str = "duckdb"
    batch: int = 0
    is_version: bool = False
    hidden_by: str = ""

    @property
    def sources(self) -> Path:
        """Where the files lie that this contender reads: those that are corrected differ from others'."""
        return self.home / "sources"

    def make(self, world: World) -> list[Command]:
        """Write the project; return the commands that make history."""
        for name in ("events", "stops", "rules", "calendar"):
            (self.sources / name).mkdir(parents=True)
            shutil.copy(world.files / f"{name}.parquet", self.sources / name)
        shutil.copy(world.files / "rules-before.parquet", self.sources / "rules" / "rules.parquet")
        (self.home / "models").mkdir()
        (self.home / "audits").mkdir()
        for name, text in audits(self.engine).items():
            (self.home / "audits" / f"{name}.sql").write_text(f"AUDIT (name {name});\n\n{text};\n")
        self._write_model("day_zone", world)
        (self.home / "config.yaml").write_text(yaml.safe_dump(self._configuration()))
        told = {
            "engine": self.engine,
            "database": str(self.home / "warehouse.db"),
            "sources": str(self.sources),
            "spark": self._spark(),
            "hertz": HERTZ[self.engine],
            "columns": ", ".join(COLUMNS),
            "look": f"SELECT month, {FIGURES} FROM silver.case_sla_daily GROUP BY month",
        }
        (self.home / "told.json").write_text(json.dumps(told))
        return [self._driver("setup"), self._plan(world)]

    def _configuration(self) -> Mapping[str, Any]:
        connections: Mapping[str, Mapping[str, Any]] = {
            "duckdb": {"type": "duckdb", "database": str(self.home / "warehouse.db")},
            "spark": {"type": "spark", "config": self._spark()},
        }
        gateway = {
            "connection": {**connections[self.engine], "concurrent_tasks": 1},
            "state_connection": {"type": "duckdb", "database": str(self.home / "state.db")},
        }
        return {
            "gateways": {"main": gateway},
            "default_gateway": "main",
            "model_defaults": {"dialect": self.engine},
            "disable_anonymized_analytics": True,
        }

    def _spark(self) -> dict[str, str]:
        place = self.home / "spark"
        return {
            "spark.master": "local[2]",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.parquet.compression.codec": "zstd",
            "spark.driver.memory": "2g",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.warehouse.dir": str(place / "warehouse"),
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={place} -Duser.timezone=UTC",
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={place}/metastore;create=true",
        }

    def _write_model(self, zone: str, world: World) -> None:
        text = query(self.engine, start="@start_date", end="@end_date", zone=zone)
        kind = f",\n    batch_size {self.batch}" if self.batch else ""
        layout = ""
        if self.engine == "spark":
            kind += ",\n    partition_by_time_column false"
            layout = ",\n  partitioned_by (month),\n  storage_format parquet"
        names = ", ".join(audits(self.engine))
        model = _MODEL.format(kind=kind, start=world.start, layout=layout, audits=names, query=text)
        (self.home / "models" / "case_sla_daily.sql").write_text(model)

    def _driver(self, *arguments: str) -> Command:
        environment = {"TZ": "UTC", "PYSPARK_PYTHON": str(self.python), "SQLMESH__DISABLE_ANONYMIZED_ANALYTICS": "true"}
        words = [str(self.python), str(DRIVER), str(self.home), *arguments]
        return Command(words, environment | {"COLUMNS": "200"}, self.home)

    def _plan(self, world: World, *options: str) -> Command:
        until = last_day(world.months[-1]) + timedelta(days=1)
        always = ("--no-prompts", "--auto-apply", "--no-diff", "--execution-time", f"{until}")
        return self._driver("sqlmesh", "plan", *options, *always)

    def restate(self, world: World, *, bad: bool) -> list[Command]:
        """Correct the reference data or the model, as its user does; return the command that restates."""
        if bad:
            shutil.copy(world.files / "calendar-bad.parquet", self.sources / "calendar" / "calendar.parquet")
        if self.is_version:
            self._write_model("time_zone", world)
            return [self._plan(world)]
        shutil.copy(world.files / "rules.parquet", self.sources / "rules" / "rules.parquet")
        options = ("--restate-model", "silver.case_sla_daily", "--start", world.start, "--end", world.end)
        return [self._plan(world, *options)]

    def writes(self, printed: str) -> tuple[bool, bool]:
        """Return whether rows are being written, and all are."""
        return "executes INSERT" in printed and "sqlmesh__silver" in printed, "Model batches executed" in printed

    def reader(self, notes: Path) -> Reader:
        """Have the driver look."""
        return Reader(environment={"LOOKS": str(notes)})

    def look(self, notes: Path) -> Sequence[Command]:
        """Look once more, from a process that comes later."""
        return [self._driver("look", str(notes))]

    def export(self, file: Path) -> Sequence[Command]:
        """Write what readers see to Parquet."""
        return [self._driver("export", str(file))]

    def rows(self, exported: Path) -> pl.DataFrame:
        """Return what was exported."""
        return pl.read_parquet(str(exported / "*.parquet") if exported.is_dir() else exported)

    def computed_again(self, printed: str, world: World) -> str:
        """Return what a second command computed, by the statements that it executed."""
        inserts = sum("sqlmesh__silver" in line for line in printed.splitlines() if line.startswith("executes INSERT"))
        each = self.batch or len(world.months)
        return f"{min(inserts * each, len(world.months))} of {len(world.months)} months"
