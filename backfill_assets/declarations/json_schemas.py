"""What a JSON Schema says of a value: which of its words are understood, and what is wrong with a value by them.

Put here what follows from a schema and a value alone. Which versions of a subject there are is `record_schemas`'. A word that is not
understood is refused: a value would pass that is not what its schema says. No value is quoted. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LENGTHS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_SEVERAL = ("allOf", "anyOf", "oneOf")
_BY_NAME = ("properties", "definitions", "$defs")
_WITHIN = ("items", "additionalProperties", "not")
_SAID_OF_IT = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "format", "deprecated", "readOnly"}
    | {"writeOnly", "contentEncoding", "contentMediaType"}
)
"""Words that say something of a schema and nothing of its values; so does whatever begins with `x-`, or names a class of Java."""
_OTHER = ("x-", "javaType", "existingJavaType", "connect.")
_UNDERSTOOD = _SAID_OF_IT | {"type", "enum", "const", "required", "pattern", "$ref"}
_UNDERSTOOD |= {*_NUMBERS, *_LENGTHS, *_SEVERAL, *_BY_NAME, *_WITHIN}


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


def not_understood(schema: Any, root: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Say what of a schema is none, or is not understood: each with the place where it stands."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        yield f"{where or 'it'} is no schema"
        return
    at = f"{where}: " if where else ""
    unknown = [word for word in schema if word not in _UNDERSTOOD and not word.startswith(_OTHER)]
    yield from (f"{at}{word}" for word in unknown)
    words = schema.get("type", [])
    words = [words] if isinstance(words, str) else words
    if not isinstance(words, list) or any(not isinstance(word, str) or word not in _KINDS for word in words):
        yield f"{at}type is one of {', '.join(_KINDS)}, or a list of these"
    yield from _badly_said(schema, root, at)
    for word in (one for one in _BY_NAME if isinstance(schema.get(one), dict)):
        for name, one in schema[word].items():
            yield from not_understood(one, root, f"{where}.{name}" if where else name)
    for word in (one for one in _WITHIN if one in schema):
        yield from not_understood(schema[word], root, f"{at}{word}")
    for word in (one for one in _SEVERAL if isinstance(schema.get(one), list)):
        for one in schema[word]:
            yield from not_understood(one, root, f"{at}{word}")


def _badly_said(schema: Mapping[str, Any], root: Mapping[str, Any], at: str) -> Iterator[str]:
    """Say which words of a schema have a value that they cannot have."""
    required = schema.get("required", [])
    if not isinstance(required, list) or any(not isinstance(name, str) for name in required):
        yield f"{at}required is a list of names"
    yield from (f"{at}{word} is a mapping" for word in _BY_NAME if not isinstance(schema.get(word, {}), dict))
    for word in (one for one in (*_SEVERAL, "enum") if one in schema):
        if not isinstance(schema[word], list) or not schema[word]:
            yield f"{at}{word} is a list"
    yield from (f"{at}{word} is a number" for word in _NUMBERS if type(schema.get(word, 0)) not in {int, float})
    yield from (f"{at}{word} is a whole number" for word in _LENGTHS if type(schema.get(word, 0)) is not int)
    try:
        re.compile(schema.get("pattern", ""))
    except (re.error, TypeError, RecursionError):
        yield f"{at}pattern is a regular expression"
    if "$ref" in schema:
        try:
            _referred(schema["$ref"], root)
        except (LookupError, ValueError):
            yield f"{at}$ref names a part of the same file, and ends at one that is none itself"


def _referred(reference: Any, root: Mapping[str, Any]) -> Any:
    """Return the schema that a reference leads to.

    Raises:
        LookupError: if it is not in the file; ValueError: if it leads out of it, or round in a circle.
    """
    seen = set[str]()
    while True:
        if not isinstance(reference, str) or not reference.startswith("#") or reference in seen:
            raise ValueError(reference)
        seen.add(reference)
        found: Any = root
        for part in reference[1:].split("/")[1:]:
            found = (found if isinstance(found, dict) else {})[part.replace("~1", "/").replace("~0", "~")]
        if not isinstance(found, dict) or set(found) != {"$ref"}:
            return found
        reference = found["$ref"]


def wrong_with(value: Any, schema: Any, root: Mapping[str, Any], name: str = "it") -> Iterator[str]:
    """Say what of a value is not as a schema says it; of fields that are missing or of another type, by their names.

    The schema is one of which `not_understood` says nothing; `root` is the whole of its file.
    """
    if isinstance(schema, bool):
        yield from () if schema else (f"{name} is not to be there",)
        return
    if "$ref" in schema:
        yield from wrong_with(value, _referred(schema["$ref"], root), root, name)
    if "type" in schema and not _is_of(value, schema["type"]):
        yield "it is no JSON object" if name == "it" else f"{name} is of another type"
        return
    yield from _wrong_by_itself(value, schema, name)
    if isinstance(value, dict):
        yield from _wrong_fields(value, schema, root, "" if name == "it" else f"{name}.")
    if isinstance(value, list) and "items" in schema:
        for one in value:
            yield from wrong_with(one, schema["items"], root, f"an item of {name}")
    yield from _wrong_by_several(value, schema, root, name)


def _wrong_by_itself(value: Any, schema: Mapping[str, Any], name: str) -> Iterator[str]:
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        yield f"{name} is none of its values"
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{name} is another value"
    if not _is_within(value, schema):
        yield f"{name} is out of its bounds"
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{name} is not of its pattern"


def _wrong_fields(
    value: Mapping[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], at: str
) -> Iterator[str]:
    yield from (f"{at}{name} is missing" for name in schema.get("required", ()) if name not in value)
    known = schema.get("properties", {})
    for name, one in known.items():
        if name in value:
            yield from wrong_with(value[name], one, root, f"{at}{name}")
    others = schema.get("additionalProperties", True)
    if others is False:
        if more := len(set(value) - set(known)):
            yield f"{at.rstrip('.') or 'it'} has {more:,} field(s) that the schema does not have"
        return
    for name in value if others is not True else ():
        if name not in known:
            yield from wrong_with(value[name], others, root, f"a further field of {at.rstrip('.') or 'it'}")


def _wrong_by_several(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], name: str) -> Iterator[str]:
    for one in schema.get("allOf", ()):
        yield from wrong_with(value, one, root, name)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            fitting = sum(not any(wrong_with(value, one, root, name)) for one in schema[word])
            if not fitting or (word == "oneOf" and fitting > 1):
                yield f"{name} is as {'none' if not fitting else 'several'} of {word} says"
    if "not" in schema and not any(wrong_with(value, schema["not"], root, name)):
        yield f"{name} is what it is not to be"


def _is_of(value: Any, words: Any) -> bool:
    kinds = tuple(kind for word in ([words] if isinstance(words, str) else words) for kind in _KINDS[word])
    return isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds)


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _is_within(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a number is within its bounds, or a text, a list or an object as long as it may be."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (
            schema.get("minimum", value) <= value <= schema.get("maximum", value)
            and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
            and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
        )
    kind = next(
        (word for of, word in ((str, "Length"), (list, "Items"), (dict, "Properties")) if isinstance(value, of)), ""
    )
    return not kind or schema.get(f"min{kind}", 0) <= len(value) <= schema.get(f"max{kind}", len(value))
