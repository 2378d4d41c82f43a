"""What lies in the evidence folder, or below its prefix in a bucket (`foreign_objects`): which of its files this project puts there, and which an interrupted write has left.

Put here which names there may be. What bundles and records say is held against index and links by `sealed_bundles`
and `linked_records`, the chain's own folder by `resources.evidence.chain`. Nothing is opened here, and no link is followed: a planted file may be anything.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Container
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from backfill_assets.audit import foreign_objects
from manifests.text import visible
from resources.evidence.store import BUNDLE, CHAIN, RECORDS, REPORT, EvidenceStore, examine
from resources.files.kept_files import is_text_name
from resources.files.places import ObjectPlace, local
from resources.ledger.journal import Unexplained

_BEGUN = re.compile(r"(bundle(?:-\d+)?)\.partial-[0-9a-f]{32}")
"""A bundle that is being written, or that a process could not put in its place before it ended."""
_FILE_OF_A_BUNDLE = re.compile(r"[a-z_]+\.json(?:\.partial)?")
_RECORD = re.compile(r"[^/]+\.json|\.partial-[0-9a-f]{32}")
_REPORT = re.compile(rf"{re.escape(REPORT)}|\.{re.escape(REPORT)}\.[a-z0-9_]{{8}}\.partial")
_SHOWN = 20
_WHAT = "was not put there by this project: no index, link or interrupted write explains it"


def begun_bundles(store: EvidenceStore, run_id: str) -> set[tuple[str, str]]:
    """Return name and root of each bundle of a run that is whole, and that a process could not put in its place before it ended."""
    if isinstance(store.folder, ObjectPlace):
        return foreign_objects.begun_bundles(store.folder / run_id)
    found = set()
    for folder, name in _begun(store, run_id):
        try:
            root, changed = examine(folder, run_id)
        except FileNotFoundError:
            continue  # it is in its place by now
        if not changed:
            found.add((name, root))
    return found


def interrupted(store: EvidenceStore, run_id: str) -> list[str]:
    """Return the folders of a run in which a bundle was begun and not put in its place."""
    if isinstance(store.folder, ObjectPlace):
        return foreign_objects.interrupted(store.folder / run_id)
    return [f"{run_id}/{folder.name}" for folder, _ in _begun(store, run_id)]


def _begun(store: EvidenceStore, run_id: str) -> list[tuple[Path, str]]:
    named = ((path, _BEGUN.fullmatch(path.name)) for path in _inside(local(store.folder) / run_id))
    return [(path, name[1]) for path, name in named if name and S_ISDIR(_mode(path))]


def strange_folders(
    store: EvidenceStore, known: Callable[[], Container[str]], others: Container[str]
) -> list[Unexplained]:
    """Return the files of the evidence folder that are of no run; `others` keep records of their own beside them.

    `known` is asked for the runs once the folder has been read: a run is on record before it has evidence.
    """
    if isinstance(store.folder, ObjectPlace):
        return foreign_objects.strange_folders(store.folder, known, others)
    wrong: list[Unexplained] = []
    paths = _inside(local(store.folder))
    runs = known()
    for path in paths:
        if path.name == CHAIN or not is_text_name(path.name):
            continue  # named by whoever reads the chain, and the folder's names
        if path.name in others and S_ISDIR(_mode(path)):
            wrong += strange_files(store, path.name)
        elif path.name not in runs or not S_ISDIR(_mode(path, follow=True)):
            wrong += _all_of(store, path)
    return wrong


def strange_files(store: EvidenceStore, run_id: str) -> list[Unexplained]:
    """Return the files of a run's evidence that this project does not put there, and no interrupted write of it has left."""
    if isinstance(store.folder, ObjectPlace):
        return foreign_objects.strange_files(store.folder / run_id)
    wrong: list[Unexplained] = []
    for path in _inside(local(store.folder) / run_id):
        is_folder = S_ISDIR(_mode(path, follow=True))
        if is_folder and BUNDLE.fullmatch(path.name):
            continue  # each of its files is held against its index
        if is_folder and path.name == RECORDS:
            wrong += _others(store, path, _RECORD)
        elif S_ISDIR(_mode(path)) and _BEGUN.fullmatch(path.name):
            wrong += _others(store, path, _FILE_OF_A_BUNDLE)
        elif not (_REPORT.fullmatch(path.name) and _is_file(path)):
            wrong += _all_of(store, path)
    return wrong


def _others(store: EvidenceStore, folder: Path, names: re.Pattern[str]) -> list[Unexplained]:
    return [
        one
        for path in _inside(folder)
        if not (names.fullmatch(path.name) and _is_file(path))
        for one in _all_of(store, path)
    ]


def _all_of(store: EvidenceStore, path: Path) -> list[Unexplained]:
    """Name a file, or each file of a folder; an empty folder says nothing."""
    if not S_ISDIR(_mode(path)):
        files = [path] if os.path.lexists(path) else []
    else:
        files = [Path(top) / name for top, folders, names in os.walk(path) for name in [*names, *_links(top, folders)]]
    found = [
        Unexplained(visible(str(file.relative_to(local(store.folder)))), _WHAT, expected="nothing", found=_said(file))
        for file in sorted(files)[:_SHOWN]
    ]
    if len(files) > _SHOWN:
        more = f"{len(files) - _SHOWN} more files"
        found.append(
            Unexplained(visible(str(path.relative_to(local(store.folder)))), _WHAT, expected="nothing", found=more)
        )
    return found


def _links(top: str, folders: list[str]) -> list[str]:
    return [name for name in folders if (Path(top) / name).is_symlink()]


def _inside(folder: Path) -> list[Path]:
    """Return what is in a folder, by name; nothing if it is not there, or no folder."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:  # a link in a circle is no folder, either: it is named where its own name is judged
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return []
        raise


def _is_file(path: Path) -> bool:
    return S_ISREG(_mode(path, follow=True))


def _mode(path: Path, *, follow: bool = False) -> int:
    """Return what a path is; 0 if it is gone by now, or a link to nothing."""
    try:
        return (path.stat() if follow else path.lstat()).st_mode
    except OSError:
        return 0


def _said(file: Path) -> str:
    try:
        facts = file.lstat()
    except OSError as error:
        return f"{type(error).__name__}"
    return f"{facts.st_size:,} bytes" if S_ISREG(facts.st_mode) else "no regular file"
