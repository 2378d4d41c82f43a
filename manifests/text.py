"""Text that people hand in: what counts as text, and how a small file of it is read.

Put here what holds of any such text: a manifest, a policy, a list, an argument. What it means is judged where it is parsed.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from itertools import groupby
from pathlib import Path

from manifests.errors import Problem, Refused

_WHITE = frozenset("\t\n\r")
_NOT_TEXT = frozenset({"Cc", "Cs", "Co"})
"""Unicode categories: controls, halves of surrogate pairs, private use."""
_TURNS_TEXT_ROUND = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Bidirectional controls: with them a reader sees other text than the program."""
_TURNS_TEXT = _TURNS_TEXT_ROUND | frozenset("\u061c\u200e\u200f")
_OBEYED = _NOT_TEXT | {"Zl", "Zp"}
"""Categories of what a terminal does not show but obeys: with other line ends."""
_NO_NAME = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Categories of what is not seen in a line: with formats, unassigned characters and line ends."""
_IGNORABLE = (
    frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u2d7f\u3164\uffa0"),
    frozenset("\U0001107f\U00013441\U00013442\U00016fe4\U0001d159"),
    frozenset(map(chr, range(0xFE00, 0xFE10))),
    frozenset(map(chr, range(0xE0100, 0xE01F0))),
)
"""Letters and marks that have no form of their own: joiners, fillers, the blank of Braille, selectors of variants."""
_LETTERS_AND_DIGITS = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nd"})
_MARKS = frozenset({"Mn", "Mc"})
_SIGNS = frozenset("\u2019\u2018\u201c\u201d\u2010\u2013\u00b7\u2027\u30fb\u05be\u05f3\u05f4\u0f0b\u3007")
"""What names have beside letters, digits, and the punctuation and signs of ASCII.

Apostrophes, quotes, hyphens, the dots within Catalan, Chinese and Japanese names, the signs of Hebrew ones, what is between the
syllables of Tibetan ones, the Chinese zero.
"""
_ACUTE = {0x00B4: "'"}
"""An accent that stands alone, as keyboards have it for an apostrophe; Unicode makes a space with a mark of it."""
_SAME_SIGNS = str.maketrans(
    {
        **dict.fromkeys("`\u2019\u2018\u02b9\u02bb\u02bc\u02c8\u05f3\ua78c", "'"),
        **dict.fromkeys("\u2010\u2013\u05be", "-"),
        **dict.fromkeys("\u201c\u201d\u05f4", '"'),
        **dict.fromkeys("\u2027\u30fb", "\u00b7"),
        "\u0640": None,
    }
)
"""Signs that a reader takes for one, as one of them; the stroke that only stretches an Arabic word is none."""
_ALPHABETS = {
    **dict.fromkeys(("HIRAGANA", "KATAKANA", "HENTAIGANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC"), "CJK"),
    **dict.fromkeys(("COMBINING", "MODIFIER"), ""),
    "EXTENDED": "ARABIC",
}
"""The alphabet of a character by how its name begins, where that is not its own; "" for what stands in words of any."""
NAME_RULE = (
    "a name is one line of letters, digits, plain spaces and punctuation such as ' - . , @ : / ( ), each word of it of one "
    "alphabet, its digits of one kind"
)
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

    Nothing is allowed but what names are written with: what cannot be seen, or breaks the line, would make two names of one,
    and one of two; so would letters of another alphabet that look like those beside them.
    """
    if (wrong := not_text(text)) is not None:
        return wrong
    follows_letter = False
    for position, character in enumerate(text):
        where = f"U+{ord(character):04X} at character {position}"
        if _is_unseen(character):
            return f"{where} is not seen, or is no plain space"
        for one in _composed(character):
            if unicodedata.category(one) in _MARKS:
                if not follows_letter:
                    return f"{where} is a mark with no letter before it"
            elif not _is_of_names(one):
                return f"{where} is no letter or digit, and no punctuation of names"
            else:
                follows_letter = one.isalpha()
    if text and not same_text(text):
        return "it has no letter, digit or sign that tells it from another"
    return _mixed(_composed(text))


def _is_of_names(character: str) -> bool:
    return character.isascii() or character in _SIGNS or unicodedata.category(character) in _LETTERS_AND_DIGITS


def _composed(text: str) -> str:
    """Return a text in Unicode's form NFKC, with an apostrophe for an accent that stands alone."""
    return unicodedata.normalize("NFKC", text.translate(_ACUTE))


def _mixed(name: str) -> str | None:
    """Return what says which word of a name has letters of several alphabets, or that its digits are of several kinds."""
    for in_word, characters in groupby(name, lambda one: one == "_" or unicodedata.category(one)[0] in "LMN"):
        word = "".join(characters)
        alphabets = {_alphabet(one) for one in word} - {""} if in_word else set()
        if len(alphabets) > 1:
            return f"'{word}' mixes letters of {' and '.join(sorted(alphabets))}"
    if len({ord(one) - unicodedata.decimal(one) for one in name if one.isdecimal()}) > 1:
        return f"'{name}' mixes digits of several kinds"
    return None


def _alphabet(character: str) -> str:
    """Return what a letter, mark or digit is of, "" for what stands beside letters of any: ASCII's digits, accents."""
    if character.isascii():
        return "LATIN" if character.isalpha() else ""
    first = unicodedata.name(character, "OTHER").replace("-", " ").partition(" ")[0]
    return _ALPHABETS.get(first, first)


def _is_unseen(character: str) -> bool:
    category = unicodedata.category(character)
    return (
        category in _NO_NAME or (category == "Zs" and character != " ") or any(character in one for one in _IGNORABLE)
    )


def words_of(error: BaseException) -> str:
    """Return what an error says of itself, also where its own words cannot be made; halves of characters are escaped."""
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except (Exception, SystemExit) as trouble:  # noqa: BLE001 - whoever wrote the error wrote its words
        return f"its own words raise {type(trouble).__name__}"


def same_text(text: str) -> str:
    """Return what the spellings of a name have in common: width, composition, case, signs, space around and between its words."""
    folded = _composed(text).casefold()
    return seen(unicodedata.normalize("NFKC", folded)).translate(_SAME_SIGNS)


def seen(text: str) -> str:
    """Return what a reader sees of a text in one line: without what has no form, and one space between its words."""
    return " ".join("".join(one for one in text if one.isspace() or not _is_unseen(one)).split())


def visible(text: str) -> str:
    """Return text in one line, with what does not show as itself written as an escape."""
    return "".join(
        one if one.isprintable() and not _is_unseen(one) else one.encode("unicode_escape").decode() for one in text
    )


def visible_lines(text: str) -> str:
    """Return text with what a terminal would obey written as an escape: controls, but for line ends and tabs, and turned text."""
    return "".join(one.encode("unicode_escape").decode() if _is_obeyed(one) else one for one in text)


def _is_obeyed(character: str) -> bool:
    return character not in "\n\t" and (character in _TURNS_TEXT or unicodedata.category(character) in _OBEYED)


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
