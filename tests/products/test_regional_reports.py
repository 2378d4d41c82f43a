"""Regional reports: the translator rule by rule, and every version of the real ones, or of made-up ones, held against an oracle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random

import polars as pl
import pytest

import backfill_assets as ba
from backfill_assets.audit.as_of import rows_at, versions_at
from backfill_assets.extraction.delimited_files import read_records
from backfill_assets.ingestion.receiving import Received, receive
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.products.public_health import PRODUCT, REGIONAL_FILES, generator, reports
from backfill_assets.products.public_health.regions import REGIONS, region_of
from manifests.model import DayRange
from resources.settings import Settings

FACTS = ba.FileFacts("x.csv", date(2020, 3, 1), datetime(2020, 3, 1, 17, tzinfo=UTC), "ab", 1, "regional-report/3")
ARCHIVE, INDEX, ORACLE = (
    "pcm_covid_landing_all_versions.tar.xz",
    "pcm_covid_regioni_version_index.parquet",
    "pcm_covid_regioni_all_versions.parquet",
)


def record(row: int = 0, code: str = "01", name: str = "Piemonte", **changes: str | None) -> ba.RawRecord:
    fields: dict[str, str | None] = {
        "reported_at": "2020-03-01T17:00:00",
        "country": "ITA",
        "region_code": code,
        "region_name": name,
        **dict.fromkeys(reports.REQUIRED, "5"),
    }
    return ba.RawRecord(row, fields | changes)


def whole(*first: ba.RawRecord) -> list[ba.RawRecord]:
    """Return a report: these records, and one of each other region."""
    there = {region_of(one.fields["region_code"], one.fields["region_name"]) for one in first}
    others = [region for region in REGIONS if region not in there]
    return [*first, *(record(len(first) + number, one.code, one.name) for number, one in enumerate(others))]


def row_of(first: ba.RawRecord) -> dict[str, object]:
    made = reports.translate(whole(first), FACTS)
    assert (list(made.rejected), made.refused) == ([], "")
    return dict(made.rows[0][1])


# --- the translator, rule by rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "name", "today"),
    [
        ("8", "Emilia Romagna", ("08", "Emilia-Romagna")),
        ("08", "Emilia-Romagna", ("08", "Emilia-Romagna")),
        ("06", "Friuli V. G. ", ("06", "Friuli Venezia Giulia")),
        ("04", "P.A. Trento", ("22", "P.A. Trento")),
        ("04", "Bolzano", ("21", "P.A. Bolzano")),
        ("22", "P.A. Trento", ("22", "P.A. Trento")),
        ("4", "Trento", ("22", "P.A. Trento")),
    ],
)
def test_codes_and_names_of_then_are_those_of_today_and_kept_as_they_came(
    code: str, name: str, today: tuple[str, str]
) -> None:
    row = row_of(record(code=code, name=name))
    assert (row["region_code"], row["region_name"]) == today
    assert (row["raw_region_code"], row["raw_region_name"]) == (code, name)


@pytest.mark.parametrize(
    ("code", "name"), [("08", "Piemonte"), ("04", "Piemonte"), ("99", "Utopia"), (None, "Piemonte")]
)
def test_a_region_that_code_and_name_do_not_agree_on_is_rejected(code: str | None, name: str) -> None:
    made = reports.translate([*whole(record()), record(21, region_code=code, region_name=name)], FACTS)
    assert [(one.row, one.rule) for one in made.rejected] == [(21, "a known region")]


def test_a_region_that_is_there_twice_is_rejected_the_second_time() -> None:
    made = reports.translate([*whole(record()), record(21)], FACTS)
    assert [(one.row, one.rule) for one in made.rejected] == [(21, "a region once")]
    assert len(made.rows) == 21


@pytest.mark.parametrize("column", reports.REQUIRED)
@pytest.mark.parametrize("text", [None, "many", "1.5", "１２"])  # noqa: RUF001 - digits of another script
def test_a_record_without_a_figure_that_every_report_has_is_rejected(column: str, text: str | None) -> None:
    made = reports.translate(whole(record(**{column: text})), FACTS)
    assert [one.rule for one in made.rejected] == [f"{column}: a whole number"]


@pytest.mark.parametrize("column", reports.CUMULATIVE)
def test_what_is_counted_since_the_beginning_is_not_below_0(column: str) -> None:
    made = reports.translate(whole(record(**{column: "-1"})), FACTS)
    assert [one.rule for one in made.rejected] == [f"{column}: 0 or more"]


def test_a_change_may_be_below_0() -> None:
    row = row_of(record(new_positive="-229", total_positive_change="-12", home_isolation="-3"))
    assert (row["new_positive"], row["total_positive_change"], row["home_isolation"]) == (-229, -12, -3)


@pytest.mark.parametrize("text", ["2020-03-01T17:00:00", "2020-03-01 17:00:00", "1/3/2020 17:00"])
def test_the_three_forms_of_a_date_are_one_time(text: str) -> None:
    assert row_of(record(reported_at=text))["reported_at"] == datetime(2020, 3, 1, 17)  # noqa: DTZ001 - local


def test_a_cell_that_is_none_of_its_column_is_set_aside_with_the_row() -> None:
    row = row_of(record(people_tested="pd-IT-0010", latitude="4083956555", longitude="8.5", reported_at="soon"))
    assert (row["people_tested"], row["latitude"], row["longitude"], row["reported_at"]) == (None, None, 8.5, None)
    assert json.loads(str(row["set_aside"])) == {
        "people_tested": "pd-IT-0010",
        "latitude": "4083956555",
        "reported_at": "soon",
    }
    assert row_of(record())["set_aside"] is None


def test_a_report_that_was_cut_is_refused_whole() -> None:
    made = reports.translate(whole(record())[:20], FACTS)
    assert made.refused == "it has 20 regions, and a report has 21: it was cut"


def test_a_report_that_was_taken_back_is_one_row_that_says_so() -> None:
    withdrawn = ba.FileFacts("x.csv", FACTS.business_date, FACTS.published_at, "", 0, "", is_withdrawn=True)
    assert reports.translate([], withdrawn).rows == [(0, {"is_withdrawal": True, "source_row": 0})]


@pytest.mark.parametrize("reader", reports.READERS, ids=lambda reader: reader.version)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_each_form_is_read_by_its_reader(reader: ba.FileReader, encoding: str) -> None:
    cells = reader.delimiter.join("così" if name.startswith("note") else "1" for name in reader.columns.values())
    text = f"{reader.delimiter.join(reader.columns)}\n{cells}\n"
    found = read_records(text.encode(encoding), reports.READERS, REGIONAL_FILES.limits)
    assert found.reader is reader
    assert set(found.records[0].fields) == set(reader.columns.values())
    notes = {value for name, value in found.records[0].fields.items() if name.startswith("note")}
    assert notes <= {"così"}


# --- made-up reports --------------------------------------------------------------------------------------------------


def _installation(home: Path) -> Platform:
    platform = Platform.of(Settings(home=home), [PRODUCT])
    initialise(platform)
    return platform


def _bronze(platform: Platform) -> pl.DataFrame:
    frame = pl.from_arrow(platform.lakehouse.table("bronze.regional_reports").scan().to_arrow())
    assert isinstance(frame, pl.DataFrame)
    return frame


def _known_at(bronze: pl.DataFrame, at: datetime) -> pl.DataFrame:
    """Return the rows of each day's newest version at an instant."""
    known = bronze.filter(pl.col("published_at") <= at)
    newest = known.sort("published_at", "file_id").group_by("report_date").agg(pl.last("file_id").alias("newest"))
    return known.join(newest, "report_date").filter((pl.col("file_id") == pl.col("newest")) & ~pl.col("is_withdrawal"))


