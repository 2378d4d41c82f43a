"""A generated log is the same everywhere, dirty as the real one, and carries its own oracle."""

import hashlib
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from backfill_assets.products.enforcement.generator import COLUMNS, generate, write_csv, write_parquet
from backfill_assets.products.enforcement.raw import ACTIVITIES, Classified, Reason, classify, number_rows
from backfill_assets.products.enforcement.raw_files import read_batches
from backfill_assets.products.enforcement.reference import TIME_ZONES, jurisdiction_calendar

CASES = 8_000
SEED = 20_240_501
END = date(2012, 12, 31)
REPOSITORY = Path(__file__).resolve().parents[2]


def classified(batches: Iterable[pl.DataFrame]) -> Classified:
    parts = [
        classify(
            batch,
            source_file="generated",
            ingested_at=datetime(2024, 5, 1, tzinfo=UTC),
            default_jurisdiction="IT",
            known_jurisdictions=frozenset(TIME_ZONES),
        )
        for batch in number_rows(batches)
    ]
    return Classified(
        events=pl.concat([part.events for part in parts]),
        quarantined=pl.concat([part.quarantined for part in parts]),
    )


def with_local_date(events: pl.DataFrame) -> pl.DataFrame:
    """Add ``local_date`` by plain Python, so that it owes nothing to an engine's zones."""
    local = [
        at.astimezone(ZoneInfo(TIME_ZONES[jurisdiction])).date()
        for at, jurisdiction in events.select("event_at", "jurisdiction").iter_rows()
    ]
    return events.with_columns(pl.Series("local_date", local, dtype=pl.Date))


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    return pl.concat(generate(CASES, SEED))


@pytest.fixture(scope="module")
def judged(log: pl.DataFrame) -> Classified:
    return classified([log])


@pytest.fixture(scope="module")
def events(judged: Classified) -> pl.DataFrame:
    """Each event once, as its first delivery has it."""
    return with_local_date(judged.events.unique("event_id", keep="first", maintain_order=True))


# ------------------------------------------------------------------ determinism


def digest(log: pl.DataFrame) -> str:
    return hashlib.sha256(log.write_csv(line_terminator="\n").encode()).hexdigest()


def test_a_log_is_the_same_in_every_process_whatever_its_time_zone_and_hash_seed(log: pl.DataFrame) -> None:
    program = (
        "import hashlib, polars as pl; from backfill_assets.products.enforcement.generator import generate; "
        f"log = pl.concat(generate({CASES}, {SEED})); "
        "print(hashlib.sha256(log.write_csv(line_terminator='\\n').encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "LC_ALL": "C", **settings},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for settings in (
            {"TZ": "Pacific/Kiritimati", "PYTHONHASHSEED": "1"},
            {"TZ": "America/St_Johns", "PYTHONHASHSEED": "2", "LANG": "it_IT.UTF-8"},
        )
    }
    assert digests == {digest(log)}


def test_the_italian_rows_are_those_of_every_earlier_run(log: pl.DataFrame) -> None:
    # Italy pays by calendar days, so no release of `holidays` has a part in its rows.
    # A new digest here means that every recorded seed now names another log.
    italian = log.filter(pl.col("case:concept:name").str.starts_with("IT-"))
    assert digest(italian) == "dc19673bf90aba4bf21008a2689921a5b92e6d06908033b23728367b369efdd4"


def test_another_seed_is_another_log(log: pl.DataFrame) -> None:
    assert not pl.concat(generate(CASES, SEED + 1)).equals(log)


@pytest.mark.parametrize(("name", "write"), [("log.parquet", write_parquet), ("log.csv", write_csv)])
def test_a_written_log_reads_back_as_generated(
    tmp_path: Path, log: pl.DataFrame, name: str, write: Callable[[Path, int, int], int]
) -> None:
    path = tmp_path / name
    rows = write(path, CASES, SEED)
    read = pl.concat(read_batches(path))
    assert rows == read.height
    assert read.select(COLUMNS).equals(log)


def test_a_log_comes_in_batches() -> None:
    heights = [batch.height for batch in generate(16_000, 1)]
    assert len(heights) == 2
    assert heights[0] == 50_000


def test_a_batch_is_text_in_the_raw_shape(log: pl.DataFrame) -> None:
    assert log.schema == pl.Schema(dict.fromkeys(COLUMNS, pl.String()))


