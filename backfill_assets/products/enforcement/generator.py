"""A deterministic generator of enforcement case logs in the raw shape.

Put here how made-up cases live and how their events arrive: late, twice, or broken.
The logs serve volume tests, benchmarks and demonstrations, and carry their own oracle,
as the public log does: `Add penalty` falls on the local date on which the PAYMENT clock
breaches, for every case in which it does, and for no other.

Keep out how a raw row is judged (`raw`) and how a clock is computed (`reference`).

The same cases, seed and range give the same rows on every Python version and platform,
given the same releases of `holidays` (a business-day clock counts with its dates) and
of the time zone database. Randomness is `random.Random(int).random()` alone, whose
sequence Python documents as stable; its other methods are not, and neither are numpy's
generators, `hash()`, or the last digit of a logarithm.
"""

import hashlib
import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import polars as pl

from backfill_assets.products.enforcement.raw import (
    ACTIVITY,
    AMOUNT,
    CASE_ID,
    EVENT_SEQ,
    JURISDICTION,
    TIMESTAMP,
    Reason,
)
from backfill_assets.products.enforcement.reference import (
    TIME_ZONES,
    SlaRule,
    breach_date,
    business_days_of,
    jurisdiction_calendar,
    rule_for,
    sla_rules,
)

if TYPE_CHECKING:
    # pyarrow ships no types: see `raw`.
    pa: Any
    pq: Any
else:
    import pyarrow as pa
    import pyarrow.parquet as pq

_T = TypeVar("_T")

DEFAULT_START: Final = date(2009, 1, 1)
DEFAULT_END: Final = date(2012, 12, 31)

COLUMNS: Final = (CASE_ID, ACTIVITY, TIMESTAMP, AMOUNT, EVENT_SEQ, JURISDICTION)
"""The columns of a generated log, all of them text, as broken values need it."""

_BATCH_ROWS: Final = 50_000
_SATURDAY: Final = 5

_SHARES: Final = (("IT", 60), ("PT", 15), ("US-NY", 15), ("NZ", 10))
"""Cases of each jurisdiction, in percent."""
_HOURS: Final = (("OFFICE", 84), ("LATE_EVENING", 8), ("AFTER_MIDNIGHT", 8))
"""Events of each part of the local day, in percent."""
_PAYS: Final = (("IN_TIME", 30), ("ON_THE_EVE", 3), ("ON_THE_BREACH_DATE", 3), ("TOO_LATE", 14), ("NEVER", 50))
"""Notified cases by when they pay against their breach date, in percent."""
_DAY_WEIGHTS: Final = (20, 20, 20, 20, 20, 5, 2)
"""How many fines a day of the week sees, Monday first, against the others."""
_FINES_IN_CENTS: Final = (2200, 3360, 3500, 3500, 3600, 3800, 7400, 13100, 14800)
_BULK_DAYS_AT: Final = (45, 70, 92)
"""Where in the range, in percent of it, whole backlogs go to credit collection."""

_LATE: Final = 0.02
_TWICE: Final = 0.005
_BROKEN: Final = 0.003
# Of notified cases; less those too near the end to be repeated, it is 1% of all.
_APPEALS_AGAIN: Final = 0.024
_APPEALS_ONCE: Final = 0.03

_LATEST_SECOND: Final = 23 * 3600 + 59 * 60 + 59


class _Row(NamedTuple):
    """A raw row, in the order of `COLUMNS`."""

    case_id: str | None
    activity: str
    timestamp: str
    amount: str | None
    event_seq: str
    jurisdiction: str


class _Event(NamedTuple):
    """An event of a case, at a local time without a zone, as its clerk knows it."""

    local: datetime
    activity: str
    amount: str | None = None


class _Delivery(NamedTuple):
    """A row and when it arrives; ordered by arrival, and unique before the row."""

    second: int
    case_number: int
    position: int
    row: _Row


@dataclass(frozen=True, slots=True)
class _Range:
    """What all cases of a log share."""

    end: date
    days: tuple[date, ...]
    cumulative_weights: tuple[int, ...]
    bulk_days: tuple[date, ...]
    rules: tuple[SlaRule, ...]
    business_days: dict[str, tuple[date, ...]]


