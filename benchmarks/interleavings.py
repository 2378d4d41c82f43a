"""Interleavings: one actor is stopped anywhere while another one acts to the end; then it goes on, or has died there.

    python benchmarks/interleavings.py [--schedules 20000] [--seed 1] [--processes 2] [--only TEXT] [--places N]

Anywhere: at each named point of `faults`, and before each transaction of the ledger and each look at or commit to the
catalog, which is all that processes share. An actor publishes, prepares, judges, rolls back, reinstates, accepts, cancels,
rejects, loads, writes past the project, collects garbage or is the doctor. The second one meets the first one's lease alive
or expired. Instead of being stopped, an actor may get no answer to one of its commits, which has landed, never lands, or
lands after the second one is done. A schedule is one such order of events in one publish mode and state of a run; they are
drawn at random from a seed. One in four is of `known`: runs beside LIVE read different snapshots of a source from which loads
are taken back, and several things are done before one actor is stopped; `--only known` plays no others.

After each the operator gives interrupted commands again and lets the doctor repair. Then the table holds exactly the rows of
the runs that the ledger names as holders, in full and once; corrections and versions are those of published runs; nothing waits
for ever; and the evidence verifies. Only Spark is left out (`small_table`); the tables are real, in memory where the system has
/dev/shm. Prints a line a state; ends with 1 if anything was wrong. That it finds what once was wrong is shown by `taken_back`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as arrow
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.table import Table as IcebergTable
from pyiceberg.transforms import MonthTransform
from rich.console import Console
from rich.table import Table

ROOT = str(Path(__file__).resolve().parent.parent)
sys.path.insert(0, ROOT)

from backfill_assets import decisions, faults
from backfill_assets.audit.verification import verify
from backfill_assets.gates import judging
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication import accepting, ending, undoing
from backfill_assets.publication import publisher as publication
from backfill_assets.staging import compute, executor
from benchmarks import kills, known, small_table
from benchmarks.kills import CASES, Case
from benchmarks.small_table import (
    CORRECTIONS,
    READINGS,
    SOURCE,
    closed,
    initialise,
    manifest,
    opened,
    planned,
    seen,
    staged,
)
from benchmarks.stopped_actors import (
    DIES,
    EXPIRED,
    FATES,
    PAUSED,
    Died,
    Stage,
    at_rest,
    bury,
    collect,
    expire,
    no_lease_ends,
    staged_world,
)
from manifests.errors import EnvironmentRefused, Refused
from manifests.lifecycle import RunState
from manifests.model import Conflict, OnConflict
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.facade import LOAD_PROPERTY, Scope, local_path

PUBLISHED = frozenset({RunState.PUBLISHED, RunState.SUPERSEDED})
BEFORE, RUNNING_LIMIT = "history", 100
MAY = ("2020-05-01", "2020-05-31")
MEMORY = Path("/dev/shm")
SHARE = 4
"""One of so many schedules is of those in which runs know different things: see `known`."""
THOROUGHLY = 7
"""Of so many schedules that come to rest by themselves the doctor, the verification and the end of each run are tried in one."""


# --- the actors -------------------------------------------------------------------------------------------------------


FIRST, SECOND = "first", "second"


@dataclass
class World:
    """An installation in one state, two processes' connections to it, and what was done past the project by which actor."""

    site: Path
    case: Case
    platform: Platform
    others: Platform
    live: set[str] = field(default_factory=set)
    actor: str = FIRST
    of_nobody: int = 0

    @property
    def run(self) -> str:
        """The run that is published, cancelled and so on."""
        return self.case.run_id

    @property
    def other(self) -> str:
        """A validated run in part of its scope, planned on the same base."""
        return f"other-{self.run}"

    @property
    def beside(self) -> str:
        """A validated run elsewhere in the table."""
        return f"beside-{self.run}"

    @property
    def next(self) -> str:
        """A validated run in part of its scope, planned after it landed."""
        return f"next-{self.run}"

    @property
    def twin(self) -> str:
        """A validated version of the same name, planned on the same base."""
        return f"twin-{self.run}"

    @property
    def empty(self) -> str:
        """A run that has computed no row of one month, below or above the run there."""
        return f"empty-{self.run}"

    @property
    def fresh(self) -> str:
        """A run over that month that is planned when somebody thinks of it."""
        return f"fresh-{self.run}"

    @property
    def over(self) -> str:
        """A run that has superseded the whole of it."""
        return f"over-{self.run}"

    @property
    def head(self) -> int | None:
        """The snapshot that readers of main see."""
        return self.others.lakehouse.snapshot_id(READINGS)


Act = Callable[[World, Platform], Any]


def _append_live(world: World, platform: Platform) -> None:
    """Append a row to the scope past the project, as a job that knows nothing of it."""
    month = int(world.case.scope[1][5:7])
    name = f"live-of-the-{world.actor}"  # before somebody else acts; the same when it is done again
    row = {"meter": name, "day": date(2020, month, 15), "value": 1, "run_id": "live"}
    row |= {"processing_mode": "LIVE", "transform_version": "1", "input_snapshot_id": 1}
    row["produced_at"] = datetime(2020, 1, 1, tzinfo=UTC)
    schema = schema_to_pyarrow(platform.lakehouse.table(READINGS).schema())
    platform.lakehouse.append(READINGS, [arrow.Table.from_pylist([row], schema=schema)], {LOAD_PROPERTY: name})
    world.live.add(name)


