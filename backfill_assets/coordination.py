"""The name by which the `dagster.yaml` of a home finds its queue; what it is lies in `defs.run_queue`.

`backfill init` writes that file once, owners edit it, and nothing rewrites it. Put nothing here.
"""

from backfill_assets.defs.run_queue import DecisionsFirst

__all__ = ["DecisionsFirst"]
