"""The raw shape of an enforcement case log, and what each of its rows is.

Put here what a delivered file looks like (its columns and activities), how it is
streamed in bounded memory, and the rules that make a raw row either an event or a
quarantined record with a reason. Every row becomes exactly one of the two.

Keep out where events are stored, which of two deliveries of an event wins, and every
meaning an event has for a clock (`reference` holds those rules). Nothing here knows
Spark, Iceberg or Dagster.
"""

import csv
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import polars as pl

from backfill_assets.delivered_files import damaged, is_no_text, without_nul

if TYPE_CHECKING:
    # pyarrow ships no types. Said here, where it is used, so that a checker comes to the
    # same verdict whether or not it is told to follow untyped imports.
    pa: Any
    pa_csv: Any
    pq: Any
else:
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

_ArrowType: TypeAlias = Any
"""A `pyarrow.DataType`."""

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

# One block of CSV text held in memory; a single record cannot be longer than this.
_CSV_BLOCK_BYTES: Final = 16 * 1024 * 1024

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


class RawFileError(ValueError):
    """A raw file cannot be read as a case log."""


@dataclass(frozen=True, slots=True, eq=False)
class Classified:
    """A batch split in two: `EVENTS_SCHEMA` and `QUARANTINE_SCHEMA`, in file order."""

    events: pl.DataFrame
    quarantined: pl.DataFrame


def read_batches(path: Path, batch_rows: int = 200_000) -> Iterator[pl.DataFrame]:
    """Stream a raw log as batches of at most `batch_rows` rows, in file order.

    A batch has `REQUIRED_COLUMNS`, ``jurisdiction`` if the file has it, and
    ``source_row`` (Int64), the 0-based number of the row in the file. Parquet keeps
    its types; CSV (comma, header line, UTF-8) gives text, with empty fields as null;
    blank lines of it are no rows.

    The file is checked at the call, before a row is read. Raises RawFileError, at the
    call or, for damage further down the file, while iterating.
    """
    if batch_rows < 1:
        message = f"batch_rows is {batch_rows}: a batch must hold at least one row"
        raise ValueError(message)
    if not path.exists():
        raise _refusal(path, "does not exist", "a raw log is one file", "check path")
    if not path.is_file():
        raise _refusal(path, "is not a file", "a raw log is one file", "name the file in it")
    match path.suffix.lower():
        case ".parquet":
            columns = _check_parquet(path)
            batches = _parquet_batches(path, columns, batch_rows)
        case ".csv":
            columns = _check_csv(path)
            batches = _csv_batches(path, columns, batch_rows)
        case other:
            raise _refusal(
                path,
                f"has the extension {other!r}",
                "a raw log is .parquet or .csv",
                "convert it, or rename it to what it is",
            )
    return number_rows(batches)


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
    if JURISDICTION in batch.columns:
        raw = batch
    elif default_jurisdiction in known_jurisdictions:
        raw = batch.with_columns(pl.lit(default_jurisdiction).alias(JURISDICTION))
    else:
        message = (
            f"the default jurisdiction {default_jurisdiction!r} of {source_file} is "
            f"not known: it must be one of {sorted(known_jurisdictions)}; pass one, "
            "or add its rules"
        )
        raise ValueError(message)

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


def _refusal(path: Path, wrong: str, rule: str, way_out: str) -> RawFileError:
    return RawFileError(f"raw log {path} {wrong}: {rule}; {way_out}")


def _needed(path: Path, found: Sequence[str]) -> list[str]:
    """Return the columns to read of those found, or refuse the file."""
    missing = [name for name in REQUIRED_COLUMNS if name not in found]
    if missing:
        raise _refusal(
            path,
            f"lacks the column(s) {', '.join(missing)}, having {', '.join(found)}",
            f"a raw log has {', '.join(REQUIRED_COLUMNS)}",
            "name the columns so, or deliver them",
        )
    needed = [name for name in (*REQUIRED_COLUMNS, JURISDICTION) if name in found]
    repeated = [name for name in needed if list(found).count(name) > 1]
    if repeated:
        raise _refusal(
            path,
            f"has the column(s) {', '.join(repeated)} more than once",
            "each column of a raw log has one meaning",
            "remove or rename the others",
        )
    return needed


def _no_rows(path: Path) -> RawFileError:
    return _refusal(
        path,
        "has no rows",
        "an empty delivery looks just like a lost one",
        "deliver it again, or leave it out",
    )


def _check_parquet(path: Path) -> list[str]:
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            names = list(schema.names)
            rows: int = file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise _refusal(
            path,
            f"is not readable as Parquet ({error})",
            "the extension .parquet promises a complete Parquet file",
            "deliver it again, or rename it to what it is",
        ) from error
    except UnicodeError as error:
        raise _refusal(
            path, f"has a column whose name is not UTF-8 ({error})", "names are UTF-8 text", "rename the column"
        ) from error
    columns = _needed(path, names)
    for name in columns:
        kind = schema.field(name).type
        if not _COLUMN_KINDS[name](kind):
            raise _refusal(
                path,
                f"has {name} of type {kind}",
                # A typed timestamp has lost the offset it was written with, and a nested
                # or binary value has no one reading as text.
                f"{name} must be {_COLUMN_KIND_NAMES[name]}",
                "write the column so",
            )
    if rows == 0:
        raise _no_rows(path)
    return columns


