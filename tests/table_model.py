"""A table, its runs and who holds what, in plain Python: what the real thing is held against, step by step.

Put here what a data engineer would say must happen, as simply as it can be said: months with immutable files, runs with
states. No Iceberg, no ledger, no clock. A commit is one assignment, so whatever the model does is atomic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from itertools import count

from manifests.errors import (
    EnvironmentRefused,
    LeaseHeld,
    LeaseLost,
    Problem,
    PublicationDeferred,
    PublicationRefused,
    RunStopped,
    StateMoved,
    TransitionRefused,
)
from manifests.lifecycle import TRANSITIONS, RunState
from manifests.model import Corrections, OlderVersion, OnConflict, PublishMode

Key = tuple[str, date]
Values = tuple[int, int]
"""Value and revision: what a row says besides its key."""
BEFORE = {
    "publish": RunState.VALIDATED,
    "rollback": RunState.PUBLISHED,
    "reinstate": RunState.ROLLED_BACK,
    "accept": RunState.PUBLISHED,
}
ON_BRANCH = {PublishMode.SHADOW_SWAP, PublishMode.VERSIONED}
WHY = Problem("the model says so", "what it says", "compare")
VALIDATED, PUBLISHED, SUPERSEDED = RunState.VALIDATED, RunState.PUBLISHED, RunState.SUPERSEDED
ROLLED_BACK, REJECTED = RunState.ROLLED_BACK, RunState.REJECTED


class Killed(BaseException):
    """The process dies here."""


@dataclass(frozen=True)
class Row:
    """A row of the table; `run` wrote it."""

    name: str
    day: date
    value: int
    revision: int
    run: str

    @property
    def key(self) -> Key:
        return self.name, self.day


@dataclass(frozen=True)
class Event:
    """A row of the corrections table; `corrects` is the run of the row before."""

    name: str
    day: date
    kind: str
    old: Values | None
    new: Values | None
    corrects: str | None
    run: str

    @property
    def pair(self) -> tuple[object, ...]:
        """What is never issued twice."""
        return self.name, self.day, self.old, self.new, self.corrects


@dataclass(frozen=True, eq=False)
class File:
    """A data file. Two files with equal rows are two files."""

    rows: frozenset[Row] | frozenset[Event]


Files = frozenset[File]
NOTHING: Files = frozenset()


@dataclass(eq=False)
class Run:
    """A run: what it wants to change, what its plan was made on, and how far it is."""

    run_id: str
    mode: PublishMode
    months: tuple[str, ...]
    on_conflict: OnConflict = OnConflict.REFUSE
    max_replans: int = 1
    version: str | None = None
    later: bool = False
    corrections: Corrections | None = None
    entities: frozenset[str] = frozenset()
    older: OlderVersion = OlderVersion.REFUSE
    state: RunState = RunState.RUNNING
    # what the plan was made on
    base: dict[str, Files] = field(default_factory=dict)
    base_main: dict[str, Files] = field(default_factory=dict)
    base_commit: int = 0
    issued: dict[str, Files] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    amendments: int = 0
    # what was staged: the months of the target that change, and corrections
    after: dict[str, Files] = field(default_factory=dict)
    events: dict[str, Files] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    """Those that take their time."""
    # how far it is
    stopped: bool = False
    prepared: bool = False
    shown: bool = False
    pending: str | None = None
    intents: dict[str, ModelLease] = field(default_factory=dict)
    """What it set out to do and nobody has closed, with the lease under which that was."""
    done: list[str] = field(default_factory=list)
    held_before: dict[str, str | None] = field(default_factory=dict)

    def __repr__(self) -> str:
        options = [self.on_conflict, self.version, self.later and "LATER", self.corrections, self.state]
        return f"<{self.run_id} {self.mode} {self.months} {' '.join(str(one) for one in options if one)}>"

    @property
    def moves_main(self) -> bool:
        return self.corrections is not Corrections.INSTEAD and not self.later

    @property
    def changes(self) -> list[str]:
        """The months whose files it replaces."""
        if self.corrections is Corrections.INSTEAD:
            return []
        return sorted(self.after) if self.mode is PublishMode.MERGE_BY_KEY else list(self.months)


@dataclass(eq=False)
class Launch:
    """A launch of months that goes on when another one has staged them; its attempt, if it has opened one, is in a state."""

    run: Run
    months: frozenset[str]
    attempt: str = ""
    """RUNNING, STOPPED, or OBSOLETE: a month was planned anew."""

    def __repr__(self) -> str:
        return f"<launch of {self.run.run_id} {sorted(self.months)} {self.attempt}>"


@dataclass
class ModelLease:
    run_id: str
    months: frozenset[str]
    state: str = "held"
    """held; gone: its process has ended; expired; elsewhere: on a machine nobody can ask."""
    lost: bool = False


@dataclass(eq=False)
class Unanswered:
    """A commit of main whose answer was lost: it lands when it arrives, if nobody has been there since."""

    months: frozenset[str]
    commit: int
    land: Callable[[], None]
    fenced: bool = False


Reach = Callable[[str], None]


class Model:
    """The table and its runs."""

    def __init__(self, months: Iterable[str]) -> None:
        self.main: dict[str, Files] = dict.fromkeys(months, NOTHING)
        self.commit = 0  # which state of main this is: every commit to it makes a new one
        self.corrections: dict[str, Files] = dict.fromkeys(self.main, NOTHING)
        self.versions: dict[str, str] = {}
        self.holders: dict[str, str] = {}
        self.runs: dict[str, Run] = {}
        self.leases: list[ModelLease] = []
        self.answers = True
        self.unanswered: list[Unanswered] = []
        self._commits = count(1)

    def rows(self, files: Mapping[str, Files] | None = None) -> list[Row]:
        """Return the rows of main, or of given months, in order."""
        found = [row for month in (files or self.main).values() for file in month for row in file.rows]
        return sorted(found, key=repr)

    # --- planning and staging -------------------------------------------------------------------------------------

    def plannable(self, run: Run) -> bool:
        """Whether a plan is made at all: first rows come into empty months only, and a version's name is used once."""
        if run.mode is PublishMode.APPEND_ONLY and any(file.rows for month in run.months for file in self.main[month]):
            return False
        return run.version is None or not {run.version, f"withdrawn-{run.version}"} & set(self.versions)

    def plan(self, run: Run) -> None:
        run.base = {month: self.main[month] for month in run.months}
        run.base_main, run.base_commit = dict(self.main), self.commit
        run.issued = {month: self.corrections[month] for month in run.months}
        run.waiting = set(run.months)
        self.runs[run.run_id] = run

    def stage(self, run: Run, computed: Mapping[str, list[File]]) -> bool:
        """Stage what was computed of months; return whether their gates pass."""
        if run.stopped:
            raise RunStopped(WHY)
        passes = True
        for month, files in computed.items():
            rows = [row for file in files for row in file.rows]
            if run.mode is PublishMode.MERGE_BY_KEY:
                passes &= self._merge(run, month, rows)
            elif run.mode is PublishMode.CORRECTION_EVENTS:
                passes &= self._correct(run, month, rows)
            if run.mode is not PublishMode.MERGE_BY_KEY:
                run.after[month] = frozenset(files)
        run.waiting -= set(computed)
        run.state = VALIDATED if passes else RunState.FAILED
        return passes

    @staticmethod
    def _merge(run: Run, month: str, computed: list[Row]) -> bool:
        run.after.pop(month, None)
        touched = frozenset(f for f in run.base[month] if any(row.name in run.entities for row in f.rows))
        if not touched and not computed:
            return True
        old = {row.key: row for file in touched for row in file.rows}
        merged = {key: row for key, row in old.items() if row.name not in run.entities}
        newer = False
        for row in computed:
            wins = row.key in old and old[row.key].revision > row.revision
            newer |= wins
            merged[row.key] = old[row.key] if wins and run.older is OlderVersion.KEEP else row
        made = {File(frozenset(merged.values()))} if merged else set()
        run.after[month] = (run.base[month] - touched) | made
        return not newer or run.older is not OlderVersion.REFUSE

    @staticmethod
    def _correct(run: Run, month: str, computed: list[Row]) -> bool:
        old = {row.key: row for file in run.base[month] for row in file.rows}
        new = {row.key: row for row in computed}
        events = set()
        for name, day in old.keys() | new.keys():
            was, now = old.get((name, day)), new.get((name, day))
            before = None if was is None else (was.value, was.revision)
            after = None if now is None else (now.value, now.revision)
            if before != after:
                kind = "ADDED" if was is None else "REMOVED" if now is None else "CHANGED"
                corrects = None if was is None else was.run
                events.add(Event(name, day, kind, before, after, corrects, run.run_id))
        run.events[month] = frozenset({File(frozenset(events))}) if events else NOTHING
        issued = {event.pair for file in run.issued[month] for event in file.rows}
        return not issued & {event.pair for event in events}

    # --- launches and stops ---------------------------------------------------------------------------------------

    def launch(self, run: Run, *, opens: bool) -> None:
        """Begin to compute what waits, by the plan that it has now; perhaps open an attempt at once."""
        run.launches.append(Launch(run, frozenset(run.waiting), "RUNNING" if opens else ""))

    def go_on(self, launch: Launch) -> None:
        """Open the attempt that is not open, or stage what it has computed; another launch has staged all of it once."""
        run = launch.run
        run.launches.remove(launch)
        if not launch.attempt and not launch.months & run.waiting:
            return
        if run.stopped:
            raise RunStopped(WHY)
        if not launch.attempt or launch.attempt == "OBSOLETE":
            raise StateMoved(WHY)
        raise TransitionRefused(WHY)

    def stop(self, run: Run) -> None:
        is_computed = any(launch.attempt == "RUNNING" for launch in run.launches)
        if run.state not in {RunState.RUNNING, VALIDATED} and not is_computed:
            raise TransitionRefused(WHY)
        run.stopped = True
        for launch in run.launches:
            launch.attempt = "STOPPED" if launch.attempt == "RUNNING" else launch.attempt

    def resume(self, run: Run) -> None:
        run.stopped = False

    # --- leases ---------------------------------------------------------------------------------------------------

    @contextmanager
    def lease(self, run: Run, action: str) -> Iterator[ModelLease]:
        months = frozenset(self.main if run.mode in ON_BRANCH else run.months)
        others = [one for one in self.leases if one.months & months]
        if any(one.state in {"held", "elsewhere"} for one in others):
            raise LeaseHeld(WHY)
        for one in others:
            one.lost = True
            self.leases.remove(one)
        for late in self.unanswered:
            late.fenced |= bool(late.months & months)
        mine = ModelLease(run.run_id, months)
        self.leases.append(mine)
        killed = False
        try:
            self._record_interrupted(run, months, action)
            yield mine
        except Killed:
            killed = True
            mine.state = "gone"
            raise
        finally:
            if not killed and mine in self.leases:
                self.leases.remove(mine)

    def _record_interrupted(self, run: Run, months: frozenset[str], action: str) -> None:
        for other in self.runs.values():
            overlaps = other.mode in ON_BRANCH or months & set(other.months)
            mine = other is run and other.pending == action
            if other.pending is not None and overlaps and not mine:
                self.record(other)

    # --- actions --------------------------------------------------------------------------------------------------

    def publish(self, run: Run, reach: Reach) -> None:
        if run.state in {PUBLISHED, SUPERSEDED}:
            return
        if run.state is not VALIDATED:
            raise PublicationRefused(WHY)
        with self.lease(run, "publish") as lease:
            if run.pending is None and run.stopped:
                raise PublicationRefused(WHY)
            if run.pending is None and self.conflicts(run):
                self._in_conflict(run)
            reach("publishing.sealed")
            if run.pending is None and run.stopped:  # from here on it is too late
                raise RunStopped(WHY)
            if not lease.lost:
                run.intents["publish"] = lease
            reach("publishing.tagged")
            with self._closed_if_refused(run, "publish", lease):
                if run.mode in ON_BRANCH and not run.prepared:
                    _require(lease)
                    run.prepared = True
                reach("publishing.prepared")
                reach("publishing.leased")
                _require(lease)
                if run.pending is None:
                    self._commit_publication(run)
            reach("publishing.committed")
            if run.pending is not None:  # else whoever took the lease over has recorded it
                self.record(run)
            reach("publishing.recorded")

    @staticmethod
    @contextmanager
    def _closed_if_refused(run: Run, action: str, lease: ModelLease) -> Iterator[None]:
        try:
            yield
        except (LeaseLost, PublicationRefused, PublicationDeferred):
            if run.intents.get(action) is lease:
                del run.intents[action]
            raise

    def conflicts(self, run: Run) -> list[str]:
        if run.mode in ON_BRANCH:
            return []
        return [month for month in run.months if self.main[month] != run.base[month]]

    def _in_conflict(self, run: Run) -> None:
        conflicts = self.conflicts(run)
        if run.on_conflict is OnConflict.WAIT:
            raise PublicationDeferred(WHY)
        replannable = run.mode is not PublishMode.APPEND_ONLY or not any(
            file.rows for month in conflicts for file in self.main[month]
        )
        if run.on_conflict is OnConflict.REPLAN and run.amendments < run.max_replans and replannable:
            run.amendments += 1
            run.base |= {month: self.main[month] for month in conflicts}
            run.issued |= {month: self.corrections[month] for month in conflicts}
            run.waiting = set(conflicts)
            for launch in run.launches:
                if launch.attempt == "RUNNING" and launch.months & run.waiting:
                    launch.attempt = "OBSOLETE"
            run.state = RunState.RUNNING
            raise PublicationDeferred(WHY)
        run.intents.pop("publish", None)
        run.state = REJECTED
        raise PublicationRefused(WHY)

    def _commit_publication(self, run: Run) -> None:
        if self._is_refused(run):
            if self.conflicts(run):
                self._in_conflict(run)
            run.state = REJECTED
            raise PublicationRefused(WHY)

        def land() -> None:
            if run.version is not None:
                self.versions[run.version] = run.run_id
            if run.corrections is not None:
                self.corrections |= {month: run.issued[month] | run.events[month] for month in run.months}
            if run.moves_main:
                self._change_main({month: run.after[month] for month in run.changes})
                run.shown = True
            run.pending = "publish"

        self._committed(run, land)

    def _is_refused(self, run: Run) -> bool:
        if run.mode in ON_BRANCH:
            moved = run.moves_main and self.commit != run.base_commit
            return moved or (run.version is not None and run.version in self.versions)
        if run.corrections is not None and any(self.corrections[m] != run.issued[m] for m in run.months):
            return True
        looked_at = run.changes if run.corrections is None else run.months
        return any(self.main[m] != run.base[m] for m in looked_at) or (not run.changes and run.corrections is None)

    def _committed(self, run: Run, land: Callable[[], None]) -> None:
        """Let a change land; or lose it on its way, where no answer comes."""
        if self.answers:
            return land()
        months = frozenset(self.main if run.mode in ON_BRANCH else run.months)
        self.unanswered.append(Unanswered(months, self.commit, land))
        raise EnvironmentRefused(WHY)

    def arrive(self) -> list[bool]:
        """Let what was lost on its way arrive; say of each whether it has landed."""
        landed = []
        for late in self.unanswered:
            landed.append(late.commit == self.commit and not late.fenced)
            if landed[-1]:
                late.land()
        self.unanswered.clear()
        return landed

    def _change_main(self, months: Mapping[str, Files]) -> None:
        self.main |= months
        self.commit = next(self._commits)

    def accept(self, run: Run, reach: Reach) -> None:
        self._require_accepted_later(run)
        if "accept" in run.done:
            return
        with self.lease(run, "accept") as lease:
            self._require_accepted_later(run)  # its rollback may have been recorded just now
            run.intents["accept"] = lease
            if not run.shown and self.commit != run.base_commit:
                del run.intents["accept"]
                raise PublicationRefused(WHY)

            def land() -> None:
                if not run.shown:
                    self._change_main({month: run.after[month] for month in run.changes})
                    run.shown = True
                run.pending = "accept"

            self._committed(run, land)
            reach("accepting.committed")
            if run.pending is not None:
                self.record(run)

    @staticmethod
    def _require_accepted_later(run: Run) -> None:
        if run.state is not PUBLISHED or not run.later:
            raise PublicationRefused(WHY)

    def rollback(self, run: Run, reach: Reach) -> None:
        self._up_to_date(run, "rollback")
        if run.state is not ROLLED_BACK:
            self._undo(run, "rollback", reach)

    def reinstate(self, run: Run, reach: Reach) -> None:
        self._up_to_date(run, "reinstate")
        if run.state is not PUBLISHED or "reinstate" not in run.done:
            self._undo(run, "reinstate", reach)

    def _up_to_date(self, run: Run, action: str) -> None:
        """What another action of the run has committed is recorded first: nothing is said of what nobody sees."""
        if run.state in {PUBLISHED, ROLLED_BACK} and run.pending not in {None, action}:
            with self.lease(run, action):
                pass

    def _undo(self, run: Run, action: str, reach: Reach) -> None:
        back = action == "rollback"
        wanted = PUBLISHED if back else ROLLED_BACK
        if run.state is not wanted:
            raise PublicationRefused(WHY)
        with self.lease(run, action) as lease:
            if run.state is not wanted:
                raise PublicationRefused(WHY)
            mine = self._holds(run)
            if back and any(self.holders.get(month, run.run_id) != run.run_id for month in mine):
                raise PublicationRefused(WHY)
            _require(lease)
            run.intents[action] = lease
            with self._closed_if_refused(run, action, lease):
                self._undone(run, back=back)
            reach("undoing.committed")
            if run.pending is not None:
                self.record(run)

    def _undone(self, run: Run, *, back: bool) -> None:
        if run.pending is not None:
            return
        there = {m: run.after[m] if back else run.base[m] for m in run.changes} if run.shown else {}
        events = {m: run.issued[m] | run.events[m] if back else run.issued[m] for m in run.events}
        if any(self.main[m] != files for m, files in there.items()):
            raise PublicationRefused(WHY)
        if not back and run.corrections is Corrections.INSTEAD and self.conflicts(run):
            raise PublicationRefused(WHY)
        if any(self.corrections[m] != files for m, files in events.items()):
            raise PublicationRefused(WHY)

        def land() -> None:
            if run.shown:
                self._change_main({m: run.base[m] if back else run.after[m] for m in run.changes})
            self.corrections |= {m: run.issued[m] if back else run.issued[m] | run.events[m] for m in run.events}
            if run.version is not None:
                names = [run.version, f"withdrawn-{run.version}"]
                old, new = names if back else reversed(names)
                self.versions[new] = self.versions.pop(old)
            run.pending = "rollback" if back else "reinstate"

        self._committed(run, land)

    def cancel(self, run: Run) -> None:
        if run.state is VALIDATED:
            with self.lease(run, "cancel"):
                if run.state is not VALIDATED:  # it has landed, and was recorded: it is rolled back, not cancelled
                    raise PublicationRefused(WHY)
                run.state = RunState.CANCELLED
                return
        if RunState.CANCELLED not in TRANSITIONS[run.state]:
            raise TransitionRefused(WHY)
        run.state = RunState.CANCELLED

    # --- the record -----------------------------------------------------------------------------------------------

    @staticmethod
    def _holds(run: Run) -> list[str]:
        """The months that are the run's while main shows it."""
        return run.changes if run.moves_main or "accept" in run.done else []

    def record(self, run: Run) -> None:
        """Put on record what was committed."""
        action = run.pending
        assert action is not None
        run.pending = None
        run.intents.pop(action, None)
        run.done.append(action)
        mine = self._holds(run)
        if action == "rollback":
            run.state = ROLLED_BACK
            for month in mine:
                earlier = run.held_before.get(month)
                if earlier is None:
                    self.holders.pop(month, None)
                else:
                    self.holders[month] = earlier
                    self.runs[earlier].state = PUBLISHED
            return
        run.state = PUBLISHED
        run.held_before = {month: self.holders.get(month) for month in mine}
        self.holders |= dict.fromkeys(mine, run.run_id)
        for earlier in {one for one in run.held_before.values() if one is not None}:
            if earlier not in self.holders.values():
                self.runs[earlier].state = SUPERSEDED

    def mend(self) -> None:
        """Put on record what was committed, and close what will never be, where nobody holds its months."""
        for _ in self.runs:  # what is closed may bring another one within reach
            for run in self.runs.values():
                for action in [*run.intents]:
                    lease = run.intents[action]
                    over = run.state is not BEFORE[action] or lease.state == "gone" or lease not in self.leases
                    if run.pending == action or over:
                        with suppress(LeaseHeld), self.lease(run, "record"):
                            run.intents.pop(action, None)

    # --- others ---------------------------------------------------------------------------------------------------

    def live(self, month: str, added: File | None, *, instead: bool = False, removed: File | None = None) -> None:
        """Somebody past this project writes a month."""
        there = NOTHING if instead else self.main[month] - {removed}
        self._change_main({month: there | ({added} if added else NOTHING)})


def _require(lease: ModelLease) -> None:
    if lease.lost:
        raise LeaseLost(WHY)
