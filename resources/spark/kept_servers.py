"""Servers of Spark Connect that an installation keeps, one an execution mode, so that a run need not wait for a JVM.

Put here how one is started, found, held to be well, and ended. What of it lies in the home folder is `server_files`'; what it is
started with is `sessions`' to say and `connected`'s; who uses one, `sessions`'.

A server listens on the loopback interface, and answers those alone who have the token that its file holds, which nobody but the
installation's user reads. It has the environment that it needs and nothing else of whoever starts it. Those who compute on it
hold a lock that the kernel takes from them when they end: a server that somebody uses is not ended by chance.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import distributions
from pathlib import Path
from typing import IO, TYPE_CHECKING

from manifests.canonical import sha256_of
from manifests.errors import EnvironmentRefused, Problem, TransitionRefused
from manifests.model import Mode
from resources import logs, processes
from resources.spark import connected
from resources.spark.server_files import (
    KeptServer,
    Users,
    is_listening,
    locked,
    on_record,
    private,
    properties,
    put_on_record,
    write_private,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_FILE, _LOG, _SETTINGS, _WORK, _USED, _STARTED = "server.json", "log", "settings.conf", "work", "used", "started"
_START_SECONDS, _END_SECONDS = 240.0, 15.0
_LOOK_SECONDS = 0.1
RETRIES = 4
"""How often a call is tried again that a server of this machine does not answer: for some five seconds."""
_PASSED_ON = frozenset(
    [
        *(
            "PATH",
            "HOME",
            "USER",
            "LOGNAME",
            "LANG",
            "LANGUAGE",
            "TMPDIR",
            "JAVA_HOME",
            "PYTHONPATH",
            "LD_LIBRARY_PATH",
        ),
        *("SPARK_CONF_DIR", "SPARK_LOCAL_DIRS", "SPARK_LOCAL_IP", "HADOOP_CONF_DIR", "HADOOP_HOME"),
    ]
)
"""What a server has of the environment of whoever starts it: where things are. No name of a credential is among them."""
_OF_A_LOGIN = frozenset({"PATH", "USER", "LOGNAME", "LANG", "LANGUAGE", "TMPDIR"})
"""What of this is another one in each shell or service, and changes nothing that a server computes."""
_OF_CLIENTS_THAT_ENDED = {"spark.connect.execute.manager.detachedTimeout": "60s"}
"""What a client has asked for that was killed goes on for a minute, and not for five: others compute meanwhile."""
_SAID = 600
_NOT_RUNNING, _OTHERS = "none runs", "it was started with other settings, or other code"
_log = logging.getLogger(__name__)


class Condition(StrEnum):
    """How a server is."""

    RUNNING = "RUNNING"
    SILENT = "SILENT"
    """Its process lives, and it does not answer."""
    ENDED = "ENDED"
    """It was not stopped: it has died, or was killed."""
    STOPPED = "STOPPED"


class Kept:
    """The server of one mode of an installation, running or not."""

    def __init__(self, home: Path, mode: Mode) -> None:
        self.mode, self.home, self.folder = mode, home, home / "spark" / mode.value.lower()
        self._users = Users(self.folder / _USED)

    @property
    def log(self) -> Path:
        """The file of what it says."""
        return self.folder / _LOG

    def known(self) -> KeptServer | None:
        """Return the server that was started last and not stopped, whether it lives or not.

        Raises:
            EnvironmentRefused: if others than this user could have written what is on record.
        """
        return on_record(self.folder / _FILE, self.mode, self.home)

    def condition(self, found: KeptServer | None, seconds: float = connected.ANSWER_SECONDS) -> Condition:
        """Return how a server is: one that does not answer within some seconds is silent.

        Raises:
            EnvironmentRefused: if its process lives, and the packages are missing by which it is asked.
        """
        if found is None:
            return Condition.STOPPED
        if not processes.is_at_work(found.process):
            return Condition.ENDED
        connected.require_client()
        return Condition.RUNNING if _answers(found, seconds) else Condition.SILENT

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Let one process at a time start or end the server."""
        with locked(self.folder / _STARTED):
            yield

    def use(self) -> IO[bytes]:
        """Return what says that this process computes on the server, until it is closed or the process ends.

        While the server is being ended, this waits.

        Raises:
            EnvironmentRefused: if this user may not write into its folder.
        """
        return self._users.joined()

    def is_used(self) -> bool:
        """Return whether a process computes on it."""
        return self._users.there_are()

    def start(self, settings: Mapping[str, str], environment: Mapping[str, str]) -> tuple[KeptServer, bool]:
        """Return the server that was started with settings, and whether this call has started it: if none runs, it is.

        One that runs with others, of other code among them, is ended first, unless somebody computes on it.

        Raises:
            TransitionRefused: if somebody computes on a server that was started with others.
            EnvironmentRefused: if it does not start.
        """
        connected.require_client()
        fits = fitting(self, settings, environment)
        with self._starting():
            found = self.known()
            condition = self.condition(found)
            if found is not None and condition is Condition.RUNNING and found.fits == fits:
                return found, False
            if found is not None and condition in {Condition.RUNNING, Condition.SILENT}:
                self._end_unused(found, _OTHERS if condition is Condition.RUNNING else "it does not answer")
            return self._launched(settings, environment, fits), True

    def stop(self, *, force: bool = False) -> Condition:
        """End the server, and return how it was.

        Raises:
            TransitionRefused: if somebody computes on it, unless `force`.
        """
        if not self.folder.is_dir():
            return Condition.STOPPED
        with self._starting():
            found = self.known()
            try:
                condition = self.condition(found, 1.0)
            except EnvironmentRefused:  # whoever wants it to end need not be able to ask it
                condition = Condition.SILENT
            if found is not None:
                if condition is not Condition.ENDED:
                    self._end_unused(found, "its end would be theirs", force=force)
                (self.folder / _FILE).unlink(missing_ok=True)
        return condition

    def _end_unused(self, found: KeptServer, why: str, *, force: bool = False) -> None:
        """End the server unless somebody computes on it; who would begin to meanwhile waits until it has ended."""
        with self._users.none() as is_unused:
            if is_unused or force:
                self._end(found)
                return
        raise TransitionRefused(
            Problem(
                f"a process computes on the Spark server of {self.mode}: {why}",
                "a server that somebody uses is not ended",
                f"wait for what runs, or stop it (`backfill stop RUN --by NAME`); `backfill spark stop --mode {self.mode} --force`",
            )
        )

    def _end(self, found: KeptServer) -> None:
        for number, seconds in ((signal.SIGTERM, _END_SECONDS), (signal.SIGKILL, _END_SECONDS)):
            if not processes.is_at_work(found.process):
                return
            with suppress(ProcessLookupError):
                os.kill(found.pid, number)
            until = time.monotonic() + seconds
            while time.monotonic() < until and processes.is_at_work(found.process):
                time.sleep(_LOOK_SECONDS)

    def _launched(self, settings: Mapping[str, str], environment: Mapping[str, str], fits: str) -> KeptServer:
        import pyspark  # noqa: PLC0415 - who asks for a state needs none of it

        port, token = _free_port(), secrets.token_urlsafe(32)
        work = self.folder / _WORK
        work.mkdir(exist_ok=True)
        own = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.connect.authenticate.token": token,
            "spark.sql.warehouse.dir": (work / "tables").as_uri(),
        }
        write_private(self.folder / _SETTINGS, properties(_OF_CLIENTS_THAT_ENDED | dict(settings) | own))
        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-submit"), "--class", _CLASS, "--name", f"backfill {self.mode}"]
        command += ["--properties-file", str(self.folder / _SETTINGS)]
        has = passed_on(os.environ) | {"SPARK_HOME": str(home)} | dict(environment)
        if self.log.exists():  # it may say why the one before has died
            self.log.replace(self.log.with_name(f"{_LOG}.before"))
        with private(self.log).open("wb") as log:
            process = subprocess.Popen(
                command, cwd=work, env=has, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        if self.mode is not Mode.LIVE:
            processes.session_gives_way(process.pid)
        found = KeptServer(
            self.mode.value,
            str(self.home.resolve()),
            processes.name_of(process.pid),
            port,
            token,
            fits,
            settings.get("spark.master", ""),
            datetime.now(UTC).isoformat(timespec="seconds"),
        )
        put_on_record(self.folder / _FILE, found)
        try:
            self._wait_for(process, found)
        except BaseException:
            self._end(found)
            (self.folder / _FILE).unlink(missing_ok=True)
            raise
        return found

    def _wait_for(self, process: subprocess.Popen[bytes], found: KeptServer) -> None:
        until = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < until:
            if _answers(found, _START_SECONDS / 3):
                return
            time.sleep(_LOOK_SECONDS)
        ended = "has ended" if process.poll() is not None else f"does not answer in {_START_SECONDS:g} seconds"
        said = " ".join(self.log.read_text(errors="replace").split())[-_SAID:]
        raise EnvironmentRefused(
            Problem(
                f"the Spark server of {self.mode} {ended}: {said}",
                "Java 17 or 21 is installed and the Spark settings are right",
                f"see {self.log}, and `backfill config`",
            )
        )


def fitting(kept: Kept, settings: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Return the hash by which a server is known: what it was started with, for which home, and where that leads its code to."""
    has = passed_on(os.environ)
    said = {
        name: value for name, value in has.items() if value and name not in _OF_A_LOGIN and not name.startswith("LC_")
    }
    if "JAVA_HOME" not in said:
        said["java"] = os.path.realpath(shutil.which("java", path=has.get("PATH")) or "")
    python = {connected.PYTHON_KEY, "PYSPARK_PYTHON"}
    return sha256_of(
        {
            "home": str(kept.home.resolve()),
            "settings": {name: _one_name(value) if name in python else value for name, value in settings.items()},
            "environment": {name: _one_name(value) if name in python else value for name, value in environment.items()},
            "surroundings": said,
            "installed": _installed(),
        }
    )


def _one_name(python: str) -> str:
    """Return the path of Python in its environment, the same for each of its names there."""
    path = Path(shutil.which(python) or python)
    for name in ("python3", "python"):
        other = path.with_name(name)
        if path.exists() and other.exists() and other.samefile(path):
            return str(other)
    return str(path)


def _installed() -> list[str]:
    """Return the distributions that are installed, with their versions."""
    return sorted({f"{one.name}=={one.version}" for one in distributions()})


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a server has of an environment: no credential."""
    return {name: value for name, value in environment.items() if name in _PASSED_ON or name.startswith("LC_")}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _answers(found: KeptServer, seconds: float) -> bool:
    """Return whether a server answers those who have its token, which no other process is shown that listens at its port."""
    if not is_listening(found.pid, found.port):
        return False
    try:
        connected.session_at(found.address, retries=0, seconds=seconds).stop()
    except EnvironmentRefused:
        return False
    return True


_used: dict[Path, list[IO[bytes]]] = {}
"""What says that this process computes on servers, by the folder of each, until it ends."""


def computes_on(kept: Kept, used: IO[bytes]) -> None:
    """Have what says that this process computes on a server be open until the process ends, or has lost the server."""
    _used.setdefault(kept.folder, []).append(used)


def has_lost(kept: Kept) -> None:
    """Have this process not be one of those who compute on a server: its session there is lost."""
    for used in _used.pop(kept.folder, []):
        used.close()


def session_of(
    kept: Kept, settings: Mapping[str, str], environment: Mapping[str, str], *, start: bool
) -> SparkSession | None:
    """Return a session of a server that was started with some settings; None where there is none, which is logged.

    With `start`, one that does not run is started, and one that died is started again.

    Raises:
        EnvironmentRefused: if it is to be started, and does not start; or if the packages of a client are missing, or the folder
            cannot be used.
    """
    why = _NOT_RUNNING
    connected.require_client()
    for started in (False, True):
        used = kept.use()
        found = kept.known()
        if found is not None and processes.is_at_work(found.process):
            if found.fits != fitting(kept, settings, environment):
                why = _OTHERS
            elif not is_listening(found.pid, found.port):
                why = "it does not listen"
            else:
                try:
                    session = connected.session_at(found.address, retries=RETRIES)
                except EnvironmentRefused as refusal:
                    why = refusal.problems[0].what
                else:
                    computes_on(kept, used)
                    return session
        used.close()
        if started or not start:
            break
        try:
            kept.start(settings, environment)
        except TransitionRefused as refusal:
            why = refusal.problems[0].what
            break
    not_used(kept.mode, why)
    return None


def not_used(mode: Mode, why: str) -> None:
    """Log why the server of a mode is not used."""
    text = f"the Spark server of {mode} is not used: {why}; this process starts a JVM of its own"
    logs.event(_log, logging.INFO if why == _NOT_RUNNING else logging.WARNING, "spark_server_unused", text)
