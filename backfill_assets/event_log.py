"""The name by which the `dagster.yaml` of a home finds its event log; what it is lies in `defs.event_storage`.

`backfill init` writes that file once, owners edit it, and nothing rewrites it. Put nothing here.
"""

from backfill_assets.defs.event_storage import PooledSqliteEventLog

__all__ = ["PooledSqliteEventLog"]
