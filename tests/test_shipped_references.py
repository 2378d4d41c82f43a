"""The reference tables that a product ships are held against their declarations before anything is made."""

from __future__ import annotations

import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
import pytest

import backfill_assets as ba
from backfill_assets.declarations import finding
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from benchmarks.small_table import serves
from manifests.errors import DeclarationRefused
from resources.settings import load_settings

RATES = "reference.rates"
KIND = arrow.schema([("queue", arrow.string()), ("rate", arrow.decimal128(8, 4)), ("days", arrow.int32())])


class Rates(pa.DataFrameModel):
    queue: str = pa.Field(unique=True)
    rate: Annotated[pl.Decimal, 8, 4] = pa.Field(ge=0)
    days: pl.Int64


def rows(*rates: tuple[str, str], kind: arrow.Schema = KIND) -> arrow.Table:
    found = [{"queue": queue, "rate": Decimal(rate), "days": 3} for queue, rate in rates]
    return arrow.Table.from_pylist(found, schema=kind)


GOOD = rows(("billing", "1.25"), ("mail", "2"))


def raises() -> Any:
    raise FileNotFoundError("no rates.csv")


def ends() -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: [(RATES, GOOD, "rates-1")], []),
        (list, []),
        (raises, ["FileNotFoundError: no rates.csv"]),
        (ends, ["SystemExit: 3: it ends the process"]),
        (lambda: None, ["TypeError: 'NoneType' object is not iterable"]),
        (lambda home: [home], ["TypeError: "]),
        (lambda: [(RATES, GOOD)], ["it yields ('reference.rates', "]),
        (lambda: [GOOD], ["it yields a Table"]),
        (lambda: [("reference.rate", GOOD, "1")], ["it yields 'reference.rate', which is no reference table"]),
        (lambda: [("bronze.calls", GOOD, "1")], ["it yields 'bronze.calls', which is no reference table"]),
        (lambda: [(RATES, GOOD, "1"), (RATES, GOOD, "2")], ["it yields reference.rates twice"]),
        (lambda: [(RATES, GOOD, 1)], ["the version of reference.rates is 1"]),
        (lambda: [(RATES, GOOD, "")], ["the version of reference.rates is ''"]),
        (lambda: [(RATES, pl.DataFrame(), "1")], ["the rows of reference.rates are a DataFrame"]),
        (lambda: [(RATES, GOOD.drop_columns("days"), "1")], ["its columns are queue, rate"]),
        (lambda: [(RATES, GOOD.cast(KIND.set(1, arrow.field("rate", arrow.float64()))), "1")], ["rate is Float64"]),
        (lambda: [(RATES, rows(("billing", "-1")), "1")], ["rows break rate: greater_than_or_equal_to(0)"]),
        (lambda: [(RATES, rows(("billing", "1"), ("billing", "2")), "1")], ["rows break queue: field_uniqueness"]),
        (
            lambda: [
                (
                    RATES,
                    rows(("billing", "123456.78901"), kind=KIND.set(1, arrow.field("rate", arrow.decimal128(20, 5)))),
                    "1",
                )
            ],
            ["ArrowInvalid: "],
        ),
    ],
)
def test_what_a_product_ships_is_as_it_is_declared_or_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], said: list[str]
) -> None:
    module = ModuleType("zzz_rates")
    vars(module)["shipped"] = function
    monkeypatch.setitem(sys.modules, "zzz_rates", module)
    inputs = (
        ba.InputTable(RATES, "rates", Rates, ("team:desk",), is_reference=True),
        ba.InputTable("bronze.calls", "calls", Rates, ("team:desk",)),
    )
    product = ba.Product("desk", inputs, (), references="zzz_rates:shipped")
    monkeypatch.setattr(finding, "find_products", serves(product))
    platform = Platform.of(load_settings(home=tmp_path / "home"))
    if not said:
        initialise(platform)
        return
    with pytest.raises(DeclarationRefused) as refused:
        initialise(platform)
    assert [one.what[: len(text)] for one, text in zip(refused.value.problems, said, strict=True)] == said
    assert not (tmp_path / "home").exists()