class _Draw:
    """Draws of one case, made of nothing but ``Random(int).random()``."""

    def __init__(self, seed: int, case_number: int) -> None:
        text = f"{seed}/{case_number}".encode()
        own_seed = int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
        self._random = Random(own_seed).random  # noqa: S311 - made-up fines, no secrets

    def by_share(self, shares: Sequence[tuple[str, int]]) -> str:
        """Draw one of the names, each with its share in percent."""
        percent = self._random() * 100
        for name, share in shares:
            if percent < share:
                return name
            percent -= share
        raise ValueError(f"the shares {shares} do not add up to 100: each draw must fall on one; mend them")

    def fraction(self) -> float:
        return self._random()

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def between(self, low: int, high: int) -> int:
        return low + int(self._random() * (high - low + 1))

    def rather_low(self, low: int, high: int) -> int:
        part = self._random()
        return low + int(part * part * (high - low + 1))

    def pick(self, choices: Sequence[_T]) -> _T:
        return choices[int(self._random() * len(choices))]


def generate(cases: int, seed: int, *, start: date = DEFAULT_START, end: date = DEFAULT_END) -> Iterator[pl.DataFrame]:
    """Generate a raw log of cases created from `start` to `end`, as batches of it.

    A batch has `COLUMNS`, all text, and no ``source_row`` (`raw.number_rows` adds it).
    Rows come in order of arrival: an event arrives when it happens, save about 2% that
    come days to months late. About 0.5% arrive a second time, and before about 0.3% a
    broken copy arrives that cannot be classified, by each of `raw.Reason`. Neither
    touches the oracle: every event of a case also arrives once as it is.

    No event is of a local date after `end`. Memory holds the events under way, which
    are fewer than those of the whole log.

    Raises ValueError, at the call, if there are no cases or `start` is after `end`.
    """
    if cases < 1:
        raise ValueError(f"cases is {cases}: a log has at least one; pass a positive number")
    if start > end:
        raise ValueError(f"start {start} is after end {end}: the range must hold a day; swap them")
    return _batches(cases, seed, _range(start, end))


def write_parquet(path: Path, cases: int, seed: int, *, start: date = DEFAULT_START, end: date = DEFAULT_END) -> int:
    """Write a generated log to a Parquet file, batch by batch; return its rows."""
    batches = generate(cases, seed, start=start, end=end)
    schema = pa.schema([(name, pa.string()) for name in COLUMNS])
    rows = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_table(batch.to_arrow().cast(schema))
            rows += batch.height
    return rows


def write_csv(path: Path, cases: int, seed: int, *, start: date = DEFAULT_START, end: date = DEFAULT_END) -> int:
    """Write a generated log to a CSV file, batch by batch; return its rows."""
    batches = generate(cases, seed, start=start, end=end)
    rows = 0
    with path.open("wb") as file:
        for batch in batches:
            batch.write_csv(file, include_header=rows == 0, line_terminator="\n")
            rows += batch.height
    return rows


