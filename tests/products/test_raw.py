"""A raw case log is read as it is, and each of its rows becomes an event or a quarantined record."""

import json
import math
import os
from collections import Counter
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill_assets.products.enforcement.raw import (
    ACTIVITIES,
    ACTIVITY,
    AMOUNT,
    CASE_ID,
    EVENT_SEQ,
    EVENTS_SCHEMA,
    JURISDICTION,
    QUARANTINE_SCHEMA,
    REQUIRED_COLUMNS,
    TIMESTAMP,
    Classified,
    Reason,
    classify,
    number_rows,
)
from backfill_assets.products.enforcement.raw_files import RawFileError, read_batches

INGESTED_AT = datetime(2024, 5, 1, 12, tzinfo=UTC)
# How long an example takes says nothing about the domain, only about the machine.
unhurried = settings(deadline=None)
KNOWN = frozenset({"IT", "NZ"})
GOOD: dict[str, Any] = {
    CASE_ID: "A1",
    ACTIVITY: "Create Fine",
    TIMESTAMP: "2006-07-24T00:00:00+02:00",
    AMOUNT: "35.0",
    EVENT_SEQ: "0",
}


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    (batch,) = number_rows([pl.DataFrame([{**GOOD, **row} for row in rows], infer_schema_length=None)])
    return batch


def classified(batch: pl.DataFrame, source_file: str = "log.parquet", default_jurisdiction: str = "IT") -> Classified:
    return classify(
        batch,
        source_file=source_file,
        ingested_at=INGESTED_AT,
        default_jurisdiction=default_jurisdiction,
        known_jurisdictions=KNOWN,
    )


def event(**row: Any) -> dict[str, Any]:
    result = classified(frame(row))
    assert result.quarantined.is_empty(), result.quarantined.to_dicts()
    return result.events.row(0, named=True)


def reason(row: dict[str, Any]) -> str:
    result = classified(frame(row))
    assert result.events.is_empty()
    return str(result.quarantined.item(0, "reason"))


# ------------------------------------------------------------------ events


def test_a_good_row_becomes_an_event() -> None:
    assert event() == {
        "event_id": "1f276e70d23bdb84969709df13a0077e",
        "case_id": "A1",
        "event_seq": 0,
        "jurisdiction": "IT",
        "activity": "Create Fine",
        "event_at": datetime(2006, 7, 23, 22, tzinfo=UTC),
        "amount": Decimal("35.00"),
        "source_file": "log.parquet",
        "source_row": 0,
        "ingested_at": INGESTED_AT,
    }


def test_events_and_quarantine_have_their_schemas_even_when_empty() -> None:
    for result in (classified(frame({})), classified(frame({CASE_ID: None})), classified(frame({}).clear())):
        assert result.events.schema == EVENTS_SCHEMA
        assert result.quarantined.schema == QUARANTINE_SCHEMA


@unhurried
@given(
    at=st.datetimes(
        min_value=datetime(1, 1, 3),  # noqa: DTZ001 - hypothesis takes bounds without a zone
        max_value=datetime(9999, 12, 29),  # noqa: DTZ001
        timezones=st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
    )
)
def test_a_timestamp_is_the_exact_instant_that_its_offset_says(at: datetime) -> None:
    assert event(**{TIMESTAMP: at.isoformat()})["event_at"] == at


@pytest.mark.parametrize("text", ["2006-07-23T22:00:00Z", "2006-07-24T00:00:00.000+0200", "2006-07-23T22:00:00-00:00"])
def test_the_spellings_of_an_offset_mean_the_same_instant(text: str) -> None:
    assert event(**{TIMESTAMP: text})["event_id"] == event()["event_id"]


@unhurried
@given(cents=st.integers(-(10**12) + 1, 10**12 - 1), as_text=st.booleans())
def test_an_amount_of_whole_cents_is_kept_to_the_cent(cents: int, *, as_text: bool) -> None:
    amount = Decimal(cents).scaleb(-2)
    assert event(**{AMOUNT: str(amount) if as_text else cents / 100})["amount"] == amount


