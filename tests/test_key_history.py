"""What a key said, looked up in a table of Iceberg: keys of any type that a table can have."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import BinaryType, LongType, NestedField, TimestamptzType, TimeType, UUIDType
from support import a_plan

from backfill_assets.audit.explain import _where
from backfill_assets.audit.key_history import differing_conditions, read_scan, states_of

FIRST, OTHER = UUID("12345678-1234-5678-1234-567812345678"), UUID("12345678-1234-5678-1234-567812345679")
SCHEMA = Schema(
    NestedField(1, "id", UUIDType(), required=False),
    NestedField(2, "raw", BinaryType(), required=False),
    NestedField(3, "clock", TimeType(), required=False),
    NestedField(4, "at", TimestamptzType(), required=False),
    NestedField(5, "value", LongType(), required=False),
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table whose first key said 1, then 2, beside another key in the same file."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("silver")
    made = catalog.create_table("silver.keys", SCHEMA)
    made.overwrite(rows_with(1))
    made.overwrite(rows_with(2))
    return made


def rows_with(value: int) -> pa.Table:
    at = datetime(2020, 1, 3, tzinfo=UTC)
    columns: dict[str, Any] = {
        "id": pa.array([FIRST.bytes, OTHER.bytes, None], pa.uuid()),
        "raw": [b"\xff", b"\xfe", None],
        "clock": [time(8, 15), time(8, 16), None],
        "at": [at, at, at],
        "value": [value, 7, 8],
    }
    return pa.table(columns, schema=schema_to_pyarrow(SCHEMA, include_field_ids=False))


KEYS: dict[str, dict[str, Any]] = {
    "a UUID": {"id": FIRST},
    "a UUID and another column": {"clock": time(8, 15), "id": FIRST},
    "bytes": {"raw": b"\xff"},
    "a time": {"clock": time(8, 15)},
}


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_any_type_has_its_history(table: Table, key: str) -> None:
    states = [rows for _, rows in states_of(table, _where(KEYS[key]), [])]
    assert [[row["value"] for row in rows] for rows in states if rows] == [[2], [1]]


def test_a_key_that_is_not_there_has_none_though_its_file_is_read(table: Table) -> None:
    missing = UUID("12345678-1234-5678-1234-567812345670")
    assert read_scan(table, table.scan(row_filter=_where({"id": missing}))) == []
    assert read_scan(table, table.scan(row_filter=_where({"id": FIRST, "clock": time(8, 16)}))) == []


def test_few_columns_of_a_uuid_are_read_with_it(table: Table) -> None:
    scan = table.scan(row_filter=_where({"id": OTHER}), selected_fields=("value",))
    assert read_scan(table, scan) == [{"id": OTHER, "value": 7}]


def test_code_of_another_commit_with_the_same_contents_is_no_cause() -> None:
    before = a_plan()
    committed = replace(before, code=replace(before.code, git_commit="b" * 40, dirty=not before.code.dirty))
    assert str(committed.code) != str(before.code)
    assert differing_conditions(before, committed) == {}
    changed = replace(committed, code=replace(committed.code, content_hash="d" * 64), transform_version="3")
    assert differing_conditions(before, changed) == {
        "transform version": ["2", "3"],
        "code": [str(before.code), str(changed.code)],
    }
