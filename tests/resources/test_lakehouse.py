"""Every commit is one snapshot, touches its scope only, and is refused if somebody else wrote there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import PyArrowFile, parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import snapshot as snapshot_module
from pyiceberg.transforms import MonthTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType
from support import BY_MONTH, DAYS, DAYS_SCHEMA, a_lakehouse, catalog_properties, day_rows, of_run, scope, stage_file

from manifests.errors import EnvironmentRefused, InputRefused, PublicationRefused
from manifests.facts import SourceFile
from manifests.staged_file import StagedFile
from resources.lakehouse.commits import commit_in_scopes
from resources.lakehouse.data_files import data_files
from resources.lakehouse.declared_tables import column_problems
from resources.lakehouse.facade import (
    DATA_VERSION_PROPERTY,
    LOAD_PROPERTY,
    Commit,
    Lakehouse,
    before,
    between,
    local_path,
)
from resources.lakehouse.loads import without_content
from resources.lakehouse.pyiceberg_private import QuickTransaction

JANUARY = ("2012-01-05", "2012-01-20")
FEBRUARY = ("2012-02-05", "2012-02-20")
MARCH = ("2012-03-05",)
EVENTS = "bronze.events"
EVENTS_SCHEMA = Schema(
    NestedField(1, "id", StringType(), required=False),
    NestedField(2, "event_at", TimestamptzType(), required=False),
)
EVENTS_BY_MONTH = PartitionSpec(PartitionField(2, 1000, MonthTransform(), "event_at_month"))


@pytest.fixture
def days(lakehouse: Lakehouse) -> Table:
    """A table of three months, one file each, at one snapshot."""
    lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, {"write.delete.isolation-level": "serializable"})
    live(lakehouse, *JANUARY, *FEBRUARY, *MARCH, load="first")
    return lakehouse.table(DAYS)


def live(lakehouse: Lakehouse, *written: str, load: str, value: int = 0) -> Commit | None:
    """Append rows as somebody else would."""
    return lakehouse.append(DAYS, [day_rows(*written, value=value)], {LOAD_PROPERTY: load})


def rows(lakehouse: Lakehouse, snapshot_id: int | None = None) -> dict[str, int]:
    """Return day -> value of the table at a snapshot."""
    found = lakehouse.table(DAYS).scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    assert len({row["day"] for row in found}) == len(found)
    return {row["day"].isoformat(): row["value"] for row in found}


def paths(lakehouse: Lakehouse, snapshot_id: int | None = None) -> set[str]:
    tasks = lakehouse.table(DAYS).scan(snapshot_id=snapshot_id).plan_files()
    return {task.file.file_path for task in tasks}


def snapshots(lakehouse: Lakehouse) -> list[int]:
    return [snapshot.snapshot_id for snapshot in lakehouse.table(DAYS).snapshots()]


def publish(
    lakehouse: Lakehouse,
    base: int | None,
    staged: Sequence[StagedFile],
    *,
    start: str = "2012-01-01",
    end: str = "2012-02-29",
    run_id: str = "run-one",
) -> Commit:
    return lakehouse.replace(DAYS, [(scope(start, end), base)], staged=staged, properties=of_run(run_id))


def two_months(table: Table, value: int = 1, prefix: str = "") -> list[StagedFile]:
    return [
        stage_file(table, f"{prefix}january.parquet", day_rows(*JANUARY, value=value)),
        stage_file(table, f"{prefix}february.parquet", day_rows(*FEBRUARY, value=value)),
    ]


# --- publication ------------------------------------------------------------------------------------------------------


def test_a_publication_is_one_snapshot_with_the_files_of_its_scope_replaced_and_no_other(
    lakehouse: Lakehouse, days: Table
) -> None:
    base, old = snapshots(lakehouse), paths(lakehouse)
    staged = two_months(days)
    commit = publish(lakehouse, base[-1], staged)

    assert snapshots(lakehouse) == [*base, commit.snapshot_id]
    assert (commit.files_added, commit.files_removed) == (2, 2)
    kept = {path for path in old if "2012-03" in path}
    assert len(kept) == 1
    assert paths(lakehouse) == {file.path for file in staged} | kept
    assert rows(lakehouse) == {**dict.fromkeys([*JANUARY, *FEBRUARY], 1), **dict.fromkeys(MARCH, 0)}


def test_a_publication_reads_no_more_manifests_than_the_one_before(lakehouse: Lakehouse, days: Table) -> None:
    """PyIceberg by itself hands on manifests of files deleted long ago; old snapshots keep theirs."""
    listed = []
    for number in range(6):
        commit = publish(
            lakehouse, snapshots(lakehouse)[-1], two_months(days, number, f"{number}-"), run_id=f"run-{number}"
        )
        table = lakehouse.table(DAYS)
        snapshot = table.snapshot_by_id(commit.snapshot_id)
        assert snapshot is not None
        listed.append(len(snapshot.manifests(table.io)))
    assert listed == [3] * 6  # kept, added, and what this one deleted
    for number, snapshot_id in enumerate(snapshots(lakehouse)[1:]):
        assert rows(lakehouse, snapshot_id)["2012-01-05"] == number


def test_readers_of_the_old_snapshot_still_see_the_old_rows(lakehouse: Lakehouse, days: Table) -> None:
    (base,) = snapshots(lakehouse)
    publish(lakehouse, base, two_months(days))

    assert rows(lakehouse, base) == dict.fromkeys([*JANUARY, *FEBRUARY, *MARCH], 0)


def test_the_snapshot_says_whose_it_is_and_how_many_files_it_changed(lakehouse: Lakehouse, days: Table) -> None:
    commit = publish(lakehouse, snapshots(lakehouse)[-1], two_months(days))
    found = lakehouse.find_publication(DAYS, "run-one", "publish")

    assert found is not None
    assert found.snapshot_id == commit.snapshot_id
    assert lakehouse.changed_files(DAYS, found) == (2, 2)


def test_the_first_publication_of_an_empty_table_is_one_snapshot(lakehouse: Lakehouse) -> None:
    table = lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, {})
    commit = publish(lakehouse, None, two_months(table))

    assert snapshots(lakehouse) == [commit.snapshot_id]
    assert (commit.files_added, commit.files_removed) == (2, 0)


def test_a_scope_without_rows_is_emptied_by_one_snapshot(lakehouse: Lakehouse, days: Table) -> None:
    commit = publish(lakehouse, snapshots(lakehouse)[-1], [])

    assert (commit.files_added, commit.files_removed) == (0, 2)
    assert rows(lakehouse) == dict.fromkeys(MARCH, 0)


def test_nothing_published_over_nothing_is_still_on_record_as_a_snapshot(lakehouse: Lakehouse, days: Table) -> None:
    commit = publish(lakehouse, snapshots(lakehouse)[-1], [], start="2015-01-01", end="2015-12-31")

    assert lakehouse.snapshot_id(DAYS) == commit.snapshot_id
    assert rows(lakehouse) == dict.fromkeys([*JANUARY, *FEBRUARY, *MARCH], 0)


def test_nothing_published_into_an_empty_table_is_still_on_record(lakehouse: Lakehouse) -> None:
    lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, {})
    commit = publish(lakehouse, None, [])

    assert lakehouse.snapshot_id(DAYS) == commit.snapshot_id


def test_a_live_write_in_scope_refuses_the_publication_and_changes_nothing(lakehouse: Lakehouse, days: Table) -> None:
    base, old = snapshots(lakehouse)[-1], paths(lakehouse)
    live(lakehouse, "2012-02-21", load="live")
    after = snapshots(lakehouse)
    (written,) = paths(lakehouse) - old

    with pytest.raises(
        PublicationRefused, match="no longer holds the plan's files in 2012-01-01 to 2012-02-29"
    ) as refused:
        publish(lakehouse, base, two_months(days))
    assert f"+ {written}" in str(refused.value)
    assert snapshots(lakehouse) == after
    assert rows(lakehouse)["2012-01-05"] == 0


def test_a_file_that_left_the_scope_refuses_the_publication(lakehouse: Lakehouse, days: Table) -> None:
    base = snapshots(lakehouse)[-1]
    (january,) = [path for path in paths(lakehouse) if "2012-01" in path]
    publish(lakehouse, base, [], end="2012-01-31", run_id="another-run")

    with pytest.raises(PublicationRefused, match="no longer holds") as refused:
        publish(lakehouse, base, two_months(days))
    assert f"- {january}" in str(refused.value)


def test_a_refusal_lists_the_first_files_and_counts_the_rest(lakehouse: Lakehouse, days: Table) -> None:
    base = snapshots(lakehouse)[-1]
    batches = [day_rows(f"2012-01-{day:02}") for day in range(1, 26)]
    lakehouse.append(DAYS, batches, {LOAD_PROPERTY: "many"})

    with pytest.raises(PublicationRefused) as refused:
        publish(lakehouse, base, two_months(days))
    assert str(refused.value).count("      + ") == 20
    assert "… and 5 more" in str(refused.value)


def test_a_table_that_was_empty_when_planned_and_is_not_any_more_is_refused(lakehouse: Lakehouse, days: Table) -> None:
    with pytest.raises(PublicationRefused, match="no longer holds"):
        publish(lakehouse, None, two_months(days))


def test_a_live_write_beside_the_scope_does_not_disturb_the_publication(lakehouse: Lakehouse, days: Table) -> None:
    base = snapshots(lakehouse)[-1]
    live(lakehouse, "2012-03-06", "2012-04-01", load="live", value=9)
    commit = publish(lakehouse, base, two_months(days))

    assert (commit.files_added, commit.files_removed) == (2, 2)
    assert rows(lakehouse) == {
        **dict.fromkeys([*JANUARY, *FEBRUARY], 1),
        **dict.fromkeys(MARCH, 0),
        "2012-03-06": 9,
        "2012-04-01": 9,
    }


def test_a_write_into_the_scope_while_publishing_is_refused(lakehouse: Lakehouse, days: Table) -> None:
    # the publisher has read the table and compared the files; then somebody appends; then the publisher commits
    stale = lakehouse.table(DAYS)
    old = [task.file for task in stale.scan(row_filter=scope("2012-01-01", "2012-02-29").filter).plan_files()]
    live(lakehouse, "2012-02-21", load="live")
    after = snapshots(lakehouse)

    with pytest.raises(PublicationRefused, match="no longer holds the plan's files"):
        commit_in_scopes(lakehouse, stale, [scope("2012-01-01", "2012-02-29")], old, [], of_run("run-one"))
    assert snapshots(lakehouse) == after


def test_another_publication_of_the_same_scope_while_publishing_is_refused(lakehouse: Lakehouse, days: Table) -> None:
    stale = lakehouse.table(DAYS)
    old = [task.file for task in stale.scan(row_filter=scope("2012-01-01", "2012-02-29").filter).plan_files()]
    publish(lakehouse, snapshots(lakehouse)[-1], two_months(days), run_id="another-run")
    after = snapshots(lakehouse)

    with pytest.raises(PublicationRefused, match="no longer holds the plan's files"):
        commit_in_scopes(lakehouse, stale, [scope("2012-01-01", "2012-02-29")], old, [], of_run("run-one"))
    assert snapshots(lakehouse) == after


def test_a_write_beside_the_scope_while_publishing_does_not_disturb_it(lakehouse: Lakehouse, days: Table) -> None:
    stale = lakehouse.table(DAYS)
    old = [task.file for task in stale.scan(row_filter=scope("2012-01-01", "2012-02-29").filter).plan_files()]
    live(lakehouse, "2012-03-06", load="live", value=9)
    commit_in_scopes(lakehouse, stale, [scope("2012-01-01", "2012-02-29")], old, [], of_run("run-one"))

    assert rows(lakehouse) == {**dict.fromkeys(MARCH, 0), "2012-03-06": 9}


def test_two_runs_of_disjoint_scopes_both_publish_on_the_same_base(lakehouse: Lakehouse, days: Table) -> None:
    base = snapshots(lakehouse)[-1]
    january, february = two_months(days)
    publish(lakehouse, base, [january], end="2012-01-31")
    publish(lakehouse, base, [february], start="2012-02-01", run_id="run-two")

    assert rows(lakehouse) == {**dict.fromkeys([*JANUARY, *FEBRUARY], 1), **dict.fromkeys(MARCH, 0)}


def test_manifests_are_judged_one_at_a_time(lakehouse: Lakehouse, days: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyIceberg asks from several threads, and its answer is wrong for who comes between; see test_upstream."""
    for number in range(8):
        live(lakehouse, f"2012-03-{number + 10}", load=f"more-{number}")
    build, together = snapshot_module.manifest_evaluator, []

    def slow(*arguments: Any) -> Any:
        evaluate, busy = build(*arguments), Lock()

        def evaluate_slowly(manifest: ManifestFile) -> bool:
            alone = busy.acquire(blocking=False)
            together.append(not alone)
            time.sleep(0.005)
            if alone:
                busy.release()
            return evaluate(manifest)

        return evaluate_slowly

    monkeypatch.setattr(snapshot_module, "manifest_evaluator", slow)
    commit_in_scopes(lakehouse, lakehouse.table(DAYS), [scope("2012-01-01", "2012-01-31")], [], [], of_run("run-one"))
    assert together
    assert not any(together)


