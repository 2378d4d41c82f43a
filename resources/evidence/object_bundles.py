"""Bundles in a bucket, which has no rename: how one is sealed whole or not at all, and which of what lies there is sealed.

Put here the order of the requests, and what each may leave behind that was the last of its process:

1. All files go into one object, `<bundle>.begun-<root>.json`: it is there whole or not at all. Nothing is sealed by it.
2. The bundle's link is appended to the chain. The first link of a run's bundle decides what is in it, whoever else is at it with
   other files: from here on there is one content, and it lies in the store.
3. The files are put in their places below `<bundle>/`, and last of all their list. With that the bundle is sealed. Whoever comes
   next puts there what is missing, from the object of the first step.

No object is replaced or deleted: the first one of a name stays, and one that is there already has to have the same bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from manifests.canonical import canonical_json, sha256_of
from manifests.errors import Problem, PublicationRefused
from resources.evidence.bundle_files import INDEX, SEALED, index_text, sealed_link
from resources.evidence.chain import Chain
from resources.files.kept_files import create, json_of, read_kept
from resources.files.places import ObjectPlace
from resources.files.s3_objects import TOGETHER

_BUNDLE = re.compile(r"bundle(?:-(\d+))?")
BEGUN = re.compile(r"(bundle(?:-\d+)?)\.begun-([0-9a-f]{64})\.json")
"""What a bundle's files lie in before it is sealed: the name of the bundle, and its root."""


def run_ids(folder: ObjectPlace) -> list[str]:
    """Return the runs of which there is a bundle below a folder."""
    found = defaultdict(set)
    for key in folder.below():
        run_id, _, rest = key.partition("/")
        found[run_id].add(rest)
    return sorted(run_id for run_id, keys in found.items() if _sealed_names(keys))


def sealed_in(run: ObjectPlace) -> list[ObjectPlace]:
    """Return the sealed bundles of a run, oldest first.

    One without its list counts as well, for whoever asks what has become of that, unless it is still about to be sealed.
    """
    return [run / name for name in _sealed_names(set(run.below()))]


def _sealed_names(keys: set[str]) -> list[str]:
    begun = {found[1] for key in keys if (found := BEGUN.fullmatch(key))}
    folders = {key.partition("/")[0] for key in keys if "/" in key}
    names = [name for name in folders if _BUNDLE.fullmatch(name) and (f"{name}/{INDEX}" in keys or name not in begun)]
    return sorted(names, key=_edition)


def _edition(name: str) -> int:
    return int(name.partition("-")[2] or 0)


def begun_in(keys: set[str]) -> list[tuple[str, str]]:
    """Return name and root of each bundle that was begun, by the keys below a run's folder."""
    return sorted((found[1], found[2]) for key in keys if (found := BEGUN.fullmatch(key)))


def begun_at(bundle: ObjectPlace, root: str) -> ObjectPlace:
    """Return where the files of a bundle lie before it is sealed."""
    return bundle.with_name(f"{bundle.name}.begun-{root}.json")


def seal(chain: Chain, bundle: ObjectPlace, files: Mapping[str, bytes]) -> tuple[str, str]:
    """Seal a bundle that is not sealed yet; return the root of these files, and that of the bundle that is sealed now.

    The second is empty where the run was published meanwhile, with another bundle.

    Raises:
        PublicationRefused: if something else lies where its files go.
        StoreRefused: if the store does not do it.
    """
    index = {name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}
    root = sha256_of(index)
    before = chain.length()
    is_begun = any(name == bundle.name for name, _ in begun_in(set(bundle.parent.below())))
    if not create(begun_at(bundle, root), _packed(files)):
        _ = _unpacked(bundle, root)
    said = sealed_link(bundle, root)

    def same(link: Mapping[str, Any]) -> bool:
        is_mine = link.get("run") == said["run"]
        return is_mine and ("rows" in link or (link.get("event"), link.get("bundle")) == (SEALED, bundle.name))

    # whoever has begun it before may have appended its link
    link = chain.append(said, since=0 if is_begun else before, same=same).content
    if link.get("event") != SEALED:
        return root, ""
    decided = str(link.get("root"))
    _put_in_place(bundle, files if decided == root else _unpacked(bundle, decided))
    return root, decided


def _put_in_place(bundle: ObjectPlace, files: Mapping[str, bytes]) -> None:
    """Make the objects of a bundle that are not there yet, its list last."""
    index = {name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}

    def put(name: str) -> str:
        place = bundle / name
        return "" if create(place, files[name]) or read_kept(place) == files[name] else name

    with ThreadPoolExecutor(TOGETHER) as pool:
        strange = [name for name in pool.map(put, files) if name]
    listed = index_text(bundle.parent.name, index).encode()
    if not strange and not create(bundle / INDEX, listed) and read_kept(bundle / INDEX) != listed:
        strange = [INDEX]
    if strange:
        raise PublicationRefused(
            Problem(
                f"{', '.join(strange)} in {bundle} is not what was begun to be sealed there",
                "a bundle is what a link of the chain vouches for, and nothing in its place is replaced",
                "move it away, keep it, find out who has put it there, and run the same command again",
            )
        )


def is_whole(bundle: ObjectPlace, root: str) -> bool:
    """Whether all files of a bundle that was begun lie where they were put first, as they were.

    Raises:
        FileNotFoundError: if nothing lies there.
    """
    return _read(bundle, root) is not None


def hashes_of_begun(bundle: ObjectPlace, root: str) -> dict[str, str]:
    """Return the SHA-256 of each file of a bundle that was begun, its list among them; none where they are not as they were."""
    try:
        files = _read(bundle, root)
    except FileNotFoundError:
        files = None
    if files is None:
        return {}
    index = {name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}
    listed = index_text(bundle.parent.name, index).encode()
    return index | {INDEX: hashlib.sha256(listed).hexdigest()}


def _unpacked(bundle: ObjectPlace, root: str) -> dict[str, bytes]:
    """Return the files of a bundle that was begun.

    Raises:
        PublicationRefused: if they are not there, or are not as they were.
    """
    try:
        found = _read(bundle, root)
    except FileNotFoundError:
        found = None
    if found is None:
        raise PublicationRefused(
            Problem(
                f"{begun_at(bundle, root)} is missing, or is not what was put there",
                f"link and bundle say the same: a bundle of root {root} was begun, and nothing else is sealed in its place",
                f"`backfill verify {bundle.parent.name}`; restore the object from a backup, or from its earlier version",
            )
        )
    return found


def _read(bundle: ObjectPlace, root: str) -> dict[str, bytes] | None:
    raw = read_kept(begun_at(bundle, root))
    try:
        found = {str(name): str(text).encode() for name, text in json_of(raw).items()}
    except (ValueError, AttributeError):
        return None
    index = {name: hashlib.sha256(raw).hexdigest() for name, raw in sorted(found.items())}
    return found if sha256_of(index) == root and _packed(found) == raw else None


def _packed(files: Mapping[str, bytes]) -> bytes:
    return (canonical_json({name: raw.decode() for name, raw in files.items()}) + "\n").encode()
