"""What the gates of `declarations.standard` find in counts that are given to them, and which of their arguments are refused."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, cast

import pandera.polars as pa
import polars as pl
import pytest

import backfill_assets as ba
from backfill_assets.declarations.checking.products import problems_of
from backfill_assets.declarations.sources import sources_of
from backfill_assets.declarations.standard import table_files
from backfill_assets.declarations.tallies import ChunkRows, Tallied, Tally, tallied_of
from backfill_assets.declarations.target import Finding
from backfill_assets.worker import tallying
from backfill_assets.worker.tallying import Counted
from manifests.chunks import cut
from manifests.division import Division

MONTHS = {chunk.key: chunk for chunk in cut(ba.Chunking.MONTH, date(2020, 1, 1), date(2020, 6, 30))}
Rows = Mapping[str, pl.DataFrame | None]


class Fake:
    """Counts of rows that a test has, made by the worker's own function."""

    def __init__(self, after: Rows, accepted: Rows) -> None:
        self._after, self._accepted = after, accepted

    def computed(self, tally: Tally) -> dict[str, Tallied]:
        return self.after(tally)

    def after(self, tally: Tally) -> dict[str, Tallied]:
        return {key: counted(tally, rows) for key, rows in self._after.items() if rows is not None}

    def accepted(self, tally: Tally, before: int = 0) -> dict[str, Tallied | None]:
        del before
        return {key: None if rows is None else counted(tally, rows) for key, rows in self._accepted.items()}


def counted(tally: Tally, *files: pl.DataFrame) -> Tallied:
    found = Counted((tally,))
    for rows in files:
        found.add(rows)
    return tallied_of(tally, found.as_record()[tally.name])


def judged(
    gate: ba.Reconciliation,
    after: Rows,
    accepted: Rows | None = None,
    *,
    target: ba.TargetTable | None = None,
    **tolerances: float,
) -> Finding:
    """Have a gate judge chunks whose rows are these, and were those."""
    before = accepted or {}
    rows = {
        key: ChunkRows(0 if before.get(key) is None else before[key].height, 0 if one is None else one.height)  # type: ignore[union-attr]
        for key, one in after.items()
    }
    transform = cast("Any", type("Transform", (), {"chunks": tuple(MONTHS[key] for key in after)}))
    context = ba.ReconciliationContext(
        transform=transform,
        source=cast("Any", None),
        source_rows=0,
        source_last_day=cast("Any", None),
        staged=cast("Any", None),
        measures=[],
        after=[],
        accepted={key: None if before.get(key) is None else [] for key in after},
        tolerances=dict(gate.tolerances) | tolerances,
        shared=cast("Any", None),
        rows=lambda: rows,
        tallies=Fake(after, before),
        target=target or TARGET,
    )
    return gate.check(context)


class Invoices(ba.Published):
    """An invoice and its day."""

    invoice: str = pa.Field()
    day: date = pa.Field()
    region: str = pa.Field(nullable=True)
    amount: pl.Decimal(12, 2) = pa.Field(nullable=True)  # type: ignore[valid-type]
    lines: pl.Int64 = pa.Field()
    is_paid: bool = pa.Field(nullable=True)


class Events(pa.DataFrameModel):
    """What was billed."""

    invoice: str = pa.Field()
    at: ba.Instant = pa.Field()
    number: pl.Int32 = pa.Field()


def transform(inputs: ba.Inputs, _context: ba.TransformContext) -> Any:
    return inputs.source


SOURCE = ba.InputTable("bronze.events", "What was billed.", Events, ("team:billing",), partition_by="at")
TARGET = ba.TargetTable(
    name="silver.invoices",
    description="An invoice.",
    model=Invoices,
    key=("invoice", "day"),
    day_column="day",
    chunking=ba.Chunking.MONTH,
    chunks_from="2020-01",
    chunks_until="2020-12",
    source=SOURCE.name,
    source_time_column="at",
    transform="invoices",
    versions={"1": ba.TransformVersion(transform)},
    owners=("olga@example.org",),
)