def test_a_transaction_sees_its_own_updates_and_what_was_committed(lakehouse: Lakehouse, days: Table) -> None:
    transaction = QuickTransaction(days)
    before = transaction.table_metadata
    assert before == days.metadata
    assert transaction.table_metadata is before
    transaction.set_properties(owner="somebody")
    assert transaction.table_metadata.properties["owner"] == "somebody"
    transaction.set_properties(owner="somebody else")
    assert transaction.table_metadata.properties["owner"] == "somebody else"
    transaction.commit_transaction()
    assert transaction.table_metadata.properties["owner"] == "somebody else"
    assert lakehouse.table(DAYS).properties["owner"] == "somebody else"


# --- what is published is what was gated ------------------------------------------------------------------------------


def test_a_staged_file_with_other_rows_than_were_gated_is_refused(lakehouse: Lakehouse, days: Table) -> None:
    january, february = two_months(days)
    stage_file(days, "february.parquet", day_rows("2012-02-05", value=66))
    after = snapshots(lakehouse)

    with pytest.raises(PublicationRefused, match="what is published is what was gated") as refused:
        publish(lakehouse, after[-1], [january, february])
    assert f"{february.path} has 1 rows" in str(refused.value)
    assert january.path not in str(refused.value)
    assert snapshots(lakehouse) == after


