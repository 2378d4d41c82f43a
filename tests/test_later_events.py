"""What happens to files and tables after a commit, and before it is on record, does not change whose commit it is.

Files are damaged, come back or are listed anew; another program compacts, expires. The table is the benchmarks' small one, without
Spark.
"""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as arrow
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from test_damaged_metadata import edited
from test_others_writing import UNDOINGS, described_anew, history
from test_own_changes import file_of_another
from test_taking_back import (
    APRIL,
    BESIDE,
    FEBRUARY,
    MAY,
    PUBLISHED,
    ROLLED_BACK,
    collected,
    compacted,
    dying_at,
    published,
    readers,
    state,
    validated,
)

from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks.small_table import CORRECTIONS, READINGS, rows
from manifests.errors import PublicationRefused
from manifests.lifecycle import PUBLISH, REINSTATE, ROLLBACK
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.live_files import all_files
from resources.lakehouse.metadata import UnreadableMetadata

pytestmark = pytest.mark.matrix

__all__ = ["history"]


def damaged(platform: Platform) -> None:
    """Cut off the end of one of the run's files."""
    file = Path(urlparse(platform.ledger.chunks("run")[0].files[0].path).path)
    file.write_bytes(file.read_bytes()[:-50])


@pytest.mark.parametrize("ended_by", ["the same command", "the doctor"])
@pytest.mark.parametrize("action", [PUBLISH, REINSTATE])
def test_a_file_that_was_damaged_after_its_commit_blocks_nobody(history: Platform, action: str, ended_by: str) -> None:
    validated(history, "run")
    validated(history, "elsewhere", scope=FEBRUARY, computed_by="1")
    if action == REINSTATE:
        publish(history, "run")
        rollback(history, "run")
    with dying_at(history, "publishing.committed" if action == PUBLISH else "undoing.committed"):
        publish(history, "run") if action == PUBLISH else reinstate(history, "run")
    damaged(history)
    if ended_by == "the doctor":
        mend(history)
    elif action == PUBLISH:
        publish(history, "run")
    else:
        reinstate(history, "run")
    assert state(history, "run") is PUBLISHED
    rollback(history, "run")
    assert state(history, "run") is ROLLED_BACK
    publish(history, "elsewhere")
    assert readers(history)["2020-02"] == "elsewhere"


def listed_anew_by_another(platform: Platform, part: str) -> None:
    """List files under their own paths again, without the metrics of some columns."""
    table = platform.lakehouse.table(READINGS)
    old = [file for file in all_files(table, table.current_snapshot()) if part in file.file_path]
    new = [described_anew(file, nan_value_counts=None, column_sizes=None) for file in old]
    commit_replacement(table, AlwaysTrue(), old, new, {})


@pytest.mark.parametrize("ended_by", ["the same command", "the doctor"])
def test_a_rollback_is_known_although_its_base_was_listed_anew_before_the_publication(
    history: Platform, ended_by: str
) -> None:
    before = rows(history)
    validated(history, "run")
    listed_anew_by_another(history, "chunk=2020-02")
    publish(history, "run")
    with dying_at(history, "undoing.committed"):
        rollback(history, "run")
    if ended_by == "the doctor":
        mend(history)
    else:
        rollback(history, "run")
    assert state(history, "run") is ROLLED_BACK
    assert rows(history) == before
    assert verify(history).everything == []


def test_corrections_of_which_a_file_came_back_meanwhile_are_there_once(history: Platform, tmp_path: Path) -> None:
    published(history, "earlier", scope=APRIL, **BESIDE)
    validated(history, "run", **BESIDE)
    with dying_at(history, "publishing.halfway"):
        publish(history, "run")
    derived = [file for chunk in history.ledger.chunks("run") for file in chunk.derived]
    lost, kept = Path(urlparse(derived[0].path).path), tmp_path / "kept"
    shutil.move(lost, kept)
    with dying_at(history, "publishing.committed"):
        publish(history, "run")
    shutil.move(kept, lost)
    publish(history, "run")
    there = [row for row in rows(history, CORRECTIONS) if "run" in row]
    assert max(Counter(there).values()) == 1
    assert len(there) == sum(file.rows for file in derived)
    assert verify(history).everything == []


@pytest.mark.parametrize("ended_by", ["the same command", "the doctor"])
@pytest.mark.parametrize("action", [PUBLISH, REINSTATE])
def test_corrections_that_another_program_has_compacted_and_expired_are_there_once(
    history: Platform, action: str, ended_by: str
) -> None:
    published(history, "earlier", scope=APRIL, **BESIDE)
    validated(history, "run", **BESIDE)
    if action == REINSTATE:
        publish(history, "run")
        rollback(history, "run")
    act = publish if action == PUBLISH else UNDOINGS[action]
    with dying_at(history, "publishing.committed" if action == PUBLISH else "undoing.committed"):
        act(history, "run")
    landed, there = history.lakehouse.snapshot_id(CORRECTIONS), Counter(rows(history, CORRECTIONS))
    assert landed is not None
    compacted(history)
    history.lakehouse.table(CORRECTIONS).maintenance.expire_snapshots().by_id(landed).commit()
    if ended_by == "the doctor":
        mend(history)
    else:
        act(history, "run")
    assert state(history, "run") is PUBLISHED
    assert Counter(rows(history, CORRECTIONS)) == there


