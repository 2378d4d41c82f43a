"""A manifest from text, from a file, from data, or from the ledger: whole and valid, or refused with every reason.

Put here how a manifest gets in. What its fields are is `model`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from manifests.errors import ManifestRefused, Problem
from manifests.limits import CHUNKS_PER_JOB
from manifests.model import SHORTEST_REASON, RunManifest
from manifests.rules import problems_of, type_of
from manifests.text import NAME_RULE, TEXT_RULE, not_a_name, not_text, read_text, seen

MAX_MANIFEST_BYTES = 256 * 1024

_HELD = {type(None): "nothing", list: "a list", int: "a number", float: "a number", bool: "a truth"}
"""What a document is, if it is no manifest, by its kind."""


def parse_manifest(text: str, *, where: str = "manifest") -> RunManifest:
    """Parse and validate a manifest's YAML or JSON text.

    Raises:
        ManifestRefused: with every problem of the text at once.
    """
    if text.startswith("%"):
        raise ManifestRefused(
            Problem(
                f"begins with {text.split(maxsplit=1)[0]}",
                "a manifest is YAML without directives, or JSON",
                "remove it",
                where,
            )
        )
    import yaml  # noqa: PLC0415 - most commands read records, which are JSON, and no file

    from manifests.strict_text import StrictLoader, read_json, way_out_of  # noqa: PLC0415

    try:
        data = read_json(text) if text.lstrip().startswith("{") else None
        if data is None:
            data = yaml.load(text, Loader=StrictLoader)  # noqa: S506 - a SafeLoader subclass
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ManifestRefused(
            Problem(f"cannot be read: {error}", "a manifest is YAML or JSON", way_out_of(error), where)
        ) from error
    if not isinstance(data, dict):
        raise ManifestRefused(
            Problem(
                f"holds {_HELD.get(type(data), 'a text')}, not a mapping of fields",
                "a manifest is one YAML or JSON mapping",
                "see manifests/*.yaml for examples",
                where,
            )
        )
    return manifest_from(data, where=where)


def manifest_from(data: dict[str, Any], *, where: str = "manifest") -> RunManifest:
    """Validate a manifest given as data; see `parse_manifest`."""
    problems = [
        Problem(f"is not text: {wrong}", TEXT_RULE, "remove the character", f"{where}: {field}")
        for field, wrong in _values_that_are_no_text(data, "")
    ]
    requester = data.get("requestedBy")
    if not problems and isinstance(requester, str) and (wrong := not_a_name(requester.strip())) is not None:
        problems.append(
            Problem(f"is no name: {wrong}", NAME_RULE, "write your name as people see it", f"{where}: requestedBy")
        )
    if problems:
        raise ManifestRefused(problems)
    unseen = list(_reason_that_is_not_seen(data, where))
    try:
        manifest = RunManifest.model_validate(data)
    except ValidationError as error:
        refusal = ManifestRefused([*problems_of(error, RunManifest, where), *unseen])
        refusal.draft = data
        raise refusal from error
    if unseen:
        raise ManifestRefused(unseen)
    return manifest


def _reason_that_is_not_seen(data: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Yield what is wrong with a reason that is long enough only with characters that nobody sees.

    Asked of what is handed in; a manifest on record stays readable.
    """
    reason = data.get("reason")
    if isinstance(reason, str) and len(seen(reason)) < SHORTEST_REASON <= len(reason.strip()):
        yield Problem(
            f"has {len(seen(reason))} visible characters",
            f"a reason has at least {SHORTEST_REASON}, which tells an auditor a year from now why history was rewritten",
            "say why, in words that can be read",
            f"{where}: reason",
        )


def lacks_range(draft: Mapping[str, Any]) -> bool:
    """Return whether a draft of a manifest names no publish range, as that of a target without time."""
    target = draft.get("target")
    return isinstance(target, Mapping) and "publishRange" not in target


def valid_part(draft: Mapping[str, Any], *path: str) -> Any:
    """Return a field of data that is no valid manifest as a whole; None where it has no such field, or no valid one."""
    model: Any = RunManifest
    value: Any = draft
    for name in path[:-1]:
        model = type_of(model, name)
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, dict) or path[-1] not in value:
        return None
    info = next(one for one in model.model_fields.values() if one.alias == path[-1])
    try:
        kind: Any = Annotated[(info.annotation, *info.metadata, Field())]
        return TypeAdapter(kind).validate_python(value[path[-1]])
    except ValidationError:
        return None


def _values_that_are_no_text(value: Any, field: str) -> Iterator[tuple[str, str]]:
    """Yield the field and the character of each value that no text editor would have written: escapes can say anything."""
    if isinstance(value, str):
        if (wrong := not_text(value)) is not None:
            yield field, wrong
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _values_that_are_no_text(key, f"{field} (key)".strip())
            yield from _values_that_are_no_text(one, f"{field}.{ascii(key)[1:-1]}".strip("."))
    elif isinstance(value, list):
        for one in value:
            yield from _values_that_are_no_text(one, field)


def load_manifest(path: Path) -> RunManifest:
    """Read and validate a manifest file.

    Raises:
        ManifestRefused: if the file cannot be read, is no regular file of text, is too large, or is not a valid manifest.
    """
    text = read_text(path, "a manifest", most=MAX_MANIFEST_BYTES, refusal=ManifestRefused)
    return parse_manifest(text, where=str(path))


def stored_manifest(text: str) -> RunManifest:
    """Return the manifest that the ledger stored as canonical JSON.

    Its text has the number of chunks of a job also where its author left that to the plan, which has the batches of the run in any case.
    """
    data = json.loads(text)
    limits = data.get("limits") if isinstance(data, dict) else None
    if isinstance(limits, dict) and limits.get("maxChunksPerJob") == CHUNKS_PER_JOB:
        del limits["maxChunksPerJob"]
    return RunManifest.model_validate(data)
