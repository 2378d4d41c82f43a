"""Looks at feeds from servers: settings that are missing or of nobody, and extractions that somebody has left.

Put here what is known without asking a server. What of a feed is loaded is `ingestion.extractions`'.
"""

from __future__ import annotations

from collections.abc import Iterator

from backfill_assets.declarations.apis import place_of_setting
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement
from resources.ledger.extractions import ExtractionState

_LEFT = frozenset({ExtractionState.FAILED, ExtractionState.UNSTABLE})


def feeds_without_settings(platform: Platform) -> Iterator[Disagreement]:
    """Find feeds that are extracted here, as settings or extractions say, and that lack a setting."""
    for name, feed in platform.products.apis.items():
        there = platform.settings.of_api(name)
        missing = [setting for setting in feed.needs if setting not in there]
        if missing and (there or platform.ledger.extractions.of_feed(name)):
            yield Disagreement(
                "api-setting-missing",
                name,
                f"its setting(s) {', '.join(missing)} are not set here",
                Confidence.POSSIBLE,
                f"where it is extracted, set {'; '.join(place_of_setting(name, setting) for setting in missing)}; elsewhere it is "
                "right that they are missing",
            )


def settings_without_feeds(platform: Platform) -> Iterator[Disagreement]:
    """Find settings of feeds that no product declares, or that their feed does not name: a slip of the pen, as a rule."""
    for name, values in platform.settings.apis.items():
        feed = platform.products.apis.get(name)
        for setting in sorted(values):
            if feed is not None and setting in feed.needs:
                continue
            why = "no product declares such a feed" if feed is None else f"its settings are {', '.join(feed.needs)}"
            yield Disagreement(
                "api-setting-unknown",
                name,
                f"the setting {setting} is set for it, and {why}",
                Confidence.CERTAIN,
                f"correct or remove {place_of_setting(name, setting)}",
            )


def extractions_left(platform: Platform) -> Iterator[Disagreement]:
    """Find feeds whose newest extraction failed, or is unstable: what it was to bring is missing."""
    for name in platform.products.apis:
        newest = next(reversed(platform.ledger.extractions.of_feed(name)), None)
        if newest is not None and newest.state in _LEFT:
            yield Disagreement(
                "extraction-failed" if newest.state is ExtractionState.FAILED else "extraction-unstable",
                newest.id,
                newest.reason,
                Confidence.CERTAIN,
                "the command that began it goes on with it; `--anew` begins anew"
                if newest.state is ExtractionState.FAILED
                else "extract again when less is changed there, or load it with --unstable and reconcile",
            )
