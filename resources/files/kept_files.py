"""Reading files where something else may lie: what is no regular file is named, never waited for, followed or read.

Put here how a file of the evidence is opened and parsed, and how one is made. A folder, a pipe, a socket, a device or a link in
a file's place was put there by somebody, and so was a file that is larger than evidence gets; what that means for a run is said by
whoever wanted the file. In a bucket nothing but objects can lie in a file's place.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

from manifests.errors import EnvironmentRefused, Problem
from resources.files.places import ObjectPlace, Place
from resources.files.s3_objects import TOGETHER

MOST_BYTES = 4 << 30
"""Bytes of the largest file of a bundle, and of the largest record: an adopted run's has all its rows.

A chunk takes up to 1 kB with a file or two, and 0.25 kB for each further file: these are a million chunks of a dozen files.
"""
MOST_OF_A_LINK = 1 << 20
"""Bytes of the largest link: it has hashes, names and an instant, a few hundred bytes."""
_AHEAD = 256
"""How many objects are in memory at a time where many are read."""
_KINDS = (
    (stat.S_ISLNK, "a link to elsewhere"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def not_a_file(path: Place) -> str:
    """Say what lies at a path in the place of a regular file; empty if it is one.

    Raises:
        FileNotFoundError: if nothing lies there.
    """
    if isinstance(path, ObjectPlace):
        if path.is_file():
            return ""
        if path.is_dir():
            return "a folder"
        raise FileNotFoundError(2, "there is no such object", str(path))
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        raise
    except OSError as error:
        return f"something that cannot be looked at ({error.strerror or error})"
    return "" if stat.S_ISREG(mode) else next((said for fits, said in _KINDS if fits(mode)), "a device")


def is_text_name(name: str) -> bool:
    """Whether a name that a file system gives is text: nothing that this project has made is called otherwise."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def open_kept(path: Place, most: int = MOST_BYTES) -> BufferedReader | BytesIO:
    """Open a regular file of at most `most` bytes for reading; nothing else is opened.

    Raises:
        FileNotFoundError: if nothing lies there.
        EnvironmentRefused: if something else does, or it cannot be read, or is larger.
    """
    if isinstance(path, ObjectPlace):
        return BytesIO(path.bucket.read(path.key, most).raw)
    why = not_a_file(path)
    if not why:
        try:
            # if a pipe took its place since, nobody waits for its writer
            stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
        except FileNotFoundError:
            raise
        except OSError as error:
            why = f"cannot be read: {error.strerror or error}"
        else:
            found = os.fstat(stream.fileno())
            is_file = stat.S_ISREG(found.st_mode)
            if is_file and found.st_size <= most:
                return stream
            stream.close()
            why = f"has {found.st_size:,} bytes, and at most {most:,} are read" if is_file else "is no regular file"
    else:
        why = f"is {why}, not a file"
    raise EnvironmentRefused(
        Problem(
            f"{path} {why}",
            "evidence is kept in regular files that this user can read",
            "`backfill verify --all` names everything that is not as it was recorded; find out who has put it there, and "
            "put back the file that belongs there",
        )
    )


def read_kept(path: Place, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises:
        FileNotFoundError: if nothing lies there.
        EnvironmentRefused: if something else does, or it cannot be read, or is larger, or than the memory that is left.
    """
    if isinstance(path, ObjectPlace):
        return path.bucket.read(path.key, most).raw
    with open_kept(path, most) as stream:
        try:
            return stream.read(os.fstat(stream.fileno()).st_size)  # and no further, if it grows meanwhile
        except (OSError, MemoryError) as error:
            why = "it is larger than the memory that is left" if isinstance(error, MemoryError) else error.strerror
            raise EnvironmentRefused(
                Problem(
                    f"{path} cannot be read: {why or error}",
                    "evidence is kept in regular files that this user can read",
                    "look at the disk; restore the file from its backup",
                )
            ) from error


def read_each(paths: Sequence[Place], most: int = MOST_BYTES) -> Iterator[tuple[Place, bytes | Exception]]:
    """Yield the content of each file, in order, or why it cannot be had: objects are asked for together, files when their turn comes."""

    def read(path: Place) -> bytes | Exception:
        try:
            return read_kept(path, most)
        except (FileNotFoundError, EnvironmentRefused) as error:
            return error

    if not any(isinstance(path, ObjectPlace) for path in paths):
        yield from ((path, read(path)) for path in paths)
        return
    with ThreadPoolExecutor(TOGETHER) as pool:
        for start in range(0, len(paths), _AHEAD):
            part = paths[start : start + _AHEAD]
            yield from zip(part, pool.map(read, part), strict=True)


def sha256_of_file(file: Place) -> str:
    """Return the SHA-256 (hex) of a file, a block at a time.

    Raises:
        FileNotFoundError: if nothing lies there.
        EnvironmentRefused: if it is no regular file that can be read.
    """
    if isinstance(file, ObjectPlace):
        return file.bucket.sha256(file.key, MOST_BYTES)
    with open_kept(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_or_kind(file: Place) -> str:
    """Return the SHA-256 (hex) of a file, or what lies there instead of one that can be read."""
    try:
        if isinstance(file, ObjectPlace):
            return sha256_of_file(file)
        return not_a_file(file) or sha256_of_file(file)
    except FileNotFoundError:
        return "nothing"
    except EnvironmentRefused:
        return "a file that cannot be read"


def create(file: Place, raw: bytes, still: Callable[[], object] | None = None) -> bool:
    """Make a file of that content, all of it or none, if none of that name exists; return whether it was made.

    `still` is asked once all is written but the name, and raises if the file may not be made any more.
    """
    if isinstance(file, ObjectPlace):
        return bool(file.bucket.make(file.key, raw, still))
    partial = file.with_name(f".partial-{uuid4().hex}")
    try:
        with partial.open("xb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        partial.chmod(0o444)
        if still is not None:
            still()
        try:
            os.link(partial, file)
        except FileExistsError:
            return False
        sync_folder(file.parent)
        return True
    finally:
        partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hashes_of_files(folder: Place, names: Sequence[str]) -> dict[str, str]:
    """Return what `hash_or_kind` says of each of some files of a folder: of objects they are asked for together."""
    if not isinstance(folder, ObjectPlace):
        return {name: hash_or_kind(folder / name) for name in names}
    with ThreadPoolExecutor(TOGETHER) as pool:
        return dict(zip(names, pool.map(lambda name: hash_or_kind(folder / name), names), strict=True))


def json_of(raw: bytes) -> Any:
    """Return what JSON text says.

    Raises:
        ValueError: if it is no JSON, or nested so deeply, or so large, that it is none of ours.
    """
    try:
        return json.loads(raw)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except MemoryError as error:
        raise ValueError("it says more than the memory that is left can hold") from error


def read_json(path: Place) -> Any:
    """Return what a regular file of JSON text says.

    Raises:
        FileNotFoundError: if nothing lies there.
        EnvironmentRefused: if something else does, or it cannot be read.
        ValueError: if it is no JSON.
    """
    return json_of(read_kept(path))
