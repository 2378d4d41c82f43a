"""What changes of a database come to: rows as they were at a position, from when to when they were so, and at the end of each day.

Put here functions over Spark frames with the columns of `ChangeRecord`, which transforms of products call. All of them order changes by
commit, LSN and position, never by arrival, look at one key at a time, and use Spark's own expressions: there is no function of Python
in them. How changes are landed is `ingestion`'s. Imported by Spark's Python workers: keep it light.

Between transactions nobody sees a row: what a transaction creates and removes again was never there. A snapshot is an observation of
a whole table: what it has not read is not there any more, and a row that it finds as it was goes on being so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from manifests.errors import Problem, TransformRefused

UNAVAILABLE = ("__debezium_unavailable_value", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==")
"""What stands for a large value that a change has left as it was, and did not send: as text, and as bytes in base64."""
_MOST_STEPS = 10_000
"""So often a key may be changed before a value is sent again."""
_STRICT = {"mode": "FAILFAST"}
_UNREAD = "_text_that_does_not_fit"
_LENIENT = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _UNREAD}
"""How rows are read: of one whose values are of other types than are declared, its text is kept in `_UNREAD`, and it is refused with its place."""
_EXPONENT = r"^[+-]?([0-9]*)(?:[.]([0-9]*))?(?:[eE]([+-]?[0-9]{1,9}))?$"
"""A decimal number as text: its digits before the point, those after it, and the power of ten, which Java writes of small ones."""
_INSTEAD = {
    DateType: "int, the days that Debezium sends, and F.date_add(F.lit('1970-01-01').cast('date'), column)",
    TimestampType: "bigint, the microseconds that Debezium sends, and F.timestamp_micros(column); of a timestamptz string, and a cast",
    TimestampNTZType: "bigint, the microseconds that Debezium sends, and F.timestamp_micros(column)",
    DecimalType: "string within arrays, maps and structs, and a cast that refuses what does not fit",
}
"""What a row declares instead of types whose members Spark reads as something else, or rounds, without a word."""
_END = ("valid_to_lsn", "valid_to", "is_end_observed")
_TABLE = "source_table"
PLACE = ("commit_lsn", "lsn", "position")
"""The order of changes."""


def history(changes: DataFrame, row: str) -> DataFrame:
    """Return what each row said, and from which commit up to which: a row for each time that it was so.

    Args:
        changes: changes of one table of the database, with the columns of `ChangeRecord`; each may be there several times.
        row: the columns to read of a row, as DDL of Spark: `account_id bigint, balance decimal(12, 2)`. One that a change has not is
            NULL. Of dates and times declare what the log has: `int` of days, `bigint` of microseconds, `string`. A large value that a change did not send is the one that the row had before.

    Returns:
        The columns of `row`, and `key` (canonical JSON), `valid_from_lsn`, `valid_from` (its commit and the time of that),
        `valid_to_lsn`, `valid_to` (of the commit that ended it, or of the snapshot that did not find it so; NULL while it holds),
        `is_observed`: whether it begins with a snapshot that found it, so that it may have been so before, and `is_end_observed`: whether
        it ends with one, so that it may have ended before; NULL while it holds.

    Times go on with the commits of a key: a commit that has an earlier time than the one before it is given the same. Spark raises an
    error that names the row where a value was not sent, and none is known, and where a number does not fit its decimal exactly; and one
    that names table, LSN and columns, and no value, where a value is of another type than its column.

    Raises:
        TransformRefused: if a column is declared as a date or a time, or a decimal within another type.
    """
    segments = _segments(changes, row)
    names = _names(row)
    islands = segments.groupBy("key", "_island").agg(
        F.min_by("_row", "_place").alias("_row"),
        F.min("commit_lsn").alias("valid_from_lsn"),
        F.min("_time").alias("valid_from"),
        F.max_by("_end", "_place").alias("_end"),
        F.min_by(F.col("op") == "r", "_place").alias("is_observed"),
    )
    ended = F.when(F.col("_end").isNotNull(), F.greatest(F.col("_end.time"), F.col("valid_from")))
    return islands.where(F.col("_end").isNull() | (F.col("_end.commit_lsn") > F.col("valid_from_lsn"))).select(
        "key",
        *(F.col("_row")[name].alias(name) for name in names),
        "valid_from_lsn",
        "valid_from",
        F.col("_end.commit_lsn").alias("valid_to_lsn"),
        ended.alias("valid_to"),
        "is_observed",
        F.col("_end.is_read").alias("is_end_observed"),
    )


def state_at(changes: DataFrame, row: str, until: int | datetime | None = None) -> DataFrame:
    """Return the rows of a table as they were at a position of its log.

    Args:
        changes: changes of one table of the database; see `history`.
        row: the columns to read of a row, as DDL of Spark.
        until: an LSN, or an instant: what was committed up to then, inclusive, counts. None: all changes do.

    Returns:
        The columns of `history` but for `valid_to_lsn`, `valid_to` and `is_end_observed`; no row for a key that was not there.
    """
    if isinstance(until, datetime):
        at = F.lit(until)
        found = history(changes, row)
        found = found.where((F.col("valid_from") <= at) & (F.col("valid_to").isNull() | (F.col("valid_to") > at)))
    else:
        found = history(changes if until is None else changes.where(F.col("commit_lsn") <= until), row)
        found = found.where(F.col("valid_to_lsn").isNull())
    return found.drop(*_END)


def daily_state(changes: DataFrame, row: str, first: date, last: date) -> DataFrame:
    """Return the rows of a table as they were at the end of each day (UTC), from `first` to `last`, both inclusive.

    Returns:
        The columns of `state_at`, and `day`. Changes after `last` make no difference.
    """
    end = F.expr("CAST(date_add(day, 1) AS TIMESTAMP)")
    found = history(changes, row)
    # cut before it is multiplied: a row is there on the days from its first to its last one
    begun = F.greatest(F.lit(first), F.to_date("valid_from"))
    over = F.least(F.lit(last), F.coalesce(F.to_date("valid_to"), F.lit(last)))
    days = F.explode(F.when(begun <= over, F.sequence(begun, over)).otherwise(F.array().cast("array<date>"))).alias(
        "day"
    )
    by_day = found.select("*", days)
    return by_day.where(F.col("valid_to").isNull() | (F.col("valid_to") >= end)).drop(*_END)


def renamed(row: str, names: Mapping[str, str]) -> Callable[[DataFrame], DataFrame]:
    """Return a reader of a schema version whose columns had other names: `ba.Readers("schema_version", {"1": ba.renamed(...)})`.

    Args:
        row: the columns of that version, as DDL of Spark, under their old names.
        names: what each old name is called by now; the others stay. Decimals are handed on as they came.
    """

    def read(rows: DataFrame) -> DataFrame:
        fields = _as_sent(_fields(row))

        def anew(column: str) -> Column:
            said = F.col(f"_{column}")
            now = F.struct(*(said[one.name].alias(names.get(one.name, one.name)) for one in fields))
            written = F.when(F.col(column).isNotNull(), F.to_json(now, {"ignoreNullFields": "false"}))
            return F.when(said[_UNREAD].isNotNull(), _of_other_types(rows, column, said, fields)).otherwise(written)

        # columns of their own: in one expression, Spark would read the text for each field
        said = rows.withColumns({"_before": _read("before", fields), "_after": _read("after", fields)})
        kept = {name: anew(name).alias(name) for name in ("before", "after")}
        return said.select(*(kept.get(name, F.col(name)) for name in rows.columns))

    return read


def _names(row: str) -> list[str]:

    return [field.name for field in _fields(row)]


def _fields(row: str) -> list[StructField]:
    found = StructType.fromDDL(row)
    if not isinstance(found, StructType):
        raise ValueError(f"{row!r} is one type, and no list of columns with theirs")  # noqa: TRY004 - the text is wrong, not its type
    problems = [
        Problem(
            f"{field.name} is declared as {kind.simpleString()}",
            "a log has dates and times as numbers or texts: as another type they come out wrong, and decimals within another are rounded",
            f"declare {_INSTEAD[type(kind)]}",
        )
        for field in found.fields
        for kind in _kinds(field.dataType)
        if type(kind) in _INSTEAD and not (isinstance(kind, DecimalType) and kind is field.dataType)
    ]
    if problems:
        raise TransformRefused(problems)
    return found.fields


def _kinds(kind: DataType) -> Iterator[DataType]:
    """Yield a type, and those within it."""
    yield kind
    within: list[DataType] = []
    if isinstance(kind, ArrayType):
        within = [kind.elementType]
    elif isinstance(kind, MapType):
        within = [kind.keyType, kind.valueType]
    elif isinstance(kind, StructType):
        within = [field.dataType for field in kind.fields]
    for one in within:
        yield from _kinds(one)


def _as_sent(fields: Sequence[StructField]) -> list[StructField]:
    """Return fields as they are read: decimals as text, since a number with more digits would be rounded."""
    return [
        StructField(one.name, StringType() if isinstance(one.dataType, DecimalType) else one.dataType) for one in fields
    ]


def _read(text: str, fields: Sequence[StructField]) -> Column:
    """Return what a text of JSON says of some fields; where a value is of another type, the text is in `_UNREAD`."""
    return F.from_json(text, StructType([*fields, StructField(_UNREAD, StringType())]), _LENIENT)


def _decimal(said: Column, name: str, kind: DecimalType) -> Column:
    """Return a number that came as text as the decimal that it is, or refuse its row: one that does not fit exactly is no such decimal."""
    number = said.try_cast(kind)
    plain = rf"^-?[0-9]{{1,{kind.precision - kind.scale or 1}}}" + (
        rf"([.][0-9]{{1,{kind.scale}}})?$" if kind.scale else "$"
    )
    before, after, power = (F.regexp_extract(said, _EXPONENT, place) for place in (1, 2, 3))
    digits = F.rtrim(F.concat(before, after), F.lit("0"))
    places = F.length(digits) - F.length(before) - F.coalesce(power.try_cast("int"), F.lit(0))
    fits = said.rlike(plain) | (said.rlike(_EXPONENT) & ((digits == "") | (places <= kind.scale)))
    return F.when(said.isNull() | (number.isNotNull() & fits), number).otherwise(_unfit(said, name, kind))


def _segments(changes: DataFrame, row: str) -> DataFrame:
    """Return each change that leaves a row, with what the row says then, where that ends, and which of them are one and the same.

    Columns: those of the change, `_row` (a struct), `_place`, `_time`, `_end` (commit_lsn and time of what ends it, and whether
    that is a snapshot; or NULL), and `_island`: segments of a key with one number follow on one another and say the same.
    """
    place = F.struct(*PLACE)
    of_key = Window.partitionBy("key").orderBy("_place", "op", "after", "before")
    table = [name for name in (_TABLE,) if name in changes.columns]
    rows = changes.where(F.col("key").isNotNull()).select(
        "key", "op", "before", "after", *PLACE, "committed_at", *table
    )
    rows = rows.withColumn("_place", place)
    again = F.coalesce(F.lag("_place").over(of_key) == F.col("_place"), F.lit(False))
    rows = rows.withColumn("_again", again).where(~F.col("_again")).drop("_again")
    rows = _resolved(rows, row)
    rows = rows.crossJoin(F.broadcast(_barriers(changes)))
    upto = of_key.rowsBetween(Window.unboundedPreceding, 0)
    rows = rows.withColumn("_time", F.max("committed_at").over(upto))
    last, last_row = F.lag("_place").over(of_key), F.lag("_row").over(of_key)
    rows = rows.withColumns(
        {"_last": last, "_last_row": last_row, "_next": F.lead(F.struct("_place", "_time")).over(of_key)}
    )
    ends = F.expr("filter(_barriers, b -> b.place > _place AND (_next IS NULL OR b.place < _next._place))")
    broken = F.expr(
        "exists(_barriers, b -> b.place > _last AND b.place < _place AND NOT (b.is_read AND b.place.commit_lsn = commit_lsn))"
    )
    goes_on = (
        (F.col("op") == "r") & F.col("_last_row").isNotNull() & ~broken & F.col("_row").eqNullSafe(F.col("_last_row"))
    )
    barrier = F.get(ends, F.lit(0))
    by_barrier = F.struct(
        barrier["place"]["commit_lsn"].alias("commit_lsn"),
        barrier["time"].alias("time"),
        barrier["is_read"].alias("is_read"),
    )
    by_next = F.struct(
        F.col("_next._place.commit_lsn").alias("commit_lsn"),
        F.col("_next._time").alias("time"),
        F.lit(False).alias("is_read"),
    )
    end = F.when(F.size(ends) > 0, by_barrier).when(F.col("_next").isNotNull(), by_next)
    rows = rows.withColumns({"_end": end, "_goes_on": F.coalesce(goes_on, F.lit(False))})
    rows = rows.withColumn("_island", F.count_if(~F.col("_goes_on")).over(upto))
    return rows.where(F.col("_row").isNotNull()).drop("_barriers", "_last", "_last_row", "_next", "_goes_on")


def _barriers(changes: DataFrame) -> DataFrame:
    """Return one row: what ends every row of the table that was there before, in order: truncates, and snapshots of the whole."""
    is_read = F.col("op") == "r"
    # a snapshot of the table stands before all that it has read
    position = F.when(is_read, F.lit(-1).cast("bigint")).otherwise(F.col("position"))
    lsn = F.when(is_read, F.col("commit_lsn")).otherwise(F.col("lsn"))
    place = F.struct(F.col("commit_lsn"), lsn.alias("lsn"), position.alias("position"))
    each = changes.where(is_read | (F.col("op") == "t")).groupBy(place.alias("place"), is_read.alias("is_read"))
    found = each.agg(F.min("committed_at").alias("time"))
    return found.agg(F.array_sort(F.collect_list(F.struct("place", "is_read", "time"))).alias("_barriers"))


def _resolved(rows: DataFrame, row: str) -> DataFrame:
    """Return changes with `_row`: what the row says after each, NULL where it is gone.

    A value that was not sent is the one that the row had before, since it was created; of a row that was created by a change of
    its key, the one that it had under the other key.
    """
    fields = _fields(row)
    texts = [field.name for field in fields if isinstance(field.dataType, StringType)]
    sent = _as_sent(fields)
    # of what was before, texts are needed
    before = StructType([field for field in fields if field.name in texts])
    rows = rows.withColumns(
        {
            "_after": _read("after", sent),
            "_before": F.from_json("before", before, _STRICT) if texts else F.lit(None),
            # what a delete ends is told by its key alone
            "_gone": F.when(F.col("op") == "d", _read("key", sent)),
        }
    )
    rows = _with_known(rows, texts)
    if texts:
        others = _under_other_keys(rows, len(texts))
        nothing = {f"_other_{place}": F.lit(None).cast("struct<value: string>") for place in range(len(texts))}
        rows = rows.withColumns(nothing) if others is None else rows.join(others, ["key", "_life"], "left")
    found_fields: list[Column] = []
    for field in fields:
        name, said = field.name, F.col("_after")[field.name]
        if isinstance(field.dataType, DecimalType):
            said = _decimal(said, name, field.dataType)
        if name in texts:
            place = texts.index(name)
            found = F.coalesce(f"_known_{place}", f"_earlier_{place}", f"_other_{place}")
            said = F.when(found.isNotNull(), found["value"]).otherwise(_lost(name))
        found_fields.append(said.alias(name))
    whole = F.when(F.col("_after").isNotNull(), F.struct(*found_fields))
    for text, said in (("after", F.col("_after")), ("key", F.col("_gone"))):
        whole = F.when(said[_UNREAD].isNotNull(), _of_other_types(rows, text, said, sent)).otherwise(whole)
    return rows.withColumn("_row", whole).select(
        "key", "op", "before", "after", *PLACE, "committed_at", "_place", "_row"
    )


def _with_known(rows: DataFrame, texts: Sequence[str]) -> DataFrame:
    """Return changes with what each knows of every text (`_known_0`, ...), and what those before it know since the row was created."""
    of_key = Window.partitionBy("key").orderBy("_place", "op")
    rows = rows.withColumn(
        "_life", F.count_if(F.col("op") == "c").over(of_key.rowsBetween(Window.unboundedPreceding, 0))
    )
    before_it = Window.partitionBy("key", "_life").orderBy("_place", "op").rowsBetween(Window.unboundedPreceding, -1)
    for place, name in enumerate(texts):
        said, was = F.col("_after")[name], F.col("_before")[name]
        sent = F.col("_after").isNotNull() & ~F.coalesce(said.isin(*UNAVAILABLE), F.lit(False))
        # of a row that was not sent whole an empty text stands for no value; a large one is none
        had = F.col("_after").isNotNull() & was.isNotNull() & ~was.isin("", *UNAVAILABLE)
        known = F.when(sent, F.struct(said.alias("value"))).when(had, F.struct(was.alias("value")))
        rows = rows.withColumn(f"_known_{place}", known)
    earlier = {
        f"_earlier_{place}": F.last(f"_known_{place}", ignorenulls=True).over(before_it) for place in range(len(texts))
    }
    return rows.withColumns(earlier)


def _under_other_keys(rows: DataFrame, texts: int) -> DataFrame | None:
    """Return, for each row that was created by a change of its key, what was known of its texts under the keys before (`_other_0`, ...).

    A key may have been changed many times since a value was sent: each step leads to the key before. Such rows
    are few, and looked up once, by a job of their own: every step would do it again. None where there are none.
    """
    created = rows.where((F.col("op") == "c") & _any([F.col(f"_known_{place}").isNull() for place in range(texts)]))
    new = created.select("commit_lsn", "lsn", F.col("position").alias("_at"), "key", "_life")
    gone = rows.where(F.col("op") == "d").select(
        "commit_lsn",
        "lsn",
        "position",
        F.col("key").alias("_old_key"),
        F.col("_life").alias("_old_life"),
        *(F.col(f"_earlier_{place}").alias(f"_other_{place}") for place in range(texts)),
    )
    values = [f"_other_{place}" for place in range(texts)]
    links = new.join(gone, ["commit_lsn", "lsn"]).where(F.col("_at") - F.col("position") <= 1)
    links = links.select("key", "_life", "_old_key", "_old_life", *values).localCheckpoint()
    if links.isEmpty():
        return None
    chased = ", ".join(f"coalesce(c.{name}, l.{name})" for name in values)
    unknown = " OR ".join(f"c.{name} IS NULL" for name in values)
    columns = f"key, _life, _old_key, _old_life, {', '.join(values)}"
    query = f"""
        WITH RECURSIVE chase({columns}, _steps) MAX RECURSION LEVEL {_MOST_STEPS} AS (
            SELECT {columns}, 0 FROM {{links}}
            UNION ALL
            SELECT c.key, c._life, l._old_key, l._old_life, {chased}, c._steps + 1
            FROM chase c JOIN {{links}} l ON l.key = c._old_key AND l._life = c._old_life
            WHERE {unknown}
        )
        SELECT * FROM chase
    """  # noqa: S608 - names of columns of this module
    found = rows.sparkSession.sql(query, links=links)
    newest = [F.max_by(name, "_steps").alias(name) for name in values]
    return found.groupBy("key", "_life").agg(*newest)


def _any(conditions: Sequence[Column]) -> Column:
    return reduce(lambda one, other: one | other, conditions)


def _of_other_types(rows: DataFrame, text: str, said: Column, fields: Sequence[StructField]) -> Column:
    """Return what refuses a change some of whose values are of other types than their columns: its place and the columns, and no value."""
    came, key = (F.from_json(one, "map<string, string>") for one in (text, "key"))
    columns = F.array(
        *(
            F.struct(
                F.lit(one.name).alias("name"),
                F.lit(f" is no {one.dataType.simpleString()}").alias("what"),
                said[one.name].isNull().alias("is_null"),
            )
            for one in fields
        )
    )
    odd = F.filter(columns, lambda one: one["is_null"] & came[one["name"]].isNotNull())
    named = F.array_join(
        F.transform(
            odd,
            lambda one: F.concat(
                one["name"], F.when(key[one["name"]].isNotNull(), F.lit(" of the key")).otherwise(""), one["what"]
            ),
        ),
        ", ",
    )
    words = (
        F.lit("the change of "),
        F.col(_TABLE) if _TABLE in rows.columns else F.lit("a row"),
        F.lit(" at LSN "),
        _lsn_in_words(),
        F.lit(" does not have the types that its row declares: "),
        F.coalesce(
            F.nullif(named, F.lit("")),
            F.when(came.isNull(), F.lit(f"{text} is no object of JSON")).otherwise(
                F.lit("something within one of its columns")
            ),
        ),
        F.lit(
            "; declare the type in which the log has the column (string takes each), or take back the load that has the change"
        ),
    )
    return F.raise_error(F.concat(*words))


def _lsn_in_words() -> Column:
    """Return a change's LSN as the server writes it (see `manifests.log_ranges.lsn`), and as its column has it."""
    lsn = F.col("lsn")
    high, low = F.hex(F.shiftrightunsigned(lsn, 32)), F.hex(lsn.bitwiseAND(F.lit(0xFFFFFFFF)))
    return F.concat(high, F.lit("/"), low, F.lit(" ("), lsn.cast("string"), F.lit(")"))


def _lost(name: str) -> Column:
    """Return what refuses a row one of whose values is known by nobody."""
    why = (
        ", and no earlier change of that row has it: have its table send whole rows (REPLICA IDENTITY FULL), or land a snapshot from"
        " before"
    )
    said = (F.lit(f"the value of {name} was not sent with the change of the row "), F.col("key"), F.lit(" at LSN "))
    return F.raise_error(F.concat(*said, _lsn_in_words(), F.lit(why))).cast("string")


def _unfit(said: Column, name: str, kind: DecimalType) -> Column:
    """Return what refuses a row one of whose numbers does not fit the decimal that is declared."""
    why = (
        f", and does not fit {kind.simpleString()} exactly: declare more digits, or string and what it is to be read as"
    )
    words = (F.lit(f"{name} is "), said, F.lit(" in the change of the row "), F.col("key"), F.lit(" at LSN "))
    return F.raise_error(F.concat(*words, _lsn_in_words(), F.lit(why))).cast(kind)
