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


# --- schemas and values that lie --------------------------------------------------------------------------------------


def of(tmp_path: Path, *fields: Any, **more: Any) -> ba.RecordSchemas:
    """A registry of one subject whose version has one field, `id`, or is as `more` says."""
    (tmp_path / "lies").mkdir(exist_ok=True)
    schema = {"type": "object", "properties": {"id": fields[0] if fields else {}}} | more
    (tmp_path / "lies" / "1.json").write_text(json.dumps(schema))
    return ba.RecordSchemas(str(tmp_path), "lies")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ({"type": "string", "enum": ["a", "b"]}, "c"),
        ({"const": 1}, True),
        ({"type": "integer", "minimum": 0}, -1),
        ({"type": "number", "exclusiveMaximum": 1e300}, 1e300),
        ({"type": "string", "maxLength": 2}, "abc"),
        ({"type": "string", "pattern": "^[a-z]+$"}, "A"),
        ({"type": "array", "items": {"type": "string"}}, ["a", 5]),
        ({"type": "object", "required": ["x"], "properties": {"x": {"type": "string"}}}, {"x": 5}),
        ({"type": "object", "required": ["x"]}, {}),
        ({"type": "object", "properties": {"x": {}}, "additionalProperties": False}, {"x": 1, "secret": 2}),
        ({"additionalProperties": {"type": "string"}}, {"secret": 2}),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, 5),
        ({"not": {"type": "null"}}, None),
        ({"$ref": "#/definitions/money"}, {"cents": "5"}),
        (False, 1),
        ({"items": {"type": "integer"}, "uniqueItems": True}, [1, 1]),
        ({"if": {"type": "integer"}, "then": {"minimum": 5}}, 1),
    ],
)
def test_what_a_schema_says_is_held_against_a_value_at_every_depth(tmp_path: Path, field: Any, value: Any) -> None:
    money = {"type": "object", "properties": {"cents": {"type": "integer"}}}
    schemas = of(tmp_path, field, definitions={"money": money})
    assert schemas.versions
    with pytest.raises(ba.InputRefused, match="is not what version 1 says") as found:
        schemas.read(json.dumps({"id": value}).encode())
    assert "secret" not in str(found.value)


def test_what_is_as_its_schema_says_is_read(tmp_path: Path) -> None:
    field = {
        "oneOf": [{"type": "null"}, {"$ref": "#/definitions/tree"}],
        "default": None,
        "description": "a tree",
        "x-owner": "shop",
    }
    tree = {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {"type": "number", "exclusiveMinimum": 0},
            "parts": {"items": {"$ref": "#/definitions/tree"}},
        },
        "additionalProperties": False,
    }
    schemas = of(tmp_path, field, definitions={"tree": tree})
    said = {"id": {"size": 1e300, "parts": [{"size": 2}, {"size": 1, "parts": []}]}}
    assert schemas.read(json.dumps(said).encode()) == said
    assert schemas.read(b"\xef\xbb\xbf{}") == {"id": None}
    with pytest.raises(ba.InputRefused, match="version 1 says: id is not as oneOf says"):
        schemas.read(b'{"id": {"size": 1, "parts": [{"size": 0}]}}')


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"type": "strnig"}, "properties.id.type: 'strnig'"),
        ({"type": ["string", 5]}, "properties.id.type: "),
        ("string", "properties.id: 'string'"),
        ({"required": "x"}, "properties.id.required: 'x' is not of type 'array'"),
        ({"properties": ["x"]}, "properties.id.properties: "),
        ({"properties": {"x": {"type": "int"}}}, "properties.id.properties.x.type: 'int'"),
        ({"minimum": True}, "properties.id.minimum: True is not of type 'number'"),
        ({"pattern": "("}, "properties.id.pattern: .* is not a 'regex'"),
        ({"enum": "a"}, "properties.id.enum: "),
        ({"$ref": "other.json"}, "[$]ref other.json names no part of the same file"),
        ({"$ref": "#/definitions/none"}, "[$]ref #/definitions/none names no part of the same file"),
        ({"$ref": "#/definitions/round"}, "[$]ref #/definitions/round leads to itself"),
        ({"type": "integer", "default": "7"}, "the default of id is not what its schema says"),
    ],
)
def test_a_schema_that_cannot_be_held_against_a_value_is_refused_by_name(tmp_path: Path, field: Any, said: str) -> None:
    round_ = {"$ref": "#/definitions/round"}
    schemas = of(tmp_path, field, **({"definitions": {"round": round_}} if field == round_ else {}))
    with pytest.raises(DeclarationRefused, match=said):
        schemas.read(b"{}")


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2019-09/schema"]
)
def test_the_version_of_json_schema_is_the_one_that_a_schema_names(tmp_path: Path, draft: str) -> None:
    assert of(tmp_path, {"type": "integer"}, **{"$schema": draft}).read(b'{"id": 1}') == {"id": 1}
    with pytest.raises(DeclarationRefused, match="names no version of JSON Schema that is known"):
        of(tmp_path, {}, **{"$schema": "https://example.com/mine"}).read(b"{}")


def test_a_schema_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    schemas = of(tmp_path)
    (tmp_path / "lies" / "1.json").write_text("[" * 100_000)
    with pytest.raises(DeclarationRefused, match="RecursionError"):
        schemas.read(b"{}")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "has no value"),
        (b'{"id": 1, "id": 2}', "it has a member twice"),
        (b'{"id": NaN}', "a number in it is none that JSON has"),
        (b'{"id": 1e999}', "a number in it is none that JSON has"),
        (b'{"id": "\\ud800"}', "half a letter"),
        ('{"id": 1}'.encode("utf-16"), "it is no UTF-8"),
        (b'{"id": ' + b"[" * 100_000, "it is nested too deep"),
        (b'{"id": ' + b"9" * 5_000 + b"}", "it is no JSON object"),
    ],
)
def test_a_value_that_is_no_json_is_refused_in_words(tmp_path: Path, value: bytes | None, said: str) -> None:
    with pytest.raises(ba.InputRefused, match=said):
        of(tmp_path).read(value)
