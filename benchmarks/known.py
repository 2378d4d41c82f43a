"""What is known: schedules in which runs read different snapshots of the source, beside LIVE, and loads are taken back.

Put here how such a schedule is drawn and played; `interleavings` plays a share of them. A run of the small table has a row
for each event of the snapshot that it has pinned, so that rows say what their run has known. Some steps are done one after
the other, and some of their processes die on the way. Then one actor is stopped anywhere, or gets no answer, while another
one acts. The steps are in `known_acts`; what holds once the doctor has been and everybody has given the command again that
was interrupted, in `known_rules`.
"""

from __future__ import annotations

import random
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from pyiceberg.exceptions import CommitFailedException

from backfill_assets import faults
from backfill_assets.installation import Platform
from backfill_assets.publication import publisher as publication
from benchmarks.known_acts import BASE, HISTORY, HISTORY_SCOPE, Step, World, act, drawn
from benchmarks.known_rules import settled
from benchmarks.small_table import (
    WITH_LIVE,
    closed,
    compute_events,
    declared,
    initialise,
    load_events,
    manifest_data,
    opened,
    planned,
    staged,
    take_load_back,
)
from benchmarks.stopped_actors import DIES, EXPIRED, FATES, PAUSED, Died, Stage, bury, expire, no_lease_ends
from manifests.errors import Refused
from manifests.reading import manifest_from

NAME = "known"
"""What the name of each of these schedules begins with."""
IN_A_ROW, ALIKE = 6, 3
"""So many schedules begin alike, so that what they begin with is done once; and so many disturb the same step."""
THOROUGHLY = 4
"""In one of so many schedules the evidence is verified, too, and LIVE is to go on."""
OF_OLD = 0.25
"""So many schedules begin as one of these that were wrong once, which chance alone would seldom draw."""
_RESTATED = Step("plan", 2, kind="RESTATEMENT", anew=True)
ONCE_WRONG = (
    (Step("load", 0), Step("live, publish", 1, dies="publishing.committed")),
    (Step("load", 0, (6, 6)), Step("plan", 1, kind="BACKFILL"), Step("live, publish", 2)),
    (
        Step("load", 0, (6, 6)),
        Step("plan, publish", 1, kind="BACKFILL"),
        Step("rollback", 2),
        Step("live, publish", 3),
    ),
    (Step("load", 0), Step("live, publish", 1), _RESTATED, Step("load", 3), Step("live, publish", 4)),
    (
        Step("load", 0),
        Step("live, publish", 1),
        _RESTATED,
        Step("plan, publish", 3, kind="RESTATEMENT"),
        Step("load", 4),
    ),
)
"""What is not on record, found empty, or planned anew."""
NEWS = 0.7
"""In so many schedules something new is loaded first: else few runs know anything that others do not."""
REWINDS = (0, 0, 40)
"""By how many days LIVE covers once more what is complete."""


@dataclass(frozen=True)
class Schedule:
    """One order of events.

    Attributes:
        rewind: how many days LIVE goes back.
        prelude: what is done before, one step after the other.
        first: the step that is disturbed.
        second: what is done meanwhile.
        at: at which part of the first step's boundaries it is stopped, or of its commits: from 0 to 1.
        how: as of the schedules of `interleavings`.
        thoroughly: whether the evidence is verified.
    """

    rewind: int
    prelude: tuple[Step, ...]
    first: Step
    second: Step
    at: float
    how: str
    thoroughly: bool

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.name} | {self.how} at {self.at:.3f}"

    @property
    def name(self) -> str:
        """Who does what."""
        before = "; ".join(str(step) for step in self.prelude)
        return f"{NAME}, rewind {self.rewind}, {before}: {self.first} | {self.second}"


