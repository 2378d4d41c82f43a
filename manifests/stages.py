"""A plan as a program: the stages of a run, in the order in which they are executed.

Put here what a stage is about and the words for it. The list is the one that a preview prints and that a run is executed by
(`backfill_assets.execution`); it is made from a plan and never stored, so that no plan's hash depends on it. What a publish
mode commits to which table is handed in by its strategy (`backfill_assets.publication.modes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import ClassVar

from manifests.chunks import EVER, are_adjacent, in_words, part_of
from manifests.model import Mode, PublishMode
from manifests.plan import Plan


class Step(StrEnum):
    """What is executed in one go: stages of one step are next to each other."""

    COMPUTE = "COMPUTE"
    GATE_CHUNKS = "GATE_CHUNKS"
    JUDGE = "JUDGE"
    PUBLISH = "PUBLISH"
    RECONCILE = "RECONCILE"


@dataclass(frozen=True)
class TableCommit:
    """One commit to one table.

    Attributes:
        table: the table.
        does: what the commit does, with the table's name: "replaces the files of these days in silver.readings".
    """

    table: str
    does: str


@dataclass(frozen=True)
class ComputeBatch:
    """One Spark job: the chunks it computes into staging. A launch takes no gap, and one part, so that other chunks take several."""

    step: ClassVar[Step] = Step.COMPUTE
    number: int
    chunks: tuple[str, ...]

    def describe(self) -> str:
        """Say in one line what this stage does."""
        if len({part_of(key) for key in self.chunks}) > 1:
            jobs = (
                "in a Spark job for each value, range or bucket and each stretch without a gap, which reads the source by itself "
                "(in one job where these are all times of the table)"
            )
        else:
            jobs = "in one Spark job" if are_adjacent(self.chunks) else "in a Spark job for each stretch without a gap"
        return f"compute {_span(self.chunks)} into staging, {jobs}"


@dataclass(frozen=True)
class GateChunks:
    """One pass over the staged files of every chunk: a verdict and a digest per chunk."""

    step: ClassVar[Step] = Step.GATE_CHUNKS
    chunks: tuple[str, ...]

    def describe(self) -> str:
        """Say in one line what this stage does."""
        return f"read {_span(self.chunks)} back, in one pass, and gate each chunk"


@dataclass(frozen=True)
class RunGates:
    """The gates that look at the run as a whole."""

    step: ClassVar[Step] = Step.JUDGE
    gates: tuple[str, ...]

    def describe(self) -> str:
        """Say in one line what this stage does."""
        return "gate the whole run: " + ", ".join(self.gates)


@dataclass(frozen=True)
class PrepareCandidate:
    """The commit to a branch, which readers of main do not see: what is published can be queried before."""

    step: ClassVar[Step] = Step.JUDGE
    branch: str
    commit: TableCommit

    def describe(self) -> str:
        """Say in one line what this stage does."""
        return f"prepare the candidate in one commit, which {self.commit.does} on branch {self.branch}"


@dataclass(frozen=True)
class Reconcile:
    """The published rows held against the source; nothing is computed and nothing written but what is found."""

    step: ClassVar[Step] = Step.RECONCILE
    target: str
    chunks: tuple[str, ...]
    gates: tuple[str, ...]

    def describe(self) -> str:
        """Say in one line what this stage does."""
        return f"read {_span(self.chunks)} of {self.target} as published and judge: {', '.join(self.gates)}"


@dataclass(frozen=True)
class Publish:
    """The commits that change what readers see, in the order in which they are made: one of each table."""

    step: ClassVar[Step] = Step.PUBLISH
    mode: PublishMode
    target: str
    start: date
    end: date
    commits: tuple[TableCommit, ...]
    manual: bool
    values: tuple[str, ...] | None = None

    def describe(self) -> str:
        """Say in one line what this stage does."""
        who = "when somebody says so" if self.manual else "by `backfill run` or the sensor, once every gate has passed"
        alone = "" if self.values is None else f", of {', '.join(self.values)} alone,"
        if (self.start, self.end) == EVER:
            days = ", all of it" if self.values is None else alone.removesuffix(",")
        else:
            days = f" from {self.start} to {self.end}{alone}"
        return f"publish {self.target}{days} ({self.mode}) {in_commits(self.commits)}; {who}"


@dataclass(frozen=True)
class PublishEvents:
    """The rows that the publication has shown, written to a topic as events, in transactions, and read back."""

    step: ClassVar[Step] = Step.PUBLISH
    sink: str
    topic: str

    def describe(self) -> str:
        """Say in one line what this stage does."""
        return f"write the published rows to the topic {self.topic} as events, in transactions, and read them back (sink {self.sink})"


Stage = ComputeBatch | GateChunks | RunGates | PrepareCandidate | Reconcile | Publish | PublishEvents
_NUMBERS = {2: "two", 3: "three"}


def in_commits(commits: Sequence[TableCommit]) -> str:
    """Say in how many commits something is done, and what each of them does, in their order."""
    if len(commits) == 1:
        return f"in one commit, which {commits[0].does}"
    first, *others = commits
    rest = "".join(f", the next one {commit.does}" for commit in others)
    return f"in {_NUMBERS.get(len(commits), len(commits))} commits: the first {first.does}{rest}"


def batches_of(plan: Plan, keys: frozenset[str] | None = None) -> list[ComputeBatch]:
    """Return the stages that compute the chunks of a plan, or only those of `keys`, in order."""
    return [
        ComputeBatch(number, tuple(chunk.key for chunk in batch))
        for number, batch in enumerate(plan.batches(keys), start=1)
    ]


def stages_of(plan: Plan, commits: Sequence[TableCommit], candidate: PrepareCandidate | None = None) -> list[Stage]:
    """Return the stages of a run, in the order of their execution.

    Args:
        plan: the run's plan.
        commits: what its publish mode commits, to which tables, in that order.
        candidate: what is committed to a branch before, where its publish mode does that.
    """
    chunks = tuple(chunk.key for chunk in plan.chunks)
    if plan.mode is Mode.RECONCILIATION:
        return [Reconcile(plan.target, chunks, plan.gates)]
    stages: list[Stage] = [*batches_of(plan), GateChunks(chunks), RunGates(plan.gates)]
    if plan.publishes:
        if candidate is not None:
            stages.append(candidate)
        days = plan.publish_range
        stages.append(
            Publish(
                plan.publish_mode, plan.target, days.start, days.end, tuple(commits), plan.manual_publish, plan.values
            )
        )
        stages += [PublishEvents(one.sink, one.topic) for one in plan.topics]
    return stages


def _span(keys: tuple[str, ...]) -> str:
    return f"chunk {keys[0]}" if len(keys) == 1 else f"{len(keys)} chunks ({in_words(keys)})"