class LongInvoices(Invoices):
    """An invoice with a figure of 38 digits."""

    big: pl.Decimal(38, 18) = pa.Field()  # type: ignore[valid-type]


LONG = replace(TARGET, model=LongInvoices)
BY_REGION = ba.ByValue("region", ("N", "S"))


def invoices(states: Mapping[str | None, int], amount: str | None = "10.00") -> pl.DataFrame:
    """Return so many invoices of each region."""
    regions = [region for region, number in states.items() for _ in range(number)]
    return pl.DataFrame(
        {"region": regions, "amount": [amount] * len(regions), "lines": range(len(regions))},
        schema={"region": pl.String, "amount": pl.String, "lines": pl.Int64},
    ).with_columns(pl.col("amount").cast(pl.Decimal(12, 2)))


# --- how rows are counted -------------------------------------------------------------------------------------------


def test_a_tally_of_several_files_is_that_of_one_with_all_their_rows() -> None:
    tally = Tally(by=("region",), nulls=("amount",), sums=("lines", "amount"))
    one, two = invoices({"N": 3, None: 2}), invoices({"S": 1, "N": 4}, amount=None)
    assert counted(tally, one, two) == counted(tally, pl.concat([one, two]))
    north = counted(tally, one, two).groups["N",]
    assert (north.rows, north.nulls["amount"], str(north.sums["amount"]), int(north.sums["lines"])) == (
        7,
        4,
        "30.00",
        13,
    )


def test_sums_are_exact_where_a_float_or_an_int64_would_not_be() -> None:
    rows = pl.DataFrame({"lines": [2**62, 2**62, 2**62]})
    assert int(counted(Tally(sums=("lines",)), rows).groups[()].sums["lines"]) == 3 * 2**62


def test_values_between_limits_are_one_group_and_a_limit_belongs_to_the_one_above() -> None:
    rows = pl.DataFrame({"lines": [-1, 0, 9, 10, 11, None]})
    found = counted(Tally(by=("lines",), edges=(("lines", ("0", "10")),)), rows)
    assert {place[0]: group.rows for place, group in found.groups.items()} == {"0": 1, "1": 2, "2": 2, None: 1}


def test_of_more_groups_than_are_kept_only_their_number_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallying, "MOST_GROUPS", 3)
    found = counted(Tally(by=("lines",)), invoices({"N": 4}))
    assert (found.too_many, dict(found.groups)) == (4, {})
    said = judged(ba.enumeration_gate("lines"), {"2020-01": invoices({"N": 4})}, {"2020-01": invoices({"N": 4})})
    assert not said.passed
    assert said.summary.startswith("not compared: lines has 4 different values in 2020-01")


# --- rows -----------------------------------------------------------------------------------------------------------


def test_a_chunk_may_lose_less_than_it_may_gain() -> None:
    gate = ba.row_count_gate(lower=1.0, upper=50.0)
    before = {"2020-01": invoices({"N": 100}), "2020-02": invoices({"N": 100})}
    assert judged(gate, {"2020-01": invoices({"N": 150}), "2020-02": invoices({"N": 99})}, before).passed
    found = judged(gate, {"2020-01": invoices({"N": 150}), "2020-02": invoices({"N": 98})}, before)
    assert (found.passed, found.compared, found.disagreeing) == (False, 2, 1)
    assert found.summary == "200 rows accepted, 248 now (+24.00%); 1 of 2 chunks beyond the bounds"
    assert [dict(one) for one in found.slices] == [
        {"chunk": "2020-02", "expected": 100, "found": 98, "change": "-2.00%"}
    ]
    assert judged(gate, {"2020-01": invoices({"N": 98})}, before, rows_within_bounds_lower=2.0).passed


def test_many_small_changes_are_one_large_one_where_the_total_is_bounded() -> None:
    gate = ba.row_count_gate(lower=None, upper=10.0, total_upper=5.0)
    before = {key: invoices({"N": 100}) for key in ("2020-01", "2020-02", "2020-03")}
    after = {key: invoices({"N": 106}) for key in before}
    found = judged(gate, after, before)
    assert not found.passed
    assert found.summary.endswith("0 of 3 chunks beyond the bounds; all of them together as well")
    assert judged(ba.row_count_gate(upper=10.0), after, before).passed


