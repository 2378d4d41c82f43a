"""The contenders of this environment: the project, a Dagster run a partition, and a plain script."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import yaml

from backfill_assets.cli import demo
from backfill_assets.installation import Platform
from backfill_assets.products.enforcement.transforms import CALENDAR
from benchmarks.side_by_side.commands import Command
from benchmarks.side_by_side.contender import Contender, Reader
from benchmarks.side_by_side.dagster_runs import STARTED
from benchmarks.side_by_side.data import World
from benchmarks.side_by_side.model import COLUMNS
from benchmarks.side_by_side.readers import TARGET
from manifests.canonical import plain
from resources.settings import load_settings

RESTATEMENT = "restate"
_BAD = "weekends-missing"
_HERTZ = {"parquet": 50.0, "iceberg": 20.0}


@dataclass
class Ours(Contender):
    """This project: planned, approved and run by its command, under all gates of the shipped restatement."""

    again_from: datetime = field(default_factory=lambda: datetime.now(UTC), init=False)

    def platform(self) -> Platform:
        """Return the installation, opened anew."""
        return Platform.of(load_settings(home=self.home))

    def make(self, world: World) -> Sequence[Command]:
        """Return the commands that publish history by 2.4.1; the installation is there, with the events loaded."""
        self._write_manifest(demo.HISTORY, "history", world)
        return self._commands("history")

    def _write_manifest(self, name: str, run_id: str, world: World, calendar: str = "") -> None:
        scope = tuple(pl.Series([world.start, world.end]).str.to_date())
        text = plain(demo._manifest(self.platform(), name, scope).model_dump(mode="json", by_alias=True))
        if calendar:
            named = {"name": CALENDAR, "semantics": "AS_DECIDED", "version": calendar}
            text["referenceData"] = [one for one in text["referenceData"] if one["name"] != CALENDAR] + [named]
        (self.home / f"{run_id}.yaml").write_text(
            yaml.safe_dump(json.loads(json.dumps(text | {"runId": run_id}, default=str)))
        )

    def _command(self, *words: str) -> Command:
        return Command([str(Path(sys.executable).with_name("backfill")), *words], {"BACKFILL_HOME": str(self.home)})

    def _commands(self, run_id: str) -> list[Command]:
        return [
            self._command("plan", str(self.home / f"{run_id}.yaml")),
            self._command("approve", run_id, "--by", "data owner on duty"),
            self._command("run", run_id),
        ]

    def restate(self, world: World, *, bad: bool) -> Sequence[Command]:
        """Return plan, approval and run of 3.1.0; a bad calendar is loaded before, and named in the manifest."""
        if bad:
            load = self._command("load", CALENDAR, str(world.files / "calendar-bad.parquet"), "--version", _BAD)
            subprocess.run(load.words, env={**os.environ, **load.environment}, check=True, capture_output=True)
        self._write_manifest(demo.RESTATEMENT, RESTATEMENT, world, _BAD if bad else "")
        return self._commands(RESTATEMENT)

    def again(self, world: World) -> Sequence[Command]:
        """Return `backfill run`: what is planned and approved stays so."""
        del world
        self.again_from = datetime.now(UTC)
        return [self._command("run", RESTATEMENT)]

    def reader(self, notes: Path) -> Reader:
        """Look by PyIceberg."""
        del notes
        return Reader("iceberg", self.home, _HERTZ["iceberg"])

    def rows(self, exported: Path) -> pl.DataFrame:
        """Return the rows of the target by PyIceberg."""
        del exported
        rows = pl.from_arrow(self.platform().lakehouse.table(TARGET).scan(selected_fields=COLUMNS).to_arrow())
        assert isinstance(rows, pl.DataFrame)
        return rows

    def computed_again(self, printed: str, world: World) -> str:
        """Return how many chunks the attempt after the kill has computed, by the ledger."""
        del printed
        attempts = self.platform().ledger.attempts(RESTATEMENT)
        later = sum(len(json.loads(one.chunks)) for one in attempts if one.started_at > self.again_from)
        return f"{later} of {len(world.months)} chunks"


@dataclass
class OnParquet(Contender):
    """What overwrites partitions of a folder of Parquet files."""

    @property
    def table(self) -> Path:
        """The folder."""
        return self.home / "table"

    def _script(self, world: World, version: str, calendar: str = "calendar.parquet") -> Command:
        words = [sys.executable, "-m", "benchmarks.side_by_side.script", str(world.files), str(self.table)]
        return Command([*words, version, calendar, *world.months])

    def make(self, world: World) -> Sequence[Command]:
        """Return the script, with 2.4.1."""
        return [self._script(world, "2.4.1")]

    def reader(self, notes: Path) -> Reader:
        """Look by Polars."""
        del notes
        return Reader("parquet", self.table, _HERTZ["parquet"])

    def rows(self, exported: Path) -> pl.DataFrame:
        """Return the rows of the files."""
        del exported
        return pl.read_parquet(str(self.table / "*" / "*.parquet"), columns=list(COLUMNS), hive_partitioning=False)


@dataclass
class Script(OnParquet):
    """A plain PySpark script that overwrites the partitions of all months in one job."""

    def restate(self, world: World, *, bad: bool) -> Sequence[Command]:
        """Return the script, with 3.1.0."""
        return [self._script(world, "3.1.0", "calendar-bad.parquet" if bad else "calendar.parquet")]

    def computed_again(self, printed: str, world: World) -> str:
        """Return that it begins again."""
        del printed
        return f"{len(world.months)} of {len(world.months)} months"


@dataclass
class DagsterRuns(OnParquet):
    """One Dagster run a partition."""

    def restate(self, world: World, *, bad: bool) -> Sequence[Command]:
        """Return the command that runs partition after partition."""
        home = self.home / "dagster"
        home.mkdir(exist_ok=True)
        (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        words = [
            sys.executable,
            "-m",
            "benchmarks.side_by_side.dagster_runs",
            RESTATEMENT,
            str(world.files),
            str(self.table),
        ]
        calendar = "calendar-bad.parquet" if bad else "calendar.parquet"
        return [Command([*words, "3.1.0", calendar, *world.months], {"DAGSTER_HOME": str(home)})]

    def computed_again(self, printed: str, world: World) -> str:
        """Return how many runs the command after the kill has begun."""
        return f"{printed.count(STARTED)} of {len(world.months)} partitions"


def put_back(kept: Path, home: Path) -> None:
    """Put a home back as it was kept."""
    shutil.rmtree(home)
    shutil.copytree(kept, home, symlinks=True)
