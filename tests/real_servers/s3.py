"""S3-compatible servers of the tests: moto, which keeps everything in memory, and the Versity gateway, which keeps it on disk.

`moto.txt` names the packages of moto's environment by hash; the gateway is built by Go from its module, in the version below, once.
Both listen on a free port of the loopback interface; `Store.catalog()` has what a catalog says of them. `s3.xml` has what Spark
needs besides (`spark_jars`): Hadoop's S3A in the version of the Hadoop that is bundled with the locked PySpark, the modules of the
AWS SDK that it uses (the bundle that Hadoop names has 600 MB) and the binding of Spark to its committers.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as arrow
import pyarrow.fs as pafs
from servers import free_port

from real_servers.processes import (
    MissingServerError,
    end_of_log,
    ended,
    fetch_by,
    fetched,
    jars_by_maven,
    python_of,
    started,
    wait_until,
)

_REQUIREMENTS = Path(__file__).with_name("moto.txt")
_POM = Path(__file__).with_name("s3.xml")
_GATEWAY = "github.com/versity/versitygw"
_GATEWAY_VERSION = "v1.8.0"
_START_SECONDS = 60.0
_REGION = "us-east-1"


def moto_environment() -> Path:
    """Return the Python of moto's environment, made if it is not there yet.

    Raises:
        MissingServerError: if it cannot be had.
    """
    return python_of("moto", _REQUIREMENTS, "moto")


def gateway() -> Path:
    """Return the Versity gateway, built by Go if it is not there yet.

    Raises:
        MissingServerError: if it cannot be had.
    """

    def fetch(folder: Path) -> None:
        go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
        if go is None:
            raise MissingServerError(f"Go is missing (Debian: golang), which builds {_GATEWAY}")
        wanted = f"{_GATEWAY}/cmd/versitygw@{_GATEWAY_VERSION}"
        env = os.environ | {"GOBIN": str(folder), "GOFLAGS": "-modcacherw", "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
        fetch_by([go, "install", "-trimpath", wanted], f"{_GATEWAY} {_GATEWAY_VERSION} (Go)", env)

    return fetched(f"versitygw-{_GATEWAY_VERSION}", fetch) / "versitygw"


def spark_jars() -> Path:
    """Return the folder of the jars with which Spark reaches S3, fetched by Maven if they are not there yet.

    Raises:
        MissingServerError: if they cannot be had.
    """
    return jars_by_maven("spark-s3", _POM, "org.apache.hadoop:hadoop-aws")


class Store:
    """A server on a port, with its data in a folder if it keeps any; stopped or killed, it starts again where it was."""

    def __init__(self, folder: Path, command: Sequence[str | Path], environment: dict[str, str], port: int) -> None:
        """Start the server, and wait until it answers.

        Raises:
            MissingServerError: if it does not start, with what it said.
        """
        self.folder, self._command, self._environment, self._port = folder, command, environment, port
        self.access_key, self.secret_key = environment["ROOT_ACCESS_KEY_ID"], environment["ROOT_SECRET_ACCESS_KEY"]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def endpoint(self) -> str:
        """What clients connect to."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def filesystem(self) -> pafs.FileSystem:
        """A client of the server, by its own keys."""
        return pafs.S3FileSystem(
            access_key=self.access_key,
            secret_key=self.secret_key,
            endpoint_override=self.endpoint,
            region=_REGION,
            allow_bucket_creation=True,
        )

    def properties(self) -> dict[str, str]:
        """Return what a PyIceberg catalog says of the server."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
            "s3.region": _REGION,
        }

    def bucket(self, name: str) -> str:
        """Create a bucket and return its name."""
        self.filesystem.create_dir(name)
        return name

    def objects(self, place: str) -> list[str]:
        """Return the keys below a place, its bucket in front; those that stand for a folder are left out."""
        found = self.filesystem.get_file_info(pafs.FileSelector(place, recursive=True, allow_not_found=True))
        return sorted(one.path for one in found if one.is_file)

    def start(self) -> None:
        """Start the server, and wait until it answers.

        Raises:
            MissingServerError: if it ends instead, or takes too long.
        """
        self._process = started(self._command, self.folder, self._environment)
        try:
            wait_until(self._answers, "an S3 server that starts", _START_SECONDS, every=0.1)
        except (TimeoutError, MissingServerError) as error:
            self.kill()
            raise MissingServerError(f"the S3 server does not start ({error}): {end_of_log(self.folder)}") from error

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise MissingServerError("its process ended")
        try:
            self.filesystem.get_file_info(pafs.FileSelector("", recursive=False))
        except (OSError, arrow.ArrowException):  # not yet
            return False
        return True

    def stop(self) -> None:
        """Let the server end in order."""
        ended(self._process, signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once, as `kill -9` does."""
        ended(self._process, signal.SIGKILL)


@contextmanager
def moto() -> Iterator[Store]:
    """Yield a moto server, for this block.

    Raises:
        MissingServerError: if it cannot be had, with the package that is missing.
    """
    python, port = moto_environment(), free_port()
    command = [python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with tempfile.TemporaryDirectory(prefix="backfill-moto-") as folder:
        store = Store(Path(folder), command, _keys(), port)
        try:
            yield store
        finally:
            store.kill()


@contextmanager
def store_on_disk() -> Iterator[Store]:
    """Yield a Versity gateway to a folder, for this block.

    Raises:
        MissingServerError: if it cannot be had, with the package that is missing.
    """
    binary, port = gateway(), free_port()
    with tempfile.TemporaryDirectory(prefix="backfill-versitygw-") as folder:
        data, beside = Path(folder, "data"), Path(folder, "attributes")
        data.mkdir()
        beside.mkdir()
        # what it knows of an object lies beside it: not every file system has attributes
        command = [binary, "--port", f"127.0.0.1:{port}", "posix", "--sidecar", str(beside), str(data)]
        store = Store(Path(folder), command, _keys(), port)
        try:
            yield store
        finally:
            store.kill()


def _keys() -> dict[str, str]:
    return {
        "ROOT_ACCESS_KEY_ID": f"tests{secrets.token_hex(6)}",
        "ROOT_SECRET_ACCESS_KEY": f"secret-{secrets.token_hex(16)}",
    }