def _load(_: World, platform: Platform) -> None:
    """Load a file into the source, as everybody who loads this file does."""
    schema = schema_to_pyarrow(platform.lakehouse.table(SOURCE).schema())
    rows_ = [{"id": "twice", "at": datetime(2020, 1, 2, tzinfo=UTC)}]
    platform.lakehouse.append(SOURCE, [arrow.Table.from_pylist(rows_, schema=schema)], {LOAD_PROPERTY: "twice"})


def _expire(_: World, platform: Platform) -> None:
    """Do as a program that expires every snapshot which no name keeps."""
    with suppress(CommitFailedException, CommitStateUnknownException):  # it does so another day, or has done so
        table = platform.lakehouse.table(READINGS)
        table.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()


def _publish_fresh(world: World, platform: Platform) -> None:
    """Plan a run over the month on the table as it is, and publish it."""
    planned(platform, manifest(world.fresh, "REPLACE_PARTITIONS", MAY))
    staged(platform, world.fresh)
    publication.publish(platform, world.fresh)


def _none_of_may(version: str, start: date, end: date) -> list[dict[str, Any]]:
    """Compute as the table does, and no row of May."""
    return [row for row in _ROWS_OF(version, start, end) if row["day"].month != date.fromisoformat(MAY[0]).month]


_ROWS_OF = small_table.rows_of


def _judge(world: World, platform: Platform) -> None:
    """Do what a launch does once all is staged: gate, judge, prepare."""
    judging.gate_chunks(platform, world.run)
    judging.gate_run(platform, world.run)


def _judged_published_in_vain_and_staged_again(world: World, platform: Platform) -> None:
    """Judge the run, publish what it conflicts with, plan it anew with more rows than its manifest expects, and stage them."""
    _judge(world, platform)
    publication.publish(platform, world.other)
    with _refusals_allowed():
        publication.publish(platform, world.run)
    with mock.patch.object(executor, "compute_batch", _twice_as_many):
        record = platform.ledger.run(world.run)
        executor.stage_chunks(platform, world.run, [chunk.key for chunk in record.plan.chunks])
    judging.gate_chunks(platform, world.run)


def _judged_and_landed(world: World, platform: Platform) -> None:
    """Judge the run and publish it, by a process that dies before it can say so."""
    _judge(world, platform)

    def die(point: str) -> None:
        if point == "publishing.committed":
            raise Died

    with no_lease_ends(), mock.patch.object(faults, "reach", die), suppress(Died):
        publication.publish(platform, world.run)
    bury(platform)


def _twice_as_many(*arguments: Any) -> Any:
    """Compute as the table does, of a source that has grown: each day has two more meters."""
    with mock.patch.object(small_table, "METERS", (*small_table.METERS, *(f"n{n}" for n in range(6)))):
        return small_table.compute(*arguments)


def _restate(world: World, platform: Platform) -> None:
    """Plan, approve, stage and publish the run, as far as that is not done."""
    case = world.case
    planned(platform, manifest(world.run, case.mode, case.scope, **dict(case.options)))
    staged(platform, world.run)
    publication.publish(platform, world.run)


def _restate_unseen(world: World, platform: Platform) -> None:
    """Do it where workers write to disks of their own, which the driver does not see."""
    listed = compute.staged_files

    def elsewhere(platform: Platform, target: Any, prefix: str, *others: Any) -> Any:
        Path(local_path(prefix)).rename(f"{local_path(prefix)}-on-another-machine")
        return listed(platform, target, prefix, *others)

    with mock.patch.object(small_table, "staged_files", elsewhere):
        _restate(world, platform)


@contextmanager
def _refusals_allowed() -> Iterator[None]:
    with suppress(Refused):
        yield


def _of(action: Callable[..., Any], which: str) -> Act:
    return lambda world, platform: action(platform, getattr(world, which))


def _then(*acts: str) -> Act:
    def act(world: World, platform: Platform) -> None:
        for one in acts:
            with _refusals_allowed():
                ACTS[one](world, platform)

    return act


ACTS: dict[str, Act] = {
    "publish": _of(publication.publish, "run"),
    "publish other": _of(publication.publish, "other"),
    "publish beside": _of(publication.publish, "beside"),
    "publish next": _of(publication.publish, "next"),
    "prepare": _of(publication.prepare, "run"),
    "rollback": _of(undoing.rollback, "run"),
    "reinstate": _of(undoing.reinstate, "run"),
    "accept": _of(accepting.accept, "run"),
    "cancel": lambda world, platform: ending.cancel(platform, world.run, "grace", "not wanted"),
    "reject": lambda world, platform: decisions.reject(platform, world.run, by="grace", comment="no"),
    "judge": _judge,
    "judge, and stage again": _judged_published_in_vain_and_staged_again,
    "restate": _restate,
    "restate unseen": _restate_unseen,
    "doctor": lambda _, platform: mend(platform),
    "collect": lambda _, platform: collect(platform, later=timedelta()),
    "collect later": lambda _, platform: collect(platform, later=timedelta(days=3)),
    "live": _append_live,
    "load": _load,
    "judge, publish": _then("judge", "publish"),
    "judge, land": _judged_and_landed,
    "rollback, reinstate": _then("rollback", "reinstate"),
    "reinstate, rollback": _then("reinstate", "rollback"),
    "accept, rollback": _then("accept", "rollback"),
    "accept, rollback, reinstate": _then("accept", "rollback", "reinstate"),
    "next, rolled back": _then("publish next", "rollback next"),
    "publish, rollback": _then("publish", "rollback"),
    "publish twin": _of(publication.publish, "twin"),
    "publish twin, reinstate": _then("publish twin", "reinstate"),
    "reinstate, publish next": _then("reinstate", "publish next"),
    "publish fresh": _publish_fresh,
    "unwind": _then("rollback", "rollback empty", "reinstate", "rollback", "publish fresh"),
    "unwind empty": _then("rollback empty", "rollback", "reinstate empty", "rollback empty", "publish fresh"),
    "rollback over": _of(undoing.rollback, "over"),
    "rollback both": _then("rollback over", "rollback"),
    "expire": _expire,
    "expire, rollback": _then("expire", "rollback"),
}
ACTS["rollback next"] = _of(undoing.rollback, "next")
ACTS["rollback empty"] = _of(undoing.rollback, "empty")
ACTS["reinstate empty"] = _of(undoing.reinstate, "empty")

