"""Files that a command writes where it is told to: whole or not at all, and never over anything but a file.

Put here what holds of every such file. What is written is the command's.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from manifests.errors import EnvironmentRefused, Problem


@contextmanager
def replaced_whole(file: Path, *, make_folder: bool = False) -> Iterator[Path]:
    """Yield the name of an empty file beside `file` for the body to write; it takes its place once the body has ended well.

    Raises:
        EnvironmentRefused: if it cannot be written, or something other than a regular file is there: a device or a pipe
            would be replaced, and nothing would get to what reads it.
    """
    try:
        if file.exists() and not file.is_file():
            raise EnvironmentRefused(
                Problem(f"{file} is not a regular file", "a file is replaced as a whole", "name a file, or a new name")
            )
        if make_folder:
            file.parent.mkdir(parents=True, exist_ok=True)
        # beside it, and without its ending: what reads the folder does not take it for what it looks for
        number, name = tempfile.mkstemp(prefix=f".{file.name[:100]}.", suffix=".partial", dir=file.parent)
        os.close(number)
        partial = Path(name)
        try:
            yield partial
            partial.chmod(0o644)  # the reader may be another user
            partial.replace(file)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise EnvironmentRefused(
            Problem(
                f"{file} cannot be written: {why}",
                "it is a file in a folder that exists and that this user can write",
                "give another --output",
            )
        ) from error


def write_whole(file: Path, text: str, *, make_folder: bool = False) -> None:
    """Write a text file in UTF-8 as a whole or not at all, in place of one that is there.

    Raises:
        EnvironmentRefused: as `replaced_whole` does.
    """
    write_whole_bytes(file, text.encode(), make_folder=make_folder)


def write_whole_bytes(file: Path, content: bytes, *, make_folder: bool = False) -> None:
    """Write a file as a whole or not at all, in place of one that is there.

    Raises:
        EnvironmentRefused: as `replaced_whole` does.
    """
    with replaced_whole(file, make_folder=make_folder) as partial:
        partial.write_bytes(content)