@pytest.mark.parametrize("seed", [1, 2])
def test_made_up_reports_say_at_each_instant_what_was_published_last(tmp_path: Path, seed: int) -> None:
    platform = _installation(tmp_path / "home")
    landing = tmp_path / "home" / "landing" / REGIONAL_FILES.name
    landing.mkdir(parents=True)
    versions = generator.write_landing(landing, days=40, seed=seed)
    assert any(one.is_withdrawal for one in generator.generate(200, seed))
    done = receive(platform, REGIONAL_FILES.name)
    assert done.refused == {}
    assert sum(done.by_status.values()) == len(versions)
    assert done.by_status["ACCEPTED"] == 40
    bronze = _bronze(platform)
    assert {one.schema_version for one in platform.ledger.imports.of_feed(REGIONAL_FILES.name)} > {"regional-report/1"}
    moments = sorted(one.published_at for one in versions)
    for at in moments[:: max(1, len(moments) // 12)]:
        expected: dict[tuple[date, str], int] = {}
        for day in {one.day for one in versions}:
            said = [one for one in versions if one.day == day and one.published_at <= at]
            if said:
                expected |= {(day, code): one["total_cases"] for code, one in said[-1].figures.items()}
        found = _known_at(bronze, at).select("report_date", "region_code", "total_cases").iter_rows()
        assert {(day, code): cases for day, code, cases in found} == expected


def test_equal_seeds_give_equal_files() -> None:
    assert list(generator.generate(20, 3)) == list(generator.generate(20, 3))
    assert [one.content for one in generator.generate(20, 3)] != [one.content for one in generator.generate(20, 4)]


# --- the real ones ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> Path:
    """The folder with the real reports; tests that need it are skipped, saying so, where it is absent."""
    folder = os.environ.get("BACKFILL_TEST_DATA")
    root = Path(folder) if folder else Path(__file__).resolve().parents[3] / "shared" / "data"
    if not all((root / name).is_file() for name in (ARCHIVE, INDEX, ORACLE)):
        pytest.skip("the real regional reports are not here (set BACKFILL_TEST_DATA to their folder)")
    return root


@pytest.fixture(scope="module")
def received(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Platform, Received]]:
    """An installation that has received all of them."""
    platform = _installation(tmp_path_factory.mktemp("real") / "home")
    done = receive(platform, REGIONAL_FILES.name, [data / ARCHIVE, data / INDEX])
    yield platform, done
    platform.ledger.close()


def test_every_version_of_the_real_reports_is_taken_as_one_load(received: tuple[Platform, Received]) -> None:
    platform, done = received
    assert dict(done.by_status) == {"ACCEPTED": 1_782, "CORRECTION": 834}
    assert (done.rejected, done.not_delivered, dict(done.refused)) == (0, 0, {})
    assert done.rows == 2_615 * 21 + 1, "one report was taken back, which is a row of its own"
    assert len(platform.lakehouse.loads("bronze.regional_reports")) == 1
    assert len({one.file_id for one in platform.ledger.imports.of_feed(REGIONAL_FILES.name)}) == 2_616


def _oracle(data: Path) -> pl.DataFrame:
    """Return the rows of all versions as others have read them, one column a field of records; as text."""
    rows = pl.read_parquet(data / ORACLE)
    (odd,) = [name for name in rows.columns if ";" in name]
    semicolons = rows.filter(pl.col(odd).is_not_null())
    names = odd.split(";")
    cells = semicolons[odd].str.split(";").to_list()
    places = [name for name in rows.columns if name.startswith("_")]
    split = semicolons.select(places).with_columns(
        pl.Series(name, [line[number] or None for line in cells], pl.String) for number, name in enumerate(names)
    )
    together = pl.concat([rows.filter(pl.col(odd).is_null()).drop(odd), split], how="diagonal")
    called: dict[str, list[str]] = {}
    for reader in reports.READERS:
        for name, field in reader.columns.items():
            if name not in called.setdefault(field, []):
                called[field].append(name)
    empty = {name: pl.when(pl.col(name) != "").then(pl.col(name)) for names in called.values() for name in names}
    return together.select(
        pl.col("_partition").str.to_date("%Y%m%d").alias("report_date"),
        pl.col("_commit_time").str.to_datetime("%Y-%m-%dT%H:%M:%S%z", time_zone="UTC").alias("published_at"),
        *(pl.coalesce([empty[name] for name in names]).alias(field) for field, names in called.items()),
    )


def test_no_cell_of_the_real_reports_is_other_than_the_oracle_has_it(
    data: Path, received: tuple[Platform, Received]
) -> None:
    bronze = _bronze(received[0]).filter(~pl.col("is_withdrawal"))
    oracle = _oracle(data)
    assert bronze.height == oracle.height == 54_915
    key = ["report_date", "published_at", "raw_region_code", "raw_region_name"]
    oracle = oracle.rename({"region_code": "raw_region_code", "region_name": "raw_region_name"})
    both = bronze.join(oracle, on=key, how="full", suffix="_oracle", validate="1:1")
    assert both["file_id"].null_count() == both["report_date_oracle"].null_count() == 0
    aside = pl.col("set_aside").str.json_decode(
        pl.Struct(dict.fromkeys((*reports.OPTIONAL, "latitude", "longitude", "reported_at"), pl.String))
    )
    both = both.with_columns(aside.alias("aside"))
    for column in (*reports.REQUIRED, *reports.OPTIONAL):
        kept = pl.col(column).cast(pl.String)
        if column in reports.OPTIONAL:
            kept = pl.coalesce(kept, pl.col("aside").struct.field(column))
        _require_same(both, kept, pl.col(f"{column}_oracle"), column)
    for column in ("latitude", "longitude"):
        kept = pl.coalesce(pl.col(column), pl.col("aside").struct.field(column).cast(pl.Float64))
        _require_same(both, kept, pl.col(f"{column}_oracle").cast(pl.Float64), column)
    for column in reports.TEXTS:
        _require_same(both, pl.col(column), pl.col(f"{column}_oracle"), column)
    iso = pl.col("reported_at_oracle").str.replace(" ", "T").str.to_datetime("%Y-%m-%dT%H:%M:%S", strict=False)
    other = pl.col("reported_at_oracle").str.to_datetime("%d/%m/%Y %H:%M", strict=False)
    _require_same(both, pl.col("reported_at"), pl.coalesce(iso, other), "reported_at")
    assert both["reported_at"].null_count() == 0


def _require_same(both: pl.DataFrame, kept: pl.Expr, said: pl.Expr, column: str) -> None:
    different = both.filter(kept.ne_missing(said)).select(
        "file_id", "region_code", kept.alias("kept"), said.alias("said")
    )
    assert different.height == 0, f"{column}: {different.height} cells differ: {different.head(3).to_dicts()}"


def test_at_every_commit_time_bronze_knows_what_the_oracle_knew(
    data: Path, received: tuple[Platform, Received]
) -> None:
    bronze = _bronze(received[0])
    index = pl.read_parquet(data / INDEX).with_columns(
        pl.col("commit_time").str.to_datetime("%Y-%m-%dT%H:%M:%S%z", time_zone="UTC"),
        pl.col("partition").str.to_date("%Y%m%d"),
    )
    ordered = (
        bronze.select("report_date", "published_at", "file_id", "is_withdrawal")
        .unique()
        .sort("published_at", "file_id")
    )
    newest: dict[date, tuple[datetime, bool]] = {}
    said: dict[date, tuple[datetime, bool]] = {}
    ours = ordered.partition_by("published_at", as_dict=True)
    theirs = index.sort("commit_time", "version").partition_by("commit_time", as_dict=True)
    assert set(ours) == set(theirs)
    for at in sorted(ours):
        newest |= {day: (published, gone) for day, published, _, gone in ours[at].iter_rows()}
        said |= {
            row["partition"]: (row["commit_time"], row["status"] == "D") for row in theirs[at].iter_rows(named=True)
        }
        assert newest == said


def test_what_was_said_at_random_instants_is_what_the_oracle_had_then(
    data: Path, received: tuple[Platform, Received]
) -> None:
    oracle = _oracle(data)
    withdrawn = (
        pl.read_parquet(data / INDEX)
        .filter(pl.col("status") == "D")
        .select(
            pl.col("partition").str.to_date("%Y%m%d").alias("report_date"),
            pl.col("commit_time").str.to_datetime("%Y-%m-%dT%H:%M:%S%z", time_zone="UTC").alias("published_at"),
        )
    )
    said = pl.concat([oracle.select("report_date", "published_at", "region_code", "deaths"), withdrawn], how="diagonal")
    random = Random(20)
    moments = sorted(said["published_at"].unique().to_list())
    for _ in range(60):
        at = random.choice(moments) + timedelta(seconds=random.randrange(-1, 90_000))
        first = date(2020, 2, 24) + timedelta(days=random.randrange(1_780))
        days = DayRange(start=first, end=first + timedelta(days=random.randrange(30)))
        asked = versions_at(received[0], "bronze.regional_reports", at, days, ())
        rows = [row for frame in rows_at(received[0], asked) for row in frame.iter_rows(named=True)]
        known = said.filter(pl.col("report_date").is_between(days.start, days.end) & (pl.col("published_at") <= at))
        newest = known.filter(pl.col("published_at") == pl.col("published_at").max().over("report_date"))
        expected = newest.filter(pl.col("region_code").is_not_null()).select("report_date", "region_code", "deaths")
        found = [
            (row["report_date"], row["raw_region_code"], str(row["deaths"])) for row in rows if not row["is_withdrawal"]
        ]
        assert sorted(found) == sorted(expected.iter_rows())