def test_bounds_may_be_in_rows_and_a_first_load_is_said_to_be_one() -> None:
    gate = ba.row_count_gate(lower=3.0, upper=3.0, absolute=True)
    before: Rows = {"2020-01": invoices({"N": 10}), "2020-02": None}
    after = {"2020-01": invoices({"N": 7}), "2020-02": invoices({"N": 500})}
    found = judged(gate, after, before)
    assert found.passed
    assert found.summary.endswith("; 1 of 2 chunks without an accepted version")
    assert not judged(gate, {"2020-01": invoices({"N": 6})}, before).passed
    first = judged(gate, after, {})
    assert (first.passed, first.compared, first.summary) == (True, 0, "no accepted version to compare with")


def test_a_chunk_that_gets_its_first_rows_is_more_than_any_percent() -> None:
    nothing = {"2020-01": invoices({})}
    assert not judged(ba.row_count_gate(upper=900.0), {"2020-01": invoices({"N": 1})}, nothing).passed
    assert judged(ba.row_count_gate(upper=None), {"2020-01": invoices({"N": 1})}, nothing).passed


# --- NULLs and values -------------------------------------------------------------------------------------------------


def test_a_share_of_nulls_is_held_to_its_limit_by_chunk_and_slice() -> None:
    rows = pl.concat([invoices({"N": 99}), invoices({"N": 1, "S": 2}, amount=None)])
    assert judged(ba.null_share_gate({"amount": 3.0}), {"2020-01": rows}).passed
    found = judged(
        ba.null_share_gate({"amount": 3.0}, by=("region",), asks=True), {"2020-01": rows, "2020-02": invoices({"N": 5})}
    )
    assert (found.passed, found.asks, found.compared, found.disagreeing) == (False, True, 3, 1)
    assert [dict(one) for one in found.slices] == [
        {
            "chunk": "2020-01",
            "region": "S",
            "column": "amount",
            "share": "100.00%",
            "expected": "at most 3%",
            "found": "2 of 2 rows",
        }
    ]
    assert (
        found.summary
        == "of 107 rows there is no amount of 3 (2.80%); 1 of 3 slices by chunk and region above the limit"
    )
    assert (
        judged(ba.null_share_gate({"amount": 3.0}), {"2020-01": rows}, nulls_within_limits_amount=1.0).passed is False
    )


def test_a_value_that_no_accepted_chunk_has_is_new_and_null_is_none() -> None:
    gate = ba.enumeration_gate("region", asks=True)
    before = {"2019-12": invoices({"N": 1}), "2020-01": invoices({"S": 1})}
    assert judged(gate, {"2020-01": invoices({"N": 5, "S": 5, None: 1})}, before).passed
    found = judged(gate, {"2020-01": invoices({"N": 98, "X": 2})}, before)
    assert (found.passed, found.asks, found.compared, found.disagreeing) == (False, True, 2, 1)
    assert "1 of 2 values of region are not among the 2 known ones: 'X'" in found.summary
    assert found.details["not_there"] == ["S"]
    assert judged(gate, {"2020-01": invoices({"N": 98, "X": 2})}, before, region_is_known_percent=2.0).passed
    first = judged(gate, {"2020-01": invoices({"N": 1})}, {"2020-01": None})
    assert (first.passed, first.compared) == (True, 0)
    assert first.summary == "no accepted version to compare with; region has 1 different values"


def test_declared_values_need_no_history() -> None:
    gate = ba.enumeration_gate("region", ("N", "S"), percent=1.0)
    assert judged(gate, {"2020-01": invoices({"N": 99, "X": 1})}).passed
    assert not judged(gate, {"2020-01": invoices({"N": 98, "X": 2})}).passed


