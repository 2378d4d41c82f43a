"""Rows that say their whole lineage (`PublishedInFull`): filled by the platform, held against the plan, and in no digest.

That a table with a history gets the columns later, and that what was published before is proved as it was, is one of the changes
of `test_columns_of_runs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from small_worlds import copy_of

from backfill_assets.audit.verification import verify
from backfill_assets.declarations.checking.products import problems_of
from backfill_assets.declarations.product import Product
from backfill_assets.declarations.schema import (
    LATER_LINEAGE_COLUMNS,
    LINEAGE_COLUMNS,
    Published,
    PublishedInFull,
    dtypes,
    lineage_columns,
)
from backfill_assets.installation import Platform
from backfill_assets.publication.publisher import publish
from backfill_assets.review.diff import diff_run
from backfill_assets.staging.rows import lineage
from backfill_assets.worker.chunk_gate import digest_columns
from benchmarks import small_table
from benchmarks.small_table import HISTORY, READINGS, SCOPE, TARGET, manifest_data, planned, staged
from manifests.lifecycle import RunState
from manifests.reading import manifest_from
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.facade import local_path

REASON = "meters that were misread"


class Told(PublishedInFull):
    """What one meter said on one day, and why we say so."""

    meter: str = pa.Field(description="The meter.")
    day: date = pa.Field(description="The day.")
    value: pl.Int64 = pa.Field(description="What it said.")


class OwnReason(Published):
    """With columns of its own that have names of lineage columns."""

    meter: str = pa.Field(description="The meter.")
    day: date = pa.Field(description="The day.")
    value: pl.Int64 = pa.Field(description="What it said.")
    run_reason: str = pa.Field(description="Why the meter was read.")


def with_history(platform: Platform) -> None:
    small_table.initialise(platform)
    published(platform, "history", HISTORY, "1")


def published(platform: Platform, run_id: str, scope: tuple[str, str], version: str = "2", **more: Any) -> None:
    mode = more.pop("mode", "REPLACE_PARTITIONS")
    options = more.pop("options", {})
    data = manifest_data(run_id, mode, scope, computed_by=version, **options) | more
    planned(platform, manifest_from(data))
    record = staged(platform, run_id)
    assert record.state is RunState.VALIDATED, record.state_reason
    publish(platform, run_id)


@pytest.fixture
def platform() -> Iterator[Platform]:
    with small_table.declared(replace(TARGET, model=Told)), mock.patch.object(small_table, "Reading", Told):
        found = copy_of(with_history)
        yield found
        small_table.closed(found)


def rows(platform: Platform) -> pl.DataFrame:
    frame = pl.from_arrow(platform.lakehouse.table(READINGS).scan().to_arrow())
    assert isinstance(frame, pl.DataFrame)
    return frame


def test_what_a_run_stages_says_its_transform_input_references_and_reason(platform: Platform) -> None:
    published(platform, "run", SCOPE, reason="It was decided so, for this test.")
    plan = platform.ledger.run("run").plan
    said = rows(platform).filter(pl.col("run_id") == "run").select(LATER_LINEAGE_COLUMNS).unique().to_dicts()
    assert said == [
        {
            "transform_name": "readings",
            "input_start": plan.input_range.start,
            "input_end": plan.input_range.end,
            "reference_versions": "",
            "run_reason": "It was decided so, for this test.",
        }
    ]
    assert rows(platform)["run_reason"].null_count() == 0
    assert verify(platform, data=True).everything == []


def test_the_columns_come_last_and_are_in_no_digest_and_no_diff(platform: Platform) -> None:
    assert list(dtypes(Told))[-10:] == [*LINEAGE_COLUMNS, *LATER_LINEAGE_COLUMNS]
    assert digest_columns(Told) == ["meter", "day", "value"]
    published(platform, "run", SCOPE, "1", reason="The same rows for another reason.")
    digests = [
        {one.chunk: one.digest for one in platform.ledger.chunks(run_id) if SCOPE[0] <= f"{one.chunk}-01" <= SCOPE[1]}
        for run_id in ("history", "run")
    ]
    assert digests[0] == digests[1]
    assert {one.column: one.changed for one in diff_run(platform, "run").diff.columns} == {"value": 0}


@pytest.mark.parametrize("forged", [None, "another reason"], ids=["none", "another"])
def test_a_staged_row_that_says_otherwise_does_not_pass_its_gate(platform: Platform, forged: str | None) -> None:
    record = planned(platform, manifest_from(manifest_data("run", "REPLACE_PARTITIONS", SCOPE)))
    with mock.patch.object(small_table, "lineage", lambda plan, model: lineage(plan, model) | {"run_reason": forged}):
        record = staged(platform, "run")
    assert record.state is RunState.FAILED
    broken = {
        rule["rule"] for verdict in platform.ledger.verdicts("run") for rule in verdict.details.get("violations", ())
    }
    assert any("run_reason" in rule for rule in broken), broken


def test_rows_that_somebody_has_rewritten_with_another_reason_are_named(platform: Platform) -> None:
    table = platform.lakehouse.table(READINGS)
    old = next(iter(table.scan().plan_files())).file
    found = pq.read_table(local_path(old.file_path))
    column = found.schema.get_field_index("run_reason")
    field = found.schema.field(column)
    other = found.set_column(column, field, arrow.array(["another one"] * found.num_rows, field.type))
    place = Path(local_path(old.file_path)).with_name("rewritten.parquet")
    pq.write_table(other, place)
    new = parquet_file_to_data_file(table.io, table.metadata, f"file://{place}")
    commit_replacement(table, AlwaysTrue(), [old], [new], {})
    said = [(one.where, one.what) for one in verify(platform, data=True).everything]
    assert any("lineage run_reason" in where and "not that of the run" in what for where, what in said), said


def test_a_merge_leaves_the_reason_of_rows_that_it_does_not_touch(platform: Platform) -> None:
    options = {"merge": {"entities": ["m1"]}}
    published(platform, "merge", SCOPE, mode="MERGE_BY_KEY", options=options, reason="One meter was misread.")
    reasons = dict(rows(platform).select("run_id", "run_reason").unique().iter_rows())
    assert reasons == {"history": REASON, "merge": "One meter was misread."}
    assert verify(platform, data=True).everything == []


def test_corrections_are_issued_of_values_alone(platform: Platform) -> None:
    published(platform, "corrected", SCOPE, "1", mode="CORRECTION_EVENTS", reason="The same rows for another reason.")
    assert platform.lakehouse.table(small_table.CORRECTIONS).scan().to_arrow().num_rows == 0


def test_a_table_that_declares_none_has_none_and_may_have_columns_of_these_names() -> None:
    assert lineage_columns(OwnReason) == LINEAGE_COLUMNS
    assert digest_columns(OwnReason) == ["meter", "day", "value", "run_reason"]
    assert list(dtypes(OwnReason)) == ["meter", "day", "value", "run_reason", *LINEAGE_COLUMNS]
    target = replace(TARGET, model=OwnReason, source="bronze.elsewhere")
    said = " ".join(str(one) for one in problems_of([Product("readings", (), (target,))]))
    assert "run_reason" not in said


def test_a_plan_of_such_a_table_has_no_reason_and_the_hash_that_it_always_had() -> None:
    with small_table.declared():
        found = copy_of(_without)
        plan = planned(found, manifest_from(manifest_data("run", "REPLACE_PARTITIONS", SCOPE))).plan
        small_table.closed(found)
    assert plan.reason is None
    assert '"reason"' not in plan.to_json()
    assert set(lineage(plan)) == set(LINEAGE_COLUMNS)


def _without(platform: Platform) -> None:
    small_table.initialise(platform)


def test_a_column_of_the_platform_that_a_model_declares_otherwise_is_refused() -> None:
    class Wrong(Told):
        """With a number for a reason."""

        run_reason: pl.Int64 = pa.Field(nullable=True)  # type: ignore[assignment]

    said = " ".join(str(one) for one in problems_of([Product("readings", (), (replace(TARGET, model=Wrong),))]))
    assert "column run_reason is declared as Int64" in said
