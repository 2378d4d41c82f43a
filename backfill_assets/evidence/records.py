"""What the evidence says of a run: the bundle that is sealed, and a record with a link for whatever happens afterwards.

Put here what goes into a bundle and a record, and when a record is due. Every record brings the kept rows of the ledger
up to date: what a run's rows are to be today is its bundle's rows, changed by its records, one after the other. Only
changes that an event can bring about are taken over (`resources.ledger.rows`); a cell that was changed by hand stays what the
evidence says it is. Everything is safe to repeat: what is recorded is not recorded again, what a crash left out is
made up for by the next call.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from backfill_assets import faults
from backfill_assets.evidence.diff_records import no_diff
from backfill_assets.evidence.events import ACTIONS, ADOPTED, EVENTS, MOVED, RESTORED, SUPERSEDED, events_named
from backfill_assets.evidence.links import misnamed
from backfill_assets.evidence.links import of_no_form as link_of_no_form
from backfill_assets.evidence.seals import (
    BESIDE_FILE,
    COMMITTED,
    INPUTS_FILE,
    SCHEMA_FILE,
    adopted_commits,
    commits_of,
    sealed_beside,
    sealed_inputs,
    sealed_schema,
)
from backfill_assets.gates.chunk_changes import CHANGES_FILE, VISIBLE, changes_of_run
from backfill_assets.installation import Platform
from manifests.canonical import plain, sha256_of
from manifests.errors import EnvironmentRefused, LedgerLocked, Problem, PublicationRefused, Refused
from manifests.lifecycle import ACCEPT, WAS_PUBLISHED, PublicationState, RunState
from manifests.text import visible
from resources.evidence.chain import Link
from resources.evidence.store import INDEX, SEALED, examine, hash_or_kind
from resources.files.kept_files import json_of, not_a_file, read_json, read_kept
from resources.ledger.facade import RunRecord
from resources.ledger.journal import Unexplained
from resources.ledger.moments import Moment
from resources.ledger.rows import (
    MOVING,
    Difference,
    Row,
    Rows,
    changes_of,
    differences,
    fold,
    hashes_of,
    is_id,
    of_no_form,
    tables_of_runs,
)
from resources.ledger.tables import runs

_LOG = logging.getLogger(__name__)
DIFF = "diff"
"""The record of a run's diff, if one was made: it is sealed with the bundle."""
_DIFFS = re.compile(rf"{DIFF}(?:-(\d+))?")
RUN_FILE, _MANIFEST_FILE, _PLAN_FILE = "run.json", "manifest.json", "plan.json"
_SETTLED = ("hashes.json", "code.json", "policy.json")
"""Files of a bundle beside those of rows that are the same whenever it is sealed."""
AMENDMENTS_FILE = "amendments.json"
"""What was planned anew, and how often: a bundle's edition."""
_FILES = {"sink_attempts": "sink_requests"}
_FILED_APART = {"manifest": _MANIFEST_FILE, "plan": _PLAN_FILE}
_ALWAYS = frozenset({"chunks", "attempts", "verdicts", "approvals", "amendments", "transitions", "sink_attempts"})
"""Tables that a bundle has a file of even where there is no row: nobody is to wonder."""
_SAID = frozenset(
    {"event", "run_id", "number", "bundle", "evidence_root", "follows", "at", "rows", "tables", "beside", COMMITTED}
)
"""What every record says that changes rows."""
_TEXTS = ("bundle", "evidence_root", "at")
_FACTS = frozenset({"action", "by", "completedBy"})
"""What the record of an event beside a change may say of it."""
_PUBLISHED = frozenset({"snapshot_id", "base_snapshot_id", "files_added", "files_removed", "evidence_root"})
"""What the record of a change says of it, as the ledger's entry does."""
_AS_COMMITTED = (
    "snapshotId",
    "parentId",
    "sequence",
    "at",
    "snapshotSchemaId",
    "summary",
    "manifestList",
    "manifests",
)
"""What is kept of a snapshot and never changes again, whatever is committed to its table afterwards."""
_SHOWN = 10
_LOOKS, _AGAIN_SECONDS = 3, 0.5
"""How often, and how soon, it is looked again for the link of a record that may be made just now."""
_NEWER = 50
"""How many rows of a table may have come after a record, where they are told from those before it by a hash."""
_UNNUMBERED = 2
"""How many changes of a run are recorded under the action's name alone."""


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


@dataclass(frozen=True)
class Harmed:
    """A record that is not as a link of the chain vouches for it: SHA-256 then and now, or what is there instead.

    Or, with the SHA-256 that its link gives, one that is `wrong` as it is: this project has written neither.
    """

    run_id: str
    name: str
    file: Path
    expected: str
    found: str
    wrong: str = ""

    @property
    def what(self) -> str:
        """Say what has become of it."""
        if self.wrong:
            return f"{self.file} {self.wrong}"
        how = "is missing" if self.found == "nothing" else "was changed after it was written"
        return f"{self.file} {how}: the chain has the SHA-256 {self.expected} of it"

    @property
    def fix(self) -> str:
        """Say what is to be done."""
        if self.wrong:
            return f"find out who has put it and its link there; restore the evidence from a backup that has neither: {self.file}"
        return f"restore this file from a backup, byte by byte: {self.file}"


# --- the bundle -------------------------------------------------------------------------------------------------------


