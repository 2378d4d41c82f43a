"""The tables that a run has published to, held against its evidence: every check of metadata, files and rows, one after another.

Put here the order of the checks of tables, and what is looked up once for all runs. What is compared is for the modules that
are called: `sealed_metadata`, `accepted_files`, `published_rows`, `proof`, `pins`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from backfill_assets.audit.accepted_files import Looked, check_files
from backfill_assets.audit.findings import Findings, World
from backfill_assets.audit.issued_corrections import read_corrections
from backfill_assets.audit.ledger_and_chain import LedgerAndChain
from backfill_assets.audit.pins import Inputs
from backfill_assets.audit.placed_files import PlacedFiles
from backfill_assets.audit.proof import check_rows
from backfill_assets.audit.published_rows import read_chunk
from backfill_assets.audit.sealed_metadata import check_metadata
from backfill_assets.audit.unknown_files import UnknownFiles
from backfill_assets.evidence.collected import collected_files, collected_snapshots, collections
from backfill_assets.evidence.column_records import Renamed, renamed
from backfill_assets.evidence.seals import Sealed
from backfill_assets.planning.compacting import compacted
from backfill_assets.publication.under_way import Intent, intents_in
from manifests.errors import EnvironmentRefused, Refused
from manifests.lifecycle import PUBLISH, WAS_PUBLISHED
from resources.lakehouse.facade import ACTION_PROPERTY, EVIDENCE_PROPERTY, PLAN_PROPERTY, RUN_PROPERTY, VERSION_PROPERTY
from resources.lakehouse.history import referenced
from resources.lakehouse.snapshots import Days, Seen
from resources.lakehouse.storage import Storage, place_of


class PublishedTables:
    """The tables that runs have published to, each looked at once for all runs.

    Attributes:
        is_outrun: whether somebody has committed to a table that something was wrong with since it was looked at.
    """

    def __init__(self, read: LedgerAndChain, at: datetime) -> None:
        self.is_outrun = False
        self._at = at
        self._read = read
        self._platform = read.platform
        self._tables: dict[str, Seen | None] = {}
        self._inputs = Inputs(read.platform)
        self._unknown = UnknownFiles(self._published)
        self._in_use: dict[str, set[str]] = {}

    def check(self, sealed: Sealed, root: str, found: Findings, *, data: bool) -> int:
        """Hold what readers get of a run's tables against the evidence; return how many chunks were read."""
        seen: list[Seen] = []

        def look(name: str) -> Seen | None:
            table = self.seen(name, found)
            seen.extend([table] if table is not None else [])
            return table

        def gone(where: str, made: datetime) -> None:
            if not any(problem.where == where for problem in found.problems):
                self._gone(where, made, found)

        sealed = replace(sealed, renamed=self._renamed)
        before = len(found.problems)
        self._snapshots(sealed, root, found)
        world = World(look, self._intents, gone, self._unknown if data else None)
        check_metadata(world, sealed, found)
        looked = check_files(world, sealed, found)
        rewritten = looked.rewritten
        self._inputs.check(world, sealed, found)
        chunks_read = self._rows(sealed, looked, found) if data else 0
        if data:
            self._inputs.read(world, sealed, found, self._collected_files)
        if rewritten and not data:
            by_runs = sorted({one.run_id for one in compacted(self._platform, sealed.target.name, rewritten).values()})
            who = (
                f"compaction{'s' if len(by_runs) > 1 else ''} {', '.join(map(repr, by_runs))}"
                if by_runs
                else "somebody else"
            )
            found.notes.append(
                f"{len(rewritten)} of its chunks were rewritten by {who}, into as many rows: "
                f"--data says whether they are the same ({', '.join(sorted(rewritten)[:5])})"
            )
        if len(found.problems) > before and any(self._has_new_metadata(one) for one in seen):
            self.is_outrun = True
        return chunks_read

    def seen(self, name: str, found: Findings) -> Seen | None:
        """Return a table as its metadata shows it; None if it cannot be read, which is said where it is found out."""
        if name not in self._tables:
            self._tables[name] = None
            try:
                self._tables[name] = Seen(self._platform.lakehouse.table(name))
            except Refused as refusal:
                found.add(name, refusal.problems[0].what)
            except Exception as error:  # noqa: BLE001 - metadata that was changed may say anything
                found.add(name, f"has metadata that cannot be read: {type(error).__name__}: {error}")
        return self._tables[name]

    def _has_new_metadata(self, seen: Seen) -> bool:
        """Whether somebody has committed to a table since it was looked at."""
        return self._platform.lakehouse.table(seen.name).metadata_location != seen.table.metadata_location

    def _intents(self) -> list[Intent]:
        """Return every action that is under way, or was interrupted before it could be recorded.

        One of which a transaction of this project has not left the rows as they are explains nothing.
        """
        tables = ["runs", "publications", "chunks"]
        found: list[Intent] = []
        with self._platform.ledger.reading() as moment:
            moment.go_on(self._read.journal)
            for run_id in moment.runs_about_to_change():
                if not moment.unexplained(self._read.journal, run_id, tables):
                    found += intents_in(moment.rows_of(run_id, tables))
        return found

    def _snapshots(self, sealed: Sealed, root: str, found: Findings) -> None:
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
            seen = self.seen(sealed.table, found)
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

    def _gone(self, where: str, made: datetime, found: Findings) -> None:
        days = self._platform.settings.keep_snapshots_days
        if self._at - made < timedelta(days=days):
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
    def _renamed(self) -> Renamed:
        """The names that columns were given by changes on record."""
        return renamed(self._platform.evidence, (link.content for link in self._read.chain.links))

    @cached_property
    def _collections(self) -> list[Mapping[str, Any]]:
        """What collections have put on record."""
        return collections(self._platform.evidence, (link.content for link in self._read.chain.links))

    def _published(self, target: str, table: str) -> dict[str, Days]:
        """Return the files that the ledger says runs of a target have published to a table, each with the days it was gated for."""
        ledger = self._platform.ledger
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

    def _rows(self, sealed: Sealed, looked: Looked, found: Findings) -> int:
        """Read every published file of the run again; return how many chunks were read.

        What readers of main get is read as they do; what they do not get any more, and what they get wrongly, file by file.
        """
        if not sealed.changes:
            found.notes.append("it was never published: no rows to read")
            return 0
        seen = self.seen(sealed.target.name, found)
        if seen is None:
            return 0
        try:
            in_use = self._files_in_use(sealed, found)
        except EnvironmentRefused as refusal:
            found.add(sealed.target.name, refusal.problems[0].what)
            return 0
        storage, placed = Storage(seen.table), PlacedFiles(seen, sealed)
        read = 0
        gone: list[str] = []
        accepted = {str(one["chunk"]) for one in sealed.accepted} - looked.moving
        for chunk in sealed.rows["chunks"].values():
            key = str(chunk["chunk"])
            is_new = key in looked.rewritten
            is_read = key in accepted and read_chunk(seen, storage, sealed, chunk, placed, found, rewritten=is_new)
            if is_read and not chunk["derived"] and not is_new and not sealed.plan.get("merge"):
                read += 1
                continue
            outcome = check_rows(storage, sealed, chunk, in_use)
            read += outcome.complete or is_read
            gone += outcome.gone
            for problem in outcome.problems:
                found.add(f"chunk {key} {problem.path}".rstrip(), problem.what, problem.expected, problem.found)
        if sealed.plan.get("corrections") and sealed.target.corrections is not None:
            corrections = self.seen(sealed.target.corrections.name, found)
            if corrections is not None:
                read_corrections(corrections, Storage(corrections.table), sealed, found)
        if gone:
            found.notes.append(
                f"{len(gone)} of its files were collected, as no snapshot references them any more: their rows cannot be read"
            )
        return read

    def _files_in_use(self, sealed: Sealed, found: Findings) -> set[str]:
        """Return the files that any snapshot of the target's tables references."""
        name = sealed.target.name
        if name not in self._in_use:
            tables = [self.seen(one, found) for one in sealed.target.changed_tables]
            self._in_use[name] = {path for one in tables if one is not None for path in referenced(one.table).files}
        return self._in_use[name]
