"""How Spark's JVM writes local files: as Hadoop does, but for `chmod`, which Hadoop starts as a program for each file and folder.

Put here what is done to the local file system of a JVM that this process has started. Hadoop's own code for it wants a native library
that PySpark does not bring. Each of these programs takes some milliseconds of a core: of a chunk of a few rows more than its rows
do. Spark brings a compiler, Janino, by which the few lines of `LocalFilesByCalls.java` become a class beside Hadoop's own: a file of
classes on the JVM's search path would be a build step, and void the archive of Spark's classes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from resources.spark import pyspark_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OF_VIEW = "fs.viewfs.overload.scheme.target.file.impl"
"""The setting that says which file system stands behind a session's view of local files."""
BY_PROGRAMS, BY_CALLS = "org.apache.hadoop.fs.RawLocalFileSystem", "org.apache.hadoop.fs.LocalFilesByCalls"
_SOURCE = "LocalFilesByCalls.java"
_log = logging.getLogger(__name__)
_defining = threading.Lock()


def without_programs(session: SparkSession, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session whose JVM this process has started, with local files as they are written without programs.

    Only where Spark computes in that JVM alone: an executor elsewhere would not find the class.
    """
    settings = dict(wanted)
    if settings.get(OF_VIEW) != BY_PROGRAMS or pyspark_private.is_connected(session):
        return settings
    master = session.sparkContext.master  # of the JVM that there is: somebody may have started it before, with another
    if master is None or master.partition("[")[0] != "local":
        return settings
    return settings | {OF_VIEW: BY_CALLS} if _is_defined(session) else settings


def _is_defined(session: SparkSession) -> bool:
    """Have the JVM have the class, and say whether it has it; where it cannot, files are written as Hadoop does."""
    with _defining:  # another thread may open a session of the same JVM
        if pyspark_private.has_class(session, BY_CALLS):
            return True
        source = (files(__package__) / _SOURCE).read_text()
        why = pyspark_private.define_class(session, BY_CALLS, source, beside=BY_PROGRAMS)
    if why:
        _log.warning("Spark starts a program for each local file that it writes: %s", why)
    return not why
