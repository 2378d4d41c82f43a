"""Topics that a run's published rows go to as events: what a plan pins of one, and what its manifest says against it.

Put here rules that need no broker. Who may write to which topic is `resources.sinks.policy`'s; what is written, the publication's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from manifests.errors import Problem
from manifests.model import PublishMode, RunManifest

TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""What Kafka takes for the name of a topic; `.` and `..` are none."""


@dataclass(frozen=True)
class PlannedTopic:
    """A sink that is granted, and the topic that the run's events go to by it."""

    sink: str
    topic: str


@dataclass(frozen=True)
class GrantedTopic:
    """A sink that a manifest grants, the topic that the run's events would go to, and the target whose rows are events of it."""

    sink: str
    topic: str
    table: str
    is_live_of: str = ""
    """The sink whose live topic it is, where it is one that the run may not write to."""
    is_source_of: str = ""
    """The declared topic whose records are landed from it, where it is one that the run may not write to."""
    named_like: str = ""
    """Another topic, and whose it is, which Kafka's metrics do not tell from it."""


def metric_name(topic: str) -> str:
    """Return what Kafka's metrics call a topic: a broker makes no second one of the same, since `.` and `_` are one to them."""
    return topic.replace(".", "_")


def topic_problems(manifest: RunManifest, granted: Sequence[GrantedTopic]) -> list[Problem]:
    """Say which granted topics a run of a manifest cannot publish to."""
    problems = []
    for one in granted:
        where = f"safety.sinks names '{one.sink}'"
        if one.table != manifest.target.table:
            problems.append(
                Problem(
                    f"{where}, whose events are rows of {one.table}, and target.table is {manifest.target.table}",
                    "a run publishes rows of its own target to a topic",
                    "remove it from safety.sinks",
                )
            )
        if not TOPIC.fullmatch(one.topic) or one.topic in {".", ".."}:
            problems.append(
                Problem(
                    f"{where}, and the topic {one.topic} has {len(one.topic)} characters",
                    "the name of a topic has at most 249, letters and digits of ASCII, '.', '_' and '-'",
                    "give the run a shorter id",
                )
            )
        if one.is_live_of:
            problems.append(
                Problem(
                    f"{where}, and the topic {one.topic} is the live one of the sink {one.is_live_of}",
                    "only LIVE writes to a live topic",
                    "give the run another id, or the sink another topic",
                )
            )
        if one.is_source_of:
            problems.append(
                Problem(
                    f"{where}, and records of the topic {one.is_source_of} are landed from {one.topic}",
                    "a run that is not LIVE writes to no topic that is a source",
                    "give the run another id, or the sink another topic",
                )
            )
        if one.named_like:
            problems.append(
                Problem(
                    f"{where}, and Kafka does not tell the topic {one.topic} from {one.named_like}",
                    "'.' and '_' are one to the metrics of a broker, which makes no second topic of the same name",
                    "give the run an id that differs from it by more than '.' and '_'",
                )
            )
        if manifest.target.publish_mode is PublishMode.CORRECTION_EVENTS:
            problems.append(
                Problem(
                    f"{where}, and target.publishMode is CORRECTION_EVENTS",
                    "events are rows of the target that a run has published, and such a run publishes none there",
                    "remove it from safety.sinks, or choose another publish mode",
                )
            )
    return problems