@pytest.mark.parametrize("amount", [None, ""])
def test_an_event_may_have_no_amount(amount: str | None) -> None:
    assert event(**{AMOUNT: amount})["amount"] is None


@pytest.mark.parametrize("amount", [0, 0.0, -35.5, "-0.01", 71.50000000000001, "71.50000000000001", "12.340", "3e2"])
def test_an_amount_may_be_zero_negative_or_carry_the_noise_of_a_float(amount: float | str) -> None:
    assert float(event(**{AMOUNT: amount})["amount"]) == pytest.approx(float(amount))


@pytest.mark.parametrize("seq", [0, 19, "19", "007", 2**31 - 1])
def test_a_position_may_be_a_number_or_its_text(seq: int | str) -> None:
    assert event(**{EVENT_SEQ: seq})["event_seq"] == int(seq)


def test_a_log_without_jurisdictions_is_of_the_default_one() -> None:
    assert classified(frame({}), default_jurisdiction="NZ").events.item(0, "jurisdiction") == "NZ"


def test_a_log_with_jurisdictions_keeps_its_own() -> None:
    assert event(**{JURISDICTION: "NZ"})["jurisdiction"] == "NZ"


def test_a_case_id_may_be_a_number() -> None:
    assert event(**{CASE_ID: 17})["case_id"] == "17"


def test_other_columns_are_ignored() -> None:
    assert event(dismissal="#")["event_id"] == event()["event_id"]


# ------------------------------------------------------------------ identity

changes = {
    CASE_ID: "A2",
    ACTIVITY: "Payment",
    TIMESTAMP: "2006-07-24T00:00:00.000001+02:00",
    EVENT_SEQ: "1",
    JURISDICTION: "NZ",
}


@pytest.mark.parametrize("column", changes)
def test_another_case_activity_instant_position_or_jurisdiction_is_another_event(column: str) -> None:
    assert event(**{column: changes[column]})["event_id"] != event()["event_id"]


@unhurried
@given(
    file=st.text(),
    before=st.integers(0, 5),
    amount=st.sampled_from([None, "35.0", "36.0"]),
    offset=st.integers(-14, 14),
)
def test_the_same_event_has_the_same_id_whatever_its_file_row_amount_or_offset(
    file: str, before: int, amount: str | None, offset: int
) -> None:
    at = datetime.fromisoformat(GOOD[TIMESTAMP]).astimezone(timezone(timedelta(hours=offset)))
    again = {TIMESTAMP: at.isoformat(), AMOUNT: amount}
    others = [{CASE_ID: f"B{n}"} for n in range(before)]
    events = classified(frame(*others, again), source_file=file).events
    assert events.item(before, "event_id") == event()["event_id"]
    assert events.item(before, "source_row") == before
    assert events.item(before, "source_file") == file


@unhurried
@given(cases=st.lists(st.text("A1|\x1f ", min_size=1).filter(lambda text: text.strip()), unique=True, min_size=2))
def test_no_two_case_ids_make_the_same_event(cases: list[str]) -> None:
    rows = [{CASE_ID: case, EVENT_SEQ: str(seq)} for case in cases for seq in (1, 11)]
    assert classified(frame(*rows)).events["event_id"].n_unique() == len(rows)


# ------------------------------------------------------------------ quarantine


@pytest.mark.parametrize("case_id", [None, "", "  \t"])
def test_an_event_without_a_case_is_quarantined(case_id: str | None) -> None:
    assert reason({CASE_ID: case_id}) == "MISSING_CASE_ID"


@pytest.mark.parametrize("activity", [None, "", "create fine", "Create Fine ", "Cancel Fine"])
def test_an_unknown_activity_is_quarantined(activity: str | None) -> None:
    assert reason({ACTIVITY: activity}) == "UNKNOWN_ACTIVITY"


