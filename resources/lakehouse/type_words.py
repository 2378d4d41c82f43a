"""A column's type in words, the same whatever ids a table has given to what is inside it; and back.

Put here the words only; what is compared by them is for those who compare.
"""

from __future__ import annotations

import json
import re
from itertools import count
from typing import Any

from pydantic import TypeAdapter
from pyiceberg.types import IcebergType as _AnyType
from pyiceberg.types import ListType, MapType, NestedField, PrimitiveType, StructType

_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|[^":<>,\s]+')
_WORD = re.compile(r"decimal\(\d+, ?\d+\)|fixed\[\d+\]|[a-z_]+")


def type_words(kind: Any) -> str:
    """Return an Iceberg type as `list<struct<street: string>>`, without the field ids that PyIceberg's own words have."""
    if isinstance(kind, ListType):
        return f"list<{type_words(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{type_words(kind.key_type)}, {type_words(kind.value_type)}>"
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{_quoted(one.name)}: {type_words(one.field_type)}' for one in kind.fields)}>"
    return str(kind)


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else json.dumps(name)


def type_of_words(words: str) -> Any:
    """Return the Iceberg type that `type_words` says; its field ids mean nothing.

    Raises:
        ValueError: if they are no words of a type.
    """
    reader = _Reader(words)
    found = reader.kind()
    if reader.rest:
        raise ValueError(f"{words!r} is no type of a column")
    return found


class _Reader:
    """What is left of the words of a type."""

    def __init__(self, words: str) -> None:
        self.words = self.rest = words
        self._ids = count(1)

    def kind(self) -> _AnyType:
        """Take a type off."""
        word = self._take(_WORD)
        if word not in {"list", "map", "struct"} or not self.rest.startswith("<"):
            return TypeAdapter(PrimitiveType).validate_python(word)
        self._expect("<")
        if word == "list":
            found: _AnyType = ListType(next(self._ids), self.kind(), element_required=False)
        elif word == "map":
            key = self.kind()
            self._expect(", ")
            found = MapType(next(self._ids), key, next(self._ids), self.kind(), value_required=False)
        else:
            fields = [self._field()]
            while self.rest.startswith(", "):
                self._expect(", ")
                fields.append(self._field())
            found = StructType(*fields)
        self._expect(">")
        return found

    def _field(self) -> NestedField:
        name = self._take(_NAME)
        self._expect(": ")
        return NestedField(next(self._ids), json.loads(name) if name[0] == '"' else name, self.kind(), required=False)

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.rest)
        if found is None:
            raise ValueError(f"{self.words!r} is no type of a column")
        self.rest = self.rest[found.end() :]
        return found[0]

    def _expect(self, text: str) -> None:
        if not self.rest.startswith(text):
            raise ValueError(f"{self.words!r} is no type of a column")
        self.rest = self.rest[len(text) :]
