"""What is around a compaction: the dry run before it, its diff and its cost, and what a collection of garbage leaves of it later."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from support import put_in_force
from test_compaction import appended, compaction, deleted, files, streamed, wrong

from backfill_assets import decisions
from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from backfill_assets.operations.garbage import collect, find
from backfill_assets.planning.dry_runs import manifest_of_dry_run
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from backfill_assets.review.diff import diff_here
from benchmarks import orders
from benchmarks.orders import ORDERS, rows_of
from manifests.compaction import REWRITING_VERSION
from manifests.errors import InputRefused, PublicationRefused, TransitionRefused
from manifests.lifecycle import RunState
from resources.lakehouse.facade import local_path


def test_where_the_policy_wants_a_dry_run_a_compaction_is_approved_on_one_of_what_it_has_pinned(tmp_path: Path) -> None:
    world = streamed(tmp_path, lots=3)
    platform = world.platform
    deleted(platform, lambda row: row["order_id"] % 7 == 3)
    put_in_force(platform, {"name": "test", "rules": [{"dryRun": {"fromChunks": 2, "chunksAtLeast": 1}}]})
    planned = plan_run(platform, compaction(end=date(2024, 2, 29)))
    appended(platform, at=lambda row: row["ordered_at"].month == 3)  # others go on writing elsewhere
    before = rows_of(platform)
    with pytest.raises(TransitionRefused, match="dry run"):
        decisions.approve(platform, planned.run_id, by="grace")
    dry = plan_run(platform, manifest_of_dry_run(platform, planned.run_id, "ada"))
    assert dry.plan.base_snapshot_id == dry.plan.source_snapshot_id == planned.plan.base_snapshot_id
    decisions.approve(platform, dry.run_id, by="grace")
    world.stage(platform.ledger.run(dry.run_id))
    assert platform.ledger.run(dry.run_id).state is RunState.VALIDATED
    assert rows_of(platform) == before
    decisions.approve(platform, planned.run_id, by="grace")
    world.stage(platform.ledger.run(planned.run_id))
    publish(platform, planned.run_id)
    assert rows_of(platform) == before
    assert verify(platform, data=True).everything == []


def test_a_diff_of_a_compaction_that_applies_deletes_says_that_there_is_none(tmp_path: Path) -> None:
    platform = (world := streamed(tmp_path, lots=2)).platform
    deleted(platform, lambda row: row["order_id"] == 500)
    world.validated(compaction())
    with pytest.raises(InputRefused, match="'compact' is a compaction") as refused:
        diff_here(platform, "compact")
    assert "backfill status compact" in refused.value.problems[0].fix


def test_what_a_compaction_has_taken_is_no_estimate_of_runs_that_compute(tmp_path: Path) -> None:
    platform = (world := streamed(tmp_path, lots=2)).platform
    world.published(compaction())
    assert platform.ledger.recorded(ORDERS, "2.0.0") == []
    assert [one.run_id for one in platform.ledger.recorded(ORDERS, REWRITING_VERSION)] == ["compact"]


def collected(platform: Platform) -> None:
    """Collect what policy keeps no longer in some years' time: the snapshots that pins have kept are the second collection's."""
    at = datetime.now(UTC) + timedelta(days=4_000)
    for _ in range(2):
        collect(platform, find(platform, at=at), by="ana", at=at)


def there(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if Path(local_path(path)).exists()]


def test_what_a_compaction_has_replaced_and_brought_goes_once_later_runs_have_its_chunks(tmp_path: Path) -> None:
    world = streamed(tmp_path, lots=2)
    platform = world.platform
    deleted(platform, lambda row: row["order_id"] % 7 == 3)
    deletes = {one.file_path for task in files(platform) for one in task.delete_files}
    before = rows_of(platform)
    world.published(compaction())
    compacted = {task.file.file_path for task in files(platform)}
    collected(platform)
    assert there(deletes) == list(deletes), "while readers get its files, it can be taken back"
    assert wrong(platform) == set()
    world.published(orders.manifest("restated", orders.FIRST, orders.LAST))
    collected(platform)
    assert len(there(compacted)) == 4, "a run that is rolled back brings them back"
    assert wrong(platform) == set()
    rollback(platform, "restated")
    assert rows_of(platform) == before
    reinstate(platform, "restated")
    world.published(orders.manifest("again", orders.FIRST, orders.LAST, version="1.0.0"))
    after = rows_of(platform)
    collected(platform)
    assert rows_of(platform) == after
    assert there(compacted) == []
    assert pins(platform) == set(), "nothing keeps the files that it read"
    assert platform.ledger.run("compact").state is RunState.PUBLISHED
    assert wrong(platform) == set()
    with pytest.raises(PublicationRefused):
        rollback(platform, "compact")
    assert rows_of(platform) == after


def pins(platform: Platform) -> set[str]:
    return {name for name in platform.lakehouse.table(ORDERS).refs() if name.startswith("pinned-")}


def test_a_compaction_that_was_compacted_again_or_rolled_back_keeps_nothing_for_ever(tmp_path: Path) -> None:
    world = streamed(tmp_path, lots=2)
    platform = world.platform
    world.published(compaction("first"))
    first = {task.file.file_path for task in files(platform)}
    deleted(platform, lambda row: row["order_id"] % 7 == 3)
    before = rows_of(platform)
    world.published(compaction("second"))
    collected(platform)
    assert len(there(first)) == 4, "a rollback of the second has them back"
    assert "before-first" not in platform.lakehouse.table(ORDERS).refs()
    assert wrong(platform) == set()
    rollback(platform, "second")
    assert rows_of(platform) == before
    collected(platform)
    assert rows_of(platform) == before
    # of the first as of any run that was collected and whose files are shown again; the deletes are there again, too
    assert wrong(platform) == {"publication-not-in-history", "rows-deleted"}
