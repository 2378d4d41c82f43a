"""A transform that is a file of SQL: what it may ask is known before it is planned, and it computes as a function does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from checkouts import write

import backfill_assets as ba
from backfill_assets.declarations.checking.products import problems_of
from backfill_assets.declarations.sql_reading import read_sql
from backfill_assets.declarations.sql_transforms import CONTEXT_PARAMETERS
from backfill_assets.testing import Trial
from backfill_assets.testing.sessions import spark_sessions
from manifests.errors import TransformRefused

DECLARATION = '''
"""Visits of a clinic, by patient and day."""

import pandera.polars as pa
import polars as pl

import backfill_assets as ba


class Visits(pa.DataFrameModel):
    """A visit."""

    patient: str
    ward: str
    began_at: ba.Instant
    minutes: pl.Int64


class Wards(pa.DataFrameModel):
    """What an hour costs in a ward."""

    ward: str
    rate: pl.Int64


class VisitsDaily(ba.Published):
    """A row a patient and day."""

    patient: str
    day: pl.Date
    cost: pl.Int64
    first_day: pl.Date
    computed_for: str


VISITS = ba.InputTable("bronze.visits", "Visits.", Visits, ("team:clinic",), partition_by="began_at")
WARDS = ba.InputTable("reference.wards", "Wards.", Wards, ("team:clinic",), is_reference=True)
DAILY = ba.TargetTable(
    name="silver.visits_daily",
    description="Visits by patient and day.",
    model=VisitsDaily,
    key=("patient", "day"),
    day_column="day",
    chunking=ba.Chunking.MONTH,
    chunks_from="2024-01",
    source=VISITS.name,
    source_time_column="began_at",
    versions={"1.0.0": ba.TransformVersion.sql(__name__, "visits_daily.sql")},
    owners=("team:clinic",),
    references=(WARDS.name,),
    look_back_columns=("patient", "began_at"),
    configuration={"least": 5, "parts": ("a", "b"), "mode": "x"},
)
PRODUCT = ba.Product("clinic", inputs=(VISITS, WARDS), targets=(DAILY,))
'''
QUERY = """-- braces are { text }; now() in a comment is none
WITH every AS (
  SELECT patient, began_at FROM source UNION ALL SELECT patient, began_at FROM look_back
),
firsts AS (SELECT patient, to_date(min(began_at)) AS first_day FROM every WHERE began_at < :run_clock GROUP BY patient)
SELECT
  source.patient,
  to_date(source.began_at) AS day,
  sum(source.minutes * wards.rate) AS cost,
  min(firsts.first_day) AS first_day,
  concat('{', :version, ' ', :publish_start, ' ', :mode_of_it, '}') AS computed_for
