"""What changes come to, against the bank that has made them: state at any LSN, history, and the end of each day."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import SparkRuntimeException

from backfill_assets.declarations.changes import _lsn_in_words, daily_state, history, renamed, state_at
from backfill_assets.products.accounts.generator import COLUMNS, Bank
from backfill_assets.staging.raised import words as told_of
from backfill_assets.testing.sessions import spark_sessions
from manifests.errors import TransformRefused
from manifests.log_ranges import lsn as in_words
from manifests.model import Mode


@pytest.fixture(scope="module")
def spark() -> Any:
    return spark_sessions().session(Mode.BACKFILL)


ROW = "account_id bigint, owner string, email string, balance decimal(12, 2), opened_at bigint, note string"
NEWEST = ROW.replace("email", "contact") + ", tier string"
NAMES = ["account_id", "owner", "email", "balance", "opened_at", "note"]
SCHEMA = (
    "commit_lsn long, lsn long, position long, op string, key string, before string, after string, committed_at timestamp,"
    " schema_version string"
)


def records(bank: Bank) -> list[dict[str, Any]]:
    """Read the bank's messages in the plainest way: in the tests of the functions nothing is landed."""
    ends = {
        one.value["id"].split(":")[0]: int(one.value["id"].split(":")[1])
        for one in bank.messages
        if one.value and one.value.get("status") == "END"
    }
    found = []
    for one in bank.messages:
        value = one.value
        if value is None or "op" not in value:
            continue
        source, row = value["source"], value["after"] or value["before"]
        found.append(
            {
                "commit_lsn": source["lsn"] if value["op"] == "r" else ends[str(source["txId"])],
                "lsn": source["lsn"],
                "position": 0 if value["op"] == "r" else value["transaction"]["total_order"],
                "op": value["op"],
                "key": None if one.key is None else json.dumps(one.key, separators=(",", ":")),
                "before": None if value["before"] is None else json.dumps(value["before"]),
                "after": None if value["after"] is None else json.dumps(value["after"]),
                "committed_at": datetime.fromtimestamp(source["ts_ms"] / 1000, UTC),
                "schema_version": next(
                    (name for name, columns in COLUMNS.items() if row is not None and set(columns) == set(row)), "1"
                ),
            }
        )
    return found


def frame(spark: Any, rows: Sequence[dict[str, Any]], seed: int = 0) -> Any:
    """Return changes in disorder, some of them twice."""
    draw = Random(seed)
    mixed = [*rows, *(one for one in rows if draw.random() < 0.2)]
    draw.shuffle(mixed)
    names = [one.split()[0] for one in SCHEMA.split(", ")]
    return spark.createDataFrame([tuple(one[name] for name in names) for one in mixed], SCHEMA)


def as_dict(found: Any, names: Sequence[str] = NAMES) -> dict[int, tuple[Any, ...]]:
    rows = [tuple(row[name] for name in names) for row in found.collect()]
    by_key = {row[0]: row for row in rows}
    assert len(by_key) == len(rows), "a key is there twice"
    return by_key


def by_bank(bank: Bank, lsn: int, names: Sequence[str] = NAMES) -> dict[int, tuple[Any, ...]]:
    def value(row: dict[str, Any], name: str) -> Any:
        said = row.get(name, row.get("email") if name == "contact" else None)
        return Decimal(said) if name == "balance" else said

    return {key: tuple(value(row, name) for name in names) for key, row in bank.rows_at(lsn).items()}


