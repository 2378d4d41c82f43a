"""What a load wrote, by hash: kept in the summary of the snapshot that the load was committed as.

Put here how the hashes of a load's files are taken, when it has just written them, and found again. They cost one reading of
what was written, once for each load and not for each run that reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from resources.files.stores import is_local, readings_differ, require_seen
from resources.lakehouse.storage import filesystem_of

CONTENT_PROPERTY = "backfill.content-sha256"
"""Snapshot summary key of a load: the SHA-256 (hex) of each of its files by the file's name, as JSON."""
_MOST = 1_000
"""The most files of a load that are named in its summary: a summary is part of every later metadata file."""
_BLOCK = 8 << 20
"""Bytes that are read at once: of a store, by one request."""
_OTHER_BLOCK, _OTHER_BLOCKS = 5 << 20, 3
_READINGS = 4
"""How often a store's file is read until two readings, one after the other, are alike."""


def content_property(table: Table, paths: Sequence[str]) -> dict[str, str]:
    """Return the summary property that says what is in files that were just written; nothing for a load of very many.

    Raises:
        OSError: if one of them cannot be read.
    """
    if not paths or len(paths) > _MOST:
        return {}
    return {CONTENT_PROPERTY: json.dumps({_name(path): proven_sha256(table, path) for path in sorted(paths)})}


def sha256_at(table: Table, path: str, *, otherwise: bool = False) -> str:
    """Return the SHA-256 (hex) of a file of a table, a block at a time; with `otherwise` of blocks that are cut elsewhere.

    Raises:
        OSError: if it cannot be read; FileNotFoundError if it is not there.
    """
    found = hashlib.sha256()
    try:
        given = table.io.new_input(path)
        with given.open() as stream:
            block_of = min(_OTHER_BLOCK, len(given) // _OTHER_BLOCKS + 1) if otherwise else _BLOCK
            while block := stream.read(block_of):
                found.update(block)
    except FileNotFoundError as error:
        if not is_local(path):
            filesystem, name, _ = filesystem_of(table, path)
            require_seen(filesystem, name, error)
        raise
    return found.hexdigest()


def proven_sha256(table: Table, path: str, expected: str = "") -> str:
    """Return the SHA-256 (hex) of a file of a table, as evidence has it: of a store no single answer says it.

    An answer that was cut on its way may have its full length. So what a store gives is read once more, cut elsewhere, unless it has the
    hash that is expected of it.

    Raises:
        OSError: if it cannot be read, or has another hash each time; FileNotFoundError if it is not there.
    """
    found = sha256_at(table, path)
    if found == expected or is_local(path):
        return found
    for reading in range(1, _READINGS):
        before, found = found, sha256_at(table, path, otherwise=reading % 2 == 1)
        if found == before:
            return found
    raise readings_differ(path)


def said_of(snapshots: Iterable[Snapshot]) -> dict[str, str]:
    """Return what the summaries of snapshots say of their loads' contents, by snapshot, newest first as given."""
    found = {}
    for one in snapshots:
        text = one.summary.additional_properties.get(CONTENT_PROPERTY) if one.summary else None
        if text is not None:
            found[str(one.snapshot_id)] = hashlib.sha256(text.encode()).hexdigest()
        if len(found) == _MOST:
            break
    return found


def hash_of(path: str, snapshot: Snapshot | None) -> str | None:
    """Return the hash that the snapshot which added a file gives of it; None where it says nothing."""
    text = snapshot.summary.additional_properties.get(CONTENT_PROPERTY) if snapshot and snapshot.summary else None
    if text is None:
        return None
    said: Mapping[str, str] = json.loads(text)
    return said.get(_name(path))


def _name(path: str) -> str:
    return path.rpartition("/")[2]
