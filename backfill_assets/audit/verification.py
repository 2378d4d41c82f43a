"""`backfill verify`: holds evidence, chain, ledger, tables and rows against each other, and names every change.

Put here what is checked, in which order, and what is looked at again, and what is of no run. What one check compares is
for the modules beside this one. It changes nothing, trusts nothing that it can hash again, and goes on after the first
thing that is wrong. Whether tables and ledger agree on what is accepted today is the doctor's question.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from backfill_assets.audit.dry_run_links import check_dry_runs
from backfill_assets.audit.findings import REPAIR, Findings, Problem, around
from backfill_assets.audit.foreign_files import strange_folders
from backfill_assets.audit.ledger_and_chain import LedgerAndChain
from backfill_assets.audit.ledger_rows import check_journal, check_ledger_rows
from backfill_assets.audit.linked_records import check_records
from backfill_assets.audit.published_tables import PublishedTables
from backfill_assets.audit.published_topics import TopicChecked, check_topics, topics_not_read
from backfill_assets.audit.recorded_diffs import check_diff
from backfill_assets.audit.sealed_bundles import check_bundles, check_folder, damage_of
from backfill_assets.evidence.events import COLUMN_CHANGES, FILE_SPLITS, GC, MIGRATIONS
from backfill_assets.evidence.links import strange_links
from backfill_assets.evidence.records import records_of
from backfill_assets.evidence.seals import sealed_of
from backfill_assets.gates.chunk_changes import CHANGES_FILE
from backfill_assets.installation import Platform
from manifests.errors import InputRefused, Refused
from manifests.errors import Problem as Refusal
from resources.evidence.chain import START
from resources.evidence.heads import Kept, kept_heads, not_extended
from resources.evidence.store import INDEX
from resources.ledger.journal import INSTALLATION, Unexplained
from resources.ledger.rows import Rows

COVERED: Mapping[str, str] = {
    "bundles, records and chain, and what else lies in the evidence folder": "always",
    "the ledger's rows of runs, and the text of the policy that decided": "always",
    "the dry run that a run was approved on: its results and rows in the ledger": "always",
    "snapshots, manifests, columns and partitions of published tables, and which files readers get": "always",
    "the log of main, location, properties that redirect writers, default spec, ages of this project's names": "always",
    "how accepted files are listed (format, store, among rows), the base and the candidate of a run by name": "always",
    "metadata of the sources and references that were read": "always",
    "rows, bounds and counts that readers get; lineage of rewritten rows": "data",
    "what files of no known run hold of accepted days, or in the name of a run's corrections": "data",
    "files of sources and references: length, and SHA-256 where this project loaded them": "data",
    "outlines, and rows of the exception and audit tables": "data",
    "events of topics that runs have published to: ids, offsets, number and hash by partition": "data",
    "links cut off the end of the chain": "head",
}
"""What is checked, by name, and when: always, with `--data`, or with `--head`."""
NOT_COVERED = (
    "a forgery of evidence, ledger and catalog at once, where no head of the chain is kept elsewhere",
    "what other programs loaded into sources, but for its length",
    "archive/: the bytes of received files and of servers' answers, which are held against their hashes when they are read again",
    "report.html: it is made anew from the evidence when it is asked for",
    "leases, settings, Dagster's event log, the records of gc, triggers and views in the ledger's database",
    "entries of other programs in a table's log; ages of main and of others' names; sort orders, statistics, other properties",
    "the order and the need of columns in a schema that was added later; what a source's owner makes of its columns later",
    "the base's name of a run that holds nothing any more; rows on days of which nothing is accepted",
    "the changes table of diffs, and what sinks outside of the lakehouse received, but for topics of events",
    "a link that repeats one about a kept record, or about a bundle that is not published yet or of an earlier version",
)
"""What is not checked, by name."""
_AGAIN_SECONDS = 0.5
_LOOKS = 3
"""How often a run is looked at again while work goes on that may explain what is wrong with it."""


@dataclass(frozen=True)
class Verified:
    """What was found of one run. `notes` say what could not be checked, or need not be, and why; `topics` what was read of its events."""

    run_id: str
    root: str
    links: tuple[int, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    chunks_read: int = 0
    topics: tuple[TopicChecked, ...] = ()


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
        InputRefused: if the ledger and the evidence know nothing of a named run, or nothing but requests for sinks.
    """
    asked = tuple(kept_heads(platform.settings.head_places))  # before the chain is read, which only grows
    check = _Check(platform, at or platform.ledger.now())
    never_planned = check.read.never_planned
    wanted = [one for one in check.read.known if one not in never_planned] if only is None else list(only)
    if refused := [_never_planned(run_id) for run_id in wanted if run_id in never_planned]:
        raise InputRefused(refused)
    if unknown := [run_id for run_id in wanted if run_id not in set(check.read.known) | check.read.in_ledger.keys()]:
        platform.ledger.run(unknown[0])
    problems = [
        Problem("", f"chain {one.name}", one.what, one.expected, one.found) for one in check.read.chain.damages
    ] + check.read.ledger_problems
    if not check.read.ledger_problems:
        problems += check.of_no_run()
    if head is not None and head != START and head not in {link.hash for link in check.read.chain.links}:
        problems.append(
            Problem(
                "", "chain", "links that were in it are missing: the given head is no link of it", head, check.read.head
            )
        )
    problems += [
        Problem("", one.where, one.what, one.expected, one.found) for one in not_extended(asked, check.read.chain)
    ]
    done = [_looked_at(platform, check, run_id, data=data) for run_id in wanted]
    return Verification(len(check.read.chain.links), check.read.head, tuple(problems), tuple(done), heads=asked)


