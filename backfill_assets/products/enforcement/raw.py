"""The raw shape of an enforcement case log, and what each of its rows is.

Put here what a delivered row looks like (its columns and activities), and the rules that
make a raw row either an event or a quarantined record with a reason. Every row becomes
exactly one of the two. How a file is read in bounded memory is `raw_files`'.

Keep out where events are stored, which of two deliveries of an event wins, and every
meaning an event has for a clock (`reference` holds those rules). Nothing here knows
Spark, Iceberg or Dagster.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import polars as pl

from backfill_assets.delivered_files import is_no_text, without_nul

CASE_ID: Final = "case:concept:name"
ACTIVITY: Final = "concept:name"
TIMESTAMP: Final = "time:timestamp"
AMOUNT: Final = "amount"
EVENT_SEQ: Final = "_event_seq"
JURISDICTION: Final = "jurisdiction"

REQUIRED_COLUMNS: Final = (CASE_ID, ACTIVITY, TIMESTAMP, AMOUNT, EVENT_SEQ)
"""The columns every raw log has; ``jurisdiction`` is optional, all others ignored."""

ACTIVITIES: Final = (
    "Create Fine",
    "Send Fine",
    "Insert Fine Notification",
    "Add penalty",
    "Payment",
    "Send for Credit Collection",
    "Insert Date Appeal to Prefecture",
    "Send Appeal to Prefecture",
    "Receive Result Appeal from Prefecture",
    "Notify Result Appeal to Offender",
    "Appeal to Judge",
)

_UTC_MICROSECONDS: Final = pl.Datetime("us", "UTC")

EVENTS_SCHEMA: Final = pl.Schema(
    {
        "event_id": pl.String(),
        "case_id": pl.String(),
        "event_seq": pl.Int32(),
        "jurisdiction": pl.String(),
        "activity": pl.String(),
        "event_at": _UTC_MICROSECONDS,
        "amount": pl.Decimal(12, 2),
        "source_file": pl.String(),
        "source_row": pl.Int64(),
        "ingested_at": _UTC_MICROSECONDS,
    }
)

QUARANTINE_SCHEMA: Final = pl.Schema(
    {
        "source_file": pl.String(),
        "source_row": pl.Int64(),
        "reason": pl.String(),
        "detail": pl.String(),
        "record": pl.String(),
        "ingested_at": _UTC_MICROSECONDS,
    }
)

_LOCAL_TIME: Final = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    # More than six digits would be cut off, and a cut timestamp is another one.
    r"(?:\.[0-9]{1,6})?"
)
# No zone on earth is more than 14 hours from UTC.
_OFFSET: Final = r"(?:Z|[+-](?:0[0-9]|1[0-4]):?[0-5][0-9])"
_EARLIEST: Final = datetime(1, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)

_LARGEST_EVENT_SEQ: Final = 2**31 - 1
_LARGEST_CENTS: Final = 10**12 - 1


class Reason(StrEnum):
    """Why a raw row is no event; of several, the first in this order is recorded."""

    MISSING_CASE_ID = "MISSING_CASE_ID"
    """The case id is null or blank."""
    BAD_CASE_ID = "BAD_CASE_ID"
    """The case id has a NUL character, or begins with a byte order mark."""
    UNKNOWN_ACTIVITY = "UNKNOWN_ACTIVITY"
    """The activity is none of `ACTIVITIES`, letter for letter."""
    BAD_TIMESTAMP = "BAD_TIMESTAMP"
    """The timestamp is no existing ISO-8601 date and time to the second or finer."""
    TIMESTAMP_WITHOUT_OFFSET = "TIMESTAMP_WITHOUT_OFFSET"
    """The timestamp is a date and time, but of no known instant."""
    BAD_EVENT_SEQ = "BAD_EVENT_SEQ"
    """The position in the case is no whole number from 0 to 2147483647."""
    BAD_AMOUNT = "BAD_AMOUNT"
    """The amount is no number, not finite, of part cents, or not a decimal(12,2)."""
    UNKNOWN_JURISDICTION = "UNKNOWN_JURISDICTION"
    """The jurisdiction is null, blank or not one the product has rules for."""


@dataclass(frozen=True, slots=True, eq=False)
class Classified:
    """A batch split in two: `EVENTS_SCHEMA` and `QUARANTINE_SCHEMA`, in file order."""

    events: pl.DataFrame
    quarantined: pl.DataFrame


def number_rows(batches: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Add ``source_row`` to the batches of one file, counting on from each to the next.

    For batches that do not come from `read_batches`, such as the generator's.
    """
    offset = 0
    for batch in batches:
        rows = pl.int_range(offset, offset + pl.len(), dtype=pl.Int64)
        yield batch.with_columns(rows.alias("source_row"))
        offset += batch.height


