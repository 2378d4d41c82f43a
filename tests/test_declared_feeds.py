"""Feeds that cannot be used are refused when they are declared: every mistake at once, each with its place, rule and way out."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl
import pytest
from feed_world import FEED, TABLE, product, with_changes

import backfill_assets as ba
from backfill_assets.declarations.checking.products import problems_of
from manifests.errors import InputRefused

READER = FEED.readers[0]
INDEX = ba.DeliveryIndex("index.csv", "{path}", "published")


def no_time(_records: object) -> None:
    """A translator that takes no facts."""


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"name": "Daily Reports"}, "name is 'Daily Reports'"),
    "name that climbs": ({"name": "../x"}, "name is '../x'"),
    "description": ({"description": " "}, "description is ' '"),
    "owners": ({"owners": ("nobody",)}, "owners="),
    "owners as text": ({"owners": "team:x"}, "owners="),
    "table": (
        {"table": "bronze.reading"},
        "no product declares the table 'bronze.reading'; did you mean 'bronze.readings'",
    ),
    "path": ({"path": "("}, "path is '\\('"),
    "path without a date": ({"path": r"(?P<day>\d+)\.csv"}, "without a group `date`"),
    "date format": ({"date_format": "%m%d"}, "date_format is '%m%d', without %Y"),
    "time": ({"time": "2024"}, "time is '2024'"),
    "group of the time": ({"time": ba.TimeFromPath("when", "%Y%m%d")}, "time.group is 'when'"),
    "format of the time": ({"time": ba.TimeFromPath("at", "soon")}, "time.format is 'soon'"),
    "skips": ({"skips": "["}, "skips is '\\['"),
    "no readers": ({"readers": ()}, "readers is \\(\\)"),
    "a reader twice": ({"readers": (READER, READER)}, "reader readings/1 is declared 2 times"),
    "two readers of one form": (
        {"readers": (READER, replace(READER, version="9"))},
        "the same columns, delimiter and encoding",
    ),
    "delimiter": ({"readers": (replace(READER, delimiter="||"),)}, "delimiter is '\\|\\|'"),
    "encoding": ({"readers": (replace(READER, encodings=("utf-16",)),)}, "encodings is \\('utf-16',\\)"),
    "columns": ({"readers": (replace(READER, columns={}),)}, "columns is {}"),
    "columns of one name": ({"readers": (replace(READER, columns={"a": "x", "b": "x"}),)}, "2 columns are called 'x'"),
    "version": ({"readers": (replace(READER, version=""),)}, "version is ''"),
    "lacking": ({"readers": (replace(READER, may_lack=-1),)}, "may_lack is -1"),
    "settled": ({"settled_seconds": 0}, "settled_seconds is 0"),
    "cut or not": (
        {"readers": (replace(READER, ends_without_newline="no"),)},
        "ends_without_newline is 'no'",
    ),
    "translator": ({"translate": 7}, "translate is 7"),
    "translator of other arguments": ({"translate": no_time}, "cannot be called with records and facts"),
    "translator's version": ({"translator_version": ""}, "translator_version is ''"),
    "bytes": ({"limits": ba.FileLimits(bytes=0)}, "limits.bytes is 0"),
    "rows": ({"limits": ba.FileLimits(rows=1.5)}, "limits.rows is 1.5"),  # type: ignore[arg-type]
    "field": ({"limits": ba.FileLimits(field_chars=1_000_000)}, "limits.field_chars is 1000000"),
    "share": ({"limits": ba.FileLimits(rejected_share=5)}, "limits.rejected_share is 5"),
    "limits": ({"limits": 5}, "limits is 5"),
    "new bytes": ({"new_bytes": "CORRECTED"}, "new_bytes is 'CORRECTED'"),
    "date column": ({"date_column": "day"}, "'day' is no column of bronze.readings"),
    "date column of another type": ({"date_column": "meter"}, "'meter' of bronze.readings is String"),
    "time column of another type": ({"time_column": "report_date"}, "report_date' of bronze.readings is Date"),
    "file column of another type": ({"file_column": "kwh"}, "'kwh' of bronze.readings is Int64"),
    "index that is no list": ({"time": replace(INDEX, file="index.xlsx")}, "time.file is 'index.xlsx'"),
    "index elsewhere": ({"time": replace(INDEX, file="../index.csv")}, "time.file is '../index.csv'"),
    "path of the index": ({"time": replace(INDEX, path="{")}, "time.path is '{'"),
    "path of the index by attribute": (
        {"time": replace(INDEX, path="{row.__class__}")},
        "time.path is '{row.__class__}'",
    ),
    "path of the index without columns": ({"time": replace(INDEX, path="same.csv")}, "time.path is 'same.csv'"),
    "hash of the index": ({"time": replace(INDEX, algorithm="crc")}, "time.algorithm is 'crc'"),
    "withdrawn": ({"time": replace(INDEX, withdrawn="D")}, "time.withdrawn is 'D'"),
    "date of the withdrawn": ({"time": replace(INDEX, withdrawn=("status", "D"))}, "time.withdrawn_date is ''"),
}


def test_the_feed_that_the_tests_share_has_no_mistake() -> None:
    assert problems_of([product()]) == []
    assert problems_of([product(with_changes(time=INDEX))]) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_named_with_its_rule_and_a_way_out(name: str) -> None:
    changes, said = WRONG[name]
    problems = problems_of([product(with_changes(**changes))])
    assert any(re.search(said, one.what) for one in problems), problems
    for one in problems:
        assert one.where.startswith(("feed ", "a feed"))
        assert all(text.strip() for text in (one.what, one.rule, one.fix))


def test_every_mistake_is_named_at_once() -> None:
    names = ("description", "owners", "path", "date format", "time", "columns", "translator", "bytes", "new bytes")
    changes = {name: value for one in names for name, value in WRONG[one][0].items()}
    whats = [one.what for one in problems_of([product(with_changes(**changes))])]
    for one in names:
        assert any(re.search(WRONG[one][1], what) for what in whats), one


def test_what_is_no_feed_is_named_and_the_rest_of_the_product_is_looked_at() -> None:
    wrong = ba.Product("metering", (replace(TABLE, owners=("x",)),), (), feeds=(FEED, "readings"), code=("feed_world",))  # type: ignore[arg-type]
    whats = [one.what for one in problems_of([wrong])]
    assert "feeds has 'readings'" in whats
    assert any("owner" in what for what in whats)
    none = ba.Product("metering", (TABLE,), (), feeds=5, code=("feed_world",))  # type: ignore[arg-type]
    assert [one.what for one in problems_of([none])] == ["feeds is 5"]


def test_a_name_stands_for_one_feed_in_all_products() -> None:
    class Other(pa.DataFrameModel):
        report_date: pl.Date
        published_at: ba.Instant
        file_id: str

    table = ba.InputTable("bronze.others", "Others.", Other, ("team:x",))
    other = ba.Product("other", (table,), (), feeds=(with_changes(table=table.name),), code=("feed_world",))
    assert any(one.what == "feed readings is declared 2 times" for one in problems_of([product(), other]))


@pytest.mark.parametrize("changes", [{"is_reference": True}, {"quarantine_of": "bronze.readings"}])
def test_a_feed_fills_neither_a_reference_table_nor_a_quarantine(changes: dict[str, Any]) -> None:
    table = replace(TABLE, name="bronze.versions", **changes)
    tables = (TABLE, table) if "quarantine_of" in changes else (table,)
    declared = ba.Product("metering", tables, (), feeds=(with_changes(table=table.name),), code=("feed_world",))
    assert any("table is bronze.versions, a" in one.what for one in problems_of([declared]))


def test_a_misspelt_argument_of_a_feed_is_named() -> None:
    with pytest.raises(TypeError, match="FileFeed has no reader; did you mean readers"):
        ba.FileFeed(name="x", reader=())  # type: ignore[call-arg]


def test_a_feed_that_nobody_declares_is_named_with_the_one_that_was_meant() -> None:
    from backfill_assets.declarations.products import Products

    with pytest.raises(InputRefused, match="feed reading is not declared"):
        Products((product(),)).feed("reading")


def test_nothing_outside_products_mentions_one() -> None:
    root = Path(ba.__file__).parent
    reports, shop = (
        "public_health|regional|regioni|nazionale|covid",
        "order_(lines|events|state)|order-lines|daily_revenue|invoice",
    )
    words = re.compile(rf"{reports}|{shop}", re.IGNORECASE)
    places = [root, root.parent / "resources", root.parent / "manifests"]
    files = [
        file
        for place in places
        for file in place.rglob("*.py")
        if "products" not in file.relative_to(place.parent).parts
    ]
    assert len(files) > 300
    assert [str(file) for file in files if words.search(file.read_text())] == []