# ------------------------------------------------------------------ the oracle


def breach_by_counting(jurisdiction: str, notified: date, business: set[tuple[str, date]]) -> date:
    """Return when the PAYMENT clock breaches, counting day by day."""
    length, business_only = {"IT": (60, False), "PT": (15, True), "US-NY": (30, True), "NZ": (28, False)}[jurisdiction]
    day = notified
    while length:
        day += timedelta(days=1)
        if not business_only or (jurisdiction, day) in business:
            length -= 1
    return day


@pytest.mark.parametrize(
    ("cases", "seed", "start", "end"),
    [
        (CASES, SEED, date(2009, 1, 1), END),
        (2_000, 1, date(2009, 1, 1), END),
        (2_000, 2, date(2015, 3, 1), date(2015, 11, 20)),
    ],
)
def test_a_penalty_is_added_on_the_breach_date_of_every_unpaid_notification_and_never_else(
    cases: int, seed: int, start: date, end: date
) -> None:
    business = {
        (row.jurisdiction, row.day) for row in jurisdiction_calendar(start.year, end.year + 1) if row.is_business_day
    }
    log = classified(generate(cases, seed, start=start, end=end))
    dates: dict[tuple[str, str], dict[str, list[date]]] = defaultdict(lambda: defaultdict(list))
    for row in with_local_date(log.events.unique("event_id")).to_dicts():
        dates[row["jurisdiction"], row["case_id"]][row["activity"]].append(row["local_date"])

    sides: Counter[str] = Counter()
    for (jurisdiction, _), of_case in dates.items():
        due: list[date] = []
        for notified in of_case["Insert Fine Notification"]:
            breach = breach_by_counting(jurisdiction, notified, business)
            paid = of_case["Payment"]
            stopped = [day for day in paid if notified <= day < breach]
            if not stopped and breach <= end:
                due.append(breach)
            sides["paid before notice, breached"] += not stopped and any(day < notified for day in paid)
            sides["paid on the day of notice"] += notified in stopped
            sides["paid on the eve"] += breach - timedelta(days=1) in stopped
            sides["paid on the breach date"] += not stopped and breach in paid
            sides["paid later"] += not stopped and any(day > breach for day in paid)
            sides["still running at the end"] += not stopped and breach > end
            sides["paid in time"] += bool(stopped)
            sides["breached"] += due == [breach]
        assert of_case["Add penalty"] == due
    # Every side of the rule is in the log, or it would prove little.
    if cases == CASES:
        assert len(sides) == len(+sides) == 8, sides


def test_a_case_is_notified_at_most_once(events: pl.DataFrame) -> None:
    notified = events.filter(pl.col("activity") == "Insert Fine Notification")
    assert notified["case_id"].is_unique().all()


# ------------------------------------------------------------------ the manner of the real log


def test_every_case_starts_with_its_fine_and_only_fines_and_penalties_have_amounts(events: pl.DataFrame) -> None:
    first = events.filter(pl.col("event_seq") == 0)
    assert first.height == first["case_id"].n_unique() == CASES
    assert set(first["activity"]) == {"Create Fine"}
    assert set(events.filter(pl.col("amount").is_not_null())["activity"]) == {"Create Fine", "Add penalty"}
    assert set(events["activity"]) == set(ACTIVITIES)


def test_positions_in_a_case_have_no_gaps_and_follow_time(events: pl.DataFrame) -> None:
    ordered = events.sort("case_id", "event_seq")
    by_case = ordered.group_by("case_id", maintain_order=True).agg("event_seq", "event_at")
    assert all(seqs == list(range(len(seqs))) for seqs in by_case["event_seq"].to_list())
    assert all(times == sorted(times) for times in by_case["event_at"].to_list())


def test_the_jurisdictions_have_their_shares(events: pl.DataFrame) -> None:
    cases = events.unique("case_id").group_by("jurisdiction").len()
    shares = {jurisdiction: count / CASES for jurisdiction, count in cases.iter_rows()}
    assert shares == pytest.approx({"IT": 0.60, "PT": 0.15, "US-NY": 0.15, "NZ": 0.10}, abs=0.02)


