"""The evidence store: what proves a run, kept immutable.

A bundle is a folder of files sealed before the publication; its root hash goes into the published snapshot. What
happens afterwards (published, superseded, rolled back) is appended as records that name the root, each with a link in
the chain over all runs. Nothing here is ever rewritten or deleted.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from manifests.canonical import canonical_json, sha256_of
from manifests.errors import EnvironmentRefused, Problem, PublicationRefused
from manifests.text import visible
from resources.evidence import object_bundles
from resources.evidence.bundle_files import INDEX, SEALED, Changed, examine, index_text, sealed_link, texts_of
from resources.evidence.object_chain import chain_in
from resources.files.kept_files import (
    create,
    hash_or_kind,
    is_text_name,
    not_a_file,
    read_json,
    sha256_of_file,
    sync_folder,
)
from resources.files.places import ObjectPlace, Place, found_in, is_there, object_place
from resources.files.s3_objects import SCHEME

__all__ = ["INDEX", "SEALED", "Changed", "EvidenceStore", "examine", "hash_or_kind", "sha256_of_file"]
CHAIN = "_chain"
"""The folder of the chain; no run id begins so."""
RECORDS = "records"
KEPT = "kept"
"""The event of a link: a record that changes no rows was put beside a bundle."""
REPORT = "report.html"
PROBE = "_probe.json"
"""The object by which a bucket is tried: is a name given away once?"""
BUNDLE = re.compile(r"bundle(?:-(\d+))?")
"""The names of a run's bundles; the edition is the number."""


