"""Iceberg's Java library, in a process and a JVM of its own: tables that it writes, and rows as it reads them.

Its jar comes from a package registry, by Maven, and is kept in the environment; where it cannot be had, tests say why they are
skipped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_ARTIFACT = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"
_JAR = "iceberg-spark-runtime-4.1_2.13-1.11.0.jar"
_SCRIPT = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession

asked = json.loads(sys.stdin.read())
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", asked["jar"])
    .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
    .config("spark.sql.catalog.ice", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.ice.type", "hadoop")
    .config("spark.sql.catalog.ice.warehouse", asked["warehouse"])
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .getOrCreate()
)
said = {}
for statement in asked["statements"]:
    spark.sql(statement)
for name, metadata in asked["reads"].items():
    rows = spark.read.format("iceberg").load(metadata).toJSON().collect()
    said[name] = sorted(rows)
Path(asked["answer"]).write_text(json.dumps(said))
spark.stop()
"""


@cache
def jar() -> Path:
    """Return the library, from Maven's registry; skips the test with the reason where it cannot be had."""
    kept = Path(sys.prefix) / ".jars"
    found = kept / _JAR
    if found.is_file():
        return found
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip("Iceberg's Java library is fetched by Maven, and no 'mvn' is on PATH")
    command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={kept}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if not found.is_file():
        pytest.skip(f"Iceberg's Java library could not be fetched: {(done.stdout + done.stderr).strip()[-300:]}")
    return found


def by_java(
    folder: Path, statements: Sequence[str] = (), reads: Mapping[str, str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Run SQL by Iceberg's Java library in the catalog `ice` below a folder, then read tables by their metadata files.

    Returns:
        By name, the rows of each of `reads`, as JSON has them.
    """
    answer = folder / "answer.json"
    asked = {
        "jar": str(jar()),
        "warehouse": str(folder / "lake"),
        "statements": list(statements),
        "reads": dict(reads or {}),
        "answer": str(answer),
    }
    command = [sys.executable, "-c", _SCRIPT]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, list[str]] = json.loads(answer.read_text())
    return {name: [json.loads(row) for row in rows] for name, rows in found.items()}


def metadata_of(folder: Path, table: str) -> str:
    """Return the newest metadata file of a table that `by_java` has made."""
    metadata = folder / "lake" / Path(*table.split(".")) / "metadata"
    number = int((metadata / "version-hint.text").read_text())
    return str(metadata / f"v{number}.metadata.json")
