"""Everything private of PySpark that this project uses, behind names of its own; `tests/test_upstream.py` pins each.

Put here what PySpark documents nowhere. No other module names it, and a test looks that none does. Nothing here may import
PySpark before it is asked to: the daemon of Python workers imports this module while PySpark would still come from an archive
(see `worker_daemon`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def daemon_of_workers() -> Callable[[], None]:
    """Import PySpark's own daemon, and return what runs it: it forks a Python worker whenever Spark asks, until Spark ends."""
    from pyspark.daemon import manager  # noqa: PLC0415 - not before the search path is without archives

    return manager


def gateway_of(session: SparkSession) -> Any:
    """Return the connection of a classic session to the JVM that it has started; `proc` is the JVM's process."""
    return session.sparkContext._gateway  # noqa: SLF001