FROM source
JOIN reference.wards USING (ward)
JOIN firsts ON firsts.patient = source.patient
WHERE source.minutes >= :least
GROUP BY source.patient, to_date(source.began_at);
-- and nothing after it
"""
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
ROWS = [
    {
        "patient": f"p{number % 3}",
        "ward": f"w{number % 2}",
        "began_at": BEGIN + timedelta(hours=7 * number),
        "minutes": number % 9,
    }
    for number in range(400)
]
WARD_ROWS = [{"ward": "w0", "rate": 2}, {"ward": "w1", "rate": 3}]


@pytest.fixture
def clinic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Make the package of a product with a file of SQL, and import it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"clinic_of_{abs(hash(tmp_path)) % 10**8}"

    def made(query: str) -> ModuleType:
        write(tmp_path, f"{name}/__init__.py", DECLARATION)
        write(tmp_path, f"{name}/visits_daily.sql", query)
        sys.modules.pop(name, None)
        return import_module(name)

    yield made
    sys.modules.pop(name, None)


TOO_DEEP = "its brackets, or its terms, lie too deep inside one another to be read"


def test_a_function_that_makes_rows_is_meant_by_another_name() -> None:
    (problem,) = read_sql("SELECT * FROM source, LATERAL explod(xs)").problems
    assert problem.fix.startswith("did you mean explode? Else ")


@pytest.mark.parametrize(
    ("query", "line", "what"),
    [
        ("SELECT a, now()\nFROM source", 1, "it asks now()"),
        ("SELECT a,\n current_date AS day FROM source", 2, "it asks current_date"),
        ("SELECT a FROM source\nWHERE t < Current_Timestamp ( )", 2, "it asks current_timestamp()"),
        ("SELECT `rand`() FROM source", 1, "it asks rand()"),
        ("SELECT transform(xs, x -> uuid()) FROM source", 1, "it asks uuid()"),
        ("SELECT unix_timestamp(t), unix_timestamp() FROM source", 1, "it asks unix_timestamp()"),
        ("SELECT a, input_file_name() FROM source", 1, "it asks input_file_name()"),
        ("SELECT monotonically_increasing_id() FROM source", 1, "it asks monotonically_increasing_id()"),
        ("SELECT user FROM source", 1, "it asks user"),
        ("SELECT reflect('java.lang.System', 'nanoTime') FROM source", 1, "it asks reflect()"),
        ("SELECT * FROM source,\nread_files('/tmp/x')", 2, "it asks read_files()"),
        ("SELECT * FROM IDENTIFIER('parquet.`/tmp/x`')", 1, "it asks identifier()"),
        ("SELECT CAST('now' AS TIMESTAMP) FROM source", 1, "it has the text 'now'"),
        ("SELECT a FROM source WHERE day = DATE 'today'", 1, "it has the text 'today'"),
        ("SELECT '${env:HOME}' FROM source", 1, "it has `${`"),
        ("SELECT ? FROM source", 1, "it has a parameter without a name"),
        ("SELECT * FROM source\nLIMIT 3", 1, "it has LIMIT or OFFSET without ORDER BY"),
        ("SELECT * FROM source TABLESAMPLE (10 PERCENT)", 1, "it has TABLESAMPLE"),
        ("SELECT TRANSFORM(a) USING 'cat' AS (b STRING) FROM source", 1, "it has TRANSFORM ... USING"),
        ("SELECT * FROM source VERSION AS OF 3", 1, "it has VERSION or TIMESTAMP AS OF"),
        ("SELECT * FROM source;\nSELECT 1", 1, "it has several statements"),
        ("SET spark.sql.ansi.enabled = false", 1, "it begins with SET"),
        ("CREATE TEMPORARY VIEW x AS SELECT * FROM source", 1, "it begins with CREATE"),
        ("INSERT INTO t SELECT * FROM source", 1, "it begins with INSERT"),
        ("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", 1, "it is INSERT"),
        ("SELECT ((( FROM source", 1, "it cannot be read: Expecting )"),
        ("-- nothing", 1, "it is empty"),
        ("SELECT *\nFROM source\n|> WHERE a > 1\n|> LIMIT 3", 3, "it has the pipe |>"),
        ("FROM source |> SELECT a", 1, "it has the pipe |>"),
        (f"SELECT {'(' * 3000}1{')' * 3000} AS a FROM source", 1, TOO_DEEP),
        (f"SELECT {'CASE WHEN true THEN ' * 1000}1{' END' * 1000} FROM source", 1, TOO_DEEP),
        ("SELECT *\nFROM my_rows(3)", 2, "it reads rows of my_rows()"),
        ("SELECT * FROM source, LATERAL my_rows(a)", 1, "it reads rows of my_rows()"),
        ("SELECT * FROM source LATERAL VIEW my_rows(a) t AS b", 1, "it reads rows of my_rows()"),
        ("SELECT * FROM TABLE(my_rows(3))", 1, "it reads rows of my_rows()"),
    ],
)
def test_what_a_transform_must_not_ask_is_named_with_its_line(query: str, line: int, what: str) -> None:
    assert [(one.line, one.what) for one in read_sql(query).problems] == [(line, what)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT s.current_date, s.user, source AS now FROM source s",
        "SELECT a, 'now() rand()' AS text, 'nowhere' AS b -- now()\nFROM source /* rand() */",
        "SELECT * FROM source ORDER BY a LIMIT 3",
        "SELECT /*+ BROADCAST(m) */ a FROM source s LATERAL VIEW explode(xs) t AS m",
        "(SELECT a FROM source) UNION ALL (SELECT a FROM source)",
        "SELECT * FROM source, range(5), LATERAL explode(xs), LATERAL variant_explode(v)",
        "SELECT * FROM source LATERAL VIEW OUTER json_tuple(x, 'a') t AS y",
        f"SELECT {' + '.join(['a'] * 3000)} AS a FROM source",
        "SELECT first_value(a) OVER (PARTITION BY b ORDER BY c) FROM source;\n",
    ],
)
def test_what_only_looks_like_it_is_taken(query: str) -> None:
    reading = read_sql(query)
    assert reading.problems == ()
    assert {one.name for one in reading.tables} == {"source"}


def said(module: ModuleType, **changes: Any) -> list[tuple[str, str]]:
    product = replace(module.PRODUCT, targets=(replace(module.DAILY, **changes),))
    return [(one.what, one.where.partition(": ")[2]) for one in problems_of([product])]


def test_what_a_query_is_not_given_is_named_when_it_is_declared(clinic: Callable[[str], ModuleType]) -> None:
    query = (
        "WITH look_back AS (SELECT 1)\nSELECT :leest, :parts, :mode\nFROM bronze.visits\n"
        "JOIN referense.wards USING (ward)\nJOIN parquet.`/tmp/x` USING (ward)\n"
    )
    at = "versions['1.0.0'], visits_daily.sql"
    assert said(clinic(query)) == [
        ("it reads bronze.visits", f"{at} line 3"),
        ("it reads referense.wards; did you mean 'reference.wards'?", f"{at} line 4"),
        ("it reads parquet./tmp/x", f"{at} line 5"),
        ("it gives a common table expression the name look_back", f"{at} line 1"),
        ("it does not read `source`", at),
        ("nobody gives :leest; did you mean 'least'?", f"{at} line 2"),
        (":parts is ('a', 'b')", f"{at} line 2"),
        ("configuration has mode", f"{at} line 2"),
    ]


def test_a_query_that_asks_a_clock_or_is_not_there_is_refused_with_the_declaration(
    clinic: Callable[[str], ModuleType],
) -> None:
    assert said(clinic("SELECT\n  now()\nFROM source")) == [
        ("it asks now()", "versions['1.0.0'], visits_daily.sql line 2")
    ]
    module = clinic("SELECT * FROM source")
    missing = {"1.0.0": ba.TransformVersion.sql(module.__name__, "visits.sql")}
    ((what, where),) = said(module, versions=missing)
    assert what.startswith("visits.sql cannot be read: FileNotFoundError")
    assert where == "versions['1.0.0']"


def test_a_file_of_sql_that_no_plan_would_name_is_refused(clinic: Callable[[str], ModuleType], tmp_path: Path) -> None:
    module = clinic("SELECT * FROM source")
    write(tmp_path, "elsewhere.sql", "SELECT * FROM source")
    beside = {"1.0.0": ba.TransformVersion.sql(module.__name__, "../elsewhere.sql")}
    assert said(module, versions=beside) == [
        ("../elsewhere.sql is no part of the code of product clinic", "versions['1.0.0']")
    ]


def trial(module: ModuleType, **configuration: Any) -> Trial:
    given = {"least": 5, "mode_of_it": Decimal("1.50"), **configuration}
    return Trial(
        replace(module.DAILY, configuration=given),
        "1.0.0",
        ROWS,
        publish_range=("2024-02-01", "2024-03-31"),
        references={"reference.wards": WARD_ROWS},
        inputs=(module.VISITS, module.WARDS),
    )


def by_hand(source: Any, references: Any) -> list[dict[str, Any]]:
    rates = {row["ward"]: row["rate"] for row in references["reference.wards"]}
    cost: dict[Any, int] = {}
    first: dict[str, Any] = {}
    for row in source:
        key = (row["patient"], row["began_at"].date())
        first[row["patient"]] = min(first.get(row["patient"], key[1]), key[1])
        if row["minutes"] >= 5:
            cost[key] = cost.get(key, 0) + row["minutes"] * rates[row["ward"]]
    made = "{1.0.0 2024-02-01 1.50}"
    return [
        {"patient": who, "day": day, "cost": sum_, "first_day": first[who], "computed_for": made}
        for (who, day), sum_ in cost.items()
    ]


def test_a_query_computes_what_is_counted_by_hand_from_views_references_and_parameters(
    clinic: Callable[[str], ModuleType],
) -> None:
    module = clinic(QUERY)
    assert said(module, configuration={"least": 5, "mode_of_it": Decimal("1.50")}) == []
    tried = trial(module)
    tried.require_same_as(by_hand)
    tried.require_pure()
    tried.require_no_look_ahead()
    session = spark_sessions().session(ba.Mode.BACKFILL)
    assert [one.name for one in session.catalog.listTables()] == [], "no view is left for the next batch"


def test_without_earlier_rows_a_query_finds_none(clinic: Callable[[str], ModuleType]) -> None:
    module = clinic(QUERY)
    tried = replace(trial(module), publish_range=("2024-01-01", "2024-01-31"))
    made = {"computed_for": "{1.0.0 2024-01-01 1.50}"}
    tried.require_same_as(lambda source, references: [row | made for row in by_hand(source, references)])


def test_what_spark_says_of_a_query_is_a_refusal_with_its_line(clinic: Callable[[str], ModuleType]) -> None:
    module = clinic("SELECT patient,\n  no_such_column AS day\nFROM source")
    with pytest.raises(TransformRefused, match=r"UNRESOLVED_COLUMN.*no_such_column"):
        trial(module).rows()


def test_a_transform_knows_the_parameters_that_the_page_names() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "adding-a-table.md").read_text(encoding="utf-8")
    assert [name for name in CONTEXT_PARAMETERS if f"`:{name}`" not in page] == []
