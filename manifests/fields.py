"""What the fields of a manifest and of a policy are made of: the part that knows its keys, names, days, numbers.

Put here a type that several fields have. What a field means is `model`'s or `policy`'s.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)
from pydantic.alias_generators import to_camel

from manifests.chunks import EVER

_TABLE = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
EARLIEST, LATEST = EVER


class Part(BaseModel):
    """A mapping that knows its keys, cannot be changed, and leaves out of its text what came later and has its default."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=False,
        validate_by_alias=True,
        str_strip_whitespace=True,
        defer_build=True,  # what checks a part is made when the first is read: most commands read few kinds of them
    )
    _later: ClassVar[frozenset[str]] = frozenset()
    """Fields that came after the first manifests were hashed: where they have their default they are not in the text."""

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        kept: dict[str, Any] = handler(self)
        for name in self._later:
            if getattr(self, name) == type(self).model_fields[name].get_default(call_default_factory=True):
                kept.pop(name, None)
                kept.pop(to_camel(name), None)
        return kept


def _table_name(value: Any) -> Any:
    if isinstance(value, str) and not _TABLE.fullmatch(value):
        raise ValueError("a table is named <namespace>.<table>, lower case letters, digits and '_'")
    return value


def _iso_date(value: Any) -> Any:
    # YAML turns 2012-01-01 into a date by itself and 2012-01-01T10:00 into an instant; numbers are never days.
    if isinstance(value, date) and type(value) is date:
        return value
    if isinstance(value, str) and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        return value
    raise ValueError("a day is written YYYY-MM-DD")


def _in_reach(value: date) -> date:
    if not EARLIEST <= value <= LATEST:
        raise ValueError(f"a day lies between {EARLIEST} and {LATEST}, so that warm-up and time zones have room")
    return value


NAME_PATTERN = r"^[a-z][a-z0-9_]{0,63}$"
NAME_WORDS = "lower case letters, digits and '_', at most 64 of them, a letter first"
TableName = Annotated[
    str,
    BeforeValidator(_table_name),
    Field(description="a table is named <namespace>.<table>, lower case letters, digits and '_'"),
]
Day = Annotated[
    date, BeforeValidator(_iso_date), AfterValidator(_in_reach), Field(description="a day is written YYYY-MM-DD")
]
VERSION_PATTERN = r"^[0-9A-Za-z][0-9A-Za-z._+-]{0,63}$"
VERSION_WORDS = "letters, digits and . _ + -, at most 64 of them, a letter or digit first"
Version = Annotated[str, Field(pattern=VERSION_PATTERN, description=f"a version is text of {VERSION_WORDS}")]
PartName = Annotated[
    str,
    Field(
        pattern=r"^([0-9A-Za-z][0-9A-Za-z._-]{0,63}|_null)$",
        description="a value, a range like 1000-to-2000, or a bucket like b03of16, is text of letters, digits and . _ -, in quotes where YAML takes it for "
        "something else, at most 64 of them, a letter or digit first; the rows without a value are _null",
    ),
]
"""What the chunks of a table are divided by beside time."""
ChunkKey = Annotated[
    str,
    Field(
        pattern=r"^([0-9]{4}(-W?[0-9]{2}(-[0-9]{2}(T[0-9]{2})?)?)?(~[A-Za-z0-9._-]{1,64})?|~?[A-Za-z0-9_][A-Za-z0-9._-]{0,63})$",
        description="a chunk's key: 2012-03, 2012-03-31, 2012-03-31T05, or 2012-03~CA; of a table without time CA",
    ),
]
Name = Annotated[str, Field(pattern=NAME_PATTERN, description=f"a name is text of {NAME_WORDS}")]
SnapshotId = Annotated[
    int,
    Field(
        gt=0, lt=2**63, strict=True, description="a snapshot is named by its id, a whole number above 0 without quotes"
    ),
]


MOST_DAYS = 36_500
"""Days that anything may go back by: a hundred years."""


def whole_number(least: int, most: int, meant: str) -> Any:
    """Return the declaration of a whole number between two bounds, with what it means."""
    words = f"{meant}: a whole number from {least:,} to {most:,}, without quotes"
    return Field(ge=least, le=most, strict=True, description=words)
