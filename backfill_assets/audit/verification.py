"""`backfill verify`: holds evidence, chain, ledger, tables and rows against each other, and names every change.

Put here what is compared with what. It changes nothing, trusts nothing that it can hash again, and goes on after the first
thing that is wrong. Whether tables and ledger agree on what is accepted today is the doctor's question.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from math import isclose
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from backfill_assets.audit.accepted_files import Looked, check_files
from backfill_assets.audit.findings import World
from backfill_assets.audit.foreign_files import begun_bundles, interrupted, strange_files, strange_folders
from backfill_assets.audit.issued_corrections import read_corrections
from backfill_assets.audit.pins import Inputs
from backfill_assets.audit.proof import FileProblem, check_rows
from backfill_assets.audit.published_rows import read_chunk
from backfill_assets.audit.sealed_metadata import check_metadata
from backfill_assets.audit.unknown_files import UnknownFiles
from backfill_assets.evidence.bundles import RUN_FILE, files_of, sealed_rows
from backfill_assets.evidence.collected import collected_files, collected_snapshots, collections
from backfill_assets.evidence.diff_records import no_diff
from backfill_assets.evidence.events import ADOPTED, GC, REFUSED
from backfill_assets.evidence.links import misnamed, strange_links
from backfill_assets.evidence.records import Record, kept_rows, records_of, wrong_as_linked
from backfill_assets.evidence.seals import COMMITTED, Sealed, sealed_of
from backfill_assets.gates.chunk_changes import CHANGES_FILE
from backfill_assets.installation import Platform
from backfill_assets.publication.under_way import Intent, intents_in
from manifests.canonical import canonical_json, sha256_of
from manifests.errors import EnvironmentRefused, Refused
from manifests.lifecycle import PUBLISH, WAS_PUBLISHED, PublicationState
from resources.evidence.chain import START, Link, ReadChain
from resources.evidence.heads import Kept, kept_heads, not_extended
from resources.evidence.store import INDEX, SEALED, examine
from resources.files.kept_files import read_json
from resources.lakehouse.facade import ACTION_PROPERTY, EVIDENCE_PROPERTY, PLAN_PROPERTY, RUN_PROPERTY, VERSION_PROPERTY
from resources.lakehouse.history import referenced
from resources.lakehouse.snapshots import Days, Seen, summary_facts
from resources.lakehouse.storage import Storage, place_of
from resources.ledger.journal import (
    INSTALLATION,
    Explained,
    Unexplained,
)
from resources.ledger.moments import Moment
from resources.ledger.rows import (
    MOVING,
    Difference,
    Rows,
    differences,
    hashes_of,
    is_id,
    tables_of_runs,
)

COVERED: Mapping[str, str] = {
    "bundles, records and chain, and what else lies in the evidence folder": "always",
    "the ledger's rows of runs, and the text of the policy that decided": "always",
    "snapshots, manifests, columns and partitions of published tables, and which files readers get": "always",
    "the log of main, location, properties that redirect writers, default spec, ages of this project's names": "always",
    "how accepted files are listed (format, store, among rows), the base and the candidate of a run by name": "always",
    "metadata of the sources and references that were read": "always",
    "rows, bounds and counts that readers get; lineage of rewritten rows": "data",
    "what files of nobody's run hold of accepted days, or in the name of a run's corrections": "data",
    "files of sources and references: length, and SHA-256 where this project loaded them": "data",
    "outlines, and rows of the exception and audit tables": "data",
    "links cut off the end of the chain": "head",
}
"""What is checked, by name, and when: always, with `--data`, or with `--head`."""
NOT_COVERED = (
    "a forgery of evidence, ledger and catalog at once, where no head of the chain is kept elsewhere",
    "what other programs loaded into sources, but for its length",
    "report.html: it is made anew from the evidence when it is asked for",
    "leases, settings, Dagster's event log, the records of gc, triggers and views in the ledger's database",
    "entries of other programs in a table's log; ages of main and of others' names; sort orders, statistics, other properties",
    "the order and the need of columns in a schema that was added later; what a source's owner makes of its columns later",
    "the base's name of a run that holds nothing any more; rows on days of which nothing is accepted",
    "the changes table of diffs, and what sinks outside of the lakehouse received",
    "a link that repeats one about a kept record, or about a bundle that is not published yet or of an earlier version",
)
"""What is not checked, by name."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHOWN = 200
"""Characters shown of a value."""
_CONTEXT = 40
_AGAIN_SECONDS = 0.5
_LOOKS = 3
"""How often a run is looked at again while work goes on that may explain what is wrong with it."""


@dataclass(frozen=True)
class Problem:
    """Something that is not as the evidence has it: where, what, and both values."""

    run_id: str
    where: str
    what: str
    expected: str = ""
    found: str = ""


