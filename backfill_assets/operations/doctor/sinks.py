"""Looks at sinks: what LIVE could not tell for want of a setting, what is set for nobody, and topics that lack events of a run.

Put here what is known without opening a sink. Whether one was told of a change is `evidence`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement
from backfill_assets.operations.doctor.views import legible_runs
from backfill_assets.operations.sinks import targets_that_grant
from backfill_assets.publication.topic_publishing import lacking
from manifests.lifecycle import WAS_PUBLISHED
from manifests.model import Mode
from resources.sinks.declared import place_of_setting


def sinks_without_settings(platform: Platform) -> Iterator[Disagreement]:
    """Find sinks that LIVE tells, of a target that LIVE keeps here, and that lack a setting where this process runs."""
    kept_by_live = {one.target for one in legible_runs(platform) if one.plan.mode is Mode.LIVE}
    for name, sink in platform.products.sinks.items():
        targets = [one for one in targets_that_grant(platform, name) if one in kept_by_live]
        for setting in sink.needs if targets else ():
            if setting not in platform.settings.of_sink(name):
                yield Disagreement(
                    "sink-setting-missing",
                    name,
                    f"LIVE of {', '.join(targets)} tells it, and its setting {setting} is not set here",
                    Confidence.POSSIBLE,
                    f"where LIVE runs, set {place_of_setting(name, setting)}; in a process of another mode it is right that it is missing",
                )


def topics_behind(platform: Platform) -> Iterator[Disagreement]:
    """Find runs whose last change has not come to each topic of their plan, or not whole."""
    for record in legible_runs(platform):
        if record.state not in WAS_PUBLISHED or not record.plan.topics:
            continue
        for planned, action in lacking(platform, record):
            yield Disagreement(
                "topic-behind",
                record.run_id,
                f"the topic {planned.topic} has not every event of its {action} (sink {planned.sink})",
                Confidence.CERTAIN,
                f"`backfill {action} {record.run_id}` goes on where it stopped",
            )


def settings_without_sinks(platform: Platform) -> Iterator[Disagreement]:
    """Find settings of sinks that no product declares, or that their sink does not name: a slip of the pen, as a rule."""
    declared = platform.products.sinks
    for name, values in platform.settings.sinks.items():
        sink = declared.get(name)
        for setting in sorted(values):
            if sink is not None and setting in sink.needs:
                continue
            why = (
                "no product declares such a sink"
                if sink is None
                else f"its settings are {', '.join(sink.needs) or 'none'}"
            )
            yield Disagreement(
                "sink-setting-unknown",
                name,
                f"the setting {setting} is set for it, and {why}",
                Confidence.CERTAIN,
                f"correct or remove {place_of_setting(name, setting)}",
            )