@pytest.mark.parametrize("text", ["2006-07-24T00:00:00", "2006-07-24T00:00:00.5", "2007-03-25T02:30:00"])
def test_a_timestamp_without_offset_is_quarantined(text: str) -> None:
    assert reason({TIMESTAMP: text}) == "TIMESTAMP_WITHOUT_OFFSET"


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "yesterday",
        "2006-07-24",
        "24/07/2006 00:00",
        "1153692000",
        "2006-02-30T00:00:00+02:00",
        "2006-02-30T00:00:00",
        "2006-07-24T24:00:00+02:00",
        "2006-07-24T23:59:60+02:00",
        "2006-07-24T00:00+02:00",
        "2006-07-24 00:00:00+02:00",
        " 2006-07-24T00:00:00+02:00",
        "2006-07-24T00:00:00+02:00\n",
        "2006-07-24T00:00:00+02",
        "2006-07-24T00:00:00+15:00",
        "2006-07-24T00:00:00\u221202:00",
        "2006-07-24T00:00:00.1234567+02:00",
        "\u0662006-07-24T00:00:00+02:00",
        "0000-07-24T00:00:00+02:00",
        "0001-01-01T00:00:00+02:00",
        "9999-12-31T23:59:59-02:00",
    ],
)
def test_what_is_no_exact_instant_is_quarantined(text: str | None) -> None:
    assert reason({TIMESTAMP: text}) == "BAD_TIMESTAMP"


@pytest.mark.parametrize("seq", [None, "", "-1", -1, "x", "1.5", "1.0", "1e1", " 1", 2**31, "99999999999999999999"])
def test_a_position_that_is_no_whole_number_is_quarantined(seq: int | str | None) -> None:
    assert reason({EVENT_SEQ: seq}) == "BAD_EVENT_SEQ"


@pytest.mark.parametrize(
    "amount",
    ["x", "35 EUR", "1,5", "1_000", " 35", "NaN", "inf", math.nan, -math.inf, 12.345, "12.345", "0.001",
     9_999_999_999.995, "10000000000", 1e300, "1e999", True],
)  # fmt: skip
def test_an_amount_that_is_no_decimal_of_whole_cents_is_quarantined(amount: float | str) -> None:
    # True stands for a column of another meaning altogether: as text it is no number.
    assert reason({AMOUNT: str(amount) if amount is True else amount}) == "BAD_AMOUNT"


@pytest.mark.parametrize("jurisdiction", [None, "", "XX", "it", "IT "])
def test_an_unknown_or_empty_jurisdiction_is_quarantined_and_not_guessed(jurisdiction: str | None) -> None:
    assert reason({JURISDICTION: jurisdiction}) == "UNKNOWN_JURISDICTION"


def test_of_several_reasons_the_first_rule_is_recorded() -> None:
    broken = {
        CASE_ID: "", ACTIVITY: "x", TIMESTAMP: "x", EVENT_SEQ: "x", AMOUNT: "x", JURISDICTION: "x",
    }  # fmt: skip
    mended = []
    for column, good in {**GOOD, JURISDICTION: "IT"}.items():
        mended.append((reason(broken), column))
        broken = {**broken, column: good}
    assert mended == [
        ("MISSING_CASE_ID", CASE_ID),
        ("UNKNOWN_ACTIVITY", ACTIVITY),
        ("BAD_TIMESTAMP", TIMESTAMP),
        ("BAD_EVENT_SEQ", AMOUNT),
        ("BAD_EVENT_SEQ", EVENT_SEQ),
        ("UNKNOWN_JURISDICTION", JURISDICTION),
    ]
    assert classified(frame(broken)).quarantined.is_empty()


def test_a_quarantined_record_keeps_the_row_as_it_came_and_says_what_is_wrong() -> None:
    batch = frame({}, {AMOUNT: math.nan, CASE_ID: 'A"1\n'}, {})
    (record,) = classified(batch.cast({AMOUNT: pl.Float64})).quarantined.to_dicts()
    assert json.loads(record.pop("record")) == {**GOOD, CASE_ID: 'A"1\n', AMOUNT: "NaN"}
    assert record == {
        "source_file": "log.parquet",
        "source_row": 1,
        "reason": "BAD_AMOUNT",
        "detail": "amount is 'NaN': it must be a number of whole cents that fits decimal(12,2)",
        "ingested_at": INGESTED_AT,
    }