@dataclass(frozen=True)
class Verified:
    """What was found of one run. `notes` say what could not be checked, or need not be, and why."""

    run_id: str
    root: str
    links: tuple[int, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    chunks_read: int = 0


@dataclass(frozen=True)
class Verification:
    """What was found of the chain and of the runs."""

    length: int
    head: str
    problems: tuple[Problem, ...]
    runs: tuple[Verified, ...]
    heads: tuple[Kept, ...] = ()
    """The places where heads of the chain are kept, and what each has answered."""

    @property
    def everything(self) -> list[Problem]:
        """Every problem: the chain's, then the runs'."""
        return [*self.problems, *(problem for run in self.runs for problem in run.problems)]


def verify(
    platform: Platform,
    only: Sequence[str] | None = None,
    *,
    data: bool = False,
    head: str | None = None,
    at: datetime | None = None,
) -> Verification:
    """Check runs (all of them, if none is named) and the chain; `data` reads every published row again.

    What policy lets expire is asked as of `at`: now, but for tests.

    Raises:
        InputRefused: if the ledger and the evidence know nothing of a named run.
    """
    asked = tuple(kept_heads(platform.settings.head_places))  # before the chain is read, which only grows
    check = _Check(platform, at or datetime.now(UTC))
    wanted = check.known if only is None else list(only)
    if unknown := [run_id for run_id in wanted if run_id not in set(check.known) | check.in_ledger.keys()]:
        platform.ledger.run(unknown[0])
    problems = [
        Problem("", f"chain {one.name}", one.what, one.expected, one.found) for one in check.chain.damages
    ] + check.ledger_problems
    if not check.ledger_problems:
        problems += check.of_no_run()
    if head is not None and head != START and head not in {link.hash for link in check.chain.links}:
        problems.append(
            Problem("", "chain", "links that were in it are missing: the given head is no link of it", head, check.head)
        )
    problems += [Problem("", one.where, one.what, one.expected, one.found) for one in not_extended(asked, check.chain)]
    done = [_looked_at(platform, check, run_id, data=data) for run_id in wanted]
    return Verification(len(check.chain.links), check.head, tuple(problems), tuple(done), heads=asked)


def _looked_at(platform: Platform, check: _Check, run_id: str, *, data: bool) -> Verified:
    """Check a run; as long as something is wrong that work beside it may explain, look again, a few times."""
    verified, is_behind = check.run(run_id, data=data)
    for _ in range(_LOOKS):
        if not verified.problems or not (is_behind or check.has_moved()):
            break
        time.sleep(_AGAIN_SECONDS)
        check = _Check(platform, check.at)
        verified, _ = check.run(run_id, data=data)
        is_behind = False  # what an event just now would explain has had its time
    return verified


@dataclass
class _Findings:
    run_id: str
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_behind: bool = False
    """Whether something is missing that an event just now would explain."""
    is_blind: bool = False
    """Whether neither evidence nor ledger can say what the run's tables are to be."""

    def add(self, where: str, what: str, expected: Any = "", found: Any = "") -> None:
        left, right = _around(_text(expected), _text(found))
        self.problems.append(Problem(self.run_id, where, what, left, right))


@dataclass(frozen=True)
class _Damage:
    """What of a run's evidence is not as it was written: nothing is compared with what it says now.

    `files` of its bundle; `tables` of the ledger of whose rows those files, or damaged records, would say what they are to be.
    """

    files: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()


class _Check:
    """What is read once for all runs."""

    def __init__(self, platform: Platform, at: datetime) -> None:
        self.at = at
        self.platform = platform
        self._length = platform.evidence.chain.length()
        self.chain: ReadChain = platform.evidence.chain.read()
        self.head = self.chain.head
        self.ledger_problems: list[Problem] = []
        self.in_ledger: dict[str, str] = {}
        self.journal = Explained()
        self._tables: dict[str, Seen | None] = {}
        self._inputs = Inputs(platform)
        self._unknown = UnknownFiles(self._published)
        self._in_use: dict[str, set[str]] = {}
        self._is_outrun = False
        try:
            with platform.ledger.reading() as moment:
                self.in_ledger = dict.fromkeys(moment.run_ids(), "")
                self.in_ledger |= {name: at for name, at in moment.states().items() if name in self.in_ledger}
                self.journal = moment.explain(self.chain.links)
        except sa.exc.DBAPIError as error:
            self.ledger_problems.append(Problem("", "ledger", f"cannot be read: {error.orig}"))
        self._read_until = self.journal.length

    def has_moved(self) -> bool:
        """Whether somebody has written to ledger or chain since they were read, or to a table that was looked at."""
        if self._is_outrun or self.platform.evidence.chain.length() != self._length:
            return True
        if self.ledger_problems:
            return False
        with self.platform.ledger.reading() as moment:
            return moment.newest_entry() != self._read_until

    def of_no_run(self) -> list[Problem]:
        """Return what is wrong with the ledger's journal, its links, and rows of no run."""
        committed = self.journal.length
        if committed > self.journal.linked:
            time.sleep(_AGAIN_SECONDS)  # a transaction may have been committed just now: its link comes next
            again = _Check(self.platform, self.at)
            if not again.ledger_problems:
                self.chain, self.head, self.journal = again.chain, again.head, again.journal
                self._length, self._read_until = again._length, again._read_until
        wrong = list(self.journal.damages)
        if committed > self.journal.linked:  # of what was committed since then, the links may be still to come
            what = f"has no link in the chain: a process ended before it could append it; {_REPAIR}"
            wrong.append(Unexplained(f"ledger journal {self.journal.linked + 1}", what))
        try:
            with self.platform.ledger.reading() as moment:
                moment.go_on(self.journal)
                wrong += moment.unexplained(self.journal, INSTALLATION)
                wrong += moment.of_nobody(self.journal)
        except sa.exc.DBAPIError as error:
            wrong.append(Unexplained("ledger", f"cannot be read: {error.orig}"))
        what = "has no name that a run could have: it was put there by somebody"
        wrong += [Unexplained(f"evidence {name}", what) for name in self.platform.evidence.strangers()]
        wrong += strange_links(
            self.platform.evidence,
            self.chain.links,
            runs=self.in_ledger.keys() | self.journal.runs.keys(),
            known=set(self.known),
            adopted=self.journal.adopted,
        )
        wrong += strange_folders(self.platform.evidence, self._runs_now, {GC})
        return [Problem("", one.where, one.what, *_around(one.expected, one.found)) for one in wrong]

    def _runs_now(self) -> set[str]:
        with self.platform.ledger.reading() as moment:
            return {*self.known, *moment.run_ids()}

    @cached_property
    def known(self) -> list[str]:
        """Every run of ledger, journal, evidence and chain."""
        named = (link.content.get("run") for link in self.chain.links if "rows" in link.content)
        linked = {run_id for run_id in named if isinstance(run_id, str)}
        found = linked | self.in_ledger.keys() | (self.journal.runs.keys() - {INSTALLATION})
        found |= set(self.platform.evidence.run_ids())
        order = {run_id: number for number, run_id in enumerate(self.in_ledger)}
        return sorted(filter(is_id, found), key=lambda run_id: (order.get(run_id, len(order)), run_id))

    def run(self, run_id: str, *, data: bool) -> tuple[Verified, bool]:
        """Check one run; say also whether an event just now would explain what is wrong."""
        found = _Findings(run_id)
        mine = [link for link in self.chain.links if link.content.get("run") == run_id]
        links = [link for link in mine if "rows" in link.content]
        records = records_of(self.platform, run_id)
        bundle, root = self._bundle(run_id, links, found)
        harmed, planted = self._records(mine, records, found)
        damage = self._damage(bundle, links, harmed, found)
        vouched = {str(link.content.get("root")) for link in links}
        if INDEX in damage.files and len(vouched) == 1:
            (root,) = vouched  # what a damaged index gives is no measure of anything
        records = [
            one for one in records if one.name not in {*harmed, *planted}
        ]  # what such a one says is nobody's word
        self._strangers(run_id, found)
        chunks_read = 0
        rows: Rows | None = None
        try:
            rows = None if bundle is None else self._rows(run_id, bundle, links, records, root, damage, found)
            if bundle is not None and CHANGES_FILE not in damage.files:
                self._diff(bundle, records, found, published=bool(links))
            if rows is not None and bundle is not None and not found.is_blind:
                target = self.platform.products.target(str(rows["runs"][run_id]["target"]))
                told = [one.content for one in records if one.number]
                sealed = sealed_of(run_id, target, rows, bundle, told, damaged=damage.files, is_whole=not damage.tables)
                chunks_read = self._tables_of(sealed, root, found, data=data)
        except Exception as error:  # noqa: BLE001 - what was changed may make its readers raise anything
            said = error.problems[0].what if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
            why = f"not everything could be checked: {said}"
            if found.problems:
                found.notes.append(why)
            else:
                found.add(run_id, why)
        if rows is None and not self.ledger_problems:
            with self.platform.ledger.reading() as moment:
                by_hand = self._by_hand(moment, run_id)
            self._journal(run_id, by_hand, found)
        numbers = tuple(link.number for link in mine)
        verified = Verified(run_id, root, numbers, tuple(found.problems), tuple(found.notes), chunks_read)
        return verified, found.is_behind

    # --- files ------------------------------------------------------------------------------------------------

    def _bundle(self, run_id: str, links: Sequence[Link], found: _Findings) -> tuple[Path | None, str]:
        """Hash every file of every bundle; return the one that was published (else the last) and its root."""
        store = self.platform.evidence
        sealing = self._links_of(run_id, SEALED)
        sealed = {(str(link.content.get("bundle")), str(link.content.get("root"))) for link in sealing}
        rooted = {str(link.content.get("root")) for link in links}
        chosen: tuple[Path | None, str] = (None, "")
        for bundle in store.bundles(run_id):
            root, changed = examine(bundle, run_id)
            for one in changed:
                file = f"{bundle.relative_to(store.folder)}/{one.name}".removesuffix("/.")
                found.add(
                    file, "was changed after it was sealed", _hash_or_kind(one.expected), _hash_or_kind(one.found)
                )
            if changed:
                root = _told_root(bundle)
            elif (bundle.name, root) not in sealed and (sealed or root not in rooted):  # an earlier version: of no link
                what = "is a bundle that no link of the chain vouches for: this project has not sealed it"
                found.add(f"{run_id}/{bundle.name}", what, found=f"root {root}")
            if chosen[0] is None or root in rooted or chosen[1] not in rooted:
                chosen = (bundle, root)
        if chosen[0] is None and (links or self.in_ledger.get(run_id) in WAS_PUBLISHED):
            found.add(f"{run_id}/bundle", "is missing: a published run has a sealed bundle", ", ".join(sorted(rooted)))
        elif rooted and chosen[1] not in rooted:
            found.add(
                f"{run_id}/{chosen[0].name if chosen[0] else 'bundle'}",
                "has another root than the chain",
                ", ".join(sorted(rooted)),
                chosen[1],
            )
        there = {(bundle.name, _told_root(bundle)) for bundle in store.bundles(run_id)}
        placed = {link.number: (str(link.content.get("bundle")), str(link.content.get("root"))) for link in sealing}
        missing = [link for link in sealing if placed[link.number] not in there]
        begun = begun_bundles(store, run_id) if missing else set()
        needed = rooted | self._roots_of_changes(run_id, found) if missing else rooted
        for link in missing:
            place = placed[link.number]
            if place not in begun or place[1] in needed:  # else a process ended before it could put it in its place
                found.is_behind = True
                what = f"is not there with the root that link {link.number} of the chain vouches for"
                found.add(f"{run_id}/{place[0]}", what, place[1], "nothing")
        return chosen

    def _roots_of_changes(self, run_id: str, found: _Findings) -> set[str]:
        """Return the roots with which a run has set out to change its tables, or has put a candidate on its branch.

        Those bundles were in their place by then.
        """
        if self.ledger_problems:
            return set()
        with self.platform.ledger.reading() as moment:
            rows = moment.rows_of(run_id, ["publications", "runs"])
        roots = {str(entry["evidence_root"]) for entry in rows["publications"].values()}
        for table in {str(run["target"]) for run in rows["runs"].values()}:
            seen = self._table(table, found)
            said = [summary_facts(one) for one in seen.by_id.values()] if seen is not None else []
            roots |= {
                one[EVIDENCE_PROPERTY] for one in said if one.get(RUN_PROPERTY) == run_id and EVIDENCE_PROPERTY in one
            }
        return roots

    def _links_of(self, run_id: str, event: str) -> list[Link]:
        return [link for link in _of(self.chain.links, event) if link.content.get("run") == run_id]

    def _strangers(self, run_id: str, found: _Findings) -> None:
        """Name what else lies in the run's folder."""
        for one in strange_files(self.platform.evidence, run_id):
            found.add(one.where, one.what, one.expected, one.found)
        for left in interrupted(self.platform.evidence, run_id):
            found.notes.append(
                f"{left} is what a process has left that ended while it sealed a bundle: it proves nothing"
            )

    def _damage(self, bundle: Path | None, links: Sequence[Link], harmed: Sequence[str], found: _Findings) -> _Damage:
        """Return what of bundle and records is damaged, and note once that nothing is compared with it."""
        run_id = found.run_id
        files: frozenset[str] = frozenset()
        if bundle is not None:
            root, changed = examine(bundle, run_id)
            sealing = self._links_of(run_id, SEALED)
            sealed = {(str(one.content.get("bundle")), str(one.content.get("root"))) for one in sealing}
            files = frozenset(one.name for one in changed)
            if (
                INDEX in files and (bundle.name, root) not in sealed
            ):  # nothing says which of the others are as they were
                files |= {file.name for file in bundle.iterdir()} | {
                    file for name in tables_of_runs() for file in files_of(name)
                }
        tables = {name for name in tables_of_runs() if not files.isdisjoint(files_of(name))}
        if bundle is not None and RUN_FILE not in files and not os.path.lexists(bundle / RUN_FILE):
            tables.clear()  # an earlier version sealed it, without rows
        if any(one.content.get("record") in harmed for one in links):
            tables |= MOVING
        folder = f"{run_id}/{bundle.name}" if bundle is not None else run_id
        named = [INDEX] if INDEX in files else sorted(files)
        named = [f"{folder}/{name}" for name in named] + [f"{run_id}/records/{name}.json" for name in harmed]
        if named:
            found.notes.append(
                f"what was said in {', '.join(named)} could not be compared with anything: restore the file(s), and verify again"
            )
        return _Damage(files, frozenset(tables))

    def _records(
        self, links: Sequence[Link], records: Sequence[Record], found: _Findings
    ) -> tuple[list[str], list[str]]:
        """Hold each record against its link, and each link against its record.

        Return the names of those that are not as their link says, and of those that change rows and have a link only that
        is about no such record.
        """
        by_name = {record.name: record for record in records}
        linked, strange = self._links_about(links, by_name, is_adopted=found.run_id in self.journal.adopted)
        beside: dict[str, str] = {}
        wrong: list[str] = []
        before: int | None = 0
        for name, link in linked.items():
            where = f"{found.run_id}/records/{name}.json"
            expected, one = str(link.content.get("recordHash")), by_name.get(name)
            if one is None:
                found.add(
                    where, f"is missing: link {link.number} of the chain names it", f"SHA-256 {expected}", "nothing"
                )
            elif one.hash != expected:
                found.add(where, "was changed after it was written", f"SHA-256 {expected}", _hash_or_kind(one.hash))
            elif what := wrong_as_linked(one, before) if "rows" in link.content else no_diff(name, one.content):
                found.add(where, what)
            else:
                beside |= one.content.get("beside", {}) if one.number else {}
                before = one.number or before
                continue
            wrong.append(name)
            before = None if "rows" in link.content else before
        for record in records:
            where = f"{found.run_id}/records/{record.name}.json"
            if record.number and record.name not in linked:
                found.is_behind = True
                what = "has no link in the chain: it was planted, or a process ended before it could append it; "
                found.add(where, f"{what}{_REPAIR}, if the ledger's rows say the same")
            elif not record.number and record.name not in linked and beside.get(record.name) != record.hash:
                if record.name in beside:
                    expected = f"SHA-256 {beside[record.name]}"
                    found.add(where, "was changed after it was recorded", expected, _hash_or_kind(record.hash))
                else:
                    what = "is a record that no link of the chain vouches for: it was planted, or a process ended before the link"
                    found.add(where, what, "nothing", _hash_or_kind(record.hash))
        for name in sorted(beside.keys() - by_name.keys()):
            found.add(f"{found.run_id}/records/{name}.json", "is missing", f"SHA-256 {beside[name]}", "nothing")
        return wrong, sorted(strange - linked.keys())

    @staticmethod
    def _links_about(
        links: Sequence[Link], records: Mapping[str, Record], *, is_adopted: bool
    ) -> tuple[dict[str, Link], set[str]]:
        """Return the first link about each record of a run, and the records of which a link is about none such."""
        linked: dict[str, Link] = {}
        strange: set[str] = set()
        for link in (one for one in links if "record" in one.content):
            name = str(link.content["record"])
            changes_rows = name in records and "follows" in records[name].content
            if misnamed(link.content, is_adopted=is_adopted) or (changes_rows and "rows" not in link.content):
                strange.add(name)
            else:
                linked.setdefault(name, link)
        return linked, strange

    @staticmethod
    def _diff(bundle: Path, records: Sequence[Record], found: _Findings, *, published: bool) -> None:
        """Hold the kept diff of a publication against the rows and sums by chunk that were sealed before it."""
        file = bundle / CHANGES_FILE
        sealed = read_json(file) if os.path.lexists(file) else {}
        if not published or not sealed.get("diff_id"):
            return
        for record in records:
            if record.content.get("diff_id") != sealed["diff_id"] or "chunks" not in record.content:
                continue  # that a diff is missing is the doctor's to say
            where = f"{found.run_id}/records/{record.name}.json"
            by_chunk = {one["chunk"]: one for one in record.content["chunks"]}
            for chunk in sealed["chunks"]:
                told = by_chunk.pop(chunk["chunk"], None)
                for name, expected, seen in _counted(chunk, told):
                    if expected != seen:
                        found.add(
                            f"{where} chunk {chunk['chunk']}", f"has other {name} than was sealed", expected, seen
                        )
            for chunk in by_chunk:
                found.add(f"{where} chunk {chunk}", "is of no chunk that was sealed")

    # --- the ledger -------------------------------------------------------------------------------------------

    def _rows(
        self,
        run_id: str,
        bundle: Path,
        links: Sequence[Link],
        records: Sequence[Record],
        root: str,
        damage: _Damage,
        found: _Findings,
    ) -> Rows | None:
        """Hold every cell of the run's rows against the evidence; return the rows as the evidence has them.

        Of tables of which damaged evidence would say what they are to be, the rows are those that the journal explains.
        """
        whole = sorted(set(tables_of_runs()) - damage.tables)
        kept, sealed = kept_rows(bundle, records, whole), sealed_rows(bundle, whole)
        if kept is None:
            why = "published before the evidence kept rows and had a chain: only its files were checked; "
            found.notes.append(why + "`backfill doctor --repair` puts it under the chain as it is now")
            return None
        try:
            with self.platform.ledger.reading() as moment:
                here, by_hand = moment.rows_of(run_id), self._by_hand(moment, run_id)
        except sa.exc.DBAPIError as error:
            found.add("ledger", f"cannot be read: {error.orig}")
            return kept
        kept |= {table: here[table] for table in damage.tables}
        found.is_blind = any(table in damage.tables for table, _ in by_hand)
        if sealed is not None:
            sealed |= {table: here[table] for table in damage.tables}
        published = bool(links) or self.in_ledger.get(run_id) in WAS_PUBLISHED
        for one in differences(kept, here):
            known = replace(one, lawful=False) if (one.table, one.key) in by_hand else one
            self._difference(known, here, found, published=published, sealed=sealed)
        self._journal(run_id, by_hand, found)
        self._hashes(run_id, bundle, kept, root, found)
        if "publications" not in damage.tables and run_id not in self.journal.adopted:
            self._untold(kept, records, found)
        if not damage.tables:
            self._sum(bundle, links, records, kept, found)
        return kept

    @staticmethod
    def _untold(kept: Rows, records: Sequence[Record], found: _Findings) -> None:
        """Name each change of a run that no record with what was committed is about; of earlier versions' runs nobody knows."""
        told = [one.content for one in records if one.number]
        if any(one["event"] == ADOPTED for one in told):
            return
        known = Counter((one.get("action"), one.get("snapshot_id")) for one in told if COMMITTED in one)
        done = Counter[
            tuple[Any, Any]
        ]()  # a version that is renamed back and forth has one snapshot, and each renaming a record
        for key, entry in sorted(kept.get("publications", {}).items(), key=lambda one: int(one[0])):
            what_of = (entry["action"], entry["snapshot_id"])
            done[what_of] += entry["state"] == PublicationState.COMMITTED
            if entry["state"] == PublicationState.COMMITTED and done[what_of] > known[what_of]:
                found.is_behind = True
                what = f"is a {entry['action']} that no record tells of, with what it has committed; {_REPAIR}"
                found.add(f"ledger publications {key}", what)

    def _by_hand(self, moment: Moment, run_id: str) -> dict[tuple[str, str], Unexplained]:
        """Return the rows of a run that no transaction of this project has left as they are: the last one seen included."""
        moment.go_on(self.journal)
        return {(one.table, one.key): one for one in moment.unexplained(self.journal, run_id)}

    @staticmethod
    def _journal(run_id: str, wrong: Mapping[tuple[str, str], Unexplained], found: _Findings) -> None:
        """Name the rows that are not as the journal has them, but for those that are named already."""
        named = {" ".join(problem.where.split(" ")[:3]) for problem in found.problems}
        if (gone := wrong.get(("runs", run_id))) is not None and gone.found == "nothing":
            found.add(gone.where, f"is gone, with {len(wrong) - 1} other row(s) of it", gone.expected, gone.found)
            return
        for (table, key), one in wrong.items():
            if f"ledger {table} {key}" not in named:
                found.add(one.where, one.what, one.expected, one.found)

    @staticmethod
    def _hashes(run_id: str, bundle: Path, kept: Rows, root: str, found: _Findings) -> None:
        """Hold the hashes in the rows against what they are of."""
        run = kept.get("runs", {}).get(run_id, {})
        for text, column in (("manifest", "manifest_hash"), ("plan", "plan_hash")):
            own = hashlib.sha256(_text(run[text]).encode()).hexdigest() if text in run else None
            if own != run.get(column):
                found.add(f"{bundle.name}/{text}.json", f"does not have the {column} on record", run.get(column), own)
        for entry in kept.get("publications", {}).values():
            if entry["state"] == PublicationState.COMMITTED and entry["evidence_root"] != root:
                where = f"ledger publications {entry['id']} column evidence_root"
                found.add(where, "is another root than the bundle's", root, entry["evidence_root"])

    @staticmethod
    def _sum(bundle: Path, links: Sequence[Link], records: Sequence[Record], kept: Rows, found: _Findings) -> None:
        """Hold the kept rows against the hash of them that the run's last link gives."""
        numbered = sorted((one for one in records if one.number), key=lambda one: one.number)
        if not numbered or not links or numbered[-1].name != links[-1].content.get("record"):
            return  # a record that has no link yet, or one whose link is about no record of this place: named as such
        own, told = _sum_of(kept, numbered[-1]), links[-1].content.get("rows")
        if own == told:
            return
        where = f"chain link {links[-1].number}"
        if not found.problems and _was_summed_over_damage(bundle, links, numbered, kept):
            found.notes.append(
                f"{where} of a refusal was appended while the bundle was damaged, by an earlier version of this project: the "
                "hash of the rows that it gives is of what the damaged file said; each file, record and row is as recorded"
            )
            return
        found.add(where, "gives the hash of other rows than its records and the bundle add up to", told, own)

    def _difference(
        self, one: Difference, here: Rows, found: _Findings, *, published: bool, sealed: Rows | None
    ) -> None:
        if one.lawful and not published and sealed is not None:
            if (note := "it has moved on since its bundle was sealed, and was not published") not in found.notes:
                found.notes.append(note)
            return
        if not published and len(here.get("amendments", {})) > len((sealed or {}).get("amendments", {})):
            note = "chunks were planned anew after its bundle was sealed: the next bundle has their rows"
            if note not in found.notes:
                found.notes.append(note)
            return
        if one.column:
            what = "is not what the evidence has"
        elif one.expected is not None:
            what = "is gone"
        else:
            what = "is a row that the evidence does not have"
        if (
            one.table == "publications"
            and one.lawful
            and not one.column
            and one.found["state"] == PublicationState.INTENT
        ):
            found.notes.append(
                f"{one.where}: a {one.found['action']} is under way, or was interrupted (`backfill doctor`)"
            )
            return
        what += f": {one.why}" if one.why else ""
        if one.lawful:
            found.is_behind = True
            what += "; it may be an event that no record tells of yet: " + _REPAIR
        found.add(one.where, what, "" if one.expected is None and not one.column else one.expected, one.found)

    # --- tables -----------------------------------------------------------------------------------------------

    def _tables_of(self, sealed: Sealed, root: str, found: _Findings, *, data: bool) -> int:
        """Hold what readers get of a run's tables against the evidence; return how many chunks were read."""
        seen: list[Seen] = []

        def look(name: str) -> Seen | None:
            table = self._table(name, found)
            seen.extend([table] if table is not None else [])
            return table

        def gone(where: str, made: datetime) -> None:
            if not any(problem.where == where for problem in found.problems):
                self._gone(where, made, found)

        before = len(found.problems)
        self._snapshots(sealed, root, found)
        world = World(look, self._intents, gone, self._unknown if data else None)
        check_metadata(world, sealed, found)
        looked = check_files(world, sealed, found)
        rewritten = looked.rewritten
        self._inputs.check(world, sealed, found)
        chunks_read = self._data(sealed, looked, found) if data else 0
        if data:
            self._inputs.read(world, sealed, found, self._collected_files)
        if rewritten and not data:
            found.notes.append(
                f"{len(rewritten)} of its chunks were rewritten by somebody else, into as many rows: "
                f"--data says whether they are the same ({', '.join(sorted(rewritten)[:5])})"
            )
        if len(found.problems) > before and any(self._has_new_metadata(one) for one in seen):
            self._is_outrun = True
        return chunks_read

    def _has_new_metadata(self, seen: Seen) -> bool:
        """Whether somebody has committed to a table since it was looked at."""
        return self.platform.lakehouse.table(seen.name).metadata_location != seen.table.metadata_location

    def _intents(self) -> list[Intent]:
        """Return every action that is under way, or was interrupted before it could be recorded.

        One of which a transaction of this project has not left the rows as they are explains nothing.
        """
        tables = ["runs", "publications", "chunks"]
        found: list[Intent] = []
        with self.platform.ledger.reading() as moment:
            moment.go_on(self.journal)
            for run_id in moment.runs_about_to_change():
                if not moment.unexplained(self.journal, run_id, tables):
                    found += intents_in(moment.rows_of(run_id, tables))
        return found

    def _snapshots(self, sealed: Sealed, root: str, found: _Findings) -> None:
        """Hold the summary of each snapshot that the run committed against the evidence."""
        expected = {
            RUN_PROPERTY: sealed.run_id,
            EVIDENCE_PROPERTY: root,
            PLAN_PROPERTY: sealed.run["plan_hash"],
            VERSION_PROPERTY: sealed.plan.get("transform_version"),
        }
        for entry in sealed.changes:
            if not entry["snapshot_id"]:
                continue
            seen = self._table(sealed.table, found)
            if seen is None:
                continue
            where = f"{seen.name} snapshot {entry['snapshot_id']}"
            snapshot = seen.by_id.get(entry["snapshot_id"])
            if snapshot is None:
                self._gone(where, datetime.fromisoformat(str(entry["ended_at"])), found)
                continue
            says = snapshot.summary.additional_properties if snapshot.summary else {}
            action = {} if entry["action"] != PUBLISH else {ACTION_PROPERTY: PUBLISH}
            for key, value in (expected | action).items():
                if value is not None and says.get(key) != value:
                    found.add(f"{where} property {key}", "is not what the evidence has", value, says.get(key))

    def _gone(self, where: str, made: datetime, found: _Findings) -> None:
        days = self.platform.settings.keep_snapshots_days
        if self.at - made < timedelta(days=days):
            found.add(where, f"is gone, and policy keeps snapshots for {days} days (keep_snapshots_days)")
            return
        if where not in self._collected:
            found.add(where, "is gone, and no collection of garbage on record has removed it")
            return
        note = f"{where} has expired, as policy allows after {days} days (keep_snapshots_days)"
        if note not in found.notes:
            found.notes.append(note)

    @cached_property
    def _collected(self) -> frozenset[str]:
        """The snapshots that collections have removed by their records."""
        return collected_snapshots(self._collections)

    @cached_property
    def _collected_files(self) -> frozenset[str]:
        """The files that collections have removed by their records."""
        return collected_files(self._collections)

    @cached_property
    def _collections(self) -> list[Mapping[str, Any]]:
        """What collections have put on record."""
        return collections(self.platform.evidence, (link.content for link in self.chain.links))

    def _published(self, target: str, table: str) -> dict[str, Days]:
        """Return the files that the ledger says runs of a target have published to a table, each with the days it was gated for."""
        ledger = self.platform.ledger
        files: dict[str, Days] = {}
        for record in ledger.runs(target=target, states=WAS_PUBLISHED):
            corrects, is_target = record.plan.corrections is not None, table == target
            try:
                days = {one.key: (one.start, one.end) for one in record.plan.chunks}
                for chunk in ledger.chunks(record.run_id) if corrects or is_target else ():
                    own = (*(chunk.files if is_target else ()), *(chunk.derived if corrects is not is_target else ()))
                    files |= {place_of(one.path): days[chunk.chunk] for one in own}
            except (Refused, KeyError):
                continue  # the rows of that run are named with it, and its files are opened
        return files

    def _table(self, name: str, found: _Findings) -> Seen | None:
        if name not in self._tables:
            self._tables[name] = None
            try:
                self._tables[name] = Seen(self.platform.lakehouse.table(name))
            except Refused as refusal:
                found.add(name, refusal.problems[0].what)
            except Exception as error:  # noqa: BLE001 - metadata that was changed may say anything
                found.add(name, f"has metadata that cannot be read: {type(error).__name__}: {error}")
        return self._tables[name]

    # --- rows of the target -----------------------------------------------------------------------------------

    def _data(self, sealed: Sealed, looked: Looked, found: _Findings) -> int:
        """Read every published file of the run again; return how many chunks were read.

        What readers of main get is read as they do; what they do not get any more, and what they get wrongly, file by file.
        """
        if not sealed.changes:
            found.notes.append("it was never published: no rows to read")
            return 0
        seen = self._table(sealed.target.name, found)
        if seen is None:
            return 0
        try:
            in_use = self._files_in_use(sealed, found)
        except EnvironmentRefused as refusal:
            found.add(sealed.target.name, refusal.problems[0].what)
            return 0
        storage = Storage(seen.table)
        read = 0
        gone: list[str] = []
        accepted = {str(one["chunk"]) for one in sealed.accepted} - looked.moving
        for chunk in sealed.rows["chunks"].values():
            key = str(chunk["chunk"])
            is_new = key in looked.rewritten
            is_read = key in accepted and read_chunk(seen, storage, sealed, chunk, found, rewritten=is_new)
            if is_read and not chunk["derived"] and not is_new and not sealed.plan.get("merge"):
                read += 1
                continue
            outcome = check_rows(storage, sealed, chunk, in_use)
            read += outcome.complete or is_read
            gone += outcome.gone
            for problem in outcome.problems:
                self._file_problem(key, problem, found)
        if sealed.plan.get("corrections") and sealed.target.corrections is not None:
            corrections = self._table(sealed.target.corrections.name, found)
            if corrections is not None:
                read_corrections(corrections, Storage(corrections.table), sealed, found)
        if gone:
            found.notes.append(
                f"{len(gone)} of its files were collected, as no snapshot references them any more: their rows cannot be read"
            )
        return read

    def _files_in_use(self, sealed: Sealed, found: _Findings) -> set[str]:
        """Return the files that any snapshot of the target's tables references."""
        name = sealed.target.name
        if name not in self._in_use:
            tables = [self._table(one, found) for one in sealed.target.changed_tables]
            self._in_use[name] = {path for one in tables if one is not None for path in referenced(one.table).files}
        return self._in_use[name]

    @staticmethod
    def _file_problem(chunk: str, problem: FileProblem, found: _Findings) -> None:
        found.add(f"chunk {chunk} {problem.path}".rstrip(), problem.what, problem.expected, problem.found)


def _counted(sealed: Mapping[str, Any], told: Mapping[str, Any] | None) -> Iterator[tuple[str, Any, Any]]:
    """Yield rows and sums of a chunk, before and after, as they were sealed and as a diff has them; what is not known is left out."""
    there = told or {"added": 0, "removed": 0, "changed": 0, "unchanged": 0, "sums": {}}
    stays = there["changed"] + there["unchanged"]
    counted = (stays + there["removed"], stays + there["added"])
    for side, expected, seen in zip(("before", "after"), sealed["rows"], counted, strict=True):
        if expected is not None:
            yield f"rows {side}", expected, seen
    for name, both in sealed["sums"].items():
        for side, expected, seen in zip(("before", "after"), both, there["sums"].get(name, (None, None)), strict=True):
            if expected is not None:
                yield f"sum of {name} {side}", expected, expected if _is_sum(expected, seen) else seen


def _is_sum(expected: str, seen: str | None) -> bool:
    """Whether two sums are equal: whole numbers to the digit; of floating-point numbers the last ones depend on their order."""
    if seen is None or expected == seen:
        return expected == seen
    return not (expected + seen).replace("-", "").isdigit() and isclose(float(expected), float(seen), rel_tol=1e-9)


def _sum_of(kept: Rows, record: Record) -> str:
    """Return the hash of kept rows, of the tables that a record has hashes of, as the record's link gives it."""
    known = record.content.get("tables", {})
    return sha256_of({name: hash_ for name, hash_ in hashes_of(kept).items() if name in known})


def _was_summed_over_damage(bundle: Path, links: Sequence[Link], numbered: Sequence[Record], kept: Rows) -> bool:
    """Whether the sum of the last link is wrong in a way that an earlier version of this project has left behind.

    It recorded a refusal for damaged evidence with hashes of what the damaged file said. Whatever else a link says is right
    then, every file and record has its hash, and the rows add up until the refusals. Asked where nothing else is wrong:
    the sum alone proves nothing that those do not.
    """
    before = list(numbered)
    while before and before[-1].content.get("event") == REFUSED:
        before.pop()
    own = hashes_of(kept)
    if not before or len(before) == len(numbered) or len(links) != len(numbered):
        return False
    other = {name for name, hash_ in numbered[-1].content["tables"].items() if own.get(name) != hash_}
    rows = kept_rows(bundle, before)
    return other <= MOVING and rows is not None and _sum_of(rows, before[-1]) == links[len(before) - 1].content["rows"]


def _of(links: Sequence[Link], event: str) -> list[Link]:
    return [link for link in links if link.content.get("event") == event]


_REPAIR = "`backfill doctor --repair` completes the record"


def _told_root(bundle: Path) -> str:
    """Return the root that a damaged bundle's index gives, for naming; empty if it gives none."""
    try:
        return str(read_json(bundle / INDEX)["root"])
    except (FileNotFoundError, EnvironmentRefused, ValueError, KeyError, TypeError):
        return ""


def _hash_or_kind(found: str) -> str:
    """Say that it is a hash, or what lies in the place of what could be hashed."""
    return f"SHA-256 {found}" if _SHA256.fullmatch(found) else found


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return value if isinstance(value, str) else canonical_json(value)


def _around(expected: str, found: str) -> tuple[str, str]:
    """Return two values, or where they are long, what is around the first place at which they differ."""
    if max(len(expected), len(found)) <= _SHOWN:
        return expected, found
    place = next((at for at, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), 0)
    start = max(0, place - _CONTEXT)

    def cut(text: str) -> str:
        head, tail = "…" if start else "", "…" if start + _SHOWN < len(text) else ""
        return f"{head}{text[start : start + _SHOWN]}{tail}"

    return cut(expected), cut(found)
