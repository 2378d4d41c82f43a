"""The Spark settings of each execution mode: what a session may reach, and how it computes.

Put here what is set, as names and values. Sessions that have these settings are `sessions`'; what several sessions of one process
may not have between them is `one_reach`'. These settings stop accidents, not intent: see `docs/deployment.md` for the boundary
that does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from manifests.model import Mode
from resources.code.sources import INSTALLED
from resources.settings import (
    DEFAULT_MASTER,
    DEFAULT_MEMORY,
    DEFAULT_ROWS_PER_FILE,
    DRIVER_MEMORY_KEY,
    ROWS_PER_FILE_KEY,
    SERVER_KEY,
    Settings,
)
from resources.spark import class_archive, local_files, object_store
from resources.spark.connected import JDBC_KEY

MODE_KEY = "spark.backfill.mode"
"""Runtime setting in which a session carries its mode."""
JDBC_PROVIDERS = "basic,db2,databricks,mariadb,mssql,mysql,oracle,postgres"

OPEN_FILES = 8
"""Files that a task writes side by side; of rows for more than these, Spark would sort what is left once more."""
JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
"""Ours; an installation's own are `spark.driver.extraJavaOptions`, which come after them."""
_COMPILED_LATER = (
    "-XX:Tier4InvocationThreshold=200000 -XX:Tier4MinInvocationThreshold=24000 "
    "-XX:Tier4CompileThreshold=600000 -XX:Tier4BackEdgeThreshold=400000"
)
"""How often the JVM runs code before it optimises it to the end, some ten to forty times as often as by default: what is done with
rows is run so often at once, and what plans a job, some thousand methods, is not worth a core for as long as a run takes."""

PAGE_KEY = "spark.buffer.pageSize"
"""How much each sort and shuffle takes at once, however few rows it has. Of a heap of 2 GB Spark would take 32 MB: the collector of the
JVM then runs all the time, for as long as a sixth of a job. A little less than whole regions of the heap, which arrays begin and end."""

# Every name here exists in classic Spark and in Spark Connect; static ones are set where the JVM is started.
_STATIC = {
    "spark.master": DEFAULT_MASTER,
    DRIVER_MEMORY_KEY: DEFAULT_MEMORY,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    JAVA_OPTIONS: f"{class_archive.LOGGING} {_COMPILED_LATER}",
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.codegen.cache.maxEntries": "1000",
    PAGE_KEY: "4000k",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.hadoop.parquet.enable.summary-metadata": "false",
}
_RUNTIME = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.fieldId.write.enabled": "true",
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.fieldId.read.ignoreMissing": "false",
    # Spark has times of day, and asks to be told so
    "spark.sql.timeType.enabled": "true",
    "spark.sql.shuffle.partitions": "8",
    ROWS_PER_FILE_KEY: str(DEFAULT_ROWS_PER_FILE),
    # the chunks of a partition are sorted by key already: this spares the writer's own sort, by folder
    "spark.sql.maxConcurrentOutputFileWriters": str(OPEN_FILES),
    # files are named to Spark one by one: on a local disk the driver looks them up faster than a job would
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.sources.partitionOverwriteMode": "static",
    # column chunks of a few kilobytes are read faster in this thread than by handing them to others
    "parquet.hadoop.vectored.io.enabled": "false",
}
HADOOP = ("fs.", "parquet.", "mapreduce.")
"""How Hadoop's own settings begin, which a session has for itself."""
OF_HADOOP = "spark.hadoop."
"""How they begin where a JVM is started with them; a client of a server sets each for its session, without this."""
_OF_STORES = f"{OF_HADOOP}fs."
WRITES_NOTHING = {object_store.COMMIT_PROTOCOL: "org.apache.spark.internal.io.FileCommitProtocol"}
"""What commits the files that a frame is written to: the abstract class itself, which Spark cannot make, so that every write
fails before it has removed or written anything. Spark refuses the name of a class that it cannot load."""
_OF_A_SESSION = frozenset({object_store.COMMIT_PROTOCOL, object_store.COMMITTER})
"""Settings that the root session is not given: what only one mode may not do, and what takes classes that may be missing."""
_NOWHERE = "/there-is-no-local-file-here"
_DENIED = {JDBC_KEY: JDBC_PROVIDERS}