_WHILE_VALIDATED = (
    ("publish", "prepare", "cancel", "reject", "doctor", "collect later", "publish other", "live", "load"),
    ("publish", "prepare", "cancel", "reject", "doctor", "collect", "publish other", "publish beside", "live", "load"),
)
_WHILE_LANDED = (
    ("publish", "cancel", "reject", "doctor", "publish next", "publish other", "collect later"),
    ("publish", "cancel", "reject", "doctor", "publish next", "publish beside", "next, rolled back", "live", "collect"),
)
_WHILE_PUBLISHED = (
    ("rollback", "publish", "doctor", "publish next", "accept", "collect later"),
    ("rollback", "rollback, reinstate", "publish next", "accept", "doctor", "live", "publish beside", "collect"),
)
_WHILE_UNDONE = (
    ("rollback", "reinstate", "doctor", "publish next", "collect later"),
    ("rollback", "reinstate", "rollback, reinstate", "publish next", "doctor", "live", "publish beside", "collect"),
)
_WHILE_REDONE = (
    ("reinstate", "rollback", "doctor", "publish next", "collect later"),
    ("reinstate", "rollback", "reinstate, rollback", "publish next", "doctor", "live", "publish beside", "collect"),
)
_WHILE_ACCEPTED = (
    ("accept", "rollback", "doctor", "publish next"),
    ("accept", "accept, rollback", "rollback", "publish next", "doctor", "live"),
)
STATES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "staged": (
        ("judge", "judge, publish", "cancel", "doctor"),
        ("judge", "judge, publish", "judge, land", "judge, and stage again", "cancel", "doctor"),
    ),
    "validated": _WHILE_VALIDATED,
    "half": _WHILE_LANDED,
    "landed": _WHILE_LANDED,
    "untold": _WHILE_PUBLISHED,
    "published": _WHILE_PUBLISHED,
    "half undone": _WHILE_UNDONE,
    "undone": _WHILE_UNDONE,
    "rolled back": _WHILE_REDONE,
    "redone": _WHILE_REDONE,
    "accepting": _WHILE_ACCEPTED,
    "brought back": (
        ("accept", "rollback", "accept, rollback", "doctor", "publish next", "collect later"),
        (
            "accept",
            "rollback",
            "accept, rollback",
            "accept, rollback, reinstate",
            "rollback, reinstate",
            "doctor",
            "publish next",
            "collect",
        ),
    ),
    "collected": (("reinstate", "doctor"), ("reinstate", "reinstate, rollback", "doctor", "publish beside")),
    "collected version": (
        ("reinstate", "rollback", "accept, rollback", "doctor", "collect later"),
        ("reinstate", "rollback", "accept, rollback", "reinstate, rollback", "doctor", "publish beside"),
    ),
    "name set free": (
        ("publish twin", "publish twin, reinstate", "reinstate", "doctor"),
        ("publish twin", "publish twin, reinstate", "reinstate", "doctor", "publish beside", "collect later"),
    ),
    "above nothing": (("unwind", "rollback", "doctor"), ("unwind", "rollback", "doctor", "collect later")),
    "below nothing": (("unwind empty", "rollback empty", "doctor"), ("unwind empty", "doctor", "collect later")),
    "superseded": (
        ("rollback over", "rollback both", "doctor", "collect later"),
        ("rollback over", "rollback both", "doctor", "collect later"),
    ),
    "planned anew": (
        ("expire, rollback", "rollback", "doctor"),
        ("expire", "expire, rollback", "rollback", "doctor", "collect later"),
    ),
    "usual": (("restate unseen",), ("doctor", "collect")),
    "coarse": (("restate",), ("doctor", "collect")),
    "named otherwise": (("restate",), ("doctor", "collect")),
    "of nobody": (("restate",), ("doctor", "collect")),
}
"""What a run's state is, and who acts on it: those who are stopped, and those who act meanwhile."""
SHAPES = ("usual", "coarse", "named otherwise", "of nobody")
"""States of a table before there is a run: as it was published; with one file for several months; with files whose names
are written as another writer writes them; with rows, written past the project, that say of no entity they are."""
ODD = frozenset({*SHAPES, "planned anew"})
"""States in which others have written, or expired, what the doctor and `verify` rightly find."""
OF_NOBODY = 2
"""How many such rows there are."""
INTERRUPTED = {
    "half": "publish",
    "landed": "publish",
    "untold": "publish",
    "half undone": "rollback",
    "undone": "rollback",
    "redone": "reinstate",
    "accepting": "accept",
}
"""The command whose process died in a state; its operator gives it again when all others are done."""

# --- an installation in every state -----------------------------------------------------------------------------------