def bundle_files(platform: Platform, record: RunRecord, token: int | None = None) -> dict[str, Any]:
    """Return the content of a run's bundle: a file for each of the ledger's tables, and what people look for.

    Raises:
        LeaseLost: if the lease of `token` was taken over: what the run is by now is another publisher's to seal.
    """
    run_id = record.run_id
    with platform.ledger.holding(record.target, token=token) as moment:
        rows = moment.rows_of(run_id)
    (run,) = rows["runs"].values()
    before = accepted_before(platform, record)
    files: dict[str, Any] = {
        RUN_FILE: {name: cell for name, cell in run.items() if name not in _FILED_APART},
        "hashes.json": {"manifest": record.manifest_hash, "plan": record.plan_hash},
        "code.json": record.plan.code,
        "policy.json": platform.ledger.policies.text(record.plan.policy),
        "reconciliation.json": _reconciliation(platform, rows, record),
        "accepted_before.json": before,
        CHANGES_FILE: changes_of_run(platform, record, before),
        SCHEMA_FILE: sealed_schema(platform, record),
        INPUTS_FILE: sealed_inputs(platform, record),
        BESIDE_FILE: sealed_beside(platform, record),
        **{name: run[cell] for cell, name in _FILED_APART.items()},
        **{
            _file_of(table): list(found.values())
            for table, found in rows.items()
            if table != "runs" and (found or table in _ALWAYS)
        },
    }
    diff = last_diff(platform, run_id)  # of one that nobody vouches for nothing is sealed
    return files if diff is None else files | {f"{DIFF}.json": diff}


def require_of_the_run(platform: Platform, record: RunRecord, files: Mapping[str, Any], bundle: Path) -> None:
    """Refuse to publish a run with a bundle that was there before and does not say what the ledger does.

    `files` are what would be sealed now. What may move on after a bundle was sealed may have.

    Raises:
        PublicationRefused: naming what it says otherwise.
    """
    run_id = record.run_id
    with platform.ledger.reading() as moment:
        here, of_earlier_version = moment.rows_of(run_id), moment.is_adopted(run_id)
    try:
        sealed = sealed_rows(bundle)
        wrong = [] if sealed is None else [one.where for one in differences(sealed, here) if not one.lawful]
        if not of_earlier_version:
            wrong += [f"{bundle.name}/{RUN_FILE}"] if sealed is None else []
            wrong += [
                f"{bundle.name}/{name}" for name in _SETTLED if read_json(bundle / name) != plain(files.get(name))
            ]
    except (FileNotFoundError, EnvironmentRefused, ValueError, KeyError, TypeError, AttributeError) as error:
        wrong = [f"{type(error).__name__} {error}"]
    if wrong:
        shown = ", ".join(wrong[:_SHOWN]) + (f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else "")
        raise _not_of_the_run(bundle, f"says other things of '{run_id}' than the ledger: {shown}")


def require_no_later(platform: Platform, record: RunRecord, edition: int) -> None:
    """Refuse to publish a run beside a bundle of an edition that it does not have.

    Raises:
        PublicationRefused: naming it.
    """
    store, run_id = platform.evidence, record.run_id
    store.require_sealed(run_id)
    known = {store.path(run_id, number) for number in range(edition + 1)}
    for one in store.bundles(run_id):
        if one not in known:
            raise _not_of_the_run(one, f"is there, and '{run_id}' was planned anew {edition} time(s)")


def _not_of_the_run(bundle: Path, what: str) -> PublicationRefused:
    return PublicationRefused(
        Problem(
            f"{bundle} {what}",
            "a run is published with the bundle of what was decided and judged, as the ledger has it",
            "move it out of the folder, keep it, find out who has put it there, and run the same command again",
        )
    )


def last_diff(platform: Platform, run_id: str) -> Any:
    """Return the last diff that was put on record of a run (`diff`, `diff-2`, ...), or None; what was planted is none."""
    records = records_of(platform, run_id)
    named = ((one, _DIFFS.fullmatch(one.name)) for one in vouched_for(platform, run_id, records))
    numbered = {int(name[1] or 1): one for one, name in named if name and not no_diff(one.name, one.content)}
    return numbered[max(numbered)].content if numbered else None


def bundle_in_use(platform: Platform, run_id: str) -> Path:
    """Return the bundle with which a run was published: whose root its links cite, else the ledger's entries; or would be."""
    store = platform.evidence
    bundles = store.bundles(run_id)
    if len(bundles) > 1 and not store.cited(run_id):  # nothing of it was told yet
        done = {one.evidence_root for one in platform.ledger.publications(run_id) if one.has_landed}
        own = store.path(run_id, len(platform.ledger.amendments(run_id)))
        return next((one for one in bundles if examine(one, run_id)[0] in done), own if own in bundles else bundles[-1])
    return store.path(run_id)


def _file_of(table: str) -> str:
    return f"{_FILES.get(table, table)}.json"


def files_of(table: str) -> set[str]:
    """Return the files of a bundle that have the rows of one of the ledger's tables."""
    return {RUN_FILE, *_FILED_APART.values()} if table == "runs" else {_file_of(table)}


def _reconciliation(platform: Platform, rows: Rows, record: RunRecord) -> list[dict[str, Any]]:
    """Return what the run-level gates found, at which level: the newest verdict of each."""
    levels = {item.name: item.level.value for item in platform.products.target(record.target).reconciliations}
    newest = {row["gate"]: row for row in rows["verdicts"].values() if not row["chunk"]}
    shown = ("gate", "passed", "summary", "details", "at")
    return [
        {"level": levels.get(gate, "platform")} | {name: newest[gate][name] for name in shown}
        for gate in record.plan.gates
        if gate in newest
    ]