def test_every_staged_file_that_changed_is_named(lakehouse: Lakehouse, days: Table) -> None:
    january, february = two_months(days)
    wrong = [StagedFile(file.path, file.rows, file.bytes + 1) for file in (january, february)]

    with pytest.raises(PublicationRefused, match="for 2 reasons"):
        publish(lakehouse, snapshots(lakehouse)[-1], wrong)


def test_files_of_one_schema_and_of_another_are_described_as_pyiceberg_does(days: Table) -> None:
    schema = schema_to_pyarrow(days.schema())
    # some have bounds in common, in part, and one column's upper bound is another's lower bound
    written = {"1": ("2012-01-05", 1), "2": ("2012-02-05", 2), "5": ("2012-01-05", 2), "6": ("2012-01-06", 1)}
    paths = [
        stage_file(days, f"{name}.parquet", day_rows(day, value=value)).path for name, (day, value) in written.items()
    ]
    mixed = pa.concat_tables([day_rows("2012-02-05", value=1), day_rows("2012-02-06", value=2)])
    paths.append(stage_file(days, "mixed.parquet", mixed).path)
    for name, text in (("null", None), ("none", "None")):
        named = day_rows("2012-01-07").set_column(0, schema.field("id"), pa.array([text], schema.field("id").type))
        paths.append(stage_file(days, f"{name}.parquet", named).path)
    folder = paths[0].rpartition("/")[0]
    others = {
        "other": day_rows("2012-03-05", value=3).cast(schema.with_metadata({"written": "elsewhere"})),
        "wrong": day_rows("2012-04-05", value=4).cast(schema).append_column("more", [["x"]]),
    }
    for name, rows in others.items():
        pq.write_table(rows, local_path(f"{folder}/{name}.parquet"))
    paths.insert(1, f"{folder}/other.parquet")
    found = data_files(days, paths)
    assert [one.file_path for one in found] == paths
    assert [repr(one) for one in found] == [
        repr(parquet_file_to_data_file(days.io, days.metadata, one)) for one in paths
    ]
    with pytest.raises(ValueError, match="more"):
        data_files(days, [*paths, f"{folder}/wrong.parquet"])


@pytest.mark.parametrize("damage", ["deleted", "emptied", "cut short"])
def test_a_staged_file_that_was_lost_or_damaged_is_refused_by_name(
    lakehouse: Lakehouse, days: Table, damage: str
) -> None:
    january, february = two_months(days)
    file = Path(local_path(february.path))
    raw = file.read_bytes()
    if damage == "deleted":
        file.unlink()
    else:
        file.write_bytes(b"" if damage == "emptied" else raw[:-20])
    after = snapshots(lakehouse)

    with pytest.raises(PublicationRefused) as refused:
        publish(lakehouse, after[-1], [january, february])
    assert february.path in str(refused.value)
    assert snapshots(lakehouse) == after


