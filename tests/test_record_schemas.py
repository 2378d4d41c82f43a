"""Values of records, read by schemas that are files: each version as the newest, unknown ones refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import backfill_assets as ba
from manifests.errors import DeclarationRefused

ONE = {
    "type": "object",
    "required": ["id", "euros"],
    "properties": {"id": {"type": "string"}, "euros": {"type": "number"}},
}
TWO = {
    "type": "object",
    "required": ["id", "cents"],
    "properties": {"id": {"type": "string"}, "cents": {"type": "integer"}},
}
THREE = {
    **TWO,
    "required": ["id", "cents", "shop"],
    "properties": {**TWO["properties"], "shop": {"type": ["string", "null"], "default": None}},
}


def in_cents(said: Any) -> Any:
    return {"id": said["id"], "cents": round(said["euros"] * 100)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders").mkdir()
    for version, schema in enumerate((ONE, TWO, THREE), start=1):
        (tmp_path / "orders" / f"{version}.json").write_text(json.dumps(schema))
    return tmp_path


def test_each_version_is_read_as_the_newest(folder: Path) -> None:
    schemas = ba.RecordSchemas(str(folder), "orders", evolve={1: in_cents})
    assert schemas.newest == 3
    wanted = {"id": "a", "cents": 150, "shop": None}
    assert schemas.read(b'{"id": "a", "euros": 1.5}', 1) == wanted
    assert schemas.read(b'{"id": "a", "cents": 150}', 2) == wanted
    assert schemas.read(b'{"id": "a", "cents": 150, "shop": "x"}') == {**wanted, "shop": "x"}


def test_a_value_that_names_its_schema_is_read_by_it(folder: Path) -> None:
    schemas = ba.RecordSchemas(str(folder), "orders", evolve={1: in_cents}, ids={41: 1, 57: 2})
    assert schemas.read(b'\0\0\0\0\x29{"id": "a", "euros": 2}')["cents"] == 200
    with pytest.raises(ba.InputRefused, match="has the schema id 58"):
        schemas.read(b"\0\0\0\0\x3a{}")
    with pytest.raises(ba.InputRefused, match="no id of a schema before it"):
        schemas.read(b"{}")


@pytest.mark.parametrize(
    ("value", "version", "said"),
    [
        (b"{}", 4, "is of version 4, and its versions are 1 to 3"),
        (b"{}", 0, "is of version 0"),
        (b"no json", 2, "it is no JSON object"),
        (b"\xff", 2, "it is no JSON object"),
        (b'{"id": "secret", "cents": "7"}', 2, "version 2 says: cents is of another type"),
        (b'{"cents": true}', 2, "id is missing, cents is of another type"),
    ],
)
def test_a_value_that_is_none_is_refused_and_not_quoted(folder: Path, value: bytes, version: int, said: str) -> None:
    with pytest.raises(ba.InputRefused, match=said) as found:
        ba.RecordSchemas(str(folder), "orders", evolve={1: in_cents}).read(value, version)
    assert "secret" not in str(found.value)


def test_a_step_that_does_not_make_the_next_version_is_refused(folder: Path) -> None:
    with pytest.raises(ba.InputRefused, match="version 2 says: cents is missing"):
        ba.RecordSchemas(str(folder), "orders").read(b'{"id": "a", "euros": 1}', 1)


def test_a_registry_that_is_none_is_refused_with_every_reason(folder: Path) -> None:
    (folder / "orders" / "2.json").unlink()
    (folder / "orders" / "3.json").write_text("[]")
    with pytest.raises(DeclarationRefused) as found:
        _ = ba.RecordSchemas(str(folder), "orders", evolve={7: in_cents}).versions
    text = str(found.value)
    assert "lacks 2" in text
    assert "3.json is no schema of an object" in text
    assert "evolve names version 7" in text
    assert str(folder) not in text
    with pytest.raises(DeclarationRefused, match="has no version"):
        _ = ba.RecordSchemas(str(folder), "sales").versions


def test_a_folder_that_depends_on_where_a_process_runs_is_refused_with_the_declaration() -> None:
    with pytest.raises(DeclarationRefused, match=r'str\(Path\(__file__\)\.with_name\("schemas"\)\)'):
        ba.RecordSchemas("schemas", "orders")
