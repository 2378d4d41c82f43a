"""The evidence store: what proves a run, kept immutable.

A bundle is a folder of files sealed before the publication; its root hash goes into the published snapshot. What
happens afterwards (published, rolled back) is appended as records that name the root. Nothing here is ever rewritten
or deleted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manifests.canonical import canonical_json, sha256_of
from manifests.errors import Problem, PublicationRefused

INDEX = "index.json"
_BUNDLE = re.compile(r"bundle(?:-(\d+))?")


class EvidenceStore:
    """Bundles below one folder, one a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, run_id: str, edition: int | None = None) -> Path:
        """Return the folder of a run's bundle; without an edition, of its last one.

        A run has more than one where chunks were planned anew after a bundle was sealed: earlier ones stay.
        """
        if edition is None:
            found = (_BUNDLE.fullmatch(folder.name) for folder in (self.folder / run_id).glob("bundle*"))
            edition = max((int(name[1] or 0) for name in found if name), default=0)
        return self.folder / run_id / ("bundle" if edition == 0 else f"bundle-{edition}")

    def seal(self, run_id: str, files: Mapping[str, Any], edition: int = 0) -> str:
        """Write the bundle, whole or not at all, and return its root hash.

        A bundle that was sealed before (the publication was interrupted) stays as it is, if it is unharmed.

        Raises:
            PublicationRefused: if an earlier bundle of this run is damaged.
        """
        final = self.path(run_id, edition)
        if final.exists():
            return self.verify(run_id)
        partial = final.with_name(f"{final.name}.partial-{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        index = {}
        for name, content in sorted(files.items()):
            raw = (json.dumps(json.loads(canonical_json(content)), indent=1, ensure_ascii=False) + "\n").encode()
            _write(partial / name, raw)
            index[name] = hashlib.sha256(raw).hexdigest()
        root = sha256_of(index)
        _write(partial / INDEX, _index_text(run_id, index).encode())
        partial.rename(final)
        return root

    def verify(self, run_id: str) -> str:
        """Return the root hash of a sealed bundle after hashing every file again.

        Raises:
            PublicationRefused: naming each file that is missing, added or changed.
        """
        folder = self.path(run_id)
        if not (folder / INDEX).is_file():
            raise PublicationRefused(
                Problem(
                    f"there is no evidence of '{run_id}'", "a published run has a sealed bundle", f"restore {folder}"
                )
            )
        found = {
            entry.name: hashlib.sha256(entry.read_bytes()).hexdigest() if entry.is_file() else "a folder"
            for entry in folder.iterdir()
            if entry.name != INDEX
        }
        text = (folder / INDEX).read_text(errors="replace")
        names: set[str] = set()
        try:
            index = json.loads(text)
            names = {name for name, _ in set(found.items()) ^ set(index["files"].items())}
            whole = text == _index_text(run_id, index["files"])
        except (ValueError, KeyError, TypeError, AttributeError):
            whole = False  # no index of ours any more: named below
        if names or not whole:
            raise PublicationRefused(
                Problem(
                    f"the evidence of '{run_id}' was changed after it was sealed: {', '.join(sorted(names) or [INDEX])}",
                    "evidence is immutable",
                    f"keep {folder} as it is and find out who changed it; the change needs a new run",
                )
            )
        return sha256_of(found)

    def append(self, run_id: str, name: str, content: Mapping[str, Any]) -> Path:
        """Add a record beside the bundle; the same record again is not written twice."""
        folder = self.folder / run_id / "records"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{name}.json"
        if not file.exists():
            _write(file, (canonical_json(dict(content)) + "\n").encode())
        return file


def _index_text(run_id: str, files: Mapping[str, str]) -> str:
    return canonical_json({"runId": run_id, "files": dict(files), "root": sha256_of(dict(files))}) + "\n"


def _write(file: Path, raw: bytes) -> None:
    partial = file.with_suffix(file.suffix + ".partial")
    with partial.open("wb") as stream:
        stream.write(raw)
        stream.flush()
        os.fsync(stream.fileno())
    partial.chmod(0o444)
    partial.rename(file)
