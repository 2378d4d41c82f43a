"""Text that people hand in: what counts as text, and how a small file of it is read.

Put here what holds of any such text: a manifest, a policy, a list, an argument. What it means is judged where it is parsed.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from pathlib import Path

from manifests.errors import Problem, Refused

_WHITE = frozenset("\t\n\r")
_NOT_TEXT = frozenset({"Cc", "Cs", "Co"})
"""Unicode categories: controls, halves of surrogate pairs, private use."""
_TURNS_TEXT_ROUND = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Bidirectional controls: with them a reader sees other text than the program."""
_NO_NAME = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Categories of what is not seen in a line: with formats, unassigned characters and line ends."""
_IGNORABLE = (
    frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"),
    frozenset(map(chr, range(0xFE00, 0xFE10))),
    frozenset(map(chr, range(0xE0100, 0xE01F0))),
)
"""Letters and marks that have no form of their own: joiners, fillers, the blank of Braille, selectors of variants."""
_ALIKE = frozenset({"LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "COPTIC", "CHEROKEE", "LISU"})
"""Alphabets whose letters look like each other's, as the names of their characters begin."""
_WORDS = re.compile(r"\w+")
NAME_RULE = "a name is one line of characters that are seen, each word of it of one alphabet"
TEXT_RULE = "text has no control characters other than tabs and line ends, and none that shows other text than there is"


def not_text(text: str) -> str | None:
    """Return what says which character of a text is none, and where (from 0); None if all of it is text."""
    for position, character in enumerate(text):
        if character.isascii() and character.isprintable():
            continue
        if character in _TURNS_TEXT_ROUND or (character not in _WHITE and unicodedata.category(character) in _NOT_TEXT):
            return f"U+{ord(character):04X} at character {position}"
    return None


def not_a_name(text: str) -> str | None:
    """Return what says why a text is no name that a reader can tell from another; None if it is one.

    What cannot be seen, or breaks the line, would make two names of one, and one of two; so would letters of another alphabet
    that look like those beside them.
    """
    if (wrong := not_text(text)) is not None:
        return wrong
    for position, character in enumerate(text):
        if not (character.isascii() and character.isprintable()) and _is_unseen(character):
            return f"U+{ord(character):04X} at character {position} is not seen, or is no plain space"
    for word in _WORDS.findall(unicodedata.normalize("NFKC", text)):
        alphabets = {unicodedata.name(letter, "").partition(" ")[0] for letter in word} & _ALIKE
        if len(alphabets) > 1:
            return f"'{word}' mixes letters of {' and '.join(sorted(alphabets))}"
    return None


def _is_unseen(character: str) -> bool:
    category = unicodedata.category(character)
    return (
        category in _NO_NAME or (category == "Zs" and character != " ") or any(character in one for one in _IGNORABLE)
    )


def words_of(error: BaseException) -> str:
    """Return what an error says of itself, also where its own words cannot be made."""
    try:
        return str(error)
    except Exception as trouble:  # noqa: BLE001 - whoever wrote the error wrote its words
        return f"its own words raise {type(trouble).__name__}"


def same_text(text: str) -> str:
    """Return what the spellings of a name have in common: width, composition, case, space around and between its words."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    seen = (one for one in unicodedata.normalize("NFKC", folded) if one.isspace() or not _is_unseen(one))
    return " ".join("".join(seen).split())


def visible(text: str) -> str:
    """Return text in one line, with what does not show as itself written as an escape."""
    return "".join(
        one if one.isprintable() and not _is_unseen(one) else one.encode("unicode_escape").decode() for one in text
    )


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