def session_settings(settings: Settings, mode: Mode) -> dict[str, str]:
    """Return the Spark settings of a mode: defaults, then the installation's, then what the mode forbids."""
    merged = writing_settings(settings, mode)
    return merged | WRITES_NOTHING if mode is Mode.RECONCILIATION else merged


def writing_settings(settings: Settings, mode: Mode) -> dict[str, str]:
    """Return the settings of a mode as they are where files are written."""
    own = _by_session(settings.spark) | _by_session(settings.spark_by_mode.get(mode, {}))
    own.pop(SERVER_KEY, None)  # where Spark is, and none of its settings
    merged = _STATIC | _RUNTIME | _DENIED | object_store.s3_settings(settings.catalog, own) | own
    if mode is not Mode.LIVE:
        merged |= _DENIED | only_the_warehouse(settings)
    return merged | {MODE_KEY: mode.value}


def of_the_jvm(wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that Spark is started with."""
    return {name: value for name, value in wanted.items() if not name.startswith(HADOOP) and name not in _OF_A_SESSION}


def _by_session(own: Mapping[str, str]) -> dict[str, str]:
    """Return an installation's settings, those of file systems as a session has them: they may be credentials.

    As `spark.hadoop.fs.*` they would be the JVM's, on its command line and in Spark's log of events.
    """
    moved = {name.removeprefix(OF_HADOOP): value for name, value in own.items() if name.startswith(_OF_STORES)}
    return moved | {name: value for name, value in own.items() if not name.startswith(_OF_STORES)}


def only_the_warehouse(settings: Settings) -> dict[str, str]:
    """Return the settings that leave a session no local path but the warehouse's, and those of tables beside it.

    Hadoop's view file system takes the place of the local one and has these mounts only, so that a path elsewhere does not
    exist, for reading or writing. Where the warehouse is in S3 no local path is left, and what the catalog's keys may do there is
    the limit; where it is in another store, its credentials alone are.
    """
    warehouse = settings.catalog.get("warehouse", "")
    if not warehouse.startswith("file:") and not object_store.is_in_s3(settings.catalog):
        return {}
    # a view without any mount cannot be made
    folders = settings.reachable_folders or [_NOWHERE]
    return {
        "fs.file.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        # otherwise the file system that another session of this JVM opened would be handed out
        "fs.file.impl.disable.cache": "true",
        local_files.OF_VIEW: local_files.BY_PROGRAMS,
        "fs.viewfs.rename.strategy": "SAME_FILESYSTEM_ACROSS_MOUNTPOINT",
        # a view's listing with localities forks `ls` for every file, to learn permissions that nobody asks for
        "spark.sql.sources.ignoreDataLocality": "true",
        **{f"fs.viewfs.mounttable.default.link.{one}": f"file://{one}" for one in folders},
    }


def working_folder(modules: Sequence[str]) -> dict[str, str]:
    """Return the settings that keep Python workers from the working folder, which `python -m` searches first.

    Else a folder there that is called like an installed product would be another package to the workers than to the driver.
    Not where the driver searches it, or has found one of its `modules` there: Dagster searches it only while it loads code.
    """
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return {}
    files = (getattr(sys.modules.get(name.partition(".")[0]), "__file__", None) for name in modules)
    found = (Path(file) for file in files if file)
    is_searched = any(Path(entry or here).resolve() == here.resolve() for entry in sys.path) or any(
        file.is_relative_to(here) and INSTALLED.isdisjoint(file.parts) for file in found
    )
    return {} if is_searched else {"spark.executorEnv.PYTHONSAFEPATH": "1"}