def test_a_zero_is_the_same_value_with_either_sign() -> None:
    for kind in (pl.Float64, pl.Float32):
        plus, minus = (pl.DataFrame({"x": [zero, 1.5]}, schema={"x": kind}) for zero in (0.0, -0.0))
        groups = counted(Tally(by=("x",)), plus, minus).groups
        assert {place[0]: group.rows for place, group in groups.items()} == {"0.0": 2, "1.5": 2}
        assert judged(ba.enumeration_gate("x"), {"2020-01": minus}, {"2020-01": plus}).passed


# --- distribution ------------------------------------------------------------------------------------------------------


def test_the_index_is_what_the_formula_gives_and_its_thresholds_hold() -> None:
    """By hand: 60/40 against 40/60 of 1,000 rows each is 2 * 0.2 * ln 1.5 = 0.1622."""
    before = {"2019-12": invoices({"N": 400, "S": 600})}
    after = {"2020-01": invoices({"N": 600, "S": 400})}
    gate = ba.distribution_gate("region")
    found = judged(gate, after, before)
    assert (found.passed, found.details["largest"]) == (True, pytest.approx(0.1622, abs=0.0005))
    worse = judged(gate, after, before, region_is_distributed_as_before_psi=0.1)
    assert (worse.passed, worse.compared, worse.disagreeing) == (False, 1, 1)
    assert {name: worse.slices[0][name] for name in ("expected", "found")} == {
        "expected": "N 40.0%, S 60.0%",
        "found": "N 60.0%, S 40.0%",
    }


def test_a_first_load_of_many_chunks_is_held_against_its_own_earlier_ones() -> None:
    alike = {key: invoices({"N": 300, "S": 300}) for key in ("2020-01", "2020-02", "2020-03")}
    found = judged(ba.distribution_gate("region"), alike)
    assert (found.passed, found.compared) == (True, 2)
    assert found.summary.endswith("1 without a chunk before them")
    broken = alike | {"2020-03": invoices({"N": 30, None: 570})}
    assert not judged(ba.distribution_gate("region"), broken).passed
    alone = judged(ba.distribution_gate("region"), {"2020-01": invoices({"N": 900})})
    assert (alone.passed, alone.summary) == (True, "nothing to compare with: 1 without a chunk before them")


def test_few_rows_say_little_and_are_counted_as_such() -> None:
    before = {"2019-12": invoices({"N": 500, "S": 500})}
    found = judged(ba.distribution_gate("region", by=("lines",)), {"2020-01": invoices({"S": 3})}, before)
    assert (found.passed, found.compared) == (True, 0)
    assert "of fewer than 200 rows, now or before" in found.summary


def test_numbers_are_grouped_between_limits() -> None:
    gate = ba.distribution_gate("lines", buckets=(100, 200), asks=True)
    found = judged(gate, {"2020-01": invoices({"N": 300})}, {"2019-12": invoices({"N": 210})})
    assert (found.passed, found.asks) == (False, True)
    assert "200 and more 33.3%" in found.slices[0]["found"]


# --- expected figures ---------------------------------------------------------------------------------------------------


def checksum(tmp_path: Path, text: str, *slices: str, **options: Any) -> ba.Reconciliation:
    (tmp_path / "sums.csv").write_text(text)
    return ba.checksum_gate(str(tmp_path / "sums.csv"), slices, ("amount",), **options)


def test_expected_figures_agree_to_the_cent(tmp_path: Path) -> None:
    text = "month,region,rows,amount\n2020-01,N,3,30.00\n2020-01,S,1,10\n2019-12,N,9,90.00\n"
    gate = checksum(tmp_path, text, "month", "region")
    after = {"2020-01": invoices({"N": 3, "S": 1}), "2020-02": invoices({"N": 1})}
    found = judged(gate, after)
    assert (found.passed, found.compared) == (True, 2)
    assert found.summary == (
        "2 slices by month and region compared; 0 differ; 1 of the file's are not in the run, or not whole; "
        "nothing is expected of 2020-02"
    )
    off = judged(gate, {"2020-01": pl.concat([invoices({"N": 2, "X": 1}), invoices({"N": 1}, amount="10.01")])})
    assert (off.passed, off.compared, off.disagreeing) == (False, 3, 3)
    assert [(one["region"], one["expected"], one["found"]) for one in off.slices] == [
        ("S", {"rows": "1", "amount": "10.00"}, "no row"),
        ("X", "nothing", {"rows": "1", "amount": "10.00"}),
        ("N", "30.00", "30.01"),
    ]
    within = {"2020-01": pl.concat([invoices({"N": 2, "S": 1}), invoices({"N": 1}, amount="10.01")])}
    assert judged(gate, within, expected_sums_agree_percent=0.1).passed


