"""The topics that a run's rows would go to, looked up when it is planned: its own, and others that Kafka takes for the same.

Put here what is asked of the ledger. Who may write to which topic is `resources.sinks.policy`'s; what a manifest is told whose topic
cannot be made, `manifests.planned_topics`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from backfill_assets.installation import Platform
from manifests.lifecycle import ENDED
from manifests.model import Mode, RunManifest
from manifests.planned_topics import GrantedTopic, metric_name
from resources.sinks.declared import ToTopic
from resources.sinks.policy import granted_topics, live_topics


def topics_of(platform: Platform, manifest: RunManifest) -> list[GrantedTopic]:
    """Return the topics that a run's rows would go to by the sinks that its manifest grants, each with one that is named like it."""
    found = granted_topics(manifest, platform.products.sinks)
    if not found or manifest.execution_mode is Mode.LIVE:
        return found
    others = list(_others(platform, manifest))
    sources = {one.topic: name for name, one in sorted(platform.products.topics.items())}
    return [
        replace(
            one,
            is_source_of=sources.get(one.topic, ""),
            named_like=next((whose for topic, whose in others if _are_one(topic, one.topic)), _taken(platform, one)),
        )
        for one in found
    ]


def _taken(platform: Platform, granted: GrantedTopic) -> str:
    """Return whose declared backfill topic a run's own one would be, or would be taken for; empty if nobody's."""
    declared = {
        name: one.adapter.backfill_topic
        for name, one in sorted(platform.products.sinks.items())
        if isinstance(one.adapter, ToTopic)
    }
    if declared[granted.sink] is not None:
        return ""
    same = (
        (topic, name) for name, topic in declared.items() if topic and metric_name(topic) == metric_name(granted.topic)
    )
    return next((f"{topic}, the backfill topic of the sink {name}" for topic, name in same), "")


def _others(platform: Platform, manifest: RunManifest) -> Iterator[tuple[str, str]]:
    """Yield topics that there are, or will be, each with its name in words: live ones, sources, and those of runs with an id like this one's."""
    for topic in sorted(live_topics(platform.products.sinks)):
        yield topic, f"the live topic {topic}"
    for name, source in sorted(platform.products.topics.items()):
        yield source.topic, f"{source.topic}, which records of the topic {name} are landed from"
    for record in platform.ledger.named_like(manifest.run_id):
        if record.state not in ENDED:
            yield from ((one.topic, f"{one.topic}, that of the run '{record.run_id}'") for one in record.plan.topics)


def _are_one(topic: str, other: str) -> bool:
    return topic != other and metric_name(topic) == metric_name(other)
