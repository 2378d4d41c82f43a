"""Published rows, read again: are a chunk's files the ones that were gated, and do their rows have the digest on record.

Put here what is done for one chunk, file by file, in this process: memory is one file's. What is made of a problem is
`published_tables`'; how the rows came about anew is `reproduce`'s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import polars as pl
from pyarrow import ArrowException

from backfill_assets.evidence.seals import Sealed, digest_types
from backfill_assets.worker.columns import UNREADABLE
from backfill_assets.worker.digest import RowDigest
from backfill_assets.worker.key_order import by_key, one_order
from resources.lakehouse.storage import Storage, place_of

_UNREADABLE = (*UNREADABLE, ArrowException, ValueError)


@dataclass(frozen=True)
class FileProblem:
    """What is wrong with a file of a chunk, or, without a path, with its rows."""

    path: str
    what: str
    expected: str = ""
    found: str = ""


@dataclass
class ChunkProof:
    """What was found of a chunk's files; `complete` if all its rows were read and have the digest on record."""

    problems: list[FileProblem] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    complete: bool = False


def check_rows(storage: Storage, sealed: Sealed, chunk: Mapping[str, Any], in_use: Container[str]) -> ChunkProof:
    """Read the files of a published chunk again and hold them against what the evidence has of it."""
    proof = ChunkProof()
    computed: list[tuple[tuple[Any, ...], str]] = []
    declared = sealed.target
    for file in [*chunk["files"], *chunk["derived"]]:
        is_computed = file in chunk["files"]
        place = place_of(file["path"])
        raw = _content(storage, place, file.get("sha256") or "", in_use, proof)
        if raw is None:
            continue
        _hold(place, raw, file, proof)
        if is_computed:
            try:
                first = pl.read_parquet(BytesIO(raw), hive_partitioning=False, columns=list(declared.key), n_rows=1)
                computed.append((first.row(0) if first.height else (), place))
            except _UNREADABLE as error:
                proof.problems.append(FileProblem(place, f"cannot be read: {type(error).__name__}: {error}"))
    if len(computed) == len(chunk["files"]):
        _digest(storage, sealed, chunk, [place for _, place in sorted(computed)], proof)
    return proof


def _content(storage: Storage, place: str, sha256: str, in_use: Container[str], proof: ChunkProof) -> bytes | None:
    try:
        return storage.content(place, sha256=sha256)
    except FileNotFoundError:
        if place in in_use:
            proof.problems.append(FileProblem(place, "is missing, and a snapshot references it"))
        else:
            proof.gone.append(place)
    except OSError as error:
        proof.problems.append(FileProblem(place, f"cannot be read: {error}"))
    return None


def _hold(place: str, raw: bytes, file: Mapping[str, Any], proof: ChunkProof) -> None:
    """Hold the bytes of a file against those that were gated."""
    if len(raw) != file["bytes"]:
        proof.problems.append(
            FileProblem(place, "has another length", f"{file['bytes']:,} bytes", f"{len(raw):,} bytes")
        )
    elif file.get("sha256") and (found := hashlib.sha256(raw).hexdigest()) != file["sha256"]:
        what = "is not the file that was gated"
        proof.problems.append(FileProblem(place, what, f"SHA-256 {file['sha256']}", f"SHA-256 {found}"))


def _digest(storage: Storage, sealed: Sealed, chunk: Mapping[str, Any], places: list[str], proof: ChunkProof) -> None:
    """Compute the digest of a chunk's rows again, of the columns that it was made of."""
    digest: RowDigest | None = None
    known = {place_of(file["path"]): file.get("sha256") or "" for file in chunk["files"]}
    place = ""

    def rows() -> Iterator[pl.DataFrame]:
        nonlocal place
        for place in places:
            frame = pl.read_parquet(BytesIO(storage.content(place, sha256=known[place])), hive_partitioning=False)
            yield by_key(frame, sealed.target.key)[0]

    try:
        for frame in one_order(rows(), sealed.target.key):
            digest = digest or RowDigest(digest_types(sealed, frame.schema))
            digest.update(frame)
    except _UNREADABLE as error:
        what = f"cannot be read: {type(error).__name__}: {str(error)[:200]}"
        proof.problems.append(FileProblem(place, what))
        return
    found = (digest or RowDigest(digest_types(sealed))).result()
    if found != chunk["digest"]:
        proof.problems.append(FileProblem("", "has rows of another digest", str(chunk["digest"]), found))
    else:
        proof.complete = not proof.problems
