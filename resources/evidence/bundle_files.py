"""The files of a bundle: what each holds, what their list says, and which of them are not as they were sealed.

Put here what a bundle is, wherever it lies. How one gets into its place whole is `store`'s, and in a bucket `object_bundles`'.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any

from manifests.canonical import canonical_json, canonical_json_of_plain, plain, sha256_of
from manifests.errors import EnvironmentRefused
from manifests.text import visible
from resources.files.kept_files import hashes_of_files, json_of, read_kept
from resources.files.places import Place, names_in

INDEX = "index.json"
SEALED = "sealed"
"""The event of a link: a bundle is about to be put in its place."""


def texts_of(files: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the bytes of a bundle's files, by their names in order."""
    return {name: (_legible(content) + "\n").encode() for name, content in sorted(files.items())}


def sealed_link(bundle: Place, root: str) -> dict[str, Any]:
    """Return what the link of a bundle says, but for its place."""
    return {"event": SEALED, "run": bundle.parent.name, "bundle": bundle.name, "root": root}


class PlainRows(list[dict[str, Any]]):
    """Rows whose cells are plain data already, with texts for names at every depth: nobody looks through them once more."""


@dataclass(frozen=True)
class Changed:
    """A file of a bundle that is not as it was sealed: the hashes then and now, "nothing" where there is no file."""

    name: str
    expected: str
    found: str


def examine(folder: Place, run_id: str) -> tuple[str, list[Changed]]:
    """Return the root hash over a bundle's files as they are now, and each that is not as it was sealed.

    What lies in a file's place and is none, or cannot be read, is not as it was sealed.
    """
    try:
        names = names_in(folder)
    except OSError as error:
        return "", [Changed(".", "a folder of files", error.strerror or str(error))]
    hashes = hashes_of_files(folder, [*(name for name in names if name != INDEX), INDEX])
    own = hashes.pop(INDEX)
    found = {visible(name) or "/": found for name, found in hashes.items()}  # an object may be called like the folder
    root = sha256_of(found)
    try:
        raw = read_kept(folder / INDEX)
        listed = dict(json_of(raw)["files"])
        whole = raw == index_text(run_id, listed).encode()
    except (FileNotFoundError, EnvironmentRefused, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:  # it does not hold together by itself: what it lists is no measure of the files
        return root, [Changed(INDEX, hashlib.sha256(index_text(run_id, found).encode()).hexdigest(), own)]
    wrong = sorted(name for name in found.keys() | listed.keys() if found.get(name) != listed.get(name))
    return root, [Changed(name, str(listed.get(name, "nothing")), found.get(name, "nothing")) for name in wrong]


def _legible(content: Any, levels: int = 2) -> str:
    """Return the canonical JSON of data with a line for each of what lies at the top two levels: a row of a table, a field of a plan."""
    kind = type(content)
    if kind is str:  # nearly all there is: to make an encoder for each takes five times as long
        return encode_basestring(content)
    if kind is int:
        return str(content)
    if not content or not levels:
        return canonical_json(content)
    if kind is PlainRows:
        return "[\n" + ",\n".join(map(_row, content)) + "\n]"
    if kind is not dict and kind is not list:
        data = plain(content)
        return _legible(data, levels) if isinstance(data, (dict, list)) else canonical_json_of_plain(data)
    if kind is list:
        return "[\n" + ",\n".join([_legible(one, levels - 1) for one in content]) + "\n]"
    named = sorted({str(name): one for name, one in content.items()}.items())
    return (
        "{\n" + ",\n".join([f"{encode_basestring(name)}: {_legible(one, levels - 1)}" for name, one in named]) + "\n}"
    )


def _row(row: Mapping[str, Any]) -> str:
    """Return what `_legible` does of a row of plain cells."""
    cells = [f"{encode_basestring(name)}: {canonical_json_of_plain(row[name])}" for name in sorted(row)]
    return "{\n" + ",\n".join(cells) + "\n}" if cells else "{}"


def index_text(run_id: str, files: Mapping[str, str]) -> str:
    """Return the list of a bundle's files: their hashes, and the root hash over these."""
    return canonical_json({"runId": run_id, "files": dict(files), "root": sha256_of(dict(files))}) + "\n"
