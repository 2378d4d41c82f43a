"""Whether a bucket can keep evidence: a name is given away once there, and what was written is read back as it was.

Put here what is tried before anything is entrusted to a store. One object is the probe, for good: whoever tries it again finds it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from manifests.errors import EnvironmentRefused, Problem
from resources.evidence.store import CHAIN, PROBE, EvidenceStore
from resources.files.kept_files import read_kept
from resources.files.places import ObjectPlace
from resources.files.s3_objects import Content, LargerError

_TEXT = b'{"about":"whether a name is given away once: made on the condition that nothing of it is there"}\n'
_CONTENDERS = 8
_FIRST = "00000001.json"


def require_fit(store: EvidenceStore, own_folder: Path) -> None:
    """Refuse a bucket that gives a name away twice, or that has not the chain which this installation has in its home.

    Raises:
        EnvironmentRefused: if it does.
        StoreRefused: if it cannot be asked.
    """
    if isinstance(store.folder, ObjectPlace):
        _require_names_once(store.folder / PROBE)
        _require_moved(store, own_folder)


def require_one_chain(store: EvidenceStore) -> None:
    """Refuse a place without a link, be it a folder or a bucket, where the ledger knows of links.

    Raises:
        EnvironmentRefused: if it does.
        StoreRefused: if it cannot be asked.
    """
    if store.chain.length() == 0:
        store.chain.before_first()


def _require_names_once(probe: ObjectPlace) -> None:
    """Have several make the same object at once, and one more after them: at most one has ever made it."""

    def makes(_: int) -> bool:
        return bool(probe.bucket.make(probe.key, _TEXT))

    with ThreadPoolExecutor(_CONTENDERS) as pool:
        made = sum(pool.map(makes, range(_CONTENDERS)))
    made += makes(_CONTENDERS)
    try:
        found: Content | None = probe.bucket.read(probe.key, len(_TEXT) + 1)
    except (FileNotFoundError, LargerError):
        found = None
    fix = "keep evidence in a store that has conditional writes (AWS S3, MinIO, Ceph, the Versity gateway), or unset `evidence`"
    if made > 1:
        what = f"made the object {probe} {made} times, each time on the condition that there is none (If-None-Match: *)"
        rule = "a link of the chain has a number that nobody else gets: a store that replaces it loses links in silence"
    elif found is None or not found.token or found.raw != _TEXT:
        what = f"does not give {probe} back, or gives it with other content or without the metadata that it was written with"
        rule = "what became of a request without an answer is told by the object's own metadata (x-amz-meta-*)"
        fix = (
            f"if it was copied there without its metadata, or changed by somebody, remove this one object ({probe.name}), and run the "
            f"same command again: it is made anew; if it is refused again, {fix}"
        )
    else:
        return
    raise EnvironmentRefused(
        Problem(
            f"the store {probe.bucket.where} {what}",
            rule,
            fix,
        )
    )


def _require_moved(store: EvidenceStore, own_folder: Path) -> None:
    """Refuse to begin a second chain while the first one is in the home folder, or to go on with one that was begun beside it.

    Raises:
        EnvironmentRefused: if there is one, and in the bucket none or another one.
    """
    own, first = own_folder / CHAIN / _FIRST, store.folder / CHAIN / _FIRST
    if not own.exists():
        return
    try:
        if read_kept(first) == read_kept(own):
            return
        what = "has another chain"
    except FileNotFoundError:
        what = "has none"
    raise EnvironmentRefused(
        Problem(
            f"{own_folder} has the evidence of this installation, and {store.folder} {what}",
            "there is one chain of evidence: a second one would know nothing of the runs that are on record",
            f"stop whatever writes, copy the folder as it is to where nothing is yet (`aws s3 cp --recursive {own_folder} {store.folder}`), and "
            "run the same command again; what another chain vouches for is not overwritten: keep it",
        )
    )
