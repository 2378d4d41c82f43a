"""The records of a run: what each says, whether it has the form of one, and which of them a link of the chain vouches for.

Put here how records are read, and how the rows of the ledger add up from a bundle and its records. Only changes that an event
can bring about are in them (`resources.ledger.rows`); a cell that was changed by hand stays what the evidence says it is. Which
record comes next is `record_order`'s, how one is written `record_writing`'s, which are damaged `record_damage`'s. A diff's form
is `diff_records`'s.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backfill_assets.evidence.bundles import sealed_rows
from backfill_assets.evidence.diff_records import no_diff
from backfill_assets.evidence.events import ACTIONS, ADOPTED, EVENTS, events_named
from backfill_assets.evidence.seals import COMMITTED
from backfill_assets.installation import Platform
from manifests.text import visible
from resources.files.kept_files import json_of, not_a_file, read_each
from resources.files.places import Place, found_in
from resources.ledger.rows import Rows, fold, of_no_form

DIFF = "diff"
"""The record of a run's diff, if one was made: it is sealed with the bundle."""
_DIFFS = re.compile(rf"{DIFF}(?:-(\d+))?")
_TEXTS = ("bundle", "evidence_root", "at")
OF_A_CHANGE = frozenset({"snapshot_id", "base_snapshot_id", "files_added", "files_removed", "evidence_root"})
"""What the record of a change says of it, as the ledger's entry does."""


@dataclass(frozen=True)
class Record:
    """One record of a run: its file's name and hash, and what it says.

    Where something else lies in the file's place, or it cannot be read, `hash` says what, and the record says nothing.
    """

    name: str
    hash: str
    content: Mapping[str, Any]
    is_readable: bool = True
    wrong: str = ""
    """Why it is none of this project's, although it says that it changes rows: nothing goes on from it, whatever vouches for it."""

    @property
    def number(self) -> int:
        """Its place among the records of its run that change rows; 0 for others."""
        return 0 if self.wrong or "follows" not in self.content else int(self.content["number"])


def records_of(platform: Platform, run_id: str) -> list[Record]:
    """Return the records of a run: those that changed rows in their order, then the others."""
    found = []
    for file, raw in read_each(found_in(platform.evidence.records(run_id), "*.json")):
        if isinstance(raw, FileNotFoundError):
            continue
        if isinstance(raw, Exception):
            what = not_a_file(file) or "a file that cannot be read"
            found.append(Record(visible(file.stem), what, {}, is_readable=False))
            continue
        found.append(record_of(file, run_id, raw))
    return sorted(found, key=lambda one: (one.number == 0, one.number, one.name))


def record_of(file: Place, run_id: str, raw: bytes) -> Record:
    """Return what a file in the records of a run says, read as `raw`."""
    try:
        content = json_of(raw)
    except ValueError:
        content = {}
    said = content if isinstance(content, dict) else {}
    wrong = _of_no_form(said, run_id) if "follows" in said else ""
    return Record(visible(file.stem), hashlib.sha256(raw).hexdigest(), said, wrong=wrong)


def _of_no_form(said: Mapping[str, Any], run_id: str) -> str:
    """Say why a record that says what it follows is none that this project writes of a change of rows; empty if it can be one."""
    what, event = "says what no record of this project says", said.get("event")
    if event not in (ACTIONS | EVENTS if isinstance(event, str) else ()):
        return f"{what}: it is about no event"
    if said.get("run_id") != run_id or not all(isinstance(said.get(name), str) for name in _TEXTS):
        return f"{what}: it is of another run, or of no bundle"
    number, follows = said.get("number"), said["follows"]
    if type(number) is not int or number < 1 or type(follows) is not int or follows < 0:
        return f"{what}: it has no place among the others"
    if not all(_are_hashes(said.get(name, {})) for name in ("tables", "beside")):
        return f"{what}: it gives no hashes of tables, or of the records beside it"
    committed = said.get(COMMITTED, [])
    if not isinstance(committed, list) or not all(isinstance(one, dict) for one in committed):
        return f"{what}: it does not say what was committed"
    wrong = of_no_form(said.get("rows"), is_adopted=event == ADOPTED)
    return f"{what}: {wrong}" if wrong else ""