def accepted_before(platform: Platform, record: RunRecord) -> dict[str, Any]:
    """Return what readers saw of each chunk just before: whose it was, its digest, and what its gate measured and added up."""
    holders = platform.ledger.accepted(record.target, [chunk.key for chunk in record.plan.chunks])
    found = {}
    for run_id in sorted(set(holders.values()) - {record.run_id}):
        for chunk in platform.ledger.chunks(run_id):
            if holders.get(chunk.chunk) == run_id:
                facts = {"run": run_id, "digest": chunk.digest, "rows": chunk.rows}
                facts |= {VISIBLE: chunk.measures[VISIBLE]} if VISIBLE in chunk.measures else {}
                found[chunk.chunk] = facts | {"slices": chunk.measures.get("slices", [])}
    return found


def sealed_rows(bundle: Path, tables: Sequence[str] | None = None) -> Rows | None:
    """Return the ledger's rows as a bundle has them; None if an earlier version sealed it, without them.

    Raises:
        EnvironmentRefused: if something else lies in the place of a file of the bundle, or it cannot be read.
        ValueError: if a file of the bundle is no JSON any more.
    """
    if not os.path.lexists(bundle / RUN_FILE) and (tables is None or "runs" in tables):
        return None
    rows: Rows = {}
    keys = {"chunks": "chunk"}
    for file in sorted(bundle.glob("*.json")):
        table = next((name for name, other in _FILES.items() if other == file.stem), file.stem)
        if file.name == RUN_FILE and (tables is None or "runs" in tables):
            run = read_json(file)
            apart = {cell: read_json(bundle / name) for cell, name in _FILED_APART.items()}
            rows["runs"] = {run["run_id"]: run | apart}
        elif table in _TABLES and (tables is None or table in tables):
            rows[table] = {str(row[keys.get(table, "id")]): row for row in read_json(file)}
    return rows


_TABLES = frozenset(name for name, table in runs.metadata.tables.items() if "run_id" in table.c) - {"runs"}


# --- records ----------------------------------------------------------------------------------------------------------


def records_of(platform: Platform, run_id: str) -> list[Record]:
    """Return the records of a run: those that changed rows in their order, then the others."""
    found = []
    for file in sorted(platform.evidence.records(run_id).glob("*.json")):
        try:
            raw = read_kept(file)
        except FileNotFoundError:
            continue
        except EnvironmentRefused:
            what = not_a_file(file) or "a file that cannot be read"
            found.append(Record(visible(file.stem), what, {}, is_readable=False))
            continue
        found.append(_record_of(file, run_id, raw))
    return sorted(found, key=lambda one: (one.number == 0, one.number, one.name))


def _record_of(file: Path, run_id: str, raw: bytes) -> Record:
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


def vouched_for(platform: Platform, run_id: str, records: Sequence[Record]) -> list[Record]:
    """Return those of a run's records that change no rows and that the chain vouches for.

    By a link of their own; or, of an earlier version, by that of a record that has their hash. By neither, if it has the name
    of a record that changes rows: only an earlier version has given such a name to others.
    """
    mine = {one.name: one for one in records if "follows" not in one.content}
    if any(events_named(name) for name in mine) and not _is_adopted(platform, run_id):
        mine = {name: one for name, one in mine.items() if not events_named(name)}
    numbered = [one for one in records if one.number]
    found: set[str] = set()
    for record in reversed(numbered):
        if found == mine.keys():
            break
        beside = record.content.get("beside")
        known = {name for name, one in mine.items() if isinstance(beside, dict) and beside.get(name) == one.hash}
        if known - found and _link_of(platform, run_id, record).get("recordHash") == record.hash:
            found |= known
    if found != mine.keys():
        with platform.ledger.reading() as moment:
            _, follows = moment.first_of(run_id)
        linked = platform.evidence.kept(run_id, since=follows)
        found |= {name for name, one in mine.items() if (name, one.hash) in linked}
    return [one for one in records if one.name in found]


def _is_adopted(platform: Platform, run_id: str) -> bool:
    with platform.ledger.reading() as moment:
        return moment.is_adopted(run_id)


def harmed(platform: Platform, links: Iterable[Mapping[str, Any]]) -> list[Harmed]:
    """Return the records that are missing, or are not as links vouch for them, or that links vouch for and are none of a change.

    Those that change rows count up, run by run, in the order of their links. Of several links about a record the first one
    counts; one that is about no record of its name never does.
    """
    told: dict[tuple[str, str], tuple[str, bool]] = {}
    for link in _about_records(platform, links):
        told.setdefault((str(link["run"]), str(link["record"])), (str(link["recordHash"]), "rows" in link))
    wrong = []
    before: dict[str, int] = {}
    for (run_id, name), (expected, changes_rows) in told.items():
        file = platform.evidence.records(run_id) / f"{name}.json"
        if (found := hash_or_kind(file)) != expected:
            wrong.append(Harmed(run_id, name, file, expected, found))
            if changes_rows:
                before.pop(run_id, None)
        elif changes_rows:
            one = _record_of(file, run_id, read_kept(file))
            if why := wrong_as_linked(one, before.get(run_id)):
                wrong.append(Harmed(run_id, name, file, expected, found, why))
            before[run_id] = one.number
        elif why := no_diff(name, _record_of(file, run_id, read_kept(file)).content):
            wrong.append(Harmed(run_id, name, file, expected, found, why))
    return wrong