def test_figures_of_any_length_are_read_and_added_up_to_the_last_digit(tmp_path: Path) -> None:
    """Python's own context rounds to 28 digits, and adds up to as many."""
    (tmp_path / "sums.csv").write_text(
        "month,lines,big\n2020-01,12345678901234567,123456789012345678.000000000000000003\n"
    )
    gate = ba.checksum_gate(str(tmp_path / "sums.csv"), ("month",), ("lines", "big"))
    big = ["123456789012345677.000000000000000001", "1.000000000000000002"]
    rows = pl.DataFrame({"lines": [12345678901234566, 1], "big": big}).with_columns(
        pl.col("big").cast(pl.Decimal(38, 18))
    )
    chunks = {"2020-01": rows}
    assert judged(gate, chunks, target=LONG).passed
    by_part = ba.checksum_gate(str(tmp_path / "sums.csv"), ("month",), ("lines", "big"), "by_part")
    assert judged(by_part, {"2020-01": rows[:1]}, target=LONG).slices[0]["difference"] == "-1.000000000000000002"


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        (pl.Decimal(38, 18), "12345678901.000000000000000001"),
        (pl.Decimal(38, 0), "1" * 29),
        (pl.Decimal(38, 0), "-" + "9" * 38),
    ],
)
def test_a_decimal_has_as_many_digits_as_its_column(kind: pl.Decimal, cell: str) -> None:
    assert str(table_files.value_of(kind, cell)) == cell


@pytest.mark.parametrize(("kind", "cell"), [(pl.Decimal(38, 0), "1" * 39), (pl.Decimal(38, 18), f"0.{'0' * 18}1")])
def test_a_decimal_of_more_digits_is_refused(kind: pl.Decimal, cell: str) -> None:
    with pytest.raises(ValueError, match=cell):
        table_files.value_of(kind, cell)


def test_a_month_that_the_run_has_not_whole_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MONTHS, "2020-03", replace(MONTHS["2020-03"], end=date(2020, 3, 30)))
    gate = checksum(tmp_path, "month,rows,amount\n2020-03,7,1\n", "month")
    found = judged(gate, {"2020-03": invoices({"N": 1})})
    assert (found.passed, found.compared) == (True, 0)
    assert found.summary.startswith("compared nothing; 1 of the file's are not in the run, or not whole")


@pytest.mark.parametrize(
    ("division", "key"),
    [
        (None, "2020-02~XX"),
        (None, "2020-02~"),
        (None, "2021-01"),
        (BY_REGION, "2020-02"),
        (BY_REGION, "2020-02~XX"),
        (BY_REGION, "2031-01~S"),
    ],
)
def test_expected_figures_of_chunks_that_the_table_cannot_have_are_refused(
    tmp_path: Path, division: Division | None, key: str
) -> None:
    right = "2020-01" if division is None else "2020-01~N"
    gate = checksum(tmp_path, f"chunk,rows,amount\n{right},12,1\n{key},9,1\n", "chunk")
    found = said_of(gate, target=replace(TARGET, chunk_values=division))
    assert [one for one in found if "line" in one] == [f"line 3 of sums.csv: silver.invoices has no chunk '{key}'"]


@pytest.mark.parametrize("division", ["region", ba.ByValue("region", ("N", 1)), ba.ByValue("state", ("N",))])
def test_a_table_that_is_divided_wrongly_is_told_so_whatever_its_gates_read(tmp_path: Path, division: Any) -> None:
    (tmp_path / "cases.csv").write_text("invoice,day,amount\nA,2020-01-01,1\n")
    gates = (
        checksum(tmp_path, "chunk,rows\n2020-01~N,12\n", "chunk"),
        ba.known_keys_gate(str(tmp_path / "cases.csv")),
    )
    said = said_of(*gates, target=replace(TARGET, chunk_values=division))
    assert [one for one in said if "lies outside" not in one]


