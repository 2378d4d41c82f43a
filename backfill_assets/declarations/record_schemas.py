"""Schemas of what records say, by subject and version, as files in the product's repository; and values read as the newest.

Put here how a value is decoded and brought to the newest version. Which column of a table holds it is the transform's to know. Nothing here
asks a registry: a version that is not among the files is refused by name. Imported by Spark's Python workers: keep it light.

A registry is a folder: `<subject>/<version>.json`, each a JSON Schema of an object, versions counted from 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from jsonschema.protocols import Validator

from backfill_assets.declarations.arguments import said_at_once
from backfill_assets.declarations.json_schemas import decoded, problems_of, validator_of, wrong_with
from manifests.errors import DeclarationRefused, InputRefused, Problem

_VERSION = re.compile(r"([1-9]\d{0,8})\.json")
_SHOWN = 5
_MAGIC = 5
"""Bytes before a value that a registry's serialiser has written: a zero, and the id of its schema in four bytes."""
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
            except (OSError, ValueError, RecursionError) as error:
                problems.append(
                    Problem(f"{place / path.name}: {type(error).__name__}", "a schema is JSON in a file", "correct it")
                )
                continue
            if not isinstance(schema, dict) or schema.get("type") != "object" or not schema.get("properties"):
                rule = 'a schema says {"type": "object", "properties": {...}}'
                problems.append(Problem(f"{place / path.name} is no schema of an object", rule, "correct it"))
                continue
            own = list(_problems_of(place / path.name, schema))
            problems += own
            if not own:
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

    def read(self, value: bytes | None, version: int | None = None) -> Values:
        """Return what a value says, as the newest version has it.

        Args:
            value: the bytes of a record's value, as its column has them.
            version: of its schema; None takes it from the id before it, or the newest where there is no `ids`.

        Raises:
            InputRefused: if the version is none of the files, or the value is not what its schema says; so is NULL, which a tombstone has.
        """
        if value is None:
            what, rule = (
                f"a record of {self.subject} has no value",
                "a tombstone says that a key is gone, and has nothing to read",
            )
            raise InputRefused(Problem(what, rule, "ask whether there is a value before it is read"))
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
            said = decoded(bytes(body))
        except ValueError as error:
            raise self._refused(f"it is no JSON object: {error}", known) from None
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

    @cached_property
    def _validators(self) -> dict[int, Validator]:
        return {version: validator_of(schema) for version, schema in self.versions.items()}

    def _require(self, said: Any, version: int) -> None:
        try:
            wrong = list(islice(wrong_with(said, self._validators[version]), _SHOWN))
        except RecursionError:
            wrong = ["it is nested too deep"]
        if wrong:
            raise self._refused(", ".join(wrong), version)

    def _refused(self, wrong: str, version: int) -> InputRefused:
        return InputRefused(
            Problem(
                f"a value of {self.subject} is not what version {version} says: {wrong}",
                "a value has the fields of its schema, as the schema says them",
                "correct the schema, or what makes this version of the one before",
            )
        )


def _problems_of(path: Path, schema: Mapping[str, Any]) -> Iterator[Problem]:
    """Say why a schema is none, and which defaults are none by it."""
    try:
        wrong = list(islice(problems_of(schema), _SHOWN))
    except RecursionError:
        wrong = ["it is nested too deep"]
    for one in wrong:
        yield Problem(f"{path}: {one}", "a schema is JSON Schema, whole in its file", "correct it")
    if wrong:
        return
    whole = validator_of(schema)
    for name, one in schema["properties"].items():
        if isinstance(one, dict) and "default" in one and any(wrong_with(one["default"], whole.evolve(schema=one))):
            rule = "a field that is missing is read as its default, which is a value of it"
            yield Problem(f"{path}: the default of {name} is not what its schema says", rule, "correct the schema")


def _none(place: Path) -> Problem:
    return Problem(f"{place} has no version", "a subject's versions are files: 1.json, 2.json", "put them there")


def _with_defaults(said: Values, schema: Mapping[str, Any]) -> Values:
    """Return an object with the fields that it lacks and whose schema gives a default."""
    defaults = {
        name: one["default"] for name, one in schema["properties"].items() if isinstance(one, dict) and "default" in one
    }
    return {**defaults, **said}