def a_bank(seed: int, transactions: int = 60) -> Bank:
    """A bank with truncates, a snapshot in the beginning and one in the midst, where nothing is lost."""
    bank = Bank(seed, accounts=12, truncates=0.04)
    bank.work(transactions // 4)
    if seed % 2:
        bank.snapshot()
    bank.work(transactions // 2)
    bank.snapshot()
    bank.work(transactions // 4)
    return bank


@pytest.mark.parametrize("seed", range(6))
def test_the_state_at_any_lsn_is_that_of_the_bank(spark: Any, seed: int) -> None:
    bank = a_bank(seed)
    changes = frame(spark, records(bank), seed).cache()
    draw = Random(seed)
    asked = draw.sample([lsn for lsn, _ in bank.commits], 5)
    for lsn in [*asked, asked[0] - 1, asked[1] + 1, bank.lsn]:
        assert as_dict(state_at(changes, ROW, lsn)) == by_bank(bank, lsn), f"seed {seed}, LSN {lsn}"
    changes.unpersist()


@pytest.mark.parametrize("seed", range(4))
def test_the_history_of_each_row_has_its_state_at_every_commit_and_nothing_twice(spark: Any, seed: int) -> None:
    bank = a_bank(seed)
    rows = [row.asDict() for row in history(frame(spark, records(bank), seed), ROW).collect()]
    for lsn, _ in bank.commits:
        there = [
            row
            for row in rows
            if row["valid_from_lsn"] <= lsn and (row["valid_to_lsn"] is None or row["valid_to_lsn"] > lsn)
        ]
        found = {row["account_id"]: tuple(row[name] for name in NAMES) for row in there}
        assert len(found) == len(there)
        assert found == by_bank(bank, lsn), f"seed {seed}, LSN {lsn}"
    for row in rows:
        assert row["valid_to"] is None or row["valid_from"] <= row["valid_to"]


@pytest.mark.parametrize("seed", range(3))
def test_the_state_of_each_day_is_that_at_its_last_commit(spark: Any, seed: int) -> None:
    bank = a_bank(seed)
    first, last = bank.commits[0][1].date(), bank.commits[-1][1].date() + timedelta(days=1)
    found = daily_state(frame(spark, records(bank), seed), ROW, first, last).collect()
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    for day in days:
        end = datetime.combine(day + timedelta(days=1), time(), UTC)
        until = max((lsn for lsn, at in bank.commits if at < end), default=0)
        rows = {row["account_id"]: tuple(row[name] for name in NAMES) for row in found if row["day"] == day}
        assert rows == by_bank(bank, until), f"seed {seed}, {day}"
        at = state_at(frame(spark, records(bank)), ROW, end - timedelta(microseconds=1)) if day == days[1] else None
        assert at is None or as_dict(at) == rows
    assert len(found) == len({(row["account_id"], row["day"]) for row in found})


def test_a_day_says_the_same_whatever_happens_later(spark: Any) -> None:
    bank = a_bank(3)
    day = bank.commits[20][1].date()
    rows = records(bank)
    end = datetime.combine(day + timedelta(days=1), time(), UTC)
    whole = daily_state(frame(spark, rows), ROW, day, day)
    cut = daily_state(frame(spark, [one for one in rows if one["committed_at"] < end]), ROW, day, day)
    assert sorted(map(str, whole.collect())) == sorted(map(str, cut.collect()))
    assert whole.count() > 0


def test_a_row_that_a_snapshot_does_not_find_is_gone_and_one_that_it_finds_goes_on(spark: Any) -> None:
    at = datetime(2024, 1, 1, tzinfo=UTC)
    said = '{"account_id":%d,"owner":"%s","email":null,"balance":"1.00","opened_at":0,"note":null}'

    def change(op: str, lsn: int, key: int, owner: str, position: int = 1) -> dict[str, Any]:
        return {
            "commit_lsn": lsn if op == "r" else lsn + 1,
            "lsn": lsn,
            "position": 0 if op == "r" else position,
            "op": op,
            "key": f'{{"account_id":{key}}}',
            "before": None,
            "after": said % (key, owner),
            "committed_at": at + timedelta(seconds=lsn),
            "schema_version": "1",
        }

    rows = [change("c", 10, 1, "a"), change("c", 20, 2, "b"), change("c", 30, 3, "c")]
    rows += [change("r", 100, 1, "a"), change("r", 100, 3, "changed while nobody looked")]
    found = {
        (row["account_id"], row["owner"]): (row["valid_from_lsn"], row["valid_to_lsn"], row["is_observed"])
        for row in history(frame(spark, rows), ROW).collect()
    }
    assert found == {
        (1, "a"): (11, None, False),
        (2, "b"): (21, 100, False),
        (3, "c"): (31, 100, False),
        (3, "changed while nobody looked"): (100, None, True),
    }


def test_a_value_that_was_not_sent_and_is_not_known_is_refused_by_the_name_of_its_row(spark: Any) -> None:
    bank = Bank(5, accounts=4, truncates=0)
    bank.work(80)
    rows = [one for one in records(bank) if one["op"] == "u" and "__debezium" in one["after"]][:1]
    with pytest.raises(SparkRuntimeException, match="the value of note was not sent with the change of the row"):
        state_at(frame(spark, rows), ROW).collect()


def test_a_value_that_was_not_sent_comes_along_when_the_key_is_changed_again_and_again(spark: Any) -> None:
    bank = Bank(17, accounts=30, truncates=0, renumbers=0.6)
    bank.work(300)
    moved = [one for one in records(bank) if one["op"] == "c" and "__debezium" in one["after"]]
    assert len(moved) > 5
    changes = frame(spark, records(bank))
    for lsn in (moved[0]["commit_lsn"], moved[-1]["commit_lsn"], bank.lsn):
        assert as_dict(state_at(changes, ROW, lsn)) == by_bank(bank, lsn)


def one_change(spark: Any, after: str, lsn: int = 77) -> Any:
    at = datetime(2024, 1, 1, tzinfo=UTC)
    change = {
        "commit_lsn": lsn,
        "lsn": lsn,
        "position": 1,
        "op": "c",
        "key": '{"id":7}',
        "before": None,
        "after": after,
    }
    return frame(spark, [change | {"committed_at": at, "schema_version": "1"}])


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date", "array<timestamp>", "array<decimal(8, 2)>"])
def test_what_spark_reads_as_something_else_is_refused_by_name_when_the_frame_is_built(spark: Any, kind: str) -> None:
    changes, row = one_change(spark, '{"id":7,"noticed":1767323045678901}'), f"id bigint, noticed {kind}"
    for build in (lambda: history(changes, row), lambda: renamed(row, {"id": "number"})(changes)):
        with pytest.raises(TransformRefused, match=r"noticed is declared as (.|\n)*what to do: declare"):
            build()


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ('"12.345"', "decimal(8, 2)"),
        ("12.345", "decimal(8, 2)"),
        ('"0.004"', "decimal(8, 2)"),
        ('"1.5E-2"', "decimal(8, 2)"),
        ('"123456.78"', "decimal(5, 2)"),
        ('"1E+3"', "decimal(5, 2)"),
        ('"0.5"', "decimal(5, 0)"),
        ('"NaN"', "decimal(5, 2)"),
        ("true", "decimal(5, 2)"),
    ],
)
def test_a_number_that_does_not_fit_its_decimal_is_refused_with_its_row(spark: Any, said: str, kind: str) -> None:
    changes = renamed(f"id bigint, old {kind}", {"old": "new"})(one_change(spark, f'{{"id":7,"old":{said}}}'))
    with pytest.raises(SparkRuntimeException) as refused:
        state_at(changes, f"id bigint, new {kind}").collect()
    expected = f'new is {said.strip(chr(34))} in the change of the row {{"id":7}} at LSN 0/4D (77), and does not fit {kind.replace(" ", "")}'
    assert expected in str(refused.value)


def test_a_number_that_does_not_fit_is_refused_by_the_row_alone(spark: Any) -> None:
    with pytest.raises(SparkRuntimeException, match=r"old is 12\.345 in the change"):
        state_at(one_change(spark, '{"id":7,"old":12.345}'), "id bigint, old decimal(8, 2)").collect()


FITTING = (
    ('"12.30"', "decimal(8, 2)", "12.30"),
    ("12.3000", "decimal(8, 2)", "12.30"),
    ('"-0.5"', "decimal(2, 2)", "-0.50"),
    ('"1.50E-8"', "decimal(20, 10)", "0.0000000150"),
    ('"0E-10"', "decimal(8, 2)", "0.00"),
    ('"1E+3"', "decimal(6, 2)", "1000.00"),
    ('"00012"', "decimal(2, 0)", "12"),
    ('"12345678901234567890123456789012345678"', "decimal(38, 0)", "12345678901234567890123456789012345678"),
    ('"12345678901234567890123456.789012345678"', "decimal(38, 12)", "12345678901234567890123456.789012345678"),
    ("123456789012.34567", "decimal(38, 12)", "123456789012.34567"),
    ("null", "decimal(8, 2)", None),
)
"""What is sent, the decimal that is declared, and the number."""


def test_numbers_that_fit_their_decimals_are_as_they_were_sent(spark: Any) -> None:
    members = ",".join(f'"c{place}":{said}' for place, (said, _, _) in enumerate(FITTING))
    changes = one_change(spark, f'{{"id":7,{members}}}')

    def row(letter: str) -> str:
        return ", ".join(["id bigint", *(f"{letter}{place} {kind}" for place, (_, kind, _) in enumerate(FITTING))])

    again = renamed(row("c"), {f"c{place}": f"d{place}" for place in range(len(FITTING))})(changes)
    for rows, letter in ((changes, "c"), (again, "d")):
        (found,) = state_at(rows, row(letter)).collect()
        for place, (said, kind, number) in enumerate(FITTING):
            assert found[f"{letter}{place}"] == (None if number is None else Decimal(number)), (said, kind)


def test_a_text_is_read_once_by_a_reader_of_an_older_version(spark: Any) -> None:
    plan = renamed(ROW, {"email": "contact"})(one_change(spark, "{}"))._jdf.queryExecution().optimizedPlan().toString()
    # of what was before, and of what is after; what refuses a row reads its text anew, as a map
    assert plan.count("from_json(StructField(") == 2


def test_versions_are_read_by_the_names_of_the_newest(spark: Any) -> None:
    from backfill_assets.declarations.source_tables import Readers, as_it_is

    bank = Bank(11, accounts=10, truncates=0)
    for _ in range(2):
        bank.work(30)
        bank.evolve()
    bank.work(30)
    second = ROW + ", tier string"
    readers = Readers(
        "schema_version",
        {"1": renamed(ROW, {"email": "contact"}), "2": renamed(second, {"email": "contact"}), "3": as_it_is},
    )
    changes = readers.read(frame(spark, records(bank)))
    names = ["account_id", "owner", "contact", "balance", "opened_at", "note", "tier"]
    for lsn in (bank.commits[20][0], bank.commits[45][0], bank.lsn):
        assert as_dict(state_at(changes, NEWEST, lsn), names) == by_bank(bank, lsn, names)
    assert date(2024, 1, 1) <= bank.commits[-1][1].date()


def a_change(op: str = "c", lsn: int = 77, **said: Any) -> dict[str, Any]:
    """A change of one of a few accounts."""
    row = json.dumps({"id": 7, "note": "secret", "rate": 1.5, "is_open": True} | said)
    return {
        "commit_lsn": lsn,
        "lsn": lsn,
        "position": 1,
        "op": op,
        "key": json.dumps({"id": said.get("id", 7)}),
        "before": row if op == "d" else None,
        "after": None if op == "d" else row,
        "committed_at": datetime(2026, 1, 1, tzinfo=UTC),
        "source_table": "public.few",
        "schema_version": "1",
    }


FAILURES = (SparkRuntimeException, Py4JJavaError)
"""What Spark raises of one failure, and of several side by side."""
FEW = "id bigint, note string, rate double, is_open boolean"
OTHER_TYPES = {
    "object": ({"id": {"secret": 7}}, "id of the key is no bigint"),
    "array": ({"id": [7]}, "id of the key is no bigint"),
    "empty array": ({"id": []}, "id of the key is no bigint"),
    "fraction": ({"id": 7.5}, "id of the key is no bigint"),
    "whole fraction": ({"id": 7.0}, "id of the key is no bigint"),
    "true": ({"id": True}, "id of the key is no bigint"),
    "text": ({"id": "secret"}, "id of the key is no bigint"),
    "beyond": ({"id": 2**63}, "id of the key is no bigint"),
    "others": ({"rate": "secret", "is_open": 1}, "rate is no double, is_open is no boolean"),
}


@pytest.mark.parametrize(
    ("reader", "name"), [*(("as it is", name) for name in OTHER_TYPES), ("renamed", "array"), ("renamed", "others")]
)
def test_a_value_of_another_type_is_refused_by_table_lsn_and_column_and_not_quoted(
    spark: Any, name: str, reader: str
) -> None:
    said, words = OTHER_TYPES[name]
    changes = spark.createDataFrame(
        [tuple(a_change(**said).values())], SCHEMA.replace(" schema_v", " source_table string, schema_v")
    )
    row = FEW
    if reader == "renamed":
        changes, row = renamed(FEW, {"note": "words"})(changes), FEW.replace("note", "words")
    with pytest.raises(FAILURES) as refused:
        history(changes, row).collect()
    told = told_of(refused.value)
    assert told.startswith(
        "SparkRuntimeException: [USER_RAISED_EXCEPTION] the change of public.few at LSN 0/4D (77) does not have"
    )
    assert (
        f"the change of public.few at LSN 0/4D (77) does not have the types that its row declares: {words}; declare"
        in told
    )
    assert "secret" not in told, str(refused.value)


def test_rows_name_a_position_as_the_server_and_every_other_message_do(spark: Any) -> None:
    positions = [0, 1, 77, 2**32 - 1, 2**32, 24023128, 0x16_B374D848, 2**63 - 1]
    frame = spark.createDataFrame([(one,) for one in positions], "lsn long")
    said = [row["said"] for row in frame.select(_lsn_in_words().alias("said")).collect()]
    assert said == [f"{in_words(one)} ({one})" for one in positions]


@pytest.mark.parametrize("key", [7.0, True, "7", [7]])
def test_a_delete_whose_key_is_of_another_type_is_refused_rather_than_that_it_ends_nothing(
    spark: Any, key: Any
) -> None:
    rows = [a_change(), a_change("d", 78, id=key)]
    changes = spark.createDataFrame(
        [tuple(one.values()) for one in rows], SCHEMA.replace(" schema_v", " source_table string, schema_v")
    )
    with pytest.raises(
        SparkRuntimeException, match=r"the change of public\.few at LSN 0/4E \(78\) .*: id of the key is no bigint; "
    ):
        state_at(changes, FEW).collect()
    changes = spark.createDataFrame(
        [tuple(a_change(op, lsn).values()) for op, lsn in (("c", 77), ("d", 78))], changes.schema
    )
    assert state_at(changes, FEW).collect() == []


def test_values_of_a_renamed_version_are_read_once_and_come_as_they_were(spark: Any) -> None:
    schema = SCHEMA.replace(" schema_v", " source_table string, schema_v")
    changes = spark.createDataFrame([tuple(a_change(note=None).values()), tuple(a_change("d", 78).values())], schema)
    found = {row["op"]: row for row in renamed(FEW, {"note": "words"})(changes).collect()}
    assert json.loads(found["c"]["after"]) == {"id": 7, "words": None, "rate": 1.5, "is_open": True}
    assert json.loads(found["d"]["before"])["words"] == "secret"
    assert (found["c"]["before"], found["d"]["after"]) == (None, None)
    assert found["c"].asDict().keys() == set(changes.columns)
