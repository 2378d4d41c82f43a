"""A compaction: the rows of a scope written anew as they are, into fewer files of about a declared size.

Put here what a manifest of the kind COMPACTION may say, and what a plan of it has besides. What there is to compact is looked up
in `backfill_assets.planning.compacting`; nothing here opens a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from manifests.errors import Problem

if TYPE_CHECKING:
    from manifests.model import RunManifest

COMPACTION = "COMPACTION"
REWRITING = "compaction"
"""The name that stands for a transform in the manifest of a compaction, which has none."""
REWRITING_VERSION = "compaction-1"
"""How rows are rewritten: a change of what comes into which file is another version."""
FILE_SIZES = (1_024, 1 << 40)
"""The least and the largest size of a file, in bytes, that may be asked for."""
DEFAULT_FILE_SIZE = 128 << 20
"""The size of a file where neither manifest nor table says one: a chunk's gate takes one file into memory at a time."""
_COMPUTES = "a compaction computes no row: it has the target's own files rewritten, and readers have the rows they had"


@dataclass(frozen=True)
class CompactedChunk:
    """What a chunk has at the pinned snapshot, and into how many files it is rewritten.

    Attributes:
        key: the chunk.
        files: its data files; `deletes` are the files that delete rows of these, by position.
        rows: its rows without those that are deleted, as far as metadata says; `bytes` those of its data files.
        into: the files that it is rewritten into, each of `rows_per_file` rows, so that they are about as large.
    """

    key: str
    files: int
    deletes: int
    rows: int
    bytes: int
    into: int
    rows_per_file: int


@dataclass(frozen=True)
class CompactionTerms:
    """How a compaction rewrites files: how large they become, by whose word, and what there is of each chunk.

    Attributes:
        file_size_bytes: how large a file becomes, about; `said_by` is who says so.
        chunks: those that are rewritten.
        left: chunks of the publish range that are as they should be, or have no file, and are left alone.
    """

    file_size_bytes: int
    said_by: str
    chunks: tuple[CompactedChunk, ...]
    left: int = 0

    def of(self, key: str) -> CompactedChunk:
        """Return what there is of a chunk."""
        return next(one for one in self.chunks if one.key == key)

    def describe(self) -> list[tuple[str, str]]:
        """Say in words what is rewritten into what."""
        files, deletes = sum(one.files for one in self.chunks), sum(one.deletes for one in self.chunks)
        gone = f", and {deletes:,} file(s) that delete rows of them, which are applied" if deletes else ""
        into = sum(one.into for one in self.chunks)
        left = f"; {self.left:,} chunk(s) are left as they are" if self.left else ""
        return [
            ("rewrites", f"{files:,} file(s) of {len(self.chunks):,} chunk(s){gone}; readers have the same rows{left}"),
            ("into", f"about {into:,} file(s) of about {self.file_size_bytes:,} bytes ({self.said_by})"),
        ]


def files_wanted(rows: int, size: int, file_size: int) -> int:
    """Return how many files of about a size so many rows and bytes make: one at least where there is a row."""
    return max(1, round(size / file_size)) if rows else 0


def compaction_problem(manifest: RunManifest) -> str:
    """Say what in a manifest does not go with a compaction, or what of one goes with no other run; empty if nothing."""
    target = manifest.target
    if manifest.kind != COMPACTION:
        return _file_size_problem(manifest)
    if manifest.source.table != target.table:
        return f"a {COMPACTION} reads its own target, {target.table}: leave source out, or name source.table so"
    if (manifest.transform.name, manifest.transform.version) != (REWRITING, REWRITING_VERSION):
        return f"a {COMPACTION} has no transform: leave it out, or write {REWRITING} {REWRITING_VERSION}"
    if target.publish_mode != "REPLACE_PARTITIONS":
        return f"a {COMPACTION} replaces files by files: publishMode is REPLACE_PARTITIONS, not {target.publish_mode}"
    if manifest.conflict.on_conflict == "REPLAN":
        return f"a {COMPACTION} whose files have changed is planned under a new run id: onConflict is REFUSE or WAIT"
    if named := ", ".join(_of_computing(manifest)):
        return f"a {COMPACTION} does not go with {named}: {_COMPUTES}"
    return ""


def _file_size_problem(manifest: RunManifest) -> str:
    """Say that a run which writes no file of a size of its own is given one; empty if it is given none, or does."""
    target = manifest.target
    if target.file_size_bytes is None:
        return ""
    if manifest.kind == "RECONCILIATION":
        return "target.fileSizeBytes is for runs that write files; a reconciliation writes none"
    if target.publish_mode == "MERGE_BY_KEY" or target.correction_events == "INSTEAD":
        return (
            f"target.fileSizeBytes does not go with publishMode {target.publish_mode}: its files are those that readers have, with some rows "
            "changed, or events about them"
        )
    return ""


def _of_computing(manifest: RunManifest) -> Iterator[str]:
    """Yield the fields that say something of how rows are computed, or to whom they are told."""
    said: dict[str, Any] = {
        # a dry run is of what the plan has pinned that it is made for
        "source.snapshotId": None if manifest.mode == "DRY_RUN" else manifest.source.snapshot_id,
        "source.range": manifest.source.range,
        "source.startFrom": manifest.source.start_from,
        "source.log": manifest.source.log,
        "sources": manifest.sources,
        "referenceData": manifest.reference_data,
        "warmUp": manifest.warm_up,
        "validation.expected": manifest.validation.expected,
        "validation.gates": manifest.validation.gates,
        "validation.tolerances": manifest.validation.tolerances,
        "progressive": manifest.progressive,
        "cutLine": manifest.cut_line,
        "safety.sinks": manifest.safety.sinks,
    }
    yield from (name for name, value in said.items() if value)


def nothing_to_compact(table: str, scope: str, file_size: int) -> Problem:
    """Say that every chunk of a scope is as it should be."""
    return Problem(
        f"no chunk of {table} in {scope} has more files than it needs, or a file that deletes rows",
        f"a {COMPACTION} rewrites chunks whose rows fit into fewer files of about {file_size:,} bytes, or of which rows are deleted",
        "there is nothing to do; another target.fileSizeBytes, or another publish range, may have something",
    )
