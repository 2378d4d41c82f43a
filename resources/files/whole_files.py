"""Files that a command writes where it is told to: whole or not at all, and never over anything but a file.

Put here what holds of every such file. What is written is the command's.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from manifests.errors import EnvironmentRefused, Problem


def write_whole(file: Path, text: str, *, make_folder: bool = False) -> None:
    """Write a text file in UTF-8 as a whole or not at all, in place of one that is there.

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
        number, partial = tempfile.mkstemp(prefix=f".{file.name[:100]}.", suffix=".partial", dir=file.parent)
        try:
            with os.fdopen(number, "w", encoding="utf-8") as stream:
                stream.write(text)
                os.fchmod(stream.fileno(), 0o644)  # the reader may be another user
            Path(partial).replace(file)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
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
