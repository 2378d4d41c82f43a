"""The contents of staged files, held against what their gate has read: right before a commit makes them visible.

Put here nothing that looks at less than the whole file. A footer says nothing of the pages with the rows: those can be
changed in place with footer and length kept. Files are hashed in threads (hashlib works outside Python's lock), each read
once more in pieces. What changes between this and the commit, a few milliseconds, is found by `backfill verify --data`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.table import Table

from manifests.errors import EnvironmentRefused, Problem, PublicationRefused
from manifests.staged_file import StagedFile
from resources.files.stores import is_local
from resources.lakehouse.contents import proven_sha256

_ASKED_TOGETHER = 8
_SHARES = 8
"""Shares of the files that each thread gets: to hand small files over one by one takes longer than to hash them."""
_RULE = "what is published is what was gated"
_WAY_OUT = "cancel the run: its staging was changed after it was gated"


def require_gated_contents(table: Table, staged: Sequence[StagedFile], known: Mapping[str, str] | None = None) -> None:
    """Refuse files whose bytes are not those that their gate has read; one that no gate has hashed is not read.

    `known` are the SHA-256 (hex) of files that were read whole just now, by path: they are not read once more.

    Raises:
        PublicationRefused: naming every file that differs or is not there.
        EnvironmentRefused: if one could not be read just now.
    """
    hashed, found = [file for file in staged if file.sha256], dict(known or {})
    found |= _hashes(table, [file for file in hashed if file.path not in found])
    wrong = [
        Problem(
            f"the content of {file.path} has the SHA-256 {found[file.path] or '(it is gone)'}, not {file.sha256}",
            _RULE,
            _WAY_OUT,
        )
        for file in hashed
        if found[file.path] != file.sha256
    ]
    if wrong:
        raise PublicationRefused(wrong)


def _hashes(table: Table, hashed: Sequence[StagedFile]) -> dict[str, str]:
    """Return the SHA-256 (hex) of each file, as it is read now, by path."""
    if not hashed:
        return {}
    threads = os.cpu_count() or 1
    if not all(is_local(file.path) for file in hashed):
        threads = max(threads, _ASKED_TOGETHER)
    size = -(-len(hashed) // (threads * _SHARES))
    shares = [hashed[start : start + size] for start in range(0, len(hashed), size)]
    with ThreadPoolExecutor(min(len(shares), threads)) as pool:
        of_shares = pool.map(lambda share: [_sha256(table, file) for file in share], shares)
        found = [sha256 for share in of_shares for sha256 in share]
    return dict(zip((file.path for file in hashed), found, strict=True))


def _sha256(table: Table, file: StagedFile) -> str:
    """Return the SHA-256 (hex) of a file, empty if it is not there.

    Raises:
        EnvironmentRefused: if it cannot be read, or of a store has another one each time it is read.
    """
    path = file.path
    try:
        return proven_sha256(table, path, file.sha256)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise EnvironmentRefused(
            Problem(
                f"{path} could not be read just now: {type(error).__name__}: {error}",
                _RULE,
                "nothing has changed; run the same command again; if it stays so, see `backfill doctor`",
            )
        ) from error