def _are_hashes(said: Any) -> bool:
    return isinstance(said, dict) and all(isinstance(hash_, str) for hash_ in said.values())


def wrong_as_linked(record: Record, before: int | None) -> str:
    """Say why this project has not made the link of a record that changes rows; empty if it can have.

    `before` is the number of the record whose link came before, 0 if there is none; with None nobody knows.
    """
    if record.wrong:
        return record.wrong
    if not record.number:
        return "is no record of a change of rows, and a link of the chain vouches for it as one"
    if before is not None and record.number != before + 1:
        return f"has the number {record.number}, and its link follows that of record {before} of the run"
    return ""


# --- which of them count ---------------------------------------------------------------------------------------------


def is_linked(platform: Platform, run_id: str, record: Record) -> bool:
    """Whether a link of the chain is about a record of a change."""
    return bool(link_of(platform, run_id, record))


def link_of(platform: Platform, run_id: str, record: Record) -> Mapping[str, Any]:
    """Return the link of a run's record, empty if it has none: it came after those that there were when it was written.

    Whatever the record says of itself: another run's may lie in its place. A link of another event is about none of a change.
    """
    follows = record.content.get("follows")
    since = follows if isinstance(follows, int) and follows > 0 else 0
    said = platform.evidence.chain.contents(since=since)
    return next((link for link in said if is_about(link, run_id, record)), {})


def is_about(link: Mapping[str, Any], run_id: str, record: Record) -> bool:
    """Whether a link is that of a record of a change: of its run, its name and its event."""
    about = (link.get("run"), link.get("record"), link.get("event"))
    return "rows" in link and about == (run_id, record.name, record.content.get("event"))


def vouched_for(platform: Platform, run_id: str, records: Sequence[Record]) -> list[Record]:
    """Return those of a run's records that change no rows and that the chain vouches for.

    By a link of their own; or, of an earlier version, by that of a record that has their hash. By neither, if it has the name
    of a record that changes rows: only an earlier version has given such a name to others.
    """
    mine = {one.name: one for one in records if "follows" not in one.content}
    if any(events_named(name) for name in mine) and not is_adopted(platform, run_id):
        mine = {name: one for name, one in mine.items() if not events_named(name)}
    numbered = [one for one in records if one.number]
    found: set[str] = set()
    for record in reversed(numbered):
        if found == mine.keys():
            break
        beside = record.content.get("beside")
        known = {name for name, one in mine.items() if isinstance(beside, dict) and beside.get(name) == one.hash}
        if known - found and link_of(platform, run_id, record).get("recordHash") == record.hash:
            found |= known
    if found != mine.keys():
        with platform.ledger.reading() as moment:
            _, follows = moment.first_of(run_id)
        linked = platform.evidence.kept(run_id, since=follows)
        found |= {name for name, one in mine.items() if (name, one.hash) in linked}
    return [one for one in records if one.name in found]


def is_adopted(platform: Platform, run_id: str) -> bool:
    """Whether an earlier version of this project, which had no journal, has left the run."""
    with platform.ledger.reading() as moment:
        return moment.is_adopted(run_id)


def last_diff(platform: Platform, run_id: str) -> Any:
    """Return the last diff that was put on record of a run (`diff`, `diff-2`, ...), or None; what was planted is none."""
    records = records_of(platform, run_id)
    named = ((one, _DIFFS.fullmatch(one.name)) for one in vouched_for(platform, run_id, records))
    numbered = {int(name[1] or 1): one for one, name in named if name and not no_diff(one.name, one.content)}
    return numbered[max(numbered)].content if numbered else None


def kept_rows(bundle: Place, records: Sequence[Record], tables: Sequence[str] | None = None) -> Rows | None:
    """Return what the ledger's rows of a run are to be today; None if nothing of the evidence says so."""
    numbered = [one for one in records if one.number]
    rows = sealed_rows(bundle, tables)
    if rows is None:
        if not numbered or numbered[0].content.get("event") != ADOPTED:
            return None
        rows = {}
    for record in numbered:
        changes = record.content.get("rows", {})
        fold(rows, {name: changed for name, changed in changes.items() if tables is None or name in tables})
    return rows