def classify(
    batch: pl.DataFrame,
    *,
    source_file: str,
    ingested_at: datetime,
    default_jurisdiction: str,
    known_jurisdictions: frozenset[str],
) -> Classified:
    """Make each row of a batch an event or a quarantined record, dropping none.

    `batch` is of the shape `read_batches` gives. A log without a ``jurisdiction``
    column is all of `default_jurisdiction`; in a log with one, an empty value is
    quarantined, for the default would be a guess. Activities, jurisdictions and case
    ids are taken letter for letter.

    Raises ValueError if `ingested_at` has no offset, or if the default is needed and
    not in `known_jurisdictions`.
    """
    if ingested_at.utcoffset() is None:
        message = (
            f"ingested_at {ingested_at.isoformat()} has no offset: it is stored in "
            "UTC and must be an instant; pass an aware datetime"
        )
        raise ValueError(message)
    raw = _with_jurisdiction(batch, source_file, default_jurisdiction, known_jurisdictions)
    ingested = pl.lit(ingested_at.astimezone(UTC), dtype=_UTC_MICROSECONDS)
    # The raw row as it came, before any column is read as something.
    raw_columns = [name for name in batch.columns if name != "source_row"]
    judged = (
        raw.lazy()
        .with_columns(_timestamp_columns())
        .with_columns(_amount_columns(raw.schema[AMOUNT]))
        .with_columns(_event_seq_column())
        .with_columns(_reason(known_jurisdictions).alias("_reason"))
        .with_columns(
            pl.lit(source_file).alias("source_file"),
            ingested.alias("ingested_at"),
        )
        .collect()
    )
    events = _events(judged.filter(pl.col("_reason").is_null()))
    quarantined = judged.filter(pl.col("_reason").is_not_null()).select(
        "source_file",
        pl.col("source_row").cast(pl.Int64),
        pl.col("_reason").alias("reason"),
        _detail(known_jurisdictions).alias("detail"),
        # As text, because JSON has no NaN, which is one of the things to keep.
        pl.struct(pl.col(raw_columns).cast(pl.String)).struct.json_encode().alias("record"),
        "ingested_at",
    )
    return Classified(events=events, quarantined=quarantined)


def _with_jurisdiction(
    batch: pl.DataFrame, source_file: str, default_jurisdiction: str, known_jurisdictions: frozenset[str]
) -> pl.DataFrame:
    """Return a batch whose rows have a jurisdiction: their own, or in a log without that column the default one."""
    if JURISDICTION in batch.columns:
        return batch
    if default_jurisdiction in known_jurisdictions:
        return batch.with_columns(pl.lit(default_jurisdiction).alias(JURISDICTION))
    message = (
        f"the default jurisdiction {default_jurisdiction!r} of {source_file} is "
        f"not known: it must be one of {sorted(known_jurisdictions)}; pass one, "
        "or add its rules"
    )
    raise ValueError(message)


def _events(accepted: pl.DataFrame) -> pl.DataFrame:
    """Give the accepted rows their final columns and ids."""
    events = accepted.select(
        pl.col(CASE_ID).cast(pl.String).alias("case_id"),
        pl.col("_seq").cast(pl.Int32).alias("event_seq"),
        pl.col(JURISDICTION).cast(pl.String).alias("jurisdiction"),
        pl.col(ACTIVITY).cast(pl.String).alias("activity"),
        pl.col("_event_at").alias("event_at"),
        # The value is within float noise of whole cents, so the cast is exact.
        pl.col("_amount").round(2).cast(pl.Decimal(12, 2)).alias("amount"),
        "source_file",
        pl.col("source_row").cast(pl.Int64),
        "ingested_at",
    )
    return events.with_columns(_event_ids(events)).select(EVENTS_SCHEMA.names())


def _event_ids(events: pl.DataFrame) -> pl.Series:
    """Return what makes an event the same event, hashed; not its amount, file or row.

    The case id is the only free text and comes last, so that no two different events
    have the same canonical text. `hashlib` rather than polars' hash, which is free to
    change between versions.
    """
    canonical = events.select(
        pl.format(
            "{}|{}|{}|{}|{}",
            "jurisdiction",
            "event_seq",
            "activity",
            pl.col("event_at").dt.epoch("us"),
            "case_id",
        )
    ).to_series()
    digest = hashlib.sha256
    ids = [digest(text.encode()).hexdigest()[:32] for text in canonical.to_list()]
    return pl.Series("event_id", ids, dtype=pl.String)


def _timestamp_columns() -> list[pl.Expr]:
    """Return ``_event_at``, the instant, and ``_naive``, if only an offset is missing.

    The patterns decide, and polars only computes: its own parser takes leap seconds,
    leading spaces, typographic minus signs and digits that it then cuts off.
    """
    text = pl.col(TIMESTAMP).cast(pl.String)
    with_offset = pl.when(text.str.contains(f"^{_LOCAL_TIME}{_OFFSET}$")).then(text.str.replace("Z$", "+00:00"))
    without_offset = pl.when(text.str.contains(f"^{_LOCAL_TIME}$")).then(text)
    instant = with_offset.otherwise(None).str.to_datetime(
        "%Y-%m-%dT%H:%M:%S%.f%:z", time_unit="us", time_zone="UTC", strict=False
    )
    local = without_offset.otherwise(None).str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="us", strict=False)
    # Years that Python and Iceberg's readers cannot show: 0000, or past 9999 in UTC.
    representable = instant.is_between(
        pl.lit(_EARLIEST, dtype=_UTC_MICROSECONDS),
        pl.lit(_LATEST, dtype=_UTC_MICROSECONDS),
    )
    return [
        pl.when(representable).then(instant).otherwise(None).alias("_event_at"),
        local.is_not_null().alias("_naive"),
    ]


