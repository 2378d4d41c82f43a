"""What lies below the prefix of the evidence in a bucket: which of its objects this project puts there.

Put here which keys there may be, as `foreign_files` says which names a local folder may have. A bucket has neither links nor pipes,
and a key that is no file of a run's evidence is named whatever it looks like.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable

from manifests.text import visible
from resources.evidence import object_bundles
from resources.evidence.store import BUNDLE, CHAIN, INDEX, PROBE, RECORDS, REPORT, examine
from resources.files.kept_files import hashes_of_files, read_json
from resources.files.places import ObjectPlace
from resources.ledger.journal import Unexplained

_COPIED = re.compile(r"(bundle(?:-\d+)?)\.partial-[0-9a-f]{32}/[a-z_]+\.json(?:\.partial)?")
"""Files of a bundle that a process had begun in a local folder, from which the evidence was copied into the bucket."""
_RECORD = re.compile(rf"{RECORDS}/(?:[^/]+\.json|\.partial-[0-9a-f]{{32}})")
_SHOWN = 20
_WHAT = "was not put there by this project: no index, link or interrupted write explains it"


def begun_bundles(run: ObjectPlace) -> set[tuple[str, str]]:
    """Return name and root of each bundle of a run that is whole where its files were put first, in the bucket or before it was moved there."""
    keys = set(run.below())
    found = {(name, root) for name, root in object_bundles.begun_in(keys) if _is_whole(run / name, root)}
    for folder, name in _copied(keys):
        root, changed = examine(run / folder, run.name)
        if not changed:
            found.add((name, root))
    return found


def _copied(keys: Iterable[str]) -> list[tuple[str, str]]:
    """Return the folders in which bundles were begun before the evidence was copied into the bucket, each with the bundle's name."""
    return sorted({(key.partition("/")[0], found[1]) for key in keys if (found := _COPIED.fullmatch(key))})


def interrupted(run: ObjectPlace) -> list[str]:
    """Return the bundles of a run that were begun and are not sealed with the root that they were begun with."""
    sealed = {(bundle.name, _told_root(bundle)) for bundle in object_bundles.sealed_in(run)}
    keys = set(run.below())
    left = [
        object_bundles.begun_at(run / name, root).name
        for name, root in object_bundles.begun_in(keys)
        if (name, root) not in sealed
    ]
    return [f"{run.name}/{name}" for name in [*left, *(folder for folder, _ in _copied(keys))]]


def strange_folders(
    folder: ObjectPlace, known: Callable[[], Container[str]], others: Container[str]
) -> list[Unexplained]:
    """Return the objects that are of no run; `others` keep records of their own beside them."""
    files, folders = folder.bucket.children(f"{folder.key}/")
    runs = known()
    wrong = _named(name for name in files if name != PROBE)
    for name in folders:
        if name in others:
            wrong += strange_files(folder / name)
        elif name != CHAIN and name not in runs:
            wrong += _named(f"{name}/{key}" for key in (folder / name).below())
    return wrong


def strange_files(run: ObjectPlace) -> list[Unexplained]:
    """Return the objects of a run's evidence that this project does not put there, and no interrupted write of it has left."""
    keys = sorted(run.below())
    sealed = {bundle.name for bundle in object_bundles.sealed_in(run)}
    begun = object_bundles.begun_in(set(keys))
    whole = {object_bundles.begun_at(run / name, root).name for name, root in begun if _is_whole(run / name, root)}
    of_begun: dict[str, list[str]] = {}
    strange = []
    for key in keys:
        folder, _, rest = key.partition("/")
        if rest and folder in sealed:
            continue  # each of its files is held against its list
        if rest and BUNDLE.fullmatch(folder):
            of_begun.setdefault(folder, []).append(rest)
        elif not (key in whole or key == REPORT or _RECORD.fullmatch(key) or _COPIED.fullmatch(key)):
            strange.append(key)
    for folder, names in of_begun.items():
        expected = [object_bundles.hashes_of_begun(run / name, root) for name, root in begun if name == folder]
        found = hashes_of_files(run / folder, names)
        if not any(found.items() <= hashes.items() for hashes in expected):
            strange += [f"{folder}/{name}" for name in names]
    return _named(f"{run.name}/{key}" for key in strange)


def _is_whole(bundle: ObjectPlace, root: str) -> bool:
    try:
        return object_bundles.is_whole(bundle, root)
    except FileNotFoundError:
        return False


def _told_root(bundle: ObjectPlace) -> str:
    try:
        return str(read_json(bundle / INDEX)["root"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return ""


def _named(keys: Iterable[str]) -> list[Unexplained]:
    strange = sorted(keys)
    found = [Unexplained(visible(key), _WHAT, expected="nothing", found="an object") for key in strange[:_SHOWN]]
    if len(strange) > _SHOWN:
        first = strange[0].partition("/")[0]
        more = f"{len(strange) - _SHOWN} more objects"
        found.append(Unexplained(visible(first), _WHAT, expected="nothing", found=more))
    return found
