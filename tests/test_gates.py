"""The gate of a chunk reads its staged files back and says exactly what is wrong with them."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandera.polars as pandera
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import LINEAGE, RUN_CLOCK, sla_row

from backfill_assets.declarations.checking.answers import answer_problems
from backfill_assets.declarations.checking.rules import false_row_rules, rule_problems
from backfill_assets.declarations.reconciliations import state_level
from backfill_assets.declarations.schema import Published, dtypes, row_rule
from backfill_assets.declarations.tallies import Tally
from backfill_assets.products.enforcement import CASE_SLA_DAILY
from backfill_assets.products.enforcement.schemas import ENDS, CaseSlaDaily, ends_of_clocks, measure_case_sla_daily
from backfill_assets.worker import chunk_gate as gates
from backfill_assets.worker import chunk_rules, tallying
from backfill_assets.worker.chunk_gate import gate_chunk, gate_chunks, gating
from backfill_assets.worker.chunk_rules import CHUNK_RULE, FILES_RULE, KEY_RULE, MEASURE_RULE, OUTLINE_RULE, ROWS_RULE
from backfill_assets.worker.gate_tasks import (
    GateResult,
    GateSpec,
    GateTask,
)
from backfill_assets.worker.references import import_path_of, imported_by_path
from backfill_assets.worker.violations import READ_RULE, SAMPLE_ROWS, require_read
from manifests.canonical import plain
from manifests.division import Division, by_range, by_value
from manifests.errors import EnvironmentRefused
from resources.spark.chunk_work import task_text, tasks_of

unhurried = settings(deadline=None)
SPEC = GateSpec(
    model=import_path_of(CaseSlaDaily),
    key=("case_id", "clock", "business_date"),
    day_column="business_date",
    lineage=LINEAGE,
    measure=import_path_of(measure_case_sla_daily),
)
OUTLINED = replace(SPEC, outline=import_path_of(ends_of_clocks), outline_columns=ENDS)
MARCH = (date(2012, 3, 1), date(2012, 3, 31))


def frame(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=dtypes(CaseSlaDaily))


def good_rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [sla_row(number) for number in range(first, first + count)]


def breached(number: int, **changes: Any) -> dict[str, Any]:
    """Return a valid row of a clock on the day of its breach."""
    day = date(2012, 3, 10)
    return sla_row(
        number,
        day,
        **{"breach_on": day, "sla_state": "BREACHED", "breach_at": datetime(2012, 3, 9, 23, tzinfo=UTC), **changes},
    )


def task(folder: Path, *files: pl.DataFrame, rows: int | None = None) -> GateTask:
    """Write each frame as a staged file of the chunk 2012-03."""
    paths = []
    for number, one in enumerate(files):
        path = folder / f"part-{number}.parquet"
        one.write_parquet(path)
        paths.append(str(path))
    return GateTask("2012-03", 1, *MARCH, tuple(paths), sum(one.height for one in files) if rows is None else rows)


def gate(folder: Path, *files: pl.DataFrame, rows: int | None = None) -> GateResult:
    return gate_chunk(SPEC, task(folder, *files, rows=rows))


def found(result: GateResult) -> dict[str, int]:
    """Return rule -> count of the violations, after checking what must hold of any failed gate."""
    assert not result.passed
    assert result.digest == ""
    assert all(0 < len(violation.sample) <= SAMPLE_ROWS for violation in result.violations), result.violations
    assert [violation.rule for violation in result.violations] == sorted({v.rule for v in result.violations})
    json.dumps(plain(result))
    return {violation.rule: violation.count for violation in result.violations}


# --- good chunks ------------------------------------------------------------------------------------------------------


def test_good_rows_pass_with_their_count_digest_and_measures(tmp_path: Path) -> None:
    result = gate(tmp_path, frame([*good_rows(3), breached(3)]))

    assert result.passed
    assert result.violations == []
    assert (result.chunk, result.attempt, result.rows) == ("2012-03", 1, 4)
    assert result.digest.startswith("rows-sha256-v1:")
    assert result.summary == "4 rows pass every rule"
    assert result.measures == [
        {"jurisdiction": "IT", "clock": "PAYMENT", "sla_state": "RUNNING", "rows": 3, "started": 0},
        {"jurisdiction": "IT", "clock": "PAYMENT", "sla_state": "BREACHED", "rows": 1, "started": 0},
    ]


def test_an_empty_chunk_passes_and_has_the_digest_of_no_rows(tmp_path: Path) -> None:
    without_file = gate(tmp_path)
    empty_file = gate(tmp_path, frame([]))

    assert without_file.passed
    assert empty_file.passed
    assert (without_file.rows, without_file.measures) == (0, [])
    assert without_file.digest == empty_file.digest


def test_rows_at_both_edges_of_the_chunk_are_in_it(tmp_path: Path) -> None:
    assert gate(tmp_path, frame([sla_row(0, MARCH[0]), sla_row(1, MARCH[1])])).passed


def test_nullable_columns_may_be_null(tmp_path: Path) -> None:
    assert gate(tmp_path, frame([sla_row(0, amount=None)])).passed


def test_an_unsorted_file_has_the_digest_of_the_sorted_one(tmp_path: Path) -> None:
    rows = frame(good_rows(50))
    unsorted = gate(tmp_path, rows.sample(fraction=1, shuffle=True, seed=7))

    assert unsorted.passed
    assert unsorted.digest == gate(tmp_path, rows).digest


def test_the_digest_leaves_lineage_out_so_that_runs_can_be_compared(tmp_path: Path) -> None:
    other = LINEAGE | {"run_id": "another-run", "produced_at": RUN_CLOCK + timedelta(days=1)}
    first = gate(tmp_path, frame(good_rows(3)))
    rows = frame([row | other for row in good_rows(3)])
    second = gate_chunk(GateSpec(SPEC.model, SPEC.key, SPEC.day_column, other, None), task(tmp_path, rows))

    assert second.passed
    assert second.digest == first.digest
    assert second.measures == []


def raising(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select("metre")


def no_frame(rows: pl.DataFrame) -> Any:
    return {"rows": rows.height}


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (raising, 'ColumnNotFoundError: unable to find column "metre"'),
        (no_frame, "TypeError: it returned a dict, and a polars DataFrame is wanted"),
    ],
)
def test_a_measure_or_outline_that_raises_is_named_and_hides_nothing(tmp_path: Path, function: Any, error: str) -> None:
    both = replace(OUTLINED, measure=import_path_of(function), outline=import_path_of(function))
    for spec, rules in (
        (replace(SPEC, measure=import_path_of(function)), [MEASURE_RULE]),
        (replace(OUTLINED, outline=import_path_of(function)), [OUTLINE_RULE]),
        (both, [MEASURE_RULE, OUTLINE_RULE]),
    ):
        (result,) = gate_chunks(spec, [task(tmp_path, frame(good_rows(3)))])
        assert list(found(result)) == rules
        assert all(violation.sample[0]["error"].startswith(error) for violation in result.violations)
        assert result.measures == [] or OUTLINE_RULE in rules


def test_a_chunk_in_several_files_has_the_digest_and_measures_of_one(tmp_path: Path) -> None:
    rows = frame([*good_rows(20), *[breached(number) for number in range(20, 30)]])
    whole = gate(tmp_path, rows)
    parts = gate(tmp_path, rows[23:], rows[:8], frame([]), rows[8:23])

    assert parts.passed
    assert (parts.rows, parts.digest) == (30, whole.digest)
    assert sorted(parts.measures, key=str) == sorted(whole.measures, key=str)


def test_unsorted_files_with_disjoint_keys_pass(tmp_path: Path) -> None:
    rows = frame(good_rows(20))
    parts = gate(tmp_path, rows[10:].reverse(), rows[:10].reverse())

    assert parts.passed
    assert parts.digest == gate(tmp_path, rows).digest


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_neither_order_nor_split_of_good_rows_changes_the_digest(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("staged")
    numbers = sorted(data.draw(st.sets(st.integers(0, 500), min_size=1, max_size=20)))
    rows = frame([sla_row(number, amount=Decimal(number)) for number in numbers])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(numbers)), max_size=3)))
    parts = [rows[start:end] for start, end in zip([0, *cuts], [*cuts, len(numbers)], strict=True)]
    shuffled = [part[data.draw(st.permutations(range(part.height)))] for part in data.draw(st.permutations(parts))]
    result = gate(folder, *shuffled)

    assert result.passed, result.summary
    assert result.digest == gate(folder, rows).digest
    assert result.rows == len(numbers)


# --- each rule, with the exact count ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"case_id": ""}, "case_id: str_length(1, None)"),
        ({"clock": "LUNCH"}, "clock: isin(('NOTIFICATION', 'PAYMENT', 'APPEAL'))"),
        ({"jurisdiction": ""}, "jurisdiction: str_length(1, None)"),
        ({"sla_state": "PAUSED"}, "sla_state: isin(('RUNNING', 'MET', 'BREACHED'))"),
        ({"jurisdiction": None}, "jurisdiction: not_nullable"),
        ({"days_open": 4}, "days_open counts from started_on"),
        ({"breach_on": date(2012, 3, 9)}, "the day lies between start and deadline"),
        ({"started_on": date(2012, 3, 11), "days_open": -1}, "the day lies between start and deadline"),
        ({"breach_on": date(2012, 3, 10)}, "on the deadline a clock is BREACHED, and only then"),
        ({"breach_at": datetime(2012, 3, 9, tzinfo=UTC)}, "breach_at is set exactly where the clock is BREACHED"),
        ({"run_id": "another-run"}, "run_id: constant restate-2012"),
        ({"processing_mode": "LIVE"}, "processing_mode: constant BACKFILL"),
        ({"transform_version": "1"}, "transform_version: constant 2"),
        ({"input_snapshot_id": 12}, "input_snapshot_id: constant 11"),
        ({"produced_at": RUN_CLOCK + timedelta(microseconds=1)}, "produced_at: constant 2024-05-01T12:00:00+00:00"),
        ({"run_id": None}, "run_id: not_nullable"),
    ],
)
def test_a_rule_that_rows_break_has_their_exact_count_and_a_few_of_them(
    tmp_path: Path, changes: dict[str, Any], rule: str
) -> None:
    bad = [sla_row(100 + number, **changes) for number in range(SAMPLE_ROWS + 2)]
    if "case_id" in changes:  # the key would not be unique
        bad = [sla_row(day=date(2012, 3, 10 + number), **changes) for number in range(SAMPLE_ROWS + 2)]
    result = gate(tmp_path, frame([*good_rows(10), *bad]))

    assert found(result)[rule] == len(bad)
    (violation,) = [violation for violation in result.violations if violation.rule == rule]
    assert len(violation.sample) == SAMPLE_ROWS
    assert {row["case_id"] for row in violation.sample} <= {row["case_id"] for row in bad}
    assert f"{rule}: {len(bad)}" in result.summary


def test_a_negative_number_of_days_is_a_violation(tmp_path: Path) -> None:
    rows = [sla_row(0, started_on=date(2012, 3, 12), days_open=-2)]

    assert found(gate(tmp_path, frame(rows)))["days_open: greater_than_or_equal_to(0)"] == 1


def test_a_breach_without_its_instant_is_a_violation(tmp_path: Path) -> None:
    result = gate(tmp_path, frame([breached(0), breached(1, breach_at=None), breached(2, breach_at=None)]))

    assert found(result) == {"breach_at is set exactly where the clock is BREACHED": 2}


@pytest.mark.parametrize("day", [date(2012, 2, 29), date(2012, 4, 1)])
def test_a_row_of_another_chunk_is_a_violation(tmp_path: Path, day: date) -> None:
    result = gate(tmp_path, frame([*good_rows(3), sla_row(7, day), sla_row(8, day)]))

    assert found(result) == {f"business_date: {CHUNK_RULE}, 2012-03-01 to 2012-03-31": 2}


@pytest.mark.parametrize("column", ["business_date", "case_id", "clock"])
def test_a_row_without_part_of_its_key_is_a_violation(tmp_path: Path, column: str) -> None:
    result = gate(tmp_path, frame([*good_rows(3), sla_row(7, **{column: None})]))

    assert found(result)[f"{column}: not_nullable"] == 1


def test_rows_with_the_same_key_are_all_counted(tmp_path: Path) -> None:
    twice = sla_row(1, amount=Decimal("1.00"))
    result = gate(tmp_path, frame([sla_row(0), sla_row(1), twice, sla_row(2), sla_row(3), sla_row(3), sla_row(3)]))

    assert found(result) == {KEY_RULE: 5}
    (violation,) = result.violations
    assert {row["case_id"] for row in violation.sample} == {"case-00001", "case-00003"}


def test_duplicates_are_found_in_unsorted_files_and_after_a_good_chunk(tmp_path: Path) -> None:
    assert gate(tmp_path, frame(good_rows(5))).passed
    assert found(gate(tmp_path, frame([sla_row(3), sla_row(1), sla_row(2), sla_row(1)]))) == {KEY_RULE: 2}
    assert gate(tmp_path, frame(good_rows(5))).passed


def test_several_broken_rules_are_all_told_with_their_own_rows(tmp_path: Path) -> None:
    rows = [*good_rows(5), sla_row(5, days_open=9), sla_row(6, run_id="x"), sla_row(7, run_id="x", days_open=9)]
    result = gate(tmp_path, frame(rows))

    assert found(result) == {"days_open counts from started_on": 2, "run_id: constant restate-2012": 2}
    samples = {violation.rule: violation.sample for violation in result.violations}
    assert [row["case_id"] for row in samples["run_id: constant restate-2012"]] == ["case-00006", "case-00007"]
    assert result.rows == 8


def test_violations_are_added_up_over_the_files_of_a_chunk(tmp_path: Path) -> None:
    first = [sla_row(number, days_open=9) for number in range(4)]
    second = [sla_row(number, days_open=9) for number in range(4, 8)]
    result = gate(tmp_path, frame(first), frame(second))

    assert found(result) == {"days_open counts from started_on": 8}
    assert len(result.violations[0].sample) == SAMPLE_ROWS


# --- columns ----------------------------------------------------------------------------------------------------------


def test_a_column_that_is_missing_is_a_violation(tmp_path: Path) -> None:
    result = gate(tmp_path, frame(good_rows(3)).drop("amount"))

    assert found(result) == {"column_in_dataframe": 1}
    assert result.violations[0].sample == [{"found": "amount"}]


def test_a_column_that_a_rule_compares_and_is_missing_is_a_violation(tmp_path: Path) -> None:
    assert "breach_on" in str(gate(tmp_path, frame(good_rows(3)).drop("breach_on")).violations)


@pytest.mark.parametrize("column", ["case_id", "business_date"])
def test_a_key_column_that_is_missing_is_a_violation(tmp_path: Path, column: str) -> None:
    rows = frame(good_rows(4)).drop(column)

    assert column in str(gate(tmp_path, rows).violations)
    assert column in str(gate(tmp_path, rows[:2], rows[2:]).violations)


def test_a_column_that_is_not_declared_is_a_violation(tmp_path: Path) -> None:
    result = gate(tmp_path, frame(good_rows(3)).with_columns(chunk=pl.lit("2012-03-01")))

    assert "chunk" in str(result.violations)
    assert found(result)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("days_open", pl.Int64()),
        ("days_open", pl.String()),
        ("input_snapshot_id", pl.String()),
        ("produced_at", pl.Datetime("us")),
        ("produced_at", pl.Datetime("ms", "UTC")),
        ("business_date", pl.Datetime("us")),
        ("business_date", pl.String()),
        ("case_id", pl.Categorical()),
        ("amount", pl.Float64()),
        ("amount", pl.Decimal(12, 3)),
    ],
)
def test_a_column_of_another_type_is_a_violation(tmp_path: Path, column: str, kind: pl.DataType) -> None:
    rows = frame(good_rows(3))
    other = (
        rows[column].dt.replace_time_zone(None)
        if kind == pl.Datetime("us") and column == "produced_at"
        else rows[column].cast(kind)
    )
    result = gate(tmp_path, rows.with_columns(other))

    assert any(rule.startswith(f"{column}: dtype") for rule in found(result)), result.summary


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_with_overlapping_key_ranges_are_a_violation(tmp_path: Path) -> None:
    rows = good_rows(20)
    result = gate(tmp_path, frame(rows[:12:2]), frame(rows[1:12:2]), frame(rows[12:]))

    assert found(result) == {FILES_RULE: 1}


def test_the_same_key_in_two_files_is_a_violation(tmp_path: Path) -> None:
    rows = good_rows(10)

    assert found(gate(tmp_path, frame(rows[:6]), frame(rows[5:]))) == {FILES_RULE: 1}


def test_the_same_file_twice_is_a_violation(tmp_path: Path) -> None:
    rows = frame(good_rows(10))

    assert FILES_RULE in found(gate(tmp_path, rows, rows))


@pytest.mark.parametrize("column", ["business_date", "case_id", "clock"])
def test_a_row_without_part_of_its_key_is_a_violation_in_a_chunk_of_several_files(tmp_path: Path, column: str) -> None:
    # nulls sort first: the file's first key is the one without
    first = [sla_row(0, **{column: None}), *good_rows(5, 1)]
    result = gate(tmp_path, frame(first), frame(good_rows(5, 6)))

    assert found(result)[f"{column}: not_nullable"] == 1


class Regional(Published):
    """A table with a key of which a part may be NULL."""

    case_id: str
    region: str = pandera.Field(nullable=True)
    business_date: pl.Date


@pytest.mark.parametrize(
    ("files", "broken"),
    [
        ([[("A", "N"), ("B", None)], [("B", "N"), ("C", None)]], {}),
        ([[("A", "N"), ("B", "N")], [("B", None), ("C", None)]], {FILES_RULE: 1}),
    ],
)
def test_files_of_a_key_that_may_be_null_are_held_against_each_other(
    tmp_path: Path, files: list[list[tuple[str, str | None]]], broken: dict[str, int]
) -> None:
    spec = GateSpec(import_path_of(Regional), ("case_id", "region"), SPEC.day_column, LINEAGE, None)
    frames = [
        pl.DataFrame([{**sla_row(0), "case_id": case, "region": region} for case, region in rows]).select(
            pl.col(name).cast(kind) for name, kind in dtypes(Regional).items()
        )
        for rows in files
    ]
    result = gate_chunk(spec, task(tmp_path, *frames))
    assert {one.rule: one.count for one in result.violations} == broken


class Undated(Published):
    """A table whose day may be NULL, as its model has it."""

    case_id: str
    business_date: pl.Date = pandera.Field(nullable=True)


@pytest.mark.parametrize("together", [1, 3])
def test_a_row_without_a_day_is_a_violation_whatever_the_model_says_of_nulls(tmp_path: Path, together: int) -> None:
    spec = GateSpec(import_path_of(Undated), ("case_id",), SPEC.day_column, LINEAGE, None)
    rows = pl.DataFrame(good_rows(3)).select(pl.col(name).cast(kind) for name, kind in dtypes(Undated).items())
    undated = rows.with_columns(business_date=pl.when(pl.col("case_id") != rows["case_id"][1]).then("business_date"))
    one, *others = gate_chunks(spec, tasks(tmp_path, [undated, rows, rows][:together]))
    assert found(one) == {"business_date: not_nullable": 1}
    assert all(other.passed for other in others)


def test_a_missing_file_is_a_violation(tmp_path: Path) -> None:
    one = task(tmp_path, frame(good_rows(3)))
    Path(one.paths[0]).unlink()
    result = gate_chunk(SPEC, one)

    assert found(result) == {READ_RULE: 1}
    assert one.paths[0] in str(result.violations[0].sample)


@pytest.mark.parametrize("files", [1, 2])
def test_a_file_that_could_not_be_read_just_now_gives_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    def stale(_: Path) -> bytes:
        raise OSError(errno.ESTALE, "Stale file handle")

    one = task(tmp_path, *[frame(good_rows(3, 3 * number)) for number in range(files)])
    require_read(gate_chunk(SPEC, one).violations)
    monkeypatch.setattr(Path, "read_bytes", stale)
    with pytest.raises(EnvironmentRefused, match="nothing was judged"):
        require_read(gate_chunk(SPEC, one).violations)


def test_a_missing_file_among_others_is_a_violation(tmp_path: Path) -> None:
    rows = frame(good_rows(9))
    one = task(tmp_path, rows[:3], rows[3:6], rows[6:])
    Path(one.paths[1]).unlink()

    assert found(gate_chunk(SPEC, one)) == {READ_RULE: 1}


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("others", [False, True])
def test_a_file_cut_short_is_a_violation(tmp_path: Path, share: float, others: bool) -> None:
    rows = frame(good_rows(200))
    one = task(tmp_path, rows[:100], *([rows[100:]] if others else []))
    path = Path(one.paths[0])
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * share)])

    assert found(gate_chunk(SPEC, one)) == {READ_RULE: 1}


def test_a_file_that_is_no_parquet_is_a_violation(tmp_path: Path) -> None:
    one = task(tmp_path, frame(good_rows(3)))
    Path(one.paths[0]).write_text("case_id,clock\n")

    assert found(gate_chunk(SPEC, one)) == {READ_RULE: 1}


@pytest.mark.parametrize("staged", [0, 9, 11])
def test_another_number_of_rows_than_was_staged_is_a_violation(tmp_path: Path, staged: int) -> None:
    result = gate(tmp_path, frame(good_rows(10)), rows=staged)

    assert found(result) == {ROWS_RULE: abs(staged - 10)}
    assert result.violations[0].sample == [{"staged": staged, "read": 10}]


def test_a_chunk_that_lost_all_its_files_is_a_violation(tmp_path: Path) -> None:
    assert found(gate(tmp_path, rows=10)) == {ROWS_RULE: 10}


def test_a_folder_name_of_the_staging_is_not_read_as_a_column(tmp_path: Path) -> None:
    folder = tmp_path / "chunk=2012-03-01"
    folder.mkdir()

    assert gate(folder, frame(good_rows(3))).passed
    assert gate(folder, frame(good_rows(3)), frame(good_rows(3, 3))).passed


# --- to the workers and back ------------------------------------------------------------------------------------------


def test_a_task_comes_back_from_json_as_it_was(tmp_path: Path) -> None:
    one = task(tmp_path, frame(good_rows(1)))

    assert list(tasks_of(GateTask, [pa.RecordBatch.from_pydict({"task": [task_text(one)]})])) == [one]


def test_a_worker_gates_the_tasks_of_its_batches_and_sends_a_result_each(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    tasks = [task(good, frame(good_rows(3))), task(bad, frame([sla_row(0, days_open=9), breached(1, breach_at=None)]))]
    work = gating(SPEC)
    answers = list(work.batches([pa.RecordBatch.from_pydict({"task": [task_text(one) for one in tasks]})]))

    results = work.results(text for answer in answers for text in answer.column("result").to_pylist())
    assert {tuple(answer.schema.names) for answer in answers} == {("result",)}
    assert results == [gate_chunk(SPEC, one) for one in tasks]
    assert [result.passed for result in results] == [True, False]


def test_a_worker_imports_what_it_needs_by_name() -> None:
    assert imported_by_path(import_path_of(CaseSlaDaily)) is CaseSlaDaily
    assert imported_by_path(import_path_of(measure_case_sla_daily)) is measure_case_sla_daily


def test_what_a_worker_could_not_import_is_refused() -> None:
    def local(rows: pl.DataFrame) -> pl.DataFrame:
        return rows

    with pytest.raises((TypeError, AttributeError)):
        import_path_of(local)


# --- several chunks at once -------------------------------------------------------------------------------------------


class Summed(Published):
    """A table with rules that look at all rows of a chunk, one of them under the name of a rule about one value."""

    case_id: str
    clock: str
    business_date: pl.Date
    amount: pl.Int64 = pandera.Field(ge=0)

    @pandera.check("amount", name="isin")
    def _at_least_ten_in_all(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select(pl.col("amount").sum() >= 10)

    @pandera.dataframe_check(name="at most twenty in all")
    def _at_most_twenty_in_all(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select(pl.col("amount").sum() <= 20)


class AnyPlace(Published):
    """A table whose rows may be of no place."""

    case_id: str
    clock: str
    business_date: pl.Date
    jurisdiction: str = pandera.Field(nullable=True)


def tasks(folder: Path, frames: Sequence[pl.DataFrame]) -> list[GateTask]:
    made = []
    for number, one in enumerate(frames):
        (folder / str(number)).mkdir()
        made.append(replace(task(folder / str(number), one), outline=str(folder / "outlines" / f"{number}.parquet")))
    return made


OTHERS = {
    "value": [sla_row(0, clock="LUNCH"), sla_row(1)],
    "null": [sla_row(0, jurisdiction=None)],
    "lineage": [sla_row(0), sla_row(1, run_id="another-run")],
    "row": [sla_row(0, days_open=4)],
    "chunk": [sla_row(0, date(2012, 4, 1))],
    "twice": [sla_row(0), sla_row(0)],
    "unsorted": [sla_row(1), sla_row(0)],
    "empty": [],
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_chunk_is_judged_among_others_as_it_is_alone(tmp_path: Path, other: str) -> None:
    frames = [frame(good_rows(5)), frame(OTHERS[other]), frame([*good_rows(3), breached(3)])]
    made = tasks(tmp_path, frames)
    together = list(gate_chunks(OUTLINED, made))
    alone = [gate_chunk(OUTLINED, one) for one in made]

    assert together == alone
    assert [result.passed for result in together] == [True, other in {"unsorted", "empty"}, True]
    assert [bool(result.outline) for result in together] == [result.passed for result in together]


def test_a_chunk_that_cannot_be_read_or_has_other_columns_is_judged_among_others_as_alone(tmp_path: Path) -> None:
    made = tasks(tmp_path, [frame(good_rows(5)), frame(good_rows(4)), frame(good_rows(3)).drop("amount")])
    Path(made[1].paths[0]).write_bytes(b"no parquet")
    first, unreadable, other = gate_chunks(SPEC, made)

    assert first == gate_chunk(SPEC, made[0])
    assert found(unreadable) == {READ_RULE: 1}
    assert other == gate_chunk(SPEC, made[2])
    assert not other.passed


def test_rules_about_single_rows_are_applied_to_a_bundle_and_not_to_each_chunk_again() -> None:
    once = chunk_rules.row_rules(SPEC)
    rules = {name: [check.name for check in column.checks] for name, column in once.columns.items() if column.checks}
    assert rules == {
        "case_id": ["str_length"],
        "clock": ["isin"],
        "jurisdiction": ["str_length"],
        "days_open": ["greater_than_or_equal_to"],
        "sla_state": ["isin"],
        **{name: ["equal_to"] for name in LINEAGE},
    }
    assert len(once.checks) == 4  # they compare columns of a row
    assert chunk_rules.schema_for(SPEC, *MARCH, rows_pass=True, keys_pass=True, days_pass=True) is None
    each = chunk_rules.schema_for(SPEC, *MARCH, rows_pass=True, keys_pass=False, days_pass=False)
    assert each is not None
    assert {name: [check.error for check in column.checks] for name, column in each.columns.items()} == {
        "business_date": [f"{CHUNK_RULE}, 2012-03-01 to 2012-03-31"]
    }
    assert (each.checks, each.unique) == ([], list(SPEC.key))


def test_a_chunk_whose_rows_pass_with_others_is_held_against_its_other_rules_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    check = gates.check_rows
    monkeypatch.setattr(
        gates, "check_rows", lambda schema, one, broken: calls.append(one.height) or check(schema, one, broken)
    )
    elsewhere = frame([sla_row(0, date(2012, 4, 1), started_on=date(2012, 3, 30), days_open=2)])
    made = tasks(tmp_path, [frame(good_rows(5)), frame([sla_row(0), sla_row(0)]), elsewhere, frame(good_rows(3))])
    results = [{} if result.passed else found(result) for result in gate_chunks(SPEC, made)]

    assert results == [{}, {KEY_RULE: 2}, {f"business_date: {CHUNK_RULE}, 2012-03-01 to 2012-03-31": 1}, {}]
    assert calls == [11, 2, 1]


def test_a_bundle_takes_as_many_queries_however_many_chunks_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(SPEC, measure=None, tallies=(Tally(by=("clock",), sums=("amount",)),))
    queries: list[str] = []
    real = pl.LazyFrame.collect
    monkeypatch.setattr(pl.LazyFrame, "collect", lambda self, **how: queries.append("") or real(self, **how))

    def taken(name: str, chunks: int) -> int:
        (tmp_path / name).mkdir()
        made = tasks(tmp_path / name, [frame(good_rows(3, 3 * number)) for number in range(chunks)])
        queries.clear()
        assert all(result.passed for result in gate_chunks(spec, made))
        return len(queries)

    assert taken("few", 3) == taken("many", 30)


class Counted(Published):
    """A table with a number of 32 bits and a time of day."""

    case_id: str
    clock: str
    business_date: pl.Date
    number: pl.Int32
    at: pl.Time


def counted_rows(*numbers: int, nanoseconds: int = 0) -> pl.DataFrame:
    """Return rows of the table, one a number; of a number that is there twice the keys are, too."""
    rows = pl.DataFrame(good_rows(max(numbers) + 1))[list(numbers)]
    at = pl.Series([nanoseconds] * rows.height, dtype=pl.Int64).cast(pl.Time)
    number = pl.Series(list(numbers), dtype=pl.Int32)
    return rows.with_columns(number=number, at=at).select(list(dtypes(Counted)))


COUNTED = replace(SPEC, model=import_path_of(Counted), measure=None)


@pytest.mark.parametrize("division", [by_range("number", (3_000_000_000,)), by_value("number", (5, 3_000_000_000))])
def test_a_part_that_its_column_cannot_hold_is_judged_by_itself(tmp_path: Path, division: Division) -> None:
    part = division.names[0]
    made = [replace(one, part=part) for one in tasks(tmp_path, [counted_rows(0, 5), counted_rows(5)])]
    other = [made[0], replace(made[1], part=division.names[1])]
    spec = replace(COUNTED, division=division)
    for some in (made, other):
        assert list(gate_chunks(spec, some)) == [gate_chunk(spec, one) for one in some]


def test_what_cannot_be_digested_of_a_chunk_that_breaks_a_rule_is_said_of_no_other(tmp_path: Path) -> None:
    made = tasks(tmp_path, [counted_rows(0, 1), counted_rows(2, 2, nanoseconds=7)])
    together = list(gate_chunks(COUNTED, made))
    assert together == [gate_chunk(COUNTED, one) for one in made]
    assert [result.passed for result in together] == [True, False]
    assert KEY_RULE in found(together[1])


def test_no_more_groups_are_taken_out_of_a_frame_than_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallying, "MOST_GROUPS", 3)
    taken: list[int] = []
    real = tallying.Counted.add_groups

    def add_groups(self: Any, tally: Tally, groups: Sequence[Any], schema: pl.Schema) -> None:
        taken.append(len(groups))
        real(self, tally, groups, schema)

    monkeypatch.setattr(tallying.Counted, "add_groups", add_groups)
    spec = replace(SPEC, tallies=(Tally(by=("case_id",), sums=("amount",)),))
    made = tasks(tmp_path, [frame(good_rows(2)), frame(good_rows(9)), frame(good_rows(3))])
    together = list(gate_chunks(spec, made))
    assert together == [gate_chunk(spec, one) for one in made]
    assert [next(iter(result.tallies.values()))["too_many"] for result in together] == [0, 9, 0]
    assert max(taken) == 3


def test_chunks_of_more_rows_than_are_judged_together_are_judged_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tasks(tmp_path, [frame(good_rows(3, 3 * number)) for number in range(4)])
    expected = [gate_chunk(SPEC, one) for one in made]
    at_once: list[int] = []
    real = gates.held_of
    monkeypatch.setattr(gates, "held_of", lambda raw: at_once.append(1) or real(raw))
    monkeypatch.setattr(gates, "TOGETHER_ROWS", 11)
    assert list(gate_chunks(SPEC, made)) == expected
    assert at_once == []
    monkeypatch.setattr(gates, "TOGETHER_ROWS", 12)
    assert list(gate_chunks(SPEC, made)) == expected
    assert len(at_once) == 4


def measured_and_taken_apart(rows: pl.DataFrame) -> pl.DataFrame:
    """Change the rows that are given, and raise."""
    rows.drop_in_place("amount")
    raise ValueError("taken apart")


def test_a_measure_that_changes_its_rows_before_it_raises_changes_no_verdict(tmp_path: Path) -> None:
    spec = replace(SPEC, measure=import_path_of(measured_and_taken_apart))
    made = tasks(tmp_path, [frame(good_rows(3)), frame(good_rows(2))])
    together = list(gate_chunks(spec, made))
    assert together == [gate_chunk(spec, one) for one in made]
    assert [found(result) for result in together] == [{MEASURE_RULE: 1}] * 2


def measured_but_of_two_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Measure rows, but for two."""
    if rows.height == 2:
        raise ValueError("two rows")
    return rows.group_by("clock").agg(pl.len().cast(pl.Int64).alias("rows"))


