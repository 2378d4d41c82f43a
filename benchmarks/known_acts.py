"""What people, schedules and other programs do in the campaign of what is known: loads, LIVE, plans, publications, undoings.

Put here the steps of which `known` makes its schedules: how each is drawn, said in words, and done, also by whoever gives an
interrupted command again. What must hold afterwards is `known_rules`'s.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as arrow
from pyiceberg.io.pyarrow import schema_to_pyarrow

from backfill_assets import decisions
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication import accepting, ending, undoing
from backfill_assets.publication.publisher import publish
from backfill_assets.schedules import live
from benchmarks.small_table import READINGS, load_events, manifest_data, planned, staged, take_load_back
from benchmarks.stopped_actors import collect
from manifests.errors import PublicationDeferred
from manifests.lifecycle import COMPUTABLE, RunState
from manifests.reading import manifest_from
from resources.lakehouse.facade import LOAD_PROPERTY

BASE, HISTORY = "base", "history"
"""The first load, and the run that has published its months."""
HISTORY_SCOPE = ("2020-01-01", "2020-04-30")
PAST = "past"
"""How the rows of a program call themselves that knows nothing of the project."""
OPEN = COMPUTABLE | {RunState.PLANNED, RunState.VALIDATED}


@dataclass(frozen=True)
class Step:
    """One thing that somebody does; of a plan or a load: over which months, of a plan: as what, and what it reads.

    Attributes:
        what: its name in `ACTS`.
        number: its place in the schedule; what it makes is named by it.
        months: first and last month.
        kind: of the run.
        mode: its publish mode.
        back: how many snapshots of the source before the newest it reads.
        anew: whether its chunks are planned anew where they are in conflict.
        nth: of those runs, or loads, that it could concern, newest first, the which.
        dies: the named point at which it dies, if it gets there.
    """

    what: str
    number: int
    months: tuple[int, int] = (5, 5)
    kind: str = ""
    mode: str = "REPLACE_PARTITIONS"
    back: int = 0
    anew: bool = False
    nth: int = 0
    dies: str = ""

    def __str__(self) -> str:
        """Say it in a few words."""
        said = [self.what]
        if self.what.startswith("plan"):
            read = f"{self.back} back" if self.back else ""
            mode = "" if self.mode == "REPLACE_PARTITIONS" else self.mode
            said += [self.kind, mode, self.over, read, "REPLAN" if self.anew else ""]
        elif self.what in {"load", "append"}:
            said.append(self.over)
        elif self.nth:
            said.append(f"#{self.nth}")
        return " ".join(filter(None, said)) + (f" (dies at {self.dies})" if self.dies else "")

    @property
    def over(self) -> str:
        """Its months in words."""
        first, last = self.months
        return f"{first}" if first == last else f"{first}-{last}"

    @property
    def scope(self) -> tuple[str, str]:
        """Its first and last day."""
        first, last = self.months
        return f"2020-{first:02}-01", (date(2020, last + 1, 1) - timedelta(days=1)).isoformat()


@dataclass
class World:
    """An installation, two processes' connections to it, and what steps have settled on when they began.

    Attributes:
        platform: of the actor that is disturbed.
        others: of everybody else.
        chosen: by step, the run or load that it concerns, or the text of its manifest: the same when it is given again.
        appended: by name, the month of each row that was written past the project.
    """

    platform: Platform
    others: Platform
    chosen: dict[int, Any] = field(default_factory=dict)
    appended: dict[str, int] = field(default_factory=dict)


# --- what they do -----------------------------------------------------------------------------------------------------


def _load(world: World, platform: Platform, step: Step) -> None:
    world.chosen[step.number] = f"load-{step.number}"
    first, last = step.months
    load_events(
        platform, f"load-{step.number}", *(f"2020-{month:02}-{2 + step.number:02}" for month in range(first, last + 1))
    )


def _take_back(world: World, platform: Platform, step: Step) -> None:
    loads = [one for one in world.chosen.values() if isinstance(one, str) and one.startswith("load-")]
    take_load_back(platform, _of(world, step, [*loads, BASE] if step.nth else loads[-1:] or [BASE]))


def _of(world: World, step: Step, found: Collection[str]) -> Any:
    """Return what a step is about: what it has settled on, or one of those that it could concern, newest last."""
    if step.number not in world.chosen:
        newest_first = list(reversed([*found]))
        world.chosen[step.number] = newest_first[step.nth % len(newest_first)] if newest_first else ""
    return world.chosen[step.number]


def _live(_: World, platform: Platform, _step: Step) -> str | None:
    record = live.tick(platform, platform.products.target(READINGS)).record
    if record is not None:
        staged(platform, record.run_id)
    return None if record is None else record.run_id


def _live_published(world: World, platform: Platform, step: Step) -> None:
    run_id = _live(world, platform, step)
    if run_id is not None:
        publish(platform, run_id)


def _plan(world: World, platform: Platform, step: Step) -> str:
    if step.number not in world.chosen:
        world.chosen[step.number] = _text(platform, step)
    run_id = planned(platform, manifest_from(world.chosen[step.number])).run_id
    staged(platform, run_id)
    return run_id


def _text(platform: Platform, step: Step) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if step.mode == "VERSIONED":
        options = {"version": f"v{step.number}", "acceptance": "LATER"}
    text = manifest_data(f"r{step.number}-{step.kind.lower()}", step.mode, step.scope, **options)
    text["kind"] = step.kind
    snapshots = [one.snapshot_id for one in platform.lakehouse.table("bronze.reading_events").metadata.snapshots]
    if step.kind == "REPLAY":
        holder = platform.ledger.accepted(READINGS).get(step.scope[0][:7])
        if holder is not None:
            record = platform.ledger.run(holder)
            text["source"]["snapshotId"] = platform.ledger.plans(record)[step.scope[0][:7]].source_snapshot_id
    elif step.back:
        text["source"]["snapshotId"] = snapshots[max(0, len(snapshots) - 1 - step.back)]
    if step.anew:
        text["conflict"] = {"onConflict": "REPLAN", "maxReplans": 2}
    return text


def _planned_and_published(world: World, platform: Platform, step: Step) -> None:
    brought_on(platform, _plan(world, platform, step))


def brought_on(platform: Platform, run_id: str) -> None:
    """Publish a run; if its chunks are planned anew instead, compute them and publish it then."""
    staged(platform, run_id)
    with suppress(PublicationDeferred):
        publish(platform, run_id)
        return
    staged(platform, run_id)
    publish(platform, run_id)


def _on_a_run(states: Collection[RunState], act: Callable[[Platform, str], Any], *, versions: bool = False) -> Act:
    def on_a_run(world: World, platform: Platform, step: Step) -> None:
        found = platform.ledger.runs(target=READINGS, states=states)
        if run_id := _of(world, step, [one.run_id for one in found if one.plan.version or not versions]):
            act(platform, run_id)

    return on_a_run


def _append(world: World, platform: Platform, step: Step) -> None:
    """Append a row past the project, as a job that knows nothing of it."""
    name = f"{PAST}-{step.number}"
    row = {"meter": name, "day": date(2020, step.months[0], 20), "value": 1, "run_id": PAST}
    row |= {"processing_mode": "LIVE", "transform_version": "1", "input_snapshot_id": 1}
    row["produced_at"] = datetime(2020, 1, 1, tzinfo=UTC)
    schema = schema_to_pyarrow(platform.lakehouse.table(READINGS).schema())
    platform.lakehouse.append(READINGS, [arrow.Table.from_pylist([row], schema=schema)], {LOAD_PROPERTY: name})
    world.appended[name] = step.months[0]


Act = Callable[[World, Platform, Step], Any]
ACTS: dict[str, Act] = {
    "load": _load,
    "take back": _take_back,
    "live": _live,
    "live, publish": _live_published,
    "plan": _plan,
    "plan, publish": _planned_and_published,
    "publish": _on_a_run(OPEN - {RunState.PLANNED}, brought_on),
    "rollback": _on_a_run({RunState.PUBLISHED}, undoing.rollback),
    "reinstate": _on_a_run({RunState.ROLLED_BACK}, undoing.reinstate),
    "accept": _on_a_run({RunState.PUBLISHED}, accepting.accept, versions=True),
    "cancel": _on_a_run(OPEN, lambda platform, run_id: ending.cancel(platform, run_id, "grace", "not wanted")),
    "reject": _on_a_run(OPEN, lambda platform, run_id: decisions.reject(platform, run_id, by="grace", comment="no")),
    "doctor": lambda _, platform, __: mend(platform),
    "collect": lambda _, platform, __: collect(platform, later=timedelta(days=3)),
    "append": _append,
}


def act(world: World, step: Step, platform: Platform) -> None:
    """Do a step on one of the connections."""
    ACTS[step.what](world, platform, step)


# --- drawing ----------------------------------------------------------------------------------------------------------

_POINTS = (
    *("publishing.sealed", "publishing.committed", "publishing.committed", "publishing.recorded"),
    *("undoing.begun", "undoing.committed", "planning.resolved", "planning.recorded"),
)
_WEIGHTS = {
    "load": 3,
    "take back": 2,
    "live": 2,
    "live, publish": 4,
    "plan": 3,
    "plan, publish": 4,
    "publish": 4,
    "rollback": 4,
    "reinstate": 3,
    "accept": 2,
    "cancel": 1,
    "reject": 1,
    "doctor": 1,
    "collect": 1,
    "append": 0.3,
}
_NEEDS = {"publish": "plan", "cancel": "plan", "reject": "plan", "reinstate": "rollback", "accept": "VERSIONED"}
"""What must have been done before, so that a step has something to do; "plan" stands for a live run as well."""
TOGETHER = 0.4
"""So many steps are over the months of an earlier one."""
_KINDS = ("RESTATEMENT",) * 4 + ("BACKFILL",) * 3 + ("REPLAY", "REPAIR")
_MODES = ("REPLACE_PARTITIONS",) * 7 + ("VERSIONED", "VERSIONED", "SHADOW_SWAP", "APPEND_ONLY")


def drawn(
    chance: random.Random, number: int, before: Collection[Step], *, mortal: bool = False, what: str = ""
) -> Step:
    """Draw a step that has something to do after others, or is `what`; one of a `mortal` may die at a named point."""
    done = " ".join(str(one) for one in before).replace("live", "plan")
    whats = [what for what in _WEIGHTS if _NEEDS.get(what, "") in done]
    what = what or chance.choices(whats, [_WEIGHTS[one] for one in whats])[0]
    first = chance.choices((3, 4, 5, 6), (1, 2, 4, 2))[0]
    months = (first, first + (chance.random() < 0.35))
    if before and chance.random() < TOGETHER:
        months = chance.choice([*before]).months
        first = months[0]
    dies = chance.choice(_POINTS) if mortal and chance.random() < 0.15 else ""
    nth = chance.choice((0, 0, 0, 1, 1, 2))
    if not what.startswith("plan"):
        return Step(what, number, months, nth=nth, dies=dies)
    back = chance.choice((0, 0, 0, 1, 2))
    anew = not back and chance.random() < 0.4
    kind = chance.choice(_KINDS)
    if kind == "BACKFILL" and first < 5:  # it fills what is missing
        months = (5, 5 + months[1] - first)
    elif kind in {"REPLAY", "REPAIR"} and first > 4 and "publish" not in done:  # it works on what there is
        months = (4, 4)
    return Step(what, number, months, kind, chance.choice(_MODES), back, anew, dies=dies)
