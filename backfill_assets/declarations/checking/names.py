"""Names in a declaration: the one that was probably meant, and several where one text is given.

Put here what does not depend on what the names are of; columns and tables are looked up in `columns`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from manifests.errors import Problem

_NAME = re.compile(r"[a-z](?:_?[a-z0-9])*")
_LONGEST_NAME = 64
NAME_WORDS = f"lower case letters, digits and single '_', at most {_LONGEST_NAME} of them, a letter first"
"""What a feed of an API, a topic, a sink and a setting of theirs are named by: variables of the environment are."""
_COMPARED = 200
"""Characters of a name that it is compared by: comparing takes the square of them."""


def is_name(value: Any) -> bool:
    """Whether a value is a name as `NAME_WORDS` has it."""
    return isinstance(value, str) and len(value) <= _LONGEST_NAME and _NAME.fullmatch(value) is not None


def texts(value: Any) -> tuple[Any, ...]:
    """Return the names of a field that has several; none of one that is a single text: `_single_texts` says so."""
    return () if isinstance(value, str) else tuple(value)


def names_of(value: Any) -> tuple[str, ...]:
    """Return the names of a field that has several, as far as it is what it is declared to be."""
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, (tuple, list)) else ()


def no_tuple(where: str, what: str, value: str) -> Problem:
    """Return the problem that one text is given where several names are wanted."""
    meant = tuple(part.strip() for part in value.split(",") if part.strip())
    return Problem(
        f"{what} the text {value!r}",
        "several names are a tuple; one name in brackets is no tuple",
        f"write {meant!r}" + (", with the comma" if len(meant) == 1 else ""),
        where,
    )


def did_you_mean(name: Any, names: Iterable[str]) -> str:
    """Return the name that was probably meant, to go on with in a message; nothing where none is close."""
    close = get_close_matches(str(name)[:_COMPARED], list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