def test_what_a_measure_raises_of_one_chunk_is_said_of_that_one(tmp_path: Path) -> None:
    spec = replace(SPEC, measure=import_path_of(measured_but_of_two_rows))
    made = tasks(tmp_path, [frame(good_rows(number)) for number in (3, 2, 4)])
    together = list(gate_chunks(spec, made))

    assert together == [gate_chunk(spec, one) for one in made]
    assert [result.measures for result in together if result.passed] == [
        [{"clock": "PAYMENT", "rows": number}] for number in (3, 4)
    ]
    assert found(together[1]) == {MEASURE_RULE: 1}


PARTS = {
    "values": (by_value("jurisdiction", ["IT", "NZ"]), {"IT": "IT", "NZ": "NZ"}),
    "NULL": (by_value("jurisdiction", ["IT", None]), {"IT": "IT", "_null": None}),
    "ranges": (Division("jurisdiction", bounds=("M",)), {"below-M": "IT", "from-M": "NZ"}),
    "buckets": (Division("jurisdiction", buckets=8), {}),
}


@pytest.mark.parametrize("parts", PARTS)
def test_each_chunk_of_a_divided_table_is_held_against_its_own_part(tmp_path: Path, parts: str) -> None:
    division, values = PARTS[parts]
    spec = replace(SPEC, model=import_path_of(AnyPlace), measure=None, division=division)
    names = list(division.names)
    places = pl.Series("jurisdiction", [values.get(name, "IT") for name in names], dtype=pl.String)
    rows = pl.DataFrame(good_rows(len(names))).with_columns(places).select(list(dtypes(AnyPlace)))
    frames = [rows.slice(number, 1) for number in range(len(names))]
    made = [replace(one, part=name) for one, name in zip(tasks(tmp_path, frames), names, strict=True)]
    other = [replace(one, part=name) for one, name in zip(made, [*names[1:], names[0]], strict=True)]
    for some, right in ((made, len(values) or 1), (other, 0 if values else 1), (made[:1] + other[1:], None)):
        together = list(gate_chunks(spec, some))
        assert together == [gate_chunk(spec, one) for one in some]
        assert right is None or sum(result.passed for result in together) == right


