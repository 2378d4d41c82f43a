"""What a receipt puts on record of each file: what it is taken for, why, and as which version of its date.

Put here how what came, what it says and what is on record become entries of the import ledger. The rules of files that are seen again
are `file_decisions`'; the order in which bytes, entries and rows are written is `receiving`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import partial
from typing import Any

from backfill_assets.declarations.feeds import FileFacts, FileFeed, NewBytes
from backfill_assets.declarations.product import InputTable
from backfill_assets.extraction.arrived_files import Arrivals, Arrived, Spool
from backfill_assets.ingestion.explained_rows import require_explained
from backfill_assets.ingestion.file_archive import FileArchive
from backfill_assets.ingestion.file_decisions import Decision, History, Version
from backfill_assets.ingestion.judged_files import FileToJudge, JudgedFile, judged_files
from backfill_assets.installation import Platform
from manifests.canonical import sha256_of
from manifests.errors import InputRefused, Problem
from manifests.fields import EARLIEST, LATEST
from resources.ledger.facade import operator
from resources.ledger.imports import LOADED, ImportRecord, ImportStatus

_SHOWN_RULES = 3
REFUSED = frozenset({ImportStatus.REJECTED, ImportStatus.QUARANTINED})
_AS_BEFORE = REFUSED | {ImportStatus.IGNORED}
"""What a file is that brings nothing: decided upon each time that it comes, and on record once."""
"""What brings no rows; such a file is decided upon anew when it comes again."""


Progress = Callable[[str, int, int | None], None]
"""Told what is done just now, how many files of it are, and of how many (None where nobody knows yet)."""


@dataclass(frozen=True)
class OpenedFeed:
    """A feed with what is opened for a receipt of it."""

    platform: Platform
    declared: FileFeed
    table: InputTable
    archive: FileArchive
    progress: Progress


_Key = tuple[str, str, datetime | None]
"""By what a file is the same as one on record: path, hash of its bytes, and time of publication."""


class OnRecord:
    """The import ledger of a feed as a receipt finds it."""

    def __init__(self, on_record: Sequence[ImportRecord], taken_back: frozenset[str]) -> None:
        self.by_id = {one.file_id: one for one in on_record}
        self.newest: dict[_Key, ImportRecord] = {
            (one.path, one.content_hash, one.published_at): one for one in on_record
        }
        self.gone = taken_back
        self.on_record = on_record

    def history(self) -> History:
        """Return the versions of each date that are in the table."""
        revisions: dict[date, int] = {}
        versions = []
        for one in self.on_record:
            if one.business_date is not None:
                revisions[one.business_date] = max(revisions.get(one.business_date, 0), one.revision)
            if one.status in LOADED and one.load_id not in self.gone:
                assert one.business_date is not None
                assert one.published_at is not None
                version = Version(one.published_at, one.revision, one.content_hash, one.file_id)
                versions.append((one.business_date, version))
        return History.of(versions, revisions)

    def sort_out(self, files: Sequence[Arrived]) -> tuple[list[Arrived], list[int]]:
        """Return the files that are to be decided upon, each once, and the entries of those that were decided upon before.

        One that came several times is one file that was seen so often.
        """
        new: dict[_Key, Arrived] = {}
        seen: set[int] = set()
        for one in files:
            key = (one.path, one.content_hash, one.published_at)
            before = self.newest.get(key)
            if before is not None and before.status in LOADED and before.load_id not in self.gone:
                seen.add(before.id)
            elif key in new:
                new[key].times += 1
            else:
                new[key] = one
        return list(new.values()), sorted(seen)

    def attempt(self, path: str, content_hash: str) -> int:
        """Return the number of the next attempt to take bytes of a path."""
        return 1 + max(
            (one.attempt for one in self.on_record if (one.path, one.content_hash) == (path, content_hash)), default=0
        )

    def without_repetitions(self, entries: Sequence[ImportRecord]) -> tuple[list[ImportRecord], list[int]]:
        """Leave out what was refused, or ignored, before for the same reason; return the entries of those, which came once more."""
        kept, seen = [], []
        for one in entries:
            before = self.newest.get((one.path, one.content_hash, one.published_at))
            if before is not None and before.status is one.decision in _AS_BEFORE and before.reason == one.reason:
                seen.append(before.id)
            else:
                kept.append(one)
        return kept, seen


def asked_for(opened: OpenedFeed, known: OnRecord, file_id: str) -> ImportRecord:
    """Return the entry of a file that is asked for again.

    Raises:
        InputRefused: if there is none, or its bytes were never kept.
    """
    found = known.by_id.get(file_id)
    if found is not None and found.business_date is not None and found.published_at is not None and found.content_hash:
        return found
    what = (
        f"has no file '{file_id}'"
        if found is None
        else f"has kept nothing of '{file_id}' that could be read: {found.reason}"
    )
    raise InputRefused(
        Problem(
            f"the import ledger of {opened.declared.name} {what}",
            "a file is asked for again by its file id, and read from the bytes that were kept",
            f"`backfill files {opened.declared.name}` lists them",
        )
    )


def entries_of(
    opened: OpenedFeed,
    known: OnRecord,
    new: Sequence[Arrived],
    asked: Sequence[ImportRecord],
    came: Arrivals,
    spool: Spool,
    at: datetime,
) -> list[ImportRecord]:
    """Decide upon every file, in the order of business date and publication."""
    manifest_id = "" if came.list is None else came.list.manifest_id
    entries = [_rejected(opened, known, one, manifest_id, at) for one in new if one.wrong]
    whole = sorted((one for one in new if not one.wrong), key=_order)
    history = known.history()
    to_judge = [FileToJudge(_facts(one), partial(spool.get, one.place)) for one in whole]
    of = {id(file): one for file, one in zip(to_judge, whole, strict=True)}
    touched = set()
    for number, judged in enumerate(judged_files(to_judge, opened.declared, opened.table)):
        opened.progress("judging", number + 1, len(whole))
        one = of[id(judged.file)]
        facts = judged.file.facts
        decision = _judgement(opened, judged) or history.decide(
            facts.business_date, facts.published_at, facts.content_hash, opened.declared.new_bytes
        )
        if decision.file_id:
            touched.add(facts.business_date)
        attempt = known.attempt(one.path, one.content_hash)
        entries.append(replace(_entry(opened, judged, decision, manifest_id, attempt, at), sightings=one.times))
    entries += _asked_entries(opened, known, asked, history, at)
    return entries + _revived(opened, known, history, touched, at)


def _order(one: Arrived) -> tuple[Any, ...]:
    return one.business_date, one.published_at, one.path


def _facts(one: Arrived) -> FileFacts:
    assert one.business_date is not None
    assert one.published_at is not None
    return FileFacts(
        one.path, one.business_date, one.published_at, one.content_hash, one.size or 0, "", one.groups, one.is_withdrawn
    )


def facts_of(opened: OpenedFeed, entry: ImportRecord) -> FileFacts:
    """Return the facts of a file that is on record."""
    assert entry.business_date is not None
    assert entry.published_at is not None
    found = re.fullmatch(opened.declared.path, entry.path)
    groups = {} if found is None else {name: text for name, text in found.groupdict().items() if text is not None}
    is_withdrawn = not entry.content_hash
    size = entry.size or 0
    return FileFacts(
        entry.path, entry.business_date, entry.published_at, entry.content_hash, size, "", groups, is_withdrawn
    )


def _judgement(opened: OpenedFeed, judged: JudgedFile) -> Decision | None:
    """Return what becomes of a file for its own sake; None if it may be a version of its date."""
    if wrong := _out_of_reach(judged.file.facts):
        return Decision(ImportStatus.REJECTED, wrong)
    if judged.unreadable:
        return Decision(ImportStatus.REJECTED, judged.unreadable)
    if judged.refused:
        return Decision(ImportStatus.QUARANTINED, judged.refused)
    rejected = len({one.row for one, _ in judged.rejected})
    limit = opened.declared.limits.rejected_share
    if rejected <= limit * max(judged.total, 1) and (judged.rows.height or judged.file.facts.is_withdrawn):
        return None
    if not judged.total:
        return Decision(ImportStatus.QUARANTINED, "it has a first line and no records")
    rules = ", ".join(f"{rule} ({number:,})" for rule, number in judged.reasons.most_common(_SHOWN_RULES))
    return Decision(
        ImportStatus.QUARANTINED,
        f"{rejected:,} of {judged.total:,} records break rules, and {limit:.1%} may (limits.rejected_share): {rules}",
    )


def _out_of_reach(facts: FileFacts) -> str:
    """Say what of a file's dates a run could never be asked about, as of values of rows; empty if nothing is."""
    for what, day in (("is about", facts.business_date), ("was published on", facts.published_at.date())):
        if not EARLIEST <= day <= LATEST:
            return f"it {what} {day.isoformat()}, and a day lies between {EARLIEST} and {LATEST}"
    return ""


