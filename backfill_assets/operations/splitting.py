"""Files of a target that hold rows on both sides of a publish range, parted at its border: `backfill split-files`.

Put here which files are parted for a manifest, what speaks against it, and the order of things: pieces are written and held
against their files, it is put on record, and one commit has the pieces in their place. Readers have the same rows before and
after. How a file is cut is `resources.lakehouse.file_splits`', what its records prove later `evidence.split_records`'.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from backfill_assets import faults
from backfill_assets.declarations.target import TargetTable
from backfill_assets.evidence.split_records import record_split
from backfill_assets.installation import Platform
from backfill_assets.planning.scopes import scope_of
from backfill_assets.publication.leasing import splitting_lease
from backfill_assets.publication.modes import strategy_of
from manifests.chunks import Chunking, aligned, cut, key_of
from manifests.errors import InputRefused, PlanRefused, Problem
from manifests.lifecycle import ACCEPT, ENDED, WAS_PUBLISHED, RunState
from manifests.model import FilesAcrossBorder, Kind, RunManifest
from resources import logs
from resources.lakehouse.containment import days_of, in_words
from resources.lakehouse.file_splits import Pieces, commit_split, split_file
from resources.lakehouse.lookups import files_across
from resources.lakehouse.storage import Storage, place_of
from resources.lakehouse.summaries import ACTION_PROPERTY, SPLIT
from resources.ledger.facade import RunRecord, operator

_log = logging.getLogger(__name__)
_SHOWN = 5
_WAITING = frozenset(RunState) - ENDED - WAS_PUBLISHED - {RunState.DRAFT}


@dataclass(frozen=True)
class SplitPlan:
    """Which files of a table are parted for a manifest, and at which days: each begins a piece."""

    table: str
    files: tuple[DataFile, ...]
    days: tuple[date, ...]
    ends_for: tuple[str, ...] = ()
    """Runs that were rolled back, and could not be reinstated any more: what they replaced are these files."""

    @property
    def rows(self) -> int:
        """Rows that are written again."""
        return sum(file.record_count for file in self.files)

    @property
    def bytes(self) -> int:
        """Bytes of the files that are written again."""
        return sum(file.file_size_in_bytes for file in self.files)


@dataclass(frozen=True)
class Done:
    """What has become of it: by which snapshot, of how many files how many pieces were made; nothing if there was nothing to do."""

    plan: SplitPlan
    snapshot_id: int | None = None
    pieces: int = 0

    def shown(self) -> dict[str, Any]:
        """Return it for a script."""
        return {
            "table": self.plan.table,
            "files": [file.file_path for file in self.plan.files],
            "rows": self.plan.rows,
            "bytes": self.plan.bytes,
            "days": list(self.plan.days),
            "pieces": self.pieces,
            "cannotBeReinstated": list(self.plan.ends_for),
            "snapshotId": self.snapshot_id,
        }


def split_plan(platform: Platform, manifest: RunManifest) -> SplitPlan:
    """Return which files would be parted for a manifest; changes nothing.

    Raises:
        InputRefused: if no product declares the target.
        PlanRefused: with everything that speaks against it: the manifest, runs that wait, files of accepted runs.
    """
    target = platform.products.target(manifest.target.table)
    wanted, table = manifest.target, platform.lakehouse.table(target.name)
    start, end = wanted.publish_range.start, wanted.publish_range.end
    problems = list(_against(manifest, target))
    if problems:
        raise PlanRefused(problems)
    chunk_of = partial(key_of, target.chunking) if _goes_by_chunks(manifest) else None
    files = files_across(table, scope_of(target, start, end), chunk_of)
    first_days = [one.start for one in cut(target.chunking, start, end)] if _goes_by_chunks(manifest) else [start]
    rolled_back = platform.ledger.runs(target=target.name, states=[RunState.ROLLED_BACK])
    ends_for = tuple(record.run_id for record in rolled_back if _touched(target, table, files, record))
    plan = SplitPlan(target.name, tuple(files), (*first_days, end + timedelta(days=1)), ends_for)
    if problems := [
        *_of_links(table, files),
        *_of_others(platform, target, table, files),
        *_of_runs(platform, target, files),
    ]:
        raise PlanRefused(problems)
    return plan


def split_files(platform: Platform, manifest: RunManifest, told: Callable[[int], None] = lambda _: None) -> Done:
    """Part the files that hold rows on both sides of a manifest's publish range; safe to kill and to repeat.

    `told` gets numbers of rows as they are written, and as they are read again: twice the plan's rows in all.

    Raises:
        InputRefused, PlanRefused: as `split_plan` does; and for a file that cannot be cut.
        PublicationRefused: if a file is gone meanwhile. Nothing has changed then.
        LeaseHeld: if somebody publishes to the target, or takes a publication back.
        EnvironmentRefused: if files cannot be read or written.
    """
    target = platform.products.target(manifest.target.table)
    with splitting_lease(platform, target.name) as lease:
        plan = split_plan(platform, manifest)  # as it is now that nobody else publishes
        if not plan.files:
            return Done(plan)
        table = platform.lakehouse.table(plan.table)
        column = target.day_column
        split = [split_file(table, file, column, plan.days, told) for file in plan.files]
        _require_parted(table, column, plan, split)
        faults.reach("splitting.written")
        record = record_split(platform, table, split, manifest.hash, by=operator(), at=platform.ledger.now())
        faults.reach("splitting.recorded")
        said = {ACTION_PROPERTY: SPLIT, "backfill.split": record}
        commit_split(platform.lakehouse, plan.table, split, said, lease.token)
        faults.reach("splitting.committed")
    done = Done(plan, platform.lakehouse.snapshot_id(plan.table), sum(len(one.pieces) for one in split))
    with logs.bound(target=plan.table):
        text = f"{len(plan.files)} file(s) were parted at {plan.days[0]} to {plan.days[-1]} into {done.pieces}, rows unchanged"
        logs.event(_log, logging.INFO, "files_split", text, rows=plan.rows, snapshot_id=done.snapshot_id)
    return done


def _goes_by_chunks(manifest: RunManifest) -> bool:
    """Whether each file has to lie in one chunk, as where chunks are compared with what the target has of them."""
    return manifest.target.derives or manifest.kind is Kind.COMPACTION


def _against(manifest: RunManifest, target: TargetTable) -> Iterator[Problem]:
    wanted = manifest.target
    if wanted.files_across_border is not FilesAcrossBorder.SPLIT:
        yield Problem(
            f"target.filesAcrossBorder is {wanted.files_across_border}",
            "files are written again where the manifest says so",
            "set it to SPLIT, if that is meant",
        )
    if target.chunking is Chunking.WHOLE:
        yield Problem(
            f"{target.name} has no time",
            "files are parted by the days of their rows alone",
            "rewrite the table's files by its values or buckets with the engine that writes it",
        )
        return
    if wanted.values is not None or (
        _goes_by_chunks(manifest) and (target.chunking is Chunking.HOUR or target.chunk_values)
    ):
        yield Problem(
            f"{target.name} has chunks of {target.chunking.lower()}s"
            + (f" and of {target.chunk_values}" if target.chunk_values else "")
            + ", and more than days decides which rows may change",
            "files are parted by the days of their rows alone",
            "rewrite the table's files by its chunks with the engine that writes it, or publish whole days with REPLACE_PARTITIONS",
        )
    publish = wanted.publish_range
    whole = aligned(target.chunking, publish.start, publish.end)
    if whole != (publish.start, publish.end):
        yield Problem(
            f"target.publishRange is {publish.start} to {publish.end}",
            f"{target.name} is changed by whole chunks ({target.chunking.lower()}s)",
            f"{whole[0]} to {whole[1]} are",
        )


def _of_links(table: Table, files: Sequence[DataFile]) -> Iterator[Problem]:
    """Say which files are reached by a link, or would be written through one: what is there is not the table's own."""
    storage = Storage(table)
    places = [place_of(one.file_path) for one in files]
    for place in (f"{storage.location}/data", *places) if files else ():
        if storage.through_link(place):
            yield Problem(
                f"{place} is a link, or lies below one",
                "files below a table's location are read, and written again, where they lie: links are not followed",
                "put the files, or the folder, where the link is",
            )