def test_bundles_are_bounded_and_chunks_of_several_files_stand_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundles: list[int] = []
    whole = gates._gate_bundle
    monkeypatch.setattr(gates, "BUNDLE_ROWS", 10)
    monkeypatch.setattr(gates, "_gate_bundle", lambda spec, bundle: bundles.append(len(bundle)) or whole(spec, bundle))
    made = tasks(tmp_path, [frame(good_rows(number)) for number in (4, 6, 1, 30, 2, 3)])
    (tmp_path / "two").mkdir()
    made.append(task(tmp_path / "two", frame(good_rows(3)), frame(good_rows(3, 3))))
    results = list(gate_chunks(SPEC, made))

    assert sorted(result.rows for result in results) == [1, 2, 3, 4, 6, 6, 30]
    assert all(result.passed for result in results)
    assert bundles == [2, 1, 1, 2]


def test_a_rule_about_several_rows_is_never_applied_to_several_chunks(tmp_path: Path) -> None:
    spec = GateSpec(import_path_of(Summed), SPEC.key, SPEC.day_column, LINEAGE, None)

    def chunk(*amounts: int) -> pl.DataFrame:
        rows = [{**sla_row(number), "amount": amount} for number, amount in enumerate(amounts)]
        return pl.DataFrame(rows, schema_overrides=dtypes(Summed)).select(list(dtypes(Summed)))

    low, right, high = gate_chunks(spec, tasks(tmp_path, [chunk(4, 5), chunk(8, 9), chunk(20, 1)]))
    assert found(low) == {"amount: isin": 1}
    assert right.passed
    assert set(found(high)) == {"at most twenty in all"}