def _range(start: date, end: date) -> _Range:
    days = tuple(start + timedelta(days=offset) for offset in range((end - start).days + 1))
    return _Range(
        end=end,
        days=days,
        cumulative_weights=tuple(accumulate(_DAY_WEIGHTS[day.weekday()] for day in days)),
        bulk_days=tuple(_next_weekday(days[len(days) * percent // 100]) for percent in _BULK_DAYS_AT),
        rules=tuple(sla_rules()),
        # A clock started on the last day breaches in the year after.
        business_days=business_days_of(jurisdiction_calendar(start.year, end.year + 1)),
    )


def _batches(cases: int, seed: int, log: _Range) -> Iterator[pl.DataFrame]:
    rows: list[_Row] = []
    for row in _rows(cases, seed, log):
        rows.append(row)
        if len(rows) == _BATCH_ROWS:
            yield _frame(rows)
            rows = []
    if rows:
        yield _frame(rows)


def _frame(rows: Sequence[_Row]) -> pl.DataFrame:
    schema = dict.fromkeys(COLUMNS, pl.String())
    return pl.DataFrame(rows, schema=schema, orient="row")


def _rows(cases: int, seed: int, log: _Range) -> Iterator[_Row]:
    """Yield the rows of all cases by arrival, holding those that are still to come.

    Cases are made in order of their creation dates, so that what arrives before the
    next case can exist is complete and may go.
    """
    under_way: list[_Delivery] = []
    for number in range(cases):
        draw = _Draw(seed, number)
        created_on = _creation_day(draw, number, cases, log)
        # The local day begins at most 14 hours before the same day in UTC does.
        day_before = datetime.combine(created_on - timedelta(days=1), time(), UTC)
        while under_way and under_way[0].second < day_before.timestamp():
            yield heapq.heappop(under_way).row
        for delivery in _deliveries(draw, number, created_on, log):
            heapq.heappush(under_way, delivery)
    while under_way:
        yield heapq.heappop(under_way).row


def _creation_day(draw: _Draw, number: int, cases: int, log: _Range) -> date:
    """Spread the cases over the range by the weights of its days, in their order."""
    total = log.cumulative_weights[-1]
    place = int((number + draw.fraction()) / cases * total)
    return log.days[min(bisect_right(log.cumulative_weights, place), len(log.days) - 1)]


def _deliveries(draw: _Draw, number: int, created_on: date, log: _Range) -> Iterator[_Delivery]:
    jurisdiction = draw.by_share(_SHARES)
    zone = ZoneInfo(TIME_ZONES[jurisdiction])
    case_id = f"{jurisdiction}-{number:07d}"
    position = 0
    for event_seq, event in enumerate(_life(draw, jurisdiction, created_on, log)):
        at = event.local.replace(tzinfo=zone)
        row = _Row(case_id, event.activity, at.isoformat(), event.amount, str(event_seq), jurisdiction)
        arrival = int(at.timestamp())
        if draw.chance(_LATE):
            arrival += draw.between(5 * 86_400, 90 * 86_400)
        arrivals = [(arrival, row)]
        if draw.chance(_BROKEN):
            # Sent broken, then as it is: the rows lost to quarantine lose no event.
            arrivals.insert(0, (arrival, _broken(draw, row)))
        if draw.chance(_TWICE):
            arrivals.append((arrival + draw.between(60, 30 * 86_400), row))
        for second, arriving in arrivals:
            yield _Delivery(second, number, position, arriving)
            position += 1


def _life(draw: _Draw, jurisdiction: str, created_on: date, log: _Range) -> list[_Event]:
    """Return the events of a case up to the end of the range, in their order."""
    # A few fines of nothing, as the public log has them.
    cents = 0 if draw.chance(0.0005) else draw.pick(_FINES_IN_CENTS)
    created = _Event(_moment(draw, created_on), "Create Fine", _money(cents))
    if draw.chance(0.3):
        paid = _moment(draw, created_on + timedelta(days=draw.rather_low(0, 12)), after=created.local)
        events = [created, _Event(paid, "Payment")]
    else:
        events = [created, *_life_by_letter(draw, jurisdiction, created_on, cents, log)]
    events.sort(key=lambda event: event.local)
    return [event for event in events if event.local.date() <= log.end]


def _life_by_letter(draw: _Draw, jurisdiction: str, created_on: date, cents: int, log: _Range) -> Iterator[_Event]:
    """Yield the events of a case whose fine is sent, in no order."""
    sent_on = _office_day(draw, created_on + timedelta(days=draw.between(10, 75)))
    yield _Event(_moment(draw, sent_on), "Send Fine")
    if draw.chance(0.19):
        if draw.chance(0.3):
            yield _Event(_moment(draw, sent_on + timedelta(days=draw.between(1, 60))), "Payment")
        return

    # A few are found only long after the NOTIFICATION clock has breached.
    searched = draw.between(60, 120) if draw.chance(0.03) else 0
    notified_on = _office_day(draw, sent_on + timedelta(days=draw.rather_low(2, 45) + searched))
    if notified_on > log.end:
        return
    notified = _moment(draw, notified_on)
    yield _Event(notified, "Insert Fine Notification")

    rule = rule_for(log.rules, jurisdiction, "PAYMENT", notified_on)
    breach = breach_date(notified_on, rule, log.business_days[jurisdiction])
    payments = list(_payments(draw, sent_on, notified, breach))
    for paid in payments:
        yield _Event(paid, "Payment")
    # The oracle of the log. A payment on the breach date itself comes too late.
    if not any(notified_on <= paid.date() < breach for paid in payments):
        yield _Event(_moment(draw, breach), "Add penalty", _money(2 * cents))
        if not payments:
            yield _Event(_moment(draw, _collection_day(draw, breach, log)), "Send for Credit Collection")
    yield from _appeals(draw, notified_on)


def _payments(draw: _Draw, sent_on: date, notified: datetime, breach: date) -> Iterator[datetime]:
    """Yield when a notified fine is paid, with both sides of the breach date among it."""
    notified_on = notified.date()
    before_notice = (notified_on - sent_on).days - 1
    if before_notice >= 1 and draw.chance(0.02):
        # Before its clock has started a payment cannot stop it.
        yield _moment(draw, sent_on + timedelta(days=draw.between(1, before_notice)))

    match draw.by_share(_PAYS):
        case "IN_TIME":
            within = (breach - notified_on).days - 1
            paid_on = _office_day(draw, notified_on + timedelta(days=draw.rather_low(0, within)))
        case "ON_THE_EVE":
            paid_on = breach - timedelta(days=1)
        case "ON_THE_BREACH_DATE":
            paid_on = breach
        case "TOO_LATE":
            paid_on = _office_day(draw, breach + timedelta(days=draw.between(1, 200)))
        case _:
            return
    paid = _moment(draw, paid_on, after=notified)
    yield paid
    if draw.chance(0.05):
        # Paid in two parts on one day, which is no duplicate.
        yield _moment(draw, paid_on, after=paid)


def _collection_day(draw: _Draw, breach: date, log: _Range) -> date:
    following = bisect_left(log.bulk_days, breach + timedelta(days=60))
    if following < len(log.bulk_days) and draw.chance(0.85):
        return log.bulk_days[following]
    return _office_day(draw, breach + timedelta(days=draw.between(90, 400)))


def _appeals(draw: _Draw, notified_on: date) -> Iterator[_Event]:
    again = draw.chance(_APPEALS_AGAIN)
    if again or draw.chance(_APPEALS_ONCE):
        first_on = _office_day(draw, notified_on + timedelta(days=draw.between(3, 55)))
        yield from _appeal(draw, first_on)
        if again:
            # Far enough from the first for its clock to be over: a start of its own.
            yield from _appeal(draw, first_on + timedelta(days=draw.between(161, 300)))
    if draw.chance(0.007):
        judged_on = _office_day(draw, notified_on + timedelta(days=draw.between(10, 60)))
        yield _Event(_moment(draw, judged_on), "Appeal to Judge")


def _appeal(draw: _Draw, appealed_on: date) -> Iterator[_Event]:
    yield _Event(_moment(draw, appealed_on), "Insert Date Appeal to Prefecture")
    if draw.chance(0.05):
        return
    sent_on = _office_day(draw, appealed_on + timedelta(days=draw.between(1, 60)))
    yield _Event(_moment(draw, sent_on), "Send Appeal to Prefecture")
    if draw.chance(0.25):
        decided_on = _office_day(draw, sent_on + timedelta(days=draw.between(15, 50)))
        yield _Event(_moment(draw, decided_on), "Receive Result Appeal from Prefecture")
        told_on = _office_day(draw, decided_on + timedelta(days=draw.between(2, 20)))
        yield _Event(_moment(draw, told_on), "Notify Result Appeal to Offender")


def _moment(draw: _Draw, day: date, after: datetime | None = None) -> datetime:
    """Draw a local time of a day, later than `after` if that is on the same day.

    Mostly office hours; some late evenings and first hours of a day, whose date in UTC
    is another one. Never from one to eight, when clocks are put forward and back, so
    that every local time exists once.
    """
    match draw.by_share(_HOURS):
        case "OFFICE":
            second = draw.between(8 * 3600, 19 * 3600 - 1)
        case "LATE_EVENING":
            second = draw.between(21 * 3600, _LATEST_SECOND)
        case _:
            second = draw.between(0, 3600 - 1)
    if after is not None and after.date() == day:
        earliest = after.hour * 3600 + after.minute * 60 + after.second + 1
        if second < earliest:
            second = draw.between(min(max(earliest, 19 * 3600), _LATEST_SECOND), _LATEST_SECOND)
    return datetime.combine(day, time()) + timedelta(seconds=second)


def _office_day(draw: _Draw, day: date) -> date:
    """Move most of what would fall on a weekend to the Monday after it."""
    return _next_weekday(day) if draw.chance(0.85) else day


def _next_weekday(day: date) -> date:
    return day + timedelta(days=7 - day.weekday()) if day.weekday() >= _SATURDAY else day


def _money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


def _broken(draw: _Draw, row: _Row) -> _Row:
    """Return the row with one value broken, so that it fails for one reason of all."""
    day, offset = row.timestamp[:10], row.timestamp[19:]
    ways: dict[Reason, tuple[str, tuple[str | None, ...]]] = {
        Reason.MISSING_CASE_ID: ("case_id", (None, "  ")),
        Reason.UNKNOWN_ACTIVITY: ("activity", (row.activity.upper(), "Cancel Fine")),
        Reason.BAD_TIMESTAMP: ("timestamp", (f"{day}T25:61:00{offset}", f"2011-02-30T09:00:00{offset}")),
        Reason.TIMESTAMP_WITHOUT_OFFSET: ("timestamp", (row.timestamp[:19],)),
        Reason.BAD_EVENT_SEQ: ("event_seq", ("-1", "first", "1.5")),
        Reason.BAD_AMOUNT: ("amount", ("NaN", "35 EUR", "12.345", "99999999999.00")),
        Reason.UNKNOWN_JURISDICTION: ("jurisdiction", ("XX", "it")),
    }
    column, values = ways[draw.pick(tuple(ways))]
    return _Row(**{**row._asdict(), column: draw.pick(values)})
