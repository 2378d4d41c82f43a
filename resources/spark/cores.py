"""How many tasks a session runs at once: what work is spread over.

Put here how that is asked of a session of either kind. It changes no row: only how many tasks do the work.
"""

from __future__ import annotations

import os
import re
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from resources.spark.pyspark_private import is_connected

_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
_MANY = 10_000
"""Rows of a frame of which no partition is empty, however many there are."""
_known: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()


def tasks_at_once(session: SparkSession) -> int:
    """Return how many tasks Spark runs at once; a server of Spark Connect that is no local one is asked by a job, once.

    That job counts the partitions that Spark gives a frame of numbers. On a cluster these are the cores of the executors that have
    registered by then, and two at least: who knows better sets `spark.default.parallelism` on the server.
    """
    if not is_connected(session):
        return session.sparkContext.defaultParallelism
    if session not in _known:
        _known[session] = _of_server(session)
    return _known[session]


def _of_server(session: SparkSession) -> int:
    if said := session.conf.get("spark.default.parallelism", None):
        return int(said)
    local = _LOCAL.fullmatch(session.conf.get("spark.master", None) or "")
    if local is not None and local[1] != "*":
        return int(local[1] or 1)
    if local is not None and session.conf.get("spark.driver.host", None) in {"127.0.0.1", "localhost"}:
        return os.cpu_count() or 1
    # a frame of numbers has as many partitions as Spark takes for right: no setting that a client can ask for tells
    [row] = session.range(_MANY).agg(F.count_distinct(F.spark_partition_id()).alias("tasks")).collect()
    return int(row["tasks"])