def _of_others(platform: Platform, target: TargetTable, table: Table, files: Sequence[DataFile]) -> Iterator[Problem]:
    """Say what is under way at the table, or was planned on files that would go."""
    for _, run_id, action in platform.ledger.interrupted_publications(target.name):
        yield Problem(
            f"{action} of run '{run_id}' has not said what came of it",
            "files are split where it is known whose they are",
            "`backfill doctor --repair` finds it out; then run the same command again",
        )
    if not files:
        return
    published = platform.ledger.runs(target=target.name, states=[RunState.PUBLISHED])
    later = [one for one in published if strategy_of(one.plan).accepted_later and not _is_accepted(platform, one)]
    for record in [*platform.ledger.runs(target=target.name, states=_WAITING), *later]:
        if touched := _touched(target, table, files, record):
            yield Problem(
                f"run '{record.run_id}' is {record.state}, and was planned on {touched[0].file_path}",
                "a run is published on the files that it was planned on",
                f"accept '{record.run_id}', or roll it back, first"
                if record.state is RunState.PUBLISHED
                else f"publish or cancel '{record.run_id}' first",
            )


def _is_accepted(platform: Platform, record: RunRecord) -> bool:
    return any(one.action == ACCEPT and one.has_landed for one in platform.ledger.publications(record.run_id))


