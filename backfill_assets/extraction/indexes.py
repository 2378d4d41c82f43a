"""The index of an extraction: of each key the newest record that was read, and where it lies in the archive.

Put here how the records of all answers become one a key, and what is counted meanwhile. What of it is new to a table is
`ingestion.versions`' to say.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import polars as pl

from backfill_assets.declarations.apis import ApiFeed
from backfill_assets.extraction.archive import Archive
from backfill_assets.extraction.conversation import LINES, OF_RECORDS
from backfill_assets.extraction.records import Record, records_of, what_tells_apart
from backfill_assets.extraction.refusals import ArchiveRefused
from manifests.canonical import sha256_of
from manifests.errors import Problem
from resources.files.kept_files import read_kept
from resources.ledger.extractions import ExtractionRecord, ResponseRecord, Sealed

INDEX = "index.parquet"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCHEMA = {
    "key": pl.String,
    "version": pl.Int64,
    "digest": pl.String,
    "response": pl.Int32,
    "position": pl.Int32,
    "read_at": pl.Int64,
    "problem": pl.String,
}


@dataclass(frozen=True)
class Entry:
    """Where the newest record of a key lies: its answer and its position in it; `read_at` in microseconds since 1970.

    A record with a `problem` has no key, or no version: it is one of its own.
    """

    key: str
    version: int
    digest: str
    response: int
    position: int
    read_at: int
    problem: str

    @property
    def instant(self) -> datetime:
        """When it was read."""
        return _EPOCH + timedelta(microseconds=self.read_at)


def pages_hash(responses: Iterable[ResponseRecord]) -> str:
    """Return the hash over all that was asked and answered, in order."""
    return sha256_of(
        [[one.number, one.kind, one.part, one.reading, one.page, one.parameters, one.content_hash] for one in responses]
    )


def seal(feed: ApiFeed, archive: Archive, responses: list[ResponseRecord]) -> Sealed:
    """Write the index of an extraction whose answers are all kept; return what it comes to.

    Raises:
        EnvironmentRefused: if an answer in the archive is not as it came.
    """
    newest: dict[str, Entry] = {}
    unusable: dict[tuple[str, str], Entry] = {}
    counts: Counter[str] = Counter()
    seen: set[tuple[str, int, str]] = set()
    for response in responses:
        if response.kind not in OF_RECORDS:
            continue
        read_at = (response.at - _EPOCH) // timedelta(microseconds=1)
        for record in records_of(feed, archive.read(response), lines=response.kind == LINES):
            counts["read"] += 1
            entry = _entry(record, response.number, read_at)
            if record.problem:
                unusable.setdefault((record.digest, what_tells_apart(record.content)), entry)
                continue
            _count_again(counts, seen, response, newest.get(record.key), entry)
            if record.key not in newest or _is_newer(entry, newest[record.key]):
                newest[record.key] = entry
    rows = [*newest.values(), *unusable.values()]
    counts["unusable"] = len(unusable)
    frame = pl.DataFrame([vars(one) for one in rows], schema=_SCHEMA)
    raw = io.BytesIO()
    frame.write_parquet(raw, compression="zstd", statistics=False)
    archive.write(INDEX, raw.getvalue())
    counted = {name: number for name, number in sorted(counts.items()) if number}
    return Sealed(pages_hash(responses), hashlib.sha256(raw.getvalue()).hexdigest(), len(newest), counted)


def _entry(record: Record, response: int, read_at: int) -> Entry:
    return Entry(record.key, record.version, record.digest, response, record.position, read_at, record.problem)


def _count_again(
    counts: Counter[str], seen: set[tuple[str, int, str]], response: ResponseRecord, before: Entry | None, entry: Entry
) -> None:
    """Count a key that was read before: doubled within a reading, the same once more, or another version of it."""
    in_reading = (response.part, response.reading, entry.key)
    if in_reading in seen:
        counts["doubled"] += 1
    seen.add(in_reading)
    if before is None:
        return
    if before.digest == entry.digest:
        counts["repeated"] += 1
    elif before.version == entry.version:
        counts["otherwise_read"] += 1
    else:
        counts["versions"] += 1


def _is_newer(entry: Entry, other: Entry) -> bool:
    """Whether a record is newer: by its version, and of the same version by when it was read."""
    return (entry.version, entry.response, entry.position) > (other.version, other.response, other.position)


def entries_of(archive: Archive, record: ExtractionRecord) -> list[Entry]:
    """Return the index of an extraction that is over, held against its hash.

    Raises:
        EnvironmentRefused: if it is not there, or was changed.
    """
    file = archive.folder / INDEX
    try:
        raw = read_kept(file)
    except FileNotFoundError:
        raw = b""
    if hashlib.sha256(raw).hexdigest() != record.index_hash:
        raise ArchiveRefused(
            Problem(
                f"{file} is not the index of extraction {record.id} that was sealed",
                "what is loaded follows from what is in the archive",
                "restore the archive from its backup",
            )
        )
    return [Entry(*row) for row in pl.read_parquet(io.BytesIO(raw)).iter_rows()]
