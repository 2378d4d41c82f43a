"""A key of a table as people write it, read as the values that its rows have.

Put here how a text becomes a value of a column's type. What is looked up for a key is `audit.explain`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

import pandera.polars as pa
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.declarations.target import TargetTable
from manifests.errors import InputRefused, Problem


def parse_key(target: TargetTable, texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of a key written as `column=value`: one text of several with commas, or a text each.

    Raises:
        InputRefused: with everything that is wrong with it.
    """
    parts = re.split(r",(?=\w+=)", texts[0]) if len(texts) == 1 else list(texts)
    given = [tuple(part.strip().split("=", 1)) for part in parts]
    wanted = f"the key of {target.name} is {', '.join(target.key)}"
    fix = f"give --key {','.join(f'{name}=…' for name in target.key)}"
    problems = [Problem(f"'{pair[0]}' is not column=value", wanted, fix) for pair in given if len(pair) == 1]
    pairs = [(pair[0], pair[1]) for pair in given if len(pair) == 2]  # noqa: PLR2004
    names = [name for name, _ in pairs]
    problems += [Problem(f"{name} is not in the key", wanted, fix) for name in names if name not in target.key]
    problems += [Problem(f"{name} is given twice", wanted, fix) for name in {*names} if names.count(name) > 1]
    missing = [name for name in target.key if name not in names]
    if missing and not problems:
        problems.append(Problem(f"{', '.join(missing)} is not given", wanted, fix))
    kinds = {one.name: one.field_type for one in iceberg_schema(target.model).fields}
    key = {}
    for name, text in pairs:
        if name not in kinds or name not in target.key:
            continue
        try:
            key[name] = _value(kinds[name], text)
        except (ValueError, InvalidOperation):
            problems.append(Problem(f"{name}={text} is not a {kinds[name]}", wanted, "correct the value"))
    if problems:
        raise InputRefused(problems)
    return {name: key[name] for name in target.key}


def parse_columns(table: str, model: type[pa.DataFrameModel], texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of some columns of a table, each written as `column=value`.

    Raises:
        InputRefused: with everything that is wrong with them.
    """
    kinds = {one.name: one.field_type for one in iceberg_schema(model).fields}
    wanted, found, problems = f"columns of {table} are {', '.join(kinds)}", {}, []
    for given in (text.partition("=") for text in texts):
        name, equals, text = given[0].strip(), given[1], given[2]
        if not equals or name not in kinds:
            problems.append(Problem(f"'{''.join(given)}' is not column=value", wanted, "correct it"))
        elif name in found:
            problems.append(Problem(f"{name} is given twice", "a column has one value", "leave one out"))
        else:
            try:
                found[name] = _value(kinds[name], text)
            except (ValueError, InvalidOperation):
                problems.append(Problem(f"{name}={text} is not a {kinds[name]}", wanted, "correct the value"))
    if problems:
        raise InputRefused(problems)
    return found


def _value(kind: Any, text: str) -> Any:
    read = _READS.get(type(kind))
    return text if read is None else read(text)


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _local(text: str) -> datetime:
    local = datetime.fromisoformat(text)
    if local.tzinfo is not None:
        raise ValueError(text)
    return local


_READS: dict[type, Callable[[str], Any]] = {
    DateType: date.fromisoformat,
    TimestamptzType: _instant,
    TimestampType: _local,
    TimeType: time.fromisoformat,
    UUIDType: lambda text: UUID(text.removeprefix("0x")),
    BinaryType: lambda text: bytes.fromhex(text.removeprefix("0x")),
    IntegerType: int,
    LongType: int,
    DecimalType: Decimal,
    BooleanType: lambda text: ("false", "true").index(text.lower()) == 1,
}
"""How a value of a key is read; text is what it is."""
