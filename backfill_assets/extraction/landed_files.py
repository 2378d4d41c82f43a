"""What lies in a folder, or comes as a file, that a feed is to receive: regular files only, each read once and no further than allowed.

Put here how files are found and what is no file. What is in an archive is `archives`' to say; what a file means, nobody's here.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from manifests.errors import InputRefused, Problem
from resources.files.local_files import kind_of

_LONGEST_PATH = 1_000
_LONGEST_SHOWN = 300
PARTIAL = (".partial", ".part", ".tmp")
"""How names of files end that somebody is still writing, by custom; they are left alone."""


@dataclass(frozen=True)
class Landed:
    """Something that came.

    Attributes:
        path: within the folder or archive that it came in, text for people and records.
        content: its bytes; None where it is no file, more than is allowed, or an archive, which is read member by member.
        size: bytes, as far as it is known.
        modified: when it was changed last, by the folder or the archive, UTC.
        wrong: why it cannot be taken; empty if it can be looked into.
        lies_at: where it lies; None for the member of an archive.
        state: what the file system said of it when it was read; empty where it was not.
    """

    path: str
    content: bytes | None
    size: int | None
    modified: datetime | None
    wrong: str = ""
    lies_at: Path | None = None
    state: tuple[int, ...] = ()


def plain_path(path: str) -> str:
    """Return a path as text that every record and terminal can hold; what is no character is an escape."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return shown if len(shown) <= _LONGEST_PATH else f"{shown[:_LONGEST_SHOWN]}…{shown[-_LONGEST_SHOWN:]}"


def wrong_path(path: str) -> str:
    """Say why a path from elsewhere is none within the folder that it comes to; empty if it is one."""
    parts = PurePosixPath(path).parts
    if path.startswith(("/", "\\")) or (len(path) > 1 and path[1] == ":"):
        return "its path is absolute: a path is one within the folder or archive that it came in"
    if ".." in parts or ".." in path.replace("\\", "/").split("/"):
        return "its path has '..': a path stays in the folder or archive that it came in"
    if not path or plain_path(path) != path:
        return "its path has characters that cannot be shown, or is longer than 1,000"
    return ""


@dataclass(frozen=True)
class Lying:
    """What lies below a folder, as the file system says it: by path its state, and how much was changed too lately."""

    settled: Mapping[str, tuple[int, ...]]
    young: int


def lying_below(root: Path, settled_seconds: float) -> Lying:
    """Say what lies below a folder without opening any of it. Raises `InputRefused` if a folder cannot be listed."""
    at, settled, young = time.time(), {}, 0
    for entry, path in _entries_below(root):
        try:
            facts = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # somebody has taken it away
            continue
        if _is_young(facts, settled_seconds, at):
            young += 1
        else:
            settled[plain_path(path)] = state_of(facts)
    return Lying(settled, young)


def _is_young(facts: os.stat_result, settled_seconds: float, at: float) -> bool:
    """Whether something was changed within so many seconds before an instant: written, or given its name."""
    return settled_seconds > 0 and max(facts.st_mtime, facts.st_ctime) > at - settled_seconds


def files_below(root: Path, most: Callable[[str], int | None], *, settled_seconds: float = 0.0) -> Iterator[Landed]:
    """Yield what lies below a folder, in the order of its paths; links are not followed, and nothing but a file is opened.

    So many bytes are read of a file as `most` says of its path. What was changed within `settled_seconds` is left alone. Raises
    `InputRefused` if a folder cannot be listed.
    """
    at = time.time()
    for entry, path in _entries_below(root):
        if settled_seconds:
            try:
                if _is_young(entry.stat(follow_symlinks=False), settled_seconds, at):
                    continue
            except FileNotFoundError:
                continue
        yield file_at(root / path, path, most(path))


def _entries_below(root: Path) -> Iterator[tuple[os.DirEntry[str], str]]:
    """Yield what lies below a folder and is none itself, with its path, in the order of paths; not what its name says is half written."""
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(root / folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            raise InputRefused(
                Problem(
                    f"{root / folder} cannot be listed: {error.strerror or error}",
                    "what is received is a file, an archive, or a folder that this user can read",
                    "correct the path, or the folder's permissions",
                )
            ) from error
        below = []
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                below.append(path)
            elif not entry.name.endswith(PARTIAL):
                yield entry, path
        folders += reversed(below)


def file_at(place: Path, path: str, most: int | None) -> Landed:
    """Return what lies at a place, under the path that it is recorded by; with None, a file is not read."""
    shown = plain_path(path)
    if wrong := wrong_path(path):
        return Landed(shown, None, None, None, wrong, place)
    try:
        mode = place.lstat().st_mode
        if not stat.S_ISREG(mode):
            return Landed(shown, None, None, None, f"it is {kind_of(mode)}, and no file", place)
        # if a pipe took its place since, nobody waits for its writer
        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            facts = os.fstat(stream.fileno())
            if not stat.S_ISREG(facts.st_mode):
                return Landed(shown, None, None, None, f"it is {kind_of(facts.st_mode)}, and no file", place)
            if most is None:
                return Landed(shown, None, facts.st_size, _changed(facts), "", place, state_of(facts))
            content = stream.read(most + 1)
            after = os.fstat(stream.fileno())
    except OSError as error:
        return Landed(shown, None, None, None, f"it cannot be read: {error.strerror or error}", place)
    modified = _changed(facts)
    if len(content) > most:
        return Landed(shown, None, facts.st_size, modified, too_large(facts.st_size, most), place)
    if (facts.st_size, facts.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or len(content) != facts.st_size:
        return Landed(shown, None, None, modified, "it was written while it was read", place)
    return Landed(shown, content, len(content), modified, "", place, state_of(facts))


def state_of(facts: os.stat_result) -> tuple[int, ...]:
    """Return by what a file is known to be the same still."""
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _changed(facts: os.stat_result) -> datetime:
    return datetime.fromtimestamp(facts.st_mtime_ns // 1000 / 1_000_000, UTC)


def too_large(size: int | None, most: int) -> str:
    """Say that a file has more bytes than its feed allows."""
    return (
        f"it has {'more' if size is None else f'{size:,}'} bytes: at most {most:,} are read (limits.bytes of the feed)"
    )