def _entry(
    opened: OpenedFeed, judged: JudgedFile, decision: Decision, manifest_id: str, attempt: int, at: datetime
) -> ImportRecord:
    facts = judged.file.facts
    is_taken = decision.status in LOADED or decision.status is ImportStatus.QUARANTINED
    return ImportRecord(
        id=0,
        feed=opened.declared.name,
        file_id=decision.file_id or _other_id(opened, facts.path, facts.content_hash, facts.published_at, attempt),
        path=facts.path,
        size=None if facts.is_withdrawn else facts.size,
        content_hash=facts.content_hash,
        published_at=facts.published_at,
        business_date=facts.business_date,
        schema_version=judged.schema_version,
        translator_version=opened.declared.translator_version,
        manifest_id=manifest_id,
        attempt=attempt,
        revision=decision.revision,
        status=ImportStatus.SEEN if is_taken else decision.status,
        decision=decision.status,
        reason=f"{decision.reason}: taken back by its producer" if facts.is_withdrawn else decision.reason,
        rows=judged.rows.height if decision.status in LOADED else 0,
        rejected=len(judged.rejected) if is_taken else 0,
        first_seen=at,
        last_seen=at,
        sightings=1,
        load_id="",
        snapshot_id=None,
        received_by=operator(),
    )


