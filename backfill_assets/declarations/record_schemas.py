"""Schemas of what records say, by subject and version, as files in the product's repository; and values read as the newest.

Put here how a value is decoded and brought to the newest version. Which column of a table holds it is the transform's to know. Nothing here
asks a registry: a version that is not among the files is refused by name. Imported by Spark's Python workers: keep it light.

A registry is a folder: `<subject>/<version>.json`, each a JSON Schema of an object, versions counted from 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from backfill_assets.declarations.arguments import said_at_once
from manifests.errors import DeclarationRefused, InputRefused, Problem

_VERSION = re.compile(r"([1-9]\d{0,8})\.json")
_MAGIC = 5
"""Bytes before a value that a registry's serialiser has written: a zero, and the id of its schema in four bytes."""
_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}

Values = Mapping[str, Any]
Evolve = Callable[[Values], Values]
"""Makes of an object of one version what the next one says of it; pure."""


@said_at_once
@dataclass(frozen=True)
class RecordSchemas:
    """The versions of what the values of one subject say.

    Attributes:
        folder: the folder of the registry, an absolute path: `str(Path(__file__).with_name("schemas"))`.
        subject: the folder in it that has the versions of this one.
        evolve: by version what makes the next one's object of its own; a version that is left out lacks only fields that may be absent, or
            that have a `default` in the next one's schema.
        ids: by the id that a registry's serialiser writes before a value, its version; empty where values are JSON from their first byte.
    """

    folder: str
    subject: str
    evolve: Mapping[int, Evolve] = field(default_factory=dict)
    ids: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a folder that each process would look for in another place.

        Raises:
            DeclarationRefused: if it is relative.
        """
        if not Path(self.folder).is_absolute():
            raise DeclarationRefused(
                Problem(
                    f"the schemas of {self.subject} are in {self.folder}",
                    "the folder is an absolute path: commands and Spark's workers run in folders of their own",
                    f'say it by the module beside it: str(Path(__file__).with_name("{Path(self.folder).name}"))',
                )
            )

    @cached_property
    def versions(self) -> dict[int, dict[str, Any]]:
        """The schemas by version, in order.

        Raises:
            DeclarationRefused: if there is none, one is no JSON Schema of an object, or a version between two is missing.
        """
        place = Path(Path(self.folder).name) / self.subject  # as it is told: no record names a machine's folders
        files = (Path(self.folder) / self.subject).glob("*")
        found = {int(match[1]): one for one in files if (match := _VERSION.fullmatch(one.name))}
        problems = [] if found else [_none(place)]
        if missing := sorted(set(range(1, max(found, default=0) + 1)) - set(found)):
            rule = "versions are counted from 1, without a gap"
            problems.append(Problem(f"{place} lacks {', '.join(map(str, missing))}", rule, "put the files there"))
        read: dict[int, dict[str, Any]] = {}
        for version, path in sorted(found.items()):
            try:
                schema = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                problems.append(
                    Problem(f"{place / path.name}: {type(error).__name__}", "a schema is JSON in a file", "correct it")
                )
                continue
            if not isinstance(schema, dict) or schema.get("type") != "object" or not schema.get("properties"):
                rule = 'a schema says {"type": "object", "properties": {...}}'
                problems.append(Problem(f"{place / path.name} is no schema of an object", rule, "correct it"))
                continue
            read[version] = schema
        for version in sorted(set(self.evolve) - set(found)):
            rule = "each version that is evolved is a file"
            problems.append(Problem(f"evolve names version {version}", rule, f"put it into {place}, or leave it out"))
        if problems:
            raise DeclarationRefused(problems)
        return read

    @property
    def newest(self) -> int:
        """The newest version."""
        return max(self.versions)

    def read(self, value: bytes, version: int | None = None) -> Values:
        """Return what a value says, as the newest version has it.

        Args:
            value: the bytes of a record's value.
            version: of its schema; None takes it from the id before it, or the newest where there is no `ids`.

        Raises:
            InputRefused: if the version is none of the files, or the value is not what its schema says.
        """
        body, known = self._split(value, version)
        if known not in self.versions:
            raise InputRefused(
                Problem(
                    f"a value of {self.subject} is of version {known}, and its versions are 1 to {self.newest}",
                    "each version that was ever written is a file of the registry",
                    "put its schema there, and say how it becomes the next one",
                )
            )
        try:
            said = json.loads(body)
        except ValueError:
            said = None
        self._require(said, known)
        for step in range(known, self.newest):
            said = dict(self.evolve[step](said)) if step in self.evolve else said
            said = _with_defaults(said, self.versions[step + 1])
            self._require(said, step + 1)
        return _with_defaults(said, self.versions[self.newest])

    def _split(self, value: bytes, version: int | None) -> tuple[bytes, int]:
        """Return the JSON of a value, and its version."""
        if not self.ids or version is not None:
            return value, self.newest if version is None else version
        schema_id = int.from_bytes(value[1:_MAGIC], "big") if value[:1] == b"\0" and len(value) > _MAGIC else -1
        if schema_id not in self.ids:
            said = "no id of a schema before it" if schema_id < 0 else f"the schema id {schema_id}"
            raise InputRefused(
                Problem(
                    f"a value of {self.subject} has {said}",
                    f"`ids` gives the version of each id: {', '.join(map(str, self.ids))}",
                    "add the id, and its version as a file",
                )
            )
        return value[_MAGIC:], self.ids[schema_id]

    def _require(self, said: Any, version: int) -> None:
        wrong = _wrong(said, self.versions[version])
        if wrong:
            raise InputRefused(
                Problem(
                    f"a value of {self.subject} is not what version {version} says: {', '.join(wrong[:5])}",
                    "a value has the fields of its schema, of their types",
                    "correct the schema, or what makes this version of the one before",
                )
            )


def _none(place: Path) -> Problem:
    return Problem(f"{place} has no version", "a subject's versions are files: 1.json, 2.json", "put them there")


def _wrong(said: Any, schema: Mapping[str, Any]) -> list[str]:
    """Name the fields of an object that are missing or of another type; no value is quoted."""
    if not isinstance(said, dict):
        return ["it is no JSON object"]
    wrong = [f"{name} is missing" for name in schema.get("required", ()) if name not in said]
    for name, of_field in schema["properties"].items():
        words = of_field.get("type", ()) if isinstance(of_field, dict) else ()
        kinds = tuple(kind for word in ([words] if isinstance(words, str) else words) for kind in _KINDS.get(word, ()))
        value = said.get(name)
        if name not in said or not kinds:
            continue
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wrong.append(f"{name} is of another type")
    return wrong


def _with_defaults(said: Values, schema: Mapping[str, Any]) -> Values:
    """Return an object with the fields that it lacks and whose schema gives a default."""
    defaults = {
        name: one["default"] for name, one in schema["properties"].items() if isinstance(one, dict) and "default" in one
    }
    return {**defaults, **said}
