"""Spark that is not the tests' process: a standalone cluster, and a server of Spark Connect.

Both come with the package `pyspark`; Java is the machine's. Each process has a folder of its own, which is its home and its
working folder, and an environment that has nothing of the tests' but the search path of programs.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from servers import free_port

from real_servers.processes import MissingServerError, end_of_log, ended, java, started, wait_until

HOME = Path(pyspark.__file__).parent
_ENVIRONMENT = {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
_SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def require_spark() -> None:
    """Skip where there is no Java, or no client of Spark Connect.

    Raises:
        MissingServerError: with the package that is missing.
    """
    java()
    try:
        import grpc_status  # noqa: F401 - asked for, not used
    except ImportError as error:
        raise MissingServerError(f"{error.name} is missing (the extra connect: pip install grpcio-status)") from error


def _ready(process: subprocess.Popen[bytes], folder: Path, port: int, what: str) -> None:
    def is_there() -> bool:
        if process.poll() is not None:
            raise MissingServerError(f"{what} has ended: {end_of_log(folder)}")
        return listens(port)

    wait_until(is_there, f"{what} listens", 180.0)


class Cluster:
    """A standalone cluster: a master and some workers of one core each, all of them processes of their own."""

    def __init__(self, folder: Path, workers: int) -> None:
        """Start all of it.

        Raises:
            MissingServerError: if Java is missing, or a process ends.
        """
        java()
        self.folder = folder
        port = free_port()
        self.address = f"spark://127.0.0.1:{port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            said = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
            process = self._start("master", "org.apache.spark.deploy.master.Master", *said)
            _ready(process, folder / "master", port, "the master of Spark")
            for number in range(workers):
                self.start_worker(number, wait=False)
            for number in range(workers):
                self._wait_for(number)
        except BaseException:
            self.close()
            raise

    def start_worker(self, number: int, *, wait: bool = True) -> None:
        """Start a worker, and wait until the master knows it."""
        work = str(self.folder / f"worker-{number}" / "work")
        said = ["--host", "127.0.0.1", "-c", "1", "-m", "1g", "--webui-port", "0", "-d", work, self.address]
        self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *said)
        if wait:
            self._wait_for(number)

    def kill_worker(self, number: int) -> None:
        """Kill a worker and what computes for it, as a machine dies."""
        ended(self._processes[f"worker-{number}"], signal.SIGKILL)
        for pid in self.executors(f"worker-{number}"):
            os.kill(pid, signal.SIGKILL)

    def executors(self, worker: str = "") -> list[int]:
        """Return the numbers of the processes that are executors of a worker, or of any."""
        found = []
        for one in Path("/proc").glob("[0-9]*"):
            try:
                said, where = (one / "cmdline").read_bytes(), (one / "cwd").resolve()
            except OSError:  # it has ended, or is another user's
                continue
            if b"CoarseGrainedExecutorBackend" in said and where.is_relative_to(self.folder / worker):
                found.append(int(one.name))
        return sorted(found)

    def close(self) -> None:
        """End all of it."""
        for process in reversed(self._processes.values()):
            ended(process, signal.SIGTERM, 10.0)

    def _start(self, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        own = self.folder / name
        own.mkdir(parents=True, exist_ok=True)
        (own / "log").unlink(missing_ok=True)
        environment = _ENVIRONMENT | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _SMALL}
        self._processes[name] = started([HOME / "bin" / "spark-class", main, *arguments], own, environment)
        return self._processes[name]

    def _wait_for(self, number: int) -> None:
        log = self.folder / f"worker-{number}" / "log"
        registered = "Successfully registered with master"
        wait_until(lambda: registered in log.read_text(errors="replace"), f"{log} is registered")


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Yield a standalone cluster, for this block."""
    one = Cluster(folder, workers)
    try:
        yield one
    finally:
        one.close()


class ConnectServer:
    """A server of Spark Connect of somebody else; killed, it starts again on the same port."""

    def __init__(
        self, folder: Path, settings: Mapping[str, str], environment: Mapping[str, str], master: str = "local[2]"
    ) -> None:
        """Start it with settings, and an environment.

        Raises:
            MissingServerError: if a package is missing, or it ends.
        """
        require_spark()
        folder.mkdir(parents=True)
        self.folder, self._port = folder, free_port()
        self.address = f"sc://127.0.0.1:{self._port}"
        own = {
            "spark.master": master,
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": _SMALL,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
        }
        self._command: list[str | Path] = [HOME / "bin" / "spark-submit"]
        self._command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        for name, value in (own | dict(settings)).items():
            self._command += ["--conf", f"{name}={value}"]
        self._environment = _ENVIRONMENT | dict(environment)
        self.start()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self.process = started(self._command, self.folder, self._environment)
        try:
            _ready(self.process, self.folder, self._port, "the server of Spark Connect")
        except BaseException:
            self.close()
            raise

    def kill(self) -> None:
        """End it at once, as a crash does."""
        ended(self.process, signal.SIGKILL)

    def close(self) -> None:
        """End it in order."""
        ended(self.process, signal.SIGTERM, 10.0)


@contextmanager
def connect_server(
    folder: Path, settings: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[ConnectServer]:
    """Yield a server that was started with settings, and an environment."""
    server = ConnectServer(folder, settings, environment)
    try:
        yield server
    finally:
        server.close()


def environment_of(home: Path, spark: Mapping[str, str], **settings: str) -> dict[str, str]:
    """Return the environment of a process of an installation: this one's, without the settings of another."""
    import json

    kept = {name: value for name, value in os.environ.items() if not name.startswith("BACKFILL_")}
    own = {f"BACKFILL_{name.upper()}": value for name, value in settings.items()}
    tests = Path(__file__).resolve().parents[1]
    searched = os.pathsep.join(map(str, (tests, tests.parent)))
    return kept | {"BACKFILL_HOME": str(home), "BACKFILL_SPARK": json.dumps(dict(spark)), "PYTHONPATH": searched} | own