def _touched(target: TargetTable, table: Table, files: Sequence[DataFile], record: RunRecord) -> list[DataFile]:
    """Return the files that may hold days of a run's publish range."""
    scope = record.plan.publish_range
    return [file for file in files if _may_hold(days_of(table, target.day_column, file), scope.start, scope.end)]


def _may_hold(days: tuple[date, date] | None, start: date, end: date) -> bool:
    return days is None or (days[0] <= end and days[1] >= start)


def _of_runs(platform: Platform, target: TargetTable, files: Sequence[DataFile]) -> Iterator[Problem]:
    """Say which files are those of runs: what is accepted of a chunk is known by its files."""
    paths = {file.file_path for file in files}
    for record in platform.ledger.runs(target=target.name, states=WAS_PUBLISHED) if paths else ():
        own = sorted(paths & platform.ledger.repairs.named_paths(record.run_id))
        if own:
            yield Problem(
                f"{len(own)} of the files are those of run '{record.run_id}': {', '.join(own[:_SHOWN])}",
                "what a run has published is known by its files, and they stay as they are",
                "widen the publish range to all of their days",
            )


def _require_parted(table: Table, column: str, plan: SplitPlan, split: Sequence[Pieces]) -> None:
    """Refuse pieces that would be in the way just as their files are.

    Raises:
        InputRefused: naming one, if the table keeps no bounds of its days.
    """
    borders = list(plan.days)
    for piece in (piece for one in split for piece in one.pieces):
        days = days_of(table, column, piece)
        if (
            days is None
            and (piece.null_value_counts or {}).get(table.schema().find_field(column).field_id) == piece.record_count
        ):
            continue  # rows without a day
        if days is None or any(days[0] < border <= days[1] for border in borders):
            raise InputRefused(
                Problem(
                    f"a piece does not say which days it holds: {in_words(table, column, piece)}",
                    "files are parted by the bounds that the table keeps of its columns",
                    "have the table keep bounds (write.metadata.metrics), then run the same command again",
                )
            )