def _about_records(platform: Platform, links: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the links that may be about the records that they name."""
    adopted: dict[str, bool] = {}
    for link in links:
        if not ("recordHash" in link and is_id(link.get("run")) and is_id(link.get("record"))):
            continue
        run_id = str(link["run"])
        if misnamed(link, is_adopted=False) and run_id not in adopted:
            adopted[run_id] = _is_adopted(platform, run_id)
        if not misnamed(link, is_adopted=adopted.get(run_id, False)):
            yield link


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


def harmed_of(platform: Platform, run_id: str, *, since: int = 0) -> list[Harmed]:
    """Return the records of a run that links after number `since` vouch for, and that are missing or changed."""
    links = platform.evidence.chain.contents(since=since)
    return harmed(platform, (link for link in links if link.get("run") == run_id))


def damaged_files(platform: Platform, run_id: str) -> list[str]:
    """Return the files of a run's last bundle and of its records that are not as they were written, below the evidence's folder."""
    store, chain = platform.evidence, platform.evidence.chain.read()
    mine = [link.content for link in chain.links if link.content.get("run") == run_id]
    sealed = [one for one in mine if one.get("event") == SEALED]
    odd = {
        f"{link.number:08}.json"
        for link in chain.links
        if link.content.get("run") == run_id and link_of_no_form(link.content)
    }
    found = [f"{store.chain.folder.name}/{name}" for name in sorted(odd | {one.name for one in chain.damages})]
    if store.bundles(run_id):
        bundle = bundle_in_use(platform, run_id)
        root, wrong = examine(bundle, run_id)
        roots = {str(one.get("root")) for one in sealed if one.get("bundle") == bundle.name}
        found += [f"{run_id}/{bundle.name}/{one.name}" for one in wrong]
        if roots and not wrong and root not in roots:  # whoever has changed a file has made its list anew
            found.append(f"{run_id}/{bundle.name}/{INDEX}")
    elif sealed and platform.ledger.run(run_id).state in WAS_PUBLISHED:
        found.append(f"{run_id}/{sealed[-1].get('bundle')}")
    records = {one.name for one in harmed(platform, mine)}
    records |= _without_link(platform, run_id)
    return found + [f"{run_id}/records/{name}.json" for name in sorted(records)]


def _without_link(platform: Platform, run_id: str) -> set[str]:
    """Return the records of a run that say they change rows, that no link vouches for, and that are not due.

    Of one that is due the link is still to come: its process is at it, or ended before it.
    """
    strange = {
        one.name
        for one in records_of(platform, run_id)
        if (one.number or one.wrong) and not _is_linked(platform, run_id, one)
    }
    record = platform.ledger.run(run_id)
    if not strange or record.state not in WAS_PUBLISHED or not platform.evidence.bundles(run_id):
        return strange
    try:
        return strange & set(planted(platform, record))
    except LedgerLocked:  # whoever writes it may be about to link them: nothing is known to be wrong
        return set()
    except (Refused, FileNotFoundError):  # what they would follow from is damaged: nobody can say what is due
        return strange


def unharmed_rows(
    platform: Platform, run_id: str, bundle: Path, records: Sequence[Record], damaged: Sequence[str]
) -> Rows | None:
    """Return what the ledger's rows of a run are to be today, as `kept_rows`; the ledger's own where damaged evidence would say it.

    `damaged` are the `damaged_files`. None where the evidence has no rows.
    """
    at = f"{run_id}/{bundle.name}/"
    files = {name.removeprefix(at) for name in damaged if name.startswith(at)}
    unharmed = [one for one in records if f"{run_id}/records/{one.name}.json" not in damaged]
    every = frozenset(tables_of_runs())
    lost = (_tables_in(files) | (MOVING if len(unharmed) < len(records) else frozenset())) & every
    rows = kept_rows(bundle, unharmed, sorted(every - lost))
    if rows is None or not lost:
        return rows
    with platform.ledger.reading() as moment:
        return rows | moment.rows_of(run_id, sorted(lost))


def require_unharmed(platform: Platform, run_id: str) -> None:
    """Refuse to go on from a run's records where one is missing or was changed.

    Raises:
        EnvironmentRefused: naming each of them.
    """
    with platform.ledger.reading() as moment:
        _, follows = moment.first_of(run_id)
    _refuse(run_id, harmed_of(platform, run_id, since=follows))


def _refuse(run_id: str, wrong: Sequence[Harmed]) -> None:
    if wrong:
        rule = "a record says what has happened: nothing is recorded past one that is not as it was written"
        raise EnvironmentRefused(
            [Problem(one.what, rule, f"`backfill verify {run_id}`; {one.fix}") for one in wrong[:_SHOWN]]
        )


def kept_rows(bundle: Path, records: Sequence[Record], tables: Sequence[str] | None = None) -> Rows | None:
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


def tell(platform: Platform, record: RunRecord, action: str, facts: Mapping[str, Any], number: int) -> None:
    """Record a change that a run made of its tables, and what that did to the records of other runs.

    `number` counts the run's changes; those before it that no record tells of are recorded first. Nothing is recorded twice.
    """
    due = [(place, said) for place, said in untold(platform, record) if place < number]
    due.append((number, {**facts, "action": action}))
    records = records_of(platform, record.run_id)
    linked = [one for one in records if one.number and _is_linked(platform, record.run_id, one)]
    done = _committed(platform, record.run_id)
    for place, said in due:
        if not _tells_of(linked, done, place):  # before anybody waits for the ledger
            said[COMMITTED] = commits_of(platform, record, said["action"], place, int(said["snapshot_id"]))
    with platform.ledger.holding(record.target) as moment:
        for place, said in due:
            is_told = partial(_tells_of, done=done, place=place)
            _record(platform, moment, record.run_id, said["action"], said, name_of(said["action"], place), is_told)
        for run_id in moment.runs_moved_by(record.target, record.run_id):
            try:
                _record(platform, moment, run_id, MOVED, {"by": record.run_id, "action": action})
            except (
                OSError,
                ArithmeticError,
                AttributeError,
                LookupError,
                RecursionError,
                TypeError,
                ValueError,
                EnvironmentRefused,
                PublicationRefused,
            ) as damage:  # of another run: it must not stop this one
                _LOG.warning(
                    "the evidence of %s cannot be continued: %s; see `backfill verify %s`", run_id, damage, run_id
                )


def untold(platform: Platform, record: RunRecord) -> list[tuple[int, dict[str, Any]]]:
    """Return the changes of a run that the ledger has and no record tells of: the number of each, and what a record says of it.

    None of a run of an earlier version, which recorded less of them.
    """
    run_id = record.run_id
    records = records_of(platform, run_id)
    has_rows = os.path.lexists(bundle_in_use(platform, run_id) / RUN_FILE)
    is_of_ours = has_rows and not any(one.number and one.content["event"] == ADOPTED for one in records)
    if not is_of_ours or _is_adopted(platform, run_id):
        return []
    done = _committed(platform, run_id)
    said = [(number, {name: one[name] for name in (*_PUBLISHED, "action")}) for number, one in enumerate(done, start=1)]
    return [(number, facts | {"run_id": run_id}) for number, facts in said if not _tells_of(records, done, number)]


def _committed(platform: Platform, run_id: str) -> list[dict[str, Any]]:
    """Return the entries of a run's changes, in their order."""
    return [one.as_record() for one in platform.ledger.landed(run_id)]


def _tells_of(records: Sequence[Record], done: Sequence[Mapping[str, Any]], place: int) -> bool:
    """Whether one of a run's records that change rows is that of its change of this place, which counts from 1.

    Its name alone says nothing. Nor does the snapshot: a version that is renamed back and forth has one and the same, and
    as many records as changes.
    """

    def what(said: Mapping[str, Any]) -> tuple[Any, Any]:
        return said.get("action"), said.get("snapshot_id")

    if place > len(done):
        return False
    entry = done[place - 1]
    about = [one for one in records if one.number and what(one.content) == what(entry)]
    names = {name_of(entry["action"], place), f"{entry['action']}-{place}"}
    times = sum(what(one) == what(entry) for one in done[:place])
    return len(about) >= times or any(one.name in names for one in about)


def catch_up(platform: Platform, run_id: str, event: str, facts: Mapping[str, Any]) -> bool:
    """Record what the rows of a published run say by now and no record does; return whether there was anything."""
    record = platform.ledger.run(run_id)
    if record.state not in WAS_PUBLISHED:
        return False
    with platform.ledger.holding(record.target) as moment:
        return _record(platform, moment, run_id, event, facts)


def is_behind(platform: Platform, record: RunRecord) -> str:
    """Say what the evidence of a published run does not know yet; empty if it knows everything."""
    if record.state not in WAS_PUBLISHED or not platform.evidence.bundles(record.run_id):
        return ""  # without a bundle there is more to be said than that
    records = records_of(platform, record.run_id)
    with platform.ledger.holding() as moment:
        linked, late = in_order(platform, moment, record.run_id, records)
        if late:
            return f"record {late[0].name} has no link in the chain"
        kept = kept_rows(bundle_in_use(platform, record.run_id), linked, sorted(MOVING))
        if kept is None:
            if linked:
                return ""  # it had rows once: whoever looks at the bundle finds more wrong with it than that
            return "it was published before the evidence kept rows and had a chain"
        new = _moved_on(moment, record.run_id, kept)
    return f"{new[0].where} has moved on since the last record" if new else ""


def require_explained(platform: Platform, run_id: str) -> None:
    """Refuse to publish a run whose rows are not what its transactions have written and the chain's links vouch for.

    Raises:
        PublicationRefused: naming each row.
    """
    with platform.ledger.reading() as moment:
        first, follows = moment.first_of(run_id)
    # first: what each is about was committed by then; the newest one whatever the entry says that it follows
    since = min([follows, *(link.number - 1 for link in platform.ledger.journal.newest_link())])
    links = list(platform.evidence.chain.links(since=since))
    with platform.ledger.reading() as moment:  # entries and rows as they are at one moment
        journal = moment.explain(links, first=first)
        wrong = [*journal.damages, *moment.unexplained(journal, run_id)]
    if wrong:
        raise PublicationRefused(
            Problem(
                f"the ledger was changed by hand since '{run_id}' was planned:{_listed(wrong)}",
                "what is published is what was decided and judged, as the chain's links vouch for it",
                f"`backfill verify {run_id}`; find out who has changed it, and cancel the run, or put back what was there",
            )
        )


def _listed(wrong: Sequence[Unexplained]) -> str:
    """Name the first of several places, a line each, and how many more there are."""
    shown = [f"{one.where}: {one.what}" for one in wrong[:_SHOWN]]
    more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
    return "".join(f"\n      {line}" for line in [*shown, *more])


def require_own_rows(platform: Platform, run_id: str) -> None:
    """Refuse to take back or to bring back a run whose own rows are not what its transactions have written.

    What is wrong with the rest of the journal keeps nobody from taking a publication back.

    Raises:
        PublicationRefused: naming each row.
    """
    with platform.ledger.reading() as moment:
        wrong = moment.unexplained(moment.explain_run(run_id), run_id)
    if wrong:
        raise PublicationRefused(
            Problem(
                f"the ledger's rows of '{run_id}' were changed by hand:{_listed(wrong)}",
                "what is taken back, or brought back, is what the run's own transactions have recorded",
                f"`backfill verify {run_id}`; find out who has changed it, put back what was there, or restate the scope with a "
                "new run",
            )
        )


def require_vouched_for(platform: Platform, run_id: str) -> None:
    """Refuse to publish a run beside whose evidence records lie that no link of the chain vouches for.

    Raises:
        PublicationRefused: naming each of them.
    """
    for look in range(_LOOKS):
        records = records_of(platform, run_id)
        vouched = vouched_for(platform, run_id, records)
        strange = [one.name for one in records if one not in vouched]  # nothing has changed rows before a publication
        if not strange:
            return
        if look < _LOOKS - 1:
            time.sleep(_AGAIN_SECONDS)  # a record that is made just now gets its link next
    folder = platform.evidence.records(run_id)
    raise PublicationRefused(
        Problem(
            f"no link of the chain vouches for {', '.join(f'{name}.json' for name in strange[:_SHOWN])} in {folder}",
            "what lies beside a run that is published is what this project has put on record",
            f"of a diff whose process ended before its link, `backfill diff {run_id}` completes it, if the rows say the same, "
            "and with --table the record of its table; move anything else out of the folder, keep it, and find out who has "
            "put it there; where the chain is said to have its SHA-256 then, cancel the run, and plan it under another run id",
        )
    )


def name_of(action: str, number: int) -> str:
    """Return the name of the record of a run's change; the first two, and an acceptance, go by the action's name alone."""
    return action if number <= _UNNUMBERED or action == ACCEPT else f"{action}-{number}"  # a run is accepted once


def _record(
    platform: Platform,
    moment: Moment,
    run_id: str,
    event: str,
    facts: Mapping[str, Any],
    name: str | None = None,
    is_told: Callable[[Sequence[Record]], bool] = lambda _records: False,
) -> bool:
    """Write a record of what has changed of a run's rows, and its link; return whether anything was missing.

    `is_told` says whether one of those that are there is the one of that name.
    """
    store = platform.evidence
    if not store.bundles(run_id):
        return False
    follows = store.chain.length()
    records = records_of(platform, run_id)
    for one in records:
        if not one.is_readable:
            raise EnvironmentRefused(
                Problem(
                    f"{store.records(run_id) / one.name}.json is {one.hash}",
                    "it may say what has happened before: nothing is recorded past a record that cannot be read",
                    f"`backfill verify {run_id}`; find out who has put it there, and put back the file that belongs there",
                )
            )
    linked, late = in_order(platform, moment, run_id, records)
    _refuse(run_id, _harmed_among(platform, moment, run_id, linked))
    made_up = [_link(platform, run_id, one) for one in late]
    numbered = [*linked, *late]
    bundle = bundle_in_use(platform, run_id)
    beside = vouched_for(platform, run_id, records)
    if name is not None and (is_told(numbered) or any(one.name == name for one in beside)):
        event, facts, name = MOVED, {}, None  # told before: what is left is what came after it
    # the first record has the hash of every table; only those that may move are read again
    read = MOVING if numbered else frozenset({*_TABLES, "runs"})
    damaged = read & _damaged_tables(bundle, run_id)
    if "runs" in damaged and not os.path.lexists(bundle / RUN_FILE):
        return False
    kept = kept_rows(bundle, numbered, sorted(read - damaged))
    if kept is None and numbered:
        return False  # the bundle that they go on from is not there any more: nothing is to stand in for it
    if kept is None:
        found = moment.rows_of(run_id)
        kept, changes, event = {}, {table: dict(rows) for table, rows in found.items()}, ADOPTED
        facts = {**facts, COMMITTED: adopted_commits(platform, found)}
    else:
        known = _as_hashed(moment, run_id, damaged, numbered)
        kept |= known
        damaged -= known.keys()
        moving = {table: rows for table, rows in kept.items() if table in MOVING}
        changes = changes_of(_moved_on(moment, run_id, moving, MOVING - damaged))
    if event == MOVED:
        event = _what_moved(changes)
    if name is None and not changes:
        return bool(made_up)
    fold(kept, changes)
    number = len(numbered) + 1
    hashes = (dict(numbered[-1].content.get("tables", {})) if numbered else {}) | hashes_of(kept)
    content = {
        **facts,
        "event": event,
        "run_id": run_id,
        "number": number,
        "bundle": bundle.name,
        "evidence_root": _root_of(bundle),
        "follows": follows,
        "at": _newest(changes) or _newest(kept),
        "rows": changes,
        "tables": {table: hash_ for table, hash_ in hashes.items() if table not in damaged},
        "beside": {one.name: one.hash for one in beside},
    }
    name = name or f"{event}-{number}"
    _require_free(store.records(run_id) / f"{name}.json")
    # a server ends a transaction that stands still, and others record in its place then
    still = moment.touch
    file = store.append(run_id, name, content, still)
    faults.reach("recording.written")
    raw = read_kept(file)
    _link(platform, run_id, Record(file.stem, hashlib.sha256(raw).hexdigest(), json_of(raw)), still)
    return True


def _harmed_among(platform: Platform, moment: Moment, run_id: str, linked: Sequence[Record]) -> list[Harmed]:
    """Return the records of a run that are missing or changed; the whole chain is asked only where one of them is."""
    is_whole = [one.number for one in linked] == list(range(1, len(linked) + 1))
    is_whole = is_whole and all(_link_of(platform, run_id, one).get("recordHash") == one.hash for one in linked)
    _, first = moment.first_of(run_id)
    since = linked[-1].content["follows"] if linked and is_whole else first
    return harmed_of(platform, run_id, since=since)


def _damaged_tables(bundle: Path, run_id: str) -> frozenset[str]:
    """Return the tables whose rows a bundle no longer has as it was sealed; all of them where nothing says which files were."""
    return _tables_in({one.name for one in examine(bundle, run_id)[1]})


def _tables_in(files: set[str]) -> frozenset[str]:
    """Return the tables whose rows are in some files of a bundle; all of them if the list of its files is among those."""
    tables = frozenset({*_TABLES, "runs"})
    return tables if INDEX in files else frozenset(one for one in tables if not files.isdisjoint(files_of(one)))


def _as_hashed(
    moment: Moment, run_id: str, tables: Collection[str], numbered: Sequence[Record]
) -> dict[str, dict[str, Row]]:
    """Return the rows of tables as the last record has their hash; where the bundle was damaged, the ledger may have them.

    What came after that record are the newest rows of the ledger. A table is left out if no such rows have the hash.
    """
    hashes = numbered[-1].content.get("tables", {}) if numbered else {}
    found: dict[str, dict[str, Row]] = {}
    for table, rows in moment.rows_of(run_id, sorted(tables & hashes.keys())).items():
        for newer in range(min(len(rows), _NEWER) + 1):
            older = dict(list(rows.items())[: len(rows) - newer])
            if hashes_of({table: older})[table] == hashes[table]:
                found[table] = older
                break
    return found


def _require_free(file: Path) -> None:
    """Refuse to take a file for a record that it is not.

    Raises:
        PublicationRefused: if somebody has put one there.
    """
    if file.exists():
        raise PublicationRefused(
            Problem(
                f"{file} is there, and is not the record that is due",
                "a record says what a link of the chain vouches for, or what the ledger's rows say",
                "move it out of the folder, keep it, find out who has put it there, and run the same command again: "
                "what has landed is not done twice",
            )
        )


def in_order(
    platform: Platform, moment: Moment, run_id: str, records: Sequence[Record]
) -> tuple[list[Record], list[Record]]:
    """Return the records of a run that change rows: those that have a link, and those whose process ended before it.

    Of the second each goes on from the one before, and says what the ledger's rows say. What is neither was planted: nothing
    goes on from it, and no link is made for it.
    """
    numbered = [one for one in records if one.number]
    linked = [one for one in numbered if _is_linked(platform, run_id, one)]
    late: list[Record] = []
    for one in numbered:
        if one not in linked and _is_due(platform, moment, run_id, [*linked, *late], records, one):
            late.append(one)
    return linked, late


def planted(platform: Platform, record: RunRecord) -> list[str]:
    """Return the names of the records of a published run that say they change rows and were never due."""
    if record.state not in WAS_PUBLISHED or not platform.evidence.bundles(record.run_id):
        return []
    records = records_of(platform, record.run_id)
    claim = [one for one in records if one.number or one.wrong]
    if all(_is_linked(platform, record.run_id, one) for one in claim):
        return []
    with platform.ledger.holding(record.target) as moment:
        linked, late = in_order(platform, moment, record.run_id, records)
    known = [*linked, *late]
    return [
        one.name for one in claim if one not in known and not (one.wrong and _is_linked(platform, record.run_id, one))
    ]


def _is_due(
    platform: Platform,
    moment: Moment,
    run_id: str,
    before: Sequence[Record],
    records: Sequence[Record],
    one: Record,
) -> bool:
    """Whether a record without a link is the next one: what it says follows from those before it and from the ledger's rows."""
    try:
        return _follows_from(platform, moment, run_id, before, records, one)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False  # this project does not write what cannot even be compared


def _follows_from(
    platform: Platform,
    moment: Moment,
    run_id: str,
    before: Sequence[Record],
    records: Sequence[Record],
    one: Record,
) -> bool:
    store, said, is_first = platform.evidence, one.content, not before
    bundle, changes, follows = bundle_in_use(platform, run_id), one.content["rows"], one.content["follows"]
    kept = kept_rows(bundle, before, None if is_first else sorted(MOVING))
    adopts = kept is None and is_first and said["event"] == ADOPTED
    if (kept is None and not adopts) or not _is_rows(changes, {*_TABLES, "runs"} if adopts else MOVING):
        return False
    after: Rows = {table: {key: dict(row) for key, row in found.items()} for table, found in (kept or {}).items()}
    fold(after, changes)
    here = moment.rows_of(run_id, None if adopts else sorted(MOVING))
    touched = {(table, key) for table, rows in changes.items() for key in rows}
    journal = moment.explain_run(run_id)
    by_hand = {(bad.table, bad.key) for bad in moment.unexplained(journal, run_id, here)}
    then, now = ({name: rows.get(name, {}) for name in here} for rows in (kept or after, after))
    unlawful = {(bad.table, bad.key) for bad in [*differences(then, now), *differences(now, here)] if not bad.lawful}
    hashes = (dict(before[-1].content.get("tables", {})) if before else {}) | hashes_of(after)
    beside = {other.name: other.hash for other in vouched_for(platform, run_id, records)}
    told = (one.number, said.get("run_id"), said.get("bundle"), said.get("evidence_root"), said.get("at"))
    return (
        told == (len(before) + 1, run_id, bundle.name, _root_of(bundle), _newest(changes) or _newest(after))
        and isinstance(follows, int)
        and 0 <= follows <= store.chain.length()
        and touched.isdisjoint(by_hand | unlawful)
        and _are_in(said.get("tables"), hashes)
        and _are_in(said.get("beside"), beside)
        and _says_what_happened(one, here["publications"], has_changes=bool(touched))
        and _says_what_was_committed(platform, run_id, one, after, of_earlier_version=run_id in journal.adopted)
    )


def _is_rows(changes: Any, tables: Collection[str]) -> bool:
    """Whether what a record gives as its changes has the form of cells by column, by key, by table."""
    return isinstance(changes, dict) and all(
        table in tables and isinstance(rows, dict) and all(isinstance(cells, dict) for cells in rows.values())
        for table, rows in changes.items()
    )


def _are_in(said: Any, known: Mapping[str, str]) -> bool:
    return isinstance(said, dict) and said.items() <= known.items()


def _says_what_happened(one: Record, entries: Mapping[str, Row], *, has_changes: bool) -> bool:
    """Whether the facts of a record are those of a change that the ledger has, or of an event beside one."""
    said, event = one.content, str(one.content["event"])
    if event == ADOPTED and one.name != f"{event}-{one.number}":  # with the record of a change, under that one's name
        event = str(said.get("action"))
    if event not in ACTIONS:
        return (
            has_changes
            and event in EVENTS
            and one.name == f"{said['event']}-{one.number}"
            and said.keys() <= _SAID | _FACTS
        )
    committed = [entry for entry in entries.values() if entry["state"] == PublicationState.COMMITTED]
    names = {event, *(f"{event}-{number}" for number in range(1, len(committed) + 1))}
    return (one.name in names and said.keys() <= _SAID | _FACTS | _PUBLISHED) and any(
        said.get("action") == entry["action"] == event and all(said.get(name) == entry[name] for name in _PUBLISHED)
        for entry in committed
    )


def _says_what_was_committed(
    platform: Platform, run_id: str, one: Record, after: Rows, *, of_earlier_version: bool
) -> bool:
    """Whether a record has of the snapshots that it is about what their tables have of them.

    One that has expired since is not asked. An earlier version of this project kept nothing of them.
    """
    said, event = one.content, str(one.content["event"])
    if event not in {ADOPTED, *ACTIONS}:
        return COMMITTED not in said
    if COMMITTED not in said:
        return of_earlier_version
    if event == ADOPTED:
        there = adopted_commits(platform, after)
    else:
        entries = [entry for entry in after["publications"].values() if entry["state"] == PublicationState.COMMITTED]
        told_of = (event, said["snapshot_id"])
        places = [at for at, one in enumerate(entries, 1) if (one["action"], one["snapshot_id"]) == told_of]
        number = next((at for at in places if one.name in {name_of(event, at), f"{event}-{at}"}), places[0])
        there = commits_of(platform, platform.ledger.run(run_id), event, number, said["snapshot_id"])
    known = {(facts["table"], facts["snapshotId"]) for facts in there}
    told = [facts for facts in said[COMMITTED] if (facts["table"], facts["snapshotId"]) in known]
    return [_as_committed(facts) for facts in told] == [_as_committed(facts) for facts in there]


def _as_committed(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name in ("table", *_AS_COMMITTED)}


def _moved_on(moment: Moment, run_id: str, kept: Rows, tables: Collection[str] = MOVING) -> list[Difference]:
    """Return what of tables has lawfully changed since rows were kept, and was changed by a transaction that the journal has.

    What was changed by hand is never taken over, however possible it looks: `verify` and `doctor` name it.
    """
    by_hand = {(one.table, one.key) for one in moment.unexplained(moment.explain_run(run_id), run_id, tables)}
    found = {
        table: {key: row for key, row in rows.items() if (table, key) not in by_hand or key in kept.get(table, {})}
        for table, rows in moment.rows_of(run_id, sorted(tables)).items()
    }
    return [one for one in differences(kept, found) if one.lawful and (one.table, one.key) not in by_hand]


def _what_moved(changes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return what another run's change did to a run: took chunks over, or gave them back."""
    held = changes.get("accepted_versions", {}).values()
    if any("accepted_at" in row and row.get("ended_at") is None for row in held):
        return RESTORED
    return SUPERSEDED if any(row.get("ended_how") == RunState.SUPERSEDED for row in held) else MOVED


def _root_of(bundle: Path) -> str:
    """Return the root hash that a bundle's index gives: whether it is right is for whoever verifies."""
    return str(read_json(bundle / "index.json")["root"])


def _newest(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the newest instant in rows: when what they say happened."""
    names = ("at", "updated_at", "started_at", "ended_at", "accepted_at")
    cells = (row.get(name) for found in rows.values() for row in found.values() for name in names)
    return max((cell for cell in cells if isinstance(cell, str)), default="")


def _link(platform: Platform, run_id: str, record: Record, still: Callable[[], object] | None = None) -> Link:
    """Append the link of a record, if it has none; `still` as in `Chain.append`."""
    said = record.content
    content = {
        "event": said.get("event"),
        "run": run_id,
        "record": record.name,
        "recordHash": record.hash,
        "root": said.get("evidence_root"),
        "rows": sha256_of(said.get("tables")),
        "at": said.get("at"),
    }

    def same(link: Mapping[str, Any]) -> bool:
        return _is_about(link, run_id, record)

    return platform.evidence.chain.append(content, since=int(said.get("follows", 0)), same=same, still=still)


def _is_linked(platform: Platform, run_id: str, record: Record) -> bool:
    return bool(_link_of(platform, run_id, record))


def _link_of(platform: Platform, run_id: str, record: Record) -> Mapping[str, Any]:
    """Return the link of a run's record, empty if it has none: it came after those that there were when it was written.

    Whatever the record says of itself: another run's may lie in its place. A link of another event is about none of a change.
    """
    follows = record.content.get("follows")
    since = follows if isinstance(follows, int) and follows > 0 else 0
    said = platform.evidence.chain.contents(since=since)
    return next((link for link in said if _is_about(link, run_id, record)), {})


def _is_about(link: Mapping[str, Any], run_id: str, record: Record) -> bool:
    about = (link.get("run"), link.get("record"), link.get("event"))
    return "rows" in link and about == (run_id, record.name, record.content.get("event"))