def test_a_timestamp_has_the_offset_of_its_place_and_season(log: pl.DataFrame, events: pl.DataFrame) -> None:
    for row in events.to_dicts():
        at = datetime.fromisoformat(log.item(row["source_row"], "time:timestamp"))
        assert at.utcoffset() == at.astimezone(ZoneInfo(TIME_ZONES[row["jurisdiction"]])).utcoffset()
        assert at.date() == row["local_date"]


@pytest.mark.parametrize("jurisdiction", TIME_ZONES)
def test_in_every_jurisdiction_some_events_have_another_date_in_utc(events: pl.DataFrame, jurisdiction: str) -> None:
    own = events.filter(pl.col("jurisdiction") == jurisdiction)
    assert (own["event_at"].dt.date() != own["local_date"]).mean() > 0.03  # type: ignore[operator]


def test_few_fines_are_made_at_weekends(events: pl.DataFrame) -> None:
    days = events.filter(pl.col("activity") == "Create Fine")["local_date"].dt.weekday()
    assert 0.02 < (days >= 6).mean() < 0.10  # type: ignore[operator]


def test_backlogs_go_to_credit_collection_on_a_few_bulk_days(events: pl.DataFrame) -> None:
    by_day = Counter(events.filter(pl.col("activity") == "Send for Credit Collection")["local_date"])
    bulk = by_day.most_common(3)
    assert sum(count for _, count in bulk) > 0.7 * by_day.total()
    assert all(count > 50 * sorted(by_day.values())[len(by_day) // 2] for _, count in bulk)


def test_about_one_case_in_a_hundred_starts_its_appeal_clock_again_much_later(events: pl.DataFrame) -> None:
    appeals = events.filter(pl.col("activity") == "Insert Date Appeal to Prefecture").sort("event_at")
    repeated = appeals.group_by("case_id").agg(pl.col("local_date")).filter(pl.col("local_date").list.len() > 1)
    assert repeated.height / CASES == pytest.approx(0.01, abs=0.004)
    assert all((second - first).days > 160 for first, second in repeated["local_date"].to_list())


def test_no_event_is_after_the_end(events: pl.DataFrame) -> None:
    assert max(events["local_date"]) <= END
    assert min(events["local_date"]) >= date(2009, 1, 1)


# ------------------------------------------------------------------ dirt


def test_some_events_arrive_long_after_those_that_happened_later(judged: Classified) -> None:
    arrived = judged.events.sort("source_row")
    behind = arrived["event_at"].cum_max() - arrived["event_at"]
    late = (behind > timedelta(days=4)).mean()
    assert 0.01 < late < 0.04  # type: ignore[operator]
    # All others come in the order in which they happened.
    assert (behind == timedelta(0)).mean() > 0.95  # type: ignore[operator]


def test_some_events_are_delivered_twice_the_second_time_later_in_the_file(
    judged: Classified, log: pl.DataFrame
) -> None:
    again = (
        judged.events.group_by("event_id").agg(pl.col("source_row").sort()).filter(pl.col("source_row").list.len() > 1)
    )
    assert again.height / log.height == pytest.approx(0.005, abs=0.002)
    for first, second in again["source_row"].to_list():
        assert second > first
        assert log.row(first) == log.row(second)


def test_some_rows_cannot_be_classified_for_each_of_the_reasons(judged: Classified, log: pl.DataFrame) -> None:
    reasons = Counter(judged.quarantined["reason"])
    damage = Reason.BAD_CASE_ID  # of a file, which a generated log is none
    assert set(reasons) == {reason.value for reason in Reason if reason is not damage}
    assert reasons.total() / log.height == pytest.approx(0.003, abs=0.001)
    assert judged.events.height + judged.quarantined.height == log.height


# ------------------------------------------------------------------ bounds


def test_a_log_may_be_of_one_case_on_one_day() -> None:
    day = date(2011, 3, 17)
    log = classified(generate(1, 5, start=day, end=day))
    assert set(with_local_date(log.events)["local_date"]) == {day}


def test_a_log_of_no_cases_is_refused() -> None:
    with pytest.raises(ValueError, match="cases is 0"):
        generate(0, 1)


def test_a_reversed_range_is_refused() -> None:
    with pytest.raises(ValueError, match="start 2012-01-02 is after end 2012-01-01"):
        generate(1, 1, start=date(2012, 1, 2), end=date(2012, 1, 1))
