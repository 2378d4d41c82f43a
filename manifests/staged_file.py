"""A data file that a run has staged: what is recorded of it, and held against it until it is published.

Put here what is known of one file. Which files are a chunk's is the ledger's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from manifests.canonical import LATER


@dataclass(frozen=True)
class StagedFile:
    """One staged data file; `rows` and `bytes` are read from its footer and its length.

    `sha256` (of all its bytes) and `footer` (of its Parquet footer) are those of the file as its gate read it; empty before
    that, and where the gate could not hash what it read.
    """

    path: str
    rows: int
    bytes: int
    sha256: str = field(default="", metadata=LATER)
    footer: str = field(default="", metadata=LATER)
