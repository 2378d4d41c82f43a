"""A plan's stages, executed: the list that a preview prints, walked by whoever runs a part of it.

Put here which function does what a class of stage says, one each. What is done is `staging`'s, `gates`' and `publication`'s;
who asks for a step (the command, an op of Dagster) is no matter here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from backfill_assets.gates.breaking import look, portions, require_canary
from backfill_assets.gates.judging import gate_chunks, gate_run
from backfill_assets.installation import Platform
from backfill_assets.publication.announcements import Published
from backfill_assets.publication.modes import stages_of
from backfill_assets.publication.publisher import prepare, publish
from backfill_assets.publication.topic_publishing import publish_events
from backfill_assets.run_context import RunContext
from backfill_assets.staging import stopping
from backfill_assets.staging.executor import Listener, Staged, ignore_progress, stage_chunks
from manifests.lifecycle import COMPUTABLE, ChunkState
from manifests.plan import Plan
from manifests.stages import ComputeBatch, GateChunks, PrepareCandidate, Publish, PublishEvents, RunGates, Stage, Step

Handler = Callable[[Sequence[Any]], None]
"""Executes stages of one class that follow one another."""


class Execution:
    """Executes stages of a run, a step at a time; every stage is safe to repeat.

    Attributes:
        staged: what was computed and what was not.
        branch: the branch on which the candidate is, where the run has one and it is ready.
        published: what was published.
    """

    def __init__(
        self,
        platform: Platform,
        run_id: str,
        *,
        chunks: Sequence[str] | None = None,
        dagster_run_id: str = "",
        tell: Listener = ignore_progress,
        handlers: Mapping[type, Handler] | None = None,
    ) -> None:
        """Make ready to execute.

        Args:
            platform: the installation.
            run_id: the run.
            chunks: the chunks to compute; None: all of them.
            dagster_run_id: the Dagster run that works for it, if any.
            tell: is told what happens.
            handlers: more handlers, by class of stage.
        """
        self.staged = Staged()
        self.branch: str | None = None
        self.published: Published | None = None
        self._platform, self._run_id, self._chunks = platform, run_id, chunks
        self._dagster_run_id, self._tell = dagster_run_id, tell
        self._handlers: dict[type, Handler] = {
            ComputeBatch: self._compute,
            GateChunks: self._gate,
            RunGates: self._judge,
            PrepareCandidate: self._prepare,
            Publish: self._publish,
            PublishEvents: self._publish_events,
            **(handlers or {}),
        }

    @cached_property
    def _plan(self) -> Plan:
        """The run's approved plan, read once: of many chunks it is long."""
        return self._platform.ledger.run(self._run_id).plan

    @cached_property
    def stages(self) -> list[Stage]:
        """The stages of the run's approved plan, in order."""
        return stages_of(self._platform.products, self._plan)

    def run(self, step: Step) -> Execution:
        """Execute the stages of a step, in order.

        Raises:
            Refused: if a stage may not be executed now; also if the run's plan has no stage of what computes or publishes.
        """
        stages = [stage for stage in self.stages if stage.step is step]
        for kind, alike in groupby(stages, type):
            self._handlers[kind](list(alike))
        if not stages and step in _REFUSED_BY:
            self._handlers[_REFUSED_BY[step]]([])
        return self

    def _compute(self, batches: Sequence[ComputeBatch]) -> None:
        """Compute the batches: those of their chunks that were asked for and are not staged, a Spark job a batch."""
        chunks = [key for batch in batches for key in batch.chunks] if self._chunks is None else self._chunks
        record, plan = self._platform.ledger.run(self._run_id), self._plan
        looks = plan.breaker is not None and plan.breaker.looks_at_verdicts
        states = {one.chunk: one.state for one in self._platform.ledger.standing_chunks(self._run_id)} if looks else {}
        passed = [key for key, state in states.items() if state is ChunkState.PASSED]
        run = RunContext(self._platform, self._platform.products.target(record.target), plan)
        if looks and record.state in COMPUTABLE:  # a launch that ended after its last gate has not come to it
            look(run)
            stopping.going_on(self._run_id)()
        for portion in portions(plan, chunks, passed):
            done = stage_chunks(
                self._platform, self._run_id, portion, dagster_run_id=self._dagster_run_id, tell=self._tell
            )
            self.staged.add(done)
            if looks:
                gate_chunks(self._platform, self._run_id, tell=self._tell)
                look(run)
                stopping.going_on(self._run_id)()
                require_canary(run, chunks)

    def _gate(self, _passes: Sequence[GateChunks]) -> None:
        """Gate every chunk that is staged by now."""
        gate_chunks(self._platform, self._run_id, tell=self._tell)

    def _judge(self, _stages: Sequence[RunGates]) -> None:
        """Judge the run as a whole, once every chunk has passed."""
        gate_run(self._platform, self._run_id)

    def _prepare(self, _candidates: Sequence[PrepareCandidate]) -> None:
        """Put the candidate on its branch, once every gate has passed."""
        self.branch = prepare(self._platform, self._run_id)

    def _publish(self, _publications: Sequence[Publish]) -> None:
        """Make the commits of the publication."""
        self.published = publish(self._platform, self._run_id)

    def _publish_events(self, _topics: Sequence[PublishEvents]) -> None:
        """Write to each topic what it lacks of the run's changes."""
        publish_events(self._platform, self._run_id)


_REFUSED_BY: Mapping[Step, type] = {Step.COMPUTE: ComputeBatch, Step.PUBLISH: Publish}
"""Whose handler says why a plan has no stage of a step."""


def execute_publication(platform: Platform, run_id: str) -> Published:
    """Execute the publication of a run; return what was published, by this call or one before it.

    Raises:
        Refused: if it may not be published now; see `publication.publisher.publish`.
    """
    done = Execution(platform, run_id).run(Step.PUBLISH).published
    assert done is not None
    return done