def test_a_staged_file_that_could_not_be_read_just_now_is_not_said_to_be_damaged(
    lakehouse: Lakehouse, days: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    january, february = two_months(days)
    after = snapshots(lakehouse)
    opened = PyArrowFile.open

    def slow_down(self: PyArrowFile, *arguments: Any) -> Any:
        if not self.location.endswith(".parquet"):
            return opened(self, *arguments)
        raise OSError("AWS Error SLOW_DOWN during GetObject operation: Please reduce your request rate.")

    monkeypatch.setattr(PyArrowFile, "open", slow_down)
    with pytest.raises(EnvironmentRefused, match="could not be read just now: OSError: AWS Error SLOW_DOWN"):
        publish(lakehouse, after[-1], [january, february])
    assert snapshots(lakehouse) == after
    monkeypatch.setattr(PyArrowFile, "open", opened)
    publish(lakehouse, after[-1], [january, february])


# --- rollback ---------------------------------------------------------------------------------------------------------


def undo(lakehouse: Lakehouse, published: int, to: int | None, run_id: str = "run-one") -> Commit:
    return lakehouse.restore(
        DAYS,
        [scope("2012-01-01", "2012-02-29")],
        from_snapshot_id=published,
        to_snapshot_id=to,
        properties=of_run(run_id, "rollback"),
    )


def test_a_rollback_puts_the_old_files_back_as_a_new_snapshot(lakehouse: Lakehouse, days: Table) -> None:
    base, old = snapshots(lakehouse)[-1], paths(lakehouse)
    published = publish(lakehouse, base, two_months(days)).snapshot_id
    commit = undo(lakehouse, published, base)

    assert snapshots(lakehouse) == [base, published, commit.snapshot_id]
    assert paths(lakehouse) == old
    assert (commit.files_added, commit.files_removed) == (2, 2)
    assert rows(lakehouse, published)["2012-01-05"] == 1, "the publication stays in the history"


def test_a_rollback_keeps_what_was_written_beside_its_scope_meanwhile(lakehouse: Lakehouse, days: Table) -> None:
    base = snapshots(lakehouse)[-1]
    published = publish(lakehouse, base, two_months(days)).snapshot_id
    live(lakehouse, "2012-03-06", load="live", value=9)
    undo(lakehouse, published, base)

    assert rows(lakehouse) == {**dict.fromkeys([*JANUARY, *FEBRUARY, *MARCH], 0), "2012-03-06": 9}


def test_a_rollback_is_refused_if_somebody_wrote_into_its_scope_meanwhile(lakehouse: Lakehouse, days: Table) -> None:
    base = snapshots(lakehouse)[-1]
    published = publish(lakehouse, base, two_months(days)).snapshot_id
    live(lakehouse, "2012-02-21", load="live")
    after = snapshots(lakehouse)

    with pytest.raises(PublicationRefused, match="no longer holds"):
        undo(lakehouse, published, base)
    assert snapshots(lakehouse) == after


def test_a_rollback_of_the_first_publication_leaves_the_scope_empty(lakehouse: Lakehouse) -> None:
    table = lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, {})
    published = publish(lakehouse, None, two_months(table)).snapshot_id
    undo(lakehouse, published, None)

    assert rows(lakehouse) == {}


def test_what_was_rolled_back_can_be_published_again_by_a_new_run(lakehouse: Lakehouse, days: Table) -> None:
    base = snapshots(lakehouse)[-1]
    published = publish(lakehouse, base, two_months(days)).snapshot_id
    undone = undo(lakehouse, published, base).snapshot_id
    publish(lakehouse, undone, two_months(days, value=2, prefix="second-"), run_id="run-two")

    assert rows(lakehouse)["2012-01-05"] == 2


# --- finding and tagging ----------------------------------------------------------------------------------------------


def test_a_publication_is_found_by_run_and_action_until_the_end_of_the_history(
    lakehouse: Lakehouse, days: Table
) -> None:
    base = snapshots(lakehouse)[-1]
    published = publish(lakehouse, base, two_months(days)).snapshot_id
    live(lakehouse, "2012-03-06", load="live")
    undone = undo(lakehouse, published, base).snapshot_id

    found = [lakehouse.find_publication(DAYS, "run-one", action) for action in ("publish", "rollback")]
    assert [snapshot and snapshot.snapshot_id for snapshot in found] == [published, undone]
    assert lakehouse.find_publication(DAYS, "run-two", "publish") is None
    assert lakehouse.find_publication(DAYS, "run", "publish") is None


def test_a_publication_that_is_not_in_the_current_history_is_not_found(lakehouse: Lakehouse, days: Table) -> None:
    base = snapshots(lakehouse)[-1]
    publish(lakehouse, base, two_months(days))
    lakehouse.table(DAYS).manage_snapshots().rollback_to_snapshot(base).commit()

    assert lakehouse.find_publication(DAYS, "run-one", "publish") is None


def test_nothing_was_published_in_a_table_without_snapshots(lakehouse: Lakehouse) -> None:
    lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, {})

    assert lakehouse.find_publication(DAYS, "run-one", "publish") is None
    assert lakehouse.snapshot_id(DAYS) is None


def test_a_tag_is_set_once_and_the_same_tag_again_is_nothing(lakehouse: Lakehouse, days: Table) -> None:
    base = snapshots(lakehouse)[-1]
    lakehouse.tag(DAYS, "before-run-one", base)
    lakehouse.tag(DAYS, "before-run-one", base)

    assert lakehouse.table(DAYS).refs()["before-run-one"].snapshot_id == base


def test_a_tag_is_never_moved(lakehouse: Lakehouse, days: Table) -> None:
    base = snapshots(lakehouse)[-1]
    lakehouse.tag(DAYS, "before-run-one", base)
    live(lakehouse, "2012-03-06", load="live")

    with pytest.raises(PublicationRefused, match="a tag is never moved"):
        lakehouse.tag(DAYS, "before-run-one", snapshots(lakehouse)[-1])
    assert lakehouse.table(DAYS).refs()["before-run-one"].snapshot_id == base


