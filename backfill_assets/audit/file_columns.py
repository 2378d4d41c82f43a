"""Which column of a Parquet file is a field of its table to every engine that reads it, or why nobody can say.

Put here what field ids, names and a table's name mapping say of a file's columns. What is read from a column is
`rows_by_schema`'s and `unknown_files`'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from io import BytesIO

import pyarrow as arrow
import pyarrow.parquet as pq
from pyiceberg.table.name_mapping import NameMapping

_FIELD_ID = b"PARQUET:field_id"
_HINTS, _NO_HINTS = b"ARROW:schema", b"ARROW:hidden"
_TAIL = 8
"""Bytes behind a footer: its length and the format's name."""


def columns_of(raw: bytes, mapping: NameMapping | None) -> dict[int, arrow.Field]:
    """Return the top-level columns of a Parquet file by field id; of one without ids, as the table maps names to them.

    Names are unique in what is returned, and types are those that Parquet has.

    Raises:
        ValueError: if engines differ about it: an id or a name stands twice, or columns have no ids and no mapping has them.
        ArrowException: if it is no Parquet file.
    """
    columns = list(_schema(raw))
    _require_once("column", (one.name for one in columns))
    ids = [_id(field) for one in columns for field in _all_in(one)]
    if None not in ids:
        found = [(_id(one), one) for one in columns]
    elif any(one is not None for one in ids):
        raise ValueError("only some of its columns have field ids: engines differ about which is which")
    elif mapping is None:
        raise ValueError("its columns have no field ids: engines go by names, or by their order")
    else:
        mapped = {name: one.field_id for one in mapping.root for name in one.names}
        found = [(mapped.get(one.name), one) for one in columns]
        ids = [number for number, _ in found]
    _require_once("field id", (number for number in ids if number is not None))
    return {number: one for number, one in found if number is not None}


def _schema(raw: bytes) -> arrow.Schema:
    """Return the schema in a file's footer, without what Arrow notes beside it: other engines do not go by that."""
    size = int.from_bytes(raw[-_TAIL : -_TAIL // 2], "little")
    footer = raw[-_TAIL - size :].replace(_HINTS, _NO_HINTS)
    return pq.read_schema(BytesIO(footer))


def _require_once(what: str, names: Iterable[object]) -> None:
    twice = sorted(str(name) for name, times in Counter(names).items() if times > 1)
    if twice:
        raise ValueError(f"{what} {', '.join(twice)} stands more than once: engines differ about which they read")


def _all_in(field: arrow.Field) -> Iterator[arrow.Field]:
    """Yield a column and all that is inside it; the entries of a map have no id of their own."""
    yield field
    kind = field.type
    if arrow.types.is_map(kind):
        inside = [kind.key_field, kind.item_field]
    else:
        inside = [kind.field(place) for place in range(kind.num_fields)]
    for one in inside:
        yield from _all_in(one)


def _id(field: arrow.Field) -> int | None:
    number = (field.metadata or {}).get(_FIELD_ID)
    return None if number is None else int(number)
