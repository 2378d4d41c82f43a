"""Fill in what a Spark server's resource leaves open: the settings that follow from the code and from an installation.

`backfill spark settings --json` prints them where the installation is; they go into `spec.sparkConf` of the resource, which is
printed. Put here nothing that is known before: that stands in the files. What a server is started with is decided in
`resources.spark.connected`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

OPEN = "FILLED-IN"
"""What stands in a file for a value that it cannot know."""
_MODES, _OF_EXECUTORS = "spark.backfill.server.modes", "spark.executorEnv."
_PYTHON = ("spark.sql.execution.pyspark.python", "spark.executorEnv.PYSPARK_PYTHON")


def filled(resource: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resource with what a server of its modes is started with.

    Args:
        resource: a SparkConnect or a SparkApplication.
        said: what `backfill spark settings --json` has printed for one of its modes.

    Raises:
        ValueError: if that is of another mode, contradicts the resource, or leaves something open.
    """
    own: dict[str, str] = dict(resource["spec"]["sparkConf"])
    if said["mode"] not in own[_MODES].split(","):
        raise ValueError(f"these are settings of {said['mode']}, and the server computes {own[_MODES]}")
    wanted = dict(said["settings"]) | {f"{_OF_EXECUTORS}{name}": value for name, value in said["environment"].items()}
    for name, value in wanted.items():
        if name == _MODES or name in _PYTHON:
            continue  # the server has several modes, and Python where the image has it
        if own.get(name, OPEN) not in {OPEN, value}:
            raise ValueError(f"{name} is {own[name]} in the file, and has to be {value}")
        own[name] = value
    if left := sorted(name for name, value in own.items() if value == OPEN):
        raise ValueError(f"nothing says what {', '.join(left)} is: does the installation have its tables in S3?")
    return {**resource, "spec": {**resource["spec"], "sparkConf": own}}


def main() -> None:
    """Print the resource of the second file with the settings of the first."""
    settings, file = sys.argv[1:]
    resource = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    said = json.loads(Path(settings).read_text(encoding="utf-8"))
    sys.stdout.write(yaml.safe_dump(filled(resource, said), sort_keys=False))


if __name__ == "__main__":
    main()