# --- arguments ----------------------------------------------------------------------------------------------------------


def said_of(*gates: ba.Reconciliation, target: ba.TargetTable = TARGET) -> list[str]:
    product = ba.Product("billing", (SOURCE,), (replace(target, reconciliations=gates),))
    return [one.what for one in problems_of([product])]


WRONG: dict[str, tuple[Callable[[], ba.Reconciliation], list[str]]] = {
    "bounds": (
        lambda: ba.row_count_gate(lower=-1, against="sorce", asks="no"),  # type: ignore[arg-type]
        ["lower is -1", "against is 'sorce'", "asks is 'no'"],
    ),
    "no bound": (
        lambda: ba.row_count_gate(lower=None, upper=None),
        ["each of lower, upper, total_lower and total_upper is None"],
    ),
    "a share above all": (lambda: ba.null_share_gate({"amount": 101.0}), ["most of amount is 101.0"]),
    "no columns": (lambda: ba.null_share_gate({}), ["most is {}"]),
    "a column that is none": (
        lambda: ba.null_share_gate({"amont": 1.0}),
        ["'amont' is no column of silver.invoices; did you mean 'amount'?"],
    ),
    "values": (lambda: ba.enumeration_gate("region", "NS"), ["values is 'NS'"]),
    "values of another type": (
        lambda: ba.enumeration_gate("amount", (1, "2.00", "x")),
        [
            "the value '1' is none that amount has, which is Decimal(precision=12, scale=2)",
            "the value 'x' is none that amount has, which is Decimal(precision=12, scale=2)",
        ],
    ),
    "values that are written otherwise": (
        lambda: ba.enumeration_gate("day", ("2020-1-1", date(2020, 1, 2))),
        ["the value '2020-1-1' is none that day has, which is Date"],
    ),
    "limits": (lambda: ba.distribution_gate("lines", buckets=(3, 1)), ["buckets is (3, 1)"]),
    "limits of text": (lambda: ba.distribution_gate("region", buckets=(1, 2)), ["'region' is String"]),
    "a limit that is no value": (lambda: ba.distribution_gate("lines", buckets=(1.5,)), ["the limit 1.5 is no Int64"]),
    "a text that falls": (lambda: ba.monotonic_gate("region"), ["'region' is String"]),
    "no bound of a change": (lambda: ba.bounded_change_gate("lines"), ["each of rise and fall is None"]),
    "a table that is not pinned": (
        lambda: ba.reference_gate(("region",), "bronze.regions"),
        ["'bronze.regions' is no table that a run of it pins; did you mean 'bronze.events'?"],
    ),
    "a key that the table lacks": (
        lambda: ba.reference_gate(("invoice",), "bronze.events", ("invoce",)),
        ["'invoce' is no column of bronze.events; did you mean 'invoice'?"],
    ),
    "two columns for one": (
        lambda: ba.reference_gate(("invoice", "day"), "bronze.events", ("invoice",)),
        ["key is ('invoice',)"],
    ),
    "a key of another type": (
        lambda: ba.reference_gate(("invoice", "day"), "bronze.events", ("number", "at")),
        [
            "'invoice' is String, and 'number' of bronze.events is Int32",
            "'day' is Date, and 'at' of bronze.events is Datetime(time_unit='us', time_zone='UTC')",
        ],
    ),
    "no file": (lambda: ba.known_keys_gate("nowhere.csv"), ["nowhere.csv cannot be read: No such file or directory"]),
    "a slice without a time": (lambda: ba.checksum_gate("nowhere.csv", ("region",)), ["slices are region"]),
    "a name that is misspelt": (
        lambda: ba.null_share_gate(moost={"amount": 1.0}),  # type: ignore[call-arg]
        ["null_share_gate has no moost; did you mean most?"],
    ),
}