# --- loading ----------------------------------------------------------------------------------------------------------


def test_an_append_is_one_snapshot_of_all_its_batches(lakehouse: Lakehouse, days: Table) -> None:
    before_it = snapshots(lakehouse)
    commit = lakehouse.append(DAYS, [day_rows("2012-03-06"), day_rows("2012-04-01")], {LOAD_PROPERTY: "more"})

    assert commit is not None
    assert snapshots(lakehouse) == [*before_it, commit.snapshot_id]
    assert commit.files_added == 2


def test_the_same_load_is_appended_once(lakehouse: Lakehouse, days: Table) -> None:
    live(lakehouse, "2012-03-06", load="live")
    live(lakehouse, "2012-03-07", load="later")
    after = snapshots(lakehouse)

    assert live(lakehouse, "2012-03-06", load="live") is None
    assert snapshots(lakehouse) == after


def test_a_load_that_another_process_appends_while_its_files_are_written_lands_once(
    lakehouse: Lakehouse, days: Table
) -> None:
    loading = day_rows("2012-03-06", value=6)
    landed = []

    def batches() -> Iterator[pa.Table]:
        landed.append(lakehouse.append(DAYS, [loading], {LOAD_PROPERTY: "live"}))
        yield loading

    there = Path(local_path(lakehouse.table(DAYS).location())) / "data"
    before = {*there.rglob("*.parquet")}
    assert lakehouse.append(DAYS, batches(), {LOAD_PROPERTY: "live"}) is None
    assert landed[0] is not None
    assert rows(lakehouse)["2012-03-06"] == 6, "and each day once"
    assert len({*there.rglob("*.parquet")} - before) == 1, "what was written for nothing is gone"


def test_manifests_that_cannot_be_read_are_the_storages_matter_and_nobody_elses(
    lakehouse: Lakehouse, days: Table
) -> None:
    """A publication that meets them is refused for now: nothing is said of its scope."""
    base = snapshots(lakehouse)[-1]
    staged = two_months(days)
    live(lakehouse, "2012-04-06", load="live")
    current = lakehouse.table(DAYS).current_snapshot()
    assert current is not None
    for manifest in current.manifests(days.io):
        Path(local_path(manifest.manifest_path)).unlink()
    with pytest.raises(EnvironmentRefused, match="cannot be read: FileNotFoundError"):
        publish(lakehouse, base, staged)


def test_a_load_is_looked_for_again_whenever_another_commit_came_between(
    lakehouse: Lakehouse, days: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the table says of retries: a table's source may have been made by somebody else."""
    with lakehouse.table(DAYS).transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "10"})
    others = iter(["live", "other"])
    commit_table = type(lakehouse.catalog).commit_table

    def first_theirs(catalog: Any, *arguments: Any) -> Any:
        if (load := next(others, None)) is not None:
            lakehouse.append(DAYS, [day_rows(f"2012-04-{'06' if load == 'live' else '07'}")], {LOAD_PROPERTY: load})
        return commit_table(catalog, *arguments)

    monkeypatch.setattr(type(lakehouse.catalog), "commit_table", first_theirs)
    live(lakehouse, "2012-04-06", load="live")
    assert {"2012-04-06", "2012-04-07"} <= set(rows(lakehouse)), "and each day once"
    assert lakehouse.table(DAYS).properties["commit.retry.num-retries"] == "10", "the table's own property stays"


def test_an_append_that_fails_half_way_commits_nothing(lakehouse: Lakehouse, days: Table) -> None:
    def batches() -> object:
        yield day_rows("2012-03-06")
        raise RuntimeError("the file ended")

    after = snapshots(lakehouse)
    with pytest.raises(RuntimeError, match="the file ended"):
        lakehouse.append(DAYS, batches(), {LOAD_PROPERTY: "half"})  # type: ignore[arg-type]
    assert snapshots(lakehouse) == after
    assert live(lakehouse, "2012-03-06", load="half") is not None, "the load can be repeated"


def test_overwriting_a_reference_table_is_one_snapshot_with_a_named_version(lakehouse: Lakehouse) -> None:
    lakehouse.ensure(DAYS, DAYS_SCHEMA, UNPARTITIONED_PARTITION_SPEC, {})
    for version, value in (("2023", 1), ("2024", 2)):
        properties = {LOAD_PROPERTY: f"{DAYS}:{version}", DATA_VERSION_PROPERTY: version}
        assert lakehouse.overwrite_rows(DAYS, day_rows("2012-01-05", value=value), properties) is not None
        assert lakehouse.overwrite_rows(DAYS, day_rows("2012-01-05", value=value), properties) is None

    first, second = snapshots(lakehouse)
    assert [row["value"] for row in lakehouse.rows(DAYS, first)] == [1]
    assert [row["value"] for row in lakehouse.rows(DAYS, second)] == [2]
    state = lakehouse.reference_state(DAYS, frozenset({first}))
    assert state.versions == {"2023": first, "2024": second}
    assert (state.current, state.snapshots, state.recorded) == (second, {first, second}, {first})


