"""What Spark has to compute with by its settings, which nothing is started to ask for.

Put here what planning reads of them. How many tasks a session runs at once, the session is asked itself (`cores`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from manifests.errors import PlanRefused, Problem
from manifests.file_sizes import shortened, whole_number
from manifests.model import Mode
from resources.settings import DEFAULT_MASTER, DEFAULT_MEMORY, DRIVER_MEMORY_KEY, Settings

_SIZE = re.compile(r"([0-9]{1,18})(?:([kmgtp])b?|(b))?", re.IGNORECASE)
_MOST = 1 << 63
"""Bytes that are more than Spark can count."""
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_KIB = 1_024
_EXECUTOR_MEMORY_KEY, _EXECUTORS_KEY = "spark.executor.memory", "spark.executor.instances"
_MASTER_KEY, _LOCAL = "spark.master", re.compile(r"local(\[.*)?")
_SPARKS_OWN = "1g"
"""What Spark gives an executor that nobody has given anything."""


def of_mode(settings: Settings, mode: Mode) -> Mapping[str, str]:
    """Return the Spark settings that an installation has for a mode."""
    return settings.spark | settings.spark_by_mode.get(mode, {})


def memory_of(settings: Settings, mode: Mode) -> tuple[int, str]:
    """Return how many bytes of memory the sessions of a mode compute in, and by which setting.

    Of a local session that is its driver's; of a cluster, its executors'. Of a server of Spark Connect that the settings say nothing of,
    and of a cluster whose executors they do not count, one such as this project has by default is taken.

    Raises:
        PlanRefused: if a setting is no size.
    """
    spark = of_mode(settings, mode)
    if _LOCAL.fullmatch(spark.get(_MASTER_KEY, DEFAULT_MASTER).strip()) and not settings.server_of(mode):
        said = spark.get(DRIVER_MEMORY_KEY)
        by = DRIVER_MEMORY_KEY if said is not None else f"the default of {DRIVER_MEMORY_KEY}"
        return size_of(DRIVER_MEMORY_KEY, said or DEFAULT_MEMORY), by
    number = spark.get(_EXECUTORS_KEY, "").strip()
    if _EXECUTOR_MEMORY_KEY in spark or number:
        executors = whole_number(number) or 1
        each = size_of(_EXECUTOR_MEMORY_KEY, spark.get(_EXECUTOR_MEMORY_KEY, _SPARKS_OWN))
        return executors * each, f"{_EXECUTOR_MEMORY_KEY} of {executors:,} executor(s)"
    return size_of(DRIVER_MEMORY_KEY, DEFAULT_MEMORY), f"the default, as no setting says {_EXECUTOR_MEMORY_KEY}"


def size_of(name: str, said: str) -> int:
    """Return the bytes that a setting of memory says, as Spark reads it: without a unit, MiB.

    Raises:
        PlanRefused: if it is no size, or none at all.
    """
    found = _SIZE.fullmatch(said.strip())
    power = 0 if found is None or found[3] else _POWER[(found[2] or "m").lower()]
    size = 0 if found is None else int(found[1]) * int(_KIB**power)
    if not 0 < size < _MOST:
        raise PlanRefused(
            Problem(
                f"{name} is {shortened(said)!a} in the settings",
                "Spark's memory is a whole number with k, m, g or t right after it: 2g, 1536m",
                "correct it under `spark` or `spark_by_mode` in backfill.toml, or in BACKFILL_SPARK",
            )
        )
    return size
