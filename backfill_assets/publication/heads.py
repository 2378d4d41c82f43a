"""Keeps the chain's head elsewhere after each publication and decision, where the settings name a place.

Put here when that is done and who is told if it cannot be. How a place is written to is `resources.evidence.heads`'.
"""

from __future__ import annotations

import logging

from backfill_assets.installation import Platform
from resources import logs
from resources.evidence.heads import Kept, keep_head

_log = logging.getLogger(__name__)


def keep(platform: Platform) -> list[Kept]:
    """Write the chain's head to every declared place; a place that is down is reported and stops nothing."""
    if not platform.settings.head_places:
        return []
    done = keep_head(platform.settings.head_places, platform.evidence.chain.last())
    for one in done:
        if one.trouble:
            text = f"the chain's head could not be kept in {one.place}: {one.trouble}; the next one covers it"
            logs.event(_log, logging.WARNING, "head_not_kept", text, told=True, place=one.place)
    return done
