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
from dataclasses import dataclass
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

    wait_until(is_there, f"{what} listens", 60.0)


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """Yield the address of a standalone cluster: a master and some workers of one core each, all of them processes of their own."""
    java()
    port = free_port()
    processes: list[subprocess.Popen[bytes]] = []
    environment = _ENVIRONMENT | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _SMALL}
    command = [HOME / "bin" / "spark-class"]
    try:
        master = folder / "master"
        master.mkdir(parents=True)
        said = [
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            "0",
        ]
        processes.append(started([*command, *said], master, environment))
        _ready(processes[0], master, port, "the master of Spark")
        address = f"spark://127.0.0.1:{port}"
        for number in range(workers):
            own = folder / f"worker-{number}"
            own.mkdir()
            said = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "-c", "1", "-m", "1g"]
            said += ["--webui-port", "0", "-d", str(own / "work"), address]
            processes.append(started([*command, *said], own, environment))
        for number in range(workers):
            log = folder / f"worker-{number}" / "log"
            wait_until(lambda log=log: "Successfully registered with master" in log.read_text(), f"{log} is registered")  # type: ignore[misc]
        yield address
    finally:
        for process in reversed(processes):
            ended(process, signal.SIGTERM, 10.0)


@dataclass(frozen=True)
class ConnectServer:
    """A server of Spark Connect of somebody else."""

    address: str
    process: subprocess.Popen[bytes]
    folder: Path


@contextmanager
def connect_server(
    folder: Path, settings: Mapping[str, str], environment: Mapping[str, str], master: str = "local[2]"
) -> Iterator[ConnectServer]:
    """Yield a server that was started with settings, and an environment."""
    require_spark()
    folder.mkdir(parents=True)
    port = free_port()
    own = {
        "spark.master": master,
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": _SMALL,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    command: list[str | Path] = [HOME / "bin" / "spark-submit"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in (own | dict(settings)).items():
        command += ["--conf", f"{name}={value}"]
    process = started(command, folder, _ENVIRONMENT | dict(environment))
    try:
        _ready(process, folder, port, "the server of Spark Connect")
        yield ConnectServer(f"sc://127.0.0.1:{port}", process, folder)
    finally:
        ended(process, signal.SIGTERM, 10.0)


def environment_of(home: Path, spark: Mapping[str, str], **settings: str) -> dict[str, str]:
    """Return the environment of a process of an installation: this one's, without the settings of another."""
    import json

    kept = {name: value for name, value in os.environ.items() if not name.startswith("BACKFILL_")}
    own = {f"BACKFILL_{name.upper()}": value for name, value in settings.items()}
    tests = Path(__file__).resolve().parents[1]
    searched = os.pathsep.join(map(str, (tests, tests.parent)))
    return kept | {"BACKFILL_HOME": str(home), "BACKFILL_SPARK": json.dumps(dict(spark)), "PYTHONPATH": searched} | own
