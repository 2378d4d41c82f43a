"""A watermark advances with what goes on from it, is withdrawn with the run that brought it, and never goes back otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import pytest
from support import (
    APPROVER,
    REQUESTER,
    TARGET,
    a_contract,
    a_manifest,
    a_plan,
    a_source,
    monthly_files,
    moved,
    pass_all,
    publishing,
    stage_all,
)

from manifests.facts import SourceFile
from manifests.lifecycle import RunState
from resources.ledger.facade import Ledger

OLDER, NEWER = datetime(2024, 4, 29, tzinfo=UTC), datetime(2024, 4, 30, tzinfo=UTC)
HISTORY = monthly_files(date(2010, 1, 1), 48)


def published(
    ledger: Ledger,
    run_id: str,
    start: str,
    end: str,
    *,
    at: datetime = OLDER,
    files: Sequence[SourceFile] = HISTORY,
    **target: Any,
) -> None:
    manifest = a_manifest(run_id, target=publishing(start, end) | target)
    source = a_source(files, snapshot_id=11 if at == OLDER else 12, committed_at=at)
    record = ledger.record_plan(
        manifest, a_plan(manifest, source=source, contract=a_contract(entity="case_id")), REQUESTER
    )
    ledger.decide(run_id, approve=True, by=APPROVER, comment="", self_approval=False, plan_hash=record.plan_hash)
    pass_all(ledger, record, stage_all(ledger, record))
    moved(ledger, run_id, RunState.VALIDATED, REQUESTER)
    publication = ledger.open_publication(run_id, "publish", 7, "root", REQUESTER)
    ledger.accept(run_id, publication, snapshot_id=100, added=3, removed=2, actor=REQUESTER)


def rolled_back(ledger: Ledger, run_id: str) -> None:
    publication = ledger.open_publication(run_id, "rollback", 100, "root", REQUESTER)
    ledger.undo(run_id, publication, snapshot_id=101, added=2, removed=3, actor=REQUESTER)


def mark(ledger: Ledger) -> tuple[str, date, int] | None:
    found = ledger.watermarks.current(TARGET)
    return None if found is None else (found.run_id, found.complete_until, found.source_snapshot_id)


def test_the_first_run_sets_it_and_the_next_goes_on_from_it(ledger: Ledger) -> None:
    assert mark(ledger) is None
    published(ledger, "first", "2012-01-01", "2012-03-31")
    assert mark(ledger) == ("first", date(2012, 3, 31), 11)
    published(ledger, "second", "2012-04-01", "2012-04-30")
    assert mark(ledger) == ("second", date(2012, 4, 30), 11)


def test_it_stands_where_the_source_ends_and_not_where_the_chunk_does(ledger: Ledger) -> None:
    files = (*monthly_files(date(2011, 11, 1), 3), SourceFile(10, 100, date(2012, 2, 1), date(2012, 2, 17)))
    published(ledger, "first", "2012-01-01", "2012-02-29", files=files)
    assert mark(ledger) == ("first", date(2012, 2, 17), 11)


def test_a_run_that_leaves_days_out_or_lies_behind_moves_nothing(ledger: Ledger) -> None:
    published(ledger, "first", "2012-01-01", "2012-03-31")
    published(ledger, "beyond", "2012-05-01", "2012-05-31")
    assert mark(ledger) == ("first", date(2012, 3, 31), 11)
    published(ledger, "behind", "2012-01-01", "2012-02-29", at=NEWER)
    assert mark(ledger) == ("first", date(2012, 3, 31), 11)


def test_the_same_days_with_a_newer_source_move_it_and_with_an_older_one_nothing_does(ledger: Ledger) -> None:
    published(ledger, "first", "2012-01-01", "2012-03-31")
    published(ledger, "part", "2012-03-01", "2012-03-31", at=NEWER)
    assert mark(ledger) == ("first", date(2012, 3, 31), 11)  # nobody has looked at January with the newer source
    published(ledger, "newer", "2012-01-01", "2012-03-31", at=NEWER)
    assert mark(ledger) == ("newer", date(2012, 3, 31), 12)
    published(ledger, "older", "2012-03-01", "2012-04-30", at=OLDER)
    assert mark(ledger) == ("newer", date(2012, 3, 31), 12)


def test_a_merge_of_some_entities_makes_no_range_complete(ledger: Ledger) -> None:
    published(ledger, "merge", "2012-01-01", "2012-03-31", publishMode="MERGE_BY_KEY", merge={"entities": ["case-1"]})
    assert mark(ledger) is None


def test_a_repair_of_a_target_without_one_sets_none_before_its_newest_chunk(ledger: Ledger) -> None:
    published(ledger, "first", "2012-01-01", "2012-03-31")
    with ledger.engine.begin() as connection:  # as in a ledger from before there were watermarks
        connection.exec_driver_sql("DELETE FROM watermarks")
    published(ledger, "repair", "2012-02-01", "2012-02-29")
    assert mark(ledger) is None
    published(ledger, "front", "2012-03-01", "2012-03-31")
    assert mark(ledger) == ("front", date(2012, 3, 31), 11)


@pytest.mark.parametrize("undone", ["second", "third"])
def test_a_rollback_withdraws_it_with_all_that_went_on_from_it(ledger: Ledger, undone: str) -> None:
    published(ledger, "first", "2012-01-01", "2012-03-31")
    published(ledger, "second", "2012-04-01", "2012-04-30")
    published(ledger, "third", "2012-05-01", "2012-05-31")
    rolled_back(ledger, undone)
    expected = {"second": ("first", date(2012, 3, 31), 11), "third": ("second", date(2012, 4, 30), 11)}
    assert mark(ledger) == expected[undone]


def test_a_rollback_of_a_run_that_moved_nothing_withdraws_nothing(ledger: Ledger) -> None:
    published(ledger, "first", "2012-01-01", "2012-03-31")
    published(ledger, "repair", "2012-02-01", "2012-02-29")
    rolled_back(ledger, "repair")
    assert mark(ledger) == ("first", date(2012, 3, 31), 11)