TAKEN: dict[str, Callable[[str], ba.Reconciliation]] = {
    "found": lambda one: ba.enumeration_gate(one, asks=True),
    "Expected": lambda one: ba.duplicate_gate((one,)),
    "twice": lambda one: ba.duplicate_gate(("invoice", one)),
    "share": lambda one: ba.null_share_gate({"amount": 5.0}, by=("region", one)),
    "psi": lambda one: ba.distribution_gate("region", by=(one,)),
    "figure": lambda one: ba.bounded_change_gate("lines", (one,), rise=1.0),
    "rows": lambda one: ba.reference_gate((one,), "bronze.events"),
    "there": lambda one: ba.record_gate((one,)),
    "extra": lambda one: ba.record_level(
        "all", "All are there.", ba.keys("all", eligible=lambda context: context.source, key=(one,))
    ),
    "difference": lambda one: ba.checksum_gate("nowhere.csv", ("chunk", one)),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_column_that_is_named_like_what_a_gate_finds_is_refused(name: str) -> None:
    assert any(one.startswith("a column of ") and one.endswith(f" is '{name}'") for one in said_of(TAKEN[name](name)))


def test_a_key_that_is_named_like_what_is_found_of_a_case_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cases.csv").write_text("found,day,amount\nA,2020-01-01,1\n")
    said = said_of(ba.known_keys_gate(str(tmp_path / "cases.csv")), target=replace(TARGET, key=("found", "day")))
    assert "a column of the key is 'found'" in said


@pytest.mark.parametrize("case", WRONG)
def test_arguments_that_cannot_be_are_refused_with_the_declaration(case: str) -> None:
    make, expected = WRONG[case]
    assert [one for one in said_of(make()) if one in expected] == expected


def test_right_arguments_are_not_refused() -> None:
    assert (
        said_of(
            ba.row_count_gate(),
            ba.row_count_gate("of_source", against="source", zone="Europe/Rome"),
            ba.null_share_gate({"amount": 1, "region": 0.5}, by=("lines",)),
            ba.enumeration_gate("region", ("N", "S")),
            ba.enumeration_gate("region", name="regions_known_before"),
            ba.enumeration_gate("is_paid", (True, False)),
            ba.enumeration_gate("lines", (1, -2)),
            ba.enumeration_gate("amount", ("1.00",)),
            ba.enumeration_gate("day", (date(2020, 1, 1), "2020-01-02")),
            ba.distribution_gate("amount", buckets=(0, 10.5, 100)),
            ba.distribution_gate("day", buckets=(date(2020, 1, 1), date(2020, 1, 2))),
            ba.monotonic_gate("amount", by=("region",)),
            ba.bounded_change_gate("lines", rise=50.0),
            ba.reference_gate(("invoice",), "bronze.events"),
            ba.reference_gate(("lines",), "bronze.events", ("number",)),
        )
        == []
    )


def test_two_gates_of_a_kind_have_tolerances_of_their_own() -> None:
    target = replace(TARGET, reconciliations=(ba.row_count_gate(), ba.row_count_gate("others", lower=1.0, upper=None)))
    assert target.all_tolerances == {
        "rows_within_bounds_lower": 10.0,
        "rows_within_bounds_upper": 10.0,
        "others_lower": 1.0,
    }


# --- files ------------------------------------------------------------------------------------------------------------------

CASES = {
    "invoice,day,amont\nA,2020-01-01,1\n": ["cases.csv has the column 'amont'; did you mean 'amount'?"],
    "invoice,amount\nA,1\n": ["cases.csv has no column 'day'"],
    "invoice,day\nA,2020-01-01\n": ["cases.csv has no value to compare"],
    "invoice,day,amount,lines,is_paid\nA,2020-1-1,1.001,1.0,yes\n": [
        "line 2 of cases.csv: day is '2020-1-1'",
        "line 2 of cases.csv: amount is '1.001'",
        "line 2 of cases.csv: lines is '1.0'",
        "line 2 of cases.csv: is_paid is 'yes'",
    ],
    "invoice,day,amount\nA,2020-01-01,1\nA,2020-01-01,2\n": ["lines 2 and 3 of cases.csv have the same key"],
    "invoice,day,amount\n,2020-01-01,1\n": ["line 2 of cases.csv has no invoice"],
    "invoice,day,amount\nA,2020-01-01\n": ["line 2 of cases.csv has 2 cells, and its header 3"],
    'invoice,day,amount\n"A"B,2020-01-01,1\n': ["cases.csv has a stray quote in line 2"],
    "invoice,day,amount\n": ["cases.csv has no row"],
    "": ["cases.csv has no header line"],
}


@pytest.mark.parametrize("text", CASES)
def test_a_file_of_cases_that_cannot_be_is_refused_with_the_declaration(tmp_path: Path, text: str) -> None:
    (tmp_path / "cases.csv").write_text(text)
    said = said_of(ba.known_keys_gate(str(tmp_path / "cases.csv")))
    assert [one for one in said if "lies outside" not in one] == CASES[text]
    assert any("cases.csv lies outside the code of product billing" in one for one in said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("invoice,day,amount\nA,2020-01-01,1\n", "cases.csv has no column 'region'"),
        ("invoice,day,region,amount\nA,2020-01-01,,1\n", "line 2 of cases.csv has no region"),
    ],
)
def test_a_case_of_a_divided_table_says_in_which_part_it_is(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "cases.csv").write_text(text)
    gate = ba.known_keys_gate(str(tmp_path / "cases.csv"))
    found = said_of(gate, target=replace(TARGET, chunk_values=BY_REGION))
    assert [one for one in found if "lies outside" not in one] == [said]