def test_a_load_of_a_reference_table_is_in_the_snapshots_that_show_it_and_what_took_its_place_is_not_taken_back(
    lakehouse: Lakehouse,
) -> None:
    lakehouse.ensure(DAYS, DAYS_SCHEMA, UNPARTITIONED_PARTITION_SPEC, {})

    def load(load_id: str, value: int) -> int:
        properties = {LOAD_PROPERTY: load_id, DATA_VERSION_PROPERTY: load_id}
        lakehouse.overwrite_rows(DAYS, day_rows("2012-01-05", value=value), properties)
        return snapshots(lakehouse)[-1]

    def unload(load_id: str) -> int:
        return lakehouse.undo_load(DAYS, load_id, {}).snapshot_id

    def gone() -> list[str]:
        return [one.load_id for one in without_content(lakehouse.loads(DAYS))]

    first, second = load("one", 1), load("two", 2)
    assert gone() == []
    back, nothing = unload("two"), unload("one")
    assert gone() == ["one", "two"]
    again = load("two#2", 2)
    assert gone() == ["one"], "the content of 'two' is there"
    third = load("three", 3)
    assert gone() == ["one"], "a newer version took the place of 'two'; nobody took it back"
    once_more = load("two#3", 2)
    shown = unload("two#3")
    assert gone() == ["one", "two", "two#2", "two#3"], "'two' was taken back as it was shown last"
    with_it = {one.load_id: lakehouse.snapshots_with_load(DAYS, one.load_id) for one in lakehouse.loads(DAYS)}
    assert with_it == {
        "one": {first, back}, "two": {second}, "two#2": {again}, "three": {third, shown}, "two#3": {once_more}
    }  # fmt: skip
    assert lakehouse.rows(DAYS, nothing) == []
    unload("three")
    assert [row["value"] for row in lakehouse.rows(DAYS, snapshots(lakehouse)[-1])] == [2]
    assert gone() == ["one", "three"], "readers have the content of 'two'"


@pytest.mark.parametrize("first", [True, False], ids=["an empty one", "a filled one"])
def test_a_reference_table_that_two_processes_overwrite_at_once_is_overwritten_once(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    lakehouse.ensure(DAYS, DAYS_SCHEMA, UNPARTITIONED_PARTITION_SPEC, {})
    content, properties = day_rows("2012-01-05", value=1), {LOAD_PROPERTY: "rules:1", DATA_VERSION_PROPERTY: "1"}
    if not first:
        lakehouse.overwrite_rows(DAYS, day_rows("2012-01-05"), {LOAD_PROPERTY: "rules:0"})
    others = iter([1])
    commit_table = type(lakehouse.catalog).commit_table

    def first_theirs(catalog: Any, *arguments: Any) -> Any:
        if next(others, None) is not None:
            lakehouse.overwrite_rows(DAYS, content, properties)
        return commit_table(catalog, *arguments)

    monkeypatch.setattr(type(lakehouse.catalog), "commit_table", first_theirs)
    assert lakehouse.overwrite_rows(DAYS, content, properties) is None
    assert rows(lakehouse) == {"2012-01-05": 1}
    assert len(snapshots(lakehouse)) == (1 if first else 2)


def test_a_reference_table_without_rows_has_no_snapshot_to_pin(lakehouse: Lakehouse) -> None:
    lakehouse.ensure(DAYS, DAYS_SCHEMA, UNPARTITIONED_PARTITION_SPEC, {})

    assert lakehouse.reference_state(DAYS, frozenset()).current is None


# --- tables -----------------------------------------------------------------------------------------------------------


def test_ensuring_a_table_again_returns_it_as_it_is(lakehouse: Lakehouse, days: Table) -> None:
    again = lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, {})

    assert again.metadata.table_uuid == days.metadata.table_uuid
    assert lakehouse.snapshot_id(DAYS) == snapshots(lakehouse)[-1]


def test_a_table_with_other_columns_than_declared_is_refused_with_the_difference(
    lakehouse: Lakehouse, days: Table
) -> None:
    other = Schema(*DAYS_SCHEMA.fields[:2], NestedField(3, "value", StringType(), required=False))

    with pytest.raises(EnvironmentRefused, match="value") as refused:
        lakehouse.ensure(DAYS, other, BY_MONTH, {})
    assert "long" in str(refused.value)
    assert "string" in str(refused.value)


def test_a_table_that_does_not_exist_is_refused_by_name(lakehouse: Lakehouse) -> None:
    with pytest.raises(InputRefused, match=r"table silver\.nothing does not exist"):
        lakehouse.table("silver.nothing")


def test_a_catalog_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    broken = Lakehouse("lake", catalog_properties(tmp_path / "no" / "folder"))

    with pytest.raises(EnvironmentRefused, match="the catalog 'lake'"):
        broken.table(DAYS)
    with pytest.raises(EnvironmentRefused, match="the catalog 'lake' cannot be opened"):
        broken.create_catalog()


def test_a_catalog_that_was_never_created_is_refused_and_not_made_by_looking(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRefused, match="backfill init"):
        Lakehouse("lake", catalog_properties(tmp_path)).table(DAYS)
    catalog = tmp_path / "catalog.db"
    assert not catalog.exists() or catalog.stat().st_size == 0


def test_creating_the_catalog_again_keeps_its_tables(lakehouse: Lakehouse, days: Table) -> None:
    lakehouse.create_catalog()

    assert lakehouse.table(DAYS).metadata.table_uuid == days.metadata.table_uuid


def test_a_file_of_no_rows_is_described_whatever_its_columns_were_called(
    lakehouse: Lakehouse, catalog: dict[str, str]
) -> None:
    """Nothing of its columns is said in it, and so nobody asks for them by the names that they had."""
    lakehouse.catalog.create_namespace("silver")
    table = lakehouse.catalog.create_table(
        "silver.words",
        Schema(NestedField(1, "word", StringType(), required=False)),
        location=f"{catalog['warehouse']}/w",
    )
    path = f"{table.location()}/data/none.parquet"
    Path(local_path(path)).parent.mkdir(parents=True)
    pq.ParquetWriter(local_path(path), schema_to_pyarrow(table.schema())).close()
    assert pq.read_metadata(local_path(path)).num_row_groups == 0
    with table.update_schema() as update:
        update.rename_column("word", "text")
    table.refresh()

    (found,) = data_files(table, [path])
    assert repr(found) == repr(parquet_file_to_data_file(table.io, table.metadata, path))


def test_two_processes_see_each_others_commits(lakehouse: Lakehouse, days: Table, catalog: dict[str, str]) -> None:
    other = Lakehouse("lake", catalog)
    commit = live(other, "2012-03-06", load="live")

    assert commit is not None
    assert lakehouse.snapshot_id(DAYS) == commit.snapshot_id


