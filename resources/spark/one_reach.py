"""What the sessions of one process may not have between them: a JVM and its environment are shared by all of them.

Put here which second session a process is refused, and why.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from manifests.canonical import sha256_of
from manifests.errors import EnvironmentRefused, Problem
from manifests.model import Mode
from resources.settings import API_VARIABLES, SINK_VARIABLES, TOPIC_VARIABLES, WEBHOOK_VARIABLE, Settings
from resources.spark.connected import JDBC_KEY
from resources.spark.mode_settings import JDBC_PROVIDERS, session_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

S3 = ("fs.s3.", "fs.s3a.", "fs.s3n.")
"""How the settings begin that open S3."""
_reached: list[tuple[SparkSession, Path, Mode, dict[str, str]]] = []
"""Which sessions of which installation open S3 by which settings, with the root session of their JVM."""
_confined: set[bool] = set()
"""Whether the sessions of this process are confined; both only where LIVE's reach nothing that others may not."""


def credentials() -> list[str]:
    """Return the variables of the environment that have what sinks need."""
    return [name for name in os.environ if name == WEBHOOK_VARIABLE or name.upper().startswith(SINK_VARIABLES)]


def all_credentials() -> list[str]:
    """Return the variables of the environment that have what sinks, and servers and brokers of feeds, need."""
    others = (name for name in os.environ if name.upper().startswith((API_VARIABLES, TOPIC_VARIABLES)))
    return [*credentials(), *others]


def sink_of(variable: str) -> str:
    """Return the sink whose setting a variable has; nothing where it has those of several."""
    prefix, _, rest = variable.lower().partition("__")
    return rest.partition("__")[0] if prefix == SINK_VARIABLES.lower() else ""


def require_one_reach(settings: Settings, mode: Mode, sinks: Collection[str]) -> None:
    """Refuse a second kind of session in a process.

    Spark decides once a process which JDBC connections there are, and a JVM keeps the environment it was started with.

    Raises:
        EnvironmentRefused: if LIVE's sessions may reach what the others may not, and both are asked for.
    """
    of_live = [name for name in credentials() if sink_of(name) not in sinks]
    opens = session_settings(settings, Mode.LIVE)[JDBC_KEY] != JDBC_PROVIDERS or bool(of_live)
    if mode is Mode.LIVE and not opens:
        return
    confined = mode is not Mode.LIVE
    if (not confined) in _confined:
        raise EnvironmentRefused(
            Problem(
                f"a session of {mode} is asked for in a process that has computed in {'LIVE' if confined else 'another mode'}",
                "where LIVE may reach JDBC or has the credential of a sink, no other mode computes in its process",
                "launch it in a process of its own",
            )
        )
    _confined.add(confined)


def store_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Return those of a session's settings by which it opens S3."""
    return {name: value for name, value in settings.items() if name.startswith(S3)}


def hash_of_store(settings: Mapping[str, str]) -> str:
    """Return the hash of what a session opens S3 by, which a server is told and another one is refused by; nothing of no S3."""
    found = store_of(settings)
    return sha256_of(found) if found else ""


def note_store(root: SparkSession, home: Path, mode: Mode, s3: Mapping[str, str]) -> None:
    """Keep by which settings a session opens S3, for those that come after it in its JVM."""
    _reached.append((root, home, mode, dict(s3)))


def require_one_store(root: SparkSession, home: Path, mode: Mode, s3: Mapping[str, str]) -> None:
    """Refuse a session that opens S3 by other settings than another one of the same JVM.

    Hadoop keeps what it has opened by address and user alone: the second session would be handed the first one's keys. That
    cannot be switched off: an S3A of its own for each look at a file would not be closed by anybody.

    Raises:
        EnvironmentRefused: naming the settings.
    """
    _reached[:] = [one for one in _reached if one[0] is root]
    for _, other_home, other, reached in _reached:
        if reached == s3 or (other_home != home and not (reached and s3)):
            continue
        differ = sorted(name for name in reached.keys() | s3.keys() if reached.get(name) != s3.get(name))
        raise EnvironmentRefused(
            Problem(
                f"a session of {mode} would open S3 by other settings than {other} has in this process: {', '.join(differ)}",
                "a JVM hands each of its sessions what it has opened in S3 before, with the keys of whoever was first",
                "launch it in a process of its own, or give both modes the same settings (`spark`, `spark_by_mode`)",
            )
        )