def test_the_default_jurisdiction_is_not_written_into_a_quarantined_record() -> None:
    result = classified(frame({ACTIVITY: None}))
    assert JURISDICTION not in json.loads(result.quarantined.item(0, "record"))
    assert result.quarantined.item(0, "detail").startswith("concept:name is null: ")


anything = st.one_of(st.none(), st.text(max_size=12))
raw_rows = st.fixed_dictionaries(
    {
        CASE_ID: st.sampled_from(["A1", "A2"]) | anything,
        ACTIVITY: st.sampled_from(ACTIVITIES) | anything,
        TIMESTAMP: st.sampled_from([GOOD[TIMESTAMP], "2006-07-24T00:00:00", "2006-02-30T00:00:00Z"])
        | st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat)
        | st.from_regex(
            r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2})?", fullmatch=True
        )
        | anything,
        AMOUNT: st.floats().map(str) | st.decimals().map(str) | anything,
        EVENT_SEQ: st.integers(-5, 2**33).map(str) | anything,
        JURISDICTION: st.sampled_from(["IT", "NZ", "XX"]) | anything,
    }
)


@unhurried
@given(rows=st.lists(raw_rows, max_size=30))
def test_every_row_becomes_an_event_or_a_quarantined_record_and_none_is_lost(rows: list[dict[str, Any]]) -> None:
    schema = dict.fromkeys([*REQUIRED_COLUMNS, JURISDICTION], pl.String())
    (batch,) = number_rows([pl.DataFrame(rows, schema=schema)])
    result = classified(batch)
    events, quarantined = result.events, result.quarantined
    assert sorted([*events["source_row"], *quarantined["source_row"]]) == list(range(len(rows)))
    assert events["source_row"].is_sorted()
    assert quarantined["source_row"].is_sorted()
    assert set(quarantined["reason"]) <= {code.value for code in Reason}
    required = [name for name in EVENTS_SCHEMA.names() if name != "amount"]
    assert events.select(required).null_count().sum_horizontal().item() == 0
    assert quarantined.null_count().sum_horizontal().item() == 0
    for record in quarantined.to_dicts():
        assert json.loads(record["record"]) == rows[record["source_row"]]
    for row in events.to_dicts():
        raw = rows[row["source_row"]]
        assert row["event_at"] == datetime.fromisoformat(raw[TIMESTAMP])
        assert (row["amount"] is None) == (raw[AMOUNT] in (None, ""))


def test_an_ingestion_time_without_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="ingested_at 2024-05-01T00:00:00 has no offset"):
        classify(
            frame({}),
            source_file="x",
            ingested_at=datetime(2024, 5, 1),  # noqa: DTZ001 - the fault under test
            default_jurisdiction="IT",
            known_jurisdictions=KNOWN,
        )


def test_an_unknown_default_jurisdiction_is_refused_rather_than_quarantining_the_whole_log() -> None:
    with pytest.raises(ValueError, match=r"default jurisdiction 'XX' .* one of \['IT', 'NZ'\]"):
        classified(frame({}), default_jurisdiction="XX")


# ------------------------------------------------------------------ files

LOG = pl.DataFrame([{**GOOD, CASE_ID: f"A{n}", AMOUNT: n / 4, EVENT_SEQ: n, "dismissal": "#"} for n in range(25)])


def write(path: Path, log: pl.DataFrame = LOG) -> Path:
    if path.suffix.lower() == ".parquet":
        log.write_parquet(path)
    else:
        log.write_csv(path)
    return path