class EvidenceStore:
    """Bundles below one folder, one a run: a local one, or a prefix of a bucket."""

    def __init__(self, folder: Place) -> None:
        self.folder = folder
        self.chain = chain_in(folder / CHAIN)

    @classmethod
    def at(cls, place: str, properties: Mapping[str, str]) -> EvidenceStore:
        """Return the store at a local folder, or at a prefix of a bucket that properties of a catalog open."""
        return cls(object_place(place, properties) if place.startswith(SCHEME) else Path(place))

    def run_ids(self) -> list[str]:
        """Return the runs of which a bundle was sealed."""
        if isinstance(self.folder, ObjectPlace):
            return object_bundles.run_ids(self.folder)
        found = (folder for folder in self.folder.glob("*/bundle*") if BUNDLE.fullmatch(folder.name))
        return sorted({folder.parent.name for folder in found if is_text_name(folder.parent.name)})

    def strangers(self) -> list[str]:
        """Return what lies among the runs' folders and has no name that a run could have, so that it can be shown."""
        if isinstance(self.folder, ObjectPlace):
            return []  # every key of a bucket is text
        return sorted(visible(one.name) for one in self.folder.glob("*") if not is_text_name(one.name))

    def records(self, run_id: str) -> Place:
        """Return the folder of what happened to a run after its bundle was sealed."""
        return self.folder / run_id / RECORDS

    def report(self, run_id: str) -> Place:
        """Return where the report of a run is written."""
        return self.folder / run_id / REPORT

    def bundles(self, run_id: str) -> list[Place]:
        """Return the sealed bundles of a run, oldest first."""
        if isinstance(self.folder, ObjectPlace):
            return [*object_bundles.sealed_in(self.folder / run_id)]
        found = ((folder, BUNDLE.fullmatch(folder.name)) for folder in (self.folder / run_id).glob("bundle*"))
        return [folder for _, folder in sorted((int(name[1] or 0), folder) for folder, name in found if name)]

    def path(self, run_id: str, edition: int | None = None) -> Place:
        """Return the folder of a run's bundle; without an edition, of the one whose root the links of its changes cite, else the last.

        A run has more than one where chunks were planned anew after a bundle was sealed: earlier ones stay.
        """
        if edition is None:
            sealed = self.bundles(run_id)
            cited = self.cited(run_id) if len(sealed) > 1 else ""
            last = sealed[-1] if sealed else self.folder / run_id / "bundle"
            return next((one for one in sealed if one.name == cited), last)
        return self.folder / run_id / ("bundle" if edition == 0 else f"bundle-{edition}")

    def cited(self, run_id: str) -> str:
        """Return the name of the bundle whose root the first link of a change of a run cites; empty if there is none.

        One that was sealed before that link; of a run of an earlier version, whose bundles got their links later, any.
        """
        names: dict[str, str] = {}
        first = ""
        for link in self.chain.contents():
            if link.get("run") != run_id:
                continue
            root = str(link.get("root"))
            if link.get("event") == SEALED:
                names.setdefault(root, str(link.get("bundle")))
            elif "rows" in link and root in names:
                return names[root]
            elif "rows" in link:
                first = first or root
        return names.get(first, "")

    def seal(
        self,
        run_id: str,
        files: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        edition: int = 0,
        *,
        require: Callable[[Place], None] = lambda _: None,
    ) -> str:
        """Write the bundle, whole or not at all, and return its root hash; `files` that are to be asked for are asked if it is not there.

        A bundle that was sealed before (the publication was interrupted), or by another process at the same moment, stays
        as it is, if it is unharmed and `require` has nothing to say against it.

        Raises:
            PublicationRefused: if an earlier bundle of this run is damaged, or lies there and was never sealed; what
                `require` raises.
            EnvironmentRefused: if something else lies in the place of the run's folder, or of that of its records.
        """
        final = self.path(run_id, edition)
        self._require_folders(run_id)
        self.require_sealed(run_id)
        if isinstance(final, ObjectPlace):
            return self._seal_in_a_bucket(final, files, require)
        if final.exists():
            return self._sealed_before(final, require)
        texts = _texts(files)
        before = self.chain.length()
        begun = any(final.parent.glob(f"{final.name}.partial-*"))  # whoever began it may have appended its link
        partial = final.with_name(f"{final.name}.partial-{uuid4().hex}")
        partial.mkdir(parents=True)
        index = {}
        for name, raw in texts.items():
            _write(partial / name, raw)
            index[name] = hashlib.sha256(raw).hexdigest()
        root = sha256_of(index)
        _write(partial / INDEX, index_text(run_id, index).encode())
        sync_folder(partial)
        if final.exists():  # another process was faster, and no link is about this one yet
            shutil.rmtree(partial)
            return self._sealed_before(final, require)
        if not self._link_bundle(sealed_link(final, root), since=0 if begun else before):
            shutil.rmtree(partial)  # while this process slept, another one has sealed the run and published it
            return self._sealed_before(final, require)
        try:
            partial.rename(final)
        except OSError:
            if not (final / INDEX).is_file():
                raise
            sealed = self._sealed_before(final, require)  # the first one stays
            if sealed == root:
                shutil.rmtree(partial)
            return sealed  # else it has a link, and what that is about stays where it was begun
        sync_folder(final.parent)
        return root

    def _seal_in_a_bucket(
        self,
        final: ObjectPlace,
        files: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        require: Callable[[Place], None],
    ) -> str:
        if final in object_bundles.sealed_in(final.parent):
            return self._sealed_before(final, require)
        own, sealed = object_bundles.seal(self.chain, final, _texts(files))
        return own if sealed == own else self._sealed_before(final, require)

    def _sealed_before(self, bundle: Place, require: Callable[[Place], None]) -> str:
        root = self.verify(bundle.parent.name, bundle)
        require(bundle)
        return root

    def _link_bundle(self, said: Mapping[str, Any], *, since: int) -> bool:
        """Append the link of a bundle, and return whether there is one: none is, once a change of its run has a link."""

        def same(link: Mapping[str, Any]) -> bool:
            return said.items() <= link.items() or (link.get("run") == said["run"] and "rows" in link)

        return said.items() <= self.chain.append(said, since=since, same=same).content.items()

    def verify(self, run_id: str, bundle: Place | None = None) -> str:
        """Return the root hash of a sealed bundle (of the run's own, if none is given) after hashing every file again.

        Raises:
            PublicationRefused: naming each file that is missing, added or changed; or each bundle beside it that nobody has sealed.
        """
        if len(self.bundles(run_id)) > 1:  # the last one counts
            self.require_sealed(run_id)
        folder = bundle or self.path(run_id)
        if not is_there(folder / INDEX):
            raise PublicationRefused(
                Problem(
                    f"there is no evidence of '{run_id}'", "a published run has a sealed bundle", f"restore {folder}"
                )
            )
        root, damages = examine(folder, run_id)
        if damages:
            raise PublicationRefused(
                Problem(
                    f"the evidence of '{run_id}' was changed after it was sealed: "
                    + ", ".join(one.name for one in damages),
                    "evidence is immutable",
                    f"keep {folder} as it is and find out who changed it; the change needs a new run",
                )
            )
        return root

    def unsealed(self, run_id: str) -> list[str]:
        """Return the names of the bundles of a run that nobody has sealed so: no link vouches for their root under their name."""
        bundles = self.bundles(run_id)
        links = (one for one in self.chain.contents() if (one.get("event"), one.get("run")) == (SEALED, run_id))
        sealed = {(str(one.get("bundle")), str(one.get("root"))) for one in links} if bundles else set()
        return [one.name for one in bundles if not self._is_sealed(one, sealed)]

    @staticmethod
    def _is_sealed(bundle: Place, sealed: Collection[tuple[str, str]]) -> bool:
        """Whether a bundle was sealed; of one that was damaged since, only its name says so."""
        root, damages = examine(bundle, bundle.parent.name)
        return any(bundle.name == name for name, _ in sealed) if damages else (bundle.name, root) in sealed

    def require_sealed(self, run_id: str) -> None:
        """Refuse to go on with bundles of a run that nobody has sealed so.

        Raises:
            PublicationRefused: naming them.
        """
        if strange := self.unsealed(run_id):
            folder = self.folder / run_id
            raise PublicationRefused(
                Problem(
                    f"no link of the chain vouches for {', '.join(strange)} in {folder}",
                    "a bundle is what this project has sealed: nothing is published with one that somebody has put there",
                    "move it out of the folder, keep it, find out who has put it there, and run the same command again",
                )
            )

    def _require_folders(self, run_id: str) -> None:
        for folder in (self.folder / run_id, self.records(run_id)):
            if isinstance(folder, ObjectPlace):
                continue  # nothing can lie in its place
            if os.path.lexists(folder) and not folder.is_dir():
                raise EnvironmentRefused(
                    Problem(
                        f"{folder} is {not_a_file(folder) or 'a file'}, not a folder",
                        "the evidence of a run lies in folders of its own",
                        "move it away, keep it, find out who has put it there, and run the same command again",
                    )
                )

    def append(
        self, run_id: str, name: str, content: Mapping[str, Any], still: Callable[[], object] | None = None
    ) -> Place:
        """Add a record beside the bundle; the same record again is not written twice.

        `still` is asked last of all, and raises if the record may not be made any more.

        Raises:
            EnvironmentRefused: if something else lies in the place of the run's folder, or of that of its records.
        """
        self._require_folders(run_id)
        folder = self.records(run_id)
        if isinstance(folder, Path):
            folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{name}.json"
        raw = (canonical_json(dict(content)) + "\n").encode()
        before = self.chain.length()
        # nor is it, if somebody else makes it meanwhile: the first one stays
        if not (isinstance(file, Path) and file.exists()) and create(file, raw, still) and "follows" not in content:
            self.vouch_for(run_id, file, since=before)
        return file

    def vouch_for(self, run_id: str, file: Place, *, since: int = 0) -> None:
        """Append the link of a record that changes no rows (a diff, ...), unless it has one; the others have links of their own.

        Of several processes that complete a record at the same time one appends its link. `since` is a number that the chain
        had reached before the record was written.
        """
        self._link(_kept(run_id, file), since=since)

    def kept(self, run_id: str, *, since: int = 0) -> set[tuple[str, str]]:
        """Return name and hash of each record of a run that changes no rows and that a link after number `since` vouches for."""
        return {
            (str(link.get("record")), str(link.get("recordHash")))
            for link in self.chain.contents(since=since)
            if (link.get("event"), link.get("run")) == (KEPT, run_id)
        }

    def adopt(self, runs: Iterable[str]) -> None:
        """Append the links that bundles and records of runs lack because an earlier version of this project made none.

        Whoever was killed while adopting them has appended some.
        """
        before = self.chain.length()
        linked = set(map(_about, self.chain.contents()))
        for run_id in runs:
            said = [sealed_link(bundle, root) for bundle, root in map(_examined, self.bundles(run_id)) if root]
            for file in found_in(self.records(run_id), "*.json"):
                with suppress(ValueError):  # of a damaged one nobody can say what it was: `verify` names it
                    record = read_json(file)
                    if isinstance(record, dict) and "follows" not in record:
                        said.append(_kept(run_id, file))
            for one in said:
                if _about(one) not in linked:
                    self._link(one, since=before)

    def _link(self, said: Mapping[str, Any], *, since: int) -> None:
        """Append a link, unless one that came after number `since` says the same."""
        self.chain.append(said, since=since, same=lambda link: said.items() <= link.items())


def _texts(files: Mapping[str, Any] | Callable[[], Mapping[str, Any]]) -> dict[str, bytes]:
    return texts_of(files() if callable(files) else files)


def _kept(run_id: str, file: Place) -> dict[str, Any]:
    """Return what the link of a record that changes no rows says, but for its place."""
    return {"event": KEPT, "run": run_id, "record": file.stem, "recordHash": sha256_of_file(file)}


def _about(said: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a link of a bundle or of such a record says, by which it is told from others."""
    return tuple(str(said.get(name)) for name in ("event", "run", "bundle", "root", "record", "recordHash"))


def _examined(bundle: Place) -> tuple[Place, str]:
    """Return a bundle and its root; none of one that is damaged."""
    root, damages = examine(bundle, bundle.parent.name)
    return bundle, "" if damages else root


def _write(file: Path, raw: bytes) -> None:
    partial = file.with_suffix(file.suffix + ".partial")
    with partial.open("wb") as stream:
        stream.write(raw)
        stream.flush()
        os.fsync(stream.fileno())
    partial.chmod(0o444)
    partial.rename(file)
