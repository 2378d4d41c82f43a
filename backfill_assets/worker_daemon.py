"""What Spark forks its Python workers from: PySpark's own daemon, with the gate and the products imported already.

Each worker would import them anew, for more than a second, and Spark ends a worker that was idle for a minute. Only
imported here, nothing is run: threads do not survive a fork.
"""

from pyspark.daemon import manager

import backfill_assets.gates
import backfill_assets.products.registry  # noqa: F401

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]
