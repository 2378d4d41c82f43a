"""What the fields of a manifest or a policy take, in words: the rule and the value found of everything that validation refuses.

Put here how a refusal of a field reads. Which fields there are, and what each takes, is declared by the models: a field whose
type does not say it all has a description.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from difflib import get_close_matches
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from manifests.errors import Problem
from manifests.text import visible

_KEY = "[key]"
"""How Pydantic names the key of a mapping, as opposed to its value."""
_SHOWN = 80


def problems_of(error: ValidationError, model: type[BaseModel], where: str) -> list[Problem]:
    """Return every problem that validation found in data for `model`: what was found, the field's rule, what to do."""
    problems = []
    for detail in error.errors(include_url=False):
        loc = detail["loc"]
        field = ".".join(str(part) for part in loc) or "(whole manifest)"
        found, said = detail.get("input"), detail["msg"].removeprefix("Value error, ")
        rule = rule_of(model, loc)
        if detail["type"] == "extra_forbidden":
            names = _names(_at(model, loc[:-1])[0])
            what, rule = "is an unknown key", f"unknown keys are refused; the keys here are {', '.join(names)}"
            fix = _meant(str(loc[-1]), names) or "remove it or correct its spelling"
        elif detail["type"] == "missing":
            what, rule, fix = (
                "is missing",
                f"the field is required: {rule}",
                "add it; see manifests/*.yaml for an example",
            )
        elif detail["type"] == "value_error" and isinstance(found, dict):
            what, fix = said, "correct the fields that contradict each other"
        else:
            what, fix = f"is {_found(found)}", _way_out(found, _at(model, loc)[0])
            limit = _limit(detail)
            if detail["type"] == "value_error":
                rule = said
            elif limit and not _at(model, loc)[1]:
                rule = f"{rule} {limit}"
        problems.append(Problem(what, rule, fix, f"{where}: {field}"))
    return problems


_LIMITS = {
    "greater_than": "greater than {gt}",
    "greater_than_equal": "not below {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "not above {le}",
    "string_too_short": "of at least {min_length} characters",
    "string_too_long": "of at most {max_length} characters",
    "string_pattern_mismatch": "of the form {pattern}",
    "too_short": "with at least {min_length} of them",
    "too_long": "with at most {max_length} of them",
}


def _limit(detail: ErrorDetails) -> str:
    """Say the limit that a value is beyond, for a field whose description does not."""
    return _LIMITS.get(detail["type"], "").format(**detail.get("ctx", {}))


def rule_of(model: type[BaseModel], loc: Sequence[str | int]) -> str:
    """Return what the field at a place in a model takes, in words."""
    kind, said = _at(model, loc)
    return said or _words(kind)


def type_of(model: type[BaseModel], name: str) -> Any:
    """Return the type of a model's field, without what is optional or annotated about it."""
    return _at(model, (name,))[0]


def _at(model: type[BaseModel], loc: Sequence[str | int]) -> tuple[Any, str]:
    """Return the type of the field at a place, and its description."""
    is_key = bool(loc) and loc[-1] == _KEY
    kind, said = _plain(model)
    for number, part in enumerate(loc[:-1] if is_key else loc, start=1):
        if _is_model(kind):
            info = next((one for one in kind.model_fields.values() if one.alias == part), None)
            if info is None:
                return None, ""
            kind, inner = _plain(info.annotation)
            said = info.description or inner
        elif get_origin(kind) is tuple:
            kind, said = _plain(get_args(kind)[0])
        elif get_origin(kind) is dict:
            keys, values = get_args(kind)
            kind, said = _plain(keys if is_key and number == len(loc) - 1 else values)
        else:
            return None, ""
    return kind, said


def _plain(kind: Any) -> tuple[Any, str]:
    """Return a type without what is optional or annotated about it, and the description in the annotation."""
    said = ""
    while True:
        if get_origin(kind) is Annotated:
            kind, *metadata = get_args(kind)
            notes = (one.description for one in metadata if isinstance(one, FieldInfo) and one.description)
            said = said or next(notes, "")
        elif get_origin(kind) in {Union, UnionType}:
            kind = next(one for one in get_args(kind) if one is not NoneType)
        else:
            return kind, said


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _names(kind: Any) -> list[str]:
    return [info.alias or name for name, info in kind.model_fields.items()] if _is_model(kind) else []


def _choices(kind: Any) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(one.value) for one in kind]
    return [str(one) for one in get_args(kind)] if get_origin(kind) is Literal else []


def _words(kind: Any) -> str:
    """Say what a type takes, where no description says more."""
    if choices := _choices(kind):
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    if _is_model(kind):
        meant = (kind.__doc__ or "").strip().partition("\n")[0]
        return f"fields by name: {', '.join(_names(kind))}. {meant}".strip()
    if get_origin(kind) in {tuple, dict}:
        inner, said = _plain(get_args(kind)[0 if get_origin(kind) is tuple else 1])
        each = said or _words(inner)
        return (
            f"a list, as in [a, b]; each of it: {each}"
            if get_origin(kind) is tuple
            else f"values by name; each: {each}"
        )
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text", date: "a day"}.get(
        kind, "see the rule"
    )


def _found(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list, tuple)):
        return "a mapping of fields" if isinstance(value, dict) else "a list"
    shown = visible(str(value))
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}… ({len(shown):,} characters)"
    if isinstance(value, str):
        return f"'{shown}'"
    return f"{shown}, {'a number' if isinstance(value, (int, float)) else 'a date'}"


def _way_out(value: Any, kind: Any) -> str:
    if choices := _choices(kind):
        return _meant(str(value), choices) or "choose one of them"
    if kind is str and isinstance(value, (int, float, date, datetime)):
        return f'put it in quotes: "{value}"'
    if kind in {int, float} and isinstance(value, str) and value.strip().isdecimal():
        return f"leave out the quotes: {value.strip()}"
    if get_origin(kind) is tuple and isinstance(value, str):
        return f"make it a list: [{visible(value)[:_SHOWN]}]"
    return "correct the value"


def _meant(text: str, names: Sequence[str]) -> str:
    folded = {name.casefold(): name for name in names}
    close = get_close_matches(text.replace("_", "").casefold(), [name.replace("_", "") for name in folded], n=1)
    found = next((name for short, name in folded.items() if close and short.replace("_", "") == close[0]), None)
    return f"did you mean '{found}'?" if found else ""