def test_an_action_that_was_interrupted_twice_alarms_nobody(history: Platform) -> None:
    published(history, "run")
    for _ in range(2):
        with dying_at(history, "undoing.begun"):
            rollback(history, "run")
        assert verify(history).everything == []


def test_what_comes_back_is_what_was_replaced_and_not_what_the_base_is_said_to_hold_now(history: Platform) -> None:
    table = history.lakehouse.table(READINGS)
    first = history.lakehouse.snapshot_id(READINGS)
    commit_replacement(table, AlwaysTrue(), [], [file_of_another(table)], {})
    base, before = history.lakehouse.snapshot_id(READINGS), Counter(rows(history))
    published(history, "run")

    def its_list_is_that_of_the_first(content: dict[str, Any]) -> None:
        by_id = {one["snapshot-id"]: one for one in content["snapshots"]}
        lists.append(by_id[base]["manifest-list"])
        by_id[base]["manifest-list"] = by_id[first]["manifest-list"]

    lists: list[str] = []
    edited(its_list_is_that_of_the_first)(history, READINGS)
    with pytest.raises(
        PublicationRefused, match=r"what comes back into .* is not what snapshot .* has taken out of it"
    ):
        rollback(history, "run")
    assert (state(history, "run"), readers(history)["2020-02"]) == (PUBLISHED, "run")

    def its_list_is_its_own_again(content: dict[str, Any]) -> None:
        next(one for one in content["snapshots"] if one["snapshot-id"] == base)["manifest-list"] = lists[0]

    edited(its_list_is_its_own_again)(history, READINGS)
    rollback(history, "run")
    assert Counter(rows(history)) == before


@pytest.mark.parametrize("kind", ["snapshot", "schema"])
def test_an_id_that_stands_twice_is_named_and_nothing_is_done_by_it(history: Platform, kind: str) -> None:
    """PyIceberg takes the first of two snapshots, and of two schemas; others may take the last."""
    published(history, "run")
    before = history.lakehouse.snapshot_id(READINGS)

    def doubled(content: dict[str, Any]) -> None:
        content[f"{kind}s"].insert(0, dict(content[f"{kind}s"][-1]))

    edited(doubled)(history, READINGS)
    named = [f"{one.where} {one.what}" for one in verify(history).everything]
    assert [one for one in named if READINGS in one and f"the id of a {kind} stands twice" in one], named
    with pytest.raises(UnreadableMetadata, match=f"the id of a {kind} stands twice"):
        rollback(history, "run")
    with pytest.raises(UnreadableMetadata):
        history.lakehouse.snapshot_id(READINGS)
    assert state(history, "run") is PUBLISHED
    assert before is not None


@pytest.mark.parametrize(("mode", "options"), [("REPLACE_PARTITIONS", {}), ("VERSIONED", {"version": "v2"})])
def test_a_rollback_of_what_lies_behind_a_gap_in_the_history_alarms_nobody(
    history: Platform, mode: str, options: dict[str, Any]
) -> None:
    published(history, "run", mode=mode, **options)
    for number in range(5):
        published(history, f"may-{number}", scope=MAY, computed_by="12"[number % 2])
    known = len(history.lakehouse.table(READINGS).snapshots())
    collected(history)
    assert len(history.lakehouse.table(READINGS).snapshots()) < known
    with dying_at(history, "undoing.committed"):
        rollback(history, "run")
    assert verify(history).everything == []
    mend(history)
    assert state(history, "run") is ROLLED_BACK
    assert verify(history).everything == []


@pytest.mark.parametrize("action", [PUBLISH, ROLLBACK, REINSTATE])
def test_an_interrupted_action_alarms_nobody_although_what_was_before_it_has_expired(
    history: Platform, action: str
) -> None:
    validated(history, "run")
    if action != PUBLISH:
        publish(history, "run")
    if action == REINSTATE:
        rollback(history, "run")
    appended_in_august(history)
    expiring = history.lakehouse.snapshot_id(READINGS)
    assert expiring is not None
    with dying_at(history, "publishing.committed" if action == PUBLISH else "undoing.committed"):
        publish(history, "run") if action == PUBLISH else UNDOINGS[action](history, "run")
    assert verify(history).everything == []
    history.lakehouse.table(READINGS).maintenance.expire_snapshots().by_id(expiring).commit()
    assert verify(history).everything == []
    mend(history)
    assert state(history, "run") is (ROLLED_BACK if action == ROLLBACK else PUBLISHED)


def appended_in_august(platform: Platform) -> None:
    """Have another program append rows of a month that no run is about."""
    table = platform.lakehouse.table(READINGS)
    found = table.scan(limit=3).to_arrow()
    place = found.schema.get_field_index("day")
    found = found.set_column(place, found.schema.field(place), arrow.array([date(2020, 8, 5)] * len(found)))
    commit_replacement(table, AlwaysTrue(), [], list(_dataframe_to_data_files(table.metadata, found, table.io)), {})