def test_data_files_live_below_the_table(lakehouse: Lakehouse, days: Table) -> None:
    location = lakehouse.location(DAYS)

    assert location.endswith("/silver/days/data")
    assert all(path.startswith(location) for path in paths(lakehouse))


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///tmp/a%20b/c.parquet", "/tmp/a%20b/c.parquet"),  # PyIceberg takes a URI as it is written
        ("file:///tmp/a b/c.parquet", "/tmp/a b/c.parquet"),
        ("file:/tmp/c.parquet", "/tmp/c.parquet"),
        ("/tmp/c.parquet", "/tmp/c.parquet"),
        ("s3://bucket/c.parquet", "s3://bucket/c.parquet"),
    ],
)
def test_a_file_uri_is_a_local_path(uri: str, path: str) -> None:
    assert local_path(uri) == path


# --- pinned reads -----------------------------------------------------------------------------------------------------


def test_a_pinned_read_of_an_old_snapshot_has_its_files_whatever_came_later(lakehouse: Lakehouse, days: Table) -> None:
    base, old = snapshots(lakehouse)[-1], paths(lakehouse)
    publish(lakehouse, base, two_months(days))
    pinned = lakehouse.pinned(DAYS, base)

    assert set(pinned.paths) == old
    assert pinned.paths == tuple(sorted(pinned.paths))
    assert pinned.snapshot_id == base


def test_a_pinned_read_takes_only_files_that_may_hold_the_rows_asked_for(lakehouse: Lakehouse, days: Table) -> None:
    base = snapshots(lakehouse)[-1]

    assert len(lakehouse.pinned(DAYS, base, scope("2012-02-01", "2012-02-29").filter).paths) == 1
    assert len(lakehouse.pinned(DAYS, base, AlwaysTrue()).paths) == 3
    assert lakehouse.pinned(DAYS, base, scope("1999-01-01", "1999-12-31").filter).paths == ()


def test_a_table_without_a_snapshot_is_an_empty_read(lakehouse: Lakehouse) -> None:
    lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, {})
    pinned = lakehouse.pinned(DAYS, None)

    assert (pinned.snapshot_id, pinned.paths) == (None, ())
    assert pinned.schema == lakehouse.table(DAYS).schema()


def test_a_snapshot_that_does_not_exist_is_refused(lakehouse: Lakehouse, days: Table) -> None:
    with pytest.raises(InputRefused, match=r"silver\.days has no snapshot 42"):
        lakehouse.pinned(DAYS, 42)
    with pytest.raises(InputRefused, match=r"silver\.days has no snapshot 42"):
        publish(lakehouse, 42, two_months(days))


# --- the source as the planner sees it --------------------------------------------------------------------------------


def event_rows(*instants: str) -> pa.Table:
    # to UTC here: in a process that has imported pandera, pyarrow drops the offset of an instant (see test_sinks)
    rows = [{"id": text, "event_at": datetime.fromisoformat(text).astimezone(UTC)} for text in instants]
    return pa.Table.from_pylist(rows, schema=schema_to_pyarrow(EVENTS_SCHEMA))


def test_the_state_of_a_source_has_each_files_rows_and_utc_days(lakehouse: Lakehouse) -> None:
    lakehouse.ensure(EVENTS, EVENTS_SCHEMA, EVENTS_BY_MONTH, {})
    january = event_rows("2012-01-01T00:00:00+00:00", "2012-01-31T23:59:59.999999+00:00")
    # half past midnight in New Zealand is still the day before in UTC
    march = event_rows("2012-03-02T00:30:00+13:00")
    ancient = event_rows("1965-05-05T12:00:00+00:00")
    lakehouse.append(EVENTS, [january, march, ancient], {LOAD_PROPERTY: "one"})
    state = lakehouse.source_state(EVENTS, "event_at", None)

    assert sorted((file.rows, file.first_day, file.last_day) for file in state.files) == [
        (1, date(1965, 5, 5), date(1965, 5, 5)),
        (1, date(2012, 3, 1), date(2012, 3, 1)),
        (2, date(2012, 1, 1), date(2012, 1, 31)),
    ]
    assert all(file.bytes > 0 for file in state.files)
    assert state.snapshot_id == lakehouse.snapshot_id(EVENTS)
    assert abs(state.committed_at - datetime.now(UTC)).total_seconds() < 60


def test_the_state_of_a_source_at_an_old_snapshot_does_not_know_what_came_later(lakehouse: Lakehouse) -> None:
    lakehouse.ensure(EVENTS, EVENTS_SCHEMA, EVENTS_BY_MONTH, {})
    first = lakehouse.append(EVENTS, [event_rows("2012-01-05T00:00:00+00:00")], {LOAD_PROPERTY: "one"})
    lakehouse.append(EVENTS, [event_rows("2012-02-05T00:00:00+00:00")], {LOAD_PROPERTY: "two"})
    assert first is not None

    assert len(lakehouse.source_state(EVENTS, "event_at", first.snapshot_id).files) == 1
    assert len(lakehouse.source_state(EVENTS, "event_at", None).files) == 2


def test_a_source_may_be_placed_in_time_by_a_date(lakehouse: Lakehouse, days: Table) -> None:
    state = lakehouse.source_state(DAYS, "day", None)

    assert SourceFile(1, state.files[0].bytes, date(2012, 3, 5), date(2012, 3, 5)) in [
        SourceFile(file.rows, state.files[0].bytes, file.first_day, file.last_day) for file in state.files
    ]


def test_a_source_without_a_snapshot_is_refused(lakehouse: Lakehouse) -> None:
    lakehouse.ensure(EVENTS, EVENTS_SCHEMA, EVENTS_BY_MONTH, {})

    with pytest.raises(InputRefused, match=r"bronze\.events has no snapshot"):
        lakehouse.source_state(EVENTS, "event_at", None)


