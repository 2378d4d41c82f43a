"""An archive of the classes that Spark loads: a JVM maps it, instead of reading, parsing and verifying them once more.

    python -m resources.spark.class_archive

makes it for this environment, in less than a minute. It saves each command that starts Spark a third of the time until its
first job is done. It is only ever a copy: a JVM of another build, or with other jars, passes it over in silence, and
without it everything works as before.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from resources.spark.pyspark_private import gateway_of
from resources.spark.warming import do_what_is_done

LOGGING = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
"""The option that gives a JVM our log settings."""
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_EXIT_SECONDS = 300


def archive_path() -> Path:
    """Return where the archive of this environment is, or would be."""
    return Path(sys.prefix, "share", "backfill-assets", f"spark-{pyspark.__version__}.jsa")


def java_options() -> str:
    """Return the options with which a JVM uses the archive, quoted as Spark reads them; none if there is none."""
    path = archive_path()
    return f'-XX:SharedArchiveFile="{path}" {_QUIET}' if path.is_file() else ""


def make() -> Path:
    """Make the archive, in place of one that is there, and return where it is.

    Raises:
        OSError: if the JVM has not written it.
    """
    path = archive_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, "made.jsa")
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.driver.extraJavaOptions", f'-XX:ArchiveClassesAtExit="{made}" {_QUIET} {LOGGING}')
            .getOrCreate()
        )
        do_what_is_done(session, folder)
        gateway = gateway_of(session)  # the JVM writes the archive when it ends
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(_EXIT_SECONDS)
        if not made.is_file():
            raise OSError(f"{made} was not written; everything works without it, each command that starts Spark later")
        made.replace(path)
    return path


if __name__ == "__main__":
    sys.stdout.write(f"{make()}\n")
