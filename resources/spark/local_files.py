"""How Spark's JVM writes local files: as Hadoop does, but for `chmod`, which Hadoop starts as a program for each file and folder.

Put here what is done to the local file system of a JVM that this process has started. Hadoop's own code for it wants a native library
that PySpark does not bring. Each of these programs takes some milliseconds of a core: of a chunk of a few rows more than its rows
do. Spark brings a compiler, Janino, by which the few lines of `LocalFilesByCalls.java` become a class beside Hadoop's own: a file of
classes on the JVM's search path would be a build step, and void the archive of Spark's classes.
"""

from __future__ import annotations

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
    if not pyspark_private.has_class(session, BY_CALLS):
        pyspark_private.define_class(session, BY_CALLS, (files(__package__) / _SOURCE).read_text(), beside=BY_PROGRAMS)
    return settings | {OF_VIEW: BY_CALLS}
