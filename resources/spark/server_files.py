"""What lies in the home folder of a server that is kept: its record, its settings, and locks; nobody but its user reads them.

Put here how these files are written and read, and what is believed of a record. How a server is started, asked and ended is
`kept_servers`'.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from manifests.errors import EnvironmentRefused, Problem
from manifests.model import Mode

_LAST_PORT = 65535
_LISTENS = "0A"
"""How Linux says the state of a socket that listens."""


@dataclass(frozen=True)
class KeptServer:
    """A server of a mode, as its file has it.

    Attributes:
        home: the home folder that it was started for, without links.
        process: its process, as `processes.name_of` names one.
        fits: the hash of what it was started with, the code of its workers included.
    """

    mode: str
    home: str
    process: str
    port: int
    token: str
    fits: str
    master: str
    started_at: str

    @property
    def pid(self) -> int:
        """The number of its process."""
        return int(self.process.rsplit("/", 2)[1])

    @property
    def address(self) -> str:
        """Where it answers, with its token: PySpark sends one without TLS to `localhost` only."""
        return f"sc://localhost:{self.port}/;token={self.token}"


def on_record(path: Path, mode: Mode, home: Path) -> KeptServer | None:
    """Return the server of a mode and a home that a file is the record of.

    None where there is none, or it is of other code, of another home that was copied, or nothing that a server was given.

    Raises:
        EnvironmentRefused: if others than this user could have written it: who is believed gets keys, or is killed.
    """
    try:
        for one in (path.parent, path):
            _require_own(one)
        said = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    fields = {field.name: int if field.name == "port" else str for field in dataclasses.fields(KeptServer)}
    if not isinstance(said, dict) or said.keys() != fields.keys() | {"pid"}:
        return None
    number = said.pop("pid")
    if any(type(said[name]) is not kind for name, kind in fields.items()):
        return None
    named = said["process"].split("/")
    is_process = len(named) > 2 and named[-2].isdecimal() and named[-2].isascii() and int(named[-2]) > 1  # noqa: PLR2004 - 1 starts all others
    found = KeptServer(**said)
    if not is_process or number != found.pid or not 0 < found.port <= _LAST_PORT:
        return None
    return found if (found.mode, found.home) == (mode.value, str(home.resolve())) else None


def _require_own(path: Path) -> None:
    has = path.stat()
    if has.st_uid == os.geteuid() and not has.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    is_own = has.st_uid == os.geteuid()
    raise EnvironmentRefused(
        Problem(
            f"{path}: others can write to it" if is_own else f"{path} is another user's",
            "what is on record of a Spark server that is kept is its user's alone: by it a process is ended, and gets keys",
            f"chmod go-w {path}" if is_own else "have a home folder for each user, or let one user compute",
        )
    )


def put_on_record(path: Path, server: KeptServer) -> None:
    """Write the record of a server."""
    write_private(path, json.dumps(dataclasses.asdict(server) | {"pid": server.pid}, indent=2) + "\n")


def properties(settings: Mapping[str, str]) -> str:
    """Return settings of Spark as Java's properties, in which some characters have a meaning."""
    escaped = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"})
    in_name = escaped | str.maketrans({"=": "\\=", ":": "\\:", " ": "\\ ", "#": "\\#", "!": "\\!"})
    lines = []
    for name, value in sorted(settings.items()):
        text = value.translate(escaped)
        text = f"\\{text}" if text.startswith(" ") else text
        lines.append(f"{name.translate(in_name)}={text}\n")
    return "".join(lines)


def write_private(path: Path, text: str) -> None:
    """Write a file that nobody but its owner reads, whole or not at all."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with private(unfinished).open("w", encoding="utf-8") as file:
        file.write(text)
    unfinished.replace(path)


def private(path: Path) -> Path:
    """Make a file that nobody but its owner reads, before anything is in it."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    return path


def opened(path: Path) -> IO[bytes]:
    """Return a file to lock, which is made where there is none.

    Raises:
        EnvironmentRefused: if this user may not.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as error:
        raise EnvironmentRefused(
            Problem(
                f"the folder {path.parent} cannot be used: {error.strerror}",
                "who computes on a Spark server that is kept writes into its folder, which is its user's alone",
                'let the user who started the server compute, or set `spark_server = "never"`',
            )
        ) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock of a file meanwhile, which the kernel takes from a process that ends."""
    with opened(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Users:
    """Who computes on a server: each holds a lock of a file together with the others, and who ends the server holds it alone.

    The lock is asked for by trying to hold it alone for a moment. So one at a time tries, or they would see each other.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._trying = path, path.with_name(f"{path.name}.asked")

    def joined(self) -> IO[bytes]:
        """Return what says that this process is one of them, until it is closed; while the server is being ended this waits."""
        file = opened(self._path)
        fcntl.flock(file, fcntl.LOCK_SH)
        return file

    def there_are(self) -> bool:
        """Return whether there is one."""
        if not os.access(self._path, os.W_OK):
            return False
        with locked(self._trying), opened(self._path) as file:
            return not _is_held_alone(file)

    @contextmanager
    def none(self) -> Iterator[bool]:
        """Yield whether there is none, and let there be none meanwhile."""
        with opened(self._path) as file:
            with locked(self._trying):
                is_held = _is_held_alone(file)
            yield is_held


def _is_held_alone(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_listening(pid: int, port: int) -> bool:
    """Return whether a process of this user listens at a port; where the system has no /proc, whether any does."""
    sockets = Path(f"/proc/{pid}/net/tcp")
    if not Path("/proc/self/net/tcp").exists():
        with socket.socket() as asked:
            asked.settimeout(1.0)
            return asked.connect_ex(("127.0.0.1", port)) == 0
    found = set()
    with suppress(OSError):  # it has ended meanwhile, or the system has no IPv6
        for file in (sockets, sockets.with_name("tcp6")):
            rows = [line.split() for line in file.read_text().splitlines()[1:]]
            found |= {f"socket:[{row[9]}]" for row in rows if row[3] == _LISTENS and row[1].endswith(f":{port:04X}")}
    with suppress(OSError):
        for opened_file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if str(opened_file.readlink()) in found:
                    return True
    return False
