"""Text that people hand in: what counts as text, and how a small file of it is read.

Put here what holds of any such text: a manifest, a policy, a list, an argument. What it means is judged where it is parsed.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from pathlib import Path

from manifests.errors import Problem, Refused

_WHITE = frozenset("\t\n\r")
_NOT_TEXT = frozenset({"Cc", "Cs", "Co"})
"""Unicode categories: controls, halves of surrogate pairs, private use."""
_TURNS_TEXT_ROUND = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Bidirectional controls: with them a reader sees other text than the program."""
TEXT_RULE = "text has no control characters other than tabs and line ends, and none that shows other text than there is"


def not_text(text: str) -> str | None:
    """Return what says which character of a text is none, and where (from 0); None if all of it is text."""
    for position, character in enumerate(text):
        if character.isascii() and character.isprintable():
            continue
        if character in _TURNS_TEXT_ROUND or (character not in _WHITE and unicodedata.category(character) in _NOT_TEXT):
            return f"U+{ord(character):04X} at character {position}"
    return None


def read_text(path: Path, what: str, *, most: int, refusal: type[Refused]) -> str:
    """Read a file of at most `most` bytes of UTF-8, with or without a byte order mark.

    A file that has no end, or that waits for a writer, is not opened.

    Raises:
        Refused: as `refusal`, where it is not a regular file, cannot be read, is too large or is not text.
    """
    where = str(path)
    try:
        found = path.stat()
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            raise refusal(
                Problem("is not a regular file", f"{what} is a file with an end", "write it to a file first", where)
            )
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            raw = stream.read(most + 1)
    except OSError as error:
        raise refusal(
            Problem(f"cannot be read: {error.strerror or error}", f"{what} is a readable file", "check the path", where)
        ) from error
    except ValueError as error:  # a NUL in the path
        raise refusal(
            Problem(f"cannot be read: {error}", f"{what} is a readable file", "check the path", where)
        ) from error
    if len(raw) > most:
        size = max(found.st_size, len(raw))
        raise refusal(Problem(f"has {size:,} bytes", f"{what} has at most {most:,}", "shorten it", where))
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refusal(
            Problem(
                f"is not UTF-8 text ({error.reason} at byte {error.start})", f"{what} is UTF-8", "save it so", where
            )
        ) from error
    text = text.removeprefix("\ufeff")
    if (wrong := not_text(text)) is not None:
        raise refusal(Problem(f"is not text: {wrong}", TEXT_RULE, "remove the character", where))
    return text