@dataclass
class Site:
    """A place for one installation at a time, and copies of what schedules begin with."""

    folder: Path
    processes: tuple[Platform, Platform] | None = None
    kept: dict[tuple[int, tuple[Step, ...]], World] = field(default_factory=dict)
    lengths: dict[tuple[int, tuple[Step, ...], Step], tuple[list[str], int]] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """Where the installation is."""
        return self.folder / "home"

    def copy(self, rewind: int, prelude: tuple[Step, ...]) -> Path:
        """Return the folder of a copy."""
        return self.folder / f"after-{len(prelude)}-{abs(hash((rewind, prelude)))}"

    def world(self, rewind: int, prelude: tuple[Step, ...]) -> World:
        """Put what a prelude leaves in its place, and connect to it."""
        if (rewind, prelude) not in self.kept:
            self._build(rewind, prelude)
        before = self.kept[rewind, prelude]
        shutil.rmtree(self.home)
        shutil.copytree(self.copy(rewind, prelude), self.home)
        return World(*self.connected(), chosen=dict(before.chosen), appended=dict(before.appended))

    def connected(self) -> tuple[Platform, Platform]:
        """Return two processes' connections."""
        if self.processes is None:
            days = {"keep_snapshots_days": 0, "keep_superseded_days": 0, "keep_dead_runs_days": 0}
            self.processes = (opened(self.home, **days), opened(self.home, **days))
        return self.processes

    def length(self, rewind: int, prelude: tuple[Step, ...], first: Step) -> tuple[list[str], int]:
        """Return the boundaries that a step passes undisturbed, and how many commits it makes."""
        if (key := (rewind, prelude, first)) not in self.lengths:
            world = self.world(rewind, prelude)
            stage = Stage(world.platform)
            with stage.of_the_first(), suppress(Exception):  # what fails, fails again when it counts
                stage.act(partial(act, world, first))
            closed(world.platform)
            closed(world.others)
            self.lengths = {key: (stage.passed, stage.commits)}
        return self.lengths[key]

    def _build(self, rewind: int, prelude: tuple[Step, ...]) -> None:
        if prelude:
            for one in [one for one in self.kept if one[1]]:  # its schedules have been played
                del self.kept[one]
                shutil.rmtree(self.copy(*one))
            world = self.world(rewind, ())
            for step in prelude:
                _done_or_dead(world, step)
        else:
            world = World(*self.connected())
            _begin(world.platform)
        closed(world.platform)
        closed(world.others)
        shutil.copytree(self.home, self.copy(rewind, prelude))
        self.kept[rewind, prelude] = world


def _begin(platform: Platform) -> None:
    """Publish four months of history, of a source that has events of these and no others."""
    shutil.rmtree(platform.settings.home, ignore_errors=True)
    initialise(platform)
    take_load_back(platform, "events")
    load_events(platform, BASE, "2020-01-02", "2020-02-02", "2020-03-02", "2020-04-30")
    text = manifest_data(HISTORY, "REPLACE_PARTITIONS", HISTORY_SCOPE) | {"kind": "BOOTSTRAP"}
    planned(platform, manifest_from(text))
    staged(platform, HISTORY)
    publication.publish(platform, HISTORY)


def _done_or_dead(world: World, step: Step) -> None:
    """Do a step, by a process that may die at a named point; it dies when it is done if it does not get there."""

    def die(point: str) -> None:
        if point == step.dies:
            raise Died

    leases = no_lease_ends() if step.dies else nullcontext()
    with suppress(Refused, Died), mock.patch.object(faults, "reach", die), leases:
        act(world, step, world.platform)
    if step.dies:  # at that point, or at its end
        bury(world.platform)


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw(seed: int, number: int, only: str = "") -> Schedule:
    """Draw a schedule: the same of a seed and a number. Several in a row begin alike, but where `only` some are wanted.

    `only` is a part of what they are called, in which `*` stands for anything.
    """
    chance = random.Random(f"{seed}, {number}")
    while True:
        before = chance if only not in {"", NAME} else random.Random(f"{seed}, {number // IN_A_ROW}")
        rewind, prelude = before.choice(REWINDS), list[Step]()
        if before.random() < OF_OLD:
            prelude = [*before.choice(ONCE_WRONG)]
        for place in range(len(prelude), before.choice((1, 2, 3, 3, 4, 4, 5))):
            is_news = place == 0 and before.random() < NEWS
            prelude.append(drawn(before, place, prelude, mortal=True, what="load" if is_news else ""))
        alike = chance if only not in {"", NAME} else random.Random(f"{seed}, {number // ALIKE}, first")
        first = drawn(alike, len(prelude), prelude)
        second = drawn(chance, len(prelude) + 1, [*prelude, first])
        how = chance.choice((PAUSED, EXPIRED, DIES))
        if chance.random() < 0.2:
            how = f"commit {chance.choice(FATES)}"
        thoroughly = number % THOROUGHLY == 0
        found = Schedule(rewind, tuple(prelude), first, second, chance.random(), how, thoroughly)
        if fnmatchcase(found.name, f"*{only}*"):
            return found


