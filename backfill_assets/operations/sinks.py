"""What people are shown of sinks: which there are, what each mode may do with them and why, and what their settings lack.

Put here what is looked up for the command, the preview of a plan and the doctor. Who may use a sink is decided by
`resources.sinks.policy`; which there are, products declare.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from backfill_assets.installation import Platform
from manifests.model import Mode, RunManifest
from resources.sinks.declared import SinkDeclaration, ToTopic
from resources.sinks.policy import judge_granted

MODES = (Mode.LIVE, Mode.BACKFILL, Mode.REPLAY, Mode.DRY_RUN, Mode.RECONCILIATION)


@dataclass(frozen=True)
class MayUse:
    """What a mode may do with a sink that a manifest grants, and why."""

    decision: str
    why: str


@dataclass(frozen=True)
class SinkFacts:
    """A sink as an installation has it.

    Attributes:
        name: as manifests grant it.
        sink_class: what a write to it does to the world.
        product: who declares it; empty of the platform's own.
        description: what it is, and `owners` who answers for what receives it.
        adapter: what writes to it.
        isolated: whether it keeps runs apart.
        told_of: the actions that it is told of.
        settings: whether each setting that it needs is set where this is asked, by its name; never a value.
        modes: what each mode may do.
        live_of: the targets whose policy for LIVE grants it.
    """

    name: str
    sink_class: str
    product: str
    description: str
    owners: tuple[str, ...]
    adapter: str
    isolated: bool
    told_of: tuple[str, ...]
    settings: dict[str, bool]
    modes: dict[str, MayUse]
    live_of: tuple[str, ...]


def facts_of_sinks(platform: Platform) -> list[SinkFacts]:
    """Return every sink that a manifest can grant here, by name."""
    return [_facts(platform, sink) for _, sink in sorted(platform.products.sinks.items())]


def _facts(platform: Platform, sink: SinkDeclaration) -> SinkFacts:
    product = platform.products.of_sink(sink.name)
    values = platform.settings.of_sink(sink.name)
    answers = {mode: judge_granted(sink, mode) for mode in MODES}
    return SinkFacts(
        name=sink.name,
        sink_class=sink.sink_class.value,
        product="" if product is None else product.name,
        description=sink.description,
        owners=tuple(sink.owners),
        adapter=sink.adapter if isinstance(sink.adapter, str) else type(sink.adapter).__name__,
        isolated=bool(sink.isolated),
        told_of=tuple(sink.told_of),
        settings={name: name in values for name in sink.needs},
        modes={mode.value: MayUse(answer.decision.value, answer.reason) for mode, answer in answers.items()},
        live_of=tuple(targets_that_grant(platform, sink.name)),
    )


def targets_that_grant(platform: Platform, sink: str) -> Iterator[str]:
    """Yield the targets whose policy for LIVE grants a sink."""
    for target in platform.products.targets:
        if target.live is not None and sink in target.live.sinks:
            yield target.name


def told_by(platform: Platform, manifest: RunManifest) -> list[str]:
    """Say which sinks a run will tell of what, one line a sink."""
    declared = platform.products.sinks
    granted = [declared[name] for name in manifest.safety.sinks if name in declared]
    return [f"{one.name} ({one.sink_class.value}), {_of_what(one, manifest)}" for one in granted]


def _of_what(sink: SinkDeclaration, manifest: RunManifest) -> str:
    if isinstance(sink.adapter, ToTopic):
        return f"by the published rows, in {sink.adapter.topic_of(manifest.execution_mode, manifest.run_id)}"
    return f"of {', '.join(sink.told_of)}"