def test_a_row_rule_that_sums_rows_up_is_told_from_those_of_one_row() -> None:
    class Wrong(CaseSlaDaily):
        @row_rule("some money in all")
        def _some_money_in_all(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805
            return data.lazyframe.select(pl.col("amount").sum() > 0)

    assert false_row_rules(Wrong) == ["some money in all"]
    assert false_row_rules(CaseSlaDaily) == []


COUNT = pl.col("amount")


@pytest.mark.parametrize(
    ("rule", "is_of_one_row"),
    [
        (COUNT.shift(1) >= COUNT, False),
        (COUNT.diff() > 0, False),
        (COUNT.cum_sum() > 0, False),
        (COUNT.sum().over("case_id") > 0, False),
        (COUNT.rank() > 1, False),
        (COUNT.is_unique(), False),
        (COUNT.is_first_distinct(), False),
        (COUNT.sort() > 0, False),
        (COUNT.reverse() > 0, False),
        (COUNT.forward_fill() > 0, False),
        (COUNT.head(1) > 0, False),
        (COUNT.max() > COUNT, False),
        (pl.lit(True), False),
        (COUNT > 0, True),
        (COUNT.is_null() | (pl.col("case_id").str.len_chars() > 3), True),
        (pl.col("case_id").str.to_date() > date(2020, 1, 1), True),  # most texts are none
        (pl.all_horizontal(COUNT > 0, pl.col("case_id") != ""), True),
    ],
    ids=str,
)
def test_a_row_rule_has_the_same_answer_for_a_row_alone(rule: pl.Expr, *, is_of_one_row: bool) -> None:
    class Ruled(Published):
        case_id: str
        amount: pl.Int64

        @row_rule("as it is")
        def _rule(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805
            return data.lazyframe.select(rule)

    assert [one.what for one in rule_problems({"silver.ruled": Ruled})] == (
        [] if is_of_one_row else ["Ruled declares as row_rule what looks at several rows: as it is"]
    )


def test_rules_that_no_verdict_could_tell_apart_and_values_that_are_a_text_are_named() -> None:
    class Named(Published):
        kind: str = pandera.Field(isin="CLASSIC", notin=("X",))  # pandera takes each for its letters

        @row_rule("it is one")
        def _one(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805
            return data.lazyframe.select(pl.col("kind") != "")

        @row_rule("it is one")
        def _other(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805
            return data.lazyframe.select(pl.col("kind") != "x")

        @pandera.dataframe_check
        def _nothing(cls, data: pandera.PolarsData) -> None:  # noqa: N805
            data.lazyframe.select(pl.col("kind") != "")

    found = [one.what for one in rule_problems({"silver.named": Named})]
    assert [one.partition(" of Named ")[0] for one in found] == [
        "the rule 'kind: isin'",
        "the rule 'kind: notin'",
        "the rule '_nothing'",
        "Named has 2 rules of the name 'it is one'",
    ]


@pytest.mark.parametrize("name", [lambda _cls, data: data.lazyframe, "", " "])
def test_a_row_rule_without_a_name_is_refused_where_it_is_declared(name: Any) -> None:
    with pytest.raises(TypeError, match="a row_rule has a name"):
        row_rule(name)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda frame: frame.select(pl.col("amuont") > 0), 'ColumnNotFoundError: unable to find column "amuont"'),
        (lambda _: {}["x"], "KeyError: 'x'"),
        (lambda frame: frame.select(pl.col("amount") * 2), "TypeError: it returns Decimal"),
        (
            lambda frame: frame.select(pl.col("amount") > 0, pl.col("case_id") > ""),
            "TypeError: it returns Boolean and Boolean",
        ),
        (lambda _: True, "TypeError: it returns bool"),
        (
            lambda frame: frame.select(pl.col("amount").map_batches(lambda one: one > one[0], return_dtype=pl.Boolean)),
            "IndexError",
        ),
    ],
)
def test_a_row_rule_that_cannot_be_answered_is_refused_in_words(answer: Any, said: str) -> None:
    class Wrong(CaseSlaDaily):
        @row_rule("odd")
        def _odd(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805
            return answer(data.lazyframe)

    (problem,) = rule_problems({"silver.wrong": Wrong})
    assert said in problem.what
    assert "\n" not in problem.what
    assert "tests/test_gates.py:" in problem.where or problem.where == "silver.wrong: model"


def test_a_rule_of_a_field_that_cannot_be_asked_of_its_type_is_named_with_its_column() -> None:
    class Wrong(Published):
        meter_id: str = pandera.Field(ge=1)
        day: pl.Date
        amount: pl.Int64 = pandera.Field(gt="0", str_length={"max_value": 3})
        share: pl.Int64 = pandera.Field(ge=0, isin=(1, 2), nullable=True)
        city: str = pandera.Field(str_matches="x", isin=["x"])

        @pandera.check("city")
        def _long(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805
            return data.lazyframe.select(pl.col("city") > 3)

        @pandera.dataframe_check
        def _first(cls, data: pandera.PolarsData) -> bool:  # noqa: N805 - it has no answer where there is no row
            return bool(data.lazyframe.collect()["amount"][0] > 0)

        @pandera.dataframe_check
        def _by_rows(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805 - nor here
            return pl.DataFrame(data.lazyframe.collect().to_dicts()).lazy().select(pl.col("amount") > 0)

        @pandera.dataframe_check
        def _ends(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805 - nor here
            raise SystemExit(str(data))

        @pandera.dataframe_check
        def _of_values(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805 - of no row it is a frame of Float64
            return pl.LazyFrame({"ok": np.array([one > 0 for one in data.lazyframe.collect()["amount"]])})

        @pandera.dataframe_check
        def _number(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805
            return data.lazyframe.select("amount")

        @pandera.dataframe_check
        def _all(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805
            return data.lazyframe.select(pl.col("amuont").sum() > 0)

    found = [one.what.partition(" of Wrong ")[0] for one in rule_problems({"silver.wrong": Wrong})]
    assert found == [
        "the rule 'meter_id: greater_than_or_equal_to'",
        "the rule 'amount: greater_than'",
        "the rule 'amount: str_length'",
        "the rule 'city: _long'",
        "the rule '_ends'",
        "the rule '_number'",
        "the rule '_all'",
    ]
    assert [*rule_problems(dict(CASE_SLA_DAILY.models))] == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda rows: rows.select(rows=pl.len(), amount=pl.col("amount").sum()), None),
        (lambda rows: rows.group_by("clock").agg(rows=pl.len()), None),
        (lambda rows: pl.from_pandas(rows.to_pandas().groupby("clock")["amount"].sum().reset_index()), None),
        (lambda rows: pl.DataFrame({"sum": [rows["amount"].to_numpy().sum()]}), None),
        # what depends on the values is the gates'
        (lambda rows: rows.select(rows=pl.len(), day=pl.col("clock").first().str.to_date()), None),
        (lambda rows: pl.DataFrame({"first": [rows["clock"].cast(pl.Int64)[0]]}), None),
        (lambda rows: pl.DataFrame([{"clock": one} for one in rows["clock"] if one == "COMPLAINT"]), None),
        (lambda rows: rows.pivot("clock", index="amount", values="amount").select("COMPLAINT"), None),
        (lambda rows: rows.select(rows=pl.len(), beyond=pl.lit(float("inf")).cast(pl.Decimal(4, 2))), None),
        (lambda _: pl.DataFrame(), None),
        (
            lambda rows: rows.groupby("clock"),
            "measure raises AttributeError: 'DataFrame' object has no attribute 'groupby'",
        ),
        (lambda _: zzz, "measure raises NameError: name 'zzz' is not defined"),  # type: ignore[name-defined] # noqa: F821
        (lambda rows: rows.select(rows=pl.len().cast(pl.String)), "measure returns no sum: rows (String)"),
        (
            lambda rows: rows.select(rows=pl.len(), amount=pl.col("amount").cast(pl.Float64).sum()),
            "measure returns amount (Float64); count cents or thousandths where it is a sum",
        ),
        (
            lambda rows: rows.select(rows=pl.len(), at=pl.lit(RUN_CLOCK.replace(tzinfo=None))),
            "measure returns at (Datetime(time_unit='us', time_zone=None)); count cents or thousandths where it is a sum",
        ),
        (lambda rows: rows.lazy(), "measure returns a LazyFrame"),
        (lambda rows: rows.height, "measure returns a int"),
        (lambda rows: rows.select("amuont"), 'measure raises ColumnNotFoundError: unable to find column "amuont"'),
    ],
)
def test_a_measure_that_nothing_could_be_compared_by_is_refused_before_anything_is_computed(
    answer: Any, said: str | None
) -> None:
    class Measured(Published):
        clock: str
        amount: pl.Int64

    target = replace(CASE_SLA_DAILY, model=Measured, measure=answer, outline=None, reconciliations=())
    assert [one.what.partition("; did")[0] for one in answer_problems(target)] == ([] if said is None else [said])


@pytest.mark.parametrize(
    ("measure", "said"),
    [
        (lambda rows: rows.group_by("clock").agg(rows=pl.len(), amount=pl.col("amount").sum()), []),
        (
            lambda rows: rows.select(rows=pl.len(), amuont=pl.col("amount").sum()),
            ["measure returns no clock, amount, which gate totals looks for: it has rows, amuont"],
        ),
        (lambda rows: rows.pivot("clock", index="day", values="amount", aggregate_function="sum"), []),
        (lambda rows: rows.select(pl.len().alias(f"rows_{rows['clock'].first()}")), []),
        (
            lambda rows: rows.select("amount", rows=pl.len()) if rows["amount"][0] > 0 else rows.select(rows=pl.len()),
            [],
        ),
        (None, ["gate totals adds up clock, amount of what `measure` has counted, and {} declares no measure"]),
    ],
)
def test_a_gate_adds_up_what_measure_returns(measure: Any, said: list[str]) -> None:
    """Of columns that are named by values nothing is said: other rows have others."""

    class Measured(Published):
        clock: str
        day: pl.Date
        amount: pl.Int64

    gate = state_level(
        "totals", "x", slices=("chunk", "clock"), measures=("amount",), expected=lambda _: (), relative=False
    )
    target = replace(CASE_SLA_DAILY, model=Measured, measure=measure, outline=None, reconciliations=(gate,))
    assert [one.what for one in answer_problems(target)] == [one.format(target.name) for one in said]
    found = state_level(
        "totals", "x", slices=("clock",), measures=("amount",), expected=lambda _: (), found=lambda _: ()
    )
    assert [*answer_problems(replace(target, reconciliations=(found,), measure=None))] == []


def test_what_a_measure_prints_is_not_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    def measure(rows: pl.DataFrame) -> pl.DataFrame:
        print("measuring")
        return rows.select(rows=pl.len())

    assert [*answer_problems(replace(CASE_SLA_DAILY, measure=measure, outline=None, reconciliations=()))] == []
    assert capsys.readouterr() == ("", "measuring\n")


def test_an_outline_that_leaves_out_its_columns_is_refused_before_anything_is_computed() -> None:
    outline = replace(CASE_SLA_DAILY.outline, rows=lambda rows: rows.select("case_id"), columns=("case_id", "clock"))
    assert [one.what for one in answer_problems(replace(CASE_SLA_DAILY, outline=outline))] == [
        "outline.rows returns no clock"
    ]
    assert [*answer_problems(CASE_SLA_DAILY)] == []


def test_the_outline_has_the_first_and_last_day_of_each_clock(tmp_path: Path) -> None:
    first = sla_row(0, date(2012, 3, 1), started_on=date(2012, 3, 1), days_open=0)
    one = tasks(tmp_path, [frame([first, sla_row(1), breached(2)])])[0]
    result = gate_chunk(OUTLINED, one)

    outline = pl.read_parquet(result.outline)
    assert outline.columns == list(ENDS)
    assert outline["case_id"].to_list() == [first["case_id"], breached(2)["case_id"]]