def _is_text(kind: _ArrowType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        # A column of nothing but nulls, which its rows will be quarantined for.
        or pa.types.is_null(kind)
    )


def _is_text_or_integer(kind: _ArrowType) -> bool:
    return _is_text(kind) or bool(pa.types.is_integer(kind))


def _is_text_or_number(kind: _ArrowType) -> bool:
    return _is_text_or_integer(kind) or bool(pa.types.is_floating(kind) or pa.types.is_decimal128(kind))


_COLUMN_KINDS: Final[dict[str, Callable[[_ArrowType], bool]]] = {
    CASE_ID: _is_text_or_integer,
    ACTIVITY: _is_text,
    TIMESTAMP: _is_text,
    AMOUNT: _is_text_or_number,
    EVENT_SEQ: _is_text_or_integer,
    JURISDICTION: _is_text,
}
_COLUMN_KIND_NAMES: Final[dict[str, str]] = {
    CASE_ID: "text or an integer",
    ACTIVITY: "text",
    TIMESTAMP: "ISO-8601 text with an offset",
    AMOUNT: "a number (a decimal of at most 38 digits) or text",
    EVENT_SEQ: "an integer or text",
    JURISDICTION: "text",
}


def _parquet_batches(path: Path, columns: list[str], batch_rows: int) -> Iterator[pl.DataFrame]:
    try:
        # Pages that have a checksum are read silently without it, unless it is asked for.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            first = 0
            for batch in file.iter_batches(batch_size=batch_rows, columns=columns):
                if (bad := damaged(batch, first)) is not None:
                    raise _refusal(
                        path,
                        f"has a damaged value in {bad.column}, row {bad.row:,}, counted from 0 ({bad.why})",
                        "text is UTF-8",
                        "have the file written again",
                    )
                first += batch.num_rows
                yield _to_polars(batch)
    # Polars panics with an exception of its own where it meets what it does not know
    except (pa.ArrowException, OSError, UnicodeError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise _refusal(
            path,
            f"breaks off ({error})",
            "a raw log is read whole or not at all",
            "deliver it again",
        ) from error


def _check_csv(path: Path) -> list[str]:
    try:
        # utf-8-sig: spreadsheet programs open a UTF-8 file with a byte order mark.
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            header = next(filter(None, lines), None)
            first_row = next(filter(None, lines), None)
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise _refusal(
            path,
            f"is not readable as CSV ({error})",
            "a CSV raw log is UTF-8 text with commas and a header line",
            "convert it",
        ) from error
    if header is None:
        raise _no_rows(path)
    columns = _needed(path, header)
    if first_row is None:
        raise _no_rows(path)
    return columns


def _csv_batches(path: Path, columns: list[str], batch_rows: int) -> Iterator[pl.DataFrame]:
    read = 0
    try:
        with pa_csv.open_csv(
            path,
            read_options=pa_csv.ReadOptions(block_size=_CSV_BLOCK_BYTES),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=True),
            convert_options=pa_csv.ConvertOptions(
                include_columns=columns,
                # Text throughout: a guessed type would turn 007 into 7.
                column_types=dict.fromkeys(columns, pa.string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
                null_values=[""],
            ),
        ) as reader:
            for block in reader:
                for start in range(0, block.num_rows, batch_rows):
                    batch = _to_polars(block.slice(start, batch_rows))
                    _require_whole_rows(path, batch, read + start)
                    yield batch
                read += block.num_rows
    except (pa.ArrowException, OSError) as error:
        raise _refusal(
            path,
            f"breaks off ({error})",
            "each line of a CSV raw log is UTF-8 and has the header's columns",
            "mend that line, or deliver the file again",
        ) from error


def _require_whole_rows(path: Path, batch: pl.DataFrame, first: int) -> None:
    """Refuse a file in which stray quotes have made one cell of several rows."""
    for name in batch.columns:
        rows = batch[name].str.contains(r"[\r\n]").arg_true()
        if len(rows):
            raise _refusal(
                path,
                f"has a line end within {name}, in row {first + rows[0]:,}, counted from 0",
                "no column of a raw log that is read has line ends: between two stray "
                "quotes, rows are read as one cell",
                "correct the quotes of that row",
            )


def _to_polars(batch: Any) -> pl.DataFrame:
    frame = pl.DataFrame(batch)
    # Dictionary-encoded text and columns of nulls are text like any other.
    return frame.with_columns(pl.col(pl.Categorical, pl.Enum, pl.Null).cast(pl.String))