def test_a_source_file_without_bounds_for_its_time_column_is_refused_with_the_repair(lakehouse: Lakehouse) -> None:
    lakehouse.ensure(
        EVENTS, EVENTS_SCHEMA, UNPARTITIONED_PARTITION_SPEC, {"write.metadata.metrics.column.event_at": "none"}
    )
    lakehouse.append(EVENTS, [event_rows("2012-01-05T00:00:00+00:00")], {LOAD_PROPERTY: "one"})

    with pytest.raises(InputRefused, match="has no bounds for event_at"):
        lakehouse.source_state(EVENTS, "event_at", None)


def test_a_source_is_placed_in_time_by_an_instant_or_a_date_only(lakehouse: Lakehouse, days: Table) -> None:
    with pytest.raises(
        EnvironmentRefused, match=r"column value of silver\.days is long\n *rule: .* a date or timestamptz"
    ):
        lakehouse.source_state(DAYS, "value", None)


def test_rows_of_a_time_range_are_asked_for_with_an_open_end(lakehouse: Lakehouse) -> None:
    lakehouse.ensure(EVENTS, EVENTS_SCHEMA, EVENTS_BY_MONTH, {})
    instants = ["2012-01-01T00:00:00+00:00", "2012-02-01T00:00:00+00:00", "2012-03-01T00:00:00+00:00"]
    lakehouse.append(EVENTS, [event_rows(*instants)], {LOAD_PROPERTY: "one"})
    start, end = (datetime.fromisoformat(text) for text in instants[1:])

    def found(row_filter: object) -> list[str]:
        scan = lakehouse.table(EVENTS).scan(row_filter=row_filter)  # type: ignore[arg-type]
        return sorted(scan.to_arrow()["id"].to_pylist())

    assert found(between("event_at", start, end)) == [instants[1]]
    assert found(before("event_at", end)) == instants[:2]


def delete_file(days: Table, january: DataFile, content: DataFileContent) -> None:
    """Append a file of deletes to the table, as other engines do."""
    deletes = Path(local_path(days.location())) / "data" / "deletes.parquet"
    pq.write_table(pa.table({"file_path": [january.file_path], "pos": pa.array([0], pa.int64())}), deletes)
    unknown: dict[int, int] = {}
    described = DataFile.from_args(
        content=content,
        file_path=f"file://{deletes}",
        file_format=FileFormat.PARQUET,
        partition=january.partition,
        record_count=1,
        file_size_in_bytes=deletes.stat().st_size,
        column_sizes=unknown,
        value_counts=unknown,
        null_value_counts=unknown,
        nan_value_counts=unknown,
        lower_bounds={},
        upper_bounds={},
        spec_id=days.metadata.default_spec_id,
    )
    with days.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        update.append_data_file(described)


def test_a_file_of_which_rows_are_deleted_is_read_with_its_deletes_and_not_published_over(
    lakehouse: Lakehouse, days: Table
) -> None:
    (january,) = [task.file for task in days.scan().plan_files() if "2012-01" in task.file.file_path]
    delete_file(days, january, DataFileContent.POSITION_DELETES)
    newest = lakehouse.snapshot_id(DAYS)
    assert newest is not None
    ((path, (deletes,)),) = lakehouse.pinned(DAYS, newest).deleted
    assert path == january.file_path
    assert deletes.endswith("deletes.parquet")
    assert lakehouse.unread(DAYS, newest) == ([], [])
    Path(local_path(deletes)).unlink()
    assert lakehouse.unread(DAYS, newest) == ([deletes], [])
    with pytest.raises(InputRefused, match=r"of silver\.days has 1 delete file") as refused:
        lakehouse.files_in(DAYS, newest, [scope("2012-01-01", "2012-01-31")])
    assert january.file_path in str(refused.value)


def test_rows_that_are_deleted_by_their_values_are_refused_by_name(lakehouse: Lakehouse, days: Table) -> None:
    (january,) = [task.file for task in days.scan().plan_files() if "2012-01" in task.file.file_path]
    delete_file(days, january, DataFileContent.EQUALITY_DELETES)
    with pytest.raises(InputRefused, match=r"silver\.days has 1 file\(s\) of equality deletes") as refused:
        lakehouse.pinned(DAYS, lakehouse.snapshot_id(DAYS))
    assert "CALL <catalog>.system.rewrite_data_files(table => 'silver.days'" in str(refused.value)


def test_a_warehouse_below_a_folder_with_a_blank_is_written_and_read_there(tmp_path: Path) -> None:
    home = tmp_path / "my home"
    home.mkdir()
    lakehouse = a_lakehouse(home)
    lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, {})
    live(lakehouse, *JANUARY, load="first")
    pinned = lakehouse.pinned(DAYS, lakehouse.snapshot_id(DAYS))

    assert [Path(local_path(path)).is_file() for path in pinned.paths] == [True]
    assert {path.name for path in tmp_path.iterdir()} == {"my home"}


def test_a_required_column_is_made_optional_by_init_but_for_one_that_identifies_rows(tmp_path: Path) -> None:
    catalog = SqlCatalog("ids", uri=f"sqlite:///{tmp_path}/ids.db", warehouse=f"file://{tmp_path}/ids")
    catalog.create_namespace("silver")
    fields = [NestedField(1, "id", LongType(), required=True), NestedField(2, "value", LongType(), required=True)]
    table = catalog.create_table("silver.ids", Schema(*fields, identifier_field_ids=[1]))
    declared = Schema(*(NestedField(one.field_id, one.name, one.field_type, required=False) for one in fields))
    problems = column_problems(table, declared)
    assert [one.what for one in problems] == [
        "silver.ids requires its column id",
        "silver.ids requires its column value",
    ]
    assert problems[0].fix.startswith("it is an identifier field of the table, which cannot be optional")
    assert problems[1].fix.startswith("`backfill init --preview` shows what it would change")
