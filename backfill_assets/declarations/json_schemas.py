"""What a JSON Schema says of a value: whether it is one, and what is wrong with a value by it; and JSON as it is read strictly.

Put here what follows from a schema and a value alone, as `jsonschema` has it. Which versions of a subject there are is `record_schemas`'. No
value is quoted: what is wrong is told by the schema's own words. Imported by Spark's Python workers, of products that have such schemas.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

_NAMES = frozenset({"properties", "definitions", "$defs", "patternProperties"})
"""Words whose members are names that the schema gives, and no words."""


def decoded(body: bytes) -> Any:
    """Return what a text of JSON says.

    Raises:
        ValueError: if it is none, or says what JSON cannot: a member twice, a number without end, half a letter; in words, without a value.
    """
    try:
        text = body.decode("utf-8-sig")
        found = json.loads(text, parse_constant=_none, parse_float=_finite, object_pairs_hook=_each_once)
        if "\\ud" in text.lower():
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a text in it has half a letter") from None
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8") from None
    except json.JSONDecodeError:
        raise ValueError("it is no JSON") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return found


def _none(_text: str) -> Any:
    raise ValueError("a number in it is none that JSON has")


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _none(text)


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a member twice")
    return found


def validator_of(schema: Mapping[str, Any]) -> Validator:
    """Return what holds values against a schema; a reference out of its file is never fetched."""
    kind = validator_for(schema, default=Draft202012Validator)
    found: Validator = kind(schema, registry=Registry())
    return found


def problems_of(schema: Mapping[str, Any]) -> Iterator[str]:
    """Say why a schema is none that values can be held against: each with the place where it stands."""
    kind = type(validator_of(schema))
    if "$schema" in schema and kind.META_SCHEMA["$schema"].rstrip("#") != str(schema["$schema"]).rstrip("#"):
        yield "$schema names no version of JSON Schema that is known"
        return
    for error in kind(kind.META_SCHEMA, format_checker=kind.FORMAT_CHECKER).iter_errors(schema):
        yield f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
    yield from _lost_references(schema)


def _lost_references(schema: Mapping[str, Any]) -> Iterator[str]:
    """Name the references that lead out of the file, to nothing, or round in a circle."""
    draft = specification_with(type(validator_of(schema)).META_SCHEMA["$schema"])
    resolver = Registry().resolver_with_root(draft.create_resource(schema))
    for reference in sorted(set(_references(schema))):
        seen, at = set[str](), reference
        try:
            while at not in seen:
                seen.add(at)
                found = resolver.lookup(at).contents
                at = found.get("$ref", "") if isinstance(found, dict) else ""
                if not at:
                    break
            else:
                yield f"$ref {reference} leads to itself"
        except Unresolvable:
            yield f"$ref {reference} names no part of the same file"


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(said := schema.get("$ref"), str):
            yield said
        for one in schema.values():
            yield from _references(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from _references(one)


def wrong_with(value: Any, validator: Validator) -> Iterator[str]:
    """Say what of a value is not as a schema says it, by the schema's names and words."""
    told = set[str]()
    for error in validator.iter_errors(value):
        for said in _in_words(error):
            if said not in told:
                told.add(said)
                yield said


def _in_words(error: ValidationError) -> Iterator[str]:
    name = _place(error)
    if error.validator == "required":
        at = f"{name}." if name else ""
        wanted: Any = error.validator_value
        there: Any = error.instance
        yield from (f"{at}{one} is missing" for one in wanted if one not in there)
    elif error.validator == "type":
        yield f"{name} is of another type" if name else "it is no JSON object"
    elif error.validator is None:
        yield f"{name or 'it'} is not to be there"
    else:
        yield f"{name or 'it'} is not as {error.validator} says"


def _place(error: ValidationError) -> str:
    """Return the place of what is wrong by the names of the schema: those of a value may be somebody's."""
    parts, found = list(error.absolute_schema_path), list[str]()
    while parts:
        part = parts.pop(0)
        if part in _NAMES and parts:
            found.append(str(parts.pop(0)))
        elif part == "items":
            found.append("an item")
        elif part == "additionalProperties" and parts:
            found.append("a further field")
    return ".".join(found)