@dataclass
class Expected:
    """What undisturbed runs leave: rows of each month by the run that holds it, of corrections and of versions."""

    months: dict[str, dict[str, list[tuple[Any, ...]]]]
    corrections: dict[str, int]
    version: list[tuple[Any, ...]]


@dataclass
class Site:
    """A place for one installation at a time, and copies of it in each state of each case."""

    folder: Path
    expected: dict[str, Expected] = field(default_factory=dict)
    lengths: dict[tuple[str, str, str], tuple[list[str], int]] = field(default_factory=dict)
    processes: tuple[Platform, Platform] | None = None

    def kept(self, case: Case, state: str) -> Path:
        """Return the folder of a copy."""
        return self.folder / "kept" / case.run_id / state.replace(" ", "-")

    def world(self, case: Case, kept: Path) -> World:
        """Put a copy in its place and connect to it."""
        home = self.folder / "home"
        if home.exists():
            shutil.rmtree(home)
        shutil.copytree(kept, home)
        if self.processes is None:
            days = {"keep_snapshots_days": 0, "keep_superseded_days": 0, "keep_dead_runs_days": 0}
            self.processes = (opened(home, **days), opened(home, **days))
        return World(self.folder, case, *self.processes)

    def build(self, case: Case) -> None:
        """Bring a case into each of its states and keep a copy of each; learn what undisturbed runs leave."""
        if case.run_id in self.expected:
            return
        first = self.folder / "kept" / BEFORE
        if not first.exists():
            platform = opened(self.folder / "home")
            initialise(platform)
            planned(platform, manifest(BEFORE, "REPLACE_PARTITIONS", small_table.HISTORY, computed_by="1"))
            staged(platform, BEFORE)
            publication.publish(platform, BEFORE)
            closed(platform)
            shutil.copytree(self.folder / "home", first)
        world = self.world(case, first)
        platform = world.platform
        part = _last_month(case.scope)
        for run_id, scope in ((world.other, part), (world.beside, ("2020-04-01", "2020-04-30"))):
            planned(platform, manifest(run_id, "REPLACE_PARTITIONS" if scope[0] < "2020-05" else case.mode, scope))
            staged(platform, run_id)
        replans = Conflict(onConflict=OnConflict.REPLAN)
        contract = manifest(case.run_id, case.mode, case.scope, **dict(case.options))
        if case.mode == "REPLACE_PARTITIONS":
            limits = contract.limits.model_copy(update={"max_rows_expected": RUNNING_LIMIT})
            contract = contract.model_copy(update={"conflict": replans, "limits": limits})
        record = planned(platform, contract)
        executor.stage_chunks(platform, world.run, [chunk.key for chunk in record.plan.chunks])
        judging.gate_chunks(platform, world.run)
        self._keep(world, "staged")
        if case.mode in {"REPLACE_PARTITIONS", "MERGE_BY_KEY"}:
            for shape in SHAPES:
                self._shape(case, shape)
            world = self.world(case, self.kept(case, "staged"))
        judging.gate_run(platform, world.run)
        assert platform.ledger.run(world.run).state is RunState.VALIDATED, platform.ledger.run(world.run).state_reason
        self._keep(world, "validated")
        self._learn(case)
        self._states_of_one_run(case)
        self._states_of_several(case)

    def _states_of_one_run(self, case: Case) -> None:
        self._step(case, "validated", "half", "publish", "publishing.halfway")
        self._step(case, "validated", "landed", "publish", "publishing.committed")
        self._step(case, "validated", "untold", "publish", "publishing.recorded")
        self._step(case, "validated", "published", "publish", "")
        self._step(case, "published", "half undone", "rollback", "undoing.halfway")
        self._step(case, "published", "undone", "rollback", "undoing.committed")
        self._step(case, "published", "rolled back", "rollback", "")
        self._step(case, "rolled back", "redone", "reinstate", "undoing.committed")
        if kills.ACCEPT in case.steps:
            self._step(case, "published", "accepting", "accept", "accepting.committed")
        self._step(case, "rolled back", "brought back", "reinstate", "")

    def _states_of_several(self, case: Case) -> None:
        if case.mode == "VERSIONED":
            self._step(case, "rolled back", "collected", "collect later", "")
            self._step(case, "collected", "collected version", "reinstate", "")
            self._name_set_free(case)
        if case.mode in {"REPLACE_PARTITIONS", "SHADOW_SWAP"}:
            self._superseded(case)
        if case.mode == "REPLACE_PARTITIONS":
            self._beside_nothing(case, "above nothing", "empty", "run")
            self._beside_nothing(case, "below nothing", "run", "empty")
            self._planned_anew(case)

    def _name_set_free(self, case: Case) -> None:
        world = self.world(case, self.kept(case, "validated"))
        later = {"version": dict(case.options)["version"], "acceptance": "LATER"}
        planned(world.platform, manifest(world.twin, case.mode, case.scope, **later))
        staged(world.platform, world.twin)
        ACTS["publish, rollback"](world, world.platform)
        self._keep(world, "name set free")

    def _superseded(self, case: Case) -> None:
        """Have the run superseded as a whole, by one that was not made on its snapshot."""
        world = self.world(case, self.kept(case, "published"))
        april = ("2020-04-01", "2020-04-30")
        for run_id, scope in (
            (f"april-{world.run}", april),
            (f"april-again-{world.run}", april),
            (world.over, case.scope),
        ):
            self._published(world, run_id, scope)
        ACTS["collect later"](world, world.platform)
        self._keep(world, "superseded")

    def _beside_nothing(self, case: Case, state: str, *order: str) -> None:
        """Publish one run after the other, of which one has no row of a month that the other one has published."""
        world = self.world(case, self.folder / "kept" / BEFORE)
        for which in order:
            with mock.patch.object(small_table, "rows_of", _none_of_may if which == "empty" else small_table.rows_of):
                self._published(world, getattr(world, which), small_table.EMPTY if which == "empty" else MAY)
        months = self.expected[case.run_id].months
        rows = months[world.run]["2020-05"]
        months[world.fresh] = {"2020-05": sorted((_renamed(row, world.run, world.fresh) for row in rows), key=repr)}
        self._keep(world, state)

    def _planned_anew(self, case: Case) -> None:
        """Publish a run that was planned on a table without rows, and anew on those of another one."""
        world = self.world(case, self.folder / "kept" / BEFORE)
        shutil.rmtree(self.folder / "home")
        initialise(world.platform)
        contract = manifest(world.run, case.mode, case.scope)
        planned(world.platform, contract.model_copy(update={"conflict": Conflict(onConflict=OnConflict.REPLAN)}))
        staged(world.platform, world.run)
        self._published(world, f"history-{world.run}", small_table.HISTORY, computed_by="1")
        for _ in range(2):
            with _refusals_allowed():
                publication.publish(world.platform, world.run)
            staged(world.platform, world.run)
        assert world.platform.ledger.run(world.run).state is RunState.PUBLISHED
        self._keep(world, "planned anew")

    def _published(self, world: World, run_id: str, scope: tuple[str, str], **options: Any) -> None:
        """Publish a replacement, and learn what readers see of it."""
        planned(world.platform, manifest(run_id, "REPLACE_PARTITIONS", scope, **options))
        staged(world.platform, run_id)
        publication.publish(world.platform, run_id)
        self._learn_holders(world)

    def _learn_holders(self, world: World) -> None:
        """Learn the rows of each month from a state in which its holder's publication was just made."""
        months, readers = self.expected[world.case.run_id].months, _by_month(seen(world.platform))
        for month, holder in world.platform.ledger.accepted(READINGS).items():
            months.setdefault(holder, {}).setdefault(month, readers.get(month, []))

    def _shape(self, case: Case, state: str) -> None:
        world = self.world(case, self.folder / "kept" / BEFORE)
        table = world.platform.lakehouse.table(READINGS)
        if state == "coarse":
            with table.update_spec() as update:
                update.remove_field("day_month")
            table = world.platform.lakehouse.table(READINGS)
            scope = Scope("day", date(2020, 2, 1), date(2020, 4, 30))
            old = [task.file for task in table.scan(row_filter=scope.filter).plan_files()]
            found = table.scan(row_filter=scope.filter).to_arrow()
            commit_replacement(
                table, scope.filter, old, list(_dataframe_to_data_files(table.metadata, found, table.io)), {}
            )
            table = world.platform.lakehouse.table(READINGS)
            with table.update_spec() as update:
                update.add_field("day", MonthTransform(), "day_month")
        elif state == "of nobody":
            _write_rows_of_nobody(table)
        elif state == "named otherwise":
            scope = Scope("day", date(2020, 2, 1), date(2020, 3, 31))
            old = [task.file for task in table.scan(row_filter=scope.filter).plan_files()]
            new = []
            for file in old:
                new.append(copy(file))
                new[-1]._data = list(file._data)
                new[-1]._data[1] = file.file_path.replace("file://", "file:")
            commit_replacement(table, scope.filter, old, new, {})
        self._keep(world, state)

    def _keep(self, world: World, state: str) -> None:
        closed(world.platform)
        closed(world.others)
        shutil.copytree(world.site / "home", self.kept(world.case, state))

    def _step(self, case: Case, before: str, state: str, act: str, point: str) -> None:
        """Make one state out of another: the actor dies at a point, if it gets there; the next run is planned on it."""
        world = self.world(case, self.kept(case, before))
        stage = Stage(world.platform)
        with stage.of_the_first():
            stage.dies_at = f"point {point}"
            died = stage.act(partial(ACTS[act], world))
        if point and not died:
            closed(world.platform)
            return
        if world.platform.ledger.find(world.next) is None:
            scope = _last_month(case.scope)
            planned(world.platform, manifest(world.next, "REPLACE_PARTITIONS", scope))
            staged(world.platform, world.next)
        self._keep(world, state)

    def _learn(self, case: Case) -> None:
        months: dict[str, dict[str, list[tuple[Any, ...]]]] = {}
        issued: dict[str, int] = {}
        version: list[tuple[Any, ...]] = []
        for act, which in (("", ""), ("publish", "run"), ("publish other", "other"), ("publish beside", "beside")):
            world = self.world(case, self.kept(case, "validated"))
            if act:
                ACTS[act](world, world.platform)
            name = getattr(world, which) if which else BEFORE
            if act == "publish" and kills.ACCEPT in case.steps:
                ACTS["accept"](world, world.platform)
            months[name] = _by_month(seen(world.platform))
            if act == "publish":
                issued[name] = len(seen(world.platform, CORRECTIONS))
                if named := dict(case.options).get("version"):
                    version = seen(world.platform, READINGS, named)
            closed(world.platform)
        again = {m: [_renamed(row, world.other, world.next) for row in r] for m, r in months[world.other].items()}
        months[world.next] = {month: sorted(found, key=repr) for month, found in again.items()}
        self.expected[case.run_id] = Expected(months, issued, version)

    def length(self, case: Case, state: str, act: str) -> tuple[list[str], int]:
        """Return the boundaries that an actor passes undisturbed, and how many commits it makes."""
        key = (case.run_id, state, act)
        if key not in self.lengths:
            world = self.world(case, self.kept(case, state))
            stage = Stage(world.platform)
            with stage.of_the_first():
                stage.act(partial(ACTS[act], world))
            closed(world.platform)
            self.lengths[key] = (stage.passed, stage.commits)
        return self.lengths[key]