PACKAGE = """
import datetime
import pandera.polars as pa
import backfill_assets as ba

class Events(pa.DataFrameModel):
    invoice: str
    at: ba.Instant

class Invoices(ba.Published):
    invoice: str
    day: datetime.date
    state: str

def invoices(inputs, context):
    return inputs.source

SOURCE = ba.InputTable("bronze.zzz", "Billed.", Events, ("team:billing",), partition_by="at")
TARGET = ba.TargetTable(
    name="silver.zzz", description="An invoice.", model=Invoices, key=("invoice", "day"), day_column="day",
    chunking=ba.Chunking.MONTH, chunks_from="2020-01", chunks_until="2020-12", source=SOURCE.name,
    source_time_column="at", transform="invoices", versions={"1": ba.TransformVersion(invoices)},
    owners=("team:billing",), reconciliations=(ba.known_keys_gate("cases/known.csv"),),
)
PRODUCT = ba.Product("billing", (SOURCE,), (TARGET,))
"""


def test_a_file_beside_the_module_that_declares_the_gate_is_code_of_the_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zzz_billing" / "cases").mkdir(parents=True)
    (tmp_path / "zzz_billing" / "__init__.py").write_text(PACKAGE)
    cases = tmp_path / "zzz_billing" / "cases" / "known.csv"
    cases.write_text("invoice,day,state\nA,2020-01-01,PAID\n")
    monkeypatch.syspath_prepend(tmp_path)
    product = importlib.import_module("zzz_billing").PRODUCT
    assert problems_of([product]) == []
    assert cases.resolve() in {path.resolve() for path in sources_of(product).files().values()}
    cases.write_text("invoice,day,state\nA,2020-01-01,PAID\nA,2020-01-01,OPEN\n")
    (said,) = problems_of([product])
    assert (said.what, said.where) == (
        "lines 2 and 3 of known.csv have the same key",
        "silver.zzz: known.csv, gate known_cases_come_out",
    )
    sys.modules.pop("zzz_billing")


def test_an_empty_cell_is_null_and_a_quoted_one_the_empty_text(tmp_path: Path) -> None:
    file = tmp_path / "cells.csv"
    file.write_bytes(b'\xef\xbb\xbfa,b,c\r\n"x, ""y""\nz",,""\r\n\r\n1,2,')
    found, problems = table_files.read(file)
    assert problems == []
    assert found is not None
    assert found.rows == ((2, ('x, "y"\nz', None, "")), (5, ("1", "2", None)))