@pytest.mark.parametrize("name", ["log.parquet", "log.csv", "LOG.CSV"])
def test_a_log_is_streamed_in_numbered_batches_of_its_raw_columns(tmp_path: Path, name: str) -> None:
    batches = list(read_batches(write(tmp_path / name), batch_rows=10))
    assert [batch.height for batch in batches] == [10, 10, 5]
    read = pl.concat(batches)
    assert read.columns == [*REQUIRED_COLUMNS, "source_row"]
    assert read["source_row"].to_list() == list(range(25))
    assert read.schema["source_row"] == pl.Int64
    assert read[CASE_ID].to_list() == LOG[CASE_ID].to_list()


def test_parquet_and_csv_of_a_log_give_the_same_events(tmp_path: Path) -> None:
    one, other = (
        classified(pl.concat(read_batches(write(tmp_path / name)))).events for name in ("log.parquet", "log.csv")
    )
    assert one.equals(other)


def test_csv_values_are_text_as_written_and_empty_ones_null(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    header = ",".join([JURISDICTION, *REQUIRED_COLUMNS, "note"])
    path.write_bytes(
        f"\ufeff{header}\r\n"
        'IT,007,Create Fine,2006-07-24T00:00:00+02:00,35.10,0,"two\nlines, and a comma"\r\n'
        'IT,"Città ""1""",Payment,NA,"",null,x\r\n'.encode()
    )
    (batch,) = read_batches(path)
    assert batch.drop("source_row").rows() == [
        ("007", "Create Fine", "2006-07-24T00:00:00+02:00", "35.10", "0", "IT"),
        ('Città "1"', "Payment", "NA", None, "null", "IT"),
    ]


def test_dictionary_encoded_text_and_a_column_of_nulls_are_read_as_text(tmp_path: Path) -> None:
    log = LOG.with_columns(pl.col(ACTIVITY).cast(pl.Categorical), pl.lit(None).alias(AMOUNT))
    result = classified(pl.concat(read_batches(write(tmp_path / "log.parquet", log))))
    assert result.events.height == 25


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RawFileError, match=r"raw log .*none\.parquet does not exist"):
        read_batches(tmp_path / "none.parquet")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.parquet").mkdir()
    with pytest.raises(RawFileError, match="is not a file"):
        read_batches(tmp_path / "log.parquet")


@pytest.mark.parametrize("name", ["log.json", "log", "log.csv.gz"])
def test_an_unknown_extension_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(RawFileError, match=r"has the extension .* is \.parquet or \.csv; convert it"):
        read_batches(tmp_path / name)


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.parquet").write_text("case:concept:name,amount\n")
    with pytest.raises(RawFileError, match="is not readable as Parquet"):
        read_batches(tmp_path / "log.parquet")


def test_a_parquet_cut_short_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "log.parquet")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RawFileError, match="is not readable as Parquet"):
        read_batches(path)


def test_a_parquet_with_damaged_pages_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "log.parquet")
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\xff" * 600 + content[604:])
    with pytest.raises(RawFileError, match="breaks off"):
        list(read_batches(path))


@pytest.mark.parametrize("name", ["log.parquet", "log.csv"])
def test_missing_columns_are_named_together(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, LOG.drop(AMOUNT, TIMESTAMP))
    with pytest.raises(RawFileError, match=r"lacks the column\(s\) time:timestamp, amount,"):
        read_batches(path)


def test_a_csv_of_semicolons_lacks_its_columns(tmp_path: Path) -> None:
    LOG.write_csv(tmp_path / "log.csv", separator=";")
    with pytest.raises(RawFileError, match=r"lacks the column\(s\)"):
        read_batches(tmp_path / "log.csv")


def test_a_column_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(",".join([*REQUIRED_COLUMNS, AMOUNT]) + "\nA1,Payment,x,1,0,2\n")
    with pytest.raises(RawFileError, match=r"column\(s\) amount more than once"):
        read_batches(path)


@pytest.mark.parametrize("name", ["log.parquet", "log.csv"])
def test_a_log_without_rows_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RawFileError, match="has no rows"):
        read_batches(write(tmp_path / name, LOG.clear()))