def _write_rows_of_nobody(table: IcebergTable) -> None:
    """Replace a month's files by one that holds rows without a meter as well, as a writer can who asks no model."""
    scope = Scope("day", date(2020, 2, 1), date(2020, 2, 29))
    old = [task.file for task in table.scan(row_filter=scope.filter).plan_files()]
    found = table.scan(row_filter=scope.filter).to_arrow()
    nobody = [{**found.to_pylist()[0], "meter": None, "day": date(2020, 2, 2 + n)} for n in range(OF_NOBODY)]
    nobody = [{**row, "run_id": "live"} for row in nobody]
    rows = arrow.concat_tables([found, arrow.Table.from_pylist(nobody, schema=found.schema)])
    commit_replacement(table, scope.filter, old, list(_dataframe_to_data_files(table.metadata, rows, table.io)), {})


def _last_month(scope: tuple[str, str]) -> tuple[str, str]:
    return f"{scope[1][:7]}-01", scope[1]


def _by_month(found: Sequence[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
    months: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in found:
        (day,) = (value for value in row if isinstance(value, date))
        months[f"{day:%Y-%m}"].append(row)
    return dict(months)


def _renamed(row: tuple[Any, ...], old: str, new: str) -> tuple[Any, ...]:
    return tuple(new if value == old else value for value in row)


# --- a schedule -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """One order of events.

    Attributes:
        case: the publish mode.
        state: of the run, or of the table, when the first actor begins.
        first: the actor that is disturbed.
        second: who acts meanwhile.
        at: before which of the first one's boundaries it is stopped; of its commits, if one gets no answer.
        how: "paused", "paused beyond its lease" or "dies"; or the fate of an unanswered commit.
        where: what is at the boundary.
    """

    case: Case
    state: str
    first: str
    second: str
    at: int
    how: str
    where: str

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.case.name}, {self.state}: {self.first} | {self.how} at {self.at} ({self.where}) | {self.second}"


STILL = frozenset({"doctor", "collect", "collect later", "judge", "prepare", "cancel", "reject", "load"})
"""Who never changes what readers of main see; but that the doctor completes a change of two tables that is half there."""


def draw(site: Site, chance: random.Random, only: str = "", places: int = 0) -> Schedule:
    """Draw a schedule; build the state that it begins in, if nothing has begun there yet. `places`: stop in the first ones only."""
    while True:
        case = chance.choice(CASES)
        state = chance.choice(list(STATES))
        firsts, seconds = STATES[state]
        first, second = chance.choice(firsts), chance.choice(seconds)
        if only and only not in f"{case.name}, {state}: {first} | {second}":
            continue
        site.build(case)
        if not site.kept(case, state).exists() or not _fits(case, state, first, second):
            continue
        passed, commits = site.length(case, state, first)
        if commits and chance.random() < 0.25:
            at, how = chance.randrange(commits), f"commit {chance.choice(FATES)}"
            return Schedule(case, state, first, second, at, how, "commit without an answer")
        if not passed:
            continue
        at, how = (
            chance.randrange(min(len(passed), places or len(passed))),
            chance.choice((PAUSED, EXPIRED, EXPIRED, DIES)),
        )
        return Schedule(case, state, first, second, at, how, passed[at])


def _fits(case: Case, state: str, first: str, second: str) -> bool:
    """Leave out what is the same as another one."""
    both = first + second
    if "accept" in both and kills.ACCEPT not in case.steps:
        return False
    if "prepare" in both and case.mode not in {"SHADOW_SWAP", "VERSIONED"}:
        return False
    if state == "of nobody" and case.mode != "MERGE_BY_KEY":  # any other mode replaces those rows with their month
        return False
    return "again" not in both or case.mode == "REPLACE_PARTITIONS" or state != "staged"


def play(site: Site, schedule: Schedule) -> list[str]:
    """Let it happen; return everything that is wrong afterwards."""
    world = site.world(schedule.case, site.kept(schedule.case, schedule.state))
    world.of_nobody = OF_NOBODY if schedule.state == "of nobody" else 0
    wrong: list[str] = []
    still = schedule.first in STILL and "half" not in schedule.state
    heads = [world.head] if still else []

    def meanwhile() -> None:
        if schedule.how == EXPIRED:
            expire(world.others)
        if schedule.how == DIES:
            return
        heads.extend([world.head] if still else [])
        wrong.extend(_attempt(world, world.others, schedule.second, SECOND))
        heads.extend([world.head] if still else [])

    unanswered = schedule.how.startswith("commit ")
    stage = Stage(world.platform, dies=schedule.how == DIES, meanwhile=meanwhile)
    if unanswered:
        stage.unanswered, stage.fate = schedule.at, schedule.how.removeprefix("commit ")
    else:
        stage.stops_at = schedule.at
    try:
        with mock.patch.object(publication, "_PREPARING_SECONDS", -1.0), mock.patch.object(time, "sleep", _no_sleep):
            with stage.of_the_first():
                try:
                    stage.act(partial(ACTS[schedule.first], world))
                except Exception:  # noqa: BLE001 - a command ends with a refusal or is done
                    wrong.append(f"{schedule.first} failed:\n{traceback.format_exc()}")
            heads.extend([world.head] if still else [])
            wrong += _moved(heads, schedule.first)
            if unanswered or schedule.how == DIES:
                wrong += _attempt(world, world.others, schedule.second, SECOND)
                if stage.late is not None:
                    with suppress(CommitFailedException, ValueError):  # it cannot be done any more
                        stage.late()
                wrong += _attempt(world, world.others, schedule.first)
            if schedule.state in INTERRUPTED and not at_rest(world.others):
                wrong += _attempt(world, world.others, INTERRUPTED[schedule.state])
            wrong += settled(site, world, thoroughly=schedule.at % THOROUGHLY == 0, odd=schedule.state in ODD)
    except Exception:  # noqa: BLE001 - what cannot even be looked at is wrong
        wrong.append(traceback.format_exc())
    finally:
        closed(world.platform)
        closed(world.others)
    return wrong


def _moved(heads: Sequence[int | None], who: str) -> list[str]:
    """Compare what readers saw before and after each part of what somebody did who does not change it."""
    changed = any(before != after for before, after in zip(heads[::2], heads[1::2], strict=True))
    return [f"{who} has changed what readers see"] if changed else []


def _no_sleep(_: float) -> None:
    """Wait for nobody: the other actor is done, or waits for this one."""


def _attempt(world: World, platform: Platform, act: str, actor: str = FIRST) -> list[str]:
    interrupted, world.actor = world.actor, actor
    try:
        ACTS[act](world, platform)
    except Refused:
        return []
    except Exception:  # noqa: BLE001 - a command ends with a refusal or is done
        return [f"{act} failed:\n{traceback.format_exc()}"]
    finally:
        world.actor = interrupted
    return []


# --- what must hold ---------------------------------------------------------------------------------------------------


def settled(site: Site, world: World, *, thoroughly: bool, odd: bool = False) -> list[str]:
    """Return what does not agree; if not all is at rest, or `thoroughly`, the doctor and the end of the runs come first.

    In a table that was written by others, too (or is `odd`), the doctor and `verify` find that, and rightly.
    """
    platform = world.others
    if not thoroughly and at_rest(platform):
        return _agreement(site, world, "at rest")
    wrong = _agreement(site, world, "before the doctor")
    try:
        _, left = mend(platform)
    except Refused as refusal:
        return [*wrong, f"the doctor was refused: {refusal}"]
    allowed = {"foreign-write", "accepted-files-differ", "unknown-run"} if world.live or odd else set()
    allowed |= {"publication-not-in-history"} if odd or platform.ledger.find(world.over) else set()  # as policy has it
    wrong += [f"the doctor finds {one.kind}: {one.where}: {one.what}" for one in left if one.kind not in allowed]
    wrong += _agreement(site, world, "after the doctor")
    for run_id in (world.run, world.next, world.other, world.twin, world.fresh):
        wrong += _ends(world, run_id)
    wrong += _agreement(site, world, "at the end")
    if not (world.live or odd):
        wrong += [f"verify: {one.run_id} {one.where}: {one.what}" for one in verify(platform).everything]
        wrong += [
            f"the doctor finds at the end {one.kind}: {one.where}: {one.what}"
            for one in examine(platform)
            if one.kind not in allowed
        ]
    return wrong


def _ends(world: World, run_id: str) -> list[str]:
    """Check that a validated run can be brought to an end: published, or cancelled."""
    platform = world.others
    record = platform.ledger.find(run_id)
    if record is None or record.state is not RunState.VALIDATED:
        return []
    refusals = []
    for act in (
        lambda: publication.publish(platform, run_id),
        lambda: ending.cancel(platform, run_id, "grace", "over"),
    ):
        try:
            act()
        except EnvironmentRefused as refusal:
            return [f"{run_id} at the end: {refusal}"]
        except Refused as refusal:
            refusals.append(str(refusal))
        if platform.ledger.run(run_id).state is not RunState.VALIDATED:
            return []
    return [f"{run_id} is VALIDATED and can neither be published nor cancelled: {refusals}"]


def _agreement(site: Site, world: World, when: str) -> list[str]:
    """Hold what readers see against what the ledger says."""
    platform, expected = world.others, site.expected[world.case.run_id]
    states = {record.run_id: record.state for record in platform.ledger.runs(target=READINGS)}
    holders = platform.ledger.accepted(READINGS)
    wrong = []
    if when != "before the doctor":  # by then what landed is on record
        readers = _by_month(seen(platform))
        live = [row for found in readers.values() for row in found if "live" in row]
        if len(live) != len(world.live) + world.of_nobody:
            wrong.append(f"{len(live)} rows of LIVE, not {len(world.live) + world.of_nobody}")
        for month in sorted(readers.keys() | holders.keys()):
            found = [row for row in readers.get(month, []) if "live" not in row]
            wanted = expected.months.get(holders.get(month, ""), {}).get(month, [])
            if found != wanted and not _computed_again(world, platform, holders.get(month, ""), found):
                wrong.append(f"{month} is held by {holders.get(month)}: {_unlike(found, wanted)}")
        wrong += _tables_beside(world, platform, expected, states)
    for run_id, state in states.items():
        holds = run_id in holders.values()
        if holds and state is not RunState.PUBLISHED:
            wrong.append(f"{run_id} holds chunks and is {state}")
        if state in {RunState.VALIDATED, *PUBLISHED}:
            found_rows, limit = _counted(platform, run_id)
            if limit is not None and found_rows > limit:
                wrong.append(f"{run_id} is {state} with {found_rows} rows, and at most {limit} are expected")
    loaded = platform.lakehouse.table(SOURCE).scan().to_arrow()["id"].to_pylist().count("twice")
    if loaded > 1:
        wrong.append(f"a load is in its table {loaded} times")
    return [f"{one} ({when})" for one in wrong]


def _computed_again(world: World, platform: Platform, holder: str, found: Sequence[tuple[Any, ...]]) -> bool:
    """Whether a month is what its run computed the second time, of a source that had grown."""
    return bool(holder == world.run and platform.ledger.amendments(holder)) and len(set(found)) == len(found)


def _tables_beside(world: World, platform: Platform, expected: Expected, states: dict[str, RunState]) -> Iterator[str]:
    published = states.get(world.run) in PUBLISHED
    if world.case.mode == "CORRECTION_EVENTS":
        wanted = expected.corrections[world.run] if published else 0
        if (found := len(seen(platform, CORRECTIONS))) != wanted:
            yield f"{found} corrections, not {wanted}: the run is {states[world.run]}"
    if version := dict(world.case.options).get("version"):
        there = platform.lakehouse.snapshot_of(READINGS, version) is not None
        if there != published:
            yield f"version {version} is {'' if there else 'not '}there: the run is {states[world.run]}"
        elif there and seen(platform, READINGS, version) != expected.version:
            yield f"version {version} has other rows"


def _counted(platform: Platform, run_id: str) -> tuple[int, int | None]:
    plan = platform.ledger.run(run_id).plan
    return sum(chunk.rows or 0 for chunk in platform.ledger.chunks(run_id)), plan.max_rows_expected


def _unlike(found: Sequence[tuple[Any, ...]], wanted: Sequence[tuple[Any, ...]]) -> str:
    lost, more = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
    return f"{lost.total()} rows are lost, {more.total()} too many: {[*lost][:1]} {[*more][:1]}"


# --- the campaign -----------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What was played, and what was wrong."""

    played: Counter[str] = field(default_factory=Counter)
    boundaries: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def campaign(
    folder: Path,
    schedules: int,
    seed: int,
    only: str = "",
    places: int = 0,
    say: Callable[[Tally, Sequence[str]], None] | None = None,
) -> Tally:
    """Draw and play schedules."""
    chance, tally, site, site_of_known = random.Random(seed), Tally(), Site(folder), known.Site(folder / known.NAME)
    with staged_world():
        for number in range(schedules):
            if only.startswith(known.NAME) or (not only and number % SHARE == SHARE - 1):
                of_known = known.draw(seed, number if only else number // SHARE, only)
                name, found = str(of_known), known.play(site_of_known, of_known)
                tally.played[known.NAME] += 1
            else:
                schedule = draw(site, chance, only, places)
                name, found = str(schedule), play(site, schedule)
                tally.played[schedule.state] += 1
                tally.boundaries[schedule.where] += 1
            said = [f"seed {seed}, number {number}: {name}: {one}" for one in found]
            tally.wrong += said
            if say is not None and (said or number % 100 == 99):
                say(tally, said)
    return tally


def _campaign_told(folder: Path, schedules: int, seed: int, only: str, places: int, told: Any) -> None:
    def say(tally: Tally, wrong: Sequence[str]) -> None:
        lines = [*wrong, f"seed {seed}: {tally.played.total()} played, {len(tally.wrong)} wrong"]
        print("\n".join(lines), flush=True)

    told.put(campaign(folder, schedules, seed, only, places, say))


def campaigns(folder: Path, schedules: int, seed: int, processes: int, only: str, places: int) -> Tally:
    """Have campaigns beside one another, each with an installation and a seed of its own."""
    context = multiprocessing.get_context("spawn")
    told, started = context.Queue(), []
    for number in range(processes):
        share = schedules // processes + (number < schedules % processes)
        (folder / str(number)).mkdir()
        arguments = (folder / str(number), share, seed + number, only, places, told)
        started.append(context.Process(target=_campaign_told, args=arguments))
        started[-1].start()
    total = Tally()
    for _ in started:
        tally = told.get()
        total.played += tally.played
        total.boundaries += tally.boundaries
        total.wrong += tally.wrong
    for process in started:
        process.join()
    return total


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--schedules", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="schedules whose 'mode, state: first | second' contains this text")
    parser.add_argument("--places", type=int, default=0, help="stop the first actor at its first so many places only")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        if options.processes == 1:
            tally = campaign(Path(folder), options.schedules, options.seed, options.only, options.places)
        else:
            tally = campaigns(
                Path(folder), options.schedules, options.seed, options.processes, options.only, options.places
            )
    table = Table("state of the run", "schedules")
    for state, number in sorted(tally.played.items()):
        table.add_row(state, str(number))
    console = Console(width=140)
    console.print(table)
    seconds = time.monotonic() - began
    console.print(
        f"{tally.played.total()} schedules in {seconds:.0f} s, stopped at {len(tally.boundaries)} kinds of places"
    )
    if tally.wrong:
        raise SystemExit("\n".join([*tally.wrong, f"{len(tally.wrong)} wrong"]))
    console.print("0 rows lost, 0 doubled, 0 torn, 0 visible of a run that is not published; evidence verifies")


if __name__ == "__main__":
    main()