# --- playing ----------------------------------------------------------------------------------------------------------


@contextmanager
def on_the_table(rewind: int) -> Iterator[None]:
    """Make the table that LIVE keeps, and goes back so many days in, this process's only product; nobody waits."""
    assert WITH_LIVE.live is not None
    target = replace(WITH_LIVE, live=replace(WITH_LIVE.live, rewind_days=rewind))
    with (
        declared(target, compute_events),
        mock.patch.object(publication, "_PREPARING_SECONDS", -1.0),
        mock.patch.object(time, "sleep", return_value=None),
    ):
        yield


def play(site: Site, schedule: Schedule) -> list[str]:
    """Let it happen; return everything that is wrong afterwards."""
    with on_the_table(schedule.rewind):
        try:
            stage = _aimed(site, schedule)
            world = site.world(schedule.rewind, schedule.prelude)
            return [*_happen(world, schedule, stage), *settled(world, thoroughly=schedule.thoroughly)]
        except Exception:  # noqa: BLE001 - what cannot even be looked at is wrong
            return [traceback.format_exc()]
        finally:
            for platform in site.connected():
                closed(platform)


def _aimed(site: Site, schedule: Schedule) -> Stage:
    """Return a stage that disturbs the first step where the schedule says."""
    passed, commits = site.length(schedule.rewind, schedule.prelude, schedule.first)
    stage = Stage(site.connected()[0], dies=schedule.how == DIES)
    if schedule.how.startswith("commit ") and commits:
        stage.unanswered, stage.fate = int(schedule.at * commits), schedule.how.removeprefix("commit ")
    else:
        stage.stops_at = int(schedule.at * len(passed))
    return stage


def _happen(world: World, schedule: Schedule, stage: Stage) -> list[str]:
    """Have the first step disturbed by the second one; what was interrupted is done again."""
    wrong: list[str] = []
    came = list[Callable[[], Any]]()

    def meanwhile() -> None:
        if schedule.how == EXPIRED:
            expire(world.others)
        if not stage.dies:
            came.append(meanwhile)
            wrong.extend(_attempt(world, schedule.second))

    stage.meanwhile = meanwhile
    with stage.of_the_first():
        try:
            stage.act(partial(act, world, schedule.first))
        except Exception:  # noqa: BLE001 - a command ends with a refusal or is done
            wrong.append(f"{schedule.first} failed:\n{traceback.format_exc()}")
    if not came:
        wrong += _attempt(world, schedule.second)
    if stage.late is not None:
        with suppress(CommitFailedException, ValueError):  # it cannot be done any more
            stage.late()
    for step in (*(one for one in schedule.prelude if one.dies), schedule.first):
        if step.dies or stage.died or stage.unanswered is not None:
            wrong += _attempt(world, step)
    return wrong


def _attempt(world: World, step: Step) -> list[str]:
    try:
        act(world, step, world.others)
    except Refused:
        return []
    except Exception:  # noqa: BLE001 - a command ends with a refusal or is done
        return [f"{step} failed:\n{traceback.format_exc()}"]
    return []
