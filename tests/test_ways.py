"""What a publish mode may not do to a table that holds more than its own publications have written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as arrow
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.transforms import MonthTransform
from small_worlds import copy_of

from backfill_assets.declarations.schema import TABLE_PROPERTIES, iceberg_schema
from backfill_assets.installation import Platform
from backfill_assets.publication.publisher import prepare, publish
from backfill_assets.publication.undoing import rollback
from benchmarks import small_table
from benchmarks.small_table import (
    READINGS,
    Reading,
    closed,
    declared,
    initialise,
    manifest,
    planned,
    rows,
    staged,
)
from manifests.errors import PlanRefused, PublicationRefused
from manifests.lifecycle import RunState
from resources.lakehouse.facade import LOAD_PROPERTY, Lakehouse, local_path
from resources.ledger.transactions import system_clock as now

FEBRUARY = ("2020-02-01", "2020-02-29")
QUARTER = ("2020-01-01", "2020-03-31")
MODES: dict[str, dict[str, Any]] = {
    "REPLACE_PARTITIONS": {},
    "MERGE_BY_KEY": {"merge": {"entities": ["m1"]}},
    "SHADOW_SWAP": {},
    "VERSIONED": {"version": "v1"},
    "CORRECTION_EVENTS": {"corrections": "BESIDE"},
}


@pytest.fixture
def platform() -> Iterator[Platform]:
    """A table that held three months in one file before its partitions were months."""
    with declared():
        opened_here = copy_of(with_a_file_of_three_months)
        yield opened_here
        closed(opened_here)


def with_a_file_of_three_months(platform: Platform) -> None:
    platform.settings.home.mkdir(parents=True)
    lakehouse = platform.lakehouse
    lakehouse.create_catalog()
    schema = iceberg_schema(Reading)
    lakehouse.ensure(READINGS, schema, UNPARTITIONED_PARTITION_SPEC, TABLE_PROPERTIES)
    lineage = {
        "run_id": "before",
        "processing_mode": "BACKFILL",
        "transform_version": "1",
        "input_snapshot_id": 1,
        "produced_at": now(),
    }
    old = [row | lineage for row in small_table.rows_of("1", *map(date.fromisoformat, QUARTER))]
    batch = arrow.Table.from_pylist(old, schema=schema_to_pyarrow(schema))
    lakehouse.append(READINGS, [batch], {LOAD_PROPERTY: "before"})
    with lakehouse.table(READINGS).update_spec() as update:
        update.add_field("day", MonthTransform(), "day_month")
    initialise(platform)


def test_no_mode_plans_to_replace_a_file_that_holds_days_of_others(platform: Platform) -> None:
    for number, (mode, options) in enumerate(MODES.items()):
        with pytest.raises(PlanRefused, match=r"day 2020-01-0. to 2020-03-") as refused:
            planned(platform, manifest(f"run-{number}", mode, FEBRUARY, **options))
        assert READINGS in str(refused.value)
        assert platform.ledger.find(f"run-{number}") is None


def test_a_file_of_the_whole_range_is_replaced_but_not_merged_into(platform: Platform) -> None:
    with pytest.raises(PlanRefused, match="or of several of its chunks"):
        planned(platform, manifest("merge", "MERGE_BY_KEY", QUARTER, merge={"entities": ["m1"]}))
    staged(platform, planned(platform, manifest("whole", "REPLACE_PARTITIONS", QUARTER)).run_id)
    assert publish(platform, "whole").files_removed == 1
    assert {row[3] for row in rows(platform)} == {"whole"}


@pytest.mark.parametrize("mode", ["REPLACE_PARTITIONS", "SHADOW_SWAP", "VERSIONED"])
def test_no_mode_publishes_what_an_older_plan_did_not_look_at(platform: Platform, mode: str) -> None:
    before = rows(platform)
    with mock.patch.object(Lakehouse, "files_beyond", return_value=[]):
        record = planned(platform, manifest("run", mode, FEBRUARY, **MODES[mode]))
    assert staged(platform, record.run_id).state is RunState.VALIDATED
    with pytest.raises(PublicationRefused, match="may hold rows that are not of 2020-02-01 to 2020-02-29"):
        publish(platform, "run")
    assert rows(platform) == before
    assert platform.ledger.run("run").state is RunState.REJECTED


def test_a_rollback_is_the_way_back_to_days_that_a_publication_took_along(platform: Platform) -> None:
    before = rows(platform)
    with mock.patch.object(Lakehouse, "files_beyond", return_value=[]):
        record = planned(platform, manifest("run", "REPLACE_PARTITIONS", FEBRUARY))
    staged(platform, record.run_id)
    with mock.patch("resources.lakehouse.replacements.require_in_scope"):  # as publications were made once
        publish(platform, "run")
    assert {row[1].month for row in rows(platform)} == {2}
    rollback(platform, "run")
    assert rows(platform) == before


@pytest.mark.parametrize("when", ["before the commit", "on the branch"])
def test_a_data_page_that_changed_after_its_gate_is_not_published(platform: Platform, when: str) -> None:
    before = rows(platform)
    on_branch = when == "on the branch"
    record = planned(platform, manifest("run", "SHADOW_SWAP" if on_branch else "REPLACE_PARTITIONS", QUARTER))
    staged(platform, record.run_id)
    if on_branch:
        prepare(platform, "run")
    file = Path(local_path(platform.ledger.chunks("run")[0].files[0].path))
    raw = bytearray(file.read_bytes())
    raw[len(b"PAR1") + 2] ^= 1  # of the first page: length and footer stay as they are
    file.write_bytes(raw)
    with pytest.raises(PublicationRefused, match=r"the content of .* has the SHA-256"):
        publish(platform, "run")
    assert rows(platform) == before
    assert platform.ledger.run("run").state is RunState.REJECTED