def test_blank_lines_of_a_csv_are_no_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", LOG.head(2))
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join(["", header, "", *rows, "", ""]))
    (batch,) = read_batches(path)
    assert batch.select(CASE_ID, "source_row").rows() == [("A0", 0), ("A1", 1)]


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n"])
def test_an_empty_csv_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log.csv").write_bytes(content)
    with pytest.raises(RawFileError, match="has no rows"):
        read_batches(tmp_path / "log.csv")


@pytest.mark.parametrize("line", [b"A1,Payment\n", b"A1,Payment,x,1,0,2,3,4\n", b"A\xff,Payment,x,1,0\n"])
def test_a_csv_with_a_broken_line_is_refused_rather_than_read_without_it(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "log.csv"
    good = b"A1,Payment,2006-07-24T00:00:00+02:00,1,0\n"
    path.write_bytes(",".join(REQUIRED_COLUMNS).encode() + b"\n" + good * 1000 + line + good)
    with pytest.raises(RawFileError, match=r"breaks off .* mend that line"):
        list(read_batches(path))


def test_a_latin_1_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes("città,amount\n".encode("latin-1"))
    with pytest.raises(RawFileError, match="is not readable as CSV"):
        read_batches(tmp_path / "log.csv")


@pytest.mark.parametrize(
    ("column", "value"),
    [(TIMESTAMP, datetime(2006, 7, 24, tzinfo=UTC)), (EVENT_SEQ, 1.5), (CASE_ID, ["A1"]), (AMOUNT, date(2006, 7, 24))],
)
def test_a_parquet_column_of_another_kind_is_refused(tmp_path: Path, column: str, value: object) -> None:
    path = tmp_path / "log.parquet"
    LOG.with_columns(pl.lit(pl.Series([value])).first().alias(column)).write_parquet(path)
    with pytest.raises(RawFileError, match=f"has {column} of type"):
        read_batches(path)


def test_a_batch_of_no_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch_rows is 0"):
        read_batches(write(tmp_path / "log.csv"), batch_rows=0)


# ------------------------------------------------------------------ the public log


def public_log() -> Path:
    repository = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("BACKFILL_TEST_DATA", repository.parent / "shared" / "data"))
    path = folder / "road_traffic_fines.parquet"
    if not path.exists():
        why = f"{path.name} is not in {folder}; set BACKFILL_TEST_DATA to the folder that has it"
        print(why)
        pytest.skip(why)
    return path


def test_every_event_of_the_public_log_is_classified(tmp_path: Path) -> None:
    path = public_log()
    as_csv = tmp_path / "road_traffic_fines.csv"
    pl.scan_parquet(path).sink_csv(as_csv)
    by_format = []
    for file in (path, as_csv):
        results = [classified(batch, source_file=path.name) for batch in read_batches(file)]
        assert sum(result.quarantined.height for result in results) == 0
        by_format.append(pl.concat([result.events for result in results]))
    events, from_csv = by_format
    assert from_csv.equals(events)
    assert Counter(events["activity"]) == {
        "Create Fine": 150_370,
        "Send Fine": 103_987,
        "Insert Fine Notification": 79_860,
        "Add penalty": 79_860,
        "Payment": 77_601,
        "Send for Credit Collection": 59_013,
        "Insert Date Appeal to Prefecture": 4_188,
        "Send Appeal to Prefecture": 4_141,
        "Receive Result Appeal from Prefecture": 999,
        "Notify Result Appeal to Offender": 896,
        "Appeal to Judge": 555,
    }
    assert events.height == events["event_id"].n_unique() == 561_470
    assert events["case_id"].n_unique() == 150_370
    assert events["source_row"].to_list() == list(range(561_470))
    assert (events["amount"] <= 0).sum() == 54
    # Every one of them is local midnight in Rome, which is the day before in UTC.
    local = events["event_at"].dt.convert_time_zone("Europe/Rome")
    assert (local.dt.time() == datetime.min.time()).all()
    assert (local.dt.date() == events["event_at"].dt.date() + timedelta(days=1)).all()