def _never_planned(run_id: str) -> Refusal:
    return Refusal(
        f"run '{run_id}' was never planned: sink requests only",
        "a preview, and a plan that is refused, put their requests for sinks on record, and nothing else; `backfill verify --all` "
        "holds these against the journal",
        "name a run that was planned (`backfill status` lists them), or plan this one: `backfill plan MANIFEST.yaml`",
    )


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


class _Check:
    """What is checked, in its order, by what was read once for all runs."""

    def __init__(self, platform: Platform, at: datetime) -> None:
        self.at = at
        self.read = LedgerAndChain(platform)
        self._tables = PublishedTables(self.read, at)
        self._platform = platform

    def has_moved(self) -> bool:
        """Whether somebody has written to ledger or chain since they were read, or to a table that was looked at."""
        return self._tables.is_outrun or self.read.has_moved()

    def of_no_run(self) -> list[Problem]:
        """Return what is wrong with the ledger's journal, its links, and rows of no run."""
        read = self.read
        committed = read.journal.length
        if committed > read.journal.linked:
            time.sleep(_AGAIN_SECONDS)  # a transaction may have been committed just now: its link comes next
            read.read_again()
        wrong = list(read.journal.damages)
        if committed > read.journal.linked:  # of what was committed since then, the links may be still to come
            what = f"has no link in the chain: a process ended before it could append it; {REPAIR}"
            if seen := self._platform.ledger.journal.links_gone():
                what = f"the chain had {seen} link(s), and {self._platform.evidence.folder} has none: is `evidence` the place where it was?"
            wrong.append(Unexplained(f"ledger journal {read.journal.linked + 1}", what))
        try:
            with self._platform.ledger.reading() as moment:
                moment.go_on(read.journal)
                wrong += moment.unexplained(read.journal, INSTALLATION)
                wrong += moment.of_nobody(read.journal)
                for run_id in read.never_planned:
                    wrong += moment.unexplained(read.journal, run_id)
        except sa.exc.DBAPIError as error:
            wrong.append(Unexplained("ledger", f"cannot be read: {error.orig}"))
        what = "has no name that a run could have: it was put there by somebody"
        wrong += [Unexplained(f"evidence {name}", what) for name in self._platform.evidence.strangers()]
        wrong += strange_links(
            self._platform.evidence,
            read.chain.links,
            runs=read.in_ledger.keys() | read.journal.runs.keys(),
            known=set(read.known),
            adopted=read.journal.adopted,
        )
        wrong += strange_folders(self._platform.evidence, read.runs_now, {GC, COLUMN_CHANGES, FILE_SPLITS, MIGRATIONS})
        return [Problem("", one.where, one.what, *around(one.expected, one.found)) for one in wrong]

    def run(self, run_id: str, *, data: bool) -> tuple[Verified, bool]:
        """Check one run; say also whether an event just now would explain what is wrong."""
        found = Findings(run_id)
        mine = [link for link in self.read.chain.links if link.content.get("run") == run_id]
        links = [link for link in mine if "rows" in link.content]
        records = records_of(self._platform, run_id)
        bundle, root = check_bundles(self.read, self._tables, run_id, links, found)
        harmed, planted = check_records(mine, records, found, is_adopted=run_id in self.read.journal.adopted)
        damage = damage_of(self.read, bundle, links, harmed, found)
        vouched = {str(link.content.get("root")) for link in links}
        if INDEX in damage.files and len(vouched) == 1:
            (root,) = vouched  # what a damaged index gives is no measure of anything
        # what a harmed or planted one says is nobody's word
        records = [one for one in records if one.name not in {*harmed, *planted}]
        check_folder(self.read, run_id, found)
        chunks_read, topics = 0, tuple[TopicChecked, ...]()
        rows: Rows | None = None
        try:
            if bundle is not None:
                rows = check_ledger_rows(self.read, run_id, bundle, links, records, root, damage, found)
                if CHANGES_FILE not in damage.files:
                    check_diff(bundle, records, found, published=bool(links))
            if rows is not None and not self.read.ledger_problems:
                check_dry_runs(self.read, rows, found)
            if rows is not None and bundle is not None and not found.is_blind:
                target = self._platform.products.target(str(rows["runs"][run_id]["target"]))
                told = [one.content for one in records if one.number]
                sealed = sealed_of(run_id, target, rows, bundle, told, damaged=damage.files, is_whole=not damage.tables)
                chunks_read = self._tables.check(sealed, root, found, data=data)
                asked = self._platform, run_id
                topics = check_topics(*asked, found) if data else topics_not_read(*asked)
        except Exception as error:  # noqa: BLE001 - what was changed may make its readers raise anything
            said = error.problems[0].what if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
            why = f"not everything could be checked: {said}"
            if found.problems:
                found.notes.append(why)
            else:
                found.add(run_id, why)
        if rows is None and not self.read.ledger_problems:
            with self._platform.ledger.reading() as moment:
                by_hand = self.read.by_hand(moment, run_id)
            check_journal(run_id, by_hand, found)
        numbers = tuple(link.number for link in mine)
        verified = Verified(run_id, root, numbers, tuple(found.problems), tuple(found.notes), chunks_read, topics)
        return verified, found.is_behind
