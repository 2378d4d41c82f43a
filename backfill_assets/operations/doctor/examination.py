"""The examination: runs the looks in order, over each target and then over what belongs to none.

Put here which looks there are and when each is taken. What a look finds is in the module that is named for what it looks
at; whether a finding counts while others work is `settling`'s, and repairs are carried out by `repairing`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.accepted_files import accepted_files_that_differ
from backfill_assets.operations.doctor.apis import extractions_left, feeds_without_settings, settings_without_feeds
from backfill_assets.operations.doctor.attempts import attempts_not_running
from backfill_assets.operations.doctor.damaged_files import damaged_staged_files, lost_files
from backfill_assets.operations.doctor.disagreements import (
    Confidence,
    Disagreement,
    damaged_metadata,
    data_loss,
    not_checked,
    table_missing,
)
from backfill_assets.operations.doctor.environment import clock_behind, evidence_store_unfit, policy_file_that_differs
from backfill_assets.operations.doctor.evidence import (
    damaged_bundles,
    damaged_records,
    missing_diffs,
    records_behind,
    untold_changes,
)
from backfill_assets.operations.doctor.journal import unexplained_changes
from backfill_assets.operations.doctor.late_rows import late_rows
from backfill_assets.operations.doctor.leases_and_freezes import freezes_over, wrong_leases
from backfill_assets.operations.doctor.loads import loads_taken_back, pins_untagged
from backfill_assets.operations.doctor.publications import (
    corrections_left,
    corrections_missing,
    publications_off_the_record,
    unprotected_bases,
)
from backfill_assets.operations.doctor.quarantine import cases_left_waiting, releases_interrupted, unloads_interrupted
from backfill_assets.operations.doctor.settling import settled
from backfill_assets.operations.doctor.sinks import settings_without_sinks, sinks_without_settings, topics_behind
from backfill_assets.operations.doctor.tables import (
    columns_that_differ,
    foreign_snapshots,
    input_columns_that_differ,
    planted_fences,
    redirected_file_access,
)
from backfill_assets.operations.doctor.upstream import upstream_superseded
from backfill_assets.operations.doctor.views import TableView, is_at_it, legible_runs
from manifests.errors import InputRefused
from manifests.lifecycle import RunState
from resources import logs
from resources.lakehouse.lineage import lineage_of
from resources.lakehouse.metadata import UnreadableMetadata
from resources.lakehouse.storage import Storage
from resources.ledger.cells import IllegibleRow, illegible
from resources.ledger.facade import RunRecord

_log = logging.getLogger(__name__)
_UNPUBLISHED = frozenset({RunState.RUNNING, RunState.STAGED, RunState.FAILED, RunState.VALIDATED})


def examine(platform: Platform) -> list[Disagreement]:
    """Return everything that disagrees. Changes nothing."""
    found: list[Disagreement] = []
    declared = {target.name: target for target in platform.products.targets}
    for name in sorted({record.target for record in legible_runs(platform)} | declared.keys()):
        target = declared.get(name)
        tables = () if target is None else target.changed_tables
        look_at = partial(_look_at_target, platform, name, target)
        found += settled(platform, partial(_as_far_as_possible, platform, name, look_at), tables)
    for table in platform.products.inputs:
        columns = partial(input_columns_that_differ, platform, table)
        found += settled(platform, partial(_as_far_as_possible, platform, table.name, columns), (table.name,))
    for look in (
        attempts_not_running,
        loads_taken_back,
        pins_untagged,
        upstream_superseded,
        late_rows,
        cases_left_waiting,
        releases_interrupted,
        unloads_interrupted,
        damaged_bundles,
        damaged_records,
        missing_diffs,
        unexplained_changes,
        wrong_leases,
        freezes_over,
        clock_behind,
        evidence_store_unfit,
        policy_file_that_differs,
        sinks_without_settings,
        settings_without_sinks,
        topics_behind,
        feeds_without_settings,
        settings_without_feeds,
        extractions_left,
    ):
        found += settled(platform, partial(_as_far_as_possible, platform, "ledger", partial(look, platform)))
    for one in found:
        text = f"{one.where}: {one.what}"
        level = logging.ERROR if one.kind == "DATA-LOSS" else logging.WARNING
        logs.event(_log, level, "disagreement", text, told=True, **one.shown())
    return found


def _as_far_as_possible(
    platform: Platform, where: str, look: Callable[[], Iterable[Disagreement]]
) -> Iterator[Disagreement]:
    """Look; where a look fails on what somebody has damaged or changed by hand, say that.

    Of the ledger `unexplained_changes` names the cells.
    """
    try:
        yield from look()
    except UnreadableMetadata as refusal:
        yield damaged_metadata(where, refusal)
    except IllegibleRow as refusal:
        yield not_checked(where, refusal)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if not any(unexplained_changes(platform)):
            raise
        yield not_checked(where, illegible("the ledger", f"{type(error).__name__}: {error}"))


def _undeclared(name: str, runs: Sequence[RunRecord]) -> Disagreement:
    return Disagreement(
        "undeclared-target",
        name,
        f"{len(runs)} run(s) of the ledger are for a target that no product declares",
        Confidence.CERTAIN,
        "use code that declares it, or restore the declaration: nothing was checked of it",
    )


def _look_at_target(platform: Platform, name: str, target: TargetTable | None) -> Iterator[Disagreement]:
    if target is None:
        yield _undeclared(name, [one for one in legible_runs(platform) if one.target == name])
        return
    everything = legible_runs(platform)
    runs, known = [record for record in everything if record.target == name], {record.run_id for record in everything}
    yield from _examine_target(platform, target, runs, frozenset(known))


def _examine_target(
    platform: Platform, target: TargetTable, runs: Sequence[RunRecord], known: frozenset[str]
) -> Iterator[Disagreement]:
    at = platform.ledger.now()
    at_it = {held.run_id: held for held in platform.ledger.repairs.open_leases() if is_at_it(held, target, at)}
    views = {}
    for name in target.changed_tables:
        try:
            table = platform.lakehouse.table(name)
            storage = Storage(table)
        except InputRefused as refusal:
            yield table_missing(name, refusal)
            continue
        except UnreadableMetadata as refusal:
            yield data_loss(name, refusal)
            continue
        views[name] = TableView(platform, target, name, table, storage, lineage_of(table), runs, known, at_it)
        yield from _as_far_as_possible(platform, name, partial(foreign_snapshots, views[name]))
        yield from columns_that_differ(views[name])
        yield from redirected_file_access(views[name])
    for name in (*views, target.changes):
        yield from _as_far_as_possible(platform, name, partial(planted_fences, platform, name))
    open_ends: list[Disagreement] = []
    for record in runs:
        if record.was_planned_anew:
            continue  # nobody had approved what was looked at: none of it can have been published
        if record.state in _UNPUBLISHED and (view := views.get(target.name)):
            yield from damaged_staged_files(view, record)
        if all(name in views for name in target.changed_tables):
            open_ends += _as_far_as_possible(
                platform, record.run_id, partial(publications_off_the_record, views, record)
            )
            open_ends += untold_changes(platform, record)
            yield from unprotected_bases(views[target.name], record)
            yield from _as_far_as_possible(platform, record.run_id, partial(corrections_left, views, record))
            yield from _as_far_as_possible(platform, record.run_id, partial(corrections_missing, views, record))
    # whatever brings those to an end completes the records, also of the runs that were superseded
    yield from open_ends or [one for record in runs for one in records_behind(platform, record)]
    lost = [one for view in views.values() for one in lost_files(view)]
    if target.name in views:
        landed = {one.where for one in open_ends if one.kind == "publication-unrecorded" and one.repair is not None}
        found = _as_far_as_possible(
            platform, target.name, partial(accepted_files_that_differ, views[target.name], landed)
        )
        yield from (one for one in found if one.what not in {other.what for other in lost})
    yield from lost
