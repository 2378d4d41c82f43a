"""A REST catalog of the tests: Iceberg's own server before a catalog in SQLite, and a proxy before it that fails when it is told to.

`rest_catalog.xml` beside this module names the version; Maven fetches its jars once, and Java compiles `RestCatalogServer.java` each
time it starts. The server keeps nothing in memory: killed, it starts again on the same port with the same tables.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyspark
from servers import free_port

from real_servers.processes import (
    MissingServerError,
    end_of_log,
    ended,
    jars_by_maven,
    java,
    started,
    wait_until,
)
from real_servers.s3 import Store, spark_jars

_POM = Path(__file__).with_name("rest_catalog.xml")
_SERVER = Path(__file__).with_name("RestCatalogServer.java")
_PACKAGE = "org.apache.iceberg:iceberg-core:tests"
_START_SECONDS = 120.0
_PAGE = b"<html><body>Bad Gateway</body></html>"


def jars() -> Path:
    """Return the folder of the server's jars, fetched by Maven if they are not there yet.

    Raises:
        MissingServerError: if they cannot be had, or Java cannot compile the server's start.
    """
    listed = subprocess.run([java(), "--list-modules"], capture_output=True, text=True, check=False)
    if "jdk.compiler" not in listed.stdout:
        raise MissingServerError("a JDK is missing, not only a runtime of Java (Debian: openjdk-17-jdk-headless)")
    return jars_by_maven("rest-catalog", _POM, _PACKAGE)


class RestCatalog:
    """A server with its tables below a folder, or in a bucket of a store, and the proxy before it."""

    def __init__(self, folder: Path, store: Store | None = None, bucket: str = "") -> None:
        """Start both.

        Raises:
            MissingServerError: if jars or Java are missing, or it does not start, with what it said.
        """
        self.folder, self._store = folder, store
        self.warehouse = f"file://{folder}/warehouse" if store is None else f"s3://{bucket}/warehouse"
        settings = {} if store is None else _s3_settings(store)
        self._settings = folder / "hadoop.properties"
        self._settings.touch(0o600)
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        self.proxy = _Proxy(self._port)

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a PyIceberg catalog that is reached through the proxy."""
        store = {} if self._store is None else self._store.properties()
        return {"type": "rest", "uri": self.proxy.address, "warehouse": self.warehouse, **store}

    def start(self) -> None:
        """Start the server, if it does not run.

        Raises:
            MissingServerError: if it ends instead, or takes too long.
        """
        if self._process is not None and self._process.poll() is None:
            return
        hadoop = ":".join(str(one) for one in (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))
        command = [
            java(),
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-cp",
            # first: the package of Iceberg's tests has a class of S3A's, of another version
            ("" if self._store is None else f"{spark_jars()}/*:") + f"{jars()}/*:{hadoop}:{_logging()}",
            str(_SERVER),
            str(self._port),
            str(self.folder / "catalog.db"),
            self.warehouse,
            str(self._settings),
        ]
        self._process = started(command, self.folder)
        try:
            wait_until(self._answers, "the REST catalog answers", _START_SECONDS)
        except (TimeoutError, MissingServerError) as error:
            self.kill()
            raise MissingServerError(f"the REST catalog does not start ({error}): {end_of_log(self.folder)}") from error

    def kill(self) -> None:
        """End the server at once, as a crash does."""
        ended(self._process, signal.SIGKILL)

    def close(self) -> None:
        """End the proxy and the server."""
        self.proxy.close()
        self.kill()

    def _answers(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise MissingServerError("its process ended")
        connection = HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", "/v1/config")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


def _s3_settings(store: Store) -> dict[str, str]:
    """Return Hadoop's settings by which the server writes the metadata of tables into a store."""
    return {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.endpoint": store.endpoint,
        "fs.s3a.endpoint.region": store.properties()["s3.region"],
        "fs.s3a.path.style.access": "true",
        "fs.s3a.access.key": store.access_key,
        "fs.s3a.secret.key": store.secret_key,
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }


def _logging() -> str:
    """Return the jars of PySpark by which a server says what went wrong."""
    wanted = ("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core", "commons-logging")
    found = (Path(pyspark.__file__).parent / "jars").glob("*.jar")
    return ":".join(str(one) for one in found if one.name.startswith(wanted))


@dataclass
class Fault:
    """What the proxy does to the next requests that fit, instead of what it is asked.

    Attributes:
        status: what it answers; 0: it closes the connection; 200: a page that is none of the protocol's answers; -1: what the
            server answers.
        lands: the request reaches the server first, and what it answers is lost.
        method: whose requests fit.
        ends: the requests that fit have a path that ends so.
        holds: and a body that has this in it.
        times: so many requests.
        then: what happens meanwhile: before the request is handed on, or once it has landed.
    """

    status: int
    lands: bool = False
    method: str = "POST"
    ends: str = ""
    holds: bytes = b""
    times: int = 1
    then: Callable[[], object] | None = None


class _Proxy:
    """Hands requests on to the server of a port, but those of `faults` and what `at_random` says; counts what it has failed."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.faults: list[Fault] = []
        self.at_random: Callable[[], Fault | None] = lambda: None
        self.failed = 0
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where clients ask."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def fault_of(self, method: str, path: str, body: bytes) -> Fault | None:
        """Return the fault that a request meets, and count it."""
        with self._lock:
            for fault in self.faults:
                fits = method == fault.method and path.partition("?")[0].endswith(fault.ends) and fault.holds in body
                if fits and fault.times:
                    fault.times -= 1
                    self.failed += 1
                    return fault
            by_chance = self.at_random()
            self.failed += by_chance is not None
        return by_chance

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: _Proxy

    def _handed_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.proxy.fault_of(self.command, self.path, body)
        if fault is not None and not fault.lands:
            _happens(fault)
            if fault.status >= 0:
                self._fail(fault)
                return
            fault = None
        connection = HTTPConnection("127.0.0.1", self.proxy.port, timeout=60)
        try:
            headers = {
                name: value for name, value in self.headers.items() if name.lower() not in {"host", "connection"}
            }
            headers["Accept-Encoding"] = "identity"
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, HTTPException):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        finally:
            connection.close()
        if fault is not None:
            _happens(fault)
            self._fail(fault)
            return
        self._answer(answer.status, content, answer.getheader("Content-Type") or "application/json")

    do_GET = do_HEAD = do_POST = do_DELETE = _handed_on  # noqa: N815 - the library's names

    def _fail(self, fault: Fault) -> None:
        if fault.status == 0:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(fault.status, _PAGE, "text/html")

    def _answer(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _happens(fault: Fault) -> None:
    if fault.then is not None:
        fault.then()


@contextmanager
def rest_catalog(store: Store | None = None, bucket: str = "") -> Iterator[RestCatalog]:
    """Yield a REST catalog of its own, with its tables in a bucket of a store if one is given; it is gone afterwards.

    Raises:
        MissingServerError: if none can be had, with the package that is missing.
    """
    with tempfile.TemporaryDirectory(prefix="rest-catalog-") as folder:
        server = RestCatalog(Path(folder), store, bucket)
        try:
            yield server
        finally:
            server.close()
