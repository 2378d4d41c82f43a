"""Sail, a second engine that speaks Spark Connect: a server of this process alone, and a session of it.

Put here how the server is started, and what its session is given. What may be asked of it, and in which words, is `sail_requests`';
what is made of what it computes, the audit's, which alone may have it: nothing that is published, and no gate, is computed with it.

Sail asks for no token. Its server listens on the loopback interface and lives as long as the command that has started it:
meanwhile whoever may open a port of this machine can have it compute, as this user and without a credential.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from manifests.errors import EnvironmentRefused, Problem
from manifests.model import Mode
from resources import processes
from resources.lakehouse.facade import local_path
from resources.settings import Settings
from resources.spark import connected, one_reach, pyspark_private, sail_server
from resources.spark.engines import OtherEngine, has_engine
from resources.spark.kept_servers import passed_on
from resources.spark.mode_settings import MODE_KEY, session_settings
from resources.spark.sessions import ModeSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "Sail"
_START_SECONDS, _END_SECONDS = 240.0, 15.0
_RETRIES = 2
"""How often a call is tried again: a server of this machine that does not answer at once has ended."""
_SAID = 600
_CHECKPOINTS = "SAIL_EXECUTION__CHECKPOINT__PATH"
_EXTRA = "pip install 'backfill-assets[sail]'"
_OF_SAIL = (
    "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled",
    "spark.sql.shuffle.partitions",
    "spark.sql.timeType.enabled",
)
"""Settings of a mode that say what is computed, or over how many tasks it is spread; others are of Spark's files and its JVM."""


def require_installed() -> None:
    """Refuse an installation without Sail.

    Raises:
        EnvironmentRefused: naming the extra.
    """
    connected.require_client()
    if find_spec("pysail") is None:
        raise EnvironmentRefused(
            Problem(
                "Sail is not installed: there is no package pysail", "a second engine is a package of its own", _EXTRA
            )
        )


class Sail(ModeSpark):
    """One session of a Sail server, whatever mode is asked for: it is confined as none of Spark's has to be."""

    def __init__(self, settings: Settings, session: SparkSession) -> None:
        super().__init__(settings)
        self._only = session

    def session(self, mode: Mode) -> SparkSession:
        """Return the session."""
        self._sessions[mode] = self._only
        pyspark_private.make_default(self._only)
        return self._only


@contextmanager
def serving(
    settings: Settings, mode: Mode, folder: str, *, modules: Sequence[str], code: Callable[[], str]
) -> Iterator[tuple[Sail, OtherEngine]]:
    """Yield a session of a server that is there meanwhile, and what engine it is of.

    Args:
        settings: those of the installation.
        mode: the settings of this mode say what is computed.
        folder: below it files may be read and written, and nowhere else.
        modules: what the server's Python has imported when it begins.
        code: says which code the server's Python is to be.

    Raises:
        EnvironmentRefused: if Sail is not installed, does not start, or has other code; or if this process has computed in a JVM.
    """
    require_installed()
    connected.require_kind(mode, connected=True)
    one_reach.require_one_reach(settings, Mode.REPLAY, ())
    for name in one_reach.all_credentials():  # transforms run in this process, and LIVE's computes nothing here
        del os.environ[name]
    said = code()
    kept = {_CHECKPOINTS: f"{Path(local_path(folder)).as_uri()}/checkpoints"}  # Sail has none in memory
    with _running(connected.environment(said, modules) | kept) as (port, version):
        address = f"sc://127.0.0.1:{port}"
        session = connected.session_at(address, retries=_RETRIES, requests=_requests(folder))
        try:
            engine = OtherEngine(NAME, version)
            has_engine(session, engine)
            wanted = session_settings(settings, mode)
            own = {name: wanted[name] for name in _OF_SAIL if name in wanted} | {MODE_KEY: mode.value}
            pyspark_private.put_all(session, own | {"spark.default.parallelism": str(len(os.sched_getaffinity(0)))})
            connected.require_server(session, address, said, {})
            connected.of_this_process(session)
            yield Sail(settings, session), engine
        finally:
            connected.give_back(session)


def _requests(folder: str) -> object:
    from resources.spark.sail_requests import SailRequests  # noqa: PLC0415 - without the extra there is no gRPC

    return SailRequests(folder)


@contextmanager
def _running(environment: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Run a server meanwhile; yield its port and Sail's version."""
    has = passed_on(os.environ) | dict(environment) | {"PYTHONSAFEPATH": "1", "RUST_LOG": "warn"}
    with tempfile.TemporaryDirectory(prefix="backfill-sail-") as work:
        log = Path(work) / "log"
        with log.open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", sail_server.__name__],
                cwd=work,
                env=has,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,
            )
        processes.session_gives_way(process.pid)
        try:
            yield _answer_of(process, log)
        finally:
            process.kill()  # it keeps nothing
            process.wait(_END_SECONDS)


def _answer_of(process: subprocess.Popen[bytes], log: Path) -> tuple[int, str]:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
    line = process.stdout.readline() if ready else b""
    if not line:
        ended = "does not answer" if process.poll() is None else "has ended"
        said = " ".join(log.read_text(errors="replace").split())[-_SAID:]
        raise EnvironmentRefused(
            Problem(
                f"the server of Sail {ended}: {said or 'it has said nothing'}",
                f"it serves within {_START_SECONDS:g} seconds",
                f"install it anew ({_EXTRA}), or reproduce the run on Spark, without --engine",
            )
        )
    answer = json.loads(line)
    return int(answer["port"]), str(answer["version"])
