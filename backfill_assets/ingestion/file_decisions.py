"""What a file is taken for, given what came before of its business date: pure decisions of the import ledger.

Put here the rules of files that are seen again. Whether a file can be read, and what it says, is known by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime

from backfill_assets.declarations.feeds import NewBytes
from resources.ledger.imports import ImportStatus

_SHORT = 12


@dataclass(frozen=True)
class Version:
    """A version of a date that is in the table: when it was published, in which place of acceptance, and its bytes."""

    published_at: datetime
    revision: int
    content_hash: str
    file_id: str


@dataclass(frozen=True)
class Decision:
    """What becomes of a file, why, and the version that it is; revision 0 and no file id for what is none."""

    status: ImportStatus
    reason: str
    revision: int = 0
    file_id: str = ""


def file_id(business_date: date, revision: int, content_hash: str) -> str:
    """Return the id of a version: of one date, the ids of later revisions are greater as text."""
    return f"{business_date:%Y%m%d}-{revision:05d}-{content_hash[:_SHORT] or 'withdrawn'}"


@dataclass
class History:
    """The versions of every date, and what is decided upon them as files come in the order of their publication."""

    versions: dict[date, list[Version]] = field(default_factory=dict)
    newest_revision: dict[date, int] = field(default_factory=dict)

    @classmethod
    def of(cls, versions: Iterable[tuple[date, Version]], revisions: Mapping[date, int]) -> History:
        """Return the history of versions that are in the table; `revisions` has the highest that was ever given to a date."""
        found = cls({}, dict(revisions))
        for day, version in versions:
            found.versions.setdefault(day, []).append(version)
        return found

    def decide(self, day: date, published_at: datetime, content_hash: str, new_bytes: NewBytes) -> Decision:
        """Say what a file is taken for, and take it into the history if it is a version.

        The version before a file is the newest that was published no later; of several published at one time, the one
        that was accepted last.
        """
        there = self.versions.get(day, [])
        before = [one for one in there if one.published_at <= published_at]
        last = max(before, key=lambda one: (one.published_at, one.revision), default=None)
        if last is not None and last.content_hash == content_hash:
            return Decision(ImportStatus.IGNORED, f"the same bytes as {last.file_id}")
        if there and new_bytes is NewBytes.REJECTED:
            return Decision(
                ImportStatus.REJECTED, f"other bytes than {there[-1].file_id}, and the feed takes one file a date"
            )
        if not there:
            return self._taken(day, published_at, content_hash, ImportStatus.ACCEPTED, "the first of its date")
        why = f"other bytes than {last.file_id}" if last else f"published before {min(there, key=_time).file_id}"
        return self._taken(day, published_at, content_hash, ImportStatus.CORRECTION, why)

    def reprocess(self, day: date, published_at: datetime, content_hash: str, why: str) -> Decision:
        """Take a version that is there once more: it replaces what was made of the same bytes."""
        return self._taken(day, published_at, content_hash, ImportStatus.REPROCESSED, why)

    def _taken(
        self, day: date, published_at: datetime, content_hash: str, status: ImportStatus, reason: str
    ) -> Decision:
        revision = self.newest_revision.get(day, 0) + 1
        self.newest_revision[day] = revision
        name = file_id(day, revision, content_hash)
        self.versions.setdefault(day, []).append(Version(published_at, revision, content_hash, name))
        return Decision(status, reason, revision, name)


def _time(version: Version) -> tuple[datetime, int]:
    return version.published_at, version.revision
