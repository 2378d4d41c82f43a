"""What Dagster loads: the definitions of the installation that the settings name."""

from __future__ import annotations

import gc

from backfill_assets.defs.build import build_definitions
from backfill_assets.installation import Platform
from resources import logs
from resources.logs import traces
from resources.settings import load_settings

_YOUNG_OBJECTS = 50_000
"""New objects before the youngest are collected; Python's 700 are few where one table's metadata has tens of thousands."""

_settings = load_settings()
logs.configure(_settings)
traces.configure(_settings.traces)
defs = build_definitions(Platform.of(_settings))
# all of it lives as long as the process: left in, a full collection takes 0.2 s, in the middle of a publication
gc.freeze()
gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
