"""A commit deletes files that lie wholly inside what it may change, and refuses those that reach beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import AlwaysTrue, EqualTo
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform, MonthTransform, Transform
from support import BY_MONTH, DAYS, DAYS_SCHEMA, a_lakehouse, day_rows, of_run, scope, stage_file

from manifests.errors import EnvironmentRefused, PublicationRefused
from manifests.staged_file import StagedFile
from resources.lakehouse.containment import reaching_beyond
from resources.lakehouse.facade import DIFF_PROPERTY, LOAD_PROPERTY, Commit, Lakehouse

JANUARY, FEBRUARY, MARCH = "2012-01-05", "2012-02-05", "2012-03-05"
SPEC = {"write.delete.isolation-level": "serializable"}


@pytest.fixture
def lakehouse(tmp_path: Path) -> Iterator[Lakehouse]:
    opened = a_lakehouse(tmp_path)
    yield opened
    opened.catalog.close()


def quarter(lakehouse: Lakehouse, properties: dict[str, str] | None = None) -> Table:
    """Make a table that was not partitioned when its one file was written, and is by month today."""
    lakehouse.ensure(DAYS, DAYS_SCHEMA, UNPARTITIONED_PARTITION_SPEC, properties or {})
    lakehouse.append(DAYS, [day_rows(JANUARY, FEBRUARY, MARCH)], {LOAD_PROPERTY: "first"})
    with lakehouse.table(DAYS).update_spec() as update:
        update.add_field("day", MonthTransform(), "day_month")
    return lakehouse.table(DAYS)


def rows(lakehouse: Lakehouse) -> dict[str, int]:
    return {row["day"].isoformat(): row["value"] for row in lakehouse.table(DAYS).scan().to_arrow().to_pylist()}


def files(lakehouse: Lakehouse) -> list[str]:
    return [task.file.file_path for task in lakehouse.table(DAYS).scan().plan_files()]


def publish(lakehouse: Lakehouse, staged: list[StagedFile], start: str, end: str, **options: Any) -> Commit:
    base = lakehouse.snapshot_id(DAYS)
    return lakehouse.replace(DAYS, [(scope(start, end), base)], staged=staged, properties=of_run("run-one"), **options)


def february(table: Table, value: int = 1) -> list[StagedFile]:
    return [stage_file(table, f"february-{value}.parquet", day_rows("2012-02-06", value=value))]


def test_a_file_of_three_months_is_not_deleted_by_a_publication_of_one(lakehouse: Lakehouse) -> None:
    table = quarter(lakehouse)
    before = lakehouse.snapshot_id(DAYS)
    with pytest.raises(PublicationRefused, match="day 2012-01-05 to 2012-03-05") as refused:
        publish(lakehouse, february(table), "2012-02-01", "2012-02-29")
    assert "not of 2012-02-01 to 2012-02-29" in str(refused.value)
    assert lakehouse.snapshot_id(DAYS) == before
    assert rows(lakehouse) == dict.fromkeys((JANUARY, FEBRUARY, MARCH), 0)


def test_it_is_deleted_by_a_publication_of_all_its_days(lakehouse: Lakehouse) -> None:
    table = quarter(lakehouse)
    commit = publish(lakehouse, february(table), "2012-01-01", "2012-03-31")
    assert (commit.files_added, commit.files_removed) == (1, 1)
    assert rows(lakehouse) == {"2012-02-06": 1}


def test_a_merge_deletes_no_file_that_holds_days_of_others(lakehouse: Lakehouse) -> None:
    table = quarter(lakehouse)
    (old,) = files(lakehouse)
    with pytest.raises(PublicationRefused, match="may hold rows"):
        publish(lakehouse, february(table), "2012-02-01", "2012-02-29", replaced={old})
    assert publish(lakehouse, february(table), "2012-02-01", "2012-02-29", replaced=set()).files_removed == 0


def test_a_rollback_brings_back_a_file_that_was_deleted_with_days_of_others(lakehouse: Lakehouse) -> None:
    """As homes have them whose publications did not look: the rollback is the way back to the lost rows."""
    table = quarter(lakehouse)
    base = lakehouse.snapshot_id(DAYS)
    commit = _unguarded(lakehouse, february(table))
    assert rows(lakehouse) == {"2012-02-06": 1}
    back = _undo(lakehouse, commit.snapshot_id, base, "rollback")
    assert rows(lakehouse) == dict.fromkeys((JANUARY, FEBRUARY, MARCH), 0)
    with pytest.raises(PublicationRefused, match="may hold rows that are not of 2012-02-01 to 2012-02-29"):
        _undo(lakehouse, back.snapshot_id, commit.snapshot_id, "reinstate")
    assert rows(lakehouse) == dict.fromkeys((JANUARY, FEBRUARY, MARCH), 0)


@pytest.mark.parametrize("then", [DayTransform(), IdentityTransform()], ids=["by day", "by the day itself"])
def test_a_file_of_an_earlier_partitioning_comes_back_with_the_partition_it_had(
    lakehouse: Lakehouse, then: Transform[Any, Any]
) -> None:
    lakehouse.ensure(DAYS, DAYS_SCHEMA, PartitionSpec(PartitionField(2, 1000, then, "day_part")), {})
    lakehouse.append(DAYS, [day_rows(FEBRUARY, MARCH)], {LOAD_PROPERTY: "first"})
    with lakehouse.table(DAYS).update_spec() as update:
        update.remove_field("day_part")
        update.add_field("day", MonthTransform(), "day_month")
    base = lakehouse.snapshot_id(DAYS)
    commit = publish(lakehouse, february(lakehouse.table(DAYS)), "2012-02-01", "2012-02-29")
    assert rows(lakehouse) == {"2012-02-06": 1, MARCH: 0}
    _undo(lakehouse, commit.snapshot_id, base, "rollback")
    table = lakehouse.table(DAYS)
    assert rows(lakehouse) == {FEBRUARY: 0, MARCH: 0}
    assert (
        table.scan(row_filter=f"day = '{FEBRUARY}'").to_arrow().num_rows == 1
    )  # by partitions: what is not there is pruned
    assert {task.file.spec_id for task in table.scan().plan_files()} == {0}


def test_it_is_not_brought_back_beside_what_was_written_since(lakehouse: Lakehouse) -> None:
    table = quarter(lakehouse)
    base = lakehouse.snapshot_id(DAYS)
    commit = _unguarded(lakehouse, february(table))
    lakehouse.append(DAYS, [day_rows("2012-01-09", value=9)], {LOAD_PROPERTY: "january again"})
    with pytest.raises(PublicationRefused, match="2012-01-05 to 2012-03-05"):
        _undo(lakehouse, commit.snapshot_id, base, "rollback")
    assert rows(lakehouse) == {"2012-01-09": 9, "2012-02-06": 1}


def _unguarded(lakehouse: Lakehouse, staged: list[StagedFile]) -> Commit:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("resources.lakehouse.replacements.require_in_scope", lambda *_: None)
        return publish(lakehouse, staged, "2012-02-01", "2012-02-29")


def _undo(lakehouse: Lakehouse, published: int, to: int | None, action: str) -> Commit:
    return lakehouse.restore(
        DAYS,
        [scope("2012-02-01", "2012-02-29")],
        from_snapshot_id=published,
        to_snapshot_id=to,
        properties=of_run("run-one", action),
    )


def test_rows_of_one_run_are_not_put_in_place_of_a_file_of_several(lakehouse: Lakehouse) -> None:
    lakehouse.ensure(DAYS, DAYS_SCHEMA, UNPARTITIONED_PARTITION_SPEC, {})
    lakehouse.append(DAYS, [day_rows(JANUARY, FEBRUARY)], {LOAD_PROPERTY: "first"})
    table = lakehouse.table(DAYS)
    where = EqualTo(term="id", value=f"case-{JANUARY}")
    properties = of_run("run-one") | {DIFF_PROPERTY: "one"}
    with pytest.raises(PublicationRefused, match="may hold rows"):
        lakehouse.put_rows(DAYS, where, [stage_file(table, "one.parquet", day_rows(JANUARY, value=1))], properties)
    assert rows(lakehouse) == {JANUARY: 0, FEBRUARY: 0}


@pytest.mark.parametrize("counts_only", [False, True], ids=["bounds", "no bounds"])
def test_a_file_lies_inside_by_its_bounds_or_by_its_partition(lakehouse: Lakehouse, counts_only: bool) -> None:
    properties = {"write.metadata.metrics.default": "counts"} if counts_only else {}
    lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, properties)
    lakehouse.append(DAYS, [day_rows(FEBRUARY, "2012-02-20", MARCH)], {LOAD_PROPERTY: "first"})
    table = lakehouse.table(DAYS)
    files = [task.file for task in table.scan().plan_files()]
    assert bool(files[0].lower_bounds) is not counts_only

    def beyond(start: str, end: str) -> int:
        return len(reaching_beyond(table, scope(start, end).filter, files))

    assert len(files) == 2
    assert reaching_beyond(table, AlwaysTrue(), files) == []
    assert beyond("2012-02-01", "2012-03-31") == 0
    assert beyond("2012-02-01", "2012-02-29") == 1
    assert beyond("2012-02-05", "2012-02-20") == (2 if counts_only else 1)


def test_a_row_without_a_day_is_of_no_scope(lakehouse: Lakehouse) -> None:
    lakehouse.ensure(DAYS, DAYS_SCHEMA, UNPARTITIONED_PARTITION_SPEC, {})
    batch = day_rows(FEBRUARY, "2012-02-20").to_pylist()
    batch[1]["day"] = None
    lakehouse.append(
        DAYS, [day_rows(FEBRUARY).from_pylist(batch, schema=day_rows(FEBRUARY).schema)], {LOAD_PROPERTY: "x"}
    )
    table = lakehouse.table(DAYS)
    with pytest.raises(PublicationRefused, match="may hold rows"):
        publish(lakehouse, february(table), "2012-02-01", "2012-02-29")


# --- declared against found -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        UNPARTITIONED_PARTITION_SPEC,
        PartitionSpec(PartitionField(2, 1000, DayTransform(), "day_day")),
        PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id")),
    ],
    ids=["none", "by day", "by another column"],
)
def test_a_table_with_other_partitions_than_declared_is_refused(lakehouse: Lakehouse, other: PartitionSpec) -> None:
    lakehouse.ensure(DAYS, DAYS_SCHEMA, other, SPEC)
    with pytest.raises(EnvironmentRefused, match=r"month\(day\)") as refused:
        lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, SPEC)
    assert "update_spec" in str(refused.value)


def test_partitions_are_compared_as_they_are_today(lakehouse: Lakehouse) -> None:
    quarter(lakehouse)
    assert lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, SPEC).spec().fields[0].source_id == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write.delete.isolation-level", "snapshot"),
        ("write.metadata.metrics.default", "none"),
        ("write.metadata.metrics.column.day", "counts"),
    ],
)
def test_a_table_whose_properties_undo_what_a_commit_relies_on_is_refused(
    lakehouse: Lakehouse, name: str, value: str
) -> None:
    lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, SPEC | {name: value})
    with pytest.raises(EnvironmentRefused, match=name):
        lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, SPEC)


def test_other_properties_are_the_tables_own(lakehouse: Lakehouse) -> None:
    lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, {"commit.retry.num-retries": "3", "owner": "team:days"})
    assert lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, SPEC | {"commit.retry.num-retries": "10"})


# --- files that are told to go ----------------------------------------------------------------------------------------


def test_a_file_that_is_told_to_go_and_is_not_there_is_no_reason_to_go_on(lakehouse: Lakehouse) -> None:
    lakehouse.ensure(DAYS, DAYS_SCHEMA, BY_MONTH, SPEC)
    lakehouse.append(DAYS, [day_rows(JANUARY, FEBRUARY)], {LOAD_PROPERTY: "first"})
    table, base = lakehouse.table(DAYS), lakehouse.snapshot_id(DAYS)
    january, old = sorted(files(lakehouse))
    for wrong in (old.removeprefix("file://"), january):
        with pytest.raises(PublicationRefused, match="to be replaced and are not") as refused:
            publish(lakehouse, february(table), "2012-02-01", "2012-02-29", replaced={old, wrong})
        assert wrong in str(refused.value)
    assert lakehouse.snapshot_id(DAYS) == base
    assert publish(lakehouse, february(table), "2012-02-01", "2012-02-29", replaced={old}).files_removed == 1
