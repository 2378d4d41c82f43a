"""The instant that a record of a topic says itself: what the declared function may answer, and what is refused without a value in it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
from pyiceberg.schema import assign_fresh_schema_ids
from topic_world import PRODUCT, TABLE, TOPIC

import backfill_assets as ba
from backfill_assets.declarations.finding import check_products
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.extraction.archived_records import ArchivedFile, Copied, CopyTask, copy_files, looked_at
from backfill_assets.extraction.event_times import NotTimedError, event_times
from manifests.errors import DeclarationRefused

SECRET = "p4ss-1b2c"
SCHEMA = assign_fresh_schema_ids(iceberg_schema(ba.TimedTopicRecord))


class NoZone(tzinfo):
    """A time zone that says nothing."""

    def utcoffset(self, _: datetime | None) -> None:
        return None


class Raises(tzinfo):
    """A time zone that has no answer."""

    def utcoffset(self, _: datetime | None) -> timedelta:
        raise KeyError(SECRET)


def said_at(record: ba.KafkaRecord) -> datetime | None:
    """Read the instant of a record: its value is ISO 8601, or nothing."""
    return datetime.fromisoformat(record.value.decode()) if record.value else None


def record(value: bytes | None = None, **fields: Any) -> ba.KafkaRecord:
    return ba.KafkaRecord(**{"key": None, "value": value, "headers": (), "time": None, **fields})


def raising(_: ba.KafkaRecord) -> datetime:
    raise ValueError(SECRET)


def exiting(_: ba.KafkaRecord) -> datetime:
    raise SystemExit(SECRET)


class Stop(BaseException):
    """An error that is no `Exception`."""


def stopping(record: ba.KafkaRecord) -> datetime:
    raise Stop(record.value)


class Lying(datetime):
    """An instant that raises where it is asked."""

    def date(self) -> date:
        raise ValueError(SECRET)


class Elsewhere(datetime):
    """An instant that is another one in UTC than it says."""

    def astimezone(self, _: tzinfo | None = None) -> Elsewhere:
        return Elsewhere(2020, 5, 5, 7, 7, tzinfo=timezone(timedelta(hours=5)))


@pytest.mark.parametrize(
    ("answer", "instant"),
    [
        (None, None),
        (datetime(2026, 3, 1, 1, tzinfo=timezone(timedelta(hours=2))), datetime(2026, 2, 28, 23, tzinfo=UTC)),
        (datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)),
        (datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)),
        (
            pd.Timestamp("2026-03-01T00:00:00.000001999Z"),
            datetime(2026, 3, 1, microsecond=1, tzinfo=UTC),
        ),
    ],
)
def test_an_instant_is_kept_to_the_microsecond_in_utc(answer: datetime | None, instant: datetime | None) -> None:
    assert event_times(lambda _: answer, [(0, record())]).to_pylist() == [instant]


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda _: datetime(2026, 3, 1), "returns a time without a time zone"),  # noqa: DTZ001 - the mistake
        (lambda _: datetime(2026, 3, 1, tzinfo=NoZone()), "returns a time without a time zone"),
        (lambda _: datetime(2026, 3, 1, tzinfo=Raises()), "returns no instant of the years 1 to 9999 (UTC)"),
        (
            lambda _: datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=3))),
            "returns no instant of the years 1 to 9999 (UTC)",
        ),
        (lambda _: pd.NaT, "returns no instant of the years 1 to 9999 (UTC)"),
        (lambda _: SECRET, "returns a str"),
        (lambda _: 1_772_323_200, "returns a int"),
        (raising, "raises ValueError (test_event_times.py"),
        (exiting, "raises SystemExit (test_event_times.py"),
        (stopping, "raises Stop (test_event_times.py"),
        (
            lambda _: pd.Timestamp(1_772_323_200_000, unit="s", tz="UTC"),
            "returns no instant of the years 1 to 9999 (UTC)",
        ),
        (lambda _: Lying(2026, 3, 1, tzinfo=UTC), "returns no instant of the years 1 to 9999 (UTC)"),
        (lambda _: Elsewhere(2026, 3, 1, tzinfo=UTC), "returns a Elsewhere that is no instant"),
        (lambda _: type(f"{SECRET}\n\x1b[31m", (), {})(), "returns a value of a class without a name"),
    ],
)
def test_what_is_no_instant_is_refused_with_the_offset_and_without_a_value(read: Any, said: str) -> None:
    good = record(b"2026-03-01T00:00:00+00:00")
    with pytest.raises(NotTimedError) as refused:
        event_times(lambda one: said_at(one) if one is good else read(one), [(6, good), (7, record(SECRET.encode()))])
    assert refused.value.offset == 7
    what = refused.value.problem.what
    assert said in what.replace("tests/", "")
    assert "at offset 7" in what
    assert SECRET not in str(refused.value.problem)


def timed(model: type = ba.TimedTopicRecord, **changes: Any) -> ba.Product:
    table = replace(TABLE, model=model, log=replace(ba.TOPIC_PLACE, lateness=ba.Lateness(), time="event_time"))
    return replace(PRODUCT, inputs=(table,), topics=(replace(TOPIC, **{"event_time": said_at, **changes}),))


def test_a_topic_with_an_event_time_is_landed_in_a_table_with_its_column() -> None:
    assert check_products([timed()]).topic("orders").event_time is said_at


async def later(record: ba.KafkaRecord) -> datetime | None:
    return said_at(record)


@pytest.mark.parametrize(
    ("product", "said"),
    [
        (timed(ba.TopicRecord), "event_time is missing"),
        (timed(event_time=None), "event_time is its own"),
        (timed(event_time="said_at"), "event_time is 'said_at'"),
        (timed(event_time=lambda: None), "cannot be called with record"),
        (timed(event_time=later), "is a coroutine"),
        (timed(event_time=lambda _: None), "'<lambda>' is not a name of module"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(product: ba.Product, said: str) -> None:
    with pytest.raises(DeclarationRefused) as refused:
        check_products([product])
    assert said in str(refused.value)


def archive(path: Path, values: list[bytes | None], **more: pl.Series) -> str:
    kinds = {"log_partition": pl.Int32, "log_offset": pl.Int64}
    count = len(values)
    rows = pl.DataFrame(
        {
            "log_partition": [0] * count,
            "log_offset": list(range(count)),
            "record_time": [datetime(2026, 3, 9, tzinfo=UTC)] * count,
            "record_time_type": ["CREATE_TIME"] * count,
            "record_key": pl.Series([b"k"] * count, dtype=pl.Binary),
            "record_value": pl.Series(values, dtype=pl.Binary),
            "record_headers": pl.Series(
                [[]] * count, dtype=pl.List(pl.Struct({"name": pl.String, "value": pl.Binary}))
            ),
            **more,
        },
        schema_overrides=kinds,
    )
    rows.write_parquet(path)
    return str(path)


def copied(path: str, folder: Path, read: Any = said_at) -> Copied:
    looked = looked_at(path, SCHEMA)
    assert isinstance(looked, ArchivedFile)
    task = CopyTask(path, looked.ranges, str(folder), "load-1")
    (done,) = copy_files(SCHEMA.model_dump_json(), iter([task]), event_time=read)
    return done


def test_records_of_an_archive_have_their_instants_read_anew(tmp_path: Path) -> None:
    values = [b"2026-03-01T00:00:00+00:00", None]
    lie = pl.Series("event_time", [datetime(1999, 1, 1, tzinfo=UTC)] * 2)
    for name, more in (("plain", {}), ("with", {"event_time": lie})):
        done = copied(archive(tmp_path / f"{name}.parquet", values, **more), tmp_path / name)
        (file,) = done.files
        assert pl.read_parquet(file)["event_time"].to_list() == [datetime(2026, 3, 1, tzinfo=UTC), None]


def test_an_archive_with_a_record_that_the_function_has_no_answer_to_is_not_copied(tmp_path: Path) -> None:
    done = copied(archive(tmp_path / "a.parquet", [b"2026-03-01T00:00:00+00:00", SECRET.encode()]), tmp_path / "to")
    assert done.refused.startswith("event_time raises ValueError")
    assert "at offset 1" in done.refused
    assert SECRET not in done.refused
    assert not done.files