def _rejected(opened: OpenedFeed, known: OnRecord, one: Arrived, manifest_id: str, at: datetime) -> ImportRecord:
    attempt = known.attempt(one.path, one.content_hash)
    return ImportRecord(
        id=0,
        feed=opened.declared.name,
        file_id=_other_id(opened, one.path, one.content_hash, one.published_at, attempt),
        path=one.path,
        size=one.size,
        content_hash=one.content_hash,
        published_at=one.published_at,
        business_date=one.business_date,
        schema_version="",
        translator_version="",
        manifest_id=manifest_id,
        attempt=attempt,
        revision=0,
        status=ImportStatus.REJECTED,
        decision=ImportStatus.REJECTED,
        reason=one.wrong,
        rows=0,
        rejected=0,
        first_seen=at,
        last_seen=at,
        sightings=one.times,
        load_id="",
        snapshot_id=None,
        received_by=operator(),
    )


def _other_id(opened: OpenedFeed, path: str, content_hash: str, published_at: datetime | None, attempt: int) -> str:
    """Return the id of a file that is no version of its date."""
    return f"none-{sha256_of([opened.declared.name, path, content_hash, str(published_at), attempt])[:24]}"


def _asked_entries(
    opened: OpenedFeed, known: OnRecord, asked: Sequence[ImportRecord], history: History, at: datetime
) -> list[ImportRecord]:
    """Read files anew that somebody has asked for: those in the table are reprocessed, the others decided upon once more."""
    entries = []
    to_judge = [FileToJudge(facts_of(opened, one), partial(opened.archive.read, one.content_hash)) for one in asked]
    for one, judged in zip(asked, judged_files(to_judge, opened.declared, opened.table), strict=True):
        facts = judged.file.facts
        in_table = one.status in LOADED and one.load_id not in known.gone
        decision = _judgement(opened, judged)
        if decision is None and in_table:
            why = f"asked for by {operator()}: {one.file_id} once more"
            decision = history.reprocess(facts.business_date, facts.published_at, facts.content_hash, why)
        elif decision is None:
            decision = history.decide(
                facts.business_date, facts.published_at, facts.content_hash, opened.declared.new_bytes
            )
        attempt = known.attempt(one.path, one.content_hash)
        entries.append(_entry(opened, judged, decision, one.manifest_id, attempt, at))
    return entries


def _revived(
    opened: OpenedFeed, known: OnRecord, history: History, touched: set[date], at: datetime
) -> list[ImportRecord]:
    """Take files that were ignored as the same as the version before them, where a version has come in between since."""
    ignored = [one for one in known.on_record if one.status is ImportStatus.IGNORED and one.business_date in touched]
    entries: list[ImportRecord] = []
    for one in sorted(ignored, key=lambda one: (str(one.published_at), one.id)):
        file = FileToJudge(facts_of(opened, one), partial(opened.archive.read, one.content_hash))
        decision = history.decide(
            file.facts.business_date, file.facts.published_at, file.facts.content_hash, NewBytes.CORRECTION
        )
        if decision.status is not ImportStatus.CORRECTION:
            continue
        if not entries:  # what it is the file of is on record, and nowhere else
            require_explained(opened.platform, "imports")
        (judged,) = judged_files([file], opened.declared, opened.table)
        attempt = known.attempt(one.path, one.content_hash)
        entries.append(_entry(opened, judged, decision, one.manifest_id, attempt, at))
    return entries