def _amount_columns(dtype: pl.DataType) -> list[pl.Expr]:
    """Return ``_amount`` as a float, null if absent, and whether it is ``_bad_amount``.

    Whole cents up to decimal(12,2) are told apart exactly by a float64; the tolerance
    is the noise of one, a value such as 71.50000000000001.
    """
    given = pl.col(AMOUNT)
    if dtype == pl.String:
        # A quoted empty field of a CSV is an absent amount too.
        given = pl.when(given != "").then(given).otherwise(None)
    number = given.cast(pl.Float64, strict=False)
    cents = number * 100
    whole = cents.round()
    tolerance = 1e-6 + whole.abs() * 2.0**-52
    good = number.is_finite() & ((cents - whole).abs() <= tolerance) & (whole.abs() <= _LARGEST_CENTS)
    bad = given.is_not_null() & ~good.fill_null(value=False)
    return [
        pl.when(good).then(number).otherwise(None).alias("_amount"),
        bad.alias("_bad_amount"),
    ]


def _event_seq_column() -> pl.Expr:
    """Return ``_seq``, the position in the case, null if it is not one."""
    text = pl.col(EVENT_SEQ).cast(pl.String)
    number = pl.when(text.str.contains("^[0-9]{1,10}$")).then(text).otherwise(None).cast(pl.Int64)
    in_range = number <= _LARGEST_EVENT_SEQ
    return pl.when(in_range).then(number).otherwise(None).alias("_seq")


def _reason(known_jurisdictions: frozenset[str]) -> pl.Expr:
    """Return the first rule a row fails, in the order of `Reason`, or null."""
    case_id = pl.col(CASE_ID).cast(pl.String)
    activity = pl.col(ACTIVITY).cast(pl.String)
    jurisdiction = pl.col(JURISDICTION).cast(pl.String)
    no_instant = pl.col("_event_at").is_null()
    failures = {
        Reason.MISSING_CASE_ID: case_id.str.strip_chars().fill_null("") == "",
        Reason.BAD_CASE_ID: is_no_text(case_id),
        Reason.UNKNOWN_ACTIVITY: ~_is_one_of(activity, ACTIVITIES),
        Reason.BAD_TIMESTAMP: no_instant & ~pl.col("_naive"),
        Reason.TIMESTAMP_WITHOUT_OFFSET: no_instant,
        Reason.BAD_EVENT_SEQ: pl.col("_seq").is_null(),
        Reason.BAD_AMOUNT: pl.col("_bad_amount"),
        Reason.UNKNOWN_JURISDICTION: ~_is_one_of(jurisdiction, sorted(known_jurisdictions)),
    }
    return pl.coalesce(
        pl.when(failure).then(pl.lit(reason.value)).otherwise(None) for reason, failure in failures.items()
    )


def _detail(known_jurisdictions: frozenset[str]) -> pl.Expr:
    """Return, for a quarantined row, the offending value and the rule in words."""
    rules = {
        Reason.MISSING_CASE_ID: (CASE_ID, "an event must name its case"),
        Reason.BAD_CASE_ID: (CASE_ID, "it must have no NUL and no byte order mark in front"),
        Reason.UNKNOWN_ACTIVITY: (
            ACTIVITY,
            f"it must be one of the {len(ACTIVITIES)} activities of a fine",
        ),
        Reason.BAD_TIMESTAMP: (
            TIMESTAMP,
            "it must be an existing date and time such as 2006-07-24T00:00:00+02:00",
        ),
        Reason.TIMESTAMP_WITHOUT_OFFSET: (
            TIMESTAMP,
            "without an offset from UTC it is no instant",
        ),
        Reason.BAD_EVENT_SEQ: (
            EVENT_SEQ,
            f"it must be a whole number from 0 to {_LARGEST_EVENT_SEQ}",
        ),
        Reason.BAD_AMOUNT: (
            AMOUNT,
            "it must be a number of whole cents that fits decimal(12,2)",
        ),
        Reason.UNKNOWN_JURISDICTION: (
            JURISDICTION,
            f"it must be one of {', '.join(sorted(known_jurisdictions))}",
        ),
    }
    return pl.coalesce(
        pl.when(pl.col("_reason") == reason.value)
        .then(pl.concat_str(pl.lit(f"{column} is "), _shown(column), pl.lit(f": {why}")))
        .otherwise(None)
        for reason, (column, why) in rules.items()
    )


def _shown(column: str) -> pl.Expr:
    text = without_nul(pl.col(column).cast(pl.String))
    return pl.concat_str(pl.lit("'"), text, pl.lit("'")).fill_null("null")


def _is_one_of(column: pl.Expr, values: Sequence[str]) -> pl.Expr:
    members = pl.Series(list(values), dtype=pl.String).implode()
    return column.is_in(members).fill_null(value=False)
